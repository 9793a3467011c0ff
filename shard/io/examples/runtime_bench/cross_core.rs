//! Numbers there and back between two cores, as the mesh sends messages: an atomic, a notifier, a hook. One number at a
//! time is a round trip; a window of them is a stream, in which the answer to a number answers those before it.

use std::cell::Cell;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Poll, Waker};
use std::time::Duration;

use ringlog_io::{Executor, Io, Notifier};

use crate::measure::{Measurement, Window, pin};
use crate::{Runtime, Setting};

/// Tells the other side to end.
const STOP: u64 = u64::MAX;

#[derive(Default)]
struct Line {
    there: AtomicU64,
    back: AtomicU64,
    /// Wakers of tokio's side, which has no notifier.
    there_waker: Mutex<Option<Waker>>,
    back_waker: Mutex<Option<Waker>>,
}

/// `window` is how many numbers may be under way.
pub fn run(runtime: Runtime, setting: Setting, spin_us: u32, window: u64) -> Measurement {
    let line = Arc::new(Line::default());
    let stop = Arc::new(AtomicU64::new(0));
    let (first, second) = match runtime {
        Runtime::Tokio => {
            let answering = spawn_tokio(setting.client_cpu, answer_tokio(line.clone()));
            (spawn_tokio(setting.server_cpu, ask_tokio(line.clone(), stop.clone(), window)), answering)
        }
        _ => spawn_ringlog(runtime, setting, (spin_us, window), &line, &stop),
    };
    std::thread::sleep(Duration::from_millis(100));
    let before = line.back.load(Ordering::Relaxed);
    let measuring = Window::over(&first);
    std::thread::sleep(setting.duration);
    let measured = measuring.end(line.back.load(Ordering::Relaxed) - before);
    stop.store(1, Ordering::Relaxed);
    first.join().expect("no panic");
    second.join().expect("no panic");
    measured
}

type Thread = std::thread::JoinHandle<()>;

fn spawn_ringlog(
    runtime: Runtime,
    setting: Setting,
    (spin_us, window): (u32, u64),
    line: &Arc<Line>,
    stop: &Arc<AtomicU64>,
) -> (Thread, Thread) {
    let (to_first, first_gets) = mpsc::channel::<Notifier>();
    let (to_second, second_gets) = mpsc::channel::<Notifier>();
    let first = std::thread::spawn({
        let (line, stop) = (line.clone(), stop.clone());
        move || {
            let config = runtime.config(setting.server_cpu, spin_us).expect("not tokio");
            let executor = Executor::new(config).expect("an executor");
            let io = executor.io();
            to_second.send(io.notifier()).expect("the other side waits");
            let peer = first_gets.recv().expect("the other side is up");
            executor.run(ask(io, line, peer, stop, window));
        }
    });
    let second = std::thread::spawn({
        let line = line.clone();
        move || {
            let config = runtime.config(setting.client_cpu, spin_us).expect("not tokio");
            let executor = Executor::new(config).expect("an executor");
            let io = executor.io();
            to_first.send(io.notifier()).expect("the other side waits");
            let peer = second_gets.recv().expect("the other side is up");
            executor.run(answer(io, line, peer));
        }
    });
    (first, second)
}

/// A future that a hook completes when `line` moves past what was seen.
fn watch(io: &Io, value: impl Fn() -> u64 + 'static) -> (Rc<Cell<u64>>, Rc<Cell<Option<Waker>>>) {
    let seen = Rc::new(Cell::new(0));
    let waker: Rc<Cell<Option<Waker>>> = Rc::default();
    io.on_poll({
        let (seen, waker) = (seen.clone(), waker.clone());
        move || {
            let now = value();
            if now == seen.get() {
                return false;
            }
            seen.set(now);
            if let Some(waker) = waker.take() {
                waker.wake();
            }
            true
        }
    });
    (seen, waker)
}

async fn ask(io: Io, line: Arc<Line>, peer: Notifier, stop: Arc<AtomicU64>, window: u64) {
    let (seen, waker) = watch(&io, {
        let line = line.clone();
        move || line.back.load(Ordering::Acquire)
    });
    for number in 1.. {
        let ending = stop.load(Ordering::Relaxed) != 0;
        line.there.store(if ending { STOP } else { number }, Ordering::Release);
        peer.notify();
        if ending {
            return;
        }
        poll_fn(|context| {
            if number - seen.get() < window {
                return Poll::Ready(());
            }
            waker.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}

async fn answer(io: Io, line: Arc<Line>, peer: Notifier) {
    let (seen, waker) = watch(&io, {
        let line = line.clone();
        move || line.there.load(Ordering::Acquire)
    });
    let mut answered = 0;
    loop {
        let number = poll_fn(|context| {
            if seen.get() != answered {
                return Poll::Ready(seen.get());
            }
            waker.set(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
        if number == STOP {
            return;
        }
        answered = number;
        line.back.store(number, Ordering::Release);
        peer.notify();
    }
}

fn spawn_tokio(cpu: ringlog_io::CpuId, work: impl Future<Output = ()> + Send + 'static) -> Thread {
    std::thread::spawn(move || {
        pin(cpu);
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a tokio runtime");
        runtime.block_on(work);
    })
}

/// Waits until the value differs from `seen`.
async fn changed(value: &AtomicU64, seen: u64, slot: &Mutex<Option<Waker>>) -> u64 {
    poll_fn(|context| {
        *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(context.waker().clone());
        let now = value.load(Ordering::Acquire);
        if now == seen { Poll::Pending } else { Poll::Ready(now) }
    })
    .await
}

fn wake(slot: &Mutex<Option<Waker>>) {
    let waker = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(waker) = waker {
        waker.wake();
    }
}

async fn ask_tokio(line: Arc<Line>, stop: Arc<AtomicU64>, window: u64) {
    let mut seen = 0;
    for number in 1.. {
        let ending = stop.load(Ordering::Relaxed) != 0;
        line.there.store(if ending { STOP } else { number }, Ordering::Release);
        wake(&line.there_waker);
        if ending {
            return;
        }
        while number - seen >= window {
            seen = changed(&line.back, seen, &line.back_waker).await;
        }
    }
}

async fn answer_tokio(line: Arc<Line>) {
    let mut seen = 0;
    loop {
        seen = changed(&line.there, seen, &line.there_waker).await;
        if seen == STOP {
            return;
        }
        line.back.store(seen, Ordering::Release);
        wake(&line.back_waker);
    }
}
