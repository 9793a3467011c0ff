//! How the golden data directories are made and packed: a node on the simulated disk, so that one build makes one directory.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use ringlog_io::sim::World;
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::{NodeId, Offset, ProducerEpoch, ProducerId, Sequence, TopicPartition};
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::compression::Compression;
use ringlog_protocol::records::validate::BatchProducer;
use ringlog_raft::ids::{DirectoryId, ReplicaId};
use ringlog_shard::journal::recovery::recover;
use ringlog_shard::partition::IncomingBatch;
use ringlog_shard::storage::{LogSettings, RecoveredPartition, RecoveryReport, StorageSettings};
use ringlog_shard::store::{Opening, Store};

use crate::storage_support::{SMALL, core_of, open_directory, start_cores};

/// Names below a folder, and bytes.
pub type Files = BTreeMap<String, Vec<u8>>;

/// Large batches go by reference.
const SETTINGS: StorageSettings = StorageSettings { bypass_bytes: 20_000, ..SMALL };
/// A closed segment has complete blocks and an incomplete one.
const LOG: LogSettings =
    LogSettings { segment_bytes: 150_000, index_interval_bytes: 4096, ..LogSettings::KEEP_ALL };
/// Producers never go by age: the directory grows old.
const PRODUCER_EXPIRATION_MS: i64 = i64::MAX;
const DIRECTORY: &str = "/node";

pub fn pack(files: &Files) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, content) in files {
        bytes.extend_from_slice(&(name.len() as u32).to_le_bytes());
        bytes.extend_from_slice(name.as_bytes());
        bytes.extend_from_slice(&(content.len() as u64).to_le_bytes());
        bytes.extend_from_slice(content);
    }
    zstd::encode_all(&bytes[..], 19).expect("memory")
}

pub fn unpack(packed: &[u8]) -> Files {
    let bytes = zstd::decode_all(packed).expect("packed by pack");
    let mut rest = &bytes[..];
    let mut take = |count: usize| {
        let (taken, left) = rest.split_at_checked(count)?;
        rest = left;
        Some(taken)
    };
    let mut files = Files::new();
    while let Some(length) = take(4) {
        let length = u32::from_le_bytes(length.try_into().expect("four bytes"));
        let name = take(length as usize).expect("a name").to_vec();
        let length = u64::from_le_bytes(take(8).expect("a length").try_into().expect("eight bytes"));
        let content = take(usize::try_from(length).expect("small")).expect("its bytes").to_vec();
        files.insert(String::from_utf8(name).expect("a name"), content);
    }
    files
}

pub fn name_of(key: TopicPartition) -> String {
    format!("{}-{}", key.topic, key.partition)
}

/// A node with the partitions that recovery found, on so many cores.
pub struct Node {
    pub stores: Vec<Store>,
    pub recovered: Vec<RecoveredPartition>,
    pub report: RecoveryReport,
}

impl Node {
    pub async fn start(io: &Io, path: &Path, cores: u32) -> Node {
        let directory = open_directory(io, path).await;
        let recovery = recover(io, &directory, cores, &core_of(cores), &SETTINGS).await.expect("recovery");
        let report = recovery.report.clone();
        assert_eq!(report.corruption, Vec::<String>::new());
        let me = ReplicaId { node: NodeId(1), directory: DirectoryId([7; 16]) };
        let mut node = Node { stores: Vec::new(), recovered: Vec::new(), report };
        for storage in start_cores(io, recovery, SETTINGS).await {
            let recovered = storage.take_recovered();
            let store = Store::new(io.clone(), storage, me, PRODUCER_EXPIRATION_MS);
            let opening = |recovered: &RecoveredPartition| Opening {
                key: recovered.key,
                recovered: Some(recovered.clone()),
                settings: LOG,
            };
            store.open(recovered.iter().map(opening).collect()).await;
            node.stores.push(store);
            node.recovered.extend(recovered);
        }
        node.recovered.sort_by_key(|recovered| recovered.key);
        node
    }

    pub fn store_of(&self, key: TopicPartition) -> &Store {
        &self.stores[core_of(self.stores.len() as u32)(key) as usize]
    }

    async fn create(&self, key: TopicPartition) {
        self.store_of(key).open(vec![Opening { key, recovered: None, settings: LOG }]).await;
    }

    async fn settle(&self, io: &Io) {
        let is_settled = |key| {
            let look = |log: &ringlog_shard::storage::Log| log.durable_end() == log.log_end();
            self.store_of(key).with_log(key, look).unwrap_or(true)
        };
        while ![A, B, C, GONE].into_iter().all(is_settled) {
            io.sleep(Duration::from_millis(1)).await;
        }
    }

    async fn checkpoint(&self) {
        for store in &self.stores {
            store.storage().checkpoint().await.expect("checkpoint");
        }
    }
}

/// Two topics with three partitions, and one that was deleted.
const A: TopicPartition = key(1, 0);
const B: TopicPartition = key(1, 1);
const C: TopicPartition = key(2, 0);
const GONE: TopicPartition = key(3, 0);

const fn key(topic: u8, number: i32) -> TopicPartition {
    use ringlog_protocol::ids::{PartitionIndex, TopicId};
    TopicPartition { topic: TopicId([topic; 16]), partition: PartitionIndex(number) }
}

/// Who sends to a partition, and what comes next.
struct Sender {
    key: TopicPartition,
    producer: Option<i64>,
    sequence: i32,
    compression: Compression,
}

impl Sender {
    fn new(key: TopicPartition, producer: Option<i64>, compression: Compression) -> Sender {
        Sender { key, producer, sequence: 0, compression }
    }

    /// Appends a batch of so many records.
    async fn send(&mut self, node: &Node, records: i32, value_bytes: usize) {
        let mut builder = BatchBuilder::new();
        for record in 0..records {
            let sequence = self.sequence + record;
            let mut value = format!("{}/{:?}/{sequence}/", name_of(self.key), self.producer).into_bytes();
            value.resize(value_bytes.max(value.len()), b'a' + (sequence % 26) as u8);
            let key = format!("key-{sequence}");
            let timestamp = 1_700_000_000_000 + i64::from(sequence);
            let record =
                NewRecord { timestamp, key: Some(key.as_bytes()), value: Some(&value), headers: &[] };
            builder.append(&record).expect("a small record");
        }
        let producer = self.producer.map(|id| BatchProducer {
            id: ProducerId(id),
            epoch: ProducerEpoch(3),
            base_sequence: Sequence(self.sequence),
        });
        let options = BatchOptions { producer, compression: self.compression, ..BatchOptions::default() };
        let bytes = builder.finish(&options).expect("a small batch");
        let header = BatchHeader::parse(&bytes).expect("just built");
        let buffer_bytes = bytes.len() as u32;
        let batch = IncomingBatch { header, bytes: BytesMut::from(&bytes[..]), buffer_bytes };
        let store = node.store_of(self.key);
        store.room().await;
        assert!(!store.append(self.key, batch, None).expect("taken").duplicate);
        self.sequence += records;
    }
}

async fn move_start(node: &Node, key: TopicPartition, offset: i64) {
    let store = node.store_of(key);
    let moved = store.delete_records(key, Some(Offset(offset))).expect("in range");
    store.start_durable(moved).await.expect("durable");
}

/// The first life leaves segments, sidecars, a checkpoint and log starts; the second carries them on and writes every kind of
/// entry; then the node is killed.
async fn live_twice(io: &Io) -> Files {
    let mut a = Sender::new(A, Some(1000), Compression::None);
    let mut a_too = Sender::new(A, Some(1001), Compression::Lz4);
    let mut b = Sender::new(B, Some(1000), Compression::Zstd);
    let mut c = Sender::new(C, None, Compression::None);
    let mut c_too = Sender::new(C, Some(1002), Compression::Gzip);
    let node = Node::start(io, Path::new(DIRECTORY), 2).await;
    for key in [A, B, C, GONE] {
        node.create(key).await;
    }
    for _ in 0..45 {
        a.send(&node, 3, 4000).await;
        a_too.send(&node, 2, 500).await;
        b.send(&node, 1, 100).await;
    }
    c_too.send(&node, 7, 300).await;
    Sender::new(GONE, Some(1003), Compression::None).send(&node, 1, 100).await;
    node.settle(io).await;
    node.checkpoint().await;
    move_start(&node, A, 70).await;
    move_start(&node, B, 4).await;
    node.checkpoint().await;
    drop(node);
    io.sleep(Duration::from_secs(5)).await;

    let node = Node::start(io, Path::new(DIRECTORY), 2).await;
    for _ in 0..6 {
        a.send(&node, 2, 3000).await;
        b.send(&node, 2, 200).await;
        c.send(&node, 1, 1000).await;
    }
    node.settle(io).await;
    node.checkpoint().await;
    // The first goes by reference, the rest waits for it and is one run of references.
    for _ in 0..4 {
        c.send(&node, 3, 8000).await;
    }
    node.settle(io).await;
    move_start(&node, B, 9).await;
    for _ in 0..3 {
        a.send(&node, 1, 500).await;
        b.send(&node, 1, 50).await;
        a_too.send(&node, 1, 50).await;
        c_too.send(&node, 1, 50).await;
        node.settle(io).await;
    }
    // Deleted, but its folder is there still: a crash between the two.
    let before = read_folder(io, Path::new(DIRECTORY)).await;
    node.store_of(GONE).delete(GONE);
    io.sleep(Duration::from_secs(5)).await;
    let mut files = read_folder(io, Path::new(DIRECTORY)).await;
    let folder = format!("data/{}/", GONE.topic);
    assert!(!files.keys().any(|name| name.starts_with(&folder)), "deleted");
    files.extend(before.into_iter().filter(|(name, _)| name.starts_with(&folder)));
    files
}

/// Every file below `path`.
async fn read_folder(io: &Io, path: &Path) -> Files {
    let mut files = Files::new();
    let mut folders: Vec<PathBuf> = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in io.list_directory(&folder).await.expect("a healthy disk") {
            let found = folder.join(&entry.name);
            if entry.is_directory {
                folders.push(found);
                continue;
            }
            let name = found.strip_prefix(path).expect("below it").display().to_string();
            files.insert(name, io.read_file(&found).await.expect("a healthy disk"));
        }
    }
    files
}

/// The data directory of the format that this build writes.
pub fn write_directory() -> Files {
    let world = World::new(1);
    let io = world.host("node").executor();
    let files: Rc<RefCell<Option<Files>>> = Rc::default();
    let (driver, written) = (io.clone(), Rc::clone(&files));
    let task = async move { *written.borrow_mut() = Some(live_twice(&io).await) };
    driver.spawn(Priority::Foreground, task).detach();
    let outcome = world.run_until(|| files.borrow().is_some(), Duration::from_secs(3600));
    let files = files.take();
    files.unwrap_or_else(|| panic!("{outcome:?}"))
}
