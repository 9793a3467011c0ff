//! Compacted topics of a whole node on the simulation: the last value of each key is read whatever the moment of a power cut, offsets and
//! order stay, and groups come back from what compaction leaves of their log.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ringlog_bench::client::admin::NewTopic;
use ringlog_bench::client::cluster::Lane;
use ringlog_bench::client::configs::{ConfigResource, ConfigStep};
use ringlog_bench::client::fetcher::{FetchConfig, FetchPosition, start_fetch};
use ringlog_bench::client::producer::{OutBatch, Producer, ProducerConfig};
use ringlog_bench::client::reading::visit_records;
use ringlog_bench::client::{Client, ClientError};
use ringlog_io::sim::{Host, UnsyncedData, World};
use ringlog_io::{Io, Priority, Task};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};

use crate::support::clients::{self, below};
use crate::support::member::Member;
use crate::support::node::{Node, Shape, boot, run};
use crate::support::scene::prepare_output;

const PATIENCE: Duration = Duration::from_secs(300);
const KEYED: &str = "keyed";
const PARTITION_COUNT: i32 = 2;
const KEYS: u64 = 20;
const VALUE_BYTES: usize = 20_000;

struct Scene {
    world: World,
    broker: Host,
    node: Node,
    io: Io,
    shape: Shape,
}

impl Scene {
    fn new(seed: u64, core_count: u32, configs: &[(&'static str, &'static str)]) -> Scene {
        prepare_output();
        let world = World::new(seed);
        let (broker, clients) = (world.host("broker"), world.host("clients"));
        let shape = Shape { core_count, mesh_credits: 64, bypass_bytes: 0 };
        let node = boot(&world, &broker, shape, PATIENCE).expect("it serves");
        let scene = Scene { io: clients.executor(), world, broker, node, shape };
        let configs: Vec<_> = configs.iter().map(|(name, value)| (*name, *value)).collect();
        scene.with_client(|client| async move {
            let topic = NewTopic { name: KEYED, partitions: PARTITION_COUNT, replication_factor: 1, configs };
            client.create_topic(&topic).await.expect("a topic");
        });
        scene
    }

    fn run<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> T {
        run(&self.world, &self.io, PATIENCE, work).expect("in time")
    }

    fn with_client<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        work: impl FnOnce(Client) -> F + 'static,
    ) -> T {
        let (io, host) = (self.io.clone(), self.broker.address());
        self.run(async move { work(clients::connect(&io, host).await.expect("it serves")).await })
    }

    fn cut_power(self, unsynced: UnsyncedData) -> Scene {
        let Scene { world, broker, node, io, shape } = self;
        broker.crash_with(unsynced);
        drop(node);
        let node = boot(&world, &broker, shape, PATIENCE).expect("it serves again");
        Scene { world, broker, node, io, shape }
    }

    fn pass(&self, duration: Duration) {
        let io = self.io.clone();
        self.run(async move { io.sleep(duration).await });
    }

    fn compactions(&self) -> u64 {
        self.node.sum(|shown| shown.storage.compaction.runs)
    }

    fn write(&self, log: &Log) -> Writer {
        let (io, host, log) = (self.io.clone(), self.broker.address(), Rc::clone(log));
        let stop = Rc::new(Cell::new(false));
        let asked = Rc::clone(&stop);
        let task = self.io.spawn(Priority::Foreground, async move {
            // A broker that goes takes the writer with it.
            drop(write(io, host, log, asked).await);
        });
        Writer { stop, task }
    }

    /// Reads everything and compares it with what was sent; how many records there are.
    fn check(&self, log: &Log) -> usize {
        let log = Rc::clone(log);
        self.with_client(|client| async move {
            let mut count = 0;
            for partition in 0..PARTITION_COUNT {
                let found = read_partition(&client, partition).await.expect("it can be read");
                count += found.len();
                log.borrow_mut().judge(partition, &found);
            }
            count
        })
    }
}

struct Writer {
    stop: Rc<Cell<bool>>,
    task: Task<()>,
}

/// A record as it was sent: its number within all, which rises within a partition.
#[derive(Clone, Debug)]
struct Sent {
    partition: i32,
    key: u64,
    is_tombstone: bool,
    /// Where it was acknowledged or read.
    offset: Option<i64>,
    is_acknowledged: bool,
}

/// What was sent, and the checks of what is read. Numbers of records are their places.
#[derive(Default)]
struct Sending {
    records: Vec<Sent>,
    acknowledged: usize,
}

type Log = Rc<RefCell<Sending>>;

/// A record as it was read.
struct Found {
    offset: i64,
    key: u64,
    /// None of a tombstone.
    number: Option<usize>,
}

impl Sending {
    fn acknowledge(&mut self, numbers: &[usize], base_offset: i64) {
        for (number, offset) in numbers.iter().zip(base_offset..) {
            let record = &mut self.records[*number];
            assert!(record.offset.is_none_or(|known| known == offset), "record {number} has one offset");
            (record.offset, record.is_acknowledged) = (Some(offset), true);
        }
        self.acknowledged += numbers.len();
    }

    fn judge(&mut self, partition: i32, found: &[Found]) {
        let (mut last_offset, mut last_number, mut newest) = (-1, None, BTreeMap::new());
        for record in found {
            assert!(record.offset > last_offset, "offset {} after {last_offset}", record.offset);
            last_offset = record.offset;
            newest.insert(record.key, record.offset);
            let Some(number) = record.number else { continue };
            assert!(Some(number) > last_number, "record {number} after {last_number:?}");
            last_number = Some(number);
            let sent = &mut self.records[number];
            assert_eq!((sent.partition, sent.key, sent.is_tombstone), (partition, record.key, false));
            assert_eq!(*sent.offset.get_or_insert(record.offset), record.offset, "record {number} moved");
        }
        let of_partition = self.records.iter().filter(|sent| sent.partition == partition);
        let mut acknowledged = BTreeMap::new();
        for sent in of_partition.filter(|sent| sent.is_acknowledged) {
            let last = acknowledged.entry(sent.key).or_insert(-1);
            *last = sent.offset.expect("an answer names it").max(*last);
        }
        for (key, offset) in acknowledged {
            let read = newest.get(&key).copied();
            assert!(
                read >= Some(offset),
                "key {key}: {offset} was acknowledged, the newest read is {read:?}"
            );
        }
    }
}

/// Writes until told to stop, some batches at once.
async fn write(io: Io, host: std::net::IpAddr, log: Log, stop: Rc<Cell<bool>>) -> Result<(), ClientError> {
    let client = clients::connect(&io, host).await?;
    let heard = Rc::clone(&log);
    let producer = Producer::start(&client, ProducerConfig::default(), move |numbers: Vec<usize>, result| {
        if let Ok(delivered) = result {
            heard.borrow_mut().acknowledge(&numbers, delivered.base_offset);
        }
    })
    .await?;
    let topic: Rc<str> = KEYED.into();
    while !stop.get() {
        let partition = below(&io, PARTITION_COUNT as u64) as i32;
        producer.room(&topic, partition).await;
        let (mut builder, mut numbers) = (BatchBuilder::new(), Vec::new());
        for _ in 0..=below(&io, 3) {
            let (key, is_tombstone) = (below(&io, KEYS), below(&io, 10) == 0);
            let mut log = log.borrow_mut();
            let number = log.records.len();
            numbers.push(number);
            log.records.push(Sent { partition, key, is_tombstone, offset: None, is_acknowledged: false });
            let key = format!("key-{key}");
            let mut value = format!("{number} ").into_bytes();
            value.resize(VALUE_BYTES, b'.');
            let value = (!is_tombstone).then_some(&value[..]);
            let record =
                NewRecord { timestamp: io.wall_now_ms(), key: Some(key.as_bytes()), value, headers: &[] };
            builder.append(&record).expect("small records fit");
        }
        let stamp = producer.stamp(&topic, partition, numbers.len() as u32);
        let options = BatchOptions { producer: stamp, ..BatchOptions::default() };
        let bytes = Bytes::from(builder.finish(&options).expect("it has records"));
        producer.send(vec![OutBatch { topic: Rc::clone(&topic), partition, bytes, tag: numbers }]);
        io.sleep(Duration::from_micros(below(&io, 20_000))).await;
    }
    producer.flush().await;
    Ok(())
}

async fn read_partition(client: &Client, partition: i32) -> Result<Vec<Found>, ClientError> {
    let topic = client.topic(KEYED).await?;
    let connection =
        client.connection(Lane { node_id: topic.partitions[&partition].leader, number: 0 }).await?;
    let (mut found, mut next, mut scratch) = (Vec::new(), 0, Vec::new());
    let config = FetchConfig { wait_max: Duration::from_millis(10), ..FetchConfig::default() };
    loop {
        let position = FetchPosition { partition, offset: next };
        let fetch = start_fetch(&connection, &topic, &[position], &config)?;
        let answer = fetch.partitions(&connection, &topic).await?.remove(0);
        assert_eq!(answer.error_code, 0);
        if next >= answer.high_watermark {
            return Ok(found);
        }
        let before = next;
        next = visit_records("what was written", &answer.records, next, &mut scratch, |record| {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let key = text(record.key.expect("each has one"));
            let key = key.strip_prefix("key-").and_then(|key| key.parse().ok()).expect("one of ours");
            let number = record.value.map(|value| {
                text(value).split(' ').next().and_then(|number| number.parse().ok()).expect("one of ours")
            });
            found.push(Found { offset: record.offset.0, key, number });
            true
        })?;
        assert!(next > before, "a fetch from {before} below {} found nothing", answer.high_watermark);
    }
}

#[test]
fn the_last_value_of_each_key_survives_power_cuts_while_compaction_runs() {
    for seed in 0..4 {
        let core_count = 1 + (seed % 2) as u32;
        let mut scene = Scene::new(seed, core_count, &[("cleanup.policy", "compact")]);
        let (log, mut compactions) = (Log::default(), 0);
        for life in 0..3 {
            let writer = scene.write(&log);
            let (before, disk) = (log.borrow().acknowledged, scene.broker.disk());
            let is_busy = || log.borrow().acknowledged > before + 300 && scene.compactions() > 0;
            scene.world.run_until(is_busy, PATIENCE);
            // Some change of the disk later, whoever made it.
            let at = disk.changes() + scene.io.random_u64() % 500;
            scene.world.run_until(|| disk.changes() >= at, PATIENCE);
            compactions += scene.compactions();
            writer.stop.set(true);
            drop(writer.task);
            scene = scene.cut_power(match (seed + life) % 3 {
                0 => UnsyncedData::Lost,
                1 => UnsyncedData::Kept,
                _ => UnsyncedData::RandomSubset { torn: true },
            });
            scene.check(&log);
        }
        assert!(compactions > 0, "seed {seed}: some were over before the power was cut");
        // Left alone all that is closed is compacted.
        let writer = scene.write(&log);
        let before = log.borrow().acknowledged;
        scene.world.run_until(|| log.borrow().acknowledged > before + 300, PATIENCE);
        writer.stop.set(true);
        scene.run(writer.task);
        scene.pass(Duration::from_secs(10));
        let (left, sent) = (scene.check(&log), log.borrow().acknowledged);
        assert!(left * 4 < sent, "seed {seed}: {left} of {sent} records are left");
        assert!(scene.compactions() > 0, "seed {seed}");
        assert_eq!(scene.node.sum(|shown| shown.storage.compaction.failures), 0, "seed {seed}");
        assert!(scene.node.stop(&scene.world, PATIENCE), "it ends");
    }
}

#[test]
fn a_topic_is_compacted_once_its_policy_is_altered_and_takes_no_record_without_key() {
    let scene = Scene::new(77, 2, &[]);
    let log = Log::default();
    let writer = scene.write(&log);
    scene.world.run_until(|| log.borrow().acknowledged > 400, PATIENCE);
    writer.stop.set(true);
    scene.run(writer.task);
    scene.pass(Duration::from_secs(5));
    assert_eq!((scene.check(&log), scene.compactions()), (log.borrow().acknowledged, 0));
    assert_eq!(send_without_key(&scene), None);
    scene.with_client(|client| async move {
        let keyed = ConfigResource::Topic(KEYED.to_owned());
        let steps = [ConfigStep::Set("cleanup.policy", "compact,delete")];
        client.alter_configs(&keyed, &steps, false).await.expect("it may");
    });
    assert_eq!(send_without_key(&scene), Some(ErrorCode::InvalidRecord));
    scene.pass(Duration::from_secs(5));
    assert!(scene.compactions() > 0);
    // The segment that takes records is not compacted: it may hold any that was written last.
    let writer = scene.write(&log);
    let before = log.borrow().acknowledged;
    scene.world.run_until(|| log.borrow().acknowledged > before + 200, PATIENCE);
    writer.stop.set(true);
    scene.run(writer.task);
    scene.pass(Duration::from_secs(5));
    let left = scene.with_client(|client| async move {
        let mut left = 0;
        for partition in 0..PARTITION_COUNT {
            left += read_partition(&client, partition).await.expect("no record is without key").len();
        }
        left
    });
    assert!(left * 2 < log.borrow().acknowledged, "{left} records are left");
}

/// Sends one record without a key, and what that is refused with.
fn send_without_key(scene: &Scene) -> Option<ErrorCode> {
    let io = scene.io.clone();
    scene.with_client(|client| async move {
        let heard = Rc::new(RefCell::new(None));
        let told = Rc::clone(&heard);
        let producer = Producer::start(&client, ProducerConfig::default(), move |(), result| {
            *told.borrow_mut() = result.err().and_then(|error: ClientError| error.code());
        })
        .await
        .expect("it serves");
        let topic: Rc<str> = KEYED.into();
        let mut builder = BatchBuilder::new();
        let record = NewRecord { timestamp: io.wall_now_ms(), value: Some(b"value"), ..NewRecord::default() };
        builder.append(&record).expect("a small record");
        let stamp = producer.stamp(&topic, 0, 1);
        let bytes = builder.finish(&BatchOptions { producer: stamp, ..BatchOptions::default() });
        let bytes = Bytes::from(bytes.expect("it has a record"));
        producer.send(vec![OutBatch { topic, partition: 0, bytes, tag: () }]);
        producer.flush().await;
        heard.take()
    })
}

#[test]
fn groups_come_back_from_what_compaction_leaves_of_their_log() {
    for seed in 0..3 {
        let mut scene = Scene::new(seed, 2, &[]);
        let group = "workers";
        let mut member = member(&scene, group);
        let (id, generation) = scene.run(async move {
            member.own().await.expect("it joins");
            (member.id.clone(), member.generation)
        });
        for life in 0..2 {
            let member = Member { id: id.clone(), generation, ..self::member(&scene, group) };
            let text = "t".repeat(4000);
            scene.run(async move {
                for round in 0..900 {
                    if round % 20 == 0 {
                        member.heartbeat().await.expect("it is a member");
                    }
                    let partition = round as i32 % PARTITION_COUNT;
                    member.commit_with(KEYED, partition, life * 1000 + round, &text).await.expect("it may");
                }
            });
            let until =
                |scene: &Scene| scene.node.sum(|shown| shown.storage.compaction.records_dropped) > 400;
            scene.world.run_until(|| until(&scene), Duration::from_secs(5));
            assert!(until(&scene), "its log is compacted");
            let before = state(&scene, group);
            assert_eq!(before.0[&(KEYED.to_owned(), 1)], life * 1000 + 899);
            scene = scene.cut_power(if life == 0 { UnsyncedData::Lost } else { UnsyncedData::Kept });
            assert_eq!(state(&scene, group), before, "seed {seed}, life {life}");
            let member = Member { id: id.clone(), generation, ..self::member(&scene, group) };
            scene.run(async move { member.heartbeat().await.expect("it is a member still") });
        }
        assert!(scene.node.stop(&scene.world, PATIENCE), "it ends");
        assert_eq!(scene.node.failure(), None);
    }
}

fn member(scene: &Scene, group: &'static str) -> Member {
    let (io, host) = (scene.io.clone(), scene.broker.address());
    scene.run(async move { Member::connect(&io, host, group).await.expect("it serves") })
}

/// Offsets, and members as they are described.
fn state(scene: &Scene, group: &'static str) -> (BTreeMap<(String, i32), i64>, String) {
    let io = scene.io.clone();
    scene.with_client(move |client| async move {
        let offsets = loop {
            match client.group_offsets(group).await {
                Ok(offsets) => break offsets,
                Err(error) if error.is_retriable() => io.sleep(Duration::from_millis(50)).await,
                Err(error) => panic!("{error}"),
            }
        };
        let described = client.describe_group(group).await.expect("it is there");
        let offsets = offsets.into_iter().map(|(place, committed)| (place, committed.offset));
        (offsets.collect(), format!("{:?} {:?}", described.state, described.members))
    })
}
