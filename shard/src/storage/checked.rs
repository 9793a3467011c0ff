//! Which bytes of a segment's file this process has read and found sound, so that each is checked once. Pure.

use std::sync::{Mutex, PoisonError};

use crate::limits::CHECKED_RANGES_PER_SEGMENT;

/// Ranges of positions, shared by all who read the segment.
///
/// Invariant: sorted, disjoint, none touches the next; at most [`CHECKED_RANGES_PER_SEGMENT`]. What is forgotten for that
/// is only checked again.
#[derive(Debug, Default)]
pub(crate) struct CheckedRanges {
    ranges: Mutex<Vec<(u32, u32)>>,
}

impl CheckedRanges {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(u32, u32)>> {
        // A panic ends the process, so nobody ever finds it half changed.
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all of `start..end` was found sound.
    pub(crate) fn covers(&self, start: u32, end: u32) -> bool {
        let ranges = self.lock();
        let after = ranges.partition_point(|range| range.0 <= start);
        after.checked_sub(1).and_then(|at| ranges.get(at)).is_some_and(|range| range.1 >= end)
    }

    /// `start..end` was found sound.
    pub(crate) fn note(&self, start: u32, end: u32) {
        let mut ranges = self.lock();
        let first = ranges.partition_point(|range| range.1 < start);
        let after = ranges.partition_point(|range| range.0 <= end);
        let merged = ranges.get(first..after).unwrap_or_default();
        let joined = merged.iter().fold((start, end), |all, range| (all.0.min(range.0), all.1.max(range.1)));
        ranges.splice(first..after, [joined]);
        if ranges.len() > CHECKED_RANGES_PER_SEGMENT {
            let shortest = (0..ranges.len()).min_by_key(|at| ranges.get(*at).map(|range| range.1 - range.0));
            if let Some(at) = shortest {
                ranges.remove(at);
            }
        }
    }

    /// What is known of the bytes below `position`, for whoever goes on with the file when it is cut there.
    pub(crate) fn below(&self, position: u32) -> CheckedRanges {
        let below = CheckedRanges { ranges: Mutex::new(self.lock().clone()) };
        below.cut(position);
        below
    }

    /// Nothing from `position` on counts any more: the file is cut there.
    pub(crate) fn cut(&self, position: u32) {
        let mut ranges = self.lock();
        ranges.retain(|range| range.0 < position);
        if let Some(last) = ranges.last_mut() {
            last.1 = last.1.min(position);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn nothing_counts_that_was_not_noted(
            notes in proptest::collection::vec((0_u32..400, 1_u32..60), 0..80), cut in proptest::option::of(0_u32..400)
        ) {
            let checked = CheckedRanges::default();
            let mut sound = [false; 500];
            for (start, length) in &notes {
                checked.note(*start, start + length);
                sound[*start as usize..(start + length) as usize].fill(true);
            }
            if let Some(cut) = cut {
                let below = checked.below(cut);
                checked.cut(cut);
                prop_assert_eq!(below.lock().clone(), checked.lock().clone());
                sound[cut as usize..].fill(false);
            }
            let ranges = checked.lock().clone();
            prop_assert!(ranges.len() <= CHECKED_RANGES_PER_SEGMENT);
            prop_assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0));
            for (start, end) in ranges {
                prop_assert!(start < end && sound[start as usize..end as usize].iter().all(|sound| *sound));
                prop_assert!(checked.covers(start, end));
                prop_assert!(!checked.covers(start, end + 1));
            }
            if notes.len() <= CHECKED_RANGES_PER_SEGMENT && cut.is_none() {
                for (start, length) in notes {
                    prop_assert!(checked.covers(start, start + length));
                }
            }
        }
    }
}
