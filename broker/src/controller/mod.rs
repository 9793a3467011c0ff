//! The controller: topics, configs, levels of features, the cluster's name and producer ids, as a replicated machine.
//!
//! Owns what a request to change metadata comes to. Pure: it reads no clock and no random source (topic ids come with the request),
//! holds no partition, and tells nobody: the runner in [`crate::coordinator`] appends its records, and its image goes to every
//! core.
//!
//! Reading order: [`image`] (what readers see), [`request`] (what is asked and answered), [`machine`], [`create_topics`],
//! [`create_partitions`], [`delete_topics`], [`alter_configs`], [`features`], [`names`], `snapshot` (the image as records).

pub mod alter_configs;
pub mod create_partitions;
pub mod create_topics;
pub mod delete_topics;
pub mod features;
pub mod image;
pub mod machine;
pub mod names;
pub mod request;
mod snapshot;

#[cfg(test)]
mod tests;

use ringlog_protocol::ids::{PartitionIndex, TopicId, TopicPartition};

use crate::coordinator::Coordinator;

pub use image::{MetadataImage, TopicImage};
pub use machine::{ControllerSettings, MetadataMachine};
pub use request::{ControllerReply, ControllerRequest};

/// The controller as it runs on the core that leads [`METADATA_PARTITION`].
pub type Controller = Coordinator<MetadataMachine>;

/// Kafka's name of the metadata log; no client may create or delete it.
pub const METADATA_TOPIC_NAME: &str = "__cluster_metadata";

/// Kafka's name of the topic in which groups keep their members and offsets.
pub const OFFSETS_TOPIC_NAME: &str = "__consumer_offsets";

/// Kafka's id of the metadata log: the 128-bit number 1.
pub const METADATA_TOPIC_ID: TopicId = TopicId([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);

/// Where the controller's records lie.
pub const METADATA_PARTITION: TopicPartition =
    TopicPartition { topic: METADATA_TOPIC_ID, partition: PartitionIndex(0) };
