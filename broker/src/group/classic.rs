//! A classic group: its state, who is in it, and the checks that every path shares. What moves it stands in `rebalance`, `join`,
//! `sync` and `session`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::group::consumer_protocol::{PROTOCOL_TYPE, subscribed_topics};

use super::clerk::Clerk;
use super::durable::GroupRecord;
use super::event::{GroupId, MemberId, Protocol, Serial, Ticket, Timer};
use super::members::{Member, Members};
use super::reply::{JoinReply, JoinedMember, Reply, SyncReply};
use super::timeline::OpenRebalance;

/// What a group weighs beside its members: the struct, its map entry, its names.
const GROUP_BYTES: usize = 512;

/// What a member that was given a name and did not come back yet weighs beside the name.
const PENDING_BYTES: usize = 128;

/// Where a group stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupState {
    /// No members, perhaps offsets.
    Empty,
    /// Members are asked to join again.
    PreparingRebalance,
    /// All are in, the leader assigns.
    CompletingRebalance,
    /// Every member has or can have its assignment.
    Stable,
    /// It is being deleted.
    Dead,
}

impl GroupState {
    /// As Kafka's tools know it.
    pub fn name(self) -> &'static str {
        match self {
            GroupState::Empty => "Empty",
            GroupState::PreparingRebalance => "PreparingRebalance",
            GroupState::CompletingRebalance => "CompletingRebalance",
            GroupState::Stable => "Stable",
            GroupState::Dead => "Dead",
        }
    }
}

impl fmt::Display for GroupState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The topics that members want.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Wishes<'a> {
    /// One of them cannot be read: it may want any.
    Unknown,
    Topics(BTreeSet<&'a str>),
}

impl Wishes<'_> {
    /// Whether somebody may want this topic.
    pub fn may_include(&self, topic: &str) -> bool {
        match self {
            Wishes::Unknown => true,
            Wishes::Topics(topics) => topics.contains(topic),
        }
    }
}

/// An empty group waits for more members than the first: how long still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct InitialDelay {
    /// Of the wait that runs now.
    pub delay_ms: i32,
    /// What may follow it.
    pub remaining_ms: i32,
    /// Somebody came during the wait that runs now.
    pub somebody_came: bool,
}

/// One group, as it stands on the core that leads its partition.
#[derive(Clone, Debug)]
pub(super) struct ClassicGroup {
    pub id: GroupId,
    pub state: GroupState,
    /// When it came to this state, in milliseconds since the Unix epoch; `None`: unknown.
    pub since_ms: Option<i64>,
    pub generation: i32,
    /// `None`: it never had members.
    pub protocol_type: Option<Arc<str>>,
    /// Chosen for the present generation.
    pub protocol: Option<Arc<str>>,
    pub leader: Option<MemberId>,
    pub members: Members,
    /// Were given a name and must join with it, or leave: the number of their session timer.
    pub pending: BTreeMap<MemberId, Serial>,
    /// Have joined this generation and not asked for their assignment.
    pub pending_sync: BTreeSet<MemberId>,
    /// `Some` while an empty group waits for its first members.
    pub initial: Option<InitialDelay>,
    /// The leader's assignments are on their way into the log.
    pub assigning: Option<Ticket>,
    pub join_timer: Option<Serial>,
    pub sync_timer: Option<Serial>,
    /// The rebalance that is under way, for people.
    pub open: Option<Box<OpenRebalance>>,
    pending_bytes: usize,
}

impl ClassicGroup {
    /// A group without members.
    pub fn empty(id: GroupId, since_ms: Option<i64>) -> ClassicGroup {
        ClassicGroup {
            id,
            state: GroupState::Empty,
            since_ms,
            generation: 0,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: Members::default(),
            pending: BTreeMap::new(),
            pending_sync: BTreeSet::new(),
            initial: None,
            assigning: None,
            join_timer: None,
            sync_timer: None,
            open: None,
            pending_bytes: 0,
        }
    }

    /// The group as its record has it, without timers.
    pub fn loaded(id: GroupId, record: &GroupRecord) -> ClassicGroup {
        let mut group = ClassicGroup::empty(id, record.since_ms);
        group.generation = record.generation;
        group.protocol_type = record.protocol_type.clone();
        group.protocol = record.protocol.clone();
        group.leader = record.leader.clone();
        let protocol = record.protocol.clone().unwrap_or_default();
        for (id, member) in &record.members {
            group.members.insert(Member {
                id: Arc::clone(id),
                instance: member.instance.clone(),
                client_id: Arc::clone(&member.client_id),
                client_host: Arc::clone(&member.client_host),
                rebalance_timeout_ms: member.rebalance_timeout_ms,
                session_timeout_ms: member.session_timeout_ms,
                // The others that it knows are not in the log; it says them again when it joins.
                protocols: vec![Protocol {
                    name: Arc::clone(&protocol),
                    metadata: member.subscription.clone(),
                }],
                assignment: member.assignment.clone(),
                waiting_join: None,
                waiting_sync: None,
                is_new: false,
                session: None,
            });
        }
        if !group.members.is_empty() {
            group.state = GroupState::Stable;
        }
        group
    }

    /// Memory, estimated.
    pub fn bytes(&self) -> usize {
        let open = self.open.as_ref().map_or(0, |open| open.bytes());
        GROUP_BYTES + 2 * self.id.len() + self.members.bytes() + self.pending_bytes + open
    }

    pub fn enter(&mut self, state: GroupState, now_ms: i64) {
        self.state = state;
        self.since_ms = Some(now_ms);
        self.assigning = None;
    }

    pub fn is_leader(&self, member: &str) -> bool {
        self.leader.as_deref() == Some(member)
    }

    /// Whether everyone who was ever given a name and did not leave has joined.
    pub fn all_joined(&self) -> bool {
        self.members.len() == self.members.waiting_join() && self.pending.is_empty()
    }

    /// Whether a member with these protocols fits in: it speaks of the same thing and knows a protocol that all others know.
    pub fn fits(&self, protocol_type: &str, protocols: &[Protocol]) -> bool {
        if self.state == GroupState::Empty {
            return !protocol_type.is_empty() && !protocols.is_empty();
        }
        self.protocol_type.as_deref() == Some(protocol_type)
            && protocols.iter().any(|protocol| self.members.all_know(&protocol.name))
    }

    /// Whether this is a member, by its own name and the one of its instance.
    ///
    /// # Errors
    /// `UNKNOWN_MEMBER_ID`, and `FENCED_INSTANCE_ID` where another holds the instance id now.
    pub fn check_member(&self, member: &str, instance: Option<&str>) -> Result<(), ErrorCode> {
        if let Some(instance) = instance {
            match self.members.holder(instance) {
                None => return Err(ErrorCode::UnknownMemberId),
                Some(holder) if **holder != *member => return Err(ErrorCode::FencedInstanceId),
                Some(_) => {}
            }
        }
        if self.members.contains(member) { Ok(()) } else { Err(ErrorCode::UnknownMemberId) }
    }

    /// Whether members talk the protocol of consumers, so that their subscriptions can be read.
    pub fn is_of_consumers(&self) -> bool {
        self.protocol_type.as_deref() == Some(PROTOCOL_TYPE)
    }

    /// What members want.
    pub fn wishes(&self) -> Wishes<'_> {
        if !self.is_of_consumers() {
            return Wishes::Topics(BTreeSet::new());
        }
        let mut wanted = BTreeSet::new();
        for protocol in self.members.iter().flat_map(|member| &member.protocols) {
            match subscribed_topics(&protocol.metadata) {
                Ok(topics) => wanted.extend(topics),
                Err(_) => return Wishes::Unknown,
            }
        }
        Wishes::Topics(wanted)
    }

    /// The present generation, as a member that joined is told of it.
    pub fn joined(&self, member: &MemberId, members: Vec<JoinedMember>) -> JoinReply {
        JoinReply {
            generation: self.generation,
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol.clone(),
            leader: self.leader.clone().unwrap_or_default(),
            members,
            ..JoinReply::refused(ErrorCode::None, member)
        }
    }

    /// All members, as the leader is told of them.
    pub fn for_leader(&self) -> Vec<JoinedMember> {
        let protocol = self.protocol.as_deref().unwrap_or("");
        let described = self.members.iter().map(|member| JoinedMember {
            member: Arc::clone(&member.id),
            instance: member.instance.clone(),
            metadata: member.metadata(protocol),
        });
        described.collect()
    }

    /// A member's assignment in the present generation.
    pub fn assigned(&self, assignment: Bytes) -> SyncReply {
        SyncReply {
            protocol_type: self.protocol_type.clone(),
            protocol_name: self.protocol.clone(),
            assignment,
            ..SyncReply::refused(ErrorCode::None)
        }
    }

    /// Notes a name that was given away.
    pub fn add_pending(&mut self, clerk: &mut Clerk, member: MemberId, session_timeout_ms: i32) {
        let timer = self.session_timer(&member);
        let serial = clerk.arm(timer, session_timeout_ms);
        self.pending_bytes += PENDING_BYTES + member.len();
        self.pending.insert(member, serial);
    }

    /// Forgets such a name; its timer runs on unless `cancel`.
    pub fn remove_pending(&mut self, clerk: &mut Clerk, member: &MemberId, cancel: bool) {
        if self.pending.remove(member).is_none() {
            return;
        }
        self.pending_bytes -= PENDING_BYTES + member.len();
        if cancel {
            clerk.cancel(self.session_timer(member));
        }
    }

    /// Takes a member out and answers what it asked: it is none any more.
    pub fn drop_member(&mut self, clerk: &mut Clerk, member: &MemberId, error: ErrorCode) {
        let Some(gone) = self.members.remove(member) else { return };
        if let Some(token) = gone.waiting_join {
            let nobody =
                if error == ErrorCode::FencedInstanceId { Arc::clone(member) } else { Arc::from("") };
            clerk.answer(token, Reply::Join(JoinReply::refused(error, &nobody)));
        }
        if let Some(token) = gone.waiting_sync {
            clerk.answer(token, Reply::Sync(SyncReply::refused(error)));
        }
        clerk.cancel(self.session_timer(member));
        self.pending_sync.remove(member);
        if self.is_leader(member) {
            self.leader = self.members.iter().next().map(|next| Arc::clone(&next.id));
        }
    }

    pub fn session_timer(&self, member: &MemberId) -> Timer {
        Timer::Session { group: Arc::clone(&self.id), member: Arc::clone(member) }
    }

    /// The member was heard of, or was answered: its session begins anew.
    pub fn arm_session(&mut self, clerk: &mut Clerk, member: &MemberId) {
        if let Some(after_ms) = self.members.get(member).map(|member| member.session_timeout_ms) {
            self.arm_session_for(clerk, member, after_ms);
        }
    }

    pub fn arm_session_for(&mut self, clerk: &mut Clerk, member: &MemberId, after_ms: i32) {
        let timer = self.session_timer(member);
        let serial = clerk.arm(timer, after_ms);
        self.members.update(member, |member| member.session = Some(serial));
    }

    /// What must hold between any two events.
    #[cfg(test)]
    pub fn check(&self) {
        self.members.check();
        let pending: usize = self.pending.keys().map(|member| PENDING_BYTES + member.len()).sum();
        assert_eq!(pending, self.pending_bytes);
        assert!(self.pending.keys().all(|member| !self.members.contains(member)));
        assert!(self.pending_sync.iter().all(|member| self.members.contains(member)));
        assert_eq!(self.leader.is_some(), !self.members.is_empty(), "{self:?}");
        assert!(self.leader.as_ref().is_none_or(|leader| self.members.contains(leader)));
        let rests = matches!(self.state, GroupState::Empty | GroupState::Dead);
        assert!(!rests || self.members.is_empty(), "{self:?}");
        assert!(self.initial.is_none() || self.state == GroupState::PreparingRebalance);
        assert_eq!(self.join_timer.is_some(), self.state == GroupState::PreparingRebalance, "{self:?}");
        assert!(self.assigning.is_none() || self.state == GroupState::CompletingRebalance);
        for member in self.members.iter() {
            assert!(member.waiting_sync.is_none() || self.state == GroupState::CompletingRebalance);
            assert!(member.session.is_some());
        }
    }
}
