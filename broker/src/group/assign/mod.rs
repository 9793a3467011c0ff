//! How the partitions of topics are shared out among the members of a consumer group (KIP-848): pure functions over a value, so that
//! they run off the core. Owns the assignors `uniform` and `range`; knows nothing of epochs and of who holds what right now.
//!
//! Both give each partition of a topic to exactly one of the members that want the topic, and to nobody where nobody does.

mod range;
mod spread;
mod uniform;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use ringlog_protocol::ids::{PartitionIndex, TopicId, TopicPartition};

use super::event::MemberId;

/// The ways to share out, as members name them. The first is the one where nobody names any.
pub const ASSIGNORS: [Assignor; 2] = [Assignor::Uniform, Assignor::Range];

/// A way to share out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Assignor {
    /// Everyone gets as many as the others, and keeps what it has as far as that allows.
    #[default]
    Uniform,
    /// Everyone gets a run of consecutive partitions of each topic, in the order of members' names, so that topics with as many
    /// partitions are shared out alike.
    Range,
}

impl Assignor {
    /// As members name it.
    pub fn name(self) -> &'static str {
        match self {
            Assignor::Uniform => "uniform",
            Assignor::Range => "range",
        }
    }

    /// The one of this name.
    pub fn of_name(name: &str) -> Option<Assignor> {
        ASSIGNORS.into_iter().find(|assignor| assignor.name() == name)
    }
}

/// What is shared out among whom.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct AssignmentInput {
    pub assignor: Assignor,
    /// By name, each once.
    pub members: Vec<Candidate>,
    /// By id, each once; the topics that members want and that exist.
    pub topics: Vec<TopicShape>,
}

/// A member that is to get partitions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Candidate {
    pub id: MemberId,
    /// Of a static member.
    pub instance: Option<Arc<str>>,
    pub rack: Option<Arc<str>>,
    /// By id, each once. Those that are not among the topics are passed over.
    pub wants: Arc<[TopicId]>,
    /// What it was to have before, in order.
    pub had: Arc<[TopicPartition]>,
}

/// A topic as far as it matters here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicShape {
    pub id: TopicId,
    /// 1 or more.
    pub partition_count: i32,
    /// The racks of the replicas of each partition; `None` where no rack is known.
    pub racks: Option<Arc<[Vec<Arc<str>>]>>,
}

/// Who gets what: a member of the input in each place, its partitions in order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Assignment {
    pub members: Vec<(MemberId, Arc<[TopicPartition]>)>,
}

impl AssignmentInput {
    /// Shares out. The same input gives the same assignment everywhere.
    pub fn assign(&self) -> Assignment {
        let mut given = match self.assignor {
            Assignor::Range => range::assign(self),
            Assignor::Uniform if self.all_want_the_same() => uniform::assign(self),
            Assignor::Uniform => spread::assign(self),
        };
        given.iter_mut().for_each(|partitions| partitions.sort_unstable());
        let ids = self.members.iter().map(|member| Arc::clone(&member.id));
        Assignment { members: ids.zip(given.into_iter().map(Arc::from)).collect() }
    }

    fn all_want_the_same(&self) -> bool {
        self.members.windows(2).all(|pair| match pair {
            [one, next] => Arc::ptr_eq(&one.wants, &next.wants) || one.wants == next.wants,
            _ => true,
        })
    }

    /// The place of a topic in the input.
    fn topic(&self, id: TopicId) -> Option<usize> {
        self.topics.binary_search_by_key(&id, |topic| topic.id).ok()
    }
}

/// Which partitions have an owner yet, of all topics in a row.
struct Taken {
    /// Where each topic begins.
    begins: Vec<usize>,
    taken: Vec<bool>,
}

impl Taken {
    fn nothing(input: &AssignmentInput) -> Taken {
        let mut begins = Vec::with_capacity(input.topics.len());
        let mut count = 0;
        for topic in &input.topics {
            begins.push(count);
            count += partitions_of(topic);
        }
        Taken { begins, taken: vec![false; count] }
    }

    /// Takes a partition, unless there is none such or it is taken.
    fn take(&mut self, topic: usize, shape: &TopicShape, partition: PartitionIndex) -> bool {
        if !(0..shape.partition_count).contains(&partition.0) {
            return false;
        }
        let index = self.begins[topic] + partition.0.unsigned_abs() as usize;
        !std::mem::replace(&mut self.taken[index], true)
    }

    /// Those of a topic that nobody has.
    fn free<'a>(
        &'a self,
        topic: usize,
        shape: &TopicShape,
    ) -> impl Iterator<Item = TopicPartition> + use<'a> {
        let begin = self.begins[topic];
        let id = shape.id;
        let free = (0..shape.partition_count)
            .zip(&self.taken[begin..begin + partitions_of(shape)])
            .filter(|(_, taken)| !**taken);
        free.map(move |(partition, _)| TopicPartition { topic: id, partition: PartitionIndex(partition) })
    }
}

fn partitions_of(topic: &TopicShape) -> usize {
    topic.partition_count.max(0).unsigned_abs() as usize
}

/// Whether a replica of this partition is in the member's rack.
fn is_near(member: &Candidate, shape: &TopicShape, partition: PartitionIndex) -> bool {
    let (Some(rack), Some(racks)) = (&member.rack, &shape.racks) else { return false };
    let racks = usize::try_from(partition.0).ok().and_then(|index| racks.get(index));
    racks.is_some_and(|racks| racks.contains(rack))
}
