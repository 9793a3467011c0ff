//! The records of one batch, borrowed from its bytes.
//!
//! It checks structure (lengths, counts, varints), so that any bytes are safe to read; what a client may send is for
//! [`super::validate`]. A batch read here may come from a log: compacted ones have gaps between offsets.

use crate::ids::{Offset, Sequence};

use super::attributes::TimestampType;
use super::batch::{BATCH_HEADER_BYTES, BatchError, BatchHeader};
use super::compression::{Compression, CompressionError, decompress};
use super::error::RecordFault;
use super::varint::Cursor;

/// The least bytes of a record, its length included: seven fields of one byte.
pub const RECORD_BYTES_MIN: usize = 7;
/// The least bytes of a header: a key's and a value's length.
const HEADER_BYTES_MIN: usize = 2;

/// One record of a batch.
///
/// ```text
/// length            varint    bytes after this field
/// attributes        1 byte    unused: Kafka ignores them
/// timestamp delta   varlong   to the batch's base timestamp
/// offset delta      varint    to the batch's base offset
/// key length, key   varint    -1 = null
/// value length, ..  varint    -1 = null: a tombstone under compaction
/// header count      varint    then each: key length (>= 0), key, value length (-1 = null), value
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// Its offset.
    pub offset: Offset,
    /// Milliseconds since the Unix epoch; the batch's maximum under LogAppendTime.
    pub timestamp: i64,
    /// Its sequence, or -1 if the producer is not idempotent.
    pub sequence: Sequence,
    /// The key.
    pub key: Option<&'a [u8]>,
    /// The value.
    pub value: Option<&'a [u8]>,
    /// The headers, in order; keys may repeat.
    pub headers: Headers<'a>,
}

/// One header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// The key: UTF-8 from all known clients, but Kafka does not check it, so neither does this.
    pub key: &'a [u8],
    /// The value.
    pub value: Option<&'a [u8]>,
}

/// The headers of a record; an iterator whose structure was checked when the record was read.
#[derive(Debug, Clone, Copy)]
pub struct Headers<'a> {
    cursor: Cursor<'a>,
    left: u32,
}

impl Headers<'_> {
    /// How many are left to yield.
    #[must_use]
    pub fn len(&self) -> usize {
        self.left as usize
    }

    /// Whether none is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = Header<'a>;

    fn next(&mut self) -> Option<Header<'a>> {
        self.left = self.left.checked_sub(1)?;
        take_header(&mut self.cursor).ok()
    }
}

/// Why a batch cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The header is wrong.
    #[error("the batch is not sound: {source}")]
    Batch {
        /// What is wrong.
        #[from]
        source: BatchError,
    },
    /// An unassigned codec number.
    #[error("compression codec {codec} is none of 0 to 4")]
    UnknownCodec {
        /// 5, 6 or 7.
        codec: u8,
    },
    /// The records do not decompress within the bound.
    #[error("the records cannot be decompressed: {source}")]
    Compression {
        /// What is wrong.
        #[from]
        source: CompressionError,
    },
    /// A record is malformed.
    #[error("record {index} is malformed: {fault}")]
    Malformed {
        /// Position within the batch, from 0.
        index: u32,
        /// What is wrong.
        fault: RecordFault,
    },
}

/// Reads the batch that `bytes` begins with: its header, and its records, decompressed into `scratch` if need be.
///
/// `scratch` is emptied only when it is needed and keeps its capacity for the next call; at most `limit_bytes` (+ 1) are
/// produced. The CRC is not checked.
///
/// # Errors
/// [`ReadError`], but not `Malformed`, which the iterator yields.
pub fn read_batch<'a>(
    bytes: &'a [u8],
    limit_bytes: usize,
    scratch: &'a mut Vec<u8>,
) -> Result<(BatchHeader, Records<'a>), ReadError> {
    let header = BatchHeader::parse(bytes)?;
    let body = bytes.get(BATCH_HEADER_BYTES..header.total_bytes()).unwrap_or_default();
    let codec = header.attributes.codec_bits();
    let body = match header.attributes.compression() {
        None => return Err(ReadError::UnknownCodec { codec }),
        Some(Compression::None) => body,
        Some(codec) => {
            decompress(codec, body, limit_bytes, scratch)?;
            scratch
        }
    };
    Ok((header, Records::new(&header, body)))
}

/// Iterates the records of a batch; a fault is yielded once and ends it.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    cursor: Cursor<'a>,
    base_offset: i64,
    base_timestamp: i64,
    log_append_time: Option<i64>,
    base_sequence: i32,
    count: i32,
    index: i32,
    ended: bool,
}

impl<'a> Records<'a> {
    /// The records of the uncompressed `body` of a batch with this header.
    #[must_use]
    pub fn new(header: &BatchHeader, body: &'a [u8]) -> Records<'a> {
        let appended = header.attributes.timestamp_type() == TimestampType::LogAppendTime;
        Records {
            cursor: Cursor::new(body),
            base_offset: header.base_offset.0,
            base_timestamp: header.base_timestamp,
            log_append_time: appended.then_some(header.max_timestamp),
            base_sequence: header.base_sequence.0,
            count: header.record_count,
            index: 0,
            ended: false,
        }
    }

    /// What is not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.cursor.rest()
    }

    /// Reads the next record or finds the end. Kept apart from `next` for its `?`.
    fn advance(&mut self) -> Result<Option<Record<'a>>, RecordFault> {
        if self.index >= self.count {
            return match self.cursor.left() {
                0 => Ok(None),
                left => Err(RecordFault::TrailingBytes { trailing_bytes: left as u64, count: self.count }),
            };
        }
        if self.cursor.left() == 0 {
            return Err(RecordFault::Missing { count: self.count });
        }
        let raw = take_record(&mut self.cursor)?;
        self.index += 1;
        // Wrapping as Java does: a stored batch may hold any deltas, and none may panic.
        let created = self.base_timestamp.wrapping_add(raw.timestamp_delta);
        Ok(Some(Record {
            offset: Offset(self.base_offset.wrapping_add(i64::from(raw.offset_delta))),
            timestamp: self.log_append_time.unwrap_or(created),
            sequence: sequence_after(Sequence(self.base_sequence), raw.offset_delta),
            key: raw.key,
            value: raw.value,
            headers: raw.headers,
        }))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let index = self.index.max(0) as u32;
        match self.advance() {
            Ok(Some(record)) => return Some(Ok(record)),
            Ok(None) => self.ended = true,
            Err(fault) => {
                self.ended = true;
                return Some(Err(ReadError::Malformed { index, fault }));
            }
        }
        None
    }
}

/// The sequence `delta` records after `base`, which wraps from 2^31-1 to 0 (KIP-98); none stays none.
#[must_use]
pub fn sequence_after(base: Sequence, delta: i32) -> Sequence {
    if base.0 < 0 {
        return Sequence::NONE;
    }
    Sequence((i64::from(base.0).wrapping_add(i64::from(delta)) & i64::from(i32::MAX)) as i32)
}

/// The fields of a record as they stand in the bytes.
pub(super) struct RawRecord<'a> {
    pub(super) timestamp_delta: i64,
    pub(super) offset_delta: i32,
    pub(super) key: Option<&'a [u8]>,
    pub(super) value: Option<&'a [u8]>,
    pub(super) headers: Headers<'a>,
}

/// Reads one record and checks its whole structure, headers included.
#[inline]
pub(super) fn take_record<'a>(cursor: &mut Cursor<'a>) -> Result<RawRecord<'a>, RecordFault> {
    let length = cursor.varint("record length")?;
    let length_bytes = not_negative(length, "record length")?;
    let mut record = Cursor::new(cursor.take(length_bytes, "record")?);
    record.take(1, "record attributes")?;
    let timestamp_delta = record.varlong("timestamp delta")?;
    let offset_delta = record.varint("offset delta")?;
    let key = take_nullable(&mut record, "key length", "key")?;
    let value = take_nullable(&mut record, "value length", "value")?;
    let headers = take_headers(&mut record)?;
    if record.left() > 0 {
        let unused_bytes = record.left() as u64;
        return Err(RecordFault::UnusedBytes { length_bytes: length_bytes as u64, unused_bytes });
    }
    Ok(RawRecord { timestamp_delta, offset_delta, key, value, headers })
}

#[inline]
fn take_headers<'a>(record: &mut Cursor<'a>) -> Result<Headers<'a>, RecordFault> {
    let count = record.varint("header count")?;
    let count_max = record.left() / HEADER_BYTES_MIN;
    if not_negative(count, "header count")? > count_max {
        let left_bytes = record.left() as u64;
        return Err(RecordFault::HeaderCount { count, count_max: count_max as u64, left_bytes });
    }
    let headers = Headers { cursor: Cursor::new(record.rest()), left: count as u32 };
    for _ in 0..count {
        take_header(record)?;
    }
    Ok(headers)
}

fn take_header<'a>(cursor: &mut Cursor<'a>) -> Result<Header<'a>, RecordFault> {
    let key_bytes = cursor.varint("header key length")?;
    let key = cursor.take(not_negative(key_bytes, "header key length")?, "header key")?;
    let value = take_nullable(cursor, "header value length", "header value")?;
    Ok(Header { key, value })
}

#[inline]
fn take_nullable<'a>(
    cursor: &mut Cursor<'a>,
    length_field: &'static str,
    field: &'static str,
) -> Result<Option<&'a [u8]>, RecordFault> {
    match cursor.varint(length_field)? {
        -1 => Ok(None),
        length if length < 0 => {
            Err(RecordFault::NegativeLength { field: length_field, length, length_min: -1 })
        }
        length => cursor.take(length as usize, field).map(Some),
    }
}

#[inline]
fn not_negative(length: i32, field: &'static str) -> Result<usize, RecordFault> {
    usize::try_from(length).map_err(|_| RecordFault::NegativeLength { field, length, length_min: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest record: all lengths null or zero.
    const SMALLEST: [u8; 7] = [12, 0, 0, 0, 1, 1, 0];

    fn read(bytes: &[u8]) -> Result<(), RecordFault> {
        take_record(&mut Cursor::new(bytes)).map(|_| ())
    }

    #[test]
    fn the_smallest_record_has_seven_bytes() {
        assert_eq!(SMALLEST.len(), RECORD_BYTES_MIN);
        assert_eq!(read(&SMALLEST), Ok(()));
        for cut in 0..SMALLEST.len() {
            assert!(read(&SMALLEST[..cut]).is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn every_fault_has_its_name() {
        let negative = |field, length, length_min| RecordFault::NegativeLength { field, length, length_min };
        for (bytes, fault) in [
            (&[1, 0][..], negative("record length", -1, 0)),
            (&[0], RecordFault::Truncated { field: "record attributes", needed_bytes: 1, left_bytes: 0 }),
            (
                &[14, 0, 0, 0, 1, 1, 0],
                RecordFault::Truncated { field: "record", needed_bytes: 7, left_bytes: 6 },
            ),
            (&[0xff; 9], RecordFault::Varint { field: "record length", bytes_max: 5 }),
            (&[12, 0, 0, 0, 3, 1, 0], negative("key length", -2, -1)),
            (&[12, 0, 0, 0, 1, 3, 0], negative("value length", -2, -1)),
            (
                &[12, 0, 0, 0, 8, 1, 0],
                RecordFault::Truncated { field: "key", needed_bytes: 4, left_bytes: 2 },
            ),
            (&[12, 0, 0, 0, 1, 1, 1], negative("header count", -1, 0)),
            (&[12, 0, 0, 0, 1, 1, 2], RecordFault::HeaderCount { count: 1, count_max: 0, left_bytes: 0 }),
            (&[16, 0, 0, 0, 1, 1, 2, 1, 1], negative("header key length", -1, 0)),
            (&[16, 0, 0, 0, 1, 1, 2, 0, 3], negative("header value length", -2, -1)),
            (&[14, 0, 0, 0, 1, 1, 0, 9], RecordFault::UnusedBytes { length_bytes: 7, unused_bytes: 1 }),
        ] {
            assert_eq!(read(bytes), Err(fault), "{bytes:?}");
        }
    }

    #[test]
    fn sequences_wrap_to_zero() {
        assert_eq!(sequence_after(Sequence(5), 3), Sequence(8));
        assert_eq!(sequence_after(Sequence(i32::MAX), 1), Sequence(0));
        assert_eq!(sequence_after(Sequence(i32::MAX - 1), 3), Sequence(1));
        assert_eq!(sequence_after(Sequence::NONE, 3), Sequence::NONE);
    }
}
