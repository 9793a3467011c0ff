//! The controller's quorum as DescribeQuorum tells of it, asked of the core that leads the metadata partition.

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{LeaderEpoch, Offset};
use ringlog_raft::ids::ReplicaId;

use super::Core;
use super::serve::view_error_code;
use crate::controller::METADATA_PARTITION;

/// The metadata partition's group as its leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuorumState {
    pub leader_epoch: LeaderEpoch,
    pub high_watermark: Offset,
    /// Of the leader.
    pub log_end: Offset,
    pub voters: Vec<ReplicaId>,
    pub observers: Vec<ReplicaId>,
    /// Milliseconds since the Unix epoch.
    pub now_ms: i64,
}

/// # Errors
/// This core does not lead the metadata partition.
pub fn describe(core: &Core) -> Result<QuorumState, ErrorCode> {
    let error = |error| view_error_code(&error);
    let view = core.store.view(METADATA_PARTITION).map_err(error)?;
    let log_end = core.store.with_log(METADATA_PARTITION, |log| log.log_end()).map_err(error)?;
    let configuration = core.store.configuration(METADATA_PARTITION).map_err(error)?;
    Ok(QuorumState {
        leader_epoch: view.leader_epoch,
        high_watermark: view.high_watermark,
        log_end,
        voters: configuration.voters,
        observers: configuration.learners,
        now_ms: core.io.wall_now_ms(),
    })
}
