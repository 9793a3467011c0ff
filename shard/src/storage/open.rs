//! Opening a recovered partition: what a checkpoint and the sidecars say is taken from them, the rest is read, and each batch
//! of it must check.
//!
//! Owns two decisions: whether a checkpoint may be believed, and whether what does not check is a crash's tail (cut) or
//! damage (kept, reported, no more writes).

use std::path::PathBuf;
use std::sync::Arc;

use ringlog_io::OpenOptions;
use ringlog_protocol::ids::{LeaderEpoch, Offset};
use ringlog_protocol::records::batch::{BATCH_HEADER_BYTES, BatchHeader};

use super::behind::open_behind;
use super::checkpoint_file::PartitionCheckpoint;
use super::core_storage::{CoreStorage, Inner, StorageError};
use super::deletion;
use super::folder::{partition_folder, segment_name};
use super::log::{Acknowledged, Damage, Log, LogId};
use super::log_start::LogStarts;
use super::recovered::{CoveredEnd, RecoveredPartition, SegmentInfo};
use super::roll;
use super::scan::{Expected, HeaderWalk, WalkError, next_checked};
use super::segment::Segment;
use super::settings::LogSettings;
use super::sidecar::SegmentFooter;
use super::sidecar_file;
use super::sums::{BlockSums, SumPlace};
use crate::journal::entry::{Entry, EntryBody};
use crate::journal::{Note, NoteKind, PoisonReason};
use crate::limits::{START_SCAN_BYTES, SUM_BLOCK_BYTES};

/// Who makes something of a log's batches while it is opened.
pub trait LogVisitor {
    /// A checkpoint spares the batches before some offset. `producers` is what the snapshot source gave there, none if there
    /// was no source. False = it is of no use: every batch is shown.
    fn restore(&mut self, producers: Option<&[u8]>) -> bool;

    /// The next batch in order, of those that are not spared.
    fn batch(&mut self, header: &BatchHeader);
}

/// Wants to see every batch.
struct EveryBatch<'a>(&'a mut dyn FnMut(&BatchHeader));

impl LogVisitor for EveryBatch<'_> {
    fn restore(&mut self, _producers: Option<&[u8]>) -> bool {
        false
    }

    fn batch(&mut self, header: &BatchHeader) {
        (self.0)(header);
    }
}

/// How the scan of one segment ended.
enum SegmentEnd {
    /// At the end of its file.
    Whole,
    /// At `position` no valid batch begins.
    Invalid { position: u32, detail: String },
}

impl CoreStorage {
    /// Opens a recovered partition: reads every segment once, checks each batch, and shows each header to `visit` in order.
    /// What was found damaged is in [`Log::damage`]; such a log serves what is sound and refuses appends.
    ///
    /// # Errors
    /// [`StorageError::Io`]: a segment cannot be read or cut.
    ///
    /// # Panics
    /// When the partition is open already.
    pub async fn open_log(
        &self,
        recovered: RecoveredPartition,
        settings: LogSettings,
        visit: &mut dyn FnMut(&BatchHeader),
    ) -> Result<LogId, StorageError> {
        self.open_log_from(recovered, settings, &mut EveryBatch(visit)).await
    }

    /// As [`CoreStorage::open_log`], but reads only what came after the partition's checkpoint, if it has one that fits its
    /// files. Segments closed before are known from their sidecars; one without is read.
    ///
    /// # Errors
    /// As [`CoreStorage::open_log`].
    ///
    /// # Panics
    /// As [`CoreStorage::open_log`].
    pub async fn open_log_from(
        &self,
        recovered: RecoveredPartition,
        settings: LogSettings,
        visitor: &mut dyn LogVisitor,
    ) -> Result<LogId, StorageError> {
        let inner = self.inner();
        let mut recovered = recovered;
        let folder = partition_folder(&inner.data, recovered.key);
        deletion::drop_retired(inner, &mut recovered)
            .await
            .map_err(|source| StorageError::Io { path: folder.clone(), source })?;
        let mut log = Log::new(LogId { slot: 0, version: 0 }, recovered.key, folder, settings);
        log.files = Arc::clone(&inner.files);
        log.folder_is_durable = !recovered.segments.is_empty();
        log.damage = recovered.damage.clone();
        log.compaction = recovered.compaction.unwrap_or_default();
        log.log_end = first_offset(&mut log, &recovered);
        let trusted = trusted_checkpoint(inner, &log, &recovered, visitor).await;
        if let Some(checkpoint) = trusted {
            log.epochs.clone_from(&checkpoint.epochs);
            log.record.note_restored(checkpoint.sequence, checkpoint.offset);
        }
        scan_segments(inner, &mut log, &recovered, trusted, visitor).await?;
        empty_at_start(&mut log, recovered.log_start);
        let log_end = log.log_end;
        log.epochs.retain(|epoch| epoch.start < log_end);
        check_covered(&mut log, recovered.covered);
        if log.damage.is_some() {
            open_behind(inner, &mut log, &recovered).await;
        }
        log.acknowledged = log
            .damage
            .is_some()
            .then_some(Acknowledged { log_start: recovered.log_start, covered: recovered.covered });
        log.log_start = match log.segments.front() {
            Some(first) => recovered.log_start.max(first.base),
            None => log.log_end,
        }
        .min(log.log_end);
        log.durable_end = log.log_end;
        log.starts = LogStarts::at(log.log_start);
        log.forget_epochs_below_start();
        log.note_opened(inner.io.wall_now_ms());
        roll::load_first_time(inner, &mut log).await;
        log.hard_state = recovered.hard_state.clone().map(|state| (recovered.hard_state_sequence, state));
        log.log_start_sequence = recovered.log_start_sequence;
        log.poison = log.damage.as_ref().map(|damage| PoisonReason::Damaged { detail: damage.to_string() });
        let mut core = inner.core.borrow_mut();
        // Its entry may have been carried along, with a new sequence, while the scan went on.
        let carried = core.unopened.remove(&recovered.key).map(|unopened| unopened.partition.next_sequence);
        log.next_sequence = recovered.next_sequence.max(carried.unwrap_or(0));
        log.presence = core.recovered_files.iter().copied().collect();
        let id = core.insert(log);
        if let Some(log) = core.log_mut(id) {
            speak_for_rest(inner, log, recovered.covered);
        }
        drop(core);
        inner.keep_descriptors();
        Ok(id)
    }

    /// Bytes of segments that were read and checked when logs were opened.
    #[must_use]
    pub fn scanned_bytes(&self) -> u64 {
        self.inner().core.borrow().counters.scanned_bytes
    }
}

/// Batches behind what the journal speaks for were kept and are synced: it must speak for them before it takes the next
/// one, or the next start would find a hole before that.
fn speak_for_rest(inner: &Inner, log: &mut Log, covered: Option<CoveredEnd>) {
    if log.damage.is_some() || covered.map_or(Offset(0), |end| end.offset) == log.log_end {
        return;
    }
    let body = EntryBody::SyncedTo(log.synced_to());
    let sequence = log.take_sequence();
    let note = Note { token: log.id.token(), sequence, kind: NoteKind::SyncedTo };
    inner.journal.push(&Entry { key: log.key, sequence, carried: false, body }, note);
}

/// The first offset that may be there. The journal knows where the log starts, so a later one says that files are lost.
fn first_offset(log: &mut Log, recovered: &RecoveredPartition) -> Offset {
    let log_start = recovered.log_start;
    let first = recovered.segments.first().map(|segment| segment.base);
    let found = first.or(recovered.covered.map(|end| end.offset)).unwrap_or(log_start);
    if found > log_start {
        let detail = match first {
            Some(first) => {
                format!("missing: the log starts at offset {log_start}, the first segment at {first}")
            }
            None => {
                format!("missing: acknowledged from offset {log_start} to {found}, and there is no segment")
            }
        };
        note_damage(log, log.folder.join(segment_name(log_start)), 0, detail);
        return first.unwrap_or(log_start);
    }
    found
}

/// A log ends no lower than it starts. Where only a reference told of the batch in which it starts, and the bytes are not there, the
/// log is what it was before: emptied. A file without a batch goes at the next start, as any below the log's.
fn empty_at_start(log: &mut Log, log_start: Offset) {
    if log.damage.is_none() && log.log_end < log_start {
        ringlog_io::reached!("open.emptied_at_start");
        log.segments.clear();
        log.epochs.clear();
        log.log_end = log_start;
    }
}

/// The partition's checkpoint, if it speaks of the files as they are and the visitor can go on from it.
async fn trusted_checkpoint<'a>(
    inner: &Inner,
    log: &Log,
    recovered: &'a RecoveredPartition,
    visitor: &mut dyn LogVisitor,
) -> Option<&'a PartitionCheckpoint> {
    let checkpoint = recovered.checkpoint.as_deref().filter(|_| recovered.damage.is_none())?;
    if !is_of_these_files(inner, log, recovered, checkpoint).await {
        ringlog_io::reached!("open.checkpoint_refused");
        return None;
    }
    let producers = checkpoint.producers.as_deref();
    let is_known = cfg!(feature = "planted-forget-producer-state") || visitor.restore(producers);
    ringlog_io::reached!("open.tail_only");
    is_known.then_some(checkpoint)
}

async fn is_of_these_files(
    inner: &Inner,
    log: &Log,
    recovered: &RecoveredPartition,
    checkpoint: &PartitionCheckpoint,
) -> bool {
    if checkpoint.position == 0 {
        // Of a log that was emptied there: all that is left of it came later.
        let first = recovered.segments.first().map(|info| info.base);
        return first.or(recovered.covered.map(|end| end.offset)) == Some(checkpoint.offset);
    }
    if checkpoint.segment_base < log.compaction.compacted_end {
        // Its positions are those of a segment that was compacted since.
        return false;
    }
    let info = recovered.segments.iter().find(|info| info.base == checkpoint.segment_base);
    info.is_some_and(|info| info.bytes >= u64::from(checkpoint.position))
        && ends_with_its_batch(inner, log, checkpoint).await
}

/// Whether the batch before the checkpoint's position is the one that was there. After a truncation another would be, or the
/// same one once more behind others: of two logs in which an offset has one epoch all before it is the same (KIP-101),
/// and a CRC covers neither.
async fn ends_with_its_batch(inner: &Inner, log: &Log, checkpoint: &PartitionCheckpoint) -> bool {
    let path = log.folder.join(segment_name(checkpoint.segment_base));
    let last = checkpoint.last_batch;
    let head = async {
        // A descriptor of its own, so that a partition with nothing to scan keeps none.
        let file = inner.io.open(&path, OpenOptions::READ).await?;
        inner.io.read_at(&file, u64::from(last.position), BATCH_HEADER_BYTES).await
    };
    let Ok(head) = head.await else { return false };
    inner.core.borrow_mut().counters.scanned_bytes += head.len() as u64;
    BatchHeader::parse_prefix(&head).is_ok_and(|header| {
        let end = u64::from(last.position) + header.total_bytes() as u64;
        let epoch = checkpoint.epochs.last().map_or(header.leader_epoch, |last| last.epoch);
        header.crc == last.crc
            && header.leader_epoch == epoch
            && header.next_offset() == checkpoint.offset
            && end == u64::from(checkpoint.position)
    })
}

async fn scan_segments(
    inner: &Inner,
    log: &mut Log,
    recovered: &RecoveredPartition,
    trusted: Option<&PartitionCheckpoint>,
    visitor: &mut dyn LogVisitor,
) -> Result<(), StorageError> {
    for (index, info) in recovered.segments.iter().enumerate() {
        let path = log.folder.join(segment_name(info.base));
        if info.base != log.log_end {
            let detail = format!("the segment follows offset {}, not {}", info.base, log.log_end);
            note_damage(log, path, 0, detail);
            return Ok(());
        }
        let later = recovered.segments.get(index + 1..).unwrap_or_default();
        let interval = log.settings.index_interval_bytes;
        let mut segment = Segment::new(&log.folder, log.key, info.base, interval, &log.files);
        let is_spared = trusted.is_some_and(|checkpoint| info.base < checkpoint.segment_base);
        if is_spared && take_footer(inner, log, &mut segment, info, later.first()).await {
            log.push_segment(segment);
            continue;
        }
        if let Some(checkpoint) = trusted.filter(|checkpoint| checkpoint.segment_base == info.base) {
            take_checkpoint(inner, log, &mut segment, checkpoint);
        }
        let covered = recovered.covered.filter(|_| recovered.damage.is_none());
        // What is spared the visitor knows already.
        let end = if is_spared {
            scan_segment(inner, log, &mut segment, info, covered, &mut |_| {}).await?
        } else {
            scan_segment(inner, log, &mut segment, info, covered, &mut |header| visitor.batch(header)).await?
        };
        segment.synced_bytes = segment.bytes;
        match end {
            SegmentEnd::Whole => {
                // What recovery could not restore up to its end is not synced either.
                sync_uncovered(inner, &segment, covered).await?;
            }
            SegmentEnd::Invalid { position, detail } => {
                // Behind damage nobody knows what was acknowledged.
                let is_tail = log.damage.is_none()
                    && is_above(&segment, position, recovered.covered)
                    && later.iter().all(|segment| segment.bytes == 0);
                if is_tail {
                    cut(inner, &segment, later, log).await?;
                } else {
                    note_damage(log, path, u64::from(position), detail);
                }
                log.push_segment(segment);
                return Ok(());
            }
        }
        if !later.is_empty() {
            settle_sidecar(inner, &mut segment, log.log_end).await;
            // All of it is synced. One partition may have more segments than files may be open.
            segment.handle.close();
        }
        log.push_segment(segment);
    }
    Ok(())
}

/// Takes a closed segment's state from its sidecar; false when that is missing, bad or of other bytes.
async fn take_footer(
    inner: &Inner,
    log: &mut Log,
    segment: &mut Segment,
    info: &SegmentInfo,
    next: Option<&SegmentInfo>,
) -> bool {
    let path = segment.handle.path();
    let footer = match sidecar_file::load(&inner.io, path, segment.sums.place()).await {
        Ok(sidecar) => sidecar.footer,
        Err(error) => {
            ringlog_io::reached!("open.sidecar_unusable");
            tracing::info!(path = %path.display(), %error, "a closed segment has no usable sidecar and is read");
            return false;
        }
    };
    let SegmentFooter { segment_bytes, end_offset, max_timestamp, max_timestamp_batch, index, .. } = footer;
    if u64::from(segment_bytes) != info.bytes || next.is_none_or(|next| next.base != end_offset) {
        let path = path.display();
        tracing::warn!(%path, "a sidecar speaks of other bytes than its segment has; the segment is read");
        return false;
    }
    (segment.bytes, segment.synced_bytes) = (segment_bytes, segment_bytes);
    (segment.max_timestamp, segment.max_timestamp_batch) = (max_timestamp, max_timestamp_batch);
    segment.index = index;
    ringlog_io::reached!("open.footer_taken");
    segment.sidecar_is_closed = true;
    segment.sums.forget();
    log.log_end = end_offset;
    true
}

/// Takes the state of the segment in which the checkpoint lies; the scan goes on behind it.
fn take_checkpoint(inner: &Inner, log: &mut Log, segment: &mut Segment, checkpoint: &PartitionCheckpoint) {
    segment.bytes = checkpoint.position;
    segment.max_timestamp = checkpoint.max_timestamp;
    segment.max_timestamp_batch = checkpoint.max_timestamp_batch;
    segment.index = checkpoint.index.clone();
    let place = SumPlace { key: log.key, base: checkpoint.segment_base };
    segment.sums = BlockSums::restored(place, checkpoint.position, checkpoint.sums.clone());
    log.log_end = checkpoint.offset;
    let record_bytes = inner.recorder.record_bytes(log.key);
    log.record.note_opened(record_bytes, Some(checkpoint.last_batch).filter(|_| checkpoint.position > 0));
}

/// A closed segment was read whole, and its batches check: is it what its sidecar was made of? If there is none, or it is of
/// another length, it is made anew later. A sidecar that checks and is of that length is believed rather than the segment:
/// readers are refused the blocks that differ.
async fn settle_sidecar(inner: &Inner, segment: &mut Segment, end_offset: Offset) {
    let Some(state) = segment.sums.state().filter(|state| state.written_blocks == 0) else { return };
    let path = segment.handle.path();
    let Ok(sidecar) = sidecar_file::load(&inner.io, path, segment.sums.place()).await else { return };
    if sidecar.footer.segment_bytes != segment.bytes || sidecar.footer.end_offset != end_offset {
        let path = path.display();
        tracing::warn!(%path, "a sidecar does not fit its segment, whose batches check; it is made anew");
        return;
    }
    let tail = (state.pending.len(), sidecar.footer.tail_sum != state.partial);
    let differ = sidecar.sums.iter().zip(&state.pending).map(|(synced, found)| synced != found).enumerate();
    for (block, _) in differ.chain([tail]).filter(|(_, differs)| *differs) {
        let position = block as u64 * u64::from(SUM_BLOCK_BYTES);
        let detail = format!("the block of {SUM_BLOCK_BYTES} bytes there is not what was synced");
        let damage = Damage { path: path.to_owned(), position, detail };
        inner.damage.note(segment.sums.place().key, segment.base, damage);
    }
    segment.sidecar_is_closed = true;
    segment.sums.forget();
}

/// Whether nothing acknowledged lies at or behind this place.
fn is_above(segment: &Segment, position: u32, covered: Option<CoveredEnd>) -> bool {
    covered.is_none_or(|end| (segment.base, position) >= (end.segment_base, end.position))
}

async fn scan_segment(
    inner: &Inner,
    log: &mut Log,
    segment: &mut Segment,
    info: &SegmentInfo,
    covered: Option<CoveredEnd>,
    visit: &mut dyn FnMut(&BatchHeader),
) -> Result<SegmentEnd, StorageError> {
    let failed =
        |segment: &Segment, source| StorageError::Io { path: segment.handle.path().to_owned(), source };
    if u64::from(segment.bytes) == info.bytes {
        return Ok(SegmentEnd::Whole);
    }
    let file = segment.handle.open(&inner.io).await.map_err(|error| failed(segment, error))?;
    let bound = u32::try_from(info.bytes).unwrap_or(u32::MAX);
    let mut walk = HeaderWalk::new(&inner.io, &file, segment.bytes, bound, START_SCAN_BYTES);
    let mut epoch = LeaderEpoch(-1);
    loop {
        let expected = Expected { segment_base: segment.base, offset: log.log_end, epoch };
        let (walked, batch) = match next_checked(&mut walk, expected).await {
            Ok(Some(walked)) => walked,
            Ok(None) if u64::from(bound) < info.bytes => {
                return Ok(SegmentEnd::Invalid {
                    position: bound,
                    detail: "the segment is longer than 4 GiB".to_owned(),
                });
            }
            Ok(None) => return Ok(SegmentEnd::Whole),
            Err(WalkError::Io(source)) => return Err(failed(segment, source)),
            Err(WalkError::Invalid { position, detail }) => {
                return Ok(SegmentEnd::Invalid { position, detail });
            }
        };
        let header = &walked.header;
        if let Some(end) = covered.filter(|end| is_beyond(end, segment.base, walk.position(), header)) {
            let found = header.next_offset();
            let detail = format!("a batch ends at offset {found}, the journal had {} there", end.offset);
            return Ok(SegmentEnd::Invalid { position: walked.position, detail });
        }
        let bytes = u32::try_from(header.total_bytes()).expect("the walk bounds a batch by the file");
        segment.sums.add(walked.position, &batch);
        segment.note_batch(header.base_offset, bytes, header.newest_timestamp());
        log.record.note_batch(walked.position, header.crc);
        log.record.note_scanned(u64::from(bytes));
        {
            let mut core = inner.core.borrow_mut();
            core.counters.scanned_bytes += u64::from(bytes);
            core.unrecorded_bytes += u64::from(bytes);
        }
        epoch = header.leader_epoch;
        log.note_epoch(epoch, header.base_offset);
        log.log_end = header.next_offset();
        visit(header);
    }
}

/// Whether a batch that ends at `position`, no further than what the journal knows of, claims offsets beyond that.
fn is_beyond(end: &CoveredEnd, segment_base: Offset, position: u32, header: &BatchHeader) -> bool {
    end.segment_base == segment_base && position <= end.position && header.next_offset() > end.offset
}

/// Bytes that no journal entry speaks for were perhaps never synced; they are served from now on, so they must last.
async fn sync_uncovered(
    inner: &Inner,
    segment: &Segment,
    covered: Option<CoveredEnd>,
) -> Result<(), StorageError> {
    let is_covered =
        covered.is_some_and(|end| (segment.base, segment.bytes) <= (end.segment_base, end.position));
    if segment.bytes == 0 || is_covered {
        return Ok(());
    }
    let failed = |source| StorageError::Io { path: segment.handle.path().to_owned(), source };
    let file = segment.handle.open(&inner.io).await.map_err(failed)?;
    inner.io.sync_all(&file).await.map_err(failed)?;
    inner.sync_parent(segment.handle.path()).await.map_err(failed)
}

/// Cuts a crash's tail: the segment ends after its last sound batch, later files are empty and go.
async fn cut(inner: &Inner, segment: &Segment, later: &[SegmentInfo], log: &Log) -> Result<(), StorageError> {
    let path = segment.handle.path();
    let failed = |source| StorageError::Io { path: path.to_owned(), source };
    ringlog_io::reached!("open.tail_cut");
    tracing::info!(path = %path.display(), position = segment.bytes, "cutting an unfinished write off a segment");
    let file = segment.handle.open(&inner.io).await.map_err(failed)?;
    inner.io.truncate(&file, u64::from(segment.bytes)).await.map_err(failed)?;
    inner.io.sync_all(&file).await.map_err(failed)?;
    for info in later {
        let path = log.folder.join(segment_name(info.base));
        inner
            .io
            .remove_file(&path)
            .await
            .map_err(|source| StorageError::Io { path: path.clone(), source })?;
    }
    inner.io.sync_directory(&log.folder).await.map_err(failed)
}

/// Everything acknowledged must have been found.
fn check_covered(log: &mut Log, covered: Option<CoveredEnd>) {
    let Some(end) = covered else { return };
    if log.log_end < end.offset {
        let path = log
            .segment_path(end.segment_base)
            .map_or_else(|| log.folder.join(segment_name(end.segment_base)), std::path::Path::to_owned);
        let detail = format!("acknowledged up to offset {}, found up to {}", end.offset, log.log_end);
        note_damage(log, path, u64::from(end.position), detail);
    }
}

/// The first damage is the one that counts: what follows may come from it.
fn note_damage(log: &mut Log, path: PathBuf, position: u64, detail: String) {
    if log.damage.is_none() {
        let damage = Damage { path, position, detail };
        tracing::error!(topic_id = %log.key.topic, partition = log.key.partition.0, %damage, "serving what lies before");
        log.damage = Some(damage);
    }
}
