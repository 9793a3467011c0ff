//! Seeds of the simulated cluster: whatever goes wrong, nothing committed is lost and no two replicas decide apart; once nothing
//! goes wrong any more, all members become equal. `raft/examples/simulate.rs` plays many more.

mod support;

use support::oracle::Reached;
use support::world::World;

fn play(seed: u64) -> World {
    let mut world = World::new(seed);
    world.run_until(world.faults.safety_ms);
    world.converges();
    world
}

#[test]
fn committed_records_survive_every_fault_and_members_become_equal() {
    let mut reached = Reached::default();
    for seed in 0..200 {
        let played = std::panic::catch_unwind(|| play(seed));
        match played {
            Ok(world) => reached.add(&world.oracle.reached),
            Err(panic) => {
                eprintln!("seed {seed} failed");
                std::panic::resume_unwind(panic);
            }
        }
    }
    for what in [
        "leader elected",
        "record of an older term committed",
        "log truncated",
        "copy installed",
        "disk lost",
    ] {
        assert!(reached.0.contains_key(what), "no seed reached: {what}; {reached:?}");
    }
}

#[test]
fn one_seed_is_one_run() {
    for seed in [3, 4, 5] {
        let (first, second) = (play(seed), play(seed));
        assert_eq!((first.trace, first.steps), (second.trace, second.steps), "seed {seed}");
    }
}
