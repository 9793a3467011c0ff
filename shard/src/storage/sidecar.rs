//! The sidecar of a segment, `%020d.sum` beside `%020d.log`: checksums of its blocks and, once the segment takes no more,
//! what a start must know of it without reading it. The layout and a pure decoder; reads and writes no file.
//!
//! Version 1, little-endian, stable. A header of 48 bytes:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `RINGLSUM` |
//! | 8 | 2 | version = 1 |
//! | 10 | 2 | reserved, 0 |
//! | 12 | 4 | bytes of a block = 65536 |
//! | 16 | 16 | topic id |
//! | 32 | 4 | partition |
//! | 36 | 8 | base offset of the segment |
//! | 44 | 4 | CRC-32 of the 44 bytes before |
//!
//! then 4 bytes for each complete block of the segment, in order: the CRC-32 of topic id, partition (4 bytes), base offset
//! (8), position of the block (8) and the block. They are appended as blocks are complete and synced; what lies behind the
//! last one that a checkpoint speaks of counts for nothing.
//!
//! Of a closed segment a footer follows:
//!
//! | bytes | field |
//! |---|---|
//! | 4 | length of the segment |
//! | 8 | offset after its last record |
//! | 8 | largest timestamp, milliseconds |
//! | 8 | base offset of the first batch that has it |
//! | 4 | checksum of the incomplete last block, 0 when there is none |
//! | 4 | CRC-32 of all block checksums |
//! | ... | index: interval in bytes u32, largest timestamp i64, entries u32, each offset delta u32, position u32, largest timestamp before i64 |
//! | ... | leader epochs: count u32, each epoch i32, first offset i64; the first is that of the first batch |
//!
//! and a trailer of 12 bytes: length of the footer u32; CRC-32 of topic id, partition, base offset, eight bytes 0xFF and
//! the footer; magic `SUMF`.

use ringlog_protocol::ids::{LeaderEpoch, Offset};

use super::index::SparseIndex;
use super::log::EpochStart;
use super::sums::SumPlace;
use crate::journal::format::Cursor;
use crate::limits::SUM_BLOCK_BYTES;

/// The version that this build writes, and the newest that it reads.
pub const SIDECAR_VERSION: u16 = 1;

/// Where the block checksums begin.
pub const SIDECAR_HEADER_BYTES: usize = 48;

const MAGIC: &[u8; 8] = b"RINGLSUM";
const FOOTER_MAGIC: &[u8; 4] = b"SUMF";
const TRAILER_BYTES: usize = 12;

/// Why bytes are not the sidecar of a segment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SidecarError {
    #[error("sidecar does not begin with its magic")]
    Magic,
    #[error("sidecar has version {found}, this build reads {SIDECAR_VERSION}")]
    Version { found: u16 },
    #[error("sidecar belongs to another segment, or its header is damaged")]
    Header,
    #[error("sidecar has no footer: its segment was not closed")]
    NoFooter,
    #[error("sidecar's {part} does not check")]
    Damaged { part: &'static str },
}

/// What is known of a closed segment.
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentFooter {
    pub segment_bytes: u32,
    pub end_offset: Offset,
    /// `i64::MIN` when the segment is empty.
    pub max_timestamp: i64,
    pub max_timestamp_batch: Offset,
    /// Of the incomplete last block; 0 when there is none.
    pub tail_sum: u32,
    pub(crate) index: SparseIndex,
    /// The first begins with the segment.
    pub epochs: Vec<EpochStart>,
}

/// A closed segment's sidecar.
#[derive(Clone, Debug, PartialEq)]
pub struct Sidecar {
    /// Of the complete blocks.
    pub sums: Vec<u32>,
    pub footer: SegmentFooter,
}

/// The header's bytes.
#[must_use]
pub fn encode_header(place: SumPlace) -> Vec<u8> {
    let mut out = Vec::with_capacity(SIDECAR_HEADER_BYTES);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&SIDECAR_VERSION.to_le_bytes());
    out.extend_from_slice(&0_u16.to_le_bytes());
    out.extend_from_slice(&SUM_BLOCK_BYTES.to_le_bytes());
    out.extend_from_slice(&place.key.topic.0);
    out.extend_from_slice(&place.key.partition.0.to_le_bytes());
    out.extend_from_slice(&place.base.0.to_le_bytes());
    let checksum = crc32fast::hash(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// Checks that a sidecar begins as one of this segment.
///
/// # Errors
/// [`SidecarError`]: foreign, newer, damaged or another segment's bytes.
pub fn check_header(place: SumPlace, bytes: &[u8]) -> Result<(), SidecarError> {
    let header = bytes.get(..SIDECAR_HEADER_BYTES).ok_or(SidecarError::Magic)?;
    if !header.starts_with(MAGIC) {
        return Err(SidecarError::Magic);
    }
    // The version is judged first: a newer build may have changed all that follows it.
    let version = Cursor::new(&header[MAGIC.len()..]).u16().unwrap_or(0);
    if version != SIDECAR_VERSION {
        return Err(SidecarError::Version { found: version });
    }
    if header == encode_header(place) { Ok(()) } else { Err(SidecarError::Header) }
}

impl Sidecar {
    /// The whole file.
    #[must_use]
    pub fn encode(&self, place: SumPlace) -> Vec<u8> {
        let mut out = encode_header(place);
        let sums: Vec<u8> = self.sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        out.extend_from_slice(&sums);
        let footer = &self.footer;
        let mut body = Vec::new();
        body.extend_from_slice(&footer.segment_bytes.to_le_bytes());
        body.extend_from_slice(&footer.end_offset.0.to_le_bytes());
        body.extend_from_slice(&footer.max_timestamp.to_le_bytes());
        body.extend_from_slice(&footer.max_timestamp_batch.0.to_le_bytes());
        body.extend_from_slice(&footer.tail_sum.to_le_bytes());
        body.extend_from_slice(&crc32fast::hash(&sums).to_le_bytes());
        footer.index.encode(&mut body);
        encode_epochs(&footer.epochs, &mut body);
        let length = u32::try_from(body.len()).expect("an index and the epochs of one segment are short");
        out.extend_from_slice(&body);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&place.whole_sum(&body).to_le_bytes());
        out.extend_from_slice(FOOTER_MAGIC);
        out
    }

    /// Reads a closed segment's sidecar.
    ///
    /// # Errors
    /// [`SidecarError`]; no length in the bytes is believed beyond what is there.
    pub fn decode(place: SumPlace, bytes: &[u8]) -> Result<Sidecar, SidecarError> {
        check_header(place, bytes)?;
        let (rest, trailer) = bytes.split_last_chunk::<TRAILER_BYTES>().ok_or(SidecarError::NoFooter)?;
        if !trailer.ends_with(FOOTER_MAGIC) {
            return Err(SidecarError::NoFooter);
        }
        let mut cursor = Cursor::new(trailer);
        let (length, checksum) = (cursor.u32().unwrap_or(0), cursor.u32().unwrap_or(0));
        let damaged = |part| SidecarError::Damaged { part };
        let rest = rest.get(SIDECAR_HEADER_BYTES..).ok_or(damaged("length"))?;
        let split = rest.len().checked_sub(length as usize).ok_or(damaged("length"))?;
        let (sums, body) = rest.split_at(split);
        if place.whole_sum(body) != checksum {
            return Err(damaged("footer"));
        }
        let (sums_checksum, footer) = decode_footer(place, body).ok_or(damaged("footer"))?;
        let blocks = (footer.segment_bytes / SUM_BLOCK_BYTES) as usize;
        if sums.len() != blocks * 4 || crc32fast::hash(sums) != sums_checksum {
            return Err(damaged("list of checksums"));
        }
        let sums = sums.as_chunks::<4>().0.iter().map(|sum| u32::from_le_bytes(*sum)).collect();
        Ok(Sidecar { sums, footer })
    }
}

fn decode_footer(place: SumPlace, body: &[u8]) -> Option<(u32, SegmentFooter)> {
    let mut cursor = Cursor::new(body);
    let segment_bytes = cursor.u32()?;
    let end_offset = Offset(cursor.i64()?);
    let (max_timestamp, max_timestamp_batch) = (cursor.i64()?, Offset(cursor.i64()?));
    let (tail_sum, sums_checksum) = (cursor.u32()?, cursor.u32()?);
    let index = SparseIndex::decode(place.base, &mut cursor)?;
    let epochs = decode_epochs(&mut cursor)?;
    let in_segment = |epoch: &EpochStart| epoch.start >= place.base && epoch.start < end_offset;
    let is_sound = end_offset >= place.base
        && index.last_position() <= segment_bytes
        && epochs.iter().all(in_segment)
        && cursor.is_empty();
    let footer = SegmentFooter {
        segment_bytes,
        end_offset,
        max_timestamp,
        max_timestamp_batch,
        tail_sum,
        index,
        epochs,
    };
    is_sound.then_some((sums_checksum, footer))
}

/// Count u32, each epoch i32 and first offset i64.
pub(super) fn encode_epochs(epochs: &[EpochStart], out: &mut Vec<u8>) {
    let count = u32::try_from(epochs.len()).expect("fewer epochs than offsets in memory");
    out.extend_from_slice(&count.to_le_bytes());
    for EpochStart { epoch, start } in epochs {
        out.extend_from_slice(&epoch.0.to_le_bytes());
        out.extend_from_slice(&start.0.to_le_bytes());
    }
}

/// Reads them; none unless epochs ascend and their starts do not go back.
pub(super) fn decode_epochs(cursor: &mut Cursor<'_>) -> Option<Vec<EpochStart>> {
    let count = cursor.u32()?;
    let mut epochs: Vec<EpochStart> = Vec::new();
    for _ in 0..count {
        let next = EpochStart { epoch: LeaderEpoch(cursor.i32()?), start: Offset(cursor.i64()?) };
        if epochs.last().is_some_and(|last| last.epoch >= next.epoch || last.start > next.start) {
            return None;
        }
        epochs.push(next);
    }
    Some(epochs)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ringlog_protocol::ids::{PartitionIndex, TopicId, TopicPartition};

    use super::*;

    const PLACE: SumPlace = SumPlace {
        key: TopicPartition { topic: TopicId([0xAB; 16]), partition: PartitionIndex(3) },
        base: Offset(100),
    };

    fn sidecar(blocks: u32, batches: i64) -> Sidecar {
        let mut index = SparseIndex::new(PLACE.base, 1000);
        for batch in 0..batches {
            index.note(Offset(100 + batch * 2), batch as u32 * 700, 5000 + batch);
        }
        let footer = SegmentFooter {
            segment_bytes: blocks * SUM_BLOCK_BYTES + 30_000,
            end_offset: Offset(100 + batches * 2),
            max_timestamp: 5000 + batches,
            max_timestamp_batch: Offset(101),
            tail_sum: 0x0102_0304,
            index,
            epochs: vec![EpochStart { epoch: LeaderEpoch(4), start: Offset(100) }],
        };
        Sidecar { sums: (0..blocks).map(|block| block * 0x0101_0101).collect(), footer }
    }

    proptest! {
        #[test]
        fn comes_back_and_no_changed_or_missing_byte_does(
            blocks in 0_u32..9, batches in 1_i64..40, at: proptest::sample::Index, flip in 1_u8..
        ) {
            let expected = sidecar(blocks, batches);
            let bytes = expected.encode(PLACE);
            prop_assert_eq!(Sidecar::decode(PLACE, &bytes), Ok(expected));
            let mut changed = bytes.clone();
            changed[at.index(bytes.len())] ^= flip;
            prop_assert!(Sidecar::decode(PLACE, &changed).is_err());
            prop_assert!(Sidecar::decode(PLACE, &bytes[..at.index(bytes.len())]).is_err());
            let elsewhere = SumPlace { base: Offset(101), ..PLACE };
            prop_assert!(Sidecar::decode(elsewhere, &bytes).is_err());
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut footed = encode_header(PLACE);
            footed.extend_from_slice(&bytes);
            footed.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            footed.extend_from_slice(&PLACE.whole_sum(&bytes).to_le_bytes());
            footed.extend_from_slice(FOOTER_MAGIC);
            let _whatever = (Sidecar::decode(PLACE, &bytes), Sidecar::decode(PLACE, &footed));
        }
    }

    /// Persisted layout: a change here is a new version.
    #[test]
    fn golden_bytes() {
        let bytes = sidecar(1, 2).encode(PLACE);
        let mut expected = b"RINGLSUM\x01\x00\x00\x00\x00\x00\x01\x00".to_vec();
        expected.extend_from_slice(&[0xAB; 16]);
        expected.extend_from_slice(&[3, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend_from_slice(&crc32fast::hash(&expected).to_le_bytes());
        expected.extend_from_slice(&[0, 0, 0, 0]);
        let footer = [
            &[0x30, 0x75, 1, 0, 104, 0, 0, 0, 0, 0, 0, 0][..],
            &[0x8A, 0x13, 0, 0, 0, 0, 0, 0, 101, 0, 0, 0, 0, 0, 0, 0],
            &[4, 3, 2, 1],
            &crc32fast::hash(&[0, 0, 0, 0]).to_le_bytes(),
            &[0xE8, 3, 0, 0, 0x89, 0x13, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[1, 0, 0, 0, 4, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0],
        ]
        .concat();
        expected.extend_from_slice(&footer);
        expected.extend_from_slice(&[68, 0, 0, 0]);
        let mut seeded =
            [[0xAB; 16].as_slice(), &[3, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0], &[0xFF; 8]].concat();
        seeded.extend_from_slice(&footer);
        expected.extend_from_slice(&crc32fast::hash(&seeded).to_le_bytes());
        expected.extend_from_slice(b"SUMF");
        assert_eq!(bytes, expected);
    }
}
