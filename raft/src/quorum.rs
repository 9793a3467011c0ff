//! Counting: what a majority of voters holds. Pure arithmetic; knows no roles and no messages.

use ringlog_protocol::ids::Offset;

use crate::configuration::VOTERS_MAX;

/// The largest offset below which a majority of the voters holds everything, given one end per voter; `None` for a voter that
/// does not count (its log term is not this term's).
///
/// `None` when no majority counts at all.
pub(crate) fn majority_end(ends: impl Iterator<Item = Option<Offset>>) -> Option<Offset> {
    let mut sorted = [None; VOTERS_MAX];
    let mut voters = 0;
    for end in ends {
        *sorted.get_mut(voters).expect("a configuration has at most VOTERS_MAX voters") = end;
        voters += 1;
    }
    let sorted = sorted.get_mut(..voters)?;
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    // With n voters, n / 2 + 1 of them hold what the one at place n / 2 holds.
    sorted.get(voters / 2).copied().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ends: &[Option<i64>], expected: Option<i64>) {
        let found = majority_end(ends.iter().map(|end| end.map(Offset)));
        assert_eq!(found, expected.map(Offset), "{ends:?}");
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
}
