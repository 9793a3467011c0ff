//! What follows from the records of a consumer group and is asked often: who holds what, who wants what. Counted as records change, so
//! that no event walks over all members.

use std::collections::BTreeMap;
use std::sync::Arc;

use ringlog_protocol::ids::TopicPartition;

use super::state::{ConsumerState, MemberState, Standing};

/// What a counted thing weighs beside its text, which it shares.
const COUNT_BYTES: usize = 48;

type Counts<K> = BTreeMap<K, usize>;

/// See the module.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(in crate::group) struct Index {
    pub members: usize,
    /// Members that have all that the target assignment gives them.
    pub settled: usize,
    /// Of the target assignment.
    epoch: i32,
    /// Members that speak the classic protocol.
    pub classic: usize,
    /// Members that hold or give up each partition: none or one, but for what other coordinators wrote.
    claims: Counts<TopicPartition>,
    /// Members that want each topic by its name.
    pub names: Counts<Arc<str>>,
    /// Members that want topics by each expression.
    pub regexes: Counts<Arc<str>>,
    /// Members that name each assignor.
    pub assignors: Counts<Arc<str>>,
    /// Members of the classic protocol that know each of its protocols.
    pub protocols: Counts<Arc<str>>,
}

impl Index {
    pub fn of(state: &ConsumerState) -> Index {
        let mut index = Index { epoch: state.assignment_epoch(), ..Index::default() };
        state.members.values().for_each(|member| index.add(member));
        index
    }

    /// Memory, estimated.
    pub fn bytes(&self) -> usize {
        let counts = self.claims.len()
            + self.names.len()
            + self.regexes.len()
            + self.assignors.len()
            + self.protocols.len();
        counts * COUNT_BYTES
    }

    /// Whether nobody holds this partition.
    pub fn is_free(&self, at: &TopicPartition) -> bool {
        !self.claims.contains_key(at)
    }

    /// Counts a member in; one of which only leftovers are known is none.
    pub fn add(&mut self, member: &MemberState) {
        let Some(data) = &member.metadata else { return };
        self.members += 1;
        data.names.iter().for_each(|name| up(&mut self.names, name));
        data.regex.iter().for_each(|text| up(&mut self.regexes, text));
        data.assignor.iter().for_each(|name| up(&mut self.assignors, name));
        if let Some(classic) = &data.classic {
            self.classic += 1;
            classic.protocols.iter().for_each(|protocol| up(&mut self.protocols, &protocol.name));
        }
        self.add_claims(member);
    }

    /// There is another target assignment. Looks at all members, as whoever makes one does.
    pub fn begin_epoch(&mut self, state: &ConsumerState) {
        self.epoch = state.assignment_epoch();
        self.settled = state.members.values().filter(|member| self.is_settled(member)).count();
    }

    fn is_settled(&self, member: &MemberState) -> bool {
        let standing = member.current.as_ref().map_or(Standing::Stable, |current| current.standing);
        member.metadata.is_some() && member.epoch() == self.epoch && standing == Standing::Stable
    }

    /// Counts in what a member holds.
    pub fn add_claims(&mut self, member: &MemberState) {
        self.settled += usize::from(self.is_settled(member));
        claimed(member).for_each(|at| up(&mut self.claims, &at));
    }

    /// The opposite of [`Index::add_claims`].
    pub fn take_claims(&mut self, member: &MemberState) {
        self.settled -= usize::from(self.is_settled(member));
        claimed(member).for_each(|at| down(&mut self.claims, &at));
    }

    /// The opposite of [`Index::add`].
    pub fn take(&mut self, member: &MemberState) {
        let Some(data) = &member.metadata else { return };
        self.members -= 1;
        data.names.iter().for_each(|name| down(&mut self.names, name));
        data.regex.iter().for_each(|text| down(&mut self.regexes, text));
        data.assignor.iter().for_each(|name| down(&mut self.assignors, name));
        if let Some(classic) = &data.classic {
            self.classic -= 1;
            classic.protocols.iter().for_each(|protocol| down(&mut self.protocols, &protocol.name));
        }
        self.take_claims(member);
    }
}

/// What a member holds; nothing where only leftovers of it are known.
fn claimed(member: &MemberState) -> impl Iterator<Item = TopicPartition> {
    let current = member.current.iter().filter(|_| member.metadata.is_some());
    current.flat_map(|current| current.assigned.iter().chain(current.revoking.iter()).map(|owned| owned.at))
}

fn up<K: Ord + Clone>(counts: &mut Counts<K>, key: &K) {
    match counts.get_mut(key) {
        Some(count) => *count += 1,
        None => drop(counts.insert(key.clone(), 1)),
    }
}

fn down<K: Ord>(counts: &mut Counts<K>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}
