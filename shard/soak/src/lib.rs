//! Plays many seeds of a simulation, several at once, each on one thread from its beginning to its end. Shows how far it is,
//! stops at the first seed that fails, and sums up. Knows nothing of what a seed is: that is [`Soak`], of whoever runs one.
//!
//! Reads the clock to say how long it took; no seed sees it.

#![allow(clippy::disallowed_methods, reason = "how long it took is told, and decides nothing")]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

/// Pause between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);
/// Rules of a failed seed that are shown.
const VIOLATIONS_SHOWN: usize = 10;

/// Which seeds, and how. Flags of every soak.
#[derive(clap::Args, Clone, Debug)]
pub struct Seeds {
    /// How many seeds to play
    #[arg(long = "seeds", value_name = "N", default_value_t = 100)]
    pub count: u64,
    /// The first seed
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub from: u64,
    /// Threads that play; one seed is always one thread
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub jobs: usize,
    /// Play each so many-th seed twice and compare; 0 = never
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub twice_every: u64,
    /// Play on after a seed failed
    #[arg(long)]
    pub keep_going: bool,
}

/// What is played, and what is kept of it.
pub trait Soak {
    /// What one seed came to. Two runs of one seed must come to the same.
    type Outcome: PartialEq + Send;

    /// Before each line on standard error.
    const NAME: &'static str;

    /// The rules that a seed broke; none where it is sound.
    fn violations(outcome: &Self::Outcome) -> Vec<String>;

    /// Counts a seed in that was played `runs` times, sound or not.
    fn add(&mut self, outcome: &Self::Outcome, runs: u64);

    /// What happened in a seed that failed, for whoever looks for the fault; `None` after a panic.
    fn story(&self, seed: u64, outcome: Option<&Self::Outcome>) -> String;

    /// The command that plays a seed again, and twice where that is asked.
    fn again(&self, seed: u64, twice: bool) -> String;

    /// Behind the number of seeds in lines of progress.
    fn progress(&self, cpu_seconds: f64) -> String {
        let _ = cpu_seconds;
        String::new()
    }
}

/// One seed.
struct Played<T> {
    seed: u64,
    /// `None` after a panic.
    outcome: Option<T>,
    reached: BTreeMap<&'static str, u64>,
    is_repeatable: bool,
    runs: u64,
}

/// What all seeds came to, but for what the [`Soak`] itself keeps.
#[derive(Debug)]
pub struct Totals {
    /// Seeds that were played.
    pub seeds: u64,
    /// How often a seed was played; more than `seeds` where some were played twice.
    pub runs: u64,
    /// Seeds that panicked, broke a rule, or were not the same twice. As they ended.
    pub failed: Vec<u64>,
    /// How often each marked branch was entered.
    pub reached: BTreeMap<&'static str, u64>,
    from: u64,
    begun: Instant,
}

impl Totals {
    /// Since the first seed began.
    #[must_use]
    pub fn wall_seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// One line: how far, how fast, how many failed.
    #[must_use]
    pub fn progress(&self, soak: &impl Soak) -> String {
        let (seeds, rate) = (self.seeds, self.seeds as f64 / self.wall_seconds().max(0.001));
        let own = soak.progress(cpu_seconds());
        format!("{seeds} seeds, {rate:.1} a second{own}; {} failed", self.failed.len())
    }

    /// The figures of every soak, with those of `own` among them, which is an object.
    #[must_use]
    pub fn summary(&self, own: Value) -> Value {
        let (wall, cpu) = (self.wall_seconds(), cpu_seconds());
        let mut all = json!({
            "from": self.from,
            "seeds": self.seeds,
            "runs": self.runs,
            "failures": self.failed.len(),
            "failed": self.failed,
            "wall_seconds": tenths(wall),
            "cpu_seconds": tenths(cpu),
            "seeds_per_cpu_second": tenths(self.seeds as f64 / cpu.max(0.001)),
        });
        let figures = all.as_object_mut().expect("it was written as an object");
        figures.extend(into_object(own));
        figures.insert("reached".to_owned(), json!(self.reached));
        all
    }
}

fn into_object(own: Value) -> Map<String, Value> {
    match own {
        Value::Object(own) => own,
        other => unreachable!("the figures of a soak are an object, not {other}"),
    }
}

fn tenths(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// Processor time of all threads so far, in seconds.
#[must_use]
pub fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Plays the seeds. Which thread plays which is chance, and nothing of it shows in an outcome; `soak` counts them in as they end.
/// A seed that panics has failed; the others go on where `seeds.keep_going` says so.
pub fn play_all<S: Soak>(seeds: &Seeds, soak: &mut S, play: impl Fn(u64) -> S::Outcome + Sync) -> Totals {
    let end = seeds.from.saturating_add(seeds.count);
    let (next, stop) = (AtomicU64::new(seeds.from), AtomicBool::new(false));
    let (sender, results) = mpsc::channel();
    let (from, begun) = (seeds.from, Instant::now());
    let mut totals = Totals { seeds: 0, runs: 0, failed: Vec::new(), reached: BTreeMap::new(), from, begun };
    std::thread::scope(|scope| {
        for _ in 0..seeds.jobs.max(1) {
            let (sender, next, stop, play) = (sender.clone(), &next, &stop, &play);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let twice = seeds.twice_every != 0 && seed.is_multiple_of(seeds.twice_every);
                    if seed >= end || sender.send(play_one(play, seed, twice)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut shown = begun;
        for played in results {
            if !count_in(&mut totals, soak, &played) {
                stop.store(!seeds.keep_going, Ordering::Relaxed);
            }
            if shown.elapsed() >= PROGRESS {
                shown = Instant::now();
                eprintln!("{}: {}", S::NAME, totals.progress(soak));
            }
        }
    });
    totals
}

fn play_one<T: PartialEq>(play: impl Fn(u64) -> T, seed: u64, twice: bool) -> Played<T> {
    let _of_the_seed_before = ringlog_io::reached::take();
    let once = || catch_unwind(AssertUnwindSafe(|| play(seed))).ok();
    let outcome = once();
    let reached = ringlog_io::reached::take();
    let is_repeatable = !twice || (once() == outcome && ringlog_io::reached::take() == reached);
    Played { seed, outcome, reached, is_repeatable, runs: 1 + u64::from(twice) }
}

/// Whether the seed is sound; says what is wrong where it is not.
fn count_in<S: Soak>(totals: &mut Totals, soak: &mut S, played: &Played<S::Outcome>) -> bool {
    let Played { seed, outcome, reached, is_repeatable, runs } = played;
    totals.seeds += 1;
    totals.runs += runs;
    for (name, count) in reached {
        *totals.reached.entry(name).or_default() += count;
    }
    if let Some(outcome) = outcome {
        soak.add(outcome, *runs);
    }
    let violations = outcome.as_ref().map(S::violations);
    if *is_repeatable && violations.as_ref().is_some_and(Vec::is_empty) {
        return true;
    }
    totals.failed.push(*seed);
    let name = S::NAME;
    eprintln!("{name}: seed {seed} FAILED{}", if *is_repeatable { "" } else { ": two runs of it differ" });
    let violations = violations.unwrap_or_default();
    if !violations.is_empty() {
        eprintln!("{} broken rules:", violations.len());
    }
    violations.iter().take(VIOLATIONS_SHOWN).for_each(|violation| eprintln!("  {violation}"));
    eprintln!("{}", soak.story(*seed, outcome.as_ref()));
    eprintln!("play it again: {}", soak.again(*seed, *runs > 1));
    false
}

#[cfg(test)]
mod tests;
