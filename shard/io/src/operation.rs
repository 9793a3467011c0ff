//! What an executor asks of a driver and what comes back, as closed enums that own their buffers; and the table of
//! operations in flight. Touches no kernel.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use slab::Slab;

use crate::aligned::AlignedBuffer;
use crate::executor::Core;
use crate::file::File;
use crate::options::{DirectoryEntry, OpenOptions, SpaceInfo, WriteSync};
use crate::socket::{ListenerHandle, SocketHandle};

/// Names one operation in flight; unique until its completion was delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub(crate) usize);

/// A job for a worker thread, and what it yields.
pub type Job = Box<dyn FnOnce() -> JobOutcome + Send>;
/// What a job yields: its value, or its panic (the same type, told apart by the driver-independent caller).
pub type JobOutcome = Result<Box<dyn Any + Send>, Box<dyn Any + Send>>;

/// One request to the kernel. It owns every buffer and keeps every descriptor open until its completion.
pub enum Operation {
    /// The next connection of a listener.
    Accept {
        /// Where to accept.
        listener: ListenerHandle,
    },
    /// A new connection.
    Connect {
        /// The peer.
        address: SocketAddr,
    },
    /// Whatever has arrived, at most [`crate::RECEIVE_SOME_BYTES_MAX`]. Answers `Returned::Bytes`, empty = end.
    ReceiveSome {
        /// The socket.
        socket: SocketHandle,
    },
    /// Appends at most `max_bytes` to the buffer, which has the room. Answers `Returned::Buffer`.
    ReceiveInto {
        /// The socket.
        socket: SocketHandle,
        /// Where to append.
        buffer: BytesMut,
        /// The most to append.
        max_bytes: usize,
    },
    /// All pieces, in order.
    Send {
        /// The socket.
        socket: SocketHandle,
        /// What to send.
        pieces: Vec<Bytes>,
    },
    /// Completes when the socket takes bytes again (or is closed).
    WaitWritable {
        /// The socket.
        socket: SocketHandle,
    },
    /// Completes when the peer sends no more, takes no byte. Answers 1 when the connection is broken in both directions.
    WaitHangUp {
        /// The socket.
        socket: SocketHandle,
    },
    /// Reads up to `length` bytes, fewer only at the end of the file. Answers `Returned::Bytes`.
    ReadAt {
        /// The file.
        file: File,
        /// First byte.
        position: u64,
        /// Bytes wanted.
        length: usize,
        /// Whether to leave nothing behind in the page cache.
        uncached: bool,
    },
    /// Writes the whole buffer past the page cache. Answers `Returned::Aligned`.
    WriteDirect {
        /// The file.
        file: File,
        /// First byte.
        position: u64,
        /// What to write.
        buffer: AlignedBuffer,
        /// Whether it is durable on completion.
        sync: WriteSync,
    },
    /// Work for a worker thread that may block in the kernel.
    File(FileOperation),
    /// Work for a worker thread that only computes. Answers `Returned::Job`.
    Compute {
        /// The work.
        job: Job,
    },
}

impl Operation {
    /// Whether dropping its future asks the driver to give up: only what may wait for a peer for ever and changes
    /// nothing by itself. A send or a file operation runs to its end.
    pub(crate) fn is_cancelled_by_drop(&self) -> bool {
        matches!(
            self,
            Self::Accept { .. }
                | Self::Connect { .. }
                | Self::ReceiveSome { .. }
                | Self::ReceiveInto { .. }
                | Self::WaitWritable { .. }
                | Self::WaitHangUp { .. }
        )
    }
}

/// A file operation that blocks: it runs on a worker thread, or as one event of a simulation.
#[derive(Debug)]
pub enum FileOperation {
    /// Answers `Returned::File`.
    Open {
        /// The path.
        path: PathBuf,
        /// How.
        options: OpenOptions,
    },
    /// Buffered write of all pieces, in order.
    Write {
        /// The file.
        file: File,
        /// First byte.
        position: u64,
        /// What to write.
        pieces: Vec<Bytes>,
    },
    /// Buffered write of an aligned buffer, with fdatasync if asked. Answers `Returned::Aligned`.
    WriteAligned {
        /// The file.
        file: File,
        /// First byte.
        position: u64,
        /// What to write.
        buffer: AlignedBuffer,
        /// Whether it is durable on completion.
        sync: WriteSync,
    },
    /// Answers `Returned::Bytes`.
    Read {
        /// The file.
        file: File,
        /// First byte.
        position: u64,
        /// Bytes wanted.
        length: usize,
    },
    /// fdatasync(2).
    SyncData {
        /// The file.
        file: File,
    },
    /// fsync(2).
    SyncAll {
        /// The file.
        file: File,
    },
    /// sync_file_range(2) that starts and awaits the write-out of a range; makes nothing durable.
    StartWriteOut {
        /// The file.
        file: File,
        /// First byte.
        position: u64,
        /// Bytes.
        length: u64,
    },
    /// ftruncate(2).
    Truncate {
        /// The file.
        file: File,
        /// The new length in bytes.
        length: u64,
    },
    /// fallocate(2).
    Allocate {
        /// The file.
        file: File,
        /// First byte.
        position: u64,
        /// Bytes.
        length: u64,
        /// Whether the file's length stays.
        keep_size: bool,
    },
    /// Answers the length as the result.
    Length {
        /// The file.
        file: File,
    },
    /// mkdir -p.
    CreateDirectories {
        /// The path.
        path: PathBuf,
    },
    /// unlink(2).
    RemoveFile {
        /// The path.
        path: PathBuf,
    },
    /// rm -r.
    RemoveDirectoryAll {
        /// The path.
        path: PathBuf,
    },
    /// rename(2).
    Rename {
        /// The old path.
        from: PathBuf,
        /// The new path.
        to: PathBuf,
    },
    /// fsync(2) of a directory: its names are durable.
    SyncDirectory {
        /// The path.
        path: PathBuf,
    },
    /// Answers `Returned::Entries`, sorted by name.
    ListDirectory {
        /// The path.
        path: PathBuf,
    },
    /// Answers 1 or 0 as the result.
    PathExists {
        /// The path.
        path: PathBuf,
    },
    /// Opens (creating) and locks without waiting. Answers `Returned::File`; `WouldBlock` when held.
    Lock {
        /// The path.
        path: PathBuf,
    },
    /// Answers `Returned::Space` of the file system that holds the path.
    FileSystemSpace {
        /// The path.
        path: PathBuf,
    },
    /// syncfs(2): everything of the file system that holds the file is durable.
    SyncFileSystem {
        /// Any file or directory of it, open since before the writes whose errors it is to tell.
        file: File,
    },
}

/// What an operation gives back besides its number.
#[derive(Default)]
pub enum Returned {
    /// Nothing.
    #[default]
    None,
    /// Received or read bytes.
    Bytes(Bytes),
    /// The buffer of `ReceiveInto`.
    Buffer(BytesMut),
    /// The buffer of a direct write.
    Aligned(AlignedBuffer),
    /// A new connection and its peer.
    Socket(SocketHandle, SocketAddr),
    /// An open file.
    File(File),
    /// The names in a directory.
    Entries(Vec<DirectoryEntry>),
    /// The outcome of a job.
    Job(JobOutcome),
    /// The room of a file system.
    Space(SpaceInfo),
}

impl fmt::Debug for Returned {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::None => "None",
            Self::Bytes(_) => "Bytes",
            Self::Buffer(_) => "Buffer",
            Self::Aligned(_) => "Aligned",
            Self::Socket(..) => "Socket",
            Self::File(_) => "File",
            Self::Entries(_) => "Entries",
            Self::Job(_) => "Job",
            Self::Space(_) => "Space",
        };
        formatter.write_str(name)
    }
}

/// The end of one operation. Delivered exactly once for each submitted token.
#[derive(Debug)]
pub struct Completion {
    /// Which operation.
    pub token: Token,
    /// Bytes moved, or another number that the operation's documentation names.
    pub result: io::Result<u64>,
    /// Buffers and handles. Buffers come back on errors too.
    pub returned: Returned,
}

/// Values by token: what a driver keeps of its operations in flight. Tokens are small numbers, so a vector it is.
pub(crate) struct TokenMap<T> {
    slots: Vec<Option<T>>,
    count: usize,
}

impl<T> TokenMap<T> {
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), count: 0 }
    }

    /// Stores the value of a token that has none.
    pub(crate) fn insert(&mut self, token: Token, value: T) -> &mut T {
        if token.0 >= self.slots.len() {
            self.slots.resize_with(token.0 + 1, || None);
        }
        let slot = &mut self.slots[token.0];
        assert!(slot.is_none(), "a token names one operation in flight");
        self.count += 1;
        slot.insert(value)
    }

    pub(crate) fn get_mut(&mut self, token: Token) -> Option<&mut T> {
        self.slots.get_mut(token.0)?.as_mut()
    }

    pub(crate) fn remove(&mut self, token: Token) -> Option<T> {
        let value = self.slots.get_mut(token.0)?.take()?;
        self.count -= 1;
        Some(value)
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// The tokens that have a value, ascending.
    pub(crate) fn tokens(&self) -> Vec<Token> {
        let used = self.slots.iter().enumerate().filter(|(_, slot)| slot.is_some());
        used.map(|(index, _)| Token(index)).collect()
    }

    pub(crate) fn clear(&mut self) {
        self.slots.clear();
        self.count = 0;
    }
}

/// One operation as its future sees it.
enum Slot {
    Waiting(Option<Waker>),
    Done {
        result: io::Result<u64>,
        returned: Returned,
    },
    /// The future is gone; the slot stays until the completion, so that its token cannot be reused early.
    Orphaned,
}

/// The operations of one executor that are not finished, and finished ones not yet collected.
#[derive(Default)]
pub(crate) struct OperationTable {
    slots: Slab<Slot>,
}

impl OperationTable {
    pub(crate) fn insert(&mut self) -> Token {
        Token(self.slots.insert(Slot::Waiting(None)))
    }

    /// Stores a completion; answers the waker of the future that waits for it. What an orphan got is dropped here.
    pub(crate) fn complete(&mut self, completion: Completion) -> Option<Waker> {
        let Completion { token, result, returned } = completion;
        let slot = self.slots.get_mut(token.0).expect("a driver completes only tokens that were submitted");
        match slot {
            Slot::Waiting(waker) => {
                let waker = waker.take();
                *slot = Slot::Done { result, returned };
                waker
            }
            Slot::Orphaned => {
                self.slots.remove(token.0);
                None
            }
            Slot::Done { .. } => unreachable!("a driver completes a token once"),
        }
    }

    fn poll(&mut self, token: Token, context: &Context<'_>) -> Option<(io::Result<u64>, Returned)> {
        let slot = self.slots.get_mut(token.0).expect("a future owns its slot until it collects");
        match slot {
            Slot::Waiting(waker) => {
                match waker {
                    Some(waker) => waker.clone_from(context.waker()),
                    None => *waker = Some(context.waker().clone()),
                }
                None
            }
            Slot::Done { .. } => match self.slots.remove(token.0) {
                Slot::Done { result, returned } => Some((result, returned)),
                Slot::Waiting(_) | Slot::Orphaned => unreachable!("matched as done above"),
            },
            Slot::Orphaned => unreachable!("an orphan has no future"),
        }
    }

    /// The future is dropped before it collected. Answers what it had, for dropping outside the table's borrow, and
    /// whether the operation is still in flight.
    fn orphan(&mut self, token: Token) -> (bool, Option<Returned>) {
        let slot = self.slots.get_mut(token.0).expect("a future owns its slot until it collects");
        match slot {
            Slot::Waiting(_) => {
                *slot = Slot::Orphaned;
                (true, None)
            }
            Slot::Done { .. } => match self.slots.remove(token.0) {
                Slot::Done { returned, .. } => (false, Some(returned)),
                Slot::Waiting(_) | Slot::Orphaned => unreachable!("matched as done above"),
            },
            Slot::Orphaned => unreachable!("an orphan has no future"),
        }
    }

    /// Takes every waker, so that tasks which wait for this table can be freed.
    pub(crate) fn take_wakers(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for (_, slot) in &mut self.slots {
            if let Slot::Waiting(waker) = slot {
                wakers.extend(waker.take());
            }
        }
        wakers
    }
}

/// An operation in flight as a future. Dropping it orphans the operation; see [`Operation::is_cancelled_by_drop`].
pub(crate) struct OperationFuture {
    core: Rc<Core>,
    token: Token,
    cancel_on_drop: bool,
    collected: bool,
}

impl OperationFuture {
    pub(crate) fn submit(core: &Rc<Core>, operation: Operation) -> Self {
        let token = core.operations.borrow_mut().insert();
        let cancel_on_drop = operation.is_cancelled_by_drop();
        core.driver.borrow_mut().submit(token, operation);
        core.nudge();
        Self { core: Rc::clone(core), token, cancel_on_drop, collected: false }
    }
}

impl Future for OperationFuture {
    type Output = (io::Result<u64>, Returned);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = self.core.operations.borrow_mut().poll(self.token, context);
        match answer {
            Some(answer) => {
                self.collected = true;
                Poll::Ready(answer)
            }
            None => Poll::Pending,
        }
    }
}

impl Drop for OperationFuture {
    fn drop(&mut self) {
        if self.collected {
            return;
        }
        let (in_flight, returned) = self.core.operations.borrow_mut().orphan(self.token);
        drop(returned);
        if in_flight && self.cancel_on_drop {
            self.core.driver.borrow_mut().cancel(self.token);
            self.core.nudge();
        }
    }
}
