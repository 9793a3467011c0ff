//! Sends built batches to their leaders: windowed, pipelined, in order per partition, with retries where they are safe.
//!
//! An idempotent producer retries everything that may help, in the order of sending, so that the broker can drop what
//! it already has. A producer that is not idempotent retries only what surely was not appended; all else is reported
//! as failed, because repeating it could duplicate records. It builds no batches and knows no records.

mod dispatch;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ringlog_io::{Monotonic, Priority, Task};
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::ids::{ProducerEpoch, ProducerId, Sequence};
use ringlog_protocol::messages::init_producer_id::{InitProducerIdRequest, InitProducerIdResponse};
use ringlog_protocol::records::validate::BatchProducer;
use ringlog_protocol::wire::Reader;

use super::admin::{refused_if, unreadable};
use super::cluster::Client;
use super::error::ClientError;
use super::wait::Signal;

/// How long to ask for a producer id while the broker says "try again".
const PRODUCER_ID_PAUSE: Duration = Duration::from_millis(100);

/// What the broker must do before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// Nothing: there is no answer.
    None,
    /// Durable on the leader.
    Leader,
    /// Durable on the commit quorum.
    All,
}

impl Acks {
    /// The number on the wire.
    pub fn code(self) -> i16 {
        match self {
            Acks::None => 0,
            Acks::Leader => 1,
            Acks::All => -1,
        }
    }
}

impl std::str::FromStr for Acks {
    type Err = String;

    fn from_str(text: &str) -> Result<Acks, String> {
        match text {
            "0" | "none" => Ok(Acks::None),
            "1" | "leader" => Ok(Acks::Leader),
            "all" | "-1" => Ok(Acks::All),
            _ => Err(format!("'{text}' is not an acks setting; use 0, 1 or all")),
        }
    }
}

impl std::fmt::Display for Acks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Acks::None => "0",
            Acks::Leader => "1",
            Acks::All => "all",
        })
    }
}

/// How a producer behaves.
#[derive(Clone, Debug)]
pub struct ProducerConfig {
    /// When the broker answers.
    pub acks: Acks,
    /// Whether batches carry producer id and sequence, so that retries cannot duplicate. Needs acks=all.
    pub is_idempotent: bool,
    /// Batches handed over and not finished; at least 1.
    pub in_flight_max: usize,
    /// Of these, batches of one partition; an idempotent producer may have 5 (the broker remembers five).
    pub in_flight_per_partition_max: usize,
    /// Connections to each broker; partition `p` uses lane `p % lanes`.
    pub lanes: u32,
    /// The broker's own time limit for an answer.
    pub request_timeout: Duration,
    /// From handing a batch over until it is given up.
    pub delivery_timeout: Duration,
    /// Pause before failed batches are sent again.
    pub retry_pause: Duration,
}

impl Default for ProducerConfig {
    fn default() -> ProducerConfig {
        ProducerConfig {
            acks: Acks::All,
            is_idempotent: true,
            in_flight_max: 64,
            in_flight_per_partition_max: IDEMPOTENT_BATCHES_PER_PARTITION,
            lanes: 1,
            request_timeout: Duration::from_secs(30),
            delivery_timeout: Duration::from_secs(120),
            retry_pause: Duration::from_millis(100),
        }
    }
}

/// A broker remembers the last five batches of a producer in a partition (KIP-98).
pub const IDEMPOTENT_BATCHES_PER_PARTITION: usize = 5;

/// A built batch on its way. `T` comes back with the outcome.
#[derive(Clone, Debug)]
pub struct OutBatch<T> {
    /// The topic's name.
    pub topic: Rc<str>,
    /// The partition.
    pub partition: i32,
    /// One record batch v2.
    pub bytes: Bytes,
    /// The caller's own.
    pub tag: T,
}

/// How a batch arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Offset of its first record; -1 with acks=0 or where the broker no longer knows it.
    pub base_offset: i64,
    /// When it was last handed to the connection.
    pub sent_at: Monotonic,
    /// When its answer was read.
    pub done_at: Monotonic,
    /// 1 = without a retry.
    pub attempts: u32,
}

struct Delivery<T> {
    /// Order of handing over; retries keep it.
    id: u64,
    batch: OutBatch<T>,
    give_up_at: Monotonic,
    sent_at: Monotonic,
    attempts: u32,
}

struct PartitionState {
    next_sequence: i32,
    in_flight: usize,
}

struct State<T> {
    /// Groups that share a request where their leader is the same.
    queue: VecDeque<Vec<Delivery<T>>>,
    /// Failed and waiting for everything on the wire to settle.
    failed: Vec<Delivery<T>>,
    /// Handed over and not finished.
    in_flight: usize,
    /// Of these, on the wire.
    on_wire: usize,
    next_id: u64,
    partitions: BTreeMap<(Rc<str>, i32), PartitionState>,
    /// Why an idempotent producer must not go on.
    poison: Option<String>,
    retries: u64,
}

type Completion<T> = Box<dyn Fn(T, Result<Delivered, ClientError>)>;

struct Inner<T> {
    client: Client,
    config: ProducerConfig,
    identity: Option<(ProducerId, ProducerEpoch)>,
    completion: Completion<T>,
    state: RefCell<State<T>>,
    queued: Signal,
    finished: Signal,
}

/// Sends batches of any number of topics. Dropping it abandons what is in flight.
pub struct Producer<T: 'static> {
    inner: Rc<Inner<T>>,
    _dispatcher: Task<()>,
}

impl<T: 'static> Producer<T> {
    /// A producer over `client`; `completion` is called once for each batch, in the order of the answers.
    ///
    /// # Errors
    /// No producer id within the delivery timeout.
    pub async fn start(
        client: &Client,
        config: ProducerConfig,
        completion: impl Fn(T, Result<Delivered, ClientError>) + 'static,
    ) -> Result<Producer<T>, ClientError> {
        let identity = if config.is_idempotent {
            Some(producer_identity(client, config.delivery_timeout).await?)
        } else {
            None
        };
        let state = State {
            queue: VecDeque::new(),
            failed: Vec::new(),
            in_flight: 0,
            on_wire: 0,
            next_id: 0,
            partitions: BTreeMap::new(),
            poison: None,
            retries: 0,
        };
        let inner = Rc::new(Inner {
            client: client.clone(),
            config,
            identity,
            completion: Box::new(completion),
            state: RefCell::new(state),
            queued: Signal::default(),
            finished: Signal::default(),
        });
        let dispatcher = client.io().spawn(Priority::Foreground, dispatch::run(inner.clone()));
        Ok(Producer { inner, _dispatcher: dispatcher })
    }

    /// What to stamp on the next batch of this partition, which must then be sent, in order of stamping. `None` without
    /// idempotence.
    pub fn stamp(&self, topic: &Rc<str>, partition: i32, records: u32) -> Option<BatchProducer> {
        let (id, epoch) = self.inner.identity?;
        let mut state = self.inner.state.borrow_mut();
        let entry = partition_entry(&mut state, topic, partition);
        let base_sequence = Sequence(entry.next_sequence);
        entry.next_sequence = sequence_after(entry.next_sequence, records);
        Some(BatchProducer { id, epoch, base_sequence })
    }

    /// Whether a batch of this partition may be sent now.
    pub fn has_room(&self, topic: &Rc<str>, partition: i32) -> bool {
        let state = self.inner.state.borrow();
        let of_partition =
            state.partitions.get(&(topic.clone(), partition)).map_or(0, |entry| entry.in_flight);
        state.in_flight < self.inner.config.in_flight_max.max(1)
            && of_partition < self.inner.config.in_flight_per_partition_max.max(1)
    }

    /// Resolves when [`Producer::has_room`] is true.
    pub async fn room(&self, topic: &Rc<str>, partition: i32) {
        while !self.has_room(topic, partition) {
            self.inner.finished.raised().await;
        }
    }

    /// Hands batches over; those of one leader leave in one request. At most one batch per partition.
    pub fn send(&self, batches: Vec<OutBatch<T>>) {
        let now = self.inner.client.io().monotonic_now();
        let give_up_at = now + self.inner.config.delivery_timeout;
        let mut state = self.inner.state.borrow_mut();
        let mut group = Vec::with_capacity(batches.len());
        for batch in batches {
            partition_entry(&mut state, &batch.topic, batch.partition).in_flight += 1;
            let id = state.next_id;
            state.next_id += 1;
            state.in_flight += 1;
            group.push(Delivery { id, batch, give_up_at, sent_at: now, attempts: 0 });
        }
        state.queue.push_back(group);
        drop(state);
        self.inner.queued.raise();
    }

    /// Batches handed over and not finished.
    pub fn in_flight(&self) -> usize {
        self.inner.state.borrow().in_flight
    }

    /// Batches that were sent again.
    pub fn retries(&self) -> u64 {
        self.inner.state.borrow().retries
    }

    /// Resolves when every batch has its outcome.
    pub async fn flush(&self) {
        while self.in_flight() > 0 {
            self.inner.finished.raised().await;
        }
    }
}

fn partition_entry<'a, T>(
    state: &'a mut State<T>,
    topic: &Rc<str>,
    partition: i32,
) -> &'a mut PartitionState {
    state
        .partitions
        .entry((topic.clone(), partition))
        .or_insert(PartitionState { next_sequence: 0, in_flight: 0 })
}

/// Sequences wrap from 2^31-1 to 0 (`DefaultRecordBatch.incrementSequence`).
fn sequence_after(sequence: i32, records: u32) -> i32 {
    let sum = i64::from(sequence) + i64::from(records);
    i32::try_from(sum % (i64::from(i32::MAX) + 1)).expect("the remainder is below 2^31")
}

async fn producer_identity(
    client: &Client,
    timeout: Duration,
) -> Result<(ProducerId, ProducerEpoch), ClientError> {
    let give_up_at = client.io().monotonic_now() + timeout;
    loop {
        match request_producer_identity(client).await {
            Err(error) if error.is_retriable() && client.io().monotonic_now() < give_up_at => {
                client.pause_until(PRODUCER_ID_PAUSE, give_up_at).await;
            }
            result => return result,
        }
    }
}

async fn request_producer_identity(client: &Client) -> Result<(ProducerId, ProducerEpoch), ClientError> {
    let connection = client.any_connection().await?;
    let api = ApiKey::InitProducerId;
    let version = connection.version(api)?;
    let request = InitProducerIdRequest {
        transactional_id: None,
        transaction_timeout_ms: i32::MAX,
        ..InitProducerIdRequest::default()
    };
    let body = connection
        .call(api, version, Duration::ZERO, |writer, version| request.encode(writer, version))
        .await?;
    let response = InitProducerIdResponse::decode(&mut Reader::new(&body), version)
        .map_err(|source| unreadable(&connection, api, version, source))?;
    refused_if(&connection, api, "an idempotent producer".to_owned(), response.error_code, None)?;
    Ok((ProducerId(response.producer_id), ProducerEpoch(response.producer_epoch)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_wrap_to_zero_as_kafka_counts_them() {
        assert_eq!(sequence_after(0, 10), 10);
        assert_eq!(sequence_after(i32::MAX, 1), 0);
        assert_eq!(sequence_after(i32::MAX - 5, 10), 4);
    }

    #[test]
    fn acks_are_parsed_by_both_spellings() {
        for (text, acks) in [("0", Acks::None), ("1", Acks::Leader), ("all", Acks::All), ("-1", Acks::All)] {
            assert_eq!(text.parse(), Ok(acks));
        }
        assert!("2".parse::<Acks>().is_err());
    }
}
