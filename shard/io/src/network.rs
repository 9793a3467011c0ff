//! Socket calls that both kernel drivers make alike: bind and listen, options of a connection, sends that do not wait.

use std::fs;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use bytes::{Buf, Bytes};
use rustix::net::{SendAncillaryBuffer, SendFlags};
use socket2::{Domain, Protocol, SockAddr, Type};

use crate::file::File;
use crate::options::ListenOptions;
use crate::socket::{Listener, ListenerInner, ListenerKind, SocketHandle, SocketInner};

/// Pieces handed to the kernel in one call. More are sent by the next call; the kernel's own bound is 1024.
pub(crate) const PIECES_PER_CALL_MAX: usize = 64;

/// The most bytes of a file that one sendfile call may move before the loop turns to other work.
pub(crate) const SENDFILE_BYTES_PER_CALL_MAX: u64 = 256 * 1024;

pub(crate) fn listen(
    address: SocketAddr,
    options: &ListenOptions,
    nonblocking: bool,
) -> io::Result<Listener> {
    if options.probe_plain_bind && address.port() != 0 {
        let probe = bound_socket(address, false)?;
        // Binding alone does not conflict with a listener that shares SO_REUSEADDR; listening does.
        probe.listen(1)?;
    }
    let socket = bound_socket(address, options.reuse_port)?;
    let receive_buffer_bytes = match options.receive_buffer_bytes {
        Some(bytes) if receive_buffer_allowed(bytes) => {
            socket.set_recv_buffer_size(bytes)?;
            // The kernel reports the double of what was asked: it counts its own overhead.
            Some(socket.recv_buffer_size()?)
        }
        _ => None,
    };
    socket.listen(options.backlog)?;
    socket.set_nonblocking(nonblocking)?;
    let bound =
        socket.local_addr()?.as_socket().ok_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable))?;
    let handle =
        ListenerInner::new(ListenerKind::Descriptor(OwnedFd::from(socket)), bound, receive_buffer_bytes);
    Ok(Listener { handle })
}

fn bound_socket(address: SocketAddr, reuse_port: bool) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if reuse_port {
        socket.set_reuse_port(true)?;
    }
    socket.bind(&SockAddr::from(address))?;
    Ok(socket)
}

/// SO_RCVBUF above rmem_max is clamped in silence, and switches autotuning off: worse than not asking.
fn receive_buffer_allowed(bytes: usize) -> bool {
    fs::read_to_string("/proc/sys/net/core/rmem_max")
        .ok()
        .and_then(|text| text.trim().parse::<usize>().ok())
        .is_some_and(|max| bytes <= max)
}

/// A socket ready to connect: no Nagle delay, and calls on it never block (the ring waits for such sockets itself).
pub(crate) fn new_stream(address: SocketAddr) -> io::Result<OwnedFd> {
    let socket =
        socket2::Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_tcp_nodelay(true)?;
    Ok(OwnedFd::from(socket))
}

/// Takes over an accepted descriptor, which has SOCK_NONBLOCK and SOCK_CLOEXEC already.
pub(crate) fn accepted(descriptor: OwnedFd) -> io::Result<(SocketHandle, SocketAddr)> {
    rustix::net::sockopt::set_tcp_nodelay(&descriptor, true)?;
    // A peer that lost power sends neither FIN nor RST: without probes its long poll would hold its place to the end.
    rustix::net::sockopt::set_socket_keepalive(&descriptor, true)?;
    let peer = rustix::net::getpeername(&descriptor)?;
    let peer = peer.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?.try_into()?;
    Ok((SocketInner::descriptor(descriptor), peer))
}

pub(crate) fn try_send(socket: &SocketHandle, pieces: &[Bytes]) -> io::Result<usize> {
    let mut slices = [IoSlice::new(&[]); PIECES_PER_CALL_MAX];
    let mut count = 0;
    for (slice, piece) in slices.iter_mut().zip(pieces) {
        *slice = IoSlice::new(piece);
        count += 1;
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let mut control = SendAncillaryBuffer::default();
    Ok(rustix::net::sendmsg(socket.fd(), slices.get(..count).unwrap_or(&[]), &mut control, flags)?)
}

pub(crate) fn try_send_file(
    socket: &SocketHandle,
    file: &File,
    position: u64,
    length: u64,
) -> io::Result<u64> {
    let length = length.min(SENDFILE_BYTES_PER_CALL_MAX);
    let count = usize::try_from(length).unwrap_or(usize::MAX);
    let mut offset = position;
    let sent = rustix::fs::sendfile(socket.fd(), file.fd(), Some(&mut offset), count)?;
    Ok(sent as u64)
}

/// Forgets the first `sent` bytes of the pieces.
pub(crate) fn advance_pieces(pieces: &mut Vec<Bytes>, mut sent: usize) {
    let mut finished = 0;
    for piece in pieces.iter_mut() {
        if sent < piece.len() {
            piece.advance(sent);
            break;
        }
        sent -= piece.len();
        finished += 1;
    }
    pieces.drain(..finished);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pieces: &[&'static str], sent: usize, expected: &[&str]) {
        let mut pieces: Vec<Bytes> =
            pieces.iter().map(|piece| Bytes::from_static(piece.as_bytes())).collect();
        advance_pieces(&mut pieces, sent);
        assert_eq!(
            pieces,
            expected.iter().map(|piece| Bytes::copy_from_slice(piece.as_bytes())).collect::<Vec<_>>()
        );
    }

    #[test]
    fn pieces_advance_over_their_borders() {
        check(&["abc", "de"], 0, &["abc", "de"]);
        check(&["abc", "de"], 2, &["c", "de"]);
        check(&["abc", "de"], 3, &["de"]);
        check(&["abc", "", "de"], 4, &["e"]);
        check(&["abc", "de"], 5, &[]);
    }
}
