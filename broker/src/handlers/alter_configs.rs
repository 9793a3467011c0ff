//! AlterConfigs (API 33) and IncrementalAlterConfigs (API 44): through the controller; the answer leaves when every core works by the new
//! values.

use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::{alter_configs, incremental_alter_configs};

use super::reply::reply;
use super::{Request, RequestError};
use crate::controller::request::{AlterConfigs, AlteredResource, ConfigChange, ConfigStep, Refusal};
use crate::controller::{ControllerReply, ControllerRequest};
use crate::core::Core;
use crate::observe::stage::Stage;
use crate::server::replies::Answer;

/// Error number and text of one resource.
type Told = (i16, Option<String>);

pub(super) async fn handle_incremental(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    use incremental_alter_configs::{
        AlterConfigsResourceResponse, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
    };
    let mut info = request.info.clone();
    let asked = IncrementalAlterConfigsRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let resources = asked.resources.iter().map(|resource| AlteredResource {
        kind: resource.resource_type,
        name: resource.resource_name.to_owned(),
        change: ConfigChange::Each(
            resource
                .configs
                .iter()
                .map(|config| ConfigStep {
                    key: config.name.to_owned(),
                    operation: config.config_operation,
                    value: config.value.map(str::to_owned),
                })
                .collect(),
        ),
    });
    let change = AlterConfigs { resources: resources.collect(), validate_only: asked.validate_only };
    let (told, first_error) = alter(core, change).await;
    info.clock.mark(Stage::Journal, core.io.monotonic_now().as_nanos());
    let responses = asked.resources.iter().zip(&told).map(|(resource, (error_code, text))| {
        AlterConfigsResourceResponse {
            error_code: *error_code,
            error_message: text.as_deref(),
            resource_type: resource.resource_type,
            resource_name: resource.resource_name,
        }
    });
    let response = IncrementalAlterConfigsResponse { responses: responses.collect(), ..Default::default() };
    Ok(reply(info, first_error, 256, |writer, version| response.encode(writer, version)))
}

pub(super) async fn handle_replacing(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    use alter_configs::{AlterConfigsRequest, AlterConfigsResourceResponse, AlterConfigsResponse};
    let mut info = request.info.clone();
    let asked = AlterConfigsRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let resources = asked.resources.iter().map(|resource| AlteredResource {
        kind: resource.resource_type,
        name: resource.resource_name.to_owned(),
        change: ConfigChange::Replace(
            resource
                .configs
                .iter()
                .map(|config| (config.name.to_owned(), config.value.map(str::to_owned)))
                .collect(),
        ),
    });
    let change = AlterConfigs { resources: resources.collect(), validate_only: asked.validate_only };
    let (told, first_error) = alter(core, change).await;
    info.clock.mark(Stage::Journal, core.io.monotonic_now().as_nanos());
    let responses = asked.resources.iter().zip(&told).map(|(resource, (error_code, text))| {
        AlterConfigsResourceResponse {
            error_code: *error_code,
            error_message: text.as_deref(),
            resource_type: resource.resource_type,
            resource_name: resource.resource_name,
        }
    });
    let response = AlterConfigsResponse { responses: responses.collect(), ..Default::default() };
    Ok(reply(info, first_error, 256, |writer, version| response.encode(writer, version)))
}

/// What each resource is told, and the first error.
async fn alter(core: &Core, change: AlterConfigs) -> (Vec<Told>, ErrorCode) {
    let count = change.resources.len();
    let names: Vec<String> = change.resources.iter().take(3).map(|resource| resource.name.clone()).collect();
    match core.ask_controller(ControllerRequest::AlterConfigs(change)).await {
        Ok(ControllerReply::ConfigsAltered(altered)) => {
            let error = altered.iter().find_map(|result| result.as_ref().err().map(|refusal| refusal.error));
            let told = altered.into_iter().map(|result| match result {
                Ok(()) => (0, None),
                Err(Refusal { error, message }) => {
                    (error.code(), Some(message).filter(|text| !text.is_empty()))
                }
            });
            (told.collect(), error.unwrap_or(ErrorCode::None))
        }
        Ok(_) => unreachable!("configs are altered by altered configs"),
        Err(error) => {
            let text = error.to_string();
            tracing::warn!(resources = count, first = ?names, reason = text, "configs not altered");
            (vec![(error.error_code().code(), Some(text)); count], error.error_code())
        }
    }
}
