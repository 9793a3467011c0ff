//! The only door to the kernel: one executor per core, its drivers (io_uring, epoll, simulation), and the handles of
//! sockets and files. Knows nothing of Kafka, of partitions, or of other cores beyond waking them.
//!
//! # Layout
//! - `io`: the handle that everything else uses; `executor`: the loop of one core; `task`, `timers`: what it turns.
//! - `driver`: the trait; `operation`: what is asked and answered; `uring`, `epoll`, `sim`: who answers.
//! - `socket`, `file`, `aligned`, `clock`, `options`, `cpu`, `features`, `notify`: the nouns.
//! - `glommio`: the second scheduler, behind the feature of that name.
//! - `blocking`, `file_work`, `network`, `random`: what drivers share.
//! - `reached`: counters of rare branches, for simulations.

mod aligned;
mod blocking;
mod clock;
mod cpu;
mod driver;
mod epoll;
mod error;
mod executor;
mod features;
mod file;
mod file_work;
#[cfg(feature = "glommio")]
mod glommio;
mod io;
mod network;
mod notify;
mod operation;
mod options;
mod random;
pub mod reached;
pub mod sim;
mod socket;
mod task;
mod timers;
mod uring;

pub use aligned::{ALIGNMENT_BYTES, AlignedBuffer};
pub use clock::Monotonic;
pub use cpu::{CpuId, CpuListError, allowed_cpus, format_cpu_list, parse_cpu_list};
pub use driver::{Driver, DriverStats, Wait};
pub use error::{IoSetupError, is_out_of_descriptors};
pub use executor::Executor;
pub use features::{Feature, FeatureError, FeatureSet, FeatureSwitches};
pub use file::{File, FileLock};
pub use io::{Io, Sleep, YieldNow};
pub use notify::{Handshake, Notifier};
pub use operation::{Completion, FileOperation, Job, JobOutcome, Operation, Returned, Token};
pub use options::{
    DirectoryEntry, DriverKind, ExecutorConfig, ListenOptions, OpenOptions, Scheduler, SpaceInfo, WriteSync,
};
pub use socket::{
    HangUp, Listener, ListenerHandle, ListenerInner, Socket, SocketHandle, SocketInner, SocketTransfer,
};
pub use task::{Priority, Task};

/// The most bytes that one [`Io::recv_some`] yields.
pub const RECEIVE_SOME_BYTES_MAX: usize = 16 * 1024;
