//! Bytes that went bad while a core serves: the read that meets them fails with file and position, everything around them
//! is served, and health knows.

use std::cell::RefCell;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use crate::storage_support::*;
use ringlog_io::Io;
use ringlog_protocol::ids::{Offset, TopicPartition};
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_shard::storage::{CoreStorage, LogId, LogPiece, LogVisitor, ReadError, StorageSettings};

/// Next to nothing stays in memory, so that reads go to files.
const NO_TAIL: StorageSettings = StorageSettings { tail_bytes_max: 64 * 1024, ..SMALL };
const RECORDS: i64 = 10;
const BATCHES: i64 = 40;

/// A partition of 40 batches, all of them in one segment file, and a neighbour.
async fn filled(io: &Io, path: &Path) -> Core {
    let directory = open_directory(io, path).await;
    let storage = start(io, &directory, 1, NO_TAIL).await.pop().expect("one core");
    let settings = ringlog_shard::storage::LogSettings { index_interval_bytes: 8192, ..SEGMENTS_OF_64K };
    let settings = ringlog_shard::storage::LogSettings { segment_bytes: 1 << 20, ..settings };
    let mut core = Core::open(storage, Rc::new(RefCell::new(Model::default())), settings).await;
    core.create([partition(1, 0), partition(1, 1)], settings);
    for salt in 0..BATCHES {
        core.append(partition(1, 0), RECORDS as u32, 200, salt as u64).await;
        core.append(partition(1, 1), RECORDS as u32, 200, salt as u64).await;
        core.settle(io).await;
        core.storage.checkpoint().await.expect("checkpoint");
    }
    core
}

fn segment_file(path: &Path, key: TopicPartition) -> PathBuf {
    path.join("data")
        .join(key.topic.to_string())
        .join(key.partition.0.to_string())
        .join("00000000000000000000.log")
}

/// Where each batch of the file begins.
fn positions(file: &Path) -> Vec<u64> {
    let bytes = std::fs::read(file).expect("readable");
    let mut positions = vec![0];
    loop {
        let at = *positions.last().expect("one at least") as usize;
        let Some(length) = bytes.get(at + 8..at + 12) else { break };
        let next = at + 12 + u32::from_be_bytes(length.try_into().expect("four")) as usize;
        if next >= bytes.len() {
            break;
        }
        positions.push(next as u64);
    }
    positions
}

fn overwrite(file: &Path, position: u64, bytes: &[u8]) {
    let file = std::fs::OpenOptions::new().write(true).open(file).expect("there");
    file.write_all_at(bytes, position).expect("writable");
}

async fn read(
    io: &Io,
    storage: &CoreStorage,
    id: LogId,
    from: i64,
    bytes_max: u32,
) -> Result<(Vec<u8>, i64), ReadError> {
    let end = storage.log(id).log_end();
    let read = storage.plan_read(id, Offset(from), end, bytes_max, true)?.run(io).await?;
    let mut all = Vec::new();
    for piece in read.pieces {
        match piece {
            LogPiece::Memory(bytes) => all.extend_from_slice(bytes.bytes()),
            LogPiece::File { file, position, length } => {
                all.extend_from_slice(&io.read_at(&file, position, length as usize).await.expect("read"));
            }
        }
    }
    Ok((all, read.next_offset.0))
}

#[test]
fn a_batch_whose_bytes_changed_is_refused_and_its_neighbours_are_served() {
    on_each_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let core = filled(&io, folder.path()).await;
        let (key, neighbour) = (partition(1, 0), partition(1, 1));
        let (id, storage) = (core.logs[&key], &core.storage);
        let file = segment_file(folder.path(), key);
        let starts = positions(&file);
        assert_eq!(starts.len() as i64, BATCHES);
        let bad = 7_usize;
        overwrite(&file, starts[bad] + 500, b"not what was written");
        let (bytes, next) = read(&io, storage, id, 0, 1 << 20).await.expect("what lies before is served");
        assert_eq!((bytes.len() as u64, next), (starts[bad], bad as i64 * RECORDS));
        match read(&io, storage, id, next, 1 << 20).await {
            Err(ReadError::Corrupt { path, position, .. }) => {
                assert_eq!((path, position), (file.clone(), starts[bad]))
            }
            other => panic!("{other:?}"),
        }
        let (after, next) =
            read(&io, storage, id, next + RECORDS, 1 << 20).await.expect("what lies behind is served");
        assert!(after.len() > 10_000 && next > (bad as i64 + 1) * RECORDS, "{next}");
        assert!(read(&io, storage, id, next - 1, 1 << 20).await.is_ok(), "a second time");
        assert_eq!(
            read_all(&io, storage, core.logs[&neighbour], 100_000).await.len() as u64,
            storage.log(core.logs[&neighbour]).size_bytes()
        );
        let damaged = storage.damaged();
        assert_eq!(damaged.len(), 1, "{damaged:?}");
        assert_eq!((damaged[0].0, damaged[0].1.position), (key, starts[bad]));
        assert_eq!(storage.stats().damaged_places, 1);
        // It goes with the records: deleting them is the way out.
        storage.advance_log_start(id, Offset(BATCHES * RECORDS)).expect("open");
        storage.log_start_durable(id, Offset(BATCHES * RECORDS)).await.expect("durable");
        while storage.log(id).segment_count() > 0 {
            io.sleep(std::time::Duration::from_millis(1)).await;
        }
        assert_eq!(storage.stats().damaged_places, 0);
    });
}

/// One bit of a batch's offset, which its CRC does not cover: the batch that skips ahead is refused, not the one after it.
#[test]
fn a_batch_that_skips_offsets_is_refused_and_not_the_one_that_follows_it() {
    // By 256 offsets within the log, and by 65,536 to a place beyond its end.
    for byte in [6, 5] {
        on_each_driver(|io| async move { skips_offsets(&io, byte).await });
    }
}

async fn skips_offsets(io: &Io, flipped_byte: u64) {
    let folder = tempfile::tempdir().expect("temp");
    let core = filled(io, folder.path()).await;
    let key = partition(1, 0);
    let (id, storage) = (core.logs[&key], core.storage.clone());
    let storage = &storage;
    let file = segment_file(folder.path(), key);
    let starts = positions(&file);
    let bad = 7_usize;
    let before = std::fs::read(&file).expect("readable");
    let byte = starts[bad] + flipped_byte;
    overwrite(&file, byte, &[before[byte as usize] ^ 1]);
    for bytes_max in [1 << 20, starts[bad + 1] as u32] {
        let (bytes, next) = read(io, storage, id, 0, bytes_max).await.expect("what lies before is served");
        assert_eq!((bytes.len() as u64, next), (starts[bad], bad as i64 * RECORDS));
    }
    match read(io, storage, id, bad as i64 * RECORDS, 1 << 20).await {
        Err(ReadError::Corrupt { position, .. }) => assert_eq!(position, starts[bad]),
        other => panic!("{other:?}"),
    }
    assert_eq!(storage.damaged()[0].1.position, starts[bad]);
    drop(core);
    // A start that reads all of it finds the same place.
    std::fs::remove_dir_all(folder.path().join("checkpoints")).expect("there");
    let directory = open_directory(io, folder.path()).await;
    let storage = &start(io, &directory, 1, NO_TAIL).await.pop().expect("one core");
    for recovered in storage.take_recovered() {
        storage.open_log_from(recovered, SEGMENTS_OF_64K, &mut SpareAll).await.expect("open");
    }
    let damaged = storage.damaged();
    assert_eq!(damaged.len(), 1, "{damaged:?}");
    assert_eq!((damaged[0].0, damaged[0].1.position), (key, starts[bad]));
}

#[test]
fn a_header_that_is_gone_hides_no_more_than_its_index_interval() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let core = filled(&io, folder.path()).await;
        let id = core.logs[&partition(1, 0)];
        let file = segment_file(folder.path(), partition(1, 0));
        let starts = positions(&file);
        overwrite(&file, starts[9], &[0; 61]);
        let (before, next) = read(&io, &core.storage, id, 0, 1 << 20).await.expect("before");
        assert_eq!((before.len() as u64, next), (starts[9], 9 * RECORDS));
        assert!(matches!(read(&io, &core.storage, id, next, 1 << 20).await, Err(ReadError::Corrupt { .. })));
        let reachable = (0..BATCHES).filter(|batch| *batch > 9);
        let mut served = 0;
        for batch in reachable {
            if read(&io, &core.storage, id, batch * RECORDS, 2000).await.is_ok() {
                served += 1;
            }
        }
        assert!(served > BATCHES - 10 - 8, "{served} batches behind it are served");
    });
}

#[test]
fn what_was_read_once_is_not_read_again_to_be_checked() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let core = filled(&io, folder.path()).await;
        let id = core.logs[&partition(1, 0)];
        let file = segment_file(folder.path(), partition(1, 0));
        read(&io, &core.storage, id, 0, 1 << 20).await.expect("sound");
        overwrite(&file, positions(&file)[3] + 500, b"after it was checked");
        assert!(read(&io, &core.storage, id, 0, 1 << 20).await.is_ok());
        assert_eq!(core.storage.stats().damaged_places, 0);
    });
}

/// Puts another sound batch, of the same offsets and length, where batch number `number` of the file lies: what a device does
/// that mixes places up. No CRC of a batch tells.
fn mix_up(file: &Path, number: usize) {
    let position = positions(file)[number];
    let other = batch(Offset(number as i64 * RECORDS), RECORDS as u32, 200, 700 + number as u64);
    let before = std::fs::read(file).expect("readable");
    let at = position as usize;
    let length = 12 + u32::from_be_bytes(before[at + 8..at + 12].try_into().expect("four")) as usize;
    assert_eq!(other.bytes.len(), length, "of the same length");
    assert_ne!(&before[at..at + length], &other.bytes[..]);
    overwrite(file, position, &other.bytes);
}

#[test]
fn a_block_that_is_not_what_was_synced_is_refused_though_its_batches_look_sound() {
    on_each_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let core = filled(&io, folder.path()).await;
        let (id, storage) = (core.logs[&partition(1, 0)], &core.storage);
        let file = segment_file(folder.path(), partition(1, 0));
        mix_up(&file, 7);
        for from in [0, 70, 100] {
            match read(&io, storage, id, from, 1 << 20).await {
                Err(ReadError::BadBlock { path, position: 0, .. }) => assert_eq!(path, file),
                other => panic!("from {from}: {other:?}"),
            }
        }
        let first_behind = positions(&file).iter().filter(|start| **start < 65_536).count() as i64;
        let behind = read(&io, storage, id, first_behind * RECORDS, 1 << 20).await.expect("served");
        assert_eq!(behind.1, BATCHES * RECORDS);
        let damaged = storage.damaged();
        assert_eq!(damaged.len(), 1, "{damaged:?}");
        assert!(damaged[0].1.detail.contains("not what was synced"), "{damaged:?}");
    });
}

/// The same of a bit of its leader epoch.
#[test]
fn a_batch_of_an_epoch_that_is_not_the_leaders_is_refused_alone() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let core = filled(&io, folder.path()).await;
        let key = partition(1, 0);
        let (id, storage) = (core.logs[&key], &core.storage.clone());
        let file = segment_file(folder.path(), key);
        let starts = positions(&file);
        let bad = 7_usize;
        // The leader epoch follows offset and length.
        let byte = starts[bad] + 12 + 1;
        let before = std::fs::read(&file).expect("readable");
        overwrite(&file, byte, &[before[byte as usize] ^ 1]);
        let (bytes, next) = read(&io, storage, id, 0, 1 << 20).await.expect("what lies before is served");
        assert_eq!((bytes.len() as u64, next), (starts[bad], bad as i64 * RECORDS));
        match read(&io, storage, id, bad as i64 * RECORDS, 1 << 20).await {
            Err(ReadError::Corrupt { position, .. }) => assert_eq!(position, starts[bad]),
            other => panic!("{other:?}"),
        }
        let behind = (bad as i64 + 1) * RECORDS;
        assert!(read(&io, storage, id, behind, 1 << 20).await.expect("served").1 > behind);
        drop(core);
        std::fs::remove_dir_all(folder.path().join("checkpoints")).expect("there");
        let directory = open_directory(&io, folder.path()).await;
        let storage = &start(&io, &directory, 1, NO_TAIL).await.pop().expect("one core");
        for recovered in storage.take_recovered() {
            storage.open_log_from(recovered, SEGMENTS_OF_64K, &mut SpareAll).await.expect("open");
        }
        let damaged = storage.damaged();
        assert_eq!((damaged.len(), damaged[0].1.position), (1, starts[bad]), "{damaged:?}");
    });
}

/// What no CRC of a batch covers, of the last batch of a log, read whole by a start: offsets beyond what the journal knows of, within
/// what a segment may hold and beyond it.
#[test]
fn a_last_batch_with_other_offsets_is_damage_at_a_start() {
    for flipped_byte in 0..8 {
        on_driver(|io| async move {
            let folder = tempfile::tempdir().expect("temp");
            let key = partition(1, 0);
            drop(filled(&io, folder.path()).await);
            let file = segment_file(folder.path(), key);
            let last = *positions(&file).last().expect("one at least");
            let before = std::fs::read(&file).expect("readable");
            let byte = last + flipped_byte;
            overwrite(&file, byte, &[before[byte as usize] ^ 0x40]);
            std::fs::remove_dir_all(folder.path().join("checkpoints")).expect("there");
            let directory = open_directory(&io, folder.path()).await;
            let storage = &start(&io, &directory, 1, NO_TAIL).await.pop().expect("one core");
            for recovered in storage.take_recovered() {
                storage.open_log_from(recovered, SEGMENTS_OF_64K, &mut SpareAll).await.expect("open");
            }
            let damaged = storage.damaged();
            assert_eq!(damaged.len(), 1, "byte {flipped_byte}: {damaged:?}");
            assert_eq!((damaged[0].0, damaged[0].1.position), (key, last), "byte {flipped_byte}");
        });
    }
}

/// Needs none of the batches of which a checkpoint speaks.
struct SpareAll;

impl LogVisitor for SpareAll {
    fn restore(&mut self, _producers: Option<&[u8]>) -> bool {
        true
    }

    fn batch(&mut self, _header: &BatchHeader) {}
}

#[test]
fn a_closed_segment_is_checked_by_its_sidecar_at_its_first_read_and_by_a_start_that_reads_it() {
    for reads_all in [false, true] {
        on_driver(|io| async move {
            let folder = tempfile::tempdir().expect("temp");
            let key = partition(1, 0);
            {
                let directory = open_directory(&io, folder.path()).await;
                let storage = start(&io, &directory, 1, NO_TAIL).await.pop().expect("one core");
                let mut core = Core::open(storage, Rc::default(), SEGMENTS_OF_64K).await;
                core.create([key], SEGMENTS_OF_64K);
                for salt in 0..BATCHES * 2 {
                    core.append(key, RECORDS as u32, 200, salt as u64).await;
                }
                core.settle(&io).await;
                core.storage.checkpoint().await.expect("checkpoint");
                assert!(core.storage.log(core.logs[&key]).segment_count() > 2);
            }
            let file = segment_file(folder.path(), key);
            assert!(file.with_extension("sum").exists(), "the first segment is closed");
            mix_up(&file, 3);
            if reads_all {
                std::fs::remove_dir_all(folder.path().join("checkpoints")).expect("there");
            }
            let directory = open_directory(&io, folder.path()).await;
            let storage = &start(&io, &directory, 1, NO_TAIL).await.pop().expect("one core");
            let recovered = storage.take_recovered().pop().expect("one partition");
            let id = storage.open_log_from(recovered, SEGMENTS_OF_64K, &mut SpareAll).await.expect("open");
            assert_eq!(storage.damaged().len(), usize::from(reads_all), "a start names what it reads");
            assert!(matches!(
                read(&io, storage, id, 0, 1 << 20).await,
                Err(ReadError::BadBlock { position: 0, .. })
            ));
            assert_eq!(storage.damaged().len(), 1);
            let next = storage.log(id).segment_facts()[0].end;
            let behind = storage.log(id).log_end();
            let read_behind =
                read(&io, storage, id, next.0, 20_000).await.expect("other segments are served");
            assert!(read_behind.1 > next.0 && read_behind.1 <= behind.0);
        });
    }
}

#[test]
fn a_segment_without_a_sidecar_is_read_by_its_batches_checksums() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let key = partition(1, 0);
        {
            let directory = open_directory(&io, folder.path()).await;
            let storage = start(&io, &directory, 1, NO_TAIL).await.pop().expect("one core");
            let mut core = Core::open(storage, Rc::default(), SEGMENTS_OF_64K).await;
            core.create([key], SEGMENTS_OF_64K);
            for salt in 0..BATCHES * 2 {
                core.append(key, RECORDS as u32, 200, salt as u64).await;
            }
            core.settle(&io).await;
            core.storage.checkpoint().await.expect("checkpoint");
        }
        let directory = open_directory(&io, folder.path()).await;
        let storage = start(&io, &directory, 1, NO_TAIL).await.pop().expect("one core");
        let core = Core::open(storage, Rc::default(), SEGMENTS_OF_64K).await;
        std::fs::remove_file(segment_file(folder.path(), key).with_extension("sum")).expect("there");
        read_all(&io, &core.storage, core.logs[&key], 30_000).await;
        assert_eq!(core.storage.damaged(), Vec::new());
    });
}
