//! A segment read in pieces of whole batches, the map filled piece by piece, and a new segment written in pieces. No decisions.

use std::path::PathBuf;

use bytes::Bytes;
use ringlog_io::File;
use ringlog_protocol::ids::{LeaderEpoch, Offset};
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_protocol::records::reader::ReadError;

use super::filter::{Filtered, is_of_transaction, note_keys};
use super::key_map::KeyMap;
use super::run::{CompactionError, Source};
use crate::limits::COMPACTION_PIECE_BYTES;
use crate::storage::core_storage::Inner;
use crate::storage::scan::{Expected, HeaderWalk, WalkError, next_checked};
use crate::storage::segment::Segment;

/// Whole batches, at least one.
pub(super) struct Piece {
    pub(super) batches: Vec<Bytes>,
    pub(super) bytes: u64,
    /// Where the first begins.
    pub(super) position: u32,
}

/// The batches of a closed segment, each checked, none missing.
pub(super) struct Batches<'a> {
    walk: HeaderWalk<'a>,
    path: PathBuf,
    base: Offset,
    end: Offset,
    next: Offset,
    epoch: LeaderEpoch,
}

impl<'a> Batches<'a> {
    pub(super) fn new(inner: &'a Inner, source: &Source, file: &'a File) -> Batches<'a> {
        Batches {
            walk: HeaderWalk::new(&inner.io, file, 0, source.bytes, COMPACTION_PIECE_BYTES),
            path: source.handle.path().to_owned(),
            base: source.facts.base,
            end: source.facts.end,
            next: source.facts.base,
            epoch: LeaderEpoch::NONE,
        }
    }

    /// The next batches; none at the segment's end.
    ///
    /// # Errors
    /// [`CompactionError::Io`] and [`CompactionError::Damaged`].
    pub(super) async fn next_piece(&mut self) -> Result<Option<Piece>, CompactionError> {
        let mut piece = Piece { batches: Vec::new(), bytes: 0, position: self.walk.position() };
        while piece.bytes < COMPACTION_PIECE_BYTES as u64 {
            let expected = Expected { segment_base: self.base, offset: self.next, epoch: self.epoch };
            let position = self.walk.position();
            let (walked, bytes) = match next_checked(&mut self.walk, expected).await {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(WalkError::Io(source)) => {
                    return Err(CompactionError::Io { path: self.path.clone(), source });
                }
                Err(WalkError::Invalid { position, detail }) => return Err(self.damaged(position, detail)),
            };
            if walked.header.base_offset != self.next {
                let detail = format!("offset {} is missing", self.next);
                return Err(self.damaged(position, detail));
            }
            (self.next, self.epoch) = (walked.header.next_offset(), walked.header.leader_epoch);
            piece.bytes += bytes.len() as u64;
            piece.batches.push(bytes);
        }
        if piece.batches.is_empty() && self.next != self.end {
            let detail =
                format!("the segment ends at offset {}, the next one begins at {}", self.next, self.end);
            return Err(self.damaged(self.walk.position(), detail));
        }
        Ok((!piece.batches.is_empty()).then_some(piece))
    }

    fn damaged(&self, position: u32, detail: String) -> CompactionError {
        CompactionError::Damaged { path: self.path.clone(), position, detail }
    }
}

/// The map while it is filled.
pub(super) struct Filling {
    pub(super) map: KeyMap,
    /// Records before it were seen in another compaction.
    from: Offset,
    /// All keys below are in the map.
    pub(super) end: Offset,
    /// It is full, or the next batch is a transaction's.
    pub(super) is_over: bool,
    scratch: Vec<u8>,
}

impl Filling {
    pub(super) fn new(map: KeyMap, from: Offset) -> Filling {
        Filling { map, from, end: from, is_over: false, scratch: Vec::new() }
    }

    /// Puts in the keys of the next batches.
    ///
    /// # Errors
    /// [`ReadError`]: a batch cannot be read.
    pub(super) fn take(mut self, batches: &[Bytes]) -> Result<Filling, ReadError> {
        for batch in batches {
            let header = BatchHeader::parse(batch)?;
            if header.next_offset() <= self.from {
                continue;
            }
            if is_of_transaction(&header) {
                self.is_over = true;
                break;
            }
            self.end = note_keys(&mut self.map, batch, self.from, &mut self.scratch)?;
            if self.end < header.next_offset() {
                self.is_over = true;
                break;
            }
        }
        Ok(self)
    }
}

/// A new segment while it is written.
pub(super) struct Writer {
    file: File,
    path: PathBuf,
    pub(super) segment: Segment,
    /// The offset after its last batch.
    pub(super) end: Offset,
    /// Batches that are not as they were.
    pub(super) changed: u64,
}

impl Writer {
    pub(super) fn new(file: File, path: PathBuf, segment: Segment) -> Writer {
        let end = segment.base;
        Writer { file, path, segment, end, changed: 0 }
    }

    /// Appends what came of the next batches.
    ///
    /// # Errors
    /// [`CompactionError::Io`] and [`CompactionError::TooLong`].
    pub(super) async fn write(&mut self, inner: &Inner, out: Filtered) -> Result<(), CompactionError> {
        if out.bytes.is_empty() {
            return Ok(());
        }
        let position = self.segment.bytes;
        let is_short =
            u32::try_from(out.bytes.len()).is_ok_and(|bytes| position.checked_add(bytes).is_some());
        if !is_short {
            return Err(CompactionError::TooLong { path: self.path.clone() });
        }
        self.segment.sums.add(position, &out.bytes);
        for kept in &out.batches {
            let bytes = u32::try_from(kept.bytes).expect("part of what was just measured");
            self.segment.note_batch(kept.header.base_offset, bytes, kept.header.newest_timestamp());
            self.end = kept.header.next_offset();
        }
        self.changed += out.changed;
        let bytes = Bytes::from(out.bytes);
        let length = bytes.len() as u64;
        let written = inner.io.write_at(&self.file, u64::from(position), vec![bytes]).await;
        let failed = |source| CompactionError::Io { path: self.path.clone(), source };
        written.map_err(failed)?;
        // So that the sync at the end finds little to do.
        inner.io.start_write_out(&self.file, u64::from(position), length).await.map_err(failed)
    }
}
