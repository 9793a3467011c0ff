//! DeleteGroups (API 42): groups without members go, with their offsets. Each may lie on another core.

use std::rc::Rc;
use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::delete_groups::{
    DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse,
};

use super::group_calls::{ask_each, note, repeated, too_many};
use super::reply::reply;
use super::{Request, RequestError};
use crate::core::Core;
use crate::core::groups::{GroupAnswer, GroupCall};
use crate::group::{DeletedGroup, Reply};
use crate::observe::stage::Stage;
use crate::server::Connection;
use crate::server::replies::Answer;

pub(super) async fn handle(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    request: Request,
) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = DeleteGroupsRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    if let Some(closed) = too_many(core, connection, &info, asked.groups_names.len()) {
        return Ok(closed);
    }
    let groups = each_once(&asked.groups_names);
    let call = |places: &[usize]| {
        GroupCall::DeleteGroups(places.iter().map(|place| Arc::from(groups[*place])).collect())
    };
    let deleted = ask_each(core, &groups, call, |answer| match answer {
        GroupAnswer::Reply(Reply::DeleteGroups(deleted)) => deleted,
        _ => unreachable!("groups are deleted by deleted groups"),
    })
    .await;
    info.clock.mark(Stage::Journal, core.io.monotonic_now().as_nanos());
    for (group, deleted) in groups.iter().zip(&deleted) {
        let message = deleted.as_ref().ok().and_then(|deleted| deleted.message.as_deref());
        note(core, &info, group, error_of(deleted), message);
    }
    let first_error = deleted.iter().map(error_of).find(|error| *error != ErrorCode::None);
    let response = response(&groups, &deleted);
    let error = first_error.unwrap_or(ErrorCode::None);
    Ok(reply(info, error, 128, |writer, version| response.encode(writer, version)))
}

/// As Kafka does with names that stand there twice.
fn each_once<'a>(names: &[&'a str]) -> Vec<&'a str> {
    names.iter().zip(repeated(names)).filter(|(_, repeated)| !repeated).map(|(name, _)| *name).collect()
}

fn error_of(deleted: &Result<DeletedGroup, ErrorCode>) -> ErrorCode {
    deleted.as_ref().map_or_else(|error| *error, |deleted| deleted.error)
}

fn response<'a>(
    groups: &[&'a str],
    deleted: &'a [Result<DeletedGroup, ErrorCode>],
) -> DeleteGroupsResponse<'a> {
    let results = groups.iter().zip(deleted).map(|(group, deleted)| DeletableGroupResult {
        group_id: group,
        error_code: error_of(deleted).code(),
        error_message: deleted.as_ref().ok().and_then(|deleted| deleted.message.as_deref()),
    });
    DeleteGroupsResponse { results: results.collect(), ..DeleteGroupsResponse::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::round_trip;

    #[test]
    fn each_name_is_answered_once_in_its_order() {
        assert_eq!(each_once(&["b", "a", "b", "", ""]), ["b", "a", ""]);
    }

    #[test]
    fn each_group_has_its_own_error_wherever_it_lies() {
        let groups = ["a", "b", "c"];
        let of =
            |group: &str, error| DeletedGroup { group: group.into(), error, message: Some("why".into()) };
        let deleted = [
            Ok(of("a", ErrorCode::None)),
            Err(ErrorCode::NotCoordinator),
            Ok(of("c", ErrorCode::NonEmptyGroup)),
        ];
        for version in 0..=2 {
            let answer = response(&groups, &deleted);
            let frame = round_trip(|writer| answer.encode(writer, version));
            let read = DeleteGroupsResponse::decode(&mut frame.reader(), version).expect("it is whole");
            let codes: Vec<_> =
                read.results.iter().map(|result| (result.group_id, result.error_code)).collect();
            assert_eq!(codes, [("a", 0), ("b", 16), ("c", 68)]);
        }
    }
}
