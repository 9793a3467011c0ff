//! The records that make a metadata image from nothing. Pure; the bytes are a function of the image alone.

use std::iter::once;
use std::sync::Arc;

use ringlog_flat::metadata::{
    ClusterRecord, Configs, GroupConfigsRecord, NodeConfigsRecord, NodeRecord, ProducerIdsRecord, Record,
    TopicRecord,
};

use super::features::{FORMAT, level_record};
use super::image::{MetadataImage, TopicImage};
use crate::config::layers::Overrides;

/// In a snapshot nobody knows any more which node got the newest block of producer ids, and no replay asks.
const NO_NODE: i32 = -1;

/// In an order in which each can be replayed, one at least. Configs of nodes come before topics: a topic is then resolved once.
pub(super) fn records(image: &MetadataImage) -> impl Iterator<Item = Record> {
    let cluster = image.cluster_id.as_ref().map(|id| {
        let metadata_version = image.features.level(FORMAT);
        Record::Cluster(ClusterRecord { id: id.to_string(), metadata_version })
    });
    let levels = image.features.iter().filter(|(feature, _)| *feature != FORMAT);
    let levels = levels.map(|(feature, level)| level_record(feature, level));
    let nodes = image.nodes.values().map(|node| Record::Node(NodeRecord::clone(node)));
    let every_node = (!image.cluster_configs.is_empty()).then(|| node_configs(None, &image.cluster_configs));
    let each_node = image.node_configs.iter().map(|(node, configs)| node_configs(Some(node.0), configs));
    let groups = image.group_configs.iter().map(|(group, configs)| group_configs(group, configs));
    let topics = image.topics.values().map(topic);
    let next = image.next_producer_id.0;
    let producer_ids = once(Record::ProducerIds(ProducerIdsRecord { node: NO_NODE, next }));
    let named = cluster.into_iter().chain(levels);
    let configs = every_node.into_iter().chain(each_node).chain(groups);
    named.chain(nodes).chain(configs).chain(topics).chain(producer_ids)
}

fn node_configs(node: Option<i32>, overrides: &Overrides) -> Record {
    Record::NodeConfigs(NodeConfigsRecord { node, configs: configs(overrides) })
}

fn group_configs(group: &str, overrides: &Overrides) -> Record {
    Record::GroupConfigs(GroupConfigsRecord { group: group.to_owned(), configs: configs(overrides) })
}

fn topic(topic: &Arc<TopicImage>) -> Record {
    Record::Topic(TopicRecord {
        name: topic.name.to_string(),
        id: topic.id.0,
        partitions: topic.partition_count,
        replication_factor: topic.replication_factor,
        configs: configs(&topic.overrides),
    })
}

fn configs(overrides: &Overrides) -> Configs {
    overrides.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}
