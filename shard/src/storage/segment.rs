//! One segment file: what is known of it in memory, and the shared handle through which it is read and written.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use ringlog_io::{File, Io, OpenOptions};
use ringlog_protocol::ids::Offset;

use super::folder::segment_name;
use super::index::{IndexPoint, SparseIndex};
use crate::limits::READ_HINTS_PER_SEGMENT;

/// A segment's file, opened when first needed and then kept: a descriptor with unsynced writes must not be closed, or
/// the kernel drops their error. Plans and pieces of answers hold it too, so it outlives the segment while they do.
#[derive(Debug)]
pub(crate) struct SegmentHandle {
    path: PathBuf,
    base: Offset,
    file: OnceLock<File>,
    /// Where readers stopped: offset delta in the upper half, position in the lower; 0 = unused.
    hints: [AtomicU64; READ_HINTS_PER_SEGMENT],
    next_hint: AtomicUsize,
    /// Bytes from the start that were flushed to this file since it was opened or made. Other cores read it.
    flushed_bytes: AtomicU32,
}

impl SegmentHandle {
    pub(crate) fn new(folder: &Path, base: Offset) -> SegmentHandle {
        SegmentHandle {
            path: folder.join(segment_name(base)),
            base,
            file: OnceLock::new(),
            hints: Default::default(),
            next_hint: AtomicUsize::new(0),
            flushed_bytes: AtomicU32::new(0),
        }
    }

    /// The handle of the same segment after its file was replaced by `file`.
    pub(crate) fn replaced(&self, file: File) -> SegmentHandle {
        let cell = OnceLock::new();
        cell.set(file).expect("the cell is new");
        SegmentHandle {
            path: self.path.clone(),
            base: self.base,
            file: cell,
            hints: Default::default(),
            next_hint: AtomicUsize::new(0),
            flushed_bytes: AtomicU32::new(0),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_open(&self) -> bool {
        self.file.get().is_some()
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
        if let Some(file) = self.file.get() {
            return Ok(file.clone());
        }
        let opened = io.open(&self.path, options).await?;
        // Two readers may open at once; both go on with the one that stays.
        Ok(self.file.get_or_init(|| opened).clone())
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
    pub(crate) index: SparseIndex,
    /// Largest timestamp of its batches, milliseconds; `i64::MIN` when empty.
    pub(crate) max_timestamp: i64,
    /// First batch that has it.
    pub(crate) max_timestamp_batch: Offset,
    pub(crate) handle: Arc<SegmentHandle>,
}

impl Segment {
    pub(crate) fn new(folder: &Path, base: Offset, index_interval_bytes: u32) -> Segment {
        Segment {
            base,
            bytes: 0,
            synced_bytes: 0,
            index: SparseIndex::new(base, index_interval_bytes),
            max_timestamp: i64::MIN,
            max_timestamp_batch: base,
            handle: Arc::new(SegmentHandle::new(folder, base)),
        }
    }

    /// Notes a batch at the segment's end.
    pub(crate) fn note_batch(&mut self, base_offset: Offset, bytes: u32, max_timestamp: i64) {
        self.index.note(base_offset, self.bytes, max_timestamp);
        if max_timestamp > self.max_timestamp {
            self.max_timestamp = max_timestamp;
            self.max_timestamp_batch = base_offset;
        }
        self.bytes += bytes;
    }
}
