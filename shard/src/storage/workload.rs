//! The work of one checkpoint: which logs are flushed, which are carried forward, of which a record is made; and the workers
//! that do it. Owns the order within one log: capture, flush up to there, record, sidecars.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ringlog_io::{Priority, Task};
use ringlog_protocol::ids::Offset;

use super::core_storage::{Core, CoreStorage, Inner};
use super::cover::is_in_files;
use super::flush::{Flushed, flush_log};
use super::log::{Log, LogId};
use super::pace::{Pacer, Schedule};
use super::sidecar_file;
use crate::journal::FileSerial;
use crate::limits::{
    CHECKPOINT_CAPTURE_WAITS_MAX, CHECKPOINT_CARRY_BYTES_MAX, CHECKPOINT_LOG_COST_BYTES,
    CHECKPOINT_LOGS_AT_ONCE, CHECKPOINT_UNRECORDED_BYTES_MAX,
};

/// Which logs a checkpoint is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// Those with entries in journal files up to this one.
    InFiles(FileSerial),
    /// All that are not both flushed and recorded; the files up to this one go too.
    All(Option<FileSerial>),
    /// Those of which the checkpoint file lacks most.
    Unrecorded,
}

/// What a checkpoint is to do.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Oldest entry first.
    pub(super) jobs: VecDeque<Job>,
    /// Sequence of the newest record due, of each log with any in the files that go.
    pub(super) due: BTreeMap<LogId, u64>,
    /// For the schedule.
    pub(super) bytes: u64,
}

/// One log's part.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    id: LogId,
    has_due: bool,
    /// A record is to be made of it.
    records: bool,
}

#[derive(Debug)]
struct Candidate {
    job: Job,
    age: (Option<FileSerial>, u64),
    bytes: usize,
    may_be_carried: bool,
}

/// Divides what is due among flushing and carrying: the smallest logs are carried, as far as the budget goes, unless they
/// were before.
pub(super) fn plan(core: &Core, choice: Choice, carry_budget: u64) -> Work {
    let mut work = Work::default();
    let freed = match choice {
        Choice::InFiles(serial) => Some(serial),
        Choice::All(freed) => freed,
        Choice::Unrecorded => None,
    };
    let unrecorded = if choice == Choice::Unrecorded { most_unrecorded(core) } else { BTreeSet::new() };
    let mut logs = Vec::new();
    for log in core.logs() {
        let in_files = freed.is_some_and(|serial| is_in_files(log, serial));
        let last_due = log.due().last();
        if let Some(last) = last_due.filter(|_| in_files) {
            work.due.insert(log.id, last.sequence);
        }
        let is_chosen = match choice {
            Choice::InFiles(_) => in_files && last_due.is_some(),
            Choice::All(_) => last_due.is_some() || log.record.is_worth_it(0),
            Choice::Unrecorded => unrecorded.contains(&log.id),
        };
        if is_chosen {
            logs.push(candidate(log, choice));
        }
    }
    logs.sort_by_key(|log| (!log.may_be_carried, log.bytes, log.job.id));
    let mut budget = carry_budget;
    logs.retain(|log| {
        let left = budget.checked_sub(log.bytes as u64).filter(|_| log.may_be_carried);
        budget = left.unwrap_or(budget);
        left.is_none()
    });
    logs.sort_by_key(|log| log.age);
    work.bytes = logs.iter().map(|log| log.bytes as u64 + CHECKPOINT_LOG_COST_BYTES).sum();
    work.jobs = logs.into_iter().map(|log| log.job).collect();
    work
}

fn candidate(log: &Log, choice: Choice) -> Candidate {
    let bytes: usize = log.due().map(|batch| batch.bytes.len()).sum();
    let first = log.due().next();
    let was_carried = first.is_none_or(|first| first.sequence <= log.carried_through);
    let may_be_carried =
        matches!(choice, Choice::InFiles(_)) && !was_carried && bytes < CHECKPOINT_CARRY_BYTES_MAX;
    let age = (log.presence.front().copied(), first.map_or(u64::MAX, |first| first.stamp));
    let records = choice == Choice::Unrecorded || log.record.is_worth_it(bytes as u64);
    Candidate { job: Job { id: log.id, has_due: first.is_some(), records }, age, bytes, may_be_carried }
}

/// The fewest logs without which less than half of the bound would be unrecorded.
fn most_unrecorded(core: &Core) -> BTreeSet<LogId> {
    let mut logs: Vec<(u64, LogId)> = core
        .logs()
        .filter(|log| log.record.is_worth_it(0))
        .map(|log| (log.record.unrecorded_bytes(), log.id))
        .collect();
    logs.sort_unstable_by(|left, right| right.cmp(left));
    let mut left: u64 = core.logs().map(|log| log.record.unrecorded_bytes()).sum();
    let mut chosen = BTreeSet::new();
    for (bytes, id) in logs {
        if left < CHECKPOINT_UNRECORDED_BYTES_MAX / 2 {
            break;
        }
        left -= bytes;
        chosen.insert(id);
    }
    chosen
}

/// What became of it.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Logs that had something due and are clean now, up to what was due.
    pub(super) clean: BTreeSet<LogId>,
    pub(super) kept: BTreeSet<LogId>,
    pub(super) recorded: BTreeSet<LogId>,
    pub(super) bytes: u64,
}

/// Does the jobs, several at once.
pub(super) async fn carry_out(inner: &Rc<Inner>, jobs: VecDeque<Job>, schedule: Schedule) -> Outcome {
    let outcome = Rc::new(RefCell::new(Outcome::default()));
    let pacer = Rc::new(Pacer::new(schedule));
    let worker_count = jobs.len().min(CHECKPOINT_LOGS_AT_ONCE);
    let queue = Rc::new(RefCell::new(jobs));
    let workers: Vec<Task<()>> = (0..worker_count)
        .map(|_| {
            let (inner, queue, outcome) = (Rc::clone(inner), Rc::clone(&queue), Rc::clone(&outcome));
            let pacer = Rc::clone(&pacer);
            let worker_io = inner.io.clone();
            worker_io.spawn(Priority::Background, async move {
                loop {
                    let next = queue.borrow_mut().pop_front();
                    let Some(job) = next else { return };
                    do_job(&inner, job, &pacer, &outcome).await;
                    pacer.log_done();
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await;
    }
    inner.write_records().await;
    outcome.take()
}

async fn do_job(inner: &Inner, job: Job, pacer: &Pacer, outcome: &RefCell<Outcome>) {
    let captured = if job.records && inner.recorder.has_room() { capture(inner, job.id) } else { None };
    if let Some(end) = captured {
        until_durable(inner, job.id, end).await;
    }
    let flushed = flush_log(inner, job.id, pacer).await;
    {
        let mut outcome = outcome.borrow_mut();
        match flushed {
            Flushed::Clean { bytes } => {
                outcome.bytes += bytes;
                if job.has_due {
                    outcome.clean.insert(job.id);
                }
            }
            Flushed::Kept => {
                outcome.kept.insert(job.id);
            }
        }
    }
    if captured.is_some() {
        if record(inner, job.id) {
            outcome.borrow_mut().recorded.insert(job.id);
        }
        if !inner.recorder.has_room() {
            inner.write_records().await;
        }
    }
    sidecar_file::tend(inner, job.id).await;
}

/// Takes the log down at its end. Nothing else runs between asking for the producers and looking at the log, so both are of
/// one offset.
fn capture(inner: &Inner, id: LogId) -> Option<Offset> {
    let end = inner.core.borrow().log(id).filter(|log| log.poison.is_none())?.log_end;
    let producers = inner.producers_of(id, end)?;
    let mut core = inner.core.borrow_mut();
    core.log_mut(id).filter(|log| log.log_end == end)?.capture(producers)
}

/// Waits, not for long, until the journal holds the log up to `end`. Not at all while the journal itself waits for a file:
/// it may be this that frees it.
async fn until_durable(inner: &Inner, id: LogId, end: Offset) {
    for _ in 0..CHECKPOINT_CAPTURE_WAITS_MAX {
        let is_over = {
            let core = inner.core.borrow();
            core.log(id).is_none_or(|log| log.poison.is_some() || log.durable_end >= end)
        };
        if is_over || inner.journal.is_poisoned() || inner.journal.pressure().is_out() {
            return;
        }
        inner.io.sleep(Duration::from_millis(1)).await;
    }
}

/// Makes records of logs whose last segment is about to go, before it does: what else would name their producers is gone
/// with it. In a checkpoint's turn, so that nobody else makes one.
pub(super) async fn record_emptied(inner: &Inner, ids: &[LogId]) {
    let mut is_any_queued = false;
    for id in ids {
        let is_due = |log: &&Log| log.is_wholly_retired() && log.poison.is_none();
        let end = inner.core.borrow().log(*id).filter(is_due).map(|log| log.log_end);
        let Some(producers) = end.and_then(|end| inner.producers_of(*id, end)) else { continue };
        if let Some(log) = inner.core.borrow_mut().log_mut(*id).filter(|log| Some(log.log_end) == end) {
            log.capture_emptied(producers);
        }
        is_any_queued |= inner.recorder.is_kept() && record(inner, *id);
        if !inner.recorder.has_room() {
            inner.write_records().await;
        }
    }
    if is_any_queued {
        inner.write_records().await;
    }
}

/// Queues the record of a capture, if the segments came to exactly its offset.
fn record(inner: &Inner, id: LogId) -> bool {
    let mut guard = inner.core.borrow_mut();
    let core = &mut *guard;
    let Some(log) = core.log_mut(id) else { return false };
    let key = log.key;
    let Some((record, bytes)) = log.take_record(inner.recorder.generation()) else { return false };
    core.unrecorded_bytes = core.unrecorded_bytes.saturating_sub(bytes);
    inner.recorder.queue(key, record);
    true
}

impl CoreStorage {
    /// Asks this for a log's producers whenever a checkpoint speaks of the log; see [`super::PartitionCheckpoint`]. It is
    /// called between turns of other tasks, so it sees every append done or not begun.
    pub fn set_snapshot_source(&self, source: impl Fn(LogId, &mut Vec<u8>) -> Option<Offset> + 'static) {
        *self.inner().snapshot_source.borrow_mut() = Some(Rc::new(source));
    }
}

impl Inner {
    /// The log's producers at its end: the outer none = the source has none of that offset.
    fn producers_of(&self, id: LogId, end: Offset) -> Option<Option<Bytes>> {
        let source = self.snapshot_source.borrow().clone();
        let Some(source) = source else { return Some(None) };
        let mut snapshot = Vec::new();
        let is_of_end = source(id, &mut snapshot) == Some(end);
        is_of_end.then(|| Some(Bytes::from(snapshot)))
    }

    async fn write_records(&self) {
        self.recorder.write(&self.io, |key| self.core.borrow().holds(key)).await;
        if self.recorder.has_failed() {
            self.file_system.note_failure();
        }
    }

    /// Whether a start would have to read so much that records are due although no file is full.
    pub(super) fn wants_records(&self, core: &Core) -> bool {
        let new_bytes = core.unrecorded_bytes.saturating_sub(core.unrecorded_bytes_left);
        self.recorder.is_kept() && new_bytes >= CHECKPOINT_UNRECORDED_BYTES_MAX
    }
}
