//! What the machine wants done: records appended, requests answered, timers armed. The caller does it in this order of fields.

use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::TopicId;

use super::consumer::{Computation, ConsumerHeartbeatReply};
use super::event::{Event, GroupId, MemberId, Serial, Ticket, Timer, Token};
use super::timeline::{Rebalance, Settled};

/// What one event comes to.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Step {
    /// In order, each as one batch, all or none. The caller may have several under way; they must be committed in this order.
    pub appends: Vec<Append>,
    /// These wait for nothing.
    pub answers: Vec<Answer>,
    pub timers: Vec<TimerChange>,
    /// To be carried out off the core, in any order; what each comes to is told in [`Event::Computed`].
    pub computations: Vec<Computation>,
    /// There is more to expire: the same event again soon, so that others get their turn between.
    pub unfinished: bool,
    /// That ended, for people.
    pub rebalances: Vec<(GroupId, Rebalance)>,
    /// Of rebalances that ended, with this step or earlier ones.
    pub settled: Vec<(GroupId, Settled)>,
}

/// Records for the partition of `__consumer_offsets`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Append {
    pub ticket: Ticket,
    pub records: Vec<KeyedRecord>,
}

/// A record as it lies in the log, in Kafka's format.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyedRecord {
    pub key: Bytes,
    /// `None`: a tombstone.
    pub value: Option<Bytes>,
}

/// An answer to the request that came in with this token. Every token is answered exactly once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    pub token: Token,
    pub reply: Reply,
}

/// A change of the caller's timers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TimerChange {
    /// Runs out after so many milliseconds; takes the place of an earlier one of this name.
    Arm {
        timer: Timer,
        serial: Serial,
        after_ms: u64,
    },
    Cancel(Timer),
    CancelAll,
}

/// The answer, of the same kind as the request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    Join(JoinReply),
    Sync(SyncReply),
    Heartbeat(ErrorCode),
    Leave(LeaveReply),
    ConsumerHeartbeat(ConsumerHeartbeatReply),
    CommitOffsets(CommitReply),
    DeleteOffsets(OffsetDeleteReply),
    DeleteGroups(Vec<DeletedGroup>),
}

/// Where a member stands after a join.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinReply {
    pub error: ErrorCode,
    /// For the log: what exactly was wrong. The API has no field for it.
    pub message: Option<String>,
    /// -1 with an error.
    pub generation: i32,
    pub protocol_type: Option<Arc<str>>,
    pub protocol_name: Option<Arc<str>>,
    pub leader: MemberId,
    /// The leader keeps the assignment it has (KIP-814).
    pub skip_assignment: bool,
    pub member: MemberId,
    /// For the leader only.
    pub members: Vec<JoinedMember>,
}

/// What the leader is told of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinedMember {
    pub member: MemberId,
    pub instance: Option<Arc<str>>,
    pub metadata: Bytes,
}

/// A member's assignment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SyncReply {
    pub error: ErrorCode,
    /// For the log: what exactly was wrong. The API has no field for it.
    pub message: Option<String>,
    pub protocol_type: Option<Arc<str>>,
    pub protocol_name: Option<Arc<str>>,
    pub assignment: Bytes,
}

/// Who left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaveReply {
    /// Of the whole request.
    pub error: ErrorCode,
    /// In the order of the request.
    pub members: Vec<LeftMember>,
}

/// One of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeftMember {
    pub member: MemberId,
    pub instance: Option<Arc<str>>,
    pub error: ErrorCode,
}

/// What became of each offset, in the order of the request.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CommitReply {
    /// For the log, where something was refused.
    pub message: Option<String>,
    pub topics: Vec<CommittedTopic>,
}

/// The offsets of one topic.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CommittedTopic {
    pub name: Arc<str>,
    pub id: TopicId,
    pub partitions: Vec<(i32, ErrorCode)>,
}

/// What became of offsets to forget, in the order of the request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OffsetDeleteReply {
    /// Of the whole request; `topics` is then empty.
    pub error: ErrorCode,
    pub topics: Vec<ForgottenOffsets>,
}

/// The offsets of one topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForgottenOffsets {
    pub topic: Arc<str>,
    pub partitions: Vec<(i32, ErrorCode)>,
}

/// What became of a group to delete.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeletedGroup {
    pub group: GroupId,
    pub error: ErrorCode,
    pub message: Option<String>,
}

impl JoinReply {
    /// A refusal that tells the member this name of itself.
    pub(super) fn refused(error: ErrorCode, member: &MemberId) -> JoinReply {
        JoinReply {
            error,
            message: None,
            generation: -1,
            protocol_type: None,
            protocol_name: None,
            leader: Arc::from(""),
            skip_assignment: false,
            member: Arc::clone(member),
            members: Vec::new(),
        }
    }

    pub(super) fn because(self, message: impl Into<String>) -> JoinReply {
        JoinReply { message: Some(message.into()), ..self }
    }
}

impl SyncReply {
    pub(super) fn refused(error: ErrorCode) -> SyncReply {
        SyncReply { error, message: None, protocol_type: None, protocol_name: None, assignment: Bytes::new() }
    }
}

impl LeaveReply {
    /// What API versions below 3 say of the one member that they can name.
    pub fn single_error(&self) -> ErrorCode {
        match (self.error, self.members.first()) {
            (ErrorCode::None, Some(member)) => member.error,
            (error, _) => error,
        }
    }
}

impl Reply {
    /// The answer where the records behind this one may not be in the log. What was refused already stays refused for its own reason.
    pub(super) fn failed(self, error: ErrorCode) -> Reply {
        let worse = |own: ErrorCode| if own == ErrorCode::None { error } else { own };
        match self {
            Reply::Join(reply) => Reply::Join(JoinReply::refused(error, &reply.member)),
            Reply::Sync(_) => Reply::Sync(SyncReply::refused(error)),
            Reply::Heartbeat(own) => Reply::Heartbeat(worse(own)),
            Reply::Leave(_) => Reply::Leave(LeaveReply { error, members: Vec::new() }),
            Reply::ConsumerHeartbeat(_) => Reply::ConsumerHeartbeat(ConsumerHeartbeatReply::refused(error)),
            Reply::CommitOffsets(mut reply) => {
                let topics = reply.topics.iter_mut();
                topics
                    .flat_map(|topic| &mut topic.partitions)
                    .for_each(|partition| partition.1 = worse(partition.1));
                Reply::CommitOffsets(reply)
            }
            Reply::DeleteOffsets(_) => Reply::DeleteOffsets(OffsetDeleteReply { error, topics: Vec::new() }),
            Reply::DeleteGroups(mut groups) => {
                groups.iter_mut().for_each(|group| group.error = worse(group.error));
                Reply::DeleteGroups(groups)
            }
        }
    }
}

impl Event {
    /// The answer to it where this core does not serve the partition; `None` for what is no request.
    pub(super) fn refused(self, error: ErrorCode) -> Option<Answer> {
        let (token, reply) = match self {
            Event::Join(token, request) => (token, Reply::Join(JoinReply::refused(error, &request.member))),
            Event::Sync(token, _) => (token, Reply::Sync(SyncReply::refused(error))),
            Event::Heartbeat(token, _) => {
                // The member is alive, and is told no more while the group is read.
                let loading = error == ErrorCode::CoordinatorLoadInProgress;
                (token, Reply::Heartbeat(if loading { ErrorCode::None } else { error }))
            }
            Event::Leave(token, _) => (token, Reply::Leave(LeaveReply { error, members: Vec::new() })),
            Event::ConsumerHeartbeat(token, _) => {
                (token, Reply::ConsumerHeartbeat(ConsumerHeartbeatReply::refused(error)))
            }
            Event::CommitOffsets(token, request) => {
                (token, Reply::CommitOffsets(CommitReply::all(&request.topics, error)))
            }
            Event::DeleteOffsets(token, _) => {
                (token, Reply::DeleteOffsets(OffsetDeleteReply { error, topics: Vec::new() }))
            }
            Event::DeleteGroups(token, groups) => {
                let refused = |group| DeletedGroup { group, error, message: None };
                (token, Reply::DeleteGroups(groups.into_iter().map(refused).collect()))
            }
            Event::TopicsDeleted(_)
            | Event::MetadataChanged(_)
            | Event::Computed(_)
            | Event::Expire
            | Event::Fired(..)
            | Event::Committed(_)
            | Event::Failed(..)
            | Event::Loaded
            | Event::Resigned => return None,
        };
        Some(Answer { token, reply })
    }
}

impl CommitReply {
    /// The same error for every partition.
    pub(super) fn all(topics: &[super::event::CommitTopic], error: ErrorCode) -> CommitReply {
        let topics = topics.iter().map(|topic| CommittedTopic {
            name: Arc::clone(&topic.name),
            id: topic.id,
            partitions: topic.partitions.iter().map(|partition| (partition.index, error)).collect(),
        });
        CommitReply { message: None, topics: topics.collect() }
    }

    pub(super) fn because(self, message: impl Into<String>) -> CommitReply {
        CommitReply { message: Some(message.into()), ..self }
    }
}
