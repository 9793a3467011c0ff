//! Producer states as bytes, for checkpoints. Owns the layout; where the bytes lie and which log end they belong to is the checkpoint's.

use ringlog_protocol::ids::{Offset, ProducerEpoch, ProducerId, Sequence};

use super::{Batch, Producer, ProducerStates, RUN_MAX, advance};
use crate::limits::BATCHES_PER_PRODUCER;

const SNAPSHOT_VERSION: u8 = 1;
const PRODUCER_BYTES_MIN: usize = 8 + 2 + 4 + 8 + 1;

/// Bytes that are no snapshot of producer states.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error("producer snapshot ends early, {bytes} bytes")]
    Truncated { bytes: usize },
    #[error("producer snapshot has {extra} bytes beyond its end")]
    Trailing { extra: usize },
    #[error("producer snapshot has version {version}, this build reads {SNAPSHOT_VERSION}")]
    UnknownVersion { version: u8 },
    #[error("producer {producer} in a snapshot is impossible: {what}")]
    Impossible { producer: i64, what: &'static str },
}

impl ProducerStates {
    /// Appends a snapshot.
    ///
    /// Layout, version 1, little-endian, stable:
    ///
    /// ```text
    /// u8  version = 1
    /// u32 producers, in the order of their last append, oldest first; each:
    ///     i64 producer id, i16 epoch, u32 run, i64 last append (ms since the Unix epoch)
    ///     u8 batches (0..=5), oldest first; each:
    ///         i32 first sequence, i32 last sequence, i64 base offset, i64 end offset, i64 timestamp (ms)
    /// ```
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(SNAPSHOT_VERSION);
        let count = u32::try_from(self.producers.len()).expect("bounded by producers_max");
        out.extend_from_slice(&count.to_le_bytes());
        for id in self.by_use.values() {
            let producer = self.producers.get(id).expect("by_use names producers only");
            out.extend_from_slice(&id.0.to_le_bytes());
            out.extend_from_slice(&producer.epoch.0.to_le_bytes());
            out.extend_from_slice(&producer.run.to_le_bytes());
            out.extend_from_slice(&producer.last_append_ms.to_le_bytes());
            out.push(u8::try_from(producer.batch_count).expect("bounded by BATCHES_PER_PRODUCER"));
            for batch in producer.batches() {
                out.extend_from_slice(&batch.first.0.to_le_bytes());
                out.extend_from_slice(&batch.last.0.to_le_bytes());
                out.extend_from_slice(&batch.base_offset.0.to_le_bytes());
                out.extend_from_slice(&batch.end.0.to_le_bytes());
                out.extend_from_slice(&batch.timestamp_ms.to_le_bytes());
            }
        }
    }

    /// Reads what [`ProducerStates::encode`] wrote. Where the bound is lower than it was, the oldest producers are dropped.
    ///
    /// # Errors
    /// Truncated, trailing or impossible bytes, and other versions.
    pub fn decode(
        bytes: &[u8],
        expiration_ms: i64,
        producers_max: usize,
    ) -> Result<ProducerStates, SnapshotError> {
        let mut reader = Reader { whole: bytes.len(), left: bytes };
        let [version] = reader.take()?;
        if version != SNAPSHOT_VERSION {
            return Err(SnapshotError::UnknownVersion { version });
        }
        let count = u32::from_le_bytes(reader.take()?) as usize;
        if count > reader.left.len() / PRODUCER_BYTES_MIN {
            return Err(SnapshotError::Truncated { bytes: bytes.len() });
        }
        let mut states = ProducerStates::with_bound(expiration_ms, producers_max);
        for _ in 0..count {
            let id = ProducerId(i64::from_le_bytes(reader.take()?));
            let mut producer = reader.producer(id)?;
            states.uses += 1;
            producer.last_use = states.uses;
            if states.producers.insert(id, Box::new(producer)).is_some() {
                return Err(SnapshotError::Impossible { producer: id.0, what: "it is named twice" });
            }
            states.by_use.insert(states.uses, id);
        }
        if !reader.left.is_empty() {
            return Err(SnapshotError::Trailing { extra: reader.left.len() });
        }
        states.evict();
        Ok(states)
    }
}

struct Reader<'a> {
    whole: usize,
    left: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], SnapshotError> {
        let (taken, left) =
            self.left.split_first_chunk().ok_or(SnapshotError::Truncated { bytes: self.whole })?;
        self.left = left;
        Ok(*taken)
    }

    fn producer(&mut self, id: ProducerId) -> Result<Producer, SnapshotError> {
        let impossible = |what| SnapshotError::Impossible { producer: id.0, what };
        let mut producer = Producer::new(ProducerEpoch(i16::from_le_bytes(self.take()?)));
        let run = u32::from_le_bytes(self.take()?);
        producer.last_append_ms = i64::from_le_bytes(self.take()?);
        let [count] = self.take()?;
        if id < ProducerId(0) || run > RUN_MAX {
            return Err(impossible("its id or its run is out of range"));
        }
        if usize::from(count) > BATCHES_PER_PRODUCER {
            return Err(impossible("it has more than five batches"));
        }
        for _ in 0..count {
            let batch = self.batch()?;
            let newest = producer.batches().last();
            let follows = newest.is_none_or(|newest| {
                batch.first == advance(newest.last, 1) && newest.end <= batch.base_offset
            });
            if !follows || batch.first.0 < 0 || batch.last.0 < 0 || batch.base_offset >= batch.end {
                return Err(impossible("its batches do not follow each other"));
            }
            producer.push(batch);
        }
        producer.run = run;
        Ok(producer)
    }

    fn batch(&mut self) -> Result<Batch, SnapshotError> {
        Ok(Batch {
            first: Sequence(i32::from_le_bytes(self.take()?)),
            last: Sequence(i32::from_le_bytes(self.take()?)),
            base_offset: Offset(i64::from_le_bytes(self.take()?)),
            end: Offset(i64::from_le_bytes(self.take()?)),
            timestamp_ms: i64::from_le_bytes(self.take()?),
        })
    }
}
