//! Was every record delivered once, in order and unaltered?
//!
//! Pure bookkeeping over (partition, offset, record). Memory is bounded by the gaps that are open at one time,
//! not by the number of records: a stream that arrives in order costs a few words.

use std::collections::BTreeMap;

use crate::record::{RecordFault, RecordStamp};

/// A partition number as the broker names it.
pub type Partition = i32;
/// A producer's number in the run.
pub type Producer = u32;

/// More open gaps than this in one stream are merged into one range; the run has failed long before.
const OPEN_GAPS_MAX: usize = 65_536;

/// What was sent on one (producer, partition) stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentStream {
    /// Sequences `0..sent` were handed to the broker.
    pub sent: u64,
    /// Of these, ranges `[start, end)` whose outcome is unknown: the send failed, so the records may be there
    /// or not (reliability.md calls it "info"). Missing ones are not losses.
    pub unknown: Vec<(u64, u64)>,
}

/// What was sent, by (partition, producer).
pub type Sent = BTreeMap<(Partition, Producer), SentStream>;

/// The figures of a verified run. Serialized into the report.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Verification {
    /// Records sent and not known to have failed.
    pub expected: u64,
    /// Distinct records received, checksums good.
    pub received: u64,
    /// Acknowledged (or, with acks=0, sent) and never read although the reader passed the end.
    pub lost: u64,
    /// Read at more than one offset.
    pub duplicated: u64,
    /// Read behind a record that its producer sent later to the same partition.
    pub reordered: u64,
    /// Ours by their key, with a checksum that does not match, or with a sequence never sent.
    pub corrupt: u64,
    /// Not above the offset before it in its partition.
    pub offset_regressions: u64,
    /// Of another run or program; reported, not a failure.
    pub foreign: u64,
}

impl Verification {
    /// Whether nothing was lost, repeated, moved or altered.
    pub fn is_clean(&self) -> bool {
        self.lost == 0
            && self.duplicated == 0
            && self.reordered == 0
            && self.corrupt == 0
            && self.offset_regressions == 0
    }

    /// Adds the figures of another reader of other partitions, or of another full pass.
    pub fn add(&mut self, other: &Verification) {
        self.expected += other.expected;
        self.received += other.received;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.corrupt += other.corrupt;
        self.offset_regressions += other.offset_regressions;
        self.foreign += other.foreign;
    }
}

/// How one record fits what was read before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arrival {
    InOrder,
    Late,
    Duplicate,
}

/// The records of one (producer, partition) stream that were read.
#[derive(Clone, Debug, Default)]
struct StreamReader {
    /// Everything below was read, except the gaps.
    next: u64,
    /// Missing ranges `start -> end`, all below `next`, disjoint and not adjacent.
    gaps: BTreeMap<u64, u64>,
}

impl StreamReader {
    fn observe(&mut self, sequence: u64) -> Arrival {
        if sequence == self.next {
            self.next = self.next.saturating_add(1);
            return Arrival::InOrder;
        }
        if sequence > self.next {
            self.open_gap(self.next, sequence);
            self.next = sequence.saturating_add(1);
            return Arrival::InOrder;
        }
        let Some((&start, &end)) = self.gaps.range(..=sequence).next_back() else {
            return Arrival::Duplicate;
        };
        if sequence >= end {
            return Arrival::Duplicate;
        }
        self.gaps.remove(&start);
        if start < sequence {
            self.gaps.insert(start, sequence);
        }
        if sequence + 1 < end {
            self.gaps.insert(sequence + 1, end);
        }
        Arrival::Late
    }

    fn open_gap(&mut self, start: u64, end: u64) {
        if self.gaps.len() >= OPEN_GAPS_MAX
            && let Some(mut last) = self.gaps.last_entry()
        {
            *last.get_mut() = end;
            return;
        }
        self.gaps.insert(start, end);
    }

    /// Missing ranges below `sent`, in order.
    fn missing(&self, sent: u64) -> impl Iterator<Item = (u64, u64)> {
        let tail = (self.next < sent).then_some((self.next, sent));
        let below = self.gaps.iter().map(move |(&start, &end)| (start, end.min(sent)));
        below.filter(|(start, end)| start < end).chain(tail)
    }
}

/// Checks what a reader sees, record by record.
#[derive(Clone, Debug, Default)]
pub struct Verifier {
    streams: BTreeMap<(Partition, Producer), StreamReader>,
    last_offset: BTreeMap<Partition, i64>,
    counts: Verification,
}

impl Verifier {
    /// A verifier that has seen nothing.
    pub fn new() -> Verifier {
        Verifier::default()
    }

    /// Takes one record in the order in which it was read. True if it is a distinct good record of this run.
    pub fn observe(
        &mut self,
        partition: Partition,
        offset: i64,
        record: Result<RecordStamp, RecordFault>,
    ) -> bool {
        let last = self.last_offset.entry(partition).or_insert(-1);
        if offset <= *last {
            self.counts.offset_regressions += 1;
        }
        *last = offset.max(*last);
        let stamp = match record {
            Ok(stamp) => stamp,
            Err(RecordFault::Foreign) => {
                self.counts.foreign += 1;
                return false;
            }
            Err(RecordFault::Corrupt) => {
                self.counts.corrupt += 1;
                return false;
            }
        };
        match self.streams.entry((partition, stamp.producer)).or_default().observe(stamp.sequence) {
            Arrival::InOrder => {}
            Arrival::Late => self.counts.reordered += 1,
            Arrival::Duplicate => {
                self.counts.duplicated += 1;
                return false;
            }
        }
        self.counts.received += 1;
        true
    }

    /// Distinct good records read so far.
    pub fn received(&self) -> u64 {
        self.counts.received
    }

    /// Compares with what was sent, for a reader that was stopped before the end: nothing is missing behind the last
    /// record read of each stream.
    pub fn finish_partial(self, sent: &Sent) -> Verification {
        let reached = |key: &(Partition, Producer)| self.streams.get(key).map_or(0, |reader| reader.next);
        let clipped = sent
            .iter()
            .map(|(key, stream)| {
                let stream =
                    SentStream { sent: stream.sent.min(reached(key)), unknown: stream.unknown.clone() };
                (*key, stream)
            })
            .collect();
        self.finish(&clipped)
    }

    /// Compares with what was sent.
    pub fn finish(self, sent: &Sent) -> Verification {
        let mut counts = self.counts;
        for (key, stream) in sent {
            let unknown = normalized(&stream.unknown, stream.sent);
            counts.expected += stream.sent - total(&unknown);
            let empty = StreamReader::default();
            let reader = self.streams.get(key).unwrap_or(&empty);
            for (start, end) in reader.missing(stream.sent) {
                counts.lost += (end - start) - overlap(&unknown, start, end);
            }
        }
        for (key, reader) in &self.streams {
            let sent_here = sent.get(key).map_or(0, |stream| stream.sent);
            // Sequences nobody sent cannot be records of ours, however good their checksum.
            if reader.next > sent_here {
                let above = reader.next - sent_here;
                let holes: u64 =
                    reader.gaps.iter().map(|(start, end)| end.saturating_sub((*start).max(sent_here))).sum();
                let invented = above - holes.min(above);
                counts.corrupt += invented;
                counts.received -= invented.min(counts.received);
            }
        }
        counts
    }
}

fn normalized(ranges: &[(u64, u64)], sent: u64) -> Vec<(u64, u64)> {
    let mut sorted: Vec<(u64, u64)> = ranges
        .iter()
        .map(|(start, end)| (*start, (*end).min(sent)))
        .filter(|(start, end)| start < end)
        .collect();
    sorted.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in sorted {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

fn total(ranges: &[(u64, u64)]) -> u64 {
    ranges.iter().map(|(start, end)| end - start).sum()
}

fn overlap(ranges: &[(u64, u64)], start: u64, end: u64) -> u64 {
    ranges.iter().map(|(from, to)| (*to).min(end).saturating_sub((*from).max(start))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(producer: u32, sequence: u64) -> Result<RecordStamp, RecordFault> {
        Ok(RecordStamp { run: 1, producer, sequence, intended: 0 })
    }

    fn sent(count: u64, unknown: &[(u64, u64)]) -> Sent {
        Sent::from([((0, 1), SentStream { sent: count, unknown: unknown.to_vec() })])
    }

    /// Reads `sequences` at offsets 0, 1, 2... of one partition and compares with `count` sent.
    fn check(sequences: &[u64], count: u64, unknown: &[(u64, u64)], expected: Verification) {
        let mut verifier = Verifier::new();
        for (offset, sequence) in sequences.iter().enumerate() {
            verifier.observe(0, offset as i64, stamp(1, *sequence));
        }
        assert_eq!(verifier.finish(&sent(count, unknown)), expected, "{sequences:?}");
    }

    #[test]
    fn a_complete_stream_is_clean() {
        check(&[0, 1, 2, 3], 4, &[], Verification { expected: 4, received: 4, ..Verification::default() });
    }

    #[test]
    fn planted_losses_are_counted_wherever_they_are() {
        check(
            &[1, 2, 3],
            4,
            &[],
            Verification { expected: 4, received: 3, lost: 1, ..Verification::default() },
        );
        check(&[0, 3], 4, &[], Verification { expected: 4, received: 2, lost: 2, ..Verification::default() });
        check(&[0, 1], 4, &[], Verification { expected: 4, received: 2, lost: 2, ..Verification::default() });
        check(&[], 4, &[], Verification { expected: 4, lost: 4, ..Verification::default() });
    }

    #[test]
    fn planted_duplicates_are_counted() {
        check(
            &[0, 1, 1, 2],
            3,
            &[],
            Verification { expected: 3, received: 3, duplicated: 1, ..Verification::default() },
        );
        check(
            &[0, 1, 2, 0, 1, 2],
            3,
            &[],
            Verification { expected: 3, received: 3, duplicated: 3, ..Verification::default() },
        );
    }

    #[test]
    fn planted_reorderings_are_counted_and_are_not_losses() {
        check(
            &[0, 2, 1, 3],
            4,
            &[],
            Verification { expected: 4, received: 4, reordered: 1, ..Verification::default() },
        );
        check(
            &[3, 2, 1, 0],
            4,
            &[],
            Verification { expected: 4, received: 4, reordered: 3, ..Verification::default() },
        );
        // A late record that comes twice is one reordering and one duplicate.
        let expected =
            Verification { expected: 3, received: 3, reordered: 1, duplicated: 1, ..Verification::default() };
        check(&[0, 2, 1, 1], 3, &[], expected);
    }

    #[test]
    fn a_failed_send_may_be_there_or_not() {
        check(&[0, 3], 4, &[(1, 3)], Verification { expected: 2, received: 2, ..Verification::default() });
        check(
            &[0, 1, 2, 3],
            4,
            &[(1, 3)],
            Verification { expected: 2, received: 4, ..Verification::default() },
        );
        // The loss beside the failed send is still a loss.
        check(
            &[0],
            4,
            &[(1, 3), (2, 3)],
            Verification { expected: 2, received: 1, lost: 1, ..Verification::default() },
        );
    }

    #[test]
    fn a_reader_stopped_early_misses_nothing_behind_its_last_record() {
        let partial = |sequences: &[u64]| {
            let mut verifier = Verifier::new();
            for (offset, sequence) in sequences.iter().enumerate() {
                verifier.observe(0, offset as i64, stamp(1, *sequence));
            }
            verifier.finish_partial(&sent(10, &[]))
        };
        assert_eq!(partial(&[0, 1, 2]), Verification { expected: 3, received: 3, ..Verification::default() });
        // A hole in the middle is still a loss.
        assert_eq!(
            partial(&[0, 3]),
            Verification { expected: 4, received: 2, lost: 2, ..Verification::default() }
        );
        assert_eq!(partial(&[0, 12]).corrupt, 1);
    }

    #[test]
    fn records_nobody_sent_are_corrupt() {
        check(
            &[0, 1, 2, 9],
            3,
            &[],
            Verification { expected: 3, received: 3, corrupt: 1, ..Verification::default() },
        );
    }

    #[test]
    fn corrupt_and_foreign_records_are_told_apart() {
        let mut verifier = Verifier::new();
        verifier.observe(0, 0, Err(RecordFault::Foreign));
        verifier.observe(0, 1, stamp(1, 0));
        verifier.observe(0, 2, Err(RecordFault::Corrupt));
        let result = verifier.finish(&sent(2, &[]));
        // The altered record is missing as well: its bytes are gone.
        assert_eq!(
            result,
            Verification {
                expected: 2,
                received: 1,
                lost: 1,
                corrupt: 1,
                foreign: 1,
                ..Verification::default()
            }
        );
        assert!(!result.is_clean());
    }

    #[test]
    fn streams_of_two_producers_do_not_disturb_each_other() {
        let mut verifier = Verifier::new();
        for (offset, (producer, sequence)) in [(1, 0), (2, 0), (2, 1), (1, 1)].into_iter().enumerate() {
            assert!(verifier.observe(0, offset as i64, stamp(producer, sequence)));
        }
        let stream = SentStream { sent: 2, unknown: Vec::new() };
        let result = verifier.finish(&Sent::from([((0, 1), stream.clone()), ((0, 2), stream)]));
        assert_eq!(result, Verification { expected: 4, received: 4, ..Verification::default() });
        assert!(result.is_clean());
    }

    #[test]
    fn offsets_that_stand_still_or_fall_are_counted() {
        let mut verifier = Verifier::new();
        for (offset, sequence) in [(5, 0), (5, 1), (4, 2), (6, 3)] {
            verifier.observe(0, offset, stamp(1, sequence));
        }
        let result = verifier.finish(&sent(4, &[]));
        assert_eq!(result.offset_regressions, 2);
        assert!(!result.is_clean());
    }

    #[test]
    fn each_kind_of_damage_alone_fails_a_run() {
        let clean = Verification { expected: 1, received: 1, ..Verification::default() };
        assert!(clean.is_clean());
        for damaged in [
            Verification { lost: 1, ..clean.clone() },
            Verification { duplicated: 1, ..clean.clone() },
            Verification { reordered: 1, ..clean.clone() },
            Verification { corrupt: 1, ..clean.clone() },
            Verification { offset_regressions: 1, ..clean.clone() },
        ] {
            assert!(!damaged.is_clean(), "{damaged:?}");
        }
        assert!(Verification { foreign: 9, ..clean }.is_clean());
    }
}
