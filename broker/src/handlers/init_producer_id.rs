//! InitProducerId (API 22): ids for idempotent producers, out of blocks that are durable before the first id leaves.

use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};

use super::reply::reply;
use super::{Request, RequestError};
use crate::core::Core;
use crate::observe::stage::Stage;
use crate::server::replies::Answer;

/// Said wherever a client asks for a transaction.
pub(super) const TRANSACTIONS_NOT_BUILT: &str =
    "transactions are not built yet: leave transactional.id unset; enable.idempotence works";

pub(super) async fn handle(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = InitProducerIdRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let mut response = InitProducerIdResponse { producer_id: -1, producer_epoch: -1, ..Default::default() };
    let error = if asked.transactional_id.is_some() {
        tracing::warn!(client_id = ?info.client_id, reason = TRANSACTIONS_NOT_BUILT, "InitProducerId refused");
        ErrorCode::InvalidRequest
    } else {
        match core.next_producer_id().await {
            Ok(id) => {
                response.producer_id = id.0;
                response.producer_epoch = 0;
                ErrorCode::None
            }
            Err(error) => {
                tracing::warn!(%error, "no producer id could be allocated");
                error.error_code()
            }
        }
    };
    info.clock.mark(Stage::Journal, core.io.monotonic_now().as_nanos());
    response.error_code = error.code();
    Ok(reply(info, error, 64, |writer, version| response.encode(writer, version)))
}
