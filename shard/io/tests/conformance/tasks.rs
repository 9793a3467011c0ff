//! Tasks, priorities, timers, jobs, randomness.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use ringlog_io::Priority;

use crate::{Case, Env, case};

pub const CASES: &[Case] = &[
    case!(timers_fire_in_order_and_never_early),
    case!(a_dropped_sleep_is_forgotten),
    case!(tasks_yield_in_turn),
    case!(background_waits_for_the_foreground),
    case!(background_does_not_starve),
    case!(foreground_does_not_starve),
    case!(dropped_tasks_are_cancelled_detached_ones_run),
    case!(cancelling_waits_for_the_drop),
    case!(jobs_compute),
    case!(hooks_run_before_sleep),
    case!(random_numbers_differ),
    case!(counters_count),
];

async fn timers_fire_in_order_and_never_early(env: Env) {
    let fired = Rc::new(RefCell::new(Vec::new()));
    let start = env.io.monotonic_now();
    let mut tasks = Vec::new();
    for milliseconds in [20_u64, 5, 15, 1, 10, 0] {
        let (io, fired) = (env.io.clone(), fired.clone());
        tasks.push(env.io.spawn(Priority::Foreground, async move {
            let deadline = start + Duration::from_millis(milliseconds);
            io.sleep_until(deadline).await;
            assert!(io.monotonic_now() >= deadline, "{milliseconds} ms came early");
            fired.borrow_mut().push(milliseconds);
        }));
    }
    for task in tasks {
        task.await;
    }
    assert_eq!(*fired.borrow(), [0, 1, 5, 10, 15, 20]);
}

async fn a_dropped_sleep_is_forgotten(env: Env) {
    let long = env.io.spawn(Priority::Foreground, env.io.sleep(Duration::from_secs(3_600)));
    env.io.sleep(Duration::from_millis(2)).await;
    drop(long);
    env.io.sleep(Duration::from_millis(2)).await;
}

async fn tasks_yield_in_turn(env: Env) {
    let order = Rc::new(RefCell::new(Vec::new()));
    let mut tasks = Vec::new();
    for name in ["a", "b", "c"] {
        let (io, order) = (env.io.clone(), order.clone());
        tasks.push(env.io.spawn(Priority::Foreground, async move {
            for _ in 0..3 {
                order.borrow_mut().push(name);
                io.yield_now().await;
            }
        }));
    }
    for task in tasks {
        task.await;
    }
    assert_eq!(*order.borrow(), ["a", "b", "c", "a", "b", "c", "a", "b", "c"]);
}

async fn background_waits_for_the_foreground(env: Env) {
    let order = Rc::new(RefCell::new(Vec::new()));
    let background = env.io.spawn(Priority::Background, {
        let order = order.clone();
        async move { order.borrow_mut().push("background") }
    });
    let foreground = env.io.spawn(Priority::Foreground, {
        let (io, order) = (env.io.clone(), order.clone());
        async move {
            for _ in 0..5 {
                order.borrow_mut().push("foreground");
                io.yield_now().await;
            }
        }
    });
    foreground.await;
    background.await;
    assert_eq!(order.borrow().last(), Some(&"background"), "{:?}", order.borrow());
}

async fn background_does_not_starve(env: Env) {
    let stop = Rc::new(Cell::new(false));
    let busy = env.io.spawn(Priority::Foreground, {
        let (io, stop) = (env.io.clone(), stop.clone());
        async move {
            let mut turns = 0_u32;
            while !stop.get() {
                io.yield_now().await;
                turns += 1;
            }
            turns
        }
    });
    let background = env.io.spawn(Priority::Background, {
        let io = env.io.clone();
        async move {
            for _ in 0..10 {
                io.yield_now().await;
            }
        }
    });
    background.await;
    stop.set(true);
    let turns = busy.await;
    assert!((100..=400).contains(&turns), "ten background turns took {turns} foreground turns");
}

async fn foreground_does_not_starve(env: Env) {
    let stop = Rc::new(Cell::new(false));
    let turns = Rc::new(Cell::new(0_u32));
    for _ in 0..50 {
        let (io, stop, turns) = (env.io.clone(), stop.clone(), turns.clone());
        env.io
            .spawn(Priority::Background, async move {
                while !stop.get() {
                    turns.set(turns.get() + 1);
                    io.yield_now().await;
                }
            })
            .detach();
    }
    let foreground = env.io.spawn(Priority::Foreground, {
        let io = env.io.clone();
        async move {
            for _ in 0..100 {
                io.yield_now().await;
            }
        }
    });
    foreground.await;
    stop.set(true);
    assert!(turns.get() <= 200, "{} background turns beside 100 foreground turns", turns.get());
    env.io.sleep(Duration::from_millis(1)).await;
}

async fn dropped_tasks_are_cancelled_detached_ones_run(env: Env) {
    let done = Rc::new(Cell::new(0));
    let add = |amount: u32| {
        let (io, done) = (env.io.clone(), done.clone());
        async move {
            io.yield_now().await;
            done.set(done.get() + amount);
        }
    };
    drop(env.io.spawn(Priority::Foreground, add(1)));
    env.io.spawn(Priority::Foreground, add(10)).detach();
    env.io.spawn(Priority::Background, add(100)).await;
    env.io.sleep(Duration::from_millis(1)).await;
    assert_eq!(done.get(), 110);
}

async fn cancelling_waits_for_the_drop(env: Env) {
    let kept = Rc::new(());
    let task = env.io.spawn(Priority::Foreground, {
        let (io, kept) = (env.io.clone(), kept.clone());
        async move {
            io.sleep(Duration::from_secs(3_600)).await;
            drop(kept);
        }
    });
    env.io.yield_now().await;
    assert_eq!(task.cancel().await, None);
    assert_eq!(Rc::strong_count(&kept), 1);
    let ended = env.io.spawn(Priority::Foreground, async { 7 });
    env.io.sleep(Duration::from_millis(1)).await;
    assert!(ended.is_finished());
    assert_eq!(ended.cancel().await, Some(7));
}

async fn jobs_compute(env: Env) {
    let mut tasks = Vec::new();
    for index in 0..20_u64 {
        let io = env.io.clone();
        tasks
            .push(env.io.spawn(Priority::Foreground, async move { io.compute(move || index * index).await }));
    }
    let mut sum = 0;
    for task in tasks {
        sum += task.await;
    }
    assert_eq!(sum, (0..20_u64).map(|index| index * index).sum());
    let text: Result<String, ()> = env.io.compute(|| Ok("moved".to_owned())).await;
    assert_eq!(text.as_deref(), Ok("moved"));
}

async fn hooks_run_before_sleep(env: Env) {
    let calls = Rc::new(Cell::new(0_u32));
    env.io.on_poll({
        let calls = calls.clone();
        move || {
            calls.set(calls.get() + 1);
            // Found work for the first hundred calls: the loop must come back without sleeping.
            calls.get() < 100
        }
    });
    let start = env.io.monotonic_now();
    env.io.sleep(Duration::from_millis(200)).await;
    assert!(calls.get() >= 100, "{} calls", calls.get());
    assert!(env.io.monotonic_now() >= start + Duration::from_millis(200));
    assert!(calls.get() < 1_000, "an idle loop does not turn: {} calls", calls.get());
}

async fn random_numbers_differ(env: Env) {
    assert_ne!(env.io.random_u64(), env.io.random_u64());
    let (first, second) = (env.io.hasher(), env.io.hasher());
    assert_ne!(first.hash_one("key"), second.hash_one("key"));
    assert!(env.io.wall_now_ms() > 1_600_000_000_000);
}

async fn counters_count(env: Env) {
    let before = env.io.stats();
    env.io.path_exists(&env.directory).await.expect("exists");
    env.io.sleep(Duration::from_millis(30)).await;
    let after = env.io.stats();
    assert_eq!(after.submitted, before.submitted + 1);
    assert_eq!(after.completed, before.completed + 1);
    assert_eq!(after.in_flight, before.in_flight);
    assert!(after.turns > before.turns);
    if env.io.driver_name() != "sim" {
        assert!(
            after.sleep_ns - before.sleep_ns >= 20_000_000,
            "slept {} ns",
            after.sleep_ns - before.sleep_ns
        );
        assert!(
            after.turns - before.turns < 50,
            "an idle loop does not turn: {}",
            after.turns - before.turns
        );
    }
}
