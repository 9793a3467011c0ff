//! One compaction of one log: fill the map, write new segments, swap them in. In small steps, at a bounded rate, in the background.
//!
//! Owns what is asked of a segment before it is touched: it takes no more batches, all of it is synced, it ends at or below the
//! bound that the caller gave, and a durable synced-to says that no journal entry of it is ever replayed again. Records are read
//! and written by the pool, never on the core; beside the map it holds a few pieces in memory.

use std::cell::Cell;
use std::io;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ringlog_io::{File, OpenOptions};
use ringlog_protocol::ids::{Offset, ProducerId};
use ringlog_protocol::records::retain::RetainError;

use super::choice::{DirtyFacts, goes_with};
use super::filter::{Filter, Filtered, Rules, filter_batches};
use super::key_map::KeyMap;
use super::mark::{COMPACTION_MARK, CompactionMark};
use super::pieces::{Batches, Filling, Piece, Writer};
use super::swap::{Swap, clean_path};
use crate::limits::COMPACTION_GROUP_SEGMENTS_MAX;
use crate::storage::core_storage::{CoreStorage, Inner};
use crate::storage::log::LogId;
use crate::storage::segment::{Segment, SegmentHandle};

/// What is to be done with one log.
#[derive(Clone, Debug)]
pub struct CompactionOrder {
    /// Segments that end here or before may be compacted: no record at or above the high watermark is below it.
    pub until: Offset,
    /// `delete.retention.ms`, milliseconds.
    pub delete_retention_ms: i64,
    /// The offset after each live producer's last batch, sorted.
    pub producers: Vec<(ProducerId, Offset)>,
    /// Memory of the map of keys, bytes.
    pub map_bytes: usize,
    /// Read and written, per second; 0 = as fast as it goes. May be set anew meanwhile.
    pub bytes_per_second: Rc<Cell<u64>>,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionReport {
    /// Records below it are compacted now.
    pub first_dirty: Offset,
    pub segments_before: u64,
    pub segments_after: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Of the segments, before and after.
    pub bytes_before: u64,
    pub bytes_after: u64,
    pub records_dropped: u64,
}

/// Why a log was not compacted, or not to the end. It is whole and serves in any case.
#[derive(Debug, thiserror::Error)]
pub enum CompactionError {
    /// The log changed meanwhile, or goes. Tried again when it is its turn.
    #[error("the log changed meanwhile")]
    Changed,
    /// It needs space for the new segments beside the old ones.
    #[error("there is no space for new segments")]
    NoSpace,
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("{} is damaged at position {position}: {detail}", path.display())]
    Damaged { path: PathBuf, position: u32, detail: String },
    #[error("{}: the records of a batch near position {position} cannot be compacted: {source}", path.display())]
    Records { path: PathBuf, position: u32, source: RetainError },
    #[error("{}: the new segment would be longer than 4 GiB", path.display())]
    TooLong { path: PathBuf },
    /// The new segment is whole and counts from the next start on; until then the old ones are read.
    #[error("{}: the new segment takes its place at the next start only: {source}", path.display())]
    HalfDone { path: PathBuf, source: io::Error },
}

impl CompactionError {
    /// Whether it may go away by itself.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, CompactionError::Changed | CompactionError::NoSpace)
    }
}

/// An old segment.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) handle: Arc<SegmentHandle>,
    pub(super) facts: DirtyFacts,
    pub(super) bytes: u32,
}

/// A new one, whole and synced under its first name.
pub(super) struct Built {
    pub(super) swap: Swap,
    pub(super) file: File,
    pub(super) segment: Segment,
}

impl CoreStorage {
    /// Compacts a log once: as far as `order` and the map allow. Appends and reads go on meanwhile.
    ///
    /// # Errors
    /// See [`CompactionError`]: what was swapped in before stays so, the rest is as it was.
    pub async fn compact(
        &self,
        id: LogId,
        order: &CompactionOrder,
    ) -> Result<CompactionReport, CompactionError> {
        let inner = self.inner();
        let (sources, segment_bytes, mark) = {
            let core = inner.core.borrow();
            let log = core.log(id).ok_or(CompactionError::Changed)?;
            (log.compaction_sources(order.until), log.settings.segment_bytes, log.compaction_mark())
        };
        let mut run = Run { inner, id, order, report: CompactionReport::default() };
        run.report.first_dirty = mark.first_dirty;
        if inner.is_ephemeral || sources.last().is_none_or(|last| last.facts.end <= mark.first_dirty) {
            return Ok(run.report);
        }
        let rules = run.rules(&sources, mark.first_dirty).await?;
        let first_dirty = rules.map_end;
        let reached: Vec<Source> =
            sources.into_iter().take_while(|source| source.facts.base < first_dirty).collect();
        let Some(last) = reached.last().filter(|_| first_dirty > mark.first_dirty) else {
            return Ok(run.report);
        };
        let sequence = inner.say_synced_beyond(id, last.facts.end).await?;
        let compacted_end = mark.compacted_end.max(last.facts.end);
        let mark = CompactionMark { compacted_end, sequence: mark.sequence.max(sequence), ..mark };
        run.remember(mark).await?;
        let rules = Arc::new(rules);
        let mut left = reached.as_slice();
        while !left.is_empty() {
            let count = run.compact_group(left, u64::from(segment_bytes), &rules).await?;
            left = left.get(count.max(1)..).unwrap_or_default();
        }
        run.remember(CompactionMark { first_dirty, ..mark }).await?;
        run.report.first_dirty = first_dirty;
        ringlog_io::reached!("compaction.done");
        Ok(run.report)
    }
}

struct Run<'a> {
    inner: &'a Rc<Inner>,
    id: LogId,
    order: &'a CompactionOrder,
    report: CompactionReport,
}

impl Run<'_> {
    /// Reads the keys of what was never compacted.
    async fn rules(&mut self, sources: &[Source], from: Offset) -> Result<Rules, CompactionError> {
        let end = sources.last().map_or(from, |last| last.facts.end);
        let keys_max = usize::try_from(end.0 - from.0).unwrap_or(usize::MAX);
        let map_bytes = KeyMap::bytes_for(keys_max).min(self.order.map_bytes);
        let io = self.inner.io.clone();
        let secret = (io.random_u64(), io.random_u64());
        // So much memory is not written on the core.
        let mut filling = io.compute(move || Filling::new(KeyMap::with_bytes(map_bytes, secret), from)).await;
        for source in sources.iter().filter(|source| source.facts.end > from) {
            let file = self.open(source).await?;
            let mut batches = Batches::new(self.inner, source, &file);
            while let Some(piece) = batches.next_piece().await? {
                self.pace(piece.bytes, 0).await;
                let Piece { batches: piece_batches, position, .. } = piece;
                let filled = io.compute(move || filling.take(&piece_batches)).await;
                filling = filled.map_err(|source_error| CompactionError::Records {
                    path: source.handle.path().to_owned(),
                    position,
                    source: RetainError::Read(source_error),
                })?;
                if filling.is_over {
                    break;
                }
            }
            if filling.is_over {
                ringlog_io::reached!("compaction.map_full");
                break;
            }
        }
        Ok(Rules {
            map: filling.map,
            map_end: filling.end.max(from),
            now_ms: io.wall_now_ms(),
            delete_retention_ms: self.order.delete_retention_ms,
            producers: self.order.producers.clone(),
        })
    }

    /// Makes one new segment of the first of these, of as many as go into it, and swaps it in; returns how many.
    async fn compact_group(
        &mut self,
        sources: &[Source],
        segment_bytes: u64,
        rules: &Arc<Rules>,
    ) -> Result<usize, CompactionError> {
        let Some(first) = sources.first() else { return Ok(0) };
        let room = usize::try_from(segment_bytes.max(u64::from(first.bytes))).unwrap_or(usize::MAX);
        if self.inner.space.admit(room).is_err() {
            return Err(CompactionError::NoSpace);
        }
        let folder = first.handle.path().parent().unwrap_or(Path::new("")).to_owned();
        let clean_path = clean_path(&folder, first.facts.base);
        let (count, built) = match self.write_group(sources, segment_bytes, rules, &clean_path).await {
            Ok(written) => written,
            Err(error) => {
                self.remove(&clean_path).await?;
                return Err(self.judge(error));
            }
        };
        let group = sources.get(..count).unwrap_or_default();
        let old_bytes: u64 = group.iter().map(|source| u64::from(source.bytes)).sum();
        let new_bytes = built.as_ref().map_or(old_bytes, |built| u64::from(built.segment.bytes));
        match built {
            Some(built) => self.inner.swap_in(self.id, group, built, &folder).await?,
            // Nothing of it would change.
            None => self.remove(&clean_path).await?,
        }
        self.report.segments_before += count as u64;
        self.report.segments_after += 1;
        self.report.bytes_before += old_bytes;
        self.report.bytes_after += new_bytes;
        Ok(count)
    }

    /// An error of a log that goes is none of the device's.
    fn judge(&self, error: CompactionError) -> CompactionError {
        let is_there = self.inner.core.borrow().log(self.id).is_some();
        if is_there { error } else { CompactionError::Changed }
    }

    /// Writes the new segment, of as many of the old ones as go into it; none if it would be the old one.
    async fn write_group(
        &mut self,
        sources: &[Source],
        segment_bytes: u64,
        rules: &Arc<Rules>,
        path: &Path,
    ) -> Result<(usize, Option<Built>), CompactionError> {
        let failed = |source| CompactionError::Io { path: path.to_owned(), source };
        let io = self.inner.io.clone();
        let base = sources.first().map_or(Offset(0), |first| first.facts.base);
        let file = io.open(path, OpenOptions::READ_WRITE_CREATE.with_truncate()).await.map_err(failed)?;
        let segment = {
            let core = self.inner.core.borrow();
            let log = core.log(self.id).ok_or(CompactionError::Changed)?;
            Segment::new(&log.folder, log.key, base, log.settings.index_interval_bytes, &log.files)
        };
        let mut writer = Writer::new(file.clone(), path.to_owned(), segment);
        let (mut filter, mut count, mut end) = (Filter::default(), 0, base);
        for source in sources {
            let bytes = u64::from(writer.segment.bytes);
            let count_max = COMPACTION_GROUP_SEGMENTS_MAX;
            if !goes_with(&source.facts, base, bytes, count, segment_bytes, count_max) {
                break;
            }
            filter = self.filter_source(source, filter, rules, &mut writer).await?;
            (count, end) = (count + 1, source.facts.end);
        }
        let mut out = Filtered::default();
        filter.finish(&mut out);
        writer.write(self.inner, out).await?;
        if writer.end != end {
            let detail = format!("it ends at offset {}, not {end}", writer.end);
            return Err(CompactionError::Damaged { path: path.to_owned(), position: 0, detail });
        }
        if writer.changed == 0 && count == 1 {
            return Ok((count, None));
        }
        io.sync_all(&file).await.map_err(failed)?;
        Ok((count, Some(Built { swap: Swap { base, end }, file, segment: writer.segment })))
    }

    /// Writes what is left of one old segment.
    async fn filter_source(
        &mut self,
        source: &Source,
        mut filter: Filter,
        rules: &Arc<Rules>,
        writer: &mut Writer,
    ) -> Result<Filter, CompactionError> {
        let old = self.open(source).await?;
        let mut batches = Batches::new(self.inner, source, &old);
        while let Some(piece) = batches.next_piece().await? {
            let (bytes, position) = (piece.bytes, piece.position);
            let rules = Arc::clone(rules);
            let work = move || filter_batches(filter, &rules, &piece.batches);
            let (after, out) = self.inner.io.compute(work).await.map_err(|error| {
                CompactionError::Records { path: source.handle.path().to_owned(), position, source: error }
            })?;
            filter = after;
            self.report.records_dropped += out.records_dropped;
            self.pace(bytes, out.bytes.len() as u64).await;
            writer.write(self.inner, out).await?;
        }
        Ok(filter)
    }

    async fn open(&self, source: &Source) -> Result<File, CompactionError> {
        let opened = source.handle.open(&self.inner.io).await;
        let path = || source.handle.path().to_owned();
        opened.map_err(|error| self.judge(CompactionError::Io { path: path(), source: error }))
    }

    async fn remove(&self, path: &Path) -> Result<(), CompactionError> {
        match self.inner.io.remove_file(path).await {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(self.judge(CompactionError::Io { path: path.to_owned(), source }))
            }
            _ => Ok(()),
        }
    }

    /// Keeps the mark in the folder and in memory.
    async fn remember(&self, mark: CompactionMark) -> Result<(), CompactionError> {
        let (folder, key) = {
            let core = self.inner.core.borrow();
            let log = core.log(self.id).ok_or(CompactionError::Changed)?;
            (log.folder.clone(), log.key)
        };
        let path = folder.join(COMPACTION_MARK);
        let written = self.inner.io.replace_file(&path, mark.encode(key)).await;
        written.map_err(|source| self.judge(CompactionError::Io { path, source }))?;
        if let Some(log) = self.inner.core.borrow_mut().log_mut(self.id) {
            log.compaction = mark;
        }
        Ok(())
    }

    /// So many bytes were read and written: waits for their time.
    async fn pace(&mut self, bytes_read: u64, bytes_written: u64) {
        self.report.bytes_read += bytes_read;
        self.report.bytes_written += bytes_written;
        let mut left = bytes_read.saturating_add(bytes_written);
        // A second at a time, so that another rate holds at once.
        while let Some(second) =
            left.checked_sub(1).and_then(|_| NonZeroU64::new(self.order.bytes_per_second.get()))
        {
            let slice = left.min(second.get());
            let nanos = u128::from(slice) * 1_000_000_000 / u128::from(second.get());
            self.inner.io.sleep(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))).await;
            left -= slice;
        }
        self.inner.io.yield_now().await;
    }
}
