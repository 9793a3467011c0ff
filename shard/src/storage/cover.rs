//! What lets a journal file go: for each log with entries in it a synced-to, and copies of what only that file holds.
//!
//! Owns the order in which logs, unopened partitions and deletions are covered. Entries are queued in portions, each of
//! which waits for the last one to be durable: commits beside them share frames of a moderate size.

use std::collections::BTreeMap;

use ringlog_protocol::ids::TopicPartition;

use super::core_storage::{Core, Inner, NO_LOG};
use super::log::{Log, LogId};
use super::recovered::{CoveredEnd, RecoveredPartition};
use crate::journal::entry::{Entry, EntryBody, SyncedTo};
use crate::journal::{FileSerial, Journal, Note, NoteKind, PoisonReason};
use crate::limits::CHECKPOINT_COVER_BYTES;

/// Entries copied into newer files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Carried {
    pub(super) entries: u64,
    pub(super) bytes: u64,
}

/// Whether the log has entries in files up to `through`.
pub(super) fn is_in_files(log: &Log, through: FileSerial) -> bool {
    log.presence.front().is_some_and(|first| *first <= through)
}

/// Covers all entries in files up to `freed`, after the flushes; then those files may be used again. `due` says of each log
/// with records in them up to which sequence: what of that is still unflushed is copied.
///
/// # Errors
/// The journal is poisoned.
pub(super) async fn cover(
    inner: &Inner,
    freed: FileSerial,
    due: &BTreeMap<LogId, u64>,
) -> Result<Carried, PoisonReason> {
    let mut push = Push { journal: &inner.journal, carried: Carried::default(), queued_bytes: 0 };
    // Partitions are opened meanwhile, which moves them from here to the logs, never back: so they come first.
    let unopened: Vec<TopicPartition> = inner.core.borrow().unopened.keys().copied().collect();
    for key in unopened {
        if let Some(unopened) = inner.core.borrow_mut().unopened.get_mut(&key) {
            carry_unopened(&mut unopened.partition, &mut push);
        }
        push.breathe().await?;
    }
    let logs: Vec<LogId> = {
        let core = inner.core.borrow();
        core.logs().filter(|log| is_in_files(log, freed)).map(|log| log.id).collect()
    };
    for id in logs {
        if let Some(log) = inner.core.borrow_mut().log_mut(id) {
            carry_state(log, &mut push);
            // A log that was opened since has nothing unflushed in those files; should it have, all of it is copied.
            carry_data(log, due.get(&id).copied().unwrap_or(u64::MAX), &mut push);
            carry_references(log, &mut push);
            carry_cuts(log, &mut push);
            say_synced(log, &mut push);
        }
        push.breathe().await?;
    }
    let ticket = {
        let core = inner.core.borrow();
        carry_deletes(&core, &mut push);
        let ticket = inner.journal.ticket();
        inner.journal.release_after(ticket, freed);
        ticket
    };
    inner.journal.durable(ticket).await?;
    for log in inner.core.borrow_mut().logs_mut() {
        while log.presence.front().is_some_and(|first| *first <= freed) {
            log.presence.pop_front();
        }
    }
    Ok(push.carried)
}

/// Says of logs that were flushed, although no file goes: a start then replays nothing of them.
pub(super) async fn say_all_synced(
    inner: &Inner,
    logs: impl Iterator<Item = LogId>,
) -> Result<(), PoisonReason> {
    let mut push = Push { journal: &inner.journal, carried: Carried::default(), queued_bytes: 0 };
    for id in logs {
        if let Some(log) = inner.core.borrow_mut().log_mut(id) {
            say_synced(log, &mut push);
        }
        push.breathe().await?;
    }
    inner.journal.durable(inner.journal.ticket()).await
}

/// Queues entries and counts the copies among them.
struct Push<'a> {
    journal: &'a Journal,
    carried: Carried,
    queued_bytes: usize,
}

impl Push<'_> {
    fn entry(&mut self, entry: &Entry<'_>, token: u64, kind: NoteKind) {
        self.journal.push(entry, Note { token, sequence: entry.sequence, kind });
        self.queued_bytes += entry.encoded_bytes();
        if entry.carried {
            self.carried.entries += 1;
            self.carried.bytes += entry.encoded_bytes() as u64;
        }
    }

    /// Waits until what was queued is durable, once it is a portion.
    async fn breathe(&mut self) -> Result<(), PoisonReason> {
        if self.queued_bytes < CHECKPOINT_COVER_BYTES {
            return Ok(());
        }
        self.queued_bytes = 0;
        self.journal.durable(self.journal.ticket()).await
    }
}

fn carry_state(log: &Log, push: &mut Push<'_>) {
    let (key, token) = (log.key, log.id.token());
    if let Some((sequence, state)) = &log.hard_state {
        let body = EntryBody::HardState { state };
        push.entry(&Entry { key, sequence: *sequence, carried: true, body }, token, NoteKind::Carried);
    }
    if let Some(sequence) = log.log_start_sequence {
        let body = EntryBody::LogStart { offset: log.journalled_start() };
        push.entry(&Entry { key, sequence, carried: true, body }, token, NoteKind::Carried);
    }
}

/// Copies the entries up to `due` of durable records that are in no segment: those of logs that were to be carried or could
/// not be flushed.
fn carry_data(log: &mut Log, due: u64, push: &mut Push<'_>) {
    let (key, token) = (log.key, log.id.token());
    let mut through = None;
    for batch in log.due().take_while(|batch| batch.sequence <= due) {
        let body = EntryBody::Data {
            segment_base: batch.segment_base,
            position: batch.position,
            batches: &batch.bytes,
        };
        push.entry(&Entry { key, sequence: batch.sequence, carried: true, body }, token, NoteKind::Carried);
        through = Some(batch.sequence);
    }
    log.carried_through = through.unwrap_or(log.carried_through);
}

/// Copies references whose bytes may not be in their segment yet: without them nothing would vouch for those bytes.
fn carry_references(log: &Log, push: &mut Push<'_>) {
    let (key, token) = (log.key, log.id.token());
    for (sequence, reference) in log.bypass.references() {
        let body = EntryBody::Reference(*reference);
        push.entry(&Entry { key, sequence: *sequence, carried: true, body }, token, NoteKind::Carried);
    }
}

/// Copies truncations whose files are not cut yet, and beginnings before which the old files are not gone.
fn carry_cuts(log: &Log, push: &mut Push<'_>) {
    let (key, token) = (log.key, log.id.token());
    for cut in log.cuts.iter().filter(|cut| cut.is_durable) {
        let entry = Entry { key, sequence: cut.sequence, carried: true, body: cut.body() };
        push.entry(&entry, token, NoteKind::Carried);
    }
}

fn say_synced(log: &mut Log, push: &mut Push<'_>) {
    let body = EntryBody::SyncedTo(log.synced_to());
    let (key, token, sequence) = (log.key, log.id.token(), log.take_sequence());
    push.entry(&Entry { key, sequence, carried: false, body }, token, NoteKind::SyncedTo);
}

fn carry_unopened(partition: &mut RecoveredPartition, push: &mut Push<'_>) {
    let key = partition.key;
    if let Some(state) = &partition.hard_state {
        let body = EntryBody::HardState { state };
        let sequence = partition.hard_state_sequence;
        push.entry(&Entry { key, sequence, carried: true, body }, NO_LOG, NoteKind::Carried);
    }
    if let Some(sequence) = partition.log_start_sequence {
        let body = EntryBody::LogStart { offset: partition.log_start };
        push.entry(&Entry { key, sequence, carried: true, body }, NO_LOG, NoteKind::Carried);
    }
    let sequence = partition.next_sequence;
    let body = EntryBody::SyncedTo(synced_to_of(partition));
    push.entry(&Entry { key, sequence, carried: false, body }, NO_LOG, NoteKind::SyncedTo);
    partition.next_sequence += 1;
}

fn carry_deletes(core: &Core, push: &mut Push<'_>) {
    for deleting in &core.deleting {
        let (key, sequence) = (deleting.key, deleting.sequence);
        let entry = Entry { key, sequence, carried: true, body: EntryBody::Delete };
        push.entry(&entry, NO_LOG, NoteKind::Carried);
    }
}

/// The synced-to entry that a recovered partition starts its new generation with.
pub(crate) fn synced_to_of(partition: &RecoveredPartition) -> SyncedTo {
    CoveredEnd::synced_to(partition.covered, partition.next_sequence - 1)
}
