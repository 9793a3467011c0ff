//! Any bytes as journal entries, as a file of frames, as entries in frames that check, and as well-formed entries in frames,
//! two files of one core; and the plan of recovery over what was read.
//!
//! Each is an error or a value, and a plan keeps its promises: writes ascend and do not overlap. Memory is held by the
//! fuzzer's own limit (see the README).
#![no_main]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use ringlog_io::sim::World;
use ringlog_io::{AlignedBuffer, OpenOptions, Priority};
use ringlog_protocol::ids::{LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition};
use ringlog_protocol::records::batch::{BATCH_HEADER_BYTES, BatchHeader};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_shard::journal::entry::{Entry, EntryBody, OffsetRange, Reference, SyncedTo};
use ringlog_shard::journal::format::Manifest;
use ringlog_shard::journal::frame::{FrameBuilder, FrameHeader, FrameOrigin, decode_body};
use ringlog_shard::journal::reader::{CoreScan, FileScan, FoundEntry, judge_core, scan_file};
use ringlog_shard::journal::recovery::plan::{PartitionPlan, PlannedWrite, plan_partition};
use ringlog_shard::storage::SegmentInfo;

const MANIFEST: Manifest = Manifest { core_count: 1, generation: 3, salt: 0x5A17 };
const ORIGIN: FrameOrigin = FrameOrigin { generation: 3, salt: 0x5A17, core: 2 };
/// Frames of one input: each takes 4 KiB at least.
const FRAMES_MAX: usize = 16;

fuzz_target!(|input: &[u8]| {
    let Some((&mode, bytes)) = input.split_first() else { return };
    match mode % 5 {
        0 => check_entry(bytes),
        1 => drop(scan(vec![bytes.to_vec()])),
        2 => drop(Manifest::decode(bytes).map_err(|error| error.to_string())),
        3 => plan(&scan(files(bytes, &mut |body, _| body.to_vec())), &[]),
        _ => {
            let (seed, bytes) = bytes.split_at(bytes.len().min(4));
            plan(&scan(files(bytes, &mut entries)), seed);
        }
    }
});

fn check_entry(bytes: &[u8]) {
    if let Ok(header) = FrameHeader::decode(bytes) {
        drop(decode_body(&header, bytes).map_err(|error| error.to_string()));
    }
    match Entry::decode(bytes) {
        Ok((entry, taken)) => {
            assert_eq!(entry.encoded_bytes(), taken);
            let mut frame = FrameBuilder::new(AlignedBuffer::new());
            frame.push(&entry);
            assert_eq!(frame.body_bytes(), taken);
        }
        Err(error) => drop(error.to_string()),
    }
}

/// Two files of frames that check. Of each frame three bytes say: how its sequence goes on, its floor, and the length of what
/// its body is made of; `body` makes it.
fn files(mut bytes: &[u8], body: &mut dyn FnMut(&[u8], u64) -> Vec<u8>) -> Vec<Vec<u8>> {
    let mut files = vec![Vec::new(), Vec::new()];
    // Most files begin at 1, some where the numbers end.
    let mut sequence: u64 = if bytes.first() == Some(&0xFF) { u64::MAX - 2 } else { 1 };
    for _ in 0..FRAMES_MAX {
        let Some((&[step, floor, length], rest)) = bytes.split_first_chunk() else { break };
        let (raw, rest) = rest.split_at(usize::from(length).min(rest.len()));
        bytes = rest;
        let file = &mut files[usize::from(step >> 7)];
        if step & 0x40 != 0 {
            file.resize(file.len() + 4096, step);
        }
        frame(file, sequence, sequence.saturating_sub(u64::from(floor)).max(1), &body(raw, sequence));
        sequence = sequence.saturating_add(u64::from(step & 3) + u64::from(step & 0x3F == 0));
    }
    files
}

/// A frame of any body, with the checksum that it should have.
fn frame(file: &mut Vec<u8>, sequence: u64, floor: u64, body: &[u8]) {
    let mut entries = 0_u32;
    let mut rest = body;
    while let Ok((_, taken)) = Entry::decode(rest) {
        entries += 1;
        rest = &rest[taken..];
    }
    let mut header = b"RLJF\x01\x00\x38\x00".to_vec();
    header
        .extend([ORIGIN.generation, ORIGIN.salt, sequence, floor].iter().flat_map(|word| word.to_le_bytes()));
    header.extend([body.len() as u32, entries, ORIGIN.core].iter().flat_map(|word| word.to_le_bytes()));
    let mut checksum = crc32fast::Hasher::new();
    checksum.update(body);
    checksum.update(&header);
    file.extend_from_slice(&header);
    file.extend_from_slice(&checksum.finalize().to_le_bytes());
    file.extend_from_slice(body);
    file.resize(file.len().next_multiple_of(4096), 0);
}

/// Six bytes make an entry. Small numbers meet often; a high bit asks for a large one.
fn entries(raw: &[u8], frame_sequence: u64) -> Vec<u8> {
    let mut frame = FrameBuilder::new(AlignedBuffer::new());
    for (index, chunk) in raw.as_chunks::<6>().0.iter().enumerate() {
        let [what, sequence, offset, base, position, more] = *chunk;
        let offset_of =
            |byte: u8| Offset(if byte < 0xF0 { i64::from(byte) } else { i64::MAX - i64::from(byte & 0xF) });
        let position =
            if position < 0xF0 { u32::from(position) * 61 } else { u32::MAX - u32::from(position & 0xF) };
        let segment_base = offset_of(base);
        let batch = batch(offset_of(offset), more);
        let epoch = LeaderEpoch(i32::from(more & 7));
        let body = match what & 7 {
            0 | 1 => EntryBody::Data { segment_base, position, batches: &batch },
            2 => EntryBody::Reference(Reference {
                segment_base,
                position,
                length: if more < 0xF0 { u32::from(more) * 61 } else { u32::MAX },
                crc: u32::from(more),
                range: OffsetRange {
                    base: offset_of(offset),
                    end: offset_of(offset.wrapping_add(more)),
                    epoch,
                },
                goes_on: what & 0x20 != 0,
            }),
            3 => EntryBody::Truncate { end_offset: offset_of(offset), segment_base, position },
            4 => EntryBody::LogStart { offset: offset_of(offset) },
            5 if what & 0x40 != 0 => EntryBody::Delete,
            5 | 6 => EntryBody::HardState { state: &chunk[..usize::from(more) % 6] },
            _ => EntryBody::SyncedTo(SyncedTo {
                through: if more < 0xF0 { u64::from(more) } else { u64::MAX - u64::from(more & 0xF) },
                epoch,
                offset: offset_of(offset),
                segment_base,
                position,
            }),
        };
        let sequence = match sequence {
            0..0x80 => frame_sequence.saturating_add(index as u64),
            0x80..0xF8 => u64::from(sequence & 0x7F),
            _ => u64::MAX - u64::from(sequence & 7),
        };
        let key = TopicPartition { topic: TopicId([1; 16]), partition: PartitionIndex(i32::from(what >> 7)) };
        frame.push(&Entry { key, sequence, carried: what & 0x10 != 0, body });
    }
    let sealed = frame.seal(ORIGIN, 1, 1);
    let header = FrameHeader::decode(sealed.as_slice()).expect("sealed here");
    sealed.as_slice()[56..56 + header.body_bytes as usize].to_vec()
}

/// A batch at this offset. Its CRC is nobody's business in the journal.
fn batch(base_offset: Offset, records: u8) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    builder.append(&NewRecord::default()).expect("one small record");
    let mut bytes = builder.finish(&BatchOptions::default()).expect("one record");
    let mut header = BatchHeader::parse(&bytes).expect("built here");
    header.base_offset = base_offset;
    header.last_offset_delta = i32::from(records & 0xF);
    let fixed: &mut [u8; BATCH_HEADER_BYTES] = bytes.first_chunk_mut().expect("a whole batch");
    header.write_to(fixed);
    bytes
}

/// Reads the files as recovery does.
fn scan(files: Vec<Vec<u8>>) -> CoreScan {
    let world = World::new(7);
    let io = world.host("node").executor();
    let found: Rc<RefCell<Vec<FileScan>>> = Rc::default();
    let done = Rc::clone(&found);
    let count = files.len();
    let task = {
        let io = io.clone();
        async move {
            for (number, bytes) in files.into_iter().enumerate() {
                let name = format!("/{number}");
                let path = Path::new(&name);
                let options = OpenOptions { write: true, create: true, ..OpenOptions::READ };
                let file = io.open(path, options).await.expect("a healthy disk");
                io.write_at(&file, 0, vec![Bytes::from(bytes)]).await.expect("a healthy disk");
                let scan = scan_file(&io, path, ORIGIN.core, &MANIFEST).await.expect("a healthy disk");
                done.borrow_mut().push(scan);
            }
        }
    };
    io.spawn(Priority::Foreground, task).detach();
    world.run_until(|| found.borrow().len() == count, Duration::from_secs(3600));
    let found = found.take();
    assert_eq!(found.len(), count, "all files are read");
    judge_core(found)
}

/// Plans each partition over files of four lengths.
fn plan(scan: &CoreScan, lengths: &[u8]) {
    let mut entries: BTreeMap<TopicPartition, Vec<FoundEntry>> = BTreeMap::new();
    for entry in scan.runs.iter().flat_map(|run| &run.entries) {
        entries.entry(entry.key).or_default().push(entry.clone());
    }
    let bases = [0, 2, 5, 200].map(Offset);
    let files: Vec<SegmentInfo> = bases
        .into_iter()
        .zip(lengths)
        .map(|(base, length)| SegmentInfo { base, bytes: u64::from(*length) * 61 })
        .collect();
    for entries in entries.into_values() {
        for files in [&files[..], &[]] {
            check_plan(&plan_partition(entries.clone(), files, !scan.corruption.is_empty()));
        }
    }
}

fn check_plan(plan: &PartitionPlan) {
    for segment in plan.segments.values() {
        let in_order =
            |pair: &[PlannedWrite]| matches!(pair, [before, after] if before.end() <= after.position);
        assert!(segment.writes.windows(2).all(in_order), "{:?}", segment.writes);
        if segment.remove {
            assert!(segment.writes.is_empty() && segment.exact_length.is_none());
        }
    }
    for count in 0..=plan.last_references.len() {
        let _ = plan.covered_with(count);
    }
    assert!(!(plan.is_gone && plan.hard_state.is_some()));
}
