//! How a group comes to its next generation: members are asked to join again, and when all have or the time is up, it begins.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;

use super::classic::{ClassicGroup, GroupState, InitialDelay};
use super::clerk::{Clerk, Then};
use super::event::{MemberId, Timer};
use super::record;
use super::reply::SyncReply;
use super::timeline::Cause;

impl ClassicGroup {
    /// Something changed that concerns all: members join again, unless they do so already.
    pub fn rebalance_or_complete(&mut self, clerk: &mut Clerk) {
        match self.state {
            GroupState::Empty | GroupState::Stable | GroupState::CompletingRebalance => {
                self.prepare_rebalance(clerk)
            }
            GroupState::PreparingRebalance => self.complete_join_if_all_are_in(clerk),
            GroupState::Dead => {}
        }
    }

    /// Asks all members to join again. A group that was empty waits a while for more than the first.
    pub fn prepare_rebalance(&mut self, clerk: &mut Clerk) {
        if self.state == GroupState::CompletingRebalance {
            self.refuse_waiting_syncs(clerk, &SyncReply::refused(ErrorCode::RebalanceInProgress));
        }
        self.pending_sync.clear();
        self.cancel_sync_timer(clerk);
        let was_empty = self.state == GroupState::Empty;
        self.enter(GroupState::PreparingRebalance, clerk.now_ms());
        let patience_ms = self.members.rebalance_timeout_ms();
        if was_empty {
            let delay_ms = clerk.settings.initial_rebalance_delay_ms;
            let remaining_ms = patience_ms.saturating_sub(delay_ms).max(0);
            self.initial = Some(InitialDelay { delay_ms, remaining_ms, somebody_came: false });
            self.arm_join(clerk, delay_ms);
        } else if self.all_joined() {
            self.complete_join(clerk);
        } else {
            self.arm_join(clerk, patience_ms);
        }
    }

    /// Begins the next generation where nobody is missing. A group that waits for its first members waits out its delay.
    pub fn complete_join_if_all_are_in(&mut self, clerk: &mut Clerk) {
        let waits = self.state == GroupState::PreparingRebalance && self.initial.is_none();
        if waits && self.all_joined() {
            self.complete_join(clerk);
        }
    }

    /// The time to join is up.
    pub fn join_time_is_up(&mut self, clerk: &mut Clerk) {
        match self.initial {
            // Somebody came: more may come.
            Some(initial) if initial.somebody_came && initial.remaining_ms > 0 => {
                let delay_ms = clerk.settings.initial_rebalance_delay_ms.min(initial.remaining_ms);
                let remaining_ms = initial.remaining_ms.saturating_sub(initial.delay_ms).max(0);
                self.initial = Some(InitialDelay { delay_ms, remaining_ms, somebody_came: false });
                self.arm_join(clerk, delay_ms);
            }
            _ => self.complete_join(clerk),
        }
    }

    /// Begins the next generation with those who joined. Static members that did not stay in with what they have: they may be
    /// restarting, and their session timer knows better.
    fn complete_join(&mut self, clerk: &mut Clerk) {
        let late =
            self.members.iter().filter(|member| member.waiting_join.is_none() && member.instance.is_none());
        let late: Vec<MemberId> = late.map(|member| Arc::clone(&member.id)).collect();
        for member in &late {
            self.note_member(clerk, Cause::JoinTimeout, member, None);
            self.drop_member(clerk, member, ErrorCode::UnknownMemberId);
        }
        self.initial = None;
        if !self.members.is_empty() && !self.elect_leader() {
            // Only static members are left and none is back: until their sessions end there is nobody to lead.
            self.arm_join(clerk, self.members.rebalance_timeout_ms());
            return;
        }
        if self.join_timer.take().is_some() {
            clerk.cancel(Timer::Join { group: Arc::clone(&self.id) });
        }
        // Past the last number it begins again; members of generation 1 are long gone.
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.protocol = self.members.vote();
        self.pending_sync.clear();
        if self.members.is_empty() {
            self.enter(GroupState::Empty, clerk.now_ms());
            self.tell_rebalance(clerk, &BTreeMap::new());
            if let Ok(record) = record::empty_group(self) {
                clerk.append(vec![record], Then::Nothing);
            }
            return;
        }
        self.enter(GroupState::CompletingRebalance, clerk.now_ms());
        self.answer_joins(clerk);
        self.sync_timer =
            Some(clerk.arm(Timer::Sync { group: Arc::clone(&self.id) }, self.members.rebalance_timeout_ms()));
    }

    /// A leader must have joined. `false` where nobody has.
    fn elect_leader(&mut self) -> bool {
        let joined = |id: &MemberId| self.members.get(id).is_some_and(|member| member.waiting_join.is_some());
        if self.leader.as_ref().is_some_and(joined) {
            return true;
        }
        let next = self.members.iter().find(|member| member.waiting_join.is_some());
        let Some(next) = next.map(|member| Arc::clone(&member.id)) else { return false };
        self.leader = Some(next);
        true
    }

    fn answer_joins(&mut self, clerk: &mut Clerk) {
        for id in self.members.ids() {
            let waiting = self.members.update(&id, |member| {
                member.is_new = false;
                member.waiting_join.take()
            });
            if let Some(token) = waiting.flatten() {
                let members = if self.is_leader(&id) { self.for_leader() } else { Vec::new() };
                clerk.answer_join(token, self.joined(&id, members));
            }
            self.arm_session(clerk, &id);
            self.pending_sync.insert(id);
        }
    }

    fn arm_join(&mut self, clerk: &mut Clerk, after_ms: i32) {
        self.join_timer = Some(clerk.arm(Timer::Join { group: Arc::clone(&self.id) }, after_ms));
    }

    pub fn cancel_sync_timer(&mut self, clerk: &mut Clerk) {
        if self.sync_timer.take().is_some() {
            clerk.cancel(Timer::Sync { group: Arc::clone(&self.id) });
        }
    }
}
