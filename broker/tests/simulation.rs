//! The broker on the simulation: real cores, real recovery and real clients in one thread, from one seed. The power goes
//! while they work, the node comes back with another number of cores, and every client's history is checked.
//!
//! `RINGLOG_SEED=7` runs that seed alone, `RINGLOG_SIM_LOG=1` shows what the broker logs in it, and
//! `RINGLOG_SEED_COUNT=1000` runs more than a test run has time for.

mod support;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ringlog_bench::client::{Client, ClientError};
use ringlog_io::sim::{Host, Outcome, UnsyncedData, World};
use ringlog_io::{Io, Priority};

use support::clients::{self, Fates, ProducerPlan, SharedHistory};
use support::history::Violation;
use support::node::{BootError, Node, Shape, boot, run};

/// Virtual time within which anything must be done that nothing hinders.
const PATIENCE: Duration = Duration::from_secs(60);
const PARTITIONS_MAX: u64 = 8;

/// What one seed showed.
#[derive(Debug, PartialEq)]
struct Run {
    violations: Vec<Violation>,
    trace_hash: u64,
    event_count: u64,
    sent: usize,
    acked: usize,
    read: usize,
    outages: u32,
    /// What was done to the node, for whoever looks into a failure.
    course: Vec<String>,
}

/// One seed's world.
struct Scene {
    world: World,
    broker: Host,
    clients: Host,
    history: SharedHistory,
    fates: Fates,
    partition_count: i32,
    stop: Rc<Cell<bool>>,
    busy: Rc<Cell<u32>>,
    outages: u32,
    course: RefCell<Vec<String>>,
}

impl Scene {
    fn new(seed: u64) -> Scene {
        let world = World::new(seed);
        let (broker, clients) = (world.host("broker"), world.host("clients"));
        let partition_count = 1 + (world.random_u64() % PARTITIONS_MAX) as i32;
        Scene {
            world,
            broker,
            clients,
            history: SharedHistory::default(),
            fates: Fates::default(),
            partition_count,
            stop: Rc::default(),
            busy: Rc::default(),
            outages: 0,
            course: RefCell::default(),
        }
    }

    fn below(&self, bound: u64) -> u64 {
        self.world.random_u64() % bound
    }

    fn note(&self, what: impl std::fmt::Display) {
        let since_start_us = self.world.now().as_nanos() / 1_000;
        self.course.borrow_mut().push(format!("{since_start_us} us: {what}"));
    }

    fn broken(&self, who: &str, reason: impl Into<String>) {
        self.history.borrow_mut().broken(Violation::Failed { who: who.to_owned(), reason: reason.into() });
    }

    fn shape(&self) -> Shape {
        let credits = [16, 64, 1024];
        Shape { core_count: 1 + self.below(3) as u32, mesh_credits: credits[self.below(3) as usize] }
    }

    /// Runs work of a client that must succeed; `None` (and a broken rule) if it did not.
    fn must<T: 'static, F>(&self, who: &str, work: impl FnOnce(Io, Client) -> F + 'static) -> Option<T>
    where
        F: Future<Output = Result<T, ClientError>>,
    {
        let io = self.clients.executor();
        let address = self.broker.address();
        let connected = io.clone();
        let result = run(&self.world, &io, PATIENCE, async move {
            let client = clients::connect(&connected, address).await?;
            work(connected, client).await
        });
        match result {
            Some(Ok(value)) => Some(value),
            Some(Err(error)) => {
                self.broken(who, error.to_string());
                None
            }
            None => {
                self.broken(who, format!("not done within {PATIENCE:?}"));
                None
            }
        }
    }

    /// Starts a client that works beside the others; what it ends with must not be an error.
    fn start<F>(&self, who: String, work: impl FnOnce(Io, Client) -> F + 'static)
    where
        F: Future<Output = Result<(), ClientError>>,
    {
        let io = self.clients.executor();
        let (address, history, busy) =
            (self.broker.address(), Rc::clone(&self.history), Rc::clone(&self.busy));
        busy.set(busy.get() + 1);
        let own = io.clone();
        io.spawn(Priority::Foreground, async move {
            let result = match clients::connect(&own, address).await {
                Ok(client) => work(own, client).await,
                Err(error) => Err(error),
            };
            if let Err(error) = result {
                history.borrow_mut().broken(Violation::Failed { who, reason: error.to_string() });
            }
            busy.set(busy.get() - 1);
        })
        .detach();
    }

    fn start_clients(&self) {
        let large = self.below(3) == 0;
        let pauses = [2, 20, 400];
        for number in 0..2 + self.below(3) as u32 {
            let plan = ProducerPlan {
                number,
                is_idempotent: number % 2 == 0,
                partition_count: self.partition_count,
                records_per_batch_max: 1 + self.below(4),
                padding_bytes_max: if large { 16_000 } else { 200 },
                pause_ms_max: pauses[self.below(3) as usize],
            };
            let (history, stop) = (Rc::clone(&self.history), Rc::clone(&self.stop));
            self.start(format!("producer {number}"), move |io, client| {
                clients::produce(io, client, plan, history, stop)
            });
        }
        let (fates, history, stop) =
            (Rc::clone(&self.fates), Rc::clone(&self.history), Rc::clone(&self.stop));
        self.start("topics".to_owned(), move |io, client| clients::churn(io, client, fates, history, stop));
    }

    /// Readers go on until they have read what was there when `ends` was told to them.
    fn start_readers(&self) -> Vec<Rc<RefCell<Option<clients::TopicReader>>>> {
        let mut readers = Vec::new();
        for number in 0..2 + self.below(2) as u32 {
            let slot = Rc::new(RefCell::new(None));
            readers.push(Rc::clone(&slot));
            let (history, partition_count) = (Rc::clone(&self.history), self.partition_count);
            self.start(format!("reader {number}"), async move |_, client: Client| {
                let reader = clients::reader(&client, number, partition_count, &history);
                *slot.borrow_mut() = Some(reader.clone());
                reader.run().await
            });
        }
        readers
    }

    /// The node goes down, by its own will or not, and comes back. `None` if it did not come back.
    fn outage(&mut self, node: Node) -> Option<Node> {
        self.outages += 1;
        self.history.borrow_mut().down(self.world.now().as_nanos());
        if self.below(4) == 0 {
            self.note("stop");
            if !node.stop(&self.world, PATIENCE) {
                self.broken("stop", "the node did not end");
            }
            // What a clean stop left unsynced would be lost now.
            self.broker.crash_with(UnsyncedData::Lost);
        } else {
            let unsynced = self.broker.crash();
            self.note(format!("crash, unsynced data {unsynced:?}"));
        }
        if let Some(reason) = node.failure() {
            self.broken("core", reason);
        }
        drop(node);
        let mut crashes_left = self.below(3);
        loop {
            let hurried = crashes_left > 0 && self.below(2) == 0;
            let limit = if hurried { Duration::from_micros(self.below(60_000)) } else { PATIENCE };
            let shape = self.shape();
            match boot(&self.world, &self.broker, shape, limit) {
                Ok(node) => {
                    self.note(format!("serves with {shape:?}"));
                    self.history.borrow_mut().up(self.world.now().as_nanos());
                    return Some(node);
                }
                Err(BootError::TimedOut) if hurried => {
                    crashes_left -= 1;
                    self.note(format!("crash while starting with {shape:?}"));
                    self.broker.crash();
                }
                Err(error) => {
                    self.broken("start", format!("{shape:?}: {error}"));
                    return None;
                }
            }
        }
    }

    fn finish(self) -> Run {
        let history = self.history.borrow();
        Run {
            violations: history.check(),
            trace_hash: self.world.trace_hash(),
            event_count: self.world.event_count(),
            sent: history.sent_count(),
            acked: history.acked_count(),
            read: history.read_count(),
            outages: self.outages,
            course: self.course.take(),
        }
    }

    fn play(&mut self) -> Option<()> {
        let shape = self.shape();
        let mut node = match boot(&self.world, &self.broker, shape, PATIENCE) {
            Ok(node) => {
                self.note(format!("serves {} partitions with {shape:?}", self.partition_count));
                node
            }
            Err(error) => {
                self.broken("first start", error.to_string());
                return None;
            }
        };
        let partition_count = self.partition_count;
        self.must("topic", async move |_, client: Client| {
            clients::create_topic(&client, clients::TOPIC, partition_count).await
        })?;
        let readers = self.start_readers();
        self.start_clients();
        for _ in 0..1 + self.below(3) {
            self.world.run_for(Duration::from_millis(5 + self.below(250)));
            node = self.outage(node)?;
        }
        // Promptness shows only when the last outage is a while ago, which is cheap where little is sent.
        let calm_ms = if self.below(3) == 0 { 2_500 } else { 300 };
        self.world.run_for(Duration::from_millis(self.below(calm_ms)));
        self.note("producers stop");
        self.stop.set(true);
        let readers_left = readers.len() as u32;
        if self.world.run_until(|| self.busy.get() <= readers_left, PATIENCE) != Outcome::Done {
            self.broken("producers", "not done in time");
        }
        let ends =
            self.must("ends", async move |_, client: Client| clients::ends(&client, partition_count).await)?;
        for reader in readers {
            if let Some(reader) = &*reader.borrow() {
                reader.set_ends(ends.clone());
            }
        }
        if self.world.run_until(|| self.busy.get() == 0, PATIENCE) != Outcome::Done {
            self.broken("readers", "not done in time");
        }
        node = self.outage(node)?;
        let history = Rc::clone(&self.history);
        self.must("last reader", move |_, client| clients::read_all(client, partition_count, history))?;
        let (fates, history) = (Rc::clone(&self.fates), Rc::clone(&self.history));
        self.must("last look", move |_, client| clients::check_topics(client, fates, history))?;
        if let Some(reason) = node.failure() {
            self.broken("core", reason);
        }
        Some(())
    }
}

fn run_seed(seed: u64) -> Run {
    CURRENT_SEED.set(Some(seed));
    let mut scene = Scene::new(seed);
    scene.play();
    let run = scene.finish();
    CURRENT_SEED.set(None);
    run
}

thread_local! {
    static CURRENT_SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// A panic inside a run says how to see it again; the broker's log is shown if asked for.
fn prepare_output() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("RINGLOG_SIM_LOG").is_some() {
            tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false).init();
        }
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if let Some(seed) = CURRENT_SEED.get() {
                eprintln!("this panic comes back with RINGLOG_SEED={seed}");
            }
            previous(panic);
        }));
    });
}

fn number_of(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}

fn seeds(from: u64, count: u64) -> Vec<u64> {
    prepare_output();
    match number_of("RINGLOG_SEED") {
        Some(seed) => vec![seed],
        None => (from..from + number_of("RINGLOG_SEED_COUNT").unwrap_or(count)).collect(),
    }
}

#[cfg(not(feature = "planted-early-ack"))]
mod sound {
    use super::*;

    /// Seeds of one test run.
    const SEED_COUNT: u64 = 8;

    fn check_seeds(seeds: Vec<u64>) {
        let (mut acked, mut read, mut events) = (0, 0, 0);
        for seed in seeds {
            let run = run_seed(seed);
            let shown: Vec<_> = run.violations.iter().take(10).collect();
            let count = run.violations.len();
            assert!(
                count == 0,
                "RINGLOG_SEED={seed}: {count} broken rules, first {shown:#?}
{:#?}",
                run.course
            );
            assert!(run.outages >= 2, "RINGLOG_SEED={seed}: {run:?}");
            (acked, read, events) = (acked + run.acked, read + run.read, events + run.event_count);
        }
        println!("{acked} records acknowledged, {read} read before the last reader, {events} events");
        assert!(acked > 0 && read > 0, "the workload does nothing");
    }

    #[test]
    fn what_was_acknowledged_survives_power_cuts_in_order_and_once() {
        check_seeds(seeds(1, SEED_COUNT / 2));
    }

    /// The other half of the seeds, for a machine with two processors.
    #[test]
    fn what_was_acknowledged_survives_power_cuts_in_order_and_once_too() {
        check_seeds(seeds(1_001, SEED_COUNT / 2));
    }

    /// A fetch waits for partitions of two cores, and one of them gets records at the moment at which the other is asked.
    #[test]
    fn a_long_poll_over_two_cores_is_woken_by_either() {
        for seed in seeds(1, 3) {
            CURRENT_SEED.set(Some(seed));
            let mut scene = Scene::new(seed);
            scene.partition_count = 2;
            let shape = Shape { core_count: 2, mesh_credits: 1024 };
            let _node = boot(&scene.world, &scene.broker, shape, PATIENCE).expect("an empty disk");
            scene.must("topic", async |_, client: Client| {
                clients::create_topic(&client, clients::TOPIC, 2).await
            });
            let history = Rc::clone(&scene.history);
            scene.start("reader".to_owned(), async move |_, client: Client| {
                clients::reader(&client, 0, 2, &history).run().await
            });
            let plan = ProducerPlan {
                number: 0,
                is_idempotent: true,
                partition_count: 2,
                records_per_batch_max: 1,
                padding_bytes_max: 10,
                pause_ms_max: 0,
            };
            let history = Rc::clone(&scene.history);
            scene.start("pairs".to_owned(), move |io, client| {
                clients::send_pairs(io, client, plan, history, 100)
            });
            assert_eq!(scene.world.run_until(|| scene.busy.get() == 1, PATIENCE * 10), Outcome::Done);
            let history = Rc::clone(&scene.history);
            scene.must("last reader", move |_, client| clients::read_all(client, 2, history));
            assert_eq!(scene.history.borrow().check(), [], "RINGLOG_SEED={seed}");
        }
    }

    #[test]
    fn one_seed_gives_one_run_of_the_broker() {
        for seed in seeds(1, 2) {
            let (first, second) = (run_seed(seed), run_seed(seed));
            assert_eq!(first, second, "RINGLOG_SEED={seed}: two runs of one seed differ");
        }
        assert_ne!(run_seed(1).trace_hash, run_seed(2).trace_hash, "the seed has no effect");
    }
}

/// Acknowledging before the journal write has ended must not go unnoticed.
#[cfg(feature = "planted-early-ack")]
#[test]
fn an_acknowledgement_before_the_journal_write_is_caught_within_ten_seeds() {
    let is_loss = |violation: &Violation| matches!(violation, Violation::LostWrite { .. });
    let caught: Vec<u64> =
        seeds(1, 10).into_iter().filter(|seed| run_seed(*seed).violations.iter().any(is_loss)).collect();
    println!("the early acknowledgement was caught by seeds {caught:?}");
    assert!(!caught.is_empty(), "no lost write in ten seeds, although writes are acknowledged too early");
}
