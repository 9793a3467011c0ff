//! Batches as Apache Kafka's Java client 4.4.0 writes them (`MemoryRecordsBuilder`), byte for byte, in every codec.
//!
//! "small" holds three records with keys, nulls and headers by a transactional producer; "large" 150 records of 1,000 bytes,
//! so that snappy has several chunks and lz4 several blocks.

mod records_support;

use records_support::{NOW_MS, limits};
use ringlog_protocol::ids::{LeaderEpoch, ProducerEpoch, ProducerId, Sequence};
use ringlog_protocol::records::attributes::Attributes;
use ringlog_protocol::records::batch::{BatchHeader, check_crc};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::compression::Compression;
use ringlog_protocol::records::reader::{Header, read_batch};
use ringlog_protocol::records::validate::{BatchProducer, validate_produce_batch};

const SMALL: [(Compression, &[u8]); 5] = [
    (Compression::None, include_bytes!("records_vectors/small-none.batch")),
    (Compression::Gzip, include_bytes!("records_vectors/small-gzip.batch")),
    (Compression::Snappy, include_bytes!("records_vectors/small-snappy.batch")),
    (Compression::Lz4, include_bytes!("records_vectors/small-lz4.batch")),
    (Compression::Zstd, include_bytes!("records_vectors/small-zstd.batch")),
];

const LARGE: [(Compression, &[u8]); 4] = [
    (Compression::Gzip, include_bytes!("records_vectors/large-gzip.batch")),
    (Compression::Snappy, include_bytes!("records_vectors/large-snappy.batch")),
    (Compression::Lz4, include_bytes!("records_vectors/large-lz4.batch")),
    (Compression::Zstd, include_bytes!("records_vectors/large-zstd.batch")),
];

const PRODUCER: BatchProducer =
    BatchProducer { id: ProducerId(4_711), epoch: ProducerEpoch(3), base_sequence: Sequence(42) };

/// Timestamp, key, value, headers.
type PlainRecord = (i64, Option<Vec<u8>>, Option<Vec<u8>>, Vec<Header<'static>>);

fn small_records() -> Vec<PlainRecord> {
    vec![
        (
            NOW_MS,
            Some(b"key".to_vec()),
            Some(b"value".to_vec()),
            vec![Header { key: b"h1", value: Some(b"x") }, Header { key: b"h2", value: None }],
        ),
        (NOW_MS + 500, None, None, vec![]),
        (NOW_MS - 1, Some(vec![]), Some(vec![]), vec![Header { key: b"", value: Some(b"") }]),
    ]
}

#[test]
fn small_batches_are_accepted_and_read() {
    for (codec, bytes) in SMALL {
        let summary = validate_produce_batch(bytes, &limits(), &mut Vec::new()).expect("Kafka wrote it");
        assert_eq!(summary.codec, codec);
        assert_eq!(summary.producer, Some(PRODUCER));
        assert!(summary.transactional);
        assert_eq!(summary.header.leader_epoch, LeaderEpoch(7));
        assert_eq!((summary.record_count, summary.last_offset_delta), (3, 2));
        assert_eq!((summary.max_timestamp, summary.max_timestamp_offset_delta), (NOW_MS + 500, 1));
        assert!(!summary.states_wrong_max_timestamp());
        assert_eq!(summary.body_bytes_uncompressed, 102 - 61);

        let mut scratch = Vec::new();
        let (header, records) = read_batch(bytes, 1 << 20, &mut scratch).expect("Kafka wrote it");
        assert_eq!(check_crc(&header, bytes), Ok(()));
        let records: Vec<_> = records.map(|record| record.expect("Kafka wrote it")).collect();
        assert_eq!(records.len(), 3);
        for (index, (record, expected)) in records.iter().zip(small_records()).enumerate() {
            assert_eq!((record.offset.0, record.sequence.0), (index as i64, 42 + index as i32));
            let read = (
                record.timestamp,
                record.key.map(<[u8]>::to_vec),
                record.value.map(<[u8]>::to_vec),
                record.headers.collect::<Vec<_>>(),
            );
            assert_eq!(read, expected, "{codec} record {index}");
        }
    }
}

#[test]
fn large_batches_are_accepted_and_read() {
    let value: Vec<u8> = (0..1_000).map(|index| b'a' + (index % 23) as u8).collect();
    for (codec, bytes) in LARGE {
        let summary = validate_produce_batch(bytes, &limits(), &mut Vec::new()).expect("Kafka wrote it");
        assert_eq!((summary.codec, summary.record_count), (codec, 150));
        assert_eq!((summary.max_timestamp, summary.max_timestamp_offset_delta), (NOW_MS + 149, 149));
        let mut scratch = Vec::new();
        let (_, records) = read_batch(bytes, 1 << 20, &mut scratch).expect("Kafka wrote it");
        let records: Vec<_> = records.map(|record| record.expect("Kafka wrote it")).collect();
        assert_eq!(records.len(), 150);
        assert!(records.iter().all(|record| record.value == Some(&value) && record.key.is_none()));
    }
}

#[test]
fn the_builder_writes_the_same_bytes_as_the_java_client() {
    let mut builder = BatchBuilder::new();
    for (timestamp, key, value, headers) in small_records() {
        let record = NewRecord { timestamp, key: key.as_deref(), value: value.as_deref(), headers: &headers };
        builder.append(&record).expect("small");
    }
    let options = BatchOptions {
        producer: Some(PRODUCER),
        attributes: Attributes(Attributes::TRANSACTIONAL),
        leader_epoch: LeaderEpoch(7),
        ..BatchOptions::default()
    };
    assert_eq!(builder.finish(&options).expect("not empty"), SMALL[0].1);
}

#[test]
fn every_cut_of_a_compressed_batch_of_kafka_is_noticed() {
    for (codec, bytes) in SMALL {
        for cut in 0..bytes.len() {
            assert!(BatchHeader::parse(&bytes[..cut]).is_err(), "{codec} cut at {cut}");
        }
    }
}
