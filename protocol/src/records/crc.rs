//! CRC-32C (Castagnoli), the checksum of a record batch v2.
//!
//! It detects damage only; it says nothing of who wrote the bytes.

/// CRC-32C of `bytes`.
///
/// `crc32_iscsi` is the crate's entry for this one polynomial: no table built per call, no allocation, CPU features read from
/// an atomic that the first call fills. Its `Digest` and its generic `checksum` go through a boxed or matched algorithm instead.
#[inline]
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

#[cfg(test)]
mod tests {
    use super::crc32c;
    use proptest::prelude::*;

    #[test]
    fn vectors() {
        // The catalogue's check value and RFC 3720 (iSCSI) B.4.
        let ascending: Vec<u8> = (0..32).collect();
        let descending: Vec<u8> = (0..32).rev().collect();
        let read_command = [
            0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x14, 0, 0, 0, 0, 0, 0x04, 0, 0, 0, 0,
            0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0, 0, 0, 0, 0,
        ];
        for (bytes, expected) in [
            (&b""[..], 0),
            (b"123456789", 0xe306_9283),
            (&[0; 32], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&ascending, 0x46dd_794e),
            (&descending, 0x113f_db5c),
            (&read_command, 0xd996_3a56),
        ] {
            assert_eq!(crc32c(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn agrees_with_the_oracle_around_every_block_size() {
        // Vector code switches path by length: every length to 1,100, then around powers of two, at odd alignments.
        let bytes: Vec<u8> =
            (0..(1u32 << 20) + 64).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let around_powers = (11..=20).flat_map(|power| [(1 << power) - 1, 1 << power, (1 << power) + 17]);
        for length in (0..1_100).chain(around_powers) {
            for start in [0, 1, 7] {
                let part = &bytes[start..start + length];
                assert_eq!(crc32c(part), crc32c::crc32c(part), "{length} bytes from {start}");
            }
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_oracle(bytes in proptest::collection::vec(any::<u8>(), 0..5_000)) {
            prop_assert_eq!(crc32c(&bytes), crc32c::crc32c(&bytes));
        }
    }
}
