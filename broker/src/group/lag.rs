//! Which groups are shown with their lag, and how each gets on from one look to the next. Pure: who looks is the caller.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringlog_shard::limits::GROUP_LAG_NAME_BYTES_MAX;

use super::event::GroupId;
use super::progress::{CatchUp, Look, Progress, Trend};

/// Trends are taken over at least so long, once a group was seen for as long: consumers commit every 5 s by default, and a shorter
/// time would show the commits instead of the pace.
const TREND_MS: i64 = 30_000;

/// What one look at all groups of a core came to.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct LagReport {
    /// The groups that lag most, the largest lag first, then by name.
    pub shown: Vec<GroupLag>,
    pub totals: LagTotals,
}

/// What the groups that committed offsets come to, shown or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct LagTotals {
    pub groups: u64,
    /// Of them, those that lag.
    pub lagging: u64,
    pub lag_records: i64,
    /// The largest lag of a group.
    pub lag_records_max: i64,
    /// Offsets in partitions whose end was not known: they count nowhere else.
    pub partitions_unknown: u64,
}

/// How one group gets on.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupLag {
    pub group: GroupId,
    pub members: u64,
    pub progress: Progress,
    /// `None` before it was seen twice.
    pub trend: Option<Trend>,
    /// Its topics that lag most, the largest lag first, then by name.
    pub topics: Vec<TopicLag>,
    /// Its other topics.
    pub topics_left_out: u64,
}

/// How one group gets on in one topic.
#[derive(Clone, Debug, PartialEq)]
pub struct TopicLag {
    pub topic: Arc<str>,
    pub progress: Progress,
}

impl GroupLag {
    /// When it has caught up, if it goes on like this; `None` before it was seen twice.
    pub fn catch_up(&self) -> Option<CatchUp> {
        self.trend.map(|trend| trend.catch_up(self.progress.lag_records))
    }
}

impl LagTotals {
    /// Counts a group in.
    pub fn add(&mut self, lag_records: i64) {
        self.groups += 1;
        self.lagging += u64::from(lag_records > 0);
        self.lag_records = self.lag_records.saturating_add(lag_records);
        self.lag_records_max = self.lag_records_max.max(lag_records);
    }

    /// Counts other groups in.
    pub fn merge(&mut self, other: LagTotals) {
        self.groups += other.groups;
        self.lagging += other.lagging;
        self.lag_records = self.lag_records.saturating_add(other.lag_records);
        self.lag_records_max = self.lag_records_max.max(other.lag_records_max);
        self.partitions_unknown += other.partitions_unknown;
    }
}

impl TopicLag {
    /// So many of a group's topics at most, those that lag most.
    pub fn most(topics: &BTreeMap<Arc<str>, Progress>, most: usize) -> Vec<TopicLag> {
        let mut ranking = Ranking::new(most);
        topics.iter().for_each(|(topic, progress)| ranking.offer(topic, progress.lag_records));
        let chosen = ranking.into_names().filter_map(|topic| {
            let progress = *topics.get(&topic)?;
            Some(TopicLag { topic, progress })
        });
        chosen.collect()
    }
}

/// Chooses the groups or topics that lag most in records; of those that lag alike the first by name.
#[derive(Debug)]
pub struct Ranking {
    most: usize,
    chosen: BTreeSet<(Reverse<i64>, Arc<str>)>,
}

impl Ranking {
    /// Chooses so many at most.
    pub fn new(most: usize) -> Ranking {
        Ranking { most, chosen: BTreeSet::new() }
    }

    /// Takes it if it is among them so far. Never one with a name that is too long to be shown.
    pub fn offer(&mut self, name: &Arc<str>, lag_records: i64) {
        if name.len() > GROUP_LAG_NAME_BYTES_MAX || self.most == 0 {
            return;
        }
        if self.chosen.len() >= self.most {
            let is_more = |(Reverse(lag), last): &(Reverse<i64>, Arc<str>)| {
                (Reverse(lag_records), name) < (Reverse(*lag), last)
            };
            if !self.chosen.last().is_some_and(is_more) {
                return;
            }
            self.chosen.pop_last();
        }
        self.chosen.insert((Reverse(lag_records), Arc::clone(name)));
    }

    /// The largest lag first.
    pub fn into_names(self) -> impl Iterator<Item = Arc<str>> {
        self.chosen.into_iter().map(|(_, name)| name)
    }
}

/// Earlier looks at one group, from which its trend is taken.
#[derive(Debug)]
pub struct History<Place> {
    older: Option<(i64, BTreeMap<Place, Look>)>,
    newer: Option<(i64, BTreeMap<Place, Look>)>,
}

impl<Place> Default for History<Place> {
    fn default() -> Self {
        History { older: None, newer: None }
    }
}

impl<Place: Ord> History<Place> {
    /// What happened in one partition since the look that [`History::add`] compares with, or since a later one where it was not seen
    /// then; `None` where it was not seen at all.
    pub fn trend_of(&self, place: &Place, look: Look) -> Option<Trend> {
        let kept = [&self.older, &self.newer].into_iter().flatten();
        let first = kept.filter_map(|(_, looks)| looks.get(place)).next()?;
        Trend::between(*first, look)
    }

    /// The trend since a look of half a minute to a minute ago, or since the first; keeps this look for later ones. `at_ms` is on the
    /// clock of the looks.
    pub fn add(&mut self, at_ms: i64, looks: BTreeMap<Place, Look>) -> Option<Trend> {
        let since = self.older.as_ref().or(self.newer.as_ref());
        let trend =
            since.and_then(|(_, first)| Trend::over(first, looks.iter().map(|(place, look)| (place, *look))));
        if self.newer.as_ref().is_none_or(|(kept_ms, _)| at_ms.saturating_sub(*kept_ms) >= TREND_MS) {
            self.older = self.newer.replace((at_ms, looks));
        }
        trend
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranked(most: usize, offered: &[(&str, i64)]) -> Vec<String> {
        let mut ranking = Ranking::new(most);
        offered.iter().for_each(|(group, lag)| ranking.offer(&(*group).into(), *lag));
        ranking.into_names().map(|group| group.to_string()).collect()
    }

    #[test]
    fn those_that_lag_most_are_chosen_in_whatever_order_they_come() {
        let mut offered = vec![("a", 5), ("b", 9), ("c", 5), ("d", 0), ("e", 7)];
        for _ in 0..offered.len() {
            assert_eq!(ranked(3, &offered), ["b", "e", "a"]);
            assert_eq!(ranked(9, &offered), ["b", "e", "a", "c", "d"]);
            assert_eq!(ranked(0, &offered), [""; 0]);
            offered.rotate_left(1);
        }
    }

    #[test]
    fn a_name_that_is_too_long_is_never_shown() {
        let (long, longest) =
            ("g".repeat(GROUP_LAG_NAME_BYTES_MAX + 1), "h".repeat(GROUP_LAG_NAME_BYTES_MAX));
        assert_eq!(ranked(3, &[(long.as_str(), 10), (longest.as_str(), 1)]), [longest.as_str()]);
    }

    #[test]
    fn of_a_groups_topics_those_that_lag_most_are_chosen_with_how_they_get_on() {
        let lagging =
            |lag_records| Progress { lag_records, lost_records: 2 * lag_records, ..Progress::default() };
        let topics = [("a", 5), ("b", 0), ("c", 9), ("d", 5)];
        let topics: BTreeMap<Arc<str>, Progress> =
            topics.into_iter().map(|(topic, lag)| (topic.into(), lagging(lag))).collect();
        let expected = |topic: &str, lag| TopicLag { topic: topic.into(), progress: lagging(lag) };
        assert_eq!(TopicLag::most(&topics, 2), [expected("c", 9), expected("a", 5)]);
        assert_eq!(TopicLag::most(&topics, 9).last(), Some(&expected("b", 0)), "one that has caught up, too");
        assert_eq!(TopicLag::most(&topics, 0), []);
    }

    #[test]
    fn totals_know_the_sum_and_the_largest() {
        let (mut one, mut other) = (LagTotals::default(), LagTotals::default());
        [3, 0].into_iter().for_each(|lag| one.add(lag));
        [5, i64::MAX].into_iter().for_each(|lag| other.add(lag));
        other.partitions_unknown = 2;
        one.merge(other);
        let expected = LagTotals {
            groups: 4,
            lagging: 3,
            lag_records: i64::MAX,
            lag_records_max: i64::MAX,
            partitions_unknown: 2,
        };
        assert_eq!(one, expected);
    }

    #[test]
    fn a_trend_reaches_back_between_half_a_minute_and_a_minute() {
        let mut history = History::default();
        // The consumer stands for a minute, and then takes 100 records a second.
        let committed = |at_ms: i64| (at_ms - 60_000).max(0) / 10;
        let mut consumed = Vec::new();
        for at_ms in (0..=150_000).step_by(10_000) {
            let looks = BTreeMap::from([(0, Look { at_ms, committed: committed(at_ms), end: 100_000 })]);
            let (alone, other) = (history.trend_of(&0, looks[&0]), history.trend_of(&1, looks[&0]));
            let trend = history.add(at_ms, looks);
            assert_eq!((trend.is_none(), alone, other), (at_ms == 0, trend, None));
            consumed.extend(trend.map(|trend| trend.consumed));
        }
        assert_eq!(consumed[..6], [0.0; 6], "it stands");
        assert_eq!(consumed[6], 25.0, "a quarter of 40 s");
        assert_eq!(consumed[12..], [100.0; 3], "by then all of the time it worked");
        assert!(consumed.is_sorted(), "{consumed:?}");
    }

    #[test]
    fn a_partition_that_comes_to_a_group_has_a_trend_before_its_group_compares_it() {
        let mut history = History::default();
        let look = |at_ms: i64| Look { at_ms, committed: 0, end: at_ms / 100 };
        let mut known_at = Vec::new();
        for at_ms in (0..=90_000).step_by(10_000) {
            let came = at_ms >= 20_000;
            if let Some(trend) = history.trend_of(&1, look(at_ms)).filter(|_| came) {
                assert_eq!(trend.produced, 10.0);
                known_at.push(at_ms);
            }
            let places = if came { 0..2 } else { 0..1 };
            history.add(at_ms, places.map(|place| (place, look(at_ms))).collect());
        }
        assert_eq!(known_at, [40_000, 50_000, 60_000, 70_000, 80_000, 90_000]);
    }
}
