//! The records of a consumer group, in Kafka's format: what each says as a change, and back.

use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::group::generated::consumer_group_current_member_assignment::{
    ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue, TopicPartitions,
};
use ringlog_protocol::group::generated::consumer_group_member_metadata::{
    ClassicMemberMetadata, ClassicProtocol, ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue,
};
use ringlog_protocol::group::generated::consumer_group_metadata::{
    ConsumerGroupMetadataKey, ConsumerGroupMetadataValue,
};
use ringlog_protocol::group::generated::consumer_group_regular_expression::{
    ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue,
};
use ringlog_protocol::group::generated::consumer_group_target_assignment_member::{
    ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue,
    TopicPartition as TargetTopic,
};
use ringlog_protocol::group::generated::consumer_group_target_assignment_metadata::{
    ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue,
};
use ringlog_protocol::group::generated::{Key, Value};
use ringlog_protocol::group::record::{encode_key, encode_value};
use ringlog_protocol::ids::{PartitionIndex, TopicPartition};

use super::state::{
    AssignmentEpoch, Change, ClassicMetadata, Current, GroupEpoch, MemberMetadata, Owned, Partitions,
    ResolvedRegex, Standing,
};
use crate::group::event::Protocol;
use crate::group::reply::KeyedRecord;

/// What a record of a consumer group changes, with the group's name; `None` for a record that changes nothing any more, and for one of
/// another kind.
pub(in crate::group) fn read<'a>(key: &Key<'a>, value: Option<&Value<'_>>) -> Option<(&'a str, Change)> {
    Some(match (key, value) {
        (Key::ConsumerGroupMetadata(key), None) => (key.group_id, Change::Epoch(None)),
        (Key::ConsumerGroupMetadata(key), Some(Value::ConsumerGroupMetadata(value))) => {
            let epoch = GroupEpoch { epoch: value.epoch, metadata_hash: value.metadata_hash };
            (key.group_id, Change::Epoch(Some(epoch)))
        }
        (Key::ConsumerGroupTargetAssignmentMetadata(key), None) => (key.group_id, Change::Assignment(None)),
        (
            Key::ConsumerGroupTargetAssignmentMetadata(key),
            Some(Value::ConsumerGroupTargetAssignmentMetadata(value)),
        ) => {
            let (epoch, computed_ms) = (value.assignment_epoch, value.assignment_timestamp);
            (key.group_id, Change::Assignment(Some(AssignmentEpoch { epoch, computed_ms })))
        }
        (Key::ConsumerGroupMemberMetadata(key), None) => {
            (key.group_id, Change::Metadata(key.member_id.into(), None))
        }
        (Key::ConsumerGroupMemberMetadata(key), Some(Value::ConsumerGroupMemberMetadata(value))) => {
            (key.group_id, Change::Metadata(key.member_id.into(), Some(Arc::new(metadata(value)))))
        }
        (Key::ConsumerGroupTargetAssignmentMember(key), None) => {
            (key.group_id, Change::Target(key.member_id.into(), None))
        }
        (
            Key::ConsumerGroupTargetAssignmentMember(key),
            Some(Value::ConsumerGroupTargetAssignmentMember(value)),
        ) => (key.group_id, Change::Target(key.member_id.into(), Some(target(value)))),
        (Key::ConsumerGroupCurrentMemberAssignment(key), None) => {
            (key.group_id, Change::Current(key.member_id.into(), None))
        }
        (
            Key::ConsumerGroupCurrentMemberAssignment(key),
            Some(Value::ConsumerGroupCurrentMemberAssignment(value)),
        ) => (key.group_id, Change::Current(key.member_id.into(), Some(Arc::new(current(value))))),
        (Key::ConsumerGroupRegularExpression(key), None) => {
            (key.group_id, Change::Regex(key.regular_expression.into(), None))
        }
        (Key::ConsumerGroupRegularExpression(key), Some(Value::ConsumerGroupRegularExpression(value))) => {
            let resolved = ResolvedRegex {
                topics: value.topics.iter().map(|topic| Arc::from(*topic)).collect(),
                version: value.version,
                resolved_ms: value.timestamp,
            };
            (key.group_id, Change::Regex(key.regular_expression.into(), Some(Arc::new(resolved))))
        }
        _ => return None,
    })
}

fn metadata(value: &ConsumerGroupMemberMetadataValue<'_>) -> MemberMetadata {
    let text = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(Arc::from);
    let mut names: Vec<Arc<str>> = value.subscribed_topic_names.iter().map(|name| Arc::from(*name)).collect();
    names.sort_unstable();
    names.dedup();
    let classic = value.classic_member_metadata.as_ref().map(|classic| {
        let protocols = classic.supported_protocols.iter().map(|protocol| Protocol {
            name: protocol.name.into(),
            metadata: Bytes::copy_from_slice(protocol.metadata),
        });
        let protocols = protocols.collect();
        Box::new(ClassicMetadata { session_timeout_ms: classic.session_timeout_ms, protocols })
    });
    MemberMetadata {
        instance: text(value.instance_id),
        rack: text(value.rack_id),
        client_id: value.client_id.into(),
        client_host: value.client_host.into(),
        names: names.into(),
        regex: text(value.subscribed_topic_regex),
        rebalance_timeout_ms: value.rebalance_timeout_ms,
        assignor: text(value.server_assignor),
        classic,
    }
}

fn target(value: &ConsumerGroupTargetAssignmentMemberValue<'_>) -> Partitions {
    let all = value.topic_partitions.iter().flat_map(|topic| {
        let id = topic.topic_id;
        topic
            .partitions
            .iter()
            .map(move |index| TopicPartition { topic: id, partition: PartitionIndex(index) })
    });
    let mut all: Vec<TopicPartition> = all.collect();
    all.sort_unstable();
    all.dedup();
    all.into()
}

fn current(value: &ConsumerGroupCurrentMemberAssignmentValue<'_>) -> Current {
    let standing = match value.state {
        0 => Standing::Stable,
        1 => Standing::Unrevoked,
        2 => Standing::Unreleased,
        _ => Standing::Unknown,
    };
    Current {
        epoch: value.member_epoch,
        previous_epoch: value.previous_member_epoch,
        standing,
        assigned: owned(&value.assigned_partitions, value.member_epoch),
        revoking: owned(&value.partitions_pending_revocation, value.member_epoch),
    }
}

/// Where no epochs are told, the member's own is taken.
fn owned(topics: &[TopicPartitions<'_>], member_epoch: i32) -> Arc<[Owned]> {
    let mut all = Vec::new();
    for topic in topics {
        let epochs = topic.assignment_epochs.iter().flat_map(|epochs| epochs.iter());
        let epochs = epochs.chain(std::iter::repeat(member_epoch));
        all.extend(topic.partitions.iter().zip(epochs).map(|(index, since)| Owned {
            at: TopicPartition { topic: topic.topic_id, partition: PartitionIndex(index) },
            since,
        }));
    }
    all.sort_unstable();
    all.dedup_by_key(|owned| owned.at);
    all.into()
}

/// The record that says this of a group.
pub(in crate::group) fn write(group: &str, change: &Change) -> KeyedRecord {
    let (key, value) = match change {
        Change::Epoch(epoch) => epoch_record(group, *epoch),
        Change::Assignment(assignment) => assignment_record(group, *assignment),
        Change::Metadata(member, metadata) => metadata_record(group, member, metadata.as_deref()),
        Change::Target(member, target) => target_record(group, member, target.as_deref()),
        Change::Current(member, current) => current_record(group, member, current.as_deref()),
        Change::Regex(text, resolved) => regex_record(group, text, resolved.as_deref()),
    };
    let value = value.map(|value| encode_value(&value).expect("texts are bounded when they come in"));
    KeyedRecord { key: encode_key(&key).expect("names are bounded when they come in"), value }
}

type Parts<'a> = (Key<'a>, Option<Value<'a>>);

fn epoch_record(group: &str, epoch: Option<GroupEpoch>) -> Parts<'_> {
    let value =
        epoch.map(|GroupEpoch { epoch, metadata_hash }| ConsumerGroupMetadataValue { epoch, metadata_hash });
    let key = ConsumerGroupMetadataKey { group_id: group };
    (Key::ConsumerGroupMetadata(key), value.map(Value::ConsumerGroupMetadata))
}

fn assignment_record(group: &str, assignment: Option<AssignmentEpoch>) -> Parts<'_> {
    let value = assignment.map(|assignment| ConsumerGroupTargetAssignmentMetadataValue {
        assignment_epoch: assignment.epoch,
        assignment_timestamp: assignment.computed_ms,
    });
    let key = ConsumerGroupTargetAssignmentMetadataKey { group_id: group };
    (Key::ConsumerGroupTargetAssignmentMetadata(key), value.map(Value::ConsumerGroupTargetAssignmentMetadata))
}

fn metadata_record<'a>(group: &'a str, member: &'a str, data: Option<&'a MemberMetadata>) -> Parts<'a> {
    let key = ConsumerGroupMemberMetadataKey { group_id: group, member_id: member };
    let value = data.map(|data| ConsumerGroupMemberMetadataValue {
        instance_id: data.instance.as_deref(),
        rack_id: data.rack.as_deref(),
        client_id: &data.client_id,
        client_host: &data.client_host,
        subscribed_topic_names: data.names.iter().map(|name| &**name).collect(),
        subscribed_topic_regex: data.regex.as_deref(),
        rebalance_timeout_ms: data.rebalance_timeout_ms,
        server_assignor: data.assignor.as_deref(),
        classic_member_metadata: data.classic.as_ref().map(|classic| {
            let protocols = classic.protocols.iter();
            let protocols =
                protocols.map(|p| ClassicProtocol { name: &p.name, metadata: &p.metadata }).collect();
            ClassicMemberMetadata {
                session_timeout_ms: classic.session_timeout_ms,
                supported_protocols: protocols,
            }
        }),
    });
    (Key::ConsumerGroupMemberMetadata(key), value.map(Value::ConsumerGroupMemberMetadata))
}

fn target_record<'a>(group: &'a str, member: &'a str, target: Option<&'a [TopicPartition]>) -> Parts<'a> {
    let key = ConsumerGroupTargetAssignmentMemberKey { group_id: group, member_id: member };
    let value = target.map(|target| {
        let topics = target.chunk_by(|one, next| one.topic == next.topic).map(|topic| TargetTopic {
            topic_id: topic.first().map(|at| at.topic).unwrap_or_default(),
            partitions: topic.iter().map(|at| at.partition.0).collect(),
        });
        ConsumerGroupTargetAssignmentMemberValue { topic_partitions: topics.collect() }
    });
    (Key::ConsumerGroupTargetAssignmentMember(key), value.map(Value::ConsumerGroupTargetAssignmentMember))
}

fn current_record<'a>(group: &'a str, member: &'a str, current: Option<&'a Current>) -> Parts<'a> {
    let key = ConsumerGroupCurrentMemberAssignmentKey { group_id: group, member_id: member };
    let value = current.map(|current| ConsumerGroupCurrentMemberAssignmentValue {
        member_epoch: current.epoch,
        previous_member_epoch: current.previous_epoch,
        state: match current.standing {
            Standing::Stable => 0,
            Standing::Unrevoked => 1,
            Standing::Unreleased => 2,
            Standing::Unknown => 127,
        },
        assigned_partitions: owned_topics(&current.assigned),
        partitions_pending_revocation: owned_topics(&current.revoking),
    });
    (Key::ConsumerGroupCurrentMemberAssignment(key), value.map(Value::ConsumerGroupCurrentMemberAssignment))
}

fn owned_topics(owned: &[Owned]) -> Vec<TopicPartitions<'_>> {
    let topics = owned.chunk_by(|one, next| one.at.topic == next.at.topic).map(|topic| TopicPartitions {
        topic_id: topic.first().map(|owned| owned.at.topic).unwrap_or_default(),
        partitions: topic.iter().map(|owned| owned.at.partition.0).collect(),
        assignment_epochs: Some(topic.iter().map(|owned| owned.since).collect()),
    });
    topics.collect()
}

fn regex_record<'a>(group: &'a str, text: &'a str, resolved: Option<&'a ResolvedRegex>) -> Parts<'a> {
    let key = ConsumerGroupRegularExpressionKey { group_id: group, regular_expression: text };
    let value = resolved.map(|resolved| ConsumerGroupRegularExpressionValue {
        topics: resolved.topics.iter().map(|name| &**name).collect(),
        version: resolved.version,
        timestamp: resolved.resolved_ms,
    });
    (Key::ConsumerGroupRegularExpression(key), value.map(Value::ConsumerGroupRegularExpression))
}
