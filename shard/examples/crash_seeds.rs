//! Plays many crash seeds: a node's storage on a simulated disk whose power goes at random moments. Stops at the first one
//! that breaks a rule with the command that plays it again. `scripts/simulate.sh storage` builds and runs it.

#[path = "../tests/crash_support/mod.rs"]
mod crash_support;
#[path = "../tests/storage_support/mod.rs"]
mod storage_support;

use std::process::ExitCode;

use clap::Parser;
use crash_support::ledger::Coverage;
use crash_support::play::{Played, play};
use crash_support::script::Script;
use ringlog_soak::{Seeds, Soak, Totals, play_all};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser, Debug)]
#[command(name = "crash_seeds", about = "Plays crash seeds of the storage of one node.")]
struct Arguments {
    #[command(flatten)]
    seeds: Seeds,
}

#[derive(Default)]
struct Crashes {
    power_cuts: u64,
    starts_done: u64,
    starts_cut: u64,
    works_done: u64,
    events: u64,
    coverage: Coverage,
}

impl Soak for Crashes {
    /// With the number of power cuts.
    type Outcome = (Played, u64);
    const NAME: &'static str = "storage";

    /// A rule that is broken is a panic.
    fn violations(_: &(Played, u64)) -> Vec<String> {
        Vec::new()
    }

    fn add(&mut self, (played, power_cuts): &(Played, u64), _: u64) {
        self.power_cuts += power_cuts;
        self.starts_done += played.starts_done;
        self.starts_cut += played.starts_cut;
        self.works_done += played.works_done;
        self.events += played.events;
        self.coverage.add(&played.coverage);
    }

    fn story(&self, seed: u64, _: Option<&(Played, u64)>) -> String {
        format!("what was played: {:#?}", Script::of(seed))
    }

    fn again(&self, seed: u64, twice: bool) -> String {
        let twice = if twice { " --twice-every 1" } else { "" };
        format!("scripts/simulate.sh storage --seeds 1 --from {seed}{twice}")
    }
}

fn play_seed(seed: u64) -> (Played, u64) {
    let script = Script::of(seed);
    // Each life ends with one, and so do the two starts behind them.
    let power_cuts = script.lives.len() as u64 + script.cores_last.len() as u64;
    (play(&script), power_cuts)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut crashes = Crashes::default();
    let totals = play_all(&arguments.seeds, &mut crashes, play_seed);
    println!("{:#}", summary(&totals, &crashes));
    if totals.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn summary(totals: &Totals, crashes: &Crashes) -> serde_json::Value {
    let coverage = &crashes.coverage;
    totals.summary(json!({
        "power_cuts": crashes.power_cuts,
        "power_cuts_while_starting": crashes.starts_cut,
        "starts_done": crashes.starts_done,
        "works_done": crashes.works_done,
        "events": crashes.events,
        "batches_told": coverage.batches_told,
        "hard_states_told": coverage.states_told,
        "log_starts_told": coverage.starts_told,
        "truncations_told": coverage.truncations_told,
        "beginnings_told": coverage.beginnings_told,
        "deletions_told": coverage.deletions_told,
        "restored_bytes": coverage.restored_bytes,
        "tails_lost": coverage.tails_lost,
        "checkpoints": coverage.checkpoints,
        "carried_entries": coverage.carried_entries,
        "bypass_bytes": coverage.bypass_bytes,
        "segments_removed": coverage.segments_removed,
        "segments_rewritten": coverage.segments_rewritten,
        "logs_poisoned": coverage.logs_poisoned,
    }))
}
