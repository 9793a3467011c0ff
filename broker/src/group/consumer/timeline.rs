//! What is told of the assignments of a consumer group: each has the causes that made the group count the epochs since the one before,
//! and what moved between the targets of its members. Owns what is remembered until the assignment is there; decides nothing. A
//! heartbeat that changes nothing comes to none of it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::ids::TopicPartition;
use ringlog_shard::limits::GROUP_PARTITIONS_COMPARED_MAX;

use super::classic_members::assignment_bytes;
use super::group::{ConsumerGroup, Desk};
use super::heartbeat::Guest;
use super::request::LEAVES_FOR_A_WHILE;
use super::state::{MemberMetadata, MemberState, Partitions};
use super::topics::Topics;
use crate::group::clerk::Clerk;
use crate::group::event::{MemberId, Timer};
use crate::group::timeline::{Cause, Causes, MOVE_BYTES, Moves, Settled, Trigger};

/// An assignment is owed.
#[derive(Clone, Default, Debug)]
pub(super) struct OpenAssignment {
    causes: Causes,
    /// What came while the assignment is computed, and has its part in the one after it.
    next: Causes,
    /// What the last assignment gave to members of which it is known by now that they are to have something else, or that they are
    /// gone; by their names across restarts.
    before: BTreeMap<Arc<str>, Partitions>,
    /// Bytes of that.
    held: usize,
}

/// A member that goes, for a group that turns back into a classic one with it.
pub(super) struct Parting {
    pub trigger: Trigger,
    /// What was under way.
    pub earlier: Causes,
    /// Under its name across restarts.
    pub owned: (Arc<str>, Bytes),
}

impl OpenAssignment {
    /// Memory, estimated.
    pub fn bytes(&self) -> usize {
        size_of::<OpenAssignment>() + self.held + self.causes.bytes() + self.next.bytes()
    }
}

fn lasting_name(id: &MemberId, data: &MemberMetadata) -> Arc<str> {
    Arc::clone(data.instance.as_ref().unwrap_or(id))
}

impl ConsumerGroup {
    /// Something happens for which the group counts an epoch. Comes before a member that goes is taken out.
    pub(super) fn note(&mut self, clerk: &Clerk, trigger: Trigger) {
        let open = self.open.get_or_insert_default();
        let causes = if self.computing.is_some() { &mut open.next } else { &mut open.causes };
        causes.add(trigger, clerk.now_ms(), self.index.members);
    }

    /// A member is about to be to have something else than it was: only those of whom that is true are compared in the end.
    pub(super) fn note_target(&mut self, member: &MemberId) {
        let Some(open) = &mut self.open else { return };
        let Some(MemberState { metadata: Some(data), target, .. }) = self.state.members.get(member) else {
            return;
        };
        if let Entry::Vacant(entry) = open.before.entry(lasting_name(member, data)) {
            let target = target.clone().unwrap_or_default();
            open.held += MOVE_BYTES + target.len() * size_of::<TopicPartition>();
            entry.insert(target);
        }
    }

    /// The same, of one of its members; nothing where it is none.
    pub(super) fn note_member(
        &mut self,
        clerk: &Clerk,
        cause: Cause,
        member: &MemberId,
        reason: Option<&Arc<str>>,
    ) {
        if let Some(data) = self.state.metadata(member) {
            let trigger = Trigger::of_consumer(cause, member, data, reason);
            self.note(clerk, trigger);
        }
    }

    /// A member that was there before came again. `changed`: it wants other topics.
    pub(super) fn note_again(
        &mut self,
        clerk: &Clerk,
        guest: &Guest,
        changed: bool,
        member: &MemberId,
        reason: Option<&Arc<str>>,
    ) {
        let cause = match guest {
            Guest::Known if changed => Cause::SubscriptionChanged,
            Guest::Replaces(_) if changed || self.open.is_some() => Cause::StaticMemberReplaced,
            Guest::New | Guest::Known | Guest::Replaces(_) => return,
        };
        self.note_member(clerk, cause, member, reason);
    }

    /// The group was a classic one until this member came. `earlier`: what was under way.
    pub(super) fn note_converted(&mut self, clerk: &Clerk, earlier: Causes, trigger: Trigger) {
        self.note(clerk, trigger);
        if let Some(open) = &mut self.open {
            let converted = std::mem::replace(&mut open.causes, earlier);
            open.causes.append(converted);
        }
    }

    /// After a load: nobody knows any more why an assignment is owed.
    pub(super) fn note_owed(&mut self, clerk: &Clerk) {
        if !self.is_empty() && self.is_behind() {
            self.note(clerk, Trigger::of_group(Cause::CoordinatorChanged));
        }
    }

    /// The assignment that is computed will not count.
    pub(super) fn merge_noted(&mut self) {
        if let Some(open) = &mut self.open {
            let next = std::mem::take(&mut open.next);
            open.causes.append(next);
        }
    }

    /// Forgets what came to no epoch.
    pub(super) fn forget_noted(&mut self) {
        if self.open.is_some() && !self.is_behind() {
            self.open = None;
        }
    }

    /// The targets of this epoch are there.
    pub(super) fn tell_assignment(&mut self, desk: &mut Desk<'_>, epoch: i32) {
        let Some(open) = self.open.take() else { return };
        let OpenAssignment { causes, next, before, .. } = *open;
        self.unsettled = None;
        if !causes.is_empty() {
            let members = next.members_before().unwrap_or(self.index.members);
            let moves = self.moved(&before, desk.topics);
            let rebalance = causes.ended(desk.clerk.now_ms(), epoch, members, moves);
            desk.clerk.step.rebalances.push((Arc::clone(&self.id), rebalance));
            self.unsettled = Some(epoch).filter(|_| !self.is_empty());
        }
        if !next.is_empty() {
            self.open = Some(Box::new(OpenAssignment { causes: next, ..OpenAssignment::default() }));
        }
    }

    /// Tells when all members have what the last assignment gives them; the most frequent case is that this was told.
    pub(super) fn tell_settled(&mut self, clerk: &mut Clerk) {
        let Some(generation) = self.unsettled else { return };
        if self.index.settled == self.index.members {
            self.unsettled = None;
            let settled = Settled { generation, at_ms: clerk.now_ms() };
            clerk.step.settled.push((Arc::clone(&self.id), settled));
        }
    }

    /// Its last member went: no assignment follows.
    pub(super) fn tell_emptied(&mut self, desk: &mut Desk<'_>) {
        self.merge_noted();
        self.tell_assignment(desk, self.state.group_epoch());
    }

    /// Why a timer of a member that ran out takes it out.
    pub(super) fn cause_of(&self, timer: &Timer) -> Cause {
        match timer {
            Timer::Session { member, .. } if self.current(member).epoch == LEAVES_FOR_A_WHILE => {
                Cause::LeftForAWhile
            }
            Timer::Rebalance { .. } => Cause::RebalanceTimeout,
            Timer::MemberJoin { .. } | Timer::Join { .. } => Cause::JoinTimeout,
            Timer::MemberSync { .. } | Timer::Sync { .. } => Cause::SyncTimeout,
            Timer::Session { .. } | Timer::Assign { .. } => Cause::SessionExpired,
        }
    }

    /// What is to be told where the group turns back with this member.
    pub(super) fn parting(&self, member: &MemberId, cause: Cause, topics: &Topics) -> Option<Parting> {
        let data = self.state.metadata(member)?;
        let earlier = self.open.as_ref().map(|open| {
            let mut causes = open.causes.clone();
            causes.append(open.next.clone());
            causes
        });
        Some(Parting {
            trigger: Trigger::of_consumer(cause, member, data, None),
            earlier: earlier.unwrap_or_default(),
            owned: (
                lasting_name(member, data),
                assignment_bytes(&self.current(member).assigned, &[], topics),
            ),
        })
    }

    /// What became of the partitions since members were to have what they had `before`. `None`: too many to be compared.
    fn moved(&self, before: &BTreeMap<Arc<str>, Partitions>, topics: &Topics) -> Option<Moves> {
        let mut kept = self.state.joined().map(|(_, _, member)| member.target_len()).sum::<usize>();
        let mut compared = 0;
        let (mut gone, mut came) = (Vec::new(), Vec::new());
        for (name, had) in before {
            let has = self.target_of(name);
            if **had == *has {
                continue;
            }
            kept -= has.len();
            compared += had.len() + has.len();
            if compared > GROUP_PARTITIONS_COMPARED_MAX {
                return None;
            }
            gone.extend(had.iter().map(|at| (*at, name)));
            came.extend(has.iter().map(|at| (*at, name)));
        }
        gone.sort_unstable();
        came.sort_unstable();
        let mut moves = Moves::between(gone, came, |at| {
            let name = topics.of_id(at.topic).map(|topic| Arc::clone(&topic.name));
            (name.unwrap_or_else(|| at.topic.to_string().into()), at.partition.0)
        });
        moves.kept += u32::try_from(kept).unwrap_or(u32::MAX);
        Some(moves)
    }

    /// What the member of this name across restarts is to have; nothing where there is none.
    fn target_of(&self, name: &Arc<str>) -> &[TopicPartition] {
        let id = self.state.holder(name).unwrap_or(name);
        match self.state.members.get(id) {
            // One that has an instance goes by that name only.
            Some(MemberState { metadata: Some(data), target: Some(target), .. })
                if data.instance.as_ref().unwrap_or(id) == name =>
            {
                target
            }
            _ => &[],
        }
    }
}
