//! Sidecars as files: appending checksums as blocks are synced, closing and rebuilding, and the check of a block against its
//! checksum. A sidecar that is missing, short or bad is made again from the segment; it never stops anything.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use ringlog_io::{File, Io, OpenOptions};
use ringlog_protocol::ids::Offset;

use super::core_storage::Inner;
use super::folder::sidecar_path;
use super::log::{EpochStart, Log, LogId};
use super::segment::{Segment, SegmentHandle};
use super::sidecar::{
    SIDECAR_HEADER_BYTES, SegmentFooter, Sidecar, SidecarError, check_header, encode_header,
};
use super::sums::{BlockSums, SumPlace, SumsState};
use crate::limits::{SIDECAR_BYTES_MAX, START_SCAN_BYTES, SUM_BLOCK_BYTES, SUMS_PENDING_MAX};

/// Why a closed segment's sidecar cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SidecarProblem {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Content(#[from] SidecarError),
}

/// Reads the sidecar of a closed segment.
///
/// # Errors
/// [`SidecarProblem`]: it is missing, short, bad or another segment's.
pub(crate) async fn load(io: &Io, segment: &Path, place: SumPlace) -> Result<Sidecar, SidecarProblem> {
    let file = io.open(&sidecar_path(segment), OpenOptions::READ).await?;
    let length = io.file_length(&file).await?;
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(SIDECAR_BYTES_MAX);
    let bytes = io.read_at(&file, 0, length).await?;
    Ok(Sidecar::decode(place, &bytes)?)
}

/// A block against its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockVerdict {
    Sound,
    /// The bytes are not those that were synced: damage, or another place's bytes.
    Bad,
    /// Nobody knows its checksum: it is not synced yet, or was never summed.
    Unknown,
}

/// The checksums of one segment that are known now.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownSums {
    place: Option<SumPlace>,
    sums: Vec<u32>,
    /// Bytes and checksum of the incomplete last block.
    tail: Option<(u32, u32)>,
}

impl KnownSums {
    /// Of a closed segment.
    pub(crate) fn of_sidecar(place: SumPlace, sidecar: Sidecar) -> KnownSums {
        let tail_bytes = sidecar.footer.segment_bytes % SUM_BLOCK_BYTES;
        let tail = (tail_bytes > 0).then_some((tail_bytes, sidecar.footer.tail_sum));
        KnownSums { place: Some(place), sums: sidecar.sums, tail }
    }

    /// Where the bytes of this block that are summed end.
    pub(crate) fn end_of(&self, block: u32) -> u32 {
        match self.tail {
            Some((length, _)) if block as usize == self.sums.len() => block * SUM_BLOCK_BYTES + length,
            _ => (block + 1).saturating_mul(SUM_BLOCK_BYTES),
        }
    }

    /// Judges block number `block` by its bytes. Of the last block there may be more bytes than are summed: what was
    /// synced since is not looked at.
    pub(crate) fn judge(&self, block: u32, bytes: &[u8]) -> BlockVerdict {
        let Some(place) = self.place else { return BlockVerdict::Unknown };
        let (length, expected) = match (self.sums.get(block as usize), self.tail) {
            (Some(sum), _) => (SUM_BLOCK_BYTES, *sum),
            (None, Some((length, sum))) if block as usize == self.sums.len() => (length, sum),
            _ => return BlockVerdict::Unknown,
        };
        match bytes.get(..length as usize) {
            Some(bytes) if place.block_sum(block, bytes) == expected => BlockVerdict::Sound,
            _ => BlockVerdict::Bad,
        }
    }
}

/// Reads one block of a segment and judges it.
///
/// # Errors
/// What the read answers: a device's own error is damage too, but not for this to say.
pub(crate) async fn verify_block(
    io: &Io,
    file: &File,
    known: &KnownSums,
    block: u32,
) -> io::Result<BlockVerdict> {
    let position = u64::from(block) * u64::from(SUM_BLOCK_BYTES);
    let bytes = io.read_at_uncached(file, position, SUM_BLOCK_BYTES as usize).await?;
    Ok(known.judge(block, &bytes))
}

/// The checksums of a segment as far as they are known now: of a closed one from its sidecar, of the one that fills also
/// from memory. Nothing known is no error.
pub(crate) async fn known_sums(inner: &Inner, id: LogId, base: Offset) -> KnownSums {
    let (path, sums) = {
        let core = inner.core.borrow();
        // A truncated segment's sidecar may speak of what was cut off.
        let Some(log) = core.log(id).filter(|log| log.cuts.is_empty()) else { return KnownSums::default() };
        let Ok(index) = log.segments.binary_search_by_key(&base, |segment| segment.base) else {
            return KnownSums::default();
        };
        let segment = &log.segments[index];
        (segment.handle.path().to_owned(), segment.sums.clone())
    };
    let place = sums.place();
    let Some((position, state)) = sums.position().zip(sums.state()) else {
        return match load(&inner.io, &path, place).await {
            Ok(sidecar) => KnownSums::of_sidecar(place, sidecar),
            Err(_) => KnownSums::default(),
        };
    };
    sums_of_open(&inner.io, &path, place, position, &state).await.unwrap_or_default()
}

/// The checksums of a segment that fills, summed up to `position`: some are in its sidecar, the rest in `state`. None: the
/// sidecar cannot be read.
pub(crate) async fn sums_of_open(
    io: &Io,
    segment: &Path,
    place: SumPlace,
    position: u32,
    state: &SumsState,
) -> Option<KnownSums> {
    let mut sums = read_written(io, segment, place, state.written_blocks).await.ok()?;
    sums.extend_from_slice(&state.pending);
    let tail_bytes = position % SUM_BLOCK_BYTES;
    let tail = (tail_bytes > 0).then_some((tail_bytes, state.partial));
    Some(KnownSums { place: Some(place), sums, tail })
}

/// The first `count` checksums of a sidecar that is not closed.
async fn read_written(
    io: &Io,
    segment: &Path,
    place: SumPlace,
    count: u32,
) -> Result<Vec<u32>, SidecarProblem> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let file = io.open(&sidecar_path(segment), OpenOptions::READ).await?;
    let length = SIDECAR_HEADER_BYTES + count as usize * 4;
    let bytes = io.read_at(&file, 0, length).await?;
    check_header(place, &bytes)?;
    let sums = bytes.get(SIDECAR_HEADER_BYTES..length).ok_or(SidecarError::Damaged { part: "length" })?;
    Ok(sums.as_chunks::<4>().0.iter().map(|sum| u32::from_le_bytes(*sum)).collect())
}

/// Brings a log's sidecars up to date: closed and synced segments get their footer, the one that fills its checksums once
/// there are enough. Failures are said and tried again with the log's next flush.
pub(super) async fn tend(inner: &Inner, id: LogId) {
    // So that no truncation comes between what is known of a segment and its sidecar.
    let _lock = inner.lock_segments(id).await;
    if inner.core.borrow().log(id).is_none_or(|log| !log.cuts.is_empty()) {
        return;
    }
    loop {
        let next = inner.core.borrow().log(id).and_then(unfinished);
        let Some(work) = next else { break };
        if let Err(error) = finish(inner, id, &work).await {
            let path = work.handle.path().display();
            inner.file_system.note_failure();
            tracing::warn!(%path, %error, "a segment's sidecar was not written; tried again later");
            return;
        }
    }
    if let Err(error) = append(inner, id).await {
        inner.file_system.note_failure();
        tracing::warn!(%error, "checksums were not appended to a sidecar; tried again later");
    }
}

/// What closing a sidecar takes.
struct Closing {
    base: Offset,
    handle: Arc<SegmentHandle>,
    sums: BlockSums,
    footer: SegmentFooter,
}

/// The newest closed and synced segment whose sidecar is not closed.
fn unfinished(log: &Log) -> Option<Closing> {
    let closed = log.segments.len().checked_sub(1)?;
    let is_due = |segment: &&Segment| !segment.sidecar_is_closed && segment.synced_bytes == segment.bytes;
    let segment = log.segments.range(..closed).rev().find(is_due)?;
    let end_offset = log.segments.iter().find(|other| other.base > segment.base)?.base;
    Some(Closing {
        base: segment.base,
        handle: Arc::clone(&segment.handle),
        sums: segment.sums.clone(),
        footer: SegmentFooter {
            segment_bytes: segment.bytes,
            end_offset,
            max_timestamp: segment.max_timestamp,
            max_timestamp_batch: segment.max_timestamp_batch,
            tail_sum: 0,
            index: segment.index.clone(),
            epochs: epochs_between(log, segment.base, end_offset),
        },
    })
}

/// Epochs of the records from `base` to `end`; the first begins at `base`.
fn epochs_between(log: &Log, base: Offset, end: Offset) -> Vec<EpochStart> {
    let first = log.epoch_at(base).map(|epoch| EpochStart { epoch, start: base });
    let later = log.epochs.iter().filter(|epoch| epoch.start > base && epoch.start < end).copied();
    first.into_iter().chain(later).collect()
}

async fn finish(inner: &Inner, id: LogId, work: &Closing) -> Result<(), SidecarProblem> {
    let path = work.handle.path();
    let place = work.sums.place();
    let is_summed = work.sums.position() == Some(work.footer.segment_bytes);
    let written = if is_summed {
        read_written(&inner.io, path, place, work.sums.written_blocks()).await.ok()
    } else {
        None
    };
    let (sums, tail_sum) = match (written, work.sums.state()) {
        (Some(mut sums), Some(state)) => {
            sums.extend_from_slice(&state.pending);
            (sums, state.partial)
        }
        _ => rebuild(inner, work).await?,
    };
    let footer = SegmentFooter { tail_sum, ..work.footer.clone() };
    let bytes = Sidecar { sums, footer }.encode(place);
    let is_kept = bytes.len() <= SIDECAR_BYTES_MAX && work.still_is(inner, id);
    if is_kept {
        inner.io.replace_file(&sidecar_path(path), bytes).await?;
    }
    let mut core = inner.core.borrow_mut();
    if let Some(log) = core.log_mut(id)
        && let Ok(index) = log.segments.binary_search_by_key(&work.base, |segment| segment.base)
    {
        let segment = &mut log.segments[index];
        segment.sidecar_is_closed = true;
        segment.sums.forget();
    }
    Ok(())
}

impl Closing {
    /// Whether the segment is still there, closed and as it was.
    fn still_is(&self, inner: &Inner, id: LogId) -> bool {
        let core = inner.core.borrow();
        let log = core.log(id);
        log.is_some_and(|log| {
            log.segments
                .iter()
                .any(|segment| segment.base == self.base && segment.synced_bytes == self.footer.segment_bytes)
        })
    }
}

/// Sums a segment by reading it: its checksums were interrupted, or are lost. Its batches were checked when it was opened.
async fn rebuild(inner: &Inner, work: &Closing) -> io::Result<(Vec<u32>, u32)> {
    let file = work.handle.open(&inner.io).await?;
    let mut sums = BlockSums::new(work.sums.place());
    let mut position = 0;
    while position < work.footer.segment_bytes {
        let wanted = START_SCAN_BYTES.min((work.footer.segment_bytes - position) as usize);
        let bytes = inner.io.read_at_uncached(&file, u64::from(position), wanted).await?;
        if bytes.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        sums.add(position, &bytes);
        position += u32::try_from(bytes.len()).expect("bounded by what was asked for");
    }
    ringlog_io::reached!("sidecar.rebuilt");
    inner.core.borrow_mut().counters.sidecars_rebuilt += 1;
    let partial = sums.state().map_or(0, |state| state.partial);
    Ok((sums.pending().to_vec(), partial))
}

/// Appends the checksums that wait in memory, once they are many.
async fn append(inner: &Inner, id: LogId) -> io::Result<()> {
    let next = {
        let core = inner.core.borrow();
        let segment = core.log(id).and_then(|log| log.segments.back());
        let due = segment.filter(|segment| segment.sums.pending().len() >= SUMS_PENDING_MAX);
        due.map(|segment| (segment.handle.path().to_owned(), segment.sums.clone()))
    };
    let Some((segment_path, sums)) = next else { return Ok(()) };
    let path: PathBuf = sidecar_path(&segment_path);
    let is_first = sums.written_blocks() == 0;
    let options = OpenOptions::READ_WRITE_CREATE;
    let file = inner.io.open(&path, if is_first { options.with_truncate() } else { options }).await?;
    let bytes: Vec<u8> = sums.pending().iter().flat_map(|sum| sum.to_le_bytes()).collect();
    let position = (SIDECAR_HEADER_BYTES + sums.written_blocks() as usize * 4) as u64;
    let (position, pieces) = if is_first {
        (0, vec![Bytes::from(encode_header(sums.place())), Bytes::from(bytes)])
    } else {
        (position, vec![Bytes::from(bytes)])
    };
    inner.io.write_at(&file, position, pieces).await?;
    inner.io.sync_data(&file).await?;
    let mut core = inner.core.borrow_mut();
    let segment = core.log_mut(id).and_then(|log| log.segments.back_mut());
    if let Some(segment) = segment.filter(|segment| segment.base == sums.place().base)
        && segment.sums.written_blocks() == sums.written_blocks()
    {
        segment.sums.note_written(sums.pending().len());
    }
    Ok(())
}
