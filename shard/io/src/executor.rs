//! The loop of one core: runs tasks, fires timers, asks hooks, and sleeps in its driver. Decides the order of work;
//! knows no system call.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::clock::Monotonic;
use crate::cpu::{self, CpuId};
use crate::driver::{Driver, DriverStats, Wait};
use crate::epoll::EpollDriver;
use crate::error::IoSetupError;
#[cfg(feature = "glommio")]
use crate::glommio::{GlommioExecutor, GlommioHandles};
use crate::io::Io;
use crate::operation::{Completion, OperationTable};
use crate::options::{DriverKind, ExecutorConfig, Scheduler};
use crate::task::{self, LiveTasks, Priority, Task, TaskQueue};
use crate::timers::Timers;
use crate::uring::UringDriver;

/// Tasks run in one turn before the driver is asked again, so that a busy queue cannot delay completions.
const TASKS_PER_TURN_MAX: usize = 128;

/// A background task gets a turn after this many turns in which foreground tasks alone ran...
const FOREGROUND_TURNS_MAX: u32 = 16;

/// ... and background tasks run for at most this long in one turn before the foreground is looked at again: one task.
const BACKGROUND_TASKS_PER_IDLE_TURN: usize = 1;

/// Everything that the tasks, futures and handles of one executor share. Lives on one thread.
pub(crate) struct Core {
    pub(crate) driver: Rc<RefCell<Box<dyn Driver>>>,
    pub(crate) operations: RefCell<OperationTable>,
    pub(crate) timers: RefCell<Timers>,
    pub(crate) queue: Arc<TaskQueue>,
    pub(crate) live: Rc<LiveTasks>,
    hooks: RefCell<Vec<Box<dyn FnMut() -> bool>>>,
    completions: RefCell<Vec<Completion>>,
    foreground_turns: Cell<u32>,
    counters: Cell<LoopCounters>,
    started: Monotonic,
    /// The second scheduler, while it runs.
    #[cfg(feature = "glommio")]
    pub(crate) glommio: RefCell<Option<Rc<GlommioHandles>>>,
}

#[derive(Clone, Copy, Default)]
struct LoopCounters {
    sleep_ns: u64,
    sleeps: u64,
    spins: u64,
    turns: u64,
}

impl Core {
    pub(crate) fn new(driver: Box<dyn Driver>) -> Rc<Self> {
        let queue = TaskQueue::new(driver.notifier());
        let started = driver.monotonic_now();
        Rc::new(Self {
            driver: Rc::new(RefCell::new(driver)),
            operations: RefCell::default(),
            timers: RefCell::default(),
            queue,
            live: Rc::default(),
            hooks: RefCell::default(),
            completions: RefCell::default(),
            foreground_turns: Cell::new(0),
            counters: Cell::default(),
            started,
            #[cfg(feature = "glommio")]
            glommio: RefCell::default(),
        })
    }

    pub(crate) fn add_hook(&self, hook: Box<dyn FnMut() -> bool>) {
        self.hooks.borrow_mut().push(hook);
    }

    /// Starts a task with whichever scheduler runs.
    pub(crate) fn spawn<T: 'static>(
        &self,
        priority: Priority,
        task: impl Future<Output = T> + 'static,
    ) -> Task<T> {
        #[cfg(feature = "glommio")]
        if let Some(handles) = self.glommio.borrow().as_ref() {
            return Task::glommio(handles.spawn(priority, task));
        }
        task::spawn(&self.queue, &self.live, priority, task)
    }

    /// Something was submitted or a deadline added. The native loop looks anyway; a bridge has to be told.
    pub(crate) fn nudge(&self) {
        #[cfg(feature = "glommio")]
        if let Some(handles) = self.glommio.borrow().as_ref() {
            handles.nudge();
        }
    }

    /// The last look before sleep, after `prepare_sleep`.
    pub(crate) fn found_work(&self) -> bool {
        self.run_hooks() || self.has_runnable() || self.driver.borrow_mut().has_ready()
    }

    pub(crate) fn now(&self) -> Monotonic {
        self.driver.borrow().monotonic_now()
    }

    pub(crate) fn stats(&self) -> DriverStats {
        let mut stats = self.driver.borrow().stats();
        let counters = self.counters.get();
        let alive = self.now().saturating_since(self.started).as_nanos();
        stats.sleep_ns = counters.sleep_ns;
        stats.busy_ns = u64::try_from(alive).unwrap_or(u64::MAX).saturating_sub(counters.sleep_ns);
        stats.sleeps = counters.sleeps;
        stats.spins = counters.spins;
        stats.turns = counters.turns;
        let (foreground, background) = self.queue.waiting();
        stats.runnable = (foreground + background) as u64;
        stats
    }

    fn count(&self, change: impl FnOnce(&mut LoopCounters)) {
        let mut counters = self.counters.get();
        change(&mut counters);
        self.counters.set(counters);
    }

    /// One turn without waiting: tasks, due timers, hooks. True when there is more to run now.
    pub(crate) fn turn(&self) -> bool {
        self.count(|counters| counters.turns += 1);
        self.queue.take_remote();
        self.run_tasks();
        self.fire_timers();
        let found = self.run_hooks();
        found || self.has_runnable()
    }

    pub(crate) fn has_runnable(&self) -> bool {
        self.queue.waiting() != (0, 0) || self.queue.has_remote()
    }

    fn run_tasks(&self) {
        let (foreground, background) = self.queue.waiting();
        // Only what waits now: a task that wakes itself runs in the next turn, after completions were looked at.
        for _ in 0..foreground.min(TASKS_PER_TURN_MAX) {
            let Some(task) = self.queue.pop(Priority::Foreground) else { break };
            task.run();
        }
        let turns = if foreground == 0 { FOREGROUND_TURNS_MAX } else { self.foreground_turns.get() + 1 };
        if background == 0 || turns < FOREGROUND_TURNS_MAX {
            self.foreground_turns.set(turns.min(FOREGROUND_TURNS_MAX));
            return;
        }
        self.foreground_turns.set(0);
        for _ in 0..BACKGROUND_TASKS_PER_IDLE_TURN {
            let Some(task) = self.queue.pop(Priority::Background) else { break };
            task.run();
        }
    }

    fn fire_timers(&self) {
        if self.timers.borrow().next_deadline().is_none() {
            return;
        }
        let now = self.now();
        loop {
            // Woken outside the borrow: a waker may run code that sleeps anew.
            let due = self.timers.borrow_mut().pop_due(now);
            let Some(waker) = due else { break };
            waker.wake();
        }
    }

    /// Runs every hook once; true when one found work.
    pub(crate) fn run_hooks(&self) -> bool {
        if self.hooks.borrow().is_empty() {
            return false;
        }
        // Taken out, because a hook may add a hook.
        let mut hooks = std::mem::take(&mut *self.hooks.borrow_mut());
        let mut found = false;
        for hook in &mut hooks {
            found |= hook();
        }
        let mut present = self.hooks.borrow_mut();
        hooks.append(&mut present);
        *present = hooks;
        found
    }

    /// Asks the driver and wakes whom its completions concern. True when something completed.
    pub(crate) fn poll_driver(&self, wait: Wait) -> bool {
        let mut completions = self.completions.take();
        self.driver.borrow_mut().poll(&mut completions, wait);
        let any = !completions.is_empty();
        for completion in completions.drain(..) {
            let waker = self.operations.borrow_mut().complete(completion);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        self.completions.replace(completions);
        any
    }

    /// Until when there is nothing to do unless somebody wakes us.
    pub(crate) fn wait(&self) -> Wait {
        self.timers.borrow().next_deadline().map_or(Wait::Forever, Wait::Until)
    }

    /// Sleeps in the driver, unless work came in while going to sleep. `woken` is the main future's flag.
    fn sleep(&self, woken: &AtomicBool) {
        self.driver.borrow_mut().prepare_sleep();
        if self.found_work() || woken.load(Ordering::Acquire) {
            self.driver.borrow_mut().awake();
            self.poll_driver(Wait::Nothing);
            return;
        }
        let before = self.now();
        self.poll_driver(self.wait());
        self.driver.borrow_mut().awake();
        self.count_sleep(before);
    }

    /// A sleep that began at `before` is over.
    pub(crate) fn count_sleep(&self, before: Monotonic) {
        let slept = self.now().saturating_since(before).as_nanos();
        self.count(|counters| {
            counters.sleeps += 1;
            counters.sleep_ns += u64::try_from(slept).unwrap_or(u64::MAX);
        });
    }

    /// Ends every task and operation. Nothing runs after.
    pub(crate) fn shut_down(&self) {
        let entered = self.queue.enter();
        self.hooks.borrow_mut().clear();
        // Waking each live task queues it; dropping the queued half cancels the task and drops its future. A future
        // may wake or spawn others while it is dropped, hence the loop.
        loop {
            for waker in self.live.take_wakers() {
                waker.wake();
            }
            self.queue.take_remote();
            let mut dropped = false;
            for priority in [Priority::Foreground, Priority::Background] {
                while let Some(runnable) = self.queue.pop(priority) {
                    drop(runnable);
                    dropped = true;
                }
            }
            if !dropped {
                break;
            }
        }
        let wakers = (self.operations.borrow_mut().take_wakers(), self.timers.borrow_mut().take_wakers());
        drop(wakers);
        self.driver.borrow_mut().shut_down();
        drop(entered);
    }
}

/// Decides whether an idle loop spins: only while the last waits were short enough for spinning to win.
struct SpinGovernor {
    limit: Duration,
    average_idle_ns: u64,
}

impl SpinGovernor {
    fn new(spin_us: u32) -> Self {
        let limit = Duration::from_micros(u64::from(spin_us));
        Self { limit, average_idle_ns: u64::MAX / 8 }
    }

    fn should_spin(&self) -> bool {
        !self.limit.is_zero() && u128::from(self.average_idle_ns) <= self.limit.as_nanos()
    }

    /// A wait of `idle` has ended. The average forgets three quarters of the past within five waits.
    fn record(&mut self, idle: Duration) {
        // One long wait must not forbid spinning for long: it counts as ten limits at most.
        let bound = self.limit.as_nanos().saturating_mul(10);
        let idle = u64::try_from(idle.as_nanos().min(bound)).unwrap_or(u64::MAX);
        let average = self.average_idle_ns.min(u64::try_from(bound).unwrap_or(u64::MAX));
        self.average_idle_ns = (average * 3 + idle) / 4;
    }
}

/// Owns the loop of one core. Built and run on the same thread.
pub struct Executor {
    core: Rc<Core>,
    pin: Option<CpuId>,
    spin_us: u32,
    #[cfg(feature = "glommio")]
    glommio: Option<GlommioExecutor>,
}

impl Executor {
    /// Sets up the driver. Nothing runs yet; tasks may be spawned through [`Executor::io`].
    ///
    /// # Errors
    /// What the kernel refused, with the remedy.
    pub fn new(config: ExecutorConfig) -> Result<Self, IoSetupError> {
        // Read before any pinning narrows it.
        let _ = cpu::allowed_cpus();
        let core = Core::new(build_driver(&config)?);
        #[cfg(not(feature = "glommio"))]
        if config.scheduler == Scheduler::Glommio {
            return Err(IoSetupError::SchedulerMissing { name: "glommio" });
        }
        #[cfg(feature = "glommio")]
        let glommio = match config.scheduler {
            Scheduler::Native => None,
            Scheduler::Glommio => Some(GlommioExecutor::new(&core)?),
        };
        Ok(Self {
            core,
            pin: config.pin,
            spin_us: config.spin_us,
            #[cfg(feature = "glommio")]
            glommio,
        })
    }

    /// The handle for everything else.
    pub fn io(&self) -> Io {
        Io::new(Rc::clone(&self.core))
    }

    /// Binds the thread if asked to, and runs until `main` ends. Tasks that still live are then dropped, and operations
    /// in flight are given up or awaited.
    ///
    /// A refused pin is logged, not fatal: the loop runs as well unpinned. Check with [`Executor::pin_now`] to refuse.
    pub fn run<F: Future>(self, main: F) -> F::Output {
        if let Err(error) = self.pin_now() {
            tracing::warn!(%error, "running unpinned");
        }
        let core = Rc::clone(&self.core);
        let output = self.run_scheduler(main);
        core.shut_down();
        output
    }

    fn run_scheduler<F: Future>(self, main: F) -> F::Output {
        #[cfg(feature = "glommio")]
        if let Some(glommio) = self.glommio {
            return glommio.run(&self.core, main);
        }
        self.run_native(main)
    }

    /// Binds the calling thread to the configured CPU.
    ///
    /// # Errors
    /// [`IoSetupError::Pin`] with the CPUs that are allowed.
    pub fn pin_now(&self) -> Result<(), IoSetupError> {
        let Some(cpu) = self.pin else { return Ok(()) };
        cpu::bind_thread(&[cpu]).map_err(|source| IoSetupError::Pin {
            cpu: cpu.0,
            source,
            allowed: cpu::format_cpu_list(cpu::allowed_cpus()),
        })
    }

    fn run_native<F: Future>(&self, main: F) -> F::Output {
        let core = &self.core;
        let entered = core.queue.enter();
        let main_wake = Arc::new(MainWake { woken: AtomicBool::new(true), queue: Arc::clone(&core.queue) });
        let waker = Waker::from(Arc::clone(&main_wake));
        let mut context = Context::from_waker(&waker);
        let mut main = pin!(main);
        let mut governor = SpinGovernor::new(self.spin_us);
        let output = loop {
            if main_wake.woken.swap(false, Ordering::Acquire)
                && let Poll::Ready(output) = main.as_mut().poll(&mut context)
            {
                break output;
            }
            let busy = core.turn() || main_wake.woken.load(Ordering::Acquire);
            if busy {
                core.poll_driver(Wait::Nothing);
            } else {
                self.idle(&mut governor, &main_wake);
            }
        };
        drop(entered);
        output
    }

    /// Nothing to run: spins while that has paid off lately, then sleeps.
    fn idle(&self, governor: &mut SpinGovernor, main_wake: &MainWake) {
        let core = &self.core;
        if governor.limit.is_zero() {
            core.sleep(&main_wake.woken);
            return;
        }
        let start = core.now();
        if governor.should_spin() {
            let limit = start + governor.limit;
            let deadline = core.timers.borrow().next_deadline().map_or(limit, |deadline| deadline.min(limit));
            loop {
                core.count(|counters| counters.spins += 1);
                let woken = main_wake.woken.load(Ordering::Acquire);
                if core.poll_driver(Wait::Nothing) || core.run_hooks() || core.has_runnable() || woken {
                    governor.record(core.now().saturating_since(start));
                    return;
                }
                if core.now() >= deadline {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        core.sleep(&main_wake.woken);
        governor.record(core.now().saturating_since(start));
    }
}

fn build_driver(config: &ExecutorConfig) -> Result<Box<dyn Driver>, IoSetupError> {
    match config.driver {
        DriverKind::Epoll => Ok(Box::new(EpollDriver::new(config)?)),
        DriverKind::IoUring => Ok(Box::new(UringDriver::new(config)?)),
        DriverKind::Auto => match UringDriver::new(config) {
            Ok(driver) => Ok(Box::new(driver)),
            Err(error) => {
                log_fallback(&error);
                Ok(Box::new(EpollDriver::new(config)?))
            }
        },
    }
}

/// One line for the process, however many cores fall back.
fn log_fallback(error: &IoSetupError) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::warn!(%error, "running on the epoll driver"));
}

/// The waker of the main future, which is no task: it is polled by the loop itself.
struct MainWake {
    woken: AtomicBool,
    queue: Arc<TaskQueue>,
}

impl Wake for MainWake {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        if !self.queue.is_entered() {
            self.queue.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_starts_with_short_waits_and_ends_with_long_ones() {
        let mut governor = SpinGovernor::new(20);
        assert!(!governor.should_spin());
        for _ in 0..16 {
            governor.record(Duration::from_micros(5));
        }
        assert!(governor.should_spin());
        governor.record(Duration::from_secs(1));
        assert!(!governor.should_spin());
    }

    #[test]
    fn a_limit_of_zero_never_spins() {
        let mut governor = SpinGovernor::new(0);
        governor.record(Duration::ZERO);
        assert!(!governor.should_spin());
    }
}
