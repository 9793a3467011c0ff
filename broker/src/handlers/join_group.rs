//! JoinGroup (API 11): a member comes in; answered once all others of its group did.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use ringlog_io::HangUp;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::join_group::{JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember};

use super::group_calls::{ask, client_id, note, unless_hung_up};
use super::reply::reply;
use super::{Request, RequestError};
use crate::core::Core;
use crate::core::groups::GroupCall;
use crate::group::{JoinReply, JoinRequest, Protocol, Reply};
use crate::observe::stage::Stage;
use crate::server::Connection;
use crate::server::replies::Answer;

/// Versions from here on have null where there is no protocol; those before have an empty name.
const NO_PROTOCOL_IS_NULL_SINCE: i16 = 7;

pub(super) async fn handle(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    request: Request,
) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked =
        JoinGroupRequest::decode(&mut request.body(), info.version).map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let from = Joiner {
        version: info.version,
        client_id: client_id(&request),
        client_host: &format!("/{}", connection.peer.ip().to_canonical()),
        random: core.random_bytes(),
    };
    let call = GroupCall::Join(event(&asked, &from));
    let outcome = match unless_hung_up(core, connection, ask(core, asked.group_id, call)).await {
        Ok(Ok(Reply::Join(joined))) => Ok(joined),
        Ok(Ok(_)) => unreachable!("a join is answered by a join"),
        Ok(Err(error)) => Err(error),
        // It may still read: that the group is not complete is true, and all there is to say.
        Err(HangUp::Finished) => Err(ErrorCode::RebalanceInProgress),
        Err(HangUp::Broken) => return Ok(Answer::Close),
    };
    info.clock.mark(Stage::Wait, core.io.monotonic_now().as_nanos());
    let error = outcome.as_ref().map_or_else(|error| *error, |joined| joined.error);
    let message = outcome.as_ref().ok().and_then(|joined| joined.message.as_deref());
    note(core, &info, asked.group_id, error, message);
    let response = response(&asked, info.version, &outcome);
    Ok(reply(info, error, 256, |writer, version| response.encode(writer, version)))
}

/// Who asks.
struct Joiner<'a> {
    version: i16,
    client_id: &'a str,
    client_host: &'a str,
    random: [u8; 16],
}

fn event(asked: &JoinGroupRequest<'_>, from: &Joiner<'_>) -> JoinRequest {
    let protocols = asked.protocols.iter().map(|protocol| Protocol {
        name: Arc::from(protocol.name),
        metadata: Bytes::copy_from_slice(protocol.metadata),
    });
    JoinRequest {
        version: from.version,
        group: Arc::from(asked.group_id),
        member: Arc::from(asked.member_id),
        instance: asked.group_instance_id.map(Arc::from),
        client_id: Arc::from(from.client_id),
        client_host: Arc::from(from.client_host),
        protocol_type: Arc::from(asked.protocol_type),
        protocols: protocols.collect(),
        session_timeout_ms: asked.session_timeout_ms,
        rebalance_timeout_ms: asked.rebalance_timeout_ms,
        random: from.random,
        reason: asked.reason.map(Arc::from),
    }
}

fn response<'a>(
    asked: &JoinGroupRequest<'a>,
    version: i16,
    outcome: &'a Result<JoinReply, ErrorCode>,
) -> JoinGroupResponse<'a> {
    let joined = match outcome {
        Ok(joined) => joined,
        Err(error) => {
            return JoinGroupResponse {
                error_code: error.code(),
                protocol_name: protocol_name(version, None),
                member_id: asked.member_id,
                ..JoinGroupResponse::default()
            };
        }
    };
    let members = joined.members.iter().map(|member| JoinGroupResponseMember {
        member_id: &member.member,
        group_instance_id: member.instance.as_deref(),
        metadata: &member.metadata,
    });
    JoinGroupResponse {
        error_code: joined.error.code(),
        generation_id: joined.generation,
        protocol_type: joined.protocol_type.as_deref(),
        protocol_name: protocol_name(version, joined.protocol_name.as_deref()),
        leader: &joined.leader,
        skip_assignment: joined.skip_assignment,
        member_id: &joined.member,
        members: members.collect(),
        ..JoinGroupResponse::default()
    }
}

fn protocol_name(version: i16, name: Option<&str>) -> Option<&str> {
    let name = name.unwrap_or_default();
    if name.is_empty() && version >= NO_PROTOCOL_IS_NULL_SINCE { None } else { Some(name) }
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::messages::join_group::JoinGroupRequestProtocol;

    use super::*;
    use crate::group::JoinedMember;
    use crate::handlers::tests::round_trip;

    fn asked() -> JoinGroupRequest<'static> {
        JoinGroupRequest {
            group_id: "g",
            session_timeout_ms: 6_000,
            rebalance_timeout_ms: -1,
            member_id: "m",
            group_instance_id: Some("i"),
            protocol_type: "consumer",
            protocols: vec![JoinGroupRequestProtocol { name: "range", metadata: b"topics" }],
            reason: Some("because"),
        }
    }

    fn joined() -> JoinReply {
        JoinReply {
            error: ErrorCode::None,
            message: None,
            generation: 3,
            protocol_type: Some("consumer".into()),
            protocol_name: Some("range".into()),
            leader: "m".into(),
            skip_assignment: false,
            member: "m".into(),
            members: vec![JoinedMember {
                member: "m".into(),
                instance: Some("i".into()),
                metadata: Bytes::from_static(b"topics"),
            }],
        }
    }

    #[test]
    fn a_request_says_who_asks_and_from_where() {
        let from = Joiner { version: 5, client_id: "c", client_host: "/10.0.0.1", random: [9; 16] };
        let event = event(&asked(), &from);
        assert_eq!((event.version, &*event.group, &*event.member), (5, "g", "m"));
        assert_eq!(event.instance.as_deref(), Some("i"));
        assert_eq!(event.reason.as_deref(), Some("because"));
        assert_eq!((&*event.client_id, &*event.client_host, event.random), ("c", "/10.0.0.1", [9; 16]));
        assert_eq!(
            event.protocols,
            [Protocol { name: "range".into(), metadata: Bytes::from_static(b"topics") }]
        );
        assert_eq!((event.session_timeout_ms, event.rebalance_timeout_ms), (6_000, -1));
    }

    #[test]
    fn a_leader_is_told_of_all_members_in_every_version() {
        let outcome = Ok(joined());
        for version in 0..=9 {
            let answer = response(&asked(), version, &outcome);
            let frame = round_trip(|writer| answer.encode(writer, version));
            let read = JoinGroupResponse::decode(&mut frame.reader(), version).expect("it is whole");
            assert_eq!((read.error_code, read.generation_id, read.leader, read.member_id), (0, 3, "m", "m"));
            assert_eq!(read.protocol_name, Some("range"));
            assert_eq!(read.protocol_type, (version >= 7).then_some("consumer"));
            assert_eq!(read.members.len(), 1);
            assert_eq!(read.members[0].metadata, b"topics");
            assert_eq!(read.members[0].group_instance_id, (version >= 5).then_some("i"));
        }
    }

    #[test]
    fn an_error_has_no_protocol_which_is_null_from_version_7_on() {
        for outcome in [Err(ErrorCode::NotCoordinator), Ok(JoinReply { protocol_name: None, ..joined() })] {
            for version in 0..=9 {
                let answer = response(&asked(), version, &outcome);
                let frame = round_trip(|writer| answer.encode(writer, version));
                let read = JoinGroupResponse::decode(&mut frame.reader(), version).expect("it is whole");
                assert_eq!(read.protocol_name, if version < 7 { Some("") } else { None });
                assert_eq!(read.member_id, "m");
            }
        }
    }

    #[test]
    fn a_leader_that_keeps_its_assignment_is_told_so_where_the_version_can() {
        let outcome = Ok(JoinReply { skip_assignment: true, ..joined() });
        let answer = response(&asked(), 9, &outcome);
        let frame = round_trip(|writer| answer.encode(writer, 9));
        let read = JoinGroupResponse::decode(&mut frame.reader(), 9).expect("it is whole");
        assert!(read.skip_assignment);
    }
}
