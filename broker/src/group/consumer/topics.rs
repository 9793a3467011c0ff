//! The topics of the cluster as far as groups look at them: a value that the host derives from its metadata image and hands to the
//! machine whole. Owns the hashes over them, which are Kafka's, so that a group's record says whether its topics changed since.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringlog_protocol::ids::{TopicId, TopicPartition};
use twox_hash::XxHash3_64;

/// In front of what is hashed of a topic: tells this way of hashing from later ones.
const TOPIC_HASH_MAGIC: u8 = 0;

/// One topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicFacts {
    pub name: Arc<str>,
    pub id: TopicId,
    /// 1 or more.
    pub partition_count: i32,
    /// The racks of the replicas of each partition, sorted; `None` where no rack is known.
    pub racks: Option<Arc<[Vec<Arc<str>>]>>,
    hash: i64,
}

/// All topics.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Topics {
    version: i64,
    by_name: BTreeMap<Arc<str>, Arc<TopicFacts>>,
    by_id: BTreeMap<TopicId, Arc<TopicFacts>>,
}

impl TopicFacts {
    pub fn new(
        name: Arc<str>,
        id: TopicId,
        partition_count: i32,
        racks: Option<Arc<[Vec<Arc<str>>]>>,
    ) -> TopicFacts {
        let mut bytes = vec![TOPIC_HASH_MAGIC];
        // The two halves of the id as Java's longs, low byte first.
        let (high, low) = id.0.split_at(8);
        bytes.extend(high.iter().rev().chain(low.iter().rev()));
        put_text(&mut bytes, &name);
        bytes.extend(partition_count.to_le_bytes());
        for partition in 0..partition_count {
            bytes.extend(partition.to_le_bytes());
            let index = partition.unsigned_abs() as usize;
            let racks = racks.as_ref().and_then(|racks| racks.get(index)).map_or(&[][..], Vec::as_slice);
            bytes.extend(count(racks.len()));
            racks.iter().for_each(|rack| put_text(&mut bytes, rack));
        }
        let hash = XxHash3_64::oneshot(&bytes).cast_signed();
        TopicFacts { name, id, partition_count, racks, hash }
    }
}

impl Topics {
    /// `version` grows with the metadata, such as its offset; 1 or more.
    pub fn new(version: i64, topics: impl IntoIterator<Item = Arc<TopicFacts>>) -> Topics {
        let by_name: BTreeMap<_, _> =
            topics.into_iter().map(|topic| (Arc::clone(&topic.name), topic)).collect();
        let by_id = by_name.values().map(|topic| (topic.id, Arc::clone(topic))).collect();
        Topics { version, by_name, by_id }
    }

    /// 0: nothing is known yet.
    pub fn version(&self) -> i64 {
        self.version
    }

    /// The topic of this name.
    pub fn of_name(&self, name: &str) -> Option<&Arc<TopicFacts>> {
        self.by_name.get(name)
    }

    /// The topic of this id.
    pub fn of_id(&self, id: TopicId) -> Option<&Arc<TopicFacts>> {
        self.by_id.get(&id)
    }

    /// Whether there is this partition.
    pub fn has(&self, at: TopicPartition) -> bool {
        self.of_id(at.topic).is_some_and(|topic| (0..topic.partition_count).contains(&at.partition.0))
    }

    /// All topics, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<TopicFacts>> {
        self.by_name.values()
    }

    /// Over those of these topics that exist; 0 where none does.
    pub(in crate::group) fn hash<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> i64 {
        let mut bytes = Vec::new();
        for topic in names.into_iter().filter_map(|name| self.by_name.get(name)) {
            put_text(&mut bytes, &topic.name);
            bytes.extend(topic.hash.to_le_bytes());
        }
        if bytes.is_empty() { 0 } else { XxHash3_64::oneshot(&bytes).cast_signed() }
    }
}

/// UTF-16 as in Java's memory, and how much of it.
fn put_text(bytes: &mut Vec<u8>, text: &str) {
    let begin = bytes.len();
    bytes.extend(text.encode_utf16().flat_map(u16::to_le_bytes));
    bytes.extend(count((bytes.len() - begin) / 2));
}

fn count(count: usize) -> [u8; 4] {
    i32::try_from(count).unwrap_or(i32::MAX).to_le_bytes()
}
