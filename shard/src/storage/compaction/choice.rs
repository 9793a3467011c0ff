//! Which log is compacted next, and how far. Plain decisions over values, as Kafka's `LogCleanerManager`.

use ringlog_protocol::ids::Offset;

/// Parts of one, so that a ratio is a whole number and equal ones compare equal.
pub const WHOLE: u32 = 1_000_000;

/// Kafka's topic configs of compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactionSettings {
    /// `min.cleanable.dirty.ratio`, in millionths, 0 to 1,000,000.
    pub min_dirty_millionths: u32,
    /// `min.compaction.lag.ms`: younger records stay, in milliseconds.
    pub min_lag_ms: i64,
    /// `max.compaction.lag.ms`: older ones are compacted whatever the ratio, in milliseconds.
    pub max_lag_ms: i64,
    /// `delete.retention.ms`: a tombstone stays so long after compaction first saw it, in milliseconds.
    pub delete_retention_ms: i64,
}

/// A segment as the choice sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyFacts {
    pub base: Offset,
    /// Where the next one begins.
    pub end: Offset,
    pub bytes: u64,
    /// Largest timestamp of its records, milliseconds; none where they have none.
    pub newest_ms: Option<i64>,
    /// Largest timestamp of its first batch, where it is known.
    pub first_ms: Option<i64>,
}

/// How far a log could be compacted now, and how much that is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prospect {
    /// Segments that end here or before may be compacted; where one ends.
    pub until: Offset,
    /// Bytes below the first offset that was never compacted.
    pub clean_bytes: u64,
    /// Bytes from there up to `until`.
    pub dirty_bytes: u64,
    /// `max.compaction.lag.ms` has passed for some of them.
    pub is_overdue: bool,
}

impl Prospect {
    /// Of the bytes that would be read, how many were never compacted: in millionths.
    #[must_use]
    pub fn dirty_millionths(&self) -> u32 {
        let all = u128::from(self.clean_bytes) + u128::from(self.dirty_bytes);
        let ratio = (u128::from(self.dirty_bytes) * u128::from(WHOLE)).checked_div(all).unwrap_or(0);
        u32::try_from(ratio).unwrap_or(WHOLE)
    }

    /// Whether it is time.
    #[must_use]
    pub fn is_due(&self, settings: &CompactionSettings) -> bool {
        let is_dirty_enough = self.dirty_millionths() > settings.min_dirty_millionths;
        self.dirty_bytes > 0 && (self.is_overdue || is_dirty_enough)
    }
}

/// Looks at the segments of one log that take no more batches, oldest first, of which those before `first_dirty` were compacted.
/// None that ends above `stable` (the high watermark) is touched, nor any from the first one on that is too young.
#[must_use]
pub fn prospect(
    segments: &[DirtyFacts],
    first_dirty: Offset,
    stable: Offset,
    settings: &CompactionSettings,
    now_ms: i64,
) -> Prospect {
    let mut found = Prospect { until: first_dirty, clean_bytes: 0, dirty_bytes: 0, is_overdue: false };
    for segment in segments {
        if segment.end <= first_dirty {
            found.clean_bytes += segment.bytes;
            continue;
        }
        let is_young = settings.min_lag_ms > 0
            && segment.newest_ms.is_some_and(|newest| newest > now_ms.saturating_sub(settings.min_lag_ms));
        if segment.end > stable || is_young {
            break;
        }
        found.until = segment.end;
        found.dirty_bytes += segment.bytes;
        let is_old = |first: i64| first > 0 && first < now_ms.saturating_sub(settings.max_lag_ms);
        found.is_overdue |= segment.first_ms.or(segment.newest_ms).is_some_and(is_old);
    }
    found
}

/// The one to compact next: of those that are due the one with the most that was never compacted, and of equals the first.
#[must_use]
pub fn next_of(prospects: &[(Prospect, CompactionSettings)]) -> Option<usize> {
    let due = prospects.iter().enumerate().filter(|(_, (prospect, settings))| prospect.is_due(settings));
    let worth = |(index, (prospect, _)): &(usize, &(Prospect, CompactionSettings))| {
        (prospect.dirty_millionths(), std::cmp::Reverse(*index))
    };
    due.max_by_key(worth).map(|(index, _)| index)
}

/// Whether a segment is compacted into the same new one as those before it: `count` of them from offset `base` on, of which
/// `bytes` are left. It may lose nothing, so it counts as it is.
#[must_use]
pub fn goes_with(
    segment: &DirtyFacts,
    base: Offset,
    bytes: u64,
    count: usize,
    segment_bytes: u64,
    count_max: usize,
) -> bool {
    let offsets = segment.end.0.saturating_sub(base.0);
    let fits = bytes + segment.bytes <= segment_bytes && offsets <= i64::from(i32::MAX);
    count == 0 || (count < count_max && fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_000_000;
    const SETTINGS: CompactionSettings = CompactionSettings {
        min_dirty_millionths: WHOLE / 2,
        min_lag_ms: 0,
        max_lag_ms: i64::MAX,
        delete_retention_ms: 0,
    };

    fn segment(base: i64, end: i64, bytes: u64, newest_ms: i64) -> DirtyFacts {
        let newest_ms = Some(newest_ms);
        DirtyFacts { base: Offset(base), end: Offset(end), bytes, newest_ms, first_ms: newest_ms }
    }

    fn three() -> [DirtyFacts; 3] {
        [segment(0, 10, 100, 10), segment(10, 20, 50, 20), segment(20, 30, 70, 30)]
    }

    fn look(first_dirty: i64, stable: i64, settings: CompactionSettings, now_ms: i64) -> Prospect {
        prospect(&three(), Offset(first_dirty), Offset(stable), &settings, now_ms)
    }

    #[test]
    fn nothing_above_the_watermark_is_touched_and_what_was_compacted_is_clean() {
        let found = look(10, 30, SETTINGS, NOW);
        assert_eq!((found.until, found.clean_bytes, found.dirty_bytes), (Offset(30), 100, 120));
        let found = look(10, 29, SETTINGS, NOW);
        assert_eq!((found.until, found.dirty_bytes), (Offset(20), 50));
        let found = look(0, 9, SETTINGS, NOW);
        assert_eq!((found.until, found.dirty_bytes, found.is_due(&SETTINGS)), (Offset(0), 0, false));
        let found = look(15, 30, SETTINGS, NOW);
        assert_eq!(
            (found.clean_bytes, found.dirty_bytes),
            (100, 120),
            "a segment compacted in part is dirty"
        );
    }

    #[test]
    fn the_ratio_must_be_exceeded() {
        let half = Prospect { until: Offset(1), clean_bytes: 100, dirty_bytes: 100, is_overdue: false };
        assert_eq!(half.dirty_millionths(), WHOLE / 2);
        assert!(!half.is_due(&SETTINGS) && Prospect { dirty_bytes: 101, ..half }.is_due(&SETTINGS));
        assert!(Prospect { is_overdue: true, ..half }.is_due(&SETTINGS), "whatever the ratio");
        assert!(!Prospect { is_overdue: true, dirty_bytes: 0, ..half }.is_due(&SETTINGS));
        assert_eq!(Prospect { clean_bytes: 0, dirty_bytes: 0, ..half }.dirty_millionths(), 0);
        let most = Prospect { clean_bytes: u64::MAX, dirty_bytes: u64::MAX, ..half };
        assert_eq!(most.dirty_millionths(), WHOLE / 2);
    }

    #[test]
    fn young_records_stay_and_old_ones_do_not_wait() {
        let young = CompactionSettings { min_lag_ms: 80, ..SETTINGS };
        assert_eq!(look(0, 30, young, 100).until, Offset(20), "the third is 70 ms old");
        assert_eq!(look(0, 30, young, 95).until, Offset(10));
        let old = CompactionSettings { max_lag_ms: 80, ..SETTINGS };
        assert!(!look(10, 30, old, 100).is_overdue && look(10, 30, old, 101).is_overdue);
    }

    #[test]
    fn the_dirtiest_of_those_that_are_due_is_next() {
        let of = |clean_bytes, dirty_bytes, is_overdue| {
            (Prospect { until: Offset(1), clean_bytes, dirty_bytes, is_overdue }, SETTINGS)
        };
        assert_eq!(next_of(&[of(10, 5, false), of(0, 0, false)]), None);
        assert_eq!(
            next_of(&[of(10, 5, false), of(10, 20, false), of(10, 90, false), of(1, 9, false)]),
            Some(2)
        );
        assert_eq!(next_of(&[of(10, 20, false), of(10, 20, false)]), Some(0));
        assert_eq!(next_of(&[of(10, 1, true)]), Some(0));
    }

    #[test]
    fn segments_are_put_together_as_far_as_they_fit() {
        let next = segment(20, 30, 70, 0);
        let goes = |bytes, count| goes_with(&next, Offset(0), bytes, count, 100, 3);
        assert!(goes(30, 1) && !goes(31, 1), "by bytes");
        assert!(goes(30, 2) && !goes(30, 3), "by count");
        assert!(goes(1000, 0), "one that is too long alone stays one");
        let far = |end| goes_with(&segment(20, end, 1, 0), Offset(10), 1, 1, 100, 3);
        assert!(far(10 + i64::from(i32::MAX)) && !far(11 + i64::from(i32::MAX)), "by offsets");
    }
}
