//! Owns which settings of a broker change while it runs, what may be set, and what the layers come to. Pure.

use super::keys::{self, Effect, Key, Kind, Update};
use super::layers::Overrides;
use super::typed::{BrokerConfig, CleanerConfig, TimestampType, TopicDefaults, bytes_per_second};
use super::value::{self, Value};
use crate::topic_config::{CleanupPolicy, millionths, quoted};

/// What a broker works by and may be told anew at run time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeSettings {
    pub topics: TopicDefaults,
    pub cleaner: CleanerConfig,
    /// `max.connections.per.ip`, over all shards.
    pub connections_per_address_max: u32,
}

/// Why a setting is not changed at run time. The texts reach clients.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DynamicConfigError {
    #[error("unknown broker config '{key}'{}", hint(*.suggestion))]
    Unknown { key: String, suggestion: Option<&'static str> },
    #[error("broker config '{key}' cannot change while the broker runs: {why}")]
    Fixed { key: &'static str, why: &'static str },
    #[error("value '{value}' of broker config '{key}' is refused: {problem}; it takes {allowed}")]
    Invalid { key: &'static str, value: String, problem: String, allowed: String },
}

fn hint(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(
        || "; `ringlog config reference` names them all".to_owned(),
        |name| format!("; did you mean '{name}'?"),
    )
}

impl RuntimeSettings {
    /// As the broker's own configuration says.
    pub fn of(config: &BrokerConfig) -> RuntimeSettings {
        RuntimeSettings {
            topics: config.topics.clone(),
            cleaner: config.cleaner,
            connections_per_address_max: config.limits.connections_per_address_max,
        }
    }

    /// With what was set since on every node, and stronger on this one. What this build would refuse (only another can have
    /// stored it) is passed over.
    #[must_use]
    pub fn with(&self, cluster: &Overrides, node: &Overrides) -> RuntimeSettings {
        let mut settings = self.clone();
        for (name, text) in cluster.iter().chain(node) {
            let key = keys::find(name).filter(|key| key.update == Update::Runtime);
            if let Some((key, Ok(value))) = key.map(|key| (key, value::parse(key, text))) {
                settings.apply(key.name, &value);
            }
        }
        settings
    }

    // The casts are exact: the table bounds each key to its type, which a test checks.
    fn apply(&mut self, name: &str, value: &Value) {
        let topics = &mut self.topics;
        let number = match value {
            Value::Integer(number) | Value::AutoInteger(Some(number)) => *number,
            Value::Choice(choice) if name == "log.message.timestamp.type" => {
                topics.timestamp_type = match *choice {
                    "LogAppendTime" => TimestampType::LogAppendTime,
                    _ => TimestampType::CreateTime,
                };
                return;
            }
            Value::Text(text) => return self.apply_text(name, text),
            _ => return,
        };
        let cleaner = &mut self.cleaner;
        match name {
            "message.max.bytes" => topics.message_bytes_max = number as i32,
            "log.segment.bytes" => topics.segment_bytes = number as i32,
            "log.index.interval.bytes" => topics.index_interval_bytes = number as i32,
            "log.message.timestamp.before.max.ms" => topics.timestamp_before_ms_max = number,
            "log.message.timestamp.after.max.ms" => topics.timestamp_after_ms_max = number,
            "log.retention.ms" => topics.retention_ms = number,
            "log.retention.bytes" => topics.retention_bytes = number,
            "log.roll.ms" => topics.segment_ms = number,
            "log.roll.jitter.ms" => topics.segment_jitter_ms = number,
            "log.cleaner.delete.retention.ms" => topics.delete_retention_ms = number,
            "log.cleaner.min.compaction.lag.ms" => topics.min_compaction_lag_ms = number,
            "log.cleaner.max.compaction.lag.ms" => topics.max_compaction_lag_ms = number,
            "log.cleaner.dedupe.buffer.size" => cleaner.map_bytes = number as u64,
            "log.cleaner.backoff.ms" => cleaner.backoff_ms = number as u64,
            "max.connections.per.ip" => self.connections_per_address_max = number as u32,
            other => unreachable!("{other} is no number that changes at run time"),
        }
    }

    fn apply_text(&mut self, name: &str, text: &str) {
        let topics = &mut self.topics;
        match name {
            "log.cleanup.policy" => topics.cleanup = CleanupPolicy::of(text),
            "log.cleaner.min.cleanable.ratio" => {
                topics.min_cleanable_millionths = millionths(text).unwrap_or(topics.min_cleanable_millionths);
            }
            "log.cleaner.io.max.bytes.per.second" => self.cleaner.bytes_per_second = bytes_per_second(text),
            other => unreachable!("{other} is no text that changes at run time"),
        }
    }
}

/// Checks one setting as a client gave it.
///
/// # Errors
/// See [`DynamicConfigError`].
pub fn check(name: &str, text: &str, request_bytes_max: u32) -> Result<(), DynamicConfigError> {
    let Some(key) = keys::find(name) else {
        return Err(DynamicConfigError::Unknown { key: quoted(name), suggestion: keys::suggest(name) });
    };
    check_changeable(key)?;
    let invalid = |problem: String| DynamicConfigError::Invalid {
        key: key.name,
        value: quoted(text),
        problem,
        allowed: key.kind.allowed(),
    };
    let value = value::parse(key, text).map_err(invalid)?;
    match value {
        Value::AutoInteger(None) => Err(invalid("it is empty; delete the config instead".to_owned())),
        Value::Integer(bytes) if key.name == "message.max.bytes" => {
            if bytes > i64::from(request_bytes_max) {
                return Err(invalid(format!("socket.request.max.bytes is {request_bytes_max}")));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn check_changeable(key: &'static Key) -> Result<(), DynamicConfigError> {
    let why = match (key.effect, key.update) {
        (Effect::NotBuilt(why), _) => why,
        (Effect::Built, Update::Runtime) => return Ok(()),
        (Effect::Built, _) if matches!(key.kind, Kind::Alias(_)) => "it is another name; use the key itself",
        (Effect::Built, Update::Restart) => "set it in the broker's own configuration and start it again",
        (Effect::Built, Update::Formatted) => "it is fixed when the data directory is first written",
    };
    Err(DynamicConfigError::Fixed { key: key.name, why })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const REQUEST_BYTES_MAX: u32 = 9_000_000;

    const CLEANER: CleanerConfig =
        CleanerConfig { is_enabled: true, map_bytes: 1 << 27, bytes_per_second: 0, backoff_ms: 15_000 };

    fn base() -> RuntimeSettings {
        RuntimeSettings {
            topics: crate::topic_config::tests::defaults(),
            cleaner: CLEANER,
            connections_per_address_max: 7,
        }
    }

    fn overrides(pairs: &[(&str, &str)]) -> Overrides {
        pairs.iter().map(|(key, value)| (Arc::from(*key), Arc::from(*value))).collect()
    }

    fn refusal(name: &str, text: &str) -> String {
        check(name, text, REQUEST_BYTES_MAX).expect_err("it is refused").to_string()
    }

    #[test]
    fn each_key_that_changes_at_run_time_changes_a_setting() {
        for key in keys::ALL.iter().filter(|key| key.update == Update::Runtime) {
            let (value, other) = match key.kind {
                Kind::Choice(choices) => (choices[1], choices[0]),
                Kind::List(_) => ("compact", "compact,delete"),
                Kind::Number { maximum: Some(_), .. } => ("0.25", "0.75"),
                _ => ("1048577", "1048578"),
            };
            assert_eq!(check(key.name, value, REQUEST_BYTES_MAX), Ok(()), "{}", key.name);
            let (set, other) = (overrides(&[(key.name, value)]), overrides(&[(key.name, other)]));
            let none = Overrides::new();
            assert_ne!(base().with(&set, &none), base(), "{}", key.name);
            assert_eq!(base().with(&other, &set), base().with(&none, &set), "{}: the node wins", key.name);
        }
    }

    #[test]
    fn both_ends_of_each_range_are_taken() {
        for key in keys::ALL.iter().filter(|key| key.update == Update::Runtime) {
            let (Kind::Integer { minimum, maximum }
            | Kind::OptionalInteger { minimum, maximum }
            | Kind::Bytes { minimum, maximum }
            | Kind::Milliseconds { minimum, maximum }) = key.kind
            else {
                continue;
            };
            for end in [minimum, maximum] {
                let set = overrides(&[(key.name, &end.to_string())]);
                let with = format!("{:?}", base().with(&set, &Overrides::new()));
                assert!(with.contains(&end.to_string()), "{} = {end}: {with}", key.name);
            }
        }
    }

    #[test]
    fn what_another_build_stored_is_passed_over() {
        let stored = overrides(&[("no.such.key", "1"), ("message.max.bytes", "many"), ("node.id", "9")]);
        assert_eq!(base().with(&stored, &stored), base());
    }

    #[test]
    fn what_needs_a_restart_is_refused_with_the_reason() {
        for name in ["node.id", "num.partitions", "num.io.threads", "broker.id", "min.insync.replicas"] {
            let text = refusal(name, "1");
            let words = format!("broker config '{name}' cannot change while the broker runs: ");
            assert!(text.starts_with(&words), "{text}");
        }
        assert!(refusal("num.partitions", "1").contains("start it again"));
    }

    #[test]
    fn a_bad_value_is_named_with_what_is_allowed() {
        let text = refusal("log.retention.ms", "soon");
        for part in ["'soon'", "'log.retention.ms'", "not a whole number", "-1 or more"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(refusal("log.retention.ms", "").contains("delete the config"));
        assert!(refusal("message.max.bytes", "9000001").contains("socket.request.max.bytes is 9000000"));
        assert!(refusal("no.such.key", "1").contains("unknown broker config 'no.such.key'"));
        assert!(refusal("log.retention.mss", "1").contains("did you mean 'log.retention.ms'?"));
        assert!(refusal("bad\nkey", &"9".repeat(100_000)).len() < 400);
    }
}
