//! Entries that wait for the next write. Owns the frame that fills while the previous one is written, and the buffers
//! that both reuse. Pure: the writer takes frames out and gives buffers back.

use std::collections::VecDeque;

use ringlog_io::{AlignedBuffer, Monotonic};
use ringlog_protocol::ids::Offset;

use super::entry::Entry;
use super::frame::FrameBuilder;
use crate::limits::{JOURNAL_BUFFER_IDLE_BYTES_MAX, JOURNAL_BUFFERS_KEPT_MAX};

/// What the journal says of an entry once its frame is durable; `token` is the caller's own name for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    pub token: u64,
    pub sequence: u64,
    pub kind: NoteKind,
}

/// What kind of entry a note stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoteKind {
    /// Records up to this offset, exclusive.
    Data {
        end: Offset,
    },
    /// A reference to records up to this offset, exclusive: durable only together with its bytes in the segment.
    Reference {
        end: Offset,
    },
    HardState,
    LogStart,
    Truncate,
    /// The log was emptied and goes on at this offset.
    Begin {
        start: Offset,
    },
    Delete,
    SyncedTo,
    /// A copy of an entry that was durable before.
    Carried,
}

/// Stands for all that was pushed before it was taken; see [`super::Journal::durable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FrameTicket(pub(super) u64);

/// A frame on its way.
#[derive(Debug)]
pub(super) struct Frame {
    /// None when the journal is memory only.
    pub(super) builder: Option<FrameBuilder>,
    pub(super) notes: Vec<Note>,
    pub(super) entry_bytes: usize,
    /// When its first entry came.
    pub(super) started_at: Monotonic,
}

/// Frames not yet handed to the writer, oldest first.
#[derive(Debug)]
pub(super) struct FrameQueue {
    frames: VecDeque<Frame>,
    spare_buffers: Vec<AlignedBuffer>,
    spare_notes: Vec<Vec<Note>>,
    in_memory: bool,
    frame_body_bytes_max: usize,
    backlog_bytes: usize,
    /// Frames handed out so far; a frame's number is its place in that order.
    taken: u64,
}

impl FrameQueue {
    pub(super) fn new(in_memory: bool, frame_body_bytes_max: usize) -> FrameQueue {
        FrameQueue {
            frames: VecDeque::new(),
            spare_buffers: Vec::new(),
            spare_notes: Vec::new(),
            in_memory,
            frame_body_bytes_max,
            backlog_bytes: 0,
            taken: 0,
        }
    }

    /// Copies an entry into the frame that fills; returns whether the queue was empty before.
    pub(super) fn push(&mut self, entry: &Entry<'_>, note: Note, now: impl FnOnce() -> Monotonic) -> bool {
        let was_empty = self.frames.is_empty();
        let entry_bytes = entry.encoded_bytes();
        let fits = |frame: &Frame| frame.entry_bytes + entry_bytes <= self.frame_body_bytes_max;
        if !self.frames.back().is_some_and(fits) {
            let buffer = self.spare_buffers.pop().unwrap_or_default();
            let builder = (!self.in_memory).then(|| FrameBuilder::new(buffer));
            let notes = self.spare_notes.pop().unwrap_or_default();
            self.frames.push_back(Frame { builder, notes, entry_bytes: 0, started_at: now() });
        }
        let frame = self.frames.back_mut().expect("a frame was just made");
        if let Some(builder) = &mut frame.builder {
            builder.push(entry);
        }
        frame.notes.push(note);
        frame.entry_bytes += entry_bytes;
        self.backlog_bytes += entry_bytes;
        was_empty
    }

    /// The oldest frame, with everything that came until now if it is the only one.
    pub(super) fn take(&mut self) -> Option<Frame> {
        let frame = self.frames.pop_front()?;
        self.backlog_bytes -= frame.entry_bytes;
        self.taken += 1;
        Some(frame)
    }

    /// Takes a written frame's memory back for reuse.
    pub(super) fn give_back(&mut self, buffer: Option<AlignedBuffer>, mut notes: Vec<Note>) {
        notes.clear();
        if self.spare_notes.len() < JOURNAL_BUFFERS_KEPT_MAX {
            self.spare_notes.push(notes);
        }
        if let Some(buffer) = buffer
            && self.spare_buffers.len() < JOURNAL_BUFFERS_KEPT_MAX
            // A burst must not hold its memory for ever; while the queue is busy the large buffer is wanted.
            && (buffer.capacity() <= JOURNAL_BUFFER_IDLE_BYTES_MAX || !self.frames.is_empty())
        {
            self.spare_buffers.push(buffer);
        }
    }

    /// Number of the frame that was taken last; tickets count alike.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// The frame after which all that is queued now is durable.
    pub(super) fn ticket(&self) -> FrameTicket {
        FrameTicket(self.taken + self.frames.len() as u64)
    }

    pub(super) fn backlog_bytes(&self) -> usize {
        self.backlog_bytes
    }

    /// Drops what waits: the journal will write no more.
    pub(super) fn clear(&mut self) {
        self.frames.clear();
        self.backlog_bytes = 0;
    }
}
