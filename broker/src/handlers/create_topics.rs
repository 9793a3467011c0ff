//! CreateTopics (API 19): hands the topics to the controller; the answer leaves when every core can take writes to them.

use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::create_topics::{
    CreatableTopicConfigs, CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse,
};

use super::reply::reply;
use super::{Request, RequestError, timed};
use crate::controller::request::{CreateTopics, CreatedTopic, NewTopic};
use crate::controller::{ControllerReply, ControllerRequest};
use crate::core::Core;
use crate::observe::stage::Stage;
use crate::server::replies::Answer;

pub(super) async fn handle(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = CreateTopicsRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let topics = asked.topics.iter().map(|topic| NewTopic {
        name: topic.name.to_owned(),
        partition_count: topic.num_partitions,
        replication_factor: topic.replication_factor,
        assignments: topic
            .assignments
            .iter()
            .map(|assignment| (assignment.partition_index, assignment.broker_ids.iter().collect()))
            .collect(),
        configs: topic
            .configs
            .iter()
            .map(|config| (config.name.to_owned(), config.value.map(str::to_owned)))
            .collect(),
        random: core.random_bytes(),
    });
    let change = CreateTopics { topics: topics.collect(), validate_only: asked.validate_only };
    let outcome = timed::change(core, asked.timeout_ms, ControllerRequest::CreateTopics(change)).await;
    info.clock.mark(Stage::Journal, core.io.monotonic_now().as_nanos());
    let (topics, first_error) = match &outcome {
        Ok(ControllerReply::TopicsCreated(created)) => {
            let error = created.iter().map(|topic| topic.error).find(|error| *error != ErrorCode::None);
            (created.iter().map(result).collect(), error.unwrap_or(ErrorCode::None))
        }
        Ok(_) => unreachable!("topics are created by created topics"),
        Err(refusal) => {
            let names: Vec<&str> = asked.topics.iter().map(|topic| topic.name).collect();
            tracing::warn!(topics = ?names, reason = refusal.message, "topics not known to be created");
            let failed = asked.topics.iter().map(|topic| CreatableTopicResult {
                name: topic.name,
                error_code: refusal.error.code(),
                error_message: Some(&refusal.message),
                configs: Some(Vec::new()),
                ..CreatableTopicResult::default()
            });
            (failed.collect(), refusal.error)
        }
    };
    let response = CreateTopicsResponse { topics, ..CreateTopicsResponse::default() };
    Ok(reply(info, first_error, 256, |writer, version| response.encode(writer, version)))
}

fn result(created: &CreatedTopic) -> CreatableTopicResult<'_> {
    let configs = created.configs.iter().map(|config| CreatableTopicConfigs {
        name: config.name,
        value: Some(&config.value),
        read_only: false,
        config_source: config.source as i8,
        is_sensitive: false,
    });
    CreatableTopicResult {
        name: &created.name,
        topic_id: created.id,
        error_code: created.error.code(),
        error_message: created.message.as_deref(),
        num_partitions: created.partition_count,
        replication_factor: created.replication_factor,
        // Never null: the Java client walks it without a look.
        configs: Some(configs.collect()),
        ..CreatableTopicResult::default()
    }
}
