//! One operation in the ring: its buffers at stable addresses, its submission, and what its result means. Pure but for
//! the pointers that it lends to the kernel.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use bytes::{BufMut, Bytes, BytesMut};
use io_uring::squeue::{Entry, Flags};
use io_uring::types::Fd;
use io_uring::{cqueue, opcode};
use socket2::SockAddr;

use super::buffers::{GROUP, ReceiveBuffers};
use crate::RECEIVE_SOME_BYTES_MAX;
use crate::aligned::AlignedBuffer;
use crate::file::File;
use crate::file_work::DirectWindow;
use crate::network::{self, PIECES_PER_CALL_MAX};
use crate::operation::{Returned, Token};
use crate::options::WriteSync;
use crate::socket::{ListenerHandle, SocketHandle};

/// Wait for readiness before the first attempt: saves a failing receive on a socket known to be empty.
const RECEIVE_POLL_FIRST: u16 = 1;
/// Durable on completion, as O_DSYNC.
const RWF_DSYNC: i32 = 0x02;
/// Leave nothing behind in the page cache (Linux 6.14).
const RWF_DONTCACHE: i32 = 0x80;
/// The kernel's own bound for one read or write (MAX_RW_COUNT), rounded down to our alignment.
const TRANSFER_BYTES_MAX: usize = 0x7fff_f000;

/// An operation in the ring. What the kernel points to lies on the heap, so that a flight may move.
pub(crate) struct Flight {
    pub(crate) work: FlightWork,
    /// The future is gone and the operation was asked to end: it is not tried again.
    pub(crate) cancelled: bool,
}

pub(crate) enum FlightWork {
    Accept {
        listener: ListenerHandle,
    },
    Connect {
        socket: SocketHandle,
        address: SocketAddr,
        raw: Box<SockAddr>,
    },
    /// Receives into a buffer that the kernel picks.
    ReceiveSome {
        socket: SocketHandle,
    },
    /// The same where the kernel has no provided buffers: waits, then receives at once into a fresh buffer.
    ReceiveWhenReadable {
        socket: SocketHandle,
    },
    ReceiveInto {
        socket: SocketHandle,
        buffer: BytesMut,
        max_bytes: usize,
    },
    Send {
        socket: SocketHandle,
        pieces: Vec<Bytes>,
        sent: u64,
        message: Option<Box<Message>>,
    },
    WaitWritable {
        socket: SocketHandle,
    },
    WaitHangUp {
        socket: SocketHandle,
    },
    Read {
        file: File,
        position: u64,
        length: usize,
        buffer: BytesMut,
        uncached: bool,
    },
    ReadDirect {
        file: File,
        window: DirectWindow,
        length: usize,
        buffer: AlignedBuffer,
        filled: usize,
    },
    WriteDirect {
        file: File,
        position: u64,
        buffer: AlignedBuffer,
        written: usize,
        sync: WriteSync,
    },
}

/// The header of a gathered send. It points into itself and into the pieces of its flight.
pub(crate) struct Message {
    slices: [libc::iovec; PIECES_PER_CALL_MAX],
    header: libc::msghdr,
}

/// What a result means.
pub(crate) enum Progress {
    Finished(io::Result<u64>, Returned),
    /// Not at its end: to be submitted again.
    Again(FlightWork),
}

impl FlightWork {
    /// The submission. Pointers in it stay valid as long as this value lives, wherever it is moved to.
    pub(crate) fn entry(&mut self, token: Token) -> Entry {
        let entry = match self {
            Self::Accept { listener } => {
                let descriptor = Fd(listener.fd().as_raw_fd());
                opcode::Accept::new(descriptor, std::ptr::null_mut(), std::ptr::null_mut())
                    .flags(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK)
                    .build()
            }
            Self::Connect { socket, raw, .. } => {
                opcode::Connect::new(descriptor(socket), raw.as_ptr().cast(), raw.len()).build()
            }
            Self::ReceiveSome { socket } => {
                let hint = receive_hint(socket);
                opcode::Recv::new(descriptor(socket), std::ptr::null_mut(), RECEIVE_SOME_BYTES_MAX as u32)
                    .ioprio(hint)
                    .buf_group(GROUP)
                    .build()
                    .flags(Flags::BUFFER_SELECT)
            }
            Self::ReceiveWhenReadable { socket } => {
                opcode::PollAdd::new(descriptor(socket), libc::POLLIN as u32).build()
            }
            Self::ReceiveInto { socket, buffer, max_bytes } => {
                let hint = receive_hint(socket);
                let spare = buffer.spare_capacity_mut();
                let room = spare.len().min(*max_bytes).min(TRANSFER_BYTES_MAX);
                opcode::Recv::new(descriptor(socket), spare.as_mut_ptr().cast(), room as u32)
                    .ioprio(hint)
                    .build()
            }
            Self::Send { socket, pieces, message, .. } => send_entry(socket, pieces, message),
            Self::WaitWritable { socket } => {
                opcode::PollAdd::new(descriptor(socket), libc::POLLOUT as u32).build()
            }
            Self::WaitHangUp { socket } => {
                opcode::PollAdd::new(descriptor(socket), libc::POLLRDHUP as u32).build()
            }
            Self::Read { file, position, length, buffer, uncached } => {
                let wanted = (*length - buffer.len()).min(TRANSFER_BYTES_MAX);
                let offset = *position + buffer.len() as u64;
                let target = buffer.spare_capacity_mut().as_mut_ptr().cast();
                opcode::Read::new(Fd(file.raw_fd()), target, wanted as u32)
                    .offset(offset)
                    .rw_flags(if *uncached { RWF_DONTCACHE } else { 0 })
                    .build()
            }
            Self::ReadDirect { file, window, buffer, filled, .. } => {
                let rest = &mut buffer.as_mut_slice()[*filled..];
                let wanted = rest.len().min(TRANSFER_BYTES_MAX);
                opcode::Read::new(Fd(file.raw_fd()), rest.as_mut_ptr(), wanted as u32)
                    .offset(window.position + *filled as u64)
                    .build()
            }
            Self::WriteDirect { file, position, buffer, written, sync } => {
                let rest = &buffer.as_slice()[*written..];
                let wanted = rest.len().min(TRANSFER_BYTES_MAX);
                opcode::Write::new(Fd(file.raw_fd()), rest.as_ptr(), wanted as u32)
                    .offset(*position + *written as u64)
                    .rw_flags(if *sync == WriteSync::Data { RWF_DSYNC } else { 0 })
                    .build()
            }
        };
        entry.user_data(token.0 as u64)
    }

    /// The watch id of a send's socket, whose next send waits for this one.
    pub(crate) fn sender(&self) -> Option<u64> {
        match self {
            Self::Send { socket, .. } => Some(socket.watch.id),
            _ => None,
        }
    }

    /// What goes back to the caller when the operation fails.
    pub(crate) fn give_back(self) -> Returned {
        match self {
            Self::ReceiveInto { buffer, .. } => Returned::Buffer(buffer),
            Self::WriteDirect { buffer, .. } => Returned::Aligned(buffer),
            _ => Returned::None,
        }
    }

    /// Interprets a completion of this submission: `result` and `flags` are the kernel's.
    pub(crate) fn advance(self, result: i32, flags: u32, buffers: Option<&mut ReceiveBuffers>) -> Progress {
        match usize::try_from(result) {
            Ok(count) => self.succeed(count, flags, buffers),
            Err(_) => {
                if let Some(buffers) = buffers {
                    // A failed receive may have picked a buffer already.
                    drop(buffers.take(flags, 0));
                }
                self.fail(-result)
            }
        }
    }

    fn fail(mut self, code: i32) -> Progress {
        match (code, &mut self) {
            (libc::EINTR | libc::EAGAIN, _) => Progress::Again(self),
            // All buffers were with completions of the same turn; they are back by now.
            (libc::ENOBUFS, Self::ReceiveSome { .. }) => Progress::Again(self),
            // A connection that was reset while it waited is not ours to report.
            (libc::ECONNABORTED, Self::Accept { .. }) => Progress::Again(self),
            // This file system cannot read past its cache.
            (libc::EOPNOTSUPP, Self::Read { uncached, .. }) if *uncached => {
                *uncached = false;
                Progress::Again(self)
            }
            (_, Self::Send { socket, .. }) => {
                socket.sending.store(false, Ordering::Relaxed);
                Progress::Finished(Err(io::Error::from_raw_os_error(code)), Returned::None)
            }
            _ => Progress::Finished(Err(io::Error::from_raw_os_error(code)), self.give_back()),
        }
    }

    fn succeed(self, count: usize, flags: u32, buffers: Option<&mut ReceiveBuffers>) -> Progress {
        match self {
            Self::Accept { listener } => accepted(listener, count),
            Self::Connect { socket, address, .. } => {
                Progress::Finished(Ok(0), Returned::Socket(socket, address))
            }
            Self::ReceiveSome { socket } => {
                note_rest(&socket, flags);
                let bytes = buffers.map(|buffers| buffers.take(flags, count)).unwrap_or_default();
                Progress::Finished(Ok(bytes.len() as u64), Returned::Bytes(bytes))
            }
            Self::ReceiveWhenReadable { socket } => receive_now(socket),
            Self::ReceiveInto { socket, mut buffer, .. } => {
                note_rest(&socket, flags);
                // SAFETY: the kernel has written `count` bytes behind the present ones, into spare capacity.
                unsafe { buffer.advance_mut(count) };
                Progress::Finished(Ok(count as u64), Returned::Buffer(buffer))
            }
            Self::Send { socket, mut pieces, sent, message } => {
                let sent = sent + count as u64;
                network::advance_pieces(&mut pieces, count);
                if pieces.is_empty() {
                    socket.sending.store(false, Ordering::Relaxed);
                    return Progress::Finished(Ok(sent), Returned::None);
                }
                Progress::Again(Self::Send { socket, pieces, sent, message })
            }
            Self::WaitWritable { .. } => Progress::Finished(Ok(0), Returned::None),
            Self::WaitHangUp { .. } => {
                let broken = count & (libc::POLLERR | libc::POLLHUP) as usize != 0;
                Progress::Finished(Ok(u64::from(broken)), Returned::None)
            }
            Self::Read { file, position, length, mut buffer, uncached } => {
                // SAFETY: the kernel has written `count` bytes behind the present ones, into spare capacity.
                unsafe { buffer.advance_mut(count) };
                if count == 0 || buffer.len() >= length {
                    return Progress::Finished(Ok(buffer.len() as u64), Returned::Bytes(buffer.freeze()));
                }
                Progress::Again(Self::Read { file, position, length, buffer, uncached })
            }
            Self::ReadDirect { file, window, length, mut buffer, filled } => {
                let filled = filled + count;
                // A direct read that ends inside a block has reached the end of the file.
                let at_end = count == 0 || !filled.is_multiple_of(crate::ALIGNMENT_BYTES);
                if at_end || filled >= buffer.len() {
                    buffer.truncate(filled);
                    let bytes = window.cut(buffer, length);
                    return Progress::Finished(Ok(bytes.len() as u64), Returned::Bytes(bytes));
                }
                Progress::Again(Self::ReadDirect { file, window, length, buffer, filled })
            }
            Self::WriteDirect { file, position, buffer, written, sync } => {
                let written = written + count;
                if written >= buffer.len() {
                    return Progress::Finished(Ok(written as u64), Returned::Aligned(buffer));
                }
                if count == 0 {
                    return Progress::Finished(
                        Err(io::ErrorKind::WriteZero.into()),
                        Returned::Aligned(buffer),
                    );
                }
                Progress::Again(Self::WriteDirect { file, position, buffer, written, sync })
            }
        }
    }
}

fn descriptor(socket: &SocketHandle) -> Fd {
    Fd(socket.fd().as_raw_fd())
}

fn receive_hint(socket: &SocketHandle) -> u16 {
    if socket.likely_readable.load(Ordering::Relaxed) { 0 } else { RECEIVE_POLL_FIRST }
}

/// Remembers whether bytes were left in the socket.
fn note_rest(socket: &SocketHandle, flags: u32) {
    socket.likely_readable.store(cqueue::sock_nonempty(flags), Ordering::Relaxed);
}

fn send_entry(socket: &SocketHandle, pieces: &[Bytes], message: &mut Option<Box<Message>>) -> Entry {
    // MSG_WAITALL: the kernel goes on by itself until all is sent, or the connection breaks.
    let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
    if let [piece] = pieces {
        let length = piece.len().min(TRANSFER_BYTES_MAX);
        return opcode::Send::new(descriptor(socket), piece.as_ptr(), length as u32).flags(flags).build();
    }
    let message = message.get_or_insert_with(|| {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: a message header of zeroes is valid: no name, no slices, no control data.
        Box::new(Message { slices: [empty; PIECES_PER_CALL_MAX], header: unsafe { std::mem::zeroed() } })
    });
    let mut count = 0;
    for (slice, piece) in message.slices.iter_mut().zip(pieces) {
        *slice = libc::iovec { iov_base: piece.as_ptr().cast_mut().cast(), iov_len: piece.len() };
        count += 1;
    }
    message.header.msg_iov = message.slices.as_mut_ptr();
    message.header.msg_iovlen = count;
    opcode::SendMsg::new(descriptor(socket), &raw const message.header).flags(flags as u32).build()
}

fn accepted(listener: ListenerHandle, descriptor: usize) -> Progress {
    let descriptor = i32::try_from(descriptor).expect("the kernel answers an accept with a descriptor");
    // SAFETY: the kernel has just given us this descriptor.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    match network::accepted(descriptor) {
        Ok((socket, peer)) => Progress::Finished(Ok(0), Returned::Socket(socket, peer)),
        // Reset between accept and here.
        Err(_) => Progress::Again(FlightWork::Accept { listener }),
    }
}

fn receive_now(socket: SocketHandle) -> Progress {
    let mut buffer = BytesMut::zeroed(RECEIVE_SOME_BYTES_MAX);
    match rustix::net::recv(socket.fd(), &mut *buffer, rustix::net::RecvFlags::DONTWAIT) {
        Ok((count, _)) => {
            let bytes = Bytes::copy_from_slice(&buffer[..count]);
            Progress::Finished(Ok(count as u64), Returned::Bytes(bytes))
        }
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
            Progress::Again(FlightWork::ReceiveWhenReadable { socket })
        }
        Err(error) => Progress::Finished(Err(error.into()), Returned::None),
    }
}
