//! The soak: plays many seeds of the simulated broker, says how fast, and stops at the first seed that breaks a rule with
//! the command that plays it again. `scripts/simulate.sh broker` builds and runs it.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use ringlog_soak::{Seeds, Soak, Totals, cpu_seconds, play_all};
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
#[derive(Parser, Debug)]
#[command(
    name = "simulate",
    about = "Plays seeds of the simulated broker: power cuts, restarts, real clients."
)]
struct Arguments {
    #[command(flatten)]
    seeds: Seeds,
    /// How much happens in a seed. The same seed at another scale is another run
    #[arg(long, value_enum, default_value_t = ScaleName::Soak)]
    scale: ScaleName,
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

#[derive(Default)]
struct Brokers {
    scale: Option<ScaleName>,
    operations: Operations,
    records_acked: u64,
    events: u64,
    outages: u64,
    virtual_ms: u64,
    /// How often each bad spell came.
    spells: BTreeMap<Spell, u64>,
}

impl Soak for Brokers {
    type Outcome = Run;
    const NAME: &'static str = "broker";

    fn violations(run: &Run) -> Vec<String> {
        run.violations.iter().map(|violation| format!("{violation:?}")).collect()
    }

    fn add(&mut self, run: &Run, runs: u64) {
        let (sum, of_run) = (&mut self.operations, run.operations);
        sum.produce += of_run.produce * runs;
        sum.produce_answers += of_run.produce_answers * runs;
        sum.fetch += of_run.fetch * runs;
        sum.other += of_run.other * runs;
        self.records_acked += run.acked * runs;
        self.events += run.event_count * runs;
        self.outages += u64::from(run.outages) * runs;
        self.virtual_ms += run.virtual_ms * runs;
        for spell in &run.spells {
            *self.spells.entry(*spell).or_default() += runs;
        }
    }

    fn story(&self, _: u64, run: Option<&Run>) -> String {
        run.map_or_else(|| "it panicked".to_owned(), |run| format!("what was done: {:#?}", run.course))
    }

    fn again(&self, seed: u64, twice: bool) -> String {
        let scale = self.scale.map_or("", ScaleName::flag);
        let twice = if twice { " --twice-every 1" } else { "" };
        format!("scripts/simulate.sh broker --seeds 1 --from {seed}{scale}{twice}")
    }

    fn progress(&self, cpu_seconds: f64) -> String {
        let operations = self.operations.total();
        format!("; {operations} operations, {:.0} a CPU second", operations as f64 / cpu_seconds)
    }
}

impl Brokers {
    /// Branches that no seed was in, and bad spells that none had.
    fn unreached(&self, totals: &Totals) -> Vec<String> {
        let branches = BRANCHES.iter().filter(|name| !totals.reached.contains_key(*name));
        let spells = Spell::ALL.iter().filter(|spell| !self.spells.contains_key(*spell));
        branches.map(|name| (*name).to_owned()).chain(spells.map(|spell| format!("{spell:?}"))).collect()
    }

    fn spells_named(&self) -> BTreeMap<String, u64> {
        self.spells.iter().map(|(spell, count)| (format!("{spell:?}"), *count)).collect()
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    scene::prepare_output();
    let scale = arguments.scale.scale();
    let mut brokers = Brokers { scale: Some(arguments.scale), ..Brokers::default() };
    let totals = play_all(&arguments.seeds, &mut brokers, |seed| scene::run_seed(seed, scale));
    let unreached =
        if arguments.seeds.count < SEEDS_THAT_REACH_ALL { Vec::new() } else { brokers.unreached(&totals) };
    match arguments.output {
        Form::Text => print_text(&totals, &brokers),
        Form::Json => println!("{}", summary(&totals, &brokers)),
    }
    if !unreached.is_empty() {
        eprintln!("broker: {} seeds never reached {}", totals.seeds, unreached.join(", "));
    }
    if totals.failed.is_empty() && unreached.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_text(totals: &Totals, brokers: &Brokers) {
    let Operations { produce, produce_answers, fetch, other } = brokers.operations;
    println!("{}", totals.progress(brokers));
    println!(
        "operations: {produce} batches acknowledged in {produce_answers} answers, {fetch} fetches, {other} others"
    );
    println!(
        "{} records acknowledged, {} outages, {} events, {:.0} s of virtual time, {:.1} s of CPU",
        brokers.records_acked,
        brokers.outages,
        brokers.events,
        brokers.virtual_ms as f64 / 1e3,
        cpu_seconds(),
    );
    for (spell, count) in brokers.spells_named() {
        println!("spell   {count:>9} {spell}");
    }
    for name in BRANCHES {
        println!("reached {:>9} {name}", totals.reached.get(name).copied().unwrap_or(0));
    }
}

fn summary(totals: &Totals, brokers: &Brokers) -> serde_json::Value {
    let cpu = cpu_seconds();
    let Operations { produce, produce_answers, fetch, other } = brokers.operations;
    totals.summary(json!({
        "operations": brokers.operations.total(),
        "batches_acked": produce,
        "produce_answers": produce_answers,
        "fetches_answered": fetch,
        "other_calls": other,
        "records_acked": brokers.records_acked,
        "outages": brokers.outages,
        "events": brokers.events,
        "virtual_seconds": brokers.virtual_ms as f64 / 1e3,
        "seeds_per_second": totals.seeds as f64 / totals.wall_seconds(),
        "operations_per_cpu_second": brokers.operations.total() as f64 / cpu,
        "answers_per_cpu_second": brokers.operations.answers() as f64 / cpu,
        "spells": brokers.spells_named(),
        "unreached": brokers.unreached(totals),
    }))
}
