//! Which partition a keyed record belongs to: murmur2 as the Java client computes it.
//!
//! Pure. Every client that shares a topic must agree on it, or records of one key lose their order.

const SEED: u32 = 0x9747_b28c;
const MULTIPLIER: u32 = 0x5bd1_e995;
const ROTATE: u32 = 24;

/// `Utils.murmur2` of kafka-clients: 32-bit MurmurHash2 with Kafka's seed.
pub fn murmur2(data: &[u8]) -> u32 {
    // Java multiplies ints: lengths above 2^32 cannot occur in a key.
    let mut hash = SEED ^ (data.len() as u32);
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = word.try_into().map(u32::from_le_bytes).expect("chunks of exactly four bytes");
        k = k.wrapping_mul(MULTIPLIER);
        k ^= k >> ROTATE;
        k = k.wrapping_mul(MULTIPLIER);
        hash = hash.wrapping_mul(MULTIPLIER) ^ k;
    }
    let tail = words.remainder();
    if !tail.is_empty() {
        for (index, byte) in tail.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * index);
        }
        hash = hash.wrapping_mul(MULTIPLIER);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(MULTIPLIER);
    hash ^ (hash >> 15)
}

/// The partition of `key` among `partition_count`, as `BuiltInPartitioner.partitionForKey` picks it.
/// `partition_count` must be above 0; otherwise the answer is 0.
pub fn partition_of_key(key: &[u8], partition_count: i32) -> i32 {
    let positive = (murmur2(key) & 0x7fff_ffff).cast_signed();
    positive.checked_rem(partition_count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_equal_the_vectors_of_the_java_client() {
        // UtilsTest.testMurmur2 of kafka-clients, and the empty key of librdkafka's rdmurmur2.c.
        let vectors: [(&[u8], i32); 7] = [
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"a-little-bit-long-string", -985_981_536),
            (b"a-little-bit-longer-string", -1_486_304_829),
            (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            (b"abc", 479_470_107),
            (b"", 275_646_681),
        ];
        for (key, expected) in &vectors {
            assert_eq!(murmur2(key).cast_signed(), *expected, "{}", String::from_utf8_lossy(key));
        }
    }

    #[test]
    fn partitions_are_in_range_for_any_key_and_count() {
        for count in [1, 2, 3, 100, i32::MAX] {
            for index in 0..200u32 {
                let partition = partition_of_key(&index.to_le_bytes(), count);
                assert!((0..count).contains(&partition));
            }
        }
        assert_eq!(partition_of_key(b"foobar", 10), (-790_332_482i32 & 0x7fff_ffff) % 10);
        assert_eq!(partition_of_key(b"x", 0), 0);
    }
}
