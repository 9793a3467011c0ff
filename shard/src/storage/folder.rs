//! Names below the data directory: `data/<topic id>/<partition>/<base offset>.log`. Pure; makes and reads no file.
//!
//! The layout does not know the core count. Names that are not of this form are left alone by everyone.

use std::path::{Path, PathBuf};

use ringlog_protocol::ids::{Offset, PartitionIndex, TopicId, TopicPartition};

/// A partition's folder that no metadata claims gets this suffix; it is never deleted.
pub const STRAY_SUFFIX: &str = ".stray";

/// In a partition's folder: acknowledged bytes are missing, and why. Removing it lets the next start judge anew, by what the
/// journal still says was acknowledged: what is whole again takes writes, anything else is found damaged again.
pub const DAMAGE_MARKER: &str = "DAMAGED";

/// A segment that is written anew has this behind its name until it takes the name.
pub(crate) const REWRITE_SUFFIX: &str = ".rewrite";

const SEGMENT_SUFFIX: &str = ".log";
const OFFSET_DIGITS: usize = 20;

/// Folder of a topic.
#[must_use]
pub fn topic_folder(data: &Path, topic: TopicId) -> PathBuf {
    data.join(topic.to_string())
}

/// Folder of a partition.
#[must_use]
pub fn partition_folder(data: &Path, key: TopicPartition) -> PathBuf {
    let mut folder = topic_folder(data, key.topic);
    folder.push(key.partition.0.to_string());
    folder
}

/// Name of a segment file, Kafka's: the base offset in twenty digits.
#[must_use]
pub fn segment_name(base: Offset) -> String {
    format!("{:020}{SEGMENT_SUFFIX}", base.0)
}

/// The sidecar of a segment: the same name with `.sum`.
#[must_use]
pub fn sidecar_path(segment: &Path) -> PathBuf {
    segment.with_extension("sum")
}

/// The base offset that a segment's name states, if it is one.
#[must_use]
pub fn parse_segment_name(name: &str) -> Option<Offset> {
    let digits = name.strip_suffix(SEGMENT_SUFFIX)?;
    if digits.len() != OFFSET_DIGITS || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().map(Offset)
}

/// The partition that a folder's name states, if it is one.
#[must_use]
pub fn parse_partition_name(name: &str) -> Option<PartitionIndex> {
    let partition: i32 = name.parse().ok()?;
    // One spelling only: "+1" and "01" are not ours.
    (partition >= 0 && partition.to_string() == name).then_some(PartitionIndex(partition))
}

/// The topic that a folder's name states, if it is one.
#[must_use]
pub fn parse_topic_name(name: &str) -> Option<TopicId> {
    name.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_and_others_do_not() {
        assert_eq!(segment_name(Offset(170)), "00000000000000000170.log");
        for base in [0, 1, i64::MAX] {
            assert_eq!(parse_segment_name(&segment_name(Offset(base))), Some(Offset(base)));
        }
        let strange = [
            "",
            ".log",
            "170.log",
            "0000000000000000017x.log",
            "00000000000000000170.index",
            "99999999999999999999.log",
        ];
        for name in strange {
            assert_eq!(parse_segment_name(name), None, "{name}");
        }
        assert_eq!(parse_partition_name("12"), Some(PartitionIndex(12)));
        for name in ["", "-1", "+1", "01", "1.stray", "x"] {
            assert_eq!(parse_partition_name(name), None, "{name}");
        }
        let topic = TopicId([0xFB; 16]);
        assert_eq!(parse_topic_name(&topic.to_string()), Some(topic));
        assert_eq!(parse_topic_name("lost+found"), None);
    }
}
