//! Waiting on one core: a task sleeps until another task of the same core changes something. Never crosses a core.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::{Poll, Waker};

/// Wakes every waiter at each [`Signal::notify`]; what they wait for is their own condition, so none is missed.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    waiting: RefCell<Vec<Waker>>,
}

impl Signal {
    /// Lets every waiter look at its condition again.
    pub(crate) fn notify(&self) {
        let waiting = std::mem::take(&mut *self.waiting.borrow_mut());
        for waker in waiting {
            waker.wake();
        }
    }

    /// Returns once `condition` gives a value; it is asked now and after each notification.
    pub(crate) async fn until<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        poll_fn(|context| {
            if let Some(value) = condition() {
                return Poll::Ready(value);
            }
            let mut waiting = self.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}
