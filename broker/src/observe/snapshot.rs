//! Owns how a shard shows its state to the side thread: a slot with one writer that never waits. The side thread never
//! touches what a shard works with.

use std::sync::{Arc, Mutex, TryLockError};

use ringlog_shard::store::compact::CompactionFigures;

use super::flight::FlightEvent;
use super::histogram::Log2Histogram;
use super::metrics::ShardMetrics;
use super::slow::SlowRequest;
use super::timelines::Timelines;
use crate::group::Cause;
use crate::group::lag::LagReport;

/// All that a shard shows of itself at one moment: plain data, but for the timelines.
#[derive(Debug, Clone, Default)]
pub struct ShardSnapshot {
    pub shard: u32,
    /// Milliseconds since the Unix epoch.
    pub published_at_ms: i64,
    /// Monotonic nanoseconds, on the clock of requests and events.
    pub published_at_ns: u64,
    pub metrics: ShardMetrics,
    pub gauges: ShardGauges,
    pub io: IoFigures,
    pub storage: StorageFigures,
    pub groups: GroupFigures,
    /// The last rebalances of the shard's groups, as they are now.
    pub timelines: Timelines,
    /// How far the shard's groups are behind, at the last look; `None` before the first.
    pub lags: Option<Arc<LagReport>>,
    /// Why the shard serves only part of what it should; empty in health.
    pub ailments: Vec<String>,
    /// Slowest first.
    pub slow: Vec<SlowRequest>,
    /// Oldest first.
    pub flight: Vec<FlightEvent>,
}

/// What a shard holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ShardGauges {
    pub connections: u64,
    /// Partitions that this core owns.
    pub partitions: u64,
    /// Requests received and not answered.
    pub requests_in_flight: u64,
    /// Fetches that wait for bytes.
    pub fetches_waiting: u64,
    /// Waits of fetches over several cores: those of this core's consumers and those kept for other cores.
    pub fetch_watches: u64,
    /// Fetch sessions of this core's clients, and the partitions in them.
    pub fetch_sessions: u64,
    pub fetch_session_partitions: u64,
    /// Sessions that have partitions on this core.
    pub fetch_session_parts: u64,
    /// Sessions that made room for others, since the start.
    pub fetch_sessions_evicted: u64,
    /// Bytes allocated for receiving, of the budget below.
    pub receive_bytes: u64,
    /// Bytes of log tails that unsent replies keep allocated.
    pub egress_pinned_bytes: u64,
    /// What this shard may allocate in all.
    pub memory_budget_bytes: u64,
}

/// What the driver of this core counts, copied from `ringlog_io::DriverStats`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IoFigures {
    pub busy_ns: u64,
    pub sleep_ns: u64,
    pub submitted: u64,
    pub completed: u64,
    pub in_flight: u64,
    pub syscalls: u64,
    pub spins: u64,
    pub sleeps: u64,
    pub runnable: u64,
}

/// What the storage of this core counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StorageFigures {
    pub journal_frames: u64,
    pub journal_bytes: u64,
    /// From an append to its frame durable.
    pub commit_latency: Log2Histogram,
    pub checkpoints: u64,
    /// Log bytes kept in memory.
    pub tail_bytes: u64,
    /// Journalled and not yet synced in a segment.
    pub dirty_bytes: u64,
    /// Written by a checkpoint and not yet synced.
    pub unsynced_bytes: u64,
    /// How long the oldest record that is in no segment has waited.
    pub checkpoint_lag_ms: u64,
    /// Copied into newer journal files.
    pub carried_bytes: u64,
    pub open_files: u64,
    /// Bytes of batches appended.
    pub appended_bytes: u64,
    /// Of them, those that the journal holds by reference.
    pub bypass_bytes: u64,
    /// Bytes that checkpoints and direct writes put into segments.
    pub segment_bytes: u64,
    /// Segments written anew because a sync failed.
    pub segments_rewritten: u64,
    /// Logs that take no more writes because of that.
    pub logs_poisoned: u64,
    /// Free bytes of the data directory's file system, as this core saw them last.
    pub space_free_bytes: u64,
    pub space_reserve_bytes: u64,
    /// 0 = ample, 1 = low, 2 = producers are slowed down, 3 = they are refused.
    pub space_level: u64,
    /// Segments removed below a log's start.
    pub segments_removed: u64,
    /// Segments whose newest timestamp lies over an hour in the future.
    pub segments_in_future: u64,
    /// Places of segments found damaged.
    pub damaged_places: u64,
    pub read_errors: u64,
    pub scrubbed_bytes: u64,
    pub scrub_errors: u64,
    /// Since the last full pass; 0 before the first one.
    pub scrub_age_seconds: u64,
    /// 1 once a failed journal write stopped this core's writes.
    pub poisoned: bool,
    pub compaction: CompactionFigures,
}

/// What the consumer groups of this core come to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GroupFigures {
    pub empty: u64,
    pub preparing: u64,
    pub completing: u64,
    /// Of KIP-848.
    pub assigning: u64,
    /// Of KIP-848.
    pub reconciling: u64,
    pub stable: u64,
    pub dead: u64,
    /// Of all groups.
    pub members: u64,
    /// Memory of groups and offsets, estimated.
    pub bytes: u64,
    /// Calls of this core's connections, and of others at this core's machines, that wait for their answer.
    pub calls_waiting: u64,
    pub offsets_committed: u64,
    /// Offsets and groups that nobody needed any more.
    pub records_expired: u64,
    pub loads: u64,
    pub loads_failed: u64,
    pub load_ns: u64,
    /// That ended, by what began them: in the order of [`Cause::ALL`].
    pub rebalances: [u64; Cause::ALL.len()],
    /// From what began them to their end, added up.
    pub rebalance_ns: u64,
}

impl GroupFigures {
    pub fn rebalances(&self, cause: Cause) -> u64 {
        self.rebalances[cause as usize]
    }
}

/// The side of the shard. Clones write the same slot; only one shard publishes in it.
#[derive(Debug, Clone)]
pub struct SnapshotPublisher(Arc<Mutex<Arc<ShardSnapshot>>>);

/// The side of the readers.
#[derive(Debug, Clone)]
pub struct SnapshotSlot(Arc<Mutex<Arc<ShardSnapshot>>>);

/// A slot that shows an empty snapshot of `shard` until the first is published.
pub fn slot(shard: u32) -> (SnapshotPublisher, SnapshotSlot) {
    let first = ShardSnapshot { shard, ..ShardSnapshot::default() };
    let cell = Arc::new(Mutex::new(Arc::new(first)));
    (SnapshotPublisher(Arc::clone(&cell)), SnapshotSlot(cell))
}

impl SnapshotPublisher {
    /// Shows `snapshot` from now on. False when a reader held the slot at this very moment: the next tick shows more.
    pub fn publish(&self, snapshot: ShardSnapshot) -> bool {
        let snapshot = Arc::new(snapshot);
        let previous = match self.0.try_lock() {
            Ok(mut slot) => std::mem::replace(&mut *slot, snapshot),
            Err(TryLockError::WouldBlock) => return false,
            // A reader's panic cannot leave half a pointer behind.
            Err(TryLockError::Poisoned(poisoned)) => std::mem::replace(&mut *poisoned.into_inner(), snapshot),
        };
        drop(previous);
        true
    }
}

impl SnapshotSlot {
    /// The last one published. Holds the lock for the copy of one pointer.
    pub fn read(&self) -> Arc<ShardSnapshot> {
        let slot = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Arc::clone(&slot)
    }

    /// For the panic hook: never waits, since the thread that failed may hold the lock.
    pub fn try_read(&self) -> Option<Arc<ShardSnapshot>> {
        self.0.try_lock().ok().map(|slot| Arc::clone(&slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_the_last_snapshot_and_never_stop_the_writer() {
        let (publisher, slot) = slot(2);
        assert_eq!((slot.read().shard, slot.read().published_at_ms), (2, 0));
        let publish = |at_ms| {
            publisher.publish(ShardSnapshot { shard: 2, published_at_ms: at_ms, ..Default::default() })
        };
        assert!(publish(5));
        let held = slot.read();
        assert!(publish(6));
        assert_eq!((held.published_at_ms, slot.read().published_at_ms), (5, 6));
        let guard = slot.0.lock().expect("nobody panicked");
        assert!(!publish(7));
        drop(guard);
        assert_eq!(slot.read().published_at_ms, 6);
    }
}
