//! Owns configuration: the keys, the syntax of `server.properties`, the layers above it, and the typed result.
//! Nothing here looks at the machine except `load_from_process`, which reads what the other functions are given.
//!
//! Reading order: [`keys`] and `table`, [`properties`], [`environment`], [`value`], [`mod@load`], [`typed`]; then what
//! changes at run time: [`dynamic`], [`layers`], [`group_configs`].

pub mod dynamic;
pub mod environment;
pub mod error;
pub mod group_configs;
pub mod groups;
pub mod keys;
pub mod layers;
pub mod load;
pub mod origin;
pub mod properties;
pub mod reference;
mod table;
pub mod typed;
pub mod value;

#[cfg(test)]
mod tests;

use std::io::Read;
use std::path::{Path, PathBuf};

pub use error::{ConfigError, ConfigErrors};
pub use origin::Origin;
pub use typed::BrokerConfig;

use load::Sources;
use typed::Account;

/// A properties file larger than this is some other file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Resolves, checks and types a configuration.
///
/// # Errors
/// All refusals at once.
pub fn load(sources: &Sources, account: &Account) -> Result<BrokerConfig, ConfigErrors> {
    typed::build(&load::resolve(sources)?, account)
}

/// Loads with the process's environment and account, and the file of `--config` or `RINGLOG_CONFIG`.
///
/// # Errors
/// All refusals at once.
pub fn load_from_process(
    flags: Vec<(&'static str, &'static str, String)>,
    sets: Vec<String>,
    config_flag: Option<PathBuf>,
) -> Result<BrokerConfig, ConfigErrors> {
    // A variable of ours that is not Unicode cannot be a legal value; its lossy form is refused with its name.
    let variables: Vec<(String, String)> = std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .filter(|(name, _)| name.starts_with(environment::PREFIX))
        .collect();
    let variable = std::env::var_os(environment::CONFIG_FILE).map(PathBuf::from);
    let file = match (config_flag, variable) {
        (Some(path), _) => Some((path, Origin::Flag("--config"))),
        (None, Some(path)) => Some((path, Origin::Variable(environment::CONFIG_FILE.to_owned()))),
        (None, None) => None,
    };
    let file = match file {
        Some((path, origin)) => match read_file(&path) {
            Ok(text) => Some((path, text)),
            Err(reason) => return Err(ConfigErrors(vec![ConfigError::Unreadable { path, origin, reason }])),
        },
        None => None,
    };
    load(&Sources { flags, sets, variables, file }, &account_of_process())
}

fn read_file(path: &Path) -> Result<String, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("larger than {FILE_BYTES_MAX} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "not UTF-8 text".to_owned())
}

fn account_of_process() -> Account {
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // systemd separates several directories by colons; the first is the service's own.
    let state = path("STATE_DIRECTORY")
        .and_then(|value| value.to_str().and_then(|text| text.split(':').next()).map(PathBuf::from));
    Account {
        is_root: rustix::process::geteuid().is_root(),
        state_directory: state,
        data_home: path("XDG_DATA_HOME"),
        home: path("HOME"),
    }
}
