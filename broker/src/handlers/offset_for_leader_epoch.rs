//! OffsetForLeaderEpoch (API 23, KIP-101 and KIP-320): where leader epochs ended, from the owner cores.

use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{LeaderEpoch, PartitionIndex, TopicPartition};
use ringlog_protocol::messages::offset_for_leader_epoch::{
    EpochEndOffset, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
};

use super::reply::reply;
use super::{Request, RequestError, spread, topics};
use crate::core::Core;
use crate::core::epochs::{self, EpochPart, EpochResult};
use crate::core::messages::{CoreReply, CoreRequest};
use crate::observe::stage::Stage;
use crate::server::replies::Answer;

pub(super) async fn handle(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = OffsetForLeaderEpochRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let parts = resolve(core, &asked);
    let known: Vec<EpochPart> = parts.iter().flatten().filter_map(|part| part.ok()).collect();
    let groups = spread::by_core(&known, |part| core.owner_of(part.key));
    let found = spread::ask(
        core,
        &groups,
        async |parts: &[EpochPart]| epochs::epoch_ends(core, parts),
        CoreRequest::EpochEnds,
        |reply| match reply {
            CoreReply::EpochEnds(results) => results,
            _ => unreachable!("ends of epochs are answered by ends of epochs"),
        },
    )
    .await;
    info.clock.mark(Stage::Queue, core.io.monotonic_now().as_nanos());
    let mut found = found.into_iter();
    let mut first_error = ErrorCode::None;
    let answered = asked.topics.iter().zip(&parts).map(|(topic, parts)| OffsetForLeaderTopicResult {
        topic: topic.topic,
        partitions: topic
            .partitions
            .iter()
            .zip(parts)
            .map(|(partition, part)| {
                let result = match part {
                    Ok(_) => found.next().expect("one result for each known partition"),
                    Err(error) => EpochResult::nothing(*error),
                };
                if first_error == ErrorCode::None {
                    first_error = result.error;
                }
                EpochEndOffset {
                    error_code: result.error.code(),
                    partition: partition.partition,
                    leader_epoch: result.epoch.0,
                    end_offset: result.end_offset.0,
                }
            })
            .collect(),
    });
    let topics = answered.collect();
    let response = OffsetForLeaderEpochResponse { topics, ..OffsetForLeaderEpochResponse::default() };
    Ok(reply(info, first_error, 256, |writer, version| response.encode(writer, version)))
}

/// By topic, then partition: what to ask, or the error.
fn resolve(core: &Core, asked: &OffsetForLeaderEpochRequest<'_>) -> Vec<Vec<Result<EpochPart, ErrorCode>>> {
    let image = core.image();
    let resolve_topic = |wanted: &OffsetForLeaderTopic<'_>| {
        let topic = topics::by_name(&image, wanted.topic);
        let partitions = wanted.partitions.iter().map(|partition| {
            let index = partition.partition;
            // Not the code for a bad name: Kafka looks the name up and finds nothing.
            let image = topics::partition(&topic, index).map_err(|_| ErrorCode::UnknownTopicOrPartition)?;
            Ok(EpochPart {
                key: TopicPartition { topic: image.id, partition: PartitionIndex(index) },
                believed: LeaderEpoch(partition.current_leader_epoch),
                epoch: LeaderEpoch(partition.leader_epoch),
            })
        });
        partitions.collect()
    };
    asked.topics.iter().map(resolve_topic).collect()
}
