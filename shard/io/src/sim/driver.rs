//! The driver of a simulated executor: passes everything on to its world. Never sleeps; the world decides when it turns.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;

use super::handles::{SimulatedListener, SimulatedNotifier};
use super::perform::handle;
use super::state::{Caller, WorldState, socket_id};
use crate::clock::Monotonic;
use crate::driver::{Driver, DriverStats, Wait};
use crate::features::FeatureSet;
use crate::file::File;
use crate::network::SENDFILE_BYTES_PER_CALL_MAX;
use crate::notify::Notifier;
use crate::operation::{Completion, Operation, Token};
use crate::options::ListenOptions;
use crate::socket::{Listener, ListenerInner, ListenerKind, SocketHandle};

/// The wall clock when a world begins: 2026-01-01, in milliseconds since the Unix epoch.
const WALL_START_MS: i64 = 1_767_225_600_000;

pub(crate) struct SimDriver {
    pub(crate) world: Rc<RefCell<WorldState>>,
    pub(crate) executor: usize,
    pub(crate) host: usize,
}

impl SimDriver {
    fn caller(&self, token: Token) -> Caller {
        Caller { executor: self.executor, token }
    }

    /// What the socket takes now.
    fn room(&self, socket: &SocketHandle) -> io::Result<usize> {
        let world = self.world.borrow();
        world.network.endpoints.get(socket_id(socket)).ok_or(io::ErrorKind::NotConnected)?.room()
    }

    /// Lets bytes travel for which there is room. `wanted` says whether there were any to send.
    fn transmit(&self, socket: &SocketHandle, bytes: Bytes, wanted: bool) -> io::Result<usize> {
        let count = bytes.len();
        if count == 0 {
            return if wanted { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(0) };
        }
        let mut world = self.world.borrow_mut();
        let id = socket_id(socket);
        let endpoint = world.network.endpoints.get_mut(id).ok_or(io::ErrorKind::NotConnected)?;
        endpoint.take_room(count);
        world.transmit_bytes(id, bytes);
        Ok(count)
    }
}

impl Driver for SimDriver {
    fn submit(&mut self, token: Token, operation: Operation) {
        self.world.borrow_mut().submit(self.caller(token), operation);
    }

    fn cancel(&mut self, token: Token) {
        self.world.borrow_mut().cancel(self.caller(token));
    }

    fn poll(&mut self, completions: &mut Vec<Completion>, _wait: Wait) {
        self.world.borrow_mut().take_mail(self.executor, completions);
    }

    fn has_ready(&mut self) -> bool {
        self.world.borrow().has_mail(self.executor)
    }

    fn prepare_sleep(&mut self) {}

    fn awake(&mut self) {}

    fn try_send(&mut self, socket: &SocketHandle, pieces: &[Bytes]) -> io::Result<usize> {
        let room = self.room(socket)?;
        let bytes = match pieces {
            [piece] => piece.slice(..piece.len().min(room)),
            pieces => {
                let wanted: usize = pieces.iter().map(Bytes::len).sum();
                let mut bytes = Vec::with_capacity(wanted.min(room));
                for piece in pieces {
                    let count = piece.len().min(room - bytes.len());
                    bytes.extend_from_slice(piece.get(..count).unwrap_or(&[]));
                }
                Bytes::from(bytes)
            }
        };
        self.transmit(socket, bytes, pieces.iter().any(|piece| !piece.is_empty()))
    }

    fn try_send_file(
        &mut self,
        socket: &SocketHandle,
        file: &File,
        position: u64,
        length: u64,
    ) -> io::Result<u64> {
        let length = usize::try_from(length.min(SENDFILE_BYTES_PER_CALL_MAX)).unwrap_or(usize::MAX);
        let room = self.room(socket)?;
        let mut world = self.world.borrow_mut();
        let disk = &mut world.hosts[self.host].disk;
        let bytes = Bytes::from(disk.read(handle(file), position, length.min(room))?);
        let wanted = length > 0 && position < disk.length(handle(file))?;
        drop(world);
        self.transmit(socket, bytes, wanted).map(|count| count as u64)
    }

    fn cached_bytes(&mut self, file: &File, position: u64, length: u64) -> Option<u64> {
        let end = self.world.borrow().hosts[self.host].disk.length(handle(file)).ok()?;
        Some(end.saturating_sub(position).min(length))
    }

    fn listen(&mut self, address: SocketAddr, options: &ListenOptions) -> io::Result<Listener> {
        let mut world = self.world.borrow_mut();
        // A listener that was dropped in this turn has freed its port.
        world.process_ledger();
        let own = world.hosts[self.host].address;
        if address.ip() != own && !address.ip().is_unspecified() && !address.ip().is_loopback() {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        let port = if address.port() == 0 { world.network.ephemeral_port(self.host) } else { address.port() };
        let bound = SocketAddr::new(address.ip(), port);
        let id = world.next_id();
        world.network.bind(id, self.host, bound, options)?;
        let handle = SimulatedListener { id, ledger: Arc::clone(&world.ledger) };
        Ok(Listener { handle: ListenerInner::new(ListenerKind::Simulated(handle), bound, None) })
    }

    fn monotonic_now(&self) -> Monotonic {
        Monotonic(self.world.borrow().now)
    }

    fn wall_now_ms(&self) -> i64 {
        let world = self.world.borrow();
        let passed = i64::try_from(world.now / 1_000_000).unwrap_or(i64::MAX);
        WALL_START_MS.saturating_add(passed).saturating_add(world.hosts[self.host].wall_offset_ms)
    }

    fn random_u64(&mut self) -> u64 {
        self.world.borrow_mut().executors[self.executor].random.next_u64()
    }

    fn notifier(&self) -> Notifier {
        let ledger = Arc::clone(&self.world.borrow().ledger);
        Notifier::simulated(SimulatedNotifier { executor: self.executor as u64, ledger })
    }

    fn stats(&self) -> DriverStats {
        let world = self.world.borrow();
        let state = &world.executors[self.executor];
        DriverStats {
            submitted: state.submitted,
            completed: state.completed,
            in_flight: state.submitted - state.completed,
            ..DriverStats::default()
        }
    }

    fn features(&self) -> FeatureSet {
        FeatureSet::NONE
    }

    fn name(&self) -> &'static str {
        "sim"
    }

    fn shut_down(&mut self) {
        let mut world = self.world.borrow_mut();
        let undelivered = world.end_executor(self.executor);
        drop(world);
        drop(undelivered);
    }
}
