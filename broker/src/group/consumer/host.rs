//! How the machine deals with consumer groups as a whole: they are loaded, said again where an append failed, deleted and listed.

use std::collections::BTreeSet;
use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_shard::limits::MACHINE_PROPOSAL_BYTES_MAX;

use super::group::ConsumerGroup;
use super::record;
use super::state::{ConsumerState, Subject};
use crate::group::clerk::Then;
use crate::group::event::{GroupId, Leaver, Serial, Timer};
use crate::group::machine::GroupMachine;
use crate::group::record as classic_record;
use crate::group::reply::{Answer, KeyedRecord, LeaveReply};

/// Groups that say something again with one event, besides the one that the event is of.
const SAY_AGAIN_AT_ONCE: usize = 16;

impl GroupMachine {
    /// Takes in what is durable. Members are given a whole session to be heard of.
    pub(in crate::group) fn load_consumers(&mut self) {
        let groups = self.durable().consumers().iter().map(|(id, state)| (Arc::clone(id), state.clone()));
        for (id, state) in groups.collect::<Vec<_>>() {
            let group = ConsumerGroup::loaded(Arc::clone(&id), state);
            let has_classic =
                self.durable().groups().get(&id).is_some_and(|classic| !classic.members.is_empty());
            if group.is_empty() && has_classic {
                // Cut off while the group changed its kind: what has members counts.
                continue;
            }
            self.insert_consumers(group);
            self.with_consumer(&id, |group, desk| {
                group.drop_outlived(desk);
                group.count_above_members(desk);
                group.note_owed(desk.clerk);
                let members = group.state.joined().map(|(member, _, _)| Arc::clone(member));
                for member in members.collect::<Vec<_>>() {
                    group.arm_session(desk, &member);
                    group.watch_rebalance(desk.clerk, &member);
                }
            });
        }
    }

    /// An append failed: what it said is not sure, and neither is what was said since. The answers that hang on it.
    pub(in crate::group) fn not_said(&mut self, group: GroupId, subjects: Vec<Subject>) -> Vec<Answer> {
        let mut answers = Vec::new();
        for ticket in self.clerk.appends_of(&group) {
            answers.extend(self.clerk.take_answers(ticket));
        }
        self.unsure.entry(group).or_default().extend(subjects);
        answers
    }

    /// Says again what failed, of some groups.
    pub(in crate::group) fn say_again(&mut self) {
        for id in self.unsure.keys().take(SAY_AGAIN_AT_ONCE).cloned().collect::<Vec<_>>() {
            if self.with_consumer(&id, |_, _| ()).is_none()
                && let Some(subjects) = self.unsure.remove(&id)
            {
                self.say_ended(id, subjects);
            }
        }
    }

    /// Of a group that is none of consumers any more.
    fn say_ended(&mut self, id: GroupId, subjects: BTreeSet<Subject>) {
        let nothing = ConsumerState::default();
        let is_classic = self.live.contains_key(&id);
        let mut records: Vec<KeyedRecord> = Vec::new();
        for subject in &subjects {
            match nothing.now(subject) {
                Some(change) => records.push(record::write(&id, &change)),
                // A classic group writes its record when it has come to rest.
                None if is_classic => {}
                None => records.extend(classic_record::group_tombstone(&id).ok()),
            }
        }
        let then = Then::Grouped { group: id, subjects: subjects.into_iter().collect() };
        self.clerk.append_in_parts(records, MACHINE_PROPOSAL_BYTES_MAX, then);
    }

    pub(in crate::group) fn consumers_timer_ran_out(&mut self, timer: &Timer, serial: Serial) {
        let id = timer.group();
        let gone = self.with_consumer(id, |group, desk| {
            let due = group.is_due(timer, serial);
            group.timer_ran_out(desk, timer, due).map(|member| (member, group.cause_of(timer)))
        });
        if let Some((member, cause)) = gone.flatten() {
            self.fence(id, &member, cause);
        }
    }

    pub(in crate::group) fn leave_consumers(&mut self, id: &GroupId, leavers: &[Leaver]) -> LeaveReply {
        let refused = |error| LeaveReply { error, members: Vec::new() };
        let left = self.with_consumer(id, |group, desk| match group.dead {
            true => refused(ErrorCode::CoordinatorNotAvailable),
            false => LeaveReply { error: ErrorCode::None, members: group.classic_leave(desk, leavers) },
        });
        left.unwrap_or_else(|| refused(ErrorCode::CoordinatorNotAvailable))
    }

    /// Whether a consumer group may be deleted; `None` where there is no such group.
    pub(in crate::group) fn check_consumers_delete(
        &self,
        id: &str,
    ) -> Option<Result<(), (ErrorCode, String)>> {
        let group = self.consumers.get(id)?;
        Some(if group.dead {
            Err((ErrorCode::GroupIdNotFound, format!("group {id} does not exist")))
        } else if group.is_empty() && !self.is_settled(id) {
            Err((ErrorCode::CoordinatorNotAvailable, format!("group {id} is being written")))
        } else if group.is_empty() {
            Ok(())
        } else {
            Err((ErrorCode::NonEmptyGroup, format!("group {id} has {} members", group.index.members)))
        })
    }

    /// Whether all that a consumer group said is in the log. Before that the records that would end it are not known.
    pub(in crate::group) fn is_settled(&self, id: &str) -> bool {
        !self.unsure.contains_key(id) && self.clerk.appends_of(id).is_empty()
    }

    /// The records that end a consumer group; it takes nothing in until they are in the log. None where there is no such group.
    pub(in crate::group) fn bury_consumers(&mut self, id: &str) -> Vec<KeyedRecord> {
        let records = self.with_consumer(id, |group, desk| {
            group.dead = true;
            if group.assign_timer.take().is_some() {
                desk.clerk.cancel(Timer::Assign { group: Arc::clone(&group.id) });
            }
            let endings = group.state.endings();
            endings.iter().map(|change| record::write(&group.id, change)).collect()
        });
        records.unwrap_or_default()
    }

    /// The deletion of a group ended: it is gone, or it is as it was.
    pub(in crate::group) fn settle_deleted_consumers(&mut self, id: &GroupId) {
        if !self.consumers.get(id).is_some_and(|group| group.dead) {
            return;
        }
        if self.durable().consumers().contains_key(id) || self.durable().offsets().contains_key(id) {
            self.with_consumer(id, |group, _| group.dead = false);
        } else {
            self.close_consumers(id, ErrorCode::GroupIdNotFound);
        }
    }
}
