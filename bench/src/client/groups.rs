//! Consumer groups over [`Client`], as an operator sees them: which there are, who is in them, where they stand; and moving or deleting
//! their offsets. It joins no group.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::group::consumer_protocol::decode_assignment;
use ringlog_protocol::messages::consumer_group_describe::{
    ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse,
};
use ringlog_protocol::messages::delete_groups::{DeleteGroupsRequest, DeleteGroupsResponse};
use ringlog_protocol::messages::describe_groups::{DescribeGroupsRequest, DescribeGroupsResponse};
use ringlog_protocol::messages::find_coordinator::{FindCoordinatorRequest, FindCoordinatorResponse};
use ringlog_protocol::messages::list_groups::{ListGroupsRequest, ListGroupsResponse};
use ringlog_protocol::messages::offset_commit::{
    OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic, OffsetCommitResponse,
};
use ringlog_protocol::messages::offset_delete::{
    OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic, OffsetDeleteResponse,
};
use ringlog_protocol::messages::offset_fetch::{
    OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchResponse,
};
use ringlog_protocol::wire::{EncodeError, Reader, Writer};

use super::admin::{missing, refused_if, unreadable};
use super::cluster::{Client, Lane};
use super::connection::Connection;
use super::error::ClientError;

/// How long the broker may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Between two looks for a coordinator.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// From version 10 on offsets go by topic ids; names are what an operator has.
const OFFSETS_BY_NAME_MAX: i16 = 9;
/// From version 8 on OffsetFetch takes several groups.
const GROUPS_SINCE: i16 = 8;
/// From version 4 on FindCoordinator takes several keys.
const KEYS_SINCE: i16 = 4;
/// Of who is no member.
const NO_GENERATION: i32 = -1;

/// A topic and a partition of it.
pub type Place = (String, i32);

/// A group in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedGroup {
    /// Its name.
    pub id: String,
    /// Such as `consumer`; empty where it never had members.
    pub protocol_type: String,
    /// Such as `Stable`; empty from brokers that do not tell.
    pub state: String,
    /// `classic` or `consumer`; empty from brokers that do not tell.
    pub kind: String,
    /// The broker that holds it.
    pub coordinator: i32,
}

/// A group with its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedGroup {
    /// Its name.
    pub id: String,
    /// Such as `Stable`.
    pub state: String,
    /// `classic` or `consumer`.
    pub kind: &'static str,
    /// How partitions are shared out; empty where nothing is.
    pub assignor: String,
    /// The epoch of a consumer group.
    pub epoch: Option<i32>,
    /// Its members.
    pub members: Vec<GroupMember>,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupMember {
    /// The coordinator's name for it.
    pub id: String,
    /// Its own, where it is static.
    pub instance: Option<String>,
    /// Of its client.
    pub client_id: String,
    /// A slash and the address.
    pub client_host: String,
    /// What it owns.
    pub assignment: Vec<Place>,
}

/// A committed offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedOffset {
    /// Of the next record to consume.
    pub offset: i64,
    /// What the consumer left with it.
    pub metadata: String,
}

impl Client {
    /// The connection to the broker that holds the group. One that is still being found or loaded is waited for.
    ///
    /// # Errors
    /// The last error when none is found within the metadata timeout.
    pub async fn coordinator(&self, group: &str) -> Result<Rc<Connection>, ClientError> {
        let deadline = self.io().monotonic_now() + self.config().metadata_timeout;
        loop {
            match self.coordinator_once(group).await {
                Err(error) if error.is_retriable() && self.io().monotonic_now() < deadline => {
                    self.pause_until(RETRY_PAUSE, deadline).await;
                }
                result => return result,
            }
        }
    }

    async fn coordinator_once(&self, group: &str) -> Result<Rc<Connection>, ClientError> {
        let connection = self.any_connection().await?;
        let version = connection.version_among(ApiKey::FindCoordinator, FindCoordinatorRequest::VERSIONS)?;
        let mut request = FindCoordinatorRequest::default();
        if version >= KEYS_SINCE {
            request.coordinator_keys = vec![group];
        } else {
            request.key = group;
        }
        let body = call(&connection, ApiKey::FindCoordinator, version, |writer, version| {
            request.encode(writer, version)
        })
        .await?;
        let response = FindCoordinatorResponse::decode(&mut Reader::new(&body), version)
            .map_err(|source| unreadable(&connection, ApiKey::FindCoordinator, version, source))?;
        let subject = format!("group '{group}'");
        let (code, message, node_id) = if version >= KEYS_SINCE {
            let found = response.coordinators.iter().find(|found| found.key == group);
            let found = found.ok_or_else(|| missing(&connection, ApiKey::FindCoordinator, &subject))?;
            (found.error_code, found.error_message, found.node_id)
        } else {
            (response.error_code, response.error_message, response.node_id)
        };
        refused_if(&connection, ApiKey::FindCoordinator, &subject, code, message)?;
        let lane = Lane { node_id, number: 0 };
        match self.connection(lane).await {
            // Addresses are known from metadata only, which nobody asked for yet.
            Err(ClientError::NoLeader { .. }) => {
                self.metadata(Some(&[])).await?;
                self.connection(lane).await
            }
            result => result,
        }
    }

    /// All groups of all brokers, by name.
    ///
    /// # Errors
    /// The first broker's refusal or failed request.
    pub async fn groups(&self) -> Result<Vec<ListedGroup>, ClientError> {
        let mut groups = Vec::new();
        for node_id in self.metadata(Some(&[])).await?.brokers.into_keys() {
            let connection = self.connection(Lane { node_id, number: 0 }).await?;
            let version = connection.version_among(ApiKey::ListGroups, ListGroupsRequest::VERSIONS)?;
            let request = ListGroupsRequest::default();
            let body = call(&connection, ApiKey::ListGroups, version, |writer, version| {
                request.encode(writer, version)
            })
            .await?;
            let response = ListGroupsResponse::decode(&mut Reader::new(&body), version)
                .map_err(|source| unreadable(&connection, ApiKey::ListGroups, version, source))?;
            refused_if(&connection, ApiKey::ListGroups, "all groups", response.error_code, None)?;
            groups.extend(response.groups.iter().map(|group| ListedGroup {
                id: group.group_id.to_owned(),
                protocol_type: group.protocol_type.to_owned(),
                state: group.group_state.to_owned(),
                kind: group.group_type.to_owned(),
                coordinator: node_id,
            }));
        }
        groups.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(groups)
    }

    /// A group and its members, whichever protocol they speak.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with GROUP_ID_NOT_FOUND (69) where there is none, and failed requests.
    pub async fn describe_group(&self, group: &str) -> Result<DescribedGroup, ClientError> {
        let connection = self.coordinator(group).await?;
        if connection
            .version_among(ApiKey::ConsumerGroupDescribe, ConsumerGroupDescribeRequest::VERSIONS)
            .is_ok()
        {
            match describe_consumer(&connection, group).await {
                // Of the other protocol, or of none.
                Err(error) if error.code() == Some(ErrorCode::GroupIdNotFound) => {}
                result => return result,
            }
        }
        describe_classic(&connection, group).await
    }

    /// Where the group stands in each partition it ever committed.
    ///
    /// # Errors
    /// [`ClientError::Refused`] and failed requests.
    pub async fn group_offsets(&self, group: &str) -> Result<BTreeMap<Place, CommittedOffset>, ClientError> {
        let connection = self.coordinator(group).await?;
        let version = connection
            .version_among(ApiKey::OffsetFetch, OffsetFetchRequest::VERSIONS)?
            .min(OFFSETS_BY_NAME_MAX);
        let mut request = OffsetFetchRequest::default();
        if version >= GROUPS_SINCE {
            request.groups =
                vec![OffsetFetchRequestGroup { group_id: group, topics: None, ..Default::default() }];
        } else {
            request.group_id = group;
            request.topics = None;
        }
        let body = call(&connection, ApiKey::OffsetFetch, version, |writer, version| {
            request.encode(writer, version)
        })
        .await?;
        let response = OffsetFetchResponse::decode(&mut Reader::new(&body), version)
            .map_err(|source| unreadable(&connection, ApiKey::OffsetFetch, version, source))?;
        read_offsets(&connection, group, version, &response)
    }

    /// Commits these offsets for a group that has no members.
    ///
    /// # Errors
    /// The first partition's refusal, UNKNOWN_MEMBER_ID (25) where the group has members; what other partitions got stays.
    pub async fn commit_group_offsets(
        &self,
        group: &str,
        offsets: &BTreeMap<Place, i64>,
    ) -> Result<(), ClientError> {
        let connection = self.coordinator(group).await?;
        let version = connection
            .version_among(ApiKey::OffsetCommit, OffsetCommitRequest::VERSIONS)?
            .min(OFFSETS_BY_NAME_MAX);
        let mut by_topic: BTreeMap<&str, Vec<OffsetCommitRequestPartition<'_>>> = BTreeMap::new();
        for ((topic, partition), offset) in offsets {
            by_topic.entry(topic).or_default().push(OffsetCommitRequestPartition {
                partition_index: *partition,
                committed_offset: *offset,
                ..Default::default()
            });
        }
        let topics = by_topic.into_iter().map(|(name, partitions)| OffsetCommitRequestTopic {
            name,
            partitions,
            ..Default::default()
        });
        let request = OffsetCommitRequest {
            group_id: group,
            generation_id_or_member_epoch: NO_GENERATION,
            topics: topics.collect(),
            ..Default::default()
        };
        let body = call(&connection, ApiKey::OffsetCommit, version, |writer, version| {
            request.encode(writer, version)
        })
        .await?;
        let response = OffsetCommitResponse::decode(&mut Reader::new(&body), version)
            .map_err(|source| unreadable(&connection, ApiKey::OffsetCommit, version, source))?;
        for topic in &response.topics {
            for partition in &topic.partitions {
                let subject = place_of(group, topic.name, partition.partition_index);
                refused_if(&connection, ApiKey::OffsetCommit, subject, partition.error_code, None)?;
            }
        }
        Ok(())
    }

    /// Deletes a group without members, with its offsets.
    ///
    /// # Errors
    /// NON_EMPTY_GROUP (68), GROUP_ID_NOT_FOUND (69) and failed requests.
    pub async fn delete_group(&self, group: &str) -> Result<(), ClientError> {
        let connection = self.coordinator(group).await?;
        let version = connection.version_among(ApiKey::DeleteGroups, DeleteGroupsRequest::VERSIONS)?;
        let request = DeleteGroupsRequest { groups_names: vec![group] };
        let body = call(&connection, ApiKey::DeleteGroups, version, |writer, version| {
            request.encode(writer, version)
        })
        .await?;
        let response = DeleteGroupsResponse::decode(&mut Reader::new(&body), version)
            .map_err(|source| unreadable(&connection, ApiKey::DeleteGroups, version, source))?;
        let subject = format!("group '{group}'");
        let result = response.results.iter().find(|result| result.group_id == group);
        let result = result.ok_or_else(|| missing(&connection, ApiKey::DeleteGroups, &subject))?;
        refused_if(&connection, ApiKey::DeleteGroups, subject, result.error_code, result.error_message)
    }

    /// Forgets where the group stands in these partitions.
    ///
    /// # Errors
    /// GROUP_SUBSCRIBED_TO_TOPIC (86) for the first partition of a topic that members consume, and failed requests.
    pub async fn delete_group_offsets(&self, group: &str, places: &[Place]) -> Result<(), ClientError> {
        let connection = self.coordinator(group).await?;
        let version = connection.version_among(ApiKey::OffsetDelete, OffsetDeleteRequest::VERSIONS)?;
        let mut by_topic: BTreeMap<&str, Vec<OffsetDeleteRequestPartition>> = BTreeMap::new();
        for (topic, partition) in places {
            let partition = OffsetDeleteRequestPartition { partition_index: *partition };
            by_topic.entry(topic).or_default().push(partition);
        }
        let topics =
            by_topic.into_iter().map(|(name, partitions)| OffsetDeleteRequestTopic { name, partitions });
        let request = OffsetDeleteRequest { group_id: group, topics: topics.collect() };
        let body = call(&connection, ApiKey::OffsetDelete, version, |writer, version| {
            request.encode(writer, version)
        })
        .await?;
        let response = OffsetDeleteResponse::decode(&mut Reader::new(&body), version)
            .map_err(|source| unreadable(&connection, ApiKey::OffsetDelete, version, source))?;
        let subject = format!("group '{group}'");
        refused_if(&connection, ApiKey::OffsetDelete, subject, response.error_code, None)?;
        for topic in &response.topics {
            for partition in &topic.partitions {
                let subject = place_of(group, topic.name, partition.partition_index);
                refused_if(&connection, ApiKey::OffsetDelete, subject, partition.error_code, None)?;
            }
        }
        Ok(())
    }
}

async fn call(
    connection: &Connection,
    api: ApiKey,
    version: i16,
    encode: impl FnOnce(&mut Writer, i16) -> Result<(), EncodeError>,
) -> Result<Bytes, ClientError> {
    connection.call(api, version, TIMEOUT, encode).await
}

fn place_of(group: &str, topic: &str, partition: i32) -> String {
    format!("group '{group}' in partition {partition} of topic '{topic}'")
}

async fn describe_consumer(connection: &Connection, group: &str) -> Result<DescribedGroup, ClientError> {
    let api = ApiKey::ConsumerGroupDescribe;
    let version = connection.version_among(api, ConsumerGroupDescribeRequest::VERSIONS)?;
    let request = ConsumerGroupDescribeRequest { group_ids: vec![group], ..Default::default() };
    let body = call(connection, api, version, |writer, version| request.encode(writer, version)).await?;
    let response = ConsumerGroupDescribeResponse::decode(&mut Reader::new(&body), version)
        .map_err(|source| unreadable(connection, api, version, source))?;
    let subject = format!("group '{group}'");
    let found = response.groups.iter().find(|found| found.group_id == group);
    let found = found.ok_or_else(|| missing(connection, api, &subject))?;
    refused_if(connection, api, subject, found.error_code, found.error_message)?;
    let members = found.members.iter().map(|member| GroupMember {
        id: member.member_id.to_owned(),
        instance: member.instance_id.map(str::to_owned),
        client_id: member.client_id.to_owned(),
        client_host: member.client_host.to_owned(),
        assignment: member
            .assignment
            .topic_partitions
            .iter()
            .flat_map(|topic| topic.partitions.iter().map(|index| (topic.topic_name.to_owned(), index)))
            .collect(),
    });
    Ok(DescribedGroup {
        id: group.to_owned(),
        state: found.group_state.to_owned(),
        kind: "consumer",
        assignor: found.assignor_name.to_owned(),
        epoch: Some(found.group_epoch),
        members: members.collect(),
    })
}

async fn describe_classic(connection: &Connection, group: &str) -> Result<DescribedGroup, ClientError> {
    let api = ApiKey::DescribeGroups;
    let version = connection.version_among(api, DescribeGroupsRequest::VERSIONS)?;
    let request = DescribeGroupsRequest { groups: vec![group], ..Default::default() };
    let body = call(connection, api, version, |writer, version| request.encode(writer, version)).await?;
    let response = DescribeGroupsResponse::decode(&mut Reader::new(&body), version)
        .map_err(|source| unreadable(connection, api, version, source))?;
    let subject = format!("group '{group}'");
    let found = response.groups.iter().find(|found| found.group_id == group);
    let found = found.ok_or_else(|| missing(connection, api, &subject))?;
    refused_if(connection, api, &subject, found.error_code, found.error_message)?;
    // Below version 6 a group that does not exist is told as a dead one.
    if found.group_state == "Dead" {
        refused_if(connection, api, &subject, ErrorCode::GroupIdNotFound.code(), None)?;
    }
    let members = found.members.iter().map(|member| GroupMember {
        id: member.member_id.to_owned(),
        instance: member.group_instance_id.map(str::to_owned),
        client_id: member.client_id.to_owned(),
        client_host: member.client_host.to_owned(),
        assignment: places(member.member_assignment),
    });
    Ok(DescribedGroup {
        id: group.to_owned(),
        state: found.group_state.to_owned(),
        kind: "classic",
        assignor: found.protocol_data.to_owned(),
        epoch: None,
        members: members.collect(),
    })
}

/// Partitions in a classic member's assignment. Groups of other kinds, and members without one yet, own none.
fn places(assignment: &[u8]) -> Vec<Place> {
    let Ok(assignment) = decode_assignment(assignment) else { return Vec::new() };
    assignment
        .assigned_partitions
        .iter()
        .flat_map(|topic| topic.partitions.iter().map(|index| (topic.topic.to_owned(), index)))
        .collect()
}

fn read_offsets(
    connection: &Connection,
    group: &str,
    version: i16,
    response: &OffsetFetchResponse<'_>,
) -> Result<BTreeMap<Place, CommittedOffset>, ClientError> {
    let api = ApiKey::OffsetFetch;
    let subject = format!("group '{group}'");
    let mut offsets = BTreeMap::new();
    let mut keep = |topic: &str, index: i32, error: i16, offset: i64, metadata: Option<&str>| {
        refused_if(connection, api, place_of(group, topic, index), error, None)?;
        if offset >= 0 {
            let metadata = metadata.unwrap_or_default().to_owned();
            offsets.insert((topic.to_owned(), index), CommittedOffset { offset, metadata });
        }
        Ok(())
    };
    if version < GROUPS_SINCE {
        refused_if(connection, api, &subject, response.error_code, None)?;
        for topic in &response.topics {
            for told in &topic.partitions {
                keep(
                    topic.name,
                    told.partition_index,
                    told.error_code,
                    told.committed_offset,
                    told.metadata,
                )?;
            }
        }
        return Ok(offsets);
    }
    let found = response.groups.iter().find(|found| found.group_id == group);
    let found = found.ok_or_else(|| missing(connection, api, &subject))?;
    refused_if(connection, api, &subject, found.error_code, None)?;
    for topic in &found.topics {
        for told in &topic.partitions {
            keep(topic.name, told.partition_index, told.error_code, told.committed_offset, told.metadata)?;
        }
    }
    Ok(offsets)
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::api::VersionRange;

    use super::*;
    use crate::client::connection::common_version;

    /// What Apache Kafka 4.4 serves. Ours need not serve them for the command to work with Kafka.
    const KAFKA: [(VersionRange, VersionRange); 8] = [
        (FindCoordinatorRequest::VERSIONS, VersionRange { min: 0, max: 6 }),
        (ListGroupsRequest::VERSIONS, VersionRange { min: 0, max: 5 }),
        (DescribeGroupsRequest::VERSIONS, VersionRange { min: 0, max: 6 }),
        (ConsumerGroupDescribeRequest::VERSIONS, VersionRange { min: 0, max: 1 }),
        (OffsetFetchRequest::VERSIONS, VersionRange { min: 1, max: 10 }),
        (OffsetCommitRequest::VERSIONS, VersionRange { min: 2, max: 10 }),
        (DeleteGroupsRequest::VERSIONS, VersionRange { min: 0, max: 2 }),
        (OffsetDeleteRequest::VERSIONS, VersionRange { min: 0, max: 0 }),
    ];

    #[test]
    fn every_request_about_groups_has_a_version_that_kafka_serves() {
        for (ours, theirs) in KAFKA {
            assert_eq!(common_version(ours, Some(theirs)), Some(theirs.max));
        }
    }
}
