//! What a producer is told when the log refuses its batch, over a socket: code and text with the values, whether the
//! partition is owned by the connection's own core or by another one.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ringlog_protocol::api::ApiKey;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::frame::{Answer, RequestHeader, ResponseHeader};
use ringlog_protocol::ids::{ProducerEpoch, ProducerId, Sequence};
use ringlog_protocol::messages::create_topics::{CreatableTopic, CreateTopicsRequest, CreateTopicsResponse};
use ringlog_protocol::messages::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use ringlog_protocol::messages::produce::{
    PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData,
};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::validate::BatchProducer;
use ringlog_protocol::wire::{EncodeError, Reader, Writer};
use serde_json::Value;

const TOPIC: &str = "orders";
/// Enough that each of two cores owns some: placement is by hash.
const PARTITIONS: i32 = 8;
const PATIENCE: Duration = Duration::from_secs(20);

/// A broker in memory that ends with the test.
struct Broker {
    child: Child,
    ready: Value,
}

impl Broker {
    fn start(shards: u32) -> Broker {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ringlog"));
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("RINGLOG_"))
        {
            command.env_remove(name);
        }
        command
            .args(["broker", "--ephemeral", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"])
            .args(["--memory", "128MiB", "--ready-fd", "1", "--set", "ringlog.metrics.interval.ms=50"])
            .args(["--shards", &shards.to_string()]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the binary runs");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut line).expect("it is text");
        Broker { child, ready: serde_json::from_str(&line).expect("a ready line") }
    }

    fn address(&self) -> &str {
        self.ready["listeners"][0]["bound"].as_str().expect("an address")
    }

    /// Client connections of each shard, by the admin server.
    fn connections(&self) -> Vec<u64> {
        let mut stream =
            TcpStream::connect(self.ready["admin"].as_str().expect("an address")).expect("it listens");
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it reads");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("it answers");
        let shown = text.lines().filter(|line| line.starts_with("ringlog_connections{"));
        shown
            .map(|line| line.rsplit(' ').next().expect("a value").parse::<f64>().expect("a number") as u64)
            .collect()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It has ended already where the test failed for that.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One blocking connection.
struct Peer {
    socket: TcpStream,
    asked: i32,
}

impl Peer {
    fn connect(broker: &Broker) -> Peer {
        let socket = TcpStream::connect(broker.address()).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout above zero");
        Peer { socket, asked: 0 }
    }

    /// Sends a request; the body of the answer.
    fn call(
        &mut self,
        api: ApiKey,
        version: i16,
        body: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
    ) -> Vec<u8> {
        self.asked += 1;
        let header = RequestHeader {
            api,
            api_version: version,
            correlation_id: self.asked,
            client_id: Some("refusals"),
            answer: Answer::Serve,
        };
        let mut writer = Writer::new();
        header.encode(&mut writer).expect("a short client id");
        body(&mut writer).expect("the message fits its version");
        let frame = writer.into_bytes();
        self.socket.write_all(&(frame.len() as u32).to_be_bytes()).expect("it reads");
        self.socket.write_all(&frame).expect("it reads");
        let mut length = [0; 4];
        self.socket.read_exact(&mut length).expect("it answers");
        let mut answer = vec![0; u32::from_be_bytes(length) as usize];
        self.socket.read_exact(&mut answer).expect("it answers");
        let mut reader = Reader::new(&answer);
        let header = ResponseHeader::decode(&mut reader, api, version).expect("a header");
        assert_eq!(header.correlation_id, self.asked);
        let body_at = reader.offset();
        answer.split_off(body_at)
    }

    fn create_topic(&mut self) {
        let topic = CreatableTopic {
            name: TOPIC,
            num_partitions: PARTITIONS,
            replication_factor: 1,
            ..CreatableTopic::default()
        };
        let request = CreateTopicsRequest { topics: vec![topic], ..CreateTopicsRequest::default() };
        let answer = self.call(ApiKey::CreateTopics, 2, |writer| request.encode(writer, 2));
        let response = CreateTopicsResponse::decode(&mut Reader::new(&answer), 2).expect("an answer");
        assert_eq!(response.topics[0].error_code, 0, "{response:?}");
    }

    fn producer_id(&mut self) -> ProducerId {
        let request = InitProducerIdRequest { transactional_id: None, ..InitProducerIdRequest::default() };
        let answer = self.call(ApiKey::InitProducerId, 0, |writer| request.encode(writer, 0));
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
        let answer = self.call(ApiKey::Produce, 8, |writer| request.encode(writer, 8));
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
    let broker = Broker::start(shards);
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
