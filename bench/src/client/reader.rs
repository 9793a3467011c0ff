//! Reads partitions from given positions to an end, or until stopped: one fetch in flight for each leader, the next one
//! sent before the records of the last are looked at.
//!
//! Retries what may pass by itself as long as there is progress. What records mean is the sink's business.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ringlog_io::{Io, Monotonic, Priority};
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::records::reader::Record;

use super::admin::refused_if;
use super::cluster::{Client, Lane};
use super::connection::Connection;
use super::error::ClientError;
use super::fetcher::{Fetch, FetchConfig, FetchPosition, FetchedPartition, start_fetch};
use super::metadata::TopicImage;
use super::reading::visit_records;

const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// One fetch, for those who measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchTiming {
    /// When it was sent.
    pub sent_at: Monotonic,
    /// When its answer was read.
    pub arrived_at: Monotonic,
    /// Bytes of record batches in it.
    pub bytes: usize,
}

/// Takes what is read.
pub trait RecordSink: 'static {
    /// One record, in order of offsets within its partition; `false` stops the reader.
    fn record(&mut self, partition: i32, record: &Record<'_>, arrived_at: Monotonic) -> bool;

    /// One answer, before its records.
    fn fetched(&mut self, _timing: FetchTiming) {}

    /// After the records of one answer: when the next fetch may be sent, `None` = at once. A reader that asks for a time
    /// gives up fetching ahead.
    fn next_fetch_at(&mut self) -> Option<Monotonic> {
        None
    }

    /// Whether the next fetch is sent before this answer's records are looked at.
    fn fetches_ahead(&self) -> bool {
        true
    }
}

/// How a reader behaves.
#[derive(Clone, Debug)]
pub struct ReaderOptions {
    /// Every fetch.
    pub fetch: FetchConfig,
    /// Errors that may pass are retried this long without progress.
    pub give_up_after: Duration,
}

impl Default for ReaderOptions {
    fn default() -> ReaderOptions {
        ReaderOptions { fetch: FetchConfig::default(), give_up_after: Duration::from_secs(30) }
    }
}

struct Shared<S> {
    client: Client,
    topic_name: String,
    options: ReaderOptions,
    sink: RefCell<S>,
    positions: RefCell<BTreeMap<i32, i64>>,
    ends: RefCell<Option<BTreeMap<i32, i64>>>,
    is_stopped: Cell<bool>,
    needs_regrouping: Cell<bool>,
    progress_at: Cell<Monotonic>,
}

/// A reader of some partitions of one topic. Clones share everything.
pub struct Reader<S> {
    shared: Rc<Shared<S>>,
}

impl<S> Clone for Reader<S> {
    fn clone(&self) -> Self {
        Reader { shared: self.shared.clone() }
    }
}

impl<S: RecordSink> Reader<S> {
    /// A reader that begins at `positions` (partition -> offset).
    pub fn new(
        client: &Client,
        topic_name: &str,
        positions: BTreeMap<i32, i64>,
        options: ReaderOptions,
        sink: S,
    ) -> Reader<S> {
        let progress_at = Cell::new(client.io().monotonic_now());
        Reader {
            shared: Rc::new(Shared {
                client: client.clone(),
                topic_name: topic_name.to_owned(),
                options,
                sink: RefCell::new(sink),
                positions: RefCell::new(positions),
                ends: RefCell::new(None),
                is_stopped: Cell::new(false),
                needs_regrouping: Cell::new(false),
                progress_at,
            }),
        }
    }

    /// Stops after the answers that are on their way.
    pub fn stop(&self) {
        self.shared.is_stopped.set(true);
    }

    /// Stops each partition once its position reaches the offset given here.
    pub fn set_ends(&self, ends: BTreeMap<i32, i64>) {
        self.shared.progress_at.set(self.shared.client.io().monotonic_now());
        *self.shared.ends.borrow_mut() = Some(ends);
    }

    /// Goes back to `positions`, for another pass. Only between two [`Reader::run`].
    pub fn rewind(&self, positions: BTreeMap<i32, i64>) {
        *self.shared.positions.borrow_mut() = positions;
    }

    /// The offset of the next record of each partition.
    pub fn positions(&self) -> BTreeMap<i32, i64> {
        self.shared.positions.borrow().clone()
    }

    /// Runs `f` on the sink.
    pub fn with_sink<T>(&self, f: impl FnOnce(&mut S) -> T) -> T {
        f(&mut self.shared.sink.borrow_mut())
    }

    /// When records last arrived.
    pub fn progress_at(&self) -> Monotonic {
        self.shared.progress_at.get()
    }

    /// Reads until stopped or until all ends are reached.
    ///
    /// # Errors
    /// What cannot pass by itself, or did not within the time without progress.
    pub async fn run(&self) -> Result<(), ClientError> {
        let shared = &self.shared;
        let io = shared.client.io().clone();
        shared.progress_at.set(io.monotonic_now());
        while !shared.is_done() {
            let Err(error) = shared.clone().read_round().await else { continue };
            let is_late = io.monotonic_now() >= shared.progress_at.get() + shared.options.give_up_after;
            if !error.is_retriable() || is_late {
                return Err(error);
            }
            shared.client.forget_topic(&shared.topic_name);
            io.sleep(RETRY_PAUSE).await;
        }
        Ok(())
    }
}

impl<S: RecordSink> Shared<S> {
    fn is_done(&self) -> bool {
        if self.is_stopped.get() {
            return true;
        }
        let positions = self.positions.borrow();
        positions.iter().all(|(partition, position)| self.has_ended(*partition, *position))
    }

    fn has_ended(&self, partition: i32, position: i64) -> bool {
        let ends = self.ends.borrow();
        ends.as_ref().is_some_and(|ends| ends.get(&partition).is_some_and(|end| position >= *end))
    }

    /// Reads from all leaders until done, or until one of them fails.
    async fn read_round(self: Rc<Self>) -> Result<(), ClientError> {
        self.needs_regrouping.set(false);
        let topic = self.client.topic(&self.topic_name).await?;
        let mut by_leader: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
        for partition in self.positions.borrow().keys() {
            let image = topic.partitions.get(partition).ok_or_else(|| ClientError::NoLeader {
                subject: format!("partition {partition} of topic '{}'", topic.name),
                reason: format!("the topic has {} partitions", topic.partitions.len()),
            })?;
            by_leader.entry(image.leader).or_default().push(*partition);
        }
        let io: Io = self.client.io().clone();
        let tasks: Vec<_> = by_leader
            .into_iter()
            .map(|(node_id, partitions)| {
                let reading = self.clone().read_leader(topic.clone(), node_id, partitions);
                io.spawn(Priority::Foreground, reading)
            })
            .collect();
        let mut result = Ok(());
        for task in tasks {
            result = result.and(task.await);
        }
        result
    }

    async fn read_leader(
        self: Rc<Self>,
        topic: Rc<TopicImage>,
        node_id: i32,
        mut partitions: Vec<i32>,
    ) -> Result<(), ClientError> {
        // Whatever ends this leader's loop early sends the others home too, to be grouped anew.
        let result = self.read_leader_until_done(&topic, node_id, &mut partitions).await;
        if result.is_err() {
            self.needs_regrouping.set(true);
        }
        result
    }

    async fn read_leader_until_done(
        &self,
        topic: &TopicImage,
        node_id: i32,
        partitions: &mut [i32],
    ) -> Result<(), ClientError> {
        let connection = self.client.connection(Lane { node_id, number: 0 }).await?;
        let io = self.client.io();
        let mut ahead: Option<(Fetch, Monotonic)> = None;
        loop {
            let fetch = match ahead.take() {
                Some(fetch) => Some(fetch),
                None => self.send_fetch(&connection, topic, partitions)?,
            };
            let Some((fetch, sent_at)) = fetch else { return Ok(()) };
            let fetched = fetch.partitions(&connection, topic).await?;
            let arrived_at = io.monotonic_now();
            let (answers, taken) = self.take_answers(&connection, topic, fetched);
            // Who just sent records goes to the end, so that a full answer cannot starve the partitions behind it.
            partitions
                .sort_by_key(|partition| answers.iter().any(|(answer, _)| answer.partition == *partition));
            let goes_on = taken.is_ok() && !self.is_stopped.get() && !self.needs_regrouping.get();
            if goes_on && self.sink.borrow().fetches_ahead() {
                ahead = self.send_fetch(&connection, topic, partitions)?;
            }
            if taken.is_ok() || !answers.is_empty() {
                let timing = FetchTiming { sent_at, arrived_at, bytes: bytes_of(&answers) };
                self.visit_answers(topic, &answers, timing)?;
            }
            taken?;
            if self.is_stopped.get() || self.needs_regrouping.get() {
                return Ok(());
            }
            let pause_until = self.sink.borrow_mut().next_fetch_at();
            if let Some(time) = pause_until.filter(|time| *time > arrived_at) {
                io.sleep_until(time).await;
            }
        }
    }

    /// `None` when no partition here has anything left to read.
    fn send_fetch(
        &self,
        connection: &Connection,
        topic: &TopicImage,
        partitions: &[i32],
    ) -> Result<Option<(Fetch, Monotonic)>, ClientError> {
        let positions: Vec<FetchPosition> = {
            let offsets = self.positions.borrow();
            let wanted =
                partitions.iter().filter_map(|partition| Some((*partition, *offsets.get(partition)?)));
            wanted
                .filter(|(partition, offset)| !self.has_ended(*partition, *offset))
                .map(|(partition, offset)| FetchPosition { partition, offset })
                .collect()
        };
        if positions.is_empty() {
            return Ok(None);
        }
        let sent_at = self.client.io().monotonic_now();
        Ok(Some((start_fetch(connection, topic, &positions, &self.options.fetch)?, sent_at)))
    }

    /// Moves positions behind what arrived; keeps the answers that hold records with the offset to start from, up to the
    /// first that is an error. Their positions have moved, so the sink must see them, error or not.
    fn take_answers(
        &self,
        connection: &Connection,
        topic: &TopicImage,
        fetched: Vec<FetchedPartition>,
    ) -> (Vec<(FetchedPartition, i64)>, Result<(), ClientError>) {
        let mut answers = Vec::with_capacity(fetched.len());
        for answer in fetched {
            let from = self.positions.borrow().get(&answer.partition).copied().unwrap_or(0);
            if let Err(error) = refuse(connection, topic, &answer, from) {
                return (answers, Err(error));
            }
            if answer.records.is_empty() {
                continue;
            }
            let next = answer.next_offset(from);
            if next > from {
                self.progress_at.set(self.client.io().monotonic_now());
                self.positions.borrow_mut().insert(answer.partition, next);
            }
            answers.push((answer, from));
        }
        (answers, Ok(()))
    }

    fn visit_answers(
        &self,
        topic: &TopicImage,
        answers: &[(FetchedPartition, i64)],
        timing: FetchTiming,
    ) -> Result<(), ClientError> {
        let mut sink = self.sink.borrow_mut();
        sink.fetched(timing);
        let mut scratch = Vec::new();
        for (answer, from) in answers {
            let subject = format_args!("partition {} of topic '{}'", answer.partition, topic.name);
            let end = self.ends.borrow().as_ref().and_then(|ends| ends.get(&answer.partition).copied());
            let mut wants_more = true;
            visit_records(subject, &answer.records, *from, &mut scratch, |record| {
                if end.is_some_and(|end| record.offset.0 >= end) {
                    return false;
                }
                wants_more = sink.record(answer.partition, record, timing.arrived_at);
                wants_more
            })?;
            if !wants_more {
                self.is_stopped.set(true);
                return Ok(());
            }
        }
        Ok(())
    }
}

fn bytes_of(answers: &[(FetchedPartition, i64)]) -> usize {
    answers.iter().map(|(answer, _)| answer.records.len()).sum()
}

fn refuse(
    connection: &Connection,
    topic: &TopicImage,
    answer: &FetchedPartition,
    from: i64,
) -> Result<(), ClientError> {
    if answer.error_code == 0 {
        return Ok(());
    }
    let is_outside = answer.error_code == ErrorCode::OffsetOutOfRange.code();
    let message = is_outside.then(|| {
        format!(
            "offset {from} is not in the log, which starts at {} and ends at {}",
            answer.log_start_offset, answer.high_watermark
        )
    });
    let subject = format!("partition {} of topic '{}'", answer.partition, topic.name);
    refused_if(connection, ApiKey::Fetch, subject, answer.error_code, message.as_deref())
}
