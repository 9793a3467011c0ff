//! The last look before a journal file is used again: did any write to the segments' file system fail unseen?
//!
//! Each segment's own sync tells its errors, as long as no descriptor with unsynced writes was closed. This asks the file
//! system as a whole, by one descriptor that is open since before the first write, so that an error which everybody missed
//! is heard while the journal still holds what it lost.

use std::cell::Cell;
use std::io;
use std::path::Path;

use ringlog_io::{File, Io, OpenOptions};

/// One core's view of the file system of the segments. Lives on that core.
#[derive(Debug)]
pub(crate) struct FileSystemWatch {
    /// `None` when nothing is stored in files.
    file: Option<File>,
    /// A write or sync failed since the last look and was dealt with: the file system tells of it too.
    is_failure_known: Cell<bool>,
}

impl FileSystemWatch {
    /// Before the first write.
    ///
    /// # Errors
    /// The folder of the data cannot be made or opened.
    pub(crate) async fn open(io: &Io, data: &Path) -> io::Result<FileSystemWatch> {
        io.create_directories(data).await?;
        let file = io.open(data, OpenOptions::READ).await?;
        Ok(FileSystemWatch { file: Some(file), is_failure_known: Cell::new(false) })
    }

    /// Memory only: nothing fails.
    pub(crate) fn nothing() -> FileSystemWatch {
        FileSystemWatch { file: None, is_failure_known: Cell::new(false) }
    }

    /// A write or a sync failed, and whoever asked for it deals with it.
    pub(crate) fn note_failure(&self) {
        self.is_failure_known.set(true);
    }

    /// Asks whether a write failed since the last time that nobody knows of.
    ///
    /// # Errors
    /// The error of such a write. What it lost is unknown; nothing that the journal holds may be given up.
    pub(crate) async fn check(&self, io: &Io) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let Err(error) = io.sync_file_system(file).await else {
            self.is_failure_known.set(false);
            return Ok(());
        };
        if !self.is_failure_known.replace(false) {
            return Err(error);
        }
        // Told of once: a second error is another one.
        tracing::warn!(%error, "a failed write that was dealt with is heard of again");
        io.sync_file_system(file).await
    }
}
