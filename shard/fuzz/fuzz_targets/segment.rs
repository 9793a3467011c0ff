//! Any bytes as a partition's segment files, and as batches with right lengths and CRCs whose records are any bytes: opened
//! as a start opens them, read, and looked up by time.
//!
//! Whatever they hold, the log opens; what it then serves is whole batches that check and go on from its start to its end.
//! Records are read and decompressed under a bound. Memory is held by the fuzzer's own limit (see the README).
#![no_main]

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use ringlog_io::sim::World;
use ringlog_io::{Io, OpenOptions, Priority};
use ringlog_protocol::ids::{LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition};
use ringlog_protocol::records::batch::{BATCH_HEADER_BYTES, BatchHeader, batches, check_crc, seal};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::reader::read_batch;
use ringlog_shard::storage::folder::{partition_folder, segment_name};
use ringlog_shard::storage::recovered::CoveredEnd;
use ringlog_shard::storage::{
    CoreStorage, LogId, LogPiece, LogSettings, ReadError, RecoveredPartition, SegmentInfo, StorageSettings,
};

const KEY: TopicPartition = TopicPartition { topic: TopicId([1; 16]), partition: PartitionIndex(0) };
/// What a batch of the input may decompress to.
const DECOMPRESSED_BYTES_MAX: usize = 256 * 1024;

/// Segment files, and how far the journal speaks for them.
struct Input {
    files: Vec<(Offset, Vec<u8>)>,
    covered: Option<CoveredEnd>,
}

fuzz_target!(|input: &[u8]| {
    let Some((&[mode, covered], bytes)) = input.split_first_chunk::<2>() else { return };
    let files = if mode % 4 == 0 { vec![(Offset(0), bytes.to_vec())] } else { files(bytes) };
    let (base, last) = files.last().expect("one file at least");
    // Most often nothing is acknowledged, sometimes the first quarters of the last file.
    let position = last.len() / 4 * usize::from(covered & 3);
    let covered = (covered & 4 != 0).then(|| CoveredEnd {
        offset: Offset(base.0 + i64::from(covered >> 3)),
        epoch: LeaderEpoch(1),
        segment_base: *base,
        position: position as u32,
    });
    run(Input { files, covered });
});

/// Files of batches that check. Of each batch four bytes say: how it goes on, its codec, number of records and length.
fn files(mut bytes: &[u8]) -> Vec<(Offset, Vec<u8>)> {
    let mut files = vec![(Offset(0), Vec::new())];
    let mut offset = 0_i64;
    while let Some((&[step, codec, records, length], rest)) = bytes.split_first_chunk() {
        let (body, rest) = rest.split_at(usize::from(length).min(rest.len()));
        bytes = rest;
        if step & 0x80 != 0 && files.last().is_some_and(|(base, _)| base.0 < offset) {
            files.push((Offset(offset), Vec::new()));
        }
        // Mistakes in offsets are rare, so that there is something behind them.
        let base = if step & 0x70 == 0x70 { i64::from(step & 0xF) } else { offset };
        let mut batch = batch(base, codec, records, body);
        if step & 0x7F == 1 {
            batch.truncate(BATCH_HEADER_BYTES);
        }
        files.last_mut().expect("one file at least").1.extend_from_slice(&batch);
        offset = offset.max(base) + i64::from(records);
    }
    files
}

/// A batch whose faults are behind its CRC.
fn batch(base: i64, attributes: u8, records: u8, body: &[u8]) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    builder.append(&NewRecord::default()).expect("one small record");
    let mut bytes = builder.finish(&BatchOptions::default()).expect("one record");
    bytes.truncate(BATCH_HEADER_BYTES);
    bytes.extend_from_slice(body);
    let length = (bytes.len() - 12) as i32;
    bytes[0..8].copy_from_slice(&base.to_be_bytes());
    bytes[8..12].copy_from_slice(&length.to_be_bytes());
    bytes[12..16].copy_from_slice(&i32::from(attributes >> 6).to_be_bytes());
    bytes[22] = attributes & 0x1F;
    bytes[23..27].copy_from_slice(&(i32::from(records) - 1).to_be_bytes());
    bytes[35..43].copy_from_slice(&i64::from(records).to_be_bytes());
    bytes[57..61].copy_from_slice(&i32::from(records).to_be_bytes());
    seal(&mut bytes);
    bytes
}

fn run(input: Input) {
    let world = World::new(7);
    let io = world.host("node").executor();
    let is_done = Rc::new(Cell::new(false));
    let done = Rc::clone(&is_done);
    let task = {
        let io = io.clone();
        async move {
            open_and_read(&io, input).await;
            done.set(true);
        }
    };
    io.spawn(Priority::Foreground, task).detach();
    let outcome = world.run_until(|| is_done.get(), Duration::from_secs(3600));
    assert!(is_done.get(), "{outcome:?}");
}

async fn open_and_read(io: &Io, input: Input) {
    let Input { files, covered } = input;
    let storage = CoreStorage::start_ephemeral(io.clone(), StorageSettings::DEV);
    let folder = partition_folder(Path::new(""), KEY);
    io.create_directories(&folder).await.expect("a healthy disk");
    let mut segments = Vec::new();
    for (base, bytes) in files {
        let file = io.open(&folder.join(segment_name(base)), OpenOptions::READ_WRITE_CREATE).await;
        let file = file.expect("a healthy disk");
        segments.push(SegmentInfo { base, bytes: bytes.len() as u64 });
        io.write_at(&file, 0, vec![Bytes::from(bytes)]).await.expect("a healthy disk");
    }
    let recovered = RecoveredPartition {
        key: KEY,
        hard_state: None,
        hard_state_sequence: 0,
        log_start: Offset(0),
        log_start_sequence: None,
        next_sequence: 1,
        segments,
        covered,
        checkpoint: None,
        compaction: None,
        damage: None,
    };
    let id = storage.open_log(recovered, LogSettings::KEEP_ALL, &mut |_| {}).await.expect("a healthy disk");
    let (start, end) = {
        let log = storage.log(id);
        (log.log_start(), log.log_end())
    };
    assert!(start <= end);
    read(io, &storage, id, start, end).await;
    for target in [0, 1, 20, i64::MAX] {
        drop(storage.plan_time_lookup(id, target, end).expect("open").run(io).await);
    }
    drop(storage.plan_newest(id, end).expect("open").run(io).await);
}

/// Reads all that the log serves, in small steps.
async fn read(io: &Io, storage: &CoreStorage, id: LogId, start: Offset, end: Offset) {
    let mut from = start;
    let mut expected: Option<Offset> = None;
    let mut scratch = Vec::new();
    while from < end {
        let read = storage.plan_read(id, from, end, 500, true).expect("in range").run(io).await;
        let read = match read {
            Ok(read) => read,
            Err(error @ ReadError::Io { .. }) => panic!("{error}"),
            // Opening found it already, or there is nothing at this offset.
            Err(_) => {
                assert!(storage.log(id).damage().is_some(), "what was opened without damage can be read");
                return;
            }
        };
        assert!(read.next_offset > from, "a read of offset {from} below end {end} found nothing");
        for piece in read.pieces {
            let LogPiece::File { file, position, length } = piece else { panic!("nothing was appended") };
            let bytes = io.read_at(&file, position, length as usize).await.expect("a healthy disk");
            for view in batches(&bytes) {
                let view = view.expect("whole batches only");
                expected = Some(check_batch(&view.header, view.bytes, expected, &mut scratch));
            }
        }
        from = read.next_offset;
    }
}

/// Checks one batch and reads its records; the offset that must follow.
fn check_batch(
    header: &BatchHeader,
    bytes: &[u8],
    expected: Option<Offset>,
    scratch: &mut Vec<u8>,
) -> Offset {
    assert_eq!(check_crc(header, bytes), Ok(()));
    assert!(expected.is_none_or(|expected| header.base_offset >= expected), "offsets do not go back");
    if let Ok((_, records)) = read_batch(bytes, DECOMPRESSED_BYTES_MAX, scratch) {
        let read = records.take_while(Result::is_ok).count();
        assert!(read <= usize::try_from(header.record_count).unwrap_or(0));
    }
    assert!(scratch.capacity() <= DECOMPRESSED_BYTES_MAX + 1);
    header.next_offset()
}
