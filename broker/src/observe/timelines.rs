//! Owns the last rebalances of a shard's groups, for people: bounded, in memory, gone with the process. The shard never waits for who
//! reads them: what it cannot add now it adds with the next.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use ringlog_shard::limits::{
    GROUP_TIMELINE_BYTES_PER_CORE_MAX, GROUP_TIMELINE_LENGTH_MAX, GROUP_TIMELINES_PER_CORE_MAX,
};

use crate::group::{GroupId, Rebalance, Settled};

/// The side of the readers; clones read the same.
#[derive(Debug, Clone, Default)]
pub struct Timelines(Arc<Mutex<Book>>);

/// The side of the shard.
#[derive(Debug, Default)]
pub struct TimelineWriter {
    shared: Timelines,
    /// Oldest first.
    pending: VecDeque<(GroupId, News)>,
}

#[derive(Debug)]
enum News {
    Ended(Rebalance),
    Settled(Settled),
}

#[derive(Debug, Default)]
struct Book {
    groups: BTreeMap<GroupId, Timeline>,
    /// Groups by the number of their newest rebalance.
    by_age: BTreeMap<u64, GroupId>,
    number: u64,
    bytes: usize,
}

#[derive(Debug, Default)]
struct Timeline {
    number: u64,
    /// Oldest first.
    rebalances: VecDeque<Arc<Rebalance>>,
}

impl Timelines {
    /// The last rebalances of a group, the newest first; of one that is gone too, until others take its place.
    pub fn of(&self, group: &str) -> Vec<Arc<Rebalance>> {
        let book = self.lock();
        let timeline = book.groups.get(group);
        timeline.into_iter().flat_map(|timeline| timeline.rebalances.iter().rev().cloned()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TimelineWriter {
    pub fn shared(&self) -> Timelines {
        self.shared.clone()
    }

    pub fn add(&mut self, group: GroupId, rebalance: Rebalance) {
        self.push(group, News::Ended(rebalance));
    }

    /// All members came to what one of them was about.
    pub fn settle(&mut self, group: GroupId, settled: Settled) {
        self.push(group, News::Settled(settled));
    }

    fn push(&mut self, group: GroupId, news: News) {
        // A reader holds the lock for the copy of a few pointers: this is far more than comes meanwhile.
        if self.pending.len() >= GROUP_TIMELINES_PER_CORE_MAX {
            self.pending.pop_front();
        }
        self.pending.push_back((group, news));
        self.flush();
    }

    /// Shows what is not shown yet, unless a reader is at it right now.
    pub fn flush(&mut self) {
        let mut book = match self.shared.0.try_lock() {
            Ok(book) => book,
            Err(TryLockError::WouldBlock) => return,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        };
        for (group, news) in self.pending.drain(..) {
            match news {
                News::Ended(rebalance) => book.add(group, rebalance),
                News::Settled(settled) => book.settle(&group, settled),
            }
        }
    }
}

impl Book {
    fn add(&mut self, group: GroupId, rebalance: Rebalance) {
        self.number += 1;
        if !self.groups.contains_key(&group) {
            self.bytes += group.len();
        }
        self.bytes += rebalance.bytes();
        let timeline = self.groups.entry(Arc::clone(&group)).or_default();
        self.by_age.remove(&timeline.number);
        timeline.number = self.number;
        timeline.rebalances.push_back(Arc::new(rebalance));
        if timeline.rebalances.len() > GROUP_TIMELINE_LENGTH_MAX
            && let Some(oldest) = timeline.rebalances.pop_front()
        {
            self.bytes -= oldest.bytes();
        }
        self.by_age.insert(self.number, group);
        while self.groups.len() > GROUP_TIMELINES_PER_CORE_MAX
            || self.bytes > GROUP_TIMELINE_BYTES_PER_CORE_MAX
        {
            let Some((_, oldest)) = self.by_age.pop_first() else { return };
            self.forget(&oldest);
        }
    }

    /// Nothing where the rebalance is not remembered any more.
    fn settle(&mut self, group: &str, settled: Settled) {
        let Some(timeline) = self.groups.get_mut(group) else { return };
        let of_it = |rebalance: &&mut Arc<Rebalance>| rebalance.generation == settled.generation;
        if let Some(rebalance) = timeline.rebalances.iter_mut().rev().find(of_it) {
            Arc::make_mut(rebalance).settled_ms = Some(settled.at_ms);
        }
    }

    fn forget(&mut self, group: &str) {
        if let Some(timeline) = self.groups.remove(group) {
            let bytes = timeline.rebalances.iter().map(|rebalance| rebalance.bytes()).sum::<usize>();
            self.bytes -= bytes + group.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{Cause, Trigger};

    fn rebalance(generation: i32, reason_bytes: usize) -> Rebalance {
        let trigger = Trigger {
            cause: Cause::Left,
            member: "m".into(),
            instance: None,
            client_id: "c".into(),
            client_host: "/h".into(),
            reason: Some("x".repeat(reason_bytes).into()),
        };
        Rebalance {
            began_ms: 0,
            ended_ms: 1,
            generation,
            members_before: 1,
            members: 0,
            triggers: vec![trigger],
            triggers_left_out: 0,
            moves: None,
            settled_ms: None,
        }
    }

    fn generations(timelines: &Timelines, group: &str) -> Vec<i32> {
        timelines.of(group).iter().map(|rebalance| rebalance.generation).collect()
    }

    #[test]
    fn the_last_rebalances_of_a_group_are_kept_the_newest_first() {
        let mut writer = TimelineWriter::default();
        for generation in 0..100 {
            writer.add("g".into(), rebalance(generation, 3));
        }
        let expected: Vec<i32> = (90..100).rev().collect();
        assert_eq!(generations(&writer.shared(), "g"), expected);
        assert_eq!(generations(&writer.shared(), "h"), Vec::<i32>::new());
    }

    #[test]
    fn groups_that_rebalanced_last_stay_within_the_bounds() {
        let mut writer = TimelineWriter::default();
        for number in 0..GROUP_TIMELINES_PER_CORE_MAX + 10 {
            writer.add(format!("g{number}").into(), rebalance(1, 3));
            writer.add("always".into(), rebalance(1, 3));
        }
        let shared = writer.shared();
        assert_eq!(shared.lock().groups.len(), GROUP_TIMELINES_PER_CORE_MAX);
        assert_eq!(generations(&shared, "g0"), Vec::<i32>::new());
        assert_eq!(generations(&shared, "always").len(), GROUP_TIMELINE_LENGTH_MAX);
        for number in 0..100 {
            writer.add(format!("large{number}").into(), rebalance(1, 100_000));
            assert!(shared.lock().bytes <= GROUP_TIMELINE_BYTES_PER_CORE_MAX);
        }
        let mut book = shared.lock();
        assert_eq!(book.by_age.len(), book.groups.len());
        while let Some((_, oldest)) = book.by_age.pop_first() {
            book.forget(&oldest);
        }
        assert_eq!((book.bytes, book.groups.len()), (0, 0), "what is counted is what is there");
    }

    #[test]
    fn a_rebalance_is_told_to_have_settled_while_it_is_remembered() {
        let mut writer = TimelineWriter::default();
        let settled = |generation| Settled { generation, at_ms: 7 };
        writer.settle("g".into(), settled(1));
        (1..=2).for_each(|generation| writer.add("g".into(), rebalance(generation, 3)));
        let read_before = writer.shared().of("g");
        writer.settle("g".into(), settled(2));
        writer.settle("g".into(), settled(3));
        let times = |read: &[Arc<Rebalance>]| read.iter().map(|one| one.settled_ms).collect::<Vec<_>>();
        assert_eq!(times(&writer.shared().of("g")), [Some(7), None]);
        assert_eq!(times(&read_before), [None, None], "what was read stays");
    }

    #[test]
    fn a_reader_stops_nothing_and_sees_it_with_the_next() {
        let mut writer = TimelineWriter::default();
        let shared = writer.shared();
        let held = shared.lock();
        writer.add("g".into(), rebalance(1, 3));
        assert!(held.groups.is_empty());
        drop(held);
        assert_eq!(generations(&shared, "g"), Vec::<i32>::new());
        writer.flush();
        assert_eq!(generations(&shared, "g"), [1]);
    }
}
