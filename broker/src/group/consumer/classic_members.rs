//! Members that speak the classic protocol inside a consumer group, while its members are upgraded one by one: their JoinGroup, SyncGroup,
//! Heartbeat and LeaveGroup. To such a member its epoch is the generation, and the coordinator leads: nobody is asked to assign.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::group::consumer_protocol::{PROTOCOL_TYPE, decode_subscription, encode_assignment};
use ringlog_protocol::group::generated::consumer_protocol_assignment::{
    ConsumerProtocolAssignment, TopicPartition as AssignedTopic,
};
use ringlog_protocol::ids::{PartitionIndex, TopicPartition};
use ringlog_shard::limits::GROUP_MEMBERS_MAX;

use super::group::{ConsumerGroup, Desk, Waiting, WaitingKind};
use super::heartbeat::Guest;
use super::reconcile::Claim;
use super::state::{Change, ClassicMetadata, MemberMetadata, Owned, Standing};
use super::topics::Topics;
use crate::group::event::{
    HeartbeatRequest, JoinRequest, Leaver, MemberId, Protocol, SyncRequest, Timer, Token,
};
use crate::group::join::{NAMED_BEFORE_JOIN_SINCE, new_name};
use crate::group::reply::{JoinReply, LeftMember, Reply, SyncReply};
use crate::group::timeline::{Cause, Trigger};

/// What a member says in the metadata of its preferred protocol.
pub(super) struct Subscription {
    pub names: Vec<Arc<str>>,
    pub rack: Option<Arc<str>>,
    /// In order, of topics that exist.
    pub owned: Vec<TopicPartition>,
}

impl Subscription {
    /// `None` for what cannot be read.
    pub fn read(metadata: &[u8], topics: &Topics) -> Option<Subscription> {
        let subscription = decode_subscription(metadata).ok()?;
        let owned = subscription.owned_partitions.iter().filter_map(|owned| {
            let topic = topics.of_name(owned.topic)?.id;
            Some(
                owned
                    .partitions
                    .iter()
                    .map(move |index| TopicPartition { topic, partition: PartitionIndex(index) }),
            )
        });
        let mut owned: Vec<TopicPartition> = owned.flatten().collect();
        owned.sort_unstable();
        owned.dedup();
        Some(Subscription {
            names: subscription.topics.iter().map(|name| Arc::from(*name)).collect(),
            rack: subscription.rack_id.filter(|rack| !rack.is_empty()).map(Arc::from),
            owned,
        })
    }
}

/// Partitions as a member of the classic protocol reads them, in the version of what it said itself.
pub(super) fn assignment_bytes(owned: &[Owned], protocols: &[Protocol], topics: &Topics) -> Bytes {
    let mut by_name: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for owned in owned {
        if let Some(topic) = topics.of_id(owned.at.topic) {
            by_name.entry(&topic.name).or_default().push(owned.at.partition.0);
        }
    }
    let assigned =
        by_name.into_iter().map(|(topic, partitions)| AssignedTopic { topic, partitions: partitions.into() });
    let assignment = ConsumerProtocolAssignment {
        assigned_partitions: assigned.collect(),
        ..ConsumerProtocolAssignment::default()
    };
    let said = protocols.first().and_then(|protocol| protocol.metadata.first_chunk::<2>());
    let known = ConsumerProtocolAssignment::VERSIONS;
    let version = said.map_or(known.min, |said| i16::from_be_bytes(*said).clamp(known.min, known.max));
    encode_assignment(&assignment, version).expect("names of topics are short")
}

impl ConsumerGroup {
    /// Whether a member of the classic protocol may join with these protocols.
    fn fits(&self, request: &JoinRequest) -> bool {
        let known = |protocol: &Protocol| {
            self.index.protocols.get(&protocol.name).copied().unwrap_or(0) == self.index.classic
        };
        *request.protocol_type == *PROTOCOL_TYPE && request.protocols.iter().any(known)
    }

    /// JoinGroup. It is answered once there is an assignment that counts the member in.
    pub fn classic_join(&mut self, desk: &mut Desk<'_>, token: Token, mut request: JoinRequest) {
        let unnamed = request.member.is_empty() && request.instance.is_none();
        if unnamed && request.version >= NAMED_BEFORE_JOIN_SINCE {
            let refused = self.check_classic_join(desk, &request, &Guest::New).err();
            let (error, name) = match refused {
                None => (ErrorCode::MemberIdRequired, new_name(&request)),
                Some(error) => (error, MemberId::from("")),
            };
            return self.reply(token, Reply::Join(JoinReply::refused(error, &name)));
        }
        let guest = match self.classic_guest(&request) {
            Ok(guest) => guest,
            Err(error) => {
                return self.reply(token, Reply::Join(JoinReply::refused(error, &request.member)));
            }
        };
        if let Err(error) = self.check_classic_join(desk, &request, &guest) {
            return self.reply(token, Reply::Join(JoinReply::refused(error, &request.member)));
        }
        let said = request.protocols.first().and_then(|p| Subscription::read(&p.metadata, desk.topics));
        let Some(said) = said else {
            let refused = JoinReply::refused(ErrorCode::InconsistentGroupProtocol, &request.member);
            return self.reply(token, Reply::Join(refused.because("the subscription cannot be read")));
        };
        if self.holds_others(&request.member, &said.owned) {
            // As in a group of the classic protocol: it gives up all that it has and joins under a new name.
            let refused = JoinReply::refused(ErrorCode::UnknownMemberId, &request.member);
            return self
                .reply(token, Reply::Join(refused.because("it was put out, and has partitions still")));
        }
        if request.member.is_empty() {
            request.member = new_name(&request);
        }
        self.admit(desk, token, &request, &guest, said);
    }

    /// Whether a member says to have what is another's, or is none and says to have anything: it was put out and does not know it.
    fn holds_others(&self, member: &str, owned: &[TopicPartition]) -> bool {
        let Some(state) = self.state.members.get(member) else { return !owned.is_empty() };
        let current = state.standing();
        let has = |own: &[Owned], at| own.binary_search_by_key(at, |owned| owned.at).is_ok();
        let is_own = |at| has(&current.assigned, at) || has(&current.revoking, at);
        owned.iter().any(|at| !is_own(at) && !self.index.is_free(at))
    }

    fn admit(
        &mut self,
        desk: &mut Desk<'_>,
        token: Token,
        request: &JoinRequest,
        guest: &Guest,
        said: Subscription,
    ) {
        let before = self.metadata_of(guest, &request.member);
        if *guest == Guest::New {
            self.note(desk.clerk, Trigger::of_join(Cause::Joined, request));
        }
        let member = self.seat(desk, guest, &request.member);
        let data = MemberMetadata {
            instance: request.instance.clone().or(before.as_ref().and_then(|data| data.instance.clone())),
            rack: said.rack,
            client_id: Arc::clone(&request.client_id),
            client_host: Arc::clone(&request.client_host),
            names: self.shared_names(said.names),
            regex: None,
            rebalance_timeout_ms: request.rebalance_timeout_or_session_ms(),
            assignor: None,
            classic: Some(Box::new(ClassicMetadata {
                session_timeout_ms: request.session_timeout_ms,
                protocols: request.protocols.clone(),
            })),
        };
        let changed =
            before.as_ref().is_none_or(|before| before.names != data.names || before.regex != data.regex);
        if before.as_deref() != Some(&data) {
            self.change(Change::Metadata(Arc::clone(&member), Some(Arc::new(data))));
            self.drop_unused_regexes();
            // One that spoke the other protocol had other timers.
            self.watch_rebalance(desk.clerk, &member);
        }
        self.note_again(desk.clerk, guest, changed, &member, request.reason.as_ref());
        self.refresh(desk, changed || *guest == Guest::New);
        self.think(desk);
        self.arm_session(desk, &member);
        let epoch = self.state.group_epoch();
        if epoch > self.state.assignment_epoch() {
            for earlier in self.take_waiting(&member, |_| true) {
                // The member asked again before it was answered: nobody waits for the first request.
                self.refuse_waiting(earlier, &member, ErrorCode::RebalanceInProgress);
            }
            let kind = WaitingKind::Classic { owned: said.owned };
            self.wait(&member, Waiting { token, epoch, kind });
        } else {
            self.end_classic_join(desk, token, &member, &said.owned);
        }
    }

    /// Tells a member its generation; it asks for its assignment then.
    pub(super) fn end_classic_join(
        &mut self,
        desk: &mut Desk<'_>,
        token: Token,
        member: &MemberId,
        owned: &[TopicPartition],
    ) {
        if self.reconcile(desk, member, &Claim::Join(owned), false).is_err() {
            return self.reply(token, Reply::Join(JoinReply::refused(ErrorCode::UnknownMemberId, member)));
        }
        self.cancel_rest(desk.clerk, member);
        let Some(data) = self.state.metadata(member).cloned() else { return };
        let protocol = data.classic.as_ref().and_then(|classic| classic.protocols.first());
        let reply = JoinReply {
            generation: self.current(member).epoch,
            protocol_type: Some(Arc::from(PROTOCOL_TYPE)),
            protocol_name: protocol.map(|protocol| Arc::clone(&protocol.name)),
            ..JoinReply::refused(ErrorCode::None, member)
        };
        let timer = Timer::MemberSync { group: Arc::clone(&self.id), member: Arc::clone(member) };
        let serial = desk.clerk.arm(timer, data.rebalance_timeout_ms);
        self.with_rest(member, |rest| rest.sync = Some(serial));
        self.arm_session(desk, member);
        self.reply(token, Reply::Join(reply));
    }

    fn check_classic_join(
        &self,
        desk: &Desk<'_>,
        request: &JoinRequest,
        guest: &Guest,
    ) -> Result<(), ErrorCode> {
        if self.dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        let max = desk.settings.members_max.min(GROUP_MEMBERS_MAX);
        if *guest == Guest::New && self.index.members >= max {
            return Err(ErrorCode::GroupMaxSizeReached);
        }
        if self.fits(request) { Ok(()) } else { Err(ErrorCode::InconsistentGroupProtocol) }
    }

    fn classic_guest(&self, request: &JoinRequest) -> Result<Guest, ErrorCode> {
        let id = &request.member;
        let known = if self.state.metadata(id).is_some() { Guest::Known } else { Guest::New };
        let Some(instance) = &request.instance else { return Ok(known) };
        match self.state.holder(instance) {
            None if id.is_empty() => Ok(Guest::New),
            None => Err(ErrorCode::UnknownMemberId),
            Some(holder) if id.is_empty() => Ok(Guest::Replaces(Arc::clone(holder))),
            Some(holder) if holder == id => Ok(Guest::Known),
            Some(_) => Err(ErrorCode::FencedInstanceId),
        }
    }

    /// Whether this is a member of the classic protocol in its present generation.
    fn check_classic(&self, member: &str, instance: Option<&str>, generation: i32) -> Result<(), ErrorCode> {
        if self.dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        if let Some(instance) = instance {
            let holder = self.state.holder(instance).ok_or(ErrorCode::UnknownMemberId)?;
            if **holder != *member {
                return Err(ErrorCode::FencedInstanceId);
            }
        }
        let speaks_classic = self.state.metadata(member).is_some_and(|data| data.classic.is_some());
        if !speaks_classic {
            return Err(ErrorCode::UnknownMemberId);
        }
        if self.current(member).epoch == generation { Ok(()) } else { Err(ErrorCode::IllegalGeneration) }
    }

    /// SyncGroup: a member's assignment as it stands.
    pub fn classic_sync(&mut self, desk: &mut Desk<'_>, token: Token, request: &SyncRequest) {
        let reply = match self.checked_sync(desk, request) {
            Ok(reply) => reply,
            Err(error) => SyncReply::refused(error),
        };
        self.reply(token, Reply::Sync(reply));
    }

    fn checked_sync(&mut self, desk: &mut Desk<'_>, request: &SyncRequest) -> Result<SyncReply, ErrorCode> {
        let id = &request.member;
        self.check_classic(id, request.instance.as_deref(), request.generation)?;
        let data = self.state.metadata(id).cloned().ok_or(ErrorCode::UnknownMemberId)?;
        let protocols = data.classic.as_ref().map_or(&[][..], |classic| &classic.protocols);
        let name = protocols.first().map(|protocol| &protocol.name);
        let other_type = request.protocol_type.as_deref().is_some_and(|given| given != PROTOCOL_TYPE);
        if other_type || request.protocol_name.as_ref().is_some_and(|given| Some(given) != name) {
            return Err(ErrorCode::InconsistentGroupProtocol);
        }
        let current = self.current(id);
        if self.state.group_epoch() > current.epoch && current.standing != Standing::Unrevoked {
            // It was told of a generation that is over; one that must give partitions up has to know which.
            self.await_join(desk.clerk, id, data.rebalance_timeout_ms);
            return Err(ErrorCode::RebalanceInProgress);
        }
        if self.rest(id).is_some_and(|rest| rest.sync.is_some()) {
            let timer = Timer::MemberSync { group: Arc::clone(&self.id), member: Arc::clone(id) };
            desk.clerk.cancel(timer);
            self.with_rest(id, |rest| rest.sync = None);
        }
        self.arm_session(desk, id);
        Ok(SyncReply {
            protocol_type: request.protocol_type.clone(),
            protocol_name: request.protocol_name.clone(),
            assignment: assignment_bytes(&current.assigned, protocols, desk.topics),
            ..SyncReply::refused(ErrorCode::None)
        })
    }

    /// Heartbeat: whether the member may go on or must join again, because something changed or because what it waits for is free.
    pub fn classic_heartbeat(&mut self, desk: &mut Desk<'_>, token: Token, request: &HeartbeatRequest) {
        let id = &request.member;
        let error = match self.check_classic(id, request.instance.as_deref(), request.generation) {
            Err(error) => error,
            Ok(()) => {
                self.arm_session(desk, id);
                self.refresh(desk, false);
                self.think(desk);
                let current = self.current(id);
                let must_join = match current.standing {
                    _ if current.epoch < self.state.group_epoch() => true,
                    Standing::Unrevoked => true,
                    Standing::Unreleased => !self.waits_for_others(id),
                    Standing::Stable | Standing::Unknown => false,
                };
                if must_join {
                    let after_ms = self.state.metadata(id).map_or(0, |data| data.rebalance_timeout_ms);
                    self.await_join(desk.clerk, id, after_ms);
                }
                if must_join { ErrorCode::RebalanceInProgress } else { ErrorCode::None }
            }
        };
        self.reply(token, Reply::Heartbeat(error));
    }

    /// LeaveGroup. Members that speak the other protocol leave by a heartbeat.
    pub fn classic_leave(&mut self, desk: &mut Desk<'_>, leavers: &[Leaver]) -> Vec<LeftMember> {
        let mut left = Vec::new();
        let mut gone = Vec::new();
        for leaver in leavers {
            let found = self.classic_leaver(leaver).and_then(|member| {
                if gone.contains(&member) { Err(ErrorCode::UnknownMemberId) } else { Ok(member) }
            });
            let (member, error) = match found {
                Ok(member) => {
                    let cause = if leaver.member.is_empty() { Cause::Removed } else { Cause::Left };
                    self.note_member(desk.clerk, cause, &member, leaver.reason.as_ref());
                    gone.push(Arc::clone(&member));
                    (member, ErrorCode::None)
                }
                Err(error) => (Arc::clone(&leaver.member), error),
            };
            left.push(LeftMember { member, instance: leaver.instance.clone(), error });
        }
        if !gone.is_empty() {
            self.remove_members(desk, &gone);
        }
        left
    }

    fn classic_leaver(&self, leaver: &Leaver) -> Result<MemberId, ErrorCode> {
        let Leaver { member, instance, .. } = leaver;
        let member = match instance {
            None => member,
            Some(instance) => {
                let holder = self.state.holder(instance).ok_or(ErrorCode::UnknownMemberId)?;
                // An operator names the instance alone.
                if !member.is_empty() && holder != member {
                    return Err(ErrorCode::FencedInstanceId);
                }
                holder
            }
        };
        let speaks_classic = self.state.metadata(member).is_some_and(|data| data.classic.is_some());
        if speaks_classic { Ok(Arc::clone(member)) } else { Err(ErrorCode::UnknownMemberId) }
    }
}
