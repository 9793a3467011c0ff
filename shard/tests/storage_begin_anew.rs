//! A log that begins anew: whatever the moment of a crash, a start finds the old log or the new one with what was acknowledged of
//! it, whatever the number of cores; never a mixture, never damage.

mod storage_support;

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ringlog_io::sim::{Host, Outcome, UnsyncedData, World};
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::{LeaderEpoch, Offset};
use ringlog_shard::journal::recovery::recover;
use ringlog_shard::storage::log::EpochStart;
use ringlog_shard::storage::{CoreStorage, LogId, StorageSettings, TruncateError};
use storage_support::{
    SEGMENTS_OF_64K, SMALL, batch, core_of, on_driver, open_directory, partition, read_all, start_cores,
};

const SETTINGS: [StorageSettings; 2] = [SMALL, StorageSettings { bypass_bytes: 3000, ..SMALL }];
const LONGEST: Duration = Duration::from_secs(60);
/// Where the new log begins.
const START: Offset = Offset(1000);

fn append(storage: &CoreStorage, id: LogId, value_bytes: usize, salt: u64) -> Bytes {
    let base = storage.log(id).log_end();
    let batch = batch(base, 2, value_bytes, salt);
    let bytes = batch.bytes.clone();
    storage.append(id, batch).expect("append");
    bytes
}

#[test]
fn a_log_that_begins_anew_has_nothing_of_before_and_goes_on_at_its_start() {
    on_driver(|io| async move {
        let storage = CoreStorage::start_ephemeral(io.clone(), StorageSettings::DEV);
        let id = storage.create_log(partition(1, 0), SEGMENTS_OF_64K);
        for salt in 0..5 {
            append(&storage, id, 100, salt);
        }
        for start in [9, 1] {
            let refused = storage.begin_anew(id, Offset(start)).await.expect_err("not behind the end");
            assert!(matches!(refused, TruncateError::NotBeyondEnd { log_end: Offset(10), .. }), "{refused}");
        }
        assert_eq!(storage.log(id).log_end(), Offset(10), "it is as it was");
        storage.begin_anew(id, START).await.expect("begun");
        {
            let log = storage.log(id);
            assert_eq!((log.log_start(), log.log_end()), (START, START));
            assert_eq!((log.segment_count(), log.size_bytes(), log.epochs()), (0, 0, &[][..]));
            assert_eq!((log.epoch_end_offset(LeaderEpoch(1)), log.max_timestamp()), (None, None));
        }
        assert_eq!(storage.stats().dirty_bytes, 0);
        let bytes = append(&storage, id, 100, 9);
        let epoch = EpochStart { epoch: LeaderEpoch(1), start: START };
        assert_eq!(storage.log(id).epochs(), [epoch]);
        assert_eq!(read_all(&io, &storage, id, 1000).await, bytes);
        assert!(storage.plan_read(id, Offset(9), Offset(10), 100, true).is_err(), "out of range");
    });
}

#[test]
fn the_old_files_go_and_the_new_one_is_named_by_the_start() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let directory = open_directory(&io, folder.path()).await;
        let storage = storage_support::start(&io, &directory, 1, SMALL).await.pop().expect("one core");
        let id = storage.create_log(partition(1, 0), SEGMENTS_OF_64K);
        for salt in 0..40 {
            append(&storage, id, 2000, salt);
        }
        storage.checkpoint().await.expect("checkpoint");
        let plan = storage.plan_read(id, Offset(0), Offset(80), 1 << 20, true).expect("in range");
        let told = Rc::new(RefCell::new(Vec::new()));
        let tell = Rc::clone(&told);
        storage.set_durable_listener(move |reports| tell.borrow_mut().extend_from_slice(reports));
        // On its way when it is dropped: nobody is told that it is there.
        append(&storage, id, 2000, 77);
        let sequence = storage.begin_anew(id, START).await.expect("begun");
        assert!(storage.log(id).durable_end() < START, "a crash would bring the old log back");
        let bytes = append(&storage, id, 100, 9);
        storage.checkpoint().await.expect("checkpoint");
        let ends: Vec<_> = told.borrow().iter().filter_map(|report| report.end_offset).collect();
        assert_eq!(ends, [Offset(1002)]);
        assert!(told.borrow().iter().any(|report| report.sequence == sequence));
        drop(plan.run(&io).await.expect("a reader that came before gets no error"));
        assert_eq!(storage.damaged(), Vec::new());
        let files = storage_support::segments(folder.path());
        let logs: Vec<_> = files.iter().filter(|(name, _)| name.ends_with(".log")).collect();
        assert_eq!(logs.len(), 1);
        assert!(
            logs[0].0.ends_with("/00000000000000001000.log") && logs[0].1[..] == bytes[..],
            "{}",
            logs[0].0
        );
    });
}

/// One life: an old log of three segments, partly unflushed; then the new one.
#[derive(Default)]
struct Script {
    has_begun: Cell<bool>,
    is_over: Cell<bool>,
    old: RefCell<Vec<u8>>,
    new: RefCell<Vec<u8>>,
    /// Told of the old log, of the new one, and that it began.
    told: Cell<(Offset, Offset)>,
    sequence: Cell<u64>,
    is_told: Cell<bool>,
    starts_empty: bool,
}

impl Script {
    async fn play(self: Rc<Self>, io: Io, settings: StorageSettings) {
        let (storage, id) = match open(&io, 1, settings).await {
            (storage, Some(id)) => (storage, id),
            (storage, None) => {
                let id = storage.create_log(partition(1, 0), SEGMENTS_OF_64K);
                (storage, id)
            }
        };
        let this = Rc::clone(&self);
        storage.set_durable_listener(move |reports| {
            for report in reports {
                let (mut old, mut new) = this.told.get();
                match report.end_offset {
                    Some(end) if end > START => new = end,
                    Some(end) => old = end,
                    None => {}
                }
                this.told.set((old, new));
                this.is_told.set(this.is_told.get() || report.sequence == this.sequence.get());
            }
        });
        if !self.starts_empty {
            for salt in 0..36 {
                storage.room().await;
                self.old.borrow_mut().extend_from_slice(&append(&storage, id, 2000, salt));
            }
            storage.checkpoint().await.expect("checkpoint");
            for salt in 0..6 {
                self.old.borrow_mut().extend_from_slice(&append(&storage, id, 700, salt));
            }
        }
        self.has_begun.set(true);
        self.sequence.set(storage.begin_anew(id, START).await.expect("begun"));
        for salt in 0..24 {
            storage.room().await;
            self.new.borrow_mut().extend_from_slice(&append(&storage, id, 2000, 100 + salt));
        }
        storage.checkpoint().await.expect("checkpoint");
        self.is_over.set(true);
        std::future::pending::<()>().await;
    }

    /// What a start found: `None` if there is no trace.
    fn judge(&self, found: Option<(Offset, Offset, Vec<u8>)>, what: &str) -> bool {
        let (told_old, told_new) = self.told.get();
        let Some((start, end, bytes)) = found else {
            assert!(self.starts_empty && !self.is_told.get(), "{what}: gone");
            return false;
        };
        if start == START {
            assert!(self.new.borrow().starts_with(&bytes) && end >= told_new.max(START), "{what}: to {end}");
            return true;
        }
        assert!(!self.is_told.get(), "{what}: it was told that the log began anew");
        assert!(start == Offset(0) && end >= told_old, "{what}: {start} to {end}, {told_old} was told");
        assert!(self.old.borrow().starts_with(&bytes), "{what}: bytes that nobody sent");
        false
    }
}

async fn open(io: &Io, cores: u32, settings: StorageSettings) -> (CoreStorage, Option<LogId>) {
    let directory = open_directory(io, Path::new("/data")).await;
    let recovery = recover(io, &directory, cores, &core_of(cores), &settings).await.expect("recovery");
    assert_eq!(recovery.report.corruption, Vec::<String>::new());
    let storages = start_cores(io, recovery, settings).await;
    let mut last = None;
    for storage in storages {
        if let Some(recovered) = storage.take_recovered().pop() {
            let id = storage.open_log(recovered, SEGMENTS_OF_64K, &mut |_| {}).await.expect("open");
            assert_eq!(storage.log(id).damage(), None);
            return (storage, Some(id));
        }
        last = Some(storage);
    }
    (last.expect("at least one core"), None)
}

/// What a start with so many cores finds; then the power goes again, after `events` of that start if it is to be cut.
fn find(
    world: &World,
    host: &Host,
    cores: u32,
    settings: StorageSettings,
    cut: Option<u64>,
) -> Option<(Offset, Offset, Vec<u8>)> {
    let io = host.executor();
    let found = Rc::new(RefCell::new(None));
    let task = {
        let (io, found) = (io.clone(), Rc::clone(&found));
        async move {
            let (storage, id) = open(&io, cores, settings).await;
            let log = match id {
                Some(id) => {
                    let bytes = read_all(&io, &storage, id, 100_000).await;
                    let log = storage.log(id);
                    Some((log.log_start(), log.log_end(), bytes))
                }
                None => None,
            };
            *found.borrow_mut() = Some(log);
            std::future::pending::<()>().await;
        }
    };
    io.spawn(Priority::Foreground, task).detach();
    let last = cut.map_or(u64::MAX, |events| world.event_count() + events);
    let is_due = || found.borrow().is_some() || world.event_count() >= last;
    assert_eq!(world.run_until(is_due, LONGEST), Outcome::Done);
    host.crash_with(if cut.is_some() {
        UnsyncedData::RandomSubset { torn: true }
    } else {
        UnsyncedData::Lost
    });
    found.take().flatten()
}

/// The power goes so many events after the log was asked to begin anew, then once more while the start is under way. Answers
/// whether the script had ended, and whether the new log was found.
fn crash_after(
    events: u64,
    unsynced: UnsyncedData,
    settings: StorageSettings,
    starts_empty: bool,
) -> (bool, bool) {
    let world = World::new(7 + events);
    let host = world.host("node");
    let script = Rc::new(Script { starts_empty, ..Script::default() });
    let io = host.executor();
    io.spawn(Priority::Foreground, Rc::clone(&script).play(io.clone(), settings)).detach();
    assert_eq!(world.run_until(|| script.has_begun.get(), LONGEST), Outcome::Done);
    let at = world.event_count() + events;
    let is_due = || world.event_count() >= at || script.is_over.get();
    assert_eq!(world.run_until(is_due, LONGEST), Outcome::Done);
    host.crash_with(unsynced);
    let what = format!("{events} events, {unsynced:?}, empty: {starts_empty}");
    find(&world, &host, 2, settings, Some(events % 61));
    let first = find(&world, &host, 3, settings, None);
    let second = find(&world, &host, 1, settings, None);
    assert_eq!(first, second, "{what}: two starts in a row find the same");
    (script.is_over.get(), script.judge(first, &what))
}

#[test]
fn a_power_cut_after_every_step_leaves_the_old_log_or_the_new_one() {
    for (settings, starts_empty) in [(SETTINGS[0], false), (SETTINGS[1], false), (SETTINGS[1], true)] {
        let mut counts = [0, 0];
        for unsynced in [UnsyncedData::Lost, UnsyncedData::Kept, UnsyncedData::RandomSubset { torn: true }] {
            let mut events = 0;
            loop {
                let (is_over, is_new) = crash_after(events, unsynced, settings, starts_empty);
                counts[usize::from(is_new)] += 1;
                if is_over {
                    break;
                }
                // Densely at first, where the entry, the removal and the first writes lie.
                events += if events < 80 { 1 } else { 1 + events / 12 };
            }
            assert!(events > 20, "the script has steps to stop at");
        }
        // How many steps lie before the entry is durable is the scheduler's affair.
        assert!(counts.iter().all(|count| *count > 1), "{counts:?} found the old log and the new one");
    }
}
