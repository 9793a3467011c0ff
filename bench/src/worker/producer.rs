//! One producer of a run: sends records when its schedule says so, measures each from its intended time.
//!
//! It never skips a record and never slows the schedule; where it is late, the report says by how much and whether the
//! broker or the generator was the cause.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use ringlog_io::{Io, Monotonic};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::compression::Compression;

use super::Measured;
use crate::client::producer::{Acks, Delivered, OutBatch, Producer, ProducerConfig};
use crate::client::{Client, ClientConfig, ClientError};
use crate::error::BenchError;
use crate::latency::LatencyHistogram;
use crate::live::{Control, Live, Phases};
use crate::pacing::{BatchPlan, BatchRule, Nanoseconds, Pacer, Schedule};
use crate::payload::PayloadPool;
use crate::record::{KEY_BYTES, RecordStamp, VALUE_HEADER_BYTES, write_record};
use crate::verify::{Partition, Sent, SentStream};

/// A send this much behind its due time counts as late.
pub const LATE_NANOSECONDS: Nanoseconds = 1_000_000;

/// What all producers of a run have in common.
pub struct ProducerSettings {
    /// Where to connect.
    pub client: ClientConfig,
    /// The topic.
    pub topic: String,
    /// Its partitions.
    pub partitions: Vec<Partition>,
    /// Names the run in every record.
    pub run: u32,
    /// Key and value of a record, bytes.
    pub record_bytes: u32,
    /// How batches close.
    pub batch: BatchRule,
    /// Batches of one request.
    pub batches_per_request: u32,
    /// Codec.
    pub compression: Compression,
    /// The sender.
    pub producer: ProducerConfig,
    /// Rate of all producers in thousandths of a record a second; `None` = closed loop.
    pub records_per_second_milli: Option<u64>,
    /// Stop after so many records of each producer; `None` = when the measurement ends.
    pub records_each: Option<u64>,
    /// Payload bytes.
    pub payload: PayloadPool,
    /// How many producers there are.
    pub producers: u32,
}

/// What one producer found.
#[derive(Clone, Default)]
pub struct ProducerOutcome {
    /// From the intended send time to the answer.
    pub acknowledged: LatencyHistogram,
    /// From handing over to the connection to the answer.
    pub service: LatencyHistogram,
    /// From being due, or let go by the window, to being sent: the generator's own lag.
    pub send_lag: LatencyHistogram,
    /// Waiting for room in the window: the broker's doing.
    pub window_wait: LatencyHistogram,
    /// Answers within the measured time.
    pub measured: Measured,
    /// Records meant to be sent within the measured time.
    pub offered_records: u64,
    /// Batches handed over in all.
    pub batches: u64,
    /// Of these, over a millisecond behind their due time, whatever the cause.
    pub late_batches: u64,
    /// Batches sent again.
    pub retries: u64,
    /// Records whose send failed.
    pub failed_records: u64,
    /// The first failure.
    pub first_failure: Option<String>,
    /// What was sent, for verification.
    pub sent: Sent,
}

impl ProducerOutcome {
    /// Adds another producer's findings.
    pub fn merge(&mut self, other: ProducerOutcome) {
        self.acknowledged.merge(&other.acknowledged);
        self.service.merge(&other.service);
        self.send_lag.merge(&other.send_lag);
        self.window_wait.merge(&other.window_wait);
        self.measured.add(other.measured);
        self.offered_records += other.offered_records;
        self.batches += other.batches;
        self.late_batches += other.late_batches;
        self.retries += other.retries;
        self.failed_records += other.failed_records;
        self.first_failure = self.first_failure.take().or(other.first_failure);
        self.sent.extend(other.sent);
    }
}

/// What a batch carries to its completion.
struct BatchTag {
    partition: Partition,
    first_sequence: u64,
    records: u32,
    times: IntendedTimes,
}

/// The intended times of a batch's records.
#[derive(Clone, Copy)]
enum IntendedTimes {
    Scheduled {
        schedule: Schedule,
        first: u64,
    },
    /// Closed loop: all at once.
    At(Nanoseconds),
}

impl IntendedTimes {
    fn of(&self, index: u32) -> Nanoseconds {
        match self {
            IntendedTimes::Scheduled { schedule, first } => schedule.intended(first + u64::from(index)),
            IntendedTimes::At(time) => *time,
        }
    }
}

/// A producer that is connected and waits for the start.
pub struct ProducerWorker {
    settings: Arc<ProducerSettings>,
    member: u32,
    io: Io,
    topic: Rc<str>,
    producer: Producer<BatchTag>,
    outcome: Rc<RefCell<ProducerOutcome>>,
    control: Arc<Control>,
    builder: BatchBuilder,
    value: Vec<u8>,
    next_partition: usize,
    /// The window held a request back, and the schedule has not been caught up with since: what is late now is late
    /// because of the broker.
    is_behind_by_window: bool,
}

impl ProducerWorker {
    /// Connects producer number `member`.
    ///
    /// # Errors
    /// The broker cannot be reached or refuses.
    pub async fn connect(
        io: &Io,
        settings: Arc<ProducerSettings>,
        member: u32,
        control: Arc<Control>,
        live: Arc<Live>,
    ) -> Result<ProducerWorker, BenchError> {
        let client = Client::connect(io, settings.client.clone()).await?;
        client.topic(&settings.topic).await?;
        let outcome = Rc::new(RefCell::new(ProducerOutcome::default()));
        let completion = completion(settings.clone(), member, outcome.clone(), control.clone(), live);
        let producer = Producer::start(&client, settings.producer.clone(), completion).await?;
        Ok(ProducerWorker {
            topic: settings.topic.as_str().into(),
            io: io.clone(),
            producer,
            outcome,
            control,
            builder: BatchBuilder::new(),
            value: Vec::new(),
            // Producers begin at different partitions, so that they do not walk in step.
            next_partition: member as usize % settings.partitions.len().max(1),
            is_behind_by_window: false,
            settings,
            member,
        })
    }

    /// Offers load until the end, then waits for the answers.
    ///
    /// # Errors
    /// Only what stops the generator itself; failed sends are in the outcome.
    pub async fn run(mut self, phases: Phases) -> Result<ProducerOutcome, BenchError> {
        match self.settings.records_per_second_milli {
            Some(rate) => self.run_open(phases, rate).await?,
            None => self.run_closed(phases).await?,
        }
        self.producer.flush().await;
        let mut outcome = std::mem::take(&mut *self.outcome.borrow_mut());
        outcome.retries = self.producer.retries();
        self.control.producer_ended();
        Ok(outcome)
    }

    async fn run_open(&mut self, phases: Phases, rate: u64) -> Result<(), BenchError> {
        let schedule = Schedule::new(phases.start, rate, self.member, self.settings.producers);
        self.outcome.borrow_mut().offered_records = schedule
            .count_until(phases.measure_end.saturating_sub(1))
            - schedule.count_until(phases.measure_start.saturating_sub(1));
        let mut pacer = Pacer::new(schedule, self.settings.batch);
        let limit = self.settings.records_each.unwrap_or(u64::MAX);
        loop {
            let plan = self.clipped(pacer.peek(self.now()), schedule, phases);
            let is_over = schedule.intended(plan.first) >= phases.measure_end || plan.first >= limit;
            if is_over || self.control.is_cancelled() {
                return Ok(());
            }
            let now = self.now();
            if plan.due > now {
                self.is_behind_by_window = false;
                self.io.sleep_until(Monotonic(plan.due)).await;
            } else {
                // Behind schedule: let what was queued leave before the next batch is built.
                self.io.yield_now().await;
            }
            self.send_request(&mut pacer, plan.due, phases).await?;
        }
    }

    /// Sends as many batches as one request carries, all of them due.
    async fn send_request(
        &mut self,
        pacer: &mut Pacer,
        due: Nanoseconds,
        phases: Phases,
    ) -> Result<(), BenchError> {
        let asked_at = self.now();
        if !self.has_room() {
            self.wait_for_room().await;
            self.is_behind_by_window = true;
        }
        let room_at = self.now();
        let mut request = Vec::new();
        let mut last_due = due;
        while request.len() < self.requested_batches() {
            let next = self.clipped(pacer.peek(self.now()), *pacer.schedule(), phases);
            if pacer.schedule().intended(next.first) >= phases.measure_end {
                break;
            }
            if next.due > self.now() {
                self.io.sleep_until(Monotonic(next.due)).await;
            }
            let plan = self.clipped(pacer.peek(self.now()), *pacer.schedule(), phases);
            pacer.take(plan);
            last_due = last_due.max(plan.due);
            let times = IntendedTimes::Scheduled { schedule: *pacer.schedule(), first: plan.first };
            request.push(self.build(plan.count, times)?);
        }
        let now = self.now();
        let mut outcome = self.outcome.borrow_mut();
        outcome.batches += request.len() as u64;
        if phases.measures(last_due) {
            outcome.window_wait.record(room_at - asked_at);
            let ours_since = if self.is_behind_by_window { room_at } else { last_due };
            outcome.send_lag.record(now.saturating_sub(last_due.max(ours_since)));
            if now.saturating_sub(last_due) > LATE_NANOSECONDS {
                outcome.late_batches += request.len() as u64;
            }
        }
        drop(outcome);
        self.producer.send(request);
        Ok(())
    }

    /// The last batch ends with the last record before the end, and does not wait beyond it to fill.
    fn clipped(&self, plan: BatchPlan, schedule: Schedule, phases: Phases) -> BatchPlan {
        let limit = self.settings.records_each.unwrap_or(u64::MAX);
        let end = schedule.count_until(phases.measure_end.saturating_sub(1)).min(limit);
        let left = u32::try_from(end.saturating_sub(plan.first)).unwrap_or(u32::MAX);
        BatchPlan { count: plan.count.min(left.max(1)), due: plan.due.min(phases.measure_end), ..plan }
    }

    async fn run_closed(&mut self, phases: Phases) -> Result<(), BenchError> {
        if phases.start > self.now() {
            self.io.sleep_until(Monotonic(phases.start)).await;
        }
        let mut left = self.settings.records_each.unwrap_or(u64::MAX);
        while left > 0 && self.now() < phases.measure_end && !self.control.is_cancelled() {
            self.wait_for_room().await;
            let mut request = Vec::new();
            while request.len() < self.requested_batches() && left > 0 {
                let records = u32::try_from(left).unwrap_or(u32::MAX).min(self.settings.batch.records_max);
                left -= u64::from(records);
                let intended = self.now();
                request.push(self.build(records, IntendedTimes::At(intended))?);
            }
            self.outcome.borrow_mut().batches += request.len() as u64;
            self.producer.send(request);
            self.io.yield_now().await;
        }
        Ok(())
    }

    fn requested_batches(&self) -> usize {
        (self.settings.batches_per_request as usize).min(self.settings.partitions.len())
    }

    /// The partitions of the next request.
    fn next_partitions(&self) -> impl Iterator<Item = Partition> {
        (0..self.requested_batches()).filter_map(|step| self.partition_at(self.next_partition + step))
    }

    fn has_room(&self) -> bool {
        self.next_partitions().all(|partition| self.producer.has_room(&self.topic, partition))
    }

    /// Waits until the partitions whose turn it is have room.
    async fn wait_for_room(&self) {
        for partition in self.next_partitions() {
            self.producer.room(&self.topic, partition).await;
        }
    }

    fn partition_at(&self, turn: usize) -> Option<Partition> {
        let count = self.settings.partitions.len().max(1);
        self.settings.partitions.get(turn % count).copied()
    }

    fn build(&mut self, records: u32, times: IntendedTimes) -> Result<OutBatch<BatchTag>, BenchError> {
        let partition = self.partition_at(self.next_partition).unwrap_or(0);
        self.next_partition += 1;
        let payload_bytes = self.settings.record_bytes as usize - KEY_BYTES - VALUE_HEADER_BYTES;
        let timestamp = self.io.wall_now_ms();
        let first_sequence = {
            let mut outcome = self.outcome.borrow_mut();
            let stream: &mut SentStream = outcome.sent.entry((partition, self.member)).or_default();
            let first = stream.sent;
            stream.sent += u64::from(records);
            first
        };
        let mut key = [0; KEY_BYTES];
        for index in 0..records {
            let sequence = first_sequence + u64::from(index);
            let stamp = RecordStamp {
                run: self.settings.run,
                producer: self.member,
                sequence,
                intended: times.of(index),
            };
            let salt =
                sequence ^ (u64::from(self.member) << 48) ^ (u64::from(partition.unsigned_abs()) << 32);
            write_record(
                stamp,
                self.settings.payload.payload(salt, payload_bytes),
                &mut key,
                &mut self.value,
            );
            let record =
                NewRecord { timestamp, key: Some(&key), value: Some(&self.value), ..NewRecord::default() };
            self.builder.append(&record).map_err(batch_error)?;
        }
        let producer = self.producer.stamp(&self.topic, partition, records);
        let options =
            BatchOptions { compression: self.settings.compression, producer, ..BatchOptions::default() };
        let bytes = Bytes::from(self.builder.finish(&options).map_err(batch_error)?);
        let tag = BatchTag { partition, first_sequence, records, times };
        Ok(OutBatch { topic: self.topic.clone(), partition, bytes, tag })
    }

    fn now(&self) -> Nanoseconds {
        self.io.monotonic_now().as_nanos()
    }
}

fn batch_error(error: ringlog_protocol::records::builder::BuildError) -> BenchError {
    BenchError::Usage { option: "--batch-size", reason: error.to_string() }
}

/// The closure that takes every batch's outcome.
fn completion(
    settings: Arc<ProducerSettings>,
    member: u32,
    outcome: Rc<RefCell<ProducerOutcome>>,
    control: Arc<Control>,
    live: Arc<Live>,
) -> impl Fn(BatchTag, Result<Delivered, ClientError>) {
    let record_bytes = u64::from(settings.record_bytes);
    let is_answered = settings.producer.acks != Acks::None;
    move |tag, result| {
        let mut outcome = outcome.borrow_mut();
        let records = u64::from(tag.records);
        let delivered = match result {
            Ok(delivered) => delivered,
            Err(error) => {
                outcome.failed_records += records;
                outcome.first_failure.get_or_insert_with(|| error.to_string());
                let unknown = (tag.first_sequence, tag.first_sequence + records);
                outcome.sent.entry((tag.partition, member)).or_default().unknown.push(unknown);
                live.failed_records.fetch_add(records, Ordering::Relaxed);
                return;
            }
        };
        let done = delivered.done_at.as_nanos();
        live.acked_records.fetch_add(records, Ordering::Relaxed);
        live.acked_bytes.fetch_add(records * record_bytes, Ordering::Relaxed);
        let Some(phases) = control.phases() else { return };
        if phases.measures(done) {
            outcome.measured.add(Measured { records, bytes: records * record_bytes });
        }
        if !is_answered {
            return;
        }
        live.record_latency(done.saturating_sub(tag.times.of(tag.records.saturating_sub(1))));
        let mut measured = 0;
        for index in 0..tag.records {
            let intended = tag.times.of(index);
            if phases.measures(intended) {
                outcome.acknowledged.record(done.saturating_sub(intended));
                measured += 1;
            }
        }
        let service = delivered.done_at.saturating_since(delivered.sent_at);
        outcome.service.record_many(crate::live::nanoseconds(service), measured);
    }
}
