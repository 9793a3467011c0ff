//! Any bytes as a core's checkpoint file: as they are, behind a right header, and as records with right lengths and checksums.
//!
//! Each is an error or a value; what a record holds can be written and is read as the same, and so can the producers' snapshot
//! in it. Memory is held by the fuzzer's own limit (see the README).
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use ringlog_shard::limits::PRODUCERS_PER_PARTITION_MAX;
use ringlog_shard::producer_state::ProducerStates;
use ringlog_shard::storage::checkpoint_file::{CheckpointFile, encode_header, parse_checkpoint_name};

const CORE: u32 = 3;
const GENERATION: u64 = 8;
const EXPIRATION_MS: i64 = 86_400_000;

fuzz_target!(|input: &[u8]| {
    let Some((&mode, bytes)) = input.split_first() else { return };
    match mode % 5 {
        0 => check(Bytes::copy_from_slice(bytes)),
        1 => check(Bytes::from([&encode_header(CORE, GENERATION)[..], bytes].concat())),
        2 => check(records(bytes)),
        3 => check_producers(bytes),
        _ => drop(std::str::from_utf8(bytes).map(parse_checkpoint_name)),
    }
});

/// Records whose faults are behind their checksums. Two bytes say how long each is.
fn records(mut bytes: &[u8]) -> Bytes {
    let mut file = encode_header(CORE, GENERATION);
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let (body, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&GENERATION.to_le_bytes());
        checksum.update(body);
        file.extend_from_slice(&(body.len() as u32).to_le_bytes());
        file.extend_from_slice(&checksum.finalize().to_le_bytes());
        file.extend_from_slice(body);
        bytes = rest;
    }
    Bytes::from(file)
}

fn check(bytes: Bytes) {
    let found = match CheckpointFile::decode(&bytes) {
        Ok(found) => found,
        Err(error) => return drop(error.to_string()),
    };
    assert!(found.stopped_at.is_none_or(|at| at < bytes.len()));
    let mut written = encode_header(found.core, found.generation);
    for (key, partition) in &found.partitions {
        assert_eq!(*key, partition.key);
        // A log whose records are all gone has a position of nothing: where it goes on.
        let is_of_empty_log = partition.position == 0 && partition.offset == partition.segment_base;
        assert!(is_of_empty_log || (partition.position > 0 && partition.offset > partition.segment_base));
        partition.encode(found.generation, &mut written);
        check_producers(partition.producers.as_deref().unwrap_or_default());
    }
    assert!(written.len() <= bytes.len());
    let again = CheckpointFile::decode(&Bytes::from(written)).expect("written here");
    assert_eq!((again.partitions, again.stopped_at), (found.partitions, None));
}

fn check_producers(bytes: &[u8]) {
    let states = match ProducerStates::decode(bytes, EXPIRATION_MS, PRODUCERS_PER_PARTITION_MAX) {
        Ok(states) => states,
        Err(error) => return drop(error.to_string()),
    };
    states.validate();
    let mut written = Vec::new();
    states.encode(&mut written);
    let again = ProducerStates::decode(&written, EXPIRATION_MS, PRODUCERS_PER_PARTITION_MAX);
    let mut rewritten = Vec::new();
    again.expect("written here").encode(&mut rewritten);
    assert_eq!(rewritten, written);
}
