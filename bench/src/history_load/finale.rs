//! The end of a run, when everything is healed: a send to each partition that must be answered, then a new client reads
//! each partition from its start to its end.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use ringlog_protocol::records::compression::Compression;

use super::consumer::{assign, poll};
use super::outcome::outcome_of;
use super::producer::build;
use super::{FINAL_READER, POLL, Shared, nanoseconds};
use crate::client::admin::OffsetQuery;
use crate::client::producer::{Acks, Delivered, OutBatch, Producer, ProducerConfig};
use crate::client::{Client, ClientError};
use crate::history::Operation;
use crate::history::operation::{AcksLevel, Outcome, Polled, Position, Send, Span};

/// What the end found.
#[derive(Default)]
pub struct Finale {
    /// Partitions that could not be read to their end.
    pub unread: Vec<i32>,
    /// The last error of each partition, in words.
    pub errors: BTreeMap<i32, String>,
}

/// Sends, looks up the ends, reads.
pub async fn run(shared: &Rc<Shared>) -> Finale {
    let mut finale = Finale::default();
    let client = match connect(shared).await {
        Ok(client) => client,
        Err(error) => {
            let error = error.to_string();
            for partition in 0..shared.load.partitions as i32 {
                finale.unread.push(partition);
                finale.errors.insert(partition, error.clone());
            }
            return finale;
        }
    };
    send_to_each(shared, &client, &mut finale).await;
    let starts = offsets(shared, &client, OffsetQuery::Earliest, &mut finale).await;
    let mut ends = offsets(shared, &client, OffsetQuery::Latest, &mut finale).await;
    for (partition, end) in (0..).zip(shared.acknowledged_ends.borrow().iter()) {
        // Where the broker does not tell the end, it is at least behind what it acknowledged.
        ends.entry(partition).or_insert(*end);
    }
    let now = nanoseconds(shared.io.monotonic_now());
    let positions =
        ends.iter().map(|(partition, end)| Position { key: Shared::key(*partition), offset: Some(*end) });
    let span = Some(Span { start: now, end: now });
    shared.recorder.write(&Operation::Final { process: FINAL_READER, ends: positions.collect(), span });
    let starts: BTreeMap<i32, i64> =
        ends.keys().map(|partition| (*partition, starts.get(partition).copied().unwrap_or(0))).collect();
    assign(shared, FINAL_READER, &starts);
    read_all(shared, &client, starts, &ends, &mut finale).await;
    finale
}

async fn connect(shared: &Shared) -> Result<Client, ClientError> {
    let deadline = shared.io.monotonic_now() + shared.load.patience;
    loop {
        let mut config = shared.load.client_config();
        config.metadata_timeout = shared.load.patience;
        match Client::connect(&shared.io, config).await {
            Err(_) if shared.io.monotonic_now() < deadline => shared.io.sleep(POLL).await,
            result => return result,
        }
    }
}

/// By partition, as far as the broker answers; errors go to the report.
async fn offsets(
    shared: &Shared,
    client: &Client,
    query: OffsetQuery,
    finale: &mut Finale,
) -> BTreeMap<i32, i64> {
    let mut found = BTreeMap::new();
    for partition in 0..shared.load.partitions as i32 {
        match client.offsets(&shared.load.topic, &[partition], query).await {
            Ok(offsets) => found.extend(offsets),
            Err(error) => {
                finale.errors.insert(partition, error.to_string());
            }
        }
    }
    found
}

/// A new idempotent producer sends one record to each partition.
async fn send_to_each(shared: &Rc<Shared>, client: &Client, finale: &mut Finale) {
    let config = ProducerConfig {
        acks: Acks::All,
        is_idempotent: true,
        request_timeout: shared.load.patience,
        delivery_timeout: shared.load.patience,
        retry_pause: POLL,
        ..ProducerConfig::default()
    };
    let results: Rc<RefCell<BTreeMap<i32, Result<Delivered, ClientError>>>> = Rc::default();
    let topic: Rc<str> = Rc::from(shared.load.topic.as_str());
    for partition in 0..shared.load.partitions as i32 {
        // One client each: what befalls one partition must not keep the others from being tried.
        let of_completion = results.clone();
        let start = nanoseconds(shared.io.monotonic_now());
        let values = shared.take_values(1);
        let producer = Producer::start(client, config.clone(), move |partition, result| {
            of_completion.borrow_mut().insert(partition, result);
        });
        let result = match producer.await {
            Ok(producer) => {
                let stamp = producer.stamp(&topic, partition, 1);
                let bytes = build(shared, &values, stamp, Compression::None);
                producer.send(vec![OutBatch { topic: topic.clone(), partition, bytes, tag: partition }]);
                producer.flush().await;
                results.borrow_mut().remove(&partition)
            }
            Err(error) => Some(Err(error)),
        };
        let (outcome, offset) = match result {
            Some(Ok(delivered)) => {
                (Outcome::Ok, (delivered.base_offset >= 0).then_some(delivered.base_offset))
            }
            Some(Err(error)) => {
                finale.errors.insert(partition, error.to_string());
                (outcome_of(&error, true), None)
            }
            None => (Outcome::Info, None),
        };
        shared.recorder.write(&Operation::Send(Send {
            process: FINAL_READER,
            key: Shared::key(partition),
            values,
            offset,
            acks: AcksLevel::All,
            is_idempotent: true,
            is_retried: true,
            is_final: true,
            outcome,
            span: Some(Span { start, end: nanoseconds(shared.io.monotonic_now()) }),
        }));
    }
}

/// Reads all partitions side by side, each until its end or until nothing of it comes for too long: one that is damaged
/// holds nobody up.
async fn read_all(
    shared: &Shared,
    client: &Client,
    starts: BTreeMap<i32, i64>,
    ends: &BTreeMap<i32, i64>,
    finale: &mut Finale,
) {
    let mut positions = starts;
    let begun_at = shared.io.monotonic_now();
    let mut reached: BTreeMap<i32, (i64, _)> =
        positions.iter().map(|(partition, offset)| (*partition, (*offset, begun_at))).collect();
    let is_at_end = |partition: &i32, offset: i64| ends.get(partition).is_none_or(|end| offset >= *end);
    loop {
        for (partition, offset) in &positions {
            if is_at_end(partition, *offset) {
                note_end(shared, *partition, *offset);
            }
        }
        positions.retain(|partition, offset| !is_at_end(partition, *offset));
        if positions.is_empty() {
            return;
        }
        match poll(shared, client, FINAL_READER, &mut positions).await {
            Ok(polling) => {
                let is_refused = !(polling.errors.is_empty() && polling.outside.is_empty());
                finale.errors.extend(polling.errors);
                for partition in polling.outside {
                    let offset = positions.get(&partition).copied().unwrap_or(-1);
                    finale.errors.insert(partition, format!("offset {offset} is outside of the log"));
                }
                if is_refused {
                    shared.io.sleep(POLL).await;
                }
            }
            Err(error) => {
                for partition in positions.keys() {
                    finale.errors.insert(*partition, error.to_string());
                }
                client.forget_topic(&shared.load.topic);
                shared.io.sleep(POLL).await;
            }
        }
        let now = shared.io.monotonic_now();
        positions.retain(|partition, offset| {
            let before = reached.entry(*partition).or_insert((*offset, now));
            if *offset > before.0 {
                *before = (*offset, now);
            }
            let is_moving = now < before.1 + shared.load.patience;
            if !is_moving {
                finale.unread.push(*partition);
            }
            is_moving
        });
    }
}

/// Nothing to read is an end too: the position says so.
fn note_end(shared: &Shared, partition: i32, offset: i64) {
    let polled = vec![Polled { key: Shared::key(partition), records: Vec::new(), next: Some(offset) }];
    let now = nanoseconds(shared.io.monotonic_now());
    let span = Some(Span { start: now, end: now });
    let poll = crate::history::operation::Poll { process: FINAL_READER, polled, is_rebalanced: false, span };
    shared.recorder.write(&Operation::Poll(poll));
}
