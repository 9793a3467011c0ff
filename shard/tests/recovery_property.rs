//! Crashes at every change of the disk, with any subset of what was not synced, also while a start is under way, and with
//! another number of cores after each: nothing told is lost, nothing deleted comes back, and every start finds the same.
//!
//! The long form is `scripts/simulate.sh storage`; a seed that failed is played alone with `RINGLOG_SEED`.

mod crash_support;
mod storage_support;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crash_support::ledger::Coverage;
use crash_support::play::{Played, play};
use crash_support::script::{Cut, Script};
use ringlog_io::sim::UnsyncedData;

/// Crash seeds of the short form.
const SEEDS: u64 = 40;
/// Of the changes of a life, each so many-th is a cut in the short form. All of them take a minute.
const CUT_STEP: usize = 17;

/// With a planted bug the sweep fails, and another test says so.
const IS_PLANTED: bool = cfg!(any(
    feature = "planted-early-ack",
    feature = "planted-replay-shortens",
    feature = "planted-recycle-before-synced-to",
    feature = "planted-believe-second-fsync",
    feature = "planted-skip-directory-sync",
));

fn play_named(script: &Script) -> Played {
    catch_unwind(AssertUnwindSafe(|| play(script))).unwrap_or_else(|panic| {
        eprintln!(
            "failing crash seed {} (RINGLOG_SEED={} plays it alone): {script:#?}",
            script.seed, script.seed
        );
        resume_unwind(panic)
    })
}

#[test]
fn random_crashes_lose_nothing_told_and_bring_nothing_deleted_back() {
    if IS_PLANTED {
        assert!(
            (0..300).any(|seed| catch_unwind(|| play(&Script::of(seed))).is_err()),
            "the planted bug is found"
        );
        return;
    }
    let seeds: Vec<u64> = match std::env::var("RINGLOG_SEED") {
        Ok(seed) => vec![seed.parse().expect("a number")],
        Err(_) => (0..std::env::var("RINGLOG_SEEDS").map_or(SEEDS, |count| count.parse().expect("a number")))
            .collect(),
    };
    let played: Vec<Played> = seeds.iter().map(|seed| play_named(&Script::of(*seed))).collect();
    if seeds.len() as u64 >= SEEDS {
        let (mut coverage, mut starts_cut) = (Coverage::default(), 0);
        for played in &played {
            coverage.add(&played.coverage);
            starts_cut += played.starts_cut;
        }
        eprintln!("{starts_cut} starts cut short, {coverage:#?}");
        assert!(starts_cut > seeds.len() as u64 / 10, "{starts_cut} starts were cut short");
        let Coverage { batches_told, states_told, starts_told, truncations_told, deletions_told, .. } =
            coverage;
        let told = [batches_told, states_told, starts_told, truncations_told, deletions_told];
        assert!(told.iter().all(|count| *count > 10), "{coverage:#?}");
        assert!(coverage.beginnings_told > 3, "{coverage:#?}");
        let Coverage { tails_lost, checkpoints, segments_removed, .. } = coverage;
        assert!([tails_lost, checkpoints, segments_removed].iter().all(|count| *count > 5), "{coverage:#?}");
        let bytes = [coverage.restored_bytes, coverage.bypass_bytes];
        assert!(bytes.iter().all(|bytes| *bytes > 50_000), "{coverage:#?}");
    }
}

#[test]
fn one_crash_seed_is_one_run() {
    for seed in [3, 4] {
        assert_eq!(play(&Script::of(seed)), play(&Script::of(seed)));
    }
    assert_ne!(play(&Script::of(3)).trace_hash, play(&Script::of(4)).trace_hash);
}

/// The same life, cut after each change of the disk, or after each so many-th, and the start after it cut too.
#[test]
fn a_power_cut_after_any_change_of_the_disk_loses_nothing_told() {
    if IS_PLANTED {
        return;
    }
    let step = std::env::var("RINGLOG_CUT_STEP").map_or(CUT_STEP, |step| step.parse().expect("a number"));
    for seed in 0..2 {
        let mut script = Script::of(seed);
        script.lives.resize(2, script.lives[0]);
        let mut cuts = 0;
        for changes in (seed..).step_by(step) {
            script.lives[0].cut = Cut { changes, events: 0 };
            script.lives[1].cut = Cut { changes: changes % 37, events: changes % 3 };
            script.lives[1].unsynced = UnsyncedData::RandomSubset { torn: true };
            script.lives[0].failing_syncs = 0;
            let mut is_over = false;
            for (subset, unsynced) in (0..).zip([
                UnsyncedData::Lost,
                UnsyncedData::RandomSubset { torn: false },
                UnsyncedData::RandomSubset { torn: true },
            ]) {
                (script.lives[0].unsynced, script.lives[0].subset) = (unsynced, subset);
                is_over = play_named(&script).changes_first < changes;
                cuts += 1;
            }
            if is_over {
                break;
            }
        }
        assert!(cuts > 20, "{cuts} cuts");
    }
}
