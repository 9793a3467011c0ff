//! Owns the refusals of a configuration: each names key, value, what is allowed, where the value came from, and what to
//! do. It never decides what is wrong.

use std::path::PathBuf;

use thiserror::Error;

use super::environment;
use super::origin::Origin;
use crate::process::escape::escaped;
use crate::process::exit::Exit;

/// One reason why a configuration is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    #[error("unknown key `{}` ({origin}): {}", escaped(key), suggestion_sentence(*suggestion))]
    UnknownKey { key: String, origin: Origin, suggestion: Option<&'static str> },
    #[error(
        "`{key}` = `{}` ({origin}): {problem}; allowed: {allowed}; {}",
        escaped(value),
        remedy(key, origin)
    )]
    BadValue { key: &'static str, value: String, origin: Origin, problem: String, allowed: String },
    #[error(
        "`{key}` = `{}` ({origin}): only the default `{default}` is accepted: {reason}; remove the setting",
        escaped(value)
    )]
    NotBuilt { key: &'static str, value: String, origin: Origin, default: &'static str, reason: &'static str },
    #[error("`{}` (flag --set): not of the form key=value", escaped(text))]
    BadSet { text: String },
    #[error("cannot read the configuration file {} ({origin}): {reason}", path.display())]
    Unreadable { path: PathBuf, origin: Origin, reason: String },
    #[error("{}: {problem}", path.display())]
    Syntax { path: PathBuf, problem: super::properties::PropertiesError },
    #[error(
        "`log.dirs` (default): no home directory is known, so there is no default place for data; set --data-dir, or \
         --ephemeral to keep everything in memory"
    )]
    NoDataDirectory,
    #[error("`{key}` = `{}` ({origin}): {problem}", escaped(value))]
    Conflict { key: &'static str, value: String, origin: Origin, problem: String },
}

impl ConfigError {
    /// Typed on the command line, so that the exit code is that of wrong usage.
    fn is_usage(&self) -> bool {
        match self {
            ConfigError::UnknownKey { origin, .. }
            | ConfigError::BadValue { origin, .. }
            | ConfigError::NotBuilt { origin, .. }
            | ConfigError::Conflict { origin, .. } => origin.is_command_line(),
            ConfigError::BadSet { .. } => true,
            ConfigError::Unreadable { .. } | ConfigError::Syntax { .. } | ConfigError::NoDataDirectory => {
                false
            }
        }
    }
}

/// All reasons at once, so that a file is mended in one go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl ConfigErrors {
    /// 2 when every mistake was typed as a flag with a bad value, otherwise 78. A mistaken *key* is always 78.
    pub fn exit(&self) -> Exit {
        let unknown = self.0.iter().any(|error| matches!(error, ConfigError::UnknownKey { .. }));
        if !unknown && self.0.iter().all(ConfigError::is_usage) { Exit::Usage } else { Exit::Config }
    }
}

impl std::fmt::Display for ConfigErrors {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(formatter, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

fn suggestion_sentence(suggestion: Option<&'static str>) -> String {
    match suggestion {
        Some(name) => format!("did you mean `{name}`?"),
        None => "`ringlog config reference` lists every key".to_owned(),
    }
}

fn remedy(key: &str, origin: &Origin) -> String {
    match origin {
        Origin::Flag(flag) => format!("correct {flag}"),
        Origin::Set => format!("correct --set {key}=..."),
        Origin::Variable(name) => format!("correct or unset {name}"),
        Origin::File { .. } => format!("correct the line, or override it with --set {key}=..."),
        Origin::Default => format!("set `{key}` or {}", environment::variable_of(key)),
    }
}
