//! Building batches v2: what the bench client, the controller, `ringlog cat` and tests write.
//!
//! Offsets are those of a fresh batch, 0, 1, 2...; rewriting batches with gaps is compaction's.

use crate::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence};

use super::attributes::Attributes;
use super::batch::{BATCH_HEADER_BYTES, BATCH_OVERHEAD_BYTES, BatchHeader, MAGIC_V2, seal};
use super::compression::{Compression, compress};
use super::reader::Header;
use super::validate::{BatchProducer, NO_TIMESTAMP};
use super::varint::{SmallBuffer, varint_bytes};

/// A record to append.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewRecord<'a> {
    /// Milliseconds since the Unix epoch, or -1 for none.
    pub timestamp: i64,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: Option<&'a [u8]>,
    /// The headers, in order.
    pub headers: &'a [Header<'a>],
}

/// What a batch is to be besides its records.
#[derive(Debug, Clone, Copy)]
pub struct BatchOptions {
    /// How to compress.
    pub compression: Compression,
    /// See [`compress`].
    pub level: Option<i32>,
    /// The producer, if it is idempotent.
    pub producer: Option<BatchProducer>,
    /// Attribute bits besides the codec: [`Attributes::TRANSACTIONAL`], [`Attributes::CONTROL`]...
    pub attributes: Attributes,
    /// Clients leave 0.
    pub base_offset: Offset,
    /// Clients leave -1.
    pub leader_epoch: LeaderEpoch,
}

impl Default for BatchOptions {
    /// What a plain client sends: no codec, no producer.
    fn default() -> BatchOptions {
        BatchOptions {
            compression: Compression::None,
            level: None,
            producer: None,
            attributes: Attributes::default(),
            base_offset: Offset(0),
            leader_epoch: LeaderEpoch::NONE,
        }
    }
}

/// Why a batch cannot be built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// The format's lengths are 32-bit.
    #[error("a batch of {bytes} bytes is more than the format's {}", i32::MAX)]
    TooLarge {
        /// Bytes of the batch, uncompressed.
        bytes: u64,
    },
    /// The format's deltas are 64-bit.
    #[error("timestamp {timestamp} is too far from the batch's first, {base_timestamp}")]
    TimestampRange {
        /// Of the record.
        timestamp: i64,
        /// Of the first record.
        base_timestamp: i64,
    },
    /// A batch has at least one record.
    #[error("a batch needs a record")]
    Empty,
}

/// Collects records and makes a batch of them; keeps its buffer from one batch to the next.
#[derive(Debug, Clone, Default)]
pub struct BatchBuilder {
    body: Vec<u8>,
    record_count: i32,
    base_timestamp: i64,
    max_timestamp: i64,
}

impl BatchBuilder {
    /// An empty one.
    #[must_use]
    pub fn new() -> BatchBuilder {
        BatchBuilder::default()
    }

    /// Records appended so far.
    #[must_use]
    pub fn record_count(&self) -> u32 {
        self.record_count as u32
    }

    /// Whether none was appended yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.record_count == 0
    }

    /// Bytes of the batch if it were not compressed, header included.
    #[must_use]
    pub fn uncompressed_bytes(&self) -> usize {
        BATCH_HEADER_BYTES + self.body.len()
    }

    /// Bytes that appending `record` adds, uncompressed: to decide whether it still belongs into this batch.
    #[must_use]
    pub fn bytes_of(&self, record: &NewRecord<'_>) -> usize {
        let delta = record.timestamp.wrapping_sub(self.base_timestamp_for(record));
        let body_bytes = record_body_bytes(record, delta, self.record_count);
        varint_bytes(body_bytes as i64) + body_bytes
    }

    /// Adds a record at the next offset.
    ///
    /// # Errors
    /// `TooLarge` or `TimestampRange`; the builder is as before.
    pub fn append(&mut self, record: &NewRecord<'_>) -> Result<(), BuildError> {
        let base_timestamp = self.base_timestamp_for(record);
        let out_of_range = BuildError::TimestampRange { timestamp: record.timestamp, base_timestamp };
        let delta = record.timestamp.checked_sub(base_timestamp).ok_or(out_of_range)?;
        let body_bytes = record_body_bytes(record, delta, self.record_count);
        // With room for the length, so that a batch length never passes 32 bits; each record has bytes, so the count cannot either.
        let bytes = (self.uncompressed_bytes() + 5).saturating_add(body_bytes);
        if bytes > i32::MAX as usize {
            return Err(BuildError::TooLarge { bytes: bytes as u64 });
        }
        self.body.reserve(body_bytes + 5);
        let mut fields = SmallBuffer::new();
        fields.varint(body_bytes as i64);
        fields.push(0);
        fields.varint(delta);
        fields.varint(i64::from(self.record_count));
        fields.varint(length_of(record.key));
        self.body.extend_from_slice(fields.as_slice());
        self.body.extend_from_slice(record.key.unwrap_or_default());
        self.put_with_length(record.value);
        self.put_length(record.headers.len() as i64);
        for header in record.headers {
            self.put_with_length(Some(header.key));
            self.put_with_length(header.value);
        }
        self.base_timestamp = base_timestamp;
        self.max_timestamp =
            if self.record_count == 0 { record.timestamp } else { self.max_timestamp.max(record.timestamp) };
        self.record_count += 1;
        Ok(())
    }

    /// Makes the batch, appends it to `out` and empties the builder.
    ///
    /// # Errors
    /// `Empty`, or `TooLarge` if incompressible records grew beyond the format; the builder is as before.
    pub fn finish_into(&mut self, options: &BatchOptions, out: &mut Vec<u8>) -> Result<(), BuildError> {
        if self.record_count == 0 {
            return Err(BuildError::Empty);
        }
        let start = out.len();
        out.reserve(self.uncompressed_bytes());
        out.extend_from_slice(&[0; BATCH_HEADER_BYTES]);
        compress(options.compression, options.level, &self.body, out);
        let batch_bytes = out.len() - start;
        let Ok(batch_length) = i32::try_from(batch_bytes - BATCH_OVERHEAD_BYTES) else {
            out.truncate(start);
            return Err(BuildError::TooLarge { bytes: batch_bytes as u64 });
        };
        let none =
            BatchProducer { id: ProducerId::NONE, epoch: ProducerEpoch::NONE, base_sequence: Sequence::NONE };
        let producer = options.producer.unwrap_or(none);
        let header = BatchHeader {
            base_offset: options.base_offset,
            batch_length,
            leader_epoch: options.leader_epoch,
            magic: MAGIC_V2,
            crc: 0,
            attributes: options.attributes.with_compression(options.compression),
            last_offset_delta: self.record_count - 1,
            base_timestamp: self.base_timestamp,
            max_timestamp: self.max_timestamp,
            producer_id: producer.id,
            producer_epoch: producer.epoch,
            base_sequence: producer.base_sequence,
            record_count: self.record_count,
        };
        let batch = &mut out[start..];
        header.write_to(batch.first_chunk_mut().expect("the header's bytes were put first"));
        seal(batch);
        self.clear();
        Ok(())
    }

    /// Makes the batch in a buffer of its own; see [`BatchBuilder::finish_into`].
    ///
    /// # Errors
    /// As there.
    pub fn finish(&mut self, options: &BatchOptions) -> Result<Vec<u8>, BuildError> {
        let mut out = Vec::new();
        self.finish_into(options, &mut out)?;
        Ok(out)
    }

    /// Forgets all records and keeps the buffer.
    pub fn clear(&mut self) {
        self.body.clear();
        self.record_count = 0;
        self.base_timestamp = 0;
        self.max_timestamp = NO_TIMESTAMP;
    }

    /// The first record's timestamp is the base, as the Java client has it.
    fn base_timestamp_for(&self, record: &NewRecord<'_>) -> i64 {
        if self.record_count == 0 { record.timestamp } else { self.base_timestamp }
    }

    fn put_with_length(&mut self, bytes: Option<&[u8]>) {
        self.put_length(length_of(bytes));
        self.body.extend_from_slice(bytes.unwrap_or_default());
    }

    fn put_length(&mut self, length: i64) {
        let mut field = SmallBuffer::new();
        field.varint(length);
        self.body.extend_from_slice(field.as_slice());
    }
}

fn length_of(bytes: Option<&[u8]>) -> i64 {
    bytes.map_or(-1, |bytes| bytes.len() as i64)
}

/// Bytes of a record after its length field.
fn record_body_bytes(record: &NewRecord<'_>, timestamp_delta: i64, offset_delta: i32) -> usize {
    let nullable = |bytes: Option<&[u8]>| varint_bytes(length_of(bytes)) + bytes.map_or(0, <[u8]>::len);
    let headers: usize =
        record.headers.iter().map(|header| nullable(Some(header.key)) + nullable(header.value)).sum();
    1 + varint_bytes(timestamp_delta)
        + varint_bytes(i64::from(offset_delta))
        + nullable(record.key)
        + nullable(record.value)
        + varint_bytes(record.headers.len() as i64)
        + headers
}
