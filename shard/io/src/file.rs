//! Files as handles: who owns the descriptor and whether it goes past the page cache. Reads and writes nothing.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use crate::sim::SimulatedFile;

/// An open file. A clone is cheap and names the same open file; the last clone closes it. Any core may use it.
///
/// Closing never reports a write error: sync before the last clone goes, or the kernel drops the error.
#[derive(Clone)]
pub struct File {
    inner: Arc<FileInner>,
}

pub(crate) struct FileInner {
    pub(crate) kind: FileKind,
    direct: bool,
}

pub(crate) enum FileKind {
    Descriptor(std::fs::File),
    Simulated(SimulatedFile),
}

impl File {
    pub(crate) fn descriptor(file: std::fs::File, direct: bool) -> Self {
        Self { inner: Arc::new(FileInner { kind: FileKind::Descriptor(file), direct }) }
    }

    pub(crate) fn simulated(file: SimulatedFile, direct: bool) -> Self {
        Self { inner: Arc::new(FileInner { kind: FileKind::Simulated(file), direct }) }
    }

    pub(crate) fn kind(&self) -> &FileKind {
        &self.inner.kind
    }

    /// Whether other clones hold it too: the descriptor outlives this one then.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.inner) > 1
    }

    /// Whether writes go past the page cache. False where the file system refused O_DIRECT.
    pub fn is_direct(&self) -> bool {
        self.inner.direct
    }

    /// The file, for the kernel's drivers.
    pub(crate) fn std(&self) -> &std::fs::File {
        match &self.inner.kind {
            FileKind::Descriptor(file) => file,
            FileKind::Simulated(_) => unreachable!("a simulated file never reaches a kernel driver"),
        }
    }

    /// The descriptor, for the kernel's drivers.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.std().as_fd()
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.std().as_raw_fd()
    }
}

impl fmt::Debug for File {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("File").field("direct", &self.inner.direct).finish_non_exhaustive()
    }
}

/// An exclusive lock of a file, as flock(2) gives it. Released when dropped, and by the kernel when the process dies.
#[derive(Debug)]
pub struct FileLock {
    file: File,
}

impl FileLock {
    pub(crate) fn new(file: File) -> Self {
        Self { file }
    }

    /// The locked file, open for reading and writing.
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// Bytes of the range in the page cache, by cachestat(2); `None` on any error.
pub(crate) fn cached_bytes(file: &File, position: u64, length: u64) -> Option<u64> {
    let pages = cachestat_raw(file.raw_fd(), position, length).ok()?;
    let page_bytes = rustix::param::page_size() as u64;
    Some(pages.saturating_mul(page_bytes).min(length))
}

/// Pages of the range in the page cache. Linux 6.5; libc has no wrapper yet.
pub(crate) fn cachestat_raw(descriptor: RawFd, position: u64, length: u64) -> io::Result<u64> {
    const SYS_CACHESTAT: libc::c_long = 451;
    #[repr(C)]
    struct Range {
        position: u64,
        length: u64,
    }
    #[repr(C)]
    #[derive(Default)]
    struct Answer {
        cached: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    let range = Range { position, length };
    let mut answer = Answer::default();
    // SAFETY: both structures have the kernel's layout and outlive the call; a wrong descriptor is answered by EBADF.
    let code = unsafe { libc::syscall(SYS_CACHESTAT, descriptor, &raw const range, &raw mut answer, 0) };
    if code == 0 { Ok(answer.cached) } else { Err(io::Error::last_os_error()) }
}
