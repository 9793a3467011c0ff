//! One partition's replay on a simulated disk, from plans made by hand.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use ringlog_io::sim::{Outcome, World};
use ringlog_protocol::ids::{LeaderEpoch, PartitionIndex, TopicId};

use super::*;
use crate::journal::entry::OffsetRange;
use crate::journal::reader::FoundBody;
use crate::journal::recovery::plan::plan_partition;
use crate::storage::recovered::SegmentInfo;

const KEY: TopicPartition = TopicPartition { topic: TopicId([3; 16]), partition: PartitionIndex(0) };

fn simulate<F: Future<Output = ()> + 'static>(main: impl FnOnce(Io) -> F) {
    let world = World::new(1);
    let io = world.host("node").executor();
    let done = Rc::new(Cell::new(false));
    let (work, set) = (main(io.clone()), Rc::clone(&done));
    io.spawn(Priority::Foreground, async move {
        work.await;
        set.set(true);
    })
    .detach();
    assert_eq!(world.run_until(|| done.get(), Duration::from_secs(60)), Outcome::Done);
}

fn entry(sequence: u64, body: FoundBody) -> FoundEntry {
    FoundEntry { key: KEY, sequence, carried: false, body }
}

async fn write(io: &Io, path: &Path, bytes: &'static [u8]) {
    io.create_directories(path.parent().expect("below a folder")).await.expect("writable");
    let file = io.open(path, OpenOptions::READ_WRITE_CREATE).await.expect("writable");
    io.write_at(&file, 0, vec![Bytes::from_static(bytes)]).await.expect("writable");
    io.sync_all(&file).await.expect("writable");
}

/// The log is cut in its first segment, then goes on in a second one whose bytes only a reference names, and a hard state
/// shows that they were acknowledged.
async fn replay(io: &Io, second: &'static [u8]) -> (RecoveredPartition, Vec<u8>, bool) {
    let folder = PathBuf::from("/data/topic/0");
    let (first_path, second_path) =
        (folder.join(segment_name(Offset(0))), folder.join(segment_name(Offset(5))));
    write(io, &first_path, b"kept.cut off").await;
    write(io, &sidecar_path(&first_path), b"sums of all twelve").await;
    write(io, &second_path, second).await;
    let range = OffsetRange { base: Offset(5), end: Offset(9), epoch: LeaderEpoch(2) };
    let reference = Reference {
        segment_base: Offset(5),
        position: 0,
        length: 8,
        crc: crc32fast::hash(b"appended"),
        range,
        goes_on: false,
    };
    let entries = vec![
        entry(1, FoundBody::Truncate { end_offset: Offset(5), segment_base: Offset(0), position: 5 }),
        entry(2, FoundBody::Reference(reference)),
        entry(3, FoundBody::HardState { state: Bytes::from_static(b"vote") }),
    ];
    let segments = vec![
        SegmentInfo { base: Offset(0), bytes: 12 },
        SegmentInfo { base: Offset(5), bytes: second.len() as u64 },
    ];
    let plan = plan_partition(entries, &segments, false);
    let found = Folder { exists: true, segments, ..Folder::default() };
    let mut replay = PartitionReplay { io, folder, has_folder: true, restored_bytes: 0, verified_bytes: 0 };
    let recovered = replay.run(Work { key: KEY, plan, folder: found }).await.expect("replayed");
    let first = io.read_file(&first_path).await.expect("there");
    let has_sidecar = io.path_exists(&sidecar_path(&first_path)).await.expect("readable");
    (recovered.expect("not deleted"), first, has_sidecar)
}

#[test]
fn a_truncation_cuts_its_segment_and_its_sidecar_goes() {
    simulate(|io| async move {
        let (recovered, first, has_sidecar) = replay(&io, b"appended").await;
        assert_eq!((recovered.damage, first.as_slice(), has_sidecar), (None, &b"kept."[..], false));
        assert_eq!(recovered.covered.map(|end| end.offset), Some(Offset(9)));
    });
}

#[test]
fn nothing_is_cut_where_a_later_segment_lost_what_a_reference_names() {
    simulate(|io| async move {
        for second in [&b"appendeX"[..], b"app"] {
            let (recovered, first, has_sidecar) = replay(&io, second).await;
            let damage = recovered.damage.expect("the reference does not check");
            assert!(damage.path.ends_with(segment_name(Offset(5))) && damage.position == 0, "{damage}");
            assert_eq!((first.as_slice(), has_sidecar), (&b"kept.cut off"[..], true));
            assert_eq!(recovered.covered.map(|end| end.offset), Some(Offset(9)), "it was acknowledged");
            // The next round begins without the marker of this one.
            io.remove_file(&PathBuf::from("/data/topic/0").join(DAMAGE_MARKER)).await.expect("marked");
        }
    });
}
