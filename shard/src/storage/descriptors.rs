//! The budget of open segment files: of one core, counted where they are opened, kept by closing those used longest ago.
//!
//! Owns the count and the choice. A file with unsynced writes is never closed (the kernel would drop their error); one that
//! a reader holds stays open for that reader, and is opened again for the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::core_storage::{Core, Inner};
use super::segment::SegmentHandle;

/// How many segment files one core has open, and how many it may. Shared with its handles, which open them, perhaps for
/// readers on other cores.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    open_max: u64,
    open: AtomicU64,
    /// Counts uses: the order in which files were used.
    uses: AtomicU64,
}

impl OpenFiles {
    pub(crate) fn new(open_max: u64) -> OpenFiles {
        OpenFiles { open_max, open: AtomicU64::new(0), uses: AtomicU64::new(0) }
    }

    pub(crate) fn note_opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// The number of this use.
    pub(crate) fn next_use(&self) -> u64 {
        self.uses.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.open() > self.open_max
    }

    /// Closes some at once, so that not every open has to look for one to close.
    fn target(&self) -> u64 {
        self.open_max - self.open_max / 8
    }
}

impl Default for OpenFiles {
    fn default() -> Self {
        OpenFiles::new(u64::MAX)
    }
}

impl Inner {
    /// Closes files while more are open than may be.
    pub(super) fn keep_descriptors(&self) {
        if self.files.is_over() {
            ringlog_io::reached!("descriptors.closed");
            let closed = close_least_used(&self.core.borrow(), &self.files);
            tracing::debug!(closed, open = self.files.open(), "closed segment files");
        }
    }
}

fn close_least_used(core: &Core, files: &OpenFiles) -> u64 {
    let mut idle: Vec<(u64, &Arc<SegmentHandle>)> = Vec::new();
    for log in core.logs() {
        let all = log.segments.iter().chain(log.behind.iter().map(|behind| &behind.segment));
        let clean = all.filter(|segment| segment.synced_bytes == segment.bytes);
        let closable = clean.map(|segment| &segment.handle).filter(|handle| handle.is_closable());
        idle.extend(closable.map(|handle| (handle.last_use(), handle)));
    }
    idle.sort_unstable_by_key(|(last_use, _)| *last_use);
    let mut closed = 0;
    for (_, handle) in idle {
        if files.open() <= files.target() {
            break;
        }
        closed += u64::from(handle.close());
    }
    closed
}
