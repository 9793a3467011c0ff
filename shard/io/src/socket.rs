//! Sockets and listeners as handles: who owns the descriptor, which addresses it has, how it moves between cores.
//! Sends and receives nothing.

use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::sim::{SimulatedListener, SimulatedSocket};

/// A socket shared by its owner and the operations in flight; the descriptor closes with the last of them.
pub type SocketHandle = Arc<SocketInner>;
/// A listener shared in the same way.
pub type ListenerHandle = Arc<ListenerInner>;

/// What a driver knows of a socket.
pub struct SocketInner {
    pub(crate) kind: SocketKind,
    pub(crate) watch: Watch,
    /// Whether the last receive left bytes behind: the next one should try at once instead of waiting first.
    pub(crate) likely_readable: AtomicBool,
    /// Whether a send is in the ring: the next one waits, so that bytes keep their order.
    pub(crate) sending: AtomicBool,
}

pub(crate) enum SocketKind {
    Descriptor(OwnedFd),
    Simulated(SimulatedSocket),
}

/// What a driver knows of a listener.
pub struct ListenerInner {
    pub(crate) kind: ListenerKind,
    pub(crate) watch: Watch,
    pub(crate) address: SocketAddr,
    pub(crate) receive_buffer_bytes: Option<usize>,
}

pub(crate) enum ListenerKind {
    Descriptor(OwnedFd),
    Simulated(SimulatedListener),
}

/// The registration of a descriptor with one epoll instance. Its id is never reused, as descriptor numbers are.
pub(crate) struct Watch {
    pub(crate) id: u64,
    pub(crate) epoll: Mutex<Option<Arc<OwnedFd>>>,
}

impl Watch {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), epoll: Mutex::new(None) }
    }

    fn forget(&self, descriptor: BorrowedFd<'_>) {
        let epoll = self.epoll.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(epoll) = epoll {
            // Fails only when it is not registered, which is what we want.
            let _ = rustix::event::epoll::delete(epoll, descriptor);
        }
    }
}

impl SocketInner {
    pub(crate) fn descriptor(descriptor: OwnedFd) -> SocketHandle {
        Arc::new(Self {
            kind: SocketKind::Descriptor(descriptor),
            watch: Watch::new(),
            likely_readable: AtomicBool::new(true),
            sending: AtomicBool::new(false),
        })
    }

    pub(crate) fn simulated(socket: SimulatedSocket) -> SocketHandle {
        Arc::new(Self {
            kind: SocketKind::Simulated(socket),
            watch: Watch::new(),
            likely_readable: AtomicBool::new(true),
            sending: AtomicBool::new(false),
        })
    }

    /// The descriptor, for the kernel's drivers.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            SocketKind::Descriptor(descriptor) => descriptor.as_fd(),
            SocketKind::Simulated(_) => unreachable!("a simulated socket never reaches a kernel driver"),
        }
    }
}

impl ListenerInner {
    pub(crate) fn new(
        kind: ListenerKind,
        address: SocketAddr,
        receive_buffer_bytes: Option<usize>,
    ) -> ListenerHandle {
        Arc::new(Self { kind, watch: Watch::new(), address, receive_buffer_bytes })
    }

    /// The descriptor, for the kernel's drivers.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            ListenerKind::Descriptor(descriptor) => descriptor.as_fd(),
            ListenerKind::Simulated(_) => unreachable!("a simulated listener never reaches a kernel driver"),
        }
    }
}

/// How a peer stopped sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HangUp {
    /// It closed the connection or its direction of it, which look alike from here: it may still read.
    Finished,
    /// The connection is reset or shut in both directions: nothing reaches it any more.
    Broken,
}

/// A connected TCP socket. One core holds it; [`Socket::into_transfer`] moves it to another.
///
/// Dropping it closes the connection once no operation uses it: a receive is given up with its future, a send that
/// a slow peer holds up keeps the descriptor until it ends; call [`Socket::shutdown`] to end both at once.
pub struct Socket {
    pub(crate) handle: SocketHandle,
    /// Sockets stay on their core.
    pub(crate) not_send: std::marker::PhantomData<*const ()>,
}

impl Socket {
    pub(crate) fn new(handle: SocketHandle) -> Self {
        Self { handle, not_send: std::marker::PhantomData }
    }

    /// Makes the socket ready to go to another core. Only legal when no operation of it is in flight: a receive in
    /// flight would take the next bytes on the old core.
    pub fn into_transfer(self) -> SocketTransfer {
        if let SocketKind::Descriptor(descriptor) = &self.handle.kind {
            self.handle.watch.forget(descriptor.as_fd());
        }
        self.handle.likely_readable.store(true, Ordering::Relaxed);
        SocketTransfer { handle: self.handle }
    }

    /// Our end.
    ///
    /// # Errors
    /// What getsockname(2) answers.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        match &self.handle.kind {
            SocketKind::Descriptor(descriptor) => inet(rustix::net::getsockname(descriptor)?.try_into()),
            SocketKind::Simulated(socket) => Ok(socket.local_address()),
        }
    }

    /// The other end.
    ///
    /// # Errors
    /// `NotConnected` once the peer has reset the connection.
    pub fn peer_address(&self) -> io::Result<SocketAddr> {
        match &self.handle.kind {
            SocketKind::Descriptor(descriptor) => {
                let address = rustix::net::getpeername(descriptor)?;
                inet(address.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected))?.try_into())
            }
            SocketKind::Simulated(socket) => Ok(socket.peer_address()),
        }
    }

    /// Ends both directions: operations in flight complete, the peer sees the end. Harmless when already closed.
    pub fn shutdown(&self) {
        self.shut(Shutdown::Both);
    }

    /// Ends our direction: the peer sees the end after what was sent; we can still receive.
    pub fn shutdown_write(&self) {
        self.shut(Shutdown::Write);
    }

    /// Ends the peer's direction: a receive in flight ends as if the peer had closed; we can still send.
    pub fn shutdown_read(&self) {
        self.shut(Shutdown::Read);
    }

    fn shut(&self, how: Shutdown) {
        match &self.handle.kind {
            SocketKind::Descriptor(descriptor) => {
                let how = match how {
                    Shutdown::Both => rustix::net::Shutdown::Both,
                    Shutdown::Write => rustix::net::Shutdown::Write,
                    Shutdown::Read => rustix::net::Shutdown::Read,
                };
                // ENOTCONN: the peer was faster.
                let _ = rustix::net::shutdown(descriptor, how);
            }
            SocketKind::Simulated(socket) => socket.shutdown(how),
        }
    }
}

fn inet(address: Result<SocketAddr, rustix::io::Errno>) -> io::Result<SocketAddr> {
    Ok(address?)
}

impl fmt::Debug for Socket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Socket").field("id", &self.handle.watch.id).finish_non_exhaustive()
    }
}

/// A socket on its way between two cores. [`crate::Io::adopt`] makes it a [`Socket`] again.
pub struct SocketTransfer {
    pub(crate) handle: SocketHandle,
}

impl fmt::Debug for SocketTransfer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("SocketTransfer").field("id", &self.handle.watch.id).finish_non_exhaustive()
    }
}

/// A listening TCP socket. One core holds it.
pub struct Listener {
    pub(crate) handle: ListenerHandle,
}

impl Listener {
    /// The bound address, with the port that the kernel chose for port 0.
    pub fn local_address(&self) -> SocketAddr {
        self.handle.address
    }

    /// SO_RCVBUF as the kernel reports it, when it was set; `None` when autotuning was left on.
    pub fn receive_buffer_bytes(&self) -> Option<usize> {
        self.handle.receive_buffer_bytes
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Listener").field("address", &self.handle.address).finish_non_exhaustive()
    }
}
