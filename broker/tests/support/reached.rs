//! The rare branches that a soak must have been in: a run that never was there proves nothing of them.
//!
//! Each is marked in the sources by `ringlog_io::reached!("name")`, with a literal name, and listed here. A test compares
//! the two.

use std::fs;
use std::path::{Path, PathBuf};

/// The branches that the simulated broker of one node can be in, sorted.
pub const BRANCHES: &[&str] = &[
    "bypass.journalled_instead",
    "bypass.run",
    "checkpoint.carried",
    "descriptors.closed",
    "egress.reply_stalled",
    "fetch.read_failed",
    "flush.no_space",
    "flush.rewritten",
    "journal.file_reused",
    "log_start.advanced",
    "machine_snapshot.restored",
    "machine_snapshot.saved",
    "mesh.out_of_credits",
    "open.checkpoint_refused",
    "open.footer_taken",
    "open.sidecar_unusable",
    "open.tail_cut",
    "open.tail_only",
    "poison.core",
    "poison.log",
    "producer.duplicate",
    "recovery.log_start",
    "recovery.torn_frame",
    "retention.retired",
    "roll.by_time",
    "server.hung_up",
    "sidecar.rebuilt",
    "sim.clock_jumped",
    "sim.connection_broken",
    "sim.link_slow",
    "sim.packet_parked",
    "space.refused",
    "space.resumed",
    "space.throttled",
];

/// Branches that one node, or its faults, cannot be in, sorted: others look for them.
pub const ELSEWHERE: &[(&str, &str)] = &[
    ("begin_anew.applied", "shard/tests/storage/begin_anew.rs and the crash seeds"),
    ("bypass.waits_for_the_segments", "shard/tests/storage_bypass.rs"),
    ("checkpoint.nothing_due", "shard/tests/storage_bypass.rs"),
    ("compaction.done", "shard/tests/storage/compaction.rs"),
    ("compaction.failed", "shard/tests/storage/store_compaction.rs"),
    ("compaction.map_full", "shard/tests/storage/compaction.rs"),
    ("compaction.swapped", "shard/tests/storage/compaction.rs"),
    ("descriptors.waited_for", "shard/tests/storage/no_descriptor.rs"),
    ("groups.answer_unwanted", "broker/tests/groups/classic_groups.rs"),
    ("groups.load_failed", "broker/tests/groups/classic_groups.rs"),
    ("groups.missing_topics", "broker/tests/groups/classic_groups.rs"),
    ("open.emptied_at_start", "shard/tests/storage/begin_anew.rs"),
    ("recovery.begin_anew", "shard/tests/storage/begin_anew.rs and the crash seeds"),
    ("recovery.read_again", "shard/tests/storage/read_errors.rs"),
    ("recovery.swap_finished", "shard/tests/storage/compaction.rs"),
    ("replica.commit_out_of_reach", "shard/tests/replicas.rs"),
    ("replica.copy_begun", "shard/tests/replicas.rs"),
    ("replica.copy_installed", "shard/tests/replicas.rs"),
    ("replica.copy_moved", "shard/tests/replicas.rs"),
    ("replica.fed_from_file", "shard/tests/replicas.rs"),
    ("replica.log_start_followed", "shard/tests/replicas.rs"),
    ("replica.truncated", "shard/tests/replicas.rs"),
    ("replica.unverified", "shard/tests/replicas.rs"),
    ("visit.record_offered", "shard/tests/storage/visit.rs"),
];

/// All that are listed, sorted.
pub fn listed() -> Vec<String> {
    let elsewhere = ELSEWHERE.iter().map(|(name, _)| name);
    let mut names: Vec<String> = BRANCHES.iter().chain(elsewhere).map(ToString::to_string).collect();
    names.sort();
    names
}

/// The names in the sources, sorted.
pub fn in_sources() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folders = ["raft/src", "shard/src", "shard/io/src", "broker/src"];
    let mut names = Vec::new();
    let mut pending: Vec<PathBuf> = folders.iter().map(|folder| root.join(folder)).collect();
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            pending.extend(entries.map(|entry| entry.expect("a readable folder").path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text =
                fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            names.extend(marks(&text));
        }
    }
    names.sort();
    names.dedup();
    names
}

fn marks(text: &str) -> Vec<String> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let marked = code.filter_map(|line| line.split_once("reached!(\"")?.1.split_once('"'));
    marked.map(|(name, _)| name.to_owned()).collect()
}
