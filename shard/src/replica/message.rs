//! What replicas say to each other, as values. Encoding and transport are somebody else's.

use bytes::Bytes;
use ringlog_protocol::ids::{Offset, TopicPartition};
use ringlog_raft::ids::ReplicaId;
use ringlog_raft::message::Message;

/// Something to be sent to another node. It may get lost, come late, twice or in another order.
#[derive(Debug, Clone)]
pub struct Outgoing {
    pub key: TopicPartition,
    pub message: PeerMessage,
    /// Whole batches that travel beside it, in order; the receiver gets them as one run.
    pub records: Vec<Bytes>,
}

/// What one replica says to another one of the same partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerMessage {
    /// Of the group. Records travel beside an append only.
    Raft(Message),
    CopyRequest(CopyRequest),
    /// Records travel beside it where there are some.
    CopyAnswer(CopyAnswer),
}

/// Asks for committed batches of a log that is being copied. One is on its way at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyRequest {
    pub from: ReplicaId,
    pub to: ReplicaId,
    /// Comes back in the answer.
    pub number: u64,
    /// From the batch that holds this offset on.
    pub position: Offset,
    /// Exclusive: where the copy ends.
    pub log_end: Offset,
    /// Most bytes of the answer; one batch comes also if it is larger.
    pub bytes_max: u32,
}

/// Answers a [`CopyRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyAnswer {
    pub from: ReplicaId,
    pub to: ReplicaId,
    pub number: u64,
    pub outcome: CopyOutcome,
}

/// What came of a [`CopyRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyOutcome {
    /// Batches from `base` on, which is at or below the position asked for, up to `next`.
    Records { base: Offset, next: Offset },
    /// Retention or DeleteRecords passed the position: the log begins here now.
    Moved { log_start: Offset },
    /// Not here, or not now.
    Refused,
}

impl PeerMessage {
    pub fn from(&self) -> ReplicaId {
        match self {
            PeerMessage::Raft(message) => message.from,
            PeerMessage::CopyRequest(request) => request.from,
            PeerMessage::CopyAnswer(answer) => answer.from,
        }
    }

    /// To whom: its node is where to send it.
    pub fn to(&self) -> ReplicaId {
        match self {
            PeerMessage::Raft(message) => message.to,
            PeerMessage::CopyRequest(request) => request.to,
            PeerMessage::CopyAnswer(answer) => answer.to,
        }
    }
}

impl From<Message> for PeerMessage {
    fn from(message: Message) -> PeerMessage {
        PeerMessage::Raft(message)
    }
}
