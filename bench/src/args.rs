//! The command line of `ringlog bench` and `ringlog-bench`, and what it means once checked.
//!
//! It decides nothing at run time: [`Plan`] is a value that the rest of the crate reads.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, ValueEnum};
use ringlog_io::{CpuId, DriverKind, parse_cpu_list};
use ringlog_protocol::records::compression::Compression;

use crate::client::address::{BrokerAddress, parse_bootstrap};
use crate::client::producer::{Acks, IDEMPOTENT_BATCHES_PER_PARTITION};
use crate::error::BenchError;
use crate::pacing::BatchRule;
use crate::payload::PayloadKind;
use crate::record::RECORD_BYTES_MIN;
use crate::units::{Rate, parse_bytes, parse_duration};

/// The largest record; larger ones need broker settings that few have.
const RECORD_BYTES_MAX: u64 = 64 << 20;
/// Bytes of a record in a batch beside key and value: lengths, deltas, attributes.
const RECORD_OVERHEAD_BYTES: u64 = 16;
/// Bounds of counts, so that a typo does not start a million tasks.
const WORKERS_MAX: u32 = 10_000;
const THREADS_MAX: u32 = 256;

const AFTER_HELP: &str = "\
Examples (`ringlog bench` and `ringlog-bench` are the same):
  ringlog bench                            its own broker, 10k records a second
  ringlog bench produce -b host:9092 --rate 200k/s --record-size 100 \\
    --records-per-batch 10 --partitions 100
  ringlog bench consume --consumers 4 --preload 1GiB
  ringlog bench e2e --rate 50MB/s --acks 1 -o json --report run.json

Exit codes: 0 measured and every record verified, 1 failed, 2 wrong usage, 130 interrupted.";

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// Producers only; everything is read back and verified after the measurement.
    Produce,
    /// Readers only: each consumer reads the whole topic, again and again.
    Consume,
    /// Producers and consumers at once; partitions are shared among the consumers.
    E2e,
}

/// Which driver carries the generator's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum IoDriver {
    /// io_uring, or epoll where the kernel refuses it.
    Auto,
    /// io_uring or an error.
    #[value(name = "io_uring")]
    IoUring,
    /// epoll.
    Epoll,
}

impl From<IoDriver> for DriverKind {
    fn from(driver: IoDriver) -> DriverKind {
        match driver {
            IoDriver::Auto => DriverKind::Auto,
            IoDriver::IoUring => DriverKind::IoUring,
            IoDriver::Epoll => DriverKind::Epoll,
        }
    }
}

/// How the result is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// The report as one JSON document on standard output.
    Json,
}

/// Offer load to a Kafka-compatible broker at a constant rate, measure from the intended send time, verify every record.
///
/// Without --bootstrap-server it starts a broker of its own on a temporary folder in the current directory (so that
/// this file system is measured) and removes it afterwards.
#[derive(Clone, Debug, ClapArgs)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// What to measure.
    #[arg(value_enum, default_value = "e2e")]
    pub workload: Workload,
    /// Broker addresses, HOST:PORT, separated by commas. Any Kafka broker; plain TCP.
    #[arg(short = 'b', long, value_name = "LIST")]
    pub bootstrap_server: Option<String>,
    /// Topic to use; a missing one is created. Default: a new one, deleted at the end.
    #[arg(short, long, value_name = "NAME")]
    pub topic: Option<String>,
    /// Partitions of the topic when it is created.
    #[arg(short, long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub partitions: u32,
    /// Replicas of the topic when it is created; -1 = the broker's default.
    #[arg(long, default_value_t = -1, value_name = "N", allow_negative_numbers = true)]
    pub replication_factor: i16,
    /// Config of the topic when it is created; may be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
    pub topic_config: Vec<String>,
    /// Bytes of one record, key and value together.
    #[arg(long, default_value = "1024", value_name = "SIZE")]
    pub record_size: String,
    /// Bytes of a full batch, before compression.
    #[arg(long, default_value = "64KiB", value_name = "SIZE", conflicts_with = "records_per_batch")]
    pub batch_size: String,
    /// Records of a batch, exactly, however long it takes to fill (unless --linger is given).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub records_per_batch: Option<u32>,
    /// How long a batch that is not full waits for more records. Default: 5ms, or unlimited with --records-per-batch.
    #[arg(long, value_name = "TIME")]
    pub linger: Option<String>,
    /// Batches of different partitions sent in one request.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batches_per_request: u32,
    /// What must have happened before the broker answers: 0, 1 or all.
    #[arg(short, long, default_value = "all", value_name = "ACKS")]
    pub acks: Acks,
    /// Whether producers are idempotent. Default: true with acks=all.
    #[arg(long, value_name = "BOOL")]
    pub idempotent: Option<bool>,
    /// none, gzip, snappy, lz4 or zstd.
    #[arg(short = 'z', long, default_value = "none", value_name = "CODEC")]
    pub compression: String,
    /// Producers, each with its own connections and its own sequence.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(WORKERS_MAX)))]
    pub producers: u32,
    /// Consumers, each with its own connections.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(WORKERS_MAX)))]
    pub consumers: u32,
    /// Connections of each producer to each broker.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub connections: u32,
    /// Batches of a producer that may wait for their answer. The idempotent protocol allows 5 of one partition.
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub in_flight: u32,
    /// Offered load of all producers: records (200k/s) or bytes (100MB/s) a second. With `consume`: the most that the
    /// readers take, unlimited by default.
    #[arg(short, long, value_name = "RATE", conflicts_with = "closed")]
    pub rate: Option<Rate>,
    /// Closed loop instead: each producer keeps N batches in flight. Latencies then hide stalls, and the report says so.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub closed: Option<u32>,
    /// How long to measure.
    #[arg(short, long, default_value = "60s", value_name = "TIME")]
    pub duration: String,
    /// How long to run at full load before measuring.
    #[arg(long, default_value = "5s", value_name = "TIME")]
    pub warmup: String,
    /// With `consume`: how much to write first; 0 = read what the topic holds.
    #[arg(long, default_value = "256MiB", value_name = "SIZE")]
    pub preload: String,
    /// Soft bound of one fetch answer.
    #[arg(long, default_value = "16MiB", value_name = "SIZE")]
    pub fetch_bytes: String,
    /// Payload: random, ratio:0.5 (share that does not compress) or file:PATH.
    #[arg(long, default_value = "random", value_name = "KIND")]
    pub payload: PayloadKind,
    /// Seed of payloads; the same seed offers the same bytes.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// Threads of the generator, each with an executor and connections of its own.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(THREADS_MAX)))]
    pub threads: u32,
    /// CPUs to bind the generator's threads to, such as 1 or 2-3.
    #[arg(long, value_name = "LIST")]
    pub pin_cpu: Option<String>,
    /// I/O driver of the generator.
    #[arg(long, value_enum, default_value = "auto", value_name = "DRIVER")]
    pub io_driver: IoDriver,
    /// Process id of a broker on this machine: its CPU time and memory are reported.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub broker_pid: Option<u32>,
    /// CPUs for the temporary broker, as `ringlog broker --cpuset`.
    #[arg(long, value_name = "LIST", conflicts_with = "bootstrap_server")]
    pub broker_cpuset: Option<String>,
    /// One more argument for the temporary broker; may be repeated.
    #[arg(long, value_name = "ARG", allow_hyphen_values = true, conflicts_with = "bootstrap_server")]
    pub broker_arg: Vec<String>,
    /// Table or JSON on standard output.
    #[arg(short, long, value_enum, default_value = "table")]
    pub output: Output,
    /// Also write the JSON report to this file.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Do not delete the topic afterwards.
    #[arg(long)]
    pub keep_topic: bool,
}

/// How records are offered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Open loop: this many thousandths of a record a second, whatever the broker does.
    Open { records_per_second_milli: u64 },
    /// Closed loop: this many batches in flight for each producer.
    Closed { batches_in_flight: u32 },
    /// Readers without a bound.
    Unbounded,
}

/// Checked arguments.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The arguments as given.
    pub args: Args,
    /// Where to connect; `None` = start a broker.
    pub bootstrap: Option<Vec<BrokerAddress>>,
    /// Topic configs.
    pub topic_configs: Vec<(String, String)>,
    /// Key and value of one record.
    pub record_bytes: u32,
    /// How batches close.
    pub batch: BatchRule,
    /// Codec of batches.
    pub compression: Compression,
    /// Whether producers are idempotent.
    pub is_idempotent: bool,
    /// The offered load.
    pub pace: Pace,
    /// Measured time.
    pub duration: Duration,
    /// Time before it.
    pub warmup: Duration,
    /// Records to write before `consume`.
    pub preload_records: u64,
    /// Soft bound of a fetch.
    pub fetch_bytes: i32,
    /// CPUs of the threads, used in turn.
    pub pin: Vec<CpuId>,
}

/// The rate where none is given, records a second.
const DEFAULT_RATE: Rate = Rate::Records(10_000.0);
const DEFAULT_LINGER: Duration = Duration::from_millis(5);

impl Plan {
    /// Checks the arguments.
    ///
    /// # Errors
    /// [`BenchError::Usage`] naming the option.
    pub fn new(args: Args) -> Result<Plan, BenchError> {
        let record_bytes = size("--record-size", &args.record_size)?;
        if !(u64::from(RECORD_BYTES_MIN)..=RECORD_BYTES_MAX).contains(&record_bytes) {
            let reason = format!(
                "{record_bytes} bytes are outside {RECORD_BYTES_MIN}..={RECORD_BYTES_MAX} (a record carries key, time and checksum)"
            );
            return Err(usage("--record-size", reason));
        }
        let record_bytes = record_bytes as u32;
        let duration = time("--duration", &args.duration)?;
        if duration < Duration::from_millis(100) {
            return Err(usage("--duration", "must be at least 100ms".to_owned()));
        }
        let is_idempotent = args.idempotent.unwrap_or(args.acks == Acks::All);
        if is_idempotent && args.acks != Acks::All {
            return Err(usage("--idempotent", "needs --acks all".to_owned()));
        }
        if args.workload == Workload::E2e && args.consumers > args.partitions {
            let reason = format!(
                "{} consumers share {} partitions; give each at least one",
                args.consumers, args.partitions
            );
            return Err(usage("--consumers", reason));
        }
        let fetch_bytes = size("--fetch-bytes", &args.fetch_bytes)?;
        let fetch_bytes = i32::try_from(fetch_bytes.clamp(1, 100 << 20)).expect("clamped to 100 MiB");
        let pin = match &args.pin_cpu {
            None => Vec::new(),
            Some(list) => parse_cpu_list(list).map_err(|error| usage("--pin-cpu", error.to_string()))?,
        };
        let compression = args
            .compression
            .parse::<Compression>()
            .map_err(|error| usage("--compression", error.to_string()))?;
        let bootstrap = match &args.bootstrap_server {
            None => None,
            Some(list) => {
                Some(parse_bootstrap(list).map_err(|error| usage("--bootstrap-server", error.to_string()))?)
            }
        };
        let preload = size("--preload", &args.preload)?;
        Ok(Plan {
            bootstrap,
            topic_configs: args
                .topic_config
                .iter()
                .map(|text| topic_config(text))
                .collect::<Result<_, _>>()?,
            record_bytes,
            batch: batch_rule(&args, record_bytes)?,
            compression,
            is_idempotent,
            pace: pace(&args, record_bytes),
            duration,
            warmup: time("--warmup", &args.warmup)?,
            preload_records: preload.div_ceil(u64::from(record_bytes)),
            fetch_bytes,
            pin,
            args,
        })
    }

    /// Batches of one partition that may be in flight.
    pub fn in_flight_per_partition(&self) -> usize {
        let limit = self.in_flight();
        if self.is_idempotent { limit.min(IDEMPOTENT_BATCHES_PER_PARTITION) } else { limit }
    }

    /// Batches of one producer that may be in flight.
    pub fn in_flight(&self) -> usize {
        match self.pace {
            Pace::Closed { batches_in_flight } => batches_in_flight as usize,
            Pace::Open { .. } | Pace::Unbounded => self.args.in_flight as usize,
        }
    }
}

fn pace(args: &Args, record_bytes: u32) -> Pace {
    match (args.closed, args.rate, args.workload) {
        (Some(batches_in_flight), _, _) => Pace::Closed { batches_in_flight },
        (None, None, Workload::Consume) => Pace::Unbounded,
        (None, rate, _) => {
            let rate = rate.unwrap_or(DEFAULT_RATE);
            Pace::Open { records_per_second_milli: rate.records_per_second_milli(record_bytes) }
        }
    }
}

fn batch_rule(args: &Args, record_bytes: u32) -> Result<BatchRule, BenchError> {
    let linger = args.linger.as_deref().map(|text| time("--linger", text)).transpose()?;
    let (records_max, default_linger) = match args.records_per_batch {
        Some(records) => (records, None),
        None => {
            let batch_bytes = size("--batch-size", &args.batch_size)?;
            let records = batch_bytes / (u64::from(record_bytes) + RECORD_OVERHEAD_BYTES);
            (u32::try_from(records.max(1)).unwrap_or(u32::MAX), Some(DEFAULT_LINGER))
        }
    };
    let linger = linger.or(default_linger).map(|linger| u64::try_from(linger.as_nanos()).unwrap_or(u64::MAX));
    Ok(BatchRule { records_max, linger })
}

fn topic_config(text: &str) -> Result<(String, String), BenchError> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(usage("--topic-config", format!("'{text}' is not KEY=VALUE"))),
    }
}

fn size(option: &'static str, text: &str) -> Result<u64, BenchError> {
    parse_bytes(text).map_err(|error| usage(option, error.to_string()))
}

fn time(option: &'static str, text: &str) -> Result<Duration, BenchError> {
    parse_duration(text).map_err(|error| usage(option, error.to_string()))
}

fn usage(option: &'static str, reason: String) -> BenchError {
    BenchError::Usage { option, reason }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn plan(line: &str) -> Result<Plan, BenchError> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Plan::new(Cli::try_parse_from(words).expect(line).args)
    }

    fn is_rejected_by_the_parser(line: &str) -> bool {
        Cli::try_parse_from(std::iter::once("bench").chain(line.split_whitespace())).is_err()
    }

    #[test]
    fn defaults_are_an_open_end_to_end_run() {
        let plan = plan("").expect("defaults are valid");
        assert_eq!(plan.args.workload, Workload::E2e);
        assert_eq!(plan.pace, Pace::Open { records_per_second_milli: 10_000_000 });
        assert_eq!(plan.batch, BatchRule { records_max: 63, linger: Some(5_000_000) });
        assert!(plan.is_idempotent && plan.bootstrap.is_none());
        assert_eq!((plan.in_flight(), plan.in_flight_per_partition()), (64, 5));
    }

    #[test]
    fn rates_batches_and_loops_are_understood() {
        let line =
            "produce --rate 100MB/s --record-size 1000 --records-per-batch 10 --acks 1 -d 2s --warmup 0";
        let open = plan(line).expect(line);
        assert_eq!(open.pace, Pace::Open { records_per_second_milli: 100_000_000 });
        assert_eq!(open.batch, BatchRule { records_max: 10, linger: None });
        assert!(!open.is_idempotent);
        assert_eq!(open.in_flight_per_partition(), 64);
        let closed = plan("produce --closed 4").expect("a closed loop");
        assert_eq!((closed.pace, closed.in_flight()), (Pace::Closed { batches_in_flight: 4 }, 4));
        assert_eq!(plan("consume").expect("readers").pace, Pace::Unbounded);
    }

    #[test]
    fn impossible_requests_name_the_option() {
        for (line, option) in [
            ("--record-size 10", "--record-size"),
            ("--record-size 1x", "--record-size"),
            ("--duration 1ms", "--duration"),
            ("--acks 1 --idempotent true", "--idempotent"),
            ("e2e --partitions 2 --consumers 3", "--consumers"),
            ("--compression brotli", "--compression"),
            ("--topic-config x", "--topic-config"),
            ("-b host:0", "--bootstrap-server"),
            ("--pin-cpu a", "--pin-cpu"),
        ] {
            match plan(line) {
                Err(BenchError::Usage { option: named, .. }) => assert_eq!(named, option, "{line}"),
                other => panic!("{line}: {other:?}"),
            }
        }
    }

    #[test]
    fn contradictions_are_refused_by_the_parser() {
        for line in [
            "--closed 1 --rate 5/s",
            "--batch-size 1k --records-per-batch 2",
            "--rate fast",
            "--acks 2",
            "-b a --broker-cpuset 1",
            "--producers 0",
        ] {
            assert!(is_rejected_by_the_parser(line), "{line}");
        }
    }
}
