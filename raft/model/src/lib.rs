//! The commit rule, truncation and logless membership as an explicit-state model.
//!
//! Owns a small replica of the protocol that `ringlog-raft` runs, and a checker that visits every behaviour of it within
//! small bounds: every order of messages, their loss and repetition, crashes with memory ahead of the disk, configuration
//! changes. It also owns the mistakes that the checker must find: a checker that finds none proves nothing.
//!
//! It shares no code with `ringlog-raft` on purpose: it is the second opinion. What the model leaves out (timers, pre-vote,
//! flow control, learners, the log start) decides when something happens, never whether it is safe; the seeded simulation of
//! the crate runs those.
//!
//! Reading order: [`log`], [`state`], [`protocol`], [`properties`], [`runs`], [`stages`], [`explore`].

#![forbid(unsafe_code)]

pub mod explore;
pub mod hunt;
pub mod log;
pub mod properties;
pub mod protocol;
pub mod runs;
pub mod stages;
pub mod state;
