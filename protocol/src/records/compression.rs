//! The five codecs of a batch behind two functions: compress, and decompress under a bound.
//!
//! Decompression grows its output by what was produced (64 KiB, then doubling, never beyond the bound), not by a size that
//! the input promises. What the Java client cannot read back is refused too, or it would sit in a log and stop every consumer.
//! Codec state (inflate window, zstd context) is kept per thread, because making it costs more than a small batch.

use std::fmt;
use std::str::FromStr;

use super::{gzip, lz4, snappy, zstd};

/// The first step by which an output grows; later ones double it.
pub(super) const GROWTH_BYTES_MIN: usize = 64 * 1024;

/// A codec of a batch; the numbers are stable, on the wire and on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// Records as they are.
    #[default]
    None = 0,
    /// RFC 1952, one or more members.
    Gzip = 1,
    /// Written in the framing of snappy-java (Xerial); also read as one bare block, which librdkafka and Go clients send.
    Snappy = 2,
    /// One LZ4 frame of independent blocks.
    Lz4 = 3,
    /// RFC 8878; Produce 7 or later (KIP-110).
    Zstd = 4,
}

impl Compression {
    /// All of them, in the order of their numbers.
    pub const ALL: [Compression; 5] =
        [Compression::None, Compression::Gzip, Compression::Snappy, Compression::Lz4, Compression::Zstd];

    /// The codec of a number in the attributes; `None` for 5 and more.
    #[must_use]
    pub fn from_bits(bits: u8) -> Option<Compression> {
        Compression::ALL.get(usize::from(bits)).copied()
    }

    /// Its number in the attributes.
    #[must_use]
    pub fn bits(self) -> u8 {
        self as u8
    }

    /// Kafka's name, as in `compression.type`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Gzip => "gzip",
            Compression::Snappy => "snappy",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no codec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("compression {text:?} is none of none, gzip, snappy, lz4, zstd")]
pub struct ParseCompressionError {
    /// What was to be parsed, cut to 64 characters.
    pub text: String,
}

impl FromStr for Compression {
    type Err = ParseCompressionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Compression::ALL.into_iter().find(|codec| codec.name() == text);
        named.ok_or_else(|| ParseCompressionError { text: text.chars().take(64).collect() })
    }
}

/// Why bytes do not decompress, or do not within the bound.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompressionError {
    /// There is more output than the caller allows.
    #[error("{codec} data decompresses to more than the limit of {limit_bytes} bytes")]
    OverLimit {
        /// The codec.
        codec: Compression,
        /// The caller's bound.
        limit_bytes: u64,
    },
    /// The input ends too early.
    #[error("{codec} data is cut off: {part} does not fit the {input_bytes} bytes of input")]
    Truncated {
        /// The codec.
        codec: Compression,
        /// Which part was to be read.
        part: &'static str,
        /// Bytes of the whole input.
        input_bytes: u64,
    },
    /// The input goes on after its end.
    #[error("{codec} data is followed by {trailing_bytes} bytes of something else")]
    TrailingBytes {
        /// The codec.
        codec: Compression,
        /// Bytes after the end.
        trailing_bytes: u64,
    },
    /// A checksum or a stated size differs from the data.
    #[error("{codec} data states {field} {stated:#x} but has {computed:#x}")]
    Mismatch {
        /// The codec.
        codec: Compression,
        /// Which checksum or size.
        field: &'static str,
        /// As stated by the input.
        stated: u64,
        /// As computed from the data.
        computed: u64,
    },
    /// Not this format, or a part of it that Kafka's clients do not use.
    #[error("{codec} data is not valid: {reason}")]
    Invalid {
        /// The codec.
        codec: Compression,
        /// What is wrong.
        reason: &'static str,
    },
}

/// Compresses `input` and appends the result to `output`.
///
/// `level` is the codec's own (gzip 1..=9, zstd negative ones to 19), clamped to its range; `None` takes Kafka's
/// defaults (gzip 6, zstd 3). Snappy has no levels, and lz4 is always written by the fast compressor.
pub fn compress(codec: Compression, level: Option<i32>, input: &[u8], output: &mut Vec<u8>) {
    match codec {
        Compression::None => output.extend_from_slice(input),
        Compression::Gzip => gzip::compress(level, input, output),
        Compression::Snappy => snappy::compress(input, output),
        Compression::Lz4 => lz4::compress(input, output),
        Compression::Zstd => zstd::compress(level, input, output),
    }
}

/// Decompresses all of `input` into `output`, which is emptied first and keeps its capacity for the next call.
///
/// `output` never grows beyond the larger of `limit_bytes` + 1 and the capacity that it came with.
///
/// # Errors
/// [`CompressionError`]; `output` then holds nothing of meaning.
pub fn decompress(
    codec: Compression,
    input: &[u8],
    limit_bytes: usize,
    output: &mut Vec<u8>,
) -> Result<(), CompressionError> {
    output.clear();
    match codec {
        Compression::None if input.len() > limit_bytes => Err(over_limit(codec, limit_bytes)),
        Compression::None => {
            output.extend_from_slice(input);
            Ok(())
        }
        Compression::Gzip => gzip::decompress(input, limit_bytes, output),
        Compression::Snappy => snappy::decompress(input, limit_bytes, output),
        Compression::Lz4 => lz4::decompress(input, limit_bytes, output),
        Compression::Zstd => zstd::decompress(input, limit_bytes, output),
    }
}

pub(super) fn over_limit(codec: Compression, limit_bytes: usize) -> CompressionError {
    CompressionError::OverLimit { codec, limit_bytes: limit_bytes as u64 }
}

/// Makes room for `extra` more bytes in an output, doubling it so far as the limit allows. Not `Vec::reserve`, which doubles
/// past the limit. Callers ask for one byte beyond the limit at most: it tells data that goes on from data that ends there.
pub(super) fn make_room(output: &mut Vec<u8>, extra: usize, limit_bytes: usize) {
    let needed = output.len() + extra;
    if needed > output.capacity() {
        let doubled =
            output.capacity().saturating_mul(2).max(GROWTH_BYTES_MIN).min(limit_bytes.saturating_add(1));
        output.reserve_exact(needed.max(doubled) - output.len());
    }
}

/// Splits `bytes` off the front of `rest`, or names the `part` that is cut off.
pub(super) fn take<'a>(
    codec: Compression,
    rest: &mut &'a [u8],
    bytes: usize,
    part: &'static str,
    input_bytes: usize,
) -> Result<&'a [u8], CompressionError> {
    let (head, tail) = rest.split_at_checked(bytes).ok_or(CompressionError::Truncated {
        codec,
        part,
        input_bytes: input_bytes as u64,
    })?;
    *rest = tail;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: usize = 16 << 20;

    fn codecs() -> impl Strategy<Value = Compression> {
        proptest::sample::select(&Compression::ALL[1..])
    }

    /// Runs, text and noise, so that every codec meets literals, short and long matches, and stored blocks.
    fn inputs() -> impl Strategy<Value = Vec<u8>> {
        let noise = proptest::collection::vec(any::<u8>(), 0..3_000);
        let runs = (any::<u8>(), 0..300_000_usize).prop_map(|(byte, count)| vec![byte; count]);
        let text = (1..4_000_usize).prop_map(|count| "offset partition leader ".repeat(count).into_bytes());
        proptest::collection::vec(prop_oneof![noise, runs, text], 0..4).prop_map(|parts| parts.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn round_trip(codec in codecs(), input in inputs(), level in proptest::option::of(-3..12_i32)) {
            let mut packed = b"before".to_vec();
            compress(codec, level, &input, &mut packed);
            prop_assert_eq!(&packed[..6], b"before");
            let mut output = b"left over".to_vec();
            prop_assert_eq!(decompress(codec, &packed[6..], LIMIT, &mut output), Ok(()));
            prop_assert_eq!(&output, &input);
            // Exactly the size is enough, one byte less is not, and says so.
            prop_assert_eq!(decompress(codec, &packed[6..], input.len(), &mut output), Ok(()));
            if !input.is_empty() {
                let limit = input.len() - 1;
                prop_assert_eq!(
                    decompress(codec, &packed[6..], limit, &mut Vec::new()),
                    Err(over_limit(codec, limit))
                );
            }
        }

        #[test]
        fn cut_anywhere_or_followed_by_junk_is_an_error(codec in codecs(), input in inputs(), junk in any::<u8>()) {
            let mut packed = Vec::new();
            compress(codec, None, &input, &mut packed);
            let step = (packed.len() / 300).max(1);
            let mut output = Vec::new();
            for cut in (0..packed.len()).step_by(step).chain([packed.len() - 1]) {
                let result = decompress(codec, &packed[..cut], LIMIT, &mut output);
                // The framing of snappy has no end mark: a cut between two chunks shows only as a shorter output.
                let between_chunks = codec == Compression::Snappy && output.len() < input.len();
                prop_assert!(result.is_err() || between_chunks, "{} of {}", cut, packed.len());
            }
            packed.push(junk);
            prop_assert!(decompress(codec, &packed, LIMIT, &mut output).is_err());
        }

        #[test]
        fn noise_never_panics(codec in codecs(), noise in proptest::collection::vec(any::<u8>(), 0..2_000)) {
            let mut output = Vec::new();
            let _ = decompress(codec, &noise, 1 << 20, &mut output);
            prop_assert!(output.len() <= (1 << 20) + 1);
        }
    }

    #[test]
    fn nothing_is_an_error_for_every_codec() {
        for codec in &Compression::ALL[1..] {
            assert!(decompress(*codec, &[], LIMIT, &mut Vec::new()).is_err(), "{codec}");
        }
    }

    #[test]
    fn names_and_numbers() {
        for (bits, codec) in Compression::ALL.into_iter().enumerate() {
            assert_eq!(Compression::from_bits(bits as u8), Some(codec));
            assert_eq!(codec.name().parse(), Ok(codec));
        }
        assert_eq!(Compression::from_bits(5), None);
        assert!("producer".parse::<Compression>().is_err());
    }
}
