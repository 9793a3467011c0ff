//! Tasks of one executor and the two queues in which they wait to run. Knows no driver.

use std::cell::{Cell, RefCell, UnsafeCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use async_task::Runnable;
use slab::Slab;

#[cfg(feature = "glommio")]
use crate::glommio::GlommioTask;
use crate::notify::Notifier;

/// Which queue a task waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Requests. Runs first.
    Foreground,
    /// Upkeep. Runs when no foreground task waits, and once in a while when one always does.
    Background,
}

/// A spawned task, as a future of its value. Dropping it cancels the task; [`Task::detach`] lets it run on.
#[must_use = "a dropped task is cancelled; detach it to let it run"]
pub struct Task<T> {
    inner: Scheduled<T>,
}

/// A task with the scheduler that turns it.
enum Scheduled<T> {
    Native(async_task::Task<T>),
    #[cfg(feature = "glommio")]
    Glommio(GlommioTask<T>),
}

impl<T: 'static> Task<T> {
    #[cfg(feature = "glommio")]
    pub(crate) fn glommio(task: GlommioTask<T>) -> Self {
        Self { inner: Scheduled::Glommio(task) }
    }

    /// Lets the task run to its end without anybody waiting.
    pub fn detach(self) {
        match self.inner {
            Scheduled::Native(task) => task.detach(),
            #[cfg(feature = "glommio")]
            Scheduled::Glommio(task) => task.detach(),
        }
    }

    /// Cancels the task and waits until its future is dropped; its value when it had ended before.
    pub async fn cancel(self) -> Option<T> {
        match self.inner {
            Scheduled::Native(task) => task.cancel().await,
            #[cfg(feature = "glommio")]
            Scheduled::Glommio(task) => task.cancel().await,
        }
    }

    /// Whether the task has ended or was cancelled.
    pub fn is_finished(&self) -> bool {
        match &self.inner {
            Scheduled::Native(task) => task.is_finished(),
            #[cfg(feature = "glommio")]
            Scheduled::Glommio(task) => task.is_finished(),
        }
    }
}

impl<T> Future for Task<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut self.inner {
            Scheduled::Native(task) => Pin::new(task).poll(context),
            #[cfg(feature = "glommio")]
            Scheduled::Glommio(task) => Pin::new(task).poll(context),
        }
    }
}

thread_local! {
    /// The queue whose executor runs on this thread now; 0 = none.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

/// Runnable tasks. Pushed to by any thread that wakes a task; popped by the executor.
pub(crate) struct TaskQueue {
    /// Never 0, never used twice in a process.
    id: u64,
    /// Touched only while `CURRENT == id`, that is by the executor's thread inside its loop.
    local: UnsafeCell<Lanes>,
    /// Wakes from anywhere else.
    remote: Mutex<Lanes>,
    has_remote: AtomicBool,
    notifier: Notifier,
}

#[derive(Default)]
struct Lanes {
    foreground: VecDeque<Runnable>,
    background: VecDeque<Runnable>,
}

impl Lanes {
    fn lane(&mut self, priority: Priority) -> &mut VecDeque<Runnable> {
        match priority {
            Priority::Foreground => &mut self.foreground,
            Priority::Background => &mut self.background,
        }
    }
}

// SAFETY: `local` is reached only through `with_local`, which checks that the executor of this very queue runs on the
// calling thread; an executor never leaves its thread (`Core` is not Send), so there is one such thread at a time.
// Runnables in `remote` are only moved under its lock and run (or dropped) by the executor's thread.
unsafe impl Sync for TaskQueue {}
// SAFETY: as above; the runnables left in a queue were drained by `Core::shut_down` before its last owner goes.
unsafe impl Send for TaskQueue {}

/// While it lives, the queue's executor runs on this thread.
pub(crate) struct Entered {
    previous: u64,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.previous);
    }
}

impl TaskQueue {
    pub(crate) fn new(notifier: Notifier) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            local: UnsafeCell::new(Lanes::default()),
            remote: Mutex::new(Lanes::default()),
            has_remote: AtomicBool::new(false),
            notifier,
        })
    }

    /// Marks the queue's executor as the one that runs on this thread. Only its own `Core` may call it.
    pub(crate) fn enter(&self) -> Entered {
        Entered { previous: CURRENT.replace(self.id) }
    }

    pub(crate) fn is_entered(&self) -> bool {
        CURRENT.get() == self.id
    }

    /// Runs `action` on the local lanes when this thread may. `action` must not run or drop a task.
    fn with_local<R>(&self, action: impl FnOnce(&mut Lanes) -> R) -> Option<R> {
        if !self.is_entered() {
            return None;
        }
        // SAFETY: only this thread passes the check above (see the Sync impl), and `action` is one of the short
        // closures of this file, none of which runs foreign code, so no second reference exists meanwhile.
        Some(action(unsafe { &mut *self.local.get() }))
    }

    pub(crate) fn push(&self, priority: Priority, runnable: Runnable) {
        let mut runnable = Some(runnable);
        let pushed = self.with_local(|lanes| lanes.lane(priority).extend(runnable.take()));
        if pushed.is_none() {
            let mut remote = self.remote.lock().unwrap_or_else(PoisonError::into_inner);
            remote.lane(priority).extend(runnable);
            self.has_remote.store(true, Ordering::Release);
            drop(remote);
            self.notifier.notify();
        }
    }

    /// Makes the executor look for work.
    pub(crate) fn notify(&self) {
        self.notifier.notify();
    }

    /// Whether another thread woke tasks.
    pub(crate) fn has_remote(&self) -> bool {
        self.has_remote.load(Ordering::Acquire)
    }

    /// Moves what other threads woke into the local lanes.
    pub(crate) fn take_remote(&self) {
        if !self.has_remote() {
            return;
        }
        let mut remote = self.remote.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_remote.store(false, Ordering::Relaxed);
        let moved = self.with_local(|lanes| {
            lanes.foreground.append(&mut remote.foreground);
            lanes.background.append(&mut remote.background);
        });
        assert!(moved.is_some(), "only the running executor takes its remote wakes");
    }

    pub(crate) fn pop(&self, priority: Priority) -> Option<Runnable> {
        self.with_local(|lanes| lanes.lane(priority).pop_front()).flatten()
    }

    /// Tasks that wait: foreground, background.
    pub(crate) fn waiting(&self) -> (usize, usize) {
        self.with_local(|lanes| (lanes.foreground.len(), lanes.background.len())).unwrap_or((0, 0))
    }
}

/// The wakers of all tasks that live, so that the executor can end them.
#[derive(Default)]
pub(crate) struct LiveTasks {
    wakers: RefCell<Slab<Waker>>,
}

impl LiveTasks {
    pub(crate) fn take_wakers(&self) -> Vec<Waker> {
        self.wakers.borrow().iter().map(|(_, waker)| waker.clone()).collect()
    }
}

/// A future that is listed among the live tasks until it is dropped.
struct Listed<F> {
    future: F,
    key: usize,
    live: Rc<LiveTasks>,
}

impl<F: Future> Future for Listed<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: structural pinning of `future` alone: it is never moved out, and `Listed` has no other pinned field;
        // its Drop does not touch `future`.
        unsafe { self.map_unchecked_mut(|listed| &mut listed.future) }.poll(context)
    }
}

impl<F> Drop for Listed<F> {
    fn drop(&mut self) {
        let waker = self.live.wakers.borrow_mut().try_remove(self.key);
        drop(waker);
    }
}

/// Makes a task of a future and queues it.
pub(crate) fn spawn<T: 'static>(
    queue: &Arc<TaskQueue>,
    live: &Rc<LiveTasks>,
    priority: Priority,
    future: impl Future<Output = T> + 'static,
) -> Task<T> {
    let key = live.wakers.borrow_mut().insert(Waker::noop().clone());
    let listed = Listed { future, key, live: Rc::clone(live) };
    let owner = Arc::clone(queue);
    let (runnable, inner) = async_task::spawn_local(listed, move |runnable| owner.push(priority, runnable));
    if let Some(waker) = live.wakers.borrow_mut().get_mut(key) {
        *waker = runnable.waker();
    }
    runnable.schedule();
    Task { inner: Scheduled::Native(inner) }
}
