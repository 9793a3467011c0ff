//! A soak of numbers: what is counted, what fails, and where it stops.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

/// Sums its seeds; an outcome says whether it is sound.
#[derive(Default)]
struct Numbers {
    sum: u64,
    runs: u64,
}

impl Soak for Numbers {
    type Outcome = (u64, bool);
    const NAME: &'static str = "numbers";

    fn violations((seed, is_sound): &(u64, bool)) -> Vec<String> {
        if *is_sound { Vec::new() } else { vec![format!("{seed} is bad")] }
    }

    fn add(&mut self, (seed, _): &(u64, bool), runs: u64) {
        self.sum += seed;
        self.runs += runs;
    }

    fn story(&self, seed: u64, _: Option<&(u64, bool)>) -> String {
        format!("there was the number {seed}")
    }

    fn again(&self, seed: u64, _: bool) -> String {
        format!("numbers --from {seed}")
    }
}

fn seeds(count: u64, jobs: usize, keep_going: bool) -> Seeds {
    Seeds { count, from: 1, jobs, twice_every: 5, keep_going }
}

#[test]
fn every_seed_is_played_by_any_number_of_threads() {
    for jobs in [0, 1, 3] {
        let mut numbers = Numbers::default();
        let totals = play_all(&seeds(20, jobs, false), &mut numbers, |seed| (seed, true));
        assert_eq!((totals.seeds, totals.runs, totals.failed.len()), (20, 24, 0));
        assert_eq!((numbers.sum, numbers.runs), (210, 24));
    }
}

#[test]
fn the_first_bad_seed_ends_it_unless_it_keeps_going() {
    let play = |seed| (seed, seed < 3);
    let first = play_all(&seeds(1_000_000, 1, false), &mut Numbers::default(), play);
    assert_eq!(first.failed.first(), Some(&3));
    assert!(first.seeds < 1_000_000, "all were played");
    let all = play_all(&seeds(6, 1, true), &mut Numbers::default(), play);
    assert_eq!(all.failed, [3, 4, 5, 6]);
}

#[test]
fn a_panic_and_a_run_that_is_not_repeatable_are_failures() {
    let play = |seed| if seed == 2 { panic!("wilful") } else { (seed, true) };
    assert_eq!(play_all(&seeds(4, 1, true), &mut Numbers::default(), play).failed, [2]);
    let calls = AtomicU64::new(0);
    let fickle = |_| (calls.fetch_add(1, Ordering::Relaxed), true);
    assert_eq!(play_all(&seeds(9, 1, true), &mut Numbers::default(), fickle).failed, [5]);
}

#[test]
fn branches_that_were_reached_belong_to_the_seed_that_is_counted_in() {
    let play = |seed| {
        ringlog_io::reached::note("soak.test");
        (seed, true)
    };
    let totals = play_all(&seeds(5, 2, false), &mut Numbers::default(), play);
    assert_eq!(totals.reached.get("soak.test"), Some(&5));
    let summary = totals.summary(json!({ "numbers": 5 }));
    assert_eq!((&summary["numbers"], &summary["reached"]["soak.test"]), (&json!(5), &json!(5)));
    assert_eq!((&summary["runs"], &summary["failed"]), (&json!(6), &json!([])));
}
