//! ListOffsets (API 2): offsets by time or by Kafka's special names, from the owner cores.

use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{LeaderEpoch, Offset, PartitionIndex, TopicPartition};
use ringlog_protocol::messages::list_offsets::{
    ListOffsetsPartitionResponse, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopicResponse,
};

use super::reply::reply;
use super::{Request, RequestError, spread, topics};
use crate::core::Core;
use crate::core::messages::{CoreReply, CoreRequest, ListPart, ListResult};
use crate::core::{ends, serve};
use crate::observe::stage::Stage;
use crate::server::replies::Answer;

pub(super) async fn handle(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let list = ListOffsetsRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let parts = resolve(core, &list);
    let known: Vec<ListPart> = parts.iter().flatten().filter_map(|part| part.ok()).collect();
    let groups = spread::by_core(&known, |part| core.owner_of(part.key));
    let found = spread::ask(
        core,
        &groups,
        async |parts: &[ListPart]| serve::list_offsets(core, parts).await,
        CoreRequest::ListOffsets,
        |reply| match reply {
            CoreReply::ListOffsets(results) => results,
            _ => unreachable!("offsets are listed by a list"),
        },
    )
    .await;
    info.clock.mark(Stage::Queue, core.io.monotonic_now().as_nanos());
    let mut found = found.into_iter();
    let mut first_error = ErrorCode::None;
    let answered = list.topics.iter().zip(&parts).map(|(wanted, parts)| ListOffsetsTopicResponse {
        name: wanted.name,
        partitions: wanted
            .partitions
            .iter()
            .zip(parts)
            .map(|(partition, part)| {
                let mut result = match part {
                    Ok(_) => found.next().expect("one result for each known partition"),
                    Err(error) => ListResult::nothing(*error),
                };
                result.error = ends::list_offsets_error(info.version, result.error);
                if first_error == ErrorCode::None {
                    first_error = result.error;
                }
                partition_response(info.version, partition.partition_index, result)
            })
            .collect(),
    });
    let response = ListOffsetsResponse { topics: answered.collect(), ..ListOffsetsResponse::default() };
    Ok(reply(info, first_error, 256, |writer, version| response.encode(writer, version)))
}

/// By topic, then partition: what to ask, or the error.
fn resolve(core: &Core, list: &ListOffsetsRequest<'_>) -> Vec<Vec<Result<ListPart, ErrorCode>>> {
    let image = core.image();
    let resolve_topic = |wanted: &ringlog_protocol::messages::list_offsets::ListOffsetsTopic<'_>| {
        let topic = topics::by_name(&image, wanted.name);
        let partitions = wanted.partitions.iter().map(|partition| {
            let index = partition.partition_index;
            topics::partition(&topic, index).map(|image| ListPart {
                key: TopicPartition { topic: image.id, partition: PartitionIndex(index) },
                timestamp: partition.timestamp,
                believed_epoch: LeaderEpoch(partition.current_leader_epoch),
            })
        });
        partitions.collect()
    };
    list.topics.iter().map(resolve_topic).collect()
}

fn partition_response(
    version: i16,
    partition_index: i32,
    result: ListResult,
) -> ListOffsetsPartitionResponse {
    let Offset(offset) = result.offset;
    // The field came with version 4 and is not ignorable: older clients would get nothing at all.
    let LeaderEpoch(leader_epoch) = if version >= 4 { result.leader_epoch } else { LeaderEpoch(-1) };
    ListOffsetsPartitionResponse {
        partition_index,
        error_code: result.error.code(),
        timestamp: result.timestamp,
        offset,
        leader_epoch,
    }
}
