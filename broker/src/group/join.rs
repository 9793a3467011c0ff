//! JoinGroup: who comes in under which name, and whether the group has to rebalance for it.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_shard::limits::{
    GROUP_MEMBER_METADATA_BYTES_MAX, GROUP_MEMBERS_MAX, GROUP_MEMBERS_PENDING_MAX, GROUP_NEW_MEMBER_JOIN_MS,
    GROUP_TEXT_BYTES_MAX,
};

use super::classic::{ClassicGroup, GroupState};
use super::clerk::{Clerk, NewName, Then};
use super::event::{JoinRequest, MemberId, Token};
use super::machine::GroupMachine;
use super::members::Member;
use super::record;
use super::reply::JoinReply;
use super::timeline::{Cause, Trigger};

/// JoinGroup versions from here on give a new member its name and make it ask again (KIP-394).
pub(super) const NAMED_BEFORE_JOIN_SINCE: i16 = 4;

/// JoinGroup versions from here on can tell a leader to keep its assignments (KIP-814).
const SKIPS_ASSIGNMENT_SINCE: i16 = 9;

impl GroupMachine {
    pub(super) fn join(&mut self, token: Token, mut request: JoinRequest) {
        // They are counted by name.
        let mut names = BTreeSet::new();
        request.protocols.retain(|protocol| names.insert(Arc::clone(&protocol.name)));
        if let Err(refused) = self.check_join(&request) {
            self.clerk.answer_join(token, refused);
            return;
        }
        let Some(request) = self.join_consumers(token, request) else { return };
        let id = Arc::clone(&request.group);
        let known = self.live.contains_key(&id);
        if !known {
            self.create(&id);
        }
        self.with_group(&id, |group, clerk| {
            group.join(clerk, token, request);
            if !known && let Ok(record) = record::empty_group(group) {
                // As Kafka does: that the group exists is known after a restart, and found by those who clean up.
                clerk.append(vec![record], Then::Nothing);
            }
        });
    }

    /// What can be told without the group's state, and that there is room.
    fn check_join(&self, request: &JoinRequest) -> Result<(), JoinReply> {
        let refused = |error| JoinReply::refused(error, &request.member);
        if request.group.is_empty() {
            return Err(refused(ErrorCode::InvalidGroupId));
        }
        if request.group.len() > GROUP_TEXT_BYTES_MAX {
            let message = format!("a group's name of {} bytes", request.group.len());
            return Err(refused(ErrorCode::InvalidGroupId).because(message));
        }
        let settings = &self.clerk.settings;
        let allowed = settings.session_timeout_ms_min..=settings.session_timeout_ms_max;
        if !allowed.contains(&request.session_timeout_ms) {
            return Err(refused(ErrorCode::InvalidSessionTimeout));
        }
        let bytes = request.protocol_bytes();
        if bytes > GROUP_MEMBER_METADATA_BYTES_MAX {
            let message = format!(
                "{bytes} bytes of protocols and metadata, more than the {GROUP_MEMBER_METADATA_BYTES_MAX} of a member"
            );
            return Err(refused(ErrorCode::InvalidRequest).because(message));
        }
        if let Some(length) = longest_text(request).filter(|length| *length > GROUP_TEXT_BYTES_MAX) {
            let message = format!("a name of {length} bytes, more than {GROUP_TEXT_BYTES_MAX}");
            return Err(refused(ErrorCode::InvalidRequest).because(message));
        }
        if let Some(group) = self.consumers.get(&request.group).filter(|group| !group.is_empty()) {
            let had = group.state.members.contains_key(&request.member);
            let room = self.room(0, if had { 0 } else { bytes });
            return room.map_err(|message| refused(ErrorCode::CoordinatorNotAvailable).because(message));
        }
        let Some(group) = self.live.get(&request.group) else {
            if !request.member.is_empty() {
                return Err(refused(ErrorCode::UnknownMemberId));
            }
            if request.protocol_type.is_empty() || request.protocols.is_empty() {
                return Err(refused(ErrorCode::InconsistentGroupProtocol));
            }
            let room = self.room(1, bytes);
            return room.map_err(|message| refused(ErrorCode::CoordinatorNotAvailable).because(message));
        };
        let had = group.members.get(&request.member).map_or(0, Member::bytes);
        let room = self.room(0, bytes.saturating_sub(had));
        room.map_err(|message| refused(ErrorCode::CoordinatorNotAvailable).because(message))
    }
}

fn longest_text(request: &JoinRequest) -> Option<usize> {
    let instance = request.instance.as_ref().map(|instance| instance.len());
    let names = request.protocols.iter().map(|protocol| protocol.name.len());
    let fixed = [request.protocol_type.len(), request.client_id.len(), request.client_host.len()];
    names.chain(fixed).chain(instance).max()
}

impl ClassicGroup {
    fn join(&mut self, clerk: &mut Clerk, token: Token, request: JoinRequest) {
        let nobody: MemberId = Arc::from("");
        if self.state == GroupState::Dead {
            let refused = JoinReply::refused(ErrorCode::CoordinatorNotAvailable, &request.member);
            clerk.answer_join(token, refused);
        } else if let Err(message) = self.has_place(clerk, &request) {
            // A member that comes last after the group was made smaller is out.
            self.note_member(clerk, Cause::GroupTooLarge, &request.member, None);
            self.drop_member(clerk, &request.member, ErrorCode::UnknownMemberId);
            self.remove_pending(clerk, &request.member, true);
            let refused = JoinReply::refused(ErrorCode::GroupMaxSizeReached, &nobody);
            clerk.answer_join(token, refused.because(message));
            self.complete_join_if_all_are_in(clerk);
        } else if !self.fits(&request.protocol_type, &request.protocols) {
            let refused = JoinReply::refused(ErrorCode::InconsistentGroupProtocol, &request.member);
            clerk.answer_join(token, refused);
        } else if request.member.is_empty() {
            self.join_without_name(clerk, token, request);
        } else {
            self.join_with_name(clerk, token, request);
        }
    }

    /// Whether one more fits in. Counts those who wait while members join, so that one too many is found before it is too late.
    fn has_place(&self, clerk: &Clerk, request: &JoinRequest) -> Result<(), String> {
        let max = clerk.settings.members_max.min(GROUP_MEMBERS_MAX);
        // A static member that restarts takes the place that it has. (Kafka sends it away from a full group.)
        let held = request.instance.as_ref().and_then(|instance| self.members.holder(instance));
        let id = if request.member.is_empty() { held } else { Some(&request.member) };
        let member = id.and_then(|id| self.members.get(id));
        let (is_in, count) = match self.state {
            GroupState::Empty | GroupState::Dead => (true, 0),
            GroupState::PreparingRebalance => {
                (member.is_some_and(|member| member.waiting_join.is_some()), self.members.waiting_join())
            }
            GroupState::CompletingRebalance | GroupState::Stable => (member.is_some(), self.members.len()),
        };
        if !is_in && count >= max {
            return Err(format!("the group has {count} members, as many as it may"));
        }
        if id.is_none() && self.pending.len() >= GROUP_MEMBERS_PENDING_MAX {
            let pending = self.pending.len();
            return Err(format!("{pending} members were given a name and have not joined yet"));
        }
        Ok(())
    }

    fn join_without_name(&mut self, clerk: &mut Clerk, token: Token, request: JoinRequest) {
        let name = new_name(&request);
        let holder = request.instance.as_ref().and_then(|instance| self.members.holder(instance)).cloned();
        if let Some(old) = holder {
            self.take_over(clerk, token, request, &old, name);
        } else if request.instance.is_none() && request.version >= NAMED_BEFORE_JOIN_SINCE {
            // A client that gives up and comes back would be another member each time; now it comes back under its name.
            clerk.answer_join(token, JoinReply::refused(ErrorCode::MemberIdRequired, &name));
            self.add_pending(clerk, name, request.session_timeout_ms);
        } else {
            self.add_member(clerk, token, request, name);
        }
    }

    fn join_with_name(&mut self, clerk: &mut Clerk, token: Token, request: JoinRequest) {
        let id = Arc::clone(&request.member);
        if request.instance.is_none() && self.pending.contains_key(&id) {
            self.remove_pending(clerk, &id, false);
            self.add_member(clerk, token, request, id);
            return;
        }
        if let Err(error) = self.check_member(&id, request.instance.as_deref()) {
            clerk.answer_join(token, JoinReply::refused(error, &id));
            return;
        }
        let changed = self.members.get(&id).is_some_and(|member| member.protocols != request.protocols);
        let rebalances = match self.state {
            GroupState::PreparingRebalance => true,
            // It did not get the answer to its join, unless it says something new.
            GroupState::CompletingRebalance => changed,
            // A leader that joins again has seen something that the others have not, such as a topic with more partitions.
            GroupState::Stable => changed || self.is_leader(&id),
            GroupState::Empty | GroupState::Dead => false,
        };
        if rebalances {
            self.note_again(clerk, &request);
            self.update_member(clerk, token, &request, &id);
            self.rebalance_or_complete(clerk);
        } else {
            let members = if self.is_leader(&id) { self.for_leader() } else { Vec::new() };
            clerk.answer_join(token, self.joined(&id, members));
        }
    }

    fn add_member(&mut self, clerk: &mut Clerk, token: Token, request: JoinRequest, id: MemberId) {
        if self.members.is_empty() {
            self.protocol_type = Some(Arc::clone(&request.protocol_type));
        }
        if let Some(initial) = &mut self.initial {
            initial.somebody_came = true;
        }
        self.leader.get_or_insert_with(|| Arc::clone(&id));
        let member = Member {
            id: Arc::clone(&id),
            rebalance_timeout_ms: request.rebalance_timeout_or_session_ms(),
            session_timeout_ms: request.session_timeout_ms,
            instance: request.instance,
            client_id: request.client_id,
            client_host: request.client_host,
            protocols: request.protocols,
            assignment: Bytes::new(),
            waiting_join: Some(token),
            waiting_sync: None,
            is_new: true,
            session: None,
        };
        self.note(clerk, Trigger::of_member(Cause::Joined, &member, None));
        self.members.insert(member);
        // It cannot send heartbeats yet. A client that gave up must not hold the others for ever all the same.
        self.arm_session_for(clerk, &id, GROUP_NEW_MEMBER_JOIN_MS);
        self.rebalance_or_complete(clerk);
    }

    /// A member joined again: why, unless it was asked to.
    fn note_again(&mut self, clerk: &Clerk, request: &JoinRequest) {
        let Some(member) = self.members.get(&request.member) else { return };
        let cause = if member.wants_otherwise(&request.protocols) {
            Cause::SubscriptionChanged
        } else if self.state == GroupState::PreparingRebalance {
            return;
        } else {
            Cause::AskedAgain
        };
        let trigger = Trigger::of_member(cause, member, request.reason.as_ref());
        self.note(clerk, trigger);
    }

    fn update_member(&mut self, clerk: &mut Clerk, token: Token, request: &JoinRequest, id: &MemberId) {
        let earlier = self.members.update(id, |member| {
            member.protocols.clone_from(&request.protocols);
            member.rebalance_timeout_ms = request.rebalance_timeout_or_session_ms();
            member.session_timeout_ms = request.session_timeout_ms;
            member.waiting_join.replace(token)
        });
        if let Some(earlier) = earlier.flatten() {
            // The member asked again before it was answered: the first request is one that nobody waits for.
            clerk.answer_join(earlier, JoinReply::refused(ErrorCode::RebalanceInProgress, id));
        }
    }

    /// A static member comes back without its name, after a restart: it takes the place of the one before, which is fenced.
    fn take_over(
        &mut self,
        clerk: &mut Clerk,
        token: Token,
        request: JoinRequest,
        old: &MemberId,
        name: MemberId,
    ) {
        let led = self.is_leader(old);
        let leader_before = self.leader.clone().unwrap_or_default();
        let Some(before) = self.members.get(old).cloned() else { return };
        self.drop_member(clerk, old, ErrorCode::FencedInstanceId);
        self.members.insert(Member {
            id: Arc::clone(&name),
            client_id: Arc::clone(&request.client_id),
            client_host: Arc::clone(&request.client_host),
            waiting_join: None,
            waiting_sync: None,
            is_new: false,
            session: None,
            ..before
        });
        if led || self.leader.is_none() {
            self.leader = Some(Arc::clone(&name));
        }
        self.update_member(clerk, token, &request, &name);
        self.arm_session(clerk, &name);
        match self.state {
            GroupState::Stable if self.members.vote() == self.protocol => {
                let new = NewName { member: name, token, version: request.version, leader_before };
                self.record_new_name(clerk, new)
            }
            // The leader may have been told the old name.
            GroupState::Stable | GroupState::CompletingRebalance => {
                self.note_member(clerk, Cause::StaticMemberReplaced, &name, request.reason.as_ref());
                self.prepare_rebalance(clerk);
            }
            GroupState::PreparingRebalance => self.complete_join_if_all_are_in(clerk),
            GroupState::Empty | GroupState::Dead => {}
        }
    }

    /// Nothing changes for the others, so nobody rebalances. The name must outlive a restart before its bearer knows it.
    fn record_new_name(&mut self, clerk: &mut Clerk, new: NewName) {
        let kept = self.members.iter().map(|member| (Arc::clone(&member.id), member.assignment.clone()));
        match record::group(self, &kept.collect()) {
            Ok(record) => {
                clerk.append(vec![record], Then::Renamed { group: Arc::clone(&self.id), new });
            }
            Err(message) => {
                self.members.update(&new.member, |member| member.waiting_join = None);
                let refused = JoinReply::refused(ErrorCode::UnknownServerError, &Arc::from(""));
                clerk.answer_join(new.token, refused.because(message));
            }
        }
    }

    /// The new name of a static member is in the log, or may not be (`error`).
    pub(super) fn renamed(&mut self, clerk: &mut Clerk, new: NewName, error: Option<ErrorCode>) {
        let NewName { member, token, version, leader_before } = new;
        let waits = self.members.get(&member).is_some_and(|member| member.waiting_join == Some(token));
        if !waits || (error.is_none() && self.state != GroupState::Stable) {
            // It was answered, or the group rebalances meanwhile and it is answered with all others.
            return;
        }
        self.members.update(&member, |member| member.waiting_join = None);
        self.arm_session(clerk, &member);
        if let Some(error) = error {
            // It asks again, and takes over again.
            clerk.answer_join(token, JoinReply::refused(error, &Arc::from("")));
            return;
        }
        let leads = self.is_leader(&member);
        let mut reply = self.joined(&member, Vec::new());
        if leads && version >= SKIPS_ASSIGNMENT_SINCE {
            reply.members = self.for_leader();
            reply.skip_assignment = true;
        } else if leads {
            // It must not think that it has to assign.
            reply.leader = leader_before;
        }
        clerk.answer_join(token, reply);
    }
}

/// The name of a new member.
pub(super) fn new_name(request: &JoinRequest) -> MemberId {
    let prefix = request.instance.as_ref().unwrap_or(&request.client_id);
    format!("{prefix}-{}", uuid_text(request.random)).into()
}

/// As Kafka writes a random UUID: version and variant bits set.
fn uuid_text(random: [u8; 16]) -> String {
    let bits = u128::from_be_bytes(random);
    let bits = bits & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
