//! Owns the stages of a request and the clock that divides its time among them. It reads no clock: the caller passes
//! nanoseconds of the monotonic clock, which all cores of a machine share.

/// What a request spends time on, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// From the last byte received to the decoded request.
    Parse,
    /// From one core to another and back.
    Hop,
    /// Waiting for its turn on the owner core.
    Queue,
    /// From append to durable.
    Journal,
    /// A fetch that waits for bytes to arrive; wanted by the client, so not counted as slowness.
    Wait,
    /// Encoding and handing the answer to the kernel.
    Send,
}

pub const STAGES: [Stage; 6] =
    [Stage::Parse, Stage::Hop, Stage::Queue, Stage::Journal, Stage::Wait, Stage::Send];

impl Stage {
    /// The label in metrics and in `/slow`.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Parse => "parse",
            Stage::Hop => "hop",
            Stage::Queue => "queue",
            Stage::Journal => "journal",
            Stage::Wait => "wait",
            Stage::Send => "send",
        }
    }
}

/// Nanoseconds in each stage. Plain data: an owner core measures its part and sends it back in the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StageTimes([u64; STAGES.len()]);

impl StageTimes {
    pub fn get(&self, stage: Stage) -> u64 {
        self.0[stage as usize]
    }

    pub fn add(&mut self, stage: Stage, elapsed_ns: u64) {
        let cell = &mut self.0[stage as usize];
        *cell = cell.saturating_add(elapsed_ns);
    }

    /// Takes the longer of each stage: several owner cores worked on one request side by side.
    pub fn merge_parallel(&mut self, other: &StageTimes) {
        for (own, others) in self.0.iter_mut().zip(other.0) {
            *own = (*own).max(others);
        }
    }

    pub fn total_ns(&self) -> u64 {
        self.0.iter().fold(0, |sum, elapsed| sum.saturating_add(*elapsed))
    }
}

/// Divides one request's time: each mark charges what passed since the last one to a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StageClock {
    started_ns: u64,
    last_ns: u64,
    times: StageTimes,
}

impl StageClock {
    /// Starts when the request's last byte has arrived.
    pub fn start(now_ns: u64) -> StageClock {
        StageClock { started_ns: now_ns, last_ns: now_ns, times: StageTimes::default() }
    }

    /// Charges the time since the last mark to `stage`.
    pub fn mark(&mut self, stage: Stage, now_ns: u64) {
        self.times.add(stage, now_ns.saturating_sub(self.last_ns));
        self.last_ns = self.last_ns.max(now_ns);
    }

    /// Charges the time since the last mark to what owner cores measured, and the rest of it to the hop between cores.
    pub fn mark_remote(&mut self, remote: &StageTimes, now_ns: u64) {
        let elapsed_ns = now_ns.saturating_sub(self.last_ns);
        for stage in STAGES {
            self.times.add(stage, remote.get(stage));
        }
        self.times.add(Stage::Hop, elapsed_ns.saturating_sub(remote.total_ns()));
        self.last_ns = self.last_ns.max(now_ns);
    }

    pub fn started_ns(&self) -> u64 {
        self.started_ns
    }

    pub fn times(&self) -> &StageTimes {
        &self.times
    }

    /// From start to the last mark.
    pub fn total_ns(&self) -> u64 {
        self.last_ns - self.started_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_divide_the_whole_time() {
        let mut clock = StageClock::start(1_000);
        clock.mark(Stage::Parse, 1_010);
        let mut remote = StageTimes::default();
        remote.add(Stage::Queue, 5);
        remote.add(Stage::Journal, 100);
        clock.mark_remote(&remote, 1_130);
        clock.mark(Stage::Send, 1_150);
        assert_eq!(clock.total_ns(), 150);
        assert_eq!(clock.times().total_ns(), 150);
        let times: Vec<u64> = STAGES.iter().map(|stage| clock.times().get(*stage)).collect();
        assert_eq!(times, vec![10, 15, 5, 100, 0, 20]);
    }

    #[test]
    fn a_clock_read_on_another_core_may_lie_before() {
        let mut clock = StageClock::start(1_000);
        clock.mark(Stage::Parse, 990);
        assert_eq!(clock.total_ns(), 0);
        clock.mark(Stage::Send, 1_001);
        assert_eq!((clock.total_ns(), clock.times().total_ns()), (1, 1));
    }

    #[test]
    fn parallel_owners_count_once() {
        let mut first = StageTimes::default();
        first.add(Stage::Journal, 10);
        let mut second = StageTimes::default();
        second.add(Stage::Journal, 30);
        second.add(Stage::Queue, 1);
        first.merge_parallel(&second);
        assert_eq!((first.get(Stage::Journal), first.get(Stage::Queue)), (30, 1));
    }

    #[test]
    fn stages_index_their_cells() {
        for (index, stage) in STAGES.iter().enumerate() {
            assert_eq!(*stage as usize, index);
        }
    }
}
