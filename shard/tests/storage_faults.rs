//! Damage and failures: a tail is cut, damage is named and stays with its partition, nothing is acknowledged too early.

mod storage_support;

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use ringlog_io::Io;
use ringlog_protocol::ids::{Offset, TopicPartition};
use ringlog_shard::journal::frame::{FRAME_HEADER_BYTES, FrameHeader};
use ringlog_shard::journal::recovery::recover;
use ringlog_shard::storage::{CoreStorage, LogSettings, NodeRecovery, StorageError};
use storage_support::*;

async fn open_one(io: &Io, path: &Path, model: &Rc<RefCell<Model>>) -> Core {
    let directory = open_directory(io, path).await;
    let storage = start(io, &directory, 1, SMALL).await.pop().expect("one core");
    Core::open(storage, Rc::clone(model), SEGMENTS_OF_64K).await
}

async fn recover_one(io: &Io, path: &Path) -> NodeRecovery {
    let directory = open_directory(io, path).await;
    recover(io, &directory, 1, &core_of(1), &SMALL).await.expect("recovery")
}

async fn open_recovered(io: &Io, recovery: NodeRecovery, model: &Rc<RefCell<Model>>) -> Core {
    let storage = start_cores(io, recovery, SMALL).await.pop().expect("one core");
    Core::open(storage, Rc::clone(model), SEGMENTS_OF_64K).await
}

/// The journal file that holds frames, and where each of them begins.
fn frames(path: &Path) -> (PathBuf, Vec<(u64, FrameHeader)>) {
    let mut all = Vec::new();
    for (name, bytes) in snapshot(&path.join("journal")) {
        let mut position = 0;
        let mut found = Vec::new();
        while let Some(header) = bytes.get(position..).and_then(|bytes| FrameHeader::decode(bytes).ok()) {
            found.push((position as u64, header));
            position += header.frame_bytes() as usize;
        }
        if found.len() > 1 {
            all.push((path.join("journal").join(name), found));
        }
    }
    assert_eq!(all.len(), 1, "one file holds the frames of a short run");
    all.pop().expect("one")
}

fn flip(path: &Path, position: u64) {
    let mut bytes = fs::read(path).expect("readable");
    bytes[position as usize] ^= 0x10;
    fs::write(path, bytes).expect("writable");
}

fn segment_path(path: &Path, key: TopicPartition) -> PathBuf {
    path.join("data")
        .join(key.topic.to_string())
        .join(key.partition.to_string())
        .join("00000000000000000000.log")
}

/// Appends to three partitions in turn, each append in a frame of its own; returns what each holds.
async fn three_partitions(io: &Io, path: &Path, model: &Rc<RefCell<Model>>) -> Vec<TopicPartition> {
    let keys: Vec<_> = (0..3).map(|number| partition(1, number)).collect();
    let mut core = open_one(io, path, model).await;
    core.create(keys.clone(), SEGMENTS_OF_64K);
    for round in 0..4 {
        for key in &keys {
            core.append(*key, 2, 100, round).await;
            core.settle(io).await;
        }
    }
    keys
}

#[test]
fn a_torn_last_frame_is_a_tail() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        let keys = three_partitions(&io, folder.path(), &model).await;
        let (file, frames) = frames(folder.path());
        let (position, header) = frames.last().expect("frames");
        flip(&file, position + FRAME_HEADER_BYTES as u64 + u64::from(header.body_bytes) - 1);
        let recovery = recover_one(&io, folder.path()).await;
        assert_eq!(recovery.report.corruption, Vec::<String>::new());
        let core = open_recovered(&io, recovery, &model).await;
        let ends: Vec<_> = keys.iter().map(|key| core.storage.log(core.logs[key]).log_end()).collect();
        assert_eq!(ends, [Offset(8), Offset(8), Offset(6)], "the last frame held the last append");
    });
}

#[test]
fn a_bad_frame_in_the_middle_is_damage_of_its_partition_only() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        let keys = three_partitions(&io, folder.path(), &model).await;
        let (file, frames) = frames(folder.path());
        // Rounds of three: the fifth frame holds the second append of the second partition.
        let (position, _) = frames[frames.len() - 12 + 4];
        flip(&file, position + 100);
        let recovery = recover_one(&io, folder.path()).await;
        let report = recovery.report.corruption.join("\n");
        assert!(report.contains(&format!("{} at position {position}", file.display())), "{report}");
        assert!(report.contains(&segment_path(folder.path(), keys[1]).display().to_string()), "{report}");
        let kept = fs::read_dir(folder.path().join("journal")).expect("readable").filter(|entry| {
            entry.as_ref().expect("readable").file_name().to_string_lossy().starts_with("damaged-")
        });
        assert_eq!(kept.count(), 1, "the evidence is kept");
        let sent = model.borrow().sent.clone();
        let check = async |core: &Core| {
            for (key, damaged) in keys.iter().zip([false, true, false]) {
                let id = core.logs[key];
                let bytes = read_all(&io, &core.storage, id, 1000).await;
                let expected = if damaged { sent[key][0].to_vec() } else { sent[key].concat() };
                assert_eq!(bytes, expected, "{key}");
                assert_eq!(core.storage.log(id).damage().is_some(), damaged, "{key}");
                let end = core.storage.log(id).log_end();
                let appended = core.storage.append(id, batch(end, 1, 10, 0));
                assert_eq!(
                    matches!(appended, Err(StorageError::Poisoned(_))),
                    damaged,
                    "{key}: {appended:?}"
                );
            }
            core.settle(&io).await;
        };
        let core = open_recovered(&io, recovery, &model).await;
        check(&core).await;
        drop(core);
        // Damage is not forgotten by a further start, whose journal has no gap any more.
        let recovery = recover_one(&io, folder.path()).await;
        let damaged: Vec<_> = recovery.shards[0]
            .partitions
            .iter()
            .filter(|found| found.damage.is_some())
            .map(|found| found.key)
            .collect();
        assert_eq!(damaged, [keys[1]]);
    });
}

#[test]
fn damage_below_what_was_synced_is_reported_and_never_cut() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        let key = partition(1, 0);
        let mut core = open_one(&io, folder.path(), &model).await;
        core.create([key], LogSettings::default());
        for round in 0..10 {
            core.append(key, 1, 500, round).await;
        }
        core.storage.checkpoint().await.expect("checkpoint");
        drop(core);
        let path = segment_path(folder.path(), key);
        let first = model.borrow().sent[&key][0].len() as u64;
        flip(&path, first + 300);
        let damaged = fs::read(&path).expect("readable");
        for _ in 0..2 {
            let core = open_recovered(&io, recover_one(&io, folder.path()).await, &model).await;
            let id = core.logs[&key];
            let damage = core.storage.log(id).damage().cloned().expect("found by the scan");
            assert_eq!((damage.path.as_path(), damage.position), (path.as_path(), first));
            assert_eq!(read_all(&io, &core.storage, id, 1 << 20).await, model.borrow().sent[&key][0]);
            assert_eq!(core.storage.log(id).log_end(), Offset(1));
            drop(core);
            assert_eq!(fs::read(&path).expect("readable"), damaged, "nothing is cut");
        }
    });
}

#[test]
fn a_suffix_that_nobody_acknowledged_is_kept_if_valid_and_cut_if_not() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        let key = partition(1, 0);
        let mut core = open_one(&io, folder.path(), &model).await;
        core.create([key], LogSettings::default());
        core.append(key, 5, 100, 1).await;
        core.storage.checkpoint().await.expect("checkpoint");
        drop(core);
        let path = segment_path(folder.path(), key);
        let synced = fs::read(&path).expect("readable");
        let extra = batch(Offset(5), 2, 50, 9).bytes;
        let mut next = batch(Offset(7), 2, 50, 9).bytes.to_vec();
        next.truncate(next.len() - 1);
        fs::write(&path, [&synced[..], &extra, &next].concat()).expect("written");
        let mut headers = 0;
        let recovery = recover_one(&io, folder.path()).await;
        let storage = start_cores(&io, recovery, SMALL).await.pop().expect("one core");
        let recovered = storage.take_recovered().pop().expect("one partition");
        let id =
            storage.open_log(recovered, LogSettings::default(), &mut |_| headers += 1).await.expect("open");
        assert_eq!((storage.log(id).log_end(), headers), (Offset(7), 2));
        assert_eq!(fs::read(&path).expect("readable"), [&synced[..], &extra].concat());
        assert!(storage.log(id).damage().is_none());
        storage.append(id, batch(Offset(7), 1, 10, 3)).expect("goes on");
    });
}

#[test]
fn a_segment_shorter_than_what_was_synced_is_damage() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        let key = partition(1, 0);
        let mut core = open_one(&io, folder.path(), &model).await;
        core.create([key], LogSettings::default());
        core.append(key, 5, 100, 1).await;
        core.storage.checkpoint().await.expect("checkpoint");
        drop(core);
        let path = segment_path(folder.path(), key);
        let bytes = fs::read(&path).expect("readable");
        fs::write(&path, &bytes[..bytes.len() - 10]).expect("written");
        let recovery = recover_one(&io, folder.path()).await;
        let damage = recovery.shards[0].partitions[0].damage.clone().expect("damage");
        assert_eq!((damage.path, damage.position), (path, bytes.len() as u64 - 10));
    });
}

#[test]
fn a_missing_or_bad_manifest_is_refused_and_nothing_is_touched() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        let mut core = open_one(&io, folder.path(), &model).await;
        core.create([partition(1, 0)], LogSettings::default());
        core.append(partition(1, 0), 5, 100, 1).await;
        core.storage.checkpoint().await.expect("checkpoint");
        drop(core);
        let manifest = folder.path().join("journal").join("CURRENT");
        let bytes = fs::read(&manifest).expect("readable");
        for bad in [None, Some(&bytes[..10]), Some(&[0; 40][..])] {
            match bad {
                None => fs::remove_file(&manifest).expect("removed"),
                Some(bad) => fs::write(&manifest, bad).expect("written"),
            }
            let before = snapshot(folder.path());
            let directory = open_directory(&io, folder.path()).await;
            let error = recover(&io, &directory, 1, &core_of(1), &SMALL).await.expect_err("refused");
            assert!(error.to_string().contains(&manifest.display().to_string()), "{error}");
            drop(directory);
            assert_eq!(snapshot(folder.path()), before);
        }
        fs::write(&manifest, bytes).expect("written");
        let core = open_one(&io, folder.path(), &model).await;
        check_against_model(&io, &[core], &model).await;
    });
}

#[cfg(not(feature = "planted-early-ack"))]
/// Storage whose only journal file is a device that takes no byte.
async fn on_full_device(io: &Io, path: &Path) -> CoreStorage {
    let directory = open_directory(io, path).await;
    let mut recovery = recover(io, &directory, 1, &core_of(1), &SMALL).await.expect("recovery");
    let mut shard = recovery.shards.pop().expect("one core");
    shard.journal_files[0].path = PathBuf::from("/dev/full");
    CoreStorage::start(io.clone(), shard, SMALL).await.expect("start")
}

#[test]
#[cfg(not(feature = "planted-early-ack"))]
fn a_failed_journal_write_poisons_the_core_and_acknowledges_nothing() {
    on_each_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let storage = on_full_device(&io, folder.path()).await;
        let (acknowledged, poisoned) = (Rc::new(Cell::new(0)), Rc::new(RefCell::new(Vec::new())));
        let (counted, told) = (Rc::clone(&acknowledged), Rc::clone(&poisoned));
        storage.set_durable_listener(move |reports| counted.set(counted.get() + reports.len()));
        storage.set_poison_listener(move |log| told.borrow_mut().push(log));
        let id = storage.create_log(partition(1, 0), LogSettings::default());
        storage.append(id, batch(Offset(0), 1, 10, 0)).expect("queued");
        while storage.poison().is_none() {
            io.sleep(std::time::Duration::from_millis(1)).await;
        }
        storage.persist_hard_states(vec![(id, bytes::Bytes::from_static(b"vote"))]);
        io.sleep(std::time::Duration::from_millis(20)).await;
        assert_eq!((acknowledged.get(), poisoned.borrow().clone()), (0, vec![None]));
        assert!(matches!(storage.append(id, batch(Offset(1), 1, 10, 0)), Err(StorageError::Poisoned(_))));
        assert!(storage.checkpoint().await.is_err());
        assert_eq!(storage.log(id).durable_end(), Offset(0));
        storage.room().await;
    });
}

#[test]
fn a_log_that_cannot_be_flushed_is_poisoned_alone_and_lives_on_in_the_journal() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        let (bad, good) = (partition(1, 0), partition(2, 0));
        let mut core = open_one(&io, folder.path(), &model).await;
        core.create([bad, good], SEGMENTS_OF_64K);
        let poisoned = Rc::new(RefCell::new(Vec::new()));
        let told = Rc::clone(&poisoned);
        core.storage.set_poison_listener(move |log| told.borrow_mut().push(log));
        for round in 0..20 {
            core.append(bad, 1, 1000, round).await;
            core.append(good, 1, 1000, round).await;
        }
        let obstacle = folder.path().join("data").join(bad.topic.to_string());
        fs::write(&obstacle, b"a file where a folder belongs").expect("written");
        let report = core.storage.checkpoint().await.expect("the journal works");
        assert_eq!((report.logs_flushed, report.logs_kept), (1, 1));
        assert_eq!(poisoned.borrow().clone(), vec![Some(core.logs[&bad])]);
        assert!(matches!(
            core.storage.append(core.logs[&bad], batch(Offset(20), 1, 10, 0)),
            Err(StorageError::Poisoned(_))
        ));
        // Recycle every file several times over.
        for round in 0..1500 {
            core.append(good, 1, 15_000, round).await;
            if round % 50 == 0 {
                core.settle(&io).await;
            }
        }
        core.settle(&io).await;
        assert!(core.storage.stats().carried_entries >= 20, "{:?}", core.storage.stats());
        drop(core);
        fs::remove_file(obstacle).expect("removed");
        let core = open_one(&io, folder.path(), &model).await;
        check_against_model(&io, &[core], &model).await;
    });
}

/// Counts acknowledgements whose bytes are in no journal file when they are given.
async fn early_acknowledgements(io: &Io) -> usize {
    let folder = tempfile::tempdir().expect("temp");
    let directory = open_directory(io, folder.path()).await;
    let storage = start(io, &directory, 1, SMALL).await.pop().expect("one core");
    let id = storage.create_log(partition(1, 0), LogSettings::default());
    let early = Rc::new(Cell::new(0));
    let journal = folder.path().join("journal");
    let counted = Rc::clone(&early);
    storage.set_durable_listener(move |reports| {
        for report in reports {
            let end = report.end_offset.expect("only data is appended");
            let expected = batch(Offset(end.0 - 1), 1, 3000, 5).bytes;
            let is_on_disk = |bytes: Vec<u8>| bytes.windows(expected.len()).any(|window| window == expected);
            if !snapshot(&journal).into_values().any(is_on_disk) {
                counted.set(counted.get() + 1);
            }
        }
    });
    for offset in 0..5 {
        storage.append(id, batch(Offset(offset), 1, 3000, 5)).expect("append");
        while storage.log(id).durable_end() <= Offset(offset) {
            io.sleep(std::time::Duration::from_millis(1)).await;
        }
    }
    early.get()
}

#[test]
#[cfg(not(feature = "planted-early-ack"))]
fn nothing_is_acknowledged_before_it_is_in_the_journal() {
    on_each_driver(|io| async move { assert_eq!(early_acknowledgements(&io).await, 0) });
}

/// The check above can fail: it sees the planted bug.
#[test]
#[cfg(feature = "planted-early-ack")]
fn an_acknowledgement_before_the_journal_write_is_caught() {
    on_each_driver(|io| async move { assert_eq!(early_acknowledgements(&io).await, 5) });
}

#[test]
fn ephemeral_storage_makes_no_file_and_acknowledges_later_than_the_append() {
    on_driver(|io| async move {
        let storage = CoreStorage::start_ephemeral(io.clone(), SMALL);
        let id = storage.create_log(partition(1, 0), LogSettings::default());
        let acknowledged = Rc::new(Cell::new(Offset(0)));
        let told = Rc::clone(&acknowledged);
        storage.set_durable_listener(move |reports| {
            told.set(reports.last().and_then(|report| report.end_offset).expect("data"));
        });
        for offset in 0..100 {
            storage.append(id, batch(Offset(offset), 1, 100, 1)).expect("append");
        }
        assert_eq!(acknowledged.get(), Offset(0));
        while storage.log(id).durable_end() < Offset(100) {
            io.yield_now().await;
        }
        assert_eq!(acknowledged.get(), Offset(100));
        let expected: Vec<u8> = (0..100).flat_map(|offset| batch(Offset(offset), 1, 100, 1).bytes).collect();
        assert_eq!(read_all(&io, &storage, id, 5000).await, expected);
        assert_eq!(storage.stats().files_open, 0);
    });
}

#[test]
fn a_partition_without_metadata_is_set_aside_and_never_deleted() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        let key = partition(4, 2);
        for expected in ["2.stray", "2.stray-1"] {
            let mut core = open_one(&io, folder.path(), &model).await;
            core.create([key], LogSettings::default());
            core.append(key, 1, 100, 1).await;
            core.storage.checkpoint().await.expect("checkpoint");
            drop(core);
            let bytes = fs::read(segment_path(folder.path(), key)).expect("readable");
            let directory = open_directory(&io, folder.path()).await;
            let storage = start(&io, &directory, 1, SMALL).await.pop().expect("one core");
            let recovered = storage.take_recovered().pop().expect("one partition");
            let moved = storage.set_aside(recovered).await.expect("renamed").expect("there was a folder");
            assert!(moved.ends_with(expected), "{}", moved.display());
            assert_eq!(fs::read(moved.join("00000000000000000000.log")).expect("readable"), bytes);
            drop(storage);
            drop(directory);
            // The key is used again only because this test plays two clusters' worth of topics on one directory.
            fs::remove_dir_all(folder.path().join("journal")).expect("removed");
            model.borrow_mut().acknowledged_end.clear();
        }
    });
}

#[test]
fn a_partition_that_was_set_aside_never_comes_back() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        let key = partition(4, 2);
        let mut core = open_one(&io, folder.path(), &model).await;
        core.create([key], LogSettings::default());
        core.append(key, 1, 100, 1).await;
        core.storage.checkpoint().await.expect("checkpoint");
        drop(core);
        let path = segment_path(folder.path(), key);
        let bytes = fs::read(&path).expect("readable");
        let storage = start_cores(&io, recover_one(&io, folder.path()).await, SMALL).await.remove(0);
        let recovered = storage.take_recovered().pop().expect("one partition");
        let stray = storage.set_aside(recovered).await.expect("renamed").expect("there was a folder");
        // As a crash right after it.
        drop(storage);
        for _ in 0..3 {
            let recovery = recover_one(&io, folder.path()).await;
            assert_eq!(recovery.report.corruption, Vec::<String>::new());
            let storage = start_cores(&io, recovery, SMALL).await.remove(0);
            assert_eq!(storage.take_recovered().len(), 0);
            storage.checkpoint().await.expect("checkpoint");
            drop(storage);
            let topic = stray.parent().expect("the topic's folder");
            assert_eq!(fs::read_dir(topic).expect("readable").count(), 1);
            assert_eq!(fs::read(stray.join("00000000000000000000.log")).expect("readable"), bytes);
        }
    });
}
