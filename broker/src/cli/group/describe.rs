//! `ringlog group describe`: members, what they own, and how far each partition lags. Owns its arguments and what it prints.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ringlog_bench::client::admin::OffsetQuery;
use ringlog_bench::client::cluster::Lane;
use ringlog_bench::client::configs::ConfigResource;
use ringlog_bench::client::fetcher::{FetchConfig, FetchPosition, start_fetch};
use ringlog_bench::client::groups::{CommittedOffset, DescribedGroup, GroupMember, Place};
use ringlog_bench::client::log_dirs::LogSizes;
use ringlog_bench::client::reading::visit_records;
use ringlog_bench::client::{Client, ClientError};
use serde::Serialize;

use super::durations::duration_text;
use super::timeline::{self, Timeline};
use super::{Outcome, VerbError, align_right, byte_size, new_table, plural, rendered};
use crate::group::progress::{CatchUp, Look, Overtaken, Progress, Trend, bytes_before_by_size};

/// The configs that limit the age of records and the size of a partition.
const RETENTION: &str = "retention.ms";
const RETENTION_BYTES: &str = "retention.bytes";
const CLEANUP: &str = "cleanup.policy";
/// Topics that one sentence names; the JSON has them all.
const TOPICS_NAMED_MAX: usize = 3;

#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(required = true, value_name = "GROUP")]
    groups: Vec<String>,
    /// Look twice, so many seconds apart, and tell whether the group catches up. Consumers commit every 5 s by default, so give more
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    trend: Option<u32>,
    /// A Ringlog broker's admin address, HOST:PORT: shows the last rebalances too, who made them, why and what moved
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    group: String,
    state: String,
    #[serde(rename = "type")]
    kind: &'static str,
    assignor: String,
    epoch: Option<i32>,
    members: Vec<MemberRow>,
    partitions: Vec<PartitionRow>,
    total: Total,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    timeline: Option<Timeline>,
}

#[derive(Debug, Serialize)]
struct MemberRow {
    member: String,
    instance: Option<String>,
    client_id: String,
    client_host: String,
    partitions: usize,
}

#[derive(Debug, Serialize)]
struct PartitionRow {
    topic: String,
    partition: i32,
    /// `None`: never committed.
    committed_offset: Option<i64>,
    earliest_offset: i64,
    latest_offset: i64,
    lag_records: Option<i64>,
    /// How long the first record that is not consumed has waited.
    lag_ms: Option<i64>,
    /// Until retention by time takes it; 0: it may go any moment.
    retention_in_ms: Option<i64>,
    /// Set where it may go earlier by size, and at this size of the partition.
    retention_bytes: Option<u64>,
    /// At least so many bytes are appended to the partition before, as far as a client can tell; only its broker knows its segments.
    retention_after_bytes: Option<u64>,
    /// Records that were gone, by retention or deleted, before the group consumed them.
    lost_records: i64,
    member: Option<String>,
    client_id: Option<String>,
    #[serde(skip)]
    look: Option<Look>,
    #[serde(skip)]
    overtaken: Overtaken,
}

#[derive(Debug, Default, Serialize)]
struct Total {
    /// Those that the lag is of.
    partitions_committed: usize,
    lag_records: i64,
    lag_ms: Option<i64>,
    retention_in_ms: Option<i64>,
    /// Topics of which records that wait may go by size, and at which size of a partition.
    retention_bytes: BTreeMap<String, u64>,
    lost_records: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    trend: Option<TrendRow>,
}

#[derive(Debug, Serialize)]
struct TrendRow {
    seconds: u32,
    produced_per_second: f64,
    consumed_per_second: f64,
    /// `None`: never, at this pace.
    caught_up_in_ms: Option<i64>,
}

pub(super) async fn run(client: &Client, args: Args) -> Result<Outcome, VerbError> {
    let mut outcome = Outcome::default();
    let mut reports = Vec::new();
    for group in &args.groups {
        match report(client, group, args.trend).await {
            Ok(mut report) => {
                match args.admin.as_deref().map(|address| timeline::ask(address, group)).transpose() {
                    Ok(timeline) => report.timeline = timeline,
                    Err(error) => outcome.failures.push(error.to_string()),
                }
                if !outcome.table.is_empty() {
                    outcome.table.push('\n');
                }
                outcome.table.push_str(&text(&report));
                if let Some(timeline) = &report.timeline {
                    outcome.table.push_str(&timeline::text(timeline, client.io().wall_now_ms()));
                }
                reports.push(report);
            }
            Err(error) => outcome.failures.push(error.to_string()),
        }
    }
    outcome.json = serde_json::to_value(reports)?;
    Ok(outcome)
}

async fn report(client: &Client, group: &str, trend: Option<u32>) -> Result<Report, ClientError> {
    let described = client.describe_group(group).await?;
    let mut partitions = look(client, group, &described).await?;
    let mut total = total(&partitions);
    if let Some(seconds) = trend {
        client.io().sleep(Duration::from_secs(u64::from(seconds))).await;
        let first: BTreeMap<Place, Look> =
            partitions.iter().filter_map(|row| Some((row.place(), row.look?))).collect();
        partitions = look(client, group, &described).await?;
        total = self::total(&partitions);
        total.trend = Some(trend_of(&first, &partitions, seconds, total.lag_records));
    }
    let members = described.members.iter().map(|member| MemberRow {
        member: member.id.clone(),
        instance: member.instance.clone(),
        client_id: member.client_id.clone(),
        client_host: member.client_host.clone(),
        partitions: member.assignment.len(),
    });
    Ok(Report {
        members: members.collect(),
        group: described.id,
        state: described.state,
        kind: described.kind,
        assignor: described.assignor,
        epoch: described.epoch,
        partitions,
        total,
        timeline: None,
    })
}

fn trend_of(first: &BTreeMap<Place, Look>, second: &[PartitionRow], seconds: u32, lag: i64) -> TrendRow {
    let second: BTreeMap<Place, Look> =
        second.iter().filter_map(|row| Some((row.place(), row.look?))).collect();
    let trend = Trend::over(first, second.iter().map(|(place, look)| (place, *look))).unwrap_or_default();
    TrendRow {
        seconds,
        produced_per_second: trend.produced,
        consumed_per_second: trend.consumed,
        caught_up_in_ms: match trend.catch_up(lag) {
            CatchUp::Done => Some(0),
            CatchUp::InMs(milliseconds) => Some(milliseconds),
            CatchUp::Never => None,
        },
    }
}

fn total(rows: &[PartitionRow]) -> Total {
    let mut progress = Progress::default();
    for row in rows {
        if let Some(look) = row.look {
            progress.add(look, row.lag_ms, row.overtaken);
        }
    }
    let Progress { lag_records, lag_ms, retention_in_ms, lost_records } = progress;
    let bounded = rows.iter().filter_map(|row| Some((row.topic.clone(), row.retention_bytes?)));
    let retention_bytes = bounded.collect();
    let partitions_committed = rows.iter().filter(|row| row.look.is_some()).count();
    Total {
        partitions_committed,
        lag_records,
        lag_ms,
        retention_in_ms,
        retention_bytes,
        lost_records,
        trend: None,
    }
}

impl PartitionRow {
    fn place(&self) -> Place {
        (self.topic.clone(), self.partition)
    }
}

/// One row for each partition that the group owns or ever committed.
async fn look(
    client: &Client,
    group: &str,
    described: &DescribedGroup,
) -> Result<Vec<PartitionRow>, ClientError> {
    let committed = client.group_offsets(group).await?;
    let owners: BTreeMap<&Place, &GroupMember> = described
        .members
        .iter()
        .flat_map(|member| member.assignment.iter().map(move |place| (place, member)))
        .collect();
    let places: BTreeSet<&Place> = committed.keys().chain(owners.keys().copied()).collect();
    let mut by_topic: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
    for (topic, partition) in places {
        by_topic.entry(topic).or_default().push(*partition);
    }
    let mut rows = Vec::new();
    for (topic, partitions) in by_topic {
        let ends = Ends::of(client, topic, &partitions).await?;
        for partition in partitions {
            let place = (topic.to_owned(), partition);
            let owner = owners.get(&place).copied();
            rows.push(row(client, &ends, place, &committed, owner).await?);
        }
    }
    Ok(rows)
}

/// What is there to be consumed.
struct Ends {
    earliest: BTreeMap<i32, i64>,
    latest: BTreeMap<i32, i64>,
    /// Negative: no limit.
    retention_ms: i64,
    retention_bytes: Option<u64>,
    /// Of the partitions whose leader tells; asked for where there is a limit.
    sizes: LogSizes,
}

impl Ends {
    async fn of(client: &Client, topic: &str, partitions: &[i32]) -> Result<Ends, ClientError> {
        let configs = client.configs(&ConfigResource::Topic(topic.to_owned())).await?;
        let value = |key: &str| configs.iter().find(|config| config.name == key)?.value.as_deref();
        let is_deleted = value(CLEANUP).is_none_or(|policy| policy.contains("delete"));
        let limit = |key: &str| value(key)?.parse().ok().filter(|limit: &i64| is_deleted && *limit >= 0);
        let retention_bytes = limit(RETENTION_BYTES).and_then(|bytes| u64::try_from(bytes).ok());
        let sizes = match retention_bytes {
            Some(_) => client.log_sizes(&[&*client.topic(topic).await?]).await?,
            None => LogSizes::new(),
        };
        Ok(Ends {
            sizes,
            earliest: client.offsets(topic, partitions, OffsetQuery::Earliest).await?,
            latest: client.offsets(topic, partitions, OffsetQuery::Latest).await?,
            retention_ms: limit(RETENTION).unwrap_or(-1),
            retention_bytes,
        })
    }
}

async fn row(
    client: &Client,
    ends: &Ends,
    (topic, partition): Place,
    committed: &BTreeMap<Place, CommittedOffset>,
    owner: Option<&GroupMember>,
) -> Result<PartitionRow, ClientError> {
    let earliest = ends.earliest.get(&partition).copied().unwrap_or(-1);
    let latest = ends.latest.get(&partition).copied().unwrap_or(-1);
    let committed = committed.get(&(topic.clone(), partition)).map(|committed| committed.offset);
    let now_ms = client.io().wall_now_ms();
    let look = committed.map(|committed| Look { at_ms: now_ms, committed, end: latest });
    let retention_bytes = look.filter(|look| look.lag() > 0).and(ends.retention_bytes);
    let size = ends.sizes.get(&(topic.clone(), partition)).copied();
    let (mut lag_ms, mut overtaken) = (None, Overtaken::Never);
    if let Some(look) = look {
        if look.lag() > 0 {
            let written_ms = first_timestamp(client, &topic, partition, look.committed.max(earliest)).await?;
            lag_ms = written_ms.map(|written_ms| (now_ms - written_ms).max(0));
        }
        // Which segments a log has no client is told.
        overtaken = Overtaken::of(look, earliest, lag_ms, ends.retention_ms, None);
    }
    Ok(PartitionRow {
        topic,
        partition,
        committed_offset: committed,
        earliest_offset: earliest,
        latest_offset: latest,
        lag_records: look.map(Look::lag),
        lag_ms,
        retention_in_ms: match overtaken {
            Overtaken::InMs(milliseconds) => Some(milliseconds),
            Overtaken::Never | Overtaken::Since(_) => None,
        },
        retention_bytes,
        retention_after_bytes: look
            .zip(size)
            .zip(retention_bytes)
            .and_then(|((look, bytes), most)| bytes_before_by_size(look, earliest, bytes, most)),
        lost_records: match overtaken {
            Overtaken::Since(records) => records,
            Overtaken::Never | Overtaken::InMs(_) => 0,
        },
        member: owner.map(|member| member.id.clone()),
        client_id: owner.map(|member| member.client_id.clone()),
        look,
        overtaken,
    })
}

/// The timestamp of the first record at or after the offset; `None` where there is none any more, or it has none.
async fn first_timestamp(
    client: &Client,
    topic: &str,
    partition: i32,
    offset: i64,
) -> Result<Option<i64>, ClientError> {
    let image = client.topic(topic).await?;
    let Some(leader) = image.partitions.get(&partition).map(|partition| partition.leader) else {
        return Ok(None);
    };
    let connection = client.connection(Lane { node_id: leader, number: 0 }).await?;
    // One batch comes however large it is.
    let config = FetchConfig { wait_max: Duration::ZERO, partition_bytes_max: 1, ..FetchConfig::default() };
    let positions = [FetchPosition { partition, offset }];
    let fetched =
        start_fetch(&connection, &image, &positions, &config)?.partitions(&connection, &image).await?;
    let mut found = None;
    for told in fetched.iter().filter(|told| told.error_code == 0) {
        let subject = format_args!("partition {partition} of topic '{topic}'");
        visit_records(subject, &told.records, offset, &mut Vec::new(), |record| {
            found = Some(record.timestamp);
            false
        })?;
    }
    Ok(found.filter(|timestamp| *timestamp >= 0))
}

fn text(report: &Report) -> String {
    let mut text = format!("group {}: {}, {}", report.group, report.state, report.kind);
    if !report.assignor.is_empty() {
        text.push_str(&format!(", assignor {}", report.assignor));
    }
    if let Some(epoch) = report.epoch {
        text.push_str(&format!(", epoch {epoch}"));
    }
    let members = report.members.len();
    text.push_str(&format!(", {members} member{}\n", plural(members)));
    for sentence in sentences(&report.total) {
        text.push_str(&sentence);
        text.push('\n');
    }
    if !report.members.is_empty() {
        let mut table = new_table(&["MEMBER", "INSTANCE", "CLIENT", "HOST", "PARTITIONS"]);
        align_right(&mut table, &[4]);
        for member in &report.members {
            let instance = member.instance.clone().unwrap_or_else(|| "-".to_owned());
            let count = member.partitions.to_string();
            table.add_row([&member.member, &instance, &member.client_id, &member.client_host, &count]);
        }
        text.push_str(&format!("\n{}", rendered(&mut table)));
    }
    if !report.partitions.is_empty() {
        text.push_str(&format!("\n{}", partition_table(&report.partitions)));
    }
    text
}

fn partition_table(rows: &[PartitionRow]) -> String {
    let mut table =
        new_table(&["TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "WAITING", "RETENTION IN", "MEMBER"]);
    align_right(&mut table, &[1, 2, 3, 4, 5, 6]);
    let number = |number: Option<i64>| number.map_or("-".to_owned(), |number| number.to_string());
    let time = |milliseconds: Option<i64>| milliseconds.map_or("-".to_owned(), duration_text);
    for row in rows {
        let by_size = match row.retention_after_bytes {
            None => "by size".to_owned(),
            // Segments go whole, so it may be a segment more.
            Some(0) => "soon by size".to_owned(),
            Some(after) => format!("after {}", byte_size(after)),
        };
        let retention = match (row.lost_records, row.retention_bytes, row.retention_in_ms) {
            (0, None, in_ms) => time(in_ms),
            (0, Some(_), None) => by_size,
            (0, Some(_), in_ms) => format!("{} or {by_size}", time(in_ms)),
            (lost, ..) => format!("{lost} lost"),
        };
        table.add_row([
            row.topic.clone(),
            row.partition.to_string(),
            number(row.committed_offset),
            row.latest_offset.to_string(),
            number(row.lag_records),
            time(row.lag_ms),
            retention,
            row.member.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    rendered(&mut table)
}

fn sentences(total: &Total) -> Vec<String> {
    let mut sentences = Vec::new();
    let records = |count: i64| format!("{count} record{}", if count == 1 { "" } else { "s" });
    sentences.push(match total.lag_ms {
        _ if total.partitions_committed == 0 => "lag: not known, no offset is committed".to_owned(),
        _ if total.lag_records == 0 => "lag: none".to_owned(),
        Some(lag_ms) => {
            format!("lag: {}, the oldest has waited {}", records(total.lag_records), duration_text(lag_ms))
        }
        None => format!("lag: {}", records(total.lag_records)),
    });
    if total.lost_records > 0 {
        sentences.push(format!(
            "LOST: {} went, by retention or deleted, before the group consumed them",
            records(total.lost_records)
        ));
    }
    if let Some(left_ms) = total.retention_in_ms {
        sentences.push(match left_ms {
            0 => "retention may take the oldest of them any moment".to_owned(),
            _ => format!("retention takes the oldest of them in {}", duration_text(left_ms)),
        });
    }
    sentences.extend(by_size(total));
    if let Some(trend) = &total.trend {
        let pace = format!(
            "in {} s: {:.1}/s produced, {:.1}/s consumed",
            trend.seconds, trend.produced_per_second, trend.consumed_per_second
        );
        sentences.push(match trend.caught_up_in_ms {
            Some(0) => format!("{pace}; it keeps up"),
            Some(milliseconds) => format!("{pace}; caught up in {}", duration_text(milliseconds)),
            None => format!("{pace}; at this pace it never catches up"),
        });
    }
    sentences
}

/// What is known of retention by size, in words.
fn by_size(total: &Total) -> Option<String> {
    let topics = total.retention_bytes.iter().take(TOPICS_NAMED_MAX);
    let mut named: Vec<String> =
        topics.map(|(topic, bytes)| format!("{topic} ({RETENTION_BYTES}={bytes})")).collect();
    match total.retention_bytes.len().saturating_sub(TOPICS_NAMED_MAX) {
        0 => {}
        left => named.push(format!("{left} other topic{}", plural(left))),
    }
    let when = match total.retention_in_ms {
        Some(_) => "by size it may take them earlier",
        None => "retention takes them by size",
    };
    (!named.is_empty()).then(|| format!("{when}: {}", named.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(partition: i32, committed: Option<i64>, latest: i64, lag_ms: Option<i64>) -> PartitionRow {
        PartitionRow {
            topic: "orders".to_owned(),
            partition,
            committed_offset: committed,
            earliest_offset: 0,
            latest_offset: latest,
            lag_records: committed.map(|committed| latest - committed),
            lag_ms,
            retention_in_ms: lag_ms.map(|lag_ms| 3_600_000 - lag_ms),
            retention_bytes: None,
            retention_after_bytes: None,
            lost_records: 0,
            member: Some("consumer-1".to_owned()),
            client_id: None,
            look: committed.map(|committed| Look { at_ms: 0, committed, end: latest }),
            overtaken: lag_ms.map_or(Overtaken::Never, |lag_ms| Overtaken::InMs(3_600_000 - lag_ms)),
        }
    }

    #[test]
    fn the_report_says_the_worst_first() {
        let rows =
            vec![row(0, Some(5), 25, Some(90_000)), row(1, Some(9), 10, Some(5_000)), row(2, None, 4, None)];
        let report = Report {
            group: "billing".to_owned(),
            state: "Stable".to_owned(),
            kind: "classic",
            assignor: "range".to_owned(),
            epoch: None,
            members: Vec::new(),
            total: total(&rows),
            partitions: rows,
            timeline: None,
        };
        let text = text(&report);
        assert!(text.starts_with("group billing: Stable, classic, assignor range, 0 members\n"), "{text}");
        assert!(text.contains("lag: 21 records, the oldest has waited 1m 30s\n"), "{text}");
        assert!(text.contains("retention takes the oldest of them in 58m 30s\n"), "{text}");
        let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(words.contains(&vec![
            "orders",
            "0",
            "5",
            "25",
            "20",
            "1m",
            "30s",
            "58m",
            "30s",
            "consumer-1"
        ]));
        assert!(words.contains(&vec!["orders", "2", "-", "4", "-", "-", "-", "consumer-1"]));
    }

    #[test]
    fn what_goes_by_size_is_never_said_to_stay() {
        let bounded = |topic: &str, lag_ms| PartitionRow {
            topic: topic.to_owned(),
            retention_bytes: Some(1_000),
            ..row(0, Some(5), 25, lag_ms)
        };
        let (without_age, with_age) = (bounded("orders", None), bounded("orders", Some(90_000)));
        let only_size = total(std::slice::from_ref(&without_age));
        let told = sentences(&only_size);
        assert!(
            told.contains(&"retention takes them by size: orders (retention.bytes=1000)".to_owned()),
            "{told:?}"
        );
        let table = partition_table(&[without_age, with_age, row(2, None, 4, None)]);
        assert!(table.contains(" by size ") && table.contains(" 58m 30s or by size "), "{table}");
        let sized = |after_bytes, lag_ms| PartitionRow {
            retention_after_bytes: Some(after_bytes),
            ..bounded("orders", lag_ms)
        };
        let table = partition_table(&[sized(1536, None), sized(1536, Some(90_000)), sized(0, Some(90_000))]);
        for expected in [" after 1.5 KiB ", " 58m 30s or after 1.5 KiB ", " 58m 30s or soon by size "] {
            assert!(table.contains(expected), "{table}");
        }

        let many: Vec<PartitionRow> = ["a", "b", "c", "d"].map(|topic| bounded(topic, Some(90_000))).into();
        let told = sentences(&total(&many));
        let expected = "by size it may take them earlier: a (retention.bytes=1000), b (retention.bytes=1000), \
                        c (retention.bytes=1000), 1 other topic";
        assert!(told.contains(&expected.to_owned()), "{told:?}");
        assert!(by_size(&total(&[row(0, Some(5), 25, Some(1))])).is_none());
    }

    #[test]
    fn a_group_that_never_committed_is_not_said_to_lag_by_nothing() {
        assert_eq!(sentences(&total(&[row(0, None, 4, None)])), ["lag: not known, no offset is committed"]);
        assert_eq!(sentences(&total(&[row(0, None, 4, None), row(1, Some(4), 4, None)])), ["lag: none"]);
    }

    #[test]
    fn what_may_go_any_moment_has_no_time_left() {
        let total =
            Total { partitions_committed: 1, lag_records: 1, retention_in_ms: Some(0), ..Total::default() };
        assert_eq!(sentences(&total)[1], "retention may take the oldest of them any moment");
    }

    #[test]
    fn a_trend_is_the_sum_of_the_partitions_seen_twice() {
        let second = vec![
            PartitionRow {
                look: Some(Look { at_ms: 10_000, committed: 105, end: 125 }),
                ..row(0, None, 0, None)
            },
            PartitionRow {
                look: Some(Look { at_ms: 10_000, committed: 50, end: 50 }),
                ..row(1, None, 0, None)
            },
        ];
        let first = BTreeMap::from([(("orders".to_owned(), 0), Look { at_ms: 0, committed: 5, end: 75 })]);
        let trend = trend_of(&first, &second, 10, 20);
        assert_eq!((trend.produced_per_second, trend.consumed_per_second), (5.0, 10.0));
        assert_eq!(trend.caught_up_in_ms, Some(4_000));
    }
}
