//! The checkpointer: brings unflushed records into segments so that journal files can be used again.
//!
//! Owns the order: flush and sync, then a durable synced-to or copy for each log, then the file is free. Files go oldest
//! first, the work for one is spread over the time in which the next one fills (`pace`), and logs with little due
//! are copied forward once instead of synced. It runs in the background and never holds the core's state over an await.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use super::core_storage::{Inner, StorageError};
use super::cover::{Carried, cover, say_all_synced};
use super::deletion;
use super::flush::flush_log;
use super::log::{Log, LogId};
use super::pace::{Pacer, Schedule};
use super::workload::{Choice, carry_out, plan};
use crate::journal::{FileSerial, Journal, PoisonReason};
use crate::limits::{CHECKPOINT_CARRY_DIVISOR, CHECKPOINT_NOTHING_DUE_MS, CHECKPOINT_RETRY_MS};

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
    /// Their bytes.
    pub carried_bytes: u64,
}

/// What a checkpoint is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// Free the journal files up to this one.
    Filled(FileSerial),
    /// Flush every log.
    Everything,
    /// Bring the checkpoint file up to date.
    Records,
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
    // Somebody waits: what goes on at its own pace hurries.
    let _hurry = inner.flush.hurry();
    let _turn = take_turn(inner).await;
    run(inner, Scope::Everything).await
}

/// Flushes what is due of one log, so that its closed segments are whole in their files.
pub(super) async fn flush_one(inner: &Rc<Inner>, id: LogId) {
    let _turn = take_turn(inner).await;
    let pacer = Pacer::new(Schedule::at_once(inner.io.monotonic_now()));
    flush_log(inner, id, &pacer).await;
}

/// The background task: frees journal files as they fill, flushes when memory is short, removes deleted folders.
pub(super) async fn recycle(inner: Rc<Inner>) {
    loop {
        inner.work.until(|| due(&inner).map(|_| ())).await;
        let _turn = take_turn(&inner).await;
        // Another checkpoint may have done it while this one waited for its turn.
        let Some(scope) = due(&inner) else { continue };
        let pause_ms = match run(&inner, scope).await {
            // What could not be flushed was copied forward, which fills files in turn: without a pause this would spin.
            Ok(report) if report.logs_kept > 0 => CHECKPOINT_RETRY_MS,
            // All that is unflushed is on its way past the journal: its own writes make it clean, if they get their turn.
            Ok(report) if scope == Scope::Everything && report.logs_flushed == 0 => {
                ringlog_io::reached!("checkpoint.nothing_due");
                CHECKPOINT_NOTHING_DUE_MS
            }
            Ok(_) => continue,
            Err(error) => {
                tracing::warn!(%error, "a checkpoint did not end");
                CHECKPOINT_RETRY_MS
            }
        };
        inner.io.sleep(Duration::from_millis(pause_ms)).await;
    }
}

fn due(inner: &Inner) -> Option<Scope> {
    if inner.journal.is_poisoned() {
        return None;
    }
    let core = inner.core.borrow();
    if let Some(oldest) = inner.journal.oldest_filled() {
        // One after the other while there is time; without a free file all at once, since one synced-to a log covers them.
        let newest = inner.journal.filled_through().filter(|_| inner.journal.pressure().is_out());
        return Some(Scope::Filled(newest.unwrap_or(oldest)));
    }
    if inner.wants_checkpoint(&core) {
        return Some(Scope::Everything);
    }
    if inner.space.is_write_refused() {
        // Tried again for as long as there was no space: producing resumes once a write goes through.
        return Some(Scope::Everything);
    }
    if inner.wants_records(&core) {
        return Some(Scope::Records);
    }
    core.has_folder_to_remove().then_some(Scope::Deletions)
}

async fn run(inner: &Rc<Inner>, scope: Scope) -> Result<CheckpointReport, StorageError> {
    deletion::remove_folders(inner).await;
    let freed = match scope {
        Scope::Deletions => return Ok(CheckpointReport::default()),
        Scope::Records => None,
        Scope::Filled(serial) => Some(serial),
        Scope::Everything => {
            let _urgent = Urgent::new(&inner.journal);
            // Only what is durable in the journal is flushed, so all that was appended before must get there.
            inner.journal.durable(inner.journal.ticket()).await?;
            inner.journal.filled_through()
        }
    };
    let choice = match scope {
        Scope::Filled(serial) => Choice::InFiles(serial),
        Scope::Records => Choice::Unrecorded,
        Scope::Everything | Scope::Deletions => Choice::All(freed),
    };
    let carry_budget = inner.settings.journal.file_bytes / CHECKPOINT_CARRY_DIVISOR;
    let work = plan(&inner.core.borrow(), choice, carry_budget);
    let now = inner.io.monotonic_now();
    let schedule = match scope {
        Scope::Filled(_) => Schedule::spread(now, inner.flush.fill_time(), work.bytes),
        // Records come with bypass, beside which journal files fill slowly: spread over that time they would come too late.
        Scope::Records | Scope::Everything | Scope::Deletions => Schedule::at_once(now),
    };
    let cut = if scope == Scope::Everything { inner.carry_out_all_cuts().await } else { Vec::new() };
    let outcome = carry_out(inner, work.jobs, schedule).await;
    let _urgent = Urgent::new(&inner.journal);
    if matches!(scope, Scope::Everything | Scope::Records) {
        let synced: BTreeSet<LogId> =
            outcome.clean.iter().chain(&outcome.recorded).chain(&cut).copied().collect();
        say_all_synced(inner, synced.into_iter()).await?;
    }
    if freed.is_some()
        && let Err(error) = inner.file_system.check(&inner.io).await
    {
        // Nobody knows what it lost, and the journal is the only other place: none of it is given up any more.
        let reason = PoisonReason::FileSystem { error: error.to_string() };
        inner.journal.poison_for(reason.clone());
        return Err(reason.into());
    }
    let carried = match freed {
        // Copies would take space that is not there: the files stay as they are until there is some.
        Some(_) if inner.space.is_write_refused() && !outcome.kept.is_empty() => Carried::default(),
        Some(serial) => cover(inner, serial, &work.due).await?,
        None => Carried::default(),
    };
    let mut core = inner.core.borrow_mut();
    let left = if scope == Scope::Records { u64::MAX } else { core.unrecorded_bytes_left };
    core.unrecorded_bytes_left = left.min(core.unrecorded_bytes);
    core.counters.checkpoints += u64::from(scope != Scope::Records);
    if carried.entries > 0 {
        ringlog_io::reached!("checkpoint.carried");
    }
    core.counters.carried_entries += carried.entries;
    core.counters.carried_bytes += carried.bytes;
    core.dirty_bytes_stuck = outcome.kept.iter().filter_map(|id| core.log(*id)).map(Log::dirty_bytes).sum();
    Ok(CheckpointReport {
        logs_flushed: outcome.clean.len() as u64,
        logs_kept: outcome.kept.len() as u64,
        bytes: outcome.bytes,
        carried_entries: carried.entries,
        carried_bytes: carried.bytes,
    })
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
