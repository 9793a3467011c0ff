//! Batches that no file of the journal could hold, on a real broker of the dev profile: stored, read back after kill -9, in bounded memory, and
//! beyond what is stored refused with the bound.

mod process;

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use ringlog_bench::client::address::parse_bootstrap;
use ringlog_bench::client::admin::NewTopic;
use ringlog_bench::client::connection::Connection;
use ringlog_bench::client::{Client, ClientConfig};
use ringlog_io::Io;
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::fetch::{FetchPartition, FetchRequest, FetchResponse, FetchTopic};
use ringlog_protocol::messages::produce::{
    PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData,
};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::wire::{Reader, Records, Writer};

use process::Broker;

const TOPIC: &str = "large";
const PARTITIONS: i32 = 4;
const WAIT: Duration = Duration::from_secs(120);
const MIB: usize = 1 << 20;
/// Behind offset and length a batch's bytes are as they were sent, but for the leader's epoch.
const STAMPED_BYTES: usize = 16;

fn start(directory: &Path) -> Broker {
    Broker::start(directory, &["--set", "ringlog.profile=dev"])
}

/// Most memory that it ever had at once, in bytes.
fn memory_peak(broker: &Broker) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", broker.ready["pid"])).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("the kernel says it");
    let kib: usize = line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number");
    kib * 1024
}

fn with<T, F: Future<Output = T>>(broker: &Broker, work: impl FnOnce(Io, Client) -> F) -> T {
    let bootstrap = parse_bootstrap(broker.address()).expect("an address");
    let result = ringlog_bench::runtime::block_on(|io| async move {
        let client = Client::connect(&io, ClientConfig::new(bootstrap)).await.expect("it serves");
        work(io, client).await
    });
    result.expect("an executor")
}

/// One record of so many bytes.
fn batch(value_bytes: usize, salt: u8) -> Vec<u8> {
    let value: Vec<u8> = (0..value_bytes).map(|place| (place as u8).wrapping_mul(31) ^ salt).collect();
    let mut builder = BatchBuilder::new();
    let record = NewRecord { timestamp: 1_700_000_000_000, value: Some(&value), ..NewRecord::default() };
    builder.append(&record).expect("it fits a batch");
    builder.finish(&BatchOptions::default()).expect("it has a record")
}

/// Error number and text.
async fn produce(connection: &Connection, partition: i32, batch: &[u8]) -> (i16, String) {
    let data = PartitionProduceData { index: partition, records: Some(batch) };
    let topic = TopicProduceData { name: TOPIC, partition_data: vec![data], ..Default::default() };
    let request =
        ProduceRequest { acks: -1, timeout_ms: 60_000, topic_data: vec![topic], transactional_id: None };
    let encode = |writer: &mut Writer, version| request.encode(writer, version);
    let body = connection.call(ApiKey::Produce, 8, WAIT, encode).await.expect("an answer");
    let response = ProduceResponse::decode(&mut Reader::new(&body), 8).expect("an answer");
    let told = &response.responses[0].partition_responses[0];
    (told.error_code, told.error_message.unwrap_or_default().to_owned())
}

/// The bytes that a fetch of 1 byte at most gets: one batch whole.
async fn fetch(connection: &Connection, partition: i32, offset: i64) -> Vec<u8> {
    let partition =
        FetchPartition { partition, fetch_offset: offset, partition_max_bytes: 1, ..Default::default() };
    let topic = FetchTopic { topic: TOPIC, partitions: vec![partition], ..FetchTopic::default() };
    let request = FetchRequest { max_wait_ms: 0, topics: vec![topic], ..FetchRequest::default() };
    let encode = |writer: &mut Writer, version| request.encode(writer, version);
    let body = connection.call(ApiKey::Fetch, 11, WAIT, encode).await.expect("an answer");
    let response = FetchResponse::decode(&mut Reader::new(&body), 11).expect("an answer");
    let partition = &response.responses[0].partitions[0];
    assert_eq!(partition.error_code, 0);
    let Records::Borrowed(bytes) = partition.records else { panic!("decoded records are bytes") };
    bytes.to_vec()
}

async fn check(connection: &Connection, partition: i32, offset: i64, sent: &[u8]) {
    let found = fetch(connection, partition, offset).await;
    assert!(found.len() == sent.len(), "{} bytes of {}", found.len(), sent.len());
    assert!(found[STAMPED_BYTES..] == sent[STAMPED_BYTES..], "partition {partition}, offset {offset}");
    assert_eq!(found[..8], offset.to_be_bytes());
}

async fn any(client: &Client) -> Rc<Connection> {
    client.any_connection().await.expect("it serves")
}

#[test]
fn a_batch_larger_than_a_file_of_the_journal_is_stored_and_there_after_kill_9() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let broker = start(directory.path());
    let sizes = [100, 10 * MIB, 100, 9 * MIB, 30 * MIB, 100];
    let sent: Vec<Vec<u8>> = (0..).zip(sizes).map(|(salt, bytes)| batch(bytes, salt)).collect();
    with(&broker, async |_, client| {
        let configs = vec![("max.message.bytes", "2147483647")];
        let topic = NewTopic { name: TOPIC, partitions: PARTITIONS, replication_factor: 1, configs };
        client.create_topic(&topic).await.expect("any size may be allowed");
        let connection = any(&client).await;
        for (offset, batch) in (0..).zip(&sent) {
            assert_eq!(produce(&connection, 0, batch).await, (0, String::new()));
            check(&connection, 0, offset, batch).await;
        }
        let (code, text) = produce(&connection, 0, &batch(33 * MIB, 1)).await;
        assert_eq!(code, ErrorCode::MessageTooLarge.code(), "{text}");
        for part in ["33554432", "ringlog.journal.file.bytes"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    });
    broker.kill();
    let broker = start(directory.path());
    with(&broker, async |_, client| {
        let connection = any(&client).await;
        for (offset, batch) in (0..).zip(&sent) {
            check(&connection, 0, offset, batch).await;
        }
        assert_eq!(produce(&connection, 0, &sent[1]).await, (0, String::new()));
        check(&connection, 0, sent.len() as i64, &sent[1]).await;
    });
}

#[test]
fn many_large_batches_at_once_take_a_bounded_memory() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let broker = start(directory.path());
    let large = batch(10 * MIB, 7);
    with(&broker, async |io, client| {
        let configs = vec![("max.message.bytes", "10485900")];
        let topic = NewTopic { name: TOPIC, partitions: PARTITIONS, replication_factor: 1, configs };
        client.create_topic(&topic).await.expect("a topic");
        let producers: Vec<_> = (0..PARTITIONS)
            .map(|partition| {
                let (client_config, large) = (client.config().clone(), large.clone());
                let own = io.clone();
                io.spawn(ringlog_io::Priority::Foreground, async move {
                    let client = Client::connect(&own, client_config).await.expect("it serves");
                    let connection = any(&client).await;
                    for _ in 0..8 {
                        assert_eq!(produce(&connection, partition, &large).await, (0, String::new()));
                    }
                })
            })
            .collect();
        for producer in producers {
            producer.await;
        }
        let connection = any(&client).await;
        for partition in 0..PARTITIONS {
            check(&connection, partition, 7, &large).await;
        }
    });
    // 320 MiB were sent. Two shards hold 32 MiB of tails each, and one batch more; the rest is requests on their way.
    let peak = memory_peak(&broker);
    assert!(peak < 256 * MIB, "{peak} bytes at once");
}
