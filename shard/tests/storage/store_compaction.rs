//! Compaction of whole partitions on simulated time: each is compacted by itself, one that cannot be stops no other, keys that do not fit
//! take several passes, and what is set holds at once.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::storage_support::{SMALL, core_of, open_directory, partition, read_all};
use bytes::{Bytes, BytesMut};
use ringlog_io::sim::{Outcome, World};
use ringlog_io::{Io, OpenOptions, Priority};
use ringlog_protocol::ids::{NodeId, Offset, TopicPartition};
use ringlog_protocol::records::batch::{BatchHeader, batches};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::reader::read_batch;
use ringlog_raft::ids::{DirectoryId, ReplicaId};
use ringlog_shard::partition::IncomingBatch;
use ringlog_shard::storage::compaction::CompactionSettings;
use ringlog_shard::storage::{CoreStorage, Log, LogSettings};
use ringlog_shard::store::compact::{CompactionFigures, CompactorSettings};
use ringlog_shard::store::{Opening, Store};
use ringlog_shard::waiters::CommitGather;

const HOUR: i64 = 3_600_000;
const HALF_DIRTY: CompactionSettings = CompactionSettings {
    min_dirty_millionths: 500_000,
    min_lag_ms: 0,
    max_lag_ms: i64::MAX,
    delete_retention_ms: HOUR,
};
const SECOND: Duration = Duration::from_secs(1);
const QUICK: CompactorSettings =
    CompactorSettings { is_enabled: true, map_bytes: 1 << 20, bytes_per_second: 0, backoff: SECOND };

fn settings(compaction: CompactionSettings) -> LogSettings {
    LogSettings { segment_bytes: 64 * 1024, compaction: Some(compaction), ..LogSettings::KEEP_ALL }
}

async fn open(io: &Io, count: i32, settings: LogSettings) -> Store {
    let directory = open_directory(io, Path::new("/data")).await;
    let recovery = ringlog_shard::journal::recovery::recover(io, &directory, 1, &core_of(1), &SMALL).await;
    let mut recovery = recovery.expect("recovery");
    assert_eq!(recovery.report.corruption, Vec::<String>::new());
    let shard = recovery.shards.pop().expect("one core");
    let storage = CoreStorage::start(io.clone(), shard, SMALL).await.expect("start");
    let mut found = storage.take_recovered();
    let me = ReplicaId { node: NodeId(1), directory: DirectoryId([1; 16]) };
    let store = Store::new(io.clone(), storage, me, HOUR);
    store.set_compactor(QUICK);
    let openings = (0..count).map(|index| {
        let key = partition(1, index);
        let place = found.iter().position(|partition| partition.key == key);
        Opening { key, recovered: place.map(|place| found.swap_remove(place)), settings }
    });
    store.open(openings.collect()).await;
    store
}

/// Appends one record; returns its offset once it is committed.
async fn put(store: &Store, io: &Io, at: TopicPartition, key: &str, value: Option<&[u8]>) -> i64 {
    let mut builder = BatchBuilder::new();
    let record = NewRecord { timestamp: io.wall_now_ms(), key: Some(key.as_bytes()), value, headers: &[] };
    builder.append(&record).expect("a small record");
    let bytes = builder.finish(&BatchOptions::default()).expect("it has a record");
    let header = BatchHeader::parse(&bytes).expect("just built");
    let buffer_bytes = bytes.len() as u32;
    let batch = IncomingBatch { header, bytes: BytesMut::from(&bytes[..]), buffer_bytes };
    let gather = CommitGather::new();
    store.room().await;
    let appended = store.append(at, batch, Some(gather.ticket(0))).expect("append");
    assert_eq!(gather.finish().await, []);
    appended.base_offset.0
}

/// Some two kilobytes each, over so many keys.
async fn fill(store: &Store, io: &Io, at: TopicPartition, records: usize, keys: usize) {
    for number in 0..records {
        let value = vec![number as u8; 2000];
        put(store, io, at, &format!("key-{}", number % keys), Some(&value)).await;
    }
}

/// What a reader from the start finds: of each key its records' offsets and whether they are tombstones. No offset is missing.
async fn read(store: &Store, io: &Io, at: TopicPartition) -> BTreeMap<String, Vec<(i64, bool)>> {
    let (id, end) = store.with_log(at, |log| (log.id(), log.log_end())).expect("open");
    let bytes = read_all(io, store.storage(), id, 1 << 20).await;
    let (mut found, mut next) = (BTreeMap::<String, Vec<(i64, bool)>>::new(), Offset(0));
    for batch in batches(&bytes) {
        let batch = batch.expect("whole batches");
        assert_eq!(batch.header.base_offset, next, "no offset is missing");
        next = batch.header.next_offset();
        let mut scratch = Vec::new();
        for record in read_batch(batch.bytes, 1 << 20, &mut scratch).expect("readable").1 {
            let record = record.expect("well formed");
            let key = String::from_utf8(record.key.expect("each has one").to_vec()).expect("text");
            found.entry(key).or_default().push((record.offset.0, record.value.is_none()));
        }
    }
    assert_eq!(next, end);
    found
}

/// Where the closed segments end, and where what was never compacted begins.
fn progress(store: &Store, at: TopicPartition) -> (Offset, Offset) {
    let (facts, first_dirty) = store.with_log(at, Log::compaction_facts).expect("open");
    (facts.last().expect("segments were closed").end, first_dirty)
}

fn keep(store: &Store, io: &Io) {
    let keeper = store.clone();
    io.spawn(Priority::Background, async move { keeper.keep_compacting().await }).detach();
}

fn simulate<F: Future<Output = ()> + 'static>(main: impl FnOnce(Io) -> F) {
    let world = World::new(5);
    let host = world.host("node");
    let io = host.executor();
    let done = Rc::new(Cell::new(false));
    let (work, set) = (main(io.clone()), Rc::clone(&done));
    io.spawn(Priority::Foreground, async move {
        work.await;
        set.set(true);
    })
    .detach();
    assert_eq!(world.run_until(|| done.get(), Duration::from_secs(1_000_000)), Outcome::Done);
}

#[test]
fn each_partition_is_compacted_by_itself_and_the_last_value_of_each_key_stays() {
    simulate(|io| async move {
        let store = open(&io, 3, settings(HALF_DIRTY)).await;
        let other = partition(1, 2);
        store
            .set_log_settings(other, LogSettings { compaction: None, ..settings(HALF_DIRTY) })
            .expect("open");
        for index in 0..3 {
            fill(&store, &io, partition(1, index), 200, 9).await;
        }
        keep(&store, &io);
        io.sleep(4 * SECOND).await;
        for index in 0..2 {
            let (closed, first_dirty) = progress(&store, partition(1, index));
            assert_eq!(first_dirty, closed, "what lies in closed segments is compacted without a checkpoint");
            for (key, records) in read(&store, &io, partition(1, index)).await {
                let number: i64 = key["key-".len()..].parse().expect("a number");
                let last = (0..200).rev().find(|offset| offset % 9 == number).expect("each key is used");
                assert_eq!(records.last(), Some(&(last, false)), "{key}");
                let old = records.iter().filter(|(offset, _)| *offset < closed.0).count();
                assert!(old <= 1, "{key}: {records:?}");
            }
        }
        let kept: usize = read(&store, &io, other).await.values().map(Vec::len).sum();
        assert_eq!(kept, 200, "its policy does not compact");
        let figures = store.compaction_figures();
        assert_eq!((figures.runs, figures.failures, figures.put_off), (2, 0, 0));
        assert_eq!(figures.dirtiest_millionths, 0);
        assert!(
            figures.records_dropped > 300 && figures.bytes_after < figures.bytes_before / 4,
            "{figures:?}"
        );
        io.sleep(60 * SECOND).await;
        assert_eq!(store.compaction_figures(), figures, "there is nothing more to do");
        store.set_log_settings(other, settings(HALF_DIRTY)).expect("open");
        io.sleep(2 * SECOND).await;
        assert_eq!(store.compaction_figures().runs, 3, "a policy that was altered holds at once");
    });
}

#[test]
fn one_that_cannot_be_compacted_waits_longer_each_time_and_the_others_go_on() {
    simulate(|io| async move {
        let store = open(&io, 2, settings(HALF_DIRTY)).await;
        let (bad, good) = (partition(1, 0), partition(1, 1));
        fill(&store, &io, bad, 200, 9).await;
        store.storage().checkpoint().await.expect("checkpoint");
        let path = format!("/data/data/{}/0/{:020}.log", bad.topic, 0);
        let file = io.open(Path::new(&path), OpenOptions::READ_WRITE_CREATE).await.expect("it is there");
        let byte = io.read_at(&file, 500, 1).await.expect("readable")[0];
        io.write_at(&file, 500, vec![Bytes::copy_from_slice(&[byte ^ 1])]).await.expect("writable");
        keep(&store, &io);
        io.sleep(3 * SECOND).await;
        let first = store.compaction_figures();
        assert!((1..=3).contains(&first.failures), "{first:?}");
        assert_eq!((first.runs, first.put_off), (0, 1));
        for round in 1..4 {
            fill(&store, &io, good, 200, 9).await;
            io.sleep(30 * SECOND).await;
            let (closed, first_dirty) = progress(&store, good);
            assert_eq!(closed, first_dirty, "round {round}");
        }
        let CompactionFigures { runs, failures, put_off, .. } = store.compaction_figures();
        assert!(runs >= 3 && put_off == 1);
        assert!((first.failures + 1..=7).contains(&failures), "{failures} attempts in a hundred seconds");
        let (_, first_dirty) = progress(&store, bad);
        assert_eq!(first_dirty, Offset(0));
        // What it fails by is mended: it is compacted when its time has come.
        io.write_at(&file, 500, vec![Bytes::copy_from_slice(&[byte])]).await.expect("writable");
        io.sleep(200 * SECOND).await;
        let (closed, first_dirty) = progress(&store, bad);
        assert_eq!((closed, store.compaction_figures().put_off), (first_dirty, 0));
    });
}

#[test]
fn keys_that_do_not_fit_take_several_passes() {
    simulate(|io| async move {
        let store = open(&io, 1, settings(HALF_DIRTY)).await;
        store.set_compactor(CompactorSettings { map_bytes: 0, ..QUICK });
        let at = partition(1, 0);
        fill(&store, &io, at, 400, 100).await;
        keep(&store, &io);
        io.sleep(10 * SECOND).await;
        let (closed, first_dirty) = progress(&store, at);
        let figures = store.compaction_figures();
        assert_eq!(first_dirty, closed, "to the end, whatever the ratio on the way: {figures:?}");
        assert!(figures.runs > 5, "{figures:?}");
        for (key, records) in read(&store, &io, at).await {
            let number: i64 = key["key-".len()..].parse().expect("a number");
            assert_eq!(records.last(), Some(&(300 + number, false)), "{key}");
            assert!(
                records.iter().filter(|(offset, _)| *offset < closed.0).count() <= 1,
                "{key}: {records:?}"
            );
        }
    });
}

#[test]
fn what_is_set_holds_at_once() {
    simulate(|io| async move {
        let young = CompactionSettings { min_lag_ms: HOUR, ..HALF_DIRTY };
        let store = open(&io, 1, settings(young)).await;
        let at = partition(1, 0);
        fill(&store, &io, at, 200, 9).await;
        store.set_compactor(CompactorSettings { is_enabled: false, backoff: 1000 * SECOND, ..QUICK });
        keep(&store, &io);
        io.sleep(2 * SECOND).await;
        store.set_compactor(QUICK);
        io.sleep(4 * SECOND).await;
        assert_eq!(store.compaction_figures().runs, 0, "its records are too young");
        assert_eq!(progress(&store, at).1, Offset(0));
        store.set_compactor(CompactorSettings { is_enabled: false, ..QUICK });
        io.sleep(2 * SECOND).await;
        store.set_log_settings(at, settings(HALF_DIRTY)).expect("open");
        io.sleep(60 * SECOND).await;
        assert_eq!(store.compaction_figures().runs, 0, "compaction is off");
        store.set_compactor(CompactorSettings { bytes_per_second: 1000, ..QUICK });
        io.sleep(60 * SECOND).await;
        assert_eq!(store.compaction_figures().runs, 0, "400 kilobytes at 1000 bytes a second");
        store.set_compactor(QUICK);
        io.sleep(4 * SECOND).await;
        assert_eq!(store.compaction_figures().runs, 1, "the one that runs takes the new rate");
        assert_eq!(progress(&store, at).0, progress(&store, at).1);
    });
}

#[test]
fn a_tombstone_stays_until_its_time_and_old_records_do_not_wait_for_the_ratio() {
    simulate(|io| async move {
        let overdue = CompactionSettings { min_dirty_millionths: 1_000_000, max_lag_ms: 1, ..HALF_DIRTY };
        let store = open(&io, 1, settings(overdue)).await;
        let at = partition(1, 0);
        put(&store, &io, at, "gone", Some(b"a value")).await;
        let tombstone = put(&store, &io, at, "gone", None).await;
        keep(&store, &io);
        let hour = Duration::from_millis(HOUR as u64);
        let mut seen = Vec::new();
        for wait in [4 * SECOND, hour / 2, hour / 2 + 2 * SECOND] {
            io.sleep(wait).await;
            fill(&store, &io, at, 100, 9).await;
            io.sleep(4 * SECOND).await;
            let (closed, first_dirty) = progress(&store, at);
            assert_eq!(closed, first_dirty);
            seen.push(read(&store, &io, at).await.remove("gone"));
        }
        assert_eq!(seen, [Some(vec![(tombstone, true)]), Some(vec![(tombstone, true)]), None]);
    });
}

#[test]
fn deleted_records_and_partitions_are_no_hindrance() {
    simulate(|io| async move {
        let store = open(&io, 2, settings(HALF_DIRTY)).await;
        let (at, gone) = (partition(1, 0), partition(1, 1));
        fill(&store, &io, at, 200, 9).await;
        fill(&store, &io, gone, 200, 9).await;
        store.set_compactor(CompactorSettings { bytes_per_second: 100_000, ..QUICK });
        keep(&store, &io);
        // In the middle of the first one, whichever that is.
        io.sleep(Duration::from_millis(2500)).await;
        let moved = store.delete_records(at, Some(Offset(150))).expect("in range");
        store.start_durable(moved).await.expect("durable");
        store.delete(gone);
        io.sleep(60 * SECOND).await;
        let figures = store.compaction_figures();
        assert_eq!((figures.failures, figures.put_off), (0, 0), "{figures:?}");
        fill(&store, &io, at, 200, 9).await;
        io.sleep(60 * SECOND).await;
        let (closed, first_dirty) = progress(&store, at);
        assert_eq!(closed, first_dirty);
        assert!(store.compaction_figures().runs > 0);
    });
}
