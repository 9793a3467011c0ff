//! The log of one partition, as small as a model needs it.

use std::fmt;

/// An item written by rule (ii) only: a no-op that takes a place in the Raft log but no Kafka offset.
pub const NO_OP: u8 = 8;

/// Up to seven items of four bits, the length in the top four bits.
///
/// An item is the epoch (term) of the leader that wrote it. Within one term a leader writes each
/// place once, so (place, epoch) names an item; the model checks that too (`Fault::Rewritten`).
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Log(u32);

impl Log {
    pub const CAPACITY: u8 = 7;
    pub const EMPTY: Log = Log(0);

    pub fn bits(self) -> u32 {
        self.0
    }

    pub fn len(self) -> u8 {
        (self.0 >> 28) as u8
    }

    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    pub fn item(self, place: u8) -> u8 {
        debug_assert!(place < self.len());
        (self.0 >> (4 * place)) as u8 & 15
    }

    /// The epoch of the last item; 0 where there is none.
    pub fn last_epoch(self) -> u8 {
        if self.is_empty() { 0 } else { self.item(self.len() - 1) & !NO_OP }
    }

    pub fn push(&mut self, item: u8) {
        let length = self.len();
        assert!(length < Self::CAPACITY && item < 16);
        self.0 = (self.0 & 0x0fff_ffff) | (u32::from(item) << (4 * length)) | (u32::from(length + 1) << 28);
    }

    pub fn set(&mut self, place: u8, item: u8) {
        debug_assert!(place < self.len());
        self.0 = (self.0 & !(15 << (4 * place))) | (u32::from(item) << (4 * place));
    }

    pub fn truncate(&mut self, length: u8) {
        if length < self.len() {
            self.0 = (self.0 & ((1u32 << (4 * length)) - 1)) | (u32::from(length) << 28);
        }
    }

    pub fn items(self) -> impl Iterator<Item = u8> {
        (0..self.len()).map(move |place| self.item(place))
    }

    /// Length of the longest common prefix.
    pub fn common(self, other: Log) -> u8 {
        let shorter = self.len().min(other.len());
        (0..shorter).find(|&place| self.item(place) != other.item(place)).unwrap_or(shorter)
    }

    /// True where one log is a prefix of the other, looking at the first `length` places only.
    pub fn agrees(self, other: Log, length: u8) -> bool {
        self.common(other) >= length.min(self.len()).min(other.len())
    }

    /// Raft's log matching: where both hold the same item, everything before is the same too.
    pub fn matches(self, other: Log) -> bool {
        let shorter = self.len().min(other.len());
        (self.common(other)..shorter).all(|place| self.item(place) != other.item(place))
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(out, "[")?;
        for (place, item) in self.items().enumerate() {
            let space = if place == 0 { "" } else { " " };
            if item & NO_OP != 0 {
                write!(out, "{space}n{}", item & !NO_OP)?;
            } else {
                write!(out, "{space}{item}")?;
            }
        }
        write!(out, "]")
    }
}
