//! The simulation: many hosts and executors on one thread, one virtual clock, one heap of events, one seed. The same
//! [`Io`] as on a kernel; never touches one.
//!
//! One seed gives one run, event by event; [`World::trace_hash`] is its fingerprint. Time passes only between events, and
//! every turn of an executor costs a little of it, so that a task which never waits cannot stop the clock.

mod agenda;
mod disk;
mod driver;
mod faults;
mod handles;
mod host_disk;
mod links;
mod name_log;
mod network;
mod perform;
mod sectors;
mod state;
mod trace;

use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::time::Duration;

use self::agenda::Agenda;
use self::disk::Disk;
pub use self::disk::UnsyncedData;
use self::driver::SimDriver;
pub use self::faults::Place;
pub(crate) use self::handles::{SimulatedFile, SimulatedListener, SimulatedNotifier, SimulatedSocket};
pub use self::host_disk::{HostDisk, Syncs};
use self::state::{Event, ExecutorState, HostState, TURN, WorldState};
use crate::clock::Monotonic;
use crate::driver::Wait;
use crate::executor::Core;
use crate::io::Io;
use crate::random::Random;

/// An executor that has more to run does so many turns more, at most, before anybody else can do anything.
const ROUNDS_MAX: u64 = 6;

/// How [`World::run_until`] ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The condition holds.
    Done,
    /// The time is over.
    TimedOut,
    /// Nothing will ever happen again: everybody waits for somebody.
    Stuck,
}

/// A simulated world. One thread holds it; dropping it ends every executor.
pub struct World {
    inner: Rc<Inner>,
}

struct Inner {
    state: Rc<RefCell<WorldState>>,
    /// By executor number; `None` once its host crashed.
    cores: RefCell<Vec<Option<Rc<Core>>>>,
}

impl World {
    /// An empty world whose every choice follows from `seed`.
    pub fn new(seed: u64) -> Self {
        let state = Rc::new(RefCell::new(WorldState::new(seed)));
        Self { inner: Rc::new(Inner { state, cores: RefCell::default() }) }
    }

    /// The host of that name; a new one, with an empty disk and an address of its own, when there is none.
    pub fn host(&self, name: &str) -> Host {
        let mut state = self.inner.state.borrow_mut();
        let present = state.hosts.iter().position(|host| host.name == name);
        let index = present.unwrap_or_else(|| {
            let index = state.hosts.len();
            let [high, low] = u16::try_from(index + 1).expect("fewer than 65,535 hosts").to_be_bytes();
            state.hosts.push(HostState {
                name: name.to_owned(),
                address: IpAddr::V4(Ipv4Addr::new(10, 0, high, low)),
                disk: Disk::new(),
                wall_offset_ms: 0,
                stalled_until: 0,
                slow: (0, 0),
                disk_changes: 0,
                disk_syncs: Syncs::default(),
            });
            index
        });
        Host { inner: Rc::clone(&self.inner), index }
    }

    /// Lets events happen until the condition holds (looked at after each one), or `max` of virtual time has passed.
    pub fn run_until(&self, condition: impl Fn() -> bool, max: Duration) -> Outcome {
        let deadline = (self.now() + max).0;
        self.inner.state.borrow_mut().process_ledger();
        loop {
            if condition() {
                return Outcome::Done;
            }
            let mut state = self.inner.state.borrow_mut();
            let Some(time) = state.events.next_time() else { return Outcome::Stuck };
            if time > deadline {
                state.now = deadline;
                return Outcome::TimedOut;
            }
            let Some((time, event)) = state.events.pop() else { return Outcome::Stuck };
            state.now = time;
            self.inner.happen(state, time, event);
        }
    }

    /// Lets `duration` of virtual time pass.
    pub fn run_for(&self, duration: Duration) -> Outcome {
        self.run_until(|| false, duration)
    }

    /// The virtual clock.
    pub fn now(&self) -> Monotonic {
        Monotonic(self.inner.state.borrow().now)
    }

    /// The fingerprint of everything that has happened.
    pub fn trace_hash(&self) -> u64 {
        self.inner.state.borrow().trace.value()
    }

    /// How much has happened.
    pub fn event_count(&self) -> u64 {
        self.inner.state.borrow().event_count
    }

    /// A number from the world's own generator, for choices of a test.
    pub fn random_u64(&self) -> u64 {
        self.inner.state.borrow_mut().random.next_u64()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let cores = std::mem::take(&mut *self.inner.cores.borrow_mut());
        for core in cores.into_iter().flatten() {
            core.shut_down();
        }
        // What is still to happen may hold handles of the world's own ledger; drop them outside its borrow.
        let events = std::mem::replace(&mut self.inner.state.borrow_mut().events, Agenda::new());
        drop(events);
    }
}

impl Inner {
    fn happen(&self, mut state: std::cell::RefMut<'_, WorldState>, time: u64, event: Event) {
        if let Event::Turn { executor } = event {
            if !state.is_turn_due(executor) {
                return;
            }
            state.record(time, &event);
            drop(state);
            self.turn(executor);
            return;
        }
        state.record(time, &event);
        state.dispatch(event);
        state.process_ledger();
    }

    fn turn(&self, executor: usize) {
        let core = self.cores.borrow().get(executor).and_then(Clone::clone);
        let Some(core) = core else { return };
        let rounds = self.state.borrow_mut().random.below(ROUNDS_MAX + 1);
        let entered = core.queue.enter();
        core.poll_driver(Wait::Nothing);
        let mut more = core.turn();
        // What a turn wakes mostly runs in the next one, and mostly nothing happens between the two.
        for _ in 0..rounds {
            if !more {
                break;
            }
            more = core.turn();
        }
        let wait = core.wait();
        drop(entered);
        let mut state = self.state.borrow_mut();
        state.process_ledger();
        let next = state.now + state.draw(TURN);
        match wait {
            _ if more => state.request_turn(executor, next),
            // A deadline of now or earlier was missed by the turn that just ended.
            Wait::Until(deadline) => state.request_turn(executor, deadline.0.max(next)),
            Wait::Nothing | Wait::Forever => {}
        }
        if let Some(time) = state.next_mail(executor) {
            let time = time.max(state.now);
            state.request_turn(executor, time);
        }
    }
}

/// One machine of a world: a disk, an address, a wall clock, and executors that come and go.
#[derive(Clone)]
pub struct Host {
    inner: Rc<Inner>,
    index: usize,
}

impl Host {
    /// A new executor on this host. Spawn its work through the handle; the world runs it.
    pub fn executor(&self) -> Io {
        let executor = {
            let mut state = self.inner.state.borrow_mut();
            let random = Random::from_seed(state.random.next_u64());
            state.executors.push(ExecutorState::new(self.index, random));
            state.executors.len() - 1
        };
        let driver = SimDriver { world: Rc::clone(&self.inner.state), executor, host: self.index };
        let core = Core::new(Box::new(driver));
        let mut cores = self.inner.cores.borrow_mut();
        assert_eq!(cores.len(), executor, "executors and cores are numbered alike");
        cores.push(Some(Rc::clone(&core)));
        Io::new(core)
    }

    /// The address that reaches this host.
    pub fn address(&self) -> IpAddr {
        self.inner.state.borrow().hosts[self.index].address
    }

    /// Lets the wall clock of this host jump.
    pub fn jump_wall_clock(&self, milliseconds: i64) {
        crate::reached!("sim.clock_jumped");
        self.inner.state.borrow_mut().hosts[self.index].wall_offset_ms += milliseconds;
    }

    /// The disk of this host, to let it go wrong.
    pub fn disk(&self) -> HostDisk {
        HostDisk { inner: Rc::clone(&self.inner), index: self.index }
    }

    /// Descriptors that were closed, not by a crash, with writes that nobody had synced: a kernel drops the error of such
    /// writes, so there should be none.
    pub fn descriptors_closed_unsynced(&self) -> u64 {
        self.inner.state.borrow().hosts[self.index].disk.closed_unsynced()
    }

    /// Cuts the power: every executor of the host ends at once, peers see a reset, and the disk keeps what was synced;
    /// of the rest all, nothing or some, as the seed decides (the answer tells). Names last only after a sync of their
    /// directory, or as [`UnsyncedData::RandomSubset`] says.
    pub fn crash(&self) -> UnsyncedData {
        let unsynced = match self.inner.state.borrow_mut().random.below(4) {
            0 => UnsyncedData::Kept,
            1 => UnsyncedData::Lost,
            choice => UnsyncedData::RandomSubset { torn: choice == 3 },
        };
        self.crash_with(unsynced);
        unsynced
    }

    /// The same, told what happens to unsynced data.
    pub fn crash_with(&self, unsynced: UnsyncedData) {
        let ended: Vec<usize> = {
            let mut state = self.inner.state.borrow_mut();
            // First off the network and off the disk, so that nothing which tasks do while they are dropped is seen.
            let state = &mut *state;
            state.cut_off(self.index);
            state.cut_power(self.index, unsynced);
            let executors = state.executors.iter_mut().enumerate();
            executors
                .filter(|(_, executor)| executor.host == self.index && executor.alive)
                .map(|(number, executor)| {
                    executor.alive = false;
                    number
                })
                .collect()
        };
        for executor in ended {
            let core = self.inner.cores.borrow_mut().get_mut(executor).and_then(Option::take);
            if let Some(core) = core {
                core.shut_down();
            }
        }
        self.inner.state.borrow_mut().process_ledger();
    }
}
