//! Configs of topics, brokers and groups as verbs change and show them. Owns the arguments of a change, tables and JSON; which verb
//! it is, and what else it prints, is the verb's.

use std::collections::BTreeSet;

use ringlog_bench::client::configs::{ConfigResource, ConfigSource, ConfigStep, ConfigValue};
use ringlog_bench::client::{Client, ClientError};
use serde::Serialize;

use super::output::{new_table, plural, rendered};

/// What becomes of single configs: all of it or nothing.
#[derive(Debug, clap::Args)]
pub(super) struct Changes {
    /// Give a config this value; may be repeated
    #[arg(short, long = "set", value_name = "KEY=VALUE", value_parser = parse_config)]
    sets: Vec<(String, String)>,
    /// Let a config go back to the value that holds without it; may be repeated
    #[arg(short, long = "unset", value_name = "KEY")]
    unsets: Vec<String>,
    /// Let the broker check the changes and make none
    #[arg(long)]
    pub(super) dry_run: bool,
}

/// The arguments of [`Changes`] that say what is changed, for groups of arguments of which one is needed.
pub(super) const CHANGES: [&str; 2] = ["sets", "unsets"];

pub(super) fn parse_config(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("'{text}' is not KEY=VALUE, as in retention.ms=3600000")),
    }
}

/// A config as JSON shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct DescribedConfig {
    pub(super) key: String,
    pub(super) value: Option<String>,
    /// topic, group, broker, cluster, file or default.
    pub(super) source: &'static str,
    #[serde(skip)]
    origin: ConfigSource,
}

impl From<ConfigValue> for DescribedConfig {
    fn from(config: ConfigValue) -> DescribedConfig {
        let source = match config.source {
            ConfigSource::Topic => "topic",
            ConfigSource::Group => "group",
            ConfigSource::DynamicBroker => "broker",
            ConfigSource::DynamicCluster => "cluster",
            ConfigSource::StaticBroker => "file",
            ConfigSource::Default => "default",
            ConfigSource::Other(_) => "other",
        };
        DescribedConfig { key: config.name, value: config.value, source, origin: config.source }
    }
}

/// Every config of it.
pub(super) async fn describe(
    client: &Client,
    of: &ConfigResource,
) -> Result<Vec<DescribedConfig>, ClientError> {
    Ok(client.configs(of).await?.into_iter().map(DescribedConfig::from).collect())
}

/// Makes the changes. The keys that they name, as they are then.
pub(super) async fn change(
    client: &Client,
    of: &ConfigResource,
    changes: &Changes,
) -> Result<Vec<DescribedConfig>, ClientError> {
    let Changes { sets, unsets, dry_run } = changes;
    let set = sets.iter().map(|(key, value)| ConfigStep::Set(key, value));
    let steps: Vec<ConfigStep<'_>> = set.chain(unsets.iter().map(|key| ConfigStep::Unset(key))).collect();
    client.alter_configs(of, &steps, *dry_run).await?;
    let named: BTreeSet<&str> =
        sets.iter().map(|(key, _)| key.as_str()).chain(unsets.iter().map(String::as_str)).collect();
    let all = describe(client, of).await?;
    Ok(all.into_iter().filter(|config| named.contains(config.key.as_str())).collect())
}

/// What was changed and how its keys are now. `subject` is as in "topic orders".
pub(super) fn sentence(subject: &str, dry_run: bool, configs: &[DescribedConfig]) -> String {
    let (verb, now) = if dry_run { ("would alter", "; now:") } else { ("altered", "") };
    format!("{verb} {subject}{now}\n{}", table(configs, true))
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
        assert_eq!(config("k", "v", ConfigSource::Group).source, "group");
    }

    #[test]
    fn what_would_be_altered_is_told_as_it_is_now() {
        let configs = [config("k", "v", ConfigSource::Group)];
        assert!(sentence("group readers", false, &configs).starts_with("altered group readers\nCONFIG"));
        assert!(sentence("group readers", true, &configs).starts_with("would alter group readers; now:\n"));
    }
}
