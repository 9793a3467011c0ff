//! A member of a consumer group, one request at a time, and the partitions that it is told to own. Decides nothing about what it is told.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use ringlog_bench::client::connection::Connection;
use ringlog_bench::client::{Client, ClientError};
use ringlog_io::Io;
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::heartbeat::{HeartbeatRequest, HeartbeatResponse};
use ringlog_protocol::messages::join_group::{JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse};
use ringlog_protocol::messages::leave_group::{LeaveGroupRequest, LeaveGroupResponse, MemberIdentity};
use ringlog_protocol::messages::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic, OffsetCommitResponse,
};
use ringlog_protocol::messages::sync_group::{
    SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse,
};
use ringlog_protocol::wire::{EncodeError, Reader, Writer};

use super::clients;

pub const SESSION_MS: i32 = 10_000;
/// Longer than a rebalance may take.
const WAIT: Duration = Duration::from_secs(120);

/// Of a test: an error code of the group, or of the connection.
#[derive(Debug)]
pub enum MemberError {
    Refused(ErrorCode),
    Client(ClientError),
}

impl MemberError {
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            MemberError::Refused(code) => Some(*code),
            MemberError::Client(_) => None,
        }
    }
}

pub type Told<T> = Result<T, MemberError>;

pub fn told(code: i16) -> Told<()> {
    match ErrorCode::from_i16(code) {
        Some(ErrorCode::None) => Ok(()),
        code => Err(MemberError::Refused(code.unwrap_or(ErrorCode::UnknownServerError))),
    }
}

/// See the module.
pub struct Member {
    pub io: Io,
    pub client: Client,
    pub connection: Rc<Connection>,
    pub group: String,
    /// Empty before the first join.
    pub id: String,
    pub generation: i32,
    /// Of the newest join; empty unless it leads.
    pub others: Vec<String>,
    /// What it says of itself when it joins.
    pub metadata: Vec<u8>,
}

impl Member {
    /// With a connection of its own, once the group has a coordinator.
    pub async fn connect(io: &Io, host: IpAddr, group: &str) -> Result<Member, ClientError> {
        let client = clients::connect(io, host).await?;
        client.coordinator(group).await?;
        let connection = client.any_connection().await?;
        let io = io.clone();
        Ok(Member {
            io,
            client,
            connection,
            group: group.to_owned(),
            id: String::new(),
            generation: -1,
            others: Vec::new(),
            metadata: b"any".to_vec(),
        })
    }

    async fn call<R>(
        &self,
        api: ApiKey,
        version: i16,
        encode: impl FnOnce(&mut Writer, i16) -> Result<(), EncodeError>,
        read: impl FnOnce(&mut Reader<'_>) -> R,
    ) -> Told<R> {
        let body = self.connection.call(api, version, WAIT, encode).await.map_err(MemberError::Client)?;
        Ok(read(&mut Reader::new(&body)))
    }

    /// Joins, twice where it is new.
    pub async fn join(&mut self) -> Told<()> {
        match self.join_once().await {
            Err(MemberError::Refused(ErrorCode::MemberIdRequired)) => self.join_once().await,
            result => result,
        }
    }

    async fn join_once(&mut self) -> Told<()> {
        let (group, id, metadata) = (self.group.clone(), self.id.clone(), self.metadata.clone());
        let request = JoinGroupRequest {
            group_id: &group,
            session_timeout_ms: SESSION_MS,
            rebalance_timeout_ms: SESSION_MS,
            member_id: &id,
            protocol_type: "consumer",
            protocols: vec![JoinGroupRequestProtocol { name: "range", metadata: &metadata }],
            ..JoinGroupRequest::default()
        };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let (error, generation, id, others) = self
            .call(ApiKey::JoinGroup, 5, encode, |reader| {
                let response = JoinGroupResponse::decode(reader, 5).expect("an answer");
                let others = response.members.iter().map(|member| member.member_id.to_owned());
                (response.error_code, response.generation_id, response.member_id.to_owned(), others.collect())
            })
            .await?;
        if error == 0 || error == ErrorCode::MemberIdRequired.code() {
            (self.id, self.generation, self.others) = (id, generation, others);
        }
        told(error)
    }

    /// Asks for its assignment, and brings those of all where it leads: partition `n` for the `n`th.
    pub async fn sync(&self) -> Told<Vec<u8>> {
        let parts: Vec<(String, Vec<u8>)> =
            (0u8..).zip(&self.others).map(|(number, member)| (member.clone(), vec![number])).collect();
        self.sync_with(parts).await
    }

    /// Asks for its assignment, and brings these.
    pub async fn sync_with(&self, parts: Vec<(String, Vec<u8>)>) -> Told<Vec<u8>> {
        let assignments = parts
            .iter()
            .map(|(member, assignment)| SyncGroupRequestAssignment { member_id: member, assignment });
        let request = SyncGroupRequest {
            group_id: &self.group,
            generation_id: self.generation,
            member_id: &self.id,
            assignments: assignments.collect(),
            ..SyncGroupRequest::default()
        };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let (error, assignment) = self
            .call(ApiKey::SyncGroup, 3, encode, |reader| {
                let response = SyncGroupResponse::decode(reader, 3).expect("an answer");
                (response.error_code, response.assignment.to_vec())
            })
            .await?;
        told(error).map(|()| assignment)
    }

    pub async fn heartbeat(&self) -> Told<()> {
        let request = HeartbeatRequest {
            group_id: &self.group,
            generation_id: self.generation,
            member_id: &self.id,
            ..HeartbeatRequest::default()
        };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let error = self
            .call(ApiKey::Heartbeat, 3, encode, |reader| {
                HeartbeatResponse::decode(reader, 3).expect("an answer").error_code
            })
            .await?;
        told(error)
    }

    pub async fn leave(&self) -> Told<()> {
        let request = LeaveGroupRequest {
            group_id: &self.group,
            members: vec![MemberIdentity { member_id: &self.id, ..MemberIdentity::default() }],
            ..LeaveGroupRequest::default()
        };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let error = self
            .call(ApiKey::LeaveGroup, 3, encode, |reader| {
                LeaveGroupResponse::decode(reader, 3).expect("an answer").error_code
            })
            .await?;
        told(error)
    }

    /// Commits as a member, or as nobody where it never joined.
    pub async fn commit(&self, topic: &str, partition: i32, offset: i64) -> Told<()> {
        self.commit_with(topic, partition, offset, "").await
    }

    /// As [`Member::commit`], with a text.
    pub async fn commit_with(&self, topic: &str, partition: i32, offset: i64, text: &str) -> Told<()> {
        self.commit_request(topic, &[partition], offset, text).await
    }

    /// One offset of several partitions in one request; the first error of any.
    pub async fn commit_all(&self, topic: &str, partitions: &[i32], offset: i64) -> Told<()> {
        self.commit_request(topic, partitions, offset, "").await
    }

    async fn commit_request(&self, topic: &str, partitions: &[i32], offset: i64, text: &str) -> Told<()> {
        let partitions = partitions.iter().map(|partition| OffsetCommitRequestPartition {
            partition_index: *partition,
            committed_offset: offset,
            committed_metadata: Some(text),
            ..OffsetCommitRequestPartition::default()
        });
        let topic = OffsetCommitRequestTopic {
            name: topic,
            partitions: partitions.collect(),
            ..OffsetCommitRequestTopic::default()
        };
        let request = OffsetCommitRequest {
            group_id: &self.group,
            generation_id_or_member_epoch: self.generation,
            member_id: &self.id,
            topics: vec![topic],
            ..OffsetCommitRequest::default()
        };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let error = self
            .call(ApiKey::OffsetCommit, 7, encode, |reader| {
                let response = OffsetCommitResponse::decode(reader, 7).expect("an answer");
                let mut errors = response.topics[0].partitions.iter().map(|partition| partition.error_code);
                errors.find(|error| *error != 0).unwrap_or(0)
            })
            .await?;
        told(error)
    }

    /// Joins until it owns something of this generation, however often others make it begin again.
    pub async fn own(&mut self) -> Told<Vec<u8>> {
        loop {
            self.join().await?;
            match self.sync().await {
                Err(MemberError::Refused(ErrorCode::RebalanceInProgress)) => {}
                result => return result,
            }
        }
    }
}
