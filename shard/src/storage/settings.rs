//! What a core's storage is told at start. Values only.

use crate::journal::JournalSettings;

/// Settings of one core's storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageSettings {
    pub journal: JournalSettings,
    /// Bytes of records kept in memory, counted as allocated. Clean ones go oldest first once it is exceeded; at half of
    /// it in unflushed bytes a checkpoint starts, at all of it [`super::CoreStorage::is_full`] says so.
    pub tail_bytes_max: usize,
}

impl StorageSettings {
    /// For a laptop.
    pub const DEV: StorageSettings =
        StorageSettings { journal: JournalSettings::DEV, tail_bytes_max: 32 * 1024 * 1024 };
    /// For a server of unknown size.
    pub const SERVER: StorageSettings =
        StorageSettings { journal: JournalSettings::SERVER, tail_bytes_max: 512 * 1024 * 1024 };

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
}

impl Default for LogSettings {
    /// Kafka's defaults.
    fn default() -> Self {
        LogSettings { segment_bytes: 1024 * 1024 * 1024, index_interval_bytes: 4096 }
    }
}
