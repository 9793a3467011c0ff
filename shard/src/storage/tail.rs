//! A core's records in memory: who owns their bytes, how much is allocated, and which go first.
//!
//! Owns the tail arena and the order of eviction. The batches themselves hang in their logs; this never looks into them.
//! Accounting is by bytes allocated: a chunk counts whole until its last slice is released.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use slab::Slab;

use super::log::LogId;
use crate::limits::{TAIL_ARENA_CHUNK_BYTES, TAIL_KEPT_SLICE_BYTES_MIN};

/// What keeps a batch's bytes alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TailOwner {
    /// A slice of an arena chunk. Its slot is used again; its number never is, on any core.
    Chunk { slot: usize, number: u64 },
    /// An allocation of its own, of this many bytes.
    Whole(usize),
}

#[derive(Debug)]
struct Chunk {
    live_slices: usize,
    number: u64,
}

/// Memory of one core's tails.
#[derive(Debug)]
pub(crate) struct TailMemory {
    chunk: BytesMut,
    chunk_slot: Option<usize>,
    chunks: Slab<Chunk>,
    allocated_bytes: usize,
    /// Bytes of batches that are in no segment yet: not evictable.
    dirty_bytes: usize,
    next_stamp: u64,
    /// Logs whose oldest batch in memory is clean, by that batch's stamp.
    evictable: BTreeMap<u64, LogId>,
}

impl TailMemory {
    pub(crate) fn new() -> TailMemory {
        TailMemory {
            chunk: BytesMut::new(),
            chunk_slot: None,
            chunks: Slab::new(),
            allocated_bytes: 0,
            dirty_bytes: 0,
            next_stamp: 0,
            evictable: BTreeMap::new(),
        }
    }

    /// The bytes as the tail keeps them. A slice of at least 64 KiB and at least half of its receive buffer keeps that
    /// buffer; a smaller one is copied, or a slow partition would pin megabytes behind a kilobyte.
    pub(crate) fn keep(&mut self, bytes: Bytes, buffer_bytes: usize) -> (Bytes, TailOwner) {
        let buffer_bytes = buffer_bytes.max(bytes.len());
        if bytes.len() >= TAIL_KEPT_SLICE_BYTES_MIN && bytes.len() * 2 >= buffer_bytes {
            self.allocated_bytes += buffer_bytes;
            return (bytes, TailOwner::Whole(buffer_bytes));
        }
        if bytes.len() > TAIL_ARENA_CHUNK_BYTES / 4 {
            self.allocated_bytes += bytes.len();
            return (Bytes::copy_from_slice(&bytes), TailOwner::Whole(bytes.len()));
        }
        let slot = self.chunk_with_room(bytes.len());
        self.chunk.extend_from_slice(&bytes);
        let chunk = &mut self.chunks[slot];
        chunk.live_slices += 1;
        let owner = TailOwner::Chunk { slot, number: chunk.number };
        (self.chunk.split().freeze(), owner)
    }

    fn chunk_with_room(&mut self, bytes: usize) -> usize {
        if let Some(slot) = self.chunk_slot
            && self.chunk.capacity() >= bytes
        {
            return slot;
        }
        if let Some(slot) = self.chunk_slot.take() {
            self.drop_chunk_if_unused(slot);
        }
        self.chunk = BytesMut::with_capacity(TAIL_ARENA_CHUNK_BYTES);
        static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let slot = self.chunks.insert(Chunk { live_slices: 0, number });
        self.allocated_bytes += TAIL_ARENA_CHUNK_BYTES;
        self.chunk_slot = Some(slot);
        slot
    }

    fn drop_chunk_if_unused(&mut self, slot: usize) {
        if self.chunk_slot != Some(slot) && self.chunks[slot].live_slices == 0 {
            self.chunks.remove(slot);
            self.allocated_bytes -= TAIL_ARENA_CHUNK_BYTES;
        }
    }

    /// A batch left the tail.
    pub(crate) fn release(&mut self, owner: TailOwner) {
        match owner {
            TailOwner::Whole(bytes) => self.allocated_bytes -= bytes,
            TailOwner::Chunk { slot, .. } => {
                self.chunks[slot].live_slices -= 1;
                self.drop_chunk_if_unused(slot);
            }
        }
    }

    /// Order of batches over all logs of the core.
    pub(crate) fn take_stamp(&mut self) -> u64 {
        self.next_stamp += 1;
        self.next_stamp
    }

    /// The stamp that was taken last.
    pub(crate) fn newest_stamp(&self) -> u64 {
        self.next_stamp
    }

    pub(crate) fn add_dirty(&mut self, bytes: usize) {
        self.dirty_bytes += bytes;
    }

    pub(crate) fn remove_dirty(&mut self, bytes: usize) {
        self.dirty_bytes -= bytes;
    }

    /// Says that the log's oldest batch in memory, of this stamp, may be evicted.
    pub(crate) fn set_evictable(&mut self, stamp: u64, log: LogId) {
        self.evictable.insert(stamp, log);
    }

    /// Takes that back: the batch left the tail by another way.
    pub(crate) fn unset_evictable(&mut self, stamp: u64) {
        self.evictable.remove(&stamp);
    }

    /// The log whose oldest batch is the oldest that may go, and the stamp up to which its batches go before others'.
    pub(crate) fn pop_oldest(&mut self) -> Option<(LogId, u64)> {
        let (_, log) = self.evictable.pop_first()?;
        let next = self.evictable.first_key_value().map_or(u64::MAX, |(stamp, _)| *stamp);
        Some((log, next))
    }

    pub(crate) fn allocated_bytes(&self) -> usize {
        self.allocated_bytes
    }

    pub(crate) fn dirty_bytes(&self) -> usize {
        self.dirty_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_slices_free_their_receive_buffer() {
        let mut tail = TailMemory::new();
        let receive_buffer = Bytes::from(vec![7_u8; 1 << 20]);
        let (kept, owner) = tail.keep(receive_buffer.slice(10..1010), 1 << 20);
        assert_eq!(kept, vec![7_u8; 1000]);
        assert!(receive_buffer.is_unique(), "the slice was copied");
        assert_eq!(tail.allocated_bytes(), TAIL_ARENA_CHUNK_BYTES);
        tail.release(owner);
        assert_eq!(tail.allocated_bytes(), TAIL_ARENA_CHUNK_BYTES, "the chunk that fills stays");
    }

    #[test]
    fn a_large_slice_keeps_its_buffer_and_counts_all_of_it() {
        let mut tail = TailMemory::new();
        let receive_buffer = Bytes::from(vec![7_u8; 100_000]);
        let (kept, owner) = tail.keep(receive_buffer.slice(0..70_000), 100_000);
        assert_eq!(kept.as_ptr(), receive_buffer.as_ptr());
        assert_eq!(tail.allocated_bytes(), 100_000);
        tail.release(owner);
        assert_eq!(tail.allocated_bytes(), 0);
    }

    #[test]
    fn a_large_slice_of_a_larger_buffer_gets_its_own_memory() {
        let mut tail = TailMemory::new();
        let receive_buffer = Bytes::from(vec![7_u8; 1 << 20]);
        let (_, owner) = tail.keep(receive_buffer.slice(0..100_000), 1 << 20);
        assert!(receive_buffer.is_unique());
        assert_eq!((tail.allocated_bytes(), owner), (100_000, TailOwner::Whole(100_000)));
    }

    #[test]
    fn chunks_go_when_their_last_slice_goes() {
        let mut tail = TailMemory::new();
        let piece = Bytes::from(vec![1_u8; 50_000]);
        let owners: Vec<_> = (0..50).map(|_| tail.keep(piece.clone(), 50_000).1).collect();
        assert_eq!(tail.allocated_bytes(), 10 * TAIL_ARENA_CHUNK_BYTES, "five slices a chunk");
        for owner in owners {
            tail.release(owner);
        }
        assert_eq!(tail.allocated_bytes(), TAIL_ARENA_CHUNK_BYTES);
        assert_eq!(tail.chunks.len(), 1);
    }

    #[test]
    fn the_oldest_front_goes_first() {
        let mut tail = TailMemory::new();
        let log = |slot| LogId { slot, version: 0 };
        tail.set_evictable(5, log(1));
        tail.set_evictable(3, log(2));
        assert_eq!(tail.pop_oldest(), Some((log(2), 5)));
        tail.unset_evictable(5);
        assert_eq!(tail.pop_oldest(), None);
    }
}
