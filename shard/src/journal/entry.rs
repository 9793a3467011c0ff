//! The eight kinds of journal entry and their layout in a frame's body, format version 1. Pure.
//!
//! All numbers are little-endian. Each entry starts with a head of 40 bytes:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | length of the whole entry, this head included |
//! | 4 | 1 | kind (persisted: never renumber) |
//! | 5 | 1 | flags: bit 0 = carried (a copy of an older entry, same sequence); bit 1, of references only = goes on with the run of the reference before it |
//! | 6 | 2 | reserved, 0 |
//! | 8 | 16 | topic id |
//! | 24 | 4 | partition |
//! | 28 | 4 | reserved, 0 |
//! | 32 | 8 | sequence of the partition |
//!
//! then the fields of its kind in the order of [`EntryBody`], and for data and hard state the bytes.
//!
//! The sequence counts a partition's entries, is never reset and moves with the partition: recovery sorts by it alone.

use ringlog_protocol::ids::{LeaderEpoch, Offset, TopicPartition};

use super::format::Cursor;

/// Bytes of the head that every entry starts with.
pub const ENTRY_HEAD_BYTES: usize = 40;

/// Bytes that a data entry takes beside its batches.
pub const DATA_ENTRY_OVERHEAD_BYTES: usize = ENTRY_HEAD_BYTES + 16;

/// No partition counts so far, in centuries of appends: a greater number is none of ours, and the next one always exists.
pub const SEQUENCE_MAX: u64 = i64::MAX as u64;

/// No fixed part of an entry is longer: head and the fields of its kind.
const FIXED_BYTES_MAX: usize = ENTRY_HEAD_BYTES + 40;

const FLAG_CARRIED: u8 = 1;
const FLAG_GOES_ON: u8 = 2;

const KIND_DATA: u8 = 1;
const KIND_REFERENCE: u8 = 2;
const KIND_TRUNCATE: u8 = 3;
const KIND_LOG_START: u8 = 4;
const KIND_DELETE: u8 = 5;
const KIND_HARD_STATE: u8 = 6;
const KIND_SYNCED_TO: u8 = 7;
const KIND_BEGIN: u8 = 8;

const KIND_LAST: u8 = KIND_BEGIN;

/// One change of one partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub key: TopicPartition,
    /// Counts the partition's entries from 1.
    pub sequence: u64,
    /// Whether this is a copy, made so that an older file could be reused.
    pub carried: bool,
    pub body: EntryBody<'a>,
}

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryBody<'a> {
    /// Whole record batches and where in the log they belong.
    Data {
        /// Base offset of the segment, which is its name.
        segment_base: Offset,
        /// Byte position in the segment.
        position: u32,
        batches: &'a [u8],
    },
    /// As data, but the bytes are in the segment only, synced before the acknowledgement.
    Reference(Reference),
    /// The log ends at `end_offset` from now on, at this place of its last segment.
    Truncate { end_offset: Offset, segment_base: Offset, position: u32 },
    /// The log starts at this offset from now on.
    LogStart { offset: Offset },
    /// The partition is gone, and every entry before this one with it.
    Delete,
    /// What the partition's consensus group must not forget, in its own encoding.
    HardState { state: &'a [u8] },
    /// The segments hold, synced, all that entries up to `through` brought.
    SyncedTo(SyncedTo),
    /// Every record and every segment of before goes; the log is empty and goes on at `start`, which is its start too.
    Begin { start: Offset },
}

/// Bytes that only the segment holds. They are written beside the frame that names them, and the partition's next entry is
/// journalled only after both: so a reference whose bytes do not check is a crash's tail while nothing follows its run, and
/// damage otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Base offset of the segment, which is its name.
    pub segment_base: Offset,
    /// Byte position in the segment.
    pub position: u32,
    /// In bytes.
    pub length: u32,
    /// CRC-32 of the bytes.
    pub crc: u32,
    pub range: OffsetRange,
    /// Whether it belongs to the run of the reference before it: one write to the segment, one acknowledgement.
    pub goes_on: bool,
}

impl Reference {
    /// Position after its last byte.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.position.saturating_add(self.length)
    }
}

/// First offset, the offset after the last, and the leader epoch of the last batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OffsetRange {
    pub base: Offset,
    /// Exclusive.
    pub end: Offset,
    pub epoch: LeaderEpoch,
}

/// How far a partition's segments are durable without the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncedTo {
    /// Entries of the partition up to this sequence need no replay: data among them is in the segments, the newest
    /// hard state and log start among them stand in the journal again.
    pub through: u64,
    /// Leader epoch of the last batch before `offset`, -1 when there is none.
    pub epoch: LeaderEpoch,
    /// Exclusive end of what is synced.
    pub offset: Offset,
    /// Segment in which `offset` lies or would begin.
    pub segment_base: Offset,
    /// Byte position of `offset` in that segment.
    pub position: u32,
}

/// Why bytes are not an entry of this format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    #[error("entry of kind {kind} is cut off")]
    Short { kind: u8 },
    #[error("entry head is cut off")]
    ShortHead,
    #[error("entry states a length of {stated} bytes where {available} are left")]
    Length { stated: u32, available: usize },
    #[error("entry of unknown kind {kind}")]
    UnknownKind { kind: u8 },
    #[error("entry has unknown flags {flags:#04x}")]
    UnknownFlags { flags: u8 },
    #[error("entry of kind {kind} has bytes after its end")]
    Trailing { kind: u8 },
    #[error("entry states sequence {stated}, which no partition reaches")]
    Sequence { stated: u64 },
}

impl EntryBody<'_> {
    fn kind(&self) -> u8 {
        match self {
            EntryBody::Data { .. } => KIND_DATA,
            EntryBody::Reference(_) => KIND_REFERENCE,
            EntryBody::Truncate { .. } => KIND_TRUNCATE,
            EntryBody::LogStart { .. } => KIND_LOG_START,
            EntryBody::Delete => KIND_DELETE,
            EntryBody::HardState { .. } => KIND_HARD_STATE,
            EntryBody::SyncedTo(_) => KIND_SYNCED_TO,
            EntryBody::Begin { .. } => KIND_BEGIN,
        }
    }
}

impl EntryBody<'_> {
    /// Bytes of the fields before the payload.
    fn fixed_bytes(&self) -> usize {
        match self {
            EntryBody::Data { .. } => 16,
            EntryBody::Reference(_) => 40,
            EntryBody::Truncate { .. } => 20,
            EntryBody::LogStart { .. } | EntryBody::Begin { .. } => 8,
            EntryBody::Delete => 0,
            EntryBody::HardState { .. } => 4,
            EntryBody::SyncedTo(_) => 32,
        }
    }
}

/// The part of an entry before its payload, composed on the stack.
pub(crate) struct EntryHead {
    bytes: [u8; FIXED_BYTES_MAX],
    length: usize,
}

impl EntryHead {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl<'a> Entry<'a> {
    /// The bytes that follow the fixed fields: batches or a hard state.
    pub(crate) fn payload(&self) -> &'a [u8] {
        match self.body {
            EntryBody::Data { batches, .. } => batches,
            EntryBody::HardState { state } => state,
            _ => &[],
        }
    }

    fn flags(&self) -> u8 {
        let goes_on = matches!(self.body, EntryBody::Reference(Reference { goes_on: true, .. }));
        (if self.carried { FLAG_CARRIED } else { 0 }) | (if goes_on { FLAG_GOES_ON } else { 0 })
    }

    /// The fixed fields. Entry = head then [`Entry::payload`].
    pub(crate) fn head(&self) -> EntryHead {
        let payload = self.payload();
        let payload_length =
            u32::try_from(payload.len()).expect("an entry's bytes are bounded by the frame limit");
        let mut head = EntryHead { bytes: [0; FIXED_BYTES_MAX], length: 4 };
        head.put(&[self.body.kind(), self.flags(), 0, 0]);
        head.put(&self.key.topic.0);
        head.put(&self.key.partition.0.to_le_bytes());
        head.put(&[0; 4]);
        head.put(&self.sequence.to_le_bytes());
        match self.body {
            EntryBody::Data { segment_base, position, .. } => {
                head.put(&segment_base.0.to_le_bytes());
                head.put(&position.to_le_bytes());
                head.put(&payload_length.to_le_bytes());
            }
            EntryBody::Reference(Reference { segment_base, position, length, crc, range, goes_on: _ }) => {
                head.put(&segment_base.0.to_le_bytes());
                head.put(&position.to_le_bytes());
                head.put(&length.to_le_bytes());
                head.put(&crc.to_le_bytes());
                head.put(&range.epoch.0.to_le_bytes());
                head.put(&range.base.0.to_le_bytes());
                head.put(&range.end.0.to_le_bytes());
            }
            EntryBody::Truncate { end_offset, segment_base, position } => {
                head.put(&end_offset.0.to_le_bytes());
                head.put(&segment_base.0.to_le_bytes());
                head.put(&position.to_le_bytes());
            }
            EntryBody::LogStart { offset } | EntryBody::Begin { start: offset } => {
                head.put(&offset.0.to_le_bytes());
            }
            EntryBody::Delete => {}
            EntryBody::HardState { .. } => head.put(&payload_length.to_le_bytes()),
            EntryBody::SyncedTo(synced) => {
                head.put(&synced.through.to_le_bytes());
                head.put(&synced.offset.0.to_le_bytes());
                head.put(&synced.segment_base.0.to_le_bytes());
                head.put(&synced.position.to_le_bytes());
                head.put(&synced.epoch.0.to_le_bytes());
            }
        }
        let total = u32::try_from(head.length + payload.len())
            .expect("an entry's bytes are bounded by the frame limit");
        head.bytes[..4].copy_from_slice(&total.to_le_bytes());
        head
    }

    /// Bytes of the whole entry.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        ENTRY_HEAD_BYTES + self.body.fixed_bytes() + self.payload().len()
    }

    /// Reads the entry at the start of `bytes`; also says how many bytes it took.
    ///
    /// # Errors
    /// See [`EntryError`]; no length in the bytes is believed beyond what is there.
    pub fn decode(bytes: &'a [u8]) -> Result<(Entry<'a>, usize), EntryError> {
        let mut lead = Cursor::new(bytes);
        let stated = lead.u32().ok_or(EntryError::ShortHead)?;
        let whole = usize::try_from(stated).ok().and_then(|length| bytes.get(..length));
        let whole = whole.ok_or(EntryError::Length { stated, available: bytes.len() })?;
        let (kind, entry) = Entry::decode_exact(whole)?;
        if entry.encoded_bytes() != whole.len() {
            return Err(EntryError::Trailing { kind });
        }
        let through = if let EntryBody::SyncedTo(synced) = entry.body { synced.through } else { 0 };
        let stated = entry.sequence.max(through);
        if stated > SEQUENCE_MAX {
            return Err(EntryError::Sequence { stated });
        }
        Ok((entry, whole.len()))
    }

    fn decode_exact(whole: &'a [u8]) -> Result<(u8, Entry<'a>), EntryError> {
        let mut cursor = Cursor::new(whole);
        let mut head = || {
            let _length = cursor.u32()?;
            let (kind, flags, _reserved) = (cursor.u8()?, cursor.u8()?, cursor.u16()?);
            let key = cursor.key()?;
            let _reserved = cursor.u32()?;
            Some((kind, flags, key, cursor.u64()?))
        };
        let (kind, flags, key, sequence) = head().ok_or(EntryError::ShortHead)?;
        if !(KIND_DATA..=KIND_LAST).contains(&kind) {
            return Err(EntryError::UnknownKind { kind });
        }
        let known = if kind == KIND_REFERENCE { FLAG_CARRIED | FLAG_GOES_ON } else { FLAG_CARRIED };
        if flags & !known != 0 {
            return Err(EntryError::UnknownFlags { flags });
        }
        let mut body = decode_body(kind, &mut cursor).ok_or(EntryError::Short { kind })?;
        if let EntryBody::Reference(reference) = &mut body {
            reference.goes_on = flags & FLAG_GOES_ON != 0;
        }
        Ok((kind, Entry { key, sequence, carried: flags & FLAG_CARRIED != 0, body }))
    }
}

fn decode_body<'a>(kind: u8, cursor: &mut Cursor<'a>) -> Option<EntryBody<'a>> {
    Some(match kind {
        KIND_DATA => {
            let (segment_base, position) = (Offset(cursor.i64()?), cursor.u32()?);
            let length = cursor.u32()?;
            EntryBody::Data { segment_base, position, batches: cursor.take(usize::try_from(length).ok()?)? }
        }
        KIND_REFERENCE => {
            let (segment_base, position) = (Offset(cursor.i64()?), cursor.u32()?);
            let (length, crc, epoch) = (cursor.u32()?, cursor.u32()?, LeaderEpoch(cursor.i32()?));
            let range = OffsetRange { base: Offset(cursor.i64()?), end: Offset(cursor.i64()?), epoch };
            EntryBody::Reference(Reference { segment_base, position, length, crc, range, goes_on: false })
        }
        KIND_TRUNCATE => EntryBody::Truncate {
            end_offset: Offset(cursor.i64()?),
            segment_base: Offset(cursor.i64()?),
            position: cursor.u32()?,
        },
        KIND_LOG_START => EntryBody::LogStart { offset: Offset(cursor.i64()?) },
        KIND_DELETE => EntryBody::Delete,
        KIND_HARD_STATE => {
            let length = cursor.u32()?;
            EntryBody::HardState { state: cursor.take(usize::try_from(length).ok()?)? }
        }
        KIND_SYNCED_TO => EntryBody::SyncedTo(SyncedTo {
            through: cursor.u64()?,
            offset: Offset(cursor.i64()?),
            segment_base: Offset(cursor.i64()?),
            position: cursor.u32()?,
            epoch: LeaderEpoch(cursor.i32()?),
        }),
        KIND_BEGIN => EntryBody::Begin { start: Offset(cursor.i64()?) },
        _ => return None,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use ringlog_protocol::ids::{PartitionIndex, TopicId};

    use super::*;

    /// An entry that owns its bytes, for generators.
    #[derive(Clone, Debug)]
    pub(crate) struct OwnedEntry {
        kind: u8,
        topic: [u8; 16],
        partition: i32,
        sequence: u64,
        carried: bool,
        numbers: [i64; 3],
        words: [u32; 3],
        payload: Vec<u8>,
    }

    impl OwnedEntry {
        pub(crate) fn entry(&self) -> Entry<'_> {
            let [a, b, c] = self.numbers;
            let [x, y, z] = self.words;
            let (offset, segment_base, epoch) = (Offset(a), Offset(b), LeaderEpoch(z as i32));
            let body = match self.kind {
                KIND_DATA => EntryBody::Data { segment_base, position: x, batches: &self.payload },
                KIND_REFERENCE => EntryBody::Reference(Reference {
                    segment_base,
                    position: x,
                    length: y,
                    crc: z,
                    range: OffsetRange { base: offset, end: Offset(c), epoch },
                    goes_on: y % 2 == 1,
                }),
                KIND_TRUNCATE => EntryBody::Truncate { end_offset: offset, segment_base, position: x },
                KIND_LOG_START => EntryBody::LogStart { offset },
                KIND_DELETE => EntryBody::Delete,
                KIND_HARD_STATE => EntryBody::HardState { state: &self.payload },
                KIND_BEGIN => EntryBody::Begin { start: offset },
                _ => EntryBody::SyncedTo(SyncedTo {
                    through: c.unsigned_abs().min(SEQUENCE_MAX),
                    epoch,
                    offset,
                    segment_base,
                    position: x,
                }),
            };
            let key =
                TopicPartition { topic: TopicId(self.topic), partition: PartitionIndex(self.partition) };
            Entry { key, sequence: self.sequence, carried: self.carried, body }
        }
    }

    pub(crate) fn any_entry() -> impl Strategy<Value = OwnedEntry> {
        let numbers: [BoxedStrategy<i64>; 3] = std::array::from_fn(|_| any::<i64>().boxed());
        let ids = (any::<[u8; 16]>(), any::<i32>(), 0..=SEQUENCE_MAX, any::<bool>());
        let fields = (numbers, any::<[u32; 3]>(), proptest::collection::vec(any::<u8>(), 0..300));
        (KIND_DATA..=KIND_LAST, ids, fields).prop_map(|(kind, ids, fields)| {
            let (topic, partition, sequence, carried) = ids;
            let (numbers, words, payload) = fields;
            OwnedEntry { kind, topic, partition, sequence, carried, numbers, words, payload }
        })
    }

    fn encoded(entry: &Entry<'_>) -> Vec<u8> {
        [entry.head().as_slice(), entry.payload()].concat()
    }

    proptest! {
        #[test]
        fn round_trip(owned in any_entry()) {
            let entry = owned.entry();
            let bytes = encoded(&entry);
            prop_assert_eq!(bytes.len(), entry.encoded_bytes());
            prop_assert_eq!(Entry::decode(&bytes), Ok((entry, bytes.len())));
        }

        #[test]
        fn truncation_is_an_error_at_every_byte(owned in any_entry()) {
            let bytes = encoded(&owned.entry());
            for end in 0..bytes.len() {
                prop_assert!(Entry::decode(&bytes[..end]).is_err());
            }
        }

        #[test]
        fn no_bytes_panic_and_none_decode_beyond_themselves(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok((entry, taken)) = Entry::decode(&bytes) {
                prop_assert!(taken <= bytes.len() && entry.payload().len() < taken);
            }
        }
    }

    /// Persisted layout: a change here is a new format version.
    #[test]
    fn golden_reference() {
        let reference = Reference {
            segment_base: Offset(1),
            position: 0x1122,
            length: 0x3344,
            crc: 0x5566_7788,
            range: OffsetRange { base: Offset(2), end: Offset(3), epoch: LeaderEpoch(5) },
            goes_on: true,
        };
        let key = TopicPartition { topic: TopicId([0xAB; 16]), partition: PartitionIndex(3) };
        let body = EntryBody::Reference(reference);
        let mut expected = vec![80, 0, 0, 0, 2, 2, 0, 0];
        expected.extend_from_slice(&[0xAB; 16]);
        expected.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0, 0x22, 0x11, 0, 0, 0x44, 0x33, 0, 0]);
        expected.extend_from_slice(&[0x88, 0x77, 0x66, 0x55, 5, 0, 0, 0]);
        expected.extend_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encoded(&Entry { key, sequence: 7, carried: false, body }), expected);
    }

    /// Persisted layout: a change here is a new format version.
    #[test]
    fn golden_begin() {
        let key = TopicPartition { topic: TopicId([0xAB; 16]), partition: PartitionIndex(3) };
        let body = EntryBody::Begin { start: Offset(0x1122) };
        let mut expected = vec![48, 0, 0, 0, 8, 0, 0, 0];
        expected.extend_from_slice(&[0xAB; 16]);
        expected.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend_from_slice(&[0x22, 0x11, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encoded(&Entry { key, sequence: 7, carried: false, body }), expected);
    }

    #[test]
    fn a_sequence_without_a_next_one_is_refused() {
        let key = TopicPartition { topic: TopicId([0xAB; 16]), partition: PartitionIndex(3) };
        let synced_to = |through| {
            let (epoch, offset) = (LeaderEpoch(5), Offset(9));
            EntryBody::SyncedTo(SyncedTo { through, epoch, offset, segment_base: Offset(1), position: 0 })
        };
        for (sequence, body) in [(u64::MAX, EntryBody::Delete), (7, synced_to(u64::MAX))] {
            let bytes = encoded(&Entry { key, sequence, carried: false, body });
            assert_eq!(Entry::decode(&bytes), Err(EntryError::Sequence { stated: u64::MAX }));
        }
        let last = Entry { key, sequence: SEQUENCE_MAX, carried: false, body: synced_to(SEQUENCE_MAX) };
        assert!(Entry::decode(&encoded(&last)).is_ok());
    }

    #[test]
    fn only_a_reference_goes_on() {
        let key = TopicPartition { topic: TopicId([0xAB; 16]), partition: PartitionIndex(3) };
        let mut bytes = encoded(&Entry { key, sequence: 7, carried: false, body: EntryBody::Delete });
        bytes[5] = FLAG_GOES_ON;
        assert_eq!(Entry::decode(&bytes), Err(EntryError::UnknownFlags { flags: FLAG_GOES_ON }));
    }

    /// Persisted layout: a change here is a new format version.
    #[test]
    fn golden_synced_to() {
        let entry = Entry {
            key: TopicPartition { topic: TopicId([0xAB; 16]), partition: PartitionIndex(3) },
            sequence: 0x0102,
            carried: true,
            body: EntryBody::SyncedTo(SyncedTo {
                through: 7,
                epoch: LeaderEpoch(5),
                offset: Offset(9),
                segment_base: Offset(1),
                position: 0x1122,
            }),
        };
        let mut expected = vec![72, 0, 0, 0, 7, 1, 0, 0];
        expected.extend_from_slice(&[0xAB; 16]);
        expected.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        expected.extend_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend_from_slice(&[0x22, 0x11, 0, 0, 5, 0, 0, 0]);
        assert_eq!(encoded(&entry), expected);
    }
}
