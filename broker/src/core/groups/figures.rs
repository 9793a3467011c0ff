//! What the groups of a core come to, for its metrics. A machine's groups are counted again only where something happened since.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ringlog_protocol::error_code::ErrorCode;

use super::Groups;
use crate::group::lag::LagReport;
use crate::group::{Cause, Census, CommitReply, GroupId, Rebalance};
use crate::observe::snapshot::GroupFigures;
use crate::observe::timelines::Timelines;
use crate::process::escape::escaped;

/// What happened since the core's start, and the counts of machines to which nothing happened.
#[derive(Default)]
pub(super) struct Counts {
    committed: Cell<u64>,
    expired: Cell<u64>,
    loads: Cell<u64>,
    failed_loads: Cell<u64>,
    load_ns: Cell<u64>,
    rebalances: Cell<[u64; Cause::ALL.len()]>,
    rebalance_ns: Cell<u64>,
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

    fn add_rebalance(&self, rebalance: &Rebalance) {
        if let Some(cause) = rebalance.cause() {
            let mut counts = self.rebalances.get();
            counts[cause as usize] += 1;
            self.rebalances.set(counts);
        }
        let took_ms = u64::try_from(rebalance.ended_ms.saturating_sub(rebalance.began_ms)).unwrap_or(0);
        self.rebalance_ns.set(self.rebalance_ns.get().saturating_add(took_ms.saturating_mul(1_000_000)));
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
            rebalances: counts.rebalances.get(),
            rebalance_ns: counts.rebalance_ns.get(),
        }
    }

    /// What the last look at lags came to; `None` before the first.
    pub(crate) fn lags(&self) -> Option<Arc<LagReport>> {
        self.lags.borrow().clone()
    }

    /// Counts, logs and remembers a rebalance that ended.
    pub(super) fn tell_rebalance(&self, group: GroupId, rebalance: Rebalance) {
        self.counts.add_rebalance(&rebalance);
        log(&group, &rebalance);
        self.timelines.borrow_mut().add(group, rebalance);
    }

    /// The last rebalances, for those who read them.
    pub(crate) fn timelines(&self) -> Timelines {
        let mut timelines = self.timelines.borrow_mut();
        timelines.flush();
        timelines.shared()
    }
}

/// One line: who made it and why, and what moved.
fn log(group: &str, rebalance: &Rebalance) {
    let first = rebalance.triggers.first();
    let text = |text: &str| escaped(text).to_string();
    let moves = rebalance.moves.as_ref();
    tracing::info!(
        group = text(group),
        generation = rebalance.generation,
        members = rebalance.members,
        milliseconds = rebalance.ended_ms.saturating_sub(rebalance.began_ms),
        cause = first.map_or("", |first| first.cause.name()),
        member = first.map(|first| text(&first.member)),
        client = first.map(|first| text(&first.client_id)),
        reason = first.and_then(|first| first.reason.as_deref()).map(text),
        others = (rebalance.triggers.len() + rebalance.triggers_left_out).saturating_sub(1),
        kept = moves.map(|moves| moves.kept),
        moved = moves.map(|moves| moves.moved),
        taken = moves.map(|moves| moves.taken),
        released = moves.map(|moves| moves.released),
        "group rebalanced"
    );
}
