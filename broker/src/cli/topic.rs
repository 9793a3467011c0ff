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
use ringlog_bench::client::log_dirs::LogSizes;
use ringlog_bench::client::metadata::TopicImage;
use ringlog_bench::client::{Client, ClientError};
use ringlog_protocol::error_code::ErrorCode;
use serde::Serialize;

use super::configs::{self, DescribedConfig, parse_config};
use super::confirm::confirm;
use super::output::{Output, align_right, byte_size, new_table, plural, rendered};
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
    /// Show partitions, leaders, sizes, offsets, and configs with where each is set
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

/// Runs the verb.
pub fn run(args: Args) -> ExitCode {
    let Args { broker, verb } = args;
    let output = broker.output;
    shell::run("topic", &broker, |client| async move { execute(&client, verb, output).await })
}

async fn execute(client: &Client, verb: Verb, output: Output) -> Result<Outcome, VerbError> {
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
        Verb::List => list(client, output).await,
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

/// `None` unless every partition's leader told.
fn total_bytes(topic: &TopicImage, sizes: &LogSizes) -> Option<u64> {
    topic.partitions.keys().map(|index| sizes.get(&(topic.name.clone(), *index)).copied()).sum()
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
    /// Bytes of record batches, at the leaders; only in JSON, and null where some leader does not tell.
    size_bytes: Option<u64>,
}

async fn list(client: &Client, output: Output) -> Result<Outcome, VerbError> {
    let image = client.metadata(None).await?;
    let sizes = match output {
        Output::Json => client.log_sizes(&image.topics.values().collect::<Vec<_>>()).await?,
        // A table of ids and sizes is wider than a terminal: nobody is asked.
        Output::Table => LogSizes::new(),
    };
    let topics: Vec<ListedTopic> = image
        .topics
        .values()
        .map(|topic| ListedTopic {
            name: topic.name.clone(),
            id: topic.id.to_string(),
            partitions: topic.partitions.len(),
            replication_factor: replication_factor(topic),
            internal: topic.is_internal,
            size_bytes: total_bytes(topic, &sizes),
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
    /// Of all partitions; null where some leader does not tell.
    size_bytes: Option<u64>,
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
    /// Bytes of record batches, at the leader; null where it does not tell.
    size_bytes: Option<u64>,
}

async fn describe(client: &Client, names: &[String], all: bool) -> Result<Outcome, VerbError> {
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
    let sizes = client.log_sizes(&[topic]).await?;
    Ok(DescribedTopic {
        name: topic.name.clone(),
        id: topic.id.to_string(),
        internal: topic.is_internal,
        size_bytes: total_bytes(topic, &sizes),
        partitions: described_partitions(topic, &earliest, &latest, &sizes),
        configs: configs::describe(client, &ConfigResource::Topic(name.to_owned())).await?,
    })
}

fn described_partitions(
    topic: &TopicImage,
    earliest: &BTreeMap<i32, i64>,
    latest: &BTreeMap<i32, i64>,
    sizes: &LogSizes,
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
            size_bytes: sizes.get(&(topic.name.clone(), *index)).copied(),
        })
        .collect()
}

fn description(topic: &DescribedTopic) -> String {
    let internal = if topic.internal { ", internal" } else { "" };
    let count = topic.partitions.len();
    let size = topic.size_bytes.map(|bytes| format!(", {}", byte_size(bytes))).unwrap_or_default();
    let head = format!(
        "topic {} (id {}{internal}): {count} partition{}{size}\n",
        topic.name,
        topic.id,
        plural(count)
    );
    let mut header = vec!["PARTITION", "LEADER", "EPOCH", "REPLICAS", "IN SYNC"];
    let has_sizes = topic.partitions.iter().any(|partition| partition.size_bytes.is_some());
    header.extend(has_sizes.then_some("SIZE"));
    header.extend(["EARLIEST", "LATEST", "RECORDS"]);
    let mut table = new_table(&header);
    align_right(&mut table, &[0, 1, 2]);
    align_right(&mut table, &(5..header.len()).collect::<Vec<_>>());
    for partition in &topic.partitions {
        // Offsets between the ends may have been compacted away, hence "at most".
        let records = partition.latest_offset - partition.earliest_offset;
        let mut row = vec![
            partition.partition.to_string(),
            partition.leader.to_string(),
            partition.leader_epoch.to_string(),
            joined(&partition.replicas),
            joined(&partition.in_sync),
        ];
        row.extend(has_sizes.then(|| partition.size_bytes.map(byte_size).unwrap_or_default()));
        row.extend(
            [partition.earliest_offset, partition.latest_offset, records].map(|number| number.to_string()),
        );
        table.add_row(row);
    }
    format!("{head}{}", rendered(&mut table))
}

async fn delete(client: &Client, names: &[String]) -> Result<Outcome, VerbError> {
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
    use ringlog_bench::client::metadata::PartitionImage;
    use ringlog_protocol::ids::TopicId;

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
        let partition = |partition, latest_offset, size_bytes| DescribedPartition {
            partition,
            leader: 1,
            leader_epoch: 4,
            replicas: vec![1, 2],
            in_sync: vec![1],
            earliest_offset: 5,
            latest_offset,
            size_bytes,
        };
        let mut topic = DescribedTopic {
            name: "orders".to_owned(),
            id: "AAAAAAAAAAAAAAAAAAAAAQ".to_owned(),
            internal: false,
            size_bytes: Some(1536),
            partitions: vec![partition(0, 1_005, Some(1536)), partition(1, 5, Some(0))],
            configs: Vec::new(),
        };
        let rows = |text: &str| -> Vec<String> {
            let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.lines().all(|line| line.trim_end() == line));
            text.lines().map(words).collect()
        };
        let text = rows(&description(&topic));
        assert_eq!(text[0], "topic orders (id AAAAAAAAAAAAAAAAAAAAAQ): 2 partitions, 1.5 KiB");
        assert_eq!(text[2..], ["0 1 4 1,2 1 1.5 KiB 5 1005 1000", "1 1 4 1,2 1 0 B 5 5 0"]);
        // One leader does not tell, then none.
        (topic.size_bytes, topic.partitions[1].size_bytes) = (None, None);
        let text = rows(&description(&topic));
        assert_eq!(text[0], "topic orders (id AAAAAAAAAAAAAAAAAAAAAQ): 2 partitions");
        assert_eq!(text[2..], ["0 1 4 1,2 1 1.5 KiB 5 1005 1000", "1 1 4 1,2 1 5 5 0"]);
        topic.partitions[0].size_bytes = None;
        let text = rows(&description(&topic));
        assert_eq!(text[1], "PARTITION LEADER EPOCH REPLICAS IN SYNC EARLIEST LATEST RECORDS");
        assert_eq!(text[2], "0 1 4 1,2 1 5 1005 1000");
    }

    #[test]
    fn a_total_is_told_only_of_all_partitions() {
        let partition =
            PartitionImage { leader: 1, leader_epoch: 0, replicas: vec![1], in_sync: vec![1], error_code: 0 };
        let topic = TopicImage {
            name: "orders".to_owned(),
            id: TopicId::ZERO,
            is_internal: false,
            error_code: 0,
            partitions: [(0, partition.clone()), (1, partition)].into(),
        };
        let mut sizes = LogSizes::from([(("orders".to_owned(), 0), 7)]);
        assert_eq!(total_bytes(&topic, &sizes), None);
        sizes.insert(("orders".to_owned(), 1), 0);
        assert_eq!(total_bytes(&topic, &sizes), Some(7));
    }
}
