//! Visits the spaces of states named on the command line and prints one JSON object, which `docs/evidence/raft/model.json` quotes:
//! states, depth and verdict of each.
//!
//! `cargo run --profile simulate -p ringlog-raft-model -- all`

#![allow(clippy::disallowed_methods, reason = "how long it took is told, and decides nothing")]

use std::process::ExitCode;
use std::time::Instant;

use ringlog_raft_model::explore::Outcome;
use ringlog_raft_model::runs::{Run, mistake_runs, short_runs, sound_runs};
use serde_json::{Value, json};

const USAGE: &str = "usage: ringlog-raft-model [--trace] [--states-max N] all|short|sound|mistakes|NAME...
       ringlog-raft-model --hunt STEPS [--trace] mistakes|NAME...    random walks instead of a search";

/// Any would do: one seed is one hunt.
const HUNT_SEED: u64 = 1;

fn main() -> ExitCode {
    let (mut trace, mut states_max, mut steps_max, mut names) = (false, 400_000_000, None, Vec::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--trace" => trace = true,
            "--states-max" => match arguments.next().map(|number| number.parse()) {
                Some(Ok(number)) => states_max = number,
                _ => return usage(),
            },
            "--hunt" => match arguments.next().map(|number| number.parse()) {
                Some(Ok(number)) => steps_max = Some(number),
                _ => return usage(),
            },
            flag if flag.starts_with('-') => return usage(),
            _ => names.push(argument),
        }
    }
    if names.is_empty() {
        return usage();
    }
    if let Some(steps_max) = steps_max {
        return hunt_mistakes(&names, steps_max, trace);
    }
    let (mut told, mut surprises) = (Vec::new(), 0);
    for (group, runs) in [("short", short_runs()), ("sound", sound_runs()), ("mistakes", mistake_runs())] {
        let wanted = |run: &&Run| {
            names.iter().any(|name| name == "all" || name == group || run.name.contains(name.as_str()))
        };
        for run in runs.iter().filter(wanted) {
            let began = Instant::now();
            let outcome = run.explore(states_max, !trace);
            let seconds = began.elapsed().as_secs_f64();
            let expected = match run.protocol.mistake {
                Some(_) => outcome.broken.is_some(),
                None => outcome.complete && outcome.never.is_empty(),
            };
            surprises += usize::from(!expected);
            eprintln!(
                "{:<26} {:>11} states {seconds:>7.1} s  {}",
                run.name,
                outcome.states,
                verdict(&outcome)
            );
            if trace {
                outcome.trace.iter().for_each(|line| eprintln!("    {line}"));
            }
            told.push(describe(run, &outcome, seconds, expected));
        }
    }
    println!("{:#}", summary(&told, surprises));
    if surprises == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Hunts the planted mistakes by random walks; they must be found.
fn hunt_mistakes(names: &[String], steps_max: u64, trace: bool) -> ExitCode {
    let (mut told, mut missed) = (Vec::new(), 0);
    let wanted = |run: &Run| names.iter().any(|name| name == "mistakes" || run.name.contains(name.as_str()));
    for run in mistake_runs().iter().filter(|run| wanted(run)) {
        let began = Instant::now();
        let hunt = run.hunt(HUNT_SEED, steps_max);
        let seconds = began.elapsed().as_secs_f64();
        missed += usize::from(hunt.broken.is_none());
        let found = hunt.broken.unwrap_or("nothing");
        eprintln!("{:<26} {:>11} steps {seconds:>7.1} s  {found}", run.name, hunt.steps);
        if trace {
            hunt.trace.iter().for_each(|line| eprintln!("    {line}"));
        }
        told.push(json!({
            "run": run.name, "steps": hunt.steps, "walks": hunt.walks, "broken": hunt.broken, "trace_steps": hunt.trace.len(),
        }));
    }
    println!("{:#}", json!({"planted_mistakes": told.len(), "missed": missed, "hunts": told}));
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn verdict(outcome: &Outcome) -> String {
    match outcome {
        Outcome { broken: Some(property), .. } => format!("broken: {property}"),
        Outcome { complete: false, .. } => "holds so far, not all seen".to_owned(),
        Outcome { never, .. } if !never.is_empty() => format!("holds, but never: {}", never.join(", ")),
        _ => "holds, all seen".to_owned(),
    }
}

fn describe(run: &Run, outcome: &Outcome, seconds: f64, expected: bool) -> Value {
    json!({
        "run": run.name,
        "mistake": run.protocol.mistake.is_some(),
        "states": outcome.states,
        "depth": outcome.depth,
        "seconds": (seconds * 10.0).round() / 10.0,
        "verdict": verdict(outcome),
        "as_expected": expected,
    })
}

fn summary(told: &[Value], surprises: usize) -> Value {
    let count = |mistake: bool| told.iter().filter(|run| run["mistake"] == mistake).count();
    let states = |mistake: bool| {
        let runs = told.iter().filter(|run| run["mistake"] == mistake);
        runs.filter_map(|run| run["states"].as_u64()).sum::<u64>()
    };
    json!({
        "sound_runs": count(false),
        "sound_states": states(false),
        "planted_mistakes": count(true),
        "mistake_states": states(true),
        "surprises": surprises,
        "runs": told,
    })
}
