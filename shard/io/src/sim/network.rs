//! The network between simulated hosts: listeners, and connections as two endpoints with a window each. Decides who gets
//! what; the world decides when.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Shutdown, SocketAddr};

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::state::Caller;
use crate::operation::Returned;
use crate::options::ListenOptions;
use crate::socket::{ListenerHandle, SocketHandle};
use crate::{RECEIVE_SOME_BYTES_MAX, network::advance_pieces};

/// Bytes of one direction that were sent and not yet received: what the kernels' buffers of both ends would hold.
pub(crate) const WINDOW_BYTES: usize = 256 * 1024;

/// A finished operation: who asked, and the answer.
pub(crate) type Finished = (Caller, io::Result<u64>, Returned);

/// What travels from one endpoint to the other.
#[derive(Debug)]
pub(crate) enum Packet {
    Bytes(Bytes),
    Fin,
    Reset,
}

/// One end of a connection.
pub(crate) struct Endpoint {
    pub(crate) host: usize,
    pub(crate) peer: u64,
    pub(crate) peer_host: usize,
    inbox: VecDeque<Bytes>,
    /// Bytes on their way to the peer or in its inbox. Invariant: <= WINDOW_BYTES.
    unreceived: usize,
    receives: VecDeque<(Caller, SocketHandle, Receive)>,
    sends: VecDeque<(Caller, SocketHandle, Vec<Bytes>, u64)>,
    writables: VecDeque<(Caller, SocketHandle)>,
    hang_ups: VecDeque<(Caller, SocketHandle)>,
    peer_finished: bool,
    reset: bool,
    /// Our direction is shut down: what travels arrives, what waits in a caller's hands fails.
    write_shut: bool,
    read_shut: bool,
    fin_sent: bool,
    /// No packet arrives at the peer before this: packets keep their order.
    pub(crate) last_arrival: u64,
    /// So many more bytes leave before the connection breaks.
    breaks_after: Option<usize>,
}

/// A receive that waits. The socket beside it stays open meanwhile.
pub(crate) enum Receive {
    Some,
    Into { buffer: BytesMut, max_bytes: usize },
}

impl Receive {
    pub(crate) fn give_back(self) -> Returned {
        match self {
            Self::Some => Returned::None,
            Self::Into { buffer, .. } => Returned::Buffer(buffer),
        }
    }
}

impl Endpoint {
    fn new(host: usize, peer: u64, peer_host: usize) -> Self {
        Self {
            host,
            peer,
            peer_host,
            inbox: VecDeque::new(),
            unreceived: 0,
            receives: VecDeque::new(),
            sends: VecDeque::new(),
            writables: VecDeque::new(),
            hang_ups: VecDeque::new(),
            peer_finished: false,
            reset: false,
            write_shut: false,
            read_shut: false,
            fin_sent: false,
            last_arrival: 0,
            breaks_after: None,
        }
    }

    pub(crate) fn receive(&mut self, caller: Caller, socket: SocketHandle, receive: Receive) {
        self.receives.push_back((caller, socket, receive));
    }

    pub(crate) fn send(&mut self, caller: Caller, socket: SocketHandle, mut pieces: Vec<Bytes>) {
        pieces.retain(|piece| !piece.is_empty());
        self.sends.push_back((caller, socket, pieces, 0));
    }

    pub(crate) fn wait_writable(&mut self, caller: Caller, socket: SocketHandle) {
        self.writables.push_back((caller, socket));
    }

    pub(crate) fn wait_hang_up(&mut self, caller: Caller, socket: SocketHandle) {
        self.hang_ups.push_back((caller, socket));
    }

    /// Tells who waits for it that the peer sends no more.
    pub(crate) fn pump_hang_ups(&mut self, finished: &mut Vec<Finished>) {
        let broken = self.reset || self.read_shut && self.write_shut;
        if broken || self.peer_finished || self.read_shut {
            let told = |(caller, _)| (caller, Ok(u64::from(broken)), Returned::None);
            finished.extend(self.hang_ups.drain(..).map(told));
        }
    }

    /// Takes an operation that waits here out, with what goes back to its caller.
    pub(crate) fn cancel(&mut self, caller: Caller) -> Option<Returned> {
        if let Some(index) = self.receives.iter().position(|(waiting, ..)| *waiting == caller) {
            return self.receives.remove(index).map(|(_, _, receive)| receive.give_back());
        }
        for waiting in [&mut self.writables, &mut self.hang_ups] {
            if let Some(index) = waiting.iter().position(|(waiting, _)| *waiting == caller) {
                return waiting.remove(index).map(|_| Returned::None);
            }
        }
        None
    }

    /// What the socket takes now; the error that a send gets at once.
    pub(crate) fn room(&self) -> io::Result<usize> {
        if self.reset {
            return Err(ErrorKind::ConnectionReset.into());
        }
        if self.write_shut {
            return Err(ErrorKind::BrokenPipe.into());
        }
        Ok(WINDOW_BYTES - self.unreceived)
    }

    /// Takes bytes into the window. They travel by the packets that the caller makes.
    pub(crate) fn take_room(&mut self, bytes: usize) {
        self.unreceived += bytes;
        assert!(self.unreceived <= WINDOW_BYTES, "{} bytes in a window of {WINDOW_BYTES}", self.unreceived);
    }

    /// Breaks the connection behind so many more bytes.
    pub(crate) fn break_after(&mut self, bytes: usize) {
        self.breaks_after = Some(bytes);
    }

    /// How many of `bytes` still leave, if the connection breaks among or behind them.
    pub(crate) fn cut(&mut self, bytes: usize) -> Option<usize> {
        let left = self.breaks_after?;
        if bytes < left {
            self.breaks_after = Some(left - bytes);
            return None;
        }
        self.breaks_after = None;
        Some(left)
    }

    /// The peer has received bytes of ours.
    pub(crate) fn give_room(&mut self, bytes: usize) {
        assert!(bytes <= self.unreceived, "{bytes} bytes received of {}", self.unreceived);
        self.unreceived -= bytes;
    }

    /// Moves waiting sends into the window. Adds the bytes to travel, and who is done; answers whether an end travels too.
    pub(crate) fn pump_sends(&mut self, travelling: &mut Vec<Bytes>, finished: &mut Vec<Finished>) -> bool {
        while let Some((caller, _, pieces, sent)) = self.sends.front_mut() {
            if self.reset || self.write_shut {
                let kind = if self.reset { ErrorKind::ConnectionReset } else { ErrorKind::BrokenPipe };
                finished.push((*caller, Err(kind.into()), Returned::None));
                self.sends.pop_front();
                continue;
            }
            let room = WINDOW_BYTES - self.unreceived;
            let Some(piece) = pieces.first_mut() else {
                finished.push((*caller, Ok(*sent), Returned::None));
                self.sends.pop_front();
                continue;
            };
            if room == 0 {
                break;
            }
            let part = piece.split_to(room.min(piece.len()));
            let length = part.len();
            *sent += length as u64;
            advance_pieces(pieces, 0);
            pieces.retain(|piece| !piece.is_empty());
            travelling.push(part);
            self.unreceived += length;
        }
        let finish = self.write_shut && !self.fin_sent && !self.reset;
        self.fin_sent |= finish;
        let writable = self.reset || self.write_shut || self.unreceived < WINDOW_BYTES;
        if writable && self.sends.is_empty() {
            finished.extend(self.writables.drain(..).map(|(caller, _)| (caller, Ok(0), Returned::None)));
        }
        finish
    }

    /// A packet has arrived.
    pub(crate) fn arrive(&mut self, packet: Packet) {
        match packet {
            Packet::Bytes(bytes) => self.inbox.push_back(bytes),
            Packet::Fin => self.peer_finished = true,
            Packet::Reset => {
                self.reset = true;
                self.inbox.clear();
            }
        }
    }

    /// Feeds waiting receives; answers the bytes that left the inbox. `limit` cuts a receive short, as real ones are.
    pub(crate) fn pump_receives(&mut self, limit: usize, finished: &mut Vec<Finished>) -> usize {
        let mut taken = 0;
        while !self.receives.is_empty() {
            let ended = self.peer_finished || self.read_shut;
            if self.inbox.is_empty() && !ended && !self.reset {
                break;
            }
            let Some((caller, _socket, receive)) = self.receives.pop_front() else { break };
            if self.reset {
                finished.push((caller, Err(ErrorKind::ConnectionReset.into()), receive.give_back()));
                continue;
            }
            let (count, returned) = match receive {
                Receive::Some => {
                    let bytes = self.take(limit.min(RECEIVE_SOME_BYTES_MAX));
                    (bytes.len(), Returned::Bytes(bytes))
                }
                Receive::Into { mut buffer, max_bytes } => {
                    let count = self.take_into(&mut buffer, limit.min(max_bytes));
                    (count, Returned::Buffer(buffer))
                }
            };
            taken += count;
            finished.push((caller, Ok(count as u64), returned));
        }
        taken
    }

    fn take(&mut self, limit: usize) -> Bytes {
        // What lies in one piece is handed on as it is.
        let pieces = self.inbox.len();
        match self.inbox.front_mut() {
            Some(front) if front.len() > limit => return front.split_to(limit),
            Some(front) if front.len() == limit || pieces == 1 => {
                return self.inbox.pop_front().unwrap_or_default();
            }
            _ => {}
        }
        let present: usize = self.inbox.iter().map(Bytes::len).sum();
        let mut taken = BytesMut::with_capacity(present.min(limit));
        self.take_into(&mut taken, limit);
        taken.freeze()
    }

    /// Moves up to `limit` bytes behind those in the buffer; answers how many.
    fn take_into(&mut self, buffer: &mut BytesMut, limit: usize) -> usize {
        let mut taken = 0;
        while let Some(front) = self.inbox.front_mut().filter(|_| taken < limit) {
            let count = front.len().min(limit - taken);
            buffer.put_slice(front.get(..count).unwrap_or(&[]));
            taken += count;
            front.advance(count);
            if front.is_empty() {
                self.inbox.pop_front();
            }
        }
        taken
    }

    pub(crate) fn shut(&mut self, how: Shutdown) {
        self.write_shut |= how != Shutdown::Read;
        self.read_shut |= how != Shutdown::Write;
    }

    /// What the peer hears when the last handle goes: an orderly end, or a reset when bytes were never read.
    pub(crate) fn closing_packet(&self) -> Option<Packet> {
        match (self.reset, self.inbox.is_empty()) {
            (true, _) => None,
            (false, false) => Some(Packet::Reset),
            (false, true) => (!self.fin_sent).then_some(Packet::Fin),
        }
    }
}

/// A bound port.
pub(crate) struct ListenerState {
    pub(crate) host: usize,
    pub(crate) address: SocketAddr,
    reuse_port: bool,
    backlog: usize,
    /// Connections that nobody accepted yet: our handle and the peer.
    queue: VecDeque<(SocketHandle, SocketAddr)>,
    accepts: VecDeque<(Caller, ListenerHandle)>,
}

impl ListenerState {
    pub(crate) fn accept(&mut self, caller: Caller, handle: ListenerHandle) {
        self.accepts.push_back((caller, handle));
    }

    pub(crate) fn cancel(&mut self, caller: Caller) -> Option<Returned> {
        let index = self.accepts.iter().position(|(waiting, _)| *waiting == caller)?;
        self.accepts.remove(index).map(|_| Returned::None)
    }

    pub(crate) fn has_room(&self) -> bool {
        self.queue.len() < self.backlog
    }

    pub(crate) fn arrive(&mut self, socket: SocketHandle, peer: SocketAddr) {
        self.queue.push_back((socket, peer));
    }

    pub(crate) fn pump(&mut self, finished: &mut Vec<Finished>) {
        while !self.queue.is_empty() {
            let Some((caller, _handle)) = self.accepts.pop_front() else { break };
            if let Some((socket, peer)) = self.queue.pop_front() {
                finished.push((caller, Ok(0), Returned::Socket(socket, peer)));
            }
        }
    }
}

/// All endpoints of a world, by number. A number is never given twice.
#[derive(Default)]
pub(crate) struct Endpoints {
    places: Vec<Option<Endpoint>>,
}

impl Endpoints {
    /// Adds the two ends of a connection between two hosts; answers their numbers.
    pub(crate) fn connect(&mut self, host: usize, peer_host: usize) -> (u64, u64) {
        let first = self.places.len() as u64;
        self.places.push(Some(Endpoint::new(host, first + 1, peer_host)));
        self.places.push(Some(Endpoint::new(peer_host, first, host)));
        (first, first + 1)
    }

    /// The other end of a connection, also when this one is gone: the two have neighbouring numbers.
    pub(crate) fn peer_of(id: u64) -> u64 {
        id ^ 1
    }

    pub(crate) fn get(&self, id: u64) -> Option<&Endpoint> {
        self.places.get(id as usize)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: u64) -> Option<&mut Endpoint> {
        self.places.get_mut(id as usize)?.as_mut()
    }

    pub(crate) fn remove(&mut self, id: u64) -> Option<Endpoint> {
        self.places.get_mut(id as usize)?.take()
    }

    /// Those that are left, in order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Endpoint)> {
        (0..).zip(&self.places).filter_map(|(id, place)| Some((id, place.as_ref()?)))
    }
}

/// All endpoints and listeners of a world.
#[derive(Default)]
pub(crate) struct Network {
    pub(crate) endpoints: Endpoints,
    pub(crate) listeners: BTreeMap<u64, ListenerState>,
    next_port: BTreeMap<usize, u16>,
}

impl Network {
    /// A port of the host that nothing uses.
    pub(crate) fn ephemeral_port(&mut self, host: usize) -> u16 {
        let next = self.next_port.entry(host).or_insert(32_768);
        let port = *next;
        *next = next.checked_add(1).unwrap_or(32_768);
        port
    }

    /// Both ends of every connection between two hosts.
    pub(crate) fn connections_between(
        &self,
        one: usize,
        other: usize,
    ) -> impl Iterator<Item = (u64, u64)> + '_ {
        let found = self
            .endpoints
            .iter()
            .filter(move |(_, near)| near.host == one && near.peer_host == other && !near.reset);
        found.map(|(id, near)| (id, near.peer))
    }

    pub(crate) fn bind(
        &mut self,
        id: u64,
        host: usize,
        address: SocketAddr,
        options: &ListenOptions,
    ) -> io::Result<()> {
        let share = options.reuse_port && !options.probe_plain_bind;
        let taken = self.listeners.values().any(|other| {
            other.host == host && other.address.port() == address.port() && !(share && other.reuse_port)
        });
        if taken {
            return Err(ErrorKind::AddrInUse.into());
        }
        let state = ListenerState {
            host,
            address,
            reuse_port: options.reuse_port,
            backlog: usize::try_from(options.backlog).unwrap_or(0).max(1),
            queue: VecDeque::new(),
            accepts: VecDeque::new(),
        };
        self.listeners.insert(id, state);
        Ok(())
    }

    /// The listeners that a connection to the address may reach.
    pub(crate) fn listeners_at(&self, host: usize, address: SocketAddr) -> Vec<u64> {
        let matches = |bound: SocketAddr| {
            let any = match bound.ip() {
                IpAddr::V4(ip) => ip.is_unspecified(),
                IpAddr::V6(ip) => ip.is_unspecified(),
            };
            bound.port() == address.port() && (any || bound.ip() == address.ip())
        };
        let found = self.listeners.iter().filter(|(_, state)| state.host == host && matches(state.address));
        found.map(|(id, _)| *id).collect()
    }
}
