//! The one table of APIs: key, name, versions, headers, and who may call. Every other list of APIs is derived from it.
//!
//! It names all of Kafka 4.4's keys, so that logs and metrics can name what they refuse, and says which are served. It
//! does not dispatch: handlers live in the broker.

use Flexible::{Never, Since};
use Operation::{Alter, Create, Delete, Describe, Read, Write};
use Resource::{Cluster, Group, Topic, TransactionalId};

/// An inclusive range of versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionRange {
    pub min: i16,
    pub max: i16,
}

impl VersionRange {
    /// Whether `version` lies within.
    #[must_use]
    pub fn contains(self, version: i16) -> bool {
        self.min <= version && version <= self.max
    }
}

/// From which version on an API uses compact lengths, tagged fields and the headers that go with them (KIP-482).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flexible {
    Since(i16),
    Never,
}

/// What an ACL must allow (KIP-11). The names are Kafka's `AclOperation`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    Create,
    Delete,
    Alter,
    Describe,
    ClusterAction,
    DescribeConfigs,
    AlterConfigs,
    IdempotentWrite,
}

/// On what an ACL must allow it. The names are Kafka's `ResourceType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    Topic,
    Group,
    Cluster,
    TransactionalId,
    DelegationToken,
    User,
}

/// The permission an API needs first. Handlers may need further ones, or take another in its place: `CreateTopics` also
/// takes `Create` on the topic, `InitProducerId` without a transactional id needs `IdempotentWrite` on the cluster or
/// `Write` on any topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permission {
    pub operation: Operation,
    pub resource: Resource,
}

/// Who may call an API. There is no default: an API cannot be served without saying it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Anyone who reached the port, before login too.
    Anyone,
    /// A principal that is logged in and has this permission.
    Needs(Permission),
}

/// How an API is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Versions that are executed.
    pub versions: VersionRange,
    /// Versions that `ApiVersions` lists: more than [`Served::versions`] only for Produce, whose versions 0-2 are answered
    /// with `UNSUPPORTED_VERSION`. librdkafka turns compression off in silence where the lowest listed version is above 0
    /// (KAFKA-18659).
    pub advertised: VersionRange,
    /// Who may call.
    pub access: Access,
}

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Api {
    pub key: ApiKey,
    /// Kafka's name, such as `ListOffsets`.
    pub name: &'static str,
    pub flexible: Flexible,
    /// `None`: not served, whether [`crate::messages::DEFINED`] or not. Such requests close the connection, as requests of
    /// unknown keys do.
    pub served: Option<Served>,
}

impl Api {
    /// Whether `version` has compact lengths and tagged fields.
    #[must_use]
    pub fn is_flexible(&self, version: i16) -> bool {
        match self.flexible {
            Since(first) => version >= first,
            Never => false,
        }
    }

    /// The version of the request's header: 1, or 2 with tagged fields. (Header 0 died with `ControlledShutdown` v0.)
    #[must_use]
    pub fn request_header_version(&self, version: i16) -> i16 {
        if self.is_flexible(version) { 2 } else { 1 }
    }

    /// The version of the response's header: 0, or 1 with tagged fields. That of `ApiVersions` is always 0, because a client
    /// reads it before it knows what the broker can do (KIP-511).
    #[must_use]
    pub fn response_header_version(&self, version: i16) -> i16 {
        if self.key != ApiKey::ApiVersions && self.is_flexible(version) { 1 } else { 0 }
    }
}

macro_rules! apis {
    ($($variant:ident = $key:literal, $flexible:expr, $served:expr;)*) => {
        /// Every API key of Kafka 4.4, those without any version left (4-7) included.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i16)]
        pub enum ApiKey {
            $($variant = $key,)*
        }

        /// The table, by rising key without gaps.
        const APIS: &[Api] = &[
            $(Api { key: ApiKey::$variant, name: stringify!($variant), flexible: $flexible, served: $served },)*
        ];
    };
}

impl ApiKey {
    /// The key of this number; `None` for one that Kafka 4.4 does not have.
    #[must_use]
    pub fn from_i16(key: i16) -> Option<ApiKey> {
        let index = usize::try_from(key).ok()?;
        APIS.get(index).map(|api| api.key)
    }

    /// The number on the wire.
    #[must_use]
    pub fn key(self) -> i16 {
        self as i16
    }

    /// The API's row.
    #[must_use]
    pub fn api(self) -> &'static Api {
        // The table is without gaps (a test says so), so the key is the index.
        &APIS[self as usize]
    }

    /// Kafka's name, such as `ListOffsets`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.api().name
    }
}

impl std::fmt::Display for ApiKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Every row, served or not, by rising key.
#[must_use]
pub fn all() -> &'static [Api] {
    APIS
}

/// The rows that are served, by rising key: what `ApiVersions` lists.
pub fn served() -> impl Iterator<Item = (&'static Api, Served)> {
    APIS.iter().filter_map(|api| api.served.map(|served| (api, served)))
}

const NOT_SERVED: Option<Served> = None;

const fn range(min: i16, max: i16) -> VersionRange {
    VersionRange { min, max }
}

const fn anyone(versions: VersionRange) -> Option<Served> {
    Some(Served { versions, advertised: versions, access: Access::Anyone })
}

const fn needs(operation: Operation, resource: Resource, versions: VersionRange) -> Option<Served> {
    needs_advertised(operation, resource, versions, versions)
}

const fn needs_advertised(
    operation: Operation,
    resource: Resource,
    versions: VersionRange,
    advertised: VersionRange,
) -> Option<Served> {
    Some(Served { versions, advertised, access: Access::Needs(Permission { operation, resource }) })
}

apis! {
    Produce = 0, Since(9), needs_advertised(Write, Topic, range(3, 13), range(0, 13));
    Fetch = 1, Since(12), needs(Read, Topic, range(4, 18));
    ListOffsets = 2, Since(6), needs(Describe, Topic, range(1, 11));
    Metadata = 3, Since(9), needs(Describe, Topic, range(0, 13));
    LeaderAndIsr = 4, Never, NOT_SERVED;
    StopReplica = 5, Never, NOT_SERVED;
    UpdateMetadata = 6, Never, NOT_SERVED;
    ControlledShutdown = 7, Never, NOT_SERVED;
    OffsetCommit = 8, Since(8), needs(Read, Group, range(2, 10));
    OffsetFetch = 9, Since(6), needs(Describe, Group, range(1, 10));
    FindCoordinator = 10, Since(3), needs(Describe, Group, range(0, 6));
    JoinGroup = 11, Since(6), needs(Read, Group, range(0, 9));
    Heartbeat = 12, Since(4), needs(Read, Group, range(0, 4));
    LeaveGroup = 13, Since(4), needs(Read, Group, range(0, 5));
    SyncGroup = 14, Since(4), needs(Read, Group, range(0, 5));
    DescribeGroups = 15, Since(5), needs(Describe, Group, range(0, 6));
    ListGroups = 16, Since(3), needs(Describe, Cluster, range(0, 5));
    SaslHandshake = 17, Never, NOT_SERVED;
    ApiVersions = 18, Since(3), anyone(range(0, 5));
    CreateTopics = 19, Since(5), needs(Create, Cluster, range(2, 7));
    DeleteTopics = 20, Since(4), needs(Delete, Topic, range(1, 6));
    DeleteRecords = 21, Since(2), needs(Delete, Topic, range(0, 2));
    InitProducerId = 22, Since(2), needs(Write, TransactionalId, range(0, 5));
    OffsetForLeaderEpoch = 23, Since(4), needs(Describe, Topic, range(2, 4));
    AddPartitionsToTxn = 24, Since(3), NOT_SERVED;
    AddOffsetsToTxn = 25, Since(3), NOT_SERVED;
    EndTxn = 26, Since(3), NOT_SERVED;
    WriteTxnMarkers = 27, Since(1), NOT_SERVED;
    TxnOffsetCommit = 28, Since(3), NOT_SERVED;
    DescribeAcls = 29, Since(2), NOT_SERVED;
    CreateAcls = 30, Since(2), NOT_SERVED;
    DeleteAcls = 31, Since(2), NOT_SERVED;
    DescribeConfigs = 32, Since(4), needs(Operation::DescribeConfigs, Cluster, range(1, 4));
    AlterConfigs = 33, Since(2), needs(Operation::AlterConfigs, Cluster, range(0, 2));
    AlterReplicaLogDirs = 34, Since(2), NOT_SERVED;
    DescribeLogDirs = 35, Since(2), needs(Describe, Cluster, range(1, 5));
    SaslAuthenticate = 36, Since(2), NOT_SERVED;
    CreatePartitions = 37, Since(2), needs(Alter, Topic, range(0, 3));
    CreateDelegationToken = 38, Since(2), NOT_SERVED;
    RenewDelegationToken = 39, Since(2), NOT_SERVED;
    ExpireDelegationToken = 40, Since(2), NOT_SERVED;
    DescribeDelegationToken = 41, Since(2), NOT_SERVED;
    DeleteGroups = 42, Since(2), needs(Delete, Group, range(0, 2));
    ElectLeaders = 43, Since(2), NOT_SERVED;
    IncrementalAlterConfigs = 44, Since(1), needs(Operation::AlterConfigs, Cluster, range(0, 1));
    AlterPartitionReassignments = 45, Since(0), NOT_SERVED;
    ListPartitionReassignments = 46, Since(0), NOT_SERVED;
    OffsetDelete = 47, Never, needs(Delete, Group, range(0, 0));
    DescribeClientQuotas = 48, Since(1), NOT_SERVED;
    AlterClientQuotas = 49, Since(1), NOT_SERVED;
    DescribeUserScramCredentials = 50, Since(0), NOT_SERVED;
    AlterUserScramCredentials = 51, Since(0), NOT_SERVED;
    Vote = 52, Since(0), NOT_SERVED;
    BeginQuorumEpoch = 53, Since(1), NOT_SERVED;
    EndQuorumEpoch = 54, Since(1), NOT_SERVED;
    DescribeQuorum = 55, Since(0), needs(Describe, Cluster, range(0, 2));
    AlterPartition = 56, Since(2), NOT_SERVED;
    UpdateFeatures = 57, Since(0), needs(Alter, Cluster, range(0, 2));
    Envelope = 58, Since(0), NOT_SERVED;
    FetchSnapshot = 59, Since(0), NOT_SERVED;
    DescribeCluster = 60, Since(0), NOT_SERVED;
    DescribeProducers = 61, Since(0), NOT_SERVED;
    BrokerRegistration = 62, Since(0), NOT_SERVED;
    BrokerHeartbeat = 63, Since(0), NOT_SERVED;
    UnregisterBroker = 64, Since(0), NOT_SERVED;
    DescribeTransactions = 65, Since(0), NOT_SERVED;
    ListTransactions = 66, Since(0), NOT_SERVED;
    AllocateProducerIds = 67, Since(0), NOT_SERVED;
    ConsumerGroupHeartbeat = 68, Since(0), needs(Read, Group, range(0, 1));
    ConsumerGroupDescribe = 69, Since(0), needs(Describe, Group, range(0, 1));
    ControllerRegistration = 70, Since(0), NOT_SERVED;
    GetTelemetrySubscriptions = 71, Since(0), NOT_SERVED;
    PushTelemetry = 72, Since(0), NOT_SERVED;
    AssignReplicasToDirs = 73, Since(0), NOT_SERVED;
    ListConfigResources = 74, Since(0), needs(Operation::DescribeConfigs, Cluster, range(0, 1));
    DescribeTopicPartitions = 75, Since(0), needs(Describe, Topic, range(0, 0));
    ShareGroupHeartbeat = 76, Since(1), NOT_SERVED;
    ShareGroupDescribe = 77, Since(1), NOT_SERVED;
    ShareFetch = 78, Since(1), NOT_SERVED;
    ShareAcknowledge = 79, Since(1), NOT_SERVED;
    AddRaftVoter = 80, Since(0), NOT_SERVED;
    RemoveRaftVoter = 81, Since(0), NOT_SERVED;
    UpdateRaftVoter = 82, Since(0), NOT_SERVED;
    InitializeShareGroupState = 83, Since(0), NOT_SERVED;
    ReadShareGroupState = 84, Since(0), NOT_SERVED;
    WriteShareGroupState = 85, Since(0), NOT_SERVED;
    DeleteShareGroupState = 86, Since(0), NOT_SERVED;
    ReadShareGroupStateSummary = 87, Since(0), NOT_SERVED;
    StreamsGroupHeartbeat = 88, Since(0), NOT_SERVED;
    StreamsGroupDescribe = 89, Since(0), NOT_SERVED;
    DescribeShareGroupOffsets = 90, Since(0), NOT_SERVED;
    AlterShareGroupOffsets = 91, Since(0), NOT_SERVED;
    DeleteShareGroupOffsets = 92, Since(0), NOT_SERVED;
    StreamsGroupTopologyDescriptionUpdate = 93, Since(0), NOT_SERVED;
    UnregisterController = 94, Since(0), NOT_SERVED;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::DEFINED;

    #[test]
    fn the_table_has_no_gaps() {
        assert_eq!(APIS.len(), 95);
        for (index, api) in APIS.iter().enumerate() {
            assert_eq!(usize::try_from(api.key.key()), Ok(index));
            assert_eq!(ApiKey::from_i16(api.key.key()), Some(api.key));
            assert_eq!(api.key.api(), api);
        }
        for key in [-1, 95, 9_999, i16::MAX, i16::MIN] {
            assert_eq!(ApiKey::from_i16(key), None);
        }
    }

    #[test]
    fn what_is_advertised_is_served_and_produce_is_the_only_exception() {
        for (api, served) in served() {
            if api.key == ApiKey::Produce {
                assert_eq!(served.advertised, range(0, 13));
                assert_eq!(served.versions, range(3, 13));
            } else {
                assert_eq!(served.advertised, served.versions, "{}", api.name);
            }
            assert!(served.versions.min >= 0 && served.versions.min <= served.versions.max);
        }
    }

    #[test]
    fn what_is_served_is_defined() {
        for (api, served) in served() {
            let (_, defined) = *DEFINED.iter().find(|(key, _)| *key == api.key).expect("it is defined");
            let (served, advertised) = (served.versions, served.advertised);
            assert!(defined.contains(served.min) && defined.contains(served.max), "{}", api.name);
            assert!(defined.contains(advertised.min) && defined.contains(advertised.max), "{}", api.name);
        }
    }

    #[test]
    fn only_the_handshake_is_open_before_login() {
        let open: Vec<_> =
            served().filter(|(_, s)| s.access == Access::Anyone).map(|(api, _)| api.key).collect();
        assert_eq!(open, [ApiKey::ApiVersions]);
    }

    #[test]
    fn the_response_header_of_api_versions_is_always_version_0() {
        let api = ApiKey::ApiVersions.api();
        for version in 0..=5 {
            assert_eq!(api.response_header_version(version), 0);
        }
        assert_eq!(api.request_header_version(3), 2);
        assert_eq!(ApiKey::Fetch.api().response_header_version(12), 1);
        assert_eq!(ApiKey::Fetch.api().response_header_version(11), 0);
    }

    #[test]
    fn headers_agree_with_the_oracle_crate() {
        for (key, versions) in DEFINED {
            let api = key.api();
            let theirs =
                kafka_protocol::messages::ApiKey::try_from(key.key()).expect("the crate knows the key");
            for version in versions.min..=versions.max {
                assert_eq!(
                    api.request_header_version(version),
                    theirs.request_header_version(version),
                    "{}",
                    api.name
                );
                assert_eq!(
                    api.response_header_version(version),
                    theirs.response_header_version(version),
                    "{}",
                    api.name
                );
            }
        }
    }
}
