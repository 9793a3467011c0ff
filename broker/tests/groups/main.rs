//! Tests of consumer groups, of a whole node on the simulation, in one binary: each of them alone takes seconds to compile and link.

#[path = "../support/mod.rs"]
mod support;

mod classic_groups;
mod consumer_groups;
mod consumer_groups_history;
mod group_configs;
mod group_lag;
mod groups_faults;
mod groups_history;
