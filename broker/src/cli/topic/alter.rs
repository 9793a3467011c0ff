//! `ringlog topic alter`: configs of a topic, or more partitions. Owns its arguments and what it prints.

use ringlog_bench::client::Client;
use ringlog_bench::client::configs::ConfigResource;
use serde::Serialize;

use super::super::configs::{self, CHANGES, Changes, DescribedConfig};
use super::{Outcome, VerbError, plural};

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
#[command(group(clap::ArgGroup::new("configs").multiple(true).args(CHANGES).conflicts_with("partitions")))]
#[command(group(clap::ArgGroup::new("changes").required(true).multiple(true).args(["sets", "unsets", "partitions"])))]
pub struct Args {
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    changes: Changes,
    /// Let the topic have so many partitions in all; not together with configs
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(i32).range(1..))]
    partitions: Option<i32>,
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

pub(super) async fn run(client: &Client, args: Args) -> Result<Outcome, VerbError> {
    let Args { name, changes, partitions } = args;
    if let Some(count) = partitions {
        return grow(client, name, count, changes.dry_run).await;
    }
    let configs = configs::change(client, &ConfigResource::Topic(name.clone()), &changes).await?;
    let table = configs::sentence(&format!("topic {name}"), changes.dry_run, &configs);
    let altered = AlteredTopic { name, dry_run: changes.dry_run, configs };
    Ok(Outcome { table, json: serde_json::to_value(altered)?, failures: Vec::new() })
}

async fn grow(client: &Client, name: String, count: i32, dry_run: bool) -> Result<Outcome, VerbError> {
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
