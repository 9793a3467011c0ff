//! The fingerprint of a run: every event is mixed into one number. Two runs of one seed must agree.

/// FNV-1a over 64-bit words: stable across builds and machines, which a seeded hasher is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    hash: u64,
}

impl Trace {
    pub(crate) fn new() -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325 }
    }

    pub(crate) fn word(&mut self, word: u64) {
        self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        // FNV mixes upwards only; fold the top back, since words differ in their high bits too.
        self.hash ^= self.hash >> 29;
    }

    /// Mixes a length and the first bytes: enough to tell two payloads of a broken run apart, cheap for large ones.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        for chunk in bytes.get(..bytes.len().min(32)).unwrap_or(&[]).chunks(8) {
            let mut word = [0_u8; 8];
            if let Some(target) = word.get_mut(..chunk.len()) {
                target.copy_from_slice(chunk);
            }
            self.word(u64::from_le_bytes(word));
        }
    }

    pub(crate) fn value(self) -> u64 {
        self.hash
    }
}
