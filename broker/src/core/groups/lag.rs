//! The lag of this core's groups, for its metrics: looks at all of them every now and then, and keeps what it saw.
//!
//! In the background and not at a scrape: a scrape reads what cores published and asks them nothing, a trend takes two looks, and what
//! is looked at costs the same however many scrape. A look walks the offsets twice, some at a time; asks each core once for the ends of
//! many partitions; and has a bounded number of records read, of the groups that are shown only, and the segments of theirs added up that
//! retention by size may take. Without offsets it does nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ringlog_protocol::ids::{Offset, PartitionIndex, TopicPartition};
use ringlog_shard::limits::{
    GROUP_LAG_PARTITIONS_AT_ONCE, GROUP_LAG_PARTITIONS_SHOWN_MAX, GROUP_LAG_READS_MAX,
    GROUP_LAG_TOPICS_OF_GROUP_MAX,
};
use ringlog_shard::storage::BytesAhead;

use super::ends::{self, LogEnds};
use super::host::Host;
use crate::controller::{MetadataImage, TopicImage};
use crate::core::Core;
use crate::group::lag::{GroupLag, History, LagReport, LagTotals, Ranking, TopicLag};
use crate::group::progress::{Look, Overtaken, Progress, by_size_in_ms};
use crate::group::{CommittedOffset, GroupId, GroupOffsets};

/// Looks for as long as the core serves.
pub(crate) async fn keep_looking(core: Rc<Core>) {
    let config = &core.config.groups;
    if config.lag_interval_ms == 0 {
        return;
    }
    let period = Duration::from_millis(config.lag_interval_ms);
    let mut watch = LagWatch::default();
    loop {
        core.io.sleep(period).await;
        let Some(report) = watch.look(&core).await else { return };
        *core.groups().lags.borrow_mut() = Some(Arc::new(report));
    }
}

/// A record that waits: the first that a group has not consumed.
type Waiting = (TopicPartition, Offset);

/// A partition in which a group lags or not.
struct Seen {
    at: TopicPartition,
    topic: Arc<str>,
    look: Look,
    log_start: Offset,
    /// Negative: no limit.
    retention_ms: i64,
    /// Whether retention by size may take records.
    is_bounded: bool,
}

/// What is known from earlier looks, of the groups that are shown.
#[derive(Default)]
struct LagWatch {
    histories: BTreeMap<GroupId, History<TopicPartition>>,
    /// When records that wait were written, in milliseconds since the Unix epoch.
    written: BTreeMap<Waiting, i64>,
    /// The last that was read: the next look goes on behind it.
    read_last: Option<Waiting>,
}

impl LagWatch {
    /// `None` once the core drains.
    async fn look(&mut self, core: &Rc<Core>) -> Option<LagReport> {
        let image = core.image();
        let mut wanted = BTreeSet::new();
        walk(core, |held| {
            for (name, index, offset) in all_offsets(held.offsets) {
                wanted.extend(place_of(&image, name, index, offset).map(|(at, _)| at));
            }
        })
        .await;
        let ends = ends::ask(core, &wanted).await?;
        drop(wanted);
        let (mut ranking, mut totals) =
            (Ranking::new(core.config.groups.lag_groups_max), LagTotals::default());
        walk(core, |held| {
            if let Some(lag_records) = lag_of(&image, &ends, held.offsets, &mut totals.partitions_unknown) {
                totals.add(lag_records);
                ranking.offer(held.group, lag_records);
            }
        })
        .await;
        let (mut chosen, mut partitions) = (Vec::new(), 0);
        for group in ranking.into_names() {
            let Some((members, seen)) = seen(core, &image, &ends, &group) else { continue };
            partitions += seen.len();
            chosen.push((group, members, seen));
            if partitions >= GROUP_LAG_PARTITIONS_SHOWN_MAX {
                break;
            }
            core.io.yield_now().await;
        }
        self.learn_times(core, &chosen).await?;
        let bounded = chosen.iter().flat_map(|(_, _, seen)| seen).filter(|one| one.is_bounded);
        let bounded: BTreeSet<Waiting> = bounded.filter_map(Seen::waiting).collect();
        let ahead = ends::ask_ahead(core, bounded.into_iter().collect()).await?;
        Some(LagReport { shown: self.reckon(core, chosen, &ahead), totals })
    }

    /// Learns when the records that wait were written, of as many as may be read at once.
    async fn learn_times(&mut self, core: &Rc<Core>, chosen: &[(GroupId, u64, Vec<Seen>)]) -> Option<()> {
        let waiting: BTreeSet<Waiting> =
            chosen.iter().flat_map(|(_, _, seen)| seen).filter_map(Seen::waiting).collect();
        self.written.retain(|place, _| waiting.contains(place));
        let missing: BTreeSet<Waiting> =
            waiting.into_iter().filter(|place| !self.written.contains_key(place)).collect();
        let now =
            take_turns(&missing, self.read_last, GROUP_LAG_READS_MAX.div_ceil(core.core_count as usize));
        self.read_last = now.last().copied();
        self.written.extend(ends::ask_times(core, now).await?);
        Some(())
    }

    fn reckon(
        &mut self,
        core: &Core,
        chosen: Vec<(GroupId, u64, Vec<Seen>)>,
        ahead: &BTreeMap<Waiting, BytesAhead>,
    ) -> Vec<GroupLag> {
        let now_ms = core.io.wall_now_ms();
        let topics_max = GROUP_LAG_TOPICS_OF_GROUP_MAX.min(core.config.groups.lag_topics_max);
        let mut histories = BTreeMap::new();
        let mut shown = Vec::with_capacity(chosen.len());
        for (group, members, seen) in chosen {
            let (mut progress, mut topics) = (Progress::default(), BTreeMap::<Arc<str>, Progress>::new());
            let mut history = self.histories.remove(&group).unwrap_or_default();
            for one in &seen {
                let waiting = one.waiting();
                let written_ms = waiting.and_then(|place| self.written.get(&place));
                let age_ms = written_ms.map(|written_ms| now_ms.saturating_sub(*written_ms).max(0));
                let produced = history.trend_of(&one.at, one.look).map(|trend| trend.produced);
                let by_size = waiting.and_then(|place| by_size_in_ms(*ahead.get(&place)?, produced));
                let overtaken = Overtaken::of(one.look, one.log_start.0, age_ms, one.retention_ms, by_size);
                progress.add(one.look, age_ms, overtaken);
                topics.entry(Arc::clone(&one.topic)).or_default().add(one.look, age_ms, overtaken);
            }
            let topics_seen = topics.len();
            let topics = TopicLag::most(&topics, topics_max);
            let topics_left_out = (topics_seen - topics.len()) as u64;
            let looks = seen.iter().map(|one| (one.at, one.look)).collect();
            let at_ms = seen.first().map_or(0, |one| one.look.at_ms);
            let trend = history.add(at_ms, looks);
            histories.insert(GroupId::clone(&group), history);
            shown.push(GroupLag { group, members, progress, trend, topics, topics_left_out });
        }
        self.histories = histories;
        shown
    }
}

impl Seen {
    fn waiting(&self) -> Option<Waiting> {
        (self.look.lag() > 0).then(|| (self.at, Offset(self.look.committed).max(self.log_start)))
    }
}

/// A group with offsets.
struct Held<'machine> {
    group: &'machine GroupId,
    offsets: &'machine GroupOffsets,
}

/// Shows all groups that have offsets; others get their turn in between.
async fn walk(core: &Rc<Core>, mut visit: impl FnMut(Held<'_>)) {
    for host in core.groups().all_hosts() {
        let mut after = Bound::Unbounded;
        while host.is_serving()
            && let Some(last) = walk_some(&host, after, &mut visit)
        {
            after = Bound::Excluded(last);
            core.io.yield_now().await;
        }
    }
}

/// The last of those shown, if there was one.
fn walk_some(host: &Host, after: Bound<GroupId>, visit: &mut impl FnMut(Held<'_>)) -> Option<GroupId> {
    let machine = host.machine.borrow();
    let (mut last, mut partitions) = (None, 0);
    for (group, offsets) in machine.durable().offsets().range::<GroupId, _>((after, Bound::Unbounded)) {
        if partitions >= GROUP_LAG_PARTITIONS_AT_ONCE {
            break;
        }
        partitions += offsets.values().map(BTreeMap::len).sum::<usize>();
        visit(Held { group, offsets });
        last = Some(GroupId::clone(group));
    }
    last
}

fn all_offsets(offsets: &GroupOffsets) -> impl Iterator<Item = (&str, i32, &CommittedOffset)> {
    offsets.iter().flat_map(|(name, partitions)| {
        partitions.iter().map(move |(index, offset)| (&**name, *index, offset))
    })
}

/// The partition of an offset, with its topic; `None` where there is no such partition (any more).
fn place_of<'image>(
    image: &'image MetadataImage,
    name: &str,
    index: i32,
    offset: &CommittedOffset,
) -> Option<(TopicPartition, &'image TopicImage)> {
    let topic = match offset.topic_id.is_zero() {
        true => image.topic(name)?,
        false => image.topic_by_id(offset.topic_id)?,
    };
    let partition = PartitionIndex(index);
    topic.has_partition(partition).then(|| (TopicPartition { topic: topic.id, partition }, &**topic))
}

/// What a group lags in all; `None` where all its topics are gone.
fn lag_of(
    image: &MetadataImage,
    ends: &BTreeMap<TopicPartition, LogEnds>,
    offsets: &GroupOffsets,
    unknown: &mut u64,
) -> Option<i64> {
    let mut lag: Option<i64> = None;
    for (name, index, offset) in all_offsets(offsets) {
        let Some((at, _)) = place_of(image, name, index, offset) else { continue };
        let lag = lag.get_or_insert(0);
        match ends.get(&at) {
            Some(known) => {
                let look = Look { at_ms: 0, committed: offset.offset, end: known.end.0 };
                *lag = lag.saturating_add(look.lag());
            }
            None => *unknown += 1,
        }
    }
    lag
}

/// Members and partitions of one group; `None` where it went meanwhile.
fn seen(
    core: &Core,
    image: &MetadataImage,
    ends: &BTreeMap<TopicPartition, LogEnds>,
    group: &GroupId,
) -> Option<(u64, Vec<Seen>)> {
    let partition = super::partition_of(core, group)?;
    let host = core.groups().hosts.borrow().get(&partition).cloned()?;
    let machine = host.machine.borrow();
    let offsets = machine.durable().offsets().get(group)?;
    let at_ms = i64::try_from(core.io.monotonic_now().as_nanos() / 1_000_000).unwrap_or(i64::MAX);
    let seen = all_offsets(offsets).filter_map(|(name, index, offset)| {
        let (at, topic) = place_of(image, name, index, offset)?;
        let known = ends.get(&at)?;
        Some(Seen {
            at,
            topic: Arc::clone(&topic.name),
            look: Look { at_ms, committed: offset.offset, end: known.end.0 },
            log_start: known.start,
            retention_ms: topic.config.retention_ms.unwrap_or(-1),
            is_bounded: topic.config.retention_bytes.is_some(),
        })
    });
    Some((machine.member_count(group) as u64, seen.collect()))
}

/// So many of `all`, from behind `last` on and from the first one again.
fn take_turns<T: Ord + Copy>(all: &BTreeSet<T>, last: Option<T>, most: usize) -> Vec<T> {
    let after = last.map_or(Bound::Unbounded, Bound::Excluded);
    let behind = all.range((after, Bound::Unbounded));
    let before = last.into_iter().flat_map(|last| all.range(..=last));
    behind.chain(before).take(most).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_read_now_is_read_next() {
        let all = BTreeSet::from([1, 3, 5, 7, 9]);
        let mut last = None;
        for expected in [[1, 3], [5, 7], [9, 1], [3, 5]] {
            let now = take_turns(&all, last, 2);
            assert_eq!(now, expected);
            last = now.last().copied();
        }
        assert_eq!(take_turns(&all, Some(4), 9), [5, 7, 9, 1, 3], "each once");
        assert_eq!(take_turns(&all, Some(9), 9), [1, 3, 5, 7, 9]);
        assert_eq!(take_turns(&BTreeSet::new(), Some(9), 9), [0; 0]);
    }
}
