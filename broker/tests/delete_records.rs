//! Deleting records from the command line on a whole broker of two cores: what goes stays gone, also after kill -9.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

const PARTITIONS: i64 = 8;
const LINES: i64 = 50;

fn ringlog(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringlog"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RINGLOG_")) {
        command.env_remove(name);
    }
    command.args(arguments);
    command
}

/// A broker that ends with the test.
struct Broker {
    child: Child,
    address: String,
}

impl Broker {
    fn start(directory: &Path) -> Broker {
        let directory = directory.to_str().expect("temporary paths are text");
        let mut command =
            ringlog(&["broker", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shards", "2"]);
        command.args(["--memory", "128MiB", "--ready-fd", "1", "--data-dir", directory]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("text");
        let ready: Value = serde_json::from_str(&line).expect("a ready line");
        let address = ready["listeners"][0]["bound"].as_str().expect("an address").to_owned();
        Broker { child, address }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        ringlog(arguments).args(["-b", &self.address]).stdin(Stdio::null()).output().expect("the binary runs")
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Sends lines to a partition.
    fn fill(&self, partition: i64) {
        let partition = partition.to_string();
        let mut child = ringlog(&["cat", "orders", "-P", "-p", &partition, "-b", &self.address])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let mut input = child.stdin.take().expect("piped");
        (0..LINES).for_each(|line| writeln!(input, "line {line}").expect("it reads"));
        drop(input);
        assert!(child.wait().expect("it ends").success());
    }

    /// First and last offset of each partition.
    fn offsets(&self) -> Vec<(i64, i64)> {
        let described = self.json(&["topic", "describe", "orders", "-o", "json"]);
        let partitions = described[0]["partitions"].as_array().expect("a list").clone();
        let offset = |partition: &Value, name: &str| partition[name].as_i64().expect("a number");
        partitions
            .iter()
            .map(|partition| (offset(partition, "earliest_offset"), offset(partition, "latest_offset")))
            .collect()
    }

    fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It has ended already where the test killed it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn deleted_records_stay_deleted() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let broker = Broker::start(directory.path());
    broker.json(&["topic", "create", "orders", "-p", &PARTITIONS.to_string(), "-o", "json"]);
    (0..PARTITIONS).for_each(|partition| broker.fill(partition));
    assert_eq!(broker.offsets(), vec![(0, LINES); PARTITIONS as usize]);

    let told = broker.json(&["topic", "truncate", "orders", "--before", "20", "--yes", "-o", "json"]);
    let told = told.as_array().expect("a list").clone();
    assert_eq!(told.len() as i64, PARTITIONS);
    assert!(told.iter().all(|partition| partition["earliest_offset"] == 20), "{told:?}");
    let told =
        broker.json(&["topic", "truncate", "orders", "--before", "end", "-p", "3", "--yes", "-o", "json"]);
    assert_eq!(told, serde_json::json!([{ "partition": 3, "earliest_offset": LINES }]));
    let below =
        broker.json(&["topic", "truncate", "orders", "--before", "5", "-p", "1", "--yes", "-o", "json"]);
    assert_eq!(below[0]["earliest_offset"], 20, "below the start nothing changes");
    let beyond = broker.run(&["topic", "truncate", "orders", "--before", "51", "-p", "1", "--yes"]);
    assert!(!beyond.status.success());
    let text = String::from_utf8_lossy(&beyond.stderr).into_owned();
    assert!(text.contains("OFFSET_OUT_OF_RANGE"), "{text}");
    let unconfirmed = broker.run(&["topic", "truncate", "orders", "--before", "end"]);
    assert_eq!(unconfirmed.status.code(), Some(2), "without a terminal --yes is needed");

    let expected: Vec<(i64, i64)> =
        (0..PARTITIONS).map(|partition| (if partition == 3 { LINES } else { 20 }, LINES)).collect();
    assert_eq!(broker.offsets(), expected);
    broker.kill();
    let broker = Broker::start(directory.path());
    assert_eq!(broker.offsets(), expected);
    let read = broker.run(&["cat", "orders", "-C", "-e", "-p", "1", "-f", "%o\\n"]);
    let offsets: Vec<i64> =
        String::from_utf8_lossy(&read.stdout).lines().map(|line| line.parse().expect("an offset")).collect();
    assert_eq!(offsets, (20..LINES).collect::<Vec<_>>(), "consumers begin at the start");
}
