//! `range`: each topic is cut into runs of consecutive partitions, the first for the first member. Static members come first, by
//! instance, so that a restart changes nothing for anybody.

use std::cmp::Ordering;

use ringlog_protocol::ids::{PartitionIndex, TopicPartition};

use super::{AssignmentInput, Candidate};

/// What is left of a topic while members get their runs.
#[derive(Clone, Copy, Default)]
struct Cut {
    /// Members that want it and have no run yet.
    waiting: i32,
    next: i32,
}

pub(super) fn assign(input: &AssignmentInput) -> Vec<Vec<TopicPartition>> {
    let mut cuts = vec![Cut::default(); input.topics.len()];
    for topic in input.members.iter().flat_map(|member| wanted(input, member)) {
        cuts[topic].waiting += 1;
    }
    let mut order: Vec<usize> = (0..input.members.len()).collect();
    order.sort_by(|one, other| by_name(&input.members[*one], &input.members[*other]));
    let mut given = vec![Vec::new(); input.members.len()];
    for member in order {
        for topic in wanted(input, &input.members[member]) {
            let (shape, cut) = (&input.topics[topic], &mut cuts[topic]);
            let left = shape.partition_count - cut.next;
            // Rounded up: the first ones get one more where it does not come out even.
            let run = (left + cut.waiting - 1) / cut.waiting;
            let partitions = (cut.next..cut.next + run).map(PartitionIndex);
            given[member].extend(partitions.map(|partition| TopicPartition { topic: shape.id, partition }));
            *cut = Cut { waiting: cut.waiting - 1, next: cut.next + run };
        }
    }
    given
}

fn wanted(input: &AssignmentInput, member: &Candidate) -> impl Iterator<Item = usize> {
    member.wants.iter().filter_map(|topic| input.topic(*topic))
}

fn by_name(one: &Candidate, other: &Candidate) -> Ordering {
    match (&one.instance, &other.instance) {
        (Some(one), Some(other)) => one.cmp(other),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => one.id.cmp(&other.id),
    }
}
