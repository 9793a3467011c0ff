//! Consensus for one group as a value: events in, ordered effects out.
//!
//! Owns the decisions of one replica of one partition: its term, its vote, its role, what is committed. It never reads a
//! clock, touches a disk or a socket, and holds no records: only positions in a log that somebody else keeps.
//!
//! The rule is Raft's, with one difference: no entry is ever written for the protocol's own sake, since every entry of a
//! Kafka log takes an offset that clients see. Logs are ordered by the last term in which they were made equal to a leader's
//! (`log term`), as in Viewstamped Replication, and a replica counts for commit only once that term is durable there.
//!
//! Reading order: [`ids`], [`configuration`], [`hard_state`], [`message`], [`event`], [`effect`], [`settings`]; then [`group`] and
//! the decisions: `election`, `follower`, `leader`, `progress`, `feeding`, `membership`, `copying`, `transfer`, `read_barrier`, `quiesce`; last
//! `validate`. `docs/explanation/replication.md` explains the rule to readers of the Raft paper, `raft/model` checks it.

#![forbid(unsafe_code)]

pub mod configuration;
pub mod effect;
pub mod event;
pub mod group;
pub mod hard_state;
pub mod ids;
pub mod message;
pub mod settings;

mod clock;
mod copying;
mod election;
mod feeding;
mod follower;
mod leader;
mod log;
mod membership;
mod persist;
mod progress;
mod quiesce;
mod quorum;
mod read_barrier;
mod transfer;
mod validate;

#[cfg(test)]
mod scenarios;

pub use effect::Effect;
pub use event::Event;
pub use group::Group;
pub use hard_state::HardState;
pub use settings::Settings;
