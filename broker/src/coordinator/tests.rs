//! The order of the runner's steps, and what each failure leaves behind, on a log in memory and an executor of one loop.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::task::Context;

use super::*;

mod snapshots;

/// Adds up numbers; refuses negative ones.
#[derive(Default)]
struct Adder {
    sum: i64,
}

#[derive(Debug, thiserror::Error)]
#[error("no number")]
struct NoNumber;

impl StateMachine for Adder {
    type Request = i64;
    type Reply = Result<i64, &'static str>;
    type Image = i64;
    type ReplayError = NoNumber;

    fn propose(&self, request: i64, now_ms: i64) -> Outcome<Self::Reply> {
        assert_eq!(now_ms, 77, "the clock's time comes with the request");
        if request < 0 {
            return Outcome::reply(Err("negative"));
        }
        let records = vec![request.to_le_bytes().to_vec(); usize::from(request != 0)];
        Outcome { records, reply: Ok(self.sum + request) }
    }

    fn replay(&mut self, _: Offset, record: &[u8]) -> Result<(), NoNumber> {
        self.sum += i64::from_le_bytes(record.try_into().map_err(|_| NoNumber)?);
        Ok(())
    }

    fn image(&self) -> i64 {
        self.sum
    }

    fn snapshot(&self) -> Vec<Vec<u8>> {
        vec![self.sum.to_le_bytes().to_vec()]
    }
}

/// What happened, in order.
#[derive(Clone, Default)]
struct Story(Rc<RefCell<Vec<String>>>);

impl Story {
    fn tell(&self, what: impl Into<String>) {
        self.0.borrow_mut().push(what.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.borrow_mut())
    }
}

/// A log in memory. An append waits until `open`; `failing` decides what comes of it.
#[derive(Clone, Default)]
struct MemoryLog {
    records: Rc<RefCell<Vec<Vec<u8>>>>,
    open: Rc<Cell<bool>>,
    failing: Rc<Cell<Failing>>,
    /// Records below are gone.
    start: Rc<Cell<usize>>,
    /// Ascending; none of them is damaged.
    snapshots: Rc<RefCell<Vec<MachineSnapshot>>>,
    /// Keeping a snapshot takes as long as this is set.
    holding: Rc<Cell<bool>>,
    story: Story,
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Failing {
    #[default]
    Nothing,
    /// The append fails and nothing is in the log.
    Lost,
    /// The append fails although the records are committed.
    CommittedAnyway,
    /// No snapshot is kept.
    NoSnapshot,
    /// A snapshot is kept, and the log's start does not move.
    NoStart,
}

impl MemoryLog {
    fn open() -> MemoryLog {
        let log = MemoryLog::default();
        log.open.set(true);
        log
    }
}

impl MachineLog for MemoryLog {
    async fn append(&self, records: Vec<Vec<u8>>) -> Result<Offset, MachineLogError> {
        self.story.tell(format!("append {}", records.len()));
        poll_fn(|_| if self.open.get() { Poll::Ready(()) } else { Poll::Pending }).await;
        if self.failing.get() != Failing::Lost {
            self.records.borrow_mut().extend(records);
        }
        if matches!(self.failing.get(), Failing::Lost | Failing::CommittedAnyway) {
            return Err(MachineLogError::Unavailable { reason: "planted".to_owned() });
        }
        self.story.tell("committed");
        Ok(Offset(self.records.borrow().len() as i64 - 1))
    }

    async fn read(&self, from: Offset) -> Result<Vec<LoggedRecord>, MachineLogError> {
        let records = self.records.borrow();
        let from = from.0 as usize;
        if from < self.start.get() {
            return Err(MachineLogError::Unreadable { reason: format!("{from} is gone") });
        }
        // Two at a time, so that reading takes several steps.
        let step = records.iter().enumerate().skip(from).take(2);
        Ok(step.map(|(at, bytes)| LoggedRecord { offset: Offset(at as i64), bytes: bytes.clone() }).collect())
    }

    async fn save_snapshot(&self, snapshot: MachineSnapshot) -> Result<(), MachineLogError> {
        let unavailable = || Err(MachineLogError::Unavailable { reason: "planted".to_owned() });
        let start = snapshot.offset.0 as usize;
        assert!(start <= self.records.borrow().len(), "only of what is committed");
        poll_fn(|_| if self.holding.get() { Poll::Pending } else { Poll::Ready(()) }).await;
        if self.failing.get() == Failing::NoSnapshot {
            return unavailable();
        }
        self.story.tell(format!("snapshot {start}"));
        self.snapshots.borrow_mut().push(snapshot);
        if self.failing.get() == Failing::NoStart {
            return unavailable();
        }
        self.start.set(start);
        Ok(())
    }

    async fn load_snapshot(&self) -> Result<Option<MachineSnapshot>, MachineLogError> {
        let newest = self.snapshots.borrow().last().cloned();
        let covers = |snapshot: &MachineSnapshot| snapshot.offset.0 as usize >= self.start.get();
        match newest.filter(covers) {
            None if self.start.get() > 0 => Err(MachineLogError::StateLost { reason: "damaged".to_owned() }),
            newest => Ok(newest),
        }
    }
}

impl Publish<i64> for Story {
    async fn published(&self, image: i64) {
        self.tell(format!("published {image}"));
    }
}

fn poll<F: Future + ?Sized>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// A runner that is turned by hand.
struct Machine {
    coordinator: Coordinator<Adder>,
    runner: Option<Pin<Box<dyn Future<Output = ()>>>>,
}

impl Machine {
    fn start(log: &MemoryLog) -> Result<Machine, RunnerError> {
        Machine::start_with(log, u64::MAX)
    }

    fn start_with(log: &MemoryLog, snapshot_after_bytes: u64) -> Result<Machine, RunnerError> {
        let restoring = Replica::restore(Adder::default(), log.clone(), snapshot_after_bytes);
        let replica = poll(pin!(restoring)).expect("a log in memory is read at once")?;
        let preparing = Coordinator::prepare(replica, log.story.clone(), Rc::new(|| 77));
        let (coordinator, runner) = poll(pin!(preparing)).expect("it is published at once");
        Ok(Machine { coordinator, runner: Some(Box::pin(runner)) })
    }

    fn turn(&mut self) {
        if let Some(runner) = &mut self.runner
            && poll(runner.as_mut()).is_some()
        {
            self.runner = None;
        }
    }

    fn ask(&mut self, request: i64) -> Option<Replied<Result<i64, &'static str>>> {
        let coordinator = self.coordinator.clone();
        let mut asked = pin!(coordinator.run(request));
        if let Some(reply) = poll(asked.as_mut()) {
            return Some(reply);
        }
        self.turn();
        poll(asked)
    }
}

#[test]
fn a_reply_leaves_after_commit_replay_and_publication() {
    let log = MemoryLog::default();
    let mut machine = Machine::start(&log).expect("an empty log");
    assert_eq!(log.story.take(), ["published 0"], "readers have an image before the first request");
    let coordinator = machine.coordinator.clone();
    let mut asked = pin!(coordinator.run(5));
    assert!(poll(asked.as_mut()).is_none());
    machine.turn();
    assert!(poll(asked.as_mut()).is_none(), "not committed");
    assert_eq!(machine.coordinator.image(), 0, "nothing changed yet");
    assert_eq!(log.story.take(), ["append 1"]);
    log.open.set(true);
    machine.turn();
    assert_eq!(log.story.take(), ["committed", "published 5"]);
    assert_eq!(poll(asked), Some(Ok(Ok(5))));
    assert_eq!(machine.coordinator.image(), 5);
}

#[test]
fn what_changes_nothing_is_answered_without_the_log() {
    let log = MemoryLog::default();
    let mut machine = Machine::start(&log).expect("an empty log");
    log.story.take();
    assert_eq!(machine.ask(-1), Some(Ok(Err("negative"))));
    assert_eq!(machine.ask(0), Some(Ok(Ok(0))));
    assert_eq!(log.story.take(), Vec::<String>::new());
}

#[test]
fn each_request_sees_everything_before_it() {
    let log = MemoryLog::open();
    let mut machine = Machine::start(&log).expect("an empty log");
    let coordinator = machine.coordinator.clone();
    let mut first = pin!(coordinator.run(1));
    let mut second = pin!(coordinator.run(2));
    assert!(poll(first.as_mut()).is_none() && poll(second.as_mut()).is_none());
    machine.turn();
    assert_eq!(poll(second), Some(Ok(Ok(3))));
    assert_eq!(poll(first), Some(Ok(Ok(1))));
}

#[test]
fn a_restart_replays_the_log_from_its_start() {
    let log = MemoryLog::open();
    let mut machine = Machine::start(&log).expect("an empty log");
    (1..=5).for_each(|number| drop(machine.ask(number)));
    log.story.take();
    let machine = Machine::start(&log).expect("its own log");
    assert_eq!(machine.coordinator.image(), 15);
    assert_eq!(log.story.take(), ["published 15"]);
}

#[test]
fn after_a_failed_append_the_log_decides_what_happened() {
    for (failing, sum) in [(Failing::Lost, 1), (Failing::CommittedAnyway, 11)] {
        let log = MemoryLog::open();
        let mut machine = Machine::start(&log).expect("an empty log");
        machine.ask(1);
        log.failing.set(failing);
        let failed = machine.ask(10);
        assert!(matches!(failed, Some(Err(RunnerError::Log(_)))), "{failed:?}");
        assert_eq!(machine.coordinator.image(), 1, "the outcome is open");
        log.failing.set(Failing::Nothing);
        assert_eq!(
            machine.ask(100),
            Some(Ok(Ok(sum + 100))),
            "the next request is decided on what the log holds"
        );
        assert_eq!(machine.coordinator.image(), sum + 100);
    }
}

#[test]
fn what_cannot_be_replayed_stops_a_start() {
    let log = MemoryLog::open();
    log.records.borrow_mut().push(vec![1, 2, 3]);
    let stopped = RunnerError::Replay { offset: Offset(0), reason: "no number".to_owned() };
    assert_eq!(Machine::start(&log).err(), Some(stopped));
}

#[test]
fn what_cannot_be_replayed_stops_a_running_machine_for_good() {
    let log = MemoryLog::open();
    let mut machine = Machine::start(&log).expect("an empty log");
    log.failing.set(Failing::Lost);
    machine.ask(1);
    log.records.borrow_mut().push(vec![1, 2, 3]);
    let stopped = RunnerError::Replay { offset: Offset(0), reason: "no number".to_owned() };
    assert_eq!(machine.ask(1), Some(Err(stopped.clone())));
    assert!(machine.runner.is_none(), "the runner ended");
    assert_eq!(machine.ask(1), Some(Err(stopped)), "whoever asks later is told at once");
}

#[test]
fn the_queue_is_bounded_and_its_requests_fail_when_the_runner_ends() {
    let log = MemoryLog::default();
    let mut machine = Machine::start(&log).expect("an empty log");
    let coordinator = machine.coordinator.clone();
    let mut asked: Vec<_> = (0..=MACHINE_REQUESTS_QUEUED_MAX).map(|_| Box::pin(coordinator.run(1))).collect();
    for asked in &mut asked[..MACHINE_REQUESTS_QUEUED_MAX] {
        assert!(poll(asked.as_mut()).is_none());
    }
    assert_eq!(poll(asked[MACHINE_REQUESTS_QUEUED_MAX].as_mut()), Some(Err(RunnerError::Busy)));
    machine.turn();
    assert_eq!(log.story.take(), ["published 0", "append 1"]);
    machine.runner = None;
    for asked in &mut asked[..MACHINE_REQUESTS_QUEUED_MAX] {
        assert_eq!(poll(asked.as_mut()), Some(Err(RunnerError::Stopped)), "the one in the works too");
    }
    assert_eq!(machine.ask(1), Some(Err(RunnerError::Stopped)));
}
