//! Owns the configuration in the types that the broker works with, and the checks that involve several keys. It
//! resolves no names and looks at no machine: `process::resources` does.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use ringlog_protocol::ids::NodeId;

use super::error::{ConfigError, ConfigErrors};
use super::groups::{self, GroupConfig};
use super::load::Resolved;
use super::origin::Origin;
use super::value::{Address, Memory, Value};
use crate::topic_config::{CleanupPolicy, millionths};

/// No product with a 32-bit number of hours leaves 64 bits.
const MS_PER_HOUR: i64 = 60 * MS_PER_MINUTE;
const MS_PER_MINUTE: i64 = 60_000;

/// The whole configuration of one broker; immutable while it runs, shared by every core as an `Arc`.
#[derive(Debug, Clone)]
pub struct BrokerConfig {
    pub node_id: NodeId,
    /// `broker.rack`.
    pub rack: Option<String>,
    pub storage: StorageConfig,
    /// Exactly one until named listeners are built.
    pub listeners: Vec<ListenerConfig>,
    pub limits: LimitConfig,
    pub topics: TopicDefaults,
    pub cleaner: CleanerConfig,
    pub groups: GroupConfig,
    pub runtime: RuntimeConfig,
    pub observation: ObservationConfig,
    /// Every key with its origin, for `/config` and `ringlog config show`.
    pub settings: Vec<EffectiveSetting>,
    /// Sentences to log once logging runs.
    pub warnings: Vec<String>,
}

/// Where bytes are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageConfig {
    pub durability: StorageMode,
    /// `None` = by the profile.
    pub journal_file_bytes: Option<u64>,
    /// `None` = by the profile.
    pub journal_files: Option<u32>,
    /// `ringlog.bypass.bytes`; 0 = no batch bypasses the journal.
    pub bypass_bytes: u32,
    /// `ringlog.disk.reserve.bytes`; `None` = by the file system's size.
    pub disk_reserve_bytes: Option<u64>,
    /// `ringlog.disk.warn.bytes`; `None` = by the reserve.
    pub disk_warn_bytes: Option<u64>,
}

/// Files or memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StorageMode {
    Durable {
        data_directory: PathBuf,
        journal_directory: PathBuf,
    },
    /// `--ephemeral`: no file is written.
    Ephemeral,
}

/// One address that clients connect to. Its protocol is PLAINTEXT: others are refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerConfig {
    pub bind: Address,
    pub advertised: Advertised,
    /// Where `bind` was set, for errors at bind time.
    pub origin: Origin,
}

/// What Metadata tells clients to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Advertised {
    /// The local address of the very connection that asks: what the client reached.
    Auto,
    Fixed(Address),
}

/// Bounds that an operator can set; the others are in `limits.rs` of the shard crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitConfig {
    /// `socket.request.max.bytes`; 64 KiB or more, fits an i32.
    pub request_bytes_max: u32,
    /// `connections.max.idle.ms`.
    pub connection_idle_ms_max: u64,
    /// `max.connections`, over all shards.
    pub connections_max: u32,
    /// `max.connections.per.ip`, over all shards.
    pub connections_per_address_max: u32,
    /// `fetch.max.bytes`; fits an i32.
    pub fetch_bytes_max: u32,
    /// Fetch sessions of all cores.
    pub fetch_sessions_max: u32,
    /// `max.request.partition.size.limit`; 1 or more.
    pub described_partitions_max: i32,
    /// `producer.id.expiration.ms`.
    pub producer_id_expiration_ms: u64,
    /// `log.retention.check.interval.ms`.
    pub retention_check_ms: u64,
    /// `ringlog.scrub.bytes.per.second`, of each shard; 0 = never.
    pub scrub_bytes_per_second: u64,
    /// `metadata.log.max.record.bytes.between.snapshots`.
    pub metadata_snapshot_after_bytes: u64,
}

/// What a topic gets that does not say otherwise, and what may be done to topics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicDefaults {
    /// `auto.create.topics.enable`.
    pub auto_create: bool,
    /// `delete.topic.enable`.
    pub deletion_enabled: bool,
    /// `num.partitions`; 1 or more.
    pub partition_count: i32,
    /// `default.replication.factor`; 1 until clusters are built.
    pub replication_factor: i16,
    /// `min.insync.replicas`; 1 or more.
    pub min_insync_replicas: i32,
    /// `message.max.bytes`: a topic's `max.message.bytes`.
    pub message_bytes_max: i32,
    /// A topic's `compression.type`, in Kafka's spelling: producer, uncompressed, gzip, snappy, lz4 or zstd.
    pub compression_type: &'static str,
    /// `log.segment.bytes`.
    pub segment_bytes: i32,
    /// `log.index.interval.bytes`.
    pub index_interval_bytes: i32,
    /// `log.message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `log.message.timestamp.before.max.ms`.
    pub timestamp_before_ms_max: i64,
    /// `log.message.timestamp.after.max.ms`.
    pub timestamp_after_ms_max: i64,
    /// `log.retention.ms`, `.minutes` or `.hours`, the finest one set; -1 = no limit.
    pub retention_ms: i64,
    /// `log.retention.bytes`; -1 = no limit.
    pub retention_bytes: i64,
    /// `log.roll.ms` or `.hours`; 1 or more.
    pub segment_ms: i64,
    /// `log.roll.jitter.ms` or `.hours`; 0 or more.
    pub segment_jitter_ms: i64,
    /// `log.cleanup.policy`.
    pub cleanup: CleanupPolicy,
    /// `log.cleaner.delete.retention.ms`.
    pub delete_retention_ms: i64,
    /// `log.cleaner.min.compaction.lag.ms`.
    pub min_compaction_lag_ms: i64,
    /// `log.cleaner.max.compaction.lag.ms`; 1 or more.
    pub max_compaction_lag_ms: i64,
    /// `log.cleaner.min.cleanable.ratio`, in millionths.
    pub min_cleanable_millionths: u32,
}

/// How compaction runs, on all shards together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleanerConfig {
    /// `log.cleaner.enable`.
    pub is_enabled: bool,
    /// `log.cleaner.dedupe.buffer.size`.
    pub map_bytes: u64,
    /// `log.cleaner.io.max.bytes.per.second`; 0 = no bound.
    pub bytes_per_second: u64,
    /// `log.cleaner.backoff.ms`.
    pub backoff_ms: u64,
}

/// Whose clock stamps records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestampType {
    CreateTime,
    LogAppendTime,
}

/// How much of the machine to use, as asked; `process::plan` decides what it comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// `None` = decided from the machine.
    pub profile: Option<Profile>,
    /// `None` = decided from the profile.
    pub shards: Option<u32>,
    /// Empty = all that the process may use.
    pub cpus: Vec<u32>,
    pub pin: Pin,
    pub memory: Memory,
    pub io_driver: IoDriver,
    /// `-name` or `+name` each; the driver refuses names that it does not know.
    pub io_features: Vec<String>,
    pub egress: Egress,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    Dev,
    Server,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin {
    /// In the server profile, or when CPUs are named.
    Auto,
    Always,
    Never,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoDriver {
    Auto,
    IoUring,
    Epoll,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Egress {
    Auto,
    Send,
    Sendfile,
}

/// What the process shows of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservationConfig {
    /// `None` = no admin server.
    pub admin: Option<Address>,
    pub admin_origin: Origin,
    pub metrics_interval_ms: u64,
    pub log_format: LogFormat,
    /// In the notation of `tracing_subscriber::filter::Targets`; checked.
    pub log_filter: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Human on a terminal, otherwise JSON.
    Auto,
    Human,
    Json,
}

/// A key as `/config` shows it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct EffectiveSetting {
    pub key: &'static str,
    pub value: String,
    #[serde(serialize_with = "as_text")]
    pub origin: Origin,
}

fn as_text<S: serde::Serializer>(origin: &Origin, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(origin)
}

/// Facts about the account that some defaults depend on; passed in so that loading stays testable.
#[derive(Debug, Clone, Default)]
pub struct Account {
    pub is_root: bool,
    /// `$STATE_DIRECTORY`, which systemd sets from `StateDirectory=`.
    pub state_directory: Option<PathBuf>,
    /// `$XDG_DATA_HOME`, when absolute.
    pub data_home: Option<PathBuf>,
    /// `$HOME`.
    pub home: Option<PathBuf>,
}

impl Account {
    /// Where data goes when nobody says: never the working directory.
    pub fn default_data_directory(&self) -> Option<PathBuf> {
        if let Some(directory) = &self.state_directory {
            return Some(directory.clone());
        }
        if self.is_root {
            return Some(PathBuf::from("/var/lib/ringlog"));
        }
        let home = self.home.as_ref().map(|home| home.join(".local/share"));
        self.data_home.clone().or(home).map(|base| base.join("ringlog"))
    }
}

impl ListenerConfig {
    /// The socket address to bind; an empty host is every IPv4 interface.
    ///
    /// # Errors
    /// When the host name does not resolve. Blocks on name resolution: call it at start only.
    pub fn resolve(&self) -> std::io::Result<SocketAddr> {
        self.bind.resolve()
    }
}

impl Address {
    /// The first address that the host resolves to; an empty host is `0.0.0.0`. Blocks: call it at start only.
    pub fn resolve(&self) -> std::io::Result<SocketAddr> {
        let host = if self.host.is_empty() { "0.0.0.0" } else { self.host.as_str() };
        let mut found = (host, self.port).to_socket_addrs()?;
        found
            .next()
            .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address"))
    }
}

/// Builds the typed configuration and checks what involves several keys.
pub fn build(resolved: &Resolved, account: &Account) -> Result<BrokerConfig, ConfigErrors> {
    let mut errors = Vec::new();
    let storage = storage(resolved, account).unwrap_or_else(|error| {
        errors.push(error);
        StorageConfig::of(resolved, StorageMode::Ephemeral)
    });
    let config = BrokerConfig {
        node_id: NodeId(resolved.integer("node.id") as i32),
        rack: Some(resolved.text("broker.rack")).filter(|rack| !rack.is_empty()).map(str::to_owned),
        storage,
        listeners: listeners(resolved),
        limits: limits(resolved),
        topics: topics(resolved),
        cleaner: cleaner(resolved),
        groups: GroupConfig::of(resolved),
        runtime: runtime(resolved),
        observation: observation(resolved),
        settings: settings(resolved, account),
        warnings: resolved.warnings.clone(),
    };
    errors.extend(groups::conflicts(resolved));
    if i64::from(config.topics.message_bytes_max) > i64::from(config.limits.request_bytes_max) {
        let setting = resolved.setting("message.max.bytes");
        errors.push(ConfigError::Conflict {
            key: setting.key.name,
            value: setting.text.clone(),
            origin: setting.origin.clone(),
            problem: format!(
                "larger than `socket.request.max.bytes` = {}, so no such batch could arrive; raise that or lower this",
                config.limits.request_bytes_max
            ),
        });
    }
    if errors.is_empty() { Ok(config) } else { Err(ConfigErrors(errors)) }
}

fn storage(resolved: &Resolved, account: &Account) -> Result<StorageConfig, ConfigError> {
    let durability = if resolved.boolean("ringlog.ephemeral") {
        StorageMode::Ephemeral
    } else {
        let directory = directory(resolved, "log.dirs").or_else(|| account.default_data_directory());
        let data_directory = directory.ok_or(ConfigError::NoDataDirectory)?;
        let journal_directory =
            directory_or(resolved, "ringlog.journal.dir", || data_directory.join("journal"));
        StorageMode::Durable { data_directory, journal_directory }
    };
    Ok(StorageConfig::of(resolved, durability))
}

impl StorageConfig {
    fn of(resolved: &Resolved, durability: StorageMode) -> StorageConfig {
        let bytes = |name: &str| resolved.auto_integer(name).map(|bytes| bytes as u64);
        StorageConfig {
            durability,
            journal_file_bytes: bytes("ringlog.journal.file.bytes"),
            journal_files: resolved.auto_integer("ringlog.journal.files").map(|count| count as u32),
            bypass_bytes: resolved.integer("ringlog.bypass.bytes") as u32,
            disk_reserve_bytes: bytes("ringlog.disk.reserve.bytes"),
            disk_warn_bytes: bytes("ringlog.disk.warn.bytes"),
        }
    }
}

fn directory(resolved: &Resolved, name: &str) -> Option<PathBuf> {
    match &resolved.setting(name).value {
        Value::Directory(directory) => directory.clone(),
        other => unreachable!("{name} is no directory key: {other:?}"),
    }
}

fn directory_or(resolved: &Resolved, name: &str, default: impl FnOnce() -> PathBuf) -> PathBuf {
    directory(resolved, name).unwrap_or_else(default)
}

fn listeners(resolved: &Resolved) -> Vec<ListenerConfig> {
    let setting = resolved.setting("listeners");
    let advertised = match &resolved.setting("advertised.listeners").value {
        Value::Advertised(Some(address)) => Advertised::Fixed(address.clone()),
        _ => Advertised::Auto,
    };
    let Value::Listeners(addresses) = &setting.value else {
        unreachable!("listeners is no listener key: {:?}", setting.value);
    };
    let listener = |bind: &Address| ListenerConfig {
        bind: bind.clone(),
        advertised: advertised.clone(),
        origin: setting.origin.clone(),
    };
    addresses.iter().map(listener).collect()
}

// The casts below are exact: the table bounds each key to its type, which a test checks at both ends.

fn limits(resolved: &Resolved) -> LimitConfig {
    LimitConfig {
        request_bytes_max: resolved.integer("socket.request.max.bytes") as u32,
        connection_idle_ms_max: resolved.integer("connections.max.idle.ms") as u64,
        connections_max: resolved.integer("max.connections") as u32,
        connections_per_address_max: resolved.integer("max.connections.per.ip") as u32,
        fetch_bytes_max: resolved.integer("fetch.max.bytes") as u32,
        fetch_sessions_max: resolved.integer("max.incremental.fetch.session.cache.slots") as u32,
        described_partitions_max: resolved.integer("max.request.partition.size.limit") as i32,
        producer_id_expiration_ms: resolved.integer("producer.id.expiration.ms") as u64,
        retention_check_ms: resolved.integer("log.retention.check.interval.ms") as u64,
        scrub_bytes_per_second: resolved.integer("ringlog.scrub.bytes.per.second") as u64,
        metadata_snapshot_after_bytes: resolved.integer("metadata.log.max.record.bytes.between.snapshots")
            as u64,
    }
}

fn topics(resolved: &Resolved) -> TopicDefaults {
    TopicDefaults {
        auto_create: resolved.boolean("auto.create.topics.enable"),
        deletion_enabled: resolved.boolean("delete.topic.enable"),
        partition_count: resolved.integer("num.partitions") as i32,
        replication_factor: resolved.integer("default.replication.factor") as i16,
        min_insync_replicas: resolved.integer("min.insync.replicas") as i32,
        message_bytes_max: resolved.integer("message.max.bytes") as i32,
        compression_type: resolved.choice("compression.type"),
        segment_bytes: resolved.integer("log.segment.bytes") as i32,
        index_interval_bytes: resolved.integer("log.index.interval.bytes") as i32,
        timestamp_type: match resolved.choice("log.message.timestamp.type") {
            "LogAppendTime" => TimestampType::LogAppendTime,
            _ => TimestampType::CreateTime,
        },
        timestamp_before_ms_max: resolved.integer("log.message.timestamp.before.max.ms"),
        timestamp_after_ms_max: resolved.integer("log.message.timestamp.after.max.ms"),
        retention_ms: retention_ms(resolved),
        retention_bytes: resolved.integer("log.retention.bytes"),
        segment_ms: resolved
            .auto_integer("log.roll.ms")
            .unwrap_or_else(|| resolved.integer("log.roll.hours") * MS_PER_HOUR),
        segment_jitter_ms: resolved
            .auto_integer("log.roll.jitter.ms")
            .unwrap_or_else(|| resolved.integer("log.roll.jitter.hours") * MS_PER_HOUR),
        cleanup: CleanupPolicy::of(resolved.text("log.cleanup.policy")),
        delete_retention_ms: resolved.integer("log.cleaner.delete.retention.ms"),
        min_compaction_lag_ms: resolved.integer("log.cleaner.min.compaction.lag.ms"),
        max_compaction_lag_ms: resolved.integer("log.cleaner.max.compaction.lag.ms"),
        min_cleanable_millionths: millionths(resolved.text("log.cleaner.min.cleanable.ratio"))
            .expect("the table keeps it within 0 to 1"),
    }
}

fn cleaner(resolved: &Resolved) -> CleanerConfig {
    CleanerConfig {
        is_enabled: resolved.boolean("log.cleaner.enable"),
        map_bytes: resolved.integer("log.cleaner.dedupe.buffer.size") as u64,
        bytes_per_second: bytes_per_second(resolved.text("log.cleaner.io.max.bytes.per.second")),
        backoff_ms: resolved.integer("log.cleaner.backoff.ms") as u64,
    }
}

/// A rate of 1 or more as the table lets it through; 0 for one that is no bound.
pub(super) fn bytes_per_second(text: &str) -> u64 {
    // The cast saturates, as is wanted.
    let rate = text.trim().parse::<f64>().map_or(u64::MAX, |rate| rate as u64);
    if rate == u64::MAX { 0 } else { rate.max(1) }
}

/// The finest unit that is set holds; a negative number of any means no limit (Kafka's `getLogRetentionTimeMillis`).
fn retention_ms(resolved: &Resolved) -> i64 {
    let minutes = || resolved.auto_integer("log.retention.minutes").map(|minutes| minutes * MS_PER_MINUTE);
    let hours = || resolved.integer("log.retention.hours") * MS_PER_HOUR;
    resolved.auto_integer("log.retention.ms").or_else(minutes).unwrap_or_else(hours).max(-1)
}

fn runtime(resolved: &Resolved) -> RuntimeConfig {
    let value = |name: &str| &resolved.setting(name).value;
    RuntimeConfig {
        profile: match resolved.choice("ringlog.profile") {
            "dev" => Some(Profile::Dev),
            "server" => Some(Profile::Server),
            _ => None,
        },
        shards: resolved.auto_integer("ringlog.shards").map(|count| count as u32),
        cpus: match value("ringlog.cpuset") {
            Value::Cpus(cpus) => cpus.clone(),
            _ => Vec::new(),
        },
        pin: match resolved.choice("ringlog.pin") {
            "true" => Pin::Always,
            "false" => Pin::Never,
            _ => Pin::Auto,
        },
        memory: match value("ringlog.memory") {
            Value::Memory(memory) => *memory,
            _ => Memory::Auto,
        },
        io_driver: match resolved.choice("ringlog.io.driver") {
            "io_uring" => IoDriver::IoUring,
            "epoll" => IoDriver::Epoll,
            _ => IoDriver::Auto,
        },
        io_features: match value("ringlog.io.features") {
            Value::Features(features) => features.clone(),
            _ => Vec::new(),
        },
        egress: match resolved.choice("ringlog.egress") {
            "send" => Egress::Send,
            "sendfile" => Egress::Sendfile,
            _ => Egress::Auto,
        },
    }
}

fn observation(resolved: &Resolved) -> ObservationConfig {
    let admin = resolved.setting("ringlog.admin.listen");
    ObservationConfig {
        admin: match &admin.value {
            Value::Address(address) => address.clone(),
            _ => None,
        },
        admin_origin: admin.origin.clone(),
        metrics_interval_ms: resolved.integer("ringlog.metrics.interval.ms") as u64,
        log_format: match resolved.choice("ringlog.log.format") {
            "human" => LogFormat::Human,
            "json" => LogFormat::Json,
            _ => LogFormat::Auto,
        },
        log_filter: resolved.text("ringlog.log.level").to_owned(),
    }
}

fn settings(resolved: &Resolved, account: &Account) -> Vec<EffectiveSetting> {
    let shown = |setting: &super::load::Setting| {
        let data_directory = account.default_data_directory().filter(|_| setting.key.name == "log.dirs");
        let value = match (&setting.value, data_directory) {
            // What `auto` came to is worth more than the word.
            (Value::Directory(None), Some(directory)) => directory.display().to_string(),
            _ => setting.text.clone(),
        };
        EffectiveSetting { key: setting.key.name, value, origin: setting.origin.clone() }
    };
    resolved.settings().map(shown).collect()
}
