//! ApiVersions (API 18): what is served, from the API table; which levels of features can run and do.

use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::frame;
use ringlog_protocol::handshake;
use ringlog_protocol::messages::api_versions::{
    ApiVersionsRequest, ApiVersionsResponse, FinalizedFeatureKey,
};

use super::reply::{reply, reply_at};
use super::{Request, RequestError};
use crate::controller::{MetadataImage, features};
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
    let mut response =
        ApiVersionsResponse { error_code: error.code(), api_keys, ..ApiVersionsResponse::default() };
    if error == ErrorCode::None {
        report_features(&core.image(), info.version, &mut response);
    }
    Ok(reply(info, error, 512, |writer, version| response.encode(writer, version)))
}

/// The epoch is the offset of the newest record of the metadata, as in Kafka: it rises with other changes too.
fn report_features(image: &MetadataImage, version: i16, response: &mut ApiVersionsResponse<'_>) {
    let built = features::BUILT.iter().map(|feature| handshake::Feature {
        name: feature.name,
        level_min: feature.lowest,
        level_max: feature.highest,
    });
    response.supported_features = handshake::supported_features(built, version);
    response.finalized_features_epoch = image.next_offset().0 - 1;
    let running = image.features().iter();
    response.finalized_features = running
        .map(|(name, level)| FinalizedFeatureKey { name, max_version_level: level, min_version_level: level })
        .collect();
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
