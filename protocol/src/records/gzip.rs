//! gzip (RFC 1952): members around raw deflate, the framing by us so that the inflate state can be kept.
//!
//! Reads any number of members back to back, as Java's `GZIPInputStream` does. Unlike it, bytes after the last member
//! that are no member are an error instead of being ignored.

use std::cell::RefCell;

use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};

use super::compression::{Compression, CompressionError, make_room, over_limit, take};

const CODEC: Compression = Compression::Gzip;
/// Deflate, no flags, no time, default effort, unknown system: as Java writes it.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
const TRAILER_BYTES: usize = 8;

const FLAG_HEADER_CRC: u8 = 1 << 1;
const FLAG_EXTRA: u8 = 1 << 2;
const FLAG_NAME: u8 = 1 << 3;
const FLAG_COMMENT: u8 = 1 << 4;
const FLAGS_RESERVED: u8 = 0xe0;

/// Kafka's `compression.gzip.level` -1.
const LEVEL_DEFAULT: i32 = 6;

struct Deflater {
    level: i32,
    state: Compress,
}

thread_local! {
    // About 300 KiB and 40 KiB: kept, since making them costs more than most batches.
    static DEFLATE: RefCell<Option<Deflater>> = const { RefCell::new(None) };
    static INFLATE: RefCell<Option<Decompress>> = const { RefCell::new(None) };
}

/// Appends one member to `output`.
pub(super) fn compress(level: Option<i32>, input: &[u8], output: &mut Vec<u8>) {
    let level = level.filter(|level| *level >= 0).unwrap_or(LEVEL_DEFAULT).clamp(1, 9);
    output.extend_from_slice(&HEADER);
    DEFLATE.with_borrow_mut(|kept| {
        let deflater = match kept {
            Some(deflater) if deflater.level == level => deflater,
            _ => kept.insert(Deflater {
                level,
                state: Compress::new(flate2::Compression::new(level as u32), false),
            }),
        };
        deflater.state.reset();
        deflate(&mut deflater.state, input, output);
    });
    output.extend_from_slice(&crc_fast::crc32_iso_hdlc(input).to_le_bytes());
    output.extend_from_slice(&(input.len() as u32).to_le_bytes());
}

fn deflate(state: &mut Compress, input: &[u8], output: &mut Vec<u8>) {
    loop {
        let rest = input.get(state.total_in() as usize..).unwrap_or_default();
        output.reserve((rest.len() / 2).clamp(128, 1 << 20));
        let status = state
            .compress_vec(rest, output, FlushCompress::Finish)
            .expect("deflate into a growing buffer has no failure");
        if status == Status::StreamEnd {
            return;
        }
    }
}

/// See [`super::compression::decompress`]; `output` is empty.
pub(super) fn decompress(
    input: &[u8],
    limit_bytes: usize,
    output: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    let mut rest = input;
    INFLATE.with_borrow_mut(|kept| {
        let state = kept.get_or_insert_with(|| Decompress::new(false));
        loop {
            decompress_member(state, &mut rest, input.len(), limit_bytes, output)?;
            if rest.is_empty() {
                return Ok(());
            }
            if !rest.starts_with(&HEADER[..2]) {
                return Err(CompressionError::TrailingBytes {
                    codec: CODEC,
                    trailing_bytes: rest.len() as u64,
                });
            }
        }
    })
}

fn decompress_member(
    state: &mut Decompress,
    rest: &mut &[u8],
    input_bytes: usize,
    limit_bytes: usize,
    output: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    skip_header(rest, input_bytes)?;
    let start = output.len();
    inflate(state, rest, input_bytes, limit_bytes, output)?;
    let trailer = take(CODEC, rest, TRAILER_BYTES, "the trailer", input_bytes)?;
    let (crc, size) = trailer.split_at(4);
    let member = output.get(start..).unwrap_or_default();
    check("a crc of", crc, crc_fast::crc32_iso_hdlc(member))?;
    check("a size modulo 2^32 of", size, member.len() as u32)
}

fn inflate(
    state: &mut Decompress,
    rest: &mut &[u8],
    input_bytes: usize,
    limit_bytes: usize,
    output: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    state.reset(false);
    loop {
        make_room(output, 1, limit_bytes);
        let (consumed_before, produced_before) = (state.total_in(), state.total_out());
        let status = state
            .decompress_vec(rest, output, FlushDecompress::None)
            .map_err(|_| CompressionError::Invalid { codec: CODEC, reason: "not a deflate stream" })?;
        let consumed = (state.total_in() - consumed_before) as usize;
        take(CODEC, rest, consumed, "deflate data", input_bytes)?;
        if output.len() > limit_bytes {
            return Err(over_limit(CODEC, limit_bytes));
        }
        if status == Status::StreamEnd {
            return Ok(());
        }
        if consumed == 0 && state.total_out() == produced_before {
            return Err(truncated("deflate data", input_bytes));
        }
    }
}

fn skip_header(rest: &mut &[u8], input_bytes: usize) -> Result<(), CompressionError> {
    let whole = *rest;
    let head = take(CODEC, rest, HEADER.len(), "a member's header", input_bytes)?;
    let [0x1f, 0x8b, 8, flags, ..] = *head else {
        return Err(CompressionError::Invalid { codec: CODEC, reason: "no header of a deflate member" });
    };
    if flags & FLAGS_RESERVED != 0 {
        return Err(CompressionError::Invalid { codec: CODEC, reason: "reserved flags are set" });
    }
    if flags & FLAG_EXTRA != 0 {
        let length = take(CODEC, rest, 2, "the extra field's length", input_bytes)?;
        let length = length.iter().rev().fold(0, |length, byte| length << 8 | usize::from(*byte));
        take(CODEC, rest, length, "the extra field", input_bytes)?;
    }
    for (flag, part) in [(FLAG_NAME, "the file name"), (FLAG_COMMENT, "the comment")] {
        if flags & flag != 0 {
            let end = rest.iter().position(|byte| *byte == 0).ok_or_else(|| truncated(part, input_bytes))?;
            take(CODEC, rest, end + 1, part, input_bytes)?;
        }
    }
    if flags & FLAG_HEADER_CRC != 0 {
        let covered = whole.get(..whole.len() - rest.len()).unwrap_or_default();
        let stated = take(CODEC, rest, 2, "the header's crc", input_bytes)?;
        let computed = crc_fast::crc32_iso_hdlc(covered) & 0xffff;
        check("a header crc", stated, computed)?;
    }
    Ok(())
}

/// Compares a little-endian field with what it must be.
fn check(field: &'static str, stated: &[u8], computed: u32) -> Result<(), CompressionError> {
    let stated = stated.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
    if stated == u64::from(computed) {
        return Ok(());
    }
    Err(CompressionError::Mismatch { codec: CODEC, field, stated, computed: u64::from(computed) })
}

fn truncated(part: &'static str, input_bytes: usize) -> CompressionError {
    CompressionError::Truncated { codec: CODEC, part, input_bytes: input_bytes as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(input: &[u8]) -> Vec<u8> {
        let mut output = Vec::new();
        compress(None, input, &mut output);
        output
    }

    fn unpack(input: &[u8]) -> Result<Vec<u8>, CompressionError> {
        let mut output = Vec::new();
        decompress(input, 1 << 20, &mut output).map(|()| output)
    }

    #[test]
    fn members_are_joined_and_anything_else_behind_them_is_refused() {
        let mut two = packed(b"first ");
        two.extend(packed(b"second"));
        assert_eq!(unpack(&two).as_deref(), Ok(&b"first second"[..]));
        two.extend([0, 0, 0]);
        assert_eq!(unpack(&two), Err(CompressionError::TrailingBytes { codec: CODEC, trailing_bytes: 3 }));
    }

    #[test]
    fn optional_header_fields_are_skipped_and_the_header_crc_is_checked() {
        let plain = packed(b"value");
        let mut head = vec![0x1f, 0x8b, 8, 0x1e, 1, 2, 3, 4, 0, 3];
        head.extend([3, 0, 7, 7, 7]);
        head.extend(b"name\0comment\0");
        let crc = crc_fast::crc32_iso_hdlc(&head) as u16;
        let mut whole = head.clone();
        whole.extend(crc.to_le_bytes());
        whole.extend(&plain[HEADER.len()..]);
        assert_eq!(unpack(&whole).as_deref(), Ok(&b"value"[..]));
        for cut in 0..whole.len() {
            assert!(unpack(&whole[..cut]).is_err(), "cut at {cut}");
        }
        whole[head.len()] ^= 1;
        assert!(matches!(unpack(&whole), Err(CompressionError::Mismatch { field: "a header crc", .. })));
    }

    #[test]
    fn the_trailer_is_checked() {
        let plain = packed(b"value");
        for (from_end, field) in [(8, "a crc of"), (4, "a size modulo 2^32 of")] {
            let mut bad = plain.clone();
            let at = bad.len() - from_end;
            bad[at] ^= 1;
            assert!(
                matches!(unpack(&bad), Err(CompressionError::Mismatch { field: named, .. }) if named == field)
            );
        }
    }

    #[test]
    fn the_kept_state_survives_an_error() {
        let plain = packed(&[7; 5_000]);
        let mut bad = plain.clone();
        bad[12] ^= 0xff;
        assert!(unpack(&bad).is_err());
        assert!(unpack(&plain[..plain.len() - 9]).is_err());
        assert_eq!(unpack(&plain), Ok(vec![7; 5_000]));
    }
}
