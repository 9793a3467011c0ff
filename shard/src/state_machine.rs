//! What every replicated machine is: a value that proposes records and changes only by replaying them.
//!
//! Owns the contract. The controller, groups and transactions implement it in the broker, and one runner drives them all; it knows
//! nothing of Kafka's APIs.
//!
//! The rule behind it (Kafka's `CoordinatorResult` has the same): a request is decided against the present state and yields
//! records and a reply, and changes nothing. The records are appended to the machine's partition. Once they are committed they are
//! replayed, here and on each replica, and that alone changes the state. Then the reply leaves. So whatever a client
//! was told can be read from the log again, and a machine restarted from its log is the machine that answered.
//!
//! A log that only grew would be replayed ever longer. So the runner now and then keeps a [`MachineSnapshot`], records that make
//! the present state from nothing, and lets the log begin there.

use std::fmt;

use ringlog_protocol::ids::Offset;

/// A replicated machine. Pure: time and randomness come in with the request.
pub trait StateMachine {
    /// What it is asked. Carries every random number that the answer needs.
    type Request;
    /// What it answers.
    type Reply;
    /// What readers see of it: immutable and cheap to clone, an `Arc` as a rule.
    type Image: Clone;
    /// Why bytes cannot be replayed.
    type ReplayError: std::error::Error + 'static;

    /// Decides a request: the records that make it so, and the reply for when they are committed. `&self`: nothing changes yet, and
    /// the caller may drop the outcome. `now_ms` is the wall clock in milliseconds since the Unix epoch.
    fn propose(&self, request: Self::Request, now_ms: i64) -> Outcome<Self::Reply>;

    /// Takes a committed record in: the only thing that changes the machine. The same records in the same order give the
    /// same machine, on every replica and after every restart.
    ///
    /// # Errors
    /// A record that this build does not understand or that contradicts the state. The machine must then not go on: it would decide
    /// against a state that other replicas do not have.
    fn replay(&mut self, offset: Offset, record: &[u8]) -> Result<(), Self::ReplayError>;

    /// The present state for readers.
    fn image(&self) -> Self::Image;

    /// Records, one or more, in order, that bring a machine without any to the present state; of the kinds that are in its log. The
    /// same state gives the same bytes.
    fn snapshot(&self) -> Vec<Vec<u8>>;

    /// Brings a fresh machine to where the one was that gave this snapshot: it holds everything below `offset`, which is greater than 0.
    ///
    /// # Errors
    /// As [`StateMachine::replay`]; the machine is of no use then.
    fn restore(&mut self, offset: Offset, records: &[Vec<u8>]) -> Result<(), Self::ReplayError> {
        // All of them stand for what the log held up to the last offset before it.
        let last = Offset(offset.0 - 1);
        records.iter().try_for_each(|record| self.replay(last, record))
    }
}

/// What a request comes to. All records or none are appended: they travel as one batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome<R> {
    /// Encoded records, in order. None for a request that changes nothing: its reply leaves at once.
    pub records: Vec<Vec<u8>>,
    pub reply: R,
}

impl<R> Outcome<R> {
    /// A reply that needs no record: a refusal, a lookup, a dry run.
    pub fn reply(reply: R) -> Outcome<R> {
        Outcome { records: Vec::new(), reply }
    }
}

/// What a machine was when it had replayed everything below `offset`.
#[derive(Clone, PartialEq, Eq)]
pub struct MachineSnapshot {
    /// 1 or more.
    pub offset: Offset,
    /// See [`StateMachine::snapshot`].
    pub records: Vec<Vec<u8>>,
}

impl fmt::Debug for MachineSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MachineSnapshot {{ offset: {}, {} records }}", self.offset, self.records.len())
    }
}

/// A record as it lies in the machine's log.
#[derive(Clone, PartialEq, Eq)]
pub struct LoggedRecord {
    pub offset: Offset,
    pub bytes: Vec<u8>,
}

impl fmt::Debug for LoggedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoggedRecord {{ offset: {}, {} bytes }}", self.offset, self.bytes.len())
    }
}
