//! How bytes leave: a planner that picks a route for each piece of a reply, and the shell that walks it.
//!
//! Owns the choice between sending from memory and sending from a file, and the bound on what unsent replies keep of the
//! tails. Never knows what the bytes mean; whoever calls it keeps replies in order.
//!
//! Nothing of a tail is lent to the kernel beyond one call: what the socket does not take at once stays here, so that
//! it can still be exchanged for a range of the segment file when the peer turns out slow. What is not flushed yet
//! cannot be exchanged, and need not be: the tail keeps it in memory for its own sake.

mod outlet;
mod pinned;
mod plan;
mod reply;

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use ringlog_io::{File, Io, Monotonic, Socket};

pub use outlet::Outlet;
use pinned::{Held, Pinned};
pub use plan::{EgressMode, Route};
use plan::{PieceKind, choose_route};
use reply::{ReplyQueue, until};

use crate::limits::{
    EGRESS_CONNECTION_PINNED_DIVISOR, EGRESS_FILE_PIECE_BYTES_MAX, EGRESS_SLOW_PIECE_BYTES_MAX,
    EGRESS_STALL_MS,
};
use crate::storage::{SegmentFile, TailPiece};

const STALL: Duration = Duration::from_millis(EGRESS_STALL_MS);

/// A piece of a reply.
#[derive(Clone, Debug)]
pub enum Outgoing {
    /// Bytes of the reply's own.
    Memory(Bytes),
    /// A slice of a log's tail, shared with it.
    Tail(TailPiece),
    /// A range of a segment file.
    File { file: File, position: u64, length: u32 },
    /// The same, where memory was exchanged for it.
    Segment { file: SegmentFile, position: u64, length: u32 },
}

impl Outgoing {
    pub fn len(&self) -> u64 {
        match self {
            Outgoing::Memory(bytes) => bytes.len() as u64,
            Outgoing::Tail(piece) => piece.bytes().len() as u64,
            Outgoing::File { length, .. } | Outgoing::Segment { length, .. } => u64::from(*length),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file that it lies in, open, its place there and its length; `None` where it lies in memory.
    async fn in_file(&self, io: &Io) -> io::Result<Option<(File, (u64, u32))>> {
        match self {
            Outgoing::Memory(_) | Outgoing::Tail(_) => Ok(None),
            Outgoing::File { file, position, length } => Ok(Some((file.clone(), (*position, *length)))),
            Outgoing::Segment { file, position, length } => {
                Ok(Some((file.open(io).await?, (*position, *length))))
            }
        }
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
    /// Replies that were switched to segment files, since they took too long or held more than their share.
    pub demotions: Cell<u64>,
}

/// One core's way out.
#[derive(Debug)]
pub struct Egress {
    mode: EgressMode,
    counters: EgressCounters,
    pinned: Rc<Pinned>,
}

/// A reply on its way.
struct Reply {
    queue: ReplyQueue,
    held: Held,
    /// When to exchange what is flushed.
    stall_at: Monotonic,
    has_stalled: bool,
    is_demoted: bool,
}

impl Egress {
    /// `pinned_bytes_max`: what unsent replies may keep of the tails, in bytes allocated, beside what is not flushed.
    pub fn new(mode: EgressMode, pinned_bytes_max: u64) -> Egress {
        Egress { mode, counters: EgressCounters::default(), pinned: Rc::new(Pinned::new(pinned_bytes_max)) }
    }

    pub fn mode(&self) -> EgressMode {
        self.mode
    }

    pub fn counters(&self) -> &EgressCounters {
        &self.counters
    }

    /// Bytes of tails, and of files read for a peer, that unsent replies keep allocated. Each reply's part is counted
    /// anew when it stalls.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned.bytes()
    }

    /// Sends `pieces` whole and in order.
    ///
    /// # Errors
    /// Any error after the first byte leaves the peer in the middle of a frame: the connection must be closed.
    pub async fn send(
        &self,
        io: &Io,
        socket: &Socket,
        outlet: &Outlet,
        pieces: Vec<Outgoing>,
    ) -> io::Result<()> {
        if pieces.iter().all(|piece| matches!(piece, Outgoing::Memory(_))) {
            return self.send_own(io, socket, outlet, pieces).await;
        }
        let mut reply = self.start(io, outlet, pieces).await;
        while let Some(first) = reply.queue.first() {
            if let Some((file, range)) = first.in_file(io).await? {
                reply.queue.pop();
                let step = self.send_file(io, socket, outlet, &file, range);
                self.beside(io, outlet, &mut reply, step).await?;
                continue;
            }
            match io.try_send(socket, &reply.queue.gather()) {
                Ok(sent) => {
                    outlet.progressed();
                    add(&self.counters.memory_bytes, sent as u64);
                    reply.queue.advance(sent);
                    if !reply.queue.is_empty() {
                        // A fast peer must not keep the core from everybody else.
                        io.yield_now().await;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    outlet.blocked(io.monotonic_now());
                    self.beside(io, outlet, &mut reply, io.writable(socket)).await?;
                }
                Err(error) => return Err(error),
            }
        }
        outlet.finished(!reply.has_stalled);
        Ok(())
    }

    async fn start(&self, io: &Io, outlet: &Outlet, pieces: Vec<Outgoing>) -> Reply {
        let queue = ReplyQueue::new(pieces);
        let held = self.pinned.hold(queue.allocated_bytes());
        let mut reply = Reply {
            queue,
            held,
            stall_at: io.monotonic_now() + STALL,
            has_stalled: false,
            is_demoted: false,
        };
        let allowed = self.allowed_bytes(outlet, &reply.held);
        if reply.held.bytes() > allowed && reply.queue.exchange(io, allowed).await {
            reply.held.set(reply.queue.allocated_bytes());
            reply.is_demoted = true;
            add(&self.counters.demotions, u64::from(!outlet.is_slow()));
        }
        reply
    }

    /// Waits for one step of a reply. Whenever time is up, also within a step that takes for ever, what is flushed by
    /// then of the rest is exchanged.
    async fn beside<T>(
        &self,
        io: &Io,
        outlet: &Outlet,
        reply: &mut Reply,
        step: impl Future<Output = io::Result<T>>,
    ) -> io::Result<T> {
        let mut step = pin!(step);
        loop {
            let limit = reply.queue.has_tail().then_some(reply.stall_at);
            if let Some(done) = until(io, step.as_mut(), limit).await {
                return done;
            }
            add(&self.counters.demotions, u64::from(!reply.is_demoted && !outlet.is_slow()));
            reply.is_demoted = true;
            reply.has_stalled = true;
            ringlog_io::reached!("egress.reply_stalled");
            outlet.set_slow();
            reply.queue.exchange(io, 0).await;
            reply.held.set(reply.queue.allocated_bytes());
            reply.stall_at = io.monotonic_now() + STALL;
        }
    }

    /// What a reply may keep of the tails although it is flushed.
    fn allowed_bytes(&self, outlet: &Outlet, held: &Held) -> u64 {
        if outlet.is_slow() {
            return 0;
        }
        let left = self.pinned.bytes_max().saturating_sub(self.pinned.bytes() - held.bytes());
        left.min(self.pinned.bytes_max() / EGRESS_CONNECTION_PINNED_DIVISOR)
    }

    /// A reply without records: one operation for all of it.
    async fn send_own(
        &self,
        io: &Io,
        socket: &Socket,
        outlet: &Outlet,
        pieces: Vec<Outgoing>,
    ) -> io::Result<()> {
        let memory = |piece| match piece {
            Outgoing::Memory(bytes) => Some(bytes),
            Outgoing::Tail(_) | Outgoing::File { .. } | Outgoing::Segment { .. } => None,
        };
        let pieces: Vec<Bytes> = pieces.into_iter().filter_map(memory).collect();
        let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if bytes == 0 {
            return Ok(());
        }
        add(&self.counters.memory_bytes, bytes);
        outlet.blocked(io.monotonic_now());
        let sent = io.send(socket, pieces).await;
        outlet.progressed();
        sent
    }

    async fn send_file(
        &self,
        io: &Io,
        socket: &Socket,
        outlet: &Outlet,
        file: &File,
        (start, length): (u64, u32),
    ) -> io::Result<()> {
        let end = start + u64::from(length);
        let mut position = start;
        while position < end {
            let most =
                if outlet.is_slow() { EGRESS_SLOW_PIECE_BYTES_MAX } else { EGRESS_FILE_PIECE_BYTES_MAX };
            let piece_bytes = u64::from(most).min(end - position);
            let kind = self.piece_kind(io, file, position, piece_bytes);
            position += match choose_route(self.mode, kind) {
                Route::SendFile => {
                    add(&self.counters.sendfile_bytes, piece_bytes);
                    outlet.blocked(io.monotonic_now());
                    io.send_file(socket, file, position, piece_bytes).await?;
                    outlet.progressed();
                    piece_bytes
                }
                Route::ReadAndSend => {
                    let sent = self.read_and_send(io, socket, outlet, file, (position, piece_bytes)).await?;
                    add(&self.counters.read_and_send_bytes, sent);
                    sent
                }
            };
        }
        Ok(())
    }

    /// Reads a piece and sends what the peer takes before it counts as slow; the bytes sent. The rest is given up, to be
    /// read again when the peer takes more: a buffer that waits for it would be memory for as long as it likes.
    async fn read_and_send(
        &self,
        io: &Io,
        socket: &Socket,
        outlet: &Outlet,
        file: &File,
        (position, length): (u64, u64),
    ) -> io::Result<u64> {
        let mut rest = [io.read_at(file, position, length as usize).await?];
        if rest[0].len() as u64 != length {
            let end = position + rest[0].len() as u64;
            let text = format!("segment ends at {end} inside a planned piece");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        let held = self.pinned.hold(length);
        let give_up_at = io.monotonic_now() + STALL;
        while !rest[0].is_empty() {
            match io.try_send(socket, &rest) {
                Ok(sent) => {
                    outlet.progressed();
                    rest[0].advance(sent);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    outlet.blocked(io.monotonic_now());
                    let mut writable = pin!(io.writable(socket));
                    if let Some(writable) = until(io, writable.as_mut(), Some(give_up_at)).await {
                        writable?;
                        continue;
                    }
                    outlet.set_slow();
                    let sent = length - rest[0].len() as u64;
                    drop((rest, held));
                    writable.await?;
                    return Ok(sent);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(length)
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
