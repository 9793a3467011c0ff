//! Produces to a store on a simulated host, to be counted by `valgrind --tool=callgrind`: instructions of two runs of different length
//! differ by those of the batches between, and by nothing else. `scripts/measure.py raft --only produce` does it.
//!
//! `produce_instructions BATCHES RECORDS_PER_BATCH`

use std::cell::Cell;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use ringlog_io::sim::{Outcome, World};
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::{NodeId, PartitionIndex, TopicId, TopicPartition};
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_raft::ids::{DirectoryId, ReplicaId};
use ringlog_shard::journal::recovery::recover;
use ringlog_shard::partition::IncomingBatch;
use ringlog_shard::storage::{CoreStorage, DataDirectory, Identity, LogSettings, StorageSettings};
use ringlog_shard::store::{Opening, Store};
use ringlog_shard::waiters::CommitGather;

/// A request's worth of partitions: they share journal frames, as in a broker under load.
const PARTITIONS: i32 = 4;
const RECORD_BYTES: usize = 100;
const SETTINGS: StorageSettings = StorageSettings::DEV;
const PRODUCER_EXPIRATION_MS: i64 = 86_400_000;

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|argument| argument.parse::<u32>());
    let (Some(Ok(batches)), Some(Ok(records))) = (numbers.next(), numbers.next()) else {
        eprintln!("usage: produce_instructions BATCHES RECORDS_PER_BATCH");
        return ExitCode::from(2);
    };
    let world = World::new(1);
    let io = world.host("node").executor();
    let done = Rc::new(Cell::new(false));
    let (set, work) = (Rc::clone(&done), io.clone());
    io.spawn(Priority::Foreground, async move {
        produce(&work, batches, records).await;
        set.set(true);
    })
    .detach();
    match world.run_until(|| done.get(), Duration::from_secs(1_000_000)) {
        Outcome::Done => ExitCode::SUCCESS,
        outcome => {
            eprintln!("the simulation ended with {outcome:?}");
            ExitCode::FAILURE
        }
    }
}

async fn produce(io: &Io, batches: u32, records: u32) {
    let identity = Identity { cluster_id: None, node_id: NodeId(1) };
    let directory =
        DataDirectory::open(io, Path::new("/data"), None, &identity).await.expect("a new directory");
    let recovery = recover(io, &directory, 1, &|_| 0, &SETTINGS).await.expect("nothing to recover");
    let shard = recovery.shards.into_iter().next().expect("one core");
    let storage = CoreStorage::start(io.clone(), shard, SETTINGS).await.expect("start");
    let me = ReplicaId { node: NodeId(1), directory: DirectoryId([1; 16]) };
    let store = Store::new(io.clone(), storage, me, PRODUCER_EXPIRATION_MS);
    let keys: Vec<TopicPartition> = (0..PARTITIONS)
        .map(|partition| TopicPartition { topic: TopicId([1; 16]), partition: PartitionIndex(partition) })
        .collect();
    let opening =
        |key: &TopicPartition| Opening { key: *key, recovered: None, settings: LogSettings::default() };
    store.open(keys.iter().map(opening).collect()).await;
    let bytes = batch(records);
    let header = BatchHeader::parse(&bytes).expect("just built");
    let buffer_bytes = bytes.len() as u32;
    for _ in 0..batches.div_ceil(PARTITIONS.unsigned_abs()) {
        let gather = CommitGather::new();
        store.room().await;
        for (tag, key) in (0..).zip(&keys) {
            let batch = IncomingBatch { header, bytes: BytesMut::from(&bytes[..]), buffer_bytes };
            store.append(*key, batch, Some(gather.ticket(tag))).expect("append");
        }
        assert_eq!(gather.finish().await, []);
    }
}

fn batch(records: u32) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    let value = [7; RECORD_BYTES];
    for _ in 0..records {
        let record = NewRecord { timestamp: 1, key: None, value: Some(&value), headers: &[] };
        builder.append(&record).expect("a small record");
    }
    builder.finish(&BatchOptions::default()).expect("it has records")
}
