//! What one core's storage counts. Plain numbers; whoever publishes them copies.

use crate::journal::JournalStats;

/// One core's storage now and since start.
#[derive(Clone, Debug, Default)]
pub struct StorageStats {
    pub journal: JournalStats,
    /// Open logs.
    pub logs: u64,
    pub segments: u64,
    /// Segment and journal files that are open.
    pub files_open: u64,
    /// Memory allocated for records.
    pub tail_bytes: u64,
    /// Bytes of records that are in no segment yet.
    pub dirty_bytes: u64,
    /// Memory of all segments' indexes.
    pub index_bytes: u64,
    pub checkpoints: u64,
    /// Bytes that checkpoints wrote to segments.
    pub checkpoint_bytes: u64,
    /// Entries copied into newer journal files.
    pub carried_entries: u64,
    /// Segments that had to be written to a new file because a sync failed.
    pub segments_rewritten: u64,
    pub logs_poisoned: u64,
    /// Deleted partitions whose folder is not yet gone.
    pub deletes_pending: u64,
}
