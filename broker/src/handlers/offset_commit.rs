//! OffsetCommit (API 8): offsets of topics that exist go to the machine of the group; the answer leaves when they are durable.

use std::rc::Rc;
use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitResponse, OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
};
use ringlog_shard::limits::OFFSETS_PER_REQUEST_MAX;

use super::group_calls::{ask, note};
use super::reply::reply;
use super::topics::{self, TopicLookup};
use super::{Request, RequestError};
use crate::controller::MetadataImage;
use crate::core::Core;
use crate::core::groups::GroupCall;
use crate::group::{CommitPartition, CommitReply, CommitRequest, CommitTopic, Reply};
use crate::observe::stage::Stage;
use crate::server::replies::Answer;

/// Versions from here on name topics by id.
const BY_ID_SINCE: i16 = 10;

/// How long offsets are kept where the request does not say.
const BY_SETTING_MS: i64 = -1;

pub(super) async fn handle(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = OffsetCommitRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let checked = check(&core.image(), &asked, info.version);
    let outcome = if let Some(refused) = too_many(&asked) {
        Ok(CommitReply { message: Some(refused), topics: Vec::new() })
    } else if checked.known.is_empty() {
        // Nothing to ask the group about, so whether it exists is not looked at either, as in Kafka.
        Ok(CommitReply::default())
    } else {
        let call = GroupCall::CommitOffsets(event(&asked, info.version, &checked));
        match ask(core, asked.group_id, call).await {
            Ok(Reply::CommitOffsets(committed)) => Ok(committed),
            Ok(_) => unreachable!("a commit is answered by a commit"),
            Err(error) => Err(error),
        }
    };
    info.clock.mark(Stage::Journal, core.io.monotonic_now().as_nanos());
    let response = response(&asked, &checked, &outcome);
    let error = first_error(&response);
    let message = outcome.as_ref().ok().and_then(|committed| committed.message.as_deref());
    note(core, &info, asked.group_id, error, message);
    Ok(reply(info, error, 128, |writer, version| response.encode(writer, version)))
}

/// Which of the request's topics and partitions exist.
struct Checked {
    /// By topic and partition, in the order of the request: why an offset is not taken.
    refused: Vec<Vec<Option<ErrorCode>>>,
    /// Topics with offsets that may be taken, in the order of the request: its place there, and the topic.
    known: Vec<(usize, TopicLookup)>,
}

fn check(image: &MetadataImage, asked: &OffsetCommitRequest<'_>, version: i16) -> Checked {
    let mut checked = Checked { refused: Vec::with_capacity(asked.topics.len()), known: Vec::new() };
    for (place, topic) in asked.topics.iter().enumerate() {
        let found = if version >= BY_ID_SINCE {
            topics::by_id(image, topic.topic_id)
        } else {
            topics::by_name(image, topic.name)
        };
        let refused = topic.partitions.iter().map(|partition| refusal(&found, partition));
        let refused: Vec<_> = refused.collect();
        if refused.contains(&None) {
            checked.known.push((place, found));
        }
        checked.refused.push(refused);
    }
    checked
}

fn refusal(topic: &TopicLookup, partition: &OffsetCommitRequestPartition<'_>) -> Option<ErrorCode> {
    topics::partition(topic, partition.partition_index).err().map(topics::not_found)
}

fn too_many(asked: &OffsetCommitRequest<'_>) -> Option<String> {
    let count: usize = asked.topics.iter().map(|topic| topic.partitions.len()).sum();
    (count > OFFSETS_PER_REQUEST_MAX)
        .then(|| format!("{count} offsets in one request, more than {OFFSETS_PER_REQUEST_MAX}"))
}

fn event(asked: &OffsetCommitRequest<'_>, version: i16, checked: &Checked) -> CommitRequest {
    let topics = checked.known.iter().map(|(place, found)| {
        let partitions = asked.topics[*place].partitions.iter().zip(&checked.refused[*place]);
        let partitions = partitions.filter(|(_, refused)| refused.is_none());
        let partitions = partitions.map(|(partition, _)| CommitPartition {
            index: partition.partition_index,
            offset: partition.committed_offset,
            leader_epoch: partition.committed_leader_epoch,
            metadata: partition.committed_metadata.map(Arc::from),
        });
        CommitTopic { name: found.name(), id: found.id(), partitions: partitions.collect() }
    });
    CommitRequest {
        version,
        group: Arc::from(asked.group_id),
        generation: asked.generation_id_or_member_epoch,
        member: Arc::from(asked.member_id),
        instance: asked.group_instance_id.map(Arc::from),
        retention_ms: Some(asked.retention_time_ms).filter(|kept_ms| *kept_ms != BY_SETTING_MS),
        topics: topics.collect(),
    }
}

fn response<'a>(
    asked: &OffsetCommitRequest<'a>,
    checked: &Checked,
    outcome: &Result<CommitReply, ErrorCode>,
) -> OffsetCommitResponse<'a> {
    // A refusal that nobody was asked about: the request was too large.
    let of_rest = outcome.as_ref().err().copied().unwrap_or(ErrorCode::InvalidCommitOffsetSize);
    let mut committed = outcome.iter().flat_map(|committed| &committed.topics);
    let topics = asked.topics.iter().zip(&checked.refused).map(|(topic, refused)| {
        let asked_for = refused.contains(&None);
        let found = if asked_for { committed.next() } else { None };
        let mut found = found.into_iter().flat_map(|topic| &topic.partitions);
        let partitions = topic.partitions.iter().zip(refused).map(|(partition, refused)| {
            let error = refused.unwrap_or_else(|| found.next().map_or(of_rest, |(_, error)| *error));
            OffsetCommitResponsePartition {
                partition_index: partition.partition_index,
                error_code: error.code(),
            }
        });
        OffsetCommitResponseTopic {
            name: topic.name,
            topic_id: topic.topic_id,
            partitions: partitions.collect(),
        }
    });
    OffsetCommitResponse { topics: topics.collect(), ..OffsetCommitResponse::default() }
}

fn first_error(response: &OffsetCommitResponse<'_>) -> ErrorCode {
    let codes = response.topics.iter().flat_map(|topic| &topic.partitions);
    let code = codes.map(|partition| partition.error_code).find(|code| *code != 0);
    code.and_then(ErrorCode::from_i16).unwrap_or(ErrorCode::None)
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::ids::TopicId;
    use ringlog_protocol::messages::offset_commit::OffsetCommitRequestTopic;

    use super::*;
    use crate::group::CommittedTopic;
    use crate::handlers::tests::{image_of, round_trip};

    fn partition(index: i32) -> OffsetCommitRequestPartition<'static> {
        OffsetCommitRequestPartition {
            partition_index: index,
            committed_offset: 100 + i64::from(index),
            committed_leader_epoch: 1,
            committed_metadata: Some("note"),
        }
    }

    fn topic(name: &'static str, id: TopicId, partitions: &[i32]) -> OffsetCommitRequestTopic<'static> {
        let partitions = partitions.iter().map(|index| partition(*index)).collect();
        OffsetCommitRequestTopic { name, topic_id: id, partitions }
    }

    fn asked(topics: Vec<OffsetCommitRequestTopic<'static>>) -> OffsetCommitRequest<'static> {
        OffsetCommitRequest {
            group_id: "g",
            generation_id_or_member_epoch: 5,
            member_id: "m",
            group_instance_id: None,
            retention_time_ms: -1,
            topics,
        }
    }

    /// What the machine says: the partitions of the event in order, each with its number as error.
    fn reply_to(event: &CommitRequest, error: ErrorCode) -> Result<CommitReply, ErrorCode> {
        let topics = event.topics.iter().map(|topic| CommittedTopic {
            name: Arc::clone(&topic.name),
            id: topic.id,
            partitions: topic.partitions.iter().map(|partition| (partition.index, error)).collect(),
        });
        Ok(CommitReply { message: None, topics: topics.collect() })
    }

    fn codes(response: &OffsetCommitResponse<'_>) -> Vec<Vec<(i32, i16)>> {
        let of_topic = |topic: &OffsetCommitResponseTopic<'_>| {
            topic
                .partitions
                .iter()
                .map(|partition| (partition.partition_index, partition.error_code))
                .collect()
        };
        response.topics.iter().map(of_topic).collect()
    }

    #[test]
    fn what_does_not_exist_is_told_in_its_place_and_the_rest_is_committed() {
        let (image, _) = image_of(&[("a", 2), ("b", 1)]);
        let asked = asked(vec![
            topic("gone", TopicId::ZERO, &[0]),
            topic("a", TopicId::ZERO, &[1, 7, 0]),
            topic("not/a name", TopicId::ZERO, &[0]),
            topic("b", TopicId::ZERO, &[-1]),
        ]);
        for version in 2..=9 {
            let checked = check(&image, &asked, version);
            let event = event(&asked, version, &checked);
            assert_eq!(event.topics.len(), 1);
            let indexes: Vec<_> =
                event.topics[0].partitions.iter().map(|partition| partition.index).collect();
            assert_eq!((&*event.topics[0].name, indexes), ("a", vec![1, 0]));
            let answer = response(&asked, &checked, &reply_to(&event, ErrorCode::OffsetMetadataTooLarge));
            assert_eq!(first_error(&answer), ErrorCode::UnknownTopicOrPartition);
            let frame = round_trip(|writer| answer.encode(writer, version));
            let read = OffsetCommitResponse::decode(&mut frame.reader(), version).expect("it is whole");
            let expected = vec![vec![(0, 3)], vec![(1, 12), (7, 3), (0, 12)], vec![(0, 3)], vec![(-1, 3)]];
            assert_eq!(codes(&read), expected);
        }
    }

    #[test]
    fn version_10_names_topics_by_id() {
        let (image, ids) = image_of(&[("a", 1)]);
        let unknown = TopicId([9; 16]);
        let asked =
            asked(vec![topic("", unknown, &[0]), topic("", ids[0], &[0, 1]), topic("", TopicId::ZERO, &[0])]);
        let checked = check(&image, &asked, 10);
        let event = event(&asked, 10, &checked);
        assert_eq!((&*event.topics[0].name, event.topics[0].id), ("a", ids[0]));
        let answer = response(&asked, &checked, &reply_to(&event, ErrorCode::None));
        let frame = round_trip(|writer| answer.encode(writer, 10));
        let read = OffsetCommitResponse::decode(&mut frame.reader(), 10).expect("it is whole");
        assert_eq!(codes(&read), [vec![(0, 100)], vec![(0, 0), (1, 3)], vec![(0, 100)]]);
        assert_eq!(read.topics[1].topic_id, ids[0]);
    }

    #[test]
    fn an_offset_arrives_with_all_that_was_said_of_it() {
        let (image, ids) = image_of(&[("a", 1)]);
        let mut asked = asked(vec![topic("a", TopicId::ZERO, &[0])]);
        asked.retention_time_ms = 60_000;
        let checked = check(&image, &asked, 4);
        let event = event(&asked, 4, &checked);
        assert_eq!((&*event.group, event.generation, &*event.member, event.version), ("g", 5, "m", 4));
        assert_eq!(event.retention_ms, Some(60_000));
        // By name too: offsets of a topic do not become those of its successor.
        assert_eq!(event.topics[0].id, ids[0]);
        let taken = CommitPartition { index: 0, offset: 100, leader_epoch: 1, metadata: Some("note".into()) };
        assert_eq!(event.topics[0].partitions, [taken]);
        asked.retention_time_ms = -1;
        assert_eq!(super::event(&asked, 4, &checked).retention_ms, None);
    }

    #[test]
    fn an_error_of_the_whole_call_is_that_of_each_partition_that_exists() {
        let (image, _) = image_of(&[("a", 1)]);
        let asked = asked(vec![topic("a", TopicId::ZERO, &[0, 1])]);
        let checked = check(&image, &asked, 9);
        let answer = response(&asked, &checked, &Err(ErrorCode::NotCoordinator));
        assert_eq!(codes(&answer), [vec![(0, 16), (1, 3)]]);
    }

    #[test]
    fn more_offsets_than_one_request_may_bring_are_refused_with_text() {
        let many: Vec<i32> = (0..=OFFSETS_PER_REQUEST_MAX as i32).collect();
        let (image, _) = image_of(&[("a", 1)]);
        let asked = asked(vec![topic("a", TopicId::ZERO, &many)]);
        assert!(too_many(&asked).is_some_and(|text| text.contains(&many.len().to_string())));
        let checked = check(&image, &asked, 9);
        let answer = response(&asked, &checked, &Ok(CommitReply::default()));
        assert_eq!(codes(&answer)[0][0], (0, ErrorCode::InvalidCommitOffsetSize.code()));
    }
}
