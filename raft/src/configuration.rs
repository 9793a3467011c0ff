//! Who takes part in a group. Owns the membership value and its bounds; never decides when it may change.

use ringlog_protocol::ids::Offset;

use crate::ids::ReplicaId;

/// Most voters of a group. Five survive two losses; seven leaves room to replace two of them. It also bounds what a stranger
/// can make us allocate when a configuration is decoded.
pub const VOTERS_MAX: usize = 7;
/// Most learners of a group: as many as voters, so that each voter can be replaced at once, one promotion at a time.
pub const LEARNERS_MAX: usize = 7;

/// One membership of a group, logless: it lies beside the log, not in it, because an entry would take a Kafka offset.
///
/// A follower adopts it only once its log is this term's and reaches `position`. The next one may be made only after a
/// majority holds this one in the present term.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Configuration {
    /// Counts up by one with each change. Compared in elections after the log term and before the log end.
    pub version: u64,
    /// Where the maker's log ended when it made this configuration: `0 <= position <= log end` of every replica that adopted it.
    pub position: Offset,
    /// Replicas that vote and count for commit: sorted, distinct, 1 to [`VOTERS_MAX`].
    pub voters: Vec<ReplicaId>,
    /// Replicas that receive the log but are not counted: sorted, distinct, no voter among them, at most [`LEARNERS_MAX`].
    pub learners: Vec<ReplicaId>,
}

/// Why a membership is not one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigurationError {
    #[error(
        "a configuration of {voters} voters and {learners} learners is outside 1..={VOTERS_MAX} and 0..={LEARNERS_MAX}"
    )]
    Size { voters: usize, learners: usize },
    #[error("a configuration names replica {replica:?} twice or out of order")]
    NotSorted { replica: ReplicaId },
    #[error("a configuration names replica {replica:?} both as voter and as learner")]
    VoterAndLearner { replica: ReplicaId },
    #[error("a configuration's position {position:?} is negative")]
    NegativePosition { position: Offset },
}

impl Configuration {
    /// The first configuration of a group that begins on one replica.
    pub fn alone(replica: ReplicaId) -> Configuration {
        Configuration { version: 1, position: Offset(0), voters: vec![replica], learners: Vec::new() }
    }

    /// True for a voter.
    pub fn is_voter(&self, replica: ReplicaId) -> bool {
        self.voters.contains(&replica)
    }

    /// True for a voter or a learner.
    pub fn is_member(&self, replica: ReplicaId) -> bool {
        self.is_voter(replica) || self.learners.contains(&replica)
    }

    /// The configuration one step on, made where the log ends at `position`; `None` where the change does not fit this one.
    pub fn changed(&self, change: Change, position: Offset) -> Option<Configuration> {
        let mut next = Configuration { version: self.version.checked_add(1)?, position, ..self.clone() };
        let done = match change {
            Change::AddLearner(replica) => !self.is_member(replica) && insert(&mut next.learners, replica),
            Change::Promote(replica) => {
                remove(&mut next.learners, replica) && insert(&mut next.voters, replica)
            }
            Change::Demote(replica) => {
                remove(&mut next.voters, replica) && insert(&mut next.learners, replica)
            }
            Change::Remove(replica) => {
                remove(&mut next.learners, replica) || remove(&mut next.voters, replica)
            }
        };
        (done && next.validate().is_ok()).then_some(next)
    }

    /// Checks the bounds named on the fields.
    pub fn validate(&self) -> Result<(), ConfigurationError> {
        let (voters, learners) = (self.voters.len(), self.learners.len());
        if voters == 0 || voters > VOTERS_MAX || learners > LEARNERS_MAX {
            return Err(ConfigurationError::Size { voters, learners });
        }
        if self.position.0 < 0 {
            return Err(ConfigurationError::NegativePosition { position: self.position });
        }
        for list in [&self.voters, &self.learners] {
            if let Some(pair) = list.windows(2).find(|pair| pair[0] >= pair[1]) {
                return Err(ConfigurationError::NotSorted { replica: pair[1] });
            }
        }
        match self.learners.iter().find(|learner| self.is_voter(**learner)) {
            Some(&replica) => Err(ConfigurationError::VoterAndLearner { replica }),
            None => Ok(()),
        }
    }
}

fn insert(list: &mut Vec<ReplicaId>, replica: ReplicaId) -> bool {
    let place = list.binary_search(&replica);
    if let Err(place) = place {
        list.insert(place, replica);
    }
    place.is_err()
}

fn remove(list: &mut Vec<ReplicaId>, replica: ReplicaId) -> bool {
    let place = list.iter().position(|member| *member == replica);
    if let Some(place) = place {
        list.remove(place);
    }
    place.is_some()
}

/// One step from a configuration to the next. Only one voter changes at a time, so that old and new majorities intersect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A replica begins to receive the log.
    AddLearner(ReplicaId),
    /// A learner that reached the high watermark of this term becomes a voter.
    Promote(ReplicaId),
    /// A voter becomes a learner, for instance before its node is drained.
    Demote(ReplicaId),
    /// A voter or learner leaves.
    Remove(ReplicaId),
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::ids::NodeId;

    use super::*;
    use crate::ids::DirectoryId;

    fn replica(node: i32) -> ReplicaId {
        ReplicaId { node: NodeId(node), directory: DirectoryId([node as u8; 16]) }
    }

    fn configuration(voters: &[i32], learners: &[i32]) -> Configuration {
        Configuration {
            version: 1,
            position: Offset(0),
            voters: voters.iter().copied().map(replica).collect(),
            learners: learners.iter().copied().map(replica).collect(),
        }
    }

    #[test]
    fn a_membership_is_sorted_distinct_and_bounded() {
        assert_eq!(Configuration::alone(replica(1)).validate(), Ok(()));
        assert_eq!(configuration(&[1, 2, 3], &[4]).validate(), Ok(()));
        assert_eq!(
            configuration(&[], &[]).validate(),
            Err(ConfigurationError::Size { voters: 0, learners: 0 })
        );
        let eight = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(
            configuration(&eight, &[]).validate(),
            Err(ConfigurationError::Size { voters: 8, learners: 0 })
        );
        assert_eq!(
            configuration(&[2, 1], &[]).validate(),
            Err(ConfigurationError::NotSorted { replica: replica(1) })
        );
        assert_eq!(
            configuration(&[1, 1], &[]).validate(),
            Err(ConfigurationError::NotSorted { replica: replica(1) })
        );
        assert_eq!(configuration(&[1, 2], &[3]).changed(Change::AddLearner(replica(3)), Offset(9)), None);
        let both = ConfigurationError::VoterAndLearner { replica: replica(2) };
        assert_eq!(configuration(&[1, 2], &[2]).validate(), Err(both));
    }

    #[test]
    fn a_change_moves_one_replica_and_counts_the_version_up() {
        let check = |before: (&[i32], &[i32]), change, after: Option<(&[i32], &[i32])>| {
            let found = configuration(before.0, before.1).changed(change, Offset(9));
            let expected = after.map(|(voters, learners)| Configuration {
                version: 2,
                position: Offset(9),
                ..configuration(voters, learners)
            });
            assert_eq!(found, expected, "{before:?} {change:?}");
        };
        check((&[1, 3], &[]), Change::AddLearner(replica(2)), Some((&[1, 3], &[2])));
        check((&[1, 3], &[]), Change::AddLearner(replica(3)), None);
        check((&[1, 3], &[2]), Change::Promote(replica(2)), Some((&[1, 2, 3], &[])));
        check((&[1, 3], &[2]), Change::Promote(replica(1)), None);
        check((&[1, 2, 3], &[]), Change::Demote(replica(2)), Some((&[1, 3], &[2])));
        check((&[1, 2, 3], &[]), Change::Remove(replica(3)), Some((&[1, 2], &[])));
        check((&[1], &[]), Change::Remove(replica(1)), None);
        check((&[1], &[]), Change::Demote(replica(1)), None);
        check((&[1], &[]), Change::Remove(replica(5)), None);
        let seven = &[1, 2, 3, 4, 5, 6, 7];
        check((seven, &[8]), Change::Promote(replica(8)), None);
    }
}
