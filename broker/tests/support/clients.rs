//! Clients of a simulated broker: the real client library, driven by random choices of its executor. Each writes what it
//! did and saw into the history and decides nothing about it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ringlog_bench::client::address::{AddressOrigin, BrokerAddress};
use ringlog_bench::client::admin::{NewTopic, OffsetQuery};
use ringlog_bench::client::fetcher::FetchConfig;
use ringlog_bench::client::producer::{Acks, Delivered, OutBatch, Producer, ProducerConfig};
use ringlog_bench::client::reader::{Reader, ReaderOptions, RecordSink};
use ringlog_bench::client::{Client, ClientConfig, ClientError};
use ringlog_io::{Io, Monotonic};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::compression::Compression;
use ringlog_protocol::records::reader::Record;

use super::history::{History, PROMPT_WITHIN, Place, RecordId, Violation};
use super::node::PORT;

pub const TOPIC: &str = "orders";
/// Of virtual time; beyond it a client has given up for good.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest wait of a prompt reader's fetch: far beyond what a woken one needs.
const PROMPT_WAIT: Duration = Duration::from_secs(5);

pub type SharedHistory = Rc<RefCell<History>>;

/// A number below `bound` from the executor's own generator.
pub fn below(io: &Io, bound: u64) -> u64 {
    io.random_u64() % bound
}

pub async fn connect(io: &Io, host: std::net::IpAddr) -> Result<Client, ClientError> {
    let address = BrokerAddress { host: host.to_string(), port: PORT, origin: AddressOrigin::Bootstrap };
    let mut config = ClientConfig::new(vec![address]);
    config.metadata_timeout = PATIENCE;
    let deadline = io.monotonic_now() + PATIENCE;
    loop {
        match Client::connect(io, config.clone()).await {
            Err(error) if error.is_retriable() && io.monotonic_now() < deadline => {
                io.sleep(Duration::from_millis(20)).await;
            }
            result => return result,
        }
    }
}

/// What a producer does.
#[derive(Clone, Copy, Debug)]
pub struct ProducerPlan {
    pub number: u32,
    pub is_idempotent: bool,
    pub partition_count: i32,
    pub records_per_batch_max: u64,
    pub padding_bytes_max: u64,
    /// Longest pause between two requests.
    pub pause_ms_max: u64,
}

/// One batch on its way.
struct Batch {
    ids: Vec<RecordId>,
}

/// Produces to random partitions until `stop`, then waits until each batch has its outcome.
pub async fn produce(
    io: Io,
    client: Client,
    plan: ProducerPlan,
    history: SharedHistory,
    stop: Rc<Cell<bool>>,
) -> Result<(), ClientError> {
    let producer = start_producer(&io, &client, plan, &history).await?;
    let topic: Rc<str> = TOPIC.into();
    let mut number = 0;
    while !stop.get() {
        let mut batches = Vec::new();
        let first = below(&io, plan.partition_count as u64) as i32;
        for partition in first..plan.partition_count {
            if !batches.is_empty() && below(&io, 2) == 0 {
                continue;
            }
            if batches.is_empty() {
                producer.room(&topic, partition).await;
            } else if !producer.has_room(&topic, partition) {
                continue;
            }
            batches.push(make_batch(&io, &producer, &topic, partition, plan, &mut number, &history));
        }
        producer.send(batches);
        if plan.pause_ms_max > 0 {
            io.sleep(Duration::from_micros(below(&io, plan.pause_ms_max * 1_000))).await;
        }
    }
    producer.flush().await;
    Ok(())
}

async fn start_producer(
    io: &Io,
    client: &Client,
    plan: ProducerPlan,
    history: &SharedHistory,
) -> Result<Producer<Batch>, ClientError> {
    let (told, clock) = (Rc::clone(history), io.clone());
    let in_flight_per_partition_max = 1 + below(io, 5) as usize;
    let config = ProducerConfig {
        acks: Acks::All,
        is_idempotent: plan.is_idempotent,
        in_flight_per_partition_max,
        lanes: 1 + below(io, 2) as u32,
        delivery_timeout: PATIENCE,
        retry_pause: Duration::from_millis(20),
        ..ProducerConfig::default()
    };
    let settle = move |batch: Batch, result| settle(&told, &clock, plan, &batch, result);
    Producer::start(client, config, settle).await
}

/// Sends to both of two partitions in close succession, and then nothing for so long that a reader which missed the
/// second one is late.
pub async fn send_pairs(
    io: Io,
    client: Client,
    plan: ProducerPlan,
    history: SharedHistory,
    rounds: u32,
) -> Result<(), ClientError> {
    let producer = start_producer(&io, &client, plan, &history).await?;
    let topic: Rc<str> = TOPIC.into();
    let mut number = 0;
    for _ in 0..rounds {
        let first = below(&io, 2) as i32;
        for partition in [first, 1 - first] {
            producer.send(vec![make_batch(&io, &producer, &topic, partition, plan, &mut number, &history)]);
            io.sleep(Duration::from_micros(below(&io, 3_000))).await;
        }
        producer.flush().await;
        io.sleep(PROMPT_WITHIN + Duration::from_millis(200)).await;
    }
    Ok(())
}

fn make_batch(
    io: &Io,
    producer: &Producer<Batch>,
    topic: &Rc<str>,
    partition: i32,
    plan: ProducerPlan,
    number: &mut u32,
    history: &SharedHistory,
) -> OutBatch<Batch> {
    let mut builder = BatchBuilder::new();
    let mut ids = Vec::new();
    for _ in 0..=below(io, plan.records_per_batch_max) {
        let id = RecordId::new(plan.number, *number);
        *number += 1;
        let padding_bytes = below(io, plan.padding_bytes_max + 1) as usize;
        history.borrow_mut().sent(id, partition, plan.is_idempotent, padding_bytes);
        let value = History::value(id, padding_bytes);
        let record = NewRecord { timestamp: io.wall_now_ms(), value: Some(&value), ..NewRecord::default() };
        builder.append(&record).expect("small records fit");
        ids.push(id);
    }
    let codec = Compression::ALL[below(io, 12).min(4) as usize];
    let options = BatchOptions {
        compression: if below(io, 3) == 0 { codec } else { Compression::None },
        producer: producer.stamp(topic, partition, ids.len() as u32),
        ..BatchOptions::default()
    };
    let bytes = Bytes::from(builder.finish(&options).expect("the batch has records"));
    OutBatch { topic: Rc::clone(topic), partition, bytes, tag: Batch { ids } }
}

fn settle(
    history: &SharedHistory,
    clock: &Io,
    plan: ProducerPlan,
    batch: &Batch,
    result: Result<Delivered, ClientError>,
) {
    let mut history = history.borrow_mut();
    match result {
        Ok(delivered) => {
            for (offset, id) in (delivered.base_offset..).zip(&batch.ids) {
                let offset = (delivered.base_offset >= 0).then_some(offset);
                history.acked(*id, offset, clock.monotonic_now().as_nanos());
            }
        }
        // A plain producer does not know what became of what was on the way when the connection broke.
        Err(ClientError::Request { .. }) if !plan.is_idempotent => {}
        Err(error) => {
            let who = format!("producer {}, batch of {:?}", plan.number, batch.ids.first());
            history.broken(Violation::Failed { who, reason: error.to_string() });
        }
    }
}

/// Writes what it is given into the history.
pub struct Scribe {
    reader: u32,
    is_last: bool,
    history: SharedHistory,
}

impl RecordSink for Scribe {
    fn record(&mut self, partition: i32, record: &Record<'_>, arrived_at: Monotonic) -> bool {
        let place = Place { partition, offset: record.offset.0 };
        let value = record.value.unwrap_or_default();
        let mut history = self.history.borrow_mut();
        if self.is_last {
            history.read_last(self.reader, place, value);
        } else {
            history.read(self.reader, place, value, arrived_at.as_nanos());
        }
        true
    }
}

pub type TopicReader = Reader<Scribe>;

fn from_the_start(partition_count: i32) -> BTreeMap<i32, i64> {
    (0..partition_count).map(|partition| (partition, 0)).collect()
}

/// A reader of all partitions from the start. A prompt one asks for a byte and waits long; the others ask for much and
/// wait little, with answers too small for all there is.
pub fn reader(client: &Client, number: u32, partition_count: i32, history: &SharedHistory) -> TopicReader {
    let io = client.io();
    let is_prompt = number == 0;
    let fetch = if is_prompt {
        FetchConfig { wait_max: PROMPT_WAIT, bytes_min: 1, ..FetchConfig::default() }
    } else {
        FetchConfig {
            wait_max: Duration::from_millis(1 + below(io, 400)),
            bytes_min: below(io, 30_000) as i32,
            bytes_max: 1_000 + below(io, 200_000) as i32,
            partition_bytes_max: 500 + below(io, 50_000) as i32,
        }
    };
    if is_prompt {
        history.borrow_mut().add_prompt_reader(number);
    }
    let options = ReaderOptions { fetch, give_up_after: PATIENCE };
    let scribe = Scribe { reader: number, is_last: false, history: Rc::clone(history) };
    Reader::new(client, TOPIC, from_the_start(partition_count), options, scribe)
}

/// Reads everything there is, as the last word.
pub async fn read_all(
    client: Client,
    partition_count: i32,
    history: SharedHistory,
) -> Result<BTreeMap<i32, i64>, ClientError> {
    let ends = ends(&client, partition_count).await?;
    let scribe = Scribe { reader: u32::MAX, is_last: true, history };
    let options = ReaderOptions { give_up_after: PATIENCE, ..ReaderOptions::default() };
    let reader = Reader::new(&client, TOPIC, from_the_start(partition_count), options, scribe);
    reader.set_ends(ends.clone());
    reader.run().await?;
    Ok(ends)
}

pub async fn ends(client: &Client, partition_count: i32) -> Result<BTreeMap<i32, i64>, ClientError> {
    let partitions: Vec<i32> = (0..partition_count).collect();
    client.offsets(TOPIC, &partitions, OffsetQuery::Latest).await
}

pub async fn create_topic(client: &Client, name: &str, partitions: i32) -> Result<(), ClientError> {
    client.create_topic(&NewTopic { name, partitions, replication_factor: 1, configs: Vec::new() }).await
}

/// What is known of a topic that comes and goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicFate {
    /// The broker said so.
    Exists,
    Deleted,
    /// The answer was lost.
    Unknown,
}

pub type Fates = Rc<RefCell<BTreeMap<String, TopicFate>>>;

/// Creates topics and deletes some of them until `stop`.
pub async fn churn(
    io: Io,
    client: Client,
    fates: Fates,
    history: SharedHistory,
    stop: Rc<Cell<bool>>,
) -> Result<(), ClientError> {
    for number in 0.. {
        if stop.get() {
            break;
        }
        io.sleep(Duration::from_millis(1 + below(&io, 60))).await;
        let name = format!("passing-{number}");
        fates.borrow_mut().insert(name.clone(), TopicFate::Unknown);
        let created = create_topic(&client, &name, 1 + below(&io, 3) as i32).await;
        let mut fate = TopicFate::Exists;
        let mut result = created;
        if result.is_ok() && below(&io, 2) == 0 {
            // Until its answer is there the deletion may or may not have happened.
            fates.borrow_mut().insert(name.clone(), TopicFate::Unknown);
            result = client.delete_topic(&name).await;
            fate = TopicFate::Deleted;
        }
        match result {
            Ok(()) => {
                fates.borrow_mut().insert(name, fate);
            }
            Err(error @ ClientError::Refused { .. }) => {
                history.borrow_mut().broken(Violation::Failed { who: name, reason: error.to_string() });
            }
            Err(_) => {}
        }
    }
    Ok(())
}

/// Compares the topics that there are with what is known of them.
pub async fn check_topics(client: Client, fates: Fates, history: SharedHistory) -> Result<(), ClientError> {
    let image = client.metadata(None).await?;
    let mut history = history.borrow_mut();
    for (name, fate) in fates.borrow().iter() {
        let name = name.clone();
        match (fate, image.topics.contains_key(&name)) {
            (TopicFate::Exists, false) => {
                history.broken(Violation::Topic { name, reason: "created, and gone" });
            }
            (TopicFate::Deleted, true) => {
                history.broken(Violation::Topic { name, reason: "deleted, and there" });
            }
            _ => {}
        }
    }
    Ok(())
}
