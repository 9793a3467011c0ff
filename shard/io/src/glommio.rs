//! glommio as a second scheduler over the same ring: its `LocalExecutor` turns the tasks, our driver does all I/O. Uses
//! none of its network or channel layers; of its file layer only a read of the eventfd on which it waits for our ring.
//!
//! One task of glommio, the bridge, plays the part of the native loop: it asks the driver, fires timers, runs hooks, and
//! waits on the ring's eventfd when there is nothing to do. Its downside: a turn goes through two rings, so a request
//! costs more system calls than the native loop needs.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ::glommio::io::BufferedFile;
use ::glommio::timer::Timer;
use ::glommio::{Latency, LocalExecutor, LocalExecutorBuilder, Placement, Shares, TaskQueueHandle, executor};

use crate::driver::Wait;
use crate::error::IoSetupError;
use crate::executor::Core;
use crate::task::Priority;

/// Shares of the two task queues. glommio divides time by them, so background tasks get a twentieth at most.
const FOREGROUND_SHARES: usize = 1_000;
const BACKGROUND_SHARES: usize = 50;

/// The second scheduler, set up and not yet running.
pub(crate) struct GlommioExecutor {
    inner: LocalExecutor,
    /// Signals when our ring has work.
    event: OwnedFd,
}

/// What the handles of a running executor need of it.
pub(crate) struct GlommioHandles {
    foreground: TaskQueueHandle,
    background: TaskQueueHandle,
    /// The tasks that live, so that they can be ended.
    live: Rc<LiveTasks>,
    bridge: RefCell<Option<Waker>>,
    nudged: Cell<bool>,
}

#[derive(Default)]
struct LiveTasks {
    ending: Cell<bool>,
    wakers: RefCell<slab::Slab<Waker>>,
}

impl GlommioExecutor {
    pub(crate) fn new(core: &Core) -> Result<Self, IoSetupError> {
        let refused = |reason: String| IoSetupError::Scheduler { name: "glommio", reason };
        let event = core.driver.borrow_mut().bridge().map_err(|error| refused(error.to_string()))?;
        let builder = LocalExecutorBuilder::new(Placement::Unbound).name("ringlog");
        let inner = builder.make().map_err(|error| refused(error.to_string()))?;
        Ok(Self { inner, event })
    }

    /// Runs until `main` ends, then ends every task.
    pub(crate) fn run<F: Future>(self, core: &Rc<Core>, main: F) -> F::Output {
        let Self { inner, event } = self;
        inner.run(async {
            let queue = |shares, name| {
                executor().create_task_queue(Shares::Static(shares), Latency::NotImportant, name)
            };
            let handles = Rc::new(GlommioHandles {
                foreground: queue(FOREGROUND_SHARES, "foreground"),
                background: queue(BACKGROUND_SHARES, "background"),
                live: Rc::default(),
                bridge: RefCell::default(),
                nudged: Cell::new(false),
            });
            *core.glommio.borrow_mut() = Some(Rc::clone(&handles));
            let helper = |task: Pin<Box<dyn Future<Output = ()>>>| {
                ::glommio::spawn_local_into(task, handles.foreground).expect("the queue was just created")
            };
            let listener = helper(Box::pin(listen(Rc::clone(&handles), event)));
            let bridge = helper(Box::pin(bridge(Rc::clone(core), Rc::clone(&handles))));
            let output = main.await;
            handles.end_tasks().await;
            bridge.cancel().await;
            listener.cancel().await;
            *core.glommio.borrow_mut() = None;
            output
        })
    }
}

impl GlommioHandles {
    /// Tells the bridge that there is something to submit or an earlier deadline.
    pub(crate) fn nudge(&self) {
        if !self.nudged.replace(true)
            && let Some(bridge) = self.bridge.borrow().as_ref()
        {
            bridge.wake_by_ref();
        }
    }

    pub(crate) fn spawn<T: 'static>(
        &self,
        priority: Priority,
        future: impl Future<Output = T> + 'static,
    ) -> GlommioTask<T> {
        let queue = match priority {
            Priority::Foreground => self.foreground,
            Priority::Background => self.background,
        };
        let finished = Rc::new(Cell::new(false));
        let key = self.live.wakers.borrow_mut().insert(Waker::noop().clone());
        let entry = LiveEntry { key, live: Rc::clone(&self.live), finished: Rc::clone(&finished) };
        let task =
            ::glommio::spawn_local_into(run_until_ended(future, entry), queue).expect("our queue exists");
        GlommioTask { task, finished }
    }

    /// Drops the future of every task that lives.
    async fn end_tasks(&self) {
        self.live.ending.set(true);
        while !self.live.wakers.borrow().is_empty() {
            let wakers: Vec<Waker> =
                self.live.wakers.borrow().iter().map(|(_, waker)| waker.clone()).collect();
            wakers.into_iter().for_each(Waker::wake);
            executor().yield_task_queue_now().await;
        }
    }
}

/// A task of glommio.
pub(crate) struct GlommioTask<T> {
    task: ::glommio::Task<T>,
    finished: Rc<Cell<bool>>,
}

impl<T: 'static> GlommioTask<T> {
    pub(crate) fn detach(self) {
        self.task.detach();
    }

    pub(crate) async fn cancel(self) -> Option<T> {
        self.task.cancel().await
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.finished.get()
    }
}

impl<T> Future for GlommioTask<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.task).poll(context)
    }
}

/// A task's place among the live ones.
struct LiveEntry {
    key: usize,
    live: Rc<LiveTasks>,
    finished: Rc<Cell<bool>>,
}

impl Drop for LiveEntry {
    fn drop(&mut self) {
        self.finished.set(true);
        let waker = self.live.wakers.borrow_mut().try_remove(self.key);
        drop(waker);
    }
}

/// Runs a future until it ends or the executor does; in the latter case it is dropped and the task never ends.
async fn run_until_ended<T>(future: impl Future<Output = T>, entry: LiveEntry) -> T {
    let mut future = Box::pin(future);
    let ended = poll_fn(|context| {
        if entry.live.ending.get() {
            return Poll::Ready(None);
        }
        if let Some(waker) = entry.live.wakers.borrow_mut().get_mut(entry.key) {
            waker.clone_from(context.waker());
        }
        future.as_mut().poll(context).map(Some)
    })
    .await;
    drop(future);
    drop(entry);
    match ended {
        Some(value) => value,
        None => std::future::pending().await,
    }
}

/// Waits on the eventfd and tells the bridge. A task of its own, because glommio keeps one more waker each time a read in
/// flight is polled, and the bridge turns more often than the eventfd signals.
async fn listen(handles: Rc<GlommioHandles>, event: OwnedFd) {
    // SAFETY: the file takes the descriptor over.
    let event = unsafe { BufferedFile::from_raw_fd(event.into_raw_fd()) };
    while event.read_at(0, 8).await.is_ok() {
        handles.nudge();
    }
}

/// The part of the native loop that is not scheduling.
async fn bridge(core: Rc<Core>, handles: Rc<GlommioHandles>) {
    *handles.bridge.borrow_mut() = Some(poll_fn(|context| Poll::Ready(context.waker().clone())).await);
    loop {
        handles.nudged.set(false);
        let busy = {
            // Tasks spawned before the run began are turned here.
            let _entered = core.queue.enter();
            let completed = core.poll_driver(Wait::Nothing);
            core.turn() || completed
        };
        if busy || handles.nudged.get() {
            // The others first: what they submit goes out with the next look at the driver.
            executor().yield_now().await;
            continue;
        }
        core.driver.borrow_mut().prepare_sleep();
        if core.found_work() {
            // Each turn gives way, or those whom it woke would never run while it finds more.
            executor().yield_now().await;
        } else {
            // Counted as sleep until the bridge runs again, although tasks that need no I/O may run meanwhile.
            let before = core.now();
            let deadline = core.timers.borrow().next_deadline();
            let timer = deadline.map(|deadline| Timer::new(deadline.saturating_since(core.now())));
            let mut timer = pin!(timer);
            poll_fn(|context| {
                let due = timer.as_mut().as_pin_mut().is_some_and(|timer| timer.poll(context).is_ready());
                if due || handles.nudged.get() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            core.count_sleep(before);
        }
        core.driver.borrow_mut().awake();
    }
}
