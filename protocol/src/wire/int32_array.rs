//! [`Int32Array`]: an array of integers that costs no allocation in either direction.
//!
//! A Metadata response of 10,000 partitions holds 30,000 of them (replicas, in-sync replicas, offline replicas), each of
//! one to three integers; a vector for each would dominate its cost.

use std::fmt;

/// Integers of four bytes: borrowed from a frame, borrowed from anywhere else, or owned.
#[derive(Clone)]
pub struct Int32Array<'a>(Inner<'a>);

#[derive(Clone)]
enum Inner<'a> {
    /// Big endian, as they lie in the frame.
    Wire(&'a [[u8; 4]]),
    Borrowed(&'a [i32]),
    Owned(Vec<i32>),
}

impl<'a> Int32Array<'a> {
    pub(super) fn from_wire(wire: &'a [[u8; 4]]) -> Self {
        Self(Inner::Wire(wire))
    }

    /// Appends the integers as they are on the wire.
    #[inline]
    pub(super) fn append_to(&self, out: &mut Vec<u8>) {
        let values = match &self.0 {
            Inner::Wire(wire) => return out.extend_from_slice(wire.as_flattened()),
            Inner::Borrowed(values) => values,
            Inner::Owned(values) => values.as_slice(),
        };
        out.reserve(values.len() * 4);
        for value in values {
            out.extend_from_slice(&value.to_be_bytes());
        }
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Inner::Wire(wire) => wire.len(),
            Inner::Borrowed(values) => values.len(),
            Inner::Owned(values) => values.len(),
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The integer at `index`.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<i32> {
        match &self.0 {
            Inner::Wire(wire) => wire.get(index).map(|bytes| i32::from_be_bytes(*bytes)),
            Inner::Borrowed(values) => values.get(index).copied(),
            Inner::Owned(values) => values.get(index).copied(),
        }
    }

    /// The integers in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = i32> + '_ {
        (0..self.len()).map(|index| self.get(index).expect("index is below the length"))
    }

    /// The integers in a vector.
    #[must_use]
    pub fn to_vec(&self) -> Vec<i32> {
        self.iter().collect()
    }
}

impl Default for Int32Array<'_> {
    fn default() -> Self {
        Self(Inner::Borrowed(&[]))
    }
}

impl From<Vec<i32>> for Int32Array<'_> {
    fn from(values: Vec<i32>) -> Self {
        Self(Inner::Owned(values))
    }
}

impl<'a> From<&'a [i32]> for Int32Array<'a> {
    fn from(values: &'a [i32]) -> Self {
        Self(Inner::Borrowed(values))
    }
}

impl FromIterator<i32> for Int32Array<'_> {
    fn from_iter<I: IntoIterator<Item = i32>>(values: I) -> Self {
        Self(Inner::Owned(values.into_iter().collect()))
    }
}

/// By values, wherever they lie.
impl PartialEq for Int32Array<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Int32Array<'_> {}

impl fmt::Debug for Int32Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
