//! No descriptor is left: a flush, a bypass and a truncation wait for one, and no log is given up.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::storage_support::*;
use ringlog_io::sim::{HostDisk, Outcome, Place, UnsyncedData, World};
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::Offset;
use ringlog_shard::storage::StorageSettings;

/// Files are closed whenever they may be.
const BYPASSING: StorageSettings = StorageSettings { bypass_bytes: 3000, segment_files_max: 0, ..SMALL };
const LONGEST: Duration = Duration::from_secs(120);
/// For as long as nobody heals the disk.
const SEGMENTS: &str = ".log";

type Shared = Rc<RefCell<Model>>;

async fn open(io: &Io, model: &Shared) -> Core {
    let directory = open_directory(io, Path::new("/data")).await;
    let storage = start(io, &directory, 1, BYPASSING).await.pop().expect("one core");
    Core::open(storage, Rc::clone(model), SEGMENTS_OF_64K).await
}

/// Plays `work` on a disk, cuts the power, and looks for all that was acknowledged.
fn play<F: Future<Output = ()> + 'static>(work: impl FnOnce(Io, HostDisk, Shared) -> F) {
    let world = World::new(5);
    let host = world.host("node");
    let model = Shared::default();
    let check = |io: Io, model: Shared| async move {
        let core = open(&io, &model).await;
        check_against_model(&io, &[core], &model).await;
    };
    let run = |io: &Io, task: std::pin::Pin<Box<dyn Future<Output = ()>>>| {
        let is_done = Rc::new(Cell::new(false));
        let set = Rc::clone(&is_done);
        let task = async move {
            task.await;
            set.set(true);
        };
        io.spawn(Priority::Foreground, task).detach();
        assert_eq!(world.run_until(|| is_done.get(), LONGEST), Outcome::Done);
    };
    let io = host.executor();
    run(&io, Box::pin(work(io.clone(), host.disk(), Rc::clone(&model))));
    host.disk().heal();
    host.crash_with(UnsyncedData::Lost);
    let io = host.executor();
    run(&io, Box::pin(check(io.clone(), model)));
}

#[test]
fn a_flush_waits_for_descriptors_however_long() {
    play(|io, disk, model| async move {
        let key = partition(1, 0);
        let mut core = open(&io, &model).await;
        core.create([key], SEGMENTS_OF_64K);
        disk.fail_opens(Place::in_files(SEGMENTS));
        core.append(key, 2, 500, 1).await;
        core.settle(&io).await;
        let is_flushed = Rc::new(Cell::new(false));
        let (storage, set) = (core.storage.clone(), Rc::clone(&is_flushed));
        let checkpoint = async move {
            let report = storage.checkpoint().await.expect("checkpoint");
            assert_eq!((report.logs_flushed, report.logs_kept), (1, 0));
            set.set(true);
        };
        io.spawn(Priority::Background, checkpoint).detach();
        io.sleep(Duration::from_secs(30)).await;
        assert!(!is_flushed.get(), "not without a file");
        assert_eq!(core.storage.log(core.logs[&key]).poison(), None);
        // The journal takes it meanwhile.
        core.append(key, 2, 500, 2).await;
        core.settle(&io).await;
        disk.heal();
        io.sleep(Duration::from_secs(1)).await;
        assert!(is_flushed.get());
        let stats = core.storage.stats();
        assert_eq!((stats.logs_poisoned, stats.segments_rewritten), (0, 0));
    });
}

#[test]
fn a_bypass_waits_for_descriptors_and_acknowledges_then() {
    play(|io, disk, model| async move {
        let key = partition(1, 0);
        let mut core = open(&io, &model).await;
        core.create([key], SEGMENTS_OF_64K);
        disk.fail_opens(Place::in_files(SEGMENTS).times(7));
        core.append(key, 1, 9000, 1).await;
        io.sleep(Duration::from_millis(500)).await;
        let id = core.logs[&key];
        assert_eq!(core.storage.log(id).durable_end(), Offset(0), "its bytes are nowhere");
        core.settle(&io).await;
        assert_eq!(core.storage.stats().logs_poisoned, 0);
        assert!(core.storage.stats().bypass_bytes > 0);
    });
}

#[test]
fn a_truncation_waits_for_descriptors_and_is_carried_out_then() {
    play(|io, disk, model| async move {
        let key = partition(1, 0);
        let mut core = open(&io, &model).await;
        core.create([key], SEGMENTS_OF_64K);
        for salt in 0..8 {
            core.append(key, 1, 500, salt).await;
        }
        core.settle(&io).await;
        core.storage.checkpoint().await.expect("checkpoint");
        let id = core.logs[&key];
        // From memory: the place is found without a file.
        core.storage.truncate(id, Offset(4)).await.expect("truncated");
        {
            let mut model = model.borrow_mut();
            model.sent.get_mut(&key).expect("sent").truncate(4);
            model.acknowledged_end.insert(key, Offset(4));
        }
        disk.fail_opens(Place::in_files(SEGMENTS).times(5));
        assert_eq!(core.storage.plan_read(id, Offset(0), Offset(1), 1, true).map(|_| ()).ok(), Some(()));
        let begun = io.monotonic_now();
        core.append(key, 1, 500, 99).await;
        core.settle(&io).await;
        core.storage.checkpoint().await.expect("checkpoint");
        assert_eq!(core.storage.stats().logs_poisoned, 0);
        assert_eq!(core.storage.log(id).synced_end(), Offset(5));
        // The model takes every report without records for one of a hard state.
        model.borrow_mut().state_acknowledged.clear();
        assert!(io.monotonic_now().saturating_since(begun) > Duration::from_millis(400), "it waited");
    });
}
