//! DescribeQuorum (API 55, KIP-595): who holds the metadata log, and how far each is.

use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::TopicId;
use ringlog_protocol::messages::describe_quorum::{
    DescribeQuorumRequest, DescribeQuorumResponse, Listener, Node, PartitionData, ReplicaState, TopicData,
};
use ringlog_raft::ids::ReplicaId;

use super::metadata::advertised;
use super::reply::reply;
use super::{Request, RequestError};
use crate::controller::METADATA_TOPIC_NAME;
use crate::core::Core;
use crate::core::messages::{CoreReply, CoreRequest};
use crate::core::quorum::QuorumState;
use crate::observe::stage::Stage;
use crate::server::Connection;
use crate::server::replies::Answer;

pub(super) async fn handle(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    request: Request,
) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = DescribeQuorumRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    if !asks_for_the_quorum(&asked) {
        let error = ErrorCode::UnknownTopicOrPartition;
        let response = of_others(&asked, error);
        return Ok(reply(info, error, 128, |writer, version| response.encode(writer, version)));
    }
    let state = match core.mesh.call(core.controller_core(), CoreRequest::Quorum).await {
        CoreReply::Quorum(state) => state,
        _ => unreachable!("a quorum is answered by a quorum"),
    };
    info.clock.mark(Stage::Queue, core.io.monotonic_now().as_nanos());
    let (host, port) = advertised(core, connection);
    let (error, response) = match &state {
        Ok(state) => (ErrorCode::None, of_quorum(core, state, &host, port, info.version)),
        Err(error) => (*error, of_others(&asked, *error)),
    };
    Ok(reply(info, error, 256, |writer, version| response.encode(writer, version)))
}

/// As Kafka takes it: the one partition that has a quorum, and nothing else.
fn asks_for_the_quorum(asked: &DescribeQuorumRequest<'_>) -> bool {
    match asked.topics.as_slice() {
        [topic] => {
            let is_only =
                matches!(topic.partitions.as_slice(), [partition] if partition.partition_index == 0);
            topic.topic_name == METADATA_TOPIC_NAME && is_only
        }
        _ => false,
    }
}

fn of_others<'a>(asked: &DescribeQuorumRequest<'a>, error: ErrorCode) -> DescribeQuorumResponse<'a> {
    let topics = asked.topics.iter().map(|topic| TopicData {
        topic_name: topic.topic_name,
        partitions: topic
            .partitions
            .iter()
            .map(|partition| PartitionData {
                partition_index: partition.partition_index,
                error_code: error.code(),
                ..PartitionData::default()
            })
            .collect(),
    });
    DescribeQuorumResponse { topics: topics.collect(), ..DescribeQuorumResponse::default() }
}

fn of_quorum<'a>(
    core: &Core,
    state: &QuorumState,
    host: &'a str,
    port: i32,
    version: i16,
) -> DescribeQuorumResponse<'a> {
    // Version 2 brought directories and nodes; before it they cannot be told.
    let tells_nodes = version >= 2;
    let replica = |replica: &ReplicaId| {
        let is_leader = *replica == core.me;
        ReplicaState {
            replica_id: replica.node.0,
            replica_directory_id: if tells_nodes { TopicId(replica.directory.0) } else { TopicId::ZERO },
            // Of itself alone the leader knows these; others report when replication of the controller is built.
            log_end_offset: if is_leader { state.log_end.0 } else { -1 },
            last_fetch_timestamp: if is_leader { state.now_ms } else { -1 },
            last_caught_up_timestamp: if is_leader { state.now_ms } else { -1 },
        }
    };
    let partition = PartitionData {
        partition_index: 0,
        leader_id: core.me.node.0,
        leader_epoch: state.leader_epoch.0,
        high_watermark: state.high_watermark.0,
        current_voters: state.voters.iter().map(replica).collect(),
        observers: state.observers.iter().map(replica).collect(),
        ..PartitionData::default()
    };
    let topic = TopicData { topic_name: METADATA_TOPIC_NAME, partitions: vec![partition] };
    // The controller has no listener of its own: this is where the node is reached.
    let listener = Listener { name: "PLAINTEXT", host, port: u16::try_from(port).unwrap_or(0) };
    let node = Node { node_id: core.me.node.0, listeners: vec![listener] };
    let nodes = if tells_nodes { vec![node] } else { Vec::new() };
    DescribeQuorumResponse { topics: vec![topic], nodes, ..DescribeQuorumResponse::default() }
}
