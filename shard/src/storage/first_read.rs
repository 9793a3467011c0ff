//! The check before bytes of a segment's file are handed out for the first time since the start: by the sums of the sidecar
//! where they are known, else by each batch's own CRC. Each place is checked once ([`super::checked`]).
//!
//! A block's sum knows the topic, the partition and the place, which no batch's CRC does: bytes that the device read from, or
//! once wrote to, the wrong place pass the one and not the other. Where a block does not check, its batches are judged one
//! by one: if one of them is bad, it alone is refused; if all look sound, all of the block are.

use std::io;
use std::sync::Arc;

use ringlog_io::{File, Io};
use ringlog_protocol::ids::{LeaderEpoch, Offset};
use ringlog_protocol::records::batch::{BatchHeader, check_crc};

use super::index::IndexPoint;
use super::log::Log;
use super::read::ReadError;
use super::scan::{HeaderWalk, WalkError, WalkedBatch};
use super::segment::{Segment, SegmentHandle};
use super::sidecar_file::{BlockVerdict, KnownSums, load, sums_of_open};
use super::sums::{SumPlace, SumsState};
use crate::limits::{READ_CHECK_BYTES, SUM_BLOCK_BYTES};

/// Where the sums of a segment are to be found.
#[derive(Debug)]
pub(super) enum SumSource {
    /// All of the range was checked, or nobody knows its sums.
    None,
    Sidecar(SumPlace),
    /// Of a segment that fills: some in its sidecar, the rest here.
    Open(SumPlace, u32, SumsState),
}

impl SumSource {
    /// For a read of what lies between two positions, as near as the index knows.
    pub(super) fn of(log: &Log, segment: &Segment, start: u32, reach: u32) -> SumSource {
        if !log.cuts.is_empty() || segment.handle.checked.covers(start, reach) {
            return SumSource::None;
        }
        let place = segment.sums.place();
        match segment.sums.position().zip(segment.sums.state()) {
            Some((position, state)) => SumSource::Open(place, position, state),
            None if segment.sidecar_is_closed => SumSource::Sidecar(place),
            None => SumSource::None,
        }
    }

    /// The sums. A sidecar that is missing or bad is no error: batches have their own CRC.
    async fn load(&self, io: &Io, handle: &SegmentHandle) -> Option<Arc<KnownSums>> {
        match self {
            SumSource::None => None,
            // Its place was taken by another segment, whose sidecar has its name.
            SumSource::Sidecar(_) if handle.is_kept_open() => None,
            SumSource::Sidecar(place) => {
                if let Some(known) = handle.known_sums() {
                    return known;
                }
                let known = match load(io, handle.path(), *place).await {
                    Ok(sidecar) => Some(Arc::new(KnownSums::of_sidecar(*place, sidecar))),
                    Err(error) => {
                        let path = handle.path().display();
                        tracing::info!(%path, %error, "a closed segment has no usable sidecar: read by its batches' checksums");
                        None
                    }
                };
                if handle.is_kept_open() {
                    return None;
                }
                handle.keep_sums(known.clone());
                known
            }
            SumSource::Open(place, position, state) => {
                sums_of_open(io, handle.path(), *place, *position, state).await.map(Arc::new)
            }
        }
    }
}

/// A range that is to be handed out.
pub(super) struct FirstRead<'a> {
    pub(super) io: &'a Io,
    pub(super) file: &'a File,
    pub(super) handle: &'a SegmentHandle,
    pub(super) sums: &'a SumSource,
    /// A batch at or before the first block.
    pub(super) block_start: IndexPoint,
    /// Bytes of the segment that are in its file.
    pub(super) bound: u32,
    pub(super) start: u32,
    pub(super) end: u32,
}

/// What may be handed out of it, and why no more.
pub(super) struct SoundPart {
    /// Position after it.
    pub(super) end: u32,
    /// The offset after its last record, if batches were looked at.
    pub(super) next_offset: Option<Offset>,
    pub(super) error: Option<ReadError>,
}

/// What the sums say of a range.
enum Verdict {
    Sound {
        through: u32,
    },
    Unknown,
    /// Numbers of the blocks that are not what was synced.
    Bad(Vec<u32>),
}

impl FirstRead<'_> {
    /// Checks what of the range was not checked before.
    pub(super) async fn check(&self) -> SoundPart {
        let whole = SoundPart { end: self.end, next_offset: None, error: None };
        if self.handle.checked.covers(self.start, self.end) {
            return whole;
        }
        let bad = match self.judge().await {
            Ok(Verdict::Sound { through }) => {
                let first_block = self.start - self.start % SUM_BLOCK_BYTES;
                self.handle.checked.note(first_block, through.max(self.end));
                return whole;
            }
            Ok(Verdict::Unknown) => Vec::new(),
            Ok(Verdict::Bad(bad)) => bad,
            // The walk meets it at the batch that it concerns.
            Err(_) => Vec::new(),
        };
        let mut explained: Option<WalkError> = None;
        for block in bad {
            match self.explanation(block).await {
                Some(error) => explained = explained.or(Some(error)),
                None => return self.before(block).await,
            }
        }
        match explained {
            Some(WalkError::Invalid { position, detail }) if (self.start..self.end).contains(&position) => {
                self.up_to(position, detail).await
            }
            _ => self.walk(self.end).await,
        }
    }

    /// What lies before a batch that is known to be bad.
    async fn up_to(&self, bad: u32, detail: String) -> SoundPart {
        let part = match bad > self.start {
            true => self.walk(bad).await,
            false => SoundPart { end: self.start, next_offset: None, error: None },
        };
        let error = || ReadError::of_walk(self.handle, bad, WalkError::Invalid { position: bad, detail });
        SoundPart { error: Some(part.error.unwrap_or_else(error)), ..part }
    }

    async fn judge(&self) -> io::Result<Verdict> {
        let Some(known) = self.sums.load(self.io, self.handle).await else { return Ok(Verdict::Unknown) };
        let (first, last) = (self.start / SUM_BLOCK_BYTES, (self.end - 1) / SUM_BLOCK_BYTES);
        let (mut bad, mut is_known, mut through) = (Vec::new(), true, 0);
        let blocks_at_once = u32::try_from(READ_CHECK_BYTES).unwrap_or(u32::MAX) / SUM_BLOCK_BYTES;
        let mut block = first;
        while block <= last {
            let count = blocks_at_once.max(1).min(last - block + 1);
            let position = u64::from(block) * u64::from(SUM_BLOCK_BYTES);
            let bytes = self.io.read_at(self.file, position, (count * SUM_BLOCK_BYTES) as usize).await?;
            let mut pieces = bytes.chunks(SUM_BLOCK_BYTES as usize);
            for number in block..block + count {
                let piece = pieces.next().unwrap_or_default();
                match known.judge(number, piece) {
                    BlockVerdict::Sound => through = known.end_of(number),
                    BlockVerdict::Unknown => is_known = false,
                    BlockVerdict::Bad => bad.push(number),
                }
            }
            block += count;
        }
        Ok(match bad.is_empty() {
            false => Verdict::Bad(bad),
            // Of the last block more may be there than is summed.
            true if is_known && through >= self.end => Verdict::Sound { through },
            true => Verdict::Unknown,
        })
    }

    /// The first batch that lies in this block, or in part, and does not check.
    async fn explanation(&self, block: u32) -> Option<WalkError> {
        let (block_start, block_end) = (block * SUM_BLOCK_BYTES, (block + 1).saturating_mul(SUM_BLOCK_BYTES));
        let mut order = Order::default();
        let from = if block_start <= self.start {
            order.next = Some(self.block_start.offset);
            self.block_start.position
        } else {
            self.start
        };
        let mut walk = HeaderWalk::new(self.io, self.file, from, self.bound, READ_CHECK_BYTES);
        while walk.position() < block_end {
            let position = walk.position();
            match next_sound(&mut walk, &mut order).await {
                Ok(true) => {}
                Ok(false) => return None,
                // One before the block may reach into it.
                Err(error) if walk.position() > block_start || position >= block_start => return Some(error),
                // The walk stops at a bad batch before the block: what its length says is all there is to go on.
                Err(_) if walk.position() == position => return None,
                Err(_) => order = Order::default(),
            }
        }
        None
    }

    /// What lies before a block that is not what was synced although all its batches look sound.
    async fn before(&self, block: u32) -> SoundPart {
        let block_start = block * SUM_BLOCK_BYTES;
        let detail = format!("the block of {SUM_BLOCK_BYTES} bytes there is not what was synced");
        let bad = ReadError::BadBlock {
            path: self.handle.path().to_owned(),
            position: u64::from(block_start),
            detail,
        };
        if block_start <= self.start {
            return SoundPart { end: self.start, next_offset: None, error: Some(bad) };
        }
        let part = self.walk(block_start.min(self.end)).await;
        // The batch that reaches into the block looks cut off; that is not what is wrong with it.
        SoundPart { error: Some(bad), ..part }
    }

    /// Steps over batches that end at or before `bound`, as far as their CRC holds and each follows the one before.
    async fn walk(&self, bound: u32) -> SoundPart {
        let mut walk = HeaderWalk::new(self.io, self.file, self.start, bound, READ_CHECK_BYTES);
        let mut order = Order::default();
        let (end, error) = loop {
            let begin = walk.position();
            match next_sound(&mut walk, &mut order).await {
                Ok(true) => {}
                Ok(false) => break (bound, None),
                Err(error) => {
                    let position = match &error {
                        WalkError::Invalid { position, .. } => *position,
                        WalkError::Io(_) => begin,
                    };
                    break (position, Some(ReadError::of_walk(self.handle, position, error)));
                }
            }
        };
        if end > self.start {
            self.handle.checked.note(self.start, end);
        }
        SoundPart { end, next_offset: order.next, error }
    }
}

/// Whether batches follow each other, by what no CRC of theirs covers. Offsets may be left out (compaction leaves them out), but none
/// comes twice, and leader epochs do not go back; where they would, it is the batch that went too far which does not belong there,
/// if one did.
#[derive(Debug, Default)]
struct Order {
    /// The offset after the last batch.
    next: Option<Offset>,
    epoch: Option<LeaderEpoch>,
    /// The last batch that skipped offsets or epochs.
    leap: Option<Leap>,
}

#[derive(Clone, Copy, Debug)]
struct Leap {
    position: u32,
    /// What belonged there.
    next: Offset,
    epoch: LeaderEpoch,
}

impl Order {
    /// Takes the next batch.
    ///
    /// # Errors
    /// The position of the batch that is out of order: this one, or one before it.
    fn take(&mut self, batch: &WalkedBatch) -> Result<(), u32> {
        let BatchHeader { base_offset: base, leader_epoch: epoch, .. } = batch.header;
        let (next, last_epoch) = (self.next.unwrap_or(base), self.epoch.unwrap_or(epoch));
        if base < next || epoch < last_epoch {
            let fits = |leap: &Leap| base >= leap.next && epoch >= leap.epoch;
            let bad =
                self.leap.filter(fits).map_or((batch.position, next), |leap| (leap.position, leap.next));
            self.next = Some(bad.1);
            return Err(bad.0);
        }
        if base > next || epoch > last_epoch {
            self.leap = Some(Leap { position: batch.position, next, epoch: last_epoch });
        }
        (self.next, self.epoch) = (Some(batch.header.next_offset()), Some(epoch));
        Ok(())
    }
}

/// Steps over a batch whose bytes check; false at the end.
async fn next_sound(walk: &mut HeaderWalk<'_>, order: &mut Order) -> Result<bool, WalkError> {
    let Some(batch) = walk.next().await? else { return Ok(false) };
    let bytes = walk.batch_bytes(&batch).await?;
    let invalid = |detail| WalkError::Invalid { position: batch.position, detail };
    check_crc(&batch.header, &bytes).map_err(|error| invalid(error.to_string()))?;
    let offset = batch.header.base_offset;
    order.take(&batch).map_err(|position| {
        let detail = match position == batch.position {
            true => format!("a batch at offset {offset} is out of order"),
            false => format!("a batch skips offsets or epochs that follow it, from offset {offset} on"),
        };
        WalkError::Invalid { position, detail }
    })?;
    Ok(true)
}
