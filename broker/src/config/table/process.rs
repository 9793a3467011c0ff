//! The keys of what the process takes of the machine, and what it shows.

use super::{built, milliseconds};
use crate::config::keys::{Key, Kind};

pub(super) const KEYS: &[Key] = &[
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
