//! What the simulation of the broker is made of: a real node on a simulated host, real clients, and the history that
//! both leave.

pub mod clients;
pub mod history;
pub mod node;
