//! A data directory of each format version that was ever written, committed as bytes: this build opens it and finds what is
//! committed beside it. `tests/golden/v<version>/` holds `directory.zst` (the files), `records.zst` (each partition's bytes
//! from its log start on) and `state.txt` (the rest). Nothing writes there but `regenerate`, which overwrites no version.
//!
//! An archive is zstd over, for each file in order of names: length of the name u32, name, length u64, bytes; little-endian.

mod golden_support;
mod storage_support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::BytesMut;
use golden_support::*;
use ringlog_io::{AlignedBuffer, Io};
use ringlog_protocol::ids::{LeaderEpoch, Offset, PartitionIndex, ProducerId, TopicId, TopicPartition};
use ringlog_protocol::records::batch::{BatchHeader, BatchView, batches, seal};
use ringlog_raft::hard_state::HardState;
use ringlog_shard::journal::entry::{Entry, EntryBody, SyncedTo};
use ringlog_shard::journal::format::{FORMAT_VERSION, Manifest, generation_name};
use ringlog_shard::journal::frame::{FrameBuilder, FrameOrigin};
use ringlog_shard::journal::reader::{FoundBody, judge_core, scan_file};
use ringlog_shard::partition::{AppendError, IncomingBatch};
use ringlog_shard::storage::sidecar::Sidecar;
use ringlog_shard::storage::sums::SumPlace;
use ringlog_shard::storage::{LogPiece, RecoveredPartition, RecoveryReport};
use ringlog_shard::store::Store;
use storage_support::*;

fn version_folder(version: u16) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/v{version}"))
}

fn read_archive(version: u16, name: &str) -> Files {
    unpack(&fs::read(version_folder(version).join(name)).expect("committed"))
}

/// What is committed of a version, its directory unpacked below a folder of its own.
struct Golden {
    folder: tempfile::TempDir,
    records: Files,
    state: String,
}

impl Golden {
    fn unpacked(version: u16) -> Golden {
        let folder = tempfile::tempdir().expect("temp");
        for (name, bytes) in read_archive(version, "directory.zst") {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().expect("below the folder")).expect("writable");
            fs::write(path, bytes).expect("writable");
        }
        let state = fs::read_to_string(version_folder(version).join("state.txt")).expect("committed");
        Golden { folder, records: read_archive(version, "records.zst"), state }
    }
}

/// A line of `state.txt`. A hard state is what the journal holds, not what the opened partition made of it.
fn state_line(recovered: &RecoveredPartition, log_start: Offset, log_end: Offset) -> String {
    let RecoveredPartition { key, hard_state, hard_state_sequence, next_sequence, .. } = recovered;
    let state = hard_state.as_deref().unwrap_or_default();
    let mut hex = String::new();
    for byte in state {
        write!(hex, "{byte:02x}").expect("a string takes all");
    }
    format!(
        "{} log_start={log_start} log_end={log_end} next_sequence={next_sequence} hard_state={hard_state_sequence}:{hex}\n",
        name_of(*key)
    )
}

/// Every byte that the partition serves.
async fn read_partition(io: &Io, store: &Store, key: TopicPartition) -> Vec<u8> {
    let view = store.view(key).expect("leads");
    let (mut from, mut all) = (view.log_start, Vec::new());
    while from < view.high_watermark {
        let plan = store.plan_read(key, from, 40_000, true).expect("in range");
        let read = plan.run(io).await.expect("sound");
        assert!(read.next_offset > from);
        for piece in read.pieces {
            match piece {
                LogPiece::Memory(piece) => all.extend_from_slice(piece.bytes()),
                LogPiece::File { file, position, length } => {
                    all.extend_from_slice(
                        &io.read_at(&file, position, length as usize).await.expect("sound"),
                    );
                }
            }
        }
        from = read.next_offset;
    }
    all
}

/// Opens a directory on so many cores; each partition's records and its line of `state.txt`.
async fn found_in(io: &Io, path: &Path, cores: u32) -> (Node, Files, String) {
    let node = Node::start(io, path, cores).await;
    let (mut records, mut state) = (Files::new(), String::new());
    for recovered in &node.recovered {
        let store = node.store_of(recovered.key);
        assert_eq!(store.unhealthy(), vec![]);
        let (log_start, log_end) =
            store.with_log(recovered.key, |log| (log.log_start(), log.log_end())).expect("open");
        assert_eq!(store.view(recovered.key).expect("leads").high_watermark, log_end);
        state += &state_line(recovered, log_start, log_end);
        records.insert(name_of(recovered.key), read_partition(io, store, recovered.key).await);
    }
    (node, records, state)
}

fn incoming(bytes: &[u8]) -> IncomingBatch {
    let header = BatchHeader::parse(bytes).expect("a batch");
    IncomingBatch { header, bytes: BytesMut::from(bytes), buffer_bytes: bytes.len() as u32 }
}

/// The last five batches of each producer are known again, the one after them is taken, and one further on is not.
fn check_producers(store: &Store, key: TopicPartition, records: &[u8]) -> usize {
    let mut by_producer: BTreeMap<ProducerId, Vec<BatchView<'_>>> = BTreeMap::new();
    for view in batches(records) {
        let view = view.expect("sound");
        if view.header.producer_id != ProducerId::NONE {
            by_producer.entry(view.header.producer_id).or_default().push(view);
        }
    }
    for (producer, sent) in &by_producer {
        for view in sent.iter().rev().take(5) {
            let again = store.append(key, incoming(view.bytes), None).expect("known");
            assert!(again.duplicate, "{key}: {producer} at {}", view.header.base_offset);
            assert_eq!(again.base_offset, view.header.base_offset);
        }
        let last = sent.last().expect("not empty");
        let after = |gap: i32| {
            let mut bytes = last.bytes.to_vec();
            let sequence = last.header.base_sequence.0 + last.header.record_count + gap;
            bytes[53..57].copy_from_slice(&sequence.to_be_bytes());
            seal(&mut bytes);
            store.append(key, incoming(&bytes), None)
        };
        assert!(matches!(after(1), Err(AppendError::Producer { .. })), "{key}: {producer} left one out");
        assert!(after(0).is_ok_and(|taken| !taken.duplicate), "{key}: {producer} goes on");
    }
    by_producer.len()
}

/// What version 1 asks for, on one core and on three, on each driver: the directory was written by two.
fn check_opens(version: u16) {
    on_each_driver(|io| async move {
        for cores in [1, 3] {
            let golden = Golden::unpacked(version);
            let (node, records, state) = found_in(&io, golden.folder.path(), cores).await;
            let RecoveryReport { checkpointed, deleted, restored_bytes, .. } = node.report;
            assert!(checkpointed >= 2 && deleted == 1 && restored_bytes > 0, "{:?}", node.report);
            assert_eq!(state, golden.state, "on {cores} cores");
            assert_eq!(records.keys().collect::<Vec<_>>(), golden.records.keys().collect::<Vec<_>>());
            for (name, bytes) in &records {
                assert!(*bytes == golden.records[name], "{name}: other bytes on {cores} cores");
            }
            let mut producers = 0;
            for recovered in &node.recovered {
                let state = recovered.hard_state.as_deref().expect("each led");
                let term = HardState::decode(state).expect("version 1").term;
                let view = node.store_of(recovered.key).view(recovered.key).expect("leads");
                assert!(i64::from(view.leader_epoch.0) > i64::from(term.0), "a new term");
                let records = &records[&name_of(recovered.key)];
                producers += check_producers(node.store_of(recovered.key), recovered.key, records);
            }
            assert_eq!(producers, 4);
        }
    });
}

#[test]
fn version_1_opens_on_other_numbers_of_cores_and_holds_what_it_held() {
    check_opens(1);
}

/// One whole frame, the example of docs/reference/format.md: a change here is a new format version.
#[test]
fn a_frame_has_these_bytes() {
    let origin = FrameOrigin { generation: 3, salt: 0x5A17, core: 2 };
    let key = TopicPartition { topic: TopicId([0xAB; 16]), partition: PartitionIndex(3) };
    let synced = SyncedTo {
        through: 7,
        epoch: LeaderEpoch(5),
        offset: Offset(9),
        segment_base: Offset(1),
        position: 0x1122,
    };
    let mut frame = FrameBuilder::new(AlignedBuffer::new());
    frame.push(&Entry { key, sequence: 258, carried: true, body: EntryBody::SyncedTo(synced) });
    let mut expected = b"RLJF\x01\x00\x38\x00".to_vec();
    expected.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0, 0x17, 0x5A, 0, 0, 0, 0, 0, 0]);
    expected.extend_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend_from_slice(&[72, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0x16, 0xDF, 0x16, 0x16]);
    expected.extend_from_slice(&[72, 0, 0, 0, 7, 1, 0, 0]);
    expected.extend_from_slice(&[0xAB; 16]);
    expected.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
    expected.extend_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 0x22, 0x11, 0, 0, 5, 0, 0, 0]);
    expected.resize(4096, 0);
    assert_eq!(frame.seal(origin, 9, 3).as_slice(), expected);
}

/// The files are worth their place: each kind of entry that is written stands in the journal, and each kind of file is there.
#[test]
fn version_1_holds_every_kind_of_entry_and_file() {
    on_driver(|io| async move {
        let golden = Golden::unpacked(1);
        let path = golden.folder.path();
        let manifest =
            Manifest::decode(&fs::read(path.join("journal/CURRENT")).expect("there")).expect("sound");
        let folder = path.join("journal").join(generation_name(manifest.generation));
        let (mut kinds, mut cores) = (BTreeMap::<&str, usize>::new(), BTreeMap::new());
        for entry in fs::read_dir(&folder).expect("there") {
            let path = entry.expect("readable").path();
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            let core: u32 = name[5..9].parse().expect("core-<core>-<number>.journal");
            let scan = scan_file(&io, &path, core, &manifest).await.expect("readable");
            cores.entry(core).or_insert_with(Vec::new).push(scan);
        }
        assert_eq!(cores.len(), 2);
        for (_, files) in cores {
            let scan = judge_core(files);
            assert_eq!(scan.corruption, Vec::<String>::new());
            for entry in scan.runs.iter().flat_map(|run| &run.entries) {
                let kind = match &entry.body {
                    FoundBody::Data { .. } => "data",
                    FoundBody::Reference(reference) if reference.goes_on => "reference that goes on",
                    FoundBody::Reference(_) => "reference",
                    FoundBody::Truncate { .. } => "truncate",
                    FoundBody::LogStart { .. } if entry.carried => "log start, carried",
                    FoundBody::LogStart { .. } => "log start",
                    FoundBody::Delete => "delete",
                    FoundBody::HardState { .. } if entry.carried => "hard state, carried",
                    FoundBody::HardState { .. } => "hard state",
                    FoundBody::SyncedTo(_) => "synced-to",
                    FoundBody::Begin { .. } => "begin",
                };
                *kinds.entry(kind).or_default() += 1;
            }
        }
        let expected = [
            "data",
            "delete",
            "hard state",
            "hard state, carried",
            "log start",
            "log start, carried",
            "reference",
            "reference that goes on",
            "synced-to",
        ];
        assert_eq!(kinds.keys().copied().collect::<Vec<_>>(), expected, "nothing writes truncations yet");
        let files = read_archive(1, "directory.zst");
        let closed = files.iter().filter(|(name, bytes)| name.ends_with(".sum") && is_closed(name, bytes));
        let names: Vec<_> = files.keys().collect();
        assert!(closed.count() >= 2, "closed sidecars among {names:?}");
        assert!(files.keys().any(|name| name.starts_with("checkpoints/")));
    });
}

fn is_closed(name: &str, bytes: &[u8]) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    let [_, topic, partition, file] = parts[..] else { panic!("{name}") };
    let key = TopicPartition {
        topic: topic.parse().expect("a topic id"),
        partition: PartitionIndex(partition.parse().expect("a number")),
    };
    let base = Offset(file.trim_end_matches(".sum").parse().expect("an offset"));
    let decoded = Sidecar::decode(SumPlace { key, base }, bytes);
    decoded.is_ok_and(|sidecar| !sidecar.sums.is_empty())
}

/// Writes the directory of the version that this build writes. A version that is there stays as it is: what was written once is
/// what must open for ever.
#[test]
#[ignore = "writes tests/golden"]
fn regenerate() {
    let folder = version_folder(FORMAT_VERSION);
    assert!(!folder.exists(), "{} is there; a new format is a new version", folder.display());
    let directory = write_directory();
    let temp = tempfile::tempdir().expect("temp");
    for (name, bytes) in &directory {
        let path = temp.path().join(name);
        fs::create_dir_all(path.parent().expect("below the folder")).expect("writable");
        fs::write(path, bytes).expect("writable");
    }
    let (records, state) = on_driver(|io| async move {
        let (_node, records, state) = found_in(&io, temp.path(), 2).await;
        (records, state)
    });
    fs::create_dir_all(&folder).expect("writable");
    fs::write(folder.join("directory.zst"), pack(&directory)).expect("writable");
    fs::write(folder.join("records.zst"), pack(&records)).expect("writable");
    fs::write(folder.join("state.txt"), state).expect("writable");
}
