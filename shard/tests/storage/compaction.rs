//! Compaction of logs on disk: the newest record of each key is there whatever the moment of a crash, no offset is missing, epochs
//! begin where they began, and who reads an old segment reads on.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::storage_support::{SMALL, core_of, on_each_driver, open_directory, partition, read_all, start};
use bytes::Bytes;
use ringlog_io::sim::{Outcome, UnsyncedData, World};
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence};
use ringlog_protocol::records::batch::{BatchHeader, batches};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::reader::read_batch;
use ringlog_protocol::records::validate::BatchProducer;
use ringlog_shard::journal::recovery::recover;
use ringlog_shard::storage::compaction::{CompactionError, CompactionOrder, CompactionReport};
use ringlog_shard::storage::{
    CoreStorage, DataDirectory, LogId, LogPiece, LogSettings, LogVisitor, StampedBatch, StorageSettings,
};

const SEGMENTS_OF_16K: LogSettings =
    LogSettings { segment_bytes: 16 * 1024, index_interval_bytes: 1024, ..LogSettings::KEEP_ALL };
const KEYS: u64 = 9;
const TIME: i64 = 1_700_000_000_000;
const PRODUCER: ProducerId = ProducerId(77);

/// One record; each batch has one.
#[derive(Clone, Debug)]
struct Sent {
    epoch: i32,
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    is_of_producer: bool,
}

fn sent(number: u64) -> Sent {
    let key = format!("key-{}", (number * 7 + number / 11) % KEYS).into_bytes();
    let value = (number % 13 != 5).then(|| {
        let mut value = format!("value {number} ").into_bytes();
        value.resize(200 + (number as usize * 53) % 1500, b'.');
        value
    });
    Sent { epoch: 1 + (number / 25) as i32, key, value, is_of_producer: number % 31 == 7 }
}

fn stamped(offset: u64) -> StampedBatch {
    let Sent { epoch, key, value, is_of_producer } = sent(offset);
    let mut builder = BatchBuilder::new();
    let (key, value) = (Some(&key[..]), value.as_deref());
    let record = NewRecord { timestamp: TIME + offset as i64, key, value, headers: &[] };
    builder.append(&record).expect("a small record");
    let producer = is_of_producer.then_some(BatchProducer {
        id: PRODUCER,
        epoch: ProducerEpoch(0),
        base_sequence: Sequence((offset / 31) as i32),
    });
    let options = BatchOptions {
        base_offset: Offset(offset as i64),
        leader_epoch: LeaderEpoch(epoch),
        producer,
        ..BatchOptions::default()
    };
    let bytes = Bytes::from(builder.finish(&options).expect("a small batch"));
    let header = BatchHeader::parse(&bytes).expect("just built");
    let buffer_bytes = bytes.len() as u32;
    StampedBatch { header, bytes, buffer_bytes }
}

async fn append(storage: &CoreStorage, id: LogId, count: u64) {
    for _ in 0..count {
        storage.room().await;
        let offset = storage.log(id).log_end().0 as u64;
        storage.append(id, stamped(offset)).expect("append");
    }
}

fn order(storage: &CoreStorage, id: LogId) -> CompactionOrder {
    let end = storage.log(id).durable_end();
    let of_producer = (0..end.0).rev().find(|offset| sent(*offset as u64).is_of_producer);
    CompactionOrder {
        until: end,
        delete_retention_ms: i64::MAX / 2,
        producers: of_producer.map(|offset| (PRODUCER, Offset(offset + 1))).into_iter().collect(),
        map_bytes: 1 << 20,
        bytes_per_second: Rc::default(),
    }
}

async fn compact(storage: &CoreStorage, id: LogId) -> CompactionReport {
    let order = order(storage, id);
    storage.compact(id, &order).await.expect("compaction")
}

/// Checks a log against what was sent: each record that is there is the one that was sent, each offset is taken once, each epoch
/// begins where it began, and below `compacted` only the newest record of each key is left. Returns the offsets of the records.
fn judge(bytes: &[u8], end: Offset, compacted: Offset) -> BTreeSet<i64> {
    let (mut next, mut records, mut last_of_producer) = (Offset(0), BTreeSet::new(), None);
    for batch in batches(bytes) {
        let batch = batch.expect("whole batches");
        assert_eq!(batch.header.base_offset, next, "no offset is missing");
        next = batch.header.next_offset();
        for offset in batch.header.base_offset.0..next.0 {
            assert_eq!(batch.header.leader_epoch.0, sent(offset as u64).epoch, "epoch of offset {offset}");
        }
        if batch.header.producer_id == PRODUCER {
            last_of_producer = Some(batch.header.base_offset.0);
        }
        let mut scratch = Vec::new();
        let (_, found) = read_batch(batch.bytes, 1 << 20, &mut scratch).expect("readable");
        for record in found {
            let record = record.expect("well formed");
            let wanted = sent(record.offset.0 as u64);
            assert_eq!(record.key, Some(&wanted.key[..]));
            assert_eq!(record.value, wanted.value.as_deref());
            assert_eq!(record.timestamp, TIME + record.offset.0);
            records.insert(record.offset.0);
        }
    }
    assert_eq!(next, end);
    let newest_below = |bound: i64| -> BTreeMap<Vec<u8>, i64> {
        (0..bound).map(|offset| (sent(offset as u64).key, offset)).collect()
    };
    for (key, offset) in newest_below(end.0) {
        assert!(records.contains(&offset), "the newest record of {key:?}, at {offset}, is gone");
    }
    let newest = newest_below(compacted.0);
    for offset in records.range(..compacted.0) {
        assert_eq!(
            newest.get(&sent(*offset as u64).key),
            Some(offset),
            "a newer one has the key of {offset}"
        );
    }
    let wanted = (0..end.0).rev().find(|offset| sent(*offset as u64).is_of_producer);
    assert_eq!(last_of_producer, wanted, "the producer's last batch is there");
    records
}

/// Takes a checkpoint's word.
struct Spares;

impl LogVisitor for Spares {
    fn restore(&mut self, _producers: Option<&[u8]>) -> bool {
        true
    }

    fn batch(&mut self, _header: &BatchHeader) {}
}

async fn reopen(
    io: &Io,
    directory: &DataDirectory,
    settings: StorageSettings,
) -> (CoreStorage, Option<LogId>) {
    let recovery = recover(io, directory, 1, &core_of(1), &settings).await.expect("recovery");
    assert_eq!(recovery.report.corruption, Vec::<String>::new());
    let shard = recovery.shards.into_iter().next().expect("one core");
    let storage = CoreStorage::start(io.clone(), shard, settings).await.expect("start");
    let Some(recovered) = storage.take_recovered().pop() else { return (storage, None) };
    let opened = storage.open_log_from(recovered, SEGMENTS_OF_16K, &mut Spares).await;
    let id = opened.expect("open");
    assert_eq!(storage.log(id).damage(), None);
    (storage, Some(id))
}

fn closed_end(storage: &CoreStorage, id: LogId) -> Offset {
    let (facts, _) = storage.log(id).compaction_facts();
    facts.last().expect("segments were closed").end
}

#[test]
fn the_newest_record_of_each_key_is_left_and_a_restart_finds_the_same() {
    on_each_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let directory = open_directory(&io, folder.path()).await;
        let storage = start(&io, &directory, 1, SMALL).await.pop().expect("one core");
        let id = storage.create_log(partition(1, 0), SEGMENTS_OF_16K);
        append(&storage, id, 200).await;
        storage.checkpoint().await.expect("checkpoint");
        let (end, closed) = (storage.log(id).log_end(), closed_end(&storage, id));
        let (bytes_before, segments_before) = (storage.log(id).size_bytes(), storage.log(id).segment_count());
        let epochs = storage.log(id).epochs().to_vec();
        let report = compact(&storage, id).await;
        assert_eq!(report.first_dirty, closed);
        assert!(storage.log(id).segment_count() < segments_before, "small ones are put together");
        assert!(storage.log(id).size_bytes() < bytes_before / 4);
        assert!(report.records_dropped > 100, "{report:?}");
        let bytes = read_all(&io, &storage, id, 700).await;
        let records = judge(&bytes, end, closed);
        // Once more there is nothing to do.
        let again = compact(&storage, id).await;
        assert_eq!((again.bytes_written, again.first_dirty), (0, closed));
        for offset in &records {
            let (plan, wanted) = (storage.plan_time_lookup(id, TIME + offset, end), Some(*offset));
            let hit = plan.expect("open").run(&io).await.expect("sound");
            assert_eq!(hit.map(|hit| hit.offset.0), wanted, "by its time");
        }
        let missing = (0..closed.0).find(|offset| !records.contains(offset)).expect("some were dropped");
        let next = records.range(missing..).next().copied();
        let plan = storage.plan_time_lookup(id, TIME + missing, end).expect("open");
        assert_eq!(plan.run(&io).await.expect("sound").map(|hit| hit.offset.0), next);
        let plan = storage.plan_first_from(id, Offset(missing), end).expect("open");
        assert_eq!(plan.run(&io).await.expect("sound").map(|hit| hit.offset.0), next, "by its offset");
        assert_eq!(storage.scrub(1 << 30).await.errors, 0);
        assert_eq!(storage.log(id).epochs(), epochs);
        drop(storage);
        for life in 0..3 {
            if life == 2 {
                // All that is remembered beside the segments may be lost.
                for name in ["compaction", "00000000000000000000.sum"] {
                    std::fs::remove_file(
                        directory.data().join(format!("{}/0/{name}", partition(1, 0).topic)),
                    )
                    .expect("it is there");
                }
            }
            let (storage, id) = reopen(&io, &directory, SMALL).await;
            let id = id.expect("the partition is there");
            assert_eq!(read_all(&io, &storage, id, 1 << 20).await, bytes, "life {life}");
            assert_eq!(storage.log(id).epochs(), epochs);
            assert_eq!(storage.scrub(1 << 30).await.errors, 0);
            assert_eq!(storage.damaged(), Vec::new());
            let (_, first_dirty) = storage.log(id).compaction_facts();
            assert_eq!(first_dirty, if life == 2 { Offset(0) } else { closed });
        }
        let (storage, id) = reopen(&io, &directory, SMALL).await;
        let id = id.expect("the partition is there");
        append(&storage, id, 150).await;
        storage.checkpoint().await.expect("checkpoint");
        compact(&storage, id).await;
        let bytes = read_all(&io, &storage, id, 1 << 20).await;
        judge(&bytes, Offset(350), closed_end(&storage, id));
    });
}

#[test]
fn who_reads_an_old_segment_reads_on() {
    on_each_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let directory = open_directory(&io, folder.path()).await;
        let storage = start(&io, &directory, 1, SMALL).await.pop().expect("one core");
        let id = storage.create_log(partition(1, 0), SEGMENTS_OF_16K);
        append(&storage, id, 200).await;
        storage.checkpoint().await.expect("checkpoint");
        drop(storage);
        // A small budget of descriptors: what nobody holds is closed.
        let settings = StorageSettings { segment_files_max: 2, ..SMALL };
        let (storage, id) = reopen(&io, &directory, settings).await;
        let id = id.expect("the partition is there");
        let end = storage.log(id).log_end();
        let plan = |from| storage.plan_read(id, Offset(from), end, 3000, true).expect("in range");
        let (early, late) = (plan(3), plan(90));
        let held = plan(40).run(&io).await.expect("sound");
        let search = storage.plan_time_lookup(id, TIME + 20, end).expect("open");
        compact(&storage, id).await;
        for (plan, from) in [(early, 3), (late, 90)] {
            let read = plan.run(&io).await.expect("the old bytes");
            let bytes = bytes_of(&io, read.pieces).await;
            let first = BatchHeader::parse(&bytes).expect("a batch");
            assert_eq!(
                (first.base_offset, &bytes[..first.total_bytes()]),
                (Offset(from), &stamped(from as u64).bytes[..])
            );
        }
        let bytes = bytes_of(&io, held.pieces).await;
        assert_eq!(bytes[..stamped(40).bytes.len()], stamped(40).bytes[..]);
        assert_eq!(search.run(&io).await.expect("sound").map(|hit| hit.offset), Some(Offset(20)));
        assert_eq!(storage.damaged(), Vec::new());
        let all = read_all(&io, &storage, id, 1 << 20).await;
        judge(&all, end, closed_end(&storage, id));
    });
}

async fn bytes_of(io: &Io, pieces: Vec<LogPiece>) -> Vec<u8> {
    let mut all = Vec::new();
    for piece in pieces {
        match piece {
            LogPiece::Memory(piece) => all.extend_from_slice(piece.bytes()),
            LogPiece::File { file, position, length } => {
                let bytes = io.read_at(&file, position, length as usize).await.expect("readable");
                all.extend_from_slice(&bytes);
            }
        }
    }
    all
}

#[test]
fn nothing_above_the_bound_is_touched_and_a_damaged_log_is_not_compacted() {
    on_each_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let directory = open_directory(&io, folder.path()).await;
        let storage = start(&io, &directory, 1, SMALL).await.pop().expect("one core");
        let id = storage.create_log(partition(1, 0), SEGMENTS_OF_16K);
        append(&storage, id, 200).await;
        let nothing = compact(&storage, id).await;
        assert_eq!(nothing, CompactionReport::default(), "what is not synced is left alone");
        storage.checkpoint().await.expect("checkpoint");
        let (facts, _) = storage.log(id).compaction_facts();
        let until = facts[3].end;
        let bounded = CompactionOrder { until: Offset(until.0 + 1), ..order(&storage, id) };
        let report = storage.compact(id, &bounded).await.expect("compaction");
        assert_eq!(report.first_dirty, until);
        let bytes = read_all(&io, &storage, id, 1 << 20).await;
        let records = judge(&bytes, Offset(200), until);
        assert!((until.0..200).all(|offset| records.contains(&offset)));
        // A map for a few keys: several passes.
        let small = CompactionOrder { map_bytes: 0, until: Offset(200), ..order(&storage, id) };
        let mut passes = 0;
        while storage.log(id).compaction_facts().1 < closed_end(&storage, id) {
            let report = storage.compact(id, &small).await.expect("compaction");
            assert!(report.first_dirty > until);
            passes += 1;
            assert!(passes < 50);
        }
        judge(&read_all(&io, &storage, id, 1 << 20).await, Offset(200), closed_end(&storage, id));
        append(&storage, id, 100).await;
        storage.checkpoint().await.expect("checkpoint");
        let (facts, first_dirty) = storage.log(id).compaction_facts();
        let dirty = facts.iter().find(|facts| facts.base >= first_dirty).expect("segments were closed");
        let path = directory.data().join(format!("{}/0/{:020}.log", partition(1, 0).topic, dirty.base.0));
        let mut damaged = std::fs::read(&path).expect("readable");
        let last = damaged.len() - 1;
        damaged[last] ^= 1;
        std::fs::write(&path, damaged).expect("writable");
        let before = crate::storage_support::segments(folder.path());
        let error = storage.compact(id, &order(&storage, id)).await.expect_err("damaged");
        assert!(matches!(error, CompactionError::Damaged { .. }) && !error.may_pass(), "{error}");
        assert_eq!(crate::storage_support::segments(folder.path()), before, "nothing is changed");
    });
}

/// One log over some segments, compacted; the power goes after `changes` changes of the disk from there on. Returns whether the
/// compaction was over.
fn crash_after(changes: u64, unsynced: UnsyncedData, settings: StorageSettings, seed: u64) -> bool {
    let world = World::new(seed);
    let host = world.host("node");
    let (has_begun, has_ended) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let acknowledged = Rc::new(Cell::new(80_i64));
    let io = host.executor();
    let script = {
        let (io, acknowledged) = (io.clone(), Rc::clone(&acknowledged));
        let (has_begun, has_ended) = (Rc::clone(&has_begun), Rc::clone(&has_ended));
        async move {
            let directory = open_directory(&io, Path::new("/data")).await;
            let (storage, _) = reopen(&io, &directory, settings).await;
            let id = storage.create_log(partition(1, 0), SEGMENTS_OF_16K);
            append(&storage, id, 80).await;
            storage.checkpoint().await.expect("checkpoint");
            has_begun.set(true);
            compact(&storage, id).await;
            append(&storage, id, 10).await;
            while storage.log(id).durable_end() < storage.log(id).log_end() {
                io.sleep(Duration::from_millis(1)).await;
            }
            acknowledged.set(storage.log(id).durable_end().0);
            has_ended.set(true);
            std::future::pending::<()>().await;
        }
    };
    io.spawn(Priority::Foreground, script).detach();
    let longest = Duration::from_secs(60);
    assert_eq!(world.run_until(|| has_begun.get(), longest), Outcome::Done);
    let disk = host.disk();
    let at = disk.changes() + changes;
    world.run_until(|| disk.changes() >= at || has_ended.get(), longest);
    host.crash_with(unsynced);
    // A start that is cut short itself, then one that is not, then another one.
    for life in 0..3 {
        let is_done = Rc::new(Cell::new(false));
        let (io, acknowledged, set) = (host.executor(), Rc::clone(&acknowledged), Rc::clone(&is_done));
        let check = async move {
            let directory = open_directory(&io, Path::new("/data")).await;
            let (storage, id) = reopen(&io, &directory, settings).await;
            let id = id.expect("the partition is there");
            let (end, compacted) = {
                let log = storage.log(id);
                (log.log_end(), log.compaction_facts().1)
            };
            assert!(end.0 >= acknowledged.get(), "acknowledged to {}", acknowledged.get());
            judge(&read_all(&io, &storage, id, 5000).await, end, compacted);
            if life == 2 {
                compact(&storage, id).await;
                let bytes = read_all(&io, &storage, id, 5000).await;
                judge(&bytes, end, closed_end(&storage, id));
            }
            set.set(true);
            std::future::pending::<()>().await;
        };
        let before = disk.changes();
        host.executor().spawn(Priority::Foreground, check).detach();
        let is_cut = |life: u64| life == 0 && disk.changes() - before > changes % 23;
        let outcome = world.run_until(|| is_done.get() || is_cut(life), longest);
        assert_eq!(outcome, Outcome::Done, "{changes} changes, {unsynced:?}, life {life}");
        host.crash_with(if life == 0 {
            UnsyncedData::RandomSubset { torn: true }
        } else {
            UnsyncedData::Lost
        });
    }
    has_ended.get()
}

#[test]
fn a_power_cut_after_any_change_of_the_disk_leaves_the_old_segments_or_the_new_one() {
    let step = std::env::var("RINGLOG_CUT_STEP").map_or(1, |step| step.parse().expect("a number"));
    let bypassing = StorageSettings { bypass_bytes: 1000, ..SMALL };
    let kinds = [
        (SMALL, UnsyncedData::Lost),
        (SMALL, UnsyncedData::Kept),
        (bypassing, UnsyncedData::RandomSubset { torn: false }),
        (SMALL, UnsyncedData::RandomSubset { torn: true }),
    ];
    for (seed, (settings, unsynced)) in (0_u64..).zip(kinds) {
        let (mut changes, mut cuts) = (seed % step, 0);
        while !crash_after(changes, unsynced, settings, seed) {
            changes += step;
            cuts += 1;
        }
        assert!(cuts > 20 / step, "{cuts} cuts");
    }
}
