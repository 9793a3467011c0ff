//! Checkpoints: a start reads only what came later, whatever became of what it is spared by; and the checkpointer's order.

mod storage_support;

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use bytes::BytesMut;
use ringlog_io::sim::{UnsyncedData, World};
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::{NodeId, Offset, ProducerEpoch, ProducerId, Sequence, TopicPartition};
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::validate::BatchProducer;
use ringlog_raft::ids::{DirectoryId, ReplicaId};
use ringlog_shard::journal::recovery::recover;
use ringlog_shard::partition::{Appended, IncomingBatch};
use ringlog_shard::storage::{LogSettings, RecoveryReport, StorageStats};
use ringlog_shard::store::{Opening, Store};
use storage_support::*;

const PARTITIONS: i32 = 200;
/// Where a test goes through many lives.
const FEW: i32 = 40;
const BATCHES: i32 = 12;
/// Bytes of a batch's header, which opening reads to know a checkpoint's place again.
const HEADER_BYTES: u64 = 61;

fn key_of(number: i32) -> TopicPartition {
    partition(9, number)
}

/// One batch of one record, the `sequence`-th of this partition's producer.
fn produced(number: i32, sequence: i32, value_bytes: usize) -> IncomingBatch {
    let mut builder = BatchBuilder::new();
    let value = vec![(number + sequence) as u8; value_bytes];
    let timestamp = 1_700_000_000_000 + i64::from(sequence);
    let record = NewRecord { timestamp, key: None, value: Some(&value), headers: &[] };
    builder.append(&record).expect("a small record");
    let producer = BatchProducer {
        id: ProducerId(1000 + i64::from(number)),
        epoch: ProducerEpoch(3),
        base_sequence: Sequence(sequence),
    };
    let options = BatchOptions { producer: Some(producer), ..BatchOptions::default() };
    let bytes = builder.finish(&options).expect("a small batch");
    let header = BatchHeader::parse(&bytes).expect("just built");
    let buffer_bytes = bytes.len() as u32;
    IncomingBatch { header, bytes: BytesMut::from(&bytes[..]), buffer_bytes }
}

struct Node {
    partitions: i32,
    store: Store,
    report: RecoveryReport,
}

impl Node {
    async fn start(io: &Io, path: &Path, partitions: i32) -> Node {
        let settings = SMALL;
        let directory = open_directory(io, path).await;
        let recovery = recover(io, &directory, 1, &core_of(1), &settings).await.expect("recovery");
        let report = recovery.report.clone();
        let storage = start_cores(io, recovery, settings).await.pop().expect("one core");
        let recovered = storage.take_recovered();
        let me = ReplicaId { node: NodeId(1), directory: DirectoryId([7; 16]) };
        let store = Store::new(io.clone(), storage, me, 86_400_000);
        let known: Vec<_> = recovered.iter().map(|recovered| recovered.key).collect();
        let mut openings: Vec<Opening> = recovered
            .into_iter()
            .map(|recovered| Opening {
                key: recovered.key,
                recovered: Some(recovered),
                settings: SEGMENTS_OF_64K,
            })
            .collect();
        let new = (0..partitions).map(key_of).filter(|key| !known.contains(key));
        openings.extend(new.map(|key| Opening { key, recovered: None, settings: SEGMENTS_OF_64K }));
        store.open(openings).await;
        Node { partitions, store, report }
    }

    fn produce(&self, number: i32, sequence: i32) -> Appended {
        self.store.append(key_of(number), produced(number, sequence, 10_000), None).expect("taken")
    }

    async fn settle(&self, io: &Io) {
        for number in 0..self.partitions {
            let is_durable = || {
                let durable = |log: &ringlog_shard::storage::Log| log.durable_end() == log.log_end();
                self.store.with_log(key_of(number), durable).expect("open")
            };
            while !is_durable() {
                io.sleep(Duration::from_millis(1)).await;
            }
        }
    }

    fn stats(&self) -> StorageStats {
        self.store.storage().stats()
    }

    fn end(&self, number: i32) -> Offset {
        self.store.with_log(key_of(number), |log| log.log_end()).expect("open")
    }
}

/// A node that was killed with everything in segments and twenty partitions with three batches more in the journal.
async fn filled_and_killed(io: &Io, path: &Path, partitions: i32) {
    let node = Node::start(io, path, partitions).await;
    for sequence in 0..BATCHES {
        for number in 0..partitions {
            node.store.room().await;
            node.produce(number, sequence);
        }
    }
    node.settle(io).await;
    node.store.storage().checkpoint().await.expect("checkpoint");
    for number in 0..20 {
        for sequence in BATCHES..BATCHES + 3 {
            node.produce(number, sequence);
        }
    }
    node.settle(io).await;
}

/// Batches that were appended a second time, or a new batch that was refused.
fn mistaken_producers(node: &Node) -> usize {
    let mut mistakes = 0;
    for number in 0..node.partitions {
        let count = if number < 20 { BATCHES + 3 } else { BATCHES };
        assert_eq!(node.end(number), Offset(i64::from(count)), "partition {number}");
        for sequence in count - 5..count {
            let again = node.store.append(key_of(number), produced(number, sequence, 10_000), None);
            let is_known =
                again.is_ok_and(|again| again.duplicate && again.base_offset == Offset(i64::from(sequence)));
            mistakes += usize::from(!is_known);
        }
        let next = node.store.append(key_of(number), produced(number, count, 10_000), None);
        mistakes += usize::from(next.is_err());
    }
    mistakes
}

#[test]
#[cfg(not(feature = "planted-forget-producer-state"))]
fn a_restart_reads_only_what_came_after_the_checkpoint() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        filled_and_killed(&io, folder.path(), PARTITIONS).await;
        let node = Node::start(&io, folder.path(), PARTITIONS).await;
        assert_eq!(node.report.checkpointed, PARTITIONS as u64);
        let later = produced(0, 0, 10_000).bytes.len() as u64 * 3 * 20;
        let bound = PARTITIONS as u64 * HEADER_BYTES + later;
        let scanned = node.stats().scanned_bytes;
        assert!(scanned <= bound, "{scanned} bytes were scanned, at most {bound} were new");
        assert_eq!(mistaken_producers(&node), 0);
        node.settle(&io).await;
        // All of it can still be read, at any place: index and segments are whole.
        for number in [0, 1, 19, 20, 199] {
            for from in 0..i64::from(BATCHES) {
                let key = key_of(number);
                let plan = node.store.plan_read(key, Offset(from), 1, true).expect("in range");
                let read = plan.run(&io).await.expect("read");
                assert_eq!(read.next_offset, Offset(from + 1), "partition {number} at {from}");
            }
            let time = 1_700_000_000_000 + 5;
            let found = node.store.plan_time_lookup(key_of(number), time).expect("open").run(&io).await;
            assert_eq!(found.expect("read").map(|hit| hit.offset), Some(Offset(5)));
        }
    });
}

/// The check above can fail: a start that forgets producers appends what is sent again.
#[test]
#[cfg(feature = "planted-forget-producer-state")]
fn forgotten_producers_are_found() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        filled_and_killed(&io, folder.path(), PARTITIONS).await;
        let node = Node::start(&io, folder.path(), PARTITIONS).await;
        let mut mistakes = 0;
        for number in 0..PARTITIONS {
            let last = node.end(number).0 as i32 - 1;
            let again = node.store.append(key_of(number), produced(number, last, 10_000), None);
            mistakes += usize::from(!again.is_ok_and(|again| again.duplicate));
        }
        assert!(mistakes >= PARTITIONS as usize - 20, "{mistakes} mistakes");
    });
}

fn files_below(path: &Path, suffix: &str) -> Vec<PathBuf> {
    let all = snapshot(path).into_keys().filter(|name| !name.ends_with('/'));
    all.filter(|name| name.ends_with(suffix)).map(|name| path.join(name)).collect()
}

/// Does something to each file that `choose` takes.
fn mutilate(paths: &[PathBuf], every: usize, mutilation: impl Fn(&Path, Vec<u8>)) {
    assert!(!paths.is_empty());
    for path in paths.iter().step_by(every) {
        mutilation(path, fs::read(path).expect("readable"));
    }
}

#[test]
#[cfg(not(feature = "planted-forget-producer-state"))]
fn whatever_became_of_checkpoints_and_sidecars_a_start_finds_the_same() {
    type Mutilation = fn(&Path);
    let mutilations: [(&str, Mutilation); 8] = [
        ("no checkpoint", |path| fs::remove_dir_all(path.join("checkpoints")).expect("removed")),
        ("no sidecar", |path| {
            mutilate(&files_below(&path.join("data"), ".sum"), 1, |path, _| {
                fs::remove_file(path).expect("removed")
            })
        }),
        ("short sidecars", |path| {
            mutilate(&files_below(&path.join("data"), ".sum"), 2, |path, bytes| {
                fs::write(path, &bytes[..bytes.len() / 2]).expect("written")
            })
        }),
        ("flipped sidecars", |path| {
            mutilate(&files_below(&path.join("data"), ".sum"), 3, |path, mut bytes| {
                let middle = bytes.len() * 2 / 3;
                bytes[middle] ^= 4;
                fs::write(path, bytes).expect("written");
            });
        }),
        ("short checkpoint", |path| {
            mutilate(&files_below(&path.join("checkpoints"), ""), 1, |path, bytes| {
                fs::write(path, &bytes[..bytes.len() * 2 / 3]).expect("written")
            })
        }),
        ("flipped checkpoint", |path| {
            mutilate(&files_below(&path.join("checkpoints"), ""), 1, |path, mut bytes| {
                let middle = bytes.len() / 2;
                bytes[middle] ^= 4;
                fs::write(path, bytes).expect("written");
            });
        }),
        ("empty checkpoint", |path| {
            mutilate(&files_below(&path.join("checkpoints"), ""), 1, |path, _| {
                fs::write(path, b"").expect("written")
            })
        }),
        ("garbage beside", |path| {
            fs::write(path.join("checkpoints").join("x"), b"garbage").expect("written");
            fs::write(path.join("checkpoints").join("7-9"), b"RINGLCKP\xFF\xFF").expect("written");
        }),
    ];
    on_driver(|io| async move {
        for (name, mutilation) in mutilations {
            let folder = tempfile::tempdir().expect("temp");
            filled_and_killed(&io, folder.path(), FEW).await;
            mutilation(folder.path());
            let node = Node::start(&io, folder.path(), FEW).await;
            assert_eq!(node.store.unhealthy(), Vec::new(), "{name}");
            assert_eq!(mistaken_producers(&node), 0, "{name}");
            node.settle(&io).await;
            // What was missing is made anew: the next start has everything again.
            node.store.storage().checkpoint().await.expect("checkpoint");
            drop(node);
            let node = Node::start(&io, folder.path(), FEW).await;
            assert_eq!(node.report.checkpointed, FEW as u64, "{name}");
            let scanned = node.stats().scanned_bytes;
            assert!(scanned <= FEW as u64 * HEADER_BYTES, "{name}: {scanned} bytes scanned");
        }
    });
}

#[test]
fn a_checkpoint_of_other_bytes_is_not_believed() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        filled_and_killed(&io, folder.path(), 60).await;
        // As if another log of the same length had taken its place: everything checks, the checkpoint speaks of other batches.
        let key = key_of(50);
        let data = folder.path().join("data").join(key.topic.to_string()).join("50");
        let last = fs::read_dir(&data).expect("readable").map(|entry| entry.expect("readable").path());
        let last = last
            .filter(|path| path.extension().is_some_and(|suffix| suffix == "log"))
            .max()
            .expect("segments");
        let mut bytes = fs::read(&last).expect("readable");
        let batch_bytes = produced(50, 0, 10_000).bytes.len();
        let at = bytes.len() - batch_bytes;
        let mut other = produced(50, 77, 10_000).bytes;
        let base = i64::from(BATCHES - 1);
        ringlog_protocol::records::batch::set_base_offset(&mut other, Offset(base));
        ringlog_protocol::records::batch::set_leader_epoch(&mut other, ringlog_protocol::ids::LeaderEpoch(1));
        assert_eq!(other.len(), batch_bytes, "the record is as long");
        bytes[at..].copy_from_slice(&other);
        fs::write(&last, bytes).expect("written");
        let node = Node::start(&io, folder.path(), 60).await;
        // Its producers were read from the log: the batch with sequence 77 is the newest.
        let again = node.store.append(key, produced(50, 77, 10_000), None).expect("known");
        assert!(again.duplicate && again.base_offset == Offset(base), "{again:?}");
    });
}

#[test]
fn small_logs_are_carried_once_and_then_flushed() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        let directory = open_directory(&io, folder.path()).await;
        let storage = start(&io, &directory, 1, SMALL).await.pop().expect("one core");
        let mut core = Core::open(storage, Rc::clone(&model), LogSettings::default()).await;
        let (large, small): (TopicPartition, Vec<_>) =
            (partition(1, 0), (0..30).map(|number| partition(2, number)).collect());
        core.create(small.iter().copied().chain([large]), LogSettings::default());
        for (salt, key) in (0..).zip(&small) {
            core.append(*key, 1, 100, salt).await;
        }
        let synced = |core: &Core| {
            small.iter().filter(|key| core.storage.log(core.logs[*key]).synced_end() > Offset(0)).count()
        };
        let mut seen = Vec::new();
        for round in 0..800 {
            core.append(large, 1, 15_000, round).await;
            if round % 20 == 0 {
                core.settle(&io).await;
                seen.push((core.storage.stats().carried_bytes, synced(&core)));
            }
        }
        core.settle(&io).await;
        assert!(
            seen.iter().any(|(carried, synced)| *carried > 3000 && *synced == 0),
            "carried first: {seen:?}"
        );
        assert_eq!(synced(&core), 30, "flushed the second time");
        core.storage.checkpoint().await.expect("checkpoint");
        let stats = core.storage.stats();
        // Their data once; hard states and starts of logs there are none.
        assert!(stats.carried_bytes < 30 * 400, "{stats:?}");
        assert_eq!(stats.unsynced_bytes, 0);
        drop((core, directory));
        let directory = open_directory(&io, folder.path()).await;
        let storage = start(&io, &directory, 1, SMALL).await.pop().expect("one core");
        let core = Core::open(storage, Rc::clone(&model), LogSettings::default()).await;
        check_against_model(&io, &[core], &model).await;
    });
}

#[test]
fn lag_is_told_and_ends_with_a_checkpoint() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let directory = open_directory(&io, folder.path()).await;
        let storage = start(&io, &directory, 1, SMALL).await.pop().expect("one core");
        let id = storage.create_log(partition(1, 0), LogSettings::default());
        storage.append(id, batch(Offset(0), 1, 5000, 1)).expect("append");
        while storage.log(id).durable_end() < Offset(1) {
            io.sleep(Duration::from_millis(1)).await;
        }
        io.sleep(Duration::from_millis(120)).await;
        let stats = storage.stats();
        assert!(stats.checkpoint_lag >= Duration::from_millis(100), "{stats:?}");
        assert!(stats.dirty_bytes > 5000);
        storage.checkpoint().await.expect("checkpoint");
        let stats = storage.stats();
        assert_eq!((stats.checkpoint_lag, stats.dirty_bytes), (Duration::ZERO, 0));
    });
}

/// One life on a simulated host, up to a power cut after a checkpoint, and the start after it.
fn live_and_start_again(seed: u64) -> u64 {
    let world = World::new(seed);
    let host = world.host("node");
    let model = Rc::new(RefCell::new(Model::default()));
    let done = Rc::new(Cell::new(0));
    for life in 1..=2 {
        let (io, model, served) = (host.executor(), Rc::clone(&model), Rc::clone(&done));
        let driver = io.clone();
        let task = async move {
            let directory = open_directory(&io, Path::new("/data")).await;
            let storage = start(&io, &directory, 1, SMALL).await.pop().expect("one core");
            let mut core = Core::open(storage, Rc::clone(&model), SEGMENTS_OF_64K).await;
            check_against_model(&io, std::slice::from_ref(&core), &model).await;
            core.create((0..3).map(|number| partition(1, number)), SEGMENTS_OF_64K);
            for salt in 0..40 {
                core.append(partition(1, (io.random_u64() % 3) as i32), 1, 9000, salt).await;
            }
            core.settle(&io).await;
            core.storage.checkpoint().await.expect("checkpoint");
            served.set(life);
            // Alive until the power goes.
            io.sleep(Duration::from_secs(3600)).await;
            drop(core);
        };
        driver.spawn(Priority::Foreground, task).detach();
        let outcome = world.run_until(|| done.get() == life, Duration::from_secs(60));
        assert_eq!(done.get(), life, "{outcome:?}");
        host.crash_with(UnsyncedData::Lost);
    }
    host.descriptors_closed_unsynced()
}

#[test]
#[cfg(not(any(feature = "planted-skip-directory-sync", feature = "planted-close-dirty-descriptor")))]
fn what_a_checkpoint_says_lasts_and_no_descriptor_is_closed_too_early() {
    for seed in 0..10 {
        assert_eq!(live_and_start_again(seed), 0, "seed {seed}");
    }
}

/// The check above can fail: a segment whose name was not made durable is gone after a power cut.
#[test]
#[cfg(feature = "planted-skip-directory-sync")]
fn a_forgotten_directory_sync_is_found_within_ten_seeds() {
    let is_found = |seed| std::panic::catch_unwind(|| live_and_start_again(seed)).is_err();
    assert!((0..10).any(is_found));
}

/// The check above can fail: a descriptor that is closed before its sync is seen.
#[test]
#[cfg(feature = "planted-close-dirty-descriptor")]
fn a_descriptor_closed_too_early_is_found_within_ten_seeds() {
    assert!((0..10).any(|seed| live_and_start_again(seed) > 0));
}
