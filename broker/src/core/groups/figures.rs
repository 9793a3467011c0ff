//! What the groups of a core come to, for its metrics. A machine's groups are counted again only where something happened since.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use ringlog_protocol::error_code::ErrorCode;

use super::Groups;
use crate::group::{Census, CommitReply};
use crate::observe::snapshot::GroupFigures;

/// What happened since the core's start, and the counts of machines to which nothing happened.
#[derive(Default)]
pub(super) struct Counts {
    committed: Cell<u64>,
    expired: Cell<u64>,
    loads: Cell<u64>,
    failed_loads: Cell<u64>,
    load_ns: Cell<u64>,
    /// By partition.
    censuses: RefCell<BTreeMap<i32, Census>>,
}

fn add(cell: &Cell<u64>, more: usize) {
    cell.set(cell.get() + more as u64);
}

impl Counts {
    pub(super) fn add_committed(&self, reply: &CommitReply) {
        let partitions = reply.topics.iter().flat_map(|topic| &topic.partitions);
        add(&self.committed, partitions.filter(|(_, error)| *error == ErrorCode::None).count());
    }

    pub(super) fn add_expired(&self, records: usize) {
        add(&self.expired, records);
    }

    pub(super) fn add_load(&self, elapsed: Duration) {
        add(&self.loads, 1);
        let more = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.load_ns.set(self.load_ns.get().saturating_add(more));
    }

    pub(super) fn add_failed_load(&self) {
        add(&self.failed_loads, 1);
    }
}

impl Groups {
    /// What is shown now.
    pub(crate) fn figures(&self) -> GroupFigures {
        let counts = &self.counts;
        let hosts = self.hosts.borrow();
        let mut censuses = counts.censuses.borrow_mut();
        censuses.retain(|partition, _| hosts.contains_key(partition));
        for (partition, host) in &*hosts {
            if host.take_changed() {
                censuses.insert(*partition, host.machine.borrow().census());
            }
        }
        let Census { empty, preparing, completing, assigning, reconciling, stable, dead, members } =
            censuses.values().fold(Census::default(), |sum, census| sum + *census);
        GroupFigures {
            empty,
            preparing,
            completing,
            assigning,
            reconciling,
            stable,
            dead,
            members,
            bytes: self.usage.get().bytes as u64,
            calls_waiting: (self.home_calls.count() + self.owed.count()) as u64,
            offsets_committed: counts.committed.get(),
            records_expired: counts.expired.get(),
            loads: counts.loads.get(),
            loads_failed: counts.failed_loads.get(),
            load_ns: counts.load_ns.get(),
        }
    }
}
