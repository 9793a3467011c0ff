//! What the records of a consumer group say, and nothing else. The same type is kept twice: as it is durable, changed by replay, and as
//! it will be once everything under way is committed, changed by events. Both share their parts, so that the second costs little.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringlog_protocol::ids::TopicPartition;

use crate::group::event::{GroupId, MemberId, Protocol};

/// What a member weighs beside its texts and partitions: the structs, their counters and two map entries.
const MEMBER_BYTES: usize = 480;

/// What it weighs beside its text that an instance id is held.
const INSTANCE_BYTES: usize = 48;

/// What a partition of an assignment weighs.
const PARTITION_BYTES: usize = size_of::<Owned>();

/// What a group weighs beside its members.
const GROUP_BYTES: usize = 256;

/// Partitions in order, each once.
pub type Partitions = Arc<[TopicPartition]>;

/// A consumer group as its records have it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ConsumerState {
    pub epoch: Option<GroupEpoch>,
    /// Of the target assignment.
    pub assignment: Option<AssignmentEpoch>,
    pub members: BTreeMap<MemberId, MemberState>,
    /// Who holds each instance id: the member that was the last to say so. Another that says so too is none any more: the record of its end
    /// did not come into the log, and that of its successor did.
    instances: BTreeMap<Arc<str>, MemberId>,
    /// The topics that each expression stands for.
    pub regexes: BTreeMap<Arc<str>, Arc<ResolvedRegex>>,
    bytes: usize,
}

/// Grows whenever something changed for which partitions must be shared out anew.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct GroupEpoch {
    pub epoch: i32,
    /// Over the topics that the group is subscribed to.
    pub metadata_hash: i64,
}

/// The group's epoch when the target assignment was computed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AssignmentEpoch {
    pub epoch: i32,
    /// When it was computed, in milliseconds since the Unix epoch; 0: unknown.
    pub computed_ms: i64,
}

/// What the records of one member say: each kind is there or not.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MemberState {
    pub metadata: Option<Arc<MemberMetadata>>,
    /// What it is to have.
    pub target: Option<Partitions>,
    pub current: Option<Arc<Current>>,
}

/// What a member said of itself.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct MemberMetadata {
    /// Of a static member: its name across restarts.
    pub instance: Option<Arc<str>>,
    pub rack: Option<Arc<str>>,
    pub client_id: Arc<str>,
    pub client_host: Arc<str>,
    /// Topics by name, in order, each once.
    pub names: Arc<[Arc<str>]>,
    pub regex: Option<Arc<str>>,
    /// How long it may take to give partitions up, in milliseconds; -1: unknown.
    pub rebalance_timeout_ms: i32,
    pub assignor: Option<Arc<str>>,
    /// Of a member that speaks the classic protocol.
    pub classic: Option<Box<ClassicMetadata>>,
}

/// What a member says in the classic protocol.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ClassicMetadata {
    pub session_timeout_ms: i32,
    /// The preferred first.
    pub protocols: Vec<Protocol>,
}

/// Where a member stands on its way to what it is to have.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Standing {
    /// It has all that it is to have in its epoch.
    #[default]
    Stable,
    /// It must give partitions up before it comes to the next epoch.
    Unrevoked,
    /// Partitions that it is to have are still held by others.
    Unreleased,
    /// As a later version knows and this one does not.
    Unknown,
}

/// What a member has.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Current {
    /// -2: a static member that left for a while.
    pub epoch: i32,
    /// With which it may still come, where it missed the answer that raised it.
    pub previous_epoch: i32,
    pub standing: Standing,
    /// In order, each once.
    pub assigned: Arc<[Owned]>,
    /// It must give these up; in order, each once.
    pub revoking: Arc<[Owned]>,
}

/// A partition that a member has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Owned {
    pub at: TopicPartition,
    /// The member's epoch when it came to it.
    pub since: i32,
}

/// What an expression stands for.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ResolvedRegex {
    /// By name.
    pub topics: Vec<Arc<str>>,
    /// Of the topics' metadata.
    pub version: i64,
    /// In milliseconds since the Unix epoch.
    pub resolved_ms: i64,
}

/// What one record changes. `None`: it is no more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::group) enum Change {
    Epoch(Option<GroupEpoch>),
    Assignment(Option<AssignmentEpoch>),
    Metadata(MemberId, Option<Arc<MemberMetadata>>),
    Target(MemberId, Option<Partitions>),
    Current(MemberId, Option<Arc<Current>>),
    Regex(Arc<str>, Option<Arc<ResolvedRegex>>),
}

/// What one record is about.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::group) enum Subject {
    /// The record of a classic group of the same name.
    Classic,
    Epoch,
    Assignment,
    Metadata(MemberId),
    Target(MemberId),
    Current(MemberId),
    Regex(Arc<str>),
}

/// A group that is not there.
static NO_STATE: ConsumerState = ConsumerState {
    epoch: None,
    assignment: None,
    members: BTreeMap::new(),
    instances: BTreeMap::new(),
    regexes: BTreeMap::new(),
    bytes: 0,
};

impl ConsumerState {
    /// Whether no record says anything.
    pub fn is_nothing(&self) -> bool {
        self.epoch.is_none()
            && self.assignment.is_none()
            && self.members.is_empty()
            && self.regexes.is_empty()
    }

    /// Memory, estimated.
    pub fn bytes(&self) -> usize {
        GROUP_BYTES + self.bytes
    }

    /// The group's epoch; 0: it never had one.
    pub fn group_epoch(&self) -> i32 {
        self.epoch.map_or(0, |epoch| epoch.epoch)
    }

    /// The epoch of the target assignment; 0: there was none.
    pub fn assignment_epoch(&self) -> i32 {
        self.assignment.map_or(0, |assignment| assignment.epoch)
    }

    /// What this member said, where it is one.
    pub fn metadata(&self, member: &str) -> Option<&Arc<MemberMetadata>> {
        self.members.get(member)?.metadata.as_ref()
    }

    /// Who holds this instance id.
    pub fn holder(&self, instance: &str) -> Option<&MemberId> {
        self.instances.get(instance)
    }

    /// Whether this member is static and does not hold its instance id.
    pub fn is_outlived(&self, member: &MemberId) -> bool {
        let instance = self.metadata(member).and_then(|data| data.instance.as_ref());
        instance.is_some_and(|instance| self.holder(instance) != Some(member))
    }

    /// Its members, by name.
    pub fn joined(&self) -> impl Iterator<Item = (&MemberId, &Arc<MemberMetadata>, &MemberState)> {
        self.members.iter().filter_map(|(id, member)| member.metadata.as_ref().map(|data| (id, data, member)))
    }

    pub(in crate::group) fn apply(&mut self, change: Change) {
        match change {
            Change::Epoch(epoch) => self.epoch = epoch,
            Change::Assignment(assignment) => self.assignment = assignment,
            Change::Metadata(id, metadata) => {
                self.hand_over_instance(&id, metadata.as_deref());
                self.update(id, |member| member.metadata = metadata);
            }
            Change::Target(id, target) => self.update(id, |member| member.target = target),
            Change::Current(id, current) => self.update(id, |member| member.current = current),
            Change::Regex(text, resolved) => {
                let weight = |resolved: &ResolvedRegex| {
                    PARTITION_BYTES
                        + text.len()
                        + resolved.topics.iter().map(|name| 16 + name.len()).sum::<usize>()
                };
                let new = resolved.as_deref().map_or(0, weight);
                let old = self.regexes.get(&text).map_or(0, |old| weight(old));
                self.bytes = self.bytes + new - old;
                match resolved {
                    Some(resolved) => drop(self.regexes.insert(text, resolved)),
                    None => drop(self.regexes.remove(&text)),
                }
            }
        }
    }

    /// What a member says of itself changes: it gives up the instance id that it holds, and holds the one that it says.
    fn hand_over_instance(&mut self, id: &MemberId, new: Option<&MemberMetadata>) {
        let old = self.metadata(id).and_then(|data| data.instance.as_ref());
        if let Some(old) = old.filter(|old| self.holder(old) == Some(id)).cloned() {
            self.instances.remove(&old);
        }
        if let Some(instance) = new.and_then(|data| data.instance.as_ref()) {
            self.instances.insert(Arc::clone(instance), Arc::clone(id));
        }
    }

    fn update(&mut self, id: MemberId, change: impl FnOnce(&mut MemberState)) {
        let member = self.members.entry(Arc::clone(&id)).or_default();
        let before = member.bytes(&id);
        change(member);
        self.bytes = self.bytes + member.bytes(&id) - before;
        if *member == MemberState::default() {
            self.members.remove(&id);
        }
    }

    /// What a record would say now of this subject. Nothing for one of a classic group.
    pub(in crate::group) fn now(&self, subject: &Subject) -> Option<Change> {
        let member = |id: &MemberId| self.members.get(id).cloned().unwrap_or_default();
        Some(match subject {
            Subject::Classic => return None,
            Subject::Epoch => Change::Epoch(self.epoch),
            Subject::Assignment => Change::Assignment(self.assignment),
            Subject::Metadata(id) => Change::Metadata(Arc::clone(id), member(id).metadata),
            Subject::Target(id) => Change::Target(Arc::clone(id), member(id).target),
            Subject::Current(id) => Change::Current(Arc::clone(id), member(id).current),
            Subject::Regex(text) => Change::Regex(Arc::clone(text), self.regexes.get(text).cloned()),
        })
    }

    /// All that there is, as changes that end it.
    pub(in crate::group) fn endings(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        for (id, member) in &self.members {
            changes.extend(member.current.as_ref().map(|_| Change::Current(Arc::clone(id), None)));
            changes.extend(member.target.as_ref().map(|_| Change::Target(Arc::clone(id), None)));
            changes.extend(member.metadata.as_ref().map(|_| Change::Metadata(Arc::clone(id), None)));
        }
        changes.extend(self.regexes.keys().map(|text| Change::Regex(Arc::clone(text), None)));
        changes.push(Change::Assignment(None));
        changes.push(Change::Epoch(None));
        changes
    }

    /// The same in parts that are shared with the group as it is led.
    fn shared(&self, change: Change) -> Change {
        let own = self.members.get_key_value(change.member().map_or("", |id| id));
        let Some((own_id, own)) = own else { return change };
        let id = Arc::clone(own_id);
        match change {
            Change::Metadata(_, data) => {
                Change::Metadata(id, own.metadata.clone().filter(|_| own.metadata == data).or(data))
            }
            Change::Target(_, target) => {
                Change::Target(id, own.target.clone().filter(|_| own.target == target).or(target))
            }
            Change::Current(_, current) => {
                Change::Current(id, own.current.clone().filter(|_| own.current == current).or(current))
            }
            other => other,
        }
    }
}

impl MemberState {
    /// Where it stands; at the beginning where no record says more.
    pub fn standing(&self) -> Current {
        self.current.as_deref().cloned().unwrap_or_default()
    }

    /// The epoch it is in; 0 at the beginning.
    pub fn epoch(&self) -> i32 {
        self.current.as_ref().map_or(0, |current| current.epoch)
    }

    /// What it is to have.
    pub fn target(&self) -> Partitions {
        self.target.clone().unwrap_or_default()
    }

    /// How many partitions it is to have.
    pub fn target_len(&self) -> usize {
        self.target.as_ref().map_or(0, |target| target.len())
    }

    /// Nothing for what is not there at all.
    fn bytes(&self, id: &str) -> usize {
        if *self == MemberState::default() {
            return 0;
        }
        let metadata = self.metadata.as_ref().map_or(0, |data| data.bytes());
        let target = self.target.as_ref().map_or(0, |target| target.len() * size_of::<TopicPartition>());
        let current = self
            .current
            .as_ref()
            .map_or(0, |current| (current.assigned.len() + current.revoking.len()) * PARTITION_BYTES);
        MEMBER_BYTES + id.len() + metadata + target + current
    }
}

impl MemberMetadata {
    /// Bytes of its texts, estimated as if it shared none with others.
    fn bytes(&self) -> usize {
        let holds = self.instance.as_ref().map_or(0, |_| INSTANCE_BYTES);
        let optional = [&self.instance, &self.rack, &self.regex, &self.assignor];
        let optional = optional.into_iter().flatten().map(|text| text.len());
        let names = self.names.iter().map(|name| 16 + name.len());
        let classic = self.classic.as_ref().map_or(0, |classic| {
            let protocols = classic.protocols.iter();
            protocols.map(|protocol| PARTITION_BYTES + protocol.name.len() + protocol.metadata.len()).sum()
        });
        holds + self.client_id.len() + self.client_host.len() + optional.chain(names).sum::<usize>() + classic
    }
}

impl Change {
    fn member(&self) -> Option<&str> {
        match self {
            Change::Metadata(id, _) | Change::Target(id, _) | Change::Current(id, _) => Some(id),
            Change::Epoch(_) | Change::Assignment(_) | Change::Regex(..) => None,
        }
    }

    pub fn subject(&self) -> Subject {
        match self {
            Change::Epoch(_) => Subject::Epoch,
            Change::Assignment(_) => Subject::Assignment,
            Change::Metadata(id, _) => Subject::Metadata(Arc::clone(id)),
            Change::Target(id, _) => Subject::Target(Arc::clone(id)),
            Change::Current(id, _) => Subject::Current(Arc::clone(id)),
            Change::Regex(text, _) => Subject::Regex(Arc::clone(text)),
        }
    }
}

/// The consumer groups that are durable.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(in crate::group) struct DurableConsumers {
    groups: BTreeMap<GroupId, ConsumerState>,
    bytes: usize,
}

impl DurableConsumers {
    pub fn groups(&self) -> &BTreeMap<GroupId, ConsumerState> {
        &self.groups
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// `live`: the group as it is led, for its parts.
    pub fn apply(&mut self, group: &str, change: Change, live: Option<(&GroupId, &ConsumerState)>) {
        let id = live.map_or_else(|| GroupId::from(group), |(id, _)| Arc::clone(id));
        let change = live.map_or(&NO_STATE, |(_, state)| state).shared(change);
        let state = self.groups.entry(id).or_default();
        let before = if state.is_nothing() { 0 } else { state.bytes() + group.len() };
        state.apply(change);
        let after = if state.is_nothing() { 0 } else { state.bytes() + group.len() };
        self.bytes = self.bytes + after - before;
        if after == 0 {
            self.groups.remove(group);
        }
    }
}
