//! The filter against a naive model, over random logs.

use std::collections::BTreeMap;

use proptest::prelude::*;
use ringlog_protocol::ids::{ProducerEpoch, Sequence};
use ringlog_protocol::records::batch::check_crc;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::records::compression::Compression;
use ringlog_protocol::records::validate::BatchProducer;

use super::*;

const NOW: i64 = 1_000_000;
const RETENTION: i64 = 500;

/// Key, and a value or a tombstone.
type Plain = (Option<u8>, Option<u16>);

#[derive(Clone, Debug)]
struct Written {
    records: Vec<Plain>,
    codec: Compression,
    producer: Option<i64>,
    epoch_step: i32,
    is_transactional: bool,
}

fn written() -> impl Strategy<Value = Written> {
    let plain = (proptest::option::weighted(0.95, 0_u8..12), proptest::option::weighted(0.8, any::<u16>()));
    (
        proptest::collection::vec(plain, 1..6),
        proptest::sample::select(&Compression::ALL[..]),
        proptest::option::weighted(0.3, 1_i64..4),
        prop_oneof![6 => Just(0), 1 => Just(1), 1 => Just(3)],
        proptest::bool::weighted(0.05),
    )
        .prop_map(|(records, codec, producer, epoch_step, is_transactional)| Written {
            records,
            codec,
            producer,
            epoch_step,
            is_transactional: is_transactional && producer.is_some(),
        })
}

fn log_of(written: &[Written]) -> Vec<Bytes> {
    let (mut offset, mut epoch) = (100, 0);
    let mut sequences: BTreeMap<i64, i32> = BTreeMap::new();
    let mut batches = Vec::new();
    for batch in written {
        epoch += batch.epoch_step;
        let mut builder = BatchBuilder::new();
        for (index, (key, value)) in batch.records.iter().enumerate() {
            let (key, value) = (key.map(|key| [key]), value.map(u16::to_be_bytes));
            let timestamp = offset * 10 - index as i64;
            let (key, value) = (key.as_ref().map(|key| &key[..]), value.as_ref().map(|value| &value[..]));
            builder.append(&NewRecord { timestamp, key, value, headers: &[] }).expect("a small record");
        }
        let producer = batch.producer.map(|id| {
            let next = sequences.entry(id).or_default();
            let base_sequence = Sequence(*next);
            *next += batch.records.len() as i32;
            BatchProducer { id: ProducerId(id), epoch: ProducerEpoch(0), base_sequence }
        });
        let bits = if batch.is_transactional { 1 << 4 } else { 0 };
        let options = BatchOptions {
            compression: batch.codec,
            producer,
            attributes: ringlog_protocol::records::attributes::Attributes(bits),
            base_offset: Offset(offset),
            leader_epoch: LeaderEpoch(epoch),
            ..BatchOptions::default()
        };
        batches.push(Bytes::from(builder.finish(&options).expect("a small batch")));
        offset += batch.records.len() as i64;
    }
    batches
}

/// Offset, timestamp, key, value.
type Seen = (i64, i64, Option<Vec<u8>>, Option<Vec<u8>>);

fn records_of(batch: &[u8]) -> Vec<Seen> {
    let mut scratch = Vec::new();
    let (header, records) = read_batch(batch, 1 << 20, &mut scratch).expect("readable");
    check_crc(&header, batch).expect("the CRC is right");
    let seen = |record: Record<'_>| {
        let (key, value) = (record.key.map(<[u8]>::to_vec), record.value.map(<[u8]>::to_vec));
        (record.offset.0, record.timestamp, key, value)
    };
    records.map(|record| seen(record.expect("well formed"))).collect()
}

fn header(batch: &[u8]) -> BatchHeader {
    BatchHeader::parse(batch).expect("a batch")
}

fn producers_of(batches: &[Bytes]) -> Vec<(ProducerId, Offset)> {
    let headers = batches.iter().map(|batch| header(batch));
    let of_producers = headers.filter(|header| header.producer_id.0 >= 0);
    let last: BTreeMap<ProducerId, Offset> =
        of_producers.map(|header| (header.producer_id, header.next_offset())).collect();
    last.into_iter().collect()
}

fn rules(batches: &[Bytes], map_bytes: usize, now_ms: i64) -> Rules {
    let mut map = KeyMap::with_bytes(map_bytes, (3, 9));
    let mut map_end = Offset(100);
    let mut scratch = Vec::new();
    for batch in batches {
        if is_of_transaction(&header(batch)) {
            break;
        }
        map_end = note_keys(&mut map, batch, Offset(0), &mut scratch).expect("readable");
        if map_end < header(batch).next_offset() {
            break;
        }
    }
    Rules { map, map_end, now_ms, delete_retention_ms: RETENTION, producers: producers_of(batches) }
}

fn filtered(rules: Rules, batches: &[Bytes], pieces: usize) -> (Vec<Bytes>, u64) {
    let rules = Arc::new(rules);
    let (mut filter, mut out, mut changed) = (Filter::default(), Vec::new(), 0);
    let chunks: Vec<&[Bytes]> = batches.chunks(pieces.max(1)).collect();
    for (index, chunk) in chunks.iter().enumerate() {
        let (mut after, mut part) = filter_batches(filter, &rules, chunk).expect("sound batches");
        if index + 1 == chunks.len() {
            after.finish(&mut part);
        }
        filter = after;
        changed += part.changed;
        let bytes = Bytes::from(part.bytes);
        let mut position = 0;
        for kept in part.batches {
            let batch = bytes.slice(position..position + kept.bytes);
            assert_eq!(header(&batch), kept.header);
            position += kept.bytes;
            out.push(batch);
        }
        assert_eq!(position, bytes.len());
    }
    (out, changed)
}

fn epoch_of(batches: &[Bytes], offset: i64) -> LeaderEpoch {
    let holds = |batch: &&Bytes| header(batch).next_offset().0 > offset;
    batches.iter().find(holds).map(|batch| header(batch).leader_epoch).expect("no offset is left out")
}

fn check_shape(before: &[Bytes], after: &[Bytes]) {
    let mut next = Offset(100);
    for batch in after {
        assert_eq!(header(batch).base_offset, next, "no gap and no repeat");
        next = header(batch).next_offset();
    }
    let end = header(before.last().expect("not empty")).next_offset();
    assert_eq!(next, end);
    (100..end.0).for_each(|offset| assert_eq!(epoch_of(before, offset), epoch_of(after, offset)));
    for (id, end) in producers_of(before) {
        let of = |batches: &[Bytes]| {
            let last = batches
                .iter()
                .map(|batch| header(batch))
                .find(|header| header.producer_id == id && header.next_offset() == end);
            last.map(|last| (last.base_sequence, last.last_offset_delta, last.producer_epoch))
        };
        assert_eq!(of(before), of(after), "what a producer is known by stays");
    }
    let blank = |batch: &&Bytes| is_blank(&header(batch));
    for pair in after.windows(2) {
        let both = pair.iter().filter(blank).count() == 2;
        assert!(!both || header(&pair[0]).leader_epoch < header(&pair[1]).leader_epoch, "runs are one batch");
    }
}

/// What must be left of the records.
fn expected(before: &[Bytes], map_end: Offset) -> Vec<Seen> {
    let mut newest: BTreeMap<Vec<u8>, i64> = BTreeMap::new();
    let all: Vec<(bool, Seen)> = before
        .iter()
        .flat_map(|batch| {
            let stays = is_of_transaction(&header(batch));
            records_of(batch).into_iter().map(move |record| (stays, record))
        })
        .collect();
    for (_, (offset, _, key, _)) in all.iter().filter(|(_, record)| record.0 < map_end.0) {
        if let Some(key) = key {
            newest.insert(key.clone(), *offset);
        }
    }
    let is_left = |(stays, (offset, _, key, _)): &(bool, Seen)| {
        let is_newest = key.as_ref().is_some_and(|key| newest.get(key).is_none_or(|newest| offset >= newest));
        *stays || *offset >= map_end.0 || is_newest
    };
    all.into_iter().filter(is_left).map(|(_, record)| record).collect()
}

proptest! {
    #[test]
    fn the_newest_record_of_each_key_is_left_and_nothing_else_and_no_offset_is_missing(
        written in proptest::collection::vec(written(), 1..30), map_bytes in 0_usize..1500, pieces in 1_usize..8
    ) {
        let before = log_of(&written);
        let first = rules(&before, map_bytes, NOW);
        let map_end = first.map_end;
        let wanted = expected(&before, map_end);
        // The smallest map takes more keys than there are, one bounded so far that it does not is tested below.
        let (after, _) = filtered(first, &before, pieces);
        check_shape(&before, &after);
        let left: Vec<Seen> = after.iter().flat_map(|batch| records_of(batch)).collect();
        prop_assert_eq!(&left, &wanted);
        for batch in after.iter().filter(|batch| !is_of_transaction(&header(batch))) {
            let is_in_reach = header(batch).base_offset < map_end;
            let has_tombstone = records_of(batch).iter().any(|record| record.3.is_none());
            if has_tombstone && is_in_reach {
                prop_assert!(header(batch).attributes.has_delete_horizon());
                prop_assert_eq!(header(batch).base_timestamp, NOW + RETENTION);
            }
        }
        // Once more before the horizon nothing is to be done.
        let (again, changed) = filtered(rules(&after, map_bytes, NOW + RETENTION - 1), &after, pieces);
        if map_end == header(before.last().expect("not empty")).next_offset() {
            prop_assert_eq!((&again, changed), (&after, 0));
            // Behind it tombstones go, and values stay.
            let (last, _) = filtered(rules(&after, map_bytes, NOW + RETENTION), &after, pieces);
            check_shape(&before, &last);
            let left: Vec<Seen> = last.iter().flat_map(|batch| records_of(batch)).collect();
            prop_assert_eq!(left, wanted.into_iter().filter(|record| record.3.is_some()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn several_passes_with_a_small_map_end_where_one_does(
        keys in proptest::collection::vec((0_u16..60, any::<u16>()), 1..200)
    ) {
        let plain = |(key, value): &(u16, u16)| {
            let mut builder = BatchBuilder::new();
            let (key, value) = (key.to_be_bytes(), value.to_be_bytes());
            let record = NewRecord { timestamp: 5, key: Some(&key), value: Some(&value), headers: &[] };
            builder.append(&record).expect("a small record");
            builder
        };
        let batches: Vec<Bytes> = keys.iter().enumerate().map(|(at, pair)| {
            let options = BatchOptions { base_offset: Offset(100 + at as i64), leader_epoch: LeaderEpoch(0), ..BatchOptions::default() };
            Bytes::from(plain(pair).finish(&options).expect("a small batch"))
        }).collect();
        let end = header(batches.last().expect("not empty")).next_offset();
        let (mut log, mut first_dirty, mut passes) = (batches.clone(), Offset(100), 0);
        while first_dirty < end {
            let mut map = KeyMap::with_bytes(0, (1, passes));
            let mut map_end = first_dirty;
            for batch in log.iter().filter(|batch| header(batch).next_offset() > first_dirty) {
                map_end = note_keys(&mut map, batch, first_dirty, &mut Vec::new()).expect("readable");
                if map_end < header(batch).next_offset() {
                    break;
                }
            }
            prop_assert!(map_end > first_dirty, "each pass gets further");
            let rules = Rules { map, map_end, now_ms: NOW, delete_retention_ms: 0, producers: Vec::new() };
            (log, _) = filtered(rules, &log, 7);
            (first_dirty, passes) = (map_end, passes + 1);
        }
        let left: Vec<Seen> = log.iter().flat_map(|batch| records_of(batch)).collect();
        prop_assert_eq!(left, expected(&batches, end));
        check_shape(&batches, &log);
    }
}
