//! Owns `ringlog group`: lists and describes consumer groups of any Kafka broker, moves and deletes their offsets, as tables or JSON.
//!
//! It keeps no state, joins no group and knows the broker only through its Kafka port. Results go to standard output, everything else
//! to standard error.

mod describe;
mod durations;
mod seek;
mod timeline;

use std::process::ExitCode;

use clap::Subcommand;
use ringlog_bench::client::Client;
use ringlog_bench::client::groups::Place;
use serde::Serialize;

use super::confirm::confirm;
use super::output::{align_right, byte_size, new_table, plural, rendered};
use super::shell::{self, BrokerArgs, Outcome, VerbError};

const AFTER_HELP: &str = "\
Examples:
  ringlog group list                             every group and its state
  ringlog group describe billing                 members, lag of each partition
  ringlog group describe billing --trend 30      for 30 s: does it catch up?
  ringlog group describe billing --admin 127.0.0.1:9644
                                                 its last rebalances too
  ringlog group seek billing -t orders --to earliest
                                                 read everything again
  ringlog group seek billing -t orders:3 --to 2026-11-30T12:00:00Z --dry-run
  ringlog group offset-delete billing -t orders  forget a topic
  ringlog group delete billing                   delete a group without members";

/// List, describe, seek and delete consumer groups.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(flatten)]
    pub broker: BrokerArgs,

    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do with groups.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// List groups with their state, protocol and coordinator
    #[command(visible_alias = "ls")]
    List {
        /// Only groups in this state, such as Stable or Empty; may be repeated
        #[arg(short, long = "state", value_name = "STATE")]
        states: Vec<String>,
    },
    /// Show members, what they own, and how far each partition lags, in records and in time
    Describe(describe::Args),
    /// Move a group's offsets; its members must be stopped
    Seek(seek::Args),
    /// Delete groups without members, with their offsets
    Delete {
        #[arg(required = true, value_name = "GROUP")]
        groups: Vec<String>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
    /// Forget where a group stands in topics that its members do not consume
    OffsetDelete {
        #[arg(value_name = "GROUP")]
        group: String,
        /// A topic, or some partitions of it; may be repeated
        #[arg(short, long = "topic", required = true, value_name = "TOPIC[:N,...]", value_parser = parse_selection)]
        topics: Vec<Selection>,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
    },
}

/// Partitions that a person names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    topic: String,
    /// Empty: all.
    partitions: Vec<i32>,
}

impl std::fmt::Display for Selection {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.topic)?;
        for (number, partition) in self.partitions.iter().enumerate() {
            write!(formatter, "{}{partition}", if number == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

fn parse_selection(text: &str) -> Result<Selection, String> {
    let (topic, partitions) = text.split_once(':').unwrap_or((text, ""));
    let numbers = partitions.split(',').filter(|number| !number.is_empty());
    let parsed: Result<Vec<i32>, _> = numbers.map(str::parse).collect();
    match parsed {
        Ok(partitions) if !topic.is_empty() && partitions.iter().all(|number| *number >= 0) => {
            Ok(Selection { topic: topic.to_owned(), partitions })
        }
        _ => Err(format!("'{text}' is not TOPIC or TOPIC:N,N, as in orders:0,3")),
    }
}

/// Why a group is left as it is.
#[derive(Debug, thiserror::Error)]
enum GroupError {
    #[error(
        "group '{group}' has {members} member{}: its offsets can be moved only while it has none, because a member would commit over them; stop its consumers first",
        plural(*members)
    )]
    HasMembers { group: String, members: usize },
    #[error("group '{group}' has no offset in {what}")]
    NoOffsets { group: String, what: String },
    #[error("topic '{topic}' has no partition {partition}; it has {count}")]
    NoPartition { topic: String, partition: i32, count: usize },
}

impl From<GroupError> for VerbError {
    fn from(error: GroupError) -> VerbError {
        VerbError::Own(Box::new(error))
    }
}

/// Runs the verb.
pub fn run(args: Args) -> ExitCode {
    let Args { broker, verb } = args;
    shell::run("group", &broker, |client| async move { execute(&client, verb).await })
}

async fn execute(client: &Client, verb: Verb) -> Result<Outcome, VerbError> {
    match verb {
        Verb::List { states } => list(client, &states).await,
        Verb::Describe(args) => describe::run(client, args).await,
        Verb::Seek(args) => seek::run(client, args).await,
        Verb::Delete { groups, yes } => {
            if !yes {
                confirm(&format!("delete {} with all offsets", groups.join(", ")))?;
            }
            delete(client, &groups).await
        }
        Verb::OffsetDelete { group, topics, yes } => {
            let places = committed_places(client, &group, &topics).await?;
            if !yes {
                let count = places.len();
                confirm(&format!("forget {count} offset{} of group {group}", plural(count)))?;
            }
            offset_delete(client, &group, places).await
        }
    }
}

#[derive(Debug, Serialize)]
struct ListedRow {
    group: String,
    state: String,
    #[serde(rename = "type")]
    kind: String,
    protocol_type: String,
    coordinator: i32,
}

async fn list(client: &Client, states: &[String]) -> Result<Outcome, VerbError> {
    let is_wanted =
        |state: &str| states.is_empty() || states.iter().any(|one| one.eq_ignore_ascii_case(state));
    let groups = client.groups().await?.into_iter().filter(|group| is_wanted(&group.state));
    let rows: Vec<ListedRow> = groups
        .map(|group| ListedRow {
            group: group.id,
            state: group.state,
            kind: group.kind,
            protocol_type: group.protocol_type,
            coordinator: group.coordinator,
        })
        .collect();
    let mut table = new_table(&["GROUP", "STATE", "TYPE", "PROTOCOL", "COORDINATOR"]);
    align_right(&mut table, &[4]);
    for row in &rows {
        let coordinator = row.coordinator.to_string();
        table.add_row([&row.group, &row.state, &row.kind, &row.protocol_type, &coordinator]);
    }
    Ok(Outcome { table: rendered(&mut table), json: serde_json::to_value(rows)?, failures: Vec::new() })
}

async fn delete(client: &Client, groups: &[String]) -> Result<Outcome, VerbError> {
    let mut outcome = Outcome::default();
    let mut deleted = Vec::new();
    for group in groups {
        match client.delete_group(group).await {
            Ok(()) => {
                outcome.table.push_str(&format!("deleted group {group}\n"));
                deleted.push(group);
            }
            Err(error) => outcome.failures.push(error.to_string()),
        }
    }
    outcome.json = serde_json::to_value(deleted)?;
    Ok(outcome)
}

/// Where the group stands, among the partitions named.
async fn committed_places(
    client: &Client,
    group: &str,
    topics: &[Selection],
) -> Result<Vec<Place>, VerbError> {
    let is_named = |(topic, partition): &Place| {
        let mut named = topics.iter().filter(|selection| selection.topic == *topic);
        named.any(|selection| selection.partitions.is_empty() || selection.partitions.contains(partition))
    };
    let places: Vec<Place> = client.group_offsets(group).await?.into_keys().filter(is_named).collect();
    if places.is_empty() {
        let what = topics.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        return Err(GroupError::NoOffsets { group: group.to_owned(), what }.into());
    }
    Ok(places)
}

async fn offset_delete(client: &Client, group: &str, places: Vec<Place>) -> Result<Outcome, VerbError> {
    client.delete_group_offsets(group, &places).await?;
    let count = places.len();
    let table = format!("group {group} has forgotten {count} offset{}\n", plural(count));
    let json =
        places.iter().map(|(topic, partition)| serde_json::json!({ "topic": topic, "partition": partition }));
    Ok(Outcome { table, json: json.collect(), failures: Vec::new() })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Cli::try_parse_from(std::iter::once("group").chain(line.split_whitespace())).map(|cli| cli.args)
    }

    #[test]
    fn verbs_take_their_options() {
        assert!(matches!(parse("ls -b h:1 -o json").expect("valid").verb, Verb::List { .. }));
        assert!(matches!(parse("describe a b --trend 30").expect("valid").verb, Verb::Describe(_)));
        assert!(matches!(parse("seek a -t t:1,2 --to earliest").expect("valid").verb, Verb::Seek(_)));
        assert!(matches!(parse("delete a b -y").expect("valid").verb, Verb::Delete { yes: true, .. }));
        let Verb::OffsetDelete { topics, .. } = parse("offset-delete g -t a -t b:0,3").expect("valid").verb
        else {
            panic!("offset-delete was asked for");
        };
        assert_eq!(topics[0], Selection { topic: "a".to_owned(), partitions: vec![] });
        assert_eq!(topics[1], Selection { topic: "b".to_owned(), partitions: vec![0, 3] });
        assert_eq!((topics[0].to_string(), topics[1].to_string()), ("a".to_owned(), "b:0,3".to_owned()));
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in
            ["", "describe", "seek a", "seek a -t t", "seek a --to earliest", "delete", "offset-delete a"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
        for text in ["", ":1", "t:x", "t:-1"] {
            assert!(parse_selection(text).is_err(), "{text}");
        }
    }
}
