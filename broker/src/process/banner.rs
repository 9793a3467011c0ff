//! Owns the start-up banner: at most 15 lines that say what was decided and why. Pure.

use std::fmt::Write;
use std::net::SocketAddr;

use super::plan::{ServingListener, Sizing};
use crate::config::typed::{Profile, StorageMode};

const MIB: u64 = 1 << 20;

/// What the banner tells.
#[derive(Debug)]
pub struct BannerInputs<'a> {
    /// `ringlog 0.1.0`
    pub version: &'a str,
    pub node_id: i32,
    pub cluster_id: &'a str,
    pub driver: &'a str,
    pub durability: &'a str,
    pub sizing: &'a Sizing,
    pub storage: &'a StorageMode,
    /// Of the data directory's file system.
    pub free_bytes: Option<u64>,
    pub listeners: &'a [ServingListener],
    pub admin: Option<SocketAddr>,
}

/// The lines, each ended by a line end.
pub fn banner(inputs: &BannerInputs<'_>) -> String {
    let mut text = format!("{}, node {}, cluster {}\n", inputs.version, inputs.node_id, inputs.cluster_id);
    let mut line = |label: &str, value: String| {
        writeln!(text, "  {label:<11} {value}").expect("a String takes every write");
    };
    line("profile", profile(inputs.sizing));
    line("driver", inputs.driver.to_owned());
    line("shards", shards(inputs.sizing));
    line("memory", memory(inputs.sizing));
    line("data", data(inputs.storage, inputs.free_bytes));
    line("durability", inputs.durability.to_owned());
    for listener in inputs.listeners {
        line("listening", format!("{}, clients are told {}", listener.bound, told(listener)));
    }
    match inputs.admin {
        Some(address) => line("admin", format!("http://{address}/")),
        None => line("admin", "off".to_owned()),
    }
    line("capacity", capacity(inputs.sizing));
    text
}

fn profile(sizing: &Sizing) -> String {
    let name = match sizing.profile {
        Profile::Dev => "dev",
        Profile::Server => "server",
    };
    format!("{name} ({})", sizing.profile_reason)
}

fn shards(sizing: &Sizing) -> String {
    let cpus: Vec<String> = sizing.shard_cpus.iter().flatten().map(u32::to_string).collect();
    match cpus.is_empty() {
        true => format!("{}, not pinned", sizing.shard_cpus.len()),
        false => format!("{}, pinned to CPUs {}", sizing.shard_cpus.len(), cpus.join(",")),
    }
}

fn memory(sizing: &Sizing) -> String {
    let (all, each) = (sizing.memory_bytes / MIB, sizing.memory_per_shard_bytes / MIB);
    format!("{all} MiB, {each} MiB a shard; the page cache comes on top")
}

fn data(storage: &StorageMode, free_bytes: Option<u64>) -> String {
    match storage {
        StorageMode::Ephemeral => "in memory only: everything is lost at exit".to_owned(),
        StorageMode::Durable { data_directory, .. } => match free_bytes {
            Some(free) => {
                format!("{}, {:.1} GiB free", data_directory.display(), free as f64 / (MIB << 10) as f64)
            }
            None => data_directory.display().to_string(),
        },
    }
}

/// The listener as clients will see it.
fn told(listener: &ServingListener) -> String {
    match &listener.advertised {
        Some(address) => address.clone(),
        None if listener.bound.ip().is_unspecified() => "the address that each reached".to_owned(),
        None => listener.bound.to_string(),
    }
}

fn capacity(sizing: &Sizing) -> String {
    let capacity = &sizing.capacity;
    format!(
        "{} connections (bounded by {}), about {} partitions (by {}), {} segment files a shard, journals of {} MiB",
        capacity.connections_max,
        capacity.connections_bound.name(),
        capacity.partitions_planned,
        capacity.partitions_bound.name(),
        capacity.segment_files_per_shard,
        capacity.journal_bytes / MIB
    )
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::process::capacity::{Bound, Capacity};

    #[test]
    fn the_whole_banner() {
        let sizing = Sizing {
            profile: Profile::Dev,
            profile_reason: "on a virtual machine",
            shard_cpus: vec![None, None],
            memory_bytes: 512 * MIB,
            memory_per_shard_bytes: 256 * MIB,
            journal_file_bytes: 8 * MIB,
            journal_files: 2,
            capacity: Capacity {
                connections_max: 100,
                connections_bound: Bound::OpenFiles,
                partitions_planned: 9,
                partitions_bound: Bound::Memory,
                segment_files_per_shard: 4,
                journal_bytes: 32 * MIB,
            },
        };
        let directory = PathBuf::from("/data");
        let storage =
            StorageMode::Durable { journal_directory: directory.join("journal"), data_directory: directory };
        let listeners = [
            ServingListener { bound: SocketAddr::from(([0, 0, 0, 0], 9092)), advertised: None },
            ServingListener {
                bound: SocketAddr::from(([0, 0, 0, 0], 9093)),
                advertised: Some("host:19093".to_owned()),
            },
        ];
        let mut inputs = BannerInputs {
            version: "ringlog 0.1.0",
            node_id: 1,
            cluster_id: "abc",
            driver: "io_uring",
            durability: "fsync before ack",
            sizing: &sizing,
            storage: &storage,
            free_bytes: Some(3 << 29),
            listeners: &listeners,
            admin: Some(SocketAddr::from(([127, 0, 0, 1], 9644))),
        };
        let text = banner(&inputs);
        assert_eq!(
            text,
            "ringlog 0.1.0, node 1, cluster abc\n  \
             profile     dev (on a virtual machine)\n  \
             driver      io_uring\n  \
             shards      2, not pinned\n  \
             memory      512 MiB, 256 MiB a shard; the page cache comes on top\n  \
             data        /data, 1.5 GiB free\n  \
             durability  fsync before ack\n  \
             listening   0.0.0.0:9092, clients are told the address that each reached\n  \
             listening   0.0.0.0:9093, clients are told host:19093\n  \
             admin       http://127.0.0.1:9644/\n  \
             capacity    100 connections (bounded by open files), about 9 partitions (by memory), 4 segment files a \
             shard, journals of 32 MiB\n"
        );
        assert!(text.lines().count() <= 15);
        let pinned = Sizing { shard_cpus: vec![Some(2), Some(3)], ..sizing.clone() };
        inputs.sizing = &pinned;
        inputs.storage = &StorageMode::Ephemeral;
        inputs.admin = None;
        let text = banner(&inputs);
        assert!(
            text.contains("2, pinned to CPUs 2,3\n")
                && text.contains("in memory only")
                && text.contains("off\n")
        );
    }
}
