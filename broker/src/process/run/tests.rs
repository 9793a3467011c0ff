//! The life of a broker process, around a node without shards: this test starts itself again as the broker.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::*;
use crate::config::load::Sources;
use crate::config::typed::Account;
use crate::group::{Cause, Move, Moves, Rebalance, Trigger};
use crate::observe::observer::Published;
use crate::observe::snapshot::{GroupFigures, IoFigures, ShardGauges, StorageFigures};
use crate::observe::timelines::TimelineWriter;
use crate::observe::{ShardObserver, flight::FlightKind};
use crate::process::plan::{NodePlan, ServingListener};

/// Makes this test the child, and says which node it runs.
const CHILD: &str = "RUN_TEST_NODE";

/// Of a group of which somebody left.
fn rebalance() -> Rebalance {
    let trigger = Trigger {
        cause: Cause::Left,
        member: "m".into(),
        instance: None,
        client_id: "c".into(),
        client_host: "/h".into(),
        reason: Some("closed".into()),
    };
    let shown = vec![Move { topic: "t".into(), partition: 3, from: Some("m".into()), to: None }];
    Rebalance {
        began_ms: 1,
        ended_ms: 2,
        generation: 7,
        members_before: 2,
        members: 1,
        triggers: vec![trigger],
        triggers_left_out: 0,
        moves: Some(Moves { released: 1, shown, ..Moves::default() }),
        settled_ms: Some(3),
    }
}

/// A node that serves nothing; it ends when told to, or never.
fn start_node(plan: NodePlan, obeys: bool) -> Result<RunningNode, StartError> {
    let (sender, receiver) = mpsc::channel();
    let stop = plan.stop.clone();
    stop.on_stop(move || {
        let _ = sender.send(());
    });
    for shard in plan.shards {
        let observer = ShardObserver::new(shard.index, shard.publisher, 0);
        observer.event(5, FlightKind::ShardStarted, [0, 0]);
        let (gauges, io, storage) = (ShardGauges::default(), IoFigures::default(), StorageFigures::default());
        let mut timelines = TimelineWriter::default();
        if shard.index == 1 {
            timelines.add("a/b".into(), rebalance());
        }
        observer.publish(Published {
            now_ns: 1,
            now_ms: 1,
            gauges,
            io,
            storage,
            groups: GroupFigures::default(),
            timelines: timelines.shared(),
            lags: None,
            ailments: Vec::new(),
        });
    }
    let bound = plan.listeners[0];
    Ok(RunningNode {
        driver: "none".to_owned(),
        durability: "none".to_owned(),
        cluster_id: "test".to_owned(),
        listeners: vec![ServingListener { bound, advertised: None }],
        join: Box::new(move || {
            receiver.recv().expect("the plan holds the hook");
            if !obeys {
                std::thread::park_timeout(Duration::from_secs(600));
            }
            Ok(())
        }),
    })
}

fn be_the_child(node: &str) -> ! {
    let sets = [
        "ringlog.ephemeral=true",
        "ringlog.admin.listen=127.0.0.1:0",
        "ringlog.log.format=json",
        "ringlog.shards=2",
    ];
    let sets = sets.map(str::to_owned).to_vec();
    let config = crate::config::load(&Sources { sets, ..Sources::default() }, &Account::default());
    let config = config.expect("the settings are legal");
    let exit = match node {
        "obeys" => run_to_exit(config, Some(1), |plan| start_node(plan, true)),
        _ => run_to_exit(config, Some(1), |plan| start_node(plan, false)),
    };
    std::process::exit(i32::from(exit.code()))
}

struct Broker {
    child: Child,
    admin: SocketAddr,
}

impl Broker {
    /// Starts this very test as a child with `node`, and waits for the ready line.
    fn start(test: &str, node: &str) -> Broker {
        let mut child = Command::new(std::env::current_exe().expect("this test has a path"))
            .args(["--exact", &format!("process::run::tests::{test}"), "--nocapture"])
            .env(CHILD, node)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this test can be started again");
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let ready =
            lines.map_while(Result::ok).find(|line| line.starts_with('{')).expect("a ready line comes");
        let ready: serde_json::Value = serde_json::from_str(&ready).expect("it is JSON");
        assert_eq!(ready["shards"], 2, "{ready}");
        assert_eq!(ready["pid"], child.id(), "{ready}");
        let admin = ready["admin"].as_str().and_then(|text| text.parse().ok()).expect("an address");
        Broker { child, admin }
    }

    /// Status and body of one request.
    fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.admin).expect("the admin server listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        let status = text.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
        (status, body)
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Exit code and standard error.
    fn end(self) -> (Option<i32>, String) {
        let output = self.child.wait_with_output().expect("it ends");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

#[test]
fn a_broker_shows_itself_drains_and_ends() {
    if let Ok(node) = std::env::var(CHILD) {
        be_the_child(&node);
    }
    let broker = Broker::start("a_broker_shows_itself_drains_and_ends", "obeys");
    assert_eq!(broker.get("/readyz"), (200, "serving\n".to_owned()));
    let (status, body) = broker.get("/metrics");
    assert_eq!(status, 200);
    assert!(body.contains("ringlog_ready 1.0\n") && body.contains("ringlog_shards 2.0\n"), "{body}");
    assert!(body.contains("ringlog_partitions{shard=\"1\"} 0\n"), "{body}");
    let (_, body) = broker.get("/config");
    let settings: serde_json::Value = serde_json::from_str(&body).expect("it is JSON");
    let settings = settings.as_array().expect("a list");
    assert!(
        settings
            .iter()
            .any(|s| s["key"] == "ringlog.shards" && s["value"] == "2" && s["origin"] == "flag --set")
    );
    assert!(settings.iter().any(|s| s["key"] == "num.partitions" && s["origin"] == "default"));
    assert_eq!(broker.get("/slow"), (200, "{\"requests\":[]}".to_owned()));
    let (_, body) = broker.get("/flight");
    assert!(body.contains("shard 1, monotonic seconds:\n         0.000000 shard started\n"), "{body}");
    let (_, body) = broker.get("/groups/a%2Fb/timeline");
    let timeline: serde_json::Value = serde_json::from_str(&body).expect("it is JSON");
    let told = &timeline["rebalances"][0];
    assert_eq!((&timeline["group"], &told["causes"][0]["cause"]), (&json!("a/b"), &json!("left")), "{body}");
    assert_eq!(
        told["partitions"]["shown"][0],
        json!({"topic": "t", "partition": 3, "from": "m", "to": null})
    );
    let (_, body) = broker.get("/groups/none/timeline");
    assert_eq!(body, "{\"group\":\"none\",\"rebalances\":[]}");
    // The node published a time long past: a shard that looks stuck.
    assert_eq!(broker.get("/healthz").0, 503);
    assert_eq!(broker.get("/nonsense").0, 404);
    broker.signal(Signal::TERM);
    let (code, stderr) = broker.end();
    assert_eq!(code, Some(0), "{stderr}");
    for expected in ["cluster test", "driver      none", "draining", "stopped"] {
        assert!(stderr.contains(expected), "{expected}: {stderr}");
    }
    assert!(
        stderr
            .lines()
            .filter(|line| line.starts_with('{'))
            .all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok())
    );
}

#[test]
fn a_second_signal_ends_a_drain_that_hangs() {
    if let Ok(node) = std::env::var(CHILD) {
        be_the_child(&node);
    }
    let broker = Broker::start("a_second_signal_ends_a_drain_that_hangs", "hangs");
    broker.signal(Signal::INT);
    while broker.get("/readyz") != (503, "draining\n".to_owned()) {
        std::thread::sleep(Duration::from_millis(5));
    }
    broker.signal(Signal::TERM);
    let (code, stderr) = broker.end();
    assert_eq!(code, Some(143), "{stderr}");
    assert!(stderr.contains("stopping at once"), "{stderr}");
}
