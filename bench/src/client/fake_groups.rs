//! What the fake broker says of groups: one classic group with a member and an offset, and that it knows no group of the other kind.

use std::net::SocketAddr;

use ringlog_protocol::api::ApiKey;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::frame::RequestHeader;
use ringlog_protocol::group::consumer_protocol::encode_assignment;
use ringlog_protocol::group::generated::consumer_protocol_assignment::{
    ConsumerProtocolAssignment, TopicPartition,
};
use ringlog_protocol::messages::consumer_group_describe::{self, ConsumerGroupDescribeResponse};
use ringlog_protocol::messages::delete_groups::{DeletableGroupResult, DeleteGroupsResponse};
use ringlog_protocol::messages::describe_groups::{
    DescribeGroupsResponse, DescribedGroup, DescribedGroupMember,
};
use ringlog_protocol::messages::find_coordinator::{Coordinator, FindCoordinatorResponse};
use ringlog_protocol::messages::list_groups::{ListGroupsResponse, ListedGroup};
use ringlog_protocol::messages::offset_fetch::{
    OffsetFetchResponse, OffsetFetchResponseGroup, OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions, OffsetFetchResponseTopic, OffsetFetchResponseTopics,
};
use ringlog_protocol::wire::{EncodeError, Writer};

use super::fake_broker::{NODE_ID, TOPIC};

pub const GROUP: &str = "billing";
pub const OFFSET: i64 = 42;
/// From version 8 on OffsetFetch answers for several groups.
const GROUPS_SINCE: i16 = 8;
/// From version 4 on FindCoordinator answers for several keys.
const KEYS_SINCE: i16 = 4;

/// Writes the answer's body; `None` for an API that is not of groups.
pub fn body(
    own: SocketAddr,
    header: &RequestHeader<'_>,
    writer: &mut Writer,
) -> Option<Result<(), EncodeError>> {
    let version = header.api_version;
    Some(match header.api {
        ApiKey::FindCoordinator => find_coordinator(own, version, writer),
        ApiKey::ListGroups => list(version, writer),
        ApiKey::DescribeGroups => describe(version, writer),
        ApiKey::ConsumerGroupDescribe => {
            let unknown = consumer_group_describe::DescribedGroup {
                error_code: ErrorCode::GroupIdNotFound.code(),
                group_id: GROUP,
                ..Default::default()
            };
            ConsumerGroupDescribeResponse { groups: vec![unknown], ..Default::default() }
                .encode(writer, version)
        }
        ApiKey::OffsetFetch => offsets(version, writer),
        ApiKey::DeleteGroups => {
            let deleted = DeletableGroupResult { group_id: GROUP, ..DeletableGroupResult::default() };
            DeleteGroupsResponse { results: vec![deleted], ..DeleteGroupsResponse::default() }
                .encode(writer, version)
        }
        _ => return None,
    })
}

fn find_coordinator(own: SocketAddr, version: i16, writer: &mut Writer) -> Result<(), EncodeError> {
    let (host, port) = (own.ip().to_string(), i32::from(own.port()));
    let found = Coordinator { key: GROUP, node_id: NODE_ID, host: &host, port, ..Coordinator::default() };
    let response = match version < KEYS_SINCE {
        true => FindCoordinatorResponse { node_id: NODE_ID, host: &host, port, ..Default::default() },
        false => FindCoordinatorResponse { coordinators: vec![found], ..Default::default() },
    };
    response.encode(writer, version)
}

fn list(version: i16, writer: &mut Writer) -> Result<(), EncodeError> {
    let group = ListedGroup {
        group_id: GROUP,
        protocol_type: "consumer",
        group_state: if version >= 4 { "Stable" } else { "" },
        group_type: if version >= 5 { "classic" } else { "" },
    };
    ListGroupsResponse { groups: vec![group], ..ListGroupsResponse::default() }.encode(writer, version)
}

fn describe(version: i16, writer: &mut Writer) -> Result<(), EncodeError> {
    let assigned = TopicPartition { topic: TOPIC, partitions: vec![0].into() };
    let assignment = ConsumerProtocolAssignment { assigned_partitions: vec![assigned], ..Default::default() };
    let assignment = encode_assignment(&assignment, 0)?;
    let member = DescribedGroupMember {
        member_id: "consumer-1",
        client_id: "client",
        client_host: "/127.0.0.1",
        member_assignment: &assignment,
        ..DescribedGroupMember::default()
    };
    let group = DescribedGroup {
        group_id: GROUP,
        group_state: "Stable",
        protocol_type: "consumer",
        protocol_data: "range",
        members: vec![member],
        ..DescribedGroup::default()
    };
    DescribeGroupsResponse { groups: vec![group], ..DescribeGroupsResponse::default() }
        .encode(writer, version)
}

fn offsets(version: i16, writer: &mut Writer) -> Result<(), EncodeError> {
    let mut response = OffsetFetchResponse::default();
    if version < GROUPS_SINCE {
        let partition = OffsetFetchResponsePartition {
            committed_offset: OFFSET,
            metadata: Some(""),
            ..Default::default()
        };
        response.topics = vec![OffsetFetchResponseTopic { name: TOPIC, partitions: vec![partition] }];
    } else {
        let partition = OffsetFetchResponsePartitions {
            committed_offset: OFFSET,
            metadata: Some(""),
            ..Default::default()
        };
        let topic =
            OffsetFetchResponseTopics { name: TOPIC, partitions: vec![partition], ..Default::default() };
        response.groups =
            vec![OffsetFetchResponseGroup { group_id: GROUP, topics: vec![topic], ..Default::default() }];
    }
    response.encode(writer, version)
}
