//! One pass over the operations: what was sent, what stands where, how consumers moved.

use std::collections::BTreeMap;

use super::consumer::{Consumer, KeyNumber, Visit, numbered};
use super::judge;
use super::key_log::{FinalRead, KeyLog};
use super::operation::{AcksLevel, Key, Operation, Outcome, Poll, Position, Send, Span};
use super::read::HistoryError;
use super::verdict::{Counts, Findings, Verdict};

/// What is held against a history.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Whether acks=1 promises what acks=all does (one node, or a leader that cannot lose its place).
    pub acks_1_is_durable: bool,
    /// Most values, about 200 bytes each.
    pub values_max: u64,
    /// How long a healed system may take to get on, nanoseconds.
    pub stuck_after: u64,
}

impl Default for CheckOptions {
    fn default() -> CheckOptions {
        CheckOptions { acks_1_is_durable: false, values_max: 20_000_000, stuck_after: 10_000_000_000 }
    }
}

/// A line of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The number that [`Checker::add_file`] gave.
    pub file: u32,
    /// From 1.
    pub line: u64,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.file == 0 {
            write!(f, "line {}", self.line)
        } else {
            write!(f, "file {}, line {}", self.file + 1, self.line)
        }
    }
}

/// A batch that was sent.
#[derive(Clone, Debug)]
pub struct SentBatch {
    /// Who.
    pub process: u64,
    /// Where to.
    pub key: KeyNumber,
    /// The first value; the others are in `values`.
    pub values: Box<[u64]>,
    /// Of the first record.
    pub offset: Option<i64>,
    /// See [`Send`].
    pub acks: AcksLevel,
    /// See [`Send`].
    pub is_idempotent: bool,
    /// See [`Send`].
    pub is_retried: bool,
    /// See [`Send`].
    pub is_final: bool,
    /// See [`Send`].
    pub outcome: Outcome,
    /// See [`Send`].
    pub span: Option<Span>,
    /// Where the history says so.
    pub place: Place,
}

/// What is known of one value.
#[derive(Clone, Copy, Debug, Default)]
pub struct ValueState {
    /// Its batch's number.
    pub sent: Option<usize>,
    /// Where it was read first.
    pub read: Option<(KeyNumber, i64)>,
    /// Where else, if it was read elsewhere.
    pub read_again: Option<(KeyNumber, i64)>,
    /// When the first poll with it ended; 0 = unknown.
    pub read_at: u64,
}

/// Gathers a history.
#[derive(Debug, Default)]
pub struct Checker {
    pub(super) options: CheckOptions,
    pub(super) logs: Vec<KeyLog>,
    pub(super) sent: Vec<SentBatch>,
    pub(super) values: BTreeMap<u64, ValueState>,
    pub(super) findings: Findings,
    pub(super) counts: Counts,
    numbers: BTreeMap<Key, KeyNumber>,
    consumers: BTreeMap<u64, Consumer>,
    files: Vec<String>,
}

impl Checker {
    /// A checker that has seen nothing.
    pub fn new(options: CheckOptions) -> Checker {
        Checker { options, ..Checker::default() }
    }

    /// Announces a file; places name it by the number returned.
    pub fn add_file(&mut self, name: &str) -> u32 {
        self.files.push(name.to_owned());
        u32::try_from(self.files.len() - 1).unwrap_or(u32::MAX)
    }

    /// Takes one operation.
    ///
    /// # Errors
    /// [`HistoryError::Repeated`] and [`HistoryError::TooMany`].
    pub fn apply(&mut self, operation: &Operation, place: Place) -> Result<(), HistoryError> {
        self.counts.operations += 1;
        match operation {
            Operation::Send(send) => return self.send(send, place),
            Operation::Poll(poll) => {
                self.poll(poll, place);
                return self.bound(place);
            }
            Operation::Assign { process, positions } => {
                let positions = numbered(positions, |position| self.number(&position.key));
                self.consumer(*process).assign(positions.into_iter());
            }
            Operation::Subscribe { process } => self.consumer(*process).subscribe(),
            Operation::Crash { process } => {
                self.counts.crashes += 1;
                self.consumer(*process).crash();
            }
            Operation::Delete { outcome: Outcome::Fail, .. } => {}
            // One of unknown outcome may have happened, so what it covers cannot be required.
            Operation::Delete { key, log_start, .. } => {
                let log = self.log(key);
                log.log_start = log.log_start.max(*log_start);
            }
            Operation::Damaged { key, from } => {
                let log = self.log(key);
                log.damaged_from = log.damaged_from.min(*from);
            }
            Operation::Final { process, ends, span } => self.start_final_read(*process, ends, *span),
        }
        Ok(())
    }

    /// Judges what was gathered.
    pub fn finish(mut self) -> Verdict {
        self.counts.partitions = self.logs.len() as u64;
        self.counts.processes = self.consumers.len() as u64;
        judge::judge(self)
    }

    fn send(&mut self, send: &Send, place: Place) -> Result<(), HistoryError> {
        self.consumer(send.process);
        let number = self.sent.len();
        for value in &send.values {
            let state = self.values.entry(*value).or_default();
            if let Some(earlier) = state.sent {
                let earlier = self.sent.get(earlier).map_or(place.line, |sent| sent.place.line);
                let file = self.file_name(place);
                return Err(HistoryError::Repeated { file, line: place.line, value: *value, earlier });
            }
            state.sent = Some(number);
        }
        match send.outcome {
            Outcome::Ok => self.counts.sends_ok += 1,
            Outcome::Fail => self.counts.sends_fail += 1,
            Outcome::Info => self.counts.sends_info += 1,
        }
        let key = self.number(&send.key);
        self.sent.push(SentBatch {
            process: send.process,
            key,
            values: send.values.clone().into_boxed_slice(),
            offset: send.offset,
            acks: send.acks,
            is_idempotent: send.is_idempotent,
            is_retried: send.is_retried,
            is_final: send.is_final,
            outcome: send.outcome,
            span: send.span,
            place,
        });
        self.bound(place)
    }

    fn poll(&mut self, poll: &Poll, place: Place) {
        self.counts.polls += 1;
        for polled in &poll.polled {
            self.counts.records_polled += polled.records.len() as u64;
            let number = self.number(&polled.key);
            let Checker { logs, consumers, values, findings, .. } = self;
            let Some(log) = logs.get_mut(number) else { continue };
            let visit = Visit {
                process: poll.process,
                polled,
                is_rebalanced: poll.is_rebalanced,
                span: poll.span,
                place,
            };
            let consumer = consumers.entry(poll.process).or_default();
            consumer.visit(number, log, &visit, findings, |offset, value| {
                let state = values.entry(value).or_default();
                match state.read {
                    None => {
                        state.read = Some((number, offset));
                        state.read_at = poll.span.map_or(0, |span| span.end);
                    }
                    Some(first) if first != (number, offset) => {
                        state.read_again.get_or_insert((number, offset));
                    }
                    Some(_) => {}
                }
            });
        }
    }

    fn start_final_read(&mut self, process: u64, ends: &[Position], span: Option<Span>) {
        self.consumer(process);
        for end in ends {
            let read = FinalRead {
                process,
                end: end.offset.unwrap_or(0),
                first: None,
                reached: 0,
                progress_at: span.map_or(0, |span| span.end),
                pause_max: 0,
            };
            self.log(&end.key).final_read = Some(read);
        }
    }

    fn bound(&self, place: Place) -> Result<(), HistoryError> {
        let values_max = self.options.values_max;
        if self.values.len() as u64 > values_max {
            return Err(HistoryError::TooMany { file: self.file_name(place), line: place.line, values_max });
        }
        Ok(())
    }

    fn file_name(&self, place: Place) -> String {
        self.files.get(place.file as usize).cloned().unwrap_or_else(|| "history".to_owned())
    }

    fn consumer(&mut self, process: u64) -> &mut Consumer {
        self.consumers.entry(process).or_default()
    }

    fn number(&mut self, key: &Key) -> KeyNumber {
        if let Some(number) = self.numbers.get(key) {
            return *number;
        }
        let number = self.logs.len();
        self.logs.push(KeyLog::new(key.clone()));
        self.numbers.insert(key.clone(), number);
        number
    }

    fn log(&mut self, key: &Key) -> &mut KeyLog {
        let number = self.number(key);
        self.logs.get_mut(number).expect("a number is given with its log")
    }
}
