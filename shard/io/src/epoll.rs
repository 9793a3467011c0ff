//! The driver for kernels and sandboxes without io_uring: non-blocking sockets on one epoll instance, files on worker
//! threads. An operation is tried at once and parked when the socket is not ready.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use rustix::event::{PollFd, PollFlags, epoll};
use rustix::net::{RecvFlags, SocketFlags};

use crate::RECEIVE_SOME_BYTES_MAX;
use crate::blocking::{Work, WorkerPool};
use crate::clock::{self, Monotonic};
use crate::driver::{Driver, DriverStats, Wait};
use crate::error::IoSetupError;
use crate::features::{self, Feature, FeatureSet};
use crate::file::{self, File};
use crate::network;
use crate::notify::{Notifier, WakeState};
use crate::operation::{Completion, FileOperation, Operation, Returned, Token, TokenMap};
use crate::options::{ExecutorConfig, ListenOptions};
use crate::random::Random;
use crate::socket::{Listener, ListenerHandle, SocketHandle, SocketInner, Watch};

/// Events taken from the kernel in one call.
const EVENTS_MAX: usize = 256;

/// The watch id of the eventfd; sockets count from 1.
const WAKE_ID: u64 = 0;

/// epoll and worker threads.
pub(crate) struct EpollDriver {
    epoll: Arc<OwnedFd>,
    wake: Arc<WakeState>,
    pool: WorkerPool,
    random: Random,
    features: FeatureSet,
    /// Finished without waiting, not yet delivered.
    ready: Vec<Completion>,
    parked: TokenMap<Pending>,
    /// Parked operations by watch id and direction, in order of arrival.
    waiting: HashMap<(u64, Direction), VecDeque<Token>, ahash::RandomState>,
    scratch: Box<[u8]>,
    stats: DriverStats,
    /// epoll_pwait2 is missing or refused: deadlines are rounded up to milliseconds.
    coarse_timeouts: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Direction {
    Read,
    Write,
    HangUp,
}

/// A socket operation between two attempts.
enum Pending {
    Accept { listener: ListenerHandle },
    Connecting { socket: SocketHandle, address: SocketAddr },
    ReceiveSome { socket: SocketHandle },
    ReceiveInto { socket: SocketHandle, buffer: BytesMut, max_bytes: usize },
    Send { socket: SocketHandle, pieces: Vec<Bytes>, sent: u64 },
    WaitWritable { socket: SocketHandle },
    WaitHangUp { socket: SocketHandle },
}

impl Pending {
    fn direction(&self) -> Direction {
        match self {
            Self::Accept { .. } | Self::ReceiveSome { .. } | Self::ReceiveInto { .. } => Direction::Read,
            Self::Connecting { .. } | Self::Send { .. } | Self::WaitWritable { .. } => Direction::Write,
            Self::WaitHangUp { .. } => Direction::HangUp,
        }
    }

    fn watched(&self) -> (&Watch, BorrowedFd<'_>) {
        match self {
            Self::Accept { listener } => (&listener.watch, listener.fd()),
            Self::Connecting { socket, .. }
            | Self::ReceiveSome { socket }
            | Self::ReceiveInto { socket, .. }
            | Self::Send { socket, .. }
            | Self::WaitWritable { socket }
            | Self::WaitHangUp { socket } => (&socket.watch, socket.fd()),
        }
    }

    /// What goes back to the caller when the operation fails.
    fn give_back(self) -> Returned {
        match self {
            Self::ReceiveInto { buffer, .. } => Returned::Buffer(buffer),
            _ => Returned::None,
        }
    }
}

/// An attempt that ended the operation, or found the socket not ready.
enum Attempt {
    Finished(io::Result<u64>, Returned),
    NotReady(Pending),
}

impl EpollDriver {
    pub(crate) fn new(config: &ExecutorConfig) -> Result<Self, IoSetupError> {
        let refused = |call| move |source: io::Error| IoSetupError::Descriptor { call, source };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(|error| refused("epoll_create1")(error.into()))?;
        let wake = WakeState::new().map_err(refused("eventfd"))?;
        let data = epoll::EventData::new_u64(WAKE_ID);
        epoll::add(&epoll, wake.event(), data, epoll::EventFlags::IN)
            .map_err(|error| refused("epoll_ctl")(error.into()))?;
        let mut random = config.seed.map_or_else(Random::from_kernel, Random::from_seed);
        Ok(Self {
            epoll: Arc::new(epoll),
            pool: WorkerPool::new(config.worker_threads, Arc::clone(&wake)),
            wake,
            features: FeatureSet::new(&features::probe_common(), config.features),
            ready: Vec::new(),
            parked: TokenMap::new(),
            waiting: HashMap::with_hasher(random.hasher()),
            random,
            scratch: vec![0; RECEIVE_SOME_BYTES_MAX].into_boxed_slice(),
            stats: DriverStats::default(),
            coarse_timeouts: false,
        })
    }

    fn finish(&mut self, token: Token, result: io::Result<u64>, returned: Returned) {
        self.ready.push(Completion { token, result, returned });
    }

    /// Tries a socket operation and parks it when its turn has not come.
    fn start(&mut self, token: Token, pending: Pending) {
        let key = (pending.watched().0.id, pending.direction());
        // Operations of one socket and direction complete in order: behind a parked one, wait.
        let attempt =
            if self.waiting.contains_key(&key) { Attempt::NotReady(pending) } else { self.attempt(pending) };
        match attempt {
            Attempt::Finished(result, returned) => self.finish(token, result, returned),
            Attempt::NotReady(pending) => {
                if let Err(error) = self.watch(&pending) {
                    self.finish(token, Err(error), pending.give_back());
                    return;
                }
                self.parked.insert(token, pending);
                self.waiting.entry(key).or_default().push_back(token);
            }
        }
    }

    /// Registers the descriptor, edge-triggered, the first time that one of its operations has to wait here.
    fn watch(&mut self, pending: &Pending) -> io::Result<()> {
        let (watch, descriptor) = pending.watched();
        let mut registered = watch.epoll.lock().unwrap_or_else(PoisonError::into_inner);
        match registered.as_ref() {
            Some(epoll) if Arc::ptr_eq(epoll, &self.epoll) => return Ok(()),
            Some(epoll) => {
                // Another core's instance; that core gave the socket away without saying so.
                let _ = epoll::delete(epoll, descriptor);
            }
            None => {}
        }
        let flags =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        self.stats.syscalls += 1;
        epoll::add(&*self.epoll, descriptor, epoll::EventData::new_u64(watch.id), flags)?;
        *registered = Some(Arc::clone(&self.epoll));
        Ok(())
    }

    fn attempt(&mut self, pending: Pending) -> Attempt {
        self.stats.syscalls += 1;
        match pending {
            Pending::Accept { listener } => attempt_accept(listener),
            Pending::Connecting { socket, address } => attempt_connect(socket, address),
            Pending::ReceiveSome { socket } => self.attempt_receive_some(socket),
            Pending::ReceiveInto { socket, buffer, max_bytes } => {
                attempt_receive_into(socket, buffer, max_bytes)
            }
            Pending::Send { socket, pieces, sent } => attempt_send(socket, pieces, sent),
            Pending::WaitWritable { socket } => attempt_writable(socket),
            Pending::WaitHangUp { socket } => attempt_hang_up(socket),
        }
    }

    fn attempt_receive_some(&mut self, socket: SocketHandle) -> Attempt {
        loop {
            match rustix::net::recv(socket.fd(), &mut *self.scratch, RecvFlags::DONTWAIT) {
                Ok((count, _)) => {
                    let bytes = Bytes::copy_from_slice(self.scratch.get(..count).unwrap_or(&[]));
                    return Attempt::Finished(Ok(count as u64), Returned::Bytes(bytes));
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Attempt::NotReady(Pending::ReceiveSome { socket }),
                Err(error) => return Attempt::Finished(Err(error.into()), Returned::None),
            }
        }
    }

    /// The socket has become ready: tries what is parked, in order, until one has to wait again.
    fn retry(&mut self, key: (u64, Direction)) {
        let Some(mut queue) = self.waiting.remove(&key) else { return };
        while let Some(token) = queue.pop_front() {
            let Some(pending) = self.parked.remove(token) else { continue };
            match self.attempt(pending) {
                Attempt::Finished(result, returned) => self.finish(token, result, returned),
                Attempt::NotReady(pending) => {
                    self.parked.insert(token, pending);
                    queue.push_front(token);
                    self.waiting.insert(key, queue);
                    return;
                }
            }
        }
    }

    fn connect(&mut self, token: Token, address: SocketAddr) {
        let socket = match network::new_stream(address) {
            Ok(descriptor) => SocketInner::descriptor(descriptor),
            Err(error) => return self.finish(token, Err(error), Returned::None),
        };
        match rustix::net::connect(socket.fd(), &address) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::INTR) => {
                self.start(token, Pending::Connecting { socket, address });
            }
            Err(error) => self.finish(token, Err(error.into()), Returned::None),
        }
    }

    /// A read that the page cache can answer is answered at once; the rest goes to a worker.
    fn read(&mut self, token: Token, file: File, position: u64, length: usize) {
        if length > 0 && !file.is_direct() {
            let mut buffer = BytesMut::zeroed(length);
            self.stats.syscalls += 1;
            let mut slices = [io::IoSliceMut::new(&mut buffer)];
            let flags = rustix::io::ReadWriteFlags::NOWAIT;
            let count = rustix::io::preadv2(file.fd(), &mut slices, position, flags);
            if count == Ok(length) {
                return self.finish(token, Ok(length as u64), Returned::Bytes(buffer.freeze()));
            }
        }
        self.pool.submit(token, Work::File(FileOperation::Read { file, position, length }));
    }

    fn wait_events(&mut self, timeout: Option<Duration>) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        self.stats.syscalls += 1;
        let count = self.epoll_wait(&mut events, timeout);
        for event in events.iter().take(count) {
            let (flags, id) = (event.events, event.u64);
            if id == WAKE_ID {
                self.wake.drain();
                continue;
            }
            let failed = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
            if flags & (libc::EPOLLIN as u32 | libc::EPOLLRDHUP as u32 | failed) != 0 {
                self.retry((id, Direction::Read));
            }
            if flags & (libc::EPOLLOUT as u32 | failed) != 0 {
                self.retry((id, Direction::Write));
            }
            if flags & (libc::EPOLLRDHUP as u32 | failed) != 0 {
                self.retry((id, Direction::HangUp));
            }
        }
    }

    fn epoll_wait(
        &mut self,
        events: &mut [libc::epoll_event; EVENTS_MAX],
        timeout: Option<Duration>,
    ) -> usize {
        let descriptor = self.epoll.as_raw_fd();
        let capacity = EVENTS_MAX as libc::c_int;
        if !self.coarse_timeouts {
            let spec = timeout.map(|timeout| libc::timespec {
                tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(timeout.subsec_nanos()),
            });
            let spec = spec.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            // SAFETY: the array has `capacity` entries, the time outlives the call, and no signal mask is given.
            let count = unsafe {
                libc::epoll_pwait2(descriptor, events.as_mut_ptr(), capacity, spec, std::ptr::null())
            };
            if count >= 0 {
                return usize::try_from(count).unwrap_or(0);
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::ENOSYS | libc::EPERM) => self.coarse_timeouts = true,
                _ => return 0,
            }
        }
        let milliseconds = timeout
            .map_or(-1, |timeout| i32::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX));
        // SAFETY: the array has `capacity` entries.
        let count = unsafe { libc::epoll_wait(descriptor, events.as_mut_ptr(), capacity, milliseconds) };
        usize::try_from(count).unwrap_or(0)
    }
}

fn attempt_accept(listener: ListenerHandle) -> Attempt {
    // SAFETY: a null address is allowed; the peer is asked for below.
    let descriptor = unsafe {
        libc::accept4(
            listener.fd().as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            (SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).bits().cast_signed(),
        )
    };
    if descriptor < 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            // A connection that was reset while it waited is not ours to report.
            Some(libc::EAGAIN) => Attempt::NotReady(Pending::Accept { listener }),
            Some(libc::EINTR | libc::ECONNABORTED) => attempt_accept(listener),
            _ => Attempt::Finished(Err(error), Returned::None),
        };
    }
    // SAFETY: the kernel has just given us this descriptor.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    match network::accepted(descriptor) {
        Ok((socket, peer)) => Attempt::Finished(Ok(0), Returned::Socket(socket, peer)),
        // Reset between accept and here.
        Err(_) => attempt_accept(listener),
    }
}

fn attempt_connect(socket: SocketHandle, address: SocketAddr) -> Attempt {
    match rustix::net::sockopt::socket_error(socket.fd()) {
        Err(error) | Ok(Err(error)) => return Attempt::Finished(Err(error.into()), Returned::None),
        Ok(Ok(())) => {}
    }
    // No error yet and no peer yet: still on its way.
    match rustix::net::getpeername(socket.fd()) {
        Ok(Some(_)) => Attempt::Finished(Ok(0), Returned::Socket(socket, address)),
        _ => Attempt::NotReady(Pending::Connecting { socket, address }),
    }
}

fn attempt_receive_into(socket: SocketHandle, mut buffer: BytesMut, max_bytes: usize) -> Attempt {
    loop {
        let spare = buffer.spare_capacity_mut();
        let room = spare.len().min(max_bytes);
        let target = spare.get_mut(..room).unwrap_or_default();
        let received = rustix::net::recv(socket.fd(), target, RecvFlags::DONTWAIT).map(|(_, count)| count);
        match received {
            Ok(count) => {
                // SAFETY: the kernel has written `count` bytes, at most `room`, behind the present ones.
                unsafe { buffer.advance_mut(count) };
                return Attempt::Finished(Ok(count as u64), Returned::Buffer(buffer));
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => {
                return Attempt::NotReady(Pending::ReceiveInto { socket, buffer, max_bytes });
            }
            Err(error) => return Attempt::Finished(Err(error.into()), Returned::Buffer(buffer)),
        }
    }
}

fn attempt_send(socket: SocketHandle, mut pieces: Vec<Bytes>, mut sent: u64) -> Attempt {
    pieces.retain(|piece| !piece.is_empty());
    while !pieces.is_empty() {
        match network::try_send(&socket, &pieces) {
            Ok(count) => {
                sent += count as u64;
                network::advance_pieces(&mut pieces, count);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Attempt::NotReady(Pending::Send { socket, pieces, sent });
            }
            Err(error) => return Attempt::Finished(Err(error), Returned::None),
        }
    }
    Attempt::Finished(Ok(sent), Returned::None)
}

fn attempt_writable(socket: SocketHandle) -> Attempt {
    let mut polled = [PollFd::from_borrowed_fd(socket.fd(), PollFlags::OUT)];
    let immediately = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut polled, Some(&immediately)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => Attempt::NotReady(Pending::WaitWritable { socket }),
        Ok(_) => Attempt::Finished(Ok(0), Returned::None),
        Err(error) => Attempt::Finished(Err(error.into()), Returned::None),
    }
}

fn attempt_hang_up(socket: SocketHandle) -> Attempt {
    let mut polled = [PollFd::from_borrowed_fd(socket.fd(), PollFlags::RDHUP)];
    let immediately = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    match rustix::event::poll(&mut polled, Some(&immediately)) {
        Ok(0) | Err(rustix::io::Errno::INTR) => Attempt::NotReady(Pending::WaitHangUp { socket }),
        Ok(_) => {
            let broken = polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP);
            Attempt::Finished(Ok(u64::from(broken)), Returned::None)
        }
        Err(error) => Attempt::Finished(Err(error.into()), Returned::None),
    }
}

impl Driver for EpollDriver {
    fn submit(&mut self, token: Token, operation: Operation) {
        self.stats.submitted += 1;
        match operation {
            Operation::Accept { listener } => self.start(token, Pending::Accept { listener }),
            Operation::Connect { address } => self.connect(token, address),
            Operation::ReceiveSome { socket } => self.start(token, Pending::ReceiveSome { socket }),
            Operation::ReceiveInto { socket, buffer, max_bytes } => {
                self.start(token, Pending::ReceiveInto { socket, buffer, max_bytes });
            }
            Operation::Send { socket, pieces } => {
                self.start(token, Pending::Send { socket, pieces, sent: 0 })
            }
            Operation::WaitWritable { socket } => self.start(token, Pending::WaitWritable { socket }),
            Operation::WaitHangUp { socket } => self.start(token, Pending::WaitHangUp { socket }),
            Operation::ReadAt { file, position, length, uncached: _ } => {
                self.read(token, file, position, length)
            }
            Operation::WriteDirect { file, position, buffer, sync } => {
                let operation = FileOperation::WriteAligned { file, position, buffer, sync };
                self.pool.submit(token, Work::File(operation));
            }
            Operation::File(operation) => {
                let operation = features::without_direct(operation, self.features);
                self.pool.submit(token, Work::File(operation));
            }
            Operation::Compute { job } => self.pool.submit(token, Work::Compute(job)),
        }
    }

    fn cancel(&mut self, token: Token) {
        let Some(pending) = self.parked.remove(token) else { return };
        let key = (pending.watched().0.id, pending.direction());
        if let Some(queue) = self.waiting.get_mut(&key) {
            queue.retain(|waiting| *waiting != token);
            if queue.is_empty() {
                self.waiting.remove(&key);
            }
        }
        self.finish(token, Err(io::Error::from_raw_os_error(libc::ECANCELED)), pending.give_back());
    }

    fn poll(&mut self, completions: &mut Vec<Completion>, wait: Wait) {
        let before = completions.len();
        self.pool.collect(completions);
        completions.append(&mut self.ready);
        let timeout = if completions.len() > before { Some(Duration::ZERO) } else { self.timeout(wait) };
        self.wait_events(timeout);
        self.pool.collect(completions);
        completions.append(&mut self.ready);
        self.stats.completed += (completions.len() - before) as u64;
    }

    fn has_ready(&mut self) -> bool {
        !self.ready.is_empty() || self.pool.has_done()
    }

    fn prepare_sleep(&mut self) {
        self.wake.handshake.prepare_sleep();
    }

    fn awake(&mut self) {
        self.wake.handshake.awake();
    }

    fn try_send(&mut self, socket: &SocketHandle, pieces: &[Bytes]) -> io::Result<usize> {
        network::try_send(socket, pieces)
    }

    fn try_send_file(
        &mut self,
        socket: &SocketHandle,
        file: &File,
        position: u64,
        length: u64,
    ) -> io::Result<u64> {
        network::try_send_file(socket, file, position, length)
    }

    fn cached_bytes(&mut self, file: &File, position: u64, length: u64) -> Option<u64> {
        if self.features.has(Feature::Cachestat) { file::cached_bytes(file, position, length) } else { None }
    }

    fn listen(&mut self, address: SocketAddr, options: &ListenOptions) -> io::Result<Listener> {
        network::listen(address, options, true)
    }

    fn monotonic_now(&self) -> Monotonic {
        clock::kernel_monotonic()
    }

    fn wall_now_ms(&self) -> i64 {
        clock::kernel_wall_ms()
    }

    fn random_u64(&mut self) -> u64 {
        self.random.next_u64()
    }

    fn notifier(&self) -> Notifier {
        Notifier::kernel(Arc::clone(&self.wake))
    }

    fn stats(&self) -> DriverStats {
        DriverStats { in_flight: self.stats.submitted - self.stats.completed, ..self.stats }
    }

    fn features(&self) -> FeatureSet {
        self.features
    }

    fn name(&self) -> &'static str {
        "epoll"
    }

    fn shut_down(&mut self) {
        // Nothing in the kernel holds our buffers; workers are awaited when the pool is dropped.
        self.waiting.clear();
        self.parked.clear();
    }
}

impl EpollDriver {
    fn timeout(&self, wait: Wait) -> Option<Duration> {
        match wait {
            Wait::Nothing => Some(Duration::ZERO),
            Wait::Until(deadline) => Some(deadline.saturating_since(self.monotonic_now())),
            Wait::Forever => None,
        }
    }
}
