//! A consumer group on the core that leads its partition: what its records will say once all under way is committed, what follows from
//! that, and who waits for what. Owns how a change becomes a record and how answers wait for records; what moves the group stands in
//! `heartbeat`, `assigning` and `classic_members`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::TopicPartition;
use ringlog_shard::limits::MACHINE_PROPOSAL_BYTES_MAX;

use super::index::Index;
use super::reconcile::{self, Claim, Goal, Lost};
use super::record;
use super::state::{Change, ConsumerState, Current, MemberMetadata, MemberState, Standing, Subject};
use super::timeline::OpenAssignment;
use super::topics::Topics;
use crate::group::clerk::{Clerk, Then};
use crate::group::event::{GroupId, MemberId, Serial, Ticket, Timer, Token};
use crate::group::reply::{KeyedRecord, Reply};
use crate::group::settings::ConsumerSettings;
use crate::group::timeline::Cause;

/// What a group weighs beside its records: the struct and its map entry.
const GROUP_BYTES: usize = size_of::<ConsumerGroup>() + 64;

/// What a member weighs here beside its records: a map entry of each state and of its timers.
const MEMBER_BYTES: usize = 200;

/// Where a consumer group stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::group) enum GroupStanding {
    /// No members, perhaps offsets.
    Empty,
    /// An assignment of its epoch is to be computed.
    Assigning,
    /// Some member has not come to its assignment.
    Reconciling,
    Stable,
    /// It is being deleted.
    Dead,
}

impl GroupStanding {
    /// As Kafka's tools know it.
    pub fn name(self) -> &'static str {
        match self {
            GroupStanding::Empty => "Empty",
            GroupStanding::Assigning => "Assigning",
            GroupStanding::Reconciling => "Reconciling",
            GroupStanding::Stable => "Stable",
            GroupStanding::Dead => "Dead",
        }
    }
}

/// What the events of a group work with.
pub(in crate::group) struct Desk<'a> {
    pub clerk: &'a mut Clerk,
    pub topics: &'a Arc<Topics>,
    /// With what was set for this group.
    pub settings: ConsumerSettings,
}

/// See the module.
#[derive(Clone, Debug)]
pub(in crate::group) struct ConsumerGroup {
    pub id: GroupId,
    pub state: ConsumerState,
    pub index: Index,
    /// Timers and waiting requests of members.
    pub(super) seats: BTreeMap<MemberId, Seat>,
    /// It is being deleted.
    pub dead: bool,
    /// The topics' version for which the hash in the group's epoch holds.
    pub(super) seen_version: Option<i64>,
    /// The assignment that is computed now.
    pub(super) computing: Option<u64>,
    /// The expressions that are resolved now.
    pub(super) resolving: Option<u64>,
    /// When and for which version of the topics expressions were resolved last.
    pub(super) resolved: Option<(i64, i64)>,
    pub(super) assign_timer: Option<Serial>,
    /// Why an assignment is owed; `None`: none is.
    pub(super) open: Option<Box<OpenAssignment>>,
    /// The assignment that was told last, while members are on their way to it.
    pub(super) unsettled: Option<i32>,
    /// The last append of this group; answers wait for it even where they write nothing.
    last: Option<Ticket>,
    draft: Draft,
}

/// What an event of the group comes to, until it is handed on.
#[derive(Clone, Default, Debug)]
struct Draft {
    records: Vec<KeyedRecord>,
    subjects: Vec<Subject>,
    replies: Vec<(Token, Reply)>,
}

/// What runs for a member.
#[derive(Clone, Default, Debug)]
pub(super) struct Seat {
    pub session: Option<Serial>,
    /// What most members have none of.
    rest: Option<Box<SeatRest>>,
}

#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct SeatRest {
    /// It must have given partitions up by then, or have left this epoch.
    pub rebalance: Option<(Serial, i32)>,
    /// A member of the classic protocol must have joined again by then.
    pub join: Option<Serial>,
    /// A member of the classic protocol must have asked for its assignment by then.
    pub sync: Option<Serial>,
    /// Joins that wait for an assignment.
    pub waiting: Vec<Waiting>,
}

/// A join that waits for an assignment.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Waiting {
    pub token: Token,
    /// The assignment must be of this epoch or a later one.
    pub epoch: i32,
    pub kind: WaitingKind,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum WaitingKind {
    Consumer,
    /// What the member had, in order.
    Classic {
        owned: Vec<TopicPartition>,
    },
}

impl ConsumerGroup {
    pub fn new(id: GroupId) -> ConsumerGroup {
        ConsumerGroup::loaded(id, ConsumerState::default())
    }

    /// The group as its records have it, without timers.
    pub fn loaded(id: GroupId, state: ConsumerState) -> ConsumerGroup {
        let index = Index::of(&state);
        ConsumerGroup {
            id,
            state,
            index,
            seats: BTreeMap::new(),
            dead: false,
            seen_version: None,
            computing: None,
            resolving: None,
            resolved: None,
            assign_timer: None,
            open: None,
            unsettled: None,
            last: None,
            draft: Draft::default(),
        }
    }

    /// Memory beside what is counted as durable, estimated.
    pub fn bytes(&self) -> usize {
        let open = self.open.as_ref().map_or(0, |open| open.bytes());
        GROUP_BYTES + self.id.len() + MEMBER_BYTES * self.state.members.len() + self.index.bytes() + open
    }

    pub fn is_empty(&self) -> bool {
        self.index.members == 0
    }

    /// Where it stands.
    pub fn standing(&self) -> GroupStanding {
        if self.dead {
            GroupStanding::Dead
        } else if self.is_empty() {
            GroupStanding::Empty
        } else if self.is_behind() {
            GroupStanding::Assigning
        } else if self.index.settled == self.index.members {
            GroupStanding::Stable
        } else {
            GroupStanding::Reconciling
        }
    }

    /// Says something new of the group, in a record.
    pub fn change(&mut self, change: Change) {
        self.draft.records.push(record::write(&self.id, &change));
        self.draft.subjects.push(change.subject());
        if let Change::Target(member, _) = &change {
            self.note_target(member);
        }
        let (member, is_metadata) = match &change {
            Change::Metadata(id, _) => (Some(Arc::clone(id)), true),
            Change::Current(id, _) => (Some(Arc::clone(id)), false),
            Change::Epoch(_) | Change::Assignment(_) | Change::Target(..) | Change::Regex(..) => {
                (None, false)
            }
        };
        match member.as_ref().and_then(|id| self.state.members.get_key_value(id)) {
            Some((_, member)) if is_metadata => self.index.take(member),
            Some((_, member)) => self.index.take_claims(member),
            None => {}
        }
        let is_assignment = matches!(change, Change::Assignment(_));
        self.state.apply(change);
        if is_assignment {
            self.index.begin_epoch(&self.state);
        }
        match member.as_ref().and_then(|id| self.state.members.get_key_value(id)) {
            Some((_, member)) if is_metadata => self.index.add(member),
            Some((_, member)) => self.index.add_claims(member),
            None => {}
        }
    }

    /// Puts a record that is not the group's own in front of what it says.
    pub fn put_record(&mut self, record: KeyedRecord, subject: Subject) {
        self.draft.records.push(record);
        self.draft.subjects.push(subject);
    }

    /// Says again what earlier records said that may not have come into the log.
    pub fn say_again(&mut self, subjects: BTreeSet<Subject>) {
        for subject in subjects {
            let record = match self.state.now(&subject) {
                Some(change) => record::write(&self.id, &change),
                None => match crate::group::record::group_tombstone(&self.id) {
                    Ok(record) => record,
                    Err(_) => continue,
                },
            };
            self.put_record(record, subject);
        }
    }

    /// Answers once all that was said of the group is committed.
    pub fn reply(&mut self, token: Token, reply: Reply) {
        self.draft.replies.push((token, reply));
    }

    /// Hands on what the event came to.
    pub fn flush(&mut self, clerk: &mut Clerk) {
        self.forget_noted();
        self.tell_settled(clerk);
        let Draft { records, subjects, replies } = std::mem::take(&mut self.draft);
        if !records.is_empty() {
            let then = Then::Grouped { group: Arc::clone(&self.id), subjects };
            self.last = clerk.append_in_parts(records, MACHINE_PROPOSAL_BYTES_MAX, then);
        }
        for (token, reply) in replies {
            clerk.answer_after(self.last, token, reply);
        }
    }

    // ---- timers

    pub fn session_timer(&self, member: &MemberId) -> Timer {
        Timer::Session { group: Arc::clone(&self.id), member: Arc::clone(member) }
    }

    pub fn arm_session(&mut self, desk: &mut Desk<'_>, member: &MemberId) {
        let classic = self.state.metadata(member).and_then(|data| data.classic.as_ref());
        let after_ms = classic.map_or(desk.settings.session_timeout_ms, |classic| classic.session_timeout_ms);
        let serial = desk.clerk.arm(self.session_timer(member), after_ms);
        match self.seats.get_mut(member) {
            Some(seat) => seat.session = Some(serial),
            None => drop(self.seats.insert(Arc::clone(member), Seat { session: Some(serial), rest: None })),
        }
    }

    pub(super) fn rest(&self, member: &str) -> Option<&SeatRest> {
        self.seats.get(member)?.rest.as_deref()
    }

    pub(super) fn with_rest<R>(&mut self, member: &MemberId, change: impl FnOnce(&mut SeatRest) -> R) -> R {
        let seat = self.seats.entry(Arc::clone(member)).or_default();
        let mut rest = seat.rest.take().unwrap_or_default();
        let result = change(&mut rest);
        seat.rest = Some(rest).filter(|rest| **rest != SeatRest::default());
        result
    }

    /// Whether this timer still means what it meant when it was armed; it is disarmed then.
    pub fn is_due(&mut self, timer: &Timer, serial: Serial) -> bool {
        match timer {
            Timer::Session { member, .. } => {
                self.seats.get(member).is_some_and(|seat| seat.session == Some(serial))
            }
            Timer::Rebalance { member, .. } => {
                let epoch = self.state.members.get(member).map(MemberState::epoch);
                let armed = self.rest(member).and_then(|rest| rest.rebalance);
                armed.is_some_and(|(armed, armed_epoch)| armed == serial && epoch == Some(armed_epoch))
            }
            Timer::MemberJoin { member, .. } => {
                self.rest(member).is_some_and(|rest| rest.join == Some(serial))
            }
            Timer::MemberSync { member, .. } => {
                self.rest(member).is_some_and(|rest| rest.sync == Some(serial))
            }
            Timer::Assign { .. } => {
                let due = self.assign_timer == Some(serial);
                self.assign_timer = self.assign_timer.filter(|_| !due);
                due
            }
            Timer::Join { .. } | Timer::Sync { .. } => false,
        }
    }

    /// Cancels all that runs for a member but its session.
    pub fn cancel_rest(&mut self, clerk: &mut Clerk, member: &MemberId) {
        let (group, id) = (&self.id, member);
        let name = || (Arc::clone(group), Arc::clone(id));
        let Some(rest) = self.seats.get(member).and_then(|seat| seat.rest.as_deref()) else { return };
        if rest.rebalance.is_some() {
            let (group, member) = name();
            clerk.cancel(Timer::Rebalance { group, member });
        }
        if rest.join.is_some() {
            let (group, member) = name();
            clerk.cancel(Timer::MemberJoin { group, member });
        }
        if rest.sync.is_some() {
            let (group, member) = name();
            clerk.cancel(Timer::MemberSync { group, member });
        }
        self.with_rest(member, |rest| (rest.rebalance, rest.join, rest.sync) = (None, None, None));
    }

    /// A member of the classic protocol is told to join again: it has so long for it.
    pub(super) fn await_join(&mut self, clerk: &mut Clerk, member: &MemberId, after_ms: i32) {
        if self.rest(member).is_none_or(|rest| rest.join.is_none()) {
            let timer = Timer::MemberJoin { group: Arc::clone(&self.id), member: Arc::clone(member) };
            let serial = clerk.arm(timer, after_ms);
            self.with_rest(member, |rest| rest.join = Some(serial));
        }
    }

    /// A member must give partitions up before the time is up, or, where it stands otherwise, need not any more.
    pub fn watch_rebalance(&mut self, clerk: &mut Clerk, member: &MemberId) {
        let Some(state) = self.state.members.get(member) else { return };
        let current = state.standing();
        let Some(data) = &state.metadata else { return };
        let timer = Timer::Rebalance { group: Arc::clone(&self.id), member: Arc::clone(member) };
        if current.standing == Standing::Unrevoked && data.classic.is_none() {
            let serial = clerk.arm(timer, data.rebalance_timeout_ms);
            self.with_rest(member, |rest| rest.rebalance = Some((serial, current.epoch)));
        } else if self.rest(member).is_some_and(|rest| rest.rebalance.is_some()) {
            clerk.cancel(timer);
            self.with_rest(member, |rest| rest.rebalance = None);
        }
    }

    // ---- members

    /// Leads a member on towards its target. Whether something changed.
    ///
    /// # Errors
    /// [`Lost`].
    pub(super) fn reconcile(
        &mut self,
        desk: &mut Desk<'_>,
        member: &MemberId,
        claim: &Claim<'_>,
        wishes_changed: bool,
    ) -> Result<bool, Lost> {
        let epoch = self.state.assignment_epoch();
        let Some(state) = self.state.members.get(member) else { return Ok(false) };
        let now = state.standing();
        if now.standing == Standing::Stable && now.epoch == epoch && !wishes_changed {
            return Ok(false);
        }
        let Some(data) = &state.metadata else { return Ok(false) };
        let target: Vec<TopicPartition> =
            state.target.iter().flat_map(|target| target.iter().copied()).collect();
        let target = self.wanted(desk.topics, data, target);
        let goal = Goal { epoch, target: &target, wishes_changed };
        let next = reconcile::next(&now, &goal, claim, |at| self.index.is_free(&at))?;
        let Some(next) = next else { return Ok(false) };
        self.change(Change::Current(Arc::clone(member), Some(Arc::new(next))));
        self.watch_rebalance(desk.clerk, member);
        Ok(true)
    }

    /// Those of topics that the member wants. An assignment may be older than its wishes.
    fn wanted(
        &self,
        topics: &Topics,
        data: &MemberMetadata,
        mut target: Vec<TopicPartition>,
    ) -> Vec<TopicPartition> {
        let mut last = None;
        target.retain(|at| match last {
            Some((topic, wanted)) if topic == at.topic => wanted,
            _ => {
                // A topic that is gone goes with the next assignment.
                let wanted = topics.of_id(at.topic).is_none_or(|topic| self.wants(data, &topic.name));
                last = Some((at.topic, wanted));
                wanted
            }
        });
        target
    }

    /// Whether a member wants this topic.
    pub(super) fn wants(&self, data: &MemberMetadata, topic: &str) -> bool {
        let by_name = data.names.binary_search_by(|name| (**name).cmp(topic)).is_ok();
        by_name || data.regex.as_ref().is_some_and(|text| self.regex_has(text, topic))
    }

    fn regex_has(&self, text: &str, topic: &str) -> bool {
        let resolved = self.state.regexes.get(text);
        resolved.is_some_and(|resolved| resolved.topics.binary_search_by(|name| (**name).cmp(topic)).is_ok())
    }

    /// Whether any member wants this topic.
    pub fn is_subscribed(&self, topic: &str) -> bool {
        self.index.names.contains_key(topic)
            || self.index.regexes.keys().any(|text| self.regex_has(text, topic))
    }

    /// Takes members out, whatever they are at, and counts a new epoch.
    pub fn remove_members(&mut self, desk: &mut Desk<'_>, members: &[MemberId]) {
        for member in members {
            self.drop_member(desk.clerk, member, ErrorCode::UnknownMemberId);
        }
        self.drop_unused_regexes();
        self.refresh(desk, true);
        self.think(desk);
        if self.is_empty() {
            self.tell_emptied(desk);
        }
    }

    /// After a load: takes out whoever says to hold an instance id that another one took since. It left, and the record of that is lost.
    pub(super) fn drop_outlived(&mut self, desk: &mut Desk<'_>) {
        let outlived = self.state.joined().filter(|(id, _, _)| self.state.is_outlived(id));
        let outlived: Vec<_> = outlived.map(|(id, data, _)| (Arc::clone(id), Arc::clone(data))).collect();
        let mut changed = false;
        for (member, data) in outlived {
            if data.instance.as_ref().is_none_or(|instance| self.state.holder(instance).is_none()) {
                // Its successor is gone too: as the log has it, it is the member again.
                self.change(Change::Metadata(member, Some(data)));
                continue;
            }
            self.note_member(desk.clerk, Cause::StaticMemberReplaced, &member, None);
            self.drop_member(desk.clerk, &member, ErrorCode::FencedInstanceId);
            changed = true;
        }
        if changed {
            self.drop_unused_regexes();
            self.refresh(desk, true);
        }
    }

    /// Takes a member out; answers what it asked.
    pub(super) fn drop_member(&mut self, clerk: &mut Clerk, member: &MemberId, error: ErrorCode) {
        for waiting in self.take_waiting(member, |_| true) {
            self.refuse_waiting(waiting, member, error);
        }
        self.cancel_rest(clerk, member);
        if self.seats.remove(member).is_some_and(|seat| seat.session.is_some()) {
            clerk.cancel(self.session_timer(member));
        }
        self.change(Change::Current(Arc::clone(member), None));
        self.change(Change::Target(Arc::clone(member), None));
        self.change(Change::Metadata(Arc::clone(member), None));
    }

    /// Takes the joins of a member out that waited for this.
    pub(super) fn take_waiting(
        &mut self,
        member: &MemberId,
        ready: impl Fn(&Waiting) -> bool,
    ) -> Vec<Waiting> {
        if self.rest(member).is_none_or(|rest| rest.waiting.is_empty()) {
            return Vec::new();
        }
        self.with_rest(member, |rest| {
            let (taken, left) = std::mem::take(&mut rest.waiting).into_iter().partition(ready);
            rest.waiting = left;
            taken
        })
    }

    /// All joins that wait, as the group ends here.
    pub fn end_waiting(&mut self, error: ErrorCode) {
        for member in self.seats.keys().cloned().collect::<Vec<_>>() {
            for waiting in self.take_waiting(&member, |_| true) {
                self.refuse_waiting(waiting, &member, error);
            }
        }
    }

    /// Where a member stands.
    pub(super) fn current(&self, member: &str) -> Current {
        self.state.members.get(member).map(MemberState::standing).unwrap_or_default()
    }

    /// What must hold between any two events.
    #[cfg(test)]
    pub fn check(&self) {
        assert_eq!(self.index, Index::of(&self.state), "{}", self.id);
        assert!(self.draft.records.is_empty() && self.draft.replies.is_empty());
        assert_eq!(self.open.is_some(), self.is_behind() && !self.is_empty(), "why an assignment is owed");
        assert!(
            self.unsettled.is_none() || self.index.settled < self.index.members,
            "all came, and it is told"
        );
        for member in self.seats.keys() {
            assert!(self.state.metadata(member).is_some(), "{member} has a seat and is no member");
        }
        for (id, data, member) in self.state.joined() {
            let current = member.standing();
            assert!(self.seats.get(id).is_some_and(|seat| seat.session.is_some()), "{id} has no session");
            assert!(!self.state.is_outlived(id), "{id} does not hold its instance id");
            // One may be ahead of an assignment that was lost; the next one is of a later epoch then.
            let (assignment, group) = (self.state.assignment_epoch(), self.state.group_epoch());
            assert!(current.epoch <= assignment || current.epoch < group, "{id} is ahead: {:?}", self.state);
            let gives_up = current.standing == Standing::Unrevoked;
            assert_eq!(gives_up, !current.revoking.is_empty(), "{current:?}");
            let watched = self.rest(id).is_some_and(|rest| rest.rebalance.is_some());
            assert_eq!(watched, gives_up && data.classic.is_none() && current.epoch >= 0, "{id}");
        }
        assert!(self.state.assignment_epoch() <= self.state.group_epoch());
    }
}
