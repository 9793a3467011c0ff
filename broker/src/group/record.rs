//! The records that a group writes, as Kafka 4.4 writes them, so that its tools read them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::group::generated::group_metadata::{
    GroupMetadataKey, GroupMetadataValue, MemberMetadata,
};
use ringlog_protocol::group::generated::offset_commit::{OffsetCommitKey, OffsetCommitValue};
use ringlog_protocol::group::generated::{Key, Value};
use ringlog_protocol::group::record::{encode_key, encode_value};
use ringlog_protocol::wire::EncodeError;
use ringlog_shard::limits::MACHINE_PROPOSAL_BYTES_MAX;

use super::classic::ClassicGroup;
use super::event::MemberId;
use super::reply::KeyedRecord;

/// A group with its members and these assignments, one for each: read back, it is stable.
///
/// # Errors
/// What is too large to be written, in words.
pub(super) fn group(
    group: &ClassicGroup,
    assignments: &BTreeMap<MemberId, Bytes>,
) -> Result<KeyedRecord, String> {
    let protocol = group.protocol.as_deref().unwrap_or("");
    let subscriptions: Vec<Bytes> = group.members.iter().map(|member| member.metadata(protocol)).collect();
    let members = group.members.iter().zip(&subscriptions).map(|(member, subscription)| MemberMetadata {
        member_id: &member.id,
        group_instance_id: member.instance.as_deref(),
        client_id: &member.client_id,
        client_host: &member.client_host,
        rebalance_timeout: member.rebalance_timeout_ms,
        session_timeout: member.session_timeout_ms,
        subscription,
        assignment: assignments.get(&member.id).map_or(&[], |assignment| assignment),
    });
    let value = GroupMetadataValue {
        protocol_type: group.protocol_type.as_deref().unwrap_or(""),
        generation: group.generation,
        protocol: group.protocol.as_deref(),
        leader: group.leader.as_deref(),
        current_state_timestamp: group.since_ms.unwrap_or(-1),
        members: members.collect(),
    };
    let key = Key::GroupMetadata(GroupMetadataKey { group: &group.id });
    let record = keyed(&key, &Value::GroupMetadata(value)).map_err(|error| error.to_string())?;
    if record.bytes() > MACHINE_PROPOSAL_BYTES_MAX {
        let (bytes, count) = (record.bytes(), group.members.len());
        return Err(format!(
            "what {count} members said and were assigned is {bytes} bytes, more than the {MACHINE_PROPOSAL_BYTES_MAX} of a record"
        ));
    }
    Ok(record)
}

/// A group without members.
///
/// # Errors
/// A name that is too long to be written.
pub(super) fn empty_group(group: &ClassicGroup) -> Result<KeyedRecord, EncodeError> {
    let value = GroupMetadataValue {
        protocol_type: if group.generation == 0 { "" } else { group.protocol_type.as_deref().unwrap_or("") },
        generation: group.generation,
        protocol: None,
        leader: None,
        current_state_timestamp: group.since_ms.unwrap_or(-1),
        members: Vec::new(),
    };
    keyed(&Key::GroupMetadata(GroupMetadataKey { group: &group.id }), &Value::GroupMetadata(value))
}

/// A group is no more.
pub(super) fn group_tombstone(group: &str) -> Result<KeyedRecord, EncodeError> {
    tombstone(&Key::GroupMetadata(GroupMetadataKey { group }))
}

/// An offset counts.
pub(super) fn offset(
    group: &str,
    topic: &str,
    partition: i32,
    value: OffsetCommitValue<'_>,
) -> Result<KeyedRecord, EncodeError> {
    let key = Key::OffsetCommit(OffsetCommitKey { group, topic, partition });
    keyed(&key, &Value::OffsetCommit(value))
}

/// An offset is no more.
pub(super) fn offset_tombstone(group: &str, key: &(Arc<str>, i32)) -> Result<KeyedRecord, EncodeError> {
    tombstone(&Key::OffsetCommit(OffsetCommitKey { group, topic: &key.0, partition: key.1 }))
}

fn keyed(key: &Key<'_>, value: &Value<'_>) -> Result<KeyedRecord, EncodeError> {
    Ok(KeyedRecord { key: encode_key(key)?, value: Some(encode_value(value)?) })
}

fn tombstone(key: &Key<'_>) -> Result<KeyedRecord, EncodeError> {
    Ok(KeyedRecord { key: encode_key(key)?, value: None })
}
