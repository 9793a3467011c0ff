//! Owns latency histograms of a fixed size: one addition a sample, no allocation.

/// The last bucket has no upper bound.
pub const BUCKETS: usize = 29;
/// The first bucket ends at 2^10 ns, about a microsecond; each further one at twice that. The last bounded one ends at
/// 2^37 ns, about 137 seconds.
const FIRST_BOUND_BITS: u32 = 10;

/// Samples in nanoseconds, counted by the power of two that bounds them. A quantile read from it is right to a factor
/// of two: enough to see where time goes, not enough to judge a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Log2Histogram {
    counts: [u64; BUCKETS],
    sum_ns: u64,
}

impl Default for Log2Histogram {
    fn default() -> Self {
        Log2Histogram { counts: [0; BUCKETS], sum_ns: 0 }
    }
}

impl Log2Histogram {
    pub fn record(&mut self, sample_ns: u64) {
        self.counts[bucket_of(sample_ns)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(sample_ns);
    }

    /// Adds another shard's samples.
    pub fn merge(&mut self, other: &Log2Histogram) {
        for (own, others) in self.counts.iter_mut().zip(other.counts) {
            *own += others;
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// Builds one from counts that another crate kept in the same buckets; missing ones are 0, surplus ones join the
    /// last.
    pub fn from_counts(counts: &[u64], sum_ns: u64) -> Log2Histogram {
        let mut histogram = Log2Histogram { sum_ns, ..Log2Histogram::default() };
        for (index, count) in counts.iter().enumerate() {
            histogram.counts[index.min(BUCKETS - 1)] += count;
        }
        histogram
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// (inclusive upper bound in ns, samples in this bucket alone); `None` = no bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<u64>, u64)> + '_ {
        self.counts.iter().enumerate().map(|(index, count)| (bound_ns(index), *count))
    }

    /// An upper bound of the quantile `permille` / 1000, or `None` without samples. A sample beyond the last bound
    /// counts as that bound.
    pub fn quantile_ns(&self, permille: u64) -> Option<u64> {
        let total = self.count();
        let rank = (total * permille.min(1000)).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bound, count) in self.buckets() {
            seen += count;
            if seen >= rank {
                return Some(bound.unwrap_or(1 << (FIRST_BOUND_BITS + BUCKETS as u32 - 2)));
            }
        }
        None
    }
}

fn bucket_of(sample_ns: u64) -> usize {
    // Bits needed for sample - 1, so that a bound itself falls into the bucket that it closes.
    let bits = u64::BITS - sample_ns.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(FIRST_BOUND_BITS) as usize).min(BUCKETS - 1)
}

fn bound_ns(index: usize) -> Option<u64> {
    (index < BUCKETS - 1).then(|| 1 << (FIRST_BOUND_BITS as usize + index))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bounds() {
        assert_eq!(bound_ns(0), Some(1024));
        assert_eq!(bound_ns(27), Some(1 << 37));
        assert_eq!(bound_ns(28), None);
        let check = |sample: u64, expected: usize| assert_eq!(bucket_of(sample), expected, "{sample}");
        check(0, 0);
        check(1, 0);
        check(1024, 0);
        check(1025, 1);
        check(2048, 1);
        check(2049, 2);
        check(1 << 37, 27);
        check((1 << 37) + 1, 28);
        check(u64::MAX, 28);
    }

    #[test]
    fn quantiles_and_merge() {
        let mut histogram = Log2Histogram::default();
        assert_eq!(histogram.quantile_ns(500), None);
        for _ in 0..99 {
            histogram.record(900);
        }
        histogram.record(1_000_000);
        assert_eq!(histogram.quantile_ns(500), Some(1024));
        assert_eq!(histogram.quantile_ns(990), Some(1024));
        assert_eq!(histogram.quantile_ns(999), Some(1 << 20));
        let mut sum = histogram;
        sum.merge(&histogram);
        assert_eq!((sum.count(), sum.sum_ns()), (200, 2 * (99 * 900 + 1_000_000)));
    }

    #[test]
    fn counts_of_another_crate() {
        let histogram = Log2Histogram::from_counts(&[1; BUCKETS + 2], 7);
        assert_eq!((histogram.count(), histogram.sum_ns()), (31, 7));
        assert_eq!(histogram.buckets().last(), Some((None, 3)));
    }

    proptest! {
        #[test]
        fn a_sample_lies_in_its_bucket(sample in any::<u64>()) {
            let index = bucket_of(sample);
            prop_assert!(bound_ns(index).is_none_or(|bound| sample <= bound));
            prop_assert!(index == 0 || bound_ns(index - 1).is_some_and(|bound| sample > bound));
        }
    }
}
