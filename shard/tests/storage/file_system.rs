//! Failed writes to the file system of the segments: what one core was told of and dealt with stops no other core.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::storage_support::*;
use ringlog_io::sim::{HostDisk, Outcome, World};
use ringlog_io::{Io, Priority};

/// Returns whether a sync failed and was dealt with.
async fn fail_beside(io: Io, disk: HostDisk) -> bool {
    let directory = open_directory(&io, Path::new("/data")).await;
    let mut cores = Vec::new();
    for storage in start(&io, &directory, 2, SMALL).await {
        cores.push(Core::open(storage, Rc::new(RefCell::new(Model::default())), SEGMENTS_OF_64K).await);
    }
    let keys = [partition(1, 1), partition(1, 0)];
    assert_eq!(keys.map(core_of(2)), [0, 1]);
    for (core, key) in cores.iter_mut().zip(keys) {
        core.create([key], SEGMENTS_OF_64K);
    }
    let [failing, other] = &cores[..] else { panic!("two cores") };
    failing.append(keys[0], 1, 100, 1).await;
    failing.settle(&io).await;
    disk.fail_syncs(2);
    failing.storage.checkpoint().await.expect("checkpoint");
    disk.heal();
    let is_dealt_with = failing.storage.stats().segments_rewritten > 0;
    // More than a file of the journal takes, so that one is used again.
    for salt in 0..60 {
        other.append(keys[1], 1, 60_000, salt).await;
    }
    while other.storage.stats().checkpoints == 0 {
        assert_eq!(other.storage.poison(), None);
        io.sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(other.storage.poison(), None);
    is_dealt_with
}

#[test]
fn a_failed_sync_that_one_core_dealt_with_stops_no_other() {
    let mut dealt_with = 0;
    for seed in 0..20 {
        let world = World::new(seed);
        let host = world.host("node");
        let (io, result) = (host.executor(), Rc::new(Cell::new(None)));
        let work = {
            let (io, disk, result) = (io.clone(), host.disk(), Rc::clone(&result));
            async move { result.set(Some(fail_beside(io, disk).await)) }
        };
        io.spawn(Priority::Foreground, work).detach();
        let outcome = world.run_until(|| result.get().is_some(), Duration::from_secs(60));
        assert_eq!(outcome, Outcome::Done, "seed {seed}");
        dealt_with += u32::from(result.get() == Some(true));
    }
    assert!(dealt_with > 2, "{dealt_with} failures were dealt with");
}
