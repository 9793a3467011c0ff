//! Owns RFC 3339 in UTC, for log lines and file names. Reads no clock.

use std::fmt;

/// A moment, from milliseconds since the Unix epoch. Displays as `2026-11-29T10:00:00.123Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timestamp {
    year: i64,
    month: i64,
    day: i64,
    second_of_day: i64,
    millisecond: i64,
}

impl Timestamp {
    pub fn from_unix_ms(unix_ms: i64) -> Timestamp {
        let days = unix_ms.div_euclid(86_400_000);
        let ms_of_day = unix_ms.rem_euclid(86_400_000);
        let (year, month, day) = civil_from_days(days);
        Timestamp { year, month, day, second_of_day: ms_of_day / 1000, millisecond: ms_of_day % 1000 }
    }

    /// `20261129T100000Z`, for file names.
    pub fn compact(&self) -> String {
        let (hour, minute, second) = self.clock();
        format!("{:04}{:02}{:02}T{hour:02}{minute:02}{second:02}Z", self.year, self.month, self.day)
    }

    fn clock(&self) -> (i64, i64, i64) {
        (self.second_of_day / 3600, self.second_of_day / 60 % 60, self.second_of_day % 60)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (hour, minute, second) = self.clock();
        let Timestamp { year, month, day, millisecond, .. } = self;
        write!(formatter, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z")
    }
}

/// Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms": days since 1970-01-01 to a proleptic Gregorian date.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_shifted + 2) / 5 + 1;
    let month = if month_shifted < 10 { month_shifted + 3 } else { month_shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        let check = |unix_ms: i64, expected: &str| {
            assert_eq!(Timestamp::from_unix_ms(unix_ms).to_string(), expected);
        };
        check(0, "1970-01-01T00:00:00.000Z");
        check(-1, "1969-12-31T23:59:59.999Z");
        check(951_782_400_000, "2000-02-29T00:00:00.000Z");
        check(1_796_000_000_123, "2026-11-30T00:53:20.123Z");
        check(4_107_542_399_000, "2100-02-28T23:59:59.000Z");
        check(4_107_542_400_000, "2100-03-01T00:00:00.000Z");
        assert_eq!(Timestamp::from_unix_ms(1_796_000_000_123).compact(), "20261130T005320Z");
    }
}
