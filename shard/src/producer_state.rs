//! Idempotent producers of one partition (KIP-98): what each appended last, and what that makes of its next batch.
//!
//! Owns sequences, epochs and the five newest batches of each producer. Pure: it reads no log and no clock, and never decides whether a
//! batch is valid otherwise. What it holds is derived from the batch headers of the log and can be rebuilt by replaying them.

mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{Offset, ProducerEpoch, ProducerId, Sequence};
use ringlog_protocol::records::batch::BatchHeader;

pub use snapshot::SnapshotError;

use crate::limits::{BATCHES_PER_PRODUCER, PRODUCERS_PER_PARTITION_MAX};

/// What to do with a batch. Each refusal names the Kafka error that clients expect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Append it, then [`ProducerStates::apply`] it.
    Append,
    /// It is here already, at `base_offset..end`: answer with that, but not before it is committed. `timestamp_ms` is its largest
    /// timestamp as stored.
    Duplicate { base_offset: Offset, end: Offset, timestamp_ms: i64 },
    /// It was appended, but so long ago that its offset is forgotten: DUPLICATE_SEQUENCE_NUMBER (46), which clients take as success
    /// with an unknown offset.
    DuplicateForgotten { first: Sequence, oldest_known: Sequence },
    /// A sequence was skipped, or a batch was cut differently when sent again: OUT_OF_ORDER_SEQUENCE_NUMBER (45).
    OutOfOrder { found: Sequence, expected: Sequence },
    /// A new epoch begins at sequence 0: OUT_OF_ORDER_SEQUENCE_NUMBER (45).
    NewEpochNotAtZero { epoch: ProducerEpoch, found: Sequence },
    /// A newer instance of the producer wrote since: INVALID_PRODUCER_EPOCH (47).
    StaleEpoch { found: ProducerEpoch, current: ProducerEpoch },
}

impl Verdict {
    /// The Kafka error that clients expect; none for what succeeds.
    pub fn error_code(&self) -> ErrorCode {
        match self {
            Verdict::Append | Verdict::Duplicate { .. } => ErrorCode::None,
            Verdict::DuplicateForgotten { .. } => ErrorCode::DuplicateSequenceNumber,
            Verdict::OutOfOrder { .. } | Verdict::NewEpochNotAtZero { .. } => {
                ErrorCode::OutOfOrderSequenceNumber
            }
            Verdict::StaleEpoch { .. } => ErrorCode::InvalidProducerEpoch,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Verdict::Append => write!(f, "the batch follows the last one"),
            Verdict::Duplicate { base_offset, .. } => {
                write!(f, "the batch is here already, at offset {base_offset}")
            }
            Verdict::DuplicateForgotten { first, oldest_known } => write!(
                f,
                "sequence {first} was appended before, but of the last {BATCHES_PER_PRODUCER} batches only, from \
                 {oldest_known} on, the offsets are remembered: set max.in.flight.requests.per.connection to at most \
                 {BATCHES_PER_PRODUCER}"
            ),
            Verdict::OutOfOrder { found, expected } => {
                write!(
                    f,
                    "batch begins at sequence {found}, expected {expected}: one before it is missing, or it was cut \
                     differently when sent again"
                )
            }
            Verdict::NewEpochNotAtZero { epoch, found } => {
                write!(f, "the first batch of epoch {epoch} begins at sequence {found}, expected 0")
            }
            Verdict::StaleEpoch { found, current } => {
                write!(
                    f,
                    "epoch {found} is older than the last seen, {current}: a newer instance of the producer wrote since"
                )
            }
        }
    }
}

/// All producers of one partition. Shard view: lives on the core that owns the partition.
///
/// Appends count as soon as they are applied, committed or not, so a retry of a batch in flight is a duplicate. After a
/// truncation the state is rebuilt from the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProducerStates {
    /// `producer.id.expiration.ms`: a producer that appended nothing for longer is forgotten.
    expiration_ms: i64,
    producers_max: usize,
    /// Boxed: a node of the map has room for eleven, and most partitions have one producer.
    producers: BTreeMap<ProducerId, Box<Producer>>,
    /// Producers by their last append, oldest first: `by_use[p.last_use] == id` for each entry `(id, p)`.
    by_use: BTreeMap<u64, ProducerId>,
    uses: u64,
}

/// One producer. `1 <= batch count` unless only a marker of a transaction was seen in the present epoch.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Producer {
    epoch: ProducerEpoch,
    batches: [Batch; BATCHES_PER_PRODUCER],
    batch_count: usize,
    /// How many sequences up to the last one are known to be in the log without a gap: only those can be called forgotten
    /// duplicates. Where state began in the middle (expiry, retention), an earlier sequence may never have been written.
    run: u32,
    last_append_ms: i64,
    last_use: u64,
}

/// One appended batch: sequences `first..=last` at offsets `base_offset..end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Batch {
    first: Sequence,
    last: Sequence,
    base_offset: Offset,
    end: Offset,
    timestamp_ms: i64,
}

/// Runs stop growing here: half of the sequence space, so that before and after stay distinct over a wrap.
const RUN_MAX: u32 = 1 << 30;

impl ProducerStates {
    /// No producers yet. `expiration_ms` is `producer.id.expiration.ms`.
    pub fn new(expiration_ms: i64) -> ProducerStates {
        ProducerStates::with_bound(expiration_ms, PRODUCERS_PER_PARTITION_MAX)
    }

    /// Like [`ProducerStates::new`] with another bound on the number of producers; at least 1.
    pub fn with_bound(expiration_ms: i64, producers_max: usize) -> ProducerStates {
        let producers_max = producers_max.max(1);
        let (producers, by_use) = (BTreeMap::new(), BTreeMap::new());
        ProducerStates { expiration_ms, producers_max, producers, by_use, uses: 0 }
    }

    /// How many producers are remembered, expired ones included until [`ProducerStates::expire`] ran.
    pub fn len(&self) -> usize {
        self.producers.len()
    }

    /// True when no producer is remembered.
    pub fn is_empty(&self) -> bool {
        self.producers.is_empty()
    }

    /// The offset after the last batch of each producer that is not expired, by producer id.
    pub fn ends(&self, now_ms: i64) -> Vec<(ProducerId, Offset)> {
        let live = self.producers.iter().filter(|(_, found)| !found.is_expired(now_ms, self.expiration_ms));
        live.filter_map(|(id, found)| Some((*id, found.batches().last()?.end))).collect()
    }

    /// What a client's batch is to its producer's last ones. Reads producer id, epoch, base sequence and last offset delta; batches
    /// without a producer id are always appended. `now_ms` is the wall clock, in milliseconds since the Unix epoch.
    pub fn check(&self, header: &BatchHeader, now_ms: i64) -> Verdict {
        let Some(producer) = self.live(header.producer_id, now_ms) else { return Verdict::Append };
        let (epoch, first) = (header.producer_epoch, header.base_sequence);
        if epoch < producer.epoch {
            return Verdict::StaleEpoch { found: epoch, current: producer.epoch };
        }
        if epoch > producer.epoch {
            let at_zero = first == Sequence(0);
            return if at_zero {
                Verdict::Append
            } else {
                Verdict::NewEpochNotAtZero { epoch, found: first }
            };
        }
        let (Some(oldest), Some(newest)) = (producer.batches().first(), producer.batches().last()) else {
            // Only a transaction's marker was seen in this epoch. What follows begins anew.
            let at_zero = first == Sequence(0);
            return if at_zero {
                Verdict::Append
            } else {
                Verdict::OutOfOrder { found: first, expected: Sequence(0) }
            };
        };
        let last = last_sequence(header);
        let same = |batch: &&Batch| batch.first == first && batch.last == last;
        if let Some(&Batch { base_offset, end, timestamp_ms, .. }) = producer.batches().iter().find(same) {
            ringlog_io::reached!("producer.duplicate");
            return Verdict::Duplicate { base_offset, end, timestamp_ms };
        }
        let expected = advance(newest.last, 1);
        if first == expected {
            return Verdict::Append;
        }
        // Known to be in the log, and wholly before what is remembered.
        let behind = distance(first, newest.last);
        let before_oldest = distance(last, newest.last) > distance(oldest.first, newest.last);
        if first >= Sequence(0)
            && behind < producer.run
            && before_oldest
            && distance(last, newest.last) <= behind
        {
            return Verdict::DuplicateForgotten { first, oldest_known: oldest.first };
        }
        Verdict::OutOfOrder { found: first, expected }
    }

    /// Remembers an appended batch: base offset stamped, [`Verdict::Append`] or replayed from the log. In a replay, where
    /// the log is right whatever it says, nothing is checked.
    ///
    /// `now_ms` is when it counts as appended, for expiry. In a replay pass the time of the replay, not the batch's own: a backfill with old
    /// timestamps would expire at once, and a retry of it would then be appended twice.
    pub fn apply(&mut self, header: &BatchHeader, now_ms: i64) {
        if header.producer_id < ProducerId(0) {
            return;
        }
        self.uses += 1;
        let last_use = self.uses;
        let epoch = header.producer_epoch;
        let producer =
            self.producers.entry(header.producer_id).or_insert_with(|| Box::new(Producer::new(epoch)));
        self.by_use.remove(&producer.last_use);
        self.by_use.insert(last_use, header.producer_id);
        producer.last_use = last_use;
        producer.last_append_ms = now_ms;
        if producer.epoch != epoch {
            **producer = Producer { last_append_ms: now_ms, last_use, ..Producer::new(epoch) };
        }
        // A transaction's marker carries an epoch but no sequence.
        if !header.attributes.is_control() && header.base_sequence >= Sequence(0) {
            producer.push(Batch {
                first: header.base_sequence,
                last: last_sequence(header),
                base_offset: header.base_offset,
                end: header.next_offset(),
                timestamp_ms: header.max_timestamp,
            });
        }
        self.evict();
    }

    /// Forgets producers that appended nothing for longer than the expiration. Returns how many. Frees memory only:
    /// [`ProducerStates::check`] does not believe an expired one either way.
    pub fn expire(&mut self, now_ms: i64) -> usize {
        let before = self.producers.len();
        let expiration_ms = self.expiration_ms;
        let by_use = &mut self.by_use;
        self.producers.retain(|_, producer| {
            let keep = !producer.is_expired(now_ms, expiration_ms);
            if !keep {
                by_use.remove(&producer.last_use);
            }
            keep
        });
        before - self.producers.len()
    }

    /// Checks the invariants named on the fields.
    ///
    /// # Panics
    /// When one does not hold: duplicates could be appended, or new batches dropped as duplicates.
    pub fn validate(&self) {
        assert_eq!(
            self.by_use.len(),
            self.producers.len(),
            "each producer has one place in the order of use"
        );
        assert!(self.producers.len() <= self.producers_max, "{} producers", self.producers.len());
        for (id, producer) in &self.producers {
            assert_eq!(
                self.by_use.get(&producer.last_use),
                Some(id),
                "producer {id} is where its last use says"
            );
            for pair in producer.batches().windows(2) {
                assert_eq!(
                    pair[1].first,
                    advance(pair[0].last, 1),
                    "batches of producer {id} follow each other"
                );
                assert!(pair[0].end <= pair[1].base_offset, "offsets of producer {id} rise");
            }
        }
    }

    fn evict(&mut self) {
        while self.producers.len() > self.producers_max {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            self.producers.remove(&oldest);
        }
    }

    fn live(&self, id: ProducerId, now_ms: i64) -> Option<&Producer> {
        let producer = self.producers.get(&id)?.as_ref();
        (!producer.is_expired(now_ms, self.expiration_ms)).then_some(producer)
    }
}

impl Producer {
    fn new(epoch: ProducerEpoch) -> Producer {
        let batches = [Batch::default(); BATCHES_PER_PRODUCER];
        Producer { epoch, batches, batch_count: 0, run: 0, last_append_ms: 0, last_use: 0 }
    }

    fn batches(&self) -> &[Batch] {
        self.batches.get(..self.batch_count).expect("batch_count never exceeds the array")
    }

    fn push(&mut self, batch: Batch) {
        // After a gap in the log (compaction, or a state that expired in between) the run and what is remembered begin anew.
        let follows = self.batches().last().is_some_and(|newest| batch.first == advance(newest.last, 1));
        if !follows {
            (self.batch_count, self.run) = (0, 0);
        }
        if self.batch_count == BATCHES_PER_PRODUCER {
            self.batches.rotate_left(1);
            self.batch_count -= 1;
        }
        self.batches[self.batch_count] = batch;
        self.batch_count += 1;
        self.run = self.run.saturating_add(distance(batch.first, batch.last) + 1).min(RUN_MAX);
    }

    fn is_expired(&self, now_ms: i64, expiration_ms: i64) -> bool {
        now_ms.saturating_sub(self.last_append_ms) >= expiration_ms
    }
}

fn last_sequence(header: &BatchHeader) -> Sequence {
    advance(header.base_sequence, header.last_offset_delta)
}

/// Sequences count 0..=2^31-1 and then 0 again, so arithmetic on them is arithmetic modulo 2^31.
fn advance(sequence: Sequence, by: i32) -> Sequence {
    Sequence(sequence.0.wrapping_add(by) & i32::MAX)
}

/// How many steps lead from `from` up to `to`.
fn distance(from: Sequence, to: Sequence) -> u32 {
    (to.0.wrapping_sub(from.0) & i32::MAX).unsigned_abs()
}
