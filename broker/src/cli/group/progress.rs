//! How a group gets on, from what was seen of it: lag in records and in time, whether it grows, and when it ends. Pure.

/// One look at one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// Milliseconds; any clock that goes on evenly.
    pub at_ms: i64,
    /// Of the next record to consume.
    pub committed: i64,
    /// Behind the last record that can be consumed.
    pub end: i64,
}

/// What happened between two looks, in records for each second.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub(super) struct Trend {
    pub produced: f64,
    pub consumed: f64,
}

/// When a group has caught up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CatchUp {
    Done,
    InMs(i64),
    /// It consumes no faster than is produced.
    Never,
}

/// When retention takes what the group has not consumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Overtaken {
    /// There is nothing to take, or no limit of time.
    Never,
    InMs(i64),
    /// So many records are gone already.
    Since(i64),
}

impl Look {
    pub(super) fn lag(self) -> i64 {
        (self.end - self.committed).max(0)
    }
}

impl Trend {
    /// `None` where no time passed.
    pub(super) fn between(first: Look, second: Look) -> Option<Trend> {
        let seconds = (second.at_ms - first.at_ms) as f64 / 1_000.0;
        (seconds > 0.0).then(|| Trend {
            produced: (second.end - first.end).max(0) as f64 / seconds,
            consumed: (second.committed - first.committed).max(0) as f64 / seconds,
        })
    }

    pub(super) fn and(self, other: Trend) -> Trend {
        Trend { produced: self.produced + other.produced, consumed: self.consumed + other.consumed }
    }

    pub(super) fn catch_up(self, lag: i64) -> CatchUp {
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

impl Overtaken {
    /// `age_ms`: of the first record not consumed, if there is one; `retention_ms`: negative without a limit.
    pub(super) fn of(look: Look, log_start: i64, age_ms: Option<i64>, retention_ms: i64) -> Overtaken {
        if look.committed < log_start {
            return Overtaken::Since(log_start - look.committed);
        }
        match age_ms {
            Some(age_ms) if look.lag() > 0 && retention_ms >= 0 => {
                Overtaken::InMs((retention_ms - age_ms).max(0))
            }
            _ => Overtaken::Never,
        }
    }
}

/// Two units at most: `3d 4h`, `12m 5s`, `250ms`.
pub(super) fn duration_text(milliseconds: i64) -> String {
    const UNITS: [(&str, i64); 4] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    let milliseconds = milliseconds.max(0);
    let Some(at) = UNITS.iter().position(|(_, length)| milliseconds >= *length) else {
        return format!("{milliseconds}ms");
    };
    let (unit, length) = UNITS[at];
    let whole = milliseconds / length;
    match UNITS.get(at + 1) {
        Some((smaller, shorter)) if milliseconds % length >= *shorter => {
            format!("{whole}{unit} {}{smaller}", milliseconds % length / shorter)
        }
        _ => format!("{whole}{unit}"),
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
    fn retention_takes_the_oldest_first() {
        let behind = look(0, 50, 100);
        assert_eq!(Overtaken::of(behind, 0, Some(600), 1_000), Overtaken::InMs(400));
        assert_eq!(Overtaken::of(behind, 0, Some(6_000), 1_000), Overtaken::InMs(0));
        assert_eq!(Overtaken::of(behind, 60, Some(600), 1_000), Overtaken::Since(10));
        assert_eq!(Overtaken::of(behind, 0, Some(600), -1), Overtaken::Never);
        assert_eq!(Overtaken::of(look(0, 100, 100), 0, None, 1_000), Overtaken::Never);
    }

    #[test]
    fn durations_have_two_units_at_most() {
        for (milliseconds, text) in [
            (-5, "0ms"),
            (999, "999ms"),
            (1_000, "1s"),
            (61_500, "1m 1s"),
            (3_600_000, "1h"),
            (3_661_000, "1h 1m"),
            (90_000_000, "1d 1h"),
        ] {
            assert_eq!(duration_text(milliseconds), text);
        }
    }
}
