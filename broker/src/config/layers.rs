//! Owns where the value of a broker's key comes from while the broker runs: set on this node, set on every node, set in its
//! own configuration, or a default. Pure: whoever asks brings the layers.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Origin;
use super::keys::{self, Key, Kind};
use super::typed::EffectiveSetting;
use super::value::{self, Value};

/// Configs set at run time, key to value as given, sorted.
pub type Overrides = BTreeMap<Arc<str>, Arc<str>>;

/// Where a value in force comes from; the numbers are Kafka's `ConfigSource`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ConfigSource {
    /// DYNAMIC_TOPIC_CONFIG: set on the topic.
    Topic = 1,
    /// DYNAMIC_BROKER_CONFIG: set on this node at run time.
    Node = 2,
    /// DYNAMIC_DEFAULT_BROKER_CONFIG: set on every node at run time.
    Cluster = 3,
    /// STATIC_BROKER_CONFIG: set in the broker's own configuration.
    Static = 4,
    /// DEFAULT_CONFIG.
    Default = 5,
    /// GROUP_CONFIG: set on the group.
    Group = 8,
}

/// Kafka's `ConfigType`, as DescribeConfigs reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConfigType {
    Boolean = 1,
    String = 2,
    Int = 3,
    Long = 5,
    Double = 6,
    List = 7,
}

/// One value among those that a key could have: Kafka's `ConfigSynonym`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Synonym {
    pub name: &'static str,
    pub value: String,
    pub source: ConfigSource,
}

/// What there is besides the defaults, the strongest first.
#[derive(Clone, Copy, Debug)]
pub struct Layers<'a> {
    /// Set on this node at run time.
    pub node: &'a Overrides,
    /// Set on every node at run time.
    pub cluster: &'a Overrides,
    /// This node's own configuration.
    pub settings: &'a [EffectiveSetting],
}

/// Keys that together make one setting, the finest unit first: it holds where it is set.
const UNITS: [&[&str]; 3] = [
    &["log.retention.ms", "log.retention.minutes", "log.retention.hours"],
    &["log.roll.ms", "log.roll.hours"],
    &["log.roll.jitter.ms", "log.roll.jitter.hours"],
];

/// The key and those that hold where it is not set.
fn chain(name: &'static str) -> impl Iterator<Item = &'static str> {
    let units = UNITS.iter().find(|units| units.contains(&name)).copied().unwrap_or_default();
    let coarser = units.iter().copied().skip_while(move |unit| *unit != name).skip(1);
    std::iter::once(name).chain(coarser)
}

impl Layers<'_> {
    /// Every value that a key has somewhere, the one in force first. As in Kafka a default of a coarser unit is left out where
    /// nothing stronger stands before it.
    pub fn synonyms(&self, key: &'static Key) -> Vec<Synonym> {
        let mut found = Vec::new();
        for (overrides, source) in [(self.node, ConfigSource::Node), (self.cluster, ConfigSource::Cluster)] {
            let set = chain(key.name).filter_map(|name| Some((name, overrides.get(name)?)));
            found.extend(set.map(|(name, value)| Synonym { name, value: shown(name, value), source }));
        }
        for name in chain(key.name) {
            let setting = self.setting(name).filter(|setting| setting.origin != Origin::Default);
            if let Some(value) = setting.and_then(|setting| written(name, &setting.value)) {
                found.push(Synonym { name, value, source: ConfigSource::Static });
            }
        }
        for name in chain(key.name) {
            if let Some(value) = keys::find(name).and_then(|key| written(name, key.default)) {
                found.push(Synonym { name, value, source: ConfigSource::Default });
            }
        }
        let foreign = |first: &Synonym| first.source == ConfigSource::Default && first.name != key.name;
        if found.first().is_some_and(foreign) { Vec::new() } else { found }
    }

    /// The value of the key itself, not of a coarser unit; `None` where it is empty.
    pub fn value(&self, key: &'static Key) -> Option<String> {
        let set = self.node.get(key.name).or_else(|| self.cluster.get(key.name));
        match (set, self.setting(key.name)) {
            (Some(set), _) => written(key.name, set),
            (None, Some(setting)) => written(key.name, &setting.value),
            (None, None) => written(key.name, key.default),
        }
    }

    fn setting(&self, name: &str) -> Option<&EffectiveSetting> {
        self.settings.iter().find(|setting| setting.key == name)
    }
}

fn shown(name: &str, text: &str) -> String {
    written(name, text).unwrap_or_default()
}

/// A value as Kafka's clients read it: numbers without units. `None` for an empty one of a key that may be empty.
fn written(name: &str, text: &str) -> Option<String> {
    let key = keys::find(name)?;
    match (value::parse(key, text), key.kind) {
        (Ok(Value::Integer(number) | Value::AutoInteger(Some(number))), _) => Some(number.to_string()),
        (Ok(Value::AutoInteger(None)), Kind::OptionalInteger { .. }) => None,
        (Ok(Value::Boolean(value)), _) => Some(value.to_string()),
        (Ok(Value::Choice(choice)), _) => Some(choice.to_owned()),
        _ if text.trim().is_empty() && name == "log.flush.interval.ms" => None,
        _ => Some(text.trim().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    fn setting(key: &'static str, value: &str) -> EffectiveSetting {
        EffectiveSetting { key, value: value.to_owned(), origin: Origin::Set }
    }

    fn overrides(pairs: &[(&str, &str)]) -> Overrides {
        pairs.iter().map(|(key, value)| (Arc::from(*key), Arc::from(*value))).collect()
    }

    fn check(
        key: &str,
        layers: (Pairs<'_>, Pairs<'_>, &[EffectiveSetting]),
        value: Option<&str>,
        synonyms: &[(&str, &str, ConfigSource)],
    ) {
        let key = keys::find(key).expect("a key");
        let (node, cluster) = (overrides(layers.0), overrides(layers.1));
        let layers = Layers { node: &node, cluster: &cluster, settings: layers.2 };
        assert_eq!(layers.value(key).as_deref(), value, "{}", key.name);
        let found = layers.synonyms(key);
        let found: Vec<_> =
            found.iter().map(|found| (found.name, found.value.as_str(), found.source)).collect();
        assert_eq!(found, synonyms, "{}", key.name);
    }

    #[test]
    fn the_strongest_layer_holds_and_the_others_are_named_behind_it() {
        use ConfigSource::{Cluster, Default, Node, Static};
        let key = "message.max.bytes";
        check(key, (&[], &[], &[]), Some("1048588"), &[(key, "1048588", Default)]);
        let set = [setting(key, "1MiB")];
        check(key, (&[], &[], &set), Some("1048576"), &[(key, "1048576", Static), (key, "1048588", Default)]);
        check(
            key,
            (&[(key, "3")], &[(key, "2")], &set),
            Some("3"),
            &[(key, "3", Node), (key, "2", Cluster), (key, "1048576", Static), (key, "1048588", Default)],
        );
    }

    #[test]
    fn a_coarser_unit_stands_behind_a_finer_one() {
        use ConfigSource::{Default, Node, Static};
        let (fine, coarse) = ("log.retention.ms", "log.retention.hours");
        check(fine, (&[], &[], &[]), None, &[]);
        let node = [(fine, "1000")];
        check(fine, (&node, &[], &[]), Some("1000"), &[(fine, "1000", Node), (coarse, "168", Default)]);
        let set = [setting(coarse, "10")];
        check(fine, (&[], &[], &set), None, &[(coarse, "10", Static), (coarse, "168", Default)]);
        check(coarse, (&node, &[], &set), Some("10"), &[(coarse, "10", Static), (coarse, "168", Default)]);
    }

    #[test]
    fn every_key_has_a_value_that_a_client_can_read() {
        let none = Overrides::new();
        let layers = Layers { node: &none, cluster: &none, settings: &[] };
        for key in keys::ALL.iter().filter(|key| !matches!(key.kind, Kind::Alias(_))) {
            let value = layers.value(key);
            if let (Kind::Bytes { .. } | Kind::Milliseconds { .. } | Kind::Integer { .. }, Some(value)) =
                (key.kind, &value)
            {
                assert!(value.parse::<i64>().is_ok(), "{} = {value}", key.name);
            }
        }
    }
}
