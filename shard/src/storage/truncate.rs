//! Truncation: a follower drops the end of its log that its leader does not have (KIP-101).
//!
//! Owns the order. The place is found; the entry goes to the journal and memory follows in the same turn, so that appends may
//! follow at once; the files are cut once the entry is durable, before anything that was appended since is written to
//! them; only then may a synced-to cover the entry. A crash anywhere finds the entry and cuts, or does not and has not.
//!
//! A log is cut between batches only: where the offset lies inside one, at the boundary below, as Kafka does. Half a batch
//! has no checksum, and the leader sends the whole one again.

use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use ringlog_io::{Priority, is_out_of_descriptors};
use ringlog_protocol::ids::{LeaderEpoch, Offset};
use ringlog_protocol::records::batch::BatchHeader;

use super::bypass::SegmentLock;
use super::core_storage::{Core, CoreStorage, Inner, StorageError};
use super::cuts::Cut;
use super::deletion::remove_segment_files;
use super::folder::sidecar_path;
use super::index::{IndexPoint, SparseIndex};
use super::log::{Log, LogId};
use super::scan::{HeaderWalk, WalkError};
use super::segment::SegmentHandle;
use crate::journal::entry::EntryBody;
use crate::journal::{NoteKind, PoisonReason};
use crate::limits::WALK_SCAN_BYTES;

/// Why a log was not truncated. It is as it was.
#[derive(Debug, thiserror::Error)]
pub enum TruncateError {
    /// No log ends below its start, which never goes back.
    #[error("cannot truncate to offset {to}: the log starts at {log_start}")]
    BelowLogStart { to: Offset, log_start: Offset },
    #[error("cannot read {} to find where offset {to} begins: {source}", path.display())]
    Io { path: PathBuf, to: Offset, source: io::Error },
    #[error(transparent)]
    Storage(#[from] StorageError),
}

/// What a truncation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncated {
    /// Where the log ends now: at or below what was asked for.
    pub end: Offset,
    /// Of the journal entry, whose durability the listener hears of; `None`: the log ended there already.
    pub sequence: Option<u64>,
}

/// The end of a leader epoch's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochEnd {
    pub epoch: LeaderEpoch,
    /// The offset after its last record.
    pub end_offset: Offset,
}

impl CoreStorage {
    /// Cuts the log so that it ends at `to`, or at the start of the batch that holds `to`. Returns once the log is so in memory
    /// and the journal has the entry, though not durably: appends may follow at once. Callers hold appends off until it
    /// returns; what they append nevertheless is cut off too.
    ///
    /// Producers that the caller knows of this log must be made anew from what is left.
    ///
    /// # Errors
    /// See [`TruncateError`].
    pub async fn truncate(&self, id: LogId, to: Offset) -> Result<Truncated, TruncateError> {
        let inner = self.inner();
        let _lock = inner.lock_to_cut(id).await;
        if let Some(done) = check(inner, id, to)? {
            return Ok(done);
        }
        let place = find(inner, id, to).await?;
        // Nobody but the holder of the lock cuts; the log may have gone, or its writes failed, meanwhile.
        if let Some(done) = check(inner, id, to)? {
            return Ok(done);
        }
        let sequence = inner.apply_truncation(id, &place);
        inner.cut_in_background(id);
        Ok(Truncated { end: place.end, sequence: Some(sequence) })
    }
}

/// Whether nothing is to be done, or must not.
fn check(inner: &Inner, id: LogId, to: Offset) -> Result<Option<Truncated>, TruncateError> {
    let core = inner.core.borrow();
    let log = core.log(id).ok_or(StorageError::UnknownLog)?;
    let poison = log.poison.clone().or_else(|| inner.journal.poison());
    if let Some(reason) = poison {
        return Err(StorageError::Poisoned(reason).into());
    }
    if to < log.log_start {
        return Err(TruncateError::BelowLogStart { to, log_start: log.log_start });
    }
    Ok((to >= log.log_end).then_some(Truncated { end: log.log_end, sequence: None }))
}

/// Where a log is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CutPlace {
    end: Offset,
    segment_base: Offset,
    position: u32,
    /// Largest timestamp of what is left of that segment, and the first batch that has it.
    newest: (i64, Offset),
}

impl CutPlace {
    /// Nothing is left of the log, which goes on at `end`.
    pub(super) fn emptied(end: Offset) -> CutPlace {
        CutPlace { end, segment_base: end, position: 0, newest: (i64::MIN, end) }
    }
}

/// A batch as the search sees it.
#[derive(Clone, Copy, Debug)]
struct SeenBatch {
    base: Offset,
    end: Offset,
    position: u32,
    end_position: u32,
    max_timestamp: i64,
}

/// One segment as it is while its log is locked: the file up to `file_bytes`, then memory.
struct Search {
    handle: Arc<SegmentHandle>,
    base: Offset,
    index: SparseIndex,
    newest: (i64, Offset),
    bytes: u32,
    file_bytes: u32,
    memory: Vec<SeenBatch>,
}

impl Search {
    fn of(log: &Log, to: Offset) -> Option<Search> {
        let segment = log.segments.get(log.segment_index(to)?)?;
        let in_segment = log.tail.iter().filter(|batch| batch.segment_base == segment.base);
        let memory: Vec<SeenBatch> = in_segment
            .map(|batch| SeenBatch {
                base: batch.base,
                end: batch.end,
                position: batch.position,
                end_position: batch.end_position(),
                max_timestamp: BatchHeader::parse_prefix(&batch.bytes)
                    .map_or(i64::MIN, |header| header.newest_timestamp()),
            })
            .collect();
        Some(Search {
            handle: Arc::clone(&segment.handle),
            base: segment.base,
            index: segment.index.clone(),
            newest: (segment.max_timestamp, segment.max_timestamp_batch),
            bytes: segment.bytes,
            file_bytes: memory.first().map_or(segment.synced_bytes, |first| first.position),
            memory,
        })
    }

    /// Shows the batches from the one at `from` on that begin before `bound`, until `visit` has enough. Bytes that are no batch
    /// end it: what lies behind them is cut off, or is not the newest.
    async fn walk(
        &self,
        inner: &Inner,
        from: u32,
        bound: u32,
        mut visit: impl FnMut(SeenBatch) -> bool,
    ) -> io::Result<()> {
        let file_bound = bound.min(self.file_bytes);
        if from < file_bound {
            let file = self.handle.open(&inner.io).await?;
            let mut walk = HeaderWalk::new(&inner.io, &file, from, self.file_bytes, WALK_SCAN_BYTES);
            while walk.position() < file_bound {
                let walked = match walk.next().await {
                    Ok(Some(walked)) => walked,
                    Ok(None) | Err(WalkError::Invalid { .. }) => return Ok(()),
                    Err(WalkError::Io(source)) => return Err(source),
                };
                let header = &walked.header;
                let seen = SeenBatch {
                    base: header.base_offset,
                    end: header.next_offset(),
                    position: walked.position,
                    end_position: walk.position(),
                    max_timestamp: header.newest_timestamp(),
                };
                if visit(seen) {
                    return Ok(());
                }
            }
        }
        let _stopped = self
            .memory
            .iter()
            .filter(|batch| batch.position >= from && batch.position < bound)
            .any(|batch| visit(*batch));
        Ok(())
    }

    /// Position and base offset of the batch that holds `to`; where bytes before it are damaged, of the first of those.
    async fn boundary(&self, inner: &Inner, to: Offset) -> io::Result<(u32, Offset)> {
        if self.memory.first().is_some_and(|first| first.base <= to) {
            let holds = self.memory.iter().find(|batch| batch.end > to);
            return Ok(holds.map_or((self.bytes, to), |holds| (holds.position, holds.base)));
        }
        let IndexPoint { offset, position } = self.index.at_or_before(to);
        let mut found = (position, offset);
        self.walk(inner, position, self.file_bytes, |batch| {
            let holds = batch.end > to;
            // Behind a gap in the offsets the log still ends where it was asked to.
            found =
                if holds { (batch.position, batch.base.min(to)) } else { (batch.end_position, batch.end) };
            holds
        })
        .await?;
        Ok(found)
    }

    /// The largest timestamp below `position`, where a batch begins at `offset`, and the first batch that has it.
    async fn newest_below(&self, inner: &Inner, position: u32, offset: Offset) -> io::Result<(i64, Offset)> {
        if position == 0 {
            return Ok((i64::MIN, self.base));
        }
        if self.newest.1 < offset {
            return Ok(self.newest);
        }
        let (known, known_newest) = self.index.known_before(offset, position);
        let mut newest = (known_newest, known.offset);
        self.walk(inner, known.position, position, |batch| {
            if batch.max_timestamp > newest.0 {
                newest = (batch.max_timestamp, batch.base);
            }
            false
        })
        .await?;
        if newest.0 == known_newest && known_newest > i64::MIN {
            // It lies further down, between two entries of the index.
            let from = self.index.before_time(known_newest);
            self.walk(inner, from.position, known.position, |batch| {
                let is_it = batch.max_timestamp >= known_newest;
                if is_it {
                    newest = (known_newest, batch.base);
                }
                is_it
            })
            .await?;
        }
        Ok(newest)
    }
}

/// Finds where to cut. The log's segments are locked.
async fn find(inner: &Inner, id: LogId, to: Offset) -> Result<CutPlace, TruncateError> {
    let (search, log_start) = {
        let core = inner.core.borrow();
        let log = core.log(id).ok_or(StorageError::UnknownLog)?;
        (Search::of(log, to), log.log_start)
    };
    let Some(search) = search else { return Ok(CutPlace::emptied(to)) };
    let failed = |source| TruncateError::Io { path: search.handle.path().to_owned(), to, source };
    let (position, end) = search.boundary(inner, to).await.map_err(failed)?;
    if end < log_start {
        // The batch that holds the log's start goes: nothing is left, and no offset below the start comes back.
        return Ok(CutPlace::emptied(log_start));
    }
    let newest = search.newest_below(inner, position, end).await.map_err(failed)?;
    Ok(CutPlace { end, segment_base: search.base, position, newest })
}

impl Inner {
    /// Waits for the right to cut the log: nobody writes its segments, and no reference is on its way.
    pub(super) async fn lock_to_cut(&self, id: LogId) -> SegmentLock<'_> {
        // A flush that is under way writes what may be cut off: it need not take its time.
        let _hurry = self.flush.hurry();
        loop {
            self.bypass_ended(id).await;
            let lock = self.lock_segments(id).await;
            match self.core.borrow().log(id) {
                Some(log) if log.bypass.must_wait() && !self.journal.is_poisoned() => {}
                _ => break lock,
            }
        }
    }

    /// Cuts the log's files once that is durable, should nobody do it before.
    pub(super) fn cut_in_background(self: &Rc<Self>, id: LogId) {
        if !self.is_ephemeral {
            let task = self.io.spawn(Priority::Background, cut_when_durable(Rc::clone(self), id));
            self.keep_task(task);
        }
    }

    /// Journals a truncation and makes memory follow. The log's segments are locked, and no reference is on its way.
    fn apply_truncation(&self, id: LogId, place: &CutPlace) -> u64 {
        let mut guard = self.core.borrow_mut();
        let core = &mut *guard;
        let removed = core.cut_memory(id, place);
        let log = core.log_mut(id).expect("the caller looked at it in this turn");
        let (segment_base, position) =
            log.segments.back().map_or((place.end, 0), |last| (last.base, last.bytes));
        let sequence = log.take_sequence();
        let body = EntryBody::Truncate { end_offset: place.end, segment_base, position };
        self.enter(log, sequence, body, NoteKind::Truncate);
        if !self.is_ephemeral {
            let (is_durable, is_beginning) = (false, false);
            let end = place.end;
            let last = log.segments.back().map(|segment| Arc::clone(&segment.handle));
            log.cuts.push(Cut {
                sequence,
                end,
                is_beginning,
                segment_base,
                position,
                is_durable,
                last,
                removed,
            });
        }
        log.validate();
        self.damage.forget_from(log.key, segment_base, u64::from(position));
        sequence
    }

    /// Cuts files as far as durable truncations ask for; the log's segments are locked. False: one could not be carried out,
    /// and the log takes no more writes, or there is no space and it is tried again.
    pub(super) async fn carry_out_cuts(&self, id: LogId) -> bool {
        loop {
            let next = {
                let core = self.core.borrow();
                let log = core.log(id).filter(|log| log.poison.is_none());
                log.and_then(|log| log.cuts.first_durable().map(|cut| FileCut::of(log, cut)))
            };
            let Some(next) = next else { return true };
            let carried_out =
                self.with_descriptors(id, |(_, error)| error, async || next.carry_out(self).await);
            if let Err((path, error)) = carried_out.await {
                if is_out_of_descriptors(&error) {
                    return false;
                }
                self.file_system.note_failure();
                if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
                    tracing::warn!(path = %path.display(), %error, "no space to cut a segment; tried again");
                    self.space.note_write_refused();
                } else {
                    self.poison_log(id, PoisonReason::SegmentWrite { path, error: error.to_string() });
                }
                return false;
            }
            if let Some(log) = self.core.borrow_mut().log_mut(id) {
                log.cuts.pop(next.sequence);
            }
            // Segments below the log's start may have waited.
            self.work.notify();
        }
    }

    /// Cuts the files of all logs whose truncations are durable; returns those logs.
    pub(super) async fn carry_out_all_cuts(&self) -> Vec<LogId> {
        let ids: Vec<LogId> = {
            let core = self.core.borrow();
            core.logs().filter(|log| log.cuts.first_durable().is_some()).map(|log| log.id).collect()
        };
        let mut done = Vec::new();
        for id in ids {
            let _lock = self.lock_segments(id).await;
            if self.carry_out_cuts(id).await {
                done.push(id);
            }
        }
        done
    }
}

/// The background end of a truncation. Whoever writes the segments first does the same; then nothing is left for this.
async fn cut_when_durable(inner: Rc<Inner>, id: LogId) {
    let is_due = || {
        let core = inner.core.borrow();
        let log = core.log(id).filter(|log| !log.cuts.is_empty() && log.poison.is_none());
        log.is_none_or(|log| log.cuts.first_durable().is_some()) || inner.journal.is_poisoned()
    };
    inner.life.until(|| is_due().then_some(())).await;
    let _lock = inner.lock_segments(id).await;
    inner.carry_out_cuts(id).await;
}

/// What a truncation asks of the files.
struct FileCut {
    sequence: u64,
    folder: PathBuf,
    removed: Vec<PathBuf>,
    /// The segment that ends at this position; none if nothing is left.
    last: Option<(Arc<SegmentHandle>, u32)>,
}

impl FileCut {
    fn of(log: &Log, cut: &Cut) -> FileCut {
        FileCut {
            sequence: cut.sequence,
            folder: log.folder.clone(),
            removed: cut.removed.iter().map(|handle| handle.path().to_owned()).collect(),
            last: cut.last.clone().map(|handle| (handle, cut.position)),
        }
    }

    /// Does it, and makes it last.
    async fn carry_out(&self, inner: &Inner) -> Result<(), (PathBuf, io::Error)> {
        let of_folder = |error| (self.folder.clone(), error);
        if !inner.io.path_exists(&self.folder).await.map_err(of_folder)? {
            return Ok(());
        }
        if let Some((handle, position)) = &self.last {
            self.shorten(inner, handle, *position)
                .await
                .map_err(|error| (handle.path().to_owned(), error))?;
        }
        // The names too, also if nothing was removed: the sidecar of the segment that was cut goes.
        remove_segment_files(inner, &self.folder, &self.removed).await.map_err(of_folder)
    }

    async fn shorten(&self, inner: &Inner, handle: &SegmentHandle, position: u32) -> io::Result<()> {
        // Its checksums are those of the bytes that were there.
        match inner.io.remove_file(&sidecar_path(handle.path())).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = match handle.open(&inner.io).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if inner.io.file_length(&file).await? > u64::from(position) {
            tracing::info!(path = %handle.path().display(), position, "cutting a segment where its log was truncated");
            inner.io.truncate(&file, u64::from(position)).await?;
        }
        inner.io.sync_all(&file).await
    }
}

impl Core {
    /// Drops what lies at or behind `place` from memory; returns the segments that go.
    pub(super) fn cut_memory(&mut self, id: LogId, place: &CutPlace) -> Vec<Arc<SegmentHandle>> {
        let log = self.logs.get_mut(id.slot as usize).filter(|log| log.id == id);
        let log = log.expect("the caller looked at it in this turn");
        if log.clean_count > 0
            && let Some(front) = log.tail.front()
        {
            self.tail.unset_evictable(front.stamp);
        }
        // A log that is emptied at its start has segments, and perhaps half a batch, below it: they go as well.
        let is_emptied = place.position == 0 && place.end == place.segment_base && place.end <= log.log_start;
        while let Some(batch) = log.tail.pop_back_if(|batch| is_emptied || batch.base >= place.end) {
            if log.tail.len() < log.clean_count {
                log.clean_count = log.tail.len();
            } else {
                self.tail.remove_dirty(batch.bytes.len());
            }
            self.tail.release(batch.owner);
        }
        if log.clean_count > 0
            && let Some(front) = log.tail.front()
        {
            self.tail.set_evictable(front.stamp, id);
        }
        let mut removed = Vec::new();
        let goes =
            |base: Offset| base > place.segment_base || (base == place.segment_base && place.position == 0);
        while let Some(segment) = log.segments.pop_back_if(|segment| is_emptied || goes(segment.base)) {
            segment.handle.cut(0);
            removed.push(segment.handle);
        }
        // Also one that stays whole: it takes batches again, so its sidecar is not its last.
        if let Some(last) = log.segments.back_mut() {
            let is_cut = last.base == place.segment_base;
            let whole = (last.bytes, (last.max_timestamp, last.max_timestamp_batch));
            let (position, newest) = if is_cut { (place.position, place.newest) } else { whole };
            last.cut(position, newest);
        }
        log.log_end = place.end;
        log.compaction.first_dirty = log.compaction.first_dirty.min(place.end);
        log.durable_end = log.durable_end.min(place.end);
        log.epochs.truncate(log.epochs.partition_point(|epoch| epoch.start < place.end));
        log.record.note_truncated(place.end);
        removed
    }
}

impl Log {
    /// Leader epoch `epoch`, or the newest one before it that has records, and the offset where those end (KIP-101). An epoch
    /// older than all that are known ends where the first of them begins; one newer than all, at the log's end: the caller
    /// knows which epochs there are. `None`: the log has no epochs, or `epoch` is negative.
    #[must_use]
    pub fn epoch_end_offset(&self, epoch: LeaderEpoch) -> Option<EpochEnd> {
        let newer = self.epochs.partition_point(|known| known.epoch <= epoch);
        let end_offset = self.epochs.get(newer).map_or(self.log_end, |newer| newer.start);
        if epoch.0 < 0 || self.epochs.is_empty() {
            return None;
        }
        let found =
            newer.checked_sub(1).and_then(|at| self.epochs.get(at)).map_or(epoch, |known| known.epoch);
        Some(EpochEnd { epoch: found, end_offset })
    }
}
