//! The driver on io_uring: sockets and direct file I/O in the ring, blocking file operations on worker threads. Never
//! frees a buffer that the kernel may still write to.

mod buffers;
mod flight;
mod ring;

use std::collections::VecDeque;
use std::collections::hash_map::{Entry, HashMap};
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use io_uring::types::Fd;
use io_uring::{cqueue, opcode};
use socket2::SockAddr;

use self::buffers::ReceiveBuffers;
use self::flight::{Flight, FlightWork, Progress};
use self::ring::Ring;
use crate::aligned::AlignedBuffer;
use crate::blocking::{Work, WorkerPool};
use crate::clock::{self, Monotonic};
use crate::driver::{Driver, DriverStats, Wait};
use crate::error::IoSetupError;
use crate::features::{self, Feature, FeatureSet};
use crate::file::{self, File};
use crate::file_work::DirectWindow;
use crate::network;
use crate::notify::{Notifier, WakeState};
use crate::operation::{Completion, Operation, Returned, Token, TokenMap};
use crate::options::{ExecutorConfig, ListenOptions};
use crate::random::Random;
use crate::socket::{Listener, SocketHandle, SocketInner};

/// The completion of the watch on the eventfd.
const WAKE: u64 = u64::MAX;
/// The completion of a cancellation, which says nothing.
const CANCELLATION: u64 = u64::MAX - 1;

/// How long a closing executor waits for the kernel to let go of buffers. Beyond it they are leaked, never freed.
const SHUT_DOWN_WAIT: Duration = Duration::from_secs(5);

type QueuedSend = (Token, SocketHandle, Vec<Bytes>);

/// io_uring.
pub(crate) struct UringDriver {
    ring: Ring,
    buffers: Option<ReceiveBuffers>,
    flights: TokenMap<Flight>,
    /// Sends that wait for an earlier one of their socket, by watch id. Rare: a caller awaits one send before the next.
    queued_sends: HashMap<u64, VecDeque<QueuedSend>, ahash::RandomState>,
    /// Finished without the ring, not yet delivered.
    ready: Vec<Completion>,
    wake: Arc<WakeState>,
    wake_watched: bool,
    pool: WorkerPool,
    random: Random,
    features: FeatureSet,
    stats: DriverStats,
}

impl UringDriver {
    pub(crate) fn new(config: &ExecutorConfig) -> Result<Self, IoSetupError> {
        let mut ring = Ring::new(config.ring_entries.clamp(8, 4096))?;
        let mut available = ring.probe();
        let wanted = FeatureSet::new(&Feature::ALL, config.features.quiet());
        let buffers = if wanted.has(Feature::ProvidedBuffers) {
            ReceiveBuffers::register(&ring.inner).ok()
        } else {
            None
        };
        if buffers.is_some() || !wanted.has(Feature::ProvidedBuffers) {
            available.push(Feature::ProvidedBuffers);
        }
        let features = FeatureSet::new(&available, config.features);
        let refused = |source| IoSetupError::Descriptor { call: "eventfd", source };
        if !features.has(Feature::NoIowait) {
            ring.sleep_in_poll().map_err(refused)?;
        }
        let wake = WakeState::new().map_err(refused)?;
        let mut random = config.seed.map_or_else(Random::from_kernel, Random::from_seed);
        Ok(Self {
            ring,
            buffers,
            flights: TokenMap::new(),
            ready: Vec::new(),
            pool: WorkerPool::new(config.worker_threads, Arc::clone(&wake)),
            wake,
            wake_watched: false,
            queued_sends: HashMap::with_hasher(random.hasher()),
            random,
            features,
            stats: DriverStats::default(),
        })
    }

    fn finish(&mut self, token: Token, result: io::Result<u64>, returned: Returned) {
        self.ready.push(Completion { token, result, returned });
    }

    fn launch(&mut self, token: Token, flight: Flight) {
        let flight = self.flights.insert(token, flight);
        let entry = flight.work.entry(token);
        // SAFETY: the flight, which owns what the entry points to, stays in `flights` until its completion arrived; when
        // the driver is dropped before, the flights are leaked.
        unsafe { self.ring.push(&entry) };
    }

    fn start(&mut self, token: Token, work: FlightWork) {
        self.launch(token, Flight { work, cancelled: false });
    }

    fn connect(&mut self, token: Token, address: SocketAddr) {
        match network::new_stream(address) {
            Ok(descriptor) => {
                let socket = SocketInner::descriptor(descriptor);
                self.start(
                    token,
                    FlightWork::Connect { socket, address, raw: Box::new(SockAddr::from(address)) },
                );
            }
            Err(error) => self.finish(token, Err(error), Returned::None),
        }
    }

    fn send(&mut self, token: Token, socket: SocketHandle, mut pieces: Vec<Bytes>) {
        pieces.retain(|piece| !piece.is_empty());
        if pieces.is_empty() {
            return self.finish(token, Ok(0), Returned::None);
        }
        if socket.sending.swap(true, Ordering::Relaxed) {
            // The ring would let a later send overtake one that waits for the peer.
            self.queued_sends.entry(socket.watch.id).or_default().push_back((token, socket, pieces));
            return;
        }
        self.start(token, FlightWork::Send { socket, pieces, sent: 0, message: None });
    }

    /// A send has ended: the next one of its socket may go.
    fn send_next(&mut self, watch_id: u64) {
        let Entry::Occupied(mut queue) = self.queued_sends.entry(watch_id) else { return };
        let next = queue.get_mut().pop_front();
        if queue.get().is_empty() {
            queue.remove();
        }
        if let Some((token, socket, pieces)) = next {
            socket.sending.store(true, Ordering::Relaxed);
            self.start(token, FlightWork::Send { socket, pieces, sent: 0, message: None });
        }
    }

    fn read(&mut self, token: Token, file: File, position: u64, length: usize, uncached: bool) {
        if length == 0 {
            return self.finish(token, Ok(0), Returned::Bytes(Bytes::new()));
        }
        if file.is_direct() {
            let window = DirectWindow::around(position, length);
            let mut buffer = AlignedBuffer::with_capacity(window.length);
            buffer.resize(window.length, 0);
            return self.start(token, FlightWork::ReadDirect { file, window, length, buffer, filled: 0 });
        }
        let uncached = uncached && self.features.has(Feature::DontCache);
        let buffer = BytesMut::with_capacity(length);
        self.start(token, FlightWork::Read { file, position, length, buffer, uncached });
    }

    /// Keeps one watch on the eventfd. It reports each write to it once, so the counter need not be read.
    fn watch_wakes(&mut self) {
        if !self.wake_watched && self.ring.takes_wakes() {
            self.wake_watched = true;
            let descriptor = Fd(self.wake.event().as_raw_fd());
            let entry =
                opcode::PollAdd::new(descriptor, libc::POLLIN as u32).multi(true).build().user_data(WAKE);
            // SAFETY: the entry points to nothing.
            unsafe { self.ring.push(&entry) };
        }
    }

    fn collect(&mut self, completions: &mut Vec<Completion>) {
        self.pool.collect(completions);
        completions.append(&mut self.ready);
        loop {
            // One at a time: handling one may queue a submission, which needs the ring.
            let next = self.ring.inner.completion().next();
            let Some(entry) = next else { break };
            match entry.user_data() {
                WAKE => self.wake_watched &= cqueue::more(entry.flags()),
                CANCELLATION => {}
                data => {
                    let token = Token(usize::try_from(data).expect("our own token"));
                    self.land(token, entry.result(), entry.flags(), completions);
                }
            }
        }
    }

    fn land(&mut self, token: Token, result: i32, flags: u32, completions: &mut Vec<Completion>) {
        let Flight { work, cancelled } =
            self.flights.remove(token).expect("the kernel completes what is in flight");
        let sender = work.sender();
        let (result, returned) = match work.advance(result, flags, self.buffers.as_mut()) {
            Progress::Finished(result, returned) => (result, returned),
            Progress::Again(work) if cancelled => {
                (Err(io::Error::from_raw_os_error(libc::ECANCELED)), work.give_back())
            }
            Progress::Again(work) => return self.launch(token, Flight { work, cancelled }),
        };
        completions.push(Completion { token, result, returned });
        if let Some(watch_id) = sender.filter(|_| !self.queued_sends.is_empty()) {
            self.send_next(watch_id);
        }
    }

    fn push_cancellation(&mut self, user_data: u64) {
        let entry = opcode::AsyncCancel::new(user_data).build().user_data(CANCELLATION);
        // SAFETY: the entry points to nothing.
        unsafe { self.ring.push(&entry) };
    }

    fn timeout(&self, deadline: Monotonic) -> Duration {
        deadline.saturating_since(self.monotonic_now())
    }
}

impl Driver for UringDriver {
    fn submit(&mut self, token: Token, operation: Operation) {
        self.stats.submitted += 1;
        match operation {
            Operation::Accept { listener } => self.start(token, FlightWork::Accept { listener }),
            Operation::Connect { address } => self.connect(token, address),
            Operation::ReceiveSome { socket } if self.buffers.is_some() => {
                self.start(token, FlightWork::ReceiveSome { socket });
            }
            Operation::ReceiveSome { socket } => {
                self.start(token, FlightWork::ReceiveWhenReadable { socket })
            }
            Operation::ReceiveInto { socket, buffer, max_bytes } => {
                self.start(token, FlightWork::ReceiveInto { socket, buffer, max_bytes });
            }
            Operation::Send { socket, pieces } => self.send(token, socket, pieces),
            Operation::WaitWritable { socket } => self.start(token, FlightWork::WaitWritable { socket }),
            Operation::WaitHangUp { socket } => self.start(token, FlightWork::WaitHangUp { socket }),
            Operation::ReadAt { file, position, length, uncached } => {
                self.read(token, file, position, length, uncached);
            }
            Operation::WriteDirect { file: _, position: _, buffer, sync: _ } if buffer.is_empty() => {
                self.finish(token, Ok(0), Returned::Aligned(buffer));
            }
            Operation::WriteDirect { file, position, buffer, sync } => {
                self.start(token, FlightWork::WriteDirect { file, position, buffer, written: 0, sync });
            }
            Operation::File(operation) => {
                let operation = features::without_direct(operation, self.features);
                self.pool.submit(token, Work::File(operation));
            }
            Operation::Compute { job } => self.pool.submit(token, Work::Compute(job)),
        }
    }

    fn cancel(&mut self, token: Token) {
        if let Some(flight) = self.flights.get_mut(token) {
            flight.cancelled = true;
            // The token cannot name a later operation by the time the kernel sees this: submissions keep their order.
            self.push_cancellation(token.0 as u64);
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>, wait: Wait) {
        let before = completions.len();
        self.watch_wakes();
        self.collect(completions);
        if completions.len() > before {
            self.ring.flush();
        } else {
            match wait {
                Wait::Nothing => self.ring.flush(),
                Wait::Until(deadline) => {
                    let timeout = self.timeout(deadline);
                    self.ring.wait(Some(timeout), &self.wake, self.flights.len());
                }
                Wait::Forever => self.ring.wait(None, &self.wake, self.flights.len()),
            }
        }
        self.collect(completions);
        self.stats.completed += (completions.len() - before) as u64;
    }

    fn has_ready(&mut self) -> bool {
        let bridged = self.ring.is_bridged();
        !self.ready.is_empty() || self.pool.has_done() || bridged && self.ring.settle(self.flights.len())
    }

    fn prepare_sleep(&mut self) {
        self.wake.handshake.prepare_sleep();
        if self.ring.is_bridged() {
            self.ring.ask_for_signals();
        }
    }

    fn awake(&mut self) {
        self.wake.handshake.awake();
        if self.ring.is_bridged() {
            self.ring.refuse_signals();
        }
    }

    fn bridge(&mut self) -> io::Result<OwnedFd> {
        self.ring.bridge(&self.wake)
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
        network::listen(address, options, false)
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
        let in_flight = self.stats.submitted - self.stats.completed;
        DriverStats { in_flight, syscalls: self.ring.syscalls, ..self.stats }
    }

    fn features(&self) -> FeatureSet {
        self.features
    }

    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn shut_down(&mut self) {
        let deadline = self.monotonic_now() + SHUT_DOWN_WAIT;
        for token in self.flights.tokens() {
            self.cancel(token);
        }
        self.queued_sends.clear();
        let mut completions = Vec::new();
        while self.flights.len() > 0 && self.monotonic_now() < deadline {
            let timeout = self.timeout(deadline);
            self.ring.wait(Some(timeout), &self.wake, self.flights.len());
            self.collect(&mut completions);
            completions.clear();
        }
    }
}

impl Drop for UringDriver {
    fn drop(&mut self) {
        if self.flights.len() > 0 {
            self.shut_down();
        }
        if self.flights.len() > 0 {
            tracing::error!(
                count = self.flights.len(),
                "operations still in the ring at its end; their buffers are leaked"
            );
            mem::forget(mem::replace(&mut self.flights, TokenMap::new()));
            mem::forget(self.buffers.take());
        }
    }
}
