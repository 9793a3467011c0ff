//! Memory that the block layer accepts as it is. Owns its allocation; never touches a file.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;

/// Alignment of every [`AlignedBuffer`], and the multiple that O_DIRECT writes must keep, in bytes.
pub const ALIGNMENT_BYTES: usize = 4096;

/// Bytes at a 4096-aligned address, grown like a `Vec`. All of its capacity is initialised (zeroed at first).
pub struct AlignedBuffer {
    start: NonNull<u8>,
    /// Invariant: length <= capacity.
    length: usize,
    /// Invariant: a multiple of [`ALIGNMENT_BYTES`]; 0 means that nothing is allocated.
    capacity: usize,
}

// SAFETY: the buffer owns its memory alone, as a `Vec<u8>` does.
unsafe impl Send for AlignedBuffer {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for AlignedBuffer {}

impl AlignedBuffer {
    /// An empty buffer that holds nothing.
    pub const fn new() -> Self {
        Self { start: NonNull::dangling(), length: 0, capacity: 0 }
    }

    /// An empty buffer with room for `bytes`, rounded up to a multiple of 4096.
    pub fn with_capacity(bytes: usize) -> Self {
        let mut buffer = Self::new();
        buffer.reserve(bytes);
        buffer
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGNMENT_BYTES)
            .expect("a capacity that was allocated has a layout")
    }

    /// Makes room for `additional` bytes after the present ones.
    pub fn reserve(&mut self, additional: usize) {
        let needed = self.length.checked_add(additional).expect("a buffer is smaller than the address space");
        if needed <= self.capacity {
            return;
        }
        // Doubling keeps appending linear; the first allocation is exact.
        let capacity = needed.max(self.capacity.saturating_mul(2)).next_multiple_of(ALIGNMENT_BYTES);
        let layout = Layout::from_size_align(capacity, ALIGNMENT_BYTES)
            .expect("a buffer is smaller than the address space");
        // SAFETY: the layout has a size above zero, because `needed` exceeds a capacity of at least zero.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(raw) else { handle_alloc_error(layout) };
        // SAFETY: both regions hold at least `length` bytes and the new one was just allocated, so they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr(), start.as_ptr(), self.length) };
        self.release();
        self.start = start;
        self.capacity = capacity;
    }

    fn release(&mut self) {
        if self.capacity > 0 {
            // SAFETY: `start` was allocated with exactly this layout and is not used after.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.capacity)) };
            self.capacity = 0;
        }
    }

    /// Bytes in use.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no byte is in use.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Bytes allocated.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Appends `bytes`.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.reserve(bytes.len());
        let start = self.length;
        self.length += bytes.len();
        self.as_mut_slice()[start..].copy_from_slice(bytes);
    }

    /// Makes the length `length`; new bytes are `fill`.
    pub fn resize(&mut self, length: usize, fill: u8) {
        if length > self.length {
            self.reserve(length - self.length);
            let start = self.length;
            self.length = length;
            self.as_mut_slice()[start..].fill(fill);
        } else {
            self.length = length;
        }
    }

    /// Appends zeroes until the length is a multiple of 4096, as a direct write needs it.
    pub fn pad_to_alignment(&mut self) {
        self.resize(self.length.next_multiple_of(ALIGNMENT_BYTES), 0);
    }

    /// The bytes in use.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: `length <= capacity` bytes from `start` are allocated and initialised; dangling is valid for none.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }

    /// The bytes in use, writable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and the exclusive reference makes this the only view.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }

    /// Forgets the bytes, keeps the allocation.
    pub fn clear(&mut self) {
        self.length = 0;
    }

    /// Forgets the bytes after the first `length`.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }
}

impl Default for AlignedBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        self.release();
    }
}

impl AsRef<[u8]> for AlignedBuffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for AlignedBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AlignedBuffer")
            .field("len", &self.length)
            .field("capacity", &self.capacity)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_like_a_vector_and_stays_aligned() {
        let mut buffer = AlignedBuffer::new();
        let mut expected = Vec::new();
        for round in 0..200_usize {
            let piece = vec![u8::try_from(round).expect("below 256"); round * 7];
            buffer.extend_from_slice(&piece);
            expected.extend_from_slice(&piece);
            assert_eq!(buffer.as_slice(), expected);
            assert_eq!(
                buffer.as_slice().as_ptr() as usize % ALIGNMENT_BYTES,
                usize::from(buffer.capacity() == 0)
            );
        }
        buffer.pad_to_alignment();
        assert_eq!(buffer.len() % ALIGNMENT_BYTES, 0);
        assert_eq!(&buffer.as_slice()[..expected.len()], expected);
        assert!(buffer.as_slice()[expected.len()..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn resize_fills_again_what_clear_forgot() {
        let mut buffer = AlignedBuffer::with_capacity(10);
        assert_eq!(buffer.capacity(), ALIGNMENT_BYTES);
        buffer.extend_from_slice(&[7; 100]);
        buffer.clear();
        assert!(buffer.is_empty());
        buffer.resize(50, 0);
        assert_eq!(buffer.as_slice(), [0; 50]);
    }
}
