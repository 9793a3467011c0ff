//! Whole runs against a broker with planted bugs: each must fail, and say why; and a stall must show in the tail.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use clap::Parser;
use ringlog_protocol::api::ApiKey;

use super::execute;
use crate::args::{Args, Plan};
use crate::client::fake_broker::{FakeBroker, FakeConfig, Mischief, TOPIC};
use crate::interrupt::Interrupt;
use crate::report::{Report, Verdict, table};
use crate::runtime::block_on;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

/// Runs `line` against a fake broker on a thread of its own.
fn run(line: &str, mischief: Vec<Mischief>) -> Report {
    let (address_sender, address) = mpsc::channel();
    let stop = Interrupt::default();
    let stopped = stop.clone();
    let broker = thread::spawn(move || {
        block_on(|io| async move {
            let config = FakeConfig { mischief: (ApiKey::Produce, mischief), ..FakeConfig::default() };
            let broker = FakeBroker::start(&io, config);
            address_sender.send(broker.address()).expect("the test waits for it");
            while !stopped.is_raised() {
                io.sleep(Duration::from_millis(5)).await;
            }
        })
    });
    let address = address.recv().expect("the fake listens").to_string();
    let words = ["bench"].into_iter().chain(line.split_whitespace()).chain(["-t", TOPIC, "-b", &address]);
    let plan = Plan::new(Cli::try_parse_from(words).expect(line).args).expect(line);
    let report = execute(&plan, &Interrupt::default()).expect("the run can be measured");
    stop.raise();
    broker.join().expect("the fake does not panic").expect("its executor starts");
    report
}

const SHORT: &str =
    "--rate 1k/s --record-size 100 --records-per-batch 10 --linger 1ms -d 400ms --warmup 100ms";

fn mischief_at_third(mischief: Mischief) -> Vec<Mischief> {
    vec![Mischief::None, Mischief::None, mischief]
}

#[test]
fn a_sound_broker_passes_every_workload() {
    for workload in ["produce", "e2e", "consume --preload 20kB"] {
        let report = run(&format!("{workload} {SHORT}"), Vec::new());
        assert_eq!(report.verdict, Verdict::Passed, "{workload}: {:?}", report.failures);
        assert!(report.verification.received >= 195, "{workload}: {:?}", report.verification);
        assert!(report.verification.is_clean());
        let text = table::render(&report);
        assert!(text.starts_with("PASSED"), "{text}");
        assert!(serde_json::to_value(&report).is_ok_and(|json| json["schema_version"] == 1));
    }
}

#[test]
fn planted_bugs_fail_the_run_and_are_named() {
    for workload in ["produce", "e2e"] {
        for (mischief, word) in [
            (Mischief::Lose, "records were lost"),
            (Mischief::Repeat, "records were delivered twice"),
            (Mischief::Postpone, "records were delivered out of order"),
            (Mischief::Alter, "records were altered"),
        ] {
            let line = format!("{workload} --acks 1 {SHORT}");
            let report = run(&line, mischief_at_third(mischief.clone()));
            assert_eq!(report.verdict, Verdict::Failed, "{workload} {mischief:?}");
            let named = report.failures.iter().any(|failure| failure.contains(word));
            assert!(named, "{workload} {mischief:?}: {:?}", report.failures);
            assert!(table::render(&report).starts_with("FAILED"));
        }
    }
}

#[test]
fn a_lost_connection_is_survived_by_an_idempotent_producer_and_fails_another() {
    let idempotent = run(&format!("produce --acks all {SHORT}"), mischief_at_third(Mischief::CloseAfter));
    assert_eq!(idempotent.verdict, Verdict::Passed, "{:?}", idempotent.failures);
    assert!(idempotent.produced.is_some_and(|produced| produced.retried_batches > 0));
    let plain = run(&format!("produce --acks 1 {SHORT}"), mischief_at_third(Mischief::CloseAfter));
    assert_eq!(plain.verdict, Verdict::Failed);
    assert!(
        plain.failures.iter().any(|failure| failure.contains("could not be sent")),
        "{:?}",
        plain.failures
    );
    // Outcome unknown is not a loss.
    assert_eq!(plain.verification.lost, 0);
}

#[test]
fn a_stall_of_the_broker_shows_in_the_latency_from_the_intended_time() {
    // The window of one batch makes everything behind the stall wait: a closed loop would count one slow batch.
    let stall = [vec![Mischief::None; 20], vec![Mischief::Stall(Duration::from_millis(300))]].concat();
    let report = run(&format!("produce --in-flight 1 {SHORT}"), stall);
    let produced = report.produced.expect("a produce run");
    let intended = produced.acknowledged.expect("acks=all");
    let p90 = intended.nanoseconds("p90").expect("always there");
    assert!(p90 > 150_000_000, "p90 {p90} ns does not show a stall of 300 ms in a run of 400 ms");
    assert!(produced.late_batches > 0);
}
