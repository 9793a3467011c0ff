//! What is durable of groups: the newest record of each and the offsets. Only [`Durable::replay`] changes it, here and on each
//! replica: the same records in the same order give the same state.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::group::generated::group_metadata::GroupMetadataValue;
use ringlog_protocol::group::generated::legacy_offset_commit::LegacyOffsetCommitValue;
use ringlog_protocol::group::generated::offset_commit::OffsetCommitValue;
use ringlog_protocol::group::generated::{Key, Value};
use ringlog_protocol::group::record::Record;
use ringlog_protocol::ids::TopicId;
use ringlog_protocol::wire::DecodeError;

use super::consumer::{self, ConsumerState, DurableConsumers};
use super::event::{GroupId, MemberId};

/// What an offset weighs beside its texts: the struct and its map entry.
const OFFSET_BYTES: usize = 128;

/// A group as its newest record has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupRecord {
    /// `None`: it never had members.
    pub protocol_type: Option<Arc<str>>,
    pub generation: i32,
    pub protocol: Option<Arc<str>>,
    pub leader: Option<MemberId>,
    /// Milliseconds since the Unix epoch; `None`: unknown.
    pub since_ms: Option<i64>,
    pub members: BTreeMap<MemberId, MemberRecord>,
}

/// A member as the record has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberRecord {
    pub instance: Option<Arc<str>>,
    pub client_id: Arc<str>,
    pub client_host: Arc<str>,
    pub rebalance_timeout_ms: i32,
    pub session_timeout_ms: i32,
    pub subscription: Bytes,
    pub assignment: Bytes,
}

/// An offset that a group committed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommittedOffset {
    /// Of the next record to consume.
    pub offset: i64,
    /// -1: unknown.
    pub leader_epoch: i32,
    pub metadata: Arc<str>,
    /// Milliseconds since the Unix epoch.
    pub commit_ms: i64,
    /// Milliseconds since the Unix epoch; `None`: by the broker's setting.
    pub expire_ms: Option<i64>,
    /// [`TopicId::ZERO`]: unknown.
    pub topic_id: TopicId,
}

/// A group's offsets by topic and partition.
pub type GroupOffsets = BTreeMap<Arc<str>, BTreeMap<i32, CommittedOffset>>;

/// See the module.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Durable {
    groups: BTreeMap<GroupId, GroupRecord>,
    consumers: DurableConsumers,
    offsets: BTreeMap<GroupId, GroupOffsets>,
    /// Memory of all this, estimated.
    bytes: usize,
}

/// A record that cannot be taken in.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GroupReplayError {
    #[error("a record of groups is damaged: {0}")]
    Record(#[from] DecodeError),
    /// Written by a later version, or by Kafka.
    #[error("a record of type {record_type} is of a kind of group that is not served")]
    NotServed { record_type: i16 },
}

impl Durable {
    /// The newest record of each classic group. A group of which only offsets are known is not among them.
    pub fn groups(&self) -> &BTreeMap<GroupId, GroupRecord> {
        &self.groups
    }

    /// What the records of each consumer group say.
    pub fn consumers(&self) -> &BTreeMap<GroupId, ConsumerState> {
        self.consumers.groups()
    }

    /// The offsets of each group that has any.
    pub fn offsets(&self) -> &BTreeMap<GroupId, GroupOffsets> {
        &self.offsets
    }

    /// Memory, estimated.
    pub fn bytes(&self) -> usize {
        self.bytes + self.consumers.bytes()
    }

    pub(super) fn offset(&self, group: &str, topic: &str, partition: i32) -> Option<&CommittedOffset> {
        self.offsets.get(group)?.get(topic)?.get(&partition)
    }

    /// Takes a committed record in. A type without a definition is passed over, as Kafka does.
    ///
    /// # Errors
    /// See [`GroupReplayError`].
    pub fn replay(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), GroupReplayError> {
        self.replay_beside(key, value, |_| None)
    }

    /// The same, with consumer groups as they are led: what both say alike is kept once.
    ///
    /// # Errors
    /// See [`GroupReplayError`].
    pub(super) fn replay_beside<'live>(
        &mut self,
        key: &[u8],
        value: Option<&[u8]>,
        live: impl FnOnce(&str) -> Option<(&'live GroupId, &'live ConsumerState)>,
    ) -> Result<(), GroupReplayError> {
        let Some(record) = Record::decode(key, value)? else { return Ok(()) };
        let record_type = record.key.record_type();
        if let Some((group, change)) = consumer::read(&record.key, record.value.as_ref()) {
            self.consumers.apply(group, change, live(group));
            return Ok(());
        }
        match (record.key, record.value) {
            // What Kafka before 4.1 wrote of a group's topics: the hash in the group's epoch took its place.
            (Key::ConsumerGroupPartitionMetadata(_), _) => {}
            (Key::GroupMetadata(key), None) => self.remove_group(key.group),
            (Key::GroupMetadata(key), Some(Value::GroupMetadata(value))) => self.put_group(key.group, &value),
            (Key::OffsetCommit(key), None) => self.remove_offset(key.group, key.topic, key.partition),
            (Key::LegacyOffsetCommit(key), None) => self.remove_offset(key.group, key.topic, key.partition),
            (Key::OffsetCommit(key), Some(Value::OffsetCommit(value))) => {
                self.put_offset(key.group, key.topic, key.partition, committed(&value))
            }
            (Key::LegacyOffsetCommit(key), Some(Value::LegacyOffsetCommit(value))) => {
                self.put_offset(key.group, key.topic, key.partition, legacy(&value))
            }
            _ => return Err(GroupReplayError::NotServed { record_type }),
        }
        Ok(())
    }

    fn put_group(&mut self, id: &str, value: &GroupMetadataValue<'_>) {
        let record = GroupRecord::from(value);
        self.bytes += record.bytes(id);
        if let Some(old) = self.groups.insert(id.into(), record) {
            self.bytes -= old.bytes(id);
        }
    }

    fn remove_group(&mut self, id: &str) {
        if let Some(old) = self.groups.remove(id) {
            self.bytes -= old.bytes(id);
        }
    }

    fn put_offset(&mut self, group: &str, topic: &str, partition: i32, offset: CommittedOffset) {
        self.bytes += offset.bytes();
        // Texts are kept once for a group, not once for each offset.
        let topics = match self.offsets.get_mut(group) {
            Some(topics) => topics,
            None => self.offsets.entry(group.into()).or_default(),
        };
        let partitions = match topics.get_mut(topic) {
            Some(partitions) => partitions,
            None => {
                self.bytes += topic.len();
                topics.entry(topic.into()).or_default()
            }
        };
        if let Some(old) = partitions.insert(partition, offset) {
            self.bytes -= old.bytes();
        }
    }

    fn remove_offset(&mut self, group: &str, topic: &str, partition: i32) {
        let Some(topics) = self.offsets.get_mut(group) else { return };
        let Some(partitions) = topics.get_mut(topic) else { return };
        if let Some(old) = partitions.remove(&partition) {
            self.bytes -= old.bytes();
        }
        if partitions.is_empty() {
            topics.remove(topic);
            self.bytes -= topic.len();
        }
        if topics.is_empty() {
            self.offsets.remove(group);
        }
    }
}

impl GroupRecord {
    /// Memory, estimated: as much again as the group takes while it is led.
    fn bytes(&self, id: &str) -> usize {
        let members = self.members.iter().map(|(member, record)| {
            OFFSET_BYTES
                + member.len()
                + record.client_id.len()
                + record.client_host.len()
                + record.subscription.len()
                + record.assignment.len()
        });
        OFFSET_BYTES + id.len() + members.sum::<usize>()
    }
}

impl From<&GroupMetadataValue<'_>> for GroupRecord {
    fn from(value: &GroupMetadataValue<'_>) -> GroupRecord {
        let members = value.members.iter().map(|member| {
            let session_timeout_ms = member.session_timeout;
            let unset = member.rebalance_timeout == -1;
            let record = MemberRecord {
                instance: member.group_instance_id.map(Arc::from),
                client_id: member.client_id.into(),
                client_host: member.client_host.into(),
                rebalance_timeout_ms: if unset { session_timeout_ms } else { member.rebalance_timeout },
                session_timeout_ms,
                subscription: Bytes::copy_from_slice(member.subscription),
                assignment: Bytes::copy_from_slice(member.assignment),
            };
            (MemberId::from(member.member_id), record)
        });
        let members: BTreeMap<_, _> = members.collect();
        let first = members.keys().next().cloned();
        let leader = value.leader.map(MemberId::from).filter(|leader| members.contains_key(leader)).or(first);
        GroupRecord {
            protocol_type: Some(value.protocol_type).filter(|text| !text.is_empty()).map(Arc::from),
            generation: value.generation,
            protocol: value.protocol.map(Arc::from),
            leader,
            since_ms: Some(value.current_state_timestamp).filter(|since_ms| *since_ms != -1),
            members,
        }
    }
}

impl CommittedOffset {
    fn bytes(&self) -> usize {
        OFFSET_BYTES + self.metadata.len()
    }
}

fn committed(value: &OffsetCommitValue<'_>) -> CommittedOffset {
    CommittedOffset {
        offset: value.offset,
        leader_epoch: value.leader_epoch,
        metadata: value.metadata.into(),
        commit_ms: value.commit_timestamp,
        expire_ms: Some(value.expire_timestamp).filter(|expire_ms| *expire_ms != -1),
        topic_id: value.topic_id,
    }
}

/// As Kafka wrote it before 0.9.
fn legacy(value: &LegacyOffsetCommitValue<'_>) -> CommittedOffset {
    CommittedOffset {
        offset: value.offset,
        leader_epoch: -1,
        metadata: value.metadata.into(),
        commit_ms: value.commit_timestamp,
        expire_ms: None,
        topic_id: TopicId::ZERO,
    }
}
