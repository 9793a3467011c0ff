//! LZ4 frames: the framing by us, the blocks by `lz4_flex`.
//!
//! That crate's own frame reader takes an end between two blocks for the end of the frame and sizes its buffers by the
//! header. Refused, as by the Java client: linked blocks, dictionaries, skippable and legacy frames, a second frame.

use std::cell::RefCell;

use lz4_flex::block::{
    CompressTable, DecompressError, compress_into_with_table, decompress_into, get_maximum_output_size,
};
use twox_hash::XxHash32;

use super::compression::{Compression, CompressionError, GROWTH_BYTES_MIN, make_room, over_limit, take};

const CODEC: Compression = Compression::Lz4;

/// Magic, version 1 with independent blocks and nothing optional, 64 KiB blocks, and the checksum of these two bytes: what
/// the Java client writes.
const HEADER: [u8; 7] = [0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82];
const BLOCK_BYTES: usize = 64 * 1024;
/// Set in a block's length when the block is stored as it is.
const STORED: u32 = 1 << 31;

const FLAG_DICTIONARY: u8 = 1;
const FLAG_RESERVED: u8 = 1 << 1;
const FLAG_CONTENT_CHECKSUM: u8 = 1 << 2;
const FLAG_CONTENT_SIZE: u8 = 1 << 3;
const FLAG_BLOCK_CHECKSUM: u8 = 1 << 4;
const FLAG_INDEPENDENT: u8 = 1 << 5;
const VERSION_MASK: u8 = 0xc0;
const VERSION_1: u8 = 0x40;

thread_local! {
    // 16 KiB of hash table.
    static TABLE: RefCell<CompressTable> = RefCell::new(CompressTable::large());
}

/// Appends one frame to `output`.
pub(super) fn compress(input: &[u8], output: &mut Vec<u8>) {
    output.extend_from_slice(&HEADER);
    TABLE.with_borrow_mut(|table| {
        for chunk in input.chunks(BLOCK_BYTES) {
            let length_at = output.len();
            let block_at = length_at + 4;
            output.resize(block_at + get_maximum_output_size(chunk.len()), 0);
            let block_bytes = compress_into_with_table(chunk, &mut output[block_at..], table)
                .expect("room for the worst case of a block is there");
            let length = if block_bytes < chunk.len() {
                output.truncate(block_at + block_bytes);
                block_bytes as u32
            } else {
                output.truncate(block_at);
                output.extend_from_slice(chunk);
                chunk.len() as u32 | STORED
            };
            output[length_at..block_at].copy_from_slice(&length.to_le_bytes());
        }
    });
    output.extend_from_slice(&0_u32.to_le_bytes());
}

struct Frame {
    block_bytes_max: usize,
    block_checksum: bool,
    content_checksum: bool,
    content_bytes: Option<u64>,
}

/// See [`super::compression::decompress`]; `output` is empty.
pub(super) fn decompress(
    input: &[u8],
    limit_bytes: usize,
    output: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    let mut rest = input;
    let frame = read_header(&mut rest, input.len())?;
    if frame.content_bytes.is_some_and(|bytes| bytes > limit_bytes as u64) {
        return Err(over_limit(CODEC, limit_bytes));
    }
    loop {
        let length = read_u32(&mut rest, "a block's length", input.len())?;
        if length == 0 {
            break;
        }
        let stored = length & STORED != 0;
        let block_bytes = (length & !STORED) as usize;
        if block_bytes > frame.block_bytes_max {
            return Err(invalid("a block is longer than the frame's header allows"));
        }
        let block = take(CODEC, &mut rest, block_bytes, "a block", input.len())?;
        if frame.block_checksum {
            let stated = read_u32(&mut rest, "a block's checksum", input.len())?;
            check("a block checksum", u64::from(stated), u64::from(XxHash32::oneshot(0, block)))?;
        }
        if !stored {
            decompress_block(block, frame.block_bytes_max, limit_bytes, output)?;
        } else if block.len() > limit_bytes - output.len() {
            return Err(over_limit(CODEC, limit_bytes));
        } else {
            make_room(output, block.len(), limit_bytes);
            output.extend_from_slice(block);
        }
    }
    if let Some(stated) = frame.content_bytes {
        check("a content size", stated, output.len() as u64)?;
    }
    if frame.content_checksum {
        let stated = read_u32(&mut rest, "the content checksum", input.len())?;
        check("a content checksum", u64::from(stated), u64::from(XxHash32::oneshot(0, output)))?;
    }
    if rest.is_empty() {
        return Ok(());
    }
    Err(CompressionError::TrailingBytes { codec: CODEC, trailing_bytes: rest.len() as u64 })
}

/// Appends one compressed block. The header may allow 4 MiB for a block of ten bytes, so room grows from a guess.
fn decompress_block(
    block: &[u8],
    block_bytes_max: usize,
    limit_bytes: usize,
    output: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    let start = output.len();
    // No byte of a block yields more than 255.
    let room_max = block_bytes_max.min(block.len().saturating_mul(255)).min(limit_bytes - start);
    let mut room = room_max.min(block.len().saturating_mul(4).max(GROWTH_BYTES_MIN));
    loop {
        make_room(output, room, limit_bytes);
        output.resize(start + room, 0);
        match decompress_into(block, &mut output[start..]) {
            Ok(produced) => {
                output.truncate(start + produced);
                return Ok(());
            }
            Err(DecompressError::OutputTooSmall { .. }) if room < room_max => room = room_max.min(room * 2),
            Err(DecompressError::OutputTooSmall { .. }) if room == limit_bytes - start => {
                return Err(over_limit(CODEC, limit_bytes));
            }
            Err(_) => return Err(invalid("not an lz4 block")),
        }
    }
}

fn read_header(rest: &mut &[u8], input_bytes: usize) -> Result<Frame, CompressionError> {
    let magic = take(CODEC, rest, 4, "the magic", input_bytes)?;
    if magic != &HEADER[..4] {
        return Err(invalid("no magic of an lz4 frame"));
    }
    let described = *rest;
    let [flags, block_descriptor] = *take(CODEC, rest, 2, "the frame descriptor", input_bytes)? else {
        return Err(invalid("no frame descriptor"));
    };
    if flags & VERSION_MASK != VERSION_1 {
        return Err(invalid("not version 1 of the frame format"));
    }
    if flags & (FLAG_RESERVED | FLAG_DICTIONARY) != 0 {
        return Err(invalid("a dictionary or reserved flags are set"));
    }
    if flags & FLAG_INDEPENDENT == 0 {
        return Err(invalid("blocks are linked, which the java client cannot read"));
    }
    let block_bytes_max = match block_descriptor {
        0x40 => 64 << 10,
        0x50 => 256 << 10,
        0x60 => 1 << 20,
        0x70 => 4 << 20,
        _ => return Err(invalid("no block size of the frame format")),
    };
    let content_bytes = if flags & FLAG_CONTENT_SIZE != 0 {
        let size = take(CODEC, rest, 8, "the content size", input_bytes)?;
        Some(size.iter().rev().fold(0, |size, byte| size << 8 | u64::from(*byte)))
    } else {
        None
    };
    let covered = described.get(..described.len() - rest.len()).unwrap_or_default();
    let stated = take(CODEC, rest, 1, "the header's checksum", input_bytes)?;
    let computed = XxHash32::oneshot(0, covered) >> 8 & 0xff;
    check("a header checksum", stated.iter().fold(0, |_, byte| u64::from(*byte)), u64::from(computed))?;
    Ok(Frame {
        block_bytes_max,
        block_checksum: flags & FLAG_BLOCK_CHECKSUM != 0,
        content_checksum: flags & FLAG_CONTENT_CHECKSUM != 0,
        content_bytes,
    })
}

fn read_u32(rest: &mut &[u8], part: &'static str, input_bytes: usize) -> Result<u32, CompressionError> {
    let bytes = take(CODEC, rest, 4, part, input_bytes)?;
    Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte)))
}

fn check(field: &'static str, stated: u64, computed: u64) -> Result<(), CompressionError> {
    if stated == computed {
        return Ok(());
    }
    Err(CompressionError::Mismatch { codec: CODEC, field, stated, computed })
}

fn invalid(reason: &'static str) -> CompressionError {
    CompressionError::Invalid { codec: CODEC, reason }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};

    use super::*;

    fn unpack(input: &[u8]) -> Result<Vec<u8>, CompressionError> {
        let mut output = Vec::new();
        decompress(input, 32 << 20, &mut output).map(|()| output)
    }

    /// A frame by another writer, with everything optional.
    fn framed(input: &[u8], mode: BlockMode, size: BlockSize) -> Vec<u8> {
        let info = FrameInfo::new()
            .block_mode(mode)
            .block_size(size)
            .block_checksums(true)
            .content_checksum(true)
            .content_size(Some(input.len() as u64));
        let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
        encoder.write_all(input).expect("into memory");
        encoder.finish().expect("into memory")
    }

    fn text() -> Vec<u8> {
        (0..60_000_u32).flat_map(|index| (index % 251).to_le_bytes()).collect()
    }

    #[test]
    fn frames_of_another_writer_are_read() {
        for size in [BlockSize::Max64KB, BlockSize::Max256KB, BlockSize::Max1MB, BlockSize::Max4MB] {
            assert_eq!(unpack(&framed(&text(), BlockMode::Independent, size)), Ok(text()), "{size:?}");
        }
    }

    #[test]
    fn our_frames_are_read_by_another_reader() {
        let mut ours = Vec::new();
        compress(&text(), &mut ours);
        let mut output = Vec::new();
        std::io::copy(&mut lz4_flex::frame::FrameDecoder::new(&ours[..]), &mut output).expect("valid");
        assert_eq!(output, text());
    }

    #[test]
    fn linked_blocks_are_refused() {
        let linked = framed(&text(), BlockMode::Linked, BlockSize::Max64KB);
        let error = invalid("blocks are linked, which the java client cannot read");
        assert_eq!(unpack(&linked), Err(error));
    }

    #[test]
    fn every_bit_is_covered_by_a_checksum_or_a_check() {
        let good = framed(b"some short text, some short text", BlockMode::Independent, BlockSize::Max64KB);
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(unpack(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_content_size_that_lies_is_refused() {
        for (size, expected_over_limit) in [(1_u64 << 62, true), (9, false), (7, false)] {
            let mut frame = HEADER[..4].to_vec();
            let mut described = vec![VERSION_1 | FLAG_INDEPENDENT | FLAG_CONTENT_SIZE, 0x40];
            described.extend(size.to_le_bytes());
            frame.extend(&described);
            frame.push((XxHash32::oneshot(0, &described) >> 8) as u8);
            frame.extend((8 | STORED).to_le_bytes());
            frame.extend(b"8 bytes!");
            frame.extend(0_u32.to_le_bytes());
            let mut output = Vec::new();
            let error = decompress(&frame, 1 << 20, &mut output).expect_err("a lie");
            assert_eq!(matches!(error, CompressionError::OverLimit { .. }), expected_over_limit, "{error}");
            assert!(output.capacity() <= GROWTH_BYTES_MIN);
        }
    }

    #[test]
    fn a_block_of_2_gib_is_refused_before_any_allocation() {
        for length in [i32::MAX as u32, u32::MAX, 65_537, 65_537 | STORED, 65_536 | STORED] {
            let mut frame = HEADER.to_vec();
            frame.extend(length.to_le_bytes());
            frame.extend([0; 20]);
            let mut output = Vec::new();
            assert!(decompress(&frame, usize::MAX, &mut output).is_err(), "{length:#x}");
            assert_eq!(output.capacity(), 0);
        }
    }
}
