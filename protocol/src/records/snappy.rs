//! Snappy as Kafka's clients send it: blocks in the framing of snappy-java (Xerial), or one bare block.
//!
//! Not the framing format of the snappy project itself (`sNaPpY`): no Kafka client uses it, and the Java client
//! would take it for a bare block.

use std::cell::RefCell;

use snap::raw::{Decoder, Encoder, decompress_len, max_compress_len};

use super::compression::{Compression, CompressionError, make_room, over_limit, take};

const CODEC: Compression = Compression::Snappy;

/// Before the chunks: magic, then two big-endian 32-bit numbers, version 1 and least compatible version 1. Each chunk is a
/// big-endian 32-bit length and a snappy block of that many bytes.
const HEADER: [u8; 16] = [0x82, b'S', b'N', b'A', b'P', b'P', b'Y', 0, 0, 0, 0, 1, 0, 0, 0, 1];
const MAGIC_BYTES: usize = 8;
/// What snappy-java puts in one chunk.
const CHUNK_BYTES: usize = 32 * 1024;

thread_local! {
    // Its hash table, up to 32 KiB.
    static ENCODER: RefCell<Encoder> = RefCell::new(Encoder::new());
}

/// Appends the framed form to `output`.
pub(super) fn compress(input: &[u8], output: &mut Vec<u8>) {
    output.extend_from_slice(&HEADER);
    ENCODER.with_borrow_mut(|encoder| {
        for chunk in input.chunks(CHUNK_BYTES) {
            let length_at = output.len();
            let block_at = length_at + 4;
            output.resize(block_at + max_compress_len(chunk.len()), 0);
            let block_bytes = encoder
                .compress(chunk, &mut output[block_at..])
                .expect("room for the worst case of a chunk is there");
            output.truncate(block_at + block_bytes);
            output[length_at..block_at].copy_from_slice(&(block_bytes as u32).to_be_bytes());
        }
    });
}

/// See [`super::compression::decompress`]; `output` is empty.
pub(super) fn decompress(
    input: &[u8],
    limit_bytes: usize,
    output: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    // snappy-java decides in the same way: fewer than 16 bytes or another magic is one bare block.
    if input.len() < HEADER.len() || !input.starts_with(&HEADER[..MAGIC_BYTES]) {
        return decompress_block(input, limit_bytes, output);
    }
    let mut rest = input;
    skip_header(&mut rest, input.len())?;
    while !rest.is_empty() {
        // A second stream may follow the first; its magic is no possible length.
        if rest.starts_with(&HEADER[..4]) {
            skip_header(&mut rest, input.len())?;
            continue;
        }
        let length = take(CODEC, &mut rest, 4, "a chunk's length", input.len())?;
        let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        let chunk = take(CODEC, &mut rest, length, "a chunk", input.len())?;
        decompress_block(chunk, limit_bytes, output)?;
    }
    Ok(())
}

fn skip_header(rest: &mut &[u8], input_bytes: usize) -> Result<(), CompressionError> {
    let header = take(CODEC, rest, HEADER.len(), "the header", input_bytes)?;
    let (magic, versions) = header.split_at(MAGIC_BYTES);
    if magic != &HEADER[..MAGIC_BYTES] {
        return Err(CompressionError::Invalid { codec: CODEC, reason: "a chunk's length is negative" });
    }
    // The version says who wrote it; the least compatible version says who can read it.
    let compatible =
        versions.get(4..).unwrap_or_default().iter().fold(0, |value, byte| value << 8 | u32::from(*byte));
    if compatible > 1 {
        return Err(CompressionError::Invalid {
            codec: CODEC,
            reason: "written for readers of another version",
        });
    }
    Ok(())
}

/// Appends one block, whose first bytes promise its size; CVE-2023-34455 is to believe that promise.
fn decompress_block(block: &[u8], limit_bytes: usize, output: &mut Vec<u8>) -> Result<(), CompressionError> {
    let invalid = |_| CompressionError::Invalid { codec: CODEC, reason: "not a snappy block" };
    if block.is_empty() {
        return Err(CompressionError::Invalid { codec: CODEC, reason: "a block is empty" });
    }
    let promised = decompress_len(block).map_err(invalid)?;
    // No element yields more than 64 bytes from 3 (a copy with a two-byte offset): a larger promise cannot be kept.
    if promised > block.len().saturating_mul(64) / 3 {
        return Err(CompressionError::Invalid {
            codec: CODEC,
            reason: "a block promises more than its bytes can hold",
        });
    }
    if promised > limit_bytes.saturating_sub(output.len()) {
        return Err(over_limit(CODEC, limit_bytes));
    }
    let start = output.len();
    make_room(output, promised, limit_bytes);
    output.resize(start + promised, 0);
    let produced = Decoder::new().decompress(block, &mut output[start..]).map_err(invalid)?;
    debug_assert_eq!(produced, promised);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpack(input: &[u8]) -> Result<Vec<u8>, CompressionError> {
        let mut output = Vec::new();
        decompress(input, 1 << 20, &mut output).map(|()| output)
    }

    fn packed(input: &[u8]) -> Vec<u8> {
        let mut output = Vec::new();
        compress(input, &mut output);
        output
    }

    fn block(input: &[u8]) -> Vec<u8> {
        Encoder::new().compress_vec(input).expect("far below 4 GiB")
    }

    #[test]
    fn a_bare_block_is_read() {
        let text = b"bare block ".repeat(1_000);
        assert_eq!(unpack(&block(&text)), Ok(text));
        assert_eq!(unpack(&block(b"x")).as_deref(), Ok(&b"x"[..]));
    }

    #[test]
    fn streams_are_joined() {
        let mut two = packed(b"first ");
        two.extend(packed(b"second"));
        assert_eq!(unpack(&two).as_deref(), Ok(&b"first second"[..]));
    }

    #[test]
    fn a_chunk_holds_32_kib() {
        let framed = packed(&vec![9; CHUNK_BYTES + 1]);
        let first = u32::from_be_bytes([framed[16], framed[17], framed[18], framed[19]]) as usize;
        assert_eq!(decompress_len(&framed[20..20 + first]), Ok(CHUNK_BYTES));
        assert_eq!(decompress_len(&framed[24 + first..]), Ok(1));
    }

    #[test]
    fn promises_and_lengths_that_lie_are_refused_before_they_are_allocated() {
        // The varint says 4 GiB - 1; the block has 3 bytes behind it.
        let mut output = Vec::new();
        let promise = [0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2, 3];
        assert!(decompress(&promise, usize::MAX, &mut output).is_err());
        assert_eq!(output.capacity(), 0);
        for length in [0, 2_u32, 1_000, i32::MAX as u32, u32::MAX] {
            let mut framed = HEADER.to_vec();
            framed.extend(length.to_be_bytes());
            framed.extend(block(b"xyz"));
            assert!(decompress(&framed, usize::MAX, &mut output).is_err(), "{length}");
            assert!(output.capacity() <= 64 * 1024, "{length}");
        }
    }

    #[test]
    fn a_version_for_other_readers_is_refused() {
        let mut framed = packed(b"text");
        framed[15] = 2;
        assert!(matches!(unpack(&framed), Err(CompressionError::Invalid { .. })));
    }
}
