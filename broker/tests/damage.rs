//! A broker whose files changed while it was down, as its operator and its clients see it: damage is named, no client is
//! told of a shorter log, and a damaged metadata log is refused before anything is renamed.

use std::fs;
use std::path::{Path, PathBuf};

use process::{Broker, FREE, refused, text};
use ringlog_broker::controller::METADATA_PARTITION;
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::ids::{PartitionIndex, TopicId, TopicPartition};
use ringlog_protocol::messages::create_topics::{CreatableTopic, CreateTopicsRequest, CreateTopicsResponse};
use ringlog_protocol::messages::describe_log_dirs::{DescribeLogDirsRequest, DescribeLogDirsResponse};
use ringlog_protocol::messages::fetch::{FetchPartition, FetchRequest, FetchResponse, FetchTopic};
use ringlog_protocol::messages::list_offsets::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopic,
};
use ringlog_protocol::messages::produce::{
    PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData,
};
use ringlog_protocol::records::batch::batches;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::wire::{Reader, Records};
use rustix::process::Signal;

mod process;

const TOPIC: &str = "orders";
const KAFKA_STORAGE_ERROR: i16 = 56;
const OF_ONE_SHARD: [&str; 6] =
    ["--shards", "1", "--memory", "64MiB", "--set", "ringlog.metrics.interval.ms=50"];

fn over(directory: &Path) -> Vec<&str> {
    [OF_ONE_SHARD.as_slice(), &["--data-dir", text(directory)]].concat()
}

fn start(directory: &Path) -> Broker {
    Broker::serve(&over(directory))
}

fn stop(broker: Broker) {
    let (code, said) = broker.end(Signal::TERM);
    assert_eq!(code, Some(0), "{said}");
}

impl Broker {
    /// A topic of one partition, with batches of one record each.
    fn fill(&self, count: usize) {
        let topic = CreatableTopic {
            name: TOPIC,
            num_partitions: 1,
            replication_factor: 1,
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() };
        let answer = self.call(ApiKey::CreateTopics, 2, |writer, version| request.encode(writer, version));
        let response = CreateTopicsResponse::decode(&mut Reader::new(&answer), 2).expect("an answer");
        assert_eq!(response.topics[0].error_code, 0, "{response:?}");
        (0..count).for_each(|_| assert_eq!(self.produce(), 0));
    }

    fn produce(&self) -> i16 {
        let mut builder = BatchBuilder::new();
        let record = NewRecord { timestamp: 1000, value: Some(b"value"), ..NewRecord::default() };
        builder.append(&record).expect("a small record fits");
        let batch = builder.finish(&BatchOptions::default()).expect("the batch has a record");
        let data = PartitionProduceData { index: 0, records: Some(&batch) };
        let topic =
            TopicProduceData { name: TOPIC, partition_data: vec![data], ..TopicProduceData::default() };
        let request =
            ProduceRequest { acks: -1, timeout_ms: 10_000, topic_data: vec![topic], transactional_id: None };
        let answer = self.call(ApiKey::Produce, 8, |writer, version| request.encode(writer, version));
        let response = ProduceResponse::decode(&mut Reader::new(&answer), 8).expect("an answer");
        response.responses[0].partition_responses[0].error_code
    }

    /// Error code and number of batches.
    fn fetch(&self, from: i64) -> (i16, usize) {
        let partition = FetchPartition {
            partition: 0,
            fetch_offset: from,
            partition_max_bytes: 1 << 20,
            ..FetchPartition::default()
        };
        let topic = FetchTopic { topic: TOPIC, partitions: vec![partition], ..FetchTopic::default() };
        let request = FetchRequest { max_bytes: 1 << 20, topics: vec![topic], ..FetchRequest::default() };
        let answer = self.call(ApiKey::Fetch, 11, |writer, version| request.encode(writer, version));
        let response = FetchResponse::decode(&mut Reader::new(&answer), 11).expect("an answer");
        let data = &response.responses[0].partitions[0];
        let count = match &data.records {
            Records::Borrowed(bytes) => batches(bytes).count(),
            _ => 0,
        };
        (data.error_code, count)
    }

    /// Bytes of the only topic's only partition.
    fn size(&self) -> i64 {
        let request = DescribeLogDirsRequest { topics: None };
        let answer = self.call(ApiKey::DescribeLogDirs, 1, |writer, version| request.encode(writer, version));
        let response = DescribeLogDirsResponse::decode(&mut Reader::new(&answer), 1).expect("an answer");
        response.results[0].topics[0].partitions[0].partition_size
    }

    /// Error code and offset.
    fn list(&self, timestamp: i64) -> (i16, i64) {
        let partition =
            ListOffsetsPartition { partition_index: 0, timestamp, ..ListOffsetsPartition::default() };
        let topic = ListOffsetsTopic { name: TOPIC, partitions: vec![partition] };
        let request =
            ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..ListOffsetsRequest::default() };
        let answer = self.call(ApiKey::ListOffsets, 7, |writer, version| request.encode(writer, version));
        let response = ListOffsetsResponse::decode(&mut Reader::new(&answer), 7).expect("an answer");
        let found = &response.topics[0].partitions[0];
        (found.error_code, found.offset)
    }
}

fn segment(directory: &Path, key: TopicPartition) -> PathBuf {
    let folder = directory.join("data").join(key.topic.to_string()).join(key.partition.0.to_string());
    folder.join("00000000000000000000.log")
}

/// The partition of the only topic.
fn only_partition(directory: &Path) -> TopicPartition {
    let entries = fs::read_dir(directory.join("data")).expect("a folder");
    let names = entries.map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned());
    let topics = names.map(|name| name.parse::<TopicId>().expect("a topic's folder"));
    let topic = topics.filter(|topic| *topic != METADATA_PARTITION.topic).last().expect("one topic");
    TopicPartition { topic, partition: PartitionIndex(0) }
}

/// Changes a byte of the batch of that number, and removes what spares a start reading it; answers where the batch begins.
fn damage(directory: &Path, segment: &Path, number: usize) -> usize {
    fs::remove_dir_all(directory.join("checkpoints")).expect("there are checkpoints");
    let mut bytes = fs::read(segment).expect("a segment");
    let sizes: Vec<usize> = batches(&bytes).map(|batch| batch.expect("sound").header.total_bytes()).collect();
    let position = sizes[..number].iter().sum();
    bytes[position + sizes[number] - 2] ^= 0x10;
    fs::write(segment, bytes).expect("writable");
    position
}

#[test]
fn damage_that_a_start_finds_is_named_and_no_client_is_told_of_a_shorter_log() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let broker = start(directory.path());
    broker.fill(4);
    broker.await_text("/metrics", "ringlog_segment_damaged_places{shard=\"0\"} 0");
    stop(broker);
    let key = only_partition(directory.path());
    let file = segment(directory.path(), key);
    let position = damage(directory.path(), &file, 2);
    let broker = start(directory.path());
    let named = format!(
        "degraded: shard 0: partition 0 of topic id {}: {} is damaged at position {position}",
        key.topic,
        file.display()
    );
    broker.await_text("/healthz", &named);
    broker.await_text("/readyz", "degraded");
    broker.await_text("/metrics", "ringlog_segment_damaged_places{shard=\"0\"} 1");
    assert_eq!(broker.fetch(0), (0, 2), "what lies before is served");
    assert_eq!(broker.size(), position as i64, "and told");
    for from in [2, 3, 4, 1000] {
        assert_eq!(broker.fetch(from), (KAFKA_STORAGE_ERROR, 0), "from {from}");
    }
    for (timestamp, expected) in [
        (-1, (KAFKA_STORAGE_ERROR, -1)),
        (-2, (0, 0)),
        (-3, (KAFKA_STORAGE_ERROR, -1)),
        (1000, (0, 0)),
        (1001, (KAFKA_STORAGE_ERROR, -1)),
    ] {
        assert_eq!(broker.list(timestamp), expected, "timestamp {timestamp}");
    }
    assert_eq!(broker.produce(), KAFKA_STORAGE_ERROR);
    stop(broker);
}

fn names_below(path: &Path) -> Vec<PathBuf> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path).expect("a folder") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            names.extend(names_below(&path));
        }
        names.push(path);
    }
    names.sort();
    names
}

#[test]
fn a_damaged_metadata_log_is_refused_before_anything_is_renamed() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let broker = start(directory.path());
    broker.fill(2);
    stop(broker);
    let file = segment(directory.path(), METADATA_PARTITION);
    let position = damage(directory.path(), &file, 1);
    let before = names_below(&directory.path().join("data"));
    for _ in 0..2 {
        let (code, stderr) = refused(FREE, &over(directory.path()));
        assert_eq!(code, Some(78), "{stderr}");
        let named = format!("the metadata log: {} is damaged at position {position}", file.display());
        assert!(stderr.contains(&named) && stderr.contains("from a backup"), "{stderr}");
        assert_eq!(names_below(&directory.path().join("data")), before);
    }
    // The file as it was: nothing was lost by the refusals.
    let mut bytes = fs::read(&file).expect("a segment");
    let damaged = batches(&bytes[position..]).next().expect("a batch").expect("its length holds");
    let at = position + damaged.header.total_bytes() - 2;
    bytes[at] ^= 0x10;
    fs::write(&file, bytes).expect("writable");
    let broker = start(directory.path());
    assert_eq!(broker.fetch(0), (0, 2));
    stop(broker);
}
