//! What a journal counts. Plain numbers of one core; whoever publishes them copies.

use std::time::Duration;

/// Latencies by power of two: bucket `i` counts those of `2^(i-1)..2^i` nanoseconds, bucket 0 those of none.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    buckets: [u64; 64],
    sum_ns: u64,
    max_ns: u64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        LatencyHistogram { buckets: [0; 64], sum_ns: 0, max_ns: 0 }
    }
}

impl LatencyHistogram {
    /// Counts one.
    pub fn record(&mut self, latency: Duration) {
        let nanoseconds = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let index = (u64::BITS - nanoseconds.leading_zeros()).min(63) as usize;
        self.buckets[index] += 1;
        self.sum_ns = self.sum_ns.saturating_add(nanoseconds);
        self.max_ns = self.max_ns.max(nanoseconds);
    }

    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Sum of all, in nanoseconds.
    #[must_use]
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns
    }

    /// The longest, in nanoseconds.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Counts by bucket; the upper bound of bucket `i` is `2^i` nanoseconds.
    #[must_use]
    pub fn buckets(&self) -> &[u64; 64] {
        &self.buckets
    }

    /// Upper bound of the bucket that holds the latency below which `fraction` of all lie, in nanoseconds; 0 for none.
    #[must_use]
    pub fn quantile_ns(&self, fraction: f64) -> u64 {
        let wanted = (self.count() as f64 * fraction).ceil() as u64;
        let mut seen = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted && wanted > 0 {
                return (1_u64 << index).min(self.max_ns);
            }
        }
        0
    }
}

/// One core's journal since start.
#[derive(Clone, Debug, Default)]
pub struct JournalStats {
    /// Frames made durable.
    pub frames: u64,
    /// Entries in them.
    pub entries: u64,
    /// Bytes of those entries.
    pub entry_bytes: u64,
    /// Bytes written to the device: with headers and padding.
    pub written_bytes: u64,
    /// From a frame's first entry to the start of its write.
    pub queue_latency: LatencyHistogram,
    /// From the start of a frame's write to its durable end.
    pub write_latency: LatencyHistogram,
    /// Bytes of entries that wait for a write now.
    pub backlog_bytes: u64,
    /// Journal files now.
    pub files: u64,
    /// Of those, files that can be overwritten.
    pub files_free: u64,
    /// Times that a write had to wait for a file to be freed or made.
    pub file_waits: u64,
    /// Whether writes pass the page cache (O_DIRECT); otherwise they are buffered and followed by fdatasync.
    pub direct: bool,
    /// Whether a write failed, after which nothing is written any more.
    pub poisoned: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_bounds_of_their_bucket() {
        let mut histogram = LatencyHistogram::default();
        assert_eq!(histogram.quantile_ns(0.5), 0);
        for _ in 0..99 {
            histogram.record(Duration::from_nanos(1000));
        }
        histogram.record(Duration::from_nanos(50_000));
        assert_eq!(histogram.count(), 100);
        assert_eq!(histogram.quantile_ns(0.5), 1024);
        assert_eq!(histogram.quantile_ns(0.99), 1024);
        assert_eq!(histogram.quantile_ns(1.0), 50_000);
        assert_eq!(histogram.sum_ns(), 99 * 1000 + 50_000);
    }
}
