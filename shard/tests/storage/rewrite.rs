//! A segment that is written anew after a failed sync holds all that was synced in the old file, also what a bypass put
//! there meanwhile.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::storage_support::*;
use ringlog_io::sim::{HostDisk, Outcome, UnsyncedData, World};
use ringlog_io::{Io, Priority};
use ringlog_shard::storage::StorageSettings;

const BYPASSING: StorageSettings = StorageSettings { bypass_bytes: 3000, ..SMALL };

async fn open(io: &Io, model: &Rc<RefCell<Model>>) -> Core {
    let directory = open_directory(io, Path::new("/data")).await;
    let storage = start(io, &directory, 1, BYPASSING).await.pop().expect("one core");
    Core::open(storage, Rc::clone(model), SEGMENTS_OF_64K).await
}

/// A small batch, then one that bypasses the journal, and a checkpoint beside it whose syncs fail or not. Returns whether a
/// segment was written anew.
async fn flush_beside_bypass(io: Io, disk: HostDisk, model: Rc<RefCell<Model>>) -> bool {
    let key = partition(1, 0);
    let mut core = open(&io, &model).await;
    core.create([key], SEGMENTS_OF_64K);
    if io.random_u64().is_multiple_of(2) {
        core.append(key, 1, 500, 1).await;
        core.settle(&io).await;
        core.storage.checkpoint().await.expect("checkpoint");
    }
    disk.fail_syncs(2);
    core.append(key, 1, 500, 2).await;
    core.append(key, 1, 9000, 3).await;
    io.sleep(Duration::from_micros(io.random_u64() % 2_000)).await;
    let storage = core.storage.clone();
    let checkpoint = async move { storage.checkpoint().await.expect("checkpoint") };
    io.spawn(Priority::Background, checkpoint).await;
    disk.heal();
    io.sleep(Duration::from_millis(10)).await;
    core.storage.stats().segments_rewritten > 0
}

#[test]
fn a_segment_written_anew_holds_what_a_bypass_synced_meanwhile() {
    let mut rewritten = 0;
    for seed in 0..150 {
        let world = World::new(seed);
        let host = world.host("node");
        let model = Rc::new(RefCell::new(Model::default()));
        let (io, result) = (host.executor(), Rc::new(Cell::new(None)));
        let work = {
            let (io, disk, model, result) = (io.clone(), host.disk(), Rc::clone(&model), Rc::clone(&result));
            async move { result.set(Some(flush_beside_bypass(io, disk, model).await)) }
        };
        io.spawn(Priority::Foreground, work).detach();
        let longest = Duration::from_secs(60);
        assert_eq!(world.run_until(|| result.get().is_some(), longest), Outcome::Done, "seed {seed}");
        rewritten += u32::from(result.get() == Some(true));
        host.crash_with(UnsyncedData::Lost);
        let (io, is_checked) = (host.executor(), Rc::new(Cell::new(false)));
        let check = {
            let (io, model, is_checked) = (io.clone(), Rc::clone(&model), Rc::clone(&is_checked));
            async move {
                let core = open(&io, &model).await;
                check_against_model(&io, &[core], &model).await;
                is_checked.set(true);
            }
        };
        io.spawn(Priority::Foreground, check).detach();
        assert_eq!(world.run_until(|| is_checked.get(), longest), Outcome::Done, "seed {seed}");
    }
    assert!(rewritten > 20, "{rewritten} of 150 were written anew");
}
