//! Which of many partitions have news, for a reader that comes again and again: it looks at those, never at all of them.
//!
//! Lives on the partitions' core. Owns the list of those that want a look, and the wait for more. Never decides what counts as
//! something to see: who looked says so by [`ReadySet::settle`].

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};

use crate::waiters::{Registration, Watchers};

/// Partitions by slots, numbers that the reader gave them, and which of them are ready: something may be there to see.
#[derive(Default)]
pub struct ReadySet {
    news: Rc<News>,
    slots: BTreeMap<u32, Slot>,
}

struct Slot {
    mark: Rc<Mark>,
    /// `None` where there is no partition to hear of: its slot must not settle.
    registration: Option<Registration>,
}

/// What partitions tell the set.
#[derive(Default)]
struct News {
    ready: RefCell<BTreeSet<u32>>,
    /// Became visible since [`ReadySet::begin_look`].
    bytes: Cell<u64>,
    /// Something else than bytes happened since then.
    attention: Cell<bool>,
    /// What a wait under way still waits for.
    missing_bytes: Cell<u64>,
    waker: Cell<Option<Waker>>,
}

/// One slot as its partition sees it.
pub(crate) struct Mark {
    news: Rc<News>,
    slot: u32,
    /// In `News::ready`: a busy partition marks its slot once a look, not once a batch.
    is_ready: Cell<bool>,
}

impl ReadySet {
    /// Puts a partition, or none, into the slot, in the place of what was there. It is ready.
    pub fn put(&mut self, slot: u32, watchers: Option<&Watchers>) {
        let mark = Rc::new(Mark { news: Rc::clone(&self.news), slot, is_ready: Cell::new(true) });
        let registration = watchers.map(|watchers| watchers.register_mark(Rc::clone(&mark)));
        self.news.ready.borrow_mut().insert(slot);
        self.slots.insert(slot, Slot { mark, registration });
    }

    /// Forgets the slot.
    pub fn remove(&mut self, slot: u32) {
        self.slots.remove(&slot);
        self.news.ready.borrow_mut().remove(&slot);
    }

    /// The slot wants a look, whatever its partition says.
    pub fn want_look(&self, slot: u32) {
        if let Some(found) = self.slots.get(&slot) {
            found.mark.want_look();
        }
    }

    /// Whether news of the slot's partition come here.
    pub fn hears(&self, slot: u32) -> bool {
        self.slots.get(&slot).is_some_and(|slot| slot.registration.is_some())
    }

    /// The ready slots, in order. A wait counts what comes from here on.
    pub fn begin_look(&self) -> Vec<u32> {
        self.news.bytes.set(0);
        self.news.attention.set(false);
        self.news.ready.borrow().iter().copied().collect()
    }

    /// There is nothing to see at the slot until its partition has news.
    pub fn settle(&self, slot: u32) {
        if let Some(Slot { mark, registration: Some(_) }) = self.slots.get(&slot) {
            mark.is_ready.set(false);
            self.news.ready.borrow_mut().remove(&slot);
        }
    }

    /// Resolves once so many bytes became visible since the last look began, or a partition wants attention. One wait at a time.
    pub fn more(&self, missing_bytes: u64) -> impl Future<Output = ()> + use<> {
        let news = Rc::clone(&self.news);
        poll_fn(move |context| {
            if news.attention.get() || news.bytes.get() >= missing_bytes {
                return Poll::Ready(());
            }
            news.missing_bytes.set(missing_bytes);
            news.waker.set(Some(context.waker().clone()));
            Poll::Pending
        })
    }

    /// Partitions in it.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}

impl Mark {
    pub(crate) fn want_look(&self) {
        if !self.is_ready.replace(true) {
            self.news.ready.borrow_mut().insert(self.slot);
        }
    }

    pub(crate) fn visible(&self, bytes: u64) {
        self.want_look();
        self.news.bytes.set(self.news.bytes.get().saturating_add(bytes));
        if self.news.bytes.get() >= self.news.missing_bytes.get() {
            self.news.wake();
        }
    }

    pub(crate) fn attention(&self) {
        self.want_look();
        self.news.attention.set(true);
        self.news.wake();
    }
}

impl News {
    fn wake(&self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    fn is_ready<F: Future<Output = ()>>(future: F) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn only_what_has_news_is_looked_at() {
        let partitions: Vec<Watchers> = (0..1_000).map(|_| Watchers::default()).collect();
        let mut set = ReadySet::default();
        (0..).zip(&partitions).for_each(|(slot, watchers)| set.put(slot, Some(watchers)));
        assert_eq!(set.begin_look().len(), 1_000, "each is looked at once");
        (0..1_000).for_each(|slot| set.settle(slot));
        assert_eq!(set.begin_look(), []);
        partitions[7].visible(10);
        partitions[400].visible(10);
        partitions[7].visible(10);
        assert_eq!(set.begin_look(), [7, 400]);
        assert_eq!(set.begin_look(), [7, 400], "they stay until who looked says that there is nothing left");
        set.settle(7);
        assert_eq!(set.begin_look(), [400]);
    }

    #[test]
    fn what_wakes_nobody_is_seen_with_the_next_look() {
        let partition = Watchers::default();
        let mut set = ReadySet::default();
        set.put(3, Some(&partition));
        set.begin_look();
        set.settle(3);
        partition.changed();
        assert!(!is_ready(set.more(1)), "nobody is woken");
        assert_eq!(set.begin_look(), [3]);
    }

    #[test]
    fn a_wait_counts_from_the_last_look_on() {
        let (one, two) = (Watchers::default(), Watchers::default());
        let mut set = ReadySet::default();
        set.put(1, Some(&one));
        set.put(2, Some(&two));
        one.visible(100);
        set.begin_look();
        assert!(!is_ready(set.more(50)), "what the look saw is not waited for");
        one.visible(30);
        assert!(!is_ready(set.more(50)));
        two.visible(20);
        assert!(is_ready(set.more(50)));
        set.begin_look();
        assert!(!is_ready(set.more(1)));
        two.attention();
        assert!(is_ready(set.more(1_000)), "a partition that failed is told at once");
    }

    #[test]
    fn a_waiting_reader_is_woken_when_enough_came_and_not_before() {
        let watchers = Watchers::default();
        let mut set = ReadySet::default();
        set.put(0, Some(&watchers));
        set.begin_look();
        let woken = std::sync::Arc::new(Flagged::default());
        let waker = Waker::from(std::sync::Arc::clone(&woken));
        let mut more = pin!(set.more(10));
        assert!(more.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        watchers.visible(9);
        assert!(!woken.0.load(std::sync::atomic::Ordering::Relaxed));
        watchers.visible(1);
        assert!(woken.0.load(std::sync::atomic::Ordering::Relaxed));
        assert!(more.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    }

    #[test]
    fn a_slot_without_a_partition_does_not_settle() {
        let mut set = ReadySet::default();
        set.put(3, None);
        set.begin_look();
        set.settle(3);
        assert_eq!(set.begin_look(), [3]);
        assert!(!set.hears(3));
        set.put(3, Some(&Watchers::default()));
        set.settle(3);
        assert_eq!(set.begin_look(), []);
    }

    #[test]
    fn a_slot_that_goes_leaves_nothing_on_its_partition() {
        let watchers = Watchers::default();
        let mut set = ReadySet::default();
        set.put(0, Some(&watchers));
        set.put(0, Some(&watchers));
        assert_eq!(watchers.count(), 1, "what was in the slot is gone");
        set.remove(0);
        assert_eq!((watchers.count(), set.begin_look().len()), (0, 0));
        set.put(0, Some(&watchers));
        drop(set);
        assert_eq!(watchers.count(), 0);
    }

    #[derive(Default)]
    struct Flagged(std::sync::atomic::AtomicBool);

    impl std::task::Wake for Flagged {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    }
}
