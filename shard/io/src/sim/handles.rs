//! The simulation's side of sockets, files and notifiers: ids, and a ledger that tells the world what happened to them
//! outside an operation (dropped, shut down, notified).

use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What happened to a handle since the world looked last, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LedgerEntry {
    SocketClosed(u64),
    SocketShut(u64, Shutdown),
    ListenerClosed(u64),
    FileClosed(u64),
    Notified(u64),
}

/// Handles are `Send` by type although a simulation has one thread; hence the lock, which is never contended.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: Mutex<Vec<LedgerEntry>>,
    /// Looked at after every event, which mostly did nothing to a handle.
    has_entries: AtomicBool,
}

impl Ledger {
    pub(crate) fn push(&self, entry: LedgerEntry) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        self.has_entries.store(true, Ordering::Release);
    }

    /// Whether something happened.
    pub(crate) fn has_entries(&self) -> bool {
        self.has_entries.load(Ordering::Acquire)
    }

    /// Moves what happened into `read`, which is empty.
    pub(crate) fn take(&self, read: &mut Vec<LedgerEntry>) {
        self.has_entries.store(false, Ordering::Release);
        std::mem::swap(&mut *self.entries.lock().unwrap_or_else(PoisonError::into_inner), read);
    }
}

/// One end of a simulated connection.
pub(crate) struct SimulatedSocket {
    pub(crate) id: u64,
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) ledger: Arc<Ledger>,
}

impl SimulatedSocket {
    pub(crate) fn local_address(&self) -> SocketAddr {
        self.local
    }

    pub(crate) fn peer_address(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn shutdown(&self, how: Shutdown) {
        self.ledger.push(LedgerEntry::SocketShut(self.id, how));
    }
}

impl Drop for SimulatedSocket {
    fn drop(&mut self) {
        self.ledger.push(LedgerEntry::SocketClosed(self.id));
    }
}

/// A simulated listener.
pub(crate) struct SimulatedListener {
    pub(crate) id: u64,
    pub(crate) ledger: Arc<Ledger>,
}

impl Drop for SimulatedListener {
    fn drop(&mut self) {
        self.ledger.push(LedgerEntry::ListenerClosed(self.id));
    }
}

/// An open simulated file.
pub(crate) struct SimulatedFile {
    /// Names this open file (a descriptor, not the inode).
    pub(crate) id: u64,
    pub(crate) ledger: Arc<Ledger>,
}

impl Drop for SimulatedFile {
    fn drop(&mut self) {
        self.ledger.push(LedgerEntry::FileClosed(self.id));
    }
}

/// Wakes one simulated executor.
#[derive(Clone)]
pub(crate) struct SimulatedNotifier {
    pub(crate) executor: u64,
    pub(crate) ledger: Arc<Ledger>,
}

impl SimulatedNotifier {
    pub(crate) fn notify(&self) {
        self.ledger.push(LedgerEntry::Notified(self.executor));
    }
}
