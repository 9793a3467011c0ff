//! The unsent rest of one reply, and its exchange of memory for file ranges.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use bytes::{Buf, Bytes};
use ringlog_io::{Io, Monotonic};

use super::Outgoing;
use super::pinned::Tally;
use crate::storage::TailPiece;

/// Pieces gathered for one call: what the kernel interface of the drivers takes.
const GATHERED_MAX: usize = 64;

/// What is still to be sent, in order. No piece is empty.
#[derive(Debug)]
pub(super) struct ReplyQueue {
    pieces: VecDeque<Outgoing>,
}

impl ReplyQueue {
    pub(super) fn new(mut pieces: Vec<Outgoing>) -> ReplyQueue {
        pieces.retain(|piece| !piece.is_empty());
        ReplyQueue { pieces: pieces.into() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(super) fn first(&self) -> Option<&Outgoing> {
        self.pieces.front()
    }

    pub(super) fn pop(&mut self) {
        self.pieces.pop_front();
    }

    pub(super) fn has_tail(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Outgoing::Tail(_)))
    }

    /// Bytes of tails that the pieces keep allocated.
    pub(super) fn allocated_bytes(&self) -> u64 {
        let mut tally = Tally::default();
        for piece in &self.pieces {
            if let Outgoing::Tail(piece) = piece {
                tally.add(piece);
            }
        }
        tally.bytes()
    }

    /// The next pieces that lie in memory, for one call.
    pub(super) fn gather(&self) -> Vec<Bytes> {
        let in_memory = |piece: &Outgoing| match piece {
            Outgoing::Memory(bytes) => Some(bytes.clone()),
            Outgoing::Tail(piece) => Some(piece.bytes().clone()),
            Outgoing::File { .. } | Outgoing::Segment { .. } => None,
        };
        self.pieces.iter().map_while(in_memory).take(GATHERED_MAX).collect()
    }

    /// The first `sent` bytes, all of them in memory, have left.
    pub(super) fn advance(&mut self, mut sent: usize) {
        while let Some(first) = self.pieces.front_mut().filter(|_| sent > 0) {
            let length = first.len();
            if length <= sent as u64 {
                sent -= length as usize;
                self.pieces.pop_front();
                continue;
            }
            match first {
                Outgoing::Memory(bytes) => bytes.advance(sent),
                Outgoing::Tail(piece) => piece.advance(sent),
                Outgoing::File { .. } | Outgoing::Segment { .. } => unreachable!("files are not gathered"),
            }
            return;
        }
    }

    /// Exchanges what is flushed for ranges of its segment files, but for the first pieces, which may keep `kept_bytes`
    /// allocated. Neighbours in a file become one range. True if anything was exchanged.
    pub(super) async fn exchange(&mut self, io: &Io, kept_bytes: u64) -> bool {
        let mut exchanged = VecDeque::with_capacity(self.pieces.len());
        let mut kept = Tally::default();
        let mut before: Option<TailPiece> = None;
        let mut any = false;
        for piece in std::mem::take(&mut self.pieces) {
            let Outgoing::Tail(tail) = piece else {
                before = None;
                exchanged.push_back(piece);
                continue;
            };
            kept.add(&tail);
            let place = if kept.bytes() > kept_bytes { tail.in_file(io).await } else { None };
            let Some((file, position)) = place else {
                before = None;
                exchanged.push_back(Outgoing::Tail(tail));
                continue;
            };
            any = true;
            let length = u32::try_from(tail.bytes().len()).expect("a piece lies within one segment");
            match exchanged.back_mut() {
                Some(Outgoing::Segment { length: joined, .. })
                    if before.as_ref().is_some_and(|before| before.is_followed_by(&tail)) =>
                {
                    *joined += length;
                }
                _ => exchanged.push_back(Outgoing::Segment { file, position, length }),
            }
            before = Some(tail);
        }
        self.pieces = exchanged;
        any
    }
}

/// Waits for `future` until `limit`; `None` when that came first. The future goes on from where it was.
pub(super) async fn until<F: Future>(
    io: &Io,
    mut future: Pin<&mut F>,
    limit: Option<Monotonic>,
) -> Option<F::Output> {
    let Some(limit) = limit else { return Some(future.await) };
    let mut time_up = pin!(io.sleep_until(limit));
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => time_up.as_mut().poll(context).map(|_| None),
    })
    .await
}
