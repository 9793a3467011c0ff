//! What operators and other requests may know of a replicated partition. Values only.

use ringlog_protocol::ids::{LeaderEpoch, NodeId, Offset};
use ringlog_raft::configuration::Configuration;
use ringlog_raft::group::Ignored;
use ringlog_raft::ids::ReplicaId;

use crate::partition::Partition;

/// One partition as this replica sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Who leads the present term, as far as it is known.
    pub leader: Option<NodeId>,
    /// The present term.
    pub epoch: LeaderEpoch,
    /// Whether this replica leads and its watermark is this term's: before, a leader asked for its end says OFFSET_NOT_AVAILABLE.
    pub is_settled: bool,
    pub configuration: Configuration,
    pub log_start: Offset,
    pub log_end: Offset,
    pub high_watermark: Offset,
    /// Of a leader: everybody, itself first. Empty elsewhere.
    pub members: Vec<MemberStatus>,
    /// What the group did not obey.
    pub ignored: Ignored,
}

/// A member as its leader sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemberStatus {
    pub replica: ReplicaId,
    pub is_voter: bool,
    /// It held what the log held at most `replica.lag.time.max.ms` ago.
    pub is_in_sync: bool,
    /// One past the last record that it reported durable in this term; -1 where it reported none yet.
    pub log_end: Offset,
}

/// What the replicas of one core did since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplicationStats {
    /// Messages whose records did not check: dropped.
    pub records_unverified: u64,
    /// Messages whose records found no room: taken as if without records.
    pub appends_without_room: u64,
    /// Of partitions that this core does not hold, or from and to replicas that the partition does not know.
    pub strangers: u64,
    /// Pieces of copies that nobody waited for.
    pub late_answers: u64,
    /// Reads for followers that found nothing.
    pub reads_failed: u64,
    /// Bytes of records sent to followers.
    pub bytes_replicated: u64,
    /// Logs copied from others.
    pub copies: u64,
    /// Group and log disagreed. Above 0 it is a defect.
    pub contradictions: u64,
}

impl Partition {
    pub(crate) fn status(&self) -> ReplicaStatus {
        let group = &self.group;
        let in_sync: Vec<ReplicaId> = group.in_sync().collect();
        let member = |(replica, log_end): (ReplicaId, Option<Offset>)| MemberStatus {
            replica,
            is_voter: group.configuration().is_voter(replica),
            is_in_sync: in_sync.contains(&replica),
            log_end: log_end.unwrap_or(Offset(-1)),
        };
        ReplicaStatus {
            leader: group.leader().map(|leader| leader.node),
            epoch: group.leader_epoch(),
            is_settled: group.is_settled(),
            configuration: group.configuration().clone(),
            log_start: group.log_start(),
            log_end: group.log_end(),
            high_watermark: group.high_watermark(),
            members: group.member_ends().map(member).collect(),
            ignored: group.ignored(),
        }
    }

    /// Voters in sync and voters that must be, for a leader with others; `None` where there are enough.
    pub(crate) fn missing_replicas(&self) -> Option<(usize, usize)> {
        let replica = self.replica()?;
        let configuration = self.group.configuration();
        let required = replica.copies_min.min(configuration.voters.len());
        if required <= 1 {
            return None;
        }
        let in_sync = self.group.in_sync().filter(|member| configuration.is_voter(*member)).count();
        (in_sync < required).then_some((in_sync, required))
    }
}
