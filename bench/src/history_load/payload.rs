//! The bytes of a value: they follow from the value alone, so that a reader knows every byte it should find.

use crate::random::{SeededRandom, mix};

/// The value itself, big-endian.
pub const BYTES_MIN: usize = 8;
/// Of the largest record; above it a broker's own limits come in.
pub const BYTES_MAX: usize = 900 << 10;

/// How many bytes `value` has: mostly few, one in 8 up to 4 KiB, one in 64 up to `bytes_max`.
fn length(value: u64, bytes_max: usize) -> usize {
    let drawn = mix(value ^ 0x5eed);
    let bound = match drawn % 64 {
        0 => bytes_max,
        1..=8 => 4 << 10,
        _ => 200,
    };
    let span = (bound.clamp(BYTES_MIN, bytes_max.max(BYTES_MIN)) - BYTES_MIN + 1) as u64;
    BYTES_MIN + (mix(drawn) % span) as usize
}

/// The bytes of `value`.
pub fn encode(value: u64, bytes_max: usize) -> Vec<u8> {
    let mut bytes = vec![0; length(value, bytes_max)];
    let (head, filler) = bytes.split_at_mut(BYTES_MIN);
    head.copy_from_slice(&value.to_be_bytes());
    SeededRandom::new(value).fill(filler);
    bytes
}

/// The value whose bytes these are; `None` if a single one differs.
pub fn decode(bytes: &[u8], bytes_max: usize) -> Option<u64> {
    let value = u64::from_be_bytes(*bytes.first_chunk::<BYTES_MIN>()?);
    (encode(value, bytes_max) == bytes).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_counts() {
        let mut sizes = Vec::new();
        for value in 1..500 {
            let mut bytes = encode(value, 64 << 10);
            assert_eq!(decode(&bytes, 64 << 10), Some(value));
            sizes.push(bytes.len());
            let at = bytes.len() / 2;
            bytes[at] ^= 1;
            assert_eq!(decode(&bytes, 64 << 10), None);
            bytes[at] ^= 1;
            bytes.pop();
            assert_eq!(decode(&bytes, 64 << 10), None);
        }
        assert!(
            sizes.iter().any(|size| *size > 32 << 10)
                && sizes.iter().filter(|size| **size < 200).count() > 350
        );
    }
}
