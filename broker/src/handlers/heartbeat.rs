//! Heartbeat (API 12): a member of a classic group is alive, and hears whether it has to join again.

use std::rc::Rc;
use std::sync::Arc;

use ringlog_protocol::messages::heartbeat::{HeartbeatRequest, HeartbeatResponse};

use super::group_calls::{ask, note};
use super::reply::reply;
use super::{Request, RequestError};
use crate::core::Core;
use crate::core::groups::GroupCall;
use crate::group::{self, Reply};
use crate::observe::stage::Stage;
use crate::server::replies::Answer;

pub(super) async fn handle(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked =
        HeartbeatRequest::decode(&mut request.body(), info.version).map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let error = match ask(core, asked.group_id, GroupCall::Heartbeat(event(&asked))).await {
        Ok(Reply::Heartbeat(error)) | Err(error) => error,
        Ok(_) => unreachable!("a heartbeat is answered by a heartbeat"),
    };
    info.clock.mark(Stage::Queue, core.io.monotonic_now().as_nanos());
    note(core, &info, asked.group_id, error, None);
    let response = HeartbeatResponse { error_code: error.code(), ..HeartbeatResponse::default() };
    Ok(reply(info, error, 32, |writer, version| response.encode(writer, version)))
}

fn event(asked: &HeartbeatRequest<'_>) -> group::HeartbeatRequest {
    group::HeartbeatRequest {
        group: Arc::from(asked.group_id),
        generation: asked.generation_id,
        member: Arc::from(asked.member_id),
        instance: asked.group_instance_id.map(Arc::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_names_member_and_generation() {
        let asked = HeartbeatRequest {
            group_id: "g",
            generation_id: 2,
            member_id: "m",
            group_instance_id: Some("i"),
        };
        let event = event(&asked);
        assert_eq!((&*event.group, event.generation, &*event.member), ("g", 2, "m"));
        assert_eq!(event.instance.as_deref(), Some("i"));
    }
}
