//! Owns the families of `/metrics` that say how far consumer groups are behind: sums over all groups, and those that lag most by name.
//! A core shows the groups that it coordinates; here the whole broker's are put together, so that the series are bounded whatever the
//! numbers of groups and of shards. Names are added, never changed.

use std::cmp::Reverse;
use std::sync::Arc;

use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, GaugeValueEncoder};
use prometheus_client::metrics::MetricType;

use super::metrics::{Encoded, Labels};
use crate::group::lag::{GroupLag, LagTotals};
use crate::group::progress::CatchUp;
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
        match lag.progress.lag_ms {
            None if lag.progress.lag_records == 0 => Some(Number::Fraction(0.0)),
            lag_ms => lag_ms.map(seconds),
        }
    }),
    ("ringlog_group_lag_lost_records", "Records that retention took before the group consumed them", |lag| {
        Some(Number::Whole(lag.progress.lost_records))
    }),
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

fn seconds(milliseconds: i64) -> Number {
    Number::Fraction(milliseconds as f64 / 1e3)
}

/// Writes nothing before a shard looked.
pub(super) fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    shards: &[Arc<ShardSnapshot>],
    groups_max: usize,
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
    let mut names = std::collections::BTreeSet::new();
    shown.retain(|lag| names.insert(&lag.group));
    shown.truncate(groups_max);
    encode_totals(encoder, totals, shown.len() as u64)?;
    for (name, help, read) in BY_GROUP {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (lag, number) in shown.iter().filter_map(|lag| Some((lag, read(lag)?))) {
            let labels: Labels<'_> = &[("group", &*lag.group)];
            family.encode_family(&labels)?.encode_gauge(&number)?;
        }
    }
    Ok(())
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

#[cfg(test)]
pub(super) mod tests {
    use ringlog_shard::limits::{GROUP_LAG_NAME_BYTES_MAX, GROUP_LAGS_SHOWN_MAX};

    use super::super::metrics::{self, ProcessFigures};
    use super::*;
    use crate::group::lag::LagReport;
    use crate::group::progress::{Progress, Trend};

    fn group_lag(group: &str, lag_records: i64) -> GroupLag {
        let progress =
            Progress { lag_records, lag_ms: Some(90_500), retention_in_ms: Some(1_000), lost_records: 4 };
        let trend = Some(Trend { produced: 1.0, consumed: 3.0 });
        GroupLag { group: group.into(), members: 2, progress, trend }
    }

    /// As many groups as a shard may show, with all that may be known.
    pub fn busy_report(shard: u32) -> LagReport {
        let name = |number: usize| format!("{:g<1$}", format!("{shard}-{number}-"), GROUP_LAG_NAME_BYTES_MAX);
        let shown: Vec<GroupLag> =
            (0..GROUP_LAGS_SHOWN_MAX).map(|number| group_lag(&name(number), 1_000 - number as i64)).collect();
        let mut totals = LagTotals::default();
        shown.iter().for_each(|lag| totals.add(lag.progress.lag_records));
        LagReport { shown, totals }
    }

    fn scrape(groups_max: usize, reports: Vec<Option<Vec<GroupLag>>>) -> String {
        let process = ProcessFigures {
            version: "0",
            is_ready: true,
            started_seconds: 0.0,
            cpu_seconds: 0.0,
            resident_bytes: 0,
            lag_groups_max: groups_max,
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

    #[test]
    fn any_name_of_a_group_is_one_label() {
        let text = scrape(9, vec![Some(vec![group_lag("a\"b\\c\nd{e}=é", 1)])]);
        assert!(text.contains("ringlog_group_lag_records{group=\"a\\\"b\\\\c\\nd{e}=é\"} 1\n"), "{text}");
    }
}
