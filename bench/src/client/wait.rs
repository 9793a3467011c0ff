//! How tasks of one core wait for each other: a one-value slot, a signal, and a deadline around any future.
//!
//! Nothing here crosses threads. All of it may be dropped at any point.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ringlog_io::{Io, Monotonic};

struct SlotState<T> {
    value: Option<T>,
    waker: Option<Waker>,
    is_closed: bool,
}

/// Hands one value to a [`SlotReceiver`].
pub struct SlotSender<T> {
    state: Rc<RefCell<SlotState<T>>>,
}

/// Resolves to the value, or to `None` if the sender was dropped without sending.
pub struct SlotReceiver<T> {
    state: Rc<RefCell<SlotState<T>>>,
}

/// A connected sender and receiver.
pub fn slot<T>() -> (SlotSender<T>, SlotReceiver<T>) {
    let state = Rc::new(RefCell::new(SlotState { value: None, waker: None, is_closed: false }));
    (SlotSender { state: state.clone() }, SlotReceiver { state })
}

impl<T> SlotSender<T> {
    /// Hands over `value` and wakes the receiver.
    pub fn send(self, value: T) {
        self.state.borrow_mut().value = Some(value);
    }
}

impl<T> Drop for SlotSender<T> {
    fn drop(&mut self) {
        let waker = {
            let mut state = self.state.borrow_mut();
            state.is_closed = true;
            state.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for SlotReceiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.state.borrow_mut();
        if let Some(value) = state.value.take() {
            return Poll::Ready(Some(value));
        }
        if state.is_closed {
            return Poll::Ready(None);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Wakes everyone who waits. Waiters check their condition, then await [`Signal::raised`], in a loop; between the
/// check and the await no other task runs, so no wake-up is lost.
#[derive(Default)]
pub struct Signal {
    generation: Cell<u64>,
    wakers: RefCell<Vec<Waker>>,
}

impl Signal {
    /// Wakes all waiters.
    pub fn raise(&self) {
        self.generation.set(self.generation.get().wrapping_add(1));
        let wakers = std::mem::take(&mut *self.wakers.borrow_mut());
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Resolves at the next [`Signal::raise`] after this call.
    pub fn raised(&self) -> Raised<'_> {
        Raised { signal: self, generation: self.generation.get() }
    }
}

/// See [`Signal::raised`].
pub struct Raised<'a> {
    signal: &'a Signal,
    generation: u64,
}

impl Future for Raised<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.signal.generation.get() != self.generation {
            return Poll::Ready(());
        }
        let mut wakers = self.signal.wakers.borrow_mut();
        if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

/// The deadline passed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed;

/// Runs `future` until it ends or `deadline` passes; then it is dropped.
///
/// # Errors
/// [`Elapsed`] when the deadline came first.
pub async fn with_deadline<F: Future>(io: &Io, deadline: Monotonic, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let mut sleep = pin!(io.sleep_until(deadline));
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Ok(output));
        }
        sleep.as_mut().poll(context).map(|_| Err(Elapsed))
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_slot_hands_its_value_over_once_and_wakes() {
        let counter = Arc::new(CountingWaker::default());
        let waker = Waker::from(counter.clone());
        let mut context = Context::from_waker(&waker);
        let (sender, receiver) = slot();
        let mut receiver = pin!(receiver);
        assert_eq!(receiver.as_mut().poll(&mut context), Poll::Pending);
        sender.send(5);
        assert_eq!(counter.0.load(Ordering::Relaxed), 1);
        assert_eq!(receiver.as_mut().poll(&mut context), Poll::Ready(Some(5)));
    }

    #[test]
    fn a_dropped_sender_ends_the_wait() {
        let mut context = Context::from_waker(Waker::noop());
        let (sender, receiver) = slot::<u8>();
        let mut receiver = pin!(receiver);
        assert_eq!(receiver.as_mut().poll(&mut context), Poll::Pending);
        drop(sender);
        assert_eq!(receiver.as_mut().poll(&mut context), Poll::Ready(None));
    }

    #[test]
    fn a_signal_wakes_every_waiter_and_only_later_ones_wait_again() {
        let mut context = Context::from_waker(Waker::noop());
        let signal = Signal::default();
        let mut first = pin!(signal.raised());
        let mut second = pin!(signal.raised());
        assert_eq!(first.as_mut().poll(&mut context), Poll::Pending);
        signal.raise();
        assert_eq!(first.as_mut().poll(&mut context), Poll::Ready(()));
        assert_eq!(second.as_mut().poll(&mut context), Poll::Ready(()), "created before the raise");
        let mut third = pin!(signal.raised());
        assert_eq!(third.as_mut().poll(&mut context), Poll::Pending);
    }
}
