//! The budget of open segment files, and the scrub that reads them all.

use std::cell::RefCell;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::rc::Rc;

use crate::storage_support::*;
use ringlog_io::{Io, ListenOptions, Priority};
use ringlog_protocol::ids::Offset;
use ringlog_shard::egress::{Egress, EgressMode, Outgoing, Outlet};
use ringlog_shard::storage::{LogPiece, LogSettings, ScrubReport, StorageSettings};

const BUDGET: u64 = 64;
const SEGMENTS: usize = 2_000;
/// Every batch closes its segment, next to nothing stays in memory, and 64 files may be open.
const TIGHT: StorageSettings =
    StorageSettings { tail_bytes_max: 256 * 1024, segment_files_max: BUDGET, ..SMALL };
const SMALL_SEGMENTS: LogSettings = LogSettings { segment_bytes: 1, ..LogSettings::KEEP_ALL };

async fn open(io: &Io, path: &Path) -> Core {
    let directory = open_directory(io, path).await;
    let storage = start(io, &directory, 1, TIGHT).await.pop().expect("one core");
    Core::open(storage, Rc::new(RefCell::new(Model::default())), SMALL_SEGMENTS).await
}

fn segment_files_open(core: &Core) -> u64 {
    let stats = core.storage.stats();
    stats.files_open - stats.journal.files
}

/// Descriptors of this process that are segments.
fn descriptors(path: &Path) -> usize {
    let entries = std::fs::read_dir("/proc/self/fd").expect("Linux").flatten();
    let targets = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets
        .filter(|target| target.starts_with(path) && target.extension().is_some_and(|kind| kind == "log"))
        .count()
}

#[test]
fn two_thousand_segments_are_served_with_sixty_four_files() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let keys = [partition(1, 0), partition(1, 1)];
        {
            let mut core = open(&io, folder.path()).await;
            core.create(keys, SMALL_SEGMENTS);
            for salt in 0..SEGMENTS as u64 {
                core.append(keys[(salt % 2) as usize], 1, 100, salt).await;
                if salt % 100 == 99 {
                    core.settle(&io).await;
                }
            }
            core.settle(&io).await;
            core.storage.checkpoint().await.expect("checkpoint");
            core.storage.checkpoint().await.expect("checkpoint");
            assert_eq!(core.storage.stats().segments, SEGMENTS as u64);
            assert!(segment_files_open(&core) <= BUDGET, "{} open", segment_files_open(&core));
        }
        let core = open(&io, folder.path()).await;
        assert!(segment_files_open(&core) <= BUDGET, "{} open after the start", segment_files_open(&core));
        for key in keys {
            let bytes = read_all(&io, &core.storage, core.logs[&key], 1000).await;
            assert_eq!(bytes.len() as u64, core.storage.log(core.logs[&key]).size_bytes());
        }
        // The plan that opened the last one came after the look at the budget.
        assert!(
            segment_files_open(&core) <= BUDGET + 1,
            "{} open after reading all",
            segment_files_open(&core)
        );
        assert!(descriptors(folder.path()) as u64 <= BUDGET + 1, "{} in truth", descriptors(folder.path()));
        let held =
            core.storage.plan_read(core.logs[&keys[0]], Offset(3), Offset(4), 1000, true).expect("in range");
        let held = held.run(&io).await.expect("read");
        for key in keys {
            read_all(&io, &core.storage, core.logs[&key], 1000).await;
        }
        assert_eq!(held.pieces.len(), 1, "who holds a file keeps it");
        if let LogPiece::File { file, position, length } = &held.pieces[0] {
            let bytes = io.read_at(file, *position, *length as usize).await.expect("still open");
            assert_eq!(bytes.len() as u32, *length);
        }
    });
}

#[test]
fn a_reply_of_a_thousand_segments_holds_few_files() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let key = partition(1, 0);
        let mut written = Vec::new();
        {
            let mut core = open(&io, folder.path()).await;
            core.create([key], SMALL_SEGMENTS);
            for salt in 0..1_000 {
                core.append(key, 1, 100, salt).await;
                if salt % 100 == 99 {
                    core.settle(&io).await;
                }
            }
            core.settle(&io).await;
            core.storage.checkpoint().await.expect("checkpoint");
            written.extend(read_all(&io, &core.storage, core.logs[&key], 1000).await);
        }
        let core = open(&io, folder.path()).await;
        let plan = |offset: i64| {
            core.storage.plan_read(core.logs[&key], Offset(offset), Offset(offset + 1), 1000, true)
        };
        let plans: Vec<_> = (0..1_000).map(|offset| plan(offset).expect("in range")).collect();
        let mut held = Vec::new();
        for plan in plans {
            held.push(plan.run(&io).await.expect("read"));
        }
        assert!(descriptors(folder.path()) as u64 <= BUDGET + 1, "{} in truth", descriptors(folder.path()));
        let mut read = Vec::new();
        for piece in held.iter().flat_map(|read| &read.pieces) {
            match piece {
                LogPiece::Memory(piece) => read.extend_from_slice(piece.bytes()),
                LogPiece::File { file, position, length } => {
                    read.extend(io.read_at(file, *position, *length as usize).await.expect("open"));
                }
            }
        }
        assert_eq!(read, written);
        // While that reply is not sent the next one is read: what the first holds open counts as open.
        for offset in (0..1_000).rev() {
            let plan = plan(offset).expect("in range");
            held.push(plan.run(&io).await.expect("read"));
        }
        assert!(descriptors(folder.path()) as u64 <= BUDGET + 1, "{} in truth", descriptors(folder.path()));
    });
}

#[test]
fn a_checkpoint_of_many_logs_leaves_few_files_open() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let mut core = open(&io, folder.path()).await;
        let keys: Vec<_> = (0..300).map(|number| partition(1, number)).collect();
        core.create(keys.clone(), SMALL_SEGMENTS);
        for (salt, key) in keys.into_iter().enumerate() {
            core.append(key, 1, 100, salt as u64).await;
        }
        core.settle(&io).await;
        core.storage.checkpoint().await.expect("checkpoint");
        assert!(descriptors(folder.path()) as u64 <= BUDGET + 1, "{} in truth", descriptors(folder.path()));
    });
}

#[test]
fn a_reply_that_gives_up_memory_for_files_opens_them_one_by_one() {
    on_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let key = partition(1, 0);
        let directory = open_directory(&io, folder.path()).await;
        let settings = StorageSettings { tail_bytes_max: 16 << 20, ..TIGHT };
        let storage = start(&io, &directory, 1, settings).await.pop().expect("one core");
        let mut core = Core::open(storage, Rc::new(RefCell::new(Model::default())), SMALL_SEGMENTS).await;
        core.create([key], SMALL_SEGMENTS);
        for salt in 0..500 {
            core.append(key, 1, 5_000, salt).await;
            if salt % 50 == 49 {
                core.settle(&io).await;
            }
        }
        core.settle(&io).await;
        core.storage.checkpoint().await.expect("checkpoint");
        let (mut pieces, mut written) = (Vec::new(), Vec::new());
        for offset in 0..500 {
            let id = core.logs[&key];
            let plan = core.storage.plan_read(id, Offset(offset), Offset(offset + 1), 10_000, true);
            pieces.extend(plan.expect("in range").run(&io).await.expect("read").pieces);
        }
        for piece in &pieces {
            let LogPiece::Memory(piece) = piece else { panic!("this reads the tail") };
            written.extend_from_slice(piece.bytes());
        }
        let sent = sent_to_a_peer_that_comes_late(&io, pieces, || descriptors(folder.path()) as u64).await;
        assert_eq!(sent, written);
    });
}

/// Sends `pieces` by an egress that may keep nothing in memory, to a peer that reads once the descriptors were counted.
async fn sent_to_a_peer_that_comes_late(
    io: &Io,
    pieces: Vec<LogPiece>,
    descriptors: impl Fn() -> u64,
) -> Vec<u8> {
    let length = pieces.iter().map(LogPiece::bytes).sum::<u64>() as usize;
    let address = "127.0.0.1:0".parse().expect("an address");
    let listener = io.listen(address, &ListenOptions::default()).expect("listen");
    let connecting = io.spawn(Priority::Foreground, {
        let (io, address) = (io.clone(), listener.local_address());
        async move { io.connect(address).await.expect("connect") }
    });
    let (ours, _) = io.accept(&listener).await.expect("accept");
    let theirs = connecting.await;
    let pieces = pieces.into_iter().map(|piece| match piece {
        LogPiece::Memory(piece) => Outgoing::Tail(piece),
        LogPiece::File { file, position, length } => Outgoing::File { file, position, length },
    });
    let pieces = pieces.collect();
    let sending = io.spawn(Priority::Foreground, {
        let io = io.clone();
        async move {
            let egress = Egress::new(EgressMode::Auto, 0);
            egress.send(&io, &ours, &Outlet::default(), pieces).await.expect("sent");
            egress.counters().demotions.get()
        }
    });
    let mut received = Vec::with_capacity(length);
    while received.len() < length {
        assert!(descriptors() <= BUDGET + 2, "{} in truth while a reply is sent", descriptors());
        received.extend_from_slice(&io.recv_some(&theirs).await.expect("receive"));
    }
    assert_eq!(sending.await, 1, "its memory was exchanged for files");
    received
}

#[test]
fn the_scrub_finds_what_changed_and_nothing_else() {
    on_each_driver(|io| async move {
        let folder = tempfile::tempdir().expect("temp");
        let key = partition(1, 0);
        let directory = open_directory(&io, folder.path()).await;
        let storage = start(&io, &directory, 1, SMALL).await.pop().expect("one core");
        let settings = LogSettings { segment_bytes: 300_000, ..LogSettings::KEEP_ALL };
        let mut core = Core::open(storage, Rc::new(RefCell::new(Model::default())), settings).await;
        core.create([key], settings);
        for salt in 0..30 {
            core.append(key, 1, 50_000, salt).await;
            core.settle(&io).await;
        }
        core.storage.checkpoint().await.expect("checkpoint");
        core.storage.checkpoint().await.expect("checkpoint");
        let sound = core.storage.scrub(1 << 40).await;
        let bytes = core.storage.log(core.logs[&key]).size_bytes();
        assert_eq!((sound.errors, sound.bytes + sound.unknown_bytes), (0, bytes));
        assert!(sound.bytes > bytes / 2, "{sound:?}");
        let file = segment_path(folder.path(), 0);
        let handle = std::fs::OpenOptions::new().read(true).write(true).open(&file).expect("there");
        let mut original = [0; 4];
        handle.read_exact_at(&mut original, 70_000).expect("long enough");
        handle.write_all_at(b"rot!", 70_000).expect("writable");
        let found = core.storage.scrub(1 << 40).await;
        assert_eq!(found, ScrubReport { errors: 1, bytes: sound.bytes - 65_536, ..sound });
        let damaged = core.storage.damaged();
        assert_eq!(damaged.len(), 1);
        assert_eq!((damaged[0].1.path.clone(), damaged[0].1.position), (file, 65_536));
        assert_eq!((core.storage.stats().scrub_errors, core.storage.stats().scrub_passes), (1, 2));
        handle.write_all_at(&original, 70_000).expect("writable");
        assert_eq!(core.storage.scrub(1 << 40).await, sound);
        assert_eq!(core.storage.damaged(), [], "what is sound again is no damage");
    });
}

fn segment_path(folder: &Path, base: i64) -> std::path::PathBuf {
    let topic = folder.join("data").join(partition(1, 0).topic.to_string());
    topic.join("0").join(format!("{base:020}.log"))
}
