//! The timers of this core's groups: one queue and one sleeper, however many members there are. Decides nothing: what a timer that
//! ran out means is the machine's.
//!
//! A member's session is armed anew with each heartbeat and almost never runs out. So a timer that is put off keeps its place in the
//! queue, and is moved once that place comes up: a heartbeat costs one look into a table.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use ahash::RandomState;
use ringlog_io::Monotonic;
use ringlog_shard::limits::GROUP_TIMERS_AT_ONCE;

use crate::core::Core;
use crate::group::{Serial, Timer, TimerChange};

/// Armed timers, by partition of `__consumer_offsets` and name.
///
/// Invariant: each armed timer has one place in `queue`, at or before its deadline, and nothing else is in there. The tables are never
/// walked where the order would show.
struct Queue {
    queue: BTreeMap<Place, (i32, Timer)>,
    armed: BTreeMap<i32, HashMap<Timer, Armed, RandomState>>,
    sequence: u64,
    hasher: RandomState,
}

/// Timers of one moment run out in the order in which they were armed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    at: Monotonic,
    sequence: u64,
}

#[derive(Clone, Copy, Debug)]
struct Armed {
    serial: Serial,
    deadline: Monotonic,
    place: Place,
}

/// What one look at the front of the queue came to.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Look {
    /// Nothing is due.
    Nothing,
    /// One that was put off got its new place.
    PutOff,
    RanOut(i32, Timer, Serial),
}

impl Queue {
    fn new(hasher: RandomState) -> Queue {
        Queue { queue: BTreeMap::new(), armed: BTreeMap::new(), sequence: 0, hasher }
    }

    fn arm(&mut self, partition: i32, timer: Timer, serial: Serial, deadline: Monotonic) {
        let hasher = &self.hasher;
        let table = self.armed.entry(partition).or_insert_with(|| HashMap::with_hasher(hasher.clone()));
        if let Some(armed) = table.get_mut(&timer) {
            (armed.serial, armed.deadline) = (serial, deadline);
            if armed.place.at <= deadline {
                return;
            }
            self.queue.remove(&armed.place);
        }
        let place = Place { at: deadline, sequence: self.sequence };
        self.sequence += 1;
        table.insert(timer.clone(), Armed { serial, deadline, place });
        self.queue.insert(place, (partition, timer));
    }

    fn cancel(&mut self, partition: i32, timer: &Timer) {
        if let Some(armed) = self.armed.get_mut(&partition).and_then(|table| table.remove(timer)) {
            self.queue.remove(&armed.place);
        }
    }

    fn cancel_all(&mut self, partition: i32) {
        for armed in self.armed.remove(&partition).unwrap_or_else(|| self.empty()).into_values() {
            self.queue.remove(&armed.place);
        }
    }

    fn empty(&self) -> HashMap<Timer, Armed, RandomState> {
        HashMap::with_hasher(self.hasher.clone())
    }

    /// When to look again.
    fn next(&self) -> Option<Monotonic> {
        self.queue.first_key_value().map(|(place, _)| place.at)
    }

    fn look(&mut self, now: Monotonic) -> Look {
        if self.next().is_none_or(|at| at > now) {
            return Look::Nothing;
        }
        let Some((_, (partition, timer))) = self.queue.pop_first() else { return Look::Nothing };
        let table = self.armed.get_mut(&partition).expect("what is in the queue is armed");
        let armed = table.get_mut(&timer).expect("what is in the queue is armed");
        if armed.deadline > now {
            armed.place = Place { at: armed.deadline, sequence: self.sequence };
            self.sequence += 1;
            self.queue.insert(armed.place, (partition, timer));
            return Look::PutOff;
        }
        let serial = armed.serial;
        table.remove(&timer);
        Look::RanOut(partition, timer, serial)
    }
}

/// The timers of a core.
pub(super) struct Timers {
    queue: RefCell<Queue>,
    /// The first deadline came nearer since the sleeper looked.
    is_earlier: Cell<bool>,
    sleeper: Cell<Option<Waker>>,
}

impl Timers {
    pub(super) fn new(hasher: RandomState) -> Timers {
        Timers {
            queue: RefCell::new(Queue::new(hasher)),
            is_earlier: Cell::new(false),
            sleeper: Cell::new(None),
        }
    }

    /// Does what the machine of `partition` wants.
    pub(super) fn change(&self, now: Monotonic, partition: i32, change: TimerChange) {
        let mut queue = self.queue.borrow_mut();
        match change {
            TimerChange::Arm { timer, serial, after_ms } => {
                let before = queue.next();
                queue.arm(partition, timer, serial, now + Duration::from_millis(after_ms));
                if queue.next() < before || before.is_none() {
                    self.is_earlier.set(true);
                    if let Some(sleeper) = self.sleeper.take() {
                        sleeper.wake();
                    }
                }
            }
            TimerChange::Cancel(timer) => queue.cancel(partition, &timer),
            TimerChange::CancelAll => queue.cancel_all(partition),
        }
    }

    /// Waits until something may be due.
    async fn due(&self, core: &Core) {
        let next = self.queue.borrow().next().unwrap_or(Monotonic::MAX);
        let mut sleep = pin!(core.io.sleep_until(next));
        poll_fn(|context| {
            if self.is_earlier.replace(false) {
                return Poll::Ready(());
            }
            self.sleeper.set(Some(context.waker().clone()));
            if next == Monotonic::MAX { Poll::Pending } else { sleep.as_mut().poll(context) }
        })
        .await;
    }
}

/// Tells the machines of timers that ran out, for as long as the core lives.
pub(super) async fn run(core: Rc<Core>) {
    let timers = &core.groups().timers;
    loop {
        timers.due(&core).await;
        let now = core.io.monotonic_now();
        for looks in 1.. {
            let look = timers.queue.borrow_mut().look(now);
            match look {
                Look::Nothing => break,
                Look::PutOff => {}
                Look::RanOut(partition, timer, serial) => {
                    core.groups().fired(&core, partition, timer, serial);
                }
            }
            // All sessions of a partition begin when it was loaded, and so run out together.
            if looks % GROUP_TIMERS_AT_ONCE == 0 {
                core.io.yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn queue() -> Queue {
        Queue::new(RandomState::with_seeds(1, 2, 3, 4))
    }

    fn timer(name: &str) -> Timer {
        Timer::Session { group: Arc::from("group"), member: Arc::from(name) }
    }

    /// All that run out by `now`, with their numbers.
    fn run_out(queue: &mut Queue, now: u64) -> Vec<(i32, Timer, u64)> {
        let mut all = Vec::new();
        loop {
            match queue.look(Monotonic(now)) {
                Look::Nothing => return all,
                Look::PutOff => {}
                Look::RanOut(partition, timer, serial) => all.push((partition, timer, serial.0)),
            }
        }
    }

    #[test]
    fn timers_run_out_in_the_order_of_their_deadlines_and_once() {
        let mut queue = queue();
        for (name, deadline) in [("late", 30), ("early", 10), ("middle", 20), ("middle too", 20)] {
            queue.arm(1, timer(name), Serial(deadline), Monotonic(deadline));
        }
        assert_eq!(run_out(&mut queue, 9), []);
        assert_eq!(run_out(&mut queue, 10), [(1, timer("early"), 10)]);
        assert_eq!(run_out(&mut queue, 29), [(1, timer("middle"), 20), (1, timer("middle too"), 20)]);
        assert_eq!(run_out(&mut queue, 99), [(1, timer("late"), 30)]);
        assert_eq!(queue.next(), None);
    }

    #[test]
    fn a_timer_that_is_put_off_runs_out_at_its_last_deadline_with_its_last_number() {
        let mut queue = queue();
        for (serial, deadline) in [(1, 10), (2, 20), (3, 30)] {
            queue.arm(1, timer("member"), Serial(serial), Monotonic(deadline));
        }
        assert_eq!(queue.queue.len(), 1, "it has one place");
        assert_eq!(run_out(&mut queue, 29), []);
        assert_eq!(run_out(&mut queue, 30), [(1, timer("member"), 3)]);
    }

    #[test]
    fn a_timer_that_is_brought_forward_runs_out_early() {
        let mut queue = queue();
        queue.arm(1, timer("member"), Serial(1), Monotonic(30));
        queue.arm(1, timer("member"), Serial(2), Monotonic(10));
        assert_eq!(queue.next(), Some(Monotonic(10)));
        assert_eq!(run_out(&mut queue, 10), [(1, timer("member"), 2)]);
        assert_eq!(run_out(&mut queue, 99), []);
    }

    #[test]
    fn what_is_cancelled_does_not_run_out_and_leaves_nothing() {
        let mut queue = queue();
        for partition in 1..=2 {
            queue.arm(partition, timer("member"), Serial(1), Monotonic(10));
            queue.arm(partition, timer("other"), Serial(2), Monotonic(10));
        }
        queue.cancel(1, &timer("member"));
        queue.cancel(1, &timer("nobody"));
        queue.cancel_all(2);
        assert_eq!(queue.queue.len(), 1);
        assert_eq!(run_out(&mut queue, 10), [(1, timer("other"), 2)]);
    }
}
