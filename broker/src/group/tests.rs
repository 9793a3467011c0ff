//! The machine as its caller sees it: scenarios that read as prose, and a model with random members.

mod bounds;
mod consumer_model;
mod consumers;
mod membership;
mod mixed_model;
mod model;
mod offsets;
mod operators;
mod rebalances;
mod restarts;
mod support;
mod timeline;
