//! A member of a consumer group of KIP-848, one request at a time: it does what it is told, gives partitions up before it takes others,
//! and asks again where an answer is lost. Decides nothing about what it is told.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use ringlog_bench::client::connection::Connection;
use ringlog_bench::client::{Client, ClientError};
use ringlog_io::Io;
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::TopicId;
use ringlog_protocol::messages::consumer_group_describe::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse,
};
use ringlog_protocol::messages::consumer_group_heartbeat::{
    ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse, TopicPartitions,
};
use ringlog_protocol::messages::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic, OffsetCommitResponse,
};
use ringlog_protocol::messages::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse,
};
use ringlog_protocol::wire::{Int32Array, Reader, Writer};

use super::clients;
use super::member::{MemberError, Told, told};

/// How long a member may take to give partitions up.
pub const REBALANCE_MS: i32 = 20_000;
/// Longer than an assignment may take.
const WAIT: Duration = Duration::from_secs(30);

/// A partition of a topic.
pub type At = (TopicId, i32);

/// What a member was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    pub member: String,
    pub epoch: i32,
    pub heartbeat_interval_ms: i32,
    /// `None`: as before.
    pub assignment: Option<BTreeSet<At>>,
}

/// A request of a member, to be sent as often as one likes.
#[derive(Debug, Clone, Default)]
pub struct Beat {
    pub epoch: i32,
    /// All that a member can say, as it must where it joins or does not know what was heard.
    pub is_full: bool,
    pub owned: Option<BTreeSet<At>>,
}

/// A group as ConsumerGroupDescribe tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    pub state: String,
    pub epoch: i32,
    pub assignor: String,
    /// By member: its epoch, and how many partitions it has.
    pub members: BTreeMap<String, (i32, usize)>,
    /// Of members that speak the classic protocol.
    pub classic: usize,
}

/// See the module.
pub struct Consumer {
    pub io: Io,
    pub client: Client,
    connection: Rc<Connection>,
    pub group: String,
    pub id: String,
    pub instance: Option<String>,
    pub topics: Vec<&'static str>,
    /// Empty: none.
    pub regex: &'static str,
    /// 0: it is to join.
    pub epoch: i32,
    pub owned: BTreeSet<At>,
    /// Says all with the next heartbeat: it does not know whether the last one was heard.
    says_all: bool,
    /// What it owns is news to the group.
    says_owned: bool,
}

impl Consumer {
    /// With a connection of its own, once the group has a coordinator.
    pub async fn connect(io: &Io, host: IpAddr, group: &str, id: &str) -> Result<Consumer, ClientError> {
        let client = clients::connect(io, host).await?;
        client.coordinator(group).await?;
        let connection = client.any_connection().await?;
        Ok(Consumer {
            io: io.clone(),
            client,
            connection,
            group: group.to_owned(),
            id: id.to_owned(),
            instance: None,
            topics: vec![clients::TOPIC],
            regex: "",
            epoch: 0,
            owned: BTreeSet::new(),
            says_all: true,
            says_owned: true,
        })
    }

    /// Its next heartbeat.
    pub fn next_beat(&self) -> Beat {
        let is_full = self.epoch == 0 || self.says_all;
        let owned = Some(self.owned.clone()).filter(|_| is_full || self.says_owned);
        Beat { epoch: self.epoch, is_full, owned }
    }

    /// Sends a heartbeat, and does nothing about what it is told.
    pub async fn send(&self, beat: &Beat) -> Told<Standing> {
        let mut by_topic: BTreeMap<TopicId, Vec<i32>> = BTreeMap::new();
        for (topic, partition) in beat.owned.iter().flatten() {
            by_topic.entry(*topic).or_default().push(*partition);
        }
        let owned = by_topic.iter().map(|(topic, partitions)| TopicPartitions {
            topic_id: *topic,
            partitions: Int32Array::from(&partitions[..]),
        });
        let request = ConsumerGroupHeartbeatRequest {
            group_id: &self.group,
            member_id: &self.id,
            member_epoch: beat.epoch,
            instance_id: self.instance.as_deref(),
            rebalance_timeout_ms: if beat.is_full { REBALANCE_MS } else { -1 },
            subscribed_topic_names: beat.is_full.then(|| self.topics.clone()),
            subscribed_topic_regex: beat.is_full.then_some(self.regex),
            topic_partitions: beat.owned.is_some().then(|| owned.collect()),
            ..ConsumerGroupHeartbeatRequest::default()
        };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let api = ApiKey::ConsumerGroupHeartbeat;
        let body = self.connection.call(api, 1, WAIT, encode).await.map_err(MemberError::Client)?;
        let response = ConsumerGroupHeartbeatResponse::decode(&mut Reader::new(&body), 1).expect("an answer");
        told(response.error_code)?;
        let places = |topic: &TopicPartitions<'_>| {
            let id = topic.topic_id;
            topic.partitions.iter().map(|partition| (id, partition)).collect::<Vec<At>>()
        };
        let assignment = response.assignment.as_ref();
        Ok(Standing {
            member: response.member_id.unwrap_or_default().to_owned(),
            epoch: response.member_epoch,
            heartbeat_interval_ms: response.heartbeat_interval_ms,
            assignment: assignment.map(|given| given.topic_partitions.iter().flat_map(places).collect()),
        })
    }

    /// Sends its next heartbeat and does what it is told. `gives_up` hears what it stops using, before the group does.
    pub async fn beat(&mut self, gives_up: impl FnOnce(&BTreeSet<At>)) -> Told<Standing> {
        let beat = self.next_beat();
        let standing = match self.send(&beat).await {
            Ok(standing) => standing,
            Err(error) => {
                match error.code() {
                    Some(ErrorCode::FencedMemberEpoch | ErrorCode::UnknownMemberId) => {
                        gives_up(&self.owned);
                        self.begin_anew();
                    }
                    _ => self.says_all = true,
                }
                return Err(error);
            }
        };
        (self.epoch, self.says_all, self.says_owned) = (standing.epoch, false, false);
        if let Some(assignment) = &standing.assignment {
            gives_up(&self.owned.difference(assignment).copied().collect());
            self.says_owned = self.owned != *assignment;
            self.owned.clone_from(assignment);
        }
        Ok(standing)
    }

    /// It has nothing and is to join.
    pub fn begin_anew(&mut self) {
        self.owned.clear();
        (self.epoch, self.says_all) = (0, true);
    }

    /// Beats until it owns so many partitions and the group has heard of that.
    pub async fn own(&mut self, count: usize) -> Told<()> {
        loop {
            self.beat(|_| ()).await?;
            if self.owned.len() == count && !self.says_owned {
                return Ok(());
            }
            self.io.sleep(Duration::from_millis(100)).await;
        }
    }

    /// Leaves: -1 for ever, -2 for a while.
    pub async fn leave(&mut self, epoch: i32) -> Told<()> {
        self.send(&Beat { epoch, ..Beat::default() }).await?;
        self.begin_anew();
        Ok(())
    }

    /// Commits as a member in its epoch.
    pub async fn commit(&self, topic: &str, partition: i32, offset: i64) -> Told<()> {
        let partition = OffsetCommitRequestPartition {
            partition_index: partition,
            committed_offset: offset,
            committed_metadata: Some(""),
            ..OffsetCommitRequestPartition::default()
        };
        let topic = OffsetCommitRequestTopic {
            name: topic,
            partitions: vec![partition],
            ..OffsetCommitRequestTopic::default()
        };
        let request = OffsetCommitRequest {
            group_id: &self.group,
            generation_id_or_member_epoch: self.epoch,
            member_id: &self.id,
            topics: vec![topic],
            ..OffsetCommitRequest::default()
        };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let call = self.connection.call(ApiKey::OffsetCommit, 9, WAIT, encode);
        let body = call.await.map_err(MemberError::Client)?;
        let response = OffsetCommitResponse::decode(&mut Reader::new(&body), 9).expect("an answer");
        told(response.topics[0].partitions[0].error_code)
    }

    /// What the group is told of its offsets as this member: how many there are.
    pub async fn fetch_offsets(&self) -> Told<usize> {
        let group = OffsetFetchRequestGroup {
            group_id: &self.group,
            member_id: Some(&self.id),
            member_epoch: self.epoch,
            topics: None,
        };
        let request = OffsetFetchRequest { groups: vec![group], ..OffsetFetchRequest::default() };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let call = self.connection.call(ApiKey::OffsetFetch, 9, WAIT, encode);
        let body = call.await.map_err(MemberError::Client)?;
        let response = OffsetFetchResponse::decode(&mut Reader::new(&body), 9).expect("an answer");
        let group = &response.groups[0];
        told(group.error_code)?;
        Ok(group.topics.iter().map(|topic| topic.partitions.len()).sum())
    }

    /// Its group, as an operator sees it.
    pub async fn describe(&self) -> Told<Described> {
        let request = ConsumerGroupDescribeRequest {
            group_ids: vec![&self.group],
            include_authorized_operations: false,
        };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let call = self.connection.call(ApiKey::ConsumerGroupDescribe, 1, WAIT, encode);
        let body = call.await.map_err(MemberError::Client)?;
        let response = ConsumerGroupDescribeResponse::decode(&mut Reader::new(&body), 1).expect("an answer");
        let group = &response.groups[0];
        told(group.error_code)?;
        let members = group.members.iter().map(|member| {
            let has = member.assignment.topic_partitions.iter();
            let count = has.map(|topic| topic.partitions.iter().count()).sum();
            (member.member_id.to_owned(), (member.member_epoch, count))
        });
        Ok(Described {
            state: group.group_state.to_owned(),
            epoch: group.group_epoch,
            assignor: group.assignor_name.to_owned(),
            members: members.collect(),
            classic: group.members.iter().filter(|member| member.member_type == 0).count(),
        })
    }
}
