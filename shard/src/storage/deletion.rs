//! Deleted logs, and segments below a log's start, on their way out: durable in the journal first, then the files go, then
//! the entry may go too.
//!
//! A segment goes only when all of it is synced: until then the journal would bring it back. Its descriptor stays open as
//! long as a reader holds it, so an answer that was promised is still sent.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ringlog_protocol::ids::{Offset, TopicPartition};

use super::core_storage::{Core, Inner};
use super::damage::DamageList;
use super::folder::{partition_folder, segment_name, sidecar_path};
use super::log::{Log, LogId, TailBatch};
use super::recovered::{CoveredEnd, RecoveredPartition, SegmentInfo};
use super::segment::SegmentHandle;
use super::workload;

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

    /// Whether files wait to be removed for the first time.
    pub(super) fn has_folder_to_remove(&self) -> bool {
        self.deleting.iter().any(|deleting| !deleting.has_failed && self.may_remove(deleting))
            || self.retiring.iter().any(|id| self.log(*id).is_some_and(Log::has_retired_segment))
    }

    /// Whether the folder may go: durably deleted, and nobody is writing a segment, which would make the folder anew.
    fn may_remove(&self, deleting: &Deleting) -> bool {
        deleting.is_durable && !self.writing.contains(&deleting.id)
    }

    /// Takes the segments out of memory that lie wholly below their log's durable start. Those with unflushed records
    /// wait for the flush, unless `unflushed_too`.
    fn take_retired(
        &mut self,
        id: LogId,
        unflushed_too: bool,
        damage: &DamageList,
    ) -> Vec<Arc<SegmentHandle>> {
        let mut handles = Vec::new();
        let Some(log) = self.logs.get_mut(id.slot as usize).filter(|log| log.id == id) else {
            return handles;
        };
        if log.clean_count > 0
            && let Some(front) = log.tail.front()
        {
            self.tail.unset_evictable(front.stamp);
        }
        while let Some(base) = log.retired_segment(unflushed_too) {
            while let Some(batch) = log.take_tail_batch_of(base) {
                match log.clean_count.checked_sub(1) {
                    Some(left) => log.clean_count = left,
                    None => self.tail.remove_dirty(batch.bytes.len()),
                }
                self.tail.release(batch.owner);
            }
            let segment = log.segments.pop_front().expect("its base was just read");
            self.counters.segments_removed += 1;
            self.counters.bytes_removed += u64::from(segment.bytes);
            handles.push(segment.handle);
        }
        if log.clean_count > 0
            && let Some(front) = log.tail.front()
        {
            self.tail.set_evictable(front.stamp, id);
        }
        log.validate();
        let first_left = log.segments.front().map_or(log.log_end, |segment| segment.base);
        damage.forget(log.key, first_left);
        if !log.is_first_segment_below_start() && log.cuts.is_empty() {
            self.retiring.remove(&id);
        }
        handles
    }
}

impl Log {
    /// The oldest segment ends at or below the durable start.
    fn is_first_segment_below_start(&self) -> bool {
        let end = match self.segments.get(1) {
            Some(next) => next.base,
            // Its file may hold more, behind the damage.
            None if self.damage.is_some() => return false,
            // A crash before a truncation is durable brings back what it cut off.
            None if !self.cuts.is_empty() => return false,
            None => self.log_end,
        };
        !self.segments.is_empty() && end <= self.starts.durable()
    }

    /// The oldest batch in memory, if it lies in this segment.
    fn take_tail_batch_of(&mut self, base: Offset) -> Option<TailBatch> {
        let is_there = self.tail.front().is_some_and(|batch| batch.segment_base == base);
        if is_there { self.tail.pop_front() } else { None }
    }

    /// Whether all that is left of it may go.
    pub(super) fn is_wholly_retired(&self) -> bool {
        let is_synced = self.segments.iter().all(|segment| segment.synced_bytes == segment.bytes);
        !self.segments.is_empty()
            && is_synced
            && self.damage.is_none()
            && self.cuts.is_empty()
            && self.log_end <= self.starts.durable()
    }

    fn has_retired_segment(&self) -> bool {
        self.retired_segment(false).is_some()
    }

    /// Base of the oldest segment, if it may go.
    fn retired_segment(&self, unflushed_too: bool) -> Option<Offset> {
        let first = self.segments.front().filter(|_| self.is_first_segment_below_start())?;
        (unflushed_too || first.synced_bytes == first.bytes).then_some(first.base)
    }
}

impl Inner {
    /// A log's start became durable: lets what lies below it go, and whoever waits for it go on.
    pub(super) fn retire(&self) {
        let mut core = self.core.borrow_mut();
        if core.retiring.is_empty() {
            return;
        }
        if self.is_ephemeral {
            let ids: Vec<LogId> = core.retiring.iter().copied().collect();
            for id in ids {
                let _closed = core.take_retired(id, true, &self.damage);
            }
            core.retiring.clear();
        }
        drop(core);
        self.work.notify();
        self.life.notify();
    }
}

/// Removes the folders of all durably deleted logs and the segments below durable log starts. Runs in a checkpoint's
/// turn, so that no flush makes one anew.
pub(super) async fn remove_folders(inner: &Inner) {
    remove_segments(inner).await;
    inner.keep_descriptors();
    let keys: Vec<TopicPartition> = {
        let core = inner.core.borrow();
        let may_go = core.deleting.iter().filter(|deleting| core.may_remove(deleting));
        may_go.map(|deleting| deleting.key).collect()
    };
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

async fn remove_segments(inner: &Inner) {
    let ids: Vec<LogId> = inner.core.borrow().retiring.iter().copied().collect();
    workload::record_emptied(inner, &ids).await;
    for id in ids {
        let _lock = inner.lock_segments(id).await;
        let handles = inner.core.borrow_mut().take_retired(id, false, &inner.damage);
        let Some(folder) = handles.first().and_then(|handle| handle.path().parent()).map(Path::to_owned)
        else {
            if inner.core.borrow().log(id).is_none() {
                inner.core.borrow_mut().retiring.remove(&id);
            }
            continue;
        };
        let paths: Vec<PathBuf> = handles.iter().map(|handle| handle.path().to_owned()).collect();
        if let Err(error) = remove_segment_files(inner, &folder, &paths).await {
            let path = folder.display();
            tracing::warn!(%path, %error, "segments below the log's start stay; the next start removes them");
        }
        let (first, count) = (paths.first().map(|path| path.display()), paths.len());
        tracing::debug!(path = ?first, count, "removed segments below the log's start");
    }
}

/// Removes segments and what belongs to them. One that is gone already, or was never flushed, is no error.
pub(super) async fn remove_segment_files(inner: &Inner, folder: &Path, paths: &[PathBuf]) -> io::Result<()> {
    let mut failed = Ok(());
    for path in paths {
        // The sidecar first: a segment without one is read in full, a sidecar without a segment would never go.
        for path in [sidecar_path(path), path.clone()] {
            match inner.io.remove_file(&path).await {
                Err(error) if error.kind() != io::ErrorKind::NotFound => failed = failed.and(Err(error)),
                _ => {}
            }
        }
    }
    if inner.io.path_exists(folder).await? {
        inner.io.sync_directory(folder).await?;
    }
    failed
}

/// Drops the segments of a recovered partition that lie wholly below its durable start: a crash may have kept any of them,
/// and one in the middle, so that the rest would look torn. A damaged partition keeps all that it has.
pub(super) async fn drop_retired(inner: &Inner, recovered: &mut RecoveredPartition) -> io::Result<()> {
    let count = retired_count(&recovered.segments, recovered.log_start, recovered.covered);
    if count == 0 || recovered.damage.is_some() {
        return Ok(());
    }
    let folder = partition_folder(&inner.data, recovered.key);
    let retired = recovered.segments.drain(..count);
    let paths: Vec<PathBuf> = retired.map(|segment| folder.join(segment_name(segment.base))).collect();
    remove_segment_files(inner, &folder, &paths).await
}

fn retired_count(segments: &[SegmentInfo], log_start: Offset, covered: Option<CoveredEnd>) -> usize {
    let mut count = 0;
    while let Some(segment) = segments.get(count) {
        let is_below = match segments.get(count + 1) {
            Some(next) => next.base <= log_start,
            // Nothing acknowledged lies in the last one if the end lies in one that came later.
            None => covered.is_some_and(|end| end.offset <= log_start && end.segment_base > segment.base),
        };
        if !is_below {
            break;
        }
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::ids::LeaderEpoch;

    use super::*;

    fn count(bases: &[i64], log_start: i64, covered: Option<(i64, i64)>) -> usize {
        let segments: Vec<SegmentInfo> =
            bases.iter().map(|base| SegmentInfo { base: Offset(*base), bytes: 1 }).collect();
        let end = |(offset, segment_base)| CoveredEnd {
            offset: Offset(offset),
            epoch: LeaderEpoch(0),
            segment_base: Offset(segment_base),
            position: 1,
        };
        retired_count(&segments, Offset(log_start), covered.map(end))
    }

    #[test]
    fn only_segments_wholly_below_the_start_are_dropped() {
        assert_eq!(count(&[0, 10, 20], 9, Some((30, 20))), 0);
        assert_eq!(count(&[0, 10, 20], 10, Some((30, 20))), 1);
        assert_eq!(count(&[0, 10, 20], 29, Some((30, 20))), 2);
        assert_eq!(count(&[0, 10, 20], 30, Some((30, 20))), 2, "the last one may go on");
        assert_eq!(count(&[0, 10, 20], 30, Some((30, 30))), 3, "its successor is known");
        assert_eq!(count(&[0], 30, None), 0);
        assert_eq!(count(&[], 30, None), 0);
    }
}
