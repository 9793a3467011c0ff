//! What a start finds on disk, as values that travel from the recovering executor to the cores.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::ids::{LeaderEpoch, Offset, TopicPartition};

use super::checkpoint_file::PartitionCheckpoint;
use super::compaction::CompactionMark;
use super::file_system::NodeFailures;
use super::recorder::CheckpointPlace;
use super::space::NodeSpace;
use crate::journal::entry::SyncedTo;
use crate::journal::frame::FrameOrigin;
use crate::journal::{JournalFileInfo, JournalPlace};

/// A segment file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    pub base: Offset,
    /// Length of the file, whatever it holds.
    pub bytes: u64,
}

/// End of what was acknowledged: bytes before it must check, an invalid suffix after it is a crash's tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoveredEnd {
    pub offset: Offset,
    pub epoch: LeaderEpoch,
    pub segment_base: Offset,
    pub position: u32,
}

impl CoveredEnd {
    /// The synced-to entry that says so; without an end that nothing was acknowledged.
    pub(crate) fn synced_to(end: Option<CoveredEnd>, through: u64) -> SyncedTo {
        let nothing =
            CoveredEnd { offset: Offset(0), epoch: LeaderEpoch::NONE, segment_base: Offset(0), position: 0 };
        let CoveredEnd { offset, epoch, segment_base, position } = end.unwrap_or(nothing);
        SyncedTo { through, epoch, offset, segment_base, position }
    }
}

/// A partition as recovery leaves it. It goes to [`super::CoreStorage::open_log`].
#[derive(Clone, Debug)]
pub struct RecoveredPartition {
    pub key: TopicPartition,
    /// In the encoding of the partition's consensus group.
    pub hard_state: Option<Bytes>,
    /// Sequence of its journal entry.
    pub hard_state_sequence: u64,
    pub log_start: Offset,
    /// Sequence of the newest log start entry.
    pub log_start_sequence: Option<u64>,
    pub next_sequence: u64,
    /// Bases increase.
    pub segments: Vec<SegmentInfo>,
    pub covered: Option<CoveredEnd>,
    /// The newest state of it that a checkpoint holds, whichever core wrote it. Not looked at yet: opening the log does.
    pub checkpoint: Option<Arc<PartitionCheckpoint>>,
    /// How far it was compacted, as far as its folder remembers.
    pub compaction: Option<CompactionMark>,
    /// Why the log must take no more writes: what recovery could not restore.
    pub damage: Option<super::Damage>,
}

/// What one core starts with.
#[derive(Debug)]
pub struct ShardRecovery {
    pub core: u32,
    /// Every partition of the core that left a trace, by key. [`super::CoreStorage::start`] takes them over and
    /// hands them out again by [`super::CoreStorage::take_recovered`].
    pub partitions: Vec<RecoveredPartition>,
    /// Folder of the topics' folders.
    pub data: PathBuf,
    pub journal: JournalPlace,
    /// Files of the new generation that hold what was carried over.
    pub journal_files: Vec<JournalFileInfo>,
    /// Its checkpoint file.
    pub checkpoint: CheckpointPlace,
    /// Shared by all cores of the node.
    pub space: Arc<NodeSpace>,
    /// The same.
    pub(crate) failures: Arc<NodeFailures>,
}

impl ShardRecovery {
    /// How frames of this core name themselves.
    #[must_use]
    pub fn origin(&self) -> FrameOrigin {
        self.journal.origin
    }
}

/// What the start did, for the log and for tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Generation that was replayed; 0 for an empty directory.
    pub generation: u64,
    pub frames: u64,
    pub entries: u64,
    /// Bytes that data entries brought back into segments.
    pub restored_bytes: u64,
    /// Bytes of data entries that were in place already.
    pub verified_bytes: u64,
    /// Bytes of checkpoint files that were read.
    pub checkpoint_bytes: u64,
    /// Partitions of which a checkpoint speaks.
    pub checkpointed: u64,
    pub partitions: u64,
    /// Partitions removed because their delete entry stood.
    pub deleted: u64,
    /// Damage found, each with file and position.
    pub corruption: Vec<String>,
}

/// What all cores start with.
#[derive(Debug)]
pub struct NodeRecovery {
    /// One per core, by number.
    pub shards: Vec<ShardRecovery>,
    pub report: RecoveryReport,
}
