//! ApiVersions (API 18): what is served, from the API table.

use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::frame;
use ringlog_protocol::handshake;
use ringlog_protocol::messages::api_versions::{ApiVersionsRequest, ApiVersionsResponse};

use super::reply::{reply, reply_at};
use super::{Request, RequestError};
use crate::core::Core;
use crate::observe::stage::Stage;
use crate::server::Connection;
use crate::server::replies::Answer;

pub(super) fn handle(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    request: Request,
) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    if info.answer == frame::Answer::UnsupportedVersion {
        // In version 0 whatever was asked, naming only ourselves, so that the client can try again (KIP-511).
        let response = handshake::unsupported_version_response();
        let encode = |writer: &mut _, version| response.encode(writer, version);
        return Ok(reply_at(info, 0, ErrorCode::UnsupportedVersion, 64, Vec::new(), encode));
    }
    let asked = ApiVersionsRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let error = check(core, &asked, info.version);
    let api_keys = if error == ErrorCode::None { handshake::advertised_keys() } else { Vec::new() };
    if info.version >= 3 && error == ErrorCode::None {
        let software = (asked.client_software_name.to_owned(), asked.client_software_version.to_owned());
        *connection.software.borrow_mut() = Some(software);
    }
    let response =
        ApiVersionsResponse { error_code: error.code(), api_keys, ..ApiVersionsResponse::default() };
    Ok(reply(info, error, 512, |writer, version| response.encode(writer, version)))
}

fn check(core: &Core, asked: &ApiVersionsRequest<'_>, version: i16) -> ErrorCode {
    if let Err(error) = handshake::check_request(asked, version) {
        return error;
    }
    // A client that means another cluster or node must look for it again (KIP-1242).
    match asked.cluster_id {
        Some(cluster) => {
            let image = core.image();
            let here = image.cluster_id().is_some_and(|id| **id == *cluster)
                && asked.node_id == core.config.node_id.0;
            if here { ErrorCode::None } else { ErrorCode::RebootstrapRequired }
        }
        None => ErrorCode::None,
    }
}
