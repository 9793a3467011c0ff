//! Plays a seed: faults first, then none, and then everybody must be equal and the history sound.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ringlog_bench::history::operation::AcksLevel;
use ringlog_io::sim::{Outcome, World};
use ringlog_protocol::ids::TopicPartition;
use ringlog_protocol::records::batch::batches;
use ringlog_shard::replica::ReplicaStatus;

use super::clients::{self, Fetched, Hands, Producer, consume, fetch, operate, records_of};
use super::cluster::{Cluster, NODES, PARTITIONS, key};
use super::node;
use super::weather::{self, Climate, draw_shape};
use crate::storage_support::read_all;

/// What a seed came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Played {
    pub trace_hash: u64,
    pub events: u64,
    pub operations: u64,
    pub messages: u64,
    pub acknowledged: u64,
    pub read: u64,
    pub terms: u64,
    /// Broken rules, as text.
    pub violations: Vec<String>,
    pub counts: BTreeMap<&'static str, u64>,
}

/// Virtual time within which everything comes right once nothing goes wrong any more.
const HEALS_WITHIN: Duration = Duration::from_secs(60);
const CONSUMERS: u64 = 2;

/// Plays it.
///
/// # Panics
/// When a replica breaks a rule.
pub fn play(seed: u64) -> Played {
    let world = World::new(seed);
    let (shape, climate) = {
        let mut random = || world.random_u64();
        (draw_shape(&mut random), Climate::draw(&mut random))
    };
    if std::env::var_os("RINGLOG_TRACE").is_some() {
        eprintln!("seed {seed}: {shape:?} {climate:?}");
    }
    let cluster = Cluster::new(world, shape);
    cluster.network.weather.set(climate.network);
    for place in 0..NODES {
        node::start(&cluster, place);
    }
    let clients = start_clients(&cluster);
    for _ in 0..climate.steps {
        // To the microsecond: a power cut may come between any two events.
        let step_us = weather::STEP.as_micros() as u64;
        cluster.world.run_for(Duration::from_micros(step_us / 2 + cluster.world.random_u64() % step_us));
        cluster.look();
        weather::step(&cluster, &climate);
    }
    heal(&cluster, clients);
    let ended = last_look(&cluster);
    let mut history = cluster.history.borrow_mut();
    let mut violations = history.judge();
    violations.extend(ended);
    let mut counts = cluster.counts.borrow().clone();
    counts.insert("records damaged on the way", cluster.network.damaged.get());
    Played {
        trace_hash: cluster.world.trace_hash(),
        events: cluster.world.event_count(),
        operations: cluster.operations.get(),
        messages: cluster.network.delivered.get(),
        acknowledged: history.acknowledged,
        read: history.read,
        terms: cluster.terms_led() as u64,
        violations,
        counts,
    }
}

fn start_clients(cluster: &Rc<Cluster>) -> u32 {
    let mut started = 0;
    for partition in 0..PARTITIONS {
        let kinds = [
            (AcksLevel::All, true),
            (AcksLevel::All, true),
            (AcksLevel::All, false),
            (AcksLevel::Leader, false),
        ];
        for (acks, is_idempotent) in kinds {
            clients::start(cluster, |hands| Producer::new(hands, partition, acks, is_idempotent).run());
            started += 1;
        }
        let number = partition as u64;
        clients::start(cluster, |hands| consume(hands, number, partition));
        started += 1;
    }
    assert!(PARTITIONS as u64 <= CONSUMERS);
    clients::start(cluster, operate);
    started + 1
}

/// Nothing goes wrong any more: all nodes run, clients end, and the replicas become equal.
fn heal(cluster: &Rc<Cluster>, clients: u32) {
    cluster.network.heal();
    for place in 0..NODES {
        cluster.nodes[place].host.disk().heal();
        if !cluster.nodes[place].is_up.get() {
            node::start(cluster, place);
        }
    }
    // Some storage may have failed in the last moment.
    cluster.world.run_for(Duration::from_millis(300));
    for place in 0..NODES {
        if cluster.store(place).is_some_and(|store| !store.unhealthy().is_empty()) {
            node::crash(cluster, place, ringlog_io::sim::UnsyncedData::Kept);
            node::start(cluster, place);
        }
    }
    cluster.is_healed.set(true);
    let is_over = || cluster.clients_done.get() == clients;
    let outcome = cluster.world.run_until(is_over, HEALS_WITHIN);
    assert_eq!(outcome, Outcome::Done, "clients get on once nothing goes wrong: {}", describe(cluster));
    for partition in 0..PARTITIONS {
        // A record of the last term: every follower hears where the log starts.
        clients::start(cluster, |hands| async move {
            let mut producer = Producer::new(hands, partition, AcksLevel::All, true);
            producer.send_one().await;
            producer.hands.cluster.clients_done.set(producer.hands.cluster.clients_done.get() + 1);
        });
    }
    let is_over = || cluster.clients_done.get() == clients + PARTITIONS as u32;
    assert_eq!(cluster.world.run_until(is_over, HEALS_WITHIN), Outcome::Done, "{}", describe(cluster));
    let are_equal = || cluster.keys().all(|key| are_members_even(cluster, key));
    for _ in 0..600 {
        if are_equal() {
            return;
        }
        cluster.world.run_for(Duration::from_millis(100));
        cluster.look();
    }
    panic!("the replicas do not become equal: {}", describe(cluster));
}

fn members(status: &ReplicaStatus) -> Vec<usize> {
    let configuration = &status.configuration;
    let members = configuration.voters.iter().chain(&configuration.learners);
    members.map(|member| member.node.0 as usize).collect()
}

/// All members hold as much as their leader, committed and durable.
fn are_members_even(cluster: &Cluster, key: TopicPartition) -> bool {
    let Some(leader) = cluster.settled_leader(key) else { return false };
    let Some(Ok(status)) = cluster.store(leader).map(|store| store.replica_status(key)) else { return false };
    let is_even = |place: usize| {
        let Some(store) = cluster.store(place) else { return false };
        let Ok(other) = store.replica_status(key) else { return false };
        let is_stored = store.with_log(key, |log| (log.log_end(), log.durable_end()))
            == Ok((other.log_end, other.log_end));
        other.log_end == status.log_end
            && other.high_watermark == status.log_end
            && other.configuration == status.configuration
            // A former leader may have let go more: others hear only of what their leader let go.
            && other.log_start >= status.log_start
            && is_stored
    };
    status.configuration.learners.is_empty() && members(&status).into_iter().all(is_even)
}

pub fn describe(cluster: &Cluster) -> String {
    let mut text = String::new();
    for key in cluster.keys() {
        for place in 0..NODES {
            let status = cluster.store(place).map(|store| store.replica_status(key));
            text.push_str(&format!("\n{key} on {place}: {status:?}"));
        }
    }
    text
}

/// Reads everything from every member, and from the leader as a consumer does.
fn last_look(cluster: &Rc<Cluster>) -> Vec<String> {
    let violations = Rc::new(std::cell::RefCell::new(Vec::new()));
    let done = Rc::new(std::cell::Cell::new(0));
    for partition in 0..PARTITIONS {
        let (violations, done) = (Rc::clone(&violations), Rc::clone(&done));
        clients::start(cluster, move |hands| async move {
            let leader = hands.cluster.settled_leader(key(partition)).expect("found before");
            read_last(&hands, leader, partition).await;
            let found = compare(&hands, leader, partition).await;
            violations.borrow_mut().extend(found);
            done.set(done.get() + 1);
        });
    }
    let outcome = cluster.world.run_until(|| done.get() == PARTITIONS, HEALS_WITHIN);
    assert_eq!(outcome, Outcome::Done, "the last look ends");
    violations.take()
}

async fn read_last(hands: &Hands, leader: usize, partition: i32) {
    let number = CONSUMERS + partition as u64;
    let (mut position, mut end) = (-1, i64::MAX);
    while position < end {
        let from = position;
        let fetched = hands.ask(leader, move |store, io| fetch(store, io, key(partition), from)).await;
        let Some(Fetched::Records { bytes, log_start, high_watermark }) = fetched else {
            panic!("partition {partition} cannot be read from {from}");
        };
        let mut history = hands.cluster.history.borrow_mut();
        if position < 0 {
            (position, end) = (log_start, high_watermark);
            history.told_start(partition, log_start);
            history.assign(number, partition, position);
            history.last_word(number, &[(partition, end)], hands.io.monotonic_now().0);
            continue;
        }
        let records = records_of(&bytes, position);
        let last = records.last().expect("the log goes on").0;
        position = last + 1;
        history.polled(number, partition, records, hands.io.monotonic_now().0);
    }
}

/// The run from the batch that holds `offset` on.
fn from_batch_of(run: &[u8], offset: i64) -> &[u8] {
    let before = batches(run).filter_map(Result::ok).filter(|batch| batch.header.next_offset().0 <= offset);
    let skipped: usize = before.map(|batch| batch.bytes.len()).sum();
    &run[skipped..]
}

/// Whether every member holds the leader's bytes.
async fn compare(hands: &Hands, leader: usize, partition: i32) -> Vec<String> {
    let status = hands.cluster.store(leader).expect("it leads").replica_status(key(partition));
    let members = members(&status.expect("it leads"));
    let mut logs = Vec::new();
    for place in members {
        let read = hands.ask(place, move |store, io| async move {
            let log = store.with_log(key(partition), ringlog_shard::storage::Log::id).expect("open");
            let log_start = store.with_log(key(partition), |log| log.log_start().0).expect("open");
            (log_start, read_all(&io, store.storage(), log, 64 * 1024).await)
        });
        logs.push((place, read.await.expect("every member answers")));
    }
    let leaders = logs.iter().find(|(place, _)| *place == leader).cloned();
    let (_, (_, model)) = leaders.expect("a leader is a member");
    let mut violations = Vec::new();
    for (place, (log_start, bytes)) in logs {
        if bytes != from_batch_of(&model, log_start) {
            let bases = |bytes: &[u8]| -> Vec<(i64, i32)> {
                let batches = batches(bytes).filter_map(Result::ok);
                batches.map(|batch| (batch.header.base_offset.0, batch.header.leader_epoch.0)).collect()
            };
            violations.push(format!(
                "partition {partition} differs on {place}: {:?} and {:?}",
                bases(&model).iter().rev().take(5).collect::<Vec<_>>(),
                bases(&bytes).iter().rev().take(5).collect::<Vec<_>>()
            ));
        }
    }
    violations
}
