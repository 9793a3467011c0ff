//! What is told of the assignments of a consumer group: each has the causes that made the group count the epochs since the one before,
//! and what moved between the targets of its members. Owns what is remembered until the assignment is there; decides nothing. A
//! heartbeat that changes nothing comes to none of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::ids::TopicPartition;
use ringlog_shard::limits::GROUP_PARTITIONS_COMPARED_MAX;

use super::classic_members::assignment_bytes;
use super::group::{ConsumerGroup, Desk};
use super::heartbeat::Guest;
use super::request::LEAVES_FOR_A_WHILE;
use super::state::{ConsumerState, MemberMetadata, Partitions};
use super::topics::Topics;
use crate::group::clerk::Clerk;
use crate::group::event::{MemberId, Timer};
use crate::group::timeline::{Cause, Causes, MOVE_BYTES, Moves, Trigger};

/// What each member is to have, by its name across restarts.
type Targets = Vec<(Arc<str>, Partitions)>;

/// An assignment is owed.
#[derive(Clone, Debug)]
pub(super) struct OpenAssignment {
    causes: Causes,
    /// What came while the assignment is computed, and has its part in the one after it.
    next: Causes,
    /// As the last assignment had it.
    before: Targets,
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
    fn since(before: Targets, causes: Causes) -> OpenAssignment {
        let one =
            |(_, target): &(Arc<str>, Partitions)| MOVE_BYTES + target.len() * size_of::<TopicPartition>();
        let held = before.iter().map(one).sum();
        OpenAssignment { causes, next: Causes::default(), before, held }
    }

    /// Memory, estimated.
    pub fn bytes(&self) -> usize {
        size_of::<OpenAssignment>() + self.held + self.causes.bytes() + self.next.bytes()
    }
}

fn lasting_name(id: &MemberId, data: &MemberMetadata) -> Arc<str> {
    Arc::clone(data.instance.as_ref().unwrap_or(id))
}

fn targets(state: &ConsumerState) -> Targets {
    let owning = state.joined().filter_map(|(id, data, member)| Some((id, data, member.target.as_ref()?)));
    owning.map(|(id, data, target)| (lasting_name(id, data), Arc::clone(target))).collect()
}

impl ConsumerGroup {
    /// Something happens for which the group counts an epoch. Comes before a member that goes is taken out.
    pub(super) fn note(&mut self, clerk: &Clerk, trigger: Trigger) {
        let open = self
            .open
            .get_or_insert_with(|| Box::new(OpenAssignment::since(targets(&self.state), Causes::default())));
        let causes = if self.computing.is_some() { &mut open.next } else { &mut open.causes };
        causes.add(trigger, clerk.now_ms(), self.index.members);
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
        let after = targets(&self.state);
        if !causes.is_empty() {
            let members = next.members_before().unwrap_or(self.index.members);
            let moves = moves(&before, &after, desk.topics);
            let rebalance = causes.ended(desk.clerk.now_ms(), epoch, members, moves);
            desk.clerk.step.rebalances.push((Arc::clone(&self.id), rebalance));
        }
        if !next.is_empty() {
            self.open = Some(Box::new(OpenAssignment::since(after, next)));
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
}

/// Whose each partition is.
fn places<'a>(
    owned: impl IntoIterator<Item = (&'a Arc<str>, &'a Partitions)>,
) -> BTreeMap<TopicPartition, &'a Arc<str>> {
    owned.into_iter().flat_map(|(name, target)| target.iter().map(move |at| (*at, name))).collect()
}

/// `None`: too many to be compared.
fn moves(before: &Targets, after: &Targets, topics: &Topics) -> Option<Moves> {
    let mut gone: BTreeMap<&Arc<str>, &Partitions> =
        before.iter().map(|(name, target)| (name, target)).collect();
    let mut came = Vec::new();
    let mut kept = 0;
    for (name, target) in after {
        // Most members have what they had.
        if gone.get(name).is_some_and(|had| *had == target) {
            gone.remove(name);
            kept += target.len();
        } else {
            came.push((name, target));
        }
    }
    let compared = gone.values().copied().chain(came.iter().map(|(_, target)| *target));
    if compared.map(|target| target.len()).sum::<usize>() > GROUP_PARTITIONS_COMPARED_MAX {
        return None;
    }
    let mut moves = Moves::between(places(gone), places(came), |at| {
        let name = topics.of_id(at.topic).map(|topic| Arc::clone(&topic.name));
        (name.unwrap_or_else(|| at.topic.to_string().into()), at.partition.0)
    });
    moves.kept += u32::try_from(kept).unwrap_or(u32::MAX);
    Some(moves)
}
