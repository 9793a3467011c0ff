//! What a batch from a client must pass before it is appended: Kafka's `LogValidator` and `DefaultRecordBatch.ensureValid`.
//!
//! Stricter than Kafka in three things, each of which would leave the log with something that consumers cannot read alike: offset
//! deltas are checked in uncompressed batches too, nulls are -1 and nothing else, and decompression and the count have
//! bounds. Laxer in one: the base offset may be anything, since the broker stamps its own. It knows nothing of
//! sequences, epochs or transactions of before: those are the partition's.

use crate::error_code::ErrorCode;
use crate::ids::{ProducerEpoch, ProducerId, Sequence};

use super::attributes::TimestampType;
use super::batch::{BATCH_HEADER_BYTES, BatchHeader, check_crc};
use super::compression::{Compression, CompressionError, decompress};
use super::error::{REJECTED_RECORDS_MAX, RecordError, RecordFault, RejectedRecord};
use super::reader::{RECORD_BYTES_MIN, RawRecord, take_record};
use super::varint::Cursor;

/// A timestamp that is not set.
pub const NO_TIMESTAMP: i64 = -1;
/// Decompressed bytes of one batch, whatever `max.message.bytes` is: what one core may spend on one partition of one request.
pub const DECOMPRESSED_BYTES_MAX: usize = 64 << 20;
/// Decompressed bytes of one batch as a multiple of `max.message.bytes`; text compresses 3 to 10 times.
pub const DECOMPRESSED_RATIO_MAX: usize = 32;
/// Topics with a smaller `max.message.bytes` still take as many records as a batch of this size can hold uncompressed.
const COUNTED_BYTES_MIN: usize = 1 << 20;
/// The first Produce version that may carry zstd (KIP-110).
const PRODUCE_VERSION_ZSTD: i16 = 7;

/// What the topic and the request ask of a batch.
#[derive(Debug, Clone, Copy)]
pub struct RecordLimits {
    /// The topic's `max.message.bytes`: of the whole batch as sent.
    pub message_bytes_max: u32,
    /// Of the request that carries the batch.
    pub produce_version: i16,
    /// The topic's `message.timestamp.type`; records' own times are checked under CreateTime only.
    pub timestamp_type: TimestampType,
    /// The broker's clock, ms since the Unix epoch.
    pub now_ms: i64,
    /// The topic's `message.timestamp.before.max.ms`.
    pub timestamp_before_max_ms: i64,
    /// The topic's `message.timestamp.after.max.ms`.
    pub timestamp_after_max_ms: i64,
    /// Whether `cleanup.policy` holds `compact`, so that records need keys.
    pub compacted: bool,
}

impl Default for RecordLimits {
    /// Kafka's defaults of a topic, for a current client. `now_ms` is 0: always set it.
    fn default() -> RecordLimits {
        RecordLimits {
            message_bytes_max: 1_048_588,
            produce_version: i16::MAX,
            timestamp_type: TimestampType::CreateTime,
            now_ms: 0,
            timestamp_before_max_ms: i64::MAX,
            timestamp_after_max_ms: 3_600_000,
            compacted: false,
        }
    }
}

impl RecordLimits {
    /// The most bytes that the batch may decompress to.
    #[must_use]
    pub fn decompressed_bytes_max(&self) -> usize {
        (self.message_bytes_max as usize).saturating_mul(DECOMPRESSED_RATIO_MAX).min(DECOMPRESSED_BYTES_MAX)
    }

    /// The most records of a batch: what one of the largest size can hold uncompressed. Without it 30 KiB of gzip are three
    /// million records.
    #[must_use]
    pub fn record_count_max(&self) -> usize {
        (self.message_bytes_max as usize).max(COUNTED_BYTES_MIN) / RECORD_BYTES_MIN
    }
}

/// The idempotent producer of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchProducer {
    /// At least 0.
    pub id: ProducerId,
    /// At least 0.
    pub epoch: ProducerEpoch,
    /// Sequence of the first record, at least 0.
    pub base_sequence: Sequence,
}

/// What the append path needs to know of a batch that passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSummary {
    /// The header as sent.
    pub header: BatchHeader,
    /// The producer, if it is idempotent.
    pub producer: Option<BatchProducer>,
    /// Records in the batch, at least 1.
    pub record_count: u32,
    /// Record count less one.
    pub last_offset_delta: i32,
    /// The true maximum of the records' timestamps, or [`NO_TIMESTAMP`]; the header may state another one, see
    /// [`BatchSummary::states_wrong_max_timestamp`].
    pub max_timestamp: i64,
    /// Offset delta of the first record with that timestamp; 0 if none has any.
    pub max_timestamp_offset_delta: i32,
    /// How the records are compressed.
    pub codec: Compression,
    /// Whether the batch is part of a transaction.
    pub transactional: bool,
    /// Bytes of the records, uncompressed.
    pub body_bytes_uncompressed: u64,
}

impl BatchSummary {
    /// Whether the header's maximum is not the records': [`super::batch::set_max_timestamp`] mends it, as Kafka's leader does.
    #[must_use]
    pub fn states_wrong_max_timestamp(&self) -> bool {
        self.header.max_timestamp != self.max_timestamp
    }
}

/// Checks the records of one partition in a Produce request, which must be exactly one batch.
///
/// Compressed records are decompressed into `scratch`, which is emptied first and kept by the caller, so that no call after
/// the largest allocates; a batch that breaks the bound gives its memory back.
///
/// # Errors
/// The first fault, cheapest checks first; for records that the topic refuses, all of them.
pub fn validate_produce_batch(
    bytes: &[u8],
    limits: &RecordLimits,
    scratch: &mut Vec<u8>,
) -> Result<BatchSummary, RecordError> {
    let header = check_frame(bytes, limits)?;
    let codec = check_header(&header, limits)?;
    let producer = check_producer(&header)?;
    let body = bytes.get(BATCH_HEADER_BYTES..).unwrap_or_default();
    let body = if codec == Compression::None {
        body
    } else {
        if let Err(source) = decompress(codec, body, limits.decompressed_bytes_max(), scratch) {
            if matches!(source, CompressionError::OverLimit { .. }) {
                *scratch = Vec::new();
            }
            return Err(RecordError::Compression { source });
        }
        scratch
    };
    let walked = check_records(&header, body, limits)?;
    Ok(BatchSummary {
        header,
        producer,
        record_count: header.record_count as u32,
        last_offset_delta: header.last_offset_delta,
        max_timestamp: walked.max_timestamp,
        max_timestamp_offset_delta: walked.max_timestamp_offset_delta,
        codec,
        transactional: header.attributes.is_transactional(),
        body_bytes_uncompressed: body.len() as u64,
    })
}

/// One whole batch of magic 2 within the size, undamaged.
fn check_frame(bytes: &[u8], limits: &RecordLimits) -> Result<BatchHeader, RecordError> {
    if bytes.is_empty() {
        return Err(RecordError::Empty);
    }
    let header = BatchHeader::parse(bytes)?;
    let batch_bytes = header.total_bytes();
    if batch_bytes > limits.message_bytes_max as usize {
        let limit_bytes = u64::from(limits.message_bytes_max);
        return Err(RecordError::TooLarge { batch_bytes: batch_bytes as u64, limit_bytes });
    }
    if bytes.len() > batch_bytes {
        return Err(RecordError::TrailingBytes { trailing_bytes: (bytes.len() - batch_bytes) as u64 });
    }
    check_crc(&header, bytes)?;
    Ok(header)
}

fn check_header(header: &BatchHeader, limits: &RecordLimits) -> Result<Compression, RecordError> {
    let attributes = header.attributes;
    let Some(codec) = attributes.compression() else {
        return Err(RecordError::UnknownCodec { codec: attributes.codec_bits() });
    };
    if codec == Compression::Zstd && limits.produce_version < PRODUCE_VERSION_ZSTD {
        return Err(RecordError::ZstdTooEarly { produce_version: limits.produce_version });
    }
    if attributes.is_control() {
        return Err(RecordError::ControlBatch);
    }
    if attributes.has_delete_horizon() {
        return Err(RecordError::DeleteHorizon);
    }
    if attributes.timestamp_type() == TimestampType::LogAppendTime {
        return Err(RecordError::LogAppendTime);
    }
    let count = header.record_count;
    let count_max = limits.record_count_max();
    if count < 1 || count as usize > count_max {
        return Err(RecordError::RecordCount { count, count_max: count_max as u64 });
    }
    if header.last_offset_delta != count - 1 {
        return Err(RecordError::LastOffsetDelta { last_offset_delta: header.last_offset_delta, count });
    }
    Ok(codec)
}

/// An id brings an epoch and a sequence. Without an id both are ignored: some clients leave a sequence of 0 there.
fn check_producer(header: &BatchHeader) -> Result<Option<BatchProducer>, RecordError> {
    let (id, epoch, base_sequence) = (header.producer_id, header.producer_epoch, header.base_sequence);
    if id == ProducerId::NONE {
        if header.attributes.is_transactional() {
            return Err(RecordError::TransactionWithoutProducer { producer_id: id.0 });
        }
        return Ok(None);
    }
    if id.0 < 0 || epoch.0 < 0 || base_sequence.0 < 0 {
        return Err(RecordError::ProducerFields {
            producer_id: id.0,
            producer_epoch: epoch.0,
            base_sequence: base_sequence.0,
        });
    }
    Ok(Some(BatchProducer { id, epoch, base_sequence }))
}

struct Walked {
    max_timestamp: i64,
    max_timestamp_offset_delta: i32,
}

fn check_records(header: &BatchHeader, body: &[u8], limits: &RecordLimits) -> Result<Walked, RecordError> {
    let count = header.record_count;
    let count_max = body.len() / RECORD_BYTES_MIN;
    if count as usize > count_max {
        return Err(RecordError::RecordCount { count, count_max: count_max as u64 });
    }
    let mut cursor = Cursor::new(body);
    let mut walked = Walked { max_timestamp: NO_TIMESTAMP, max_timestamp_offset_delta: 0 };
    let mut rejections = Rejections::default();
    for index in 0..count {
        let malformed = |fault| RecordError::Malformed { index: index as u32, fault };
        if cursor.left() == 0 {
            return Err(malformed(RecordFault::Missing { count }));
        }
        let record = take_record(&mut cursor).map_err(malformed)?;
        if record.offset_delta != index {
            return Err(RecordError::OffsetDelta { index: index as u32, offset_delta: record.offset_delta });
        }
        let timestamp = header.base_timestamp.wrapping_add(record.timestamp_delta);
        rejections.check(index as u32, &record, timestamp, limits);
        if timestamp > walked.max_timestamp {
            walked = Walked { max_timestamp: timestamp, max_timestamp_offset_delta: index };
        }
    }
    if cursor.left() > 0 {
        let fault = RecordFault::TrailingBytes { trailing_bytes: cursor.left() as u64, count };
        return Err(RecordError::Malformed { index: (count - 1) as u32, fault });
    }
    rejections.verdict()?;
    Ok(walked)
}

/// Well-formed records that the topic does not take. All are collected, so that a producer learns of them in one answer.
#[derive(Default)]
struct Rejections {
    count: u32,
    timestamp_count: u32,
    records: Vec<RejectedRecord>,
}

impl Rejections {
    /// As Kafka: the key first, and only if it is well the timestamp.
    #[inline]
    fn check(&mut self, index: u32, record: &RawRecord<'_>, timestamp: i64, limits: &RecordLimits) {
        if limits.compacted && record.key.is_none() {
            self.add(index, || "a record of a compacted topic needs a key".to_owned());
        } else if limits.timestamp_type == TimestampType::CreateTime
            && timestamp != NO_TIMESTAMP
            && !is_timely(timestamp, limits)
        {
            self.timestamp_count += 1;
            self.add(index, || {
                let earliest = i128::from(limits.now_ms) - i128::from(limits.timestamp_before_max_ms);
                let latest = i128::from(limits.now_ms) + i128::from(limits.timestamp_after_max_ms);
                format!("timestamp {timestamp} is not within {earliest} and {latest}")
            });
        }
    }

    #[cold]
    fn add(&mut self, index: u32, message: impl FnOnce() -> String) {
        self.count += 1;
        if self.records.len() < REJECTED_RECORDS_MAX {
            self.records.push(RejectedRecord { index, message: message() });
        }
    }

    fn verdict(self) -> Result<(), RecordError> {
        if self.count == 0 {
            return Ok(());
        }
        let code =
            if self.timestamp_count > 0 { ErrorCode::InvalidTimestamp } else { ErrorCode::InvalidRecord };
        Err(RecordError::Rejected { code, count: self.count, records: self.records })
    }
}

/// Saturating: a difference beyond 64 bits is beyond any limit but the largest, which means none.
fn is_timely(timestamp: i64, limits: &RecordLimits) -> bool {
    limits.now_ms.saturating_sub(timestamp) <= limits.timestamp_before_max_ms
        && timestamp.saturating_sub(limits.now_ms) <= limits.timestamp_after_max_ms
}
