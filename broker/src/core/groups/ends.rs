//! What the look at lags asks of the cores that own the partitions: where logs begin and end, when single records were written, and what has
//! to be appended before retention by size takes them. Each question names many partitions, and a core asks one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ringlog_io::Priority;
use ringlog_protocol::ids::{Offset, TopicPartition};
use ringlog_shard::limits::{GROUP_LAG_PARTITIONS_AT_ONCE, GROUP_LAG_SIZES_AT_ONCE};
use ringlog_shard::mesh::CoreId;
use ringlog_shard::storage::BytesAhead;

use crate::core::messages::{CoreReply, CoreRequest, CoreResponder};
use crate::core::{Core, ends};

/// What of a log can be consumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogEnds {
    pub start: Offset,
    /// The high watermark.
    pub end: Offset,
}

/// A question about logs of the core that is asked.
pub enum LogQuestion {
    /// [`LogAnswer::Ends`].
    Ends(Vec<TopicPartition>),
    /// [`LogAnswer::Times`]: of the first records from these offsets on. Waits for the device.
    Times(Vec<(TopicPartition, Offset)>),
    /// [`LogAnswer::Ahead`]: of the records at these offsets. Asks no device.
    Ahead(Vec<(TopicPartition, Offset)>),
}

/// The answer, in the order of the question.
pub enum LogAnswer {
    /// `None`: the partition is not led here, or its end is not known for certain.
    Ends(Vec<Option<LogEnds>>),
    /// In milliseconds since the Unix epoch; `None`: there is no such record, it has no time, or it cannot be read.
    Times(Vec<Option<i64>>),
    /// `None`: retention by size takes no such record, or the partition is not held here.
    Ahead(Vec<Option<BytesAhead>>),
}

/// The ends of all of these that are known; `None` once the core drains.
pub(super) async fn ask(
    core: &Rc<Core>,
    wanted: &BTreeSet<TopicPartition>,
) -> Option<BTreeMap<TopicPartition, LogEnds>> {
    let mut known = BTreeMap::new();
    for (owner, keys) in by_owner(core, wanted.iter().copied(), |key| *key) {
        for keys in keys.chunks(GROUP_LAG_PARTITIONS_AT_ONCE) {
            if core.is_draining() {
                return None;
            }
            let found = if owner == core.id {
                core.io.yield_now().await;
                ends_here(core, keys)
            } else {
                match core.mesh.call(owner, CoreRequest::Logs(LogQuestion::Ends(keys.to_vec()))).await {
                    CoreReply::Logs(LogAnswer::Ends(found)) => found,
                    _ => unreachable!("ends are answered by ends"),
                }
            };
            known.extend(keys.iter().zip(found).filter_map(|(key, found)| Some((*key, found?))));
        }
    }
    (!core.is_draining()).then_some(known)
}

/// When these records were written, where that is found out; `None` once the core drains.
pub(super) async fn ask_times(
    core: &Rc<Core>,
    records: Vec<(TopicPartition, Offset)>,
) -> Option<BTreeMap<(TopicPartition, Offset), i64>> {
    let mut known = BTreeMap::new();
    for (owner, records) in by_owner(core, records.into_iter(), |(key, _)| *key) {
        if core.is_draining() {
            return None;
        }
        let found = if owner == core.id {
            times_here(core, &records).await
        } else {
            match core.mesh.call(owner, CoreRequest::Logs(LogQuestion::Times(records.clone()))).await {
                CoreReply::Logs(LogAnswer::Times(found)) => found,
                _ => unreachable!("times are answered by times"),
            }
        };
        known.extend(records.into_iter().zip(found).filter_map(|(record, found)| Some((record, found?))));
    }
    Some(known)
}

/// What has to be appended before retention by size takes these records, where it ever does; `None` once the core drains.
pub(super) async fn ask_ahead(
    core: &Rc<Core>,
    records: Vec<(TopicPartition, Offset)>,
) -> Option<BTreeMap<(TopicPartition, Offset), BytesAhead>> {
    let mut known = BTreeMap::new();
    for (owner, records) in by_owner(core, records.into_iter(), |(key, _)| *key) {
        for records in records.chunks(GROUP_LAG_PARTITIONS_AT_ONCE) {
            if core.is_draining() {
                return None;
            }
            let found = if owner == core.id {
                ahead_here(core, records).await
            } else {
                match core.mesh.call(owner, CoreRequest::Logs(LogQuestion::Ahead(records.to_vec()))).await {
                    CoreReply::Logs(LogAnswer::Ahead(found)) => found,
                    _ => unreachable!("what comes before is answered by that"),
                }
            };
            known.extend(records.iter().zip(found).filter_map(|(record, found)| Some((*record, found?))));
        }
    }
    Some(known)
}

/// Answers another core.
pub(in crate::core) fn serve(core: &Rc<Core>, question: LogQuestion, responder: CoreResponder) {
    match question {
        LogQuestion::Ends(keys) => {
            responder.respond(CoreReply::Logs(LogAnswer::Ends(ends_here(core, &keys))));
        }
        LogQuestion::Times(records) => {
            let owner = Rc::clone(core);
            let task = async move {
                let found = times_here(&owner, &records).await;
                responder.respond(CoreReply::Logs(LogAnswer::Times(found)));
            };
            // Nobody waits for it but metrics.
            core.io.spawn(Priority::Background, task).detach();
        }
        LogQuestion::Ahead(records) => {
            let owner = Rc::clone(core);
            let task = async move {
                let found = ahead_here(&owner, &records).await;
                responder.respond(CoreReply::Logs(LogAnswer::Ahead(found)));
            };
            core.io.spawn(Priority::Background, task).detach();
        }
    }
}

fn by_owner<T>(
    core: &Core,
    parts: impl Iterator<Item = T>,
    key: impl Fn(&T) -> TopicPartition,
) -> BTreeMap<CoreId, Vec<T>> {
    let mut owners: BTreeMap<CoreId, Vec<T>> = BTreeMap::new();
    for part in parts {
        owners.entry(core.owner_of(key(&part))).or_default().push(part);
    }
    owners
}

fn ends_here(core: &Core, keys: &[TopicPartition]) -> Vec<Option<LogEnds>> {
    let ends = keys.iter().map(|key| {
        let view = core.store.view(*key).ok()?;
        let is_known = ends::end_error(&view).is_none();
        is_known.then_some(LogEnds { start: view.log_start, end: view.high_watermark })
    });
    ends.collect()
}

async fn times_here(core: &Rc<Core>, records: &[(TopicPartition, Offset)]) -> Vec<Option<i64>> {
    let mut times = Vec::with_capacity(records.len());
    for (key, from) in records {
        let found = match core.store.plan_first_from(*key, *from) {
            Ok(plan) => plan.run(&core.io).await.ok().flatten(),
            Err(_) => None,
        };
        times.push(found.map(|hit| hit.timestamp).filter(|timestamp| *timestamp >= 0));
        core.io.yield_now().await;
    }
    times
}

async fn ahead_here(core: &Rc<Core>, records: &[(TopicPartition, Offset)]) -> Vec<Option<BytesAhead>> {
    let mut ahead = Vec::with_capacity(records.len());
    for records in records.chunks(GROUP_LAG_SIZES_AT_ONCE) {
        let now_ms = core.io.wall_now_ms();
        ahead.extend(records.iter().map(|(key, from)| {
            core.store.with_log(*key, |log| log.bytes_ahead(*from, now_ms)).ok().flatten()
        }));
        core.io.yield_now().await;
    }
    ahead
}
