//! The 61-byte header of a record batch v2: parsing, stamping in place, and walking a run of batches.
//!
//! It reads headers and the CRC only; what is inside the records is for [`super::reader`] and [`super::validate`].

use crate::ids::{LeaderEpoch, Offset, ProducerEpoch, ProducerId, Sequence};

use super::attributes::Attributes;
use super::crc::crc32c;
use super::validate::NO_TIMESTAMP;

/// Bytes of the header of a batch v2.
pub const BATCH_HEADER_BYTES: usize = 61;
/// Bytes before the part that `batchLength` counts: base offset and the length itself.
pub const BATCH_OVERHEAD_BYTES: usize = 12;
/// The only magic that is served; 0 and 1 went with Kafka 4.0 (KIP-724).
pub const MAGIC_V2: i8 = 2;
/// The least `batchLength`: the header without its overhead.
const BATCH_LENGTH_MIN: i32 = (BATCH_HEADER_BYTES - BATCH_OVERHEAD_BYTES) as i32;

const BASE_OFFSET: usize = 0;
const BATCH_LENGTH: usize = 8;
const LEADER_EPOCH: usize = 12;
const MAGIC: usize = 16;
const CRC: usize = 17;
const ATTRIBUTES: usize = 21;
const LAST_OFFSET_DELTA: usize = 23;
const BASE_TIMESTAMP: usize = 27;
const MAX_TIMESTAMP: usize = 35;
const PRODUCER_ID: usize = 43;
const PRODUCER_EPOCH: usize = 51;
const BASE_SEQUENCE: usize = 53;
const RECORD_COUNT: usize = 57;

/// The header of a record batch v2, every field as it stands in the bytes.
///
/// All integers are big-endian; stable, on the wire and on disk:
///
/// ```text
/// at  bytes  field
///  0  8      base offset                 outside the CRC: the leader stamps it
///  8  4      batch length = bytes after this field (>= 49)
/// 12  4      partition leader epoch      outside the CRC: the leader stamps it
/// 16  1      magic = 2
/// 17  4      CRC-32C of byte 21 to the end
/// 21  2      attributes (see Attributes)
/// 23  4      last offset delta = record count - 1 until compaction removes records
/// 27  8      base timestamp, ms: what records' deltas count from
/// 35  8      max timestamp, ms
/// 43  8      producer id, -1 = none
/// 51  2      producer epoch, -1 = none
/// 53  4      base sequence, -1 = none
/// 57  4      record count
/// 61         records, compressed as one block if attributes name a codec
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchHeader {
    /// Offset that the records' deltas count from.
    pub base_offset: Offset,
    /// Bytes after the length field; at least 49.
    pub batch_length: i32,
    /// Epoch of the leader that appended the batch; -1 from clients.
    pub leader_epoch: LeaderEpoch,
    /// Format of the batch; always 2 once parsed.
    pub magic: i8,
    /// CRC-32C as stated.
    pub crc: u32,
    /// Codec, timestamp type, transactional, control, delete horizon.
    pub attributes: Attributes,
    /// Offset of the last record minus the base offset.
    pub last_offset_delta: i32,
    /// What the records' timestamp deltas count from, ms since the Unix epoch.
    pub base_timestamp: i64,
    /// The largest timestamp of the records, or the append time, ms since the Unix epoch.
    pub max_timestamp: i64,
    /// The idempotent producer, or -1.
    pub producer_id: ProducerId,
    /// The producer's epoch, or -1.
    pub producer_epoch: ProducerEpoch,
    /// Sequence of the first record, or -1.
    pub base_sequence: Sequence,
    /// The number of records as stated.
    pub record_count: i32,
}

/// Why bytes are not a batch v2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Fewer bytes than a header.
    #[error("{bytes} bytes are less than the {BATCH_HEADER_BYTES} of a batch header")]
    HeaderTruncated {
        /// Bytes that there are.
        bytes: u64,
    },
    /// The length field is less than the rest of the header.
    #[error("batch length {batch_length} is less than {BATCH_LENGTH_MIN}")]
    LengthTooSmall {
        /// The length as stated.
        batch_length: i32,
    },
    /// The batch ends beyond the bytes at hand.
    #[error("batch of {batch_bytes} bytes ends beyond the {bytes} at hand")]
    Truncated {
        /// Bytes of the whole batch by its length field.
        batch_bytes: u64,
        /// Bytes that there are.
        bytes: u64,
    },
    /// Another format.
    #[error("magic {magic} is not {MAGIC_V2}")]
    Magic {
        /// The magic as stated.
        magic: i8,
    },
    /// The bytes were damaged on the way.
    #[error("stated crc {stated:#010x} is not the computed {computed:#010x}")]
    Crc {
        /// CRC-32C of the header.
        stated: u32,
        /// CRC-32C of the bytes.
        computed: u32,
    },
}

impl BatchHeader {
    /// Reads the header of the batch that `bytes` begins with; more may follow the batch. The CRC is not checked.
    ///
    /// # Errors
    /// All of [`BatchError`] but `Crc`; `Truncated` when the batch does not fit `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<BatchHeader, BatchError> {
        let header = BatchHeader::parse_prefix(bytes)?;
        if header.total_bytes() > bytes.len() {
            return Err(BatchError::Truncated {
                batch_bytes: header.total_bytes() as u64,
                bytes: bytes.len() as u64,
            });
        }
        Ok(header)
    }

    /// Like [`BatchHeader::parse`], for callers that hold only the first 61 bytes so far: the batch need not fit.
    ///
    /// # Errors
    /// `HeaderTruncated`, `LengthTooSmall`, `Magic`.
    pub fn parse_prefix(bytes: &[u8]) -> Result<BatchHeader, BatchError> {
        let Some(head) = bytes.first_chunk::<BATCH_HEADER_BYTES>() else {
            return Err(BatchError::HeaderTruncated { bytes: bytes.len() as u64 });
        };
        let header = BatchHeader::read(head);
        // Before the length: older formats have another layout but the same place for the magic.
        if header.magic != MAGIC_V2 {
            return Err(BatchError::Magic { magic: header.magic });
        }
        if header.batch_length < BATCH_LENGTH_MIN {
            return Err(BatchError::LengthTooSmall { batch_length: header.batch_length });
        }
        Ok(header)
    }

    /// Bytes of the whole batch, header included; at least 61.
    #[must_use]
    pub fn total_bytes(&self) -> usize {
        BATCH_OVERHEAD_BYTES + usize::try_from(self.batch_length).unwrap_or(0)
    }

    /// Offset of the last record; saturates on a lying delta.
    #[must_use]
    pub fn last_offset(&self) -> Offset {
        Offset(self.base_offset.0.saturating_add(i64::from(self.last_offset_delta)))
    }

    /// The offset after the last record's: where the next batch begins.
    #[must_use]
    pub fn next_offset(&self) -> Offset {
        Offset(self.last_offset().0.saturating_add(1))
    }

    /// The largest timestamp of its records, or -1: a batch that was emptied still states the one that they had.
    #[must_use]
    pub fn newest_timestamp(&self) -> i64 {
        if self.record_count == 0 { NO_TIMESTAMP } else { self.max_timestamp }
    }

    /// Writes all 61 bytes, the CRC as this header states it.
    pub fn write_to(&self, out: &mut [u8; BATCH_HEADER_BYTES]) {
        put(out, BASE_OFFSET, self.base_offset.0.to_be_bytes());
        put(out, BATCH_LENGTH, self.batch_length.to_be_bytes());
        put(out, LEADER_EPOCH, self.leader_epoch.0.to_be_bytes());
        put(out, MAGIC, self.magic.to_be_bytes());
        put(out, CRC, self.crc.to_be_bytes());
        put(out, ATTRIBUTES, self.attributes.0.to_be_bytes());
        put(out, LAST_OFFSET_DELTA, self.last_offset_delta.to_be_bytes());
        put(out, BASE_TIMESTAMP, self.base_timestamp.to_be_bytes());
        put(out, MAX_TIMESTAMP, self.max_timestamp.to_be_bytes());
        put(out, PRODUCER_ID, self.producer_id.0.to_be_bytes());
        put(out, PRODUCER_EPOCH, self.producer_epoch.0.to_be_bytes());
        put(out, BASE_SEQUENCE, self.base_sequence.0.to_be_bytes());
        put(out, RECORD_COUNT, self.record_count.to_be_bytes());
    }

    fn read(head: &[u8; BATCH_HEADER_BYTES]) -> BatchHeader {
        BatchHeader {
            base_offset: Offset(i64::from_be_bytes(get(head, BASE_OFFSET))),
            batch_length: i32::from_be_bytes(get(head, BATCH_LENGTH)),
            leader_epoch: LeaderEpoch(i32::from_be_bytes(get(head, LEADER_EPOCH))),
            magic: i8::from_be_bytes(get(head, MAGIC)),
            crc: u32::from_be_bytes(get(head, CRC)),
            attributes: Attributes(i16::from_be_bytes(get(head, ATTRIBUTES))),
            last_offset_delta: i32::from_be_bytes(get(head, LAST_OFFSET_DELTA)),
            base_timestamp: i64::from_be_bytes(get(head, BASE_TIMESTAMP)),
            max_timestamp: i64::from_be_bytes(get(head, MAX_TIMESTAMP)),
            producer_id: ProducerId(i64::from_be_bytes(get(head, PRODUCER_ID))),
            producer_epoch: ProducerEpoch(i16::from_be_bytes(get(head, PRODUCER_EPOCH))),
            base_sequence: Sequence(i32::from_be_bytes(get(head, BASE_SEQUENCE))),
            record_count: i32::from_be_bytes(get(head, RECORD_COUNT)),
        }
    }
}

/// Checks the CRC of a batch whose header was parsed from these `bytes`.
///
/// # Errors
/// `Crc`, or `Truncated` if the batch does not fit `bytes`.
pub fn check_crc(header: &BatchHeader, bytes: &[u8]) -> Result<(), BatchError> {
    let Some(covered) = bytes.get(ATTRIBUTES..header.total_bytes()) else {
        return Err(BatchError::Truncated {
            batch_bytes: header.total_bytes() as u64,
            bytes: bytes.len() as u64,
        });
    };
    let computed = crc32c(covered);
    if computed == header.crc { Ok(()) } else { Err(BatchError::Crc { stated: header.crc, computed }) }
}

/// Stamps the base offset in place; it lies outside the CRC.
///
/// # Panics
/// If `batch` is shorter than a header: stamp only what was parsed.
pub fn set_base_offset(batch: &mut [u8], base_offset: Offset) {
    put(head_mut(batch), BASE_OFFSET, base_offset.0.to_be_bytes());
}

/// Stamps the partition leader epoch in place; it lies outside the CRC.
///
/// # Panics
/// If `batch` is shorter than a header: stamp only what was parsed.
pub fn set_leader_epoch(batch: &mut [u8], leader_epoch: LeaderEpoch) {
    put(head_mut(batch), LEADER_EPOCH, leader_epoch.0.to_be_bytes());
}

/// Makes a batch one of LogAppendTime (KIP-32): sets attribute bit 3 and the max timestamp, and computes the CRC anew.
///
/// `batch` is exactly one batch. Reads all of it once, unlike the other stamps.
///
/// # Panics
/// If `batch` is shorter than a header: stamp only what was parsed.
pub fn set_log_append_time(batch: &mut [u8], append_time_ms: i64) {
    let attributes = Attributes(i16::from_be_bytes(get(head_mut(batch), ATTRIBUTES)));
    put(head_mut(batch), ATTRIBUTES, attributes.with(Attributes::LOG_APPEND_TIME).0.to_be_bytes());
    set_max_timestamp(batch, append_time_ms);
}

/// Puts the true maximum of the records' timestamps in place of what the producer stated, and computes the CRC anew.
///
/// Kafka's leader mends a lying maximum in the same way instead of refusing the batch; retention and time lookups rest on it.
///
/// # Panics
/// If `batch` is shorter than a header: stamp only what was parsed.
pub fn set_max_timestamp(batch: &mut [u8], max_timestamp_ms: i64) {
    put(head_mut(batch), MAX_TIMESTAMP, max_timestamp_ms.to_be_bytes());
    let crc = crc32c(&batch[ATTRIBUTES..]);
    put(head_mut(batch), CRC, crc.to_be_bytes());
}

/// Computes the CRC of exactly one batch and puts it in place: the last step of building one.
///
/// # Panics
/// If `batch` is shorter than a header.
pub fn seal(batch: &mut [u8]) {
    assert!(batch.len() >= BATCH_HEADER_BYTES, "{} bytes are no batch", batch.len());
    let crc = crc32c(&batch[ATTRIBUTES..]);
    put(head_mut(batch), CRC, crc.to_be_bytes());
}

/// One batch within a run of bytes.
#[derive(Debug, Clone, Copy)]
pub struct BatchView<'a> {
    /// Its header.
    pub header: BatchHeader,
    /// The whole batch, header included.
    pub bytes: &'a [u8],
    /// Where it begins in the run.
    pub position: usize,
}

impl<'a> BatchView<'a> {
    /// The records, compressed if the attributes name a codec.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.bytes.get(BATCH_HEADER_BYTES..).unwrap_or_default()
    }
}

/// A batch that the run's end cuts off; a Fetch answer may end in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartialBatch {
    /// Where it begins in the run.
    pub position: usize,
    /// Its bytes that are there; at least 1.
    pub bytes: usize,
    /// Bytes of the whole batch, if the part that is there says so.
    pub batch_bytes: Option<usize>,
}

/// Walks a run of batches back to back, header by header. The CRCs are not checked.
///
/// Ends at the run's end or before a batch that it cuts off, which [`Batches::partial`] then reports. A structural
/// fault is yielded once and ends the walk, since nothing says where the next batch begins.
#[must_use]
pub fn batches(run: &[u8]) -> Batches<'_> {
    Batches { run, position: 0, partial: None, failed: false }
}

/// See [`batches`].
#[derive(Debug, Clone)]
pub struct Batches<'a> {
    run: &'a [u8],
    position: usize,
    partial: Option<PartialBatch>,
    failed: bool,
}

impl Batches<'_> {
    /// The batch cut off by the end of the run; known once the walk has ended.
    #[must_use]
    pub fn partial(&self) -> Option<PartialBatch> {
        self.partial
    }

    /// Where the next batch would begin: the end of all yielded so far.
    #[must_use]
    pub fn position(&self) -> usize {
        self.position
    }
}

impl<'a> Iterator for Batches<'a> {
    type Item = Result<BatchView<'a>, BatchError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.run.get(self.position..).unwrap_or_default();
        if rest.is_empty() || self.failed || self.partial.is_some() {
            return None;
        }
        let batch_bytes = match BatchHeader::parse(rest) {
            Ok(header) => {
                let view =
                    BatchView { header, bytes: &rest[..header.total_bytes()], position: self.position };
                self.position += header.total_bytes();
                return Some(Ok(view));
            }
            Err(BatchError::HeaderTruncated { .. }) => None,
            Err(BatchError::Truncated { batch_bytes, .. }) => usize::try_from(batch_bytes).ok(),
            Err(error) => {
                self.failed = true;
                return Some(Err(error));
            }
        };
        self.partial = Some(PartialBatch { position: self.position, bytes: rest.len(), batch_bytes });
        None
    }
}

fn head_mut(batch: &mut [u8]) -> &mut [u8; BATCH_HEADER_BYTES] {
    batch.first_chunk_mut().expect("callers stamp only batches whose header was parsed")
}

/// `at + N` is within the header for every field of the table above, so that the compiler drops the bounds checks.
fn get<const N: usize>(head: &[u8; BATCH_HEADER_BYTES], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&head[at..at + N]);
    field
}

fn put<const N: usize>(head: &mut [u8; BATCH_HEADER_BYTES], at: usize, field: [u8; N]) {
    head[at..at + N].copy_from_slice(&field);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_header() -> impl Strategy<Value = BatchHeader> {
        let first = (any::<i64>(), 49..=i32::MAX, any::<i32>(), any::<u32>(), any::<i16>(), any::<i32>());
        let second = (any::<i64>(), any::<i64>(), any::<i64>(), any::<i16>(), any::<i32>(), any::<i32>());
        (first, second).prop_map(|(first, second)| BatchHeader {
            base_offset: Offset(first.0),
            batch_length: first.1,
            leader_epoch: LeaderEpoch(first.2),
            magic: MAGIC_V2,
            crc: first.3,
            attributes: Attributes(first.4),
            last_offset_delta: first.5,
            base_timestamp: second.0,
            max_timestamp: second.1,
            producer_id: ProducerId(second.2),
            producer_epoch: ProducerEpoch(second.3),
            base_sequence: Sequence(second.4),
            record_count: second.5,
        })
    }

    fn empty_batch(base_offset: i64, body_bytes: usize) -> Vec<u8> {
        let mut batch = vec![0; BATCH_HEADER_BYTES + body_bytes];
        batch[BATCH_LENGTH..LEADER_EPOCH].copy_from_slice(&(49 + body_bytes as i32).to_be_bytes());
        batch[MAGIC] = 2;
        set_base_offset(&mut batch, Offset(base_offset));
        seal(&mut batch);
        batch
    }

    proptest! {
        #[test]
        fn header_round_trip(header in any_header()) {
            let mut bytes = [0; BATCH_HEADER_BYTES];
            header.write_to(&mut bytes);
            prop_assert_eq!(BatchHeader::parse_prefix(&bytes), Ok(header));
            for cut in 0..BATCH_HEADER_BYTES {
                let error = BatchError::HeaderTruncated { bytes: cut as u64 };
                prop_assert_eq!(BatchHeader::parse_prefix(&bytes[..cut]), Err(error));
            }
        }
    }

    #[test]
    fn offsets_and_epoch_are_outside_the_crc_and_timestamps_inside() {
        let mut batch = empty_batch(0, 5);
        let before = BatchHeader::parse(&batch).expect("built whole");
        set_base_offset(&mut batch, Offset(1 << 40));
        set_leader_epoch(&mut batch, LeaderEpoch(9));
        let stamped = BatchHeader::parse(&batch).expect("stamped whole");
        assert_eq!(stamped.crc, before.crc);
        assert_eq!(check_crc(&stamped, &batch), Ok(()));
        assert_eq!((stamped.base_offset, stamped.leader_epoch), (Offset(1 << 40), LeaderEpoch(9)));

        set_log_append_time(&mut batch, 1_234);
        let appended = BatchHeader::parse(&batch).expect("stamped whole");
        assert_ne!(appended.crc, before.crc);
        assert_eq!(check_crc(&appended, &batch), Ok(()));
        assert_eq!(appended.max_timestamp, 1_234);
        assert_eq!(appended.attributes, Attributes(Attributes::LOG_APPEND_TIME));
    }

    #[test]
    fn a_run_stops_before_a_partial_batch_and_reports_it() {
        let mut run = empty_batch(0, 3);
        run.extend(empty_batch(1, 10));
        let whole = run.len();
        let third = empty_batch(2, 7);
        for cut in 0..=third.len() {
            let mut bytes = run.clone();
            bytes.extend(&third[..cut]);
            let mut walk = batches(&bytes);
            let offsets: Vec<i64> =
                walk.by_ref().map(|view| view.expect("all whole or cut").header.base_offset.0).collect();
            let expected_partial = match cut {
                0 => None,
                _ if cut == third.len() => None,
                _ => Some(PartialBatch {
                    position: whole,
                    bytes: cut,
                    batch_bytes: (cut >= BATCH_HEADER_BYTES).then_some(third.len()),
                }),
            };
            assert_eq!(walk.partial(), expected_partial, "cut at {cut}");
            assert_eq!(offsets.len(), if cut == third.len() { 3 } else { 2 });
        }
    }

    #[test]
    fn a_structural_fault_ends_the_walk() {
        let mut run = empty_batch(0, 3);
        let second = run.len();
        run.extend(empty_batch(1, 3));
        run[second + MAGIC] = 1;
        let mut walk = batches(&run);
        assert!(walk.next().is_some_and(|first| first.is_ok()));
        assert!(matches!(walk.next(), Some(Err(BatchError::Magic { magic: 1 }))));
        assert!(walk.next().is_none());
        assert_eq!(walk.position(), second);
        assert_eq!(walk.partial(), None);
    }

    #[test]
    fn bad_lengths() {
        let batch = empty_batch(0, 3);
        for (length, expected) in [
            (-1, BatchError::LengthTooSmall { batch_length: -1 }),
            (48, BatchError::LengthTooSmall { batch_length: 48 }),
            (53, BatchError::Truncated { batch_bytes: 65, bytes: 64 }),
            (i32::MAX, BatchError::Truncated { batch_bytes: (1 << 31) + 11, bytes: 64 }),
        ] {
            let mut bytes = batch.clone();
            bytes[BATCH_LENGTH..LEADER_EPOCH].copy_from_slice(&length.to_be_bytes());
            assert_eq!(BatchHeader::parse(&bytes), Err(expected), "{length}");
        }
    }
}
