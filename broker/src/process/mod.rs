//! Owns the process around the shards: what it may use of the machine, logging, signals, the banner, the flight record
//! of a crash, and exit codes. It knows no Kafka API and touches no shard's state.
//!
//! Reading order: [`run`] (the whole life of a broker process), [`plan`] (what it hands to the shards), [`resources`]
//! (what the machine allows), [`capacity`], then the rest.

pub mod banner;
pub mod capacity;
pub mod crash;
pub mod escape;
pub mod exit;
pub mod logging;
pub mod plan;
pub mod rate_limit;
pub mod ready;
pub mod resources;
pub mod run;
pub mod stop;
pub mod timestamp;
