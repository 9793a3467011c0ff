//! ListGroups (API 16): all groups of this node, from all of its cores.

use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::list_groups::{self, ListGroupsRequest, ListGroupsResponse};

use super::reply::reply;
use super::{Request, RequestError};
use crate::core::Core;
use crate::core::groups;
use crate::group::ListedGroup;
use crate::observe::stage::Stage;
use crate::server::replies::Answer;

pub(super) async fn handle(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = ListGroupsRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let listed = groups::list(core, owned(&asked.states_filter), owned(&asked.types_filter)).await;
    info.clock.mark(Stage::Queue, core.io.monotonic_now().as_nanos());
    let merged = merge(listed);
    let error = merged.as_ref().err().copied().unwrap_or(ErrorCode::None);
    let response = response(&merged);
    Ok(reply(info, error, 256, |writer, version| response.encode(writer, version)))
}

/// All groups by name. Not only some of them: whoever cleans up by this list must not take the rest for gone.
fn merge(listed: Vec<Result<Vec<ListedGroup>, ErrorCode>>) -> Result<Vec<ListedGroup>, ErrorCode> {
    let listed: Result<Vec<_>, _> = listed.into_iter().collect();
    let mut groups: Vec<_> = listed?.into_iter().flatten().collect();
    groups.sort_by(|one, other| one.group.cmp(&other.group));
    Ok(groups)
}

fn response(merged: &Result<Vec<ListedGroup>, ErrorCode>) -> ListGroupsResponse<'_> {
    let groups = match merged {
        Ok(groups) => groups,
        Err(error) => {
            return ListGroupsResponse { error_code: error.code(), ..ListGroupsResponse::default() };
        }
    };
    let groups = groups.iter().map(|listed| list_groups::ListedGroup {
        group_id: &listed.group,
        protocol_type: &listed.protocol_type,
        group_state: listed.state.name(),
        group_type: listed.group_type,
    });
    ListGroupsResponse { groups: groups.collect(), ..ListGroupsResponse::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::GroupState;
    use crate::handlers::tests::round_trip;

    fn listed(group: &str) -> ListedGroup {
        ListedGroup {
            group: group.into(),
            protocol_type: "consumer".into(),
            state: GroupState::Stable.into(),
            group_type: "classic",
        }
    }

    #[test]
    fn groups_of_all_cores_are_listed_by_name() {
        let merged = merge(vec![Ok(vec![listed("c"), listed("a")]), Ok(Vec::new()), Ok(vec![listed("b")])]);
        for version in 0..=5 {
            let answer = response(&merged);
            let frame = round_trip(|writer| answer.encode(writer, version));
            let read = ListGroupsResponse::decode(&mut frame.reader(), version).expect("it is whole");
            let names: Vec<_> = read.groups.iter().map(|group| group.group_id).collect();
            assert_eq!(names, ["a", "b", "c"]);
            assert_eq!(read.groups[0].group_state, if version >= 4 { "Stable" } else { "" });
            assert_eq!(read.groups[0].group_type, if version >= 5 { "classic" } else { "" });
        }
    }

    #[test]
    fn a_core_that_cannot_say_makes_the_list_an_error() {
        let merged = merge(vec![Ok(vec![listed("a")]), Err(ErrorCode::CoordinatorLoadInProgress)]);
        let answer = response(&merged);
        assert_eq!((answer.error_code, answer.groups.len()), (14, 0));
    }
}
