//! Start after any stop: what the journals of all cores hold is brought into segments, then a new generation begins.
//!
//! [`plan`] decides, purely; [`run`] does it in an order that may stop anywhere and start again; [`generation`] writes
//! what the new journals begin with. Nothing here knows how many cores there were.

pub mod generation;
mod partition_folder;
pub mod plan;
#[cfg(test)]
mod plan_tests;
pub mod run;

pub use run::{RecoveryError, RecoveryStep, recover, recover_with};
