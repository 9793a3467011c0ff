//! Owns the configs of single groups (GROUP resources): which there are, what may be set, and what they come to, as in Kafka 4.4's
//! `GroupConfig`. Of its keys there are those that mean something to the groups that are built. Pure.

use super::keys;
use super::layers::{ConfigSource, Layers, Overrides, Synonym};
use crate::group::GroupOverrides;
use crate::topic_config::quoted;

/// A config that a group can have. All are whole numbers of milliseconds.
#[derive(Debug, PartialEq, Eq)]
pub struct GroupKey {
    pub name: &'static str,
    /// The broker's key, which holds where the group has no value.
    broker: &'static str,
    /// The broker's keys that bound it, inclusively.
    least: &'static str,
    most: &'static str,
    pub doc: &'static str,
}

const ASSIGNMENT: &str = "consumer.assignment.interval.ms";
const HEARTBEAT: &str = "consumer.heartbeat.interval.ms";
const SESSION: &str = "consumer.session.timeout.ms";

/// All there are, by name.
pub const KEYS: &[GroupKey] = &[
    GroupKey {
        name: ASSIGNMENT,
        broker: "group.consumer.assignment.interval.ms",
        least: "group.consumer.min.assignment.interval.ms",
        most: "group.consumer.max.assignment.interval.ms",
        doc: "An assignment of this consumer group follows another so much later at the earliest.",
    },
    GroupKey {
        name: HEARTBEAT,
        broker: "group.consumer.heartbeat.interval.ms",
        least: "group.consumer.min.heartbeat.interval.ms",
        most: "group.consumer.max.heartbeat.interval.ms",
        doc: "How long members of this consumer group are told to wait between two heartbeats.",
    },
    GroupKey {
        name: SESSION,
        broker: "group.consumer.session.timeout.ms",
        least: "group.consumer.min.session.timeout.ms",
        most: "group.consumer.max.session.timeout.ms",
        doc: "A member of this consumer group that was not heard of for so long is out.",
    },
];

/// Beginnings of keys that Kafka has besides, and why they are refused here.
const NOT_BUILT: [(&str, &str); 4] = [
    ("share.", "share groups are not built"),
    ("streams.", "streams groups are not built"),
    ("errors.deadletterqueue.", "share groups are not built"),
    ("consumer.assignor.offload.enable", "assignments are always computed beside the coordinator"),
];

/// Why configs of a group are refused (INVALID_CONFIG, 40): in Kafka's words where it refuses them too, with what is behind them.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GroupConfigError {
    #[error("unknown group config '{key}'")]
    Unknown { key: String },
    #[error("group config '{key}' is refused: {why}")]
    NotBuilt { key: String, why: &'static str },
    #[error("value '{value}' of group config '{key}' is refused: it takes a whole number of 32 bits")]
    NotANumber { key: &'static str, value: String },
    #[error(
        "group config {} takes {least} to {most}, not {value}: {} and {} of the broker are the range",
        key.name, key.least, key.most
    )]
    OutOfRange { key: &'static GroupKey, value: i32, least: i32, most: i32 },
    #[error(
        "{SESSION} {session_ms} is not more than {HEARTBEAT} {heartbeat_ms}: raise the one or lower the other; where the \
         group has none, the broker's group.{SESSION} and group.{HEARTBEAT} count"
    )]
    SessionTooShort { session_ms: i32, heartbeat_ms: i32 },
}

/// Checks one config as a client gave it, but for its range, which [`check_together`] does.
///
/// # Errors
/// No config that a group can have here, or no number.
pub fn check(name: &str, text: &str) -> Result<(), GroupConfigError> {
    let Some(key) = KEYS.iter().find(|key| key.name == name) else {
        let known = NOT_BUILT.iter().find(|(beginning, _)| name.starts_with(beginning));
        let key = quoted(name);
        return Err(match known {
            Some(&(_, why)) => GroupConfigError::NotBuilt { key, why },
            None => GroupConfigError::Unknown { key },
        });
    };
    match number(text) {
        Some(_) => Ok(()),
        None => Err(GroupConfigError::NotANumber { key: key.name, value: quoted(text) }),
    }
}

/// Checks all that a group shall have against the broker's bounds.
///
/// # Errors
/// A number out of its range, or a session that would end before the next heartbeat.
pub fn check_together(layers: &Layers<'_>, configs: &Overrides) -> Result<(), GroupConfigError> {
    for key in KEYS {
        let Some(value) = own(key, configs) else { continue };
        let (least, most) = bounds(key, layers);
        if !(least..=most).contains(&value) {
            return Err(GroupConfigError::OutOfRange { key, value, least, most });
        }
    }
    let effective = |name: &str| {
        let key = KEYS.iter().find(|key| key.name == name)?;
        own(key, configs).or_else(|| of_broker(key.broker, layers))
    };
    match (effective(SESSION), effective(HEARTBEAT)) {
        (Some(session_ms), Some(heartbeat_ms)) if session_ms <= heartbeat_ms => {
            Err(GroupConfigError::SessionTooShort { session_ms, heartbeat_ms })
        }
        _ => Ok(()),
    }
}

/// What a group works by. As in Kafka, a value that was stored under other bounds is moved into those of this node.
pub fn resolve(layers: &Layers<'_>, configs: &Overrides) -> GroupOverrides {
    let mut resolved = GroupOverrides::default();
    for key in KEYS {
        let (least, most) = bounds(key, layers);
        let value = own(key, configs).map(|value| value.max(least).min(most));
        match key.name {
            ASSIGNMENT => resolved.assignment_interval_ms = value.map(i64::from),
            HEARTBEAT => resolved.heartbeat_interval_ms = value,
            _ => resolved.session_timeout_ms = value,
        }
    }
    resolved
}

/// Every value that a config has somewhere, the one in force first: the group's own, then those of the broker's key.
pub fn synonyms(key: &GroupKey, layers: &Layers<'_>, configs: &Overrides) -> Vec<Synonym> {
    let own = configs.get(key.name).map(|value| Synonym {
        name: key.name,
        value: value.to_string(),
        source: ConfigSource::Group,
    });
    let broker = keys::find(key.broker).map(|key| layers.synonyms(key)).unwrap_or_default();
    own.into_iter().chain(broker).collect()
}

fn own(key: &GroupKey, configs: &Overrides) -> Option<i32> {
    // Only another build can have stored what is no number.
    configs.get(key.name).and_then(|text| number(text))
}

fn number(text: &str) -> Option<i32> {
    text.trim().parse().ok()
}

fn bounds(key: &GroupKey, layers: &Layers<'_>) -> (i32, i32) {
    (of_broker(key.least, layers).unwrap_or(1), of_broker(key.most, layers).unwrap_or(i32::MAX))
}

fn of_broker(name: &str, layers: &Layers<'_>) -> Option<i32> {
    number(&layers.value(keys::find(name)?)?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::Origin;
    use crate::config::typed::EffectiveSetting;

    static NONE: Overrides = Overrides::new();

    fn configs(pairs: &[(&str, &str)]) -> Overrides {
        pairs.iter().map(|(key, value)| (Arc::from(*key), Arc::from(*value))).collect()
    }

    fn layers(settings: &[EffectiveSetting]) -> Layers<'_> {
        Layers { node: &NONE, cluster: &NONE, settings }
    }

    fn set(key: &'static str, value: &str) -> EffectiveSetting {
        EffectiveSetting { key, value: value.to_owned(), origin: Origin::Set }
    }

    #[test]
    fn each_key_stands_on_numbers_of_the_broker_and_changes_what_a_group_works_by() {
        assert!(KEYS.is_sorted_by(|a, b| a.name < b.name));
        let none = layers(&[]);
        for key in KEYS {
            let (least, most) = bounds(key, &none);
            for name in [key.broker, key.least, key.most] {
                let value = of_broker(name, &none).expect("the broker has the key, and a number for it");
                assert!((least..=most).contains(&value), "{name}");
            }
            let changed = resolve(&none, &configs(&[(key.name, &most.to_string())]));
            assert!(format!("{changed:?}").contains(&format!("Some({most})")), "{changed:?}");
            assert_ne!(changed, GroupOverrides::default(), "{}", key.name);
        }
        assert_eq!(resolve(&none, &NONE), GroupOverrides::default());
    }

    #[test]
    fn what_a_group_cannot_have_is_refused() {
        for (name, text, words) in [
            ("no.such", "1", "unknown group config 'no.such'"),
            ("retention.ms", "1", "unknown group config"),
            ("share.session.timeout.ms", "45000", "share groups are not built"),
            ("streams.num.standby.replicas", "1", "streams groups are not built"),
            ("consumer.assignor.offload.enable", "true", "always computed"),
            (HEARTBEAT, "", "whole number of 32 bits"),
            (HEARTBEAT, "5s", "value '5s' of group config 'consumer.heartbeat.interval.ms'"),
            (SESSION, "2147483648", "whole number of 32 bits"),
        ] {
            let text = check(name, text).expect_err(name).to_string();
            assert!(text.contains(words), "{text}");
        }
        assert!(check(&"x".repeat(10_000), "1").is_err_and(|error| error.to_string().len() < 400));
        assert_eq!(check(SESSION, " 50000 "), Ok(()));
    }

    #[test]
    fn ranges_are_the_brokers_and_a_session_outlasts_a_heartbeat() {
        let check = |pairs: &[(&str, &str)], settings: &[EffectiveSetting]| {
            check_together(&layers(settings), &configs(pairs)).map_err(|error| error.to_string())
        };
        for value in ["5000", "15000"] {
            assert_eq!(check(&[(HEARTBEAT, value)], &[]), Ok(()));
        }
        for value in ["4999", "15001", "-1"] {
            let told = format!(
                "group config {HEARTBEAT} takes 5000 to 15000, not {value}: \
                 group.consumer.min.heartbeat.interval.ms and group.consumer.max.heartbeat.interval.ms of the broker are \
                 the range"
            );
            assert_eq!(check(&[(HEARTBEAT, value)], &[]), Err(told));
        }
        assert_eq!(
            check(&[(HEARTBEAT, "700")], &[set("group.consumer.min.heartbeat.interval.ms", "1")]),
            Ok(())
        );
        assert_eq!(check(&[(SESSION, "60000"), (ASSIGNMENT, "0")], &[]), Ok(()));
        let low = [set("group.consumer.min.session.timeout.ms", "1000")];
        let short = |value| {
            Err(format!(
                "{SESSION} {value} is not more than {HEARTBEAT} {value}: raise the one or lower the other; where the group has none, the \
                 broker's group.{SESSION} and group.{HEARTBEAT} count"
            ))
        };
        assert_eq!(check(&[(SESSION, "5000")], &low), short(5000), "the broker's interval counts");
        assert_eq!(check(&[(SESSION, "7000"), (HEARTBEAT, "7000")], &low), short(7000));
        assert_eq!(check(&[(SESSION, "7001"), (HEARTBEAT, "7000")], &low), Ok(()));
    }

    #[test]
    fn what_was_stored_under_other_bounds_is_moved_into_these() {
        let stored = configs(&[(HEARTBEAT, "1"), (SESSION, "900000"), (ASSIGNMENT, "soon"), ("other", "1")]);
        let resolved = GroupOverrides {
            heartbeat_interval_ms: Some(5_000),
            session_timeout_ms: Some(60_000),
            assignment_interval_ms: None,
        };
        assert_eq!(resolve(&layers(&[]), &stored), resolved);
    }

    #[test]
    fn the_groups_value_stands_before_the_brokers() {
        let key = KEYS.iter().find(|key| key.name == HEARTBEAT).expect("there is one");
        let settings = [set(key.broker, "6000")];
        let found = synonyms(key, &layers(&settings), &configs(&[(HEARTBEAT, "7000")]));
        let found: Vec<_> = found.iter().map(|one| (one.name, one.value.as_str(), one.source)).collect();
        let broker =
            [(key.broker, "6000", ConfigSource::Static), (key.broker, "5000", ConfigSource::Default)];
        assert_eq!(found, [&[(HEARTBEAT, "7000", ConfigSource::Group)][..], &broker].concat());
        assert_eq!(synonyms(key, &layers(&settings), &NONE).len(), 2);
    }
}
