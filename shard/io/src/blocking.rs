//! The bounded pool of worker threads behind one executor: file operations that block, and jobs that compute. Never
//! touches a socket.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::cpu;
use crate::file_work;
use crate::notify::WakeState;
use crate::operation::{Completion, FileOperation, Job, Returned, Token};

/// Work handed to the threads and not yet taken, at most. More waits on the executor's side, in order.
const QUEUE_LENGTH_MAX: usize = 256;

/// One piece of work.
pub(crate) enum Work {
    File(FileOperation),
    Compute(Job),
}

/// The pool as its executor sees it.
pub(crate) struct WorkerPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    threads_max: usize,
    /// What did not fit into the shared queue.
    overflow: VecDeque<(Token, Work)>,
}

struct Shared {
    queue: Mutex<Queue>,
    work_or_stop: Condvar,
    done: Mutex<Vec<Completion>>,
    /// The length of `done`, readable without its lock.
    done_count: AtomicUsize,
    wake: Arc<WakeState>,
}

#[derive(Default)]
struct Queue {
    /// Invariant: length <= QUEUE_LENGTH_MAX.
    work: VecDeque<(Token, Work)>,
    idle_threads: usize,
    stopping: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code that may panic runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WorkerPool {
    /// A pool of at most `threads_max` threads (at least one), none of which runs yet.
    pub(crate) fn new(threads_max: usize, wake: Arc<WakeState>) -> Self {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            work_or_stop: Condvar::new(),
            done: Mutex::default(),
            done_count: AtomicUsize::new(0),
            wake,
        });
        Self { shared, threads: Vec::new(), threads_max: threads_max.max(1), overflow: VecDeque::new() }
    }

    /// Queues work; its completion comes out of [`WorkerPool::collect`].
    pub(crate) fn submit(&mut self, token: Token, work: Work) {
        self.overflow.push_back((token, work));
        self.refill();
    }

    fn refill(&mut self) {
        if self.overflow.is_empty() {
            return;
        }
        let mut queue = lock(&self.shared.queue);
        let mut woken = 0;
        while queue.work.len() < QUEUE_LENGTH_MAX {
            let Some(work) = self.overflow.pop_front() else { break };
            queue.work.push_back(work);
            woken += 1;
        }
        let wanted = queue.work.len().saturating_sub(queue.idle_threads);
        drop(queue);
        for _ in 0..woken {
            self.shared.work_or_stop.notify_one();
        }
        for _ in 0..wanted {
            if self.threads.len() >= self.threads_max || !self.start_thread() {
                break;
            }
        }
    }

    fn start_thread(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        match std::thread::Builder::new().name("ringlog-worker".to_owned()).spawn(move || work(&shared)) {
            Ok(thread) => {
                self.threads.push(thread);
                true
            }
            Err(error) if self.threads.is_empty() => {
                // Without one thread the queue would wait for ever.
                self.fail_all(&error);
                false
            }
            Err(error) => {
                tracing::warn!(%error, threads = self.threads.len(), "cannot start another worker thread");
                false
            }
        }
    }

    fn fail_all(&mut self, error: &io::Error) {
        tracing::error!(%error, "cannot start a worker thread; file operations fail");
        let failed: Vec<_> = lock(&self.shared.queue).work.drain(..).chain(self.overflow.drain(..)).collect();
        let mut done = lock(&self.shared.done);
        for (token, _) in failed {
            let result = Err(io::Error::new(error.kind(), "no worker thread could be started"));
            done.push(Completion { token, result, returned: Returned::None });
        }
        self.shared.done_count.store(done.len(), Ordering::Release);
    }

    /// Whether completions wait.
    pub(crate) fn has_done(&self) -> bool {
        self.shared.done_count.load(Ordering::Acquire) > 0
    }

    /// Appends what has completed.
    pub(crate) fn collect(&mut self, completions: &mut Vec<Completion>) {
        if !self.has_done() {
            return;
        }
        let mut done = lock(&self.shared.done);
        completions.append(&mut done);
        self.shared.done_count.store(0, Ordering::Release);
        drop(done);
        self.refill();
    }
}

impl Drop for WorkerPool {
    /// Waits until all work that was queued is done: a write that was asked for is not lost with its executor.
    fn drop(&mut self) {
        let overflow: Vec<_> = self.overflow.drain(..).collect();
        let mut queue = lock(&self.shared.queue);
        queue.work.extend(overflow);
        queue.stopping = true;
        drop(queue);
        self.shared.work_or_stop.notify_all();
        for thread in self.threads.drain(..) {
            // A worker catches the panics of jobs; joining cannot tell anything more.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared) {
    // The executor that started us may be pinned; its workers use every allowed CPU.
    let _ = cpu::bind_thread(cpu::allowed_cpus());
    while let Some((token, work)) = next(shared) {
        let (result, returned) = match work {
            Work::File(operation) => catch_unwind(AssertUnwindSafe(|| file_work::execute(operation)))
                .unwrap_or_else(|_| (Err(io::Error::other("a file operation panicked")), Returned::None)),
            Work::Compute(job) => (Ok(0), Returned::Job(job())),
        };
        let mut done = lock(&shared.done);
        done.push(Completion { token, result, returned });
        shared.done_count.store(done.len(), Ordering::Release);
        drop(done);
        shared.wake.notify();
    }
}

fn next(shared: &Shared) -> Option<(Token, Work)> {
    let mut queue = lock(&shared.queue);
    loop {
        if let Some(work) = queue.work.pop_front() {
            return Some(work);
        }
        if queue.stopping {
            return None;
        }
        queue.idle_threads += 1;
        queue = shared.work_or_stop.wait(queue).unwrap_or_else(PoisonError::into_inner);
        queue.idle_threads -= 1;
    }
}
