//! Load generator and small client for any Kafka-compatible broker.
//!
//! Library of `ringlog bench`, `ringlog cat` and `ringlog topic`, and of the binary `ringlog-bench`. It uses the wire
//! format of `ringlog-protocol` and the executor of `ringlog-io`, and knows nothing of the broker.
//!
//! Reading order: [`args`] (what can be asked for), [`mod@run`] (the phases), [`worker`] (producers and readers),
//! [`pacing`] (when records are meant to be sent), [`record`], [`payload`], [`verify`] (was it all delivered),
//! [`latency`], [`report`]; then [`client`]. [`history`] judges what clients saw, whoever they were.
#![forbid(unsafe_code)]

pub mod args;
pub mod cli;
pub mod client;
pub mod error;
pub mod history;
pub mod history_command;
pub mod history_load;
pub mod interrupt;
pub mod latency;
pub mod live;
pub mod local_broker;
pub mod pacing;
pub mod payload;
pub mod process;
pub mod random;
pub mod record;
pub mod report;
pub mod run;
pub mod runtime;
pub mod units;
pub mod verify;
pub mod worker;

pub use run::run;
