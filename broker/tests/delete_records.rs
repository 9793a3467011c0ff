//! Deleting records from the command line on a whole broker of two cores: what goes stays gone, also after kill -9.

use process::Broker;
use serde_json::Value;

mod process;

const PARTITIONS: i64 = 8;
const LINES: i64 = 50;

impl Broker {
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
}

#[test]
fn deleted_records_stay_deleted() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let broker = Broker::start(directory.path(), &[]);
    broker.json(&["topic", "create", "orders", "-p", &PARTITIONS.to_string(), "-o", "json"]);
    let lines: Vec<String> = (0..LINES).map(|line| format!("line {line}")).collect();
    (0..PARTITIONS as i32).for_each(|partition| assert!(broker.send("orders", partition, &lines)));
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
    let broker = Broker::start(directory.path(), &[]);
    assert_eq!(broker.offsets(), expected);
    let read = broker.run(&["cat", "orders", "-C", "-e", "-p", "1", "-f", "%o\\n"]);
    let offsets: Vec<i64> =
        String::from_utf8_lossy(&read.stdout).lines().map(|line| line.parse().expect("an offset")).collect();
    assert_eq!(offsets, (20..LINES).collect::<Vec<_>>(), "consumers begin at the start");
}
