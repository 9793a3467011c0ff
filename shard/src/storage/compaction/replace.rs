//! Old segments give way to a new one: the journal first, then the files, then memory, under the lock of the log's segments.

use std::iter::once;
use std::path::Path;
use std::sync::Arc;

use ringlog_protocol::ids::Offset;

use super::choice::DirtyFacts;
use super::mark::CompactionMark;
use super::run::{Built, CompactionError, Source};
use super::swap::clean_path;
use crate::storage::core_storage::{Core, Inner};
use crate::storage::cover::say_all_synced;
use crate::storage::log::{Log, LogId};
use crate::storage::roll::SegmentTimes;
use crate::storage::segment::Segment;
use crate::storage::sidecar_file;

impl Log {
    /// Its segments that take no more batches, oldest first.
    fn closed_segments(&self) -> impl Iterator<Item = (&Segment, DirtyFacts)> {
        let newest_of = |segment: &Segment| Some(segment.max_timestamp).filter(|newest| *newest >= 0);
        let mut before: Option<i64> = None;
        let pairs = self.segments.iter().zip(self.segments.iter().skip(1));
        pairs.map(move |(segment, next)| {
            let newest_ms = newest_of(segment);
            // Where a start did not read the first batch, it is hardly older than the end of what lies before.
            let first_ms = segment.times.first_ms.or(before).or(newest_ms);
            before = newest_ms.or(before);
            let bytes = u64::from(segment.bytes);
            (segment, DirtyFacts { base: segment.base, end: next.base, bytes, newest_ms, first_ms })
        })
    }

    /// Of those the ones that are in their files, synced.
    fn synced_segments(&self) -> impl Iterator<Item = (&Segment, DirtyFacts)> {
        self.closed_segments().take_while(|(segment, _)| segment.synced_bytes == segment.bytes)
    }

    /// Whether all segments that end at `until` or before are whole in their files, and something behind them is too.
    pub(crate) fn is_synced_beyond(&self, until: Offset) -> bool {
        self.synced_to().segment_base >= until
    }

    /// What may be compacted as far as segments go, once it is synced, and from where on it never was; none of a log that takes no
    /// writes.
    #[must_use]
    pub fn compaction_facts(&self) -> (Vec<DirtyFacts>, Offset) {
        let is_sound = self.damage.is_none() && self.poison.is_none() && self.cuts.is_empty();
        let facts = self.closed_segments().map(|(_, facts)| facts);
        (facts.filter(|_| is_sound).collect(), self.compaction_mark().first_dirty)
    }

    pub(super) fn compaction_sources(&self, until: Offset) -> Vec<Source> {
        if self.damage.is_some() || self.poison.is_some() || !self.cuts.is_empty() {
            return Vec::new();
        }
        let in_reach = self.synced_segments().take_while(|(_, facts)| facts.end <= until);
        let source = |(segment, facts): (&Segment, DirtyFacts)| Source {
            handle: Arc::clone(&segment.handle),
            facts,
            bytes: segment.bytes,
        };
        in_reach.map(source).collect()
    }

    /// How far it was compacted, within its bounds as they are now.
    pub(super) fn compaction_mark(&self) -> CompactionMark {
        let mark = self.compaction;
        CompactionMark { first_dirty: mark.first_dirty.max(self.log_start).min(self.log_end), ..mark }
    }

    /// The place of these segments, if they are still there and as they were.
    fn find_group(&self, group: &[Source]) -> Option<usize> {
        let first = group.first()?;
        let is_sound = self.damage.is_none() && self.poison.is_none() && self.cuts.is_empty();
        let place = self.segments.binary_search_by_key(&first.facts.base, |segment| segment.base).ok()?;
        let there = self.synced_segments().skip(place).take(group.len());
        let is_same = |(there, source): ((&Segment, DirtyFacts), &Source)| {
            Arc::ptr_eq(&there.0.handle, &source.handle) && there.1.end == source.facts.end
        };
        let is_whole = there.zip(group).filter(|pair| is_same(*pair)).count() == group.len();
        (is_sound && is_whole).then_some(place)
    }
}

impl Core {
    /// Puts the new segment in the place of the old ones.
    fn replace_segments(&mut self, id: LogId, place: usize, group: &[Source], built: Built) {
        let Some(log) = self.logs.get_mut(id.slot as usize).filter(|log| log.id == id) else { return };
        let Built { swap, file, mut segment } = built;
        // Batches in memory know places in the old files. All of them are clean, and nothing newer lies before them.
        if log.clean_count > 0
            && let Some(front) = log.tail.front()
        {
            self.tail.unset_evictable(front.stamp);
        }
        while log.tail.front().is_some_and(|batch| batch.segment_base < swap.end) {
            let batch = log.tail.pop_front().expect("it was just looked at");
            log.clean_count = log.clean_count.checked_sub(1).expect("its segment is synced");
            self.tail.release(batch.owner);
        }
        if log.clean_count > 0
            && let Some(front) = log.tail.front()
        {
            self.tail.set_evictable(front.stamp, id);
        }
        let mut old = log.segments.drain(place..place + group.len());
        let (first, last) = (old.next(), old.next_back());
        drop(old);
        let Some(first) = first else { return };
        let last_times = last.map_or(first.times, |last| last.times);
        (segment.synced_bytes, segment.allocated_bytes) = (segment.bytes, segment.bytes);
        segment.times = SegmentTimes { written_ms: last_times.written_ms, is_closed: true, ..first.times };
        segment.handle = Arc::new(first.handle.replaced(file));
        log.segments.insert(place, segment);
        log.record.forget_capture_below(swap.end);
        log.validate();
    }
}

impl Inner {
    /// Makes the journal say durably that entries of segments below `end` are never replayed; returns up to which sequence.
    pub(super) async fn say_synced_beyond(&self, id: LogId, end: Offset) -> Result<u64, CompactionError> {
        let through = {
            let core = self.core.borrow();
            let log = core.log(id).ok_or(CompactionError::Changed)?;
            let synced = log.synced_to();
            let is_beyond = log.is_synced_beyond(end) && log.cuts.is_empty() && log.acknowledged.is_none();
            is_beyond.then_some(synced.through).ok_or(CompactionError::Changed)?
        };
        say_all_synced(self, once(id)).await.map_err(|_| CompactionError::Changed)?;
        Ok(through)
    }

    /// Swaps a new segment in for a group of old ones.
    pub(super) async fn swap_in(
        &self,
        id: LogId,
        group: &[Source],
        built: Built,
        folder: &Path,
    ) -> Result<(), CompactionError> {
        let swap = built.swap;
        {
            let _lock = self.lock_segments(id).await;
            let place = self.core.borrow().log(id).and_then(|log| log.find_group(group));
            let Some(place) = place else {
                self.abandon(group, &built, folder).await;
                return Err(CompactionError::Changed);
            };
            // Whoever reads an old one keeps its file: another one gets its name.
            for source in group {
                source.handle.keep_open();
                if let Err(source_error) = source.handle.open(&self.io).await {
                    self.abandon(group, &built, folder).await;
                    let path = source.handle.path().to_owned();
                    return Err(CompactionError::Io { path, source: source_error });
                }
            }
            let half_done = |source| CompactionError::HalfDone { path: folder.join(swap.name()), source };
            match swap.commit(&self.io, folder).await {
                Ok(synced) => synced.map_err(half_done)?,
                Err(source) => {
                    self.abandon(group, &built, folder).await;
                    return Err(CompactionError::Io { path: clean_path(folder, swap.base), source });
                }
            }
            let old: Vec<Offset> = group.iter().map(|source| source.facts.base).collect();
            swap.finish(&self.io, folder, &old).await.map_err(half_done)?;
            self.core.borrow_mut().replace_segments(id, place, group, built);
            ringlog_io::reached!("compaction.swapped");
        }
        sidecar_file::tend(self, id).await;
        Ok(())
    }

    /// Nothing was swapped in: the old segments go on as before.
    async fn abandon(&self, group: &[Source], built: &Built, folder: &Path) {
        group.iter().for_each(|source| source.handle.let_close());
        let path = clean_path(folder, built.swap.base);
        if let Err(error) = self.io.remove_file(&path).await
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "a segment that is not needed stays; the next start removes it");
        }
    }
}
