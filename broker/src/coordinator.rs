//! The one runner of replicated machines: proposes, appends, waits for the commit, replays, publishes, answers; and between two requests
//! takes a snapshot when the log grew long.
//!
//! Owns the order of these steps and the bounded queue in front of them; never decides anything itself. Lives on the core that leads the
//! machine's partition. The machine with its log is in `replica`.
//!
//! One request is in the works at a time, so each is decided against a state that holds everything before it. The downside: requests
//! wait for each other's commit, a journal write each. That is right for metadata; machines with many small requests put several into one
//! request of theirs.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::task::{Poll, Waker};

use ringlog_io::{Io, Priority};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::Offset;
use ringlog_shard::limits::{MACHINE_PROPOSAL_BYTES_MAX, MACHINE_REQUESTS_QUEUED_MAX};
use ringlog_shard::state_machine::{LoggedRecord, MachineSnapshot, Outcome, StateMachine};

use self::replica::Replica;

mod replica;
#[cfg(test)]
mod tests;

/// The partition that a machine lives by. Single-threaded: futures stay on their core.
pub trait MachineLog {
    /// Appends the records as one batch, all or none, and resolves with the offset of the last one once they are committed.
    ///
    /// # Errors
    /// They may be committed later all the same; the runner reads the log again before it goes on.
    fn append(&self, records: Vec<Vec<u8>>) -> impl Future<Output = Result<Offset, MachineLogError>>;

    /// Committed records from `from` on, in order, as many as fit one step; empty where there are no more.
    ///
    /// # Errors
    /// Also when the log begins behind `from`: what is gone is not passed over.
    fn read(&self, from: Offset) -> impl Future<Output = Result<Vec<LoggedRecord>, MachineLogError>>;

    /// Keeps the snapshot, and once it is durable lets the log begin at its offset, which is at most the end of what is
    /// committed. Resolves when that is durable too.
    ///
    /// # Errors
    /// It may be there or not; the log and an older one still make the whole state.
    fn save_snapshot(&self, snapshot: MachineSnapshot) -> impl Future<Output = Result<(), MachineLogError>>;

    /// The newest snapshot that is sound and from whose offset on the log has all; `None` where the log begins at 0.
    ///
    /// # Errors
    /// [`MachineLogError::StateLost`]: there is none, and the log begins later.
    fn load_snapshot(&self) -> impl Future<Output = Result<Option<MachineSnapshot>, MachineLogError>>;
}

/// Brings a new image to its readers: resolves once every core of this node works with it.
pub trait Publish<I> {
    fn published(&self, image: I) -> impl Future<Output = ()>;
}

/// Why a machine's log did not do as asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MachineLogError {
    #[error("this core does not lead the machine's partition")]
    NotLeader,
    #[error("the machine's log takes no writes now: {reason}")]
    Unavailable { reason: String },
    #[error("the machine's log cannot be read: {reason}")]
    Unreadable { reason: String },
    /// It is not guessed.
    #[error("the machine's state cannot be made again: {reason}")]
    StateLost { reason: String },
}

/// Why a request got no reply.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RunnerError {
    /// Nothing was done; try again later.
    #[error("{MACHINE_REQUESTS_QUEUED_MAX} requests wait already")]
    Busy,
    /// Nothing was done.
    #[error(
        "the request came to {bytes} bytes of records, more than the {MACHINE_PROPOSAL_BYTES_MAX} of one change"
    )]
    TooLarge { bytes: usize },
    /// The change may or may not happen.
    #[error(transparent)]
    Log(#[from] MachineLogError),
    /// The machine stopped, for this reason: its log holds what this build cannot replay.
    #[error("the machine stopped at offset {offset}: {reason}")]
    Replay { offset: Offset, reason: String },
    /// A snapshot that is sound as a file holds what this build cannot replay.
    #[error("the machine's snapshot at offset {offset}: {reason}")]
    Snapshot { offset: Offset, reason: String },
    #[error("the machine is stopped")]
    Stopped,
}

impl RunnerError {
    /// Kafka's code for it: retriable where trying again may help.
    pub fn error_code(&self) -> ErrorCode {
        match self {
            RunnerError::Busy | RunnerError::Stopped => ErrorCode::CoordinatorLoadInProgress,
            RunnerError::TooLarge { .. } => ErrorCode::InvalidRequest,
            RunnerError::Log(_) | RunnerError::Replay { .. } | RunnerError::Snapshot { .. } => {
                ErrorCode::KafkaStorageError
            }
        }
    }
}

/// A running machine: asks go in here. Clones are the same machine.
pub struct Coordinator<M: StateMachine> {
    shared: Rc<Shared<M>>,
    clock: Rc<dyn Fn() -> i64>,
}

impl<M: StateMachine> Clone for Coordinator<M> {
    fn clone(&self) -> Self {
        Coordinator { shared: Rc::clone(&self.shared), clock: Rc::clone(&self.clock) }
    }
}

struct Shared<M: StateMachine> {
    queue: RefCell<VecDeque<Queued<M>>>,
    /// The runner, where it waits for a request.
    runner: RefCell<Option<Waker>>,
    /// The newest published image.
    image: RefCell<M::Image>,
    /// Set for good once the machine cannot go on.
    stopped: RefCell<Option<RunnerError>>,
}

struct Queued<M: StateMachine> {
    request: M::Request,
    now_ms: i64,
    reply: Rc<ReplySlot<M::Reply>>,
}

type Replied<R> = Result<R, RunnerError>;

struct ReplySlot<R> {
    reply: RefCell<Option<Replied<R>>>,
    waker: RefCell<Option<Waker>>,
}

impl<M: StateMachine + 'static> Coordinator<M> {
    /// Replays the log, from its snapshot on, into a fresh `machine`, publishes its image and starts the runner on this core. A snapshot
    /// is taken when more than `snapshot_after_bytes` of records came behind the last one.
    ///
    /// # Errors
    /// The log cannot be read, or holds what the machine cannot replay, or nothing holds what came before its start.
    pub async fn start<L, P>(
        io: &Io,
        machine: M,
        log: L,
        publisher: P,
        snapshot_after_bytes: u64,
    ) -> Result<Coordinator<M>, RunnerError>
    where
        L: MachineLog + 'static,
        P: Publish<M::Image> + 'static,
    {
        let wall_clock = io.clone();
        let clock = Rc::new(move || wall_clock.wall_now_ms());
        let replica = Replica::restore(machine, log, snapshot_after_bytes).await?;
        let (coordinator, runner) = Coordinator::prepare(replica, publisher, clock).await;
        io.spawn(Priority::Foreground, runner).detach();
        Ok(coordinator)
    }

    async fn prepare<L, P>(
        replica: Replica<M, L>,
        publisher: P,
        clock: Rc<dyn Fn() -> i64>,
    ) -> (Coordinator<M>, impl Future<Output = ()>)
    where
        L: MachineLog,
        P: Publish<M::Image>,
    {
        let image = replica.machine.image();
        publisher.published(image.clone()).await;
        let shared = Rc::new(Shared {
            queue: RefCell::new(VecDeque::new()),
            runner: RefCell::new(None),
            image: RefCell::new(image),
            stopped: RefCell::new(None),
        });
        let runner = Runner { shared: Rc::clone(&shared), replica, publisher };
        (Coordinator { shared, clock }, runner.run())
    }

    /// Asks the machine. The reply comes after its records are committed and replayed, and after every core has the image that
    /// holds them. Dropping the future takes nothing back.
    ///
    /// # Errors
    /// See [`RunnerError`]: which of them leave the outcome open is told there.
    pub async fn run(&self, request: M::Request) -> Result<M::Reply, RunnerError> {
        let reply = self.enqueue(request)?;
        poll_fn(|context| match reply.reply.borrow_mut().take() {
            Some(reply) => Poll::Ready(reply),
            None => {
                *reply.waker.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    /// The newest image that every core has.
    pub fn image(&self) -> M::Image {
        self.shared.image.borrow().clone()
    }

    fn enqueue(&self, request: M::Request) -> Result<Rc<ReplySlot<M::Reply>>, RunnerError> {
        if let Some(stopped) = &*self.shared.stopped.borrow() {
            return Err(stopped.clone());
        }
        let mut queue = self.shared.queue.borrow_mut();
        if queue.len() >= MACHINE_REQUESTS_QUEUED_MAX {
            return Err(RunnerError::Busy);
        }
        let reply = Rc::new(ReplySlot { reply: RefCell::new(None), waker: RefCell::new(None) });
        queue.push_back(Queued { request, now_ms: (self.clock)(), reply: Rc::clone(&reply) });
        drop(queue);
        if let Some(runner) = self.shared.runner.borrow_mut().take() {
            runner.wake();
        }
        Ok(reply)
    }
}

impl<M: StateMachine> Shared<M> {
    /// The next request, in order of arrival.
    async fn next(&self) -> Queued<M> {
        poll_fn(|context| match self.queue.borrow_mut().pop_front() {
            Some(queued) => Poll::Ready(queued),
            None => {
                *self.runner.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    /// Fails whoever waits and whoever asks from now on.
    fn stop(&self, reason: RunnerError) {
        self.stopped.borrow_mut().get_or_insert_with(|| reason.clone());
        let waiting = std::mem::take(&mut *self.queue.borrow_mut());
        waiting.into_iter().for_each(|queued| queued.reply.set(Err(reason.clone())));
    }
}

impl<R> ReplySlot<R> {
    fn set(&self, reply: Replied<R>) {
        *self.reply.borrow_mut() = Some(reply);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

struct Runner<M: StateMachine, L, P> {
    shared: Rc<Shared<M>>,
    replica: Replica<M, L>,
    publisher: P,
}

impl<M: StateMachine, L, P> Drop for Runner<M, L, P> {
    fn drop(&mut self) {
        self.shared.stop(RunnerError::Stopped);
    }
}

impl<M: StateMachine, L: MachineLog, P: Publish<M::Image>> Runner<M, L, P> {
    async fn run(mut self) {
        // After a failed append its records may yet be committed: the state is not known until the log was read again.
        let mut certain = true;
        loop {
            self.replica.snapshot_if_due().await;
            let Queued { request, now_ms, reply } = self.shared.next().await;
            let answered = AnswerOnDrop { reply: &reply };
            let replied = self.answer(request, now_ms, &mut certain).await;
            if let Err(reason @ RunnerError::Replay { .. }) = &replied {
                tracing::error!(error = %reason, "a replicated machine cannot go on");
                self.shared.stop(reason.clone());
                answered.with(replied);
                return;
            }
            answered.with(replied);
        }
    }

    async fn answer(&mut self, request: M::Request, now_ms: i64, certain: &mut bool) -> Replied<M::Reply> {
        if !*certain {
            self.replica.catch_up().await?;
            *certain = true;
            self.publish().await;
        }
        let Outcome { records, reply } = self.replica.machine.propose(request, now_ms);
        if records.is_empty() {
            return Ok(reply);
        }
        let bytes = records.iter().map(Vec::len).sum();
        if bytes > MACHINE_PROPOSAL_BYTES_MAX {
            return Err(RunnerError::TooLarge { bytes });
        }
        if let Err(error) = self.replica.commit(records).await {
            *certain = false;
            return Err(error);
        }
        self.publish().await;
        Ok(reply)
    }

    async fn publish(&self) {
        let image = self.replica.machine.image();
        self.publisher.published(image.clone()).await;
        *self.shared.image.borrow_mut() = image;
    }
}

/// Answers the request in the works even where the runner is dropped in the middle of it.
struct AnswerOnDrop<'a, R> {
    reply: &'a ReplySlot<R>,
}

impl<R> AnswerOnDrop<'_, R> {
    fn with(self, reply: Replied<R>) {
        self.reply.set(reply);
    }
}

impl<R> Drop for AnswerOnDrop<'_, R> {
    fn drop(&mut self) {
        let unanswered = self.reply.reply.borrow().is_none();
        // Where the asker took the reply already nobody reads this one.
        if unanswered {
            self.reply.set(Err(RunnerError::Stopped));
        }
    }
}
