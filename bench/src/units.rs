//! Sizes, counts, rates and durations as people write them on a command line.
//!
//! Pure parsing and formatting. It never guesses: an unknown suffix is an error that names the ones it knows.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A quantity that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// There is no number in front of the unit.
    #[error("'{text}' does not start with a number")]
    NoNumber { text: String },
    /// The unit is not one of those we know.
    #[error("'{text}' has the unknown unit '{unit}'; known: {known}")]
    UnknownUnit { text: String, unit: String, known: &'static str },
    /// The value does not fit or must not be zero.
    #[error("'{text}' is out of range: {reason}")]
    OutOfRange { text: String, reason: &'static str },
}

/// How fast the generator offers records, over all producers together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rate {
    /// Records a second.
    Records(f64),
    /// Record bytes (key and value) a second.
    Bytes(f64),
}

impl Rate {
    /// The rate in thousandths of a record a second; at least 1.
    pub fn records_per_second_milli(&self, record_bytes: u32) -> u64 {
        let records = match self {
            Rate::Records(records) => *records,
            Rate::Bytes(bytes) => *bytes / f64::from(record_bytes.max(1)),
        };
        ((records * 1000.0).round() as u64).max(1)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::Records(records) => write!(f, "{records}/s"),
            Rate::Bytes(bytes) => write!(f, "{bytes}B/s"),
        }
    }
}

impl FromStr for Rate {
    type Err = UnitError;

    /// `200k/s`, `1500`, `100MB/s`, `64MiB`: bytes when the unit ends in `B`, records otherwise. `/s` may be left out.
    fn from_str(text: &str) -> Result<Rate, UnitError> {
        let trimmed = text.trim();
        let quantity = trimmed.strip_suffix("/s").unwrap_or(trimmed).trim();
        let is_bytes = quantity.ends_with('B') || quantity.ends_with('b');
        let value = if is_bytes {
            parse_scaled(quantity, BYTE_UNITS, BYTE_NAMES)?
        } else {
            parse_scaled(quantity, COUNT_UNITS, COUNT_NAMES)?
        };
        if value <= 0.0 || value > 1e12 {
            return Err(UnitError::OutOfRange {
                text: text.to_owned(),
                reason: "a rate is above 0 and at most 1e12",
            });
        }
        Ok(if is_bytes { Rate::Bytes(value) } else { Rate::Records(value) })
    }
}

const COUNT_NAMES: &str = "k, M, G (powers of 1000)";
const COUNT_UNITS: &[(&str, f64)] = &[("", 1.0), ("k", 1e3), ("m", 1e6), ("g", 1e9)];
const BYTE_NAMES: &str = "B, kB, MB, GB (powers of 1000), KiB, MiB, GiB (powers of 1024)";
const BYTE_UNITS: &[(&str, f64)] = &[
    ("", 1.0),
    ("b", 1.0),
    ("k", 1e3),
    ("kb", 1e3),
    ("m", 1e6),
    ("mb", 1e6),
    ("g", 1e9),
    ("gb", 1e9),
    ("kib", 1024.0),
    ("mib", 1_048_576.0),
    ("gib", 1_073_741_824.0),
];
const DURATION_NAMES: &str = "us, ms, s, m, h";
const DURATION_UNITS: &[(&str, f64)] =
    &[("us", 1e3), ("ms", 1e6), ("", 1e9), ("s", 1e9), ("m", 6e10), ("h", 3.6e12)];

/// Bytes: `1024`, `64KiB`, `1MB`.
///
/// # Errors
/// An unknown unit, no number, or a value outside 0..=2^53.
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    whole(text, parse_scaled(text, BYTE_UNITS, BYTE_NAMES)?)
}

/// A count: `1000`, `10k`, `2M`.
///
/// # Errors
/// An unknown unit, no number, or a value outside 0..=2^53.
pub fn parse_count(text: &str) -> Result<u64, UnitError> {
    whole(text, parse_scaled(text, COUNT_UNITS, COUNT_NAMES)?)
}

/// A duration: `30s`, `500ms`, `2m`; a bare number is seconds.
///
/// # Errors
/// An unknown unit, no number, or more than a year.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let nanoseconds = parse_scaled(text, DURATION_UNITS, DURATION_NAMES)?;
    if nanoseconds > 3.2e16 {
        return Err(UnitError::OutOfRange { text: text.to_owned(), reason: "at most a year" });
    }
    Ok(Duration::from_nanos(nanoseconds.round() as u64))
}

fn whole(text: &str, value: f64) -> Result<u64, UnitError> {
    if (0.0..=9_007_199_254_740_992.0).contains(&value) {
        Ok(value.round() as u64)
    } else {
        Err(UnitError::OutOfRange { text: text.to_owned(), reason: "at most 2^53" })
    }
}

fn parse_scaled(text: &str, units: &[(&str, f64)], known: &'static str) -> Result<f64, UnitError> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let number: f64 =
        digits.replace('_', "").parse().map_err(|_| UnitError::NoNumber { text: text.to_owned() })?;
    let unit = unit.trim();
    let lower = unit.to_ascii_lowercase();
    let scale = units
        .iter()
        .find(|(name, _)| *name == lower)
        .map(|(_, scale)| *scale)
        .ok_or_else(|| UnitError::UnknownUnit { text: text.to_owned(), unit: unit.to_owned(), known })?;
    Ok(number * scale)
}

/// Nanoseconds in the unit a reader compares best: `850 us`, `12.3 ms`, `2.10 s`.
pub fn format_nanoseconds(nanoseconds: u64) -> String {
    let value = nanoseconds as f64;
    if value < 1e6 {
        format!("{:.0} us", value / 1e3)
    } else if value < 1e9 {
        format!("{:.2} ms", value / 1e6)
    } else {
        format!("{:.2} s", value / 1e9)
    }
}

/// Bytes in powers of 1000, three digits: `1.05 GB`.
pub fn format_bytes(bytes: f64) -> String {
    for (unit, scale) in [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)] {
        if bytes >= scale {
            return format!("{:.2} {unit}", bytes / scale);
        }
    }
    format!("{bytes:.0} B")
}

/// A count with thousands separated by commas.
pub fn format_count(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_counts_and_durations_are_read_with_their_units() {
        assert_eq!(parse_bytes("64KiB"), Ok(65_536));
        assert_eq!(parse_bytes("1MB"), Ok(1_000_000));
        assert_eq!(parse_bytes("100"), Ok(100));
        assert_eq!(parse_bytes("1.5 kB"), Ok(1_500));
        assert_eq!(parse_count("2M"), Ok(2_000_000));
        assert_eq!(parse_count("1_000"), Ok(1_000));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1_500)));
        assert_eq!(parse_duration("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("7"), Ok(Duration::from_secs(7)));
    }

    #[test]
    fn rates_are_records_unless_the_unit_is_bytes() {
        assert_eq!("200k/s".parse(), Ok(Rate::Records(200_000.0)));
        assert_eq!("0.5".parse(), Ok(Rate::Records(0.5)));
        assert_eq!("100MB/s".parse(), Ok(Rate::Bytes(1e8)));
        assert_eq!("1MiB/s".parse(), Ok(Rate::Bytes(1_048_576.0)));
        assert_eq!(Rate::Bytes(1e8).records_per_second_milli(1_000), 100_000_000);
        assert_eq!(Rate::Records(0.5).records_per_second_milli(1_000), 500);
    }

    #[test]
    fn nonsense_is_refused_with_the_known_units() {
        assert!(matches!(parse_bytes("12XB"), Err(UnitError::UnknownUnit { .. })));
        assert!(matches!(parse_bytes("KiB"), Err(UnitError::NoNumber { .. })));
        assert!(matches!(parse_duration("5 weeks"), Err(UnitError::UnknownUnit { .. })));
        assert!(matches!("0/s".parse::<Rate>(), Err(UnitError::OutOfRange { .. })));
        assert!(matches!("-5/s".parse::<Rate>(), Err(UnitError::NoNumber { .. })));
        assert!(parse_bytes("12XB").is_err_and(|error| error.to_string().contains("KiB")));
    }

    #[test]
    fn numbers_are_shown_in_the_unit_that_compares_best() {
        assert_eq!(format_nanoseconds(850_400), "850 us");
        assert_eq!(format_nanoseconds(12_345_678), "12.35 ms");
        assert_eq!(format_nanoseconds(2_100_000_000), "2.10 s");
        assert_eq!(format_bytes(1_050_000_000.0), "1.05 GB");
        assert_eq!(format_count(1_234_567), "1,234,567");
        assert_eq!(format_count(12), "12");
    }
}
