//! Consumer groups of both protocols and their offsets, as a pure machine: an event, the wall clock and the state come to records,
//! answers and timers. No I/O, no clock and no randomness of its own: random bytes come in with the request.
//!
//! One [`GroupMachine`] holds all groups of one partition of `__consumer_offsets`. It behaves as the coordinator of Kafka 4.4, and its
//! records are Kafka's. Two kinds of state:
//! - *durable*: the newest record of each group and the offsets. Only [`GroupMachine::replay`] changes it.
//! - *live*: who joins, who waits, which timers run. It is made anew from the durable one when a core begins to lead the partition
//!   ([`Event::Loaded`]), and changes with each event.
//!
//! Why it is no `StateMachine` of `ringlog-shard`: that one decides a request in one go against what is committed, and answers the
//! one who asked. Here a JoinGroup is answered when others have joined, and most events write nothing. So answers go by [`Token`],
//! and appends by [`Ticket`]: the caller may have several under way, and says of each when it is committed.
//!
//! What the caller owes: appends go into the log in the order of the steps; a committed record is replayed before its
//! [`Event::Committed`]; timers come back with the number they were armed with; after an append that failed with another leader
//! comes [`Event::Resigned`].
//!
//! What a member was told is durable: its assignment leaves SyncGroup after the record that holds it, so the generations in which
//! members own partitions only grow, across restarts too. A JoinGroup is answered before anything is written, so after a crash a
//! generation that nobody got to own partitions in may be counted again, as in Kafka.

pub mod assign;
mod classic;
mod clerk;
mod commit;
pub mod consumer;
mod durable;
mod event;
mod expiry;
mod join;
pub mod lag;
mod machine;
mod members;
pub mod progress;
mod rebalance;
mod record;
mod reply;
mod session;
mod settings;
mod sync;
mod timeline;
mod views;

#[cfg(test)]
mod tests;

pub use classic::GroupState;
pub use durable::{CommittedOffset, Durable, GroupOffsets, GroupRecord, GroupReplayError, MemberRecord};
pub use event::{
    CommitPartition, CommitRequest, CommitTopic, DeletedTopic, Event, GroupId, HeartbeatRequest, JoinRequest,
    LeaveRequest, Leaver, MemberId, OffsetDeleteRequest, Protocol, Serial, Surroundings, SyncRequest, Ticket,
    Timer, Token, Usage,
};
pub use machine::GroupMachine;
pub use reply::{
    Answer, Append, CommitReply, CommittedTopic, DeletedGroup, ForgottenOffsets, JoinReply, JoinedMember,
    KeyedRecord, LeaveReply, LeftMember, OffsetDeleteReply, Reply, Step, SyncReply, TimerChange,
};
pub use settings::{ConsumerSettings, GroupOverrides, GroupSettings, Migration};
pub use timeline::{Cause, Move, Moves, Rebalance, Settled, Trigger};
pub use views::{
    Census, DescribedGroup, DescribedMember, FetchedOffset, FetchedTopic, ListedGroup, ListedState,
    OffsetQuery, OffsetQueryTopic,
};
