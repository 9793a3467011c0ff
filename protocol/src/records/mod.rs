//! Record batches v2: reading, checking, building and compressing the bytes that clients send and segments hold.
//!
//! Pure: no I/O, no clock, no randomness. It never trusts a number of a peer: lengths are checked against the bytes that
//! arrived, decompression stops at a bound, and nothing is allocated by a promise.
//!
//! Reading order: [`attributes`], [`batch`] (the 61-byte header), [`crc`], [`compression`] and its four codecs,
//! [`reader`] (records of one batch), [`validate`] (what a client's Produce must pass), [`builder`], [`lookup`], [`retain`] (a batch with fewer
//! records).

pub mod attributes;
pub mod batch;
pub mod builder;
pub mod compression;
pub mod crc;
pub mod error;
mod gzip;
pub mod lookup;
mod lz4;
pub mod reader;
pub mod retain;
mod snappy;
pub mod validate;
mod varint;
mod zstd;
