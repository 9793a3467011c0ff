//! Any bytes as a record batch, as one with a right length and CRC, as records behind a sound header, and as compressed data.
//!
//! Each must be an error or a value, and what validation accepts can be consumed: as many records as stated, at the offsets
//! that the broker would give them. Memory is held by the fuzzer's own limit (see the README).
#![no_main]

use libfuzzer_sys::fuzz_target;
use ringlog_protocol::ids::Offset;
use ringlog_protocol::records::attributes::Attributes;
use ringlog_protocol::records::batch::{BATCH_HEADER_BYTES, batches, seal};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::compression::{Compression, compress, decompress};
use ringlog_protocol::records::lookup::{first_record_at_or_after, record_with_max_timestamp};
use ringlog_protocol::records::reader::read_batch;
use ringlog_protocol::records::validate::{RecordLimits, validate_produce_batch};

/// 32 times this, 256 KiB, is the bound of what a batch decompresses to: small enough for the fuzzer's own limit.
const MESSAGE_BYTES_MAX: u32 = 8 * 1024;
const LENGTH_AND_MAGIC: std::ops::Range<usize> = 8..17;
const RECORD_COUNT_AND_DELTA: [std::ops::Range<usize>; 2] = [57..61, 23..27];

fuzz_target!(|input: &[u8]| {
    let Some((&[mode, codec], bytes)) = input.split_first_chunk::<2>() else { return };
    let codec = Compression::ALL[usize::from(codec) % Compression::ALL.len()];
    match mode % 4 {
        0 => check(bytes),
        1 => check(&sealed(bytes)),
        2 => check(&around(codec, bytes)),
        _ => check_codec(codec, bytes),
    }
});

/// The bytes as a batch whose faults are behind the CRC.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let mut batch = bytes.to_vec();
    batch.resize(batch.len().max(BATCH_HEADER_BYTES), 0);
    let length = (batch.len() - 12) as i32;
    batch[LENGTH_AND_MAGIC][..4].copy_from_slice(&length.to_be_bytes());
    batch[LENGTH_AND_MAGIC][8] = 2;
    seal(&mut batch);
    batch
}

/// The bytes as compressed records behind a header whose first byte of them is the record count.
fn around(codec: Compression, bytes: &[u8]) -> Vec<u8> {
    let Some((&count, body)) = bytes.split_first() else { return Vec::new() };
    let mut builder = BatchBuilder::new();
    builder.append(&NewRecord::default()).expect("one small record");
    let options =
        BatchOptions { attributes: Attributes::default().with_compression(codec), ..BatchOptions::default() };
    let mut batch = builder.finish(&options).expect("one record");
    batch.truncate(BATCH_HEADER_BYTES);
    batch[22] = codec.bits();
    for (field, value) in RECORD_COUNT_AND_DELTA.into_iter().zip([i32::from(count), i32::from(count) - 1]) {
        batch[field].copy_from_slice(&value.to_be_bytes());
    }
    compress(codec, None, body, &mut batch);
    sealed(&batch)
}

fn check(bytes: &[u8]) {
    let limits = RecordLimits { message_bytes_max: MESSAGE_BYTES_MAX, ..RecordLimits::default() };
    let limit_bytes = limits.decompressed_bytes_max();
    let mut scratch = Vec::new();
    let verdict = validate_produce_batch(bytes, &limits, &mut scratch);
    assert!(scratch.capacity() <= limit_bytes + 1);
    for view in batches(bytes).flatten() {
        let _ = first_record_at_or_after(view.bytes, 1_000, limit_bytes, &mut scratch);
        let _ = record_with_max_timestamp(view.bytes, limit_bytes, &mut scratch);
    }
    match verdict {
        Ok(summary) => {
            let (header, records) = read_batch(bytes, limit_bytes, &mut scratch).expect("accepted");
            let mut expected = header.base_offset.0;
            for record in records {
                assert_eq!(record.expect("accepted").offset, Offset(expected));
                expected = expected.wrapping_add(1);
            }
            assert_eq!(expected.wrapping_sub(header.base_offset.0), i64::from(summary.record_count));
        }
        Err(error) => drop((error.to_string(), error.error_code(), error.rejected_records())),
    }
}

/// Noise is an error or an output within the bound, and packing the bytes and unpacking them changes nothing.
fn check_codec(codec: Compression, bytes: &[u8]) {
    let limit_bytes = 256 * 1024;
    let mut output = Vec::new();
    if decompress(codec, bytes, limit_bytes, &mut output).is_ok() {
        assert!(output.len() <= limit_bytes);
    }
    assert!(output.capacity() <= limit_bytes + 1);
    let mut packed = Vec::new();
    compress(codec, None, bytes, &mut packed);
    decompress(codec, &packed, bytes.len(), &mut output).expect("packed here");
    assert_eq!(output, bytes);
}
