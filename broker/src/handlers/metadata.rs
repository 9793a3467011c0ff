//! Metadata (API 3): brokers, topics, partitions and their leaders; makes topics on first use where that is allowed.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{LeaderEpoch, TopicId, TopicPartition};
use ringlog_protocol::messages::metadata::{
    MetadataRequest, MetadataResponse, MetadataResponseBroker, MetadataResponsePartition,
    MetadataResponseTopic,
};

use super::reply::reply;
use super::topics::{self, TopicLookup};
use super::{Request, RequestError, spread};
use crate::config::typed::Advertised;
use crate::controller::request::{CreateTopics, NewTopic};
use crate::controller::{
    ControllerReply, ControllerRequest, MetadataImage, OFFSETS_TOPIC_NAME, TopicImage, names,
};
use crate::core::messages::{CoreReply, CoreRequest};
use crate::core::{Core, groups, serve};
use crate::observe::stage::Stage;
use crate::server::Connection;
use crate::server::replies::Answer;

/// Codes of Kafka's AclOperation as bits: without ACLs everybody may do everything that the resource knows.
/// READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS.
pub(super) const TOPIC_OPERATIONS: i32 =
    1 << 3 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 11;
/// CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE.
const CLUSTER_OPERATIONS: i32 = 1 << 5 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 12;
const NOT_ASKED_FOR: i32 = i32::MIN;

pub(super) async fn handle(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    request: Request,
) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked =
        MetadataRequest::decode(&mut request.body(), info.version).map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    create_missing(core, &asked, info.version).await;
    let image = core.image();
    let found = look_up(&image, &asked, info.version);
    let found_topics = found.iter().filter_map(|topic| match topic {
        TopicLookup::Found(topic) => Some(topic),
        TopicLookup::Missing { .. } => None,
    });
    let keys: Vec<TopicPartition> = found_topics.flat_map(|topic| topic.partitions()).collect();
    let epochs = leader_epochs(core, &keys).await;
    info.clock.mark(Stage::Queue, core.io.monotonic_now().as_nanos());
    let (host, port) = advertised(core, connection);
    let me = core.config.node_id.0;
    let mut first_error = ErrorCode::None;
    let names: Vec<Arc<str>> = found.iter().map(TopicLookup::name).collect();
    let mut epochs = epochs.into_iter();
    let topics = found.iter().zip(&names).map(|(topic, name)| {
        let mut response = topic_response(topic, name, me, &mut epochs);
        if asked.include_topic_authorized_operations && matches!(topic, TopicLookup::Found(_)) {
            response.topic_authorized_operations = TOPIC_OPERATIONS;
        }
        if first_error == ErrorCode::None {
            first_error = ErrorCode::from_i16(response.error_code).unwrap_or(ErrorCode::None);
        }
        response
    });
    let response = MetadataResponse {
        topics: topics.collect(),
        brokers: vec![MetadataResponseBroker {
            node_id: me,
            host: &host,
            port,
            rack: core.config.rack.as_deref(),
        }],
        cluster_id: image.cluster_id().map(|id| &**id),
        controller_id: me,
        cluster_authorized_operations: match asked.include_cluster_authorized_operations {
            true => CLUSTER_OPERATIONS,
            false => NOT_ASKED_FOR,
        },
        ..MetadataResponse::default()
    };
    let capacity_bytes = 256 + 64 * found.len();
    Ok(reply(info, first_error, capacity_bytes, |writer, version| response.encode(writer, version)))
}

/// The address that this client is told to connect to.
pub(super) fn advertised(core: &Core, connection: &Connection) -> (String, i32) {
    match core.config.listeners.first().map(|listener| &listener.advertised) {
        Some(Advertised::Fixed(address)) => (address.host.clone(), i32::from(address.port)),
        // What the client reached works for it, whatever name or route it took.
        Some(Advertised::Auto) | None => {
            (connection.local.ip().to_canonical().to_string(), i32::from(connection.local.port()))
        }
    }
}

/// Whether the request wants all topics: null, or in version 0 an empty list.
fn wants_all(asked: &MetadataRequest<'_>, version: i16) -> bool {
    asked.topics.as_ref().is_none_or(|topics| version == 0 && topics.is_empty())
}

/// Makes the topics that are missing, if the client and the broker allow it. Whoever fails is told so below, as missing.
async fn create_missing(core: &Rc<Core>, asked: &MetadataRequest<'_>, version: i16) {
    if !core.config.topics.auto_create || version >= 4 && !asked.allow_auto_topic_creation {
        return;
    }
    let image = core.image();
    let missing: BTreeSet<&str> = asked
        .topics
        .iter()
        .flatten()
        .filter(|topic| topic.topic_id.is_zero())
        .filter_map(|topic| topic.name)
        .filter(|name| image.topic(name).is_none() && names::is_topic_name(name))
        .collect();
    if missing.is_empty() {
        return;
    }
    let topics = missing.into_iter().map(|name| new_topic(core, name)).collect();
    let request = ControllerRequest::CreateTopics(CreateTopics { topics, validate_only: false });
    match core.ask_controller(request).await {
        Ok(ControllerReply::TopicsCreated(created)) => {
            for topic in created {
                match topic.message {
                    None => tracing::info!(topic = topic.name, "topic created on first use"),
                    // Somebody else was faster: it is there now.
                    Some(_) if topic.error == ErrorCode::TopicAlreadyExists => {}
                    Some(reason) => {
                        tracing::warn!(topic = topic.name, reason, "topic not created on first use")
                    }
                }
            }
        }
        Ok(_) => unreachable!("topics are created by created topics"),
        Err(error) => tracing::warn!(%error, "topics not created on first use"),
    }
}

fn new_topic(core: &Core, name: &str) -> NewTopic {
    if name == OFFSETS_TOPIC_NAME {
        return groups::topic::new_topic(core);
    }
    NewTopic {
        name: name.to_owned(),
        partition_count: -1,
        replication_factor: -1,
        assignments: Vec::new(),
        configs: Vec::new(),
        random: core.random_bytes(),
    }
}

fn look_up(image: &MetadataImage, asked: &MetadataRequest<'_>, version: i16) -> Vec<TopicLookup> {
    if wants_all(asked, version) {
        return image.topics().map(|topic| TopicLookup::Found(Arc::clone(topic))).collect();
    }
    let wanted = asked.topics.iter().flatten();
    wanted
        .map(|topic| match topic.name {
            Some(name) if topic.topic_id.is_zero() => topics::by_name(image, name),
            _ => topics::by_id(image, topic.topic_id),
        })
        .collect()
}

/// The epochs of these partitions in order; `None` where the partition cannot be led.
pub(super) async fn leader_epochs(core: &Rc<Core>, keys: &[TopicPartition]) -> Vec<Option<LeaderEpoch>> {
    let groups = spread::by_core(keys, |key| core.owner_of(*key));
    spread::ask(
        core,
        &groups,
        async |keys: &[TopicPartition]| serve::leader_epochs(core, keys),
        CoreRequest::LeaderEpochs,
        |reply| match reply {
            CoreReply::LeaderEpochs(epochs) => epochs,
            _ => unreachable!("epochs are answered by epochs"),
        },
    )
    .await
}

fn topic_response<'a>(
    topic: &TopicLookup,
    name: &'a str,
    me: i32,
    epochs: &mut impl Iterator<Item = Option<LeaderEpoch>>,
) -> MetadataResponseTopic<'a> {
    match topic {
        TopicLookup::Found(topic) => MetadataResponseTopic {
            name: Some(name),
            topic_id: topic.id,
            is_internal: topic.is_internal(),
            partitions: partitions(topic, me, epochs),
            ..MetadataResponseTopic::default()
        },
        TopicLookup::Missing { id, error, .. } => MetadataResponseTopic {
            error_code: error.code(),
            // Asked by id, the name is not known and null, where the version has null.
            name: if *id == TopicId::ZERO { Some(name) } else { None },
            topic_id: *id,
            ..MetadataResponseTopic::default()
        },
    }
}

fn partitions(
    topic: &TopicImage,
    me: i32,
    epochs: &mut impl Iterator<Item = Option<LeaderEpoch>>,
) -> Vec<MetadataResponsePartition<'static>> {
    let partition = |key: TopicPartition| {
        let epoch = epochs.next().expect("one epoch for each partition");
        MetadataResponsePartition {
            error_code: if epoch.is_some() { 0 } else { ErrorCode::LeaderNotAvailable.code() },
            partition_index: key.partition.0,
            leader_id: if epoch.is_some() { me } else { -1 },
            leader_epoch: epoch.map_or(-1, |LeaderEpoch(epoch)| epoch),
            replica_nodes: vec![me].into(),
            isr_nodes: vec![me].into(),
            offline_replicas: if epoch.is_some() { Vec::new().into() } else { vec![me].into() },
        }
    };
    topic.partitions().map(partition).collect()
}
