//! DeleteRecords (API 21, KIP-107): moves the start of partitions up, on their owner cores, durably.

use std::rc::Rc;
use std::time::Duration;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{Offset, PartitionIndex, TopicPartition};
use ringlog_protocol::messages::delete_records::{
    DeleteRecordsPartition, DeleteRecordsPartitionResult, DeleteRecordsRequest, DeleteRecordsResponse,
    DeleteRecordsTopicResult,
};

use super::reply::reply;
use super::topics::{self, TopicLookup};
use super::{Request, RequestError, spread};
use crate::controller::TopicImage;
use crate::core::Core;
use crate::core::delete_records;
use crate::core::messages::{CoreReply, CoreRequest, DeletePart, DeletedPart};
use crate::observe::stage::Stage;
use crate::server::replies::Answer;

/// The offset that stands for the high watermark.
const HIGH_WATERMARK: i64 = -1;

pub(super) async fn handle(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = DeleteRecordsRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let parts = resolve(core, &asked);
    let known: Vec<DeletePart> = parts.iter().flatten().filter_map(|part| part.ok()).collect();
    let timeout = Duration::from_millis(u64::try_from(asked.timeout_ms).unwrap_or(0));
    let groups = spread::by_core(&known, |part| core.owner_of(part.key));
    let deleted = spread::ask(
        core,
        &groups,
        async |parts: &[DeletePart]| delete_records::delete_records(core, parts, timeout).await,
        |parts| CoreRequest::DeleteRecords { parts, timeout },
        |reply| match reply {
            CoreReply::DeleteRecords(results) => results,
            _ => unreachable!("records are deleted by deleted records"),
        },
    )
    .await;
    info.clock.mark(Stage::Journal, core.io.monotonic_now().as_nanos());
    let mut deleted = deleted.into_iter();
    let mut first_error = ErrorCode::None;
    let answered = asked.topics.iter().zip(&parts).map(|(topic, parts)| DeleteRecordsTopicResult {
        name: topic.name,
        partitions: topic
            .partitions
            .iter()
            .zip(parts)
            .map(|(partition, part)| {
                let result = match part {
                    Ok(_) => deleted.next().expect("one result for each known partition"),
                    Err(error) => DeletedPart::refused(*error),
                };
                if first_error == ErrorCode::None {
                    first_error = result.error;
                }
                DeleteRecordsPartitionResult {
                    partition_index: partition.partition_index,
                    low_watermark: result.low_watermark.0,
                    error_code: result.error.code(),
                }
            })
            .collect(),
    });
    let response = DeleteRecordsResponse { topics: answered.collect(), ..DeleteRecordsResponse::default() };
    Ok(reply(info, first_error, 256, |writer, version| response.encode(writer, version)))
}

/// By topic, then partition: what to delete, or the error.
fn resolve(core: &Core, asked: &DeleteRecordsRequest<'_>) -> Vec<Vec<Result<DeletePart, ErrorCode>>> {
    let image = core.image();
    let resolve_topic = |topic: &ringlog_protocol::messages::delete_records::DeleteRecordsTopic<'_>| {
        let found = topics::by_name(&image, topic.name);
        topic.partitions.iter().map(|partition| resolve_partition(&found, partition)).collect()
    };
    asked.topics.iter().map(resolve_topic).collect()
}

fn resolve_partition(
    topic: &TopicLookup,
    partition: &DeleteRecordsPartition,
) -> Result<DeletePart, ErrorCode> {
    let index = partition.partition_index;
    // Not Kafka's code for a bad name: it looks the name up and finds nothing.
    let image = topics::partition(topic, index).map_err(|error| match error {
        ErrorCode::InvalidTopicException => ErrorCode::UnknownTopicOrPartition,
        error => error,
    })?;
    check_policy(image)?;
    let before = match partition.offset {
        HIGH_WATERMARK => None,
        offset if offset < 0 => return Err(ErrorCode::OffsetOutOfRange),
        offset => Some(Offset(offset)),
    };
    let key = TopicPartition { topic: image.id, partition: PartitionIndex(index) };
    Ok(DeletePart { key, before })
}

/// Whoever compacts and does not delete keeps the newest record of each key for ever: nothing may cut that short.
fn check_policy(topic: &TopicImage) -> Result<(), ErrorCode> {
    let policy = topic.config.cleanup;
    if policy.compact && !policy.delete { Err(ErrorCode::PolicyViolation) } else { Ok(()) }
}
