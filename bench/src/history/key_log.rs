//! What is known of one partition's log: which value at which offset, which offsets consumers passed, where it starts.
//! It gathers; [`super::judge`] decides.

use std::collections::BTreeMap;
use std::ops::Range;

use super::operation::Key;

/// In place of a value: bytes that no client sent. Above every value.
pub const ALTERED: u64 = u64::MAX;

/// What stands at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The first value seen there, or [`ALTERED`].
    pub value: u64,
    /// Whether a consumer read it (otherwise an acknowledgement named the offset).
    pub is_read: bool,
    /// Whether the final read did.
    pub is_final: bool,
}

/// How a consumer left records out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The offset that was due.
    pub from: i64,
    /// The offset that came.
    pub to: i64,
    /// Whether both belong to one poll.
    pub is_internal: bool,
    /// Who.
    pub process: u64,
    /// Where the history says so.
    pub place: super::check::Place,
}

/// The read that follows `final`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinalRead {
    /// Who reads.
    pub process: u64,
    /// The end it has to reach.
    pub end: i64,
    /// The lowest offset that it read.
    pub first: Option<i64>,
    /// The position it reached.
    pub reached: i64,
    /// When it last got on; 0 = the history has no times.
    pub progress_at: u64,
    /// The longest time without progress, nanoseconds.
    pub pause_max: u64,
}

/// See the module.
#[derive(Debug)]
pub struct KeyLog {
    /// The partition.
    pub key: Key,
    /// By offset.
    pub slots: BTreeMap<i64, Slot>,
    /// Offsets that some consumer passed, as disjoint ranges: start -> end.
    covered: BTreeMap<i64, i64>,
    /// Records left out by consumers, unless nothing was there.
    pub gaps: Vec<Gap>,
    /// Lower offsets are not required.
    pub log_start: i64,
    /// Nor are these and higher ones.
    pub damaged_from: i64,
    /// The final read, if there is one.
    pub final_read: Option<FinalRead>,
    /// The longest time from an acknowledgement to the first read, nanoseconds.
    pub lag_max: u64,
}

impl KeyLog {
    /// A log of which nothing is known.
    pub fn new(key: Key) -> KeyLog {
        KeyLog {
            key,
            slots: BTreeMap::new(),
            covered: BTreeMap::new(),
            gaps: Vec::new(),
            log_start: 0,
            damaged_from: i64::MAX,
            final_read: None,
            lag_max: 0,
        }
    }

    /// Whether a record at `offset` has to be there.
    pub fn is_required(&self, offset: i64) -> bool {
        (self.log_start..self.damaged_from).contains(&offset)
    }

    /// Notes that a consumer passed `range`.
    pub fn cover(&mut self, range: Range<i64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // Everything that touches the range melts into it.
        while let Some((found, found_end)) =
            self.covered.range(..=end).next_back().map(|(start, end)| (*start, *end))
            && found_end >= start
        {
            start = start.min(found);
            end = end.max(found_end);
            self.covered.remove(&found);
        }
        self.covered.insert(start, end);
    }

    /// Whether a consumer passed `offset`.
    pub fn is_covered(&self, offset: i64) -> bool {
        self.covered.range(..=offset).next_back().is_some_and(|(_, end)| *end > offset)
    }

    /// The first required offset in `range` that somebody read.
    pub fn read_within(&self, range: Range<i64>) -> Option<(i64, u64)> {
        let range = range.start.max(self.log_start)..range.end.min(self.damaged_from);
        if range.is_empty() {
            return None;
        }
        self.slots.range(range).find(|(_, slot)| slot.is_read).map(|(offset, slot)| (*offset, slot.value))
    }

    /// What was read once and is required, but was not there for the final read. What lies before the first record of a
    /// final read is a matter of where it began.
    pub fn vanished(&self) -> impl Iterator<Item = (i64, u64)> + '_ {
        let first = self.final_read.and_then(|read| read.first).unwrap_or(i64::MIN);
        let range = self.log_start.max(first)..self.damaged_from;
        let slots = (!range.is_empty()).then(|| self.slots.range(range)).into_iter().flatten();
        let gone = slots.filter(|(_, slot)| slot.is_read && !slot.is_final && slot.value != ALTERED);
        gone.map(|(offset, slot)| (*offset, slot.value))
    }

    /// Whether the final read got as far as it had to.
    pub fn is_read_to_the_end(&self) -> bool {
        self.final_read.is_some_and(|read| {
            // Nothing may be left to read.
            read.reached >= read.end.min(self.damaged_from) || self.log_start >= read.end
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_become_one() {
        let mut log = KeyLog::new(Key::default());
        for range in [10..20, 30..40, 5..7, 20..25, 6..10, 41..41] {
            log.cover(range);
        }
        assert_eq!(log.covered, BTreeMap::from([(5, 25), (30, 40)]));
        log.cover(0..100);
        assert_eq!(log.covered, BTreeMap::from([(0, 100)]));
        assert!(log.is_covered(0) && log.is_covered(99) && !log.is_covered(100) && !log.is_covered(-1));
    }

    #[test]
    fn a_range_inside_another_changes_nothing() {
        let mut log = KeyLog::new(Key::default());
        log.cover(0..100);
        log.cover(10..20);
        assert_eq!(log.covered, BTreeMap::from([(0, 100)]));
    }
}
