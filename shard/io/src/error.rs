//! Why an executor could not be set up, with the remedy. Errors of single operations are `std::io::Error`.

use std::io;

/// Whether an operation failed because the process, or the machine, has no descriptor left. That passes when others are closed.
#[must_use]
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// What was refused while an executor was set up. Each text names the call, the kernel's answer and what to do.
#[derive(Debug, thiserror::Error)]
pub enum IoSetupError {
    /// The kernel refused a ring.
    #[error("io_uring_setup refused: {source}; {remedy}")]
    Ring {
        /// The kernel's answer.
        source: io::Error,
        /// What the operator can do.
        remedy: &'static str,
    },
    /// The kernel has io_uring but lacks something that this build needs.
    #[error("io_uring lacks {missing}; kernel 6.1 or newer is needed, or choose the epoll driver")]
    RingTooOld {
        /// The missing operation or flag.
        missing: &'static str,
    },
    /// A descriptor that every driver needs was refused.
    #[error("{call} refused: {source}; raise the limit of open files (ulimit -n)")]
    Descriptor {
        /// The system call.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The thread could not be bound to its CPU.
    #[error(
        "cannot pin to cpu {cpu}: {source}; choose one of the allowed cpus ({allowed}) or switch pinning off"
    )]
    Pin {
        /// The CPU asked for.
        cpu: usize,
        /// The kernel's answer.
        source: io::Error,
        /// The allowed CPUs as a list.
        allowed: String,
    },
    /// This build has no such scheduler.
    #[error("scheduler {name} is not in this build; build with --features {name}")]
    SchedulerMissing {
        /// The scheduler asked for.
        name: &'static str,
    },
    /// The second scheduler refused to start.
    #[error("scheduler {name} cannot start: {reason}")]
    Scheduler {
        /// The scheduler asked for.
        name: &'static str,
        /// Its own words.
        reason: String,
    },
}

impl IoSetupError {
    /// The error of a refused ring, with the remedy that fits the kernel's answer.
    pub(crate) fn ring(source: io::Error) -> Self {
        let remedy = match source.raw_os_error() {
            Some(libc::EPERM) => {
                "allow it (kernel.io_uring_disabled=0, or a seccomp profile that permits io_uring) or choose the epoll driver"
            }
            Some(libc::ENOSYS) => {
                "this kernel was built without io_uring, or a seccomp profile hides it: choose the epoll driver"
            }
            Some(libc::ENOMEM) => {
                "raise the locked-memory limit (ulimit -l, LimitMEMLOCK=) or choose the epoll driver"
            }
            Some(libc::EINVAL) => "kernel 6.1 or newer is needed: choose the epoll driver",
            Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
            _ => "choose the epoll driver",
        };
        Self::Ring { source, remedy }
    }
}
