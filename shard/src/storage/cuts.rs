//! Truncations of one log, and its new beginnings, between the moment they are decided and the moment its files are cut or
//! gone. Bookkeeping; touches no file.
//!
//! Owns what must wait for them: batches appended after one are not written to segments before its files are cut, and no
//! synced-to entry covers it before that.

use std::collections::VecDeque;
use std::sync::Arc;

use ringlog_protocol::ids::Offset;

use super::log::{Log, TailBatch};
use super::segment::SegmentHandle;
use crate::journal::entry::EntryBody;

/// A truncation whose files are not cut yet, or a new beginning before which the old files are not gone yet.
#[derive(Debug)]
pub(crate) struct Cut {
    /// Of its journal entry.
    pub(crate) sequence: u64,
    /// Where the log then ends.
    pub(crate) end: Offset,
    /// Nothing of before is left, although the log ends further up than it did.
    pub(crate) is_beginning: bool,
    pub(crate) segment_base: Offset,
    pub(crate) position: u32,
    pub(crate) is_durable: bool,
    /// The segment that is cut; none if nothing is left. As it was then: another may bear its name by now.
    pub(crate) last: Option<Arc<SegmentHandle>>,
    /// Segments above: their files go.
    pub(crate) removed: Vec<Arc<SegmentHandle>>,
}

impl Cut {
    /// Its journal entry.
    pub(crate) fn body(&self) -> EntryBody<'static> {
        let Cut { end, segment_base, position, .. } = *self;
        if self.is_beginning {
            EntryBody::Begin { start: end }
        } else {
            EntryBody::Truncate { end_offset: end, segment_base, position }
        }
    }

    /// Records of earlier entries that end above this are cut off.
    fn kept_end(&self) -> Offset {
        if self.is_beginning { Offset(0) } else { self.end }
    }
}

/// One log's truncations, oldest first.
///
/// Invariant: sequences ascend; one that is durable comes before all that are not.
#[derive(Debug, Default)]
pub(crate) struct Cuts {
    pending: VecDeque<Cut>,
}

impl Cuts {
    pub(crate) fn push(&mut self, cut: Cut) {
        self.pending.push_back(cut);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The first one that the journal holds.
    pub(crate) fn first_durable(&self) -> Option<&Cut> {
        self.pending.front().filter(|cut| cut.is_durable)
    }

    /// The files are as the first one wants them.
    pub(crate) fn pop(&mut self, sequence: u64) {
        self.pending.pop_front_if(|cut| cut.sequence == sequence);
    }

    /// The journal holds the entry of this sequence, and so all before it.
    pub(crate) fn note_durable(&mut self, sequence: u64) {
        for cut in self.pending.iter_mut().take_while(|cut| cut.sequence <= sequence) {
            cut.is_durable = true;
        }
    }

    /// Sequence of the oldest one: entries up to the one before need no cut.
    pub(crate) fn first_sequence(&self) -> Option<u64> {
        self.pending.front().map(|cut| cut.sequence)
    }

    /// The end of records that entry `sequence` brought, without what was cut off since.
    fn end_left(&self, sequence: u64, end: Offset) -> Offset {
        let later = self.pending.iter().filter(|cut| cut.sequence > sequence);
        later.map(Cut::kept_end).fold(end, Offset::min)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Cut> {
        self.pending.iter()
    }
}

impl Log {
    /// The journal holds the data of entry `sequence`, which ends at `end`. Returns that end, none if those records were cut
    /// off meanwhile.
    pub(crate) fn note_data_durable(&mut self, sequence: u64, end: Offset) -> Option<Offset> {
        let left = self.cuts.end_left(sequence, end);
        self.note_durable(left);
        (left == end).then_some(end)
    }

    /// Whether the batch may be written to its segment: the files are cut as far as it presupposes.
    pub(crate) fn may_write(&self, batch: &TailBatch) -> bool {
        self.cuts.first_sequence().is_none_or(|first| batch.sequence < first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(sequence: u64, end: i64) -> Cut {
        Cut {
            sequence,
            end: Offset(end),
            is_beginning: false,
            segment_base: Offset(0),
            position: 0,
            is_durable: false,
            last: None,
            removed: Vec::new(),
        }
    }

    #[test]
    fn data_that_was_cut_off_before_it_was_durable_is_never_said_to_be() {
        let mut cuts = Cuts::default();
        cuts.push(cut(7, 100));
        cuts.push(cut(9, 50));
        assert_eq!(cuts.end_left(6, Offset(120)), Offset(50));
        assert_eq!(cuts.end_left(6, Offset(40)), Offset(40));
        assert_eq!(cuts.end_left(8, Offset(110)), Offset(50));
        assert_eq!(cuts.end_left(10, Offset(70)), Offset(70), "appended after both");
    }

    #[test]
    fn a_new_beginning_cuts_off_all_records_of_before_although_they_end_below_it() {
        let mut cuts = Cuts::default();
        cuts.push(Cut { is_beginning: true, ..cut(7, 100) });
        assert_eq!(cuts.end_left(6, Offset(90)), Offset(0));
        assert_eq!(cuts.end_left(8, Offset(110)), Offset(110));
    }

    #[test]
    fn cuts_are_made_in_order_and_only_once_durable() {
        let mut cuts = Cuts::default();
        cuts.push(cut(7, 100));
        cuts.push(cut(9, 50));
        assert!(cuts.first_durable().is_none());
        cuts.note_durable(8);
        assert_eq!(cuts.first_durable().map(|cut| cut.sequence), Some(7));
        cuts.pop(9);
        assert_eq!(cuts.first_sequence(), Some(7), "only the first one goes");
        cuts.pop(7);
        assert!(cuts.first_durable().is_none());
        cuts.note_durable(9);
        assert_eq!(cuts.first_durable().map(|cut| cut.sequence), Some(9));
    }
}
