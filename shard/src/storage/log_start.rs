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
}

impl LogStarts {
    pub(crate) fn at(durable: Offset) -> LogStarts {
        LogStarts { durable, pending: VecDeque::new() }
    }

    fn push(&mut self, sequence: u64, offset: Offset) {
        self.pending.push_back((sequence, offset));
    }

    /// The journal holds the entry of this sequence, and so all before it.
    pub(crate) fn note_durable(&mut self, sequence: u64) {
        while let Some((_, offset)) = self.pending.front().filter(|(pending, _)| *pending <= sequence) {
            self.durable = self.durable.max(*offset);
            self.pending.pop_front();
        }
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
                let durable = inner.core.borrow().log(id).map(|log| log.starts.durable());
                match (durable, inner.journal.poison()) {
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
}
