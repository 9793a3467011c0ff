//! Everything that can happen to a group: a closed enum. Owns no behaviour.

use ringlog_protocol::ids::Offset;

use crate::configuration::Change;
use crate::ids::{Moment, ReplicaId, Ticket, Token};
use crate::message::{EpochStart, Message, SnapshotOffer};

/// One thing that happened. Events of a group are fed in the order in which they happened on its core.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The log is open and everything restored is durable. Once, first. A group of one campaigns at once, since nobody else
    /// could lead; a larger one waits for its election timeout.
    Start,
    /// Time passed. The only clock of a group; sent at least every tick interval while it is not quiesced.
    Tick { now: Moment },
    /// A message arrived. Records of an append were checked and wait with the caller for the [`Persist`](crate::effect::Persist)
    /// that names them, or are dropped when none does.
    Message(Message),
    /// This replica leads and the caller wants to append records: the log would then end at `end`, which is beyond its
    /// present end. Epoch and base offset are stamped by the caller from [`Group`](crate::Group) before this.
    Proposal { end: Offset },
    /// Every persist effect up to and including `ticket` is durable.
    Persisted { ticket: Ticket },
    /// Nothing from `ticket` on will become durable on this core any more. The group steps down and stays down.
    PersistFailed { ticket: Ticket },
    /// The caller answered [`Effect::Replicate`](crate::Effect::Replicate): records up to `end` left for `to`, as `bytes` bytes.
    Replicated { to: ReplicaId, end: Offset, bytes: u32 },
    /// The caller could not answer [`Effect::Replicate`](crate::Effect::Replicate) (read error, no connection): probe again later.
    ReplicateFailed { to: ReplicaId },
    /// Change the membership by one step. Answered by `Changed` or `Refused` with this token.
    ChangeConfiguration { change: Change, token: Token },
    /// Hand leadership to this replica, or to the most complete one. Answered by stepping down or by `Refused`.
    TransferLeadership { to: Option<ReplicaId>, token: Token },
    /// Tell when this replica is known to have led after this event, and what was committed then (linearizable reads).
    ReadBarrier { token: Token },
    /// Retention or DeleteRecords moved the log start up to `log_start`, at most to the high watermark.
    LogStartMoved { log_start: Offset },
    /// The copy that [`Effect::FetchSnapshot`](crate::Effect::FetchSnapshot) asked for is complete and durable.
    /// `offer` is what was copied: it begins at or above the log start offered and ends where the offer ended. `epochs` are those
    /// of its records: the offer on the wire names the last one only.
    SnapshotInstalled { offer: SnapshotOffer, epochs: Vec<EpochStart> },
    /// That copy failed; the log is as it was before.
    SnapshotFailed { from: ReplicaId },
}
