//! All partitions of one core: opening, appending, reading, deleting. Lives on that core; clones share it.
//!
//! Owns the table of partitions and the path from the journal's reports to the partitions' groups. Knows no Kafka API
//! and no topic name.

pub mod compact;
pub mod life;
mod replicas;
pub mod sizes;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::Poll;

use bytes::Bytes;
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::{LeaderEpoch, Offset, TopicPartition};
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_raft::configuration::Configuration;
use ringlog_raft::effect::Effect;
use ringlog_raft::group::{Group, Replicated, Restored};
use ringlog_raft::hard_state::HardState;
use ringlog_raft::ids::{ReplicaId, Ticket};
use ringlog_raft::message::EpochStart;
use slab::Slab;

use crate::limits::{PARTITIONS_OPENED_AT_ONCE, PRODUCERS_PER_PARTITION_MAX};
use crate::partition::{AppendError, Appended, Carrier, IncomingBatch, Partition};
use crate::producer_state::ProducerStates;
use crate::replica::{Answer, Durability, Outgoing, Replica, Replication, Requests, Todo};
use crate::storage::{
    CoreStorage, Durable, Log, LogId, LogSettings, LogVisitor, ReadError, ReadPlan, RecoveredPartition,
    ServedBehind, StorageError, TimePlan,
};
use crate::waiters::{CommitTicket, Watchers};

/// The partitions of one core.
#[derive(Clone)]
pub struct Store {
    inner: Rc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) io: Io,
    pub(crate) storage: CoreStorage,
    me: ReplicaId,
    pub(crate) producer_expiration_ms: i64,
    table: RefCell<Table>,
    /// Kept so that a steady stream of appends allocates no buffer of effects.
    effects: RefCell<Vec<Effect>>,
    /// What partitions want done once the table is not borrowed any more.
    todo: RefCell<Todo>,
    outbox: RefCell<Option<Outbox>>,
    requests: Requests,
    compactor: compact::Compactor,
    this: Weak<Inner>,
}

type Outbox = Rc<dyn Fn(Outgoing)>;

/// Invariants: `by_key` and `by_log` name each partition in `slots` once. Never iterated by hash order.
struct Table {
    slots: Slab<Partition>,
    by_key: HashMap<TopicPartition, usize, ahash::RandomState>,
    by_log: BTreeMap<LogId, usize>,
    /// Slots of partitions that may have other replicas.
    replicated: BTreeSet<usize>,
    /// Their neighbours serve on.
    offline: BTreeMap<TopicPartition, Offline>,
}

/// A partition whose log could not be opened.
struct Offline {
    reason: String,
    /// Of its segment files, as they were found.
    stored_bytes: u64,
}

/// What a partition shows to readers now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    pub log_start: Offset,
    pub high_watermark: Offset,
    pub leader_epoch: LeaderEpoch,
    /// A start found that acknowledged records at and behind the high watermark are missing or do not check: nobody knows
    /// where the log ends.
    pub is_cut_short: bool,
    /// Where the log ends, of a leader whose watermark is not this term's yet: records up to there may have been committed and read
    /// under earlier leaders. `None` once nobody can have read beyond the watermark.
    pub unsettled_end: Option<Offset>,
}

/// Why a partition cannot be looked at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    #[error("this core does not hold the partition")]
    UnknownPartition,
    #[error("this replica does not lead the partition")]
    NotLeader,
    #[error("the log cannot be opened: {reason}")]
    Offline { reason: String },
}

/// A partition to open: what recovery found of it, or nothing for a new one.
pub struct Opening {
    pub key: TopicPartition,
    pub recovered: Option<RecoveredPartition>,
    pub settings: LogSettings,
}

impl Opening {
    /// Of the segment files that recovery found.
    fn found_bytes(&self) -> u64 {
        let segments = self.recovered.iter().flat_map(|recovered| &recovered.segments);
        segments.map(|segment| segment.bytes).sum()
    }
}

impl Store {
    pub fn new(io: Io, storage: CoreStorage, me: ReplicaId, producer_expiration_ms: i64) -> Store {
        let table = Table {
            slots: Slab::new(),
            by_key: HashMap::with_hasher(io.hasher()),
            by_log: BTreeMap::new(),
            replicated: BTreeSet::new(),
            offline: BTreeMap::new(),
        };
        let inner = Rc::new_cyclic(|this| Inner {
            io,
            storage,
            me,
            producer_expiration_ms,
            table: RefCell::new(table),
            effects: RefCell::default(),
            todo: RefCell::default(),
            outbox: RefCell::new(None),
            requests: Requests::default(),
            compactor: compact::Compactor::default(),
            this: this.clone(),
        });
        let reported = Rc::downgrade(&inner);
        inner.storage.set_durable_listener(move |durable| {
            if let Some(inner) = reported.upgrade() {
                inner.durable(durable);
            }
        });
        let asked = Rc::downgrade(&inner);
        inner.storage.set_snapshot_source(move |log, out| {
            let inner = asked.upgrade()?;
            let table = inner.table.borrow();
            let slot = *table.by_log.get(&log)?;
            table.slots[slot].encode_producers(out)
        });
        let poisoned = Rc::downgrade(&inner);
        inner.storage.set_poison_listener(move |log| {
            if let Some(inner) = poisoned.upgrade() {
                inner.poison(log);
            }
        });
        Store { inner }
    }

    pub fn storage(&self) -> &CoreStorage {
        &self.inner.storage
    }

    /// Opens partitions and returns once each leads and shows its watermark, or is marked offline with its reason.
    pub async fn open(&self, openings: Vec<Opening>) {
        let inner = &self.inner;
        let (started_at, scanned) = (inner.io.monotonic_now(), inner.storage.scanned_bytes());
        let recovered_count = openings.iter().filter(|opening| opening.recovered.is_some()).count();
        inner.expect(openings.len());
        let alone = openings.into_iter().map(|opening| (opening, None)).collect();
        let opened = Inner::open_all(inner, alone).await;
        if recovered_count > 0 {
            let scanned_bytes = inner.storage.scanned_bytes() - scanned;
            let milliseconds = inner.io.monotonic_now().saturating_since(started_at).as_millis();
            tracing::info!(
                "recovered {recovered_count} partitions, scanned {scanned_bytes} bytes, {milliseconds} ms"
            );
        }
        self.inner.start(&opened);
        for slot in opened {
            self.inner.settled(slot).await;
        }
    }

    /// Forgets the partition and removes its log. Who waits for it is told.
    pub fn delete(&self, key: TopicPartition) {
        let mut table = self.inner.table.borrow_mut();
        table.offline.remove(&key);
        let Some(slot) = table.by_key.remove(&key) else { return };
        let mut partition = table.slots.remove(slot);
        table.by_log.remove(&partition.log);
        table.replicated.remove(&slot);
        drop(table);
        partition.close();
        self.inner.requests.answer(Answer::Gone { log: partition.log });
        self.inner.storage.delete_log(partition.log);
    }

    /// Whether this core holds the partition, serving or offline.
    pub fn holds(&self, key: TopicPartition) -> bool {
        let table = self.inner.table.borrow();
        table.by_key.contains_key(&key) || table.offline.contains_key(&key)
    }

    pub fn partition_count(&self) -> usize {
        self.inner.table.borrow().slots.len()
    }

    /// The reasons of the partitions that could not be opened, whose writes failed, or that are damaged.
    pub fn unhealthy(&self) -> Vec<(TopicPartition, String)> {
        let table = self.inner.table.borrow();
        let mut unhealthy: Vec<_> =
            table.offline.iter().map(|(key, offline)| (*key, offline.reason.clone())).collect();
        let poisoned = table.slots.iter().filter(|(_, partition)| partition.is_poisoned());
        unhealthy
            .extend(poisoned.map(|(_, partition)| (partition.key, "a write failed; read only".to_owned())));
        let damaged = self.inner.storage.damaged();
        unhealthy.extend(damaged.into_iter().map(|(key, damage)| (key, damage.to_string())));
        unhealthy.sort_unstable();
        unhealthy
    }

    /// Appends one validated batch; `ticket` learns when it is committed.
    ///
    /// # Errors
    /// See [`AppendError`]; the log end did not move and the ticket is dropped.
    pub fn append(
        &self,
        key: TopicPartition,
        batch: IncomingBatch,
        ticket: Option<CommitTicket>,
    ) -> Result<Appended, AppendError> {
        self.append_for(key, batch, ticket, Durability::Quorum)
    }

    /// As [`Store::append`]; `ticket` learns when the batch is as durable as asked for.
    ///
    /// # Errors
    /// As [`Store::append`].
    pub fn append_for(
        &self,
        key: TopicPartition,
        batch: IncomingBatch,
        ticket: Option<CommitTicket>,
        durability: Durability,
    ) -> Result<Appended, AppendError> {
        let inner = &self.inner;
        let now_ms = inner.io.wall_now_ms();
        let mut table = inner.table.borrow_mut();
        let slot = match table.by_key.get(&key) {
            Some(slot) => *slot,
            None => return Err(table.absent(key)),
        };
        let mut effects = inner.effects.borrow_mut();
        let mut todo = inner.todo.borrow_mut();
        let mut hard_states = Vec::new();
        let mut carrier =
            Carrier { storage: &inner.storage, hard_states: &mut hard_states, todo: &mut todo, now_ms };
        let appended = table.slots[slot].append(batch, ticket, durability, &mut effects, &mut carrier);
        debug_assert!(hard_states.is_empty(), "an append changes no hard state");
        if !todo.is_empty() {
            drop((table, effects, todo));
            inner.settle(hard_states);
        }
        appended
    }

    /// The offsets and epoch that a reader of the partition sees.
    pub fn view(&self, key: TopicPartition) -> Result<View, ViewError> {
        let table = self.inner.table.borrow();
        let partition = table.get(key)?;
        let leader_epoch = partition.leader_epoch();
        // Reads go on after a failed write: what is committed is durable, and nobody else has it.
        let leader_epoch = match leader_epoch {
            Some(epoch) => epoch,
            None if partition.is_poisoned() && partition.configuration().voters.len() <= 1 => LeaderEpoch(-1),
            None => return Err(ViewError::NotLeader),
        };
        Ok(View {
            log_start: partition.log_start(),
            high_watermark: partition.high_watermark(),
            leader_epoch,
            is_cut_short: self.inner.storage.log(partition.log).damage().is_some(),
            unsettled_end: partition.unsettled_end(),
        })
    }

    /// Committed bytes from `from` on, close enough for a fetch's minimum: exact in memory, by the index below it.
    pub fn available_bytes(&self, key: TopicPartition, from: Offset) -> Result<u64, ViewError> {
        let table = self.inner.table.borrow();
        let partition = table.get(key)?;
        let limit = partition.high_watermark();
        if from >= limit {
            return Ok(0);
        }
        Ok(self.inner.storage.log(partition.log).bytes_between(from, limit))
    }

    /// What is served from an offset behind the damage that a start found, if anything.
    pub fn served_behind(&self, key: TopicPartition, from: Offset) -> Option<ServedBehind> {
        let table = self.inner.table.borrow();
        let partition = table.get(key).ok()?;
        self.inner.storage.log(partition.log).served_behind(from)
    }

    /// Plans a read of committed batches from the one that holds `from`.
    ///
    /// # Errors
    /// [`ReadError`] for an offset outside the log; the caller checks [`Store::view`] first.
    pub fn plan_read(
        &self,
        key: TopicPartition,
        from: Offset,
        bytes_max: u32,
        at_least_one: bool,
    ) -> Result<ReadPlan, ReadError> {
        let table = self.inner.table.borrow();
        let Ok(partition) = table.get(key) else { return Err(ReadError::UnknownLog) };
        self.inner.storage.plan_read(partition.log, from, partition.high_watermark(), bytes_max, at_least_one)
    }

    /// Plans the search for the first committed record that is not older than `target_ms`.
    ///
    /// # Errors
    /// [`ReadError::UnknownLog`].
    pub fn plan_time_lookup(&self, key: TopicPartition, target_ms: i64) -> Result<TimePlan, ReadError> {
        let table = self.inner.table.borrow();
        let Ok(partition) = table.get(key) else { return Err(ReadError::UnknownLog) };
        self.inner.storage.plan_time_lookup(partition.log, target_ms, partition.high_watermark())
    }

    /// Plans the search for the first committed record with the largest timestamp.
    ///
    /// # Errors
    /// [`ReadError::UnknownLog`].
    pub fn plan_newest(&self, key: TopicPartition) -> Result<TimePlan, ReadError> {
        let table = self.inner.table.borrow();
        let Ok(partition) = table.get(key) else { return Err(ReadError::UnknownLog) };
        self.inner.storage.plan_newest(partition.log, partition.high_watermark())
    }

    /// Plans the search for the first committed record from offset `from` on.
    ///
    /// # Errors
    /// [`ReadError::UnknownLog`].
    pub fn plan_first_from(&self, key: TopicPartition, from: Offset) -> Result<TimePlan, ReadError> {
        let table = self.inner.table.borrow();
        let Ok(partition) = table.get(key) else { return Err(ReadError::UnknownLog) };
        self.inner.storage.plan_first_from(partition.log, from, partition.high_watermark())
    }

    /// Whether appends need not wait for the journal.
    pub fn has_room(&self) -> bool {
        !self.inner.storage.is_full()
    }

    /// Waits until [`Store::has_room`], or until writes failed for good.
    pub async fn room(&self) {
        self.inner.storage.room().await;
    }

    /// As [`Store::room`] for a partition that uses the reserve of disk space.
    pub async fn room_with_reserve(&self) {
        self.inner.storage.room_with_reserve().await;
    }

    /// Lets the partition's appends use the reserve of disk space.
    pub fn let_use_reserve(&self, key: TopicPartition) {
        if let Ok(partition) = self.inner.table.borrow().get(key) {
            self.inner.storage.let_use_reserve(partition.log);
        }
    }

    /// Looks at the partition's log.
    pub fn with_log<T>(&self, key: TopicPartition, look: impl FnOnce(&Log) -> T) -> Result<T, ViewError> {
        let table = self.inner.table.borrow();
        let partition = table.get(key)?;
        Ok(look(&self.inner.storage.log(partition.log)))
    }

    /// Who votes in the partition's group and who only receives its log.
    pub fn configuration(&self, key: TopicPartition) -> Result<Configuration, ViewError> {
        Ok(self.inner.table.borrow().get(key)?.configuration().clone())
    }

    /// Where consumers of the partition wait.
    pub fn watchers(&self, key: TopicPartition) -> Result<Watchers, ViewError> {
        Ok(self.inner.table.borrow().get(key)?.watchers.clone())
    }
}

impl Table {
    /// Why a batch for a partition without a slot is refused.
    fn absent(&self, key: TopicPartition) -> AppendError {
        match self.offline.get(&key) {
            Some(Offline { reason, .. }) => {
                AppendError::Poisoned { reason: format!("the log cannot be opened: {reason}") }
            }
            None => AppendError::UnknownPartition,
        }
    }

    fn get(&self, key: TopicPartition) -> Result<&Partition, ViewError> {
        match self.by_key.get(&key) {
            Some(slot) => Ok(&self.slots[*slot]),
            None => match self.offline.get(&key) {
                Some(offline) => Err(ViewError::Offline { reason: offline.reason.clone() }),
                None => Err(ViewError::UnknownPartition),
            },
        }
    }
}

/// Gathers a partition's producers while its log is opened.
pub(crate) struct ProducerVisitor<'a> {
    pub(crate) producers: &'a mut ProducerStates,
    pub(crate) now_ms: i64,
    pub(crate) expiration_ms: i64,
}

impl LogVisitor for ProducerVisitor<'_> {
    fn restore(&mut self, snapshot: Option<&[u8]>) -> bool {
        let Some(snapshot) = snapshot else { return false };
        match ProducerStates::decode(snapshot, self.expiration_ms, PRODUCERS_PER_PARTITION_MAX) {
            Ok(producers) => {
                *self.producers = producers;
                true
            }
            Err(error) => {
                tracing::warn!(%error, "a checkpoint's producers cannot be used; the log is read");
                false
            }
        }
    }

    fn batch(&mut self, header: &BatchHeader) {
        self.producers.apply(header, self.now_ms);
    }
}

/// Why one partition could not be opened.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error(transparent)]
    Storage(#[from] StorageError),
    #[error("hard state: {0}")]
    HardState(#[from] ringlog_raft::hard_state::HardStateError),
    #[error("group: {0}")]
    Restore(#[from] ringlog_raft::group::RestoreError),
}

impl Inner {
    /// Opens several at once, for each waits for the disk; answers their slots in the order of the openings.
    /// Makes room for `count` more partitions.
    fn expect(&self, count: usize) {
        let mut table = self.table.borrow_mut();
        table.slots.reserve(count);
        table.by_key.reserve(count);
        self.storage.expect_logs(count);
    }

    async fn open_all(inner: &Rc<Inner>, openings: Vec<(Opening, Option<Replication>)>) -> Vec<usize> {
        let worker_count = openings.len().min(PARTITIONS_OPENED_AT_ONCE);
        let queue = Rc::new(RefCell::new(openings.into_iter().enumerate().collect::<VecDeque<_>>()));
        let opened = Rc::new(RefCell::new(BTreeMap::new()));
        let workers: Vec<_> = (0..worker_count)
            .map(|_| {
                let (inner, queue, opened) = (Rc::clone(inner), Rc::clone(&queue), Rc::clone(&opened));
                let io = inner.io.clone();
                io.spawn(Priority::Foreground, async move {
                    loop {
                        let next = queue.borrow_mut().pop_front();
                        let Some((place, (opening, replication))) = next else { return };
                        let (key, stored_bytes) = (opening.key, opening.found_bytes());
                        match inner.open_one(opening, replication).await {
                            Ok(slot) => {
                                opened.borrow_mut().insert(place, slot);
                            }
                            Err(error) => {
                                tracing::error!(topic_id = %key.topic, partition = key.partition.0, %error, "partition is offline");
                                let offline = Offline { reason: error.to_string(), stored_bytes };
                                inner.table.borrow_mut().offline.insert(key, offline);
                            }
                        }
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.await;
        }
        opened.take().into_values().collect()
    }

    async fn open_one(&self, opening: Opening, replication: Option<Replication>) -> Result<usize, OpenError> {
        let Opening { key, recovered, settings } = opening;
        let mut producers = ProducerStates::new(self.producer_expiration_ms);
        let mut hard_state = match &replication {
            None => HardState::alone(self.me),
            Some(replication) => HardState::joining(self.me, replication.configuration.clone()),
        };
        let log = match recovered {
            None => self.storage.create_log(key, settings),
            Some(recovered) => {
                if let Some(bytes) = &recovered.hard_state {
                    hard_state = HardState::decode(bytes)?;
                }
                let (now_ms, expiration_ms) = (self.io.wall_now_ms(), self.producer_expiration_ms);
                let mut visitor = ProducerVisitor { producers: &mut producers, now_ms, expiration_ms };
                self.storage.open_log_from(recovered, settings, &mut visitor).await?
            }
        };
        let (restored, epochs) = {
            let opened = self.storage.log(log);
            let (log_start, log_end) = (opened.log_start(), opened.log_end());
            (
                Restored { me: self.me, hard_state, log_start, log_end },
                replication.as_ref().map(|_| epochs_of(&opened)),
            )
        };
        let group = match (&replication, epochs) {
            (Some(Replication { settings, .. }), Some(epochs)) => {
                let replicated =
                    Replicated { epochs, settings: settings.clone(), seed: self.io.random_u64() };
                Group::restore_replicated(restored, replicated)?
            }
            _ => Group::restore(restored)?,
        };
        let mut partition = Partition::new(key, log, group, producers);
        partition.replica = replication.map(|replication| Box::new(Replica::new(&replication.settings)));
        let mut table = self.table.borrow_mut();
        let is_replicated = partition.replica.is_some();
        let slot = table.slots.insert(partition);
        let previous = table.by_key.insert(key, slot);
        assert!(previous.is_none(), "partition {key:?} was opened twice");
        table.by_log.insert(log, slot);
        if is_replicated {
            table.replicated.insert(slot);
        }
        Ok(slot)
    }

    /// Starts the groups in `slots`: their hard states go to the journal as one batch of frames.
    fn start(&self, slots: &[usize]) {
        let mut hard_states = Vec::with_capacity(slots.len());
        let now_ms = self.io.wall_now_ms();
        {
            let mut table = self.table.borrow_mut();
            let mut effects = self.effects.borrow_mut();
            let mut todo = self.todo.borrow_mut();
            let mut carrier =
                Carrier { storage: &self.storage, hard_states: &mut hard_states, todo: &mut todo, now_ms };
            for slot in slots {
                table.slots[*slot].start(&mut effects, &mut carrier);
            }
        }
        self.settle(hard_states);
    }

    fn persist_hard_states(&self, hard_states: Vec<(LogId, Ticket, Bytes)>) {
        if hard_states.is_empty() {
            return;
        }
        let entries = hard_states.iter().map(|(log, _, bytes)| (*log, bytes.clone())).collect();
        let sequences = self.storage.persist_hard_states(entries);
        let mut table = self.table.borrow_mut();
        for ((log, ticket, _), sequence) in hard_states.into_iter().zip(sequences) {
            let Some(slot) = table.by_log.get(&log).copied() else { continue };
            table.slots[slot].persisting(sequence, ticket);
        }
    }

    async fn settled(&self, slot: usize) {
        poll_fn(|context| {
            let mut table = self.table.borrow_mut();
            match table.slots.get_mut(slot) {
                Some(partition) if !partition.is_settled() && !partition.is_poisoned() => {
                    partition.wait_settled(context.waker().clone());
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
        .await;
    }

    /// A journal frame is on disk.
    fn durable(&self, reports: &[Durable]) {
        let mut hard_states = Vec::new();
        {
            let mut table = self.table.borrow_mut();
            // Only records of other replicas are appended in here, and only they need the clock.
            let now_ms = if table.replicated.is_empty() { 0 } else { self.io.wall_now_ms() };
            let mut effects = self.effects.borrow_mut();
            let mut todo = self.todo.borrow_mut();
            let mut carrier =
                Carrier { storage: &self.storage, hard_states: &mut hard_states, todo: &mut todo, now_ms };
            for (at, report) in reports.iter().enumerate() {
                // Entries of one log stand in order: its last one in a run speaks for all before.
                if reports.get(at + 1).is_some_and(|next| next.log == report.log) {
                    continue;
                }
                let Some(slot) = table.by_log.get(&report.log).copied() else { continue };
                table.slots[slot].durable(report.sequence, &mut effects, &mut carrier);
            }
        }
        self.settle(hard_states);
    }

    /// Writes failed: of one log, or (`None`) of this core's journal and so of all.
    fn poison(&self, log: Option<LogId>) {
        let mut hard_states = Vec::new();
        let now_ms = self.io.wall_now_ms();
        {
            let mut table = self.table.borrow_mut();
            let mut effects = self.effects.borrow_mut();
            let mut todo = self.todo.borrow_mut();
            let mut carrier =
                Carrier { storage: &self.storage, hard_states: &mut hard_states, todo: &mut todo, now_ms };
            let slots: Vec<usize> = match log {
                Some(log) => table.by_log.get(&log).copied().into_iter().collect(),
                None => table.slots.iter().map(|(slot, _)| slot).collect(),
            };
            for slot in slots {
                table.slots[slot].poison(&mut effects, &mut carrier);
            }
        }
        self.settle(hard_states);
    }
}

/// The leader epochs of a log as its group keeps them. One without records is none.
fn epochs_of(log: &Log) -> Vec<EpochStart> {
    let mut epochs: Vec<EpochStart> = Vec::new();
    for found in log.epochs().iter().filter(|epoch| epoch.start < log.log_end()) {
        if epochs.last().is_some_and(|last| last.start >= found.start) {
            epochs.pop();
        }
        epochs.push(EpochStart { epoch: found.epoch, start: found.start });
    }
    epochs
}
