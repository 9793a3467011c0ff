//! How far a log was compacted, as its folder remembers it: the file `compaction`. Pure.
//!
//! Text, like `FORMAT`, with a checksum as its last line:
//!
//! | key | value |
//! |---|---|
//! | `version` | 1 |
//! | `topic.id`, `partition` | whose it is |
//! | `first.dirty.offset` | records below it were compacted |
//! | `compacted.end` | segments below it may have been replaced: a checkpoint that speaks of positions in them counts no more |
//! | `journal.sequence` | journal entries up to it are in segments, synced: none of them is ever written into one that was replaced |
//!
//! It holds only what can be made again. Without it the log counts as never compacted, and a start is protected from old journal
//! entries and old checkpoints by the journal's own synced-to entries and the checkpoint's own tests.

use ringlog_protocol::ids::{Offset, TopicPartition};

use crate::storage::checked_text::{check_text, with_checksum};

/// The file's name, in the partition's folder.
pub(crate) const COMPACTION_MARK: &str = "compaction";

const TITLE: &str = "ringlog compaction\n";
const VERSION: &str = "version=1";

/// What is remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompactionMark {
    /// Records below it were compacted.
    pub first_dirty: Offset,
    /// Segments that end here or before may have been replaced.
    pub compacted_end: Offset,
    /// Journal entries up to this sequence are in segments.
    pub sequence: u64,
}

impl CompactionMark {
    /// The whole file.
    #[must_use]
    pub fn encode(&self, key: TopicPartition) -> Vec<u8> {
        let CompactionMark { first_dirty, compacted_end, sequence } = self;
        with_checksum(format!(
            "{TITLE}{VERSION}\ntopic.id={}\npartition={}\nfirst.dirty.offset={}\ncompacted.end={}\n\
             journal.sequence={sequence}\n",
            key.topic, key.partition.0, first_dirty.0, compacted_end.0
        ))
    }

    /// Reads what [`CompactionMark::encode`] wrote.
    ///
    /// # Errors
    /// What is wrong with it, as text.
    pub fn decode(key: TopicPartition, bytes: &[u8]) -> Result<CompactionMark, String> {
        let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
        let body = check_text(text)?.strip_prefix(TITLE).ok_or("it has another first line")?;
        let mut lines = body.lines();
        let mut value = |name: &str| {
            let line = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix('='));
            line.ok_or_else(|| format!("`{name}` is missing"))
        };
        let number = |text: &str| text.parse::<u64>().map_err(|error| format!("`{text}`: {error}"));
        let offset = |text: &str| {
            number(text).and_then(|value| i64::try_from(value).map(Offset).map_err(|error| error.to_string()))
        };
        if value("version")? != "1" {
            return Err("this build reads version 1".to_owned());
        }
        if value("topic.id")? != key.topic.to_string() || value("partition")? != key.partition.0.to_string() {
            return Err(format!("it is not of {key}"));
        }
        Ok(CompactionMark {
            first_dirty: offset(value("first.dirty.offset")?)?,
            compacted_end: offset(value("compacted.end")?)?,
            sequence: number(value("journal.sequence")?)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::ids::{PartitionIndex, TopicId};

    use super::*;

    const MARK: CompactionMark =
        CompactionMark { first_dirty: Offset(70), compacted_end: Offset(90), sequence: 12 };

    fn key() -> TopicPartition {
        TopicPartition { topic: TopicId([0xAB; 16]), partition: PartitionIndex(3) }
    }

    #[test]
    fn golden_bytes() {
        let text = "ringlog compaction\nversion=1\ntopic.id=q6urq6urq6urq6urq6urqw\npartition=3\n\
                    first.dirty.offset=70\ncompacted.end=90\njournal.sequence=12\n";
        let bytes = MARK.encode(key());
        assert!(
            bytes.starts_with(text.as_bytes()) && bytes.len() == text.len() + "checksum=00000000\n".len()
        );
        assert_eq!(CompactionMark::decode(key(), &bytes), Ok(MARK));
    }

    #[test]
    fn what_was_changed_or_cut_or_is_of_another_partition_is_refused() {
        let bytes = MARK.encode(key());
        for at in 0..bytes.len() {
            assert!(CompactionMark::decode(key(), &bytes[..at]).is_err(), "cut at {at}");
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(CompactionMark::decode(key(), &changed).is_err(), "changed at {at}");
        }
        let other = TopicPartition { partition: PartitionIndex(4), ..key() };
        assert!(CompactionMark::decode(other, &bytes).is_err());
    }
}
