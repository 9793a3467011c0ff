//! One TCP connection to a broker: correlation ids, pipelining, negotiated versions.
//!
//! Requests leave in the order in which they are started, and Kafka answers in that order; a response that is out of
//! step ends the connection. It never retries and knows no topics. Memory is bounded: the reply buffer grows by bytes
//! that arrived, and at most [`IN_FLIGHT_MAX`] requests wait.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ringlog_io::{Io, Monotonic, Priority, Socket, Task};
use ringlog_protocol::api::{ApiKey, VersionRange};
use ringlog_protocol::frame::{Answer, RequestHeader};
use ringlog_protocol::wire::{EncodeError, Piece, Reader, Writer};

use super::address::{AddressOrigin, BrokerAddress};
use super::error::{ClientError, ConnectionFault};
use super::wait::{Signal, SlotReceiver, SlotSender, slot, with_deadline};

/// Most requests waiting for an answer on one connection; more than any of our callers pipelines.
pub const IN_FLIGHT_MAX: usize = 1_024;
/// Bytes asked of the kernel when the size of the next response is not known yet.
const RECEIVE_BYTES: usize = 64 << 10;
/// So much room left in the buffer is used up before there is a new one: small responses share a buffer.
const RECEIVE_ROOM_BYTES_MIN: usize = 4 << 10;
/// Bytes asked of the kernel at once inside a large response.
const RECEIVE_BYTES_MAX: usize = 1 << 20;
/// Most bytes handed to one send call; requests beyond it go with the next.
const SEND_BYTES_MAX: usize = 4 << 20;

/// How a connection behaves.
#[derive(Clone, Debug)]
pub struct ConnectionConfig {
    /// Sent as the client id of every request.
    pub client_id: String,
    /// How long TCP connect and the first answer may take.
    pub connect_timeout: Duration,
    /// How long any other answer may take, beyond the wait that the request itself asks for.
    pub request_timeout: Duration,
    /// The largest response taken.
    pub response_bytes_max: usize,
}

impl Default for ConnectionConfig {
    fn default() -> ConnectionConfig {
        ConnectionConfig {
            client_id: "ringlog".to_owned(),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            response_bytes_max: 128 << 20,
        }
    }
}

struct Outgoing {
    pieces: Vec<Bytes>,
    bytes: usize,
    /// Told when the kernel has taken the bytes.
    flushed: Option<SlotSender<Result<(), ConnectionFault>>>,
}

struct Pending {
    correlation_id: i32,
    has_flexible_header: bool,
    reply: SlotSender<Result<Bytes, ConnectionFault>>,
}

#[derive(Default)]
struct State {
    outbox: VecDeque<Outgoing>,
    pending: VecDeque<Pending>,
    next_correlation_id: i32,
    fault: Option<ConnectionFault>,
    versions: BTreeMap<i16, VersionRange>,
}

struct Shared {
    io: Io,
    socket: Socket,
    address: BrokerAddress,
    config: ConnectionConfig,
    state: RefCell<State>,
    outbox_changed: Signal,
    answered: Signal,
}

/// A connection. Dropping it ends its tasks and fails what is in flight.
pub struct Connection {
    shared: Rc<Shared>,
    _reader: Task<()>,
    _writer: Task<()>,
}

/// An answer to come.
pub struct Reply {
    shared: Rc<Shared>,
    api: ApiKey,
    receiver: SlotReceiver<Result<Bytes, ConnectionFault>>,
    deadline: Monotonic,
    timeout: Duration,
}

impl Connection {
    /// Connects to `address`. Versions are not negotiated yet.
    ///
    /// # Errors
    /// [`ClientError::Resolve`] and [`ClientError::Connect`].
    pub async fn open(
        io: &Io,
        address: BrokerAddress,
        config: &ConnectionConfig,
    ) -> Result<Connection, ClientError> {
        let mut reasons = Vec::new();
        for socket_address in address.resolve(io).await? {
            let deadline = io.monotonic_now() + config.connect_timeout;
            match with_deadline(io, deadline, io.connect(socket_address)).await {
                Ok(Ok(socket)) => return Ok(Connection::start_tasks(io, socket, address, config)),
                Ok(Err(error)) => reasons.push(format!("{error} ({socket_address})")),
                Err(_) => {
                    reasons.push(format!("no answer within {:?} ({socket_address})", config.connect_timeout))
                }
            }
        }
        let hint = address.unreachable_hint();
        Err(ClientError::Connect { address: address.to_string(), reason: reasons.join(", "), hint })
    }

    fn start_tasks(io: &Io, socket: Socket, address: BrokerAddress, config: &ConnectionConfig) -> Connection {
        let shared = Rc::new(Shared {
            io: io.clone(),
            socket,
            address,
            config: config.clone(),
            state: RefCell::new(State::default()),
            outbox_changed: Signal::default(),
            answered: Signal::default(),
        });
        let reader = io.spawn(Priority::Foreground, read_loop(shared.clone()));
        let writer = io.spawn(Priority::Foreground, write_loop(shared.clone()));
        Connection { shared, _reader: reader, _writer: writer }
    }

    /// Where it leads.
    pub fn address(&self) -> &BrokerAddress {
        &self.shared.address
    }

    /// Whether it can no longer be used.
    pub fn is_broken(&self) -> bool {
        self.shared.state.borrow().fault.is_some()
    }

    /// Requests waiting for an answer.
    pub fn in_flight(&self) -> usize {
        self.shared.state.borrow().pending.len()
    }

    /// Remembers what the broker serves, from its ApiVersions answer.
    pub fn set_versions(&self, versions: BTreeMap<i16, VersionRange>) {
        self.shared.state.borrow_mut().versions = versions;
    }

    /// The highest version of `api` that both sides know.
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] when there is none.
    pub fn version(&self, api: ApiKey) -> Result<i16, ClientError> {
        self.version_among(
            api,
            api.api().served.map_or(VersionRange { min: 0, max: -1 }, |served| served.versions),
        )
    }

    /// The same among `ours`: of an API that our own broker need not serve.
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] when there is none.
    pub fn version_among(&self, api: ApiKey, ours: VersionRange) -> Result<i16, ClientError> {
        let theirs = self.shared.state.borrow().versions.get(&api.key()).copied();
        common_version(ours, theirs).ok_or_else(|| ClientError::Unsupported {
            address: self.shared.address.to_string(),
            api: api.name(),
            ours_min: ours.min,
            ours_max: ours.max,
            theirs: theirs.map_or_else(|| "none".to_owned(), |range| format!("{}-{}", range.min, range.max)),
        })
    }

    /// Queues a request now and returns the answer to come. Requests started in turn leave in turn.
    ///
    /// # Errors
    /// Encoding errors, a broken connection, or too many requests in flight.
    pub fn start(
        &self,
        api: ApiKey,
        version: i16,
        wait: Duration,
        encode: impl FnOnce(&mut Writer, i16) -> Result<(), EncodeError>,
    ) -> Result<Reply, ClientError> {
        let in_flight = self.in_flight();
        if in_flight >= IN_FLIGHT_MAX {
            return Err(ClientError::TooManyInFlight { address: self.shared.address.to_string(), in_flight });
        }
        let correlation_id = self.queue(api, version, encode, None)?;
        let (reply, receiver) = slot();
        let has_flexible_header = api.api().response_header_version(version) >= 1;
        self.shared.state.borrow_mut().pending.push_back(Pending {
            correlation_id,
            has_flexible_header,
            reply,
        });
        let timeout = self.shared.config.request_timeout + wait;
        let deadline = self.shared.io.monotonic_now() + timeout;
        Ok(Reply { shared: self.shared.clone(), api, receiver, deadline, timeout })
    }

    /// Queues a request that the broker does not answer (Produce with acks=0); resolves when the kernel has its bytes.
    ///
    /// # Errors
    /// Encoding errors and a broken connection.
    pub async fn send_unanswered(
        &self,
        api: ApiKey,
        version: i16,
        encode: impl FnOnce(&mut Writer, i16) -> Result<(), EncodeError>,
    ) -> Result<(), ClientError> {
        let (sender, receiver) = slot();
        self.queue(api, version, encode, Some(sender))?;
        match receiver.await {
            Some(Ok(())) => Ok(()),
            Some(Err(fault)) => Err(self.shared.request_error(api, fault)),
            None => Err(self.shared.request_error(api, ConnectionFault::Shutdown)),
        }
    }

    /// Sends one request and waits for the body of its answer.
    ///
    /// # Errors
    /// As [`Connection::start`] and [`Reply::body`].
    pub async fn call(
        &self,
        api: ApiKey,
        version: i16,
        wait: Duration,
        encode: impl FnOnce(&mut Writer, i16) -> Result<(), EncodeError>,
    ) -> Result<Bytes, ClientError> {
        self.start(api, version, wait, encode)?.body().await
    }

    fn queue(
        &self,
        api: ApiKey,
        version: i16,
        encode: impl FnOnce(&mut Writer, i16) -> Result<(), EncodeError>,
        flushed: Option<SlotSender<Result<(), ConnectionFault>>>,
    ) -> Result<i32, ClientError> {
        let shared = &self.shared;
        // Looked at by itself: making the error reads the state too.
        let fault = shared.state.borrow().fault.clone();
        if let Some(fault) = fault {
            return Err(shared.request_error(api, fault));
        }
        let correlation_id = {
            let mut state = shared.state.borrow_mut();
            let id = state.next_correlation_id;
            state.next_correlation_id = id.checked_add(1).unwrap_or(0);
            id
        };
        let client_id = Some(shared.config.client_id.as_str());
        let header =
            RequestHeader { api, api_version: version, correlation_id, client_id, answer: Answer::Serve };
        let mut writer = Writer::frame(256);
        let pieces = header
            .encode(&mut writer)
            .and_then(|()| encode(&mut writer, version))
            .and_then(|()| writer.finish_frame())
            .map_err(|source| ClientError::Encode {
                address: shared.address.to_string(),
                api: api.name(),
                version,
                source,
            })?;
        let pieces: Vec<Bytes> = pieces.into_iter().filter_map(memory_piece).collect();
        let bytes = pieces.iter().map(Bytes::len).sum();
        shared.state.borrow_mut().outbox.push_back(Outgoing { pieces, bytes, flushed });
        shared.outbox_changed.raise();
        Ok(correlation_id)
    }

    /// Resolves when fewer than `count` requests wait for an answer, or the connection is broken.
    pub async fn in_flight_below(&self, count: usize) {
        while self.in_flight() >= count && !self.is_broken() {
            self.shared.answered.raised().await;
        }
    }

    /// Ends the connection; everything in flight fails with `fault`.
    pub fn close(&self, fault: ConnectionFault) {
        self.shared.fail(fault);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.fail(ConnectionFault::Shutdown);
    }
}

/// A request never holds file ranges: only a broker's responses do.
fn memory_piece(piece: Piece) -> Option<Bytes> {
    match piece {
        Piece::Bytes(bytes) => Some(bytes),
        Piece::File(_) => None,
    }
}

/// The highest version in both ranges.
pub fn common_version(ours: VersionRange, theirs: Option<VersionRange>) -> Option<i16> {
    let theirs = theirs?;
    let highest = ours.max.min(theirs.max);
    (highest >= ours.min.max(theirs.min)).then_some(highest)
}

impl Reply {
    /// The body of the answer, behind its header.
    ///
    /// # Errors
    /// [`ClientError::Request`]: the connection failed, or no answer came in time. A late answer would be taken for
    /// the answer of the next request's caller, so a timeout ends the connection.
    pub async fn body(self) -> Result<Bytes, ClientError> {
        let shared = self.shared;
        match with_deadline(&shared.io, self.deadline, self.receiver).await {
            Ok(Some(Ok(body))) => Ok(body),
            Ok(Some(Err(fault))) => Err(shared.request_error(self.api, fault)),
            Ok(None) => Err(shared.request_error(self.api, ConnectionFault::Shutdown)),
            Err(_) => {
                let milliseconds = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
                shared.fail(ConnectionFault::TimedOut { milliseconds });
                Err(shared.request_error(self.api, ConnectionFault::TimedOut { milliseconds }))
            }
        }
    }
}

impl Shared {
    fn request_error(&self, api: ApiKey, fault: ConnectionFault) -> ClientError {
        let is_first_contact = self.state.borrow().versions.is_empty();
        let hint = match (&fault, &self.address.origin) {
            (ConnectionFault::Closed | ConnectionFault::FrameSize { .. }, _) if is_first_contact => {
                "; is this a plain-text Kafka port? TLS and SASL listeners close the connection here"
            }
            (ConnectionFault::TimedOut { .. }, AddressOrigin::Advertised { .. }) => {
                "; the address comes from the broker's advertised.listeners: does it lead to the broker?"
            }
            _ => "",
        };
        ClientError::Request { address: self.address.to_string(), api: api.name(), fault, hint }
    }

    fn fail(&self, fault: ConnectionFault) {
        let (pending, outbox) = {
            let mut state = self.state.borrow_mut();
            if state.fault.is_some() {
                return;
            }
            state.fault = Some(fault.clone());
            (std::mem::take(&mut state.pending), std::mem::take(&mut state.outbox))
        };
        for waiting in pending {
            waiting.reply.send(Err(fault.clone()));
        }
        for outgoing in outbox {
            if let Some(flushed) = outgoing.flushed {
                flushed.send(Err(fault.clone()));
            }
        }
        self.socket.shutdown();
        self.outbox_changed.raise();
        self.answered.raise();
    }

    fn is_broken(&self) -> bool {
        self.state.borrow().fault.is_some()
    }

    /// Hands a response frame (without its length) to the request at the front.
    fn deliver(&self, frame: Bytes) -> Result<(), ConnectionFault> {
        let got = frame.first_chunk::<4>().map(|bytes| i32::from_be_bytes(*bytes)).ok_or(
            ConnectionFault::FrameSize {
                bytes: frame.len() as i64,
                bytes_max: self.config.response_bytes_max,
            },
        )?;
        let pending = {
            let mut state = self.state.borrow_mut();
            match state.pending.front() {
                None => return Err(ConnectionFault::Unrequested { got }),
                Some(front) if front.correlation_id != got => {
                    return Err(ConnectionFault::Correlation { expected: front.correlation_id, got });
                }
                Some(_) => state.pending.pop_front().expect("the front was just looked at"),
            }
        };
        let body = frame.slice(4..);
        let body = if pending.has_flexible_header { skip_header_tags(body) } else { Ok(body) };
        self.answered.raise();
        match body {
            Ok(body) => {
                pending.reply.send(Ok(body));
                Ok(())
            }
            Err(fault) => {
                pending.reply.send(Err(fault.clone()));
                Err(fault)
            }
        }
    }
}

fn skip_header_tags(body: Bytes) -> Result<Bytes, ConnectionFault> {
    let mut reader = Reader::new(&body);
    match reader.skip_tags("ResponseHeader") {
        Ok(()) => Ok(body.slice(reader.offset()..)),
        Err(error) => Err(ConnectionFault::Header { reason: error.to_string() }),
    }
}

async fn write_loop(shared: Rc<Shared>) {
    loop {
        let (pieces, flushed) = take_outbox(&shared);
        if pieces.is_empty() {
            if shared.is_broken() {
                return;
            }
            shared.outbox_changed.raised().await;
            continue;
        }
        let result = shared.io.send(&shared.socket, pieces).await.map_err(|error| fault_of(&error));
        for sender in flushed {
            sender.send(result.clone());
        }
        if let Err(fault) = result {
            shared.fail(fault);
            return;
        }
    }
}

type Flushed = Vec<SlotSender<Result<(), ConnectionFault>>>;

/// Takes as many whole requests as one send call should carry.
fn take_outbox(shared: &Shared) -> (Vec<Bytes>, Flushed) {
    let mut state = shared.state.borrow_mut();
    let (mut pieces, mut flushed, mut bytes) = (Vec::new(), Vec::new(), 0);
    while bytes < SEND_BYTES_MAX
        && let Some(outgoing) = state.outbox.pop_front()
    {
        bytes += outgoing.bytes;
        pieces.extend(outgoing.pieces);
        flushed.extend(outgoing.flushed);
    }
    (pieces, flushed)
}

async fn read_loop(shared: Rc<Shared>) {
    let mut buffer = BytesMut::new();
    loop {
        let wanted = match drain_frames(&shared, &mut buffer) {
            Ok(wanted) => wanted,
            Err(fault) => return shared.fail(fault),
        };
        let room = buffer.capacity() - buffer.len();
        let is_size_known = wanted != RECEIVE_BYTES;
        let wanted = if is_size_known || room < RECEIVE_ROOM_BYTES_MIN { wanted } else { wanted.min(room) };
        let (result, filled) = shared.io.recv_into(&shared.socket, buffer, wanted).await;
        buffer = filled;
        match result {
            Ok(0) => return shared.fail(ConnectionFault::Closed),
            Ok(_) => {}
            Err(error) => return shared.fail(fault_of(&error)),
        }
    }
}

/// Delivers every whole frame in `buffer`; returns how many bytes to receive next.
fn drain_frames(shared: &Shared, buffer: &mut BytesMut) -> Result<usize, ConnectionFault> {
    loop {
        let Some(prefix) = buffer.first_chunk::<4>() else { return Ok(RECEIVE_BYTES) };
        let length = i32::from_be_bytes(*prefix);
        let bytes_max = shared.config.response_bytes_max;
        let frame_bytes = usize::try_from(length).ok().filter(|bytes| (4..=bytes_max).contains(bytes));
        let frame_bytes =
            frame_bytes.ok_or(ConnectionFault::FrameSize { bytes: i64::from(length), bytes_max })?;
        let left = (4 + frame_bytes).saturating_sub(buffer.len());
        if left > 0 {
            // Room grows with what has arrived: a lying length buys at most as much memory again.
            return Ok(left.min(buffer.len().clamp(RECEIVE_BYTES, RECEIVE_BYTES_MAX)));
        }
        let frame = buffer.split_to(4 + frame_bytes).freeze();
        shared.deliver(frame.slice(4..))?;
    }
}

fn fault_of(error: &std::io::Error) -> ConnectionFault {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match error.kind() {
        BrokenPipe | ConnectionReset | UnexpectedEof => ConnectionFault::Closed,
        _ => ConnectionFault::Io { reason: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(min: i16, max: i16) -> VersionRange {
        VersionRange { min, max }
    }

    #[test]
    fn the_highest_common_version_is_taken() {
        assert_eq!(common_version(range(3, 13), Some(range(0, 11))), Some(11));
        assert_eq!(common_version(range(3, 13), Some(range(0, 20))), Some(13));
        assert_eq!(common_version(range(3, 13), Some(range(0, 2))), None);
        assert_eq!(common_version(range(3, 13), Some(range(14, 15))), None);
        assert_eq!(common_version(range(3, 13), None), None);
    }
}
