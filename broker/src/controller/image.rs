//! The metadata as readers see it: an immutable value, shared by all cores as an `Arc` and replaced whole.
//!
//! Owns look-ups with Kafka's errors. It is changed only by [`super::machine`], on a copy that nobody reads yet.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use ringlog_flat::metadata::NodeRecord;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{NodeId, Offset, PartitionIndex, ProducerId, TopicId, TopicPartition};

use super::OFFSETS_TOPIC_NAME;
use super::features::FeatureLevels;
use super::names::is_topic_name;
use crate::config::dynamic::RuntimeSettings;
use crate::config::layers::{Layers, Overrides};
use crate::config::typed::EffectiveSetting;
use crate::group::{GroupId, GroupOverrides};
use crate::topic_config::TopicConfig;

/// One topic. Cluster view, but for `config`, which holds this node's defaults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicImage {
    pub name: Arc<str>,
    /// Never [`TopicId::ZERO`].
    pub id: TopicId,
    /// 1 or more.
    pub partition_count: i32,
    /// 1 or more.
    pub replication_factor: i16,
    /// As given last.
    pub overrides: Overrides,
    /// What the overrides come to with this node's defaults.
    pub config: TopicConfig,
}

/// Everything the cluster knows of itself, as of one offset of the metadata log.
///
/// Invariants: `topics` and `topics_by_id` hold the same topics; `partitions` is the sum of their partitions. Downside: each change copies both
/// maps (not the topics), some 50 ns a topic, which creating ten thousand topics one by one would feel.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MetadataImage {
    /// Records below this offset are in.
    pub(super) next_offset: Offset,
    pub(super) cluster_id: Option<Arc<str>>,
    pub(super) features: FeatureLevels,
    pub(super) topics: BTreeMap<Arc<str>, Arc<TopicImage>>,
    pub(super) topics_by_id: BTreeMap<TopicId, Arc<TopicImage>>,
    pub(super) nodes: BTreeMap<NodeId, Arc<NodeRecord>>,
    pub(super) partitions: u64,
    pub(super) next_producer_id: ProducerId,
    /// What was set at run time on every node.
    pub(super) cluster_configs: Arc<Overrides>,
    /// What was set at run time on single nodes; none is empty.
    pub(super) node_configs: BTreeMap<NodeId, Arc<Overrides>>,
    /// What was set on single groups; none is empty.
    pub(super) group_configs: Arc<BTreeMap<GroupId, Arc<Overrides>>>,
    /// What `group_configs` come to on the node that made this image.
    pub(super) group_overrides: Arc<BTreeMap<GroupId, GroupOverrides>>,
    /// What the node that made this image works by; `None` before the machine's first one.
    pub(super) runtime: Option<Arc<RuntimeSettings>>,
}

/// Of a node or group without settings of its own.
static NO_OVERRIDES: Overrides = Overrides::new();

impl TopicImage {
    /// The broker's own: clients read it, and none writes to it.
    pub fn is_internal(&self) -> bool {
        *self.name == *OFFSETS_TOPIC_NAME
    }

    /// True for the number of one of its partitions.
    pub fn has_partition(&self, partition: PartitionIndex) -> bool {
        (0..self.partition_count).contains(&partition.0)
    }

    /// Its partitions, in order.
    pub fn partitions(&self) -> impl Iterator<Item = TopicPartition> + use<> {
        let topic = self.id;
        (0..self.partition_count)
            .map(move |partition| TopicPartition { topic, partition: PartitionIndex(partition) })
    }
}

impl MetadataImage {
    /// Records of the metadata log below this offset are in: it only grows, and names the image.
    pub fn next_offset(&self) -> Offset {
        self.next_offset
    }

    /// 22 characters of base64url; none before the cluster was initialized.
    pub fn cluster_id(&self) -> Option<&Arc<str>> {
        self.cluster_id.as_ref()
    }

    /// What the cluster runs.
    pub fn features(&self) -> &FeatureLevels {
        &self.features
    }

    /// The topic of this name.
    pub fn topic(&self, name: &str) -> Option<&Arc<TopicImage>> {
        self.topics.get(name)
    }

    /// The topic of this id.
    pub fn topic_by_id(&self, id: TopicId) -> Option<&Arc<TopicImage>> {
        self.topics_by_id.get(&id)
    }

    /// The topic of this name, as a client asks for it.
    ///
    /// # Errors
    /// INVALID_TOPIC_EXCEPTION (17) for a name that no topic can have; UNKNOWN_TOPIC_OR_PARTITION (3) otherwise.
    pub fn lookup(&self, name: &str) -> Result<&Arc<TopicImage>, ErrorCode> {
        match self.topics.get(name) {
            Some(topic) => Ok(topic),
            None if is_topic_name(name) => Err(ErrorCode::UnknownTopicOrPartition),
            None => Err(ErrorCode::InvalidTopicException),
        }
    }

    /// The topic of this id, as a client asks for it.
    ///
    /// # Errors
    /// UNKNOWN_TOPIC_ID (100), which clients retry.
    pub fn lookup_id(&self, id: TopicId) -> Result<&Arc<TopicImage>, ErrorCode> {
        self.topics_by_id.get(&id).ok_or(ErrorCode::UnknownTopicId)
    }

    /// All topics, by name.
    pub fn topics(&self) -> impl ExactSizeIterator<Item = &Arc<TopicImage>> {
        self.topics.values()
    }

    /// The topics whose names are not below `name`, by name.
    pub fn topics_from(&self, name: &str) -> impl Iterator<Item = &Arc<TopicImage>> {
        self.topics.range::<str, _>((Bound::Included(name), Bound::Unbounded)).map(|(_, topic)| topic)
    }

    /// The nodes that registered, by id.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &Arc<NodeRecord>> {
        self.nodes.values()
    }

    /// Partitions of all topics.
    pub fn partition_count(&self) -> u64 {
        self.partitions
    }

    /// What was set at run time on every node.
    pub fn cluster_configs(&self) -> &Overrides {
        &self.cluster_configs
    }

    /// What was set at run time on this node.
    pub fn node_configs(&self, node: NodeId) -> &Overrides {
        self.node_configs.get(&node).map_or(&NO_OVERRIDES, |configs| configs)
    }

    /// What was set on this group.
    pub fn group_configs(&self, group: &str) -> &Overrides {
        self.group_configs.get(group).map_or(&NO_OVERRIDES, |configs| configs)
    }

    /// The groups with configs of their own, by name.
    pub fn groups_with_configs(&self) -> impl ExactSizeIterator<Item = &GroupId> {
        self.group_configs.keys()
    }

    /// What groups with configs of their own work by; the same value while none changes.
    pub fn group_overrides(&self) -> &Arc<BTreeMap<GroupId, GroupOverrides>> {
        &self.group_overrides
    }

    /// Where the values of a node's keys come from; `settings` is its own configuration.
    pub fn layers<'a>(&'a self, node: NodeId, settings: &'a [EffectiveSetting]) -> Layers<'a> {
        Layers { node: self.node_configs(node), cluster: self.cluster_configs(), settings }
    }

    /// What this node works by, with what was set at run time; `None` before the machine's first image.
    pub fn runtime(&self) -> Option<&Arc<RuntimeSettings>> {
        self.runtime.as_ref()
    }

    /// Puts a topic in the place of the one with its name and id.
    pub(super) fn replace_topic(&mut self, topic: Arc<TopicImage>) {
        self.topics_by_id.insert(topic.id, Arc::clone(&topic));
        self.topics.insert(Arc::clone(&topic.name), topic);
    }

    /// The first producer id that no block holds yet.
    pub fn next_producer_id(&self) -> ProducerId {
        self.next_producer_id
    }

    /// Checks the invariants named on the type.
    ///
    /// # Panics
    /// When one does not hold.
    pub fn validate(&self) {
        assert_eq!(self.topics.len(), self.topics_by_id.len(), "both maps hold the same topics");
        for (name, topic) in &self.topics {
            assert_eq!(*name, topic.name, "a topic stands under its name");
            let by_id = self.topics_by_id.get(&topic.id);
            assert!(
                by_id.is_some_and(|found| Arc::ptr_eq(found, topic)),
                "topic {name} stands under its id too"
            );
            assert!(!topic.id.is_zero(), "topic {name} has an id");
            assert!(topic.partition_count >= 1, "topic {name} has {} partitions", topic.partition_count);
            assert!(topic.replication_factor >= 1, "topic {name} has {} replicas", topic.replication_factor);
        }
        let partitions =
            self.topics.values().map(|topic| u64::from(topic.partition_count.unsigned_abs())).sum::<u64>();
        assert_eq!(self.partitions, partitions, "partitions are counted");
        assert!(self.node_configs.values().all(|configs| !configs.is_empty()), "no node has empty settings");
        assert!(self.group_configs.values().all(|configs| !configs.is_empty()), "no group has empty configs");
        assert!(self.group_configs.keys().eq(self.group_overrides.keys()), "configs of groups are resolved");
        assert!(self.next_producer_id >= ProducerId(0), "producer ids are not negative");
    }
}
