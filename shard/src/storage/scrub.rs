//! The scrub: reads what is synced, slowly, and compares it with the checksums of the sidecars, so that bytes that rot on a
//! device are found while another copy or a backup may still exist, and not first by a consumer.
//!
//! Owns the walk and its pace. Reads around the page cache where the kernel can. It mends nothing: what is damaged is
//! reported with file and position. Blocks whose checksum nobody knows yet are passed over.

use std::sync::Arc;
use std::time::Duration;

use ringlog_protocol::ids::{Offset, TopicPartition};

use super::core_storage::{CoreStorage, Inner};
use super::log::{Damage, LogId};
use super::read::ReadError;
use super::segment::SegmentHandle;
use super::sidecar_file::{BlockVerdict, KnownSums, known_sums, verify_block};
use crate::limits::{SCRUB_PERIOD, SCRUB_PIECE_BLOCKS, SCRUB_START_DELAY, SUM_BLOCK_BYTES};

/// What one pass over all segments found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubReport {
    /// Compared with their checksum.
    pub bytes: u64,
    /// Passed over, because nobody knows their checksum yet.
    pub unknown_bytes: u64,
    /// Blocks that are damaged or cannot be read.
    pub errors: u64,
}

/// A segment to look at.
struct Target {
    id: LogId,
    key: TopicPartition,
    base: Offset,
    handle: Arc<SegmentHandle>,
    synced_bytes: u32,
}

impl CoreStorage {
    /// Scrubs pass after pass for as long as it is polled, at most `bytes_per_second`; 0 = never. Meant for the background.
    pub async fn keep_scrubbing(&self, bytes_per_second: u64) {
        if bytes_per_second == 0 || self.inner().is_ephemeral {
            return;
        }
        let io = self.inner().io.clone();
        io.sleep(SCRUB_START_DELAY).await;
        loop {
            let started = io.monotonic_now();
            let report = self.scrub(bytes_per_second).await;
            tracing::info!(?report, "scrubbed all segments");
            io.sleep(SCRUB_PERIOD.saturating_sub(io.monotonic_now().saturating_since(started))).await;
        }
    }

    /// One pass over the synced part of every segment.
    pub async fn scrub(&self, bytes_per_second: u64) -> ScrubReport {
        let inner = self.inner();
        let mut report = ScrubReport::default();
        let mut pace = Pace { bytes_per_second: bytes_per_second.max(1), blocks: 0 };
        for id in logs_in_order(inner) {
            let bases: Vec<Offset> = {
                let core = inner.core.borrow();
                core.log(id).map(|log| log.segments.iter().map(|segment| segment.base).collect())
            }
            .unwrap_or_default();
            for base in bases {
                scrub_segment(inner, id, base, &mut pace, &mut report).await;
            }
        }
        let mut core = inner.core.borrow_mut();
        core.counters.scrub_passes += 1;
        core.counters.scrub_ended = Some(inner.io.monotonic_now());
        report
    }
}

/// Sleeps so that so many bytes a second are read.
struct Pace {
    bytes_per_second: u64,
    blocks: u64,
}

impl Pace {
    async fn block(&mut self, inner: &Inner) {
        self.blocks += 1;
        if self.blocks >= SCRUB_PIECE_BLOCKS {
            let bytes = self.blocks * u64::from(SUM_BLOCK_BYTES);
            self.blocks = 0;
            inner
                .io
                .sleep(Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / self.bytes_per_second))
                .await;
        }
    }
}

fn logs_in_order(inner: &Inner) -> Vec<LogId> {
    let core = inner.core.borrow();
    let mut logs: Vec<(TopicPartition, LogId)> = core.logs().map(|log| (log.key, log.id)).collect();
    logs.sort_unstable();
    logs.into_iter().map(|(_, id)| id).collect()
}

/// The segment as it is now, if it is still there.
fn target(inner: &Inner, id: LogId, base: Offset) -> Option<Target> {
    let core = inner.core.borrow();
    let log = core.log(id)?;
    let index = log.segments.binary_search_by_key(&base, |segment| segment.base).ok()?;
    let segment = log.segments.get(index)?;
    let handle = Arc::clone(&segment.handle);
    Some(Target { id, key: log.key, base, handle, synced_bytes: segment.synced_bytes })
}

async fn scrub_segment(inner: &Inner, id: LogId, base: Offset, pace: &mut Pace, report: &mut ScrubReport) {
    let Some(target) = target(inner, id, base).filter(|target| target.synced_bytes > 0) else { return };
    inner.keep_descriptors();
    let known = known_sums(inner, id, base).await;
    for block in 0..target.synced_bytes.div_ceil(SUM_BLOCK_BYTES) {
        pace.block(inner).await;
        let verdict = judge(inner, &target, &known, block).await;
        let bytes = u64::from(SUM_BLOCK_BYTES.min(target.synced_bytes - block * SUM_BLOCK_BYTES));
        match verdict {
            Ok(BlockVerdict::Sound) => {
                report.bytes += bytes;
                inner.core.borrow_mut().counters.scrubbed_bytes += bytes;
                let start = u64::from(block) * u64::from(SUM_BLOCK_BYTES);
                let range = (start, start + bytes);
                inner.damage.forget_place(target.key, base, target.handle.path(), range);
            }
            Ok(BlockVerdict::Unknown) => report.unknown_bytes += bytes,
            Ok(BlockVerdict::Bad) | Err(_) if !is_unchanged(inner, &target) => return,
            bad => {
                report.errors += 1;
                inner.core.borrow_mut().counters.scrub_errors += 1;
                note(inner, &target, block, bad);
            }
        }
    }
}

/// A block that looks bad is read twice: a device's error may pass.
async fn judge(
    inner: &Inner,
    target: &Target,
    known: &KnownSums,
    block: u32,
) -> std::io::Result<BlockVerdict> {
    let file = target.handle.open(&inner.io).await?;
    match verify_block(&inner.io, &file, known, block).await {
        Ok(BlockVerdict::Bad) | Err(_) => verify_block(&inner.io, &file, known, block).await,
        good => good,
    }
}

/// Whether the segment's file is still the one that was looked at, and not shorter.
fn is_unchanged(inner: &Inner, looked_at: &Target) -> bool {
    target(inner, looked_at.id, looked_at.base).is_some_and(|now| {
        Arc::ptr_eq(&now.handle, &looked_at.handle) && now.synced_bytes >= looked_at.synced_bytes
    })
}

fn note(inner: &Inner, target: &Target, block: u32, found: std::io::Result<BlockVerdict>) {
    let (path, start) = (target.handle.path().to_owned(), block * SUM_BLOCK_BYTES);
    // Whoever reads it next checks it again.
    target.handle.checked.cut(start);
    let position = u64::from(start);
    match found {
        Err(source) => {
            inner.damage.note_error(target.key, target.base, &ReadError::Io { path, position, source });
        }
        Ok(_) => {
            let detail = format!("the block of {SUM_BLOCK_BYTES} bytes there is not what was synced");
            inner.damage.note(target.key, target.base, Damage { path, position, detail });
        }
    }
}
