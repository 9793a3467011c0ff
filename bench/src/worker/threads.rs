//! The generator's threads: each runs one executor with its share of producers and readers.
//!
//! All connect first; the load begins when every thread is ready, and one that fails ends the run for all.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use ringlog_io::{ExecutorConfig, Io, Monotonic, Priority};

use super::consumer::{ConsumerOutcome, ConsumerSettings, ConsumerWorker};
use super::producer::{ProducerOutcome, ProducerSettings, ProducerWorker};
use crate::error::BenchError;
use crate::interrupt::Interrupt;
use crate::live::{Control, Live, Phases};
use crate::runtime::block_on_with;
use crate::verify::{Partition, Sent};

/// How often a thread that is ready looks for the start.
const START_POLL: Duration = Duration::from_millis(1);
/// How often the main thread looks for signals.
const MAIN_POLL: Duration = Duration::from_millis(50);

/// What readers do.
#[derive(Clone)]
pub enum Reading {
    /// Follow the producers to the end of the run.
    Follow,
    /// Read the topic, whose records are these, again and again.
    Repeat(Arc<Sent>),
}

/// What one thread carries.
#[derive(Clone)]
pub struct ThreadPlan {
    /// Its executor.
    pub executor: ExecutorConfig,
    /// Numbers of its producers.
    pub producers: Vec<u32>,
    /// Numbers of its readers and their partitions.
    pub consumers: Vec<(u32, Vec<Partition>)>,
}

/// What all threads share.
#[derive(Clone)]
pub struct ThreadShared {
    /// Of every producer.
    pub producer: Option<Arc<ProducerSettings>>,
    /// Of every reader.
    pub consumer: Option<Arc<ConsumerSettings>>,
    /// What readers do.
    pub reading: Reading,
    /// Start and stop.
    pub control: Arc<Control>,
    /// Counters.
    pub live: Arc<Live>,
}

/// What one thread found.
#[derive(Default)]
pub struct ThreadOutcome {
    /// Its producers together.
    pub producers: ProducerOutcome,
    /// Its readers, one by one, with their partitions.
    pub consumers: Vec<(Vec<Partition>, ConsumerOutcome)>,
    /// Share of the measured time in which its loop did not sleep, 0.0..=1.0.
    pub busy: f64,
    /// The driver that it ran on.
    pub driver: &'static str,
}

/// Running threads.
pub struct Threads {
    handles: Vec<JoinHandle<Result<ThreadOutcome, BenchError>>>,
    ready: Receiver<()>,
    control: Arc<Control>,
}

impl Threads {
    /// Starts one thread for each plan; they connect at once.
    ///
    /// # Errors
    /// The machine refuses a thread.
    pub fn spawn(plans: Vec<ThreadPlan>, shared: &ThreadShared) -> Result<Threads, BenchError> {
        let (sender, ready) = mpsc::channel();
        let mut handles = Vec::new();
        for (index, plan) in plans.into_iter().enumerate() {
            let (shared, sender) = (shared.clone(), sender.clone());
            let handle = std::thread::Builder::new()
                .name(format!("bench-{index}"))
                .spawn(move || {
                    let control = shared.control.clone();
                    let executor = plan.executor.clone();
                    let result = block_on_with(executor, |io| run_thread(io, plan, shared, sender));
                    let result = result.map_err(BenchError::from).and_then(|outcome| outcome);
                    if result.is_err() {
                        control.cancel();
                    }
                    result
                })
                .map_err(|source| BenchError::local("cannot start a thread", source))?;
            handles.push(handle);
        }
        Ok(Threads { handles, ready, control: shared.control.clone() })
    }

    /// Waits until every thread has connected. False when one has ended instead; its error comes from
    /// [`Threads::join`].
    pub fn wait_until_ready(&self, interrupt: &Interrupt) -> bool {
        let mut missing = self.handles.len();
        while missing > 0 {
            match self.ready.recv_timeout(MAIN_POLL) {
                Ok(()) => missing -= 1,
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if interrupt.is_raised() || self.control.is_cancelled() {
                self.control.cancel();
                return false;
            }
        }
        true
    }

    /// Whether all threads have ended.
    pub fn have_ended(&self) -> bool {
        self.handles.iter().all(JoinHandle::is_finished)
    }

    /// Waits for the ends and returns what was found.
    ///
    /// # Errors
    /// The first thread's error.
    pub fn join(self) -> Result<Vec<ThreadOutcome>, BenchError> {
        let mut outcomes = Vec::new();
        let mut first_error = None;
        for handle in self.handles {
            match handle.join() {
                Ok(Ok(outcome)) => outcomes.push(outcome),
                Ok(Err(error)) => {
                    first_error.get_or_insert(error);
                }
                Err(_) => {
                    first_error
                        .get_or_insert(BenchError::Thread { reason: "it panicked; see above".to_owned() });
                }
            }
        }
        first_error.map_or(Ok(outcomes), Err)
    }
}

async fn run_thread(
    io: Io,
    plan: ThreadPlan,
    shared: ThreadShared,
    ready: Sender<()>,
) -> Result<ThreadOutcome, BenchError> {
    let mut producers = Vec::new();
    if let Some(settings) = &shared.producer {
        for member in &plan.producers {
            let worker = ProducerWorker::connect(
                &io,
                settings.clone(),
                *member,
                shared.control.clone(),
                shared.live.clone(),
            );
            producers.push(worker.await?);
        }
    }
    let mut consumers = Vec::new();
    if let Some(settings) = &shared.consumer {
        for (member, partitions) in plan.consumers {
            let (control, live) = (shared.control.clone(), shared.live.clone());
            let worker =
                ConsumerWorker::connect(&io, settings.clone(), member, partitions.clone(), control, live);
            consumers.push((partitions, worker.await?));
        }
    }
    // Nobody listening means that the run was given up; the control says so as well.
    let _ = ready.send(());
    let Some(phases) = wait_for_start(&io, &shared.control).await else {
        return Err(BenchError::Interrupted);
    };
    let busy = io.spawn(Priority::Foreground, measure_busy(io.clone(), phases));
    let mut outcome = run_workers(&io, &shared, phases, producers, consumers).await?;
    // A run that was cancelled ends before the measured time does; a preload has none.
    let has_figure = phases.has_measurement() && !shared.control.is_cancelled();
    outcome.busy = if has_figure { busy.await } else { 0.0 };
    outcome.driver = io.driver_name();
    Ok(outcome)
}

async fn wait_for_start(io: &Io, control: &Control) -> Option<Phases> {
    loop {
        if control.is_cancelled() {
            return None;
        }
        if let Some(phases) = control.phases() {
            return Some(phases);
        }
        io.sleep(START_POLL).await;
    }
}

async fn run_workers(
    io: &Io,
    shared: &ThreadShared,
    phases: Phases,
    producers: Vec<ProducerWorker>,
    consumers: Vec<(Vec<Partition>, ConsumerWorker)>,
) -> Result<ThreadOutcome, BenchError> {
    let mut outcome = ThreadOutcome::default();
    let reading: Vec<_> = consumers
        .into_iter()
        .map(|(partitions, worker)| {
            let reading = shared.reading.clone();
            let task = io.spawn(Priority::Foreground, async move {
                match reading {
                    Reading::Follow => worker.follow(phases).await,
                    Reading::Repeat(sent) => {
                        worker.read_over_and_over(phases, Rc::new((*sent).clone())).await
                    }
                }
            });
            (partitions, task)
        })
        .collect();
    let producing: Vec<_> =
        producers.into_iter().map(|worker| io.spawn(Priority::Foreground, worker.run(phases))).collect();
    for task in producing {
        let result = task.await.inspect_err(|_| shared.control.cancel());
        outcome.producers.merge(result?);
    }
    for (partitions, task) in reading {
        let result = task.await.inspect_err(|_| shared.control.cancel());
        outcome.consumers.push((partitions, result?));
    }
    Ok(outcome)
}

/// The share of the measured time in which this thread's loop did not sleep.
async fn measure_busy(io: Io, phases: Phases) -> f64 {
    io.sleep_until(Monotonic(phases.measure_start)).await;
    let (began, before) = (io.monotonic_now(), io.stats().busy_ns);
    io.sleep_until(Monotonic(phases.measure_end)).await;
    let elapsed = io.monotonic_now().saturating_since(began).as_nanos() as f64;
    let busy = io.stats().busy_ns.saturating_sub(before) as f64;
    if elapsed > 0.0 { (busy / elapsed).clamp(0.0, 1.0) } else { 0.0 }
}
