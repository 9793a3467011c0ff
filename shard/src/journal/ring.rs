//! The core's journal files: one that fills, those that are full, those that may be overwritten. Bookkeeping only, no I/O.
//!
//! Files are freed strictly oldest first, so the frames that still count are always one unbroken run, from the floor that
//! each frame states. Below it a free file may still hold old frames and its neighbour may be gone.

use std::collections::VecDeque;
use std::path::PathBuf;

use ringlog_io::File;

/// Counts the uses of files on a core: a file that is used again gets a new one. Greater is later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileSerial(pub u64);

/// A journal file as recovery leaves it for its core.
#[derive(Clone, Debug)]
pub struct JournalFileInfo {
    pub path: PathBuf,
    /// Its pre-written length.
    pub bytes: u64,
    /// Where its last frame ends.
    pub position: u64,
    /// Sequence of its first frame.
    pub first_frame: u64,
}

#[derive(Debug)]
pub(super) struct RingFile {
    pub(super) file: File,
    pub(super) path: PathBuf,
    /// Invariant: position <= bytes.
    pub(super) bytes: u64,
    pub(super) position: u64,
    pub(super) serial: FileSerial,
    /// Sequence of its first frame in this use; `None` while it has none.
    pub(super) first_frame: Option<u64>,
}

/// Where a frame goes.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) file: File,
    pub(super) position: u64,
    pub(super) serial: FileSerial,
}

#[derive(Debug)]
pub(super) struct FileRing {
    current: Option<RingFile>,
    /// Oldest first.
    filled: VecDeque<RingFile>,
    free: VecDeque<RingFile>,
    next_serial: u64,
    next_number: u32,
}

impl FileRing {
    pub(super) fn new() -> FileRing {
        FileRing {
            current: None,
            filled: VecDeque::new(),
            free: VecDeque::new(),
            next_serial: 0,
            next_number: 0,
        }
    }

    /// Takes over a file that holds frames; files come in the order of their frames, the last one stays current.
    pub(super) fn adopt(&mut self, file: File, info: JournalFileInfo) {
        if let Some(previous) = self.current.take() {
            self.filled.push_back(previous);
        }
        let serial = self.take_serial();
        let JournalFileInfo { path, bytes, position, first_frame } = info;
        self.current = Some(RingFile { file, path, bytes, position, serial, first_frame: Some(first_frame) });
        self.next_number += 1;
    }

    /// Number for the name of the next file of this core.
    pub(super) fn take_number(&mut self) -> u32 {
        self.next_number += 1;
        self.next_number - 1
    }

    fn take_serial(&mut self) -> FileSerial {
        self.next_serial += 1;
        FileSerial(self.next_serial - 1)
    }

    /// A new file, empty.
    pub(super) fn add_free(&mut self, file: File, path: PathBuf, bytes: u64) {
        let serial = FileSerial(u64::MAX);
        self.free.push_back(RingFile { file, path, bytes, position: 0, serial, first_frame: None });
    }

    /// Room for `bytes` in the current file.
    pub(super) fn place(&mut self, bytes: u64) -> Option<Slot> {
        let current = self.current.as_mut()?;
        if current.position + bytes > current.bytes {
            return None;
        }
        let slot = Slot { file: current.file.clone(), position: current.position, serial: current.serial };
        current.position += bytes;
        Some(slot)
    }

    /// Says that this frame goes into the current file; returns the oldest frame that still counts.
    pub(super) fn note_frame(&mut self, sequence: u64) -> u64 {
        if let Some(current) = &mut self.current {
            current.first_frame.get_or_insert(sequence);
        }
        self.filled.front().or(self.current.as_ref()).and_then(|file| file.first_frame).unwrap_or(sequence)
    }

    /// Closes the current file to further frames.
    pub(super) fn retire_current(&mut self) -> bool {
        match self.current.take() {
            Some(current) => {
                self.filled.push_back(current);
                true
            }
            None => false,
        }
    }

    /// Starts to overwrite a free file; false when there is none.
    pub(super) fn start_free(&mut self) -> bool {
        assert!(self.current.is_none(), "a file is retired before the next one starts");
        let Some(mut file) = self.free.pop_front() else { return false };
        file.serial = self.take_serial();
        file.position = 0;
        file.first_frame = None;
        self.current = Some(file);
        true
    }

    /// The newest file that takes no more frames.
    pub(super) fn filled_through(&self) -> Option<FileSerial> {
        self.filled.back().map(|file| file.serial)
    }

    /// Frees every full file up to `serial`. Those that are not wanted again are returned, to be removed: beyond the
    /// `files_max` in all, and those shorter than `file_bytes`, with which a core begins.
    pub(super) fn release_through(
        &mut self,
        serial: FileSerial,
        files_max: usize,
        file_bytes: u64,
    ) -> Vec<RingFile> {
        let mut unwanted = Vec::new();
        while self.filled.front().is_some_and(|file| file.serial <= serial) {
            let file = self.filled.pop_front().expect("the front was just looked at");
            if self.count() >= files_max || file.bytes < file_bytes {
                unwanted.push(file);
            } else {
                self.free.push_back(file);
            }
        }
        unwanted
    }

    /// Files that are as long as they should be.
    pub(super) fn whole_count(&self, file_bytes: u64) -> usize {
        self.all().filter(|file| file.bytes >= file_bytes).count()
    }

    fn all(&self) -> impl Iterator<Item = &RingFile> {
        self.current.iter().chain(&self.filled).chain(&self.free)
    }

    pub(super) fn count(&self) -> usize {
        usize::from(self.current.is_some()) + self.filled.len() + self.free.len()
    }

    pub(super) fn free_count(&self) -> usize {
        self.free.len()
    }

    pub(super) fn all_direct(&self) -> bool {
        self.all().all(|file| file.file.is_direct())
    }
}
