//! The ring itself: how it is set up, how it is entered, how it sleeps. Knows no operation.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, Probe, opcode};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use crate::error::IoSetupError;
use crate::features::{self, Feature};
use crate::notify::WakeState;

/// How much put-off work one enter runs at least, if there is as much (IO_LOCAL_TW_DEFAULT_MAX of the kernel).
const RUN_PER_ENTER: usize = 20;

/// Completions that fit, as a multiple of the submissions: each connection keeps a receive in flight, and those may all
/// complete at once. The kernel keeps what does not fit, at a price.
const COMPLETIONS_PER_SUBMISSION: u32 = 4;

pub(crate) struct Ring {
    pub(crate) inner: IoUring,
    sleep: Sleep,
    pub(crate) syscalls: u64,
}

/// Where a loop sleeps.
enum Sleep {
    /// In the ring, not counted as waiting for a disk (`IORING_ENTER_NO_IOWAIT`, Linux 6.15).
    InRing,
    /// In poll(2) on an eventfd of the ring. Older kernels count a sleep in the ring as waiting for a disk and show an
    /// idle broker as 100 % iowait; this costs a second system call. (Polling the ring's own descriptor does not work:
    /// deferred work does not wake it.)
    InPoll { event: OwnedFd },
    /// In somebody else's loop, which waits on an eventfd of the ring.
    Elsewhere,
}

impl Ring {
    /// Sets up a ring whose work runs only when its own thread enters it (no interrupts of running code).
    pub(crate) fn new(entries: u32) -> Result<Self, IoSetupError> {
        let inner = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_clamp()
            .setup_cqsize(entries.saturating_mul(COMPLETIONS_PER_SUBMISSION))
            .dontfork()
            .build(entries)
            .map_err(IoSetupError::ring)?;
        if !inner.params().is_feature_ext_arg() || !inner.params().is_feature_nodrop() {
            return Err(IoSetupError::RingTooOld { missing: "IORING_FEAT_EXT_ARG" });
        }
        let mut probe = Probe::new();
        inner.submitter().register_probe(&mut probe).map_err(IoSetupError::ring)?;
        let needed = [
            (opcode::Accept::CODE, "IORING_OP_ACCEPT"),
            (opcode::Connect::CODE, "IORING_OP_CONNECT"),
            (opcode::Recv::CODE, "IORING_OP_RECV"),
            (opcode::Send::CODE, "IORING_OP_SEND"),
            (opcode::SendMsg::CODE, "IORING_OP_SENDMSG"),
            (opcode::Read::CODE, "IORING_OP_READ"),
            (opcode::Write::CODE, "IORING_OP_WRITE"),
            (opcode::PollAdd::CODE, "IORING_OP_POLL_ADD"),
            (opcode::AsyncCancel::CODE, "IORING_OP_ASYNC_CANCEL"),
        ];
        for (code, missing) in needed {
            if !probe.is_supported(code) {
                return Err(IoSetupError::RingTooOld { missing });
            }
        }
        Ok(Self { inner, sleep: Sleep::InRing, syscalls: 0 })
    }

    /// What this kernel can do for a ring.
    pub(crate) fn probe(&self) -> Vec<Feature> {
        let mut available = features::probe_common();
        if self.inner.params().is_feature_no_iowait() {
            available.push(Feature::NoIowait);
        }
        available
    }

    /// Sleeps outside the ring from now on; see [`Sleep::InPoll`].
    pub(crate) fn sleep_in_poll(&mut self) -> io::Result<()> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        self.inner.submitter().register_eventfd(event.as_raw_fd())?;
        self.refuse_signals();
        self.sleep = Sleep::InPoll { event };
        Ok(())
    }

    /// Never sleeps from now on: the wakers' eventfd, which this answers a duplicate of, signals the ring's work too. (A
    /// second eventfd would not do: the kernel signals none from inside the wake-up of another.)
    pub(crate) fn bridge(&mut self, wake: &WakeState) -> io::Result<OwnedFd> {
        if matches!(self.sleep, Sleep::InPoll { .. }) {
            self.inner.submitter().unregister_eventfd()?;
        }
        self.inner.submitter().register_eventfd(wake.event().as_raw_fd())?;
        self.refuse_signals();
        self.sleep = Sleep::Elsewhere;
        wake.event().try_clone_to_owned()
    }

    pub(crate) fn is_bridged(&self) -> bool {
        matches!(self.sleep, Sleep::Elsewhere)
    }

    /// Whether wakes must come through the ring.
    pub(crate) fn takes_wakes(&self) -> bool {
        matches!(self.sleep, Sleep::InRing)
    }

    /// The eventfd signals new work from now on. Look for work after this and before sleeping.
    pub(crate) fn ask_for_signals(&mut self) {
        self.inner.completion().enable_eventfd();
        // The kernel marks work and then looks whether to signal; we ask for signals and then look for work.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn refuse_signals(&mut self) {
        self.inner.completion().disable_eventfd();
    }

    /// Queues a submission; enters the kernel only when the queue is full.
    ///
    /// # Safety
    /// What the entry points to must stay valid and in place until its last completion.
    pub(crate) unsafe fn push(&mut self, entry: &Entry) {
        loop {
            // SAFETY: the caller's promise.
            if unsafe { self.inner.submission().push(entry) }.is_ok() {
                return;
            }
            self.enter(0, None);
        }
    }

    /// Whether an enter without waiting may do something. Good for saving enters, not for deciding to stay awake: see
    /// [`Ring::settle`].
    fn has_work(&mut self) -> bool {
        let submission = self.inner.submission();
        !submission.is_empty() || submission.taskrun() || submission.cq_overflow()
    }

    /// Submits what is queued and runs what has completed, without waiting.
    pub(crate) fn flush(&mut self) {
        if self.has_work() {
            self.enter(0, None);
        }
    }

    /// Submits what is queued and runs what the kernel has put off, until there is a completion or nothing is left; true
    /// when there is a completion. Ask for signals before: what comes later then signals.
    ///
    /// Does not believe the ring's flag that work is put off. The kernel queues the work first and raises the flag after;
    /// when another core is late with that, this one has run the work already, and then no enter lowers the flag until
    /// more work comes. A loop that stays awake for it turns for ever.
    pub(crate) fn settle(&mut self, in_flight: usize) -> bool {
        // What is put off may complete nothing, so one enter is not always enough; with the flag stuck it ends as well.
        for _ in 0..=in_flight / RUN_PER_ENTER {
            self.enter_for_events();
            if !self.inner.completion().is_empty() {
                return true;
            }
            if !self.has_work() {
                break;
            }
        }
        false
    }

    /// Submits what is queued and waits for a completion or a wake, at most `timeout`.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>, wake: &WakeState, in_flight: usize) {
        match &self.sleep {
            Sleep::InRing => self.enter(1, timeout),
            Sleep::InPoll { .. } => self.wait_in_poll(timeout, wake, in_flight),
            // Only at the end, when the other loop is gone.
            Sleep::Elsewhere => self.enter(1, timeout),
        }
    }

    fn wait_in_poll(&mut self, timeout: Option<Duration>, wake: &WakeState, in_flight: usize) {
        self.ask_for_signals();
        if !self.settle(in_flight) {
            self.poll(timeout, wake);
        }
        self.refuse_signals();
        self.flush();
    }

    fn poll(&mut self, timeout: Option<Duration>, wake: &WakeState) {
        let Sleep::InPoll { event } = &self.sleep else { return };
        let timeout = timeout.map(|timeout| rustix::event::Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let mut polled = [
            PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(wake.event(), PollFlags::IN),
        ];
        self.syscalls += 1;
        // An interrupted sleep is a short one; the loop comes back.
        let _ = rustix::event::poll(&mut polled, timeout.as_ref());
        let [ring_ready, woken] = polled.map(|polled| !polled.revents().is_empty());
        if ring_ready {
            let mut counter = [0_u8; 8];
            // An empty counter is what we want to reach.
            let _ = rustix::io::read(event, &mut counter);
        }
        if woken {
            wake.drain();
        }
    }

    fn enter(&mut self, want: usize, timeout: Option<Duration>) {
        self.syscalls += 1;
        let timespec = timeout.map(Timespec::from);
        let mut arguments = SubmitArgs::new();
        if let Some(timespec) = &timespec {
            arguments = arguments.timespec(timespec);
        }
        let mut flags = EnterFlags::empty();
        if want > 0 && self.inner.params().is_feature_no_iowait() {
            flags |= EnterFlags::NO_IOWAIT;
        }
        check(self.inner.submitter().submit_with_args_and_flags(want, &arguments, flags));
    }

    /// An enter without waiting that runs what is put off whatever the flag says.
    fn enter_for_events(&mut self) {
        self.syscalls += 1;
        let queued = u32::try_from(self.inner.submission().len()).expect("a ring has at most 2^15 entries");
        let events = EnterFlags::GETEVENTS.bits();
        // SAFETY: no argument is passed; what the queued entries point to is valid by the promise of `push`.
        check(unsafe { self.inner.submitter().enter::<libc::sigset_t>(queued, 0, events, None) });
    }
}

/// What an enter answers, but for what is no error.
fn check(entered: io::Result<usize>) {
    match entered.map_err(|error| (error.raw_os_error(), error)) {
        // Time is up; interrupted; completions overflow and must be taken first.
        Ok(_) | Err((Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN), _)) => {}
        Err((_, error)) => fatal(&error),
    }
}

/// The ring refuses to be entered: a broken invariant of ours (wrong thread, closed descriptor), not a condition to
/// handle. Going on would wait for completions that never come.
fn fatal(error: &io::Error) -> ! {
    panic!("io_uring_enter refused: {error}");
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::time::Instant;

    use super::*;

    const IORING_SQ_TASKRUN: u32 = 1 << 2;
    /// `sq_off.flags` in `struct io_uring_params`, in words.
    const FLAGS_OFFSET_WORD: usize = 14;

    /// Raises the flag that work is put off, as the kernel does when another core queues work, and is late with the flag.
    fn raise_late_flag(ring: &Ring) {
        let mut parameters = [0_u32; 30];
        // SAFETY: the parameters are as large as the kernel's structure and all zero.
        let other = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
        assert!(other >= 0, "a second ring");
        // SAFETY: the descriptor is ours; one page of the shared ring is mapped, used and unmapped again.
        unsafe {
            libc::close(i32::try_from(other).expect("a descriptor"));
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let page = libc::mmap(
                std::ptr::null_mut(),
                4096,
                protection,
                libc::MAP_SHARED,
                ring.inner.as_raw_fd(),
                0,
            );
            assert_ne!(page, libc::MAP_FAILED);
            let flags = page.byte_add(parameters[FLAGS_OFFSET_WORD] as usize).cast::<u32>();
            AtomicU32::from_ptr(flags).fetch_or(IORING_SQ_TASKRUN, Ordering::Relaxed);
            libc::munmap(page, 4096);
        }
    }

    /// None where the kernel refuses io_uring.
    fn ring() -> Option<(Ring, std::sync::Arc<WakeState>)> {
        Some((Ring::new(8).ok()?, WakeState::new().expect("an eventfd")))
    }

    #[test]
    fn a_late_flag_keeps_no_bridged_loop_awake() {
        let Some((mut ring, wake)) = ring() else { return };
        let _event = ring.bridge(&wake).expect("bridged");
        ring.ask_for_signals();
        raise_late_flag(&ring);
        assert!(ring.has_work(), "the flag is up");
        assert!(!ring.settle(64));
    }

    #[test]
    fn a_late_flag_cuts_no_sleep_in_poll_short() {
        let Some((mut ring, wake)) = ring() else { return };
        ring.sleep_in_poll().expect("an eventfd");
        raise_late_flag(&ring);
        let start = Instant::now();
        ring.wait(Some(Duration::from_millis(50)), &wake, 64);
        assert!(start.elapsed() >= Duration::from_millis(50), "{:?}", start.elapsed());
    }

    #[test]
    fn work_before_sleep_is_found_and_work_after_it_signals() {
        let Some((mut ring, wake)) = ring() else { return };
        let event = ring.bridge(&wake).expect("bridged");
        ring.ask_for_signals();
        let nop = opcode::Nop::new().build();
        // SAFETY: the entry points to nothing.
        unsafe { ring.push(&nop) };
        assert!(ring.settle(1));
        assert!(ring.inner.completion().next().is_some());
        let (reader, writer) = std::os::unix::net::UnixStream::pair().expect("a pair");
        let entry =
            opcode::PollAdd::new(io_uring::types::Fd(reader.as_raw_fd()), libc::POLLIN as u32).build();
        // SAFETY: the entry points to nothing.
        unsafe { ring.push(&entry) };
        assert!(!ring.settle(1));
        io::Write::write_all(&mut &writer, b"x").expect("written");
        let mut polled = [PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut polled, Some(&limit)).expect("polled"), 1);
        assert!(ring.settle(1));
    }
}
