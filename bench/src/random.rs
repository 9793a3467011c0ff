//! A small seeded generator (SplitMix64), so that a run with one seed offers the same bytes everywhere.
//!
//! Not for secrets. It never reads the machine's entropy; whoever wants a fresh seed passes one in.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug)]
pub struct SeededRandom {
    state: u64,
}

impl SeededRandom {
    /// A generator whose whole output follows from `seed`.
    pub fn new(seed: u64) -> SeededRandom {
        SeededRandom { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Fills `out` with random bytes.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            let length = chunk.len();
            chunk.copy_from_slice(&word[..length]);
        }
    }
}

/// The finaliser of SplitMix64: spreads any 64-bit number, so that neighbours land far apart.
pub fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_outputs_equal_the_published_vectors() {
        let mut random = SeededRandom::new(1_234_567);
        let outputs: Vec<u64> = (0..3).map(|_| random.next_u64()).collect();
        assert_eq!(
            outputs,
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn odd_lengths_are_filled_to_the_last_byte() {
        let mut bytes = [0u8; 4_099];
        SeededRandom::new(7).fill(&mut bytes);
        let zeros = bytes.iter().filter(|byte| **byte == 0).count();
        assert!(zeros < 60, "{zeros} zero bytes of 4099");
    }
}
