//! Newtypes for every identity and position that crosses a boundary, named with Kafka's words.
//!
//! They carry no behaviour beyond printing, parsing and ordering, and never validate: a negative offset read from a
//! peer stays representable so that its error can name it.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// A topic's identity, unique over deletion and re-creation under one name (KIP-516).
///
/// Printed and parsed as Kafka does: 22 characters of base64url without padding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TopicId(pub [u8; 16]);

impl TopicId {
    /// Means "none" on the wire; no topic has it.
    pub const ZERO: TopicId = TopicId([0; 16]);

    /// Whether this is [`TopicId::ZERO`].
    #[must_use]
    pub fn is_zero(self) -> bool {
        self == TopicId::ZERO
    }
}

impl fmt::Display for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 16 bytes are always 22 characters, so a stack buffer suffices and logging allocates nothing.
        let mut text = [0u8; 22];
        let written = URL_SAFE_NO_PAD
            .encode_slice(self.0, &mut text)
            .expect("16 bytes are 22 characters of base64 without padding");
        f.write_str(std::str::from_utf8(&text[..written]).expect("base64 is ASCII"))
    }
}

impl fmt::Debug for TopicId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TopicId({self})")
    }
}

/// A text that is not 22 characters of unpadded base64url.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("topic id {text:?} is not 22 characters of unpadded base64url")]
pub struct ParseTopicIdError {
    /// What was to be parsed, cut to 64 characters.
    pub text: String,
}

impl FromStr for TopicId {
    type Err = ParseTopicIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseTopicIdError { text: text.chars().take(64).collect() };
        if text.len() != 22 {
            return Err(error());
        }
        // The decoder estimates its need in whole groups of three bytes, hence 18 and not 16.
        let mut bytes = [0u8; 18];
        let length = URL_SAFE_NO_PAD.decode_slice(text, &mut bytes).map_err(|_| error())?;
        bytes[..length].try_into().map(TopicId).map_err(|_| error())
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

number!(
    /// A partition's number within its topic; valid ones start at 0.
    PartitionIndex(i32)
);
number!(
    /// The position of a record in its partition. The first record ever has offset 0.
    Offset(i64)
);
number!(
    /// The term of the leader that appended a batch (KIP-101); -1 = unknown.
    LeaderEpoch(i32)
);
number!(
    /// Names an idempotent or transactional producer (KIP-98).
    ProducerId(i64)
);
number!(
    /// Fences older holders of the same [`ProducerId`].
    ProducerEpoch(i16)
);
number!(
    /// A record's number within its producer id, epoch and partition; wraps from 2^31-1 to 0.
    Sequence(i32)
);
number!(
    /// A broker.
    NodeId(i32)
);

impl ProducerId {
    /// A batch of a producer that is not idempotent.
    pub const NONE: ProducerId = ProducerId(-1);
}

impl ProducerEpoch {
    /// A batch of a producer that is not idempotent.
    pub const NONE: ProducerEpoch = ProducerEpoch(-1);
}

impl Sequence {
    /// A batch of a producer that is not idempotent.
    pub const NONE: Sequence = Sequence(-1);
}

impl LeaderEpoch {
    /// Unknown, or not stated by the peer.
    pub const NONE: LeaderEpoch = LeaderEpoch(-1);
}

/// One partition of one topic: the key of everything in storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic, by identity: names can be taken again.
    pub topic: TopicId,
    /// The partition within it.
    pub partition: PartitionIndex,
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.topic, self.partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_id_prints_and_parses_as_kafka_does() {
        // org.apache.kafka.common.Uuid: METADATA_TOPIC_ID = (0, 1).
        let mut bytes = [0; 16];
        bytes[15] = 1;
        assert_eq!(TopicId(bytes).to_string(), "AAAAAAAAAAAAAAAAAAAAAQ");
        assert_eq!("AAAAAAAAAAAAAAAAAAAAAQ".parse(), Ok(TopicId(bytes)));
        let all_set = TopicId([0xff; 16]);
        assert_eq!(all_set.to_string(), "_____________________w");
        assert_eq!(all_set.to_string().parse(), Ok(all_set));
    }

    #[test]
    fn topic_id_refuses_other_texts() {
        for text in [
            "",
            "AAAAAAAAAAAAAAAAAAAAAQ==",
            "AAAAAAAAAAAAAAAAAAAAA",
            "AAAAAAAAAAAAAAAAAAAA+Q",
            "AAAAAAAAAAAAAAAAAAAAAé",
        ] {
            assert!(text.parse::<TopicId>().is_err(), "{text}");
        }
    }
}
