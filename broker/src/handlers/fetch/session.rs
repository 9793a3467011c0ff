//! One fetch session (KIP-227), as its home core holds it: which partitions a client wants without naming them again, and what it was shown
//! of each. Pure: no I/O, no clock.
//!
//! Order as in Kafka: partitions that returned records go to the end, so that a bound of bytes starves none.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition};
use ringlog_protocol::messages::fetch::{FetchPartition, FetchRequest};
use ringlog_shard::mesh::CoreId;
use ringlog_shard::placement::core_of;

use crate::controller::MetadataImage;
use crate::core::epochs::ReaderEpochs;
use crate::core::messages::{FetchSessionId, PartitionState, PositionPart, SlotChange};
use crate::handlers::topics;

pub mod cache;
#[cfg(test)]
mod tests;

/// The epoch of a request that begins a session.
pub(super) const INITIAL_EPOCH: i32 = 0;
/// The epoch of a request without a session, or that ends one.
pub(super) const FINAL_EPOCH: i32 = -1;
/// Not an offset: whatever comes next differs from it.
const NOTHING_SHOWN: Offset = Offset(-1);

/// A topic as the session's requests name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TopicName {
    Name(Arc<str>),
    Id(TopicId),
}

/// See the module.
///
/// Invariants: `slots` and `entries` hold the same partitions; `turns` holds the slots in the order of answers; `unresolved` holds those
/// that have no owner.
#[derive(Debug)]
pub struct FetchSession {
    pub(super) id: FetchSessionId,
    /// The next request must have it.
    epoch: i32,
    by_id: bool,
    core_count: u32,
    entries: BTreeMap<u32, Entry>,
    slots: BTreeMap<(TopicName, i32), u32>,
    turns: BTreeMap<u64, u32>,
    unresolved: BTreeSet<u32>,
    /// What owners do not know yet.
    untold: BTreeMap<CoreId, BTreeMap<u32, Option<PositionPart>>>,
    /// Partitions of each owner, among them those it does not know yet.
    owners: BTreeMap<CoreId, usize>,
    next_slot: u32,
    next_turn: u64,
    /// Topics were looked up in the image of this offset.
    resolved_at: Offset,
}

/// A partition of a session.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) topic: TopicName,
    pub(super) index: i32,
    from: Offset,
    epochs: ReaderEpochs,
    pub(super) bytes_max: u32,
    turn: u64,
    pub(super) position: Result<PositionPart, ErrorCode>,
    shown_high_watermark: Offset,
    shown_log_start: Offset,
}

impl FetchSession {
    /// A session of no partitions, whose next request has epoch 1.
    pub(super) fn new(id: FetchSessionId, by_id: bool, core_count: u32) -> FetchSession {
        FetchSession {
            id,
            epoch: 1,
            by_id,
            core_count,
            entries: BTreeMap::new(),
            slots: BTreeMap::new(),
            turns: BTreeMap::new(),
            unresolved: BTreeSet::new(),
            untold: BTreeMap::new(),
            owners: BTreeMap::new(),
            next_slot: 0,
            next_turn: 0,
            resolved_at: Offset(0),
        }
    }

    /// Whether a request of this epoch and version is the session's next one; then it was, and another epoch is next.
    ///
    /// # Errors
    /// INVALID_FETCH_SESSION_EPOCH (71): a request was lost or came twice. FETCH_SESSION_TOPIC_ID_ERROR (106): the session's requests
    /// name topics in the other way.
    pub(super) fn begin(&mut self, epoch: i32, by_id: bool) -> Result<(), ErrorCode> {
        if epoch != self.epoch {
            return Err(ErrorCode::InvalidFetchSessionEpoch);
        }
        if by_id != self.by_id {
            return Err(ErrorCode::FetchSessionTopicIdError);
        }
        self.epoch = if epoch == i32::MAX { 1 } else { epoch + 1 };
        Ok(())
    }

    /// Takes over what a request says: partitions that are new or asked for from elsewhere, and those that leave.
    pub(super) fn update(&mut self, image: &MetadataImage, fetch: &FetchRequest<'_>) {
        if image.next_offset() != self.resolved_at {
            self.resolve_again(image);
        }
        for topic in &fetch.topics {
            let name = self.topic_name(topic.topic, topic.topic_id);
            for partition in &topic.partitions {
                self.want(image, &name, partition);
            }
        }
        for topic in &fetch.forgotten_topics_data {
            let name = self.topic_name(topic.topic, topic.topic_id);
            for index in topic.partitions.iter() {
                self.forget((name.clone(), index));
            }
        }
    }

    fn topic_name(&self, name: &str, id: TopicId) -> TopicName {
        if self.by_id { TopicName::Id(id) } else { TopicName::Name(Arc::from(name)) }
    }

    fn want(&mut self, image: &MetadataImage, topic: &TopicName, asked: &FetchPartition) {
        let key = (topic.clone(), asked.partition);
        let slot = self.slots.get(&key).copied().unwrap_or_else(|| self.enter(key));
        let Some(entry) = self.entries.get_mut(&slot) else { return };
        entry.from = Offset(asked.fetch_offset);
        entry.epochs = ReaderEpochs {
            believed: LeaderEpoch(asked.current_leader_epoch),
            last_fetched: LeaderEpoch(asked.last_fetched_epoch),
        };
        entry.bytes_max = u32::try_from(asked.partition_max_bytes).unwrap_or(0);
        let position = entry.resolve(image);
        self.place(slot, position);
    }

    fn enter(&mut self, key: (TopicName, i32)) -> u32 {
        let (slot, turn) = (self.next_slot, self.next_turn);
        self.next_slot += 1;
        self.next_turn += 1;
        let entry = Entry {
            topic: key.0.clone(),
            index: key.1,
            from: Offset(0),
            epochs: ReaderEpochs::NONE,
            bytes_max: 0,
            turn,
            position: Err(ErrorCode::UnknownTopicOrPartition),
            shown_high_watermark: NOTHING_SHOWN,
            shown_log_start: NOTHING_SHOWN,
        };
        self.entries.insert(slot, entry);
        self.turns.insert(turn, slot);
        self.slots.insert(key, slot);
        self.unresolved.insert(slot);
        slot
    }

    /// The entry stands here now; owners will be told.
    fn place(&mut self, slot: u32, position: Result<PositionPart, ErrorCode>) {
        let Some(entry) = self.entries.get_mut(&slot) else { return };
        let owner = |position: PositionPart| CoreId(core_of(position.key, self.core_count));
        let before = entry.position.ok().map(owner);
        let after = position.ok().map(owner);
        entry.position = position;
        if before != after {
            if let Some(before) = before {
                self.untold.entry(before).or_default().insert(slot, None);
                self.leave(before);
            }
            if let Some(after) = after {
                *self.owners.entry(after).or_default() += 1;
            }
        }
        match (position, after) {
            (Ok(position), Some(owner)) => {
                self.unresolved.remove(&slot);
                self.untold.entry(owner).or_default().insert(slot, Some(position));
            }
            _ => {
                self.unresolved.insert(slot);
            }
        }
    }

    fn leave(&mut self, owner: CoreId) {
        if let Some(count) = self.owners.get_mut(&owner) {
            *count -= 1;
        }
    }

    fn forget(&mut self, key: (TopicName, i32)) {
        let Some(slot) = self.slots.remove(&key) else { return };
        self.place(slot, Err(ErrorCode::UnknownTopicOrPartition));
        self.unresolved.remove(&slot);
        if let Some(entry) = self.entries.remove(&slot) {
            self.turns.remove(&entry.turn);
        }
    }

    /// Topics may be gone, or be others under the same names.
    fn resolve_again(&mut self, image: &MetadataImage) {
        self.resolved_at = image.next_offset();
        let moved: Vec<_> = self
            .entries
            .iter()
            .map(|(slot, entry)| (*slot, entry.resolve(image)))
            .filter(|(slot, position)| self.entries[slot].position != *position)
            .collect();
        moved.into_iter().for_each(|(slot, position)| self.place(slot, position));
    }

    /// What to ask each core of that has a part of this session: what it does not know yet, and with it all that has news there.
    pub(super) fn questions(&mut self) -> Vec<(CoreId, Vec<SlotChange>)> {
        let mut untold = std::mem::take(&mut self.untold);
        for (owner, _) in self.owners.iter().filter(|(_, count)| **count > 0) {
            untold.entry(*owner).or_default();
        }
        let changes = |changes: BTreeMap<u32, Option<PositionPart>>| {
            changes.into_iter().map(|(slot, position)| SlotChange { slot, position }).collect()
        };
        untold.into_iter().map(|(owner, slots)| (owner, changes(slots))).collect()
    }

    /// Cores on which it has partitions now.
    pub(super) fn owners_now(&self) -> impl Iterator<Item = CoreId> {
        self.owners.iter().filter(|(_, count)| **count > 0).map(|(owner, _)| *owner)
    }

    /// Slots of partitions that nobody owns: their errors are in every answer.
    pub(super) fn unresolved(&self) -> impl Iterator<Item = u32> {
        self.unresolved.iter().copied()
    }

    pub(super) fn entry(&self, slot: u32) -> Option<&Entry> {
        self.entries.get(&slot)
    }

    /// These slots in the order of answers, with their entries; those that left are left out.
    pub(super) fn in_order(&self, slots: impl Iterator<Item = u32>) -> Vec<(u32, &Entry)> {
        let mut found: Vec<_> = slots.filter_map(|slot| Some((slot, self.entries.get(&slot)?))).collect();
        found.sort_by_key(|(_, entry)| entry.turn);
        found
    }

    /// Whether the client must be shown this of the slot (KIP-227: errors, records, and ends that moved), and remembers that it was.
    pub(super) fn shows(&mut self, slot: u32, state: &PartitionState, bytes: u64) -> bool {
        let Some(entry) = self.entries.get_mut(&slot) else { return false };
        let is_news = entry.differs(state) || bytes > 0;
        entry.note_shown(state);
        if bytes > 0 {
            self.turns.remove(&entry.turn);
            entry.turn = self.next_turn;
            self.turns.insert(entry.turn, slot);
            self.next_turn += 1;
        }
        is_news
    }

    /// The client was shown this in the full answer that began the session.
    pub(super) fn note_shown(&mut self, key: TopicPartition, topic: &TopicName, state: &PartitionState) {
        let slot = self.slots.get(&(topic.clone(), key.partition.0));
        if let Some(entry) = slot.and_then(|slot| self.entries.get_mut(slot)) {
            entry.note_shown(state);
        }
    }

    /// Partitions in it.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.slots.len(), self.entries.len());
        assert_eq!(self.turns.len(), self.entries.len());
        for (turn, slot) in &self.turns {
            assert_eq!(self.entries[slot].turn, *turn);
        }
        let unresolved: BTreeSet<u32> =
            self.entries.iter().filter(|(_, entry)| entry.position.is_err()).map(|(slot, _)| *slot).collect();
        assert_eq!(self.unresolved, unresolved);
        let owned: usize = self.owners.values().sum();
        assert_eq!(owned + unresolved.len(), self.entries.len());
    }
}

impl TopicName {
    /// Name and id as an answer has them: one of them.
    pub(super) fn parts(&self) -> (&str, TopicId) {
        match self {
            TopicName::Name(name) => (name, TopicId::ZERO),
            TopicName::Id(id) => ("", *id),
        }
    }
}

impl Entry {
    fn resolve(&self, image: &MetadataImage) -> Result<PositionPart, ErrorCode> {
        let topic = match &self.topic {
            TopicName::Name(name) => topics::by_name(image, name),
            TopicName::Id(id) => topics::by_id(image, *id),
        };
        let topic = topics::partition(&topic, self.index)?;
        let key = TopicPartition { topic: topic.id, partition: PartitionIndex(self.index) };
        Ok(PositionPart { key, from: self.from, epochs: self.epochs })
    }

    fn differs(&self, state: &PartitionState) -> bool {
        state.is_final()
            || state.high_watermark != self.shown_high_watermark
            || state.log_start != self.shown_log_start
    }

    /// After an error the partition is shown again, even where nothing else changed.
    fn note_shown(&mut self, state: &PartitionState) {
        let failed = state.error != ErrorCode::None;
        self.shown_high_watermark = if failed { NOTHING_SHOWN } else { state.high_watermark };
        self.shown_log_start = state.log_start;
    }
}
