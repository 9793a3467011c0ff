//! Fetch without sessions: positions in, record batches out. It keeps no positions and decides no retries.

use std::time::Duration;

use bytes::Bytes;
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::messages::fetch::{FetchPartition, FetchRequest, FetchResponse, FetchTopic};
use ringlog_protocol::records::batch::batches;
use ringlog_protocol::wire::{Reader, Records};

use super::admin::{milliseconds, refused_if, unreadable};
use super::connection::{Connection, Reply};
use super::error::ClientError;
use super::metadata::TopicImage;

/// A session epoch of -1 asks for no session (KIP-227).
const NO_SESSION_EPOCH: i32 = -1;

/// How much to fetch and how long to wait for it.
#[derive(Clone, Debug)]
pub struct FetchConfig {
    /// How long the broker may wait for `bytes_min`.
    pub wait_max: Duration,
    /// Bytes worth answering for.
    pub bytes_min: i32,
    /// Soft bound of a whole answer.
    pub bytes_max: i32,
    /// Soft bound of one partition.
    pub partition_bytes_max: i32,
}

impl Default for FetchConfig {
    fn default() -> FetchConfig {
        FetchConfig {
            wait_max: Duration::from_millis(500),
            bytes_min: 1,
            bytes_max: 50 << 20,
            partition_bytes_max: 1 << 20,
        }
    }
}

/// Where to read a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchPosition {
    /// The partition.
    pub partition: i32,
    /// Offset of the first record wanted.
    pub offset: i64,
}

/// What one partition answered.
#[derive(Clone, Debug)]
pub struct FetchedPartition {
    /// The partition.
    pub partition: i32,
    /// 0 = none.
    pub error_code: i16,
    /// First offset not yet committed.
    pub high_watermark: i64,
    /// First offset still kept; -1 = unknown.
    pub log_start_offset: i64,
    /// Whole batches, perhaps a part of another at the end.
    pub records: Bytes,
}

impl FetchedPartition {
    /// The offset behind the last whole batch, or `from` when there is none.
    pub fn next_offset(&self, from: i64) -> i64 {
        batches(&self.records)
            .filter_map(Result::ok)
            .last()
            .map_or(from, |batch| batch.header.next_offset().0.max(from))
    }
}

/// A fetch on its way.
pub struct Fetch {
    reply: Reply,
    version: i16,
}

/// Sends a fetch of `positions`, all led by the broker behind `connection`.
///
/// # Errors
/// As [`Connection::start`].
pub fn start_fetch(
    connection: &Connection,
    topic: &TopicImage,
    positions: &[FetchPosition],
    config: &FetchConfig,
) -> Result<Fetch, ClientError> {
    let version = connection.version(ApiKey::Fetch)?;
    let partitions = positions
        .iter()
        .map(|position| FetchPartition {
            partition: position.partition,
            current_leader_epoch: topic
                .partitions
                .get(&position.partition)
                .map_or(-1, |image| image.leader_epoch),
            fetch_offset: position.offset,
            partition_max_bytes: config.partition_bytes_max,
            ..FetchPartition::default()
        })
        .collect();
    let request = FetchRequest {
        max_wait_ms: milliseconds(config.wait_max),
        min_bytes: config.bytes_min,
        max_bytes: config.bytes_max,
        session_epoch: NO_SESSION_EPOCH,
        topics: vec![FetchTopic { topic: &topic.name, topic_id: topic.id, partitions }],
        ..FetchRequest::default()
    };
    let reply = connection
        .start(ApiKey::Fetch, version, config.wait_max, |writer, version| request.encode(writer, version))?;
    Ok(Fetch { reply, version })
}

impl Fetch {
    /// Waits for the answer. Partitions that the broker left out are not in the list.
    ///
    /// # Errors
    /// A failed request, an unreadable answer, or an error code of the whole answer. Errors of single partitions are
    /// inside the list.
    pub async fn partitions(
        self,
        connection: &Connection,
        topic: &TopicImage,
    ) -> Result<Vec<FetchedPartition>, ClientError> {
        let version = self.version;
        let body = self.reply.body().await?;
        let response = FetchResponse::decode(&mut Reader::new(&body), version)
            .map_err(|source| unreadable(connection, ApiKey::Fetch, version, source))?;
        let subject = format_args!("topic '{}'", topic.name);
        refused_if(connection, ApiKey::Fetch, subject, response.error_code, None)?;
        let is_ours = |name: &str, id| if version >= 13 { id == topic.id } else { name == topic.name };
        let fetched = response
            .responses
            .iter()
            .filter(|answered| is_ours(answered.topic, answered.topic_id))
            .flat_map(|answered| &answered.partitions)
            .map(|partition| FetchedPartition {
                partition: partition.partition_index,
                error_code: partition.error_code,
                high_watermark: partition.high_watermark,
                log_start_offset: partition.log_start_offset,
                records: shared_records(&body, &partition.records),
            })
            .collect();
        Ok(fetched)
    }
}

/// The records as a slice that keeps the frame alive, without a copy.
fn shared_records(body: &Bytes, records: &Records<'_>) -> Bytes {
    match records {
        Records::Borrowed(bytes) if !bytes.is_empty() => body.slice_ref(bytes),
        _ => Bytes::new(),
    }
}
