//! One journal write: a header, the entries, padding. Owns the frame's layout and its checksum; does no I/O.
//!
//! Layout of format version 1, little-endian, at a multiple of 4096 bytes in the file:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic `RLJF` |
//! | 4 | 2 | format version |
//! | 6 | 2 | header length in bytes (56) |
//! | 8 | 8 | generation |
//! | 16 | 8 | salt of the generation |
//! | 24 | 8 | frame sequence: counts the core's frames from 1 within the generation |
//! | 32 | 8 | floor: the oldest frame of the core whose entries still counted when this one was written |
//! | 40 | 4 | length of the body in bytes |
//! | 44 | 4 | number of entries |
//! | 48 | 4 | core |
//! | 52 | 4 | CRC-32 of the body, then of the 52 bytes before this field |
//! | 56 | .. | body: entries back to back; then zeroes up to the next multiple of 4096 |

use ringlog_io::AlignedBuffer;

use super::entry::{Entry, EntryError};
use super::format::{Cursor, FORMAT_VERSION, FRAME_ALIGNMENT_BYTES};

/// Bytes before a frame's body.
pub const FRAME_HEADER_BYTES: usize = 56;

const FRAME_MAGIC: [u8; 4] = *b"RLJF";

/// Bytes copied between two steps of the checksum: the copy leaves them in the first-level cache for it.
const COPY_BLOCK_BYTES: usize = 16 * 1024;

/// What every frame of one core and generation says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameOrigin {
    pub generation: u64,
    pub salt: u64,
    pub core: u32,
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    pub origin: FrameOrigin,
    pub sequence: u64,
    /// Frames before this one may be overwritten or gone; each from it to `sequence` must be there.
    pub floor: u64,
    pub body_bytes: u32,
    pub entry_count: u32,
    pub crc: u32,
}

/// Why bytes are not a frame of this format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("no frame header")]
    NoHeader,
    #[error("frame of format version {found}, this build reads up to {newest}")]
    Version { found: u16, newest: u16 },
    #[error("frame states a body of {stated} bytes, {available} are there")]
    Length { stated: u32, available: u64 },
    #[error("frame has checksum {found:08x}, its bytes give {expected:08x}")]
    Checksum { found: u32, expected: u32 },
    #[error("entry {index} of the frame: {source}")]
    Entry { index: u32, source: EntryError },
    #[error("frame states {stated} entries and holds {found}")]
    EntryCount { stated: u32, found: u32 },
}

impl FrameHeader {
    /// Reads a header; the checksum is judged by [`decode_body`], which has the body.
    ///
    /// # Errors
    /// [`FrameError::NoHeader`] or [`FrameError::Version`].
    pub fn decode(bytes: &[u8]) -> Result<FrameHeader, FrameError> {
        let mut cursor = Cursor::new(bytes.get(..FRAME_HEADER_BYTES).ok_or(FrameError::NoHeader)?);
        if cursor.take(4) != Some(&FRAME_MAGIC[..]) {
            return Err(FrameError::NoHeader);
        }
        let mut fields = || {
            let (version, header_bytes) = (cursor.u16()?, cursor.u16()?);
            let (generation, salt) = (cursor.u64()?, cursor.u64()?);
            let (sequence, floor) = (cursor.u64()?, cursor.u64()?);
            let (body_bytes, entry_count, core) = (cursor.u32()?, cursor.u32()?, cursor.u32()?);
            let origin = FrameOrigin { generation, salt, core };
            let header = FrameHeader { origin, sequence, floor, body_bytes, entry_count, crc: cursor.u32()? };
            Some((version, header_bytes, header))
        };
        let (version, header_bytes, header) = fields().ok_or(FrameError::NoHeader)?;
        if version != FORMAT_VERSION {
            return Err(FrameError::Version { found: version, newest: FORMAT_VERSION });
        }
        if usize::from(header_bytes) != FRAME_HEADER_BYTES {
            return Err(FrameError::NoHeader);
        }
        Ok(header)
    }

    fn encode_before_crc(&self) -> [u8; FRAME_HEADER_BYTES - 4] {
        let mut out = [0; FRAME_HEADER_BYTES - 4];
        out[..4].copy_from_slice(&FRAME_MAGIC);
        out[4..6].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[6..8].copy_from_slice(&(FRAME_HEADER_BYTES as u16).to_le_bytes());
        out[8..16].copy_from_slice(&self.origin.generation.to_le_bytes());
        out[16..24].copy_from_slice(&self.origin.salt.to_le_bytes());
        out[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        out[32..40].copy_from_slice(&self.floor.to_le_bytes());
        out[40..44].copy_from_slice(&self.body_bytes.to_le_bytes());
        out[44..48].copy_from_slice(&self.entry_count.to_le_bytes());
        out[48..52].copy_from_slice(&self.origin.core.to_le_bytes());
        out
    }

    /// Bytes of the frame in its file, header and padding included.
    #[must_use]
    pub fn frame_bytes(&self) -> u64 {
        frame_bytes(u64::from(self.body_bytes))
    }

    /// Checks `body` against this header's checksum.
    ///
    /// # Errors
    /// [`FrameError::Length`] or [`FrameError::Checksum`].
    pub fn verify(&self, body: &[u8]) -> Result<(), FrameError> {
        if u64::from(self.body_bytes) != body.len() as u64 {
            return Err(FrameError::Length { stated: self.body_bytes, available: body.len() as u64 });
        }
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(body);
        hasher.update(&self.encode_before_crc());
        let expected = hasher.finalize();
        if expected != self.crc {
            return Err(FrameError::Checksum { found: self.crc, expected });
        }
        Ok(())
    }
}

/// Bytes that a frame with a body of `body_bytes` takes in its file.
#[must_use]
pub fn frame_bytes(body_bytes: u64) -> u64 {
    (FRAME_HEADER_BYTES as u64 + body_bytes).next_multiple_of(FRAME_ALIGNMENT_BYTES)
}

/// Verifies `body` and reads its entries, each with the position of its payload in the body.
///
/// # Errors
/// See [`FrameError`]. A body whose checksum holds but whose entries do not decode is damage as well.
pub fn decode_body<'a>(header: &FrameHeader, body: &'a [u8]) -> Result<Vec<(Entry<'a>, usize)>, FrameError> {
    header.verify(body)?;
    // Not reserved by the stated count: only by what decodes.
    let mut entries = Vec::new();
    let mut position = 0;
    let mut index = 0;
    while position < body.len() {
        let (entry, taken) =
            Entry::decode(&body[position..]).map_err(|source| FrameError::Entry { index, source })?;
        entries.push((entry, position + taken - entry.payload().len()));
        position += taken;
        index += 1;
    }
    if index != header.entry_count {
        return Err(FrameError::EntryCount { stated: header.entry_count, found: index });
    }
    Ok(entries)
}

/// A frame while it fills: entries are copied once, straight into the memory that the device reads.
#[derive(Debug)]
pub struct FrameBuilder {
    buffer: AlignedBuffer,
    crc: crc32fast::Hasher,
    entry_count: u32,
}

impl FrameBuilder {
    /// Starts a frame in `buffer`, whose old bytes are forgotten.
    #[must_use]
    pub fn new(mut buffer: AlignedBuffer) -> FrameBuilder {
        buffer.clear();
        buffer.resize(FRAME_HEADER_BYTES, 0);
        FrameBuilder { buffer, crc: crc32fast::Hasher::new(), entry_count: 0 }
    }

    /// Copies an entry in.
    pub fn push(&mut self, entry: &Entry<'_>) {
        let head = entry.head();
        self.buffer.extend_from_slice(head.as_slice());
        self.crc.update(head.as_slice());
        for block in entry.payload().chunks(COPY_BLOCK_BYTES) {
            self.buffer.extend_from_slice(block);
            self.crc.update(block);
        }
        self.entry_count += 1;
    }

    #[must_use]
    pub fn entry_count(&self) -> u32 {
        self.entry_count
    }

    /// Bytes of the entries so far.
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.buffer.len() - FRAME_HEADER_BYTES
    }

    /// Bytes that the frame would take in a file now.
    #[must_use]
    pub fn frame_bytes(&self) -> u64 {
        frame_bytes(self.body_bytes() as u64)
    }

    /// Fills in header and padding; the buffer is ready to be written.
    #[must_use]
    pub fn seal(mut self, origin: FrameOrigin, sequence: u64, floor: u64) -> AlignedBuffer {
        assert!(floor <= sequence, "floor {floor} above frame {sequence}");
        let body_bytes = u32::try_from(self.body_bytes()).expect("limits.rs bounds a frame below 4 GiB");
        let mut header =
            FrameHeader { origin, sequence, floor, body_bytes, entry_count: self.entry_count, crc: 0 };
        let before_crc = header.encode_before_crc();
        self.crc.update(&before_crc);
        header.crc = self.crc.finalize();
        let start = &mut self.buffer.as_mut_slice()[..FRAME_HEADER_BYTES];
        start[..before_crc.len()].copy_from_slice(&before_crc);
        start[before_crc.len()..].copy_from_slice(&header.crc.to_le_bytes());
        self.buffer.pad_to_alignment();
        self.buffer
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::entry::tests::any_entry;
    use super::*;

    const ORIGIN: FrameOrigin = FrameOrigin { generation: 3, salt: 0x5a17, core: 2 };

    fn read(bytes: &[u8]) -> Result<(FrameHeader, usize), FrameError> {
        let header = FrameHeader::decode(bytes)?;
        let available = bytes.len() as u64 - FRAME_HEADER_BYTES as u64;
        let body = usize::try_from(header.body_bytes)
            .ok()
            .and_then(|length| bytes.get(FRAME_HEADER_BYTES..FRAME_HEADER_BYTES.checked_add(length)?))
            .ok_or(FrameError::Length { stated: header.body_bytes, available })?;
        Ok((header, decode_body(&header, body)?.len()))
    }

    proptest! {
        #[test]
        fn round_trip(entries in proptest::collection::vec(any_entry(), 0..20), sequence: u64) {
            let mut builder = FrameBuilder::new(AlignedBuffer::new());
            for owned in &entries {
                builder.push(&owned.entry());
            }
            let expected_bytes = builder.frame_bytes();
            let buffer = builder.seal(ORIGIN, sequence, sequence / 2);
            let bytes = buffer.as_slice();
            prop_assert_eq!(bytes.len() as u64, expected_bytes);
            let header = FrameHeader::decode(bytes).expect("just written");
            prop_assert_eq!((header.origin, header.sequence, header.floor), (ORIGIN, sequence, sequence / 2));
            prop_assert_eq!(header.frame_bytes(), expected_bytes);
            let body = &bytes[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + header.body_bytes as usize];
            let decoded = decode_body(&header, body).expect("just written");
            prop_assert_eq!(decoded.len(), entries.len());
            for ((entry, payload_at), owned) in decoded.iter().zip(&entries) {
                prop_assert_eq!(*entry, owned.entry());
                prop_assert_eq!(&body[*payload_at..*payload_at + entry.payload().len()], entry.payload());
            }
        }

        #[test]
        fn every_flipped_bit_before_the_padding_is_seen(
            entries in proptest::collection::vec(any_entry(), 1..4), bit: proptest::sample::Index, end: proptest::sample::Index
        ) {
            let mut builder = FrameBuilder::new(AlignedBuffer::new());
            for owned in &entries {
                builder.push(&owned.entry());
            }
            let used = FRAME_HEADER_BYTES + builder.body_bytes();
            let mut bytes = builder.seal(ORIGIN, 9, 3).as_slice().to_vec();
            prop_assert!(read(&bytes).is_ok());
            prop_assert!(read(&bytes[..end.index(used)]).is_err());
            let bit = bit.index(used * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(read(&bytes).is_err(), "bit {} of {}", bit, used * 8);
        }
    }

    #[test]
    fn a_reused_buffer_leaves_nothing_behind() {
        let mut dirty = AlignedBuffer::new();
        dirty.resize(9000, 0xEE);
        let buffer = FrameBuilder::new(dirty).seal(ORIGIN, 1, 1);
        assert_eq!(buffer.len(), 4096);
        assert!(buffer.as_slice()[FRAME_HEADER_BYTES..].iter().all(|byte| *byte == 0));
        assert_eq!(read(buffer.as_slice()).map(|(_, entries)| entries), Ok(0));
    }
}
