//! Owns the table of metric families that are read from one shard's snapshot: name, help, label and where the number is.
//! A name is part of the interface: dashboards hold it. Add, never rename.

use crate::group::Cause;
use crate::observe::snapshot::ShardSnapshot;

/// How a cell becomes the base unit of its family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    One,
    /// The cell is in nanoseconds, the family in seconds.
    Nanoseconds,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    Counter,
    Gauge,
}

/// One family; each of its cells is a series of every shard.
pub(super) struct Family {
    /// Without `_total`, which the encoder adds to counters.
    pub name: &'static str,
    pub help: &'static str,
    pub kind: Type,
    pub unit: Unit,
    /// The label that tells the cells apart; empty when there is one.
    pub label: &'static str,
    pub cells: &'static [(&'static str, Read)],
}

type Read = fn(&ShardSnapshot) -> u64;

const fn counter(
    name: &'static str,
    help: &'static str,
    label: &'static str,
    cells: &'static [(&'static str, Read)],
) -> Family {
    Family { name, help, kind: Type::Counter, unit: Unit::One, label, cells }
}

const fn gauge(
    name: &'static str,
    help: &'static str,
    label: &'static str,
    cells: &'static [(&'static str, Read)],
) -> Family {
    Family { name, help, kind: Type::Gauge, unit: Unit::One, label, cells }
}

const fn seconds(family: Family) -> Family {
    Family { unit: Unit::Nanoseconds, ..family }
}

/// Shown for each shard however many there are: what a sum over shards would make a lie, or hide.
pub(super) const ALWAYS: &[Family] = &[
    seconds(counter(
        "ringlog_shard_time_seconds",
        "Time of the shard's loop, by what it did",
        "state",
        &[("busy", |s| s.io.busy_ns), ("asleep", |s| s.io.sleep_ns)],
    )),
    gauge(
        "ringlog_disk_free_bytes",
        "Free bytes of the data directory's file system, as each shard saw them last",
        "",
        &[("", |s| s.storage.space_free_bytes)],
    ),
    gauge(
        "ringlog_disk_reserve_bytes",
        "Bytes of them that stay free",
        "",
        &[("", |s| s.storage.space_reserve_bytes)],
    ),
    gauge(
        "ringlog_disk_space_level",
        "0 while space is ample, 1 low, 2 producers are slowed down, 3 they are refused",
        "",
        &[("", |s| s.storage.space_level)],
    ),
    gauge(
        "ringlog_compaction_dirtiest_ratio_millionths",
        "Of the compacted log with the largest part that was never compacted: that part, in millionths of its closed segments",
        "",
        &[("", |s| u64::from(s.storage.compaction.dirtiest_millionths))],
    ),
];

/// Shown for each shard up to a bound, then added up.
pub(super) const FAMILIES: &[Family] = &[
    gauge("ringlog_shard_tasks_runnable", "Tasks that wait to run", "", &[("", |s| s.io.runnable)]),
    gauge(
        "ringlog_io_operations_in_flight",
        "Operations given to the kernel and not completed",
        "",
        &[("", |s| s.io.in_flight)],
    ),
    counter(
        "ringlog_io_operations_submitted",
        "Operations given to the kernel",
        "",
        &[("", |s| s.io.submitted)],
    ),
    counter(
        "ringlog_io_operations_completed",
        "Operations the kernel completed",
        "",
        &[("", |s| s.io.completed)],
    ),
    counter("ringlog_io_syscalls", "System calls of the loop", "", &[("", |s| s.io.syscalls)]),
    counter(
        "ringlog_io_loop_pauses",
        "Times the loop had nothing to do, by how it waited",
        "how",
        &[("spin", |s| s.io.spins), ("sleep", |s| s.io.sleeps)],
    ),
    gauge("ringlog_connections", "Open client connections", "", &[("", |s| s.gauges.connections)]),
    counter(
        "ringlog_connection_events",
        "What happened to client connections",
        "event",
        &[
            ("accepted", |s| s.metrics.connections_accepted),
            ("adopted", |s| s.metrics.connections_adopted),
            ("closed", |s| s.metrics.connections_closed),
            ("refused", |s| s.metrics.connections_refused),
            ("violated", |s| s.metrics.connections_violated),
        ],
    ),
    gauge(
        "ringlog_requests_in_flight",
        "Requests received and not answered",
        "",
        &[("", |s| s.gauges.requests_in_flight)],
    ),
    gauge(
        "ringlog_fetches_waiting",
        "Fetches that wait for bytes to arrive",
        "",
        &[("", |s| s.gauges.fetches_waiting)],
    ),
    gauge(
        "ringlog_fetch_watches",
        "Waits of fetches that reach over shards, on both ends",
        "",
        &[("", |s| s.gauges.fetch_watches)],
    ),
    gauge(
        "ringlog_fetch_sessions",
        "Fetch sessions of clients, and the partitions in them",
        "of",
        &[("sessions", |s| s.gauges.fetch_sessions), ("partitions", |s| s.gauges.fetch_session_partitions)],
    ),
    counter(
        "ringlog_fetch_sessions_evicted",
        "Fetch sessions that made room for others",
        "",
        &[("", |s| s.gauges.fetch_sessions_evicted)],
    ),
    counter(
        "ringlog_received_bytes",
        "Bytes received from clients",
        "",
        &[("", |s| s.metrics.received_bytes)],
    ),
    counter(
        "ringlog_sent_bytes",
        "Bytes sent to clients, by the route they took",
        "route",
        &[
            ("memory", |s| s.metrics.sent.memory_bytes),
            ("read", |s| s.metrics.sent.read_bytes),
            ("sendfile", |s| s.metrics.sent.sendfile_bytes),
        ],
    ),
    counter(
        "ringlog_sendfile_stalls",
        "Calls of sendfile that took too long",
        "",
        &[("", |s| s.metrics.sent.sendfile_stalls)],
    ),
    counter(
        "ringlog_egress_demotions",
        "Replies switched from memory to segment files: too slow, or more than their share",
        "",
        &[("", |s| s.metrics.sent.demotions)],
    ),
    counter(
        "ringlog_page_cache_bytes",
        "Bytes about to be read, by what cachestat said of them",
        "result",
        &[
            ("hit", |s| s.metrics.page_cache.hit_bytes),
            ("miss", |s| s.metrics.page_cache.miss_bytes),
            ("unknown", |s| s.metrics.page_cache.unknown_bytes),
        ],
    ),
    counter(
        "ringlog_produced_batches",
        "Record batches appended",
        "",
        &[("", |s| s.metrics.produce.batches)],
    ),
    counter("ringlog_produced_records", "Records appended", "", &[("", |s| s.metrics.produce.records)]),
    counter(
        "ringlog_produced_bytes",
        "Bytes of record batches appended",
        "",
        &[("", |s| s.metrics.produce.bytes)],
    ),
    counter(
        "ringlog_produced_duplicates",
        "Batches answered without appending them again",
        "",
        &[("", |s| s.metrics.produce.duplicates)],
    ),
    counter(
        "ringlog_fetched_bytes",
        "Bytes of records given to fetches",
        "",
        &[("", |s| s.metrics.fetch.bytes)],
    ),
    counter(
        "ringlog_fetched_partitions",
        "Partitions that had bytes for a fetch",
        "",
        &[("", |s| s.metrics.fetch.partitions)],
    ),
    counter(
        "ringlog_fetches_empty",
        "Fetches answered without records after waiting",
        "",
        &[("", |s| s.metrics.fetch.empty)],
    ),
    counter(
        "ringlog_mesh_messages",
        "Messages between cores",
        "direction",
        &[("sent", |s| s.metrics.mesh.sent), ("received", |s| s.metrics.mesh.received)],
    ),
    counter(
        "ringlog_mesh_stalls",
        "Times a core had no credit left towards another",
        "",
        &[("", |s| s.metrics.mesh.out_of_credits)],
    ),
    counter(
        "ringlog_log_lines_suppressed",
        "Log lines that the rate limit kept back",
        "",
        &[("", |s| s.metrics.log_lines_suppressed)],
    ),
    gauge("ringlog_partitions", "Partitions owned", "", &[("", |s| s.gauges.partitions)]),
    gauge(
        "ringlog_memory_bytes",
        "Memory in use, by what for",
        "use",
        &[
            ("receive", |s| s.gauges.receive_bytes),
            ("tail", |s| s.storage.tail_bytes),
            ("egress", |s| s.gauges.egress_pinned_bytes),
        ],
    ),
    gauge(
        "ringlog_memory_budget_bytes",
        "Memory that the shard may allocate",
        "",
        &[("", |s| s.gauges.memory_budget_bytes)],
    ),
    counter(
        "ringlog_journal_frames",
        "Frames written to the commit journal",
        "",
        &[("", |s| s.storage.journal_frames)],
    ),
    counter(
        "ringlog_journal_bytes",
        "Bytes written to the commit journal",
        "",
        &[("", |s| s.storage.journal_bytes)],
    ),
    counter(
        "ringlog_appended_bytes",
        "Bytes of record batches appended to logs, metadata included",
        "",
        &[("", |s| s.storage.appended_bytes)],
    ),
    counter(
        "ringlog_bypass_bytes",
        "Of them, bytes that went to their segment at once, with a reference in the journal",
        "",
        &[("", |s| s.storage.bypass_bytes)],
    ),
    counter(
        "ringlog_segment_bytes",
        "Bytes written to segments; with those of the journal, over the appended ones: write amplification",
        "",
        &[("", |s| s.storage.segment_bytes)],
    ),
    counter(
        "ringlog_segments_rewritten",
        "Segments written to a new file because a sync failed",
        "",
        &[("", |s| s.storage.segments_rewritten)],
    ),
    gauge(
        "ringlog_logs_poisoned",
        "Logs that take no more writes until a restart; /healthz names them",
        "",
        &[("", |s| s.storage.logs_poisoned)],
    ),
    gauge(
        "ringlog_journal_unflushed_bytes",
        "Bytes in the journal that no segment holds durably yet",
        "",
        &[("", |s| s.storage.dirty_bytes)],
    ),
    gauge(
        "ringlog_checkpoint_unsynced_bytes",
        "Bytes that a checkpoint wrote to segments, or is about to, and has not synced",
        "",
        &[("", |s| s.storage.unsynced_bytes)],
    ),
    gauge(
        "ringlog_checkpoint_lag_milliseconds",
        "Age of the oldest record that the journal alone holds durably",
        "",
        &[("", |s| s.storage.checkpoint_lag_ms)],
    ),
    counter(
        "ringlog_checkpoint_carried_bytes",
        "Bytes of entries copied into newer journal files instead of flushed",
        "",
        &[("", |s| s.storage.carried_bytes)],
    ),
    gauge(
        "ringlog_journal_poisoned",
        "1 once a failed journal write stopped this core's writes",
        "",
        &[("", |s| u64::from(s.storage.poisoned))],
    ),
    counter("ringlog_checkpoints", "Checkpoints completed", "", &[("", |s| s.storage.checkpoints)]),
    counter(
        "ringlog_segments_removed",
        "Segments removed below the start of their log",
        "",
        &[("", |s| s.storage.segments_removed)],
    ),
    gauge(
        "ringlog_segments_in_future",
        "Segments whose newest timestamp lies over an hour in the future; retention counts them as written when they were",
        "",
        &[("", |s| s.storage.segments_in_future)],
    ),
    gauge(
        "ringlog_segment_damaged_places",
        "Damaged places of segments, found at the start or while serving; /healthz names them",
        "",
        &[("", |s| s.storage.damaged_places)],
    ),
    counter(
        "ringlog_segment_read_errors",
        "Reads of segments that the device refused",
        "",
        &[("", |s| s.storage.read_errors)],
    ),
    counter(
        "ringlog_scrubbed_bytes",
        "Bytes that the scrub compared with their checksums",
        "",
        &[("", |s| s.storage.scrubbed_bytes)],
    ),
    counter(
        "ringlog_scrub_errors",
        "Blocks that the scrub found damaged or could not read",
        "",
        &[("", |s| s.storage.scrub_errors)],
    ),
    gauge(
        "ringlog_scrub_age_seconds",
        "Time since the last pass of the scrub ended; 0 before the first",
        "",
        &[("", |s| s.storage.scrub_age_seconds)],
    ),
    counter(
        "ringlog_compactions",
        "Compactions of a partition, by how they ended",
        "result",
        &[("done", |s| s.storage.compaction.runs), ("failed", |s| s.storage.compaction.failures)],
    ),
    gauge(
        "ringlog_compactions_put_off",
        "Partitions whose compaction failed, or could not begin, and is tried again later",
        "",
        &[("", |s| s.storage.compaction.put_off)],
    ),
    counter(
        "ringlog_compacted_bytes",
        "Bytes of segments that were compacted, before and after",
        "when",
        &[("before", |s| s.storage.compaction.bytes_before), ("after", |s| s.storage.compaction.bytes_after)],
    ),
    counter(
        "ringlog_compaction_io_bytes",
        "Bytes that compaction read and wrote",
        "direction",
        &[("read", |s| s.storage.compaction.bytes_read), ("written", |s| s.storage.compaction.bytes_written)],
    ),
    counter(
        "ringlog_compaction_records_dropped",
        "Records that a newer one with the same key, or their time, made superfluous",
        "",
        &[("", |s| s.storage.compaction.records_dropped)],
    ),
    gauge(
        "ringlog_groups",
        "Consumer groups, by state",
        "state",
        &[
            ("empty", |s| s.groups.empty),
            ("preparing", |s| s.groups.preparing),
            ("completing", |s| s.groups.completing),
            ("assigning", |s| s.groups.assigning),
            ("reconciling", |s| s.groups.reconciling),
            ("stable", |s| s.groups.stable),
            ("dead", |s| s.groups.dead),
        ],
    ),
    gauge("ringlog_group_members", "Members of consumer groups", "", &[("", |s| s.groups.members)]),
    gauge(
        "ringlog_group_bytes",
        "Memory of consumer groups and their offsets, estimated",
        "",
        &[("", |s| s.groups.bytes)],
    ),
    gauge(
        "ringlog_group_calls_waiting",
        "Requests of groups that wait for others, counted on both ends where they reach over shards",
        "",
        &[("", |s| s.groups.calls_waiting)],
    ),
    counter(
        "ringlog_group_offsets_committed",
        "Offsets that groups committed",
        "",
        &[("", |s| s.groups.offsets_committed)],
    ),
    counter(
        "ringlog_group_records_expired",
        "Offsets and groups that went because nobody needed them any more",
        "",
        &[("", |s| s.groups.records_expired)],
    ),
    counter(
        "ringlog_group_loads",
        "Partitions of groups read at the start of their lead, by how that ended",
        "result",
        &[("ok", |s| s.groups.loads), ("failed", |s| s.groups.loads_failed)],
    ),
    seconds(counter(
        "ringlog_group_load_seconds",
        "Time that took, added up",
        "",
        &[("", |s| s.groups.load_ns)],
    )),
    counter(
        "ringlog_group_rebalances",
        "Rebalances of groups that ended, by what began them; of groups of KIP-848 new target assignments",
        "cause",
        &[
            ("joined", |s| s.groups.rebalances(Cause::Joined)),
            ("left", |s| s.groups.rebalances(Cause::Left)),
            ("removed", |s| s.groups.rebalances(Cause::Removed)),
            ("session_expired", |s| s.groups.rebalances(Cause::SessionExpired)),
            ("left_for_a_while", |s| s.groups.rebalances(Cause::LeftForAWhile)),
            ("join_timeout", |s| s.groups.rebalances(Cause::JoinTimeout)),
            ("sync_timeout", |s| s.groups.rebalances(Cause::SyncTimeout)),
            ("rebalance_timeout", |s| s.groups.rebalances(Cause::RebalanceTimeout)),
            ("subscription_changed", |s| s.groups.rebalances(Cause::SubscriptionChanged)),
            ("asked_again", |s| s.groups.rebalances(Cause::AskedAgain)),
            ("static_member_replaced", |s| s.groups.rebalances(Cause::StaticMemberReplaced)),
            ("topics_changed", |s| s.groups.rebalances(Cause::TopicsChanged)),
            ("expression_resolved", |s| s.groups.rebalances(Cause::ExpressionResolved)),
            ("converted", |s| s.groups.rebalances(Cause::Converted)),
            ("assignment_failed", |s| s.groups.rebalances(Cause::AssignmentFailed)),
            ("coordinator_changed", |s| s.groups.rebalances(Cause::CoordinatorChanged)),
            ("group_too_large", |s| s.groups.rebalances(Cause::GroupTooLarge)),
        ],
    ),
    seconds(counter(
        "ringlog_group_rebalance_seconds",
        "Time from what began them to their end, added up",
        "",
        &[("", |s| s.groups.rebalance_ns)],
    )),
    gauge("ringlog_segment_files_open", "Segment files open", "", &[("", |s| s.storage.open_files)]),
];
