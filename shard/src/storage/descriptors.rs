//! The budget of open segment files: of one core, counted where they are opened, kept by closing those used longest ago.
//!
//! Owns the count and the choice. A file with unsynced writes is never closed (the kernel would drop their error); one that
//! a reader holds is not closed either: that would win no descriptor and lose the count of it.
//!
//! Also owns what a write does when the process has none left: it gives up idle ones and waits. That passes, and the bytes are in
//! the journal or in memory meanwhile, so no log is given up for it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ringlog_io::is_out_of_descriptors;

use super::core_storage::{Core, Inner};
use super::log::LogId;
use super::segment::SegmentHandle;
use crate::limits::CHECKPOINT_RETRY_MS;

/// How many segment files one core has open, and how many it may. Shared with its handles, which open them, perhaps for
/// readers on other cores.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    open_max: u64,
    open: AtomicU64,
    /// Counts uses: the order in which files were used.
    uses: AtomicU64,
    /// The use before which nobody looks for files to close: readers held too many at the last look.
    next_look: AtomicU64,
}

impl OpenFiles {
    pub(crate) fn new(open_max: u64) -> OpenFiles {
        OpenFiles { open_max, open: AtomicU64::new(0), uses: AtomicU64::new(0), next_look: AtomicU64::new(0) }
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

    /// Whether it is time to close some.
    fn wants_a_look(&self) -> bool {
        self.is_over() && self.uses.load(Ordering::Relaxed) >= self.next_look.load(Ordering::Relaxed)
    }

    /// Some were closed, or could not be: while too many are held, looking again at once would find the same.
    fn note_look(&self) {
        if self.is_over() {
            let pause = (self.open_max / 8).max(1);
            self.next_look.store(self.uses.load(Ordering::Relaxed).saturating_add(pause), Ordering::Relaxed);
        }
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
        if self.files.wants_a_look() {
            ringlog_io::reached!("descriptors.closed");
            let closed = close_least_used(&self.core.borrow(), &self.files, self.files.target());
            self.files.note_look();
            tracing::debug!(closed, open = self.files.open(), "closed segment files");
        }
    }

    /// Does something with the files of a log, again and again while it fails because no descriptor is left, each time after a
    /// pause. `error_of` finds the error. Ends with it if the log has gone or takes no more writes anyway.
    pub(super) async fn with_descriptors<T, E>(
        &self,
        id: LogId,
        error_of: impl Fn(&E) -> &io::Error,
        mut attempt: impl AsyncFnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut has_waited = false;
        loop {
            let error = match attempt().await {
                Err(error) if is_out_of_descriptors(error_of(&error)) && self.takes_writes(id) => error,
                result => return result,
            };
            let closed = close_least_used(&self.core.borrow(), &self.files, self.files.open() / 2);
            if !has_waited {
                let error = error_of(&error);
                tracing::warn!(%error, closed, "no descriptor is left for a segment; waiting for one");
                ringlog_io::reached!("descriptors.waited_for");
            }
            has_waited = true;
            self.io.sleep(Duration::from_millis(CHECKPOINT_RETRY_MS)).await;
        }
    }

    fn takes_writes(&self, id: LogId) -> bool {
        let is_open = self.core.borrow().log(id).is_some_and(|log| log.poison.is_none());
        is_open && !self.journal.is_poisoned()
    }
}

/// Closes idle files, those used longest ago first, until `target` are open.
fn close_least_used(core: &Core, files: &OpenFiles, target: u64) -> u64 {
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
        if files.open() <= target {
            break;
        }
        closed += u64::from(handle.close());
    }
    closed
}
