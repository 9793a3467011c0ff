//! The sleep handshake under every interleaving: no wake is lost, and none is paid for while the sleeper is awake.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p ringlog-io --test loom --release`
#![cfg(loom)]

use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use ringlog_io::Handshake;

struct Shared {
    handshake: Handshake,
    work: AtomicUsize,
    /// The eventfd: a sleeper blocks until it is not zero.
    signals: AtomicUsize,
}

impl Shared {
    fn leave_work(&self) {
        self.work.fetch_add(1, Ordering::Relaxed);
        if self.handshake.must_wake() {
            self.signals.fetch_add(1, Ordering::Release);
        }
    }

    /// One turn to sleep and back. False: it would have slept for ever beside work.
    fn sleep_once(&self) -> bool {
        self.handshake.prepare_sleep();
        if self.work.load(Ordering::Relaxed) > 0 {
            self.handshake.awake();
            return true;
        }
        false
    }
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared { handshake: Handshake::new(), work: AtomicUsize::new(0), signals: AtomicUsize::new(0) })
}

#[test]
fn a_sleeper_is_woken_or_sees_the_work() {
    loom::model(|| {
        let shared = shared();
        let waker = thread::spawn({
            let shared = shared.clone();
            move || shared.leave_work()
        });
        let saw_work = shared.sleep_once();
        waker.join().expect("no panic");
        // Blocked without work in sight: then a signal must have come.
        assert!(saw_work || shared.signals.load(Ordering::Acquire) == 1, "a wake was lost");
    });
}

#[test]
fn two_wakers_signal_a_sleeper_once() {
    // Every interleaving of three threads takes minutes; three preemptions show what two wakers can do to each other.
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = shared();
        let wakers: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || shared.leave_work())
            })
            .collect();
        let saw_work = shared.sleep_once();
        for waker in wakers {
            waker.join().expect("no panic");
        }
        let signals = shared.signals.load(Ordering::Acquire);
        assert!(signals <= 1, "{signals} signals for one sleep");
        assert!(saw_work || signals == 1, "a wake was lost");
    });
}
