//! Groups whose disks and network are instant. Its own buffers are reused, so that only the groups can allocate.

use std::sync::Arc;

use ringlog_protocol::ids::{NodeId, Offset};
use ringlog_raft::configuration::Configuration;
use ringlog_raft::effect::Replicate;
use ringlog_raft::group::{Replicated, Restored};
use ringlog_raft::ids::{DirectoryId, Moment, ReplicaId};
use ringlog_raft::message::{AppendEpochs, Body, EpochStart, Message};
use ringlog_raft::{Effect, Event, Group, HardState, Settings};

fn replica(node: usize) -> ReplicaId {
    ReplicaId { node: NodeId(node as i32), directory: DirectoryId([node as u8; 16]) }
}

fn group(node: usize, settings: &Arc<Settings>) -> Group {
    let voters = (0..3).map(replica).collect();
    let configuration = Configuration { version: 1, position: Offset(0), voters, learners: Vec::new() };
    let hard_state = HardState::joining(replica(node), configuration);
    let restored = Restored { me: replica(node), hard_state, log_start: Offset(0), log_end: Offset(0) };
    let replicated = Replicated { epochs: Vec::new(), settings: settings.clone(), seed: node as u64 };
    Group::restore_replicated(restored, replicated).expect("a new group")
}

/// Three groups.
pub struct Cluster {
    pub groups: Vec<Group>,
    /// Events that groups took.
    pub steps: u64,
    effects: Vec<Effect>,
    network: Vec<Message>,
    now_ms: u64,
}

impl Cluster {
    pub fn new() -> Cluster {
        let settings = Arc::new(Settings { quiesce: true, ..Settings::default() });
        let groups = (0..3).map(|node| group(node, &settings)).collect();
        let mut cluster = Cluster {
            groups,
            steps: 0,
            effects: Vec::with_capacity(64),
            network: Vec::with_capacity(256),
            now_ms: 0,
        };
        (0..3).for_each(|node| cluster.happens(node, Event::Start));
        while !cluster.groups.iter().any(Group::is_settled) {
            cluster.ticks();
        }
        cluster
    }

    pub fn leader(&self) -> usize {
        self.groups.iter().position(Group::is_leader).expect("one leads")
    }

    pub fn ticks(&mut self) {
        self.now_ms += 50;
        for node in 0..3 {
            if !self.groups[node].is_quiescent() {
                self.happens(node, Event::Tick { now: Moment(self.now_ms * 1_000_000) });
            }
        }
    }

    pub fn proposes(&mut self) {
        let leader = self.leader();
        let end = Offset(self.groups[leader].log_end().0 + 10);
        self.happens(leader, Event::Proposal { end });
    }

    /// One event, and everything that follows from it.
    fn happens(&mut self, node: usize, event: Event) {
        self.steps(node, event);
        while let Some(message) = self.network.pop() {
            self.steps(message.to.node.0 as usize, Event::Message(message));
        }
    }

    fn steps(&mut self, node: usize, event: Event) {
        let mut effects = std::mem::take(&mut self.effects);
        self.groups[node].step(event, &mut effects);
        self.steps += 1;
        let (mut newest, mut sent) = (None, [None; 2]);
        for effect in effects.drain(..) {
            match effect {
                Effect::Persist(persist) => newest = Some(persist.ticket),
                Effect::Send(message) => self.network.push(of_another_node(message)),
                Effect::Replicate(Replicate { to, term, mut header, .. }) => {
                    let mut epochs = AppendEpochs::default();
                    assert!(epochs.push(EpochStart { epoch: term.leader_epoch(), start: header.base }));
                    header.epochs = epochs;
                    let free = sent.iter_mut().find(|place| place.is_none()).expect("two followers");
                    *free = Some((to, header.end));
                    let message = Message { from: replica(node), to, term, body: Body::Append(header) };
                    self.network.push(of_another_node(message));
                }
                _ => {}
            }
        }
        self.effects = effects;
        for (to, end) in sent.into_iter().flatten() {
            self.steps(node, Event::Replicated { to, end, bytes: 1_000 });
        }
        if let Some(ticket) = newest {
            self.steps(node, Event::Persisted { ticket });
        }
    }
}

/// A configuration that comes from another node shares no memory with that node.
fn of_another_node(mut message: Message) -> Message {
    if let Body::Append(append) = &mut message.body {
        for configuration in &mut append.configurations {
            *configuration = Arc::new(Configuration::clone(configuration));
        }
    }
    message
}

/// A group of one that leads.
pub fn alone() -> Group {
    let hard_state = HardState::alone(replica(0));
    let restored = Restored { me: replica(0), hard_state, log_start: Offset(0), log_end: Offset(0) };
    let mut group = Group::restore(restored).expect("a new group");
    let mut effects = Vec::with_capacity(8);
    group.step(Event::Start, &mut effects);
    writes(&mut group, &mut effects);
    group
}

/// Its disk does what it asked for. Returns how many events that took.
pub fn writes(group: &mut Group, effects: &mut Vec<Effect>) -> u64 {
    let mut steps = 0;
    while let Some(effect) = effects.pop() {
        if let Effect::Persist(persist) = effect {
            group.step(Event::Persisted { ticket: persist.ticket }, effects);
            steps += 1;
        }
    }
    steps
}
