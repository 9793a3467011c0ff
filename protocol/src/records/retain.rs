//! A batch with fewer records, as log compaction leaves it: offsets, producer and epoch stay as they were, records go.
//!
//! Owns the bytes of such a batch; which records stay is the caller's decision. As Kafka's `MemoryRecords.filterTo`: base
//! offset, last offset, sequences and the timestamp type are kept, records keep their own offsets and timestamps, the codec is
//! the same, and the largest timestamp is that of the records that are left. A batch that keeps a tombstone gets a delete
//! horizon (KIP-534) if it has none: attribute bit 6, and the horizon in place of the base timestamp.

use crate::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence};

use super::attributes::{Attributes, TimestampType};
use super::batch::{BATCH_HEADER_BYTES, BATCH_OVERHEAD_BYTES, BatchError, BatchHeader, MAGIC_V2, seal};
use super::compression::{Compression, compress};
use super::reader::{ReadError, Record, Records, read_batch};
use super::validate::NO_TIMESTAMP;
use super::varint::{Cursor, SmallBuffer, varint_bytes};

/// What is left of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retained {
    /// All of it, byte for byte.
    Whole,
    /// Some of it, or other timestamps: the batch was appended to the output.
    Rewritten,
    /// No record. Nothing was appended.
    Nothing,
}

/// Why a batch cannot be made smaller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RetainError {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Compressed anew it is longer than the format can say.
    #[error("the records that are left take {bytes} bytes, more than the format's {}", i32::MAX)]
    TooLarge {
        /// Of the batch.
        bytes: u64,
    },
}

impl From<BatchError> for RetainError {
    fn from(source: BatchError) -> RetainError {
        RetainError::Read(ReadError::Batch { source })
    }
}

/// Keeps the records of the batch in `bytes` for which `keep` says so, and appends the batch to `out` if it is another one then.
///
/// `new_horizon_ms` becomes the delete horizon of a batch that keeps a tombstone and has none yet. At most `limit_bytes` are
/// decompressed, into `scratch`. The CRC is not checked.
///
/// # Errors
/// [`RetainError`]; `out` is as before.
pub fn retain_records(
    bytes: &[u8],
    limit_bytes: usize,
    new_horizon_ms: i64,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
    mut keep: impl FnMut(&BatchHeader, &Record<'_>) -> bool,
) -> Result<Retained, RetainError> {
    let (header, records) = read_batch(bytes, limit_bytes, scratch)?;
    let body = records.rest();
    let mut left = Left::default();
    let ranges = Ranges { records, whole_bytes: body.len() };
    for (record, range) in ranges {
        let record = record?;
        if keep(&header, &record) {
            left.note(&record, range);
        } else {
            left.is_whole = false;
        }
    }
    if left.ranges.is_empty() {
        return Ok(Retained::Nothing);
    }
    let needs_horizon = left.has_tombstone && !header.attributes.has_delete_horizon();
    if left.is_whole && !needs_horizon {
        return Ok(Retained::Whole);
    }
    let base_timestamp = if needs_horizon { new_horizon_ms } else { header.base_timestamp };
    let mut kept = Vec::with_capacity(body.len());
    for range in &left.ranges {
        let record = body.get(range.clone()).unwrap_or_default();
        match base_timestamp == header.base_timestamp {
            true => kept.extend_from_slice(record),
            false => put_rebased(record, header.base_timestamp, base_timestamp, &mut kept)?,
        }
    }
    let is_appended = header.attributes.timestamp_type() == TimestampType::LogAppendTime;
    let attributes = match needs_horizon {
        true => header.attributes.with(Attributes::DELETE_HORIZON),
        false => header.attributes,
    };
    let header = BatchHeader {
        attributes,
        base_timestamp,
        max_timestamp: if is_appended { header.max_timestamp } else { left.max_timestamp },
        record_count: i32::try_from(left.ranges.len()).expect("at most the records that were there"),
        ..header
    };
    put_batch(header, &kept, out)?;
    Ok(Retained::Rewritten)
}

/// Appends the batch without its records: what a producer's last batch leaves, so that its sequence is still known (as Kafka's
/// `DefaultRecordBatch.writeEmptyHeader`). Its largest timestamp stays, its base timestamp is none.
pub fn put_emptied(header: &BatchHeader, out: &mut Vec<u8>) {
    let kept = Attributes::LOG_APPEND_TIME | Attributes::TRANSACTIONAL | Attributes::CONTROL;
    let header = BatchHeader {
        batch_length: header_only_length(),
        attributes: Attributes(header.attributes.0 & kept),
        base_timestamp: NO_TIMESTAMP,
        record_count: 0,
        ..*header
    };
    put_header(&header, out);
}

/// Appends a batch that takes the offsets from `base` up to `end`, which were dropped, and says nothing else: no records, no
/// producer, no time. Readers pass over it; what counts offsets or leader epochs finds none missing.
///
/// # Panics
/// When it would take no offset, or more than 2^31.
pub fn put_blank(base: Offset, end: Offset, epoch: LeaderEpoch, out: &mut Vec<u8>) {
    let last = end.0.checked_sub(base.0).and_then(|count| i32::try_from(count - 1).ok());
    let last_offset_delta = last.filter(|last| *last >= 0).expect("a batch takes 1 to 2^31 offsets");
    let header = BatchHeader {
        base_offset: base,
        batch_length: header_only_length(),
        leader_epoch: epoch,
        magic: MAGIC_V2,
        crc: 0,
        attributes: Attributes::default(),
        last_offset_delta,
        base_timestamp: NO_TIMESTAMP,
        max_timestamp: NO_TIMESTAMP,
        producer_id: ProducerId::NONE,
        producer_epoch: ProducerEpoch::NONE,
        base_sequence: Sequence::NONE,
        record_count: 0,
    };
    put_header(&header, out);
}

/// Whether the batch is one that [`put_blank`] made: it holds nothing, not even a producer's last sequence.
#[must_use]
pub fn is_blank(header: &BatchHeader) -> bool {
    header.record_count == 0
        && header.producer_id == ProducerId::NONE
        && !header.attributes.is_control()
        && !header.attributes.is_transactional()
}

fn header_only_length() -> i32 {
    i32::try_from(BATCH_HEADER_BYTES - BATCH_OVERHEAD_BYTES).expect("a small constant")
}

fn put_header(header: &BatchHeader, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; BATCH_HEADER_BYTES]);
    let batch = out.get_mut(start..).unwrap_or_default();
    header.write_to(batch.first_chunk_mut().expect("the header's bytes were just put"));
    seal(batch);
}

/// Records that stay.
#[derive(Debug)]
struct Left {
    ranges: Vec<std::ops::Range<usize>>,
    is_whole: bool,
    has_tombstone: bool,
    max_timestamp: i64,
}

impl Default for Left {
    fn default() -> Left {
        Left { ranges: Vec::new(), is_whole: true, has_tombstone: false, max_timestamp: NO_TIMESTAMP }
    }
}

impl Left {
    fn note(&mut self, record: &Record<'_>, range: std::ops::Range<usize>) {
        self.ranges.push(range);
        self.has_tombstone |= record.value.is_none();
        self.max_timestamp = self.max_timestamp.max(record.timestamp);
    }
}

/// Records with the place of each in the body.
struct Ranges<'a> {
    records: Records<'a>,
    whole_bytes: usize,
}

impl<'a> Iterator for Ranges<'a> {
    type Item = (Result<Record<'a>, ReadError>, std::ops::Range<usize>);

    fn next(&mut self) -> Option<Self::Item> {
        let start = self.whole_bytes - self.records.rest().len();
        let record = self.records.next()?;
        Some((record, start..self.whole_bytes - self.records.rest().len()))
    }
}

/// Appends a record whose timestamp counts from another base.
fn put_rebased(record: &[u8], old_base: i64, new_base: i64, out: &mut Vec<u8>) -> Result<(), RetainError> {
    let malformed = |fault| RetainError::Read(ReadError::Malformed { index: 0, fault });
    let mut cursor = Cursor::new(record);
    cursor.varint("record length").map_err(malformed)?;
    let attributes = cursor.take(1, "record attributes").map_err(malformed)?;
    let delta = cursor.varlong("timestamp delta").map_err(malformed)?;
    // Wrapping as readers add it.
    let delta = old_base.wrapping_add(delta).wrapping_sub(new_base);
    let rest = cursor.rest();
    let mut fields = SmallBuffer::new();
    fields.varint((1 + varint_bytes(delta) + rest.len()) as i64);
    fields.push(attributes.first().copied().unwrap_or_default());
    fields.varint(delta);
    out.extend_from_slice(fields.as_slice());
    out.extend_from_slice(rest);
    Ok(())
}

fn put_batch(header: BatchHeader, body: &[u8], out: &mut Vec<u8>) -> Result<(), RetainError> {
    let start = out.len();
    out.extend_from_slice(&[0; BATCH_HEADER_BYTES]);
    compress(header.attributes.compression().unwrap_or(Compression::None), None, body, out);
    let bytes = out.len() - start;
    let Ok(batch_length) = i32::try_from(bytes - BATCH_OVERHEAD_BYTES) else {
        out.truncate(start);
        return Err(RetainError::TooLarge { bytes: bytes as u64 });
    };
    let batch = out.get_mut(start..).unwrap_or_default();
    let header = BatchHeader { batch_length, ..header };
    header.write_to(batch.first_chunk_mut().expect("the header's bytes were put first"));
    seal(batch);
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::batch::check_crc;
    use super::super::builder::{BatchBuilder, BatchOptions, NewRecord};
    use super::super::reader::Header;
    use super::super::validate::BatchProducer;
    use super::*;

    const LIMIT: usize = 1 << 20;

    /// Key, value, timestamp.
    type Plain = (Option<Vec<u8>>, Option<Vec<u8>>, i64);

    fn options(codec: Compression) -> BatchOptions {
        let producer =
            BatchProducer { id: ProducerId(7), epoch: ProducerEpoch(2), base_sequence: Sequence(40) };
        BatchOptions {
            compression: codec,
            producer: Some(producer),
            base_offset: Offset(1000),
            leader_epoch: LeaderEpoch(5),
            ..BatchOptions::default()
        }
    }

    fn batch(records: &[Plain], codec: Compression) -> Vec<u8> {
        let mut builder = BatchBuilder::new();
        for (key, value, timestamp) in records {
            let headers = [Header { key: b"trace", value: Some(b"1") }];
            let (key, value) = (key.as_deref(), value.as_deref());
            let record = NewRecord { timestamp: *timestamp, key, value, headers: &headers };
            builder.append(&record).expect("a small record");
        }
        builder.finish(&options(codec)).expect("a small batch")
    }

    /// Offset, timestamp, sequence, key, value, headers.
    type Seen = (i64, i64, i32, Option<Vec<u8>>, Option<Vec<u8>>, usize);

    fn seen(bytes: &[u8]) -> (BatchHeader, Vec<Seen>) {
        let mut scratch = Vec::new();
        let (header, records) = read_batch(bytes, LIMIT, &mut scratch).expect("readable");
        check_crc(&header, bytes).expect("the CRC is right");
        assert_eq!(header.total_bytes(), bytes.len(), "exactly one batch");
        let of = |record: Record<'_>| {
            let (key, value) = (record.key.map(<[u8]>::to_vec), record.value.map(<[u8]>::to_vec));
            (record.offset.0, record.timestamp, record.sequence.0, key, value, record.headers.len())
        };
        let records = records.map(|record| of(record.expect("well formed"))).collect();
        (header, records)
    }

    fn plain() -> impl Strategy<Value = Plain> {
        let bytes = || proptest::collection::vec(any::<u8>(), 0..40);
        (proptest::option::of(bytes()), proptest::option::of(bytes()), 0_i64..1_000_000)
    }

    proptest! {
        #[test]
        fn what_is_left_is_what_was_there(
            records in proptest::collection::vec(plain(), 1..30), keep in proptest::collection::vec(any::<bool>(), 30),
            codec in proptest::sample::select(&Compression::ALL[..]), horizon in 0_i64..10_000_000
        ) {
            let bytes = batch(&records, codec);
            let (before, all) = seen(&bytes);
            let wanted: Vec<Seen> = all.iter().zip(&keep).filter(|(_, keep)| **keep).map(|(seen, _)| seen.clone()).collect();
            let (mut scratch, mut out) = (Vec::new(), b"before".to_vec());
            let stays = |_: &BatchHeader, record: &Record<'_>| keep[(record.offset.0 - 1000) as usize];
            let retained = retain_records(&bytes, LIMIT, horizon, &mut scratch, &mut out, stays).expect("sound");
            let has_tombstone = wanted.iter().any(|seen| seen.4.is_none());
            let expected = match wanted.len() {
                0 => Retained::Nothing,
                len if len == all.len() && !has_tombstone => Retained::Whole,
                _ => Retained::Rewritten,
            };
            prop_assert_eq!(retained, expected);
            prop_assert!(out.starts_with(b"before"));
            if retained != Retained::Rewritten {
                prop_assert_eq!(out.len(), 6);
                return Ok(());
            }
            let (after, left) = seen(&out[6..]);
            prop_assert_eq!(&left, &wanted);
            prop_assert_eq!(after.max_timestamp, wanted.iter().map(|seen| seen.1).max().expect("not empty"));
            prop_assert_eq!(after.attributes.has_delete_horizon(), has_tombstone);
            prop_assert_eq!(after.base_timestamp, if has_tombstone { horizon } else { before.base_timestamp });
            let same = BatchHeader {
                batch_length: before.batch_length, crc: before.crc, attributes: before.attributes,
                base_timestamp: before.base_timestamp, max_timestamp: before.max_timestamp,
                record_count: before.record_count, ..after
            };
            prop_assert_eq!(same, before);
            // A horizon that is there stays as it is.
            let mut again = Vec::new();
            let retained = retain_records(&out[6..], LIMIT, horizon + 1, &mut scratch, &mut again, |_, _| true);
            prop_assert_eq!(retained, Ok(Retained::Whole));
        }

        #[test]
        fn damaged_bytes_are_refused_or_read_and_never_more(
            records in proptest::collection::vec(plain(), 1..6), place: proptest::sample::Index, bit in 0_u8..8
        ) {
            let mut bytes = batch(&records, Compression::None);
            let place = place.index(bytes.len());
            bytes[place] ^= 1 << bit;
            let mut out = Vec::new();
            let result = retain_records(&bytes, LIMIT, 9, &mut Vec::new(), &mut out, |_, record| record.offset.0 % 2 == 0);
            prop_assert!(result == Ok(Retained::Rewritten) || out.is_empty());
        }
    }

    #[test]
    fn an_emptied_batch_keeps_what_its_producer_is_known_by() {
        let bytes = batch(&[(None, Some(b"v".to_vec()), 8), (None, None, 9)], Compression::Zstd);
        let (before, _) = seen(&bytes);
        let mut out = Vec::new();
        put_emptied(&before, &mut out);
        let (after, records) = seen(&out);
        assert!(records.is_empty() && out.len() == BATCH_HEADER_BYTES && !is_blank(&after));
        assert_eq!((after.base_offset, after.last_offset_delta), (Offset(1000), 1));
        assert_eq!((after.producer_id, after.producer_epoch), (ProducerId(7), ProducerEpoch(2)));
        assert_eq!((after.base_sequence, after.max_timestamp), (Sequence(40), 9));
        assert_eq!((after.base_timestamp, after.newest_timestamp()), (NO_TIMESTAMP, NO_TIMESTAMP));
        assert_eq!(after.attributes, Attributes::default());
    }

    #[test]
    fn a_blank_batch_takes_offsets_and_says_nothing() {
        let mut out = Vec::new();
        put_blank(Offset(5), Offset(5 + (1 << 31)), LeaderEpoch(3), &mut out);
        let (header, records) = seen(&out);
        assert!(records.is_empty() && is_blank(&header));
        assert_eq!((header.base_offset, header.next_offset()), (Offset(5), Offset(5 + (1 << 31))));
        assert_eq!(header.leader_epoch, LeaderEpoch(3));
    }
}
