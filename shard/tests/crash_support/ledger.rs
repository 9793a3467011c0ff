//! What was sent to a node's storage and what it told of that; judges what a start finds.
//!
//! Whatever was told must be there, whatever is there must have been sent, and nothing may lie between.

use std::collections::BTreeMap;

use bytes::Bytes;
use ringlog_protocol::ids::{Offset, TopicPartition};

/// What was done and told in all lives: a run that reaches nothing proves nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    pub batches_told: u64,
    pub states_told: u64,
    pub starts_told: u64,
    pub truncations_told: u64,
    /// Logs that began anew.
    pub beginnings_told: u64,
    pub deletions_told: u64,
    /// Bytes that starts brought back from the journal into segments.
    pub restored_bytes: u64,
    /// Starts that found less than was sent.
    pub tails_lost: u64,
    /// Of the storage's own figures, as each life saw them last.
    pub checkpoints: u64,
    pub carried_entries: u64,
    pub bypass_bytes: u64,
    pub segments_removed: u64,
    pub segments_rewritten: u64,
    pub logs_poisoned: u64,
}

impl Coverage {
    pub fn add(&mut self, other: &Coverage) {
        let Coverage { batches_told, states_told, starts_told, truncations_told, deletions_told, .. } = other;
        self.batches_told += batches_told;
        self.states_told += states_told;
        self.starts_told += starts_told;
        self.truncations_told += truncations_told;
        self.beginnings_told += other.beginnings_told;
        self.deletions_told += deletions_told;
        self.restored_bytes += other.restored_bytes;
        self.tails_lost += other.tails_lost;
        self.checkpoints += other.checkpoints;
        self.carried_entries += other.carried_entries;
        self.bypass_bytes += other.bypass_bytes;
        self.segments_removed += other.segments_removed;
        self.segments_rewritten += other.segments_rewritten;
        self.logs_poisoned += other.logs_poisoned;
    }
}

/// One batch that was appended.
#[derive(Clone, Debug)]
struct Sent {
    /// Of its journal entry in this life; 0 = of an earlier one.
    sequence: u64,
    end: Offset,
    bytes: Bytes,
}

/// What a log holds if its last truncation, or its last new beginning, lasts: each begins another one.
#[derive(Clone, Debug, Default)]
struct Lineage {
    /// Of that; 0 = there was none in this life, or it has none yet.
    sequence: u64,
    /// Where it ends without a batch.
    floor: Offset,
    /// Where it began anew, and does not start below; 0 = it never did.
    begun: Offset,
    start_asked: Offset,
    batches: Vec<Sent>,
    /// Told to be durable.
    told_end: Offset,
    /// That was told to be durable.
    is_told: bool,
    /// That was a new beginning.
    is_beginning: bool,
}

impl Lineage {
    fn end(&self) -> Offset {
        self.batches.last().map_or(self.floor, |batch| batch.end)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Deletion {
    #[default]
    None,
    Asked,
    Told,
}

/// One partition.
#[derive(Clone, Debug)]
struct Log {
    /// Never empty; the last is what the log holds now.
    lineages: Vec<Lineage>,
    starts: Vec<(u64, Offset)>,
    start_told: Offset,
    states: Vec<(u64, Bytes)>,
    state_told: Option<u64>,
    deletion: Deletion,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            lineages: vec![Lineage::default()],
            starts: Vec::new(),
            start_told: Offset(0),
            states: Vec::new(),
            state_told: None,
            deletion: Deletion::None,
        }
    }
}

/// What a start found of a partition.
#[derive(Clone, Debug)]
pub struct Found {
    pub start: Offset,
    pub end: Offset,
    /// Whole batches from the one that holds `start`.
    pub bytes: Vec<u8>,
    /// With its sequence.
    pub hard_state: Option<(u64, Bytes)>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Ledger {
    logs: BTreeMap<TopicPartition, Log>,
    pub coverage: Coverage,
    /// Of the life that is under way.
    pub coverage_of_life: Coverage,
}

impl Ledger {
    fn log(&mut self, key: TopicPartition) -> &mut Log {
        self.logs.entry(key).or_default()
    }

    /// Whether nothing was ever said of the partition.
    pub fn is_unused(&self, key: TopicPartition) -> bool {
        !self.logs.contains_key(&key)
    }

    pub fn note_append(&mut self, key: TopicPartition, sequence: u64, end: Offset, bytes: Bytes) {
        let lineage = self.log(key).lineages.last_mut().expect("never empty");
        assert!(lineage.end() < end);
        lineage.batches.push(Sent { sequence, end, bytes });
    }

    pub fn note_state(&mut self, key: TopicPartition, sequence: u64, state: Bytes) {
        let states = &mut self.log(key).states;
        assert!(states.last().is_none_or(|(last, _)| *last < sequence), "{key}: sequences ascend");
        states.push((sequence, state));
    }

    pub fn note_start(&mut self, key: TopicPartition, sequence: u64, start: Offset) {
        let log = self.log(key);
        let lineage = log.lineages.last_mut().expect("never empty");
        lineage.start_asked = lineage.start_asked.max(start);
        log.starts.push((sequence, start));
    }

    /// A truncation of a log that starts at `start` is about to be asked for: from now on it may happen. Answers where the
    /// log then ends: with its last whole batch, or at its start.
    pub fn note_truncation(&mut self, key: TopicPartition, to: Offset, start: Offset) -> Offset {
        let log = self.log(key);
        let mut next = log.lineages.last().expect("never empty").clone();
        next.batches.retain(|batch| batch.end <= to);
        if next.end() < start {
            next.batches.clear();
            next.floor = start;
        }
        let end = next.end();
        next.told_end = next.told_end.min(end);
        (next.sequence, next.is_told, next.is_beginning) = (0, false, false);
        log.lineages.push(next);
        end
    }

    /// The log is about to be asked to begin anew: from now on it may happen.
    pub fn note_beginning(&mut self, key: TopicPartition, start: Offset) {
        let (floor, begun, start_asked) = (start, start, start);
        let next = Lineage { floor, begun, start_asked, is_beginning: true, ..Lineage::default() };
        self.log(key).lineages.push(next);
    }

    /// The journal has it under this sequence, or it did not happen.
    pub fn note_truncated(&mut self, key: TopicPartition, sequence: Option<u64>) {
        let log = self.log(key);
        match sequence {
            Some(sequence) => log.lineages.last_mut().expect("never empty").sequence = sequence,
            None => drop(log.lineages.pop()),
        }
    }

    pub fn note_deletion(&mut self, key: TopicPartition) {
        self.log(key).deletion = Deletion::Asked;
    }

    pub fn tell_deletion(&mut self, key: TopicPartition) {
        self.coverage.deletions_told += 1;
        self.log(key).deletion = Deletion::Told;
    }

    /// Storage told that the entry of this sequence is durable; with an end for data.
    pub fn tell(&mut self, key: TopicPartition, sequence: u64, end: Option<Offset>) {
        let mut coverage = self.coverage;
        let mut cut_off = false;
        let log = self.log(key);
        for lineage in &mut log.lineages {
            if lineage.sequence > 0 && lineage.sequence <= sequence && !lineage.is_told {
                lineage.is_told = true;
                coverage.truncations_told += u64::from(!lineage.is_beginning);
                coverage.beginnings_told += u64::from(lineage.is_beginning);
            }
            let batch = lineage.batches.iter().find(|batch| batch.sequence == sequence);
            match (batch, end) {
                (Some(batch), Some(end)) => {
                    assert_eq!(end, batch.end, "{key}: what was told of sequence {sequence}");
                    assert!(lineage.told_end < end, "{key}: told in order");
                    lineage.told_end = end;
                }
                // Cut off by a truncation that came before the answer: nothing is said of it.
                (Some(_), None) => cut_off = true,
                (None, _) => {}
            }
        }
        let newest = log.lineages.last().expect("never empty");
        let is_there = newest.batches.iter().any(|batch| batch.sequence == sequence);
        assert!(
            !(cut_off && is_there),
            "{key}: nothing was told of sequence {sequence}, which is not cut off"
        );
        if log.states.iter().any(|(sent, _)| *sent == sequence) {
            log.state_told = Some(sequence);
            coverage.states_told += 1;
        }
        if let Some((_, start)) = log.starts.iter().find(|(sent, _)| *sent == sequence) {
            log.start_told = log.start_told.max(*start);
            coverage.starts_told += 1;
        }
        coverage.batches_told += u64::from(end.is_some());
        self.coverage = coverage;
    }

    /// End of what was told to be durable.
    pub fn told_end(&self, key: TopicPartition) -> Offset {
        let lineage = self.logs.get(&key).and_then(|log| log.lineages.last());
        lineage.map_or(Offset(0), |lineage| lineage.told_end)
    }

    /// Judges what a start found, all partitions of the node, and takes it for what is there from now on.
    ///
    /// # Panics
    /// When a rule is broken.
    pub fn judge(&mut self, mut found: BTreeMap<TopicPartition, Found>) {
        let of_life = std::mem::take(&mut self.coverage_of_life);
        self.coverage.add(&of_life);
        let coverage = &mut self.coverage;
        self.logs.retain(|key, log| match found.remove(key) {
            Some(found) => {
                let sent_end = log.lineages.last().map_or(Offset(0), Lineage::end);
                coverage.tails_lost += u64::from(found.end < sent_end);
                log.judge(*key, &found);
                true
            }
            None => {
                log.judge_absent(*key);
                // What was deleted stays so. What left no trace, and was never told to be there, may begin anew.
                log.deletion != Deletion::None
            }
        });
        assert!(found.is_empty(), "nobody ever sent {:?}", found.keys());
    }
}

impl Log {
    fn judge_absent(&mut self, key: TopicPartition) {
        if self.deletion != Deletion::None {
            self.deletion = Deletion::Told;
            return;
        }
        let may_be_empty = |lineage: &Lineage| lineage.told_end == Offset(0) && lineage.begun == Offset(0);
        assert!(self.possible().iter().any(may_be_empty), "{key} is gone: {self:?}");
        assert!(self.state_told.is_none() && self.start_told == Offset(0), "{key} is gone: {self:?}");
    }

    /// What the log may hold after a crash.
    fn possible(&self) -> &[Lineage] {
        let first = self.lineages.iter().rposition(|lineage| lineage.is_told).unwrap_or(0);
        self.lineages.get(first..).unwrap_or(&[])
    }

    fn judge(&mut self, key: TopicPartition, found: &Found) {
        assert_ne!(self.deletion, Deletion::Told, "{key} was deleted and came back");
        let Found { start, end, .. } = *found;
        assert!(self.start_told <= start, "{key} starts at {start}; {} was told", self.start_told);
        let problems: Vec<String> =
            self.possible().iter().rev().filter_map(|lineage| lineage.problem(found)).collect();
        let fitting = self.possible().iter().rev().find(|lineage| lineage.problem(found).is_none());
        let Some(fitting) = fitting else { panic!("{key}: {}", problems.join("; or: ")) };
        let mut adopted = Lineage { told_end: end, start_asked: start, ..fitting.clone() };
        adopted.batches.retain(|batch| batch.end <= end);
        adopted.batches.iter_mut().for_each(|batch| batch.sequence = 0);
        (adopted.sequence, adopted.is_told) = (0, false);
        self.judge_state(key, found);
        let state = found.hard_state.clone();
        *self = Log {
            lineages: vec![adopted],
            starts: Vec::new(),
            start_told: start,
            state_told: state.as_ref().map(|(sequence, _)| *sequence),
            states: state.into_iter().collect(),
            deletion: Deletion::None,
        };
    }

    fn judge_state(&self, key: TopicPartition, found: &Found) {
        let Some(state) = &found.hard_state else {
            assert_eq!(self.state_told, None, "{key}: the hard state is gone");
            return;
        };
        assert!(self.states.contains(state), "{key}: nobody sent the hard state {state:?}");
        assert!(
            self.state_told.is_none_or(|told| told <= state.0),
            "{key}: hard state {state:?} is older than {:?}, which was told",
            self.state_told
        );
    }
}

impl Lineage {
    fn problem(&self, found: &Found) -> Option<String> {
        let Found { start, end, bytes, .. } = found;
        if *start < self.begun || *start > self.start_asked {
            return Some(format!("starts at {start}, not {} to {}", self.begun, self.start_asked));
        }
        if *end < self.told_end {
            return Some(format!("ends at {end}, {} was told", self.told_end));
        }
        let is_boundary = *end == *start || self.batches.iter().any(|batch| batch.end == *end);
        if !is_boundary {
            return Some(format!("ends at {end}, where no batch ends"));
        }
        let within = self.batches.iter().filter(|batch| batch.end > *start && batch.end <= *end);
        let expected = within.map(|batch| &batch.bytes[..]).collect::<Vec<_>>().concat();
        if expected != *bytes {
            let same = expected.iter().zip(bytes).take_while(|(left, right)| left == right).count();
            return Some(format!(
                "{} bytes from offset {start} to {end} differ from the {} sent, first at {same}",
                bytes.len(),
                expected.len()
            ));
        }
        None
    }
}
