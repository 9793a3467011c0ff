//! ConsumerGroupHeartbeat: a member joins, says that it lives and what it has, is told what it is to have, and leaves.
//!
//! A heartbeat may come twice, and an earlier one after a later one: whatever a member says of an epoch that it has left counts for
//! nothing but that it lives, and it is told again where it stands.

use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{TopicId, TopicPartition};
use ringlog_shard::limits::{GROUP_MEMBER_JOINS_WAITING_MAX, GROUP_MEMBERS_MAX};

use super::group::{ConsumerGroup, Desk, Waiting, WaitingKind};
use super::reconcile::Claim;
use super::request::{ConsumerHeartbeatReply, ConsumerHeartbeatRequest, LEAVES_FOR_A_WHILE, Refusal};
use super::state::{Change, Current, MemberMetadata, Standing};
use crate::group::event::{MemberId, Token};
use crate::group::machine::GroupMachine;
use crate::group::reply::{JoinReply, Reply};
use crate::group::timeline::{Cause, Trigger};

/// As whom a request comes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Guest {
    New,
    Known,
    /// A static member under a new name, in the place of the one of this name.
    Replaces(MemberId),
}

impl GroupMachine {
    pub(in crate::group) fn consumer_heartbeat(&mut self, token: Token, request: ConsumerHeartbeatRequest) {
        let result = match request.check(self.clerk.consumer.assignors) {
            Err(refusal) => Err(refusal),
            Ok(()) if request.epoch < 0 => self.consumer_leaves(token, &request),
            Ok(()) => self.consumer_lives(token, request),
        };
        if let Err(refusal) = result {
            self.clerk.answer(token, Reply::ConsumerHeartbeat(refusal.into()));
        }
    }

    fn consumer_lives(&mut self, token: Token, mut request: ConsumerHeartbeatRequest) -> Result<(), Refusal> {
        if let Some(owned) = &mut request.owned {
            owned.sort_unstable();
            owned.dedup();
        }
        let id = Arc::clone(&request.group);
        let mut converted = None;
        if request.epoch == 0 {
            if request.member.is_empty() {
                request.member = TopicId(request.random).to_string().into();
            }
            let known = self.live.contains_key(&id) || self.consumers.contains_key(&id);
            let room = self.room(usize::from(!known), request.bytes());
            room.map_err(|message| Refusal::new(ErrorCode::CoordinatorNotAvailable, message))?;
            if !self.consumers.contains_key(&id) {
                request.check_regex(None)?;
                converted = self.open_consumer_group(&id)?;
            }
        }
        let heard = self.with_consumer(&id, |group, desk| {
            if let Some(earlier) = converted {
                let trigger = Trigger::of_heartbeat(Cause::Converted, &request);
                group.note_converted(desk.clerk, earlier, trigger);
            }
            group.heartbeat(desk, token, &request)
        });
        heard.unwrap_or_else(|| Err(self.no_consumer_group(&id)))
    }

    fn consumer_leaves(&mut self, token: Token, request: &ConsumerHeartbeatRequest) -> Result<(), Refusal> {
        let id = &request.group;
        let Some(group) = self.consumers.get(id).filter(|group| !group.dead) else {
            return Err(self.no_consumer_group(id));
        };
        let member = group.leaver(request)?;
        let reply = ConsumerHeartbeatReply {
            member: Some(Arc::clone(&member)),
            epoch: request.epoch,
            ..ConsumerHeartbeatReply::refused(ErrorCode::None)
        };
        if request.epoch == LEAVES_FOR_A_WHILE {
            self.with_consumer(id, |group, desk| group.leave_for_a_while(desk, &member));
        } else {
            self.fence(id, &member, Cause::Left);
        }
        self.clerk.answer_after_appends(token, Reply::ConsumerHeartbeat(reply));
        Ok(())
    }

    fn no_consumer_group(&self, id: &str) -> Refusal {
        let message = match self.live.contains_key(id) {
            true => format!("Group {id} does not speak the consumer protocol."),
            false => format!("There is no group {id}."),
        };
        Refusal::new(ErrorCode::GroupIdNotFound, message)
    }
}

impl ConsumerGroup {
    fn heartbeat(
        &mut self,
        desk: &mut Desk<'_>,
        token: Token,
        request: &ConsumerHeartbeatRequest,
    ) -> Result<(), Refusal> {
        if self.dead {
            return Err(Refusal::new(ErrorCode::CoordinatorNotAvailable, "the group is being deleted"));
        }
        if let Some(member) = self.at_rest(desk, request) {
            self.arm_session(desk, &member);
            self.reply_heartbeat(desk, token, &member, request.epoch, None);
            return Ok(());
        }
        let joins = request.epoch == 0;
        let guest = self.guest(request)?;
        self.check_place(desk, &guest)?;
        let before = self.metadata_of(&guest, &request.member);
        request.check_regex(before.as_ref().and_then(|data| data.regex.as_deref()))?;
        // Of a member in an unknown state nothing can be kept.
        let current = self.current(&request.member);
        if current.standing == Standing::Unknown
            && request.owned.as_ref().is_none_or(|owned| !owned.is_empty())
        {
            let message = "What this member owns is not known any more: it has to give up all partitions and join again.";
            return Err(Refusal::new(ErrorCode::FencedMemberEpoch, message));
        }
        // Nothing is refused from here on.
        if guest == Guest::New {
            self.note(desk.clerk, Trigger::of_heartbeat(Cause::Joined, request));
        }
        let member = self.seat(desk, &guest, &request.member);
        let changed = self.take_metadata(&member, before.as_deref(), request);
        self.note_again(desk.clerk, &guest, changed, &member, None);
        self.refresh(desk, changed || guest == Guest::New);
        self.think(desk);
        self.arm_session(desk, &member);
        let epoch = self.state.group_epoch();
        if joins && epoch > self.state.assignment_epoch() {
            // What it does not want any more it must not be told of meanwhile, by an answer to another request.
            if changed && !current.assigned.is_empty() {
                let claim = self.claim_of_join(&member);
                let _told_when_it_waited = self.reconcile(desk, &member, &claim, true);
            }
            self.wait(&member, Waiting { token, epoch, kind: WaitingKind::Consumer });
            return Ok(());
        }
        let claim = match &request.owned {
            Some(owned) if !joins && request.epoch == current.epoch => Claim::Heartbeat(owned),
            _ => self.claim_of_join(&member),
        };
        let moved = self.reconcile(desk, &member, &claim, changed).unwrap_or(false);
        let missed = request.epoch != current.epoch;
        let differs = request.owned.as_ref().is_some_and(|owned| {
            let assigned = &self.current(&member).assigned;
            !owned.iter().eq(assigned.iter().map(|owned| &owned.at))
        });
        let told = request.is_full() || moved || missed || differs;
        self.reply_standing(desk, token, &member, told);
        Ok(())
    }

    /// The most frequent case, told by one look at the member: one that has all that it is to have, in a group where nothing is owed, says
    /// nothing but that it lives. Its name, as the group keeps it.
    fn at_rest(&self, desk: &Desk<'_>, request: &ConsumerHeartbeatRequest) -> Option<MemberId> {
        let epoch = self.state.assignment_epoch();
        let says_more = request.instance.is_some() || request.owned.is_some();
        if request.epoch != epoch || epoch == 0 || says_more || self.is_behind() {
            return None;
        }
        let version = desk.topics.version();
        if !self.index.regexes.is_empty() || (version != 0 && self.seen_version != Some(version)) {
            return None;
        }
        let (id, state) = self.state.members.get_key_value(&request.member)?;
        let (data, current) = (state.metadata.as_ref()?, state.current.as_ref()?);
        let has_all = current.epoch == epoch && current.standing == Standing::Stable;
        (has_all && says_nothing_new(data, request)).then(|| Arc::clone(id))
    }

    /// What a member has that joins. One that was told of no epoch under its name has nothing; one that was may have asked twice, and has
    /// what it was given in between.
    pub(super) fn claim_of_join(&self, member: &str) -> Claim<'static> {
        let Current { epoch, standing, .. } = self.current(member);
        // In an unknown state it said that it has nothing, or it was refused.
        if epoch == 0 || standing == Standing::Unknown { Claim::Join(&[]) } else { Claim::Unknown }
    }

    /// Tells a member where it stands.
    pub(super) fn reply_standing(&mut self, desk: &Desk<'_>, token: Token, member: &MemberId, told: bool) {
        let Current { epoch, assigned, .. } = self.current(member);
        let assignment = told.then(|| assigned.iter().map(|owned| owned.at).collect());
        self.reply_heartbeat(desk, token, member, epoch, assignment);
    }

    fn reply_heartbeat(
        &mut self,
        desk: &Desk<'_>,
        token: Token,
        member: &MemberId,
        epoch: i32,
        assignment: Option<Vec<TopicPartition>>,
    ) {
        let reply = ConsumerHeartbeatReply {
            member: Some(Arc::clone(member)),
            epoch,
            heartbeat_interval_ms: desk.settings.heartbeat_interval_ms,
            assignment,
            ..ConsumerHeartbeatReply::refused(ErrorCode::None)
        };
        self.reply(token, Reply::ConsumerHeartbeat(reply));
    }

    /// As whom a request comes, and whether it may.
    fn guest(&self, request: &ConsumerHeartbeatRequest) -> Result<Guest, Refusal> {
        let (id, joins) = (&request.member, request.epoch == 0);
        let is_known = self.state.metadata(id).is_some();
        let Some(instance) = &request.instance else {
            return match is_known {
                true => self.check_epoch(request).map(|()| Guest::Known),
                false if joins => Ok(Guest::New),
                false => Err(self.unknown_member(id)),
            };
        };
        match self.state.holder(instance) {
            None if joins && is_known => Ok(Guest::Known),
            None if joins => Ok(Guest::New),
            None => Err(unknown_instance(instance)),
            // Also one that asks twice, or that comes back under the name it had.
            Some(holder) if holder == id => self.check_epoch(request).map(|()| Guest::Known),
            Some(holder) if joins => {
                let speaks_classic = self.state.metadata(holder).is_some_and(|data| data.classic.is_some());
                if !speaks_classic && self.current(holder).epoch != LEAVES_FOR_A_WHILE {
                    let message = format!(
                        "Instance id {instance} is that of member {holder}, which has not left: {id} cannot join with it."
                    );
                    return Err(Refusal::new(ErrorCode::UnreleasedInstanceId, message));
                }
                Ok(Guest::Replaces(Arc::clone(holder)))
            }
            Some(holder) => Err(fenced_instance(id, instance, holder)),
        }
    }

    /// Whether the member's epoch can be one that it was told.
    fn check_epoch(&self, request: &ConsumerHeartbeatRequest) -> Result<(), Refusal> {
        let now = self.current(&request.member);
        let fenced = |than: &str| {
            let message = format!(
                "The member says epoch {}, {than} than its epoch {}: it has to give up all partitions and join again.",
                request.epoch, now.epoch
            );
            Err(Refusal::new(ErrorCode::FencedMemberEpoch, message))
        };
        // A member may always begin anew, and may ask for it twice.
        if request.epoch == 0 || request.epoch == now.epoch {
            return Ok(());
        }
        if request.epoch > now.epoch {
            return fenced("later");
        }
        // It may have missed the answer that raised its epoch.
        let has = |at: &TopicPartition| now.assigned.binary_search_by_key(at, |owned| owned.at).is_ok();
        let missed = request.epoch == now.previous_epoch
            && request.owned.as_ref().is_some_and(|owned| owned.iter().all(has));
        if missed { Ok(()) } else { fenced("earlier") }
    }

    /// Whether one more fits in.
    fn check_place(&self, desk: &Desk<'_>, guest: &Guest) -> Result<(), Refusal> {
        let max = desk.settings.members_max.min(GROUP_MEMBERS_MAX);
        if *guest == Guest::New && self.index.members >= max {
            let message = full(max);
            return Err(Refusal::new(ErrorCode::GroupMaxSizeReached, message));
        }
        Ok(())
    }

    pub(super) fn unknown_member(&self, member: &str) -> Refusal {
        let message = format!("Group {} has no member {member}.", self.id);
        Refusal::new(ErrorCode::UnknownMemberId, message)
    }

    /// What was known of the one who comes.
    pub(super) fn metadata_of(&self, guest: &Guest, member: &str) -> Option<Arc<MemberMetadata>> {
        let known = match guest {
            Guest::New => return None,
            Guest::Known => member,
            Guest::Replaces(holder) => holder,
        };
        self.state.metadata(known).cloned()
    }

    /// Gives the one who comes its place; its name, as the group keeps it.
    pub(super) fn seat(&mut self, desk: &mut Desk<'_>, guest: &Guest, member: &MemberId) -> MemberId {
        let kept = self.state.members.get_key_value(member).map(|(id, _)| Arc::clone(id));
        let member = kept.unwrap_or_else(|| Arc::clone(member));
        match guest {
            Guest::New => {}
            Guest::Known => {
                let current = self.current(&member);
                if current.epoch == LEAVES_FOR_A_WHILE {
                    self.begin_anew(&member, current);
                }
            }
            Guest::Replaces(holder) => self.replace(desk, holder, &member),
        }
        member
    }

    /// A static member comes back under a new name: it takes over what the one before was to have.
    fn replace(&mut self, desk: &mut Desk<'_>, holder: &MemberId, member: &MemberId) {
        let state = self.state.members.get(holder).cloned().unwrap_or_default();
        // An assignment that is computed for the old name would leave the new one without.
        self.computing = None;
        self.merge_noted();
        self.drop_member(desk.clerk, holder, ErrorCode::FencedInstanceId);
        self.change(Change::Metadata(Arc::clone(member), state.metadata.clone()));
        self.change(Change::Target(Arc::clone(member), Some(state.target())));
        self.begin_anew(member, state.standing());
    }

    /// A static member comes back: it has what it had, and is told so in the group's epoch.
    fn begin_anew(&mut self, member: &MemberId, current: Current) {
        let anew = Current {
            epoch: 0,
            previous_epoch: 0,
            standing: Standing::Stable,
            assigned: current.assigned,
            revoking: [].into(),
        };
        self.change(Change::Current(Arc::clone(member), Some(Arc::new(anew))));
    }

    /// Takes in what a member says of itself. Whether it wants other topics than before.
    fn take_metadata(
        &mut self,
        member: &MemberId,
        before: Option<&MemberMetadata>,
        request: &ConsumerHeartbeatRequest,
    ) -> bool {
        let new = match before {
            Some(before) if says_nothing_new(before, request) => return false,
            Some(before) => self.updated(before.clone(), request),
            None => self.updated(MemberMetadata { rebalance_timeout_ms: -1, ..Default::default() }, request),
        };
        if before == Some(&new) {
            return false;
        }
        let changed = before.is_some_and(|before| before.names != new.names || before.regex != new.regex);
        self.change(Change::Metadata(Arc::clone(member), Some(Arc::new(new))));
        if changed {
            self.drop_unused_regexes();
        }
        changed
    }

    fn updated(&self, before: MemberMetadata, request: &ConsumerHeartbeatRequest) -> MemberMetadata {
        let or = |new: &Option<Arc<str>>, old: Option<Arc<str>>| new.clone().or(old);
        MemberMetadata {
            instance: or(&request.instance, before.instance),
            rack: or(&request.rack, before.rack),
            client_id: Arc::clone(&request.client_id),
            client_host: Arc::clone(&request.client_host),
            names: match &request.names {
                Some(names) => self.shared_names(names.clone()),
                None => before.names,
            },
            regex: or(&request.regex, before.regex).filter(|text| !text.is_empty()),
            rebalance_timeout_ms: match request.rebalance_timeout_ms {
                -1 => before.rebalance_timeout_ms,
                given_ms => given_ms,
            },
            assignor: or(&request.assignor, before.assignor),
            classic: None,
        }
    }

    /// In order, each once; the list that others have where it is the same.
    pub(super) fn shared_names(&self, mut names: Vec<Arc<str>>) -> Arc<[Arc<str>]> {
        names.sort_unstable();
        names.dedup();
        let first = self.state.joined().next().map(|(_, data, _)| Arc::clone(&data.names));
        first.filter(|first| **first == *names).unwrap_or_else(|| names.into())
    }

    /// A join waits for the next assignment.
    pub(super) fn wait(&mut self, member: &MemberId, waiting: Waiting) {
        let too_many = self.with_rest(member, |rest| {
            rest.waiting.push(waiting);
            let too_many = rest.waiting.len() > GROUP_MEMBER_JOINS_WAITING_MAX;
            too_many.then(|| rest.waiting.remove(0))
        });
        if let Some(waiting) = too_many {
            self.refuse_waiting(waiting, member, ErrorCode::CoordinatorNotAvailable);
        }
    }

    pub(super) fn refuse_waiting(&mut self, waiting: Waiting, member: &MemberId, error: ErrorCode) {
        let reply = match waiting.kind {
            WaitingKind::Consumer => Reply::ConsumerHeartbeat(ConsumerHeartbeatReply::refused(error)),
            WaitingKind::Classic { .. } => Reply::Join(JoinReply::refused(error, member)),
        };
        self.reply(waiting.token, reply);
    }

    /// Who leaves.
    fn leaver(&self, request: &ConsumerHeartbeatRequest) -> Result<MemberId, Refusal> {
        let id = &request.member;
        match &request.instance {
            None if self.state.metadata(id).is_some() => {}
            None => return Err(self.unknown_member(id)),
            Some(instance) => match self.state.holder(instance) {
                None => return Err(unknown_instance(instance)),
                Some(holder) if holder != id => return Err(fenced_instance(id, instance, holder)),
                Some(_) => {}
            },
        }
        Ok(Arc::clone(id))
    }

    /// A static member goes and will come back before its session is over: it is to have what it has, but gives up what it must.
    fn leave_for_a_while(&mut self, desk: &mut Desk<'_>, member: &MemberId) {
        // Joins from before it left must not lead it on: it would be asked for partitions while it is away.
        for waiting in self.take_waiting(member, |_| true) {
            self.refuse_waiting(waiting, member, ErrorCode::FencedMemberEpoch);
        }
        let left = Current {
            epoch: LEAVES_FOR_A_WHILE,
            standing: Standing::Stable,
            revoking: [].into(),
            ..self.current(member)
        };
        self.change(Change::Current(Arc::clone(member), Some(Arc::new(left))));
        self.watch_rebalance(desk.clerk, member);
    }
}

/// The most frequent case: nothing is compared that was not said.
fn says_nothing_new(before: &MemberMetadata, request: &ConsumerHeartbeatRequest) -> bool {
    let same = |new: &Option<Arc<str>>, old: &Option<Arc<str>>| new.is_none() || new == old;
    request.names.is_none()
        && request.regex.is_none()
        && before.classic.is_none()
        && same(&request.instance, &before.instance)
        && same(&request.rack, &before.rack)
        && same(&request.assignor, &before.assignor)
        && [-1, before.rebalance_timeout_ms].contains(&request.rebalance_timeout_ms)
        && request.client_id == before.client_id
        && request.client_host == before.client_host
}

/// The text for one member too many.
pub(super) fn full(max: usize) -> String {
    format!("The group has {max} members, as many as it may (group.consumer.max.size).")
}

pub(super) fn unknown_instance(instance: &str) -> Refusal {
    Refusal::new(ErrorCode::UnknownMemberId, format!("The group has no member of instance id {instance}."))
}

pub(super) fn fenced_instance(member: &str, instance: &str, holder: &str) -> Refusal {
    let message = format!("Instance id {instance} is that of member {holder} now, no more of {member}.");
    Refusal::new(ErrorCode::FencedInstanceId, message)
}
