//! `ringlog config list|describe|alter`, `ringlog topic alter --partitions` and the sizes of topics against a real broker: what they print, change
//! and refuse.

mod process;

use process::Broker;
use serde_json::{Value, json};

const HEARTBEAT: &str = "consumer.heartbeat.interval.ms";

/// Value and source of one config of the first resource described.
fn config<'a>(described: &'a Value, key: &str) -> (&'a Value, &'a Value) {
    let configs = described[0]["configs"].as_array().expect("a list");
    let found = configs.iter().find(|config| config["key"] == key).expect("it has the key");
    (&found["value"], &found["source"])
}

#[test]
fn configs_of_topics_brokers_and_groups_are_listed_described_and_altered() {
    let broker = Broker::serve(&["--ephemeral", "--shards", "2", "--set", "node.id=1"]);
    broker.json(&["topic", "create", "orders", "-p", "1", "-o", "json"]);
    let setting = format!("{HEARTBEAT}=7000");
    let dry = broker.json(&["config", "alter", "group/a/b", "--set", &setting, "--dry-run", "-o", "json"]);
    assert_eq!((&dry["dry_run"], &dry["configs"][0]["value"]), (&json!(true), &json!("5000")));
    assert_eq!(broker.json(&["config", "list", "-o", "json"]), json!(["topic/orders", "broker/1"]));
    let altered = broker.json(&["config", "alter", "group/a/b", "--set", &setting, "-o", "json"]);
    let configs = json!([{ "key": HEARTBEAT, "value": "7000", "source": "group" }]);
    assert_eq!(altered, json!({ "resource": "group/a/b", "dry_run": false, "configs": configs }));
    assert_eq!(
        broker.json(&["config", "ls", "-o", "json"]),
        json!(["topic/orders", "broker/1", "group/a/b"])
    );
    for (resource, change, key, expected) in [
        ("topic/orders", "retention.ms=60000", "retention.ms", ("60000", "topic")),
        ("broker/1", "message.max.bytes=2000000", "message.max.bytes", ("2000000", "broker")),
        ("brokers", "message.max.bytes=3000000", "message.max.bytes", ("3000000", "cluster")),
    ] {
        broker.json(&["config", "alter", resource, "--set", change, "-o", "json"]);
        let described = broker.json(&["config", "describe", resource, "-o", "json"]);
        assert_eq!(described[0]["resource"], resource);
        assert_eq!(config(&described, key), (&json!(expected.0), &json!(expected.1)));
        broker.json(&["config", "alter", resource, "--unset", key, "-o", "json"]);
    }
    broker.json(&["config", "alter", "group/a/b", "--unset", HEARTBEAT, "-o", "json"]);
    let described = broker.json(&["config", "describe", "group/a/b", "-o", "json"]);
    assert_eq!(config(&described, HEARTBEAT), (&json!("5000"), &json!("default")));
    assert_eq!(broker.json(&["config", "describe", "brokers", "-o", "json"])[0]["configs"], json!([]));
    for (resource, change, parts) in [
        ("group/g", "consumer.heartbeat.interval.ms=1", ["INVALID_CONFIG", "5000 to 15000"]),
        ("topic/nope", "retention.ms=1", ["UNKNOWN_TOPIC_OR_PARTITION", "topic 'nope'"]),
        ("brokers", "message.max.bytes=2147483647", ["INVALID_REQUEST", "socket.request.max.bytes is"]),
    ] {
        let text = broker.refuses(&["config", "alter", resource, "--set", change]);
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    let wrong = broker.run(&["config", "describe", "orders"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("none of topic/NAME"), "{wrong:?}");
}

#[test]
fn a_topic_gets_more_partitions_by_command() {
    let broker = Broker::serve(&["--ephemeral", "--shards", "2"]);
    broker.json(&["topic", "create", "orders", "-p", "1", "-o", "json"]);
    let grow = ["topic", "alter", "orders", "--partitions", "4", "-o", "json"];
    let told =
        |dry_run: bool| json!({ "name": "orders", "dry_run": dry_run, "partitions": { "from": 1, "to": 4 } });
    assert_eq!(broker.json(&[grow.as_slice(), &["--dry-run"]].concat()), told(true));
    assert_eq!(broker.json(&grow), told(false));
    assert!(broker.send("orders", 3, &["line".to_owned()]));
    let text = broker.refuses(&grow);
    assert!(text.contains("INVALID_PARTITIONS") && text.contains("has 4 partitions already"), "{text}");
    let text = broker.refuses(&["topic", "alter", "nope", "--partitions", "4"]);
    assert!(text.contains("UNKNOWN_TOPIC_OR_PARTITION"), "{text}");
}

#[test]
fn topics_are_shown_with_their_sizes() {
    let broker = Broker::serve(&["--ephemeral", "--shards", "2"]);
    broker.json(&["topic", "create", "orders", "-p", "4", "-o", "json"]);
    assert!(broker.send("orders", 1, &["line".to_owned()]));
    assert!(broker.send("orders", 3, &["x".repeat(3000)]));
    let described = broker.json(&["topic", "describe", "orders", "-o", "json"]);
    let partitions = described[0]["partitions"].as_array().expect("a list");
    let sizes: Vec<u64> =
        partitions.iter().map(|partition| partition["size_bytes"].as_u64().expect("a size")).collect();
    assert_eq!((sizes[0], sizes[2]), (0, 0));
    // A batch's header and the fields of its only record.
    assert!((61..100).contains(&sizes[1]) && (3061..3100).contains(&sizes[3]), "{sizes:?}");
    assert_eq!(described[0]["size_bytes"], json!(sizes.iter().sum::<u64>()));
    assert_eq!(broker.json(&["topic", "list", "-o", "json"])[0]["size_bytes"], described[0]["size_bytes"]);
    let table = String::from_utf8(broker.run(&["topic", "describe", "orders"]).stdout).expect("text");
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].ends_with(": 4 partitions, 3.1 KiB"), "{table}");
    assert!(lines[1].contains("IN SYNC  ") && lines[1].contains("  SIZE  "), "{table}");
    assert!(lines[2].contains("  0 B  ") && lines[5].contains("  3.0 KiB  "), "{table}");
    let list = String::from_utf8(broker.run(&["topic", "list"]).stdout).expect("text");
    assert!(list.lines().all(|line| line.len() <= 80 && !line.contains("SIZE")), "{list}");
}
