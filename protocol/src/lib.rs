//! Bytes to values and back: Kafka frames, messages and record batches.
//!
//! Pure by rule: no I/O, no clock, no randomness, no unsafe. Everything that arrives from a peer is read with bounds
//! checks, and no allocation is sized by a number from the wire unless the bytes that back it have arrived.
//!
//! Reading order: [`ids`] (what positions and identities are called), [`wire`] (primitives), [`api`] (which APIs
//! exist and which are served), [`frame`] (length prefix and headers), [`handshake`] (`ApiVersions` rules that break real
//! clients), [`messages`] (generated from `protocol/schema`), [`records`] (record batches v2), [`group`] (records of
//! `__consumer_offsets`, the embedded consumer protocol).
#![forbid(unsafe_code)]

pub mod api;
pub mod error_code;
pub mod frame;
pub mod group;
pub mod handshake;
pub mod ids;
pub mod messages;
pub mod records;
pub mod wire;
