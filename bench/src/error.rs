//! Why a benchmark could not be run. A run that was measured and found wanting is a report, not an error.

use std::process::ExitCode;

use ringlog_io::IoSetupError;

use crate::client::ClientError;

/// Exit code of a failed run or check.
pub const EXIT_FAILURE: u8 = 1;
/// Exit code of wrong usage, as clap's.
pub const EXIT_USAGE: u8 = 2;
/// Exit code after SIGINT or SIGTERM: 128 + SIGINT.
pub const EXIT_INTERRUPTED: u8 = 130;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An option has a value that makes no sense.
    #[error("{option}: {reason}")]
    Usage { option: &'static str, reason: String },
    /// The generator's executor cannot start.
    #[error("the generator cannot start: {source}")]
    Setup { source: Box<IoSetupError> },
    /// The broker refused, or cannot be reached.
    #[error("{source}")]
    Client {
        #[from]
        source: ClientError,
    },
    /// A file or process of this machine.
    #[error("{what}: {source}")]
    Local { what: String, source: std::io::Error },
    /// The temporary broker did not come up.
    #[error("the temporary broker did not start: {reason}")]
    Broker { reason: String },
    /// The process named with --broker-pid.
    #[error("--broker-pid {pid}: {reason}")]
    BrokerProcess { pid: u32, reason: String },
    /// A thread of the generator died.
    #[error("a generator thread ended early: {reason}")]
    Thread { reason: String },
    /// The topic cannot be used as it is.
    #[error("topic '{topic}': {reason}")]
    Topic { topic: String, reason: String },
    /// The user interrupted.
    #[error("interrupted")]
    Interrupted,
}

impl From<IoSetupError> for BenchError {
    fn from(source: IoSetupError) -> BenchError {
        BenchError::Setup { source: Box::new(source) }
    }
}

impl BenchError {
    /// An error of the local machine, with what was being done.
    pub fn local(what: impl Into<String>, source: std::io::Error) -> BenchError {
        BenchError::Local { what: what.into(), source }
    }

    /// The process exit code it leads to.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            BenchError::Usage { .. } => ExitCode::from(EXIT_USAGE),
            BenchError::Interrupted => ExitCode::from(EXIT_INTERRUPTED),
            _ => ExitCode::from(EXIT_FAILURE),
        }
    }
}
