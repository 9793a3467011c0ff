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

    /// Says that this frame goes into the current file; returns the oldest frame that counts once it is durable, when
    /// the files up to `released` do not count any more.
    pub(super) fn note_frame(&mut self, sequence: u64, released: Option<FileSerial>) -> u64 {
        if let Some(current) = &mut self.current {
            current.first_frame.get_or_insert(sequence);
        }
        let counts = |file: &&RingFile| released.is_none_or(|serial| file.serial > serial);
        let oldest = self.filled.iter().find(counts).or(self.current.as_ref());
        oldest.and_then(|file| file.first_frame).unwrap_or(sequence)
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
        if file.first_frame.is_some() {
            ringlog_io::reached!("journal.file_reused");
        }
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

    /// The oldest file that takes no more frames, of those after `released`.
    pub(super) fn oldest_filled(&self, released: Option<FileSerial>) -> Option<FileSerial> {
        let counts = |serial: &FileSerial| released.is_none_or(|released| *serial > released);
        self.filled.iter().map(|file| file.serial).find(counts)
    }

    /// Number of files that take no more frames, of those after `released`.
    pub(super) fn filled_count(&self, released: Option<FileSerial>) -> usize {
        let counts = |file: &&RingFile| released.is_none_or(|released| file.serial > released);
        self.filled.iter().filter(counts).count()
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

#[cfg(test)]
mod tests {
    use ringlog_io::{Executor, ExecutorConfig, OpenOptions};

    use super::*;

    /// A ring over one real file that stands for all: the ring itself never touches it.
    fn with_ring(check: impl FnOnce(FileRing, File)) {
        let folder = tempfile::tempdir().expect("temp");
        let executor = Executor::new(ExecutorConfig::default()).expect("one driver always works");
        let io = executor.io();
        let path = folder.path().join("file");
        let file =
            executor.run(async move { io.open(&path, OpenOptions::READ_WRITE_CREATE).await.expect("opens") });
        check(FileRing::new(), file);
    }

    #[test]
    fn the_floor_follows_what_is_released() {
        with_ring(|mut ring, file| {
            for name in ["a", "b", "c"] {
                ring.add_free(file.clone(), PathBuf::from(name), 8192);
            }
            let mut serials = Vec::new();
            for frame in 1..=6 {
                if ring.place(4096).is_none() {
                    ring.retire_current();
                    assert!(ring.start_free());
                    serials.push(ring.place(4096).expect("a fresh file has room").serial);
                }
                assert_eq!(ring.note_frame(frame, None), 1, "nothing was released");
            }
            assert_eq!(serials, [FileSerial(0), FileSerial(1), FileSerial(2)]);
            assert_eq!(ring.filled_through(), Some(FileSerial(1)));
            assert_eq!(ring.note_frame(7, Some(FileSerial(0))), 3);
            assert_eq!(ring.note_frame(7, Some(FileSerial(1))), 5);
            assert!(ring.release_through(FileSerial(0), 3, 8192).is_empty());
            assert_eq!((ring.note_frame(7, None), ring.free_count()), (3, 1));
        });
    }

    #[test]
    fn files_beyond_the_maximum_or_too_short_are_given_up() {
        with_ring(|mut ring, file| {
            for (name, bytes) in [("short", 4096), ("a", 8192), ("b", 8192), ("c", 8192)] {
                ring.add_free(file.clone(), PathBuf::from(name), bytes);
                assert!(ring.start_free());
                ring.retire_current();
            }
            let names = |files: Vec<RingFile>| files.into_iter().map(|file| file.path).collect::<Vec<_>>();
            assert_eq!(names(ring.release_through(FileSerial(0), 9, 8192)), [PathBuf::from("short")]);
            assert_eq!(names(ring.release_through(FileSerial(3), 2, 8192)), [PathBuf::from("a")]);
            assert_eq!((ring.count(), ring.free_count()), (2, 2));
        });
    }
}
