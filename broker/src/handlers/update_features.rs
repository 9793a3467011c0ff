//! UpdateFeatures (API 57): through the controller; the answer leaves when every core reports the new levels.

use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::update_features::{
    FeatureUpdateKey, UpdatableFeatureResult, UpdateFeaturesRequest, UpdateFeaturesResponse,
};

use super::reply::reply;
use super::{Request, RequestError};
use crate::controller::features::upgrade_type::{SAFE_DOWNGRADE, UPGRADE};
use crate::controller::request::{FeatureUpdate, Refusal, UpdateFeatures};
use crate::controller::{ControllerReply, ControllerRequest};
use crate::core::Core;
use crate::observe::stage::Stage;
use crate::server::replies::Answer;

pub(super) async fn handle(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = UpdateFeaturesRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let updates = asked.feature_updates.iter().map(|update| wanted(update, info.version)).collect();
    let change = UpdateFeatures { updates, validate_only: asked.validate_only };
    let result = match core.ask_controller(ControllerRequest::UpdateFeatures(change)).await {
        Ok(ControllerReply::FeaturesUpdated(result)) => result,
        Ok(_) => unreachable!("features are updated by updated features"),
        Err(error) => {
            let text = error.to_string();
            tracing::warn!(features = asked.feature_updates.len(), reason = text, "features not updated");
            Err(Refusal { error: error.error_code(), message: text })
        }
    };
    info.clock.mark(Stage::Journal, core.io.monotonic_now().as_nanos());
    let mut response = UpdateFeaturesResponse { error_message: None, ..UpdateFeaturesResponse::default() };
    let mut error = ErrorCode::None;
    match &result {
        // Version 2 has no results; where the request failed, its one text says it all.
        Ok(()) => response.results = asked.feature_updates.iter().map(done).collect(),
        Err(refusal) => {
            error = refusal.error;
            response.error_code = error.code();
            response.error_message = Some(&refusal.message);
        }
    }
    Ok(reply(info, error, 256, |writer, version| response.encode(writer, version)))
}

fn wanted(update: &FeatureUpdateKey<'_>, version: i16) -> FeatureUpdate {
    // Kafka 4.4 does not look at version 0's leave to downgrade any more; it means what its KIP says here.
    let kind = match version {
        0 if update.allow_downgrade => SAFE_DOWNGRADE,
        0 => UPGRADE,
        _ => update.upgrade_type,
    };
    FeatureUpdate { feature: update.feature.to_owned(), level: update.max_version_level, kind }
}

fn done<'a>(update: &FeatureUpdateKey<'a>) -> UpdatableFeatureResult<'a> {
    UpdatableFeatureResult { feature: update.feature, error_code: 0, error_message: None }
}
