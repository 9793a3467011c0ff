//! DescribeTopicPartitions (API 75, KIP-966): topics and their partitions by name, in pages, out of the image.
//!
//! As Kafka 4.4: a page holds at least one partition if there is one, and a cursor may name what is gone meanwhile.

use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{LeaderEpoch, PartitionIndex, TopicPartition};
use ringlog_protocol::messages::describe_topic_partitions::{
    Cursor, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition, DescribeTopicPartitionsResponseTopic, TopicRequest,
};

use super::reply::reply;
use super::topics::{self, TopicLookup};
use super::{Request, RequestError, metadata};
use crate::controller::{MetadataImage, OFFSETS_TOPIC_NAME};
use crate::core::Core;
use crate::observe::stage::Stage;
use crate::server::replies::Answer;

pub(super) async fn handle(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = DescribeTopicPartitionsRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let page = page(&core.image(), &asked, core.config.limits.described_partitions_max);
    let keys: Vec<TopicPartition> = page.iter().flat_map(Page::keys).collect();
    let epochs = metadata::leader_epochs(core, &keys).await;
    info.clock.mark(Stage::Queue, core.io.monotonic_now().as_nanos());
    let response = match &page {
        Some(page) => page.response(core.config.node_id.0, &mut epochs.into_iter()),
        None => refusal(&asked.topics),
    };
    let first_error = response.topics.iter().map(|topic| topic.error_code).find(|error| *error != 0);
    let error = first_error.and_then(ErrorCode::from_i16).unwrap_or(ErrorCode::None);
    let capacity_bytes = 256 + 64 * response.topics.len() + 32 * keys.len();
    Ok(reply(info, error, capacity_bytes, |writer, version| response.encode(writer, version)))
}

/// What one answer holds.
#[derive(Debug, Default)]
struct Page {
    /// Each with those of its partitions that are in this page.
    topics: Vec<(TopicLookup, Range<i32>)>,
    /// Where the next page begins, if there is one.
    next: Option<(Arc<str>, i32)>,
}

/// The page that is asked for, of at most `partitions_max` partitions; `None` for a cursor that cannot be one.
fn page(
    image: &MetadataImage,
    asked: &DescribeTopicPartitionsRequest<'_>,
    partitions_max: i32,
) -> Option<Page> {
    let (first, from) =
        asked.cursor.as_ref().map_or(("", 0), |cursor| (cursor.topic_name, cursor.partition_index));
    let names: BTreeSet<&str> = asked.topics.iter().map(|topic| topic.name).collect();
    let is_foreign = asked.cursor.is_some() && !names.is_empty() && !names.contains(first);
    if from < 0 || is_foreign {
        return None;
    }
    let limit = asked.response_partition_limit.min(partitions_max).max(1);
    Some(if names.is_empty() {
        let found = image.topics_from(first).map(|topic| TopicLookup::Found(Arc::clone(topic)));
        Page::fill(found, (first, from), limit)
    } else {
        let wanted = names.range(first..);
        Page::fill(wanted.map(|name| topics::by_name(image, name)), (first, from), limit)
    })
}

impl Page {
    /// Takes topics until `limit` partitions, 1 or more, are in. Of the topic `first` those below `from` are left out.
    fn fill(topics: impl Iterator<Item = TopicLookup>, (first, from): (&str, i32), limit: i32) -> Page {
        let mut page = Page::default();
        let mut left = limit;
        for topic in topics {
            let name = topic.name();
            if left == 0 {
                page.next = Some((name, 0));
                break;
            }
            let count = match &topic {
                TopicLookup::Found(topic) => topic.partition_count,
                TopicLookup::Missing { .. } => 0,
            };
            let begin = if *name == *first { from.min(count) } else { 0 };
            let end = begin + left.min(count - begin);
            left -= end - begin;
            page.topics.push((topic, begin..end));
            if end < count {
                page.next = Some((name, end));
                break;
            }
        }
        page
    }

    fn keys(&self) -> impl Iterator<Item = TopicPartition> {
        self.topics.iter().flat_map(|(topic, partitions)| {
            let topic = topic.id();
            let key = move |index| TopicPartition { topic, partition: PartitionIndex(index) };
            partitions.clone().map(key)
        })
    }

    /// Takes an epoch for each partition, in order; `None` stands for one that cannot be led.
    fn response(
        &self,
        me: i32,
        epochs: &mut impl Iterator<Item = Option<LeaderEpoch>>,
    ) -> DescribeTopicPartitionsResponse<'_> {
        let topics = self.topics.iter().map(|(topic, indexes)| {
            let (name, error) = match topic {
                TopicLookup::Found(topic) => (&*topic.name, ErrorCode::None),
                TopicLookup::Missing { name, error, .. } => (&**name, *error),
            };
            let partition =
                |index| partition(index, me, epochs.next().expect("one epoch for each partition"));
            DescribeTopicPartitionsResponseTopic {
                error_code: error.code(),
                name: Some(name),
                topic_id: topic.id(),
                is_internal: name == OFFSETS_TOPIC_NAME,
                partitions: indexes.clone().map(partition).collect(),
                topic_authorized_operations: metadata::TOPIC_OPERATIONS,
            }
        });
        let next = self.next.as_ref();
        DescribeTopicPartitionsResponse {
            topics: topics.collect(),
            next_cursor: next.map(|(name, index)| Cursor { topic_name: name, partition_index: *index }),
            ..DescribeTopicPartitionsResponse::default()
        }
    }
}

fn partition(
    index: i32,
    me: i32,
    epoch: Option<LeaderEpoch>,
) -> DescribeTopicPartitionsResponsePartition<'static> {
    DescribeTopicPartitionsResponsePartition {
        // Kafka gives none to a partition without a leader either.
        error_code: 0,
        partition_index: index,
        leader_id: if epoch.is_some() { me } else { -1 },
        leader_epoch: epoch.map_or(-1, |LeaderEpoch(epoch)| epoch),
        replica_nodes: vec![me].into(),
        isr_nodes: vec![me].into(),
        // The one replica is in sync, so none waits outside.
        eligible_leader_replicas: Some(Vec::new().into()),
        last_known_elr: Some(Vec::new().into()),
        offline_replicas: if epoch.is_some() { Vec::new().into() } else { vec![me].into() },
    }
}

/// Says to each topic that the cursor is none; where all topics are asked for there is no place to say it, on Kafka too.
fn refusal<'a>(asked: &[TopicRequest<'a>]) -> DescribeTopicPartitionsResponse<'a> {
    let refused = asked.iter().map(|topic| DescribeTopicPartitionsResponseTopic {
        error_code: ErrorCode::InvalidRequest.code(),
        name: Some(topic.name),
        ..DescribeTopicPartitionsResponseTopic::default()
    });
    DescribeTopicPartitionsResponse {
        topics: refused.collect(),
        ..DescribeTopicPartitionsResponse::default()
    }
}

#[cfg(test)]
mod tests;
