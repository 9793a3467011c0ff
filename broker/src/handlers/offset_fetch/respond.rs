//! The response of OffsetFetch in the shape of each version.

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::offset_fetch::{
    OffsetFetchResponse, OffsetFetchResponseGroup, OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions, OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};

use super::{Found, FoundTopic, SEVERAL_SINCE};

/// Versions from here on have an error beside the offsets: of the response, then of each group.
const ERROR_OF_GROUP_SINCE: i16 = 2;

/// Whether a group's error stands beside its offsets. Before, it is that of each partition.
pub(super) fn has_error_of_group(version: i16) -> bool {
    version >= ERROR_OF_GROUP_SINCE
}

pub(super) fn response<'a>(found: &'a [Found<'a>], version: i16) -> OffsetFetchResponse<'a> {
    if version >= SEVERAL_SINCE {
        let groups = found.iter().map(|group| OffsetFetchResponseGroup {
            group_id: group.group,
            topics: group.topics.iter().map(topic_of_group).collect(),
            error_code: group.error.code(),
        });
        return OffsetFetchResponse { groups: groups.collect(), ..OffsetFetchResponse::default() };
    }
    let error = found.first().map_or(ErrorCode::None, |group| group.error);
    let topics = found.iter().flat_map(|group| &group.topics).map(topic);
    OffsetFetchResponse {
        topics: topics.collect(),
        error_code: if has_error_of_group(version) { error.code() } else { 0 },
        ..OffsetFetchResponse::default()
    }
}

fn topic(found: &FoundTopic) -> OffsetFetchResponseTopic<'_> {
    let partitions = found.partitions.iter().map(|offset| OffsetFetchResponsePartition {
        partition_index: offset.index,
        committed_offset: offset.offset,
        committed_leader_epoch: offset.leader_epoch,
        metadata: Some(&offset.metadata),
        error_code: found.error.code(),
    });
    OffsetFetchResponseTopic { name: &found.name, partitions: partitions.collect() }
}

fn topic_of_group(found: &FoundTopic) -> OffsetFetchResponseTopics<'_> {
    let partitions = found.partitions.iter().map(|offset| OffsetFetchResponsePartitions {
        partition_index: offset.index,
        committed_offset: offset.offset,
        committed_leader_epoch: offset.leader_epoch,
        metadata: Some(&offset.metadata),
        error_code: found.error.code(),
    });
    OffsetFetchResponseTopics { name: &found.name, topic_id: found.id, partitions: partitions.collect() }
}
