//! How many events a group takes in a second of CPU: a leader of one, and a leader with two followers, all three counted. Disks and
//! network are instant, no records are moved. Prints one JSON object, which `docs/evidence/raft/steps.json` quotes.
//!
//! `cargo run --profile simulate -p ringlog-raft --example steps`

use instant::{Cluster, alone, writes};
use ringlog_protocol::ids::Offset;
use ringlog_raft::Event;

#[path = "../tests/support/instant.rs"]
mod instant;

const PROPOSALS: u64 = 10_000_000;
/// Of the three: one tick, at which there may be heartbeats, for so many proposals.
const PROPOSALS_OF_A_TICK: u64 = 64;

fn main() {
    let began = cpu_seconds();
    let (mut group, mut effects, mut steps) = (alone(), Vec::with_capacity(8), 0);
    for _ in 0..PROPOSALS {
        let end = Offset(group.log_end().0 + 10);
        group.step(Event::Proposal { end }, &mut effects);
        steps += 1 + writes(&mut group, &mut effects);
    }
    let of_one = steps as f64 / (cpu_seconds() - began);

    let began = cpu_seconds();
    let mut cluster = Cluster::new();
    for proposal in 0..PROPOSALS / 10 {
        cluster.proposes();
        if proposal % PROPOSALS_OF_A_TICK == 0 {
            cluster.ticks();
        }
    }
    let of_three = cluster.steps as f64 / (cpu_seconds() - began);
    let committed = cluster.groups[cluster.leader()].high_watermark();
    assert_eq!(committed.0, cluster.groups[cluster.leader()].log_end().0, "everything is committed");
    println!(
        "{:#}",
        serde_json::json!({
            "group_of_one_steps_per_cpu_second": of_one.round(),
            "group_of_three_steps_per_cpu_second": of_three.round(),
            "group_of_three_steps_per_proposal": cluster.steps as f64 / (PROPOSALS / 10) as f64,
        })
    );
}

/// Of this process so far, in user mode: the 14th field of its line in /proc, in hundredths of a second.
fn cpu_seconds() -> f64 {
    let line = std::fs::read_to_string("/proc/self/stat").expect("Linux tells a process its times");
    let behind_the_name = line.rsplit_once(')').expect("a name in parentheses").1;
    let ticks: f64 =
        behind_the_name.split_whitespace().nth(11).and_then(|ticks| ticks.parse().ok()).expect("a number");
    ticks / 100.0
}
