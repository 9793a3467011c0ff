//! Consumers' waits that reach over cores. Owns the table of this core's own waits and of the ones it keeps for
//! others; knows nothing of fetches.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};

use ringlog_shard::mesh::CoreId;

use super::messages::WatchId;

/// Waits of this core's own consumers for word from other cores.
#[derive(Default)]
pub struct HomeWatches {
    next: Cell<u64>,
    open: RefCell<BTreeMap<u64, Rc<Signal>>>,
}

#[derive(Default)]
struct Signal {
    fired: Cell<bool>,
    waker: Cell<Option<Waker>>,
}

/// One wait; closing it is the caller's duty, since the other cores must hear of it too.
pub struct HomeWatch {
    pub id: WatchId,
    signal: Rc<Signal>,
}

impl HomeWatches {
    pub fn open(&self, home: CoreId) -> HomeWatch {
        let number = self.next.get();
        self.next.set(number + 1);
        let signal = Rc::<Signal>::default();
        self.open.borrow_mut().insert(number, Rc::clone(&signal));
        HomeWatch { id: WatchId { home, number }, signal }
    }

    /// Another core has something. A wait that was closed meanwhile is none of its business.
    pub fn fire(&self, id: WatchId) {
        if let Some(signal) = self.open.borrow().get(&id.number) {
            signal.fired.set(true);
            if let Some(waker) = signal.waker.take() {
                waker.wake();
            }
        }
    }

    pub fn close(&self, id: WatchId) {
        self.open.borrow_mut().remove(&id.number);
    }

    pub fn count(&self) -> usize {
        self.open.borrow().len()
    }
}

impl HomeWatch {
    pub fn fired(&self) -> impl Future<Output = ()> {
        let signal = Rc::clone(&self.signal);
        poll_fn(move |context| {
            if signal.fired.get() {
                return Poll::Ready(());
            }
            signal.waker.set(Some(context.waker().clone()));
            Poll::Pending
        })
    }
}

/// Waits kept for consumers of other cores: dropping the task ends the wait.
#[derive(Default)]
pub struct ForeignWatches<T> {
    tasks: RefCell<BTreeMap<WatchId, T>>,
}

impl<T> ForeignWatches<T> {
    pub fn new() -> Self {
        ForeignWatches { tasks: RefCell::new(BTreeMap::new()) }
    }

    pub fn keep(&self, id: WatchId, task: T) {
        self.tasks.borrow_mut().insert(id, task);
    }

    /// Ends the wait, if it has not ended by itself.
    pub fn end(&self, id: WatchId) -> Option<T> {
        self.tasks.borrow_mut().remove(&id)
    }

    pub fn count(&self) -> usize {
        self.tasks.borrow().len()
    }
}
