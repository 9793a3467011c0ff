//! A device that cannot read some bytes: they alone are refused, with file and position; what lies around them is served.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::storage_support::*;
use ringlog_io::sim::{Host, Outcome, Place, World};
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::Offset;
use ringlog_shard::journal::recovery::{RecoveryStep, recover, recover_with};
use ringlog_shard::limits::RECOVERY_READ_ATTEMPTS;
use ringlog_shard::storage::{
    CoreStorage, LogId, LogSettings, ReadError, RecoveryReport, StorageError, StorageSettings,
};

/// Next to nothing stays in memory, so that reads go to files.
const NO_TAIL: StorageSettings = StorageSettings { tail_bytes_max: 64 * 1024, ..SMALL };
const ONE_SEGMENT: LogSettings = LogSettings { segment_bytes: 1 << 20, ..SEGMENTS_OF_64K };
const RECORDS: i64 = 10;
const BATCHES: i64 = 40;
/// Of the log of partition 0.
const SEGMENT: &str = "/0/00000000000000000000.log";

/// Runs `main` on a simulated host to its end.
fn simulate<F: Future<Output = ()> + 'static>(main: impl FnOnce(Io, Host) -> F) {
    let world = World::new(11);
    let host = world.host("node");
    let io = host.executor();
    let done = Rc::new(Cell::new(false));
    let (work, set) = (main(io.clone(), host), Rc::clone(&done));
    io.spawn(Priority::Foreground, async move {
        work.await;
        set.set(true);
    })
    .detach();
    assert_eq!(world.run_until(|| done.get(), Duration::from_secs(600)), Outcome::Done);
}

/// Two partitions, each with one segment of 40 batches of one length.
async fn filled(io: &Io) -> Core {
    let directory = open_directory(io, Path::new("/data")).await;
    let storage = start(io, &directory, 1, NO_TAIL).await.pop().expect("one core");
    let mut core = Core::open(storage, Rc::new(RefCell::new(Model::default())), ONE_SEGMENT).await;
    core.create([partition(1, 0), partition(1, 1)], ONE_SEGMENT);
    for salt in 0..BATCHES {
        core.append(partition(1, 0), RECORDS as u32, 200, salt as u64).await;
        core.append(partition(1, 1), RECORDS as u32, 200, salt as u64).await;
    }
    core.settle(io).await;
    core.storage.checkpoint().await.expect("checkpoint");
    core
}

fn batch_bytes(core: &Core) -> u64 {
    core.storage.log(core.logs[&partition(1, 0)]).size_bytes() / BATCHES as u64
}

async fn read(io: &Io, storage: &CoreStorage, id: LogId, from: i64) -> Result<i64, ReadError> {
    let end = storage.log(id).log_end();
    let read = storage.plan_read(id, Offset(from), end, 1 << 20, true)?.run(io).await?;
    Ok(read.next_offset.0)
}

#[test]
fn what_a_device_cannot_read_is_refused_and_what_lies_around_it_is_served() {
    simulate(|io, host| async move {
        drop(filled(&io).await);
        let directory = open_directory(&io, Path::new("/data")).await;
        let storage = start(&io, &directory, 1, NO_TAIL).await.pop().expect("one core");
        let core = Core::open(storage, Rc::default(), ONE_SEGMENT).await;
        let (id, bytes) = (core.logs[&partition(1, 0)], batch_bytes(&core));
        let bad = 7;
        host.disk().fail_reads(Place::in_files(SEGMENT).bytes(bad * bytes + 100..bad * bytes + 101));
        assert_eq!(read(&io, &core.storage, id, 0).await.expect("what lies before"), bad as i64 * RECORDS);
        match read(&io, &core.storage, id, bad as i64 * RECORDS).await {
            Err(ReadError::Io { path, position, .. }) => {
                assert!(path.display().to_string().ends_with(SEGMENT), "{}", path.display());
                assert_eq!(position, bad * bytes);
            }
            other => panic!("{other:?}"),
        }
        let behind =
            read(&io, &core.storage, id, (bad as i64 + 1) * RECORDS).await.expect("what lies behind");
        assert_eq!(behind, BATCHES * RECORDS);
        let damaged = core.storage.damaged();
        assert_eq!(damaged.len(), 1, "{damaged:?}");
        assert!(damaged[0].1.detail.starts_with("cannot be read"), "{damaged:?}");
        assert!(core.storage.stats().read_errors >= 1);
        read_all(&io, &core.storage, core.logs[&partition(1, 1)], 100_000).await;
        core.append(partition(1, 0), 1, 10, 1).await;
        core.settle(&io).await;
    });
}

#[test]
fn an_error_that_passes_is_forgotten_by_the_scrub() {
    simulate(|io, host| async move {
        let core = filled(&io).await;
        host.disk().fail_reads(Place::in_files(SEGMENT).bytes(0..1).times(2));
        let report = core.storage.scrub(1 << 30).await;
        assert_eq!(report.errors, 1, "read twice, in vain");
        assert_eq!(core.storage.damaged().len(), 1);
        let report = core.storage.scrub(1 << 30).await;
        assert_eq!((report.errors, core.storage.damaged().len()), (0, 0));
    });
}

#[test]
fn a_partition_that_cannot_be_read_at_start_keeps_no_other_from_opening() {
    simulate(|io, host| async move {
        drop(filled(&io).await);
        let directory = open_directory(&io, Path::new("/data")).await;
        let mut recovery = recover(&io, &directory, 1, &core_of(1), &NO_TAIL).await.expect("recovery");
        let shard = recovery.shards.pop().expect("one core");
        let storage = CoreStorage::start(io.clone(), shard, NO_TAIL).await.expect("start");
        host.disk().fail_reads(Place::in_files(SEGMENT));
        for mut recovered in storage.take_recovered() {
            // All of it is to be read.
            recovered.checkpoint = None;
            let key = recovered.key;
            let opened = storage.open_log(recovered, ONE_SEGMENT, &mut |_| {}).await;
            if key == partition(1, 0) {
                match opened {
                    Err(StorageError::Io { path, .. }) => {
                        assert!(path.display().to_string().ends_with(SEGMENT));
                    }
                    other => panic!("{other:?}"),
                }
            } else {
                read_all(&io, &storage, opened.expect("sound"), 100_000).await;
            }
        }
    });
}

/// Starts with the errors that the disk has, then without them: nothing is damaged, and what was acknowledged is there.
async fn starts_sound(
    io: &Io,
    host: &Host,
    settings: StorageSettings,
    model: &Rc<RefCell<Model>>,
) -> RecoveryReport {
    let directory = open_directory(io, Path::new("/data")).await;
    let recovery = recover(io, &directory, 1, &core_of(1), &settings).await.expect("recovery");
    assert_eq!(recovery.report.corruption, Vec::<String>::new());
    host.disk().heal();
    let report = recovery.report.clone();
    let storage = start_cores(io, recovery, settings).await.pop().expect("one core");
    check_against_model(io, &[Core::open(storage, Rc::clone(model), ONE_SEGMENT).await], model).await;
    report
}

#[test]
fn what_the_journal_has_is_written_anew_where_it_cannot_be_read() {
    simulate(|io, host| async move {
        let core = filled(&io).await;
        for salt in 0..BATCHES {
            core.append(partition(1, 0), RECORDS as u32, 200, salt as u64).await;
        }
        core.settle(&io).await;
        let model = Rc::clone(&core.model);
        drop(core);
        {
            // A start that ends once the segment has everything, and before the journal may go.
            let directory = open_directory(&io, Path::new("/data")).await;
            let stop = |step| match step {
                RecoveryStep::PartitionReplayed => Err(std::io::Error::other("as a crash would")),
                _ => Ok(()),
            };
            recover_with(&io, &directory, 1, &core_of(1), &NO_TAIL, &stop).await.expect_err("stopped");
        }
        host.disk().fail_reads(Place::in_files(SEGMENT));
        let report = starts_sound(&io, &host, NO_TAIL, &model).await;
        assert!(report.restored_bytes > 0, "nothing was compared in vain: {report:?}");
    });
}

#[test]
fn a_read_that_fails_now_and_then_damages_nothing_at_a_start() {
    const BYPASSING: StorageSettings = StorageSettings { bypass_bytes: 3000, ..SMALL };
    simulate(|io, host| async move {
        let directory = open_directory(&io, Path::new("/data")).await;
        let storage = start(&io, &directory, 1, BYPASSING).await.pop().expect("one core");
        let mut core = Core::open(storage, Rc::default(), ONE_SEGMENT).await;
        core.create([partition(1, 0)], ONE_SEGMENT);
        // The journal has the small ones, and names where the large one lies.
        for (value_bytes, salt) in [(100, 1), (9_000, 2), (100, 3)] {
            core.append(partition(1, 0), 1, value_bytes, salt).await;
            core.settle(&io).await;
        }
        let model = Rc::clone(&core.model);
        drop((core, directory));
        let times = u64::from(RECOVERY_READ_ATTEMPTS) - 1;
        host.disk().fail_reads(Place::in_files(SEGMENT).times(times));
        host.disk().fail_reads(Place::in_files(".journal").times(times));
        starts_sound(&io, &host, BYPASSING, &model).await;
    });
}
