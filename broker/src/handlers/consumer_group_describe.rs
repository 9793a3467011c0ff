//! ConsumerGroupDescribe (API 69): consumer groups with their members (KIP-848). Each may lie on another core.

use std::rc::Rc;
use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::consumer_group_describe::{
    self, Assignment, ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, Member, TopicPartitions,
};
use ringlog_protocol::wire::Int32Array;

use super::group_calls::{GROUP_OPERATIONS, ask_each, check_consumer_groups, repeated, too_many};
use super::reply::reply;
use super::{Request, RequestError};
use crate::core::Core;
use crate::core::groups::{GroupAnswer, GroupCall};
use crate::group::consumer::{DescribedConsumerGroup, DescribedTopic};
use crate::observe::stage::Stage;
use crate::server::Connection;
use crate::server::replies::Answer;

/// How the API calls what a member speaks.
const CLASSIC_MEMBER: i8 = 0;
const CONSUMER_MEMBER: i8 = 1;

/// What a machine says of a group.
type Found = Result<DescribedConsumerGroup, (ErrorCode, String)>;

/// A group, or why there is none to show and in what words.
type Outcome = Result<DescribedConsumerGroup, (ErrorCode, Option<String>)>;

pub(super) async fn handle(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    request: Request,
) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = ConsumerGroupDescribeRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    if let Some(closed) = too_many(core, connection, &info, asked.group_ids.len()) {
        return Ok(closed);
    }
    let repeated = repeated(&asked.group_ids);
    let once = asked.group_ids.iter().zip(&repeated).filter(|(_, repeated)| !**repeated);
    let groups: Vec<&str> = once.map(|(name, _)| *name).collect();
    let call = |places: &[usize]| {
        GroupCall::ConsumerDescribe(places.iter().map(|place| Arc::from(groups[*place])).collect())
    };
    let described = match check_consumer_groups(core) {
        Err(error) => groups.iter().map(|_| Err(error)).collect(),
        Ok(()) => {
            ask_each(core, &groups, call, |answer| match answer {
                GroupAnswer::ConsumersDescribed(described) => described,
                _ => unreachable!("groups are described by described groups"),
            })
            .await
        }
    };
    info.clock.mark(Stage::Queue, core.io.monotonic_now().as_nanos());
    let described = described.into_iter().zip(&groups).map(|(found, name)| match *name {
        "" => Err(ErrorCode::InvalidGroupId),
        _ => found,
    });
    let outcomes = outcomes(&repeated, described.collect());
    let error = outcomes.iter().find_map(|outcome| outcome.as_ref().err().map(|(error, _)| *error));
    let response = response(&asked, &outcomes);
    Ok(reply(info, error.unwrap_or(ErrorCode::None), 512, |writer, version| response.encode(writer, version)))
}

/// In the order of the request. What stands there twice is described once, so that nobody gets a large group as often as they like.
fn outcomes(repeated: &[bool], described: Vec<Result<Found, ErrorCode>>) -> Vec<Outcome> {
    let mut described = described.into_iter();
    let outcome = |repeated: &bool| {
        if *repeated {
            let message = "The request names a group twice: name each once.".to_owned();
            return Err((ErrorCode::InvalidRequest, Some(message)));
        }
        match described.next().expect("each name is asked for once") {
            Ok(found) => found.map_err(|(error, message)| (error, Some(message))),
            Err(error) => Err((error, None)),
        }
    };
    repeated.iter().map(outcome).collect()
}

fn response<'a>(
    asked: &ConsumerGroupDescribeRequest<'a>,
    outcomes: &'a [Outcome],
) -> ConsumerGroupDescribeResponse<'a> {
    let groups = asked.group_ids.iter().zip(outcomes).map(|(name, outcome)| match outcome {
        Ok(group) => consumer_group_describe::DescribedGroup {
            authorized_operations: if asked.include_authorized_operations {
                GROUP_OPERATIONS
            } else {
                i32::MIN
            },
            ..found(group)
        },
        Err((error, message)) => consumer_group_describe::DescribedGroup {
            error_code: error.code(),
            error_message: message.as_deref(),
            group_id: name,
            ..consumer_group_describe::DescribedGroup::default()
        },
    });
    ConsumerGroupDescribeResponse { groups: groups.collect(), ..ConsumerGroupDescribeResponse::default() }
}

fn found(group: &DescribedConsumerGroup) -> consumer_group_describe::DescribedGroup<'_> {
    let members = group.members.iter().map(|member| Member {
        member_id: &member.member,
        instance_id: member.instance.as_deref(),
        rack_id: member.rack.as_deref(),
        member_epoch: member.epoch,
        client_id: &member.client_id,
        client_host: &member.client_host,
        subscribed_topic_names: member.names.iter().map(|name| &**name).collect(),
        // Empty for none, as Kafka tells it.
        subscribed_topic_regex: Some(member.regex.as_deref().unwrap_or_default()),
        assignment: assignment(&member.assigned),
        target_assignment: assignment(&member.target),
        member_type: if member.speaks_classic { CLASSIC_MEMBER } else { CONSUMER_MEMBER },
    });
    consumer_group_describe::DescribedGroup {
        group_id: &group.group,
        group_state: group.state,
        group_epoch: group.epoch,
        assignment_epoch: group.assignment_epoch,
        assignor_name: &group.assignor,
        members: members.collect(),
        ..consumer_group_describe::DescribedGroup::default()
    }
}

fn assignment(topics: &[DescribedTopic]) -> Assignment<'_> {
    let topics = topics.iter().map(|topic| TopicPartitions {
        topic_id: topic.id,
        topic_name: &topic.name,
        partitions: Int32Array::from(&topic.partitions[..]),
    });
    Assignment { topic_partitions: topics.collect() }
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::ids::TopicId;

    use super::*;
    use crate::group::consumer::DescribedConsumer;
    use crate::handlers::tests::round_trip;

    fn group() -> DescribedConsumerGroup {
        let topic = |partitions: &[i32]| DescribedTopic {
            id: TopicId([1; 16]),
            name: "orders".into(),
            partitions: partitions.to_vec(),
        };
        DescribedConsumerGroup {
            group: "g".into(),
            state: "Reconciling",
            epoch: 5,
            assignment_epoch: 5,
            assignor: "uniform".into(),
            members: vec![DescribedConsumer {
                member: "m".into(),
                instance: Some("i".into()),
                rack: None,
                epoch: 4,
                client_id: "c".into(),
                client_host: "/10.0.0.1".into(),
                names: ["orders".into()].into(),
                regex: None,
                assigned: vec![topic(&[0])],
                target: vec![topic(&[0, 1])],
                speaks_classic: false,
            }],
        }
    }

    #[test]
    fn a_group_is_shown_with_what_its_members_have_and_are_to_have() {
        let outcomes = outcomes(&[false], vec![Ok(Ok(group()))]);
        for version in 0..=1 {
            let asked =
                ConsumerGroupDescribeRequest { group_ids: vec!["g"], include_authorized_operations: true };
            let frame = round_trip(|writer| response(&asked, &outcomes).encode(writer, version));
            let read =
                ConsumerGroupDescribeResponse::decode(&mut frame.reader(), version).expect("it is whole");
            let group = &read.groups[0];
            assert_eq!(
                (group.error_code, group.group_state, group.assignor_name),
                (0, "Reconciling", "uniform")
            );
            assert_eq!((group.group_epoch, group.assignment_epoch), (5, 5));
            assert_eq!(group.authorized_operations, GROUP_OPERATIONS);
            let member = &group.members[0];
            assert_eq!((member.member_epoch, member.subscribed_topic_names[0]), (4, "orders"));
            assert_eq!(member.subscribed_topic_regex, Some(""));
            assert_eq!(
                member.target_assignment.topic_partitions[0].partitions.iter().collect::<Vec<_>>(),
                [0, 1]
            );
            assert_eq!(member.member_type, if version == 0 { -1 } else { CONSUMER_MEMBER });
        }
    }

    #[test]
    fn what_cannot_be_shown_says_why_and_a_name_is_described_once() {
        let missing = (ErrorCode::GroupIdNotFound, "Group a not found.".to_owned());
        let described = vec![Ok(Err(missing)), Err(ErrorCode::NotCoordinator)];
        let outcomes = outcomes(&[false, false, true], described);
        let asked = ConsumerGroupDescribeRequest {
            group_ids: vec!["a", "b", "a"],
            include_authorized_operations: false,
        };
        let answer = response(&asked, &outcomes);
        let codes: Vec<_> = answer.groups.iter().map(|group| (group.group_id, group.error_code)).collect();
        assert_eq!(codes, [("a", 69), ("b", 16), ("a", 42)]);
        assert_eq!(answer.groups[0].error_message, Some("Group a not found."));
    }
}
