//! The plain checkpointer: brings unflushed records into segments so that journal files can be used again.
//!
//! Owns the order: flush and sync, then a durable synced-to for each log, then the files are free. It runs in the
//! background and never holds the core's state over an await. The downside of the plain form: it is not paced, so a
//! full journal file of a busy core is written as fast as the workers take it.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use ringlog_io::{Priority, Task};

use super::core_storage::{Core, Inner, NO_LOG, StorageError};
use super::deletion;
use super::flush::{Flushed, flush_log};
use super::log::{Log, LogId};
use super::recovered::RecoveredPartition;
use crate::journal::entry::{Entry, EntryBody, SyncedTo};
use crate::journal::{FileSerial, Journal, Note, NoteKind};
use crate::limits::{CHECKPOINT_LOGS_AT_ONCE, CHECKPOINT_RETRY_MS};

/// What a checkpoint did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointReport {
    /// Logs that had something to flush and are clean now.
    pub logs_flushed: u64,
    /// Logs that could not be flushed; their records stay in the journal.
    pub logs_kept: u64,
    /// Bytes written to segments.
    pub bytes: u64,
    /// Entries copied into newer journal files.
    pub carried_entries: u64,
}

/// What a checkpoint is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// Free the journal files up to this one.
    Filled(FileSerial),
    /// Flush every log.
    Everything,
    /// Only remove folders of deleted logs.
    Deletions,
}

/// The turn to checkpoint; gives it back when dropped, also when its task is cancelled.
struct Turn<'a> {
    inner: &'a Inner,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.inner.turn_taken.set(false);
        self.inner.turn.notify();
    }
}

async fn take_turn(inner: &Inner) -> Turn<'_> {
    inner.turn.until(|| (!inner.turn_taken.replace(true)).then_some(())).await;
    Turn { inner }
}

/// Flushes every log; see [`super::CoreStorage::checkpoint`].
pub(super) async fn checkpoint(inner: &Rc<Inner>) -> Result<CheckpointReport, StorageError> {
    if inner.is_ephemeral {
        return Ok(CheckpointReport::default());
    }
    let _turn = take_turn(inner).await;
    run(inner, Scope::Everything).await
}

/// The background task: frees journal files as they fill, flushes when memory is short, removes deleted folders.
pub(super) async fn recycle(inner: Rc<Inner>) {
    loop {
        inner.work.until(|| due(&inner).map(|_| ())).await;
        let _turn = take_turn(&inner).await;
        // Another checkpoint may have done it while this one waited for its turn.
        let Some(scope) = due(&inner) else { continue };
        let kept = match run(&inner, scope).await {
            Ok(report) => report.logs_kept > 0,
            Err(error) => {
                tracing::warn!(%error, "a checkpoint did not end");
                true
            }
        };
        if kept {
            // What could not be flushed was copied forward, which fills files in turn: without a pause this would spin.
            inner.io.sleep(Duration::from_millis(CHECKPOINT_RETRY_MS)).await;
        }
    }
}

fn due(inner: &Inner) -> Option<Scope> {
    if inner.journal.is_poisoned() {
        return None;
    }
    let core = inner.core.borrow();
    if let Some(serial) = inner.journal.filled_through() {
        return Some(Scope::Filled(serial));
    }
    if inner.wants_checkpoint(&core) {
        return Some(Scope::Everything);
    }
    core.has_folder_to_remove().then_some(Scope::Deletions)
}

async fn run(inner: &Rc<Inner>, scope: Scope) -> Result<CheckpointReport, StorageError> {
    deletion::remove_folders(inner).await;
    let freed = match scope {
        Scope::Deletions => return Ok(CheckpointReport::default()),
        Scope::Filled(serial) => Some(serial),
        Scope::Everything => {
            let _urgent = Urgent::new(&inner.journal);
            // Only what is durable in the journal is flushed, so all that was appended before must get there.
            inner.journal.durable(inner.journal.ticket()).await?;
            inner.journal.filled_through()
        }
    };
    let dirty: VecDeque<LogId> = {
        let core = inner.core.borrow();
        let is_wanted = |log: &&Log| {
            log.first_dirty().is_some() && (scope == Scope::Everything || is_in_files(log, freed))
        };
        core.logs().filter(is_wanted).map(|log| log.id).collect()
    };
    let outcome = flush_all(inner, dirty).await;
    let mut report = CheckpointReport {
        logs_flushed: outcome.clean.len() as u64,
        logs_kept: outcome.kept.len() as u64,
        bytes: outcome.bytes,
        carried_entries: 0,
    };
    let _urgent = Urgent::new(&inner.journal);
    let ticket = {
        let mut core = inner.core.borrow_mut();
        report.carried_entries = cover(&mut core, &inner.journal, &outcome, freed);
        let ticket = inner.journal.ticket();
        if let Some(serial) = freed {
            inner.journal.release_after(ticket, serial);
        }
        ticket
    };
    inner.journal.durable(ticket).await?;
    let mut core = inner.core.borrow_mut();
    if let Some(serial) = freed {
        for log in core.logs_mut() {
            while log.presence.front().is_some_and(|first| *first <= serial) {
                log.presence.pop_front();
            }
        }
    }
    core.counters.checkpoints += 1;
    core.counters.carried_entries += report.carried_entries;
    core.dirty_bytes_stuck = outcome.kept.iter().filter_map(|id| core.log(*id)).map(Log::dirty_bytes).sum();
    Ok(report)
}

/// While it lives the journal makes files beyond its maximum rather than wait for the ones that this frees.
struct Urgent<'a> {
    journal: &'a Journal,
}

impl<'a> Urgent<'a> {
    fn new(journal: &'a Journal) -> Urgent<'a> {
        journal.set_urgent(true);
        Urgent { journal }
    }
}

impl Drop for Urgent<'_> {
    fn drop(&mut self) {
        self.journal.set_urgent(false);
    }
}

fn is_in_files(log: &Log, through: Option<FileSerial>) -> bool {
    through.is_some_and(|serial| log.presence.front().is_some_and(|first| *first <= serial))
}

#[derive(Debug, Default)]
struct Outcome {
    clean: BTreeSet<LogId>,
    kept: BTreeSet<LogId>,
    bytes: u64,
}

async fn flush_all(inner: &Rc<Inner>, dirty: VecDeque<LogId>) -> Outcome {
    let outcome = Rc::new(RefCell::new(Outcome::default()));
    let worker_count = dirty.len().min(CHECKPOINT_LOGS_AT_ONCE);
    let queue = Rc::new(RefCell::new(dirty));
    let workers: Vec<Task<()>> = (0..worker_count)
        .map(|_| {
            let (inner, queue, outcome) = (Rc::clone(inner), Rc::clone(&queue), Rc::clone(&outcome));
            let worker_io = inner.io.clone();
            worker_io.spawn(Priority::Background, async move {
                loop {
                    let next = queue.borrow_mut().pop_front();
                    let Some(id) = next else { return };
                    let flushed = flush_log(&inner, id).await;
                    let mut outcome = outcome.borrow_mut();
                    match flushed {
                        Flushed::Clean { bytes } => {
                            outcome.clean.insert(id);
                            outcome.bytes += bytes;
                        }
                        Flushed::Kept => {
                            outcome.kept.insert(id);
                        }
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await;
    }
    outcome.take()
}

/// Queues what lets the files up to `freed` go: a synced-to for each flushed log and each log in those files, and copies
/// of what only those files hold. Returns the number of copies.
fn cover(core: &mut Core, journal: &Journal, outcome: &Outcome, freed: Option<FileSerial>) -> u64 {
    let mut carried = 0;
    for log in core.logs_mut() {
        let in_files = is_in_files(log, freed);
        if !in_files && !outcome.clean.contains(&log.id) {
            continue;
        }
        if in_files {
            carried += carry_state(log, journal);
            if outcome.kept.contains(&log.id) {
                carried += carry_data(log, journal);
            }
        }
        let synced = log.synced_to();
        let sequence = log.take_sequence();
        let note = Note { token: log.id.token(), sequence, kind: NoteKind::SyncedTo };
        journal
            .push(&Entry { key: log.key, sequence, carried: false, body: EntryBody::SyncedTo(synced) }, note);
    }
    if freed.is_some() {
        for unopened in core.unopened.values_mut() {
            carried += carry_unopened(&mut unopened.partition, journal);
        }
        for deleting in &core.deleting {
            let entry = Entry {
                key: deleting.key,
                sequence: deleting.sequence,
                carried: true,
                body: EntryBody::Delete,
            };
            journal
                .push(&entry, Note { token: NO_LOG, sequence: deleting.sequence, kind: NoteKind::Carried });
            carried += 1;
        }
    }
    carried
}

fn carry_state(log: &Log, journal: &Journal) -> u64 {
    let mut carried = 0;
    let mut push = |sequence, body| {
        let note = Note { token: log.id.token(), sequence, kind: NoteKind::Carried };
        journal.push(&Entry { key: log.key, sequence, carried: true, body }, note);
        carried += 1;
    };
    if let Some((sequence, state)) = &log.hard_state {
        push(*sequence, EntryBody::HardState { state });
    }
    if let Some(sequence) = log.log_start_sequence {
        push(sequence, EntryBody::LogStart { offset: log.log_start });
    }
    carried
}

/// Copies the entries of records that could not be flushed.
fn carry_data(log: &Log, journal: &Journal) -> u64 {
    let mut carried = 0;
    for batch in log.tail.range(log.clean_count..).take_while(|batch| batch.end <= log.durable_end) {
        let body = EntryBody::Data {
            segment_base: batch.segment_base,
            position: batch.position,
            batches: &batch.bytes,
        };
        let note = Note { token: log.id.token(), sequence: batch.sequence, kind: NoteKind::Carried };
        journal.push(&Entry { key: log.key, sequence: batch.sequence, carried: true, body }, note);
        carried += 1;
    }
    carried
}

fn carry_unopened(partition: &mut RecoveredPartition, journal: &Journal) -> u64 {
    let key = partition.key;
    let mut carried = 0;
    let mut push = |sequence, carry, body| {
        let note = Note { token: NO_LOG, sequence, kind: NoteKind::Carried };
        journal.push(&Entry { key, sequence, carried: carry, body }, note);
        carried += 1;
    };
    if let Some(state) = &partition.hard_state {
        push(partition.hard_state_sequence, true, EntryBody::HardState { state });
    }
    if let Some(sequence) = partition.log_start_sequence {
        push(sequence, true, EntryBody::LogStart { offset: partition.log_start });
    }
    let sequence = partition.next_sequence;
    push(sequence, false, EntryBody::SyncedTo(synced_to_of(partition)));
    partition.next_sequence += 1;
    carried
}

/// The synced-to entry that a recovered partition starts its new generation with.
pub(crate) fn synced_to_of(partition: &RecoveredPartition) -> SyncedTo {
    let through = partition.next_sequence - 1;
    match partition.covered {
        Some(end) => SyncedTo {
            through,
            epoch: end.epoch,
            offset: end.offset,
            segment_base: end.segment_base,
            position: end.position,
        },
        None => SyncedTo {
            through,
            epoch: ringlog_protocol::ids::LeaderEpoch::NONE,
            offset: ringlog_protocol::ids::Offset(0),
            segment_base: ringlog_protocol::ids::Offset(0),
            position: 0,
        },
    }
}
