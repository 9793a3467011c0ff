//! Damage of a core's logs: where, and what is known of it. Reads and the scrub report it, health shows it.
//!
//! Owns the list and its one log line a place. It decides nothing: who reads a damaged range is refused by the read
//! itself, what lies before and behind it is served, and no other partition is touched.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ringlog_protocol::ids::{Offset, TopicPartition};

use super::core_storage::CoreStorage;
use super::log::Damage;
use super::read::ReadError;
use crate::limits::DAMAGED_PLACES_MAX;

/// Of one partition: base offset of the segment and position in it.
type Place = (TopicPartition, Offset, u64);

/// What one core found damaged. Shared with plans that run on other cores.
#[derive(Debug, Default)]
pub(crate) struct DamageList {
    places: Mutex<BTreeMap<Place, Damage>>,
    /// Reads that a device refused.
    read_errors: AtomicU64,
}

impl DamageList {
    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Place, Damage>> {
        // A panic ends the process, so nobody ever finds it half changed.
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes damage in; the first time a place is named it is logged.
    pub(crate) fn note(&self, key: TopicPartition, base: Offset, damage: Damage) {
        let mut places = self.lock();
        if places.len() >= DAMAGED_PLACES_MAX {
            return;
        }
        if let Entry::Vacant(vacant) = places.entry((key, base, damage.position)) {
            tracing::error!(topic_id = %key.topic, partition = key.partition.0, %damage, "what lies before and behind it is served");
            vacant.insert(damage);
        }
    }

    /// Takes in what a read failed of.
    pub(crate) fn note_error(&self, key: TopicPartition, base: Offset, error: &ReadError) {
        match error {
            ReadError::Corrupt { path, position, detail }
            | ReadError::BadBlock { path, position, detail } => {
                let damage = Damage { path: path.clone(), position: *position, detail: detail.clone() };
                self.note(key, base, damage);
            }
            ReadError::Io { path, position, source } => {
                self.read_errors.fetch_add(1, Ordering::Relaxed);
                let detail = format!("cannot be read: {source}");
                self.note(key, base, Damage { path: path.clone(), position: *position, detail });
            }
            ReadError::UnknownLog | ReadError::OutOfRange { .. } | ReadError::InDamage { .. } => {}
        }
    }

    /// A partition's damage is no longer of interest below this offset, or at all.
    pub(crate) fn forget(&self, key: TopicPartition, below: Offset) {
        self.lock().retain(|(damaged, base, _), _| *damaged != key || *base >= below);
    }

    /// A partition's damage from this place on is cut off.
    pub(crate) fn forget_from(&self, key: TopicPartition, base: Offset, position: u64) {
        self.lock().retain(|place, _| place.0 != key || (place.1, place.2) < (base, position));
    }

    /// A place was read and found sound: a device's error that passed, for example.
    pub(crate) fn forget_place(&self, key: TopicPartition, base: Offset, path: &Path, range: (u64, u64)) {
        let is_inside = |place: &Place, damage: &Damage| {
            place.0 == key && place.1 == base && damage.path == path && (range.0..range.1).contains(&place.2)
        };
        self.lock().retain(|place, damage| !is_inside(place, damage));
    }

    /// All of it, by partition and place.
    pub(crate) fn all(&self) -> Vec<(TopicPartition, Damage)> {
        self.lock().iter().map(|((key, ..), damage)| (*key, damage.clone())).collect()
    }

    pub(crate) fn count(&self) -> u64 {
        self.lock().len() as u64
    }

    pub(crate) fn read_errors(&self) -> u64 {
        self.read_errors.load(Ordering::Relaxed)
    }
}

impl CoreStorage {
    /// What is damaged on this core, by partition and place: what reads and the scrub found, and where a start stopped opening
    /// a log ([`super::Log::damage`]).
    #[must_use]
    pub fn damaged(&self) -> Vec<(TopicPartition, Damage)> {
        let inner = self.inner();
        let mut damaged = inner.damage.all();
        let core = inner.core.borrow();
        damaged.extend(core.logs().filter_map(|log| Some((log.key, log.damage.clone()?))));
        damaged.sort_by(|(key, damage), (other_key, other)| {
            (key, &damage.path, damage.position).cmp(&(other_key, &other.path, other.position))
        });
        damaged
    }
}

/// Where a plan reports what it finds.
#[derive(Clone, Debug)]
pub(crate) struct DamageReporter {
    pub(crate) list: Arc<DamageList>,
    pub(crate) key: TopicPartition,
    pub(crate) base: Offset,
}

impl DamageReporter {
    pub(crate) fn note(&self, error: &ReadError) {
        self.list.note_error(self.key, self.base, error);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use ringlog_protocol::ids::{PartitionIndex, TopicId};

    use super::*;

    fn key(partition: i32) -> TopicPartition {
        TopicPartition { topic: TopicId([1; 16]), partition: PartitionIndex(partition) }
    }

    fn damage(position: u64) -> Damage {
        Damage { path: PathBuf::from("a.log"), position, detail: "x".to_owned() }
    }

    #[test]
    fn a_place_is_kept_once_and_goes_with_its_segment() {
        let list = DamageList::default();
        list.note(key(0), Offset(0), damage(10));
        list.note(key(0), Offset(0), damage(10));
        list.note(key(0), Offset(50), damage(7));
        list.note(key(1), Offset(0), damage(10));
        assert_eq!(list.count(), 3);
        list.forget(key(0), Offset(50));
        assert_eq!(list.all(), [(key(0), damage(7)), (key(1), damage(10))]);
        list.forget_place(key(1), Offset(0), Path::new("a.log"), (11, 20));
        list.forget_place(key(1), Offset(0), Path::new("a.log"), (0, 11));
        assert_eq!(list.all(), [(key(0), damage(7))]);
        list.forget(key(0), Offset(i64::MAX));
        assert_eq!(list.count(), 0);
    }

    #[test]
    fn the_list_is_bounded() {
        let list = DamageList::default();
        (0..10_000).for_each(|position| list.note(key(0), Offset(0), damage(position)));
        assert_eq!(list.count(), DAMAGED_PLACES_MAX as u64);
    }
}
