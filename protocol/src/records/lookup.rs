//! Finding a record by time inside one batch: what ListOffsets answers with (KIP-79, KIP-734).
//!
//! Which batch to look into is the log's to know.

use crate::ids::Offset;

use super::reader::{ReadError, read_batch};

/// A record found by its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundRecord {
    /// Its offset.
    pub offset: Offset,
    /// Its timestamp, ms since the Unix epoch.
    pub timestamp: i64,
}

/// The first record, by offset, whose timestamp is `target_ms` or later; `None` if the batch holds none.
///
/// The record itself and not the batch's base, which clients' suites check. Decompresses into `scratch` under `limit_bytes`.
///
/// # Errors
/// If the batch cannot be read.
pub fn first_record_at_or_after(
    batch: &[u8],
    target_ms: i64,
    limit_bytes: usize,
    scratch: &mut Vec<u8>,
) -> Result<Option<FoundRecord>, ReadError> {
    first_record_from(batch, Offset(i64::MIN), target_ms, limit_bytes, scratch)
}

/// As [`first_record_at_or_after`], of the records from offset `from` on: those before it may have been deleted.
///
/// # Errors
/// If the batch cannot be read.
pub fn first_record_from(
    batch: &[u8],
    from: Offset,
    target_ms: i64,
    limit_bytes: usize,
    scratch: &mut Vec<u8>,
) -> Result<Option<FoundRecord>, ReadError> {
    let (_, records) = read_batch(batch, limit_bytes, scratch)?;
    for record in records {
        let record = record?;
        if record.timestamp >= target_ms && record.offset >= from {
            return Ok(Some(FoundRecord { offset: record.offset, timestamp: record.timestamp }));
        }
    }
    Ok(None)
}

/// The first record, by offset, with the largest timestamp; `None` if the batch is empty, as compaction may leave it.
///
/// # Errors
/// If the batch cannot be read.
pub fn record_with_max_timestamp(
    batch: &[u8],
    limit_bytes: usize,
    scratch: &mut Vec<u8>,
) -> Result<Option<FoundRecord>, ReadError> {
    let (_, records) = read_batch(batch, limit_bytes, scratch)?;
    let mut found: Option<FoundRecord> = None;
    for record in records {
        let record = record?;
        if found.is_none_or(|found| record.timestamp > found.timestamp) {
            found = Some(FoundRecord { offset: record.offset, timestamp: record.timestamp });
        }
    }
    Ok(found)
}
