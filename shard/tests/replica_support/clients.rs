//! What clients do: producers, consumers, an operator. They live on a host of their own, outlive every node, and find the leader by
//! asking around.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use ringlog_bench::history::operation::{AcksLevel, Outcome};
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::{Offset, ProducerEpoch, ProducerId, Sequence, TopicPartition};
use ringlog_protocol::records::batch::{BatchHeader, batches};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::reader::read_batch;
use ringlog_protocol::records::validate::BatchProducer;
use ringlog_raft::configuration::Change;
use ringlog_shard::partition::{AppendError, IncomingBatch};
use ringlog_shard::replica::Durability;
use ringlog_shard::storage::LogPiece;
use ringlog_shard::store::{Store, ViewError};
use ringlog_shard::waiters::CommitGather;

use super::cluster::{Cluster, NODES, key, replica};
use super::history::{Batch, Sent};
use super::network::{Job, Slot};

/// A client's patience with one request.
const PATIENCE: Duration = Duration::from_millis(800);
const FETCH_BYTES: u32 = 16 * 1024;

/// What one client works with.
#[derive(Clone)]
pub struct Hands {
    pub io: Io,
    pub cluster: Rc<Cluster>,
}

pub fn start<F: Future<Output = ()> + 'static>(cluster: &Rc<Cluster>, client: impl FnOnce(Hands) -> F) {
    let io = cluster.world.host("clients").executor();
    let work = client(Hands { io: io.clone(), cluster: Rc::clone(cluster) });
    io.spawn(Priority::Foreground, work).detach();
}

impl Hands {
    fn now_ns(&self) -> u64 {
        self.io.monotonic_now().0
    }

    pub fn below(&self, bound: u64) -> u64 {
        self.io.random_u64() % bound.max(1)
    }

    pub async fn pause_ms(&self, most: u64) {
        self.io.sleep(Duration::from_micros(100 + self.below(most * 1000))).await;
    }

    /// Lets a node do something, and waits for its answer, though not for ever.
    pub async fn ask<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        place: usize,
        work: impl FnOnce(Store, Io) -> F + 'static,
    ) -> Option<T> {
        let slot: Slot<T> = Rc::new(RefCell::new(None));
        let answer = Rc::clone(&slot);
        let job: Job = Box::new(move |store, io| {
            let work = work(store, io);
            let done: Pin<Box<dyn Future<Output = ()>>> = Box::pin(async move {
                let answered = work.await;
                *answer.borrow_mut() = Some(answered);
            });
            done
        });
        self.cluster.network.ask(&self.io, place, job);
        let until = self.io.monotonic_now() + PATIENCE;
        let mut wait_us = 300;
        while self.io.monotonic_now() < until {
            self.io.sleep(Duration::from_micros(wait_us)).await;
            if let Some(answer) = slot.take() {
                self.cluster.operations.set(self.cluster.operations.get() + 1);
                return Some(answer);
            }
            if !self.cluster.network.is_open(place) {
                return None;
            }
            wait_us = (wait_us * 3 / 2).min(5_000);
        }
        None
    }
}

/// How a produce request ended.
#[derive(Debug)]
enum Produced {
    At(i64),
    /// Surely not appended.
    Refused(AppendError),
    /// Appended, and then nobody knows.
    Unknown,
}

async fn produce(store: Store, key: TopicPartition, bytes: Vec<u8>, durability: Durability) -> Produced {
    store.room().await;
    let header = BatchHeader::parse(&bytes).expect("built by the client");
    let buffer_bytes = bytes.len() as u32;
    let batch = IncomingBatch { header, bytes: BytesMut::from(&bytes[..]), buffer_bytes };
    let gather = CommitGather::new();
    match store.append_for(key, batch, Some(gather.ticket(0)), durability) {
        Ok(appended) if gather.finish().await.is_empty() => Produced::At(appended.base_offset.0),
        Ok(_) => Produced::Unknown,
        Err(error) => Produced::Refused(error),
    }
}

pub struct Producer {
    pub hands: Hands,
    pub number: u64,
    pub partition: i32,
    pub acks: AcksLevel,
    pub is_idempotent: bool,
    sequence: i32,
    leader: usize,
}

impl Producer {
    pub fn new(hands: Hands, partition: i32, acks: AcksLevel, is_idempotent: bool) -> Producer {
        let number = hands.cluster.history.borrow_mut().add_producer(partition, is_idempotent);
        Producer { hands, number, partition, acks, is_idempotent, sequence: 0, leader: 0 }
    }

    /// Sends until the faults end.
    pub async fn run(mut self) {
        while !self.hands.cluster.is_healed.get() {
            let records = 1 + self.hands.below(5);
            let (partition, number, now_ns) = (self.partition, self.number, self.hands.now_ns());
            let batch = self.hands.cluster.history.borrow_mut().make(number, partition, records, now_ns);
            self.send(&batch).await;
            self.hands.pause_ms(8).await;
        }
        self.hands.cluster.clients_done.set(self.hands.cluster.clients_done.get() + 1);
    }

    /// Sends one more, whatever happens.
    pub async fn send_one(&mut self) {
        let (partition, number, now_ns) = (self.partition, self.number, self.hands.now_ns());
        let batch = self.hands.cluster.history.borrow_mut().make(number, partition, 1, now_ns);
        self.send(&batch).await;
    }

    /// Sends one batch: an idempotent producer until it knows that it is there, another one once.
    async fn send(&mut self, batch: &Batch) {
        let bytes = self.encode(batch);
        let durability = if self.acks == AcksLevel::Leader { Durability::Leader } else { Durability::Quorum };
        let (mut attempts, mut is_trying_again) = (0, false);
        let (outcome, offset) = loop {
            let (bytes, key) = (bytes.clone(), key(self.partition));
            let asked =
                self.hands.ask(self.leader, move |store, _| produce(store, key, bytes, durability)).await;
            attempts += 1;
            match asked {
                Some(Produced::At(offset)) => break (Outcome::Ok, Some(offset)),
                Some(Produced::Refused(AppendError::Producer { verdict, .. })) => {
                    panic!("producer {}: {verdict}, attempt {attempts}", self.number)
                }
                Some(Produced::Refused(_)) if !self.is_idempotent => {
                    if attempts > 20 {
                        break (Outcome::Fail, None);
                    }
                }
                Some(Produced::Refused(AppendError::NotEnoughReplicas { .. })) => {
                    self.hands.cluster.count("not enough replicas");
                }
                Some(Produced::Refused(_)) => {}
                Some(Produced::Unknown) | None => {
                    if !self.is_idempotent {
                        break (Outcome::Info, None);
                    }
                }
            }
            if !is_trying_again {
                is_trying_again = true;
                self.hands.cluster.retries.set(self.hands.cluster.retries.get() + 1);
            }
            self.leader = self.hands.below(NODES as u64) as usize;
            self.hands.pause_ms(20).await;
        };
        if is_trying_again {
            self.hands.cluster.retries.set(self.hands.cluster.retries.get() - 1);
        }
        let Producer { acks, is_idempotent, .. } = *self;
        let sent = Sent { acks, is_idempotent, is_retried: attempts > 1 && is_idempotent, offset };
        let now_ns = self.hands.now_ns();
        self.hands.cluster.history.borrow_mut().settled(batch, sent, outcome, now_ns);
        self.hands.cluster.count("batches settled");
        self.sequence += batch.values.len() as i32;
    }

    fn encode(&self, batch: &Batch) -> Vec<u8> {
        let mut builder = BatchBuilder::new();
        for value in &batch.values {
            let mut bytes = value.to_be_bytes().to_vec();
            let padding = self.hands.below(self.hands.cluster.shape.value_bytes_max) as usize;
            bytes.resize(8 + padding, *value as u8);
            let timestamp = self.hands.io.wall_now_ms();
            let record = NewRecord { timestamp, key: None, value: Some(&bytes), headers: &[] };
            builder.append(&record).expect("a small record");
        }
        let producer = BatchProducer {
            id: ProducerId(1000 + self.number as i64),
            epoch: ProducerEpoch(0),
            base_sequence: Sequence(self.sequence),
        };
        let producer = self.is_idempotent.then_some(producer);
        builder.finish(&BatchOptions { producer, ..BatchOptions::default() }).expect("a small batch")
    }
}

/// What a fetch finds.
pub enum Fetched {
    Records {
        bytes: Vec<u8>,
        log_start: i64,
        high_watermark: i64,
    },
    NotLeader,
    /// Something cannot be read now.
    Failed,
}

pub async fn fetch(store: Store, io: Io, key: TopicPartition, from: i64) -> Fetched {
    let view = match store.view(key) {
        Ok(view) => view,
        Err(ViewError::NotLeader) => return Fetched::NotLeader,
        Err(_) => return Fetched::Failed,
    };
    let (log_start, high_watermark) = (view.log_start.0, view.high_watermark.0);
    let mut bytes = Vec::new();
    if from >= log_start && from < high_watermark {
        let Ok(plan) = store.plan_read(key, Offset(from), FETCH_BYTES, true) else { return Fetched::Failed };
        let Ok(read) = plan.run(&io).await else { return Fetched::Failed };
        for piece in read.pieces {
            match piece {
                LogPiece::Memory(piece) => bytes.extend_from_slice(piece.bytes()),
                LogPiece::File { file, position, length } => {
                    match io.read_at(&file, position, length as usize).await {
                        Ok(read) if read.len() == length as usize => bytes.extend_from_slice(&read),
                        _ => return Fetched::Failed,
                    }
                }
            }
        }
    }
    Fetched::Records { bytes, log_start, high_watermark }
}

/// Offsets and values of the records from `from` on.
pub fn records_of(bytes: &[u8], from: i64) -> Vec<(i64, Option<u64>)> {
    let mut records = Vec::new();
    for batch in batches(bytes) {
        let batch = batch.expect("a sound batch");
        let mut scratch = Vec::new();
        let (_, read) = read_batch(batch.bytes, 1 << 20, &mut scratch).expect("records");
        for record in read {
            let record = record.expect("a record");
            let value = record.value.and_then(|value| value.first_chunk::<8>().copied());
            if record.offset.0 >= from {
                records.push((record.offset.0, value.map(u64::from_be_bytes)));
            }
        }
    }
    records
}

/// Reads what is committed, from the beginning on, until the faults end.
pub async fn consume(hands: Hands, number: u64, partition: i32) {
    let (mut position, mut place) = (0, 0);
    hands.cluster.history.borrow_mut().assign(number, partition, 0);
    while !hands.cluster.is_healed.get() {
        let from = position;
        let fetched = hands.ask(place, move |store, io| fetch(store, io, key(partition), from)).await;
        match fetched {
            Some(Fetched::Records { bytes, log_start, .. }) => {
                let mut history = hands.cluster.history.borrow_mut();
                history.told_start(partition, log_start);
                if position < log_start {
                    position = log_start;
                    history.assign(number, partition, position);
                    continue;
                }
                let records = records_of(&bytes, position);
                if let Some((last, _)) = records.last() {
                    position = last + 1;
                    history.polled(number, partition, records, hands.now_ns());
                }
            }
            _ => place = hands.below(NODES as u64) as usize,
        }
        hands.pause_ms(15).await;
    }
    hands.cluster.clients_done.set(hands.cluster.clients_done.get() + 1);
}

/// Deletes records, moves leaders, changes the membership, asks for barriers.
pub async fn operate(hands: Hands) {
    while !hands.cluster.is_healed.get() {
        hands.pause_ms(120).await;
        let partition = hands.below(super::cluster::PARTITIONS as u64) as i32;
        let Some(leader) = hands.cluster.settled_leader(key(partition)) else { continue };
        let choice = hands.below(10);
        match choice {
            0..=2 => delete(&hands, leader, partition).await,
            3 | 4 => hand_over(&hands, leader, partition).await,
            5..=7 => change(&hands, leader, partition).await,
            _ => barrier(&hands, leader, partition).await,
        }
    }
    hands.cluster.clients_done.set(hands.cluster.clients_done.get() + 1);
}

async fn delete(hands: &Hands, leader: usize, partition: i32) {
    // A batch that its producer may still send again stays: the copy of a log does not bring what lies below its start.
    let before = hands.cluster.history.borrow().known_to_all(partition) - hands.below(60) as i64;
    if before <= 0 {
        return;
    }
    let deleted = hands.ask(leader, move |store, _| async move {
        let moved = store.delete_records(key(partition), Some(Offset(before))).ok()?;
        store.start_durable(moved).await.ok()?;
        Some(moved.log_start.0)
    });
    if let Some(Some(log_start)) = deleted.await {
        hands.cluster.count("records deleted");
        hands.cluster.history.borrow_mut().told_start(partition, log_start);
    }
}

async fn hand_over(hands: &Hands, leader: usize, partition: i32) {
    let to = hands.below(NODES as u64 + 1) as usize;
    let to = (to < NODES).then(|| replica(to));
    let asked =
        hands.ask(leader, move |store, _| async move { store.transfer_leadership(key(partition), to).await });
    match asked.await {
        Some(Ok(_)) => hands.cluster.count("handed over"),
        Some(Err(_)) => hands.cluster.count("handover refused"),
        None => {}
    }
}

async fn change(hands: &Hands, leader: usize, partition: i32) {
    let Some(store) = hands.cluster.store(leader) else { return };
    let Ok(status) = store.replica_status(key(partition)) else { return };
    drop(store);
    let configuration = status.configuration;
    let outside = (0..NODES).map(replica).find(|replica| !configuration.is_member(*replica));
    let change = match outside {
        Some(outside) => Change::AddLearner(outside),
        None => Change::Remove(replica(hands.below(NODES as u64) as usize)),
    };
    let asked = hands
        .ask(leader, move |store, _| async move { store.change_configuration(key(partition), change).await });
    match asked.await {
        Some(Ok(_)) => {
            hands.cluster.count(if outside.is_some() { "learner added" } else { "member removed" })
        }
        Some(Err(_)) => hands.cluster.count("change refused"),
        None => {}
    }
}

async fn barrier(hands: &Hands, leader: usize, partition: i32) {
    let acked = hands.cluster.history.borrow().acked_ends[partition as usize];
    let asked = hands.ask(leader, move |store, _| async move { store.read_barrier(key(partition)).await });
    if let Some(Ok(high_watermark)) = asked.await {
        hands.cluster.count("barrier passed");
        assert!(
            high_watermark.0 >= acked,
            "a barrier at {high_watermark} misses what was acknowledged below {acked}"
        );
    }
}
