//! Fetch (API 1): committed batches from their owner cores, waiting for more when there is too little.
//!
//! A fetch lives on its connection's core. Owners say what is available; when the sum is enough, or time is up, the
//! bytes are shared out in request order and collected. A fetch of a session names only what changed (`incremental`).

pub(crate) mod incremental;
mod plan;
pub(crate) mod session;
mod wait;

use std::rc::Rc;
use std::time::Duration;

use ringlog_io::HangUp;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{LeaderEpoch, Offset, PartitionIndex, TopicPartition};
use ringlog_protocol::messages::fetch::{
    EpochEndOffset, FetchRequest, FetchResponse, FetchableTopicResponse, LeaderIdAndEpoch, PartitionData,
};
use ringlog_protocol::wire::{FileRange, Piece, Records};
use ringlog_shard::egress::Outgoing;
use ringlog_shard::limits::{EGRESS_COPY_BYTES_MAX, FETCH_WAIT_MS_MAX};
use ringlog_shard::storage::LogPiece;

use super::reply::{reply, reply_with_sources};
use super::topics::{self, TopicLookup};
use super::{Request, RequestError, RequestInfo};
use crate::core::Core;
use crate::core::epochs::ReaderEpochs;
use crate::core::messages::{FetchSessionId, PartitionState, PositionPart, ReadPart, ReadResult};
use crate::observe::stage::Stage;
use crate::server::Connection;
use crate::server::replies::Answer;
use incremental::Context;
use plan::{Grant, Wanted};
use wait::Needed;

/// A partition of the request, in request order.
struct Asked {
    topic: usize,
    index: i32,
    position: Result<PositionPart, ErrorCode>,
    bytes_max: u32,
}

pub(super) async fn handle(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    request: Request,
) -> Result<Answer, RequestError> {
    let mut reader = request.body();
    let fetch =
        FetchRequest::decode(&mut reader, request.info.version).map_err(|error| request.refuse(error))?;
    let mut info = request.info.clone();
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let begins = match incremental::context(core, &fetch, info.version).await {
        Context::Refused(error) => return Ok(top_level_error(info, error)),
        Context::Incremental(session) => {
            return Ok(incremental::handle(core, connection, info, &fetch, session).await);
        }
        Context::Full => true,
        Context::Sessionless => false,
    };
    let (topics, asked) = resolve(core, &fetch, info.version);
    let deadline = core.io.monotonic_now() + Duration::from_millis(wait_ms(fetch.max_wait_ms));
    let bytes_min = u64::try_from(fetch.min_bytes).unwrap_or(0);
    let positions: Vec<PositionPart> = asked.iter().filter_map(|asked| asked.position.ok()).collect();
    let refused = positions.len() < asked.len();
    let needed = Needed { bytes_min, at_once: refused, deadline };
    let states = wait::until_enough(core, connection, &positions, needed).await;
    info.clock.mark(Stage::Wait, core.io.monotonic_now().as_nanos());
    if connection.hang_up() == Some(HangUp::Broken) {
        // Nobody would get the bytes: they are not even read.
        return Ok(Answer::Close);
    }
    let bytes_max = u32::try_from(fetch.max_bytes).unwrap_or(0).min(core.config.limits.fetch_bytes_max);
    let reads = share(&asked, &states, bytes_max);
    let results = wait::collect(core, reads).await;
    info.clock.mark(Stage::Queue, core.io.monotonic_now().as_nanos());
    let given = results.iter().map(|result| result.pieces.iter().map(LogPiece::bytes).sum());
    core.observer.count(|metrics| metrics.fetch.add(given));
    let session = if begins {
        incremental::begin(core, &fetch, info.version, &asked, &results)
    } else {
        FetchSessionId::NONE
    };
    Ok(answer(core, info, &topics, &asked, (session, results)))
}

fn wait_ms(max_wait_ms: i32) -> u64 {
    u64::try_from(max_wait_ms).unwrap_or(0).min(FETCH_WAIT_MS_MAX)
}

fn top_level_error(info: RequestInfo, error: ErrorCode) -> Answer {
    let response = FetchResponse { error_code: error.code(), ..FetchResponse::default() };
    reply(info, error, 64, |writer, version| response.encode(writer, version))
}

fn resolve(core: &Core, fetch: &FetchRequest<'_>, version: i16) -> (Vec<TopicLookup>, Vec<Asked>) {
    let image = core.image();
    let mut topics = Vec::with_capacity(fetch.topics.len());
    let mut asked = Vec::new();
    for wanted in &fetch.topics {
        let topic = if version >= incremental::BY_ID_SINCE {
            topics::by_id(&image, wanted.topic_id)
        } else {
            topics::by_name(&image, wanted.topic)
        };
        for partition in &wanted.partitions {
            let position = topics::partition(&topic, partition.partition).map(|image| PositionPart {
                key: TopicPartition { topic: image.id, partition: PartitionIndex(partition.partition) },
                from: Offset(partition.fetch_offset),
                epochs: ReaderEpochs {
                    believed: LeaderEpoch(partition.current_leader_epoch),
                    last_fetched: LeaderEpoch(partition.last_fetched_epoch),
                },
            });
            asked.push(Asked {
                topic: topics.len(),
                index: partition.partition,
                position,
                bytes_max: u32::try_from(partition.partition_max_bytes).unwrap_or(0),
            });
        }
        topics.push(topic);
    }
    (topics, asked)
}

/// What each partition with a position may return, in request order.
fn share(asked: &[Asked], states: &[PartitionState], bytes_max: u32) -> Vec<ReadPart> {
    let known = || asked.iter().filter_map(|asked| Some((asked, asked.position.ok()?)));
    let wanted: Vec<Wanted> = known()
        .zip(states)
        .map(|((asked, _), state)| Wanted {
            partition_bytes_max: asked.bytes_max,
            available_bytes: state.available_bytes,
        })
        .collect();
    known()
        .zip(plan::share(bytes_max, &wanted))
        .map(|((_, position), Grant { bytes_max, at_least_one })| ReadPart {
            key: position.key,
            from: position.from,
            epochs: position.epochs,
            bytes_max,
            at_least_one,
        })
        .collect()
}

fn answer(
    core: &Core,
    info: RequestInfo,
    topics: &[TopicLookup],
    asked: &[Asked],
    (session, results): (FetchSessionId, Vec<ReadResult>),
) -> Answer {
    let mut sources = Vec::new();
    let mut first_error = ErrorCode::None;
    let mut results = results.into_iter();
    let names: Vec<_> = topics.iter().map(TopicLookup::name).collect();
    let mut responses: Vec<FetchableTopicResponse<'_>> = topics
        .iter()
        .zip(&names)
        .map(|(topic, name)| FetchableTopicResponse {
            topic: name,
            topic_id: topic.id(),
            partitions: Vec::new(),
        })
        .collect();
    for partition in asked {
        let data = match partition.position {
            Err(error) => failed_partition(partition.index, error),
            Ok(_) => {
                let result = results.next().expect("one result for each partition with a position");
                partition_data(core, partition.index, result, &mut sources)
            }
        };
        if first_error == ErrorCode::None {
            first_error = ErrorCode::from_i16(data.error_code).unwrap_or(ErrorCode::None);
        }
        responses[partition.topic].partitions.push(data);
    }
    let response = FetchResponse { session_id: session.0, responses, ..FetchResponse::default() };
    let capacity_bytes = 64 + 96 * asked.len();
    reply_with_sources(info, first_error, capacity_bytes, sources, |writer, version| {
        response.encode(writer, version)
    })
}

fn failed_partition<'a>(index: i32, error: ErrorCode) -> PartitionData<'a> {
    PartitionData {
        partition_index: index,
        error_code: error.code(),
        high_watermark: -1,
        aborted_transactions: Some(Vec::new()),
        // Kafka never sends null here, and the Java client would fail on it.
        records: Records::Borrowed(&[]),
        ..PartitionData::default()
    }
}

fn partition_data<'a>(
    core: &Core,
    index: i32,
    result: ReadResult,
    sources: &mut Vec<Option<Outgoing>>,
) -> PartitionData<'a> {
    let ReadResult { state, pieces } = result;
    if matches!(state.error, ErrorCode::FencedLeaderEpoch | ErrorCode::UnknownLeaderEpoch) {
        let leader =
            LeaderIdAndEpoch { leader_id: core.config.node_id.0, leader_epoch: state.leader_epoch.0 };
        return PartitionData { current_leader: leader, ..failed_partition(index, state.error) };
    }
    if !matches!(state.error, ErrorCode::None | ErrorCode::OffsetOutOfRange) {
        return failed_partition(index, state.error);
    }
    let diverging_epoch = state.diverging.map_or_else(EpochEndOffset::default, |end| EpochEndOffset {
        epoch: end.epoch.0,
        end_offset: end.end_offset.0,
    });
    PartitionData {
        partition_index: index,
        error_code: state.error.code(),
        diverging_epoch,
        high_watermark: state.high_watermark.0,
        last_stable_offset: state.high_watermark.0,
        log_start_offset: state.log_start.0,
        aborted_transactions: Some(Vec::new()),
        records: Records::Pieces(pieces.into_iter().map(|piece| wire_piece(piece, sources)).collect()),
        ..PartitionData::default()
    }
}

/// A piece as the encoder takes it: few bytes to copy, or a place in the table of what is sent without being looked at.
fn wire_piece(piece: LogPiece, sources: &mut Vec<Option<Outgoing>>) -> Piece {
    let length = u32::try_from(piece.bytes()).expect("a piece lies within one segment");
    let outgoing = match piece {
        LogPiece::Memory(piece) if piece.bytes().len() <= EGRESS_COPY_BYTES_MAX => {
            return Piece::Bytes(piece.into_bytes());
        }
        LogPiece::Memory(piece) => Outgoing::Tail(piece),
        LogPiece::File { file, position, length } => Outgoing::File { file, position, length },
    };
    sources.push(Some(outgoing));
    Piece::File(FileRange { source: (sources.len() - 1) as u32, position: 0, length })
}
