//! `ringlog topic alter`, and the configs of `ringlog topic describe`. Owns arguments, tables and JSON of both.

use std::collections::BTreeSet;

use ringlog_bench::client::Client;
use ringlog_bench::client::configs::{ConfigSource, ConfigStep, ConfigValue};
use serde::Serialize;

use super::{Outcome, TopicError, new_table, parse_config, plural, rendered};

const EXAMPLES: &str = "\
Examples:
  ringlog topic alter orders --set retention.ms=3600000
  ringlog topic alter orders --set segment.bytes=67108864 --unset retention.ms
  ringlog topic alter orders --set max.message.bytes=2000000 --dry-run
  ringlog topic alter orders --partitions 12

All changes of one call happen or none. A key that is unset goes back to the broker's value; `ringlog topic describe NAME --all` \
lists the keys. Partitions are added and never taken away; records that are there stay where they are, and from then on producers put \
keys into other partitions than before, so a key's old and new records have no order among them. Exit codes: 0 done, 1 refused by the \
broker or not reached, 2 wrong usage.";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group(clap::ArgGroup::new("configs").multiple(true).args(["sets", "unsets"]).conflicts_with("partitions")))]
#[command(group(clap::ArgGroup::new("changes").required(true).multiple(true).args(["sets", "unsets", "partitions"])))]
pub struct Args {
    #[arg(value_name = "NAME")]
    name: String,
    /// Give a config this value; may be repeated
    #[arg(short, long = "set", value_name = "KEY=VALUE", value_parser = parse_config)]
    sets: Vec<(String, String)>,
    /// Let a config go back to the broker's value; may be repeated
    #[arg(short, long = "unset", value_name = "KEY")]
    unsets: Vec<String>,
    /// Let the topic have so many partitions in all; not together with configs
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    partitions: Option<i32>,
    /// Let the broker check the changes and make none
    #[arg(long)]
    dry_run: bool,
}

/// A config as JSON shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct DescribedConfig {
    pub(super) key: String,
    pub(super) value: Option<String>,
    /// topic, broker, cluster, file or default.
    pub(super) source: &'static str,
    #[serde(skip)]
    origin: ConfigSource,
}

impl From<ConfigValue> for DescribedConfig {
    fn from(config: ConfigValue) -> DescribedConfig {
        let source = match config.source {
            ConfigSource::Topic => "topic",
            ConfigSource::DynamicBroker => "broker",
            ConfigSource::DynamicCluster => "cluster",
            ConfigSource::StaticBroker => "file",
            ConfigSource::Default => "default",
            ConfigSource::Other(_) => "other",
        };
        DescribedConfig { key: config.name, value: config.value, source, origin: config.source }
    }
}

#[derive(Debug, Serialize)]
struct AlteredTopic {
    name: String,
    dry_run: bool,
    /// The keys that were named, as they are now.
    configs: Vec<DescribedConfig>,
}

#[derive(Debug, Serialize)]
struct GrownTopic {
    name: String,
    dry_run: bool,
    /// In all, before and afterwards.
    partitions: FromTo,
}

#[derive(Debug, Serialize)]
struct FromTo {
    from: usize,
    to: usize,
}

async fn grow(client: &Client, name: String, count: i32, dry_run: bool) -> Result<Outcome, TopicError> {
    // A topic that is not there is the broker's to refuse.
    let image = client.metadata(Some(&[&name])).await?;
    let from = image.topics.get(&name).map_or(0, |topic| topic.partitions.len());
    client.create_partitions(&name, count, dry_run).await?;
    let to = count.unsigned_abs() as usize;
    let verb = if dry_run { "would alter" } else { "altered" };
    let table = format!("{verb} topic {name}: {to} partition{}, {from} before\n", plural(to));
    let grown = GrownTopic { name, dry_run, partitions: FromTo { from, to } };
    Ok(Outcome { table, json: serde_json::to_value(grown)?, failures: Vec::new() })
}

pub(super) async fn alter(client: &Client, args: Args) -> Result<Outcome, TopicError> {
    let Args { name, sets, unsets, partitions, dry_run } = args;
    if let Some(count) = partitions {
        return grow(client, name, count, dry_run).await;
    }
    let set = sets.iter().map(|(key, value)| ConfigStep::Set(key, value));
    let steps: Vec<ConfigStep<'_>> = set.chain(unsets.iter().map(|key| ConfigStep::Unset(key))).collect();
    client.alter_topic_configs(&name, &steps, dry_run).await?;
    let named: BTreeSet<&str> =
        sets.iter().map(|(key, _)| key.as_str()).chain(unsets.iter().map(String::as_str)).collect();
    let configs: Vec<DescribedConfig> = client
        .topic_configs(&name)
        .await?
        .into_iter()
        .filter(|config| named.contains(config.name.as_str()))
        .map(DescribedConfig::from)
        .collect();
    let verb = if dry_run { "would alter" } else { "altered" };
    let now = if dry_run { "; now:" } else { "" };
    let table = format!("{verb} topic {name}{now}\n{}", table(&configs, true));
    let altered = AlteredTopic { name, dry_run, configs };
    Ok(Outcome { table, json: serde_json::to_value(altered)?, failures: Vec::new() })
}

/// Configs with their source; those at their default are counted only, unless `all` are wanted.
pub(super) fn table(configs: &[DescribedConfig], all: bool) -> String {
    let is_shown = |config: &&DescribedConfig| all || config.origin != ConfigSource::Default;
    let mut table = new_table(&["CONFIG", "VALUE", "SET ON"]);
    let mut shown = 0;
    for config in configs.iter().filter(is_shown) {
        let value = config.value.as_deref().unwrap_or("-");
        table.add_row([config.key.clone(), value.to_owned(), config.origin.to_string()]);
        shown += 1;
    }
    let hidden = configs.len() - shown;
    let mut text = if shown == 0 { String::new() } else { rendered(&mut table) };
    if hidden > 0 {
        text.push_str(&format!("{hidden} config{} at the default (--all shows them)\n", plural(hidden)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(key: &str, value: &str, source: ConfigSource) -> DescribedConfig {
        ConfigValue { name: key.to_owned(), value: Some(value.to_owned()), source }.into()
    }

    #[test]
    fn defaults_are_counted_unless_all_are_wanted() {
        let configs = [
            config("retention.ms", "5", ConfigSource::Topic),
            config("segment.ms", "6", ConfigSource::Default),
            config("segment.bytes", "7", ConfigSource::DynamicCluster),
        ];
        let some = table(&configs, false);
        let lines: Vec<&str> = some.lines().collect();
        assert_eq!(lines.len(), 4, "{some}");
        assert!(lines[1].starts_with("retention.ms") && lines[1].ends_with("topic"), "{some}");
        assert!(lines[2].ends_with("all brokers, at run time"), "{some}");
        assert_eq!(lines[3], "1 config at the default (--all shows them)");
        assert_eq!(table(&configs, true).lines().count(), 4);
        assert_eq!(table(&configs[1..2], false), "1 config at the default (--all shows them)\n");
    }

    #[test]
    fn json_names_the_source_by_one_word() {
        let json = serde_json::to_value(config("k", "v", ConfigSource::StaticBroker)).expect("plain data");
        assert_eq!(json, serde_json::json!({ "key": "k", "value": "v", "source": "file" }));
    }
}
