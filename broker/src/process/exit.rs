//! Owns the exit codes, as scripts and service managers see them.

use std::process::ExitCode;

/// How the process ends. Values are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 0
    Success,
    /// 1: it was tried and failed.
    Failure,
    /// 2: the command line is wrong.
    Usage,
    /// 75, `EX_TEMPFAIL`: the same command may succeed later (an address or a data directory is in use).
    TryAgain,
    /// 78, `EX_CONFIG`: the configuration must change first.
    Config,
    /// 128 + n: ended by signal n before the drain was complete.
    Signal(u8),
}

impl Exit {
    pub fn code(self) -> u8 {
        match self {
            Exit::Success => 0,
            Exit::Failure => 1,
            Exit::Usage => 2,
            Exit::TryAgain => 75,
            Exit::Config => 78,
            Exit::Signal(number) => 128 | number,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}
