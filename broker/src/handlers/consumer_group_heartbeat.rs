//! ConsumerGroupHeartbeat (API 68): a member of a consumer group joins, lives, is told its partitions, and leaves (KIP-848).

use std::rc::Rc;
use std::sync::Arc;

use ringlog_io::HangUp;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{PartitionIndex, TopicPartition};
use ringlog_protocol::messages::consumer_group_heartbeat::{
    self, ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, TopicPartitions,
};

use super::group_calls::{ask, check_consumer_groups, client_id, note, unless_hung_up};
use super::reply::reply;
use super::{Request, RequestError};
use crate::core::Core;
use crate::core::groups::GroupCall;
use crate::group::Reply;
use crate::group::consumer::{ConsumerHeartbeatReply, ConsumerHeartbeatRequest};
use crate::observe::stage::Stage;
use crate::server::Connection;
use crate::server::replies::Answer;

pub(super) async fn handle(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    request: Request,
) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = ConsumerGroupHeartbeatRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let call = ConsumerHeartbeatRequest {
        version: info.version,
        client_id: Arc::from(client_id(&request)),
        client_host: format!("/{}", connection.peer.ip().to_canonical()).into(),
        random: core.random_bytes(),
        ..event(&asked)
    };
    let answer = async {
        check_consumer_groups(core)?;
        ask(core, asked.group_id, GroupCall::ConsumerHeartbeat(call)).await
    };
    let outcome = match unless_hung_up(core, connection, answer).await {
        Ok(Ok(Reply::ConsumerHeartbeat(heard))) => Ok(heard),
        Ok(Ok(_)) => unreachable!("a heartbeat is answered by a heartbeat"),
        Ok(Err(error)) => Err(error),
        // It may still read: the assignment that it waits for is not there yet.
        Err(HangUp::Finished) => Err(ErrorCode::CoordinatorNotAvailable),
        Err(HangUp::Broken) => return Ok(Answer::Close),
    };
    info.clock.mark(Stage::Wait, core.io.monotonic_now().as_nanos());
    let error = outcome.as_ref().map_or_else(|error| *error, |heard| heard.error);
    // The client is told in words itself.
    note(core, &info, asked.group_id, error, None);
    let response = response(&outcome);
    Ok(reply(info, error, 128, |writer, version| response.encode(writer, version)))
}

/// Without who asks.
fn event(asked: &ConsumerGroupHeartbeatRequest<'_>) -> ConsumerHeartbeatRequest {
    let names = asked.subscribed_topic_names.as_ref();
    let owned = asked.topic_partitions.as_ref().map(|topics| {
        let owned = topics.iter().flat_map(|topic| {
            let id = topic.topic_id;
            topic
                .partitions
                .iter()
                .map(move |index| TopicPartition { topic: id, partition: PartitionIndex(index) })
        });
        owned.collect()
    });
    ConsumerHeartbeatRequest {
        group: Arc::from(asked.group_id),
        member: Arc::from(asked.member_id),
        epoch: asked.member_epoch,
        instance: asked.instance_id.map(Arc::from),
        rack: asked.rack_id.map(Arc::from),
        rebalance_timeout_ms: asked.rebalance_timeout_ms,
        names: names.map(|names| names.iter().map(|name| Arc::from(*name)).collect()),
        regex: asked.subscribed_topic_regex.map(Arc::from),
        assignor: asked.server_assignor.map(Arc::from),
        owned,
        ..ConsumerHeartbeatRequest::default()
    }
}

fn response(outcome: &Result<ConsumerHeartbeatReply, ErrorCode>) -> ConsumerGroupHeartbeatResponse<'_> {
    let heard = match outcome {
        Ok(heard) => heard,
        Err(error) => {
            return ConsumerGroupHeartbeatResponse {
                error_code: error.code(),
                ..ConsumerGroupHeartbeatResponse::default()
            };
        }
    };
    let assignment = heard.assignment.as_ref().map(|given| {
        let topics = given.chunk_by(|one, next| one.topic == next.topic).map(|topic| TopicPartitions {
            topic_id: topic.first().map(|at| at.topic).unwrap_or_default(),
            partitions: topic.iter().map(|at| at.partition.0).collect(),
        });
        consumer_group_heartbeat::Assignment { topic_partitions: topics.collect() }
    });
    ConsumerGroupHeartbeatResponse {
        error_code: heard.error.code(),
        error_message: heard.message.as_deref(),
        member_id: heard.member.as_deref(),
        member_epoch: heard.epoch,
        heartbeat_interval_ms: heard.heartbeat_interval_ms,
        assignment,
        ..ConsumerGroupHeartbeatResponse::default()
    }
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::ids::TopicId;

    use super::*;
    use crate::handlers::tests::round_trip;

    fn at(topic: u8, partition: i32) -> TopicPartition {
        TopicPartition { topic: TopicId([topic; 16]), partition: PartitionIndex(partition) }
    }

    #[test]
    fn what_a_member_says_is_what_the_machine_hears() {
        let owned = TopicPartitions { topic_id: TopicId([1; 16]), partitions: vec![3, 5].into() };
        let asked = ConsumerGroupHeartbeatRequest {
            group_id: "g",
            member_id: "m",
            member_epoch: 4,
            rebalance_timeout_ms: 30_000,
            subscribed_topic_names: Some(vec!["b", "a"]),
            subscribed_topic_regex: Some(""),
            topic_partitions: Some(vec![owned]),
            ..ConsumerGroupHeartbeatRequest::default()
        };
        let event = event(&asked);
        assert_eq!((&*event.group, &*event.member, event.epoch), ("g", "m", 4));
        assert_eq!(event.names, Some(vec!["b".into(), "a".into()]));
        // Nothing and an empty text are two things: as before, and none.
        assert_eq!((event.regex.as_deref(), event.instance, event.assignor), (Some(""), None, None));
        assert_eq!(event.owned, Some(vec![at(1, 3), at(1, 5)]));
    }

    #[test]
    fn a_member_is_told_its_partitions_by_topic() {
        let heard = ConsumerHeartbeatReply {
            error: ErrorCode::None,
            message: None,
            member: Some("m".into()),
            epoch: 7,
            heartbeat_interval_ms: 5_000,
            assignment: Some(vec![at(1, 0), at(1, 2), at(2, 0)]),
        };
        let outcome = Ok(heard);
        for version in 0..=1 {
            let frame = round_trip(|writer| response(&outcome).encode(writer, version));
            let read =
                ConsumerGroupHeartbeatResponse::decode(&mut frame.reader(), version).expect("it is whole");
            assert_eq!((read.error_code, read.member_id, read.member_epoch), (0, Some("m"), 7));
            let topics = read.assignment.expect("given").topic_partitions;
            let topics: Vec<_> =
                topics.iter().map(|topic| (topic.topic_id.0[0], topic.partitions.iter().collect())).collect();
            assert_eq!(topics, [(1, vec![0, 2]), (2, vec![0])]);
        }
    }

    #[test]
    fn a_refusal_has_its_words_and_nothing_else() {
        let refused = ConsumerHeartbeatReply {
            error: ErrorCode::FencedMemberEpoch,
            message: Some("begin anew".to_owned()),
            member: None,
            epoch: 0,
            heartbeat_interval_ms: 0,
            assignment: None,
        };
        for (outcome, code, message) in
            [(Ok(refused), 110, Some("begin anew")), (Err(ErrorCode::NotCoordinator), 16, None)]
        {
            let read = response(&outcome);
            assert_eq!((read.error_code, read.error_message), (code, message));
            assert_eq!((read.member_id, read.member_epoch, read.assignment), (None, 0, None));
        }
    }
}
