//! Persists of a replicated partition, carried out in ticket order; those behind a truncation wait for it.
//!
//! Owns that order. A truncation has to look into files, so it takes time; whatever the group asks for meanwhile queues here, and so
//! does an append that the journal has no room for: the group decided it, it cannot be refused any more.

use std::collections::VecDeque;
use std::rc::Weak;
use std::time::Duration;

use bytes::Bytes;
use ringlog_io::Io;
use ringlog_protocol::ids::Offset;
use ringlog_raft::effect::{AppendRange, AppendSource, Effect, Persist};
use ringlog_raft::ids::Ticket;

use super::{Replica, Work};
use crate::limits::REPLICA_WRITE_RETRY_MS;
use crate::partition::{Carrier, Partition};
use crate::producer_state::ProducerStates;
use crate::storage::{CoreStorage, LogId, ReadError, StampedBatch, StorageError, TruncateError};
use crate::store::{Inner, ProducerVisitor};

/// What one `Persist` asks for and is not done yet: its parts become durable in the order in which they stand here.
struct Write {
    ticket: Ticket,
    truncate_to: Option<Offset>,
    batches: VecDeque<StampedBatch>,
    /// Records of another replica, of which the producers do not know yet.
    is_received: bool,
    hard_state: Option<Bytes>,
    /// Of the newest journal entry of it.
    sequence: Option<u64>,
}

/// Persists that wait, oldest first.
#[derive(Default)]
pub(crate) struct Writes {
    queue: VecDeque<Write>,
    /// A task carries them out.
    is_running: bool,
}

impl Writes {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
    }
}

/// What the oldest persist needs before the rest of it can be done.
enum Next {
    Nothing,
    Truncate(Offset),
    Room,
}

impl Partition {
    pub(crate) fn persist_replicated(&mut self, persist: Persist, carrier: &mut Carrier<'_>) {
        let Persist { ticket, truncate_to, append, hard_state } = persist;
        let (batches, is_received) = self.take_batches(append);
        let hard_state = hard_state.map(|hard_state| {
            let mut encoded = Vec::with_capacity(128);
            hard_state.encode(&mut encoded);
            Bytes::from(encoded)
        });
        let sequence = None;
        let mut write = Write { ticket, truncate_to, batches, is_received, hard_state, sequence };
        let waits = self.replica().is_some_and(|replica| !replica.writes.is_empty());
        if !waits && truncate_to.is_none() && self.write(&mut write, carrier) {
            return;
        }
        let log = self.log;
        let Some(replica) = self.replica_mut() else { return };
        replica.writes.queue.push_back(write);
        if !std::mem::replace(&mut replica.writes.is_running, true) {
            carrier.todo.work.push(Work::Write { log });
        }
    }

    /// The batches that a persist names: the proposal's, or those of the message being stepped.
    fn take_batches(&mut self, append: Option<AppendRange>) -> (VecDeque<StampedBatch>, bool) {
        let Some(AppendRange { base, end, source }) = append else { return (VecDeque::new(), false) };
        match source {
            AppendSource::Proposal { .. } => (self.staged.take().into_iter().collect(), false),
            AppendSource::Message => {
                let Some(replica) = self.replica_mut() else { return (VecDeque::new(), true) };
                let incoming = std::mem::take(&mut replica.incoming);
                let ends_beyond = incoming.into_iter().filter(|batch| batch.header.next_offset() > base);
                let batches: VecDeque<_> = ends_beyond.map(super::VerifiedBatch::into_stamped).collect();
                let last = batches.back().map(|last| last.header.next_offset());
                assert_eq!(last, Some(end), "the group appends what the message holds");
                (batches, true)
            }
        }
    }

    /// Does what can be done at once. False: the rest has to wait.
    fn write(&mut self, write: &mut Write, carrier: &mut Carrier<'_>) -> bool {
        if self.replica().is_none_or(|replica| replica.is_broken) {
            return true;
        }
        while let Some(batch) = write.batches.front() {
            let (base, end) = (batch.header.base_offset, batch.header.next_offset());
            if !carrier.storage.log(self.log).takes(base, end) {
                self.break_down(carrier);
                return true;
            }
            match carrier.storage.check_append(self.log, batch.bytes.len()) {
                Ok(()) => {}
                Err(StorageError::Backlogged { .. } | StorageError::NoSpace(_)) => return false,
                // Nothing becomes durable any more: the poison listener says so.
                Err(_) => return true,
            }
            self.hand_over_hard_states(carrier);
            let Some(batch) = write.batches.pop_front() else { break };
            let header = batch.header;
            match carrier.storage.append(self.log, batch) {
                Ok(sequence) => write.sequence = Some(sequence),
                Err(error) => unreachable!("asked just before the append: {error}"),
            }
            if write.is_received {
                self.producers.apply(&header, carrier.now_ms);
            }
        }
        match write.hard_state.take() {
            Some(hard_state) => carrier.hard_states.push((self.log, write.ticket, hard_state)),
            None => {
                if let Some(sequence) = write.sequence {
                    self.hand_over_hard_states(carrier);
                    self.persisting(sequence, write.ticket);
                }
            }
        }
        true
    }

    /// Group and log disagree: a defect, here or at a peer. Nothing of this replica is reported durable any more, so nobody counts
    /// on it.
    fn break_down(&mut self, carrier: &mut Carrier<'_>) {
        let (topic_id, partition, log_end) = (self.key.topic, self.key.partition.0, self.stored_end(carrier));
        tracing::error!(%topic_id, partition, %log_end, "records do not follow the log; this replica acknowledges nothing more");
        debug_assert!(false, "records of {} do not follow its log, which ends at {log_end}", self.key);
        carrier.todo.stats.contradictions += 1;
        if let Some(replica) = self.replica_mut() {
            replica.is_broken = true;
        }
    }

    /// Hard states of a core gather and go as one batch. Those of this log go first where data follows: records never become durable
    /// before the term that they came under.
    fn hand_over_hard_states(&mut self, carrier: &mut Carrier<'_>) {
        if carrier.hard_states.iter().all(|(log, ..)| *log != self.log) {
            return;
        }
        let gathered = std::mem::take(carrier.hard_states);
        for (log, ticket, bytes) in gathered {
            if log != self.log {
                carrier.hard_states.push((log, ticket, bytes));
                continue;
            }
            for sequence in carrier.storage.persist_hard_states(vec![(log, bytes)]) {
                self.persisting(sequence, ticket);
            }
        }
    }

    /// Goes on with the persists that wait, as far as that takes no time.
    fn go_on_writing(&mut self, effects: &mut Vec<Effect>, carrier: &mut Carrier<'_>) -> Next {
        let next = loop {
            let Some(replica) = self.replica_mut() else { break Next::Nothing };
            let Some(mut write) = replica.writes.queue.pop_front() else {
                replica.writes.is_running = false;
                break Next::Nothing;
            };
            let truncate_to = write.truncate_to;
            let is_done = truncate_to.is_none() && self.write(&mut write, carrier);
            if !is_done {
                if let Some(replica) = self.replica_mut() {
                    replica.writes.queue.push_front(write);
                }
                break truncate_to.map_or(Next::Room, Next::Truncate);
            }
        };
        // Its truncation may have become durable before it stood in the queue of what is on its way.
        let durable = self.replica().map_or(0, |replica| replica.durable_sequence);
        self.durable(durable, effects, carrier);
        next
    }

    /// The log is cut, and its producers are those of what is left.
    fn truncated(&mut self, sequence: Option<u64>, producers: ProducerStates) {
        self.producers = producers;
        let Some(replica) = self.replica_mut() else { return };
        if let Some(write) = replica.writes.queue.front_mut() {
            write.truncate_to = None;
            write.sequence = sequence;
        }
    }

    pub(crate) fn replica(&self) -> Option<&Replica> {
        self.replica.as_deref()
    }

    pub(crate) fn replica_mut(&mut self) -> Option<&mut Replica> {
        self.replica.as_deref_mut()
    }
}

/// Carries out the persists of one log that wait, until none does.
pub(crate) async fn run_writes(inner: Weak<Inner>, io: Io, log: LogId) {
    loop {
        let Some(store) = inner.upgrade() else { return };
        let Some(next) = store.with_log_partition(log, Partition::go_on_writing) else { return };
        let storage = store.storage.clone();
        drop(store);
        match next {
            Next::Nothing => return,
            Next::Room => {
                storage.room().await;
                io.sleep(Duration::from_millis(REPLICA_WRITE_RETRY_MS)).await;
            }
            Next::Truncate(to) => match truncate(&inner, &storage, log, to).await {
                Ok((sequence, producers)) => {
                    let Some(store) = inner.upgrade() else { return };
                    let done = |partition: &mut Partition, _: &mut Vec<Effect>, _: &mut Carrier<'_>| {
                        partition.truncated(sequence, producers);
                    };
                    if store.with_log_partition(log, done).is_none() {
                        return;
                    }
                }
                Err(CannotTruncate::ForGood) => return,
                Err(CannotTruncate::Now) => io.sleep(Duration::from_millis(REPLICA_WRITE_RETRY_MS)).await,
            },
        }
    }
}

enum CannotTruncate {
    /// The files cannot be read: tried again.
    Now,
    /// The log is gone or takes no more writes.
    ForGood,
}

/// Cuts the log and makes its producers anew. Nobody appends meanwhile.
async fn truncate(
    inner: &Weak<Inner>,
    storage: &CoreStorage,
    log: LogId,
    to: Offset,
) -> Result<(Option<u64>, ProducerStates), CannotTruncate> {
    ringlog_io::reached!("replica.truncated");
    let sequence = match storage.truncate(log, to).await {
        Ok(truncated) => {
            assert_eq!(truncated.end, to, "logs part between batches only");
            truncated.sequence
        }
        Err(TruncateError::Storage(_)) => return Err(CannotTruncate::ForGood),
        Err(error) => {
            tracing::warn!(%error, "a replica cannot be truncated yet");
            return Err(CannotTruncate::Now);
        }
    };
    loop {
        let store = inner.upgrade().ok_or(CannotTruncate::ForGood)?;
        let (io, expiration_ms) = (store.io.clone(), store.producer_expiration_ms);
        drop(store);
        let now_ms = io.wall_now_ms();
        let mut producers = ProducerStates::new(expiration_ms);
        let mut visitor = ProducerVisitor { producers: &mut producers, now_ms, expiration_ms };
        match storage.visit_headers(log, &mut visitor).await {
            Ok(()) => return Ok((sequence, producers)),
            Err(ReadError::UnknownLog) => return Err(CannotTruncate::ForGood),
            Err(error) => {
                tracing::warn!(%error, "the producers of a truncated replica cannot be read yet");
                io.sleep(Duration::from_millis(REPLICA_WRITE_RETRY_MS)).await;
            }
        }
    }
}
