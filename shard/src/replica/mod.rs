//! What a partition needs beyond a group of one: whom it talks to, what it reads for them, what it takes from them.
//!
//! Owns the seam to other nodes: [`Outgoing`] leaves by the store's outbox, [`crate::store::Store::receive`] takes what arrives.
//! It knows no socket and no encoding, and decides nothing that the group decides.
//!
//! Reading order: `message` (what replicas say), `verify` (bytes that a peer sent), `feed` (bytes for a peer), `write` (persists, in
//! order behind a truncation), `drive` (messages and effects), `copy` (a whole log), `answers` (requests by token), `status`.

mod answers;
mod copy;
mod drive;
mod feed;
mod lead;
mod message;
mod status;
mod verify;
mod write;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use ringlog_protocol::ids::Offset;
use ringlog_raft::Settings;
use ringlog_raft::configuration::Configuration;
use ringlog_raft::effect::Replicate;

pub(crate) use self::answers::{Answer, Reply, Requests};
pub use self::answers::{Handover, RequestError};
pub(crate) use self::copy::{Copying, copy_log};
pub(crate) use self::feed::piece_bytes;
pub use self::message::{CopyAnswer, CopyOutcome, CopyRequest, Outgoing, PeerMessage};
pub use self::status::{MemberStatus, ReplicaStatus, ReplicationStats};
pub use self::verify::UnverifiedRecords;
pub(crate) use self::verify::VerifiedBatch;
pub(crate) use self::write::{Writes, run_writes};
use crate::storage::{LogId, ReadPlan};
use crate::waiters::UncommittedAppends;

/// How a partition that may have other replicas begins.
#[derive(Debug, Clone)]
pub struct Replication {
    /// Who takes part, where the journal knows no better: version 1 for a founder, 0 for a replica that joins.
    pub configuration: Configuration,
    /// One value for all partitions of a core that have the same.
    pub settings: Arc<Settings>,
}

/// What must be durable before a producer is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// acks=1: on the leader. It may be lost with it, and nobody sees it before it is committed.
    Leader,
    /// acks=all: on the commit quorum.
    Quorum,
}

/// The part of a partition that a group of one does without.
#[derive(Default)]
pub(crate) struct Replica {
    /// Records of the message that is being stepped.
    incoming: VecDeque<VerifiedBatch>,
    /// Reads that the group asked for and that were not begun.
    reads: VecDeque<Replicate>,
    /// Persists that wait for a truncation or for room.
    writes: Writes,
    /// Producers that wait for the leader's disk only.
    leader_acks: UncommittedAppends,
    copying: Option<Rc<Copying>>,
    /// Its watermark was this term's since it leads.
    was_settled: bool,
    /// The newest entry of the log that the journal holds.
    durable_sequence: u64,
    /// See [`Partition::break_down`](crate::partition::Partition).
    is_broken: bool,
    /// Voters that must hold a record, where there are so many.
    copies_min: usize,
}

impl Replica {
    pub(crate) fn new(settings: &Settings) -> Replica {
        Replica { copies_min: settings.copies_min, ..Replica::default() }
    }
}

/// What a partition wants done once nothing of its core is borrowed any more.
#[derive(Default)]
pub(crate) struct Todo {
    pub(crate) outgoing: Vec<Outgoing>,
    pub(crate) work: Vec<Work>,
    pub(crate) answers: Vec<Answer>,
    pub(crate) stats: ReplicationStats,
}

impl Todo {
    pub(crate) fn is_empty(&self) -> bool {
        self.outgoing.is_empty() && self.work.is_empty() && self.answers.is_empty()
    }
}

/// What takes time: a task of its own.
pub(crate) enum Work {
    /// Records that lie in files, for a follower.
    Read { log: LogId, replicate: Replicate, plan: ReadPlan },
    /// Persists that wait.
    Write { log: LogId },
    /// Another replica's log, to be copied here.
    Copy { log: LogId, from: ringlog_raft::ids::ReplicaId, offer: ringlog_raft::message::SnapshotOffer },
    /// Records for another replica that copies this log.
    Serve { log: LogId, request: CopyRequest, plan: ReadPlan },
}

/// Where a leader epoch ends here, as OffsetForLeaderEpoch answers it.
pub type EpochEnd = (ringlog_protocol::ids::LeaderEpoch, Offset);
