//! What egress remembers of one connection: whether its peer is slow, and since when it takes nothing. Sends nothing.

use std::cell::Cell;

use ringlog_io::Monotonic;

/// One connection's end of the way out. Lives on the connection's core.
#[derive(Debug, Default)]
pub struct Outlet {
    is_slow: Cell<bool>,
    blocked_since: Cell<Option<Monotonic>>,
}

impl Outlet {
    /// Since when the peer has taken nothing of what is being sent; `None` when nothing is, or it takes it.
    pub fn blocked_since(&self) -> Option<Monotonic> {
        self.blocked_since.get()
    }

    /// Whether its last reply did not leave in time: then the next one comes from segment files.
    pub(super) fn is_slow(&self) -> bool {
        self.is_slow.get()
    }

    pub(super) fn set_slow(&self) {
        self.is_slow.set(true);
    }

    /// The socket takes no more for now.
    pub(super) fn blocked(&self, now: Monotonic) {
        if self.blocked_since.get().is_none() {
            self.blocked_since.set(Some(now));
        }
    }

    pub(super) fn progressed(&self) {
        self.blocked_since.set(None);
    }

    /// A reply with records has left.
    pub(super) fn finished(&self, in_time: bool) {
        self.progressed();
        self.is_slow.set(!in_time);
    }
}
