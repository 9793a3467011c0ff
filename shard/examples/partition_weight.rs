//! What an idle partition with data weighs: opens so many that lie on disk, and compares the memory of the process before
//! and after, recovery included. Compare two numbers of partitions to leave out what does not depend on it.
//! `cargo run --release -p ringlog-shard --example partition_weight -- [PARTITIONS]` prints one line of JSON.

use std::path::Path;

use bytes::BytesMut;
use ringlog_io::{Executor, ExecutorConfig, Io};
use ringlog_protocol::ids::{NodeId, PartitionIndex, TopicId, TopicPartition};
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_raft::ids::{DirectoryId, ReplicaId};
use ringlog_shard::journal::recovery::recover;
use ringlog_shard::partition::IncomingBatch;
use ringlog_shard::storage::{CoreStorage, DataDirectory, Identity, LogSettings, StorageSettings};
use ringlog_shard::store::{Opening, Store};

const BATCHES: usize = 4;
const VALUE_BYTES: usize = 1000;
/// So that nothing of the records stays in memory by itself.
const SETTINGS: StorageSettings = StorageSettings { tail_bytes_max: 4 << 20, ..StorageSettings::DEV };

fn key(number: usize) -> TopicPartition {
    TopicPartition { topic: TopicId([7; 16]), partition: PartitionIndex(i32::try_from(number).unwrap_or(0)) }
}

/// Resident memory of this process in bytes.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * 4096
}

fn batch() -> IncomingBatch {
    let mut builder = BatchBuilder::new();
    let record = NewRecord { timestamp: 1, key: None, value: Some(&[7; VALUE_BYTES]), headers: &[] };
    builder.append(&record).expect("a small record");
    let bytes = builder.finish(&BatchOptions::default()).expect("it has a record");
    let header = BatchHeader::parse(&bytes).expect("just built");
    let buffer_bytes = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    IncomingBatch { header, bytes: BytesMut::from(&bytes[..]), buffer_bytes }
}

/// Starts, and opens `count` partitions; how much they added to this process's memory.
async fn open(io: &Io, path: &Path, count: usize) -> (Store, u64) {
    // What recovery needed and freed is used again by what is opened: so it counts from the beginning.
    let before = resident_bytes();
    let identity = Identity { cluster_id: None, node_id: NodeId(1) };
    let directory = DataDirectory::open(io, path, None, &identity).await.expect("a directory of ours");
    let mut recovery = recover(io, &directory, 1, &|_| 0, &SETTINGS).await.expect("recovery");
    let shard = recovery.shards.pop().expect("one core");
    let storage = CoreStorage::start(io.clone(), shard, SETTINGS).await.expect("start");
    let me = ReplicaId { node: NodeId(1), directory: DirectoryId([1; 16]) };
    let store = Store::new(io.clone(), storage.clone(), me, 86_400_000);
    let mut recovered: std::collections::BTreeMap<_, _> =
        storage.take_recovered().into_iter().map(|partition| (partition.key, partition)).collect();
    let openings = (0..count).map(key).map(|key| Opening {
        key,
        recovered: recovered.remove(&key),
        settings: LogSettings::default(),
    });
    let openings: Vec<Opening> = openings.collect();
    store.open(openings).await;
    (store, resident_bytes().saturating_sub(before))
}

async fn fill(io: Io, path: &Path, count: usize) {
    let (store, _) = open(&io, path, count).await;
    for _ in 0..BATCHES {
        for number in 0..count {
            store.room().await;
            store.append(key(number), batch(), None).expect("appended");
        }
    }
    store.storage().checkpoint().await.expect("checkpoint");
}

async fn measure(io: Io, path: &Path, count: usize) {
    let (store, opened_bytes) = open(&io, path, count).await;
    let stats = store.storage().stats();
    println!(
        "{{\"partitions\": {count}, \"bytes_per_partition\": {}, \"scanned_bytes\": {}, \"index_bytes\": {}, \"files_open\": {}}}",
        opened_bytes / count as u64,
        stats.scanned_bytes,
        stats.index_bytes,
        stats.files_open
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let count = arguments.first().and_then(|count| count.parse().ok()).unwrap_or(2000);
    let executor = Executor::new(ExecutorConfig::default()).expect("one driver always works");
    let io = executor.io();
    if let Some(path) = arguments.get(1) {
        executor.run(fill(io, Path::new(path), count));
        return;
    }
    let folder = tempfile::tempdir().expect("a folder for the measurement");
    // In a process of its own: what it freed would be used again here, and count for nothing.
    let this = std::env::current_exe().expect("it runs");
    let filled = std::process::Command::new(this).arg(count.to_string()).arg(folder.path()).status();
    assert!(filled.is_ok_and(|status| status.success()), "the folder was filled");
    executor.run(measure(io, folder.path(), count));
}
