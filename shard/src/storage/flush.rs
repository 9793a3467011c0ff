//! Writing one log's unflushed batches to its segments and syncing them. Memory stays the source until the sync returns.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use ringlog_io::{File, OpenOptions};
use ringlog_protocol::ids::Offset;

use super::core_storage::Inner;
use super::log::LogId;
use super::segment::SegmentHandle;
use crate::journal::PoisonReason;
use crate::limits::CHECKPOINT_WRITE_BYTES_MAX;

/// What became of a log's flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flushed {
    /// Everything durable in the journal is synced in segments; so many bytes were written.
    Clean { bytes: u64 },
    /// Not now, or never: the rest stays in memory and must stay in the journal.
    Kept,
}

/// Consecutive unflushed batches of one segment.
struct Run {
    handle: Arc<SegmentHandle>,
    segment_base: Offset,
    position: u32,
    bytes: u32,
    pieces: Vec<Bytes>,
    last_sequence: u64,
    folder: PathBuf,
    folder_is_durable: bool,
}

/// Flushes what the journal holds of this log. A log that goes meanwhile is left alone.
pub(super) async fn flush_log(inner: &Inner, id: LogId) -> Flushed {
    let mut bytes = 0;
    while let Some(run) = next_run(inner, id) {
        if let Err(error) = write_run(inner, &run).await {
            let path = run.handle.path().display();
            if error.kind() == io::ErrorKind::StorageFull {
                // The bytes are safe in the journal and written again from memory: a failed sync proves nothing later.
                tracing::warn!(%path, %error, "no space for a segment; tried again at the next checkpoint");
                return Flushed::Kept;
            }
            tracing::warn!(%path, %error, "a segment cannot be made durable; writing it to a new file");
            if let Err(error) = rewrite(inner, id, &run).await {
                let path = run.handle.path().to_owned();
                inner.poison_log(id, PoisonReason::SegmentWrite { path, error: error.to_string() });
                return Flushed::Kept;
            }
        }
        bytes += u64::from(run.bytes);
        mark_clean(inner, id, &run);
    }
    let is_poisoned =
        inner.core.borrow().log(id).is_some_and(|log| log.poison.is_some() && log.first_dirty().is_some());
    if is_poisoned { Flushed::Kept } else { Flushed::Clean { bytes } }
}

fn next_run(inner: &Inner, id: LogId) -> Option<Run> {
    let core = inner.core.borrow();
    let log = core.log(id)?;
    if log.poison.is_some() {
        return None;
    }
    let first = log.first_dirty().filter(|batch| batch.end <= log.durable_end)?;
    let segment = log.segments.get(log.segment_index(first.segment_base)?)?;
    let mut run = Run {
        handle: Arc::clone(&segment.handle),
        segment_base: first.segment_base,
        position: first.position,
        bytes: 0,
        pieces: Vec::new(),
        last_sequence: first.sequence,
        folder: log.folder.clone(),
        folder_is_durable: log.folder_is_durable,
    };
    for batch in log.tail.range(log.clean_count..) {
        if batch.segment_base != run.segment_base || batch.end > log.durable_end {
            break;
        }
        run.bytes += u32::try_from(batch.bytes.len()).expect("a batch's length field is 31 bits");
        run.pieces.push(batch.bytes.clone());
        run.last_sequence = batch.sequence;
    }
    Some(run)
}

async fn write_run(inner: &Inner, run: &Run) -> io::Result<()> {
    if !run.folder_is_durable {
        inner.io.create_directories(&run.folder).await?;
        if let Some(topic) = run.folder.parent() {
            inner.io.sync_directory(topic).await?;
            inner.sync_parent(topic).await?;
        }
    }
    let file = run.handle.create(&inner.io).await?;
    write_pieces(inner, &file, run).await?;
    if run.position == 0 {
        inner.io.sync_all(&file).await?;
        return inner.io.sync_directory(&run.folder).await;
    }
    inner.io.sync_data(&file).await
}

async fn write_pieces(inner: &Inner, file: &File, run: &Run) -> io::Result<()> {
    let mut position = u64::from(run.position);
    let mut group = Vec::new();
    let mut group_bytes = 0;
    for (index, piece) in run.pieces.iter().enumerate() {
        group_bytes += piece.len();
        group.push(piece.clone());
        if group_bytes >= CHECKPOINT_WRITE_BYTES_MAX || index + 1 == run.pieces.len() {
            inner.io.write_at(file, position, std::mem::take(&mut group)).await?;
            position += group_bytes as u64;
            group_bytes = 0;
        }
    }
    Ok(())
}

/// Writes the whole segment anew: what was synced from the old file, the rest from memory, then takes the old name.
async fn rewrite(inner: &Inner, id: LogId, run: &Run) -> io::Result<()> {
    let mut path = run.handle.path().to_owned().into_os_string();
    path.push(".rewrite");
    let path = PathBuf::from(path);
    inner.io.create_directories(&run.folder).await?;
    let file = inner.io.open(&path, OpenOptions::READ_WRITE_CREATE.with_truncate()).await?;
    if run.position > 0 {
        let old = run.handle.open(&inner.io).await?;
        let mut position = 0;
        while position < run.position {
            let wanted = CHECKPOINT_WRITE_BYTES_MAX.min((run.position - position) as usize);
            let bytes = inner.io.read_at(&old, u64::from(position), wanted).await?;
            if bytes.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let read = u32::try_from(bytes.len()).expect("bounded by what was asked for");
            inner.io.write_at(&file, u64::from(position), vec![bytes]).await?;
            position += read;
        }
    }
    write_pieces(inner, &file, run).await?;
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

fn mark_clean(inner: &Inner, id: LogId, run: &Run) {
    let mut guard = inner.core.borrow_mut();
    let core = &mut *guard;
    core.counters.checkpoint_bytes += u64::from(run.bytes);
    let Some(log) = core.log_mut(id) else { return };
    let had_clean = log.clean_count > 0;
    let mut cleaned_bytes = 0;
    while let Some(batch) = log.first_dirty().filter(|batch| batch.sequence <= run.last_sequence) {
        cleaned_bytes += batch.bytes.len();
        log.clean_count += 1;
    }
    log.folder_is_durable = true;
    if let Some(index) = log.segment_index(run.segment_base) {
        let segment = &mut log.segments[index];
        segment.synced_bytes = run.position + run.bytes;
        segment.handle.note_flushed(segment.synced_bytes);
        assert!(segment.synced_bytes <= segment.bytes, "a segment is synced up to its length at most");
    }
    log.validate();
    let oldest = log.tail.front().filter(|_| !had_clean && log.clean_count > 0).map(|batch| batch.stamp);
    core.tail.remove_dirty(cleaned_bytes);
    if let Some(stamp) = oldest {
        core.tail.set_evictable(stamp, id);
    }
    core.evict(inner.settings.tail_bytes_max);
}
