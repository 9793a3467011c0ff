//! The keys of groups and transactions.

use ringlog_shard::limits::{GROUP_LAG_TOPICS_SHOWN_MAX, GROUP_LAGS_SHOWN_MAX};

use super::{I32_MAX, KIB, ONE_NODE, built, bytes, integer, milliseconds, not_built};
use crate::config::keys::{Key, Kind};

const SHARE_GROUPS: &str = "share groups are not built yet";

const TRANSACTIONS: &str = "transactions are not built yet";

const fn consumer_bound(name: &'static str, minimum: i64, default: &'static str) -> Key {
    let doc = "The key without `min` or `max` in its name may be no less, or no more.";
    built(name, milliseconds(minimum, I32_MAX), default, doc)
}

pub(super) const KEYS: &[Key] = &[
    built(
        "offsets.topic.num.partitions",
        integer(1, 10_000),
        "50",
        "Partitions of the topic in which groups keep members and offsets. Holds when it is made, at the first use of a group.",
    ),
    not_built(
        "offsets.topic.replication.factor",
        integer(1, 32_767),
        "1",
        ONE_NODE,
        "Replicas of the offsets topic; one here, since there is one broker.",
    ),
    built(
        "offsets.topic.segment.bytes",
        bytes(KIB * KIB, I32_MAX),
        "100MiB",
        "Size of one segment of the offsets topic. Holds when it is made.",
    ),
    built(
        "offsets.retention.minutes",
        integer(1, I32_MAX),
        "10080",
        "How long the offsets of a group stay after its last member left, or after their commit where it never had members, in \
         minutes.",
    ),
    built(
        "offsets.retention.check.interval.ms",
        milliseconds(1, i64::MAX),
        "600000",
        "How often offsets and groups that nobody needs any more are looked for.",
    ),
    built(
        "offset.metadata.max.bytes",
        integer(0, I32_MAX),
        "4096",
        "Longest text that a consumer may commit with an offset, counted as Kafka does, in UTF-16 units.",
    ),
    built(
        "group.initial.rebalance.delay.ms",
        milliseconds(0, I32_MAX),
        "3000",
        "How long a group without members waits for more of them after the first, so that they share its partitions at once.",
    ),
    built(
        "group.min.session.timeout.ms",
        milliseconds(0, I32_MAX),
        "6000",
        "Shortest session timeout that a member may ask for.",
    ),
    built(
        "group.max.session.timeout.ms",
        milliseconds(0, I32_MAX),
        "1800000",
        "Longest session timeout that a member may ask for.",
    ),
    built(
        "group.max.size",
        integer(1, I32_MAX),
        "2147483647",
        "Most members of one group. This build takes 10,000 at most, whatever is set.",
    ),
    built(
        "group.consumer.session.timeout.ms",
        milliseconds(1, I32_MAX),
        "45000",
        "A member of a consumer group (KIP-848) that was not heard of for so long is out.",
    ),
    consumer_bound("group.consumer.min.session.timeout.ms", 1, "45000"),
    consumer_bound("group.consumer.max.session.timeout.ms", 1, "60000"),
    built(
        "group.consumer.heartbeat.interval.ms",
        milliseconds(1, I32_MAX),
        "5000",
        "How long members of consumer groups (KIP-848) are told to wait between two heartbeats.",
    ),
    consumer_bound("group.consumer.min.heartbeat.interval.ms", 1, "5000"),
    consumer_bound("group.consumer.max.heartbeat.interval.ms", 1, "15000"),
    built(
        "group.consumer.assignment.interval.ms",
        milliseconds(0, I32_MAX),
        "1000",
        "An assignment of a consumer group (KIP-848) follows another so much later at the earliest.",
    ),
    consumer_bound("group.consumer.min.assignment.interval.ms", 0, "0"),
    consumer_bound("group.consumer.max.assignment.interval.ms", 0, "15000"),
    built(
        "group.consumer.max.size",
        integer(1, I32_MAX),
        "2147483647",
        "Most members of one consumer group (KIP-848). This build takes 10,000 at most, whatever is set.",
    ),
    built(
        "group.consumer.assignors",
        Kind::Choice(&["uniform,range", "range,uniform", "uniform", "range"]),
        "uniform,range",
        "How members of consumer groups (KIP-848) may have partitions shared out. The first is taken where nobody names one.",
    ),
    built(
        "group.consumer.migration.policy",
        Kind::Choice(&["bidirectional", "upgrade", "downgrade", "disabled"]),
        "bidirectional",
        "Which groups may change their protocol while they work: to that of KIP-848 (`upgrade`), back to the classic one \
         (`downgrade`), both, or none.",
    ),
    built(
        "ringlog.group.lag.interval.ms",
        milliseconds(0, I32_MAX),
        "10000",
        "How often each shard looks how far its consumer groups are behind, for /metrics; at least 1000 ms, 0: never.",
    ),
    built(
        "ringlog.group.lag.max.groups",
        integer(0, GROUP_LAGS_SHOWN_MAX as i64),
        "32",
        "Consumer groups whose lag /metrics shows by name, those that lag most. The others count in the sums.",
    ),
    built(
        "ringlog.group.lag.max.topics",
        integer(0, GROUP_LAG_TOPICS_SHOWN_MAX as i64),
        "64",
        "Topics whose lag /metrics shows, of all groups shown by name: those that lag most, at most 16 of a group.",
    ),
    not_built(
        "transaction.state.log.num.partitions",
        integer(1, I32_MAX),
        "50",
        TRANSACTIONS,
        "Partitions of the transaction topic.",
    ),
    not_built(
        "transaction.state.log.replication.factor",
        integer(1, 32_767),
        "1",
        TRANSACTIONS,
        "Replicas of the transaction topic; one here, since there is one broker.",
    ),
    not_built(
        "transaction.state.log.min.isr",
        integer(1, I32_MAX),
        "1",
        TRANSACTIONS,
        "min.insync.replicas of the transaction topic.",
    ),
    not_built(
        "share.coordinator.state.topic.replication.factor",
        integer(1, 32_767),
        "1",
        SHARE_GROUPS,
        "Replicas of the share state topic; one here, since there is one broker.",
    ),
    not_built(
        "share.coordinator.state.topic.min.isr",
        integer(1, 32_767),
        "1",
        SHARE_GROUPS,
        "min.insync.replicas of the share state topic.",
    ),
    not_built(
        "transaction.max.timeout.ms",
        milliseconds(1, I32_MAX),
        "900000",
        TRANSACTIONS,
        "Longest transaction timeout a client may ask for.",
    ),
    not_built(
        "transactional.id.expiration.ms",
        milliseconds(1, I32_MAX),
        "604800000",
        TRANSACTIONS,
        "A transactional id that was silent for so long is forgotten.",
    ),
];
