//! The short form of the model: spaces that are visited whole within seconds, and mistakes that are found as fast. The long
//! form is the binary of this crate.

use ringlog_raft_model::runs::{Run, mistake_runs, short_runs};

/// Bound of a short run: far above what each needs, so that a space that grew is noticed.
const STATES_MAX: u64 = 3_000_000;

fn check_sound(run: &Run) {
    let outcome = run.explore(STATES_MAX, true);
    assert_eq!(outcome.broken, None, "{}", run.name);
    assert!(outcome.complete, "{}: {} states are not all", run.name, outcome.states);
    assert!(outcome.never.is_empty(), "{} proves little: {:?}", run.name, outcome.never);
}

#[test]
fn the_rule_holds_in_every_state_of_the_small_spaces() {
    short_runs().iter().for_each(check_sound);
}

#[test]
fn every_mistake_that_is_cheap_to_find_is_found() {
    let mistakes = mistake_runs();
    let cheap: Vec<&Run> = mistakes.iter().filter(|run| run.cheap).collect();
    assert!(cheap.len() >= 16, "only {} mistakes are tried", cheap.len());
    for run in cheap {
        let outcome = run.explore(STATES_MAX, true);
        assert!(outcome.broken.is_some(), "{} was not found in {} states", run.name, outcome.states);
        assert!(outcome.trace.len() > 1, "{} came with no trace", run.name);
    }
}

/// Random walks find what a search reaches after tens of millions of states (`docs/evidence/raft/model.json` has how many).
#[test]
fn mistakes_that_lie_deep_are_found_by_random_walks() {
    let deep = [
        "CountWithoutLogTerm",
        "LogTermOnFirstContact",
        "CompareLastEpoch",
        "CompareLengthOnly",
        "ExposeBeforeReconciled",
        "CommitOldTermByCount",
        "ChangeWithoutBarrier",
        "VersionNotCompared",
    ];
    for name in deep {
        let runs = mistake_runs();
        let run = runs.iter().find(|run| run.name == name).expect("a planted mistake");
        let hunt = run.hunt(1, 20_000_000);
        assert!(hunt.broken.is_some(), "{name} was not found in {} steps", hunt.steps);
        assert!(hunt.trace.len() > 1, "{name} came with no trace");
    }
}

#[test]
fn one_seed_is_one_hunt_and_the_sound_rule_survives_it() {
    let runs = short_runs();
    let run = runs.first().expect("one at least");
    let (first, second) = (run.hunt(7, 300_000), run.hunt(7, 300_000));
    assert_eq!(first, second);
    assert_eq!(first.broken, None, "{}", run.name);
}
