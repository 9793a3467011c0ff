//! The producer's one dispatcher task: queue -> leader -> wire -> outcome or retry.
//!
//! After a failure nothing new is sent until everything on the wire has its answer; then the failed batches go first,
//! in the order of handing over. That is what keeps the order within a partition across retries.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use ringlog_io::Priority;
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::produce::{
    PartitionProduceData, PartitionProduceResponse, ProduceRequest, ProduceResponse, TopicProduceData,
};
use ringlog_protocol::wire::{EncodeError, Reader, Writer};

use super::super::admin::{milliseconds, missing, refused_if, unreadable};
use super::super::cluster::Lane;
use super::super::connection::{Connection, Reply};
use super::super::error::ClientError;
use super::super::metadata::TopicImage;
use super::{Acks, Delivered, Delivery, Inner};

/// Batches that share a request, each with the metadata it was routed by.
type Routed<T> = Vec<(Rc<TopicImage>, Delivery<T>)>;

/// What becomes of a failed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Retry,
    Fail,
}

/// Where in its life a batch failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailedAt {
    /// Not a byte of it was handed to a connection.
    BeforeSending,
    /// It was handed over, or the broker answered.
    AfterSending,
}

/// Runs until the producer is dropped.
pub(super) async fn run<T: 'static>(inner: Rc<Inner<T>>) {
    loop {
        let (has_failed, on_wire) = {
            let state = inner.state.borrow();
            (!state.failed.is_empty(), state.on_wire)
        };
        if has_failed && on_wire == 0 {
            requeue_failed(&inner).await;
            continue;
        }
        let group = if has_failed { None } else { inner.state.borrow_mut().queue.pop_front() };
        match group {
            Some(group) => dispatch(&inner, group).await,
            None => inner.queued.raised().await,
        }
    }
}

/// Puts failed batches in front of the queue, oldest first, after a pause and with their metadata forgotten.
async fn requeue_failed<T: 'static>(inner: &Rc<Inner<T>>) {
    let io = inner.client.io();
    io.sleep(inner.config.retry_pause).await;
    let mut failed = std::mem::take(&mut inner.state.borrow_mut().failed);
    failed.sort_by_key(|delivery| delivery.id);
    let mut state = inner.state.borrow_mut();
    state.retries += failed.len() as u64;
    for delivery in failed.into_iter().rev() {
        inner.client.forget_topic(&delivery.batch.topic);
        state.queue.push_front(vec![delivery]);
    }
}

async fn dispatch<T: 'static>(inner: &Rc<Inner<T>>, group: Vec<Delivery<T>>) {
    let mut by_lane: BTreeMap<Lane, Routed<T>> = BTreeMap::new();
    for delivery in group {
        let poison = inner.state.borrow().poison.clone();
        if let Some(first) = poison {
            finish(inner, delivery, Err(ClientError::Poisoned { first }));
            continue;
        }
        match lane_of(inner, &delivery).await {
            Ok((topic, lane)) => by_lane.entry(lane).or_default().push((topic, delivery)),
            Err(error) => fail(inner, delivery, error, FailedAt::BeforeSending),
        }
    }
    for (lane, deliveries) in by_lane {
        match inner.client.connection(lane).await {
            Ok(connection) => send_request(inner, connection, deliveries),
            Err(error) => {
                for (_, delivery) in deliveries {
                    fail(inner, delivery, error.clone(), FailedAt::BeforeSending);
                }
            }
        }
    }
}

async fn lane_of<T>(inner: &Inner<T>, delivery: &Delivery<T>) -> Result<(Rc<TopicImage>, Lane), ClientError> {
    let batch = &delivery.batch;
    let topic = inner.client.topic(&batch.topic).await?;
    let partition = topic.partitions.get(&batch.partition).ok_or_else(|| ClientError::NoLeader {
        subject: format!("partition {} of topic '{}'", batch.partition, batch.topic),
        reason: format!("the topic has {} partitions", topic.partitions.len()),
    })?;
    let number = u32::try_from(batch.partition).unwrap_or(0) % inner.config.lanes.max(1);
    let lane = Lane { node_id: partition.leader, number };
    Ok((topic.clone(), lane))
}

fn send_request<T: 'static>(inner: &Rc<Inner<T>>, connection: Rc<Connection>, deliveries: Routed<T>) {
    let version = match connection.version(ApiKey::Produce) {
        Ok(version) => version,
        Err(error) => return fail_all(inner, deliveries, &error, FailedAt::BeforeSending),
    };
    let now = inner.client.io().monotonic_now();
    let mut deliveries = deliveries;
    for (_, delivery) in &mut deliveries {
        delivery.sent_at = now;
        delivery.attempts += 1;
    }
    let count = deliveries.len();
    if inner.config.acks == Acks::None {
        inner.state.borrow_mut().on_wire += count;
        let task_inner = inner.clone();
        let task = async move {
            let result = connection
                .send_unanswered(ApiKey::Produce, version, |writer, version| {
                    encode(&task_inner, &deliveries, writer, version)
                })
                .await;
            settle_unanswered(&task_inner, deliveries, result);
        };
        inner.client.io().spawn(Priority::Foreground, task).detach();
        return;
    }
    let wait = inner.config.request_timeout;
    let started = connection
        .start(ApiKey::Produce, version, wait, |writer, version| encode(inner, &deliveries, writer, version));
    match started {
        Ok(reply) => {
            inner.state.borrow_mut().on_wire += count;
            let task = await_reply(inner.clone(), connection, reply, version, deliveries);
            inner.client.io().spawn(Priority::Foreground, task).detach();
        }
        Err(error) => fail_all(inner, deliveries, &error, FailedAt::BeforeSending),
    }
}

fn encode<T>(
    inner: &Inner<T>,
    deliveries: &[(Rc<TopicImage>, Delivery<T>)],
    writer: &mut Writer,
    version: i16,
) -> Result<(), EncodeError> {
    let mut topics: BTreeMap<&str, TopicProduceData<'_>> = BTreeMap::new();
    for (topic, delivery) in deliveries {
        let entry = topics.entry(&topic.name).or_insert_with(|| TopicProduceData {
            name: &topic.name,
            topic_id: topic.id,
            partition_data: Vec::new(),
        });
        entry.partition_data.push(PartitionProduceData {
            index: delivery.batch.partition,
            records: Some(&delivery.batch.bytes),
        });
    }
    let request = ProduceRequest {
        transactional_id: None,
        acks: inner.config.acks.code(),
        timeout_ms: milliseconds(inner.config.request_timeout),
        topic_data: topics.into_values().collect(),
    };
    request.encode(writer, version)
}

async fn await_reply<T: 'static>(
    inner: Rc<Inner<T>>,
    connection: Rc<Connection>,
    reply: Reply,
    version: i16,
    deliveries: Routed<T>,
) {
    let count = deliveries.len();
    let result = reply.body().await;
    inner.state.borrow_mut().on_wire -= count;
    match result {
        Ok(body) => settle(&inner, &connection, version, &body, deliveries),
        Err(error) => fail_all(&inner, deliveries, &error, FailedAt::AfterSending),
    }
    inner.queued.raise();
}

fn settle_unanswered<T: 'static>(
    inner: &Rc<Inner<T>>,
    deliveries: Routed<T>,
    result: Result<(), ClientError>,
) {
    inner.state.borrow_mut().on_wire -= deliveries.len();
    match result {
        Ok(()) => {
            for (_, delivery) in deliveries {
                succeed(inner, delivery, -1);
            }
        }
        Err(error) => fail_all(inner, deliveries, &error, FailedAt::AfterSending),
    }
    inner.queued.raise();
}

fn settle<T: 'static>(
    inner: &Rc<Inner<T>>,
    connection: &Connection,
    version: i16,
    body: &Bytes,
    deliveries: Routed<T>,
) {
    let response = match ProduceResponse::decode(&mut Reader::new(body), version) {
        Ok(response) => response,
        Err(source) => {
            let error = unreadable(connection, ApiKey::Produce, version, source);
            return fail_all(inner, deliveries, &error, FailedAt::AfterSending);
        }
    };
    for (topic, delivery) in deliveries {
        let index = delivery.batch.partition;
        let subject = format_args!("partition {index} of topic '{}'", topic.name);
        let Some(partition) = find_partition(&response, &topic, index, version) else {
            let error = missing(connection, ApiKey::Produce, &subject.to_string());
            fail(inner, delivery, error, FailedAt::AfterSending);
            continue;
        };
        let is_repeat = partition.error_code == ErrorCode::DuplicateSequenceNumber.code();
        if partition.error_code == 0 || (is_repeat && inner.config.is_idempotent) {
            succeed(inner, delivery, partition.base_offset);
            continue;
        }
        let message = refusal_text(partition);
        let refused =
            refused_if(connection, ApiKey::Produce, subject, partition.error_code, message.as_deref());
        if let Err(error) = refused {
            fail(inner, delivery, error, FailedAt::AfterSending);
        }
    }
}

fn find_partition<'a, 'b>(
    response: &'a ProduceResponse<'b>,
    topic: &TopicImage,
    partition: i32,
    version: i16,
) -> Option<&'a PartitionProduceResponse<'b>> {
    let is_ours = |name: &str, id| if version >= 13 { id == topic.id } else { name == topic.name };
    response
        .responses
        .iter()
        .filter(|answered| is_ours(answered.name, answered.topic_id))
        .flat_map(|answered| &answered.partition_responses)
        .find(|answered| answered.index == partition)
}

/// The broker's text for the batch and for its first bad record.
fn refusal_text(partition: &PartitionProduceResponse<'_>) -> Option<String> {
    let record = partition.record_errors.first().map(|error| {
        format!("record {}: {}", error.batch_index, error.batch_index_error_message.unwrap_or("refused"))
    });
    match (partition.error_message, record) {
        (Some(message), Some(record)) => Some(format!("{message} ({record})")),
        (Some(message), None) => Some(message.to_owned()),
        (None, record) => record,
    }
}

fn succeed<T>(inner: &Inner<T>, delivery: Delivery<T>, base_offset: i64) {
    let done_at = inner.client.io().monotonic_now();
    let delivered =
        Delivered { base_offset, sent_at: delivery.sent_at, done_at, attempts: delivery.attempts };
    finish(inner, delivery, Ok(delivered));
}

fn fail_all<T>(inner: &Inner<T>, deliveries: Routed<T>, error: &ClientError, at: FailedAt) {
    for (_, delivery) in deliveries {
        fail(inner, delivery, error.clone(), at);
    }
}

fn fail<T>(inner: &Inner<T>, delivery: Delivery<T>, error: ClientError, at: FailedAt) {
    let is_in_time = inner.client.io().monotonic_now() < delivery.give_up_at;
    let has_failed_before = !inner.state.borrow().failed.is_empty() || delivery.attempts > 1;
    if is_in_time && verdict(inner.config.is_idempotent, &error, at, has_failed_before) == Verdict::Retry {
        inner.state.borrow_mut().failed.push(delivery);
        inner.queued.raise();
        return;
    }
    if inner.config.is_idempotent {
        inner.state.borrow_mut().poison.get_or_insert_with(|| error.to_string());
    }
    finish(inner, delivery, Err(error));
}

/// Whether sending the same bytes again is safe and may help. `has_failed_before`: this batch or one before it failed
/// in this round, so a sequence gap is the echo of that failure.
fn verdict(is_idempotent: bool, error: &ClientError, at: FailedAt, has_failed_before: bool) -> Verdict {
    let code = error.code();
    if is_idempotent && code == Some(ErrorCode::OutOfOrderSequenceNumber) && has_failed_before {
        return Verdict::Retry;
    }
    if !error.is_retriable() {
        return Verdict::Fail;
    }
    if is_idempotent || at == FailedAt::BeforeSending {
        return Verdict::Retry;
    }
    // The broker says that it appended nothing.
    let is_surely_absent = matches!(
        code,
        Some(
            ErrorCode::UnknownTopicOrPartition
                | ErrorCode::UnknownTopicId
                | ErrorCode::LeaderNotAvailable
                | ErrorCode::NotLeaderOrFollower
                | ErrorCode::NotEnoughReplicas
        )
    );
    if is_surely_absent { Verdict::Retry } else { Verdict::Fail }
}

fn finish<T>(inner: &Inner<T>, delivery: Delivery<T>, result: Result<Delivered, ClientError>) {
    {
        let mut state = inner.state.borrow_mut();
        state.in_flight -= 1;
        let key = (delivery.batch.topic.clone(), delivery.batch.partition);
        if let Some(entry) = state.partitions.get_mut(&key) {
            entry.in_flight -= 1;
        }
    }
    (inner.completion)(delivery.batch.tag, result);
    inner.finished.raise();
}

#[cfg(test)]
mod tests {
    use super::super::super::error::ConnectionFault;
    use super::*;

    fn refused(code: ErrorCode) -> ClientError {
        ClientError::Refused {
            address: String::new(),
            api: "Produce",
            subject: String::new(),
            code: code.code(),
            message: None,
        }
    }

    fn check(
        is_idempotent: bool,
        error: &ClientError,
        at: FailedAt,
        has_failed_before: bool,
        expected: Verdict,
    ) {
        assert_eq!(verdict(is_idempotent, error, at, has_failed_before), expected, "{error}");
    }

    #[test]
    fn without_idempotence_only_what_was_surely_not_appended_is_sent_again() {
        let lost = ClientError::Request {
            address: String::new(),
            api: "Produce",
            fault: ConnectionFault::Closed,
            hint: "",
        };
        check(false, &lost, FailedAt::AfterSending, false, Verdict::Fail);
        check(false, &lost, FailedAt::BeforeSending, false, Verdict::Retry);
        check(true, &lost, FailedAt::AfterSending, false, Verdict::Retry);
        check(false, &refused(ErrorCode::NotLeaderOrFollower), FailedAt::AfterSending, false, Verdict::Retry);
        check(false, &refused(ErrorCode::RequestTimedOut), FailedAt::AfterSending, false, Verdict::Fail);
        check(true, &refused(ErrorCode::RequestTimedOut), FailedAt::AfterSending, false, Verdict::Retry);
        check(
            false,
            &refused(ErrorCode::NotEnoughReplicasAfterAppend),
            FailedAt::AfterSending,
            false,
            Verdict::Fail,
        );
    }

    #[test]
    fn a_sequence_gap_is_retried_only_behind_another_failure() {
        let gap = refused(ErrorCode::OutOfOrderSequenceNumber);
        check(true, &gap, FailedAt::AfterSending, true, Verdict::Retry);
        check(true, &gap, FailedAt::AfterSending, false, Verdict::Fail);
        check(false, &gap, FailedAt::AfterSending, true, Verdict::Fail);
        check(true, &refused(ErrorCode::MessageTooLarge), FailedAt::AfterSending, true, Verdict::Fail);
    }
}
