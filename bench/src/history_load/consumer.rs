//! One consumer of the load: partitions by hand, one fetch at a time, seeks and dropped clients drawn from the seed. The
//! fetching is shared with the final read.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ringlog_protocol::error_code::ErrorCode;

use super::{POLL, Shared, nanoseconds, payload};
use crate::client::admin::OffsetQuery;
use crate::client::cluster::Lane;
use crate::client::fetcher::{FetchConfig, FetchPosition, FetchedPartition, start_fetch};
use crate::client::reading::visit_records;
use crate::client::{Client, ClientError};
use crate::history::Operation;
use crate::history::operation::{Poll, Polled, Position, Span};
use crate::random::SeededRandom;

/// One poll in so many is followed by a seek.
const SEEK_ONE_IN: u64 = 64;
/// One poll in so many is followed by the end of the client.
const DROPPED_ONE_IN: u64 = 256;
/// Most seeks go back by at most so many records, so that the history stays small.
const SEEK_BACK_MAX: u64 = 500;

/// Short waits, so that the end of the load is noticed; answers of a few hundred records.
fn fetch_config() -> FetchConfig {
    FetchConfig {
        wait_max: Duration::from_millis(50),
        bytes_min: 1,
        bytes_max: 1 << 20,
        partition_bytes_max: 256 << 10,
    }
}

/// Reads until the load is over.
pub async fn run(shared: Rc<Shared>, process: u64) {
    let mut random = shared.random(process);
    while let Some(client) = shared.connect().await {
        let mut positions: BTreeMap<i32, i64> = BTreeMap::new();
        for partition in 0..shared.load.partitions as i32 {
            // Each consumer reads most partitions.
            if !random.next_u64().is_multiple_of(4) {
                positions.insert(partition, 0);
            }
        }
        assign(&shared, process, &positions);
        live(&shared, &client, process, &mut positions, &mut random).await;
        if !shared.is_over.get() {
            shared.recorder.write(&Operation::Crash { process });
        }
    }
}

async fn live(
    shared: &Rc<Shared>,
    client: &Client,
    process: u64,
    positions: &mut BTreeMap<i32, i64>,
    random: &mut SeededRandom,
) {
    while !shared.is_over.get() {
        if positions.is_empty() {
            return;
        }
        let found = poll(shared, client, process, positions).await;
        let outside = match found {
            Ok(found) => found.outside,
            Err(_) => {
                client.forget_topic(&shared.load.topic);
                shared.io.sleep(POLL).await;
                continue;
            }
        };
        let mut is_moved = !outside.is_empty();
        for partition in outside {
            let query = client.offsets(&shared.load.topic, &[partition], OffsetQuery::Earliest).await;
            let start = query.ok().and_then(|offsets| offsets.get(&partition).copied());
            positions.insert(partition, start.unwrap_or(0));
        }
        if random.next_u64().is_multiple_of(SEEK_ONE_IN) {
            is_moved = true;
            for position in positions.values_mut() {
                let back = (random.next_u64() % SEEK_BACK_MAX) as i64;
                *position = (*position - back).max(0);
            }
        }
        if is_moved {
            assign(shared, process, positions);
        }
        if random.next_u64().is_multiple_of(DROPPED_ONE_IN) {
            return;
        }
    }
}

/// Writes an assignment.
pub(super) fn assign(shared: &Shared, process: u64, positions: &BTreeMap<i32, i64>) {
    let positions = positions
        .iter()
        .map(|(partition, offset)| Position { key: Shared::key(*partition), offset: Some(*offset) })
        .collect();
    shared.recorder.write(&Operation::Assign { process, positions });
}

/// What a poll met beside records.
#[derive(Default)]
pub(super) struct Polling {
    /// Partitions whose position is outside of the log.
    pub outside: Vec<i32>,
    /// Refusals and unreadable bytes by partition.
    pub errors: BTreeMap<i32, String>,
}

/// One fetch from each leader; moves `positions` and writes what was read.
///
/// # Errors
/// A failed request.
pub(super) async fn poll(
    shared: &Shared,
    client: &Client,
    process: u64,
    positions: &mut BTreeMap<i32, i64>,
) -> Result<Polling, ClientError> {
    let topic = client.topic(&shared.load.topic).await?;
    let mut by_leader: BTreeMap<i32, Vec<FetchPosition>> = BTreeMap::new();
    for (partition, offset) in positions.iter() {
        let leader = topic.partitions.get(partition).map_or(-1, |image| image.leader);
        by_leader.entry(leader).or_default().push(FetchPosition { partition: *partition, offset: *offset });
    }
    let mut polling = Polling::default();
    for (node_id, wanted) in by_leader {
        let start = nanoseconds(shared.io.monotonic_now());
        let connection = client.connection(Lane { node_id, number: 0 }).await?;
        let fetch = start_fetch(&connection, &topic, &wanted, &fetch_config())?;
        let answered = fetch.partitions(&connection, &topic).await?;
        let mut polled = Vec::new();
        for partition in answered {
            let Some(position) = positions.get_mut(&partition.partition) else { continue };
            if let Some(found) = read_partition(shared, &partition, position, &mut polling) {
                polled.push(found);
            }
        }
        if !polled.is_empty() {
            let span = Some(Span { start, end: nanoseconds(shared.io.monotonic_now()) });
            shared.recorder.write(&Operation::Poll(Poll { process, polled, is_rebalanced: false, span }));
        }
    }
    if !polling.errors.is_empty() {
        client.forget_topic(&shared.load.topic);
        shared.io.sleep(POLL).await;
    }
    Ok(polling)
}

/// What one partition answered, if it is worth a line.
fn read_partition(
    shared: &Shared,
    partition: &FetchedPartition,
    position: &mut i64,
    polling: &mut Polling,
) -> Option<Polled> {
    let number = partition.partition;
    if partition.error_code == ErrorCode::OffsetOutOfRange.code() {
        polling.outside.push(number);
        return None;
    }
    if partition.error_code != 0 {
        polling.errors.insert(number, crate::client::error::code_text(partition.error_code, None));
        return None;
    }
    let mut records = Vec::new();
    let mut scratch = Vec::new();
    let subject = format!("partition {number}");
    let bytes_max = shared.load.record_bytes_max;
    let read = visit_records(&subject, &partition.records, *position, &mut scratch, |record| {
        let value = record.value.and_then(|bytes| payload::decode(bytes, bytes_max));
        records.push((record.offset.0, value));
        true
    });
    match read {
        Ok(next) => *position = next,
        Err(error) => {
            // The bytes in front of the bad ones count as read; the bad ones are no client's.
            let next = records.last().map_or(*position, |(offset, _)| offset + 1);
            records.push((next, None));
            *position = next;
            polling.errors.insert(number, error.to_string());
            return Some(Polled { key: Shared::key(number), records, next: Some(next) });
        }
    }
    let next = Some(*position);
    (!records.is_empty()).then(|| Polled { key: Shared::key(number), records, next })
}
