//! The machine: all groups of one partition of `__consumer_offsets`. Owns which event goes where, what follows a commit, and the bounds.
//!
//! Its life: records are replayed, [`Event::Loaded`] makes it serve, [`Event::Resigned`] ends that; it goes on replaying.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_shard::limits::{GROUP_BYTES_PER_CORE_MAX, GROUP_MEMBERS_MAX, GROUPS_PER_CORE_MAX};

use super::classic::{ClassicGroup, GroupState};
use super::clerk::{Clerk, Open, Then};
use super::consumer::{ConsumerGroup, Desk, Subject, Topics};
use super::durable::{Durable, GroupReplayError};
use super::event::{Event, GroupId, Surroundings, Ticket, Usage};
use super::reply::{Answer, JoinReply, Step, SyncReply, TimerChange};
use super::settings::{ConsumerSettings, GroupOverrides, GroupSettings};
use super::timeline::{Cause, Trigger};

/// Whether clients are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Service {
    /// The partition is being read.
    Loading,
    Serving,
    /// Another core or node leads the partition.
    Resigned,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct GroupMachine {
    pub(super) durable: Durable,
    /// Each group of which something is durable, and those that were asked for since. Empty unless clients are served.
    pub(super) live: BTreeMap<GroupId, ClassicGroup>,
    /// Consumer groups; no name is in both maps. Empty unless clients are served.
    pub(super) consumers: BTreeMap<GroupId, ConsumerGroup>,
    /// Memory of `live` and `consumers`, estimated.
    live_bytes: usize,
    /// What consumer groups said in appends that failed, and have not said again yet.
    pub(super) unsure: BTreeMap<GroupId, BTreeSet<Subject>>,
    pub(super) topics: Arc<Topics>,
    overrides: Arc<BTreeMap<GroupId, GroupOverrides>>,
    pub(super) clerk: Clerk,
    /// Where the next look for what may expire begins.
    pub(super) expire_after: Option<GroupId>,
    service: Service,
}

impl GroupMachine {
    /// The machine before any record.
    pub fn new(settings: GroupSettings) -> GroupMachine {
        GroupMachine {
            durable: Durable::default(),
            live: BTreeMap::new(),
            consumers: BTreeMap::new(),
            live_bytes: 0,
            unsure: BTreeMap::new(),
            topics: Arc::default(),
            overrides: Arc::default(),
            clerk: Clerk::new(settings),
            expire_after: None,
            service: Service::Loading,
        }
    }

    /// Takes other settings for what happens from now on.
    pub fn set_settings(&mut self, settings: GroupSettings) {
        self.clerk.settings = settings;
    }

    /// Takes other settings of consumer groups for what happens from now on.
    pub fn set_consumer_settings(&mut self, settings: ConsumerSettings) {
        self.clerk.consumer = settings;
    }

    /// Takes what is set for single groups, for what happens from now on.
    pub fn set_overrides(&mut self, overrides: Arc<BTreeMap<GroupId, GroupOverrides>>) {
        self.overrides = overrides;
    }

    /// What is durable.
    pub fn durable(&self) -> &Durable {
        &self.durable
    }

    /// What it holds, for the other machines' [`Surroundings`].
    pub fn usage(&self) -> Usage {
        Usage {
            groups: self.live.len() + self.consumers.len(),
            bytes: self.live_bytes + self.durable.bytes(),
        }
    }

    /// Takes a committed record in, in the order of the log: its own ones too, before [`Event::Committed`].
    ///
    /// # Errors
    /// A record that this build does not understand: the machine must not go on, its state would not be the log's.
    pub fn replay(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), GroupReplayError> {
        self.durable.replay_beside(key, value, |group| {
            self.consumers.get_key_value(group).map(|(id, group)| (id, &group.state))
        })
    }

    /// Decides what an event comes to. Changes nothing that is durable.
    pub fn handle(&mut self, event: Event, around: Surroundings) -> Step {
        self.clerk.around = around;
        match (self.service, event) {
            (_, Event::Loaded) => self.loaded(),
            (_, Event::Resigned) => self.resigned(),
            (_, Event::MetadataChanged(topics)) => self.topics = topics,
            (Service::Serving, event) => self.serve(event),
            (service, event) => {
                let error = match service {
                    Service::Loading => ErrorCode::CoordinatorLoadInProgress,
                    Service::Serving | Service::Resigned => ErrorCode::NotCoordinator,
                };
                self.clerk.step.answers.extend(event.refused(error));
            }
        }
        std::mem::take(&mut self.clerk.step)
    }

    fn serve(&mut self, event: Event) {
        if !matches!(event, Event::Failed(..)) {
            self.say_again();
        }
        match event {
            Event::Join(token, request) => self.join(token, request),
            Event::Sync(token, request) => self.sync(token, request),
            Event::Heartbeat(token, request) => self.heartbeat(token, request),
            Event::Leave(token, request) => self.leave(token, request),
            Event::ConsumerHeartbeat(token, request) => self.consumer_heartbeat(token, request),
            Event::Computed(computed) => self.computed(computed),
            Event::CommitOffsets(token, request) => self.commit_offsets(token, &request),
            Event::DeleteOffsets(token, request) => self.delete_offsets(token, &request),
            Event::DeleteGroups(token, groups) => self.delete_groups(token, groups),
            Event::TopicsDeleted(topics) => self.topics_deleted(&topics),
            Event::Expire => self.expire(),
            Event::Fired(timer, serial) => self.fired(timer, serial),
            Event::Committed(ticket) => self.committed(ticket),
            Event::Failed(ticket, error) => self.failed(ticket, error),
            Event::Loaded | Event::Resigned | Event::MetadataChanged(_) => {}
        }
    }

    /// Serves clients from what was replayed. Members are given a whole session to be heard of.
    fn loaded(&mut self) {
        self.service = Service::Serving;
        self.live.clear();
        self.consumers.clear();
        self.unsure.clear();
        self.live_bytes = 0;
        self.load_consumers();
        let known = self.durable.groups().keys().chain(self.durable.offsets().keys());
        for id in known.cloned().collect::<BTreeSet<GroupId>>() {
            if self.consumers.contains_key(&id) {
                continue;
            }
            let group = match self.durable.groups().get(&id) {
                Some(record) => ClassicGroup::loaded(Arc::clone(&id), record),
                None => ClassicGroup::empty(Arc::clone(&id), None),
            };
            self.live_bytes += group.bytes();
            self.live.insert(id, group);
        }
        for id in self.live.keys().cloned().collect::<Vec<_>>() {
            self.with_group(&id, |group, clerk| {
                for member in group.members.ids() {
                    group.arm_session(clerk, &member);
                }
                // The bound was lowered since: who joins last is out, and the others can commit before.
                if group.members.len() > clerk.settings.members_max.min(GROUP_MEMBERS_MAX) {
                    group.note(clerk, Trigger::of_group(Cause::GroupTooLarge));
                    group.prepare_rebalance(clerk);
                }
            });
        }
    }

    /// Sends everyone to the next coordinator.
    fn resigned(&mut self) {
        self.service = Service::Resigned;
        let error = ErrorCode::NotCoordinator;
        // Nothing is said again: an answer that hung on that would never come.
        self.unsure.clear();
        for open in self.clerk.close_all() {
            let failed = |answer: Answer| Answer { token: answer.token, reply: answer.reply.failed(error) };
            self.clerk.step.answers.extend(open.answers.into_iter().map(failed));
        }
        for group in std::mem::take(&mut self.live).into_values() {
            for member in group.members.iter() {
                let id = &member.id;
                if let Some(token) = member.waiting_join {
                    self.clerk.answer_join(token, JoinReply::refused(error, id));
                }
                if let Some(token) = member.waiting_sync {
                    self.clerk.answer_sync(token, SyncReply::refused(error));
                }
            }
        }
        for id in self.consumers.keys().cloned().collect::<Vec<_>>() {
            self.close_consumers(&id, error);
        }
        debug_assert!(self.clerk.step.appends.is_empty(), "nobody appends for a machine that resigned");
        self.live_bytes = 0;
        self.expire_after = None;
        self.clerk.step.timers.push(TimerChange::CancelAll);
    }

    fn committed(&mut self, ticket: Ticket) {
        let Some(Open { then, answers }) = self.clerk.close(ticket) else { return };
        match then {
            Then::Nothing | Then::OffsetsWritten { .. } | Then::Grouped { .. } | Then::Part { .. } => {}
            Then::Assign { group, assignments } => {
                self.with_group(&group, |group, clerk| group.assigned_durably(clerk, ticket, assignments));
            }
            Then::Renamed { group, new } => {
                self.with_group(&group, |group, clerk| group.renamed(clerk, new, None));
            }
            Then::Deleted { groups } => groups.iter().for_each(|id| self.settle_deleted(id)),
        }
        self.clerk.step.answers.extend(answers);
    }

    fn failed(&mut self, ticket: Ticket, error: ErrorCode) {
        let Some(Open { then, mut answers }) = self.clerk.close(ticket) else { return };
        match then {
            // A group that came to be for it goes at the next look for what may expire.
            Then::Nothing | Then::OffsetsWritten { .. } => {}
            Then::Grouped { group, subjects } => answers.extend(self.not_said(group, subjects)),
            // The last part must not be taken for the whole.
            Then::Part { last } => {
                answers.extend(self.clerk.take_answers(last));
                if let Some((group, subjects)) = self.clerk.said(last) {
                    answers.extend(self.not_said(group, subjects));
                }
            }
            Then::Assign { group, .. } => {
                self.with_group(&group, |group, clerk| group.assignment_failed(clerk, ticket, error));
            }
            Then::Renamed { group, new } => {
                self.with_group(&group, |group, clerk| group.renamed(clerk, new, Some(error)));
            }
            Then::Deleted { groups } => groups.iter().for_each(|id| self.settle_deleted(id)),
        }
        for Answer { token, reply } in answers {
            self.clerk.answer(token, reply.failed(error));
        }
    }

    /// The deletion of a group ended: it is gone, or it is as it was.
    fn settle_deleted(&mut self, id: &GroupId) {
        self.settle_deleted_consumers(id);
        if !self.live.get(id).is_some_and(|group| group.state == GroupState::Dead) {
            return;
        }
        if self.durable.groups().contains_key(id) || self.durable.offsets().contains_key(id) {
            self.with_group(id, |group, _| group.state = GroupState::Empty);
        } else {
            self.forget(id);
        }
    }

    pub(super) fn create(&mut self, id: &GroupId) {
        let group = ClassicGroup::empty(Arc::clone(id), Some(self.clerk.now_ms()));
        self.live_bytes += group.bytes();
        self.live.insert(Arc::clone(id), group);
    }

    /// Takes a group in that was of another kind.
    pub(super) fn insert_classic(&mut self, group: ClassicGroup) {
        self.live_bytes += group.bytes();
        self.live.insert(Arc::clone(&group.id), group);
    }

    pub(super) fn insert_consumers(&mut self, group: ConsumerGroup) {
        self.live_bytes += group.bytes();
        self.consumers.insert(Arc::clone(&group.id), group);
    }

    pub(super) fn forget_consumers(&mut self, id: &GroupId) {
        if let Some(group) = self.consumers.remove(id) {
            self.live_bytes -= group.bytes();
        }
    }

    pub(super) fn forget(&mut self, id: &GroupId) {
        if let Some(group) = self.live.remove(id) {
            self.live_bytes -= group.bytes();
        }
    }

    /// The only way to change a live group: keeps the count of its memory. `None` where there is no such group.
    pub(super) fn with_group<R>(
        &mut self,
        id: &str,
        act: impl FnOnce(&mut ClassicGroup, &mut Clerk) -> R,
    ) -> Option<R> {
        let group = self.live.get_mut(id)?;
        let before = group.bytes();
        let result = act(group, &mut self.clerk);
        self.live_bytes = self.live_bytes + group.bytes() - before;
        Some(result)
    }

    /// The only way to change a consumer group: keeps the count of its memory, says again what is unsure, and hands on what it comes to.
    pub(super) fn with_consumer<R>(
        &mut self,
        id: &str,
        act: impl FnOnce(&mut ConsumerGroup, &mut Desk<'_>) -> R,
    ) -> Option<R> {
        let group = self.consumers.get_mut(id)?;
        let before = group.bytes();
        if let Some(subjects) = self.unsure.remove(id) {
            group.say_again(subjects);
        }
        let settings = match self.overrides.get(id) {
            Some(own) => self.clerk.consumer.with(*own),
            None => self.clerk.consumer,
        };
        let mut desk = Desk { clerk: &mut self.clerk, topics: &self.topics, settings };
        let result = act(group, &mut desk);
        group.flush(&mut self.clerk);
        self.live_bytes = self.live_bytes + group.bytes() - before;
        Some(result)
    }

    /// Whether this core has room for so many groups and bytes more.
    ///
    /// # Errors
    /// Which bound is reached, in words.
    pub(super) fn room(&self, groups: usize, bytes: usize) -> Result<(), String> {
        let (own, elsewhere) = (self.usage(), self.clerk.around.elsewhere);
        if groups > 0 && own.groups + elsewhere.groups + groups > GROUPS_PER_CORE_MAX {
            return Err(format!("this core holds {GROUPS_PER_CORE_MAX} groups, as many as it may"));
        }
        if own.bytes + elsewhere.bytes + bytes > GROUP_BYTES_PER_CORE_MAX {
            return Err(format!(
                "the groups of this core hold {} bytes of {GROUP_BYTES_PER_CORE_MAX}, and {bytes} more do not fit",
                own.bytes + elsewhere.bytes
            ));
        }
        Ok(())
    }

    /// What must hold when nothing is under way: consumer groups are what the log says, but for what failed.
    #[cfg(test)]
    pub(super) fn check_settled(&self) {
        for (id, group) in self.consumers.iter().filter(|(id, _)| !self.unsure.contains_key(*id)) {
            let durable = self.durable.consumers().get(id).cloned().unwrap_or_default();
            assert_eq!(group.state, durable, "{id}");
        }
    }

    /// What must hold between any two events.
    #[cfg(test)]
    pub(super) fn check(&self) {
        self.live.values().for_each(ClassicGroup::check);
        self.consumers.values().for_each(ConsumerGroup::check);
        assert!(self.live.keys().all(|id| !self.consumers.contains_key(id)));
        let consumers = self.consumers.values().map(ConsumerGroup::bytes).sum::<usize>();
        assert_eq!(self.live.values().map(ClassicGroup::bytes).sum::<usize>() + consumers, self.live_bytes);
    }
}
