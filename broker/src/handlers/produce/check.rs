//! What a batch must pass on the connection's core before it is dispatched.

use std::rc::Rc;

use bytes::BytesMut;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::frame;
use ringlog_protocol::records::attributes::TimestampType;
use ringlog_protocol::records::batch::{BatchHeader, set_log_append_time, set_max_timestamp};
use ringlog_protocol::records::error::RecordError;
use ringlog_protocol::records::validate::{BatchSummary, RecordLimits, validate_produce_batch};
use ringlog_shard::limits::VALIDATE_INLINE_BYTES_MAX;
use ringlog_shard::partition::IncomingBatch;

use crate::controller::TopicImage;
use crate::core::Core;
use crate::handlers::RequestInfo;

/// Why a partition's batch is not appended, as the response says it.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub error: ErrorCode,
    pub message: Option<String>,
    /// (index in the batch, text) of each record at fault (KIP-467).
    pub records: Vec<(i32, String)>,
}

impl Refusal {
    pub(super) fn code(error: ErrorCode) -> Refusal {
        Refusal { error, message: None, records: Vec::new() }
    }

    pub(super) fn new(error: ErrorCode, message: impl Into<String>) -> Refusal {
        Refusal { error, message: Some(message.into()), records: Vec::new() }
    }
}

impl From<RecordError> for Refusal {
    fn from(error: RecordError) -> Refusal {
        let records = error.rejected_records().into_iter();
        Refusal {
            error: error.error_code(),
            records: records.map(|record| (record.index as i32, record.message)).collect(),
            message: Some(error.to_string()),
        }
    }
}

/// A reason that holds for every partition of the request.
pub(super) fn blanket_refusal(acks: i16, transactional: bool, info: &RequestInfo) -> Option<Refusal> {
    if info.answer == frame::Answer::UnsupportedVersion {
        let text = format!("Produce version {} is not served, the oldest served is 3", info.version);
        return Some(Refusal::new(ErrorCode::UnsupportedVersion, text));
    }
    if !matches!(acks, -1..=1) {
        let text = format!("acks is {acks}; it must be -1 (all), 0 or 1");
        return Some(Refusal::new(ErrorCode::InvalidRequiredAcks, text));
    }
    if transactional {
        return Some(Refusal::new(
            ErrorCode::InvalidRequest,
            super::super::init_producer_id::TRANSACTIONS_NOT_BUILT,
        ));
    }
    None
}

/// Checks one partition's records and makes of them what is appended; the append time for the response where the
/// topic stamps it, else -1.
pub(super) async fn check(
    core: &Rc<Core>,
    topic: &TopicImage,
    version: i16,
    mut bytes: BytesMut,
    buffer_bytes: u32,
) -> Result<(IncomingBatch, i64), Refusal> {
    if topic.is_internal() {
        let text = "Cannot append to an internal topic: what it holds would not be known to the groups that it is of.";
        return Err(Refusal::new(ErrorCode::InvalidTopicException, text));
    }
    let timestamp_type = topic.config.timestamp_type;
    let limits = RecordLimits {
        message_bytes_max: topic.config.message_bytes_max,
        produce_version: version,
        timestamp_type,
        now_ms: core.io.wall_now_ms(),
        timestamp_before_max_ms: topic.config.timestamp_before_ms_max,
        timestamp_after_max_ms: topic.config.timestamp_after_ms_max,
        compacted: topic.config.cleanup.compact,
    };
    let summary;
    (bytes, summary) = validate(core, bytes, limits).await?;
    if summary.transactional {
        return Err(Refusal::new(
            ErrorCode::InvalidTxnState,
            "the batch has the transactional bit but the request names no transactional id",
        ));
    }
    let log_append_time_ms = match timestamp_type {
        TimestampType::LogAppendTime => {
            set_log_append_time(&mut bytes, limits.now_ms);
            limits.now_ms
        }
        TimestampType::CreateTime => {
            if summary.states_wrong_max_timestamp() {
                set_max_timestamp(&mut bytes, summary.max_timestamp);
            }
            -1
        }
    };
    let header = BatchHeader::parse(&bytes).map_err(|error| Refusal::from(RecordError::from(error)))?;
    Ok((IncomingBatch { header, bytes, buffer_bytes }, log_append_time_ms))
}

/// Validates on this core when it is quick, on the pool when decompression may take long: the connection waits either
/// way, so the order of appends cannot change.
async fn validate(
    core: &Rc<Core>,
    bytes: BytesMut,
    limits: RecordLimits,
) -> Result<(BytesMut, BatchSummary), RecordError> {
    let compressed = BatchHeader::parse(&bytes).is_ok_and(|header| header.attributes.codec_bits() != 0);
    if !compressed || bytes.len() <= VALIDATE_INLINE_BYTES_MAX {
        let summary = validate_produce_batch(&bytes, &limits, &mut core.scratch.borrow_mut())?;
        return Ok((bytes, summary));
    }
    core.io
        .compute(move || {
            let mut scratch = Vec::new();
            validate_produce_batch(&bytes, &limits, &mut scratch).map(|summary| (bytes, summary))
        })
        .await
}
