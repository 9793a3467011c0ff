//! Everything a group can ask for: a closed enum, and the order in which it must be done. Owns no behaviour.
//!
//! # Order
//!
//! Effects are carried out in the order in which they stand in the buffer; one step appends them in this order:
//!
//! 1. [`Effect::SteppedDown`]: stop accepting before anything else;
//! 2. [`Effect::Persist`]: handed to the journal, in ticket order. Handing over is enough to go on; durability comes back
//!    as [`Event::Persisted`](crate::Event::Persisted);
//! 3. [`Effect::Send`], [`Effect::Replicate`], [`Effect::FetchSnapshot`]: after the persists of the same step were handed over.
//!    What a message states about durable things was reported durable *before* the step that sends it, so nothing waits here;
//! 4. [`Effect::BecameLeader`], then [`Effect::Commit`]: the watermark moves and committed records are applied;
//! 5. answers: [`Effect::Changed`], [`Effect::Barrier`], [`Effect::Refused`].
//!
//! [`Group::step`](crate::Group::step) puts them into this order.

use std::sync::Arc;

use ringlog_protocol::ids::{LeaderEpoch, Offset};

use crate::configuration::Configuration;
use crate::hard_state::HardState;
use crate::ids::{ReplicaId, Term, Ticket, Token};
use crate::message::{Append, Message, SnapshotOffer};

/// One thing to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// This replica no longer leads `term` (or cannot): refuse appends, fail waiters for anything beyond the watermark.
    SteppedDown { term: Term, reason: StepDownReason },
    /// Make durable, as one unit.
    Persist(Persist),
    /// Send as it is.
    Send(Message),
    /// Read records and send them.
    Replicate(Replicate),
    /// Copy a leader's log or machine from the sender; answered by `SnapshotInstalled` or `SnapshotFailed`.
    FetchSnapshot { from: ReplicaId, offer: SnapshotOffer },
    /// This replica leads `term` from `election_end` on: stamp its epoch, accept appends. Nothing of this term is committed yet.
    BecameLeader { term: Term, election_end: Offset },
    /// Records below `high_watermark` are committed and may be shown and applied. It never moves back. The first one of a term is emitted
    /// even where it moves nothing: from then on the watermark is this term's (before it, Kafka answers OFFSET_NOT_AVAILABLE).
    Commit { high_watermark: Offset },
    /// The configuration asked for under `token` is in force here and durable on a majority.
    Changed { token: Token, configuration: Arc<Configuration> },
    /// The barrier is passed: this replica led after the barrier was asked for, and everything acknowledged before it lies below
    /// `high_watermark`.
    Barrier { token: Token, high_watermark: Offset },
    /// Nothing was done.
    Refused { request: Request, reason: Refusal },
}

/// A unit of durability: all of it or none is seen after a crash, because it travels in one journal frame; where the caller must
/// split it, the parts become durable in the order truncate, append, hard state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Persist {
    pub ticket: Ticket,
    /// Drop every record at or beyond this offset, first.
    pub truncate_to: Option<Offset>,
    /// Then append these.
    pub append: Option<AppendRange>,
    /// Then replace the hard state. Behind the log it speaks of: `log term` must never be durable before that log.
    pub hard_state: Option<HardState>,
}

/// Records `base..end` that the caller holds: of its own proposal, or of the message just stepped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppendRange {
    pub base: Offset,
    /// Exclusive.
    pub end: Offset,
    pub source: AppendSource,
}

/// Where the records of an [`AppendRange`] are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppendSource {
    /// The caller proposed them; it stamped this epoch, the leader's term.
    Proposal { epoch: LeaderEpoch },
    /// They came with the append just stepped; what the message holds below `base` is already here. Their epochs stay as written.
    Message,
}

/// Read whole batches from `header.base` on, below `header.end`, at most `bytes_max` bytes but at least one batch; cut where
/// [`AppendEpochs`](crate::message::AppendEpochs) is full; put the real end and epochs into the header; send it to `to` with the
/// bytes; report `Replicated`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replicate {
    pub to: ReplicaId,
    pub term: Term,
    pub bytes_max: u32,
    pub header: Append,
}

/// Why a replica stopped leading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepDownReason {
    /// Somebody has a higher term.
    HigherTerm { term: Term },
    /// No majority answered within the election timeout (check-quorum).
    QuorumLost,
    /// This core can no longer make anything durable, or its oldest write is stalled.
    PersistFailed,
    /// It handed over, as asked.
    Transferred { to: ReplicaId },
    /// The configuration in force no longer names it as voter.
    Removed,
}

/// What was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    Proposal { end: Offset },
    ChangeConfiguration { token: Token },
    TransferLeadership { token: Token },
    ReadBarrier { token: Token },
}

/// Why it was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    #[error("this replica does not lead; the leader is {leader:?}")]
    NotLeader { leader: Option<ReplicaId> },
    #[error("this replica can no longer make anything durable")]
    PersistFailed,
    #[error("this replica won its term but does not know yet what is committed")]
    NotSettled,
    #[error("a majority does not yet hold the present configuration in this term")]
    ChangeInFlight,
    #[error("the change does not fit the present configuration")]
    ChangeInvalid,
    #[error("the learner has not reached the high watermark of this term")]
    LearnerBehind,
    #[error("no other voter could take over")]
    NoSuccessor,
    #[error("this version runs groups of one replica only")]
    AloneOnly,
}

impl Effect {
    /// Position in the order stated by this module.
    pub(crate) fn rank(&self) -> u8 {
        match self {
            Effect::SteppedDown { .. } => 0,
            Effect::Persist(_) => 1,
            Effect::Send(_) | Effect::Replicate(_) | Effect::FetchSnapshot { .. } => 2,
            Effect::BecameLeader { .. } => 3,
            Effect::Commit { .. } => 4,
            Effect::Changed { .. } | Effect::Barrier { .. } | Effect::Refused { .. } => 5,
        }
    }
}
