//! Decompression bombs stop at the limit in bounded memory, and the steady state of validation allocates nothing.
//!
//! One test in this file: the allocator counts for the whole process, and a second test's thread would be counted too. The
//! contexts of the zstd library are allocated in C and not seen; they depend on no input, since no window is allocated.
#![allow(unsafe_code)]

mod records_support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use records_support::{batch_around_packed, limits, sound_batch};
use ringlog_protocol::records::compression::{Compression, compress};
use ringlog_protocol::records::validate::validate_produce_batch;

static LIVE_BYTES: AtomicUsize = AtomicUsize::new(0);
static PEAK_BYTES: AtomicUsize = AtomicUsize::new(0);
static ALLOCATION_COUNT: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator with live bytes, their peak and the number of calls counted.
struct Counting;

fn grown(bytes: usize) {
    ALLOCATION_COUNT.fetch_add(1, Relaxed);
    let live = LIVE_BYTES.fetch_add(bytes, Relaxed) + bytes;
    PEAK_BYTES.fetch_max(live, Relaxed);
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract; counting touches atomics only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        grown(bytes);
        LIVE_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(pointer, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` adds to the live bytes at its worst.
fn peak_of(work: impl FnOnce()) -> usize {
    let before = LIVE_BYTES.load(Relaxed);
    PEAK_BYTES.store(before, Relaxed);
    work();
    PEAK_BYTES.load(Relaxed) - before
}

fn allocations_of(work: impl FnOnce()) -> usize {
    let before = ALLOCATION_COUNT.load(Relaxed);
    work();
    ALLOCATION_COUNT.load(Relaxed) - before
}

/// 300 members of 1 MiB of zeros each: 300 KiB -> 300 MiB.
fn gzip_bomb() -> Vec<u8> {
    let mut member = Vec::new();
    compress(Compression::Gzip, Some(9), &vec![0; 1 << 20], &mut member);
    member.repeat(300)
}

/// 200 blocks of 1 MiB of zeros each in one frame -> 200 MiB.
fn lz4_bomb() -> Vec<u8> {
    let mut frame = Vec::new();
    compress(Compression::Lz4, None, &vec![0; 1 << 20], &mut frame);
    let (header, blocks) = (&frame[..7], &frame[7..frame.len() - 4]);
    [header, &blocks.repeat(200), &[0; 4]].concat()
}

/// 8,192 blocks that each repeat one byte 128 KiB times: 32 KiB -> 1 GiB, with a window of 128 MiB stated.
fn zstd_bomb() -> Vec<u8> {
    let block = |last: u32| {
        let header = last | 1 << 1 | (128 << 10) << 3;
        [&header.to_le_bytes()[..3], &[0]].concat()
    };
    [&[0x28, 0xb5, 0x2f, 0xfd, 0, (27 - 10) << 3][..], &block(0).repeat(8_191), &block(1)].concat()
}

/// 18 MiB of zeros in chunks: within the limit, so decompressed whole and then found to be no records.
fn snappy_bomb() -> Vec<u8> {
    let mut framed = Vec::new();
    compress(Compression::Snappy, None, &vec![0; 18 << 20], &mut framed);
    framed
}

#[test]
fn bombs_stop_at_the_limit_and_the_steady_state_allocates_nothing() {
    let limit_bytes = limits().decompressed_bytes_max();
    let bombs = [
        (Compression::Gzip, gzip_bomb(), true),
        (Compression::Snappy, snappy_bomb(), false),
        (Compression::Lz4, lz4_bomb(), true),
        (Compression::Zstd, zstd_bomb(), true),
    ];
    for (codec, packed, over_limit) in bombs {
        assert!(packed.len() < 1_000_000, "{codec} bomb of {} bytes", packed.len());
        let bytes = batch_around_packed(codec, &packed, 1, |_| ());
        let mut scratch = Vec::new();
        let peak_bytes = peak_of(|| {
            let error = validate_produce_batch(&bytes, &limits(), &mut scratch).expect_err("a bomb");
            assert_eq!(error.to_string().contains("more than the limit"), over_limit, "{error}");
        });
        // A buffer that grows is counted with its successor while the bytes move; 1 MiB is for the codec states.
        assert!(
            peak_bytes <= 2 * limit_bytes + (1 << 20),
            "{codec}: {peak_bytes} bytes at the peak, limit {limit_bytes}"
        );
        assert!(scratch.capacity() <= limit_bytes + 1);
        assert!(!over_limit || scratch.capacity() == 0, "what a bomb took is given back");
    }

    for codec in Compression::ALL {
        let bytes = sound_batch(codec);
        let mut scratch = Vec::new();
        let mut validate = || validate_produce_batch(&bytes, &limits(), &mut scratch).expect("sound");
        validate();
        let allocation_count = allocations_of(|| {
            for _ in 0..100 {
                validate();
            }
        });
        assert_eq!(allocation_count, 0, "{codec}");
    }
}
