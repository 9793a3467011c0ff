//! Payload bytes: incompressible, compressible to a given ratio, or cut from a file.
//!
//! Pure once the file is read. The pool is made once from the seed; a record's payload is a slice of it, so
//! making a record costs one copy and the generator does not measure its own random numbers.

use std::fmt;
use std::str::FromStr;

use crate::random::{SeededRandom, mix};

/// The pool is at least this large, so that slices inside one batch seldom overlap and stay incompressible.
const POOL_BYTES_MIN: usize = 4 << 20;
/// A payload file is read up to this size.
pub const PAYLOAD_FILE_BYTES_MAX: u64 = 64 << 20;
/// Ratio pools are built from runs of this many bytes: random first, then zeros.
const RATIO_RUN_BYTES: usize = 256;

/// What payloads are made of.
#[derive(Clone, Debug, PartialEq)]
pub enum PayloadKind {
    /// Incompressible.
    Random,
    /// About this share of the bytes is random and the rest compresses away; 0.0..=1.0.
    Ratio(f64),
    /// Slices of this file.
    File(String),
}

impl FromStr for PayloadKind {
    type Err = String;

    fn from_str(text: &str) -> Result<PayloadKind, String> {
        if text == "random" {
            return Ok(PayloadKind::Random);
        }
        if let Some(path) = text.strip_prefix("file:").filter(|path| !path.is_empty()) {
            return Ok(PayloadKind::File(path.to_owned()));
        }
        if let Some(ratio) = text.strip_prefix("ratio:").and_then(|ratio| ratio.parse::<f64>().ok())
            && (0.0..=1.0).contains(&ratio)
        {
            return Ok(PayloadKind::Ratio(ratio));
        }
        Err(format!("'{text}' is not a payload; use random, ratio:0.5 (0 to 1) or file:PATH"))
    }
}

impl fmt::Display for PayloadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PayloadKind::Random => f.write_str("random"),
            PayloadKind::Ratio(ratio) => write!(f, "ratio:{ratio}"),
            PayloadKind::File(path) => write!(f, "file:{path}"),
        }
    }
}

/// A block of bytes that payloads are cut from.
#[derive(Clone, Debug)]
pub struct PayloadPool {
    bytes: Vec<u8>,
    seed: u64,
}

impl PayloadPool {
    /// Builds the pool for payloads of up to `payload_bytes_max`. `file` is the content for
    /// [`PayloadKind::File`] and unused otherwise.
    pub fn new(kind: &PayloadKind, seed: u64, payload_bytes_max: usize, file: &[u8]) -> PayloadPool {
        let length = POOL_BYTES_MIN.max(payload_bytes_max.saturating_mul(4));
        let mut random = SeededRandom::new(seed);
        let bytes = match kind {
            PayloadKind::Random => random_share(&mut random, length, RATIO_RUN_BYTES),
            PayloadKind::Ratio(ratio) => {
                random_share(&mut random, length, (RATIO_RUN_BYTES as f64 * ratio).round() as usize)
            }
            PayloadKind::File(_) if file.is_empty() => vec![0; payload_bytes_max + 1],
            PayloadKind::File(_) => {
                let mut bytes = file.to_vec();
                while bytes.len() <= payload_bytes_max {
                    bytes.extend_from_within(..file.len().min(bytes.len()));
                }
                bytes
            }
        };
        PayloadPool { bytes, seed }
    }

    /// The payload of record number `index`: the same for the same seed.
    pub fn payload(&self, index: u64, payload_bytes: usize) -> &[u8] {
        let room = self.bytes.len().saturating_sub(payload_bytes) as u64 + 1;
        let start = (mix(index ^ self.seed) % room) as usize;
        self.bytes.get(start..start + payload_bytes).unwrap_or_default()
    }
}

fn random_share(random: &mut SeededRandom, length: usize, random_bytes_a_run: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    for run in bytes.chunks_mut(RATIO_RUN_BYTES) {
        let filled = random_bytes_a_run.min(run.len());
        random.fill(&mut run[..filled]);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_parsed_and_nonsense_is_refused() {
        assert_eq!("random".parse(), Ok(PayloadKind::Random));
        assert_eq!("ratio:0.25".parse(), Ok(PayloadKind::Ratio(0.25)));
        assert_eq!("file:a/b".parse(), Ok(PayloadKind::File("a/b".to_owned())));
        for bad in ["ratio:2", "ratio:x", "file:", "zeros", ""] {
            assert!(bad.parse::<PayloadKind>().is_err(), "{bad}");
        }
    }

    #[test]
    fn payloads_have_the_length_and_follow_from_the_seed() {
        for length in [0, 1, 100, 70_000] {
            let first = PayloadPool::new(&PayloadKind::Random, 9, length, &[]);
            let again = PayloadPool::new(&PayloadKind::Random, 9, length, &[]);
            for index in 0..50 {
                assert_eq!(first.payload(index, length).len(), length);
                assert_eq!(first.payload(index, length), again.payload(index, length));
            }
        }
        let one = PayloadPool::new(&PayloadKind::Random, 1, 64, &[]);
        let two = PayloadPool::new(&PayloadKind::Random, 2, 64, &[]);
        assert_ne!(one.payload(0, 64), two.payload(0, 64));
    }

    #[test]
    fn ratio_is_the_share_of_bytes_that_do_not_compress() {
        for ratio in [0.0, 0.25, 0.5, 1.0] {
            let pool = PayloadPool::new(&PayloadKind::Ratio(ratio), 3, 1 << 16, &[]);
            let payload = pool.payload(1, 1 << 16);
            let nonzero = payload.iter().filter(|byte| **byte != 0).count() as f64 / payload.len() as f64;
            assert!((nonzero - ratio).abs() < 0.02, "ratio {ratio}: {nonzero}");
        }
    }

    #[test]
    fn a_short_file_is_repeated_and_an_empty_one_is_zeros() {
        let pool = PayloadPool::new(&PayloadKind::File("f".into()), 3, 10, b"abc");
        assert!(pool.payload(5, 10).windows(2).all(|pair| matches!(pair, b"ab" | b"bc" | b"ca")));
        let empty = PayloadPool::new(&PayloadKind::File("f".into()), 3, 10, b"");
        assert_eq!(empty.payload(5, 10), [0; 10]);
    }
}
