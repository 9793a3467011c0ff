//! The primitives of Kafka's wire format: reading within bounds, writing into pieces.
//!
//! This file owns the errors and the values both sides share; [`Reader`] and [`Writer`] own the two directions. Nothing
//! here knows an API.

mod int32_array;
mod reader;
mod writer;

use bytes::Bytes;

pub use int32_array::Int32Array;
pub use reader::{Reader, TagScope, Tags};
pub use writer::{TagMark, Writer, write_unsigned_varint, write_varint, write_varlong};

/// The most bytes one tagged field may hold. Kafka has no such bound; the largest known tagged fields are lists of node
/// endpoints and features, a few KiB.
pub const TAG_BYTES_MAX: u32 = 128 * 1024;

/// The most tagged fields in one section. Kafka's own messages have at most five.
pub const TAG_COUNT_MAX: u32 = 64;

/// A message is refused once its decoded arrays would need more than this many bytes of memory for each byte received...
pub const MEMORY_PER_BYTE: usize = 4;

/// ...plus this many. Together they are the rule of the fuzz targets: memory <= 4 x input + 1 MiB.
pub const MEMORY_BASE_BYTES: usize = 1024 * 1024;

/// Why bytes are not the message they were read as. The peer's fault, always: close the connection.
///
/// `field` is `Struct.field` in Kafka's struct names and our field names; `offset` counts bytes from where the reader began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("{field} at byte {offset} needs {needed} bytes, {left} are left")]
    Truncated { field: &'static str, offset: usize, needed: u64, left: usize },
    #[error("{field} at byte {offset} has length {length}")]
    NegativeLength { field: &'static str, offset: usize, length: i64 },
    #[error("{field} at byte {offset} is null and must not be")]
    NullNotAllowed { field: &'static str, offset: usize },
    #[error("{field} at byte {offset} promises {count} elements, the bytes left hold at most {count_max}")]
    TooManyElements { field: &'static str, offset: usize, count: u64, count_max: usize },
    #[error(
        "{field} at byte {offset} would bring the message over its memory budget: {bytes} bytes, {left} are left"
    )]
    MemoryBudget { field: &'static str, offset: usize, bytes: u64, left: usize },
    #[error("{field} at byte {offset} is not valid UTF-8")]
    InvalidUtf8 { field: &'static str, offset: usize },
    #[error("{field} at byte {offset} is a varint that does not fit")]
    VarintTooLong { field: &'static str, offset: usize },
    #[error("{field} at byte {offset}: tag {tag} does not come after tag {previous}")]
    TagOrder { field: &'static str, offset: usize, tag: u32, previous: u32 },
    #[error("{field} at byte {offset}: tag {tag} has {size} bytes, at most {size_max} are taken")]
    TagTooLarge { field: &'static str, offset: usize, tag: u32, size: u32, size_max: u32 },
    #[error("{field} at byte {offset} has {count} tagged fields, at most {count_max} are taken")]
    TooManyTags { field: &'static str, offset: usize, count: u32, count_max: u32 },
    #[error("{field} at byte {offset} leaves {left} bytes of its tag unread")]
    TagNotConsumed { field: &'static str, offset: usize, left: usize },
    #[error("{message} has no version {version}")]
    UnsupportedVersion { message: &'static str, version: i16 },
    #[error("{left} bytes are left behind the message at byte {offset}")]
    TrailingBytes { offset: usize, left: usize },
}

/// Why a value cannot be written at the version asked for. Our fault, always: the caller built a message that the
/// version cannot carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    #[error("{message} has no version {version}")]
    UnsupportedVersion { message: &'static str, version: i16 },
    #[error("{field} is set, and version {version} cannot carry it")]
    NotInVersion { field: &'static str, version: i16 },
    #[error("{field} is null, and version {version} cannot carry that")]
    NullNotAllowed { field: &'static str, version: i16 },
    #[error("{field} has length {length}, at most {length_max} can be written")]
    TooLong { field: &'static str, length: usize, length_max: usize },
}

impl EncodeError {
    /// The value of an optional field that `version` requires.
    ///
    /// # Errors
    /// [`EncodeError::NullNotAllowed`].
    #[inline]
    pub fn require<T>(value: Option<T>, field: &'static str, version: i16) -> Result<T, EncodeError> {
        value.ok_or(EncodeError::NullNotAllowed { field, version })
    }
}

/// A run of bytes of an open file, to be sent without passing through user space where the route allows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRange {
    /// Index into the caller's own table of open files.
    pub source: u32,
    /// Where the run starts, in bytes from the start of the file.
    pub position: u64,
    /// How many bytes.
    pub length: u32,
}

/// A part of an encoded frame. Parts are sent in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Bytes in memory, shared and immutable.
    Bytes(Bytes),
    /// Bytes in a file.
    File(FileRange),
}

impl Piece {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::File(range) => range.length as usize,
        }
    }

    /// Whether nothing would be sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Record batches in a response: borrowed when decoded, whatever the log gives when encoded.
///
/// Two values with the same bytes in another shape are not equal; compare encoded forms where that matters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Records<'a> {
    /// Null on the wire. Kafka's brokers never send it in Fetch; they send zero bytes.
    #[default]
    None,
    /// Bytes that live in the frame they were decoded from, or anywhere else that outlives the message.
    Borrowed(&'a [u8]),
    /// Pieces in order, appended without a copy.
    Pieces(Vec<Piece>),
}

impl Records<'_> {
    /// Length in bytes; `None` for null.
    #[must_use]
    pub fn len(&self) -> Option<usize> {
        match self {
            Records::None => None,
            Records::Borrowed(bytes) => Some(bytes.len()),
            Records::Pieces(pieces) => Some(pieces.iter().map(Piece::len).sum()),
        }
    }

    /// Whether there is no byte: null counts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len().unwrap_or(0) == 0
    }
}

#[cfg(test)]
mod tests;
