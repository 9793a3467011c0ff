//! Finding a record by its timestamp (ListOffsets, KIP-79 and KIP-734), and the time of one by its offset. A plan from memory, a run
//! that may read files.

use std::sync::Arc;

use bytes::Bytes;
use ringlog_io::Io;
use ringlog_protocol::ids::{LeaderEpoch, Offset};
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_protocol::records::lookup::first_record_from;

use super::damage::{DamageList, DamageReporter};
use super::index::IndexPoint;
use super::log::{Log, TailBatch};
use super::read::ReadError;
use super::scan::HeaderWalk;
use super::segment::{Segment, SegmentHandle};
use crate::limits::{LOOKUP_DECOMPRESSED_BYTES_MAX, WALK_SCAN_BYTES};

/// A record found by its time, or by its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeHit {
    pub offset: Offset,
    /// Milliseconds since the Unix epoch.
    pub timestamp: i64,
    pub leader_epoch: LeaderEpoch,
}

/// Looks for the first record, by offset, that is not older than a time; `i64::MIN` takes any.
#[derive(Debug)]
pub struct TimePlan {
    target_ms: i64,
    /// The log's start, or the offset sought: records before it are deleted, though their batch may still be there, or not wanted.
    from: Offset,
    limit: Offset,
    /// Segments whose file may hold it, oldest first.
    files: Vec<FilePart>,
    /// Batches in memory that may hold it, oldest first, with the position of the segment's file for errors.
    memory: Vec<Bytes>,
    handle: Option<Arc<SegmentHandle>>,
    damage: Option<DamageReporter>,
}

#[derive(Debug)]
struct FilePart {
    handle: Arc<SegmentHandle>,
    position: u32,
    bound: u32,
}

fn max_timestamp_of(batch: &TailBatch) -> i64 {
    BatchHeader::parse_prefix(&batch.bytes).map_or(i64::MIN, |header| header.newest_timestamp())
}

impl Log {
    /// Plans the search for the first record below `limit` with a timestamp of `target_ms` or later.
    pub(crate) fn plan_time_lookup(&self, target_ms: i64, limit: Offset) -> TimePlan {
        let mut plan = TimePlan {
            target_ms,
            from: self.log_start,
            limit,
            files: Vec::new(),
            memory: Vec::new(),
            handle: None,
            damage: None,
        };
        let mut candidates = self.segments.iter().filter(|segment| segment.max_timestamp >= target_ms);
        let Some(first) = candidates.next() else { return plan };
        plan.handle = Some(Arc::clone(&first.handle));
        plan.files.extend(self.file_part(first, first.index.before_time(target_ms)));
        if first.base < self.log_start {
            // Its newest record may be one of those that were deleted.
            let next = candidates.next();
            plan.files.extend(next.and_then(|next| self.file_part(next, next.index.before_time(target_ms))));
        }
        let not_older = self.tail.iter().filter(|batch| {
            batch.end <= limit
                && batch.end > self.log_start
                && batch.segment_base >= first.base
                && max_timestamp_of(batch) >= target_ms
        });
        // The first one holds it, unless its header promises more than its records keep, or those below the start did.
        plan.memory = not_older.take(3).map(|batch| batch.bytes.clone()).collect();
        plan
    }

    /// Plans the search for the first record from offset `from` on and below `limit`, of any time.
    pub(crate) fn plan_first_from(&self, from: Offset, limit: Offset) -> TimePlan {
        let from = from.max(self.log_start);
        let mut plan = TimePlan {
            target_ms: i64::MIN,
            from,
            limit,
            files: Vec::new(),
            memory: Vec::new(),
            handle: None,
            damage: None,
        };
        let Some(first) = self.segment_index(from).filter(|_| from < limit) else { return plan };
        // Compaction may have left the first of them without a record behind `from`.
        let segments = self.segments.range(first..).take(2);
        plan.handle = self.segments.get(first).map(|segment| Arc::clone(&segment.handle));
        if from < self.first_in_memory() {
            plan.files = segments
                .filter_map(|segment| self.file_part(segment, segment.index.at_or_before(from)))
                .collect();
        }
        let tail = self.tail.range(self.tail_index(from).unwrap_or(0)..);
        let behind = tail.filter(|batch| batch.end > from && batch.end <= limit);
        plan.memory = behind.take(3).map(|batch| batch.bytes.clone()).collect();
        plan
    }

    /// The first offset that no file needs to be read for.
    fn first_in_memory(&self) -> Offset {
        self.tail.front().map_or(self.log_end, |batch| batch.base)
    }

    /// What of the segment's file, from `start` on, may hold what is sought.
    fn file_part(&self, segment: &Segment, start: IndexPoint) -> Option<FilePart> {
        if start.offset >= self.first_in_memory() {
            return None;
        }
        let first_in_memory = self.tail.iter().find(|batch| batch.segment_base == segment.base);
        let bound = first_in_memory.map_or(segment.synced_bytes, |batch| batch.position);
        Some(FilePart { handle: Arc::clone(&segment.handle), position: start.position, bound })
    }

    /// Plans the search for the first record below `limit` with the largest timestamp. Where batches of the last
    /// segment are still uncommitted the maximum of those before is known to within one index interval.
    pub(crate) fn plan_newest(&self, limit: Offset) -> TimePlan {
        let in_memory = self.first_in_memory();
        let committed = self.tail.iter().filter(|batch| batch.end <= limit).map(max_timestamp_of);
        let in_files = self.segments.iter().map(|segment| {
            if segment.max_timestamp_batch < in_memory {
                segment.max_timestamp
            } else {
                segment.index.max_timestamp_before(in_memory)
            }
        });
        self.plan_time_lookup(committed.chain(in_files).max().unwrap_or(i64::MAX), limit)
    }
}

impl TimePlan {
    /// Finds the record; `None` when every record below the limit is older.
    ///
    /// # Errors
    /// As [`super::ReadPlan::run`]; also a batch whose records cannot be read.
    pub async fn run(self, io: &Io) -> Result<Option<TimeHit>, ReadError> {
        let found = self.search(io).await;
        // Truncated meanwhile: other bytes may lie there now, and none of those that were cut off is to be found.
        if self.files.iter().any(|part| part.handle.is_cut_before(part.bound)) && found.is_err() {
            return Ok(None);
        }
        if let (Err(error), Some(damage)) = (&found, &self.damage) {
            damage.note(error);
        }
        found
    }

    /// Lets the core hear of damage.
    pub(super) fn report_to(mut self, list: &Arc<DamageList>, log: &Log) -> TimePlan {
        let base = self.handle.as_ref().map(|handle| handle.base());
        self.damage = base.map(|base| DamageReporter { list: Arc::clone(list), key: log.key, base });
        self
    }

    async fn search(&self, io: &Io) -> Result<Option<TimeHit>, ReadError> {
        let mut scratch = Vec::new();
        for part in &self.files {
            if let Some(hit) = self.search_file(part, io, &mut scratch).await? {
                return Ok(Some(hit));
            }
        }
        for bytes in &self.memory {
            if let Some(hit) = self.search_batch(bytes, 0, &mut scratch)? {
                return Ok(Some(hit));
            }
        }
        Ok(None)
    }

    async fn search_file(
        &self,
        part: &FilePart,
        io: &Io,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<TimeHit>, ReadError> {
        let handle = &*part.handle;
        let open = handle.open(io).await;
        let failed = |source| ReadError::Io { path: handle.path().to_owned(), position: 0, source };
        let file = open.map_err(failed)?;
        let mut walk = HeaderWalk::new(io, &file, part.position, part.bound, WALK_SCAN_BYTES);
        loop {
            let position = walk.position();
            let of_walk = |error| ReadError::of_walk(handle, position, error);
            let Some(batch) = walk.next().await.map_err(of_walk)? else { return Ok(None) };
            if batch.header.next_offset() > self.limit {
                return Ok(None);
            }
            if batch.header.newest_timestamp() < self.target_ms || batch.header.next_offset() <= self.from {
                continue;
            }
            let bytes = walk.batch_bytes(&batch).await.map_err(of_walk)?;
            if let Some(hit) = self.search_batch(&bytes, batch.position, scratch)? {
                return Ok(Some(hit));
            }
        }
    }

    fn search_batch(
        &self,
        bytes: &[u8],
        position: u32,
        scratch: &mut Vec<u8>,
    ) -> Result<Option<TimeHit>, ReadError> {
        let corrupt = |detail: String| ReadError::Corrupt {
            path: self.handle.as_ref().map(|handle| handle.path().to_owned()).unwrap_or_default(),
            position: u64::from(position),
            detail,
        };
        let header = BatchHeader::parse(bytes).map_err(|error| corrupt(error.to_string()))?;
        let bytes_max = LOOKUP_DECOMPRESSED_BYTES_MAX;
        let found = first_record_from(bytes, self.from, self.target_ms, bytes_max, scratch)
            .map_err(|error| corrupt(error.to_string()))?;
        Ok(found.map(|record| TimeHit {
            offset: record.offset,
            timestamp: record.timestamp,
            leader_epoch: header.leader_epoch,
        }))
    }
}
