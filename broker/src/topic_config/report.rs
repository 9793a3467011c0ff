//! What CreateTopics and DescribeConfigs say of a topic's configs: each value in force, where it comes from, and what else it
//! could be. Pure.

use std::borrow::Cow;

use ringlog_shard::storage::compaction::choice::WHOLE;

use super::{Effect, Kind, TopicKey, table};
use crate::config::keys;
use crate::config::layers::{ConfigSource, ConfigType, Layers, Overrides, Synonym};
use crate::config::typed::{TimestampType, TopicDefaults};

/// One config in force. No topic config is read-only or sensitive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EffectiveConfig {
    pub name: &'static str,
    pub value: String,
    pub source: ConfigSource,
}

/// Every config of a topic with the value in force and its source, sorted by name.
pub fn effective(
    defaults: &TopicDefaults,
    layers: &Layers<'_>,
    overrides: &Overrides,
) -> Vec<EffectiveConfig> {
    let report = |key: &'static TopicKey| {
        let value = match overrides.get(key.name) {
            Some(value) => key.kind.shown(value),
            None => broker_default(defaults, key).into_owned(),
        };
        let source = synonyms(key, layers, overrides).first().map(|first| first.source);
        EffectiveConfig { name: key.name, value, source: source.unwrap_or(ConfigSource::Default) }
    };
    in_force().map(report).collect()
}

/// The keys that a topic has, sorted by name.
pub fn in_force() -> impl Iterator<Item = &'static TopicKey> {
    table::ALL.iter().filter(|key| !matches!(key.effect, Effect::Refused(_)))
}

/// Every value that the key has somewhere, the one in force first.
pub fn synonyms(key: &TopicKey, layers: &Layers<'_>, overrides: &Overrides) -> Vec<Synonym> {
    let own = overrides.get(key.name).map(|value| Synonym {
        name: key.name,
        value: key.kind.shown(value),
        source: ConfigSource::Topic,
    });
    let mut found: Vec<Synonym> = own.into_iter().collect();
    match key.server.map(|server| (server, keys::find(server))) {
        Some((_, Some(server))) => found.extend(layers.synonyms(server)),
        // A key of Kafka's brokers that ours does not have has its default.
        Some((name, None)) => {
            found.push(Synonym { name, value: key.default.to_owned(), source: ConfigSource::Default });
        }
        None => {}
    }
    found
}

/// The broker's own default of a key: its server key as configured, where that is built.
fn broker_default(defaults: &TopicDefaults, key: &TopicKey) -> Cow<'static, str> {
    match key.name {
        "max.message.bytes" => defaults.message_bytes_max.to_string().into(),
        "segment.bytes" => defaults.segment_bytes.to_string().into(),
        "index.interval.bytes" => defaults.index_interval_bytes.to_string().into(),
        "message.timestamp.before.max.ms" => defaults.timestamp_before_ms_max.to_string().into(),
        "message.timestamp.after.max.ms" => defaults.timestamp_after_ms_max.to_string().into(),
        "min.insync.replicas" => defaults.min_insync_replicas.to_string().into(),
        "retention.ms" => defaults.retention_ms.to_string().into(),
        "retention.bytes" => defaults.retention_bytes.to_string().into(),
        "segment.ms" => defaults.segment_ms.to_string().into(),
        "cleanup.policy" => defaults.cleanup.list().into(),
        "delete.retention.ms" => defaults.delete_retention_ms.to_string().into(),
        "min.compaction.lag.ms" => defaults.min_compaction_lag_ms.to_string().into(),
        "max.compaction.lag.ms" => defaults.max_compaction_lag_ms.to_string().into(),
        "min.cleanable.dirty.ratio" => {
            (f64::from(defaults.min_cleanable_millionths) / f64::from(WHOLE)).to_string().into()
        }
        "segment.jitter.ms" => defaults.segment_jitter_ms.to_string().into(),
        "compression.type" => defaults.compression_type.into(),
        "message.timestamp.type" => match defaults.timestamp_type {
            TimestampType::CreateTime => "CreateTime".into(),
            TimestampType::LogAppendTime => "LogAppendTime".into(),
        },
        _ => key.default.into(),
    }
}

impl Kind {
    /// A value as Kafka shows it: without the spaces around it, each item of a list once, in the order given.
    fn shown(&self, value: &str) -> String {
        let Kind::List(_) = self else { return value.trim().to_owned() };
        let mut items: Vec<&str> = Vec::new();
        for item in value.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            if !items.contains(&item) {
                items.push(item);
            }
        }
        items.join(",")
    }

    /// The type as Kafka's `LogConfig` has it.
    pub fn config_type(&self) -> ConfigType {
        match *self {
            Kind::Integer { maximum, .. } if maximum <= i64::from(i32::MAX) => ConfigType::Int,
            Kind::Integer { .. } => ConfigType::Long,
            Kind::Boolean => ConfigType::Boolean,
            Kind::Choice(_) => ConfigType::String,
            Kind::List(_) | Kind::Replicas => ConfigType::List,
            Kind::Fraction => ConfigType::Double,
        }
    }
}
