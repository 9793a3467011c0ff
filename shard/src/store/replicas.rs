//! The store and other nodes: what arrives, what leaves, what takes time in between. Encodes nothing and knows no socket.

use std::rc::Rc;

use bytes::Bytes;
use ringlog_io::{Monotonic, Priority};
use ringlog_protocol::ids::{LeaderEpoch, NodeId, Offset, TopicPartition};
use ringlog_raft::configuration::{Change, Configuration};
use ringlog_raft::effect::Effect;
use ringlog_raft::event::Event;
use ringlog_raft::ids::{Moment, ReplicaId, Ticket, Token};

use super::{Inner, Opening, Store, ViewError};
use crate::partition::{Carrier, Partition};
use crate::replica::{
    EpochEnd, Handover, Outgoing, PeerMessage, ReplicaStatus, Replication, ReplicationStats, Reply,
    RequestError, Todo, Work, copy_log, piece_bytes, run_writes,
};
use crate::storage::LogId;

impl Store {
    /// Takes what is for other nodes. Called outside of every append and report, so it may call the store; it must not wait.
    pub fn set_outbox(&self, outbox: impl Fn(Outgoing) + 'static) {
        *self.inner.outbox.borrow_mut() = Some(Rc::new(outbox));
    }

    /// Opens partitions that may have other replicas, and returns once each takes part, or is marked offline with its reason. Who
    /// leads shows later.
    pub async fn open_replicated(&self, openings: Vec<(Opening, Replication)>) {
        self.inner.expect(openings.len());
        let openings = openings.into_iter().map(|(opening, replication)| (opening, Some(replication)));
        let opened = Inner::open_all(&self.inner, openings.collect()).await;
        self.inner.start(&opened);
    }

    /// A message of another replica arrived, and the records that travelled beside it as one run of batches. Whatever it holds, it is
    /// looked at before it is obeyed.
    pub fn receive(&self, key: TopicPartition, message: impl Into<PeerMessage>, records: Bytes) {
        let message = message.into();
        let take = |partition: &mut Partition, effects: &mut Vec<Effect>, carrier: &mut Carrier<'_>| {
            partition.receive(message, records, effects, carrier);
        };
        if self.inner.with_partition(key, take).is_err() {
            self.inner.todo.borrow_mut().stats.strangers += 1;
        }
    }

    /// Time passed: to be called at least every third of a heartbeat interval. Groups of one cost nothing.
    pub fn tick(&self, now: Monotonic) {
        let inner = &self.inner;
        let mut hard_states = Vec::new();
        let now_ms = inner.io.wall_now_ms();
        {
            let table = &mut *inner.table.borrow_mut();
            if table.replicated.is_empty() {
                return;
            }
            let mut effects = inner.effects.borrow_mut();
            let mut todo = inner.todo.borrow_mut();
            let mut carrier =
                Carrier { storage: &inner.storage, hard_states: &mut hard_states, todo: &mut todo, now_ms };
            for slot in &table.replicated {
                table.slots[*slot].tick(Moment(now.0), &mut effects, &mut carrier);
            }
        }
        inner.settle(hard_states);
    }

    /// Who leads the partition, as far as this replica knows.
    pub fn leader_of(&self, key: TopicPartition) -> Option<NodeId> {
        Some(self.inner.table.borrow().get(key).ok()?.group.leader()?.node)
    }

    /// Everything else that a replica knows of its partition.
    ///
    /// # Errors
    /// [`ViewError`]: it is not open here.
    pub fn replica_status(&self, key: TopicPartition) -> Result<ReplicaStatus, ViewError> {
        Ok(self.inner.table.borrow().get(key)?.status())
    }

    /// The largest leader epoch that is not above `epoch`, and where it ends (OffsetForLeaderEpoch, KIP-101); `None` where there is
    /// none.
    ///
    /// # Errors
    /// [`ViewError`]: it is not open here.
    pub fn end_of_epoch(
        &self,
        key: TopicPartition,
        epoch: LeaderEpoch,
    ) -> Result<Option<EpochEnd>, ViewError> {
        let table = self.inner.table.borrow();
        let partition = table.get(key)?;
        if partition.replica.is_some() {
            return Ok(partition.group.end_of_epoch(epoch));
        }
        let found = self.inner.storage.log(partition.log).epoch_end_offset(epoch);
        Ok(found.map(|found| (found.epoch, found.end_offset)))
    }

    /// What the replicas of this core did since its start.
    pub fn replication_stats(&self) -> ReplicationStats {
        self.inner.todo.borrow().stats
    }

    /// Lets the partition's group work by other settings from now on. A group of one has none.
    ///
    /// # Errors
    /// [`ViewError`]: it is not open here.
    pub fn set_replication_settings(
        &self,
        key: TopicPartition,
        settings: std::sync::Arc<ringlog_raft::Settings>,
    ) -> Result<(), ViewError> {
        self.inner.with_partition(key, |partition, _, _| partition.configure(settings))
    }

    /// Changes the membership by one step, and returns once a majority holds the new one.
    ///
    /// # Errors
    /// [`RequestError`]; after [`RequestError::Unknown`] the change may be in force or come to be.
    pub async fn change_configuration(
        &self,
        key: TopicPartition,
        change: Change,
    ) -> Result<Configuration, RequestError> {
        let event = |token| Event::ChangeConfiguration { change, token };
        match self.request(key, false, event).await {
            Reply::Changed(configuration) => Ok((*configuration).clone()),
            Reply::Failed(error) => Err(error),
            Reply::Barrier(_) | Reply::Handover(_) => Err(RequestError::Unknown),
        }
    }

    /// Hands leadership over, to the most complete other voter where none is named. Returns once this replica leads no more.
    ///
    /// # Errors
    /// [`RequestError`]: it leads on.
    pub async fn transfer_leadership(
        &self,
        key: TopicPartition,
        to: Option<ReplicaId>,
    ) -> Result<Handover, RequestError> {
        match self.request(key, true, |token| Event::TransferLeadership { to, token }).await {
            Reply::Handover(handover) => Ok(handover),
            Reply::Failed(error) => Err(error),
            Reply::Barrier(_) | Reply::Changed(_) => Err(RequestError::Unknown),
        }
    }

    /// Returns once this replica is known to have led after the call: everything acknowledged before it lies below the offset
    /// returned.
    ///
    /// # Errors
    /// [`RequestError`]: it does not lead, or not surely.
    pub async fn read_barrier(&self, key: TopicPartition) -> Result<Offset, RequestError> {
        match self.request(key, false, |token| Event::ReadBarrier { token }).await {
            Reply::Barrier(high_watermark) => Ok(high_watermark),
            Reply::Failed(error) => Err(error),
            Reply::Handover(_) | Reply::Changed(_) => Err(RequestError::Unknown),
        }
    }

    async fn request(
        &self,
        key: TopicPartition,
        is_handover: bool,
        event: impl FnOnce(Token) -> Event,
    ) -> Reply {
        let log = match self.inner.table.borrow().get(key) {
            Ok(partition) => partition.log,
            Err(error) => return Reply::Failed(error.into()),
        };
        let (token, waiting) = self.inner.requests.begin(log, is_handover);
        let asked = self.inner.with_partition(key, |partition, effects, carrier| {
            partition.group.step(event(token), effects);
            partition.carry_out(effects, carrier);
        });
        match asked {
            Ok(()) => waiting.reply().await,
            Err(error) => Reply::Failed(error.into()),
        }
    }
}

impl Inner {
    /// Lets one partition act, and does what it wants done.
    ///
    /// # Errors
    /// [`ViewError`]: it is not open here.
    pub(crate) fn with_partition<T>(
        &self,
        key: TopicPartition,
        act: impl FnOnce(&mut Partition, &mut Vec<Effect>, &mut Carrier<'_>) -> T,
    ) -> Result<T, ViewError> {
        let slot = {
            let table = self.table.borrow();
            let _present = table.get(key)?;
            table.by_key.get(&key).copied()
        };
        let acted = slot.and_then(|slot| self.with_slot(slot, act));
        acted.ok_or(ViewError::UnknownPartition)
    }

    /// The same by log: a name that is never used twice, for what comes back later. `None` where the partition is gone.
    pub(crate) fn with_log_partition<T>(
        &self,
        log: LogId,
        act: impl FnOnce(&mut Partition, &mut Vec<Effect>, &mut Carrier<'_>) -> T,
    ) -> Option<T> {
        let slot = self.table.borrow().by_log.get(&log).copied()?;
        self.with_slot(slot, act)
    }

    fn with_slot<T>(
        &self,
        slot: usize,
        act: impl FnOnce(&mut Partition, &mut Vec<Effect>, &mut Carrier<'_>) -> T,
    ) -> Option<T> {
        let mut hard_states = Vec::new();
        let now_ms = self.io.wall_now_ms();
        let acted = {
            let mut table = self.table.borrow_mut();
            let mut effects = self.effects.borrow_mut();
            let mut todo = self.todo.borrow_mut();
            let mut carrier =
                Carrier { storage: &self.storage, hard_states: &mut hard_states, todo: &mut todo, now_ms };
            act(table.slots.get_mut(slot)?, &mut effects, &mut carrier)
        };
        self.settle(hard_states);
        Some(acted)
    }

    /// Does what partitions wanted done: hard states go to the journal first, as one batch of frames, then messages to others.
    pub(super) fn settle(&self, hard_states: Vec<(LogId, Ticket, Bytes)>) {
        self.persist_hard_states(hard_states);
        let Todo { outgoing, work, answers, .. } = {
            let mut todo = self.todo.borrow_mut();
            if todo.is_empty() {
                return;
            }
            let stats = todo.stats;
            std::mem::replace(&mut *todo, Todo { stats, ..Todo::default() })
        };
        let outbox = self.outbox.borrow().clone();
        if let Some(outbox) = outbox {
            outgoing.into_iter().for_each(|outgoing| outbox(outgoing));
        }
        work.into_iter().for_each(|work| self.begin(work));
        answers.into_iter().for_each(|answer| self.requests.answer(answer));
    }

    /// Begins a task for what takes time.
    fn begin(&self, work: Work) {
        let (inner, io) = (self.this.clone(), self.io.clone());
        match work {
            Work::Write { log } => {
                self.io.spawn(Priority::Foreground, run_writes(inner, io, log)).detach();
            }
            Work::Copy { log, from, offer } => {
                self.io.spawn(Priority::Foreground, copy_log(inner, io, log, from, offer)).detach();
            }
            Work::Read { log, replicate, plan } => {
                let read = async move {
                    let records = match plan.run(&io).await {
                        Ok(read) => piece_bytes(&io, read).await,
                        Err(_) => None,
                    };
                    if let Some(store) = inner.upgrade() {
                        let _gone = store.with_log_partition(log, |partition, effects, carrier| {
                            partition.read_done(replicate, records, effects, carrier);
                        });
                    }
                };
                self.io.spawn(Priority::Foreground, read).detach();
            }
            Work::Serve { log, request, plan } => {
                let serve = async move {
                    let records = match plan.run(&io).await {
                        Ok(read) => piece_bytes(&io, read).await,
                        Err(_) => None,
                    };
                    if let Some(store) = inner.upgrade() {
                        let _gone = store.with_log_partition(log, |partition, _, carrier| {
                            partition.copy_read(request, records, carrier);
                        });
                    }
                };
                self.io.spawn(Priority::Background, serve).detach();
            }
        }
    }
}
