//! Batches through every codec and back, against another implementation, cut at every byte, with every bit flipped, and
//! mutated at random: read as they were written, or an error, never a panic.

mod records_support;

use bytes::{Bytes, BytesMut};
use indexmap::IndexMap;
use kafka_protocol::protocol::StrBytes;
use kafka_protocol::records as oracle;
use proptest::prelude::*;
use records_support::{NOW_MS, limits, sound_batch, validate};
use ringlog_protocol::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence};
use ringlog_protocol::records::attributes::Attributes;
use ringlog_protocol::records::batch::{
    batches, seal, set_base_offset, set_leader_epoch, set_log_append_time,
};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::compression::{Compression, compress, decompress};
use ringlog_protocol::records::lookup::{FoundRecord, first_record_at_or_after, record_with_max_timestamp};
use ringlog_protocol::records::reader::{Header, read_batch, sequence_after};
use ringlog_protocol::records::validate::{BatchProducer, RecordLimits, validate_produce_batch};

const LIMIT_BYTES: usize = 32 << 20;

#[derive(Debug, Clone, PartialEq)]
struct OwnedRecord {
    timestamp: i64,
    key: Option<Vec<u8>>,
    value: Option<Vec<u8>>,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

fn some_bytes() -> impl Strategy<Value = Option<Vec<u8>>> {
    let text = (0..200_usize).prop_map(|count| b"partition ".repeat(count));
    proptest::option::of(prop_oneof![proptest::collection::vec(any::<u8>(), 0..70), text])
}

fn some_records() -> impl Strategy<Value = Vec<OwnedRecord>> {
    let timestamp = prop_oneof![Just(-1), NOW_MS - 10_000..NOW_MS + 10_000, 0..i64::from(i32::MAX)];
    let header = ("[a-zé]{0,6}", some_bytes());
    let record = (timestamp, some_bytes(), some_bytes(), proptest::collection::vec(header, 0..4))
        .prop_map(|(timestamp, key, value, headers)| OwnedRecord { timestamp, key, value, headers });
    proptest::collection::vec(record, 1..80)
}

fn some_codec() -> impl Strategy<Value = Compression> {
    proptest::sample::select(&Compression::ALL[..])
}

fn some_producer() -> impl Strategy<Value = Option<BatchProducer>> {
    let producer = (0..i64::MAX, 0..i16::MAX, 0..=i32::MAX).prop_map(|(id, epoch, sequence)| BatchProducer {
        id: ProducerId(id),
        epoch: ProducerEpoch(epoch),
        base_sequence: Sequence(sequence),
    });
    proptest::option::of(producer)
}

fn build(records: &[OwnedRecord], options: &BatchOptions) -> Vec<u8> {
    let mut builder = BatchBuilder::new();
    for record in records {
        let headers: Vec<Header<'_>> = record
            .headers
            .iter()
            .map(|(key, value)| Header { key: key.as_bytes(), value: value.as_deref() })
            .collect();
        let record = NewRecord {
            timestamp: record.timestamp,
            key: record.key.as_deref(),
            value: record.value.as_deref(),
            headers: &headers,
        };
        let expected = builder.uncompressed_bytes() + builder.bytes_of(&record);
        builder.append(&record).expect("small");
        assert_eq!(builder.uncompressed_bytes(), expected, "sizes are known before");
    }
    builder.finish(options).expect("not empty")
}

fn read(batch: &[u8]) -> Vec<(i64, i32, OwnedRecord)> {
    let mut scratch = Vec::new();
    let (_, records) = read_batch(batch, LIMIT_BYTES, &mut scratch).expect("sound");
    let owned = |record: ringlog_protocol::records::reader::Record<'_>| OwnedRecord {
        timestamp: record.timestamp,
        key: record.key.map(<[u8]>::to_vec),
        value: record.value.map(<[u8]>::to_vec),
        headers: record
            .headers
            .map(|header| {
                let key = String::from_utf8(header.key.to_vec()).expect("made of a string");
                (key, header.value.map(<[u8]>::to_vec))
            })
            .collect(),
    };
    records
        .map(|record| record.expect("sound"))
        .map(|record| (record.offset.0, record.sequence.0, owned(record)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn round_trip(records in some_records(), codec in some_codec(), producer in some_producer(), transactional: bool) {
        let bits = if transactional && producer.is_some() { Attributes::TRANSACTIONAL } else { 0 };
        let options = BatchOptions {
            compression: codec,
            producer,
            attributes: Attributes(bits),
            base_offset: Offset(77),
            leader_epoch: LeaderEpoch(5),
            ..BatchOptions::default()
        };
        let batch = build(&records, &options);

        let summary = validate(&batch).expect("sound");
        prop_assert_eq!(summary.record_count as usize, records.len());
        prop_assert_eq!((summary.codec, summary.producer), (codec, producer));
        prop_assert_eq!(summary.transactional, bits != 0);
        prop_assert_eq!(summary.header.next_offset(), Offset(77 + records.len() as i64));
        let max = records.iter().map(|record| record.timestamp).max().expect("not empty");
        prop_assert_eq!(summary.max_timestamp, max);
        prop_assert!(!summary.states_wrong_max_timestamp());

        let base_sequence = producer.map_or(Sequence::NONE, |producer| producer.base_sequence);
        let expected: Vec<_> = records
            .iter()
            .enumerate()
            .map(|(index, record)| {
                (77 + index as i64, sequence_after(base_sequence, index as i32).0, record.clone())
            })
            .collect();
        prop_assert_eq!(read(&batch), expected);
    }

    #[test]
    fn lookups_agree_with_a_plain_search(records in some_records(), codec in some_codec(), target in any::<u8>()) {
        let options = BatchOptions { compression: codec, base_offset: Offset(9), ..BatchOptions::default() };
        let batch = build(&records, &options);
        let found = |index: usize| FoundRecord {
            offset: Offset(9 + index as i64),
            timestamp: records[index].timestamp,
        };
        // Targets at, just after and between the records' own times.
        let target_ms = records[usize::from(target) % records.len()].timestamp + i64::from(target % 3);
        let mut scratch = Vec::new();
        prop_assert_eq!(
            first_record_at_or_after(&batch, target_ms, LIMIT_BYTES, &mut scratch),
            Ok(records.iter().position(|record| record.timestamp >= target_ms).map(found))
        );
        let max = records.iter().map(|record| record.timestamp).max().expect("not empty");
        let summary = validate(&batch).expect("sound");
        let first = records.iter().position(|record| record.timestamp == max).expect("not empty");
        prop_assert_eq!(record_with_max_timestamp(&batch, LIMIT_BYTES, &mut scratch), Ok(Some(found(first))));
        if max >= 0 {
            prop_assert_eq!(summary.max_timestamp_offset_delta as usize, first);
        }
    }

    #[test]
    fn the_oracle_reads_what_we_write(records in some_records(), codec in some_codec(), producer in some_producer()) {
        let batch = build(&records, &BatchOptions { compression: codec, producer, ..BatchOptions::default() });
        let mut bytes = Bytes::from(batch);
        let set = oracle::RecordBatchDecoder::decode_with_custom_compression(
            &mut bytes,
            Some(|packed: &mut Bytes, codec| {
                let mut output = Vec::new();
                decompress(ours(codec), packed, LIMIT_BYTES, &mut output)?;
                Ok(Bytes::from(output))
            }),
        )
        .expect("sound");
        prop_assert_eq!(ours(set.compression), codec);
        prop_assert_eq!(set.records.len(), records.len());
        for (index, (theirs, record)) in set.records.iter().zip(&records).enumerate() {
            prop_assert_eq!(theirs.offset, index as i64);
            prop_assert_eq!(theirs.timestamp, record.timestamp);
            prop_assert_eq!(theirs.key.as_deref(), record.key.as_deref());
            prop_assert_eq!(theirs.value.as_deref(), record.value.as_deref());
            prop_assert_eq!(theirs.producer_id, producer.map_or(-1, |producer| producer.id.0));
            prop_assert_eq!(theirs.headers.clone(), headers_of(record));
        }
    }

    #[test]
    fn we_read_what_the_oracle_writes(records in some_records(), codec in some_codec()) {
        let theirs: Vec<oracle::Record> = records.iter().enumerate().map(|(index, record)| oracle_record(index, record)).collect();
        let compression = match codec {
            Compression::None => oracle::Compression::None,
            Compression::Gzip => oracle::Compression::Gzip,
            Compression::Snappy => oracle::Compression::Snappy,
            Compression::Lz4 => oracle::Compression::Lz4,
            Compression::Zstd => oracle::Compression::Zstd,
        };
        let options = oracle::RecordEncodeOptions { version: 2, compression };
        let mut batch = BytesMut::new();
        oracle::RecordBatchEncoder::encode_with_custom_compression(
            &mut batch,
            &theirs,
            &options,
            Some(|plain: &mut BytesMut, out: &mut BytesMut, codec| {
                let mut packed = Vec::new();
                compress(ours(codec), None, plain, &mut packed);
                out.extend_from_slice(&packed);
                Ok(())
            }),
        )
        .expect("sound");
        let summary = validate(&batch).expect("sound");
        prop_assert_eq!((summary.record_count as usize, summary.codec), (records.len(), codec));
        let expected: Vec<OwnedRecord> = records.iter().map(without_repeated_headers).collect();
        let read: Vec<OwnedRecord> = read(&batch).into_iter().map(|(_, _, record)| record).collect();
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(validate(&noise).is_err());
        for view in batches(&noise).flatten() {
            let _ = read_batch(view.bytes, LIMIT_BYTES, &mut Vec::new()).map(|(_, records)| records.count());
        }
    }

    /// Changes behind a right CRC reach every check that damage on the way does not.
    #[test]
    fn sealed_mutations_never_panic_and_what_passes_reads_the_same(
        records in some_records(),
        codec in some_codec(),
        mutations in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..5),
        in_body: bool,
    ) {
        let mut batch = build(&records, &BatchOptions { compression: codec, ..BatchOptions::default() });
        let from = if in_body { 61 } else { 21 };
        for (at, byte) in mutations {
            let at = from + at.index(batch.len() - from);
            batch[at] = byte;
        }
        seal(&mut batch);
        let mut scratch = Vec::new();
        let verdict = validate_produce_batch(&batch, &limits(), &mut scratch);
        let mut scratch = Vec::new();
        let read: Result<Vec<i64>, _> = read_batch(&batch, LIMIT_BYTES, &mut scratch)
            .and_then(|(_, records)| records.map(|record| record.map(|record| record.offset.0)).collect());
        if let Ok(summary) = verdict {
            let offsets: Vec<i64> = (0..i64::from(summary.record_count)).collect();
            prop_assert_eq!(read, Ok(offsets), "whatever is accepted can be consumed");
        }
    }
}

fn ours(codec: oracle::Compression) -> Compression {
    Compression::from_bits(codec as u8).expect("the numbers are Kafka's")
}

/// The oracle keeps headers in a map, so that of a repeated key the last value stays, at the first place.
fn headers_of(record: &OwnedRecord) -> IndexMap<StrBytes, Option<Bytes>> {
    let entry = |(key, value): &(String, Option<Vec<u8>>)| {
        (StrBytes::from_string(key.clone()), value.clone().map(Bytes::from))
    };
    record.headers.iter().map(entry).collect()
}

fn without_repeated_headers(record: &OwnedRecord) -> OwnedRecord {
    let kept: IndexMap<String, Option<Vec<u8>>> = record.headers.iter().cloned().collect();
    OwnedRecord { headers: kept.into_iter().collect(), ..record.clone() }
}

fn oracle_record(index: usize, record: &OwnedRecord) -> oracle::Record {
    oracle::Record {
        transactional: false,
        control: false,
        delete_horizon: false,
        partition_leader_epoch: -1,
        producer_id: -1,
        producer_epoch: -1,
        timestamp_type: oracle::TimestampType::Creation,
        offset: index as i64,
        // Its encoder splits batches where offset and sequence do not go on together.
        sequence: index as i32,
        timestamp: record.timestamp,
        key: record.key.clone().map(Bytes::from),
        value: record.value.clone().map(Bytes::from),
        headers: headers_of(record),
    }
}

#[test]
fn every_cut_of_every_codec_is_an_error() {
    for codec in Compression::ALL {
        let batch = sound_batch(codec);
        for cut in 0..batch.len() {
            assert!(validate(&batch[..cut]).is_err(), "{codec} cut at {cut}");
            let mut walk = batches(&batch[..cut]);
            assert!(walk.next().is_none());
            assert_eq!(walk.partial().map(|partial| partial.bytes), (cut > 0).then_some(cut));
        }
    }
}

#[test]
fn every_flipped_bit_is_an_error_unless_it_is_outside_the_crc() {
    for codec in Compression::ALL {
        let batch = sound_batch(codec);
        for bit in 0..batch.len() * 8 {
            let mut bytes = batch.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            // The base offset and the leader epoch: the broker stamps both.
            let outside = matches!(bit / 8, 0..8 | 12..16);
            assert_eq!(validate(&bytes).is_ok(), outside, "{codec} bit {} of byte {}", bit % 8, bit / 8);
        }
    }
}

#[test]
fn a_run_of_stamped_batches_reads_back_in_order() {
    let mut run = Vec::new();
    for (index, codec) in Compression::ALL.into_iter().enumerate() {
        let mut batch = sound_batch(codec);
        set_base_offset(&mut batch, Offset(3 * index as i64));
        set_leader_epoch(&mut batch, LeaderEpoch(index as i32));
        if index % 2 == 1 {
            set_log_append_time(&mut batch, NOW_MS + 1);
        }
        run.extend(batch);
    }
    let mut offsets = Vec::new();
    for view in batches(&run) {
        let view = view.expect("sound");
        let records = read(view.bytes);
        if view.header.leader_epoch.0 % 2 == 1 {
            assert!(
                records.iter().all(|(_, _, record)| record.timestamp == NOW_MS + 1),
                "the broker's clock"
            );
            let first = first_record_at_or_after(view.bytes, NOW_MS + 1, LIMIT_BYTES, &mut Vec::new());
            let expected = FoundRecord { offset: view.header.base_offset, timestamp: NOW_MS + 1 };
            assert_eq!(first, Ok(Some(expected)));
        }
        offsets.extend(records.into_iter().map(|(offset, _, _)| offset));
    }
    assert_eq!(offsets, (0..15).collect::<Vec<_>>());
}

#[test]
fn a_builder_is_empty_after_a_batch_and_says_so() {
    let mut builder = BatchBuilder::new();
    let record = NewRecord { timestamp: NOW_MS, value: Some(b"v"), ..NewRecord::default() };
    builder.append(&record).expect("small");
    let first = builder.finish(&BatchOptions::default()).expect("one record");
    assert!(builder.is_empty());
    assert!(builder.finish(&BatchOptions::default()).is_err());
    builder.append(&record).expect("small");
    assert_eq!(builder.finish(&BatchOptions::default()), Ok(first));
}

#[test]
fn timestamps_too_far_apart_are_refused_by_the_builder() {
    let mut builder = BatchBuilder::new();
    builder.append(&NewRecord { timestamp: i64::MIN, ..NewRecord::default() }).expect("any first timestamp");
    let far = NewRecord { timestamp: i64::MAX, ..NewRecord::default() };
    assert!(builder.append(&far).is_err());
    assert_eq!(builder.record_count(), 1);
    let bytes = builder.finish(&BatchOptions::default()).expect("the first is kept");
    let any_time = RecordLimits { timestamp_after_max_ms: i64::MAX, ..limits() };
    assert!(validate_produce_batch(&bytes, &any_time, &mut Vec::new()).is_ok());
}
