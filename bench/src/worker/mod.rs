//! The workers of a run: producers, readers, and the threads that carry them.

pub mod consumer;
pub mod producer;
pub mod threads;

use serde::Serialize;

/// Records and their bytes (keys and values) that completed within the measured time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Measured {
    /// How many.
    pub records: u64,
    /// Keys and values, bytes, before compression.
    pub bytes: u64,
}

impl Measured {
    /// Adds `other`.
    pub fn add(&mut self, other: Measured) {
        self.records += other.records;
        self.bytes += other.bytes;
    }
}
