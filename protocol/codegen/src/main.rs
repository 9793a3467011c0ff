//! Placeholder until the first landing of this crate.
fn main() {}
