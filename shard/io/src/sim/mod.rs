//! The simulation: many executors on one thread and one virtual clock. Never touches the kernel.

mod handles;

pub(crate) use handles::{SimulatedFile, SimulatedListener, SimulatedNotifier, SimulatedSocket};
