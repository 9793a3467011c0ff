//! Before the load: which broker, which machine, which topic.

use std::collections::BTreeMap;
use std::time::Duration;

use ringlog_io::{ExecutorConfig, Io};
use ringlog_protocol::error_code::ErrorCode;

use crate::args::{Pace, Plan, Workload};
use crate::client::address::BrokerAddress;
use crate::client::admin::{NewTopic, OffsetQuery};
use crate::client::producer::ProducerConfig;
use crate::client::{Client, ClientConfig};
use crate::error::BenchError;
use crate::interrupt::Interrupt;
use crate::live::{Progress, monotonic_now};
use crate::local_broker::LocalBroker;
use crate::payload::{PAYLOAD_FILE_BYTES_MAX, PayloadKind, PayloadPool};
use crate::process::{Machine, sample_process};
use crate::random::mix;
use crate::record::{KEY_BYTES, VALUE_HEADER_BYTES};
use crate::verify::Partition;

/// Answers are given this long; a broker that stalls longer fails the run.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Sends are given up after this long.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(60);

/// The broker under load.
pub struct Target {
    /// Where to connect.
    pub bootstrap: Vec<BrokerAddress>,
    /// The broker's process on this machine, where known.
    pub pid: Option<u32>,
    /// This machine.
    pub machine: Machine,
    local: Option<LocalBroker>,
}

impl Target {
    /// Finds or starts the broker.
    ///
    /// # Errors
    /// A temporary broker that does not start, a `--broker-pid` that names no process.
    pub fn prepare(plan: &Plan, interrupt: &Interrupt, progress: &Progress) -> Result<Target, BenchError> {
        let machine = Machine::read();
        if let Some(pid) = plan.args.broker_pid {
            sample_process(pid).map_err(|error| BenchError::BrokerProcess {
                pid,
                reason: format!("no such process here ({error})"),
            })?;
        }
        let (bootstrap, local) = match &plan.bootstrap {
            Some(bootstrap) => (bootstrap.clone(), None),
            None => {
                progress.phase("starting a temporary broker in the current directory");
                let broker =
                    LocalBroker::start(plan.args.broker_cpuset.as_deref(), &plan.args.broker_arg, interrupt)?;
                (vec![broker.address().clone()], Some(broker))
            }
        };
        let pid = plan.args.broker_pid.or_else(|| local.as_ref().map(LocalBroker::pid));
        Ok(Target { bootstrap, pid, machine, local })
    }

    /// Whether it was started for this run.
    pub fn is_temporary(&self) -> bool {
        self.local.is_some()
    }

    /// The addresses as text.
    pub fn bootstrap_text(&self) -> String {
        self.bootstrap.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    /// How every client of the run connects.
    pub fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new(self.bootstrap.clone());
        config.connection.client_id = "ringlog-bench".to_owned();
        config.connection.request_timeout = REQUEST_TIMEOUT;
        config
    }

    /// A client for administration.
    ///
    /// # Errors
    /// The broker cannot be reached.
    pub async fn connect(&self, io: &Io) -> Result<Client, BenchError> {
        Ok(Client::connect(io, self.client_config()).await?)
    }
}

/// The topic under load.
pub struct TopicSetup {
    /// Its name.
    pub name: String,
    /// Its partitions.
    pub partitions: Vec<Partition>,
    /// Where each began before the run.
    pub begin: BTreeMap<Partition, i64>,
    /// Made by this run, so that this run deletes it.
    pub is_ours: bool,
    /// The cluster.
    pub cluster_id: Option<String>,
    /// Names the run in its records.
    pub run: u32,
}

impl TopicSetup {
    /// Creates the topic, or takes the one that exists.
    ///
    /// # Errors
    /// The broker refuses.
    pub async fn prepare(io: &Io, plan: &Plan, target: &Target) -> Result<TopicSetup, BenchError> {
        let client = target.connect(io).await?;
        let run = (mix(monotonic_now() ^ u64::from(std::process::id()) << 40) >> 32) as u32;
        let name = plan.args.topic.clone().unwrap_or_else(|| format!("ringlog-bench-{run:08x}"));
        let configs = plan.topic_configs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let topic = NewTopic {
            name: &name,
            partitions: i32::try_from(plan.args.partitions).unwrap_or(i32::MAX),
            replication_factor: plan.args.replication_factor,
            configs,
        };
        let created = match client.create_topic(&topic).await {
            Ok(()) => true,
            Err(error)
                if plan.args.topic.is_some() && error.code() == Some(ErrorCode::TopicAlreadyExists) =>
            {
                false
            }
            Err(error) => return Err(error.into()),
        };
        // The topic that the user named stays, also when this run made it.
        let is_ours = created && plan.args.topic.is_none();
        let described = describe(&client, &name, plan).await;
        if described.is_err() && is_ours {
            // Of two errors the first one says more.
            let _ = client.delete_topic(&name).await;
        }
        let (partitions, begin) = described?;
        Ok(TopicSetup { name, partitions, begin, is_ours, cluster_id: client.cluster_id(), run })
    }
}

/// The topic's partitions, and where the run begins in each.
async fn describe(
    client: &Client,
    name: &str,
    plan: &Plan,
) -> Result<(Vec<Partition>, BTreeMap<Partition, i64>), BenchError> {
    let image = client.topic(name).await?;
    let partitions: Vec<Partition> = image.partitions.keys().copied().collect();
    // A run without preload reads what is there; every other run begins behind it.
    let reads_all = plan.args.workload == Workload::Consume && plan.preload_records == 0;
    let query = if reads_all { OffsetQuery::Earliest } else { OffsetQuery::Latest };
    let begin = client.offsets(name, &partitions, query).await?;
    Ok((partitions, begin))
}

/// The executor of generator thread `index`.
pub fn executor_config(plan: &Plan, index: usize) -> ExecutorConfig {
    let pin = if plan.pin.is_empty() { None } else { plan.pin.get(index % plan.pin.len()).copied() };
    ExecutorConfig { driver: plan.args.io_driver.into(), pin, ..ExecutorConfig::default() }
}

/// The sender of every producer.
pub fn producer_config(plan: &Plan) -> ProducerConfig {
    ProducerConfig {
        acks: plan.args.acks,
        is_idempotent: plan.is_idempotent,
        in_flight_max: plan.in_flight().max(plan.args.batches_per_request as usize),
        in_flight_per_partition_max: plan.in_flight_per_partition(),
        lanes: plan.args.connections,
        request_timeout: REQUEST_TIMEOUT,
        delivery_timeout: DELIVERY_TIMEOUT,
        ..ProducerConfig::default()
    }
}

/// The offered rate in thousandths of a record a second; `None` without one.
pub fn rate_milli(plan: &Plan) -> Option<u64> {
    match plan.pace {
        Pace::Open { records_per_second_milli } => Some(records_per_second_milli),
        Pace::Closed { .. } | Pace::Unbounded => None,
    }
}

/// The bytes that payloads are cut from.
///
/// # Errors
/// A payload file that cannot be read.
pub fn payload_pool(plan: &Plan) -> Result<PayloadPool, BenchError> {
    let payload_bytes = plan.record_bytes as usize - KEY_BYTES - VALUE_HEADER_BYTES;
    let file = match &plan.args.payload {
        PayloadKind::File(path) => read_start(path)?,
        PayloadKind::Random | PayloadKind::Ratio(_) => Vec::new(),
    };
    Ok(PayloadPool::new(&plan.args.payload, plan.args.seed, payload_bytes, &file))
}

fn read_start(path: &str) -> Result<Vec<u8>, BenchError> {
    use std::io::Read;
    let failed = |source| BenchError::local(format!("cannot read the payload file {path}"), source);
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(PAYLOAD_FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
