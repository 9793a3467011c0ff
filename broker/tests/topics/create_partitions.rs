//! More partitions of a topic (CreatePartitions) of a whole node on the simulation, over one core and several: there with the answer, over a
//! power cut whole or not at all, heard of by groups; and what was open before goes on.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use ringlog_bench::client::admin::OffsetQuery;
use ringlog_bench::client::connection::Connection;
use ringlog_io::sim::UnsyncedData;
use ringlog_io::{Io, Priority};
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::ids::{ProducerEpoch, ProducerId, Sequence};
use ringlog_protocol::messages::create_partitions::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopic,
};
use ringlog_protocol::messages::fetch::{FetchPartition, FetchRequest, FetchResponse, FetchTopic};
use ringlog_protocol::messages::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use ringlog_protocol::messages::produce::{
    PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData,
};
use ringlog_protocol::records::batch::batches;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::validate::BatchProducer;
use ringlog_protocol::wire::{Reader, Records, Writer};

use crate::support::clients;
use crate::support::clients::TOPIC;
use crate::support::consumer::Consumer;
use crate::support::group_scene::{GROUPS, PARTITION_COUNT, Scene};

const WAIT: Duration = Duration::from_secs(120);
const GROWN: i32 = PARTITION_COUNT + 5;
const OTHER: &str = "others";

/// A client's end.
#[derive(Clone)]
struct Peer {
    io: Io,
    connection: Rc<Connection>,
}

/// What a fetch is told: its session, and of each partition in the answer its error and the offset behind its last record.
type Fetched = (i32, BTreeMap<i32, (i16, Option<i64>)>);

impl Peer {
    async fn connect(io: &Io, host: std::net::IpAddr) -> Peer {
        let client = clients::connect(io, host).await.expect("it serves");
        Peer { io: io.clone(), connection: client.any_connection().await.expect("it serves") }
    }

    /// Topics and error numbers of one request; `None` where no answer comes.
    async fn grow(&self, topics: &[(&str, i32)], timeout_ms: i32) -> Option<Vec<(String, i16)>> {
        let topics =
            topics.iter().map(|&(name, count)| CreatePartitionsTopic { name, count, assignments: None });
        let request = CreatePartitionsRequest { topics: topics.collect(), timeout_ms, validate_only: false };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let body = self.connection.call(ApiKey::CreatePartitions, 3, WAIT, encode).await.ok()?;
        let response = CreatePartitionsResponse::decode(&mut Reader::new(&body), 3).expect("an answer");
        Some(response.results.iter().map(|told| (told.name.to_owned(), told.error_code)).collect())
    }

    async fn grows(&self, count: i32) {
        assert_eq!(self.grow(&[(TOPIC, count)], 10_000).await, Some(vec![(TOPIC.to_owned(), 0)]));
    }

    /// Error and base offset of one record.
    async fn produce(&self, partition: i32, producer: Option<BatchProducer>) -> (i16, i64) {
        let mut builder = BatchBuilder::new();
        let timestamp = self.io.wall_now_ms();
        let record = NewRecord { timestamp, value: Some(b"value"), ..NewRecord::default() };
        builder.append(&record).expect("a small record fits");
        let options = BatchOptions { producer, ..BatchOptions::default() };
        let batch = builder.finish(&options).expect("the batch has a record");
        let data = PartitionProduceData { index: partition, records: Some(&batch) };
        let topic = TopicProduceData { name: TOPIC, partition_data: vec![data], ..Default::default() };
        let request =
            ProduceRequest { acks: -1, timeout_ms: 10_000, topic_data: vec![topic], transactional_id: None };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let body = self.connection.call(ApiKey::Produce, 8, WAIT, encode).await.expect("an answer");
        let response = ProduceResponse::decode(&mut Reader::new(&body), 8).expect("an answer");
        let told = &response.responses[0].partition_responses[0];
        (told.error_code, told.base_offset)
    }

    /// Of a session, or beginning one with epoch 0.
    async fn fetch(&self, session: (i32, i32), wanted: &[i32], wait_ms: i32) -> Fetched {
        let partitions = wanted.iter().map(|&partition| FetchPartition {
            partition,
            partition_max_bytes: 1 << 20,
            ..FetchPartition::default()
        });
        let topic = FetchTopic { topic: TOPIC, partitions: partitions.collect(), ..FetchTopic::default() };
        let request = FetchRequest {
            max_wait_ms: wait_ms,
            min_bytes: 1,
            session_id: session.0,
            session_epoch: session.1,
            topics: if wanted.is_empty() { Vec::new() } else { vec![topic] },
            ..FetchRequest::default()
        };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let body = self.connection.call(ApiKey::Fetch, 12, WAIT, encode).await.expect("an answer");
        let response = FetchResponse::decode(&mut Reader::new(&body), 12).expect("an answer");
        assert_eq!(response.error_code, 0);
        let partitions = response.responses.iter().flat_map(|topic| &topic.partitions);
        let shown = partitions.map(|partition| {
            let Records::Borrowed(bytes) = partition.records else { panic!("decoded records are bytes") };
            let last = batches(bytes).filter_map(Result::ok).last();
            let next = last.map(|batch| batch.header.next_offset().0);
            (partition.partition_index, (partition.error_code, next))
        });
        (response.session_id, shown.collect())
    }

    async fn producer(&self) -> ProducerId {
        let request = InitProducerIdRequest {
            transactional_id: None,
            transaction_timeout_ms: 60_000,
            ..InitProducerIdRequest::default()
        };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let body = self.connection.call(ApiKey::InitProducerId, 4, WAIT, encode).await.expect("an answer");
        let response = InitProducerIdResponse::decode(&mut Reader::new(&body), 4).expect("an answer");
        assert_eq!(response.error_code, 0);
        ProducerId(response.producer_id)
    }
}

/// Runs `work` with a connection of its own.
fn with<T: 'static, F: Future<Output = T>>(scene: &Scene, work: impl FnOnce(Peer) -> F + 'static) -> T {
    let (io, host) = (scene.io.clone(), scene.broker.address());
    scene.run(async move { work(Peer::connect(&io, host).await).await })
}

/// The end of each partition.
fn ends(scene: &Scene, name: &'static str) -> Vec<i64> {
    let (io, host) = (scene.io.clone(), scene.broker.address());
    scene.run(async move {
        let client = clients::connect(&io, host).await.expect("it serves");
        let partitions: Vec<i32> =
            client.topic(name).await.expect("it is there").partitions.keys().copied().collect();
        assert!(partitions.iter().copied().eq(0..partitions.len() as i32), "{partitions:?}");
        let ends = client.offsets(name, &partitions, OffsetQuery::Latest).await.expect("they lead");
        ends.into_values().collect()
    })
}

#[test]
fn new_partitions_take_records_at_once_and_keep_them_on_any_number_of_cores() {
    for (seed, core_count, later) in [(0, 1, 3), (1, 3, 1), (2, 2, 5)] {
        let mut scene = Scene::new(seed, core_count);
        with(&scene, async move |peer: Peer| {
            assert_eq!(peer.produce(PARTITION_COUNT, None).await.0, 3, "it is not there yet");
            peer.grows(GROWN).await;
            for partition in 0..GROWN {
                assert_eq!(peer.produce(partition, None).await, (0, 0), "{partition}");
            }
            assert_eq!(peer.produce(GROWN, None).await.0, 3);
        });
        scene.shape.core_count = later;
        let scene = scene.cut_power(UnsyncedData::Lost);
        assert_eq!(ends(&scene, TOPIC), [1; GROWN as usize]);
        with(&scene, async move |peer: Peer| {
            peer.grows(GROWN + 1).await;
            assert_eq!(peer.produce(GROWN, None).await, (0, 0));
            assert_eq!(peer.produce(GROWN - 1, None).await, (0, 1));
        });
        scene.stop();
    }
}

#[test]
fn a_power_cut_leaves_all_that_a_request_asked_for_or_none() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..30 {
        let scene = Scene::new(seed, 2);
        scene.create(OTHER, 2);
        let (io, host) = (scene.io.clone(), scene.broker.address());
        let peer = scene.run(async move { Peer::connect(&io, host).await });
        let answered = Rc::new(Cell::new(false));
        let told = Rc::clone(&answered);
        let request = async move {
            let done = peer.grow(&[(TOPIC, GROWN), (OTHER, 7)], 10_000).await;
            told.set(done.is_some_and(|results| results.iter().all(|(_, error)| *error == 0)));
        };
        scene.io.spawn(Priority::Foreground, request).detach();
        scene.pass(Duration::from_micros(300 * seed));
        let was_answered = answered.get();
        let unsynced =
            if seed % 2 == 0 { UnsyncedData::Lost } else { UnsyncedData::RandomSubset { torn: true } };
        let scene = scene.cut_power(unsynced);
        let counts = (ends(&scene, TOPIC).len() as i32, ends(&scene, OTHER).len());
        assert!([(PARTITION_COUNT, 2), (GROWN, 7)].contains(&counts), "seed {seed}: {counts:?}");
        assert!(!was_answered || counts.0 == GROWN, "seed {seed}: it was promised");
        outcomes.insert((was_answered, counts.0 == GROWN));
        // Whatever became of it, it can be asked for again.
        with(&scene, async move |peer: Peer| peer.grows(GROWN + 1).await);
        scene.stop();
    }
    let both = [(false, false), (true, true)];
    assert!(
        both.iter().all(|outcome| outcomes.contains(outcome)),
        "the cuts come too early or late: {outcomes:?}"
    );
}

#[test]
fn consumers_get_the_new_partitions_by_name_and_by_expression() {
    for core_count in 1..=3 {
        let scene = Scene::new(u64::from(core_count), core_count);
        for (number, group) in (1..).zip(GROUPS) {
            let (io, host) = (scene.io.clone(), scene.broker.address());
            let before = PARTITION_COUNT as usize + number - 1;
            scene.run(async move {
                let mut member = Consumer::connect(&io, host, group, "one").await.expect("it serves");
                if number % 2 == 0 {
                    (member.topics, member.regex) = (Vec::new(), "ord.*");
                }
                member.own(before).await.expect("it joins");
                let epoch = member.epoch;
                Peer::connect(&io, host).await.grows(before as i32 + 1).await;
                member.own(before + 1).await.expect("it is a member");
                assert_eq!(member.epoch, epoch + 1, "{group}: the group moved on once");
                member.commit(TOPIC, before as i32, 1).await.expect("it has the new one");
                member.leave(-1).await.expect("it may");
            });
        }
        scene.stop();
    }
}

#[test]
fn a_classic_group_is_left_alone_and_reads_the_new_number_itself() {
    let scene = Scene::new(9, 2);
    let mut member = scene.member(GROUPS[0]);
    scene.run(async move {
        member.join().await.expect("it joins");
        member.sync_with(vec![(member.id.clone(), Vec::new())]).await.expect("it leads");
        let host = member.client.any_connection().await.expect("it serves").address().host.clone();
        Peer::connect(&member.io, host.parse().expect("an address")).await.grows(GROWN).await;
        member.heartbeat().await.expect("nothing moves until its leader joins again");
        let image = member.client.metadata(Some(&[TOPIC])).await.expect("it serves");
        assert_eq!(image.topics[TOPIC].partitions.len() as i32, GROWN);
        member.join().await.expect("as a leader does that saw more partitions");
    });
    scene.stop();
}

#[test]
fn producers_sessions_and_long_polls_go_on() {
    for core_count in 1..=3 {
        let scene = Scene::new(u64::from(core_count), core_count);
        let (io, host) = (scene.io.clone(), scene.broker.address());
        scene.run(async move {
            let (peer, reader) = (Peer::connect(&io, host).await, Peer::connect(&io, host).await);
            let id = peer.producer().await;
            let numbered =
                |sequence| BatchProducer { id, epoch: ProducerEpoch(0), base_sequence: Sequence(sequence) };
            assert_eq!(peer.produce(0, Some(numbered(0))).await, (0, 0));
            let all: Vec<i32> = (0..PARTITION_COUNT).collect();
            let (session, shown) = reader.fetch((0, 0), &all, 0).await;
            assert_eq!((session > 0, shown[&0]), (true, (0, Some(1))));
            // Waits on the partitions that it knows.
            let (poller, waits) = (reader.clone(), all[1..].to_vec());
            let polled =
                io.spawn(Priority::Foreground, async move { poller.fetch((0, -1), &waits, 60_000).await.1 });
            io.sleep(Duration::from_millis(50)).await;
            peer.grows(GROWN).await;
            io.sleep(Duration::from_millis(50)).await;
            assert!(!polled.is_finished(), "a new partition is no record");
            assert_eq!(peer.produce(0, Some(numbered(0))).await, (0, 0), "it is known");
            assert_eq!(peer.produce(0, Some(numbered(1))).await, (0, 1));
            assert_eq!(peer.produce(5, None).await, (0, 0));
            assert_eq!(polled.await.get(&5), Some(&(0, Some(1))));
            // The session takes the new ones in like any other.
            assert_eq!(peer.produce(GROWN - 1, Some(numbered(0))).await, (0, 0));
            let new: Vec<i32> = (PARTITION_COUNT..GROWN).collect();
            let (_, shown) = reader.fetch((session, 1), &new, 0).await;
            assert_eq!(shown[&(GROWN - 1)], (0, Some(1)));
            assert!(shown.values().all(|(error, _)| *error == 0), "{shown:?}");
        });
        scene.stop();
    }
}
