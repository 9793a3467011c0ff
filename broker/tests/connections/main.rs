//! Tests of what a connection leaves behind and finds again, of a whole node on the simulation.

#[path = "../support/mod.rs"]
mod support;

mod fetch_sessions;
mod hang_ups;
