//! The last look before a journal file is used again: did any write to the segments' file system fail unseen?
//!
//! Each segment's own sync tells its errors, as long as no descriptor with unsynced writes was closed. This asks the file
//! system as a whole, by one descriptor that is open since before the first write, so that an error which everybody missed
//! is heard while the journal still holds what it lost.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringlog_io::{File, Io, OpenOptions};

use crate::limits::{FILE_SYSTEM_FAILURE_WAIT_MS, FILE_SYSTEM_FAILURE_WAITS_MAX};

/// Failures that some core of the node was told of and dealt with. Shared by all of them: the file system tells of each to
/// every core's descriptor.
#[derive(Debug, Default)]
pub(crate) struct NodeFailures {
    count: AtomicU64,
}

impl NodeFailures {
    fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }
}

/// One core's view of the file system of the segments. Lives on that core.
#[derive(Debug)]
pub(crate) struct FileSystemWatch {
    /// `None` when nothing is stored in files.
    file: Option<File>,
    /// What was dealt with, and how much of it before the last look.
    known: Arc<NodeFailures>,
    known_before: Cell<u64>,
}

impl FileSystemWatch {
    /// Before the first write.
    ///
    /// # Errors
    /// The folder of the data cannot be made or opened.
    pub(crate) async fn open(io: &Io, data: &Path, known: Arc<NodeFailures>) -> io::Result<FileSystemWatch> {
        io.create_directories(data).await?;
        let file = io.open(data, OpenOptions::READ).await?;
        let known_before = Cell::new(known.count());
        Ok(FileSystemWatch { file: Some(file), known, known_before })
    }

    /// Memory only: nothing fails.
    pub(crate) fn nothing() -> FileSystemWatch {
        FileSystemWatch { file: None, known: Arc::default(), known_before: Cell::new(0) }
    }

    /// A write or a sync failed, and whoever asked for it deals with it.
    pub(crate) fn note_failure(&self) {
        self.known.count.fetch_add(1, Ordering::AcqRel);
    }

    /// Asks whether a write failed since the last time that nobody knows of.
    ///
    /// # Errors
    /// The error of such a write. What it lost is unknown; nothing that the journal holds may be given up.
    pub(crate) async fn check(&self, io: &Io) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let Err(error) = io.sync_file_system(file).await else {
            self.known_before.set(self.known.count());
            return Ok(());
        };
        let mut waits = 0;
        while self.known_before.get() == self.known.count() {
            // Another core's failure may be on its way to it.
            if waits == FILE_SYSTEM_FAILURE_WAITS_MAX {
                return Err(error);
            }
            waits += 1;
            io.sleep(Duration::from_millis(FILE_SYSTEM_FAILURE_WAIT_MS)).await;
        }
        self.known_before.set(self.known.count());
        // Told of once: a second error is another one.
        tracing::warn!(%error, "a failed write that was dealt with is heard of again");
        io.sync_file_system(file).await
    }
}
