//! Appends, kills and starts on real files: everything acknowledged comes back, byte for byte, on any core count.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;

use crate::storage_support::*;
use bytes::Bytes;
use ringlog_io::Io;
use ringlog_protocol::ids::{Offset, TopicPartition};
use ringlog_shard::journal::recovery::{RecoveryError, RecoveryStep, recover, recover_with};
use ringlog_shard::storage::{LogSettings, StorageSettings};

fn keys() -> Vec<TopicPartition> {
    (1..=3).flat_map(|topic| (0..4).map(move |number| partition(topic, number))).collect()
}

async fn open_cores(
    io: &Io,
    path: &Path,
    cores: u32,
    model: &Rc<RefCell<Model>>,
    settings: StorageSettings,
) -> Vec<Core> {
    let directory = open_directory(io, path).await;
    let mut opened = Vec::new();
    for storage in start(io, &directory, cores, settings).await {
        opened.push(Core::open(storage, Rc::clone(model), SEGMENTS_OF_64K).await);
    }
    opened
}

fn create_all(cores: &mut [Core]) {
    let count = cores.len() as u32;
    for (number, core) in (0..).zip(cores) {
        core.create(keys().into_iter().filter(|key| core_of(count)(*key) == number), SEGMENTS_OF_64K);
    }
}

async fn append_some(cores: &[Core], rounds: u64, salt: u64) {
    for round in 0..rounds {
        for core in cores {
            for (index, key) in (0_u64..).zip(core.logs.keys()) {
                let value_bytes = 20 + ((round * 37 + index * 101) % 700) as usize;
                core.append(*key, 1 + (round % 3) as u32, value_bytes, salt + round).await;
            }
        }
    }
}

#[test]
fn a_kill_loses_nothing_acknowledged_whatever_the_core_count() {
    on_each_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        for (turn, cores) in [2, 1, 3, 2].into_iter().enumerate() {
            let mut opened = open_cores(&io, folder.path(), cores, &model, SMALL).await;
            check_against_model(&io, &opened, &model).await;
            adopt(&io, &opened, &model).await;
            create_all(&mut opened);
            append_some(&opened, 40, turn as u64 * 1000).await;
            for core in &opened {
                core.settle(&io).await;
            }
            // Never acknowledged: may come back, in part, or not.
            append_some(&opened, 2, turn as u64 * 1000 + 500).await;
            drop(opened);
        }
        let opened = open_cores(&io, folder.path(), 1, &model, SMALL).await;
        check_against_model(&io, &opened, &model).await;
    });
}

#[test]
fn files_are_recycled_and_nothing_is_lost() {
    // Few segments: their syncs are what takes time here.
    let segments_of_1m =
        LogSettings { segment_bytes: 1 << 20, index_interval_bytes: 4096, ..LogSettings::default() };
    on_each_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        for turn in 0..2 {
            let mut opened = open_cores(&io, folder.path(), 1, &model, SMALL).await;
            check_against_model(&io, &opened, &model).await;
            adopt(&io, &opened, &model).await;
            opened[0].create(keys(), segments_of_1m);
            let idle: Vec<_> = (0..50).map(|number| partition(9, number)).collect();
            opened[0].create(idle.clone(), segments_of_1m);
            for key in &idle {
                let state = Bytes::from(format!("state of {key} in turn {turn}"));
                model.borrow_mut().hard_state.insert(*key, state.clone());
                opened[0].persist(*key, state);
            }
            // 12 partitions x 180 x 12 KB: many times the journal's 6 MiB.
            for round in 0..180 {
                for key in keys() {
                    opened[0].append(key, 1, 12_000, turn * 1000 + round).await;
                }
                if round % 20 == 0 {
                    opened[0].settle(&io).await;
                }
            }
            opened[0].settle(&io).await;
            let stats = opened[0].storage.stats();
            assert!(stats.journal.written_bytes > 4 * 6 * 1024 * 1024, "{stats:?}");
            assert!(stats.checkpoints >= 3 && stats.carried_entries >= 50, "{stats:?}");
            assert!(stats.journal.files <= 5, "{stats:?}");
            drop(opened);
        }
        let directory = open_directory(&io, folder.path()).await;
        let recovery = recover(&io, &directory, 2, &core_of(2), &SMALL).await.expect("recovery");
        let expected = model.borrow().hard_state.clone();
        let found = recovery.shards.iter().flat_map(|shard| &shard.partitions);
        let found: Vec<_> = found.filter(|found| expected.contains_key(&found.key)).collect();
        assert_eq!(found.len(), 50);
        for partition in found {
            assert_eq!(
                partition.hard_state,
                expected.get(&partition.key).cloned(),
                "idle for many files: {}",
                partition.key
            );
        }
        let mut opened = Vec::new();
        for storage in start_cores(&io, recovery, SMALL).await {
            opened.push(Core::open(storage, Rc::clone(&model), SEGMENTS_OF_64K).await);
        }
        check_against_model(&io, &opened, &model).await;
    });
}

#[test]
fn a_clean_stop_leaves_nothing_to_replay() {
    on_each_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        let mut opened = open_cores(&io, folder.path(), 1, &model, SMALL).await;
        create_all(&mut opened);
        append_some(&opened, 30, 0).await;
        let report = opened[0].storage.checkpoint().await.expect("checkpoint");
        assert_eq!((report.logs_flushed, report.logs_kept), (12, 0));
        assert_eq!(opened[0].storage.stats().dirty_bytes, 0);
        let written: usize = model.borrow().sent.values().flatten().map(Bytes::len).sum();
        assert_eq!(report.bytes, written as u64);
        drop(opened);
        let before = segments(folder.path());
        let directory = open_directory(&io, folder.path()).await;
        let recovery = recover(&io, &directory, 1, &core_of(1), &SMALL).await.expect("recovery");
        assert_eq!((recovery.report.restored_bytes, recovery.report.verified_bytes), (0, 0));
        assert_eq!(segments(folder.path()), before);
        for (key, sent) in &model.borrow().sent {
            let stored: Vec<u8> = before
                .iter()
                .filter(|(name, _)| name.starts_with(&format!("{}/{}/", key.topic, key.partition)))
                .flat_map(|(_, bytes)| bytes.clone())
                .collect();
            assert_eq!(stored, sent.concat(), "segments hold exactly the batches");
        }
    });
}

#[test]
fn recovery_that_stops_anywhere_starts_over_and_ends_with_the_same_bytes() {
    on_each_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        let mut opened = open_cores(&io, folder.path(), 2, &model, SMALL).await;
        create_all(&mut opened);
        append_some(&opened, 25, 0).await;
        for core in &opened {
            core.settle(&io).await;
        }
        drop(opened);
        let expected: Vec<_> = model.borrow().sent.iter().map(|(key, sent)| (*key, sent.concat())).collect();
        let steps = [
            RecoveryStep::Planned,
            RecoveryStep::PartitionReplayed,
            RecoveryStep::GenerationWritten,
            RecoveryStep::ManifestSwitched,
        ];
        for stop_at in steps {
            for skipped in [0, 5] {
                let directory = open_directory(&io, folder.path()).await;
                let count = std::cell::Cell::new(0);
                let hook = |step| {
                    if step == stop_at {
                        count.set(count.get() + 1);
                        if count.get() > skipped {
                            return Err(io::Error::other("planned stop"));
                        }
                    }
                    Ok(())
                };
                let result = recover_with(&io, &directory, 3, &core_of(3), &SMALL, &hook).await;
                match result {
                    Err(RecoveryError::Stopped { step, .. }) => assert_eq!(step, stop_at),
                    Ok(_) => assert!(skipped > 0 && stop_at != RecoveryStep::PartitionReplayed),
                    Err(error) => panic!("{error}"),
                }
            }
        }
        let opened = open_cores(&io, folder.path(), 1, &model, SMALL).await;
        for (key, bytes) in expected {
            assert_eq!(read_all(&io, &opened[0].storage, opened[0].logs[&key], 50_000).await, bytes, "{key}");
        }
        drop(opened);
        let first = segments(folder.path());
        drop(open_cores(&io, folder.path(), 2, &model, SMALL).await);
        assert_eq!(segments(folder.path()), first, "a second start changes no segment");
    });
}

#[test]
fn deleted_partitions_stay_deleted() {
    on_each_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        let mut opened = open_cores(&io, folder.path(), 1, &model, SMALL).await;
        create_all(&mut opened);
        append_some(&opened, 10, 0).await;
        opened[0].storage.checkpoint().await.expect("checkpoint");
        append_some(&opened, 5, 100).await;
        opened[0].settle(&io).await;
        let gone = partition(2, 1);
        let gone_folder = folder.path().join("data").join(gone.topic.to_string()).join("1");
        assert!(gone_folder.exists());
        let id = opened[0].logs.remove(&gone).expect("open");
        opened[0].storage.delete_log(id);
        model.borrow_mut().deleted.push(gone);
        while opened[0].storage.stats().deletes_pending > 0 {
            io.sleep(std::time::Duration::from_millis(1)).await;
        }
        assert!(!gone_folder.exists(), "the folder goes once the deletion is durable");
        drop(opened);
        let opened = open_cores(&io, folder.path(), 2, &model, SMALL).await;
        check_against_model(&io, &opened, &model).await;
    });
}

#[test]
fn a_durable_deletion_is_done_by_the_next_start() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        let mut opened = open_cores(&io, folder.path(), 1, &model, SMALL).await;
        create_all(&mut opened);
        append_some(&opened, 10, 0).await;
        opened[0].storage.checkpoint().await.expect("checkpoint");
        let gone = partition(1, 0);
        let gone_folder = folder.path().join("data").join(gone.topic.to_string()).join("0");
        let id = opened[0].logs.remove(&gone).expect("open");
        opened[0].storage.delete_log(id);
        opened[0].append(partition(1, 1), 1, 10, 7).await;
        opened[0].settle(&io).await;
        drop(opened);
        model.borrow_mut().deleted.push(gone);
        // As if the removal had not got to the disk.
        std::fs::create_dir_all(&gone_folder).expect("made");
        std::fs::write(gone_folder.join("00000000000000000000.log"), b"old bytes").expect("written");
        let opened = open_cores(&io, folder.path(), 1, &model, SMALL).await;
        check_against_model(&io, &opened, &model).await;
        assert!(!gone_folder.exists());
    });
}

#[test]
fn reads_find_every_offset_and_keep_to_their_bounds() {
    on_each_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        let settings = StorageSettings { tail_bytes_max: 1024 * 1024, ..SMALL };
        let mut opened = open_cores(&io, folder.path(), 1, &model, settings).await;
        let key = partition(1, 0);
        opened[0].create(
            [key],
            LogSettings { segment_bytes: 200_000, index_interval_bytes: 4096, ..LogSettings::default() },
        );
        for round in 0..2000 {
            opened[0].append(key, 3, 100 + (round % 900) as usize, round).await;
        }
        opened[0].settle(&io).await;
        let (storage, id) = (&opened[0].storage, opened[0].logs[&key]);
        assert!(storage.stats().tail_bytes < 3 * 1024 * 1024, "{:?}", storage.stats());
        let sent = model.borrow().sent[&key].concat();
        for step in [1, 1000, 70_000, 10_000_000] {
            assert!(read_all(&io, storage, id, step).await == sent, "in steps of {step}");
        }
        let end = storage.log(id).log_end();
        assert_eq!(end, Offset(6000));
        for from in (0..6000).step_by(7) {
            let limit = Offset((from + 31).min(6000) / 3 * 3);
            let plan = storage.plan_read(id, Offset(from), limit, 5000, true).expect("in range");
            let read = plan.run(&io).await.expect("read");
            assert!(read.next_offset <= limit && read.next_offset.0 > from, "{from} {limit} {read:?}");
            assert!(read.bytes <= 5000 || read.next_offset.0 == from / 3 * 3 + 3, "{from} {read:?}");
            assert!(storage.log(id).bytes_between(Offset(from), limit) > 0);
        }
        assert!(storage.plan_read(id, Offset(6001), end, 10, true).is_err());
        assert!(storage.plan_read(id, Offset(-1), end, 10, true).is_err());
        let at_end = storage
            .plan_read(id, end, end, 10, true)
            .expect("the end is in range")
            .run(&io)
            .await
            .expect("read");
        assert_eq!((at_end.pieces.len(), at_end.next_offset), (0, end));
    });
}

#[test]
fn time_lookup_finds_the_record_in_files_and_in_memory() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        let settings = StorageSettings { tail_bytes_max: 1024 * 1024, ..SMALL };
        let mut opened = open_cores(&io, folder.path(), 1, &model, settings).await;
        let key = partition(1, 0);
        opened[0].create(
            [key],
            LogSettings { segment_bytes: 300_000, index_interval_bytes: 4096, ..LogSettings::default() },
        );
        for round in 0..1500 {
            opened[0].append(key, 3, 500, round).await;
        }
        opened[0].settle(&io).await;
        let (storage, id) = (&opened[0].storage, opened[0].logs[&key]);
        let end = storage.log(id).log_end();
        // The record at offset N of a batch has timestamp 1,700,000,000,000 + N: see `batch`.
        for offset in (0..4500).step_by(13) {
            let target = 1_700_000_000_000 + offset;
            let hit =
                storage.plan_time_lookup(id, target, end).expect("open").run(&io).await.expect("lookup");
            let hit = hit.expect("there is one");
            assert_eq!((hit.offset, hit.timestamp), (Offset(offset), target));
            let plan = storage.plan_first_from(id, Offset(offset), end).expect("open");
            assert_eq!(plan.run(&io).await.expect("lookup"), Some(hit), "by its offset");
        }
        for (from, limit) in [(end, end), (Offset(4499), Offset(4499)), (Offset(9000), Offset(9001))] {
            let plan = storage.plan_first_from(id, from, limit).expect("open");
            assert_eq!(plan.run(&io).await.expect("lookup"), None, "{from:?} to {limit:?}");
        }
        let newest = storage
            .plan_newest(id, end)
            .expect("open")
            .run(&io)
            .await
            .expect("lookup")
            .expect("there is one");
        assert_eq!(newest.offset, Offset(4499));
        let below = storage.plan_newest(id, Offset(4497)).expect("open").run(&io).await.expect("lookup");
        assert_eq!(below.expect("there is one").offset, Offset(4496));
        let late = storage
            .plan_time_lookup(id, 1_700_000_004_500, end)
            .expect("open")
            .run(&io)
            .await
            .expect("lookup");
        assert_eq!(late, None);
    });
}
