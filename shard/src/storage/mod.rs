//! A core's logs: exact Kafka bytes in segment files, the newest of them in memory, and the path from one to the other.
//!
//! Owns positions (where each batch lies) and what is durable where. It never knows how many cores there are, never
//! decides what may be appended, and acknowledges nothing itself: the journal's reports go to the durable listener.
//!
//! Reading order: `folder` (names on disk), `data_directory` (lock and identity), `index`, `segment`, `tail` (memory),
//! `log`, `read` and `time_lookup` (plans), `core_storage` (the whole of one core), `flush` and `checkpoint`, `open` (the
//! scan at start), `stats`.
//!
//! Not yet here: sidecar checksums per 64 KiB block, retention, paced checkpoints and a bound on open descriptors; each
//! finds its place in the formats as they are.

pub mod checkpoint;
pub mod core_storage;
pub mod data_directory;
mod deletion;
pub(crate) mod durable_folder;
mod flush;
pub mod folder;
mod index;
pub mod log;
mod open;
pub mod read;
pub mod recovered;
mod scan;
mod segment;
pub mod settings;
pub mod stats;
mod tail;
pub mod time_lookup;

pub use checkpoint::CheckpointReport;
pub use core_storage::{CoreStorage, Durable, StorageError};
pub use data_directory::{DataDirectory, DataDirectoryError, Identity};
pub use log::{Damage, Log, LogId, StampedBatch};
pub use read::{LogPiece, LogRead, ReadError, ReadPlan, TailPiece};
pub use recovered::{NodeRecovery, RecoveredPartition, RecoveryReport, SegmentInfo, ShardRecovery};
pub use settings::{LogSettings, StorageSettings};
pub use stats::StorageStats;
pub use time_lookup::{TimeHit, TimePlan};
