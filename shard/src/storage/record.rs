//! What a log knows for its next checkpoint record: how much has become clean since the last one, and the state that was
//! captured at one offset until the segments are synced up to exactly there. Bookkeeping; writes nothing.

use bytes::Bytes;
use ringlog_protocol::ids::Offset;

use super::checkpoint_file::{LastBatch, PartitionCheckpoint};
use super::index::SparseIndex;
use super::log::Log;
use crate::limits::{CHECKPOINT_INDEX_ENTRIES_MAX, CHECKPOINT_RECORD_WORTH};

/// One log's share of the next checkpoint.
#[derive(Debug, Default)]
pub(crate) struct RecordState {
    /// Bytes that became clean since the log was opened, or were scanned then.
    clean_bytes: u64,
    /// Those that the last record speaks of. Never more.
    recorded_bytes: u64,
    /// Length of the last record.
    record_bytes: u64,
    last_batch: Option<LastBatch>,
    recorded: Option<RecordedAt>,
    capture: Option<Box<Capture>>,
}

/// Of which state of the log its newest record is, while that is still a state of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordedAt {
    /// The record's own, by which it is known again.
    pub(super) sequence: u64,
    pub(super) offset: Offset,
}

/// The log at one offset. A record may be made of it once all before that offset is synced.
#[derive(Debug)]
struct Capture {
    checkpoint: PartitionCheckpoint,
    /// `clean_bytes` when the segments reached the offset.
    reached: Option<u64>,
}

impl RecordState {
    /// The log's last batch, as it was pushed or scanned.
    pub(crate) fn note_batch(&mut self, position: u32, crc: u32) {
        self.last_batch = Some(LastBatch { position, crc });
    }

    pub(crate) fn note_scanned(&mut self, bytes: u64) {
        self.clean_bytes += bytes;
    }

    /// The log was opened from a record of this length, 0 for none.
    pub(crate) fn note_opened(&mut self, record_bytes: u64, last_batch: Option<LastBatch>) {
        self.record_bytes = record_bytes;
        self.last_batch = last_batch;
    }

    pub(crate) fn unrecorded_bytes(&self) -> u64 {
        self.clean_bytes - self.recorded_bytes
    }

    /// Whether a record that speaks of `more` bytes besides those clean now is worth its own.
    pub(crate) fn is_worth_it(&self, more: u64) -> bool {
        let bytes = self.unrecorded_bytes() + more;
        bytes > 0 && bytes >= self.record_bytes * CHECKPOINT_RECORD_WORTH
    }

    /// A record of this length was queued for the capture that reached `reached`; returns the bytes it speaks of.
    fn note_recorded(&mut self, reached: u64, record_bytes: u64) -> u64 {
        let bytes = reached - self.recorded_bytes;
        (self.recorded_bytes, self.record_bytes) = (reached, record_bytes);
        bytes
    }

    /// The log was cut to `end`: what was taken down of it is no more, and the next record waits for a new batch. One of a lower
    /// offset is as true as it was.
    pub(crate) fn note_truncated(&mut self, end: Offset) {
        (self.capture, self.last_batch) = (None, None);
        self.recorded = self.recorded.filter(|recorded| recorded.offset <= end);
    }

    /// Segments below `end` were compacted: what was taken down of places in them is no more.
    pub(crate) fn forget_capture_below(&mut self, end: Offset) {
        self.capture = self.capture.take().filter(|capture| capture.checkpoint.segment_base >= end);
    }

    /// The log began anew, perhaps at the very offset of a record of the old one.
    pub(super) fn note_begun(&mut self) {
        self.recorded = None;
    }

    /// The log goes on from the state of this record.
    pub(super) fn note_restored(&mut self, sequence: u64, offset: Offset) {
        self.recorded = Some(RecordedAt { sequence, offset });
    }

    pub(super) fn recorded(&self) -> Option<RecordedAt> {
        self.recorded
    }
}

impl Log {
    /// Takes down the log as it is at its end; `producers` are of that very offset. Returns the end, or none if there is
    /// nothing to speak of.
    pub(crate) fn capture(&mut self, producers: Option<Bytes>) -> Option<Offset> {
        self.record.capture = None;
        let last_batch = self.record.last_batch?;
        let segment = self.segments.back().filter(|segment| segment.bytes > last_batch.position)?;
        let checkpoint = PartitionCheckpoint {
            key: self.key,
            sequence: self.next_sequence - 1,
            offset: self.log_end,
            segment_base: segment.base,
            position: segment.bytes,
            last_batch,
            log_start: self.log_start,
            max_timestamp: segment.max_timestamp,
            max_timestamp_batch: segment.max_timestamp_batch,
            sums: None,
            index: segment.index.thinned(CHECKPOINT_INDEX_ENTRIES_MAX),
            epochs: self.epochs.clone(),
            producers,
        };
        self.record.capture = Some(Box::new(Capture { checkpoint, reached: None }));
        self.reach_capture();
        Some(self.log_end)
    }

    /// Takes down a log of which nothing will be left but where it goes on, and its producers: they expire by their own time,
    /// not with the records that they sent.
    pub(super) fn capture_emptied(&mut self, producers: Option<Bytes>) {
        let end = self.log_end;
        let checkpoint = PartitionCheckpoint {
            key: self.key,
            sequence: self.next_sequence - 1,
            offset: end,
            segment_base: end,
            position: 0,
            last_batch: LastBatch { position: 0, crc: 0 },
            log_start: end,
            max_timestamp: i64::MIN,
            max_timestamp_batch: end,
            sums: None,
            index: SparseIndex::new(end, self.settings.index_interval_bytes),
            epochs: Vec::new(),
            producers,
        };
        self.record.capture = Some(Box::new(Capture { checkpoint, reached: Some(self.record.clean_bytes) }));
    }

    /// The first unflushed batch is durable in its segment: counts it as clean. Returns its bytes.
    pub(crate) fn clean_first(&mut self) -> usize {
        let batch = self.tail.get(self.clean_count).expect("the caller looked at it");
        let bytes = batch.bytes.len();
        let end = batch.position + u32::try_from(bytes).expect("a batch's length field is 31 bits");
        if let Ok(index) = self.segments.binary_search_by_key(&batch.segment_base, |segment| segment.base) {
            let segment = &mut self.segments[index];
            segment.sums.add(batch.position, &batch.bytes);
            segment.synced_bytes = end;
            segment.handle.note_flushed(end);
            assert!(end <= segment.bytes, "a segment is synced up to its length at most");
        }
        self.clean_count += 1;
        self.record.clean_bytes += bytes as u64;
        self.reach_capture();
        bytes
    }

    /// If the segments are synced up to exactly where the capture was taken, it has all that it needs.
    fn reach_capture(&mut self) {
        let synced_end = self.synced_end();
        let Some(capture) = &mut self.record.capture else { return };
        let checkpoint = &mut capture.checkpoint;
        if capture.reached.is_some() || checkpoint.offset != synced_end {
            return;
        }
        capture.reached = Some(self.record.clean_bytes);
        let segment = self.segments.iter().rev().find(|segment| segment.base == checkpoint.segment_base);
        let sums = segment.map(|segment| &segment.sums);
        checkpoint.sums =
            sums.filter(|sums| sums.position() == Some(checkpoint.position)).and_then(|sums| sums.state());
    }

    /// Encodes the record of a capture that is complete; returns it and how many bytes it speaks of.
    pub(crate) fn take_record(&mut self, generation: u64) -> Option<(Vec<u8>, u64)> {
        let capture = self.record.capture.take()?;
        let reached = capture.reached?;
        let mut record = Vec::new();
        capture.checkpoint.encode(generation, &mut record);
        let bytes = self.record.note_recorded(reached, record.len() as u64);
        self.record.note_restored(capture.checkpoint.sequence, capture.checkpoint.offset);
        Some((record, bytes))
    }
}
