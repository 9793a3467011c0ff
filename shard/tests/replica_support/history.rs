//! What clients did and saw, for the checker of `ringlog_bench::history`, which knows the rules.

use ringlog_bench::history::check::{CheckOptions, Place};
use ringlog_bench::history::operation::{AcksLevel, Key, Outcome, Poll, Polled, Position, Send, Span};
use ringlog_bench::history::{Checker, Operation};

/// Consumers are named by numbers above those of the producers.
pub const FIRST_CONSUMER: u64 = 1 << 32;

pub struct History {
    checker: Option<Checker>,
    starts: Vec<i64>,
    producers: Vec<Named>,
    pub acknowledged: u64,
    pub read: u64,
    pub acked_ends: Vec<i64>,
}

/// A producer.
struct Named {
    partition: i32,
    is_idempotent: bool,
    values: u64,
    last_start_ns: u64,
    /// Behind its last acknowledged record.
    acked_end: i64,
}

/// A batch that a producer made.
#[derive(Clone, Debug)]
pub struct Batch {
    pub producer: u64,
    pub partition: i32,
    pub values: Vec<u64>,
    pub start_ns: u64,
}

impl History {
    pub fn new(partitions: i32) -> History {
        let zeros = vec![0; partitions as usize];
        History {
            checker: Some(Checker::new(CheckOptions::default())),
            starts: zeros.clone(),
            producers: Vec::new(),
            acknowledged: 0,
            read: 0,
            acked_ends: zeros,
        }
    }

    pub fn add_producer(&mut self, partition: i32, is_idempotent: bool) -> u64 {
        self.producers.push(Named { partition, is_idempotent, values: 0, last_start_ns: 0, acked_end: 0 });
        self.producers.len() as u64 - 1
    }

    pub fn make(&mut self, producer: u64, partition: i32, records: u64, now_ns: u64) -> Batch {
        let named = &mut self.producers[producer as usize];
        let values = (named.values..named.values + records).map(|count| producer << 32 | count).collect();
        named.values += records;
        named.last_start_ns = now_ns.max(named.last_start_ns + 1);
        Batch { producer, partition, values, start_ns: named.last_start_ns }
    }

    /// Below it no idempotent producer of the partition has a batch that it may still send again.
    pub fn known_to_all(&self, partition: i32) -> i64 {
        let of_partition =
            self.producers.iter().filter(|named| named.partition == partition && named.is_idempotent);
        of_partition.map(|named| named.acked_end).min().unwrap_or(0)
    }

    pub fn settled(&mut self, batch: &Batch, sent: Sent, outcome: Outcome, now_ns: u64) {
        if outcome == Outcome::Ok && sent.acks == AcksLevel::All {
            self.acknowledged += batch.values.len() as u64;
            let end = sent.offset.map_or(0, |offset| offset + batch.values.len() as i64);
            let acked = &mut self.acked_ends[batch.partition as usize];
            *acked = end.max(*acked);
            self.producers[batch.producer as usize].acked_end = end;
        }
        self.apply(&Operation::Send(Send {
            process: batch.producer,
            key: key(batch.partition),
            values: batch.values.clone(),
            offset: sent.offset,
            acks: sent.acks,
            is_idempotent: sent.is_idempotent,
            is_retried: sent.is_retried,
            is_final: false,
            outcome,
            span: Some(Span { start: batch.start_ns, end: now_ns.max(batch.start_ns) }),
        }));
    }

    pub fn assign(&mut self, consumer: u64, partition: i32, offset: i64) {
        let positions = vec![Position { key: key(partition), offset: Some(offset) }];
        self.apply(&Operation::Assign { process: FIRST_CONSUMER + consumer, positions });
    }

    pub fn polled(&mut self, consumer: u64, partition: i32, records: Vec<(i64, Option<u64>)>, now_ns: u64) {
        self.read += records.len() as u64;
        let polled = vec![Polled { key: key(partition), records, next: None }];
        let span = Some(Span { start: now_ns, end: now_ns });
        let process = FIRST_CONSUMER + consumer;
        self.apply(&Operation::Poll(Poll { process, polled, is_rebalanced: false, span }));
    }

    /// Somebody was told that the log starts here.
    pub fn told_start(&mut self, partition: i32, log_start: i64) {
        let start = &mut self.starts[partition as usize];
        if log_start > *start {
            *start = log_start;
            self.apply(&Operation::Delete { key: key(partition), log_start, outcome: Outcome::Ok });
        }
    }

    /// Everything is healed: what this consumer finds below these ends is the last word.
    pub fn last_word(&mut self, consumer: u64, ends: &[(i32, i64)], now_ns: u64) {
        let ends = ends.iter().map(|(partition, end)| Position { key: key(*partition), offset: Some(*end) });
        let span = Some(Span { start: now_ns, end: now_ns });
        self.apply(&Operation::Final { process: FIRST_CONSUMER + consumer, ends: ends.collect(), span });
    }

    fn apply(&mut self, operation: &Operation) {
        let checker = self.checker.as_mut().expect("not judged yet");
        checker.apply(operation, Place::default()).expect("operations of our own make sense");
    }

    /// Every broken rule, as text.
    pub fn judge(&mut self) -> Vec<String> {
        let verdict = self.checker.take().expect("judged once").finish();
        verdict.anomalies.iter().map(|anomaly| format!("{anomaly:?}")).collect()
    }
}

/// How a batch was sent.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    pub acks: AcksLevel,
    pub is_idempotent: bool,
    pub is_retried: bool,
    pub offset: Option<i64>,
}

fn key(partition: i32) -> Key {
    Key { topic: String::new(), partition }
}
