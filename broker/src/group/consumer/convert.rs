//! Groups change their kind while they work: a classic group becomes a consumer group when the first member comes that speaks the new
//! protocol, and a classic group again when the last such member goes. Owns both ways, each one batch of records, and fencing, which may
//! be what turns a group back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::group::consumer_protocol::{PROTOCOL_TYPE, decode_assignment};
use ringlog_protocol::ids::{PartitionIndex, TopicPartition};
use ringlog_shard::limits::{GROUP_MEMBERS_MAX, MACHINE_PROPOSAL_BYTES_MAX};

use super::classic_members::{Subscription, assignment_bytes};
use super::group::{ConsumerGroup, Desk};
use super::heartbeat::full;
use super::record;
use super::request::Refusal;
use super::state::{
    AssignmentEpoch, Change, ClassicMetadata, ConsumerState, Current, GroupEpoch, MemberMetadata, Owned,
    Subject,
};
use super::timeline::Parting;
use super::topics::Topics;
use crate::group::classic::{ClassicGroup, GroupState};
use crate::group::clerk::Then;
use crate::group::event::{GroupId, JoinRequest, MemberId, Timer, Token};
use crate::group::machine::GroupMachine;
use crate::group::members::Member;
use crate::group::record as classic_record;
use crate::group::reply::{JoinReply, KeyedRecord, SyncReply};
use crate::group::timeline::{Cause, Causes, OpenRebalance};

impl GroupMachine {
    /// Makes a consumer group of this name for a member that joins: a new one, or one of the classic group that there is. `Some`: the
    /// classic one had members, and this was under way in it.
    pub(super) fn open_consumer_group(&mut self, id: &GroupId) -> Result<Option<Causes>, Refusal> {
        let mut group = ConsumerGroup::new(Arc::clone(id));
        let mut converted = None;
        if let Some(classic) = self.live.get(id) {
            let changes = self.as_consumer_group(classic)?;
            if !changes.is_empty() {
                let open = classic.open.as_deref().cloned();
                converted = Some(open.map(OpenRebalance::into_causes).unwrap_or_default());
            }
            if let Ok(tombstone) = classic_record::group_tombstone(id) {
                // Written even where the log holds nothing of the group: a record of it may be on its way.
                group.put_record(tombstone, Subject::Classic);
            }
            self.close_classic_group(id);
            changes.into_iter().for_each(|change| group.change(change));
        }
        self.insert_consumers(group);
        self.with_consumer(id, |group, desk| {
            for member in group.state.members.keys().cloned().collect::<Vec<_>>() {
                group.arm_session(desk, &member);
            }
        });
        Ok(converted)
    }

    /// A classic group in the records of a consumer group; nothing of one without members.
    fn as_consumer_group(&self, classic: &ClassicGroup) -> Result<Vec<Change>, Refusal> {
        let id = &classic.id;
        let no = |message: String| Err(Refusal::new(ErrorCode::GroupIdNotFound, message));
        match classic.state {
            GroupState::Dead => {
                let message = "the group is being deleted";
                return Err(Refusal::new(ErrorCode::CoordinatorNotAvailable, message));
            }
            GroupState::Empty => return Ok(Vec::new()),
            _ => {}
        }
        let settings = &self.clerk.consumer;
        if !settings.migration.upgrades() {
            return no(format!("Group {id} does not speak the consumer protocol."));
        }
        if !classic.is_of_consumers() {
            return no(format!(
                "The classic group {id} is not one of consumers: it cannot speak the consumer protocol."
            ));
        }
        let max = settings.members_max.min(GROUP_MEMBERS_MAX);
        if classic.members.len() >= max {
            let message = full(max);
            return Err(Refusal::new(ErrorCode::GroupMaxSizeReached, message));
        }
        let Some(changes) = upgraded(classic, &self.topics) else {
            return no(format!(
                "What a member of the classic group {id} subscribes cannot be read: it cannot speak the consumer protocol."
            ));
        };
        let bytes: usize = changes.iter().map(|change| record::write(id, change).bytes()).sum();
        if bytes > MACHINE_PROPOSAL_BYTES_MAX / 2 {
            return no(format!(
                "The classic group {id} takes {bytes} bytes and may take {}: it cannot speak the consumer protocol.",
                MACHINE_PROPOSAL_BYTES_MAX / 2
            ));
        }
        Ok(changes)
    }

    /// Ends a classic group; whoever waits is told to come again.
    fn close_classic_group(&mut self, id: &GroupId) {
        self.with_group(id, |group, clerk| {
            let again = ErrorCode::RebalanceInProgress;
            for member in group.members.ids() {
                let waiting =
                    group.members.update(&member, |m| (m.waiting_join.take(), m.waiting_sync.take()));
                let Some((joins, syncs)) = waiting else { continue };
                if let Some(token) = joins {
                    clerk.answer_join(token, JoinReply::refused(again, &member));
                }
                if let Some(token) = syncs {
                    clerk.answer_sync(token, SyncReply::refused(again));
                }
                clerk.cancel(group.session_timer(&member));
            }
            for member in group.pending.keys().cloned().collect::<Vec<_>>() {
                group.remove_pending(clerk, &member, true);
            }
            group.cancel_sync_timer(clerk);
            if group.join_timer.take().is_some() {
                clerk.cancel(Timer::Join { group: Arc::clone(&group.id) });
            }
        });
        self.forget(id);
    }

    /// A member is out: it left, or was not heard of. Where only members of the classic protocol are left, the group is theirs again.
    pub(in crate::group) fn fence(&mut self, id: &GroupId, member: &MemberId, cause: Cause) {
        let group = self.consumers.get(id).filter(|_| self.turns_back(id, member));
        let parting = group.and_then(|group| group.parting(member, cause, &self.topics));
        if let Some(Parting { trigger, earlier, owned }) = parting
            && self.turn_back(id, Some(member))
        {
            self.with_group(id, |group, clerk| {
                group.note_turned_back(clerk, earlier, trigger, owned);
                group.prepare_rebalance(clerk);
            });
        } else {
            self.with_consumer(id, |group, desk| {
                group.note_member(desk.clerk, cause, member, None);
                group.remove_members(desk, std::slice::from_ref(member));
            });
        }
    }

    fn turns_back(&self, id: &str, leaver: &MemberId) -> bool {
        let Some(group) = self.consumers.get(id) else { return false };
        let (count, classic) = (group.index.members, group.index.classic);
        let speaks_classic = group.state.metadata(leaver).is_none_or(|data| data.classic.is_some());
        !speaks_classic
            && count > 1
            && classic == count - 1
            && self.clerk.consumer.migration.downgrades()
            && classic <= self.clerk.settings.members_max.min(GROUP_MEMBERS_MAX)
    }

    /// Makes the group a classic one without this member. `false`: it cannot be written as one.
    fn turn_back(&mut self, id: &GroupId, leaver: Option<&MemberId>) -> bool {
        let Some(group) = self.consumers.get(id) else { return false };
        let (mut classic, assignments) = downgraded(group, leaver, &self.topics);
        classic.enter(GroupState::Stable, self.clerk.now_ms());
        let Ok(record) = classic_record::group(&classic, &assignments) else { return false };
        let endings = group.state.endings();
        let mut records: Vec<KeyedRecord> = endings.iter().map(|change| record::write(id, change)).collect();
        let mut subjects: Vec<Subject> = endings.iter().map(Change::subject).collect();
        records.push(record);
        subjects.push(Subject::Classic);
        if records.iter().map(KeyedRecord::bytes).sum::<usize>() > MACHINE_PROPOSAL_BYTES_MAX {
            // In two batches the group might be lost between them.
            return false;
        }
        let members = self.close_consumers(id, ErrorCode::RebalanceInProgress);
        self.clerk.append(records, Then::Grouped { group: Arc::clone(id), subjects });
        self.insert_classic(classic);
        self.with_group(id, |group, clerk| {
            for member in members {
                match group.members.contains(&member) {
                    true => group.arm_session(clerk, &member),
                    false => clerk.cancel(group.session_timer(&member)),
                }
            }
        });
        true
    }

    /// Ends a consumer group on this core, without a word to the log; its members, whose sessions still run.
    pub(in crate::group) fn close_consumers(&mut self, id: &GroupId, error: ErrorCode) -> Vec<MemberId> {
        let members = self.with_consumer(id, |group, desk| {
            group.end_waiting(error);
            let members: Vec<MemberId> = group.state.members.keys().cloned().collect();
            members.iter().for_each(|member| group.cancel_rest(desk.clerk, member));
            if group.assign_timer.take().is_some() {
                desk.clerk.cancel(Timer::Assign { group: Arc::clone(&group.id) });
            }
            members
        });
        self.forget_consumers(id);
        members.unwrap_or_default()
    }

    /// JoinGroup to a consumer group. The request comes back where there is none with members: the join makes a classic one.
    pub(in crate::group) fn join_consumers(
        &mut self,
        token: Token,
        request: JoinRequest,
    ) -> Option<JoinRequest> {
        let id = Arc::clone(&request.group);
        let Some(group) = self.consumers.get(&id) else { return Some(request) };
        if group.is_empty() && !group.dead {
            let endings = group.state.endings();
            self.close_consumers(&id, ErrorCode::UnknownMemberId);
            let records = endings.iter().map(|change| record::write(&id, change)).collect();
            let subjects = endings.iter().map(Change::subject).collect();
            let then = Then::Grouped { group: id, subjects };
            self.clerk.append_in_parts(records, MACHINE_PROPOSAL_BYTES_MAX, then);
            return Some(request);
        }
        let replaces = request.instance.as_ref().filter(|_| request.member.is_empty());
        let replaces = replaces.and_then(|instance| group.state.holder(instance)).cloned();
        if replaces.is_some_and(|holder| self.turns_back(&id, &holder)) && self.turn_back(&id, None) {
            // A static member comes back that spoke the new protocol, the only one that did: all are classic now, and it takes its own
            // place over.
            return Some(request);
        }
        self.with_consumer(&id, |group, desk| group.classic_join(desk, token, request));
        None
    }
}

/// Members with what they have, all in the generation that they are in. `None`: some of it cannot be read.
fn upgraded(classic: &ClassicGroup, topics: &Topics) -> Option<Vec<Change>> {
    let epoch = classic.generation;
    let protocol = classic.protocol.clone().or_else(|| classic.members.vote())?;
    let mut changes = Vec::new();
    changes.push(Change::Epoch(Some(GroupEpoch { epoch, metadata_hash: 0 })));
    changes.push(Change::Assignment(Some(AssignmentEpoch { epoch, computed_ms: 0 })));
    let mut members = Vec::with_capacity(classic.members.len());
    for member in classic.members.iter() {
        let said = Subscription::read(&member.metadata(&protocol), topics)?;
        members.push((member, said, read_assignment(&member.assignment, topics)?));
    }
    let mut taken: BTreeSet<_> =
        members.iter().flat_map(|(_, _, assigned)| assigned.iter().copied()).collect();
    for (member, said, assigned) in members {
        // A cooperative member keeps what it had until it hears that it has to give it up, and the group may not know any more what that
        // was, or have told nobody yet that it is another's.
        let mut owned = assigned;
        owned.extend(said.owned.iter().filter(|at| topics.has(**at) && taken.insert(**at)));
        owned.sort_unstable();
        let mut names = said.names;
        names.sort_unstable();
        names.dedup();
        let id = || Arc::clone(&member.id);
        let metadata = MemberMetadata {
            instance: member.instance.clone(),
            rack: said.rack,
            client_id: Arc::clone(&member.client_id),
            client_host: Arc::clone(&member.client_host),
            names: names.into(),
            regex: None,
            rebalance_timeout_ms: member.rebalance_timeout_ms,
            assignor: None,
            classic: Some(Box::new(ClassicMetadata {
                session_timeout_ms: member.session_timeout_ms,
                protocols: member.protocols.clone(),
            })),
        };
        let current = Current {
            epoch,
            previous_epoch: epoch,
            assigned: owned.iter().map(|at| Owned { at: *at, since: epoch }).collect(),
            ..Current::default()
        };
        changes.push(Change::Metadata(id(), Some(Arc::new(metadata))));
        changes.push(Change::Target(id(), Some(owned.into())));
        changes.push(Change::Current(id(), Some(Arc::new(current))));
    }
    Some(changes)
}

/// Partitions of topics that exist, in order. No bytes are no partitions: the member has not got any yet.
fn read_assignment(bytes: &[u8], topics: &Topics) -> Option<Vec<TopicPartition>> {
    if bytes.is_empty() {
        return Some(Vec::new());
    }
    let assignment = decode_assignment(bytes).ok()?;
    let mut owned = BTreeSet::new();
    for assigned in &assignment.assigned_partitions {
        let Some(topic) = topics.of_name(assigned.topic) else { continue };
        let partitions = assigned.partitions.iter().map(PartitionIndex);
        owned.extend(partitions.map(|partition| TopicPartition { topic: topic.id, partition }));
    }
    Some(owned.into_iter().collect())
}

/// A classic group of all members but one, and what each has.
fn downgraded(
    group: &ConsumerGroup,
    leaver: Option<&MemberId>,
    topics: &Topics,
) -> (ClassicGroup, BTreeMap<MemberId, Bytes>) {
    let ConsumerState { members, .. } = &group.state;
    let mut classic = ClassicGroup::empty(Arc::clone(&group.id), None);
    classic.generation = group.state.group_epoch();
    classic.protocol_type = Some(Arc::from(PROTOCOL_TYPE));
    let mut assignments = BTreeMap::new();
    // The protocols of one that speaks the new protocol are those that all others know.
    let others = members.values().filter_map(|member| member.metadata.as_ref()?.classic.as_ref());
    let common = others.map(|classic| &classic.protocols).next().cloned().unwrap_or_default();
    for (id, member) in members.iter().filter(|(id, _)| Some(*id) != leaver) {
        let Some(data) = &member.metadata else { continue };
        let protocols = data.classic.as_ref().map_or(&common, |classic| &classic.protocols);
        let assignment = assignment_bytes(&member.standing().assigned, protocols, topics);
        assignments.insert(Arc::clone(id), assignment.clone());
        classic.members.insert(Member {
            id: Arc::clone(id),
            instance: data.instance.clone(),
            client_id: Arc::clone(&data.client_id),
            client_host: Arc::clone(&data.client_host),
            rebalance_timeout_ms: data.rebalance_timeout_ms,
            session_timeout_ms: data
                .classic
                .as_ref()
                .map_or(data.rebalance_timeout_ms, |c| c.session_timeout_ms),
            protocols: protocols.clone(),
            assignment,
            waiting_join: None,
            waiting_sync: None,
            is_new: false,
            session: None,
        });
    }
    classic.leader = classic.members.iter().next().map(|member| Arc::clone(&member.id));
    classic.protocol = classic.members.vote();
    (classic, assignments)
}

/// For the parts of the machine that deal with both kinds of group.
impl ConsumerGroup {
    /// A timer of a member or of the group ran out. `Some`: this member is out.
    pub(in crate::group) fn timer_ran_out(
        &mut self,
        desk: &mut Desk<'_>,
        timer: &Timer,
        due: bool,
    ) -> Option<MemberId> {
        match timer {
            _ if !due => None,
            Timer::Assign { .. } => {
                self.assign_time_is_up(desk);
                None
            }
            Timer::Session { member, .. }
            | Timer::Rebalance { member, .. }
            | Timer::MemberJoin { member, .. }
            | Timer::MemberSync { member, .. } => Some(Arc::clone(member)),
            Timer::Join { .. } | Timer::Sync { .. } => None,
        }
    }
}
