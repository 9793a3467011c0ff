//! Owns the families of `/metrics` that say how far consumer groups are behind: sums over all groups, those that lag most by name, and of
//! these the topics that lag most.
//! A core shows the groups that it coordinates; here the whole broker's are put together, so that the series are bounded whatever the
//! numbers of groups and of shards. Names are added, never changed.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, GaugeValueEncoder};
use prometheus_client::metrics::MetricType;

use super::metrics::{Encoded, Labels};
use crate::group::lag::{GroupLag, LagTotals, TopicLag};
use crate::group::progress::{CatchUp, Progress};
use crate::observe::snapshot::ShardSnapshot;

/// Whole numbers stay whole.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Number {
    Whole(i64),
    Fraction(f64),
}

impl EncodeGaugeValue for Number {
    fn encode(&self, encoder: &mut GaugeValueEncoder<'_>) -> Encoded {
        match self {
            Number::Whole(number) => number.encode(encoder),
            Number::Fraction(number) => number.encode(encoder),
        }
    }
}

/// One family of the groups by name. `None`: not known of this group, or there is no such moment.
type ByGroup = (&'static str, &'static str, fn(&GroupLag) -> Option<Number>);

const BY_GROUP: &[ByGroup] = &[
    ("ringlog_group_lag_records", "Records that the group has not consumed yet", |lag| {
        Some(Number::Whole(lag.progress.lag_records))
    }),
    ("ringlog_group_lag_seconds", "How long the oldest of them has waited since its timestamp", |lag| {
        waited(lag.progress)
    }),
    (
        "ringlog_group_lag_lost_records",
        "Records that were gone, by retention or deleted, before the group consumed them",
        |lag| Some(Number::Whole(lag.progress.lost_records)),
    ),
    (
        "ringlog_group_lag_retention_seconds",
        "Time until retention, by time or by size, takes the first that waits; none where it never does",
        |lag| lag.progress.retention_in_ms.map(seconds),
    ),
    ("ringlog_group_lag_produced_per_second", "Records produced for the group in a second, of late", |lag| {
        lag.trend.map(|trend| Number::Fraction(trend.produced))
    }),
    (
        "ringlog_group_lag_consumed_per_second",
        "Records that the group consumed in a second, of late",
        |lag| lag.trend.map(|trend| Number::Fraction(trend.consumed)),
    ),
    (
        "ringlog_group_lag_catch_up_seconds",
        "Time until the group has caught up at that pace; +Inf where it does not",
        |lag| {
            lag.catch_up().map(|catch_up| match catch_up {
                CatchUp::Done => Number::Fraction(0.0),
                CatchUp::InMs(in_ms) => seconds(in_ms),
                CatchUp::Never => Number::Fraction(f64::INFINITY),
            })
        },
    ),
    ("ringlog_group_lag_members", "Members of the group", |lag| {
        Some(Number::Whole(i64::try_from(lag.members).unwrap_or(i64::MAX)))
    }),
];

/// As [`ByGroup`], of one topic of a group.
type ByTopic = (&'static str, &'static str, fn(Progress) -> Option<Number>);

const BY_TOPIC: &[ByTopic] = &[
    (
        "ringlog_group_topic_lag_records",
        "Records of the topic that the group has not consumed yet",
        |progress| Some(Number::Whole(progress.lag_records)),
    ),
    ("ringlog_group_topic_lag_seconds", "How long the oldest of them has waited since its timestamp", waited),
    (
        "ringlog_group_topic_lag_retention_seconds",
        "Time until retention, by time or by size, takes the first that waits; none where it never does",
        |progress| progress.retention_in_ms.map(seconds),
    ),
];

fn waited(progress: Progress) -> Option<Number> {
    match progress.lag_ms {
        None if progress.lag_records == 0 => Some(Number::Fraction(0.0)),
        lag_ms => lag_ms.map(seconds),
    }
}

fn seconds(milliseconds: i64) -> Number {
    Number::Fraction(milliseconds as f64 / 1e3)
}

/// Writes nothing before a shard looked.
pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    shards: &[Arc<ShardSnapshot>],
    groups_max: usize,
    topics_max: usize,
) -> Encoded {
    let reports = || shards.iter().filter_map(|shard| shard.lags.as_deref());
    if reports().next().is_none() {
        return Ok(());
    }
    let mut totals = LagTotals::default();
    reports().for_each(|report| totals.merge(report.totals));
    let mut shown: Vec<&GroupLag> = reports().flat_map(|report| &report.shown).collect();
    shown.sort_by_key(|lag| (Reverse(lag.progress.lag_records), &lag.group));
    // A group is on one shard; two lines of one series would spoil the whole scrape.
    let mut names = BTreeSet::new();
    shown.retain(|lag| names.insert(&lag.group));
    shown.truncate(groups_max);
    let topics = most_lagging(&shown, topics_max);
    let topics_seen: u64 = shown.iter().map(|lag| lag.topics.len() as u64 + lag.topics_left_out).sum();
    encode_totals(encoder, totals, shown.len() as u64)?;
    encode_topic_totals(encoder, topics.len() as u64, topics_seen)?;
    for (name, help, read) in BY_GROUP {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (lag, number) in shown.iter().filter_map(|lag| Some((lag, read(lag)?))) {
            let labels: Labels<'_> = &[("group", &*lag.group)];
            family.encode_family(&labels)?.encode_gauge(&number)?;
        }
    }
    for (name, help, read) in BY_TOPIC {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for ((group, lag), number) in topics.iter().filter_map(|of| Some((of, read(of.1.progress)?))) {
            let labels: Labels<'_> = &[("group", group), ("topic", &*lag.topic)];
            family.encode_family(&labels)?.encode_gauge(&number)?;
        }
    }
    Ok(())
}

/// So many topics of all these groups, each with its group; the largest lag first, then by the names.
fn most_lagging<'lag>(groups: &[&'lag GroupLag], most: usize) -> Vec<(&'lag str, &'lag TopicLag)> {
    let each = groups.iter().flat_map(|lag| lag.topics.iter().map(|topic| (&*lag.group, topic)));
    let mut topics: Vec<(&str, &TopicLag)> = each.collect();
    topics.sort_by_key(|(group, lag)| (Reverse(lag.progress.lag_records), *group, &lag.topic));
    topics.truncate(most);
    topics
}

fn encode_totals(encoder: &mut DescriptorEncoder<'_>, totals: LagTotals, shown: u64) -> Encoded {
    let LagTotals { groups, lagging, lag_records, lag_records_max, partitions_unknown } = totals;
    let mut gauge = |name: &str, help: &str, value: i64| {
        encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    };
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    gauge("ringlog_groups_lagging", "Groups that have records to consume", count(lagging))?;
    gauge("ringlog_groups_lag_records", "Records that groups have not consumed, of all groups", lag_records)?;
    gauge("ringlog_groups_lag_records_max", "The largest lag of a group, in records", lag_records_max)?;
    gauge("ringlog_groups_lag_shown", "Groups whose lag is shown by name", count(shown))?;
    gauge(
        "ringlog_groups_lag_left_out",
        "Groups with offsets whose lag is in the sums only (ringlog.group.lag.max.groups)",
        count(groups.saturating_sub(shown)),
    )?;
    gauge(
        "ringlog_groups_lag_partitions_unknown",
        "Offsets that count nowhere in lags, since the end of their partition is not known now",
        count(partitions_unknown),
    )
}

fn encode_topic_totals(encoder: &mut DescriptorEncoder<'_>, shown: u64, seen: u64) -> Encoded {
    for (name, help, value) in [
        ("ringlog_groups_lag_topics_shown", "Topics of the groups shown by name whose lag is shown", shown),
        (
            "ringlog_groups_lag_topics_left_out",
            "Topics of these groups whose lag is in that of their group only (ringlog.group.lag.max.topics)",
            seen.saturating_sub(shown),
        ),
    ] {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)?;
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use ringlog_shard::limits::{
        GROUP_LAG_NAME_BYTES_MAX, GROUP_LAG_TOPICS_OF_GROUP_MAX, GROUP_LAGS_SHOWN_MAX,
    };

    use super::super::metrics::{self, ProcessFigures};
    use super::*;
    use crate::group::lag::LagReport;
    use crate::group::progress::{Progress, Trend};

    fn group_lag(group: &str, lag_records: i64) -> GroupLag {
        let progress =
            Progress { lag_records, lag_ms: Some(90_500), retention_in_ms: Some(1_000), lost_records: 4 };
        let trend = Some(Trend { produced: 1.0, consumed: 3.0 });
        let topics = vec![topic_lag("tea", lag_records)];
        GroupLag { group: group.into(), members: 2, progress, trend, topics, topics_left_out: 0 }
    }

    fn topic_lag(topic: &str, lag_records: i64) -> TopicLag {
        let progress =
            Progress { lag_records, lag_ms: Some(80_500), retention_in_ms: Some(2_000), lost_records: 3 };
        TopicLag { topic: topic.into(), progress }
    }

    /// As many groups as a shard may show, with all that may be known.
    pub fn busy_report(shard: u32) -> LagReport {
        let name = |number: usize| format!("{:g<1$}", format!("{shard}-{number}-"), GROUP_LAG_NAME_BYTES_MAX);
        let topics =
            || (0..GROUP_LAG_TOPICS_OF_GROUP_MAX).map(|number| topic_lag(&format!("{number:t>249}"), 1_000));
        let shown: Vec<GroupLag> = (0..GROUP_LAGS_SHOWN_MAX)
            .map(|number| GroupLag {
                topics: topics().collect(),
                ..group_lag(&name(number), 1_000 - number as i64)
            })
            .collect();
        let mut totals = LagTotals::default();
        shown.iter().for_each(|lag| totals.add(lag.progress.lag_records));
        LagReport { shown, totals }
    }

    fn scrape(groups_max: usize, reports: Vec<Option<Vec<GroupLag>>>) -> String {
        scrape_topics(groups_max, 99, reports)
    }

    fn scrape_topics(groups_max: usize, topics_max: usize, reports: Vec<Option<Vec<GroupLag>>>) -> String {
        let process = ProcessFigures {
            version: "0",
            is_ready: true,
            started_seconds: 0.0,
            cpu_seconds: 0.0,
            resident_bytes: 0,
            lag_groups_max: groups_max,
            lag_topics_max: topics_max,
        };
        let shards = (0u32..).zip(reports).map(|(shard, shown)| {
            let lags = shown.map(|shown| {
                let mut totals = LagTotals::default();
                shown.iter().for_each(|lag| totals.add(lag.progress.lag_records));
                Arc::new(LagReport { shown, totals })
            });
            Arc::new(ShardSnapshot { shard, lags, ..ShardSnapshot::default() })
        });
        metrics::encode(process, shards.collect()).0
    }

    #[test]
    fn a_group_has_a_line_for_all_that_is_known_of_it() {
        let text = scrape(9, vec![Some(vec![group_lag("orders", 20)]), None]);
        for line in [
            "ringlog_group_lag_records{group=\"orders\"} 20\n",
            "ringlog_group_lag_seconds{group=\"orders\"} 90.5\n",
            "ringlog_group_lag_lost_records{group=\"orders\"} 4\n",
            "ringlog_group_lag_retention_seconds{group=\"orders\"} 1.0\n",
            "ringlog_group_lag_produced_per_second{group=\"orders\"} 1.0\n",
            "ringlog_group_lag_consumed_per_second{group=\"orders\"} 3.0\n",
            "ringlog_group_lag_catch_up_seconds{group=\"orders\"} 10.0\n",
            "ringlog_group_lag_members{group=\"orders\"} 2\n",
            "ringlog_group_topic_lag_records{group=\"orders\",topic=\"tea\"} 20\n",
            "ringlog_group_topic_lag_seconds{group=\"orders\",topic=\"tea\"} 80.5\n",
            "ringlog_group_topic_lag_retention_seconds{group=\"orders\",topic=\"tea\"} 2.0\n",
            "ringlog_groups_lag_topics_shown 1\n",
            "ringlog_groups_lag_topics_left_out 0\n",
            "ringlog_groups_lagging 1\n",
            "ringlog_groups_lag_records 20\n",
            "ringlog_groups_lag_left_out 0\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }

    #[test]
    fn what_is_not_known_has_no_line() {
        let caught_up =
            GroupLag { progress: Progress::default(), trend: Some(Trend::default()), ..group_lag("up", 0) };
        let unknown = GroupLag {
            progress: Progress { lag_records: 1, ..Progress::default() },
            trend: None,
            ..group_lag("new", 0)
        };
        let stuck = GroupLag { trend: Some(Trend::default()), ..group_lag("stuck", 5) };
        let text = scrape(9, vec![Some(vec![caught_up, unknown, stuck])]);
        for line in [
            "ringlog_group_lag_seconds{group=\"up\"} 0.0\n",
            "ringlog_group_lag_catch_up_seconds{group=\"up\"} 0.0\n",
            "ringlog_group_lag_records{group=\"new\"} 1\n",
            "ringlog_group_lag_catch_up_seconds{group=\"stuck\"} +Inf\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        for series in
            ["retention_seconds{group=\"up\"}", "lag_seconds{group=\"new\"}", "up_seconds{group=\"new\"}"]
        {
            assert!(!text.contains(series), "{series}\n{text}");
        }
        assert!(!scrape(9, vec![None, None]).contains("_lag_records"), "nobody looked");
    }

    #[test]
    fn the_groups_of_all_shards_that_lag_most_are_shown_once() {
        let first = vec![group_lag("b", 7), group_lag("d", 1), group_lag("twice", 6)];
        let second = vec![group_lag("a", 7), group_lag("c", 9), group_lag("twice", 5)];
        let text = scrape(4, vec![Some(first), Some(second)]);
        let prefix = "ringlog_group_lag_records{group=\"";
        let shown: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix(prefix)?.split('"').next()).collect();
        assert_eq!(shown, ["c", "a", "b", "twice"]);
        assert!(
            text.contains("ringlog_groups_lag_shown 4\n") && text.contains("ringlog_groups_lag_left_out 2\n")
        );
        assert!(
            text.contains("ringlog_groups_lag_records 35\n")
                && text.contains("ringlog_groups_lag_records_max 9\n")
        );
        let none = scrape(0, vec![Some(vec![group_lag("b", 7)])]);
        assert!(!none.contains("group=") && none.contains("ringlog_groups_lag_left_out 1\n"), "{none}");
    }

    /// Group and topic of each line of a family, as they come.
    fn topics_shown<'text>(text: &'text str, family: &str) -> Vec<(&'text str, &'text str)> {
        let prefix = format!("{family}{{group=\"");
        let names = text.lines().filter_map(|line| line.strip_prefix(&prefix)?.split_once("\",topic=\""));
        names.map(|(group, rest)| (group, rest.split('"').next().expect("a first part"))).collect()
    }

    #[test]
    fn the_topics_of_all_shown_groups_that_lag_most_are_shown_once() {
        let group = |name: &str, lag_records, topics: &[(&str, i64)]| GroupLag {
            topics: topics.iter().map(|(topic, lag)| topic_lag(topic, *lag)).collect(),
            topics_left_out: 7,
            ..group_lag(name, lag_records)
        };
        let one = vec![group("b", 9, &[("x", 5), ("y", 4)]), group("twice", 3, &[("z", 3)])];
        let other = vec![
            group("a", 6, &[("y", 5), ("x", 1)]),
            group("twice", 2, &[("z", 2)]),
            group("hidden", 1, &[("x", 9)]),
        ];
        let reports = || vec![Some(one.clone()), Some(other.clone())];
        let family = "ringlog_group_topic_lag_records";
        let all = [("a", "y"), ("b", "x"), ("b", "y"), ("twice", "z"), ("a", "x")];
        let text = scrape_topics(3, 99, reports());
        assert_eq!(topics_shown(&text, family), all);
        assert!(text.contains("ringlog_groups_lag_topics_shown 5\n"), "{text}");
        assert!(text.contains("ringlog_groups_lag_topics_left_out 21\n"), "of groups that are shown");
        let text = scrape_topics(3, 2, reports());
        for family in [family, "ringlog_group_topic_lag_seconds", "ringlog_group_topic_lag_retention_seconds"]
        {
            assert_eq!(topics_shown(&text, family), all[..2]);
        }
        assert!(text.contains("ringlog_groups_lag_topics_left_out 24\n"), "{text}");
        let none = scrape_topics(3, 0, reports());
        assert!(
            !none.contains("topic=") && none.contains("ringlog_groups_lag_topics_left_out 26\n"),
            "{none}"
        );
    }

    #[test]
    fn what_is_not_known_of_a_topic_has_no_line() {
        let lagging = Progress { lag_records: 1, ..Progress::default() };
        let topics = [("new", lagging), ("up", Progress::default())];
        let topics = topics.map(|(topic, progress)| TopicLag { topic: topic.into(), progress }).into();
        let text = scrape(9, vec![Some(vec![GroupLag { topics, ..group_lag("g", 1) }])]);
        assert_eq!(topics_shown(&text, "ringlog_group_topic_lag_records"), [("g", "new"), ("g", "up")]);
        assert_eq!(topics_shown(&text, "ringlog_group_topic_lag_seconds"), [("g", "up")]);
        assert!(text.contains("ringlog_group_topic_lag_seconds{group=\"g\",topic=\"up\"} 0.0\n"), "{text}");
        assert_eq!(topics_shown(&text, "ringlog_group_topic_lag_retention_seconds"), []);
    }

    #[test]
    fn any_name_of_a_group_is_one_label() {
        let text = scrape(9, vec![Some(vec![group_lag("a\"b\\c\nd{e}=é", 1)])]);
        assert!(text.contains("ringlog_group_lag_records{group=\"a\\\"b\\\\c\\nd{e}=é\"} 1\n"), "{text}");
    }
}
