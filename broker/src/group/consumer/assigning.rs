//! When a consumer group counts a new epoch, and how it comes to a target assignment: the group asks for a computation, others carry it
//! out off the core, and its result comes back as an event. At most one of each kind is under way, and an assignment follows another
//! after a while at the earliest, so that many who join at once are shared out at once.

use std::collections::BTreeSet;
use std::sync::Arc;

use ringlog_protocol::ids::{TopicId, TopicPartition};

use super::group::{ConsumerGroup, Desk, Waiting, WaitingKind};
use super::regex;
use super::state::{AssignmentEpoch, Change, GroupEpoch, MemberMetadata, MemberState, ResolvedRegex};
use super::topics::Topics;
use crate::group::assign::{Assignment, AssignmentInput, Assignor, Candidate, TopicShape};
use crate::group::event::{GroupId, MemberId, Timer};
use crate::group::machine::GroupMachine;
use crate::group::timeline::{Cause, Trigger};

/// Between two looks at which topics the expressions of a group stand for, in milliseconds (Kafka's number).
const RESOLVE_INTERVAL_MS: i64 = 10_000;

/// Work for off the core. It is a pure function of what is in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Computation {
    pub group: GroupId,
    /// Of the group when it was asked for.
    pub epoch: i32,
    number: u64,
    work: Work,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Work {
    Assign(AssignmentInput),
    Resolve { texts: Vec<Arc<str>>, topics: Arc<Topics> },
}

/// What a [`Computation`] came to: goes back to the machine that asked for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Computed {
    pub group: GroupId,
    /// Of the group when it was asked for.
    pub epoch: i32,
    number: u64,
    outcome: Outcome,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Outcome {
    Assigned(Assignment),
    /// The version of the topics, and what each expression stands for.
    Resolved {
        version: i64,
        resolved: Vec<(Arc<str>, Vec<Arc<str>>)>,
    },
}

impl Computation {
    /// Carries it out. Takes up to some ten milliseconds for a thousand members and ten thousand partitions.
    pub fn run(self) -> Computed {
        let outcome = match self.work {
            Work::Assign(input) => Outcome::Assigned(input.assign()),
            Work::Resolve { texts, topics } => {
                let resolved = regex::resolve(&texts, &topics);
                Outcome::Resolved {
                    version: topics.version(),
                    resolved: texts.into_iter().zip(resolved).collect(),
                }
            }
        };
        Computed { group: self.group, epoch: self.epoch, number: self.number, outcome }
    }
}

impl GroupMachine {
    /// A computation ended. One that the group does not wait for any more is dropped.
    pub(in crate::group) fn computed(&mut self, computed: Computed) {
        let Computed { group, epoch, number, outcome } = computed;
        self.with_consumer(&group, |group, desk| match outcome {
            Outcome::Assigned(assignment) if group.computing == Some(number) => {
                group.computing = None;
                group.take_assignment(desk, epoch, assignment);
            }
            Outcome::Resolved { version, resolved } if group.resolving == Some(number) => {
                group.resolving = None;
                group.take_resolved(desk, version, resolved);
            }
            Outcome::Assigned(_) | Outcome::Resolved { .. } => {}
        });
    }
}

impl ConsumerGroup {
    /// Counts a new epoch if something changed (`changed`), or if the topics did.
    pub(super) fn refresh(&mut self, desk: &mut Desk<'_>, changed: bool) {
        let version = desk.topics.version();
        if !changed && (self.seen_version == Some(version) || version == 0) {
            return;
        }
        let metadata_hash = desk.topics.hash(self.subscribed());
        let before = self.state.epoch.map_or(0, |epoch| epoch.metadata_hash);
        // A group that was of the other kind knows no hash: that it came over is noted already.
        let is_first = self.seen_version.is_none() && before == 0 && self.open.is_some();
        self.seen_version = Some(version);
        if changed || metadata_hash != before {
            if !changed && !is_first {
                self.note(desk.clerk, Trigger::of_group(Cause::TopicsChanged));
            }
            let epoch = self.state.group_epoch().saturating_add(1);
            self.change(Change::Epoch(Some(GroupEpoch { epoch, metadata_hash })));
        }
    }

    /// Members may be in epochs that the log says nothing of: what said it was lost in an append that failed, and later ones were not. Counts
    /// one above all then, to lead everyone on from there.
    pub(super) fn count_above_members(&mut self, desk: &mut Desk<'_>) {
        let members = self.state.members.values().map(MemberState::epoch).max().unwrap_or(0);
        let (group, assignment) = (self.state.group_epoch(), self.state.assignment_epoch());
        if assignment > group || (members > assignment && members >= group) {
            let epoch = members.max(assignment).saturating_add(1);
            let metadata_hash = desk.topics.hash(self.subscribed());
            self.change(Change::Epoch(Some(GroupEpoch { epoch, metadata_hash })));
        }
    }

    /// Names of all topics that somebody wants, whether they exist or not.
    fn subscribed(&self) -> BTreeSet<&str> {
        let resolved = self.index.regexes.keys().filter_map(|text| self.state.regexes.get(text));
        let by_regex = resolved.flat_map(|resolved| &resolved.topics);
        self.index.names.keys().chain(by_regex).map(|name| &**name).collect()
    }

    /// Forgets what expressions stand for that nobody uses.
    pub(super) fn drop_unused_regexes(&mut self) {
        let unused = self.state.regexes.keys().filter(|text| !self.index.regexes.contains_key(*text));
        for text in unused.cloned().collect::<Vec<_>>() {
            self.change(Change::Regex(text, None));
        }
    }

    /// Asks for what the group needs and nobody computes yet: what its expressions stand for, and an assignment of its epoch.
    pub(super) fn think(&mut self, desk: &mut Desk<'_>) {
        if self.dead || self.is_empty() {
            return;
        }
        self.resolve(desk);
        if !self.is_behind() || self.computing.is_some() || self.must_know_an_expression() {
            return;
        }
        let last_ms = self.state.assignment.map_or(0, |assignment| assignment.computed_ms);
        let passed_ms = desk.clerk.now_ms().saturating_sub(last_ms);
        // A clock that was set back must not hold the group up.
        let left_ms =
            if passed_ms < 0 { 0 } else { desk.settings.assignment_interval_ms.saturating_sub(passed_ms) };
        if left_ms > 0 {
            if self.assign_timer.is_none() {
                let after_ms = i32::try_from(left_ms).unwrap_or(i32::MAX);
                let timer = Timer::Assign { group: Arc::clone(&self.id) };
                self.assign_timer = Some(desk.clerk.arm(timer, after_ms));
            }
            return;
        }
        let work = Work::Assign(self.assignment_input(desk));
        self.computing = Some(self.compute(desk, work));
    }

    /// Whether somebody gets nothing before what an expression stands for is known, which is being found out. A member that names topics
    /// too gets those at once, as of Apache Kafka: clients are tested on it.
    fn must_know_an_expression(&self) -> bool {
        let is_new = |text: &Arc<str>| !self.state.regexes.contains_key(text);
        self.resolving.is_some()
            && self.index.regexes.keys().any(is_new)
            && self
                .state
                .joined()
                .any(|(_, data, _)| data.names.is_empty() && data.regex.as_ref().is_some_and(is_new))
    }

    /// Whether an assignment is owed.
    pub(super) fn is_behind(&self) -> bool {
        self.state.group_epoch() > self.state.assignment_epoch()
    }

    fn compute(&self, desk: &mut Desk<'_>, work: Work) -> u64 {
        let number = desk.clerk.next_number();
        let (group, epoch) = (Arc::clone(&self.id), self.state.group_epoch());
        desk.clerk.step.computations.push(Computation { group, epoch, number, work });
        number
    }

    /// The time to wait for the next assignment is over.
    pub fn assign_time_is_up(&mut self, desk: &mut Desk<'_>) {
        self.think(desk);
    }

    /// Asks what the expressions stand for, where one is new, or where the topics are others than when it was asked last.
    fn resolve(&mut self, desk: &mut Desk<'_>) {
        if self.resolving.is_some() || self.index.regexes.is_empty() {
            return;
        }
        let version = desk.topics.version();
        let is_new = self.index.regexes.keys().any(|text| !self.state.regexes.contains_key(text));
        let resolved = self.resolved.or_else(|| {
            let last = self.state.regexes.values().max_by_key(|resolved| resolved.version)?;
            Some((last.resolved_ms, last.version))
        });
        let is_old = resolved.is_none_or(|(resolved_ms, resolved_version)| {
            let passed_ms = desk.clerk.now_ms().saturating_sub(resolved_ms);
            resolved_version != version && !(0..RESOLVE_INTERVAL_MS).contains(&passed_ms)
        });
        if version == 0 || !(is_new || is_old) {
            return;
        }
        let texts = self.index.regexes.keys().cloned().collect();
        let work = Work::Resolve { texts, topics: Arc::clone(desk.topics) };
        self.resolving = Some(self.compute(desk, work));
        self.resolved = Some((desk.clerk.now_ms(), version));
    }

    fn take_resolved(&mut self, desk: &mut Desk<'_>, version: i64, resolved: Vec<(Arc<str>, Vec<Arc<str>>)>) {
        let resolved_ms = desk.clerk.now_ms();
        let mut changed = false;
        for (text, topics) in resolved {
            let before = self.state.regexes.get(&text);
            if !self.index.regexes.contains_key(&text) || before.is_some_and(|before| before.topics == topics)
            {
                continue;
            }
            changed |= before.is_some() || !topics.is_empty();
            let resolved = ResolvedRegex { topics, version, resolved_ms };
            self.change(Change::Regex(text, Some(Arc::new(resolved))));
        }
        if changed {
            self.note(desk.clerk, Trigger::of_group(Cause::ExpressionResolved));
        }
        self.refresh(desk, changed);
        self.think(desk);
    }

    /// All that the assignment rests on.
    fn assignment_input(&self, desk: &Desk<'_>) -> AssignmentInput {
        let topics = desk.topics;
        let mut used: BTreeSet<TopicId> = BTreeSet::new();
        // Most members want the same as the one before.
        let mut last: Option<(&MemberMetadata, Arc<[TopicId]>)> = None;
        let mut members = Vec::with_capacity(self.index.members);
        for (id, data, member) in self.state.joined() {
            let same =
                last.as_ref().filter(|(before, _)| before.names == data.names && before.regex == data.regex);
            let wants = match same {
                Some((_, wants)) => Arc::clone(wants),
                None => {
                    let wants = self.wanted_ids(topics, data);
                    used.extend(wants.iter());
                    wants
                }
            };
            last = Some((data, Arc::clone(&wants)));
            members.push(Candidate {
                id: Arc::clone(id),
                instance: data.instance.clone(),
                rack: data.rack.clone(),
                wants,
                had: member.target(),
            });
        }
        let shapes = used.into_iter().filter_map(|id| topics.of_id(id)).map(|topic| TopicShape {
            id: topic.id,
            partition_count: topic.partition_count,
            racks: topic.racks.clone(),
        });
        AssignmentInput { assignor: self.assignor(desk), members, topics: shapes.collect() }
    }

    fn wanted_ids(&self, topics: &Topics, data: &MemberMetadata) -> Arc<[TopicId]> {
        let resolved = data.regex.as_ref().and_then(|text| self.state.regexes.get(text));
        let by_regex = resolved.into_iter().flat_map(|resolved| &resolved.topics);
        let names = data.names.iter().chain(by_regex);
        let ids: BTreeSet<TopicId> =
            names.filter_map(|name| topics.of_name(name)).map(|topic| topic.id).collect();
        ids.into_iter().collect()
    }

    /// The one that most members name; the broker's choice where none does.
    pub fn assignor_name(&self, broker: Assignor) -> Arc<str> {
        // Among equals the first by name.
        let most = self.index.assignors.iter().rev().max_by_key(|(_, count)| **count);
        most.map_or_else(|| Arc::from(broker.name()), |(name, _)| Arc::clone(name))
    }

    fn assignor(&self, desk: &Desk<'_>) -> Assignor {
        let broker = desk.settings.assignor();
        let named = Assignor::of_name(&self.assignor_name(broker));
        // Members may have named it before the settings were others.
        named.filter(|named| desk.settings.assignors.contains(named)).unwrap_or(broker)
    }

    /// The assignment counts. Members that came since have their part in the next one.
    fn take_assignment(&mut self, desk: &mut Desk<'_>, epoch: i32, assignment: Assignment) {
        for (id, target) in assignment.members {
            let Some(member) = self.state.members.get(&id).filter(|member| member.metadata.is_some()) else {
                continue;
            };
            if member.target.as_ref() != Some(&target) {
                self.change(Change::Target(id, Some(target)));
            }
        }
        let computed_ms = desk.clerk.now_ms();
        self.change(Change::Assignment(Some(AssignmentEpoch { epoch, computed_ms })));
        self.tell_assignment(desk, epoch);
        let waiting =
            self.seats.keys().filter(|id| self.rest(id).is_some_and(|rest| !rest.waiting.is_empty()));
        for member in waiting.cloned().collect::<Vec<MemberId>>() {
            for waiting in self.take_waiting(&member, |waiting| waiting.epoch <= epoch) {
                self.end_wait(desk, &member, waiting);
            }
        }
        self.think(desk);
    }

    /// A member that waited is told its part.
    fn end_wait(&mut self, desk: &mut Desk<'_>, member: &MemberId, waiting: Waiting) {
        match waiting.kind {
            WaitingKind::Consumer => {
                let claim = self.claim_of_join(member);
                // Nobody is lost who has nothing.
                let _told_in_full = self.reconcile(desk, member, &claim, true);
                self.reply_standing(desk, waiting.token, member, true);
            }
            WaitingKind::Classic { owned } => self.end_classic_join(desk, waiting.token, member, &owned),
        }
    }

    /// What a member is to have beside what it has.
    pub(super) fn waits_for_others(&self, member: &str) -> bool {
        let Some(state) = self.state.members.get(member) else { return false };
        let assigned = self.current(member).assigned;
        let has = |at: &TopicPartition| assigned.binary_search_by_key(at, |owned| owned.at).is_ok();
        state.target().iter().any(|at| !has(at) && !self.index.is_free(at))
    }
}
