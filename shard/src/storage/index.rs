//! A segment's sparse index, in memory: from offset or time to a byte position near it. Pure; rebuilt by the scan at start.
//!
//! Entries grow thinner, not longer: at [`INDEX_ENTRIES_MAX`] every second one goes and the interval doubles, so an index
//! takes at most 64 KiB. The downside: a cold seek into a full 1 GiB segment walks up to 256 KiB of batches.

use ringlog_protocol::ids::Offset;

use crate::journal::format::Cursor;
use crate::limits::INDEX_ENTRIES_MAX;

/// The start of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexPoint {
    pub(crate) offset: Offset,
    pub(crate) position: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IndexEntry {
    /// Base offset of a batch, relative to the segment's.
    offset_delta: u32,
    /// Where that batch begins.
    position: u32,
    /// Largest timestamp of all batches before it, milliseconds; nondecreasing.
    max_timestamp_before: i64,
}

/// Invariant: offsets, positions and timestamps do not decrease from entry to entry; positions increase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SparseIndex {
    base: Offset,
    entries: Vec<IndexEntry>,
    interval_bytes: u32,
    max_timestamp: i64,
}

impl SparseIndex {
    pub(crate) fn new(base: Offset, interval_bytes: u32) -> SparseIndex {
        SparseIndex {
            base,
            entries: Vec::new(),
            interval_bytes: interval_bytes.max(1),
            max_timestamp: i64::MIN,
        }
    }

    /// Notes the batch that begins at `position`; batches come in order.
    pub(crate) fn note(&mut self, base_offset: Offset, position: u32, max_timestamp: i64) {
        let last = self.entries.last().map_or(0, |entry| entry.position);
        if position.saturating_sub(last) >= self.interval_bytes {
            if self.entries.len() >= INDEX_ENTRIES_MAX {
                self.thin();
            }
            let offset_delta =
                u32::try_from(base_offset.0 - self.base.0).expect("a segment rolls at 2^31 offsets");
            self.entries.push(IndexEntry {
                offset_delta,
                position,
                max_timestamp_before: self.max_timestamp,
            });
        }
        self.max_timestamp = self.max_timestamp.max(max_timestamp);
    }

    fn thin(&mut self) {
        let mut keep = false;
        self.entries.retain(|_| {
            keep = !keep;
            keep
        });
        self.interval_bytes = self.interval_bytes.saturating_mul(2);
    }

    fn point(&self, after: usize) -> IndexPoint {
        match after.checked_sub(1).and_then(|index| self.entries.get(index)) {
            Some(entry) => IndexPoint {
                offset: Offset(self.base.0 + i64::from(entry.offset_delta)),
                position: entry.position,
            },
            None => IndexPoint { offset: self.base, position: 0 },
        }
    }

    /// The last indexed batch that begins at or before `offset`; the segment's start when none does.
    pub(crate) fn at_or_before(&self, offset: Offset) -> IndexPoint {
        let delta = offset.0 - self.base.0;
        self.point(self.entries.partition_point(|entry| i64::from(entry.offset_delta) <= delta))
    }

    /// The last indexed batch that begins at or before both `offset` and `position`.
    pub(crate) fn at_or_before_both(&self, offset: Offset, position: u32) -> IndexPoint {
        let delta = offset.0 - self.base.0;
        self.point(
            self.entries.partition_point(|entry| {
                i64::from(entry.offset_delta) <= delta && entry.position <= position
            }),
        )
    }

    /// A batch before which every record is older than `timestamp`, as near to the first that is not as is known.
    pub(crate) fn before_time(&self, timestamp: i64) -> IndexPoint {
        self.point(self.entries.partition_point(|entry| entry.max_timestamp_before < timestamp))
    }

    /// Largest timestamp of the batches before the last indexed one at or before `offset`; `i64::MIN` when none is.
    pub(crate) fn max_timestamp_before(&self, offset: Offset) -> i64 {
        let delta = offset.0 - self.base.0;
        let after = self.entries.partition_point(|entry| i64::from(entry.offset_delta) <= delta);
        after
            .checked_sub(1)
            .and_then(|index| self.entries.get(index))
            .map_or(i64::MIN, |entry| entry.max_timestamp_before)
    }

    /// The last indexed batch that begins at or before both `offset` and `position`, and the largest timestamp of all
    /// batches before it; `i64::MIN` at the segment's start.
    pub(crate) fn known_before(&self, offset: Offset, position: u32) -> (IndexPoint, i64) {
        let delta = offset.0 - self.base.0;
        let after = self
            .entries
            .partition_point(|entry| i64::from(entry.offset_delta) <= delta && entry.position <= position);
        let last = after.checked_sub(1).and_then(|index| self.entries.get(index));
        (self.point(after), last.map_or(i64::MIN, |entry| entry.max_timestamp_before))
    }

    /// The segment ends at `position` from now on, with `max_timestamp` as the largest of what is left.
    pub(crate) fn cut(&mut self, position: u32, max_timestamp: i64) {
        self.entries.truncate(self.entries.partition_point(|entry| entry.position < position));
        self.max_timestamp = max_timestamp;
    }

    /// The same index with at most `entries_max` entries, which are as far apart as they then must be.
    pub(crate) fn thinned(&self, entries_max: usize) -> SparseIndex {
        let every = self.entries.len().div_ceil(entries_max.max(1)).max(1);
        let entries = self.entries.iter().skip(every - 1).step_by(every).copied().collect();
        SparseIndex { entries, ..*self }
    }

    /// Interval in bytes u32, largest timestamp i64, entries u32, each offset delta u32, position u32, largest timestamp
    /// before it i64. Little-endian, stable.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.interval_bytes.to_le_bytes());
        out.extend_from_slice(&self.max_timestamp.to_le_bytes());
        let count = u32::try_from(self.entries.len()).expect("bounded by INDEX_ENTRIES_MAX");
        out.extend_from_slice(&count.to_le_bytes());
        for entry in &self.entries {
            out.extend_from_slice(&entry.offset_delta.to_le_bytes());
            out.extend_from_slice(&entry.position.to_le_bytes());
            out.extend_from_slice(&entry.max_timestamp_before.to_le_bytes());
        }
    }

    /// Reads what [`SparseIndex::encode`] wrote; none unless the invariants hold.
    pub(crate) fn decode(base: Offset, cursor: &mut Cursor<'_>) -> Option<SparseIndex> {
        let (interval_bytes, max_timestamp, count) = (cursor.u32()?, cursor.i64()?, cursor.u32()?);
        if interval_bytes == 0 || count as usize > INDEX_ENTRIES_MAX {
            return None;
        }
        let mut entries: Vec<IndexEntry> = Vec::new();
        for _ in 0..count {
            let entry = IndexEntry {
                offset_delta: cursor.u32()?,
                position: cursor.u32()?,
                max_timestamp_before: cursor.i64()?,
            };
            let follows = entries.last().is_none_or(|last| {
                last.offset_delta <= entry.offset_delta
                    && last.position < entry.position
                    && last.max_timestamp_before <= entry.max_timestamp_before
            });
            let is_in_range = base.0.checked_add(i64::from(entry.offset_delta)).is_some();
            if !follows || !is_in_range || entry.max_timestamp_before > max_timestamp {
                return None;
            }
            entries.push(entry);
        }
        Some(SparseIndex { base, entries, interval_bytes, max_timestamp })
    }

    /// Position of the last entry.
    pub(crate) fn last_position(&self) -> u32 {
        self.entries.last().map_or(0, |entry| entry.position)
    }

    /// Memory of the entries in bytes.
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<IndexEntry>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    struct Batch {
        offset: i64,
        position: u32,
        timestamp: i64,
    }

    fn batches(sizes: &[(u32, i64, i64)]) -> Vec<Batch> {
        let (mut offset, mut position) = (100, 0);
        let mut batches = Vec::new();
        for (bytes, records, timestamp) in sizes {
            batches.push(Batch { offset, position, timestamp: *timestamp });
            offset += records;
            position += bytes;
        }
        batches
    }

    fn indexed(batches: &[Batch], interval: u32) -> SparseIndex {
        let mut index = SparseIndex::new(Offset(100), interval);
        for batch in batches {
            index.note(Offset(batch.offset), batch.position, batch.timestamp);
        }
        index
    }

    proptest! {
        #[test]
        fn points_are_batches_at_or_before_what_is_sought(
            sizes in proptest::collection::vec((61_u32..3000, 1_i64..50, 0_i64..1000), 1..300),
            interval in 1_u32..8192, pick: proptest::sample::Index, sought in 0_i64..1000
        ) {
            let batches = batches(&sizes);
            let index = indexed(&batches, interval);
            let wanted = batches[pick.index(batches.len())];
            let point = index.at_or_before(Offset(wanted.offset));
            let found = batches.iter().find(|batch| batch.position == point.position).expect("a point is a batch");
            prop_assert_eq!(found.offset, point.offset.0);
            prop_assert!(point.offset.0 <= wanted.offset);
            prop_assert!(wanted.position - point.position < interval + 3000);
            let both = index.at_or_before_both(Offset(wanted.offset), wanted.position / 2);
            prop_assert!(both.position <= wanted.position / 2 && both.offset.0 <= wanted.offset);
            let mut encoded = Vec::new();
            index.encode(&mut encoded);
            for end in 0..encoded.len() {
                prop_assert_eq!(SparseIndex::decode(Offset(100), &mut Cursor::new(&encoded[..end])), None);
            }
            prop_assert_eq!(SparseIndex::decode(Offset(100), &mut Cursor::new(&encoded)), Some(index.clone()));
            let mut cut = index.clone();
            let before: Vec<Batch> = batches.iter().copied().filter(|batch| batch.position < wanted.position).collect();
            let newest = before.iter().map(|batch| batch.timestamp).max().unwrap_or(i64::MIN);
            let (known, newest_known) = index.known_before(Offset(wanted.offset), wanted.position);
            prop_assert!(known.position <= wanted.position && newest_known <= newest);
            cut.cut(wanted.position, newest);
            prop_assert_eq!(cut, indexed(&before, interval));
            let thinned = index.thinned(7);
            prop_assert!(thinned.entries.len() <= 7 && thinned.entries.iter().all(|entry| index.entries.contains(entry)));
            let from = index.before_time(sought);
            prop_assert!(batches.iter().filter(|batch| batch.position < from.position).all(|batch| batch.timestamp < sought));
        }
    }

    #[test]
    fn a_long_segment_thins_instead_of_growing() {
        let sizes = vec![(4096, 1, 5); INDEX_ENTRIES_MAX * 5];
        let batches = batches(&sizes);
        let index = indexed(&batches, 4096);
        assert!(index.allocated_bytes() <= INDEX_ENTRIES_MAX * size_of::<IndexEntry>());
        let last = batches.last().expect("not empty");
        assert!(last.position - index.at_or_before(Offset(last.offset)).position <= 8 * 4096 + 4096);
    }
}
