//! What a rebalance was about: who came or went and why, and which partitions changed hands. Owns what is remembered of one that is
//! under way, and its summary; decides nothing. Nothing is allocated while a group rests. Of both kinds of groups: what only those of
//! KIP-848 have is in `consumer/timeline.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::group::consumer_protocol::{decode_assignment, subscribed_topics};
use ringlog_shard::limits::{
    GROUP_ASSIGNMENT_BYTES_COMPARED_MAX, GROUP_CAUSES_SHOWN_MAX, GROUP_MOVES_SHOWN_MAX,
    GROUP_TIMELINE_TEXT_BYTES_MAX,
};

use super::classic::{ClassicGroup, GroupState};
use super::clerk::Clerk;
use super::consumer::{ConsumerHeartbeatRequest, MemberMetadata};
use super::event::{JoinRequest, MemberId, Protocol};
use super::members::Member;

/// What a change of a member weighs beside its texts.
const TRIGGER_BYTES: usize = 160;

/// What a partition that changed hands weighs beside its texts.
pub(super) const MOVE_BYTES: usize = 96;

/// Why a group rebalances.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cause {
    /// A new member came.
    Joined,
    /// It said that it leaves.
    Left,
    /// An operator made it leave.
    Removed,
    /// It was not heard of for its session.
    SessionExpired,
    /// It left for a while, being static, and did not come back within its session.
    LeftForAWhile,
    /// It did not join again in time.
    JoinTimeout,
    /// It joined and did not ask for its assignment in time.
    SyncTimeout,
    /// It did not give up in time what it was asked to.
    RebalanceTimeout,
    /// It wants other topics, or knows other protocols.
    SubscriptionChanged,
    /// It joined again: the leader saw other partitions, or a member gave partitions up for others to take.
    AskedAgain,
    /// A static member came back, and it was not known whether the others' assignments still hold.
    StaticMemberReplaced,
    /// Topics that the group wants came, went or grew.
    TopicsChanged,
    /// An expression stands for other topics than before.
    ExpressionResolved,
    /// The group came to the other protocol as this member came or went.
    Converted,
    /// The leader's assignments did not get into the log.
    AssignmentFailed,
    /// This core began to lead the group while an assignment was owed: why is not known any more.
    CoordinatorChanged,
    /// The group has more members than are allowed since.
    GroupTooLarge,
}

impl Cause {
    pub const ALL: [Cause; 17] = [
        Cause::Joined,
        Cause::Left,
        Cause::Removed,
        Cause::SessionExpired,
        Cause::LeftForAWhile,
        Cause::JoinTimeout,
        Cause::SyncTimeout,
        Cause::RebalanceTimeout,
        Cause::SubscriptionChanged,
        Cause::AskedAgain,
        Cause::StaticMemberReplaced,
        Cause::TopicsChanged,
        Cause::ExpressionResolved,
        Cause::Converted,
        Cause::AssignmentFailed,
        Cause::CoordinatorChanged,
        Cause::GroupTooLarge,
    ];

    /// As metrics, log and tools show it.
    pub const fn name(self) -> &'static str {
        match self {
            Cause::Joined => "joined",
            Cause::Left => "left",
            Cause::Removed => "removed",
            Cause::SessionExpired => "session_expired",
            Cause::LeftForAWhile => "left_for_a_while",
            Cause::JoinTimeout => "join_timeout",
            Cause::SyncTimeout => "sync_timeout",
            Cause::RebalanceTimeout => "rebalance_timeout",
            Cause::SubscriptionChanged => "subscription_changed",
            Cause::AskedAgain => "asked_again",
            Cause::StaticMemberReplaced => "static_member_replaced",
            Cause::TopicsChanged => "topics_changed",
            Cause::ExpressionResolved => "expression_resolved",
            Cause::Converted => "converted",
            Cause::AssignmentFailed => "assignment_failed",
            Cause::CoordinatorChanged => "coordinator_changed",
            Cause::GroupTooLarge => "group_too_large",
        }
    }
}

/// One reason, and whose it is. Texts are cut to a bound.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trigger {
    pub cause: Cause,
    /// Empty where it is nobody's.
    pub member: Arc<str>,
    pub instance: Option<Arc<str>>,
    pub client_id: Arc<str>,
    pub client_host: Arc<str>,
    /// What its client said (KIP-800).
    pub reason: Option<Arc<str>>,
}

/// A partition that changed hands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Move {
    pub topic: Arc<str>,
    pub partition: i32,
    /// A member's instance where it has one, else its name; `None`: nobody.
    pub from: Option<Arc<str>>,
    pub to: Option<Arc<str>>,
}

/// What became of the partitions.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Moves {
    pub kept: u32,
    /// From one member to another.
    pub moved: u32,
    /// From nobody.
    pub taken: u32,
    /// To nobody: in a cooperative group of the classic protocol for the next rebalance to give away.
    pub released: u32,
    /// Some of those that were not kept.
    pub shown: Vec<Move>,
}

/// A rebalance that ended; of a group of KIP-848: a new target assignment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rebalance {
    /// Milliseconds since the Unix epoch.
    pub began_ms: i64,
    pub ended_ms: i64,
    /// That it led to; of a group of KIP-848 its epoch.
    pub generation: i32,
    pub members_before: usize,
    pub members: usize,
    /// The first is what began it.
    pub triggers: Vec<Trigger>,
    /// Beside those.
    pub triggers_left_out: usize,
    /// `None`: not told, since the assignments cannot be read or are too large to be compared.
    pub moves: Option<Moves>,
    /// Of a group of KIP-848: when all members had what they were to have, in milliseconds since the Unix epoch. `None`: not yet, or
    /// another assignment came before that, or nobody was left.
    pub settled_ms: Option<i64>,
}

/// All members of a group of KIP-848 came to an assignment that was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settled {
    /// Of the [`Rebalance`].
    pub generation: i32,
    /// Milliseconds since the Unix epoch.
    pub at_ms: i64,
}

impl Rebalance {
    /// What began it.
    pub fn cause(&self) -> Option<Cause> {
        self.triggers.first().map(|trigger| trigger.cause)
    }

    /// Memory, estimated.
    pub fn bytes(&self) -> usize {
        let shown = self.moves.iter().flat_map(|moves| &moves.shown);
        let text = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        TRIGGER_BYTES
            + self.triggers.iter().map(Trigger::bytes).sum::<usize>()
            + shown.map(|one| MOVE_BYTES + one.topic.len() + text(&one.from) + text(&one.to)).sum::<usize>()
    }
}

impl Trigger {
    /// Of the whole group.
    pub(super) fn of_group(cause: Cause) -> Trigger {
        let nothing: Arc<str> = Arc::from("");
        Trigger {
            cause,
            member: Arc::clone(&nothing),
            instance: None,
            client_id: Arc::clone(&nothing),
            client_host: nothing,
            reason: None,
        }
    }

    pub(super) fn of_member(cause: Cause, member: &Member, reason: Option<&Arc<str>>) -> Trigger {
        Trigger {
            cause,
            member: cut(&member.id),
            instance: member.instance.as_ref().map(cut),
            client_id: cut(&member.client_id),
            client_host: cut(&member.client_host),
            reason: reason.map(cut),
        }
    }

    /// Of a member that joins a group of KIP-848.
    pub(super) fn of_heartbeat(cause: Cause, request: &ConsumerHeartbeatRequest) -> Trigger {
        Trigger {
            cause,
            member: cut(&request.member),
            instance: request.instance.as_ref().map(cut),
            client_id: cut(&request.client_id),
            client_host: cut(&request.client_host),
            reason: None,
        }
    }

    /// Of a classic member that joins a group of KIP-848.
    pub(super) fn of_join(cause: Cause, request: &JoinRequest) -> Trigger {
        Trigger {
            cause,
            member: cut(&request.member),
            instance: request.instance.as_ref().map(cut),
            client_id: cut(&request.client_id),
            client_host: cut(&request.client_host),
            reason: request.reason.as_ref().map(cut),
        }
    }

    /// Of a member of a group of KIP-848.
    pub(super) fn of_consumer(
        cause: Cause,
        member: &MemberId,
        data: &MemberMetadata,
        reason: Option<&Arc<str>>,
    ) -> Trigger {
        Trigger {
            cause,
            member: cut(member),
            instance: data.instance.as_ref().map(cut),
            client_id: cut(&data.client_id),
            client_host: cut(&data.client_host),
            reason: reason.map(cut),
        }
    }

    fn bytes(&self) -> usize {
        let optional = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        TRIGGER_BYTES
            + self.member.len()
            + optional(&self.instance)
            + self.client_id.len()
            + self.client_host.len()
            + optional(&self.reason)
    }
}

/// A text of a stranger, at most so long.
fn cut(text: &Arc<str>) -> Arc<str> {
    if text.len() <= GROUP_TIMELINE_TEXT_BYTES_MAX {
        return Arc::clone(text);
    }
    let mut end = GROUP_TIMELINE_TEXT_BYTES_MAX;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Arc::from(&text[..end])
}

/// Why a rebalance that is under way began, and what came to it since.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Causes {
    began_ms: i64,
    members_before: usize,
    /// The first is what began it.
    triggers: Vec<Trigger>,
    left_out: usize,
}

impl Causes {
    /// `members`: before it.
    pub fn add(&mut self, trigger: Trigger, now_ms: i64, members: usize) {
        if self.triggers.is_empty() {
            (self.began_ms, self.members_before) = (now_ms, members);
        }
        self.push(trigger);
    }

    fn push(&mut self, trigger: Trigger) {
        if self.triggers.len() < GROUP_CAUSES_SHOWN_MAX {
            self.triggers.push(trigger);
        } else {
            self.left_out += 1;
        }
    }

    /// Those of `later` come to it.
    pub fn append(&mut self, later: Causes) {
        if self.triggers.is_empty() {
            *self = later;
            return;
        }
        later.triggers.into_iter().for_each(|trigger| self.push(trigger));
        self.left_out += later.left_out;
    }

    pub fn is_empty(&self) -> bool {
        self.triggers.is_empty()
    }

    /// How many members there were before the first of them; `None` where there is none.
    pub fn members_before(&self) -> Option<usize> {
        Some(self.members_before).filter(|_| !self.is_empty())
    }

    /// Memory, estimated.
    pub fn bytes(&self) -> usize {
        self.triggers.iter().map(Trigger::bytes).sum()
    }

    pub fn ended(self, now_ms: i64, generation: i32, members: usize, moves: Option<Moves>) -> Rebalance {
        Rebalance {
            began_ms: self.began_ms,
            ended_ms: now_ms,
            generation,
            members_before: self.members_before,
            members,
            triggers: self.triggers,
            triggers_left_out: self.left_out,
            moves,
            settled_ms: None,
        }
    }
}

/// Who owns what, as the log has it.
type Owned = Vec<(Arc<str>, Bytes)>;

/// A rebalance of a classic group that is under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct OpenRebalance {
    causes: Causes,
    before: Owned,
    /// Bytes of that.
    held: usize,
}

impl OpenRebalance {
    /// Memory, estimated.
    pub fn bytes(&self) -> usize {
        TRIGGER_BYTES + self.held + self.causes.bytes()
    }

    pub fn into_causes(self) -> Causes {
        self.causes
    }
}

impl Member {
    /// Its name across restarts.
    fn lasting_name(&self) -> Arc<str> {
        Arc::clone(self.instance.as_ref().unwrap_or(&self.id))
    }

    /// Whether it wants other topics than it said before, or knows other protocols.
    pub fn wants_otherwise(&self, protocols: &[Protocol]) -> bool {
        if self.protocols == protocols {
            return false;
        }
        let said = |protocols: &[Protocol]| {
            let one = |protocol: &Protocol| {
                let topics = subscribed_topics(&protocol.metadata).ok();
                let topics = topics.map(|topics| topics.into_iter().map(str::to_owned).collect::<Vec<_>>());
                (Arc::clone(&protocol.name), topics)
            };
            protocols.iter().map(one).collect::<Vec<_>>()
        };
        said(&self.protocols) != said(protocols)
    }
}

impl ClassicGroup {
    /// Something happens for which the group rebalances. Comes before a member that goes is taken out.
    pub fn note(&mut self, clerk: &Clerk, trigger: Trigger) {
        if self.open.is_none() {
            let settled = self.state == GroupState::Stable && self.is_of_consumers();
            let owning = self.members.iter().filter(|member| settled && !member.assignment.is_empty());
            let before: Owned =
                owning.map(|member| (member.lasting_name(), member.assignment.clone())).collect();
            let held = before.iter().map(|(_, assignment)| MOVE_BYTES + assignment.len()).sum();
            self.open = Some(Box::new(OpenRebalance { causes: Causes::default(), before, held }));
        }
        if let Some(open) = &mut self.open {
            open.causes.add(trigger, clerk.now_ms(), self.members.len());
        }
    }

    /// The group was one of KIP-848 until a member went: why that was, and what it owned. `earlier`: what was under way.
    pub fn note_turned_back(
        &mut self,
        clerk: &Clerk,
        earlier: Causes,
        trigger: Trigger,
        owned: (Arc<str>, Bytes),
    ) {
        self.note(clerk, Trigger { cause: Cause::Converted, ..trigger.clone() });
        self.note(clerk, trigger);
        if let Some(open) = &mut self.open {
            open.held += MOVE_BYTES + owned.1.len();
            open.before.push(owned);
            // With the one who went.
            open.causes.members_before += 1;
            let last = std::mem::replace(&mut open.causes, earlier);
            open.causes.append(last);
        }
    }

    /// The same, of a member that is in the group; nothing where it is not.
    pub fn note_member(&mut self, clerk: &Clerk, cause: Cause, member: &str, reason: Option<&Arc<str>>) {
        if let Some(trigger) =
            self.members.get(member).map(|member| Trigger::of_member(cause, member, reason))
        {
            self.note(clerk, trigger);
        }
    }

    /// The rebalance that was under way ended: members own this now.
    pub fn tell_rebalance(&mut self, clerk: &mut Clerk, assignments: &BTreeMap<MemberId, Bytes>) {
        let Some(open) = self.open.take() else { return };
        let owned = self.members.iter().filter_map(|member| {
            Some((member.lasting_name(), assignments.get(&member.id)?.clone()))
                .filter(|(_, assignment)| !assignment.is_empty())
        });
        let moves = if self.is_of_consumers() { moves(&open.before, &owned.collect()) } else { None };
        let members = self.members.len();
        let rebalance = open.causes.ended(clerk.now_ms(), self.generation, members, moves);
        clerk.step.rebalances.push((Arc::clone(&self.id), rebalance));
    }
}

type Places<'a> = BTreeMap<(&'a str, i32), &'a Arc<str>>;

/// `None` where an assignment cannot be read.
fn places(owned: &Owned) -> Option<Places<'_>> {
    let mut places = Places::new();
    for (owner, assignment) in owned {
        for topic in decode_assignment(assignment).ok()?.assigned_partitions {
            places.extend(topic.partitions.iter().map(|index| ((topic.topic, index), owner)));
        }
    }
    Some(places)
}

fn moves(before: &Owned, after: &Owned) -> Option<Moves> {
    let bytes = before.iter().chain(after).map(|(_, assignment)| assignment.len()).sum::<usize>();
    if bytes > GROUP_ASSIGNMENT_BYTES_COMPARED_MAX {
        return None;
    }
    let (before, after) = (places(before)?, places(after)?);
    Some(Moves::between(before, after, |(topic, partition)| (Arc::from(*topic), *partition)))
}

impl Moves {
    /// Who owned each partition before, and who owns it after, both in the order of partitions. `name`: of its topic, and its number.
    pub(super) fn between<'a, K: Ord>(
        before: impl IntoIterator<Item = (K, &'a Arc<str>)>,
        after: impl IntoIterator<Item = (K, &'a Arc<str>)>,
        name: impl Fn(&K) -> (Arc<str>, i32),
    ) -> Moves {
        let mut moves = Moves::default();
        let mut before = before.into_iter().peekable();
        let mut released = Vec::new();
        for (at, to) in after {
            while let Some(gone) = before.next_if(|(earlier, _)| *earlier < at) {
                released.push(gone);
            }
            let from = before.next_if(|(same, _)| *same == at).map(|(_, from)| from);
            match from {
                Some(from) if from == to => {
                    moves.kept += 1;
                    continue;
                }
                Some(_) => moves.moved += 1,
                None => moves.taken += 1,
            }
            moves.show(|| name(&at), from, Some(to));
        }
        for (at, from) in released.into_iter().chain(before) {
            moves.released += 1;
            moves.show(|| name(&at), Some(from), None);
        }
        moves
    }

    fn show(&mut self, name: impl Fn() -> (Arc<str>, i32), from: Option<&Arc<str>>, to: Option<&Arc<str>>) {
        if self.shown.len() < GROUP_MOVES_SHOWN_MAX {
            let (topic, partition) = name();
            self.shown.push(Move { topic, partition, from: from.map(cut), to: to.map(cut) });
        }
    }
}
