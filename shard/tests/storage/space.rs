//! A disk that fills: appends slow down, then are refused with what to do about it, everything else goes on, and appends go
//! on by themselves once there is space. On the simulated disk.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::storage_support::*;
use bytes::Bytes;
use ringlog_io::sim::{Host, Outcome, World};
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::Offset;
use ringlog_shard::storage::{LogSettings, SpaceLevel, SpaceSettings, StorageError, StorageSettings};

const MIB: u64 = 1 << 20;

const SHORT: StorageSettings = StorageSettings {
    space: SpaceSettings { reserve_bytes: Some(8 * MIB), warn_bytes: Some(24 * MIB) },
    tail_bytes_max: 4 << 20,
    ..SMALL
};

async fn append_until_refused(core: &Core, levels: &RefCell<Vec<SpaceLevel>>) -> StorageError {
    let key = partition(1, 0);
    let id = core.logs[&key];
    loop {
        core.storage.room().await;
        let level = core.storage.space().level;
        if levels.borrow().last() != Some(&level) {
            levels.borrow_mut().push(level);
        }
        let base = core.storage.log(id).log_end();
        let appended = batch(base, 1, 60_000, base.0 as u64);
        core.model.borrow_mut().sent.entry(key).or_default().push(appended.bytes.clone());
        if let Err(error) = core.storage.append(id, appended) {
            core.model.borrow_mut().sent.get_mut(&key).expect("just pushed").pop();
            return error;
        }
    }
}

async fn fill(io: Io, host: Host, done: Rc<Cell<bool>>) {
    let model = Rc::new(RefCell::new(Model::default()));
    let directory = open_directory(&io, Path::new("/data")).await;
    let storage = start(&io, &directory, 1, SHORT).await.pop().expect("one core");
    let mut core = Core::open(storage, Rc::clone(&model), LogSettings::default()).await;
    let (key, metadata) = (partition(1, 0), partition(7, 0));
    core.create([key, metadata], LogSettings::default());
    core.storage.let_use_reserve(core.logs[&metadata]);
    let levels = RefCell::new(Vec::new());
    let started = io.monotonic_now();
    let error = append_until_refused(&core, &levels).await;
    assert!(matches!(error, StorageError::NoSpace(_)), "{error}");
    let text = error.to_string();
    for part in ["bytes are free", "ringlog.disk.reserve.bytes = 8388608", "resumes by itself"] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
    // A level may be passed between two looks.
    use SpaceLevel::{Ample, Throttle};
    assert!(levels.borrow()[0] == Ample && levels.borrow().contains(&Throttle), "{levels:?}");
    assert!(
        io.monotonic_now().saturating_since(started) > Duration::from_secs(5),
        "slowed down near the reserve"
    );
    core.settle(&io).await;
    // Everything acknowledged has its place in a segment, with the reserve untouched.
    let report = core.storage.checkpoint().await.expect("checkpoint");
    assert_eq!(report.logs_kept, 0);
    io.sleep(Duration::from_secs(2)).await;
    let space = core.storage.space();
    assert!(space.level >= Throttle && space.free_bytes >= 8 * MIB, "{space:?}");
    // Reads, votes and metadata go on.
    let read = read_all(&io, &core.storage, core.logs[&key], 1 << 20).await;
    assert_eq!(read, model.borrow().sent[&key].concat());
    core.persist(key, Bytes::from_static(b"vote"));
    core.storage.room_with_reserve().await;
    core.storage
        .append(core.logs[&metadata], batch(Offset(0), 1, 100, 1))
        .expect("metadata uses the reserve");
    core.settle(&io).await;
    host.disk().set_capacity_bytes(400 * MIB);
    let freed = io.monotonic_now();
    while core.storage.check_append(core.logs[&key], 60_000).is_err() {
        io.sleep(Duration::from_millis(100)).await;
    }
    assert!(io.monotonic_now().saturating_since(freed) < Duration::from_secs(2), "resumes by itself");
    core.append(key, 1, 60_000, 1).await;
    core.settle(&io).await;
    done.set(true);
}

#[test]
fn a_full_disk_refuses_appends_only_and_for_as_long_as_it_is_full() {
    let world = World::new(1);
    let host = world.host("node");
    host.disk().set_capacity_bytes(64 * MIB);
    let (io, done) = (host.executor(), Rc::new(Cell::new(false)));
    io.spawn(Priority::Foreground, fill(io.clone(), host.clone(), Rc::clone(&done))).detach();
    assert_eq!(world.run_until(|| done.get(), Duration::from_secs(3600)), Outcome::Done);
}

#[test]
fn a_disk_that_is_full_at_start_refuses_the_first_append() {
    let world = World::new(1);
    let host = world.host("node");
    let (io, done) = (host.executor(), Rc::new(Cell::new(false)));
    let told = Rc::clone(&done);
    let limited = host.clone();
    let main = async move |io: Io| {
        let directory = open_directory(&io, Path::new("/data")).await;
        let model = Rc::new(RefCell::new(Model::default()));
        limited.disk().set_capacity_bytes(9 * MIB);
        let storage = start(&io, &directory, 1, SHORT).await.pop().expect("one core");
        let mut core = Core::open(storage, model, LogSettings::default()).await;
        core.create([partition(1, 0)], LogSettings::default());
        let refused = core.storage.check_append(core.logs[&partition(1, 0)], 100);
        assert!(matches!(refused, Err(StorageError::NoSpace(_))), "{refused:?}");
        told.set(true);
    };
    let handle = io.clone();
    io.spawn(Priority::Foreground, async move { main(handle).await }).detach();
    assert_eq!(world.run_until(|| done.get(), Duration::from_secs(60)), Outcome::Done);
}
