//! What each request means: one file per API, each from a decoded request to an answer. Handlers read the metadata
//! image and ask cores; they never touch a socket or a file.

pub mod alter_configs;
pub mod api_versions;
pub mod consumer_group_describe;
pub mod consumer_group_heartbeat;
pub mod create_partitions;
pub mod create_topics;
pub mod delete_groups;
pub mod delete_records;
pub mod delete_topics;
pub mod describe_configs;
pub mod describe_groups;
pub mod describe_log_dirs;
pub mod describe_quorum;
pub mod describe_topic_partitions;
pub mod fetch;
pub mod find_coordinator;
mod group_calls;
pub mod heartbeat;
pub mod init_producer_id;
pub mod join_group;
pub mod leave_group;
pub mod list_config_resources;
pub mod list_groups;
pub mod list_offsets;
pub mod metadata;
pub mod offset_commit;
pub mod offset_delete;
pub mod offset_fetch;
pub mod offset_for_leader_epoch;
pub mod produce;
mod reply;
mod spread;
pub mod sync_group;
#[cfg(test)]
mod tests;
mod timed;
mod topics;
pub mod update_features;

use std::rc::Rc;

use bytes::BytesMut;
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::frame::{self, HeaderError, RequestHeader};
use ringlog_protocol::wire::{DecodeError, Reader};

use crate::core::Core;
use crate::observe::stage::StageClock;
use crate::server::Connection;
use crate::server::replies::{Answer, Pending};

/// Why a request cannot be answered at all: the connection is closed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("{0}")]
    Header(#[from] HeaderError),
    #[error("{api} version {version}: {error}")]
    Body { api: ApiKey, version: i16, error: DecodeError },
}

/// A request whose header is known and whose body is still bytes.
pub struct Request {
    pub frame: BytesMut,
    pub info: RequestInfo,
    /// Where the body starts in `frame`.
    pub body_at: usize,
}

/// What stays of a request until its answer left.
#[derive(Debug, Clone)]
pub struct RequestInfo {
    pub api: ApiKey,
    pub version: i16,
    pub correlation_id: i32,
    pub client_id: crate::observe::slow::ClientId,
    pub answer: frame::Answer,
    pub clock: StageClock,
    pub received_bytes: u64,
}

impl RequestInfo {
    #[cfg(test)]
    pub(crate) fn for_tests() -> RequestInfo {
        RequestInfo {
            api: ApiKey::ApiVersions,
            version: 0,
            correlation_id: 0,
            client_id: crate::observe::slow::ClientId::new("test"),
            answer: frame::Answer::Serve,
            clock: StageClock::start(0),
            received_bytes: 0,
        }
    }
}

impl Request {
    /// Reads the header of a frame.
    ///
    /// # Errors
    /// [`RequestError::Header`] for anything that is not a header of an API and version that are answered.
    pub fn open(frame: BytesMut, clock: StageClock) -> Result<Request, RequestError> {
        let mut reader = Reader::new(&frame);
        let header = RequestHeader::decode(&mut reader)?;
        let body_at = reader.offset();
        let info = RequestInfo {
            api: header.api,
            version: header.api_version,
            correlation_id: header.correlation_id,
            client_id: crate::observe::slow::ClientId::new(header.client_id.unwrap_or_default()),
            answer: header.answer,
            clock,
            received_bytes: frame.len() as u64 + frame::LENGTH_BYTES as u64,
        };
        Ok(Request { frame, info, body_at })
    }

    /// Whether the request may start before the replies to earlier ones left.
    pub fn may_overlap(&self) -> bool {
        self.info.api == ApiKey::Produce
    }

    fn body(&self) -> Reader<'_> {
        Reader::new(self.frame.get(self.body_at..).unwrap_or_default())
    }

    fn refuse(&self, error: DecodeError) -> RequestError {
        RequestError::Body { api: self.info.api, version: self.info.version, error }
    }
}

/// Starts a request; its answer is ready or will come.
///
/// # Errors
/// [`RequestError`]: the body is not what its version says.
pub async fn handle(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    request: Request,
) -> Result<Pending, RequestError> {
    let answer = match request.info.api {
        ApiKey::Produce => return produce::handle(core, request).await,
        ApiKey::Fetch => fetch::handle(core, connection, request).await?,
        ApiKey::Metadata => metadata::handle(core, connection, request).await?,
        ApiKey::ListOffsets => list_offsets::handle(core, request).await?,
        ApiKey::ApiVersions => api_versions::handle(core, connection, request)?,
        ApiKey::CreateTopics => create_topics::handle(core, request).await?,
        ApiKey::CreatePartitions => create_partitions::handle(core, request).await?,
        ApiKey::DeleteTopics => delete_topics::handle(core, request).await?,
        ApiKey::DeleteRecords => delete_records::handle(core, request).await?,
        ApiKey::InitProducerId => init_producer_id::handle(core, request).await?,
        ApiKey::OffsetForLeaderEpoch => offset_for_leader_epoch::handle(core, request).await?,
        ApiKey::DescribeConfigs => describe_configs::handle(core, request)?,
        ApiKey::ListConfigResources => list_config_resources::handle(core, request)?,
        ApiKey::AlterConfigs => alter_configs::handle_replacing(core, request).await?,
        ApiKey::IncrementalAlterConfigs => alter_configs::handle_incremental(core, request).await?,
        ApiKey::UpdateFeatures => update_features::handle(core, request).await?,
        ApiKey::DescribeLogDirs => describe_log_dirs::handle(core, request).await?,
        ApiKey::DescribeTopicPartitions => describe_topic_partitions::handle(core, request).await?,
        ApiKey::DescribeQuorum => describe_quorum::handle(core, connection, request).await?,
        ApiKey::FindCoordinator => find_coordinator::handle(core, connection, request).await?,
        ApiKey::JoinGroup => join_group::handle(core, connection, request).await?,
        ApiKey::SyncGroup => sync_group::handle(core, connection, request).await?,
        ApiKey::Heartbeat => heartbeat::handle(core, request).await?,
        ApiKey::LeaveGroup => leave_group::handle(core, request).await?,
        ApiKey::OffsetCommit => offset_commit::handle(core, request).await?,
        ApiKey::OffsetFetch => offset_fetch::handle(core, connection, request).await?,
        ApiKey::OffsetDelete => offset_delete::handle(core, request).await?,
        ApiKey::DescribeGroups => describe_groups::handle(core, connection, request).await?,
        ApiKey::ListGroups => list_groups::handle(core, request).await?,
        ApiKey::DeleteGroups => delete_groups::handle(core, connection, request).await?,
        ApiKey::ConsumerGroupHeartbeat => consumer_group_heartbeat::handle(core, connection, request).await?,
        ApiKey::ConsumerGroupDescribe => consumer_group_describe::handle(core, connection, request).await?,
        // `RequestHeader::decode` lets only served APIs through, and a test checks that each has an arm here.
        other => {
            tracing::error!(api = %other, "served by the table, but without a handler");
            Answer::Close
        }
    };
    Ok(Pending::Ready(answer))
}
