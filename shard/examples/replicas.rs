//! Plays many seeds of partitions with three replicas on simulated hosts, as `shard/tests/replicas.rs` plays a few. Prints what they
//! came to as JSON, and with `--evidence` writes it to a file.
//!
//! `cargo run --profile simulate -p ringlog-shard --example replicas -- --seeds 1000 --from 1`

#[path = "../tests/replica_support/mod.rs"]
mod replica_support;
#[path = "../tests/storage_support/mod.rs"]
mod storage_support;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::Parser;
use replica_support::play::{Played, play};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Pause between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);

#[derive(Parser, Debug)]
#[command(name = "replicas", about = "Plays seeds of partitions with three replicas.")]
struct Arguments {
    /// How many seeds to play
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Threads that play; one seed is always one thread
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Play each so many-th seed twice and compare; 0 = never
    #[arg(long, default_value_t = 100)]
    twice_every: u64,
    /// Play on after a seed failed
    #[arg(long)]
    keep_going: bool,
    /// Write the figures here
    #[arg(long)]
    evidence: Option<PathBuf>,
}

struct Result {
    seed: u64,
    /// `None` after a panic.
    played: Option<Played>,
    reached: BTreeMap<&'static str, u64>,
    is_repeatable: bool,
}

#[derive(Default)]
struct Totals {
    seeds: u64,
    failed: Vec<u64>,
    played_twice: u64,
    sum: Played,
    reached: BTreeMap<&'static str, u64>,
}

impl Totals {
    fn add(&mut self, result: &Result) {
        self.seeds += 1;
        for (name, count) in &result.reached {
            *self.reached.entry(name).or_default() += count;
        }
        match &result.played {
            Some(played) if result.is_repeatable && played.violations.is_empty() => {
                let sum = &mut self.sum;
                sum.events += played.events;
                sum.operations += played.operations;
                sum.messages += played.messages;
                sum.acknowledged += played.acknowledged;
                sum.read += played.read;
                sum.terms += played.terms;
                played.counts.iter().for_each(|(what, count)| *sum.counts.entry(what).or_default() += count);
            }
            _ => self.failed.push(result.seed),
        }
    }
}

fn play_seed(seed: u64, twice: bool) -> Result {
    let _before = ringlog_io::reached::take();
    let once = || catch_unwind(AssertUnwindSafe(|| play(seed))).ok();
    let played = once();
    let reached = ringlog_io::reached::take();
    let is_repeatable = !twice || once() == played;
    Result { seed, played, reached, is_repeatable }
}

/// Processor time of all threads, in seconds.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let begun = Instant::now();
    let totals = play_all(&arguments, begun);
    let summary = summary(&arguments, &totals, begun);
    println!("{summary:#}");
    if let Some(path) = &arguments.evidence
        && let Err(error) = std::fs::write(path, format!("{:#}\n", evidence(&summary)))
    {
        eprintln!("replicas: {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    if totals.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn play_all(arguments: &Arguments, begun: Instant) -> Totals {
    let end = arguments.from.saturating_add(arguments.seeds);
    let (next, stop) = (AtomicU64::new(arguments.from), AtomicBool::new(false));
    let (sender, results) = mpsc::channel();
    let mut totals = Totals::default();
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            let (sender, next, stop) = (sender.clone(), &next, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let twice = arguments.twice_every != 0 && seed.is_multiple_of(arguments.twice_every);
                    if seed >= end || sender.send((play_seed(seed, twice), twice)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut shown = begun;
        for (result, twice) in results {
            totals.add(&result);
            totals.played_twice += u64::from(twice);
            if totals.failed.last() == Some(&result.seed) {
                report_failure(&result);
                stop.store(!arguments.keep_going, Ordering::Relaxed);
            }
            if shown.elapsed() >= PROGRESS {
                shown = Instant::now();
                let rate = totals.seeds as f64 / begun.elapsed().as_secs_f64();
                eprintln!(
                    "replicas: {} seeds, {rate:.1} a second; {} failed",
                    totals.seeds,
                    totals.failed.len()
                );
            }
        }
    });
    totals
}

fn report_failure(result: &Result) {
    let Result { seed, played, is_repeatable, .. } = result;
    eprintln!("replicas: seed {seed} FAILED{}", if *is_repeatable { "" } else { ": two runs of it differ" });
    for violation in played.iter().flat_map(|played| &played.violations).take(10) {
        eprintln!("  {violation}");
    }
    eprintln!("play it again: RINGLOG_SEED={seed} cargo test -p ringlog-shard --test replicas");
}

fn summary(arguments: &Arguments, totals: &Totals, begun: Instant) -> serde_json::Value {
    let (wall, cpu) = (begun.elapsed().as_secs_f64(), cpu_seconds());
    let sum = &totals.sum;
    json!({
        "from": arguments.from,
        "seeds": totals.seeds,
        "failures": totals.failed.len(),
        "failed": totals.failed,
        "played_twice": totals.played_twice,
        "operations": sum.operations,
        "messages": sum.messages,
        "events": sum.events,
        "records_acknowledged": sum.acknowledged,
        "records_read": sum.read,
        "terms_led": sum.terms,
        "met": sum.counts,
        "reached": totals.reached,
        "wall_seconds": (wall * 10.0).round() / 10.0,
        "cpu_seconds": (cpu * 10.0).round() / 10.0,
        "operations_per_cpu_second": (sum.operations as f64 / cpu.max(0.001)).round(),
    })
}

/// What a program prints, or nothing.
fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().ok();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

fn machine() -> String {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown CPU", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{model}, {cores} cores, Linux {}", said("uname", &["-r"]))
}

fn evidence(summary: &serde_json::Value) -> serde_json::Value {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = "cargo run --profile simulate -p ringlog-shard --example replicas --";
    json!({
        "figure": "partitions with three replicas on simulated hosts: power cuts, lost, late, doubled and damaged messages, cuts, \
                   changes of leaders and members, copies, retention and deletion",
        "command": format!("{command} {}", arguments.join(" ")),
        "commit": said("git", &["rev-parse", "HEAD"]),
        "date": said("date", &["-u", "+%F"]),
        "machine": machine(),
        "values": summary,
        "bound": [
            { "value": "seeds", "op": ">=", "limit": 1_000 },
            { "value": "failures", "op": "==", "limit": 0 },
        ],
    })
}
