//! The load itself: threads, phases, samples of the broker, and the comparison of what was read with what was sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ringlog_io::Io;

use super::setup::{Target, TopicSetup, executor_config, payload_pool, producer_config, rate_milli};
use super::shared;
use crate::args::{Pace, Plan, Workload};
use crate::client::admin::OffsetQuery;
use crate::client::reader::{Reader, ReaderOptions};
use crate::error::BenchError;
use crate::interrupt::Interrupt;
use crate::live::{Control, Live, Phases, Progress, monotonic_now, nanoseconds};
use crate::process::{ProcessSample, sample_process};
use crate::report::{BrokerCost, ConsumedReport, GeneratorReport, ProducedReport, Throughput};
use crate::runtime::{block_on_with, unless_interrupted};
use crate::units::{format_bytes, format_count};
use crate::verify::{Partition, Sent, Verification};
use crate::worker::consumer::{ConsumerOutcome, ConsumerSettings, MeasuringSink};
use crate::worker::producer::{ProducerOutcome, ProducerSettings};
use crate::worker::threads::{Reading, ThreadOutcome, ThreadPlan, ThreadShared, Threads};

/// From "all connected" to the first record.
const START_DELAY: Duration = Duration::from_millis(50);
/// How often the main thread looks at phases, signals and threads.
const POLL: Duration = Duration::from_millis(10);
/// How often progress is shown.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Batches that a preloading producer keeps in flight.
const PRELOAD_BATCHES_IN_FLIGHT: usize = 8;

/// The broker's process at both ends of the measured time.
type Samples = (ProcessSample, ProcessSample);

/// What a run found.
pub struct Measurement {
    pub produced: Option<ProducedReport>,
    pub consumed: Option<ConsumedReport>,
    pub generator: GeneratorReport,
    pub verification: Verification,
    pub failed_records: u64,
    pub first_failure: Option<String>,
    pub reader_failures: Vec<String>,
    pub broker_cost: Option<BrokerCost>,
}

/// Runs the workload and verifies it.
///
/// # Errors
/// What kept it from being measured, and interruption.
pub fn measure(
    plan: &Plan,
    target: &Target,
    topic: &TopicSetup,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<Measurement, BenchError> {
    let workload = plan.args.workload;
    let preloaded = match workload {
        Workload::Consume if plan.preload_records > 0 => preload(plan, target, topic, interrupt, progress)?,
        _ => ProducerOutcome::default(),
    };
    let shared_state = ThreadShared {
        producer: match workload {
            Workload::Produce | Workload::E2e => Some(shared(producer_settings(plan, target, topic)?)),
            Workload::Consume => None,
        },
        consumer: match workload {
            Workload::Consume | Workload::E2e => Some(shared(consumer_settings(plan, target, topic))),
            Workload::Produce => None,
        },
        reading: match workload {
            Workload::Consume => Reading::Repeat(shared(preloaded.sent.clone())),
            Workload::Produce | Workload::E2e => Reading::Follow,
        },
        control: shared(Control::new(u64::from(plan.args.producers))),
        live: shared(Live::default()),
    };
    progress.phase("connecting");
    let (outcomes, samples) =
        run_threads(thread_plans(plan, topic), &shared_state, plan, target, interrupt, progress)?;
    let collected = Collected::from(outcomes);
    let (verification, reader_failures) = match workload {
        Workload::Produce => {
            progress.phase(&format!(
                "verifying {} records",
                format_count(sent_records(&collected.producers.sent))
            ));
            (verify_topic(plan, target, topic, &collected.producers.sent, interrupt)?, Vec::new())
        }
        Workload::E2e => verify_readers(&collected),
        Workload::Consume => {
            let failures =
                collected.readers.failure.iter().map(|failure| format!("a reader ended early: {failure}"));
            (collected.readers.verification.clone(), failures.collect())
        }
    };
    Ok(measurement(plan, target, collected, preloaded, samples, verification, reader_failures))
}

/// Everything the threads found, merged.
struct Collected {
    producers: ProducerOutcome,
    readers: ConsumerOutcome,
    each_reader: Vec<(Vec<Partition>, ConsumerOutcome)>,
    busy: Vec<f64>,
    drivers: Vec<&'static str>,
}

impl From<Vec<ThreadOutcome>> for Collected {
    fn from(outcomes: Vec<ThreadOutcome>) -> Collected {
        let mut collected = Collected {
            producers: ProducerOutcome::default(),
            readers: ConsumerOutcome::default(),
            each_reader: Vec::new(),
            busy: Vec::new(),
            drivers: Vec::new(),
        };
        for outcome in outcomes {
            collected.producers.merge(outcome.producers);
            for (partitions, reader) in outcome.consumers {
                collected.readers.merge(&reader);
                collected.each_reader.push((partitions, reader));
            }
            collected.busy.push(outcome.busy);
            if !collected.drivers.contains(&outcome.driver) {
                collected.drivers.push(outcome.driver);
            }
        }
        collected
    }
}

fn measurement(
    plan: &Plan,
    target: &Target,
    collected: Collected,
    preloaded: ProducerOutcome,
    samples: Option<Samples>,
    verification: Verification,
    reader_failures: Vec<String>,
) -> Measurement {
    let seconds = plan.duration.as_secs_f64();
    let (producers, readers) = (&collected.producers, &collected.readers);
    let mut moved = producers.measured;
    moved.add(readers.measured);
    let broker_cost =
        target.pid.zip(samples).map(|(pid, (before, after))| BrokerCost::new(pid, before, after, moved));
    let produced = (plan.args.workload != Workload::Consume).then(|| ProducedReport {
        offered_records: producers.offered_records,
        throughput: Throughput::new(producers.measured, seconds),
        acknowledged: producers.acknowledged.summary(),
        service: producers.service.summary(),
        batches: producers.batches,
        late_batches: producers.late_batches,
        retried_batches: producers.retries,
        failed_records: producers.failed_records,
        window_wait: producers.window_wait.summary(),
    });
    let consumed = (plan.args.workload != Workload::Produce).then(|| ConsumedReport {
        throughput: Throughput::new(readers.measured, seconds),
        end_to_end: match plan.args.workload {
            // Records written before the measurement have no meaningful age.
            Workload::Consume => None,
            Workload::Produce | Workload::E2e => readers.end_to_end.summary(),
        },
        fetch: readers.fetch.summary(),
        passes: readers.passes,
    });
    Measurement {
        produced,
        consumed,
        generator: GeneratorReport::new(collected.drivers, collected.busy, &collected.producers.send_lag),
        verification,
        failed_records: producers.failed_records + preloaded.failed_records,
        first_failure: producers.first_failure.clone().or(preloaded.first_failure),
        reader_failures,
        broker_cost,
    }
}

/// Runs threads through all phases; samples the broker's process at both ends of the measured time.
fn run_threads(
    plans: Vec<ThreadPlan>,
    shared_state: &ThreadShared,
    plan: &Plan,
    target: &Target,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<(Vec<ThreadOutcome>, Option<Samples>), BenchError> {
    let threads = Threads::spawn(plans, shared_state)?;
    let control = &shared_state.control;
    if !threads.wait_until_ready(interrupt) {
        control.cancel();
        return Err(threads.join().err().unwrap_or(BenchError::Interrupted));
    }
    let phases = Phases::new(monotonic_now() + nanoseconds(START_DELAY), plan.warmup, plan.duration);
    control.start(phases);
    let (mut before, mut after) = (None, None);
    let mut next_progress = monotonic_now() + nanoseconds(PROGRESS_EVERY);
    while !threads.have_ended() {
        std::thread::sleep(POLL);
        let now = monotonic_now();
        if now >= phases.measure_start && before.is_none() {
            before = target.pid.and_then(|pid| sample_process(pid).ok());
        }
        if now >= phases.measure_end && after.is_none() {
            after = target.pid.and_then(|pid| sample_process(pid).ok());
        }
        if now >= next_progress {
            progress.tick(&shared_state.live, phases);
            next_progress = now + nanoseconds(PROGRESS_EVERY);
        }
        if interrupt.is_raised() {
            control.cancel();
            return Err(BenchError::Interrupted);
        }
    }
    // Threads that ended with the measured time leave the second sample to be taken here.
    let after = after.or_else(|| target.pid.and_then(|pid| sample_process(pid).ok()));
    Ok((threads.join()?, before.zip(after)))
}

fn producer_settings(
    plan: &Plan,
    target: &Target,
    topic: &TopicSetup,
) -> Result<ProducerSettings, BenchError> {
    Ok(ProducerSettings {
        client: target.client_config(),
        topic: topic.name.clone(),
        partitions: topic.partitions.clone(),
        run: topic.run,
        record_bytes: plan.record_bytes,
        batch: plan.batch,
        batches_per_request: plan.args.batches_per_request,
        compression: plan.compression,
        producer: producer_config(plan),
        records_per_second_milli: rate_milli(plan),
        records_each: None,
        payload: payload_pool(plan)?,
        producers: plan.args.producers,
    })
}

fn consumer_settings(plan: &Plan, target: &Target, topic: &TopicSetup) -> ConsumerSettings {
    ConsumerSettings {
        client: target.client_config(),
        topic: topic.name.clone(),
        run: topic.run,
        begin: topic.begin.clone(),
        fetch_bytes: plan.fetch_bytes,
        records_per_second_milli: match (plan.args.workload, plan.pace) {
            (Workload::Consume, Pace::Open { records_per_second_milli }) => Some(records_per_second_milli),
            _ => None,
        },
        consumers: plan.args.consumers,
    }
}

/// Deals producers and readers out to the threads.
fn thread_plans(plan: &Plan, topic: &TopicSetup) -> Vec<ThreadPlan> {
    let threads = plan.args.threads as usize;
    let mut plans: Vec<ThreadPlan> = (0..threads)
        .map(|index| ThreadPlan {
            executor: executor_config(plan, index),
            producers: Vec::new(),
            consumers: Vec::new(),
        })
        .collect();
    for member in 0..plan.args.producers {
        plans[member as usize % threads].producers.push(member);
    }
    for member in 0..plan.args.consumers {
        let partitions = match plan.args.workload {
            Workload::E2e => share_of(&topic.partitions, member, plan.args.consumers),
            Workload::Produce | Workload::Consume => topic.partitions.clone(),
        };
        // Readers begin at the other end, so that with two threads producer 0 and reader 0 do not share one.
        plans[threads - 1 - member as usize % threads].consumers.push((member, partitions));
    }
    plans
}

fn share_of(partitions: &[Partition], member: u32, members: u32) -> Vec<Partition> {
    let own = partitions
        .iter()
        .enumerate()
        .filter(|(index, _)| *index as u64 % u64::from(members) == u64::from(member));
    own.map(|(_, partition)| *partition).collect()
}

/// Writes what `consume` is to read, as fast as the broker takes it.
fn preload(
    plan: &Plan,
    target: &Target,
    topic: &TopicSetup,
    interrupt: &Interrupt,
    progress: &mut Progress,
) -> Result<ProducerOutcome, BenchError> {
    let bytes = plan.preload_records as f64 * f64::from(plan.record_bytes);
    progress.phase(&format!("preloading {}", format_bytes(bytes)));
    let mut settings = producer_settings(plan, target, topic)?;
    settings.producers = 1;
    settings.records_per_second_milli = None;
    settings.records_each = Some(plan.preload_records);
    settings.producer.in_flight_max = settings.producer.in_flight_max.max(PRELOAD_BATCHES_IN_FLIGHT);
    let shared_state = ThreadShared {
        producer: Some(shared(settings)),
        consumer: None,
        reading: Reading::Follow,
        control: shared(Control::new(1)),
        live: shared(Live::default()),
    };
    let thread = ThreadPlan { executor: executor_config(plan, 0), producers: vec![0], consumers: Vec::new() };
    let threads = Threads::spawn(vec![thread], &shared_state)?;
    if threads.wait_until_ready(interrupt) {
        shared_state.control.start(Phases::unmeasured(monotonic_now()));
    }
    let control: &Arc<Control> = &shared_state.control;
    while !threads.have_ended() {
        std::thread::sleep(POLL);
        if interrupt.is_raised() {
            control.cancel();
            return Err(BenchError::Interrupted);
        }
    }
    let outcomes = threads.join()?;
    Ok(Collected::from(outcomes).producers)
}

fn sent_records(sent: &Sent) -> u64 {
    sent.values().map(|stream| stream.sent).sum()
}

/// Compares each reader of an end-to-end run with what was sent to its partitions.
fn verify_readers(collected: &Collected) -> (Verification, Vec<String>) {
    let mut total = Verification::default();
    let mut failures = Vec::new();
    for (partitions, reader) in &collected.each_reader {
        let sent: Sent = collected
            .producers
            .sent
            .iter()
            .filter(|((partition, _), _)| partitions.contains(partition))
            .map(|(key, stream)| (*key, stream.clone()))
            .collect();
        total.add(&reader.verifier.clone().finish(&sent));
        failures.extend(reader.failure.iter().map(|failure| format!("a reader ended early: {failure}")));
    }
    (total, failures)
}

/// Reads everything that a produce run wrote and compares.
fn verify_topic(
    plan: &Plan,
    target: &Target,
    topic: &TopicSetup,
    sent: &Sent,
    interrupt: &Interrupt,
) -> Result<Verification, BenchError> {
    block_on_with(executor_config(plan, 0), |io| async move {
        unless_interrupted(&io, interrupt, read_back(&io, plan, target, topic, sent)).await
    })?
}

async fn read_back(
    io: &Io,
    plan: &Plan,
    target: &Target,
    topic: &TopicSetup,
    sent: &Sent,
) -> Result<Verification, BenchError> {
    let client = target.connect(io).await?;
    let ends: BTreeMap<Partition, i64> =
        client.offsets(&topic.name, &topic.partitions, OffsetQuery::Latest).await?;
    let mut options = ReaderOptions::default();
    options.fetch.bytes_max = plan.fetch_bytes;
    options.fetch.partition_bytes_max = plan.fetch_bytes;
    let sink = MeasuringSink::new(topic.run, Arc::new(Live::default()));
    let reader = Reader::new(&client, &topic.name, topic.begin.clone(), options, sink);
    reader.set_ends(ends);
    reader.run().await?;
    Ok(reader.with_sink(MeasuringSink::take_verifier).finish(sent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::Measured;

    #[test]
    fn partitions_are_shared_out_without_gap_or_overlap() {
        let partitions: Vec<Partition> = (0..7).collect();
        let mut seen: Vec<Partition> = (0..3).flat_map(|member| share_of(&partitions, member, 3)).collect();
        seen.sort_unstable();
        assert_eq!(seen, partitions);
        assert_eq!(share_of(&partitions, 1, 3), [1, 4]);
    }

    #[test]
    fn sums_of_moved_records_count_both_directions() {
        let mut moved = Measured { records: 1, bytes: 10 };
        moved.add(Measured { records: 2, bytes: 20 });
        assert_eq!(moved, Measured { records: 3, bytes: 30 });
    }
}
