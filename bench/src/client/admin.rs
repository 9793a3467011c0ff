//! Topic management and offset lookups over [`Client`].

use std::collections::BTreeMap;
use std::time::Duration;

use ringlog_protocol::api::ApiKey;
use ringlog_protocol::messages::create_partitions::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopic,
};
use ringlog_protocol::messages::create_topics::{
    CreatableTopic, CreatableTopicConfig, CreateTopicsRequest, CreateTopicsResponse,
};
use ringlog_protocol::messages::delete_records::{
    DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsResponse, DeleteRecordsTopic,
};
use ringlog_protocol::messages::delete_topics::{
    DeleteTopicState, DeleteTopicsRequest, DeleteTopicsResponse,
};
use ringlog_protocol::messages::list_offsets::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopic,
};
use ringlog_protocol::wire::{DecodeError, Reader, Writer};

use super::cluster::{Client, Lane};
use super::connection::Connection;
use super::error::ClientError;
use super::metadata::{PartitionImage, TopicImage};

/// How long the broker may take for an administrative request.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause before a lookup is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// A replica id of -1 marks a consumer.
const CONSUMER_REPLICA_ID: i32 = -1;

/// A position that ListOffsets resolves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetQuery {
    /// The first offset still kept.
    Earliest,
    /// The offset of the next record.
    Latest,
    /// The first record at or after this time, milliseconds since the Unix epoch.
    AtOrAfter(i64),
}

impl OffsetQuery {
    fn timestamp(self) -> i64 {
        match self {
            OffsetQuery::Latest => -1,
            OffsetQuery::Earliest => -2,
            OffsetQuery::AtOrAfter(milliseconds) => milliseconds,
        }
    }
}

/// A topic to create.
#[derive(Clone, Debug)]
pub struct NewTopic<'a> {
    /// Its name.
    pub name: &'a str,
    /// How many partitions; -1 = the broker's default.
    pub partitions: i32,
    /// How many replicas; -1 = the broker's default.
    pub replication_factor: i16,
    /// Configs, key and value.
    pub configs: Vec<(&'a str, &'a str)>,
}

impl Client {
    /// Creates a topic and returns when the broker has it.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the broker's own text, and failed requests.
    pub async fn create_topic(&self, topic: &NewTopic<'_>) -> Result<(), ClientError> {
        let connection = self.any_connection().await?;
        let version = connection.version(ApiKey::CreateTopics)?;
        let configs =
            topic.configs.iter().map(|(name, value)| CreatableTopicConfig { name, value: Some(value) });
        let request = CreateTopicsRequest {
            topics: vec![CreatableTopic {
                name: topic.name,
                num_partitions: topic.partitions,
                replication_factor: topic.replication_factor,
                configs: configs.collect(),
                ..CreatableTopic::default()
            }],
            timeout_ms: milliseconds(ADMIN_TIMEOUT),
            ..CreateTopicsRequest::default()
        };
        let body = connection
            .call(ApiKey::CreateTopics, version, ADMIN_TIMEOUT, |writer, version| {
                request.encode(writer, version)
            })
            .await?;
        let response = CreateTopicsResponse::decode(&mut Reader::new(&body), version)
            .map_err(|source| unreadable(&connection, ApiKey::CreateTopics, version, source))?;
        let subject = format!("topic '{}'", topic.name);
        let result = response.topics.iter().find(|result| result.name == topic.name);
        let result = result.ok_or_else(|| missing(&connection, ApiKey::CreateTopics, &subject))?;
        refused_if(&connection, ApiKey::CreateTopics, subject, result.error_code, result.error_message)
    }

    /// Lets a topic have `count` partitions in all and returns when the broker has them. With `validate_only` the broker judges and
    /// changes nothing.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the broker's own text, and failed requests.
    pub async fn create_partitions(
        &self,
        name: &str,
        count: i32,
        validate_only: bool,
    ) -> Result<(), ClientError> {
        let api = ApiKey::CreatePartitions;
        let connection = self.any_connection().await?;
        let version = connection.version(api)?;
        let request = CreatePartitionsRequest {
            topics: vec![CreatePartitionsTopic { name, count, assignments: None }],
            timeout_ms: milliseconds(ADMIN_TIMEOUT),
            validate_only,
        };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let body = connection.call(api, version, ADMIN_TIMEOUT, encode).await?;
        let response = CreatePartitionsResponse::decode(&mut Reader::new(&body), version)
            .map_err(|source| unreadable(&connection, api, version, source))?;
        self.forget_topic(name);
        let subject = format!("topic '{name}'");
        let result = response.results.iter().find(|result| result.name == name);
        let result = result.ok_or_else(|| missing(&connection, api, &subject))?;
        refused_if(&connection, api, subject, result.error_code, result.error_message)
    }

    /// Deletes a topic by name.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the broker's own text, and failed requests.
    pub async fn delete_topic(&self, name: &str) -> Result<(), ClientError> {
        let connection = self.any_connection().await?;
        let version = connection.version(ApiKey::DeleteTopics)?;
        let mut request =
            DeleteTopicsRequest { timeout_ms: milliseconds(ADMIN_TIMEOUT), ..DeleteTopicsRequest::default() };
        if version >= 6 {
            request.topics = vec![DeleteTopicState { name: Some(name), ..DeleteTopicState::default() }];
        } else {
            request.topic_names = vec![name];
        }
        let body = connection
            .call(ApiKey::DeleteTopics, version, ADMIN_TIMEOUT, |writer, version| {
                request.encode(writer, version)
            })
            .await?;
        let response = DeleteTopicsResponse::decode(&mut Reader::new(&body), version)
            .map_err(|source| unreadable(&connection, ApiKey::DeleteTopics, version, source))?;
        self.forget_topic(name);
        let subject = format!("topic '{name}'");
        let result = response.responses.iter().find(|result| result.name == Some(name));
        let result = result.ok_or_else(|| missing(&connection, ApiKey::DeleteTopics, &subject))?;
        refused_if(&connection, ApiKey::DeleteTopics, subject, result.error_code, result.error_message)
    }

    /// Deletes the records of each partition named in `before` below its offset; -1 stands for all committed ones. Returns
    /// the first offset that is left in each, once the deletion is durable.
    ///
    /// # Errors
    /// The first partition's error, or a failed request. What other partitions deleted stays deleted.
    pub async fn delete_records(
        &self,
        topic_name: &str,
        before: &BTreeMap<i32, i64>,
    ) -> Result<BTreeMap<i32, i64>, ClientError> {
        let topic = self.topic(topic_name).await?;
        let mut by_leader: BTreeMap<i32, Vec<DeleteRecordsPartition>> = BTreeMap::new();
        for (index, offset) in before {
            let partition = known_partition(&topic, *index)?;
            by_leader
                .entry(partition.leader)
                .or_default()
                .push(DeleteRecordsPartition { partition_index: *index, offset: *offset });
        }
        let mut low_watermarks = BTreeMap::new();
        for (node_id, partitions) in by_leader {
            let connection = self.connection(Lane { node_id, number: 0 }).await?;
            delete_on_leader(&connection, topic_name, partitions, &mut low_watermarks).await?;
        }
        Ok(low_watermarks)
    }

    /// The offset of `query` in each partition of `topic` named in `partitions`. An offset of -1 means that no record
    /// is at or after the time asked for. A leader that does not know yet that it leads is asked again.
    ///
    /// # Errors
    /// The first partition's error, if it does not pass within the metadata timeout, or a failed request.
    pub async fn offsets(
        &self,
        topic_name: &str,
        partitions: &[i32],
        query: OffsetQuery,
    ) -> Result<BTreeMap<i32, i64>, ClientError> {
        let deadline = self.io().monotonic_now() + self.config().metadata_timeout;
        loop {
            match self.offsets_once(topic_name, partitions, query).await {
                Err(error) if error.is_retriable() && self.io().monotonic_now() < deadline => {
                    self.forget_topic(topic_name);
                    self.pause_until(RETRY_PAUSE, deadline).await;
                }
                result => return result,
            }
        }
    }

    async fn offsets_once(
        &self,
        topic_name: &str,
        partitions: &[i32],
        query: OffsetQuery,
    ) -> Result<BTreeMap<i32, i64>, ClientError> {
        let topic = self.topic(topic_name).await?;
        let mut by_leader: BTreeMap<i32, Vec<ListOffsetsPartition>> = BTreeMap::new();
        for index in partitions {
            let partition = known_partition(&topic, *index)?;
            by_leader.entry(partition.leader).or_default().push(ListOffsetsPartition {
                partition_index: *index,
                timestamp: query.timestamp(),
                ..ListOffsetsPartition::default()
            });
        }
        let mut offsets = BTreeMap::new();
        for (node_id, partitions) in by_leader {
            let connection = self.connection(Lane { node_id, number: 0 }).await?;
            offsets_of_leader(&connection, topic_name, partitions, &mut offsets).await?;
        }
        Ok(offsets)
    }
}

fn known_partition(topic: &TopicImage, index: i32) -> Result<&PartitionImage, ClientError> {
    topic.partitions.get(&index).ok_or_else(|| ClientError::NoLeader {
        subject: format!("partition {index} of topic '{}'", topic.name),
        reason: format!("the topic has {} partitions", topic.partitions.len()),
    })
}

async fn delete_on_leader(
    connection: &Connection,
    topic_name: &str,
    partitions: Vec<DeleteRecordsPartition>,
    low_watermarks: &mut BTreeMap<i32, i64>,
) -> Result<(), ClientError> {
    let version = connection.version(ApiKey::DeleteRecords)?;
    let subject = |index: i32| format!("partition {index} of topic '{topic_name}'");
    let wanted: Vec<i32> = partitions.iter().map(|partition| partition.partition_index).collect();
    let request = DeleteRecordsRequest {
        topics: vec![DeleteRecordsTopic { name: topic_name, partitions }],
        timeout_ms: milliseconds(ADMIN_TIMEOUT),
    };
    let body = connection
        .call(ApiKey::DeleteRecords, version, ADMIN_TIMEOUT, |writer, version| {
            request.encode(writer, version)
        })
        .await?;
    let response = DeleteRecordsResponse::decode(&mut Reader::new(&body), version)
        .map_err(|source| unreadable(connection, ApiKey::DeleteRecords, version, source))?;
    for topic in response.topics.iter().filter(|topic| topic.name == topic_name) {
        for partition in &topic.partitions {
            let subject = subject(partition.partition_index);
            refused_if(connection, ApiKey::DeleteRecords, subject, partition.error_code, None)?;
            low_watermarks.insert(partition.partition_index, partition.low_watermark);
        }
    }
    match wanted.iter().find(|index| !low_watermarks.contains_key(index)) {
        None => Ok(()),
        Some(index) => Err(missing(connection, ApiKey::DeleteRecords, &subject(*index))),
    }
}

async fn offsets_of_leader(
    connection: &Connection,
    topic_name: &str,
    partitions: Vec<ListOffsetsPartition>,
    offsets: &mut BTreeMap<i32, i64>,
) -> Result<(), ClientError> {
    let version = connection.version(ApiKey::ListOffsets)?;
    let wanted: Vec<i32> = partitions.iter().map(|partition| partition.partition_index).collect();
    let request = ListOffsetsRequest {
        replica_id: CONSUMER_REPLICA_ID,
        topics: vec![ListOffsetsTopic { name: topic_name, partitions }],
        ..ListOffsetsRequest::default()
    };
    let body = connection
        .call(ApiKey::ListOffsets, version, Duration::ZERO, |writer, version| request.encode(writer, version))
        .await?;
    let response = ListOffsetsResponse::decode(&mut Reader::new(&body), version)
        .map_err(|source| unreadable(connection, ApiKey::ListOffsets, version, source))?;
    for topic in response.topics.iter().filter(|topic| topic.name == topic_name) {
        for partition in &topic.partitions {
            let subject = format!("partition {} of topic '{topic_name}'", partition.partition_index);
            refused_if(connection, ApiKey::ListOffsets, subject, partition.error_code, None)?;
            offsets.insert(partition.partition_index, partition.offset);
        }
    }
    match wanted.iter().find(|index| !offsets.contains_key(index)) {
        None => Ok(()),
        Some(index) => Err(missing(
            connection,
            ApiKey::ListOffsets,
            &format!("partition {index} of topic '{topic_name}'"),
        )),
    }
}

/// For the wire: saturates.
pub(crate) fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis()).unwrap_or(i32::MAX)
}

pub(super) fn unreadable(
    connection: &Connection,
    api: ApiKey,
    version: i16,
    source: DecodeError,
) -> ClientError {
    ClientError::Decode { address: connection.address().to_string(), api: api.name(), version, source }
}

pub(super) fn missing(connection: &Connection, api: ApiKey, subject: &str) -> ClientError {
    ClientError::Missing {
        address: connection.address().to_string(),
        api: api.name(),
        subject: subject.to_owned(),
    }
}

/// An error if `code` is one. The subject is written out only then.
pub(super) fn refused_if(
    connection: &Connection,
    api: ApiKey,
    subject: impl std::fmt::Display,
    code: i16,
    message: Option<&str>,
) -> Result<(), ClientError> {
    if code == 0 {
        return Ok(());
    }
    Err(ClientError::Refused {
        address: connection.address().to_string(),
        api: api.name(),
        subject: subject.to_string(),
        code,
        message: message.map(str::to_owned),
    })
}
