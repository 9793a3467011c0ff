//! Names and positions of consensus: terms, replicas, tickets, moments. Owns no behaviour beyond comparing and stepping them.

use std::fmt;

use ringlog_protocol::ids::{LeaderEpoch, NodeId};

/// A Raft term. Cluster view, one sequence per group.
///
/// It is also the Kafka leader epoch of everything written in it, so it stays within `0..=i32::MAX`. Term 0 is the time
/// before the first election: nothing is ever written in it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Term(pub u32);

impl Term {
    /// Before the first election.
    pub const ZERO: Term = Term(0);
    /// The last term a group may reach: it must fit a Kafka leader epoch.
    pub const MAX: Term = Term(i32::MAX as u32);

    /// The term after this one, or `None` after [`Term::MAX`]. At one election a second that is 68 years.
    pub fn next(self) -> Option<Term> {
        (self < Term::MAX).then_some(Term(self.0 + 1))
    }

    /// The leader epoch stamped into every batch written in this term.
    pub fn leader_epoch(self) -> LeaderEpoch {
        LeaderEpoch(i32::try_from(self.0).unwrap_or(i32::MAX))
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names one data directory for its whole life: 16 random bytes made when it is formatted.
///
/// A node that lost its disk returns with a new one. Under the old name it could vote twice in one term.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DirectoryId(pub [u8; 16]);

impl fmt::Debug for DirectoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// One replica of a group: a node *and* the directory in which it keeps the log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ReplicaId {
    pub node: NodeId,
    pub directory: DirectoryId,
}

/// Names one [`Persist`](crate::effect::Persist) effect. Tickets of a group count up from 1 and are reported durable in that order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Ticket(pub u64);

/// A point on the caller's monotonic clock, in nanoseconds. Only differences mean something.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Moment(pub u64);

/// Names one round of contact between a leader and its followers. An answer confirms leadership for reads only if it names
/// a round that began after the read arrived (Raft thesis, section 6.4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Round(pub u64);

/// The caller's own name for something it asked for: a barrier, a change. It comes back in the effect that answers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Token(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_its_leader_epoch_and_stops_where_epochs_stop() {
        assert_eq!(Term(7).leader_epoch(), LeaderEpoch(7));
        assert_eq!(Term::ZERO.next(), Some(Term(1)));
        assert_eq!(Term::MAX.leader_epoch(), LeaderEpoch(i32::MAX));
        assert_eq!(Term::MAX.next(), None);
    }
}
