//! Counting: what enough voters hold. Pure arithmetic; knows no roles and no messages.

use crate::configuration::VOTERS_MAX;

/// So many of `voters` are more than half.
pub(crate) fn majority(voters: usize) -> usize {
    voters / 2 + 1
}

/// The commit quorum: `max(majority, min(min.insync.replicas, replicas))`.
pub(crate) fn copies(voters: usize, copies_min: usize) -> usize {
    majority(voters).max(copies_min.min(voters))
}

/// The largest value that at least `copies` of the voters reach, given one value per voter; `None` for a voter that does not
/// count (its log term is not this term's).
///
/// `None` when fewer than `copies` count at all.
pub(crate) fn reached_by<T: Copy + Ord>(copies: usize, values: impl Iterator<Item = Option<T>>) -> Option<T> {
    let mut sorted = [None; VOTERS_MAX];
    let mut voters = 0;
    for value in values {
        *sorted.get_mut(voters).expect("a configuration has at most VOTERS_MAX voters") = value;
        voters += 1;
    }
    let sorted = sorted.get_mut(..voters)?;
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    sorted.get(copies.checked_sub(1)?).copied().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(values: &[Option<i64>], expected: Option<i64>) {
        let found = reached_by(majority(values.len()), values.iter().copied());
        assert_eq!(found, expected, "{values:?}");
    }

    #[test]
    fn a_majority_holds_the_middle_end() {
        check(&[], None);
        check(&[Some(7)], Some(7));
        check(&[None], None);
        check(&[Some(7), Some(9)], Some(7));
        check(&[Some(7), None], None);
        check(&[Some(1), Some(9), Some(5)], Some(5));
        check(&[Some(9), None, Some(5)], Some(5));
        check(&[Some(9), None, None], None);
        check(&[Some(4), Some(3), Some(2), Some(1)], Some(2));
        check(&[Some(5), Some(4), Some(3), Some(2), Some(1)], Some(3));
    }

    #[test]
    fn the_commit_quorum_is_a_majority_or_what_the_topic_asks_for_or_everybody() {
        assert_eq!(copies(1, 2), 1);
        assert_eq!(copies(3, 1), 2);
        assert_eq!(copies(3, 3), 3);
        assert_eq!(copies(3, 9), 3);
        assert_eq!(copies(5, 2), 3);
        assert_eq!(copies(2, 0), 2);
    }
}
