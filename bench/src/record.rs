//! The benchmark's own record: what lets the reader prove that nothing was lost, repeated, moved or altered.
//!
//! Pure bytes <-> values. It knows nothing of batches or of the network.
//!
//! ```text
//! key    run u32 | producer u32 | sequence u64                 big-endian, 16 bytes
//! value  crc u32 | intended u64 | payload                       crc = CRC-32C of key, intended, payload
//! ```

use crc_fast::{CrcAlgorithm, Digest};

/// Bytes of every key.
pub const KEY_BYTES: usize = 16;
/// Bytes of a value before its payload.
pub const VALUE_HEADER_BYTES: usize = 12;
/// The smallest record (key and value).
pub const RECORD_BYTES_MIN: u32 = (KEY_BYTES + VALUE_HEADER_BYTES) as u32;

/// What a record says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordStamp {
    /// Names the run, so that records left by another run are told apart.
    pub run: u32,
    /// The producer in the run. Sequences count per (producer, partition).
    pub producer: u32,
    /// Position in the stream of its (producer, partition), from 0.
    pub sequence: u64,
    /// Intended send time, nanoseconds of the run's monotonic clock.
    pub intended: u64,
}

/// Why bytes are not one of our records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordFault {
    /// Not ours: another program's or another run's record.
    #[error("the record was written by another run or program")]
    Foreign,
    /// Ours by its key, but the bytes are not what was sent.
    #[error("the checksum of the record does not match")]
    Corrupt,
}

/// Writes key and value of one record into `key` and `value`, replacing what they hold.
pub fn write_record(stamp: RecordStamp, payload: &[u8], key: &mut [u8; KEY_BYTES], value: &mut Vec<u8>) {
    key[0..4].copy_from_slice(&stamp.run.to_be_bytes());
    key[4..8].copy_from_slice(&stamp.producer.to_be_bytes());
    key[8..16].copy_from_slice(&stamp.sequence.to_be_bytes());
    value.clear();
    value.extend_from_slice(&[0; 4]);
    value.extend_from_slice(&stamp.intended.to_be_bytes());
    value.extend_from_slice(payload);
    let crc = checksum(key, value.get(4..).unwrap_or_default());
    value[0..4].copy_from_slice(&crc.to_be_bytes());
}

/// Reads a record of run `run` back and checks every byte of it.
///
/// # Errors
/// [`RecordFault::Foreign`] for a key of another shape or run, [`RecordFault::Corrupt`] for altered bytes.
pub fn read_record(run: u32, key: Option<&[u8]>, value: Option<&[u8]>) -> Result<RecordStamp, RecordFault> {
    let key: &[u8; KEY_BYTES] = key.and_then(|key| key.try_into().ok()).ok_or(RecordFault::Foreign)?;
    if be_u32(key, 0) != Some(run) {
        return Err(RecordFault::Foreign);
    }
    let value = value.ok_or(RecordFault::Corrupt)?;
    let (Some(expected), Some(intended)) = (be_u32(value, 0), be_u64(value, 4)) else {
        return Err(RecordFault::Corrupt);
    };
    if checksum(key, value.get(4..).unwrap_or_default()) != expected {
        return Err(RecordFault::Corrupt);
    }
    let producer = be_u32(key, 4).ok_or(RecordFault::Corrupt)?;
    let sequence = be_u64(key, 8).ok_or(RecordFault::Corrupt)?;
    Ok(RecordStamp { run, producer, sequence, intended })
}

fn checksum(key: &[u8], rest: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(key);
    digest.update(rest);
    digest.finalize() as u32
}

fn be_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn be_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAMP: RecordStamp = RecordStamp { run: 7, producer: 3, sequence: 1 << 40, intended: 123_456_789 };

    fn sample() -> ([u8; KEY_BYTES], Vec<u8>) {
        let mut key = [0; KEY_BYTES];
        let mut value = Vec::new();
        write_record(STAMP, b"payload bytes", &mut key, &mut value);
        (key, value)
    }

    #[test]
    fn a_record_reads_back_as_written() {
        let (key, value) = sample();
        assert_eq!(value.len(), VALUE_HEADER_BYTES + 13);
        assert_eq!(read_record(7, Some(&key), Some(&value)), Ok(STAMP));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (key, value) = sample();
        for bit in 0..value.len() * 8 {
            let mut altered = value.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read_record(7, Some(&key), Some(&altered)), Err(RecordFault::Corrupt), "bit {bit}");
        }
        for bit in 32..KEY_BYTES * 8 {
            let mut altered = key;
            altered[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                read_record(7, Some(&altered), Some(&value)),
                Err(RecordFault::Corrupt),
                "key bit {bit}"
            );
        }
    }

    #[test]
    fn truncated_and_foreign_records_are_named_as_such() {
        let (key, value) = sample();
        for length in 0..value.len() {
            assert_eq!(
                read_record(7, Some(&key), value.get(..length)),
                Err(RecordFault::Corrupt),
                "length {length}"
            );
        }
        assert_eq!(read_record(7, Some(&key), None), Err(RecordFault::Corrupt));
        assert_eq!(read_record(8, Some(&key), Some(&value)), Err(RecordFault::Foreign));
        assert_eq!(read_record(7, None, Some(&value)), Err(RecordFault::Foreign));
        assert_eq!(read_record(7, Some(b"short"), Some(&value)), Err(RecordFault::Foreign));
    }
}
