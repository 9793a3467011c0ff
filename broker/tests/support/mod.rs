//! What the simulation of the broker is made of: a real node on a simulated host, real clients, and the history that
//! both leave.
#![allow(dead_code, reason = "a build with a planted bug runs fewer tests")]

pub mod clients;
pub mod history;
pub mod node;
pub mod requests;
