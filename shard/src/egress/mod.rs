//! How bytes leave: a planner that picks a route for each piece of a reply, and the shell that walks it.
//!
//! Owns the choice between sending from memory and sending from a file. Never knows what the bytes mean; whoever
//! calls it keeps replies in order.

mod plan;

use std::cell::Cell;
use std::io;

use bytes::Bytes;
use ringlog_io::{File, Io, Socket};

pub use plan::{EgressMode, Route};
use plan::{PieceKind, choose_route};

use crate::limits::EGRESS_FILE_PIECE_BYTES_MAX;

/// A piece of a reply.
#[derive(Clone, Debug)]
pub enum Outgoing {
    /// A shared slice, usually of a log's tail in memory.
    Memory(Bytes),
    /// A range of a segment file.
    File { file: File, position: u64, length: u32 },
}

impl Outgoing {
    pub fn len(&self) -> u64 {
        match self {
            Outgoing::Memory(bytes) => bytes.len() as u64,
            Outgoing::File { length, .. } => u64::from(*length),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Bytes that left by each route since start, and what the page cache said. Lives on one core.
#[derive(Debug, Default)]
pub struct EgressCounters {
    pub memory_bytes: Cell<u64>,
    pub sendfile_bytes: Cell<u64>,
    /// Bytes of a file that were read into memory first, because they were not cached or the mode asks for it.
    pub read_and_send_bytes: Cell<u64>,
    /// Bytes of file pieces that `cachestat` found wholly in the page cache.
    pub page_cache_hit_bytes: Cell<u64>,
    /// Bytes of file pieces that were not wholly cached.
    pub page_cache_miss_bytes: Cell<u64>,
    /// Bytes of file pieces that were sent without asking, since `cachestat` is missing or switched off.
    pub page_cache_unknown_bytes: Cell<u64>,
}

/// One core's way out.
#[derive(Debug)]
pub struct Egress {
    mode: EgressMode,
    counters: EgressCounters,
}

impl Egress {
    pub fn new(mode: EgressMode) -> Egress {
        Egress { mode, counters: EgressCounters::default() }
    }

    pub fn mode(&self) -> EgressMode {
        self.mode
    }

    pub fn counters(&self) -> &EgressCounters {
        &self.counters
    }

    /// Sends `pieces` whole and in order.
    ///
    /// # Errors
    /// Any error after the first byte leaves the peer in the middle of a frame: the connection must be closed.
    pub async fn send(&self, io: &Io, socket: &Socket, pieces: Vec<Outgoing>) -> io::Result<()> {
        let mut gathered: Vec<Bytes> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            match piece {
                Outgoing::Memory(bytes) => gathered.push(bytes),
                Outgoing::File { file, position, length } => {
                    self.send_memory(io, socket, std::mem::take(&mut gathered)).await?;
                    self.send_file(io, socket, &file, position, length).await?;
                }
            }
        }
        self.send_memory(io, socket, gathered).await
    }

    async fn send_memory(&self, io: &Io, socket: &Socket, pieces: Vec<Bytes>) -> io::Result<()> {
        let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if bytes == 0 {
            return Ok(());
        }
        add(&self.counters.memory_bytes, bytes);
        io.send(socket, pieces).await
    }

    async fn send_file(
        &self,
        io: &Io,
        socket: &Socket,
        file: &File,
        start: u64,
        length: u32,
    ) -> io::Result<()> {
        let end = start + u64::from(length);
        let mut position = start;
        while position < end {
            let piece_bytes = u64::from(EGRESS_FILE_PIECE_BYTES_MAX).min(end - position);
            let kind = self.piece_kind(io, file, position, piece_bytes);
            match choose_route(self.mode, kind) {
                Route::SendFile => {
                    add(&self.counters.sendfile_bytes, piece_bytes);
                    io.send_file(socket, file, position, piece_bytes).await?;
                }
                Route::ReadAndSend => {
                    add(&self.counters.read_and_send_bytes, piece_bytes);
                    let bytes = io.read_at(file, position, piece_bytes as usize).await?;
                    if bytes.len() as u64 != piece_bytes {
                        return Err(io::Error::new(
                            io::ErrorKind::UnexpectedEof,
                            format!(
                                "segment ends at {} inside a planned piece",
                                position + bytes.len() as u64
                            ),
                        ));
                    }
                    io.send(socket, vec![bytes]).await?;
                }
            }
            position += piece_bytes;
        }
        Ok(())
    }

    fn piece_kind(&self, io: &Io, file: &File, position: u64, length: u64) -> PieceKind {
        let (kind, counter) = match io.cached_bytes(file, position, length) {
            None => (PieceKind::Unknown, &self.counters.page_cache_unknown_bytes),
            Some(cached) if cached >= length => (PieceKind::Cached, &self.counters.page_cache_hit_bytes),
            Some(_) => (PieceKind::Cold, &self.counters.page_cache_miss_bytes),
        };
        add(counter, length);
        kind
    }
}

fn add(counter: &Cell<u64>, amount: u64) {
    counter.set(counter.get() + amount);
}
