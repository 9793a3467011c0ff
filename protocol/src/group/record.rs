//! The records of `__consumer_offsets`: a key behind two bytes of type, a value behind two bytes of version, as Kafka 4.4
//! reads and writes them, so that its tools read what is written here.
//!
//! It knows the consumer-group records; those of share and streams groups have types without a definition.

use bytes::Bytes;

use super::generated::{Key, Value};
use crate::wire::{DecodeError, EncodeError, Reader, Writer};

/// One record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'a> {
    pub key: Key<'a>,
    /// `None`: a tombstone. What the key names is no more.
    pub value: Option<Value<'a>>,
}

impl<'a> Record<'a> {
    /// Reads a record; `None` for a type without a definition, which Kafka leaves out with a warning when it loads a
    /// partition: a later version, since rolled back, may have written it. Bytes behind key and value are ignored.
    ///
    /// # Errors
    /// [`DecodeError`] for bytes that end early, and for a value of a version that does not exist: what it says is unknown
    /// and must not be passed over.
    pub fn decode(key: &'a [u8], value: Option<&'a [u8]>) -> Result<Option<Self>, DecodeError> {
        let Some(key) = decode_key(key)? else { return Ok(None) };
        let value = match value {
            Some(bytes) => decode_value(key.record_type(), bytes)?,
            None => None,
        };
        Ok(Some(Self { key, value }))
    }
}

/// The type of the record with this key, whether it has a definition or not.
///
/// # Errors
/// [`DecodeError::Truncated`] under two bytes.
pub fn record_type(key: &[u8]) -> Result<i16, DecodeError> {
    Reader::new(key).i16("Key.record_type")
}

/// Reads a key; `None` for a type without a definition.
///
/// # Errors
/// [`DecodeError`] for bytes that end early.
pub fn decode_key(bytes: &[u8]) -> Result<Option<Key<'_>>, DecodeError> {
    let mut reader = Reader::new(bytes);
    let record_type = reader.i16("Key.record_type")?;
    // Keys have one version.
    Key::decode(record_type, &mut reader, 0)
}

/// Reads the value of a record of this type; `None` for a type without a definition.
///
/// # Errors
/// [`DecodeError`] for bytes that end early and for an unknown version.
pub fn decode_value(record_type: i16, bytes: &[u8]) -> Result<Option<Value<'_>>, DecodeError> {
    let mut reader = Reader::new(bytes);
    let version = reader.i16("Value.version")?;
    Value::decode(record_type, &mut reader, version)
}

/// Writes a key, its type in front.
///
/// # Errors
/// [`EncodeError::TooLong`] for a text over 32,767 bytes.
pub fn encode_key(key: &Key<'_>) -> Result<Bytes, EncodeError> {
    let mut writer = Writer::new();
    writer.i16(key.record_type());
    key.encode(&mut writer, 0)?;
    Ok(writer.into_bytes())
}

/// Writes a value at the version that Kafka 4.4 writes ([`written_version`]), the version in front.
///
/// # Errors
/// [`EncodeError::TooLong`] for a text or bytes that the version cannot carry.
pub fn encode_value(value: &Value<'_>) -> Result<Bytes, EncodeError> {
    encode_value_at(value, written_version(value))
}

/// Writes a value at `version`, the version in front.
///
/// # Errors
/// [`EncodeError`].
pub fn encode_value_at(value: &Value<'_>, version: i16) -> Result<Bytes, EncodeError> {
    let mut writer = Writer::new();
    writer.i16(version);
    value.encode(&mut writer, version)?;
    Ok(writer.into_bytes())
}

/// The version that Kafka 4.4 writes a value in. An offset that expires by itself takes version 1, the only one that can
/// say so; there the leader epoch and the topic's id are lost, in Kafka as here.
#[must_use]
pub fn written_version(value: &Value<'_>) -> i16 {
    match value {
        Value::OffsetCommit(offset) if offset.expire_timestamp != -1 => 1,
        Value::OffsetCommit(_) => 4,
        Value::GroupMetadata(_) => 3,
        Value::LegacyOffsetCommit(_)
        | Value::ConsumerGroupMetadata(_)
        | Value::ConsumerGroupPartitionMetadata(_)
        | Value::ConsumerGroupMemberMetadata(_)
        | Value::ConsumerGroupTargetAssignmentMetadata(_)
        | Value::ConsumerGroupTargetAssignmentMember(_)
        | Value::ConsumerGroupCurrentMemberAssignment(_)
        | Value::ConsumerGroupRegularExpression(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::generated::consumer_group_member_metadata::{
        ClassicMemberMetadata, ConsumerGroupMemberMetadataValue,
    };
    use crate::group::generated::offset_commit::{OffsetCommitKey, OffsetCommitValue};
    use crate::ids::TopicId;

    fn key() -> Key<'static> {
        Key::OffsetCommit(OffsetCommitKey { group: "g", topic: "orders", partition: 7 })
    }

    fn value() -> OffsetCommitValue<'static> {
        OffsetCommitValue {
            offset: 42,
            leader_epoch: 3,
            metadata: "m",
            commit_timestamp: 1_000,
            topic_id: TopicId([9; 16]),
            ..Default::default()
        }
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let value = Value::OffsetCommit(value());
        let (key_bytes, value_bytes) =
            (encode_key(&key()).expect("short"), encode_value(&value).expect("short"));
        assert_eq!(&key_bytes[..], b"\x00\x01\x00\x01g\x00\x06orders\x00\x00\x00\x07");
        assert_eq!(&value_bytes[..2], [0, 4]);
        let record = Record { key: key(), value: Some(value) };
        assert_eq!(Record::decode(&key_bytes, Some(&value_bytes)), Ok(Some(record)));
        assert_eq!(Record::decode(&key_bytes, None), Ok(Some(Record { key: key(), value: None })));
    }

    #[test]
    fn an_offset_that_expires_by_itself_is_written_in_version_1() {
        let expiring = OffsetCommitValue { expire_timestamp: 5_000, ..value() };
        let bytes = encode_value(&Value::OffsetCommit(expiring)).expect("short");
        assert_eq!(&bytes[..2], [0, 1]);
        let kept = OffsetCommitValue { leader_epoch: -1, topic_id: TopicId::ZERO, ..expiring };
        assert_eq!(decode_value(1, &bytes), Ok(Some(Value::OffsetCommit(kept))));
    }

    #[test]
    fn a_type_without_a_definition_is_passed_over_and_an_unknown_version_is_not() {
        // 11 is a share group's, 17 a streams group's, 9 nobody's.
        for record_type in [9_i16, 11, 17, 24, -1, i16::MAX] {
            let key = [&record_type.to_be_bytes()[..], b"anything"].concat();
            assert_eq!(Record::decode(&key, Some(b"")), Ok(None));
            assert_eq!(super::record_type(&key), Ok(record_type));
        }
        let key = encode_key(&key()).expect("short");
        for version in [-1_i16, 5, i16::MAX] {
            let value = [&version.to_be_bytes()[..], &[0; 64]].concat();
            let refused = DecodeError::UnsupportedVersion { message: "OffsetCommitValue", version };
            assert_eq!(Record::decode(&key, Some(&value)), Err(refused));
        }
        assert!(matches!(Record::decode(&key, Some(&[0])), Err(DecodeError::Truncated { .. })));
        assert!(matches!(Record::decode(&[0], None), Err(DecodeError::Truncated { .. })));
    }

    /// In Kafka's schema the default is written `null` and not `"null"`, which makes it a struct of defaults. A member that
    /// was read without the tag would be one that speaks the classic protocol.
    #[test]
    fn a_member_without_the_classic_protocol_says_so() {
        let member = |classic_member_metadata| {
            Value::ConsumerGroupMemberMetadata(ConsumerGroupMemberMetadataValue {
                classic_member_metadata,
                ..Default::default()
            })
        };
        // As Kafka 4.4 writes it: one tagged field, tag 0, one byte, null.
        check_tail(&member(None), &[1, 0, 1, 0]);
        check_tail(&member(Some(ClassicMemberMetadata::default())), &[0]);
        let classic = ClassicMemberMetadata { session_timeout_ms: 6_000, ..Default::default() };
        check_tail(&member(Some(classic)), &[1, 0, 7, 1, 0, 0, 0x17, 0x70, 1, 0]);
    }

    #[track_caller]
    fn check_tail(value: &Value<'_>, tail: &[u8]) {
        let head = [0, 0, 1, 1, 1, 1, 1, 1, 0xff, 0xff, 0xff, 0xff, 1];
        let bytes = encode_value(value).expect("short");
        assert_eq!(&bytes[..], [&head, tail].concat());
        assert_eq!(decode_value(5, &bytes).as_ref(), Ok(&Some(value.clone())));
    }

    #[test]
    fn bytes_behind_key_and_value_are_ignored() {
        let value = Value::OffsetCommit(value());
        let mut key_bytes = encode_key(&key()).expect("short").to_vec();
        let mut value_bytes = encode_value(&value).expect("short").to_vec();
        key_bytes.extend(b"more");
        value_bytes.extend(b"more");
        let record = Record { key: key(), value: Some(value) };
        assert_eq!(Record::decode(&key_bytes, Some(&value_bytes)), Ok(Some(record)));
    }
}
