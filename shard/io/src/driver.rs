//! The one door to the kernel: the trait of every driver. An executor knows nothing else of sockets, files and clocks.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use bytes::Bytes;

use crate::clock::Monotonic;
use crate::features::FeatureSet;
use crate::file::File;
use crate::notify::Notifier;
use crate::operation::{Completion, Operation, Token};
use crate::options::ListenOptions;
use crate::socket::{Listener, SocketHandle};

/// How long a driver may sleep for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    Nothing,
    /// Until a completion, a wake or this time.
    Until(Monotonic),
    /// Until a completion or a wake.
    Forever,
}

/// Counters of one executor since it started. All only grow, except `in_flight`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverStats {
    /// Nanoseconds in which the loop did not sleep.
    pub busy_ns: u64,
    /// Nanoseconds asleep in the kernel.
    pub sleep_ns: u64,
    /// Operations submitted.
    pub submitted: u64,
    /// Operations completed.
    pub completed: u64,
    /// Operations submitted and not completed: the depth of the ring and of the worker queue.
    pub in_flight: u64,
    /// System calls of the loop itself (io_uring_enter, epoll_wait, epoll_ctl and socket calls of the epoll driver).
    pub syscalls: u64,
    /// Turns of the loop that spun instead of sleeping.
    pub spins: u64,
    /// Times the loop slept.
    pub sleeps: u64,
    /// Turns of the loop.
    pub turns: u64,
    /// Tasks that wait to run.
    pub runnable: u64,
}

/// One way to do I/O. All methods are called by one thread.
pub trait Driver {
    /// Takes an operation; its completion comes out of a later [`Driver::poll`]. Never blocks.
    fn submit(&mut self, token: Token, operation: Operation);
    /// Asks to finish an operation early. It still completes exactly once, with its result or `Interrupted`-like error.
    fn cancel(&mut self, token: Token);
    /// Appends what has completed; when there is nothing, sleeps as long as `wait` says. May return with nothing.
    fn poll(&mut self, completions: &mut Vec<Completion>, wait: Wait);
    /// Whether completions wait that a sleep would miss (of workers, checked after `prepare_sleep`).
    fn has_ready(&mut self) -> bool;
    /// Tells wakers that the executor is about to sleep. It looks for work once more before it does.
    fn prepare_sleep(&mut self);
    /// Takes [`Driver::prepare_sleep`] back.
    fn awake(&mut self);

    /// An eventfd that signals, between [`Driver::prepare_sleep`] and [`Driver::awake`], when there is something to poll
    /// for. From then on the driver never sleeps itself: somebody else's loop does.
    ///
    /// # Errors
    /// `Unsupported` where a driver has no such thing.
    fn bridge(&mut self) -> io::Result<OwnedFd> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("the {} driver cannot be bridged", self.name()),
        ))
    }

    /// Sends what the socket takes now; `WouldBlock` when it takes nothing.
    fn try_send(&mut self, socket: &SocketHandle, pieces: &[Bytes]) -> io::Result<usize>;
    /// Sends file bytes that the socket takes now (sendfile); `WouldBlock` when it takes nothing, 0 at the file's end.
    fn try_send_file(
        &mut self,
        socket: &SocketHandle,
        file: &File,
        position: u64,
        length: u64,
    ) -> io::Result<u64>;
    /// Bytes of the range that are in the page cache; `None` where the kernel cannot tell.
    fn cached_bytes(&mut self, file: &File, position: u64, length: u64) -> Option<u64>;
    /// Binds and listens.
    fn listen(&mut self, address: SocketAddr, options: &ListenOptions) -> io::Result<Listener>;

    /// The monotonic clock.
    fn monotonic_now(&self) -> Monotonic;
    /// The wall clock, in milliseconds since the Unix epoch. Jumps.
    fn wall_now_ms(&self) -> i64;
    /// The next random number.
    fn random_u64(&mut self) -> u64;
    /// Wakes this executor from any thread.
    fn notifier(&self) -> Notifier;
    /// The driver's part of the counters.
    fn stats(&self) -> DriverStats;
    /// What the kernel can do and the operator allows.
    fn features(&self) -> FeatureSet;
    /// `io_uring`, `epoll` or `sim`.
    fn name(&self) -> &'static str;
    /// Cancels what can be cancelled and waits, for a bounded time, until no operation uses a buffer any more.
    fn shut_down(&mut self);
}
