//! What clients did and saw. The rules of a log are those of `ringlog_bench::history`, which judges torture on real kernels
//! too; here are only the rules that need to know more: density of offsets, ends, promptness, topics. Knows no broker and
//! no simulation.
//!
//! Every record has an id of its own, so whoever reads it knows who sent it, when, and what came of it. Ids and offsets
//! are dense, so everything is looked up by index: checking must cost little beside what is checked.

use std::time::Duration;

use ringlog_bench::history::check::{CheckOptions, Place as Line};
use ringlog_bench::history::operation::{AcksLevel, Key, Outcome, Poll, Polled, Position, Send, Span};
use ringlog_bench::history::{Checker, Operation, Rule, Verdict};

/// A record that was acknowledged while the broker served undisturbed reaches every prompt reader within this time. Well
/// below the readers' longest wait, so a reader that is not woken shows.
pub const PROMPT_WITHIN: Duration = Duration::from_secs(1);

/// Readers are named to the checker by numbers above those of the senders.
const FIRST_READER: u64 = 1 << 32;

/// Names a record: the sender in the upper half, its own count in the lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordId(pub u64);

impl RecordId {
    fn new(sender: u32, number: usize) -> RecordId {
        RecordId(u64::from(sender) << 32 | number as u64)
    }

    fn sender(self) -> usize {
        (self.0 >> 32) as usize
    }

    fn number(self) -> usize {
        (self.0 & u64::from(u32::MAX)) as usize
    }
}

/// A partition of some topic, by the number that the history gave it.
pub type LogNumber = u32;

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub log: LogNumber,
    pub offset: i64,
}

/// What a sender may rely on. Nothing is promised for acks=0; records of an idempotent one are in the order in which they
/// were sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    pub acks: AcksLevel,
    pub is_idempotent: bool,
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A rule of the history checker, how often, and its first examples.
    Anomaly { rule: Rule, count: u64, examples: Vec<String> },
    /// A reader did not get the offset that follows its last one: there is neither compaction nor a transaction here, so
    /// every offset holds a record.
    Hole { reader: u32, log: LogNumber, expected: i64, got: i64 },
    /// The end of a log was said to be before a record acknowledged earlier.
    EndBehind { log: LogNumber, acked_end: i64, got: i64 },
    /// The start of a log was said to be before one that was told of earlier.
    StartBehind { log: LogNumber, told: i64, got: i64 },
    /// A prompt reader got a record late or never.
    Late { id: RecordId, after: Option<Duration> },
    /// A topic is missing although its creation was acknowledged, or there although its deletion was.
    Topic { name: String, reason: &'static str },
    /// Somebody could not do what must be possible.
    Failed { who: String, reason: String },
}

/// What clients asked for and got: the measure of the work done. What failed, and what nobody answers, is not in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    /// Batches that were acknowledged.
    pub produce: u64,
    /// Answers that acknowledged them: one may speak of several partitions.
    pub produce_answers: u64,
    /// Fetches that were answered.
    pub fetch: u64,
    /// Calls for metadata, offsets, topics, producer ids that succeeded.
    pub other: u64,
}

impl Operations {
    /// As a client counts them.
    pub fn total(self) -> u64 {
        self.produce + self.fetch + self.other
    }

    /// As they travel: requests that were answered.
    pub fn answers(self) -> u64 {
        self.produce_answers + self.fetch + self.other
    }
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    log: LogNumber,
    /// What is sent besides the id, in bytes.
    padding_bytes: u32,
    acked_ns: Option<u64>,
    /// When the prompt reader got it.
    arrived_ns: Option<u64>,
}

#[derive(Debug)]
struct Sender {
    promise: Promise,
    sent: Vec<Sent>,
    /// When its last batch was made; the checker takes batches in this order, so no two have one time.
    last_start_ns: u64,
}

/// One batch of a sender, from its making to its outcome.
#[derive(Clone, Debug)]
pub struct SentBatch {
    pub sender: u32,
    pub log: LogNumber,
    pub ids: Vec<RecordId>,
    start_ns: u64,
}

#[derive(Debug, Default)]
struct Log {
    /// Behind the last acknowledged record.
    acked_end: i64,
    /// Lower offsets may be gone.
    start: i64,
    /// Where somebody was told that it starts, at most: what is below is gone for ever.
    told_start: i64,
    /// Whether the prompt reader reads it.
    is_prompt: bool,
}

#[derive(Debug)]
struct Reader {
    /// What it read since its last poll was over, in the form of the checker.
    poll: Poll,
    /// By log, beginning with `first_log`: the offset that is to come next.
    next_offsets: Vec<i64>,
    first_log: LogNumber,
}

#[derive(Debug)]
pub struct History {
    checker: Checker,
    senders: Vec<Sender>,
    logs: Vec<Log>,
    readers: Vec<Reader>,
    prompt_reader: Option<u32>,
    /// From the moment at which something was in the way to the one at which it was not any more, in nanoseconds.
    disturbances: Vec<(u64, Option<u64>)>,
    violations: Vec<Violation>,
    /// Until then the node may say that its storage fails.
    refusals_until_ns: u64,
    pub operations: Operations,
    records_read: u64,
}

impl Default for History {
    fn default() -> History {
        // There is one node, whose word for acks=1 is as good as for acks=all.
        let options = CheckOptions { acks_1_is_durable: true, ..CheckOptions::default() };
        History {
            checker: Checker::new(options),
            senders: Vec::new(),
            logs: Vec::new(),
            readers: Vec::new(),
            prompt_reader: None,
            disturbances: Vec::new(),
            violations: Vec::new(),
            refusals_until_ns: 0,
            operations: Operations::default(),
            records_read: 0,
        }
    }
}

impl History {
    /// Names the logs of a new topic; they have consecutive numbers.
    pub fn add_logs(&mut self, count: u32) -> LogNumber {
        let first = self.logs.len() as LogNumber;
        self.logs.extend((0..count).map(|_| Log::default()));
        first
    }

    pub fn add_sender(&mut self, promise: Promise) -> u32 {
        self.senders.push(Sender { promise, sent: Vec::new(), last_start_ns: 0 });
        self.senders.len() as u32 - 1
    }

    /// A reader that begins at these places, which are of logs with consecutive numbers.
    pub fn add_reader(&mut self, places: &[Place]) -> u32 {
        let number = self.readers.len() as u32;
        let process = FIRST_READER + u64::from(number);
        let first_log = places.first().map_or(0, |place| place.log);
        self.readers.push(Reader {
            poll: Poll { process, polled: Vec::new(), is_rebalanced: false, span: None },
            next_offsets: places.iter().map(|place| place.offset).collect(),
            first_log,
        });
        let positions = places.iter().map(|place| position(*place)).collect();
        self.apply(&Operation::Assign { process, positions });
        number
    }

    /// A reader that must see everything in these logs soon. There is one.
    pub fn set_prompt(&mut self, reader: u32, logs: std::ops::Range<LogNumber>) {
        self.prompt_reader = Some(reader);
        for log in logs {
            self.logs[log as usize].is_prompt = true;
        }
    }

    /// Everything is healed: what this reader finds below these ends is the last word.
    pub fn set_last(&mut self, reader: u32, ends: &[Place], at_ns: u64) {
        let ends = ends.iter().map(|place| position(*place)).collect();
        let span = Some(Span { start: at_ns, end: at_ns });
        self.apply(&Operation::Final { process: FIRST_READER + u64::from(reader), ends, span });
    }

    /// What lies before an offset may be gone from now on: nothing is asked of it any more.
    pub fn delete(&mut self, log: LogNumber, before: i64) {
        let start = &mut self.logs[log as usize].start;
        *start = before.max(*start);
        self.apply(&Operation::Delete { key: key(log), log_start: before, outcome: Outcome::Ok });
    }

    /// The value of a record: its id, then bytes that follow from it.
    pub fn value(id: RecordId, padding_bytes: u32, value: &mut Vec<u8>) {
        value.clear();
        value.extend_from_slice(&id.0.to_be_bytes());
        value.resize(8 + padding_bytes as usize, filler(id));
    }

    /// A batch leaves its sender, with so many bytes in each record besides its id.
    pub fn send(&mut self, sender: u32, log: LogNumber, padding_bytes: &[u32], at_ns: u64) -> SentBatch {
        let state = &mut self.senders[sender as usize];
        let first = state.sent.len();
        let sent = |padding_bytes: &u32| Sent {
            log,
            padding_bytes: *padding_bytes,
            acked_ns: None,
            arrived_ns: None,
        };
        state.sent.extend(padding_bytes.iter().map(sent));
        state.last_start_ns = at_ns.max(state.last_start_ns + 1);
        let ids = (first..first + padding_bytes.len()).map(|number| RecordId::new(sender, number)).collect();
        SentBatch { sender, log, ids, start_ns: state.last_start_ns }
    }

    fn sent(&self, id: RecordId) -> Option<&Sent> {
        self.senders.get(id.sender())?.sent.get(id.number())
    }

    fn sent_mut(&mut self, id: RecordId) -> Option<&mut Sent> {
        self.senders.get_mut(id.sender())?.sent.get_mut(id.number())
    }

    /// What became of a batch. `offset` is that of its first record, `None` where no answer named it.
    pub fn settled(&mut self, batch: &SentBatch, outcome: Outcome, offset: Option<i64>, at_ns: u64) {
        let promise = self.senders[batch.sender as usize].promise;
        if outcome == Outcome::Ok && promise.acks != AcksLevel::None {
            for id in &batch.ids {
                self.sent_mut(*id).expect("acknowledged records were sent").acked_ns = Some(at_ns);
            }
            if let Some(offset) = offset {
                let acked_end = &mut self.logs[batch.log as usize].acked_end;
                *acked_end = (*acked_end).max(offset + batch.ids.len() as i64);
            }
        }
        self.apply(&Operation::Send(Send {
            process: u64::from(batch.sender),
            key: key(batch.log),
            values: batch.ids.iter().map(|id| id.0).collect(),
            offset,
            acks: promise.acks,
            is_idempotent: promise.is_idempotent,
            // A sender that is not idempotent repeats only what surely was not appended.
            is_retried: false,
            is_final: false,
            outcome,
            span: Some(Span { start: batch.start_ns, end: at_ns.max(batch.start_ns) }),
        }));
    }

    /// Behind the last record of the log that was acknowledged so far.
    pub fn acked_end(&self, log: LogNumber) -> i64 {
        self.logs[log as usize].acked_end
    }

    /// Somebody was told where a log ends; `acked_end` is what it was before the question.
    pub fn told_end(&mut self, log: LogNumber, acked_end: i64, got: i64) {
        if got < acked_end {
            self.violations.push(Violation::EndBehind { log, acked_end, got });
        }
    }

    /// The highest start that somebody was told of so far.
    pub fn told_start_max(&self, log: LogNumber) -> i64 {
        self.logs[log as usize].told_start
    }

    /// Somebody was told where a log starts; `told` is what had been told before the question.
    pub fn told_start(&mut self, log: LogNumber, told: i64, got: i64) {
        if got < told {
            self.violations.push(Violation::StartBehind { log, told, got });
        }
        let start = &mut self.logs[log as usize].told_start;
        *start = got.max(*start);
    }

    /// A record of the answer that the reader looks at.
    pub fn read(&mut self, reader: u32, place: Place, value: &[u8], at_ns: u64) {
        self.records_read += 1;
        self.check_density(reader, place);
        let id = self.recognise(value);
        if let Some(id) = id
            && self.prompt_reader == Some(reader)
            && let Some(sent) = self.sent_mut(id)
        {
            sent.arrived_ns.get_or_insert(at_ns);
        }
        let poll = &mut self.readers[reader as usize].poll;
        poll.span = Some(Span { start: at_ns, end: at_ns });
        let record = (place.offset, id.map(|id| id.0));
        let partition = place.log as i32;
        match poll.polled.last_mut().filter(|polled| polled.key.partition == partition) {
            Some(polled) => polled.records.push(record),
            None => poll.polled.push(Polled { key: key(place.log), records: vec![record], next: None }),
        }
    }

    /// The reader has looked at all of an answer.
    pub fn poll_over(&mut self, reader: u32) {
        let state = &mut self.readers[reader as usize];
        if state.poll.polled.is_empty() {
            return;
        }
        let next = Poll { polled: Vec::new(), ..state.poll };
        let poll = Operation::Poll(std::mem::replace(&mut state.poll, next));
        self.apply(&poll);
    }

    fn apply(&mut self, operation: &Operation) {
        if let Err(error) = self.checker.apply(operation, Line::default()) {
            self.broken(Violation::Failed { who: "history".to_owned(), reason: error.to_string() });
        }
    }

    fn check_density(&mut self, reader: u32, place: Place) {
        let Place { log, offset } = place;
        let state = &mut self.readers[reader as usize];
        let next =
            log.checked_sub(state.first_log).and_then(|index| state.next_offsets.get_mut(index as usize));
        let expected = next.map_or(0, |next| std::mem::replace(next, offset + 1));
        if offset != expected && offset != self.logs[log as usize].start.max(expected) {
            self.violations.push(Violation::Hole { reader, log, expected, got: offset });
        }
    }

    /// Something is in the way of promptness from now on, until [`History::healed`].
    pub fn disturbed(&mut self, at_ns: u64) {
        if self.disturbances.last().is_none_or(|(_, end)| end.is_some()) {
            self.disturbances.push((at_ns, None));
        }
    }

    pub fn healed(&mut self, at_ns: u64) {
        if let Some(disturbance) = self.disturbances.last_mut() {
            disturbance.1.get_or_insert(at_ns);
        }
    }

    /// The node may say until then that its storage fails: it does, or did a moment ago.
    pub fn allow_refusals(&mut self, until_ns: u64) {
        self.refusals_until_ns = until_ns;
    }

    pub fn may_be_refused(&self, at_ns: u64) -> bool {
        at_ns <= self.refusals_until_ns
    }

    pub fn broken(&mut self, violation: Violation) {
        self.violations.push(violation);
    }

    pub fn acked_count(&self) -> u64 {
        self.all_sent().filter(|(_, sent)| sent.acked_ns.is_some()).count() as u64
    }

    pub fn sent_count(&self) -> u64 {
        self.senders.iter().map(|sender| sender.sent.len() as u64).sum()
    }

    pub fn read_count(&self) -> u64 {
        self.records_read
    }

    /// The record whose bytes these are, if they are those of one.
    fn recognise(&self, value: &[u8]) -> Option<RecordId> {
        let (bytes, padding) = value.split_first_chunk::<8>()?;
        let id = RecordId(u64::from_be_bytes(*bytes));
        let sent = self.sent(id)?;
        // One pass without a branch a byte.
        let differs = padding.iter().fold(0, |differs, byte| differs | (byte ^ filler(id)));
        (differs == 0 && padding.len() == sent.padding_bytes as usize).then_some(id)
    }

    /// Every record, in order of senders, then of sending.
    fn all_sent(&self) -> impl Iterator<Item = (RecordId, &Sent)> {
        (0..).zip(&self.senders).flat_map(|(number, sender)| {
            let records = sender.sent.iter().enumerate();
            records.map(move |(index, sent)| (RecordId::new(number, index), sent))
        })
    }

    /// Every broken rule. Nothing can be added afterwards.
    pub fn check(&mut self) -> Vec<Violation> {
        for reader in 0..self.readers.len() as u32 {
            self.poll_over(reader);
        }
        let mut violations = std::mem::take(&mut self.violations);
        let Verdict { anomalies, .. } = std::mem::take(&mut self.checker).finish();
        violations.extend(anomalies.into_iter().map(|anomaly| Violation::Anomaly {
            rule: anomaly.rule,
            count: anomaly.count,
            examples: anomaly.examples.into_iter().take(EXAMPLES_SHOWN).collect(),
        }));
        self.check_promptness(&mut violations);
        violations
    }

    fn check_promptness(&self, violations: &mut Vec<Violation>) {
        if self.prompt_reader.is_none() {
            return;
        }
        let within = PROMPT_WITHIN.as_nanos() as u64;
        // Clients need a moment to notice that something is over and to come back.
        let disturbed = |from: u64, to: u64| {
            let overlaps = |(start, end): &(u64, Option<u64>)| {
                *start <= to && end.is_none_or(|end| end + within >= from)
            };
            self.disturbances.iter().any(overlaps)
        };
        for (id, sent) in self.all_sent() {
            let Some(at_ns) = sent.acked_ns.filter(|_| self.logs[sent.log as usize].is_prompt) else {
                continue;
            };
            let is_late = sent.arrived_ns.is_none_or(|arrived| arrived > at_ns + within);
            if is_late && !disturbed(at_ns, at_ns + within) {
                let after = sent.arrived_ns.map(|arrived| Duration::from_nanos(arrived - at_ns));
                violations.push(Violation::Late { id, after });
            }
        }
    }
}

/// Examples of a broken rule that are kept.
const EXAMPLES_SHOWN: usize = 3;

fn key(log: LogNumber) -> Key {
    Key { topic: String::new(), partition: log as i32 }
}

fn position(place: Place) -> Position {
    Position { key: key(place.log), offset: Some(place.offset) }
}

fn filler(id: RecordId) -> u8 {
    (id.0 % 251) as u8
}

/// The rules of a log are tested where they are; here that a history reaches them, and the rules beside them.
#[cfg(test)]
mod tests {
    use super::*;

    const STRICT: Promise = Promise { acks: AcksLevel::All, is_idempotent: true };
    const SECOND_NS: u64 = 1_000_000_000;
    const LAST: u32 = 9;

    fn at(offset: i64) -> Place {
        Place { log: 0, offset }
    }

    fn value(id: RecordId) -> Vec<u8> {
        let mut bytes = Vec::new();
        History::value(id, 3, &mut bytes);
        bytes
    }

    /// One log, one sender, and reader 0, which is prompt.
    fn empty(promise: Promise) -> History {
        let mut history = History::default();
        history.add_logs(1);
        history.add_sender(promise);
        for _ in 0..10 {
            history.add_reader(&[at(0)]);
        }
        history.set_prompt(0, 0..1);
        history
    }

    fn acked(history: &mut History, offset: Option<i64>, at_ns: u64) -> RecordId {
        let batch = history.send(0, 0, &[3], at_ns);
        history.settled(&batch, Outcome::Ok, offset, at_ns);
        batch.ids[0]
    }

    /// Two records, sent, acknowledged, read by reader 0 at once.
    fn sound() -> (History, [RecordId; 2]) {
        let mut history = empty(STRICT);
        let ids = [0, 1].map(|offset| {
            let id = acked(&mut history, Some(offset), 10 * SECOND_NS);
            history.read(0, at(offset), &value(id), 10 * SECOND_NS + 5);
            history.poll_over(0);
            id
        });
        (history, ids)
    }

    fn finish(mut history: History, last: &[(i64, RecordId)], end: i64) -> Vec<Violation> {
        history.set_last(LAST, &[at(end)], 20 * SECOND_NS);
        for (offset, id) in last {
            history.read(LAST, at(*offset), &value(*id), 20 * SECOND_NS);
        }
        history.check()
    }

    fn rules(violations: &[Violation]) -> Vec<Rule> {
        let rule = |violation: &Violation| match violation {
            Violation::Anomaly { rule, .. } => Some(*rule),
            _ => None,
        };
        violations.iter().filter_map(rule).collect()
    }

    #[test]
    fn a_sound_history_breaks_no_rule() {
        let (history, [a, b]) = sound();
        assert_eq!(finish(history, &[(0, a), (1, b)], 2), []);
    }

    #[test]
    fn what_the_checker_finds_is_a_violation() {
        let (history, [a, _]) = sound();
        assert_eq!(rules(&finish(history, &[(0, a)], 1)), [Rule::Vanished]);

        let (mut history, [a, b]) = sound();
        acked(&mut history, Some(2), 11 * SECOND_NS);
        assert_eq!(rules(&finish(history, &[(0, a), (1, b)], 2)), [Rule::Unseen]);

        let (mut history, [a, b]) = sound();
        let batch = history.send(0, 0, &[3], 11 * SECOND_NS);
        history.settled(&batch, Outcome::Info, None, 12 * SECOND_NS);
        assert_eq!(finish(history, &[(0, a), (1, b), (2, batch.ids[0])], 3), []);

        let (history, [a, b]) = sound();
        assert_eq!(rules(&finish(history, &[(0, a), (1, b), (2, a)], 3)), [Rule::Duplicate]);
    }

    #[test]
    fn bytes_that_nobody_sent_are_found() {
        let (mut history, [a, b]) = sound();
        let mut other_bytes = value(a);
        other_bytes[10] ^= 1;
        let mut longer = value(a);
        longer.push(longer[10]);
        for (offset, bytes) in (0..).zip([&value(RecordId(7))[..], b"short", &other_bytes, &longer]) {
            history.read(8, at(offset), bytes, 0);
        }
        let violations = finish(history, &[(0, a), (1, b)], 2);
        let count = |violation: &Violation| match violation {
            Violation::Anomaly { rule: Rule::UnknownValue, count, .. } => *count,
            _ => 0,
        };
        assert_eq!(violations.iter().map(count).sum::<u64>(), 4, "{violations:#?}");
    }

    #[test]
    fn what_is_deleted_or_not_promised_may_be_lost() {
        let (mut history, _) = sound();
        acked(&mut history, Some(2), 10 * SECOND_NS);
        history.prompt_reader = None;
        history.delete(0, i64::MAX);
        assert_eq!(history.check(), []);

        let mut history = empty(Promise { acks: AcksLevel::None, is_idempotent: false });
        acked(&mut history, None, SECOND_NS);
        assert_eq!(finish(history, &[], 0), []);
    }

    #[test]
    fn an_offset_without_a_record_is_a_hole_unless_the_log_starts_behind_it() {
        let mut history = empty(STRICT);
        history.prompt_reader = None;
        let id = acked(&mut history, Some(1), SECOND_NS);
        let hole = Violation::Hole { reader: LAST, log: 0, expected: 0, got: 1 };
        assert_eq!(finish(history, &[(1, id)], 2), [hole]);

        let mut history = empty(STRICT);
        history.prompt_reader = None;
        let id = acked(&mut history, Some(1), SECOND_NS);
        history.delete(0, 1);
        assert_eq!(finish(history, &[(1, id)], 2), []);
    }

    #[test]
    fn a_reader_goes_on_where_it_began() {
        let (mut history, [a, b]) = sound();
        let reader = history.add_reader(&[at(1)]);
        history.read(reader, at(1), &value(b), 0);
        assert_eq!(finish(history, &[(0, a), (1, b)], 2), []);
    }

    #[test]
    fn an_end_before_what_was_acknowledged_is_found() {
        let (mut history, [a, b]) = sound();
        let acked_end = history.acked_end(0);
        assert_eq!(acked_end, 2);
        history.told_end(0, acked_end, 2);
        history.told_end(0, acked_end, 1);
        let behind = Violation::EndBehind { log: 0, acked_end: 2, got: 1 };
        assert_eq!(finish(history, &[(0, a), (1, b)], 2), [behind]);
    }

    #[test]
    fn a_reader_that_is_not_woken_is_found_unless_something_was_in_the_way() {
        let late = |disturbance: Option<(u64, u64)>, arrived: Option<u64>| {
            let mut history = empty(STRICT);
            if let Some((from, to)) = disturbance {
                history.disturbed(from * SECOND_NS);
                history.healed(to * SECOND_NS);
            }
            let id = acked(&mut history, Some(0), 10 * SECOND_NS);
            if let Some(arrived) = arrived {
                history.read(0, at(0), &value(id), arrived * SECOND_NS);
            }
            finish(history, &[(0, id)], 1)
        };
        let after = |seconds| Violation::Late { id: RecordId(0), after: seconds };
        assert_eq!(late(None, Some(15)), [after(Some(Duration::from_secs(5)))]);
        assert_eq!(late(None, None), [after(None)]);
        assert_eq!(late(Some((1, 2)), Some(15)), [after(Some(Duration::from_secs(5)))]);
        assert_eq!(late(None, Some(11)), []);
        assert_eq!(late(Some((10, 14)), Some(15)), []);
        assert_eq!(late(Some((7, 9)), Some(15)), []);
    }
}
