//! A cluster of groups in one thread: virtual time, a network and disks that fail, and an oracle that sees everything. One seed
//! is one run.
//!
//! Reading order: [`random`], [`records`], [`faults`], [`node`], [`oracle`], [`world`], [`chaos`]; and apart from them [`script`], for
//! scenarios without chance.

#![allow(dead_code, reason = "each test binary uses its part")]

pub mod chaos;
pub mod faults;
pub mod node;
pub mod oracle;
pub mod random;
pub mod records;
pub mod script;
pub mod world;
