//! `uniform` where members want different topics: nobody's share is known beforehand. Everyone keeps what it had, free partitions go to
//! whoever has least, and then partitions move from those who have much to those who have less until nothing is gained.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use ringlog_protocol::ids::TopicPartition;

use super::{AssignmentInput, Taken, is_near};

/// Rounds over all topics in which partitions move. Each round makes it more even; a few are enough, and an end is certain.
const ROUNDS_MAX: usize = 16;

struct Spread<'a> {
    input: &'a AssignmentInput,
    /// Who wants each topic.
    subscribers: Vec<Vec<usize>>,
    /// Who has which partitions of each topic; members by place, each once.
    owned: Vec<Vec<(usize, Vec<TopicPartition>)>>,
    /// How many each member has, of all topics.
    loads: Vec<usize>,
}

pub(super) fn assign(input: &AssignmentInput) -> Vec<Vec<TopicPartition>> {
    let mut subscribers = vec![Vec::new(); input.topics.len()];
    for (index, member) in input.members.iter().enumerate() {
        for topic in member.wants.iter().filter_map(|topic| input.topic(*topic)) {
            subscribers[topic].push(index);
        }
    }
    let owned = subscribers.iter().map(|them| them.iter().map(|member| (*member, Vec::new())).collect());
    let mut spread =
        Spread { input, owned: owned.collect(), loads: vec![0; input.members.len()], subscribers };
    let mut taken = Taken::nothing(input);
    spread.keep(&mut taken);
    spread.fill(&taken);
    spread.balance();
    let mut given = vec![Vec::new(); input.members.len()];
    for (member, partitions) in spread.owned.into_iter().flatten() {
        given[member].extend(partitions);
    }
    given
}

impl Spread<'_> {
    fn give(&mut self, topic: usize, member: usize, at: TopicPartition) {
        if let Ok(place) = self.owned[topic].binary_search_by_key(&member, |(owner, _)| *owner) {
            self.owned[topic][place].1.push(at);
            self.loads[member] += 1;
        }
    }

    fn keep(&mut self, taken: &mut Taken) {
        let input = self.input;
        for (index, member) in input.members.iter().enumerate() {
            for had in member.had.iter().filter(|had| member.wants.binary_search(&had.topic).is_ok()) {
                let Some(topic) = input.topic(had.topic) else { continue };
                if taken.take(topic, &input.topics[topic], had.partition) {
                    self.give(topic, index, *had);
                }
            }
        }
    }

    /// Free partitions go to whoever has least; topics that few want first, since their partitions have the least choice.
    fn fill(&mut self, taken: &Taken) {
        let input = self.input;
        let mut order: Vec<usize> = (0..input.topics.len()).collect();
        order.sort_by_key(|topic| self.subscribers[*topic].len());
        for topic in order {
            let shape = &input.topics[topic];
            let mut least: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
            least
                .extend(self.subscribers[topic].iter().map(|member| Reverse((self.loads[*member], *member))));
            for at in taken.free(topic, shape) {
                let Some(Reverse((load, first))) = least.pop() else { break };
                let member = match self.near_with_load(topic, load, at) {
                    // The heap still has the other one: it keeps its place there, and this one's is taken over.
                    Some(near) if near != first => {
                        least.retain(|Reverse((_, member))| *member != near);
                        least.push(Reverse((load, first)));
                        near
                    }
                    _ => first,
                };
                self.give(topic, member, at);
                least.push(Reverse((load + 1, member)));
            }
        }
    }

    /// A member in a rack of the partition that has no more than this.
    fn near_with_load(&self, topic: usize, load: usize, at: TopicPartition) -> Option<usize> {
        let shape = &self.input.topics[topic];
        shape.racks.as_ref()?;
        let fitting = self.subscribers[topic].iter().copied().filter(|member| self.loads[*member] == load);
        let members = &self.input.members;
        fitting.into_iter().find(|member| is_near(&members[*member], shape, at.partition))
    }

    fn balance(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let mut moved = false;
            for topic in 0..self.input.topics.len() {
                moved |= self.balance_topic(topic);
            }
            if !moved {
                return;
            }
        }
    }

    /// Partitions of one topic move from its most loaded owner to its least loaded subscriber while that makes both more alike.
    fn balance_topic(&mut self, topic: usize) -> bool {
        let loads = &mut self.loads;
        let owned = &mut self.owned[topic];
        let least = owned.iter().map(|(member, _)| loads[*member]).min();
        let owners = owned.iter().filter(|(_, partitions)| !partitions.is_empty());
        let most = owners.map(|(member, _)| loads[*member]).max();
        if least.zip(most).is_none_or(|(least, most)| most <= least + 1) {
            return false;
        }
        let places = || owned.iter().enumerate();
        let mut takers: BTreeSet<(usize, usize)> =
            places().map(|(place, (member, _))| (loads[*member], place)).collect();
        let owners = places().filter(|(_, (_, partitions))| !partitions.is_empty());
        let mut givers: BTreeSet<(usize, usize)> =
            owners.map(|(place, (member, _))| (loads[*member], place)).collect();
        let mut moved = false;
        while let (Some((most, giver)), Some((least, taker))) =
            (givers.last().copied(), takers.first().copied())
        {
            if most <= least + 1 {
                break;
            }
            let Some(at) = owned[giver].1.pop() else { break };
            owned[taker].1.push(at);
            for (place, load, next) in [(giver, most, most - 1), (taker, least, least + 1)] {
                loads[owned[place].0] = next;
                takers.remove(&(load, place));
                takers.insert((next, place));
                givers.remove(&(load, place));
                if !owned[place].1.is_empty() {
                    givers.insert((next, place));
                }
            }
            moved = true;
        }
        moved
    }
}
