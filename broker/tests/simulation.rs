//! The broker on the simulation: real cores, real recovery and real clients in one thread, from one seed. The power goes
//! while they work, the node comes back with another number of cores, and every client's history is checked.
//!
//! `RINGLOG_SEED=7` runs that seed alone, `RINGLOG_SIM_LOG=1` shows what the broker logs in it, and
//! `RINGLOG_SEED_COUNT=100` runs more than a test run has time for. For many more there is `scripts/simulate.sh`.

mod support;

use support::scene::{self, Run, Scale};

fn run_seed(seed: u64) -> Run {
    scene::run_seed(seed, Scale::TEST)
}

fn number_of(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}

fn seeds(from: u64, count: u64) -> Vec<u64> {
    scene::prepare_output();
    match number_of("RINGLOG_SEED") {
        Some(seed) => vec![seed],
        None => (from..from + number_of("RINGLOG_SEED_COUNT").unwrap_or(count)).collect(),
    }
}

#[cfg(not(feature = "planted-early-ack"))]
mod sound {
    use ringlog_io::sim::{Outcome, World};

    use super::support::clients::{self, Hands};
    use super::support::node::{Shape, boot};
    use super::support::reached;
    use super::support::scene::{PATIENCE, Scene};
    use super::*;

    /// Seeds of one test run.
    const SEED_COUNT: u64 = 8;

    fn check_seeds(seeds: Vec<u64>) {
        let (mut acked, mut read, mut events, mut operations) = (0, 0, 0, 0);
        for seed in seeds {
            let run = run_seed(seed);
            let shown: Vec<_> = run.violations.iter().take(10).collect();
            let count = run.violations.len();
            let course = &run.course;
            assert!(count == 0, "RINGLOG_SEED={seed}: {count} broken rules, first {shown:#?}\n{course:#?}");
            assert!(run.outages >= 2, "RINGLOG_SEED={seed}: {run:?}");
            (acked, read, events) = (acked + run.acked, read + run.read, events + run.event_count);
            operations += run.operations.total();
        }
        println!("{acked} records acknowledged, {read} read, {operations} operations, {events} events");
        assert!(acked > 0 && read > 0, "the workload does nothing");
    }

    #[test]
    fn what_was_acknowledged_survives_power_cuts_in_order_and_once() {
        check_seeds(seeds(1, SEED_COUNT / 2));
    }

    /// The other half of the seeds, for a machine with two processors.
    #[test]
    fn what_was_acknowledged_survives_power_cuts_in_order_and_once_too() {
        check_seeds(seeds(1_001, SEED_COUNT / 2));
    }

    /// A fetch waits for partitions of two cores, and one of them gets records at the moment at which the other is asked.
    #[test]
    fn a_long_poll_over_two_cores_is_woken_by_either() {
        for seed in seeds(1, 3) {
            let scene = Scene::with_partitions(World::new(seed), Scale::TEST, 2);
            let shape = Shape { core_count: 2, mesh_credits: 1024, bypass_bytes: 0 };
            let _node = boot(&scene.world, &scene.broker, shape, PATIENCE).expect("an empty disk");
            scene.create_topic();
            let topic = scene.topic.clone();
            scene.start("reader".to_owned(), async move |hands: Hands| {
                clients::reader(&hands, &topic, true).run().await
            });
            let topic = scene.topic.clone();
            scene.start("pairs".to_owned(), move |hands| clients::send_pairs(hands, topic, 100));
            assert_eq!(scene.world.run_until(|| scene.busy.get() == 1, PATIENCE * 10), Outcome::Done);
            let topic = scene.topic.clone();
            scene
                .must("last reader", async move |hands: Hands| clients::read_all(&hands, &topic, true).await);
            assert_eq!(scene.history.borrow_mut().check(), [], "RINGLOG_SEED={seed}");
        }
    }

    #[test]
    fn one_seed_gives_one_run_of_the_broker() {
        let played = |seed| {
            let run = run_seed(seed);
            (run, ringlog_io::reached::take())
        };
        let _ = ringlog_io::reached::take();
        for seed in seeds(1, 2) {
            let (first, second) = (played(seed), played(seed));
            assert_eq!(first, second, "RINGLOG_SEED={seed}: two runs of one seed differ");
        }
        assert_ne!(run_seed(1).trace_hash, run_seed(2).trace_hash, "the seed has no effect");
    }

    #[test]
    fn the_branches_that_a_soak_must_reach_are_those_in_the_sources() {
        assert_eq!(reached::listed(), reached::in_sources(), "broker/tests/support/reached.rs lists them");
    }
}

/// Acknowledging before the journal write has ended must not go unnoticed.
#[cfg(feature = "planted-early-ack")]
#[test]
fn an_acknowledgement_before_the_journal_write_is_caught_within_ten_seeds() {
    use ringlog_bench::history::Rule;
    use support::history::Violation;
    const LOSSES: [Rule; 4] = [Rule::LostWrite, Rule::Unseen, Rule::Vanished, Rule::InconsistentOffsets];
    let is_loss =
        |violation: &Violation| matches!(violation, Violation::Anomaly { rule, .. } if LOSSES.contains(rule));
    let caught: Vec<u64> =
        seeds(1, 10).into_iter().filter(|seed| run_seed(*seed).violations.iter().any(is_loss)).collect();
    println!("the early acknowledgement was caught by seeds {caught:?}");
    assert!(!caught.is_empty(), "no lost write in ten seeds, although writes are acknowledged too early");
}
