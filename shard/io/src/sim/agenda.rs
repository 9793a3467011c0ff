//! What will happen, in order of time, then of planning. Knows no event.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slab::Slab;

/// A heap of small keys beside the things planned, which are large and stay where they are.
pub(super) struct Agenda<T> {
    /// Time, sequence of planning, place in `planned`.
    keys: BinaryHeap<Reverse<(u64, u64, usize)>>,
    planned: Slab<T>,
    next_sequence: u64,
}

impl<T> Agenda<T> {
    pub(super) fn new() -> Self {
        Self { keys: BinaryHeap::new(), planned: Slab::new(), next_sequence: 0 }
    }

    pub(super) fn plan(&mut self, time: u64, what: T) {
        let place = self.planned.insert(what);
        self.keys.push(Reverse((time, self.next_sequence, place)));
        self.next_sequence += 1;
    }

    /// When the next thing happens.
    pub(super) fn next_time(&self) -> Option<u64> {
        self.keys.peek().map(|Reverse((time, ..))| *time)
    }

    /// Takes out what is next, with its time.
    pub(super) fn pop(&mut self) -> Option<(u64, T)> {
        let Reverse((time, _, place)) = self.keys.pop()?;
        Some((time, self.planned.remove(place)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_times_keep_the_order_of_planning() {
        let mut agenda = Agenda::new();
        for (time, what) in [(5, 'c'), (1, 'a'), (5, 'd'), (3, 'b')] {
            agenda.plan(time, what);
        }
        assert_eq!(agenda.next_time(), Some(1));
        assert_eq!(agenda.pop(), Some((1, 'a')));
        agenda.plan(5, 'e');
        let rest: Vec<char> = std::iter::from_fn(|| agenda.pop()).map(|(_, what)| what).collect();
        assert_eq!(rest, ['b', 'c', 'd', 'e']);
        assert_eq!(agenda.next_time(), None);
    }
}
