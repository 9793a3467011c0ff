//! The machine: all groups of one partition of `__consumer_offsets`. Owns which event goes where, what follows a commit, and the bounds.
//!
//! Its life: records are replayed, [`Event::Loaded`] makes it serve, [`Event::Resigned`] ends that; it goes on replaying.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_shard::limits::{GROUP_BYTES_PER_CORE_MAX, GROUP_MEMBERS_MAX, GROUPS_PER_CORE_MAX};

use super::classic::{ClassicGroup, GroupState};
use super::clerk::{Clerk, Open, Then};
use super::durable::{Durable, GroupReplayError};
use super::event::{Event, GroupId, Surroundings, Ticket, Usage};
use super::reply::{Answer, JoinReply, Step, SyncReply, TimerChange};
use super::settings::GroupSettings;

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
    /// Memory of `live`, estimated.
    live_bytes: usize,
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
            live_bytes: 0,
            clerk: Clerk::new(settings),
            expire_after: None,
            service: Service::Loading,
        }
    }

    /// Takes other settings for what happens from now on.
    pub fn set_settings(&mut self, settings: GroupSettings) {
        self.clerk.settings = settings;
    }

    /// What is durable.
    pub fn durable(&self) -> &Durable {
        &self.durable
    }

    /// What it holds, for the other machines' [`Surroundings`].
    pub fn usage(&self) -> Usage {
        Usage { groups: self.live.len(), bytes: self.live_bytes + self.durable.bytes() }
    }

    /// Takes a committed record in, in the order of the log: its own ones too, before [`Event::Committed`].
    ///
    /// # Errors
    /// A record that this build does not understand: the machine must not go on, its state would not be the log's.
    pub fn replay(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), GroupReplayError> {
        self.durable.replay(key, value)
    }

    /// Decides what an event comes to. Changes nothing that is durable.
    pub fn handle(&mut self, event: Event, around: Surroundings) -> Step {
        self.clerk.around = around;
        match (self.service, event) {
            (_, Event::Loaded) => self.loaded(),
            (_, Event::Resigned) => self.resigned(),
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
        match event {
            Event::Join(token, request) => self.join(token, request),
            Event::Sync(token, request) => self.sync(token, request),
            Event::Heartbeat(token, request) => self.heartbeat(token, request),
            Event::Leave(token, request) => self.leave(token, request),
            Event::CommitOffsets(token, request) => self.commit_offsets(token, &request),
            Event::DeleteOffsets(token, request) => self.delete_offsets(token, &request),
            Event::DeleteGroups(token, groups) => self.delete_groups(token, groups),
            Event::TopicsDeleted(topics) => self.topics_deleted(&topics),
            Event::Expire => self.expire(),
            Event::Fired(timer, serial) => self.fired(timer, serial),
            Event::Committed(ticket) => self.committed(ticket),
            Event::Failed(ticket, error) => self.failed(ticket, error),
            Event::Loaded | Event::Resigned => {}
        }
    }

    /// Serves clients from what was replayed. Members are given a whole session to be heard of.
    fn loaded(&mut self) {
        self.service = Service::Serving;
        self.live.clear();
        self.live_bytes = 0;
        let known = self.durable.groups().keys().chain(self.durable.offsets().keys());
        for id in known.cloned().collect::<BTreeSet<GroupId>>() {
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
                    group.prepare_rebalance(clerk);
                }
            });
        }
    }

    /// Sends everyone to the next coordinator.
    fn resigned(&mut self) {
        self.service = Service::Resigned;
        let error = ErrorCode::NotCoordinator;
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
        self.live_bytes = 0;
        self.expire_after = None;
        self.clerk.step.timers.push(TimerChange::CancelAll);
    }

    fn committed(&mut self, ticket: Ticket) {
        let Some(Open { then, answers }) = self.clerk.close(ticket) else { return };
        match then {
            Then::Nothing | Then::OffsetsWritten { .. } | Then::Part { .. } => {}
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
            // The last part must not be taken for the whole.
            Then::Part { last } => answers.extend(self.clerk.take_answers(last)),
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

    fn forget(&mut self, id: &GroupId) {
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

    /// What must hold between any two events.
    #[cfg(test)]
    pub(super) fn check(&self) {
        self.live.values().for_each(ClassicGroup::check);
        assert_eq!(self.live.values().map(ClassicGroup::bytes).sum::<usize>(), self.live_bytes);
    }
}
