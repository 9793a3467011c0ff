//! What consumer groups leave behind, in Kafka's own formats: the records of `__consumer_offsets` and the bytes that the
//! members of `consumer` groups exchange through the broker.
//!
//! It turns bytes into values and back. What a group does, and where its records are kept, is the broker's.
//!
//! [`record`] and [`consumer_protocol`] own the two bytes of type or version in front; the messages behind them are
//! [`generated`] from `protocol/schema/group`.

pub mod consumer_protocol;
pub mod generated;
pub mod record;
