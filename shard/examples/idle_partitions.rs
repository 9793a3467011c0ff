//! Memory of idle partitions: opens empty ones and prints the resident memory that each took.
//! `cargo run --release -p ringlog-shard --example idle_partitions -- [partitions]`

use ringlog_io::{Executor, ExecutorConfig};
use ringlog_protocol::ids::{NodeId, PartitionIndex, TopicId, TopicPartition};
use ringlog_raft::ids::{DirectoryId, ReplicaId};
use ringlog_shard::storage::{CoreStorage, LogSettings, StorageSettings};
use ringlog_shard::store::{Opening, Store};

fn resident_bytes() -> i64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: i64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}

fn main() {
    let count: i32 = std::env::args().nth(1).and_then(|count| count.parse().ok()).unwrap_or(10_000);
    let executor = Executor::new(ExecutorConfig::default()).expect("one driver always works");
    let io = executor.io();
    executor.run(async move {
        let storage = CoreStorage::start_ephemeral(io.clone(), StorageSettings::DEV);
        let me = ReplicaId { node: NodeId(1), directory: DirectoryId([7; 16]) };
        let store = Store::new(io, storage, me, 86_400_000);
        let before = resident_bytes();
        for first in (0..count).step_by(1000) {
            let openings = (first..count.min(first + 1000)).map(|partition| Opening {
                key: TopicPartition { topic: TopicId([9; 16]), partition: PartitionIndex(partition) },
                recovered: None,
                settings: LogSettings::default(),
            });
            store.open(openings.collect()).await;
        }
        let each = (resident_bytes() - before) / i64::from(count.max(1));
        println!("{count} idle partitions: {each} bytes of resident memory each");
    });
}
