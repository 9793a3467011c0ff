//! Crashes of the storage of one node, each played from a seed: what was told (`ledger`), what a life does (`life`), when the
//! power goes and how often (`script`), and all of it played (`play`).
//!
//! The seed, and nothing else, says what happens: a script that failed is played again by its number.
#![allow(dead_code, reason = "each user needs its own part")]

pub mod ledger;
pub mod life;
pub mod play;
pub mod script;
