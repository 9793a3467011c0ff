//! What happens to a machine of groups: requests of clients, timers that ran out, appends that ended. Values only, owned, so
//! that they cross cores.

use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::TopicId;

use super::consumer::{Computed, ConsumerHeartbeatRequest, Topics};

/// The name of a group, as its members give it.
pub type GroupId = Arc<str>;

/// The name of a member, made by the coordinator.
pub type MemberId = Arc<str>;

/// The caller's name for a request that waits for its answer: others' actions may answer it, long after it came in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub u64);

/// The machine's name for records that it wants appended: comes back once they are committed, or are not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// Tells one arming of a timer from the next: a timer that ran out while it was armed anew is known by its old number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Serial(pub u64);

/// A timer by its name. The caller keeps the clock; there is at most one of each name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Timer {
    /// The member must be heard of before it runs out.
    Session { group: GroupId, member: MemberId },
    /// Members that have not joined by then are out.
    Join { group: GroupId },
    /// Members that have not asked for their assignment by then are out.
    Sync { group: GroupId },
    /// A member of a consumer group must have given partitions up by then.
    Rebalance { group: GroupId, member: MemberId },
    /// A classic member of a consumer group must have joined again by then.
    MemberJoin { group: GroupId, member: MemberId },
    /// A classic member of a consumer group must have asked for its assignment by then.
    MemberSync { group: GroupId, member: MemberId },
    /// The next assignment of a consumer group may be computed.
    Assign { group: GroupId },
}

impl Timer {
    /// The group that it is of.
    pub fn group(&self) -> &GroupId {
        match self {
            Timer::Session { group, .. }
            | Timer::Join { group }
            | Timer::Sync { group }
            | Timer::Rebalance { group, .. }
            | Timer::MemberJoin { group, .. }
            | Timer::MemberSync { group, .. }
            | Timer::Assign { group } => group,
        }
    }
}

/// Groups and their bytes, counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    pub groups: usize,
    /// Memory of members, offsets and names, estimated.
    pub bytes: usize,
}

/// What the machine is told of the world with every event.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Surroundings {
    /// The wall clock in milliseconds since the Unix epoch.
    pub now_ms: i64,
    /// What the other machines of this core hold: the bounds are for all of them together.
    pub elsewhere: Usage,
}

/// One thing that happens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    Join(Token, JoinRequest),
    Sync(Token, SyncRequest),
    Heartbeat(Token, HeartbeatRequest),
    Leave(Token, LeaveRequest),
    ConsumerHeartbeat(Token, ConsumerHeartbeatRequest),
    CommitOffsets(Token, CommitRequest),
    DeleteOffsets(Token, OffsetDeleteRequest),
    DeleteGroups(Token, Vec<GroupId>),
    /// These topics are no more: their offsets go too.
    TopicsDeleted(Vec<DeletedTopic>),
    /// The topics are these now. Comes before [`Event::Loaded`] too.
    MetadataChanged(Arc<Topics>),
    /// A computation of [`Step::computations`](super::Step::computations) ended.
    Computed(Computed),
    /// Time to look for offsets and groups that nobody needs; see [`Step::unfinished`](super::Step::unfinished).
    Expire,
    /// The timer ran out as it was armed with this number.
    Fired(Timer, Serial),
    /// The records of this append are committed, and were replayed here.
    Committed(Ticket),
    /// The records of this append may or may not be committed one day. The code is what clients are told: `NOT_COORDINATOR` where the
    /// partition has another leader, else `COORDINATOR_NOT_AVAILABLE`.
    Failed(Ticket, ErrorCode),
    /// Everything committed so far was replayed and this core leads the partition: clients are served from here on.
    Loaded,
    /// This core leads the partition no more.
    Resigned,
}

/// A client that asks to be a member.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct JoinRequest {
    /// Of the API: 4 and above make a new member ask twice, 9 and above know of skipped assignments.
    pub version: i16,
    pub group: GroupId,
    /// Empty at the first join.
    pub member: MemberId,
    /// Of a static member (KIP-345).
    pub instance: Option<Arc<str>>,
    pub client_id: Arc<str>,
    /// As Kafka shows it: a slash and the address.
    pub client_host: Arc<str>,
    /// Such as `consumer`.
    pub protocol_type: Arc<str>,
    /// The preferred first.
    pub protocols: Vec<Protocol>,
    pub session_timeout_ms: i32,
    /// Negative: the session timeout.
    pub rebalance_timeout_ms: i32,
    /// Becomes part of the name of a new member.
    pub random: [u8; 16],
    /// Why it joins (KIP-800), for people.
    pub reason: Option<Arc<str>>,
}

/// A way to assign that a member knows, and what it tells the leader for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Protocol {
    pub name: Arc<str>,
    pub metadata: Bytes,
}

/// A member that asks for its assignment, or the leader that brings all of them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SyncRequest {
    pub group: GroupId,
    pub generation: i32,
    pub member: MemberId,
    pub instance: Option<Arc<str>>,
    pub protocol_type: Option<Arc<str>>,
    pub protocol_name: Option<Arc<str>>,
    pub assignments: Vec<(MemberId, Bytes)>,
}

/// A member that is alive.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct HeartbeatRequest {
    pub group: GroupId,
    pub generation: i32,
    pub member: MemberId,
    pub instance: Option<Arc<str>>,
}

/// Members that leave, or are made to leave.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LeaveRequest {
    pub group: GroupId,
    pub members: Vec<Leaver>,
}

/// One of them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Leaver {
    /// Empty with an instance id: whoever holds it.
    pub member: MemberId,
    pub instance: Option<Arc<str>>,
    /// Why it leaves (KIP-800), for people.
    pub reason: Option<Arc<str>>,
}

/// Offsets to keep.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CommitRequest {
    /// Of the API: 9 and above know of groups that do not exist.
    pub version: i16,
    pub group: GroupId,
    /// -1: not of a member.
    pub generation: i32,
    pub member: MemberId,
    pub instance: Option<Arc<str>>,
    /// How long the offsets are kept, in milliseconds; `None`: by the broker's setting.
    pub retention_ms: Option<i64>,
    /// Topics that the caller knows to exist, by name; a topic may be there twice.
    pub topics: Vec<CommitTopic>,
}

/// Offsets of one topic to keep.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CommitTopic {
    pub name: Arc<str>,
    /// [`TopicId::ZERO`] where it is not known.
    pub id: TopicId,
    pub partitions: Vec<CommitPartition>,
}

/// One offset to keep.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CommitPartition {
    pub index: i32,
    /// The offset of the next record to consume.
    pub offset: i64,
    /// Of the last consumed record; -1: unknown.
    pub leader_epoch: i32,
    pub metadata: Option<Arc<str>>,
}

/// Offsets to forget.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct OffsetDeleteRequest {
    pub group: GroupId,
    pub topics: Vec<(Arc<str>, Vec<i32>)>,
}

/// A topic that is no more.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeletedTopic {
    pub name: Arc<str>,
    pub id: TopicId,
}

impl JoinRequest {
    /// How long others wait for this member to join again, in milliseconds.
    pub(super) fn rebalance_timeout_or_session_ms(&self) -> i32 {
        if self.rebalance_timeout_ms < 0 { self.session_timeout_ms } else { self.rebalance_timeout_ms }
    }

    /// Bytes of names and metadata in its protocols.
    pub(super) fn protocol_bytes(&self) -> usize {
        self.protocols.iter().map(|protocol| protocol.name.len() + protocol.metadata.len()).sum()
    }
}
