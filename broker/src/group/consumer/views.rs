//! What others see of consumer groups without changing them, and which offsets their members may read and write.

use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{TopicId, TopicPartition};

use super::group::ConsumerGroup;
use super::state::{Current, MemberState};
use super::topics::Topics;
use crate::group::event::{CommitRequest, CommitTopic, GroupId, MemberId};
use crate::group::machine::GroupMachine;

/// OffsetCommit versions from here on know of member epochs.
const KNOWS_MEMBER_EPOCHS_SINCE: i16 = 9;

/// A consumer group with its members, as ConsumerGroupDescribe tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DescribedConsumerGroup {
    pub group: GroupId,
    /// As Kafka's tools know it.
    pub state: &'static str,
    pub epoch: i32,
    pub assignment_epoch: i32,
    pub assignor: Arc<str>,
    pub members: Vec<DescribedConsumer>,
}

/// A member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DescribedConsumer {
    pub member: MemberId,
    pub instance: Option<Arc<str>>,
    pub rack: Option<Arc<str>>,
    pub epoch: i32,
    pub client_id: Arc<str>,
    pub client_host: Arc<str>,
    pub names: Arc<[Arc<str>]>,
    pub regex: Option<Arc<str>>,
    pub assigned: Vec<DescribedTopic>,
    /// What it is to have.
    pub target: Vec<DescribedTopic>,
    pub speaks_classic: bool,
}

/// Partitions of one topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DescribedTopic {
    pub id: TopicId,
    pub name: Arc<str>,
    pub partitions: Vec<i32>,
}

/// Which offsets of a commit count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::group) enum CommitRule {
    All,
    /// Of partitions that the member has had since it was in this epoch.
    OwnedSince {
        current: Current,
        epoch: i32,
    },
}

impl GroupMachine {
    /// A consumer group with its members.
    ///
    /// # Errors
    /// `GROUP_ID_NOT_FOUND` with text, also for a group of another kind.
    pub fn describe_consumers(&self, id: &str) -> Result<DescribedConsumerGroup, (ErrorCode, String)> {
        let Some(group) = self.consumers.get(id) else {
            let what = if self.live.contains_key(id) { "is not a consumer group" } else { "not found" };
            return Err((ErrorCode::GroupIdNotFound, format!("Group {id} {what}.")));
        };
        let members = group.state.joined().map(|(id, data, member)| DescribedConsumer {
            member: Arc::clone(id),
            instance: data.instance.clone(),
            rack: data.rack.clone(),
            epoch: member.epoch(),
            client_id: Arc::clone(&data.client_id),
            client_host: Arc::clone(&data.client_host),
            names: Arc::clone(&data.names),
            regex: data.regex.clone(),
            assigned: by_topic(member.standing().assigned.iter().map(|owned| owned.at), &self.topics),
            target: by_topic(member.target().iter().copied(), &self.topics),
            speaks_classic: data.classic.is_some(),
        });
        Ok(DescribedConsumerGroup {
            group: Arc::clone(&group.id),
            state: group.standing().name(),
            epoch: group.state.group_epoch(),
            assignment_epoch: group.state.assignment_epoch(),
            assignor: group.assignor_name(self.clerk.consumer.assignor()),
            members: members.collect(),
        })
    }

    /// Whether one who comes as this member, in this epoch, may read the group's offsets. Without either anybody may.
    ///
    /// # Errors
    /// `UNKNOWN_MEMBER_ID`, `STALE_MEMBER_EPOCH`; `ILLEGAL_GENERATION` to one that speaks the classic protocol.
    pub fn check_offset_fetch(&self, group: &str, member: Option<&str>, epoch: i32) -> Result<(), ErrorCode> {
        let Some(group) = self.consumers.get(group) else { return Ok(()) };
        if member.is_none() && epoch < 0 {
            return Ok(());
        }
        let state = group.member(member.unwrap_or_default())?;
        if state.epoch() == epoch { Ok(()) } else { Err(wrong_epoch(state)) }
    }
}

/// Partitions by topic; those of topics that are gone are left out.
fn by_topic(partitions: impl Iterator<Item = TopicPartition>, topics: &Topics) -> Vec<DescribedTopic> {
    let mut described: Vec<DescribedTopic> = Vec::new();
    for at in partitions {
        match described.last_mut() {
            Some(last) if last.id == at.topic => last.partitions.push(at.partition.0),
            _ => {
                let Some(topic) = topics.of_id(at.topic) else { continue };
                let (id, name) = (topic.id, Arc::clone(&topic.name));
                described.push(DescribedTopic { id, name, partitions: vec![at.partition.0] });
            }
        }
    }
    described
}

fn wrong_epoch(member: &MemberState) -> ErrorCode {
    match member.metadata.as_ref().is_some_and(|data| data.classic.is_some()) {
        true => ErrorCode::IllegalGeneration,
        false => ErrorCode::StaleMemberEpoch,
    }
}

impl ConsumerGroup {
    fn member(&self, id: &str) -> Result<&MemberState, ErrorCode> {
        let member = self.state.members.get(id).filter(|member| member.metadata.is_some());
        member.ok_or(ErrorCode::UnknownMemberId)
    }

    /// Whose offsets are taken. A member may commit what it read in an earlier epoch as long as it has kept the partition since (KIP-1251).
    pub fn check_commit(&self, request: &CommitRequest) -> Result<CommitRule, ErrorCode> {
        if self.dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        if request.generation < 0 && self.is_empty() {
            return Ok(CommitRule::All);
        }
        let member = self.member(&request.member)?;
        let speaks_classic = member.metadata.as_ref().is_some_and(|data| data.classic.is_some());
        if !speaks_classic && request.version < KNOWS_MEMBER_EPOCHS_SINCE {
            return Err(ErrorCode::UnsupportedVersion);
        }
        match request.generation {
            epoch if epoch == member.epoch() => Ok(CommitRule::All),
            epoch if !speaks_classic && (0..member.epoch()).contains(&epoch) => {
                Ok(CommitRule::OwnedSince { current: member.standing(), epoch })
            }
            _ => Err(wrong_epoch(member)),
        }
    }
}

impl CommitRule {
    /// Whether this offset counts.
    pub fn allows(&self, topics: &Topics, topic: &CommitTopic, partition: i32) -> bool {
        let CommitRule::OwnedSince { current, epoch } = self else { return true };
        let id = if topic.id.is_zero() {
            topics.of_name(&topic.name).map(|topic| topic.id)
        } else {
            Some(topic.id)
        };
        let mut owned = current.assigned.iter().chain(current.revoking.iter());
        owned.any(|owned| {
            Some(owned.at.topic) == id && owned.at.partition.0 == partition && owned.since <= *epoch
        })
    }
}
