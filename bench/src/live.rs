//! What the threads of a run share while it runs: counters, the last second's latencies, when phases begin, whether to
//! stop. And the progress line drawn from it.
//!
//! Counters are relaxed atomics: nobody decides by them. Decisions hang on [`Control`].

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::latency::LatencyHistogram;
use crate::pacing::Nanoseconds;
use crate::units::{format_bytes, format_count, format_nanoseconds};

/// When the phases of a run begin, on the kernel's monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phases {
    /// First record.
    pub start: Nanoseconds,
    /// First measured record.
    pub measure_start: Nanoseconds,
    /// End of the offered load.
    pub measure_end: Nanoseconds,
}

impl Phases {
    /// Phases that begin at `start`.
    pub fn new(start: Nanoseconds, warmup: Duration, duration: Duration) -> Phases {
        let measure_start = start.saturating_add(nanoseconds(warmup));
        Phases { start, measure_start, measure_end: measure_start.saturating_add(nanoseconds(duration)) }
    }

    /// Phases in which nothing is measured and no time ends the load.
    pub fn unmeasured(start: Nanoseconds) -> Phases {
        Phases { start, measure_start: u64::MAX, measure_end: u64::MAX }
    }

    /// Whether there is a measured time.
    pub fn has_measurement(&self) -> bool {
        self.measure_start < self.measure_end
    }

    /// Whether what happens at `time` is measured.
    pub fn measures(&self, time: Nanoseconds) -> bool {
        (self.measure_start..self.measure_end).contains(&time)
    }
}

/// A duration in nanoseconds, at most 584 years.
pub fn nanoseconds(duration: Duration) -> Nanoseconds {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The kernel's monotonic clock, the one that executors use too.
pub fn monotonic_now() -> Nanoseconds {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

/// Start, stop and the order of the end.
#[derive(Debug, Default)]
pub struct Control {
    phases: OnceLock<Phases>,
    is_cancelled: AtomicBool,
    producers_running: AtomicU64,
}

impl Control {
    /// Control over `producers` producers.
    pub fn new(producers: u64) -> Control {
        Control { producers_running: AtomicU64::new(producers), ..Control::default() }
    }

    /// Sets the phases, once.
    pub fn start(&self, phases: Phases) {
        self.phases.get_or_init(|| phases);
    }

    /// The phases, once they are set.
    pub fn phases(&self) -> Option<Phases> {
        self.phases.get().copied()
    }

    /// Ends the run early.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
    }

    /// Whether the run ends early.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    /// One producer has all its answers.
    pub fn producer_ended(&self) {
        self.producers_running.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether every producer has all its answers, so that the ends of the logs stand still.
    pub fn producers_ended(&self) -> bool {
        self.producers_running.load(Ordering::Acquire) == 0
    }
}

/// Counters of a run, for the progress line.
#[derive(Default)]
pub struct Live {
    /// Records acknowledged (with acks=0: handed over).
    pub acked_records: AtomicU64,
    /// Their keys and values, bytes.
    pub acked_bytes: AtomicU64,
    /// Records received.
    pub received_records: AtomicU64,
    /// Their keys and values, bytes.
    pub received_bytes: AtomicU64,
    /// Records whose send failed.
    pub failed_records: AtomicU64,
    interval: Mutex<LatencyHistogram>,
}

impl Live {
    /// Adds a latency of the current second.
    pub fn record_latency(&self, latency: Nanoseconds) {
        self.interval.lock().unwrap_or_else(PoisonError::into_inner).record(latency);
    }

    fn take_interval(&self) -> LatencyHistogram {
        let fresh = LatencyHistogram::new();
        std::mem::replace(&mut *self.interval.lock().unwrap_or_else(PoisonError::into_inner), fresh)
    }
}

/// Tells people how the run goes, on standard error: one line that redraws itself on a terminal, a line every few
/// seconds elsewhere.
pub struct Progress {
    bar: Option<ProgressBar>,
    last_acked: (u64, u64),
    last_received: (u64, u64),
    last_time: Nanoseconds,
    ticks: u64,
}

/// Without a terminal, one line in so many seconds.
const PLAIN_LINE_EVERY: u64 = 5;

impl Progress {
    /// A progress display for standard error.
    pub fn new() -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new_spinner();
            bar.set_style(
                ProgressStyle::with_template("{spinner} {msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_spinner()),
            );
            bar
        });
        Progress { bar, last_acked: (0, 0), last_received: (0, 0), last_time: monotonic_now(), ticks: 0 }
    }

    /// Names the phase that begins.
    pub fn phase(&self, text: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_message(text.to_owned());
                bar.tick();
            }
            None => eprintln!("{text}"),
        }
    }

    /// Called once a second while load runs.
    pub fn tick(&mut self, live: &Live, phases: Phases) {
        let now = monotonic_now();
        let seconds = (now.saturating_sub(self.last_time) as f64 / 1e9).max(1e-3);
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let acked = (load(&live.acked_records), load(&live.acked_bytes));
        let received = (load(&live.received_records), load(&live.received_bytes));
        let interval = live.take_interval();
        let mut text = phase_name(now, phases);
        for (name, current, last) in
            [("sent", acked, self.last_acked), ("read", received, self.last_received)]
        {
            if current.0 > 0 {
                let records = (current.0 - last.0) as f64 / seconds;
                let bytes = (current.1 - last.1) as f64 / seconds;
                text.push_str(&format!(
                    " | {name} {}/s {}/s",
                    format_count(records as u64),
                    format_bytes(bytes)
                ));
            }
        }
        if interval.count() > 0 {
            text.push_str(&format!(" | p99 {}", format_nanoseconds(interval.percentile(99.0))));
        }
        text.push_str(&format!(" | failed {}", load(&live.failed_records)));
        (self.last_acked, self.last_received, self.last_time) = (acked, received, now);
        self.ticks += 1;
        match &self.bar {
            Some(bar) => {
                bar.set_message(text);
                bar.tick();
            }
            None if self.ticks.is_multiple_of(PLAIN_LINE_EVERY) => eprintln!("{text}"),
            None => {}
        }
    }

    /// Clears the line.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Default for Progress {
    fn default() -> Progress {
        Progress::new()
    }
}

fn phase_name(now: Nanoseconds, phases: Phases) -> String {
    let left = |until: Nanoseconds| until.saturating_sub(now).div_ceil(1_000_000_000);
    if now < phases.measure_start {
        format!("warm-up, {} s left", left(phases.measure_start))
    } else if now < phases.measure_end {
        format!("measuring, {} s left", left(phases.measure_end))
    } else {
        "draining".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_measure_between_warm_up_and_end() {
        let phases = Phases::new(1_000, Duration::from_nanos(100), Duration::from_nanos(50));
        assert!(
            !phases.measures(1_099)
                && phases.measures(1_100)
                && phases.measures(1_149)
                && !phases.measures(1_150)
        );
        assert!(phase_name(1_000, phases).starts_with("warm-up"));
        assert!(phase_name(1_120, phases).starts_with("measuring"));
        assert_eq!(phase_name(1_150, phases), "draining");
        assert!(phases.has_measurement());
        let unmeasured = Phases::unmeasured(5);
        assert!(!unmeasured.has_measurement() && !unmeasured.measures(u64::MAX));
    }

    #[test]
    fn the_log_ends_stand_still_once_all_producers_ended() {
        let control = Control::new(2);
        control.producer_ended();
        assert!(!control.producers_ended());
        control.producer_ended();
        assert!(control.producers_ended());
    }

    #[test]
    fn each_second_shows_its_own_latencies() {
        let live = Live::default();
        live.record_latency(5_000_000);
        assert_eq!(live.take_interval().count(), 1);
        assert_eq!(live.take_interval().count(), 0);
    }
}
