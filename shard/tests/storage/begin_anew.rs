//! A log that begins anew, behind its end or below it, also within what is one batch elsewhere: whatever the moment of a crash, a
//! start finds the old log or the new one with what was acknowledged of it, whatever the number of cores; never a mixture, never
//! damage, and never a start that went back.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::storage_support::{
    SEGMENTS_OF_64K, SMALL, batch, core_of, on_driver, open_directory, partition, read_all, start_cores,
};
use bytes::Bytes;
use ringlog_io::sim::{Host, Outcome, UnsyncedData, World};
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::{LeaderEpoch, Offset};
use ringlog_shard::journal::recovery::recover;
use ringlog_shard::storage::log::EpochStart;
use ringlog_shard::storage::{CoreStorage, LogId, StorageSettings, TruncateError};

const SETTINGS: [StorageSettings; 2] = [SMALL, StorageSettings { bypass_bytes: 3000, ..SMALL }];
const LONGEST: Duration = Duration::from_secs(60);
/// Where the new log begins, where nothing else is said.
const START: Offset = Offset(1000);

fn append(storage: &CoreStorage, id: LogId, value_bytes: usize, salt: u64) -> Bytes {
    let base = storage.log(id).log_end();
    append_at(storage, id, base, value_bytes, salt)
}

fn append_at(storage: &CoreStorage, id: LogId, base: Offset, value_bytes: usize, salt: u64) -> Bytes {
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
        storage.advance_log_start(id, Offset(3)).expect("open");
        let refused = storage.begin_anew(id, Offset(2)).await.expect_err("below the start");
        assert!(matches!(refused, TruncateError::BelowLogStart { log_start: Offset(3), .. }), "{refused}");
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
        let storage = crate::storage_support::start(&io, &directory, 1, SMALL).await.pop().expect("one core");
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
        let files = crate::storage_support::segments(folder.path());
        let logs: Vec<_> = files.iter().filter(|(name, _)| name.ends_with(".log")).collect();
        assert_eq!(logs.len(), 1);
        assert!(
            logs[0].0.ends_with("/00000000000000001000.log") && logs[0].1[..] == bytes[..],
            "{}",
            logs[0].0
        );
    });
}

#[test]
fn a_log_emptied_within_a_batch_takes_that_batch_whole_and_its_start_stays() {
    on_driver(|io| async move {
        let storage = CoreStorage::start_ephemeral(io.clone(), StorageSettings::DEV);
        let id = storage.create_log(partition(1, 0), SEGMENTS_OF_64K);
        for salt in 0..5 {
            append(&storage, id, 100, salt);
        }
        storage.begin_anew(id, Offset(7)).await.expect("begun below its end");
        for round in 0..2 {
            let takes = |base, end| storage.log(id).takes(Offset(base), Offset(end));
            assert!(takes(7, 9) && takes(6, 8) && takes(5, 20), "round {round}");
            assert!(!takes(8, 9) && !takes(5, 7) && !takes(6, 6) && !takes(7, 7), "round {round}");
            let bytes = append_at(&storage, id, Offset(6), 100, 9);
            assert!(!storage.log(id).takes(Offset(7), Offset(9)), "it is empty no more");
            assert_eq!((storage.log(id).log_start(), storage.log(id).log_end()), (Offset(7), Offset(8)));
            let epoch = EpochStart { epoch: LeaderEpoch(1), start: Offset(7) };
            assert_eq!(storage.log(id).epochs(), [epoch]);
            assert_eq!(read_all(&io, &storage, id, 1000).await, bytes);
            assert!(storage.plan_read(id, Offset(6), Offset(8), 100, true).is_err(), "out of range");
            // The batch that holds the start goes, and the start stays.
            assert_eq!(storage.truncate(id, Offset(7)).await.expect("cut").end, Offset(7));
            assert_eq!((storage.log(id).log_start(), storage.log(id).log_end()), (Offset(7), Offset(7)));
        }
    });
}

/// A synced-to names where that batch begins, as where the segments end, and then only a reference told of the batch.
#[test]
fn a_start_that_finds_no_trace_of_the_batch_that_holds_the_logs_start_keeps_the_start() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let directory = open_directory(&io, folder.path()).await;
        let storage = crate::storage_support::start(&io, &directory, 1, SMALL).await.pop().expect("one core");
        let id = storage.create_log(partition(1, 0), SEGMENTS_OF_64K);
        storage.begin_anew(id, START).await.expect("begun");
        storage.checkpoint().await.expect("checkpoint");
        drop(storage);
        drop(directory);
        let directory = open_directory(&io, folder.path()).await;
        let storage = crate::storage_support::start(&io, &directory, 1, SMALL).await.pop().expect("one core");
        let mut recovered = storage.take_recovered().pop().expect("the log");
        let covered = recovered.covered.as_mut().expect("known");
        assert_eq!((covered.offset, covered.position), (START, 0));
        (covered.offset, covered.segment_base) = (Offset(999), Offset(999));
        let id = storage.open_log(recovered, SEGMENTS_OF_64K, &mut |_| {}).await.expect("open");
        assert_eq!((storage.log(id).log_start(), storage.log(id).log_end()), (START, START));
        assert_eq!(storage.log(id).damage(), None);
        append_at(&storage, id, Offset(999), 100, 1);
        assert_eq!((storage.log(id).log_start(), storage.log(id).log_end()), (START, Offset(1001)));
    });
}

/// Where the new log begins, and where its first batch does.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: Offset,
    first_base: Offset,
}

const BEHIND_THE_END: Place = Place { start: START, first_base: START };
const WITHIN_A_BATCH: Place = Place { start: START, first_base: Offset(START.0 - 1) };
const BELOW_THE_END: Place = Place { start: Offset(75), first_base: Offset(74) };

/// One life: an old log of three segments, partly unflushed; then the new one, which is emptied once more where it starts if
/// `is_cut`.
struct Script {
    place: Place,
    is_cut: bool,
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
    fn new(place: Place, is_cut: bool, starts_empty: bool) -> Script {
        Script {
            place,
            is_cut,
            has_begun: Cell::default(),
            is_over: Cell::default(),
            old: RefCell::default(),
            new: RefCell::default(),
            told: Cell::default(),
            sequence: Cell::default(),
            is_told: Cell::default(),
            starts_empty,
        }
    }

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
                let is_new = this.sequence.get() > 0 && report.sequence > this.sequence.get();
                match report.end_offset {
                    Some(end) if is_new => new = end,
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
        let Place { start, first_base } = self.place;
        self.sequence.set(storage.begin_anew(id, start).await.expect("begun"));
        // Only once the journal holds all of before does a batch go to its segment at once.
        while settings.bypass_bytes > 0 && first_base != start && !self.is_told.get() {
            io.sleep(Duration::from_micros(50)).await;
        }
        self.new.borrow_mut().extend_from_slice(&append_at(&storage, id, first_base, 2000, 99));
        if self.is_cut {
            storage.checkpoint().await.expect("checkpoint");
            let truncated = storage.truncate(id, start).await.expect("cut");
            assert_eq!(truncated.end, start);
            self.told.set((self.told.get().0, Offset(0)));
            append_at(&storage, id, first_base, 2000, 99);
        }
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
        if start == self.place.start {
            assert!(self.new.borrow().starts_with(&bytes) && end >= told_new.max(start), "{what}: to {end}");
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
    script: Script,
) -> (bool, bool) {
    let world = World::new(7 + events);
    let host = world.host("node");
    let script = Rc::new(script);
    let io = host.executor();
    io.spawn(Priority::Foreground, Rc::clone(&script).play(io.clone(), settings)).detach();
    assert_eq!(world.run_until(|| script.has_begun.get(), LONGEST), Outcome::Done);
    let at = world.event_count() + events;
    let is_due = || world.event_count() >= at || script.is_over.get();
    assert_eq!(world.run_until(is_due, LONGEST), Outcome::Done);
    host.crash_with(unsynced);
    let what = format!("{events} events, {unsynced:?}, empty: {}, {:?}", script.starts_empty, script.place);
    find(&world, &host, 2, settings, Some(events % 61));
    let first = find(&world, &host, 3, settings, None);
    let second = find(&world, &host, 1, settings, None);
    assert_eq!(first, second, "{what}: two starts in a row find the same");
    (script.is_over.get(), script.judge(first, &what))
}

fn crash_after_every_step(settings: StorageSettings, script: impl Fn() -> Script) {
    let mut counts = [0, 0];
    for unsynced in [UnsyncedData::Lost, UnsyncedData::Kept, UnsyncedData::RandomSubset { torn: true }] {
        let mut events = 0;
        loop {
            let (is_over, is_new) = crash_after(events, unsynced, settings, script());
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

#[test]
fn a_power_cut_after_every_step_leaves_the_old_log_or_the_new_one() {
    for (settings, starts_empty) in [(SETTINGS[0], false), (SETTINGS[1], false), (SETTINGS[1], true)] {
        crash_after_every_step(settings, || Script::new(BEHIND_THE_END, false, starts_empty));
    }
}

#[test]
fn so_does_one_where_the_new_log_starts_within_its_first_batch() {
    for (settings, place) in
        [(SETTINGS[0], WITHIN_A_BATCH), (SETTINGS[1], BELOW_THE_END), (SETTINGS[0], BELOW_THE_END)]
    {
        crash_after_every_step(settings, || Script::new(place, false, false));
    }
    for settings in SETTINGS {
        crash_after_every_step(settings, || Script::new(WITHIN_A_BATCH, true, true));
    }
}
