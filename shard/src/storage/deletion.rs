//! Deleted logs on their way out: durable in the journal first, then the folder goes, then the entry may go too.

use std::sync::Arc;

use ringlog_protocol::ids::TopicPartition;

use super::core_storage::{Core, Inner};
use super::folder::partition_folder;
use super::log::{Log, LogId};
use super::segment::SegmentHandle;

/// A deleted log whose folder is not yet durably gone.
#[derive(Debug)]
pub(super) struct Deleting {
    pub(super) key: TopicPartition,
    /// Of its delete entry.
    pub(super) sequence: u64,
    id: LogId,
    is_durable: bool,
    /// Logged once; tried again with each checkpoint and at the next start.
    has_failed: bool,
    /// Kept open: until the folder is gone their unsynced writes have an error to tell.
    _handles: Vec<Arc<SegmentHandle>>,
}

impl Deleting {
    pub(super) fn new(log: Log, sequence: u64) -> Deleting {
        let handles = log.segments.iter().map(|segment| Arc::clone(&segment.handle)).collect();
        Deleting {
            key: log.key,
            sequence,
            id: log.id,
            is_durable: false,
            has_failed: false,
            _handles: handles,
        }
    }
}

impl Core {
    /// The delete entry of this log is durable; whether somebody waits for that.
    pub(super) fn note_delete_durable(&mut self, id: LogId) -> bool {
        let found = self.deleting.iter_mut().find(|deleting| deleting.id == id);
        found.map(|deleting| deleting.is_durable = true).is_some()
    }

    /// Whether a folder waits to be removed for the first time.
    pub(super) fn has_folder_to_remove(&self) -> bool {
        self.deleting.iter().any(|deleting| deleting.is_durable && !deleting.has_failed)
    }
}

/// Removes the folders of all durably deleted logs. Runs in a checkpoint's turn, so that no flush makes one anew.
pub(super) async fn remove_folders(inner: &Inner) {
    let keys: Vec<TopicPartition> = inner
        .core
        .borrow()
        .deleting
        .iter()
        .filter(|deleting| deleting.is_durable)
        .map(|deleting| deleting.key)
        .collect();
    for key in keys {
        let folder = partition_folder(&inner.data, key);
        let removed = async {
            if inner.io.path_exists(&folder).await? {
                inner.io.remove_directory_all(&folder).await?;
                inner.sync_parent(&folder).await?;
            }
            std::io::Result::Ok(())
        };
        let result = removed.await;
        let mut core = inner.core.borrow_mut();
        match result {
            Ok(()) => core.deleting.retain(|deleting| deleting.key != key),
            Err(error) => {
                let path = folder.display();
                tracing::warn!(%path, %error, "the folder of a deleted partition stays; tried again later");
                for deleting in core.deleting.iter_mut().filter(|deleting| deleting.key == key) {
                    deleting.has_failed = true;
                }
            }
        }
    }
}
