//! Log starts: what lies below a durable one goes, files included, and a restart finds the log as it was left.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::storage_support::*;
use ringlog_io::sim::{Outcome, World};
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::{Offset, TopicPartition};
use ringlog_shard::journal::recovery::recover;
use ringlog_shard::storage::{CoreStorage, LogId, LogPiece, LogSettings, StorageError, StorageSettings};

async fn open(io: &Io, path: &Path) -> Core {
    let directory = open_directory(io, path).await;
    let mut storages = start(io, &directory, 1, SMALL).await;
    let storage = storages.pop().expect("one core");
    Core::open(storage, Rc::new(RefCell::new(Model::default())), SEGMENTS_OF_64K).await
}

async fn move_start(storage: &CoreStorage, id: LogId, offset: i64) {
    storage.advance_log_start(id, Offset(offset)).expect("open");
    storage.log_start_durable(id, Offset(offset)).await.expect("durable");
}

/// Names of the segment files.
fn segment_names(path: &Path) -> Vec<String> {
    segments(path).into_keys().filter(|name| name.ends_with(".log")).collect()
}

async fn until(io: &Io, condition: impl Fn() -> bool) {
    while !condition() {
        io.sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn segments_below_a_durable_start_go_and_a_restart_finds_the_rest() {
    on_each_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let key = partition(1, 0);
        let after = {
            let mut core = open(&io, folder.path()).await;
            core.create([key], SEGMENTS_OF_64K);
            for salt in 0..100 {
                core.append(key, 10, 1000, salt).await;
            }
            core.settle(&io).await;
            core.storage.checkpoint().await.expect("checkpoint");
            let id = core.logs[&key];
            let before = segment_names(folder.path()).len();
            assert!(before > 10, "{before} segments");
            // A reader that has its range keeps it.
            let plan = core.storage.plan_read(id, Offset(0), Offset(1000), 50_000, true).expect("in range");
            move_start(&core.storage, id, 505).await;
            until(&io, || core.storage.stats().segments_removed > 0).await;
            core.storage.checkpoint().await.expect("checkpoint");
            assert_eq!(
                segment_names(folder.path()).len() as u64,
                before as u64 - core.storage.stats().segments_removed
            );
            for piece in plan.run(&io).await.expect("the plan holds its file").pieces {
                if let LogPiece::File { file, position, length } = piece {
                    assert_eq!(
                        io.read_at(&file, position, length as usize).await.expect("open still").len(),
                        length as usize
                    );
                }
            }
            assert!(
                core.storage.plan_read(id, Offset(504), Offset(1000), 1, true).is_err(),
                "below the start"
            );
            {
                let log = core.storage.log(id);
                assert_eq!((log.log_start(), log.log_end()), (Offset(505), Offset(1000)));
                assert_eq!(log.epochs()[0].start, Offset(505), "epochs begin at the start");
            }
            read_all(&io, &core.storage, id, 100_000).await
        };
        let core = open(&io, folder.path()).await;
        let id = core.logs[&key];
        {
            let log = core.storage.log(id);
            assert_eq!((log.log_start(), log.log_end()), (Offset(505), Offset(1000)));
            assert!(log.damage().is_none());
        }
        assert_eq!(read_all(&io, &core.storage, id, 100_000).await, after);
    });
}

#[test]
fn a_log_emptied_to_its_end_goes_on_there() {
    on_each_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let key = partition(1, 0);
        {
            let mut core = open(&io, folder.path()).await;
            core.create([key], SEGMENTS_OF_64K);
            for salt in 0..20 {
                core.append(key, 10, 1000, salt).await;
            }
            core.settle(&io).await;
            let id = core.logs[&key];
            core.storage.checkpoint().await.expect("checkpoint");
            move_start(&core.storage, id, 200).await;
            until(&io, || segment_names(folder.path()).is_empty()).await;
            assert_eq!(core.storage.log(id).segment_count(), 0, "the last one too");
            assert_eq!(core.storage.log(id).size_bytes(), 0);
        }
        {
            let core = open(&io, folder.path()).await;
            let id = core.logs[&key];
            assert_eq!(core.storage.log(id).log_start(), Offset(200));
            assert_eq!(core.storage.log(id).log_end(), Offset(200));
            core.append(key, 5, 100, 77).await;
            core.settle(&io).await;
        }
        let core = open(&io, folder.path()).await;
        let id = core.logs[&key];
        assert_eq!(
            (core.storage.log(id).log_start(), core.storage.log(id).log_end()),
            (Offset(200), Offset(205))
        );
        assert_eq!(read_all(&io, &core.storage, id, 1000).await, batch(Offset(200), 5, 100, 77).bytes);
    });
}

#[test]
fn unflushed_records_below_the_start_go_after_their_flush() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let key = partition(1, 0);
        let mut core = open(&io, folder.path()).await;
        core.create([key], SEGMENTS_OF_64K);
        for salt in 0..20 {
            core.append(key, 10, 1000, salt).await;
        }
        core.settle(&io).await;
        let id = core.logs[&key];
        move_start(&core.storage, id, 200).await;
        assert!(core.storage.log(id).segment_count() > 0, "the journal would bring them back");
        core.storage.checkpoint().await.expect("checkpoint");
        core.storage.checkpoint().await.expect("checkpoint");
        until(&io, || core.storage.log(id).segment_count() == 0).await;
        assert_eq!(segment_names(folder.path()), Vec::<String>::new());
        assert_eq!(core.storage.stats().dirty_bytes, 0);
    });
}

#[test]
fn memory_is_freed_where_there_are_no_files() {
    on_driver(|io| async move {
        let storage = CoreStorage::start_ephemeral(io.clone(), StorageSettings::DEV);
        let id = storage.create_log(partition(1, 0), SEGMENTS_OF_64K);
        for salt in 0..400 {
            let base = storage.log(id).log_end();
            storage.append(id, batch(base, 10, 1000, salt)).expect("append");
        }
        let before = storage.stats();
        move_start(&storage, id, 3990).await;
        let after = storage.stats();
        assert!(
            after.dirty_bytes < before.dirty_bytes / 10 && after.tail_bytes < before.tail_bytes / 4,
            "{after:?}"
        );
        assert_eq!(storage.log(id).log_start(), Offset(3990));
        assert_eq!(read_all(&io, &storage, id, 100_000).await, batch(Offset(3990), 10, 1000, 399).bytes);
    });
}

#[test]
fn a_wait_for_a_log_that_goes_ends() {
    on_driver(|io| async move {
        let storage = CoreStorage::start_ephemeral(io.clone(), StorageSettings::DEV);
        let id = storage.create_log(partition(1, 0), LogSettings::default());
        storage.delete_log(id);
        assert!(matches!(storage.log_start_durable(id, Offset(1)).await, Err(StorageError::UnknownLog)));
        assert!(matches!(storage.advance_log_start(id, Offset(0)), Err(StorageError::UnknownLog)));
    });
}

/// What one seed's lives left behind.
#[derive(Default)]
struct Told {
    /// Starts that were told to be durable, and that were asked for, by partition.
    durable: RefCell<std::collections::BTreeMap<TopicPartition, (Offset, Offset)>>,
    acknowledged_end: RefCell<std::collections::BTreeMap<TopicPartition, Offset>>,
    segments_removed: Cell<u64>,
    lives: Cell<u64>,
}

async fn check_and_open(io: &Io, cores: u32, told: &Told) -> Vec<Core> {
    let directory = open_directory(io, Path::new("/data")).await;
    let recovery = recover(io, &directory, cores, &core_of(cores), &SMALL).await.expect("recovery");
    assert_eq!(recovery.report.corruption, Vec::<String>::new());
    let mut opened = Vec::new();
    for storage in start_cores(io, recovery, SMALL).await {
        let core = Core::open(storage, Rc::new(RefCell::new(Model::default())), SEGMENTS_OF_64K).await;
        for (key, id) in &core.logs {
            let (damage, start, log_end) = {
                let log = core.storage.log(*id);
                (log.damage().cloned(), log.log_start(), log.log_end())
            };
            assert_eq!(damage, None, "{key}");
            let (durable, asked) = told.durable.borrow().get(key).copied().unwrap_or_default();
            assert!(
                start >= durable && start <= asked.max(durable),
                "{key}: {start}, told {durable}, asked {asked}"
            );
            let end = told.acknowledged_end.borrow().get(key).copied().unwrap_or_default();
            assert!(log_end >= end, "{key}: ends at {log_end}, acknowledged to {end}");
            read_all(io, &core.storage, *id, 100_000).await;
            told.durable.borrow_mut().insert(*key, (start, start));
        }
        opened.push(core);
    }
    told.lives.set(told.lives.get() + 1);
    opened
}

async fn live(io: Io, cores: u32, told: Rc<Told>) {
    let mut opened = check_and_open(&io, cores, &told).await;
    loop {
        let key = partition(1 + (io.random_u64() % 2) as u8, (io.random_u64() % 2) as i32);
        let core = &mut opened[core_of(cores)(key) as usize];
        core.create([key], SEGMENTS_OF_64K);
        let id = core.logs[&key];
        match io.random_u64() % 60 {
            0 => {
                core.storage.checkpoint().await.expect("checkpoint");
            }
            1 | 2 => {
                core.settle(&io).await;
                let (log_start, durable_end) = {
                    let log = core.storage.log(id);
                    (log.log_start(), log.durable_end())
                };
                told.acknowledged_end.borrow_mut().insert(key, durable_end);
                let span = (durable_end.0 - log_start.0) as u64;
                let share =
                    if io.random_u64().is_multiple_of(4) { span } else { io.random_u64() % (span + 1) };
                let start = Offset(log_start.0 + share as i64);
                told.durable.borrow_mut().entry(key).or_default().1 = start;
                core.storage.advance_log_start(id, start).expect("open");
                if io.random_u64().is_multiple_of(2) {
                    core.storage.log_start_durable(id, start).await.expect("durable");
                    told.durable.borrow_mut().insert(key, (start, start));
                }
            }
            choice => core.append(key, 1 + (choice % 4) as u32, (choice * choice) as usize, choice).await,
        }
        if io.random_u64().is_multiple_of(4) {
            io.sleep(Duration::from_micros(io.random_u64() % 300)).await;
        }
        let removed: u64 = opened.iter().map(|core| core.storage.stats().segments_removed).sum();
        told.segments_removed.set(told.segments_removed.get().max(removed));
    }
}

#[test]
fn power_cuts_while_segments_go_leave_a_sound_log() {
    let seeds = std::env::var("RINGLOG_SEEDS").map_or(20, |count| count.parse().expect("a number"));
    let (mut removed, mut lives) = (0, 0);
    for seed in 0..seeds {
        let world = World::new(seed);
        let host = world.host("node");
        let told = Rc::new(Told::default());
        for _ in 0..5 {
            let io = host.executor();
            let cores = 1 + (world.random_u64() % 3) as u32;
            io.spawn(Priority::Foreground, live(io.clone(), cores, Rc::clone(&told))).detach();
            world.run_for(Duration::from_micros(world.random_u64() % 300_000));
            host.crash();
        }
        let io = host.executor();
        let done = Rc::new(Cell::new(false));
        let last = {
            let (io, told, done) = (io.clone(), Rc::clone(&told), Rc::clone(&done));
            async move {
                drop(check_and_open(&io, 2, &told).await);
                done.set(true);
            }
        };
        io.spawn(Priority::Foreground, last).detach();
        assert_eq!(world.run_until(|| done.get(), Duration::from_secs(600)), Outcome::Done, "seed {seed}");
        removed += told.segments_removed.get();
        lives += told.lives.get();
    }
    assert!(removed > 20 && lives > seeds, "{removed} segments removed, {lives} lives");
}
