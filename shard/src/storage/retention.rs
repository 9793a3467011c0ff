//! Which of a log's oldest segments may go by age or size. A plain decision over values; [`crate::store`] carries it out.
//!
//! As Kafka's `UnifiedLog.deleteOldSegments`: whole segments, oldest first, none that ends above the high watermark; size
//! before age. The last segment goes too once all of its records are too old, so idle partitions empty.
//!
//! Unlike Kafka a timestamp far in the future does not keep a segment for ever: where the newest lies more than
//! [`RETENTION_FUTURE_MS_MAX`] ahead of our clock, the segment counts as being as old as its last write. Kafka keeps such
//! segments and warns; the downside here is that after a restart they count as written at the start.

mod ahead;

use ringlog_protocol::ids::Offset;

pub use self::ahead::BytesAhead;
use super::core_storage::CoreStorage;
use super::log::Log;
use super::segment::Segment;
use crate::limits::RETENTION_FUTURE_MS_MAX;

/// What of a log's age and size is too much; `None` = nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// `retention.ms`: records older than this may go, in milliseconds; 0 or more.
    pub age_ms_max: Option<i64>,
    /// `retention.bytes`: the oldest segments go while the others still hold this much.
    pub bytes_max: Option<u64>,
}

/// A segment as retention sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentFacts {
    /// Offset after its last record.
    pub end: Offset,
    pub bytes: u64,
    /// Largest timestamp of its records, milliseconds; `None` when they have none.
    pub newest_ms: Option<i64>,
    /// Our clock at its last write.
    pub written_ms: i64,
}

impl SegmentFacts {
    /// Whether its newest timestamp lies further in the future than a clock may be wrong.
    #[must_use]
    pub fn is_from_the_future(&self, now_ms: i64) -> bool {
        self.newest_ms.is_some_and(|newest| newest > now_ms.saturating_add(RETENTION_FUTURE_MS_MAX))
    }

    /// Since when it ages, milliseconds.
    fn ages_from_ms(&self, now_ms: i64) -> i64 {
        match self.newest_ms {
            Some(newest) if !self.is_from_the_future(now_ms) => newest,
            _ => self.written_ms,
        }
    }
}

/// How many of `segments`, oldest first, may go at `now_ms` (milliseconds since the Unix epoch).
#[must_use]
pub fn retired_segments(
    segments: &[SegmentFacts],
    retention: Retention,
    high_watermark: Offset,
    now_ms: i64,
) -> usize {
    let mut count = 0;
    let may_go = |index: usize| segments.get(index).filter(|segment| segment.end <= high_watermark);
    if let Some(bytes_max) = retention.bytes_max {
        let mut bytes: u64 = segments.iter().map(|segment| segment.bytes).sum();
        while let Some(segment) = may_go(count).filter(|segment| bytes - segment.bytes >= bytes_max) {
            bytes -= segment.bytes;
            count += 1;
        }
    }
    if let Some(age_ms_max) = retention.age_ms_max {
        let is_old =
            |segment: &&SegmentFacts| now_ms.saturating_sub(segment.ages_from_ms(now_ms)) > age_ms_max;
        while may_go(count).filter(is_old).is_some() {
            count += 1;
        }
    }
    count
}

impl CoreStorage {
    /// For the figures: what a walk found.
    pub(crate) fn note_segments_in_future(&self, count: u64) {
        let mut core = self.inner().core.borrow_mut();
        if core.counters.segments_in_future < count {
            tracing::warn!(
                segments = count,
                "records have timestamps more than an hour in the future: they count as written when they were, or retention \
                 would keep them until then"
            );
        }
        core.counters.segments_in_future = count;
    }
}

impl Log {
    /// Segments whose newest timestamp lies further in the future than a clock may be wrong.
    pub(crate) fn segments_in_future(&self, now_ms: i64) -> u64 {
        if self.settings.retention.age_ms_max.is_none() {
            return 0;
        }
        let from_future =
            |segment: &&Segment| segment.max_timestamp > now_ms.saturating_add(RETENTION_FUTURE_MS_MAX);
        self.segments.iter().filter(from_future).count() as u64
    }

    /// Its segments, without those that wholly lie below its start.
    #[must_use]
    pub fn segment_facts(&self) -> Vec<SegmentFacts> {
        let ends = self.segments.iter().skip(1).map(|next| next.base).chain([self.log_end]);
        let facts = self.segments.iter().zip(ends).map(|(segment, end)| SegmentFacts {
            end,
            bytes: u64::from(segment.bytes),
            newest_ms: Some(segment.max_timestamp).filter(|newest| *newest >= 0),
            written_ms: segment.times.written_ms,
        });
        facts.filter(|facts| facts.end > self.log_start).collect()
    }

    /// Where the log is to start by its retention, if that is further up than it does.
    #[must_use]
    pub fn retention_start(&self, high_watermark: Offset, now_ms: i64) -> Option<Offset> {
        let retention = self.settings.retention;
        if retention == Retention::default() || self.damage.is_some() || self.poison.is_some() {
            return None;
        }
        let facts = self.segment_facts();
        let count = retired_segments(&facts, retention, high_watermark, now_ms);
        if count > 0 {
            ringlog_io::reached!("retention.retired");
        }
        count.checked_sub(1).and_then(|last| facts.get(last)).map(|last| last.end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: i64 = 1_800_000_000_000;

    fn segment(end: i64, bytes: u64, newest_ms: i64) -> SegmentFacts {
        SegmentFacts { end: Offset(end), bytes, newest_ms: Some(newest_ms), written_ms: NOW - 10 }
    }

    fn by_age(age_ms_max: i64) -> Retention {
        Retention { age_ms_max: Some(age_ms_max), bytes_max: None }
    }

    fn by_size(bytes_max: u64) -> Retention {
        Retention { age_ms_max: None, bytes_max: Some(bytes_max) }
    }

    #[test]
    fn old_segments_go_and_the_first_young_one_keeps_those_behind_it() {
        let segments =
            [segment(10, 5, NOW - 1001), segment(20, 5, NOW - 1001), segment(30, 5, NOW), segment(40, 5, 0)];
        let retired = |watermark| retired_segments(&segments, by_age(1000), Offset(watermark), NOW);
        assert_eq!(retired(40), 2, "exactly as old as allowed is not too old, and order is kept");
        assert_eq!(retired(19), 1, "nothing above the watermark goes");
        assert_eq!(retired(9), 0);
        assert_eq!(retired_segments(&segments, Retention::default(), Offset(40), NOW), 0);
        let all_old = [segment(10, 5, 1), segment(20, 5, 2)];
        assert_eq!(retired_segments(&all_old, by_age(1000), Offset(20), NOW), 2, "the last one too");
    }

    #[test]
    fn size_leaves_at_least_what_may_stay() {
        let segments = [segment(10, 40, NOW), segment(20, 40, NOW), segment(30, 40, NOW)];
        let retired = |bytes_max| retired_segments(&segments, by_size(bytes_max), Offset(30), NOW);
        assert_eq!(retired(121), 0);
        assert_eq!(retired(81), 0);
        assert_eq!(retired(80), 1);
        assert_eq!(retired(79), 1);
        assert_eq!(retired(40), 2);
        assert_eq!(retired(0), 3);
    }

    #[test]
    fn a_timestamp_from_the_future_counts_as_written_when_it_was() {
        let written_ms = NOW - 5_000;
        let ahead = |by: i64| SegmentFacts {
            end: Offset(10),
            bytes: 1,
            newest_ms: Some(NOW.saturating_add(by)),
            written_ms,
        };
        let retired = |facts, age| retired_segments(&[facts], by_age(age), Offset(10), NOW);
        assert_eq!(retired(ahead(RETENTION_FUTURE_MS_MAX), 1_000), 0, "as far as clocks may differ");
        assert_eq!(retired(ahead(RETENTION_FUTURE_MS_MAX + 1), 1_000), 1);
        assert_eq!(retired(ahead(i64::MAX), 4_999), 1);
        assert_eq!(retired(ahead(i64::MAX), 5_000), 0, "not before its time");
        assert!(ahead(i64::MAX).is_from_the_future(NOW) && !ahead(0).is_from_the_future(NOW));
        let without = SegmentFacts { newest_ms: None, ..ahead(0) };
        assert_eq!((retired(without, 4_999), retired(without, 5_000)), (1, 0));
    }

    #[test]
    fn a_clock_that_was_wrong_while_it_was_written_deletes_nothing_early() {
        let facts = SegmentFacts { end: Offset(10), bytes: 1, newest_ms: Some(NOW - 10), written_ms: 0 };
        assert_eq!(retired_segments(&[facts], by_age(1000), Offset(10), NOW), 0);
        // A clock far behind sees the future everywhere: age counts from the write by the same clock.
        assert_eq!(retired_segments(&[facts], by_age(1000), Offset(10), 500), 0);
    }

    proptest! {
        #[test]
        fn what_goes_is_old_or_too_much_and_committed(
            sizes in proptest::collection::vec((1_u64..1000, -1_i64..3_000_000), 0..20),
            age in proptest::option::of(0_i64..2_000_000), bytes_max in proptest::option::of(0_u64..8000),
            watermark in 0_i64..25
        ) {
            let now = 2_000_000;
            let facts = |(index, (bytes, newest)): (usize, &(u64, i64))| SegmentFacts {
                end: Offset(index as i64 + 1),
                bytes: *bytes,
                newest_ms: Some(*newest).filter(|newest| *newest >= 0),
                written_ms: 1_000_000,
            };
            let segments: Vec<SegmentFacts> = sizes.iter().enumerate().map(facts).collect();
            let retention = Retention { age_ms_max: age, bytes_max };
            let count = retired_segments(&segments, retention, Offset(watermark), now);
            let total: u64 = segments.iter().map(|segment| segment.bytes).sum();
            let mut gone = 0;
            for segment in &segments[..count] {
                gone += segment.bytes;
                prop_assert!(segment.end <= Offset(watermark));
                let too_old = age.is_some_and(|age| now - segment.ages_from_ms(now) > age);
                let too_much = bytes_max.is_some_and(|most| total - gone >= most);
                prop_assert!(too_old || too_much);
            }
            if let Some(next) = segments.get(count).filter(|next| next.end <= Offset(watermark)) {
                prop_assert!(age.is_none_or(|age| now - next.ages_from_ms(now) <= age));
                prop_assert!(bytes_max.is_none_or(|most| total - gone - next.bytes < most));
            }
        }
    }
}
