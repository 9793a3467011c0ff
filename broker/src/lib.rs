//! Kafka semantics and the process around the cores: configuration, command line, server, handlers, the replicated
//! machines, and what is shown of all that.
//!
//! Reading order: [`cli`] (what `ringlog` understands), [`config`], [`process`] (the life of a broker process), [`node`]
//! (recovery, one thread per core), [`core`] (what one core owns and how cores talk), [`server`] (connections),
//! [`handlers`] (one file per API), [`coordinator`], [`controller`] and [`group`] (replicated machines), [`topic_config`],
//! [`observe`] and [`http`] (what it shows).
#![forbid(unsafe_code)]

pub mod cli;
pub mod config;
pub mod controller;
pub mod coordinator;
pub mod core;
pub mod group;
pub mod handlers;
pub mod http;
pub mod node;
pub mod observe;
pub mod process;
pub mod server;
pub mod topic_config;
