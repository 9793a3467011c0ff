//! SyncGroup (API 14): a member asks for its assignment; answered once the leader brought it and it is durable.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use ringlog_io::HangUp;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::sync_group::{SyncGroupRequest, SyncGroupResponse};

use super::group_calls::{ask, note, unless_hung_up};
use super::reply::reply;
use super::{Request, RequestError};
use crate::core::Core;
use crate::core::groups::GroupCall;
use crate::group::{Reply, SyncReply, SyncRequest};
use crate::observe::stage::Stage;
use crate::server::Connection;
use crate::server::replies::Answer;

/// Versions from here on say which protocol the member works by (KIP-559).
const NAMES_PROTOCOL_SINCE: i16 = 5;

pub(super) async fn handle(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    request: Request,
) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked =
        SyncGroupRequest::decode(&mut request.body(), info.version).map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let outcome = if says_what_it_must(&asked, info.version) {
        let call = GroupCall::Sync(event(&asked));
        match unless_hung_up(core, connection, ask(core, asked.group_id, call)).await {
            Ok(Ok(Reply::Sync(synced))) => Ok(synced),
            Ok(Ok(_)) => unreachable!("a sync is answered by a sync"),
            Ok(Err(error)) => Err(error),
            // It may still read: that there is no assignment yet is true, and all there is to say.
            Err(HangUp::Finished) => Err(ErrorCode::RebalanceInProgress),
            Err(HangUp::Broken) => return Ok(Answer::Close),
        }
    } else {
        Err(ErrorCode::InconsistentGroupProtocol)
    };
    info.clock.mark(Stage::Wait, core.io.monotonic_now().as_nanos());
    let error = outcome.as_ref().map_or_else(|error| *error, |synced| synced.error);
    let message = outcome.as_ref().ok().and_then(|synced| synced.message.as_deref());
    note(core, &info, asked.group_id, error, message);
    let response = response(&outcome);
    Ok(reply(info, error, 256, |writer, version| response.encode(writer, version)))
}

fn says_what_it_must(asked: &SyncGroupRequest<'_>, version: i16) -> bool {
    version < NAMES_PROTOCOL_SINCE || asked.protocol_type.is_some() && asked.protocol_name.is_some()
}

fn event(asked: &SyncGroupRequest<'_>) -> SyncRequest {
    let assignments = asked
        .assignments
        .iter()
        .map(|given| (Arc::from(given.member_id), Bytes::copy_from_slice(given.assignment)));
    SyncRequest {
        group: Arc::from(asked.group_id),
        generation: asked.generation_id,
        member: Arc::from(asked.member_id),
        instance: asked.group_instance_id.map(Arc::from),
        protocol_type: asked.protocol_type.map(Arc::from),
        protocol_name: asked.protocol_name.map(Arc::from),
        assignments: assignments.collect(),
    }
}

fn response(outcome: &Result<SyncReply, ErrorCode>) -> SyncGroupResponse<'_> {
    match outcome {
        Ok(synced) => SyncGroupResponse {
            error_code: synced.error.code(),
            protocol_type: synced.protocol_type.as_deref(),
            protocol_name: synced.protocol_name.as_deref(),
            assignment: &synced.assignment,
            ..SyncGroupResponse::default()
        },
        Err(error) => SyncGroupResponse { error_code: error.code(), ..SyncGroupResponse::default() },
    }
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::messages::sync_group::SyncGroupRequestAssignment;

    use super::*;
    use crate::handlers::tests::round_trip;

    fn asked() -> SyncGroupRequest<'static> {
        SyncGroupRequest {
            group_id: "g",
            generation_id: 4,
            member_id: "m",
            group_instance_id: Some("i"),
            protocol_type: Some("consumer"),
            protocol_name: Some("range"),
            assignments: vec![SyncGroupRequestAssignment { member_id: "n", assignment: b"given" }],
        }
    }

    #[test]
    fn a_request_carries_the_leader_s_assignments() {
        let event = event(&asked());
        assert_eq!((&*event.group, event.generation, &*event.member), ("g", 4, "m"));
        assert_eq!(event.instance.as_deref(), Some("i"));
        assert_eq!(
            event.protocol_type.as_deref().zip(event.protocol_name.as_deref()),
            Some(("consumer", "range"))
        );
        assert_eq!(event.assignments, [("n".into(), Bytes::from_static(b"given"))]);
    }

    #[test]
    fn the_protocol_must_be_named_from_version_5_on() {
        let nameless = [
            SyncGroupRequest { protocol_type: None, ..asked() },
            SyncGroupRequest { protocol_name: None, ..asked() },
        ];
        for nameless in nameless {
            assert!(says_what_it_must(&nameless, 4));
            assert!(!says_what_it_must(&nameless, 5));
        }
        assert!(says_what_it_must(&asked(), 5));
    }

    #[test]
    fn an_assignment_arrives_in_every_version() {
        let outcome = Ok(SyncReply {
            error: ErrorCode::None,
            message: None,
            protocol_type: Some("consumer".into()),
            protocol_name: Some("range".into()),
            assignment: Bytes::from_static(b"given"),
        });
        for version in 0..=5 {
            let answer = response(&outcome);
            let frame = round_trip(|writer| answer.encode(writer, version));
            let read = SyncGroupResponse::decode(&mut frame.reader(), version).expect("it is whole");
            assert_eq!((read.error_code, read.assignment), (0, b"given".as_slice()));
            assert_eq!(read.protocol_name, (version >= 5).then_some("range"));
        }
        assert_eq!(response(&Err(ErrorCode::NotCoordinator)).error_code, 16);
    }
}
