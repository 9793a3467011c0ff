//! What a simulated world knows: its clock, its one heap of events, hosts, executors and the network. Everything that
//! happens is an event; every random choice comes from the one generator.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;

use super::agenda::Agenda;
use super::disk::{Disk, UnsyncedData};
use super::handles::{Ledger, LedgerEntry, SimulatedSocket};
use super::host_disk::Syncs;
use super::links::Links;
use super::network::{Endpoint, Endpoints, Finished, Network, Packet, Receive};
use super::trace::Trace;
use crate::operation::{Completion, Operation, Returned, Token};
use crate::random::Random;
use crate::socket::{ListenerKind, SocketHandle, SocketInner, SocketKind};

/// Who waits for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Caller {
    pub(crate) executor: usize,
    pub(crate) token: Token,
}

impl Caller {
    /// For the fingerprint, with room for the kind of event.
    fn word(self) -> u64 {
        (self.executor as u64) << 8 | (self.token.0 as u64) << 24
    }
}

/// What will happen at some time.
pub(crate) enum Event {
    /// An executor runs one turn.
    Turn { executor: usize },
    /// A file operation or a job takes effect.
    Perform { caller: Caller, operation: Operation },
    /// A connection request reaches its target.
    Connect { caller: Caller, address: SocketAddr },
    /// A packet reaches an endpoint.
    Arrive { socket: u64, packet: Packet },
}

pub(crate) struct HostState {
    pub(crate) name: String,
    pub(crate) address: IpAddr,
    pub(crate) disk: Disk,
    /// The host's wall clock minus the world's, in milliseconds.
    pub(crate) wall_offset_ms: i64,
    /// Until then the disk does nothing.
    pub(crate) stalled_until: u64,
    /// One of so many operations of the disk takes so many nanoseconds longer; 0 = none.
    pub(crate) slow: (u64, u64),
    /// Operations that changed what the disk holds.
    pub(crate) disk_changes: u64,
    /// Operations that made something last.
    pub(crate) disk_syncs: Syncs,
}

pub(crate) struct ExecutorState {
    pub(crate) host: usize,
    pub(crate) alive: bool,
    /// Completions with the times at which they reach the executor, in their order.
    mailbox: VecDeque<(u64, Completion)>,
    /// When its next turn is due.
    pub(super) turn_at: Option<u64>,
    /// Times of its turns on the agenda, latest first. One that is not due any more is passed over, or put off.
    turns_planned: Vec<u64>,
    /// By token: where an operation waits for somebody else.
    waits: Vec<Option<WaitsAt>>,
    pub(crate) random: Random,
    pub(crate) submitted: u64,
    pub(crate) completed: u64,
}

/// Where an operation waits for somebody else.
#[derive(Clone, Copy)]
enum WaitsAt {
    Socket(u64),
    Listener(u64),
}

impl ExecutorState {
    pub(super) fn new(host: usize, random: Random) -> Self {
        Self {
            host,
            alive: true,
            mailbox: VecDeque::new(),
            turn_at: None,
            turns_planned: Vec::new(),
            waits: Vec::new(),
            random,
            submitted: 0,
            completed: 0,
        }
    }

    fn wait_at(&mut self, token: Token, place: WaitsAt) {
        if token.0 >= self.waits.len() {
            self.waits.resize(token.0 + 1, None);
        }
        self.waits[token.0] = Some(place);
    }

    fn wait_over(&mut self, token: Token) -> Option<WaitsAt> {
        self.waits.get_mut(token.0)?.take()
    }
}

/// See the module.
pub(crate) struct WorldState {
    /// Nanoseconds since the world began.
    pub(crate) now: u64,
    pub(crate) random: Random,
    pub(crate) trace: Trace,
    pub(crate) event_count: u64,
    pub(super) events: Agenda<Event>,
    pub(crate) hosts: Vec<HostState>,
    pub(crate) executors: Vec<ExecutorState>,
    pub(crate) network: Network,
    pub(crate) links: Links,
    pub(crate) ledger: Arc<Ledger>,
    /// Kept between uses, so that their memory is.
    ledger_read: Vec<LedgerEntry>,
    finished: Vec<Finished>,
    travelling: Vec<Bytes>,
    next_id: u64,
}

/// A bad day of the simulated machine, in nanoseconds: an operation takes at least the first and less than the second.
#[derive(Clone, Copy)]
pub(crate) struct Latency(pub(crate) u64, pub(crate) u64);

pub(crate) const TURN: Latency = Latency(200, 2_000);
pub(crate) const WAKE: Latency = Latency(1_000, 30_000);
const DELIVER: Latency = Latency(500, 20_000);
const NETWORK: Latency = Latency(20_000, 300_000);
const LOOPBACK: Latency = Latency(5_000, 50_000);
const READ: Latency = Latency(1_000, 200_000);
const WRITE: Latency = Latency(5_000, 100_000);
const SYNC: Latency = Latency(50_000, 3_000_000);
const COMPUTE: Latency = Latency(5_000, 200_000);

impl WorldState {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            now: 1_000_000_000,
            random: Random::from_seed(seed),
            trace: Trace::new(),
            event_count: 0,
            events: Agenda::new(),
            hosts: Vec::new(),
            executors: Vec::new(),
            network: Network::default(),
            links: Links::default(),
            ledger: Arc::default(),
            ledger_read: Vec::new(),
            finished: Vec::new(),
            travelling: Vec::new(),
            next_id: 1,
        }
    }

    pub(crate) fn next_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        id
    }

    pub(crate) fn draw(&mut self, latency: Latency) -> u64 {
        latency.0 + self.random.below(latency.1 - latency.0)
    }

    pub(crate) fn schedule(&mut self, time: u64, event: Event) {
        assert!(time >= self.now, "an event cannot happen in the past");
        self.events.plan(time, event);
    }

    /// Plans a turn of the executor, unless one is due by then.
    pub(crate) fn request_turn(&mut self, executor: usize, time: u64) {
        let Some(state) = self.executors.get_mut(executor).filter(|state| state.alive) else { return };
        if state.turn_at.is_none_or(|due| due > time) {
            state.turn_at = Some(time);
            self.plan_turn(executor, time);
        }
    }

    /// Sees to it that something happens then or earlier.
    fn plan_turn(&mut self, executor: usize, time: u64) {
        let planned = &mut self.executors[executor].turns_planned;
        if planned.last().is_none_or(|earliest| *earliest > time) {
            planned.push(time);
            self.schedule(time, Event::Turn { executor });
        }
    }

    /// A turn on the agenda has come. Whether it is due, or was put off since.
    pub(super) fn is_turn_due(&mut self, executor: usize) -> bool {
        let state = &mut self.executors[executor];
        state.turns_planned.pop();
        match state.turn_at {
            Some(due) if due <= self.now => {
                state.turn_at = None;
                true
            }
            Some(due) => {
                self.plan_turn(executor, due);
                false
            }
            None => false,
        }
    }

    fn host_of(&self, executor: usize) -> usize {
        self.executors[executor].host
    }

    fn is_alive(&self, caller: Caller) -> bool {
        self.executors[caller.executor].alive
    }

    pub(crate) fn deliver(&mut self, caller: Caller, result: io::Result<u64>, returned: Returned) {
        let time = self.now + self.draw(DELIVER);
        let executor = &mut self.executors[caller.executor];
        if !executor.alive {
            return;
        }
        let completion = Completion { token: caller.token, result, returned };
        let after = executor.mailbox.iter().rev().take_while(|(later, _)| *later > time).count();
        executor.mailbox.insert(executor.mailbox.len() - after, (time, completion));
        self.request_turn(caller.executor, time);
    }

    /// Hands over the completions that have reached an executor by now.
    pub(crate) fn take_mail(&mut self, executor: usize, completions: &mut Vec<Completion>) {
        while self.has_mail(executor) {
            let Some((time, completion)) = self.executors[executor].mailbox.pop_front() else { break };
            self.executors[executor].completed += 1;
            self.record_completion(time, executor, &completion);
            completions.push(completion);
        }
    }

    pub(crate) fn has_mail(&self, executor: usize) -> bool {
        self.next_mail(executor).is_some_and(|time| time <= self.now)
    }

    /// When the next completion reaches an executor.
    pub(crate) fn next_mail(&self, executor: usize) -> Option<u64> {
        self.executors[executor].mailbox.front().map(|(time, _)| *time)
    }

    /// What reaches nobody any more, to be dropped where nothing is borrowed.
    pub(crate) fn end_executor(&mut self, executor: usize) -> VecDeque<(u64, Completion)> {
        let executor = &mut self.executors[executor];
        executor.alive = false;
        std::mem::take(&mut executor.mailbox)
    }

    fn deliver_all(&mut self, mut finished: Vec<Finished>) {
        for (caller, result, returned) in finished.drain(..) {
            self.executors[caller.executor].wait_over(caller.token);
            self.deliver(caller, result, returned);
        }
        self.finished = finished;
    }

    /// Takes an operation of an executor.
    pub(crate) fn submit(&mut self, caller: Caller, operation: Operation) {
        self.executors[caller.executor].submitted += 1;
        match operation {
            Operation::Accept { listener } => {
                let ListenerKind::Simulated(handle) = &listener.kind else {
                    unreachable!("a kernel listener in a world")
                };
                let id = handle.id;
                match self.network.listeners.get_mut(&id) {
                    Some(state) => {
                        state.accept(caller, listener);
                        self.executors[caller.executor].wait_at(caller.token, WaitsAt::Listener(id));
                        self.pump_listener(id);
                    }
                    None => self.deliver(caller, Err(ErrorKind::InvalidInput.into()), Returned::None),
                }
            }
            Operation::Connect { address } => {
                let (from, to) = (self.host_of(caller.executor), self.host_at(address));
                let time = self.now + self.network_latency(from, to);
                self.travel(from, to.unwrap_or(from), time, 0, Event::Connect { caller, address });
            }
            Operation::ReceiveSome { socket } => self.receive(caller, socket, Receive::Some),
            Operation::ReceiveInto { socket, buffer, max_bytes } => {
                self.receive(caller, socket, Receive::Into { buffer, max_bytes });
            }
            Operation::Send { socket, pieces } => {
                let id = socket_id(&socket);
                match self.network.endpoints.get_mut(id) {
                    Some(endpoint) => {
                        endpoint.send(caller, socket, pieces);
                        self.pump(id);
                    }
                    None => self.deliver(caller, Err(ErrorKind::NotConnected.into()), Returned::None),
                }
            }
            Operation::WaitWritable { socket } => {
                let id = socket_id(&socket);
                match self.network.endpoints.get_mut(id) {
                    Some(endpoint) => {
                        endpoint.wait_writable(caller, socket);
                        self.executors[caller.executor].wait_at(caller.token, WaitsAt::Socket(id));
                        self.pump(id);
                    }
                    None => self.deliver(caller, Ok(0), Returned::None),
                }
            }
            Operation::WaitHangUp { socket } => {
                let id = socket_id(&socket);
                match self.network.endpoints.get_mut(id) {
                    Some(endpoint) => {
                        endpoint.wait_hang_up(caller, socket);
                        self.executors[caller.executor].wait_at(caller.token, WaitsAt::Socket(id));
                        let mut finished = std::mem::take(&mut self.finished);
                        endpoint.pump_hang_ups(&mut finished);
                        self.deliver_all(finished);
                    }
                    None => self.deliver(caller, Ok(1), Returned::None),
                }
            }
            operation => {
                let latency = latency_of(&operation);
                let time = self.begin_of(caller, &operation) + self.draw(latency);
                self.schedule(time, Event::Perform { caller, operation });
            }
        }
    }

    /// When an operation begins: now, unless the disk stands still.
    fn begin_of(&mut self, caller: Caller, operation: &Operation) -> u64 {
        let host = &self.hosts[self.host_of(caller.executor)];
        let (stalled_until, (one_of, slow)) = (host.stalled_until, host.slow);
        if (stalled_until <= self.now && one_of == 0) || matches!(operation, Operation::Compute { .. }) {
            return self.now;
        }
        let mut begin = self.now.max(stalled_until);
        if one_of > 0 && self.random.below(one_of) == 0 {
            begin = begin.saturating_add(slow);
        }
        if begin > self.now {
            crate::reached::note("sim_disk.stalled");
        }
        begin
    }

    /// The power of a host goes: what its disk then holds.
    pub(crate) fn cut_power(&mut self, host: usize, unsynced: UnsyncedData) {
        if matches!(unsynced, UnsyncedData::RandomSubset { .. }) {
            self.begin_writes(host);
        }
        self.hosts[host].disk.crash(unsynced, &mut self.random);
    }

    /// Most writes on their way to the disk have begun, with which sectors nobody knows.
    fn begin_writes(&mut self, host: usize) {
        let mut begun = Vec::new();
        for event in self.events.planned() {
            if let Event::Perform { caller, operation } = event
                && self.host_of(caller.executor) == host
                && self.is_alive(*caller)
            {
                begun.extend(super::perform::written(operation));
            }
        }
        for (file, position, bytes) in begun {
            if self.random.below(4) > 0 {
                // One that fails has not begun.
                let _ = self.hosts[host].disk.write(file, position, &bytes, false);
            }
        }
    }

    fn receive(&mut self, caller: Caller, socket: SocketHandle, receive: Receive) {
        let id = socket_id(&socket);
        match self.network.endpoints.get_mut(id) {
            Some(endpoint) => {
                endpoint.receive(caller, socket, receive);
                self.executors[caller.executor].wait_at(caller.token, WaitsAt::Socket(id));
                self.pump(id);
            }
            None => self.deliver(caller, Err(ErrorKind::NotConnected.into()), receive.give_back()),
        }
    }

    pub(crate) fn cancel(&mut self, caller: Caller) {
        let returned = match self.executors[caller.executor].wait_over(caller.token) {
            Some(WaitsAt::Socket(id)) => {
                self.network.endpoints.get_mut(id).and_then(|endpoint| endpoint.cancel(caller))
            }
            Some(WaitsAt::Listener(id)) => {
                self.network.listeners.get_mut(&id).and_then(|state| state.cancel(caller))
            }
            None => None,
        };
        if let Some(returned) = returned {
            self.deliver(caller, Err(io::Error::from_raw_os_error(libc::ECANCELED)), returned);
        }
    }

    /// Lets an endpoint do what it can: feed receives, move sends into the window, tell the peer.
    pub(crate) fn pump(&mut self, id: u64) {
        let limit = if self.random.below(8) == 0 { 1 + self.random.below(64) as usize } else { usize::MAX };
        let Some(endpoint) = self.network.endpoints.get_mut(id) else { return };
        let (mut finished, mut travelling) =
            (std::mem::take(&mut self.finished), std::mem::take(&mut self.travelling));
        let taken = endpoint.pump_receives(limit, &mut finished);
        let finish = endpoint.pump_sends(&mut travelling, &mut finished);
        endpoint.pump_hang_ups(&mut finished);
        let peer = endpoint.peer;
        self.deliver_all(finished);
        for bytes in travelling.drain(..) {
            self.transmit_bytes(id, bytes);
        }
        self.travelling = travelling;
        if finish {
            self.transmit(id, Packet::Fin);
        }
        if taken > 0
            && let Some(sender) = self.network.endpoints.get_mut(peer)
        {
            sender.give_room(taken);
            self.pump(peer);
        }
    }

    fn pump_listener(&mut self, id: u64) {
        let mut finished = std::mem::take(&mut self.finished);
        if let Some(state) = self.network.listeners.get_mut(&id) {
            state.pump(&mut finished);
        }
        self.deliver_all(finished);
    }

    /// Sends bytes that the window has taken, cut where the seed says.
    pub(crate) fn transmit_bytes(&mut self, id: u64, mut bytes: Bytes) {
        let cut = self.network.endpoints.get_mut(id).and_then(|endpoint| endpoint.cut(bytes.len()));
        bytes.truncate(cut.unwrap_or(usize::MAX));
        while !bytes.is_empty() {
            let bound = if self.random.below(16) == 0 { 16 } else { 64 * 1024 };
            let count = (1 + self.random.below(bound) as usize).min(bytes.len());
            let part = bytes.split_to(count);
            self.transmit(id, Packet::Bytes(part));
        }
        if cut.is_some() {
            crate::reached!("sim.connection_broken");
            self.transmit(id, Packet::Reset);
            let time = self.now + self.draw(LOOPBACK);
            self.schedule(time, Event::Arrive { socket: id, packet: Packet::Reset });
        }
    }

    /// Sends a packet to the peer of an endpoint, behind those sent before.
    fn transmit(&mut self, id: u64, packet: Packet) {
        let Some(endpoint) = self.network.endpoints.get(id) else { return };
        let Endpoint { host, peer, peer_host, last_arrival: last, .. } = *endpoint;
        let time = (self.now + self.network_latency(host, Some(peer_host))).max(last);
        let bytes = if let Packet::Bytes(bytes) = &packet { bytes.len() } else { 0 };
        let time = self.travel(host, peer_host, time, bytes, Event::Arrive { socket: peer, packet });
        if let Some(endpoint) = self.network.endpoints.get_mut(id) {
            endpoint.last_arrival = time;
        }
    }

    pub(crate) fn network_latency(&mut self, from: usize, to: Option<usize>) -> u64 {
        let latency = if to == Some(from) { LOOPBACK } else { NETWORK };
        self.draw(latency)
    }

    fn host_at(&self, address: SocketAddr) -> Option<usize> {
        self.hosts.iter().position(|host| host.address == address.ip())
    }

    /// Lets an event happen. Turns are run by the world, which owns the executors.
    pub(crate) fn dispatch(&mut self, event: Event) {
        match event {
            Event::Turn { .. } => unreachable!("the world runs turns"),
            Event::Perform { caller, operation } => {
                if self.is_alive(caller) {
                    let (result, returned) = self.perform(self.host_of(caller.executor), operation);
                    self.deliver(caller, result, returned);
                }
            }
            Event::Connect { caller, address } => {
                if self.is_alive(caller) {
                    self.connect(caller, address);
                }
            }
            Event::Arrive { socket, packet } => self.arrive(socket, packet),
        }
    }

    fn connect(&mut self, caller: Caller, address: SocketAddr) {
        let client_host = self.host_of(caller.executor);
        let reachable =
            self.host_at(address).map(|host| self.network.listeners_at(host, address)).unwrap_or_default();
        if reachable.is_empty() {
            return self.deliver(caller, Err(ErrorKind::ConnectionRefused.into()), Returned::None);
        }
        let choice = self.random.below(reachable.len() as u64) as usize;
        let listener_id = reachable[choice];
        let port = self.network.ephemeral_port(client_host);
        let client_address = SocketAddr::new(self.hosts[client_host].address, port);
        let Some(listener) = self.network.listeners.get_mut(&listener_id).filter(|state| state.has_room())
        else {
            return self.deliver(caller, Err(ErrorKind::ConnectionRefused.into()), Returned::None);
        };
        let server_host = listener.host;
        let handle = |id, local, peer, ledger: &Arc<Ledger>| {
            SocketInner::simulated(SimulatedSocket { id, local, peer, ledger: Arc::clone(ledger) })
        };
        let (client_id, server_id) = self.network.endpoints.connect(client_host, server_host);
        let server = handle(server_id, address, client_address, &self.ledger);
        let client = handle(client_id, client_address, address, &self.ledger);
        listener.arrive(server, client_address);
        self.pump_listener(listener_id);
        self.deliver(caller, Ok(0), Returned::Socket(client, address));
    }

    fn arrive(&mut self, socket: u64, packet: Packet) {
        match self.network.endpoints.get_mut(socket) {
            Some(endpoint) => {
                endpoint.arrive(packet);
                self.pump(socket);
            }
            None => {
                // Nobody is there: the sender hears of it, as TCP answers with a reset.
                let sender = Endpoints::peer_of(socket);
                if let (Packet::Bytes(_), Some(endpoint)) = (packet, self.network.endpoints.get(sender)) {
                    let (from, to) = (endpoint.peer_host, endpoint.host);
                    let time = self.now + self.draw(LOOPBACK);
                    let reset = Event::Arrive { socket: sender, packet: Packet::Reset };
                    self.travel(from, to, time, 0, reset);
                }
            }
        }
    }

    /// Acts on what happened to handles outside of operations.
    pub(crate) fn process_ledger(&mut self) {
        if !self.ledger.has_entries() {
            return;
        }
        let mut entries = std::mem::take(&mut self.ledger_read);
        self.ledger.take(&mut entries);
        for entry in entries.drain(..) {
            match entry {
                LedgerEntry::SocketClosed(id) => self.close(id),
                LedgerEntry::SocketShut(id, how) => self.shut(id, how),
                LedgerEntry::ListenerClosed(id) => drop(self.network.listeners.remove(&id)),
                LedgerEntry::FileClosed(id) => self.hosts.iter_mut().for_each(|host| host.disk.close(id)),
                LedgerEntry::Notified(executor) => {
                    let time = self.now + self.draw(WAKE);
                    self.request_turn(executor as usize, time);
                }
            }
        }
        self.ledger_read = entries;
    }

    fn shut(&mut self, id: u64, how: Shutdown) {
        if let Some(endpoint) = self.network.endpoints.get_mut(id) {
            endpoint.shut(how);
            self.pump(id);
        }
    }

    fn close(&mut self, id: u64) {
        if let Some(packet) = self.network.endpoints.get(id).and_then(Endpoint::closing_packet) {
            self.transmit(id, packet);
        }
        self.network.endpoints.remove(id);
    }

    /// Everything of a host is gone but its disk.
    pub(crate) fn cut_off(&mut self, host: usize) {
        let endpoints: Vec<u64> = self
            .network
            .endpoints
            .iter()
            .filter(|(_, endpoint)| endpoint.host == host)
            .map(|(id, _)| id)
            .collect();
        for id in endpoints {
            self.transmit(id, Packet::Reset);
            self.network.endpoints.remove(id);
        }
        self.network.listeners.retain(|_, state| state.host != host);
    }

    /// The same for a completion that reaches its executor.
    fn record_completion(&mut self, time: u64, executor: usize, completion: &Completion) {
        self.event_count += 1;
        self.trace.word(time);
        self.trace.word(3 | Caller { executor, token: completion.token }.word());
        match &completion.result {
            Ok(value) => self.trace.word(*value),
            Err(error) => self.trace.word(u64::MAX - error.kind() as u64),
        }
        match &completion.returned {
            Returned::Bytes(bytes) => self.trace.bytes(bytes),
            Returned::Buffer(bytes) => self.trace.bytes(bytes),
            _ => {}
        }
    }

    /// Mixes an event that is about to happen into the fingerprint.
    pub(crate) fn record(&mut self, time: u64, event: &Event) {
        self.event_count += 1;
        self.trace.word(time);
        match event {
            Event::Turn { executor } => self.trace.word(1 | (*executor as u64) << 8),
            Event::Perform { caller: who, operation } => {
                self.trace.word(2 | who.word());
                super::perform::record(&mut self.trace, operation);
            }
            Event::Connect { caller: who, address } => {
                self.trace.word(4 | who.word());
                self.trace.word(u64::from(address.port()));
            }
            Event::Arrive { socket, packet } => {
                self.trace.word(5 | socket << 8);
                match packet {
                    Packet::Bytes(bytes) => self.trace.bytes(bytes),
                    Packet::Fin => self.trace.word(1),
                    Packet::Reset => self.trace.word(2),
                }
            }
        }
    }
}

pub(crate) fn socket_id(socket: &SocketHandle) -> u64 {
    match &socket.kind {
        SocketKind::Simulated(socket) => socket.id,
        SocketKind::Descriptor(_) => unreachable!("a kernel socket in a world"),
    }
}

fn latency_of(operation: &Operation) -> Latency {
    use crate::operation::FileOperation as File;
    match operation {
        Operation::Compute { .. } => COMPUTE,
        Operation::ReadAt { .. }
        | Operation::File(File::Read { .. } | File::Length { .. } | File::PathExists { .. }) => READ,
        Operation::File(
            File::SyncData { .. }
            | File::SyncAll { .. }
            | File::SyncDirectory { .. }
            | File::SyncFileSystem { .. },
        ) => SYNC,
        Operation::WriteDirect { sync, .. } if *sync == crate::WriteSync::Data => SYNC,
        _ => WRITE,
    }
}
