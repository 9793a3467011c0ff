//! How a group gets on, from what was seen of it: lag in records and in time, whether it grows, and when it ends. Pure: `/metrics` and
//! `ringlog group describe` both reckon with it, one in the broker and the other as a client.

use std::collections::BTreeMap;

use ringlog_shard::storage::BytesAhead;

/// One look at one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Milliseconds; any clock that goes on evenly.
    pub at_ms: i64,
    /// Of the next record to consume.
    pub committed: i64,
    /// Behind the last record that can be consumed.
    pub end: i64,
}

/// What happened between two looks, in records for each second.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Trend {
    pub produced: f64,
    pub consumed: f64,
}

/// When a group has caught up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CatchUp {
    Done,
    InMs(i64),
    /// It consumes no faster than is produced.
    Never,
}

/// What all partitions of a group come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Progress {
    pub lag_records: i64,
    /// How long the oldest record that waits has waited, in milliseconds; `None`: none waits, or it has no time.
    pub lag_ms: Option<i64>,
    /// Milliseconds until retention takes the first of those that wait; `None`: never, as far as is known.
    pub retention_in_ms: Option<i64>,
    /// Records that were gone, by retention or deleted, before the group consumed them.
    pub lost_records: i64,
}

/// When retention takes what the group has not consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overtaken {
    /// There is nothing to take, or nothing that would take it, as far as is known.
    Never,
    InMs(i64),
    /// So many records are gone already.
    Since(i64),
}

impl Look {
    /// In records.
    pub fn lag(self) -> i64 {
        // What a client commits may be any number.
        self.end.saturating_sub(self.committed).max(0)
    }
}

impl Trend {
    /// `None` where no time passed.
    pub fn between(first: Look, second: Look) -> Option<Trend> {
        let seconds = second.at_ms.saturating_sub(first.at_ms) as f64 / 1_000.0;
        (seconds > 0.0).then(|| Trend {
            produced: second.end.saturating_sub(first.end).max(0) as f64 / seconds,
            consumed: second.committed.saturating_sub(first.committed).max(0) as f64 / seconds,
        })
    }

    /// Of all partitions that were seen both times; `None` where there is none.
    pub fn over<'look, Place: Ord + 'look>(
        first: &BTreeMap<Place, Look>,
        second: impl IntoIterator<Item = (&'look Place, Look)>,
    ) -> Option<Trend> {
        let seen_twice =
            second.into_iter().filter_map(|(place, look)| Trend::between(*first.get(place)?, look));
        seen_twice.reduce(Trend::and)
    }

    fn and(self, other: Trend) -> Trend {
        Trend { produced: self.produced + other.produced, consumed: self.consumed + other.consumed }
    }

    /// When a lag of so many records is gone, if it goes on like this.
    pub fn catch_up(self, lag: i64) -> CatchUp {
        let gained = self.consumed - self.produced;
        if lag <= 0 {
            CatchUp::Done
        } else if gained <= 0.0 {
            CatchUp::Never
        } else {
            CatchUp::InMs((lag as f64 / gained * 1_000.0).min(i64::MAX as f64) as i64)
        }
    }
}

impl Progress {
    /// Counts a partition in; `age_ms` is that of its first record that waits.
    pub fn add(&mut self, look: Look, age_ms: Option<i64>, overtaken: Overtaken) {
        self.lag_records = self.lag_records.saturating_add(look.lag());
        self.lag_ms = self.lag_ms.max(age_ms);
        match overtaken {
            Overtaken::Never => {}
            Overtaken::InMs(in_ms) => {
                self.retention_in_ms = Some(self.retention_in_ms.map_or(in_ms, |known| known.min(in_ms)));
            }
            Overtaken::Since(records) => self.lost_records = self.lost_records.saturating_add(records),
        }
    }
}

impl Overtaken {
    /// By time or by size, what comes first. `age_ms`: of the first record not consumed, if there is one; `retention_ms`: negative without
    /// a limit; `by_size_in_ms`: as [`by_size_in_ms`] reckons, or `None` without a limit.
    pub fn of(
        look: Look,
        log_start: i64,
        age_ms: Option<i64>,
        retention_ms: i64,
        by_size_in_ms: Option<i64>,
    ) -> Overtaken {
        if look.committed < log_start {
            return Overtaken::Since(log_start.saturating_sub(look.committed));
        }
        if look.lag() == 0 {
            return Overtaken::Never;
        }
        let by_time_in_ms =
            age_ms.filter(|_| retention_ms >= 0).map(|age_ms| retention_ms.saturating_sub(age_ms).max(0));
        by_time_in_ms.into_iter().chain(by_size_in_ms).min().map_or(Overtaken::Never, Overtaken::InMs)
    }
}

/// Milliseconds until retention by size may take a record before which so many bytes come, if records are produced at this pace; `None`:
/// never, or nobody knows while the pace is not known.
pub fn by_size_in_ms(ahead: BytesAhead, produced_per_second: Option<f64>) -> Option<i64> {
    if ahead.closing_bytes == 0 && ahead.following_bytes == 0 {
        return Some(0);
    }
    let bytes_per_ms = ahead.record_bytes * produced_per_second? / 1_000.0;
    if bytes_per_ms <= 0.0 {
        return None;
    }
    let closing_ms = (ahead.closing_bytes as f64 / bytes_per_ms).min(ahead.closing_ms as f64);
    // What is beyond the largest number becomes the largest number.
    Some((closing_ms + ahead.following_bytes as f64 / bytes_per_ms) as i64)
}

/// Bytes that are appended to a partition at least before retention by size may take the first record that waits, as far as one can tell
/// who does not know its segments: what is missing to `retention_bytes` behind that record, if all records take alike. `None` where none
/// waits.
pub fn bytes_before_by_size(look: Look, log_start: i64, log_bytes: u64, retention_bytes: u64) -> Option<u64> {
    let waiting = look.end.saturating_sub(look.committed.max(log_start));
    let all = look.end.saturating_sub(log_start);
    if waiting <= 0 {
        return None;
    }
    let behind_bytes = log_bytes as f64 * (waiting as f64 / all as f64);
    Some(retention_bytes.saturating_sub(behind_bytes as u64))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn look(at_ms: i64, committed: i64, end: i64) -> Look {
        Look { at_ms, committed, end }
    }

    #[test]
    fn who_consumes_faster_than_is_produced_catches_up() {
        let trend = Trend::between(look(0, 0, 1_000), look(10_000, 300, 1_100)).expect("time passed");
        assert_eq!(trend, Trend { produced: 10.0, consumed: 30.0 });
        assert_eq!(trend.catch_up(800), CatchUp::InMs(40_000));
        assert_eq!(trend.catch_up(0), CatchUp::Done);
        let idle = Trend::between(look(0, 5, 9), look(1_000, 5, 9)).expect("time passed");
        assert_eq!(idle.catch_up(4), CatchUp::Never);
        assert_eq!(Trend::between(look(5, 0, 0), look(5, 9, 9)), None);
    }

    #[test]
    fn an_offset_that_was_moved_back_is_no_negative_speed() {
        let trend = Trend::between(look(0, 90, 100), look(1_000, 0, 100)).expect("time passed");
        assert_eq!(trend, Trend::default());
    }

    #[test]
    fn any_number_may_be_committed() {
        let (least, most) = (look(0, i64::MIN, 100), look(1_000, i64::MAX, 100));
        assert_eq!((least.lag(), most.lag()), (i64::MAX, 0));
        assert!(Trend::between(least, most).is_some_and(|trend| trend.consumed > 0.0));
        assert_eq!(Overtaken::of(least, 10, None, 1_000, None), Overtaken::Since(i64::MAX));
    }

    #[test]
    fn retention_takes_the_oldest_first() {
        let behind = look(0, 50, 100);
        assert_eq!(Overtaken::of(behind, 0, Some(600), 1_000, None), Overtaken::InMs(400));
        assert_eq!(Overtaken::of(behind, 0, Some(6_000), 1_000, None), Overtaken::InMs(0));
        assert_eq!(Overtaken::of(behind, 60, Some(600), 1_000, None), Overtaken::Since(10));
        assert_eq!(Overtaken::of(behind, 0, Some(600), -1, None), Overtaken::Never);
        assert_eq!(Overtaken::of(look(0, 100, 100), 0, None, 1_000, None), Overtaken::Never);
    }

    #[test]
    fn the_retention_that_comes_first_counts() {
        let behind = look(0, 50, 100);
        let of = |age_ms, retention_ms, by_size| Overtaken::of(behind, 0, age_ms, retention_ms, by_size);
        assert_eq!(of(Some(600), 1_000, Some(399)), Overtaken::InMs(399));
        assert_eq!(of(Some(600), 1_000, Some(401)), Overtaken::InMs(400));
        assert_eq!(of(Some(600), -1, Some(7)), Overtaken::InMs(7));
        assert_eq!(of(None, 1_000, Some(7)), Overtaken::InMs(7), "a record without a time");
        assert_eq!(Overtaken::of(behind, 60, Some(600), 1_000, Some(7)), Overtaken::Since(10));
        assert_eq!(Overtaken::of(look(0, 100, 100), 0, None, 1_000, Some(7)), Overtaken::Never);
        assert_eq!(of(Some(-5), i64::MAX, None), Overtaken::InMs(i64::MAX));
    }

    const AHEAD: BytesAhead =
        BytesAhead { closing_bytes: 500, closing_ms: 10_000, following_bytes: 2_000, record_bytes: 10.0 };

    #[test]
    fn by_size_it_takes_as_long_as_the_bytes_take_to_come() {
        assert_eq!(by_size_in_ms(AHEAD, Some(25.0)), Some(10_000), "2,500 bytes, 250 a second");
        assert_eq!(by_size_in_ms(AHEAD, Some(2.5)), Some(10_000 + 80_000), "closed by time, not full");
        let closed = BytesAhead { closing_bytes: 0, ..AHEAD };
        assert_eq!(by_size_in_ms(closed, Some(25.0)), Some(8_000));
    }

    #[test]
    fn a_log_that_does_not_grow_is_not_overtaken_by_size_but_where_it_is_too_large_now() {
        assert_eq!((by_size_in_ms(AHEAD, None), by_size_in_ms(AHEAD, Some(0.0))), (None, None));
        let empty = BytesAhead { record_bytes: 0.0, ..AHEAD };
        assert_eq!(by_size_in_ms(empty, Some(25.0)), None);
        let now = BytesAhead { closing_bytes: 0, following_bytes: 0, ..AHEAD };
        assert_eq!((by_size_in_ms(now, None), by_size_in_ms(now, Some(0.0))), (Some(0), Some(0)));
    }

    #[test]
    fn without_the_segments_what_is_missing_behind_the_record_is_the_least_that_comes_first() {
        let before =
            |committed, log_start| bytes_before_by_size(look(0, committed, 100), log_start, 1_000, 4_000);
        assert_eq!(before(0, 0), Some(3_000));
        assert_eq!(before(50, 0), Some(3_500));
        assert_eq!(before(75, 50), Some(3_500), "half of what is left");
        assert_eq!(before(10, 50), Some(3_000), "those before are gone");
        assert_eq!((before(100, 0), before(i64::MAX, 0)), (None, None));
        assert_eq!(before(i64::MIN, i64::MIN), Some(3_000));
        assert_eq!(bytes_before_by_size(look(0, 0, 100), 0, 9_000, 4_000), Some(0));
        assert_eq!(bytes_before_by_size(look(0, 0, 0), 0, 9_000, 4_000), None);
    }

    proptest! {
        #[test]
        fn whoever_produces_more_is_overtaken_no_later(
            closing_bytes: u64, closing_ms in 0..i64::MAX, following_bytes: u64,
            record_bytes in 0.0..1e9_f64, pace in 0.0..1e9_f64, more in 1.0..1e6_f64
        ) {
            let ahead = BytesAhead { closing_bytes, closing_ms, following_bytes, record_bytes };
            let (slow, fast) = (by_size_in_ms(ahead, Some(pace)), by_size_in_ms(ahead, Some(pace * more)));
            prop_assert!(slow.is_none_or(|slow| slow >= 0 && fast.is_some_and(|fast| fast <= slow)));
            let by_time = Overtaken::of(look(0, 0, 1), 0, Some(0), closing_ms, slow);
            let first = slow.map_or(closing_ms, |slow| slow.min(closing_ms));
            prop_assert_eq!(by_time, Overtaken::InMs(first));
        }
    }

    #[test]
    fn a_group_lags_as_all_its_partitions_do_and_as_long_as_the_oldest() {
        let mut progress = Progress::default();
        for (look, log_start, age_ms, retention_ms) in [
            (look(0, 50, 100), 0, Some(600), 1_000),
            (look(0, 60, 100), 0, Some(700), 1_000),
            (look(0, 10, 100), 30, None, 1_000),
            (look(0, 100, 100), 0, None, 1_000),
        ] {
            progress.add(look, age_ms, Overtaken::of(look, log_start, age_ms, retention_ms, None));
        }
        let expected =
            Progress { lag_records: 180, lag_ms: Some(700), retention_in_ms: Some(300), lost_records: 20 };
        assert_eq!(progress, expected);
    }

    #[test]
    fn a_trend_is_that_of_the_partitions_that_were_seen_twice() {
        let first = BTreeMap::from([(0, look(0, 0, 100)), (1, look(0, 0, 50)), (2, look(0, 0, 50))]);
        let second =
            BTreeMap::from([(0, look(1_000, 10, 101)), (1, look(1_000, 5, 52)), (7, look(1_000, 9, 9))]);
        let over =
            |second: &BTreeMap<i32, Look>| Trend::over(&first, second.iter().map(|(at, look)| (at, *look)));
        assert_eq!(over(&second), Some(Trend { produced: 3.0, consumed: 15.0 }));
        assert_eq!(over(&BTreeMap::from([(7, look(1_000, 9, 9))])), None);
    }
}
