//! A small asynchronous Kafka client on [`ringlog_io::Io`]: enough for load, copying lines and managing topics.
//!
//! It speaks plain TCP only (no TLS, no SASL, no transactions, no membership in groups) and never blocks the executor.
//!
//! Reading order: [`address`], [`error`], [`wait`] (how tasks wait for each other), [`connection`] (one socket),
//! [`handshake`] (versions), [`metadata`] (brokers, topics, leaders), [`cluster`] (connections by leader),
//! [`admin`] (topics, offsets), [`log_dirs`] (sizes), [`configs`], [`features`], [`groups`] (as operators see them), [`producer`], [`fetcher`],
//! [`reading`], [`reader`], [`partitioner`].

pub mod address;
pub mod admin;
pub mod cluster;
pub mod configs;
pub mod connection;
pub mod error;
pub mod features;
pub mod fetcher;
pub mod groups;
pub mod handshake;
pub mod log_dirs;
pub mod metadata;
pub mod partitioner;
pub mod producer;
pub mod reader;
pub mod reading;
pub mod wait;

#[cfg(test)]
pub(crate) mod fake_broker;
#[cfg(test)]
mod fake_groups;
#[cfg(test)]
mod tests;

pub use cluster::{Client, ClientConfig};
pub use error::ClientError;
