//! A broker whose files changed while it was down, as its operator and its clients see it: damage is named, no client is
//! told of a shorter log, and a damaged metadata log is refused before anything is renamed.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringlog_broker::controller::METADATA_PARTITION;
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::frame::{Answer, RequestHeader, ResponseHeader};
use ringlog_protocol::ids::{PartitionIndex, TopicId, TopicPartition};
use ringlog_protocol::messages::create_topics::{CreatableTopic, CreateTopicsRequest, CreateTopicsResponse};
use ringlog_protocol::messages::fetch::{FetchPartition, FetchRequest, FetchResponse, FetchTopic};
use ringlog_protocol::messages::list_offsets::{
    ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopic,
};
use ringlog_protocol::messages::produce::{
    PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData,
};
use ringlog_protocol::records::batch::batches;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::wire::{EncodeError, Reader, Records, Writer};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const TOPIC: &str = "orders";
const PATIENCE: Duration = Duration::from_secs(20);
const KAFKA_STORAGE_ERROR: i16 = 56;

fn command(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringlog"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RINGLOG_")) {
        command.env_remove(name);
    }
    command
        .args(["broker", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--shards", "1"])
        .args(["--memory", "64MiB", "--ready-fd", "1", "--set", "ringlog.metrics.interval.ms=50"])
        .args(["--data-dir", directory.to_str().expect("temporary paths are text")]);
    command
}

/// A broker that ends with the test.
struct Broker {
    child: Child,
    ready: Value,
}

impl Broker {
    fn start(directory: &Path) -> Broker {
        let mut child =
            command(directory).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary runs");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("text");
        Broker { child, ready: serde_json::from_str(&line).expect("a ready line") }
    }

    fn get(&self, path: &str) -> String {
        let address = self.ready["admin"].as_str().expect("an address");
        let mut stream = TcpStream::connect(address).expect("it listens");
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        text
    }

    /// What `path` answers once it says `expected`; cores publish on a timer.
    fn await_text(&self, path: &str, expected: &str) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.get(path);
            if text.contains(expected) {
                return;
            }
            assert!(Instant::now() < deadline, "{path} never says {expected}: {text}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        assert!(self.child.wait().expect("it ends").success());
    }

    /// Sends a request on a connection of its own; the body of the answer.
    fn call(
        &self,
        api: ApiKey,
        version: i16,
        body: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
    ) -> Vec<u8> {
        let address = self.ready["listeners"][0]["bound"].as_str().expect("an address");
        let mut socket = TcpStream::connect(address).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout above zero");
        let header = RequestHeader {
            api,
            api_version: version,
            correlation_id: 1,
            client_id: Some("damage"),
            answer: Answer::Serve,
        };
        let mut writer = Writer::new();
        header.encode(&mut writer).expect("a short client id");
        body(&mut writer).expect("the message fits its version");
        let frame = writer.into_bytes();
        socket.write_all(&(frame.len() as u32).to_be_bytes()).expect("it reads");
        socket.write_all(&frame).expect("it reads");
        let mut length = [0; 4];
        socket.read_exact(&mut length).expect("it answers");
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        socket.read_exact(&mut answer).expect("it answers");
        let mut reader = Reader::new(&answer);
        ResponseHeader::decode(&mut reader, api, version).expect("a header");
        let body_at = reader.offset();
        answer.split_off(body_at)
    }

    /// A topic of one partition, with batches of one record each.
    fn fill(&self, count: usize) {
        let topic = CreatableTopic {
            name: TOPIC,
            num_partitions: 1,
            replication_factor: 1,
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() };
        let answer = self.call(ApiKey::CreateTopics, 2, |writer| request.encode(writer, 2));
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
        let answer = self.call(ApiKey::Produce, 8, |writer| request.encode(writer, 8));
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
        let answer = self.call(ApiKey::Fetch, 11, |writer| request.encode(writer, 11));
        let response = FetchResponse::decode(&mut Reader::new(&answer), 11).expect("an answer");
        let data = &response.responses[0].partitions[0];
        let count = match &data.records {
            Records::Borrowed(bytes) => batches(bytes).count(),
            _ => 0,
        };
        (data.error_code, count)
    }

    /// Error code and offset.
    fn list(&self, timestamp: i64) -> (i16, i64) {
        let partition =
            ListOffsetsPartition { partition_index: 0, timestamp, ..ListOffsetsPartition::default() };
        let topic = ListOffsetsTopic { name: TOPIC, partitions: vec![partition] };
        let request =
            ListOffsetsRequest { replica_id: -1, topics: vec![topic], ..ListOffsetsRequest::default() };
        let answer = self.call(ApiKey::ListOffsets, 7, |writer| request.encode(writer, 7));
        let response = ListOffsetsResponse::decode(&mut Reader::new(&answer), 7).expect("an answer");
        let found = &response.topics[0].partitions[0];
        (found.error_code, found.offset)
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It has ended already where the test stopped it.
        let _ = self.child.kill();
        let _ = self.child.wait();
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
    let broker = Broker::start(directory.path());
    broker.fill(4);
    broker.await_text("/metrics", "ringlog_segment_damaged_places{shard=\"0\"} 0");
    broker.stop();
    let key = only_partition(directory.path());
    let file = segment(directory.path(), key);
    let position = damage(directory.path(), &file, 2);
    let broker = Broker::start(directory.path());
    let named = format!(
        "degraded: shard 0: partition 0 of topic id {}: {} is damaged at position {position}",
        key.topic,
        file.display()
    );
    broker.await_text("/healthz", &named);
    broker.await_text("/readyz", "degraded");
    broker.await_text("/metrics", "ringlog_segment_damaged_places{shard=\"0\"} 1");
    assert_eq!(broker.fetch(0), (0, 2), "what lies before is served");
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
    broker.stop();
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
    let broker = Broker::start(directory.path());
    broker.fill(2);
    broker.stop();
    let file = segment(directory.path(), METADATA_PARTITION);
    let position = damage(directory.path(), &file, 1);
    let before = names_below(&directory.path().join("data"));
    for _ in 0..2 {
        let output = command(directory.path()).output().expect("the binary runs");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(78), "{stderr}");
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
    let broker = Broker::start(directory.path());
    assert_eq!(broker.fetch(0), (0, 2));
    broker.stop();
}
