//! Consensus for one group as a value: events in, ordered effects out.
//!
//! Owns the decisions of one replica of one partition: its term, its vote, its role, what is committed. It never reads a
//! clock, touches a disk or a socket, and holds no records: only positions in a log that somebody else keeps.
//!
//! The rule is Raft's, with one difference: no entry is ever written for the protocol's own sake, since every entry of a
//! Kafka log takes an offset that clients see. Logs are ordered by the last term in which they were made equal to a leader's
//! (`log term`), as in Viewstamped Replication, and a replica counts for commit only once that term is durable there.
//!
//! Reading order: [`ids`], [`configuration`], [`hard_state`], [`message`], [`event`], [`effect`], [`group`].
//!
//! This version runs groups whose only voter is the replica itself. The events, effects and messages are those of the full
//! protocol; what a group of one cannot do is refused by name, never half done.

#![forbid(unsafe_code)]

pub mod configuration;
pub mod effect;
pub mod event;
pub mod group;
pub mod hard_state;
pub mod ids;
pub mod message;
mod quorum;

#[cfg(test)]
mod scenarios;

pub use effect::Effect;
pub use event::Event;
pub use group::Group;
pub use hard_state::HardState;
