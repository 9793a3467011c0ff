//! A segment's file for somebody who comes to it later: a reply that waits for its peer. Owns no bytes.

use std::io;
use std::sync::Arc;

use ringlog_io::{File, Io, OpenOptions};

use super::segment::SegmentHandle;

/// The file of a segment. It holds a descriptor where the core may have another one open; elsewhere it opens one when asked and
/// keeps it for nobody, so that a reply over thousands of segments takes one at a time.
///
/// Downside of the second kind: once the segment is deleted there is nothing to open.
#[derive(Clone, Debug)]
pub struct SegmentFile {
    handle: Arc<SegmentHandle>,
    held: Option<File>,
}

impl SegmentFile {
    /// `None` when the file cannot be opened any more.
    pub(crate) async fn of(handle: &Arc<SegmentHandle>, io: &Io) -> Option<SegmentFile> {
        let held = match handle.is_over_budget() {
            true => None,
            false => Some(handle.open(io).await.ok()?),
        };
        Some(SegmentFile { handle: Arc::clone(handle), held })
    }

    /// The file, for reading.
    ///
    /// # Errors
    /// The segment is gone, or the process has no descriptor left.
    pub async fn open(&self, io: &Io) -> io::Result<File> {
        match &self.held {
            Some(file) => Ok(file.clone()),
            None if self.handle.is_kept_open() => self.handle.open(io).await,
            None => io.open(self.handle.path(), OpenOptions::READ).await,
        }
    }
}
