//! A change of topics within the time that its request gives. Owns what a client is told where that is none, or not enough.

use std::rc::Rc;
use std::time::Duration;

use ringlog_protocol::error_code::ErrorCode;

use crate::controller::request::Refusal;
use crate::controller::{ControllerReply, ControllerRequest};
use crate::core::Core;

/// Asks the controller and waits for `timeout_ms` at most. Without time nothing is begun, as on Kafka; what is begun goes on.
///
/// # Errors
/// Of all topics of the request: REQUEST_TIMED_OUT, and what the controller's log does not allow.
pub(super) async fn change(
    core: &Rc<Core>,
    timeout_ms: i32,
    request: ControllerRequest,
) -> Result<ControllerReply, Refusal> {
    let timed_out = |message| Err(Refusal { error: ErrorCode::RequestTimedOut, message });
    let Ok(time_ms @ 1..) = u64::try_from(timeout_ms) else {
        return timed_out(format!("The request gives {timeout_ms} ms, so nothing was done."));
    };
    match core.ask_controller_within(Duration::from_millis(time_ms), request).await {
        Some(reply) => {
            reply.map_err(|error| Refusal { error: error.error_code(), message: error.to_string() })
        }
        None => timed_out(format!(
            "It is not done after {timeout_ms} ms and goes on: look what came of it before you ask again."
        )),
    }
}
