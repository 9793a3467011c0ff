//! Truncation down to the log's start: what it cuts off stays until it is durable, also the segments below the start.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::storage_support::*;
use ringlog_io::sim::{Outcome, UnsyncedData, World};
use ringlog_io::{Io, Priority};
use ringlog_protocol::ids::Offset;

/// How far the script has come.
#[derive(Default)]
struct Progress {
    is_begun: Cell<bool>,
    is_over: Cell<bool>,
    /// The truncation was told to be durable.
    is_told: Rc<Cell<bool>>,
}

async fn open(io: &Io) -> Core {
    let directory = open_directory(io, Path::new("/data")).await;
    let storage = start(io, &directory, 1, SMALL).await.pop().expect("one core");
    Core::open(storage, Rc::new(RefCell::new(Model::default())), SEGMENTS_OF_64K).await
}

async fn truncate_to_start(io: Io, progress: Rc<Progress>) {
    let key = partition(1, 0);
    let mut core = open(&io).await;
    core.create([key], SEGMENTS_OF_64K);
    core.append(key, 3, 100, 1).await;
    core.append(key, 2, 100, 2).await;
    core.settle(&io).await;
    let id = core.logs[&key];
    core.storage.checkpoint().await.expect("checkpoint");
    core.storage.advance_log_start(id, Offset(3)).expect("open");
    core.storage.log_start_durable(id, Offset(3)).await.expect("durable");
    let sequence = Rc::new(Cell::new(u64::MAX));
    let (awaited, is_told) = (Rc::clone(&sequence), Rc::clone(&progress.is_told));
    core.storage.set_durable_listener(move |reports| {
        if reports.iter().any(|report| report.sequence == awaited.get()) {
            is_told.set(true);
        }
    });
    progress.is_begun.set(true);
    let truncated = core.storage.truncate(id, Offset(3)).await.expect("truncated");
    assert_eq!(truncated.end, Offset(3));
    sequence.set(truncated.sequence.expect("something was cut off"));
    while core.storage.log(id).segment_count() > 0 {
        io.sleep(Duration::from_micros(100)).await;
    }
    io.sleep(Duration::from_millis(20)).await;
    progress.is_over.set(true);
    std::future::pending::<()>().await;
}

/// Lives until `step` events after the truncation was asked for, and answers where the log ends after the power cut.
fn cut_after(seed: u64, step: u64, progress: &Rc<Progress>) -> Offset {
    let world = World::new(seed);
    let host = world.host("node");
    let io = host.executor();
    io.spawn(Priority::Foreground, truncate_to_start(io.clone(), Rc::clone(progress))).detach();
    let longest = Duration::from_secs(60);
    assert_eq!(world.run_until(|| progress.is_begun.get(), longest), Outcome::Done);
    let last = world.event_count() + step;
    let is_due = || world.event_count() >= last || progress.is_over.get();
    assert_eq!(world.run_until(is_due, longest), Outcome::Done, "emptied segments go in the end");
    host.crash_with(UnsyncedData::RandomSubset { torn: false });
    let io = host.executor();
    let found = Rc::new(Cell::new(None));
    let check = {
        let (io, found) = (io.clone(), Rc::clone(&found));
        async move {
            let core = open(&io).await;
            let id = core.logs[&partition(1, 0)];
            let (start, end, damage) = {
                let log = core.storage.log(id);
                (log.log_start(), log.log_end(), log.damage().cloned())
            };
            assert_eq!((start, damage), (Offset(3), None));
            read_all(&io, &core.storage, id, 1000).await;
            found.set(Some(end));
        }
    };
    io.spawn(Priority::Foreground, check).detach();
    assert_eq!(world.run_until(|| found.get().is_some(), longest), Outcome::Done);
    found.get().expect("the condition holds")
}

#[test]
fn segments_below_the_start_stay_until_a_truncation_to_it_is_durable() {
    let mut ends = std::collections::BTreeSet::new();
    for seed in 0..12 {
        for step in (0..).step_by(2) {
            let progress = Rc::new(Progress::default());
            let end = cut_after(seed, step, &progress);
            let is_told = progress.is_told.get();
            assert!(end == Offset(3) || (end == Offset(5) && !is_told), "{end}, seed {seed}, step {step}");
            ends.insert(end);
            if is_told {
                break;
            }
        }
        cut_after(seed, u64::MAX / 2, &Rc::default());
    }
    assert_eq!(ends.len(), 2, "cuts before and after it was durable");
}
