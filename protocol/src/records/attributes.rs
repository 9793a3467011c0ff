//! The 16 attribute bits of a record batch v2.
//!
//! Holds any bits of a peer; whether they are allowed is decided in [`super::validate`].

use super::compression::Compression;

/// What the timestamps of a batch mean (KIP-32).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TimestampType {
    /// The producer's clock; each record has its own.
    #[default]
    CreateTime,
    /// The broker's clock at append; every record has the batch's maximum timestamp.
    LogAppendTime,
}

/// The attribute bits; stable, on the wire and on disk.
///
/// ```text
/// bit   0-2  codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd
/// bit   3    timestamp type: 0 CreateTime, 1 LogAppendTime
/// bit   4    transactional
/// bit   5    control batch (transaction markers)
/// bit   6    delete horizon: the base timestamp is one (KIP-534)
/// bits  7-15 unused: Kafka ignores them, so they are kept as they came
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes(pub i16);

impl Attributes {
    const CODEC_MASK: i16 = 0x07;
    /// Bit 3.
    pub const LOG_APPEND_TIME: i16 = 1 << 3;
    /// Bit 4.
    pub const TRANSACTIONAL: i16 = 1 << 4;
    /// Bit 5.
    pub const CONTROL: i16 = 1 << 5;
    /// Bit 6.
    pub const DELETE_HORIZON: i16 = 1 << 6;

    /// The codec's number, 0..=7, known or not.
    #[must_use]
    pub fn codec_bits(self) -> u8 {
        (self.0 & Self::CODEC_MASK) as u8
    }

    /// The codec; `None` for the unassigned numbers 5, 6 and 7.
    #[must_use]
    pub fn compression(self) -> Option<Compression> {
        Compression::from_bits(self.codec_bits())
    }

    /// What the timestamps mean.
    #[must_use]
    pub fn timestamp_type(self) -> TimestampType {
        if self.has(Self::LOG_APPEND_TIME) { TimestampType::LogAppendTime } else { TimestampType::CreateTime }
    }

    /// Whether the batch is part of a transaction.
    #[must_use]
    pub fn is_transactional(self) -> bool {
        self.has(Self::TRANSACTIONAL)
    }

    /// Whether the records are markers of the broker, not of a client.
    #[must_use]
    pub fn is_control(self) -> bool {
        self.has(Self::CONTROL)
    }

    /// Whether the base timestamp is a delete horizon.
    #[must_use]
    pub fn has_delete_horizon(self) -> bool {
        self.has(Self::DELETE_HORIZON)
    }

    /// These bits with another codec.
    #[must_use]
    pub fn with_compression(self, compression: Compression) -> Attributes {
        Attributes(self.0 & !Self::CODEC_MASK | i16::from(compression.bits()))
    }

    /// These bits with `bits` set too.
    #[must_use]
    pub fn with(self, bits: i16) -> Attributes {
        Attributes(self.0 | bits)
    }

    fn has(self, bit: i16) -> bool {
        self.0 & bit != 0
    }
}
