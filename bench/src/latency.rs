//! Latency histograms and their percentile rows.
//!
//! One histogram per kind and thread, merged at the end. Range 1 us to 60 s, three significant digits; what lies
//! above is counted at 60 s and named in the report. It never keeps single samples.

use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer, V2DeflateSerializer};
use serde::Serialize;

/// Smallest distinguishable latency.
const LOWEST_NANOSECONDS: u64 = 1_000;
/// Largest recorded latency.
pub const HIGHEST_NANOSECONDS: u64 = 60_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;

/// The percentiles every table shows.
pub const PERCENTILES: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99)];

/// A histogram of nanoseconds.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    inner: Histogram<u64>,
    above_range: u64,
}

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        LatencyHistogram::new()
    }
}

impl LatencyHistogram {
    /// An empty histogram, about 200 KiB.
    pub fn new() -> LatencyHistogram {
        let inner = Histogram::new_with_bounds(LOWEST_NANOSECONDS, HIGHEST_NANOSECONDS, SIGNIFICANT_DIGITS)
            .expect("the bounds are constants that the histogram accepts");
        LatencyHistogram { inner, above_range: 0 }
    }

    /// Records one latency.
    pub fn record(&mut self, nanoseconds: u64) {
        self.record_many(nanoseconds, 1);
    }

    /// Records `count` equal latencies.
    pub fn record_many(&mut self, nanoseconds: u64, count: u64) {
        // The library takes zero values as a sample of the maximum.
        if count == 0 {
            return;
        }
        if nanoseconds > HIGHEST_NANOSECONDS {
            self.above_range += count;
        }
        self.inner.saturating_record_n(nanoseconds.min(HIGHEST_NANOSECONDS), count);
    }

    /// Adds all of `other`.
    pub fn merge(&mut self, other: &LatencyHistogram) {
        self.inner.add(&other.inner).expect("all histograms here have the same bounds");
        self.above_range += other.above_range;
    }

    /// How many latencies were recorded.
    pub fn count(&self) -> u64 {
        self.inner.len()
    }

    /// The latency at `percentile` (0.0..=100.0), nanoseconds; 0 when empty.
    pub fn percentile(&self, percentile: f64) -> u64 {
        if self.inner.is_empty() { 0 } else { self.inner.value_at_percentile(percentile) }
    }

    /// The row for table and report; `None` when nothing was recorded.
    pub fn summary(&self) -> Option<LatencySummary> {
        if self.inner.is_empty() {
            return None;
        }
        let percentiles = PERCENTILES
            .iter()
            .map(|(name, percentile)| {
                let nanoseconds = self.percentile(*percentile);
                let above = self.inner.len() - self.inner.count_between(0, nanoseconds);
                PercentileValue { name, nanoseconds, records_above: above }
            })
            .collect();
        Some(LatencySummary {
            count: self.inner.len(),
            mean_nanoseconds: self.inner.mean().round() as u64,
            percentiles,
            max_nanoseconds: self.inner.max(),
            above_range: self.above_range,
            histogram_v2_deflate_base64: self.encoded(),
        })
    }

    fn encoded(&self) -> String {
        use base64::Engine as _;
        let mut bytes = Vec::new();
        match V2DeflateSerializer::new().serialize(&self.inner, &mut bytes) {
            Ok(_) => base64::engine::general_purpose::STANDARD.encode(bytes),
            // Writing into memory fails only if the histogram cannot be encoded; the percentiles stay right.
            Err(_) => String::new(),
        }
    }
}

/// One percentile of a [`LatencySummary`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PercentileValue {
    /// `p99.9` and the like.
    pub name: &'static str,
    /// The value there.
    pub nanoseconds: u64,
    /// Records slower than it; few of them mean a figure that the next run may not repeat.
    pub records_above: u64,
}

/// One row of latencies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LatencySummary {
    /// Records measured.
    pub count: u64,
    /// Arithmetic mean.
    pub mean_nanoseconds: u64,
    /// p50 to p99.99, in order.
    pub percentiles: Vec<PercentileValue>,
    /// The slowest.
    pub max_nanoseconds: u64,
    /// Latencies above 60 s, counted as 60 s.
    pub above_range: u64,
    /// The whole histogram in HdrHistogram's V2 compressed form.
    pub histogram_v2_deflate_base64: String,
}

impl LatencySummary {
    /// The value of the percentile called `name`.
    pub fn nanoseconds(&self, name: &str) -> Option<u64> {
        self.percentiles.iter().find(|value| value.name == name).map(|value| value.nanoseconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;

    #[test]
    fn percentiles_are_within_three_digits() {
        let mut histogram = LatencyHistogram::new();
        for value in 1..=100_000u64 {
            histogram.record(value * 1_000);
        }
        for (percentile, exact) in [(50.0, 50_000_000u64), (99.0, 99_000_000), (99.99, 99_990_000)] {
            let got = histogram.percentile(percentile);
            assert!(got.abs_diff(exact) * 1_000 <= exact, "p{percentile}: {got} against {exact}");
        }
    }

    #[test]
    fn one_stall_in_ten_thousand_shows_in_the_tail_only() {
        let mut histogram = LatencyHistogram::new();
        histogram.record_many(MILLISECOND, 9_991);
        histogram.record_many(200 * MILLISECOND, 9);
        let summary = histogram.summary().expect("it holds records");
        assert_eq!(summary.count, 10_000);
        assert!(summary.nanoseconds("p99").is_some_and(|value| value < 2 * MILLISECOND));
        assert!(summary.nanoseconds("p99.99").is_some_and(|value| value > 199 * MILLISECOND));
        let p99_9 = summary.percentiles.iter().find(|value| value.name == "p99.9").expect("always present");
        assert_eq!(p99_9.records_above, 9);
    }

    #[test]
    fn merging_equals_recording_in_one() {
        let (mut left, mut right, mut both) =
            (LatencyHistogram::new(), LatencyHistogram::new(), LatencyHistogram::new());
        for value in 0..1_000u64 {
            if value % 3 == 0 {
                left.record(value * 77_777)
            } else {
                right.record(value * 77_777)
            }
            both.record(value * 77_777);
        }
        left.merge(&right);
        assert_eq!(left.summary(), both.summary());
    }

    #[test]
    fn values_out_of_range_are_kept_and_named() {
        let mut histogram = LatencyHistogram::new();
        histogram.record(10);
        histogram.record(90_000_000_000);
        let summary = histogram.summary().expect("it holds records");
        assert_eq!((summary.count, summary.above_range), (2, 1));
        assert!(summary.max_nanoseconds >= HIGHEST_NANOSECONDS);
        assert_eq!(LatencyHistogram::new().summary(), None);
        histogram.record_many(123, 0);
        assert_eq!(histogram.count(), 2);
        let mut untouched = LatencyHistogram::new();
        untouched.record(1_000_000);
        untouched.record_many(9_000_000, 0);
        assert!(untouched.summary().is_some_and(|summary| summary.max_nanoseconds < 1_100_000));
    }

    #[test]
    fn the_encoded_histogram_decodes_to_the_same_percentiles() {
        use base64::Engine as _;
        let mut histogram = LatencyHistogram::new();
        (1..500u64).for_each(|value| histogram.record(value * 12_345));
        let encoded = histogram.summary().expect("it holds records").histogram_v2_deflate_base64;
        let bytes = base64::engine::general_purpose::STANDARD.decode(encoded).expect("base64");
        let decoded: Histogram<u64> =
            hdrhistogram::serialization::Deserializer::new().deserialize(&mut bytes.as_slice()).expect("V2");
        assert_eq!(decoded.len(), 499);
        assert_eq!(decoded.value_at_percentile(99.0), histogram.percentile(99.0));
    }
}
