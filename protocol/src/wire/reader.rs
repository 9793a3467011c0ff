//! [`Reader`]: Kafka's primitives out of a byte slice, every read checked against the bytes left.
//!
//! It borrows from the slice and copies nothing. It never panics, whatever the bytes.

use super::{DecodeError, Int32Array, MEMORY_BASE_BYTES, MEMORY_PER_BYTE, TAG_BYTES_MAX, TAG_COUNT_MAX};
use crate::ids::TopicId;

/// A cursor over received bytes.
///
/// Besides its position it carries a memory budget: arrays charge it with what their elements occupy once decoded, so a
/// frame of minimal elements cannot be blown up into many times its size (KAFKA-14063 is that class).
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    rest: &'a [u8],
    /// Offset of the end of `rest` from where reading began; `end - rest.len()` is the current offset.
    end: usize,
    memory_left: usize,
}

/// What [`Reader::enter_tag`] hides until [`Reader::leave_tag`].
#[derive(Debug)]
#[must_use = "the bytes behind the tag are lost unless given back"]
pub struct TagScope<'a> {
    after: &'a [u8],
    end: usize,
}

/// Progress through one section of tagged fields.
#[derive(Debug, Clone, Copy)]
pub struct Tags {
    left: u32,
    previous: Option<u32>,
}

macro_rules! fixed {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $bytes:literal;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// [`DecodeError::Truncated`].
            #[inline]
            pub fn $name(&mut self, field: &'static str) -> Result<$type, DecodeError> {
                match self.rest.split_first_chunk::<$bytes>() {
                    Some((head, rest)) => {
                        self.rest = rest;
                        Ok(<$type>::from_be_bytes(*head))
                    }
                    None => Err(self.truncated(field, $bytes)),
                }
            }
        )*
    };
}

impl<'a> Reader<'a> {
    /// Reads `bytes` with the usual memory budget ([`MEMORY_PER_BYTE`], [`MEMORY_BASE_BYTES`]).
    #[must_use]
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        let memory = bytes.len().saturating_mul(MEMORY_PER_BYTE).saturating_add(MEMORY_BASE_BYTES);
        Self::with_memory_budget(bytes, memory)
    }

    /// Reads `bytes`, letting decoded arrays occupy at most `memory_bytes_max` bytes in all.
    #[must_use]
    #[inline]
    pub fn with_memory_budget(bytes: &'a [u8], memory_bytes_max: usize) -> Self {
        Self { rest: bytes, end: bytes.len(), memory_left: memory_bytes_max }
    }

    /// Bytes not yet read.
    #[must_use]
    #[inline]
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// Bytes read so far.
    #[must_use]
    #[inline]
    pub fn offset(&self) -> usize {
        self.end - self.rest.len()
    }

    /// The bytes not yet read.
    #[must_use]
    #[inline]
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Checks that nothing is left. Kafka ignores bytes behind a request's body, so servers should not call this; where
    /// the encoder is ours, they are a bug.
    ///
    /// # Errors
    /// [`DecodeError::TrailingBytes`].
    pub fn finish(&self) -> Result<(), DecodeError> {
        match self.left() {
            0 => Ok(()),
            left => Err(DecodeError::TrailingBytes { offset: self.offset(), left }),
        }
    }

    #[cold]
    #[inline(never)]
    fn truncated(&self, field: &'static str, needed: u64) -> DecodeError {
        DecodeError::Truncated { field, offset: self.offset(), needed, left: self.left() }
    }

    #[cold]
    #[inline(never)]
    fn negative(&self, field: &'static str, length: i64) -> DecodeError {
        DecodeError::NegativeLength { field, offset: self.offset(), length }
    }

    #[cold]
    #[inline(never)]
    fn null(&self, field: &'static str) -> DecodeError {
        DecodeError::NullNotAllowed { field, offset: self.offset() }
    }

    fixed! {
        /// One byte, signed.
        i8: i8 = 1;
        /// One byte.
        u8: u8 = 1;
        /// Two bytes, big endian.
        i16: i16 = 2;
        /// Two bytes, big endian.
        u16: u16 = 2;
        /// Four bytes, big endian.
        i32: i32 = 4;
        /// Four bytes, big endian.
        u32: u32 = 4;
        /// Eight bytes, big endian.
        i64: i64 = 8;
        /// Eight bytes, IEEE 754.
        f64: f64 = 8;
    }

    /// One byte; anything but zero is true, as in Kafka.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    #[inline]
    pub fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        Ok(self.u8(field)? != 0)
    }

    /// The byte in front of a struct that may be null and is no tagged field: a negative one says that it is null, and then
    /// nothing follows. Kafka writes 1 and -1.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    #[inline]
    pub fn is_present(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        Ok(self.i8(field)? >= 0)
    }

    /// The varint in front of a struct that may be null and is a tagged field: 0 says that it is null, and then nothing
    /// follows. Kafka writes 1 and 0, and reads what does not fit 31 bits as null.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`], [`DecodeError::VarintTooLong`].
    #[inline]
    pub fn is_present_in_tag(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        Ok(self.unsigned_varint(field)?.cast_signed() > 0)
    }

    /// Sixteen bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    #[inline]
    pub fn uuid(&mut self, field: &'static str) -> Result<TopicId, DecodeError> {
        match self.rest.split_first_chunk::<16>() {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(TopicId(*head))
            }
            None => Err(self.truncated(field, 16)),
        }
    }

    /// Unsigned LEB128 of at most 32 bits.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`]; [`DecodeError::VarintTooLong`] over five bytes or 2^32-1 (Kafka drops the excess bits).
    #[inline]
    pub fn unsigned_varint(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        // Lengths and tag counts: almost always one byte.
        match self.rest.split_first() {
            Some((&first, rest)) if first < 0x80 => {
                self.rest = rest;
                Ok(u32::from(first))
            }
            _ => {
                let offset = self.offset();
                let value = self.long_varint(field, 5)?;
                u32::try_from(value).map_err(|_| DecodeError::VarintTooLong { field, offset })
            }
        }
    }

    /// Unsigned LEB128 of at most 64 bits.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`]; [`DecodeError::VarintTooLong`] over ten bytes or 2^64-1.
    #[inline]
    pub fn unsigned_varlong(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        match self.rest.split_first() {
            Some((&first, rest)) if first < 0x80 => {
                self.rest = rest;
                Ok(u64::from(first))
            }
            _ => self.long_varint(field, 10),
        }
    }

    #[inline(never)]
    fn long_varint(&mut self, field: &'static str, bytes_max: usize) -> Result<u64, DecodeError> {
        let mut value = 0u64;
        for (index, &byte) in self.rest.iter().take(bytes_max).enumerate() {
            let bits = u64::from(byte & 0x7f);
            // Only the tenth byte can reach past bit 63; there one bit is left.
            if index == 9 && bits > 1 {
                break;
            }
            value |= bits << (7 * index);
            if byte < 0x80 {
                self.rest = self.rest.get(index + 1..).unwrap_or_default();
                return Ok(value);
            }
        }
        if self.rest.len() < bytes_max && self.rest.iter().all(|byte| *byte >= 0x80) {
            return Err(self.truncated(field, self.rest.len() as u64 + 1));
        }
        Err(DecodeError::VarintTooLong { field, offset: self.offset() })
    }

    /// Zigzag varint of 32 bits.
    ///
    /// # Errors
    /// As [`Reader::unsigned_varint`].
    #[inline]
    pub fn varint(&mut self, field: &'static str) -> Result<i32, DecodeError> {
        let raw = self.unsigned_varint(field)?;
        Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    /// Zigzag varint of 64 bits.
    ///
    /// # Errors
    /// As [`Reader::unsigned_varlong`].
    #[inline]
    pub fn varlong(&mut self, field: &'static str) -> Result<i64, DecodeError> {
        let raw = self.unsigned_varlong(field)?;
        Ok((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
    }

    /// The next `length` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    #[inline]
    pub fn take(&mut self, field: &'static str, length: usize) -> Result<&'a [u8], DecodeError> {
        match self.rest.split_at_checked(length) {
            Some((head, rest)) => {
                self.rest = rest;
                Ok(head)
            }
            None => Err(self.truncated(field, length as u64)),
        }
    }

    #[inline]
    fn utf8(&mut self, field: &'static str, length: usize) -> Result<&'a str, DecodeError> {
        let offset = self.offset();
        let bytes = self.take(field, length)?;
        std::str::from_utf8(bytes).map_err(|_| DecodeError::InvalidUtf8 { field, offset })
    }

    /// A two-byte length and that many bytes of UTF-8; -1 is null. Kafka takes every negative length as null; only -1 is
    /// taken here, because no encoder writes another.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`], [`DecodeError::NegativeLength`], [`DecodeError::InvalidUtf8`].
    #[inline]
    pub fn nullable_string(&mut self, field: &'static str) -> Result<Option<&'a str>, DecodeError> {
        match self.i16(field)? {
            -1 => Ok(None),
            length => match usize::try_from(length) {
                Ok(length) => self.utf8(field, length).map(Some),
                Err(_) => Err(self.negative(field, length.into())),
            },
        }
    }

    /// As [`Reader::nullable_string`], null refused.
    ///
    /// # Errors
    /// Its errors and [`DecodeError::NullNotAllowed`].
    #[inline]
    pub fn string(&mut self, field: &'static str) -> Result<&'a str, DecodeError> {
        match self.nullable_string(field)? {
            Some(text) => Ok(text),
            None => Err(self.null(field)),
        }
    }

    /// A varint of length + 1 and that many bytes of UTF-8; 0 is null.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`], [`DecodeError::VarintTooLong`], [`DecodeError::InvalidUtf8`].
    #[inline]
    pub fn compact_nullable_string(&mut self, field: &'static str) -> Result<Option<&'a str>, DecodeError> {
        match self.unsigned_varint(field)?.checked_sub(1) {
            None => Ok(None),
            Some(length) => self.utf8(field, length as usize).map(Some),
        }
    }

    /// As [`Reader::compact_nullable_string`], null refused.
    ///
    /// # Errors
    /// Its errors and [`DecodeError::NullNotAllowed`].
    #[inline]
    pub fn compact_string(&mut self, field: &'static str) -> Result<&'a str, DecodeError> {
        match self.compact_nullable_string(field)? {
            Some(text) => Ok(text),
            None => Err(self.null(field)),
        }
    }

    /// A four-byte length and that many bytes; -1 is null.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`], [`DecodeError::NegativeLength`].
    #[inline]
    pub fn nullable_bytes(&mut self, field: &'static str) -> Result<Option<&'a [u8]>, DecodeError> {
        match self.i32(field)? {
            -1 => Ok(None),
            length => match usize::try_from(length) {
                Ok(length) => self.take(field, length).map(Some),
                Err(_) => Err(self.negative(field, length.into())),
            },
        }
    }

    /// As [`Reader::nullable_bytes`], null refused.
    ///
    /// # Errors
    /// Its errors and [`DecodeError::NullNotAllowed`].
    #[inline]
    pub fn bytes(&mut self, field: &'static str) -> Result<&'a [u8], DecodeError> {
        match self.nullable_bytes(field)? {
            Some(bytes) => Ok(bytes),
            None => Err(self.null(field)),
        }
    }

    /// A varint of length + 1 and that many bytes; 0 is null.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`], [`DecodeError::VarintTooLong`].
    #[inline]
    pub fn compact_nullable_bytes(&mut self, field: &'static str) -> Result<Option<&'a [u8]>, DecodeError> {
        match self.unsigned_varint(field)?.checked_sub(1) {
            None => Ok(None),
            Some(length) => self.take(field, length as usize).map(Some),
        }
    }

    /// As [`Reader::compact_nullable_bytes`], null refused.
    ///
    /// # Errors
    /// Its errors and [`DecodeError::NullNotAllowed`].
    #[inline]
    pub fn compact_bytes(&mut self, field: &'static str) -> Result<&'a [u8], DecodeError> {
        match self.compact_nullable_bytes(field)? {
            Some(bytes) => Ok(bytes),
            None => Err(self.null(field)),
        }
    }

    /// A four-byte element count; -1 is null.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`], [`DecodeError::NegativeLength`].
    #[inline]
    pub fn nullable_array_count(&mut self, field: &'static str) -> Result<Option<u32>, DecodeError> {
        match self.i32(field)? {
            -1 => Ok(None),
            count => match u32::try_from(count) {
                Ok(count) => Ok(Some(count)),
                Err(_) => Err(self.negative(field, count.into())),
            },
        }
    }

    /// As [`Reader::nullable_array_count`], null refused.
    ///
    /// # Errors
    /// Its errors and [`DecodeError::NullNotAllowed`].
    #[inline]
    pub fn array_count(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        match self.nullable_array_count(field)? {
            Some(count) => Ok(count),
            None => Err(self.null(field)),
        }
    }

    /// A varint of element count + 1; 0 is null.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`], [`DecodeError::VarintTooLong`].
    #[inline]
    pub fn compact_nullable_array_count(&mut self, field: &'static str) -> Result<Option<u32>, DecodeError> {
        Ok(self.unsigned_varint(field)?.checked_sub(1))
    }

    /// As [`Reader::compact_nullable_array_count`], null refused.
    ///
    /// # Errors
    /// Its errors and [`DecodeError::NullNotAllowed`].
    #[inline]
    pub fn compact_array_count(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        match self.compact_nullable_array_count(field)? {
            Some(count) => Ok(count),
            None => Err(self.null(field)),
        }
    }

    /// An empty vector with room for `count` elements that each take at least `element_bytes_min` bytes on the wire.
    ///
    /// The room is exact, so decoding never reallocates; it is bounded by the bytes left and by the memory budget, so a
    /// count is never believed without the bytes to back it.
    ///
    /// # Errors
    /// [`DecodeError::TooManyElements`], [`DecodeError::MemoryBudget`].
    #[inline]
    pub fn vector<T>(
        &mut self,
        field: &'static str,
        count: u32,
        element_bytes_min: usize,
    ) -> Result<Vec<T>, DecodeError> {
        let count_max = self.rest.len() / element_bytes_min.max(1);
        let count = count as usize;
        if count > count_max {
            return Err(DecodeError::TooManyElements {
                field,
                offset: self.offset(),
                count: count as u64,
                count_max,
            });
        }
        let bytes = count.saturating_mul(size_of::<T>());
        match self.memory_left.checked_sub(bytes) {
            Some(left) => self.memory_left = left,
            None => {
                let (offset, left) = (self.offset(), self.memory_left);
                return Err(DecodeError::MemoryBudget { field, offset, bytes: bytes as u64, left });
            }
        }
        Ok(Vec::with_capacity(count))
    }

    /// `count` integers of four bytes, borrowed as they are.
    ///
    /// # Errors
    /// [`DecodeError::TooManyElements`].
    #[inline]
    pub fn int32s(&mut self, field: &'static str, count: u32) -> Result<Int32Array<'a>, DecodeError> {
        let (integers, _) = self.rest.as_chunks::<4>();
        match integers.split_at_checked(count as usize) {
            Some((head, _)) => {
                self.rest = &self.rest[head.len() * 4..];
                Ok(Int32Array::from_wire(head))
            }
            None => {
                let (offset, count_max) = (self.offset(), integers.len());
                Err(DecodeError::TooManyElements { field, offset, count: count.into(), count_max })
            }
        }
    }

    /// Starts a section of tagged fields.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`], [`DecodeError::VarintTooLong`], [`DecodeError::TooManyTags`].
    #[inline]
    pub fn tags(&mut self, field: &'static str) -> Result<Tags, DecodeError> {
        let offset = self.offset();
        let count = self.unsigned_varint(field)?;
        if count > TAG_COUNT_MAX {
            return Err(DecodeError::TooManyTags { field, offset, count, count_max: TAG_COUNT_MAX });
        }
        Ok(Tags { left: count, previous: None })
    }

    /// The next tag of the section and the size of its field, whose bytes are then next; `None` at the section's end.
    /// Every field must be entered ([`Reader::enter_tag`]) or skipped ([`Reader::take`]).
    ///
    /// # Errors
    /// [`DecodeError::TagOrder`] for a tag that is repeated or out of order, [`DecodeError::TagTooLarge`] over
    /// [`TAG_BYTES_MAX`], [`DecodeError::Truncated`], [`DecodeError::VarintTooLong`].
    #[inline]
    pub fn next_tag(
        &mut self,
        field: &'static str,
        tags: &mut Tags,
    ) -> Result<Option<(u32, usize)>, DecodeError> {
        if tags.left == 0 {
            return Ok(None);
        }
        self.next_tag_present(field, tags).map(Some)
    }

    #[inline(never)]
    fn next_tag_present(
        &mut self,
        field: &'static str,
        tags: &mut Tags,
    ) -> Result<(u32, usize), DecodeError> {
        tags.left -= 1;
        let offset = self.offset();
        let tag = self.unsigned_varint(field)?;
        if let Some(previous) = tags.previous
            && tag <= previous
        {
            return Err(DecodeError::TagOrder { field, offset, tag, previous });
        }
        tags.previous = Some(tag);
        let size = self.unsigned_varint(field)?;
        if size > TAG_BYTES_MAX {
            return Err(DecodeError::TagTooLarge { field, offset, tag, size, size_max: TAG_BYTES_MAX });
        }
        if size as usize > self.rest.len() {
            return Err(self.truncated(field, size.into()));
        }
        Ok((tag, size as usize))
    }

    /// Reads a section of tagged fields of which none is known.
    ///
    /// # Errors
    /// As [`Reader::tags`] and [`Reader::next_tag`].
    #[inline]
    pub fn skip_tags(&mut self, field: &'static str) -> Result<(), DecodeError> {
        // No tags: by far the commonest case.
        if let Some((&0, rest)) = self.rest.split_first() {
            self.rest = rest;
            return Ok(());
        }
        self.skip_present_tags(field)
    }

    #[inline(never)]
    fn skip_present_tags(&mut self, field: &'static str) -> Result<(), DecodeError> {
        let mut tags = self.tags(field)?;
        while let Some((_, size)) = self.next_tag(field, &mut tags)? {
            self.take(field, size)?;
        }
        Ok(())
    }

    /// Confines reading to the next `size` bytes until [`Reader::leave_tag`].
    ///
    /// # Errors
    /// [`DecodeError::Truncated`].
    pub fn enter_tag(&mut self, field: &'static str, size: usize) -> Result<TagScope<'a>, DecodeError> {
        let Some((inner, after)) = self.rest.split_at_checked(size) else {
            return Err(self.truncated(field, size as u64));
        };
        let scope = TagScope { after, end: self.end };
        self.end -= after.len();
        self.rest = inner;
        Ok(scope)
    }

    /// Ends what [`Reader::enter_tag`] began.
    ///
    /// # Errors
    /// [`DecodeError::TagNotConsumed`] when bytes of the field are unread.
    pub fn leave_tag(&mut self, field: &'static str, scope: TagScope<'a>) -> Result<(), DecodeError> {
        if !self.rest.is_empty() {
            return Err(DecodeError::TagNotConsumed { field, offset: self.offset(), left: self.left() });
        }
        self.rest = scope.after;
        self.end = scope.end;
        Ok(())
    }
}
