//! Showing an open log's batch headers once more, as its opening did: for whoever must make something of the log anew after it
//! was cut. Owns the walk; changes nothing.

use std::sync::Arc;

use ringlog_protocol::ids::Offset;
use ringlog_protocol::records::batch::BatchHeader;

use super::core_storage::{CoreStorage, Inner};
use super::damage::DamageReporter;
use super::log::{Log, LogId};
use super::open::LogVisitor;
use super::read::ReadError;
use super::record::RecordedAt;
use super::scan::{HeaderWalk, WalkError};
use super::segment::SegmentHandle;
use crate::limits::{VISIT_HEADERS_AT_ONCE, WALK_SCAN_BYTES};

/// Where the next batches are.
enum Next {
    /// All was shown, up to the end that was there when it began.
    Nothing,
    Memory(Vec<BatchHeader>),
    File(FileRange),
}

/// Batches of one segment's file.
struct FileRange {
    handle: Arc<SegmentHandle>,
    /// A batch at or before the next one begins here.
    position: u32,
    /// Behind it the batches are in memory.
    bound: u32,
    damage: DamageReporter,
}

impl CoreStorage {
    /// Offers the producers of the log's newest checkpoint record, if it is of an offset of the log as it is now, and shows every
    /// batch behind that one's offset in order; all batches of all segments if there is none, or the visitor has no use for
    /// it. From files it reads headers only.
    ///
    /// What is appended after the call began is not shown. What is cut off meanwhile may have been shown: a caller who holds both off
    /// gets exactly the log.
    ///
    /// # Errors
    /// [`ReadError::UnknownLog`], also when it is deleted meanwhile; [`ReadError::Io`] and [`ReadError::Corrupt`], which are in
    /// [`CoreStorage::damaged`] from then on. The visitor has seen a part then.
    pub async fn visit_headers(&self, id: LogId, visitor: &mut dyn LogVisitor) -> Result<(), ReadError> {
        let inner = self.inner();
        let end = inner.core.borrow().log(id).ok_or(ReadError::UnknownLog)?.log_end;
        let mut next = inner.offer_record(id, visitor).await?.unwrap_or(Offset(0));
        loop {
            match inner.next_headers(id, next, end)? {
                Next::Nothing => return Ok(()),
                Next::Memory(headers) => {
                    for header in &headers {
                        visitor.batch(header);
                    }
                    next = headers.last().map_or(end, BatchHeader::next_offset);
                    inner.io.yield_now().await;
                }
                Next::File(range) => {
                    let (reached, result) = range.show(inner, next, end, visitor).await;
                    next = reached;
                    if let Err(error) = result {
                        inner.judge_failure(id, &range, error)?;
                    }
                }
            }
        }
    }
}

impl Inner {
    /// Offers the newest record. Returns its offset if the visitor goes on from it.
    async fn offer_record(
        &self,
        id: LogId,
        visitor: &mut dyn LogVisitor,
    ) -> Result<Option<Offset>, ReadError> {
        let newest = {
            let core = self.core.borrow();
            let log = core.log(id).ok_or(ReadError::UnknownLog)?;
            log.usable_record().map(|recorded| (log.key, recorded))
        };
        let Some((key, recorded)) = newest else { return Ok(None) };
        let record = self.recorder.newest(&self.io, key).await;
        let record = record.filter(|record| record.sequence == recorded.sequence);
        // It may have been cut off, or superseded, meanwhile.
        let is_usable = {
            let core = self.core.borrow();
            core.log(id).ok_or(ReadError::UnknownLog)?.usable_record() == Some(recorded)
        };
        let Some(record) = record.filter(|record| is_usable && record.offset == recorded.offset) else {
            return Ok(None);
        };
        ringlog_io::reached!("visit.record_offered");
        Ok(visitor.restore(record.producers.as_deref()).then_some(record.offset))
    }

    /// An error of a segment that was cut or removed meanwhile is none: what is left is found anew.
    fn judge_failure(&self, id: LogId, range: &FileRange, error: ReadError) -> Result<(), ReadError> {
        let core = self.core.borrow();
        let log = core.log(id).ok_or(ReadError::UnknownLog)?;
        let is_there = log.segments.iter().any(|segment| segment.base == range.handle.base());
        if !is_there || range.handle.is_cut_before(range.bound) {
            return Ok(());
        }
        range.damage.note(&error);
        Err(error)
    }

    fn next_headers(&self, id: LogId, next: Offset, end: Offset) -> Result<Next, ReadError> {
        let core = self.core.borrow();
        let log = core.log(id).ok_or(ReadError::UnknownLog)?;
        let next = next.max(log.first_offset());
        if next >= end.min(log.log_end) {
            return Ok(Next::Nothing);
        }
        if let Some(index) = log.tail_index(next) {
            let batches = log.tail.range(index..).take_while(|batch| batch.base < end);
            let parsed = batches.take(VISIT_HEADERS_AT_ONCE).map(|batch| {
                BatchHeader::parse_prefix(&batch.bytes).expect("a batch in memory was parsed before")
            });
            return Ok(Next::Memory(parsed.collect()));
        }
        let Some(segment) = log.segment_index(next).and_then(|index| log.segments.get(index)) else {
            return Ok(Next::Nothing);
        };
        let first = log.tail.iter().find(|batch| batch.segment_base == segment.base);
        Ok(Next::File(FileRange {
            handle: Arc::clone(&segment.handle),
            position: segment.index.at_or_before(next).position,
            bound: first.map_or(segment.synced_bytes, |first| first.position),
            damage: DamageReporter { list: Arc::clone(&self.damage), key: log.key, base: segment.base },
        }))
    }
}

impl FileRange {
    /// Shows the batches from `next` on that begin before `end`; returns the offset after the last of them, or `end`, and what
    /// ended it early.
    async fn show(
        &self,
        inner: &Inner,
        next: Offset,
        end: Offset,
        visitor: &mut dyn LogVisitor,
    ) -> (Offset, Result<(), ReadError>) {
        let handle = &*self.handle;
        let mut reached = next;
        let failed = |position, error| Err(ReadError::of_walk(handle, position, error));
        let file = match handle.open(&inner.io).await {
            Ok(file) => file,
            Err(error) => return (reached, failed(0, WalkError::Io(error))),
        };
        let mut walk = HeaderWalk::new(&inner.io, &file, self.position, self.bound, WALK_SCAN_BYTES);
        loop {
            let position = walk.position();
            let walked = walk.next().await;
            if handle.is_cut_before(self.bound) {
                // Other bytes may lie there by now.
                return (reached, Ok(()));
            }
            match walked {
                Ok(Some(walked)) if walked.header.base_offset >= end => return (end, Ok(())),
                Ok(Some(walked)) => {
                    if walked.header.next_offset() > reached {
                        reached = walked.header.next_offset();
                        visitor.batch(&walked.header);
                    }
                }
                Ok(None) if reached > next => return (reached, Ok(())),
                Ok(None) => {
                    let detail = format!("no batch behind offset {next} although the log goes on");
                    return (reached, failed(position, WalkError::Invalid { position, detail }));
                }
                Err(error) => return (reached, failed(position, error)),
            }
        }
    }
}

impl Log {
    /// Offset of the first batch that is there, also below the log's start.
    fn first_offset(&self) -> Offset {
        self.segments.front().map_or(self.log_end, |first| first.base)
    }

    /// Its newest record, if all batches behind it are there.
    fn usable_record(&self) -> Option<RecordedAt> {
        let range = self.first_offset()..=self.log_end;
        self.record.recorded().filter(|recorded| range.contains(&recorded.offset))
    }
}
