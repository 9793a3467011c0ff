//! The table of topic configs: every key of Kafka 4.4's `LogConfig`, its range, default and server key, and whether setting it has an effect
//! here yet. Data only.

use super::{Effect, Kind, TopicKey};

const I32_MAX: i64 = i32::MAX as i64;
const MIB: i64 = 1 << 20;

const COMPACTION: &str = "compaction is not built yet";
const TIERING: &str = "tiered storage is not built yet";
const RECOMPRESSION: &str = "recompression is not built yet: batches stay as the producer compressed them";
const FLUSH: &str = "an acknowledged record is always durable first, so there is nothing to schedule";
const REPLICATION: &str = "replication is not built yet: each partition has one replica";

const fn built(name: &'static str, kind: Kind, default: &'static str, server: &'static str) -> TopicKey {
    TopicKey { name, kind, default, server: Some(server), effect: Effect::Built }
}

/// Accepted at its default only.
const fn later(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    server: Option<&'static str>,
    why: &'static str,
) -> TopicKey {
    TopicKey { name, kind, default, server, effect: Effect::DefaultOnly(why) }
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
    later("cleanup.policy", POLICIES, "delete", Some("log.cleanup.policy"), COMPACTION),
    later("compression.gzip.level", integer(-1, 9), "-1", Some("compression.gzip.level"), RECOMPRESSION),
    later("compression.lz4.level", integer(1, 17), "9", Some("compression.lz4.level"), RECOMPRESSION),
    later("compression.type", CODECS, "producer", Some("compression.type"), RECOMPRESSION),
    later("compression.zstd.level", integer(-131_072, 22), "3", Some("compression.zstd.level"), RECOMPRESSION),
    later("delete.retention.ms", integer(0, i64::MAX), "86400000", Some("log.cleaner.delete.retention.ms"), COMPACTION),
    later("errors.deadletterqueue.group.enable", Kind::Boolean, "false", None, "share groups are not built yet"),
    later("file.delete.delay.ms", integer(0, i64::MAX), "60000", Some("log.segment.delete.delay.ms"), "files go once the deletion is durable, and readers keep those that they hold"),
    later("flush.messages", integer(1, i64::MAX), NO_END, Some("log.flush.interval.messages"), FLUSH),
    later("flush.ms", integer(0, i64::MAX), NO_END, Some("log.flush.interval.ms"), FLUSH),
    later("follower.replication.throttled.replicas", Kind::Replicas, "", None, REPLICATION),
    built("index.interval.bytes", integer(0, I32_MAX), "4096", "log.index.interval.bytes"),
    later("leader.replication.throttled.replicas", Kind::Replicas, "", None, REPLICATION),
    later("local.retention.bytes", integer(-2, i64::MAX), "-2", Some("log.local.retention.bytes"), TIERING),
    later("local.retention.ms", integer(-2, i64::MAX), "-2", Some("log.local.retention.ms"), TIERING),
    later("max.compaction.lag.ms", integer(1, i64::MAX), NO_END, Some("log.cleaner.max.compaction.lag.ms"), COMPACTION),
    built("max.message.bytes", integer(0, I32_MAX), "1048588", "message.max.bytes"),
    built("message.timestamp.after.max.ms", integer(0, i64::MAX), "3600000", "log.message.timestamp.after.max.ms"),
    built("message.timestamp.before.max.ms", integer(0, i64::MAX), NO_END, "log.message.timestamp.before.max.ms"),
    built("message.timestamp.type", TIMESTAMPS, "CreateTime", "log.message.timestamp.type"),
    later("min.cleanable.dirty.ratio", Kind::Fraction, "0.5", Some("log.cleaner.min.cleanable.ratio"), COMPACTION),
    later("min.compaction.lag.ms", integer(0, i64::MAX), "0", Some("log.cleaner.min.compaction.lag.ms"), COMPACTION),
    later("min.insync.replicas", integer(1, I32_MAX), "1", Some("min.insync.replicas"), REPLICATION),
    later("preallocate", Kind::Boolean, "false", Some("log.preallocate"), "segments are extended ahead of their length already"),
    later("remote.copy.lag.bytes", integer(-1, i64::MAX), "-1", None, TIERING),
    later("remote.copy.lag.ms", integer(0, i64::MAX), "0", None, TIERING),
    later("remote.log.copy.disable", Kind::Boolean, "false", None, TIERING),
    later("remote.log.delete.on.disable", Kind::Boolean, "false", None, TIERING),
    later("remote.storage.enable", Kind::Boolean, "false", None, TIERING),
    built("retention.bytes", integer(-1, i64::MAX), "-1", "log.retention.bytes"),
    built("retention.ms", integer(-1, i64::MAX), "604800000", "log.retention.ms"),
    TopicKey {
        name: "ringlog.durability",
        kind: Kind::Choice(&["strict", "relaxed"]),
        default: "strict",
        server: Some("ringlog.durability"),
        effect: Effect::Refused("relaxed durability is not built yet: every acknowledged record is durable first"),
    },
    built("segment.bytes", integer(MIB, I32_MAX), "1073741824", "log.segment.bytes"),
    later("segment.index.bytes", integer(4, I32_MAX), "10485760", Some("log.index.size.max.bytes"), "the offset index is in memory and bounded by its segment"),
    built("segment.jitter.ms", integer(0, i64::MAX), "0", "log.roll.jitter.ms"),
    built("segment.ms", integer(1, i64::MAX), "604800000", "log.roll.ms"),
    later("unclean.leader.election.enable", Kind::Boolean, "false", Some("unclean.leader.election.enable"), REPLICATION),
];
