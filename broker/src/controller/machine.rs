//! The machine: decides requests against the image and takes records in. Owns the image and the index of alike names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringlog_flat::metadata::{
    ClusterRecord, Configs, FeatureLevelRecord, GroupConfigsRecord, NodeConfigsRecord, NodeRecord,
    ProducerIdsRecord, Record, RecordError, TopicConfigsRecord, TopicPartitionsRecord, TopicRecord,
};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{NodeId, Offset, ProducerId, TopicId};
use ringlog_shard::limits::PRODUCER_IDS_PER_BLOCK;
use ringlog_shard::state_machine::{Outcome, StateMachine};

use super::features::{FORMAT, Feature, records_of_new_cluster};
use super::image::{MetadataImage, TopicImage};
use super::names::collision_key;
use super::request::{
    ClusterMismatch, ControllerReply, ControllerRequest, InitializeCluster, ProducerIdBlock,
};
use super::snapshot;
use crate::config::dynamic::RuntimeSettings;
use crate::config::group_configs;
use crate::config::layers::{Layers, Overrides};
use crate::config::typed::EffectiveSetting;
use crate::group::GroupId;
use crate::topic_config::TopicConfig;

/// What this node's configuration says to the controller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ControllerSettings {
    pub node_id: NodeId,
    /// Without what was set at run time.
    pub base: RuntimeSettings,
    /// `socket.request.max.bytes`, fixed at start: no broker may promise a larger batch.
    pub request_bytes_max: u32,
    /// Each key as this node's configuration has it.
    pub settings: Vec<EffectiveSetting>,
    /// What this build can run.
    pub features: &'static [Feature],
}

/// The controller's state. Lives on the core that leads the metadata partition; its image is shared with all.
#[derive(Clone, Debug)]
pub struct MetadataMachine {
    pub(super) settings: ControllerSettings,
    pub(super) image: Arc<MetadataImage>,
    /// Names that share a spelling once `.` is written `_`: `a.b` and `a_b`.
    pub(super) alike: BTreeMap<String, BTreeSet<Arc<str>>>,
}

/// A record that cannot be taken in: of a newer build, damaged, or in contradiction to those before it.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum ReplayError {
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error("topic {name} with id {id} exists already or is impossible")]
    Topic { name: String, id: TopicId },
    #[error("topic with id {id} is removed but does not exist")]
    UnknownTopic { id: TopicId },
    #[error("topic with id {id} gets other configs but does not exist")]
    ConfigsOfUnknownTopic { id: TopicId },
    #[error("topic with id {id} gets {partitions} partitions but does not exist or has as many")]
    Partitions { id: TopicId, partitions: i32 },
    #[error("cluster {given} is named after cluster {recorded}")]
    Cluster { recorded: String, given: String },
    #[error("feature {name} runs at level {level}, which this build cannot run")]
    Feature { name: String, level: i16 },
    #[error("producer ids go back from {next} to {given}")]
    ProducerIds { next: ProducerId, given: ProducerId },
}

impl MetadataMachine {
    /// The machine before any record.
    pub fn new(settings: ControllerSettings) -> MetadataMachine {
        let runtime = Some(Arc::new(settings.base.clone()));
        let image = Arc::new(MetadataImage { runtime, ..MetadataImage::default() });
        MetadataMachine { settings, image, alike: BTreeMap::new() }
    }

    /// What this node works by now.
    pub(super) fn runtime(&self) -> &RuntimeSettings {
        self.image.runtime.as_deref().unwrap_or(&self.settings.base)
    }

    /// Where the values of this node's keys come from.
    pub(super) fn layers(&self) -> Layers<'_> {
        self.image.layers(self.settings.node_id, &self.settings.settings)
    }

    fn initialize_cluster(&self, request: InitializeCluster) -> Outcome<ControllerReply> {
        let InitializeCluster { cluster_id, node } = request;
        let mut records = Vec::new();
        match self.image.cluster_id() {
            Some(recorded) if **recorded != *cluster_id => {
                let mismatch = ClusterMismatch { recorded: recorded.to_string(), given: cluster_id };
                return Outcome::reply(ControllerReply::ClusterInitialized(Err(mismatch)));
            }
            Some(_) => {}
            None => {
                let features = self.settings.features;
                let format = features.iter().find(|feature| feature.name == FORMAT);
                let metadata_version = format.map_or(0, |format| format.new_cluster);
                let cluster = Record::Cluster(ClusterRecord { id: cluster_id, metadata_version });
                records.push(cluster.encode());
                records.extend(records_of_new_cluster(features).map(|record| record.encode()));
            }
        }
        if self.image.nodes.get(&NodeId(node.id)).is_none_or(|known| **known != node) {
            records.push(Record::Node(node).encode());
        }
        Outcome { records, reply: ControllerReply::ClusterInitialized(Ok(())) }
    }

    fn allocate_producer_ids(&self, node: NodeId) -> Outcome<ControllerReply> {
        let first = self.image.next_producer_id;
        let Some(next) = first.0.checked_add(PRODUCER_IDS_PER_BLOCK) else {
            return Outcome::reply(ControllerReply::ProducerIds(Err(ErrorCode::UnknownServerError)));
        };
        let record = Record::ProducerIds(ProducerIdsRecord { node: node.0, next });
        let block = ProducerIdBlock { first, count: PRODUCER_IDS_PER_BLOCK };
        Outcome { records: vec![record.encode()], reply: ControllerReply::ProducerIds(Ok(block)) }
    }

    fn add_topic(&mut self, record: TopicRecord) -> Result<(), ReplayError> {
        let TopicRecord { name, id, partitions, replication_factor, configs } = record;
        let id = TopicId(id);
        let exists = self.image.topic(&name).is_some() || self.image.topic_by_id(id).is_some();
        if exists || id.is_zero() || partitions < 1 || replication_factor < 1 {
            return Err(ReplayError::Topic { name, id });
        }
        let overrides = overrides(configs);
        let config = TopicConfig::resolve(&self.runtime().topics, &overrides);
        let name: Arc<str> = name.into();
        if let Some(key) = collision_key(&name) {
            self.alike.entry(key).or_default().insert(Arc::clone(&name));
        }
        let partition_count = partitions;
        let topic = Arc::new(TopicImage {
            name: Arc::clone(&name),
            id,
            partition_count,
            replication_factor,
            overrides,
            config,
        });
        let image = Arc::make_mut(&mut self.image);
        image.topics.insert(name, Arc::clone(&topic));
        image.topics_by_id.insert(id, topic);
        image.partitions += u64::from(partition_count.unsigned_abs());
        Ok(())
    }

    fn remove_topic(&mut self, id: TopicId) -> Result<(), ReplayError> {
        let image = Arc::make_mut(&mut self.image);
        let topic = image.topics_by_id.remove(&id).ok_or(ReplayError::UnknownTopic { id })?;
        image.topics.remove(&topic.name);
        image.partitions -= u64::from(topic.partition_count.unsigned_abs());
        if let Some(key) = collision_key(&topic.name)
            && let Some(names) = self.alike.get_mut(&key)
        {
            names.remove(&topic.name);
            if names.is_empty() {
                self.alike.remove(&key);
            }
        }
        Ok(())
    }

    fn add_partitions(&mut self, record: TopicPartitionsRecord) -> Result<(), ReplayError> {
        let TopicPartitionsRecord { id, partitions } = record;
        let id = TopicId(id);
        let topic = self.image.topic_by_id(id).filter(|topic| topic.partition_count < partitions);
        let Some(topic) = topic else { return Err(ReplayError::Partitions { id, partitions }) };
        let added = partitions.abs_diff(topic.partition_count);
        let topic = Arc::new(TopicImage { partition_count: partitions, ..TopicImage::clone(topic) });
        let image = Arc::make_mut(&mut self.image);
        image.partitions += u64::from(added);
        image.replace_topic(topic);
        Ok(())
    }

    fn set_topic_configs(&mut self, record: TopicConfigsRecord) -> Result<(), ReplayError> {
        let id = TopicId(record.id);
        let Some(topic) = self.image.topic_by_id(id) else {
            return Err(ReplayError::ConfigsOfUnknownTopic { id });
        };
        let overrides = overrides(record.configs);
        let config = TopicConfig::resolve(&self.runtime().topics, &overrides);
        let topic = Arc::new(TopicImage { overrides, config, ..TopicImage::clone(topic) });
        Arc::make_mut(&mut self.image).replace_topic(topic);
        Ok(())
    }

    /// Topics without a value of their own follow the broker's.
    fn set_node_configs(&mut self, record: NodeConfigsRecord) {
        let configs = Arc::new(overrides(record.configs));
        let image = Arc::make_mut(&mut self.image);
        match record.node.map(NodeId) {
            None => image.cluster_configs = configs,
            Some(node) if configs.is_empty() => drop(image.node_configs.remove(&node)),
            Some(node) => drop(image.node_configs.insert(node, configs)),
        }
        let layers = self.layers();
        let runtime = self.settings.base.with(layers.cluster, layers.node);
        if runtime == *self.runtime() {
            return;
        }
        let changed: Vec<_> = self
            .image
            .topics()
            .filter_map(|topic| {
                let config = TopicConfig::resolve(&runtime.topics, &topic.overrides);
                let changed = config != topic.config;
                changed.then(|| Arc::new(TopicImage { config, ..TopicImage::clone(topic) }))
            })
            .collect();
        let image = Arc::make_mut(&mut self.image);
        changed.into_iter().for_each(|topic| image.replace_topic(topic));
        image.runtime = Some(Arc::new(runtime));
    }

    fn set_group_configs(&mut self, record: GroupConfigsRecord) {
        let group = GroupId::from(record.group);
        let configs = overrides(record.configs);
        let resolved = group_configs::resolve(&self.layers(), &configs);
        let image = Arc::make_mut(&mut self.image);
        let all = Arc::make_mut(&mut image.group_configs);
        let in_force = Arc::make_mut(&mut image.group_overrides);
        if configs.is_empty() {
            all.remove(&group);
            in_force.remove(&group);
        } else {
            all.insert(Arc::clone(&group), Arc::new(configs));
            in_force.insert(group, resolved);
        }
    }

    fn name_cluster(&mut self, record: ClusterRecord) -> Result<(), ReplayError> {
        let ClusterRecord { id: given, metadata_version } = record;
        if let Some(recorded) = self.image.cluster_id() {
            return Err(ReplayError::Cluster { recorded: recorded.to_string(), given });
        }
        self.set_feature_level(FORMAT, metadata_version)?;
        Arc::make_mut(&mut self.image).cluster_id = Some(given.into());
        Ok(())
    }

    fn set_feature_level(&mut self, name: &str, level: i16) -> Result<(), ReplayError> {
        let feature = self.settings.features.iter().find(|feature| feature.name == name);
        let Some(feature) = feature.filter(|feature| feature.runs(level)) else {
            return Err(ReplayError::Feature { name: name.to_owned(), level });
        };
        Arc::make_mut(&mut self.image).features.set(feature, level);
        Ok(())
    }

    fn take_producer_ids(&mut self, given: ProducerId) -> Result<(), ReplayError> {
        let next = self.image.next_producer_id;
        if given < next {
            return Err(ReplayError::ProducerIds { next, given });
        }
        Arc::make_mut(&mut self.image).next_producer_id = given;
        Ok(())
    }

    fn register_node(&mut self, record: NodeRecord) {
        Arc::make_mut(&mut self.image).nodes.insert(NodeId(record.id), Arc::new(record));
    }
}

fn overrides(configs: Configs) -> Overrides {
    configs.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
}

impl StateMachine for MetadataMachine {
    type Request = ControllerRequest;
    type Reply = ControllerReply;
    type Image = Arc<MetadataImage>;
    type ReplayError = ReplayError;

    fn propose(&self, request: ControllerRequest, _now_ms: i64) -> Outcome<ControllerReply> {
        match request {
            ControllerRequest::InitializeCluster(request) => self.initialize_cluster(request),
            ControllerRequest::CreateTopics(request) => self.create_topics(request),
            ControllerRequest::CreatePartitions(request) => self.create_partitions(request),
            ControllerRequest::DeleteTopics(request) => self.delete_topics(request),
            ControllerRequest::AlterConfigs(request) => self.alter_configs(request),
            ControllerRequest::UpdateFeatures(request) => self.update_features(request),
            ControllerRequest::AllocateProducerIds { node } => self.allocate_producer_ids(node),
        }
    }

    fn replay(&mut self, offset: Offset, record: &[u8]) -> Result<(), ReplayError> {
        match Record::decode(record)? {
            Record::Topic(record) => self.add_topic(record)?,
            Record::RemoveTopic(record) => self.remove_topic(TopicId(record.id))?,
            Record::Cluster(record) => self.name_cluster(record)?,
            Record::ProducerIds(record) => self.take_producer_ids(ProducerId(record.next))?,
            Record::Node(record) => self.register_node(record),
            Record::TopicPartitions(record) => self.add_partitions(record)?,
            Record::TopicConfigs(record) => self.set_topic_configs(record)?,
            Record::NodeConfigs(record) => self.set_node_configs(record),
            Record::GroupConfigs(record) => self.set_group_configs(record),
            Record::FeatureLevel(FeatureLevelRecord { name, level }) => {
                self.set_feature_level(&name, level)?
            }
        }
        Arc::make_mut(&mut self.image).next_offset = Offset(offset.0 + 1);
        Ok(())
    }

    fn image(&self) -> Arc<MetadataImage> {
        Arc::clone(&self.image)
    }

    fn snapshot(&self) -> Vec<Vec<u8>> {
        snapshot::records(&self.image).map(|record| record.encode()).collect()
    }
}
