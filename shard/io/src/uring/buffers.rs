//! Receive buffers that the kernel picks from when bytes arrive, so that an idle socket pins none. Owns their memory;
//! never reads a socket.

use std::io;
use std::sync::atomic::{AtomicU16, Ordering};

use bytes::Bytes;
use io_uring::types::BufRingEntry;
use io_uring::{IoUring, cqueue};

use crate::RECEIVE_SOME_BYTES_MAX;
use crate::aligned::AlignedBuffer;

/// The only group of buffers of a ring.
pub(crate) const GROUP: u16 = 0;

/// Buffers of a group, a power of two. Each is held only between its completion and the copy, within one turn, so this
/// bounds how many receives complete in one turn before the rest is retried: 64 x 16 KiB = 1 MiB a core.
const BUFFER_COUNT: u16 = 64;

/// A ring of buffers shared with the kernel (io_uring_register_buf_ring(3)).
pub(crate) struct ReceiveBuffers {
    /// The ring's entries, page-aligned; written here, read by the kernel. Only raw pointers reach it.
    entries: *mut BufRingEntry,
    /// Their memory.
    _ring: AlignedBuffer,
    /// The buffers; written by the kernel between submission and completion.
    memory: AlignedBuffer,
    tail: u16,
}

impl ReceiveBuffers {
    /// Allocates the buffers and registers them.
    pub(crate) fn register(ring: &IoUring) -> io::Result<Self> {
        let mut entries_memory = AlignedBuffer::new();
        entries_memory.resize(usize::from(BUFFER_COUNT) * size_of::<BufRingEntry>(), 0);
        let mut memory = AlignedBuffer::new();
        memory.resize(usize::from(BUFFER_COUNT) * RECEIVE_SOME_BYTES_MAX, 0);
        let entries = entries_memory.as_mut_slice().as_mut_ptr().cast::<BufRingEntry>();
        // SAFETY: the entries are page-aligned, hold BUFFER_COUNT entries, and live as long as the driver, which closes
        // the ring (or leaks the memory) before it drops them.
        unsafe { ring.submitter().register_buf_ring_with_flags(entries as u64, BUFFER_COUNT, GROUP, 0)? };
        let mut buffers = Self { entries, _ring: entries_memory, memory, tail: 0 };
        for id in 0..BUFFER_COUNT {
            buffers.give(id);
        }
        Ok(buffers)
    }

    /// Hands a buffer to the kernel.
    fn give(&mut self, id: u16) {
        let index = usize::from(self.tail & (BUFFER_COUNT - 1));
        let start = &mut self.memory.as_mut_slice()[usize::from(id) * RECEIVE_SOME_BYTES_MAX..];
        // SAFETY: `index` is below BUFFER_COUNT; the kernel reads an entry only once the tail has passed it.
        let entry = unsafe { &mut *self.entries.add(index) };
        entry.set_addr(start.as_mut_ptr() as u64);
        entry.set_len(RECEIVE_SOME_BYTES_MAX as u32);
        entry.set_bid(id);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail lies in the first entry, aligned for u16, and the kernel only reads it.
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(self.entries).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    /// Copies what a completion received and gives its buffer back at once. `flags` are the completion's.
    pub(crate) fn take(&mut self, flags: u32, length: usize) -> Bytes {
        let Some(id) = cqueue::buffer_select(flags) else { return Bytes::new() };
        assert!(id < BUFFER_COUNT, "the kernel answers with a buffer that it was given");
        let start = usize::from(id) * RECEIVE_SOME_BYTES_MAX;
        let length = length.min(RECEIVE_SOME_BYTES_MAX);
        let bytes = Bytes::copy_from_slice(&self.memory.as_slice()[start..start + length]);
        self.give(id);
        bytes
    }
}
