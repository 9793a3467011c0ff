//! Tests of what is done to topics and told of them, of a whole node on the simulation.

#[path = "../support/mod.rs"]
mod support;

mod compaction;
mod create_partitions;
mod pages;
mod timeouts;
