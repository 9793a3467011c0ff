//! Walking batch headers in a segment file, window by window. Believes no length beyond the bound it is given.

use std::io;

use bytes::Bytes;
use ringlog_io::{File, Io};
use ringlog_protocol::ids::{LeaderEpoch, Offset};
use ringlog_protocol::records::batch::{BATCH_HEADER_BYTES, BatchHeader, check_crc};

use crate::limits::SEGMENT_BATCH_BYTES_MAX;

/// Offsets from a segment's base to its last batch: it rolls before there are more.
const SEGMENT_OFFSETS_MAX: i64 = i32::MAX as i64;

/// Why a walk stopped before its bound.
#[derive(Debug)]
pub(crate) enum WalkError {
    Io(io::Error),
    /// No batch begins at `position`.
    Invalid {
        position: u32,
        detail: String,
    },
}

/// A batch's header and where the batch begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WalkedBatch {
    pub(crate) header: BatchHeader,
    pub(crate) position: u32,
}

/// Steps from batch to batch, reading `window_bytes` at a time.
pub(crate) struct HeaderWalk<'a> {
    io: &'a Io,
    file: &'a File,
    position: u32,
    bound: u32,
    window: Bytes,
    window_start: u32,
    window_bytes: usize,
}

impl<'a> HeaderWalk<'a> {
    /// A batch must begin at `position`; none is looked at beyond `bound`.
    pub(crate) fn new(
        io: &'a Io,
        file: &'a File,
        position: u32,
        bound: u32,
        window_bytes: usize,
    ) -> HeaderWalk<'a> {
        HeaderWalk { io, file, position, bound, window: Bytes::new(), window_start: position, window_bytes }
    }

    /// Where the next batch begins.
    pub(crate) fn position(&self) -> u32 {
        self.position
    }

    /// Goes on at `position`, where a batch begins.
    pub(crate) fn jump(&mut self, position: u32) {
        self.position = position;
    }

    /// The next batch; `None` at the bound.
    pub(crate) async fn next(&mut self) -> Result<Option<WalkedBatch>, WalkError> {
        let position = self.position;
        if position >= self.bound {
            return Ok(None);
        }
        let invalid = |detail: String| WalkError::Invalid { position, detail };
        let head = self.bytes(position, BATCH_HEADER_BYTES).await?;
        let header = BatchHeader::parse_prefix(&head).map_err(|error| invalid(error.to_string()))?;
        let total = header.total_bytes();
        let count = i64::from(header.last_offset_delta) + 1;
        if count < 1 || header.base_offset.0 < 0 || header.base_offset.0.checked_add(count).is_none() {
            return Err(invalid(format!(
                "batch of offsets {} + {}",
                header.base_offset, header.last_offset_delta
            )));
        }
        if total > SEGMENT_BATCH_BYTES_MAX {
            return Err(invalid(format!("batch states {total} bytes")));
        }
        let end = u64::from(position) + total as u64;
        let Some(end) = u32::try_from(end).ok().filter(|end| *end <= self.bound) else {
            return Err(invalid(format!("batch states {total} bytes, {} are left", self.bound - position)));
        };
        self.position = end;
        Ok(Some(WalkedBatch { header, position }))
    }

    /// The whole batch that was walked over.
    pub(crate) async fn batch_bytes(&mut self, batch: &WalkedBatch) -> Result<Bytes, WalkError> {
        self.bytes(batch.position, batch.header.total_bytes()).await
    }

    async fn bytes(&mut self, position: u32, length: usize) -> Result<Bytes, WalkError> {
        let offset = position.checked_sub(self.window_start).map(|offset| offset as usize);
        if let Some(offset) = offset
            && let Some(end) = offset.checked_add(length)
            && end <= self.window.len()
        {
            return Ok(self.window.slice(offset..end));
        }
        let left = (self.bound - position) as usize;
        let wanted = length.max(self.window_bytes).min(left);
        let mut read = self.io.read_at(self.file, u64::from(position), wanted).await;
        if read.is_err() && wanted > length {
            // What a device cannot read further on is not asked for yet.
            read = self.io.read_at(self.file, u64::from(position), length).await;
        }
        self.window = read.map_err(WalkError::Io)?;
        self.window_start = position;
        if self.window.len() < length {
            let detail = format!("{} bytes of a batch's {length} are left", self.window.len());
            return Err(WalkError::Invalid { position, detail });
        }
        Ok(self.window.slice(..length))
    }
}

/// Where a batch belongs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) segment_base: Offset,
    /// The offset after the batch before it.
    pub(super) offset: Offset,
    /// Of the batch before it.
    pub(super) epoch: LeaderEpoch,
}

/// The next batch of a segment as a start reads it, with its bytes: its CRC holds, and it stands where it belongs, which no CRC of a
/// batch covers.
pub(super) async fn next_checked(
    walk: &mut HeaderWalk<'_>,
    expected: Expected,
) -> Result<Option<(WalkedBatch, Bytes)>, WalkError> {
    let Some(walked) = walk.next().await? else { return Ok(None) };
    let invalid = |detail| WalkError::Invalid { position: walked.position, detail };
    let BatchHeader { base_offset: base, leader_epoch: epoch, .. } = walked.header;
    if base < expected.offset || epoch < expected.epoch {
        return Err(invalid(format!(
            "a batch at offset {base} of epoch {epoch} follows offset {} and epoch {}",
            expected.offset, expected.epoch
        )));
    }
    let leaps = base > expected.offset || epoch > expected.epoch;
    let is_far = base.0 - expected.segment_base.0 > SEGMENT_OFFSETS_MAX;
    if is_far || leaps && is_contradicted(walk, &walked.header, expected).await {
        return Err(invalid(format!(
            "a batch at offset {base} of epoch {epoch} stands where offset {} belongs",
            expected.offset
        )));
    }
    let bytes = walk.batch_bytes(&walked).await?;
    check_crc(&walked.header, &bytes).map_err(|error| invalid(error.to_string()))?;
    Ok(Some((walked, bytes)))
}

/// Whether the next batch has an offset or an epoch that the one just walked over skipped.
async fn is_contradicted(walk: &mut HeaderWalk<'_>, leaping: &BatchHeader, expected: Expected) -> bool {
    let position = walk.position();
    let next = walk.next().await;
    walk.jump(position);
    let Ok(Some(next)) = next else { return false };
    let BatchHeader { base_offset: base, leader_epoch: epoch, .. } = next.header;
    let goes_back = base < leaping.next_offset() || epoch < leaping.leader_epoch;
    goes_back && base >= expected.offset && epoch >= expected.epoch
}
