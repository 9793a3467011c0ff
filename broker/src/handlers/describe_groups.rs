//! DescribeGroups (API 15): groups of the classic protocol with their members. Each may lie on another core.

use std::rc::Rc;
use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::describe_groups::{
    self, DescribeGroupsRequest, DescribeGroupsResponse, DescribedGroupMember,
};

use super::group_calls::{GROUP_OPERATIONS, ask_each, repeated, too_many};
use super::reply::reply;
use super::{Request, RequestError};
use crate::core::Core;
use crate::core::groups::{GroupAnswer, GroupCall};
use crate::group::{DescribedGroup, GroupState};
use crate::observe::stage::Stage;
use crate::server::Connection;
use crate::server::replies::Answer;

/// Versions from here on know of groups that do not exist (KIP-1043).
const KNOWS_MISSING_GROUPS_SINCE: i16 = 6;

/// A group, or why there is none to show.
type Outcome = Result<DescribedGroup, Refused>;

struct Refused {
    error: ErrorCode,
    message: Option<String>,
}

pub(super) async fn handle(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    request: Request,
) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = DescribeGroupsRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    if let Some(closed) = too_many(core, connection, &info, asked.groups.len()) {
        return Ok(closed);
    }
    let repeated = repeated(&asked.groups);
    let once = asked.groups.iter().zip(&repeated).filter(|(_, repeated)| !**repeated);
    let groups: Vec<&str> = once.map(|(name, _)| *name).collect();
    let call = |places: &[usize]| {
        GroupCall::Describe(places.iter().map(|place| Arc::from(groups[*place])).collect())
    };
    let described = ask_each(core, &groups, call, |answer| match answer {
        GroupAnswer::Described(described) => described.into_iter().map(|(_, group)| group).collect(),
        _ => unreachable!("groups are described by described groups"),
    })
    .await;
    info.clock.mark(Stage::Queue, core.io.monotonic_now().as_nanos());
    let outcomes = outcomes(&asked.groups, &repeated, described);
    let error = outcomes.iter().find_map(|outcome| outcome.as_ref().err());
    let error = error.map_or(ErrorCode::None, |refused| refused.error);
    let response = response(&asked, info.version, &outcomes);
    Ok(reply(info, error, 512, |writer, version| response.encode(writer, version)))
}

/// In the order of the request. What stands there twice is described once, so that nobody gets a large group as often as they like.
fn outcomes(
    names: &[&str],
    repeated: &[bool],
    described: Vec<Result<Result<DescribedGroup, ErrorCode>, ErrorCode>>,
) -> Vec<Outcome> {
    let mut described = described.into_iter();
    let outcome = |(name, repeated): (&&str, &bool)| {
        if *repeated {
            let message = "The request names a group twice: name each once.".to_owned();
            return Err(Refused { error: ErrorCode::InvalidRequest, message: Some(message) });
        }
        let described = described.next().expect("each name is asked for once");
        described.and_then(|group| group).map_err(|error| {
            let is_missing = error == ErrorCode::GroupIdNotFound;
            Refused { error, message: is_missing.then(|| format!("Group {name} not found.")) }
        })
    };
    names.iter().zip(repeated).map(outcome).collect()
}

fn response<'a>(
    asked: &DescribeGroupsRequest<'a>,
    version: i16,
    outcomes: &'a [Outcome],
) -> DescribeGroupsResponse<'a> {
    let groups = asked.groups.iter().zip(outcomes).map(|(name, outcome)| match outcome {
        Ok(group) => describe_groups::DescribedGroup {
            authorized_operations: if asked.include_authorized_operations {
                GROUP_OPERATIONS
            } else {
                i32::MIN
            },
            ..found(group)
        },
        Err(refused) => missing(name, version, asked.include_authorized_operations, refused),
    });
    DescribeGroupsResponse { groups: groups.collect(), ..DescribeGroupsResponse::default() }
}

fn found(group: &DescribedGroup) -> describe_groups::DescribedGroup<'_> {
    let members = group.members.iter().map(|member| DescribedGroupMember {
        member_id: &member.member,
        group_instance_id: member.instance.as_deref(),
        client_id: &member.client_id,
        client_host: &member.client_host,
        member_metadata: &member.metadata,
        member_assignment: &member.assignment,
    });
    describe_groups::DescribedGroup {
        group_id: &group.group,
        group_state: group.state.name(),
        protocol_type: &group.protocol_type,
        protocol_data: &group.protocol,
        members: members.collect(),
        ..describe_groups::DescribedGroup::default()
    }
}

fn missing<'a>(
    name: &'a str,
    version: i16,
    with_operations: bool,
    refused: &'a Refused,
) -> describe_groups::DescribedGroup<'a> {
    let knows = version >= KNOWS_MISSING_GROUPS_SINCE;
    let is_dead = refused.error == ErrorCode::GroupIdNotFound;
    let error = if is_dead && !knows { ErrorCode::None } else { refused.error };
    describe_groups::DescribedGroup {
        error_code: error.code(),
        error_message: refused.message.as_deref().filter(|_| knows),
        group_id: name,
        group_state: if is_dead { GroupState::Dead.name() } else { "" },
        authorized_operations: if with_operations && error == ErrorCode::None {
            GROUP_OPERATIONS
        } else {
            i32::MIN
        },
        ..describe_groups::DescribedGroup::default()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::group::DescribedMember;
    use crate::handlers::tests::round_trip;

    fn group() -> DescribedGroup {
        DescribedGroup {
            group: "g".into(),
            state: GroupState::Stable,
            generation: 2,
            protocol_type: "consumer".into(),
            protocol: "range".into(),
            members: vec![DescribedMember {
                member: "m".into(),
                instance: Some("i".into()),
                client_id: "c".into(),
                client_host: "/10.0.0.1".into(),
                metadata: Bytes::from_static(b"topics"),
                assignment: Bytes::from_static(b"given"),
            }],
        }
    }

    fn asked(groups: &[&'static str], operations: bool) -> DescribeGroupsRequest<'static> {
        DescribeGroupsRequest { groups: groups.to_vec(), include_authorized_operations: operations }
    }

    #[test]
    fn a_group_is_shown_with_its_members_in_every_version() {
        let outcomes = outcomes(&["g"], &[false], vec![Ok(Ok(group()))]);
        for version in 0..=6 {
            let answer = response(&asked(&["g"], version >= 3), version, &outcomes);
            let frame = round_trip(|writer| answer.encode(writer, version));
            let read = DescribeGroupsResponse::decode(&mut frame.reader(), version).expect("it is whole");
            let group = &read.groups[0];
            let shown = (group.group_state, group.protocol_type, group.protocol_data, group.error_code);
            assert_eq!(shown, ("Stable", "consumer", "range", 0));
            assert_eq!(group.members[0].member_assignment, b"given");
            assert_eq!(group.members[0].client_host, "/10.0.0.1");
            assert_eq!(group.authorized_operations, if version >= 3 { GROUP_OPERATIONS } else { i32::MIN });
        }
    }

    #[test]
    fn a_group_that_does_not_exist_is_dead_and_an_error_from_version_6_on() {
        let outcomes = outcomes(&["g"], &[false], vec![Ok(Err(ErrorCode::GroupIdNotFound))]);
        for version in 0..=6 {
            let answer = response(&asked(&["g"], version >= 3), version, &outcomes);
            let frame = round_trip(|writer| answer.encode(writer, version));
            let read = DescribeGroupsResponse::decode(&mut frame.reader(), version).expect("it is whole");
            let group = &read.groups[0];
            assert_eq!((group.group_id, group.group_state, group.members.len()), ("g", "Dead", 0));
            assert_eq!(group.error_code, if version >= 6 { 69 } else { 0 });
            assert_eq!(group.error_message, (version >= 6).then_some("Group g not found."));
        }
    }

    #[test]
    fn other_errors_are_told_in_every_version_and_a_name_is_described_once() {
        let names = ["a", "b", "a"];
        let described = vec![Err(ErrorCode::NotCoordinator), Ok(Err(ErrorCode::InvalidGroupId))];
        let outcomes = outcomes(&names, &[false, false, true], described);
        for version in 0..=6 {
            let answer = response(&asked(&names, false), version, &outcomes);
            let frame = round_trip(|writer| answer.encode(writer, version));
            let read = DescribeGroupsResponse::decode(&mut frame.reader(), version).expect("it is whole");
            let codes: Vec<_> = read.groups.iter().map(|group| (group.group_id, group.error_code)).collect();
            assert_eq!(codes, [("a", 16), ("b", 24), ("a", 42)]);
        }
    }
}
