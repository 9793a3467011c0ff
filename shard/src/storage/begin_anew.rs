//! A log that begins anew: a follower that cannot be made equal to its leader by appends drops all that it has and goes on at the
//! leader's start (Kafka's `truncateFullyAndStartAt`). That may lie within one of the leader's batches: the new log takes it
//! whole as its first one, and starts within it.
//!
//! Owns what goes into the journal and what memory then is; the order is that of truncation. A *begin* entry states it all:
//! no record, no segment, the log's start and end at one offset. The old files go once it is durable, before anything that was
//! appended since is written, and only then may a synced-to cover it. It is one entry, so a crash leaves the old log or the
//! new one. A log start entry follows it, which is what the journal carries on once the begin entry is covered.

use ringlog_protocol::ids::Offset;

use super::core_storage::{CoreStorage, Inner, StorageError};
use super::cuts::Cut;
use super::log::LogId;
use super::truncate::{CutPlace, TruncateError};
use crate::journal::NoteKind;
use crate::journal::entry::EntryBody;

impl CoreStorage {
    /// Drops everything and lets the log start and end at `start`, which is at or behind its start. Returns the sequence of
    /// the entry whose durability the listener hears of; until then a crash brings the old log back. Appends may follow at once, to a
    /// new segment of that name; what is appended before this returns is dropped too. The log's durable end rises to `start`
    /// no earlier than the entry is durable.
    ///
    /// Leader epochs are gone, and the producers that the caller knows of this log must be forgotten. The listener also hears of
    /// a log start entry, which follows.
    ///
    /// # Errors
    /// [`TruncateError::BelowLogStart`], [`TruncateError::Storage`]: the log is as it was.
    pub async fn begin_anew(&self, id: LogId, start: Offset) -> Result<u64, TruncateError> {
        let inner = self.inner();
        let _lock = inner.lock_to_cut(id).await;
        inner.check_beginning(id, start)?;
        let sequence = inner.apply_beginning(id, start);
        inner.cut_in_background(id);
        Ok(sequence)
    }
}

impl Inner {
    fn check_beginning(&self, id: LogId, start: Offset) -> Result<(), TruncateError> {
        let core = self.core.borrow();
        let log = core.log(id).ok_or(StorageError::UnknownLog)?;
        if let Some(reason) = log.poison.clone().or_else(|| self.journal.poison()) {
            return Err(StorageError::Poisoned(reason).into());
        }
        let log_start = log.log_start;
        if start < log_start {
            return Err(TruncateError::BelowLogStart { to: start, log_start });
        }
        Ok(())
    }

    /// Journals the beginning and makes memory follow. The log's segments are locked, and no reference is on its way: so the
    /// entries go to the journal in this turn, before any synced-to that speaks of the new log.
    fn apply_beginning(&self, id: LogId, start: Offset) -> u64 {
        ringlog_io::reached!("begin_anew.applied");
        let mut guard = self.core.borrow_mut();
        let core = &mut *guard;
        core.log_mut(id).expect("the caller looked at it in this turn").log_start = start;
        let removed = core.cut_memory(id, &CutPlace::emptied(start));
        let log = core.log_mut(id).expect("the caller looked at it in this turn");
        log.epochs.clear();
        log.record.note_begun();
        let sequence = log.take_sequence();
        self.enter(log, sequence, EntryBody::Begin { start }, NoteKind::Begin { start });
        if !self.is_ephemeral {
            log.cuts.push(Cut {
                sequence,
                end: start,
                is_beginning: true,
                segment_base: start,
                position: 0,
                is_durable: false,
                last: None,
                removed,
            });
        }
        // A sequence of its own: a copy of it must not pass for the begin entry's.
        let start_sequence = log.take_sequence();
        log.starts.push(start_sequence, start);
        self.enter(log, start_sequence, EntryBody::LogStart { offset: start }, NoteKind::LogStart);
        log.log_start_sequence = Some(start_sequence);
        log.validate();
        self.damage.forget(log.key, Offset(i64::MAX));
        sequence
    }
}
