//! Snapshots on a simulated disk: which one counts, and what a power cut leaves.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use ringlog_io::Priority;
use ringlog_io::sim::{Host, UnsyncedData, World};
use ringlog_protocol::ids::{PartitionIndex, TopicId};

use super::*;

const KEY: TopicPartition = TopicPartition { topic: TopicId([1; 16]), partition: PartitionIndex(0) };
const DATA: &str = "/data";

struct Disk {
    world: World,
    host: Host,
}

impl Disk {
    fn new(seed: u64) -> Disk {
        let world = World::new(seed);
        let host = world.host("host");
        let disk = Disk { world, host };
        disk.run(async |files| {
            files.io.create_directories(Path::new(DATA)).await.expect("an empty disk");
            files.io.sync_directory(Path::new("/")).await.expect("a sound disk");
        });
        disk
    }

    /// What `work` comes to on an executor of its own.
    fn run<T: 'static>(&self, work: impl AsyncFnOnce(MachineSnapshots) -> T + 'static) -> T {
        let io = self.host.executor();
        let files = MachineSnapshots { io: io.clone(), data: PathBuf::from(DATA), key: KEY };
        let slot = Rc::new(RefCell::new(None));
        let result = Rc::clone(&slot);
        io.spawn(Priority::Foreground, async move {
            let value = work(files).await;
            *result.borrow_mut() = Some(value);
        })
        .detach();
        self.world.run_until(|| slot.borrow().is_some(), Duration::from_secs(60));
        slot.take().expect("it ends")
    }

    fn save(&self, offset: i64) {
        self.run(async move |files| files.save(&snapshot(offset)).await).expect("a sound disk");
    }

    /// Offset of the one that counts, or the error's text.
    fn newest(&self, log_start: i64, log_end: i64) -> Result<Option<i64>, String> {
        let found =
            self.run(async move |files| files.newest_within(Offset(log_start)..=Offset(log_end)).await);
        let found = found.map_err(|error| error.to_string())?;
        Ok(found.map(|found| {
            assert_eq!(found, snapshot(found.offset.0), "as it was saved");
            found.offset.0
        }))
    }

    fn names(&self) -> Vec<String> {
        self.run(async |files| files.names().await).expect("a sound disk")
    }

    fn damage(&self, offset: i64) {
        self.run(async move |files| {
            let path = files.folder().join(machine_snapshot_name(Offset(offset)));
            let mut bytes = files.io.read_file(&path).await.expect("it is there");
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
            files.io.replace_file(&path, bytes).await.expect("a sound disk");
        });
    }
}

fn snapshot(offset: i64) -> MachineSnapshot {
    let records = (0..offset % 7 + 1).map(|number| format!("{offset}: {number}").into_bytes()).collect();
    MachineSnapshot { offset: Offset(offset), records }
}

#[test]
fn the_newest_within_the_log_counts() {
    let disk = Disk::new(1);
    assert_eq!(disk.newest(0, 0), Ok(None), "no folder yet");
    [10, 30, 20].into_iter().for_each(|offset| disk.save(offset));
    assert_eq!(disk.newest(0, 100), Ok(Some(30)));
    assert_eq!(disk.newest(30, 30), Ok(Some(30)));
    disk.run(async |files| files.remove_below(Offset(30)).await).expect("a sound disk");
    assert_eq!(disk.names(), ["00000000000000000030-v1.snapshot"]);
    assert_eq!(disk.newest(30, 40), Ok(Some(30)));
}

#[test]
fn a_damaged_newest_one_gives_way_to_an_older_one_that_the_log_still_covers() {
    let disk = Disk::new(2);
    [10, 20].into_iter().for_each(|offset| disk.save(offset));
    disk.damage(20);
    assert_eq!(disk.newest(10, 100), Ok(Some(10)));
    let refused = disk.newest(11, 100).expect_err("10 is below the log's start");
    assert!(refused.contains("begins at offset 11"), "{refused}");
    assert!(refused.contains("00000000000000000020-v1.snapshot: stated checksum"), "{refused}");
    assert!(refused.contains("00000000000000000010-v1.snapshot: it ends at an offset below"), "{refused}");
    assert_eq!(disk.newest(0, 5), Ok(None), "all of them are ahead, and the log is whole");
}

#[test]
fn a_snapshot_ahead_of_the_log_is_never_used_even_when_the_log_grows_past_it() {
    let disk = Disk::new(3);
    [10, 20].into_iter().for_each(|offset| disk.save(offset));
    assert_eq!(disk.newest(5, 15), Ok(Some(10)));
    assert_eq!(disk.newest(5, 50), Ok(Some(10)), "other records are there by now");
    let kept = "00000000000000000020-v1.snapshot.ahead".to_owned();
    assert!(disk.names().contains(&kept), "{:?}", disk.names());
    let refused = disk.newest(3, 4).expect_err("nothing covers what came before 3");
    assert!(refused.contains("the log ends at 4"), "{refused}");
}

#[test]
fn a_log_that_begins_later_without_a_snapshot_is_refused() {
    let disk = Disk::new(4);
    let refused = disk.newest(7, 9).expect_err("nothing is there");
    assert!(refused.contains("/data/") && refused.contains("there is none"), "{refused}");
}

#[test]
fn a_snapshot_of_a_newer_version_is_named() {
    let disk = Disk::new(5);
    disk.run(async |files| {
        let path = files.folder().join("00000000000000000008-v2.snapshot");
        files.io.create_directories(&files.folder()).await.expect("a sound disk");
        files.io.replace_file(&path, b"?".to_vec()).await.expect("a sound disk");
    });
    let refused = disk.newest(8, 9).expect_err("another format");
    assert!(refused.contains("has version 2, this build reads 1"), "{refused}");
}

#[test]
fn what_was_saved_survives_a_power_cut_and_half_of_the_next_one_does_no_harm() {
    for seed in 0..40 {
        let disk = Disk::new(seed);
        disk.save(10);
        disk.host.crash_with(UnsyncedData::Lost);
        assert_eq!(disk.newest(10, 10), Ok(Some(10)), "seed {seed}: the names above it last too");
        let io = disk.host.executor();
        let files = MachineSnapshots { io: io.clone(), data: PathBuf::from(DATA), key: KEY };
        let saved = Rc::new(RefCell::new(None));
        let result = Rc::clone(&saved);
        io.spawn(Priority::Foreground, async move {
            let done = files.save(&snapshot(20)).await;
            *result.borrow_mut() = Some(done);
        })
        .detach();
        disk.world.run_for(Duration::from_micros(seed * 40));
        let is_saved = saved.borrow().is_some();
        disk.host.crash();
        let found = disk.newest(10, 30);
        let expected = if is_saved { vec![Ok(Some(20))] } else { vec![Ok(Some(10)), Ok(Some(20))] };
        assert!(expected.contains(&found), "seed {seed}: {found:?}, saved: {is_saved}");
        disk.run(async |files| files.remove_below(Offset(25)).await).expect("a sound disk");
        assert_eq!(disk.names(), Vec::<String>::new(), "seed {seed}: halves go too");
    }
}
