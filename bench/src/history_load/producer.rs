//! One producer of the load. It sends on its schedule, keeps a window of batches in flight over restarts of the broker,
//! and now and then is dropped with what it has in flight, or sends a batch that must be refused.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::messages::produce::{
    PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData,
};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::compression::Compression;
use ringlog_protocol::records::validate::BatchProducer;
use ringlog_protocol::wire::Reader;

use super::outcome::outcome_of;
use super::{POLL, Shared, nanoseconds, payload};
use crate::client::admin::milliseconds;
use crate::client::cluster::Lane;
use crate::client::producer::{Acks, Delivered, OutBatch, Producer, ProducerConfig};
use crate::client::{Client, ClientError};
use crate::history::Operation;
use crate::history::operation::{AcksLevel, Outcome, Send, Span};
use crate::random::SeededRandom;

/// One batch in so many is damaged on purpose.
const DAMAGED_ONE_IN: u64 = 64;
/// One batch in so many is followed by the end of the client.
const DROPPED_ONE_IN: u64 = 512;
/// A batch has at most so many records.
const RECORDS_MAX: u64 = 6;
/// Between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(5);
/// An idempotent producer tries a batch for so long, over any number of restarts.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(3_600);

/// How one producer behaves for the whole run.
#[derive(Clone, Copy, Debug)]
struct Character {
    acks: Acks,
    is_idempotent: bool,
    window: usize,
    compression: Compression,
}

impl Character {
    /// The first producer is idempotent; the others are drawn.
    fn draw(number: u64, random: &mut SeededRandom) -> Character {
        let (acks, is_idempotent) = match if number == 0 { 0 } else { random.next_u64() % 4 } {
            0 => (Acks::All, true),
            1 => (Acks::All, false),
            2 => (Acks::Leader, false),
            _ => (Acks::None, false),
        };
        let compression = match random.next_u64() % 4 {
            0 => Compression::Lz4,
            1 => Compression::Zstd,
            _ => Compression::None,
        };
        Character { acks, is_idempotent, window: 1 + (random.next_u64() % 5) as usize, compression }
    }

    fn acks_level(&self) -> AcksLevel {
        match self.acks {
            Acks::None => AcksLevel::None,
            Acks::Leader => AcksLevel::Leader,
            Acks::All => AcksLevel::All,
        }
    }

    fn config(&self, shared: &Shared) -> ProducerConfig {
        ProducerConfig {
            acks: self.acks,
            is_idempotent: self.is_idempotent,
            in_flight_max: self.window * 2,
            in_flight_per_partition_max: self.window,
            lanes: 1,
            request_timeout: shared.load.patience,
            delivery_timeout: DELIVERY_TIMEOUT,
            retry_pause: RETRY_PAUSE,
        }
    }
}

/// A batch whose end is not known yet.
struct Pending {
    partition: i32,
    values: Vec<u64>,
    start: u64,
}

/// What one producer and the completions of its batches share.
struct Book {
    shared: Rc<Shared>,
    process: u64,
    character: Character,
    pending: RefCell<BTreeMap<u64, Pending>>,
    next_batch: Cell<u64>,
    /// Whether an idempotent client is of no use any more.
    is_broken: Cell<bool>,
}

impl Book {
    fn open(&self, partition: i32, values: Vec<u64>) -> u64 {
        let number = self.next_batch.get();
        self.next_batch.set(number + 1);
        let start = nanoseconds(self.shared.io.monotonic_now());
        self.pending.borrow_mut().insert(number, Pending { partition, values, start });
        number
    }

    /// Writes what became of a batch; one that was written already is left alone.
    fn close(&self, number: u64, outcome: Outcome, offset: Option<i64>, is_retried: bool) {
        let Some(pending) = self.pending.borrow_mut().remove(&number) else { return };
        if let Some(offset) = offset
            && let Ok(index) = usize::try_from(pending.partition)
            && let Some(end) = self.shared.acknowledged_ends.borrow_mut().get_mut(index)
        {
            *end = (*end).max(offset + pending.values.len() as i64);
        }
        let end = nanoseconds(self.shared.io.monotonic_now());
        self.shared.recorder.write(&Operation::Send(Send {
            process: self.process,
            key: Shared::key(pending.partition),
            values: pending.values,
            offset,
            acks: self.character.acks_level(),
            is_idempotent: self.character.is_idempotent,
            is_retried,
            is_final: false,
            outcome,
            span: Some(Span { start: pending.start, end }),
        }));
    }

    fn settle(&self, number: u64, result: Result<Delivered, ClientError>) {
        match result {
            Ok(delivered) => {
                let offset = (delivered.base_offset >= 0).then_some(delivered.base_offset);
                // Without idempotence only what surely was not appended is sent again.
                let is_retried = self.character.is_idempotent && delivered.attempts > 1;
                self.close(number, Outcome::Ok, offset, is_retried);
            }
            Err(error) => {
                let outcome = outcome_of(&error, self.character.is_idempotent);
                self.close(number, outcome, None, self.character.is_idempotent);
                self.is_broken.set(self.is_broken.get() || self.character.is_idempotent);
            }
        }
    }

    /// Whatever is open will never be known.
    fn abandon(&self) {
        let open: Vec<u64> = self.pending.borrow().keys().copied().collect();
        for number in open {
            self.close(number, Outcome::Info, None, self.character.is_idempotent);
        }
    }
}

/// Sends until the load is over.
pub async fn run(shared: Rc<Shared>, process: u64) {
    let mut random = shared.random(process);
    let character = Character::draw(process, &mut random);
    while !shared.is_over.get() {
        let Some(client) = shared.connect().await else { break };
        let book = Rc::new(Book {
            shared: shared.clone(),
            process,
            character,
            pending: RefCell::new(BTreeMap::new()),
            next_batch: Cell::new(0),
            is_broken: Cell::new(false),
        });
        let of_completion = book.clone();
        let started = Producer::start(&client, character.config(&shared), move |number, result| {
            of_completion.settle(number, result);
        });
        let Some(Ok(producer)) = until_over(&shared, started).await else {
            shared.io.sleep(POLL).await;
            continue;
        };
        live(&shared, &client, &book, &producer, &mut random).await;
        if shared.is_over.get() {
            drain(&shared, &producer).await;
        }
        drop(producer);
        book.abandon();
        if !shared.is_over.get() {
            shared.recorder.write(&Operation::Crash { process });
        }
    }
}

/// Runs `future` until the load is over; then it is dropped.
async fn until_over<T>(shared: &Shared, future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    while !shared.is_over.get() {
        let deadline = shared.io.monotonic_now() + POLL;
        match crate::client::wait::with_deadline(&shared.io, deadline, future.as_mut()).await {
            Ok(output) => return Some(output),
            Err(_) => continue,
        }
    }
    None
}

/// The life of one client: until the load is over, the client is broken, or it is drawn to be dropped.
async fn live(
    shared: &Rc<Shared>,
    client: &Client,
    book: &Rc<Book>,
    producer: &Producer<u64>,
    random: &mut SeededRandom,
) {
    let topic: Rc<str> = Rc::from(shared.load.topic.as_str());
    let mut due =
        shared.io.monotonic_now() + shared.load.interval.mul_f64((random.next_u64() % 100) as f64 / 100.0);
    while !shared.is_over.get() && !book.is_broken.get() {
        shared.io.sleep_until(due).await;
        // A broker that was away is not flooded afterwards.
        due = shared.io.monotonic_now().max(due) + shared.load.interval;
        let partition = (random.next_u64() % u64::from(shared.load.partitions)) as i32;
        let values = shared.take_values(1 + random.next_u64() % RECORDS_MAX);
        if random.next_u64().is_multiple_of(DAMAGED_ONE_IN) {
            send_damaged(shared, client, book, partition, values).await;
            continue;
        }
        while !producer.has_room(&topic, partition) && !shared.is_over.get() && !book.is_broken.get() {
            shared.io.sleep(POLL).await;
        }
        if shared.is_over.get() || book.is_broken.get() {
            return;
        }
        let stamp = producer.stamp(&topic, partition, values.len() as u32);
        let bytes = build(shared, &values, stamp, book.character.compression);
        let tag = book.open(partition, values);
        producer.send(vec![OutBatch { topic: topic.clone(), partition, bytes, tag }]);
        if random.next_u64().is_multiple_of(DROPPED_ONE_IN) {
            return;
        }
    }
}

/// Waits for what is in flight, as long as the end may wait.
async fn drain(shared: &Shared, producer: &Producer<u64>) {
    let deadline = shared.io.monotonic_now() + shared.load.patience;
    while producer.in_flight() > 0 && shared.io.monotonic_now() < deadline {
        shared.io.sleep(POLL).await;
    }
}

/// One batch with these values.
pub(super) fn build(
    shared: &Shared,
    values: &[u64],
    producer: Option<BatchProducer>,
    compression: Compression,
) -> Bytes {
    let mut builder = BatchBuilder::new();
    let timestamp = shared.io.wall_now_ms();
    for value in values {
        let bytes = payload::encode(*value, shared.load.record_bytes_max);
        let record = NewRecord { timestamp, value: Some(&bytes), ..NewRecord::default() };
        builder.append(&record).expect("a few records of less than a mebibyte fit");
    }
    let options = BatchOptions { compression, producer, ..BatchOptions::default() };
    Bytes::from(builder.finish(&options).expect("the batch has records"))
}

/// Sends a batch whose last byte is not what its checksum says: it must be refused, and never be read.
async fn send_damaged(shared: &Rc<Shared>, client: &Client, book: &Book, partition: i32, values: Vec<u64>) {
    let mut bytes = build(shared, &values, None, Compression::None).to_vec();
    if let Some(last) = bytes.last_mut() {
        *last ^= 0x55;
    }
    let number = book.open(partition, values);
    let (outcome, offset) = match produce_once(shared, client, partition, &bytes).await {
        Ok(offset) => (Outcome::Ok, Some(offset)),
        Err(error) => (outcome_of(&error, false), None),
    };
    book.close(number, outcome, offset, false);
}

/// One Produce request with acks=all, tried once.
///
/// # Errors
/// The broker's refusal, or a failed request.
async fn produce_once(
    shared: &Shared,
    client: &Client,
    partition: i32,
    bytes: &[u8],
) -> Result<i64, ClientError> {
    let topic = client.topic(&shared.load.topic).await?;
    let no_leader = || ClientError::NoLeader {
        subject: format!("partition {partition}"),
        reason: "the topic does not list it".to_owned(),
    };
    let node_id = topic.partitions.get(&partition).ok_or_else(no_leader)?.leader;
    let connection = client.connection(Lane { node_id, number: 1 }).await?;
    let version = connection.version(ApiKey::Produce)?;
    let data = PartitionProduceData { index: partition, records: Some(bytes) };
    let request = ProduceRequest {
        transactional_id: None,
        acks: Acks::All.code(),
        timeout_ms: milliseconds(shared.load.patience),
        topic_data: vec![TopicProduceData {
            name: &topic.name,
            topic_id: topic.id,
            partition_data: vec![data],
        }],
    };
    let wait = shared.load.patience;
    let body = connection
        .call(ApiKey::Produce, version, wait, |writer, version| request.encode(writer, version))
        .await?;
    let missing = || ClientError::Missing {
        address: connection.address().to_string(),
        api: ApiKey::Produce.name(),
        subject: format!("partition {partition}"),
    };
    let response = ProduceResponse::decode(&mut Reader::new(&body), version).map_err(|_| missing())?;
    let answered =
        response.responses.iter().flat_map(|topic| &topic.partition_responses).next().ok_or_else(missing)?;
    if answered.error_code == 0 {
        return Ok(answered.base_offset);
    }
    Err(ClientError::Refused {
        address: connection.address().to_string(),
        api: ApiKey::Produce.name(),
        subject: format!("partition {partition}"),
        code: answered.error_code,
        message: answered.error_message.map(str::to_owned),
    })
}
