//! Owns the answer to "where does this value come from", for every value and every refusal.

use std::fmt;
use std::path::PathBuf;

/// Where a value was set, by falling precedence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// A command line flag of its own, such as `--listen`.
    Flag(&'static str),
    /// `--set key=value`.
    Set,
    /// An environment variable.
    Variable(String),
    /// A line of the properties file.
    File { path: PathBuf, line: u32 },
    /// The key's built-in default.
    Default,
}

impl Origin {
    /// Typed on the command line, so a mistake in it is one of usage (exit 2), not of configuration (exit 78).
    pub fn is_command_line(&self) -> bool {
        matches!(self, Origin::Flag(_) | Origin::Set)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Flag(flag) => write!(formatter, "flag {flag}"),
            Origin::Set => write!(formatter, "flag --set"),
            Origin::Variable(name) => write!(formatter, "env {name}"),
            Origin::File { path, line } => write!(formatter, "{}:{line}", path.display()),
            Origin::Default => write!(formatter, "default"),
        }
    }
}
