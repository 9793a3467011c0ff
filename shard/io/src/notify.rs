//! Waking an executor that sleeps: a flag and an eventfd. A wake costs a system call only when the other side sleeps.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

use self::atomic::{AtomicBool, Ordering, fence};

#[cfg(loom)]
mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicBool, Ordering, fence};
}
#[cfg(not(loom))]
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, Ordering, fence};
}

/// The agreement between one sleeper and many wakers.
///
/// The sleeper says that it will sleep, *then* looks for work once more; a waker leaves its work, *then* looks whether
/// the sleeper sleeps. Both put a sequentially consistent fence between their store and their load (Dekker), so at
/// least one of them sees the other: no wake is lost.
#[derive(Debug)]
pub struct Handshake {
    sleeping: AtomicBool,
}

impl Default for Handshake {
    fn default() -> Self {
        Self::new()
    }
}

impl Handshake {
    /// Awake.
    pub fn new() -> Self {
        Self { sleeping: AtomicBool::new(false) }
    }

    /// The sleeper announces sleep. It must look for work after this and before it blocks.
    pub fn prepare_sleep(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The sleeper is awake again.
    pub fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }

    /// A waker asks, after leaving its work, whether it is the one that must wake the sleeper.
    pub fn must_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        // The plain load keeps the common case (awake) free of a write to a shared cache line.
        self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::AcqRel)
    }
}

/// What the drivers and the wakers of one executor share.
#[derive(Debug)]
pub(crate) struct WakeState {
    pub(crate) handshake: Handshake,
    event: OwnedFd,
}

impl WakeState {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        // A blocking one, so that a ring can wait in a read of it; we read it only when it is known to be readable.
        let event = eventfd(0, EventfdFlags::CLOEXEC)?;
        Ok(Arc::new(Self { handshake: Handshake::new(), event }))
    }

    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Empties the eventfd, so that it can signal again. Blocks when it is empty already.
    pub(crate) fn drain(&self) {
        let mut counter = [0_u8; 8];
        // Nothing can go wrong on a readable eventfd.
        let _ = rustix::io::read(&self.event, &mut counter);
    }

    pub(crate) fn notify(&self) {
        if self.handshake.must_wake() {
            // Never fails: a counter that is written once per sleep does not overflow.
            let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        }
    }
}

/// Wakes one executor from any thread. Leave the work first, then call [`Notifier::notify`]; the executor runs its
/// `on_poll` hooks before it sleeps again.
#[derive(Clone)]
pub struct Notifier {
    target: Target,
}

#[derive(Clone)]
enum Target {
    Kernel(Arc<WakeState>),
    Simulated(crate::sim::SimulatedNotifier),
}

impl Notifier {
    pub(crate) fn kernel(state: Arc<WakeState>) -> Self {
        Self { target: Target::Kernel(state) }
    }

    pub(crate) fn simulated(target: crate::sim::SimulatedNotifier) -> Self {
        Self { target: Target::Simulated(target) }
    }

    /// Makes sure that the executor looks for work once more. Costs a fence when it is awake, a write when it sleeps.
    pub fn notify(&self) {
        match &self.target {
            Target::Kernel(state) => state.notify(),
            Target::Simulated(target) => target.notify(),
        }
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Notifier")
    }
}
