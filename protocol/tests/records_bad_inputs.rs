//! Bad batches from clients, row by row of the project's list of bad inputs: which error each gets.
//!
//! Every batch here has a right CRC unless the CRC is the fault.

mod records_support;

use records_support::{
    NOW_MS, batch_around, batch_around_packed, limits, smallest_records, sound_batch, validate,
};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{Offset, ProducerEpoch, ProducerId, Sequence};
use ringlog_protocol::records::attributes::{Attributes, TimestampType};
use ringlog_protocol::records::batch::{BatchHeader, seal, set_base_offset, set_max_timestamp};
use ringlog_protocol::records::compression::Compression;
use ringlog_protocol::records::error::{REJECTED_RECORDS_MAX, RecordError};
use ringlog_protocol::records::validate::{RecordLimits, validate_produce_batch};

const CODECS: [Compression; 5] = Compression::ALL;

#[track_caller]
fn refused(bytes: &[u8], code: ErrorCode) -> RecordError {
    let error = validate(bytes).expect_err("must be refused");
    assert_eq!(error.error_code(), code, "{error}");
    error
}

fn two_records(change: impl FnOnce(&mut BatchHeader)) -> Vec<u8> {
    batch_around(Compression::None, &smallest_records(2), 2, change)
}

/// One record with these bytes after the length, which is right.
fn one_record(fields: &[u8]) -> Vec<u8> {
    let mut body = vec![2 * fields.len() as u8];
    body.extend(fields);
    batch_around(Compression::None, &body, 1, |_| ())
}

#[test]
fn sound_batches_of_every_codec_are_accepted() {
    for codec in CODECS {
        let summary = validate(&sound_batch(codec)).expect("sound");
        assert_eq!((summary.codec, summary.record_count, summary.producer), (codec, 3, None));
        assert_eq!((summary.max_timestamp, summary.max_timestamp_offset_delta), (NOW_MS + 500, 1));
        assert!(!summary.states_wrong_max_timestamp());
    }
}

#[test]
fn row_21_a_wrong_crc_or_a_flipped_payload_bit_is_corrupt() {
    for codec in CODECS {
        let sound = sound_batch(codec);
        for at in [17, 20, 61, sound.len() - 1] {
            let mut bytes = sound.clone();
            bytes[at] ^= 0x10;
            refused(&bytes, ErrorCode::CorruptMessage);
        }
    }
}

#[test]
fn row_22_lengths_that_lie_and_cut_headers_are_corrupt() {
    let sound = sound_batch(Compression::None);
    let right = (sound.len() - 12) as i32;
    for length in [-1, i32::MIN, 0, 10, 48, i32::MAX, right + 1] {
        let mut bytes = sound.clone();
        bytes[8..12].copy_from_slice(&length.to_be_bytes());
        refused(&bytes, ErrorCode::CorruptMessage);
    }
    // One byte less leaves a byte behind the batch.
    let mut bytes = sound.clone();
    bytes[8..12].copy_from_slice(&(right - 1).to_be_bytes());
    refused(&bytes, ErrorCode::InvalidRecord);
    for cut in 1..sound.len() {
        refused(&sound[..cut], ErrorCode::CorruptMessage);
    }
}

#[test]
fn row_23_other_magics_are_invalid() {
    for magic in [0, 1, 3, 127, -1] {
        let error = refused(&two_records(|header| header.magic = magic), ErrorCode::InvalidRecord);
        assert!(error.to_string().contains(&format!("magic {magic} ")), "{error}");
    }
}

#[test]
fn row_24_counts_that_lie_are_invalid() {
    for count in [i32::MAX, i32::MIN, -1, 0, 1, 3] {
        for codec in CODECS {
            let bytes = batch_around(codec, &smallest_records(2), count, |_| ());
            refused(&bytes, ErrorCode::InvalidRecord);
        }
    }
}

#[test]
fn row_24_junk_behind_the_records_is_invalid() {
    for codec in CODECS {
        for junk in [&[0][..], &[12, 0, 0, 4, 1, 1, 0]] {
            let body = [smallest_records(2), junk.to_vec()].concat();
            refused(&batch_around(codec, &body, 2, |_| ()), ErrorCode::InvalidRecord);
        }
    }
}

#[test]
fn row_24_none_or_two_batches_are_invalid() {
    assert_eq!(refused(&[], ErrorCode::InvalidRecord), RecordError::Empty);
    let one = two_records(|_| ());
    for behind in [&[0][..], &one, &one[..30]] {
        let error = refused(&[&one, behind].concat(), ErrorCode::InvalidRecord);
        assert_eq!(error, RecordError::TrailingBytes { trailing_bytes: behind.len() as u64 });
    }
}

#[test]
fn row_25_record_lengths_that_lie_are_invalid() {
    for record in [
        &[0, 0, 0, 0, 1, 1, 0][..],                        // length 0
        &[1, 0, 0, 0, 1, 1, 0],                            // length -1
        &[10, 0, 0, 0, 1, 1, 0],                           // one less
        &[14, 0, 0, 0, 1, 1, 0],                           // one more
        &[0xfe, 0xff, 0xff, 0xff, 0x0f, 0, 0, 0, 1, 1, 0], // 2^31 - 1
        &[0xff; 16],                                       // endless varint
        &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80],       // endless zeros
    ] {
        for codec in CODECS {
            let error = refused(&batch_around(codec, record, 1, |_| ()), ErrorCode::InvalidRecord);
            assert_eq!(error.record_index(), Some(0), "{error}");
        }
    }
}

#[test]
fn row_25_key_and_value_lengths_that_lie_are_invalid() {
    for fields in [
        &[0, 0, 0, 3, 1, 0][..],                        // key -2
        &[0, 0, 0, 1, 3, 0],                            // value -2
        &[0, 0, 0, 20, 1, 0],                           // key beyond the record
        &[0, 0, 0, 1, 20, 0],                           // value beyond the record
        &[0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 0x0f, 1, 0], // key 2^31 - 1
    ] {
        let error = refused(&one_record(fields), ErrorCode::InvalidRecord);
        assert!(matches!(error, RecordError::Malformed { index: 0, .. }), "{error}");
    }
}

#[test]
fn row_27_headers_that_lie_are_invalid() {
    for fields in [
        &[0, 0, 0, 1, 1, 1][..],                        // count -1
        &[0, 0, 0, 1, 1, 0xfe, 0xff, 0xff, 0xff, 0x0f], // count 2^31 - 1
        &[0, 0, 0, 1, 1, 2],                            // one header, no bytes
        &[0, 0, 0, 1, 1, 2, 1, 1],                      // null key
        &[0, 0, 0, 1, 1, 2, 0, 3],                      // value -2
        &[0, 0, 0, 1, 1, 2, 40, 1],                     // key beyond the record
    ] {
        refused(&one_record(fields), ErrorCode::InvalidRecord);
    }
    assert!(
        validate(&one_record(&[0, 0, 0, 1, 1, 2, 0, 1])).is_ok(),
        "an empty key and a null value are sound"
    );
}

#[test]
fn row_28_last_offset_deltas_that_lie_are_invalid() {
    for delta in [i32::MAX, i32::MIN, -1, 0, 2] {
        let error =
            refused(&two_records(|header| header.last_offset_delta = delta), ErrorCode::InvalidRecord);
        assert_eq!(error, RecordError::LastOffsetDelta { last_offset_delta: delta, count: 2 });
    }
}

#[test]
fn row_28_offset_deltas_of_records_must_count_up() {
    for codec in CODECS {
        for second_delta in [0_u8, 1, 4] {
            let body = [12, 0, 0, 0, 1, 1, 0, 12, 0, 0, second_delta, 1, 1, 0];
            let error = refused(&batch_around(codec, &body, 2, |_| ()), ErrorCode::InvalidRecord);
            assert_eq!(error.record_index(), Some(1), "{error}");
        }
    }
}

#[test]
fn row_30_any_base_offset_is_accepted() {
    for codec in CODECS {
        for base_offset in [0, 1, 1 << 40, i64::MAX, -1] {
            let mut bytes = sound_batch(codec);
            set_base_offset(&mut bytes, Offset(base_offset));
            assert!(validate(&bytes).is_ok(), "{base_offset}");
        }
    }
}

#[test]
fn row_31_unassigned_codecs_are_unsupported() {
    for codec in [5, 6, 7] {
        let bytes = two_records(|header| header.attributes = Attributes(codec));
        refused(&bytes, ErrorCode::UnsupportedCompressionType);
    }
}

#[test]
fn row_31_bits_of_the_broker_are_refused() {
    for (bit, code) in [
        (Attributes::CONTROL, ErrorCode::InvalidRecord),
        (Attributes::DELETE_HORIZON, ErrorCode::InvalidRecord),
        (Attributes::LOG_APPEND_TIME, ErrorCode::InvalidTimestamp),
    ] {
        refused(&two_records(|header| header.attributes = Attributes(bit)), code);
    }
    // The upper bits mean nothing to Kafka.
    let unused = two_records(|header| header.attributes = Attributes(0x7f80));
    assert!(validate(&unused).is_ok());
}

#[test]
fn row_31_a_transaction_needs_a_producer() {
    let transactional = |header: &mut BatchHeader| header.attributes = Attributes(Attributes::TRANSACTIONAL);
    refused(&two_records(transactional), ErrorCode::InvalidRecord);
    let with_producer = two_records(|header| {
        transactional(header);
        header.producer_id = ProducerId(5);
        header.producer_epoch = ProducerEpoch(0);
        header.base_sequence = Sequence(0);
    });
    assert!(validate(&with_producer).expect("sound").transactional);
}

#[test]
fn row_31_zstd_needs_produce_7() {
    let bytes = sound_batch(Compression::Zstd);
    for (produce_version, accepted) in [(3, false), (6, false), (7, true), (13, true)] {
        let result =
            validate_produce_batch(&bytes, &RecordLimits { produce_version, ..limits() }, &mut Vec::new());
        let code = result.as_ref().err().map(RecordError::error_code);
        let expected = (!accepted).then_some(ErrorCode::UnsupportedCompressionType);
        assert_eq!(code, expected, "version {produce_version}");
    }
}

#[test]
fn row_32_producer_fields_must_go_together() {
    let with = |id, epoch, sequence| {
        two_records(|header| {
            header.producer_id = ProducerId(id);
            header.producer_epoch = ProducerEpoch(epoch);
            header.base_sequence = Sequence(sequence);
        })
    };
    for (id, epoch, sequence) in
        [(5, 0, -1), (5, -1, 0), (-2, 0, 0), (i64::MIN, -1, -1), (0, -1, -1), (5, 0, -2)]
    {
        refused(&with(id, epoch, sequence), ErrorCode::InvalidRecord);
    }
    // Without an id the others mean nothing: sarama leaves a sequence of 0.
    for (id, epoch, sequence) in [(-1, -1, -1), (-1, -1, 0), (-1, 0, 0)] {
        assert_eq!(validate(&with(id, epoch, sequence)).expect("sound").producer, None);
    }
    assert!(validate(&with(5, 0, i32::MAX)).expect("sound").producer.is_some());
}

#[test]
fn row_35_a_batch_over_the_limit_is_too_large() {
    let bytes = sound_batch(Compression::None);
    for (message_bytes_max, accepted) in
        [(bytes.len() as u32, true), (bytes.len() as u32 - 1, false), (0, false)]
    {
        let limits = RecordLimits { message_bytes_max, ..limits() };
        let code =
            validate_produce_batch(&bytes, &limits, &mut Vec::new()).err().map(|error| error.error_code());
        assert_eq!(code, (!accepted).then_some(ErrorCode::MessageTooLarge));
    }
    let five_mib = batch_around(Compression::None, &vec![0; 5 << 20], 1, |_| ());
    refused(&five_mib, ErrorCode::MessageTooLarge);
}

#[test]
fn row_37_noise_or_nothing_in_place_of_compressed_records_is_invalid() {
    let noise: Vec<u8> = (0..200_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for codec in &CODECS[1..] {
        for packed in [&noise[..], &[], &[0], &noise[..1]] {
            refused(&batch_around_packed(*codec, packed, 1, |_| ()), ErrorCode::InvalidRecord);
        }
        // Compressed well, but to nothing.
        refused(&batch_around(*codec, &[], 1, |_| ()), ErrorCode::InvalidRecord);
    }
}

#[test]
fn row_38_cut_or_damaged_compression_is_invalid() {
    for codec in &CODECS[1..] {
        let sound = sound_batch(*codec);
        let packed = &sound[61..];
        for cut in 0..packed.len() {
            refused(&batch_around_packed(*codec, &packed[..cut], 3, |_| ()), ErrorCode::InvalidRecord);
        }
        let followed = [packed, &[0]].concat();
        refused(&batch_around_packed(*codec, &followed, 3, |_| ()), ErrorCode::InvalidRecord);
    }
    let gzip = sound_batch(Compression::Gzip);
    for at in [gzip.len() - 8, gzip.len() - 1] {
        let mut bytes = gzip.clone();
        bytes[at] ^= 1;
        seal(&mut bytes);
        refused(&bytes, ErrorCode::InvalidRecord);
    }
}

#[test]
fn row_40_lz4_sizes_that_lie_are_invalid() {
    // A block of 2 GiB - 1, of 4 GiB - 1, and one byte more than the header's 64 KiB.
    for length in [0x7fff_ffff_u32, 0xffff_ffff, 65_537] {
        let mut packed = vec![0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82];
        packed.extend(length.to_le_bytes());
        packed.extend(smallest_records(1));
        packed.extend([0; 4]);
        refused(&batch_around_packed(Compression::Lz4, &packed, 1, |_| ()), ErrorCode::InvalidRecord);
    }
    // A content size of 2^62 with the right header checksum.
    let mut packed = vec![0x04, 0x22, 0x4d, 0x18, 0x68, 0x40];
    packed.extend((1_u64 << 62).to_le_bytes());
    packed.push(CONTENT_SIZE_CHECKSUM);
    packed.extend((7_u32 | 1 << 31).to_le_bytes());
    packed.extend(smallest_records(1));
    packed.extend([0; 4]);
    let error = refused(&batch_around_packed(Compression::Lz4, &packed, 1, |_| ()), ErrorCode::InvalidRecord);
    assert!(error.to_string().contains("limit of"), "refused for the size and nothing else: {error}");
}

/// xxh32("\x68\x40" + 2^62 as 8 little-endian bytes) >> 8 & 0xff.
const CONTENT_SIZE_CHECKSUM: u8 = 0x0a;

#[test]
fn row_42_bombs_are_invalid_and_name_the_limit() {
    // 48 MiB of zeros: over 32 times the default of max.message.bytes, far below it as sent.
    let zeros = vec![0; 48 << 20];
    for codec in [Compression::Gzip, Compression::Lz4, Compression::Zstd] {
        let bytes = batch_around(codec, &zeros, 1, |_| ());
        let error = refused(&bytes, ErrorCode::InvalidRecord);
        assert!(error.to_string().contains("limit of 33554816 bytes"), "{error}");
    }
}

#[test]
fn row_43_millions_of_records_in_a_few_bytes_are_invalid() {
    let body = smallest_records(1).repeat(3_000_000);
    let bytes = batch_around(Compression::Zstd, &body, 3_000_000, |_| ());
    let error = refused(&bytes, ErrorCode::InvalidRecord);
    assert_eq!(error, RecordError::RecordCount { count: 3_000_000, count_max: 149_798 });
    // As many as a batch of the largest size can hold uncompressed are sound.
    let most = batch_around(Compression::Zstd, &smallest_records(149_798), 149_798, |_| ());
    assert!(validate(&most).is_ok());
}

#[test]
fn timestamps_out_of_range_name_their_records() {
    let at = |deltas: &[i64]| {
        let mut builder = ringlog_protocol::records::builder::BatchBuilder::new();
        for delta in deltas {
            let record = ringlog_protocol::records::builder::NewRecord {
                timestamp: NOW_MS + delta,
                value: Some(b"v"),
                ..Default::default()
            };
            builder.append(&record).expect("small");
        }
        builder.finish(&Default::default()).expect("not empty")
    };
    let bytes = at(&[0, 3_600_001, 3_600_000, 9_999_999]);
    let error = refused(&bytes, ErrorCode::InvalidTimestamp);
    let indexes: Vec<u32> = error.rejected_records().iter().map(|record| record.index).collect();
    assert_eq!((indexes, error.record_index()), (vec![1, 3], Some(1)));

    // The broker's clock replaces them under LogAppendTime.
    let append_time = RecordLimits { timestamp_type: TimestampType::LogAppendTime, ..limits() };
    assert!(validate_produce_batch(&bytes, &append_time, &mut Vec::new()).is_ok());

    let recent = RecordLimits { timestamp_before_max_ms: 1_000, ..limits() };
    let early =
        validate_produce_batch(&at(&[-1_000, -1_001]), &recent, &mut Vec::new()).expect_err("too old");
    assert_eq!((early.error_code(), early.record_index()), (ErrorCode::InvalidTimestamp, Some(1)));

    // Not set, and as far as it goes.
    assert!(validate_produce_batch(&at(&[-NOW_MS - 1]), &recent, &mut Vec::new()).is_ok());
    let far = two_records(|header| header.base_timestamp = i64::MAX);
    refused(&far, ErrorCode::InvalidTimestamp);
    let long_ago = two_records(|header| header.base_timestamp = i64::MIN);
    assert!(validate(&long_ago).is_ok(), "no limit backwards by default");
}

#[test]
fn records_without_keys_are_refused_on_compacted_topics() {
    let compacted = RecordLimits { compacted: true, ..limits() };
    for codec in CODECS {
        let error =
            validate_produce_batch(&sound_batch(codec), &compacted, &mut Vec::new()).expect_err("no key");
        assert_eq!((error.error_code(), error.record_index()), (ErrorCode::InvalidRecord, Some(1)));
        assert_eq!(error.rejected_records().len(), 1);
    }
    let all = batch_around(Compression::None, &smallest_records(500), 500, |_| ());
    let error = validate_produce_batch(&all, &compacted, &mut Vec::new()).expect_err("no keys");
    assert_eq!(error.rejected_records().len(), REJECTED_RECORDS_MAX);
    assert!(matches!(error, RecordError::Rejected { count: 500, .. }));
}

#[test]
fn a_max_timestamp_that_lies_is_noticed_and_mended() {
    for stated in [0, -1, i64::MAX, NOW_MS - 1] {
        let mut bytes = two_records(|header| header.max_timestamp = stated);
        let summary = validate(&bytes).expect("only the maximum lies");
        assert!(summary.states_wrong_max_timestamp());
        set_max_timestamp(&mut bytes, summary.max_timestamp);
        let mended = validate(&bytes).expect("the crc was computed anew");
        assert!(!mended.states_wrong_max_timestamp());
        assert_eq!(mended.header.max_timestamp, NOW_MS);
    }
}
