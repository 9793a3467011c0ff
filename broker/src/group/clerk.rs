//! What groups hand their wishes to: answers, timers, appends. Owns the step that the event at hand comes to, and what follows once
//! an append ended; decides nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::ids::TopicId;

use super::consumer::Subject;
use super::event::{GroupId, MemberId, Serial, Surroundings, Ticket, Timer, Token};
use super::reply::{Answer, Append, JoinReply, KeyedRecord, Reply, Step, SyncReply, TimerChange};
use super::settings::{ConsumerSettings, GroupSettings};

/// A partition of a topic, in a group's offsets.
pub(super) type OffsetKey = (Arc<str>, i32);

/// Offsets of one group on their way into the log.
pub(super) type OffsetsInFlight = BTreeMap<OffsetKey, TopicId>;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Clerk {
    pub settings: GroupSettings,
    pub consumer: ConsumerSettings,
    pub around: Surroundings,
    pub step: Step,
    open: BTreeMap<Ticket, Open>,
    tickets: u64,
    serials: u64,
}

/// An append that is under way.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub then: Then,
    /// Leave once it is committed.
    pub answers: Vec<Answer>,
}

/// What follows once records are committed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Then {
    Nothing,
    /// The leader's assignments count.
    Assign {
        group: GroupId,
        assignments: BTreeMap<MemberId, Bytes>,
    },
    /// A static member has a new name, and its join is answered.
    Renamed {
        group: GroupId,
        new: NewName,
    },
    /// These offsets count.
    OffsetsWritten {
        group: GroupId,
        keys: Vec<(OffsetKey, TopicId)>,
    },
    /// A consumer group says this of itself.
    Grouped {
        group: GroupId,
        subjects: Vec<Subject>,
    },
    /// These groups are gone.
    Deleted {
        groups: Vec<GroupId>,
    },
    /// Nothing yet: the rest is in this append, which counts only if this one does.
    Part {
        last: Ticket,
    },
}

/// The name of a static member that came back, and its join.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NewName {
    pub member: MemberId,
    pub token: Token,
    /// Of the JoinGroup API.
    pub version: i16,
    /// Who led before, perhaps under the member's old name.
    pub leader_before: MemberId,
}

impl Clerk {
    pub fn new(settings: GroupSettings) -> Clerk {
        Clerk {
            settings,
            consumer: ConsumerSettings::default(),
            around: Surroundings::default(),
            step: Step::default(),
            open: BTreeMap::new(),
            tickets: 0,
            serials: 0,
        }
    }

    pub fn now_ms(&self) -> i64 {
        self.around.now_ms
    }

    pub fn answer(&mut self, token: Token, reply: Reply) {
        self.step.answers.push(Answer { token, reply });
    }

    pub fn answer_join(&mut self, token: Token, reply: JoinReply) {
        self.answer(token, Reply::Join(reply));
    }

    pub fn answer_sync(&mut self, token: Token, reply: SyncReply) {
        self.answer(token, Reply::Sync(reply));
    }

    /// Answers once everything that this event appends is committed; at once where that is nothing.
    pub fn answer_after_appends(&mut self, token: Token, reply: Reply) {
        let last = self.step.appends.last().map(|append| append.ticket);
        self.answer_after(last, token, reply);
    }

    /// Answers once this append is committed; at once where it ended.
    pub fn answer_after(&mut self, append: Option<Ticket>, token: Token, reply: Reply) {
        match append.and_then(|ticket| self.open.get_mut(&ticket)) {
            Some(open) => open.answers.push(Answer { token, reply }),
            None => self.answer(token, reply),
        }
    }

    pub fn arm(&mut self, timer: Timer, after_ms: i32) -> Serial {
        self.serials += 1;
        let serial = Serial(self.serials);
        let after_ms = u64::from(after_ms.max(0).unsigned_abs());
        self.step.timers.push(TimerChange::Arm { timer, serial, after_ms });
        serial
    }

    pub fn cancel(&mut self, timer: Timer) {
        self.step.timers.push(TimerChange::Cancel(timer));
    }

    pub fn append(&mut self, records: Vec<KeyedRecord>, then: Then) -> Ticket {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.open.insert(ticket, Open { then, answers: Vec::new() });
        self.step.appends.push(Append { ticket, records });
        ticket
    }

    /// Appends in batches of at most `bytes_max`; `then` follows the last. In a log cut off between them the first are there. The last
    /// one; `None` where there are no records.
    pub fn append_in_parts(
        &mut self,
        records: Vec<KeyedRecord>,
        bytes_max: usize,
        then: Then,
    ) -> Option<Ticket> {
        let mut parts: Vec<Vec<KeyedRecord>> = Vec::new();
        let mut bytes = 0;
        for record in records {
            bytes += record.bytes();
            match parts.last_mut() {
                Some(part) if bytes <= bytes_max => part.push(record),
                _ => {
                    bytes = record.bytes();
                    parts.push(vec![record]);
                }
            }
        }
        let count = parts.len() as u64;
        let last = Ticket(self.tickets + count);
        for part in parts {
            let is_last = self.tickets + 1 == last.0;
            self.append(part, if is_last { then.clone() } else { Then::Part { last } });
        }
        (count > 0).then_some(last)
    }

    pub fn close(&mut self, ticket: Ticket) -> Option<Open> {
        self.open.remove(&ticket)
    }

    /// The answers that hang on this append: it does not count, although it may yet be committed.
    pub fn take_answers(&mut self, ticket: Ticket) -> Vec<Answer> {
        self.open.get_mut(&ticket).map(|open| std::mem::take(&mut open.answers)).unwrap_or_default()
    }

    /// What a consumer group says in this append.
    pub fn said(&self, ticket: Ticket) -> Option<(GroupId, Vec<Subject>)> {
        match &self.open.get(&ticket)?.then {
            Then::Grouped { group, subjects } => Some((Arc::clone(group), subjects.clone())),
            _ => None,
        }
    }

    /// The appends under way in which this consumer group says something.
    pub fn appends_of(&self, group: &str) -> Vec<Ticket> {
        let of_group = self.open.iter().filter(|(_, open)| match &open.then {
            Then::Grouped { group: of, .. } => **of == *group,
            _ => false,
        });
        of_group.map(|(ticket, _)| *ticket).collect()
    }

    /// A number that nothing else has.
    pub fn next_number(&mut self) -> u64 {
        self.serials += 1;
        self.serials
    }

    /// Ends all appends: what hung on them.
    pub fn close_all(&mut self) -> Vec<Open> {
        std::mem::take(&mut self.open).into_values().collect()
    }

    /// Offsets on their way into the log by group, each with the topic that it is of: the last where there are several.
    pub fn offsets_in_flight(&self) -> BTreeMap<GroupId, OffsetsInFlight> {
        let mut in_flight: BTreeMap<GroupId, OffsetsInFlight> = BTreeMap::new();
        for open in self.open.values() {
            if let Then::OffsetsWritten { group, keys } = &open.then {
                in_flight.entry(Arc::clone(group)).or_default().extend(keys.iter().cloned());
            }
        }
        in_flight
    }
}

impl KeyedRecord {
    /// Bytes of key and value, and of the record around them.
    pub fn bytes(&self) -> usize {
        // Lengths, attributes and deltas of a record take at most 25 bytes.
        25 + self.key.len() + self.value.as_ref().map_or(0, Bytes::len)
    }
}
