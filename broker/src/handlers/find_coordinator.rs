//! FindCoordinator (API 10): which node answers for a group. This node does for each; the first question makes the topic in
//! which groups are kept.

use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::find_coordinator::{
    Coordinator, FindCoordinatorRequest, FindCoordinatorResponse,
};

use super::group_calls::too_many;
use super::init_producer_id::TRANSACTIONS_NOT_BUILT;
use super::metadata::advertised;
use super::reply::reply;
use super::{Request, RequestError};
use crate::core::Core;
use crate::core::groups::ensure_offsets_topic;
use crate::observe::stage::Stage;
use crate::server::Connection;
use crate::server::replies::Answer;

/// Kafka's `CoordinatorType`.
const GROUP: i8 = 0;
const TRANSACTION: i8 = 1;
const SHARE: i8 = 2;

/// Versions from here on ask for several keys at once (KIP-699).
const BATCHED_SINCE: i16 = 4;

/// Where a coordinator is.
struct Node {
    id: i32,
    host: String,
    port: i32,
}

/// Why there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Refused {
    error: ErrorCode,
    message: &'static str,
}

pub(super) async fn handle(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    request: Request,
) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = FindCoordinatorRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    if let Some(closed) = too_many(core, connection, &info, asked.coordinator_keys.len()) {
        return Ok(closed);
    }
    let found = find(core, connection, asked.key_type).await;
    info.clock.mark(Stage::Journal, core.io.monotonic_now().as_nanos());
    let error = found.as_ref().err().map_or(ErrorCode::None, |refused| refused.error);
    if let Err(Refused { error, message }) = &found {
        tracing::debug!(client_id = ?info.client_id, key_type = asked.key_type, %error, reason = message, "no coordinator");
    }
    let response = response(&asked, info.version, &found);
    Ok(reply(info, error, 128, |writer, version| response.encode(writer, version)))
}

async fn find(core: &Rc<Core>, connection: &Connection, key_type: i8) -> Result<Node, Refused> {
    check_type(key_type)?;
    ensure_offsets_topic(core).await.map_err(|error| Refused {
        error,
        message: "The topic in which groups are kept cannot be made now.",
    })?;
    let (host, port) = advertised(core, connection);
    Ok(Node { id: core.config.node_id.0, host, port })
}

/// None of these would come with time, so nobody shall ask again.
fn check_type(key_type: i8) -> Result<(), Refused> {
    let message = match key_type {
        GROUP => return Ok(()),
        TRANSACTION => TRANSACTIONS_NOT_BUILT,
        SHARE => "share groups are not built yet",
        _ => "key types are 0 (group), 1 (transaction) and 2 (share group)",
    };
    Err(Refused { error: ErrorCode::InvalidRequest, message })
}

fn response<'a>(
    asked: &FindCoordinatorRequest<'a>,
    version: i16,
    found: &'a Result<Node, Refused>,
) -> FindCoordinatorResponse<'a> {
    let (error, message, node_id, host, port) = match found {
        // As Kafka says it: the code's name where there was one key, an empty text where there may be several.
        Ok(node) => (
            ErrorCode::None,
            Some(if version < BATCHED_SINCE { "NONE" } else { "" }),
            node.id,
            node.host.as_str(),
            node.port,
        ),
        Err(refused) => (refused.error, Some(refused.message), -1, "", -1),
    };
    if version < BATCHED_SINCE {
        return FindCoordinatorResponse {
            error_code: error.code(),
            error_message: message,
            node_id,
            host,
            port,
            ..FindCoordinatorResponse::default()
        };
    }
    let coordinator = |key: &&'a str| Coordinator {
        key,
        node_id,
        host,
        port,
        error_code: error.code(),
        error_message: message,
    };
    let coordinators = asked.coordinator_keys.iter().map(coordinator).collect();
    FindCoordinatorResponse { error_message: None, coordinators, ..FindCoordinatorResponse::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handlers::tests::round_trip;

    fn found() -> Result<Node, Refused> {
        Ok(Node { id: 7, host: "broker.example".to_owned(), port: 9092 })
    }

    #[test]
    fn only_groups_have_a_coordinator() {
        assert_eq!(check_type(GROUP), Ok(()));
        for (key_type, part) in [(TRANSACTION, "transactional.id"), (SHARE, "share"), (9, "0 (group)")] {
            let refused = check_type(key_type).expect_err("it is no group");
            assert_eq!(refused.error, ErrorCode::InvalidRequest);
            assert!(refused.message.contains(part), "{refused:?}");
        }
    }

    #[test]
    fn one_key_is_answered_in_the_response_itself() {
        let asked = FindCoordinatorRequest { key: "g", ..FindCoordinatorRequest::default() };
        for version in 0..=3 {
            let found = found();
            let answer = response(&asked, version, &found);
            let frame = round_trip(|writer| answer.encode(writer, version));
            let read = FindCoordinatorResponse::decode(&mut frame.reader(), version).expect("it is whole");
            assert_eq!((read.error_code, read.node_id, read.host, read.port), (0, 7, "broker.example", 9092));
            assert_eq!(read.error_message, Some(if version >= 1 { "NONE" } else { "" }));
            assert!(read.coordinators.is_empty());
        }
    }

    #[test]
    fn each_of_several_keys_is_answered_in_its_place() {
        let asked = FindCoordinatorRequest {
            coordinator_keys: vec!["b", "a", ""],
            ..FindCoordinatorRequest::default()
        };
        for version in 4..=6 {
            let found = found();
            let answer = response(&asked, version, &found);
            let frame = round_trip(|writer| answer.encode(writer, version));
            let read = FindCoordinatorResponse::decode(&mut frame.reader(), version).expect("it is whole");
            let keys: Vec<_> =
                read.coordinators.iter().map(|found| (found.key, found.node_id, found.port)).collect();
            assert!(read.coordinators.iter().all(|found| found.error_message == Some("")));
            assert_eq!(keys, [("b", 7, 9092), ("a", 7, 9092), ("", 7, 9092)]);
        }
    }

    #[test]
    fn a_refusal_names_no_node_and_says_why() {
        let refused = Err(check_type(TRANSACTION).expect_err("transactions are not built"));
        let asked =
            FindCoordinatorRequest { key: "t", key_type: TRANSACTION, ..FindCoordinatorRequest::default() };
        let answer = response(&asked, 3, &refused);
        assert_eq!((answer.error_code, answer.node_id, answer.host, answer.port), (42, -1, "", -1));
        assert_eq!(answer.error_message, Some(TRANSACTIONS_NOT_BUILT));
        let asked =
            FindCoordinatorRequest { coordinator_keys: vec!["t"], ..FindCoordinatorRequest::default() };
        let answer = response(&asked, 4, &refused);
        assert_eq!(answer.coordinators[0].error_code, 42);
        assert_eq!(answer.coordinators[0].error_message, Some(TRANSACTIONS_NOT_BUILT));
    }
}
