//! One segment file: what is known of it in memory, and the shared handle through which it is read and written.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ringlog_io::{File, Io, OpenOptions};
use ringlog_protocol::ids::{Offset, TopicPartition};

use super::checked::CheckedRanges;
use super::descriptors::OpenFiles;
use super::folder::segment_name;
use super::index::{IndexPoint, SparseIndex};
use super::roll::SegmentTimes;
use super::sidecar_file::KnownSums;
use super::sums::{BlockSums, SumPlace};
use crate::limits::READ_HINTS_PER_SEGMENT;

/// A segment's file, opened when needed and kept while the budget of [`OpenFiles`] allows it: but a descriptor with unsynced
/// writes must not be closed, or the kernel drops their error. Plans and pieces of answers hold the file too, so it outlives
/// the segment, and its own closing, while they do.
#[derive(Debug)]
pub(crate) struct SegmentHandle {
    path: PathBuf,
    base: Offset,
    file: Mutex<Option<File>>,
    files: Arc<OpenFiles>,
    /// By the count of `files`.
    last_use: AtomicU64,
    /// Where readers stopped: offset delta in the upper half, position in the lower; 0 = unused.
    hints: [AtomicU64; READ_HINTS_PER_SEGMENT],
    next_hint: AtomicUsize,
    pub(crate) checked: CheckedRanges,
    /// Something was written and not yet synced: the descriptor must stay open, or nobody is told of a write error.
    is_unsynced: AtomicBool,
    /// Bytes from the start that were flushed to this file since it was opened or made. Other cores read it.
    flushed_bytes: AtomicU32,
    /// The segment was cut here: what this handle's holders know of the bytes behind it is no more.
    cut_at: AtomicU32,
    /// Another file takes its name: this one stays open for those who hold the handle, and its sidecar is no longer its own.
    is_kept_open: AtomicBool,
    /// What its sidecar says, or that it says nothing, once somebody looked; until the file is closed.
    sums: Mutex<Option<Option<Arc<KnownSums>>>>,
}

impl SegmentHandle {
    pub(crate) fn new(folder: &Path, base: Offset, files: Arc<OpenFiles>) -> SegmentHandle {
        SegmentHandle {
            path: folder.join(segment_name(base)),
            base,
            file: Mutex::new(None),
            files,
            last_use: AtomicU64::new(0),
            hints: Default::default(),
            next_hint: AtomicUsize::new(0),
            checked: CheckedRanges::default(),
            is_unsynced: AtomicBool::new(false),
            flushed_bytes: AtomicU32::new(0),
            cut_at: AtomicU32::new(u32::MAX),
            is_kept_open: AtomicBool::new(false),
            sums: Mutex::new(None),
        }
    }

    /// The handle of the same segment after its file was replaced by `file`.
    pub(crate) fn replaced(&self, file: File) -> SegmentHandle {
        self.files.note_opened();
        SegmentHandle {
            path: self.path.clone(),
            base: self.base,
            file: Mutex::new(Some(file)),
            files: Arc::clone(&self.files),
            last_use: AtomicU64::new(self.files.next_use()),
            hints: Default::default(),
            next_hint: AtomicUsize::new(0),
            checked: CheckedRanges::default(),
            is_unsynced: AtomicBool::new(false),
            flushed_bytes: AtomicU32::new(0),
            cut_at: AtomicU32::new(u32::MAX),
            is_kept_open: AtomicBool::new(false),
            sums: Mutex::new(None),
        }
    }

    /// The handle of the same segment, which ends at `position` from now on. Holders of this one are told by
    /// [`SegmentHandle::is_cut_before`]: other bytes may soon lie behind that place.
    pub(crate) fn cut(&self, position: u32) -> SegmentHandle {
        self.cut_at.fetch_min(position, Ordering::AcqRel);
        let file = self.lock().clone();
        if file.is_some() {
            self.files.note_opened();
        }
        SegmentHandle {
            path: self.path.clone(),
            base: self.base,
            file: Mutex::new(file),
            files: Arc::clone(&self.files),
            last_use: AtomicU64::new(self.last_use()),
            hints: Default::default(),
            next_hint: AtomicUsize::new(0),
            checked: self.checked.below(position),
            is_unsynced: AtomicBool::new(self.is_unsynced()),
            flushed_bytes: AtomicU32::new(self.flushed_bytes.load(Ordering::Acquire).min(position)),
            cut_at: AtomicU32::new(u32::MAX),
            is_kept_open: AtomicBool::new(false),
            sums: Mutex::new(None),
        }
    }

    /// Whether the segment was cut below `end` since this handle was taken: then nothing that it read there counts.
    pub(crate) fn is_cut_before(&self, end: u32) -> bool {
        self.cut_at.load(Ordering::Acquire) < end
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn base(&self) -> Offset {
        self.base
    }

    pub(crate) fn is_open(&self) -> bool {
        self.lock().is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Option<File>> {
        // A panic ends the process, so nobody ever finds it half changed.
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its core has more files open than it may.
    pub(crate) fn is_over_budget(&self) -> bool {
        self.files.is_over()
    }

    /// Its name is about to be another file's: once opened it is not closed as long as somebody holds the handle.
    pub(crate) fn keep_open(&self) {
        self.is_kept_open.store(true, Ordering::Release);
    }

    /// It keeps its name after all.
    pub(crate) fn let_close(&self) {
        self.is_kept_open.store(false, Ordering::Release);
    }

    /// Whether another file has its name, or will have.
    pub(crate) fn is_kept_open(&self) -> bool {
        self.is_kept_open.load(Ordering::Acquire)
    }

    /// Whether it is open, nothing is lost by closing it, and a descriptor is won.
    pub(crate) fn is_closable(&self) -> bool {
        !self.is_kept_open()
            && self.lock().as_ref().is_some_and(|file| !file.is_shared())
            && !self.is_unsynced()
    }

    /// When it was used last, by the count of its core's files.
    pub(crate) fn last_use(&self) -> u64 {
        self.last_use.load(Ordering::Relaxed)
    }

    /// Closes the file unless that would lose the error of a write, or somebody holds it: its descriptor would stay open and no
    /// longer be counted. Whether it was closed.
    pub(crate) fn close(&self) -> bool {
        if self.is_unsynced()
            || self.is_kept_open()
            || self.lock().take_if(|file| !file.is_shared()).is_none()
        {
            return false;
        }
        self.files.note_closed();
        *self.sums.lock().unwrap_or_else(PoisonError::into_inner) = None;
        true
    }

    /// What [`SegmentHandle::keep_sums`] was given, if anything.
    pub(crate) fn known_sums(&self) -> Option<Option<Arc<KnownSums>>> {
        self.sums.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps the sums of the closed segment for the next reader, or that there are none.
    pub(crate) fn keep_sums(&self, sums: Option<Arc<KnownSums>>) {
        *self.sums.lock().unwrap_or_else(PoisonError::into_inner) = Some(sums);
    }

    /// The existing file, for reading and writing.
    pub(crate) async fn open(&self, io: &Io) -> io::Result<File> {
        self.open_with(io, OpenOptions { read: true, write: true, ..OpenOptions::default() }).await
    }

    /// The file, made when missing.
    pub(crate) async fn create(&self, io: &Io) -> io::Result<File> {
        self.open_with(io, OpenOptions::READ_WRITE_CREATE).await
    }

    async fn open_with(&self, io: &Io, options: OpenOptions) -> io::Result<File> {
        self.last_use.store(self.files.next_use(), Ordering::Relaxed);
        let present = self.lock().clone();
        if let Some(file) = present {
            return Ok(file);
        }
        let opened = io.open(&self.path, options).await?;
        let mut kept = self.lock();
        if kept.is_none() {
            self.files.note_opened();
        }
        // Two readers may open at once; both go on with the one that stays.
        Ok(kept.get_or_insert(opened).clone())
    }

    /// A write begins.
    pub(crate) fn note_unsynced(&self) {
        self.is_unsynced.store(true, Ordering::Release);
    }

    /// Everything written is synced.
    pub(crate) fn note_synced(&self) {
        self.is_unsynced.store(false, Ordering::Release);
    }

    /// Whether closing the descriptor would lose the error of a write.
    pub(crate) fn is_unsynced(&self) -> bool {
        self.is_unsynced.load(Ordering::Acquire)
    }

    /// The file holds its bytes up to here.
    pub(crate) fn note_flushed(&self, bytes: u32) {
        self.flushed_bytes.store(bytes, Ordering::Release);
    }

    /// Whether bytes that end at `end` can be read from the file. False does not say that they cannot.
    pub(crate) fn is_flushed_through(&self, end: u64) -> bool {
        end <= u64::from(self.flushed_bytes.load(Ordering::Acquire))
    }

    /// Remembers that a batch with this base offset begins at `position`: where a reader goes on.
    pub(crate) fn remember(&self, offset: Offset, position: u32) {
        let Ok(delta) = u32::try_from(offset.0 - self.base.0) else { return };
        let slot = self.next_hint.fetch_add(1, Ordering::Relaxed) % READ_HINTS_PER_SEGMENT;
        if let Some(hint) = self.hints.get(slot) {
            hint.store((u64::from(delta) << 32) | u64::from(position), Ordering::Relaxed);
        }
    }

    /// The remembered place of exactly this offset.
    pub(crate) fn recall(&self, offset: Offset) -> Option<IndexPoint> {
        let delta = u32::try_from(offset.0 - self.base.0).ok()?;
        for hint in &self.hints {
            let value = hint.load(Ordering::Relaxed);
            if value != 0 && value >> 32 == u64::from(delta) {
                return Some(IndexPoint { offset, position: value as u32 });
            }
        }
        None
    }
}

impl Drop for SegmentHandle {
    fn drop(&mut self) {
        if self.is_open() {
            self.files.note_closed();
        }
    }
}

/// One segment of a log.
///
/// Invariant: synced_bytes <= bytes. Bytes from `synced_bytes` on are in the memory tail and in the journal.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) base: Offset,
    /// Its length, unflushed batches included.
    pub(crate) bytes: u32,
    /// Its prefix that is durable in the file, whose name is durable too.
    pub(crate) synced_bytes: u32,
    /// Disk space is reserved up to here, or as far as the file reaches.
    pub(crate) allocated_bytes: u32,
    pub(crate) index: SparseIndex,
    /// Largest timestamp of its batches, milliseconds; `i64::MIN` when empty.
    pub(crate) max_timestamp: i64,
    /// First batch that has it.
    pub(crate) max_timestamp_batch: Offset,
    pub(crate) times: SegmentTimes,
    /// Of the synced bytes.
    pub(crate) sums: BlockSums,
    /// The sidecar holds all of them, and the footer.
    pub(crate) sidecar_is_closed: bool,
    pub(crate) handle: Arc<SegmentHandle>,
}

impl Segment {
    pub(crate) fn new(
        folder: &Path,
        key: TopicPartition,
        base: Offset,
        index_interval_bytes: u32,
        files: &Arc<OpenFiles>,
    ) -> Segment {
        Segment {
            base,
            bytes: 0,
            synced_bytes: 0,
            allocated_bytes: 0,
            index: SparseIndex::new(base, index_interval_bytes),
            max_timestamp: i64::MIN,
            max_timestamp_batch: base,
            times: SegmentTimes::default(),
            sums: BlockSums::new(SumPlace { key, base }),
            sidecar_is_closed: false,
            handle: Arc::new(SegmentHandle::new(folder, base, Arc::clone(files))),
        }
    }

    /// The segment ends at `position` from now on; `newest` is the largest timestamp of what is left and the first batch that
    /// has it. Its checksums are made anew when it closes: the last block would have to be read for them.
    pub(crate) fn cut(&mut self, position: u32, newest: (i64, Offset)) {
        assert!(position <= self.bytes, "a segment is cut within its length");
        self.bytes = position;
        self.synced_bytes = self.synced_bytes.min(position);
        self.allocated_bytes = self.allocated_bytes.min(position);
        (self.max_timestamp, self.max_timestamp_batch) = newest;
        self.index.cut(position, newest.0);
        self.sums.forget();
        self.sidecar_is_closed = false;
        self.handle = Arc::new(self.handle.cut(position));
    }

    /// Notes a batch at the segment's end.
    pub(crate) fn note_batch(&mut self, base_offset: Offset, bytes: u32, max_timestamp: i64) {
        if self.bytes == 0 {
            self.times.first_ms = Some(max_timestamp).filter(|first| *first >= 0);
        }
        self.index.note(base_offset, self.bytes, max_timestamp);
        if max_timestamp > self.max_timestamp {
            self.max_timestamp = max_timestamp;
            self.max_timestamp_batch = base_offset;
        }
        self.bytes += bytes;
    }
}
