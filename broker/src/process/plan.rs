//! Owns what a node is made of before it runs: shards, CPUs, memory and addresses, decided from the configuration and
//! the machine by plain functions; and the seam to the code that runs shards: [`NodePlan`] in, [`RunningNode`] out.

use std::net::SocketAddr;
use std::sync::Arc;

use thiserror::Error;

use super::capacity::{Capacity, CapacityInputs};
use super::exit::Exit;
use super::resources::{Machine, MachineKind};
use super::stop::{Readiness, StopSignal};
use crate::config::typed::{Pin, Profile, StorageMode};
use crate::config::value::{MEMORY_BYTES_MIN, Memory};
use crate::config::{BrokerConfig, ConfigError, Origin};
use crate::observe::snapshot::{self, SnapshotPublisher, SnapshotSlot};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// A shard below this cannot hold one large request beside its tail.
pub const SHARD_MEMORY_BYTES_MIN: u64 = 32 * MIB;
/// Off bare metal a broker is one program among others.
const DEV_SHARDS_MAX: u32 = 4;
const DEV_MEMORY_BYTES_MAX: u64 = GIB;
/// A machine below either of these is not somebody's server for this.
const SERVER_CPUS_MIN: usize = 8;
const SERVER_MEMORY_BYTES_MIN: u64 = 16 * GIB;

/// Everything that the shards are started with.
#[derive(Debug)]
pub struct NodePlan {
    pub config: Arc<BrokerConfig>,
    pub sizing: Sizing,
    /// One for each listener of the configuration, resolved; port 0 stays 0.
    pub listeners: Vec<SocketAddr>,
    /// In the order of their indexes, 0 first.
    pub shards: Vec<ShardPlan>,
    /// Drain begins here: register one hook for each shard.
    pub stop: StopSignal,
    /// Say what goes on while starting; the process sets `Serving` itself.
    pub readiness: Readiness,
}

/// One shard's own part; moved to its thread.
#[derive(Debug)]
pub struct ShardPlan {
    pub index: u32,
    /// The CPU to bind to; `None` = wherever the kernel likes.
    pub cpu: Option<u32>,
    /// Show a snapshot here every `metrics_interval_ms`.
    pub publisher: SnapshotPublisher,
}

/// How much of the machine is taken. Pure result of [`size`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sizing {
    pub profile: Profile,
    /// For the banner: why this profile.
    pub profile_reason: &'static str,
    /// CPU of each shard, when pinned; as long as there are shards.
    pub shard_cpus: Vec<Option<u32>>,
    pub memory_bytes: u64,
    /// What each shard may allocate.
    pub memory_per_shard_bytes: u64,
    pub journal_file_bytes: u64,
    pub journal_files: u32,
    pub capacity: Capacity,
}

/// The function that starts a node: blocks until it serves.
pub type StartShards = fn(NodePlan) -> Result<RunningNode, StartError>;

/// A node that serves.
pub struct RunningNode {
    /// The driver in use, and for `auto` why: `io_uring`, or `epoll (io_uring refused: ...)`.
    pub driver: String,
    /// What an acknowledgement means on this directory: `fsync before ack`, `memory only`...
    pub durability: String,
    pub cluster_id: String,
    /// Where clients connect, after binding: real ports.
    pub listeners: Vec<ServingListener>,
    /// Waits until every shard has ended: drained after [`StopSignal::stop`], or failed.
    pub join: Box<dyn FnOnce() -> Result<(), NodeError>>,
}

/// One bound listener.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ServingListener {
    pub bound: SocketAddr,
    /// As clients will see it; `None` = the address that each client reached.
    pub advertised: Option<String>,
}

/// Why a node did not start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error(
        "cannot listen on {address} (`{key}`, {origin}): the address is in use, perhaps by another broker; stop it, or \
         set `{key}` to another port"
    )]
    AddressInUse { key: &'static str, address: String, origin: Origin },
    #[error(
        "cannot listen on {address} (`{key}`, {origin}): {reason}; set `{key}` to an address of this machine"
    )]
    Bind { key: &'static str, address: String, origin: Origin, reason: String },
    /// Locked by a running broker.
    #[error("the data directory {path} is in use: {reason}")]
    DirectoryInUse { path: String, reason: String },
    /// Of another cluster, of a newer format, foreign, or not writable.
    #[error("the data directory {path} cannot be used: {reason}")]
    Directory { path: String, reason: String },
    /// A driver or kernel feature that was insisted on is not there.
    #[error("`{key}` cannot be met on this machine: {reason}")]
    Unsupported { key: &'static str, reason: String },
    #[error("{what} failed: {reason}")]
    Failed { what: &'static str, reason: String },
}

/// Why a running node ended.
#[derive(Debug, Error)]
pub enum NodeError {
    #[error("shard {shard} ended: {reason}")]
    Shard { shard: u32, reason: String },
}

impl StartError {
    /// A bind error of the listener that `key` sets.
    pub fn bind(key: &'static str, address: String, origin: Origin, error: &std::io::Error) -> StartError {
        match error.kind() {
            std::io::ErrorKind::AddrInUse => StartError::AddressInUse { key, address, origin },
            _ => StartError::Bind { key, address, origin, reason: error.to_string() },
        }
    }

    pub fn exit(&self) -> Exit {
        match self {
            StartError::AddressInUse { .. } | StartError::DirectoryInUse { .. } => Exit::TryAgain,
            StartError::Bind { .. } | StartError::Directory { .. } | StartError::Unsupported { .. } => {
                Exit::Config
            }
            StartError::Failed { .. } => Exit::Failure,
        }
    }
}

/// Plans a node, and the slots that the side thread reads.
pub fn plan(
    config: Arc<BrokerConfig>,
    sizing: Sizing,
    listeners: Vec<SocketAddr>,
    stop: StopSignal,
    readiness: Readiness,
) -> (NodePlan, Vec<SnapshotSlot>) {
    let mut slots = Vec::new();
    let mut shards = Vec::new();
    for (index, cpu) in (0..).zip(&sizing.shard_cpus) {
        let (publisher, slot) = snapshot::slot(index);
        slots.push(slot);
        shards.push(ShardPlan { index, cpu: *cpu, publisher });
    }
    (NodePlan { config, sizing, listeners, shards, stop, readiness }, slots)
}

/// Decides how much of the machine to take.
///
/// # Errors
/// When the configuration asks for what the machine does not have.
pub fn size(config: &BrokerConfig, machine: &Machine) -> Result<Sizing, ConfigError> {
    let (profile, profile_reason) = match config.runtime.profile {
        Some(profile) => (profile, "as set"),
        None => profile_of(machine),
    };
    let cpus = usable_cpus(config, machine)?;
    let memory_bytes = memory(config.runtime.memory, profile, machine);
    let shard_count = shard_count(config, machine, profile, cpus.len(), memory_bytes)?;
    let pinned = match config.runtime.pin {
        Pin::Always => true,
        Pin::Never => false,
        Pin::Auto => profile == Profile::Server || !config.runtime.cpus.is_empty(),
    };
    let cpu_of = |shard: u32| cpus.get(shard as usize % cpus.len()).copied().filter(|_| pinned);
    let (file_bytes, files) = match profile {
        Profile::Dev => (8 * MIB, 2),
        Profile::Server => (64 * MIB, 4),
    };
    let journal_file_bytes = config.storage.journal_file_bytes.unwrap_or(file_bytes);
    let journal_files = config.storage.journal_files.unwrap_or(files);
    let capacity = Capacity::of(&CapacityInputs {
        shard_count,
        memory_bytes,
        open_files_max: machine.open_files_max,
        connections_configured: u64::from(config.limits.connections_max),
        journal_bytes_per_shard: match config.storage.durability {
            StorageMode::Durable { .. } => journal_file_bytes.saturating_mul(u64::from(journal_files)),
            StorageMode::Ephemeral => 0,
        },
    });
    Ok(Sizing {
        profile,
        profile_reason,
        shard_cpus: (0..shard_count).map(cpu_of).collect(),
        memory_bytes,
        memory_per_shard_bytes: memory_bytes / u64::from(shard_count),
        journal_file_bytes,
        journal_files,
        capacity,
    })
}

fn profile_of(machine: &Machine) -> (Profile, &'static str) {
    match machine.kind {
        MachineKind::Container => (Profile::Dev, "in a container"),
        MachineKind::Virtual => (Profile::Dev, "on a virtual machine"),
        MachineKind::Laptop => (Profile::Dev, "on a machine with a battery"),
        MachineKind::BareMetal if machine.cpus.len() < SERVER_CPUS_MIN => (Profile::Dev, "fewer than 8 CPUs"),
        MachineKind::BareMetal if machine.memory_bytes < SERVER_MEMORY_BYTES_MIN => {
            (Profile::Dev, "less than 16 GiB of memory")
        }
        MachineKind::BareMetal => (Profile::Server, "on bare metal"),
    }
}

fn usable_cpus(config: &BrokerConfig, machine: &Machine) -> Result<Vec<u32>, ConfigError> {
    if config.runtime.cpus.is_empty() {
        return Ok(machine.cpus.clone());
    }
    match config.runtime.cpus.iter().find(|cpu| !machine.cpus.contains(cpu)) {
        None => Ok(config.runtime.cpus.clone()),
        Some(missing) => {
            let problem =
                format!("CPU {missing} is not one that this process may use; it may use {:?}", machine.cpus);
            Err(conflict(config, "ringlog.cpuset", problem))
        }
    }
}

fn memory(setting: Memory, profile: Profile, machine: &Machine) -> u64 {
    let total = machine.memory_bytes;
    let bytes = match (setting, profile) {
        (Memory::Bytes(bytes), _) => bytes,
        (Memory::Percent(percent), _) => total / 100 * u64::from(percent),
        (Memory::Auto, Profile::Dev) => (total / 8).min(DEV_MEMORY_BYTES_MAX),
        (Memory::Auto, Profile::Server) => total / 2,
    };
    bytes.max(MEMORY_BYTES_MIN)
}

fn shard_count(
    config: &BrokerConfig,
    machine: &Machine,
    profile: Profile,
    cpu_count: usize,
    memory_bytes: u64,
) -> Result<u32, ConfigError> {
    let fits = u32::try_from(memory_bytes / SHARD_MEMORY_BYTES_MIN).unwrap_or(u32::MAX).max(1);
    if let Some(count) = config.runtime.shards {
        if count > fits {
            let problem = format!(
                "each shard needs {} MiB and there are {} MiB for all; lower it to {fits} or raise `ringlog.memory`",
                SHARD_MEMORY_BYTES_MIN / MIB,
                memory_bytes / MIB
            );
            return Err(conflict(config, "ringlog.shards", problem));
        }
        return Ok(count);
    }
    let cpu_count = u32::try_from(cpu_count).unwrap_or(u32::MAX);
    let named = !config.runtime.cpus.is_empty();
    let wanted = match profile {
        _ if named => cpu_count,
        Profile::Dev => cpu_count.min(DEV_SHARDS_MAX),
        Profile::Server => machine.physical_cores,
    };
    Ok(wanted.min(machine.cpu_quota.unwrap_or(u32::MAX)).min(fits).clamp(1, 256))
}

fn conflict(config: &BrokerConfig, key: &'static str, problem: String) -> ConfigError {
    let setting = config.settings.iter().find(|setting| setting.key == key);
    let (value, origin) = match setting {
        Some(setting) => (setting.value.clone(), setting.origin.clone()),
        None => (String::new(), Origin::Default),
    };
    ConfigError::Conflict { key, value, origin, problem }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::Sources;
    use crate::config::typed::Account;

    fn machine(kind: MachineKind, cpus: u32, memory_bytes: u64) -> Machine {
        Machine {
            cpus: (0..cpus).collect(),
            physical_cores: cpus.div_ceil(2),
            cpu_quota: None,
            memory_bytes,
            is_memory_limited: false,
            kind,
            open_files_max: 1 << 20,
        }
    }

    fn sized(sets: &[&str], machine: &Machine) -> Result<Sizing, ConfigError> {
        let mut sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        sets.push("ringlog.ephemeral=true".to_owned());
        let config = crate::config::load(&Sources { sets, ..Sources::default() }, &Account::default());
        size(&config.expect("the settings are legal"), machine)
    }

    #[test]
    fn off_bare_metal_little_is_taken() {
        let laptop = machine(MachineKind::Laptop, 16, 32 * GIB);
        let sizing = sized(&[], &laptop).expect("it fits");
        assert_eq!((sizing.profile, sizing.shard_cpus.len()), (Profile::Dev, 4));
        assert_eq!(sizing.memory_bytes, GIB);
        assert!(sizing.shard_cpus.iter().all(Option::is_none));
        assert_eq!((sizing.journal_file_bytes, sizing.journal_files), (8 * MIB, 2));
        let small = Machine { cpu_quota: Some(1), ..machine(MachineKind::Container, 16, 512 * MIB) };
        let sizing = sized(&[], &small).expect("it fits");
        assert_eq!((sizing.shard_cpus.len(), sizing.memory_bytes), (1, 64 * MIB));
    }

    #[test]
    fn bare_metal_is_used_and_pinned() {
        let server = machine(MachineKind::BareMetal, 16, 64 * GIB);
        let sizing = sized(&[], &server).expect("it fits");
        assert_eq!((sizing.profile, sizing.memory_bytes), (Profile::Server, 32 * GIB));
        assert_eq!(sizing.shard_cpus, (0..8).map(Some).collect::<Vec<_>>());
        assert_eq!(sizing.memory_per_shard_bytes, 4 * GIB);
        let weak = machine(MachineKind::BareMetal, 4, 64 * GIB);
        assert_eq!(sized(&[], &weak).map(|s| s.profile_reason), Ok("fewer than 8 CPUs"));
        let sizing = sized(&["ringlog.pin=false"], &server).expect("it fits");
        assert!(sizing.shard_cpus.iter().all(Option::is_none));
    }

    #[test]
    fn settings_win_over_rules() {
        let laptop = machine(MachineKind::Laptop, 4, 8 * GIB);
        let sizing = sized(&["ringlog.cpuset=2-3", "ringlog.memory=25%"], &laptop).expect("it fits");
        assert_eq!(sizing.shard_cpus, vec![Some(2), Some(3)]);
        assert_eq!(sizing.memory_bytes, 8 * GIB / 100 * 25);
        let sizing = sized(&["ringlog.shards=3", "ringlog.cpuset=1"], &laptop).expect("it fits");
        assert_eq!(sizing.shard_cpus, vec![Some(1); 3]);
    }

    #[test]
    fn what_the_machine_lacks_is_refused() {
        let laptop = machine(MachineKind::Laptop, 2, 8 * GIB);
        let check = |sets: &[&str], expected: &str| {
            assert_eq!(sized(sets, &laptop).expect_err(expected).to_string(), expected);
        };
        check(
            &["ringlog.cpuset=1,7"],
            "`ringlog.cpuset` = `1,7` (flag --set): CPU 7 is not one that this process may use; it may use [0, 1]",
        );
        check(
            &["ringlog.shards=64", "ringlog.memory=64MiB"],
            "`ringlog.shards` = `64` (flag --set): each shard needs 32 MiB and there are 64 MiB for all; lower it to 2 \
             or raise `ringlog.memory`",
        );
    }

    #[test]
    fn the_plan_has_a_slot_for_each_shard() {
        let laptop = machine(MachineKind::Laptop, 2, 8 * GIB);
        let sizing = sized(&[], &laptop).expect("it fits");
        let sets = vec!["ringlog.ephemeral=true".to_owned()];
        let config = crate::config::load(&Sources { sets, ..Sources::default() }, &Account::default());
        let config = Arc::new(config.expect("the settings are legal"));
        let (plan, slots) = plan(config, sizing, vec![], StopSignal::default(), Readiness::default());
        assert_eq!((plan.shards.len(), slots.len()), (2, 2));
        assert_eq!(slots[1].read().shard, plan.shards[1].index);
    }
}
