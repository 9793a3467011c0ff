//! Compaction in the background, one core's partitions one after the other: which is next, how far, with how much memory and how
//! fast. What one compaction does is `storage::compaction`'s.
//!
//! Every replica compacts its own log: offsets and epochs stay as they are, so logs that were compacted differently are still
//! the same log. One that fails waits, each time twice as long, and the others go on.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use ringlog_io::Monotonic;
use ringlog_protocol::ids::{Offset, TopicPartition};

use super::life::Clocks;
use super::{Inner, Store};
use crate::limits::{
    COMPACTION_PARTITIONS_AT_ONCE, COMPACTION_PAUSE_MIN, COMPACTION_RETRY_MAX, RETENTION_CLOCK_JUMP_MS_MAX,
};
use crate::storage::LogId;
use crate::storage::compaction::choice::{WHOLE, next_of, prospect};
use crate::storage::compaction::{
    CompactionError, CompactionOrder, CompactionReport, CompactionSettings, Prospect,
};

/// How a core compacts; Kafka's `log.cleaner.*`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompactorSettings {
    pub is_enabled: bool,
    /// Memory of the map of keys, bytes: a log with more keys takes several passes.
    pub map_bytes: usize,
    /// Read and written, per second; 0 = as fast as it goes.
    pub bytes_per_second: u64,
    /// Between two looks when there was nothing to do, and before a partition that failed is tried again.
    pub backoff: Duration,
}

impl Default for CompactorSettings {
    /// Kafka's, for a node of one core.
    fn default() -> Self {
        CompactorSettings {
            is_enabled: true,
            map_bytes: 128 << 20,
            bytes_per_second: 0,
            backoff: Duration::from_secs(15),
        }
    }
}

/// What compaction did since the start, and what it saw last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompactionFigures {
    /// Compactions that moved on.
    pub runs: u64,
    pub failures: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
    /// Of the segments that were compacted, before and after.
    pub bytes_before: u64,
    pub bytes_after: u64,
    pub records_dropped: u64,
    /// Partitions that wait for another try.
    pub put_off: u64,
    /// Of the log of which the largest part was never compacted: that part, in millionths.
    pub dirtiest_millionths: u32,
}

/// A core's compactor between two turns.
#[derive(Default)]
pub(crate) struct Compactor {
    settings: Cell<CompactorSettings>,
    /// The running compaction looks at it.
    bytes_per_second: Rc<Cell<u64>>,
    figures: Cell<CompactionFigures>,
    put_off: RefCell<BTreeMap<TopicPartition, PutOff>>,
    /// Partitions whose keys did not fit: whatever the ratio, the rest is due.
    unfinished: RefCell<BTreeSet<TopicPartition>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct PutOff {
    attempts: u32,
    /// None = not again before the next start.
    until: Option<Monotonic>,
}

/// A partition that may be compacted.
struct Candidate {
    key: TopicPartition,
    log: LogId,
    prospect: Prospect,
    settings: CompactionSettings,
}

impl Store {
    /// Lets the core compact by other settings from now on; a compaction that runs takes the new rate only.
    pub fn set_compactor(&self, settings: CompactorSettings) {
        let compactor = &self.inner.compactor;
        compactor.settings.set(settings);
        compactor.bytes_per_second.set(settings.bytes_per_second);
    }

    pub fn compaction_figures(&self) -> CompactionFigures {
        self.inner.compactor.figures.get()
    }

    /// Compacts one partition after the other for as long as it is polled; meant for the background. Where records are in memory
    /// only there are no segments to compact.
    pub async fn keep_compacting(&self) {
        if self.inner.storage.is_ephemeral() {
            return;
        }
        let io = self.inner.io.clone();
        let mut clocks = Clocks::now(&io);
        loop {
            self.pause().await;
            while self.inner.compactor.settings.get().is_enabled {
                let jump_ms = clocks.jump_ms(&io);
                if jump_ms > RETENTION_CLOCK_JUMP_MS_MAX {
                    // Whoever set it wrong may set it right again: tombstones that went would be gone.
                    tracing::warn!(jump_ms, "the wall clock jumped ahead; compaction waits");
                    break;
                }
                if !self.compact_next().await {
                    break;
                }
            }
        }
    }

    /// Compacts the partition that needs it most, if one does.
    pub async fn compact_next(&self) -> bool {
        let Some(candidate) = self.inner.dirtiest().await else { return false };
        let Candidate { key, prospect, .. } = candidate;
        let (topic_id, partition) = (key.topic, key.partition.0);
        let started = self.inner.io.monotonic_now();
        let result = self.inner.compact(&candidate).await;
        let compactor = &self.inner.compactor;
        match result {
            Ok((before, report)) if report.first_dirty > before => {
                compactor.done(key, &report, report.first_dirty < prospect.until);
                let ms = self.inner.io.monotonic_now().saturating_since(started).as_millis();
                tracing::debug!(%topic_id, partition, ?report, ms, "compacted");
            }
            // It begins with a batch of a transaction, or is not whole in its files yet.
            Ok(_) | Err(CompactionError::Changed) => compactor.put_off(&self.inner, key, false),
            Err(error) => {
                compactor.put_off(&self.inner, key, matches!(error, CompactionError::HalfDone { .. }));
                let mut figures = compactor.figures.get();
                figures.failures += 1;
                compactor.figures.set(figures);
                ringlog_io::reached!("compaction.failed");
                tracing::warn!(%topic_id, partition, %error, "not compacted; the log serves on, and the others are compacted");
            }
        }
        true
    }

    /// As long as is set, also when that changes meanwhile.
    async fn pause(&self) {
        let io = &self.inner.io;
        let began = io.monotonic_now();
        loop {
            let backoff = self.inner.compactor.settings.get().backoff.max(COMPACTION_PAUSE_MIN);
            let left = backoff.saturating_sub(io.monotonic_now().saturating_since(began));
            if left.is_zero() {
                return;
            }
            io.sleep(left.min(Duration::from_secs(1))).await;
        }
    }
}

impl Compactor {
    fn done(&self, key: TopicPartition, report: &CompactionReport, is_unfinished: bool) {
        self.put_off.borrow_mut().remove(&key);
        let mut unfinished = self.unfinished.borrow_mut();
        match is_unfinished {
            true => drop(unfinished.insert(key)),
            false => drop(unfinished.remove(&key)),
        }
        let mut figures = self.figures.get();
        figures.runs += 1;
        figures.bytes_read += report.bytes_read;
        figures.bytes_written += report.bytes_written;
        figures.bytes_before += report.bytes_before;
        figures.bytes_after += report.bytes_after;
        figures.records_dropped += report.records_dropped;
        self.figures.set(figures);
    }

    /// Others first. `is_final`: what it needs is a start of the broker.
    fn put_off(&self, inner: &Inner, key: TopicPartition, is_final: bool) {
        self.unfinished.borrow_mut().remove(&key);
        let mut all = self.put_off.borrow_mut();
        let entry = all.entry(key).or_default();
        let doubled = 1_u32.checked_shl(entry.attempts).unwrap_or(u32::MAX);
        let wait = self.settings.get().backoff.max(COMPACTION_PAUSE_MIN).saturating_mul(doubled);
        entry.attempts = entry.attempts.saturating_add(1);
        entry.until = (!is_final).then(|| inner.io.monotonic_now() + wait.min(COMPACTION_RETRY_MAX));
    }

    fn is_put_off(&self, key: TopicPartition, now: Monotonic) -> bool {
        let all = self.put_off.borrow();
        all.get(&key).is_some_and(|put_off| put_off.until.is_none_or(|until| until > now))
    }
}

impl Inner {
    /// The partition to compact next. Others run between slices of the walk.
    async fn dirtiest(&self) -> Option<Candidate> {
        let (mut due, mut dirtiest, mut seen) = (Vec::new(), 0, BTreeSet::new());
        let keys = self.keys_in_order();
        for slice in keys.chunks(COMPACTION_PARTITIONS_AT_ONCE) {
            let now_ms = self.io.wall_now_ms();
            for key in slice {
                let Some(candidate) = self.candidate(*key, now_ms) else { continue };
                dirtiest = dirtiest.max(candidate.prospect.dirty_millionths());
                seen.insert(*key);
                if !self.compactor.is_put_off(*key, self.io.monotonic_now()) {
                    due.push(candidate);
                }
            }
            self.io.yield_now().await;
        }
        let compactor = &self.compactor;
        // What is deleted, or not to be compacted any more, is forgotten.
        compactor.put_off.borrow_mut().retain(|key, _| seen.contains(key));
        compactor.unfinished.borrow_mut().retain(|key| seen.contains(key));
        let mut figures = compactor.figures.get();
        figures.put_off = compactor.put_off.borrow().len() as u64;
        figures.dirtiest_millionths = dirtiest.min(WHOLE);
        compactor.figures.set(figures);
        let pairs: Vec<_> = due.iter().map(|found| (found.prospect, found.settings)).collect();
        next_of(&pairs).map(|index| due.swap_remove(index))
    }

    fn candidate(&self, key: TopicPartition, now_ms: i64) -> Option<Candidate> {
        let table = self.table.borrow();
        let partition = table.get(key).ok().filter(|partition| !partition.is_changing())?;
        let log = self.storage.log(partition.log);
        let settings = log.settings.compaction?;
        let (segments, first_dirty) = log.compaction_facts();
        let mut prospect = prospect(&segments, first_dirty, partition.high_watermark(), &settings, now_ms);
        prospect.is_overdue |= self.compactor.unfinished.borrow().contains(&key);
        Some(Candidate { key, log: partition.log, prospect, settings })
    }

    /// Returns from where on the log had not been compacted, and what was done.
    async fn compact(&self, candidate: &Candidate) -> Result<(Offset, CompactionReport), CompactionError> {
        let Candidate { key, log, prospect, settings } = *candidate;
        let until = prospect.until;
        if !self.look_at(key, log)?.is_synced_beyond(until) {
            self.storage.flush_closed(log).await;
        }
        let first_dirty = self.look_at(key, log)?.compaction_facts().1;
        let producers = {
            let table = self.table.borrow();
            let partition = table.get(key).map_err(|_| CompactionError::Changed)?;
            partition.producer_ends(self.io.wall_now_ms())
        };
        let order = CompactionOrder {
            until,
            delete_retention_ms: settings.delete_retention_ms,
            producers,
            map_bytes: self.compactor.settings.get().map_bytes,
            bytes_per_second: Rc::clone(&self.compactor.bytes_per_second),
        };
        Ok((first_dirty, self.storage.compact(log, &order).await?))
    }

    /// The log, if it is still the partition's.
    fn look_at(
        &self,
        key: TopicPartition,
        log: LogId,
    ) -> Result<std::cell::Ref<'_, crate::storage::Log>, CompactionError> {
        let table = self.table.borrow();
        match table.get(key) {
            Ok(partition) if partition.log == log => Ok(self.storage.log(log)),
            _ => Err(CompactionError::Changed),
        }
    }
}
