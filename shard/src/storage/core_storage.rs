//! Everything one core stores: its logs, its journal, its memory. The surface that partitions use.
//!
//! Lives on one core; clones share it. Nothing here waits except opening, checkpointing and reading from files; an
//! append copies into memory and returns. Dropping the last clone stops all background work, as a crash would.

use std::cell::{Cell, OnceCell, Ref, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use bytes::Bytes;
use ringlog_io::{Io, Monotonic, Priority, Task};
use ringlog_protocol::ids::{Offset, TopicPartition};
use slab::Slab;

use super::checkpoint;
use super::damage::DamageList;
use super::deletion::Deleting;
use super::descriptors::OpenFiles;
use super::file_system::FileSystemWatch;
use super::folder::partition_folder;
use super::log::{Log, LogId, StampedBatch, TailBatch};
use super::pace::FlushControl;
use super::read::{ReadError, ReadPlan, ReadRange};
use super::recorder::{CheckpointPlace, Recorder};
use super::recovered::{RecoveredPartition, ShardRecovery};
use super::settings::{LogSettings, StorageSettings};
use super::space::{self, SpaceGate, SpaceShortage};
use super::stats::StorageStats;
use super::tail::TailMemory;
use super::time_lookup::TimePlan;
use crate::journal::entry::{Entry, EntryBody};
use crate::journal::{
    FileSerial, Journal, JournalError, JournalObserver, Note, NoteKind, PoisonReason, Signal,
};
use crate::limits::{JOURNAL_BACKLOG_BYTES_MAX, JOURNAL_BACKLOG_BYTES_REFUSED};

/// The token of entries that stand for no open log.
pub(crate) const NO_LOG: u64 = u64::MAX;

/// An entry that became durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durable {
    pub log: LogId,
    pub sequence: u64,
    /// For data: the offset after its last record.
    pub end_offset: Option<Offset>,
}

/// Why storage did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    #[error("no such log on this core")]
    UnknownLog,
    #[error(transparent)]
    Poisoned(#[from] PoisonReason),
    /// The caller did not look at [`CoreStorage::is_full`] first.
    #[error("{backlog_bytes} bytes wait for the journal already")]
    Backlogged { backlog_bytes: usize },
    /// The reserve of disk space would be touched; it passes by itself once there is space.
    #[error(transparent)]
    NoSpace(#[from] SpaceShortage),
    #[error("a batch of {bytes} bytes does not fit into the journal, which takes {bytes_max}")]
    BatchTooLarge { bytes: usize, bytes_max: usize },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

/// One core's storage.
#[derive(Clone)]
pub struct CoreStorage {
    shared: Rc<Shared>,
}

struct Shared {
    pub(super) inner: Rc<Inner>,
    /// Dropped, and so cancelled, with the last clone.
    _recycler: Option<Task<()>>,
    _space_watch: Option<Task<()>>,
}

/// What a start made before the rest.
struct Parts {
    data: PathBuf,
    journal: Journal,
    core: Core,
    space: SpaceGate,
    file_system: FileSystemWatch,
    records: CheckpointPlace,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let tasks = self.inner.bypass_tasks.take();
        drop(tasks);
    }
}

type DurableListener = Rc<dyn Fn(&[Durable])>;
/// Appends a snapshot of a log's producers and says of which offset it is; nothing if it has none.
type SnapshotSource = Rc<dyn Fn(LogId, &mut Vec<u8>) -> Option<Offset>>;
type PoisonListener = Rc<dyn Fn(Option<LogId>)>;

/// What the surface and the background work of a core share.
pub(crate) struct Inner {
    pub(super) io: Io,
    pub(super) settings: StorageSettings,
    /// Folder of the topics' folders. Empty when nothing is stored in files.
    pub(super) data: PathBuf,
    pub(super) is_ephemeral: bool,
    pub(super) journal: Journal,
    pub(super) core: RefCell<Core>,
    /// Something for the recycler to look at.
    pub(super) work: Signal,
    /// Checkpoints run one after the other.
    pub(super) turn: Signal,
    pub(super) turn_taken: Cell<bool>,
    /// A log's start became durable, a log went, or the journal is poisoned.
    pub(super) life: Signal,
    pub(super) damage: Arc<DamageList>,
    pub(super) files: Arc<OpenFiles>,
    pub(super) flush: FlushControl,
    pub(super) recorder: Recorder,
    pub(super) snapshot_source: RefCell<Option<SnapshotSource>>,
    /// Somebody stopped writing the segments of a log.
    pub(super) written: Signal,
    /// Writes of batches that bypass the journal, and cuts of truncated files. Hold `Rc`s of this in turn: cleared with the storage.
    pub(super) bypass_tasks: RefCell<Vec<Task<()>>>,
    pub(super) this: OnceCell<Weak<Inner>>,
    pub(super) file_system: FileSystemWatch,
    pub(super) space: SpaceGate,
    durable_listener: RefCell<Option<DurableListener>>,
    poison_listener: RefCell<Option<PoisonListener>>,
    /// Reused for reports.
    pub(super) reports: RefCell<Vec<Durable>>,
}

/// A partition that recovery found and nobody opened yet: what of it must not fall out of the journal.
#[derive(Debug)]
pub(super) struct Unopened {
    pub(super) partition: RecoveredPartition,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) checkpoints: u64,
    pub(super) checkpoint_bytes: u64,
    pub(super) carried_entries: u64,
    pub(super) carried_bytes: u64,
    /// Of segments, read at start.
    pub(super) scanned_bytes: u64,
    pub(super) sidecars_rebuilt: u64,
    pub(super) appended_bytes: u64,
    pub(super) bypass_bytes: u64,
    pub(super) segments_rewritten: u64,
    pub(super) logs_poisoned: u64,
    pub(super) segments_removed: u64,
    pub(super) bytes_removed: u64,
    pub(super) segments_in_future: u64,
    pub(super) scrubbed_bytes: u64,
    pub(super) scrub_errors: u64,
    pub(super) scrub_passes: u64,
    pub(super) scrub_ended: Option<Monotonic>,
}

/// One core's mutable state. Borrowed only between awaits.
pub(super) struct Core {
    pub(super) logs: Slab<Log>,
    /// Never iterated.
    by_key: HashMap<TopicPartition, LogId, ahash::RandomState>,
    next_version: u32,
    pub(super) tail: TailMemory,
    pub(super) unopened: BTreeMap<TopicPartition, Unopened>,
    recovered: Vec<RecoveredPartition>,
    pub(super) deleting: Vec<Deleting>,
    /// Logs with segments below their durable start.
    pub(super) retiring: BTreeSet<LogId>,
    /// Logs whose segments somebody writes.
    pub(super) writing: BTreeSet<LogId>,
    /// Bytes of batches that wait for a bypass.
    pub(super) bypass_backlog_bytes: usize,
    /// Journal files that recovery wrote: any of them may hold entries of a recovered partition.
    pub(super) recovered_files: Vec<FileSerial>,
    pub(super) counters: Counters,
    /// Clean bytes that no record of the checkpoint file speaks of, and those of them that the last attempt left.
    pub(super) unrecorded_bytes: u64,
    pub(super) unrecorded_bytes_left: u64,
    /// Unflushed bytes of logs that the last checkpoint could not flush: another one at once would not either.
    pub(super) dirty_bytes_stuck: usize,
}

impl Core {
    fn new(io: &Io) -> Core {
        Core {
            logs: Slab::new(),
            by_key: HashMap::with_hasher(io.hasher()),
            next_version: 0,
            tail: TailMemory::new(),
            unopened: BTreeMap::new(),
            recovered: Vec::new(),
            deleting: Vec::new(),
            retiring: BTreeSet::new(),
            writing: BTreeSet::new(),
            bypass_backlog_bytes: 0,
            recovered_files: Vec::new(),
            counters: Counters::default(),
            unrecorded_bytes: 0,
            unrecorded_bytes_left: 0,
            dirty_bytes_stuck: 0,
        }
    }

    pub(super) fn log(&self, id: LogId) -> Option<&Log> {
        self.logs.get(id.slot as usize).filter(|log| log.id == id)
    }

    pub(super) fn log_mut(&mut self, id: LogId) -> Option<&mut Log> {
        self.logs.get_mut(id.slot as usize).filter(|log| log.id == id)
    }

    pub(super) fn logs(&self) -> impl Iterator<Item = &Log> {
        self.logs.iter().map(|(_, log)| log)
    }

    pub(super) fn logs_mut(&mut self) -> impl Iterator<Item = &mut Log> {
        self.logs.iter_mut().map(|(_, log)| log)
    }

    /// Whether the partition is open here, or waits to be.
    pub(super) fn holds(&self, key: TopicPartition) -> bool {
        self.by_key.contains_key(&key) || self.unopened.contains_key(&key)
    }

    /// Takes a log in and gives it its id.
    pub(super) fn insert(&mut self, mut log: Log) -> LogId {
        let entry = self.logs.vacant_entry();
        let slot = u32::try_from(entry.key()).expect("fewer than 2^32 logs are open");
        self.next_version = self.next_version.checked_add(1).expect("fewer than 2^32 logs are ever opened");
        let id = LogId { slot, version: self.next_version };
        log.id = id;
        log.validate();
        let previous = self.by_key.insert(log.key, id);
        assert!(previous.is_none(), "log {} is open already", log.key);
        entry.insert(log);
        id
    }

    fn remove(&mut self, id: LogId) -> Option<Log> {
        self.log(id)?;
        let mut log = self.logs.remove(id.slot as usize);
        self.by_key.remove(&log.key);
        self.bypass_backlog_bytes -= log.bypass.abandon();
        if log.clean_count > 0
            && let Some(front) = log.tail.front()
        {
            self.tail.unset_evictable(front.stamp);
        }
        for (index, batch) in log.tail.iter().enumerate() {
            if index >= log.clean_count {
                self.tail.remove_dirty(batch.bytes.len());
            }
            self.tail.release(batch.owner);
        }
        Some(log)
    }

    /// Drops clean batches, oldest first over all logs, until at most `bytes_max` are allocated or none is left.
    pub(super) fn evict(&mut self, bytes_max: usize) {
        while self.tail.allocated_bytes() > bytes_max {
            let Some((id, until)) = self.tail.pop_oldest() else { return };
            let Some(log) = self.logs.get_mut(id.slot as usize).filter(|log| log.id == id) else { continue };
            while log.clean_count > 0 && self.tail.allocated_bytes() > bytes_max {
                if log.tail.front().is_none_or(|batch| batch.stamp > until) {
                    break;
                }
                if let Some(batch) = log.tail.pop_front() {
                    log.clean_count -= 1;
                    self.tail.release(batch.owner);
                }
            }
            if log.clean_count > 0
                && let Some(front) = log.tail.front()
            {
                self.tail.set_evictable(front.stamp, id);
            }
        }
    }
}

impl CoreStorage {
    /// Opens what recovery left for this core and starts its journal.
    ///
    /// # Errors
    /// [`StorageError::Journal`]: a journal file cannot be opened, or the settings cannot work.
    pub async fn start(
        io: Io,
        shard: ShardRecovery,
        settings: StorageSettings,
    ) -> Result<CoreStorage, StorageError> {
        let files = shard.journal_files.len() as u64;
        let journal =
            Journal::start(io.clone(), shard.journal, shard.journal_files, settings.journal).await?;
        let mut core = Core::new(&io);
        core.recovered_files = (0..files).map(FileSerial).collect();
        for partition in &shard.partitions {
            core.unopened.insert(partition.key, Unopened { partition: partition.clone() });
        }
        core.recovered = shard.partitions;
        let space = SpaceGate::new(settings.space, shard.data.clone(), shard.space, shard.core);
        // Before the first append: a disk that is full already must be known.
        space.look(&io, 0).await;
        let watch = FileSystemWatch::open(&io, &shard.data, shard.failures).await;
        let file_system = watch.map_err(|source| StorageError::Io { path: shard.data.clone(), source })?;
        let records = shard.checkpoint;
        let parts = Parts { data: shard.data, journal, core, space, file_system, records };
        Ok(CoreStorage::assemble(io, parts, settings))
    }

    /// Storage without files: everything lives in memory and is gone with the process.
    #[must_use]
    pub fn start_ephemeral(io: Io, settings: StorageSettings) -> CoreStorage {
        let journal = Journal::start_ephemeral(io.clone(), settings.journal);
        let parts = Parts {
            data: PathBuf::new(),
            journal,
            core: Core::new(&io),
            space: SpaceGate::unlimited(),
            file_system: FileSystemWatch::nothing(),
            records: CheckpointPlace::default(),
        };
        CoreStorage::assemble(io, parts, settings)
    }

    fn assemble(io: Io, parts: Parts, settings: StorageSettings) -> CoreStorage {
        let Parts { data, journal, core, space, file_system, records } = parts;
        let is_ephemeral = data.as_os_str().is_empty();
        let inner = Rc::new(Inner {
            io: io.clone(),
            settings,
            data,
            is_ephemeral,
            journal,
            core: RefCell::new(core),
            work: Signal::default(),
            turn: Signal::default(),
            turn_taken: Cell::new(false),
            life: Signal::default(),
            damage: Arc::default(),
            files: Arc::new(OpenFiles::new(settings.segment_files_max)),
            flush: FlushControl::new(io.monotonic_now()),
            recorder: Recorder::new(records),
            snapshot_source: RefCell::new(None),
            written: Signal::default(),
            bypass_tasks: RefCell::default(),
            this: OnceCell::new(),
            file_system,
            space,
            durable_listener: RefCell::new(None),
            poison_listener: RefCell::new(None),
            reports: RefCell::default(),
        });
        inner.this.set(Rc::downgrade(&inner)).expect("set once");
        let observer: Weak<dyn JournalObserver> = Rc::downgrade(&inner) as Weak<dyn JournalObserver>;
        inner.journal.set_observer(observer);
        let recycler =
            (!is_ephemeral).then(|| io.spawn(Priority::Background, checkpoint::recycle(inner.clone())));
        let space_watch =
            (!is_ephemeral).then(|| io.spawn(Priority::Background, space::watch(inner.clone())));
        CoreStorage { shared: Rc::new(Shared { inner, _recycler: recycler, _space_watch: space_watch }) }
    }

    pub(super) fn inner(&self) -> &Rc<Inner> {
        &self.shared.inner
    }

    /// The partitions that recovery found for this core; a second call finds none. Each is to be opened or set aside:
    /// until then its hard state is carried along in the journal.
    #[must_use]
    pub fn take_recovered(&self) -> Vec<RecoveredPartition> {
        std::mem::take(&mut self.inner().core.borrow_mut().recovered)
    }

    /// Hears, in order, of every entry of data, hard state and log start that became durable, one call a frame. Called
    /// between turns of other tasks; may append.
    pub fn set_durable_listener(&self, listener: impl Fn(&[Durable]) + 'static) {
        *self.inner().durable_listener.borrow_mut() = Some(Rc::new(listener));
    }

    /// Hears when a log, or with `None` the whole core, takes no more writes. Never called from within an append.
    pub fn set_poison_listener(&self, listener: impl Fn(Option<LogId>) + 'static) {
        *self.inner().poison_listener.borrow_mut() = Some(Rc::new(listener));
    }

    /// A new, empty log. Its folder is made when it is first flushed.
    ///
    /// # Panics
    /// When the partition is open, recovered or being deleted: a topic id is never used twice.
    pub fn create_log(&self, key: TopicPartition, settings: LogSettings) -> LogId {
        let inner = self.inner();
        let mut core = inner.core.borrow_mut();
        assert!(!core.unopened.contains_key(&key), "{key} was recovered: it is opened, not created");
        assert!(core.deleting.iter().all(|deleting| deleting.key != key), "{key} is being deleted");
        let placeholder = LogId { slot: 0, version: 0 };
        let mut log = Log::new(placeholder, key, partition_folder(&inner.data, key), settings);
        log.files = Arc::clone(&inner.files);
        core.insert(log)
    }

    /// Makes room for `count` more logs at once: one that grows by doubling leaves behind what it outgrew.
    pub fn expect_logs(&self, count: usize) {
        let mut core = self.inner().core.borrow_mut();
        core.logs.reserve(count);
        core.by_key.reserve(count);
    }

    /// Stores a batch at the end of the log and queues it for the journal. The listener hears when it is durable.
    ///
    /// Look at [`CoreStorage::is_full`] first: this refuses only well beyond it.
    ///
    /// # Errors
    /// The log is as before. [`StorageError::Poisoned`] for ever; [`StorageError::Backlogged`] until the journal has room.
    ///
    /// # Panics
    /// When the batch does not begin at the log's end or is not what its header says.
    pub fn append(&self, id: LogId, batch: StampedBatch) -> Result<u64, StorageError> {
        let inner = self.inner();
        let mut guard = inner.core.borrow_mut();
        let core = &mut *guard;
        let StampedBatch { header, bytes, buffer_bytes } = batch;
        let log =
            core.logs.get_mut(id.slot as usize).filter(|log| log.id == id).ok_or(StorageError::UnknownLog)?;
        inner.check_append(log, bytes.len())?;
        assert_eq!(header.total_bytes(), bytes.len(), "a stamped batch is one whole batch");
        assert!(log.takes(header.base_offset, header.next_offset()), "a batch begins where the log ends");
        let length = u32::try_from(bytes.len()).expect("a batch's length field is 31 bits");
        let (base, end) = (header.base_offset, header.next_offset());
        let now_ms = inner.io.wall_now_ms();
        log.roll_if_due(header.max_timestamp, now_ms);
        let place = log.place(length, base, end);
        let sequence = log.take_sequence();
        let body =
            EntryBody::Data { segment_base: place.segment_base, position: place.position, batches: &bytes };
        let waiting_bytes = inner.enter_batch(log, sequence, body, end);
        core.bypass_backlog_bytes += waiting_bytes;
        let (bytes, owner) = core.tail.keep(bytes, buffer_bytes as usize);
        core.tail.add_dirty(bytes.len());
        core.counters.appended_bytes += bytes.len() as u64;
        inner.space.note_append(bytes.len(), core.tail.dirty_bytes());
        let stamp = core.tail.take_stamp();
        let (segment_base, position) = (place.segment_base, place.position);
        log.push(&header, TailBatch { base, end, segment_base, position, sequence, stamp, bytes, owner });
        log.note_written(now_ms, || inner.io.random_u64());
        log.validate();
        if core.tail.allocated_bytes() > inner.settings.tail_bytes_max {
            core.evict(inner.settings.tail_bytes_max);
        }
        if inner.wants_checkpoint(core) {
            inner.work.notify();
        }
        drop(guard);
        if waiting_bytes > 0 {
            inner.pump(id);
        }
        Ok(sequence)
    }

    /// Whether a batch of so many bytes would be taken now: what [`CoreStorage::append`] asks first. For a caller that must
    /// know before it decides.
    ///
    /// # Errors
    /// Those of [`CoreStorage::append`].
    pub fn check_append(&self, id: LogId, bytes: usize) -> Result<(), StorageError> {
        let inner = &**self.inner();
        let core = inner.core.borrow();
        inner.check_append(core.log(id).ok_or(StorageError::UnknownLog)?, bytes)
    }

    /// Queues hard states, in one batch of frames, and returns the sequence of each. Never refused: there is at most
    /// one per partition and change of term. A log that is gone gets sequence 0, which is never durable.
    pub fn persist_hard_states(&self, states: Vec<(LogId, Bytes)>) -> Vec<u64> {
        let inner = self.inner();
        let mut core = inner.core.borrow_mut();
        let mut sequences = Vec::with_capacity(states.len());
        for (id, state) in states {
            let Some(log) = core.log_mut(id) else {
                sequences.push(0);
                continue;
            };
            let sequence = log.take_sequence();
            inner.enter(log, sequence, EntryBody::HardState { state: &state }, NoteKind::HardState);
            log.hard_state = Some((sequence, state));
            sequences.push(sequence);
        }
        sequences
    }

    /// Forgets the log at once; its folder goes once the journal holds the deletion durably. Pieces that readers hold stay
    /// readable.
    pub fn delete_log(&self, id: LogId) {
        let inner = self.inner();
        let mut core = inner.core.borrow_mut();
        let Some(mut log) = core.remove(id) else { return };
        let key = log.key;
        let sequence = log.take_sequence();
        let note = Note { token: id.token(), sequence, kind: NoteKind::Delete };
        inner.journal.push(&Entry { key: log.key, sequence, carried: false, body: EntryBody::Delete }, note);
        if !inner.is_ephemeral {
            core.deleting.push(Deleting::new(log, sequence));
        }
        inner.damage.forget(key, Offset(i64::MAX));
        inner.life.notify();
    }

    /// Looks at an open log.
    ///
    /// # Panics
    /// When the log was deleted.
    #[must_use]
    pub fn log(&self, id: LogId) -> Ref<'_, Log> {
        Ref::map(self.inner().core.borrow(), |core| {
            core.log(id).expect("the caller knows which logs it deleted")
        })
    }

    /// Plans a read of whole batches from the one that holds `from`, of offsets below `limit`, of at most `bytes_max`
    /// bytes. With `at_least_one` the first batch comes even if it is larger.
    ///
    /// # Errors
    /// [`ReadError::UnknownLog`], [`ReadError::OutOfRange`].
    pub fn plan_read(
        &self,
        id: LogId,
        from: Offset,
        limit: Offset,
        bytes_max: u32,
        at_least_one: bool,
    ) -> Result<ReadPlan, ReadError> {
        self.inner().keep_descriptors();
        let core = self.inner().core.borrow();
        let log = core.log(id).ok_or(ReadError::UnknownLog)?;
        log.plan_read(ReadRange { from, limit, bytes_max, at_least_one }, &self.inner().damage)
    }

    /// Plans the search for the first record below `limit` that is not older than `target_ms`.
    ///
    /// # Errors
    /// [`ReadError::UnknownLog`].
    pub fn plan_time_lookup(&self, id: LogId, target_ms: i64, limit: Offset) -> Result<TimePlan, ReadError> {
        let core = self.inner().core.borrow();
        let log = core.log(id).ok_or(ReadError::UnknownLog)?;
        Ok(log.plan_time_lookup(target_ms, limit).report_to(&self.inner().damage, log))
    }

    /// Plans the search for the first record below `limit` with the largest timestamp.
    ///
    /// # Errors
    /// [`ReadError::UnknownLog`].
    pub fn plan_newest(&self, id: LogId, limit: Offset) -> Result<TimePlan, ReadError> {
        let core = self.inner().core.borrow();
        let log = core.log(id).ok_or(ReadError::UnknownLog)?;
        Ok(log.plan_newest(limit).report_to(&self.inner().damage, log))
    }

    /// Plans the search for the first record from offset `from` on and below `limit`.
    ///
    /// # Errors
    /// [`ReadError::UnknownLog`].
    pub fn plan_first_from(&self, id: LogId, from: Offset, limit: Offset) -> Result<TimePlan, ReadError> {
        let core = self.inner().core.borrow();
        let log = core.log(id).ok_or(ReadError::UnknownLog)?;
        Ok(log.plan_first_from(from, limit).report_to(&self.inner().damage, log))
    }

    /// Whether appends must wait: for the journal, or for a checkpoint to free memory.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.inner().is_full()
    }

    /// Waits until [`CoreStorage::is_full`] is false, or the journal is poisoned.
    pub async fn room(&self) {
        let inner = self.inner();
        loop {
            inner.journal.room().await;
            if !inner.is_full() || inner.journal.is_poisoned() {
                return;
            }
            inner.space.turn().await;
            // Memory is short, not the journal: the end of a checkpoint frees it.
            inner
                .turn
                .until(|| (!inner.is_out_of_memory() || inner.journal.is_poisoned()).then_some(()))
                .await;
        }
    }

    /// Bytes of entries that wait for the journal.
    #[must_use]
    pub fn backlog_bytes(&self) -> usize {
        self.inner().journal.backlog_bytes()
    }

    /// Largest batch that can be stored, in bytes.
    #[must_use]
    pub fn batch_bytes_max(&self) -> usize {
        self.inner().settings.batch_bytes_max()
    }

    /// Why this core takes no more writes, if so.
    #[must_use]
    pub fn poison(&self) -> Option<PoisonReason> {
        self.inner().journal.poison()
    }

    /// Writes and syncs every log, so that the next start has nothing to replay. Appends go on meanwhile.
    ///
    /// # Errors
    /// [`StorageError::Poisoned`]: the journal failed. A log that alone failed is counted in the report instead.
    pub async fn checkpoint(&self) -> Result<checkpoint::CheckpointReport, StorageError> {
        checkpoint::checkpoint(self.inner()).await
    }

    /// Whether records are in memory only.
    #[must_use]
    pub fn is_ephemeral(&self) -> bool {
        self.inner().is_ephemeral
    }

    /// Brings what the journal holds of a log into its segments, in the background's time: closed ones are whole in their files then.
    pub async fn flush_closed(&self, id: LogId) {
        if !self.inner().is_ephemeral {
            checkpoint::flush_one(self.inner(), id).await;
        }
    }

    /// Counters and sizes.
    #[must_use]
    pub fn stats(&self) -> StorageStats {
        let inner = self.inner();
        let core = inner.core.borrow();
        let journal = inner.journal.stats();
        let mut stats = StorageStats {
            files_open: journal.files + inner.files.open(),
            journal,
            ..StorageStats::default()
        };
        for log in core.logs() {
            stats.logs += 1;
            stats.segments += log.segments.len() as u64;
            for segment in &log.segments {
                stats.index_bytes += segment.index.allocated_bytes() as u64;
                stats.index_bytes += segment.sums.allocated_bytes() as u64;
            }
        }
        stats.tail_bytes = core.tail.allocated_bytes() as u64;
        stats.dirty_bytes = core.tail.dirty_bytes() as u64;
        stats.deletes_pending = core.deleting.len() as u64;
        stats.checkpoints = core.counters.checkpoints;
        stats.checkpoint_bytes = core.counters.checkpoint_bytes;
        stats.carried_entries = core.counters.carried_entries;
        stats.carried_bytes = core.counters.carried_bytes;
        stats.scanned_bytes = core.counters.scanned_bytes;
        stats.sidecars_rebuilt = core.counters.sidecars_rebuilt;
        stats.record_bytes = inner.recorder.written_bytes();
        stats.records_skipped = inner.recorder.skipped();
        stats.unsynced_bytes = inner.flush.unsynced_bytes();
        let oldest = core.logs().filter_map(Log::first_dirty).map(|batch| batch.stamp).min();
        stats.checkpoint_lag = inner.flush.age(oldest, inner.io.monotonic_now());
        stats.segments_rewritten = core.counters.segments_rewritten;
        stats.logs_poisoned = core.counters.logs_poisoned;
        stats.appended_bytes = core.counters.appended_bytes;
        stats.bypass_bytes = core.counters.bypass_bytes;
        stats.space = inner.space.figures();
        stats.segments_removed = core.counters.segments_removed;
        stats.bytes_removed = core.counters.bytes_removed;
        stats.segments_in_future = core.counters.segments_in_future;
        let cut_short = core.logs().filter(|log| log.damage.is_some()).count() as u64;
        stats.damaged_places = inner.damage.count() + cut_short;
        stats.scrubbed_bytes = core.counters.scrubbed_bytes;
        stats.scrub_errors = core.counters.scrub_errors;
        stats.scrub_passes = core.counters.scrub_passes;
        let now = inner.io.monotonic_now();
        stats.scrub_age = core.counters.scrub_ended.map(|ended| now.saturating_since(ended));
        stats.read_errors = inner.damage.read_errors();
        stats
    }
}

impl Inner {
    fn check_append(&self, log: &Log, bytes: usize) -> Result<(), StorageError> {
        if let Some(reason) = &log.poison {
            return Err(StorageError::Poisoned(reason.clone()));
        }
        if self.journal.is_poisoned()
            && let Some(reason) = self.journal.poison()
        {
            return Err(StorageError::Poisoned(reason));
        }
        let bytes_max = self.settings.batch_bytes_max();
        if bytes > bytes_max {
            return Err(StorageError::BatchTooLarge { bytes, bytes_max });
        }
        let backlog_bytes = self.journal.backlog_bytes();
        if backlog_bytes >= JOURNAL_BACKLOG_BYTES_REFUSED {
            return Err(StorageError::Backlogged { backlog_bytes });
        }
        if !log.uses_reserve {
            self.space.admit(bytes)?;
        }
        Ok(())
    }

    pub(super) fn is_full(&self) -> bool {
        self.journal.is_full() || self.is_out_of_memory() || self.space.must_wait()
    }

    pub(super) fn is_out_of_memory(&self) -> bool {
        let core = self.core.borrow();
        core.tail.dirty_bytes() >= self.settings.tail_bytes_max
            || core.bypass_backlog_bytes >= JOURNAL_BACKLOG_BYTES_MAX
    }

    /// Whether so much is unflushed that a checkpoint is due although the journal has room.
    pub(super) fn wants_checkpoint(&self, core: &Core) -> bool {
        let half = self.settings.tail_bytes_max / 2;
        let dirty = core.tail.dirty_bytes();
        !self.is_ephemeral && dirty >= half && dirty - core.dirty_bytes_stuck.min(dirty) >= half / 4
    }

    pub(super) async fn sync_parent(&self, path: &Path) -> std::io::Result<()> {
        match path.parent() {
            Some(parent) => self.io.sync_directory(parent).await,
            None => Ok(()),
        }
    }

    /// Takes no more writes for one log and says so.
    pub(super) fn poison_log(&self, id: LogId, reason: PoisonReason) {
        {
            let mut core = self.core.borrow_mut();
            let Some(log) = core.log_mut(id) else { return };
            if log.poison.is_some() {
                return;
            }
            ringlog_io::reached!("poison.log");
            tracing::error!(topic_id = %log.key.topic, partition = log.key.partition.0, %reason, "log takes no more writes");
            log.poison = Some(reason);
            if let Some(first) = log.bypass.first_waiting() {
                log.starts.lose_from(first);
            }
            let abandoned_bytes = log.bypass.abandon();
            core.bypass_backlog_bytes -= abandoned_bytes;
            core.counters.logs_poisoned += 1;
        }
        self.life.notify();
        self.tell_poison(Some(id));
    }

    /// Tells the listener what became durable.
    pub(super) fn report(&self, reports: &[Durable]) {
        let listener = self.durable_listener.borrow().clone();
        if let Some(listener) = listener
            && !reports.is_empty()
        {
            listener(reports);
        }
    }

    pub(super) fn tell_poison(&self, log: Option<LogId>) {
        let listener = self.poison_listener.borrow().clone();
        if let Some(listener) = listener {
            listener(log);
        }
    }
}
