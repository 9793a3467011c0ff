//! Plays many seeds of partitions with three replicas on simulated hosts, as `shard/tests/replicas.rs` plays a few.
//! `scripts/simulate.sh replicas` builds and runs it.

#[path = "../tests/replica_support/mod.rs"]
mod replica_support;
#[path = "../tests/storage_support/mod.rs"]
mod storage_support;

use std::process::ExitCode;

use clap::Parser;
use replica_support::play::{Played, play};
use ringlog_soak::{Seeds, Soak, Totals, cpu_seconds, play_all};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser, Debug)]
#[command(name = "replicas", about = "Plays seeds of partitions with three replicas.")]
struct Arguments {
    #[command(flatten)]
    seeds: Seeds,
}

#[derive(Default)]
struct Replicas {
    sum: Played,
}

impl Soak for Replicas {
    type Outcome = Played;
    const NAME: &'static str = "replicas";

    fn violations(played: &Played) -> Vec<String> {
        played.violations.clone()
    }

    fn add(&mut self, played: &Played, _: u64) {
        let sum = &mut self.sum;
        sum.events += played.events;
        sum.operations += played.operations;
        sum.messages += played.messages;
        sum.acknowledged += played.acknowledged;
        sum.read += played.read;
        sum.terms += played.terms;
        played.counts.iter().for_each(|(what, count)| *sum.counts.entry(what).or_default() += count);
    }

    fn story(&self, seed: u64, _: Option<&Played>) -> String {
        format!("step by step: RINGLOG_SEED={seed} cargo test -p ringlog-shard --test replicas")
    }

    fn again(&self, seed: u64, twice: bool) -> String {
        let twice = if twice { " --twice-every 1" } else { "" };
        format!("scripts/simulate.sh replicas --seeds 1 --from {seed}{twice}")
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut replicas = Replicas::default();
    let totals = play_all(&arguments.seeds, &mut replicas, play);
    println!("{:#}", summary(&totals, &replicas.sum));
    if totals.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn summary(totals: &Totals, sum: &Played) -> serde_json::Value {
    totals.summary(json!({
        "operations": sum.operations,
        "messages": sum.messages,
        "events": sum.events,
        "records_acknowledged": sum.acknowledged,
        "records_read": sum.read,
        "terms_led": sum.terms,
        "met": sum.counts,
        "operations_per_cpu_second": (sum.operations as f64 / cpu_seconds().max(0.001)).round(),
    }))
}
