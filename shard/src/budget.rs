//! A bound on memory that many tasks of one core take and give back. Owns the count and the queue of who waits.
//!
//! Progress is guaranteed: when the budget is exhausted by requests that are all incomplete, one of them may go over
//! it, so that it completes and frees what it holds. The bound is therefore the budget plus one request.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Bytes that one core may hold for one purpose. Clones share it.
#[derive(Clone)]
pub struct Budget {
    inner: Rc<Inner>,
}

struct Inner {
    bytes_max: u64,
    /// Invariant: the sum of all shares.
    used_bytes: Cell<u64>,
    /// One share is over the budget, by right.
    overdrawn: Cell<bool>,
    waiting: RefCell<VecDeque<Waker>>,
}

/// What one task holds. Dropping it gives everything back.
pub struct Share {
    budget: Budget,
    bytes: u64,
    overdraws: bool,
}

impl Budget {
    pub fn new(bytes_max: u64) -> Budget {
        let inner = Inner {
            bytes_max,
            used_bytes: Cell::new(0),
            overdrawn: Cell::new(false),
            waiting: RefCell::default(),
        };
        Budget { inner: Rc::new(inner) }
    }

    pub fn used_bytes(&self) -> u64 {
        self.inner.used_bytes.get()
    }

    pub fn share(&self) -> Share {
        Share { budget: self.clone(), bytes: 0, overdraws: false }
    }
}

impl Share {
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Holds `bytes` in all from now on; waits while the budget has no room for the difference.
    pub async fn grow_to(&mut self, bytes: u64) {
        let missing = bytes.saturating_sub(self.bytes);
        if missing == 0 {
            return;
        }
        poll_fn(|context| {
            let inner = &self.budget.inner;
            let fits = inner.used_bytes.get() + missing <= inner.bytes_max;
            if !fits && !self.overdraws {
                if inner.overdrawn.get() {
                    inner.waiting.borrow_mut().push_back(context.waker().clone());
                    return Poll::Pending;
                }
                inner.overdrawn.set(true);
                self.overdraws = true;
            }
            Poll::Ready(())
        })
        .await;
        let used = &self.budget.inner.used_bytes;
        used.set(used.get() + missing);
        self.bytes = bytes;
    }

    /// Gives everything back.
    pub fn release(&mut self) {
        let inner = &self.budget.inner;
        inner.used_bytes.set(inner.used_bytes.get() - self.bytes);
        self.bytes = 0;
        if std::mem::take(&mut self.overdraws) {
            inner.overdrawn.set(false);
        }
        // All of them: each looks again, in the order in which they came.
        let waiting = std::mem::take(&mut *inner.waiting.borrow_mut());
        waiting.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::Context;

    use super::*;

    fn ready(future: impl Future<Output = ()>) -> bool {
        pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn one_may_overdraw_the_others_wait() {
        let budget = Budget::new(100);
        let (mut first, mut second, mut third) = (budget.share(), budget.share(), budget.share());
        assert!(ready(first.grow_to(60)));
        assert!(ready(second.grow_to(60)), "one may go over, or nobody would ever complete");
        assert!(!ready(third.grow_to(1)));
        assert!(!ready(first.grow_to(61)), "the second has the right now");
        assert!(ready(second.grow_to(500)));
        assert_eq!(budget.used_bytes(), 560);
        drop(second);
        assert!(ready(third.grow_to(1)));
        first.release();
        assert_eq!(budget.used_bytes(), 1);
    }

    #[test]
    fn a_dropped_share_wakes_who_waits() {
        let budget = Budget::new(10);
        let (mut holder, mut over, mut waiter) = (budget.share(), budget.share(), budget.share());
        assert!(ready(holder.grow_to(10)));
        assert!(ready(over.grow_to(5)));
        let mut waiting = Box::pin(waiter.grow_to(5));
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(holder);
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        drop(waiting);
        assert_eq!(budget.used_bytes(), 10);
    }
}
