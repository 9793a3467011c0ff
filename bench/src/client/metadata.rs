//! What the cluster looks like to this client: brokers, topics, leaders. Values, and the request that fetches them.

use std::collections::BTreeMap;
use std::time::Duration;

use ringlog_protocol::api::ApiKey;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::TopicId;
use ringlog_protocol::messages::metadata::{MetadataRequest, MetadataRequestTopic, MetadataResponse};
use ringlog_protocol::wire::Reader;

use super::address::{AddressOrigin, BrokerAddress};
use super::connection::Connection;
use super::error::ClientError;

/// The cluster as one broker described it.
#[derive(Clone, Debug, Default)]
pub struct ClusterImage {
    /// The cluster's id, if the broker tells it.
    pub cluster_id: Option<String>,
    /// Brokers by node id.
    pub brokers: BTreeMap<i32, BrokerAddress>,
    /// Topics by name.
    pub topics: BTreeMap<String, TopicImage>,
}

/// One topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicImage {
    /// Its name.
    pub name: String,
    /// Its identity; zero before Metadata v10.
    pub id: TopicId,
    /// Whether the broker keeps it for itself.
    pub is_internal: bool,
    /// Error code of the topic, 0 = none.
    pub error_code: i16,
    /// Partitions by number.
    pub partitions: BTreeMap<i32, PartitionImage>,
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionImage {
    /// Node id of the leader, -1 = none.
    pub leader: i32,
    /// The leader's epoch, -1 = unknown.
    pub leader_epoch: i32,
    /// Node ids of all replicas.
    pub replicas: Vec<i32>,
    /// Node ids of the replicas in sync.
    pub in_sync: Vec<i32>,
    /// Error code of the partition, 0 = none.
    pub error_code: i16,
}

impl TopicImage {
    /// The error that keeps this topic from being used now, if any.
    pub fn error(&self, address: &BrokerAddress) -> Option<ClientError> {
        let partition_error = self.partitions.iter().find(|(_, partition)| partition.leader < 0);
        if self.error_code != 0 {
            return Some(ClientError::Refused {
                address: address.to_string(),
                api: ApiKey::Metadata.name(),
                subject: format!("topic '{}'", self.name),
                code: self.error_code,
                message: missing_topic_advice(&self.name, self.error_code),
            });
        }
        if self.partitions.is_empty() {
            let reason = "the broker lists no partition".to_owned();
            return Some(ClientError::NoLeader { subject: format!("topic '{}'", self.name), reason });
        }
        partition_error.map(|(index, partition)| ClientError::NoLeader {
            subject: format!("partition {index} of topic '{}'", self.name),
            reason: super::error::code_text(partition.error_code, None),
        })
    }
}

fn missing_topic_advice(name: &str, code: i16) -> Option<String> {
    (code == ErrorCode::UnknownTopicOrPartition.code())
        .then(|| format!("the topic does not exist; create it with `ringlog topic create {name}`"))
}

/// Asks `connection` about `topics`, or about all with `None`.
///
/// # Errors
/// A failed request or an unreadable answer. Errors of single topics are inside the image.
pub async fn fetch_image(
    connection: &Connection,
    topics: Option<&[&str]>,
    create_missing: bool,
) -> Result<ClusterImage, ClientError> {
    let version = connection.version(ApiKey::Metadata)?;
    let request = MetadataRequest {
        topics: topics.map(|names| {
            names
                .iter()
                .map(|name| MetadataRequestTopic { name: Some(name), ..MetadataRequestTopic::default() })
                .collect()
        }),
        // Before version 4 the broker's own setting decides.
        allow_auto_topic_creation: create_missing || version < 4,
        ..MetadataRequest::default()
    };
    let body = connection
        .call(ApiKey::Metadata, version, Duration::ZERO, |writer, version| request.encode(writer, version))
        .await?;
    let response =
        MetadataResponse::decode(&mut Reader::new(&body), version).map_err(|source| ClientError::Decode {
            address: connection.address().to_string(),
            api: ApiKey::Metadata.name(),
            version,
            source,
        })?;
    Ok(image_of(&response, connection.address()))
}

fn image_of(response: &MetadataResponse<'_>, via: &BrokerAddress) -> ClusterImage {
    let brokers = response
        .brokers
        .iter()
        .map(|broker| {
            let origin = AddressOrigin::Advertised { node_id: broker.node_id, via: via.to_string() };
            let port = u16::try_from(broker.port).unwrap_or(0);
            (broker.node_id, BrokerAddress { host: broker.host.to_owned(), port, origin })
        })
        .collect();
    let topics = response
        .topics
        .iter()
        .filter_map(|topic| {
            let name = topic.name?.to_owned();
            let partitions = topic
                .partitions
                .iter()
                .map(|partition| {
                    let image = PartitionImage {
                        leader: partition.leader_id,
                        leader_epoch: partition.leader_epoch,
                        replicas: partition.replica_nodes.iter().collect(),
                        in_sync: partition.isr_nodes.iter().collect(),
                        error_code: partition.error_code,
                    };
                    (partition.partition_index, image)
                })
                .collect();
            let image = TopicImage {
                name: name.clone(),
                id: topic.topic_id,
                is_internal: topic.is_internal,
                error_code: topic.error_code,
                partitions,
            };
            Some((name, image))
        })
        .collect();
    ClusterImage { cluster_id: response.cluster_id.map(str::to_owned), brokers, topics }
}
