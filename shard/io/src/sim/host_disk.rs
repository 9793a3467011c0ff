//! The disk of a host as a test sees it: its faults, its size, its bad moments. Decides nothing.

use std::rc::Rc;
use std::time::Duration;

use super::Inner;
use super::faults::{FaultKind, Place};
use super::state::HostState;
use crate::random::Random;

/// Operations that made something last, by what they were asked for. Counted whether they went well or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Syncs {
    /// Of one file: fsync and fdatasync.
    pub files: u64,
    /// Of the names in one directory.
    pub directories: u64,
    /// Of a file system: syncfs.
    pub file_systems: u64,
    /// Writes that end only once they are durable.
    pub writes: u64,
}

impl Syncs {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.files + self.directories + self.file_systems + self.writes
    }
}

/// The disk of a [`super::Host`]. Faults are drawn from the world's seed and stay until [`HostDisk::heal`], over power cuts
/// too. A disk without them costs nothing.
#[derive(Clone)]
pub struct HostDisk {
    pub(super) inner: Rc<Inner>,
    pub(super) index: usize,
}

impl HostDisk {
    fn host<T>(&self, act: impl FnOnce(&mut HostState) -> T) -> T {
        act(&mut self.inner.state.borrow_mut().hosts[self.index])
    }

    fn add(&self, kind: FaultKind, place: Place) {
        let mut state = self.inner.state.borrow_mut();
        let random = Random::from_seed(state.random.next_u64());
        state.hosts[self.index].disk.add_fault(kind, place, random);
    }

    /// Files there cannot be opened: EMFILE. Those that are open stay so, and locks and directories are not meant.
    pub fn fail_opens(&self, place: Place) {
        self.add(FaultKind::OpenError, place);
    }

    /// Reads there end with EIO.
    pub fn fail_reads(&self, place: Place) {
        self.add(FaultKind::ReadError, place);
    }

    /// Writes there end with EIO; some of their first bytes may have got there.
    pub fn fail_writes(&self, place: Place) {
        self.add(FaultKind::WriteError, place);
    }

    /// Writes there are told to be done, synced ones too, read back as written, and are gone after a power cut.
    pub fn lose_writes(&self, place: Place) {
        self.add(FaultKind::LostWrite, place);
    }

    /// Writes there are told to be done and never happen: reads answer what was there before.
    pub fn keep_stale(&self, place: Place) {
        self.add(FaultKind::StaleRead, place);
    }

    /// Writes there are told to be done, and their bytes are found at another sector of the same file, or of one that
    /// [`Place::onto`] names. Where there is no other sector the write goes where it should.
    pub fn misdirect_writes(&self, place: Place) {
        self.add(FaultKind::MisdirectedWrite, place);
    }

    /// Lets one of so many syncs of a file fail from now on, 0 = none: an error once, after which the file passes for clean,
    /// reads back as written, and has lost what was unsynced after the next crash. Synchronous writes do not fail.
    pub fn fail_syncs(&self, one_of: u64) {
        self.host(|host| host.disk.set_failing_syncs(one_of));
    }

    /// Gives the disk another size, in bytes. What is on it stays, also when it is more. Writes that make a file longer, new
    /// names and allocations that do not fit end with ENOSPC; a write puts down first what does fit.
    pub fn set_capacity_bytes(&self, bytes: u64) {
        self.host(|host| host.disk.set_capacity(bytes));
    }

    /// Bytes of the disk that files take.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.host(|host| {
            let space = host.disk.space();
            space.total_bytes - space.free_bytes
        })
    }

    /// Operations of the disk that begin within `duration` from now take effect after it.
    pub fn stall(&self, duration: Duration) {
        let mut state = self.inner.state.borrow_mut();
        let end = state.now.saturating_add(nanoseconds(duration));
        let host = &mut state.hosts[self.index];
        host.stalled_until = host.stalled_until.max(end);
    }

    /// One of so many operations takes `duration` longer from now on; 0 = none does.
    pub fn slow_down(&self, one_of: u64, duration: Duration) {
        self.host(|host| host.slow = (one_of, nanoseconds(duration)));
    }

    /// No operation that begins from now on goes wrong or takes long. The size of the disk stays.
    pub fn heal(&self) {
        self.host(|host| {
            host.disk.heal();
            (host.stalled_until, host.slow) = (0, (0, 0));
        });
    }

    /// Operations so far that changed what the disk holds, or made it last: writes, syncs, names, lengths. Between two of
    /// them every power cut is the same, but for what tasks were told.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.host(|host| host.disk_changes)
    }

    /// Operations so far that made something last.
    #[must_use]
    pub fn syncs(&self) -> Syncs {
        self.host(|host| host.disk_syncs)
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
