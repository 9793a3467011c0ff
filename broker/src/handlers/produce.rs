//! Produce (API 0): batches to their owner cores, in arrival order; the answer when all are committed.
//!
//! Validation happens here, on the connection's core, before anything is dispatched; the owner core only checks
//! sequences, stamps and appends.

mod check;

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use bytes::BytesMut;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{PartitionIndex, TopicId, TopicPartition};
use ringlog_protocol::messages::produce::{
    BatchIndexAndErrorMessage, PartitionProduceResponse, ProduceRequest, ProduceResponse,
    TopicProduceResponse,
};
use ringlog_shard::mesh::{Call, CoreId};

use super::reply::reply;
use super::topics::{self, TopicLookup};
use super::{Request, RequestError, RequestInfo};
use crate::core::Core;
use crate::core::messages::{CoreReply, CoreRequest, ProducePart, ProducedPart};
use crate::core::serve::Appends;
use crate::observe::{Stage, StageClock, StageTimes};
use crate::server::replies::{Answer, Pending};
use check::Refusal;

pub(super) async fn handle(core: &Rc<Core>, request: Request) -> Result<Pending, RequestError> {
    let wanted = decode(core, &request)?;
    let Request { mut frame, mut info, body_at } = request;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let buffer_bytes = u32::try_from(frame.capacity()).unwrap_or(u32::MAX);
    let mut body = frame.split_off(body_at);
    let blanket = check::blanket_refusal(wanted.acks, wanted.transactional, &info);
    if let Some(refusal) = &blanket {
        let reason = refusal.message.as_deref().unwrap_or_default();
        tracing::warn!(client_id = ?info.client_id, reason, "produce refused");
    }
    let (acks, blanket_refused) = (wanted.acks, blanket.is_some());
    let (progress, parts) = prepare(core, &mut body, buffer_bytes, wanted, blanket, info.version).await;
    info.clock.mark(Stage::Queue, core.io.monotonic_now().as_nanos());
    if acks == 0 {
        let refused = blanket_refused | progress.any_refused() | dispatch_silently(core, parts).await;
        // The client asked for no answer, so a closed connection is how it learns of an error, as on Kafka.
        return Ok(Pending::Ready(if refused { Answer::Close } else { Answer::Silence }));
    }
    let dispatched = dispatch(core, parts).await;
    let core = Rc::clone(core);
    Ok(Pending::Later(Box::pin(async move {
        let results = dispatched.finish(&core, &mut info.clock).await;
        progress.answer(info, &results)
    })))
}

/// The request with its topics resolved, and records as ranges of the body.
struct Wanted {
    acks: i16,
    transactional: bool,
    topics: Vec<WantedTopic>,
}

struct WantedTopic {
    topic: TopicLookup,
    partitions: Vec<(i32, Range<usize>)>,
}

fn decode(core: &Rc<Core>, request: &Request) -> Result<Wanted, RequestError> {
    let mut reader = request.body();
    let body = reader.rest();
    let produce =
        ProduceRequest::decode(&mut reader, request.info.version).map_err(|error| request.refuse(error))?;
    let image = core.image();
    let mut topics = Vec::with_capacity(produce.topic_data.len());
    for data in &produce.topic_data {
        let topic = if request.info.version >= 13 {
            topics::by_id(&image, data.topic_id)
        } else {
            topics::by_name(&image, data.name)
        };
        let partitions = data.partition_data.iter().map(|partition| {
            let records = partition.records.unwrap_or_default();
            (partition.index, range_within(body, records))
        });
        topics.push(WantedTopic { topic, partitions: partitions.collect() });
    }
    Ok(Wanted { acks: produce.acks, transactional: produce.transactional_id.is_some(), topics })
}

/// Where `part`, borrowed from `whole`, lies in it; empty for what is not part of it (null, which has no bytes).
fn range_within(whole: &[u8], part: &[u8]) -> Range<usize> {
    let start = (part.as_ptr() as usize).wrapping_sub(whole.as_ptr() as usize);
    match start.checked_add(part.len()) {
        Some(end) if end <= whole.len() && !part.is_empty() => start..end,
        _ => 0..0,
    }
}

/// The request's partitions in order, with what became of each so far.
struct Progress {
    topics: Vec<TopicProgress>,
}

struct TopicProgress {
    name: Arc<str>,
    id: TopicId,
    partitions: Vec<PartitionProgress>,
}

struct PartitionProgress {
    index: i32,
    outcome: Outcome,
    log_append_time_ms: i64,
}

enum Outcome {
    /// Dispatched: the group of parts and the place in it.
    Dispatched {
        group: usize,
        at: usize,
    },
    Refused(Refusal),
}

/// The parts of one request that go to one core.
struct Group {
    core: CoreId,
    parts: Vec<ProducePart>,
}

/// Cuts the batches out of the body, checks each and sorts them by owner core.
async fn prepare(
    core: &Rc<Core>,
    body: &mut BytesMut,
    buffer_bytes: u32,
    wanted: Wanted,
    blanket: Option<Refusal>,
    version: i16,
) -> (Progress, Vec<Group>) {
    let mut groups: Vec<Group> = Vec::new();
    let mut topics = Vec::with_capacity(wanted.topics.len());
    let mut taken = 0;
    for WantedTopic { topic, partitions } in wanted.topics {
        let mut progress = Vec::with_capacity(partitions.len());
        for (index, range) in partitions {
            let records = take_range(body, &mut taken, &range);
            let checked = match (&blanket, topics::partition(&topic, index)) {
                (Some(refusal), _) => Err(refusal.clone()),
                (None, Err(error)) => Err(Refusal::code(error)),
                (None, Ok(image)) => check::check(core, image, version, records, buffer_bytes).await,
            };
            progress.push(match checked {
                Err(refusal) => {
                    PartitionProgress { index, outcome: Outcome::Refused(refusal), log_append_time_ms: -1 }
                }
                Ok((batch, log_append_time_ms)) => {
                    let key = TopicPartition { topic: topic.id(), partition: PartitionIndex(index) };
                    let (group, at) = place(&mut groups, core.owner_of(key), ProducePart { key, batch });
                    PartitionProgress {
                        index,
                        outcome: Outcome::Dispatched { group, at },
                        log_append_time_ms,
                    }
                }
            });
        }
        topics.push(TopicProgress { name: topic.name(), id: topic.id(), partitions: progress });
    }
    (Progress { topics }, groups)
}

/// Splits `range` off the front of `body`, of which `taken` bytes are gone already. Decoding yields ranges in order.
fn take_range(body: &mut BytesMut, taken: &mut usize, range: &Range<usize>) -> BytesMut {
    if range.is_empty() {
        return BytesMut::new();
    }
    let _between = body.split_to(range.start - *taken);
    *taken = range.end;
    body.split_to(range.len())
}

fn place(groups: &mut Vec<Group>, core: CoreId, part: ProducePart) -> (usize, usize) {
    let group = match groups.iter().position(|group| group.core == core) {
        Some(group) => group,
        None => {
            groups.push(Group { core, parts: Vec::new() });
            groups.len() - 1
        }
    };
    let parts = &mut groups[group].parts;
    parts.push(part);
    (group, parts.len() - 1)
}

/// Groups on their way, in the order of `Outcome::Dispatched::group`.
struct Dispatched {
    groups: Vec<OnTheWay>,
}

enum OnTheWay {
    Here(Appends),
    There(Call<CoreRequest, CoreReply>),
}

/// Hands every group to its core. Returns when all are appended or in their core's ring, so the next request of this
/// connection comes after them in every log.
async fn dispatch(core: &Rc<Core>, groups: Vec<Group>) -> Dispatched {
    let mut on_the_way = Vec::with_capacity(groups.len());
    for Group { core: owner, parts } in groups {
        on_the_way.push(if owner == core.id {
            OnTheWay::Here(Appends::dispatch(core, parts, true).await)
        } else {
            OnTheWay::There(core.mesh.send(owner, CoreRequest::Produce(parts)).await)
        });
    }
    Dispatched { groups: on_the_way }
}

/// Like [`dispatch`] for acks=0; whether some part is known to be refused by its log.
async fn dispatch_silently(core: &Rc<Core>, groups: Vec<Group>) -> bool {
    let mut refused = false;
    for Group { core: owner, parts } in groups {
        if owner == core.id {
            refused |= Appends::dispatch(core, parts, false).await.any_refused();
        } else {
            // The owner's verdict would come after the next request was read; a refusal there is counted, not told.
            drop(core.mesh.send(owner, CoreRequest::Produce(parts)).await);
        }
    }
    refused
}

impl Dispatched {
    /// Waits for every core and charges the time: what was not the journal of some core was the way there and back.
    async fn finish(self, core: &Core, clock: &mut StageClock) -> Vec<Vec<ProducedPart>> {
        let mut results = Vec::with_capacity(self.groups.len());
        let mut times = StageTimes::default();
        let only_here = self.groups.iter().all(|group| matches!(group, OnTheWay::Here(_)));
        for group in self.groups {
            let (parts, spent) = match group {
                OnTheWay::Here(appends) => appends.finish(core).await,
                OnTheWay::There(call) => match call.await {
                    CoreReply::Produce(parts, spent) => (parts, spent),
                    _ => unreachable!("a produce request is answered by a produce reply"),
                },
            };
            times.merge_parallel(&spent);
            results.push(parts);
        }
        let now_ns = core.io.monotonic_now().as_nanos();
        if only_here {
            clock.mark(Stage::Journal, now_ns)
        } else {
            clock.mark_remote(&times, now_ns)
        }
        results
    }
}

impl Progress {
    fn any_refused(&self) -> bool {
        self.topics
            .iter()
            .flat_map(|topic| &topic.partitions)
            .any(|partition| matches!(partition.outcome, Outcome::Refused(_)))
    }

    fn answer(&self, info: RequestInfo, results: &[Vec<ProducedPart>]) -> Answer {
        let mut first_error = ErrorCode::None;
        let responses: Vec<TopicProduceResponse<'_>> = self
            .topics
            .iter()
            .map(|topic| TopicProduceResponse {
                name: &topic.name,
                topic_id: topic.id,
                partition_responses: topic
                    .partitions
                    .iter()
                    .map(|partition| {
                        let response = partition.response(results);
                        if first_error == ErrorCode::None {
                            first_error = ErrorCode::from_i16(response.error_code).unwrap_or(ErrorCode::None);
                        }
                        response
                    })
                    .collect(),
            })
            .collect();
        let response = ProduceResponse { responses, ..ProduceResponse::default() };
        reply(info, first_error, 256, |writer, version| response.encode(writer, version))
    }
}

impl PartitionProgress {
    fn dispatched_response<'a>(&self, result: &'a ProducedPart) -> PartitionProduceResponse<'a> {
        match result {
            ProducedPart::Appended { base_offset, log_start } => PartitionProduceResponse {
                index: self.index,
                base_offset: base_offset.0,
                log_append_time_ms: self.log_append_time_ms,
                log_start_offset: log_start.0,
                ..PartitionProduceResponse::default()
            },
            ProducedPart::Refused(refusal) => PartitionProduceResponse {
                index: self.index,
                error_code: refusal.error.code(),
                base_offset: -1,
                error_message: Some(&refusal.text),
                ..PartitionProduceResponse::default()
            },
        }
    }

    fn response<'a>(&'a self, results: &'a [Vec<ProducedPart>]) -> PartitionProduceResponse<'a> {
        match &self.outcome {
            Outcome::Dispatched { group, at } => self.dispatched_response(&results[*group][*at]),
            Outcome::Refused(refusal) => PartitionProduceResponse {
                index: self.index,
                error_code: refusal.error.code(),
                base_offset: -1,
                record_errors: refusal.records.iter().map(record_error).collect(),
                error_message: Some(refusal.message.as_deref().unwrap_or(refusal.error.message())),
                ..PartitionProduceResponse::default()
            },
        }
    }
}

fn record_error((index, message): &(i32, String)) -> BatchIndexAndErrorMessage<'_> {
    BatchIndexAndErrorMessage { batch_index: *index, batch_index_error_message: Some(message) }
}
