//! Owns the table of configuration keys: Kafka's names where the meaning is the same, `ringlog.*` for ours. A key that
//! Kafka has and that does nothing here yet stands in the table too, so that a user's file gets a sentence about it.

use super::keys::{Effect, Key, Kind, Update};

const I32_MAX: i64 = i32::MAX as i64;
const KIB: i64 = 1 << 10;
const MIB: i64 = 1 << 20;

const fn built(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Key {
    Key { name, kind, default, effect: Effect::Built, update: Update::Restart, doc }
}

/// `why` ends the refusal of any value but the default.
const fn not_built(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    why: &'static str,
    doc: &'static str,
) -> Key {
    Key { name, kind, default, effect: Effect::NotBuilt(why), update: Update::Restart, doc }
}

const fn fixed(key: Key) -> Key {
    Key { update: Update::Formatted, ..key }
}

/// Changes at run time too.
const fn dynamic(key: Key) -> Key {
    Key { update: Update::Runtime, ..key }
}

const fn consumer_bound(name: &'static str, minimum: i64, default: &'static str) -> Key {
    let doc = "The key without `min` or `max` in its name may be no less, or no more.";
    built(name, milliseconds(minimum, I32_MAX), default, doc)
}

const fn integer(minimum: i64, maximum: i64) -> Kind {
    Kind::Integer { minimum, maximum }
}

const fn optional_integer(minimum: i64, maximum: i64) -> Kind {
    Kind::OptionalInteger { minimum, maximum }
}

const fn bytes(minimum: i64, maximum: i64) -> Kind {
    Kind::Bytes { minimum, maximum }
}

const fn milliseconds(minimum: i64, maximum: i64) -> Kind {
    Kind::Milliseconds { minimum, maximum }
}

const NAME: Kind = Kind::Text { bytes_max: 249 };

/// Reasons that several keys share.
const ONE_NODE: &str = "clusters of several brokers are not built yet";
const SECURITY: &str = "only PLAINTEXT is built so far; TLS and SASL are not";
const SHARE_GROUPS: &str = "share groups are not built yet";
const TRANSACTIONS: &str = "transactions are not built yet";
const THREADS: &str =
    "there are no such threads here: one thread runs each shard; set ringlog.shards instead";
const QUOTAS: &str = "quotas are not built yet";
const FLUSH: &str = "an acknowledged record is always durable first, so there is nothing to schedule";

pub(super) const ALL: &[Key] = &[
    // ---- identity and storage
    fixed(built("node.id", integer(0, I32_MAX), "1", "The number of this broker in its cluster.")),
    built("broker.id", Kind::Alias("node.id"), "", "Kafka's older name of node.id."),
    built(
        "broker.rack",
        NAME,
        "",
        "The rack or zone of this broker, as Metadata reports it to clients. Empty for none.",
    ),
    built(
        "log.dirs",
        Kind::Directory,
        "auto",
        "The data directory; made when absent. `auto`: $STATE_DIRECTORY where systemd sets it, /var/lib/ringlog for \
         root, otherwise $XDG_DATA_HOME/ringlog or ~/.local/share/ringlog. One directory only: several are refused.",
    ),
    built(
        "log.dir",
        Kind::Alias("log.dirs"),
        "",
        "Kafka's name for a single directory; log.dirs wins over it.",
    ),
    built(
        "ringlog.ephemeral",
        Kind::Boolean,
        "false",
        "Keep everything in memory and write no file: for tests. All records are lost at exit.",
    ),
    built(
        "ringlog.journal.dir",
        Kind::Directory,
        "auto",
        "Where the commit journals lie, to put them on a device of their own. `auto`: inside the data directory.",
    ),
    built(
        "ringlog.journal.file.bytes",
        Kind::AutoBytes { minimum: 2 * MIB, maximum: KIB * MIB },
        "auto",
        "Size of one journal file of a shard. `auto`: 8 MiB in the dev profile, 64 MiB in the server profile.",
    ),
    built(
        "ringlog.journal.files",
        Kind::AutoInteger { minimum: 2, maximum: 64 },
        "auto",
        "Journal files of a shard. `auto`: 2 in the dev profile, 4 in the server profile.",
    ),
    built(
        "ringlog.bypass.bytes",
        bytes(0, I32_MAX),
        "0",
        "A batch of at least so many bytes is written to its segment at once, and its journal gets only a reference: fewer \
         bytes are written in all, for a sync of the segment's own. 0: only a batch that no file of the journal could hold.",
    ),
    built(
        "ringlog.scrub.bytes.per.second",
        bytes(0, i64::MAX),
        "4MiB",
        "How fast each shard reads its segments in the background to compare them with their checksums, once a day at most; \
         0: never.",
    ),
    built(
        "ringlog.disk.reserve.bytes",
        Kind::AutoBytes { minimum: 0, maximum: i64::MAX },
        "auto",
        "Bytes of the data directory's file system that stay free. What is in a journal and not yet in a segment counts as \
         used. Below twice this producers are slowed down; at it they are refused with KAFKA_STORAGE_ERROR, which clients \
         retry, while fetches, deletes and administration go on; producing resumes by itself. `auto`: the smaller of \
         1 GiB and a twentieth of the file system.",
    ),
    built(
        "ringlog.disk.warn.bytes",
        Kind::AutoBytes { minimum: 0, maximum: i64::MAX },
        "auto",
        "With less free a line is logged and /healthz says so. `auto`: four times ringlog.disk.reserve.bytes.",
    ),
    not_built(
        "ringlog.durability",
        Kind::Choice(&["strict", "relaxed"]),
        "strict",
        "relaxed durability is not built yet: every acknowledged record is durable first",
        "What acks=all promises: `strict` means durable on the commit quorum before the acknowledgement.",
    ),
    // ---- listeners
    built(
        "listeners",
        Kind::Listeners,
        "PLAINTEXT://127.0.0.1:9092",
        "The address that clients connect to. An empty host means every IPv4 interface. Port 0 takes a free port. \
         The default binds loopback, so that nothing is exposed unasked.",
    ),
    built(
        "advertised.listeners",
        Kind::AdvertisedListeners,
        "auto",
        "The address that clients are told to connect to. `auto` answers with the address that the client reached, \
         which is right on a host, on another host and behind a container's published port of the same number.",
    ),
    not_built(
        "listener.security.protocol.map",
        Kind::Text { bytes_max: 4096 },
        "PLAINTEXT:PLAINTEXT",
        SECURITY,
        "Kafka's map from listener names to protocols.",
    ),
    not_built("inter.broker.listener.name", NAME, "PLAINTEXT", ONE_NODE, "The listener that brokers use."),
    built(
        "max.connections",
        integer(1, I32_MAX),
        "2147483647",
        "Client connections at once. The limit on open files bounds it too; the banner prints the result.",
    ),
    dynamic(built(
        "max.connections.per.ip",
        integer(1, I32_MAX),
        "2147483647",
        "Client connections at once from one address.",
    )),
    built(
        "connections.max.idle.ms",
        milliseconds(1000, i64::MAX),
        "600000",
        "A connection without a request for so long is closed.",
    ),
    not_built(
        "max.connection.creation.rate",
        integer(1, I32_MAX),
        "2147483647",
        QUOTAS,
        "New connections a second.",
    ),
    built(
        "socket.request.max.bytes",
        bytes(64 * KIB, I32_MAX),
        "104857600",
        "The largest request frame. A longer one closes its connection before any of it is read.",
    ),
    not_built(
        "socket.send.buffer.bytes",
        integer(-1, I32_MAX),
        "102400",
        "the kernel tunes this buffer by itself",
        "SO_SNDBUF of client sockets.",
    ),
    not_built(
        "socket.receive.buffer.bytes",
        integer(-1, I32_MAX),
        "102400",
        "the kernel tunes this buffer by itself",
        "SO_RCVBUF of client sockets.",
    ),
    not_built(
        "socket.listen.backlog.size",
        integer(1, I32_MAX),
        "50",
        "the backlog is fixed at the kernel's own limit",
        "Backlog of the listening socket.",
    ),
    not_built(
        "queued.max.requests",
        integer(1, I32_MAX),
        "500",
        "what waits is bounded by bytes a shard; set ringlog.memory instead",
        "Requests that may wait in Kafka's queue.",
    ),
    not_built(
        "queued.max.request.bytes",
        integer(-1, i64::MAX),
        "-1",
        "what waits is bounded by bytes a shard; set ringlog.memory instead",
        "Bytes that may wait in Kafka's queue.",
    ),
    not_built(
        "request.timeout.ms",
        milliseconds(1, I32_MAX),
        "30000",
        ONE_NODE,
        "How long a broker waits for another broker's answer.",
    ),
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
    not_built(
        "max.request.partition.size.limit",
        integer(1, I32_MAX),
        "2000",
        "DescribeTopicPartitions is not built yet",
        "Partitions in one DescribeTopicPartitions answer.",
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
    // ---- cluster
    not_built("process.roles", NAME, "broker,controller", ONE_NODE, "Kafka's roles of this process."),
    not_built(
        "controller.listener.names",
        NAME,
        "CONTROLLER",
        "the controller runs inside the broker and needs no listener",
        "Listeners of Kafka's controller.",
    ),
    not_built("controller.quorum.voters", NAME, "", ONE_NODE, "Kafka's static controller quorum."),
    not_built(
        "controller.quorum.bootstrap.servers",
        NAME,
        "",
        ONE_NODE,
        "Where Kafka finds its controllers.",
    ),
    not_built(
        "replica.lag.time.max.ms",
        milliseconds(1, i64::MAX),
        "30000",
        ONE_NODE,
        "How long a follower may be behind and count as in sync.",
    ),
    not_built(
        "replica.fetch.max.bytes",
        integer(0, I32_MAX),
        "1048576",
        ONE_NODE,
        "Bytes a partition that a follower fetches.",
    ),
    not_built(
        "num.replica.fetchers",
        integer(1, I32_MAX),
        "1",
        THREADS,
        "Threads that fetch from another broker.",
    ),
    not_built("num.network.threads", integer(1, I32_MAX), "3", THREADS, "Kafka's network threads."),
    not_built("num.io.threads", integer(1, I32_MAX), "8", THREADS, "Kafka's request handler threads."),
    not_built("background.threads", integer(1, I32_MAX), "10", THREADS, "Kafka's background threads."),
    // ---- groups and transactions
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
    // ---- cores, memory, input and output
    built(
        "ringlog.profile",
        Kind::Choice(&["auto", "dev", "server"]),
        "auto",
        "How much of the machine to take. `dev`: at most 4 shards, a small share of memory, no pinning. `server`: a \
         shard on every physical core the process may use, half of the memory, pinned. `auto`: server on bare metal \
         with at least 8 CPUs and 16 GiB outside containers, dev elsewhere; the banner says which and why.",
    ),
    built(
        "ringlog.shards",
        Kind::AutoInteger { minimum: 1, maximum: 256 },
        "auto",
        "Shards, each one thread. It may change at any start: storage does not know it.",
    ),
    built(
        "ringlog.cpuset",
        Kind::CpuList,
        "",
        "CPUs to run shards on, in order. It must lie within what the process may use.",
    ),
    built(
        "ringlog.pin",
        Kind::Choice(&["auto", "true", "false"]),
        "auto",
        "Bind each shard to its CPU. `auto`: in the server profile, or when ringlog.cpuset is set.",
    ),
    built(
        "ringlog.memory",
        Kind::Memory,
        "auto",
        "Memory of all shards together. `auto`: of what the container or machine allows, an eighth but at most 1 GiB in the dev profile, half in the server profile. The page cache comes on top.",
    ),
    built(
        "ringlog.io.driver",
        Kind::Choice(&["auto", "io_uring", "epoll"]),
        "auto",
        "How the kernel is asked. `auto`: io_uring, or epoll where io_uring is refused, with a log line that says why.",
    ),
    built(
        "ringlog.io.features",
        Kind::Features,
        "",
        "Kernel features to leave unused (`-cachestat`) or to insist on (`+cachestat`), whatever the probe finds.",
    ),
    built(
        "ringlog.egress",
        Kind::Choice(&["auto", "send", "sendfile"]),
        "auto",
        "How records leave: copied by `send`, or from the page cache by `sendfile`. `auto` decides for each piece.",
    ),
    // ---- seen from outside
    built(
        "ringlog.admin.listen",
        Kind::Address,
        "127.0.0.1:9644",
        "Address of the admin HTTP server: /metrics, /healthz, /readyz, /slow, /config, /flight, /groups/<group>/timeline. It has no login, so keep it on loopback or a private network. `none` switches it off.",
    ),
    built(
        "ringlog.metrics.interval.ms",
        milliseconds(50, 60_000),
        "1000",
        "How often each shard publishes what it counted.",
    ),
    built(
        "ringlog.log.format",
        Kind::Choice(&["auto", "human", "json"]),
        "auto",
        "Log lines on standard error. `auto`: human on a terminal, otherwise json.",
    ),
    built("ringlog.log.level", Kind::LogFilter, "info", "What is logged."),
];
