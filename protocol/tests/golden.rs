//! What Apache Kafka 4.4's own classes wrote: defaults, and messages carried from one version to another.
//!
//! It covers the versions that the `kafka-protocol` crate lacks, and what no oracle in Rust shows: which values a version drops
//! and which it refuses.

mod common;

use common::{Case, Message, cases, models};
use ringlog_protocol::group::generated as group;
use ringlog_protocol::messages::{self, Request, Response};
use ringlog_protocol::wire::{EncodeError, Reader};

const DEFAULTS: &str = include_str!("golden/kafka-4.4-defaults.txt");
const REWRITTEN: &str = include_str!("golden/kafka-4.4-rewritten.txt");

fn lines(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(' ').collect())
}

fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits = hexadecimal.as_bytes().chunks(2);
    digits
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hexadecimal"))
        .collect()
}

/// The case of a message (`FetchRequest`) at a version.
fn find<'m>(cases: &[Case<'m>], name: &str, version: &str) -> Case<'m> {
    let version: i16 = version.parse().expect("a number");
    let is_it = |case: &&Case<'_>| case.name() == name && case.version == version;
    *cases.iter().find(is_it).expect("Kafka's versions are defined")
}

macro_rules! defaults {
    (
        apis { $($api:ident $module:ident $request:ident $response:ident;)* }
        records { $($record:ident $record_module:ident $key:ident $value:ident;)* }
    ) => {
        /// A message of which nothing is set.
        fn default_message(name: &str) -> Message<'static> {
            $(
                if name == stringify!($request) {
                    return Message::Request(Request::$api(messages::$module::$request::default()));
                }
                if name == stringify!($response) {
                    return Message::Response(Response::$api(messages::$module::$response::default()));
                }
            )*
            $(
                if name == stringify!($key) {
                    return Message::Key(group::Key::$record(group::$record_module::$key::default()));
                }
                if name == stringify!($value) {
                    return Message::Value(group::Value::$record(group::$record_module::$value::default()));
                }
            )*
            match name {
                "ConsumerProtocolSubscription" => Message::Subscription(Default::default()),
                "ConsumerProtocolAssignment" => Message::Assignment(Default::default()),
                _ => panic!("{name} has golden lines and no default here"),
            }
        }
    };
}

defaults! {
    apis {
        AlterConfigs alter_configs AlterConfigsRequest AlterConfigsResponse;
        ApiVersions api_versions ApiVersionsRequest ApiVersionsResponse;
        ConsumerGroupDescribe consumer_group_describe ConsumerGroupDescribeRequest ConsumerGroupDescribeResponse;
        ConsumerGroupHeartbeat consumer_group_heartbeat ConsumerGroupHeartbeatRequest ConsumerGroupHeartbeatResponse;
        CreatePartitions create_partitions CreatePartitionsRequest CreatePartitionsResponse;
        CreateTopics create_topics CreateTopicsRequest CreateTopicsResponse;
        DeleteGroups delete_groups DeleteGroupsRequest DeleteGroupsResponse;
        DeleteRecords delete_records DeleteRecordsRequest DeleteRecordsResponse;
        DeleteTopics delete_topics DeleteTopicsRequest DeleteTopicsResponse;
        DescribeConfigs describe_configs DescribeConfigsRequest DescribeConfigsResponse;
        DescribeGroups describe_groups DescribeGroupsRequest DescribeGroupsResponse;
        DescribeLogDirs describe_log_dirs DescribeLogDirsRequest DescribeLogDirsResponse;
        DescribeQuorum describe_quorum DescribeQuorumRequest DescribeQuorumResponse;
        DescribeTopicPartitions describe_topic_partitions DescribeTopicPartitionsRequest DescribeTopicPartitionsResponse;
        Fetch fetch FetchRequest FetchResponse;
        FindCoordinator find_coordinator FindCoordinatorRequest FindCoordinatorResponse;
        Heartbeat heartbeat HeartbeatRequest HeartbeatResponse;
        IncrementalAlterConfigs incremental_alter_configs IncrementalAlterConfigsRequest IncrementalAlterConfigsResponse;
        InitProducerId init_producer_id InitProducerIdRequest InitProducerIdResponse;
        JoinGroup join_group JoinGroupRequest JoinGroupResponse;
        LeaveGroup leave_group LeaveGroupRequest LeaveGroupResponse;
        ListConfigResources list_config_resources ListConfigResourcesRequest ListConfigResourcesResponse;
        ListGroups list_groups ListGroupsRequest ListGroupsResponse;
        ListOffsets list_offsets ListOffsetsRequest ListOffsetsResponse;
        Metadata metadata MetadataRequest MetadataResponse;
        OffsetCommit offset_commit OffsetCommitRequest OffsetCommitResponse;
        OffsetDelete offset_delete OffsetDeleteRequest OffsetDeleteResponse;
        OffsetFetch offset_fetch OffsetFetchRequest OffsetFetchResponse;
        OffsetForLeaderEpoch offset_for_leader_epoch OffsetForLeaderEpochRequest OffsetForLeaderEpochResponse;
        Produce produce ProduceRequest ProduceResponse;
        SyncGroup sync_group SyncGroupRequest SyncGroupResponse;
        UpdateFeatures update_features UpdateFeaturesRequest UpdateFeaturesResponse;
    }
    records {
        ConsumerGroupCurrentMemberAssignment consumer_group_current_member_assignment ConsumerGroupCurrentMemberAssignmentKey ConsumerGroupCurrentMemberAssignmentValue;
        ConsumerGroupMemberMetadata consumer_group_member_metadata ConsumerGroupMemberMetadataKey ConsumerGroupMemberMetadataValue;
        ConsumerGroupMetadata consumer_group_metadata ConsumerGroupMetadataKey ConsumerGroupMetadataValue;
        ConsumerGroupPartitionMetadata consumer_group_partition_metadata ConsumerGroupPartitionMetadataKey ConsumerGroupPartitionMetadataValue;
        ConsumerGroupRegularExpression consumer_group_regular_expression ConsumerGroupRegularExpressionKey ConsumerGroupRegularExpressionValue;
        ConsumerGroupTargetAssignmentMember consumer_group_target_assignment_member ConsumerGroupTargetAssignmentMemberKey ConsumerGroupTargetAssignmentMemberValue;
        ConsumerGroupTargetAssignmentMetadata consumer_group_target_assignment_metadata ConsumerGroupTargetAssignmentMetadataKey ConsumerGroupTargetAssignmentMetadataValue;
        GroupMetadata group_metadata GroupMetadataKey GroupMetadataValue;
        LegacyOffsetCommit legacy_offset_commit LegacyOffsetCommitKey LegacyOffsetCommitValue;
        OffsetCommit offset_commit OffsetCommitKey OffsetCommitValue;
    }
}

#[test]
fn defaults_are_written_as_kafka_writes_them() {
    let models = models();
    let cases = cases(&models);
    let mut count = 0;
    for line in lines(DEFAULTS) {
        let [name, version, expected] = line[..] else { panic!("{line:?}") };
        let case = find(&cases, name, version);
        let message = default_message(name);
        let written = case.encode(&message).expect("defaults fit every version");
        assert_eq!(written, bytes(expected), "{name} {version}");
        let mut reader = Reader::new(&written);
        assert_eq!(case.decode(&mut reader), Ok(message), "{name} {version}");
        assert_eq!(reader.finish(), Ok(()));
        count += 1;
    }
    // Every case but Produce 0-2, which Kafka 4.4 lacks.
    assert_eq!(count, cases.len() - 6);
}

#[test]
fn values_that_a_version_lacks_are_dropped_or_refused_as_kafka_does() {
    let models = models();
    let cases = cases(&models);
    let (mut written, mut refused) = (0, 0);
    for line in lines(REWRITTEN) {
        let [name, read_at, read, written_at, expected] = line[..] else { panic!("{line:?}") };
        let name_of_case = format!("{name} {read_at} written at {written_at}");
        let read = bytes(read);
        let message = find(&cases, name, read_at).decode(&mut Reader::new(&read)).expect("Kafka wrote it");
        let result = find(&cases, name, written_at).encode(&message);
        if expected == "refused" {
            let is_named =
                matches!(result, Err(EncodeError::NotInVersion { .. } | EncodeError::NullNotAllowed { .. }));
            assert!(is_named, "{name_of_case}: {result:?}");
            refused += 1;
        } else {
            assert_eq!(result, Ok(bytes(expected)), "{name_of_case}");
            written += 1;
        }
    }
    assert!(written > 50 && refused > 20, "{written} written, {refused} refused");
}
