//! A core's logs: exact Kafka bytes in segment files, the newest of them in memory, and the path from one to the other.
//!
//! Owns positions (where each batch lies) and what is durable where. It never knows how many cores there are, never
//! decides what may be appended, and acknowledges nothing itself: the journal's reports go to the durable listener.
//!
//! Reading order: `folder` (names on disk), `data_directory`, `journal_folder`, `durable_folder`, `side_by_side` and `checked_text` (locks and identity), `index`, `segment`, `tail` (memory),
//! `log`, `read`, `first_read` and `time_lookup` (plans), `core_storage` (the whole of one core), `bypass`, `flush`, `checkpoint` with
//! `workload`, `pace` and `cover`, what a start is spared: `sums` and `sidecar`, `record`, `checkpoint_file` and `recorder`;
//! `open` (the start); the life of a log: `roll`, `log_start`, `retention`, `deletion`, `descriptors`, `truncate` with `cuts`, `begin_anew`, `visit`; what goes wrong: `space`,
//! `file_system`, `damage`, `behind`, `checked`, `scrub`; `stats`. Beside a log that a replicated machine lives by: `machine_snapshot_file`
//! and `machine_snapshots`.

mod begin_anew;
mod behind;
mod bypass;
mod checked;
mod checked_text;
pub mod checkpoint;
pub mod checkpoint_file;
pub mod compaction;
pub mod core_storage;
pub(crate) mod cover;
mod cuts;
mod damage;
pub mod data_directory;
mod deletion;
mod descriptors;
mod durable;
pub(crate) mod durable_folder;
mod file_system;
mod first_read;
mod flush;
pub mod folder;
mod index;
mod journal_folder;
pub mod log;
mod log_start;
pub mod machine_snapshot_file;
pub mod machine_snapshots;
mod open;
mod pace;
pub mod read;
mod record;
pub mod recorder;
pub mod recovered;
pub mod retention;
mod roll;
mod scan;
pub mod scrub;
mod segment;
mod segment_file;
mod set_aside;
pub mod settings;
pub(crate) mod side_by_side;
pub mod sidecar;
mod sidecar_file;
pub mod space;
pub mod stats;
pub mod sums;
mod tail;
pub mod time_lookup;
pub mod truncate;
mod visit;
mod workload;

pub use behind::ServedBehind;
pub use checkpoint::CheckpointReport;
pub use checkpoint_file::PartitionCheckpoint;
pub use core_storage::{CoreStorage, Durable, StorageError};
pub use data_directory::{DataDirectory, DataDirectoryError, Identity};
pub use log::{Damage, Log, LogId, StampedBatch};
pub use machine_snapshots::{MachineSnapshots, MachineSnapshotsError};
pub use open::LogVisitor;
pub use read::{LogPiece, LogRead, ReadError, ReadPlan, TailPiece};
pub use recovered::{NodeRecovery, RecoveredPartition, RecoveryReport, SegmentInfo, ShardRecovery};
pub use retention::{BytesAhead, Retention, SegmentFacts};
pub use scrub::ScrubReport;
pub use segment_file::SegmentFile;
pub use settings::{LogSettings, StorageSettings};
pub use space::{SpaceFigures, SpaceLevel, SpaceSettings, SpaceShortage};
pub use stats::StorageStats;
pub use time_lookup::{TimeHit, TimePlan};
pub use truncate::{EpochEnd, TruncateError, Truncated};
