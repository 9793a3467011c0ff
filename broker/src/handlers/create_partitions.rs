//! CreatePartitions (API 37): through the controller; the answer leaves when every core can take writes to the new partitions.

use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::create_partitions::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopic, CreatePartitionsTopicResult,
};

use super::reply::reply;
use super::{Request, RequestError, timed};
use crate::controller::request::{CreatePartitions, GrownTopic, MorePartitions};
use crate::controller::{ControllerReply, ControllerRequest};
use crate::core::Core;
use crate::observe::stage::Stage;
use crate::server::replies::Answer;

pub(super) async fn handle(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = CreatePartitionsRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let grown = grow(core, &asked).await;
    info.clock.mark(Stage::Journal, core.io.monotonic_now().as_nanos());
    let results: Vec<_> = grown.iter().map(result).collect();
    let error = grown.iter().find_map(|topic| topic.result.as_ref().err()).map(|refusal| refusal.error);
    let response = CreatePartitionsResponse { results, ..CreatePartitionsResponse::default() };
    let error = error.unwrap_or(ErrorCode::None);
    Ok(reply(info, error, 256, |writer, version| response.encode(writer, version)))
}

async fn grow(core: &Rc<Core>, asked: &CreatePartitionsRequest<'_>) -> Vec<GrownTopic> {
    let topics = asked.topics.iter().map(wanted).collect();
    let change = CreatePartitions { topics, validate_only: asked.validate_only };
    match timed::change(core, asked.timeout_ms, ControllerRequest::CreatePartitions(change)).await {
        Ok(ControllerReply::PartitionsCreated(grown)) => grown,
        Ok(_) => unreachable!("partitions are created by created partitions"),
        Err(refusal) => {
            tracing::warn!(
                topics = asked.topics.len(),
                reason = refusal.message,
                "partitions not known to be created"
            );
            let topics = asked.topics.iter().map(|topic| topic.name.to_owned());
            topics.map(|name| GrownTopic { name, result: Err(refusal.clone()) }).collect()
        }
    }
}

fn wanted(topic: &CreatePartitionsTopic<'_>) -> MorePartitions {
    let assignments = topic.assignments.as_ref().map(|assignments| {
        assignments.iter().map(|assignment| assignment.broker_ids.iter().collect()).collect()
    });
    MorePartitions { name: topic.name.to_owned(), partition_count: topic.count, assignments }
}

fn result(grown: &GrownTopic) -> CreatePartitionsTopicResult<'_> {
    let refusal = grown.result.as_ref().err();
    CreatePartitionsTopicResult {
        name: &grown.name,
        error_code: refusal.map_or(0, |refusal| refusal.error.code()),
        error_message: refusal.map(|refusal| refusal.message.as_str()),
    }
}
