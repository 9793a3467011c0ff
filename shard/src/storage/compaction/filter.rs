//! Which records of a log stay, batch by batch, and what the log looks like then. Pure.
//!
//! As Kafka's `Cleaner.shouldRetainRecord` and `checkBatchRetention`: a record goes if a newer one has its key; a tombstone also once
//! its batch's delete horizon has passed; a batch without records stays, empty, if it is its producer's last one. Unlike Kafka
//! offsets are never left out: where whole batches go, one *blank* batch of 61 bytes for each leader epoch takes their offsets. So a
//! compacted segment ends where the next one begins, epochs begin where they began, a follower finds no gap, and each rule
//! of what is damage holds here as everywhere.
//!
//! Batches of transactions and their markers stay as they are: which of them were aborted is not known before transactions
//! are served. The key map is filled only up to the first of them.

use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::ids::{LeaderEpoch, Offset, ProducerId};
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_protocol::records::reader::{ReadError, Record, read_batch};
use ringlog_protocol::records::retain::{
    RetainError, Retained, is_blank, put_blank, put_emptied, retain_records,
};

use super::key_map::KeyMap;
use crate::limits::COMPACTION_BATCH_BYTES_MAX;

/// What a filter goes by.
#[derive(Debug)]
pub struct Rules {
    pub map: KeyMap,
    /// Records from here on are not in the map: all of them stay.
    pub map_end: Offset,
    /// Our clock, milliseconds since the Unix epoch.
    pub now_ms: i64,
    /// `delete.retention.ms`: a tombstone stays so long after it was first seen.
    pub delete_retention_ms: i64,
    /// The offset after each live producer's last batch, sorted.
    pub producers: Vec<(ProducerId, Offset)>,
}

/// A batch of the new segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    pub header: BatchHeader,
    /// In the output.
    pub bytes: usize,
}

/// What came of some batches.
#[derive(Debug, Default)]
pub struct Filtered {
    /// Whole batches, back to back.
    pub bytes: Vec<u8>,
    /// Of each, in order.
    pub batches: Vec<Kept>,
    /// Batches that are not as they were.
    pub changed: u64,
    pub records_dropped: u64,
}

/// Filters the batches of one new segment, in order.
#[derive(Debug, Default)]
pub struct Filter {
    /// Offsets of dropped batches that no blank batch takes yet.
    dropped: Option<Run>,
    scratch: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Run {
    base: Offset,
    end: Offset,
    epoch: LeaderEpoch,
    /// Batches that the blank one stands for.
    count: u64,
    /// One of them at least was more than a blank batch.
    is_new: bool,
}

/// Puts the keys of a batch's records from `from` on into the map. Returns the offset up to which all are in it: behind the batch,
/// or that of the first record for which there is no room.
///
/// # Errors
/// [`ReadError`]: the batch cannot be read.
pub fn note_keys(
    map: &mut KeyMap,
    bytes: &[u8],
    from: Offset,
    scratch: &mut Vec<u8>,
) -> Result<Offset, ReadError> {
    let (header, records) = read_batch(bytes, COMPACTION_BATCH_BYTES_MAX, scratch)?;
    for record in records {
        let record = record?;
        let Some(key) = record.key.filter(|_| record.offset >= from) else { continue };
        if !map.put(key, record.offset) {
            return Ok(record.offset);
        }
    }
    Ok(header.next_offset())
}

/// Whether the batch is a transaction's: what it is worth is not known here.
#[must_use]
pub fn is_of_transaction(header: &BatchHeader) -> bool {
    header.attributes.is_transactional() || header.attributes.is_control()
}

impl Rules {
    fn keeps(&self, header: &BatchHeader, record: &Record<'_>) -> bool {
        if record.offset >= self.map_end {
            return true;
        }
        // Kafka drops what has no key: nothing newer could ever replace it.
        let Some(key) = record.key else { return false };
        let is_newest = self.map.get(key).is_none_or(|newest| record.offset >= newest);
        let has_horizon = header.attributes.has_delete_horizon();
        let is_young = !has_horizon || self.now_ms < header.base_timestamp;
        is_newest && (record.value.is_some() || is_young)
    }

    fn is_last_of_producer(&self, header: &BatchHeader) -> bool {
        let id = header.producer_id;
        let found = self.producers.binary_search_by_key(&id, |(producer, _)| *producer);
        let last = found.ok().and_then(|index| self.producers.get(index));
        last.is_some_and(|(_, end)| *end == header.next_offset())
    }
}

impl Filter {
    /// Takes the next batch, whose CRC was checked.
    ///
    /// # Errors
    /// [`RetainError`]: its records cannot be read, or compressed anew.
    pub fn take(&mut self, rules: &Rules, batch: &Bytes, out: &mut Filtered) -> Result<(), RetainError> {
        let header = BatchHeader::parse(batch)?;
        if is_of_transaction(&header) {
            self.keep(&header, batch, out);
            return Ok(());
        }
        if is_blank(&header) {
            self.drop_batch(&header, false, out);
            return Ok(());
        }
        let (mut kept, mut dropped) = (Vec::new(), 0);
        let horizon_ms = rules.now_ms.saturating_add(rules.delete_retention_ms);
        let decide = |header: &BatchHeader, record: &Record<'_>| {
            let keeps = rules.keeps(header, record);
            dropped += u64::from(!keeps);
            keeps
        };
        let bytes_max = COMPACTION_BATCH_BYTES_MAX;
        let retained = retain_records(batch, bytes_max, horizon_ms, &mut self.scratch, &mut kept, decide)?;
        out.records_dropped += dropped;
        match retained {
            Retained::Whole => self.keep(&header, batch, out),
            Retained::Rewritten => self.change(&kept, out)?,
            Retained::Nothing if rules.is_last_of_producer(&header) => {
                let was_empty = header.record_count == 0;
                put_emptied(&header, &mut kept);
                match was_empty {
                    true => self.keep(&header, batch, out),
                    false => self.change(&kept, out)?,
                }
            }
            Retained::Nothing => self.drop_batch(&header, true, out),
        }
        Ok(())
    }

    /// The segment ends here.
    pub fn finish(&mut self, out: &mut Filtered) {
        let Some(run) = self.dropped.take() else { return };
        out.changed += u64::from(run.is_new || run.count > 1);
        let start = out.bytes.len();
        put_blank(run.base, run.end, run.epoch, &mut out.bytes);
        let bytes = out.bytes.len() - start;
        let blank = out.bytes.get(start..).unwrap_or_default();
        let header = BatchHeader::parse(blank).expect("it was just put");
        out.batches.push(Kept { header, bytes });
    }

    fn keep(&mut self, header: &BatchHeader, batch: &[u8], out: &mut Filtered) {
        self.finish(out);
        let bytes = header.total_bytes();
        out.bytes.extend_from_slice(batch.get(..bytes).unwrap_or_default());
        out.batches.push(Kept { header: *header, bytes });
    }

    fn change(&mut self, batch: &[u8], out: &mut Filtered) -> Result<(), RetainError> {
        let header = BatchHeader::parse(batch)?;
        self.keep(&header, batch, out);
        out.changed += 1;
        Ok(())
    }

    fn drop_batch(&mut self, header: &BatchHeader, is_new: bool, out: &mut Filtered) {
        let (base, end, epoch) = (header.base_offset, header.next_offset(), header.leader_epoch);
        match &mut self.dropped {
            Some(run) if run.epoch == epoch && run.end == base && end.0 - run.base.0 <= 1 << 31 => {
                run.end = end;
                run.count += 1;
                run.is_new |= is_new;
            }
            _ => {
                self.finish(out);
                self.dropped = Some(Run { base, end, epoch, count: 1, is_new });
            }
        }
    }
}

/// Filters some batches off the core: takes everything it needs and gives it back.
///
/// # Errors
/// As [`Filter::take`].
pub fn filter_batches(
    mut filter: Filter,
    rules: &Arc<Rules>,
    batches: &[Bytes],
) -> Result<(Filter, Filtered), RetainError> {
    let mut out = Filtered::default();
    for batch in batches {
        filter.take(rules, batch, &mut out)?;
    }
    Ok((filter, out))
}

#[cfg(test)]
mod tests;
