//! The scan of a recovered partition at start: index, epochs and producers come from its batches, each of which must check.
//!
//! Owns one decision: whether what does not check is a crash's tail (cut) or damage (kept, reported, no more writes).

use std::path::PathBuf;

use ringlog_protocol::ids::Offset;
use ringlog_protocol::records::batch::{BatchHeader, check_crc};

use super::core_storage::{CoreStorage, Inner, StorageError};
use super::folder::{partition_folder, segment_name};
use super::log::{Damage, Log, LogId};
use super::recovered::{CoveredEnd, RecoveredPartition, SegmentInfo};
use super::scan::{HeaderWalk, WalkError, WalkedBatch};
use super::segment::Segment;
use super::settings::LogSettings;
use crate::journal::PoisonReason;
use crate::limits::START_SCAN_BYTES;

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
        let inner = self.inner();
        let folder = partition_folder(&inner.data, recovered.key);
        let mut log = Log::new(LogId { slot: 0, version: 0 }, recovered.key, folder, settings);
        log.folder_is_durable = !recovered.segments.is_empty();
        log.damage = recovered.damage.clone();
        log.log_end = first_offset(&recovered);
        scan_segments(inner, &mut log, &recovered, visit).await?;
        check_covered(&mut log, recovered.covered);
        log.log_start = match log.segments.front() {
            Some(first) => recovered.log_start.max(first.base),
            None => log.log_end,
        }
        .min(log.log_end);
        log.durable_end = log.log_end;
        log.hard_state = recovered.hard_state.clone().map(|state| (recovered.hard_state_sequence, state));
        log.log_start_sequence = recovered.log_start_sequence;
        log.poison = log.damage.as_ref().map(|damage| PoisonReason::Damaged { detail: damage.to_string() });
        let mut core = inner.core.borrow_mut();
        // Its entry may have been carried along, with a new sequence, while the scan went on.
        let carried = core.unopened.remove(&recovered.key).map(|unopened| unopened.partition.next_sequence);
        log.next_sequence = recovered.next_sequence.max(carried.unwrap_or(0));
        log.presence = core.recovered_files.iter().copied().collect();
        Ok(core.insert(log))
    }
}

fn first_offset(recovered: &RecoveredPartition) -> Offset {
    let first = recovered.segments.first().map(|segment| segment.base);
    first.or(recovered.covered.map(|end| end.offset)).unwrap_or(recovered.log_start)
}

async fn scan_segments(
    inner: &Inner,
    log: &mut Log,
    recovered: &RecoveredPartition,
    visit: &mut dyn FnMut(&BatchHeader),
) -> Result<(), StorageError> {
    for (index, info) in recovered.segments.iter().enumerate() {
        let path = log.folder.join(segment_name(info.base));
        if info.base != log.log_end {
            let detail = format!("the segment follows offset {}, not {}", info.base, log.log_end);
            note_damage(log, path, 0, detail);
            return Ok(());
        }
        let mut segment = Segment::new(&log.folder, info.base, log.settings.index_interval_bytes);
        let end = scan_segment(inner, log, &mut segment, info, visit).await?;
        segment.synced_bytes = segment.bytes;
        let later = recovered.segments.get(index + 1..).unwrap_or_default();
        match end {
            SegmentEnd::Whole => sync_uncovered(inner, &segment, recovered.covered).await?,
            SegmentEnd::Invalid { position, detail } => {
                let is_tail = is_above(&segment, position, recovered.covered)
                    && later.iter().all(|segment| segment.bytes == 0);
                if is_tail {
                    cut(inner, &segment, later, log).await?;
                } else {
                    note_damage(log, path, u64::from(position), detail);
                }
                log.segments.push_back(segment);
                return Ok(());
            }
        }
        log.segments.push_back(segment);
    }
    Ok(())
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
    visit: &mut dyn FnMut(&BatchHeader),
) -> Result<SegmentEnd, StorageError> {
    let failed =
        |segment: &Segment, source| StorageError::Io { path: segment.handle.path().to_owned(), source };
    let file = segment.handle.open(&inner.io).await.map_err(|error| failed(segment, error))?;
    let bound = u32::try_from(info.bytes).unwrap_or(u32::MAX);
    let mut walk = HeaderWalk::new(&inner.io, &file, 0, bound, START_SCAN_BYTES);
    loop {
        let walked = match next_checked(&mut walk, log.log_end).await {
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
        let bytes = u32::try_from(header.total_bytes()).expect("the walk bounds a batch by the file");
        segment.note_batch(header.base_offset, bytes, header.max_timestamp);
        log.note_epoch(header.leader_epoch, header.base_offset);
        log.log_end = header.next_offset();
        visit(header);
    }
}

/// The next batch, whose bytes check and whose offsets go on from `expected`.
async fn next_checked(walk: &mut HeaderWalk<'_>, expected: Offset) -> Result<Option<WalkedBatch>, WalkError> {
    let Some(walked) = walk.next().await? else { return Ok(None) };
    let invalid = |detail| WalkError::Invalid { position: walked.position, detail };
    if walked.header.base_offset < expected {
        return Err(invalid(format!(
            "a batch at offset {} follows offset {expected}",
            walked.header.base_offset
        )));
    }
    let bytes = walk.batch_bytes(&walked).await?;
    check_crc(&walked.header, &bytes).map_err(|error| invalid(error.to_string()))?;
    Ok(Some(walked))
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
