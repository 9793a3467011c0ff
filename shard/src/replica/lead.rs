//! A leader with followers, beside what every leader does: whom it refuses, and who waits for its own disk only.

use std::sync::Arc;

use ringlog_protocol::ids::Offset;
use ringlog_raft::Settings;

use super::{Durability, Replica};
use crate::limits::JOURNAL_BACKLOG_BYTES_REFUSED;
use crate::partition::{AppendError, Carrier, Partition};
use crate::waiters::{CommitFailure, CommitTicket};

impl Replica {
    /// The log is not yet what the group decided.
    pub(crate) fn is_on_its_way(&self) -> bool {
        !self.writes.is_empty() || self.copying.is_some()
    }
}

impl Partition {
    /// Other settings of the group.
    pub(crate) fn configure(&mut self, settings: Arc<Settings>) {
        let Some(replica) = self.replica_mut() else { return };
        replica.copies_min = settings.copies_min;
        self.group.configure(settings);
    }

    /// Whether a proposal is taken now.
    pub(crate) fn may_append(
        &self,
        durability: Durability,
        carrier: &Carrier<'_>,
    ) -> Result<(), AppendError> {
        if self.group.is_handing_over() {
            return Err(AppendError::NotLeader);
        }
        if self.replica().is_some_and(|replica| replica.is_on_its_way() || replica.is_broken) {
            let backlog_bytes = carrier.storage.backlog_bytes();
            let backlog_bytes_max = JOURNAL_BACKLOG_BYTES_REFUSED;
            return Err(AppendError::Backlogged { backlog_bytes, backlog_bytes_max });
        }
        match self.missing_replicas() {
            Some((in_sync, required)) if durability == Durability::Quorum => {
                Err(AppendError::NotEnoughReplicas { in_sync, required })
            }
            _ => Ok(()),
        }
    }

    /// Takes the ticket of a producer that waits for this replica's disk only.
    pub(crate) fn wait_for_leader_only(
        &mut self,
        end: Offset,
        ticket: Option<CommitTicket>,
        durability: Durability,
    ) -> Option<CommitTicket> {
        if durability == Durability::Quorum {
            return ticket;
        }
        let durable_end = self.group.durable_end();
        // Alone, durable is committed.
        let Some(replica) = self.replica_mut() else { return ticket };
        match ticket {
            Some(ticket) if end <= durable_end => ticket.committed(),
            Some(ticket) => replica.leader_acks.wait_until(end, ticket),
            None => {}
        }
        None
    }

    pub(crate) fn note_durable(&mut self, sequence: u64) {
        let Some(replica) = self.replica_mut() else { return };
        if sequence > replica.durable_sequence && sequence != u64::MAX {
            replica.durable_sequence = sequence;
            if let Some(copying) = &replica.copying {
                copying.note_durable(sequence);
            }
        }
    }

    /// Producers that wait for this replica's disk only.
    pub(crate) fn resolve_leader_acks(&mut self) {
        let durable_end = self.group.durable_end();
        if let Some(replica) = self.replica_mut() {
            replica.leader_acks.commit(durable_end);
        }
    }

    /// True once in each term that it leads: records of earlier leaders became visible, whose bytes nobody counted.
    pub(crate) fn settles_now(&mut self) -> bool {
        let is_settled = self.group.is_settled();
        let Some(replica) = self.replica_mut() else { return false };
        is_settled && !std::mem::replace(&mut replica.was_settled, is_settled)
    }

    pub(crate) fn lead_no_more(&mut self, failure: CommitFailure) {
        if let Some(replica) = self.replica_mut() {
            replica.leader_acks.fail_all(failure);
            replica.reads.clear();
            replica.was_settled = false;
        }
    }

    /// Nothing becomes durable here any more.
    pub(crate) fn end_replica(&mut self, failure: CommitFailure) {
        self.lead_no_more(failure);
        if let Some(replica) = self.replica_mut() {
            replica.writes.clear();
            if let Some(copying) = replica.copying.take() {
                copying.end();
            }
        }
    }
}
