//! What the storage tests share: executors on each driver, batches, and a model of what was acknowledged.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use ringlog_io::{DriverKind, Executor, ExecutorConfig, Io};
use ringlog_protocol::ids::{LeaderEpoch, NodeId, Offset, PartitionIndex, TopicId, TopicPartition};
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_shard::journal::JournalSettings;
use ringlog_shard::journal::recovery::recover;
use ringlog_shard::storage::{
    CoreStorage, DataDirectory, Durable, Identity, LogId, LogPiece, LogSettings, NodeRecovery,
    RecoveredPartition, StampedBatch, StorageSettings,
};

/// The smallest journal that works, so that files are recycled all the time.
pub const SMALL: StorageSettings = StorageSettings {
    journal: JournalSettings { file_bytes: 2 * 1024 * 1024, file_count_start: 2, file_count_max: 3 },
    tail_bytes_max: 64 * 1024 * 1024,
    ..StorageSettings::DEV
};

pub const SEGMENTS_OF_64K: LogSettings =
    LogSettings { segment_bytes: 64 * 1024, index_interval_bytes: 4096, ..LogSettings::KEEP_ALL };

/// Runs `main` on each driver that this kernel allows; epoll always is one.
pub fn on_each_driver<F: Future<Output = ()>>(main: impl Fn(Io) -> F) {
    for driver in [DriverKind::Epoll, DriverKind::IoUring] {
        match Executor::new(ExecutorConfig { driver, ..ExecutorConfig::default() }) {
            Ok(executor) => {
                let io = executor.io();
                executor.run(main(io));
            }
            Err(error) if driver == DriverKind::IoUring => eprintln!("not run on io_uring: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Runs `main` on the driver that the kernel would get.
pub fn on_driver<T, F: Future<Output = T>>(main: impl FnOnce(Io) -> F) -> T {
    let executor = Executor::new(ExecutorConfig::default()).expect("one driver always works");
    let io = executor.io();
    executor.run(main(io))
}

pub fn partition(topic: u8, partition: i32) -> TopicPartition {
    TopicPartition { topic: TopicId([topic; 16]), partition: PartitionIndex(partition) }
}

pub fn core_of(cores: u32) -> impl Fn(TopicPartition) -> u32 {
    move |key| (u32::from(key.topic.0[0]) + key.partition.0 as u32) % cores
}

/// A batch of `records` records of about `value_bytes` each, stamped.
pub fn batch(base: Offset, records: u32, value_bytes: usize, salt: u64) -> StampedBatch {
    let mut builder = BatchBuilder::new();
    for record in 0..records {
        let mut value = format!("{salt}/{}/{record}/", base.0).into_bytes();
        value.resize(value_bytes.max(value.len()), (salt % 251) as u8);
        let timestamp = 1_700_000_000_000 + base.0 + i64::from(record);
        let key = format!("key-{record}");
        let record = NewRecord { timestamp, key: Some(key.as_bytes()), value: Some(&value), headers: &[] };
        builder.append(&record).expect("a small record");
    }
    let options = BatchOptions { base_offset: base, leader_epoch: LeaderEpoch(1), ..BatchOptions::default() };
    let bytes = Bytes::from(builder.finish(&options).expect("a small batch"));
    let header = BatchHeader::parse(&bytes).expect("just built");
    let buffer_bytes = bytes.len() as u32;
    StampedBatch { header, bytes, buffer_bytes }
}

pub async fn open_directory(io: &Io, path: &Path) -> DataDirectory {
    let identity = Identity { cluster_id: None, node_id: NodeId(1) };
    DataDirectory::open(io, path, None, &identity).await.expect("a directory of ours")
}

/// Recovers and starts every core on this executor.
pub async fn start(
    io: &Io,
    directory: &DataDirectory,
    cores: u32,
    settings: StorageSettings,
) -> Vec<CoreStorage> {
    let recovery = recover(io, directory, cores, &core_of(cores), &settings).await.expect("recovery");
    assert_eq!(recovery.report.corruption, Vec::<String>::new());
    start_cores(io, recovery, settings).await
}

pub async fn start_cores(io: &Io, recovery: NodeRecovery, settings: StorageSettings) -> Vec<CoreStorage> {
    let mut storages = Vec::new();
    for shard in recovery.shards {
        storages.push(CoreStorage::start(io.clone(), shard, settings).await.expect("start"));
    }
    storages
}

/// What was acknowledged, by partition, and what was only sent.
#[derive(Debug, Default)]
pub struct Model {
    pub sent: BTreeMap<TopicPartition, Vec<Bytes>>,
    pub acknowledged_end: BTreeMap<TopicPartition, Offset>,
    pub hard_state: BTreeMap<TopicPartition, Bytes>,
    /// Hard states in the order of their sequences, whether acknowledged or not.
    pub states_sent: BTreeMap<TopicPartition, Vec<(u64, Bytes)>>,
    /// Sequence of the newest acknowledged hard state.
    pub state_acknowledged: BTreeMap<TopicPartition, u64>,
    pub deleted: Vec<TopicPartition>,
}

/// One core with its open logs and the model that listens to it.
pub struct Core {
    pub storage: CoreStorage,
    pub logs: BTreeMap<TopicPartition, LogId>,
    pub model: Rc<RefCell<Model>>,
}

impl Core {
    pub async fn open(storage: CoreStorage, model: Rc<RefCell<Model>>, settings: LogSettings) -> Core {
        let mut logs = BTreeMap::new();
        for recovered in storage.take_recovered() {
            let key = recovered.key;
            check_hard_state(&model.borrow(), &recovered);
            // What was under way and did not last is as if it had never been: its sequences are given again.
            let newest = recovered.hard_state_sequence;
            model
                .borrow_mut()
                .states_sent
                .entry(key)
                .or_default()
                .retain(|(sequence, _)| *sequence <= newest);
            let id = storage.open_log(recovered, settings, &mut |_| {}).await.expect("open");
            logs.insert(key, id);
        }
        let names: BTreeMap<LogId, TopicPartition> = logs.iter().map(|(key, id)| (*id, *key)).collect();
        let core = Core { storage, logs, model };
        core.listen(names);
        core
    }

    pub fn create(&mut self, keys: impl IntoIterator<Item = TopicPartition>, settings: LogSettings) {
        for key in keys {
            if !self.logs.contains_key(&key) {
                self.logs.insert(key, self.storage.create_log(key, settings));
            }
        }
        self.listen(self.logs.iter().map(|(key, id)| (*id, *key)).collect());
    }

    fn listen(&self, names: BTreeMap<LogId, TopicPartition>) {
        let model = Rc::clone(&self.model);
        self.storage.set_durable_listener(move |reports: &[Durable]| {
            let mut model = model.borrow_mut();
            for report in reports {
                let Some(key) = names.get(&report.log) else { continue };
                let Some(end) = report.end_offset else {
                    model.state_acknowledged.insert(*key, report.sequence);
                    continue;
                };
                let previous = model.acknowledged_end.insert(*key, end);
                assert!(previous.is_none_or(|previous| previous < end), "acknowledged in order");
            }
        });
    }

    pub async fn append(&self, key: TopicPartition, records: u32, value_bytes: usize, salt: u64) {
        self.storage.room().await;
        let id = self.logs[&key];
        let base = self.storage.log(id).log_end();
        let batch = batch(base, records, value_bytes, salt);
        self.model.borrow_mut().sent.entry(key).or_default().push(batch.bytes.clone());
        self.storage.append(id, batch).expect("append");
    }

    pub fn persist(&self, key: TopicPartition, state: Bytes) {
        let sequence = self.storage.persist_hard_states(vec![(self.logs[&key], state.clone())])[0];
        let mut model = self.model.borrow_mut();
        let sent = model.states_sent.entry(key).or_default();
        assert!(
            sent.last().is_none_or(|(last, _)| *last < sequence),
            "{key}: sequence {sequence} after {sent:?}"
        );
        sent.push((sequence, state));
    }

    /// Waits until everything appended is acknowledged.
    pub async fn settle(&self, io: &Io) {
        loop {
            let is_settled = self.logs.values().all(|id| {
                let log = self.storage.log(*id);
                log.durable_end() == log.log_end()
            });
            if is_settled {
                return;
            }
            io.sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

/// The newest acknowledged hard state, or a newer one that was under way, came back.
fn check_hard_state(model: &Model, recovered: &RecoveredPartition) {
    let key = recovered.key;
    let Some(acknowledged) = model.state_acknowledged.get(&key) else { return };
    let sent = model.states_sent.get(&key).expect("acknowledged after it was sent");
    let found = recovered.hard_state.as_ref().map(|state| (recovered.hard_state_sequence, state.clone()));
    let found = found.unwrap_or_else(|| panic!("{key}: no hard state, {acknowledged} was acknowledged"));
    assert!(
        found.0 >= *acknowledged && sent.contains(&found),
        "{key}: {found:?}, acknowledged {acknowledged}"
    );
    assert!(recovered.next_sequence > found.0);
}

/// All bytes of a log, read by the public reading path in steps of `step_bytes`.
pub async fn read_all(io: &Io, storage: &CoreStorage, id: LogId, step_bytes: u32) -> Vec<u8> {
    let (mut from, end) = {
        let log = storage.log(id);
        (log.log_start(), log.log_end())
    };
    let mut all = Vec::new();
    while from < end {
        let plan = storage.plan_read(id, from, end, step_bytes, true).expect("in range");
        let read = plan.run(io).await.expect("read");
        assert!(read.next_offset > from, "a read of offset {from} below end {end} found nothing");
        let before = all.len();
        for piece in read.pieces {
            match piece {
                LogPiece::Memory(piece) => all.extend_from_slice(piece.bytes()),
                LogPiece::File { file, position, length } => {
                    let bytes = io.read_at(&file, position, length as usize).await.expect("file read");
                    assert_eq!(bytes.len(), length as usize);
                    all.extend_from_slice(&bytes);
                }
            }
        }
        assert_eq!((all.len() - before) as u64, read.bytes);
        from = read.next_offset;
    }
    all
}

/// Checks each log against the model: everything acknowledged is there, nothing that was never sent is.
pub async fn check_against_model(io: &Io, cores: &[Core], model: &Rc<RefCell<Model>>) {
    let mut seen = BTreeMap::new();
    for core in cores {
        for (key, id) in &core.logs {
            let bytes = read_all(io, &core.storage, *id, 100_000).await;
            assert!(core.storage.log(*id).damage().is_none(), "{key}: {:?}", core.storage.log(*id).damage());
            assert!(
                seen.insert(*key, (bytes, core.storage.log(*id).log_end())).is_none(),
                "{key} on two cores"
            );
        }
    }
    let model = model.borrow();
    for (key, sent) in &model.sent {
        if model.deleted.contains(key) {
            assert!(!seen.contains_key(key), "{key} was deleted");
            continue;
        }
        let sent = sent.concat();
        let (stored, end) = seen.get(key).cloned().unwrap_or_default();
        assert!(
            sent.starts_with(&stored),
            "{key}: {} bytes stored are not a prefix of those sent",
            stored.len()
        );
        let acknowledged = model.acknowledged_end.get(key).copied().unwrap_or(Offset(0));
        assert!(end >= acknowledged, "{key}: acknowledged to {acknowledged}, recovered to {end}");
    }
}

/// After a restart what was sent but not stored is forgotten: the next append goes on from what is there.
pub async fn adopt(io: &Io, cores: &[Core], model: &Rc<RefCell<Model>>) {
    let found: Vec<_> = cores.iter().flat_map(|core| core.logs.keys().copied()).collect();
    {
        let Model { sent, deleted, states_sent, .. } = &mut *model.borrow_mut();
        sent.retain(|key, _| found.contains(key) || deleted.contains(key));
        states_sent.retain(|key, _| found.contains(key));
    }
    for core in cores {
        for (key, id) in &core.logs {
            let bytes = read_all(io, &core.storage, *id, 1 << 20).await;
            let mut model = model.borrow_mut();
            if model.deleted.contains(key) {
                // Its deletion was not durable: it may come and go.
                continue;
            }
            model.acknowledged_end.insert(*key, core.storage.log(*id).log_end());
            model.sent.insert(*key, vec![Bytes::from(bytes)]);
        }
    }
}

/// Every file below `path` with its bytes.
pub fn snapshot(path: &Path) -> BTreeMap<String, Vec<u8>> {
    fn walk(root: &Path, path: &Path, files: &mut BTreeMap<String, Vec<u8>>) {
        for entry in std::fs::read_dir(path).expect("readable") {
            let path = entry.expect("readable").path();
            let name = path.strip_prefix(root).expect("below").display().to_string();
            if path.is_dir() {
                files.insert(format!("{name}/"), Vec::new());
                walk(root, &path, files);
            } else {
                files.insert(name, std::fs::read(&path).expect("readable"));
            }
        }
    }
    let mut files = BTreeMap::new();
    walk(path, path, &mut files);
    files
}

/// The segment files only: what must be the same after each recovery.
pub fn segments(path: &Path) -> BTreeMap<String, Vec<u8>> {
    snapshot(&path.join("data"))
}
