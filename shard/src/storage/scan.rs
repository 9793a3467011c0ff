//! Walking batch headers in a segment file, window by window. Believes no length beyond the bound it is given.

use std::io;

use bytes::Bytes;
use ringlog_io::{File, Io};
use ringlog_protocol::records::batch::{BATCH_HEADER_BYTES, BatchHeader};

use crate::limits::SEGMENT_BATCH_BYTES_MAX;

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
        if header.last_offset_delta < 0 || header.base_offset.0 < 0 {
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
