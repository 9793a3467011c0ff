//! Partitions with three replicas on simulated hosts, from a seed: power cuts, a network that loses, damages and cuts, changes of
//! leaders and members, retention and deletion, while producers and consumers work. Nothing acknowledged is lost, everything is
//! in order and once, and in the end all replicas hold the same bytes.
//!
//! `RINGLOG_SEED=7` plays that seed alone; `shard/examples/replicas.rs` plays many.

mod replica_support;
mod storage_support;

use std::collections::BTreeMap;

use replica_support::play::{Played, play};

fn seeds(from: u64, count: u64) -> Vec<u64> {
    match std::env::var("RINGLOG_SEED") {
        Ok(seed) => vec![seed.parse().expect("a number")],
        Err(_) => (from..from + count).collect(),
    }
}

#[cfg(not(feature = "planted-commit-early"))]
mod sound {
    use super::*;

    #[test]
    fn what_a_quorum_acknowledged_survives_and_replicas_become_equal() {
        let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
        let mut total = Played::default();
        let _before = ringlog_io::reached::take();
        let seeds = seeds(9, 6);
        let is_alone = seeds.len() == 1;
        for seed in seeds {
            let played = play(seed);
            assert!(played.violations.is_empty(), "RINGLOG_SEED={seed}: {:#?}", played.violations);
            played.counts.iter().for_each(|(what, count)| *counts.entry(what).or_default() += count);
            total.acknowledged += played.acknowledged;
            total.read += played.read;
            total.operations += played.operations;
            total.terms += played.terms;
        }
        let reached = ringlog_io::reached::take();
        println!(
            "{} records acknowledged, {} read, {} operations, {} terms, {counts:?} {reached:?}",
            total.acknowledged, total.read, total.operations, total.terms
        );
        assert!(is_alone || total.acknowledged > 1_000 && total.read > 1_000, "the workload does nothing");
        for what in ["replica.truncated", "replica.copy_installed", "replica.unverified"] {
            assert!(is_alone || reached.contains_key(what), "no seed reached {what}: {reached:?}");
        }
    }

    /// In the first three a follower restarts in the midst of a batch, or is offered a copy of what it has; in the fourth the
    /// leader cannot commit before its follower has a copy of more than the leader knows to be committed.
    #[test]
    fn a_follower_whose_start_lies_within_the_leaders_first_batch_catches_up() {
        for seed in [72, 364, 753, 438] {
            let played = play(seed);
            assert!(played.violations.is_empty(), "RINGLOG_SEED={seed}: {:#?}", played.violations);
        }
    }

    #[test]
    fn one_seed_is_one_run() {
        assert_eq!(play(3), play(3));
    }
}

/// A follower that acknowledges what its journal does not hold yet.
#[cfg(feature = "planted-commit-early")]
#[test]
fn an_early_acknowledgement_is_found_within_ten_seeds() {
    let found = seeds(1, 10).into_iter().find(|seed| {
        let played = std::panic::catch_unwind(|| play(*seed));
        played.map_or(true, |played| !played.violations.is_empty())
    });
    assert!(found.is_some(), "ten seeds found nothing");
}
