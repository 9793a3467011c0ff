//! Which core owns a partition. Pure; storage never learns it, so the core count may change at every start.

use ringlog_protocol::ids::TopicPartition;

/// The core of `partition` among `core_count`: partitions of one topic go round the cores from a start that the
/// topic's id picks, so that a topic with as many partitions as cores uses each core once.
pub fn core_of(partition: TopicPartition, core_count: u32) -> u32 {
    assert!(core_count > 0, "a node has at least one core");
    let start = crc32fast::hash(&partition.topic.0);
    start.wrapping_add(partition.partition.0 as u32) % core_count
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::ids::{PartitionIndex, TopicId};

    use super::*;

    #[test]
    fn partitions_of_a_topic_use_each_core_evenly() {
        for cores in 1..=8 {
            let mut owned = vec![0; cores as usize];
            for partition in 0..cores as i32 * 3 {
                let key = TopicPartition { topic: TopicId([7; 16]), partition: PartitionIndex(partition) };
                owned[core_of(key, cores) as usize] += 1;
            }
            assert_eq!(owned, vec![3; cores as usize]);
        }
    }

    #[test]
    fn topics_start_on_different_cores() {
        let starts: std::collections::BTreeSet<u32> = (0..32)
            .map(|seed| {
                core_of(TopicPartition { topic: TopicId([seed; 16]), partition: PartitionIndex(0) }, 4)
            })
            .collect();
        assert_eq!(starts.len(), 4);
    }
}
