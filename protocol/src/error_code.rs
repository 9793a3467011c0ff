//! Kafka's error codes: numbers, names and whether a client retries, as of Kafka 4.4 (`Errors`).
//!
//! The numbers are part of the protocol and never change. Which of our errors becomes which code is not decided here.

/// Whether clients try again after an error. Kafka decides it by the class of the code's exception.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retry {
    Retriable,
    Final,
}

macro_rules! error_codes {
    ($($variant:ident = $code:literal, $name:literal, $retry:ident, $text:literal;)*) => {
        /// A code that Kafka's protocol defines.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(i16)]
        pub enum ErrorCode {
            $(
                #[doc = concat!("`", $name, "`: ", $text, ".")]
                $variant = $code,
            )*
        }

        impl ErrorCode {
            /// Every code, by rising number.
            pub const ALL: &[ErrorCode] = &[$(ErrorCode::$variant),*];

            /// The code of this number; `None` where Kafka 4.4 defines none.
            #[must_use]
            pub fn from_i16(code: i16) -> Option<ErrorCode> {
                match code {
                    $($code => Some(ErrorCode::$variant),)*
                    _ => None,
                }
            }

            /// Kafka's name, such as `UNKNOWN_TOPIC_OR_PARTITION`.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(ErrorCode::$variant => $name,)*
                }
            }

            /// One sentence for people, lowercase, without a full stop.
            #[must_use]
            pub fn message(self) -> &'static str {
                match self {
                    $(ErrorCode::$variant => $text,)*
                }
            }

            fn retry(self) -> Retry {
                match self {
                    $(ErrorCode::$variant => Retry::$retry,)*
                }
            }
        }
    };
}

impl ErrorCode {
    /// The number on the wire.
    #[must_use]
    pub fn code(self) -> i16 {
        self as i16
    }

    /// Whether clients try again by themselves.
    #[must_use]
    pub fn is_retriable(self) -> bool {
        self.retry() == Retry::Retriable
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.name(), self.code())
    }
}

error_codes! {
    UnknownServerError = -1, "UNKNOWN_SERVER_ERROR", Final, "the broker hit an error it has no code for";
    None = 0, "NONE", Final, "no error";
    OffsetOutOfRange = 1, "OFFSET_OUT_OF_RANGE", Final, "the offset lies outside the range of this log";
    CorruptMessage = 2, "CORRUPT_MESSAGE", Retriable, "the batch is damaged: its checksum or its structure is wrong";
    UnknownTopicOrPartition = 3, "UNKNOWN_TOPIC_OR_PARTITION", Retriable, "no such topic or partition here";
    InvalidFetchSize = 4, "INVALID_FETCH_SIZE", Final, "the fetch size is not valid";
    LeaderNotAvailable = 5, "LEADER_NOT_AVAILABLE", Retriable, "the partition has no leader at the moment";
    NotLeaderOrFollower = 6, "NOT_LEADER_OR_FOLLOWER", Retriable, "this broker is not the leader, or not a replica, of the partition";
    RequestTimedOut = 7, "REQUEST_TIMED_OUT", Retriable, "the request did not finish in its time";
    BrokerNotAvailable = 8, "BROKER_NOT_AVAILABLE", Final, "the broker is not available";
    ReplicaNotAvailable = 9, "REPLICA_NOT_AVAILABLE", Retriable, "the replica is not available";
    MessageTooLarge = 10, "MESSAGE_TOO_LARGE", Final, "the batch is larger than the topic takes";
    StaleControllerEpoch = 11, "STALE_CONTROLLER_EPOCH", Final, "the controller epoch is out of date";
    OffsetMetadataTooLarge = 12, "OFFSET_METADATA_TOO_LARGE", Final, "the metadata of the committed offset is too long";
    NetworkException = 13, "NETWORK_EXCEPTION", Retriable, "the connection was lost before the answer came";
    CoordinatorLoadInProgress = 14, "COORDINATOR_LOAD_IN_PROGRESS", Retriable, "the coordinator is still loading its state";
    CoordinatorNotAvailable = 15, "COORDINATOR_NOT_AVAILABLE", Retriable, "there is no coordinator at the moment";
    NotCoordinator = 16, "NOT_COORDINATOR", Retriable, "this broker is not the coordinator";
    InvalidTopicException = 17, "INVALID_TOPIC_EXCEPTION", Final, "the topic name or the operation on this topic is not allowed";
    RecordListTooLarge = 18, "RECORD_LIST_TOO_LARGE", Final, "the batches are larger than a segment";
    NotEnoughReplicas = 19, "NOT_ENOUGH_REPLICAS", Retriable, "too few replicas are in sync to accept the records";
    NotEnoughReplicasAfterAppend = 20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", Retriable, "the records were appended, but too few replicas hold them";
    InvalidRequiredAcks = 21, "INVALID_REQUIRED_ACKS", Final, "acks must be -1, 0 or 1";
    IllegalGeneration = 22, "ILLEGAL_GENERATION", Final, "the generation is not the group's present one";
    InconsistentGroupProtocol = 23, "INCONSISTENT_GROUP_PROTOCOL", Final, "the member has no protocol in common with its group";
    InvalidGroupId = 24, "INVALID_GROUP_ID", Final, "the group id is not valid";
    UnknownMemberId = 25, "UNKNOWN_MEMBER_ID", Final, "the group does not know this member";
    InvalidSessionTimeout = 26, "INVALID_SESSION_TIMEOUT", Final, "the session timeout lies outside the range the broker allows";
    RebalanceInProgress = 27, "REBALANCE_IN_PROGRESS", Final, "the group is rebalancing: join again";
    InvalidCommitOffsetSize = 28, "INVALID_COMMIT_OFFSET_SIZE", Final, "the offsets to be committed are too large";
    TopicAuthorizationFailed = 29, "TOPIC_AUTHORIZATION_FAILED", Final, "not authorised for this topic";
    GroupAuthorizationFailed = 30, "GROUP_AUTHORIZATION_FAILED", Final, "not authorised for this group";
    ClusterAuthorizationFailed = 31, "CLUSTER_AUTHORIZATION_FAILED", Final, "not authorised for this cluster";
    InvalidTimestamp = 32, "INVALID_TIMESTAMP", Final, "the timestamp lies outside the range the topic allows";
    UnsupportedSaslMechanism = 33, "UNSUPPORTED_SASL_MECHANISM", Final, "the broker does not offer this SASL mechanism";
    IllegalSaslState = 34, "ILLEGAL_SASL_STATE", Final, "the request does not fit the state of the SASL exchange";
    UnsupportedVersion = 35, "UNSUPPORTED_VERSION", Final, "the broker does not serve this version of the API";
    TopicAlreadyExists = 36, "TOPIC_ALREADY_EXISTS", Final, "a topic of this name exists";
    InvalidPartitions = 37, "INVALID_PARTITIONS", Final, "the number of partitions is not valid";
    InvalidReplicationFactor = 38, "INVALID_REPLICATION_FACTOR", Final, "the replication factor is not valid for this cluster";
    InvalidReplicaAssignment = 39, "INVALID_REPLICA_ASSIGNMENT", Final, "the assignment of replicas is not valid";
    InvalidConfig = 40, "INVALID_CONFIG", Final, "the configuration is not valid";
    NotController = 41, "NOT_CONTROLLER", Retriable, "this broker is not the controller";
    InvalidRequest = 42, "INVALID_REQUEST", Final, "the request is malformed or asks for what this broker cannot do";
    UnsupportedForMessageFormat = 43, "UNSUPPORTED_FOR_MESSAGE_FORMAT", Final, "the message format does not allow this";
    PolicyViolation = 44, "POLICY_VIOLATION", Final, "a policy of this cluster or topic forbids it";
    OutOfOrderSequenceNumber = 45, "OUT_OF_ORDER_SEQUENCE_NUMBER", Final, "the sequence number does not follow the last one";
    DuplicateSequenceNumber = 46, "DUPLICATE_SEQUENCE_NUMBER", Final, "the sequence number was seen before";
    InvalidProducerEpoch = 47, "INVALID_PRODUCER_EPOCH", Final, "the producer epoch is out of date";
    InvalidTxnState = 48, "INVALID_TXN_STATE", Final, "the transaction is in a state that does not allow this";
    InvalidProducerIdMapping = 49, "INVALID_PRODUCER_ID_MAPPING", Final, "the producer id is not the one of this transactional id";
    InvalidTransactionTimeout = 50, "INVALID_TRANSACTION_TIMEOUT", Final, "the transaction timeout is larger than the broker allows";
    ConcurrentTransactions = 51, "CONCURRENT_TRANSACTIONS", Retriable, "another operation on this transaction is under way";
    TransactionCoordinatorFenced = 52, "TRANSACTION_COORDINATOR_FENCED", Final, "the transaction coordinator was replaced by a newer one";
    TransactionalIdAuthorizationFailed = 53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", Final, "not authorised for this transactional id";
    SecurityDisabled = 54, "SECURITY_DISABLED", Final, "security is switched off here";
    OperationNotAttempted = 55, "OPERATION_NOT_ATTEMPTED", Final, "not attempted, because another part of the request failed";
    KafkaStorageError = 56, "KAFKA_STORAGE_ERROR", Retriable, "the disk failed while the log was used";
    LogDirNotFound = 57, "LOG_DIR_NOT_FOUND", Final, "no such log directory on this broker";
    SaslAuthenticationFailed = 58, "SASL_AUTHENTICATION_FAILED", Final, "authentication failed";
    UnknownProducerId = 59, "UNKNOWN_PRODUCER_ID", Final, "the broker knows nothing of this producer id";
    ReassignmentInProgress = 60, "REASSIGNMENT_IN_PROGRESS", Final, "a reassignment of this partition is under way";
    DelegationTokenAuthDisabled = 61, "DELEGATION_TOKEN_AUTH_DISABLED", Final, "delegation tokens are switched off";
    DelegationTokenNotFound = 62, "DELEGATION_TOKEN_NOT_FOUND", Final, "no such delegation token";
    DelegationTokenOwnerMismatch = 63, "DELEGATION_TOKEN_OWNER_MISMATCH", Final, "the principal may not own or renew this token";
    DelegationTokenRequestNotAllowed = 64, "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED", Final, "delegation tokens cannot be asked for over this connection";
    DelegationTokenAuthorizationFailed = 65, "DELEGATION_TOKEN_AUTHORIZATION_FAILED", Final, "not authorised for this delegation token";
    DelegationTokenExpired = 66, "DELEGATION_TOKEN_EXPIRED", Final, "the delegation token has expired";
    InvalidPrincipalType = 67, "INVALID_PRINCIPAL_TYPE", Final, "the principal type is not supported";
    NonEmptyGroup = 68, "NON_EMPTY_GROUP", Final, "the group has members";
    GroupIdNotFound = 69, "GROUP_ID_NOT_FOUND", Final, "no such group";
    FetchSessionIdNotFound = 70, "FETCH_SESSION_ID_NOT_FOUND", Retriable, "no such fetch session";
    InvalidFetchSessionEpoch = 71, "INVALID_FETCH_SESSION_EPOCH", Retriable, "the epoch of the fetch session is not the next one";
    ListenerNotFound = 72, "LISTENER_NOT_FOUND", Retriable, "the leader has no listener of this name";
    TopicDeletionDisabled = 73, "TOPIC_DELETION_DISABLED", Final, "topics cannot be deleted here";
    FencedLeaderEpoch = 74, "FENCED_LEADER_EPOCH", Retriable, "the leader epoch is older than the broker's";
    UnknownLeaderEpoch = 75, "UNKNOWN_LEADER_EPOCH", Retriable, "the leader epoch is newer than the broker's";
    UnsupportedCompressionType = 76, "UNSUPPORTED_COMPRESSION_TYPE", Final, "the client's version does not know the compression of this data";
    StaleBrokerEpoch = 77, "STALE_BROKER_EPOCH", Final, "the broker epoch is out of date";
    OffsetNotAvailable = 78, "OFFSET_NOT_AVAILABLE", Retriable, "the leader is new and does not know its high watermark yet";
    MemberIdRequired = 79, "MEMBER_ID_REQUIRED", Final, "join again with the member id given";
    PreferredLeaderNotAvailable = 80, "PREFERRED_LEADER_NOT_AVAILABLE", Retriable, "the preferred leader is not available";
    GroupMaxSizeReached = 81, "GROUP_MAX_SIZE_REACHED", Final, "the group is full";
    FencedInstanceId = 82, "FENCED_INSTANCE_ID", Final, "another member took over this group instance id";
    EligibleLeadersNotAvailable = 83, "ELIGIBLE_LEADERS_NOT_AVAILABLE", Retriable, "no replica that may lead is available";
    ElectionNotNeeded = 84, "ELECTION_NOT_NEEDED", Retriable, "the partition has the leader it should have";
    NoReassignmentInProgress = 85, "NO_REASSIGNMENT_IN_PROGRESS", Final, "no reassignment is under way";
    GroupSubscribedToTopic = 86, "GROUP_SUBSCRIBED_TO_TOPIC", Final, "a member of the group is subscribed to the topic";
    InvalidRecord = 87, "INVALID_RECORD", Final, "the record failed validation";
    UnstableOffsetCommit = 88, "UNSTABLE_OFFSET_COMMIT", Retriable, "offsets of an open transaction are pending";
    ThrottlingQuotaExceeded = 89, "THROTTLING_QUOTA_EXCEEDED", Retriable, "a quota is used up";
    ProducerFenced = 90, "PRODUCER_FENCED", Final, "a newer producer took over this transactional id";
    ResourceNotFound = 91, "RESOURCE_NOT_FOUND", Final, "no such resource";
    DuplicateResource = 92, "DUPLICATE_RESOURCE", Final, "the resource is named twice";
    UnacceptableCredential = 93, "UNACCEPTABLE_CREDENTIAL", Final, "the credential is too weak or otherwise not acceptable";
    InconsistentVoterSet = 94, "INCONSISTENT_VOTER_SET", Final, "the voters do not match the quorum's";
    InvalidUpdateVersion = 95, "INVALID_UPDATE_VERSION", Final, "the update version is not valid";
    FeatureUpdateFailed = 96, "FEATURE_UPDATE_FAILED", Final, "the feature could not be updated";
    PrincipalDeserializationFailure = 97, "PRINCIPAL_DESERIALIZATION_FAILURE", Final, "the forwarded principal could not be read";
    SnapshotNotFound = 98, "SNAPSHOT_NOT_FOUND", Final, "no such snapshot";
    PositionOutOfRange = 99, "POSITION_OUT_OF_RANGE", Final, "the position lies outside the snapshot";
    UnknownTopicId = 100, "UNKNOWN_TOPIC_ID", Retriable, "no topic of this id here";
    DuplicateBrokerRegistration = 101, "DUPLICATE_BROKER_REGISTRATION", Final, "a broker of this id is registered";
    BrokerIdNotRegistered = 102, "BROKER_ID_NOT_REGISTERED", Final, "no broker of this id is registered";
    InconsistentTopicId = 103, "INCONSISTENT_TOPIC_ID", Retriable, "the topic id is not the one of this log";
    InconsistentClusterId = 104, "INCONSISTENT_CLUSTER_ID", Final, "the cluster id is not this cluster's";
    TransactionalIdNotFound = 105, "TRANSACTIONAL_ID_NOT_FOUND", Final, "no such transactional id";
    FetchSessionTopicIdError = 106, "FETCH_SESSION_TOPIC_ID_ERROR", Retriable, "the fetch session mixes topic names and topic ids";
    IneligibleReplica = 107, "INELIGIBLE_REPLICA", Final, "a replica cannot join the in-sync set";
    NewLeaderElected = 108, "NEW_LEADER_ELECTED", Final, "the partition has a new leader after this change";
    OffsetMovedToTieredStorage = 109, "OFFSET_MOVED_TO_TIERED_STORAGE", Final, "the offset is in tiered storage";
    FencedMemberEpoch = 110, "FENCED_MEMBER_EPOCH", Final, "the member epoch is fenced: give up all partitions and join again";
    UnreleasedInstanceId = 111, "UNRELEASED_INSTANCE_ID", Final, "another member still holds this instance id";
    UnsupportedAssignor = 112, "UNSUPPORTED_ASSIGNOR", Final, "the group does not support this assignor";
    StaleMemberEpoch = 113, "STALE_MEMBER_EPOCH", Final, "the member epoch is old: heartbeat first";
    MismatchedEndpointType = 114, "MISMATCHED_ENDPOINT_TYPE", Final, "the request went to the wrong type of endpoint";
    UnsupportedEndpointType = 115, "UNSUPPORTED_ENDPOINT_TYPE", Final, "this type of endpoint is not supported";
    UnknownControllerId = 116, "UNKNOWN_CONTROLLER_ID", Final, "no such controller";
    UnknownSubscriptionId = 117, "UNKNOWN_SUBSCRIPTION_ID", Final, "the telemetry subscription is unknown or out of date";
    TelemetryTooLarge = 118, "TELEMETRY_TOO_LARGE", Final, "the telemetry is larger than the broker takes";
    InvalidRegistration = 119, "INVALID_REGISTRATION", Final, "the registration is not valid";
    TransactionAbortable = 120, "TRANSACTION_ABORTABLE", Final, "the transaction must be aborted; the producer may go on after that";
    InvalidRecordState = 121, "INVALID_RECORD_STATE", Final, "the record is not in a state that allows this acknowledgement";
    ShareSessionNotFound = 122, "SHARE_SESSION_NOT_FOUND", Retriable, "no such share session";
    InvalidShareSessionEpoch = 123, "INVALID_SHARE_SESSION_EPOCH", Retriable, "the epoch of the share session is not the next one";
    FencedStateEpoch = 124, "FENCED_STATE_EPOCH", Final, "the state epoch is out of date";
    InvalidVoterKey = 125, "INVALID_VOTER_KEY", Final, "the voter's key is not the one of this replica";
    DuplicateVoter = 126, "DUPLICATE_VOTER", Final, "the voter is in the set";
    VoterNotFound = 127, "VOTER_NOT_FOUND", Final, "the voter is not in the set";
    InvalidRegularExpression = 128, "INVALID_REGULAR_EXPRESSION", Final, "the regular expression is not valid";
    RebootstrapRequired = 129, "REBOOTSTRAP_REQUIRED", Final, "the client's view is out of date: start again from the bootstrap servers";
    StreamsInvalidTopology = 130, "STREAMS_INVALID_TOPOLOGY", Final, "the topology is not valid";
    StreamsInvalidTopologyEpoch = 131, "STREAMS_INVALID_TOPOLOGY_EPOCH", Final, "the topology epoch is not valid";
    StreamsTopologyFenced = 132, "STREAMS_TOPOLOGY_FENCED", Final, "the topology epoch is out of date";
    ShareSessionLimitReached = 133, "SHARE_SESSION_LIMIT_REACHED", Retriable, "there are too many share sessions";
    GroupDeletionFailed = 134, "GROUP_DELETION_FAILED", Final, "the group could not be deleted: see the message beside it";
    StreamsTopologyDescriptionUpdateFailed = 135, "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED", Final, "the topology description could not be updated: see the message";
    ControllerIdNotRegistered = 136, "CONTROLLER_ID_NOT_REGISTERED", Final, "no controller of this id is registered";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_without_gap_and_map_back() {
        assert_eq!(ErrorCode::ALL.len(), 138);
        for (index, code) in ErrorCode::ALL.iter().enumerate() {
            assert_eq!(usize::try_from(code.code() + 1), Ok(index), "{code}");
            assert_eq!(ErrorCode::from_i16(code.code()), Some(*code));
        }
        assert_eq!(ErrorCode::from_i16(-2), None);
        assert_eq!(ErrorCode::from_i16(137), None);
    }

    #[test]
    fn names_are_the_variants_in_capitals() {
        for code in ErrorCode::ALL {
            let folded = code.name().replace('_', "").to_lowercase();
            assert_eq!(format!("{code:?}").to_lowercase(), folded);
        }
    }

    #[test]
    fn the_oracle_crate_knows_the_same_codes() {
        for code in ErrorCode::ALL {
            match kafka_protocol::ResponseError::try_from_code(code.code()) {
                Some(kafka_protocol::ResponseError::Unknown(_)) | None => {}
                Some(theirs) => {
                    assert_eq!(format!("{theirs:?}").to_lowercase(), format!("{code:?}").to_lowercase())
                }
            }
        }
    }
}
