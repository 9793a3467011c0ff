//! What a core's storage is told at start. Values only.

use super::compaction::CompactionSettings;
use super::retention::Retention;
use super::space::SpaceSettings;
use crate::journal::JournalSettings;
use crate::limits::SEGMENT_BATCH_BYTES_MAX;

/// Settings of one core's storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageSettings {
    pub journal: JournalSettings,
    /// Bytes of records kept in memory, counted as allocated. Clean ones go oldest first once it is exceeded; at half of
    /// it in unflushed bytes a checkpoint starts, at all of it [`super::CoreStorage::is_full`] says so.
    pub tail_bytes_max: usize,
    pub space: SpaceSettings,
    /// Batches of at least so many bytes go to their segment at once and the journal gets a reference; 0 = only those that no file of
    /// the journal could hold.
    pub bypass_bytes: usize,
    /// Segment files that the core keeps open; those that are written or read count beyond it while they are.
    pub segment_files_max: u64,
}

impl StorageSettings {
    /// For a laptop.
    pub const DEV: StorageSettings = StorageSettings {
        journal: JournalSettings::DEV,
        tail_bytes_max: 32 * 1024 * 1024,
        space: SpaceSettings { reserve_bytes: None, warn_bytes: None },
        bypass_bytes: 0,
        segment_files_max: 256,
    };
    /// For a server of unknown size.
    pub const SERVER: StorageSettings = StorageSettings {
        journal: JournalSettings::SERVER,
        tail_bytes_max: 512 * 1024 * 1024,
        ..StorageSettings::DEV
    };

    /// Largest batch that can be stored, in bytes. It is in memory until its segment holds it, and what no journal file holds goes to its
    /// segment at once.
    #[must_use]
    pub fn batch_bytes_max(&self) -> usize {
        self.journal.batch_bytes_max().max(self.tail_bytes_max).min(SEGMENT_BATCH_BYTES_MAX)
    }

    /// The server profile for a core that may use `memory_bytes`: the journal takes at most an eighth, since all that it
    /// holds stays in memory until it is in a segment, and the tail a quarter.
    #[must_use]
    pub fn server(memory_bytes: u64) -> StorageSettings {
        let mut settings = StorageSettings::SERVER;
        let files = settings.journal.file_count_max as u64;
        let file_bytes = (memory_bytes / 8 / files) & !4095;
        let smallest = crate::limits::JOURNAL_FILE_BYTES_MIN;
        settings.journal.file_bytes = settings.journal.file_bytes.min(file_bytes).max(smallest);
        settings.tail_bytes_max = usize::try_from(memory_bytes / 4).unwrap_or(usize::MAX);
        settings
    }
}

/// Settings of one log; Kafka's topic configurations of the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// `segment.bytes`: a segment that would exceed it is closed first.
    pub segment_bytes: u32,
    /// `index.interval.bytes`: one index entry for at least so many bytes.
    pub index_interval_bytes: u32,
    /// `segment.ms`: a segment that has filled for longer is closed, in milliseconds; `i64::MAX` = never.
    pub segment_ms: i64,
    /// `segment.jitter.ms`: a segment is closed up to so much earlier, in milliseconds.
    pub segment_jitter_ms: i64,
    /// `retention.ms` and `retention.bytes`.
    pub retention: Retention,
    /// Whether the newest record of each key stays and the others may go (`cleanup.policy` has `compact`), and when.
    pub compaction: Option<CompactionSettings>,
}

impl LogSettings {
    /// Kafka's sizes, and nothing by time: a log that a core keeps for itself loses nothing by age.
    pub const KEEP_ALL: LogSettings = LogSettings {
        segment_bytes: 1024 * 1024 * 1024,
        index_interval_bytes: 4096,
        segment_ms: i64::MAX,
        segment_jitter_ms: 0,
        retention: Retention { age_ms_max: None, bytes_max: None },
        compaction: None,
    };
}

impl Default for LogSettings {
    fn default() -> Self {
        LogSettings::KEEP_ALL
    }
}
