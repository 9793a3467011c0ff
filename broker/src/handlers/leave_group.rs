//! LeaveGroup (API 13): members leave, or an operator removes them.

use std::rc::Rc;
use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::leave_group::{LeaveGroupRequest, LeaveGroupResponse, MemberResponse};

use super::group_calls::{ask, note};
use super::reply::reply;
use super::{Request, RequestError};
use crate::core::Core;
use crate::core::groups::GroupCall;
use crate::group::{LeaveReply, LeaveRequest, Leaver, Reply};
use crate::observe::stage::Stage;
use crate::server::replies::Answer;

/// Versions from here on name several members (KIP-345).
const SEVERAL_SINCE: i16 = 3;

pub(super) async fn handle(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = LeaveGroupRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let call = GroupCall::Leave(event(&asked, info.version));
    let left = match ask(core, asked.group_id, call).await {
        Ok(Reply::Leave(left)) => left,
        Ok(_) => unreachable!("a leave is answered by a leave"),
        Err(error) => LeaveReply { error, members: Vec::new() },
    };
    info.clock.mark(Stage::Journal, core.io.monotonic_now().as_nanos());
    let error = left.single_error();
    note(core, &info, asked.group_id, error, None);
    let response = response(&left, info.version);
    Ok(reply(info, error, 64, |writer, version| response.encode(writer, version)))
}

fn event(asked: &LeaveGroupRequest<'_>, version: i16) -> LeaveRequest {
    let members = if version < SEVERAL_SINCE {
        vec![Leaver { member: Arc::from(asked.member_id), ..Leaver::default() }]
    } else {
        let leaver = |member: &ringlog_protocol::messages::leave_group::MemberIdentity<'_>| Leaver {
            member: Arc::from(member.member_id),
            instance: member.group_instance_id.map(Arc::from),
            reason: member.reason.map(Arc::from),
        };
        asked.members.iter().map(leaver).collect()
    };
    LeaveRequest { group: Arc::from(asked.group_id), members }
}

fn response(left: &LeaveReply, version: i16) -> LeaveGroupResponse<'_> {
    if version < SEVERAL_SINCE {
        let error_code = left.single_error().code();
        return LeaveGroupResponse { error_code, ..LeaveGroupResponse::default() };
    }
    let members = left.members.iter().map(|member| MemberResponse {
        member_id: &member.member,
        group_instance_id: member.instance.as_deref(),
        error_code: member.error.code(),
    });
    LeaveGroupResponse {
        error_code: left.error.code(),
        members: if left.error == ErrorCode::None { members.collect() } else { Vec::new() },
        ..LeaveGroupResponse::default()
    }
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::messages::leave_group::MemberIdentity;

    use super::*;
    use crate::group::LeftMember;
    use crate::handlers::tests::round_trip;

    fn left(members: &[(&str, ErrorCode)]) -> LeaveReply {
        let members = members.iter().map(|(member, error)| LeftMember {
            member: Arc::from(*member),
            instance: None,
            error: *error,
        });
        LeaveReply { error: ErrorCode::None, members: members.collect() }
    }

    #[test]
    fn old_versions_name_one_member_and_new_ones_several() {
        let asked = LeaveGroupRequest { group_id: "g", member_id: "m", members: Vec::new() };
        assert_eq!(event(&asked, 2).members, [Leaver { member: "m".into(), ..Leaver::default() }]);
        let members = vec![
            MemberIdentity { member_id: "m", ..MemberIdentity::default() },
            MemberIdentity { member_id: "", group_instance_id: Some("i"), reason: Some("old") },
        ];
        let asked = LeaveGroupRequest { group_id: "g", member_id: "", members };
        let expected = [
            Leaver { member: "m".into(), ..Leaver::default() },
            Leaver { member: "".into(), instance: Some("i".into()), reason: Some("old".into()) },
        ];
        assert_eq!(event(&asked, 5).members, expected);
    }

    #[test]
    fn before_version_3_the_one_member_s_error_is_that_of_the_response() {
        let left = left(&[("m", ErrorCode::UnknownMemberId)]);
        for version in 0..=5 {
            let answer = response(&left, version);
            let frame = round_trip(|writer| answer.encode(writer, version));
            let read = LeaveGroupResponse::decode(&mut frame.reader(), version).expect("it is whole");
            let (of_all, of_members) = (read.error_code, read.members.iter().map(|member| member.error_code));
            let told = (of_all, of_members.collect::<Vec<_>>());
            assert_eq!(told, if version < 3 { (25, vec![]) } else { (0, vec![25]) });
        }
    }

    #[test]
    fn an_error_of_the_request_names_no_member() {
        let failed = LeaveReply { error: ErrorCode::NotCoordinator, ..left(&[("m", ErrorCode::None)]) };
        let answer = response(&failed, 4);
        assert_eq!((answer.error_code, answer.members.len()), (16, 0));
        assert_eq!(response(&failed, 1).error_code, 16);
    }
}
