//! What shortens a partition at its front: DeleteRecords and retention. The group hears of it, the journal holds it, and only
//! then the files go.

use std::time::Duration;

use ringlog_io::{Io, Monotonic};
use ringlog_protocol::ids::{Offset, TopicPartition};

use super::{Store, ViewError};
use crate::limits::{RETENTION_CLOCK_JUMP_MS_MAX, RETENTION_PARTITIONS_AT_ONCE};
use crate::partition::Partition;
use crate::storage::{LogId, LogSettings, StorageError};

/// What one walk of retention did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RetentionReport {
    /// Partitions whose start moved up.
    pub shortened: u64,
    /// Segments whose newest timestamp lies further in the future than a clock may be wrong.
    pub segments_in_future: u64,
}

/// A log start that is on its way to be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedStart {
    log: LogId,
    /// The first offset that is left.
    pub log_start: Offset,
}

/// Why records are not deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeleteRecordsError {
    #[error(transparent)]
    View(#[from] ViewError),
    #[error("offset {offset} is not between 0 and the high watermark {high_watermark}")]
    OutOfRange { offset: Offset, high_watermark: Offset },
    #[error("the log takes no changes until the broker is restarted: {reason}")]
    Poisoned { reason: String },
}

/// Both clocks at one moment: what the wall clock gained since on the other one was set by somebody.
pub(super) struct Clocks {
    monotonic: Monotonic,
    wall_ms: i64,
}

impl Clocks {
    pub(super) fn now(io: &Io) -> Clocks {
        Clocks { monotonic: io.monotonic_now(), wall_ms: io.wall_now_ms() }
    }

    /// What the wall clock gained since the last look, in milliseconds.
    pub(super) fn jump_ms(&mut self, io: &Io) -> i64 {
        let before = std::mem::replace(self, Clocks::now(io));
        let passed = self.monotonic.saturating_since(before.monotonic).as_millis();
        let passed_ms = i64::try_from(passed).unwrap_or(i64::MAX);
        self.wall_ms.saturating_sub(before.wall_ms).saturating_sub(passed_ms)
    }
}

impl Store {
    /// Lets the records below `before` go, or with `None` all committed ones. An offset below the log's start changes
    /// nothing. The records are gone for readers at once; [`Store::start_durable`] says when they are for good.
    ///
    /// # Errors
    /// See [`DeleteRecordsError`]; the partition is as before.
    pub fn delete_records(
        &self,
        key: TopicPartition,
        before: Option<Offset>,
    ) -> Result<MovedStart, DeleteRecordsError> {
        let (high_watermark, is_poisoned) = {
            let table = self.inner.table.borrow();
            let partition = table.get(key)?;
            if partition.leader_epoch().is_none() && !partition.is_poisoned() {
                return Err(ViewError::NotLeader.into());
            }
            (partition.high_watermark(), partition.is_poisoned())
        };
        let offset = before.unwrap_or(high_watermark);
        if is_poisoned {
            return Err(DeleteRecordsError::Poisoned { reason: "a write failed".to_owned() });
        }
        if offset.0 < 0 || offset > high_watermark {
            return Err(DeleteRecordsError::OutOfRange { offset, high_watermark });
        }
        Ok(self.inner.move_start(key, offset)?)
    }

    /// Waits until the start is durable, and with it everything that this core was asked before.
    ///
    /// # Errors
    /// [`StorageError`]: the partition was deleted, or this core takes no more writes.
    pub async fn start_durable(&self, moved: MovedStart) -> Result<(), StorageError> {
        self.inner.storage.log_start_durable(moved.log, moved.log_start).await
    }

    /// Lets the partition work by other settings from now on.
    ///
    /// # Errors
    /// [`ViewError`]: it is not open here.
    pub fn set_log_settings(&self, key: TopicPartition, settings: LogSettings) -> Result<(), ViewError> {
        let table = self.inner.table.borrow();
        let log = table.get(key)?.log;
        self.inner.storage.set_log_settings(log, settings).map_err(|_| ViewError::UnknownPartition)
    }

    /// Walks all partitions again and again, one `period` after the other, and lets go what their settings do not keep. Runs
    /// for as long as it is polled; meant for the background.
    pub async fn keep_retention(&self, period: Duration) {
        let io = self.inner.io.clone();
        let mut clocks = Clocks::now(&io);
        loop {
            io.sleep(period).await;
            let jump_ms = clocks.jump_ms(&io);
            if jump_ms > RETENTION_CLOCK_JUMP_MS_MAX {
                // Whoever set it wrong may set it right again: what went would be gone.
                tracing::warn!(
                    jump_ms,
                    period_ms = period.as_millis(),
                    "the wall clock jumped ahead; retention waits one period"
                );
                continue;
            }
            let report = self.retain().await;
            if report != RetentionReport::default() {
                tracing::info!(?report, "retention");
            }
        }
    }

    /// Lets go what the settings of each partition do not keep. Others run between slices of the walk.
    pub async fn retain(&self) -> RetentionReport {
        let mut report = RetentionReport::default();
        let keys = self.inner.keys_in_order();
        for slice in keys.chunks(RETENTION_PARTITIONS_AT_ONCE) {
            for key in slice {
                self.inner.retain_one(*key, &mut report);
            }
            self.inner.io.yield_now().await;
        }
        self.inner.storage.note_segments_in_future(report.segments_in_future);
        report
    }
}

impl super::Inner {
    pub(super) fn keys_in_order(&self) -> Vec<TopicPartition> {
        let table = self.table.borrow();
        let mut keys: Vec<TopicPartition> = table.slots.iter().map(|(_, partition)| partition.key).collect();
        keys.sort_unstable();
        keys
    }

    fn retain_one(&self, key: TopicPartition, report: &mut RetentionReport) {
        let now_ms = self.io.wall_now_ms();
        let start = {
            let table = self.table.borrow();
            // It may be gone since the walk began.
            let Ok(partition) = table.get(key) else { return };
            if partition.leader_epoch().is_none() {
                return;
            }
            let log = self.storage.log(partition.log);
            let in_future = log.segments_in_future(now_ms);
            report.segments_in_future += in_future;
            log.retention_start(partition.high_watermark(), now_ms)
        };
        let Some(start) = start else { return };
        if self.move_start(key, start).is_ok() {
            report.shortened += 1;
            let (topic_id, partition) = (key.topic, key.partition.0);
            tracing::debug!(%topic_id, partition, log_start = start.0, "retention moved the log's start");
        }
    }

    /// Moves the start up to `offset`, which is at most the high watermark; not back.
    pub(super) fn move_start(&self, key: TopicPartition, offset: Offset) -> Result<MovedStart, ViewError> {
        let move_up = |partition: &mut Partition, effects: &mut _, carrier: &mut super::Carrier<'_>| {
            if offset > partition.log_start() {
                partition.move_log_start(offset, effects, carrier);
            }
            MovedStart { log: partition.log, log_start: partition.log_start() }
        };
        self.with_partition(key, move_up)
    }
}
