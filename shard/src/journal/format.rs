//! Constants and small codecs of the journal's files, format version 1. Pure; every number on disk is little-endian.
//!
//! `journal/CURRENT` names the one generation that counts; `journal/<generation>/core-<core>-<number>.journal` are its
//! files. Anything else below `journal/` is a leftover of a start that did not end, except `damaged-<generation>`, kept
//! for whoever mends it.

use ringlog_protocol::ids::{PartitionIndex, TopicId, TopicPartition};

/// The version that this build writes, and the newest that it reads.
pub const FORMAT_VERSION: u16 = 1;

/// Every frame starts at a multiple of this many bytes: what O_DIRECT asks for on every device we know.
pub const FRAME_ALIGNMENT_BYTES: u64 = 4096;

/// Name of the manifest in the journal's folder.
pub const MANIFEST_NAME: &str = "CURRENT";

const MANIFEST_MAGIC: &[u8; 8] = b"RINGLOGJ";
const MANIFEST_BYTES: usize = 8 + 2 + 2 + 4 + 8 + 8 + 4;

/// What `journal/CURRENT` says. Replaced atomically, once a start.
///
/// Layout: magic `RINGLOGJ`, format version u16, reserved u16 (0), core count u32, generation u64, salt u64, CRC-32 of
/// all before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Cores that wrote this generation; for people, recovery reads whatever files there are.
    pub core_count: u32,
    /// The generation that counts. The first is 1.
    pub generation: u64,
    /// Random, in every frame of the generation: bytes that a client made cannot pass as a frame.
    pub salt: u64,
}

/// Why a manifest cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error("journal manifest has {found} bytes where {expected} belong")]
    Length { found: usize, expected: usize },
    #[error("journal manifest does not start with its magic")]
    Magic,
    #[error("journal manifest has checksum {found:08x}, its bytes give {expected:08x}")]
    Checksum { found: u32, expected: u32 },
    #[error("journal manifest has format version {found}, this build reads up to {newest}")]
    Version { found: u16, newest: u16 },
}

impl Manifest {
    /// The manifest's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(MANIFEST_BYTES);
        out.extend_from_slice(MANIFEST_MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&0_u16.to_le_bytes());
        out.extend_from_slice(&self.core_count.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.salt.to_le_bytes());
        let checksum = crc32fast::hash(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// Any byte that differs from what [`Manifest::encode`] wrote, and a newer version.
    pub fn decode(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        let mut cursor = Cursor::new(bytes);
        if cursor.take(MANIFEST_MAGIC.len()) != Some(&MANIFEST_MAGIC[..]) {
            return Err(ManifestError::Magic);
        }
        let length = ManifestError::Length { found: bytes.len(), expected: MANIFEST_BYTES };
        // The version is judged first: a newer build may have changed all that follows it.
        let version = cursor.u16().ok_or(length.clone())?;
        if version != FORMAT_VERSION {
            return Err(ManifestError::Version { found: version, newest: FORMAT_VERSION });
        }
        if bytes.len() != MANIFEST_BYTES {
            return Err(length);
        }
        let _reserved = cursor.u16().ok_or(length.clone())?;
        let core_count = cursor.u32().ok_or(length.clone())?;
        let generation = cursor.u64().ok_or(length.clone())?;
        let salt = cursor.u64().ok_or(length.clone())?;
        let found = cursor.u32().ok_or(length)?;
        let expected = crc32fast::hash(&bytes[..MANIFEST_BYTES - 4]);
        if found != expected {
            return Err(ManifestError::Checksum { found, expected });
        }
        Ok(Manifest { core_count, generation, salt })
    }
}

/// Folder of a generation, below the journal's folder.
#[must_use]
pub fn generation_name(generation: u64) -> String {
    format!("{generation:010}")
}

/// Name of one journal file of a core; `number` counts the files that the core made in this generation.
#[must_use]
pub fn file_name(core: u32, number: u32) -> String {
    format!("core-{core:04}-{number:06}.journal")
}

/// Reads little-endian numbers from bytes that nobody vouches for: every step may find too few.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Bytes that are left.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*head)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|bytes| bytes[0])
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_le_bytes)
    }

    pub(crate) fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }

    pub(crate) fn key(&mut self) -> Option<TopicPartition> {
        let topic = TopicId(self.array()?);
        Some(TopicPartition { topic, partition: PartitionIndex(self.i32()?) })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn manifest_round_trip_and_every_damage_is_seen(
            core_count: u32, generation: u64, salt: u64, bit in 0..MANIFEST_BYTES * 8
        ) {
            let manifest = Manifest { core_count, generation, salt };
            let bytes = manifest.encode();
            prop_assert_eq!(Manifest::decode(&bytes), Ok(manifest));
            for end in 0..bytes.len() {
                prop_assert!(Manifest::decode(&bytes[..end]).is_err());
            }
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Manifest::decode(&flipped).is_err());
        }
    }

    #[test]
    fn a_newer_manifest_is_named_as_such_whatever_follows() {
        let mut bytes = Manifest { core_count: 1, generation: 1, salt: 1 }.encode();
        bytes[8] = 2;
        bytes.extend_from_slice(b"new fields");
        assert_eq!(Manifest::decode(&bytes), Err(ManifestError::Version { found: 2, newest: 1 }));
    }
}
