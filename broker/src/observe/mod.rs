//! Owns what a shard remembers of its own work: counters, histograms, the slowest requests and the flight record. A
//! shard writes plain cells that it owns: no atomic, lock or allocation on the way of a request. On a timer it publishes
//! a copy, which the side thread reads. Nothing here does I/O or reads a clock.
//!
//! Reading order: [`observer`] (what a core holds and calls), [`stage`], [`metrics`], [`snapshot`], [`timelines`].

pub mod flight;
pub mod histogram;
pub mod metrics;
pub mod observer;
pub mod slow;
pub mod snapshot;
pub mod stage;
pub mod timelines;

pub use observer::{FinishedRequest, ShardObserver};
pub use stage::{Stage, StageClock, StageTimes};
