//! Random executions of a simple model log: whatever a sound log may do is clean, and each of a list of damages is found.

use std::collections::{BTreeMap, BTreeSet};

use ringlog_bench::history::check::Place;
use ringlog_bench::history::operation::{AcksLevel, Key, Outcome, Poll, Polled, Position, Send, Span};
use ringlog_bench::history::{CheckOptions, Checker, Operation, Rule, Verdict};
use ringlog_bench::random::SeededRandom;

const SEEDS: u64 = 120;
const STEPS: u64 = 300;
const PARTITIONS: u64 = 3;
const PRODUCERS: u64 = 3;
const CONSUMERS: u64 = 3;
const FINAL_READER: u64 = 99;

/// A log that is always right, and clients of it.
struct Model {
    random: SeededRandom,
    clock: u64,
    next_value: u64,
    /// Offset -> value; offsets may have gaps, as control records make them.
    logs: Vec<BTreeMap<i64, u64>>,
    ends: Vec<i64>,
    starts: Vec<i64>,
    positions: BTreeMap<u64, BTreeMap<usize, i64>>,
    history: Vec<Operation>,
}

fn key(partition: usize) -> Key {
    Key { topic: String::new(), partition: partition as i32 }
}

impl Model {
    fn new(seed: u64) -> Model {
        let partitions = PARTITIONS as usize;
        Model {
            random: SeededRandom::new(seed),
            clock: 1,
            next_value: 1,
            logs: vec![BTreeMap::new(); partitions],
            ends: vec![0; partitions],
            starts: vec![0; partitions],
            positions: BTreeMap::new(),
            history: Vec::new(),
        }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.next_u64() % bound
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    fn partition(&mut self) -> usize {
        self.below(PARTITIONS) as usize
    }

    fn span(&mut self) -> Option<Span> {
        let start = self.clock;
        self.clock += 1 + self.below(1_000_000);
        Some(Span { start, end: self.clock })
    }

    fn append(&mut self, partition: usize, values: &[u64]) -> i64 {
        if self.chance(8) {
            self.ends[partition] += 1;
        }
        let base = self.ends[partition];
        for value in values {
            let offset = self.ends[partition];
            self.logs[partition].insert(offset, *value);
            self.ends[partition] += 1;
        }
        base
    }

    fn send(&mut self) {
        let partition = self.partition();
        let count = 1 + self.below(4);
        let values: Vec<u64> = (self.next_value..self.next_value + count).collect();
        self.next_value += count;
        let acks = match self.below(4) {
            0 => AcksLevel::None,
            1 => AcksLevel::Leader,
            _ => AcksLevel::All,
        };
        let is_idempotent = acks == AcksLevel::All && self.chance(2);
        let is_retried = acks != AcksLevel::None && self.chance(6);
        let (outcome, happens) = match self.below(10) {
            0 => (Outcome::Fail, false),
            1 => (Outcome::Info, true),
            2 => (Outcome::Info, false),
            _ => (Outcome::Ok, acks != AcksLevel::None || !self.chance(4)),
        };
        let mut offset = None;
        if happens {
            offset = Some(self.append(partition, &values));
            if is_retried && !is_idempotent && self.chance(2) {
                // The first sending had effect too.
                let repeated = self.append(partition, &values);
                offset = Some(if self.chance(2) { repeated } else { offset.unwrap_or(repeated) });
            }
        }
        let is_told = outcome == Outcome::Ok && acks != AcksLevel::None && !(is_idempotent && self.chance(5));
        let send = Send {
            process: self.below(PRODUCERS),
            key: key(partition),
            values,
            offset: offset.filter(|_| is_told),
            acks,
            is_idempotent,
            is_retried: is_retried && outcome != Outcome::Fail,
            is_final: false,
            outcome,
            span: self.span(),
        };
        self.history.push(Operation::Send(send));
    }

    fn assign(&mut self, process: u64) {
        let mut assigned = BTreeMap::new();
        for partition in 0..PARTITIONS as usize {
            if !self.chance(3) {
                let (start, end) = (self.starts[partition], self.ends[partition]);
                let from = start + self.below((end - start + 1) as u64) as i64;
                assigned.insert(partition, from);
            }
        }
        let positions = assigned
            .iter()
            .map(|(partition, offset)| Position { key: key(*partition), offset: Some(*offset) });
        self.history.push(Operation::Assign { process, positions: positions.collect() });
        self.positions.insert(process, assigned);
    }

    fn poll(&mut self, process: u64, records_max: usize) {
        let assigned = self.positions.get(&process).cloned().unwrap_or_default();
        let mut polled = Vec::new();
        for (partition, position) in assigned {
            let position = position.max(self.starts[partition]);
            let records: Vec<(i64, Option<u64>)> = self.logs[partition]
                .range(position..)
                .take(records_max)
                .map(|(offset, value)| (*offset, Some(*value)))
                .collect();
            let is_whole = records.len() < records_max;
            let next = match records.last() {
                _ if is_whole => self.ends[partition],
                Some((offset, _)) => offset + 1,
                None => position,
            };
            polled.push(Polled { key: key(partition), records, next: is_whole.then_some(next) });
            self.positions.entry(process).or_default().insert(partition, next);
        }
        let span = self.span();
        self.history.push(Operation::Poll(Poll { process, polled, is_rebalanced: false, span }));
    }

    fn delete(&mut self) {
        let partition = self.partition();
        let (start, end) = (self.starts[partition], self.ends[partition]);
        let log_start = start + self.below((end - start + 1) as u64) as i64;
        let outcome = if self.chance(4) { Outcome::Info } else { Outcome::Ok };
        if outcome == Outcome::Ok || self.chance(2) {
            self.starts[partition] = log_start;
            self.logs[partition] = self.logs[partition].split_off(&log_start);
        }
        self.history.push(Operation::Delete { key: key(partition), log_start, outcome });
    }

    fn finish(&mut self) {
        let partitions = 0..PARTITIONS as usize;
        let ends = partitions
            .clone()
            .map(|partition| Position { key: key(partition), offset: Some(self.ends[partition]) });
        let ends = ends.collect();
        let starts: BTreeMap<usize, i64> =
            partitions.map(|partition| (partition, self.starts[partition])).collect();
        let positions =
            starts.iter().map(|(partition, offset)| Position { key: key(*partition), offset: Some(*offset) });
        let positions = positions.collect();
        let span = self.span();
        self.history.push(Operation::Final { process: FINAL_READER, ends, span });
        self.history.push(Operation::Assign { process: FINAL_READER, positions });
        self.positions.insert(FINAL_READER, starts);
        while self.positions[&FINAL_READER].iter().any(|(partition, at)| *at < self.ends[*partition]) {
            self.poll(FINAL_READER, 50);
        }
        // A last poll, so that partitions which hold nothing any more are passed too.
        self.poll(FINAL_READER, 50);
    }

    fn run(seed: u64) -> Model {
        let mut model = Model::new(seed);
        for _ in 0..STEPS {
            let process = PRODUCERS + model.below(CONSUMERS);
            match model.below(40) {
                0 => model.assign(process),
                1 => {
                    model.history.push(Operation::Crash { process });
                    model.positions.remove(&process);
                }
                2 => model.delete(),
                3..20 => {
                    let records_max = 1 + model.below(5) as usize;
                    model.poll(process, records_max);
                }
                _ => model.send(),
            }
        }
        model.finish();
        model
    }
}

fn judge(history: &[Operation]) -> Verdict {
    let mut checker = Checker::new(CheckOptions::default());
    for (line, operation) in (1..).zip(history) {
        // Through the text form, so that what is written is what is judged.
        let operation = Operation::from_json(operation.to_json().as_bytes()).expect("our own line");
        checker.apply(&operation, Place { file: 0, line }).expect("values are unique");
    }
    checker.finish()
}

#[test]
fn no_valid_execution_is_an_anomaly() {
    let mut seen = 0;
    for seed in 0..SEEDS {
        let verdict = judge(&Model::run(seed).history);
        assert!(verdict.is_clean && verdict.has_final_read, "seed {seed}: {:#?}", verdict.anomalies);
        seen += verdict.counts.values_read;
    }
    assert!(seen > SEEDS * 100, "{seen} values read: the model does next to nothing");
}

/// Values of acks=all sends that were acknowledged with an offset and are still required at the end.
fn acknowledged(model: &Model) -> Vec<u64> {
    let alive: BTreeSet<u64> = model.logs.iter().flat_map(|log| log.values().copied()).collect();
    let deleted: BTreeSet<&Key> = model
        .history
        .iter()
        .filter_map(|operation| match operation {
            Operation::Delete { key, .. } => Some(key),
            _ => None,
        })
        .collect();
    let sends = model.history.iter().filter_map(|operation| match operation {
        Operation::Send(send) => Some(send),
        _ => None,
    });
    sends
        .filter(|send| send.outcome == Outcome::Ok && send.acks == AcksLevel::All && send.offset.is_some())
        .filter(|send| !deleted.contains(&send.key) && !send.is_retried)
        .flat_map(|send| send.values.iter().copied())
        .filter(|value| alive.contains(value))
        .collect()
}

fn polls(history: &mut [Operation]) -> impl Iterator<Item = &mut Poll> {
    history.iter_mut().filter_map(|operation| match operation {
        Operation::Poll(poll) => Some(poll),
        _ => None,
    })
}

fn found(history: &[Operation]) -> BTreeSet<Rule> {
    judge(history).anomalies.iter().map(|anomaly| anomaly.rule).collect()
}

#[test]
fn a_value_that_nobody_reads_is_found() {
    let mut tried = 0;
    for seed in 0..SEEDS {
        let mut model = Model::run(seed);
        let Some(victim) = acknowledged(&model).into_iter().next() else { continue };
        for poll in polls(&mut model.history) {
            for polled in &mut poll.polled {
                polled.records.retain(|(_, value)| *value != Some(victim));
            }
        }
        let rules = found(&model.history);
        assert!(rules.contains(&Rule::LostWrite), "seed {seed}, value {victim}: {rules:?}");
        tried += 1;
    }
    assert!(tried > SEEDS / 10, "{tried}");
}

#[test]
fn a_failed_send_that_is_there_is_found() {
    for seed in 0..SEEDS {
        let mut model = Model::run(seed);
        let Some(victim) = acknowledged(&model).into_iter().next() else { continue };
        for operation in &mut model.history {
            if let Operation::Send(send) = operation
                && send.values.contains(&victim)
            {
                send.outcome = Outcome::Fail;
            }
        }
        let rules = found(&model.history);
        assert!(rules.contains(&Rule::AbortedRead), "seed {seed}, value {victim}: {rules:?}");
    }
}

#[test]
fn values_that_change_places_are_found() {
    for seed in 0..SEEDS {
        let mut model = Model::run(seed);
        let Some(victim) = acknowledged(&model).into_iter().next() else { continue };
        let last = polls(&mut model.history)
            .flat_map(|poll| &mut poll.polled)
            .flat_map(|polled| &mut polled.records);
        for (_, value) in last.filter(|(_, value)| *value == Some(victim)) {
            *value = None;
        }
        let rules = found(&model.history);
        assert_eq!(rules, BTreeSet::from([Rule::UnknownValue]), "seed {seed}, value {victim}");
    }
}

#[test]
fn a_final_read_that_stops_early_is_found() {
    for seed in 0..SEEDS {
        let mut model = Model::run(seed);
        let last_full = model.history.iter().rposition(|operation| {
            matches!(operation, Operation::Poll(poll) if poll.process == FINAL_READER && poll.polled.iter().any(|polled| !polled.records.is_empty()))
        });
        let Some(last_full) = last_full else { continue };
        model.history.truncate(last_full);
        let rules = found(&model.history);
        assert!(rules.contains(&Rule::Stuck), "seed {seed}: {rules:?}");
    }
}
