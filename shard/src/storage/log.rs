//! One partition's log as its core sees it: segments, the batches in memory, offsets, epochs. Pure bookkeeping, no I/O.

use std::collections::VecDeque;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::ids::{LeaderEpoch, Offset, TopicPartition};
use ringlog_protocol::records::batch::BatchHeader;

use super::behind::Behind;
use super::bypass::Bypass;
use super::compaction::CompactionMark;
use super::cuts::Cuts;
use super::descriptors::OpenFiles;
use super::log_start::LogStarts;
use super::record::RecordState;
use super::recovered::CoveredEnd;
use super::segment::Segment;
use super::settings::LogSettings;
use super::tail::TailOwner;
use crate::journal::entry::SyncedTo;
use crate::journal::{FileSerial, PoisonReason};

/// Names an open log of one core. Never reused for another log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId {
    pub(crate) slot: u32,
    pub(crate) version: u32,
}

impl LogId {
    pub(crate) fn token(self) -> u64 {
        (u64::from(self.version) << 32) | u64::from(self.slot)
    }

    pub(crate) fn from_token(token: u64) -> LogId {
        LogId { slot: token as u32, version: (token >> 32) as u32 }
    }
}

impl fmt::Debug for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogId({}.{})", self.slot, self.version)
    }
}

/// A batch ready to be stored: validated, base offset and leader epoch in place.
#[derive(Clone, Debug)]
pub struct StampedBatch {
    /// The header of `bytes`, as stamped.
    pub header: BatchHeader,
    /// Exactly one batch.
    pub bytes: Bytes,
    /// Allocated size of the receive buffer that `bytes` keeps alive.
    pub buffer_bytes: u32,
}

/// Where acknowledged bytes of a log are missing or do not check. The log serves what lies before and takes no more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is damaged at position {position}: {detail}", path.display())]
pub struct Damage {
    pub path: PathBuf,
    /// Byte position in the file.
    pub position: u64,
    pub detail: String,
}

/// What the journal said of a log that a start found damaged. It is said on as it was, whatever was found: else the next
/// start would take acknowledged bytes behind the damage for a crash's tail.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acknowledged {
    pub(crate) log_start: Offset,
    pub(crate) covered: Option<CoveredEnd>,
}

/// Where a leader epoch begins (KIP-101).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpochStart {
    pub epoch: LeaderEpoch,
    pub start: Offset,
}

/// A batch in memory.
#[derive(Debug)]
pub(crate) struct TailBatch {
    pub(crate) base: Offset,
    /// Exclusive.
    pub(crate) end: Offset,
    pub(crate) segment_base: Offset,
    pub(crate) position: u32,
    /// Of its journal entry.
    pub(crate) sequence: u64,
    /// Age over all logs of the core.
    pub(crate) stamp: u64,
    pub(crate) bytes: Bytes,
    pub(crate) owner: TailOwner,
}

impl TailBatch {
    /// Where the next one of its segment begins.
    pub(crate) fn end_position(&self) -> u32 {
        self.position + u32::try_from(self.bytes.len()).expect("a batch's length field is 31 bits")
    }
}

/// Where a batch goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Placement {
    pub(crate) segment_base: Offset,
    pub(crate) position: u32,
}

/// One partition's log. Lives on the core that owns the partition.
///
/// Invariants: `log_start <= log_end`, `durable_end <= log_end`, `clean_count <= tail.len()`; the tail is one unbroken
/// run of batches that ends at `log_end`; what is not in it is synced in the segments. The first batch may begin below
/// `log_start`, which then lies in it.
#[derive(Debug)]
pub struct Log {
    pub(crate) id: LogId,
    pub(crate) key: TopicPartition,
    pub(crate) settings: LogSettings,
    pub(crate) folder: PathBuf,
    pub(crate) folder_is_durable: bool,
    pub(crate) log_start: Offset,
    pub(crate) log_end: Offset,
    pub(crate) durable_end: Offset,
    /// Oldest first; bases increase.
    pub(crate) segments: VecDeque<Segment>,
    /// Oldest first. The first `clean_count` are synced in segments.
    pub(crate) tail: VecDeque<TailBatch>,
    pub(crate) clean_count: usize,
    pub(crate) epochs: Vec<EpochStart>,
    pub(crate) next_sequence: u64,
    /// The newest, with the sequence of its entry.
    pub(crate) hard_state: Option<(u64, Bytes)>,
    /// Sequence of the newest log start entry.
    pub(crate) log_start_sequence: Option<u64>,
    pub(crate) starts: LogStarts,
    /// Of its core.
    pub(crate) files: Arc<OpenFiles>,
    /// Journal files that hold entries of this log, oldest first.
    pub(crate) presence: VecDeque<FileSerial>,
    /// Entries up to this sequence were copied into a newer journal file already: next time they are flushed.
    pub(crate) carried_through: u64,
    pub(crate) record: RecordState,
    pub(crate) poison: Option<PoisonReason>,
    pub(crate) damage: Option<Damage>,
    /// Of a damaged log.
    pub(crate) acknowledged: Option<Acknowledged>,
    /// Segments behind the damage, oldest first.
    pub(crate) behind: Vec<Behind>,
    pub(crate) bypass: Bypass,
    /// Truncations whose files are not cut yet.
    pub(crate) cuts: Cuts,
    /// How far it was compacted.
    pub(crate) compaction: CompactionMark,
    /// Its appends are taken below the reserve of disk space too.
    pub(crate) uses_reserve: bool,
}

impl Log {
    pub(crate) fn new(id: LogId, key: TopicPartition, folder: PathBuf, settings: LogSettings) -> Log {
        Log {
            id,
            key,
            settings,
            folder,
            folder_is_durable: false,
            log_start: Offset(0),
            log_end: Offset(0),
            durable_end: Offset(0),
            segments: VecDeque::new(),
            tail: VecDeque::new(),
            clean_count: 0,
            epochs: Vec::new(),
            next_sequence: 1,
            hard_state: None,
            log_start_sequence: None,
            starts: LogStarts::default(),
            files: Arc::default(),
            presence: VecDeque::new(),
            carried_through: 0,
            record: RecordState::default(),
            poison: None,
            damage: None,
            acknowledged: None,
            behind: Vec::new(),
            bypass: Bypass::default(),
            cuts: Cuts::default(),
            compaction: CompactionMark::default(),
            uses_reserve: false,
        }
    }

    /// Its name on this core.
    #[must_use]
    pub fn id(&self) -> LogId {
        self.id
    }

    /// The partition.
    #[must_use]
    pub fn key(&self) -> TopicPartition {
        self.key
    }

    /// First offset that may be read.
    #[must_use]
    pub fn log_start(&self) -> Offset {
        self.log_start
    }

    /// Offset of the next record.
    #[must_use]
    pub fn log_end(&self) -> Offset {
        self.log_end
    }

    /// Exclusive end of what the journal or the segments hold durably.
    #[must_use]
    pub fn durable_end(&self) -> Offset {
        self.durable_end
    }

    /// Exclusive end of what the segments hold durably, without the journal.
    #[must_use]
    pub fn synced_end(&self) -> Offset {
        self.first_dirty().map_or(self.log_end, |batch| batch.base)
    }

    /// Leader epochs and where each begins, ascending.
    #[must_use]
    pub fn epochs(&self) -> &[EpochStart] {
        &self.epochs
    }

    /// Leader epoch of the record at `offset`; of the last record for an offset at the end.
    #[must_use]
    pub fn epoch_at(&self, offset: Offset) -> Option<LeaderEpoch> {
        let after = self.epochs.partition_point(|epoch| epoch.start <= offset);
        self.epochs.get(after.checked_sub(1)?).map(|epoch| epoch.epoch)
    }

    /// Bytes of all batches, in segments and in memory, each once.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| u64::from(segment.bytes)).sum()
    }

    /// As [`Log::size_bytes`], with the sound segments behind damage.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        let behind = self.behind.iter().map(|behind| u64::from(behind.segment.bytes)).sum::<u64>();
        self.size_bytes() + behind
    }

    /// The largest timestamp of all records, milliseconds since the Unix epoch.
    #[must_use]
    pub fn max_timestamp(&self) -> Option<i64> {
        self.segments
            .iter()
            .map(|segment| segment.max_timestamp)
            .max()
            .filter(|timestamp| *timestamp != i64::MIN)
    }

    /// Number of segments, the one that fills included.
    #[must_use]
    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// What is wrong with the log, if it was found damaged.
    #[must_use]
    pub fn damage(&self) -> Option<&Damage> {
        self.damage.as_ref()
    }

    /// Why the log takes no more writes, if so.
    #[must_use]
    pub fn poison(&self) -> Option<&PoisonReason> {
        self.poison.as_ref()
    }

    /// Bytes from the batch that holds `from` to `limit`: exact where both lie in memory, else as near as the index
    /// knows, and at least 1 while there is something to read.
    #[must_use]
    pub fn bytes_between(&self, from: Offset, limit: Offset) -> u64 {
        let limit = limit.min(self.log_end);
        if from >= limit {
            return 0;
        }
        let (Some(start), Some(end)) = (self.locate(from), self.locate(limit)) else { return 0 };
        if start.0 == end.0 {
            return u64::from(end.1.saturating_sub(start.1)).max(1);
        }
        let between =
            self.segments.range(start.0..end.0).map(|segment| u64::from(segment.bytes)).sum::<u64>();
        (between + u64::from(end.1)).saturating_sub(u64::from(start.1)).max(1)
    }

    /// Segment and position at or before `offset`.
    fn locate(&self, offset: Offset) -> Option<(usize, u32)> {
        if offset >= self.log_end {
            let last = self.segments.len().checked_sub(1)?;
            return Some((last, self.segments[last].bytes));
        }
        if let Some(index) = self.tail_index(offset) {
            let batch = &self.tail[index];
            return Some((self.segment_index(batch.segment_base)?, batch.position));
        }
        let segment = self.segment_index(offset)?;
        Some((segment, self.segments[segment].index.at_or_before(offset).position))
    }

    /// The batch in memory that holds `offset`.
    pub(crate) fn tail_index(&self, offset: Offset) -> Option<usize> {
        if self.tail.front()?.base > offset {
            return None;
        }
        let index = self.tail.partition_point(|batch| batch.end <= offset);
        (index < self.tail.len()).then_some(index)
    }

    /// The segment that holds `offset`, or would.
    pub(crate) fn segment_index(&self, offset: Offset) -> Option<usize> {
        self.segments.partition_point(|segment| segment.base <= offset).checked_sub(1)
    }

    pub(crate) fn dirty_bytes(&self) -> usize {
        self.tail.range(self.clean_count..).map(|batch| batch.bytes.len()).sum()
    }

    /// Unflushed batches that the journal holds durably: those that a flush may write.
    pub(crate) fn due(&self) -> impl Iterator<Item = &TailBatch> {
        self.tail.range(self.clean_count..).take_while(|batch| batch.end <= self.durable_end)
    }

    pub(crate) fn first_dirty(&self) -> Option<&TailBatch> {
        self.tail.get(self.clean_count)
    }

    /// Whether a batch of these offsets may come next: one that begins where the log ends. A log that was emptied within what
    /// is one batch elsewhere takes that batch whole, and its start stays where it is.
    #[must_use]
    pub fn takes(&self, base: Offset, end: Offset) -> bool {
        let is_emptied = self.segments.is_empty() && self.log_start == self.log_end;
        base == self.log_end && base < end || is_emptied && base < self.log_end && self.log_end < end
    }

    /// Where a batch of `bytes` goes that takes the offsets from `base` to `end`: into the last segment, or a new one if that
    /// would grow beyond its bound in bytes or offsets.
    pub(crate) fn place(&self, bytes: u32, base: Offset, end: Offset) -> Placement {
        let in_last = self.segments.back().and_then(|segment| {
            let length = segment.bytes.checked_add(bytes)?;
            let offsets = end.0.checked_sub(segment.base.0)?;
            let fits = segment.bytes == 0 || length <= self.settings.segment_bytes;
            (fits && !segment.times.is_closed && offsets <= i64::from(i32::MAX)).then_some(segment)
        });
        match in_last {
            Some(segment) => Placement { segment_base: segment.base, position: segment.bytes },
            None => Placement { segment_base: base, position: 0 },
        }
    }

    /// Takes a segment at the end.
    pub(crate) fn push_segment(&mut self, segment: Segment) {
        if self.segments.is_empty() {
            // Most partitions have one; by itself the queue would make room for four.
            self.segments.reserve_exact(1);
        }
        self.segments.push_back(segment);
    }

    /// Takes a batch at the end, as [`Log::place`] said.
    pub(crate) fn push(&mut self, header: &BatchHeader, batch: TailBatch) {
        assert!(self.takes(batch.base, batch.end), "a batch begins where the log ends");
        if batch.position == 0
            && self.segments.back().is_none_or(|segment| segment.base != batch.segment_base)
        {
            let interval = self.settings.index_interval_bytes;
            let segment = Segment::new(&self.folder, self.key, batch.segment_base, interval, &self.files);
            self.push_segment(segment);
        }
        let segment = self.segments.back_mut().expect("a segment was just made");
        assert_eq!(
            (segment.base, segment.bytes),
            (batch.segment_base, batch.position),
            "placed where the segment ends"
        );
        let bytes = u32::try_from(batch.bytes.len()).expect("a batch's length field is 31 bits");
        segment.note_batch(batch.base, bytes, header.newest_timestamp());
        self.record.note_batch(batch.position, header.crc);
        self.note_epoch(header.leader_epoch, batch.base.max(self.log_start));
        self.log_end = batch.end;
        self.tail.push_back(batch);
    }

    pub(crate) fn note_epoch(&mut self, epoch: LeaderEpoch, start: Offset) {
        if self.epochs.last().is_none_or(|last| last.epoch < epoch) {
            self.epochs.push(EpochStart { epoch, start });
        }
    }

    pub(crate) fn take_sequence(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence - 1
    }

    /// The journal holds everything up to `end`.
    pub(crate) fn note_durable(&mut self, end: Offset) {
        assert!(end <= self.log_end, "durable end {end} beyond log end {}", self.log_end);
        self.durable_end = self.durable_end.max(end);
    }

    pub(crate) fn note_presence(&mut self, serial: FileSerial) {
        if self.presence.back() != Some(&serial) {
            debug_assert!(self.presence.back().is_none_or(|last| *last < serial), "files are used in order");
            self.presence.push_back(serial);
        }
    }

    /// The log's start as the journal is to have it.
    pub(crate) fn journalled_start(&self) -> Offset {
        self.acknowledged.map_or(self.log_start, |acknowledged| acknowledged.log_start)
    }

    /// How far the segments are durable, for a synced-to entry. Of a damaged log, which takes no appends, what was
    /// acknowledged.
    pub(crate) fn synced_to(&self) -> SyncedTo {
        if let Some(acknowledged) = &self.acknowledged {
            return CoveredEnd::synced_to(acknowledged.covered, self.next_sequence - 1);
        }
        let (through, offset) = match self.first_dirty() {
            Some(batch) => (batch.sequence - 1, batch.base),
            None => (self.next_sequence - 1, self.log_end),
        };
        // A truncation stays in the journal until the files are cut.
        let through = self.cuts.first_sequence().map_or(through, |first| through.min(first - 1));
        let epoch = if offset.0 > 0 { self.epoch_at(Offset(offset.0 - 1)) } else { None };
        let (segment_base, position) = match (self.first_dirty(), self.segments.back()) {
            (Some(batch), _) => (batch.segment_base, batch.position),
            (None, Some(segment)) => (segment.base, segment.bytes),
            (None, None) => (offset, 0),
        };
        SyncedTo { through, epoch: epoch.unwrap_or(LeaderEpoch::NONE), offset, segment_base, position }
    }

    /// Checks the invariants that hold between any two calls.
    pub(crate) fn validate(&self) {
        assert!(self.log_start <= self.log_end, "log start {} beyond end {}", self.log_start, self.log_end);
        assert!(self.durable_end <= self.log_end, "durable {} beyond end {}", self.durable_end, self.log_end);
        assert!(self.clean_count <= self.tail.len(), "{} clean of {}", self.clean_count, self.tail.len());
        assert!(
            self.tail.back().is_none_or(|batch| batch.end == self.log_end),
            "the tail ends at the log's end"
        );
    }

    pub(crate) fn segment_path(&self, base: Offset) -> Option<&Path> {
        let index = self.segments.binary_search_by_key(&base, |segment| segment.base).ok()?;
        Some(self.segments[index].handle.path())
    }
}
