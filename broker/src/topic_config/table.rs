//! The table of topic configs: every key of Kafka 4.4's `LogConfig`, its range, default and server key, and whether setting it has an effect
//! here yet. Data only.

use super::{Effect, Kind, TopicKey};

const I32_MAX: i64 = i32::MAX as i64;
const MIB: i64 = 1 << 20;

const TIERING: &str = "tiered storage is not built yet";
const RECOMPRESSION: &str = "recompression is not built yet: batches stay as the producer compressed them";
const FLUSH: &str = "an acknowledged record is always durable first, which is sooner than any of them";
const REPLICATION: &str = "replication is not built yet: each partition has one replica";

const fn built(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    server: &'static str,
    doc: &'static str,
) -> TopicKey {
    TopicKey { name, kind, default, server: Some(server), effect: Effect::Built, doc }
}

/// Accepted, shown, and without effect.
const fn met(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    server: &'static str,
    why: &'static str,
    doc: &'static str,
) -> TopicKey {
    TopicKey { name, kind, default, server: Some(server), effect: Effect::Met(why), doc }
}

/// Accepted at its default only.
const fn later(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    server: Option<&'static str>,
    why: &'static str,
    doc: &'static str,
) -> TopicKey {
    TopicKey { name, kind, default, server, effect: Effect::DefaultOnly(why), doc }
}

const fn integer(minimum: i64, maximum: i64) -> Kind {
    Kind::Integer { minimum, maximum }
}

const CODECS: Kind = Kind::Choice(&["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]);
const TIMESTAMPS: Kind = Kind::Choice(&["CreateTime", "LogAppendTime"]);
const POLICIES: Kind = Kind::List(&["compact", "delete"]);
const NO_END: &str = "9223372036854775807";

/// Sorted by name.
#[rustfmt::skip]
pub(super) const ALL: &[TopicKey] = &[
    built("cleanup.policy", POLICIES, "delete", "log.cleanup.policy", "What becomes of old segments: they are deleted, compacted to the newest record of each key, or both; neither = everything stays."),
    later("compression.gzip.level", integer(-1, 9), "-1", Some("compression.gzip.level"), RECOMPRESSION, "Level of gzip where the broker compresses."),
    later("compression.lz4.level", integer(1, 17), "9", Some("compression.lz4.level"), RECOMPRESSION, "Level of lz4 where the broker compresses."),
    later("compression.type", CODECS, "producer", Some("compression.type"), RECOMPRESSION, "How the broker stores batches; producer keeps each as it came."),
    later("compression.zstd.level", integer(-131_072, 22), "3", Some("compression.zstd.level"), RECOMPRESSION, "Level of zstd where the broker compresses."),
    built("delete.retention.ms", integer(0, i64::MAX), "86400000", "log.cleaner.delete.retention.ms", "How long a tombstone stays after the first compaction that saw it, in milliseconds."),
    later("errors.deadletterqueue.group.enable", Kind::Boolean, "false", None, "share groups are not built yet", "Whether share groups may write records that they reject to this topic."),
    met("file.delete.delay.ms", integer(0, i64::MAX), "60000", "log.segment.delete.delay.ms", "files go once the deletion is durable, and readers keep those that they hold", "Wait before the file of a deleted segment goes, in milliseconds."),
    met("flush.messages", integer(1, i64::MAX), NO_END, "log.flush.interval.messages", FLUSH, "Records between two flushes of the log."),
    met("flush.ms", integer(0, i64::MAX), NO_END, "log.flush.interval.ms", FLUSH, "Time between two flushes of the log, in milliseconds."),
    later("follower.replication.throttled.replicas", Kind::Replicas, "", None, REPLICATION, "Replicas whose fetching is throttled."),
    built("index.interval.bytes", integer(0, I32_MAX), "4096", "log.index.interval.bytes", "Log bytes between two entries of the offset index."),
    later("leader.replication.throttled.replicas", Kind::Replicas, "", None, REPLICATION, "Replicas whose sending is throttled."),
    later("local.retention.bytes", integer(-2, i64::MAX), "-2", Some("log.local.retention.bytes"), TIERING, "Bytes of a partition that stay on local disks with tiered storage; -2: as retention.bytes."),
    later("local.retention.ms", integer(-2, i64::MAX), "-2", Some("log.local.retention.ms"), TIERING, "Time that records stay on local disks with tiered storage, in milliseconds; -2: as retention.ms."),
    built("max.compaction.lag.ms", integer(1, i64::MAX), NO_END, "log.cleaner.max.compaction.lag.ms", "Longest time that a record stays uncompacted, in milliseconds."),
    built("max.message.bytes", integer(0, I32_MAX), "1048588", "message.max.bytes", "The largest record batch, as it arrives, in bytes. Whatever it allows, a batch beyond what the broker stores is refused with MESSAGE_TOO_LARGE: beyond 32 MiB in the dev profile and a quarter of a shard's memory in the server profile, or ringlog.journal.file.bytes where that is more, and beyond 100 MiB."),
    built("message.timestamp.after.max.ms", integer(0, i64::MAX), "3600000", "log.message.timestamp.after.max.ms", "How far a CreateTime may lie in the future, in milliseconds."),
    built("message.timestamp.before.max.ms", integer(0, i64::MAX), NO_END, "log.message.timestamp.before.max.ms", "How far a CreateTime may lie in the past, in milliseconds."),
    built("message.timestamp.type", TIMESTAMPS, "CreateTime", "log.message.timestamp.type", "Whose clock stamps records: the producer's (CreateTime) or the broker's (LogAppendTime)."),
    built("min.cleanable.dirty.ratio", Kind::Fraction, "0.5", "log.cleaner.min.cleanable.ratio", "A log is compacted once a larger share of its closed segments than this was never compacted."),
    built("min.compaction.lag.ms", integer(0, i64::MAX), "0", "log.cleaner.min.compaction.lag.ms", "Shortest time that a record stays uncompacted, in milliseconds."),
    later("min.insync.replicas", integer(1, I32_MAX), "1", Some("min.insync.replicas"), REPLICATION, "Replicas that must hold a record durably before acks=all is answered."),
    met("preallocate", Kind::Boolean, "false", "log.preallocate", "segments are extended ahead of their length anyway", "Whether a segment's file gets its full size at once."),
    later("remote.copy.lag.bytes", integer(-1, i64::MAX), "-1", Some("log.remote.copy.lag.bytes"), TIERING, "Bytes that tiered storage may be behind; -1: none wait."),
    later("remote.copy.lag.ms", integer(0, i64::MAX), "0", Some("log.remote.copy.lag.ms"), TIERING, "Time that tiered storage may be behind, in milliseconds."),
    later("remote.log.copy.disable", Kind::Boolean, "false", None, TIERING, "Whether tiered storage only reads."),
    later("remote.log.delete.on.disable", Kind::Boolean, "false", None, TIERING, "Whether switching tiered storage off deletes what it holds."),
    later("remote.storage.enable", Kind::Boolean, "false", None, TIERING, "Whether segments go to tiered storage."),
    built("retention.bytes", integer(-1, i64::MAX), "-1", "log.retention.bytes", "The oldest segments of a partition go while the others still hold this many bytes; -1 = none go for their size."),
    built("retention.ms", integer(-1, i64::MAX), "604800000", "log.retention.ms", "Age in milliseconds at which whole segments go; -1 = none go for their age."),
    TopicKey {
        name: "ringlog.durability",
        kind: Kind::Choice(&["strict", "relaxed"]),
        default: "strict",
        server: Some("ringlog.durability"),
        effect: Effect::Refused("relaxed durability is not built yet: every acknowledged record is durable first"),
        doc: "What acks=all promises: strict means durable on the commit quorum before the acknowledgement.",
    },
    built("segment.bytes", integer(MIB, I32_MAX), "1073741824", "log.segment.bytes", "A segment is closed when it would grow beyond this many bytes."),
    met("segment.index.bytes", integer(4, I32_MAX), "10485760", "log.index.size.max.bytes", "the offset index is in memory and bounded by its segment", "Size of Kafka's index file, in bytes."),
    built("segment.jitter.ms", integer(0, i64::MAX), "0", "log.roll.jitter.ms", "A segment is closed up to so many milliseconds earlier, at random."),
    built("segment.ms", integer(1, i64::MAX), "604800000", "log.roll.ms", "Age in milliseconds at which a segment is closed."),
    later("unclean.leader.election.enable", Kind::Boolean, "false", Some("unclean.leader.election.enable"), REPLICATION, "Whether a replica that lags may lead."),
];
