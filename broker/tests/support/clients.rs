//! Clients of a simulated broker: the real client library, driven by random choices of its executor. Each writes what it
//! did and saw into the history and decides nothing about it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ringlog_bench::client::address::{AddressOrigin, BrokerAddress};
use ringlog_bench::client::admin::{NewTopic, OffsetQuery};
use ringlog_bench::client::fetcher::FetchConfig;
use ringlog_bench::client::producer::{Acks, Delivered, OutBatch, Producer, ProducerConfig};
use ringlog_bench::client::reader::{FetchTiming, Reader, ReaderOptions, RecordSink};
use ringlog_bench::client::{Client, ClientConfig, ClientError};
use ringlog_bench::history::operation::{AcksLevel, Outcome};
use ringlog_io::{Io, Monotonic};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::compression::Compression;
use ringlog_protocol::records::reader::Record;

use super::history::{History, LogNumber, PROMPT_WITHIN, Place, Promise, SentBatch, Violation};
use super::node::PORT;

/// The topic that all clients share.
pub const TOPIC: &str = "orders";
/// Of virtual time; beyond it a client has given up for good.
const PATIENCE: Duration = Duration::from_secs(60);
/// A request without an answer fails after this.
const REQUEST_PATIENCE: Duration = Duration::from_secs(2);
/// Longest wait of a prompt reader's fetch: far beyond what a woken one needs.
const PROMPT_WAIT: Duration = Duration::from_secs(5);

pub type SharedHistory = Rc<RefCell<History>>;

/// A number below `bound` from the executor's own generator.
pub fn below(io: &Io, bound: u64) -> u64 {
    io.random_u64() % bound
}

/// What a client has in its hands: its executor, its connections, the history, and whether to stop.
#[derive(Clone)]
pub struct Hands {
    pub io: Io,
    pub client: Client,
    pub history: SharedHistory,
    pub stop: Rc<Cell<bool>>,
}

impl Hands {
    pub fn below(&self, bound: u64) -> u64 {
        below(&self.io, bound)
    }

    pub async fn pause_ms(&self, longest: u64) {
        if longest > 0 {
            self.io.sleep(Duration::from_micros(self.below(longest * 1_000))).await;
        }
    }

    pub fn done_other<T>(&self, result: Result<T, ClientError>) -> Result<T, ClientError> {
        if result.is_ok() {
            self.history.borrow_mut().operations.other += 1;
        }
        result
    }

    async fn create_topic(&self, topic: &Topic) -> Result<(), ClientError> {
        self.done_other(create_topic(&self.client, &topic.name, topic.partition_count()).await)
    }
}

/// A topic, and which logs of the history its partitions are.
#[derive(Clone, Debug)]
pub struct Topic {
    pub name: Rc<str>,
    pub logs: Range<LogNumber>,
}

impl Topic {
    pub fn new(name: &str, partition_count: u32, history: &SharedHistory) -> Topic {
        let first = history.borrow_mut().add_logs(partition_count);
        Topic { name: name.into(), logs: first..first + partition_count }
    }

    pub fn partition_count(&self) -> i32 {
        self.logs.len() as i32
    }

    pub fn log(&self, partition: i32) -> LogNumber {
        self.logs.start + partition as u32
    }

    pub fn partitions(&self) -> Range<i32> {
        0..self.partition_count()
    }

    fn start_positions(&self) -> BTreeMap<i32, i64> {
        self.partitions().map(|partition| (partition, 0)).collect()
    }

    /// The history's names for places of this topic.
    pub fn places(&self, offsets: &BTreeMap<i32, i64>) -> Vec<Place> {
        let place = |(partition, offset): (&i32, &i64)| Place { log: self.log(*partition), offset: *offset };
        offsets.iter().map(place).collect()
    }
}

pub async fn connect(io: &Io, host: std::net::IpAddr) -> Result<Client, ClientError> {
    let address = BrokerAddress { host: host.to_string(), port: PORT, origin: AddressOrigin::Bootstrap };
    let mut config = ClientConfig::new(vec![address]);
    config.metadata_timeout = PATIENCE;
    // So short that silence is noticed within a run.
    config.connection.request_timeout = REQUEST_PATIENCE;
    config.connection.connect_timeout = REQUEST_PATIENCE;
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
    pub acks: Acks,
    pub is_idempotent: bool,
    pub records_per_batch_max: u64,
    pub padding_bytes_max: u64,
    /// Longest pause between two requests.
    pub pause_ms_max: u64,
}

impl ProducerPlan {
    /// Small batches of an idempotent producer.
    pub const SMALL: ProducerPlan = ProducerPlan {
        acks: Acks::All,
        is_idempotent: true,
        records_per_batch_max: 1,
        padding_bytes_max: 10,
        pause_ms_max: 0,
    };

    fn promise(self) -> Promise {
        let acks = match self.acks {
            Acks::None => AcksLevel::None,
            Acks::Leader => AcksLevel::Leader,
            Acks::All => AcksLevel::All,
        };
        Promise { acks, is_idempotent: self.is_idempotent }
    }
}

/// A producer of one topic.
struct Sender {
    hands: Hands,
    topic: Topic,
    plan: ProducerPlan,
    number: u32,
    producer: Producer<SentBatch>,
}

/// Produces to random partitions until told to stop, then waits until each batch has its outcome.
pub async fn produce(hands: Hands, topic: Topic, plan: ProducerPlan) -> Result<(), ClientError> {
    let sender = Sender::start(hands, topic, plan).await?;
    while !sender.hands.stop.get() {
        sender.send_some().await;
        sender.hands.pause_ms(plan.pause_ms_max).await;
    }
    sender.producer.flush().await;
    Ok(())
}

/// Sends to both of two partitions in close succession, and then nothing for so long that a reader which missed the
/// second one is late.
pub async fn send_pairs(hands: Hands, topic: Topic, rounds: u32) -> Result<(), ClientError> {
    let sender = Sender::start(hands, topic, ProducerPlan::SMALL).await?;
    for _ in 0..rounds {
        let first = sender.hands.below(2) as i32;
        for partition in [first, 1 - first] {
            sender.producer.send(vec![sender.make_batch(partition)]);
            sender.hands.pause_ms(3).await;
        }
        sender.producer.flush().await;
        sender.hands.io.sleep(PROMPT_WITHIN + Duration::from_millis(200)).await;
    }
    Ok(())
}

impl Sender {
    async fn start(hands: Hands, topic: Topic, plan: ProducerPlan) -> Result<Sender, ClientError> {
        let number = hands.history.borrow_mut().add_sender(plan.promise());
        let in_flight_per_partition_max = 1 + hands.below(5) as usize;
        let config = ProducerConfig {
            acks: plan.acks,
            is_idempotent: plan.is_idempotent,
            in_flight_per_partition_max,
            lanes: 1 + hands.below(2) as u32,
            request_timeout: REQUEST_PATIENCE,
            delivery_timeout: PATIENCE,
            retry_pause: Duration::from_millis(20),
            ..ProducerConfig::default()
        };
        let (history, clock, last_answer) = (Rc::clone(&hands.history), hands.io.clone(), Cell::new(None));
        let settle = move |batch: SentBatch, result| {
            settle(&mut history.borrow_mut(), &clock, plan, &batch, &last_answer, result);
        };
        let producer = Producer::start(&hands.client, config, settle).await?;
        if plan.is_idempotent {
            hands.history.borrow_mut().operations.other += 1;
        }
        Ok(Sender { hands, topic, plan, number, producer })
    }

    /// One request, or one for each connection, once there is room.
    async fn send_some(&self) {
        let mut batches = Vec::new();
        let first = self.hands.below(self.topic.partition_count() as u64) as i32;
        for partition in first..self.topic.partition_count() {
            if !batches.is_empty() && self.hands.below(2) == 0 {
                continue;
            }
            if batches.is_empty() {
                self.producer.room(&self.topic.name, partition).await;
            } else if !self.producer.has_room(&self.topic.name, partition) {
                continue;
            }
            batches.push(self.make_batch(partition));
        }
        self.producer.send(batches);
    }

    fn make_batch(&self, partition: i32) -> OutBatch<SentBatch> {
        let io = &self.hands.io;
        let record_count = 1 + below(io, self.plan.records_per_batch_max);
        let padding: Vec<u32> =
            (0..record_count).map(|_| below(io, self.plan.padding_bytes_max + 1) as u32).collect();
        let log = self.topic.log(partition);
        let now_ns = io.monotonic_now().as_nanos();
        let batch = self.hands.history.borrow_mut().send(self.number, log, &padding, now_ns);
        let mut builder = BatchBuilder::new();
        let (mut value, timestamp) = (Vec::new(), io.wall_now_ms());
        for (id, padding_bytes) in batch.ids.iter().zip(&padding) {
            History::value(*id, *padding_bytes, &mut value);
            let record = NewRecord { timestamp, value: Some(&value), ..NewRecord::default() };
            builder.append(&record).expect("small records fit");
        }
        let codec = Compression::ALL[below(io, 12).min(4) as usize];
        let options = BatchOptions {
            compression: if below(io, 8) == 0 { codec } else { Compression::None },
            producer: self.producer.stamp(&self.topic.name, partition, batch.ids.len() as u32),
            ..BatchOptions::default()
        };
        let bytes = Bytes::from(builder.finish(&options).expect("the batch has records"));
        OutBatch { topic: Rc::clone(&self.topic.name), partition, bytes, tag: batch }
    }
}

/// Batches answered at one moment came in one answer.
fn settle(
    history: &mut History,
    clock: &Io,
    plan: ProducerPlan,
    batch: &SentBatch,
    last_answer: &Cell<Option<Monotonic>>,
    result: Result<Delivered, ClientError>,
) {
    let now_ns = clock.monotonic_now().as_nanos();
    let (outcome, offset) = match result {
        Ok(delivered) => {
            // To acks=0 nobody answers.
            if plan.acks != Acks::None {
                let is_new = last_answer.replace(Some(delivered.done_at)) != Some(delivered.done_at);
                history.operations.produce += 1;
                history.operations.produce_answers += u64::from(is_new);
            }
            (Outcome::Ok, (delivered.base_offset >= 0).then_some(delivered.base_offset))
        }
        // A plain producer does not know what became of what was on the way when the connection broke.
        Err(ClientError::Request { .. }) if !plan.is_idempotent => (Outcome::Info, None),
        // Storage that fails may have failed before or behind the append.
        Err(error)
            if error.code() == Some(ErrorCode::KafkaStorageError)
                && !plan.is_idempotent
                && history.may_be_refused(now_ns) =>
        {
            (Outcome::Info, None)
        }
        Err(error) => {
            let who = format!("batch of {:?}, {plan:?}", batch.ids.first());
            history.broken(Violation::Failed { who, reason: error.to_string() });
            (Outcome::Info, None)
        }
    };
    history.settled(batch, outcome, offset, now_ns);
}

/// Writes what it is given into the history.
pub struct Scribe {
    reader: u32,
    topic: Topic,
    history: SharedHistory,
}

impl RecordSink for Scribe {
    fn record(&mut self, partition: i32, record: &Record<'_>, arrived_at: Monotonic) -> bool {
        let place = Place { log: self.topic.log(partition), offset: record.offset.0 };
        let value = record.value.unwrap_or_default();
        self.history.borrow_mut().read(self.reader, place, value, arrived_at.as_nanos());
        true
    }

    fn fetched(&mut self, _timing: FetchTiming) {
        let mut history = self.history.borrow_mut();
        history.poll_over(self.reader);
        history.operations.fetch += 1;
    }
}

pub type TopicReader = Reader<Scribe>;

/// A reader that begins at these positions.
pub fn reader_from(
    hands: &Hands,
    topic: &Topic,
    positions: BTreeMap<i32, i64>,
    fetch: FetchConfig,
) -> (TopicReader, u32) {
    let reader = hands.history.borrow_mut().add_reader(&topic.places(&positions));
    let scribe = Scribe { reader, topic: topic.clone(), history: Rc::clone(&hands.history) };
    let options = ReaderOptions { fetch, give_up_after: PATIENCE };
    (Reader::new(&hands.client, &topic.name, positions, options, scribe), reader)
}

/// A reader of all partitions from the start. A prompt one asks for a byte and waits long; the others ask for much and
/// wait little, with answers too small for all there is.
pub fn reader(hands: &Hands, topic: &Topic, is_prompt: bool) -> TopicReader {
    let fetch = if is_prompt {
        FetchConfig { wait_max: PROMPT_WAIT, bytes_min: 1, ..FetchConfig::default() }
    } else {
        FetchConfig {
            wait_max: Duration::from_millis(1 + hands.below(400)),
            bytes_min: hands.below(30_000) as i32,
            bytes_max: 1_000 + hands.below(200_000) as i32,
            partition_bytes_max: 500 + hands.below(50_000) as i32,
        }
    };
    let (reader, number) = reader_from(hands, topic, topic.start_positions(), fetch);
    if is_prompt {
        hands.history.borrow_mut().set_prompt(number, topic.logs.clone());
    }
    reader
}

/// Reads everything there is: as the last word, or only to look.
pub async fn read_all(hands: &Hands, topic: &Topic, is_last: bool) -> Result<(), ClientError> {
    let ends = ends(hands, topic).await?;
    let (reader, number) = reader_from(hands, topic, topic.start_positions(), FetchConfig::default());
    if is_last {
        let now_ns = hands.io.monotonic_now().as_nanos();
        hands.history.borrow_mut().set_last(number, &topic.places(&ends), now_ns);
    }
    reader.set_ends(ends);
    reader.run().await
}

/// Reads everything there is, unless the node goes away meanwhile.
pub async fn come_late(hands: Hands, topic: Topic) -> Result<(), ClientError> {
    match read_all(&hands, &topic, false).await {
        Err(error) if error.is_retriable() => Ok(()),
        result => result,
    }
}

/// Where a topic ends, which is not before anything acknowledged earlier.
pub async fn ends(hands: &Hands, topic: &Topic) -> Result<BTreeMap<i32, i64>, ClientError> {
    let partitions: Vec<i32> = topic.partitions().collect();
    let acked_ends: Vec<i64> = topic.logs.clone().map(|log| hands.history.borrow().acked_end(log)).collect();
    let ends = hands.done_other(hands.client.offsets(&topic.name, &partitions, OffsetQuery::Latest).await)?;
    for ((partition, end), acked_end) in ends.iter().zip(acked_ends) {
        hands.history.borrow_mut().told_end(topic.log(*partition), acked_end, *end);
    }
    Ok(ends)
}

/// Jumps to somewhere in the topic, reads a while, and jumps again; asks for ends and for metadata in between.
pub async fn wander(hands: Hands, topic: Topic, pause_ms_max: u64) -> Result<(), ClientError> {
    while !hands.stop.get() {
        hands.pause_ms(pause_ms_max).await;
        let result = match hands.below(4) {
            0 => hands.done_other(hands.client.metadata(None).await).map(|_| ()),
            1 => ends(&hands, &topic).await.map(|_| ()),
            _ => read_somewhere(&hands, &topic).await,
        };
        if let Err(error) = result
            && !error.is_retriable()
        {
            return Err(error);
        }
    }
    Ok(())
}

async fn read_somewhere(hands: &Hands, topic: &Topic) -> Result<(), ClientError> {
    let partition = hands.below(topic.partition_count() as u64) as i32;
    let log = topic.log(partition);
    let acked_end = hands.history.borrow().acked_end(log);
    if acked_end == 0 {
        return Ok(());
    }
    let from = hands.below(acked_end as u64) as i64;
    let end = (from + 1 + hands.below(200) as i64).min(acked_end);
    let fetch = FetchConfig {
        bytes_max: 1_000 + hands.below(100_000) as i32,
        partition_bytes_max: 1_000 + hands.below(100_000) as i32,
        ..FetchConfig::default()
    };
    let (reader, _) = reader_from(hands, topic, BTreeMap::from([(partition, from)]), fetch);
    reader.set_ends(BTreeMap::from([(partition, end)]));
    reader.run().await
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

pub type Fates = Rc<RefCell<BTreeMap<Rc<str>, (Topic, TopicFate)>>>;

/// What a client does that lets topics come and go.
#[derive(Clone, Copy, Debug)]
pub struct ChurnPlan {
    pub number: u32,
    pub pause_ms_max: u64,
    /// One of so many topics is written to and read while it is there.
    pub used_one_in: u64,
}

/// Creates topics, uses some and deletes some of them until told to stop.
pub async fn churn(hands: Hands, plan: ChurnPlan, fates: Fates) -> Result<(), ClientError> {
    for count in 0.. {
        if hands.stop.get() {
            break;
        }
        hands.io.sleep(Duration::from_millis(1 + hands.below(plan.pause_ms_max))).await;
        let name = format!("passing-{}-{count}", plan.number);
        let topic = Topic::new(&name, 1 + hands.below(3) as u32, &hands.history);
        let learn = |fate| fates.borrow_mut().insert(Rc::clone(&topic.name), (topic.clone(), fate));
        learn(TopicFate::Unknown);
        match pass(&hands, plan, &topic, &learn).await {
            Ok(()) => {}
            Err(error) if !error.is_retriable() => {
                hands.history.borrow_mut().broken(Violation::Failed { who: name, reason: error.to_string() });
            }
            Err(_) => {}
        }
    }
    Ok(())
}

/// The life of one topic.
async fn pass<T>(
    hands: &Hands,
    plan: ChurnPlan,
    topic: &Topic,
    learn: &impl Fn(TopicFate) -> T,
) -> Result<(), ClientError> {
    hands.create_topic(topic).await?;
    learn(TopicFate::Exists);
    if hands.below(plan.used_one_in) == 0 {
        let sender = Sender::start(hands.clone(), topic.clone(), ProducerPlan::SMALL).await?;
        for _ in 0..=hands.below(5) {
            sender.send_some().await;
        }
        sender.producer.flush().await;
        read_all(hands, topic, false).await?;
    }
    if hands.below(2) == 0 {
        // Until its answer is there the deletion may or may not have happened.
        learn(TopicFate::Unknown);
        topic.logs.clone().for_each(|log| hands.history.borrow_mut().delete(log, i64::MAX));
        hands.done_other(hands.client.delete_topic(&topic.name).await)?;
        learn(TopicFate::Deleted);
    }
    Ok(())
}

/// Compares the topics that there are with what is known of them, and reads those that must be there.
pub async fn check_topics(hands: Hands, fates: Fates) -> Result<(), ClientError> {
    let image = hands.done_other(hands.client.metadata(None).await)?;
    let fates: Vec<(Topic, TopicFate)> = fates.borrow().values().cloned().collect();
    for (topic, fate) in fates {
        let name = topic.name.to_string();
        match (fate, image.topics.contains_key(&name)) {
            (TopicFate::Exists, true) => read_all(&hands, &topic, true).await?,
            (TopicFate::Exists, false) => {
                let missing = Violation::Topic { name, reason: "created, and gone" };
                hands.history.borrow_mut().broken(missing);
            }
            (TopicFate::Deleted, true) => {
                let present = Violation::Topic { name, reason: "deleted, and there" };
                hands.history.borrow_mut().broken(present);
            }
            _ => {}
        }
    }
    Ok(())
}
