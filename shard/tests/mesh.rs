//! The mesh between real executors on threads, and the same on the simulation: nothing is lost, answered twice, answered
//! with another's answer or reordered, although there are more callers than credits and some of them give up.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Poll, Waker};
use std::time::Duration;

use ringlog_io::sim::{Outcome, World};
use ringlog_io::{DriverKind, Executor, ExecutorConfig, Io, Priority, Task};
use ringlog_shard::mesh::{CoreId, Mesh, Seat, outside, seats};

/// Real time after which a test that waits is taken for one that waits for ever.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ask {
    from: CoreId,
    /// Grows by one from request to request of one source and target, in the order of sending.
    number: u64,
    /// The answer comes this much later: its credit is held meanwhile.
    delay_us: u64,
}

/// Says what it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Told {
    by: CoreId,
    ask: Ask,
}

#[derive(Debug, Clone, Copy)]
struct Plan {
    credits: u32,
    /// Tasks on each core that call at the same time.
    callers: u32,
    calls_per_caller: u32,
}

/// Counts over all cores.
#[derive(Default)]
struct Counts {
    finished_cores: AtomicU32,
    served: AtomicU64,
    answered: AtomicU64,
    abandoned: AtomicU64,
}

/// What the core's callers share: the number that the next request to each target carries.
struct Numbers {
    next: Vec<Cell<u64>>,
    expected: RefCell<Vec<u64>>,
}

/// One core: serves the others while its own callers work, and until every core's callers are done.
async fn core_main(io: Io, seat: Seat<Ask, Told>, core_count: u32, plan: Plan, counts: Arc<Counts>) {
    let mesh = Mesh::join(seat, &io);
    let numbers = Rc::new(Numbers {
        next: (0..core_count).map(|_| Cell::new(0)).collect(),
        expected: RefCell::new(vec![0; core_count as usize]),
    });
    serve(&mesh, &io, &numbers, &counts);
    let callers: Vec<Task<()>> = (0..plan.callers)
        .map(|_| {
            let work = call_around(
                io.clone(),
                mesh.clone(),
                core_count,
                plan,
                Rc::clone(&numbers),
                Arc::clone(&counts),
            );
            io.spawn(Priority::Foreground, work)
        })
        .collect();
    for caller in callers {
        caller.await;
    }
    wait_for_all(&io, &counts.finished_cores, core_count).await;
    for target in mesh.cores() {
        all_credits_come_back(&io, &mesh, target, plan.credits).await;
    }
    wait_for_all(&io, &counts.finished_cores, 2 * core_count).await;
}

/// Ends once as many requests leave at once as there are credits; one more never does.
async fn all_credits_come_back(io: &Io, mesh: &Mesh<Ask, Told>, target: CoreId, credits: u32) {
    let ask = Ask { from: mesh.core(), number: u64::MAX, delay_us: 0 };
    loop {
        let burst: Vec<_> = (0..credits).map_while(|_| mesh.try_send(target, ask).ok()).collect();
        let is_whole = burst.len() == credits as usize;
        // Our own core has answered already.
        let is_one_too_many = target != mesh.core() && burst.len() == credits as usize;
        assert!(!is_one_too_many || mesh.try_send(target, ask).is_err(), "more requests than credits");
        for call in burst {
            call.await;
        }
        if is_whole {
            return;
        }
        io.sleep(Duration::from_millis(1)).await;
    }
}

fn serve(mesh: &Mesh<Ask, Told>, io: &Io, numbers: &Rc<Numbers>, counts: &Arc<Counts>) {
    let (me, io) = (mesh.core(), io.clone());
    let (numbers, counts) = (Rc::clone(numbers), Arc::clone(counts));
    mesh.serve(move |query| {
        let ask = query.message;
        assert_eq!(ask.from, query.from, "the mesh names the source");
        let mut expected = numbers.expected.borrow_mut();
        let expected = &mut expected[query.from.0 as usize];
        if ask.number != u64::MAX {
            assert_eq!(
                ask.number, *expected,
                "requests of {} to {me} arrive in order, each once",
                query.from
            );
            *expected += 1;
        }
        counts.served.fetch_add(1, Ordering::SeqCst);
        let told = Told { by: me, ask };
        if ask.delay_us == 0 {
            query.responder.respond(told);
            return;
        }
        let sleep = io.sleep(Duration::from_micros(ask.delay_us));
        io.spawn(Priority::Foreground, async move {
            sleep.await;
            query.responder.respond(told);
        })
        .detach();
    });
}

async fn call_around(
    io: Io,
    mesh: Mesh<Ask, Told>,
    core_count: u32,
    plan: Plan,
    numbers: Rc<Numbers>,
    counts: Arc<Counts>,
) {
    for _ in 0..plan.calls_per_caller {
        let target = CoreId((io.random_u64() % u64::from(core_count)) as u32);
        let delay_us = [0, 0, 30, 300][(io.random_u64() % 4) as usize];
        // Numbered when it leaves, not when it begins to wait for its credit.
        let call = loop {
            let next = &numbers.next[target.0 as usize];
            let message = Ask { from: mesh.core(), number: next.get(), delay_us };
            next.set(next.get() + 1);
            match mesh.try_send(target, message) {
                Ok(call) => break call,
                Err(returned) => {
                    assert_eq!(returned, message);
                    next.set(message.number);
                    wait_for_credit(&io, &mesh, target).await;
                }
            }
        };
        if io.random_u64().is_multiple_of(5) {
            counts.abandoned.fetch_add(1, Ordering::SeqCst);
            drop(call);
            continue;
        }
        let told = call.await;
        assert_eq!((told.by, told.ask.from, told.ask.delay_us), (target, mesh.core(), delay_us));
        counts.answered.fetch_add(1, Ordering::SeqCst);
    }
}

/// Gives way to others; now and then by a call that is given up while it waits, which must take nothing along.
async fn wait_for_credit(io: &Io, mesh: &Mesh<Ask, Told>, target: CoreId) {
    let message = Ask { from: mesh.core(), number: u64::MAX, delay_us: 0 };
    let mut waiting = Box::pin(mesh.call(target, message));
    let answered = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_ready())).await;
    drop(waiting);
    if !answered {
        io.sleep(Duration::from_micros(20)).await;
    }
}

const PLANS: [Plan; 3] = [
    Plan { credits: 1, callers: 9, calls_per_caller: 60 },
    Plan { credits: 3, callers: 25, calls_per_caller: 60 },
    Plan { credits: 64, callers: 16, calls_per_caller: 150 },
];

fn check_counts(plan: Plan, core_count: u32, counts: &Counts) {
    let calls = u64::from(core_count * plan.callers * plan.calls_per_caller);
    let (answered, abandoned) =
        (counts.answered.load(Ordering::SeqCst), counts.abandoned.load(Ordering::SeqCst));
    assert_eq!(answered + abandoned, calls);
    assert!(counts.served.load(Ordering::SeqCst) >= calls, "requests that nobody waits for are served too");
    assert!(abandoned > 0);
}

/// The drivers that this kernel allows; epoll always is one.
fn drivers() -> Vec<DriverKind> {
    let is_allowed = |driver: &DriverKind| {
        *driver == DriverKind::Epoll
            || Executor::new(ExecutorConfig { driver: *driver, ..ExecutorConfig::default() }).is_ok()
    };
    [DriverKind::Epoll, DriverKind::IoUring].into_iter().filter(is_allowed).collect()
}

/// Runs `main` once for each seat, each on a thread with an executor of its own, and fails if they do not all end.
fn on_threads<Q: Send + 'static, R: Send + 'static, F: Future<Output = ()>>(
    driver: DriverKind,
    seats: Vec<Seat<Q, R>>,
    main: impl Fn(Io, Seat<Q, R>) -> F + Clone + Send + 'static,
) {
    let count = seats.len();
    let (ended, ends) = mpsc::channel();
    let threads: Vec<_> = seats
        .into_iter()
        .map(|seat| {
            let (main, ended) = (main.clone(), ended.clone());
            std::thread::spawn(move || {
                let config = ExecutorConfig { driver, ..ExecutorConfig::default() };
                let executor = Executor::new(config).expect("it could be made a moment ago");
                let io = executor.io();
                executor.run(main(io, seat));
                // The receiver is gone only if the test has failed already.
                let _ = ended.send(());
            })
        })
        .collect();
    drop(ended);
    for _ in 0..count {
        if let Err(error) = ends.recv_timeout(PATIENCE) {
            let panicked = threads.iter().filter(|thread| thread.is_finished()).count();
            panic!("{driver:?}: {error}; {panicked} of {count} cores have ended");
        }
    }
    threads.into_iter().for_each(|thread| thread.join().expect("it has ended"));
}

#[test]
fn more_callers_than_credits_on_threads() {
    for driver in drivers() {
        for core_count in [2, 3] {
            for plan in PLANS {
                let counts = Arc::<Counts>::default();
                let shared = Arc::clone(&counts);
                on_threads(driver, seats(core_count, plan.credits), move |io, seat| {
                    core_main(io, seat, core_count, plan, Arc::clone(&shared))
                });
                check_counts(plan, core_count, &counts);
            }
        }
    }
}

fn simulated(seed: u64, core_count: u32, plan: Plan) -> u64 {
    let world = World::new(seed);
    let host = world.host("one");
    let counts = Arc::<Counts>::default();
    for seat in seats(core_count, plan.credits) {
        let io = host.executor();
        io.spawn(Priority::Foreground, core_main(io.clone(), seat, core_count, plan, Arc::clone(&counts)))
            .detach();
    }
    let is_done = || counts.finished_cores.load(Ordering::SeqCst) == 2 * core_count;
    let outcome = world.run_until(is_done, Duration::from_secs(600));
    assert_eq!(outcome, Outcome::Done, "seed {seed}, {core_count} cores, {plan:?}");
    check_counts(plan, core_count, &counts);
    world.trace_hash()
}

#[test]
fn more_callers_than_credits_in_simulation() {
    for seed in 0..3 {
        for core_count in [2, 3] {
            for plan in PLANS {
                let first = simulated(seed, core_count, plan);
                if seed == 0 {
                    assert_eq!(first, simulated(seed, core_count, plan), "one seed, one run");
                }
            }
        }
    }
}

/// Requests that wait for a credit leave in the order of sending when each is awaited before the next.
#[test]
fn one_sender_keeps_its_order_without_credits() {
    for driver in drivers() {
        let finished = Arc::new(AtomicU32::new(0));
        on_threads(driver, seats::<u64, u64>(2, 2), move |io, seat| {
            let finished = Arc::clone(&finished);
            async move {
                let mesh = Mesh::join(seat, &io);
                let expected = Cell::new(0);
                let server = io.clone();
                mesh.serve(move |query| {
                    assert_eq!(query.message, expected.get());
                    expected.set(expected.get() + 1);
                    let sleep = server.sleep(Duration::from_micros(query.message % 7 * 20));
                    server
                        .spawn(Priority::Foreground, async move {
                            sleep.await;
                            query.responder.respond(query.message);
                        })
                        .detach();
                });
                let other = CoreId(1 - mesh.core().0);
                let mut answers = Vec::new();
                for number in 0..500 {
                    let call = mesh.send(other, number).await;
                    let check = async move { assert_eq!(call.await, number) };
                    answers.push(io.spawn(Priority::Foreground, check));
                }
                for answer in answers {
                    answer.await;
                }
                assert!(mesh.out_of_credits_count() > 0, "two credits were enough for 500 requests");
                wait_for_all(&io, &finished, 2).await;
            }
        });
    }
}

/// This core has finished; it serves on until all have.
async fn wait_for_all(io: &Io, finished: &AtomicU32, count: u32) {
    finished.fetch_add(1, Ordering::SeqCst);
    while finished.load(Ordering::SeqCst) < count {
        io.sleep(Duration::from_millis(1)).await;
    }
}

/// Two callers ask two cores each, in opposite order, before they await an answer: each has what the other one needs.
#[test]
fn an_answer_that_nobody_has_taken_holds_no_credit() {
    let world = World::new(1);
    let host = world.host("one");
    let (mut answered, mut meshes) = (Vec::new(), Vec::new());
    for seat in seats::<u64, u64>(3, 1) {
        let mesh = Mesh::join(seat, &host.executor());
        mesh.serve(|query| query.responder.respond(query.message));
        meshes.push(mesh);
    }
    let io = host.executor();
    for order in [[1, 2], [2, 1]] {
        let (mesh, done) = (meshes[0].clone(), Rc::new(Cell::new(false)));
        answered.push(Rc::clone(&done));
        let pause = io.clone();
        io.spawn(Priority::Foreground, async move {
            let first = mesh.send(CoreId(order[0]), 7).await;
            // Both have sent their first by now.
            pause.sleep(Duration::from_millis(1)).await;
            let second = mesh.send(CoreId(order[1]), 8).await;
            assert_eq!((first.await, second.await), (7, 8));
            done.set(true);
        })
        .detach();
    }
    let is_done = || answered.iter().all(|done| done.get());
    assert_eq!(world.run_until(is_done, Duration::from_secs(10)), Outcome::Done);
}

/// Counts what was served and wakes whoever waits for the last one.
#[derive(Default)]
struct Served {
    count: Cell<u64>,
    waker: RefCell<Option<Waker>>,
}

impl Served {
    fn one_more(&self) {
        self.count.set(self.count.get() + 1);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    async fn reached(&self, count: u64) {
        poll_fn(|context| {
            *self.waker.borrow_mut() = Some(context.waker().clone());
            if self.count.get() >= count { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Cores never spin here and sleep as soon as they wait, so every request and every answer must wake its receiver.
#[test]
fn messages_wake_sleeping_cores() {
    const ROUNDS: u64 = 3_000;
    for driver in drivers() {
        on_threads(driver, seats::<u64, u64>(2, 4), |io, seat| async move {
            let mesh = Mesh::join(seat, &io);
            let served = Rc::<Served>::default();
            let server = Rc::clone(&served);
            mesh.serve(move |query| {
                query.responder.respond(query.message + 1);
                server.one_more();
            });
            if mesh.core() == CoreId(0) {
                for round in 0..ROUNDS {
                    assert_eq!(mesh.call(CoreId(1), round).await, round + 1);
                }
            } else {
                // No timer runs on this core: only messages wake it.
                served.reached(ROUNDS).await;
            }
        });
    }
}

#[test]
fn a_message_from_outside_wakes_a_sleeping_core() {
    for driver in drivers() {
        let (way_in, inbox) = outside::<u64>(3);
        // Sent before anybody serves the inbox.
        way_in.send(1).expect("room");
        let inbox = Arc::new(std::sync::Mutex::new(Some(inbox)));
        let (heard, hears) = mpsc::channel();
        let core = std::thread::spawn(move || {
            on_threads(driver, seats::<(), ()>(1, 1), move |io, seat| {
                let inbox = inbox.lock().expect("no one panics here").take().expect("one core");
                let heard = heard.clone();
                async move {
                    let _mesh = Mesh::join(seat, &io);
                    let served = Rc::<Served>::default();
                    let server = Rc::clone(&served);
                    inbox.serve(&io, move |message| {
                        heard.send(message).expect("the test waits for it");
                        server.one_more();
                    });
                    served.reached(50).await;
                }
            });
        });
        assert_eq!(hears.recv_timeout(PATIENCE), Ok(1), "{driver:?}");
        for message in 2..=50 {
            // The core had nothing else to do, so it sleeps, or is about to.
            if message % 10 == 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            way_in.send(message).expect("room");
            assert_eq!(hears.recv_timeout(PATIENCE), Ok(message), "{driver:?}");
        }
        core.join().expect("the core ends after fifty messages");
        assert_eq!(way_in.send(51), Err(51), "the core has ended");
    }
}

#[test]
fn a_full_way_in_hands_the_message_back() {
    let (way_in, _inbox) = outside::<u64>(2);
    assert_eq!([way_in.send(1), way_in.send(2), way_in.send(3)], [Ok(()), Ok(()), Err(3)]);
}

#[test]
fn a_message_from_outside_wakes_a_sleeping_core_in_simulation() {
    let world = World::new(1);
    let io = world.host("one").executor();
    let (way_in, inbox) = outside::<u64>(2);
    let served = Rc::<Served>::default();
    let server = Rc::clone(&served);
    inbox.serve(&io, move |_| server.one_more());
    io.spawn(Priority::Foreground, std::future::pending::<()>()).detach();
    assert_eq!(world.run_for(Duration::from_secs(1)), Outcome::Stuck, "the core sleeps for good");
    way_in.send(1).expect("room");
    assert_eq!(world.run_until(|| served.count.get() == 1, Duration::from_secs(1)), Outcome::Done);
}
