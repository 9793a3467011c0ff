//! Configs of topics: which keys there are, what values they take, and what they come to together with the broker's defaults.
//!
//! Owns parsing and its refusals. Pure: it stores nothing and asks no one. A key whose effect is not built yet is accepted at its default only,
//! so that no topic ever claims a behaviour that it does not have.

pub mod report;
mod table;
#[cfg(test)]
pub(crate) mod tests;

use ringlog_protocol::records::attributes::TimestampType;
use ringlog_shard::storage::compaction::CompactionSettings;
use ringlog_shard::storage::compaction::choice::WHOLE;

use crate::config::layers::Overrides;
use crate::config::typed::{TimestampType as DefaultTimestampType, TopicDefaults};

/// One key.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TopicKey {
    pub name: &'static str,
    pub kind: Kind,
    /// As Kafka has it; the broker's own default may differ where `server` names its key.
    pub default: &'static str,
    /// The broker's key that sets the default.
    pub server: Option<&'static str>,
    pub effect: Effect,
    /// Sentences for DescribeConfigs.
    pub doc: &'static str,
}

/// What values a key takes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Kind {
    /// Inclusive bounds.
    Integer {
        minimum: i64,
        maximum: i64,
    },
    Boolean,
    Choice(&'static [&'static str]),
    /// Several of these, separated by commas; none is allowed.
    List(&'static [&'static str]),
    /// A decimal number from 0 to 1.
    Fraction,
    /// `partition:broker` pairs, or `*`.
    Replicas,
}

/// Whether setting a key does anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    Built,
    /// Any value is taken and shown, and none changes anything: what it asks for is met already, for this reason. Tools that copy all
    /// configs of a topic set such keys.
    Met(&'static str),
    /// Not built, for this reason; its default is what happens anyway.
    DefaultOnly(&'static str),
    /// Not accepted at all.
    Refused(&'static str),
}

/// Why a config is refused (INVALID_CONFIG, 40). The text names key, value, what is allowed and what to do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TopicConfigError {
    #[error("unknown topic config '{key}'{}", suggest(*.suggestion))]
    Unknown { key: String, suggestion: Option<&'static str> },
    #[error("topic config '{key}' has no value; give it {allowed}, or leave it out to use the default")]
    Null { key: &'static str, allowed: String },
    #[error(
        "value '{value}' of topic config '{key}' is refused: it takes {allowed}; correct it, or leave it out to use the default"
    )]
    Invalid { key: &'static str, value: String, allowed: String },
    #[error(
        "value '{value}' of topic config '{key}' is refused: {why}; set it to '{default}', or leave it out"
    )]
    NotBuilt { key: &'static str, value: String, default: &'static str, why: &'static str },
    #[error("topic config '{key}' (given '{value}') is refused: {why}; leave it out")]
    Refused { key: &'static str, value: String, why: &'static str },
    /// Kafka's words.
    #[error(
        "conflict topic config setting min.compaction.lag.ms ({min_ms}) > max.compaction.lag.ms ({max_ms})"
    )]
    Lags { min_ms: i64, max_ms: i64 },
}

fn suggest(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(
        || "; leave it out, or see the reference of topic configs".to_owned(),
        |name| format!("; did you mean '{name}'?"),
    )
}

/// Longest text of a client that a refusal repeats, in characters.
const QUOTED_CHARACTERS_MAX: usize = 128;

/// What a topic's configs come to: the keys that have an effect, in their own types.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicConfig {
    /// `max.message.bytes`: the largest batch with its 12 bytes of offset and length, in bytes.
    pub message_bytes_max: u32,
    /// `segment.bytes`: a segment is closed when it would grow beyond this.
    pub segment_bytes: u32,
    /// `index.interval.bytes`.
    pub index_interval_bytes: u32,
    /// `message.timestamp.type`.
    pub timestamp_type: TimestampType,
    /// `message.timestamp.before.max.ms`: 0 or more; `i64::MAX` is no bound.
    pub timestamp_before_ms_max: i64,
    /// `message.timestamp.after.max.ms`: 0 or more.
    pub timestamp_after_ms_max: i64,
    /// `cleanup.policy`.
    pub cleanup: CleanupPolicy,
    /// `segment.ms`, or `max.compaction.lag.ms` where that is shorter and the cleanup policy compacts: 1 or more.
    pub segment_ms: i64,
    /// `segment.jitter.ms`: 0 or more.
    pub segment_jitter_ms: i64,
    /// `retention.ms`; `None` = no limit, also where the cleanup policy does not delete.
    pub retention_ms: Option<i64>,
    /// `retention.bytes`; `None` as for the time.
    pub retention_bytes: Option<u64>,
    /// How it is compacted; none where the cleanup policy does not compact.
    pub compaction: Option<CompactionSettings>,
    /// `min.insync.replicas`: 1 or more; never more than the topic's replicas counts.
    pub min_insync_replicas: i32,
}

/// `cleanup.policy`; neither = everything stays (KIP-1161).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CleanupPolicy {
    /// Old segments go.
    pub delete: bool,
    /// The newest record of each key stays.
    pub compact: bool,
}

/// Every key, sorted by name.
pub fn keys() -> &'static [TopicKey] {
    table::ALL
}

/// The key of this name.
pub fn find(name: &str) -> Option<&'static TopicKey> {
    table::ALL.iter().find(|key| key.name == name)
}

/// Checks one override as a client gave it.
///
/// # Errors
/// See [`TopicConfigError`].
pub fn check(key: &str, value: Option<&str>) -> Result<(), TopicConfigError> {
    let Some(known) = find(key) else {
        return Err(TopicConfigError::Unknown { key: quoted(key), suggestion: suggestion(key) });
    };
    let key = known.name;
    let Some(value) = value else {
        return Err(TopicConfigError::Null { key, allowed: known.kind.allowed() });
    };
    if let Effect::Refused(why) = known.effect {
        return Err(TopicConfigError::Refused { key, value: quoted(value), why });
    }
    let Some(normal) = known.kind.normalize(value) else {
        return Err(TopicConfigError::Invalid { key, value: quoted(value), allowed: known.kind.allowed() });
    };
    match known.effect {
        Effect::DefaultOnly(why) if Some(&normal) != known.kind.normalize(known.default).as_ref() => {
            Err(TopicConfigError::NotBuilt { key, value: quoted(value), default: known.default, why })
        }
        _ => Ok(()),
    }
}

/// Checks what involves several configs of a topic, each of which was checked before.
///
/// # Errors
/// [`TopicConfigError::Lags`].
pub fn check_together(defaults: &TopicDefaults, overrides: &Overrides) -> Result<(), TopicConfigError> {
    let lag = |name: &str, default: i64| {
        overrides.get(name).and_then(|value| value.trim().parse().ok()).unwrap_or(default)
    };
    let min_ms = lag("min.compaction.lag.ms", defaults.min_compaction_lag_ms);
    let max_ms = lag("max.compaction.lag.ms", defaults.max_compaction_lag_ms);
    if min_ms > max_ms { Err(TopicConfigError::Lags { min_ms, max_ms }) } else { Ok(()) }
}

/// A share of 0 to 1 in millionths; none for anything else.
pub(crate) fn millionths(text: &str) -> Option<u32> {
    let share: f64 = text.trim().parse().ok().filter(|share| (0.0..=1.0).contains(share))?;
    // Within 0 to 1,000,000, so the cast is exact after rounding.
    Some((share * f64::from(WHOLE)).round() as u32)
}

impl TopicConfig {
    /// The configs in force. An override that this build would refuse (only another build can have stored it) is passed over,
    /// and the broker's default holds.
    pub fn resolve(defaults: &TopicDefaults, overrides: &Overrides) -> TopicConfig {
        let given = |name: &str| {
            let value = overrides.get(name)?;
            check(name, Some(value)).ok()?;
            Some(value.trim())
        };
        let integer =
            |name: &str, default: i64| given(name).and_then(|value| value.parse().ok()).unwrap_or(default);
        let size = |name: &str, default: i32| {
            let value = integer(name, i64::from(default));
            u32::try_from(value).expect("the table keeps sizes within 0..=i32::MAX")
        };
        let cleanup = cleanup_policy(defaults, overrides);
        let retention = |name: &str, default: i64| {
            Some(integer(name, default)).filter(|limit| cleanup.delete && *limit >= 0)
        };
        let timestamp_type = match given("message.timestamp.type") {
            Some("LogAppendTime") => TimestampType::LogAppendTime,
            Some(_) => TimestampType::CreateTime,
            None => match defaults.timestamp_type {
                DefaultTimestampType::CreateTime => TimestampType::CreateTime,
                DefaultTimestampType::LogAppendTime => TimestampType::LogAppendTime,
            },
        };
        let segment_ms = integer("segment.ms", defaults.segment_ms);
        let max_lag_ms = integer("max.compaction.lag.ms", defaults.max_compaction_lag_ms);
        let compaction = CompactionSettings {
            min_dirty_millionths: given("min.cleanable.dirty.ratio")
                .and_then(millionths)
                .unwrap_or(defaults.min_cleanable_millionths),
            min_lag_ms: integer("min.compaction.lag.ms", defaults.min_compaction_lag_ms),
            max_lag_ms,
            delete_retention_ms: integer("delete.retention.ms", defaults.delete_retention_ms),
        };
        TopicConfig {
            message_bytes_max: size("max.message.bytes", defaults.message_bytes_max),
            segment_bytes: size("segment.bytes", defaults.segment_bytes),
            index_interval_bytes: size("index.interval.bytes", defaults.index_interval_bytes),
            timestamp_type,
            cleanup,
            segment_ms: if cleanup.compact { segment_ms.min(max_lag_ms) } else { segment_ms },
            compaction: cleanup.compact.then_some(compaction),
            segment_jitter_ms: integer("segment.jitter.ms", defaults.segment_jitter_ms),
            retention_ms: retention("retention.ms", defaults.retention_ms),
            retention_bytes: retention("retention.bytes", defaults.retention_bytes)
                .map(|bytes| u64::try_from(bytes).expect("a limit is 0 or more")),
            timestamp_before_ms_max: integer(
                "message.timestamp.before.max.ms",
                defaults.timestamp_before_ms_max,
            ),
            timestamp_after_ms_max: integer(
                "message.timestamp.after.max.ms",
                defaults.timestamp_after_ms_max,
            ),
            min_insync_replicas: i32::try_from(integer(
                "min.insync.replicas",
                i64::from(defaults.min_insync_replicas),
            ))
            .expect("the table keeps it within 1..=i32::MAX"),
        }
    }
}

/// The policy as it stands, also where this build would refuse it: a topic that asked for something else than deletion, which
/// only another build can have stored, must not lose records by age.
fn cleanup_policy(defaults: &TopicDefaults, overrides: &Overrides) -> CleanupPolicy {
    overrides.get("cleanup.policy").map_or(defaults.cleanup, |value| CleanupPolicy::of(value))
}

impl CleanupPolicy {
    /// Of a list as `cleanup.policy` takes it.
    pub fn of(list: &str) -> CleanupPolicy {
        let has = |policy: &str| list.split(',').any(|item| item.trim() == policy);
        CleanupPolicy { delete: has("delete"), compact: has("compact") }
    }

    /// As `cleanup.policy` takes it.
    pub fn list(self) -> &'static str {
        match (self.compact, self.delete) {
            (true, true) => "compact,delete",
            (true, false) => "compact",
            (false, true) => "delete",
            (false, false) => "",
        }
    }
}

impl Kind {
    /// The range as refusals print it.
    pub fn allowed(&self) -> String {
        match *self {
            Kind::Integer { minimum, maximum: i64::MAX } => format!("a whole number, {minimum} or more"),
            Kind::Integer { minimum, maximum } => format!("a whole number from {minimum} to {maximum}"),
            Kind::Boolean => "true or false".to_owned(),
            Kind::Choice(choices) => format!("one of {}", choices.join(", ")),
            Kind::List(choices) => format!("any of {}, separated by commas", choices.join(", ")),
            Kind::Fraction => "a number from 0 to 1".to_owned(),
            Kind::Replicas => "partition:broker pairs separated by commas, or *".to_owned(),
        }
    }

    /// The value in one spelling, so that equal values compare equal; `None` when it is not allowed. Spaces around it and the case
    /// of booleans do not matter, as in Kafka's `ConfigDef`.
    fn normalize(&self, value: &str) -> Option<String> {
        let value = value.trim();
        match *self {
            Kind::Integer { minimum, maximum } => {
                let number: i64 = value.parse().ok()?;
                (minimum..=maximum).contains(&number).then(|| number.to_string())
            }
            Kind::Boolean => {
                let lower = value.to_ascii_lowercase();
                matches!(lower.as_str(), "true" | "false").then_some(lower)
            }
            Kind::Choice(choices) => choices.contains(&value).then(|| value.to_owned()),
            Kind::List(choices) => {
                let mut items: Vec<&str> =
                    value.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
                items.sort_unstable();
                items.dedup();
                items.iter().all(|item| choices.contains(item)).then(|| items.join(","))
            }
            Kind::Fraction => {
                let number: f64 = value.parse().ok()?;
                (0.0..=1.0).contains(&number).then(|| number.to_string())
            }
            Kind::Replicas => {
                let pair = |pair: &str| {
                    pair.split_once(':').is_some_and(|(partition, broker)| {
                        partition.trim().parse::<u32>().is_ok() && broker.trim().parse::<u32>().is_ok()
                    })
                };
                (value.is_empty() || value == "*" || value.split(',').all(pair)).then(|| value.to_owned())
            }
        }
    }
}

/// The key that was probably meant: that of the broker's key given, or the most alike one.
fn suggestion(name: &str) -> Option<&'static str> {
    if let Some(key) = table::ALL.iter().find(|key| key.server == Some(name)) {
        return Some(key.name);
    }
    // Comparing costs length times length, and no key is longer than this.
    let name: String = name.chars().take(QUOTED_CHARACTERS_MAX).collect();
    let alike = |key: &TopicKey| strsim::normalized_damerau_levenshtein(&name, key.name);
    let best = table::ALL.iter().max_by(|a, b| alike(a).total_cmp(&alike(b)))?;
    (alike(best) >= 0.6).then_some(best.name)
}

/// A client's text for a refusal: cut, and without control characters.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted: String = text
        .chars()
        .take(QUOTED_CHARACTERS_MAX)
        .map(|character| if character.is_control() { '?' } else { character })
        .collect();
    if text.chars().nth(QUOTED_CHARACTERS_MAX).is_some() {
        quoted.push_str("...");
    }
    quoted
}
