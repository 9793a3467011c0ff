//! What will happen, in order of time, then of planning. Knows no event.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slab::Slab;

/// Time, then the count of planning.
type Key = (u64, u64);

/// A heap of small keys beside the things planned, which are large and stay where they are. What is planned to be next
/// mostly is next, so that one waits outside of the heap.
pub(super) struct Agenda<T> {
    /// Before everything in `keys`.
    next: Option<(Key, T)>,
    /// With the place in `planned`.
    keys: BinaryHeap<Reverse<(Key, usize)>>,
    planned: Slab<T>,
    next_sequence: u64,
}

impl<T> Agenda<T> {
    pub(super) fn new() -> Self {
        Self { next: None, keys: BinaryHeap::new(), planned: Slab::new(), next_sequence: 0 }
    }

    pub(super) fn plan(&mut self, time: u64, what: T) {
        let key = (time, self.next_sequence);
        self.next_sequence += 1;
        let first = match &self.next {
            Some((next, _)) => Some(*next),
            None => self.keys.peek().map(|Reverse((first, _))| *first),
        };
        if first.is_some_and(|first| first < key) {
            self.push(key, what);
        } else if let Some((later, displaced)) = self.next.replace((key, what)) {
            self.push(later, displaced);
        }
    }

    fn push(&mut self, key: Key, what: T) {
        let place = self.planned.insert(what);
        self.keys.push(Reverse((key, place)));
    }

    /// When the next thing happens.
    pub(super) fn next_time(&self) -> Option<u64> {
        match &self.next {
            Some(((time, _), _)) => Some(*time),
            None => self.keys.peek().map(|Reverse(((time, _), _))| *time),
        }
    }

    /// All that is planned, in no order of time, but in the same one each time.
    pub(super) fn planned(&self) -> impl Iterator<Item = &T> {
        let next = self.next.iter().map(|(_, what)| what);
        next.chain(self.planned.iter().map(|(_, what)| what))
    }

    /// Takes out what is next, with its time.
    pub(super) fn pop(&mut self) -> Option<(u64, T)> {
        if let Some(((time, _), what)) = self.next.take() {
            return Some((time, what));
        }
        let Reverse(((time, _), place)) = self.keys.pop()?;
        Some((time, self.planned.remove(place)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn it_is_a_map_ordered_by_time_and_planning(
            steps in proptest::collection::vec(proptest::option::of(0..20_u64), 1..200),
        ) {
            let (mut agenda, mut model) = (Agenda::new(), BTreeMap::new());
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Some(time) => {
                        agenda.plan(time, number);
                        model.insert((time, number), number);
                    }
                    None => {
                        let expected = model.pop_first().map(|((time, _), number)| (time, number));
                        prop_assert_eq!(agenda.pop(), expected);
                    }
                }
                prop_assert_eq!(agenda.next_time(), model.first_key_value().map(|((time, _), _)| *time));
            }
        }
    }
}
