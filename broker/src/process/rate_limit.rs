//! Owns keeping one kind of log line from flooding the log: a peer that sends nonsense in a loop must not fill a disk.

/// Lines that pass at once.
const BURST: u32 = 5;
/// One more line passes each so many nanoseconds.
const REFILL_NS: u64 = 10_000_000_000;

/// The budget of one kind of line on one shard; a plain value. Keep one per call site, or per call site and peer class,
/// never one per peer.
#[derive(Debug, Clone, Copy)]
pub struct LineLimit {
    budget: u32,
    refilled_ns: u64,
    suppressed: u64,
}

impl Default for LineLimit {
    fn default() -> Self {
        LineLimit { budget: BURST, refilled_ns: 0, suppressed: 0 }
    }
}

impl LineLimit {
    /// `Some(n)` when the line may be logged, where n lines were kept back since the last one that passed: add it to
    /// the line as the field `suppressed`.
    pub fn admit(&mut self, now_ns: u64) -> Option<u64> {
        let earned = now_ns.saturating_sub(self.refilled_ns) / REFILL_NS;
        if earned > 0 {
            self.budget = BURST.min(self.budget.saturating_add(u32::try_from(earned).unwrap_or(BURST)));
            self.refilled_ns += earned * REFILL_NS;
        }
        if self.budget == 0 {
            self.suppressed += 1;
            return None;
        }
        self.budget -= 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_one_line_a_refill() {
        let mut limit = LineLimit::default();
        let start = 77 * REFILL_NS;
        for _ in 0..BURST {
            assert_eq!(limit.admit(start), Some(0));
        }
        for _ in 0..100 {
            assert_eq!(limit.admit(start + 1), None);
        }
        assert_eq!(limit.admit(start + REFILL_NS), Some(100));
        assert_eq!(limit.admit(start + REFILL_NS), None);
        assert_eq!(limit.admit(start + 1000 * REFILL_NS), Some(1));
        assert_eq!(limit.admit(0), Some(0));
    }
}
