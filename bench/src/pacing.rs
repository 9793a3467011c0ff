//! The pacing clock: when each record is meant to be sent, and how records gather into batches.
//!
//! Pure: it is handed `now` and answers with plans. Intended times are computed from the record's index, never
//! from the previous send, so a stall is followed by late sends and not by a slower schedule. That is what keeps
//! coordinated omission out of the latencies.

/// Nanoseconds on the clock that the whole run shares.
pub type Nanoseconds = u64;

/// The times at which one of several producers is meant to send its records.
///
/// Record `index` of producer `member` is record `index * members + member` of the whole run, so the producers
/// interleave evenly and the total is exactly the rate asked for.
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    start: Nanoseconds,
    records_per_second_milli: u64,
    member: u64,
    members: u64,
}

impl Schedule {
    /// A schedule that begins at `start`. `records_per_second_milli` is the rate of all members together, in
    /// thousandths of a record a second; zero is taken as one.
    pub fn new(start: Nanoseconds, records_per_second_milli: u64, member: u32, members: u32) -> Schedule {
        Schedule {
            start,
            records_per_second_milli: records_per_second_milli.max(1),
            member: u64::from(member),
            members: u64::from(members.max(1)),
        }
    }

    /// When this member's record `index` is meant to be sent.
    pub fn intended(&self, index: u64) -> Nanoseconds {
        let global = u128::from(index) * u128::from(self.members) + u128::from(self.member);
        let after = global * 1_000_000_000_000 / u128::from(self.records_per_second_milli);
        self.start.saturating_add(u64::try_from(after).unwrap_or(u64::MAX))
    }

    /// How many of this member's records are meant to be sent at or before `time`.
    pub fn count_until(&self, time: Nanoseconds) -> u64 {
        if time < self.start {
            return 0;
        }
        let elapsed = u128::from(time - self.start);
        // intended(i) <= time  <=>  global(i) * 10^12 < (elapsed + 1) * rate
        let global_end =
            ((elapsed + 1) * u128::from(self.records_per_second_milli)).div_ceil(1_000_000_000_000);
        let members = u128::from(self.members);
        let own = global_end.saturating_sub(u128::from(self.member)).div_ceil(members);
        u64::try_from(own).unwrap_or(u64::MAX)
    }
}

/// When a batch is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchRule {
    /// At most this many records; at least 1.
    pub records_max: u32,
    /// A batch that is not full leaves this long after its first record was due; `None` waits until it is full.
    pub linger: Option<Nanoseconds>,
}

/// One batch to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPlan {
    /// Index of its first record in this producer's schedule.
    pub first: u64,
    /// How many records, at least 1.
    pub count: u32,
    /// When the batch may leave. Later than `now` means: sleep until then.
    pub due: Nanoseconds,
}

/// Cuts a schedule into batches, in order, without gaps.
#[derive(Clone, Debug)]
pub struct Pacer {
    schedule: Schedule,
    rule: BatchRule,
    next: u64,
}

impl Pacer {
    /// A pacer at the first record of `schedule`.
    pub fn new(schedule: Schedule, rule: BatchRule) -> Pacer {
        Pacer { schedule, rule: BatchRule { records_max: rule.records_max.max(1), ..rule }, next: 0 }
    }

    /// The schedule it follows.
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }

    /// The next batch if it had to be closed at `now`, without taking it. A producer that is behind gets fuller
    /// batches, as the accumulator of a real client would give it.
    pub fn peek(&self, now: Nanoseconds) -> BatchPlan {
        let first_intended = self.schedule.intended(self.next);
        let full = self.schedule.intended(self.next + u64::from(self.rule.records_max) - 1);
        let lingered = self.rule.linger.map_or(u64::MAX, |linger| first_intended.saturating_add(linger));
        if full <= lingered.max(now) {
            return BatchPlan {
                first: self.next,
                count: self.rule.records_max,
                due: full.min(lingered).max(first_intended),
            };
        }
        let until = lingered.max(now.min(full));
        let due_records = self.schedule.count_until(until).saturating_sub(self.next);
        let count = u32::try_from(due_records).unwrap_or(u32::MAX).clamp(1, self.rule.records_max);
        BatchPlan { first: self.next, count, due: lingered.min(full) }
    }

    /// Takes `plan`, which must come from [`Pacer::peek`] since the last take.
    pub fn take(&mut self, plan: BatchPlan) {
        assert_eq!(plan.first, self.next, "a plan is taken once and in order");
        self.next += u64::from(plan.count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn drain(pacer: &mut Pacer, now: impl Fn(BatchPlan) -> u64, until: u64) -> Vec<BatchPlan> {
        let mut plans = Vec::new();
        let mut clock = 0;
        loop {
            let mut plan = pacer.peek(clock);
            if plan.due > until {
                return plans;
            }
            clock = clock.max(now(plan));
            plan = pacer.peek(clock);
            pacer.take(plan);
            plans.push(plan);
        }
    }

    #[test]
    fn intended_times_never_drift_from_the_rate() {
        // 3 records a second does not divide a second: the error must not add up over an hour.
        let schedule = Schedule::new(5, 3_000, 0, 1);
        assert_eq!(schedule.intended(0), 5);
        assert_eq!(schedule.intended(1), 5 + 333_333_333);
        assert_eq!(schedule.intended(3 * 3_600), 5 + 3_600 * SECOND);
    }

    #[test]
    fn members_interleave_to_exactly_the_total_rate() {
        let schedules: Vec<Schedule> = (0..4).map(|member| Schedule::new(0, 1_000_000, member, 4)).collect();
        let mut times: Vec<u64> =
            schedules.iter().flat_map(|schedule| (0..250).map(|index| schedule.intended(index))).collect();
        times.sort_unstable();
        let expected: Vec<u64> = (0..1_000).map(|index| index * 1_000_000).collect();
        assert_eq!(times, expected);
    }

    #[test]
    fn count_until_is_the_inverse_of_intended() {
        for (rate_milli, member, members) in [(1_000, 0, 1), (3_000, 1, 2), (7_777_777, 2, 3), (500, 0, 1)] {
            let schedule = Schedule::new(17, rate_milli, member, members);
            for index in [0u64, 1, 2, 9, 1_000, 123_456] {
                let time = schedule.intended(index);
                assert_eq!(schedule.count_until(time), index + 1, "rate {rate_milli}, index {index}");
                assert!(schedule.count_until(time - 1) <= index);
            }
            assert_eq!(schedule.count_until(0), 0);
        }
    }

    #[test]
    fn full_batches_leave_when_their_last_record_is_due() {
        let rule = BatchRule { records_max: 10, linger: None };
        let mut pacer = Pacer::new(Schedule::new(0, 1_000_000, 0, 1), rule);
        let plan = pacer.peek(0);
        assert_eq!(plan, BatchPlan { first: 0, count: 10, due: 9_000_000 });
        pacer.take(plan);
        assert_eq!(pacer.peek(0), BatchPlan { first: 10, count: 10, due: 19_000_000 });
    }

    #[test]
    fn linger_closes_a_batch_early_and_keeps_every_record() {
        // One record a millisecond, 100 a batch, 5 ms linger: batches of 6 (0..=5 ms).
        let rule = BatchRule { records_max: 100, linger: Some(5_000_000) };
        let mut pacer = Pacer::new(Schedule::new(0, 1_000_000, 0, 1), rule);
        let plans = drain(&mut pacer, |plan| plan.due, SECOND);
        assert_eq!(plans[0], BatchPlan { first: 0, count: 6, due: 5_000_000 });
        assert_eq!(plans[1], BatchPlan { first: 6, count: 6, due: 11_000_000 });
        let mut next = 0;
        for plan in &plans {
            assert_eq!(plan.first, next, "no gap and no overlap");
            next += u64::from(plan.count);
        }
    }

    #[test]
    fn a_stall_makes_sends_late_but_skips_none() {
        let rule = BatchRule { records_max: 50, linger: Some(1_000_000) };
        let mut pacer = Pacer::new(Schedule::new(0, 10_000_000, 0, 1), rule);
        // The sender wakes 200 ms late once, at the third batch.
        let plans = drain(&mut pacer, |plan| if plan.first == 22 { 200_000_000 } else { plan.due }, SECOND);
        let late = plans.iter().find(|plan| plan.first == 22).copied();
        // Behind schedule, it fills batches to the brim until it has caught up; the due time stays what it was.
        assert_eq!(late, Some(BatchPlan { first: 22, count: 50, due: 2_200_000 + 1_000_000 }));
        let total: u64 = plans.iter().map(|plan| u64::from(plan.count)).sum();
        let offered = Schedule::new(0, 10_000_000, 0, 1).count_until(SECOND);
        assert!(offered - total <= 50, "{total} of {offered} records");
    }

    #[test]
    fn zero_linger_sends_record_by_record() {
        let rule = BatchRule { records_max: 50, linger: Some(0) };
        let mut pacer = Pacer::new(Schedule::new(100, 1_000_000, 0, 1), rule);
        for index in 0..5 {
            let plan = pacer.peek(0);
            assert_eq!(plan, BatchPlan { first: index, count: 1, due: 100 + index * 1_000_000 });
            pacer.take(plan);
        }
    }
}
