//! The soak: plays many seeds of the simulated broker, says how fast, and stops at the first seed that breaks a rule with
//! the command that plays it again. `scripts/simulate.sh` builds and runs it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use serde_json::json;

#[path = "../tests/support/mod.rs"]
mod support;

use support::history::Operations;
use support::reached::BRANCHES;
use support::scene::{self, Run, Scale};
use support::weather::Spell;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// From so many seeds on every registered branch must have been reached.
const SEEDS_THAT_REACH_ALL: u64 = 300;
/// Pause between two lines of progress.
const PROGRESS: Duration = Duration::from_secs(10);
/// Rules of a failed seed that are shown.
const VIOLATIONS_SHOWN: usize = 10;

#[derive(Parser, Debug)]
#[command(
    name = "simulate",
    about = "Plays seeds of the simulated broker: power cuts, restarts, real clients."
)]
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
    /// How much happens in a seed. The same seed at another scale is another run
    #[arg(long, value_enum, default_value_t = ScaleName::Soak)]
    scale: ScaleName,
    /// Play each so many-th seed twice and compare the traces; 0 = never
    #[arg(long, default_value_t = 50)]
    twice_every: u64,
    /// Play on after a seed failed
    #[arg(long)]
    keep_going: bool,
    /// Form of the summary on standard output
    #[arg(short, long, value_enum, default_value_t = Form::Text)]
    output: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ScaleName {
    Test,
    Soak,
}

impl ScaleName {
    fn scale(self) -> Scale {
        match self {
            ScaleName::Test => Scale::TEST,
            ScaleName::Soak => Scale::SOAK,
        }
    }

    fn flag(self) -> &'static str {
        match self {
            ScaleName::Test => " --scale test",
            ScaleName::Soak => "",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Text,
    Json,
}

/// What one seed came to.
struct Played {
    seed: u64,
    /// `None` after a panic.
    run: Option<Run>,
    reached: BTreeMap<&'static str, u64>,
    /// Whether a second run of the seed was the same; true where there was none.
    is_repeatable: bool,
    /// Runs of this seed.
    runs: u64,
}

impl Played {
    fn is_sound(&self) -> bool {
        self.is_repeatable && self.run.as_ref().is_some_and(|run| run.violations.is_empty())
    }
}

#[derive(Default)]
struct Totals {
    seeds: u64,
    runs: u64,
    failed: Vec<u64>,
    operations: Operations,
    records_acked: u64,
    events: u64,
    outages: u64,
    virtual_ms: u64,
    /// How often each bad spell came.
    spells: BTreeMap<Spell, u64>,
    reached: BTreeMap<&'static str, u64>,
}

impl Totals {
    fn add(&mut self, played: &Played) {
        self.seeds += 1;
        self.runs += played.runs;
        for (name, count) in &played.reached {
            *self.reached.entry(name).or_default() += count;
        }
        if !played.is_sound() {
            self.failed.push(played.seed);
        }
        let Some(run) = &played.run else { return };
        let (sum, of_run) = (&mut self.operations, run.operations);
        sum.produce += of_run.produce * played.runs;
        sum.produce_answers += of_run.produce_answers * played.runs;
        sum.fetch += of_run.fetch * played.runs;
        sum.other += of_run.other * played.runs;
        self.records_acked += run.acked * played.runs;
        self.events += run.event_count * played.runs;
        self.outages += u64::from(run.outages) * played.runs;
        self.virtual_ms += run.virtual_ms * played.runs;
        for spell in &run.spells {
            *self.spells.entry(*spell).or_default() += played.runs;
        }
    }

    /// Branches that no seed was in, and bad spells that none had.
    fn unreached(&self) -> Vec<String> {
        let branches = BRANCHES.iter().filter(|name| !self.reached.contains_key(*name));
        let spells = Spell::ALL.iter().filter(|spell| !self.spells.contains_key(*spell));
        branches.map(|name| (*name).to_owned()).chain(spells.map(|spell| format!("{spell:?}"))).collect()
    }

    fn spells_named(&self) -> BTreeMap<String, u64> {
        self.spells.iter().map(|(spell, count)| (format!("{spell:?}"), *count)).collect()
    }
}

fn play(seed: u64, scale: Scale, twice: bool) -> Played {
    let _ = ringlog_io::reached::take();
    let once = || catch_unwind(AssertUnwindSafe(|| scene::run_seed(seed, scale))).ok();
    let run = once();
    let reached = ringlog_io::reached::take();
    let is_repeatable = !twice || (once() == run && ringlog_io::reached::take() == reached);
    Played { seed, run, reached, is_repeatable, runs: 1 + u64::from(twice) }
}

/// Processor time of all threads, in seconds.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    scene::prepare_output();
    let begun = Instant::now();
    let totals = play_all(&arguments, begun);
    let unreached = if arguments.seeds < SEEDS_THAT_REACH_ALL { Vec::new() } else { totals.unreached() };
    match arguments.output {
        Form::Text => print_text(&totals, begun),
        Form::Json => println!("{}", summary(&arguments, &totals, begun)),
    }
    if !unreached.is_empty() {
        eprintln!("simulate: {} seeds never reached {}", totals.seeds, unreached.join(", "));
    }
    if totals.failed.is_empty() && unreached.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn play_all(arguments: &Arguments, begun: Instant) -> Totals {
    let end = arguments.from.saturating_add(arguments.seeds);
    let (next, stop) = (AtomicU64::new(arguments.from), AtomicBool::new(false));
    let (sender, played) = mpsc::channel();
    let mut totals = Totals::default();
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs.max(1) {
            let (sender, next, stop) = (sender.clone(), &next, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let twice = arguments.twice_every != 0 && seed.is_multiple_of(arguments.twice_every);
                    if seed >= end || sender.send(play(seed, arguments.scale.scale(), twice)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut shown = begun;
        for played in played {
            totals.add(&played);
            if !played.is_sound() {
                report_failure(&played, arguments.scale);
                stop.store(!arguments.keep_going, Ordering::Relaxed);
            }
            if shown.elapsed() >= PROGRESS {
                shown = Instant::now();
                eprintln!("simulate: {}", progress(&totals, begun));
            }
        }
    });
    totals
}

fn report_failure(played: &Played, scale: ScaleName) {
    eprintln!("simulate: seed {} FAILED", played.seed);
    if let Some(run) = &played.run {
        let shown: Vec<_> = run.violations.iter().take(VIOLATIONS_SHOWN).collect();
        eprintln!("{} broken rules, first {shown:#?}", run.violations.len());
        eprintln!("what was done: {:#?}", run.course);
    }
    if !played.is_repeatable {
        eprintln!("two runs of the seed differ");
    }
    let twice = if played.runs > 1 { " --twice-every 1" } else { "" };
    eprintln!("play it again: scripts/simulate.sh --seeds 1 --from {}{}{twice}", played.seed, scale.flag());
}

fn progress(totals: &Totals, begun: Instant) -> String {
    let (wall, cpu) = (begun.elapsed().as_secs_f64(), cpu_seconds());
    format!(
        "{} seeds, {:.1} a second; {} operations, {:.0} a CPU second; {} failed",
        totals.seeds,
        totals.seeds as f64 / wall,
        totals.operations.total(),
        totals.operations.total() as f64 / cpu,
        totals.failed.len(),
    )
}

fn print_text(totals: &Totals, begun: Instant) {
    let Operations { produce, produce_answers, fetch, other } = totals.operations;
    println!("{}", progress(totals, begun));
    println!(
        "operations: {produce} batches acknowledged in {produce_answers} answers, {fetch} fetches, {other} others"
    );
    println!(
        "{} records acknowledged, {} outages, {} events, {:.0} s of virtual time, {:.1} s of CPU",
        totals.records_acked,
        totals.outages,
        totals.events,
        totals.virtual_ms as f64 / 1e3,
        cpu_seconds(),
    );
    for (spell, count) in totals.spells_named() {
        println!("spell   {count:>9} {spell}");
    }
    for name in BRANCHES {
        println!("reached {:>9} {name}", totals.reached.get(name).copied().unwrap_or(0));
    }
}

fn summary(arguments: &Arguments, totals: &Totals, begun: Instant) -> serde_json::Value {
    let (wall, cpu) = (begun.elapsed().as_secs_f64(), cpu_seconds());
    let Operations { produce, produce_answers, fetch, other } = totals.operations;
    json!({
        "from": arguments.from,
        "seeds": totals.seeds,
        "runs": totals.runs,
        "failures": totals.failed.len(),
        "failed": totals.failed,
        "operations": totals.operations.total(),
        "batches_acked": produce,
        "produce_answers": produce_answers,
        "fetches_answered": fetch,
        "other_calls": other,
        "records_acked": totals.records_acked,
        "outages": totals.outages,
        "events": totals.events,
        "virtual_seconds": totals.virtual_ms as f64 / 1e3,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "seeds_per_second": totals.seeds as f64 / wall,
        "operations_per_cpu_second": totals.operations.total() as f64 / cpu,
        "answers_per_cpu_second": totals.operations.answers() as f64 / cpu,
        "spells": totals.spells_named(),
        "reached": totals.reached,
        "unreached": totals.unreached(),
    })
}
