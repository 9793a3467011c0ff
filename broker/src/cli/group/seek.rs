//! `ringlog group seek`: moves the offsets of a group without members. Owns its arguments and what it prints.

use std::collections::BTreeMap;

use ringlog_bench::client::admin::OffsetQuery;
use ringlog_bench::client::groups::{CommittedOffset, Place};
use ringlog_bench::client::{Client, ClientError};
use ringlog_protocol::error_code::ErrorCode;
use serde::Serialize;

use super::super::confirm::confirm;
use super::{
    GroupError, Outcome, Selection, VerbError, align_right, new_table, parse_selection, plural, rendered,
};

#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(value_name = "GROUP")]
    group: String,
    /// A topic, or some partitions of it; may be repeated
    #[arg(
        short,
        long = "topic",
        value_name = "TOPIC[:N,...]",
        value_parser = parse_selection,
        required_unless_present = "all_topics",
        conflicts_with = "all_topics"
    )]
    topics: Vec<Selection>,
    /// Every partition that the group ever committed
    #[arg(long)]
    all_topics: bool,
    /// Where to: earliest, latest, an offset, +N or -N from where it stands, or a time such as 2026-11-30T12:00:00Z
    #[arg(long, value_name = "WHERE", value_parser = parse_target, allow_hyphen_values = true)]
    to: Target,
    /// Only show what would change
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Earliest,
    Latest,
    Offset(i64),
    /// From where the group stands.
    By(i64),
    /// The first record at or after this many milliseconds since the Unix epoch.
    Time(i64),
}

fn parse_target(text: &str) -> Result<Target, String> {
    let wrong = || {
        format!("'{text}' is not earliest, latest, an offset, +N, -N, or a time such as 2026-11-30T12:00:00Z")
    };
    match text {
        "earliest" => return Ok(Target::Earliest),
        "latest" => return Ok(Target::Latest),
        _ => {}
    }
    if text.starts_with(['+', '-']) {
        return text.parse().map(Target::By).map_err(|_| wrong());
    }
    if let Ok(offset) = text.parse() {
        return Ok(Target::Offset(offset));
    }
    humantime::parse_rfc3339_weak(text)
        .ok()
        .and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok())
        .and_then(|since| i64::try_from(since.as_millis()).ok())
        .map(Target::Time)
        .ok_or_else(wrong)
}

#[derive(Debug, Serialize, PartialEq, Eq)]
struct Move {
    topic: String,
    partition: i32,
    from_offset: Option<i64>,
    to_offset: i64,
    /// The target lay outside of what is there.
    clamped: bool,
}

pub(super) async fn run(client: &Client, args: Args) -> Result<Outcome, VerbError> {
    refuse_members(client, &args.group).await?;
    let committed = match client.group_offsets(&args.group).await {
        Err(error) if error.code() == Some(ErrorCode::GroupIdNotFound) => BTreeMap::new(),
        result => result?,
    };
    let moves = plan(client, &args, &committed).await?;
    if !args.dry_run {
        if !args.yes {
            let count = moves.len();
            confirm(&format!("move {count} offset{} of group {}", plural(count), args.group))?;
        }
        let offsets =
            moves.iter().map(|step| ((step.topic.clone(), step.partition), step.to_offset)).collect();
        client.commit_group_offsets(&args.group, &offsets).await?;
    }
    let head = if args.dry_run { "would move" } else { "moved" };
    let mut table = new_table(&["TOPIC", "PARTITION", "FROM", "TO"]);
    align_right(&mut table, &[1, 2, 3]);
    for step in &moves {
        let from = step.from_offset.map_or("-".to_owned(), |offset| offset.to_string());
        let to = if step.clamped {
            format!("{} (end of the log)", step.to_offset)
        } else {
            step.to_offset.to_string()
        };
        table.add_row([step.topic.clone(), step.partition.to_string(), from, to]);
    }
    let table = format!("{head} group {}\n{}", args.group, rendered(&mut table));
    Ok(Outcome { table, json: serde_json::to_value(moves)?, failures: Vec::new() })
}

/// The broker refuses it too, but does not say why.
async fn refuse_members(client: &Client, group: &str) -> Result<(), VerbError> {
    match client.describe_group(group).await {
        Ok(described) if described.members.is_empty() => Ok(()),
        Ok(described) => {
            Err(GroupError::HasMembers { group: group.to_owned(), members: described.members.len() }.into())
        }
        // It comes to be with its first offset.
        Err(error) if error.code() == Some(ErrorCode::GroupIdNotFound) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn plan(
    client: &Client,
    args: &Args,
    committed: &BTreeMap<Place, CommittedOffset>,
) -> Result<Vec<Move>, VerbError> {
    let mut moves = Vec::new();
    for (topic, partitions) in wanted(client, args, committed).await? {
        let earliest = client.offsets(&topic, &partitions, OffsetQuery::Earliest).await?;
        let latest = client.offsets(&topic, &partitions, OffsetQuery::Latest).await?;
        let at_time = match args.to {
            Target::Time(milliseconds) => {
                client.offsets(&topic, &partitions, OffsetQuery::AtOrAfter(milliseconds)).await?
            }
            _ => BTreeMap::new(),
        };
        for partition in partitions {
            let of = |offsets: &BTreeMap<i32, i64>| offsets.get(&partition).copied();
            let (Some(first), Some(end)) = (of(&earliest), of(&latest)) else { continue };
            let from_offset = committed.get(&(topic.clone(), partition)).map(|committed| committed.offset);
            let (to_offset, clamped) = destination(args.to, from_offset, first..=end, of(&at_time));
            moves.push(Move { topic: topic.clone(), partition, from_offset, to_offset, clamped });
        }
    }
    if moves.is_empty() {
        return Err(GroupError::NoOffsets { group: args.group.clone(), what: "any topic".to_owned() }.into());
    }
    Ok(moves)
}

/// Where a partition goes, and whether the target lay outside of the log. `at_time` is -1 where no record is that late.
fn destination(
    target: Target,
    from: Option<i64>,
    log: std::ops::RangeInclusive<i64>,
    at_time: Option<i64>,
) -> (i64, bool) {
    let (first, end) = (*log.start(), *log.end());
    let wanted = match target {
        Target::Earliest => first,
        Target::Latest => end,
        Target::Offset(offset) => offset,
        Target::By(distance) => from.unwrap_or(first).saturating_add(distance),
        Target::Time(_) => at_time.filter(|offset| *offset >= 0).unwrap_or(end),
    };
    let to = wanted.clamp(first, end.max(first));
    (to, to != wanted)
}

async fn wanted(
    client: &Client,
    args: &Args,
    committed: &BTreeMap<Place, CommittedOffset>,
) -> Result<BTreeMap<String, Vec<i32>>, VerbError> {
    let mut wanted: BTreeMap<String, Vec<i32>> = BTreeMap::new();
    if args.all_topics {
        for (topic, partition) in committed.keys() {
            wanted.entry(topic.clone()).or_default().push(*partition);
        }
    }
    for Selection { topic, partitions } in &args.topics {
        // Not waited for: a topic that is not there is told at once.
        let image = client.metadata(Some(&[topic])).await?;
        let connection = client.any_connection().await?;
        let found = image.topics.get(topic).ok_or_else(|| ClientError::Missing {
            address: connection.address().to_string(),
            api: "Metadata",
            subject: format!("topic '{topic}'"),
        })?;
        if let Some(error) = found.error(connection.address()) {
            return Err(error.into());
        }
        let count = found.partitions.len();
        if let Some(partition) = partitions.iter().find(|number| !found.partitions.contains_key(number)) {
            return Err(GroupError::NoPartition { topic: topic.clone(), partition: *partition, count }.into());
        }
        let all = || found.partitions.keys().copied().collect();
        let mut named = if partitions.is_empty() { all() } else { partitions.clone() };
        let entry = wanted.entry(topic.clone()).or_default();
        entry.append(&mut named);
        entry.sort_unstable();
        entry.dedup();
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_words_numbers_distances_and_times() {
        for (text, target) in [
            ("earliest", Target::Earliest),
            ("latest", Target::Latest),
            ("7", Target::Offset(7)),
            ("+10", Target::By(10)),
            ("-3", Target::By(-3)),
            ("1970-01-01T00:00:01Z", Target::Time(1_000)),
            ("1970-01-01 00:00:02", Target::Time(2_000)),
        ] {
            assert_eq!(parse_target(text), Ok(target), "{text}");
        }
        for text in ["", "now", "+", "-", "1.5", "12:00"] {
            assert!(parse_target(text).is_err(), "{text}");
        }
    }

    #[test]
    fn nobody_goes_beyond_the_ends_of_the_log() {
        let to = |target, from| destination(target, from, 10..=20, None);
        assert_eq!(to(Target::Earliest, Some(15)), (10, false));
        assert_eq!(to(Target::Latest, None), (20, false));
        assert_eq!(to(Target::Offset(5), None), (10, true));
        assert_eq!(to(Target::Offset(99), None), (20, true));
        assert_eq!(to(Target::By(-3), Some(15)), (12, false));
        assert_eq!(to(Target::By(-30), Some(15)), (10, true));
        assert_eq!(to(Target::By(2), None), (12, false));
        assert_eq!(to(Target::By(i64::MAX), Some(15)), (20, true));
        assert_eq!(destination(Target::Time(5), None, 10..=20, Some(13)), (13, false));
        assert_eq!(destination(Target::Time(5), None, 10..=20, Some(-1)), (20, false));
    }
}
