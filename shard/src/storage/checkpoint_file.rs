//! The checkpoint file of a core, `checkpoints/<core>-<generation>`: what a start needs to know of each partition so that it
//! reads only what came later. The layout and a pure decoder; reads and writes no file.
//!
//! It holds only what can be rebuilt from the segments: a file, or a record in it, that does not check costs a scan and
//! nothing else. Records are appended; the last one of a partition counts. Reading stops at the first that does not check,
//! which is what a crash leaves: the ones before are older and true all the same, for each names its position and the
//! batch that ends there.
//!
//! Version 1, little-endian, stable. A header of 32 bytes: magic `RINGLCKP`, version u16 = 1, reserved u16, core u32,
//! generation of the journal u64, reserved u32, CRC-32 of the 28 bytes before. Then records, each: length of its body u32,
//! CRC-32 u32 of generation (8 bytes) and body, and the body:
//!
//! | bytes | field |
//! |---|---|
//! | 1 | kind = 1 |
//! | 3 | reserved, 0 |
//! | 16, 4 | topic id, partition |
//! | 8 | journal sequence: the partition's entries up to it are in this state |
//! | 8 | offset after the last record of it |
//! | 8, 4 | segment (its base offset) and position where that offset begins, synced |
//! | 4, 4 | position of the batch that ends there, and its own CRC |
//! | 8 | log start |
//! | 8, 8 | largest timestamp of the segment up to there, and the first batch that has it |
//! | 1 | 1 if checksums follow, else 0 |
//! | 4, 4, 4, ... | checksum of the incomplete block, complete blocks in the sidecar, count and checksums of those not in it |
//! | ... | index of the segment up to there, as in the sidecar's footer |
//! | ... | leader epochs of the log, as in the sidecar's footer |
//! | 4, ... | length and bytes of the producers' snapshot; 0xFFFFFFFF = none |

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use crc32fast::Hasher;
use ringlog_protocol::ids::{Offset, TopicPartition};

use super::index::SparseIndex;
use super::log::EpochStart;
use super::sidecar::{decode_epochs, encode_epochs};
use super::sums::SumsState;
use crate::journal::format::Cursor;

/// The version that this build writes, and the newest that it reads.
pub const CHECKPOINT_VERSION: u16 = 1;

/// Where the records begin.
pub const CHECKPOINT_HEADER_BYTES: usize = 32;

const MAGIC: &[u8; 8] = b"RINGLCKP";
const KIND_PARTITION: u8 = 1;
const RECORD_HEAD_BYTES: usize = 8;
const NO_PRODUCERS: u32 = u32::MAX;

/// Why a file is no checkpoint file of this core and generation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointFileError {
    #[error("checkpoint file does not begin with its magic")]
    Magic,
    #[error("checkpoint file has version {found}, this build reads {CHECKPOINT_VERSION}")]
    Version { found: u16 },
    #[error("checkpoint file's header does not check")]
    Header,
}

/// The batch that ends where a checkpoint ends. Base offset and epoch name it among all that were ever written there, its
/// CRC among all bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastBatch {
    pub position: u32,
    pub crc: u32,
}

/// One partition at one position of its log.
#[derive(Clone, Debug, PartialEq)]
pub struct PartitionCheckpoint {
    pub key: TopicPartition,
    pub sequence: u64,
    /// Exclusive end of what it speaks of.
    pub offset: Offset,
    pub segment_base: Offset,
    /// Where `offset` begins in that segment; greater than 0.
    pub position: u32,
    pub last_batch: LastBatch,
    pub log_start: Offset,
    pub max_timestamp: i64,
    pub max_timestamp_batch: Offset,
    /// Of the segment's first `position` bytes.
    pub sums: Option<SumsState>,
    pub(crate) index: SparseIndex,
    pub epochs: Vec<EpochStart>,
    /// In the encoding of [`crate::producer_state::ProducerStates`], of exactly this offset.
    pub producers: Option<Bytes>,
}

/// The core and generation that a file's name states.
#[must_use]
pub fn parse_checkpoint_name(name: &str) -> Option<(u32, u64)> {
    let (core, generation) = name.split_once('-')?;
    Some((core.parse().ok()?, generation.parse().ok()?))
}

/// Name of a core's file.
#[must_use]
pub fn checkpoint_name(core: u32, generation: u64) -> String {
    format!("{core}-{generation}")
}

/// The header's bytes.
#[must_use]
pub fn encode_header(core: u32, generation: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(CHECKPOINT_HEADER_BYTES);
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&CHECKPOINT_VERSION.to_le_bytes());
    out.extend_from_slice(&0_u16.to_le_bytes());
    out.extend_from_slice(&core.to_le_bytes());
    out.extend_from_slice(&generation.to_le_bytes());
    out.extend_from_slice(&0_u32.to_le_bytes());
    let checksum = crc32fast::hash(&out);
    out.extend_from_slice(&checksum.to_le_bytes());
    out
}

/// A decoded checkpoint file.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckpointFile {
    pub core: u32,
    pub generation: u64,
    /// The last record of each partition.
    pub partitions: BTreeMap<TopicPartition, PartitionCheckpoint>,
    /// Where the first record that does not check begins, if any.
    pub stopped_at: Option<usize>,
}

impl CheckpointFile {
    /// Reads a file.
    ///
    /// # Errors
    /// [`CheckpointFileError`]: nothing of it can be used. Records that do not check are no error.
    pub fn decode(bytes: &Bytes) -> Result<CheckpointFile, CheckpointFileError> {
        let header = bytes.get(..CHECKPOINT_HEADER_BYTES).ok_or(CheckpointFileError::Magic)?;
        let mut cursor = Cursor::new(header);
        if cursor.take(MAGIC.len()) != Some(&MAGIC[..]) {
            return Err(CheckpointFileError::Magic);
        }
        // The version is judged first: a newer build may have changed all that follows it.
        let version = cursor.u16().ok_or(CheckpointFileError::Header)?;
        if version != CHECKPOINT_VERSION {
            return Err(CheckpointFileError::Version { found: version });
        }
        let mut ids = || {
            let _reserved = cursor.u16()?;
            Some((cursor.u32()?, cursor.u64()?))
        };
        let (core, generation) = ids().ok_or(CheckpointFileError::Header)?;
        if header != encode_header(core, generation) {
            return Err(CheckpointFileError::Header);
        }
        let mut file = CheckpointFile { core, generation, partitions: BTreeMap::new(), stopped_at: None };
        let mut at = CHECKPOINT_HEADER_BYTES;
        while at < bytes.len() {
            let Some((record, end)) = decode_record(bytes, at, generation) else {
                file.stopped_at = Some(at);
                break;
            };
            file.partitions.insert(record.key, record);
            at = end;
        }
        Ok(file)
    }
}

fn record_sum(generation: u64, body: &[u8]) -> u32 {
    let mut hasher = Hasher::new();
    hasher.update(&generation.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}

/// Where the body of the record at `at` lies, if it checks.
pub(super) fn record_body(bytes: &[u8], at: usize, generation: u64) -> Option<Range<usize>> {
    let mut head = Cursor::new(bytes.get(at..)?);
    let (length, checksum) = (head.u32()?, head.u32()?);
    let start = at + RECORD_HEAD_BYTES;
    let end = start.checked_add(usize::try_from(length).ok()?)?;
    let body = bytes.get(start..end)?;
    (record_sum(generation, body) == checksum).then_some(start..end)
}

/// The record at `at`, if it checks, and where it ends.
pub(super) fn decode_record(
    bytes: &Bytes,
    at: usize,
    generation: u64,
) -> Option<(PartitionCheckpoint, usize)> {
    let body = record_body(bytes, at, generation)?;
    let end = body.end;
    Some((PartitionCheckpoint::decode_body(&bytes.slice(body))?, end))
}

impl PartitionCheckpoint {
    /// Appends a record.
    pub fn encode(&self, generation: u64, out: &mut Vec<u8>) {
        let at = out.len();
        out.extend_from_slice(&[0; RECORD_HEAD_BYTES]);
        self.encode_body(out);
        let body = &out[at + RECORD_HEAD_BYTES..];
        let length = u32::try_from(body.len()).expect("a record is far below 4 GiB");
        let checksum = record_sum(generation, body);
        out[at..at + 4].copy_from_slice(&length.to_le_bytes());
        out[at + 4..at + RECORD_HEAD_BYTES].copy_from_slice(&checksum.to_le_bytes());
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[KIND_PARTITION, 0, 0, 0]);
        out.extend_from_slice(&self.key.topic.0);
        out.extend_from_slice(&self.key.partition.0.to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.offset.0.to_le_bytes());
        out.extend_from_slice(&self.segment_base.0.to_le_bytes());
        out.extend_from_slice(&self.position.to_le_bytes());
        out.extend_from_slice(&self.last_batch.position.to_le_bytes());
        out.extend_from_slice(&self.last_batch.crc.to_le_bytes());
        out.extend_from_slice(&self.log_start.0.to_le_bytes());
        out.extend_from_slice(&self.max_timestamp.to_le_bytes());
        out.extend_from_slice(&self.max_timestamp_batch.0.to_le_bytes());
        out.push(u8::from(self.sums.is_some()));
        if let Some(SumsState { partial, written_blocks, pending }) = &self.sums {
            out.extend_from_slice(&partial.to_le_bytes());
            out.extend_from_slice(&written_blocks.to_le_bytes());
            let count = u32::try_from(pending.len()).expect("a segment has fewer than 2^32 blocks");
            out.extend_from_slice(&count.to_le_bytes());
            out.extend(pending.iter().flat_map(|sum| sum.to_le_bytes()));
        }
        self.index.encode(out);
        encode_epochs(&self.epochs, out);
        match &self.producers {
            Some(producers) => {
                let length = u32::try_from(producers.len()).expect("producers of one partition are bounded");
                out.extend_from_slice(&length.to_le_bytes());
                out.extend_from_slice(producers);
            }
            None => out.extend_from_slice(&NO_PRODUCERS.to_le_bytes()),
        }
    }

    fn decode_body(body: &Bytes) -> Option<PartitionCheckpoint> {
        let mut cursor = Cursor::new(body);
        let (kind, _reserved) = (cursor.u8()?, cursor.take(3)?);
        if kind != KIND_PARTITION {
            return None;
        }
        let key = cursor.key()?;
        let (sequence, offset, segment_base) = (cursor.u64()?, Offset(cursor.i64()?), Offset(cursor.i64()?));
        let position = cursor.u32()?;
        let last_batch = LastBatch { position: cursor.u32()?, crc: cursor.u32()? };
        let log_start = Offset(cursor.i64()?);
        let (max_timestamp, max_timestamp_batch) = (cursor.i64()?, Offset(cursor.i64()?));
        let sums = decode_sums(&mut cursor)?;
        let index = SparseIndex::decode(segment_base, &mut cursor)?;
        let epochs = decode_epochs(&mut cursor)?;
        let length = cursor.u32()?;
        let producers = if length == NO_PRODUCERS {
            None
        } else {
            Some(body.slice_ref(cursor.take(usize::try_from(length).ok()?)?))
        };
        let is_of_empty_log = position == 0 && offset == segment_base && last_batch.position == 0;
        let is_sound = cursor.is_empty()
            && segment_base.0 >= 0
            && (is_of_empty_log
                || (offset > segment_base
                    && last_batch.position < position
                    && index.last_position() < position))
            && epochs.iter().all(|epoch| epoch.start < offset);
        let checkpoint = PartitionCheckpoint {
            key,
            sequence,
            offset,
            segment_base,
            position,
            last_batch,
            log_start,
            max_timestamp,
            max_timestamp_batch,
            sums,
            index,
            epochs,
            producers,
        };
        is_sound.then_some(checkpoint)
    }
}

fn decode_sums(cursor: &mut Cursor<'_>) -> Option<Option<SumsState>> {
    match cursor.u8()? {
        0 => Some(None),
        1 => {
            let (partial, written_blocks, count) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
            let bytes = cursor.take(usize::try_from(count).ok()?.checked_mul(4)?)?;
            let pending = bytes.as_chunks::<4>().0.iter().map(|sum| u32::from_le_bytes(*sum)).collect();
            Some(Some(SumsState { partial, written_blocks, pending }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ringlog_protocol::ids::{LeaderEpoch, PartitionIndex, TopicId};

    use super::*;

    fn checkpoint(partition: i32, position: u32) -> PartitionCheckpoint {
        let mut index = SparseIndex::new(Offset(100), 1000);
        index.note(Offset(100), 0, 77);
        if position > 2000 {
            index.note(Offset(105), 1500, 78);
        }
        PartitionCheckpoint {
            key: TopicPartition { topic: TopicId([0xAB; 16]), partition: PartitionIndex(partition) },
            sequence: 9,
            offset: Offset(110),
            segment_base: Offset(100),
            position,
            last_batch: LastBatch { position: position - 61, crc: 0x1122_3344 },
            log_start: Offset(50),
            max_timestamp: 78,
            max_timestamp_batch: Offset(105),
            sums: Some(SumsState { partial: 5, written_blocks: 6, pending: vec![7, 8] }),
            index,
            epochs: vec![EpochStart { epoch: LeaderEpoch(2), start: Offset(0) }],
            producers: (partition % 2 == 0).then(|| Bytes::from(vec![partition as u8; 30])),
        }
    }

    fn file(records: &[PartitionCheckpoint]) -> Vec<u8> {
        let mut bytes = encode_header(3, 8);
        for record in records {
            record.encode(8, &mut bytes);
        }
        bytes
    }

    fn decode(bytes: Vec<u8>) -> Result<CheckpointFile, CheckpointFileError> {
        CheckpointFile::decode(&Bytes::from(bytes))
    }

    proptest! {
        #[test]
        fn the_last_record_counts_and_a_bad_one_hides_only_what_follows(
            partitions in proptest::collection::vec(0_i32..5, 1..12), at: proptest::sample::Index, flip in 1_u8..
        ) {
            let records: Vec<_> =
                partitions.iter().zip(1..).map(|(key, step)| checkpoint(*key, step * 1000)).collect();
            let bytes = file(&records);
            let expected = |count: usize| -> BTreeMap<_, _> {
                records.iter().take(count).map(|record| (record.key, record.clone())).collect()
            };
            let whole = decode(bytes.clone()).expect("sound");
            prop_assert_eq!((&whole.partitions, whole.stopped_at), (&expected(records.len()), None));
            let ends: Vec<usize> = (0..=records.len()).map(|count| file(&records[..count]).len()).collect();
            let at = at.index(bytes.len());
            let sound = ends.partition_point(|end| *end <= at).checked_sub(1);
            let mut changed = bytes.clone();
            changed[at] ^= flip;
            for (damaged, is_cut) in [(changed, false), (bytes[..at].to_vec(), true)] {
                let Some(sound) = sound else {
                    prop_assert!(decode(damaged).is_err());
                    continue;
                };
                let found = decode(damaged).expect("the header is sound");
                prop_assert_eq!(&found.partitions, &expected(sound));
                let stopped_at = (!is_cut || at > ends[sound]).then_some(ends[sound]);
                prop_assert_eq!(found.stopped_at, stopped_at);
            }
        }

        #[test]
        fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _whatever = PartitionCheckpoint::decode_body(&Bytes::from(body.clone()));
            let _whatever = decode(body);
        }

        #[test]
        fn a_changed_body_that_still_checks_is_sound_or_refused(at: proptest::sample::Index, byte: u8) {
            let mut body = Vec::new();
            checkpoint(2, 3000).encode_body(&mut body);
            let at = at.index(body.len());
            body[at] = byte;
            if let Some(found) = PartitionCheckpoint::decode_body(&Bytes::from(body)) {
                prop_assert!(found.position > 0 && found.offset > found.segment_base);
            }
        }
    }

    #[test]
    fn names_come_back() {
        assert_eq!(parse_checkpoint_name(&checkpoint_name(3, 12)), Some((3, 12)));
        for name in ["", "3", "3-", "-3", "a-3", "3-12.tmp"] {
            assert_eq!(parse_checkpoint_name(name), None, "{name}");
        }
    }

    /// Persisted layout: a change here is a new version.
    #[test]
    fn golden_bytes() {
        let mut expected =
            b"RINGLCKP\x01\x00\x00\x00\x03\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00\0\0\0\0".to_vec();
        expected.extend_from_slice(&crc32fast::hash(&expected).to_le_bytes());
        let mut body = vec![1, 0, 0, 0];
        body.extend_from_slice(&[0xAB; 16]);
        body.extend_from_slice(&[2, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        body.extend_from_slice(&[110, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 0, 0, 0xE8, 3, 0, 0]);
        body.extend_from_slice(&[0xAB, 3, 0, 0, 0x44, 0x33, 0x22, 0x11, 50, 0, 0, 0, 0, 0, 0, 0]);
        body.extend_from_slice(&[78, 0, 0, 0, 0, 0, 0, 0, 105, 0, 0, 0, 0, 0, 0, 0]);
        body.extend_from_slice(&[1, 5, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0, 0, 7, 0, 0, 0, 8, 0, 0, 0]);
        body.extend_from_slice(&[0xE8, 3, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        body.extend_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        body.extend_from_slice(&[30, 0, 0, 0]);
        body.extend_from_slice(&[2; 30]);
        let seeded = [&[8, 0, 0, 0, 0, 0, 0, 0], &body[..]].concat();
        expected.extend_from_slice(&(body.len() as u32).to_le_bytes());
        expected.extend_from_slice(&crc32fast::hash(&seeded).to_le_bytes());
        expected.extend_from_slice(&body);
        assert_eq!(file(&[checkpoint(2, 1000)]), expected);
    }
}
