//! Any bytes as a segment's sidecar: as they are, behind a right header, and as sums and footer with right checksums.
//!
//! Each is an error or a value; a value that is written is read as the same value. Memory is held by the fuzzer's own limit
//! (see the README).
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringlog_protocol::ids::{Offset, PartitionIndex, TopicId, TopicPartition};
use ringlog_shard::limits::SUM_BLOCK_BYTES;
use ringlog_shard::storage::sidecar::{Sidecar, check_header, encode_header};
use ringlog_shard::storage::sums::SumPlace;

const PLACE: SumPlace = SumPlace {
    key: TopicPartition { topic: TopicId([0xAB; 16]), partition: PartitionIndex(3) },
    base: Offset(100),
};
/// Where the footer states its sums' checksum.
const SUMS_CHECKSUM: std::ops::Range<usize> = 32..36;
/// A footer states a segment of at most so many blocks: sums of more would be most of the input.
const BLOCKS_MAX: u32 = 64;

fuzz_target!(|input: &[u8]| {
    let Some((&mode, bytes)) = input.split_first() else { return };
    match mode % 4 {
        0 => check(bytes),
        1 => check(&[&encode_header(PLACE)[..], bytes].concat()),
        2 => check(&sealed(&[], bytes)),
        _ => check(&with_its_sums(bytes)),
    }
});

/// The bytes as a footer whose faults are behind the checksums.
fn sealed(sums: &[u8], footer: &[u8]) -> Vec<u8> {
    let mut footer = footer.to_vec();
    if let Some(field) = footer.get_mut(SUMS_CHECKSUM) {
        field.copy_from_slice(&crc32fast::hash(sums).to_le_bytes());
    }
    let mut whole = crc32fast::Hasher::new();
    whole.update(&PLACE.key.topic.0);
    whole.update(&PLACE.key.partition.0.to_le_bytes());
    whole.update(&PLACE.base.0.to_le_bytes());
    whole.update(&[0xFF; 8]);
    whole.update(&footer);
    let mut bytes = encode_header(PLACE);
    bytes.extend_from_slice(sums);
    bytes.extend_from_slice(&footer);
    bytes.extend_from_slice(&(footer.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&whole.finalize().to_le_bytes());
    bytes.extend_from_slice(b"SUMF");
    bytes
}

/// As many sums as the footer's first field asks for.
fn with_its_sums(footer: &[u8]) -> Vec<u8> {
    let stated = footer.first_chunk().map_or(0, |field| u32::from_le_bytes(*field));
    let blocks = (stated / SUM_BLOCK_BYTES).min(BLOCKS_MAX);
    let sums: Vec<u8> = (0..blocks).flat_map(u32::to_le_bytes).collect();
    sealed(&sums, footer)
}

fn check(bytes: &[u8]) {
    let header = check_header(PLACE, bytes);
    match Sidecar::decode(PLACE, bytes) {
        Ok(sidecar) => {
            assert_eq!(header, Ok(()));
            assert!(sidecar.footer.end_offset >= PLACE.base);
            let written = sidecar.encode(PLACE);
            assert_eq!(written, bytes, "one spelling only");
            assert_eq!(Sidecar::decode(PLACE, &written), Ok(sidecar));
        }
        Err(error) => drop(error.to_string()),
    }
}
