//! Reading a log: the plan is made from memory at once, its run touches files only below the memory tail.
//!
//! Owns no state. A run needs neither the log nor its core's borrow, so that appends go on while it waits.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use ringlog_io::{File, Io};
use ringlog_protocol::ids::Offset;

use super::damage::{DamageList, DamageReporter};
use super::first_read::{FirstRead, SumSource};
use super::index::IndexPoint;
use super::log::Log;
use super::scan::{HeaderWalk, WalkError};
use super::segment::{Segment, SegmentHandle};
use super::segment_file::SegmentFile;
use super::tail::TailOwner;
use crate::limits::{READ_COPY_BYTES_MAX, READ_SCAN_BYTES, SUM_BLOCK_BYTES, TAIL_ARENA_CHUNK_BYTES};

/// A piece of a log's bytes: whole batches.
#[derive(Clone, Debug)]
pub enum LogPiece {
    /// Shared with the memory tail.
    Memory(TailPiece),
    /// A range of a segment file.
    File {
        file: File,
        /// Where it begins, in bytes.
        position: u64,
        /// In bytes.
        length: u32,
    },
}

impl LogPiece {
    /// In bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            LogPiece::Memory(piece) => piece.bytes().len() as u64,
            LogPiece::File { length, .. } => u64::from(*length),
        }
    }
}

/// Bytes of a log's memory tail, what they keep allocated, and where the same bytes lie in a file once they are flushed.
/// May be used on any core.
#[derive(Clone, Debug)]
pub struct TailPiece {
    bytes: Bytes,
    owner: TailOwner,
    handle: Arc<SegmentHandle>,
    position: u64,
}

impl TailPiece {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The bytes alone.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Drops the first `count` bytes. The rest keeps as much allocated as before.
    pub fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        self.position += count as u64;
    }

    /// What it keeps allocated, in bytes, and the number of the chunk if it shares one with other pieces.
    pub(crate) fn allocation(&self) -> (u64, Option<u64>) {
        match self.owner {
            TailOwner::Chunk { number, .. } => (TAIL_ARENA_CHUNK_BYTES as u64, Some(number)),
            TailOwner::Whole(bytes) => (bytes as u64, None),
        }
    }

    /// The file that holds the same bytes, and where they begin in it; `None` while they are not flushed, or when the
    /// file cannot be opened any more.
    pub(crate) async fn in_file(&self, io: &Io) -> Option<(SegmentFile, u64)> {
        let end = self.position + self.bytes.len() as u64;
        let is_cut = self.handle.is_cut_before(u32::try_from(end).unwrap_or(u32::MAX));
        if is_cut || !self.handle.is_flushed_through(end) {
            return None;
        }
        Some((SegmentFile::of(&self.handle, io).await?, self.position))
    }

    /// Whether `other` begins in the same segment where this ends.
    pub(crate) fn is_followed_by(&self, other: &TailPiece) -> bool {
        Arc::ptr_eq(&self.handle, &other.handle) && self.position + self.bytes.len() as u64 == other.position
    }
}

/// What a read found: whole batches in order, starting with the one that holds the offset asked for.
#[derive(Clone, Debug)]
pub struct LogRead {
    pub pieces: Vec<LogPiece>,
    /// Bytes of all pieces.
    pub bytes: u64,
    /// Offset after the last record; the offset asked for when nothing was found.
    pub next_offset: Offset,
}

impl LogRead {
    fn nothing(from: Offset) -> LogRead {
        LogRead { pieces: Vec::new(), bytes: 0, next_offset: from }
    }

    /// Where it ends in its file.
    fn file_end(&self) -> u32 {
        match self.pieces.last() {
            Some(LogPiece::File { position, length, .. }) => {
                u32::try_from(position + u64::from(*length)).unwrap_or(u32::MAX)
            }
            Some(LogPiece::Memory(piece)) => {
                u32::try_from(piece.position + piece.bytes.len() as u64).unwrap_or(u32::MAX)
            }
            None => 0,
        }
    }
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("no such log on this core")]
    UnknownLog,
    #[error("offset {offset} is outside the log, {log_start} to {log_end}")]
    OutOfRange { offset: Offset, log_start: Offset, log_end: Offset },
    #[error("cannot read {} at position {position}: {source}", path.display())]
    Io { path: PathBuf, position: u64, source: io::Error },
    #[error("{} is damaged at position {position}: {detail}", path.display())]
    Corrupt { path: PathBuf, position: u64, detail: String },
    /// Its batches look sound, but they are not what was written there: a device that mixed places up, for example.
    #[error("{} is damaged at position {position}: {detail}", path.display())]
    BadBlock { path: PathBuf, position: u64, detail: String },
    /// Of a log that a start found damaged: the records there are lost or do not check.
    #[error("offset {offset} lies in what a start found damaged; {}", .next_sound.map_or_else(|| "nothing behind it is served".to_owned(), |next| format!("records are served again from offset {next} on")))]
    InDamage { offset: Offset, next_sound: Option<Offset> },
}

impl ReadError {
    pub(crate) fn of_walk(handle: &SegmentHandle, position: u32, error: WalkError) -> ReadError {
        let path = handle.path().to_owned();
        match error {
            WalkError::Io(source) => ReadError::Io { path, position: u64::from(position), source },
            WalkError::Invalid { position, detail } => {
                ReadError::Corrupt { path, position: u64::from(position), detail }
            }
        }
    }
}

/// What is to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadRange {
    pub(crate) from: Offset,
    /// Exclusive.
    pub(crate) limit: Offset,
    pub(crate) bytes_max: u32,
    pub(crate) at_least_one: bool,
}

/// A read that knows where its bytes are, or where to look. It may be sent to and run on any core.
#[derive(Debug)]
pub struct ReadPlan {
    kind: PlanKind,
}

#[derive(Debug)]
enum PlanKind {
    Ready(LogRead),
    File(FilePlan),
}

#[derive(Debug)]
struct FilePlan {
    handle: Arc<SegmentHandle>,
    range: ReadRange,
    /// A batch at or before the one that holds `from`.
    start: IndexPoint,
    /// A batch at or before the end of what may be read: the search for the exact end begins there.
    near_end: IndexPoint,
    /// A batch at or before the block in which `start` lies.
    block_start: IndexPoint,
    sums: SumSource,
    /// Bytes of the segment that are in its file.
    bound: u32,
    damage: DamageReporter,
}

impl ReadPlan {
    /// Whether [`ReadPlan::run`] answers without a file.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.kind, PlanKind::Ready(_))
    }

    /// What is read, where that needs no file; the plan itself otherwise.
    ///
    /// # Errors
    /// The plan: it must be run.
    #[allow(clippy::result_large_err, reason = "the plan goes on to be run")]
    pub fn into_ready(self) -> Result<LogRead, ReadPlan> {
        match self.kind {
            PlanKind::Ready(read) => Ok(read),
            PlanKind::File(_) => Err(self),
        }
    }

    /// Finds the bytes. From files it reads batch headers, and whole batches the first time: their checksums must hold.
    ///
    /// # Errors
    /// [`ReadError::Io`] and [`ReadError::Corrupt`], with file and position. Sound batches before a bad one are returned;
    /// the read that begins at the bad one fails. Either is in [`super::CoreStorage::damaged`] from then on.
    pub async fn run(self, io: &Io) -> Result<LogRead, ReadError> {
        match self.kind {
            PlanKind::Ready(read) => Ok(read),
            PlanKind::File(plan) => {
                let (from, bound) = (plan.range.from, plan.bound);
                let (damage, handle) = (plan.damage.clone(), Arc::clone(&plan.handle));
                match plan.run(io).await {
                    // The log was truncated meanwhile: other bytes may lie there now. What is below was not asked for.
                    Ok(read) if handle.is_cut_before(read.file_end()) => Ok(LogRead::nothing(from)),
                    Err(_) if handle.is_cut_before(bound) => Ok(LogRead::nothing(from)),
                    result => result.inspect_err(|error| damage.note(error)),
                }
            }
        }
    }
}

impl Log {
    pub(crate) fn plan_read(
        &self,
        range: ReadRange,
        damage: &Arc<DamageList>,
    ) -> Result<ReadPlan, ReadError> {
        let ReadRange { from, limit, .. } = range;
        if self.damage.is_some() && from >= self.log_end {
            return self.plan_read_behind(range, damage);
        }
        if from < self.log_start || from > self.log_end {
            let (log_start, log_end) = (self.log_start, self.log_end);
            return Err(ReadError::OutOfRange { offset: from, log_start, log_end });
        }
        let ready = |read| Ok(ReadPlan { kind: PlanKind::Ready(read) });
        if from >= limit.min(self.log_end) {
            return ready(LogRead::nothing(from));
        }
        if let Some(first) = self.tail_index(from) {
            return ready(self.read_tail(first, range));
        }
        let segment = self.segment_index(from).and_then(|index| self.segments.get(index));
        let Some(segment) = segment else { return ready(LogRead::nothing(from)) };
        let damage = DamageReporter { list: Arc::clone(damage), key: self.key, base: segment.base };
        Ok(self.plan_file(segment, range, damage))
    }

    /// Plans a read of the synced part of a segment that holds `range.from`.
    pub(super) fn plan_file(&self, segment: &Segment, range: ReadRange, damage: DamageReporter) -> ReadPlan {
        let ReadRange { from, limit, bytes_max, at_least_one: _ } = range;
        let start = segment.handle.recall(from).unwrap_or_else(|| segment.index.at_or_before(from));
        let (handle, bound) = (Arc::clone(&segment.handle), segment.synced_bytes);
        // The index also knows batches that are in memory only.
        let reach = start.position.saturating_add(bytes_max).min(bound);
        let near_end = segment.index.at_or_before_both(limit, reach);
        let sums = SumSource::of(self, segment, start.position, reach);
        let block_at = start.position - start.position % SUM_BLOCK_BYTES;
        let block_start = segment.index.at_or_before_both(Offset(i64::MAX), block_at);
        let plan = FilePlan { handle, range, start, near_end, block_start, sums, bound, damage };
        ReadPlan { kind: PlanKind::File(plan) }
    }

    fn read_tail(&self, first: usize, range: ReadRange) -> LogRead {
        let mut read = LogRead::nothing(range.from);
        let mut segment: Option<(Offset, Arc<SegmentHandle>)> = None;
        for batch in self.tail.range(first..) {
            let bytes = batch.bytes.len() as u64;
            let fits = read.bytes + bytes <= u64::from(range.bytes_max);
            let is_forced = read.pieces.is_empty() && range.at_least_one;
            if batch.end > range.limit || !(fits || is_forced) {
                break;
            }
            let handle = match &segment {
                Some((base, handle)) if *base == batch.segment_base => Arc::clone(handle),
                _ => {
                    let index = self.segment_index(batch.segment_base);
                    let Some(found) = index.and_then(|index| self.segments.get(index)) else { break };
                    segment = Some((batch.segment_base, Arc::clone(&found.handle)));
                    Arc::clone(&found.handle)
                }
            };
            read.pieces.push(LogPiece::Memory(TailPiece {
                bytes: batch.bytes.clone(),
                owner: batch.owner,
                handle,
                position: u64::from(batch.position),
            }));
            read.bytes += bytes;
            read.next_offset = batch.end;
        }
        read
    }
}

impl FilePlan {
    async fn run(self, io: &Io) -> Result<LogRead, ReadError> {
        let ReadRange { from, limit, bytes_max, at_least_one } = self.range;
        let handle = &*self.handle;
        let open = handle.open(io).await;
        let failed = |source| ReadError::Io { path: handle.path().to_owned(), position: 0, source };
        let file = open.map_err(failed)?;
        let mut walk = HeaderWalk::new(io, &file, self.start.position, self.bound, READ_SCAN_BYTES);
        let first = loop {
            let position = walk.position();
            match walk.next().await.map_err(|error| ReadError::of_walk(handle, position, error))? {
                Some(batch) if batch.header.next_offset() > from => break batch,
                Some(_) => {}
                None => return Ok(LogRead::nothing(from)),
            }
        };
        let start = first.position;
        let mut end = walk.position();
        let mut next_offset = first.header.next_offset();
        let check = |end| FirstRead {
            io,
            file: &file,
            handle,
            sums: &self.sums,
            block_start: self.block_start,
            bound: self.bound,
            start,
            end,
        };
        if next_offset > limit {
            // Nothing ends there, or a batch says what it was not written to say: its CRC does not cover its offset.
            return check(end).check().await.error.map_or_else(|| Ok(LogRead::nothing(from)), Err);
        }
        if end - start > bytes_max && !at_least_one {
            return Ok(LogRead::nothing(from));
        }
        let IndexPoint { offset: near_offset, position: near } = self.near_end;
        if near > end && near - start <= bytes_max && near_offset <= limit {
            walk.jump(near);
            (end, next_offset) = (near, near_offset);
        }
        while let Ok(Some(batch)) = walk.next().await {
            if walk.position() - start > bytes_max || batch.header.next_offset() > limit {
                break;
            }
            (end, next_offset) = (walk.position(), batch.header.next_offset());
        }
        let sound = check(end).check().await;
        match sound.error {
            Some(error) if sound.end == start => return Err(error),
            // What is sound is served; whoever comes for the rest is refused.
            Some(error) if !handle.is_cut_before(end) => self.damage.note(&error),
            _ => {}
        }
        (end, next_offset) = (sound.end, sound.next_offset.unwrap_or(next_offset));
        if end < self.bound {
            handle.remember(next_offset, end);
        }
        let length = end - start;
        let piece = self.piece(io, file, start, length).await?;
        Ok(LogRead { pieces: vec![piece], bytes: u64::from(length), next_offset })
    }

    /// The range of the file; its bytes where the core has more files open than it may. Who reads from thousands of partitions
    /// at once would hold a descriptor for each, and leave none for writes and connections.
    async fn piece(&self, io: &Io, file: File, start: u32, length: u32) -> Result<LogPiece, ReadError> {
        let handle = &self.handle;
        let position = u64::from(start);
        if !handle.is_over_budget() || length > READ_COPY_BYTES_MAX {
            return Ok(LogPiece::File { file, position, length });
        }
        let failed = |source| ReadError::Io { path: handle.path().to_owned(), position, source };
        let bytes = io.read_at(&file, position, length as usize).await.map_err(failed)?;
        drop(file);
        if bytes.len() != length as usize {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
        handle.close();
        let owner = TailOwner::Whole(bytes.len());
        Ok(LogPiece::Memory(TailPiece { bytes, owner, handle: Arc::clone(handle), position }))
    }
}
