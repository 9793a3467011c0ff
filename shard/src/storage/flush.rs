//! Writing one log's unflushed batches to its segments and syncing them. Memory stays the source until the sync returns.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use ringlog_io::{File, OpenOptions, is_out_of_descriptors};
use ringlog_protocol::ids::Offset;

use super::core_storage::Inner;
use super::folder::REWRITE_SUFFIX;
use super::log::{Log, LogId, TailBatch};
use super::pace::{Pacer, Schedule};
use super::segment::SegmentHandle;
use crate::journal::PoisonReason;
use crate::limits::{
    CHECKPOINT_PIECE_BYTES, CHECKPOINT_RUN_BYTES_MAX, CHECKPOINT_WRITE_BYTES_MAX, SEGMENT_ALLOCATE_BYTES_MAX,
    SEGMENT_ALLOCATE_BYTES_MIN,
};

/// What became of a log's flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// Everything durable in the journal is synced in segments; so many bytes were written.
    Clean { bytes: u64 },
    /// Not now, or never: the rest stays in memory and must stay in the journal.
    Kept,
}

/// How a write of unflushed batches to segments ended.
pub(super) enum Written {
    /// All of it; the runs are to be marked clean once the journal holds them too.
    Synced(Vec<Run>),
    /// There is no space, or the log went while there was no descriptor.
    Later,
    /// The log is poisoned.
    Failed,
}

/// Consecutive unflushed batches of one segment.
#[derive(Debug)]
pub(super) struct Run {
    id: LogId,
    handle: Arc<SegmentHandle>,
    segment_base: Offset,
    position: u32,
    bytes: u32,
    /// Of the segment.
    allocated_bytes: u32,
    segment_bytes_max: u32,
    pieces: Vec<Bytes>,
    last_sequence: u64,
    folder: PathBuf,
    folder_is_durable: bool,
}

/// Flushes what the journal holds of this log now; what becomes durable meanwhile is for the next time. A log that goes
/// meanwhile is left alone.
pub(super) async fn flush_log(inner: &Inner, id: LogId, pacer: &Pacer) -> Flushed {
    let mut bytes = 0;
    let _lock = inner.lock_segments(id).await;
    if !inner.carry_out_cuts(id).await {
        return Flushed::Kept;
    }
    let through = {
        let core = inner.core.borrow();
        let log = core.log(id);
        log.and_then(|log| {
            log.due().take_while(|batch| log.may_write(batch)).last().map(|batch| batch.sequence)
        })
    };
    while let Some(run) = through.and_then(|through| next_run(inner, id, through)) {
        // Held until the sync, or until the run failed: then nobody syncs it any more.
        let _unsynced = inner.flush.reserve(u64::from(run.bytes)).await;
        if !matches!(save(inner, &run, pacer).await, Saved::Yes) {
            return Flushed::Kept;
        }
        bytes += u64::from(run.bytes);
        mark_clean(inner, id, &run);
        trim(inner, &run).await;
    }
    // A checkpoint comes by thousands of logs; only readers would close what it opened.
    inner.keep_descriptors();
    let is_poisoned =
        inner.core.borrow().log(id).is_some_and(|log| log.poison.is_some() && log.first_dirty().is_some());
    if is_poisoned { Flushed::Kept } else { Flushed::Clean { bytes } }
}

/// Writes and syncs all unflushed batches up to `through`, also those that the journal does not hold. The caller has the
/// log's segments locked.
pub(super) async fn write_ahead(inner: &Inner, id: LogId, through: u64) -> Written {
    let pacer = Pacer::new(Schedule::at_once(inner.io.monotonic_now()));
    let mut runs = Vec::new();
    let mut written = 0;
    if !inner.carry_out_cuts(id).await {
        let is_poisoned = inner.core.borrow().log(id).is_none_or(|log| log.poison.is_some());
        return if is_poisoned { Written::Failed } else { Written::Later };
    }
    loop {
        let run = {
            let core = inner.core.borrow();
            core.log(id).and_then(|log| {
                let batches = log.tail.range(log.clean_count..).skip_while(|batch| batch.sequence <= written);
                Run::of(log, batches.take_while(|batch| batch.sequence <= through))
            })
        };
        let Some(mut run) = run else { return Written::Synced(runs) };
        match save(inner, &run, &pacer).await {
            Saved::Yes => {}
            Saved::Later => return Written::Later,
            Saved::No => return Written::Failed,
        }
        written = run.last_sequence;
        run.pieces = Vec::new();
        runs.push(run);
    }
}

/// Whether a run is synced in its segment.
enum Saved {
    Yes,
    /// There is no space, or the log went while there was no descriptor.
    Later,
    /// The log is poisoned.
    No,
}

fn as_it_is(error: &io::Error) -> &io::Error {
    error
}

/// Writes and syncs a run; where that fails, to a new file.
async fn save(inner: &Inner, run: &Run, pacer: &Pacer) -> Saved {
    let written = inner.with_descriptors(run.id, as_it_is, async || write_run(inner, run, pacer).await);
    if let Err(error) = written.await {
        if is_out_of_descriptors(&error) {
            return Saved::Later;
        }
        inner.file_system.note_failure();
        let path = run.handle.path().display();
        if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
            // The bytes are in memory and written again from there: a failed sync proves nothing later.
            if !inner.space.is_write_refused() {
                tracing::warn!(%path, %error, "no space for a segment; tried again until there is");
            }
            ringlog_io::reached!("flush.no_space");
            inner.space.note_write_refused();
            return Saved::Later;
        }
        tracing::warn!(%path, %error, "a segment cannot be made durable; writing it to a new file");
        let rewritten = inner.with_descriptors(run.id, as_it_is, async || rewrite(inner, run.id, run).await);
        if let Err(error) = rewritten.await {
            let path = run.handle.path().to_owned();
            inner.poison_log(run.id, PoisonReason::SegmentWrite { path, error: error.to_string() });
            return Saved::No;
        }
        ringlog_io::reached!("flush.rewritten");
    }
    inner.space.note_written();
    Saved::Yes
}

/// The first unflushed batches up to `through` that go into one segment, as far as the bound for one sync goes.
fn next_run(inner: &Inner, id: LogId, through: u64) -> Option<Run> {
    let core = inner.core.borrow();
    let log = core.log(id)?;
    Run::of(log, log.due().take_while(|batch| batch.sequence <= through))
}

impl Run {
    /// The first of these batches that go into one segment, as far as the bound for one sync goes.
    fn of<'a>(log: &Log, batches: impl Iterator<Item = &'a TailBatch>) -> Option<Run> {
        let mut batches = batches.peekable();
        let first = batches.peek().filter(|_| log.poison.is_none())?;
        let segment = log.segments.get(log.segment_index(first.segment_base)?)?;
        let mut run = Run {
            id: log.id,
            handle: Arc::clone(&segment.handle),
            segment_base: first.segment_base,
            position: first.position,
            bytes: 0,
            allocated_bytes: segment.allocated_bytes,
            segment_bytes_max: log.settings.segment_bytes,
            pieces: Vec::new(),
            last_sequence: first.sequence,
            folder: log.folder.clone(),
            folder_is_durable: log.folder_is_durable,
        };
        for batch in batches {
            let bytes = u32::try_from(batch.bytes.len()).expect("a batch's length field is 31 bits");
            let is_enough =
                run.bytes > 0 && run.bytes as usize + batch.bytes.len() > CHECKPOINT_RUN_BYTES_MAX;
            if batch.segment_base != run.segment_base || is_enough {
                break;
            }
            run.bytes += bytes;
            run.pieces.push(batch.bytes.clone());
            run.last_sequence = batch.sequence;
        }
        Some(run)
    }
}

async fn write_run(inner: &Inner, run: &Run, pacer: &Pacer) -> io::Result<()> {
    if !run.folder_is_durable {
        inner.io.create_directories(&run.folder).await?;
        if let Some(topic) = run.folder.parent() {
            inner.io.sync_directory(topic).await?;
            inner.sync_parent(topic).await?;
        }
    }
    let file = run.handle.create(&inner.io).await?;
    allocate(inner, &file, run).await;
    run.handle.note_unsynced();
    let writer = if cfg!(feature = "planted-close-dirty-descriptor") {
        // Closed before the sync below: an error of its writes is told to nobody.
        inner.io.open(run.handle.path(), OpenOptions::READ_WRITE_CREATE).await?
    } else {
        file.clone()
    };
    write_pieces(inner, &writer, run, Some(pacer)).await?;
    drop(writer);
    sync(inner, &file, run).await?;
    if run.position == 0 && !cfg!(feature = "planted-skip-directory-sync") {
        inner.io.sync_directory(&run.folder).await?;
    }
    run.handle.note_synced();
    Ok(())
}

/// Makes the run durable in its file. A sync that failed is not tried again: the kernel would answer that all is well.
async fn sync(inner: &Inner, file: &File, run: &Run) -> io::Result<()> {
    let result =
        if run.position == 0 { inner.io.sync_all(file).await } else { inner.io.sync_data(file).await };
    if result.is_err() && cfg!(feature = "planted-believe-second-fsync") {
        inner.file_system.note_failure();
        return inner.io.sync_all(file).await;
    }
    result
}

/// Reserves disk space ahead of the segment's end, in steps as long as the segment is: fewer extents, and syncs that change
/// less metadata. A wish only: without it writes find their space one by one.
async fn allocate(inner: &Inner, file: &File, run: &Run) {
    let end = run.position + run.bytes;
    if end <= run.allocated_bytes
        || end < SEGMENT_ALLOCATE_BYTES_MIN
        || !inner.flush.can_allocate()
        || inner.space.is_short()
    {
        return;
    }
    let step = end.clamp(SEGMENT_ALLOCATE_BYTES_MIN, SEGMENT_ALLOCATE_BYTES_MAX);
    let to = end.saturating_add(step).min(run.segment_bytes_max).max(end);
    let (position, length) = (u64::from(run.position), u64::from(to - run.position));
    match inner.io.allocate(file, position, length, true).await {
        Ok(()) => {
            if let Some(log) = inner.core.borrow_mut().log_mut(run.id)
                && let Some(index) = log.segment_index(run.segment_base)
            {
                log.segments[index].allocated_bytes = to;
            }
        }
        Err(error) if error.kind() == io::ErrorKind::Unsupported => inner.flush.note_cannot_allocate(),
        Err(error) => {
            tracing::debug!(path = %run.handle.path().display(), %error, "no space was reserved ahead");
        }
    }
}

/// Gives space back that was reserved behind the end of a segment that takes no more.
async fn trim(inner: &Inner, run: &Run) {
    let length = {
        let mut core = inner.core.borrow_mut();
        let Some(log) = core.log_mut(run.id) else { return };
        let Some(index) = log.segment_index(run.segment_base) else { return };
        let is_last = index + 1 == log.segments.len();
        let segment = &mut log.segments[index];
        if is_last || segment.synced_bytes < segment.bytes || segment.allocated_bytes <= segment.bytes {
            return;
        }
        segment.allocated_bytes = segment.bytes;
        segment.bytes
    };
    let Ok(file) = run.handle.open(&inner.io).await else { return };
    if let Err(error) = inner.io.truncate(&file, u64::from(length)).await {
        tracing::debug!(path = %run.handle.path().display(), %error, "reserved space was not given back");
    }
}

/// Writes the run in pieces, each at its time, and sees each on its way to the device, so that the sync at the end finds
/// little to do.
async fn write_pieces(inner: &Inner, file: &File, run: &Run, pacer: Option<&Pacer>) -> io::Result<()> {
    let mut position = u64::from(run.position);
    let mut group = Vec::new();
    let mut group_bytes = 0;
    for (index, piece) in run.pieces.iter().enumerate() {
        group_bytes += piece.len();
        group.push(piece.clone());
        let is_last = index + 1 == run.pieces.len();
        if group_bytes < CHECKPOINT_PIECE_BYTES && !is_last {
            continue;
        }
        if let Some(pacer) = pacer {
            pacer.turn(inner, group_bytes as u64).await;
        }
        inner.io.write_at(file, position, std::mem::take(&mut group)).await?;
        if !is_last {
            // Its error is the write's error: it is told once, so the sync would not tell it again.
            inner.io.start_write_out(file, position, group_bytes as u64).await?;
        }
        position += group_bytes as u64;
        group_bytes = 0;
    }
    Ok(())
}

/// Batches of the run's segment behind the run that memory has and that may be in the file by now, each with its place.
fn behind(inner: &Inner, run: &Run) -> Vec<(u32, Bytes)> {
    let core = inner.core.borrow();
    let Some(log) = core.log(run.id) else { return Vec::new() };
    let of_segment = log.tail.iter().filter(|batch| batch.segment_base == run.segment_base);
    let behind = of_segment.filter(|batch| batch.sequence > run.last_sequence && log.may_write(batch));
    behind.map(|batch| (batch.position, batch.bytes.clone())).collect()
}

/// Writes the whole segment anew, then it takes the old name: the run and what lies behind it from memory, the rest from the
/// old file. What lies behind the run too, clean or not: a bypass may have synced it in the old file already, and the
/// journal then holds no more than a reference to it.
async fn rewrite(inner: &Inner, id: LogId, run: &Run) -> io::Result<()> {
    let mut path = run.handle.path().to_owned().into_os_string();
    path.push(REWRITE_SUFFIX);
    let path = PathBuf::from(path);
    inner.io.create_directories(&run.folder).await?;
    let file = inner.io.open(&path, OpenOptions::READ_WRITE_CREATE.with_truncate()).await?;
    match run.handle.open(&inner.io).await {
        Ok(old) => {
            let end = u64::from(run.position + run.bytes);
            let old_bytes = inner.io.file_length(&old).await?;
            if old_bytes < u64::from(run.position) {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            copy(inner, &old, &file, 0, u64::from(run.position)).await?;
            copy(inner, &old, &file, end, old_bytes).await?;
        }
        // The first run, and not even its file could be made.
        Err(error) if error.kind() == io::ErrorKind::NotFound && run.position == 0 => {}
        Err(error) => return Err(error),
    }
    write_pieces(inner, &file, run, None).await?;
    for (position, bytes) in behind(inner, run) {
        inner.io.write_at(&file, u64::from(position), vec![bytes]).await?;
    }
    inner.io.sync_all(&file).await?;
    inner.io.rename(&path, run.handle.path()).await?;
    inner.io.sync_directory(&run.folder).await?;
    let mut core = inner.core.borrow_mut();
    core.counters.segments_rewritten += 1;
    if let Some(log) = core.log_mut(id)
        && let Some(index) = log.segment_index(run.segment_base)
    {
        log.segments[index].handle = Arc::new(run.handle.replaced(file));
    }
    Ok(())
}

/// Copies bytes to the same place of another file.
async fn copy(inner: &Inner, from: &File, to: &File, start: u64, end: u64) -> io::Result<()> {
    let mut position = start;
    while position < end {
        let wanted = (end - position).min(CHECKPOINT_WRITE_BYTES_MAX as u64);
        let bytes = inner.io.read_at(from, position, wanted as usize).await?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let read = bytes.len() as u64;
        inner.io.write_at(to, position, vec![bytes]).await?;
        position += read;
    }
    Ok(())
}

pub(super) fn mark_clean(inner: &Inner, id: LogId, run: &Run) {
    let mut guard = inner.core.borrow_mut();
    let core = &mut *guard;
    core.counters.checkpoint_bytes += u64::from(run.bytes);
    let Some(log) = core.log_mut(id) else { return };
    let had_clean = log.clean_count > 0;
    let mut cleaned_bytes = 0;
    while log.first_dirty().is_some_and(|batch| batch.sequence <= run.last_sequence) {
        cleaned_bytes += log.clean_first();
    }
    log.folder_is_durable = true;
    log.validate();
    let oldest = log.tail.front().filter(|_| !had_clean && log.clean_count > 0).map(|batch| batch.stamp);
    core.tail.remove_dirty(cleaned_bytes);
    core.unrecorded_bytes += cleaned_bytes as u64;
    if inner.wants_records(core) {
        inner.work.notify();
    }
    if let Some(stamp) = oldest {
        core.tail.set_evictable(stamp, id);
    }
    core.evict(inner.settings.tail_bytes_max);
}
