//! What can be wrong with records: the faults inside one record, and the verdict on a client's batch with its error code.
//!
//! Texts name the fault, the value and the limit; they go to the client, so they hold no bytes of the records.

use crate::error_code::ErrorCode;

use super::batch::BatchError;
use super::compression::CompressionError;

/// What is wrong with the bytes of one record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    /// A field ends beyond its record, or the record beyond the batch.
    #[error("{field} needs {needed_bytes} bytes but {left_bytes} are left")]
    Truncated {
        /// Which field.
        field: &'static str,
        /// Bytes that it needs.
        needed_bytes: u64,
        /// Bytes that are left.
        left_bytes: u64,
    },
    /// A variable-length integer does not end, or does not fit its type.
    #[error("{field} is a varint that does not end or fit within {bytes_max} bytes")]
    Varint {
        /// Which field.
        field: &'static str,
        /// The most bytes of its type.
        bytes_max: u32,
    },
    /// A length is negative where only -1 (null), or not even that, is allowed.
    #[error("{field} is {length}, less than {length_min}")]
    NegativeLength {
        /// Which field.
        field: &'static str,
        /// As stated.
        length: i32,
        /// The least value allowed.
        length_min: i32,
    },
    /// More headers than the record has bytes for.
    #[error("header count {count} is more than the {count_max} that {left_bytes} bytes can hold")]
    HeaderCount {
        /// As stated.
        count: i32,
        /// Two bytes a header.
        count_max: u64,
        /// Bytes left in the record.
        left_bytes: u64,
    },
    /// The fields end before the record does.
    #[error("record length {length_bytes} leaves {unused_bytes} bytes after the last field")]
    UnusedBytes {
        /// The record's length as stated.
        length_bytes: u64,
        /// Bytes after the last field.
        unused_bytes: u64,
    },
    /// The batch holds fewer records than its header says.
    #[error("the batch ends before this record, its header states {count} records")]
    Missing {
        /// The count as stated.
        count: i32,
    },
    /// The batch holds bytes after its last record.
    #[error("{trailing_bytes} bytes follow the last of {count} records")]
    TrailingBytes {
        /// Bytes after the last record.
        trailing_bytes: u64,
        /// The count as stated.
        count: i32,
    },
}

/// One record that makes a sound batch unacceptable: a line of Produce's `RecordErrors` (KIP-467).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RejectedRecord {
    /// Position within the batch, from 0: Kafka's `BatchIndex`.
    pub index: u32,
    /// For people: what is wrong with it.
    pub message: String,
}

/// The most lines kept of a batch whose every record may be refused; the others are counted only.
pub const REJECTED_RECORDS_MAX: usize = 32;

/// Why a client's batch is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The partition's records field is null or empty.
    #[error("the records of a partition must be exactly one batch, but are empty")]
    Empty,
    /// The header or the CRC is wrong.
    #[error("the batch is not sound: {source}")]
    Batch {
        /// What is wrong.
        #[from]
        source: BatchError,
    },
    /// More follows the batch: a second one, or junk.
    #[error(
        "the records of a partition must be exactly one batch, but {trailing_bytes} bytes follow the first"
    )]
    TrailingBytes {
        /// Bytes after the batch.
        trailing_bytes: u64,
    },
    /// Larger than `max.message.bytes`.
    #[error("the batch has {batch_bytes} bytes, more than the maximum of {limit_bytes} (max.message.bytes)")]
    TooLarge {
        /// Bytes of the batch, header included.
        batch_bytes: u64,
        /// The topic's limit.
        limit_bytes: u64,
    },
    /// An unassigned codec number.
    #[error("compression codec {codec} is none of 0 to 4")]
    UnknownCodec {
        /// 5, 6 or 7.
        codec: u8,
    },
    /// zstd from a client that speaks an older Produce (KIP-110).
    #[error("zstd needs produce version 7, this is version {produce_version}")]
    ZstdTooEarly {
        /// Of the request.
        produce_version: i16,
    },
    /// Markers are the broker's.
    #[error("clients must not write control batches")]
    ControlBatch,
    /// Set by compaction only.
    #[error("clients must not set a delete horizon (attribute bit 6)")]
    DeleteHorizon,
    /// Set by the broker only.
    #[error("clients must not set the timestamp type to LogAppendTime (attribute bit 3)")]
    LogAppendTime,
    /// The producer fields do not go together.
    #[error(
        "producer id {producer_id}, epoch {producer_epoch}, base sequence {base_sequence} do not go together"
    )]
    ProducerFields {
        /// As stated.
        producer_id: i64,
        /// As stated.
        producer_epoch: i16,
        /// As stated.
        base_sequence: i32,
    },
    /// A transaction without a producer.
    #[error("a transactional batch needs a producer id, this has {producer_id}")]
    TransactionWithoutProducer {
        /// As stated.
        producer_id: i64,
    },
    /// The record count is impossible.
    #[error("record count {count} is not within 1 and {count_max}")]
    RecordCount {
        /// As stated.
        count: i32,
        /// What the batch's bytes, or a batch of the largest size, can hold.
        count_max: u64,
    },
    /// The last offset delta is not the count less one.
    #[error("last offset delta {last_offset_delta} does not go with {count} records")]
    LastOffsetDelta {
        /// As stated.
        last_offset_delta: i32,
        /// The count as stated.
        count: i32,
    },
    /// The records do not decompress, or not within the bound.
    #[error("the records cannot be decompressed: {source}")]
    Compression {
        /// What is wrong.
        #[from]
        source: CompressionError,
    },
    /// A record is malformed.
    #[error("record {index} is malformed: {fault}")]
    Malformed {
        /// Position within the batch, from 0.
        index: u32,
        /// What is wrong.
        fault: RecordFault,
    },
    /// The records' offset deltas are not 0, 1, 2...
    #[error("record {index} has offset delta {offset_delta}")]
    OffsetDelta {
        /// Position within the batch, from 0.
        index: u32,
        /// As stated.
        offset_delta: i32,
    },
    /// Well-formed records that the topic does not take.
    #[error("{count} records of the batch are refused, the first: {}", first_message(.records))]
    Rejected {
        /// `InvalidTimestamp` if any of them has a bad timestamp, else `InvalidRecord`.
        code: ErrorCode,
        /// How many there are.
        count: u32,
        /// The first [`REJECTED_RECORDS_MAX`] of them, in order; never empty.
        records: Vec<RejectedRecord>,
    },
}

impl RecordError {
    /// What Produce answers for the partition.
    ///
    /// `CorruptMessage` is retriable, so it stands only for what damage on the way explains; what the producer meant to
    /// send is `InvalidRecord`.
    #[must_use]
    pub fn error_code(&self) -> ErrorCode {
        match self {
            RecordError::Batch { source: BatchError::Magic { .. } } => ErrorCode::InvalidRecord,
            RecordError::Batch { .. } => ErrorCode::CorruptMessage,
            RecordError::TooLarge { .. } => ErrorCode::MessageTooLarge,
            RecordError::UnknownCodec { .. } | RecordError::ZstdTooEarly { .. } => {
                ErrorCode::UnsupportedCompressionType
            }
            RecordError::LogAppendTime => ErrorCode::InvalidTimestamp,
            RecordError::Rejected { code, .. } => *code,
            RecordError::Empty
            | RecordError::TrailingBytes { .. }
            | RecordError::ControlBatch
            | RecordError::DeleteHorizon
            | RecordError::ProducerFields { .. }
            | RecordError::TransactionWithoutProducer { .. }
            | RecordError::RecordCount { .. }
            | RecordError::LastOffsetDelta { .. }
            | RecordError::Compression { .. }
            | RecordError::Malformed { .. }
            | RecordError::OffsetDelta { .. } => ErrorCode::InvalidRecord,
        }
    }

    /// The first record at fault, by its position within the batch; `None` if the batch as a whole is.
    #[must_use]
    pub fn record_index(&self) -> Option<u32> {
        match self {
            RecordError::Malformed { index, .. } | RecordError::OffsetDelta { index, .. } => Some(*index),
            RecordError::Rejected { records, .. } => records.first().map(|record| record.index),
            _ => None,
        }
    }

    /// The lines for Produce's `RecordErrors` (v8+): all records at fault that are known, in order.
    #[must_use]
    pub fn rejected_records(&self) -> Vec<RejectedRecord> {
        match self {
            RecordError::Rejected { records, .. } => records.clone(),
            _ => {
                let line = |index| RejectedRecord { index, message: self.to_string() };
                self.record_index().map(line).into_iter().collect()
            }
        }
    }
}

fn first_message(records: &[RejectedRecord]) -> &str {
    records.first().map_or("", |record| &record.message)
}
