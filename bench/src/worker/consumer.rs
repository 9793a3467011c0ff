//! One reader of a run: reads its partitions, measures each record from its intended send time, checks every byte.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ringlog_io::{Io, Monotonic, Priority};
use ringlog_protocol::records::reader::Record;

use super::Measured;
use crate::client::admin::OffsetQuery;
use crate::client::fetcher::FetchConfig;
use crate::client::reader::{FetchTiming, Reader, ReaderOptions, RecordSink};
use crate::client::{Client, ClientConfig, ClientError};
use crate::error::BenchError;
use crate::latency::LatencyHistogram;
use crate::live::{Control, Live, Phases};
use crate::pacing::Schedule;
use crate::record::read_record;
use crate::verify::{Partition, Sent, Verification, Verifier};

/// How often a reader looks whether the run has come to its end.
const CONTROL_POLL: Duration = Duration::from_millis(20);
/// After the producers ended, a reader is given up after so long without a record.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// What all readers of a run have in common.
#[derive(Clone)]
pub struct ConsumerSettings {
    /// Where to connect.
    pub client: ClientConfig,
    /// The topic.
    pub topic: String,
    /// Names the run in every record.
    pub run: u32,
    /// Where each partition began before the run.
    pub begin: BTreeMap<Partition, i64>,
    /// Soft bound of a fetch answer.
    pub fetch_bytes: i32,
    /// Rate of all readers in thousandths of a record a second; `None` = unlimited.
    pub records_per_second_milli: Option<u64>,
    /// How many readers there are.
    pub consumers: u32,
}

/// What one reader found.
#[derive(Clone, Default)]
pub struct ConsumerOutcome {
    /// From the intended send time to arrival.
    pub end_to_end: LatencyHistogram,
    /// From sending a fetch that brought records to its answer.
    pub fetch: LatencyHistogram,
    /// What arrived within the measured time.
    pub measured: Measured,
    /// Checked against what was sent.
    pub verification: Verification,
    /// Times the whole topic was read.
    pub passes: u64,
    /// Why reading ended early, if it did.
    pub failure: Option<String>,
    /// For the workloads that compare at the end of the run.
    pub verifier: Verifier,
}

impl ConsumerOutcome {
    /// Adds another reader's findings. Verifiers are not merged: each is compared with its own partitions.
    pub fn merge(&mut self, other: &ConsumerOutcome) {
        self.end_to_end.merge(&other.end_to_end);
        self.fetch.merge(&other.fetch);
        self.measured.add(other.measured);
        self.verification.add(&other.verification);
        self.passes += other.passes;
        self.failure = self.failure.take().or_else(|| other.failure.clone());
    }
}

/// Checks and measures each record.
pub struct MeasuringSink {
    run: u32,
    phases: Option<Phases>,
    live: Arc<Live>,
    outcome: ConsumerOutcome,
    verifier: Verifier,
    /// With a rate: record `n` is read no earlier than its time here says.
    schedule: Option<Schedule>,
    read_records: u64,
}

impl MeasuringSink {
    /// A sink for run `run` that measures nothing until phases are set.
    pub fn new(run: u32, live: Arc<Live>) -> MeasuringSink {
        MeasuringSink {
            run,
            phases: None,
            live,
            outcome: ConsumerOutcome::default(),
            verifier: Verifier::new(),
            schedule: None,
            read_records: 0,
        }
    }

    /// Takes the verifier, so that the next record begins a new pass.
    pub fn take_verifier(&mut self) -> Verifier {
        std::mem::take(&mut self.verifier)
    }
}

impl RecordSink for MeasuringSink {
    fn record(&mut self, partition: i32, record: &Record<'_>, arrived_at: Monotonic) -> bool {
        let read = read_record(self.run, record.key, record.value);
        let is_fresh = self.verifier.observe(partition, record.offset.0, read);
        let arrived = arrived_at.as_nanos();
        self.read_records += 1;
        let bytes = (record.key.map_or(0, <[u8]>::len) + record.value.map_or(0, <[u8]>::len)) as u64;
        self.live.received_records.fetch_add(1, Ordering::Relaxed);
        self.live.received_bytes.fetch_add(bytes, Ordering::Relaxed);
        let Some(phases) = self.phases else { return true };
        if phases.measures(arrived) {
            self.outcome.measured.add(Measured { records: 1, bytes });
        }
        if let (true, Ok(stamp)) = (is_fresh, read)
            && phases.measures(stamp.intended)
        {
            self.outcome.end_to_end.record(arrived.saturating_sub(stamp.intended));
        }
        true
    }

    fn fetched(&mut self, timing: FetchTiming) {
        let is_measured = self.phases.is_some_and(|phases| phases.measures(timing.sent_at.as_nanos()));
        if is_measured && timing.bytes > 0 {
            self.outcome
                .fetch
                .record(crate::live::nanoseconds(timing.arrived_at.saturating_since(timing.sent_at)));
        }
    }

    fn next_fetch_at(&mut self) -> Option<Monotonic> {
        self.schedule.map(|schedule| Monotonic(schedule.intended(self.read_records)))
    }

    fn fetches_ahead(&self) -> bool {
        self.schedule.is_none()
    }
}

/// Waits for the last producer, then tells `reader` where the logs end. A reader that makes no more progress is stopped:
/// what it has not read counts as lost.
async fn watch_producers(
    control: Arc<Control>,
    topic: String,
    client: Client,
    reader: Reader<MeasuringSink>,
) -> Result<(), ClientError> {
    let io = client.io();
    while !control.producers_ended() && !control.is_cancelled() {
        io.sleep(CONTROL_POLL).await;
    }
    if control.is_cancelled() {
        reader.stop();
        return Ok(());
    }
    let partitions: Vec<Partition> = reader.positions().keys().copied().collect();
    match client.offsets(&topic, &partitions, OffsetQuery::Latest).await {
        Ok(ends) => reader.set_ends(ends),
        Err(error) => {
            reader.stop();
            return Err(error);
        }
    }
    while io.monotonic_now() < reader.progress_at() + STALL_TIMEOUT && !control.is_cancelled() {
        io.sleep(CONTROL_POLL).await;
    }
    reader.stop();
    Ok(())
}

/// A reader that is connected and waits for the start.
pub struct ConsumerWorker {
    settings: Arc<ConsumerSettings>,
    member: u32,
    io: Io,
    client: Client,
    partitions: Vec<Partition>,
    control: Arc<Control>,
    live: Arc<Live>,
}

impl ConsumerWorker {
    /// Connects reader number `member` of `partitions`.
    ///
    /// # Errors
    /// The broker cannot be reached or the topic is not usable.
    pub async fn connect(
        io: &Io,
        settings: Arc<ConsumerSettings>,
        member: u32,
        partitions: Vec<Partition>,
        control: Arc<Control>,
        live: Arc<Live>,
    ) -> Result<ConsumerWorker, BenchError> {
        let client = Client::connect(io, settings.client.clone()).await?;
        client.topic(&settings.topic).await?;
        Ok(ConsumerWorker { settings, member, io: io.clone(), client, partitions, control, live })
    }

    /// Follows the producers until they have ended and everything before the ends of the logs is read. The outcome's
    /// verifier has seen it all.
    ///
    /// # Errors
    /// None that a failed reader would not report in its outcome.
    pub async fn follow(self, phases: Phases) -> Result<ConsumerOutcome, BenchError> {
        let reader = self.reader(phases);
        let watch_failure = Rc::new(RefCell::new(None));
        // Ends the reader from beside: it may sit in a long poll when the last producer ends.
        let watching = watch_producers(
            self.control.clone(),
            self.settings.topic.clone(),
            self.client.clone(),
            reader.clone(),
        );
        let failed = watch_failure.clone();
        let watcher =
            self.io.spawn(Priority::Foreground, async move { *failed.borrow_mut() = watching.await.err() });
        let read = reader.run().await;
        drop(watcher);
        let mut outcome = reader.with_sink(|sink| {
            let verifier = sink.take_verifier();
            ConsumerOutcome { verifier, ..std::mem::take(&mut sink.outcome) }
        });
        let failure = read.err().or_else(|| watch_failure.borrow_mut().take());
        outcome.failure = failure.map(|error| error.to_string());
        Ok(outcome)
    }

    /// Reads everything again and again until the measurement ends. Each pass is checked against `sent`.
    ///
    /// # Errors
    /// None that a failed reader would not report in its outcome.
    pub async fn read_over_and_over(
        self,
        phases: Phases,
        sent: Rc<Sent>,
    ) -> Result<ConsumerOutcome, BenchError> {
        let ends = self.client.offsets(&self.settings.topic, &self.partitions, OffsetQuery::Latest).await?;
        let begin = self.begin();
        let is_empty =
            ends.iter().all(|(partition, end)| begin.get(partition).is_some_and(|first| first >= end));
        if is_empty {
            let reason = "it holds nothing to read; use --preload".to_owned();
            return Err(BenchError::Topic { topic: self.settings.topic.clone(), reason });
        }
        let reader = self.reader(phases);
        reader.set_ends(ends);
        if phases.start > self.io.monotonic_now().as_nanos() {
            self.io.sleep_until(Monotonic(phases.start)).await;
        }
        let watched = reader.clone();
        let (control, io) = (self.control.clone(), self.io.clone());
        let _watcher = self.io.spawn(Priority::Foreground, async move {
            while io.monotonic_now().as_nanos() < phases.measure_end && !control.is_cancelled() {
                io.sleep(CONTROL_POLL).await;
            }
            watched.stop();
        });
        let mut total = Verification::default();
        let mut passes = 0;
        let mut failure = None;
        loop {
            if let Err(error) = reader.run().await {
                failure = Some(error.to_string());
                break;
            }
            let is_over =
                self.io.monotonic_now().as_nanos() >= phases.measure_end || self.control.is_cancelled();
            let verifier = reader.with_sink(MeasuringSink::take_verifier);
            // A pass that the end of the run cut short is judged by what lies between the records that it did read.
            let result = if is_over { verifier.finish_partial(&sent) } else { verifier.finish(&sent) };
            total.add(&result);
            if is_over {
                break;
            }
            passes += 1;
            reader.rewind(begin.clone());
        }
        let outcome = reader.with_sink(|sink| std::mem::take(&mut sink.outcome));
        Ok(ConsumerOutcome { verification: total, passes, failure, ..outcome })
    }

    fn begin(&self) -> BTreeMap<Partition, i64> {
        let begin = |partition: &Partition| self.settings.begin.get(partition).copied().unwrap_or(0);
        self.partitions.iter().map(|partition| (*partition, begin(partition))).collect()
    }

    fn reader(&self, phases: Phases) -> Reader<MeasuringSink> {
        let fetch = FetchConfig {
            bytes_max: self.settings.fetch_bytes,
            partition_bytes_max: self.settings.fetch_bytes,
            ..FetchConfig::default()
        };
        let mut sink = MeasuringSink::new(self.settings.run, self.live.clone());
        sink.phases = Some(phases);
        sink.schedule = self
            .settings
            .records_per_second_milli
            .map(|rate| Schedule::new(phases.start, rate, self.member, self.settings.consumers));
        let options = ReaderOptions { fetch, ..ReaderOptions::default() };
        Reader::new(&self.client, &self.settings.topic, self.begin(), options, sink)
    }
}
