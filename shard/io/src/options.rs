//! What a caller chooses: how an executor is built, how a socket listens, how a file opens. Values only.

use crate::cpu::CpuId;
use crate::features::FeatureSwitches;

/// Which driver an executor runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverKind {
    /// io_uring, or epoll with one log line where the kernel refuses a ring.
    #[default]
    Auto,
    /// io_uring or an error.
    IoUring,
    /// epoll and worker threads.
    Epoll,
}

/// Which scheduler turns the tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduler {
    /// This crate's own loop.
    #[default]
    Native,
    /// glommio's `LocalExecutor` over the same driver (cargo feature `glommio`).
    Glommio,
}

/// How one executor is built.
#[derive(Clone, Debug)]
pub struct ExecutorConfig {
    /// The driver.
    pub driver: DriverKind,
    /// The scheduler.
    pub scheduler: Scheduler,
    /// Kernel features switched off or demanded by the operator.
    pub features: FeatureSwitches,
    /// Submission entries of the ring, a power of two. Small: ring memory counts against the locked-memory limit.
    pub ring_entries: u32,
    /// How long an idle loop may spin before it blocks, in microseconds; 0 never spins.
    pub spin_us: u32,
    /// The CPU to bind the thread to when it runs.
    pub pin: Option<CpuId>,
    /// Seed of the random numbers; `None` = from the kernel.
    pub seed: Option<u64>,
    /// Most worker threads of this executor (at least 1); they start when first needed.
    pub worker_threads: usize,
}

impl Default for ExecutorConfig {
    fn default() -> Self {
        Self {
            driver: DriverKind::Auto,
            scheduler: Scheduler::Native,
            features: FeatureSwitches::default(),
            ring_entries: 256,
            spin_us: 0,
            pin: None,
            seed: None,
            worker_threads: 4,
        }
    }
}

/// How a socket listens.
#[derive(Clone, Debug)]
pub struct ListenOptions {
    /// SO_REUSEPORT: several listeners share the port, the kernel spreads connections.
    pub reuse_port: bool,
    /// Bind once without SO_REUSEPORT first, so that a port which another process shares is refused, not halved.
    pub probe_plain_bind: bool,
    /// SO_RCVBUF, set only where `net.core.rmem_max` allows it; otherwise autotuning is left alone.
    pub receive_buffer_bytes: Option<usize>,
    /// Connections that may wait to be accepted.
    pub backlog: i32,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { reuse_port: false, probe_plain_bind: false, receive_buffer_bytes: None, backlog: 1024 }
    }
}

/// How a file opens. `Default` opens nothing: choose `read` or `write` at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// Create it when missing.
    pub create: bool,
    /// Create it and fail with `AlreadyExists` when present.
    pub create_new: bool,
    /// Empty it.
    pub truncate: bool,
    /// Past the page cache (O_DIRECT) where the file system can; [`crate::File::is_direct`] tells.
    pub direct: bool,
}

impl OpenOptions {
    /// An existing file, for reading.
    pub const READ: Self =
        Self { read: true, write: false, create: false, create_new: false, truncate: false, direct: false };
    /// For reading and writing, created when missing.
    pub const READ_WRITE_CREATE: Self =
        Self { read: true, write: true, create: true, create_new: false, truncate: false, direct: false };

    /// The same, past the page cache.
    pub const fn with_direct(mut self) -> Self {
        self.direct = true;
        self
    }

    /// The same, emptied.
    pub const fn with_truncate(mut self) -> Self {
        self.truncate = true;
        self
    }
}

/// Whether a direct write is durable when it completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteSync {
    /// Handed to the device; a later sync makes it durable.
    None,
    /// Data and what is needed to read it back are durable (RWF_DSYNC).
    Data,
}

/// The room of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceInfo {
    /// Bytes that an unprivileged user may still write.
    pub free_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirectoryEntry {
    /// The name, without the directory. Names that are not UTF-8 are shown with replacement characters.
    pub name: String,
    /// Whether it is a directory itself.
    pub is_directory: bool,
}
