//! Who waits for a partition: producers for a commit, consumers for bytes. Lives on the partition's core.
//!
//! Owns the hand-over between a partition that moves its watermark and the tasks that wait for it. Never decides
//! when a watermark moves.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ringlog_protocol::ids::Offset;
use slab::Slab;

use crate::ready::Mark;

/// Gathers the commits that one request waits for on this core: one allocation and one wake for all its partitions.
#[derive(Default)]
pub struct CommitGather {
    state: Rc<GatherState>,
}

#[derive(Default)]
struct GatherState {
    open: Cell<u32>,
    failed: RefCell<Vec<(u32, CommitFailure)>>,
    waker: Cell<Option<Waker>>,
}

/// Why a batch that its log took is not known to be committed. It may be, now or later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommitFailure {
    /// The partition went away.
    Gone,
    /// The log takes no more writes.
    Poisoned,
    /// This replica leads no more: who leads next may have the batch or not.
    NotLeader,
    /// Fewer voters are in sync than must hold it.
    NotEnoughReplicas { in_sync: usize, required: usize },
}

/// One append's duty to tell its request how it ended. Dropped unresolved, its partition is [`CommitFailure::Gone`].
pub struct CommitTicket {
    state: Rc<GatherState>,
    tag: u32,
    is_resolved: bool,
}

impl CommitGather {
    pub fn new() -> CommitGather {
        CommitGather::default()
    }

    /// A ticket that the caller recognises by `tag` if it fails.
    pub fn ticket(&self, tag: u32) -> CommitTicket {
        self.state.open.set(self.state.open.get() + 1);
        CommitTicket { state: Rc::clone(&self.state), tag, is_resolved: false }
    }

    /// Waits until every ticket ended; the tags of those that were not committed, and why.
    pub async fn finish(self) -> Vec<(u32, CommitFailure)> {
        let state = self.state;
        std::future::poll_fn(|context| {
            if state.open.get() == 0 {
                return Poll::Ready(());
            }
            state.waker.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
        state.failed.take()
    }
}

impl CommitTicket {
    pub fn committed(mut self) {
        self.is_resolved = true;
    }

    pub fn failed(mut self, failure: CommitFailure) {
        self.state.failed.borrow_mut().push((self.tag, failure));
        self.is_resolved = true;
    }
}

impl Drop for CommitTicket {
    fn drop(&mut self) {
        if !self.is_resolved {
            self.state.failed.borrow_mut().push((self.tag, CommitFailure::Gone));
        }
        let open = self.state.open.get() - 1;
        self.state.open.set(open);
        if open == 0
            && let Some(waker) = self.state.waker.take()
        {
            waker.wake();
        }
    }
}

/// Appends that are not committed yet, oldest first.
///
/// Invariant: ends strictly increase, except that a retried batch waits at the end of the original.
#[derive(Default)]
pub struct UncommittedAppends {
    queue: VecDeque<Uncommitted>,
}

struct Uncommitted {
    end: Offset,
    bytes: u64,
    ticket: Option<CommitTicket>,
}

impl UncommittedAppends {
    /// Remembers an append that ends before `end` and the request that waits for it, if one does.
    pub fn push(&mut self, end: Offset, bytes: u64, ticket: Option<CommitTicket>) {
        debug_assert!(self.queue.back().is_none_or(|last| last.end <= end), "appends come in order");
        self.queue.push_back(Uncommitted { end, bytes, ticket });
    }

    /// Lets a retried batch wait for the commit of the original that ends before `end`.
    pub fn wait_until(&mut self, end: Offset, ticket: CommitTicket) {
        let at = self.queue.partition_point(|uncommitted| uncommitted.end <= end);
        self.queue.insert(at, Uncommitted { end, bytes: 0, ticket: Some(ticket) });
    }

    /// Resolves all that `high_watermark` covers; the bytes that became visible.
    pub fn commit(&mut self, high_watermark: Offset) -> u64 {
        let mut bytes = 0;
        while self.queue.front().is_some_and(|first| first.end <= high_watermark) {
            let Some(first) = self.queue.pop_front() else { break };
            bytes += first.bytes;
            if let Some(ticket) = first.ticket {
                ticket.committed();
            }
        }
        bytes
    }

    /// Fails all that wait, and forgets what they wait for: this partition does not commit it.
    pub fn fail_all(&mut self, failure: CommitFailure) {
        let _count = self.fail_waiting(failure);
        self.queue.clear();
    }

    /// Fails all that wait; how many did. What they wait for may still be committed.
    pub fn fail_waiting(&mut self, failure: CommitFailure) -> usize {
        let tickets = self.queue.iter_mut().filter_map(|uncommitted| uncommitted.ticket.take());
        tickets.map(|ticket| ticket.failed(failure)).count()
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// A consumer's wait for bytes, over any number of partitions of this core. Wakes once.
pub struct Watch {
    state: Rc<WatchState>,
    registrations: Vec<Registration>,
}

struct WatchState {
    missing_bytes: Cell<u64>,
    fired: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

/// The watches on one partition. Clones share it.
#[derive(Clone, Default)]
pub struct Watchers {
    watches: Rc<RefCell<Slab<Watcher>>>,
}

enum Watcher {
    /// Of one wait.
    Once(Rc<WatchState>),
    /// Of a reader that comes again.
    Again(Rc<Mark>),
}

/// A place among a partition's watchers; dropping it ends that.
pub(crate) struct Registration {
    watchers: Watchers,
    key: usize,
}

impl Watch {
    /// Fires once `missing_bytes` more became visible in the partitions it is put on, or one of them wants
    /// attention (deleted, failed, truncated).
    pub fn new(missing_bytes: u64) -> Watch {
        let state = WatchState {
            missing_bytes: Cell::new(missing_bytes),
            fired: Cell::new(false),
            waker: Cell::new(None),
        };
        Watch { state: Rc::new(state), registrations: Vec::new() }
    }

    pub fn on(&mut self, watchers: &Watchers) {
        self.registrations.push(watchers.register(Watcher::Once(Rc::clone(&self.state))));
    }
}

impl Future for Watch {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.state.fired.get() {
            return Poll::Ready(());
        }
        self.state.waker.set(Some(context.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // Leaves no trace on a partition that stays idle for hours while consumers poll it.
        self.watchers.watches.borrow_mut().remove(self.key);
    }
}

impl Watchers {
    /// `bytes` became visible.
    pub fn visible(&self, bytes: u64) {
        for (_, watcher) in self.watches.borrow().iter() {
            match watcher {
                Watcher::Once(watch) => watch.visible(bytes),
                Watcher::Again(mark) => mark.visible(bytes),
            }
        }
    }

    /// Something other than bytes happened that every waiting consumer must see.
    pub fn attention(&self) {
        for (_, watcher) in self.watches.borrow().iter() {
            match watcher {
                Watcher::Once(watch) => watch.fire(),
                Watcher::Again(mark) => mark.attention(),
            }
        }
    }

    /// Something changed that a consumer is told with its next answer, and for which nobody is woken.
    pub fn changed(&self) {
        for (_, watcher) in self.watches.borrow().iter() {
            if let Watcher::Again(mark) = watcher {
                mark.want_look();
            }
        }
    }

    pub(crate) fn register_mark(&self, mark: Rc<Mark>) -> Registration {
        self.register(Watcher::Again(mark))
    }

    fn register(&self, watcher: Watcher) -> Registration {
        let key = self.watches.borrow_mut().insert(watcher);
        Registration { watchers: self.clone(), key }
    }

    pub fn count(&self) -> usize {
        self.watches.borrow().len()
    }
}

impl WatchState {
    fn visible(&self, bytes: u64) {
        let missing = self.missing_bytes.get().saturating_sub(bytes);
        self.missing_bytes.set(missing);
        if missing == 0 {
            self.fire();
        }
    }

    fn fire(&self) {
        self.fired.set(true);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_gather_ends_when_the_last_partition_commits() {
        let gather = CommitGather::new();
        let (mut left, mut right) = (UncommittedAppends::default(), UncommittedAppends::default());
        left.push(Offset(3), 100, Some(gather.ticket(0)));
        right.push(Offset(8), 50, Some(gather.ticket(1)));
        let mut finish = Box::pin(gather.finish());
        assert_eq!(left.commit(Offset(3)), 100);
        assert!(poll_once(&mut finish).is_pending());
        assert_eq!(right.commit(Offset(7)), 0);
        assert!(poll_once(&mut finish).is_pending());
        assert_eq!(right.commit(Offset(8)), 50);
        assert_eq!(poll_once(&mut finish), Poll::Ready(vec![]));
    }

    #[test]
    fn a_failed_log_fails_those_who_wait_and_nobody_else() {
        let gather = CommitGather::new();
        let (mut left, mut right) = (UncommittedAppends::default(), UncommittedAppends::default());
        left.push(Offset(1), 1, Some(gather.ticket(7)));
        right.push(Offset(1), 1, Some(gather.ticket(9)));
        left.fail_all(CommitFailure::Poisoned);
        right.commit(Offset(1));
        assert_eq!(
            poll_once(&mut Box::pin(gather.finish())),
            Poll::Ready(vec![(7, CommitFailure::Poisoned)])
        );
        assert!(left.is_empty());
    }

    #[test]
    fn who_waits_learns_why_and_what_he_waited_for_still_becomes_visible() {
        let gather = CommitGather::new();
        let mut appends = UncommittedAppends::default();
        appends.push(Offset(2), 20, Some(gather.ticket(3)));
        appends.push(Offset(5), 30, None);
        let failure = CommitFailure::NotEnoughReplicas { in_sync: 1, required: 2 };
        assert_eq!(appends.fail_waiting(failure), 1);
        assert_eq!(appends.fail_waiting(failure), 0, "each is told once");
        assert_eq!(poll_once(&mut Box::pin(gather.finish())), Poll::Ready(vec![(3, failure)]));
        assert_eq!(appends.commit(Offset(5)), 50);
    }

    #[test]
    fn a_ticket_that_nobody_resolves_is_of_a_partition_that_is_gone() {
        let gather = CommitGather::new();
        drop(gather.ticket(4));
        assert_eq!(poll_once(&mut Box::pin(gather.finish())), Poll::Ready(vec![(4, CommitFailure::Gone)]));
    }

    #[test]
    fn a_retry_waits_for_the_original() {
        let gather = CommitGather::new();
        let mut appends = UncommittedAppends::default();
        appends.push(Offset(5), 10, None);
        appends.push(Offset(9), 10, None);
        appends.wait_until(Offset(5), gather.ticket(0));
        let mut finish = Box::pin(gather.finish());
        assert!(poll_once(&mut finish).is_pending());
        assert_eq!(appends.commit(Offset(5)), 10);
        assert_eq!(poll_once(&mut finish), Poll::Ready(vec![]));
        assert!(!appends.is_empty());
    }

    #[test]
    fn a_watch_fires_when_enough_bytes_came_and_leaves_nothing_behind() {
        let (left, right) = (Watchers::default(), Watchers::default());
        let mut watch = Watch::new(100);
        watch.on(&left);
        watch.on(&right);
        assert!(poll_once(&mut watch).is_pending());
        left.visible(60);
        assert!(poll_once(&mut watch).is_pending());
        right.visible(40);
        assert!(poll_once(&mut watch).is_ready());
        drop(watch);
        assert_eq!((left.count(), right.count()), (0, 0));
    }

    #[test]
    fn a_deleted_partition_wakes_its_consumers() {
        let watchers = Watchers::default();
        let mut watch = Watch::new(u64::MAX);
        watch.on(&watchers);
        watchers.attention();
        assert!(poll_once(&mut watch).is_ready());
    }
}
