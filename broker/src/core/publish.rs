//! What a core shows of itself: copies its counters into its snapshot slot on a timer. The side thread reads only that.

use std::rc::Rc;
use std::time::Duration;

use ringlog_shard::journal::LatencyHistogram;
use ringlog_shard::storage::SpaceLevel;

use super::Core;
use crate::observe::histogram::Log2Histogram;
use crate::observe::metrics::{EgressMetrics, PageCacheMetrics};
use crate::observe::observer::Published;
use crate::observe::snapshot::{IoFigures, ShardGauges, StorageFigures};

/// Publishes for as long as the core lives.
pub async fn run(core: Rc<Core>) {
    let period = Duration::from_millis(core.config.observation.metrics_interval_ms);
    loop {
        publish(&core);
        core.io.sleep(period).await;
    }
}

fn publish(core: &Core) {
    let egress = core.egress.counters();
    core.observer.count(|metrics| {
        metrics.sent = EgressMetrics {
            memory_bytes: egress.memory_bytes.get(),
            read_bytes: egress.read_and_send_bytes.get(),
            sendfile_bytes: egress.sendfile_bytes.get(),
            demotions: egress.demotions.get(),
            ..metrics.sent
        };
        metrics.page_cache = PageCacheMetrics {
            hit_bytes: egress.page_cache_hit_bytes.get(),
            miss_bytes: egress.page_cache_miss_bytes.get(),
            unknown_bytes: egress.page_cache_unknown_bytes.get(),
        };
        metrics.mesh.sent = core.mesh.sent_count();
        metrics.mesh.received = core.mesh.received_count();
        metrics.mesh.out_of_credits = core.mesh.out_of_credits_count();
    });
    core.readiness.set_sickness(core.id.0, sickness(core));
    core.observer.publish(Published {
        now_ns: core.io.monotonic_now().as_nanos(),
        now_ms: core.io.wall_now_ms(),
        gauges: gauges(core),
        io: io_figures(core),
        storage: storage_figures(core),
        groups: core.groups().figures(),
        timelines: core.groups().timelines(),
        lags: core.groups().lags(),
        ailments: ailments(core),
    });
}

/// Partitions that are named one by one; the rest is counted.
const PARTITIONS_NAMED_MAX: usize = 10;

/// Why this core serves only part of what it should, for a person to read.
fn ailments(core: &Core) -> Vec<String> {
    let mut ailments = Vec::new();
    if let Some(reason) = core.store.storage().poison() {
        ailments.push(format!("takes no writes until a restart: {reason}"));
    } else {
        let unhealthy = core.store.unhealthy();
        for (key, reason) in unhealthy.iter().take(PARTITIONS_NAMED_MAX) {
            ailments.push(format!("partition {} of topic id {}: {reason}", key.partition.0, key.topic));
        }
        if unhealthy.len() > PARTITIONS_NAMED_MAX {
            ailments.push(format!("and {} more partitions", unhealthy.len() - PARTITIONS_NAMED_MAX));
        }
    }
    let space = core.store.storage().space();
    if space.level > SpaceLevel::Ample {
        ailments.push(format!(
            "disk space is {}: {} bytes are free, {} of them promised, {} are the reserve \
             (ringlog.disk.reserve.bytes)",
            space.level, space.free_bytes, space.unflushed_bytes, space.reserve_bytes
        ));
    }
    ailments
}

/// Why this core serves only part of what it should.
fn sickness(core: &Core) -> Option<String> {
    if let Some(reason) = core.store.storage().poison() {
        return Some(format!("{} takes no writes until a restart: {reason}", core.id));
    }
    let (key, reason) = core.store.unhealthy().into_iter().next()?;
    Some(format!("partition {} of topic id {}: {reason}", key.partition.0, key.topic))
}

fn gauges(core: &Core) -> ShardGauges {
    ShardGauges {
        connections: core.connections.count() as u64,
        partitions: core.store.partition_count() as u64,
        requests_in_flight: core.connections.busy_count() as u64,
        fetches_waiting: core.fetches_waiting.get(),
        fetch_watches: (core.home_watches.count() + core.foreign_watches.count()) as u64,
        fetch_sessions: core.fetch_sessions.borrow().count() as u64,
        fetch_session_partitions: core.fetch_sessions.borrow().partitions() as u64,
        fetch_session_parts: core.session_parts.count() as u64,
        fetch_sessions_evicted: core.fetch_sessions.borrow().evicted(),
        receive_bytes: core.receiving.used_bytes(),
        egress_pinned_bytes: core.egress.pinned_bytes(),
        memory_budget_bytes: core.memory_bytes,
    }
}

fn io_figures(core: &Core) -> IoFigures {
    let stats = core.io.stats();
    IoFigures {
        busy_ns: stats.busy_ns,
        sleep_ns: stats.sleep_ns,
        submitted: stats.submitted,
        completed: stats.completed,
        in_flight: stats.in_flight,
        syscalls: stats.syscalls,
        spins: stats.spins,
        sleeps: stats.sleeps,
        runnable: stats.runnable,
    }
}

fn storage_figures(core: &Core) -> StorageFigures {
    let stats = core.store.storage().stats();
    StorageFigures {
        journal_frames: stats.journal.frames,
        journal_bytes: stats.journal.written_bytes,
        commit_latency: histogram(&stats.journal.write_latency),
        checkpoints: stats.checkpoints,
        tail_bytes: stats.tail_bytes,
        dirty_bytes: stats.dirty_bytes,
        unsynced_bytes: stats.unsynced_bytes,
        checkpoint_lag_ms: u64::try_from(stats.checkpoint_lag.as_millis()).unwrap_or(u64::MAX),
        carried_bytes: stats.carried_bytes,
        open_files: stats.files_open,
        appended_bytes: stats.appended_bytes,
        bypass_bytes: stats.bypass_bytes,
        segment_bytes: stats.checkpoint_bytes,
        segments_rewritten: stats.segments_rewritten,
        logs_poisoned: stats.logs_poisoned,
        segments_removed: stats.segments_removed,
        segments_in_future: stats.segments_in_future,
        damaged_places: stats.damaged_places,
        read_errors: stats.read_errors,
        scrubbed_bytes: stats.scrubbed_bytes,
        scrub_errors: stats.scrub_errors,
        scrub_age_seconds: stats.scrub_age.map_or(0, |age| age.as_secs()),
        space_free_bytes: stats.space.free_bytes,
        space_reserve_bytes: stats.space.reserve_bytes,
        space_level: stats.space.level.number(),
        poisoned: core.store.storage().poison().is_some(),
        compaction: core.store.compaction_figures(),
    }
}

/// The journal's buckets end at each power of two; the shown ones begin with everything up to 2^10 ns.
fn histogram(latencies: &LatencyHistogram) -> Log2Histogram {
    const JOINED: usize = 11;
    let buckets = latencies.buckets();
    let first: u64 = buckets.iter().take(JOINED).sum();
    let counts: Vec<u64> = std::iter::once(first).chain(buckets.iter().skip(JOINED).copied()).collect();
    Log2Histogram::from_counts(&counts, latencies.sum_ns())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_keep_their_bounds() {
        let mut latencies = LatencyHistogram::default();
        latencies.record(Duration::from_nanos(700));
        latencies.record(Duration::from_micros(100));
        let shown = histogram(&latencies);
        assert_eq!(shown.count(), 2);
        assert_eq!(shown.quantile_ns(500), Some(1024));
        assert_eq!(shown.quantile_ns(1000), Some(1 << 17));
    }
}
