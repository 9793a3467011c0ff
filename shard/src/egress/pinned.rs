//! How much of the tails unsent replies keep allocated: the count of one core and each reply's part of it.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use crate::storage::TailPiece;

/// The count of one core.
///
/// Invariant: the sum of all [`Held`] parts.
#[derive(Debug)]
pub(super) struct Pinned {
    bytes: Cell<u64>,
    bytes_max: u64,
}

/// One reply's part. Dropping it gives it back.
#[derive(Debug)]
pub(super) struct Held {
    pinned: Rc<Pinned>,
    bytes: u64,
}

impl Pinned {
    pub(super) fn new(bytes_max: u64) -> Pinned {
        Pinned { bytes: Cell::new(0), bytes_max }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    pub(super) fn hold(self: &Rc<Self>, bytes: u64) -> Held {
        let mut held = Held { pinned: Rc::clone(self), bytes: 0 };
        held.set(bytes);
        held
    }
}

impl Held {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn set(&mut self, bytes: u64) {
        let count = &self.pinned.bytes;
        count.set(count.get() - self.bytes + bytes);
        self.bytes = bytes;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Adds up what pieces keep allocated: a chunk of the tail arena counts whole, and once.
#[derive(Debug, Default)]
pub(super) struct Tally {
    bytes: u64,
    last_chunk: Option<u64>,
    chunks: BTreeSet<u64>,
}

impl Tally {
    pub(super) fn add(&mut self, piece: &TailPiece) {
        let (bytes, chunk) = piece.allocation();
        // Batches of one partition fill one chunk after the other: mostly the last one is asked for again.
        if chunk.is_none() || chunk != self.last_chunk && chunk.is_some_and(|chunk| self.chunks.insert(chunk))
        {
            self.bytes += bytes;
        }
        self.last_chunk = chunk.or(self.last_chunk);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}
