//! A whole log copied from another replica, for one that is too far behind to be fed by appends.
//!
//! Owns the order: pieces are asked for one at a time and checked; the first one is here before the old log goes; the log begins anew
//! at the start of the log that is copied, also where that lies within a batch; what was copied is durable before the group hears of
//! it. Once the old log is gone the copy does not fail any more: it asks on, whoever leads by then, since all members hold the same
//! committed records. A crash in between leaves the beginning of a copy, which is as good as an older copy: it ends no lower than
//! where the log starts that was offered.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::Duration;

use bytes::Bytes;
use ringlog_io::Io;
use ringlog_protocol::ids::Offset;
use ringlog_protocol::records::batch::BatchHeader;
use ringlog_raft::effect::Effect;
use ringlog_raft::event::Event;
use ringlog_raft::ids::ReplicaId;
use ringlog_raft::message::{EpochStart, SnapshotOffer};

use super::verify::{VerifiedBatch, note_epochs, verify_run};
use super::{CopyAnswer, CopyOutcome, CopyRequest, Outgoing, PeerMessage, Work};
use crate::journal::Signal;
use crate::limits::{
    REPLICA_COPY_ANSWER_MS, REPLICA_COPY_PIECE_BYTES_MAX, REPLICA_COPY_TRIES, REPLICA_WRITE_RETRY_MS,
};
use crate::partition::{Carrier, Partition};
use crate::producer_state::ProducerStates;
use crate::storage::{CoreStorage, LogId, StorageError, TruncateError};
use crate::store::Inner;

/// What the task that copies shares with the partition: the answer it waits for, and what became durable.
#[derive(Default)]
pub(crate) struct Copying {
    /// Of the question whose answer is awaited.
    number: Cell<u64>,
    answer: RefCell<Option<(CopyOutcome, Bytes)>>,
    durable_sequence: Cell<u64>,
    is_over: Cell<bool>,
    changed: Signal,
}

impl Copying {
    pub(crate) fn note_durable(&self, sequence: u64) {
        self.durable_sequence.set(self.durable_sequence.get().max(sequence));
        self.changed.notify();
    }

    /// The partition goes away or takes no more writes.
    pub(crate) fn end(&self) {
        self.is_over.set(true);
        self.changed.notify();
    }
}

/// Base and end of whole batches.
pub(super) fn bounds(records: &[Bytes]) -> Option<(Offset, Offset)> {
    let (mut base, mut end) = (None, None);
    for run in records {
        let mut position = 0;
        while position < run.len() {
            let header = BatchHeader::parse(run.get(position..)?).ok()?;
            base.get_or_insert(header.base_offset);
            end = Some(header.next_offset());
            position += header.total_bytes();
        }
    }
    Some((base?, end?))
}

impl Partition {
    pub(super) fn begin_copy(&mut self, from: ReplicaId, offer: SnapshotOffer, carrier: &mut Carrier<'_>) {
        ringlog_io::reached!("replica.copy_begun");
        let log = self.log;
        let Some(replica) = self.replica_mut() else { return };
        replica.copying = Some(Rc::new(Copying::default()));
        carrier.todo.work.push(Work::Copy { log, from, offer });
    }

    /// A piece arrived.
    pub(super) fn take_copied(&mut self, answer: CopyAnswer, records: Bytes, carrier: &mut Carrier<'_>) {
        let me = self.group.me();
        let copying = self.replica().and_then(|replica| replica.copying.as_ref());
        match copying.filter(|copying| copying.number.get() == answer.number && answer.to == me) {
            Some(copying) => {
                *copying.answer.borrow_mut() = Some((answer.outcome, records));
                copying.changed.notify();
            }
            None => carrier.todo.stats.late_answers += 1,
        }
    }

    fn copy_over(
        &mut self,
        result: Result<Copied, ReplicaId>,
        effects: &mut Vec<Effect>,
        carrier: &mut Carrier<'_>,
    ) {
        if let Some(replica) = self.replica_mut() {
            replica.copying = None;
        }
        let event = match result {
            Ok(Copied { offer, epochs, producers }) => {
                ringlog_io::reached!("replica.copy_installed");
                self.producers = producers;
                carrier.todo.stats.copies += 1;
                Event::SnapshotInstalled { offer, epochs }
            }
            Err(from) => Event::SnapshotFailed { from },
        };
        self.group.step(event, effects);
        self.carry_out(effects, carrier);
    }
}

/// What was copied.
struct Copied {
    offer: SnapshotOffer,
    epochs: Vec<EpochStart>,
    producers: ProducerStates,
}

/// Why a copy ended early.
enum Ended {
    /// The old log is as it was.
    Failed,
    /// The log is gone, or takes no more writes: nobody waits for the copy.
    Over,
}

impl From<StorageError> for Ended {
    fn from(_: StorageError) -> Ended {
        Ended::Over
    }
}

/// Copies another replica's log and tells the group.
pub(crate) async fn copy_log(inner: Weak<Inner>, io: Io, log: LogId, from: ReplicaId, offer: SnapshotOffer) {
    let Some(store) = inner.upgrade() else { return };
    let shared = store.with_log_partition(log, |partition, _, _| {
        let me = partition.group.me();
        partition.replica().and_then(|replica| replica.copying.clone()).map(|copying| (me, copying))
    });
    let Some(Some((me, copying))) = shared else { return };
    let (storage, expiration_ms) = (store.storage.clone(), store.producer_expiration_ms);
    drop(store);
    let producers = ProducerStates::new(expiration_ms);
    let (position, start) = (offer.log_start, offer.log_start);
    let mut copier = Copier {
        inner: inner.clone(),
        io,
        storage,
        log,
        me,
        from,
        copying,
        offer,
        position,
        start,
        has_begun: false,
        is_old_gone: false,
        sequence: 0,
        tries: 0,
        epochs: Vec::new(),
        producers,
    };
    let result = match copier.run().await {
        Ok(()) => {
            let Copier { offer, start, epochs, producers, .. } = copier;
            Ok(Copied { offer: SnapshotOffer { log_start: start, ..offer }, epochs, producers })
        }
        Err(Ended::Failed) => Err(from),
        Err(Ended::Over) => return,
    };
    let Some(store) = inner.upgrade() else { return };
    let tell = |partition: &mut Partition, effects: &mut Vec<Effect>, carrier: &mut Carrier<'_>| {
        partition.copy_over(result, effects, carrier);
    };
    // The partition may be gone by now.
    let _told = store.with_log_partition(log, tell);
}

struct Copier {
    inner: Weak<Inner>,
    io: Io,
    storage: CoreStorage,
    log: LogId,
    me: ReplicaId,
    /// Who is asked.
    from: ReplicaId,
    copying: Rc<Copying>,
    offer: SnapshotOffer,
    /// The next offset to be copied.
    position: Offset,
    /// The first one that is to be seen.
    start: Offset,
    has_begun: bool,
    is_old_gone: bool,
    /// Of the newest journal entry of the copy.
    sequence: u64,
    tries: u32,
    epochs: Vec<EpochStart>,
    producers: ProducerStates,
}

impl Copier {
    async fn run(&mut self) -> Result<(), Ended> {
        while !self.has_begun || self.position < self.offer.log_end {
            match self.ask().await? {
                Some((CopyOutcome::Records { base, next }, records)) => {
                    if self.take(base, next, &records).await? {
                        self.tries = 0;
                    } else {
                        self.try_again().await?;
                    }
                }
                Some((CopyOutcome::Moved { log_start }, _)) if log_start > self.position => {
                    ringlog_io::reached!("replica.copy_moved");
                    self.start = log_start.min(self.offer.log_end);
                    self.position = self.start;
                    self.has_begun = false;
                    if log_start > self.offer.log_end {
                        // All that was offered is gone. The next offer is of what is left.
                        self.begin().await?;
                    }
                }
                Some((CopyOutcome::Moved { .. } | CopyOutcome::Refused, _)) | None => {
                    self.try_again().await?
                }
            }
        }
        let (copying, sequence) = (Rc::clone(&self.copying), self.sequence);
        let is_durable = || (copying.durable_sequence.get() >= sequence).then_some(true);
        let ended = || copying.is_over.get().then_some(false);
        let lasts = copying.changed.until(|| ended().or_else(is_durable)).await;
        if lasts { Ok(()) } else { Err(Ended::Over) }
    }

    /// Asks for the next piece and waits for it, though not for ever.
    async fn ask(&mut self) -> Result<Option<(CopyOutcome, Bytes)>, Ended> {
        let number = self.copying.number.get() + 1;
        self.copying.number.set(number);
        self.copying.answer.take();
        let request = CopyRequest {
            from: self.me,
            to: self.from,
            number,
            position: self.position,
            log_end: self.offer.log_end,
            bytes_max: REPLICA_COPY_PIECE_BYTES_MAX,
        };
        let store = self.inner.upgrade().ok_or(Ended::Over)?;
        let sent = store.with_log_partition(self.log, |partition, _, carrier| {
            let message = PeerMessage::CopyRequest(request);
            carrier.todo.outgoing.push(Outgoing { key: partition.key, message, records: Vec::new() });
        });
        sent.ok_or(Ended::Over)?;
        drop(store);
        let alarm = {
            let (io, copying) = (self.io.clone(), Rc::clone(&self.copying));
            self.io.spawn(ringlog_io::Priority::Foreground, async move {
                io.sleep(Duration::from_millis(REPLICA_COPY_ANSWER_MS)).await;
                if copying.number.get() == number {
                    // Nobody answers: another question is asked.
                    copying.number.set(number + 1);
                    copying.changed.notify();
                }
            })
        };
        let copying = Rc::clone(&self.copying);
        let answer = copying
            .changed
            .until(|| {
                if copying.is_over.get() {
                    return Some(Err(Ended::Over));
                }
                let answer = copying.answer.take();
                let is_late = copying.number.get() != number;
                (answer.is_some() || is_late).then_some(Ok(answer))
            })
            .await;
        drop(alarm);
        answer
    }

    async fn try_again(&mut self) -> Result<(), Ended> {
        self.tries += 1;
        if self.tries >= REPLICA_COPY_TRIES {
            if !self.is_old_gone {
                return Err(Ended::Failed);
            }
            let store = self.inner.upgrade().ok_or(Ended::Over)?;
            let leader = store.with_log_partition(self.log, |partition, _, _| partition.group.leader());
            self.from = leader.ok_or(Ended::Over)?.filter(|leader| *leader != self.me).unwrap_or(self.from);
            self.tries = 0;
        }
        self.io.sleep(Duration::from_millis(REPLICA_WRITE_RETRY_MS)).await;
        Ok(())
    }

    /// Takes a piece. False: it does not check.
    async fn take(&mut self, base: Offset, next: Offset, records: &Bytes) -> Result<bool, Ended> {
        let expected = if self.has_begun { self.position } else { base };
        let checked = verify_run(records, expected, self.storage.batch_bytes_max());
        let Ok(batches) = checked else { return Ok(false) };
        let end = batches.last().map_or(base, |last| last.header.next_offset());
        let moves_on = end > self.position || self.position >= self.offer.log_end;
        if base != expected || base > self.position || end != next || !moves_on || !self.continues(&batches) {
            return Ok(false);
        }
        if !self.has_begun {
            self.begin().await?;
        }
        for batch in batches {
            note_epochs(&mut self.epochs, &batch.header);
            self.append(batch).await?;
        }
        self.position = end.max(self.position);
        Ok(true)
    }

    /// The first batch holds the position asked for. Epochs never fall, from one piece to the next too.
    fn continues(&self, batches: &[VerifiedBatch]) -> bool {
        let Some(VerifiedBatch { header: first, .. }) = batches.first() else { return true };
        match self.epochs.last().filter(|_| self.has_begun) {
            Some(last) => last.epoch <= first.leader_epoch,
            None => self.has_begun || first.next_offset() > self.position,
        }
    }

    /// The old log goes. The new one starts where the source's does, even where that is within a batch, which it then takes whole:
    /// neither does this replica's start ever go back, nor does its log end below where the source's starts.
    async fn begin(&mut self) -> Result<(), Ended> {
        match self.storage.begin_anew(self.log, self.start).await {
            Ok(sequence) => self.sequence = sequence,
            Err(TruncateError::Storage(_)) => return Err(Ended::Over),
            Err(error) => {
                tracing::warn!(%error, "a log cannot begin anew");
                return Err(if self.is_old_gone { Ended::Over } else { Ended::Failed });
            }
        }
        (self.has_begun, self.is_old_gone) = (true, true);
        self.epochs.clear();
        let store = self.inner.upgrade().ok_or(Ended::Over)?;
        self.producers = ProducerStates::new(store.producer_expiration_ms);
        Ok(())
    }

    async fn append(&mut self, batch: VerifiedBatch) -> Result<(), Ended> {
        loop {
            match self.storage.check_append(self.log, batch.bytes.len()) {
                Ok(()) => break,
                Err(StorageError::Backlogged { .. } | StorageError::NoSpace(_)) => {
                    self.storage.room().await;
                    self.io.sleep(Duration::from_millis(REPLICA_WRITE_RETRY_MS)).await;
                }
                Err(_) => return Err(Ended::Over),
            }
        }
        let header = batch.header;
        self.sequence = self.storage.append(self.log, batch.into_stamped())?;
        self.producers.apply(&header, self.io.wall_now_ms());
        Ok(())
    }
}
