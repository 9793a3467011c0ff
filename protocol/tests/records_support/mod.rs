//! Batches for the tests of records: sound ones, and ones that lie in one place and are otherwise sealed.
//!
//! Not a test itself.
#![allow(dead_code)]

use ringlog_protocol::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence};
use ringlog_protocol::records::attributes::Attributes;
use ringlog_protocol::records::batch::{BATCH_HEADER_BYTES, BatchHeader, seal};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::compression::{Compression, compress};
use ringlog_protocol::records::error::RecordError;
use ringlog_protocol::records::reader::Header;
use ringlog_protocol::records::validate::{BatchSummary, RecordLimits, validate_produce_batch};

/// The broker's clock of these tests.
pub const NOW_MS: i64 = 1_700_000_000_000;

pub fn limits() -> RecordLimits {
    RecordLimits { now_ms: NOW_MS, ..RecordLimits::default() }
}

pub fn validate(bytes: &[u8]) -> Result<BatchSummary, RecordError> {
    validate_produce_batch(bytes, &limits(), &mut Vec::new())
}

/// Three records with keys, nulls and headers.
pub fn sound_batch(codec: Compression) -> Vec<u8> {
    let headers = [Header { key: b"h1", value: Some(b"x") }, Header { key: b"h2", value: None }];
    let mut builder = BatchBuilder::new();
    for record in [
        NewRecord { timestamp: NOW_MS, key: Some(b"key"), value: Some(b"value"), headers: &headers },
        NewRecord { timestamp: NOW_MS + 500, key: None, value: None, headers: &[] },
        NewRecord {
            timestamp: NOW_MS - 1,
            key: Some(b""),
            value: Some(&[b'v'; 300]),
            headers: &headers[..1],
        },
    ] {
        builder.append(&record).expect("small");
    }
    builder.finish(&BatchOptions { compression: codec, ..BatchOptions::default() }).expect("not empty")
}

/// `count` records of seven bytes each, the smallest there are.
pub fn smallest_records(count: i32) -> Vec<u8> {
    let mut body = Vec::new();
    for index in 0..count {
        let mut delta = Vec::new();
        let mut zigzag = (index as u32) << 1;
        while zigzag >= 0x80 {
            delta.push(zigzag as u8 | 0x80);
            zigzag >>= 7;
        }
        delta.push(zigzag as u8);
        body.push(2 * (5 + delta.len() as u8));
        body.extend([0, 0]);
        body.extend(delta);
        body.extend([1, 1, 0]);
    }
    body
}

/// A batch around `body`, compressed, with a right length and CRC over whatever `change` made of the header.
pub fn batch_around(
    codec: Compression,
    body: &[u8],
    record_count: i32,
    change: impl FnOnce(&mut BatchHeader),
) -> Vec<u8> {
    let mut packed = Vec::new();
    compress(codec, None, body, &mut packed);
    batch_around_packed(codec, &packed, record_count, change)
}

/// Like [`batch_around`], but `packed` is taken as it is.
pub fn batch_around_packed(
    codec: Compression,
    packed: &[u8],
    record_count: i32,
    change: impl FnOnce(&mut BatchHeader),
) -> Vec<u8> {
    let mut header = BatchHeader {
        base_offset: Offset(0),
        batch_length: (BATCH_HEADER_BYTES - 12 + packed.len()) as i32,
        leader_epoch: LeaderEpoch(-1),
        magic: 2,
        crc: 0,
        attributes: Attributes::default().with_compression(codec),
        last_offset_delta: record_count.wrapping_sub(1),
        base_timestamp: NOW_MS,
        max_timestamp: NOW_MS,
        producer_id: ProducerId(-1),
        producer_epoch: ProducerEpoch(-1),
        base_sequence: Sequence(-1),
        record_count,
    };
    change(&mut header);
    let mut batch = vec![0; BATCH_HEADER_BYTES];
    header.write_to(batch.first_chunk_mut().expect("61 bytes"));
    batch.extend_from_slice(packed);
    seal(&mut batch);
    batch
}
