//! Starts a node: recovery on one executor, then one thread per core, and the join at the end. Owns nothing that a core
//! works with.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use ringlog_io::{CpuId, DriverKind, Executor, ExecutorConfig, FeatureSwitches, IoSetupError, Scheduler};
use ringlog_protocol::ids::TopicId;
use ringlog_raft::ids::{DirectoryId, ReplicaId};
use ringlog_shard::journal::JournalSettings;
use ringlog_shard::journal::recovery;
use ringlog_shard::limits::MESH_CREDITS;
use ringlog_shard::mesh;
use ringlog_shard::placement::core_of;
use ringlog_shard::storage::{
    DataDirectory, DataDirectoryError, Identity, NodeRecovery, SpaceSettings, StorageSettings,
};

use crate::config::BrokerConfig;
use crate::config::typed::{IoDriver, Profile, StorageMode};
use crate::coordinator::{MachineLogError, RunnerError};
use crate::core::start::{self, CoreSeat, Front, Serving, StorageSeat};
use crate::process::plan::{NodeError, NodePlan, RunningNode, ServingListener, Sizing, StartError};
use crate::process::run::advertised_text;
use crate::process::stop::Phase;

/// How often a start looks whether some core has failed.
const START_LOOK_PERIOD: Duration = Duration::from_millis(50);

/// Starts every core and blocks until the node serves.
///
/// # Errors
/// [`StartError`]; cores that did start end with the process.
pub fn start_shards(plan: NodePlan) -> Result<RunningNode, StartError> {
    let config = Arc::clone(&plan.config);
    plan.readiness.set(Phase::Starting("recovering from the journal".to_owned()));
    let storage = prepare_storage(&plan)?;
    plan.readiness.set(Phase::Starting("opening partitions".to_owned()));
    let (ready, serving) = mpsc::channel();
    let (directory, durability) = (storage.directory, storage.durability);
    let threads = start_threads(plan, storage.me, storage.cluster_id, storage.seats, ready)?;
    loop {
        match serving.recv_timeout(START_LOOK_PERIOD) {
            Ok(Ok(serving)) => return Ok(running(&config, serving, durability, threads, directory)),
            Ok(Err(error)) => return Err(start_error(&config, error)),
            // A core that ended before the node serves has failed, and the others would wait for it for ever.
            Err(RecvTimeoutError::Timeout) if !threads.iter().any(JoinHandle::is_finished) => {}
            Err(RecvTimeoutError::Timeout) => return Err(first_failure(threads)),
            // The core that holds the line is on its way out; its thread ends a moment later, with the reason.
            Err(RecvTimeoutError::Disconnected) => {
                while !threads.iter().any(JoinHandle::is_finished) {
                    std::thread::sleep(START_LOOK_PERIOD);
                }
                return Err(first_failure(threads));
            }
        }
    }
}

/// What the cores get to keep their partitions in.
struct PreparedStorage {
    me: ReplicaId,
    cluster_id: Arc<str>,
    seats: Vec<StorageSeat>,
    durability: String,
    /// Locked for as long as the node runs.
    directory: Option<DataDirectory>,
}

fn prepare_storage(plan: &NodePlan) -> Result<PreparedStorage, StartError> {
    let core_count = plan.shards.len() as u32;
    let node = plan.config.node_id;
    match &plan.config.storage.durability {
        StorageMode::Ephemeral => {
            let executor = executor(&plan.config, None)?;
            let io = executor.io();
            let (cluster, directory) = (random_id(&io), random_id(&io));
            Ok(PreparedStorage {
                me: ReplicaId { node, directory: DirectoryId(directory.0) },
                cluster_id: cluster.to_string().into(),
                seats: (0..core_count).map(|_| StorageSeat::Ephemeral).collect(),
                durability: "memory only: nothing survives a stop (--ephemeral)".to_owned(),
                directory: None,
            })
        }
        StorageMode::Durable { data_directory, journal_directory } => {
            let executor = executor(&plan.config, None)?;
            let io = executor.io();
            let settings = storage_settings(&plan.config, &plan.sizing);
            executor.run(async move {
                let identity = Identity { cluster_id: None, node_id: node };
                let directory = DataDirectory::open(&io, data_directory, Some(journal_directory), &identity)
                    .await
                    .map_err(|error| directory_error(data_directory, error))?;
                let owner = |key| core_of(key, core_count);
                let recovered = recovery::recover(&io, &directory, core_count, &owner, &settings)
                    .await
                    .map_err(|error| StartError::Failed { what: "recovery", reason: error.to_string() })?;
                log_report(&recovered);
                prepared(node, directory, recovered)
            })
        }
    }
}

fn random_id(io: &ringlog_io::Io) -> TopicId {
    let (high, low) = (io.random_u64(), io.random_u64());
    TopicId(((u128::from(high) << 64) | u128::from(low)).to_be_bytes())
}

fn prepared(
    node: ringlog_protocol::ids::NodeId,
    directory: DataDirectory,
    recovered: NodeRecovery,
) -> Result<PreparedStorage, StartError> {
    let path = directory.path().display().to_string();
    let unreadable = |error: &dyn std::fmt::Display| StartError::Directory {
        path: path.clone(),
        reason: format!("directory.id in meta.properties is no id: {error}"),
    };
    let id: TopicId = directory.directory_id().parse().map_err(|error| unreadable(&error))?;
    Ok(PreparedStorage {
        me: ReplicaId { node, directory: DirectoryId(id.0) },
        cluster_id: directory.cluster_id().into(),
        durability: "synced to the journal before every acknowledgement".to_owned(),
        seats: recovered.shards.into_iter().map(|shard| StorageSeat::Durable(Box::new(shard))).collect(),
        directory: Some(directory),
    })
}

fn log_report(recovered: &NodeRecovery) {
    let report = &recovered.report;
    for damage in &report.corruption {
        tracing::error!(%damage, "damage found at start");
    }
    if report.entries > 0 {
        tracing::info!(
            frames = report.frames,
            entries = report.entries,
            restored_bytes = report.restored_bytes,
            partitions = report.partitions,
            "journal replayed"
        );
    }
}

fn directory_error(path: &Path, error: DataDirectoryError) -> StartError {
    let path = path.display().to_string();
    let reason = error.to_string();
    match error {
        DataDirectoryError::Locked { .. } | DataDirectoryError::JournalLocked { .. } => {
            StartError::DirectoryInUse { path, reason }
        }
        _ => StartError::Directory { path, reason },
    }
}

fn storage_settings(config: &BrokerConfig, sizing: &Sizing) -> StorageSettings {
    let mut settings = match sizing.profile {
        Profile::Dev => StorageSettings::DEV,
        Profile::Server => StorageSettings::server(sizing.memory_per_shard_bytes),
    };
    settings.journal = JournalSettings {
        file_bytes: sizing.journal_file_bytes,
        file_count_max: sizing.journal_files as usize,
        ..settings.journal
    };
    settings.bypass_bytes = config.storage.bypass_bytes as usize;
    settings.segment_files_max = sizing.capacity.segment_files_per_shard;
    settings.space = SpaceSettings {
        reserve_bytes: config.storage.disk_reserve_bytes,
        warn_bytes: config.storage.disk_warn_bytes,
    };
    settings
}

fn executor(config: &BrokerConfig, cpu: Option<u32>) -> Result<Executor, StartError> {
    let switches = FeatureSwitches::parse(&config.runtime.io_features.join(","))
        .map_err(|error| StartError::Unsupported { key: "ringlog.io.features", reason: error.to_string() })?;
    let settings = ExecutorConfig {
        driver: match config.runtime.io_driver {
            IoDriver::Auto => DriverKind::Auto,
            IoDriver::IoUring => DriverKind::IoUring,
            IoDriver::Epoll => DriverKind::Epoll,
        },
        scheduler: if cfg!(feature = "glommio") { Scheduler::Glommio } else { Scheduler::Native },
        features: switches,
        pin: cpu.map(|cpu| CpuId(cpu as usize)),
        ..ExecutorConfig::default()
    };
    Executor::new(settings).map_err(|error: IoSetupError| StartError::Unsupported {
        key: "ringlog.io.driver",
        reason: error.to_string(),
    })
}

type CoreThread = JoinHandle<Result<(), StartError>>;

fn start_threads(
    plan: NodePlan,
    me: ReplicaId,
    cluster_id: Arc<str>,
    storage: Vec<StorageSeat>,
    ready: mpsc::Sender<Result<Serving, start::StartError>>,
) -> Result<Vec<CoreThread>, StartError> {
    let NodePlan { config, sizing, listeners, shards, stop, readiness } = plan;
    let core_count = shards.len() as u32;
    let settings = storage_settings(&config, &sizing);
    let mut front = Some(Front { listen: listeners, stop, ready });
    let mut threads = Vec::with_capacity(shards.len());
    for ((shard, seat), storage) in shards.into_iter().zip(mesh::seats(core_count, MESH_CREDITS)).zip(storage)
    {
        let seat = CoreSeat {
            seat,
            core_count,
            config: Arc::clone(&config),
            me,
            storage,
            storage_settings: settings,
            memory_bytes: sizing.memory_per_shard_bytes,
            publisher: shard.publisher,
            readiness: readiness.clone(),
            cluster_id: Arc::clone(&cluster_id),
            // Core 0 accepts: it is the first one of the loop.
            front: front.take(),
        };
        let (config, cpu) = (Arc::clone(&config), shard.cpu);
        let thread = std::thread::Builder::new()
            .name(format!("core-{}", shard.index))
            .spawn(move || run_core(&config, cpu, seat))
            .map_err(|error| StartError::Failed {
                what: "starting a core's thread",
                reason: error.to_string(),
            })?;
        threads.push(thread);
    }
    Ok(threads)
}

fn run_core(config: &BrokerConfig, cpu: Option<u32>, seat: CoreSeat) -> Result<(), StartError> {
    let executor = executor(config, cpu)?;
    let io = executor.io();
    executor.run(start::run(io, seat)).map_err(|error| start_error(config, error))
}

fn start_error(config: &BrokerConfig, error: start::StartError) -> StartError {
    match error {
        start::StartError::Listen { address, source } => {
            let origin =
                config.listeners.first().map_or(crate::config::Origin::Default, |first| first.origin.clone());
            StartError::bind("listeners", address.to_string(), origin, &source)
        }
        // Another try would find the same.
        start::StartError::MetadataDamaged { .. }
        | start::StartError::Controller(RunnerError::Log(MachineLogError::StateLost { .. })) => {
            StartError::Directory { path: directory_text(config), reason: error.to_string() }
        }
        other => StartError::Failed { what: "starting a core", reason: other.to_string() },
    }
}

fn directory_text(config: &BrokerConfig) -> String {
    match &config.storage.durability {
        StorageMode::Durable { data_directory, .. } => data_directory.display().to_string(),
        StorageMode::Ephemeral => String::new(),
    }
}

/// Why a core ended before the node served. Cores that wait for it for ever end with the process.
fn first_failure(threads: Vec<CoreThread>) -> StartError {
    let mut finished = threads.into_iter().filter(JoinHandle::is_finished);
    let failed = finished.find_map(|thread| match thread.join() {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error),
        Err(_) => Some(StartError::Failed { what: "a core", reason: "it panicked".to_owned() }),
    });
    failed.unwrap_or(StartError::Failed {
        what: "a core",
        reason: "it ended before the node served".to_owned(),
    })
}

fn running(
    config: &BrokerConfig,
    serving: Serving,
    durability: String,
    threads: Vec<CoreThread>,
    directory: Option<DataDirectory>,
) -> RunningNode {
    let advertised = config.listeners.iter().map(|listener| advertised_text(&listener.advertised));
    let listeners = serving.addresses.iter().zip(advertised);
    RunningNode {
        driver: format!("{} ({})", serving.driver, serving.features),
        durability,
        cluster_id: serving.cluster_id.to_string(),
        listeners: listeners
            .map(|(bound, advertised): (&SocketAddr, _)| ServingListener { bound: *bound, advertised })
            .collect(),
        join: Box::new(move || {
            // Released only after the last core has flushed.
            let _locked = directory;
            for (shard, thread) in (0..).zip(threads) {
                match thread.join() {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return Err(NodeError::Shard { shard, reason: error.to_string() }),
                    Err(_) => return Err(NodeError::Shard { shard, reason: "it panicked".to_owned() }),
                }
            }
            Ok(())
        }),
    }
}
