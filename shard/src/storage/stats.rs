//! What one core's storage counts. Plain numbers; whoever publishes them copies.

use std::time::Duration;

use super::space::SpaceFigures;
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
    /// Bytes that a checkpoint wrote, or is about to, and has not yet synced.
    pub unsynced_bytes: u64,
    /// How long the oldest record that is in no segment yet has waited: behind by this and [`StorageStats::dirty_bytes`].
    pub checkpoint_lag: Duration,
    /// Memory of all segments' indexes and checksums.
    pub index_bytes: u64,
    pub checkpoints: u64,
    /// Bytes that checkpoints wrote to segments.
    pub checkpoint_bytes: u64,
    /// Entries copied into newer journal files.
    pub carried_entries: u64,
    /// Their bytes.
    pub carried_bytes: u64,
    /// Bytes of segments that were read and checked when logs were opened.
    pub scanned_bytes: u64,
    /// Sidecars made by reading their segment.
    pub sidecars_rebuilt: u64,
    /// Bytes written to the checkpoint file.
    pub record_bytes: u64,
    /// Records that did not fit into the checkpoint file's bound.
    pub records_skipped: u64,
    /// Segments that had to be written to a new file because a sync failed.
    pub segments_rewritten: u64,
    pub logs_poisoned: u64,
    /// Bytes of batches that were appended.
    pub appended_bytes: u64,
    /// Of them, those that the journal holds by reference only. Their writes count among those of checkpoints.
    pub bypass_bytes: u64,
    pub space: SpaceFigures,
    /// Segments removed below a log's start, and their bytes.
    pub segments_removed: u64,
    pub bytes_removed: u64,
    /// Places found damaged and not removed since.
    pub damaged_places: u64,
    /// Bytes that the scrub compared with their checksums, and blocks that it found damaged or could not read.
    pub scrubbed_bytes: u64,
    pub scrub_errors: u64,
    /// Passes of the scrub over all segments, and the time since the last one ended.
    pub scrub_passes: u64,
    pub scrub_age: Option<Duration>,
    /// Reads of segments that the device refused.
    pub read_errors: u64,
    /// Segments with timestamps further in the future than a clock may be wrong, at the last look of retention.
    pub segments_in_future: u64,
    /// Deleted partitions whose folder is not yet gone.
    pub deletes_pending: u64,
}
