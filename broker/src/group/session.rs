//! How members stay and how they go: heartbeats, LeaveGroup, timers that ran out.

use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;

use super::classic::{ClassicGroup, GroupState};
use super::clerk::Clerk;
use super::event::{HeartbeatRequest, LeaveRequest, Leaver, MemberId, Serial, Timer, Token};
use super::machine::GroupMachine;
use super::reply::{LeaveReply, LeftMember, Reply};
use super::timeline::Cause;

impl GroupMachine {
    pub(super) fn heartbeat(&mut self, token: Token, request: HeartbeatRequest) {
        if self.consumers.contains_key(&request.group) {
            let id = Arc::clone(&request.group);
            self.with_consumer(&id, |group, desk| group.classic_heartbeat(desk, token, &request));
            return;
        }
        let error = if request.group.is_empty() {
            ErrorCode::InvalidGroupId
        } else {
            let id = Arc::clone(&request.group);
            let heard = self.with_group(&id, |group, clerk| group.heartbeat(clerk, &request));
            match heard {
                None => ErrorCode::UnknownMemberId,
                Some(Ok(())) => ErrorCode::None,
                Some(Err(error)) => error,
            }
        };
        self.clerk.answer(token, Reply::Heartbeat(error));
    }

    pub(super) fn leave(&mut self, token: Token, request: LeaveRequest) {
        let id = Arc::clone(&request.group);
        let reply = if id.is_empty() {
            LeaveReply { error: ErrorCode::InvalidGroupId, members: Vec::new() }
        } else if self.consumers.contains_key(&id) {
            self.leave_consumers(&id, &request.members)
        } else {
            match self.with_group(&id, |group, clerk| group.leave(clerk, &request.members)) {
                Some(reply) => reply,
                None => {
                    let unknown = |leaver: &Leaver| left(leaver, ErrorCode::UnknownMemberId);
                    let members = request.members.iter().map(unknown).collect();
                    LeaveReply { error: ErrorCode::None, members }
                }
            }
        };
        // Where the last ones left, that the group is empty is in the log before they know.
        self.clerk.answer_after_appends(token, Reply::Leave(reply));
    }

    pub(super) fn fired(&mut self, timer: Timer, serial: Serial) {
        let id = Arc::clone(timer.group());
        if self.consumers.contains_key(&id) {
            self.consumers_timer_ran_out(&timer, serial);
            return;
        }
        self.with_group(&id, |group, clerk| match timer {
            Timer::Session { member, .. } => group.session_is_over(clerk, &member, serial),
            Timer::Join { .. } if group.join_timer == Some(serial) => {
                group.join_timer = None;
                group.join_time_is_up(clerk);
            }
            Timer::Sync { .. } if group.sync_timer == Some(serial) => {
                group.sync_timer = None;
                group.sync_time_is_up(clerk);
            }
            // It was armed anew or cancelled while this was on its way.
            Timer::Join { .. } | Timer::Sync { .. } => {}
            // Of a consumer group, which this was until a moment ago.
            Timer::Rebalance { .. }
            | Timer::MemberJoin { .. }
            | Timer::MemberSync { .. }
            | Timer::Assign { .. } => {}
        });
    }
}

fn left(leaver: &Leaver, error: ErrorCode) -> LeftMember {
    LeftMember { member: Arc::clone(&leaver.member), instance: leaver.instance.clone(), error }
}

impl ClassicGroup {
    fn heartbeat(&mut self, clerk: &mut Clerk, request: &HeartbeatRequest) -> Result<(), ErrorCode> {
        if self.state == GroupState::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        self.check_member(&request.member, request.instance.as_deref())?;
        if request.generation != self.generation {
            return Err(ErrorCode::IllegalGeneration);
        }
        self.arm_session(clerk, &request.member);
        if self.state == GroupState::PreparingRebalance {
            return Err(ErrorCode::RebalanceInProgress);
        }
        Ok(())
    }

    fn leave(&mut self, clerk: &mut Clerk, leavers: &[Leaver]) -> LeaveReply {
        if self.state == GroupState::Dead {
            return LeaveReply { error: ErrorCode::CoordinatorNotAvailable, members: Vec::new() };
        }
        let before = self.members.len();
        let mut members = Vec::new();
        for leaver in leavers {
            members.push(left(leaver, self.leave_one(clerk, leaver)));
        }
        if self.members.len() < before {
            self.rebalance_or_complete(clerk);
        } else {
            self.complete_join_if_all_are_in(clerk);
        }
        LeaveReply { error: ErrorCode::None, members }
    }

    fn leave_one(&mut self, clerk: &mut Clerk, leaver: &Leaver) -> ErrorCode {
        let (member, instance) = (&leaver.member, leaver.instance.as_deref());
        if member.is_empty() {
            // An operator removes whoever holds the instance id.
            let Some(holder) = instance.and_then(|instance| self.members.holder(instance)).cloned() else {
                return ErrorCode::UnknownMemberId;
            };
            self.note_member(clerk, Cause::Removed, &holder, leaver.reason.as_ref());
            self.drop_member(clerk, &holder, ErrorCode::UnknownMemberId);
        } else if self.pending.contains_key(member) {
            self.remove_pending(clerk, member, true);
        } else if let Err(error) = self.check_member(member, instance) {
            return error;
        } else {
            self.note_member(clerk, Cause::Left, member, leaver.reason.as_ref());
            self.drop_member(clerk, member, ErrorCode::UnknownMemberId);
        }
        ErrorCode::None
    }

    fn session_is_over(&mut self, clerk: &mut Clerk, member: &MemberId, serial: Serial) {
        if self.pending.get(member) == Some(&serial) {
            self.remove_pending(clerk, member, false);
            self.complete_join_if_all_are_in(clerk);
            return;
        }
        let gone = self
            .members
            .get(member)
            .is_some_and(|member| member.session == Some(serial) && !member.is_kept_alive_by_waiting());
        if gone {
            self.note_member(clerk, Cause::SessionExpired, member, None);
            self.drop_member(clerk, member, ErrorCode::UnknownMemberId);
            self.rebalance_or_complete(clerk);
        }
    }

    /// Who has joined and not asked for an assignment in all that time is out.
    fn sync_time_is_up(&mut self, clerk: &mut Clerk) {
        let waits = matches!(self.state, GroupState::CompletingRebalance | GroupState::Stable);
        let late: Vec<MemberId> = std::mem::take(&mut self.pending_sync).into_iter().collect();
        if !waits || late.is_empty() {
            return;
        }
        for member in &late {
            self.note_member(clerk, Cause::SyncTimeout, member, None);
            self.drop_member(clerk, member, ErrorCode::UnknownMemberId);
        }
        self.prepare_rebalance(clerk);
    }
}
