//! The cluster as its callers run it: what is due is done, effects are carried out, everything in one order.

use std::collections::BTreeMap;
use std::time::Duration;

use ringlog_protocol::ids::Offset;
use ringlog_raft::configuration::Configuration;
use ringlog_raft::effect::{Replicate, Request};
use ringlog_raft::ids::{ReplicaId, Token};
use ringlog_raft::message::{Body, Message, SnapshotOffer};
use ringlog_raft::{Effect, Event, Settings};

use super::faults::Faults;
use super::node::{Node, replica};
use super::oracle::Oracle;
use super::random::Random;
use super::records::{Record, Records, header_epochs};

pub const TICK_MS: u64 = 10;
pub const HEARTBEAT_MS: u64 = 30;
pub const ELECTION_MS: u64 = 150;
/// Bytes that a record counts for.
const RECORD_BYTES: u32 = 100;

/// What is on the network.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "most packets are the large one")]
pub enum Packet {
    Raft {
        message: Message,
        records: Vec<Record>,
    },
    /// One node to another, for all groups together.
    Ping {
        from: usize,
        life: u64,
    },
}

/// What is due at a time.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "most of what is due is a delivery")]
enum Due {
    Deliver { to: usize, packet: Packet },
    Tick { place: usize },
    Write { place: usize, life: u64 },
    Read { place: usize, life: u64, replicate: Replicate },
    Copy { place: usize, life: u64, from: ReplicaId, offer: SnapshotOffer },
    Start { place: usize },
    Crash { place: usize, life: u64 },
    Chaos,
}

pub struct World {
    pub now_ms: u64,
    pub random: Random,
    pub faults: Faults,
    pub nodes: Vec<Node>,
    pub oracle: Oracle,
    /// `cuts[from][to]`: nothing arrives.
    pub cuts: Vec<Vec<bool>>,
    pub steps: u64,
    /// A digest of everything that happened, in order.
    pub trace: u64,
    /// Tells every event and effect.
    pub loud: bool,
    due: BTreeMap<(u64, u64), Due>,
    scheduled: u64,
    pub values: u64,
    pub tokens: u64,
}

impl World {
    pub fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let faults = Faults::draw(&mut random);
        World::with(random, faults)
    }

    pub fn with(mut random: Random, faults: Faults) -> World {
        let count = faults.voters + faults.spares;
        let voters = (0..faults.voters).map(|place| replica(place, 0)).collect();
        let founders = Configuration { version: 1, position: Offset(0), voters, learners: Vec::new() };
        let rate = |random: &mut Random| 1000 - faults.drift + random.below(2 * faults.drift + 1);
        let nodes = (0..count).map(|place| Node::new(place, count, &founders, rate(&mut random))).collect();
        let mut world = World {
            now_ms: 0,
            random,
            faults,
            nodes,
            oracle: Oracle::default(),
            cuts: vec![vec![false; count]; count],
            steps: 0,
            trace: 0,
            loud: std::env::var_os("RAFT_LOUD").is_some(),
            due: BTreeMap::new(),
            scheduled: 0,
            values: 0,
            tokens: 0,
        };
        for place in 0..count {
            world.schedule(0, Due::Start { place });
            world.schedule(1, Due::Tick { place });
        }
        world.schedule(1, Due::Chaos);
        world
    }

    pub fn settings(&self, place: usize) -> Settings {
        Settings {
            election_timeout: Duration::from_millis(ELECTION_MS),
            heartbeat_interval: Duration::from_millis(HEARTBEAT_MS),
            priority: (place % 3) as u8,
            copies_min: self.faults.copies_min,
            message_bytes_max: 8 * RECORD_BYTES,
            in_flight_bytes_max: 24 * RECORD_BYTES,
            promote_learners: true,
            quiesce: self.faults.quiesce,
            write_stall_timeout: Duration::from_millis(4 * ELECTION_MS),
            lag_time_max: Duration::from_millis(4 * ELECTION_MS),
        }
    }

    fn schedule(&mut self, at_ms: u64, due: Due) {
        self.scheduled += 1;
        self.due.insert((at_ms, self.scheduled), due);
    }

    /// Does everything that is due up to `until_ms`.
    pub fn run_until(&mut self, until_ms: u64) {
        while let Some(entry) = self.due.first_entry() {
            if entry.key().0 > until_ms {
                break;
            }
            let ((at_ms, _), due) = entry.remove_entry();
            self.now_ms = at_ms;
            self.do_due(due);
        }
        self.now_ms = until_ms;
    }

    fn do_due(&mut self, due: Due) {
        match due {
            Due::Deliver { to, packet } => self.deliver(to, packet),
            Due::Tick { place } => self.tick(place),
            Due::Write { place, life } if self.nodes[place].life == life => self.write(place),
            Due::Read { place, life, replicate } if self.nodes[place].life == life => {
                self.read(place, replicate)
            }
            Due::Copy { place, life, from, offer } if self.nodes[place].life == life => {
                self.copy(place, from, offer);
            }
            Due::Start { place } => self.start(place),
            Due::Crash { place, life } if self.nodes[place].life == life => {
                self.crash(place);
                self.start_later(place, 20);
            }
            Due::Chaos => {
                self.chaos();
                self.schedule(self.now_ms + 20, Due::Chaos);
            }
            Due::Write { .. } | Due::Read { .. } | Due::Copy { .. } | Due::Crash { .. } => {}
        }
    }

    pub fn start(&mut self, place: usize) {
        if self.nodes[place].group.is_some() {
            return;
        }
        let (settings, now_ms, seed) = (self.settings(place), self.now_ms, self.random.next());
        let group = self.nodes[place].start(settings, now_ms, seed);
        self.nodes[place].group = Some(group);
        self.happen(place, Event::Start, None, &[]);
    }

    pub fn start_later(&mut self, place: usize, after_ms: u64) {
        self.schedule(self.now_ms + after_ms, Due::Start { place });
    }

    pub fn crash_later(&mut self, place: usize, after_ms: u64) {
        let life = self.nodes[place].life;
        self.schedule(self.now_ms + after_ms, Due::Crash { place, life });
    }

    fn tick(&mut self, place: usize) {
        let jitter = self.random.below(3);
        self.schedule(self.now_ms + TICK_MS + jitter, Due::Tick { place });
        if self.now_ms < self.nodes[place].paused_until_ms || self.nodes[place].group.is_none() {
            return;
        }
        if self.now_ms % HEARTBEAT_MS < TICK_MS + jitter {
            self.ping(place);
        }
        if self.faults.quiesce && self.nodes[place].may_skip_tick(self.now_ms, ELECTION_MS) {
            self.oracle.reached.count("tick skipped");
            return;
        }
        let now = self.nodes[place].moment(self.now_ms);
        self.happen(place, Event::Tick { now }, None, &[]);
    }

    fn ping(&mut self, from: usize) {
        let life = self.nodes[from].life;
        for to in 0..self.nodes.len() {
            if to != from {
                self.post(from, to, Packet::Ping { from, life });
            }
        }
    }

    /// Puts a packet on the network: it may vanish, come twice, late or never.
    fn post(&mut self, from: usize, to: usize, packet: Packet) {
        let copies = 1 + u64::from(self.random.chance(self.faults.duplication));
        for _ in 0..copies {
            if self.random.chance(self.faults.loss) {
                continue;
            }
            let slow = if self.random.chance(self.faults.late) { 10 } else { 1 };
            let delay = slow * self.random.between(1, self.faults.delay_ms_max.max(1));
            if !self.cuts[from][to] {
                self.schedule(self.now_ms + delay, Due::Deliver { to, packet: packet.clone() });
            }
        }
    }

    fn deliver(&mut self, to: usize, packet: Packet) {
        let node = &mut self.nodes[to];
        if node.group.is_none() {
            return;
        }
        if self.now_ms < node.paused_until_ms {
            let at_ms = node.paused_until_ms;
            return self.schedule(at_ms, Due::Deliver { to, packet });
        }
        match packet {
            Packet::Ping { from, life } => node.hear(from, life, self.now_ms),
            Packet::Raft { message, records } => {
                let base = match &message.body {
                    Body::Append(append) => Some((append.base.0, records.as_slice())),
                    _ => None,
                };
                let event = Event::Message(message.clone());
                self.happen(to, event, base, &[]);
            }
        }
    }

    /// One event of one node, and everything that follows at once.
    pub fn happen(
        &mut self,
        place: usize,
        event: Event,
        message: Option<(i64, &[Record])>,
        proposed: &[Record],
    ) {
        self.steps += 1;
        if self.loud {
            eprintln!("{} ms {place}: {event:?}", self.now_ms);
        }
        let effects = self.nodes[place].step(event);
        for effect in effects {
            if self.loud {
                eprintln!("      {effect:?}");
            }
            self.note(place, &effect);
            self.carry_out(place, effect, message, proposed);
        }
        Oracle::agrees_with_its_log(&self.nodes[place]);
    }

    fn note(&mut self, place: usize, effect: &Effect) {
        let kind = match effect {
            Effect::SteppedDown { term, .. } => u64::from(term.0),
            Effect::Persist(persist) => persist.ticket.0 << 8,
            Effect::Send(message) => u64::from(message.term.0) << 16,
            Effect::Commit { high_watermark } => high_watermark.0 as u64,
            _ => 1,
        };
        self.trace = (self.trace ^ kind ^ (self.now_ms << 20) ^ place as u64).wrapping_mul(0x0100_0000_01b3);
    }

    fn carry_out(
        &mut self,
        place: usize,
        effect: Effect,
        message: Option<(i64, &[Record])>,
        proposed: &[Record],
    ) {
        match effect {
            Effect::Persist(persist) => {
                if persist.truncate_to.is_some() {
                    self.oracle.reached.count("log truncated");
                }
                self.nodes[place].accept(persist, message, proposed);
                self.schedule_write(place);
            }
            Effect::Send(message) => self.send(place, message, Vec::new()),
            Effect::Replicate(replicate) => {
                let after = self.random.between(0, 2);
                let life = self.nodes[place].life;
                self.schedule(self.now_ms + after, Due::Read { place, life, replicate });
            }
            Effect::FetchSnapshot { from, offer } => {
                let after = self.random.between(5, 60);
                let life = self.nodes[place].life;
                self.schedule(self.now_ms + after, Due::Copy { place, life, from, offer });
            }
            Effect::BecameLeader { term, .. } => self.oracle.became_leader(&self.nodes[place], term),
            Effect::Commit { high_watermark } => {
                let copies_min = self.faults.copies_min;
                self.oracle.committed_at(&mut self.nodes, place, high_watermark, copies_min);
            }
            Effect::SteppedDown { reason, .. } => self.oracle.reached.count(reason_name(reason)),
            Effect::Changed { .. } => self.oracle.reached.count("change settled"),
            Effect::Barrier { token, high_watermark } => self.oracle.barrier_passed(token, high_watermark),
            Effect::Refused { request: Request::ReadBarrier { token }, .. } => {
                self.oracle.barrier_refused(token);
            }
            Effect::Refused { .. } => self.oracle.reached.count("request refused"),
        }
    }

    fn send(&mut self, place: usize, message: Message, records: Vec<Record>) {
        self.oracle.sent(&self.nodes[place], &message);
        let to = message.to.node.0 as usize;
        self.post(place, to, Packet::Raft { message, records });
    }

    fn schedule_write(&mut self, place: usize) {
        let takes = self.random.between(0, self.faults.write_ms_max);
        let node = &mut self.nodes[place];
        let earliest = self.now_ms.max(node.writes_at_ms).max(node.stalled_until_ms);
        node.writes_at_ms = earliest + takes;
        let (at_ms, life) = (node.writes_at_ms, node.life);
        self.schedule(at_ms, Due::Write { place, life });
    }

    /// The disk completes the oldest write. Reports may be gathered: one speaks for all before it.
    fn write(&mut self, place: usize) {
        let node = &mut self.nodes[place];
        if node.group.as_ref().is_none_or(|group| group.persists_in_flight() == 0) {
            return; // It failed meanwhile.
        }
        let Some(unwritten) = node.unwritten.pop_front() else { return };
        node.disk.write(&unwritten);
        let ticket = unwritten.persist.ticket;
        let last = node.unwritten.is_empty();
        if unwritten.persist.hard_state.is_some() {
            Oracle::one_configuration_rules(&self.nodes);
        }
        if last || self.random.chance(700) {
            self.happen(place, Event::Persisted { ticket }, None, &[]);
        }
    }

    /// Answers `Replicate`: whole batches of what the log holds, or a failure.
    fn read(&mut self, place: usize, replicate: Replicate) {
        let Replicate { to, term, bytes_max, mut header } = replicate;
        let node = &self.nodes[place];
        let led = node.leads().is_some_and(|group| group.term() == term);
        let length = i64::from((bytes_max / RECORD_BYTES).max(1));
        let end = header.end.0.min(header.base.0 + length);
        let records = node.memory.slice(header.base.0, end).map(<[Record]>::to_vec);
        let fails = self.random.chance(self.faults.read_failure);
        let Some(mut records) = records.filter(|records| led && !fails && !records.is_empty()) else {
            return self.happen(place, Event::ReplicateFailed { to }, None, &[]);
        };
        let (epochs, fit) = header_epochs(header.base.0, &records);
        records.truncate(fit);
        header.end = Offset(header.base.0 + fit as i64);
        header.epochs = epochs;
        let (end, bytes) = (header.end, RECORD_BYTES * fit as u32);
        let message = Message { from: node.replica, to, term, body: Body::Append(header) };
        self.send(place, message, records);
        self.happen(place, Event::Replicated { to, end, bytes }, None, &[]);
    }

    /// Answers `FetchSnapshot`: the committed part of another node's log, or a failure.
    fn copy(&mut self, place: usize, from: ReplicaId, mut offer: SnapshotOffer) {
        let source = &self.nodes[from.node.0 as usize];
        let there = source.group.is_some() && source.replica == from;
        let start = source.memory.start().max(offer.log_start.0);
        let copied = source.memory.slice(start, offer.log_end.0).filter(|_| there);
        let fails = self.random.chance(self.faults.read_failure);
        let Some(records) = copied.filter(|_| !fails).map(|records| Records::of(start, records.to_vec()))
        else {
            self.oracle.reached.count("copy failed");
            return self.happen(place, Event::SnapshotFailed { from }, None, &[]);
        };
        offer.log_start = Offset(start);
        let epochs = records.epochs();
        let node = &mut self.nodes[place];
        assert!(
            node.unwritten.iter().all(|unwritten| unwritten.persist.append.is_none()),
            "a copy waits for writes"
        );
        node.memory = records.clone();
        node.disk.records = records;
        self.oracle.reached.count("copy installed");
        self.happen(place, Event::SnapshotInstalled { offer, epochs }, None, &[]);
    }

    /// Everything ends well once nothing goes wrong any more: one leader, a new record committed, all members equal.
    pub fn converges(&mut self) {
        self.faults.end();
        self.cuts.iter_mut().flatten().for_each(|cut| *cut = false);
        for place in 0..self.nodes.len() {
            self.nodes[place].paused_until_ms = 0;
            self.nodes[place].stalled_until_ms = 0;
            if self.nodes[place].write_failed {
                self.crash(place);
            }
            self.start(place);
        }
        let began_ms = self.now_ms;
        let mut committed_before = None;
        for _ in 0..400 {
            self.run_until(self.now_ms + 50);
            self.repair();
            let leader = (0..self.nodes.len()).find(|place| self.is_settled(*place));
            let Some(leader) = leader else { continue };
            let end = *committed_before.get_or_insert_with(|| self.oracle.committed_end());
            if self.oracle.committed_end() <= end + 2 {
                self.propose(leader, 1);
                continue;
            }
            if self.members_are_equal(leader) {
                self.oracle.reached.count("converged");
                return;
            }
        }
        panic!("no convergence in {} ms after the last fault: {}", self.now_ms - began_ms, self.describe());
    }

    fn is_settled(&self, place: usize) -> bool {
        let newest = self.nodes.iter().filter_map(|node| node.leads()).map(|group| group.term()).max();
        self.nodes[place].leads().is_some_and(|group| group.is_settled() && Some(group.term()) == newest)
    }

    fn members_are_equal(&self, leader: usize) -> bool {
        let Some(group) = self.nodes[leader].leads() else { return false };
        let configuration = group.configuration();
        let model = &self.nodes[leader].memory;
        group.high_watermark() == group.log_end()
            && configuration.voters.iter().chain(&configuration.learners).all(|member| {
                let node = &self.nodes[member.node.0 as usize];
                let Some(other) = &node.group else { return false };
                let start = node.memory.start().max(model.start());
                Oracle::epochs_agree(node);
                node.replica == *member
                    && other.high_watermark() == group.high_watermark()
                    && other.configuration() == configuration
                    && node.disk.records == node.memory
                    && node.memory.slice(start, node.memory.end()) == model.slice(start, model.end())
            })
    }

    pub fn describe(&self) -> String {
        let lines = self.nodes.iter().map(|node| match &node.group {
            None => format!("\n{}: down", node.place),
            Some(group) => format!(
                "\n{}: {:?} term {} log term {} {:?}..{:?} durable {:?} hw {:?} v{} {:?} {:?}",
                node.place,
                group.role(),
                group.term(),
                group.hard_state().log_term,
                group.log_start().0,
                group.log_end().0,
                group.durable_end().0,
                group.high_watermark().0,
                group.configuration().version,
                group
                    .configuration()
                    .voters
                    .iter()
                    .map(|voter| (voter.node.0, voter.directory.0[1]))
                    .collect::<Vec<_>>(),
                group.ignored(),
            ),
        });
        lines.collect()
    }

    pub fn propose(&mut self, place: usize, count: usize) {
        let Some(group) = self.nodes[place].leads() else { return };
        if group.is_handing_over() {
            return;
        }
        let (epoch, end) = (group.leader_epoch().0, group.log_end().0 + count as i64);
        let records: Vec<Record> = (0..count)
            .map(|_| {
                self.values += 1;
                Record { epoch, value: self.values }
            })
            .collect();
        self.happen(place, Event::Proposal { end: Offset(end) }, None, &records);
    }

    pub fn token(&mut self) -> Token {
        self.tokens += 1;
        Token(self.tokens)
    }
}

fn reason_name(reason: ringlog_raft::effect::StepDownReason) -> &'static str {
    use ringlog_raft::effect::StepDownReason::{HigherTerm, PersistFailed, QuorumLost, Removed, Transferred};
    match reason {
        HigherTerm { .. } => "stepped down: higher term",
        QuorumLost => "stepped down: quorum lost",
        PersistFailed => "stepped down: persist failed",
        Transferred { .. } => "stepped down: transferred",
        Removed => "stepped down: removed",
    }
}
