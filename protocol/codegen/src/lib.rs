//! The schema of Kafka's messages: its notation, its model, and the Rust code made from it.
//!
//! A library beside the binary, because the tests of `ringlog-protocol` build messages from the same model.

pub mod emit;
pub mod model;
pub mod parse;
