//! Plays many seeds of the simulated cluster and prints one JSON object: seeds, steps, what was reached. Ends with 1 at the first
//! seed that breaks a rule and says which.
//!
//! `cargo run --profile simulate -p ringlog-raft --example simulate -- --seeds 100000`

#![allow(clippy::disallowed_methods, reason = "how long it took is told, and decides nothing")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

#[path = "../tests/support/mod.rs"]
mod support;

use support::oracle::Reached;
use support::world::World;

/// Every so many-th seed is played twice, and both runs must agree.
const TWICE_EVERY: u64 = 100;
/// From so many seeds on, everything that a run is for must have been reached.
const SEEDS_THAT_REACH_ALL: u64 = 2_000;

fn main() -> ExitCode {
    let (mut seeds, mut from) = (1_000, 0);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let number = arguments.next().and_then(|number| number.parse().ok());
        match (argument.as_str(), number) {
            ("--seeds", Some(number)) => seeds = number,
            ("--from", Some(number)) => from = number,
            _ => {
                eprintln!("usage: simulate [--seeds N] [--from S]");
                return ExitCode::from(2);
            }
        }
    }
    let began = Instant::now();
    let (mut reached, mut steps, mut committed) = (Reached::default(), 0, 0);
    for seed in from..from + seeds {
        let Ok(world) = catch_unwind(AssertUnwindSafe(|| play(seed))) else {
            eprintln!("seed {seed} failed; play it again with --from {seed} --seeds 1");
            return ExitCode::FAILURE;
        };
        if seed % TWICE_EVERY == 0 && play(seed).trace != world.trace {
            eprintln!("seed {seed} is not repeatable");
            return ExitCode::FAILURE;
        }
        reached.add(&world.oracle.reached);
        steps += world.steps;
        committed += world.oracle.committed_end();
        if (seed + 1 - from).is_multiple_of(5_000) {
            eprintln!("{} seeds, {steps} steps, {:.0} s", seed + 1 - from, began.elapsed().as_secs_f64());
        }
    }
    let missing: Vec<&str> =
        support::oracle::REACHABLE.iter().copied().filter(|what| !reached.0.contains_key(what)).collect();
    let seconds = began.elapsed().as_secs_f64();
    println!("{:#}", summary(seeds, steps, committed, seconds, &reached));
    if seeds >= SEEDS_THAT_REACH_ALL && !missing.is_empty() {
        eprintln!("never reached: {}", missing.join(", "));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn play(seed: u64) -> World {
    let mut world = World::new(seed);
    world.run_until(world.faults.safety_ms);
    world.converges();
    world
}

fn summary(seeds: u64, steps: u64, committed: i64, seconds: f64, reached: &Reached) -> serde_json::Value {
    serde_json::json!({
        "seeds": seeds,
        "failures": 0,
        "steps": steps,
        "committed_records": committed,
        "seconds": seconds.round(),
        "seeds_per_second": (seeds as f64 / seconds).round(),
        "reached": reached.0,
    })
}
