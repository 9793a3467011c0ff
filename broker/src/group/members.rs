//! The members of a classic group, and what is counted of them. Owns the counts: every change goes through here, so that they
//! are right without a walk over all members.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

use super::event::{MemberId, Protocol, Serial, Token};

/// What a member weighs beside its texts and bytes: the struct, two map entries, a timer.
const MEMBER_BYTES: usize = 512;

/// One member.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub id: MemberId,
    /// Of a static member: its name across restarts.
    pub instance: Option<Arc<str>>,
    pub client_id: Arc<str>,
    pub client_host: Arc<str>,
    pub rebalance_timeout_ms: i32,
    pub session_timeout_ms: i32,
    /// The preferred first, each name once.
    pub protocols: Vec<Protocol>,
    pub assignment: Bytes,
    /// Its JoinGroup, which waits for the others.
    pub waiting_join: Option<Token>,
    /// Its SyncGroup, which waits for the leader.
    pub waiting_sync: Option<Token>,
    /// It was never told its name, so it cannot send heartbeats, and its join does not keep it alive.
    pub is_new: bool,
    /// The number under which its session timer is armed.
    pub session: Option<Serial>,
}

impl Member {
    /// What it said for this protocol.
    pub fn metadata(&self, protocol: &str) -> Bytes {
        let found = self.protocols.iter().find(|known| *known.name == *protocol);
        found.map(|known| known.metadata.clone()).unwrap_or_default()
    }

    /// A member that waits for an answer is alive, unless it never got one.
    pub fn is_kept_alive_by_waiting(&self) -> bool {
        !self.is_new && (self.waiting_join.is_some() || self.waiting_sync.is_some())
    }

    /// Memory, estimated.
    pub fn bytes(&self) -> usize {
        let protocols: usize = self.protocols.iter().map(|p| p.name.len() + p.metadata.len()).sum();
        let instance = self.instance.as_ref().map_or(0, |instance| 2 * instance.len());
        MEMBER_BYTES
            + 2 * self.id.len()
            + instance
            + self.client_id.len()
            + self.client_host.len()
            + protocols
            + self.assignment.len()
    }
}

/// All members of a group.
#[derive(Clone, Default, Debug)]
pub(super) struct Members {
    by_id: BTreeMap<MemberId, Member>,
    by_instance: BTreeMap<Arc<str>, MemberId>,
    counts: Counts,
}

#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Counts {
    waiting_join: usize,
    /// Members that know each protocol.
    supported: BTreeMap<Arc<str>, usize>,
    bytes: usize,
}

impl Counts {
    fn add(&mut self, member: &Member) {
        self.waiting_join += usize::from(member.waiting_join.is_some());
        self.bytes += member.bytes();
        for protocol in &member.protocols {
            *self.supported.entry(Arc::clone(&protocol.name)).or_default() += 1;
        }
    }

    fn take(&mut self, member: &Member) {
        self.waiting_join -= usize::from(member.waiting_join.is_some());
        self.bytes -= member.bytes();
        for protocol in &member.protocols {
            if let Some(count) = self.supported.get_mut(&protocol.name) {
                *count -= 1;
                if *count == 0 {
                    self.supported.remove(&protocol.name);
                }
            }
        }
    }
}

impl Members {
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub fn contains(&self, id: &str) -> bool {
        self.by_id.contains_key(id)
    }

    pub fn get(&self, id: &str) -> Option<&Member> {
        self.by_id.get(id)
    }

    /// By name, so in an order that is the same everywhere.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.by_id.values()
    }

    pub fn ids(&self) -> Vec<MemberId> {
        self.by_id.keys().cloned().collect()
    }

    /// Who holds this instance id.
    pub fn holder(&self, instance: &str) -> Option<&MemberId> {
        self.by_instance.get(instance)
    }

    pub fn insert(&mut self, member: Member) {
        if let Some(instance) = &member.instance {
            self.by_instance.insert(Arc::clone(instance), Arc::clone(&member.id));
        }
        self.counts.add(&member);
        if let Some(old) = self.by_id.insert(Arc::clone(&member.id), member) {
            self.counts.take(&old);
        }
    }

    pub fn remove(&mut self, id: &str) -> Option<Member> {
        let member = self.by_id.remove(id)?;
        self.counts.take(&member);
        if let Some(instance) = &member.instance
            && self.by_instance.get(instance) == Some(&member.id)
        {
            self.by_instance.remove(instance);
        }
        Some(member)
    }

    /// Changes a member, but neither its name nor its instance.
    pub fn update<R>(&mut self, id: &str, change: impl FnOnce(&mut Member) -> R) -> Option<R> {
        let member = self.by_id.get_mut(id)?;
        self.counts.take(member);
        let result = change(member);
        self.counts.add(member);
        Some(result)
    }

    /// Members whose JoinGroup waits.
    pub fn waiting_join(&self) -> usize {
        self.counts.waiting_join
    }

    /// Memory of all, estimated.
    pub fn bytes(&self) -> usize {
        self.counts.bytes
    }

    /// Whether all know this protocol; true where there are none.
    pub fn all_know(&self, protocol: &str) -> bool {
        self.counts.supported.get(protocol).copied().unwrap_or(0) == self.by_id.len()
    }

    /// How long members wait for each other: as long as the most patient one says, in milliseconds.
    pub fn rebalance_timeout_ms(&self) -> i32 {
        self.iter().map(|member| member.rebalance_timeout_ms).max().unwrap_or(0)
    }

    /// The protocol that all know and most prefer; among equals the first by name. `None` where there is no member.
    pub fn vote(&self) -> Option<Arc<str>> {
        let mut votes: BTreeMap<&Arc<str>, usize> = BTreeMap::new();
        for member in self.iter() {
            let choice = member.protocols.iter().find(|protocol| self.all_know(&protocol.name));
            if let Some(protocol) = choice {
                *votes.entry(&protocol.name).or_default() += 1;
            }
        }
        let most = votes.values().max().copied()?;
        votes.into_iter().find(|(_, count)| *count == most).map(|(name, _)| Arc::clone(name))
    }

    /// Whether the counts are those of the members.
    #[cfg(test)]
    pub fn check(&self) {
        let mut counts = Counts::default();
        self.iter().for_each(|member| counts.add(member));
        assert_eq!(counts, self.counts);
        let instances: BTreeMap<_, _> = self
            .iter()
            .filter_map(|member| member.instance.clone().map(|instance| (instance, Arc::clone(&member.id))))
            .collect();
        assert_eq!(instances, self.by_instance);
    }
}
