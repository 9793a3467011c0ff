//! Sleepers of one executor in order of their deadlines. Reads no clock.

use std::collections::BTreeMap;
use std::task::Waker;

use crate::clock::Monotonic;

/// Names one sleeper: its deadline, then the order of arrival, so that equal deadlines fire in a fixed order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerKey {
    deadline: Monotonic,
    sequence: u64,
}

/// All sleepers. A sleeper removes itself when it is dropped, so the map holds live ones only.
#[derive(Default)]
pub(crate) struct Timers {
    sleepers: BTreeMap<TimerKey, Waker>,
    next_sequence: u64,
}

impl Timers {
    pub(crate) fn insert(&mut self, deadline: Monotonic, waker: Waker) -> TimerKey {
        let key = TimerKey { deadline, sequence: self.next_sequence };
        self.next_sequence += 1;
        self.sleepers.insert(key, waker);
        key
    }

    /// Replaces the waker of a sleeper; false when it has fired.
    pub(crate) fn update(&mut self, key: TimerKey, waker: &Waker) -> bool {
        match self.sleepers.get_mut(&key) {
            Some(present) => {
                present.clone_from(waker);
                true
            }
            None => false,
        }
    }

    pub(crate) fn remove(&mut self, key: TimerKey) -> Option<Waker> {
        self.sleepers.remove(&key)
    }

    /// The earliest deadline.
    pub(crate) fn next_deadline(&self) -> Option<Monotonic> {
        self.sleepers.first_key_value().map(|(key, _)| key.deadline)
    }

    /// Takes the first sleeper whose deadline has come.
    pub(crate) fn pop_due(&mut self, now: Monotonic) -> Option<Waker> {
        let entry = self.sleepers.first_entry()?;
        if entry.key().deadline <= now { Some(entry.remove()) } else { None }
    }

    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.sleepers).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleepers_fire_in_order_of_deadline_then_arrival() {
        let mut timers = Timers::default();
        let late = timers.insert(Monotonic(30), Waker::noop().clone());
        timers.insert(Monotonic(10), Waker::noop().clone());
        let second = timers.insert(Monotonic(10), Waker::noop().clone());
        assert_eq!(timers.next_deadline(), Some(Monotonic(10)));
        assert!(timers.pop_due(Monotonic(9)).is_none());
        assert!(timers.pop_due(Monotonic(10)).is_some());
        assert!(timers.remove(second).is_some());
        assert!(timers.pop_due(Monotonic(10)).is_none());
        assert_eq!(timers.next_deadline(), Some(Monotonic(30)));
        assert!(timers.update(late, Waker::noop()));
        assert!(timers.pop_due(Monotonic(31)).is_some());
        assert!(!timers.update(late, Waker::noop()));
        assert_eq!(timers.next_deadline(), None);
    }
}
