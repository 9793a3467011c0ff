//! What others see of groups without changing them: OffsetFetch, ListGroups, DescribeGroups. Offsets are read from what is durable.

use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::group::consumer_protocol::PROTOCOL_TYPE;
use ringlog_protocol::ids::TopicId;

use super::classic::{ClassicGroup, GroupState};
use super::consumer::GroupStanding;
use super::durable::CommittedOffset;
use super::event::{GroupId, MemberId};
use super::machine::GroupMachine;

/// The type of a classic group, as ListGroups calls it.
const CLASSIC_TYPE: &str = "classic";

/// The type of a group of KIP-848, as ListGroups calls it.
const CONSUMER_TYPE: &str = "consumer";

/// Offsets of one group to read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OffsetQuery {
    pub group: GroupId,
    /// Who asks, where a member of a consumer group does; see [`GroupMachine::check_offset_fetch`].
    pub member: Option<MemberId>,
    /// -1: not of a member.
    pub member_epoch: i32,
    /// `None`: all that the group has.
    pub topics: Option<Vec<OffsetQueryTopic>>,
}

/// Offsets of one topic to read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OffsetQueryTopic {
    pub name: Arc<str>,
    /// [`TopicId::ZERO`] where it is not known. An offset of another topic of this name is none of this one.
    pub id: TopicId,
    pub partitions: Vec<i32>,
}

/// Offsets of one topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FetchedTopic {
    pub name: Arc<str>,
    pub id: TopicId,
    pub partitions: Vec<FetchedOffset>,
}

/// One offset.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FetchedOffset {
    pub index: i32,
    /// -1: none is committed, which is no error.
    pub offset: i64,
    pub leader_epoch: i32,
    pub metadata: Arc<str>,
}

/// A group in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListedGroup {
    pub group: GroupId,
    /// Empty where it never had members.
    pub protocol_type: Arc<str>,
    pub state: ListedState,
    /// `classic` or `consumer`.
    pub group_type: &'static str,
}

/// The state of a group of either kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedState(&'static str);

impl From<GroupState> for ListedState {
    fn from(state: GroupState) -> ListedState {
        ListedState(state.name())
    }
}

impl ListedState {
    /// As Kafka's tools know it.
    pub fn name(self) -> &'static str {
        self.0
    }
}

/// A group with its members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DescribedGroup {
    pub group: GroupId,
    pub state: GroupState,
    pub generation: i32,
    pub protocol_type: Arc<str>,
    /// The protocol chosen; empty unless the group is stable.
    pub protocol: Arc<str>,
    pub members: Vec<DescribedMember>,
}

/// A member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DescribedMember {
    pub member: MemberId,
    pub instance: Option<Arc<str>>,
    pub client_id: Arc<str>,
    pub client_host: Arc<str>,
    /// Empty unless the group is stable.
    pub metadata: Bytes,
    pub assignment: Bytes,
}

/// Groups by state, and members.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Census {
    pub empty: u64,
    pub preparing: u64,
    pub completing: u64,
    /// Consumer groups for which an assignment is computed.
    pub assigning: u64,
    /// Consumer groups of which members have not come to their assignment.
    pub reconciling: u64,
    pub stable: u64,
    pub dead: u64,
    /// Of all groups.
    pub members: u64,
}

impl std::ops::Add for Census {
    type Output = Census;

    fn add(self, other: Census) -> Census {
        Census {
            empty: self.empty + other.empty,
            preparing: self.preparing + other.preparing,
            completing: self.completing + other.completing,
            assigning: self.assigning + other.assigning,
            reconciling: self.reconciling + other.reconciling,
            stable: self.stable + other.stable,
            dead: self.dead + other.dead,
            members: self.members + other.members,
        }
    }
}

impl OffsetQuery {
    /// As one asks who is no member.
    pub fn of_nobody(group: GroupId, topics: Option<Vec<OffsetQueryTopic>>) -> OffsetQuery {
        OffsetQuery { group, member: None, member_epoch: -1, topics }
    }
}

impl GroupMachine {
    /// Counts its groups. Looks at each, and at members of consumer groups.
    pub fn census(&self) -> Census {
        let mut census = Census::default();
        for group in self.live.values() {
            census.members += group.members.len() as u64;
            let state = match group.state {
                GroupState::Empty => &mut census.empty,
                GroupState::PreparingRebalance => &mut census.preparing,
                GroupState::CompletingRebalance => &mut census.completing,
                GroupState::Stable => &mut census.stable,
                GroupState::Dead => &mut census.dead,
            };
            *state += 1;
        }
        for group in self.consumers.values() {
            census.members += group.index.members as u64;
            let state = match group.standing() {
                GroupStanding::Empty => &mut census.empty,
                GroupStanding::Assigning => &mut census.assigning,
                GroupStanding::Reconciling => &mut census.reconciling,
                GroupStanding::Stable => &mut census.stable,
                GroupStanding::Dead => &mut census.dead,
            };
            *state += 1;
        }
        census
    }

    /// Members of a group of either kind.
    pub fn member_count(&self, group: &str) -> usize {
        let classic = self.live.get(group).map(|group| group.members.len());
        classic.or_else(|| Some(self.consumers.get(group)?.index.members)).unwrap_or(0)
    }

    /// A group's offsets. One that does not exist has none, which is no error (`kafka.md` section 9), and the empty name is one as any
    /// other: clients from before groups had members commit to it.
    ///
    /// # Errors
    /// Those of [`GroupMachine::check_offset_fetch`].
    pub fn fetch_offsets(&self, query: &OffsetQuery) -> Result<Vec<FetchedTopic>, ErrorCode> {
        self.check_offset_fetch(&query.group, query.member.as_deref(), query.member_epoch)?;
        let known = self.durable().offsets().get(&query.group);
        let Some(asked) = &query.topics else {
            let all = known.into_iter().flatten().map(|(name, partitions)| FetchedTopic {
                name: Arc::clone(name),
                id: partitions
                    .values()
                    .map(|offset| offset.topic_id)
                    .find(|id| !id.is_zero())
                    .unwrap_or_default(),
                partitions: partitions.iter().map(|(index, offset)| fetched(*index, Some(offset))).collect(),
            });
            return Ok(all.collect());
        };
        let topics = asked.iter().map(|topic| {
            let partitions = topic.partitions.iter().map(|index| {
                let offset = known.and_then(|topics| topics.get(&topic.name)?.get(index));
                fetched(*index, offset.filter(|offset| is_of_topic(offset, topic.id)))
            });
            FetchedTopic { name: Arc::clone(&topic.name), id: topic.id, partitions: partitions.collect() }
        });
        Ok(topics.collect())
    }

    /// All groups in these states and of these types, in any case of letters; an empty filter means all.
    pub fn list(&self, states: &[&str], types: &[&str]) -> Vec<ListedGroup> {
        let among = |filter: &[&str], name: &str| {
            filter.is_empty() || filter.iter().any(|wanted| wanted.trim().eq_ignore_ascii_case(name))
        };
        let classic = self.live.values().map(|group| ListedGroup {
            group: Arc::clone(&group.id),
            protocol_type: group.protocol_type.clone().unwrap_or_default(),
            state: group.state.into(),
            group_type: CLASSIC_TYPE,
        });
        let consumers = self.consumers.values().map(|group| ListedGroup {
            group: Arc::clone(&group.id),
            protocol_type: Arc::from(PROTOCOL_TYPE),
            state: ListedState(group.standing().name()),
            group_type: CONSUMER_TYPE,
        });
        let listed = classic.chain(consumers);
        listed.filter(|group| among(types, group.group_type) && among(states, group.state.name())).collect()
    }

    /// A group with its members; `None` where it does not exist: `Dead` to clients, `GROUP_ID_NOT_FOUND` from version 6 on.
    pub fn describe(&self, group: &str) -> Option<DescribedGroup> {
        self.live.get(group).map(describe)
    }
}

fn is_of_topic(offset: &CommittedOffset, id: TopicId) -> bool {
    id.is_zero() || offset.topic_id.is_zero() || offset.topic_id == id
}

fn fetched(index: i32, offset: Option<&CommittedOffset>) -> FetchedOffset {
    match offset {
        Some(offset) => FetchedOffset {
            index,
            offset: offset.offset,
            leader_epoch: offset.leader_epoch,
            metadata: Arc::clone(&offset.metadata),
        },
        None => FetchedOffset { index, offset: -1, leader_epoch: -1, metadata: Arc::from("") },
    }
}

fn describe(group: &ClassicGroup) -> DescribedGroup {
    let stable = group.state == GroupState::Stable;
    let protocol = if stable { group.protocol.clone().unwrap_or_default() } else { Arc::from("") };
    let members = group.members.iter().map(|member| DescribedMember {
        member: Arc::clone(&member.id),
        instance: member.instance.clone(),
        client_id: Arc::clone(&member.client_id),
        client_host: Arc::clone(&member.client_host),
        metadata: if stable { member.metadata(&protocol) } else { Bytes::new() },
        assignment: member.assignment.clone(),
    });
    DescribedGroup {
        group: Arc::clone(&group.id),
        state: group.state,
        generation: group.generation,
        protocol_type: group.protocol_type.clone().unwrap_or_default(),
        members: members.collect(),
        protocol,
    }
}
