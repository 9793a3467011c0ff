//! How a group gets on, from what was seen of it: lag in records and in time, whether it grows, and when it ends. Pure: `/metrics` and
//! `ringlog group describe` both reckon with it, one in the broker and the other as a client.

use std::collections::BTreeMap;

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
    /// Milliseconds until retention takes the first of those that wait; `None`: never.
    pub retention_in_ms: Option<i64>,
    /// Records that retention took before the group consumed them.
    pub lost_records: i64,
}

/// When retention takes what the group has not consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overtaken {
    /// There is nothing to take, or no limit of time.
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
    /// `age_ms`: of the first record not consumed, if there is one; `retention_ms`: negative without a limit.
    pub fn of(look: Look, log_start: i64, age_ms: Option<i64>, retention_ms: i64) -> Overtaken {
        if look.committed < log_start {
            return Overtaken::Since(log_start.saturating_sub(look.committed));
        }
        match age_ms {
            Some(age_ms) if look.lag() > 0 && retention_ms >= 0 => {
                Overtaken::InMs((retention_ms - age_ms).max(0))
            }
            _ => Overtaken::Never,
        }
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(Overtaken::of(least, 10, None, 1_000), Overtaken::Since(i64::MAX));
    }

    #[test]
    fn retention_takes_the_oldest_first() {
        let behind = look(0, 50, 100);
        assert_eq!(Overtaken::of(behind, 0, Some(600), 1_000), Overtaken::InMs(400));
        assert_eq!(Overtaken::of(behind, 0, Some(6_000), 1_000), Overtaken::InMs(0));
        assert_eq!(Overtaken::of(behind, 60, Some(600), 1_000), Overtaken::Since(10));
        assert_eq!(Overtaken::of(behind, 0, Some(600), -1), Overtaken::Never);
        assert_eq!(Overtaken::of(look(0, 100, 100), 0, None, 1_000), Overtaken::Never);
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
            progress.add(look, age_ms, Overtaken::of(look, log_start, age_ms, retention_ms));
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
