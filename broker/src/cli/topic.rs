//! Owns `ringlog topic`: creates, lists, describes, alters, truncates and deletes topics of any Kafka broker, as tables or JSON.
//!
//! It keeps no state and knows the broker only through its Kafka port. Results go to standard output, everything else
//! to standard error.

mod alter;
mod truncate;

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Subcommand;
use ringlog_bench::client::admin::{NewTopic, OffsetQuery};
use ringlog_bench::client::configs::ConfigResource;
use ringlog_bench::client::metadata::TopicImage;
use ringlog_bench::client::{Client, ClientError};
use ringlog_protocol::error_code::ErrorCode;
use serde::Serialize;

use super::configs::{self, DescribedConfig, parse_config};
use super::confirm::{Unconfirmed, confirm};
use super::output::{align_right, new_table, plural, rendered};
use super::shell::{self, BrokerArgs, Outcome, VerbError};

/// Create, list, describe, alter, truncate and delete topics.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub broker: BrokerArgs,

    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do with topics.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Create topics
    Create {
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Partitions of each; -1 = the broker's default
        #[arg(short, long, default_value_t = -1, value_name = "N", allow_negative_numbers = true)]
        partitions: i32,
        /// Replicas of each partition; -1 = the broker's default
        #[arg(short, long, default_value_t = -1, value_name = "N", allow_negative_numbers = true)]
        replication_factor: i16,
        /// A config of the topics; may be repeated
        #[arg(short, long = "config", value_name = "KEY=VALUE", value_parser = parse_config)]
        configs: Vec<(String, String)>,
        /// Do nothing where a topic of the name exists already
        #[arg(long)]
        if_not_exists: bool,
    },
    /// List topics
    #[command(visible_alias = "ls")]
    List,
    /// Show partitions, leaders, offsets, and configs with where each is set
    Describe {
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Configs at their default too; JSON always holds them
        #[arg(short, long)]
        all: bool,
    },
    /// Change configs of a topic, at once and without a restart, or let it have more partitions
    Alter(alter::Args),
    /// Delete the oldest records of a topic, up to an offset
    Truncate(truncate::Args),
    /// Delete topics and all their records
    Delete {
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}

#[derive(Debug, thiserror::Error)]
enum TopicError {
    #[error("{source}")]
    Client {
        #[from]
        source: ClientError,
    },
    #[error("cannot start the client: {source}")]
    Setup {
        #[from]
        source: ringlog_io::IoSetupError,
    },
    #[error("cannot encode the result: {source}")]
    Json {
        #[from]
        source: serde_json::Error,
    },
    #[error(transparent)]
    Unconfirmed(#[from] Unconfirmed),
}

impl VerbError for TopicError {
    fn is_usage(&self) -> bool {
        matches!(self, TopicError::Unconfirmed(Unconfirmed::NoTerminal))
    }
}

/// Runs the verb.
pub fn run(args: Args) -> ExitCode {
    let Args { broker, verb } = args;
    shell::run("topic", &broker, |client| async move { execute(&client, verb).await })
}

async fn execute(client: &Client, verb: Verb) -> Result<Outcome, TopicError> {
    match verb {
        Verb::Create { names, partitions, replication_factor, configs, if_not_exists } => {
            let configs: Vec<(&str, &str)> =
                configs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            let mut outcome = Outcome::default();
            let mut created = Vec::new();
            for name in &names {
                let topic = NewTopic { name, partitions, replication_factor, configs: configs.clone() };
                match create_one(client, &topic, if_not_exists).await {
                    Ok(summary) => {
                        outcome.table.push_str(&summary.sentence());
                        created.push(summary);
                    }
                    Err(error) => outcome.failures.push(error.to_string()),
                }
            }
            outcome.json = serde_json::to_value(created)?;
            Ok(outcome)
        }
        Verb::List => list(client).await,
        Verb::Describe { names, all } => describe(client, &names, all).await,
        Verb::Alter(args) => alter::run(client, args).await,
        Verb::Truncate(args) => truncate::run(client, args).await,
        Verb::Delete { names, yes } => {
            if !yes {
                confirm(&format!("delete {} and all records", names.join(", ")))?;
            }
            delete(client, &names).await
        }
    }
}

#[derive(Debug, Serialize)]
struct CreatedTopic {
    name: String,
    id: String,
    partitions: usize,
    replication_factor: usize,
    existed: bool,
}

impl CreatedTopic {
    fn of(topic: &TopicImage, existed: bool) -> CreatedTopic {
        CreatedTopic {
            name: topic.name.clone(),
            id: topic.id.to_string(),
            partitions: topic.partitions.len(),
            replication_factor: replication_factor(topic),
            existed,
        }
    }

    fn sentence(&self) -> String {
        let verb = if self.existed { "kept existing" } else { "created" };
        format!(
            "{verb} topic {}: {} partition{}, {} replica{}, id {}\n",
            self.name,
            self.partitions,
            plural(self.partitions),
            self.replication_factor,
            plural(self.replication_factor),
            self.id
        )
    }
}

async fn create_one(
    client: &Client,
    topic: &NewTopic<'_>,
    if_not_exists: bool,
) -> Result<CreatedTopic, ClientError> {
    let existed = match client.create_topic(topic).await {
        Ok(()) => false,
        Err(error) if if_not_exists && error.code() == Some(ErrorCode::TopicAlreadyExists) => true,
        Err(error) => return Err(error),
    };
    Ok(CreatedTopic::of(&*client.topic(topic.name).await?, existed))
}

fn replication_factor(topic: &TopicImage) -> usize {
    topic.partitions.values().map(|partition| partition.replicas.len()).max().unwrap_or(0)
}

#[derive(Debug, Serialize)]
struct ListedTopic {
    name: String,
    id: String,
    partitions: usize,
    replication_factor: usize,
    internal: bool,
}

async fn list(client: &Client) -> Result<Outcome, TopicError> {
    let image = client.metadata(None).await?;
    let topics: Vec<ListedTopic> = image
        .topics
        .values()
        .map(|topic| ListedTopic {
            name: topic.name.clone(),
            id: topic.id.to_string(),
            partitions: topic.partitions.len(),
            replication_factor: replication_factor(topic),
            internal: topic.is_internal,
        })
        .collect();
    let mut table = new_table(&["TOPIC", "PARTITIONS", "REPLICAS", "INTERNAL", "ID"]);
    align_right(&mut table, &[1, 2]);
    for topic in &topics {
        let internal = if topic.internal { "yes" } else { "" };
        let (partitions, replicas) = (topic.partitions.to_string(), topic.replication_factor.to_string());
        table.add_row([topic.name.as_str(), &partitions, &replicas, internal, &topic.id]);
    }
    Ok(Outcome { table: rendered(&mut table), json: serde_json::to_value(topics)?, failures: Vec::new() })
}

#[derive(Debug, Serialize)]
struct DescribedTopic {
    name: String,
    id: String,
    internal: bool,
    partitions: Vec<DescribedPartition>,
    configs: Vec<DescribedConfig>,
}

#[derive(Debug, Serialize)]
struct DescribedPartition {
    partition: i32,
    leader: i32,
    leader_epoch: i32,
    replicas: Vec<i32>,
    in_sync: Vec<i32>,
    earliest_offset: i64,
    latest_offset: i64,
}

async fn describe(client: &Client, names: &[String], all: bool) -> Result<Outcome, TopicError> {
    let mut outcome = Outcome::default();
    let mut described = Vec::new();
    for name in names {
        match describe_one(client, name).await {
            Ok(topic) => {
                outcome.table.push_str(&description(&topic));
                outcome.table.push_str(&configs::table(&topic.configs, all));
                described.push(topic);
            }
            Err(error) => outcome.failures.push(error.to_string()),
        }
    }
    outcome.json = serde_json::to_value(described)?;
    Ok(outcome)
}

async fn describe_one(client: &Client, name: &str) -> Result<DescribedTopic, ClientError> {
    // Not from memory and without waiting: a topic that is not there is told at once.
    let image = client.metadata(Some(&[name])).await?;
    let connection = client.any_connection().await?;
    let topic = image.topics.get(name).ok_or_else(|| ClientError::Missing {
        address: connection.address().to_string(),
        api: "Metadata",
        subject: format!("topic '{name}'"),
    })?;
    if let Some(error) = topic.error(connection.address()) {
        return Err(error);
    }
    let indices: Vec<i32> = topic.partitions.keys().copied().collect();
    let earliest = client.offsets(name, &indices, OffsetQuery::Earliest).await?;
    let latest = client.offsets(name, &indices, OffsetQuery::Latest).await?;
    Ok(DescribedTopic {
        name: topic.name.clone(),
        id: topic.id.to_string(),
        internal: topic.is_internal,
        partitions: described_partitions(topic, &earliest, &latest),
        configs: configs::describe(client, &ConfigResource::Topic(name.to_owned())).await?,
    })
}

fn described_partitions(
    topic: &TopicImage,
    earliest: &BTreeMap<i32, i64>,
    latest: &BTreeMap<i32, i64>,
) -> Vec<DescribedPartition> {
    let offset = |offsets: &BTreeMap<i32, i64>, index| offsets.get(index).copied().unwrap_or(-1);
    topic
        .partitions
        .iter()
        .map(|(index, partition)| DescribedPartition {
            partition: *index,
            leader: partition.leader,
            leader_epoch: partition.leader_epoch,
            replicas: partition.replicas.clone(),
            in_sync: partition.in_sync.clone(),
            earliest_offset: offset(earliest, index),
            latest_offset: offset(latest, index),
        })
        .collect()
}

fn description(topic: &DescribedTopic) -> String {
    let internal = if topic.internal { ", internal" } else { "" };
    let count = topic.partitions.len();
    let head =
        format!("topic {} (id {}{internal}): {count} partition{}\n", topic.name, topic.id, plural(count));
    let mut table =
        new_table(&["PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN SYNC", "EARLIEST", "LATEST", "RECORDS"]);
    align_right(&mut table, &[0, 1, 2, 5, 6, 7]);
    for partition in &topic.partitions {
        // Offsets between the ends may have been compacted away, hence "at most".
        let records = partition.latest_offset - partition.earliest_offset;
        table.add_row([
            partition.partition.to_string(),
            partition.leader.to_string(),
            partition.leader_epoch.to_string(),
            joined(&partition.replicas),
            joined(&partition.in_sync),
            partition.earliest_offset.to_string(),
            partition.latest_offset.to_string(),
            records.to_string(),
        ]);
    }
    format!("{head}{}", rendered(&mut table))
}

async fn delete(client: &Client, names: &[String]) -> Result<Outcome, TopicError> {
    let mut outcome = Outcome::default();
    let mut deleted = Vec::new();
    for name in names {
        match client.delete_topic(name).await {
            Ok(()) => {
                outcome.table.push_str(&format!("deleted topic {name}\n"));
                deleted.push(name);
            }
            Err(error) => outcome.failures.push(error.to_string()),
        }
    }
    outcome.json = serde_json::to_value(deleted)?;
    Ok(outcome)
}

fn joined(numbers: &[i32]) -> String {
    numbers.iter().map(i32::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::output::Output;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Cli::try_parse_from(std::iter::once("topic").chain(line.split_whitespace())).map(|cli| cli.args)
    }

    #[test]
    fn verbs_take_their_options_before_and_after() {
        let args =
            parse("create orders -p 3 -c retention.ms=1000 -c a=b=c --if-not-exists -o json").expect("valid");
        assert_eq!(args.broker.output, Output::Json);
        let Verb::Create { names, partitions, replication_factor, configs, if_not_exists } = args.verb else {
            panic!("create was asked for");
        };
        assert_eq!((names, partitions, replication_factor), (vec!["orders".to_owned()], 3, -1));
        assert_eq!(configs, [("retention.ms".into(), "1000".into()), ("a".into(), "b=c".into())]);
        assert!(if_not_exists);
        assert!(matches!(parse("ls -b h:1").expect("valid").verb, Verb::List));
        assert!(matches!(parse("delete a b --yes").expect("valid").verb, Verb::Delete { yes: true, .. }));
        assert!(matches!(parse("truncate a --before end").expect("valid").verb, Verb::Truncate(_)));
        assert!(matches!(parse("describe a b --all").expect("valid").verb, Verb::Describe { all: true, .. }));
        for line in ["alter a --set k=v --unset j", "alter a --partitions 6 --dry-run", "alter a -p 6"] {
            assert!(matches!(parse(line).expect("valid").verb, Verb::Alter(_)));
        }
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in
            ["", "create", "create a -c novalue", "create a -p many", "drop a", "list -o yaml", "truncate a"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
        for line in
            ["alter a", "alter --set k=v", "alter a b --set k=v", "alter a --set k", "alter a --unset"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
        for line in ["alter a -p 0", "alter a -p many", "alter a -p 6 --set k=v", "alter a -p 6 --unset k"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn descriptions_show_leaders_and_offsets_in_aligned_columns() {
        let partition = |partition, latest_offset| DescribedPartition {
            partition,
            leader: 1,
            leader_epoch: 4,
            replicas: vec![1, 2],
            in_sync: vec![1],
            earliest_offset: 5,
            latest_offset,
        };
        let topic = DescribedTopic {
            name: "orders".to_owned(),
            id: "AAAAAAAAAAAAAAAAAAAAAQ".to_owned(),
            internal: false,
            partitions: vec![partition(0, 1_005), partition(1, 5)],
            configs: Vec::new(),
        };
        let text = description(&topic);
        assert!(text.starts_with("topic orders (id AAAAAAAAAAAAAAAAAAAAAQ): 2 partitions\n"), "{text}");
        let rows: Vec<Vec<&str>> =
            text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["0", "1", "4", "1,2", "1", "5", "1005", "1000"]);
        assert_eq!(rows[1], ["1", "1", "4", "1,2", "1", "5", "5", "0"]);
        assert!(text.lines().all(|line| line.trim_end() == line));
    }
}
