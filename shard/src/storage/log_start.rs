//! The start of a log on its way up: moved at once in memory, spoken of to others once the journal holds it.
//!
//! Owns which starts are durable and the wait for one. It removes nothing: `deletion` does, and only below a durable start.

use std::collections::VecDeque;

use ringlog_protocol::ids::Offset;

use super::core_storage::{CoreStorage, StorageError};
use super::log::{EpochStart, Log, LogId};
use crate::journal::NoteKind;
use crate::journal::entry::EntryBody;

/// Starts of one log that the journal was given.
///
/// Invariant: sequences and offsets ascend; `durable` is at most the first of them.
#[derive(Debug, Default)]
pub(crate) struct LogStarts {
    durable: Offset,
    pending: VecDeque<(u64, Offset)>,
    /// The lowest one that no restart will find: the log took no more writes before the journal was given it.
    lost: Option<Offset>,
}

impl LogStarts {
    pub(crate) fn at(durable: Offset) -> LogStarts {
        LogStarts { durable, ..LogStarts::default() }
    }

    pub(super) fn push(&mut self, sequence: u64, offset: Offset) {
        self.pending.push_back((sequence, offset));
    }

    /// The journal holds the entry of this sequence, and so all before it.
    pub(crate) fn note_durable(&mut self, sequence: u64) {
        while let Some((_, offset)) = self.pending.front().filter(|(pending, _)| *pending <= sequence) {
            self.durable = self.durable.max(*offset);
            self.pending.pop_front();
        }
    }

    /// The journal will never be given the entries from this sequence on that it has not got.
    pub(super) fn lose_from(&mut self, sequence: u64) {
        let kept = self.pending.partition_point(|(pending, _)| *pending < sequence);
        self.lost = self.pending.drain(kept..).map(|(_, offset)| offset).next().or(self.lost);
    }

    fn is_lost(&self, offset: Offset) -> bool {
        self.lost.is_some_and(|lost| lost <= offset) && self.durable < offset
    }

    /// No restart will find a start below this.
    pub(crate) fn durable(&self) -> Offset {
        self.durable
    }
}

impl CoreStorage {
    /// Moves the log's start up to `offset`; the listener hears when that is durable, and
    /// [`CoreStorage::log_start_durable`] waits for it. Then the segments wholly below it go.
    ///
    /// # Errors
    /// [`StorageError::UnknownLog`].
    ///
    /// # Panics
    /// When `offset` is beyond the log's end. An offset below the start is the caller's to refuse; it changes nothing here.
    pub fn advance_log_start(&self, id: LogId, offset: Offset) -> Result<u64, StorageError> {
        let inner = self.inner();
        let mut core = inner.core.borrow_mut();
        let log = core.log_mut(id).ok_or(StorageError::UnknownLog)?;
        log.log_start = log.log_start.max(offset);
        log.validate();
        log.forget_epochs_below_start();
        let sequence = log.take_sequence();
        log.starts.push(sequence, log.log_start);
        if let Some(acknowledged) = &mut log.acknowledged {
            acknowledged.log_start = acknowledged.log_start.max(offset);
        }
        ringlog_io::reached!("log_start.advanced");
        let body = EntryBody::LogStart { offset: log.journalled_start() };
        inner.enter(log, sequence, body, NoteKind::LogStart);
        log.log_start_sequence = Some(sequence);
        Ok(sequence)
    }

    /// Waits until no restart can find the log starting below `offset`.
    ///
    /// # Errors
    /// [`StorageError::UnknownLog`] when it was deleted meanwhile; [`StorageError::Poisoned`]: it will never be durable.
    pub async fn log_start_durable(&self, id: LogId, offset: Offset) -> Result<(), StorageError> {
        let inner = self.inner();
        inner
            .life
            .until(|| {
                let core = inner.core.borrow();
                let log = core.log(id);
                let durable = log.map(|log| log.starts.durable());
                let lost_by = log.filter(|log| log.starts.is_lost(offset)).and_then(|log| log.poison.clone());
                match (durable, lost_by.or_else(|| inner.journal.poison())) {
                    (None, _) => Some(Err(StorageError::UnknownLog)),
                    (Some(durable), _) if durable >= offset => Some(Ok(())),
                    (Some(_), Some(reason)) => Some(Err(StorageError::Poisoned(reason))),
                    (Some(_), None) => None,
                }
            })
            .await
    }
}

impl Log {
    /// Epochs that end at or below the start go; the one in which the start lies begins there (Kafka's
    /// `LeaderEpochFileCache.truncateFromStartAsyncFlush`).
    pub(super) fn forget_epochs_below_start(&mut self) {
        let after = self.epochs.partition_point(|epoch| epoch.start <= self.log_start);
        let Some(last) = after.checked_sub(1) else { return };
        let epoch = self.epochs[last].epoch;
        self.epochs.drain(..after);
        self.epochs.insert(0, EpochStart { epoch, start: self.log_start });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_durable_with_its_entry_and_those_before_it() {
        let mut starts = LogStarts::at(Offset(3));
        starts.push(7, Offset(10));
        starts.push(9, Offset(20));
        starts.push(12, Offset(21));
        starts.note_durable(6);
        assert_eq!(starts.durable(), Offset(3));
        starts.note_durable(9);
        assert_eq!(starts.durable(), Offset(20));
        starts.note_durable(12);
        assert_eq!(starts.durable(), Offset(21));
    }

    #[test]
    fn what_the_journal_never_gets_is_lost_and_nothing_else() {
        let mut starts = LogStarts::at(Offset(3));
        for (sequence, offset) in [(7, 10), (9, 20), (12, 30)] {
            starts.push(sequence, Offset(offset));
        }
        starts.lose_from(8);
        assert!(starts.is_lost(Offset(20)) && starts.is_lost(Offset(30)));
        assert!(!starts.is_lost(Offset(10)), "on its way");
        starts.note_durable(7);
        assert_eq!(starts.durable(), Offset(10));
        starts.push(14, Offset(40));
        starts.note_durable(14);
        assert!(!starts.is_lost(Offset(30)), "a later one covers it");
    }
}
