//! Configs, epochs and the quorum of a whole broker of two cores, on the wire and from the command line: what is altered takes effect at
//! once on every partition and outlives kill -9.

use std::path::Path;
use std::time::{Duration, Instant};

use process::Broker;
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::messages::alter_configs::{self, AlterConfigsRequest, AlterConfigsResponse};
use ringlog_protocol::messages::describe_configs::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResponse,
};
use ringlog_protocol::messages::describe_quorum::{
    DescribeQuorumPartition, DescribeQuorumRequest, DescribeQuorumResponse, DescribeQuorumTopic,
};
use ringlog_protocol::messages::fetch::{FetchPartition, FetchRequest, FetchResponse, FetchTopic};
use ringlog_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
};
use ringlog_protocol::messages::list_offsets::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopic,
};
use ringlog_protocol::messages::offset_for_leader_epoch::{
    OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, OffsetForLeaderPartition, OffsetForLeaderTopic,
};
use ringlog_protocol::wire::Reader;
use serde_json::Value;

mod process;

const PARTITIONS: i32 = 4;
const TOPIC: i8 = 2;
const BROKER: i8 = 4;

/// Cores look often for what retention removes.
fn start(directory: &Path) -> Broker {
    Broker::start(directory, &["--set", "log.retention.check.interval.ms=100"])
}

impl Broker {
    fn create(&self) {
        self.json(&["topic", "create", "orders", "-p", &PARTITIONS.to_string(), "-o", "json"]);
    }

    fn alter(&self, changes: &[&str]) -> Value {
        self.json(&[["topic", "alter", "orders", "-o", "json"].as_slice(), changes].concat())
    }

    /// Sends one record of so many bytes; whether it was taken.
    fn takes(&self, partition: i32, bytes: usize) -> bool {
        self.send("orders", partition, &["x".repeat(bytes)])
    }

    /// Error number and text.
    fn set(&self, kind: i8, name: &str, key: &str, value: &str) -> (i16, String) {
        let config = AlterableConfig { name: key, config_operation: 0, value: Some(value) };
        let resource =
            AlterConfigsResource { resource_type: kind, resource_name: name, configs: vec![config] };
        let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
        let (api, version) = (ApiKey::IncrementalAlterConfigs, 1);
        let body = self.call(api, version, |writer, version| request.encode(writer, version));
        let told =
            IncrementalAlterConfigsResponse::decode(&mut Reader::new(&body), version).expect("an answer");
        let told = &told.responses[0];
        assert_eq!((told.resource_type, told.resource_name), (kind, name));
        (told.error_code, told.error_message.unwrap_or_default().to_owned())
    }

    /// Value, source and synonyms' sources of a key.
    fn described(&self, kind: i8, name: &str, key: &str) -> (i16, Option<(String, i8, Vec<i8>)>) {
        let resource = DescribeConfigsResource {
            resource_type: kind,
            resource_name: name,
            configuration_keys: Some(vec![key]),
        };
        let request = DescribeConfigsRequest {
            resources: vec![resource],
            include_synonyms: true,
            include_documentation: true,
        };
        let body = self.call(ApiKey::DescribeConfigs, 4, |writer, version| request.encode(writer, version));
        let told = DescribeConfigsResponse::decode(&mut Reader::new(&body), 4).expect("an answer");
        let result = &told.results[0];
        let config = result.configs.first().map(|config| {
            assert!(config.documentation.is_some_and(|text| text.ends_with('.')), "{config:?}");
            let sources = config.synonyms.iter().map(|synonym| synonym.source).collect();
            (config.value.unwrap_or_default().to_owned(), config.config_source, sources)
        });
        (result.error_code, config)
    }

    /// Error number, epoch and end.
    fn epoch_end(&self, believed: i32, epoch: i32) -> (i16, i32, i64) {
        let partition =
            OffsetForLeaderPartition { partition: 0, current_leader_epoch: believed, leader_epoch: epoch };
        let topic = OffsetForLeaderTopic { topic: "orders", partitions: vec![partition] };
        let request = OffsetForLeaderEpochRequest { replica_id: -1, topics: vec![topic] };
        let body =
            self.call(ApiKey::OffsetForLeaderEpoch, 4, |writer, version| request.encode(writer, version));
        let told = OffsetForLeaderEpochResponse::decode(&mut Reader::new(&body), 4).expect("an answer");
        let found = &told.topics[0].partitions[0];
        (found.error_code, found.leader_epoch, found.end_offset)
    }

    fn leader_epoch(&self) -> i32 {
        let described = self.json(&["topic", "describe", "orders", "-o", "json"]);
        i32::try_from(described[0]["partitions"][0]["leader_epoch"].as_i64().expect("a number"))
            .expect("small")
    }

    /// Error number, (diverging epoch, its end), and whether records came. Waits for up to a minute where the broker does.
    fn fetch(&self, believed: i32, last_fetched: i32, from: i64) -> (i16, (i32, i64), bool) {
        let partition = FetchPartition {
            partition: 0,
            current_leader_epoch: believed,
            fetch_offset: from,
            last_fetched_epoch: last_fetched,
            partition_max_bytes: 1 << 20,
            ..FetchPartition::default()
        };
        let topic = FetchTopic { topic: "orders", partitions: vec![partition], ..FetchTopic::default() };
        let request = FetchRequest {
            max_wait_ms: 60_000,
            min_bytes: 1 << 20,
            max_bytes: 1 << 20,
            topics: vec![topic],
            ..FetchRequest::default()
        };
        let body = self.call(ApiKey::Fetch, 12, |writer, version| request.encode(writer, version));
        let told = FetchResponse::decode(&mut Reader::new(&body), 12).expect("an answer");
        let partition = &told.responses[0].partitions[0];
        let diverging = (partition.diverging_epoch.epoch, partition.diverging_epoch.end_offset);
        let has_records = match &partition.records {
            ringlog_protocol::wire::Records::Borrowed(bytes) => !bytes.is_empty(),
            _ => false,
        };
        (partition.error_code, diverging, has_records)
    }
}

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory can be made")
}

#[test]
fn an_altered_topic_config_holds_on_every_partition_at_once_and_after_kill_9() {
    let directory = directory();
    let broker = start(directory.path());
    broker.create();
    let taken =
        |broker: &Broker| (0..PARTITIONS).map(|partition| broker.takes(partition, 3000)).collect::<Vec<_>>();
    assert_eq!(taken(&broker), [true; PARTITIONS as usize]);
    let altered = broker.alter(&["--set", "max.message.bytes=1000"]);
    let config = serde_json::json!([{ "key": "max.message.bytes", "value": "1000", "source": "topic" }]);
    assert_eq!(altered["configs"], config);
    assert_eq!(taken(&broker), [false; PARTITIONS as usize]);
    let dry = broker.alter(&["--set", "max.message.bytes=2000", "--unset", "segment.ms", "--dry-run"]);
    assert_eq!(dry["configs"][0]["value"], "1000", "nothing changed");

    let refused =
        broker.run(&["topic", "alter", "orders", "--set", "segment.ms=9", "--set", "retention.ms=soon"]);
    assert_eq!(refused.status.code(), Some(1));
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("INVALID_CONFIG") && text.contains("'soon'"), "{text}");
    assert_eq!(broker.run(&["topic", "alter", "orders"]).status.code(), Some(2));
    assert_eq!(broker.run(&["topic", "alter", "nobody", "--unset", "segment.ms"]).status.code(), Some(1));

    broker.kill();
    let broker = start(directory.path());
    assert_eq!(taken(&broker), [false; PARTITIONS as usize]);
    let described = broker.json(&["topic", "describe", "orders", "-o", "json"]);
    let configs = described[0]["configs"].as_array().expect("a list").clone();
    let set: Vec<&Value> = configs.iter().filter(|config| config["source"] == "topic").collect();
    assert_eq!(set.len(), 1, "{configs:?}");
    broker.alter(&["--unset", "max.message.bytes"]);
    assert_eq!(taken(&broker), [true; PARTITIONS as usize]);
    let table = String::from_utf8_lossy(&broker.run(&["topic", "describe", "orders"]).stdout).into_owned();
    assert!(table.contains("configs at the default"), "{table}");
}

#[test]
fn a_live_log_rolls_and_retains_by_new_settings() {
    let directory = directory();
    let broker = start(directory.path());
    broker.create();
    (0..PARTITIONS).for_each(|partition| assert!(broker.takes(partition, 100)));
    broker.alter(&["--set", "segment.ms=1", "--set", "retention.ms=1"]);
    let deadline = Instant::now() + Duration::from_secs(30);
    let earliest = || {
        let described = broker.json(&["topic", "describe", "orders", "-o", "json"]);
        let partitions = described[0]["partitions"].as_array().expect("a list").clone();
        partitions.iter().map(|partition| partition["earliest_offset"].as_i64()).collect::<Vec<_>>()
    };
    while earliest() != [Some(1); PARTITIONS as usize] {
        assert!(Instant::now() < deadline, "{:?}", earliest());
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn brokers_are_altered_and_their_topics_follow_also_after_kill_9() {
    let directory = directory();
    let broker = start(directory.path());
    broker.create();
    assert_eq!(broker.set(BROKER, "", "message.max.bytes", "1000").0, 0);
    assert!(!broker.takes(1, 3000));
    assert_eq!(broker.set(BROKER, "1", "message.max.bytes", "2000").0, 0);
    let (code, text) = broker.set(BROKER, "1", "num.partitions", "9");
    assert_eq!(code, 42, "{text}");
    assert_eq!(broker.set(BROKER, "2", "message.max.bytes", "2000").0, 42);
    assert_eq!(broker.set(TOPIC, "orders", "no.such.key", "1").0, 40);
    let expect = |broker: &Broker| {
        let both =
            |value: &str, source, sources: &[i8]| (0, Some((value.to_owned(), source, sources.to_vec())));
        let described = |kind, name, key| broker.described(kind, name, key);
        assert_eq!(described(BROKER, "1", "message.max.bytes"), both("2000", 2, &[2, 3, 5]));
        assert_eq!(described(BROKER, "", "message.max.bytes"), both("1000", 3, &[3]));
        assert_eq!(described(TOPIC, "orders", "max.message.bytes"), both("2000", 2, &[2, 3, 5]));
        assert_eq!(described(BROKER, "1", "log.retention.check.interval.ms"), both("100", 4, &[4, 5]));
        assert_eq!(described(BROKER, "", "node.id"), (0, None));
        assert_eq!(described(TOPIC, "nobody", "retention.ms"), (3, None));
        assert_eq!(described(8, "1", "kafka"), (42, None));
    };
    expect(&broker);
    broker.kill();
    let broker = start(directory.path());
    expect(&broker);
    assert!(!broker.takes(1, 3000) && broker.takes(1, 1500));
}

#[test]
fn replacing_a_topics_configs_unsets_the_others() {
    let directory = directory();
    let broker = start(directory.path());
    broker.create();
    broker.alter(&["--set", "segment.ms=60000"]);
    let config = alter_configs::AlterableConfig { name: "retention.ms", value: Some("5") };
    let resource = alter_configs::AlterConfigsResource {
        resource_type: TOPIC,
        resource_name: "orders",
        configs: vec![config],
    };
    for version in 0..=2 {
        let request = AlterConfigsRequest { resources: vec![resource.clone()], validate_only: false };
        let body =
            broker.call(ApiKey::AlterConfigs, version, |writer, version| request.encode(writer, version));
        let told = AlterConfigsResponse::decode(&mut Reader::new(&body), version).expect("an answer");
        assert_eq!(told.responses[0].error_code, 0, "version {version}");
        assert_eq!(broker.described(TOPIC, "orders", "retention.ms").1.map(|found| found.1), Some(1));
        assert_eq!(broker.described(TOPIC, "orders", "segment.ms").1.map(|found| found.1), Some(5));
    }
}

#[test]
fn epochs_fence_readers_and_tell_where_they_ended() {
    let directory = directory();
    let broker = start(directory.path());
    broker.create();
    let first = broker.leader_epoch();
    (0..3).for_each(|_| assert!(broker.takes(0, 10)));
    assert_eq!(broker.epoch_end(-1, first), (0, first, 3));
    broker.kill();
    let broker = start(directory.path());
    let second = broker.leader_epoch();
    assert!(second > first, "a new term begins with each start");
    assert_eq!(broker.epoch_end(second, second), (0, second, 3), "without a record it ends at the end");
    (0..2).for_each(|_| assert!(broker.takes(0, 10)));
    assert_eq!(broker.epoch_end(second, first), (0, first, 3));
    assert_eq!(broker.epoch_end(-1, second), (0, second, 5));
    assert_eq!(broker.epoch_end(-1, second + 1), (0, -1, -1), "nobody knows of it");
    assert_eq!(broker.epoch_end(first, first), (74, -1, -1));
    assert_eq!(broker.epoch_end(second + 1, first), (75, -1, -1));

    // Each of these is answered at once, though the fetch would wait for a minute.
    let asked = Instant::now();
    let none = (-1, -1);
    assert_eq!(broker.fetch(first, -1, 5), (74, none, false));
    assert_eq!(broker.fetch(second + 1, -1, 5), (75, none, false));
    assert_eq!(
        broker.fetch(second, first, 4),
        (0, (first, 3), false),
        "it read on where the epoch had ended"
    );
    assert_eq!(broker.fetch(second, second + 1, 5).0, 1, "OFFSET_OUT_OF_RANGE: nobody knows of that epoch");
    assert!(asked.elapsed() < Duration::from_secs(30));

    for (believed, error) in [(-1, 0), (second, 0), (first, 74), (second + 1, 75)] {
        let partition =
            ListOffsetsPartition { partition_index: 0, current_leader_epoch: believed, timestamp: -1 };
        let topic = ListOffsetsTopic { name: "orders", partitions: vec![partition] };
        let request = ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..Default::default() };
        let body = broker.call(ApiKey::ListOffsets, 7, |writer, version| request.encode(writer, version));
        let told = ListOffsetsResponse::decode(&mut Reader::new(&body), 7).expect("an answer");
        assert_eq!(told.topics[0].partitions[0].error_code, error, "believed {believed}");
    }
}

#[test]
fn the_quorum_of_one_describes_itself() {
    let directory = directory();
    let broker = start(directory.path());
    let describe = |topic_name, partition_index, version| {
        let partitions = vec![DescribeQuorumPartition { partition_index }];
        let request = DescribeQuorumRequest { topics: vec![DescribeQuorumTopic { topic_name, partitions }] };
        broker.call(ApiKey::DescribeQuorum, version, |writer, version| request.encode(writer, version))
    };
    let mut end_before = 0;
    for version in 0..=2 {
        let body = describe("__cluster_metadata", 0, version);
        let told = DescribeQuorumResponse::decode(&mut Reader::new(&body), version).expect("an answer");
        let partition = &told.topics[0].partitions[0];
        assert_eq!((told.error_code, partition.error_code, partition.leader_id), (0, 0, 1));
        assert!(partition.leader_epoch >= 1 && partition.high_watermark > end_before, "{partition:?}");
        end_before = partition.high_watermark;
        let [voter] = partition.current_voters.as_slice() else { panic!("{partition:?}") };
        assert_eq!((voter.replica_id, voter.log_end_offset), (1, partition.high_watermark));
        assert!(partition.observers.is_empty());
        if version >= 1 {
            assert!(voter.last_caught_up_timestamp > 1_600_000_000_000, "{voter:?}");
        }
        if version >= 2 {
            assert!(!voter.replica_directory_id.is_zero());
            let listener = &told.nodes[0].listeners[0];
            assert_eq!(format!("{}:{}", listener.host, listener.port), broker.address());
        }
        let name = format!("t{version}");
        broker.json(&["topic", "create", &name, "-o", "json"]);
    }
    for (topic, partition) in [("__cluster_metadata", 1), ("t0", 0)] {
        let body = describe(topic, partition, 2);
        let told = DescribeQuorumResponse::decode(&mut Reader::new(&body), 2).expect("an answer");
        assert_eq!((told.error_code, told.topics[0].partitions[0].error_code), (0, 3), "{topic}");
    }
}

#[test]
fn what_a_broker_was_started_with_is_told_as_set_however_it_was_set() {
    const STATIC: i8 = 4;
    const DEFAULT: i8 = 5;
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let file = directory.path().join("server.properties");
    let data = directory.path().join("data");
    // Two of Kafka's older names among them.
    let lines =
        format!("broker.id=7\nlog.dir={}\nnum.partitions=1\nlog.retention.minutes=60\n", data.display());
    std::fs::write(&file, lines).expect("writable");
    let arguments = [
        "--config",
        process::text(&file),
        "--advertise",
        "broker.example:9092",
        "--shards",
        "1",
        "--memory",
        "64MiB",
        "--set",
        "fetch.max.bytes=1000000",
    ];
    let mut command = process::command(process::FREE, &arguments);
    command.env("RINGLOG_MESSAGE_MAX_BYTES", "2000000");
    let broker = Broker::spawn(command);
    for (key, value, source) in [
        ("node.id", "7", STATIC),
        ("log.dirs", process::text(&data), STATIC),
        // As set, though it is the default too.
        ("num.partitions", "1", STATIC),
        ("log.retention.minutes", "60", STATIC),
        ("advertised.listeners", "broker.example:9092", STATIC),
        ("listeners", process::FREE, STATIC),
        ("ringlog.shards", "1", STATIC),
        ("ringlog.memory", "64MiB", STATIC),
        ("fetch.max.bytes", "1000000", STATIC),
        ("message.max.bytes", "2000000", STATIC),
        ("log.segment.bytes", "1073741824", DEFAULT),
        ("offsets.topic.num.partitions", "50", DEFAULT),
    ] {
        let (error, told) = broker.described(BROKER, "7", key);
        let (shown, from, synonyms) = told.expect("it has the key");
        assert_eq!((error, shown.as_str(), from, synonyms[0]), (0, value, source, source), "{key}");
    }
    broker.kill();
    // Nobody said where clients reach it: they are told what they reached.
    let broker = start(&directory.path().join("other"));
    let (_, told) = broker.described(BROKER, "1", "advertised.listeners");
    assert_eq!(told.expect("it has the key"), ("auto".to_owned(), DEFAULT, vec![DEFAULT]));
}
