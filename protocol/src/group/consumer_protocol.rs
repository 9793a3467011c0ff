//! The embedded consumer protocol: what the members of a classic group of type `consumer` tell each other in the metadata of
//! JoinGroup and the assignment of SyncGroup, behind two bytes of version.
//!
//! To the broker these bytes are opaque; it reads them to know what a group is subscribed to and to convert groups. As
//! Kafka's `ConsumerProtocol`, it reads a version above the highest it knows as that one, and ignores bytes behind the end:
//! every version begins with the one before.

use bytes::Bytes;

use super::generated::consumer_protocol_assignment::ConsumerProtocolAssignment;
use super::generated::consumer_protocol_subscription::ConsumerProtocolSubscription;
use crate::api::VersionRange;
use crate::wire::{DecodeError, EncodeError, Reader, Writer};

/// The type of groups whose metadata and assignments are of this protocol.
pub const PROTOCOL_TYPE: &str = "consumer";

/// The two bytes in front, brought down to a version that is known.
fn version(reader: &mut Reader<'_>, message: &'static str, known: VersionRange) -> Result<i16, DecodeError> {
    let version = reader.i16(message)?;
    if version < known.min {
        return Err(DecodeError::UnsupportedVersion { message, version });
    }
    Ok(version.min(known.max))
}

/// Reads the metadata of a member.
///
/// # Errors
/// [`DecodeError`] for a negative version and for bytes that end early.
pub fn decode_subscription(bytes: &[u8]) -> Result<ConsumerProtocolSubscription<'_>, DecodeError> {
    let mut reader = Reader::new(bytes);
    let known = ConsumerProtocolSubscription::VERSIONS;
    let version = version(&mut reader, "ConsumerProtocolSubscription", known)?;
    ConsumerProtocolSubscription::decode(&mut reader, version)
}

/// Reads the assignment of a member.
///
/// # Errors
/// [`DecodeError`] for a negative version and for bytes that end early, as a member's assignment does before it has one:
/// it is then empty.
pub fn decode_assignment(bytes: &[u8]) -> Result<ConsumerProtocolAssignment<'_>, DecodeError> {
    let mut reader = Reader::new(bytes);
    let known = ConsumerProtocolAssignment::VERSIONS;
    let version = version(&mut reader, "ConsumerProtocolAssignment", known)?;
    ConsumerProtocolAssignment::decode(&mut reader, version)
}

/// The topics that a member's metadata names, whatever its version: all versions begin with version 0. Kafka's broker
/// reads no more to tell whether a group is subscribed to a topic, so that a broken tail does not hide the topics.
///
/// # Errors
/// [`DecodeError`] for bytes that end early.
pub fn subscribed_topics(bytes: &[u8]) -> Result<Vec<&str>, DecodeError> {
    let mut reader = Reader::new(bytes);
    let _version = reader.i16("ConsumerProtocolSubscription")?;
    ConsumerProtocolSubscription::decode(&mut reader, 0).map(|subscription| subscription.topics)
}

/// Writes the metadata of a member, the version in front.
///
/// # Errors
/// [`EncodeError`] for an unknown version and for a text that is too long.
pub fn encode_subscription(
    subscription: &ConsumerProtocolSubscription<'_>,
    version: i16,
) -> Result<Bytes, EncodeError> {
    let mut writer = Writer::new();
    writer.i16(version);
    subscription.encode(&mut writer, version)?;
    Ok(writer.into_bytes())
}

/// Writes the assignment of a member, the version in front.
///
/// # Errors
/// [`EncodeError`] for an unknown version and for a text that is too long.
pub fn encode_assignment(
    assignment: &ConsumerProtocolAssignment<'_>,
    version: i16,
) -> Result<Bytes, EncodeError> {
    let mut writer = Writer::new();
    writer.i16(version);
    assignment.encode(&mut writer, version)?;
    Ok(writer.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subscription() -> ConsumerProtocolSubscription<'static> {
        ConsumerProtocolSubscription {
            topics: vec!["orders", "users"],
            rack_id: Some("a"),
            ..Default::default()
        }
    }

    #[test]
    fn a_version_above_the_highest_known_is_read_as_that_one() {
        let mut bytes = encode_subscription(&subscription(), 3).expect("known").to_vec();
        bytes[..2].copy_from_slice(&[0x7f, 0xff]);
        bytes.extend(b"fields of later versions");
        assert_eq!(decode_subscription(&bytes), Ok(subscription()));

        let assignment = ConsumerProtocolAssignment { user_data: Some(b"sticky"), ..Default::default() };
        let mut bytes = encode_assignment(&assignment, 0).expect("known").to_vec();
        bytes[..2].copy_from_slice(&[0, 9]);
        bytes.extend(b"fields of later versions");
        assert_eq!(decode_assignment(&bytes), Ok(assignment));
    }

    #[test]
    fn a_negative_version_is_refused() {
        let mut bytes = encode_subscription(&subscription(), 0).expect("known").to_vec();
        bytes[..2].copy_from_slice(&[0xff, 0xff]);
        let refused = |message| DecodeError::UnsupportedVersion { message, version: -1 };
        assert_eq!(decode_subscription(&bytes), Err(refused("ConsumerProtocolSubscription")));
        assert_eq!(decode_assignment(&bytes), Err(refused("ConsumerProtocolAssignment")));
    }

    #[test]
    fn a_broken_tail_does_not_hide_the_topics() {
        let bytes = encode_subscription(&subscription(), 3).expect("known");
        // Some clients have written version 1 without the owned partitions that it promises.
        let cut = &bytes[..bytes.len() - 11];
        assert!(matches!(decode_subscription(cut), Err(DecodeError::Truncated { .. })));
        assert_eq!(subscribed_topics(cut), Ok(vec!["orders", "users"]));
        assert!(subscribed_topics(&bytes[..8]).is_err());
    }

    #[test]
    fn no_bytes_are_no_assignment() {
        assert!(matches!(decode_assignment(b""), Err(DecodeError::Truncated { .. })));
        assert!(encode_assignment(&ConsumerProtocolAssignment::default(), 4).is_err());
    }
}
