//! Owns the admin HTTP server and the one side thread that it and the signals run on. It reads what shards published and
//! never touches what they work with; nothing a client of it does can stop a shard.
//!
//! Reading order: [`side`] (the thread), [`routes`], `metrics` (the text for Prometheus) over `families` (its table) and `lags` (of groups by name),
//! `timeline`.

mod families;
mod lags;
mod listener;
pub mod metrics;
pub mod routes;
pub mod side;
mod timeline;
