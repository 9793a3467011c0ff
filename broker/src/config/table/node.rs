//! The keys of who the broker is, where it keeps bytes, and where clients reach it.

use super::{
    I32_MAX, KIB, MIB, NAME, ONE_NODE, built, bytes, dynamic, fixed, integer, milliseconds, not_built,
};
use crate::config::keys::{Key, Kind};

const SECURITY: &str = "only PLAINTEXT is built so far; TLS and SASL are not";

const QUOTAS: &str = "quotas are not built yet";

pub(super) const KEYS: &[Key] = &[
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
];
