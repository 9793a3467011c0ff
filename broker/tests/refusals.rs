//! What a producer is told when the log refuses its batch, over a socket: code and text with the values, whether the
//! partition is owned by the connection's own core or by another one.

use std::time::{Duration, Instant};

use process::{Broker, PATIENCE, Peer};
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{ProducerEpoch, ProducerId, Sequence};
use ringlog_protocol::messages::create_topics::{CreatableTopic, CreateTopicsRequest, CreateTopicsResponse};
use ringlog_protocol::messages::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use ringlog_protocol::messages::produce::{
    PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData,
};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::validate::BatchProducer;
use ringlog_protocol::wire::Reader;

mod process;

const TOPIC: &str = "orders";
/// Enough that each of two cores owns some: placement is by hash.
const PARTITIONS: i32 = 8;

/// A broker in memory.
fn start(shards: u32) -> Broker {
    let shards = shards.to_string();
    let arguments = ["--ephemeral", "--shards", &shards, "--memory", "128MiB"];
    Broker::serve(&[arguments.as_slice(), &["--set", "ringlog.metrics.interval.ms=50"]].concat())
}

impl Broker {
    /// Client connections of each shard, by the admin server.
    fn connections(&self) -> Vec<u64> {
        let text = self.get("/metrics");
        let shown = text.lines().filter(|line| line.starts_with("ringlog_connections{"));
        shown
            .map(|line| line.rsplit(' ').next().expect("a value").parse::<f64>().expect("a number") as u64)
            .collect()
    }
}

impl Peer {
    fn create_topic(&mut self) {
        let topic = CreatableTopic {
            name: TOPIC,
            num_partitions: PARTITIONS,
            replication_factor: 1,
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() };
        let answer = self.call(ApiKey::CreateTopics, 2, |writer, version| request.encode(writer, version));
        let response = CreateTopicsResponse::decode(&mut Reader::new(&answer), 2).expect("an answer");
        assert_eq!(response.topics[0].error_code, 0, "{response:?}");
    }

    fn producer_id(&mut self) -> ProducerId {
        let request = InitProducerIdRequest { transactional_id: None, ..InitProducerIdRequest::default() };
        let answer = self.call(ApiKey::InitProducerId, 0, |writer, version| request.encode(writer, version));
        let response = InitProducerIdResponse::decode(&mut Reader::new(&answer), 0).expect("an answer");
        assert_eq!(response.error_code, 0);
        ProducerId(response.producer_id)
    }

    /// Sends one record; code and text.
    fn produce(&mut self, partition: i32, producer: BatchProducer) -> (ErrorCode, Option<String>) {
        let mut builder = BatchBuilder::new();
        let record = NewRecord { timestamp: 1, value: Some(b"value"), ..NewRecord::default() };
        builder.append(&record).expect("a small record fits");
        let options = BatchOptions { producer: Some(producer), ..BatchOptions::default() };
        let batch = builder.finish(&options).expect("the batch has a record");
        let data = PartitionProduceData { index: partition, records: Some(&batch) };
        let topic =
            TopicProduceData { name: TOPIC, partition_data: vec![data], ..TopicProduceData::default() };
        let request =
            ProduceRequest { acks: -1, timeout_ms: 10_000, topic_data: vec![topic], transactional_id: None };
        let answer = self.call(ApiKey::Produce, 8, |writer, version| request.encode(writer, version));
        let response = ProduceResponse::decode(&mut Reader::new(&answer), 8).expect("an answer");
        let told = &response.responses[0].partition_responses[0];
        assert_eq!(told.base_offset >= 0, told.error_code == 0, "{told:?}");
        (ErrorCode::from_i16(told.error_code).expect("a known code"), told.error_message.map(str::to_owned))
    }
}

/// As many connections as shards, one on each.
fn one_peer_on_each(broker: &Broker, shards: u32) -> Vec<Peer> {
    let peers = (0..shards).map(|_| Peer::connect(broker)).collect();
    let deadline = Instant::now() + PATIENCE;
    while broker.connections() != vec![1; shards as usize] {
        assert!(Instant::now() < deadline, "connections are not spread: {:?}", broker.connections());
        std::thread::sleep(Duration::from_millis(20));
    }
    peers
}

fn check(peer: &mut Peer, partition: i32, producer: BatchProducer, code: ErrorCode, parts: &[String]) {
    let (told, text) = peer.produce(partition, producer);
    assert_eq!(told, code, "partition {partition}: {text:?}");
    let text = text.unwrap_or_default();
    for part in parts {
        assert!(text.contains(part.as_str()), "partition {partition}: {part:?} is not in {text:?}");
    }
}

/// Every partition from a connection on every core, so that each owner is asked from its own core and from others.
fn every_core_tells_every_refusal(shards: u32) {
    let broker = start(shards);
    let mut peers = one_peer_on_each(&broker, shards);
    peers[0].create_topic();
    for peer in &mut peers {
        let id = peer.producer_id();
        let named = format!("producer {id}");
        let stamp = |epoch, sequence| BatchProducer {
            id,
            epoch: ProducerEpoch(epoch),
            base_sequence: Sequence(sequence),
        };
        for partition in 0..PARTITIONS {
            assert_eq!(peer.produce(partition, stamp(3, 0)), (ErrorCode::None, None));
            let parts = [named.clone(), "sequence 4711".to_owned(), "expected 1".to_owned()];
            check(peer, partition, stamp(3, 4711), ErrorCode::OutOfOrderSequenceNumber, &parts);
            let parts = [named.clone(), "epoch 2".to_owned(), "last seen, 3".to_owned()];
            check(peer, partition, stamp(2, 1), ErrorCode::InvalidProducerEpoch, &parts);
            let parts =
                [named.clone(), "epoch 4".to_owned(), "sequence 5".to_owned(), "expected 0".to_owned()];
            check(peer, partition, stamp(4, 5), ErrorCode::OutOfOrderSequenceNumber, &parts);
            assert_eq!(
                peer.produce(partition, stamp(3, 1)),
                (ErrorCode::None, None),
                "a refusal moved the sequence"
            );
        }
    }
}

#[test]
fn one_shard_tells_what_it_refuses() {
    every_core_tells_every_refusal(1);
}

#[test]
fn what_another_core_refuses_is_told_with_its_values() {
    every_core_tells_every_refusal(2);
}
