//! What clients did and saw, and the rules that it must obey. Knows no broker and no simulation.
//!
//! Every record has an id of its own, so whoever reads it knows who sent it, when, and what came of it.

use std::collections::BTreeMap;
use std::time::Duration;

/// A record that was acknowledged while the broker served undisturbed reaches every prompt reader within this time. Well
/// below the readers' longest wait, so a reader that is not woken shows.
pub const PROMPT_WITHIN: Duration = Duration::from_secs(1);

/// Names a record: the producer in the upper half, its own count in the lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordId(pub u64);

impl RecordId {
    pub fn new(producer: u32, number: u32) -> RecordId {
        RecordId(u64::from(producer) << 32 | u64::from(number))
    }

    fn producer(self) -> u64 {
        self.0 >> 32
    }
}

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub partition: i32,
    pub offset: i64,
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
    /// A record that nobody sent to this partition, or whose bytes are not those sent.
    Invented { place: Place, reason: String },
    /// A reader did not get the offset that follows its last one.
    Jump { reader: u32, partition: i32, expected: i64, got: i64 },
    /// Acknowledged records of one idempotent producer lie in another order than they were sent in.
    Reordered { first: RecordId, second: RecordId },
    /// A prompt reader got a record late or never.
    Late { reader: u32, id: RecordId, after: Option<Duration> },
    /// A topic is missing although its creation was acknowledged, or there although its deletion was.
    Topic { name: String, reason: &'static str },
    /// Somebody could not do what must be possible.
    Failed { who: String, reason: String },
}

#[derive(Clone, Debug)]
struct Sent {
    partition: i32,
    is_idempotent: bool,
    /// What is sent besides the id.
    padding_bytes: usize,
    acked: Option<Acked>,
}

#[derive(Clone, Copy, Debug)]
struct Acked {
    place: Option<Place>,
    at_ns: u64,
}

#[derive(Debug, Default)]
pub struct History {
    sent: BTreeMap<RecordId, Sent>,
    /// Who was seen where, by any reader at any time.
    at_place: BTreeMap<Place, RecordId>,
    place_of: BTreeMap<RecordId, Place>,
    next_offset: BTreeMap<(u32, i32), i64>,
    arrived_ns: BTreeMap<(u32, RecordId), u64>,
    prompt_readers: Vec<u32>,
    /// From the moment at which the broker went down to the one at which it served again, in nanoseconds.
    outages: Vec<(u64, Option<u64>)>,
    /// What the last reader found.
    last: BTreeMap<Place, RecordId>,
    violations: Vec<Violation>,
}

impl History {
    /// The value of a record: its id, then bytes that follow from it.
    pub fn value(id: RecordId, padding_bytes: usize) -> Vec<u8> {
        let mut value = id.0.to_be_bytes().to_vec();
        value.resize(8 + padding_bytes, (id.0 % 251) as u8);
        value
    }

    pub fn sent(&mut self, id: RecordId, partition: i32, is_idempotent: bool, padding_bytes: usize) {
        let previous = self.sent.insert(id, Sent { partition, is_idempotent, padding_bytes, acked: None });
        assert!(previous.is_none(), "{id:?} was sent before: the workload is broken");
    }

    /// `offset` is `None` where the broker confirmed a repeated batch without its place.
    pub fn acked(&mut self, id: RecordId, offset: Option<i64>, at_ns: u64) {
        let sent = self.sent.get_mut(&id).expect("acknowledged records were sent");
        let place = offset.map(|offset| Place { partition: sent.partition, offset });
        sent.acked = Some(Acked { place, at_ns });
        if let Some(place) = place {
            self.locate(id, place);
        }
    }

    /// A reader that must see everything soon.
    pub fn add_prompt_reader(&mut self, reader: u32) {
        self.prompt_readers.push(reader);
    }

    pub fn read(&mut self, reader: u32, place: Place, value: &[u8], at_ns: u64) {
        if let Some(id) = self.check_read(reader, place, value) {
            self.arrived_ns.entry((reader, id)).or_insert(at_ns);
        }
    }

    /// What the reader found that reads everything at the very end.
    pub fn read_last(&mut self, reader: u32, place: Place, value: &[u8]) {
        if let Some(id) = self.check_read(reader, place, value) {
            self.last.insert(place, id);
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

    pub fn acked_count(&self) -> usize {
        self.sent.values().filter(|sent| sent.acked.is_some()).count()
    }

    pub fn sent_count(&self) -> usize {
        self.sent.len()
    }

    pub fn read_count(&self) -> usize {
        self.arrived_ns.len()
    }

    fn check_read(&mut self, reader: u32, place: Place, value: &[u8]) -> Option<RecordId> {
        let Place { partition, offset } = place;
        let expected = self.next_offset.insert((reader, partition), offset + 1).unwrap_or(0);
        if offset != expected {
            self.violations.push(Violation::Jump { reader, partition, expected, got: offset });
        }
        let invented = |reason: String| Violation::Invented { place, reason };
        let Some(bytes) = value.first_chunk::<8>() else {
            self.violations.push(invented(format!("a value of {} bytes", value.len())));
            return None;
        };
        let id = RecordId(u64::from_be_bytes(*bytes));
        match self.sent.get(&id) {
            None => self.violations.push(invented(format!("{id:?} was never sent"))),
            Some(sent) if sent.partition != partition => {
                self.violations.push(invented(format!("{id:?} was sent to partition {}", sent.partition)));
            }
            Some(sent) if History::value(id, sent.padding_bytes) != value => {
                self.violations.push(invented(format!("{id:?} has other bytes than were sent")));
            }
            Some(_) => {
                self.locate(id, place);
                return Some(id);
            }
        }
        None
    }

    fn locate(&mut self, id: RecordId, place: Place) {
        let first = *self.at_place.entry(place).or_insert(id);
        if first != id {
            self.violations.push(Violation::InconsistentOffset { place, first, second: id });
        }
        let first = *self.place_of.entry(id).or_insert(place);
        if first != place {
            self.violations.push(Violation::Duplicate { id, first, second: place });
        }
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
        let found: BTreeMap<RecordId, Place> = self.last.iter().map(|(place, id)| (*id, *place)).collect();
        for (id, sent) in &self.sent {
            if let Some(acked) = sent.acked
                && !found.contains_key(id)
            {
                violations.push(Violation::LostWrite { id: *id, place: acked.place });
            }
        }
        let seen = self.arrived_ns.keys().map(|(_, id)| *id).collect::<std::collections::BTreeSet<_>>();
        for id in seen.into_iter().filter(|id| !found.contains_key(id)) {
            violations.push(Violation::LostRead { id, place: self.place_of[&id] });
        }
    }

    fn check_order(&self, violations: &mut Vec<Violation>) {
        // Ids of one producer grow in the order of sending.
        let mut newest: BTreeMap<(u64, i32), (RecordId, i64)> = BTreeMap::new();
        for (id, sent) in self.sent.iter().filter(|(_, sent)| sent.is_idempotent && sent.acked.is_some()) {
            let Some(place) = self.place_of.get(id) else { continue };
            let before = newest.insert((id.producer(), sent.partition), (*id, place.offset));
            if let Some((first, _)) = before.filter(|(_, offset)| *offset >= place.offset) {
                violations.push(Violation::Reordered { first, second: *id });
            }
        }
    }

    fn check_promptness(&self, violations: &mut Vec<Violation>) {
        let within = PROMPT_WITHIN.as_nanos() as u64;
        // Clients need a moment to notice an outage and to come back.
        let disturbed = |from: u64, to: u64| {
            self.outages.iter().any(|(down, up)| *down <= to && up.is_none_or(|up| up + within >= from))
        };
        for (id, sent) in &self.sent {
            let Some(Acked { at_ns, .. }) = sent.acked else { continue };
            if disturbed(at_ns, at_ns + within) {
                continue;
            }
            for reader in &self.prompt_readers {
                let arrived = self.arrived_ns.get(&(*reader, *id)).copied();
                if arrived.is_none_or(|arrived| arrived > at_ns + within) {
                    let after = arrived.map(|arrived| Duration::from_nanos(arrived - at_ns));
                    violations.push(Violation::Late { reader: *reader, id: *id, after });
                }
            }
        }
    }
}

/// The checker under test: each bad history trips its own rule.
mod tests {
    use super::*;

    const A: RecordId = RecordId(1);
    const B: RecordId = RecordId(2);
    const SECOND_NS: u64 = 1_000_000_000;

    fn at(offset: i64) -> Place {
        Place { partition: 0, offset }
    }

    /// Two records, sent, acknowledged, read by reader 0 at once and by the last one.
    fn sound() -> History {
        let mut history = History::default();
        history.add_prompt_reader(0);
        for (id, offset) in [(A, 0), (B, 1)] {
            history.sent(id, 0, true, 3);
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
    fn a_read_that_vanished_is_found_though_nobody_got_an_answer() {
        let mut history = sound();
        let id = RecordId(3);
        history.sent(id, 0, true, 3);
        history.read(0, at(2), &History::value(id, 3), 0);
        assert_eq!(finish(history, &WHOLE), [Violation::LostRead { id, place: at(2) }]);
    }

    #[test]
    fn an_offset_with_two_records_is_found() {
        let mut history = sound();
        let id = RecordId(3);
        history.sent(id, 0, false, 3);
        let violations = finish(history, &[(0, A), (1, B), (1, id)]);
        assert!(violations.contains(&Violation::InconsistentOffset { place: at(1), first: B, second: id }));
    }

    #[test]
    fn a_record_at_two_offsets_is_found() {
        let violations = finish(sound(), &[(0, A), (1, B), (2, A)]);
        assert_eq!(violations, [Violation::Duplicate { id: A, first: at(0), second: at(2) }]);
    }

    #[test]
    fn what_was_never_sent_is_found() {
        let mut history = sound();
        history.read_last(8, at(0), &History::value(RecordId(7), 3));
        history.read_last(8, at(1), &History::value(B, 4));
        history.read_last(8, at(2), b"short");
        let invented = finish(history, &WHOLE);
        let is_invented = |violation: &&Violation| matches!(violation, Violation::Invented { .. });
        assert_eq!(invented.iter().filter(is_invented).count(), 3);
    }

    #[test]
    fn jumps_forward_and_back_are_found() {
        let violations = finish(sound(), &[(1, B), (0, A)]);
        let jump = |expected, got| Violation::Jump { reader: 9, partition: 0, expected, got };
        assert_eq!(violations, [jump(0, 1), jump(2, 0)]);
    }

    #[test]
    fn another_order_than_that_of_sending_is_found() {
        let mut history = History::default();
        for (id, offset) in [(A, 1), (B, 0)] {
            history.sent(id, 0, true, 3);
            history.acked(id, Some(offset), SECOND_NS);
        }
        let violations = finish(history, &[(0, B), (1, A)]);
        assert_eq!(violations, [Violation::Reordered { first: A, second: B }]);
    }

    #[test]
    fn a_reader_that_is_not_woken_is_found_unless_the_broker_was_down() {
        let late = |outage: Option<(u64, u64)>, arrived: Option<u64>| {
            let mut history = History::default();
            history.add_prompt_reader(0);
            if let Some((down, up)) = outage {
                history.down(down * SECOND_NS);
                history.up(up * SECOND_NS);
            }
            history.sent(A, 0, true, 3);
            history.acked(A, Some(0), 10 * SECOND_NS);
            if let Some(arrived) = arrived {
                history.read(0, at(0), &History::value(A, 3), arrived * SECOND_NS);
            }
            finish(history, &[(0, A)])
        };
        let after = |seconds| Violation::Late { reader: 0, id: A, after: seconds };
        assert_eq!(late(None, Some(15)), [after(Some(Duration::from_secs(5)))]);
        assert_eq!(late(None, None), [after(None)]);
        assert_eq!(late(Some((1, 2)), Some(15)), [after(Some(Duration::from_secs(5)))]);
        assert_eq!(late(None, Some(11)), []);
        assert_eq!(late(Some((10, 14)), Some(15)), []);
        assert_eq!(late(Some((7, 9)), Some(15)), []);
    }
}
