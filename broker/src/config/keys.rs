//! Owns what a configuration key is, and looking one up. The keys themselves are in `table.rs` and its parts.

use super::layers::ConfigType;
use super::table;

/// Every key, in the order of the reference page.
pub const ALL: &[Key] = table::ALL;

/// One configuration key: all that the parser, the refusals and the reference page say of it.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    pub name: &'static str,
    pub kind: Kind,
    /// In the notation of a properties file.
    pub default: &'static str,
    pub effect: Effect,
    pub update: Update,
    /// Sentences for the reference page and `ringlog config explain`.
    pub doc: &'static str,
}

/// What a value must look like. Bounds are inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Boolean,
    Integer {
        minimum: i64,
        maximum: i64,
    },
    /// `auto`, or an integer.
    AutoInteger {
        minimum: i64,
        maximum: i64,
    },
    /// Empty, or an integer.
    OptionalInteger {
        minimum: i64,
        maximum: i64,
    },
    /// A number of bytes, or with a suffix: `64KiB`, `8m`, `1GiB`.
    Bytes {
        minimum: i64,
        maximum: i64,
    },
    AutoBytes {
        minimum: i64,
        maximum: i64,
    },
    Milliseconds {
        minimum: i64,
        maximum: i64,
    },
    /// A decimal number; no maximum = no end.
    Number {
        minimum: u32,
        maximum: Option<u32>,
    },
    /// Several of these, separated by commas, or none.
    List(&'static [&'static str]),
    Choice(&'static [&'static str]),
    Text {
        bytes_max: usize,
    },
    /// One directory, `auto` for the key's own rule.
    Directory,
    Listeners,
    AdvertisedListeners,
    /// `HOST:PORT`, or `none`.
    Address,
    /// `0-3,8`; empty = all CPUs that the process may use.
    CpuList,
    /// `-cachestat,+send_zc`.
    Features,
    /// `auto`, bytes, or `25%` of what the process may use.
    Memory,
    /// `info,ringlog_shard=debug`.
    LogFilter,
    /// Another name of this key.
    Alias(&'static str),
}

/// Whether setting the key does something yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Built,
    /// Accepted at its default only, so that no setting is ignored in silence. Holds the sentence that the refusal
    /// ends with.
    NotBuilt(&'static str),
}

/// When a changed value takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// At once, by `IncrementalAlterConfigs` of the broker; what its own configuration says, at the next start.
    Runtime,
    /// At the next start.
    Restart,
    /// Fixed when the data directory is first written.
    Formatted,
}

/// The key of that exact name.
pub fn find(name: &str) -> Option<&'static Key> {
    ALL.iter().find(|key| key.name == name)
}

/// The key that a decoded environment variable means: itself, or with `ringlog.` in front.
pub fn find_variable(decoded: &str) -> Option<&'static Key> {
    find(decoded).or_else(|| ALL.iter().find(|key| key.name.strip_prefix("ringlog.") == Some(decoded)))
}

/// The key most like a mistyped name, when one is close enough to be meant.
pub fn suggest(name: &str) -> Option<&'static str> {
    let name = name.to_lowercase().replace('_', ".");
    let score = |key: &Key| {
        let own = key.name.strip_prefix("ringlog.").unwrap_or(key.name);
        strsim::jaro_winkler(&name, key.name).max(strsim::jaro_winkler(&name, own))
    };
    // Jaro-Winkler of two unrelated dotted names lies near 0.6; below 0.85 a suggestion misleads more than it helps.
    ALL.iter()
        .filter(|key| !matches!(key.kind, Kind::Alias(_)))
        .map(|key| (score(key), key.name))
        .filter(|(score, _)| *score >= 0.85)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, name)| name)
}

impl Kind {
    /// The type as clients are told.
    pub fn config_type(&self) -> ConfigType {
        match *self {
            Kind::Integer { maximum, .. }
            | Kind::OptionalInteger { maximum, .. }
            | Kind::Bytes { maximum, .. }
            | Kind::Milliseconds { maximum, .. } => {
                if maximum <= i64::from(i32::MAX) {
                    ConfigType::Int
                } else {
                    ConfigType::Long
                }
            }
            Kind::Boolean => ConfigType::Boolean,
            Kind::Number { .. } => ConfigType::Double,
            Kind::List(_) | Kind::Listeners | Kind::AdvertisedListeners => ConfigType::List,
            // `auto` and the like are no numbers.
            Kind::AutoInteger { .. }
            | Kind::AutoBytes { .. }
            | Kind::Choice(_)
            | Kind::Text { .. }
            | Kind::Directory
            | Kind::Address
            | Kind::CpuList
            | Kind::Features
            | Kind::Memory
            | Kind::LogFilter
            | Kind::Alias(_) => ConfigType::String,
        }
    }

    /// The range as refusals and the reference print it.
    pub fn allowed(&self) -> String {
        match *self {
            Kind::Boolean => "true or false".to_owned(),
            Kind::Integer { minimum, maximum } => range(minimum, maximum, ""),
            Kind::AutoInteger { minimum, maximum } => format!("auto, or {}", range(minimum, maximum, "")),
            Kind::OptionalInteger { minimum, maximum } => {
                format!("empty, or {}", range(minimum, maximum, ""))
            }
            Kind::Bytes { minimum, maximum } => range(minimum, maximum, " bytes"),
            Kind::AutoBytes { minimum, maximum } => format!("auto, or {}", range(minimum, maximum, " bytes")),
            Kind::Milliseconds { minimum, maximum } => range(minimum, maximum, " milliseconds"),
            Kind::Number { minimum, maximum: None } => format!("a number, {minimum} or more"),
            Kind::Number { minimum, maximum: Some(maximum) } => {
                format!("a number from {minimum} to {maximum}")
            }
            Kind::List(choices) => format!("any of {}, separated by commas", choices.join(", ")),
            // Some are lists themselves.
            Kind::Choice(choices) if choices.iter().any(|choice| choice.contains(',')) => {
                choices.join(" or ")
            }
            Kind::Choice(choices) => choices.join(", "),
            Kind::Text { bytes_max } => format!("text of at most {bytes_max} bytes"),
            Kind::Directory => "one directory path".to_owned(),
            Kind::Listeners => "PLAINTEXT://HOST:PORT".to_owned(),
            Kind::AdvertisedListeners => "auto, or PLAINTEXT://HOST:PORT".to_owned(),
            Kind::Address => "HOST:PORT, or none".to_owned(),
            Kind::CpuList => "CPU numbers and ranges such as 0-3,8; empty for all".to_owned(),
            Kind::Features => "feature names, each with + or - in front, separated by commas".to_owned(),
            Kind::Memory => "auto, at least 64MiB, or 1% to 90%".to_owned(),
            Kind::LogFilter => {
                "error, warn, info, debug or trace, also per module: info,ringlog_shard=debug".to_owned()
            }
            Kind::Alias(target) => format!("as {target}"),
        }
    }
}

/// The largest values are written as Kafka's documentation writes them.
fn range(minimum: i64, maximum: i64, unit: &str) -> String {
    match maximum {
        i64::MAX => format!("{minimum} or more{unit}"),
        _ => format!("{minimum} to {maximum}{unit}"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::value;

    #[test]
    fn names_are_unique_and_aliases_point_at_keys() {
        let names: BTreeSet<_> = ALL.iter().map(|key| key.name).collect();
        assert_eq!(names.len(), ALL.len());
        for key in ALL {
            if let Kind::Alias(target) = key.kind {
                let target = find(target).expect("an alias points at a key");
                assert!(!matches!(target.kind, Kind::Alias(_)), "{}", key.name);
            }
            assert!(!key.doc.is_empty() && key.doc.ends_with('.'), "{}", key.name);
        }
    }

    #[test]
    fn our_prefix_hides_no_kafka_key() {
        // The environment rule tries a name with and without `ringlog.`.
        for key in ALL {
            if let Some(own) = key.name.strip_prefix("ringlog.") {
                assert!(find(own).is_none(), "{own}");
            }
        }
    }

    #[test]
    fn every_default_is_a_legal_value() {
        for key in ALL {
            if !matches!(key.kind, Kind::Alias(_)) {
                assert!(value::parse(key, key.default).is_ok(), "{} = {}", key.name, key.default);
            }
        }
    }

    #[test]
    fn suggestions() {
        let check = |typed: &str, expected: Option<&str>| assert_eq!(suggest(typed), expected, "{typed}");
        check("log.dris", Some("log.dirs"));
        check("num.partition", Some("num.partitions"));
        check("advertised.listener", Some("advertised.listeners"));
        check("shards", Some("ringlog.shards"));
        check("ringlog.shard", Some("ringlog.shards"));
        check("LOG_DIRS", Some("log.dirs"));
        check("zookeeper.connect", None);
        check("x", None);
    }
}
