//! What lies behind damage that a start found: whole segments that are sound. They are served, each for itself; the log ends
//! before the damage all the same, and nobody writes behind it.
//!
//! Owns which offsets behind the end are served. Only what was acknowledged is, and a segment up to its first bad batch.

use std::sync::Arc;

use ringlog_io::OpenOptions;
use ringlog_protocol::ids::{LeaderEpoch, Offset};

use super::core_storage::Inner;
use super::damage::{DamageList, DamageReporter};
use super::log::{Damage, Log};
use super::read::{ReadError, ReadPlan, ReadRange};
use super::recovered::{RecoveredPartition, SegmentInfo};
use super::scan::{Expected, HeaderWalk, WalkError, next_checked};
use super::segment::Segment;
use super::sidecar_file;
use crate::limits::START_SCAN_BYTES;

/// A segment behind the damage.
#[derive(Debug)]
pub(crate) struct Behind {
    pub(crate) segment: Segment,
    /// The offset after its last sound record, as far as it was acknowledged.
    end: Offset,
}

/// What is served from an offset behind the damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedBehind {
    /// As near as the index knows, and at least 1.
    pub available_bytes: u64,
    /// The offset after the last acknowledged record.
    pub acknowledged_end: Offset,
}

/// Opens what lies behind a damaged log's end. Nothing of it can make the start fail.
pub(super) async fn open_behind(inner: &Inner, log: &mut Log, recovered: &RecoveredPartition) {
    let acknowledged = recovered.covered.map_or(Offset(0), |covered| covered.offset);
    let known = log.segments.back().map(|segment| segment.base);
    let later = recovered.segments.iter().enumerate().filter(|(_, info)| Some(info.base) > known);
    for (index, info) in later.filter(|(_, info)| info.bytes > 0) {
        let next = recovered.segments.get(index + 1).map(|next| next.base);
        let interval = log.settings.index_interval_bytes;
        let mut segment = Segment::new(&log.folder, log.key, info.base, interval, &log.files);
        let end = match by_sidecar(inner, &mut segment, info, next).await {
            Some(end) => end,
            None => by_reading(inner, log, &mut segment, info).await,
        };
        segment.synced_bytes = segment.bytes;
        segment.handle.close();
        let end = end.min(acknowledged);
        if end > segment.base {
            log.behind.push(Behind { segment, end });
        }
    }
    if let (Some(first), Some(damage)) = (log.behind.first(), &mut log.damage) {
        damage.detail.push_str(&format!("; served again from offset {}", first.segment.base));
    }
}

/// The end offset that the segment's sidecar states, if it is of this file; its index too.
async fn by_sidecar(
    inner: &Inner,
    segment: &mut Segment,
    info: &SegmentInfo,
    next: Option<Offset>,
) -> Option<Offset> {
    let place = segment.sums.place();
    let footer = sidecar_file::load(&inner.io, segment.handle.path(), place).await.ok()?.footer;
    if u64::from(footer.segment_bytes) != info.bytes || next.is_some_and(|next| next != footer.end_offset) {
        return None;
    }
    segment.bytes = footer.segment_bytes;
    segment.index = footer.index;
    segment.sidecar_is_closed = true;
    segment.sums.forget();
    Some(footer.end_offset)
}

/// Reads the segment up to its first bad batch; the offset after the last sound one.
async fn by_reading(inner: &Inner, log: &Log, segment: &mut Segment, info: &SegmentInfo) -> Offset {
    let path = segment.handle.path().to_owned();
    let (mut end, mut epoch) = (info.base, LeaderEpoch(-1));
    // A descriptor of its own: the segment may never be read.
    let file = match inner.io.open(&path, OpenOptions::READ).await {
        Ok(file) => file,
        Err(source) => {
            let error = ReadError::Io { path, position: 0, source };
            inner.damage.note_error(log.key, info.base, &error);
            return end;
        }
    };
    let bound = u32::try_from(info.bytes).unwrap_or(u32::MAX);
    let mut walk = HeaderWalk::new(&inner.io, &file, 0, bound, START_SCAN_BYTES);
    loop {
        let position = walk.position();
        let expected = Expected { segment_base: info.base, offset: end, epoch };
        match next_checked(&mut walk, expected).await {
            Ok(Some((walked, batch))) => {
                let bytes = u32::try_from(batch.len()).expect("the walk bounds a batch by the file");
                segment.sums.add(walked.position, &batch);
                segment.note_batch(walked.header.base_offset, bytes, walked.header.newest_timestamp());
                inner.core.borrow_mut().counters.scanned_bytes += u64::from(bytes);
                (end, epoch) = (walked.header.next_offset(), walked.header.leader_epoch);
            }
            Ok(None) => return end,
            Err(WalkError::Io(source)) => {
                let error = ReadError::Io { path, position: u64::from(position), source };
                inner.damage.note_error(log.key, info.base, &error);
                return end;
            }
            Err(WalkError::Invalid { position, detail }) => {
                let damage = Damage { path, position: u64::from(position), detail };
                inner.damage.note(log.key, info.base, damage);
                return end;
            }
        }
    }
}

impl Log {
    fn behind_at(&self, from: Offset) -> Option<&Behind> {
        self.behind.iter().find(|behind| behind.segment.base <= from && from < behind.end)
    }

    /// What is served from `from` on, which lies at or behind the end of a damaged log; none if nothing is.
    #[must_use]
    pub fn served_behind(&self, from: Offset) -> Option<ServedBehind> {
        let behind = self.behind_at(from)?;
        let start = behind.segment.index.at_or_before(from).position;
        Some(ServedBehind {
            available_bytes: u64::from(behind.segment.bytes.saturating_sub(start)).max(1),
            acknowledged_end: self.behind.last().map_or(behind.end, |last| last.end),
        })
    }

    /// Plans a read from an offset at or behind the end of a damaged log.
    pub(super) fn plan_read_behind(
        &self,
        range: ReadRange,
        list: &Arc<DamageList>,
    ) -> Result<ReadPlan, ReadError> {
        let Some(behind) = self.behind_at(range.from) else {
            let next_sound = self.behind.iter().map(|behind| behind.segment.base);
            return Err(ReadError::InDamage {
                offset: range.from,
                next_sound: next_sound.filter(|base| *base > range.from).min(),
            });
        };
        let damage = DamageReporter { list: Arc::clone(list), key: self.key, base: behind.segment.base };
        // The log's own limit lies before the damage.
        let range = ReadRange { limit: behind.end, ..range };
        Ok(self.plan_file(&behind.segment, range, damage))
    }
}
