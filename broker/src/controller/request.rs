//! What the controller is asked and what it answers. Values only, owned, so that they cross cores.

use ringlog_flat::metadata::NodeRecord;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{NodeId, ProducerId, TopicId};

use crate::topic_config::report::EffectiveConfig;

/// A change of metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ControllerRequest {
    InitializeCluster(InitializeCluster),
    CreateTopics(CreateTopics),
    CreatePartitions(CreatePartitions),
    DeleteTopics(DeleteTopics),
    AlterConfigs(AlterConfigs),
    UpdateFeatures(UpdateFeatures),
    AllocateProducerIds { node: NodeId },
}

/// The answer, of the same kind as the request. It leaves when the change is durable and every core knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ControllerReply {
    ClusterInitialized(Result<(), ClusterMismatch>),
    TopicsCreated(Vec<CreatedTopic>),
    PartitionsCreated(Vec<GrownTopic>),
    TopicsDeleted(Vec<DeletedTopic>),
    /// In the order of the request's resources.
    ConfigsAltered(Vec<Result<(), Refusal>>),
    /// All of them or none.
    FeaturesUpdated(Result<(), Refusal>),
    ProducerIds(Result<ProducerIdBlock, ErrorCode>),
}

/// Asked at every start of a node: names a new cluster, or checks the name, and tells where the node is. Records only what is
/// news.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InitializeCluster {
    /// 22 characters of base64url, as in the data directory's meta file.
    pub cluster_id: String,
    pub node: NodeRecord,
}

/// The metadata is another cluster's than the data directory says.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the metadata log belongs to cluster {recorded}, the data directory to cluster {given}")]
pub struct ClusterMismatch {
    pub recorded: String,
    pub given: String,
}

/// Kafka's CreateTopics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CreateTopics {
    pub topics: Vec<NewTopic>,
    /// Check everything, create nothing.
    pub validate_only: bool,
}

/// One topic to create.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewTopic {
    pub name: String,
    /// -1 for the broker's `num.partitions`, and with assignments.
    pub partition_count: i32,
    /// -1 for the broker's `default.replication.factor`, and with assignments.
    pub replication_factor: i16,
    /// Partition and the nodes that shall hold it; empty for an automatic placement.
    pub assignments: Vec<(i32, Vec<i32>)>,
    pub configs: Vec<(String, Option<String>)>,
    /// 16 random bytes, which become the topic's id.
    pub random: [u8; 16],
}

/// What became of one topic. Where `error` is not `None` nothing was created, and the numbers are -1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CreatedTopic {
    pub name: String,
    /// [`TopicId::ZERO`] after an error and with `validate_only`.
    pub id: TopicId,
    pub error: ErrorCode,
    pub message: Option<String>,
    pub partition_count: i32,
    pub replication_factor: i16,
    /// Every config in force, sorted by name.
    pub configs: Vec<EffectiveConfig>,
}

/// Kafka's CreatePartitions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CreatePartitions {
    pub topics: Vec<MorePartitions>,
    /// Check everything, create nothing.
    pub validate_only: bool,
}

/// One topic that shall have more partitions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MorePartitions {
    pub name: String,
    /// In all, those that it has counted in.
    pub partition_count: i32,
    /// The nodes that shall hold each new partition, in order; `None` for an automatic placement.
    pub assignments: Option<Vec<Vec<i32>>>,
}

/// What became of one topic: all of its new partitions are there or none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GrownTopic {
    pub name: String,
    pub result: Result<(), Refusal>,
}

/// Kafka's DeleteTopics.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeleteTopics {
    pub topics: Vec<TopicReference>,
}

/// A topic as a request refers to it: by name, or by id where the name is null.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TopicReference {
    pub name: Option<String>,
    /// [`TopicId::ZERO`] when referred to by name.
    pub id: TopicId,
}

/// What became of one topic. Name and id are filled in as far as they are known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeletedTopic {
    pub name: Option<String>,
    pub id: TopicId,
    pub error: ErrorCode,
    pub message: Option<String>,
}

/// Kafka's IncrementalAlterConfigs and AlterConfigs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AlterConfigs {
    pub resources: Vec<AlteredResource>,
    /// Check everything, change nothing.
    pub validate_only: bool,
}

/// One resource and what becomes of its configs: all of it or nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AlteredResource {
    /// Kafka's `ConfigResource.Type`.
    pub kind: i8,
    pub name: String,
    pub change: ConfigChange,
}

/// What becomes of a resource's configs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConfigChange {
    /// These and no others: AlterConfigs.
    Replace(Vec<(String, Option<String>)>),
    /// Each of these changes and nothing else: IncrementalAlterConfigs.
    Each(Vec<ConfigStep>),
}

/// One change of one config.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigStep {
    pub key: String,
    /// Kafka's `AlterConfigOp.OpType`: 0 set, 1 delete, 2 append, 3 subtract.
    pub operation: i8,
    pub value: Option<String>,
}

/// Kafka's UpdateFeatures.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UpdateFeatures {
    pub updates: Vec<FeatureUpdate>,
    /// Check everything, change nothing.
    pub validate_only: bool,
}

/// One feature that shall run at another level.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeatureUpdate {
    pub feature: String,
    /// 0 = off.
    pub level: i16,
    /// See [`upgrade_type`](super::features::upgrade_type).
    pub kind: i8,
}

/// Producer ids `first..first + count`, durable as given out: no other block, of any node or after any crash, holds one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProducerIdBlock {
    pub first: ProducerId,
    pub count: i64,
}

/// An error with a text for the user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub error: ErrorCode,
    pub message: String,
}

impl Refusal {
    pub(super) fn new(error: ErrorCode, message: impl Into<String>) -> Refusal {
        Refusal { error, message: message.into() }
    }
}
