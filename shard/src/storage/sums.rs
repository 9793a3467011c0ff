//! Checksums of a segment's blocks, which know where they belong: Kafka's own CRC knows neither topic nor position, so
//! sectors that a disk wrote to, or read from, the wrong place would pass it. Pure.

use crc32fast::Hasher;
use ringlog_protocol::ids::{Offset, TopicPartition};

use crate::limits::SUM_BLOCK_BYTES;

/// What a block's checksum begins with: topic id, partition, base offset of the segment, position of the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SumPlace {
    pub key: TopicPartition,
    /// Base offset of the segment.
    pub base: Offset,
}

impl SumPlace {
    fn seed(&self, position: u64) -> u32 {
        let mut hasher = Hasher::new();
        hasher.update(&self.key.topic.0);
        hasher.update(&self.key.partition.0.to_le_bytes());
        hasher.update(&self.base.0.to_le_bytes());
        hasher.update(&position.to_le_bytes());
        hasher.finalize()
    }

    /// Checksum of block number `block`, which holds `bytes`.
    #[must_use]
    pub fn block_sum(&self, block: u32, bytes: &[u8]) -> u32 {
        go_on(self.seed(u64::from(block) * u64::from(SUM_BLOCK_BYTES)), bytes)
    }

    /// Checksum of a structure that belongs to this segment as a whole.
    pub(super) fn whole_sum(&self, bytes: &[u8]) -> u32 {
        go_on(self.seed(u64::MAX), bytes)
    }
}

fn go_on(sum: u32, bytes: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(sum);
    hasher.update(bytes);
    hasher.finalize()
}

/// The checksums of a segment's synced prefix, as it grows.
///
/// Invariant: `written_blocks + pending.len()` = complete blocks in `position` bytes; `partial` is the checksum of what lies
/// behind them, that of no bytes at a block's start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockSums {
    place: SumPlace,
    /// Bytes summed; `None` once that was interrupted: whoever needs the checksums then reads the segment.
    position: Option<u32>,
    partial: u32,
    /// Complete blocks whose checksums the sidecar holds, synced.
    written_blocks: u32,
    /// Those of the complete blocks behind them.
    pending: Vec<u32>,
}

/// The checksums of a segment's prefix, as a checkpoint persists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SumsState {
    pub partial: u32,
    pub written_blocks: u32,
    pub pending: Vec<u32>,
}

impl BlockSums {
    pub(crate) fn new(place: SumPlace) -> BlockSums {
        BlockSums { place, position: Some(0), partial: 0, written_blocks: 0, pending: Vec::new() }
    }

    /// Checksums that are not known.
    pub(crate) fn unknown(place: SumPlace) -> BlockSums {
        BlockSums { position: None, ..BlockSums::new(place) }
    }

    /// As a checkpoint at `position` had them; unknown when it had none, or they are not those of so many bytes.
    pub(crate) fn restored(place: SumPlace, position: u32, state: Option<SumsState>) -> BlockSums {
        let Some(SumsState { partial, written_blocks, pending }) = state else { return Self::unknown(place) };
        let known = u32::try_from(pending.len()).ok().and_then(|count| written_blocks.checked_add(count));
        if known != Some(position / SUM_BLOCK_BYTES) {
            return Self::unknown(place);
        }
        BlockSums { place, position: Some(position), partial, written_blocks, pending }
    }

    pub(crate) fn place(&self) -> SumPlace {
        self.place
    }

    /// Bytes summed, if that goes on.
    pub(crate) fn position(&self) -> Option<u32> {
        self.position
    }

    /// Adds the bytes at `position`. Bytes that do not go on from the last ones make all unknown.
    pub(crate) fn add(&mut self, position: u32, mut bytes: &[u8]) {
        if self.position != Some(position) {
            *self = BlockSums::unknown(self.place);
            return;
        }
        let mut at = position;
        while !bytes.is_empty() {
            let left_of_block = (SUM_BLOCK_BYTES - at % SUM_BLOCK_BYTES) as usize;
            let (now, later) = bytes.split_at(left_of_block.min(bytes.len()));
            if at.is_multiple_of(SUM_BLOCK_BYTES) {
                self.partial = self.place.seed(u64::from(at));
            }
            self.partial = go_on(self.partial, now);
            if now.len() == left_of_block {
                self.pending.push(self.partial);
                self.partial = 0;
            }
            at = at.saturating_add(u32::try_from(now.len()).expect("at most one block"));
            bytes = later;
        }
        self.position = Some(at);
    }

    pub(crate) fn state(&self) -> Option<SumsState> {
        let (partial, written_blocks) = (self.partial, self.written_blocks);
        self.position?;
        Some(SumsState { partial, written_blocks, pending: self.pending.clone() })
    }

    pub(crate) fn written_blocks(&self) -> u32 {
        self.written_blocks
    }

    pub(crate) fn pending(&self) -> &[u32] {
        &self.pending
    }

    /// The sidecar holds `count` more of them, synced.
    pub(crate) fn note_written(&mut self, count: usize) {
        let count = count.min(self.pending.len());
        self.pending.drain(..count);
        self.pending.shrink_to_fit();
        self.written_blocks += u32::try_from(count).expect("a segment has fewer than 2^32 blocks");
    }

    /// The checksums are all in the sidecar and wanted no more.
    pub(crate) fn forget(&mut self) {
        *self = BlockSums::unknown(self.place);
    }

    pub(crate) fn allocated_bytes(&self) -> usize {
        self.pending.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ringlog_protocol::ids::{PartitionIndex, TopicId};

    use super::*;

    pub(crate) fn place(base: i64) -> SumPlace {
        let key = TopicPartition { topic: TopicId([7; 16]), partition: PartitionIndex(3) };
        SumPlace { key, base: Offset(base) }
    }

    proptest! {
        #[test]
        fn pieces_of_any_size_give_the_sums_of_whole_blocks(
            lengths in proptest::collection::vec(1_usize..150_000, 1..8), cut: proptest::sample::Index
        ) {
            let total: usize = lengths.iter().sum();
            let bytes: Vec<u8> = (0..total).map(|index| (index * 31 % 251) as u8).collect();
            let mut sums = BlockSums::new(place(5));
            let (mut at, cut) = (0, cut.index(lengths.len()));
            for (index, length) in lengths.iter().enumerate() {
                sums.add(at as u32, &bytes[at..at + length]);
                at += length;
                if index == cut {
                    // A restart between any two.
                    sums = BlockSums::restored(place(5), at as u32, sums.state());
                }
            }
            let block_bytes = SUM_BLOCK_BYTES as usize;
            let expected: Vec<u32> = bytes
                .chunks_exact(block_bytes)
                .zip(0..)
                .map(|(chunk, block)| place(5).block_sum(block, chunk))
                .collect();
            prop_assert_eq!(sums.pending(), &expected[..]);
            let rest = bytes.chunks_exact(block_bytes).remainder();
            let partial = if rest.is_empty() { 0 } else { place(5).block_sum(expected.len() as u32, rest) };
            prop_assert_eq!(sums.state().map(|state| state.partial), Some(partial));
        }
    }

    #[test]
    fn equal_bytes_elsewhere_have_another_sum() {
        let bytes = [1_u8; 4096];
        let here = place(5).block_sum(1, &bytes);
        let other_key = TopicPartition { partition: PartitionIndex(4), ..place(5).key };
        let elsewhere = [
            place(5).block_sum(2, &bytes),
            place(6).block_sum(1, &bytes),
            SumPlace { key: other_key, ..place(5) }.block_sum(1, &bytes),
        ];
        assert!(!elsewhere.contains(&here));
    }

    #[test]
    fn a_gap_makes_all_unknown() {
        let mut sums = BlockSums::new(place(0));
        sums.add(0, &[1; 100]);
        sums.add(101, &[1; 100]);
        assert_eq!((sums.position(), sums.state()), (None, None));
        sums.add(201, &[1; 100]);
        assert_eq!(sums.position(), None);
    }
}
