//! Plays many crash seeds: a node's storage on a simulated disk whose power goes at random moments. Stops at the first one
//! that breaks a rule with the command that plays it again. `scripts/crash-seeds.sh` builds and runs it.

#[path = "../tests/crash_support/mod.rs"]
mod crash_support;
#[path = "../tests/storage_support/mod.rs"]
mod storage_support;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::Parser;
use crash_support::ledger::Coverage;
use crash_support::play::{Played, play};
use crash_support::script::Script;
use serde_json::json;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Pause between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);

#[derive(Parser, Debug)]
#[command(name = "crash_seeds", about = "Plays crash seeds of the storage of one node.")]
struct Arguments {
    /// How many seeds to play
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Threads that play; one seed is always one thread
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Play each so many-th seed twice and compare the traces; 0 = never
    #[arg(long, default_value_t = 100)]
    twice_every: u64,
    /// Play on after a seed failed
    #[arg(long)]
    keep_going: bool,
}

/// What one seed came to.
struct Result {
    seed: u64,
    /// `None` after a panic.
    played: Option<Played>,
    power_cuts: u64,
    reached: BTreeMap<&'static str, u64>,
    is_repeatable: bool,
}

#[derive(Default)]
struct Totals {
    seeds: u64,
    failed: Vec<u64>,
    power_cuts: u64,
    starts_done: u64,
    starts_cut: u64,
    works_done: u64,
    events: u64,
    coverage: Coverage,
    played_twice: u64,
    reached: BTreeMap<&'static str, u64>,
}

impl Totals {
    fn add(&mut self, result: &Result) {
        self.seeds += 1;
        for (name, count) in &result.reached {
            *self.reached.entry(name).or_default() += count;
        }
        match &result.played {
            Some(played) if result.is_repeatable => {
                self.power_cuts += result.power_cuts;
                self.starts_done += played.starts_done;
                self.starts_cut += played.starts_cut;
                self.works_done += played.works_done;
                self.events += played.events;
                self.coverage.add(&played.coverage);
            }
            _ => self.failed.push(result.seed),
        }
    }
}

fn play_seed(seed: u64, twice: bool) -> Result {
    let script = Script::of(seed);
    let _ = ringlog_io::reached::take();
    let once = || catch_unwind(AssertUnwindSafe(|| play(&script))).ok();
    let played = once();
    let reached = ringlog_io::reached::take();
    let is_repeatable = !twice || once() == played;
    // Each life ends with one, and so do the two starts behind them.
    let power_cuts = script.lives.len() as u64 + script.cores_last.len() as u64;
    Result { seed, played, power_cuts, reached, is_repeatable }
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
    println!("{:#}", summary(&arguments, &totals, begun));
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
                    "crash_seeds: {} seeds, {rate:.1} a second; {} failed",
                    totals.seeds,
                    totals.failed.len()
                );
            }
        }
    });
    totals
}

fn report_failure(result: &Result) {
    let seed = result.seed;
    eprintln!(
        "crash_seeds: seed {seed} FAILED{}",
        if result.is_repeatable { "" } else { ": two runs of it differ" }
    );
    eprintln!("what was played: {:#?}", Script::of(seed));
    eprintln!("play it again: scripts/crash-seeds.sh --seeds 1 --from {seed}");
}

fn summary(arguments: &Arguments, totals: &Totals, begun: Instant) -> serde_json::Value {
    let (wall, cpu) = (begun.elapsed().as_secs_f64(), cpu_seconds());
    json!({
        "from": arguments.from,
        "crash_seeds": totals.seeds,
        "failures": totals.failed.len(),
        "failed": totals.failed,
        "power_cuts": totals.power_cuts,
        "starts_done": totals.starts_done,
        "starts_cut_short": totals.starts_cut,
        "works_done": totals.works_done,
        "played_twice": totals.played_twice,
        "events": totals.events,
        "batches_told": totals.coverage.batches_told,
        "hard_states_told": totals.coverage.states_told,
        "log_starts_told": totals.coverage.starts_told,
        "truncations_told": totals.coverage.truncations_told,
        "beginnings_told": totals.coverage.beginnings_told,
        "deletions_told": totals.coverage.deletions_told,
        "restored_bytes": totals.coverage.restored_bytes,
        "tails_lost": totals.coverage.tails_lost,
        "checkpoints": totals.coverage.checkpoints,
        "carried_entries": totals.coverage.carried_entries,
        "bypass_bytes": totals.coverage.bypass_bytes,
        "segments_removed": totals.coverage.segments_removed,
        "segments_rewritten": totals.coverage.segments_rewritten,
        "logs_poisoned": totals.coverage.logs_poisoned,
        "wall_seconds": (wall * 10.0).round() / 10.0,
        "cpu_seconds": (cpu * 10.0).round() / 10.0,
        "seeds_per_cpu_second": (totals.seeds as f64 / cpu * 10.0).round() / 10.0,
        "reached": totals.reached,
    })
}
