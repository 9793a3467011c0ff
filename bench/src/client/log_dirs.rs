//! How many bytes partitions hold, over [`Client`]: what their leaders say of their own replicas.

use std::collections::BTreeMap;
use std::time::Duration;

use ringlog_protocol::api::ApiKey;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::describe_log_dirs::{
    DescribableLogDirTopic, DescribeLogDirsRequest, DescribeLogDirsResponse,
};
use ringlog_protocol::wire::{Reader, Writer};

use super::admin::{refused_if, unreadable};
use super::cluster::{Client, Lane};
use super::error::ClientError;
use super::metadata::TopicImage;

/// How long a broker may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Bytes by topic and partition.
pub type LogSizes = BTreeMap<(String, i32), u64>;

impl Client {
    /// The size of each partition of `topics` that its leader tells. Not there: partitions without a leader, and those whose leader
    /// cannot be reached, does not serve the API, does not let this client know, or has lost the disk.
    ///
    /// # Errors
    /// An answer that cannot be read, or another refusal.
    pub async fn log_sizes(&self, topics: &[&TopicImage]) -> Result<LogSizes, ClientError> {
        let mut by_leader: BTreeMap<i32, BTreeMap<&str, Vec<i32>>> = BTreeMap::new();
        for topic in topics {
            let led = topic.partitions.iter().filter(|(_, partition)| partition.leader >= 0);
            for (index, partition) in led {
                let of_leader = by_leader.entry(partition.leader).or_default();
                of_leader.entry(topic.name.as_str()).or_default().push(*index);
            }
        }
        let mut sizes = LogSizes::new();
        for (leader, partitions) in by_leader {
            match self.log_sizes_of(leader, partitions).await {
                Ok(told) => sizes.extend(told),
                Err(error) if is_silence(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(sizes)
    }

    async fn log_sizes_of(
        &self,
        node_id: i32,
        partitions: BTreeMap<&str, Vec<i32>>,
    ) -> Result<LogSizes, ClientError> {
        let api = ApiKey::DescribeLogDirs;
        let connection = self.connection(Lane { node_id, number: 0 }).await?;
        let version = connection.version(api)?;
        let topics = partitions
            .into_iter()
            .map(|(topic, partitions)| DescribableLogDirTopic { topic, partitions: partitions.into() });
        let request = DescribeLogDirsRequest { topics: Some(topics.collect()) };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let body = connection.call(api, version, TIMEOUT, encode).await?;
        let response = DescribeLogDirsResponse::decode(&mut Reader::new(&body), version)
            .map_err(|source| unreadable(&connection, api, version, source))?;
        refused_if(&connection, api, "log directories", response.error_code, None)?;
        let mut sizes = LogSizes::new();
        // One that failed lists nothing.
        for topic in response.results.iter().flat_map(|directory| &directory.topics) {
            // A replica that moves between directories is there twice; it serves from where it was.
            for partition in topic.partitions.iter().filter(|partition| !partition.is_future_key) {
                let bytes = u64::try_from(partition.partition_size).unwrap_or(0);
                sizes.insert((topic.name.to_owned(), partition.partition_index), bytes);
            }
        }
        Ok(sizes)
    }
}

/// Whether it only means that this broker tells no sizes.
fn is_silence(error: &ClientError) -> bool {
    let is_unserved = matches!(error, ClientError::Unsupported { .. });
    is_unserved || error.is_retriable() || error.code() == Some(ErrorCode::ClusterAuthorizationFailed)
}
