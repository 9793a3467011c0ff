//! SyncGroup: the leader brings the assignments, and everyone gets its own once they are in the log.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::error_code::ErrorCode;

use super::classic::{ClassicGroup, GroupState};
use super::clerk::{Clerk, Then};
use super::event::{MemberId, SyncRequest, Ticket, Token};
use super::machine::GroupMachine;
use super::record;
use super::reply::SyncReply;
use super::timeline::{Cause, Trigger};

impl GroupMachine {
    pub(super) fn sync(&mut self, token: Token, request: SyncRequest) {
        if request.group.is_empty() {
            self.clerk.answer_sync(token, SyncReply::refused(ErrorCode::InvalidGroupId));
            return;
        }
        if self.consumers.contains_key(&request.group) {
            let id = Arc::clone(&request.group);
            self.with_consumer(&id, |group, desk| group.classic_sync(desk, token, &request));
            return;
        }
        let bytes = request.assignments.iter().map(|(_, assignment)| assignment.len()).sum();
        let room = self.room(0, bytes);
        let id = Arc::clone(&request.group);
        let known = self.with_group(&id, |group, clerk| group.sync(clerk, token, request, room));
        if known.is_none() {
            self.clerk.answer_sync(token, SyncReply::refused(ErrorCode::UnknownMemberId));
        }
    }
}

impl ClassicGroup {
    fn sync(&mut self, clerk: &mut Clerk, token: Token, request: SyncRequest, room: Result<(), String>) {
        if let Err(error) = self.check_sync(&request) {
            clerk.answer_sync(token, SyncReply::refused(error));
            return;
        }
        let id = &request.member;
        match self.state {
            GroupState::PreparingRebalance => {
                clerk.answer_sync(token, SyncReply::refused(ErrorCode::RebalanceInProgress))
            }
            GroupState::CompletingRebalance => {
                self.asked_for_assignment(clerk, id);
                let earlier = self.members.update(id, |member| member.waiting_sync.replace(token));
                if let Some(earlier) = earlier.flatten() {
                    // The member asked again before it was answered: nobody waits for the first request.
                    clerk.answer_sync(earlier, SyncReply::refused(ErrorCode::RebalanceInProgress));
                }
                // The first assignments of a generation count, or a restart might bring others than members were told.
                if self.is_leader(id) && self.assigning.is_none() {
                    self.assign(clerk, request, room);
                }
            }
            GroupState::Stable => {
                self.asked_for_assignment(clerk, id);
                let assignment = self.members.get(id).map(|member| member.assignment.clone());
                clerk.answer_sync(token, self.assigned(assignment.unwrap_or_default()));
            }
            GroupState::Empty | GroupState::Dead => {
                clerk.answer_sync(token, SyncReply::refused(ErrorCode::UnknownMemberId))
            }
        }
    }

    fn check_sync(&self, request: &SyncRequest) -> Result<(), ErrorCode> {
        match self.state {
            GroupState::Empty => return Err(ErrorCode::UnknownMemberId),
            GroupState::Dead => return Err(ErrorCode::CoordinatorNotAvailable),
            GroupState::PreparingRebalance | GroupState::CompletingRebalance | GroupState::Stable => {}
        }
        self.check_member(&request.member, request.instance.as_deref())?;
        if request.generation != self.generation {
            return Err(ErrorCode::IllegalGeneration);
        }
        let differs = |said: &Option<Arc<str>>, own: &Option<Arc<str>>| {
            said.as_ref().zip(own.as_ref()).is_some_and(|(said, own)| said != own)
        };
        if differs(&request.protocol_type, &self.protocol_type)
            || differs(&request.protocol_name, &self.protocol)
        {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        Ok(())
    }

    fn asked_for_assignment(&mut self, clerk: &mut Clerk, member: &MemberId) {
        self.pending_sync.remove(member);
        if self.pending_sync.is_empty() {
            self.cancel_sync_timer(clerk);
        }
    }

    /// Puts the leader's assignments on their way into the log. Who is not named gets an empty one.
    fn assign(&mut self, clerk: &mut Clerk, request: SyncRequest, room: Result<(), String>) {
        let mut given: BTreeMap<MemberId, Bytes> = request.assignments.into_iter().collect();
        let ids = self.members.ids().into_iter();
        let assignments: BTreeMap<_, _> = ids
            .map(|id| {
                let own = given.remove(&id).unwrap_or_default();
                (id, own)
            })
            .collect();
        let refused = match room {
            Err(message) => Err((ErrorCode::CoordinatorNotAvailable, message)),
            // Kafka's answer to a record that its log does not take.
            Ok(()) => record::group(self, &assignments).map_err(|m| (ErrorCode::UnknownServerError, m)),
        };
        match refused {
            Ok(record) => {
                let group = Arc::clone(&self.id);
                let ticket = clerk.append(vec![record], Then::Assign { group, assignments });
                self.assigning = Some(ticket);
            }
            Err((error, message)) => self.not_assigned(clerk, error, Some(message)),
        }
    }

    /// The assignments are in the log: everyone may know its own. Nothing where the group rebalances already.
    pub(super) fn assigned_durably(
        &mut self,
        clerk: &mut Clerk,
        ticket: Ticket,
        assignments: BTreeMap<MemberId, Bytes>,
    ) {
        if self.assigning != Some(ticket) {
            return;
        }
        self.tell_rebalance(clerk, &assignments);
        self.enter(GroupState::Stable, clerk.now_ms());
        for (id, assignment) in assignments {
            let waiting = self.members.update(&id, |member| {
                member.assignment = assignment.clone();
                member.waiting_sync.take()
            });
            if let Some(token) = waiting.flatten() {
                clerk.answer_sync(token, self.assigned(assignment));
                self.arm_session(clerk, &id);
            }
        }
    }

    /// The assignments may not be in the log: nobody may work by them, so the group begins anew.
    pub(super) fn assignment_failed(&mut self, clerk: &mut Clerk, ticket: Ticket, error: ErrorCode) {
        if self.assigning == Some(ticket) {
            self.not_assigned(clerk, error, None);
        }
    }

    fn not_assigned(&mut self, clerk: &mut Clerk, error: ErrorCode, message: Option<String>) {
        self.note(clerk, Trigger::of_group(Cause::AssignmentFailed));
        self.refuse_waiting_syncs(clerk, &SyncReply { message, ..SyncReply::refused(error) });
        self.prepare_rebalance(clerk);
    }

    /// Answers everyone who waits for the leader, and takes away what was assigned.
    pub(super) fn refuse_waiting_syncs(&mut self, clerk: &mut Clerk, refused: &SyncReply) {
        for id in self.members.ids() {
            let waiting = self.members.update(&id, |member| {
                member.assignment = Bytes::new();
                member.waiting_sync.take()
            });
            if let Some(token) = waiting.flatten() {
                clerk.answer_sync(token, refused.clone());
                self.arm_session(clerk, &id);
            }
        }
    }
}
