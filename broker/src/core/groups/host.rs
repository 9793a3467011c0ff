//! One partition of `__consumer_offsets` on the core that leads it: its machine, and what the machine wants done. Decides nothing about
//! groups; owns the order in which records are appended, replayed and told.
//!
//! Appends go into the log in the order of the machine's steps, several at once. When one is committed its records are replayed, in
//! that order too, and then the machine hears of it. A failed one may still be committed by a later one: its records wait for that.
//!
//! Offsets of a full disk: what is refused for want of space is answered with `COORDINATOR_NOT_AVAILABLE`, which clients try again.
//! The reserve is not for it: nothing of this topic frees space.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use ringlog_io::{Priority, Task};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{LeaderEpoch, TopicPartition};
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, BuildError, NewRecord};
use ringlog_shard::partition::{AppendError, IncomingBatch};
use ringlog_shard::store::ViewError;
use ringlog_shard::waiters::{CommitFailure, CommitGather, Watch};

use super::calls::deliver;
use super::{GroupAnswer, computations, load};
use crate::core::Core;
use crate::group::{
    Append, DeletedTopic, Event, GroupMachine, GroupReplayError, KeyedRecord, Reply, Step, Surroundings,
    Ticket, Usage,
};

/// Whether and how calls are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Service {
    /// The log is being read.
    Loading,
    /// Leading in this epoch.
    Serving(LeaderEpoch),
    /// Another replica leads, or the broker stops.
    Elsewhere,
    /// The log cannot be read, or holds what cannot be replayed.
    Broken,
}

/// See the module.
pub(super) struct Host {
    pub(super) key: TopicPartition,
    pub(super) machine: RefCell<GroupMachine>,
    service: Cell<Service>,
    /// As last counted into the core's.
    usage: Cell<Usage>,
    /// Appends that wait for room in the journal.
    backlog: RefCell<VecDeque<Append>>,
    /// Oldest first.
    in_flight: RefCell<VecDeque<InFlight>>,
    is_settling: Cell<bool>,
    /// Of appends that failed and will be committed if a later one is.
    maybe_committed: RefCell<Vec<KeyedRecord>>,
    /// Counts machines: what an earlier one waited for is nothing to this one, whose tickets begin anew.
    term: Cell<u64>,
    loading: RefCell<Option<Task<()>>>,
    /// Something happened since this was last asked: what is shown of it is to be counted anew.
    is_changed: Cell<bool>,
    /// Topics of offsets that the image did not hold when this was last looked for.
    pub(super) missing: RefCell<BTreeSet<DeletedTopic>>,
}

struct InFlight {
    term: u64,
    ticket: Ticket,
    records: Vec<KeyedRecord>,
    gather: CommitGather,
}

impl Host {
    pub(super) fn new(key: TopicPartition, machine: GroupMachine) -> Host {
        Host {
            key,
            machine: RefCell::new(machine),
            service: Cell::new(Service::Loading),
            usage: Cell::default(),
            backlog: RefCell::default(),
            in_flight: RefCell::default(),
            is_settling: Cell::new(false),
            maybe_committed: RefCell::default(),
            term: Cell::new(0),
            loading: RefCell::default(),
            is_changed: Cell::new(true),
            missing: RefCell::default(),
        }
    }

    pub(super) fn partition(&self) -> i32 {
        self.key.partition.0
    }

    pub(super) fn service(&self) -> Service {
        self.service.get()
    }

    /// Counts machines.
    pub(super) fn term(&self) -> u64 {
        self.term.get()
    }

    pub(super) fn set_service(&self, service: Service) {
        self.service.set(service);
        self.is_changed.set(true);
    }

    pub(super) fn is_serving(&self) -> bool {
        matches!(self.service.get(), Service::Serving(_))
    }

    pub(super) fn take_changed(&self) -> bool {
        self.is_changed.replace(false)
    }

    /// Nothing waits for the log.
    pub(super) fn is_quiet(&self) -> bool {
        !self.is_settling.get() && self.backlog.borrow().is_empty()
    }

    /// Begins to read the log, into a fresh machine.
    pub(super) fn begin_load(self: &Rc<Self>, core: &Rc<Core>) {
        self.start_anew(core);
        if load::is_empty(core, self.key) {
            load::serve(core, self);
            return;
        }
        let task = core.io.spawn(Priority::Background, load::run(Rc::clone(core), Rc::clone(self)));
        *self.loading.borrow_mut() = Some(task);
    }

    /// With a fresh machine that knows nothing yet.
    pub(super) fn start_anew(&self, core: &Core) {
        self.unload(core, Service::Loading);
    }

    /// Puts a machine that knows nothing in the place of the one that was: its appends and computations are nobody's from here on.
    fn unload(&self, core: &Core, service: Service) {
        *self.machine.borrow_mut() = core.groups().new_machine();
        self.term.set(self.term.get() + 1);
        self.maybe_committed.borrow_mut().clear();
        self.set_service(service);
        self.count_usage(core);
    }

    /// Follows who leads for as long as the partition is here, so that whoever waits is sent away when this core leads no more,
    /// and the log is read when it leads again, whether somebody asks or not.
    pub(super) async fn follow_leader(self: Rc<Self>, core: Rc<Core>) {
        while let Ok(watchers) = core.store.watchers(self.key) {
            let mut watch = Watch::new(u64::MAX);
            watch.on(&watchers);
            self.check_leader(&core);
            watch.await;
        }
    }

    /// Looks whether this core still leads, before anything is decided.
    pub(super) fn check_leader(self: &Rc<Self>, core: &Rc<Core>) {
        let view = match self.service.get() {
            // Who reads the log sees it.
            Service::Loading => return,
            Service::Serving(_) | Service::Elsewhere | Service::Broken => core.store.view(self.key),
        };
        match (self.service.get(), view) {
            // No epoch: a failed write. What is committed is served on.
            (Service::Serving(epoch), Ok(view))
                if view.leader_epoch == epoch || view.leader_epoch == LeaderEpoch(-1) => {}
            (Service::Elsewhere, Ok(_)) if !core.is_draining() => self.begin_load(core),
            (Service::Serving(_), Ok(_)) => {
                self.resign(core);
                self.begin_load(core);
            }
            // The log of the next time that it leads may be sound.
            (
                Service::Serving(_) | Service::Broken,
                Err(ViewError::NotLeader | ViewError::UnknownPartition),
            ) => self.resign(core),
            (_, _) => {}
        }
    }

    /// Ends service: whoever waits is sent to the next coordinator, and nothing of the groups is left here.
    pub(super) fn resign(self: &Rc<Self>, core: &Rc<Core>) {
        drop(self.loading.borrow_mut().take());
        self.end(core, Service::Elsewhere);
    }

    /// The log cannot be read, or holds what cannot be replayed.
    pub(super) fn break_off(self: &Rc<Self>, core: &Rc<Core>) {
        self.end(core, Service::Broken);
    }

    fn end(self: &Rc<Self>, core: &Rc<Core>, service: Service) {
        self.set_service(service);
        self.backlog.borrow_mut().clear();
        self.drive(core, Event::Resigned);
        self.unload(core, service);
    }

    /// Takes a committed record in.
    ///
    /// # Errors
    /// The machine does not know it.
    pub(super) fn replay(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), GroupReplayError> {
        self.machine.borrow_mut().replay(key, value)
    }

    /// Lets the machine decide, and does all that comes of it. True where there is more to expire.
    pub(super) fn drive(self: &Rc<Self>, core: &Rc<Core>, event: Event) -> bool {
        let mut events = VecDeque::from([event]);
        let mut unfinished = false;
        while let Some(event) = events.pop_front() {
            let expires = matches!(event, Event::Expire);
            let around =
                Surroundings { now_ms: core.io.wall_now_ms(), elsewhere: self.usage_elsewhere(core) };
            let Step { appends, answers, timers, computations, rebalances, settled, unfinished: more } =
                self.machine.borrow_mut().handle(event, around);
            unfinished |= more;
            self.is_changed.set(true);
            self.count_usage(core);
            for append in appends {
                if expires {
                    core.groups().counts.add_expired(append.records.len());
                }
                events.extend(self.append(core, append));
            }
            for answer in answers {
                if let Reply::CommitOffsets(reply) = &answer.reply {
                    core.groups().counts.add_committed(reply);
                }
                deliver(core, answer.token, GroupAnswer::Reply(answer.reply));
            }
            for (group, rebalance) in rebalances {
                core.groups().tell_rebalance(group, rebalance);
            }
            for (group, settled) in settled {
                core.groups().timelines.borrow_mut().settle(group, settled);
            }
            let now = core.io.monotonic_now();
            for change in timers {
                core.groups().timers.change(now, self.partition(), change);
            }
            for computation in computations {
                computations::carry_out(core, self, computation);
            }
        }
        unfinished
    }

    fn usage_elsewhere(&self, core: &Core) -> Usage {
        let (all, own) = (core.groups().usage.get(), self.usage.get());
        Usage { groups: all.groups - own.groups, bytes: all.bytes - own.bytes }
    }

    pub(super) fn count_usage(&self, core: &Core) {
        let now = self.machine.borrow().usage();
        let rest = self.usage_elsewhere(core);
        self.usage.set(now);
        let all = Usage { groups: rest.groups + now.groups, bytes: rest.bytes + now.bytes };
        core.groups().usage.set(all);
    }

    /// Puts the records into the log, behind those of earlier steps. What the machine must hear of it at once.
    fn append(self: &Rc<Self>, core: &Rc<Core>, append: Append) -> Option<Event> {
        let mut backlog = self.backlog.borrow_mut();
        if backlog.is_empty() && core.store.has_room() {
            drop(backlog);
            return self.append_now(core, append);
        }
        let first = backlog.is_empty();
        backlog.push_back(append);
        drop(backlog);
        if first {
            let (core, host) = (Rc::clone(core), Rc::clone(self));
            core.io.clone().spawn(Priority::Foreground, host.drain_backlog(core)).detach();
        }
        None
    }

    async fn drain_backlog(self: Rc<Self>, core: Rc<Core>) {
        loop {
            core.store.room().await;
            // It stays in the queue until it is in the log: what comes meanwhile goes behind it. Nothing waits in between.
            let Some(append) = self.backlog.borrow().front().cloned() else { return };
            let failed = self.append_now(&core, append);
            self.backlog.borrow_mut().pop_front();
            if let Some(failed) = failed {
                self.drive(&core, failed);
            }
            if self.backlog.borrow().is_empty() {
                return;
            }
        }
    }

    fn append_now(self: &Rc<Self>, core: &Rc<Core>, append: Append) -> Option<Event> {
        let Append { ticket, records } = append;
        let batch = match batch_of(&records, core.io.wall_now_ms()) {
            Ok(batch) => batch,
            Err(error) => return Some(self.refused(ticket, &error, ErrorCode::UnknownServerError)),
        };
        let gather = CommitGather::new();
        match core.store.append(self.key, batch, Some(gather.ticket(0))) {
            Ok(_) => {
                let term = self.term.get();
                self.in_flight.borrow_mut().push_back(InFlight { term, ticket, records, gather });
                if !self.is_settling.replace(true) {
                    let settled = Rc::clone(self).settle(Rc::clone(core));
                    core.io.spawn(Priority::Foreground, settled).detach();
                }
                None
            }
            Err(error) => {
                let code = match error {
                    AppendError::NotLeader | AppendError::UnknownPartition => ErrorCode::NotCoordinator,
                    _ => ErrorCode::CoordinatorNotAvailable,
                };
                Some(self.refused(ticket, &error, code))
            }
        }
    }

    fn refused(&self, ticket: Ticket, error: &dyn std::fmt::Display, code: ErrorCode) -> Event {
        tracing::warn!(partition = self.partition(), %error, "the log of groups takes no records");
        Event::Failed(ticket, code)
    }

    /// Waits for the appends in their order, for as long as there are any.
    async fn settle(self: Rc<Self>, core: Rc<Core>) {
        loop {
            let next = self.in_flight.borrow_mut().pop_front();
            let Some(InFlight { term, ticket, records, gather }) = next else { break };
            let failure = gather.finish().await.first().map(|(_, failure)| *failure);
            match failure {
                // What is committed, a later machine reads in the log.
                _ if term != self.term.get() => {}
                None => self.append_committed(&core, ticket, records),
                Some(failure) => self.append_failed(&core, ticket, records, failure),
            }
        }
        self.is_settling.set(false);
    }

    fn append_committed(self: &Rc<Self>, core: &Rc<Core>, ticket: Ticket, records: Vec<KeyedRecord>) {
        let earlier = self.maybe_committed.take();
        for KeyedRecord { key, value } in earlier.into_iter().chain(records) {
            if let Err(error) = self.replay(&key, value.as_deref()) {
                tracing::error!(partition = self.partition(), %error, "a machine of groups cannot go on");
                self.break_off(core);
                return;
            }
        }
        self.drive(core, Event::Committed(ticket));
    }

    fn append_failed(
        self: &Rc<Self>,
        core: &Rc<Core>,
        ticket: Ticket,
        records: Vec<KeyedRecord>,
        failure: CommitFailure,
    ) {
        let (code, is_over) = match failure {
            CommitFailure::NotLeader | CommitFailure::Gone => (ErrorCode::NotCoordinator, true),
            CommitFailure::Poisoned => (ErrorCode::CoordinatorNotAvailable, false),
            CommitFailure::NotEnoughReplicas { .. } => {
                self.maybe_committed.borrow_mut().extend(records);
                (ErrorCode::CoordinatorNotAvailable, false)
            }
        };
        tracing::warn!(
            partition = self.partition(),
            ?failure,
            "records of groups are not known to be committed"
        );
        self.drive(core, Event::Failed(ticket, code));
        if is_over && self.is_serving() {
            self.resign(core);
        }
    }
}

/// One batch of these records, uncompressed.
fn batch_of(records: &[KeyedRecord], now_ms: i64) -> Result<IncomingBatch, BuildError> {
    let mut builder = BatchBuilder::new();
    for KeyedRecord { key, value } in records {
        let value = value.as_deref();
        builder.append(&NewRecord { timestamp: now_ms, key: Some(key), value, headers: &[] })?;
    }
    let batch = builder.finish(&BatchOptions::default())?;
    let header = BatchHeader::parse(&batch).expect("the builder makes whole batches");
    let buffer_bytes = u32::try_from(batch.len()).unwrap_or(u32::MAX);
    Ok(IncomingBatch { header, bytes: BytesMut::from(Bytes::from(batch)), buffer_bytes })
}
