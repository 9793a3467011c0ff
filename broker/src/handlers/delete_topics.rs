//! DeleteTopics (API 20): by name or by id, through the controller.

use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::TopicId;
use ringlog_protocol::messages::delete_topics::{
    DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse,
};

use super::reply::reply;
use super::{Request, RequestError, timed};
use crate::controller::request::{DeleteTopics, DeletedTopic, TopicReference};
use crate::controller::{ControllerReply, ControllerRequest};
use crate::core::Core;
use crate::observe::stage::Stage;
use crate::server::replies::Answer;

pub(super) async fn handle(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = DeleteTopicsRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let references = references(&asked);
    let change = DeleteTopics { topics: references.clone() };
    let outcome = timed::change(core, asked.timeout_ms, ControllerRequest::DeleteTopics(change)).await;
    info.clock.mark(Stage::Journal, core.io.monotonic_now().as_nanos());
    let (responses, first_error) = match &outcome {
        Ok(ControllerReply::TopicsDeleted(deleted)) => {
            let error = deleted.iter().map(|topic| topic.error).find(|error| *error != ErrorCode::None);
            (deleted.iter().map(result).collect(), error.unwrap_or(ErrorCode::None))
        }
        Ok(_) => unreachable!("topics are deleted by deleted topics"),
        Err(refusal) => {
            tracing::warn!(topics = ?references, reason = refusal.message, "topics not known to be deleted");
            let failed = references.iter().map(|reference| DeletableTopicResult {
                name: reference.name.as_deref(),
                topic_id: reference.id,
                error_code: refusal.error.code(),
                error_message: Some(&refusal.message),
            });
            (failed.collect(), refusal.error)
        }
    };
    let response = DeleteTopicsResponse { responses, ..DeleteTopicsResponse::default() };
    Ok(reply(info, first_error, 256, |writer, version| response.encode(writer, version)))
}

fn references(asked: &DeleteTopicsRequest<'_>) -> Vec<TopicReference> {
    let by_name = asked
        .topic_names
        .iter()
        .map(|name| TopicReference { name: Some((*name).to_owned()), id: TopicId::ZERO });
    let by_either = asked
        .topics
        .iter()
        .map(|topic| TopicReference { name: topic.name.map(str::to_owned), id: topic.topic_id });
    by_name.chain(by_either).collect()
}

fn result(deleted: &DeletedTopic) -> DeletableTopicResult<'_> {
    DeletableTopicResult {
        name: deleted.name.as_deref(),
        topic_id: deleted.id,
        error_code: deleted.error.code(),
        error_message: deleted.message.as_deref(),
    }
}
