//! The metadata log of a broker that runs long: it begins behind its start by and by, and after kill -9 the topics and
//! configs are those that were there. What it cannot make again it does not guess.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use process::{Broker, FREE, PATIENCE, text};
use ringlog_broker::controller::METADATA_PARTITION;
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::ids::TopicId;
use ringlog_protocol::messages::create_topics::{
    CreatableTopic, CreatableTopicConfig, CreateTopicsRequest, CreateTopicsResponse,
};
use ringlog_protocol::messages::delete_topics::{DeleteTopicsRequest, DeleteTopicsResponse};
use ringlog_protocol::messages::describe_configs::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResponse,
};
use ringlog_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
};
use ringlog_protocol::messages::metadata::{MetadataRequest, MetadataResponse};
use ringlog_protocol::wire::Reader;

mod process;

const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const BYTES_BETWEEN_SNAPSHOTS: u64 = 2_000;

/// A log that is cut off often.
fn settings() -> String {
    format!("metadata.log.max.record.bytes.between.snapshots={BYTES_BETWEEN_SNAPSHOTS}")
}

fn start_over(directory: &Path) -> Broker {
    Broker::start(directory, &["--set", &settings()])
}

/// What clients can see of the metadata: each topic with id, partitions, and two configs with their sources; and the brokers' own.
type Seen = (BTreeSet<(String, TopicId, usize)>, Vec<(String, i8)>);

impl Broker {
    fn create(&self, name: &str, partitions: i32) {
        let config = CreatableTopicConfig { name: "segment.ms", value: Some("60000") };
        let topic = CreatableTopic {
            name,
            num_partitions: partitions,
            replication_factor: 1,
            configs: vec![config],
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() };
        let answer = self.call(ApiKey::CreateTopics, 2, |writer, version| request.encode(writer, version));
        let response = CreateTopicsResponse::decode(&mut Reader::new(&answer), 2).expect("an answer");
        assert_eq!(response.topics[0].error_code, 0, "{response:?}");
    }

    fn delete(&self, name: &str) {
        let request = DeleteTopicsRequest {
            topic_names: vec![name],
            timeout_ms: 10_000,
            ..DeleteTopicsRequest::default()
        };
        let answer = self.call(ApiKey::DeleteTopics, 2, |writer, version| request.encode(writer, version));
        let response = DeleteTopicsResponse::decode(&mut Reader::new(&answer), 2).expect("an answer");
        assert_eq!(response.responses[0].error_code, 0, "{response:?}");
    }

    fn set(&self, kind: i8, name: &str, key: &str, value: &str) {
        let config = AlterableConfig { name: key, config_operation: 0, value: Some(value) };
        let resource =
            AlterConfigsResource { resource_type: kind, resource_name: name, configs: vec![config] };
        let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only: false };
        let answer =
            self.call(ApiKey::IncrementalAlterConfigs, 1, |writer, version| request.encode(writer, version));
        let response =
            IncrementalAlterConfigsResponse::decode(&mut Reader::new(&answer), 1).expect("an answer");
        assert_eq!(response.responses[0].error_code, 0, "{response:?}");
    }

    /// Value and source of one key of each resource.
    fn described(&self, resources: &[(i8, String)], key: &str) -> Vec<(String, i8)> {
        let resource = |(kind, name): &(i8, String)| (*kind, name.clone());
        let resources: Vec<_> = resources.iter().map(resource).collect();
        let resources = resources
            .iter()
            .map(|(kind, name)| DescribeConfigsResource {
                resource_type: *kind,
                resource_name: name,
                configuration_keys: Some(vec![key]),
            })
            .collect();
        let request = DescribeConfigsRequest { resources, ..DescribeConfigsRequest::default() };
        let answer = self.call(ApiKey::DescribeConfigs, 4, |writer, version| request.encode(writer, version));
        let response = DescribeConfigsResponse::decode(&mut Reader::new(&answer), 4).expect("an answer");
        let value = |config: &ringlog_protocol::messages::describe_configs::DescribeConfigsResourceResult<
            '_,
        >| { (config.value.unwrap_or_default().to_owned(), config.config_source) };
        response.results.iter().map(|result| value(&result.configs[0])).collect()
    }

    fn seen(&self) -> Seen {
        let request = MetadataRequest { topics: None, ..MetadataRequest::default() };
        let answer = self.call(ApiKey::Metadata, 12, |writer, version| request.encode(writer, version));
        let response = MetadataResponse::decode(&mut Reader::new(&answer), 12).expect("an answer");
        let topics: BTreeSet<_> = response
            .topics
            .iter()
            .map(|topic| (topic.name.expect("named").to_owned(), topic.topic_id, topic.partitions.len()))
            .collect();
        let mut resources: Vec<_> = topics.iter().map(|(name, ..)| (TOPIC, name.clone())).collect();
        let mut configs = self.described(&resources, "retention.ms");
        configs.extend(self.described(&resources, "segment.ms"));
        resources = vec![(BROKER, String::new()), (BROKER, "1".to_owned())];
        configs.extend(self.described(&resources, "message.max.bytes"));
        (topics, configs)
    }
}

fn folder(directory: &Path) -> PathBuf {
    let key = METADATA_PARTITION;
    directory.join("data").join(key.topic.to_string()).join(key.partition.0.to_string())
}

/// The snapshots, with their offsets, oldest first.
fn snapshots(directory: &Path) -> Vec<(i64, PathBuf)> {
    let entries = fs::read_dir(folder(directory)).expect("the metadata has a folder");
    let mut found: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.to_owned();
            let offset = name.strip_suffix("-v1.snapshot")?.parse().ok()?;
            Some((offset, path))
        })
        .collect();
    found.sort();
    found
}

/// What a start says that is refused.
fn refused(directory: &Path) -> String {
    let (code, said) = process::refused(FREE, &["--data-dir", text(directory), "--set", &settings()]);
    assert_eq!(code, Some(78), "{said}");
    said
}

/// Topics come and go and are altered; answers how many are left.
fn work(broker: &Broker, round: usize) -> usize {
    for number in 0..40 {
        let name = format!("topic-{round}-{number}");
        broker.create(&name, number % 3 + 1);
        if number % 2 == 0 {
            broker.set(TOPIC, &name, "retention.ms", &format!("{}", 1_000_000 + number));
        }
        if number % 4 != 1 {
            broker.delete(&name);
        }
    }
    broker.set(BROKER, "", "message.max.bytes", &format!("{}", 500_000 + round));
    broker.set(BROKER, "1", "message.max.bytes", &format!("{}", 600_000 + round));
    for number in [1, 5] {
        broker.set(TOPIC, &format!("topic-{round}-{number}"), "retention.ms", "7777777");
    }
    10
}

#[test]
fn topics_and_configs_outlive_the_records_that_made_them() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let (mut topics, mut start) = (0, 0);
    for round in 0..3 {
        let broker = start_over(directory.path());
        topics += work(&broker, round);
        let before = broker.seen();
        assert_eq!(before.0.len(), topics);
        assert!(before.1.contains(&("7777777".to_owned(), 1)), "{before:?}");
        assert!(before.1.contains(&((600_000 + round).to_string(), 2)), "{before:?}");
        broker.kill();
        let newest = snapshots(directory.path()).last().expect("far more bytes than the limit").0;
        assert!(newest > start + 20, "the log begins further on: {newest}");
        start = newest;
        let broker = start_over(directory.path());
        assert_eq!(broker.seen(), before);
        broker.kill();
    }
}

#[test]
fn metadata_that_nothing_holds_any_more_is_refused_and_not_guessed() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let broker = start_over(directory.path());
    work(&broker, 0);
    let before = broker.seen();
    // The last request's snapshot may be on its way; older ones go once it is durable.
    let deadline = Instant::now() + PATIENCE;
    while snapshots(directory.path()).len() != 1 {
        assert!(Instant::now() < deadline, "{:?}", snapshots(directory.path()));
        std::thread::sleep(Duration::from_millis(20));
    }
    broker.kill();
    let (_, path) = snapshots(directory.path()).pop().expect("one");
    let bytes = fs::read(&path).expect("readable");

    fs::remove_file(&path).expect("it is there");
    let said = refused(directory.path());
    assert!(said.contains("no snapshot there holds what came before: there is none"), "{said}");

    let mut damaged = bytes.clone();
    damaged[100] ^= 1;
    fs::write(&path, damaged).expect("writable");
    let said = refused(directory.path());
    assert!(said.contains(text(&path)) && said.contains("stated checksum"), "{said}");

    fs::write(&path, bytes).expect("writable");
    assert_eq!(start_over(directory.path()).seen(), before, "nothing was changed by the refusals");
}
