//! Rolls and retention of whole partitions on simulated time: what is too old or too much goes, what is young or not yet
//! committed stays, and a restart finds the rest.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::storage_support::{SMALL, core_of, open_directory, partition};
use bytes::{Bytes, BytesMut};
use ringlog_io::sim::{Outcome, World};
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::{NodeId, Offset, ProducerEpoch, ProducerId, Sequence, TopicPartition};
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::validate::BatchProducer;
use ringlog_raft::ids::{DirectoryId, ReplicaId};
use ringlog_shard::partition::{AppendError, IncomingBatch};
use ringlog_shard::storage::{CoreStorage, LogSettings, RecoveredPartition, Retention, StorageSettings};
use ringlog_shard::store::life::DeleteRecordsError;
use ringlog_shard::store::{Opening, Store, ViewError};
use ringlog_shard::waiters::CommitGather;

const HOUR: i64 = 3_600_000;
const KEY_BYTES: u8 = 1;

fn key() -> TopicPartition {
    partition(KEY_BYTES, 0)
}

fn settings(age_ms_max: Option<i64>, bytes_max: Option<u64>) -> LogSettings {
    LogSettings {
        segment_bytes: 64 * 1024,
        segment_ms: HOUR,
        retention: Retention { age_ms_max, bytes_max },
        ..LogSettings::KEEP_ALL
    }
}

async fn open(io: &Io, settings: LogSettings) -> Store {
    open_with(io, settings, |_| {}).await
}

/// `change` may alter what recovery found.
async fn open_with(io: &Io, settings: LogSettings, change: impl FnOnce(&mut RecoveredPartition)) -> Store {
    let directory = open_directory(io, Path::new("/data")).await;
    let recovery = ringlog_shard::journal::recovery::recover(io, &directory, 1, &core_of(1), &SMALL).await;
    let mut recovery = recovery.expect("recovery");
    assert_eq!(recovery.report.corruption, Vec::<String>::new());
    let shard = recovery.shards.pop().expect("one core");
    let storage = CoreStorage::start(io.clone(), shard, SMALL).await.expect("start");
    let mut recovered = storage.take_recovered().into_iter().find(|partition| partition.key == key());
    if let Some(recovered) = &mut recovered {
        change(recovered);
    }
    let store = store_of(io, storage);
    store.open(vec![Opening { key: key(), recovered, settings }]).await;
    store
}

fn store_of(io: &Io, storage: CoreStorage) -> Store {
    let me = ReplicaId { node: NodeId(1), directory: DirectoryId([1; 16]) };
    Store::new(io.clone(), storage, me, HOUR)
}

/// Appends one batch of so many bytes whose only record has this time; returns once it is committed.
async fn append(store: &Store, timestamp: i64, value_bytes: usize) {
    let mut builder = BatchBuilder::new();
    let value = vec![7; value_bytes];
    builder
        .append(&NewRecord { timestamp, key: None, value: Some(&value), headers: &[] })
        .expect("a small record");
    let bytes = builder.finish(&BatchOptions::default()).expect("it has a record");
    let header = BatchHeader::parse(&bytes).expect("just built");
    let buffer_bytes = bytes.len() as u32;
    let batch = IncomingBatch { header, bytes: BytesMut::from(&bytes[..]), buffer_bytes };
    let gather = CommitGather::new();
    store.room().await;
    store.append(key(), batch, Some(gather.ticket(0))).expect("append");
    assert_eq!(gather.finish().await, []);
}

fn ends(store: &Store) -> (i64, i64) {
    store.with_log(key(), |log| (log.log_start().0, log.log_end().0)).expect("open")
}

fn segments(store: &Store) -> usize {
    store.with_log(key(), ringlog_shard::storage::Log::segment_count).expect("open")
}

/// Runs `main` on a simulated host to its end.
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
fn segments_close_by_their_records_time_or_by_the_clock() {
    simulate(|io| async move {
        let store = open(&io, settings(None, None)).await;
        let start = 1_700_000_000_000;
        append(&store, start, 10).await;
        append(&store, start + HOUR, 10).await;
        assert_eq!(segments(&store), 1, "exactly segment.ms is not beyond it");
        append(&store, start + HOUR + 1, 10).await;
        assert_eq!(segments(&store), 2);
        append(&store, start - 10 * HOUR, 10).await;
        assert_eq!(segments(&store), 2, "an older record closes nothing");
        append(&store, start + 3 * HOUR, 10).await;
        assert_eq!(segments(&store), 3);
        // Records without a time: the clock counts from the segment's first append.
        append(&store, start + 5 * HOUR, 10).await;
        append(&store, -1, 70_000).await;
        let before = segments(&store);
        io.sleep(Duration::from_secs(3_601)).await;
        append(&store, -1, 10).await;
        assert_eq!(segments(&store), before + 1);
    });
}

#[test]
fn jitter_closes_earlier_and_not_before_its_bound() {
    simulate(|io| async move {
        let jittered = LogSettings { segment_jitter_ms: HOUR / 2, ..settings(None, None) };
        let store = open(&io, jittered).await;
        let (mut time, mut gaps) = (1_700_000_000_000, Vec::new());
        let mut first = time;
        append(&store, time, 10).await;
        for _ in 0..2_000 {
            time += HOUR / 60;
            let before = segments(&store);
            append(&store, time, 10).await;
            if segments(&store) > before {
                gaps.push(time - first);
                first = time;
            }
        }
        assert!(gaps.iter().all(|gap| *gap > HOUR / 2 && *gap <= HOUR + HOUR / 60), "{gaps:?}");
        assert!(gaps.iter().max() > gaps.iter().min(), "segments of one age close at different times");
    });
}

#[test]
fn old_segments_go_on_an_idle_partition_and_stay_gone() {
    simulate(|io| async move {
        let settings = settings(Some(4 * HOUR), None);
        {
            let store = open(&io, settings).await;
            let now = io.wall_now_ms();
            for hour in [0, 2, 4] {
                append(&store, now + hour * HOUR / 100, 40_000).await;
                append(&store, now + hour * HOUR / 100, 40_000).await;
            }
            let keeper = store.clone();
            let task = io.spawn(Priority::Background, async move {
                keeper.keep_retention(Duration::from_secs(300)).await
            });
            io.sleep(Duration::from_secs(2 * 3600)).await;
            assert_eq!(ends(&store), (0, 6), "nothing is old yet");
            io.sleep(Duration::from_secs(3 * 3600)).await;
            assert_eq!(ends(&store), (6, 6), "idle partitions empty, the last segment included");
            append(&store, io.wall_now_ms(), 10).await;
            assert_eq!(ends(&store), (6, 7));
            store.storage().checkpoint().await.expect("checkpoint");
            store.storage().checkpoint().await.expect("checkpoint");
            assert_eq!(segments(&store), 1);
            drop(task);
        }
        let store = open(&io, settings).await;
        assert_eq!(ends(&store), (6, 7));
    });
}

#[test]
fn size_keeps_the_newest_and_new_limits_hold_at_once() {
    simulate(|io| async move {
        let store = open(&io, settings(None, None)).await;
        for _ in 0..20 {
            append(&store, io.wall_now_ms(), 40_000).await;
        }
        assert_eq!(store.retain().await.shortened, 0);
        let bytes = store.with_log(key(), ringlog_shard::storage::Log::size_bytes).expect("open");
        store.set_log_settings(key(), settings(None, Some(bytes / 2))).expect("open");
        assert_eq!(store.retain().await.shortened, 1);
        let facts = store.with_log(key(), ringlog_shard::storage::Log::segment_facts).expect("open");
        let left: u64 = facts.iter().map(|facts| facts.bytes).sum();
        assert!(left >= bytes / 2 && left < bytes / 2 + 100_000, "{left} of {bytes}");
        assert_eq!(store.retain().await.shortened, 0, "done once");
        store
            .set_log_settings(key(), LogSettings { segment_bytes: 1 << 20, ..settings(None, None) })
            .expect("open");
        let before = segments(&store);
        for _ in 0..10 {
            append(&store, io.wall_now_ms(), 40_000).await;
        }
        assert_eq!(segments(&store), before, "larger segments from the next append on");
    });
}

#[test]
fn what_is_told_to_come_before_a_record_goes_by_size_does_come_before() {
    simulate(|io| async move {
        let store = open(&io, settings(None, Some(150_000))).await;
        let ahead = |from: i64| {
            store.with_log(key(), |log| log.bytes_ahead(Offset(from), io.wall_now_ms())).expect("open")
        };
        assert_eq!(ahead(0), None, "there is nothing to take");
        append(&store, io.wall_now_ms(), 40_000).await;
        let batch_bytes = store.with_log(key(), ringlog_shard::storage::Log::size_bytes).expect("open");
        let filling = ahead(0).expect("it may go some day");
        assert_eq!((filling.closing_bytes, filling.following_bytes), (64 * 1024 - batch_bytes, 150_000));
        assert_eq!(filling.record_bytes, batch_bytes as f64);
        assert!((HOUR - 60_000..=HOUR).contains(&filling.closing_ms), "{filling:?}");
        assert_eq!(ahead(1), None);
        // Each batch closes the segment before it.
        append(&store, io.wall_now_ms(), 40_000).await;
        assert_eq!(ahead(1).map(|second| second.following_bytes), Some(150_000));
        loop {
            let first = ahead(0).expect("it is there");
            assert_eq!(first.closing_bytes, 0);
            let shortened = store.retain().await.shortened;
            assert_eq!(shortened == 1, first.following_bytes == 0, "{first:?}");
            if shortened == 1 {
                break;
            }
            append(&store, io.wall_now_ms(), 40_000).await;
            let left = ahead(0).expect("it is there").following_bytes;
            assert_eq!(left, first.following_bytes.saturating_sub(batch_bytes));
        }
        assert_eq!(ends(&store), (1, 5));
        assert_eq!(ahead(0), ahead(1), "what is gone already is where the log starts");
        store.set_log_settings(key(), settings(Some(1), None)).expect("open");
        assert_eq!(ahead(1), None, "no limit");
    });
}

#[test]
fn timestamps_from_the_future_are_counted_and_keep_nothing_for_ever() {
    simulate(|io| async move {
        let store = open(&io, settings(Some(4 * HOUR), None)).await;
        append(&store, io.wall_now_ms() + 1_000 * HOUR, 10).await;
        let report = store.retain().await;
        assert_eq!((report.shortened, report.segments_in_future), (0, 1));
        assert_eq!(store.storage().stats().segments_in_future, 1);
        io.sleep(Duration::from_secs(4 * 3600 + 1)).await;
        assert_eq!(store.retain().await.shortened, 1);
        assert_eq!(ends(&store), (1, 1));
    });
}

#[test]
fn records_are_deleted_up_to_the_watermark_and_no_further() {
    simulate(|io| async move {
        let store = open(&io, settings(None, None)).await;
        for _ in 0..5 {
            append(&store, io.wall_now_ms(), 10).await;
        }
        let delete = |before: Option<i64>| store.delete_records(key(), before.map(Offset));
        for bad in [6, i64::MAX, -2, i64::MIN] {
            assert!(matches!(delete(Some(bad)), Err(DeleteRecordsError::OutOfRange { .. })), "{bad}");
        }
        let moved = delete(Some(3)).expect("in range");
        store.start_durable(moved).await.expect("durable");
        assert_eq!(moved.log_start, Offset(3));
        assert_eq!(delete(Some(1)).expect("below the start is no error").log_start, Offset(3));
        assert_eq!(ends(&store), (3, 5));
        let all = delete(None).expect("the watermark");
        store.start_durable(all).await.expect("durable");
        assert_eq!((all.log_start, ends(&store)), (Offset(5), (5, 5)));
        assert!(matches!(
            store.delete_records(partition(9, 0), None),
            Err(DeleteRecordsError::View(ringlog_shard::store::ViewError::UnknownPartition))
        ));
    });
}

#[test]
fn memory_only_partitions_are_kept_short_too() {
    simulate(|io| async move {
        let storage = CoreStorage::start_ephemeral(io.clone(), StorageSettings::DEV);
        let store = store_of(&io, storage);
        store
            .open(vec![Opening { key: key(), recovered: None, settings: settings(None, Some(100_000)) }])
            .await;
        for _ in 0..40 {
            append(&store, io.wall_now_ms(), 40_000).await;
        }
        store.retain().await;
        io.sleep(Duration::from_millis(10)).await;
        assert!(segments(&store) <= 4, "{} segments", segments(&store));
        assert!(store.storage().stats().dirty_bytes < 300_000);
    });
}

/// Sends record number `sequence` of the only producer; whether it was known already.
async fn send(store: &Store, sequence: i32) -> Result<bool, AppendError> {
    let mut builder = BatchBuilder::new();
    builder
        .append(&NewRecord { timestamp: 1, key: None, value: Some(b"once"), headers: &[] })
        .expect("a small record");
    let producer =
        BatchProducer { id: ProducerId(5), epoch: ProducerEpoch(0), base_sequence: Sequence(sequence) };
    let options = BatchOptions { producer: Some(producer), ..BatchOptions::default() };
    let bytes = builder.finish(&options).expect("it has a record");
    let header = BatchHeader::parse(&bytes).expect("just built");
    let buffer_bytes = bytes.len() as u32;
    let batch = IncomingBatch { header, bytes: BytesMut::from(&bytes[..]), buffer_bytes };
    let gather = CommitGather::new();
    let appended = store.append(key(), batch, Some(gather.ticket(0)))?;
    gather.finish().await;
    Ok(appended.duplicate)
}

#[test]
fn producers_outlive_the_records_that_they_sent() {
    simulate(|io| async move {
        {
            let store = open(&io, settings(None, None)).await;
            assert!(!send(&store, 0).await.expect("the first"));
            assert!(!send(&store, 1).await.expect("the next"));
            store.storage().checkpoint().await.expect("checkpoint");
            store.delete_records(key(), None).expect("all of them");
            while segments(&store) > 0 {
                io.sleep(Duration::from_millis(1)).await;
            }
        }
        {
            // As after a kill: nothing was said at the end.
            let store = open(&io, settings(None, None)).await;
            assert_eq!((ends(&store), segments(&store)), ((2, 2), 0));
            assert!(send(&store, 1).await.expect("known"), "sent again it is not appended again");
            assert!(matches!(send(&store, 4).await, Err(AppendError::Producer { .. })), "a gap");
            assert!(!send(&store, 2).await.expect("the one that follows"));
        }
        let store = open(&io, settings(None, None)).await;
        assert_eq!(ends(&store), (2, 3));
        assert!(send(&store, 1).await.expect("known"), "also with records behind it");
        assert!(!send(&store, 3).await.expect("the one that follows"));
    });
}

#[test]
fn what_a_partition_holds_is_known_in_the_journal_in_segments_and_where_it_cannot_be_opened() {
    simulate(|io| async move {
        let bytes = {
            let store = open(&io, settings(None, None)).await;
            assert_eq!((store.stored_bytes(key()), store.stored_bytes(partition(9, 9))), (Some(0), None));
            for _ in 0..3 {
                append(&store, io.wall_now_ms(), 40_000).await;
            }
            let bytes = store.stored_bytes(key()).expect("it is here");
            assert!((120_000..121_000).contains(&bytes), "{bytes}");
            store.storage().checkpoint().await.expect("checkpoint");
            assert_eq!(store.stored_bytes(key()), Some(bytes), "in segments as in the journal");
            bytes
        };
        {
            let store = open(&io, settings(None, None)).await;
            assert_eq!(store.stored_bytes(key()), Some(bytes));
        }
        let spoil = |recovered: &mut RecoveredPartition| {
            recovered.hard_state = Some(Bytes::from_static(b"not what a group wrote"));
        };
        let store = open_with(&io, settings(None, None), spoil).await;
        assert!(matches!(store.view(key()), Err(ViewError::Offline { .. })));
        assert_eq!(store.stored_bytes(key()), Some(bytes));
        store.delete(key());
        assert_eq!(store.stored_bytes(key()), None);
    });
}
