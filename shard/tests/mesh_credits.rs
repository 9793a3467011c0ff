//! A request that is held until other requests are answered must never hold the last credit that those need: the
//! controller's requests against the images it sends, on the real mesh and the simulation.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use ringlog_io::sim::{Outcome, World};
use ringlog_io::{Io, Priority};
use ringlog_shard::limits::{MACHINE_REQUESTS_QUEUED_MAX, MESH_CREDITS, MESH_HELD_LONG_MAX};
use ringlog_shard::mesh::{CoreId, Mesh, Responder, seats};
use ringlog_shard::waiters::{Watch, Watchers};

const CONTROLLER: CoreId = CoreId(0);
const CALLERS: u32 = 1500;
const CORE_COUNT: u32 = 2;

enum Ask {
    /// To the controller's core: answered when every core, its own too, has applied it.
    Change,
    /// Answered at once.
    Apply,
}

#[derive(Debug, PartialEq, Eq)]
enum Told {
    Done,
    Busy,
}

/// A bounded queue before one runner, as the controller has.
#[derive(Default)]
struct Controller {
    queue: RefCell<VecDeque<Responder<Ask, Told>>>,
    came: Watchers,
    most_queued: Cell<usize>,
}

impl Controller {
    fn enqueue(&self, responder: Responder<Ask, Told>) {
        let mut queue = self.queue.borrow_mut();
        if queue.len() >= MACHINE_REQUESTS_QUEUED_MAX {
            drop(queue);
            responder.respond(Told::Busy);
            return;
        }
        queue.push_back(responder);
        self.most_queued.set(self.most_queued.get().max(queue.len()));
        drop(queue);
        self.came.attention();
    }

    async fn run(self: Rc<Self>, io: Io, mesh: Mesh<Ask, Told>) {
        loop {
            let mut watch = Watch::new(1);
            watch.on(&self.came);
            let Some(responder) = self.queue.borrow_mut().pop_front() else {
                watch.await;
                continue;
            };
            // Its records are committed first; meanwhile others ask.
            io.sleep(Duration::from_micros(50)).await;
            for core in mesh.cores() {
                assert_eq!(mesh.call(core, Ask::Apply).await, Told::Done);
            }
            responder.respond(Told::Done);
        }
    }
}

/// How it ends when many callers ask for a change at once, and again while the queue is full, with so many credits. All of them are on the controller's
/// core: there the changes and the image need credits of the same pair.
fn all_ask_at_once(credits: u32) -> Outcome {
    let world = World::new(7);
    let host = world.host("one");
    let answered = Rc::new(Cell::new(0));
    let controller = Rc::<Controller>::default();
    let mut meshes = Vec::new();
    for seat in seats(CORE_COUNT, credits) {
        let io = host.executor();
        let mesh = Mesh::join(seat, &io);
        let host_of_changes = Rc::clone(&controller);
        mesh.serve(move |query| match query.message {
            Ask::Change => host_of_changes.enqueue(query.responder),
            Ask::Apply => query.responder.respond(Told::Done),
        });
        if mesh.core() == CONTROLLER {
            io.spawn(Priority::Foreground, Rc::clone(&controller).run(io.clone(), mesh.clone())).detach();
            for _ in 0..CALLERS {
                let (clock, mesh, answered) = (io.clone(), mesh.clone(), Rc::clone(&answered));
                io.spawn(Priority::Foreground, async move {
                    while mesh.call(CONTROLLER, Ask::Change).await == Told::Busy {
                        clock.sleep(Duration::from_millis(1)).await;
                    }
                    answered.set(answered.get() + 1);
                })
                .detach();
            }
        }
        meshes.push(mesh);
    }
    let outcome = world.run_until(|| answered.get() == CALLERS, Duration::from_secs(60));
    assert_eq!(controller.most_queued.get(), MACHINE_REQUESTS_QUEUED_MAX, "the queue was never full");
    outcome
}

#[test]
fn changes_are_answered_with_the_credits_that_are_given() {
    assert_eq!(all_ask_at_once(MESH_CREDITS), Outcome::Done);
}

#[test]
fn one_credit_more_than_are_held_for_long_is_enough() {
    assert_eq!(all_ask_at_once(MESH_HELD_LONG_MAX + 1), Outcome::Done);
}

/// The test above can fail: where the changes hold every credit, no image ever leaves.
#[test]
fn as_many_credits_as_changes_are_held_is_too_few() {
    let held_changes = MACHINE_REQUESTS_QUEUED_MAX as u32 + 1;
    assert_eq!(all_ask_at_once(held_changes), Outcome::Stuck);
}
