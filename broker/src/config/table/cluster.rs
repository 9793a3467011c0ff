//! The keys of clusters and Kafka's threads.

use super::{I32_MAX, NAME, ONE_NODE, THREADS, integer, milliseconds, not_built};
use crate::config::keys::Key;

pub(super) const KEYS: &[Key] = &[
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
];
