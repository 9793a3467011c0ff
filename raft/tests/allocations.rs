//! What a group allocates: nothing in the steady state, and next to nothing when idle.

#![allow(unsafe_code, reason = "a counting allocator cannot be written without")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use ringlog_protocol::ids::{NodeId, Offset};
use ringlog_raft::configuration::Configuration;
use ringlog_raft::effect::Replicate;
use ringlog_raft::group::{Replicated, Restored};
use ringlog_raft::ids::{DirectoryId, Moment, ReplicaId};
use ringlog_raft::message::{AppendEpochs, Body, EpochStart, Message};
use ringlog_raft::{Effect, Event, Group, HardState, Settings};

/// Counts what the current thread asks for.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
    static HELD_BYTES: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to `System` unchanged; the counters are plain cells without destructors.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        HELD_BYTES.set(HELD_BYTES.get() + layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD_BYTES.set(HELD_BYTES.get() - layout.size() as isize);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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

/// Three groups whose disks and network are instant. Its own buffers are reused, so that only the groups can allocate.
struct Cluster {
    groups: Vec<Group>,
    effects: Vec<Effect>,
    network: Vec<Message>,
    now_ms: u64,
}

impl Cluster {
    fn new() -> Cluster {
        let settings = Arc::new(Settings { quiesce: true, ..Settings::default() });
        let groups = (0..3).map(|node| group(node, &settings)).collect();
        let mut cluster =
            Cluster { groups, effects: Vec::with_capacity(64), network: Vec::with_capacity(256), now_ms: 0 };
        (0..3).for_each(|node| cluster.happens(node, Event::Start));
        while !cluster.groups.iter().any(Group::is_settled) {
            cluster.ticks();
        }
        cluster
    }

    fn leader(&self) -> usize {
        self.groups.iter().position(Group::is_leader).expect("one leads")
    }

    fn ticks(&mut self) {
        self.now_ms += 50;
        for node in 0..3 {
            if !self.groups[node].is_quiescent() {
                self.happens(node, Event::Tick { now: Moment(self.now_ms * 1_000_000) });
            }
        }
    }

    fn proposes(&mut self) {
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

#[test]
fn a_steady_stream_of_records_and_heartbeats_allocates_nothing() {
    let mut cluster = Cluster::new();
    let rounds = |cluster: &mut Cluster, count: usize| {
        for round in 0..count {
            cluster.proposes();
            if round % 8 == 0 {
                cluster.ticks();
            }
        }
    };
    rounds(&mut cluster, 200);
    let leader = cluster.leader();
    let (before, committed) = (COUNT.get(), cluster.groups[leader].high_watermark());
    rounds(&mut cluster, 2_000);
    assert_eq!(COUNT.get() - before, 0, "allocations in 2,000 proposals to three replicas");
    assert_eq!(cluster.groups[leader].high_watermark().0 - committed.0, 20_000);
    assert_eq!(cluster.leader(), leader);
}

#[test]
fn an_idle_replica_takes_at_most_a_kibibyte_a_leader_of_three_too() {
    let mut cluster = Cluster::new();
    for _ in 0..20 {
        cluster.proposes();
        cluster.ticks();
    }
    (0..10).for_each(|_| cluster.ticks());
    assert!(cluster.groups.iter().all(Group::is_quiescent));
    let follower = cluster.groups.swap_remove((cluster.leader() + 1) % 3);
    let leader = cluster.groups.swap_remove(cluster.leader());
    let mut alone = alone();
    for end in 1..=20 {
        let mut effects = Vec::with_capacity(8);
        alone.step(Event::Proposal { end: Offset(end) }, &mut effects);
        writes(&mut alone, &mut effects);
    }
    for (what, group) in [("follower", follower), ("group of one", alone), ("leader of three", leader)] {
        let before = HELD_BYTES.get();
        drop(group);
        let bytes = size_of::<Group>() as isize + before - HELD_BYTES.get();
        println!("an idle {what} takes {bytes} bytes, {} of them inline", size_of::<Group>());
        assert!(bytes <= 1024, "an idle {what} takes {bytes} bytes");
    }
}

fn alone() -> Group {
    let hard_state = HardState::alone(replica(0));
    let restored = Restored { me: replica(0), hard_state, log_start: Offset(0), log_end: Offset(0) };
    let mut group = Group::restore(restored).expect("a new group");
    let mut effects = Vec::with_capacity(8);
    group.step(Event::Start, &mut effects);
    writes(&mut group, &mut effects);
    group
}

fn writes(group: &mut Group, effects: &mut Vec<Effect>) {
    while let Some(effect) = effects.pop() {
        if let Effect::Persist(persist) = effect {
            group.step(Event::Persisted { ticket: persist.ticket }, effects);
        }
    }
}
