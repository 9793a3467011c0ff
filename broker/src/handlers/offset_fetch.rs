//! OffsetFetch (API 9): committed offsets of one group, or of several from version 8 on. Each may lie on another core.
//!
//! `require_stable` is accepted: without transactions every offset is stable.

use std::rc::Rc;
use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::TopicId;
use ringlog_protocol::messages::offset_fetch::OffsetFetchRequest;
use ringlog_protocol::wire::Int32Array;
use ringlog_shard::limits::{OFFSETS_ANSWER_BYTES_MAX, OFFSETS_PER_REQUEST_MAX};

use super::group_calls::{ask_each, note, repeated, too_many};
use super::reply::reply;
use super::topics::{self, TopicLookup};
use super::{Request, RequestError};
use crate::controller::MetadataImage;
use crate::core::Core;
use crate::core::groups::{GroupAnswer, GroupCall};
use crate::group::{FetchedOffset, FetchedTopic, OffsetQuery, OffsetQueryTopic};
use crate::observe::stage::Stage;
use crate::server::Connection;
use crate::server::replies::Answer;

mod respond;
#[cfg(test)]
mod tests;

/// Versions from here on ask for several groups (KIP-709).
const SEVERAL_SINCE: i16 = 8;

/// Versions from here on name topics by id.
const BY_ID_SINCE: i16 = 10;

/// What an offset and its frame take of a response without its metadata.
const OFFSET_BYTES: usize = 24;

/// What is asked of one group.
struct Wanted<'a> {
    group: &'a str,
    /// Who asks, where a member of a consumer group does.
    member: Option<&'a str>,
    member_epoch: i32,
    /// `None`: all that it has.
    topics: Option<Vec<WantedTopic<'a>>>,
}

/// Offsets of one topic.
struct WantedTopic<'a> {
    name: Arc<str>,
    /// As asked for; [`TopicId::ZERO`] by name.
    asked_id: TopicId,
    id: TopicId,
    /// Of all partitions: the machine is not asked.
    error: Option<ErrorCode>,
    partitions: Int32Array<'a>,
}

/// What is told of one group.
struct Found<'a> {
    group: &'a str,
    error: ErrorCode,
    topics: Vec<FoundTopic>,
}

/// Offsets of one topic, all with one error.
struct FoundTopic {
    name: Arc<str>,
    id: TopicId,
    error: ErrorCode,
    partitions: Vec<FetchedOffset>,
}

pub(super) async fn handle(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    request: Request,
) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = OffsetFetchRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    if let Some(closed) = too_many(core, connection, &info, asked.groups.len()) {
        return Ok(closed);
    }
    let image = core.image();
    let wanted = wanted(&image, &asked, info.version);
    let fetched = fetch(core, &wanted).await;
    info.clock.mark(Stage::Queue, core.io.monotonic_now().as_nanos());
    let mut found: Vec<Found<'_>> = Vec::with_capacity(wanted.len());
    let mut room_bytes = OFFSETS_ANSWER_BYTES_MAX;
    for (wanted, fetched) in wanted.iter().zip(fetched) {
        let of_group = fit(found_in(wanted, fetched, &image, info.version), &mut room_bytes);
        note(core, &info, of_group.group, of_group.error, None);
        found.push(of_group);
    }
    let error = found.iter().map(|group| group.error).find(|error| *error != ErrorCode::None);
    let response = respond::response(&found, info.version);
    let error = error.unwrap_or(ErrorCode::None);
    Ok(reply(info, error, 256, |writer, version| response.encode(writer, version)))
}

fn wanted<'a>(image: &MetadataImage, asked: &OffsetFetchRequest<'a>, version: i16) -> Vec<Wanted<'a>> {
    if version < SEVERAL_SINCE {
        let topics = asked.topics.as_ref().map(|topics| {
            let topics = topics.iter();
            topics.map(|topic| by_name(image, topic.name, &topic.partition_indexes)).collect()
        });
        return vec![Wanted { group: asked.group_id, member: None, member_epoch: -1, topics }];
    }
    let groups = asked.groups.iter().map(|group| {
        let topics = group.topics.as_ref().map(|topics| {
            let topics = topics.iter().map(|topic| match version >= BY_ID_SINCE {
                true => by_id(image, topic.topic_id, &topic.partition_indexes),
                false => by_name(image, topic.name, &topic.partition_indexes),
            });
            topics.collect()
        });
        Wanted { group: group.group_id, member: group.member_id, member_epoch: group.member_epoch, topics }
    });
    groups.collect()
}

/// A topic that does not exist has no offsets, which is no error.
fn by_name<'a>(image: &MetadataImage, name: &str, partitions: &Int32Array<'a>) -> WantedTopic<'a> {
    let id = image.topic(name).map_or(TopicId::ZERO, |topic| topic.id);
    let (name, partitions) = (Arc::from(name), partitions.clone());
    WantedTopic { name, asked_id: TopicId::ZERO, id, error: None, partitions }
}

fn by_id<'a>(image: &MetadataImage, id: TopicId, partitions: &Int32Array<'a>) -> WantedTopic<'a> {
    let found = topics::by_id(image, id);
    let error = match &found {
        TopicLookup::Found(_) => None,
        TopicLookup::Missing { error, .. } => Some(*error),
    };
    WantedTopic { name: found.name(), asked_id: id, id, error, partitions: partitions.clone() }
}

/// By group: what its machine has, or why nobody was asked.
async fn fetch(core: &Rc<Core>, wanted: &[Wanted<'_>]) -> Vec<Result<Vec<FetchedTopic>, ErrorCode>> {
    let names: Vec<&str> = wanted.iter().map(|wanted| wanted.group).collect();
    let allowed = allowed(wanted, &repeated(&names));
    let asked: Vec<&Wanted<'_>> =
        wanted.iter().zip(&allowed).filter(|(_, allowed)| **allowed).map(|(wanted, _)| wanted).collect();
    let names: Vec<&str> = asked.iter().map(|wanted| wanted.group).collect();
    let call =
        |places: &[usize]| GroupCall::FetchOffsets(places.iter().map(|place| query(asked[*place])).collect());
    let fetched = ask_each(core, &names, call, |answer| match answer {
        GroupAnswer::Offsets(offsets) => offsets.into_iter().map(|(_, offsets)| offsets).collect(),
        _ => unreachable!("offsets are fetched by offsets"),
    })
    .await;
    let mut fetched = fetched.into_iter();
    let result = |allowed: &bool| match allowed {
        true => fetched.next().expect("each allowed one is asked for").and_then(|offsets| offsets),
        false => Err(ErrorCode::InvalidRequest),
    };
    allowed.iter().map(result).collect()
}

/// Which groups are asked for: each once, and not more offsets than one request may want.
fn allowed(wanted: &[Wanted<'_>], repeated: &[bool]) -> Vec<bool> {
    let mut count = 0usize;
    let allowed = wanted.iter().zip(repeated).map(|(wanted, repeated)| {
        let topics = wanted.topics.iter().flatten();
        count = topics.fold(count, |count, topic| count.saturating_add(topic.partitions.len()));
        !repeated && count <= OFFSETS_PER_REQUEST_MAX
    });
    allowed.collect()
}

fn query(wanted: &Wanted<'_>) -> OffsetQuery {
    let topics = wanted.topics.as_ref().map(|topics| {
        let topics = topics.iter().filter(|topic| topic.error.is_none());
        let topics = topics.map(|topic| OffsetQueryTopic {
            name: Arc::clone(&topic.name),
            id: topic.id,
            partitions: topic.partitions.iter().collect(),
        });
        topics.collect()
    });
    OffsetQuery {
        group: Arc::from(wanted.group),
        member: wanted.member.map(Arc::from),
        member_epoch: wanted.member_epoch,
        topics,
    }
}

/// Puts what the machine has beside what it was not asked for.
fn found_in<'a>(
    wanted: &Wanted<'a>,
    fetched: Result<Vec<FetchedTopic>, ErrorCode>,
    image: &MetadataImage,
    version: i16,
) -> Found<'a> {
    let group = wanted.group;
    match (fetched, &wanted.topics) {
        (Ok(fetched), None) => {
            let topics = fetched.into_iter().filter_map(|topic| of_all(topic, image, version));
            Found { group, error: ErrorCode::None, topics: topics.collect() }
        }
        (Ok(fetched), Some(topics)) => {
            let mut fetched = fetched.into_iter();
            let topics = topics.iter().map(|topic| match topic.error {
                Some(error) => nothing_in(topic, error),
                None => FoundTopic {
                    name: Arc::clone(&topic.name),
                    id: topic.asked_id,
                    error: ErrorCode::None,
                    partitions: fetched.next().map(|topic| topic.partitions).unwrap_or_default(),
                },
            });
            Found { group, error: ErrorCode::None, topics: topics.collect() }
        }
        (Err(error), topics) => {
            let topics = topics.iter().flatten().map(|topic| nothing_in(topic, error)).collect();
            // Versions that have an error of the group name no topic with it.
            let topics = if respond::has_error_of_group(version) { Vec::new() } else { topics };
            Found { group, error, topics }
        }
    }
}

/// A topic of all that a group has. One that is gone cannot be named by id.
fn of_all(topic: FetchedTopic, image: &MetadataImage, version: i16) -> Option<FoundTopic> {
    let id = if version >= BY_ID_SINCE { image.topic(&topic.name)?.id } else { TopicId::ZERO };
    Some(FoundTopic { name: topic.name, id, error: ErrorCode::None, partitions: topic.partitions })
}

fn nothing_in(topic: &WantedTopic<'_>, error: ErrorCode) -> FoundTopic {
    let partitions = topic.partitions.iter().map(|index| FetchedOffset {
        index,
        offset: -1,
        leader_epoch: -1,
        metadata: Arc::from(""),
    });
    FoundTopic { name: Arc::clone(&topic.name), id: topic.asked_id, error, partitions: partitions.collect() }
}

/// The group, or an error where the answer would grow beyond what one may have: a partition that is named a thousand times is
/// answered with its metadata a thousand times.
fn fit<'a>(found: Found<'a>, room_bytes: &mut usize) -> Found<'a> {
    let offsets = found.topics.iter().flat_map(|topic| &topic.partitions);
    let bytes: usize = offsets.map(|offset| OFFSET_BYTES + offset.metadata.len()).sum();
    match room_bytes.checked_sub(bytes) {
        Some(left) => {
            *room_bytes = left;
            found
        }
        None => Found { error: ErrorCode::InvalidRequest, topics: Vec::new(), ..found },
    }
}
