//! `uniform` where all members want the same topics: everyone's share is known beforehand, so each keeps what it had up to its share
//! and the rest goes to those who have less.

use std::collections::BTreeMap;

use ringlog_protocol::ids::TopicPartition;

use super::{AssignmentInput, Taken, is_near, partitions_of};

pub(super) fn assign(input: &AssignmentInput) -> Vec<Vec<TopicPartition>> {
    let Some(first) = input.members.first() else { return Vec::new() };
    let topics: Vec<usize> = first.wants.iter().filter_map(|topic| input.topic(*topic)).collect();
    let total: usize = topics.iter().map(|topic| partitions_of(&input.topics[*topic])).sum();
    let count = input.members.len();
    let (share, mut extra) = (total / count, total % count);
    let mut taken = Taken::nothing(input);
    let mut given = keep(input, &mut taken, share, &mut extra);
    // Whom how many are missing: first of all to everyone's share, then one more for as many as it takes.
    let mut missing: Vec<usize> = given.iter().map(|given| share.saturating_sub(given.len())).collect();
    for (missing, given) in missing.iter_mut().zip(&given) {
        if extra > 0 && given.len() <= share {
            extra -= 1;
            *missing += 1;
        }
    }
    let free: Vec<(usize, TopicPartition)> = topics
        .iter()
        .flat_map(|topic| taken.free(*topic, &input.topics[*topic]).map(|at| (*topic, at)))
        .collect();
    let rest = give_to_the_near(input, free, &mut given, &mut missing);
    give_in_turn(rest, &mut given, &mut missing);
    given
}

/// Everyone keeps what it had up to its share, and the first ones that had more keep one more.
fn keep(
    input: &AssignmentInput,
    taken: &mut Taken,
    share: usize,
    extra: &mut usize,
) -> Vec<Vec<TopicPartition>> {
    let mut given = vec![Vec::new(); input.members.len()];
    for (member, given) in input.members.iter().zip(&mut given) {
        for had in member.had.iter() {
            let full = given.len() > share || (given.len() == share && *extra == 0);
            let wanted = member.wants.binary_search(&had.topic).is_ok();
            let Some(topic) = input.topic(had.topic).filter(|_| wanted && !full) else { continue };
            if taken.take(topic, &input.topics[topic], had.partition) {
                *extra -= usize::from(given.len() == share);
                given.push(*had);
            }
        }
    }
    given
}

/// Partitions go to members in a rack of theirs, as far as racks are known and these members miss any; the rest comes back.
fn give_to_the_near(
    input: &AssignmentInput,
    free: Vec<(usize, TopicPartition)>,
    given: &mut [Vec<TopicPartition>],
    missing: &mut [usize],
) -> Vec<TopicPartition> {
    let mut by_rack: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, member) in input.members.iter().enumerate() {
        if let Some(rack) = member.rack.as_deref().filter(|_| missing[index] > 0) {
            by_rack.entry(rack).or_default().push(index);
        }
    }
    let mut rest = Vec::new();
    for (topic, at) in free {
        let shape = &input.topics[topic];
        let racks = shape.racks.as_ref().and_then(|racks| racks.get(at.partition.0.unsigned_abs() as usize));
        let near = racks.into_iter().flatten().filter_map(|rack| by_rack.get(&**rack)).flatten();
        // The one that misses most, so that a rack's partitions are spread over its members.
        let member =
            near.copied().filter(|member| missing[*member] > 0).max_by_key(|member| missing[*member]);
        match member {
            Some(member) => {
                debug_assert!(is_near(&input.members[member], shape, at.partition), "found by its rack");
                missing[member] -= 1;
                given[member].push(at);
            }
            None => rest.push(at),
        }
    }
    rest
}

/// One by one to everyone who misses any, so that a topic is spread over many.
fn give_in_turn(free: Vec<TopicPartition>, given: &mut [Vec<TopicPartition>], missing: &mut [usize]) {
    let mut turn: Vec<usize> = (0..given.len()).filter(|member| missing[*member] > 0).collect();
    let mut free = free.into_iter();
    while !turn.is_empty() {
        for member in &turn {
            let Some(at) = free.next() else { return };
            missing[*member] -= 1;
            given[*member].push(at);
        }
        turn.retain(|member| missing[*member] > 0);
    }
}
