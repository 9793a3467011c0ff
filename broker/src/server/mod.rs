//! Connections: accepting, spreading over cores, reading requests, writing replies. Knows frames and headers; what a
//! request means is `handlers`' business.
//!
//! Reading order: [`acceptor`], [`connection`], [`frame_reader`], [`replies`], [`connections`].

pub mod acceptor;
pub mod connection;
pub mod connections;
pub mod frame_reader;
pub mod replies;

pub use connection::Connection;
