//! Consumer groups of KIP-848: the broker shares partitions out, and each member is led to its part by its own heartbeats. A part of the
//! machine of groups: pure, and it behaves as the coordinator of Kafka 4.4 does.
//!
//! Three epochs: the group's grows when something changed for which partitions must be shared out anew; the assignment's is the group's
//! when the target was computed; a member's is the assignment's that it has come to. A member comes to an epoch once it gave up what it
//! is not to have in it. A partition is given to a member only when no other has it, so that no two own it, whatever is lost on the way.
//!
//! Two states of one type: what is *durable* is changed by replay only; what *will be* durable is changed by events, and the records that
//! say so are appended with the same event. An answer leaves when all that it rests on is committed. Where an append failed, what it said
//! is said again with the next event of the group, and answers that rested on it fail.
//!
//! What it rests on, as Kafka does: a member that says what it has takes nothing more until it hears the answer. One that does may for a
//! moment own a partition that it was asked to give up meanwhile and that another was given.
//!
//! Where it differs from Kafka, on purpose:
//! - Members may join again with epoch 0 under their name, and a static member may ask to join twice; neither is fenced.
//! - What a member says it has counts for what it was asked to give up, and only in the epoch that it is in.
//! - A join is answered when the assignment that counts it in is there, within about a second, so that its first answer says all.

mod assigning;
mod classic_members;
mod convert;
mod group;
mod heartbeat;
mod host;
mod index;
mod reconcile;
mod record;
mod regex;
mod request;
mod state;
mod timeline;
mod topics;
mod views;

pub use assigning::{Computation, Computed};
pub use request::{ConsumerHeartbeatReply, ConsumerHeartbeatRequest, LEAVES, LEAVES_FOR_A_WHILE};
pub use state::{
    AssignmentEpoch, ClassicMetadata, ConsumerState, Current, GroupEpoch, MemberMetadata, MemberState, Owned,
    Partitions, ResolvedRegex, Standing,
};
pub use topics::{TopicFacts, Topics};
pub use views::{DescribedConsumer, DescribedConsumerGroup, DescribedTopic};

pub(super) use group::{ConsumerGroup, Desk, GroupStanding};
pub(super) use record::read;
pub(super) use state::{DurableConsumers, Subject};
pub(super) use views::CommitRule;
