//! One partition on the core that owns it: its group, its log's name, its producers and whoever waits for it.
//!
//! Drives [`Group`] and obeys it: it writes only what a `Persist` effect names, moves the watermark only on `Commit`,
//! and stamps the group's term as leader epoch. Never touches files: the core's storage does. What only a partition with other
//! replicas does is in [`crate::replica`].

use std::collections::VecDeque;
use std::task::Waker;

use bytes::{Bytes, BytesMut};
use ringlog_protocol::ids::{LeaderEpoch, Offset, ProducerId, TopicPartition};
use ringlog_protocol::records::batch::{BatchHeader, set_base_offset, set_leader_epoch};
use ringlog_raft::configuration::Configuration;
use ringlog_raft::effect::{Effect, Persist, StepDownReason};
use ringlog_raft::event::Event;
use ringlog_raft::group::Group;
use ringlog_raft::ids::Ticket;

use crate::limits::JOURNAL_BACKLOG_BYTES_REFUSED;
use crate::producer_state::{ProducerStates, Verdict};
use crate::replica::{Answer, Durability, Replica, Todo};
use crate::storage::{CoreStorage, LogId, SpaceShortage, StampedBatch, StorageError};
use crate::waiters::{CommitFailure, CommitTicket, UncommittedAppends, Watchers};

/// Why a partition does not take a batch. The texts reach its producer: fault, value, limit, and what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    #[error("the partition is not here: it was deleted, or never was; refresh the metadata")]
    UnknownPartition,
    #[error("this replica does not lead the partition: refresh the metadata")]
    NotLeader,
    /// The log could not be opened, or a write failed: this log or this core takes no more writes until a restart.
    #[error("the log takes no writes until the broker is restarted: {reason}")]
    Poisoned { reason: String },
    #[error(
        "{backlog_bytes} bytes wait for the journal, {backlog_bytes_max} may: send again later, or set \
         ringlog.journal.dir to a faster device"
    )]
    Backlogged { backlog_bytes: usize, backlog_bytes_max: usize },
    /// MESSAGE_TOO_LARGE (10), whatever its topic allows.
    #[error(
        "a batch of {bytes} bytes is larger than the {bytes_max} that this broker stores: send smaller ones, or raise \
         ringlog.journal.file.bytes"
    )]
    TooLarge { bytes: usize, bytes_max: usize },
    #[error(transparent)]
    NoSpace(#[from] SpaceShortage),
    /// NOT_ENOUGH_REPLICAS (19).
    #[error("{in_sync} replicas are in sync, min.insync.replicas asks for {required}: send again later")]
    NotEnoughReplicas { in_sync: usize, required: usize },
    #[error("producer {producer}: {verdict}")]
    Producer { producer: ProducerId, verdict: Verdict },
    #[error(
        "the log ends at offset {end}, {count} more offsets do not fit below {}: use another partition",
        i64::MAX
    )]
    OffsetsExhausted { end: Offset, count: i64 },
}

impl AppendError {
    fn from_storage(error: StorageError) -> AppendError {
        match error {
            StorageError::Backlogged { backlog_bytes } => {
                AppendError::Backlogged { backlog_bytes, backlog_bytes_max: JOURNAL_BACKLOG_BYTES_REFUSED }
            }
            StorageError::BatchTooLarge { bytes, bytes_max } => AppendError::TooLarge { bytes, bytes_max },
            StorageError::NoSpace(shortage) => AppendError::NoSpace(shortage),
            StorageError::UnknownLog => AppendError::UnknownPartition,
            StorageError::Poisoned(_) | StorageError::Journal(_) | StorageError::Io { .. } => {
                AppendError::Poisoned { reason: error.to_string() }
            }
        }
    }
}

/// A batch that passed validation, not yet stamped.
#[derive(Debug)]
pub struct IncomingBatch {
    pub header: BatchHeader,
    pub bytes: BytesMut,
    /// Allocated size of the receive buffer that `bytes` keeps alive.
    pub buffer_bytes: u32,
}

/// Where a batch landed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    pub base_offset: Offset,
    pub log_start: Offset,
    /// It was in the log already: nothing was appended.
    pub duplicate: bool,
}

/// Invariants: `log_start <= high_watermark <= durable_end <= log_end` (the group asserts it; with other replicas the watermark may
/// lie above what is durable here); `staged` is empty between calls; `persisting` is ordered by sequence and by ticket.
pub(crate) struct Partition {
    pub(crate) key: TopicPartition,
    pub(crate) log: LogId,
    pub(crate) group: Group,
    pub(crate) producers: ProducerStates,
    uncommitted: UncommittedAppends,
    pub(crate) watchers: Watchers,
    /// The batch that the next `Persist` names.
    pub(crate) staged: Option<StampedBatch>,
    persisting: VecDeque<Persisting>,
    /// Who waits until this replica leads and its watermark is this term's.
    settling: Vec<Waker>,
    poisoned: bool,
    /// `None` in a group that has no other replicas and never will.
    pub(crate) replica: Option<Box<Replica>>,
}

#[derive(Debug, Clone, Copy)]
struct Persisting {
    sequence: u64,
    ticket: Ticket,
}

/// What carrying out effects needs beyond the partition: the core's storage, and where hard states gather so that all
/// of a core's go to the journal as one batch of frames.
pub(crate) struct Carrier<'a> {
    pub(crate) storage: &'a CoreStorage,
    pub(crate) hard_states: &'a mut Vec<(LogId, Ticket, Bytes)>,
    /// What is done after the partition.
    pub(crate) todo: &'a mut Todo,
    /// The wall clock, ms since the Unix epoch.
    pub(crate) now_ms: i64,
}

impl Partition {
    pub(crate) fn new(key: TopicPartition, log: LogId, group: Group, producers: ProducerStates) -> Partition {
        Partition {
            key,
            log,
            group,
            producers,
            uncommitted: UncommittedAppends::default(),
            watchers: Watchers::default(),
            staged: None,
            persisting: VecDeque::new(),
            settling: Vec::new(),
            poisoned: false,
            replica: None,
        }
    }

    pub(crate) fn leader_epoch(&self) -> Option<LeaderEpoch> {
        self.group.is_leader().then(|| self.group.leader_epoch())
    }

    pub(crate) fn configuration(&self) -> &Configuration {
        self.group.configuration()
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.group.is_settled()
    }

    /// See [`crate::store::View::unsettled_end`].
    pub(crate) fn unsettled_end(&self) -> Option<Offset> {
        let log_end = self.group.log_end();
        let is_behind = self.group.is_leader() && !self.group.is_settled();
        (is_behind && log_end > self.high_watermark()).then_some(log_end)
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// Appends a snapshot of the producers; returns the offset that it is of, none while the log is on its way to what the group
    /// decided.
    pub(crate) fn encode_producers(&self, out: &mut Vec<u8>) -> Option<Offset> {
        if self.is_changing() {
            return None;
        }
        self.producers.encode(out);
        Some(self.group.log_end())
    }

    /// Whether the log is on its way to what the group decided, or being copied.
    pub(crate) fn is_changing(&self) -> bool {
        self.replica().is_some_and(Replica::is_on_its_way)
    }

    /// The offset after each live producer's last batch, by producer id.
    pub(crate) fn producer_ends(&self, now_ms: i64) -> Vec<(ProducerId, Offset)> {
        self.producers.ends(now_ms)
    }

    pub(crate) fn high_watermark(&self) -> Offset {
        self.group.high_watermark()
    }

    pub(crate) fn log_start(&self) -> Offset {
        self.group.log_start()
    }

    pub(crate) fn wait_settled(&mut self, waker: Waker) {
        self.settling.push(waker);
    }

    pub(crate) fn start(&mut self, effects: &mut Vec<Effect>, carrier: &mut Carrier<'_>) {
        self.group.step(Event::Start, effects);
        self.carry_out(effects, carrier);
    }

    /// Stamps `batch` and hands it to the log. `ticket` learns when it is committed.
    pub(crate) fn append(
        &mut self,
        batch: IncomingBatch,
        ticket: Option<CommitTicket>,
        durability: Durability,
        effects: &mut Vec<Effect>,
        carrier: &mut Carrier<'_>,
    ) -> Result<Appended, AppendError> {
        if self.poisoned {
            return Err(AppendError::Poisoned { reason: self.write_failure(carrier.storage) });
        }
        let Some(epoch) = self.leader_epoch() else { return Err(AppendError::NotLeader) };
        if self.replica.is_some() {
            self.may_append(durability, carrier)?;
        }
        let now_ms = carrier.now_ms;
        match self.producers.check(&batch.header, now_ms) {
            Verdict::Append => {}
            Verdict::Duplicate { base_offset, end, .. } => {
                if let Some(ticket) = ticket {
                    self.wait_for_original(end, ticket, durability);
                }
                return Ok(Appended { base_offset, log_start: self.log_start(), duplicate: true });
            }
            verdict => {
                return Err(AppendError::Producer { producer: batch.header.producer_id, verdict });
            }
        }
        let base_offset = self.group.log_end();
        let count = i64::from(batch.header.last_offset_delta) + 1;
        let Some(end) = base_offset.0.checked_add(count).map(Offset) else {
            return Err(AppendError::OffsetsExhausted { end: base_offset, count });
        };
        carrier.storage.check_append(self.log, batch.bytes.len()).map_err(AppendError::from_storage)?;
        let IncomingBatch { mut header, mut bytes, buffer_bytes } = batch;
        set_base_offset(&mut bytes, base_offset);
        set_leader_epoch(&mut bytes, epoch);
        header.base_offset = base_offset;
        header.leader_epoch = epoch;
        let stored_bytes = bytes.len() as u64;
        self.producers.apply(&header, now_ms);
        let ticket = self.wait_for_leader_only(end, ticket, durability);
        self.uncommitted.push(end, stored_bytes, ticket);
        self.staged = Some(StampedBatch { header, bytes: bytes.freeze(), buffer_bytes });
        self.group.step(Event::Proposal { end }, effects);
        self.carry_out(effects, carrier);
        Ok(Appended { base_offset, log_start: self.log_start(), duplicate: false })
    }

    /// Records below `offset`, which lies above the start and at most at the watermark, go.
    pub(crate) fn move_log_start(
        &mut self,
        offset: Offset,
        effects: &mut Vec<Effect>,
        carrier: &mut Carrier<'_>,
    ) {
        if carrier.storage.advance_log_start(self.log, offset).is_err() {
            // The log is gone: so is this partition, in the same turn.
            return;
        }
        self.group.step(Event::LogStartMoved { log_start: offset }, effects);
        self.carry_out(effects, carrier);
        self.watchers.changed();
    }

    /// What failed, once writes did.
    fn write_failure(&self, storage: &CoreStorage) -> String {
        let of_log = || storage.log(self.log).poison().map(ToString::to_string);
        let of_core = || storage.poison().map(|reason| reason.to_string());
        of_log().or_else(of_core).unwrap_or_else(|| "a write failed".to_owned())
    }

    fn wait_for_original(&mut self, end: Offset, ticket: CommitTicket, durability: Durability) {
        if end <= self.high_watermark() {
            ticket.committed();
        } else if let Some(ticket) = self.wait_for_leader_only(end, Some(ticket), durability) {
            self.uncommitted.wait_until(end, ticket);
        }
    }

    /// The journal made everything of this partition up to `sequence` durable.
    pub(crate) fn durable(&mut self, sequence: u64, effects: &mut Vec<Effect>, carrier: &mut Carrier<'_>) {
        let mut reached = None;
        while self.persisting.front().is_some_and(|first| first.sequence <= sequence) {
            reached = self.persisting.pop_front().map(|persisting| persisting.ticket);
        }
        if self.replica.is_some() {
            self.note_durable(sequence);
        }
        if let Some(ticket) = reached {
            self.group.step(Event::Persisted { ticket }, effects);
            self.carry_out(effects, carrier);
        }
        if self.replica.is_some() {
            self.resolve_leader_acks();
        }
    }

    /// Nothing more of this partition becomes durable. Waiters fail; reads of what is committed go on.
    pub(crate) fn poison(&mut self, effects: &mut Vec<Effect>, carrier: &mut Carrier<'_>) {
        if std::mem::replace(&mut self.poisoned, true) {
            return;
        }
        let ticket = self.persisting.front().map_or(Ticket(0), |first| first.ticket);
        self.persisting.clear();
        self.group.step(Event::PersistFailed { ticket }, effects);
        self.carry_out(effects, carrier);
        self.uncommitted.fail_all(CommitFailure::Poisoned);
        self.end_replica(CommitFailure::Poisoned);
        self.watchers.attention();
        self.settling.drain(..).for_each(Waker::wake);
    }

    /// The partition goes away: everybody who waits learns it.
    pub(crate) fn close(&mut self) {
        self.uncommitted.fail_all(CommitFailure::Gone);
        self.end_replica(CommitFailure::Gone);
        self.watchers.attention();
        self.settling.drain(..).for_each(Waker::wake);
    }

    /// Producers that wait for a commit go on where too few replicas are in sync to reach it: it may come later.
    pub(crate) fn fail_commits_out_of_reach(&mut self) {
        if self.uncommitted.is_empty() || !self.group.is_leader() {
            return;
        }
        if let Some((in_sync, required)) = self.missing_replicas() {
            let failure = CommitFailure::NotEnoughReplicas { in_sync, required };
            if self.uncommitted.fail_waiting(failure) > 0 {
                ringlog_io::reached!("replica.commit_out_of_reach");
            }
        }
    }

    /// The journal took the hard state of `ticket` as entry `sequence`.
    pub(crate) fn persisting(&mut self, sequence: u64, ticket: Ticket) {
        debug_assert!(
            self.persisting.back().is_none_or(|last| last.sequence < sequence && last.ticket < ticket)
        );
        self.persisting.push_back(Persisting { sequence, ticket });
    }

    pub(crate) fn carry_out(&mut self, effects: &mut Vec<Effect>, carrier: &mut Carrier<'_>) {
        loop {
            for effect in effects.iter_mut() {
                match effect {
                    Effect::SteppedDown { reason, .. } => self.stepped_down(*reason, carrier),
                    // Looked at where it lies: an effect is large, and these two come with each batch.
                    Effect::Persist(persist) if self.replica.is_none() => self.persist(persist, carrier),
                    Effect::Commit { high_watermark } => self.commit(*high_watermark),
                    Effect::BecameLeader { .. } => {}
                    beyond => {
                        let done = Effect::Commit { high_watermark: Offset(0) };
                        match std::mem::replace(beyond, done) {
                            Effect::Persist(persist) => self.persist_replicated(persist, carrier),
                            beyond => self.carry_out_beyond(beyond, carrier),
                        }
                    }
                }
            }
            effects.clear();
            if self.replica.is_none() || !self.read_next(effects, carrier) {
                return;
            }
        }
    }

    fn commit(&mut self, high_watermark: Offset) {
        let visible_bytes = self.uncommitted.commit(high_watermark);
        self.watchers.visible(visible_bytes);
        self.settling.drain(..).for_each(Waker::wake);
        if self.replica.is_some() && self.settles_now() {
            self.watchers.attention();
        }
    }

    /// Whoever waits for a commit beyond the watermark waits in vain here: another leader may have the records, or not.
    fn stepped_down(&mut self, reason: StepDownReason, carrier: &mut Carrier<'_>) {
        let failure = if self.poisoned { CommitFailure::Poisoned } else { CommitFailure::NotLeader };
        self.uncommitted.fail_all(failure);
        if self.replica.is_some() {
            self.lead_no_more(failure);
            self.watchers.attention();
        }
        carrier.todo.answers.push(Answer::SteppedDown { log: self.log, reason });
    }

    /// Of a group of one.
    fn persist(&mut self, persist: &Persist, carrier: &mut Carrier<'_>) {
        assert!(persist.truncate_to.is_none(), "a group of one never truncates");
        if persist.append.is_some() {
            let batch = self.staged.take().expect("a proposal was staged before it was stepped");
            match carrier.storage.append(self.log, batch) {
                Ok(sequence) => self.persisting(sequence, persist.ticket),
                Err(error) => unreachable!("asked just before the proposal: {error}"),
            }
        }
        if let Some(hard_state) = &persist.hard_state {
            let mut encoded = Vec::with_capacity(64);
            hard_state.encode(&mut encoded);
            carrier.hard_states.push((self.log, persist.ticket, Bytes::from(encoded)));
        }
    }
}
