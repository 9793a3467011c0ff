//! What goes: groups that are deleted, offsets of deleted topics, and what nobody has asked for in a long time.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::TopicId;
use ringlog_shard::limits::{GROUPS_EXPIRED_AT_ONCE, MACHINE_PROPOSAL_BYTES_MAX};

use super::classic::{ClassicGroup, GroupState};
use super::clerk::{OffsetKey, OffsetsInFlight, Then};
use super::durable::CommittedOffset;
use super::event::{DeletedTopic, GroupId, Token};
use super::machine::GroupMachine;
use super::record;
use super::reply::{DeletedGroup, KeyedRecord, Reply};

impl GroupMachine {
    /// Deletes groups without members, with their offsets and those on their way into the log.
    pub(super) fn delete_groups(&mut self, token: Token, groups: Vec<GroupId>) {
        let in_flight = self.clerk.offsets_in_flight();
        let mut results = Vec::new();
        let mut records = Vec::new();
        let mut deleted = Vec::new();
        for id in groups {
            let refused = self.check_group_delete(&id);
            if refused.is_none() {
                let keys = self
                    .offset_keys(&id)
                    .chain(in_flight.get(&id).into_iter().flat_map(|flying| flying.keys()).cloned());
                let keys: BTreeSet<OffsetKey> = keys.collect();
                records.extend(keys.iter().filter_map(|key| record::offset_tombstone(&id, key).ok()));
                records.extend(self.bury_any(&id));
                deleted.push(Arc::clone(&id));
            }
            let (error, message) = refused.map_or((ErrorCode::None, None), |(error, m)| (error, Some(m)));
            results.push(DeletedGroup { group: id, error, message });
        }
        self.clerk.append_in_parts(records, MACHINE_PROPOSAL_BYTES_MAX, Then::Deleted { groups: deleted });
        self.clerk.answer_after_appends(token, Reply::DeleteGroups(results));
    }

    fn check_group_delete(&self, id: &GroupId) -> Option<(ErrorCode, String)> {
        if let Some(checked) = self.check_consumers_delete(id) {
            return checked.err();
        }
        match self.live.get(id).map(|group| (group.state, group.members.len())) {
            None | Some((GroupState::Dead, _)) => {
                Some((ErrorCode::GroupIdNotFound, format!("group {id} does not exist")))
            }
            Some((GroupState::Empty, _)) => None,
            Some((_, count)) => Some((ErrorCode::NonEmptyGroup, format!("group {id} has {count} members"))),
        }
    }

    /// The records that end a group of either kind, written even where the log holds nothing of it: a record of it may be on its way.
    fn bury_any(&mut self, id: &GroupId) -> Vec<KeyedRecord> {
        if self.consumers.contains_key(id) {
            return self.bury_consumers(id);
        }
        self.bury(id);
        record::group_tombstone(id).into_iter().collect()
    }

    /// Until the deletion is in the log, nobody joins and nothing is committed.
    fn bury(&mut self, id: &GroupId) {
        self.with_group(id, |group, clerk| {
            for member in group.pending.keys().cloned().collect::<Vec<_>>() {
                group.remove_pending(clerk, &member, true);
            }
            let now_ms = clerk.now_ms();
            let since_ms = group.since_ms;
            group.enter(GroupState::Dead, now_ms);
            // Where the deletion fails it is as empty as it was.
            group.since_ms = since_ms;
        });
    }

    fn offset_keys(&self, id: &GroupId) -> impl Iterator<Item = OffsetKey> {
        let topics = self.durable.offsets().get(id).into_iter().flatten();
        topics.flat_map(|(topic, partitions)| partitions.keys().map(|index| (Arc::clone(topic), *index)))
    }

    /// Forgets the offsets of topics that are no more. A topic of the same name made since has another id and keeps its offsets.
    pub(super) fn topics_deleted(&mut self, deleted: &[DeletedTopic]) {
        let mut records = Vec::new();
        let in_flight = self.clerk.offsets_in_flight();
        for group in self.live.keys().chain(self.consumers.keys()) {
            let known = self.durable.offsets().get(group);
            let flying = in_flight.get(group);
            for DeletedTopic { name, id } in deleted {
                let mut newest: BTreeMap<i32, TopicId> = BTreeMap::new();
                let durable = known.and_then(|topics| topics.get(name)).into_iter().flatten();
                newest.extend(durable.map(|(index, offset)| (*index, offset.topic_id)));
                let flying = flying.into_iter().flatten().filter(|((topic, _), _)| topic == name);
                newest.extend(flying.map(|((_, index), id)| (*index, *id)));
                let gone = newest.into_iter().filter(|(_, of)| of.is_zero() || of == id);
                let keys = gone.map(|(index, _)| (Arc::clone(name), index));
                records.extend(keys.filter_map(|key| record::offset_tombstone(group, &key).ok()));
            }
        }
        self.clerk.append_in_parts(records, MACHINE_PROPOSAL_BYTES_MAX, Then::Nothing);
    }

    /// Looks at some groups for what may go.
    pub(super) fn expire(&mut self) {
        let from = self.expire_after.take().map_or(Bound::Unbounded, Bound::Excluded);
        let ids = self.groups_after(from);
        if ids.len() == GROUPS_EXPIRED_AT_ONCE {
            self.expire_after = ids.last().cloned();
            self.clerk.step.unfinished = true;
        }
        let in_flight = self.clerk.offsets_in_flight();
        let none = OffsetsInFlight::new();
        let mut records = Vec::new();
        let mut deleted = Vec::new();
        for id in ids {
            let flying = in_flight.get(&id).unwrap_or(&none);
            let (empty, kept_since) = match (self.live.get(&id), self.consumers.get(&id)) {
                (Some(group), _) => {
                    (group.state == GroupState::Empty && group.pending.is_empty(), kept_since(group))
                }
                (None, Some(group)) => {
                    let empty = group.is_empty() && !group.dead && self.is_settled(&id);
                    (empty, Some(KeptSince::Commit))
                }
                (None, None) => continue,
            };
            let all_gone = self.expire_offsets(&id, kept_since, flying, &mut records);
            if empty && flying.is_empty() && all_gone {
                records.extend(self.bury_any(&id));
                deleted.push(id);
            }
        }
        self.clerk.append_in_parts(records, MACHINE_PROPOSAL_BYTES_MAX, Then::Deleted { groups: deleted });
    }

    /// Some groups of either kind, by name.
    fn groups_after(&self, from: Bound<GroupId>) -> Vec<GroupId> {
        let bounds = (from, Bound::Unbounded);
        let classic = self.live.range::<GroupId, _>(bounds.clone()).map(|(id, _)| id);
        let consumers = self.consumers.range::<GroupId, _>(bounds).map(|(id, _)| id);
        let mut ids: Vec<GroupId> = classic
            .take(GROUPS_EXPIRED_AT_ONCE)
            .chain(consumers.take(GROUPS_EXPIRED_AT_ONCE))
            .cloned()
            .collect();
        ids.sort_unstable();
        ids.truncate(GROUPS_EXPIRED_AT_ONCE);
        ids
    }

    /// Whether no offset of the group is left.
    fn expire_offsets(
        &self,
        id: &GroupId,
        kept_since: Option<KeptSince>,
        flying: &OffsetsInFlight,
        records: &mut Vec<KeyedRecord>,
    ) -> bool {
        let Some(topics) = self.durable.offsets().get(id) else { return true };
        let Some(since) = kept_since else { return false };
        let wishes = self.live.get(id).map(ClassicGroup::wishes);
        let consumers = self.consumers.get(id);
        let mut all_gone = true;
        for (topic, partitions) in topics {
            let wanted = wishes.as_ref().is_some_and(|wishes| wishes.may_include(topic))
                || consumers.is_some_and(|group| group.is_subscribed(topic));
            for (index, offset) in partitions {
                let key = (Arc::clone(topic), *index);
                let expired = !wanted && !flying.contains_key(&key) && self.is_expired(offset, since);
                match record::offset_tombstone(id, &key) {
                    Ok(record) if expired => records.push(record),
                    _ => all_gone = false,
                }
            }
        }
        all_gone
    }

    fn is_expired(&self, offset: &CommittedOffset, since: KeptSince) -> bool {
        let now_ms = self.clerk.now_ms();
        if let Some(expire_ms) = offset.expire_ms {
            return now_ms >= expire_ms;
        }
        let base_ms = match since {
            KeptSince::Commit => offset.commit_ms,
            KeptSince::Moment(since_ms) => since_ms,
        };
        now_ms.saturating_sub(base_ms) >= self.clerk.settings.offsets_retention_ms
    }
}

/// From when on the time runs for which offsets are kept.
#[derive(Clone, Copy)]
enum KeptSince {
    /// From each one's commit.
    Commit,
    /// From when the last member left, in milliseconds since the Unix epoch. As Kafka does, an offset committed since then goes with the
    /// others.
    Moment(i64),
}

/// `None`: the group's offsets do not expire as it stands.
fn kept_since(group: &ClassicGroup) -> Option<KeptSince> {
    match group.state {
        // Consumers that assign themselves: the group is always empty.
        GroupState::Empty if group.protocol_type.is_none() => Some(KeptSince::Commit),
        GroupState::Empty => Some(group.since_ms.map_or(KeptSince::Commit, KeptSince::Moment)),
        GroupState::Stable if group.is_of_consumers() => Some(KeptSince::Commit),
        _ => None,
    }
}
