//! zstd (RFC 8878) through the reference library, without its streaming mode.
//!
//! A stream's window is allocated by a size that the input states, up to 128 MiB. Whole frames need no window: they are decompressed
//! straight into the output, which is doubled and tried again while it is too small. That is at most twice the work, once per
//! output buffer, since callers keep theirs; streaming would pay a window and a copy on every batch.

use std::cell::RefCell;
use std::io::Cursor;

use ::zstd::zstd_safe::zstd_sys::ZSTD_ErrorCode;
use ::zstd::zstd_safe::{CCtx, CParameter, DCtx, compress_bound, get_frame_content_size, is_error_kind};

use super::compression::{Compression, CompressionError, GROWTH_BYTES_MIN, over_limit};

const CODEC: Compression = Compression::Zstd;
const FRAME_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Kafka's `compression.zstd.level` default.
const LEVEL_DEFAULT: i32 = 3;
/// Levels beyond need up to 700 MiB a context, which is kept per thread.
const LEVEL_MAX: i32 = 19;
const LEVEL_MIN: i32 = -131_072;
/// What readers accept unless told otherwise; a frame with a larger window would stop every consumer.
const WINDOW_LOG_MAX: u32 = 27;
/// How far a frame's stated size is believed when the first room is chosen: so many times its own bytes.
const BELIEVED_RATIO: usize = 32;

thread_local! {
    // 1 to 80 MiB by level, and 150 KiB.
    static COMPRESS: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
    static DECOMPRESS: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

/// Appends one frame to `output`.
pub(super) fn compress(level: Option<i32>, input: &[u8], output: &mut Vec<u8>) {
    let level = level.unwrap_or(LEVEL_DEFAULT).clamp(LEVEL_MIN, LEVEL_MAX);
    output.reserve(compress_bound(input.len()));
    COMPRESS.with_borrow_mut(|kept| {
        let context = kept.get_or_insert_with(CCtx::create);
        context
            .set_parameter(CParameter::CompressionLevel(level))
            .expect("the level was clamped to its range");
        let start = output.len() as u64;
        let mut tail = Cursor::new(output);
        tail.set_position(start);
        context.compress2(&mut tail, input).expect("room for the worst case is there");
    });
}

/// See [`super::compression::decompress`]; `output` is empty.
pub(super) fn decompress(
    input: &[u8],
    limit_bytes: usize,
    output: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    if input.is_empty() {
        return Err(CompressionError::Truncated { codec: CODEC, part: "a frame", input_bytes: 0 });
    }
    check_window(input)?;
    let stated = get_frame_content_size(input).ok().flatten().unwrap_or(0);
    let believed =
        usize::try_from(stated).unwrap_or(usize::MAX).min(input.len().saturating_mul(BELIEVED_RATIO));
    let mut room = believed.max(GROWTH_BYTES_MIN).min(limit_bytes).max(output.capacity());
    DECOMPRESS.with_borrow_mut(|kept| {
        let context = kept.get_or_insert_with(DCtx::create);
        loop {
            if room > output.capacity() {
                // Nothing in it is worth the copy that growing in place may take.
                *output = Vec::new();
                output.reserve_exact(room);
            }
            match context.decompress(output, input) {
                Ok(_) if output.len() > limit_bytes => return Err(over_limit(CODEC, limit_bytes)),
                Ok(_) => return Ok(()),
                Err(code) if is_error_kind(code, ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall) => {
                    if room >= limit_bytes {
                        return Err(over_limit(CODEC, limit_bytes));
                    }
                    room = room.saturating_mul(2).max(GROWTH_BYTES_MIN).min(limit_bytes);
                }
                Err(code) => return Err(invalid(::zstd::zstd_safe::get_error_name(code))),
            }
        }
    })
}

/// Refuses a first frame whose window readers refuse by default (RFC 8878 3.1.1.1.2). A frame without a window descriptor has
/// the window of its content, which the limit bounds.
fn check_window(input: &[u8]) -> Result<(), CompressionError> {
    let Some([descriptor, window, ..]) = input.strip_prefix(&FRAME_MAGIC) else {
        return Ok(());
    };
    let single_segment = descriptor & (1 << 5) != 0;
    let (exponent, mantissa) = (10 + u32::from(window >> 3), window & 7);
    if !single_segment && (exponent > WINDOW_LOG_MAX || exponent == WINDOW_LOG_MAX && mantissa > 0) {
        return Err(invalid("the window is more than 128 MiB"));
    }
    Ok(())
}

fn invalid(reason: &'static str) -> CompressionError {
    CompressionError::Invalid { codec: CODEC, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpack(input: &[u8]) -> Result<Vec<u8>, CompressionError> {
        let mut output = Vec::new();
        decompress(input, 8 << 20, &mut output).map(|()| output)
    }

    fn packed(input: &[u8]) -> Vec<u8> {
        let mut output = Vec::new();
        compress(None, input, &mut output);
        output
    }

    #[test]
    fn frames_are_joined_and_junk_behind_them_is_refused() {
        let mut two = packed(b"first ");
        two.extend(packed(b"second"));
        assert_eq!(unpack(&two).as_deref(), Ok(&b"first second"[..]));
        two.extend(b"junk!");
        assert!(unpack(&two).is_err());
    }

    #[test]
    fn frames_of_the_streaming_writer_with_a_checksum_are_read_and_checked() {
        let text = b"streamed ".repeat(200_000);
        let mut writer = ::zstd::stream::write::Encoder::new(Vec::new(), 3).expect("level 3 exists");
        writer.include_checksum(true).expect("a parameter of the library");
        std::io::Write::write_all(&mut writer, &text).expect("into memory");
        let mut frame = writer.finish().expect("into memory");
        assert_eq!(unpack(&frame), Ok(text));
        *frame.last_mut().expect("not empty") ^= 1;
        assert!(unpack(&frame).is_err());
    }

    #[test]
    fn a_stated_size_allocates_nothing_by_itself() {
        // Single segment, 8-byte content size of 2^40, one empty last block.
        let mut frame = FRAME_MAGIC.to_vec();
        frame.push(0xe0);
        frame.extend((1_u64 << 40).to_le_bytes());
        frame.extend([1, 0, 0]);
        let mut output = Vec::new();
        assert!(decompress(&frame, usize::MAX, &mut output).is_err());
        assert!(output.capacity() <= GROWTH_BYTES_MIN);
    }

    #[test]
    fn a_window_that_readers_refuse_is_refused() {
        for (window, refused) in [((27 - 10) << 3, false), ((27 - 10) << 3 | 1, true), ((31 - 10) << 3, true)]
        {
            let mut frame = FRAME_MAGIC.to_vec();
            frame.extend([0, window, 1, 0, 0]);
            assert_eq!(
                unpack(&frame),
                if refused { Err(invalid("the window is more than 128 MiB")) } else { Ok(vec![]) }
            );
        }
    }

    #[test]
    fn a_kept_output_is_reused() {
        let frame = packed(&vec![1; 3 << 20]);
        let mut output = Vec::new();
        assert_eq!(decompress(&frame, 8 << 20, &mut output), Ok(()));
        let (address, capacity) = (output.as_ptr(), output.capacity());
        output.clear();
        assert_eq!(decompress(&frame, 8 << 20, &mut output), Ok(()));
        assert_eq!((output.as_ptr(), output.capacity()), (address, capacity));
    }
}
