//! The newest offset of each key, in memory of a fixed size. Pure.
//!
//! Keys are known by their SipHash-2-4 of 128 bits under a secret of this process (as Kafka knows them by MD5): a record whose
//! key looks like a newer one's is dropped, so two keys must not look alike, by chance or by a client's design. At 10^9 keys the
//! chance of one such pair is below 10^-20.

use std::fmt;

use ringlog_protocol::ids::Offset;
use siphasher::sip128::SipHasher24;

/// What one key takes, in bytes.
pub const KEY_BYTES: usize = size_of::<Slot>();

/// Of how many hundred slots so many are used at most (Kafka's `log.cleaner.io.buffer.load.factor`): beyond, searches grow long.
const LOAD_PERCENT_MAX: usize = 90;

/// Slots of the smallest map.
const SLOTS_MIN: usize = 16;

/// Marks a slot that is free: offsets are 0 or more.
const FREE: i64 = -1;

#[derive(Clone, Copy)]
struct Slot {
    hash: [u64; 2],
    offset: i64,
}

/// From key to the newest offset that was put with it.
///
/// Invariant: `len <= len_max < slots.len()`, so that every search ends at a free slot.
pub struct KeyMap {
    slots: Vec<Slot>,
    len: usize,
    len_max: usize,
    hasher: SipHasher24,
}

impl fmt::Debug for KeyMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyMap({} of {} keys)", self.len, self.len_max)
    }
}

impl KeyMap {
    /// An empty map that takes `bytes` of memory, or a few hundred bytes if that is more. `secret` is random.
    #[must_use]
    pub fn with_bytes(bytes: usize, secret: (u64, u64)) -> KeyMap {
        let slots = (bytes / KEY_BYTES).max(SLOTS_MIN);
        KeyMap {
            slots: vec![Slot { hash: [0; 2], offset: FREE }; slots],
            len: 0,
            len_max: slots * LOAD_PERCENT_MAX / 100,
            hasher: SipHasher24::new_with_keys(secret.0, secret.1),
        }
    }

    /// Bytes of a map that takes `keys`.
    #[must_use]
    pub fn bytes_for(keys: usize) -> usize {
        keys.saturating_mul(KEY_BYTES * 100) / LOAD_PERCENT_MAX + SLOTS_MIN * KEY_BYTES
    }

    /// Keys in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no key is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Remembers that the key is at this offset, unless it is known at a later one. False: the key is new and there is no room.
    pub fn put(&mut self, key: &[u8], offset: Offset) -> bool {
        let hash = self.hash(key);
        let at = self.find(hash);
        let is_full = self.len >= self.len_max;
        let Some(slot) = self.slots.get_mut(at) else { return false };
        if slot.offset == FREE {
            if is_full {
                return false;
            }
            self.len += 1;
        }
        *slot = Slot { hash, offset: slot.offset.max(offset.0) };
        true
    }

    /// The newest offset of the key, if it was put.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Offset> {
        let slot = self.slots.get(self.find(self.hash(key)))?;
        (slot.offset != FREE).then_some(Offset(slot.offset))
    }

    /// The slot of this hash, or the free one where it belongs.
    fn find(&self, hash: [u64; 2]) -> usize {
        let count = self.slots.len();
        // Multiplied instead of divided: any number of slots, evenly filled.
        let mut at = ((u128::from(hash[0]) * count as u128) >> 64) as usize;
        while let Some(slot) = self.slots.get(at) {
            if slot.offset == FREE || slot.hash == hash {
                break;
            }
            at = if at + 1 == count { 0 } else { at + 1 };
        }
        at
    }

    fn hash(&self, key: &[u8]) -> [u64; 2] {
        let hash = self.hasher.hash(key);
        [hash.h1, hash.h2]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_knows_the_newest_offset_of_each_key_that_fits(
            puts in proptest::collection::vec((0_u16..300, 0_i64..1000), 0..600), bytes in 0_usize..6000, secret: (u64, u64)
        ) {
            let mut map = KeyMap::with_bytes(bytes, secret);
            let mut model: BTreeMap<u16, i64> = BTreeMap::new();
            for (key, offset) in puts {
                let is_room = model.contains_key(&key) || model.len() < map.len_max;
                prop_assert_eq!(map.put(&key.to_be_bytes(), Offset(offset)), is_room);
                if is_room {
                    let newest = model.entry(key).or_insert(offset);
                    *newest = (*newest).max(offset);
                }
            }
            prop_assert_eq!(map.len(), model.len());
            prop_assert!(map.slots.len() * KEY_BYTES <= bytes.max(SLOTS_MIN * KEY_BYTES));
            for key in 0_u16..300 {
                let wanted = model.get(&key).copied().map(Offset);
                prop_assert_eq!(map.get(&key.to_be_bytes()), wanted);
            }
        }
    }

    #[test]
    fn a_map_for_so_many_keys_takes_them() {
        for keys in [0, 1, 15, 1000, 12_345] {
            let mut map = KeyMap::with_bytes(KeyMap::bytes_for(keys), (1, 2));
            assert!((0..keys).all(|key| map.put(&key.to_be_bytes(), Offset(7))), "{keys} keys");
        }
    }
}
