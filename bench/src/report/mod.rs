//! The report of a run: one value, printed as a table or as JSON with a versioned schema.
//!
//! It judges: what was measured goes in, verdict and warnings come out. It measures nothing.

pub mod table;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::args::{Pace, Plan, Workload};
use crate::latency::{LatencyHistogram, LatencySummary};
use crate::process::{Machine, ProcessSample};
use crate::units::format_nanoseconds;
use crate::verify::Verification;
use crate::worker::Measured;

/// Raised when a field changes its meaning or goes; new fields do not raise it.
pub const SCHEMA_VERSION: u32 = 1;
/// Above this share of its time the generator may be what limits the run.
pub const GENERATOR_BUSY_MAX: f64 = 0.8;
/// Above this p99 of its own lag too.
pub const SEND_LAG_P99_MAX_NANOSECONDS: u64 = 1_000_000;

/// Whether the figures may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every record was delivered once, in order, unaltered.
    Passed,
    /// It was not, or sends failed.
    Failed,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// See [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Name and version of the generator.
    pub generator_version: String,
    /// Whether the figures may be used.
    pub verdict: Verdict,
    /// Why not.
    pub failures: Vec<String>,
    /// What makes them less than they seem.
    pub warnings: Vec<String>,
    /// What was asked for.
    pub config: ConfigReport,
    /// Where it ran.
    pub machine: Machine,
    /// Whom it drove.
    pub broker: BrokerReport,
    /// What was sent.
    pub produced: Option<ProducedReport>,
    /// What was read while measuring.
    pub consumed: Option<ConsumedReport>,
    /// The generator about itself.
    pub generator: GeneratorReport,
    /// Lost, duplicated, reordered...
    pub verification: Verification,
}

/// What was asked for.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigReport {
    pub workload: Workload,
    /// `open` or `closed`.
    pub r#loop: &'static str,
    /// Records a second, of an open loop.
    pub offered_records_per_second: Option<f64>,
    /// Batches in flight of each producer, of a closed loop.
    pub closed_batches_in_flight: Option<u32>,
    pub topic: String,
    pub partitions: usize,
    pub topic_configs: BTreeMap<String, String>,
    pub record_bytes: u32,
    pub batch_records_max: u32,
    pub linger_microseconds: Option<u64>,
    pub batches_per_request: u32,
    pub acks: String,
    pub is_idempotent: bool,
    pub compression: &'static str,
    pub payload: String,
    pub seed: u64,
    pub producers: u32,
    pub consumers: u32,
    pub connections: u32,
    pub in_flight: usize,
    pub threads: u32,
    pub pinned_cpus: Vec<usize>,
    pub warmup_seconds: f64,
    pub duration_seconds: f64,
}

impl ConfigReport {
    /// The plan as it was run on `topic`.
    pub fn new(plan: &Plan, topic: &str, partitions: usize) -> ConfigReport {
        let (offered, closed) = match plan.pace {
            Pace::Open { records_per_second_milli } => {
                (Some(records_per_second_milli as f64 / 1_000.0), None)
            }
            Pace::Closed { batches_in_flight } => (None, Some(batches_in_flight)),
            Pace::Unbounded => (None, None),
        };
        ConfigReport {
            workload: plan.args.workload,
            r#loop: if matches!(plan.pace, Pace::Open { .. }) { "open" } else { "closed" },
            offered_records_per_second: offered,
            closed_batches_in_flight: closed,
            topic: topic.to_owned(),
            partitions,
            topic_configs: plan.topic_configs.iter().cloned().collect(),
            record_bytes: plan.record_bytes,
            batch_records_max: plan.batch.records_max,
            linger_microseconds: plan.batch.linger.map(|linger| linger / 1_000),
            batches_per_request: plan.args.batches_per_request,
            acks: plan.args.acks.to_string(),
            is_idempotent: plan.is_idempotent,
            compression: plan.compression.name(),
            payload: plan.args.payload.to_string(),
            seed: plan.args.seed,
            producers: plan.args.producers,
            consumers: plan.args.consumers,
            connections: plan.args.connections,
            in_flight: plan.in_flight(),
            threads: plan.args.threads,
            pinned_cpus: plan.pin.iter().map(|cpu| cpu.0).collect(),
            warmup_seconds: plan.warmup.as_secs_f64(),
            duration_seconds: plan.duration.as_secs_f64(),
        }
    }
}

/// Whom it drove, and at what cost to the broker.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BrokerReport {
    pub bootstrap: String,
    pub cluster_id: Option<String>,
    /// Started for this run.
    pub is_temporary: bool,
    /// Its process on this machine, where known.
    pub process: Option<BrokerCost>,
}

/// The broker's CPU time and memory over the measured time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BrokerCost {
    pub pid: u32,
    /// User and system time of all its threads.
    pub cpu_seconds: f64,
    /// Of these, seconds for each 10^9 bytes of keys and values (sent plus read).
    pub cpu_seconds_per_gigabyte: Option<f64>,
    /// And for each 10^6 records (sent plus read).
    pub cpu_seconds_per_million_records: Option<f64>,
    pub resident_bytes_before: u64,
    pub resident_bytes_after: u64,
}

impl BrokerCost {
    /// The difference of two samples, for what moved between them.
    pub fn new(pid: u32, before: ProcessSample, after: ProcessSample, moved: Measured) -> BrokerCost {
        let cpu_seconds = after.cpu_microseconds.saturating_sub(before.cpu_microseconds) as f64 / 1e6;
        let per = |amount: u64, unit: f64| (amount > 0).then(|| cpu_seconds / (amount as f64 / unit));
        BrokerCost {
            pid,
            cpu_seconds,
            cpu_seconds_per_gigabyte: per(moved.bytes, 1e9),
            cpu_seconds_per_million_records: per(moved.records, 1e6),
            resident_bytes_before: before.resident_bytes,
            resident_bytes_after: after.resident_bytes,
        }
    }
}

/// A rate over the measured time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Throughput {
    pub records: u64,
    /// Keys and values.
    pub bytes: u64,
    pub records_per_second: f64,
    pub megabytes_per_second: f64,
}

impl Throughput {
    /// What completed within `seconds`.
    pub fn new(measured: Measured, seconds: f64) -> Throughput {
        Throughput {
            records: measured.records,
            bytes: measured.bytes,
            records_per_second: measured.records as f64 / seconds,
            megabytes_per_second: measured.bytes as f64 / 1e6 / seconds,
        }
    }
}

/// What producers found.
#[derive(Clone, Debug, Serialize)]
pub struct ProducedReport {
    /// Records whose intended time lies in the measured time.
    pub offered_records: u64,
    pub throughput: Throughput,
    /// From the intended time; `None` with acks=0.
    pub acknowledged: Option<LatencySummary>,
    /// From handing over to the connection.
    pub service: Option<LatencySummary>,
    pub batches: u64,
    pub late_batches: u64,
    pub retried_batches: u64,
    pub failed_records: u64,
    /// Waiting for room among the batches in flight.
    pub window_wait: Option<LatencySummary>,
}

/// What readers found.
#[derive(Clone, Debug, Serialize)]
pub struct ConsumedReport {
    pub throughput: Throughput,
    /// From the intended send time to arrival.
    pub end_to_end: Option<LatencySummary>,
    /// Answer times of fetches that brought records: closed loop, service time.
    pub fetch: Option<LatencySummary>,
    /// Times that each reader read the whole topic.
    pub passes: u64,
}

/// The generator about itself.
#[derive(Clone, Debug, Default, Serialize)]
pub struct GeneratorReport {
    pub drivers: Vec<&'static str>,
    /// Share of the measured time in which each thread's loop did not sleep.
    pub thread_busy: Vec<f64>,
    /// From being due, or let go by the window, to being sent.
    pub send_lag: Option<LatencySummary>,
    /// Whether the figures may be the generator's and not the broker's.
    pub is_limit: bool,
    /// Why.
    pub reasons: Vec<String>,
}

impl GeneratorReport {
    /// Judges the generator.
    pub fn new(
        drivers: Vec<&'static str>,
        thread_busy: Vec<f64>,
        send_lag: &LatencyHistogram,
    ) -> GeneratorReport {
        let mut reasons = Vec::new();
        let busiest = thread_busy.iter().copied().fold(0.0, f64::max);
        if busiest > GENERATOR_BUSY_MAX {
            reasons.push(format!(
                "a generator thread was busy {:.0} % of the time (limit {:.0} %)",
                busiest * 100.0,
                GENERATOR_BUSY_MAX * 100.0
            ));
        }
        let lag = send_lag.percentile(99.0);
        if lag > SEND_LAG_P99_MAX_NANOSECONDS {
            reasons.push(format!(
                "1 % of batches were sent {} or more after they were due, with room in the window (limit {})",
                format_nanoseconds(lag),
                format_nanoseconds(SEND_LAG_P99_MAX_NANOSECONDS)
            ));
        }
        GeneratorReport {
            drivers,
            thread_busy,
            send_lag: send_lag.summary(),
            is_limit: !reasons.is_empty(),
            reasons,
        }
    }
}

/// Everything that fails a run, in words.
pub fn failures_of(
    verification: &Verification,
    failed_records: u64,
    first_failure: Option<&str>,
) -> Vec<String> {
    let mut failures = Vec::new();
    for (count, what) in [
        (verification.lost, "records were lost"),
        (verification.duplicated, "records were delivered twice"),
        (verification.reordered, "records were delivered out of order"),
        (verification.corrupt, "records were altered or never sent"),
        (verification.offset_regressions, "offsets did not rise"),
    ] {
        if count > 0 {
            failures.push(format!("{count} {what}"));
        }
    }
    if failed_records > 0 {
        let first = first_failure.unwrap_or("no reason given");
        failures.push(format!("{failed_records} records could not be sent; first: {first}"));
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_damage_and_failed_sends_fail_the_run() {
        let clean = Verification { expected: 5, received: 5, ..Verification::default() };
        assert!(failures_of(&clean, 0, None).is_empty());
        for (damaged, word) in [
            (Verification { lost: 1, ..clean.clone() }, "lost"),
            (Verification { duplicated: 2, ..clean.clone() }, "twice"),
            (Verification { reordered: 3, ..clean.clone() }, "order"),
            (Verification { corrupt: 4, ..clean.clone() }, "altered"),
            (Verification { offset_regressions: 5, ..clean.clone() }, "offsets"),
        ] {
            let failures = failures_of(&damaged, 0, None);
            assert!(failures.len() == 1 && failures[0].contains(word), "{failures:?}");
        }
        assert_eq!(failures_of(&clean, 7, Some("x")), ["7 records could not be sent; first: x"]);
    }

    #[test]
    fn a_busy_or_late_generator_says_so() {
        let mut lag = LatencyHistogram::new();
        lag.record_many(50_000, 1_000);
        let fine = GeneratorReport::new(vec!["epoll"], vec![0.3, 0.79], &lag);
        assert!(!fine.is_limit, "{:?}", fine.reasons);
        let busy = GeneratorReport::new(vec!["epoll"], vec![0.3, 0.85], &lag);
        assert!(busy.is_limit && busy.reasons[0].contains("85 %"));
        lag.record_many(5_000_000, 100);
        let late = GeneratorReport::new(vec!["epoll"], vec![0.1], &lag);
        assert!(late.is_limit && late.reasons[0].contains("5.0"), "{:?}", late.reasons);
    }

    #[test]
    fn broker_cost_is_per_gigabyte_and_per_million_records() {
        let before = ProcessSample { cpu_microseconds: 1_000_000, resident_bytes: 10 };
        let after = ProcessSample { cpu_microseconds: 3_000_000, resident_bytes: 20 };
        let cost = BrokerCost::new(7, before, after, Measured { records: 4_000_000, bytes: 500_000_000 });
        assert_eq!((cost.cpu_seconds, cost.cpu_seconds_per_gigabyte), (2.0, Some(4.0)));
        assert_eq!(cost.cpu_seconds_per_million_records, Some(0.5));
        let nothing = BrokerCost::new(7, before, after, Measured::default());
        assert_eq!(nothing.cpu_seconds_per_gigabyte, None);
    }
}
