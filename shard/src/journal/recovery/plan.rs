//! The recovery plan of one partition: a pure function of its journal entries and its files.
//!
//! Rules: entries count in order of their sequence, repeats are ignored. A segment is never shortened except by a truncate
//! or begin entry; an invalid suffix above the last entry is for the scan to cut. Bytes without an entry stay. Where acknowledged
//! bytes are missing the plan stops before the hole, says so and cuts nothing.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use ringlog_protocol::ids::Offset;

use crate::journal::entry::{OffsetRange, Reference, SyncedTo};
use crate::journal::reader::{FoundBody, FoundEntry, UNKNOWN_EPOCH};
use crate::storage::recovered::{CoveredEnd, SegmentInfo};

/// No record lies below it.
const FIRST_OFFSET: Offset = Offset(0);

/// What is to be done for one partition, in this order: remove, then each segment, then sync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PartitionPlan {
    /// The folder goes first: a delete entry stands.
    pub remove_folder: bool,
    /// Nothing follows the delete: the partition is gone.
    pub is_gone: bool,
    /// By base offset.
    pub segments: BTreeMap<Offset, SegmentPlan>,
    pub log_start: Offset,
    pub log_start_sequence: Option<u64>,
    /// The newest, with its sequence.
    pub hard_state: Option<(u64, Bytes)>,
    pub next_sequence: u64,
    /// End of what was acknowledged, as far as entries tell, without the last run of references. Of a damaged partition it
    /// may lie behind the damage.
    pub covered: Option<CoveredEnd>,
    /// The last run of references if nothing that waited for it follows: each holds if its bytes and those before it check,
    /// the rest is a tail.
    pub last_references: Vec<Reference>,
    /// What could not be planned. The rest is as good as it can be.
    pub damage: Option<PlannedDamage>,
}

/// What is to be done for one segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentPlan {
    /// Positions ascend, none overlap.
    pub writes: Vec<PlannedWrite>,
    /// A truncate or begin entry stands: the file ends here after the writes.
    pub exact_length: Option<u32>,
    /// Where that entry cuts the file: what it holds behind is not of this log.
    pub cut: Option<u32>,
    /// The file goes: it lay above a truncation, or the log began anew.
    pub remove: bool,
    /// Bytes that must check, being in no other place.
    pub references: Vec<Reference>,
}

/// Bytes and where they belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedWrite {
    pub position: u32,
    pub bytes: Bytes,
}

/// A hole in what was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedDamage {
    pub segment_base: Offset,
    pub position: u32,
    pub detail: String,
}

/// Plans one partition. `frames_are_missing` says that some journal frame was lost, so that a gap in the sequence is a loss
/// and not what recycling left.
#[must_use]
pub fn plan_partition(
    entries: Vec<FoundEntry>,
    files: &[SegmentInfo],
    frames_are_missing: bool,
) -> PartitionPlan {
    plan_compacted(entries, files, frames_are_missing, 0)
}

/// [`plan_partition`] of a log that was compacted when the segments held all entries up to the sequence `compacted_through`: none of
/// those is replayed, even where the synced-to entry that says so was lost with its frame. Their bytes may lie elsewhere by now.
#[must_use]
pub fn plan_compacted(
    mut entries: Vec<FoundEntry>,
    files: &[SegmentInfo],
    frames_are_missing: bool,
    compacted_through: u64,
) -> PartitionPlan {
    entries.sort_by_key(|entry| (entry.sequence, entry.carried));
    entries.dedup_by_key(|entry| entry.sequence);
    let last_sequence = entries.last().map_or(0, |entry| entry.sequence);
    let deletes = entries.iter().filter(|entry| entry.body == FoundBody::Delete);
    let deleted_at = deletes.map(|entry| entry.sequence).max().unwrap_or(0);
    entries.retain(|entry| entry.sequence > deleted_at);
    let mut plan = PartitionPlan {
        remove_folder: deleted_at > 0,
        is_gone: deleted_at > 0 && entries.is_empty(),
        next_sequence: last_sequence + 1,
        ..PartitionPlan::default()
    };
    let files = if plan.remove_folder { &[] } else { files };
    let synced = newest_state(&mut plan, &entries);
    let through = synced.map_or(deleted_at, |synced| synced.through);
    let through = if plan.remove_folder { through } else { through.max(compacted_through) };
    let tail = last_run(&entries, through);
    let superseded = superseded(&entries);
    let mut replay = Replay::new(plan, synced, files, tail);
    let mut expected = through + 1;
    for entry in entries.into_iter().filter(|entry| entry.sequence > through) {
        if frames_are_missing && entry.sequence != expected {
            replay.damage(format!(
                "entries {expected} to {} are lost with their journal frame",
                entry.sequence - 1
            ));
        }
        expected = entry.sequence + 1;
        if !superseded.contains(&entry.sequence) {
            replay.apply(entry);
        }
    }
    replay.finish(files)
}

/// Sequences of what a later truncation cut off again, truncations further up among it, and of all that came before the log
/// began anew. Such entries count for nothing: some
/// of them may have gone with a journal file that was used again, for nobody copies what is cut off, and bytes that only
/// a reference names may be overwritten.
fn superseded(entries: &[FoundEntry]) -> BTreeSet<u64> {
    let mut superseded = BTreeSet::new();
    let mut cut_to: Option<Offset> = None;
    for entry in entries.iter().rev() {
        let (begins, cuts_to) = match &entry.body {
            FoundBody::Data { range, .. } => (range.base, None),
            FoundBody::Reference(reference) => (reference.range.base, None),
            // Only a later one supersedes it: a truncation to its start leaves the records before it gone.
            body if beginning(body).is_some() => (FIRST_OFFSET, Some(FIRST_OFFSET)),
            FoundBody::Truncate { end_offset, .. } => (*end_offset, Some(*end_offset)),
            _ => continue,
        };
        if cut_to.is_some_and(|cut_to| begins >= cut_to) {
            superseded.insert(entry.sequence);
        } else {
            cut_to = cuts_to.or(cut_to);
        }
    }
    superseded
}

/// Where the log goes on if nothing of before is left: it begins anew, or was cut within its first batch, which may begin below.
fn beginning(body: &FoundBody) -> Option<Offset> {
    match body {
        FoundBody::Begin { start } => Some(*start),
        FoundBody::Truncate { end_offset, segment_base, position: 0 } if end_offset == segment_base => {
            Some(*end_offset)
        }
        _ => None,
    }
}

/// Sequences of the last run of references, if nothing follows that was journalled only after it. Synced-to entries and
/// copies wait for nobody, so they prove nothing.
fn last_run(entries: &[FoundEntry], through: u64) -> BTreeSet<u64> {
    let mut run = BTreeSet::new();
    for entry in entries.iter().rev().take_while(|entry| entry.sequence > through) {
        match &entry.body {
            FoundBody::Reference(reference) => {
                run.insert(entry.sequence);
                if !reference.goes_on {
                    break;
                }
            }
            FoundBody::SyncedTo(_) => {}
            _ if entry.carried => {}
            _ => break,
        }
    }
    run
}

/// Takes what only the newest entry of its kind says.
fn newest_state(plan: &mut PartitionPlan, entries: &[FoundEntry]) -> Option<SyncedTo> {
    let mut newest = None;
    for entry in entries {
        match &entry.body {
            FoundBody::HardState { state } => plan.hard_state = Some((entry.sequence, state.clone())),
            FoundBody::LogStart { offset } | FoundBody::Begin { start: offset } => {
                ringlog_io::reached!("recovery.log_start");
                plan.log_start = plan.log_start.max(*offset);
                plan.log_start_sequence = Some(entry.sequence);
            }
            FoundBody::SyncedTo(synced) => newest = Some(*synced),
            _ => {}
        }
    }
    newest
}

/// The entries' effect so far.
struct Replay {
    plan: PartitionPlan,
    end: Option<CoveredEnd>,
    /// Up to here a file must reach without any write.
    floor: Option<CoveredEnd>,
    /// Bases of the files, for those that a truncation removes.
    bases: Vec<Offset>,
    /// Where the last truncation cut each segment that it reached.
    cuts: BTreeMap<Offset, u32>,
    /// Sequences of the last run of references, which may be a tail.
    tail: BTreeSet<u64>,
    /// Where the log ended before that run.
    end_before_tail: Option<Option<CoveredEnd>>,
    /// Up to here entries behind the damage show that the log was acknowledged.
    end_behind_damage: Option<CoveredEnd>,
}

impl Replay {
    fn new(
        plan: PartitionPlan,
        synced: Option<SyncedTo>,
        files: &[SegmentInfo],
        tail: BTreeSet<u64>,
    ) -> Replay {
        let end = synced.map(|synced| CoveredEnd {
            offset: synced.offset,
            epoch: synced.epoch,
            segment_base: synced.segment_base,
            position: synced.position,
        });
        let bases = files.iter().map(|file| file.base).collect();
        Replay {
            plan,
            end,
            floor: end,
            bases,
            cuts: BTreeMap::new(),
            tail,
            end_before_tail: None,
            end_behind_damage: None,
        }
    }

    fn damage(&mut self, detail: String) {
        if self.plan.damage.is_none() {
            let (segment_base, position) =
                self.end.map_or((Offset(0), 0), |end| (end.segment_base, end.position));
            self.plan.damage = Some(PlannedDamage { segment_base, position, detail });
        }
    }

    fn apply(&mut self, entry: FoundEntry) {
        let end = self.end_of(&entry);
        if self.plan.damage.is_none() {
            self.replay(entry);
        }
        if self.plan.damage.is_some() {
            let furthest = self.end_behind_damage.into_iter().chain(end);
            self.end_behind_damage = furthest.max_by_key(|end| end.offset);
        }
    }

    /// Where the log ends by this entry, unless it may be a tail.
    fn end_of(&self, entry: &FoundEntry) -> Option<CoveredEnd> {
        let (segment_base, position, length, range) = match &entry.body {
            FoundBody::Data { segment_base, position, range, bytes } => {
                (*segment_base, *position, u32::try_from(bytes.len()).unwrap_or(u32::MAX), *range)
            }
            FoundBody::Reference(reference) if !self.tail.contains(&entry.sequence) => {
                (reference.segment_base, reference.position, reference.length, reference.range)
            }
            _ => return None,
        };
        let OffsetRange { end: offset, epoch, .. } = range;
        Some(CoveredEnd { offset, epoch, segment_base, position: position.saturating_add(length) })
    }

    fn replay(&mut self, entry: FoundEntry) {
        if let Some(start) = beginning(&entry.body) {
            return self.begin(start);
        }
        match entry.body {
            FoundBody::Data { segment_base, position, range, bytes } => {
                let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                if self.extend(segment_base, position, length, range) {
                    self.segment(segment_base).writes.push(PlannedWrite { position, bytes });
                }
            }
            FoundBody::Reference(reference) => {
                let before = self.end;
                let Reference { segment_base, position, length, range, .. } = reference;
                if !self.extend(segment_base, position, length, range) {
                    return;
                }
                if self.tail.contains(&entry.sequence) {
                    self.end_before_tail.get_or_insert(before);
                    self.plan.last_references.push(reference);
                } else {
                    self.segment(segment_base).references.push(reference);
                }
            }
            FoundBody::Truncate { end_offset, segment_base, position } => {
                self.truncate(end_offset, segment_base, position)
            }
            FoundBody::Begin { .. }
            | FoundBody::LogStart { .. }
            | FoundBody::Delete
            | FoundBody::HardState { .. }
            | FoundBody::SyncedTo(_) => {}
        }
    }

    fn segment(&mut self, base: Offset) -> &mut SegmentPlan {
        let segment = self.plan.segments.entry(base).or_default();
        segment.remove = false;
        segment
    }

    /// Moves the end over bytes that must begin where it is; false, and damage, if they do not.
    fn extend(&mut self, segment_base: Offset, position: u32, length: u32, range: OffsetRange) -> bool {
        if let Some(end) = self.end {
            let goes_on = segment_base == end.segment_base && position == end.position;
            let begins_segment = segment_base == range.base && position == 0;
            let follows = range.base == end.offset && (goes_on || begins_segment);
            // The first batch of an emptied log holds its start.
            let is_emptied = end.position == 0 && end.segment_base == end.offset;
            let holds_start = begins_segment
                && is_emptied
                && range.base < self.plan.log_start
                && range.base < end.offset
                && end.offset < range.end;
            if !(follows || holds_start) {
                self.damage(format!(
                    "the journal goes on with offset {} at position {position} of segment {segment_base}, \
                     the log ends at offset {} at position {} of segment {}",
                    range.base, end.offset, end.position, end.segment_base
                ));
                return false;
            }
            if holds_start {
                // Named by the start, were there one; the batch takes its place.
                let removed = SegmentPlan { remove: true, ..SegmentPlan::default() };
                self.plan.segments.insert(end.offset, removed);
            }
        }
        let Some(new_position) = position.checked_add(length) else {
            self.damage(format!("{length} bytes at position {position} go beyond 4 GiB"));
            return false;
        };
        let OffsetRange { end: offset, epoch, .. } = range;
        self.end = Some(CoveredEnd { offset, epoch, segment_base, position: new_position });
        true
    }

    fn truncate(&mut self, end_offset: Offset, segment_base: Offset, cut: u32) {
        let is_above = |base: &Offset| *base > segment_base;
        let planned: Vec<Offset> = self.plan.segments.keys().copied().filter(is_above).collect();
        for base in self.bases.iter().copied().filter(is_above).chain(planned) {
            let removed = SegmentPlan { remove: true, ..SegmentPlan::default() };
            self.plan.segments.insert(base, removed);
            self.cuts.insert(base, 0);
        }
        let segment = self.segment(segment_base);
        segment.references.retain(|reference| reference.position.saturating_add(reference.length) <= cut);
        segment.writes.retain(|write| write.position < cut);
        if let Some(last) = segment.writes.last_mut() {
            let kept = usize::try_from(cut - last.position).unwrap_or(usize::MAX).min(last.bytes.len());
            last.bytes.truncate(kept);
        }
        self.cuts.insert(segment_base, cut);
        let floor_is_above = |floor: CoveredEnd| floor.offset > end_offset;
        let cut_end = CoveredEnd { offset: end_offset, epoch: UNKNOWN_EPOCH, segment_base, position: cut };
        if self.floor.is_some_and(floor_is_above) {
            self.floor = Some(cut_end);
        }
        self.end = Some(cut_end);
    }

    /// Nothing of before is left; the log is as if it had been cut to nothing in a segment named by `start`.
    fn begin(&mut self, start: Offset) {
        ringlog_io::reached!("recovery.begin_anew");
        let planned: Vec<Offset> = self.plan.segments.keys().copied().collect();
        for base in self.bases.iter().copied().chain(planned).filter(|base| *base < start) {
            self.plan.segments.insert(base, SegmentPlan { remove: true, ..SegmentPlan::default() });
            self.cuts.insert(base, 0);
        }
        self.truncate(start, start, 0);
        // What was synced of the old log may be gone.
        self.floor = self.end;
    }

    fn finish(mut self, files: &[SegmentInfo]) -> PartitionPlan {
        self.end = self.end_before_tail.unwrap_or(self.end);
        for (base, cut) in &self.cuts {
            if let Some(segment) = self.plan.segments.get_mut(base).filter(|segment| !segment.remove) {
                let written = segment.writes.iter().map(PlannedWrite::end);
                let named = segment.references.iter().map(Reference::end);
                segment.exact_length = written.chain(named).chain([*cut]).max();
                segment.cut = Some(*cut);
            }
        }
        let log_start = self.plan.log_start;
        let length_of = |base: Offset| files.iter().find(|file| file.base == base).map(|file| file.bytes);
        let mut bases: BTreeSet<Offset> =
            files.iter().map(|file| file.base).chain(self.plan.segments.keys().copied()).collect();
        // One that a truncation takes away ends no other: that may have grown beyond it since.
        bases.retain(|base| self.plan.segments.get(base).is_none_or(|segment| !segment.remove));
        let log_end = self.end.map(|end| end.offset);
        let segment_end = |base: Offset| bases.range(next_offset(base)..).next().copied().or(log_end);
        // A segment wholly below the log's start may be gone for good reason: then it is not made again, and nothing is asked
        // of it. One that holds more may not.
        self.plan.segments.retain(|base, _| {
            let is_gone = *base < log_start && length_of(*base).is_none();
            !(is_gone && segment_end(*base).is_some_and(|end| end <= log_start))
        });
        let hole = self.find_hole(&length_of);
        if let Some(hole) = hole {
            self.stop_at(hole);
        }
        if self.plan.damage.is_some() {
            self.plan.cut_nothing();
            let ends = self.end.into_iter().chain(self.end_behind_damage);
            self.end = ends.max_by_key(|end| end.offset);
        }
        self.plan.covered = self.end;
        self.plan
    }

    /// The first place where a file is shorter than what must be in it before the plan's writes.
    fn find_hole(&self, length_of: &dyn Fn(Offset) -> Option<u64>) -> Option<PlannedDamage> {
        let hole = |segment_base: Offset, length: u64, wanted: u32, what: &str| {
            let detail = format!("the file has {length} bytes, {what} reaches to position {wanted}");
            let position = u32::try_from(length).unwrap_or(u32::MAX);
            PlannedDamage { segment_base, position, detail }
        };
        if let Some(floor) = self.floor
            && floor.position > 0
            && floor.offset > self.plan.log_start
        {
            let length = length_of(floor.segment_base).unwrap_or(0);
            if length < u64::from(floor.position) {
                return Some(hole(floor.segment_base, length, floor.position, "what was synced"));
            }
        }
        for (base, segment) in &self.plan.segments {
            let mut length = length_of(*base).unwrap_or(0);
            for write in &segment.writes {
                if u64::from(write.position) > length {
                    return Some(hole(*base, length, write.position, "what goes before a journal entry"));
                }
                length = length.max(u64::from(write.end()));
            }
        }
        None
    }

    /// Plans nothing at or behind a hole.
    fn stop_at(&mut self, hole: PlannedDamage) {
        for (base, segment) in &mut self.plan.segments {
            segment.writes.retain(|write| (*base, write.position) < (hole.segment_base, hole.position));
        }
        if self.plan.damage.is_none() {
            self.plan.damage = Some(hole);
        }
    }
}

fn next_offset(base: Offset) -> Offset {
    Offset(base.0.saturating_add(1))
}

impl PlannedWrite {
    /// Position after its last byte.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.position.saturating_add(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX))
    }
}

impl PartitionPlan {
    /// Takes out what shortens or removes a segment: a damaged partition keeps all that it has. So what was to be written
    /// behind such a cut is not written either: it would mix with what is there.
    pub fn cut_nothing(&mut self) {
        for segment in self.segments.values_mut() {
            if let Some(cut) = segment.cut.take() {
                segment.writes.retain(|write| write.position < cut);
            }
            (segment.exact_length, segment.remove) = (None, false);
        }
        self.segments.retain(|_, segment| !segment.writes.is_empty() || !segment.references.is_empty());
    }

    /// The first `count` of the last references were found to check: what a truncation before them cuts ends behind them.
    pub fn keep_tail(&mut self, count: usize) {
        for reference in self.last_references.iter().take(count) {
            let segment = self.segments.get_mut(&reference.segment_base);
            if let Some(segment) = segment.filter(|segment| segment.remove || segment.exact_length.is_some())
            {
                segment.remove = false;
                segment.cut.get_or_insert(0);
                segment.exact_length = segment.exact_length.max(Some(reference.end()));
            }
        }
    }

    /// The covered end once the first `count` of the last references were found to check.
    #[must_use]
    pub fn covered_with(&self, count: usize) -> Option<CoveredEnd> {
        let Some(last) = count.checked_sub(1).and_then(|index| self.last_references.get(index)) else {
            return self.covered;
        };
        let Reference { segment_base, position, length, range, .. } = *last;
        let position = position.saturating_add(length);
        Some(CoveredEnd { offset: range.end, epoch: range.epoch, segment_base, position })
    }
}
