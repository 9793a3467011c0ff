//! The keys of topics and their logs.

use super::{
    I32_MAX, KIB, MIB, NAME, ONE_NODE, THREADS, built, bytes, dynamic, integer, milliseconds, not_built,
    optional_integer,
};
use crate::config::keys::{Key, Kind};

const FLUSH: &str = "an acknowledged record is always durable first, so there is nothing to schedule";

pub(super) const KEYS: &[Key] = &[
    // ---- topics
    built(
        "auto.create.topics.enable",
        Kind::Boolean,
        "true",
        "Create a topic when a client asks for the metadata of one that does not exist.",
    ),
    built(
        "delete.topic.enable",
        Kind::Boolean,
        "true",
        "Whether DeleteTopics is answered; when false it gets error 73 (TOPIC_DELETION_DISABLED).",
    ),
    built(
        "num.partitions",
        integer(1, 10_000),
        "1",
        "Partitions of a topic that is created without a number of its own.",
    ),
    not_built(
        "default.replication.factor",
        integer(1, 32_767),
        "1",
        ONE_NODE,
        "Replicas of a topic that is created without a number of its own.",
    ),
    not_built(
        "min.insync.replicas",
        integer(1, I32_MAX),
        "1",
        ONE_NODE,
        "Replicas that must hold a record durably before acks=all is answered; never more than a topic has.",
    ),
    dynamic(built(
        "message.max.bytes",
        bytes(0, I32_MAX),
        "1048588",
        "The largest record batch, as it arrives: max.message.bytes of a topic.",
    )),
    not_built(
        "compression.type",
        Kind::Choice(&["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"]),
        "producer",
        "the broker does not recompress yet",
        "How the broker stores batches; `producer` keeps each as it came.",
    ),
    dynamic(built(
        "log.segment.bytes",
        bytes(MIB, I32_MAX),
        "1073741824",
        "A segment file is closed when it would grow beyond this.",
    )),
    dynamic(built(
        "log.index.interval.bytes",
        bytes(0, I32_MAX),
        "4096",
        "Log bytes between two entries of the offset index.",
    )),
    dynamic(built(
        "log.message.timestamp.type",
        Kind::Choice(&["CreateTime", "LogAppendTime"]),
        "CreateTime",
        "Whose clock stamps records: the producer's or the broker's.",
    )),
    dynamic(built(
        "log.message.timestamp.before.max.ms",
        milliseconds(0, i64::MAX),
        "9223372036854775807",
        "How far a CreateTime may lie in the past.",
    )),
    dynamic(built(
        "log.message.timestamp.after.max.ms",
        milliseconds(0, i64::MAX),
        "3600000",
        "How far a CreateTime may lie in the future.",
    )),
    built(
        "fetch.max.bytes",
        bytes(KIB, I32_MAX),
        "57671680",
        "The most bytes of records in one Fetch answer. One batch larger than this is still sent, alone.",
    ),
    built(
        "max.incremental.fetch.session.cache.slots",
        integer(0, I32_MAX),
        "1000",
        "Fetch sessions kept at once, shared out evenly among the cores; 0: none, each Fetch names all its partitions.",
    ),
    built(
        "max.request.partition.size.limit",
        integer(1, I32_MAX),
        "2000",
        "The most partitions in one DescribeTopicPartitions answer; clients that ask for more go on in another.",
    ),
    built(
        "producer.id.expiration.ms",
        milliseconds(1, I32_MAX),
        "86400000",
        "The sequence state of an idempotent producer that was silent for so long is dropped.",
    ),
    // ---- retention, rolling, compaction
    dynamic(built(
        "log.retention.ms",
        optional_integer(-1, i64::MAX),
        "",
        "Age in milliseconds at which records may go, -1 = none; empty: log.retention.minutes holds.",
    )),
    built(
        "log.retention.minutes",
        optional_integer(-1, I32_MAX),
        "",
        "Age in minutes at which records may go, -1 = none; empty: log.retention.hours holds.",
    ),
    built(
        "log.retention.hours",
        integer(-1, I32_MAX),
        "168",
        "Age in hours at which records may go, -1 = none. Whole segments go once their newest record is older.",
    ),
    dynamic(built(
        "log.retention.bytes",
        bytes(-1, i64::MAX),
        "-1",
        "The oldest segments of a partition go while the others still hold this much; -1 = none.",
    )),
    built(
        "log.retention.check.interval.ms",
        milliseconds(1, i64::MAX),
        "300000",
        "How often retention looks at each partition.",
    ),
    built(
        "metadata.log.max.record.bytes.between.snapshots",
        bytes(1, i64::MAX),
        "8MiB",
        "A snapshot of the metadata is written, and the metadata log begins there, once more than this came behind the last one, \
         and more than the last one holds. A start reads the snapshot and what came behind it.",
    ),
    dynamic(built(
        "log.roll.ms",
        optional_integer(1, i64::MAX),
        "",
        "Age in milliseconds at which a segment is closed; empty: log.roll.hours holds.",
    )),
    built("log.roll.hours", integer(1, I32_MAX), "168", "Age in hours at which a segment is closed."),
    dynamic(built(
        "log.roll.jitter.ms",
        optional_integer(0, i64::MAX),
        "",
        "A segment is closed up to so many milliseconds earlier, at random; empty: log.roll.jitter.hours holds.",
    )),
    built(
        "log.roll.jitter.hours",
        integer(0, I32_MAX),
        "0",
        "A segment is closed up to so many hours earlier, at random.",
    ),
    not_built(
        "log.index.size.max.bytes",
        integer(4, I32_MAX),
        "10485760",
        "the offset index is in memory and bounded by its segment",
        "Size of Kafka's index file.",
    ),
    not_built(
        "log.segment.delete.delay.ms",
        milliseconds(0, i64::MAX),
        "60000",
        "a deleted topic's files go at once",
        "Wait before deleted files go.",
    ),
    not_built(
        "log.preallocate",
        Kind::Boolean,
        "false",
        "segments are extended without changing their length already",
        "Preallocate segment files.",
    ),
    dynamic(built(
        "log.cleanup.policy",
        Kind::List(&["compact", "delete"]),
        "delete",
        "What becomes of the old segments of a topic: they are deleted, compacted to the newest record of each key, or both; \
         neither = everything stays.",
    )),
    built(
        "log.cleaner.enable",
        Kind::Boolean,
        "true",
        "Whether compaction runs. Without it topics that are only compacted grow for ever.",
    ),
    not_built("log.cleaner.threads", integer(0, I32_MAX), "1", THREADS, "Threads of compaction."),
    dynamic(built(
        "log.cleaner.dedupe.buffer.size",
        bytes(MIB, i64::MAX),
        "128MiB",
        "Memory in which compaction keeps the keys of a log, of all shards together; 24 bytes a key. A shard takes no more than an \
         eighth of its memory. A log with more keys takes several passes.",
    )),
    not_built(
        "log.cleaner.io.buffer.size",
        integer(0, I32_MAX),
        "524288",
        "compaction works on pieces of 1 MiB",
        "Memory of compaction for reading and writing.",
    ),
    not_built(
        "log.cleaner.io.buffer.load.factor",
        Kind::Number { minimum: 0, maximum: None },
        "0.9",
        "the memory of keys is filled to 90 percent",
        "How full Kafka's compaction fills its memory of keys.",
    ),
    dynamic(built(
        "log.cleaner.io.max.bytes.per.second",
        Kind::Number { minimum: 1, maximum: None },
        "1.7976931348623157E308",
        "Bytes that compaction reads and writes in a second, of all shards together.",
    )),
    dynamic(built(
        "log.cleaner.backoff.ms",
        milliseconds(0, i64::MAX),
        "15000",
        "How long compaction waits when there was nothing to do; at least 100 ms. A partition that could not be compacted is tried \
         again after as long, then after twice as long, up to an hour.",
    )),
    dynamic(built(
        "log.cleaner.delete.retention.ms",
        milliseconds(0, i64::MAX),
        "86400000",
        "How long a tombstone stays after the first compaction that saw it.",
    )),
    dynamic(built(
        "log.cleaner.min.compaction.lag.ms",
        milliseconds(0, i64::MAX),
        "0",
        "A segment with a record younger than this is not compacted yet, nor what comes behind it.",
    )),
    dynamic(built(
        "log.cleaner.max.compaction.lag.ms",
        milliseconds(1, i64::MAX),
        "9223372036854775807",
        "A record older than this is compacted, whatever share of the log was. A segment is closed at this age.",
    )),
    dynamic(built(
        "log.cleaner.min.cleanable.ratio",
        Kind::Number { minimum: 0, maximum: Some(1) },
        "0.5",
        "A log is compacted once a larger share of its closed segments than this was never compacted.",
    )),
    not_built(
        "log.flush.interval.messages",
        integer(1, i64::MAX),
        "9223372036854775807",
        FLUSH,
        "Records between two flushes of a log.",
    ),
    not_built("log.flush.interval.ms", NAME, "", FLUSH, "Time between two flushes of a log."),
    not_built(
        "log.flush.scheduler.interval.ms",
        milliseconds(1, i64::MAX),
        "9223372036854775807",
        FLUSH,
        "How often Kafka looks for logs to flush.",
    ),
    not_built(
        "log.flush.offset.checkpoint.interval.ms",
        milliseconds(0, I32_MAX),
        "60000",
        FLUSH,
        "How often Kafka writes its recovery point.",
    ),
    not_built(
        "num.recovery.threads.per.data.dir",
        integer(1, I32_MAX),
        "2",
        THREADS,
        "Threads that recover logs.",
    ),
    not_built(
        "unclean.leader.election.enable",
        Kind::Boolean,
        "false",
        ONE_NODE,
        "Whether a replica that lags may lead.",
    ),
];
