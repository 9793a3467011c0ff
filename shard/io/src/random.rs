//! The random numbers of one executor: xoshiro256++ from one seed. Not for secrets; the seed of a real driver comes from the kernel.

/// A seeded generator (Blackman and Vigna, xoshiro256++ 1.0). Two generators of one seed agree for ever.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: [u64; 4],
}

impl Random {
    /// A generator whose whole stream follows from `seed`.
    pub(crate) fn from_seed(seed: u64) -> Self {
        // The authors' advice: fill the state with splitmix64, so that similar seeds give unrelated streams.
        let mut mixer = seed;
        let state = std::array::from_fn(|_| {
            mixer = mixer.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = mixer;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^ (word >> 31)
        });
        Self { state }
    }

    /// A generator seeded with 256 bits from the kernel.
    pub(crate) fn from_kernel() -> Self {
        let mut bytes = [0_u8; 32];
        // SAFETY: the pointer and length describe the local array. Requests of up to 256 bytes are answered whole.
        let filled = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        if usize::try_from(filled) != Ok(bytes.len()) {
            // getrandom(2) exists since Linux 3.17; a sandbox that refuses it leaves the clock and the process id.
            let seed = crate::clock::kernel_monotonic().0 ^ u64::from(std::process::id()).rotate_left(32);
            return Self::from_seed(seed);
        }
        let mut state = [0_u64; 4];
        for (word, chunk) in state.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut raw = [0_u8; 8];
            raw.copy_from_slice(chunk);
            *word = u64::from_le_bytes(raw);
        }
        if state == [0; 4] { Self::from_seed(0) } else { Self { state } }
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let c2 = c ^ a;
        let d2 = d ^ b;
        self.state = [a ^ d2, b ^ c2, c2 ^ (b << 17), d2.rotate_left(45)];
        result
    }

    /// A hasher seeded from this generator.
    pub(crate) fn hasher(&mut self) -> ahash::RandomState {
        ahash::RandomState::with_seeds(self.next_u64(), self.next_u64(), self.next_u64(), self.next_u64())
    }

    /// A number in `0..bound` (0 for a bound of 0), by the multiply-shift method; its bias of 2^-64 per unit does not matter here.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        (wide >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_stream() {
        let mut first = Random::from_seed(7);
        let mut second = Random::from_seed(7);
        let mut other = Random::from_seed(8);
        let stream: Vec<u64> = (0..8).map(|_| first.next_u64()).collect();
        assert_eq!(stream, (0..8).map(|_| second.next_u64()).collect::<Vec<_>>());
        assert_ne!(stream, (0..8).map(|_| other.next_u64()).collect::<Vec<_>>());
    }

    #[test]
    fn bounded_numbers_stay_below_and_reach_all() {
        let mut random = Random::from_seed(1);
        let mut seen = [false; 10];
        for _ in 0..1_000 {
            let value = random.below(10);
            seen[usize::try_from(value).expect("below ten")] = true;
        }
        assert_eq!(seen, [true; 10]);
        assert_eq!(random.below(0), 0);
    }
}
