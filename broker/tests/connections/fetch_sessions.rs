//! Fetch sessions (KIP-227) of a whole node on the simulation, over one core and several: an answer holds what changed and nothing else,
//! everything that was produced arrives, and what a client does out of order is refused as by Kafka.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ringlog_bench::client::admin::NewTopic;
use ringlog_bench::client::connection::Connection;
use ringlog_io::Io;
use ringlog_io::sim::{Host, World};
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::fetch::{
    FetchPartition, FetchRequest, FetchResponse, FetchTopic, ForgottenTopic,
};
use ringlog_protocol::messages::produce::{
    PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData,
};
use ringlog_protocol::records::batch::batches;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::wire::{Reader, Records};

use crate::support::clients;
use crate::support::clients::TOPIC;
use crate::support::node::{Node, Shape, boot, run};

const PATIENCE: Duration = Duration::from_secs(300);
const PARTITION_COUNT: i32 = 20;
/// Names topics by name, as sessions do that began below version 13.
const VERSION: i16 = 12;

struct Scene {
    world: World,
    broker: Host,
    node: Node,
    io: Io,
}

impl Scene {
    fn new(seed: u64, core_count: u32) -> Scene {
        let world = World::new(seed);
        let (broker, clients) = (world.host("broker"), world.host("clients"));
        let shape = Shape { core_count, mesh_credits: 64, bypass_bytes: 0 };
        let node = boot(&world, &broker, shape, PATIENCE).expect("it serves");
        let scene = Scene { io: clients.executor(), world, broker, node };
        let (io, host) = (scene.io.clone(), scene.broker.address());
        scene.run(async move {
            let client = clients::connect(&io, host).await.expect("it serves");
            let topic = NewTopic {
                name: TOPIC,
                partitions: PARTITION_COUNT,
                replication_factor: 1,
                configs: Vec::new(),
            };
            client.create_topic(&topic).await.expect("a topic");
        });
        scene
    }

    fn run<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> T {
        run(&self.world, &self.io, PATIENCE, work).expect("in time")
    }

    /// Runs `work` with a connection of its own.
    fn with<T: 'static, F: Future<Output = T>>(&self, work: impl FnOnce(Peer) -> F + 'static) -> T {
        let (io, host) = (self.io.clone(), self.broker.address());
        self.run(async move {
            let client = clients::connect(&io, host).await.expect("it serves");
            let connection = client.any_connection().await.expect("it serves");
            work(Peer { io, connection }).await
        })
    }
}

/// A client's end.
#[derive(Clone)]
struct Peer {
    io: Io,
    connection: Rc<Connection>,
}

/// One fetch of a session.
#[derive(Clone, Default)]
struct Ask {
    session: i32,
    epoch: i32,
    /// Partitions and offsets.
    wanted: Vec<(i32, i64)>,
    forgotten: Vec<i32>,
    wait_ms: i32,
    bytes_max: i32,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    error: i16,
    session: i32,
    /// Of each partition in the answer: its error, and the offset behind its last record if it has one.
    partitions: BTreeMap<i32, (i16, Option<i64>)>,
}

impl Told {
    fn shown(&self) -> Vec<i32> {
        self.partitions.keys().copied().collect()
    }
}

impl Peer {
    /// With a connection of its own.
    async fn another(&self) -> Peer {
        let host = self.connection.address().host.parse().expect("an address");
        let client = clients::connect(&self.io, host).await.expect("it serves");
        let connection = client.any_connection().await.expect("it serves");
        Peer { io: self.io.clone(), connection }
    }

    async fn ask(&self, ask: Ask) -> Told {
        let partitions = ask.wanted.iter().map(|&(partition, fetch_offset)| FetchPartition {
            partition,
            fetch_offset,
            partition_max_bytes: 1 << 20,
            ..FetchPartition::default()
        });
        let topics = FetchTopic { topic: TOPIC, partitions: partitions.collect(), ..FetchTopic::default() };
        let forgotten =
            ForgottenTopic { topic: TOPIC, partitions: ask.forgotten.into(), ..ForgottenTopic::default() };
        let request = FetchRequest {
            max_wait_ms: ask.wait_ms,
            min_bytes: 1,
            max_bytes: if ask.bytes_max == 0 { i32::MAX } else { ask.bytes_max },
            session_id: ask.session,
            session_epoch: ask.epoch,
            topics: if topics.partitions.is_empty() { Vec::new() } else { vec![topics] },
            forgotten_topics_data: if forgotten.partitions.is_empty() { Vec::new() } else { vec![forgotten] },
            ..FetchRequest::default()
        };
        let answer =
            self.call(ApiKey::Fetch, VERSION, |writer, version| request.encode(writer, version)).await;
        let response = FetchResponse::decode(&mut Reader::new(&answer), VERSION).expect("an answer");
        let mut told = Told { error: response.error_code, session: response.session_id, ..Told::default() };
        for partition in response.responses.iter().flat_map(|topic| &topic.partitions) {
            let Records::Borrowed(bytes) = partition.records else { panic!("decoded records are bytes") };
            let last = batches(bytes).filter_map(Result::ok).last();
            let next = last.map(|batch| batch.header.next_offset().0);
            told.partitions.insert(partition.partition_index, (partition.error_code, next));
        }
        told
    }

    async fn call(
        &self,
        api: ApiKey,
        version: i16,
        encode: impl FnOnce(
            &mut ringlog_protocol::wire::Writer,
            i16,
        ) -> Result<(), ringlog_protocol::wire::EncodeError>,
    ) -> Bytes {
        self.connection.call(api, version, PATIENCE, encode).await.expect("an answer")
    }

    /// Appends `count` records as one batch.
    async fn produce(&self, partition: i32, count: usize) {
        let mut builder = BatchBuilder::new();
        for _ in 0..count {
            let timestamp = self.io.wall_now_ms();
            let record = NewRecord { timestamp, value: Some(b"value"), ..NewRecord::default() };
            builder.append(&record).expect("a small record fits");
        }
        let batch = builder.finish(&BatchOptions::default()).expect("the batch has a record");
        let data = PartitionProduceData { index: partition, records: Some(&batch) };
        let topic = TopicProduceData { name: TOPIC, partition_data: vec![data], ..Default::default() };
        let request =
            ProduceRequest { acks: -1, timeout_ms: 10_000, topic_data: vec![topic], transactional_id: None };
        let answer = self.call(ApiKey::Produce, 8, |writer, version| request.encode(writer, version)).await;
        let response = ProduceResponse::decode(&mut Reader::new(&answer), 8).expect("an answer");
        assert_eq!(response.responses[0].partition_responses[0].error_code, 0);
    }

    /// Begins a session with every partition from its start.
    async fn begin(&self) -> i32 {
        let wanted = (0..PARTITION_COUNT).map(|partition| (partition, 0)).collect();
        let told = self.ask(Ask { wanted, ..Ask::default() }).await;
        assert_eq!(told.partitions.len(), PARTITION_COUNT as usize, "a full answer shows all");
        assert!(told.session > 0);
        told.session
    }
}

fn on_one_core_and_several(check: impl Fn(&Scene)) {
    for core_count in 1..=3 {
        let scene = Scene::new(u64::from(core_count), core_count);
        check(&scene);
        assert!(scene.node.stop(&scene.world, PATIENCE));
    }
}

#[test]
fn an_answer_holds_what_changed_and_nothing_else() {
    on_one_core_and_several(|scene| {
        scene.with(async |peer: Peer| {
            let session = peer.begin().await;
            let told = peer.ask(Ask { session, epoch: 1, ..Ask::default() }).await;
            assert_eq!(told, Told { session, ..Told::default() });
            peer.produce(7, 3).await;
            let told = peer.ask(Ask { session, epoch: 2, ..Ask::default() }).await;
            assert_eq!(told.partitions, BTreeMap::from([(7, (0, Some(3)))]));
            let wanted = vec![(7, 3)];
            let told = peer.ask(Ask { session, epoch: 3, wanted, ..Ask::default() }).await;
            assert_eq!(told.shown(), [0; 0], "the client has seen it");
            let wanted = vec![(7, 99)];
            let told = peer.ask(Ask { session, epoch: 4, wanted, ..Ask::default() }).await;
            let out_of_range = ErrorCode::OffsetOutOfRange.code();
            assert_eq!(told.partitions, BTreeMap::from([(7, (out_of_range, None))]));
            let told = peer.ask(Ask { session, epoch: 5, ..Ask::default() }).await;
            assert_eq!(told.shown(), [7], "an error is told each time");
            let told = peer.ask(Ask { session, epoch: 6, wanted: vec![(7, 3)], ..Ask::default() }).await;
            assert_eq!(told.partitions, BTreeMap::from([(7, (0, None))]), "and its end");
            peer.produce(8, 1).await;
            let told = peer.ask(Ask { session, epoch: 7, forgotten: vec![8, 9], ..Ask::default() }).await;
            assert_eq!(told.shown(), [0; 0], "what left the session is not told");
            let wanted = vec![(8, 0)];
            let told = peer.ask(Ask { session, epoch: 8, wanted, ..Ask::default() }).await;
            assert_eq!(told.partitions, BTreeMap::from([(8, (0, Some(1)))]));
        });
    });
}

#[test]
fn a_start_that_moves_alone_is_told_with_the_next_answer() {
    on_one_core_and_several(|scene| {
        scene.with(async |peer: Peer| {
            peer.produce(7, 3).await;
            let session = peer.begin().await;
            let told = peer.ask(Ask { session, epoch: 1, wanted: vec![(7, 3)], ..Ask::default() }).await;
            assert_eq!(told.shown(), [0; 0], "the client has seen it");
            let host = peer.connection.address().host.parse().expect("an address");
            let client = clients::connect(&peer.io, host).await.expect("it serves");
            client.delete_records(TOPIC, &BTreeMap::from([(7, 2)])).await.expect("they are there");
            let told = peer.ask(Ask { session, epoch: 2, ..Ask::default() }).await;
            assert_eq!(told.partitions, BTreeMap::from([(7, (0, None))]));
            let told = peer.ask(Ask { session, epoch: 3, ..Ask::default() }).await;
            assert_eq!(told.shown(), [0; 0], "once");
        });
    });
}

#[test]
fn a_long_poll_of_a_session_ends_with_the_first_record() {
    on_one_core_and_several(|scene| {
        scene.with(async |peer: Peer| {
            let session = peer.begin().await;
            let mut changed = Vec::new();
            for (epoch, partition) in (1..).zip([3, 11, 3, 19]) {
                let producer = peer.another().await;
                let io = peer.io.clone();
                let producing = peer.io.spawn(ringlog_io::Priority::Foreground, async move {
                    io.sleep(Duration::from_secs(2)).await;
                    producer.produce(partition, 1).await;
                });
                let (started, wanted) = (peer.io.monotonic_now(), std::mem::take(&mut changed));
                let told = peer.ask(Ask { session, epoch, wanted, wait_ms: 60_000, ..Ask::default() }).await;
                let waited = peer.io.monotonic_now().saturating_since(started);
                assert!((2_000..3_000).contains(&waited.as_millis()), "{waited:?}");
                assert_eq!(told.shown(), [partition]);
                changed.push((partition, told.partitions[&partition].1.expect("a record")));
                producing.await;
            }
        });
    });
}

#[test]
fn requests_out_of_order_are_refused_and_a_session_ends_when_its_client_says_so() {
    on_one_core_and_several(|scene| {
        scene.with(async |peer: Peer| {
            let session = peer.begin().await;
            let refused = async |session, epoch| peer.ask(Ask { session, epoch, ..Ask::default() }).await;
            assert_eq!(refused(session, 2).await.error, ErrorCode::InvalidFetchSessionEpoch.code());
            assert_eq!(refused(session + 64, 1).await.error, ErrorCode::FetchSessionIdNotFound.code());
            assert_eq!(refused(-7, 1).await.error, ErrorCode::FetchSessionIdNotFound.code());
            assert_eq!(refused(session, 1).await.error, 0, "what was refused changed nothing");
            let told = refused(session, -1).await;
            assert_eq!((told.error, told.session), (0, 0));
            assert_eq!(refused(session, 2).await.error, ErrorCode::FetchSessionIdNotFound.code());
            let next = peer.begin().await;
            let forgotten = (0..PARTITION_COUNT).collect();
            let told = peer.ask(Ask { session: next, epoch: 1, forgotten, ..Ask::default() }).await;
            assert_eq!((told.error, told.session), (0, 0), "an empty session is over");
            assert_eq!(refused(next, 2).await.error, ErrorCode::FetchSessionIdNotFound.code());
        });
        let io = scene.io.clone();
        scene.run(async move { io.sleep(Duration::from_secs(3)).await });
        let left = (
            scene.node.sum(|shown| shown.gauges.fetch_sessions),
            scene.node.sum(|shown| shown.gauges.fetch_session_partitions),
            scene.node.sum(|shown| shown.gauges.fetch_session_parts),
        );
        assert_eq!(left, (0, 0, 0), "and no core keeps anything of it");
    });
}

#[test]
fn no_session_outlives_its_broker() {
    let scene = Scene::new(9, 2);
    let session = scene.with(async |peer: Peer| peer.begin().await);
    let Scene { world, broker, node, io } = scene;
    assert!(node.stop(&world, PATIENCE));
    drop(node);
    let shape = Shape { core_count: 2, mesh_credits: 64, bypass_bytes: 0 };
    let node = boot(&world, &broker, shape, PATIENCE).expect("it serves");
    let scene = Scene { world, broker, node, io };
    let told =
        scene.with(async move |peer: Peer| peer.ask(Ask { session, epoch: 1, ..Ask::default() }).await);
    assert_eq!(told.error, ErrorCode::FetchSessionIdNotFound.code());
}

/// A consumer that does what the Java client does: it names what changed, forgets what it does not want for a while, begins anew when told.
async fn consume(peer: Peer, total: i64, bytes_max: i32) {
    let mut positions: BTreeMap<i32, i64> = (0..PARTITION_COUNT).map(|partition| (partition, 0)).collect();
    let (mut session, mut epoch) = (0, 0);
    let mut changed: Vec<(i32, i64)> = positions.iter().map(|(at, offset)| (*at, *offset)).collect();
    let mut paused = Vec::new();
    while positions.values().sum::<i64>() < total {
        let random = peer.io.random_u64();
        if random.is_multiple_of(13) {
            (session, epoch) = (session, 0);
            changed = positions.iter().map(|(at, offset)| (*at, *offset)).collect();
            paused.clear();
        }
        let mut forgotten = Vec::new();
        if epoch > 0 && random.is_multiple_of(5) {
            let partition = (random >> 40) as i32 % PARTITION_COUNT;
            changed.retain(|(at, _)| *at != partition);
            forgotten.push(partition);
            paused.push(partition);
        } else if random.is_multiple_of(3) {
            changed.extend(paused.drain(..).map(|at| (at, positions[&at])));
        }
        let wanted = std::mem::take(&mut changed);
        let told = peer.ask(Ask { session, epoch, wanted, forgotten, wait_ms: 50, bytes_max }).await;
        assert_eq!(told.error, 0);
        (session, epoch) = (told.session, if told.session == 0 { 0 } else { epoch + 1 });
        for (partition, (error, next)) in told.partitions {
            assert_eq!(error, 0, "partition {partition} at {}", positions[&partition]);
            assert!(!paused.contains(&partition), "what left the session is not told");
            if let Some(next) = next {
                assert!(next > positions[&partition], "nothing comes twice");
                positions.insert(partition, next);
                changed.push((partition, next));
            }
        }
        if epoch == 0 {
            changed = positions.iter().map(|(at, offset)| (*at, *offset)).collect();
            paused.clear();
        }
    }
}

#[test]
fn everything_produced_arrives_through_sessions() {
    for seed in 0..12 {
        let scene = Scene::new(seed, 1 + (seed % 3) as u32);
        let bytes_max = [0, 200, 1][seed as usize % 3];
        scene.with(async move |peer: Peer| {
            const TOTAL: i64 = 400;
            let consumer = peer.another().await;
            let reader = peer.io.spawn(ringlog_io::Priority::Foreground, consume(consumer, TOTAL, bytes_max));
            let mut sent = 0;
            while sent < TOTAL {
                let random = peer.io.random_u64();
                let count = (1 + random % 5).min((TOTAL - sent) as u64);
                peer.produce((random >> 40) as i32 % PARTITION_COUNT, count as usize).await;
                sent += count as i64;
                peer.io.sleep(Duration::from_millis(random % 20)).await;
            }
            reader.await;
        });
        assert!(scene.node.stop(&scene.world, PATIENCE), "seed {seed}");
    }
}
