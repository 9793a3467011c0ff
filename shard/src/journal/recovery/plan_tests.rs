//! Property test of the plan: generated histories of one partition, a disk that forgets unsynced sectors, and crashes
//! between and within recoveries. The model is the list of batches that were acknowledged.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use ringlog_protocol::ids::{LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition};

use super::plan::{PartitionPlan, plan_partition};
use crate::journal::entry::{OffsetRange, Reference, SyncedTo};
use crate::journal::reader::{FoundBody, FoundEntry};
use crate::storage::recovered::SegmentInfo;

const KEY: TopicPartition = TopicPartition { topic: TopicId([3; 16]), partition: PartitionIndex(1) };
const SEGMENT_BYTES: usize = 200;
const SECTOR_BYTES: usize = 16;

#[derive(Clone, Debug)]
enum Step {
    Append {
        bytes: usize,
        offsets: i64,
        /// An emptied log takes a batch that begins so far below its start.
        below: i64,
    },
    /// Unsynced writes of everything appended.
    Flush,
    /// Flush, sync and the entry that says so.
    Checkpoint,
    /// Keeps this many of the batches.
    Truncate {
        keep: prop::sample::Index,
        at_once: bool,
    },
    /// The log goes on this far behind its end, or below it, though not below its start, and nothing of before is left.
    Begin {
        gap: i64,
        at_once: bool,
    },
    HardState,
    LogStart {
        at: prop::sample::Index,
    },
    Delete,
    /// The journal forgets what is covered, and repeats the newest state.
    Recycle,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (10..90_usize, 1..5_i64, 0..4_i64).prop_map(|(bytes, offsets, below)| Step::Append { bytes, offsets, below }),
        3 => Just(Step::Flush),
        2 => Just(Step::Checkpoint),
        1 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(keep, at_once)| Step::Truncate { keep, at_once }),
        1 => (-9..20_i64, any::<bool>()).prop_map(|(gap, at_once)| Step::Begin { gap, at_once }),
        1 => Just(Step::HardState),
        1 => any::<prop::sample::Index>().prop_map(|at| Step::LogStart { at }),
        1 => Just(Step::Delete),
        2 => Just(Step::Recycle),
    ]
}

/// Cheap, seeded choices for the disk.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

#[derive(Clone, Debug)]
struct Batch {
    range: OffsetRange,
    segment_base: Offset,
    position: u32,
    bytes: Bytes,
}

impl Batch {
    fn end_position(&self) -> u32 {
        self.position + self.bytes.len() as u32
    }
}

type Files = BTreeMap<Offset, Vec<u8>>;

/// Files as the kernel shows them and as the device holds them.
#[derive(Clone, Debug, Default)]
struct Disk {
    cached: Files,
    durable: Files,
}

impl Disk {
    fn sync(&mut self) {
        self.durable = self.cached.clone();
    }

    fn write(&mut self, base: Offset, position: u32, bytes: &[u8]) {
        let file = self.cached.entry(base).or_default();
        let (start, end) = (position as usize, position as usize + bytes.len());
        if file.len() < end {
            file.resize(end, 0);
        }
        file[start..end].copy_from_slice(bytes);
    }

    /// Each sector, length and name is the old or the new one.
    fn crash(&mut self, dice: &mut Dice) {
        let mut kept = Files::new();
        let names: Vec<Offset> = self.cached.keys().chain(self.durable.keys()).copied().collect();
        for name in names {
            let (new, old) = (self.cached.get(&name), self.durable.get(&name));
            let (new, old) = match (new, old) {
                (Some(new), Some(old)) => (new.as_slice(), old.as_slice()),
                (Some(only), None) | (None, Some(only)) => {
                    if dice.roll(2) == 0 {
                        continue;
                    }
                    (only.as_slice(), if new.is_some() { &[][..] } else { only.as_slice() })
                }
                (None, None) => continue,
            };
            let length = if dice.roll(2) == 0 { new.len() } else { old.len() };
            let mut file = vec![0; length];
            for start in (0..length).step_by(SECTOR_BYTES) {
                let source = if dice.roll(2) == 0 { new } else { old };
                let end = (start + SECTOR_BYTES).min(length);
                let available = source.get(start..end.min(source.len())).unwrap_or_default();
                file[start..start + available.len()].copy_from_slice(available);
            }
            kept.insert(name, file);
        }
        self.cached = kept.clone();
        self.durable = kept;
    }
}

#[derive(Default)]
struct World {
    batches: Vec<Batch>,
    entries: Vec<FoundEntry>,
    disk: Disk,
    flushed: usize,
    sequence: u64,
    batch_count: u8,
    hard_state: Option<(u64, Bytes)>,
    log_start: (Option<u64>, Offset),
    /// Where the log began, anew or at first.
    begun: Offset,
    must_cut: bool,
    is_gone: bool,
}

impl World {
    fn push(&mut self, body: FoundBody) -> u64 {
        self.sequence += 1;
        self.entries.push(FoundEntry { key: KEY, sequence: self.sequence, carried: false, body });
        self.sequence
    }

    fn end(&self) -> (Offset, Offset, u32) {
        self.batches.last().map_or((self.begun, self.begun, 0), |last| {
            (last.range.end, last.segment_base, last.end_position())
        })
    }

    fn take(&mut self, step: &Step) {
        // A topic id is never used again.
        if self.is_gone && !matches!(step, Step::Recycle) {
            return;
        }
        match step {
            Step::Append { bytes, offsets, below } => self.append(*bytes, *offsets, *below),
            Step::Flush => self.flush(),
            Step::Checkpoint => self.checkpoint(),
            Step::Truncate { keep, at_once } => self.truncate(*keep, *at_once),
            Step::Begin { gap, at_once } => self.begin(*gap, *at_once),
            Step::HardState => {
                let state = Bytes::from(format!("vote {}", self.sequence));
                let sequence = self.push(FoundBody::HardState { state: state.clone() });
                self.hard_state = Some((sequence, state));
            }
            Step::LogStart { at } => {
                let index = at.index(self.batches.len() + 1);
                let offset = self
                    .batches
                    .get(index)
                    .map_or(self.end().0, |batch| batch.range.base)
                    .max(self.log_start.1);
                let sequence = self.push(FoundBody::LogStart { offset });
                self.log_start = (Some(sequence), offset);
            }
            Step::Delete => {
                self.push(FoundBody::Delete);
                self.batches.clear();
                self.is_gone = true;
            }
            Step::Recycle => self.recycle(),
        }
    }

    fn append(&mut self, bytes: usize, offsets: i64, below: i64) {
        let (end, mut segment_base, position) = self.end();
        let fits = position == 0 || position as usize + bytes <= SEGMENT_BYTES;
        let mut base = end;
        if self.batches.is_empty() && end == self.log_start.1 {
            base = Offset((end.0 - below).max(0));
            segment_base = base;
        }
        let (segment_base, position) = if fits { (segment_base, position) } else { (base, 0) };
        self.batch_count = self.batch_count.wrapping_add(1).max(1);
        let bytes = Bytes::from(vec![self.batch_count; bytes]);
        let range = OffsetRange { base, end: Offset(end.0 + offsets), epoch: LeaderEpoch(1) };
        self.push(FoundBody::Data { segment_base, position, range, bytes: bytes.clone() });
        self.batches.push(Batch { range, segment_base, position, bytes });
    }

    fn cut_files(&mut self) {
        let (_, segment_base, position) = self.end();
        let first = self.batches.first().map_or(self.begun, |first| first.segment_base);
        self.disk.cached.retain(|base, _| first <= *base && *base <= segment_base);
        if let Some(file) = self.disk.cached.get_mut(&segment_base) {
            file.truncate(position as usize);
        }
        self.must_cut = false;
    }

    fn flush(&mut self) {
        if self.must_cut {
            let all = std::mem::take(&mut self.batches);
            self.batches = all[..self.flushed].to_vec();
            self.cut_files();
            self.batches = all;
        }
        for batch in &self.batches[self.flushed..] {
            self.disk.write(batch.segment_base, batch.position, &batch.bytes);
        }
        self.flushed = self.batches.len();
    }

    fn checkpoint(&mut self) {
        self.flush();
        self.disk.sync();
        let (offset, segment_base, position) = self.end();
        let through = self.sequence;
        self.push(FoundBody::SyncedTo(SyncedTo {
            through,
            epoch: LeaderEpoch(1),
            offset,
            segment_base,
            position,
        }));
    }

    fn truncate(&mut self, keep: prop::sample::Index, at_once: bool) {
        let start = self.batches.iter().filter(|batch| batch.range.end <= self.log_start.1).count();
        let keep = start + keep.index(self.batches.len() + 1 - start);
        self.batches.truncate(keep);
        self.flushed = self.flushed.min(keep);
        let (end_offset, segment_base, position) = self.end();
        self.push(FoundBody::Truncate { end_offset, segment_base, position });
        self.must_cut = true;
        if at_once && self.flushed == self.batches.len() {
            self.cut_files();
        }
    }

    fn begin(&mut self, gap: i64, at_once: bool) {
        let start = Offset(self.end().0.0 + gap).max(self.log_start.1);
        self.batches.clear();
        (self.flushed, self.begun) = (0, start);
        let sequence = self.push(FoundBody::Begin { start });
        self.log_start = (Some(sequence), start);
        self.must_cut = true;
        if at_once {
            self.cut_files();
        }
    }

    fn recycle(&mut self) {
        let through = self.entries.iter().filter_map(|entry| match &entry.body {
            FoundBody::SyncedTo(synced) => Some(synced.through),
            _ => None,
        });
        let through = through.max().unwrap_or(0);
        let newest = [self.hard_state.as_ref().map(|(sequence, _)| *sequence), self.log_start.0];
        self.entries.retain_mut(|entry| {
            if entry.sequence > through || entry.body == FoundBody::Delete {
                return true;
            }
            entry.carried = true;
            newest.contains(&Some(entry.sequence))
        });
    }

    fn expected(&self) -> Files {
        let mut files = Files::new();
        for batch in &self.batches {
            files.entry(batch.segment_base).or_default().extend_from_slice(&batch.bytes);
        }
        files
    }

    /// What must be on the disk: of a segment wholly below the log's start, all of it or no file.
    fn required(&self, present: &Files) -> Files {
        let mut files = self.expected();
        files.retain(|base, _| {
            let last = self.batches.iter().rfind(|batch| batch.segment_base == *base);
            let is_retired = last.is_some_and(|last| last.range.end <= self.log_start.1);
            !is_retired || present.contains_key(base)
        });
        files
    }
}

fn infos(files: &Files) -> Vec<SegmentInfo> {
    files.iter().map(|(base, bytes)| SegmentInfo { base: *base, bytes: bytes.len() as u64 }).collect()
}

/// Carries the plan out, in its order, and stops after `step_count` steps.
fn execute(plan: &PartitionPlan, disk: &mut Disk, step_count: usize) {
    let mut left = step_count;
    let mut may_go_on = || {
        left = left.saturating_sub(1);
        left > 0
    };
    if plan.remove_folder {
        disk.cached.clear();
        disk.durable.clear();
    }
    for (base, segment) in &plan.segments {
        if !may_go_on() {
            return;
        }
        if segment.remove {
            disk.cached.remove(base);
            continue;
        }
        for write in &segment.writes {
            if !may_go_on() {
                return;
            }
            disk.write(*base, write.position, &write.bytes);
        }
        if let Some(length) = segment.exact_length
            && let Some(file) = disk.cached.get_mut(base)
        {
            file.truncate(length as usize);
        }
    }
    disk.sync();
}

fn non_empty(files: &Files) -> Files {
    files.iter().filter(|(_, bytes)| !bytes.is_empty()).map(|(base, bytes)| (*base, bytes.clone())).collect()
}

fn shuffled(entries: &[FoundEntry], dice: &mut Dice) -> Vec<FoundEntry> {
    let mut all = entries.to_vec();
    for entry in entries {
        if dice.roll(4) == 0 {
            all.push(FoundEntry { carried: true, ..entry.clone() });
        }
    }
    for index in (1..all.len()).rev() {
        all.swap(index, dice.roll(index as u64 + 1) as usize);
    }
    all
}

fn check(steps: &[Step], seed: u64) {
    let mut dice = Dice(seed | 1);
    let mut world = World::default();
    for step in steps {
        world.take(step);
    }
    let mut disk = world.disk.clone();
    disk.crash(&mut dice);
    // Two recoveries that crash on the way, then one that ends.
    for _ in 0..2 {
        let plan = plan_partition(shuffled(&world.entries, &mut dice), &infos(&disk.cached), false);
        assert_eq!(plan.damage, None);
        let before = disk.durable.clone();
        execute(&plan, &mut disk, dice.roll(12) as usize);
        if !plan.remove_folder {
            disk.durable = before;
        }
        disk.crash(&mut dice);
    }
    let entries = shuffled(&world.entries, &mut dice);
    let plan = plan_partition(entries.clone(), &infos(&disk.cached), true_if_contiguous(&world));
    assert_eq!(plan.damage, None, "nothing synced is missing");
    execute(&plan, &mut disk, usize::MAX);
    let present = non_empty(&disk.cached);
    assert_eq!(present, world.required(&present), "the acknowledged bytes and no others");
    assert_eq!(plan.is_gone, world.is_gone);
    assert!(plan.next_sequence > world.entries.iter().map(|entry| entry.sequence).max().unwrap_or(0));
    if !world.is_gone {
        assert_eq!(plan.hard_state, world.hard_state);
        assert_eq!((plan.log_start_sequence, plan.log_start), world.log_start);
        let (offset, segment_base, position) = world.end();
        if let Some(covered) = plan.covered {
            assert_eq!(
                (covered.offset, covered.segment_base, covered.position),
                (offset, segment_base, position)
            );
        } else {
            assert!(world.batches.is_empty());
        }
    }
    let again = plan_partition(entries, &infos(&disk.cached), false);
    let before = disk.cached.clone();
    execute(&again, &mut disk, usize::MAX);
    assert_eq!(non_empty(&disk.cached), non_empty(&before), "a further recovery changes nothing");
}

/// Whether no entry above the covered ones was dropped, so that lost frames would show as gaps.
fn true_if_contiguous(world: &World) -> bool {
    let covered = world.entries.iter().filter_map(|entry| match &entry.body {
        FoundBody::SyncedTo(synced) => Some(synced.through),
        FoundBody::Delete => Some(entry.sequence),
        _ => None,
    });
    let covered = covered.max().unwrap_or(0);
    let above = world.entries.iter().filter(|entry| entry.sequence > covered).count() as u64;
    above == world.sequence - covered
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_crash_leads_to_the_acknowledged_bytes(steps in prop::collection::vec(any_step(), 0..40), seed: u64) {
        check(&steps, seed);
    }
}

fn data(sequence: u64, base: i64, end: i64, position: u32, bytes: &'static [u8]) -> FoundEntry {
    let range = OffsetRange { base: Offset(base), end: Offset(end), epoch: LeaderEpoch(1) };
    let body = FoundBody::Data { segment_base: Offset(0), position, range, bytes: Bytes::from_static(bytes) };
    FoundEntry { key: KEY, sequence, carried: false, body }
}

fn reference(sequence: u64, base: i64, end: i64, position: u32, length: u32) -> FoundEntry {
    let range = OffsetRange { base: Offset(base), end: Offset(end), epoch: LeaderEpoch(1) };
    let reference = Reference { segment_base: Offset(0), position, length, crc: 7, range, goes_on: false };
    FoundEntry { key: KEY, sequence, carried: false, body: FoundBody::Reference(reference) }
}

fn going_on(mut entry: FoundEntry) -> FoundEntry {
    if let FoundBody::Reference(reference) = &mut entry.body {
        reference.goes_on = true;
    }
    entry
}

fn carried(entry: FoundEntry) -> FoundEntry {
    FoundEntry { carried: true, ..entry }
}

#[test]
fn a_lost_entry_stops_the_plan_before_the_hole() {
    let entries = vec![data(1, 0, 2, 0, b"aaaa"), data(3, 4, 6, 8, b"cccc")];
    let plan = plan_partition(entries, &[], true);
    let damage = plan.damage.expect("entry 2 is missing");
    assert_eq!((damage.segment_base, damage.position), (Offset(0), 4));
    assert!(damage.detail.contains("entries 2 to 2"), "{}", damage.detail);
    assert_eq!(plan.segments[&Offset(0)].writes.len(), 1, "what lies before is restored");
    let covered = plan.covered.map(|end| (end.offset, end.position));
    assert_eq!(covered, Some((Offset(6), 12)), "what lies behind was acknowledged too");
}

#[test]
fn data_that_does_not_go_on_is_damage_even_if_no_frame_is_known_to_be_lost() {
    let entries = vec![data(1, 0, 2, 0, b"aaaa"), data(3, 4, 6, 8, b"cccc")];
    assert!(plan_partition(entries, &[], false).damage.is_some());
}

#[test]
fn a_superseded_hard_state_that_was_recycled_is_no_damage() {
    let state = |sequence| FoundEntry {
        key: KEY,
        sequence,
        carried: false,
        body: FoundBody::HardState { state: Bytes::from_static(b"vote") },
    };
    let plan = plan_partition(vec![data(1, 0, 2, 0, b"aaaa"), state(3), data(4, 2, 3, 4, b"bb")], &[], false);
    assert_eq!(plan.damage, None);
    assert_eq!(plan.segments[&Offset(0)].writes.len(), 2);
}

#[test]
fn a_file_shorter_than_what_was_synced_is_damage_and_is_not_touched() {
    let synced = SyncedTo {
        through: 1,
        epoch: LeaderEpoch(1),
        offset: Offset(9),
        segment_base: Offset(0),
        position: 90,
    };
    let synced = FoundEntry { key: KEY, sequence: 2, carried: false, body: FoundBody::SyncedTo(synced) };
    let files = [SegmentInfo { base: Offset(0), bytes: 80 }];
    let plan = plan_partition(vec![synced, data(3, 9, 10, 90, b"x")], &files, false);
    assert_eq!(plan.damage.map(|damage| damage.position), Some(80));
    assert!(plan.segments.is_empty(), "{:?}", plan.segments);
}

#[test]
fn a_lost_segment_is_damage_unless_all_of_it_lies_below_the_log_start() {
    let synced = SyncedTo {
        through: 1,
        epoch: LeaderEpoch(1),
        offset: Offset(2),
        segment_base: Offset(0),
        position: 4,
    };
    let entry = |sequence, body| FoundEntry { key: KEY, sequence, carried: false, body };
    let log_start = entry(3, FoundBody::LogStart { offset: Offset(2) });
    let entries = vec![entry(2, FoundBody::SyncedTo(synced)), log_start];
    let plan = plan_partition(entries.clone(), &[], false);
    assert_eq!((plan.damage, plan.segments.len()), (None, 0));
    let plan = plan_partition([entries, vec![data(4, 2, 4, 4, b"bbbb")]].concat(), &[], false);
    assert!(plan.damage.is_some(), "offset 2 was acknowledged, and where it goes there is no file");
}

/// How many references at the end may be a tail, and how many before must check.
fn check_references(entries: Vec<FoundEntry>, tail: usize, must_check: usize) -> PartitionPlan {
    let files = [SegmentInfo { base: Offset(0), bytes: 100 }];
    let plan = plan_partition(entries, &files, false);
    assert_eq!(plan.damage, None);
    let before = plan.segments.get(&Offset(0)).map_or(0, |segment| segment.references.len());
    assert_eq!((plan.last_references.len(), before), (tail, must_check));
    plan
}

#[test]
fn a_reference_at_the_end_may_be_a_tail_and_one_before_it_must_check() {
    let entries = vec![data(1, 0, 2, 0, b"aaaa"), reference(2, 2, 5, 4, 8)];
    let plan = check_references(entries.clone(), 1, 0);
    assert_eq!(plan.covered.map(|end| end.position), Some(4));
    assert_eq!(plan.covered_with(0).map(|end| end.position), Some(4));
    assert_eq!(plan.covered_with(1).map(|end| (end.offset, end.position)), Some((Offset(5), 12)));
    let plan = check_references([entries, vec![data(3, 5, 6, 12, b"b")]].concat(), 0, 1);
    assert_eq!(plan.covered.map(|end| end.position), Some(13));
}

#[test]
fn a_run_of_references_is_a_tail_as_a_whole() {
    let run = vec![reference(2, 2, 5, 4, 8), going_on(reference(4, 5, 6, 12, 8))];
    let plan = check_references([vec![reference(1, 0, 2, 0, 4)], run.clone()].concat(), 2, 1);
    assert_eq!(plan.covered.map(|end| end.position), Some(4));
    assert_eq!(plan.covered_with(1).map(|end| end.position), Some(12));
    assert_eq!(plan.covered_with(2).map(|end| end.position), Some(20));
    let next = reference(5, 6, 7, 20, 8);
    check_references([vec![reference(1, 0, 2, 0, 4)], run, vec![next]].concat(), 1, 3);
}

#[test]
fn what_waits_for_no_reference_does_not_prove_one() {
    let state = |sequence| FoundEntry {
        key: KEY,
        sequence,
        carried: false,
        body: FoundBody::HardState { state: Bytes::from_static(b"vote") },
    };
    let synced = |sequence, through, position| FoundEntry {
        key: KEY,
        sequence,
        carried: false,
        body: FoundBody::SyncedTo(SyncedTo {
            through,
            epoch: LeaderEpoch(1),
            offset: Offset(2),
            segment_base: Offset(0),
            position,
        }),
    };
    let entries = vec![data(1, 0, 2, 0, b"aaaa"), reference(2, 2, 5, 4, 8)];
    check_references([entries.clone(), vec![synced(3, 1, 4)]].concat(), 1, 0);
    check_references([entries.clone(), vec![carried(state(3))]].concat(), 1, 0);
    check_references(
        [entries.clone(), vec![synced(4, 1, 4), carried(reference(2, 2, 5, 4, 8))]].concat(),
        1,
        0,
    );
    check_references([entries.clone(), vec![state(3)]].concat(), 0, 1);
    // Covered: neither a tail nor anything to look at.
    let covered = synced(3, 2, 12);
    check_references([entries, vec![covered]].concat(), 0, 0);
}

#[test]
fn what_was_cut_off_may_have_left_the_journal_in_part() {
    let truncate = |sequence, end: i64, position| {
        let end_offset = Offset(end);
        let body = FoundBody::Truncate { end_offset, segment_base: Offset(0), position };
        FoundEntry { key: KEY, sequence, carried: false, body }
    };
    // Entry 2 went with its file, entry 3 did not, and the cut in between was higher.
    let entries = vec![
        data(1, 0, 10, 0, b"aaaa"),
        data(3, 20, 30, 8, b"cccc"),
        truncate(4, 30, 12),
        reference(5, 30, 40, 12, 4),
        truncate(6, 10, 4),
        data(7, 10, 15, 4, b"dddd"),
    ];
    let files = [SegmentInfo { base: Offset(0), bytes: 16 }];
    let plan = plan_partition(entries, &files, false);
    assert_eq!(plan.damage, None);
    let segment = &plan.segments[&Offset(0)];
    let writes: Vec<(u32, &[u8])> =
        segment.writes.iter().map(|write| (write.position, &write.bytes[..])).collect();
    assert_eq!(writes, [(0, &b"aaaa"[..]), (4, b"dddd")]);
    assert_eq!((segment.exact_length, segment.references.len()), (Some(8), 0));
    assert_eq!(plan.covered.map(|end| (end.offset, end.position)), Some((Offset(15), 8)));
}

#[test]
fn nothing_of_before_a_new_beginning_counts_neither_what_is_missing_nor_what_is_there() {
    let entry = |sequence, body| FoundEntry { key: KEY, sequence, carried: false, body };
    let synced = SyncedTo {
        through: 0,
        epoch: LeaderEpoch(1),
        offset: Offset(9),
        segment_base: Offset(0),
        position: 90,
    };
    let truncate = FoundBody::Truncate { end_offset: Offset(20), segment_base: Offset(20), position: 0 };
    // The file of what was synced is gone already; entry 2 went with its journal file; a reference names what is no more.
    let mut entries = vec![
        entry(1, FoundBody::SyncedTo(synced)),
        data(3, 12, 13, 94, b"x"),
        reference(4, 13, 15, 95, 8),
        entry(5, FoundBody::Begin { start: Offset(20) }),
    ];
    let files = [3, 7, 20, 25].map(|base| SegmentInfo { base: Offset(base), bytes: 5 });
    let plan = plan_partition(entries.clone(), &files, false);
    assert_eq!((plan.damage.clone(), plan.log_start, plan.log_start_sequence), (None, Offset(20), Some(5)));
    let removed: Vec<i64> =
        plan.segments.iter().filter(|(_, plan)| plan.remove).map(|(base, _)| base.0).collect();
    assert_eq!(removed, [3, 7, 25]);
    assert_eq!(plan.segments[&Offset(20)].exact_length, Some(0));
    let covered = plan.covered.expect("known");
    assert_eq!((covered.offset, covered.segment_base, covered.position), (Offset(20), Offset(20), 0));
    // A truncation to the very beginning does not bring back what was there before.
    entries.extend([data_in(6, 20, 22, 20, b"aaaa"), entry(7, truncate), data_in(8, 20, 21, 20, b"bb")]);
    let again = plan_partition(entries, &files, false);
    assert_eq!(again.damage, None);
    assert_eq!(again.segments[&Offset(20)].exact_length, Some(2));
    assert_eq!(again.covered.map(|end| (end.offset, end.position)), Some((Offset(21), 2)));
    assert!(again.segments[&Offset(3)].remove && again.segments[&Offset(25)].remove);
}

#[test]
fn a_log_that_was_emptied_within_a_batch_goes_on_with_that_batch() {
    let entry = |sequence, body| FoundEntry { key: KEY, sequence, carried: false, body };
    let begin = || entry(3, FoundBody::Begin { start: Offset(7) });
    let truncate = FoundBody::Truncate { end_offset: Offset(7), segment_base: Offset(7), position: 0 };
    let first = |sequence, base, end| data_in(sequence, base, end, base, b"bbbb");
    let plan = |entries: Vec<FoundEntry>| {
        let files = [0, 5, 9].map(|base| SegmentInfo { base: Offset(base), bytes: 9 });
        plan_partition(entries, &files, false)
    };
    let old = || data_in(2, 0, 9, 0, b"aaaa");
    // Only the beginning is there: it ends where it starts.
    let found = plan(vec![old(), begin()]);
    assert_eq!((found.damage.clone(), found.log_start), (None, Offset(7)));
    assert_eq!(found.covered.map(|end| (end.offset, end.position)), Some((Offset(7), 0)));
    // With the batch, and once it was cut off and came again.
    let again = [entry(6, truncate), first(7, 5, 9)];
    for later in [vec![], again.to_vec()] {
        let found = plan([vec![old(), begin(), first(5, 5, 9)], later].concat());
        assert_eq!((found.damage.clone(), found.log_start), (None, Offset(7)));
        assert_eq!(found.covered.map(|end| (end.offset, end.position)), Some((Offset(9), 4)));
        let segment = &found.segments[&Offset(5)];
        assert_eq!((segment.writes.len(), segment.exact_length, segment.remove), (1, Some(4), false));
        assert!(found.segments[&Offset(0)].remove && found.segments[&Offset(9)].remove);
    }
    // A batch that does not hold the start is of another log, and so is one that begins in the middle of a log with records.
    for wrong in [first(5, 4, 7), first(5, 8, 9)] {
        assert!(plan(vec![old(), begin(), wrong]).damage.is_some());
    }
    assert!(plan(vec![old(), begin(), first(5, 5, 9), first(6, 8, 10)]).damage.is_some());
}

/// The first data of a segment.
fn data_in(sequence: u64, base: i64, end: i64, segment: i64, bytes: &'static [u8]) -> FoundEntry {
    let range = OffsetRange { base: Offset(base), end: Offset(end), epoch: LeaderEpoch(1) };
    let bytes = Bytes::from_static(bytes);
    let body = FoundBody::Data { segment_base: Offset(segment), position: 0, range, bytes };
    FoundEntry { key: KEY, sequence, carried: false, body }
}
