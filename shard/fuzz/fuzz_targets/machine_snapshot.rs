//! Any bytes as the snapshot of a machine: as they are, behind a right header, as records with right lengths and checksum, as a name of its
//! file, and as a record of the metadata, which is what such records hold.
//!
//! Each is an error or a value; a value that is written is read as the same value. Memory is held by the fuzzer's own limit (see the
//! README).
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringlog_flat::metadata::Record;
use ringlog_protocol::ids::{Offset, PartitionIndex, TopicId, TopicPartition};
use ringlog_shard::state_machine::MachineSnapshot;
use ringlog_shard::storage::machine_snapshot_file::{
    decode_machine_snapshot, encode_machine_snapshot, machine_snapshot_name, parse_machine_snapshot_name,
};

const KEY: TopicPartition = TopicPartition { topic: TopicId([0xAB; 16]), partition: PartitionIndex(3) };
const OFFSET: Offset = Offset(170);
/// Magic, version and reserved bytes.
const BEGINNING: &[u8] = b"RINGLMSN\x01\0\0\0";
/// Where the count of records stands.
const COUNT: std::ops::Range<usize> = 12..16;

fuzz_target!(|input: &[u8]| {
    let Some((&mode, bytes)) = input.split_first() else { return };
    match mode % 6 {
        0 => check(bytes),
        1 => check(&sealed([BEGINNING, bytes].concat())),
        2 => check(&behind_header(bytes)),
        3 => check_records(bytes),
        4 => check_metadata(bytes),
        _ => check_name(bytes),
    }
});

fn sealed(mut file: Vec<u8>) -> Vec<u8> {
    let checksum = crc32fast::hash(&file);
    file.extend_from_slice(&checksum.to_le_bytes());
    file
}

/// The first four bytes as count of records, the rest as records, behind the header of the right partition and offset.
fn behind_header(bytes: &[u8]) -> Vec<u8> {
    let empty = encode_machine_snapshot(KEY, &MachineSnapshot { offset: OFFSET, records: Vec::new() });
    let (header, _) = empty.split_last_chunk::<4>().expect("it ends with its checksum");
    let (count, records) = bytes.split_at(bytes.len().min(COUNT.len()));
    let mut file = [header, records].concat();
    file[COUNT][..count.len()].copy_from_slice(count);
    sealed(file)
}

/// Whole records, one byte saying how long each is: written and read they are the same.
fn check_records(mut bytes: &[u8]) {
    let mut records = Vec::new();
    while let Some((&length, rest)) = bytes.split_first() {
        let (record, rest) = rest.split_at(usize::from(length).min(rest.len()));
        records.push(record.to_vec());
        bytes = rest;
    }
    let snapshot = MachineSnapshot { offset: OFFSET, records };
    let written = encode_machine_snapshot(KEY, &snapshot);
    let read = decode_machine_snapshot(KEY, OFFSET, &written).expect("written here");
    assert!(read == snapshot);
    assert!(decode_machine_snapshot(KEY, Offset(OFFSET.0 + 1), &written).is_err());
    let (cut, _) = written.split_at(written.len() - 1);
    assert!(decode_machine_snapshot(KEY, OFFSET, cut).is_err());
}

fn check(bytes: &[u8]) {
    match decode_machine_snapshot(KEY, OFFSET, bytes) {
        Ok(snapshot) => {
            assert_eq!(snapshot.offset, OFFSET);
            snapshot.records.iter().for_each(|record| check_metadata(record));
            let written = encode_machine_snapshot(KEY, &snapshot);
            assert_eq!(written.len(), bytes.len(), "but for the reserved bytes one spelling only");
            assert!(decode_machine_snapshot(KEY, OFFSET, &written).is_ok_and(|again| again == snapshot));
        }
        Err(error) => drop(error.to_string()),
    }
}

fn check_metadata(bytes: &[u8]) {
    match Record::decode(bytes) {
        Ok(record) => assert_eq!(Record::decode(&record.encode()), Ok(record)),
        Err(error) => drop(error.to_string()),
    }
}

fn check_name(bytes: &[u8]) {
    let Ok(name) = std::str::from_utf8(bytes) else { return };
    if let Some((offset, version)) = parse_machine_snapshot_name(name)
        && version == 1
    {
        assert_eq!(machine_snapshot_name(offset), name, "one spelling only");
    }
}
