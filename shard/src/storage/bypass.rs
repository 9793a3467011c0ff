//! Bypass: a large batch goes to its segment at once, and the journal gets only a reference to it. Halves the bytes that
//! are written.
//!
//! Owns the order that makes a reference true: it is journalled beside the write to the segment; the batch is acknowledged,
//! and the partition's next entry journalled, only after both are durable. So of two entries in a row the first one's bytes
//! are synced, and recovery can tell a crash's tail (the last run of references) from damage (any other). What comes
//! meanwhile waits here in memory, and may then be one run of references, which costs one sync.
//!
//! Begun only when all earlier entries of the partition are durable, the one that states its term among them. It costs a
//! sync of the segment for each run, where the journal shares one among all partitions: worth it for large batches only. A batch
//! that no file of the journal could hold has no other way, so it waits where another one would be journalled instead.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ringlog_io::{Priority, Task};
use ringlog_protocol::ids::{LeaderEpoch, Offset};

use super::core_storage::{Durable, Inner};
use super::flush::{self, Run, Written};
use super::log::{Log, LogId, TailBatch};
use crate::journal::entry::{Entry, EntryBody, OffsetRange, Reference};
use crate::journal::{Note, NoteKind};
use crate::limits::{BYPASS_DIRTY_BYTES_MAX, BYPASS_RUN_BYTES_MAX, CHECKPOINT_RETRY_MS};

/// One log's bypass: what is on its way and what waits for it.
///
/// Invariant: while `waiting` is not empty, something is in flight or entries are not durable; sequences ascend.
#[derive(Debug, Default)]
pub(crate) struct Bypass {
    in_flight: Option<InFlight>,
    /// Not journalled yet, oldest first.
    waiting: VecDeque<Waiting>,
    /// Entries given to the journal and not yet durable, references and those that wait for nobody excepted.
    undurable: usize,
}

/// A run of references.
#[derive(Debug)]
struct InFlight {
    /// With their sequences.
    references: Vec<(u64, Reference)>,
    is_journalled: bool,
    /// What was written, once it is synced.
    synced: Option<Vec<Run>>,
}

#[derive(Debug)]
enum Waiting {
    /// A batch of the tail.
    Batch {
        sequence: u64,
        bytes: usize,
    },
    Entry {
        sequence: u64,
        kind: NoteKind,
        body: OwnedBody,
    },
}

/// An entry's body that owns its bytes.
#[derive(Debug)]
enum OwnedBody {
    HardState(Bytes),
    LogStart(Offset),
    Truncate { end_offset: Offset, segment_base: Offset, position: u32 },
}

/// Batches that wait and may be one run of references.
#[derive(Clone, Copy, Debug, Default)]
struct NextRun {
    count: usize,
    bytes: usize,
    /// Bytes of the largest of them.
    largest: usize,
}

impl Bypass {
    /// Whether the next entry must wait.
    pub(super) fn must_wait(&self) -> bool {
        self.in_flight.is_some() || !self.waiting.is_empty()
    }

    /// Bytes of batches that are not acknowledged because of it.
    pub(super) fn backlog_bytes(&self) -> usize {
        let waiting = self.waiting.iter().map(|waiting| match waiting {
            Waiting::Batch { bytes, .. } => *bytes,
            Waiting::Entry { .. } => 0,
        });
        let in_flight = self.in_flight.iter().flat_map(|run| &run.references);
        waiting.sum::<usize>() + in_flight.map(|(_, reference)| reference.length as usize).sum::<usize>()
    }

    /// Sequence of the first entry that the journal was not given.
    pub(super) fn first_waiting(&self) -> Option<u64> {
        self.waiting.front().map(Waiting::sequence)
    }

    /// Forgets everything: nothing of it will be acknowledged.
    pub(super) fn abandon(&mut self) -> usize {
        let bytes = self.backlog_bytes();
        *self = Bypass::default();
        bytes
    }

    /// An entry that was given to the journal is durable; whether what waits may go on.
    pub(super) fn note_durable(&mut self) -> bool {
        self.undurable = self.undurable.saturating_sub(1);
        self.undurable == 0 && self.in_flight.is_none() && !self.waiting.is_empty()
    }

    /// A reference is durable in the journal; whether it was the last of its run.
    pub(super) fn note_journalled(&mut self, sequence: u64) -> bool {
        match &mut self.in_flight {
            Some(run) if run.references.last().is_some_and(|(last, _)| *last == sequence) => {
                run.is_journalled = true;
                true
            }
            _ => false,
        }
    }

    /// References whose bytes may not be in the segment yet: they must not fall out of the journal.
    pub(super) fn references(&self) -> impl Iterator<Item = &(u64, Reference)> {
        self.in_flight.iter().flat_map(|run| &run.references)
    }

    /// The batches that wait in front, as far as one run goes.
    fn next_run(&self) -> NextRun {
        let mut run = NextRun::default();
        for waiting in &self.waiting {
            let Waiting::Batch { bytes: more, .. } = waiting else { break };
            if run.count > 0 && run.bytes + more > BYPASS_RUN_BYTES_MAX {
                break;
            }
            run = NextRun { count: run.count + 1, bytes: run.bytes + more, largest: run.largest.max(*more) };
        }
        run
    }

    fn take_complete(&mut self) -> Option<InFlight> {
        let is_complete = |run: &mut InFlight| run.is_journalled && run.synced.is_some();
        self.in_flight.take_if(is_complete)
    }
}

impl Log {
    fn tail_batch(&self, sequence: u64) -> &TailBatch {
        let index = self.tail.partition_point(|batch| batch.sequence < sequence);
        self.tail.get(index).expect("a batch that waits is in memory")
    }

    fn reference_to(&self, batch: &TailBatch, goes_on: bool) -> Reference {
        // Of its last record: the first one may lie below the log's start.
        let epoch = self.epoch_at(Offset(batch.end.0 - 1)).unwrap_or(LeaderEpoch::NONE);
        Reference {
            segment_base: batch.segment_base,
            position: batch.position,
            length: u32::try_from(batch.bytes.len()).expect("a batch's length field is 31 bits"),
            crc: crc32fast::hash(&batch.bytes),
            range: OffsetRange { base: batch.base, end: batch.end, epoch },
            goes_on,
        }
    }
}

/// The right to write the segments of one log; gives it back when dropped.
pub(super) struct SegmentLock<'a> {
    inner: &'a Inner,
    id: LogId,
}

impl Drop for SegmentLock<'_> {
    fn drop(&mut self) {
        self.inner.core.borrow_mut().writing.remove(&self.id);
        self.inner.written.notify();
        // A deleted log's folder may have waited.
        self.inner.work.notify();
    }
}

impl Inner {
    /// Waits until nobody writes the segments of this log. Held by whoever writes, cuts or replaces one.
    pub(super) async fn lock_segments(&self, id: LogId) -> SegmentLock<'_> {
        self.written.until(|| self.core.borrow_mut().writing.insert(id).then_some(())).await;
        SegmentLock { inner: self, id }
    }

    /// Waits until no reference of this log is on its way and nothing waits for one. What is appended meanwhile may begin
    /// another: for callers that hold appends off.
    pub(super) async fn bypass_ended(&self, id: LogId) {
        let is_over = || {
            let core = self.core.borrow();
            core.log(id).is_none_or(|log| !log.bypass.must_wait()) || self.journal.is_poisoned()
        };
        self.turn.until(|| is_over().then_some(())).await;
    }

    /// Whether a batch of this size goes to its segment at once.
    fn bypasses(&self, bytes: usize) -> bool {
        let threshold = self.settings.bypass_bytes;
        !self.is_ephemeral && threshold > 0 && bytes >= threshold || self.must_bypass(bytes)
    }

    /// Whether no file of the journal could hold a batch of this size.
    fn must_bypass(&self, bytes: usize) -> bool {
        !self.is_ephemeral && bytes > self.settings.journal.batch_bytes_max()
    }

    /// Gives an entry of `log` to the journal, or lets it wait for the reference that is on its way.
    pub(super) fn enter(&self, log: &mut Log, sequence: u64, body: EntryBody<'_>, kind: NoteKind) {
        if !log.bypass.must_wait() {
            self.push(log, sequence, body, kind);
            return;
        }
        let body = match body {
            EntryBody::HardState { state } => OwnedBody::HardState(Bytes::copy_from_slice(state)),
            EntryBody::LogStart { offset } => OwnedBody::LogStart(offset),
            EntryBody::Truncate { end_offset, segment_base, position } => {
                OwnedBody::Truncate { end_offset, segment_base, position }
            }
            EntryBody::Data { .. } | EntryBody::Reference(_) => unreachable!("batches come by `enter_batch`"),
            EntryBody::Delete | EntryBody::SyncedTo(_) => unreachable!("waits for nobody"),
            EntryBody::Begin { .. } => unreachable!("comes only when nothing is on its way"),
        };
        log.bypass.waiting.push_back(Waiting::Entry { sequence, kind, body });
    }

    /// Gives a batch to the journal, or lets it wait; returns the bytes that wait. If it is not 0, [`Inner::pump`] follows
    /// once the batch is in the tail.
    pub(super) fn enter_batch(
        &self,
        log: &mut Log,
        sequence: u64,
        body: EntryBody<'_>,
        end: Offset,
    ) -> usize {
        let EntryBody::Data { batches, .. } = body else { unreachable!("a batch is data") };
        if !log.bypass.must_wait() && !self.bypasses(batches.len()) {
            self.push(log, sequence, body, NoteKind::Data { end });
            return 0;
        }
        log.bypass.waiting.push_back(Waiting::Batch { sequence, bytes: batches.len() });
        batches.len()
    }

    fn push(&self, log: &mut Log, sequence: u64, body: EntryBody<'_>, kind: NoteKind) {
        log.bypass.undurable += 1;
        let note = Note { token: log.id.token(), sequence, kind };
        self.journal.push(&Entry { key: log.key, sequence, carried: false, body }, note);
    }

    /// Lets go on what waits, as far as it may: entries and small runs to the journal, a large run by bypass.
    pub(super) fn pump(self: &Rc<Self>, id: LogId) {
        let mut guard = self.core.borrow_mut();
        let core = &mut *guard;
        let Some(log) = core.logs.get_mut(id.slot as usize).filter(|log| log.id == id) else { return };
        let mut journalled_bytes = 0;
        while log.bypass.in_flight.is_none() && log.poison.is_none() {
            let run = log.bypass.next_run();
            if run.count > 0 && self.bypasses(run.bytes) {
                if log.bypass.undurable > 0 {
                    break;
                }
                let first = log.bypass.waiting.front().map_or(0, Waiting::sequence);
                let dirty = log.tail.range(log.clean_count..).take_while(|batch| batch.sequence < first);
                let dirty_bytes: usize = dirty.map(|batch| batch.bytes.len()).sum();
                // Someone writes the segments now, or much would have to be synced first: the journal is quicker.
                let must = self.must_bypass(run.largest);
                let is_locked = (must || dirty_bytes <= BYPASS_DIRTY_BYTES_MAX) && core.writing.insert(id);
                if is_locked || must {
                    self.begin(log, run.count, is_locked);
                    core.counters.bypass_bytes += run.bytes as u64;
                    break;
                }
                ringlog_io::reached!("bypass.journalled_instead");
            }
            match log.bypass.waiting.pop_front() {
                Some(Waiting::Batch { sequence, bytes }) => {
                    let batch = log.tail_batch(sequence);
                    let (end, batches) = (batch.end, batch.bytes.clone());
                    let (segment_base, position) = (batch.segment_base, batch.position);
                    let body = EntryBody::Data { segment_base, position, batches: &batches };
                    self.push(log, sequence, body, NoteKind::Data { end });
                    journalled_bytes += bytes;
                }
                Some(Waiting::Entry { sequence, kind, body }) => {
                    self.push(log, sequence, body.as_entry(), kind);
                }
                None => break,
            }
        }
        core.bypass_backlog_bytes -= journalled_bytes;
        drop(guard);
        if journalled_bytes > 0 {
            self.turn.notify();
        }
    }

    /// Journals references to the first `count` batches that wait, and writes them. The segments are locked for it, or will be.
    fn begin(self: &Rc<Self>, log: &mut Log, count: usize, is_locked: bool) {
        ringlog_io::reached!("bypass.run");
        let mut references = Vec::with_capacity(count);
        for waiting in log.bypass.waiting.drain(..count).collect::<Vec<_>>() {
            let sequence = waiting.sequence();
            let reference = log.reference_to(log.tail_batch(sequence), !references.is_empty());
            let note = Note {
                token: log.id.token(),
                sequence,
                kind: NoteKind::Reference { end: reference.range.end },
            };
            let body = EntryBody::Reference(reference);
            self.journal.push(&Entry { key: log.key, sequence, carried: false, body }, note);
            references.push((sequence, reference));
        }
        let through = references.last().map_or(0, |(sequence, _)| *sequence);
        log.bypass.in_flight = Some(InFlight { references, is_journalled: false, synced: None });
        let task =
            self.io.spawn(Priority::Foreground, write_ahead(Rc::clone(self), log.id, through, is_locked));
        self.keep_task(task);
    }

    /// Lets a task of a log run for as long as the storage lives.
    pub(super) fn keep_task(&self, task: Task<()>) {
        let mut tasks = self.bypass_tasks.borrow_mut();
        tasks.retain(|task| !task.is_finished());
        tasks.push(task);
    }

    /// Acknowledges a run whose references are journalled and whose bytes are synced.
    pub(super) fn end_bypass(self: &Rc<Self>, id: LogId) {
        let mut reports = Vec::new();
        let runs = {
            let mut core = self.core.borrow_mut();
            let Some(log) = core.log_mut(id) else { return };
            let Some(run) = log.bypass.take_complete() else { return };
            let mut bytes = 0;
            for (sequence, reference) in &run.references {
                let end = reference.range.end;
                log.note_durable(end);
                bytes += reference.length as usize;
                reports.push(Durable { log: id, sequence: *sequence, end_offset: Some(end) });
            }
            core.bypass_backlog_bytes -= bytes;
            run.synced.unwrap_or_default()
        };
        for run in &runs {
            flush::mark_clean(self, id, run);
        }
        self.report(&reports);
        self.turn.notify();
        self.pump(id);
    }
}

impl Waiting {
    fn sequence(&self) -> u64 {
        match self {
            Waiting::Batch { sequence, .. } | Waiting::Entry { sequence, .. } => *sequence,
        }
    }
}

impl OwnedBody {
    fn as_entry(&self) -> EntryBody<'_> {
        match self {
            OwnedBody::HardState(state) => EntryBody::HardState { state },
            OwnedBody::LogStart(offset) => EntryBody::LogStart { offset: *offset },
            OwnedBody::Truncate { end_offset, segment_base, position } => EntryBody::Truncate {
                end_offset: *end_offset,
                segment_base: *segment_base,
                position: *position,
            },
        }
    }
}

/// Writes and syncs all unflushed batches up to `through`. Without space it tries again until there is: the journal holds
/// only references to them, so nothing else can make them durable.
async fn write_ahead(inner: Rc<Inner>, id: LogId, through: u64, is_locked: bool) {
    let mut lock = if is_locked {
        SegmentLock { inner: &inner, id }
    } else {
        ringlog_io::reached!("bypass.waits_for_the_segments");
        inner.lock_segments(id).await
    };
    let runs = loop {
        match flush::write_ahead(&inner, id, through).await {
            Written::Synced(runs) => break runs,
            Written::Failed => {
                drop(lock);
                inner.turn.notify();
                return;
            }
            Written::Later => {}
        }
        drop(lock);
        inner.io.sleep(Duration::from_millis(CHECKPOINT_RETRY_MS)).await;
        lock = inner.lock_segments(id).await;
    };
    drop(lock);
    if let Some(log) = inner.core.borrow_mut().log_mut(id)
        && let Some(run) = &mut log.bypass.in_flight
    {
        run.synced = Some(runs);
    }
    inner.end_bypass(id);
}
