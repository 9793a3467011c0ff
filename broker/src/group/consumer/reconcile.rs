//! How one member comes from what it has to what it is to have, step by step. Pure: a member, its target and what is free come to where
//! it stands next. A partition is never given to a member while another has it or is still giving it up.

use ringlog_protocol::ids::TopicPartition;

use super::state::{Current, Owned, Standing};

/// What a member is led to.
pub(super) struct Goal<'a> {
    /// Of the target assignment.
    pub epoch: i32,
    /// In order.
    pub target: &'a [TopicPartition],
    /// Its topics are others than before: it must give up what it does not want any more, even within its epoch.
    pub wishes_changed: bool,
}

/// What a member says it has.
pub(super) enum Claim<'a> {
    /// Nothing is known: partitions that it was asked to give up are still with it.
    Unknown,
    /// In order. It counts for what it was asked to give up, and for nothing else: this may be the copy of an earlier request, from
    /// before it was given what it has now.
    Heartbeat(&'a [TopicPartition]),
    /// In order. It counts for all that the member had.
    Join(&'a [TopicPartition]),
}

/// It is not known where the member stands: it must begin anew, without partitions.
#[derive(Debug)]
pub(super) struct Lost;

/// Where the member stands next; `None`: where it stands.
///
/// # Errors
/// [`Lost`].
pub(super) fn next(
    now: &Current,
    goal: &Goal<'_>,
    claim: &Claim<'_>,
    is_free: impl Fn(TopicPartition) -> bool,
) -> Result<Option<Current>, Lost> {
    if goal.epoch < now.epoch {
        // The assignment that led it here was lost; another one of a later epoch comes.
        return Ok(None);
    }
    let epoch = match now.standing {
        Standing::Stable if now.epoch == goal.epoch && !goal.wishes_changed => return Ok(None),
        Standing::Stable | Standing::Unreleased => now.epoch,
        Standing::Unrevoked => match claim {
            Claim::Heartbeat(owned) | Claim::Join(owned) if !has_any(owned, &now.revoking) => {
                // It gave up what was asked of it, so it is one step further, and looks again at its target.
                now.epoch.saturating_add(1).min(goal.epoch)
            }
            _ if goal.wishes_changed => return Ok(give_up_more(now, goal.target)),
            _ => return Ok(None),
        },
        Standing::Unknown => match claim {
            Claim::Heartbeat([]) | Claim::Join([]) => goal.epoch,
            _ => return Err(Lost),
        },
    };
    let next = step(now, epoch, goal, claim, is_free);
    Ok(Some(next).filter(|next| next != now))
}

fn step(
    now: &Current,
    epoch: i32,
    goal: &Goal<'_>,
    claim: &Claim<'_>,
    is_free: impl Fn(TopicPartition) -> bool,
) -> Current {
    let is_target = |at: &TopicPartition| goal.target.binary_search(at).is_ok();
    let (mut kept, revoking): (Vec<Owned>, Vec<Owned>) =
        now.assigned.iter().copied().partition(|owned| is_target(&owned.at));
    let holds_on = match claim {
        Claim::Join(owned) => has_any(owned, &revoking),
        Claim::Unknown | Claim::Heartbeat(_) => true,
    };
    if !revoking.is_empty() && holds_on {
        return Current {
            standing: Standing::Unrevoked,
            assigned: kept.into(),
            revoking: revoking.into(),
            ..in_epoch(now, epoch)
        };
    }
    let missing = goal.target.iter().filter(|at| kept.binary_search_by_key(at, |owned| &owned.at).is_err());
    let (free, held): (Vec<TopicPartition>, Vec<TopicPartition>) =
        missing.copied().partition(|at| is_free(*at));
    kept.extend(free.into_iter().map(|at| Owned { at, since: goal.epoch }));
    kept.sort_unstable();
    Current {
        standing: if held.is_empty() { Standing::Stable } else { Standing::Unreleased },
        assigned: kept.into(),
        revoking: [].into(),
        ..in_epoch(now, goal.epoch)
    }
}

/// One that gives partitions up already is asked for those that it does not want any more.
fn give_up_more(now: &Current, target: &[TopicPartition]) -> Option<Current> {
    let (kept, more): (Vec<Owned>, Vec<Owned>) =
        now.assigned.iter().copied().partition(|owned| target.binary_search(&owned.at).is_ok());
    if more.is_empty() {
        return None;
    }
    let mut revoking: Vec<Owned> = now.revoking.iter().copied().chain(more).collect();
    revoking.sort_unstable();
    Some(Current { assigned: kept.into(), revoking: revoking.into(), ..now.clone() })
}

/// Within an epoch the one before stays known: the member may have missed more than one answer.
fn in_epoch(now: &Current, epoch: i32) -> Current {
    let previous_epoch = if epoch == now.epoch { now.previous_epoch } else { now.epoch };
    Current { epoch, previous_epoch, ..now.clone() }
}

fn has_any(owned: &[TopicPartition], revoking: &[Owned]) -> bool {
    revoking.iter().any(|revoking| owned.binary_search(&revoking.at).is_ok())
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::ids::{PartitionIndex, TopicId};

    use super::*;

    fn at(partition: i32) -> TopicPartition {
        TopicPartition { topic: TopicId([1; 16]), partition: PartitionIndex(partition) }
    }

    fn some(partitions: &[i32]) -> Vec<TopicPartition> {
        partitions.iter().map(|partition| at(*partition)).collect()
    }

    fn stable(epoch: i32, partitions: &[i32]) -> Current {
        let assigned = partitions.iter().map(|partition| Owned { at: at(*partition), since: epoch });
        Current { epoch, previous_epoch: epoch - 1, assigned: assigned.collect(), ..Current::default() }
    }

    fn led(now: &Current, epoch: i32, target: &[i32], claim: &Claim<'_>, held: &[i32]) -> Option<Current> {
        let target = some(target);
        let goal = Goal { epoch, target: &target, wishes_changed: false };
        next(now, &goal, claim, |at| !held.contains(&at.partition.0)).expect("known")
    }

    fn numbers(owned: &[Owned]) -> Vec<i32> {
        owned.iter().map(|owned| owned.at.partition.0).collect()
    }

    #[test]
    fn a_member_in_the_epoch_of_its_target_stays_as_it_is() {
        assert_eq!(led(&stable(3, &[0, 1]), 3, &[5], &Claim::Unknown, &[]), None);
    }

    #[test]
    fn a_member_ahead_of_an_assignment_waits_for_a_later_one() {
        let claim = Claim::Heartbeat(&[]);
        assert_eq!(led(&stable(5, &[0, 1]), 4, &[2], &claim, &[]), None);
        let lost = Current { standing: Standing::Unknown, ..stable(5, &[]) };
        assert_eq!(led(&lost, 4, &[2], &claim, &[]), None);
    }

    #[test]
    fn what_is_free_is_given_at_once_and_the_rest_once_it_is_let_go() {
        let begun = led(&Current::default(), 1, &[0, 1], &Claim::Unknown, &[1]).expect("led on");
        assert_eq!((begun.epoch, begun.previous_epoch, begun.standing), (1, 0, Standing::Unreleased));
        assert_eq!(numbers(&begun.assigned), [0]);
        assert_eq!(led(&begun, 1, &[0, 1], &Claim::Unknown, &[1]), None);
        let done = led(&begun, 1, &[0, 1], &Claim::Unknown, &[]).expect("led on");
        assert_eq!((done.epoch, done.previous_epoch, done.standing), (1, 0, Standing::Stable));
        assert_eq!(numbers(&done.assigned), [0, 1]);
    }

    #[test]
    fn a_member_stays_in_its_epoch_until_it_gave_up_what_it_must() {
        let asked =
            led(&stable(3, &[0, 1]), 4, &[0, 2], &Claim::Heartbeat(&some(&[0])), &[]).expect("led on");
        assert_eq!((asked.epoch, asked.standing), (3, Standing::Unrevoked));
        assert_eq!((numbers(&asked.assigned), numbers(&asked.revoking)), (vec![0], vec![1]));
        for claim in [Claim::Unknown, Claim::Heartbeat(&some(&[0, 1])), Claim::Join(&some(&[1]))] {
            assert_eq!(led(&asked, 4, &[0, 2], &claim, &[]), None);
        }
        let done = led(&asked, 4, &[0, 2], &Claim::Heartbeat(&some(&[0])), &[]).expect("led on");
        assert_eq!((done.epoch, done.previous_epoch, done.standing), (4, 3, Standing::Stable));
        assert_eq!(numbers(&done.assigned), [0, 2]);
        assert_eq!(done.assigned.iter().map(|owned| owned.since).collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn a_member_that_gave_up_what_it_must_may_be_asked_for_more() {
        let asked = led(&stable(3, &[0, 1, 2]), 4, &[0, 1], &Claim::Unknown, &[]).expect("led on");
        let again = led(&asked, 6, &[0], &Claim::Heartbeat(&some(&[0, 1])), &[]).expect("led on");
        assert_eq!((again.epoch, again.previous_epoch, again.standing), (4, 3, Standing::Unrevoked));
        assert_eq!((numbers(&again.assigned), numbers(&again.revoking)), (vec![0], vec![1]));
    }

    #[test]
    fn one_that_joins_again_without_partitions_needs_not_be_asked() {
        let done = led(&stable(3, &[0, 1]), 4, &[0], &Claim::Join(&[]), &[]).expect("led on");
        assert_eq!((done.epoch, done.standing), (4, Standing::Stable));
    }

    #[test]
    fn one_that_wants_other_topics_gives_up_the_old_ones_within_its_epoch() {
        let target = some(&[0]);
        let goal = Goal { epoch: 3, target: &target, wishes_changed: true };
        let asked =
            next(&stable(3, &[0, 1]), &goal, &Claim::Unknown, |_| true).expect("known").expect("led on");
        assert_eq!((asked.epoch, asked.standing), (3, Standing::Unrevoked));
        let goal = Goal { wishes_changed: false, ..goal };
        let done =
            next(&asked, &goal, &Claim::Heartbeat(&some(&[0])), |_| true).expect("known").expect("led on");
        assert_eq!((done.epoch, done.previous_epoch, done.standing), (3, 2, Standing::Stable));
    }

    #[test]
    fn one_that_gives_up_already_is_asked_for_what_it_does_not_want_any_more() {
        let asked = led(&stable(3, &[0, 1, 2]), 4, &[0, 1], &Claim::Unknown, &[]).expect("led on");
        let goal = Goal { epoch: 4, target: &some(&[1]), wishes_changed: true };
        let more = next(&asked, &goal, &Claim::Unknown, |_| true).expect("known").expect("led on");
        assert_eq!((more.epoch, more.standing), (3, Standing::Unrevoked));
        assert_eq!((numbers(&more.assigned), numbers(&more.revoking)), (vec![1], vec![0, 2]));
        assert!(next(&more, &goal, &Claim::Unknown, |_| true).expect("known").is_none());
    }

    #[test]
    fn a_member_of_which_nothing_is_known_begins_without_partitions() {
        let lost = Current { standing: Standing::Unknown, ..stable(3, &[]) };
        let goal = Goal { epoch: 7, target: &some(&[0]), wishes_changed: false };
        assert!(next(&lost, &goal, &Claim::Unknown, |_| true).is_err());
        assert!(next(&lost, &goal, &Claim::Heartbeat(&some(&[3])), |_| true).is_err());
        let begun = next(&lost, &goal, &Claim::Heartbeat(&[]), |_| true).expect("known").expect("led on");
        assert_eq!((begun.epoch, numbers(&begun.assigned)), (7, vec![0]));
    }
}
