//! Requests as bytes, for tests of what a connection does beside the protocol. Sends nothing.
#![allow(dead_code, reason = "each test binary uses a part")]

use ringlog_protocol::api::ApiKey;
use ringlog_protocol::frame::{Answer, RequestHeader};
use ringlog_protocol::messages::create_topics::{CreatableTopic, CreateTopicsRequest};
use ringlog_protocol::messages::fetch::{FetchPartition, FetchRequest, FetchTopic};
use ringlog_protocol::wire::{EncodeError, Writer};

/// What a fetch asks for.
#[derive(Clone, Copy, Debug)]
pub struct FetchPlan {
    pub partition_count: i32,
    pub from: i64,
    pub wait_ms_max: i32,
    pub bytes_min: i32,
    pub bytes_max: i32,
}

fn frame(
    api: ApiKey,
    api_version: i16,
    correlation_id: i32,
    body: impl FnOnce(&mut Writer) -> Result<(), EncodeError>,
) -> Vec<u8> {
    let header =
        RequestHeader { api, api_version, correlation_id, client_id: Some("test"), answer: Answer::Serve };
    let mut writer = Writer::frame(256);
    header.encode(&mut writer).and_then(|()| body(&mut writer)).expect("the request is legal");
    let pieces = writer.finish_frame().expect("it is short");
    pieces.iter().flat_map(|piece| piece_bytes(piece).to_vec()).collect()
}

fn piece_bytes(piece: &ringlog_protocol::wire::Piece) -> &[u8] {
    match piece {
        ringlog_protocol::wire::Piece::Bytes(bytes) => bytes,
        ringlog_protocol::wire::Piece::File(_) => panic!("requests are in memory"),
    }
}

/// CreateTopics of one topic.
pub fn create_topic(correlation_id: i32, name: &str, partition_count: i32) -> Vec<u8> {
    let topic = CreatableTopic {
        name,
        num_partitions: partition_count,
        replication_factor: 1,
        ..CreatableTopic::default()
    };
    let request = CreateTopicsRequest { topics: vec![topic], timeout_ms: 10_000, ..Default::default() };
    frame(ApiKey::CreateTopics, 4, correlation_id, |writer| request.encode(writer, 4))
}

/// Fetch of all partitions of one topic, each from the same offset.
pub fn fetch(correlation_id: i32, topic: &str, plan: FetchPlan) -> Vec<u8> {
    let partitions = (0..plan.partition_count).map(|partition| FetchPartition {
        partition,
        fetch_offset: plan.from,
        partition_max_bytes: plan.bytes_max,
        ..FetchPartition::default()
    });
    let request = FetchRequest {
        max_wait_ms: plan.wait_ms_max,
        min_bytes: plan.bytes_min,
        max_bytes: plan.bytes_max,
        topics: vec![FetchTopic { topic, partitions: partitions.collect(), ..FetchTopic::default() }],
        ..FetchRequest::default()
    };
    frame(ApiKey::Fetch, 11, correlation_id, |writer| request.encode(writer, 11))
}

/// A fetch that waits for ten minutes where there is nothing.
pub fn long_poll(correlation_id: i32, topic: &str, partition_count: i32) -> Vec<u8> {
    let plan = FetchPlan { partition_count, from: 0, wait_ms_max: 600_000, bytes_min: 1, bytes_max: 1 << 20 };
    fetch(correlation_id, topic, plan)
}
