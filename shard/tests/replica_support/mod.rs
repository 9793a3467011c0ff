//! Partitions with three replicas and a spare, each on a simulated host of its own: the messages between them (`network`), a life of
//! a node (`node`), what clients do (`clients`) and saw (`history`), what goes wrong (`weather`), and a seed played (`play`).
//!
//! The seed, and nothing else, says what happens.
#![allow(dead_code, reason = "each user needs its own part")]

pub mod clients;
pub mod cluster;
pub mod history;
pub mod network;
pub mod node;
pub mod play;
pub mod weather;
