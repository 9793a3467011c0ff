//! A damaged partition over restarts and recycled journals: it stays damaged, takes no writes, and loses no byte more.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::storage_support::*;
use ringlog_io::Io;
use ringlog_protocol::ids::{Offset, PartitionIndex, TopicId, TopicPartition};
use ringlog_shard::journal::recovery::recover;
use ringlog_shard::storage::StorageError;

async fn open_one(io: &Io, path: &Path, model: &Rc<RefCell<Model>>) -> Core {
    let directory = open_directory(io, path).await;
    let recovery = recover(io, &directory, 1, &core_of(1), &SMALL).await.expect("recovery");
    let storage = start_cores(io, recovery, SMALL).await.pop().expect("one core");
    Core::open(storage, Rc::clone(model), SEGMENTS_OF_64K).await
}

fn folder_of(path: &Path, key: TopicPartition) -> PathBuf {
    path.join("data").join(key.topic.to_string()).join(key.partition.to_string())
}

fn first_segment(path: &Path, key: TopicPartition) -> PathBuf {
    folder_of(path, key).join("00000000000000000000.log")
}

/// A partition with `batches` synced batches of about `value_bytes` each; the storage is closed again.
async fn synced_partition(
    io: &Io,
    path: &Path,
    model: &Rc<RefCell<Model>>,
    batches: u64,
    value_bytes: usize,
) {
    let mut core = open_one(io, path, model).await;
    core.create([BAD], SEGMENTS_OF_64K);
    for round in 0..batches {
        core.append(BAD, 1, value_bytes, round).await;
    }
    core.storage.checkpoint().await.expect("checkpoint");
}

/// Fills the journal so often that each of its files is used again.
async fn recycle(core: &mut Core) {
    core.create([GOOD], SEGMENTS_OF_64K);
    for round in 0..600 {
        core.append(GOOD, 1, 15_000, round).await;
    }
    core.storage.checkpoint().await.expect("checkpoint");
}

fn assert_takes_no_writes(core: &Core) {
    let id = core.logs[&BAD];
    let end = core.storage.log(id).log_end();
    let appended = core.storage.append(id, batch(end, 1, 10, 0));
    assert!(matches!(appended, Err(StorageError::Poisoned(_))), "{appended:?}");
}

const BAD: TopicPartition = TopicPartition { topic: TopicId([1; 16]), partition: PartitionIndex(0) };
const GOOD: TopicPartition = TopicPartition { topic: TopicId([2; 16]), partition: PartitionIndex(0) };

#[test]
fn what_lies_behind_damage_outlives_restarts_and_recycled_journals() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        synced_partition(&io, folder.path(), &model, 10, 500).await;
        let path = first_segment(folder.path(), BAD);
        let first = model.borrow().sent[&BAD][0].clone();
        let mut damaged = fs::read(&path).expect("readable");
        damaged[first.len() + 300] ^= 0x10;
        fs::write(&path, &damaged).expect("written");
        for _ in 0..3 {
            let mut core = open_one(&io, folder.path(), &model).await;
            let id = core.logs[&BAD];
            let damage = core.storage.log(id).damage().cloned().expect("found by the scan");
            assert_eq!((damage.path.as_path(), damage.position), (path.as_path(), first.len() as u64));
            assert_eq!(read_all(&io, &core.storage, id, 1 << 20).await, first);
            assert_takes_no_writes(&core);
            recycle(&mut core).await;
            drop(core);
            assert_eq!(fs::read(&path).expect("readable"), damaged, "nothing is cut");
        }
        damaged[first.len() + 300] ^= 0x10;
        fs::write(&path, &damaged).expect("written");
        let core = open_one(&io, folder.path(), &model).await;
        let id = core.logs[&BAD];
        assert!(core.storage.log(id).damage().is_none(), "put back");
        assert_eq!(read_all(&io, &core.storage, id, 1 << 20).await, model.borrow().sent[&BAD].concat());
        core.storage.append(id, batch(Offset(10), 1, 10, 0)).expect("goes on");
    });
}

#[test]
fn a_marked_partition_is_never_cut() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        synced_partition(&io, folder.path(), &model, 3, 500).await;
        let path = first_segment(folder.path(), BAD);
        let mut bytes = fs::read(&path).expect("readable");
        bytes.extend_from_slice(b"what came of a lost journal frame");
        fs::write(&path, &bytes).expect("written");
        fs::write(folder_of(folder.path(), BAD).join("DAMAGED"), "for a reason\n").expect("written");
        for _ in 0..2 {
            let mut core = open_one(&io, folder.path(), &model).await;
            assert!(core.storage.log(core.logs[&BAD]).damage().is_some());
            assert_takes_no_writes(&core);
            recycle(&mut core).await;
            drop(core);
            assert_eq!(fs::read(&path).expect("readable"), bytes);
        }
    });
}

#[test]
fn a_lost_oldest_segment_is_damage_and_the_others_are_served() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        synced_partition(&io, folder.path(), &model, 20, 10_000).await;
        let path = first_segment(folder.path(), BAD);
        let lost_bytes = fs::metadata(&path).expect("there").len() as usize;
        fs::remove_file(&path).expect("removed");
        let rest = model.borrow().sent[&BAD].concat().split_off(lost_bytes);
        for _ in 0..3 {
            let mut core = open_one(&io, folder.path(), &model).await;
            let id = core.logs[&BAD];
            let damage = core.storage.log(id).damage().cloned().expect("found");
            assert_eq!((damage.path.as_path(), damage.position), (path.as_path(), 0));
            assert!(core.storage.log(id).log_start() > Offset(0));
            assert_eq!(core.storage.log(id).log_end(), Offset(20));
            assert_eq!(read_all(&io, &core.storage, id, 1 << 20).await, rest);
            assert_takes_no_writes(&core);
            recycle(&mut core).await;
        }
    });
}

#[test]
fn a_removed_marker_accepts_no_loss_and_restored_bytes_end_the_damage() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        synced_partition(&io, folder.path(), &model, 5, 500).await;
        let path = first_segment(folder.path(), BAD);
        let marker = folder_of(folder.path(), BAD).join("DAMAGED");
        let whole = fs::read(&path).expect("readable");
        fs::write(&path, &whole[..whole.len() - 10]).expect("written");
        for _ in 0..2 {
            let mut core = open_one(&io, folder.path(), &model).await;
            assert_eq!(core.storage.log(core.logs[&BAD]).log_end(), Offset(4));
            assert_takes_no_writes(&core);
            recycle(&mut core).await;
            drop(core);
            fs::remove_file(&marker).expect("each start writes it anew");
        }
        fs::write(&path, &whole).expect("written");
        let core = open_one(&io, folder.path(), &model).await;
        let id = core.logs[&BAD];
        assert!(core.storage.log(id).damage().is_none());
        core.storage.append(id, batch(Offset(5), 1, 10, 0)).expect("goes on");
        assert!(!marker.exists());
    });
}

#[test]
fn an_unfinished_rewrite_goes_with_the_next_start() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let model = Rc::new(RefCell::new(Model::default()));
        synced_partition(&io, folder.path(), &model, 3, 500).await;
        let mut left = first_segment(folder.path(), BAD).into_os_string();
        left.push(".rewrite");
        fs::write(&left, b"half of it").expect("written");
        let foreign = folder_of(folder.path(), BAD).join("notes.rewrite");
        fs::write(&foreign, b"not ours").expect("written");
        let core = open_one(&io, folder.path(), &model).await;
        assert!(!Path::new(&left).exists());
        assert!(foreign.exists());
        check_against_model(&io, &[core], &model).await;
    });
}
