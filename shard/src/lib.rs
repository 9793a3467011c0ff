//! What one core owns: its partitions, their logs, its journal, and its way out. Mechanism, no Kafka API.
//!
//! Reading order: [`limits`] (every bound), [`journal`] and [`storage`] (bytes that last), [`state_machine`],
//! [`producer_state`] and [`partition`] (what a partition is), [`replica`] (what it is with others), [`store`] (all partitions of a core), [`waiters`],
//! [`ready`] (news of many partitions), [`budget`] (memory that many share), [`egress`] (how bytes leave), [`mesh`] and [`placement`] (the other cores).

pub mod budget;
pub mod egress;
pub mod journal;
pub mod limits;
pub mod mesh;
pub mod partition;
pub mod placement;
pub mod producer_state;
pub mod ready;
pub mod replica;
pub mod state_machine;
pub mod storage;
pub mod store;
pub mod waiters;
