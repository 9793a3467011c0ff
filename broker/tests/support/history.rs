//! What clients did and saw, and the rules that it must obey. Knows no broker and no simulation.
//!
//! Every record has an id of its own, so whoever reads it knows who sent it, when, and what came of it. Ids and offsets
//! are dense, so everything is looked up by index: checking must cost little beside what is checked.

use std::collections::BTreeMap;
use std::time::Duration;

/// A record that was acknowledged while the broker served undisturbed reaches every prompt reader within this time. Well
/// below the readers' longest wait, so a reader that is not woken shows.
pub const PROMPT_WITHIN: Duration = Duration::from_secs(1);

/// Offsets beyond what was seen of a log by more than this are not believed.
const OFFSETS_AHEAD_MAX: usize = 1_000_000;

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

/// What a sender may rely on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Whether acknowledged records last. Nothing is promised for acks=0.
    pub is_durable: bool,
    /// Whether records are in the order in which they were sent, once each.
    pub is_idempotent: bool,
}

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// An acknowledged record is not there at the end.
    LostWrite { id: RecordId, place: Option<Place> },
    /// A record that somebody has read is not there at the end.
    LostRead { id: RecordId, place: Place },
    /// One offset held two records.
    InconsistentOffset { place: Place, first: RecordId, second: RecordId },
    /// One record is at two places.
    Duplicate { id: RecordId, first: Place, second: Place },
    /// A record that nobody sent to this log, or whose bytes are not those sent.
    Invented { place: Place, reason: String },
    /// A reader did not get the offset that follows its last one.
    Jump { reader: u32, log: LogNumber, expected: i64, got: i64 },
    /// Acknowledged records of one idempotent sender lie in another order than they were sent in.
    Reordered { first: RecordId, second: RecordId },
    /// The end of a log was said to be before a record acknowledged earlier.
    EndBehind { log: LogNumber, acked_end: i64, got: i64 },
    /// A prompt reader got a record late or never.
    Late { id: RecordId, after: Option<Duration> },
    /// A topic is missing although its creation was acknowledged, or there although its deletion was.
    Topic { name: String, reason: &'static str },
    /// Somebody could not do what must be possible.
    Failed { who: String, reason: String },
}

/// Requests of clients that were answered as they should be: the measure of the work done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Operations {
    pub produce: u64,
    pub fetch: u64,
    /// Metadata, offsets, topics, producer ids.
    pub other: u64,
}

impl Operations {
    pub fn total(self) -> u64 {
        self.produce + self.fetch + self.other
    }
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    log: LogNumber,
    /// What is sent besides the id, in bytes.
    padding_bytes: u32,
    acked_ns: Option<u64>,
    /// Where it was first seen or said to be.
    offset: Option<i64>,
    /// Seen by a reader that is not the last one.
    is_read: bool,
    /// Seen by the last reader.
    is_found: bool,
    /// When the prompt reader got it.
    arrived_ns: Option<u64>,
}

#[derive(Debug)]
struct Sender {
    promise: Promise,
    sent: Vec<Sent>,
}

#[derive(Debug, Default)]
struct Log {
    /// Who was seen where, by any reader at any time.
    records: Vec<Option<RecordId>>,
    /// Behind the last acknowledged record.
    acked_end: i64,
    is_deleted: bool,
    /// Whether the prompt reader reads it.
    is_prompt: bool,
}

#[derive(Debug, Default)]
pub struct History {
    senders: Vec<Sender>,
    logs: Vec<Log>,
    /// By reader and log: the offset that is to come next.
    next_offsets: Vec<Vec<i64>>,
    prompt_reader: Option<u32>,
    /// From the moment at which the broker went down to the one at which it served again, in nanoseconds.
    outages: Vec<(u64, Option<u64>)>,
    violations: Vec<Violation>,
    pub operations: Operations,
    records_read: u64,
}

impl History {
    /// Names the logs of a new topic; they have consecutive numbers.
    pub fn add_logs(&mut self, count: u32) -> LogNumber {
        let first = self.logs.len() as LogNumber;
        self.logs.extend((0..count).map(|_| Log::default()));
        first
    }

    pub fn add_sender(&mut self, promise: Promise) -> u32 {
        self.senders.push(Sender { promise, sent: Vec::new() });
        self.senders.len() as u32 - 1
    }

    pub fn add_reader(&mut self) -> u32 {
        self.next_offsets.push(Vec::new());
        self.next_offsets.len() as u32 - 1
    }

    /// A reader that must see everything in these logs soon. There is one.
    pub fn set_prompt(&mut self, reader: u32, logs: std::ops::Range<LogNumber>) {
        self.prompt_reader = Some(reader);
        for log in logs {
            self.logs[log as usize].is_prompt = true;
        }
    }

    /// A log is about to be deleted: nothing is asked of it any more.
    pub fn delete(&mut self, log: LogNumber) {
        self.logs[log as usize].is_deleted = true;
    }

    /// The value of a record: its id, then bytes that follow from it.
    pub fn value(id: RecordId, padding_bytes: u32) -> Vec<u8> {
        let mut value = Vec::with_capacity(8 + padding_bytes as usize);
        value.extend_from_slice(&id.0.to_be_bytes());
        value.resize(8 + padding_bytes as usize, filler(id));
        value
    }

    /// A record leaves its sender.
    pub fn send(&mut self, sender: u32, log: LogNumber, padding_bytes: u32) -> RecordId {
        let sent = &mut self.senders[sender as usize].sent;
        sent.push(Sent {
            log,
            padding_bytes,
            acked_ns: None,
            offset: None,
            is_read: false,
            is_found: false,
            arrived_ns: None,
        });
        RecordId::new(sender, sent.len() - 1)
    }

    fn sent(&self, id: RecordId) -> Option<&Sent> {
        self.senders.get(id.sender())?.sent.get(id.number())
    }

    fn sent_mut(&mut self, id: RecordId) -> Option<&mut Sent> {
        self.senders.get_mut(id.sender())?.sent.get_mut(id.number())
    }

    /// `offset` is `None` where the broker confirmed a repeated batch without its place.
    pub fn acked(&mut self, id: RecordId, offset: Option<i64>, at_ns: u64) {
        let sent = self.sent_mut(id).expect("acknowledged records were sent");
        sent.acked_ns = Some(at_ns);
        let log = sent.log;
        if let Some(offset) = offset {
            self.locate(id, Place { log, offset });
            let acked_end = &mut self.logs[log as usize].acked_end;
            *acked_end = (*acked_end).max(offset + 1);
        }
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

    /// The reader begins somewhere else than at the start.
    pub fn seek(&mut self, reader: u32, place: Place) {
        self.expect_next(reader, place.log, place.offset);
    }

    /// Answers what was expected before.
    fn expect_next(&mut self, reader: u32, log: LogNumber, offset: i64) -> i64 {
        let of_reader = &mut self.next_offsets[reader as usize];
        if of_reader.len() <= log as usize {
            of_reader.resize(log as usize + 1, 0);
        }
        std::mem::replace(&mut of_reader[log as usize], offset)
    }

    pub fn read(&mut self, reader: u32, place: Place, value: &[u8], at_ns: u64) {
        self.records_read += 1;
        let is_prompt = self.prompt_reader == Some(reader);
        if let Some(sent) = self.check_read(reader, place, value) {
            sent.is_read = true;
            if is_prompt {
                sent.arrived_ns.get_or_insert(at_ns);
            }
        }
    }

    /// What the reader found that reads everything at the very end.
    pub fn read_last(&mut self, reader: u32, place: Place, value: &[u8]) {
        if let Some(sent) = self.check_read(reader, place, value) {
            sent.is_found = true;
        }
    }

    pub fn down(&mut self, at_ns: u64) {
        self.outages.push((at_ns, None));
    }

    pub fn up(&mut self, at_ns: u64) {
        if let Some(outage) = self.outages.last_mut() {
            outage.1.get_or_insert(at_ns);
        }
    }

    pub fn broken(&mut self, violation: Violation) {
        self.violations.push(violation);
    }

    pub fn acked_count(&self) -> u64 {
        self.all_sent().filter(|(_, _, sent)| sent.acked_ns.is_some()).count() as u64
    }

    pub fn sent_count(&self) -> u64 {
        self.senders.iter().map(|sender| sender.sent.len() as u64).sum()
    }

    pub fn read_count(&self) -> u64 {
        self.records_read
    }

    /// Answers the record, if it is one that was sent here.
    fn check_read(&mut self, reader: u32, place: Place, value: &[u8]) -> Option<&mut Sent> {
        let Place { log, offset } = place;
        let expected = self.expect_next(reader, log, offset + 1);
        if offset != expected {
            self.violations.push(Violation::Jump { reader, log, expected, got: offset });
        }
        match self.recognise(log, value) {
            Ok(id) => {
                self.locate(id, place);
                self.sent_mut(id)
            }
            Err(reason) => {
                self.violations.push(Violation::Invented { place, reason });
                None
            }
        }
    }

    fn recognise(&self, log: LogNumber, value: &[u8]) -> Result<RecordId, String> {
        let Some((bytes, padding)) = value.split_first_chunk::<8>() else {
            return Err(format!("a value of {} bytes", value.len()));
        };
        let id = RecordId(u64::from_be_bytes(*bytes));
        let sent = self.sent(id).ok_or_else(|| format!("{id:?} was never sent"))?;
        if sent.log != log {
            return Err(format!("{id:?} was sent to log {}", sent.log));
        }
        // One pass without a branch a byte.
        let differs = padding.iter().fold(0, |differs, byte| differs | (byte ^ filler(id)));
        if differs != 0 || padding.len() != sent.padding_bytes as usize {
            return Err(format!("{id:?} has other bytes than were sent"));
        }
        Ok(id)
    }

    fn locate(&mut self, id: RecordId, place: Place) {
        let records = &mut self.logs[place.log as usize].records;
        let index = usize::try_from(place.offset).unwrap_or(usize::MAX);
        if index >= records.len() {
            if index - records.len() > OFFSETS_AHEAD_MAX {
                let reason = format!("{id:?} is far behind the end of the log");
                return self.violations.push(Violation::Invented { place, reason });
            }
            records.resize(index + 1, None);
        }
        let first = *records[index].get_or_insert(id);
        if first != id {
            self.violations.push(Violation::InconsistentOffset { place, first, second: id });
        }
        let Some(sent) = self.sent_mut(id) else { return };
        let first = Place { log: sent.log, offset: *sent.offset.get_or_insert(place.offset) };
        if first != place {
            self.violations.push(Violation::Duplicate { id, first, second: place });
        }
    }

    /// Every record that must be somewhere, in order of senders, then of sending.
    fn all_sent(&self) -> impl Iterator<Item = (RecordId, Promise, &Sent)> {
        (0..).zip(&self.senders).flat_map(|(number, sender)| {
            let records = sender.sent.iter().enumerate();
            records.map(move |(index, sent)| (RecordId::new(number, index), sender.promise, sent))
        })
    }

    /// Every broken rule.
    pub fn check(&self) -> Vec<Violation> {
        let mut violations = self.violations.clone();
        self.check_losses(&mut violations);
        self.check_order(&mut violations);
        self.check_promptness(&mut violations);
        violations
    }

    fn check_losses(&self, violations: &mut Vec<Violation>) {
        for (id, promise, sent) in self.all_sent() {
            if sent.is_found || self.logs[sent.log as usize].is_deleted {
                continue;
            }
            let place = sent.offset.map(|offset| Place { log: sent.log, offset });
            if promise.is_durable && sent.acked_ns.is_some() {
                violations.push(Violation::LostWrite { id, place });
            }
            if let Some(place) = place.filter(|_| sent.is_read) {
                violations.push(Violation::LostRead { id, place });
            }
        }
    }

    fn check_order(&self, violations: &mut Vec<Violation>) {
        // Ids of one sender grow in the order of sending.
        let mut newest: BTreeMap<(usize, LogNumber), (RecordId, i64)> = BTreeMap::new();
        for (id, promise, sent) in self.all_sent() {
            let Some(offset) = sent.offset else { continue };
            if !promise.is_idempotent || sent.acked_ns.is_none() {
                continue;
            }
            let before = newest.insert((id.sender(), sent.log), (id, offset));
            if let Some((first, _)) = before.filter(|(_, before)| *before >= offset) {
                violations.push(Violation::Reordered { first, second: id });
            }
        }
    }

    fn check_promptness(&self, violations: &mut Vec<Violation>) {
        if self.prompt_reader.is_none() {
            return;
        }
        let within = PROMPT_WITHIN.as_nanos() as u64;
        // Clients need a moment to notice an outage and to come back.
        let disturbed = |from: u64, to: u64| {
            self.outages.iter().any(|(down, up)| *down <= to && up.is_none_or(|up| up + within >= from))
        };
        for (id, _, sent) in self.all_sent() {
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

fn filler(id: RecordId) -> u8 {
    (id.0 % 251) as u8
}

/// The checker under test: each bad history trips its own rule.
#[cfg(test)]
mod tests {
    use super::*;

    const A: RecordId = RecordId(0);
    const B: RecordId = RecordId(1);
    const C: RecordId = RecordId(2);
    const STRICT: Promise = Promise { is_durable: true, is_idempotent: true };
    const SECOND_NS: u64 = 1_000_000_000;

    fn at(offset: i64) -> Place {
        Place { log: 0, offset }
    }

    /// One log, one sender, and reader 0, which is prompt.
    fn empty(promise: Promise) -> History {
        let mut history = History::default();
        history.add_logs(1);
        history.add_sender(promise);
        for _ in 0..10 {
            history.add_reader();
        }
        history.set_prompt(0, 0..1);
        history
    }

    /// Two records, sent, acknowledged, read by reader 0 at once and by the last one.
    fn sound() -> History {
        let mut history = empty(STRICT);
        for (id, offset) in [(A, 0), (B, 1)] {
            assert_eq!(history.send(0, 0, 3), id);
            history.acked(id, Some(offset), 10 * SECOND_NS);
            history.read(0, at(offset), &History::value(id, 3), 10 * SECOND_NS + 5);
        }
        history
    }

    fn finish(mut history: History, last: &[(i64, RecordId)]) -> Vec<Violation> {
        for (offset, id) in last {
            history.read_last(9, at(*offset), &History::value(*id, 3));
        }
        history.check()
    }

    const WHOLE: [(i64, RecordId); 2] = [(0, A), (1, B)];

    #[test]
    fn a_sound_history_breaks_no_rule() {
        assert_eq!(finish(sound(), &WHOLE), []);
    }

    #[test]
    fn losses_are_found() {
        let violations = finish(sound(), &[(0, A)]);
        let lost = Violation::LostWrite { id: B, place: Some(at(1)) };
        assert_eq!(violations, [lost, Violation::LostRead { id: B, place: at(1) }]);
    }

    #[test]
    fn what_is_deleted_or_not_promised_may_be_lost_but_not_once_it_was_read() {
        let mut history = sound();
        history.delete(0);
        assert_eq!(finish(history, &[]), []);

        let mut history = empty(Promise { is_durable: false, is_idempotent: false });
        history.send(0, 0, 3);
        assert_eq!(finish(history, &[]), []);

        let mut history = empty(Promise { is_durable: false, is_idempotent: false });
        history.send(0, 0, 3);
        history.read(0, at(0), &History::value(A, 3), 0);
        assert_eq!(finish(history, &[]), [Violation::LostRead { id: A, place: at(0) }]);
    }

    #[test]
    fn a_read_that_vanished_is_found_though_nobody_got_an_answer() {
        let mut history = sound();
        history.send(0, 0, 3);
        history.read(0, at(2), &History::value(C, 3), 0);
        assert_eq!(finish(history, &WHOLE), [Violation::LostRead { id: C, place: at(2) }]);
    }

    #[test]
    fn an_offset_with_two_records_is_found() {
        let mut history = sound();
        history.send(0, 0, 3);
        let violations = finish(history, &[(0, A), (1, B), (1, C)]);
        assert!(violations.contains(&Violation::InconsistentOffset { place: at(1), first: B, second: C }));
    }

    #[test]
    fn a_record_at_two_offsets_is_found() {
        let violations = finish(sound(), &[(0, A), (1, B), (2, A)]);
        assert_eq!(violations, [Violation::Duplicate { id: A, first: at(0), second: at(2) }]);
    }

    #[test]
    fn what_was_never_sent_is_found() {
        let mut history = sound();
        history.add_logs(1);
        history.read_last(8, at(0), &History::value(RecordId(7), 3));
        history.read_last(8, at(1), &History::value(B, 4));
        history.read_last(8, at(2), b"short");
        let mut other_bytes = History::value(A, 3);
        other_bytes[10] ^= 1;
        history.read_last(8, at(3), &other_bytes);
        history.read_last(8, Place { log: 1, offset: 0 }, &History::value(A, 3));
        let invented = finish(history, &WHOLE);
        let is_invented = |violation: &&Violation| matches!(violation, Violation::Invented { .. });
        assert_eq!(invented.iter().filter(is_invented).count(), 5);
    }

    #[test]
    fn jumps_forward_and_back_are_found() {
        let violations = finish(sound(), &[(1, B), (0, A)]);
        let jump = |expected, got| Violation::Jump { reader: 9, log: 0, expected, got };
        assert_eq!(violations, [jump(0, 1), jump(2, 0)]);
    }

    #[test]
    fn a_reader_that_seeks_goes_on_from_there() {
        let mut history = sound();
        history.seek(5, at(1));
        history.read(5, at(1), &History::value(B, 3), 0);
        assert_eq!(finish(history, &WHOLE), []);
    }

    #[test]
    fn another_order_than_that_of_sending_is_found() {
        let mut history = empty(STRICT);
        history.prompt_reader = None;
        for offset in [1, 0] {
            let id = history.send(0, 0, 3);
            history.acked(id, Some(offset), SECOND_NS);
        }
        let violations = finish(history, &[(0, B), (1, A)]);
        assert_eq!(violations, [Violation::Reordered { first: A, second: B }]);
    }

    #[test]
    fn an_end_before_what_was_acknowledged_is_found() {
        let mut history = sound();
        let acked_end = history.acked_end(0);
        assert_eq!(acked_end, 2);
        history.told_end(0, acked_end, 2);
        history.told_end(0, acked_end, 1);
        assert_eq!(finish(history, &WHOLE), [Violation::EndBehind { log: 0, acked_end: 2, got: 1 }]);
    }

    #[test]
    fn a_reader_that_is_not_woken_is_found_unless_the_broker_was_down() {
        let late = |outage: Option<(u64, u64)>, arrived: Option<u64>| {
            let mut history = empty(STRICT);
            if let Some((down, up)) = outage {
                history.down(down * SECOND_NS);
                history.up(up * SECOND_NS);
            }
            history.send(0, 0, 3);
            history.acked(A, Some(0), 10 * SECOND_NS);
            if let Some(arrived) = arrived {
                history.read(0, at(0), &History::value(A, 3), arrived * SECOND_NS);
            }
            finish(history, &[(0, A)])
        };
        let after = |seconds| Violation::Late { id: A, after: seconds };
        assert_eq!(late(None, Some(15)), [after(Some(Duration::from_secs(5)))]);
        assert_eq!(late(None, None), [after(None)]);
        assert_eq!(late(Some((1, 2)), Some(15)), [after(Some(Duration::from_secs(5)))]);
        assert_eq!(late(None, Some(11)), []);
        assert_eq!(late(Some((10, 14)), Some(15)), []);
        assert_eq!(late(Some((7, 9)), Some(15)), []);
    }
}
