//! `bench history`: clients that write down what they sent, were answered and read, against any Kafka broker.
//!
//! Producers and consumers go on over restarts of the broker for as long as the run lasts; each operation becomes a line
//! of the history when it ends. Whether the history is sound is not decided here: `bench verify` does that.
//!
//! Reading order: [`payload`] (bytes of a value), [`outcome`] (which error leaves what open), [`recorder`] (the file),
//! [`producer`], [`consumer`], [`finale`] (the read of everything at the end).

pub mod consumer;
pub mod finale;
pub mod outcome;
pub mod payload;
pub mod producer;
pub mod recorder;

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use clap::Args as ClapArgs;
use ringlog_io::{Io, Monotonic, Priority};
use ringlog_protocol::error_code::ErrorCode;

use crate::client::address::{BrokerAddress, parse_bootstrap};
use crate::client::admin::NewTopic;
use crate::client::connection::ConnectionConfig;
use crate::client::{Client, ClientConfig, ClientError};
use crate::error::{BenchError, EXIT_FAILURE};
use crate::history::operation::Key;
use crate::interrupt::Interrupt;
use crate::random::SeededRandom;
use crate::runtime::block_on;
use crate::units::{parse_bytes, parse_duration};
use recorder::Recorder;

/// How often a task looks whether it should end, and how long it waits for a broker that is not there.
pub const POLL: Duration = Duration::from_millis(5);
/// Topic metadata is asked for once; whoever needs it tries again by itself.
const METADATA_TIMEOUT: Duration = Duration::from_millis(1);
/// Numbers of consumers begin here, those of producers at 0.
pub const FIRST_CONSUMER: u64 = 1_000;
/// The process that reads everything at the end.
pub const FINAL_READER: u64 = 9_999;

const AFTER_HELP: &str = "\
On standard output: one JSON line when the clients start, one at the end. SIGINT or SIGTERM ends the load early; the \
final sends and the final read follow all the same (a second signal ends at once). The format: verify --schema.

Exit codes: 0 the history is written and everything was read to its end, 1 it was not, 2 wrong usage.";

/// Send and read unique values and write down what happened, for `verify`.
///
/// Which producers are idempotent, their acks, window and codec, sizes of records, seeks and dropped clients all follow
/// from the seed. One send in 64 is damaged on purpose and must be refused.
#[derive(Clone, Debug, ClapArgs)]
#[command(after_help = AFTER_HELP)]
pub struct HistoryArgs {
    /// Broker addresses, HOST:PORT, separated by commas.
    #[arg(short = 'b', long, value_name = "LIST")]
    pub bootstrap_server: String,
    /// Where the history goes; an existing file is replaced.
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Topic; a missing one is created. Nobody else may write to it.
    #[arg(short, long, default_value = "history", value_name = "NAME")]
    pub topic: String,
    /// Partitions of the topic when it is created.
    #[arg(short, long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub partitions: u32,
    /// Producers.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=900))]
    pub producers: u32,
    /// Consumers, each with partitions assigned by hand.
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=900))]
    pub consumers: u32,
    /// How long the load lasts.
    #[arg(short, long, default_value = "10s", value_name = "TIME")]
    pub duration: String,
    /// Batches a second of all producers; fewer when the broker is not there.
    #[arg(long, default_value_t = 400, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// The largest record; most are below 200 bytes.
    #[arg(long, default_value = "96KiB", value_name = "SIZE")]
    pub record_size_max: String,
    /// How long the final sends and the final read may go without progress.
    #[arg(long, default_value = "10s", value_name = "TIME")]
    pub patience: String,
    /// Seed of everything that is drawn.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
}

/// Checked arguments.
#[derive(Clone, Debug)]
pub struct Load {
    /// Where to connect.
    pub bootstrap: Vec<BrokerAddress>,
    /// The topic.
    pub topic: String,
    /// How many partitions it has.
    pub partitions: u32,
    /// How many producers.
    pub producers: u32,
    /// How many consumers.
    pub consumers: u32,
    /// Of the load.
    pub duration: Duration,
    /// Between two batches of one producer.
    pub interval: Duration,
    /// Bytes of the largest record.
    pub record_bytes_max: usize,
    /// Of the end.
    pub patience: Duration,
    /// Of everything.
    pub seed: u64,
}

impl Load {
    /// Checks the arguments.
    ///
    /// # Errors
    /// [`BenchError::Usage`] naming the option.
    pub fn new(args: &HistoryArgs) -> Result<Load, BenchError> {
        let usage = |option: &'static str| move |reason: String| BenchError::Usage { option, reason };
        let time =
            |option, text: &str| parse_duration(text).map_err(|error| usage(option)(error.to_string()));
        let bootstrap = parse_bootstrap(&args.bootstrap_server)
            .map_err(|error| usage("--bootstrap-server")(error.to_string()))?;
        let record_bytes = parse_bytes(&args.record_size_max)
            .map_err(|error| usage("--record-size-max")(error.to_string()))?;
        let record_bytes_max = usize::try_from(record_bytes)
            .ok()
            .filter(|bytes| (payload::BYTES_MIN..=payload::BYTES_MAX).contains(bytes))
            .ok_or_else(|| {
                let reason =
                    format!("{record_bytes} is outside {}..={}", payload::BYTES_MIN, payload::BYTES_MAX);
                usage("--record-size-max")(reason)
            })?;
        let interval = Duration::from_secs(1) * args.producers / args.rate;
        Ok(Load {
            bootstrap,
            topic: args.topic.clone(),
            partitions: args.partitions,
            producers: args.producers,
            consumers: args.consumers,
            duration: time("--duration", &args.duration)?,
            interval,
            record_bytes_max,
            patience: time("--patience", &args.patience)?,
            seed: args.seed,
        })
    }

    /// A client that gives up nothing and waits for nobody.
    pub fn client_config(&self) -> ClientConfig {
        ClientConfig {
            connection: ConnectionConfig {
                client_id: "ringlog-history".to_owned(),
                connect_timeout: Duration::from_secs(2),
                request_timeout: self.patience,
                ..ConnectionConfig::default()
            },
            metadata_timeout: METADATA_TIMEOUT,
            ..ClientConfig::new(self.bootstrap.clone())
        }
    }
}

/// What the tasks of one run share.
pub struct Shared {
    /// The executor.
    pub io: Io,
    /// What is asked for.
    pub load: Load,
    /// The file.
    pub recorder: Recorder,
    /// Set when the load ends.
    pub is_over: Cell<bool>,
    /// Values handed out.
    next_value: Cell<u64>,
    /// Offsets behind acknowledged records, by partition.
    pub acknowledged_ends: RefCell<Vec<i64>>,
}

impl Shared {
    /// Values that nobody had before.
    pub fn take_values(&self, count: u64) -> Vec<u64> {
        let first = self.next_value.get();
        self.next_value.set(first + count);
        (first..first + count).collect()
    }

    /// The history's name of a partition.
    pub fn key(partition: i32) -> Key {
        Key { topic: String::new(), partition }
    }

    /// Generator of the task `number`.
    pub fn random(&self, number: u64) -> SeededRandom {
        SeededRandom::new(crate::random::mix(self.load.seed ^ (number << 32)))
    }

    /// A connected client, however long that takes; `None` when the load ends first.
    pub async fn connect(&self) -> Option<Client> {
        while !self.is_over.get() {
            match Client::connect(&self.io, self.load.client_config()).await {
                Ok(client) => return Some(client),
                Err(_) => self.io.sleep(POLL).await,
            }
        }
        None
    }
}

/// Runs the load and the final read. See [`HistoryArgs`] for exit codes.
pub fn run(args: &HistoryArgs) -> ExitCode {
    let result = Load::new(args).and_then(|load| {
        let interrupt =
            Interrupt::install().map_err(|source| BenchError::local("cannot handle signals", source))?;
        let recorder = Recorder::create(&args.out)
            .map_err(|source| BenchError::local(format!("cannot write {}", args.out.display()), source))?;
        block_on(|io| execute(io, load, recorder, interrupt))?
    });
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(EXIT_FAILURE),
        Err(error) => {
            eprintln!("ringlog bench history: {error}");
            error.exit_code()
        }
    }
}

/// Load, then the end; whether everything was read to its end.
///
/// # Errors
/// No topic at the start, or the history cannot be written.
pub async fn execute(
    io: Io,
    load: Load,
    recorder: Recorder,
    interrupt: Interrupt,
) -> Result<bool, BenchError> {
    let topic_id = prepare_topic(&io, &load).await?;
    say(&serde_json::json!({"ready": true, "topic": load.topic, "topic_id": topic_id}));
    let ends = vec![0; load.partitions as usize];
    let shared = Rc::new(Shared {
        io: io.clone(),
        recorder,
        is_over: Cell::new(false),
        next_value: Cell::new(1),
        acknowledged_ends: RefCell::new(ends),
        load,
    });
    let mut producers = Vec::new();
    for number in 0..u64::from(shared.load.producers) {
        producers.push(io.spawn(Priority::Foreground, producer::run(shared.clone(), number)));
    }
    let mut consumers = Vec::new();
    for number in 0..u64::from(shared.load.consumers) {
        consumers
            .push(io.spawn(Priority::Foreground, consumer::run(shared.clone(), FIRST_CONSUMER + number)));
    }
    let ends_at = io.monotonic_now() + shared.load.duration;
    while io.monotonic_now() < ends_at && !interrupt.is_raised() && !shared.recorder.has_failed() {
        io.sleep(POLL).await;
    }
    shared.is_over.set(true);
    for task in producers.into_iter().chain(consumers) {
        task.await;
    }
    let found = finale::run(&shared).await;
    shared.recorder.finish().map_err(|source| BenchError::local("cannot write the history", source))?;
    say(&serde_json::json!({
        "operations": shared.recorder.lines(),
        "unread": found.unread,
        "errors": found.errors,
    }));
    Ok(found.unread.is_empty())
}

/// A line for whoever started us; nobody may be listening.
fn say(value: &serde_json::Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{value}").and_then(|()| out.flush());
}

async fn prepare_topic(io: &Io, load: &Load) -> Result<String, BenchError> {
    let deadline = io.monotonic_now() + load.patience;
    loop {
        match try_prepare_topic(io, load).await {
            Ok(id) => return Ok(id),
            Err(error) if error.is_retriable() && io.monotonic_now() < deadline => io.sleep(POLL).await,
            Err(error) => return Err(error.into()),
        }
    }
}

async fn try_prepare_topic(io: &Io, load: &Load) -> Result<String, ClientError> {
    let client = Client::connect(io, load.client_config()).await?;
    let partitions = i32::try_from(load.partitions).unwrap_or(i32::MAX);
    let topic = NewTopic { name: &load.topic, partitions, replication_factor: -1, configs: Vec::new() };
    match client.create_topic(&topic).await {
        Err(error) if error.code() != Some(ErrorCode::TopicAlreadyExists) => return Err(error),
        _ => {}
    }
    let image = client.topic(&load.topic).await?;
    Ok(image.id.to_string())
}

/// Nanoseconds of the history's clock.
pub fn nanoseconds(at: Monotonic) -> u64 {
    at.as_nanos()
}
