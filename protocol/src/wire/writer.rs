//! [`Writer`]: Kafka's primitives into pieces, copying only what is small.
//!
//! It knows the frame's length so far, so that the length prefix can be patched before the first byte leaves.

use bytes::{BufMut, Bytes, BytesMut};

use super::{EncodeError, FileRange, Int32Array, Piece, Records};
use crate::ids::TopicId;

/// Shared bytes below this are copied into the contiguous part: a separate piece costs an iovec entry, a reference count
/// and a cache line, which is more than copying so few bytes.
const COPY_BYTES_MAX: usize = 256;

/// Collects an encoded message.
///
/// All small bytes go to one buffer; shared pieces remember where they cut it. [`Writer::finish`] then slices the buffer,
/// which allocates once however many pieces there are.
#[derive(Debug, Default)]
pub struct Writer {
    small: Vec<u8>,
    cuts: Vec<Cut>,
    shared_bytes: usize,
}

#[derive(Debug)]
struct Cut {
    /// How many small bytes come before the piece.
    at: usize,
    piece: Piece,
}

/// Where an open tagged field's content begins; see [`Writer::begin_tag`].
#[derive(Debug)]
#[must_use = "a tagged field that is not closed has no size"]
pub struct TagMark {
    content: usize,
}

macro_rules! fixed {
    ($($(#[$doc:meta])* $name:ident($type:ty);)*) => {
        $(
            $(#[$doc])*
            #[inline]
            pub fn $name(&mut self, value: $type) {
                self.small.extend_from_slice(&value.to_be_bytes());
            }
        )*
    };
}

impl Writer {
    /// An empty writer that allocates at its first byte.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty writer with room for `capacity` small bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { small: Vec::with_capacity(capacity), ..Self::default() }
    }

    /// A writer that begins with the four bytes of a frame's length prefix, filled in by [`Writer::finish_frame`].
    #[must_use]
    pub fn frame(capacity: usize) -> Self {
        let mut writer = Self::with_capacity(capacity.max(64));
        writer.i32(0);
        writer
    }

    /// Bytes so far, shared ones and the length prefix included.
    #[must_use]
    pub fn length(&self) -> usize {
        self.small.len() + self.shared_bytes
    }

    fixed! {
        /// One byte, signed.
        i8(i8);
        /// One byte.
        u8(u8);
        /// Two bytes, big endian.
        i16(i16);
        /// Two bytes, big endian.
        u16(u16);
        /// Four bytes, big endian.
        i32(i32);
        /// Four bytes, big endian.
        u32(u32);
        /// Eight bytes, big endian.
        i64(i64);
        /// Eight bytes, IEEE 754.
        f64(f64);
    }

    /// One byte, 0 or 1.
    #[inline]
    pub fn bool(&mut self, value: bool) {
        self.small.push(u8::from(value));
    }

    /// Sixteen bytes.
    #[inline]
    pub fn uuid(&mut self, value: TopicId) {
        self.small.extend_from_slice(&value.0);
    }

    /// Bytes as they are, without a length.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.small.extend_from_slice(bytes);
    }

    /// Unsigned LEB128.
    #[inline]
    pub fn unsigned_varint(&mut self, value: u32) {
        if value < 0x80 {
            self.small.push(value as u8);
        } else {
            write_unsigned_varint(&mut self.small, value.into());
        }
    }

    /// A two-byte length and the text.
    ///
    /// # Errors
    /// [`EncodeError::TooLong`] over 32,767 bytes.
    #[inline]
    pub fn string(&mut self, field: &'static str, value: &str) -> Result<(), EncodeError> {
        let length_max = i16::MAX as usize;
        let length = i16::try_from(value.len()).map_err(|_| EncodeError::TooLong {
            field,
            length: value.len(),
            length_max,
        })?;
        self.i16(length);
        self.raw(value.as_bytes());
        Ok(())
    }

    /// As [`Writer::string`]; null is -1.
    ///
    /// # Errors
    /// As [`Writer::string`].
    #[inline]
    pub fn nullable_string(&mut self, field: &'static str, value: Option<&str>) -> Result<(), EncodeError> {
        match value {
            Some(text) => self.string(field, text),
            None => {
                self.i16(-1);
                Ok(())
            }
        }
    }

    /// A varint of length + 1 and the text.
    ///
    /// # Errors
    /// [`EncodeError::TooLong`] over 2^31-1 bytes.
    #[inline]
    pub fn compact_string(&mut self, field: &'static str, value: &str) -> Result<(), EncodeError> {
        self.compact_bytes(field, value.as_bytes())
    }

    /// As [`Writer::compact_string`]; null is 0.
    ///
    /// # Errors
    /// As [`Writer::compact_string`].
    #[inline]
    pub fn compact_nullable_string(
        &mut self,
        field: &'static str,
        value: Option<&str>,
    ) -> Result<(), EncodeError> {
        self.compact_nullable_bytes(field, value.map(str::as_bytes))
    }

    /// A four-byte length and the bytes, copied.
    ///
    /// # Errors
    /// [`EncodeError::TooLong`] over 2^31-1 bytes.
    #[inline]
    pub fn bytes(&mut self, field: &'static str, value: &[u8]) -> Result<(), EncodeError> {
        self.array_count(field, value.len())?;
        self.raw(value);
        Ok(())
    }

    /// As [`Writer::bytes`]; null is -1.
    ///
    /// # Errors
    /// As [`Writer::bytes`].
    #[inline]
    pub fn nullable_bytes(&mut self, field: &'static str, value: Option<&[u8]>) -> Result<(), EncodeError> {
        match value {
            Some(bytes) => self.bytes(field, bytes),
            None => {
                self.i32(-1);
                Ok(())
            }
        }
    }

    /// A varint of length + 1 and the bytes, copied.
    ///
    /// # Errors
    /// [`EncodeError::TooLong`] over 2^31-1 bytes.
    #[inline]
    pub fn compact_bytes(&mut self, field: &'static str, value: &[u8]) -> Result<(), EncodeError> {
        self.compact_array_count(field, value.len())?;
        self.raw(value);
        Ok(())
    }

    /// As [`Writer::compact_bytes`]; null is 0.
    ///
    /// # Errors
    /// As [`Writer::compact_bytes`].
    #[inline]
    pub fn compact_nullable_bytes(
        &mut self,
        field: &'static str,
        value: Option<&[u8]>,
    ) -> Result<(), EncodeError> {
        match value {
            Some(bytes) => self.compact_bytes(field, bytes),
            None => {
                self.u8(0);
                Ok(())
            }
        }
    }

    /// Record batches with a four-byte length; null is -1. Pieces are appended without a copy.
    ///
    /// # Errors
    /// [`EncodeError::TooLong`] over 2^31-1 bytes.
    pub fn nullable_records(&mut self, field: &'static str, value: &Records<'_>) -> Result<(), EncodeError> {
        match value.len() {
            None => self.i32(-1),
            Some(length) => self.array_count(field, length)?,
        }
        self.records_content(value);
        Ok(())
    }

    /// Record batches with a varint of length + 1; null is 0. Pieces are appended without a copy.
    ///
    /// # Errors
    /// [`EncodeError::TooLong`] over 2^31-1 bytes.
    pub fn compact_nullable_records(
        &mut self,
        field: &'static str,
        value: &Records<'_>,
    ) -> Result<(), EncodeError> {
        match value.len() {
            None => self.u8(0),
            Some(length) => self.compact_array_count(field, length)?,
        }
        self.records_content(value);
        Ok(())
    }

    fn records_content(&mut self, value: &Records<'_>) {
        match value {
            Records::None => {}
            Records::Borrowed(bytes) => self.raw(bytes),
            Records::Pieces(pieces) => pieces.iter().for_each(|piece| self.piece(piece)),
        }
    }

    /// A four-byte element count (or byte length).
    ///
    /// # Errors
    /// [`EncodeError::TooLong`] over 2^31-1.
    #[inline]
    pub fn array_count(&mut self, field: &'static str, count: usize) -> Result<(), EncodeError> {
        let length_max = i32::MAX as usize;
        let value =
            i32::try_from(count).map_err(|_| EncodeError::TooLong { field, length: count, length_max })?;
        self.i32(value);
        Ok(())
    }

    /// A varint of element count (or byte length) + 1.
    ///
    /// # Errors
    /// [`EncodeError::TooLong`] over 2^31-1.
    #[inline]
    pub fn compact_array_count(&mut self, field: &'static str, count: usize) -> Result<(), EncodeError> {
        let length_max = i32::MAX as usize;
        let value =
            i32::try_from(count).map_err(|_| EncodeError::TooLong { field, length: count, length_max })?;
        self.unsigned_varint(value.cast_unsigned() + 1);
        Ok(())
    }

    /// As [`Writer::array_count`]; null is -1.
    ///
    /// # Errors
    /// As [`Writer::array_count`].
    #[inline]
    pub fn nullable_array_count(
        &mut self,
        field: &'static str,
        count: Option<usize>,
    ) -> Result<(), EncodeError> {
        match count {
            Some(count) => self.array_count(field, count),
            None => {
                self.i32(-1);
                Ok(())
            }
        }
    }

    /// As [`Writer::compact_array_count`]; null is 0.
    ///
    /// # Errors
    /// As [`Writer::compact_array_count`].
    #[inline]
    pub fn compact_nullable_array_count(
        &mut self,
        field: &'static str,
        count: Option<usize>,
    ) -> Result<(), EncodeError> {
        match count {
            Some(count) => self.compact_array_count(field, count),
            None => {
                self.u8(0);
                Ok(())
            }
        }
    }

    /// The integers, without their count.
    #[inline]
    pub fn int32s(&mut self, values: &Int32Array<'_>) {
        values.append_to(&mut self.small);
    }

    /// Writes a tag and opens its field: write the content, then close it with [`Writer::end_tag`]. The section's count
    /// must have been written before. The content must not hold shared pieces.
    #[inline]
    pub fn begin_tag(&mut self, tag: u32) -> TagMark {
        self.unsigned_varint(tag);
        // One byte for the size, which is enough for nearly every tagged field.
        self.small.push(0);
        TagMark { content: self.small.len() }
    }

    /// Fills in the size of the field opened by [`Writer::begin_tag`].
    ///
    /// # Errors
    /// [`EncodeError::TooLong`] over 2^31-1 bytes.
    pub fn end_tag(&mut self, field: &'static str, mark: TagMark) -> Result<(), EncodeError> {
        debug_assert!(
            self.cuts.last().is_none_or(|cut| cut.at < mark.content),
            "shared piece in a tagged field"
        );
        let size = self.small.len() - mark.content;
        if let Ok(short) = u8::try_from(size)
            && short < 0x80
        {
            self.small[mark.content - 1] = short;
            return Ok(());
        }
        if i32::try_from(size).is_err() {
            return Err(EncodeError::TooLong { field, length: size, length_max: i32::MAX as usize });
        }
        // Rare: move the content to make room for a longer size.
        let content = self.small.split_off(mark.content);
        self.small.truncate(mark.content - 1);
        write_unsigned_varint(&mut self.small, size as u64);
        self.small.extend_from_slice(&content);
        Ok(())
    }

    /// Appends a piece: without a copy unless it is so small that a copy is cheaper.
    pub fn piece(&mut self, piece: &Piece) {
        match piece {
            Piece::Bytes(bytes) => self.shared(bytes),
            Piece::File(range) => self.file(*range),
        }
    }

    /// Appends shared bytes: without a copy unless they are so few that a copy is cheaper.
    pub fn shared(&mut self, bytes: &Bytes) {
        if bytes.len() <= COPY_BYTES_MAX {
            self.raw(bytes);
        } else {
            self.cut(Piece::Bytes(bytes.clone()));
        }
    }

    /// Appends a run of a file.
    pub fn file(&mut self, range: FileRange) {
        if range.length > 0 {
            self.cut(Piece::File(range));
        }
    }

    fn cut(&mut self, piece: Piece) {
        self.shared_bytes += piece.len();
        self.cuts.push(Cut { at: self.small.len(), piece });
    }

    /// The message in pieces, none empty.
    #[must_use]
    pub fn finish(self) -> Vec<Piece> {
        let mut small = Bytes::from(self.small);
        let mut pieces = Vec::with_capacity(self.cuts.len() * 2 + 1);
        let mut taken = 0;
        for cut in self.cuts {
            if cut.at > taken {
                pieces.push(Piece::Bytes(small.split_to(cut.at - taken)));
                taken = cut.at;
            }
            pieces.push(cut.piece);
        }
        if !small.is_empty() {
            pieces.push(Piece::Bytes(small));
        }
        pieces
    }

    /// As [`Writer::finish`], after writing the frame's length into the four bytes that [`Writer::frame`] reserved.
    ///
    /// # Errors
    /// [`EncodeError::TooLong`] over 2^31-1 bytes.
    pub fn finish_frame(mut self) -> Result<Vec<Piece>, EncodeError> {
        let length = self.length().saturating_sub(4);
        let prefix = i32::try_from(length).map_err(|_| EncodeError::TooLong {
            field: "frame",
            length,
            length_max: i32::MAX as usize,
        })?;
        let slot = self.small.first_chunk_mut::<4>().expect("Writer::frame reserved four bytes");
        *slot = prefix.to_be_bytes();
        Ok(self.finish())
    }

    /// The message as one buffer, for messages without file ranges.
    ///
    /// # Panics
    /// When a file range was written: its bytes are not here.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        let total = self.length();
        let mut pieces = self.finish();
        if pieces.len() <= 1 {
            return match pieces.pop() {
                None => Bytes::new(),
                Some(Piece::Bytes(bytes)) => bytes,
                Some(Piece::File(range)) => panic!("the bytes of {range:?} are not in memory"),
            };
        }
        let mut joined = BytesMut::with_capacity(total);
        for piece in &pieces {
            match piece {
                Piece::Bytes(bytes) => joined.extend_from_slice(bytes),
                Piece::File(range) => panic!("the bytes of {range:?} are not in memory"),
            }
        }
        joined.freeze()
    }
}

/// Appends an unsigned LEB128.
#[inline]
pub fn write_unsigned_varint(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Appends a zigzag varint of 32 bits.
#[inline]
pub fn write_varint(out: &mut impl BufMut, value: i32) {
    write_unsigned_varint(out, ((value << 1) ^ (value >> 31)).cast_unsigned().into());
}

/// Appends a zigzag varint of 64 bits.
#[inline]
pub fn write_varlong(out: &mut impl BufMut, value: i64) {
    write_unsigned_varint(out, ((value << 1) ^ (value >> 63)).cast_unsigned());
}
