//! The first start of a node, in an empty place: how much it syncs, and that a power cut or a kill after any change of the
//! disk leaves what the next start takes for new or for its own, with all that was told.

mod storage_support;

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use ringlog_io::sim::{Host, Outcome, Syncs, UnsyncedData, World};
use ringlog_io::{Io, Priority, Task};
use ringlog_protocol::ids::NodeId;
use ringlog_shard::storage::{CoreStorage, DataDirectory, Identity, StorageSettings};
use storage_support::*;

const CORES: u32 = 2;
/// Virtual time that no start needs.
const LONGEST: Duration = Duration::from_secs(60);
/// So much longer takes each operation of the disk where the longest row of them is counted.
const OPERATION: Duration = Duration::from_millis(1);
/// Chains of lives that end at random moments.
const CHAINS: u64 = 80;

/// Where a node keeps its files.
#[derive(Clone, Copy, Debug)]
struct Layout {
    data: &'static str,
    journal: Option<&'static str>,
}

const LAYOUTS: [Layout; 4] = [
    Layout { data: "/data", journal: None },
    Layout { data: "/a/missing/folder", journal: None },
    Layout { data: "/data", journal: Some("/data/write-ahead") },
    Layout { data: "/data", journal: Some("/fast/journal") },
];

async fn open(io: &Io, layout: Layout) -> DataDirectory {
    let identity = Identity { cluster_id: None, node_id: NodeId(1) };
    let journal = layout.journal.map(PathBuf::from);
    let opened = DataDirectory::open(io, Path::new(layout.data), journal.as_deref(), &identity).await;
    opened.unwrap_or_else(|error| panic!("{layout:?}: {error}"))
}

/// What one start cost.
#[derive(Debug)]
struct Cost {
    /// Until it served.
    syncs: Syncs,
    /// With what it made in the background.
    syncs_in_all: u64,
    /// Operations of the disk that waited for one another, until it served.
    row: u64,
}

fn difference(after: Syncs, before: Syncs) -> Syncs {
    Syncs {
        files: after.files - before.files,
        directories: after.directories - before.directories,
        file_systems: after.file_systems - before.file_systems,
        writes: after.writes - before.writes,
    }
}

fn measure(world: &World, host: &Host, layout: Layout) -> Cost {
    let (io, storages) = (host.executor(), Rc::new(RefCell::new(Vec::<CoreStorage>::new())));
    host.disk().slow_down(1, OPERATION);
    let (before, began) = (host.disk().syncs(), world.now());
    let life = {
        let (io, storages) = (io.clone(), Rc::clone(&storages));
        async move {
            let directory = open(&io, layout).await;
            *storages.borrow_mut() = start(&io, &directory, CORES, StorageSettings::DEV).await;
            std::future::pending::<()>().await;
            drop(directory);
        }
    };
    io.spawn(Priority::Foreground, life).detach();
    assert_eq!(world.run_until(|| !storages.borrow().is_empty(), LONGEST), Outcome::Done);
    let syncs = difference(host.disk().syncs(), before);
    let row = (world.now().saturating_since(began).as_millis() / OPERATION.as_millis()) as u64;
    world.run_for(Duration::from_secs(2));
    let syncs_in_all = difference(host.disk().syncs(), before).total();
    drop(storages);
    host.crash_with(UnsyncedData::Lost);
    Cost { syncs, syncs_in_all, row }
}

#[test]
fn an_empty_start_syncs_few_names_one_after_the_other() {
    let world = World::new(1);
    let host = world.host("node");
    let first = measure(&world, &host, LAYOUTS[0]);
    let second = measure(&world, &host, LAYOUTS[0]);
    eprintln!("{CORES} cores, first start: {first:?}; second: {second:?}");
    assert!(first.syncs.total() <= 13 && first.syncs_in_all <= 17 && first.row <= 75, "{first:?}");
    assert!(second.syncs.total() <= 7 && second.syncs_in_all <= 11 && second.row <= 105, "{second:?}");
}

/// What a node told before it ended.
#[derive(Default)]
struct Told {
    directory_id: RefCell<Option<String>>,
    model: Rc<RefCell<Model>>,
}

/// How a life ends.
#[derive(Clone, Copy, Debug)]
enum End {
    PowerCut(UnsyncedData),
    /// The disk goes on as if nothing was.
    Kill,
}

const ENDS: [End; 5] = [
    End::PowerCut(UnsyncedData::Lost),
    End::PowerCut(UnsyncedData::Kept),
    End::PowerCut(UnsyncedData::RandomSubset { torn: false }),
    End::PowerCut(UnsyncedData::RandomSubset { torn: true }),
    End::Kill,
];

/// A start that finds all that was told, and one record that is told too.
async fn live(io: Io, layout: Layout, told: Rc<Told>, is_done: Rc<Cell<bool>>) {
    let directory = open(&io, layout).await;
    let id = directory.directory_id().to_owned();
    if let Some(known) = &*told.directory_id.borrow() {
        assert!(*known == id && !directory.is_new(), "{layout:?}: it was {known}, it is {id}");
    }
    let mut cores = Vec::new();
    for storage in start(&io, &directory, CORES, SMALL).await {
        cores.push(Core::open(storage, Rc::clone(&told.model), SEGMENTS_OF_64K).await);
    }
    *told.directory_id.borrow_mut() = Some(id);
    check_against_model(&io, &cores, &told.model).await;
    adopt(&io, &cores, &told.model).await;
    let key = partition(1, 0);
    let core = &mut cores[core_of(CORES)(key) as usize];
    core.create([key], SEGMENTS_OF_64K);
    core.append(key, 1, 100, 1).await;
    core.settle(&io).await;
    is_done.set(true);
    std::future::pending::<()>().await;
    drop((cores, directory));
}

fn begin(host: &Host, layout: Layout, told: &Rc<Told>) -> (Task<()>, Rc<Cell<bool>>) {
    let (io, is_done) = (host.executor(), Rc::new(Cell::new(false)));
    let life = live(io.clone(), layout, Rc::clone(told), Rc::clone(&is_done));
    (io.spawn(Priority::Foreground, life), is_done)
}

/// Lets a node live until its disk has changed so many times, or it is done, which the answer says; then ends it.
fn live_until(world: &World, host: &Host, layout: Layout, told: &Rc<Told>, changes: u64, end: End) -> bool {
    let before = host.disk().changes();
    let (task, is_done) = begin(host, layout, told);
    let is_due = || is_done.get() || host.disk().changes() - before >= changes;
    assert_eq!(world.run_until(is_due, LONGEST), Outcome::Done, "{layout:?}, cut after {changes}: it hangs");
    match end {
        End::PowerCut(unsynced) => {
            host.crash_with(unsynced);
            drop(task);
        }
        End::Kill => {
            drop(task);
            // What the disk had begun it ends.
            world.run_for(Duration::from_millis(50));
        }
    }
    is_done.get()
}

/// Whole lives, with what is unsynced lost after each: what one told is durable, and the next finds it.
fn must_live(world: &World, host: &Host, layout: Layout, told: &Rc<Told>, lives: u32) {
    for _ in 0..lives {
        let is_done = live_until(world, host, layout, told, u64::MAX, End::PowerCut(UnsyncedData::Lost));
        assert!(is_done, "{layout:?}");
    }
}

#[test]
fn a_first_start_that_ends_after_any_change_of_the_disk_is_followed_by_one_that_serves() {
    if cfg!(feature = "planted-early-ack") {
        return;
    }
    for (number, layout) in LAYOUTS.into_iter().enumerate() {
        // All of them where most nodes have their files, and some elsewhere.
        let step = if number == 0 { 1 } else { 4 };
        for end in ENDS {
            let mut cuts = 0;
            // What nobody synced before a kill may be lost later.
            let lives = if matches!(end, End::Kill) { 2 } else { 1 };
            for changes in (0..).step_by(step) {
                let world = World::new(changes);
                let (host, told) = (world.host("node"), Rc::new(Told::default()));
                let is_done = live_until(&world, &host, layout, &told, changes, end);
                must_live(&world, &host, layout, &told, lives);
                if is_done {
                    break;
                }
                cuts += 1;
            }
            assert!(cuts > 35 / step, "{layout:?}, {end:?}: {cuts} cuts");
        }
    }
}

#[test]
fn first_starts_that_end_one_after_the_other_are_followed_by_one_that_serves() {
    if cfg!(feature = "planted-early-ack") {
        return;
    }
    for seed in 0..CHAINS {
        let world = World::new(seed);
        let (host, told) = (world.host("node"), Rc::new(Told::default()));
        let layout = LAYOUTS[(seed % LAYOUTS.len() as u64) as usize];
        for _ in 0..2 + world.random_u64() % 3 {
            let changes = world.random_u64() % 50;
            let end = ENDS[(world.random_u64() % ENDS.len() as u64) as usize];
            live_until(&world, &host, layout, &told, changes, end);
        }
        must_live(&world, &host, layout, &told, 2);
    }
}
