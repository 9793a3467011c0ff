//! Plays a script: lives that end with a power cut each, then two starts that must find the same.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ringlog_io::Priority;
use ringlog_io::sim::{Host, HostDisk, Outcome, UnsyncedData, World};

use super::ledger::{Coverage, Ledger};
use super::life::Node;
use super::script::{Life, Script};

/// What a script came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Played {
    pub trace_hash: u64,
    /// Changes of the disk in the first life.
    pub changes_first: u64,
    /// Starts that ended before the power went, and that did not.
    pub starts_done: u64,
    pub starts_cut: u64,
    /// Lives whose work was done before the power went.
    pub works_done: u64,
    pub events: u64,
    pub coverage: Coverage,
}

/// How far a life has come.
#[derive(Default)]
struct Progress {
    is_open: Cell<bool>,
    is_done: Cell<bool>,
}

/// Virtual time that no life needs.
const LONGEST: Duration = Duration::from_secs(600);

/// Plays it.
///
/// # Panics
/// When the storage breaks a rule.
pub fn play(script: &Script) -> Played {
    let world = World::new(script.seed);
    let host = world.host("node");
    let ledger = Rc::new(RefCell::new(Ledger::default()));
    let mut played = Played::default();
    for (number, life) in script.lives.iter().enumerate() {
        let progress = begin(&host, life.cores, life.failing_syncs, true, &ledger);
        let changes = run_until_cut(&world, &host.disk(), life, &progress);
        if number == 0 {
            played.changes_first = changes;
        }
        played.starts_done += u64::from(progress.is_open.get());
        played.starts_cut += u64::from(!progress.is_open.get());
        played.works_done += u64::from(progress.is_done.get());
        for _ in 0..life.subset {
            world.random_u64();
        }
        host.disk().heal();
        host.crash_with(life.unsynced);
    }
    for cores in script.cores_last {
        let progress = begin(&host, cores, 0, false, &ledger);
        assert_eq!(world.run_until(|| progress.is_done.get(), LONGEST), Outcome::Done, "the start ends");
        played.starts_done += 1;
        host.crash_with(UnsyncedData::Lost);
    }
    let has_failures = script.lives.iter().any(|life| life.failing_syncs > 0);
    assert!(
        has_failures || host.descriptors_closed_unsynced() == 0,
        "a kernel drops the errors of such writes"
    );
    played.events = world.event_count();
    played.coverage = ledger.borrow().coverage;
    played.trace_hash = world.trace_hash();
    played
}

fn begin(
    host: &Host,
    cores: u32,
    failing_syncs: u64,
    works: bool,
    ledger: &Rc<RefCell<Ledger>>,
) -> Rc<Progress> {
    let progress = Rc::new(Progress::default());
    let (io, disk) = (host.executor(), host.disk());
    let life = {
        let (io, ledger, progress) = (io.clone(), Rc::clone(ledger), Rc::clone(&progress));
        async move {
            let mut node = Node::open(io, cores, ledger).await;
            progress.is_open.set(true);
            disk.fail_syncs(failing_syncs);
            if works {
                node.work().await;
            }
            progress.is_done.set(true);
            // Serves until the power goes: a storage that is dropped lets go of its files, which a crash does not.
            std::future::pending::<()>().await;
            drop(node);
        }
    };
    io.spawn(Priority::Foreground, life).detach();
    progress
}

/// Lets a life go on until its cut is due. Answers how often it changed the disk.
fn run_until_cut(world: &World, disk: &HostDisk, life: &Life, progress: &Progress) -> u64 {
    let before = disk.changes();
    let is_due = || progress.is_done.get() || disk.changes() - before >= life.cut.changes;
    assert_eq!(world.run_until(is_due, LONGEST), Outcome::Done, "the life goes on");
    let events = world.event_count() + life.cut.events;
    let is_due = || progress.is_done.get() || world.event_count() >= events;
    assert_eq!(world.run_until(is_due, LONGEST), Outcome::Done, "the life goes on");
    disk.changes() - before
}
