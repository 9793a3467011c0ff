//! OffsetCommit and OffsetDelete: whose offsets are taken, and which may be forgotten.

use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::group::generated::offset_commit::OffsetCommitValue;
use ringlog_protocol::ids::TopicId;
use ringlog_shard::limits::{GROUP_TEXT_BYTES_MAX, MACHINE_PROPOSAL_BYTES_MAX};

use super::classic::{ClassicGroup, GroupState};
use super::clerk::{OffsetKey, Then};
use super::consumer::CommitRule;
use super::event::{CommitPartition, CommitRequest, CommitTopic, OffsetDeleteRequest, Token};
use super::machine::GroupMachine;
use super::record;
use super::reply::{CommitReply, CommittedTopic, ForgottenOffsets, KeyedRecord, OffsetDeleteReply, Reply};

/// OffsetCommit versions from here on know of groups that do not exist.
const KNOWS_MISSING_GROUPS_SINCE: i16 = 9;

/// Records that a commit comes to, and what each partition is told.
#[derive(Default)]
struct Commit {
    records: Vec<KeyedRecord>,
    bytes: usize,
    keys: Vec<(OffsetKey, TopicId)>,
    topics: Vec<CommittedTopic>,
}

impl GroupMachine {
    pub(super) fn commit_offsets(&mut self, token: Token, request: &CommitRequest) {
        let reply = match self.check_commit(request) {
            Ok(rule) => self.write_commit(request, &rule),
            Err(error) => CommitReply::all(&request.topics, error),
        };
        self.clerk.answer_after_appends(token, Reply::CommitOffsets(reply));
    }

    fn check_commit(&self, request: &CommitRequest) -> Result<CommitRule, ErrorCode> {
        // The empty name is that of clients from before groups had members.
        if request.group.len() > GROUP_TEXT_BYTES_MAX {
            return Err(ErrorCode::InvalidGroupId);
        }
        if let Some(group) = self.consumers.get(&request.group) {
            return group.check_commit(request);
        }
        let checked = match self.live.get(&request.group) {
            Some(group) => group.check_commit(request),
            // Of no member: it makes a group that has offsets only.
            None if request.generation < 0 => Ok(()),
            None if request.version >= KNOWS_MISSING_GROUPS_SINCE => Err(ErrorCode::GroupIdNotFound),
            None => Err(ErrorCode::IllegalGeneration),
        };
        checked.map(|()| CommitRule::All)
    }

    fn write_commit(&mut self, request: &CommitRequest, rule: &CommitRule) -> CommitReply {
        let mut commit = Commit::default();
        for topic in &request.topics {
            let partitions = topic.partitions.iter().map(|partition| {
                let written = match rule.allows(&self.topics, topic, partition.index) {
                    true => self.write_offset(request, topic, partition, &mut commit),
                    false => ErrorCode::StaleMemberEpoch,
                };
                (partition.index, written)
            });
            let partitions = partitions.collect();
            commit.topics.push(CommittedTopic { name: Arc::clone(&topic.name), id: topic.id, partitions });
        }
        // A member that commits is alive.
        self.with_group(&request.group, |group, clerk| {
            if matches!(group.state, GroupState::Stable | GroupState::PreparingRebalance) {
                group.arm_session(clerk, &request.member);
            }
        });
        let Commit { records, bytes, keys, topics } = commit;
        if records.is_empty() {
            return CommitReply { message: None, topics };
        }
        if bytes > MACHINE_PROPOSAL_BYTES_MAX {
            let message =
                format!("{bytes} bytes of offsets, more than the {MACHINE_PROPOSAL_BYTES_MAX} of one commit");
            return CommitReply::all(&request.topics, ErrorCode::InvalidCommitOffsetSize).because(message);
        }
        let known = self.live.contains_key(&request.group) || self.consumers.contains_key(&request.group);
        if let Err(message) = self.room(usize::from(!known), bytes) {
            let reply = CommitReply::all(&request.topics, ErrorCode::CoordinatorNotAvailable);
            return reply.because(message);
        }
        if !known {
            self.create(&request.group);
        }
        self.clerk.append(records, Then::OffsetsWritten { group: Arc::clone(&request.group), keys });
        CommitReply { message: None, topics }
    }

    fn write_offset(
        &self,
        request: &CommitRequest,
        topic: &CommitTopic,
        partition: &CommitPartition,
        commit: &mut Commit,
    ) -> ErrorCode {
        let metadata = partition.metadata.as_deref().unwrap_or("");
        let max = self.clerk.settings.offset_metadata_max;
        // No text has more units than bytes.
        if metadata.len() > max && metadata.encode_utf16().count() > max {
            return ErrorCode::OffsetMetadataTooLarge;
        }
        let now_ms = self.clerk.now_ms();
        let value = OffsetCommitValue {
            offset: partition.offset,
            leader_epoch: partition.leader_epoch,
            metadata,
            commit_timestamp: now_ms,
            expire_timestamp: request.retention_ms.map_or(-1, |kept_ms| now_ms.saturating_add(kept_ms)),
            topic_id: topic.id,
        };
        match record::offset(&request.group, &topic.name, partition.index, value) {
            Ok(record) => {
                commit.bytes += record.bytes();
                commit.records.push(record);
                commit.keys.push(((Arc::clone(&topic.name), partition.index), topic.id));
                ErrorCode::None
            }
            // The only part that the caller's checks leave too long.
            Err(_) => ErrorCode::OffsetMetadataTooLarge,
        }
    }

    pub(super) fn delete_offsets(&mut self, token: Token, request: &OffsetDeleteRequest) {
        let reply = match self.check_offset_delete(request) {
            Err(error) => OffsetDeleteReply { error, topics: Vec::new() },
            Ok(()) => self.write_offset_delete(request),
        };
        self.clerk.answer_after_appends(token, Reply::DeleteOffsets(reply));
    }

    fn check_offset_delete(&self, request: &OffsetDeleteRequest) -> Result<(), ErrorCode> {
        if request.group.is_empty() {
            return Err(ErrorCode::InvalidGroupId);
        }
        if let Some(group) = self.consumers.get(&request.group) {
            return if group.dead { Err(ErrorCode::GroupIdNotFound) } else { Ok(()) };
        }
        let group = self.live.get(&request.group).ok_or(ErrorCode::GroupIdNotFound)?;
        match group.state {
            GroupState::Dead => Err(ErrorCode::GroupIdNotFound),
            GroupState::Empty => Ok(()),
            // What members of other types want cannot be read.
            _ if group.is_of_consumers() => Ok(()),
            _ => Err(ErrorCode::NonEmptyGroup),
        }
    }

    fn write_offset_delete(&mut self, request: &OffsetDeleteRequest) -> OffsetDeleteReply {
        let id = &request.group;
        let in_flight = self.clerk.offsets_in_flight().remove(id).unwrap_or_default();
        let mut records = Vec::new();
        let mut topics = Vec::new();
        let wishes = self.live.get(id).map(ClassicGroup::wishes);
        let consumers = self.consumers.get(id);
        for (topic, partitions) in &request.topics {
            let wanted = wishes.as_ref().is_some_and(|wishes| wishes.may_include(topic))
                || consumers.is_some_and(|group| group.is_subscribed(topic));
            let error = if wanted { ErrorCode::GroupSubscribedToTopic } else { ErrorCode::None };
            let results = partitions.iter().map(|index| (*index, error)).collect();
            topics.push(ForgottenOffsets { topic: Arc::clone(topic), partitions: results });
            if wanted {
                continue;
            }
            for index in partitions {
                let key = (Arc::clone(topic), *index);
                let known = self.durable.offset(id, topic, *index).is_some() || in_flight.contains_key(&key);
                if known && let Ok(record) = record::offset_tombstone(id, &key) {
                    records.push(record);
                }
            }
        }
        self.clerk.append_in_parts(records, MACHINE_PROPOSAL_BYTES_MAX, Then::Nothing);
        OffsetDeleteReply { error: ErrorCode::None, topics }
    }
}

impl ClassicGroup {
    fn check_commit(&self, request: &CommitRequest) -> Result<(), ErrorCode> {
        let CommitRequest { generation, member, instance, .. } = request;
        if self.state == GroupState::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        if *generation < 0 && self.state == GroupState::Empty {
            // An operator, or a consumer that assigns itself: nobody else reads by these offsets.
            return Ok(());
        }
        if *generation < 0 && member.is_empty() && instance.is_none() {
            return Err(ErrorCode::UnknownMemberId);
        }
        self.check_member(member, instance.as_deref())?;
        if *generation != self.generation {
            return Err(ErrorCode::IllegalGeneration);
        }
        if self.state == GroupState::CompletingRebalance {
            // It knows the new generation and commits what it read in the last: it shall join again.
            return Err(ErrorCode::RebalanceInProgress);
        }
        Ok(())
    }
}
