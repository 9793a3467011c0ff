//! A few groups under a script: every message and every write happens when the script says so. For scenarios that read as prose.

use std::time::Duration;

use ringlog_protocol::ids::{LeaderEpoch, NodeId, Offset};
use ringlog_raft::configuration::{Change, Configuration};
use ringlog_raft::effect::{Persist, Replicate};
use ringlog_raft::group::{Group, Replicated, Restored, Role};
use ringlog_raft::hard_state::HardState;
use ringlog_raft::ids::{DirectoryId, Moment, ReplicaId, Term, Token};
use ringlog_raft::message::{Append, AppendEpochs, Body, EpochStart, Message};
use ringlog_raft::{Effect, Event, Settings};

pub const ELECTION_MS: u64 = 100;

pub fn replica(node: i32) -> ReplicaId {
    ReplicaId { node: NodeId(node), directory: DirectoryId([node as u8; 16]) }
}

pub fn configuration(voters: &[i32]) -> Configuration {
    let voters = voters.iter().map(|node| replica(*node)).collect();
    Configuration { version: 1, position: Offset(0), voters, learners: Vec::new() }
}

/// One replica: its group, what its disk holds, and the records that its log stands for (an epoch each).
pub struct Actor {
    pub node: i32,
    pub group: Group,
    pub disk: HardState,
    pub disk_log: Vec<i32>,
    pub log: Vec<i32>,
    pub unwritten: Vec<(Persist, Vec<i32>)>,
    pub writes_held: bool,
    /// Everything that it was told to do, but messages and writes.
    pub told: Vec<Effect>,
}

/// Nodes 1 to n; node n is `actors[n - 1]`.
pub struct Stage {
    pub actors: Vec<Actor>,
    pub settings: Settings,
    pub now_ms: u64,
    pub network: Vec<(Message, Vec<i32>)>,
    /// Links that lose everything, as (from, to).
    pub cuts: Vec<(i32, i32)>,
    /// Everything that was ever sent.
    pub sent: Vec<Message>,
}

impl Stage {
    /// A group of these voters on `nodes` nodes, none of them elected.
    pub fn of(voters: &[i32], nodes: i32) -> Stage {
        let settings = Settings {
            election_timeout: Duration::from_millis(ELECTION_MS),
            heartbeat_interval: Duration::from_millis(20),
            ..Settings::default()
        };
        let mut stage = Stage {
            actors: Vec::new(),
            settings,
            now_ms: 0,
            network: Vec::new(),
            cuts: Vec::new(),
            sent: Vec::new(),
        };
        for node in 1..=nodes {
            let founder = voters.contains(&node);
            let known = Configuration { version: u64::from(founder), ..configuration(voters) };
            let disk = HardState::joining(replica(node), known);
            stage.actors.push(Actor::new(node, disk, Vec::new(), settings));
        }
        (1..=nodes).for_each(|node| stage.happens(node, Event::Start));
        stage.waits(1);
        stage
    }

    /// Voters 1 to n as their disks say: (log term, configuration version, epochs of the records). All of them are in `term`.
    pub fn of_disks(term: u32, disks: &[(u32, u64, &[i32])]) -> Stage {
        let voters: Vec<i32> = (1..=disks.len() as i32).collect();
        let mut stage = Stage::of(&voters, disks.len() as i32);
        for (place, (log_term, version, log)) in disks.iter().enumerate() {
            let node = place as i32 + 1;
            let state = HardState::joining(
                replica(node),
                Configuration { version: *version, ..configuration(&voters) },
            );
            let disk = HardState { term: Term(term), log_term: Term(*log_term), ..state };
            stage.actors[place] = Actor::new(node, disk, log.to_vec(), stage.settings);
            stage.happens(node, Event::Start);
            stage.ticks(node);
        }
        stage
    }

    /// This node's configuration was made where the log ended at `position`; it starts again with it.
    pub fn made_at(&mut self, node: i32, position: i64) {
        let actor = self.actor_mut(node);
        std::sync::Arc::make_mut(&mut actor.disk.configuration).position = Offset(position);
        self.crashes(node);
    }

    pub fn configures(&mut self, settings: Settings) {
        self.settings = settings;
        self.actors.iter_mut().for_each(|actor| actor.group.configure(settings.into()));
    }

    /// Three voters, of which node 1 leads and everybody knows everything.
    pub fn led_by_one() -> Stage {
        let mut stage = Stage::of(&[1, 2, 3], 3);
        stage.campaigns(1);
        stage.settles();
        assert_eq!(stage.leader(), Some(1));
        stage
    }

    pub fn actor(&self, node: i32) -> &Actor {
        &self.actors[node as usize - 1]
    }

    pub fn actor_mut(&mut self, node: i32) -> &mut Actor {
        &mut self.actors[node as usize - 1]
    }

    pub fn group(&self, node: i32) -> &Group {
        &self.actor(node).group
    }

    /// The newest leader.
    pub fn leader(&self) -> Option<i32> {
        let leaders = self.actors.iter().filter(|actor| actor.group.is_leader());
        leaders.max_by_key(|actor| actor.group.term()).map(|actor| actor.node)
    }

    /// One event and what follows from it, messages excepted: they wait on the network.
    pub fn happens(&mut self, node: i32, event: Event) {
        self.happens_with(node, event, &[]);
    }

    fn happens_with(&mut self, node: i32, event: Event, records: &[i32]) {
        let base = match &event {
            Event::Message(Message { body: Body::Append(append), .. }) => append.base.0,
            _ => self.actor(node).log.len() as i64,
        };
        let mut effects = Vec::new();
        self.actor_mut(node).group.step(event, &mut effects);
        for effect in effects {
            match effect {
                Effect::Persist(persist) => {
                    let actor = self.actor_mut(node);
                    actor.accept(persist, base, records);
                    if !actor.writes_held {
                        self.writes(node);
                    }
                }
                Effect::Send(message) => {
                    self.sent.push(message.clone());
                    self.network.push((message, Vec::new()));
                }
                Effect::Replicate(replicate) => self.replicates(node, replicate),
                other => self.actor_mut(node).told.push(other),
            }
        }
    }

    fn replicates(&mut self, node: i32, replicate: Replicate) {
        let Replicate { to, term, mut header, .. } = replicate;
        let (base, end) = (header.base.0 as usize, (header.end.0 as usize).min(header.base.0 as usize + 8));
        let records = self.actor(node).log[base..end].to_vec();
        header.end = Offset(end as i64);
        header.epochs = epochs_of(base, &records);
        let message = Message { from: replica(node), to, term, body: Body::Append(header) };
        self.sent.push(message.clone());
        self.network.push((message, records));
        self.happens(node, Event::Replicated { to, end: Offset(end as i64), bytes: 100 });
    }

    /// The disk completes everything handed to it.
    pub fn writes(&mut self, node: i32) {
        while let Some(ticket) = self.actor_mut(node).write_one() {
            self.happens(node, Event::Persisted { ticket });
        }
    }

    pub fn holds_writes(&mut self, node: i32) {
        self.actor_mut(node).writes_held = true;
    }

    pub fn releases_writes(&mut self, node: i32) {
        self.actor_mut(node).writes_held = false;
        self.writes(node);
    }

    /// Delivers what is on the network, and what follows, until nothing is.
    pub fn settles(&mut self) {
        while !self.network.is_empty() {
            let (message, records) = self.network.remove(0);
            self.delivers(message, &records);
        }
    }

    pub fn delivers(&mut self, message: Message, records: &[i32]) {
        let (from, to) = (message.from.node.0, message.to.node.0);
        if !self.cuts.contains(&(from, to)) && to as usize <= self.actors.len() {
            self.happens_with(to, Event::Message(message), records);
        }
    }

    /// Time passes for everybody, in steps of 10 ms; messages arrive at once.
    pub fn waits(&mut self, ms: u64) {
        for _ in 0..ms.div_ceil(10) {
            self.now_ms += 10;
            for node in 1..=self.actors.len() as i32 {
                self.ticks(node);
            }
            self.settles();
        }
    }

    pub fn ticks(&mut self, node: i32) {
        let now = Moment(self.now_ms * 1_000_000);
        self.happens(node, Event::Tick { now });
    }

    /// Only this node's patience ends; nothing is delivered.
    pub fn loses_patience(&mut self, node: i32) {
        self.now_ms += 10;
        (1..=self.actors.len() as i32).for_each(|every| self.ticks(every));
        for _ in 0..30 {
            self.now_ms += 10;
            self.ticks(node);
            if !self.network.is_empty() {
                // The others stood still meanwhile; a gap as long as this is excused by everybody.
                for step_ms in [2 * ELECTION_MS, 10] {
                    self.now_ms += step_ms;
                    (1..=self.actors.len() as i32).for_each(|every| self.ticks(every));
                }
                return;
            }
        }
        panic!("node {node} never lost its patience");
    }

    /// This node asks for votes until it wins.
    pub fn campaigns(&mut self, node: i32) {
        self.loses_patience(node);
        self.settles();
        assert!(self.group(node).is_leader(), "node {node} did not win");
    }

    pub fn proposes(&mut self, node: i32, records: usize) {
        let epoch = self.group(node).leader_epoch().0;
        let end = self.group(node).log_end().0 + records as i64;
        self.happens_with(node, Event::Proposal { end: Offset(end) }, &vec![epoch; records]);
    }

    pub fn cuts_off(&mut self, node: i32) {
        for other in 1..=self.actors.len() as i32 {
            self.cuts.extend([(node, other), (other, node)]);
        }
    }

    pub fn heals(&mut self) {
        self.cuts.clear();
    }

    /// Only what is on disk survives; it starts again at once.
    pub fn crashes(&mut self, node: i32) {
        let settings = self.settings;
        let actor = self.actor(node);
        let (disk, log) = (actor.disk.clone(), actor.disk_log.clone());
        self.actors[node as usize - 1] = Actor::new(node, disk, log, settings);
        self.happens(node, Event::Start);
        self.ticks(node);
    }

    pub fn changes(&mut self, node: i32, change: Change, token: u64) {
        self.happens(node, Event::ChangeConfiguration { change, token: Token(token) });
    }

    pub fn says(&self, from: i32, to: i32, term: u32, body: Body) -> Message {
        Message { from: replica(from), to: replica(to), term: Term(term), body }
    }

    pub fn high_watermark(&self, node: i32) -> i64 {
        self.group(node).high_watermark().0
    }
}

impl Actor {
    fn new(node: i32, disk: HardState, log: Vec<i32>, settings: Settings) -> Actor {
        let restored = Restored {
            me: replica(node),
            hard_state: disk.clone(),
            log_start: Offset(0),
            log_end: Offset(log.len() as i64),
        };
        let replicated =
            Replicated { epochs: epochs_list(0, &log), settings: settings.into(), seed: node as u64 };
        let group = Group::restore_replicated(restored, replicated).expect("a sound disk");
        let (disk_log, unwritten, told) = (log.clone(), Vec::new(), Vec::new());
        Actor { node, group, disk, disk_log, log, unwritten, writes_held: false, told }
    }

    fn accept(&mut self, persist: Persist, base: i64, records: &[i32]) {
        if let Some(to) = persist.truncate_to {
            self.log.truncate(to.0 as usize);
        }
        let mut written = Vec::new();
        if let Some(append) = persist.append {
            written = records[(append.base.0 - base) as usize..(append.end.0 - base) as usize].to_vec();
            self.log.extend(&written);
        }
        self.unwritten.push((persist, written));
    }

    fn write_one(&mut self) -> Option<ringlog_raft::ids::Ticket> {
        if self.unwritten.is_empty() {
            return None;
        }
        let (persist, records) = self.unwritten.remove(0);
        if let Some(to) = persist.truncate_to {
            self.disk_log.truncate(to.0 as usize);
        }
        self.disk_log.extend(records);
        if let Some(state) = persist.hard_state {
            self.disk = state;
        }
        Some(persist.ticket)
    }

    pub fn leader(&self) -> Option<i32> {
        self.group.leader().map(|leader| leader.node.0)
    }

    pub fn is_candidate(&self) -> bool {
        self.group.role() == Role::Candidate
    }
}

fn epochs_list(base: usize, records: &[i32]) -> Vec<EpochStart> {
    let mut epochs: Vec<EpochStart> = Vec::new();
    for (place, epoch) in records.iter().enumerate() {
        if epochs.last().is_none_or(|last| last.epoch.0 != *epoch) {
            epochs.push(EpochStart { epoch: LeaderEpoch(*epoch), start: Offset((base + place) as i64) });
        }
    }
    epochs
}

pub fn epochs_of(base: usize, records: &[i32]) -> AppendEpochs {
    let mut epochs = AppendEpochs::default();
    epochs_list(base, records)
        .into_iter()
        .for_each(|start| assert!(epochs.push(start), "few epochs in a script"));
    epochs
}

/// An append of `records` from `base` on, by a leader elected where its log ended at `election_end`.
pub fn append(
    election_end: i64,
    previous: Option<i32>,
    base: i64,
    records: &[i32],
    voters: &[i32],
) -> Append {
    Append {
        election_end: Offset(election_end),
        previous_epoch: previous.map(LeaderEpoch),
        base: Offset(base),
        end: Offset(base + records.len() as i64),
        epochs: epochs_of(base as usize, records),
        configurations: vec![std::sync::Arc::new(configuration(voters))],
        high_watermark: Offset(0),
        log_start: Offset(0),
        round: ringlog_raft::ids::Round(1),
    }
}
