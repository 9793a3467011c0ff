//! What cores ask of each other and what they answer. Values only; `core::serve` acts on them.

use std::sync::Arc;
use std::time::Duration;

use ringlog_io::SocketTransfer;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{LeaderEpoch, Offset, TopicPartition};
use ringlog_shard::mesh::{CoreId, Mesh, Query, Responder};
use ringlog_shard::partition::IncomingBatch;
use ringlog_shard::storage::{EpochEnd, LogPiece};

use super::epochs::{EpochPart, EpochResult, ReaderEpochs};
use super::groups::ends::{LogAnswer, LogQuestion};
use super::groups::{GroupRequest, GroupResponse};
use super::quorum::QuorumState;
use crate::controller::{ControllerReply, ControllerRequest, MetadataImage};
use crate::observe::StageTimes;

pub type CoreMesh = Mesh<CoreRequest, CoreReply>;
pub type CoreQuery = Query<CoreRequest, CoreReply>;
pub type CoreResponder = Responder<CoreRequest, CoreReply>;

/// One message per target core and request, never one per partition.
///
/// Each holds a credit of the mesh until it is answered. Those that wait for other requests are counted in
/// `MESH_HELD_LONG_MAX`, and a test below counts them again: a new one must be bounded and added there.
pub enum CoreRequest {
    Produce(Vec<ProducePart>),
    Available(Vec<PositionPart>),
    Read(Vec<ReadPart>),
    /// Tell `CoreRequest::WatchFired` once when anything became visible beyond what `parts` say was seen. Answered
    /// at once, so that a consumer that waits for minutes holds no credit.
    Watch {
        watch: WatchId,
        parts: Vec<PositionPart>,
    },
    WatchFired {
        watch: WatchId,
    },
    CancelWatch {
        watch: WatchId,
    },
    /// Of this fetch session.
    FetchSession(FetchSessionId, SessionRequest),
    ListOffsets(Vec<ListPart>),
    /// Answered when durable, or after `timeout`.
    DeleteRecords {
        parts: Vec<DeletePart>,
        timeout: Duration,
    },
    LeaderEpochs(Vec<TopicPartition>),
    LogSizes(Vec<TopicPartition>),
    EpochEnds(Vec<EpochPart>),
    /// To the controller's core only: what DescribeQuorum tells.
    Quorum,
    /// To the controller's core only.
    Controller(ControllerRequest),
    /// Take this image, open what it gives this core, and answer when all of that leads.
    ApplyImage(Arc<MetadataImage>),
    /// A connection that the acceptor gives to this core.
    Adopt(SocketTransfer),
    /// To the acceptor's core: a connection it gave away is closed.
    ConnectionClosed {
        peer: std::net::IpAddr,
    },
    /// Answered at once.
    Groups(GroupRequest),
    /// For the lag of groups.
    Logs(LogQuestion),
    /// To the controller's core: answer once the controller runs and every core has its image.
    ControllerReady,
    /// Going down, first step: stop reading, let what is in flight finish.
    Drain,
    /// Second step: write what is only in the journal to segments.
    Flush,
    /// Third step: leave.
    End,
}

pub enum CoreReply {
    /// With what the owner spent on it.
    Produce(Vec<ProducedPart>, StageTimes),
    Available(Vec<PartitionState>),
    SlotStates(Vec<SlotState>),
    Read(Vec<ReadResult>),
    ListOffsets(Vec<ListResult>),
    DeleteRecords(Vec<DeletedPart>),
    /// `None` where the partition has no leader here.
    LeaderEpochs(Vec<Option<LeaderEpoch>>),
    /// In bytes; `None` where the partition is not here.
    LogSizes(Vec<Option<u64>>),
    EpochEnds(Vec<EpochResult>),
    Quorum(Result<QuorumState, ErrorCode>),
    Controller(Result<ControllerReply, crate::coordinator::RunnerError>),
    Groups(GroupResponse),
    Logs(LogAnswer),
    Done,
}

/// Names a wait of a consumer on its home core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WatchId {
    pub home: CoreId,
    pub number: u64,
}

/// What is asked for a fetch session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionRequest {
    /// Where it stands in this core's partitions has changed so; what has news there?
    Look(Vec<SlotChange>),
    /// As `CoreRequest::Watch`, for its partitions on this core, since its last look.
    Watch(WatchId),
    /// It is over: forget its partitions on this core.
    ClosePart,
    /// To its home: its client is done with it.
    End,
}

/// A fetch session, as the client names it (KIP-227). Its home core is the rest of its division by the number of cores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FetchSessionId(pub i32);

impl FetchSessionId {
    pub const NONE: FetchSessionId = FetchSessionId(0);

    /// A name of a session of this core: the nearest below `number`, which is taken as one of 31 bits.
    pub fn of_core(core: CoreId, core_count: u32, number: u32) -> FetchSessionId {
        let number = number & i32::MAX as u32;
        let below = number - number % core_count;
        // Near the top the next one of this core may lie beyond what a name can be.
        let id = below.checked_add(core.0).and_then(|id| i32::try_from(id).ok());
        FetchSessionId(id.unwrap_or(core.0 as i32))
    }

    /// The core that may hold it; `None` for what no session is called.
    pub fn home(self, core_count: u32) -> Option<CoreId> {
        let number = u32::try_from(self.0).ok().filter(|number| *number > 0)?;
        Some(CoreId(number % core_count))
    }
}

/// A session stands there now; `None`: its slot is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotChange {
    pub slot: u32,
    pub position: Option<PositionPart>,
}

/// What a session's partition shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotState {
    pub slot: u32,
    pub state: PartitionState,
}

pub struct ProducePart {
    pub key: TopicPartition,
    pub batch: IncomingBatch,
}

/// What became of a part, in the order of the request's parts.
#[derive(Debug, PartialEq, Eq)]
pub enum ProducedPart {
    Appended {
        base_offset: Offset,
        log_start: Offset,
    },
    /// Boxed, so that what succeeds carries no room for it and allocates nothing.
    Refused(Box<AppendRefusal>),
}

/// Why a log did not take a batch, as its producer is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppendRefusal {
    pub error: ErrorCode,
    /// Names the fault, the value, the limit and what to change.
    pub text: String,
}

impl ProducedPart {
    pub fn refused(error: ErrorCode, text: String) -> ProducedPart {
        ProducedPart::Refused(Box::new(AppendRefusal { error, text }))
    }

    pub fn is_refused(&self) -> bool {
        matches!(self, ProducedPart::Refused(_))
    }
}

/// A partition and where its reader stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionPart {
    pub key: TopicPartition,
    pub from: Offset,
    pub epochs: ReaderEpochs,
}

/// What a partition shows; `error` is `None` when it can be read from the position asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartitionState {
    pub error: ErrorCode,
    pub log_start: Offset,
    pub high_watermark: Offset,
    pub leader_epoch: LeaderEpoch,
    pub available_bytes: u64,
    /// What the reader read last is not in the log: where it must cut its own.
    pub diverging: Option<EpochEnd>,
}

impl PartitionState {
    /// There is an answer, whatever comes.
    pub fn is_final(&self) -> bool {
        self.error != ErrorCode::None || self.diverging.is_some()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadPart {
    pub key: TopicPartition,
    pub from: Offset,
    pub epochs: ReaderEpochs,
    pub bytes_max: u32,
    pub at_least_one: bool,
}

pub struct ReadResult {
    pub state: PartitionState,
    pub pieces: Vec<LogPiece>,
}

/// A partition and what of it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeletePart {
    pub key: TopicPartition,
    /// Records below it go; `None` = all committed ones.
    pub before: Option<Offset>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeletedPart {
    pub error: ErrorCode,
    /// The first offset that is left; -1 with an error, but for a timeout.
    pub low_watermark: Offset,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListPart {
    pub key: TopicPartition,
    /// Milliseconds, or one of Kafka's special values (-1 latest ... -6).
    pub timestamp: i64,
    /// The epoch that the client believes the leader has; -1 if it says none.
    pub believed_epoch: LeaderEpoch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListResult {
    pub error: ErrorCode,
    pub timestamp: i64,
    pub offset: Offset,
    pub leader_epoch: LeaderEpoch,
}

impl ListResult {
    /// No offset: an error, or (with `ErrorCode::None`) nothing that fits.
    pub fn nothing(error: ErrorCode) -> ListResult {
        ListResult { error, timestamp: -1, offset: Offset(-1), leader_epoch: LeaderEpoch(-1) }
    }
}

#[cfg(test)]
mod tests {
    use ringlog_protocol::ids::NodeId;
    use ringlog_shard::limits::{MACHINE_REQUESTS_QUEUED_MAX, MESH_HELD_LONG_MAX};

    use super::*;

    /// How many requests of this kind one core may hold open towards another while they wait for other requests.
    fn held_long_max(request: &CoreRequest) -> u32 {
        match request {
            // The coordinator refuses what its queue does not take.
            CoreRequest::Controller(_) => MACHINE_REQUESTS_QUEUED_MAX as u32 + 1,
            // The coordinator publishes one image after the other.
            CoreRequest::ApplyImage(_) => 1,
            // Once, by the core that opens the listeners.
            CoreRequest::ControllerReady => 1,
            // One step of the end after the other: counted with the first.
            CoreRequest::Drain => 1,
            CoreRequest::Flush | CoreRequest::End => 0,
            // Answered at once.
            CoreRequest::Available(_)
            | CoreRequest::LeaderEpochs(_)
            | CoreRequest::EpochEnds(_)
            | CoreRequest::Quorum
            | CoreRequest::Watch { .. }
            | CoreRequest::WatchFired { .. }
            | CoreRequest::CancelWatch { .. }
            | CoreRequest::FetchSession(..)
            | CoreRequest::Groups(_)
            | CoreRequest::Adopt(_)
            | CoreRequest::ConnectionClosed { .. } => 0,
            // Lets others of the target have their turn.
            CoreRequest::LogSizes(_) => 0,
            // Wait for the target's own device and nothing else.
            CoreRequest::Produce(_)
            | CoreRequest::Read(_)
            | CoreRequest::ListOffsets(_)
            | CoreRequest::Logs(_)
            | CoreRequest::DeleteRecords { .. } => 0,
        }
    }

    #[test]
    fn every_request_that_is_held_for_long_is_counted() {
        let held = [
            CoreRequest::Controller(ControllerRequest::AllocateProducerIds { node: NodeId(1) }),
            CoreRequest::ApplyImage(Arc::default()),
            CoreRequest::ControllerReady,
            CoreRequest::Drain,
        ];
        assert_eq!(held.iter().map(held_long_max).sum::<u32>(), MESH_HELD_LONG_MAX);
    }
}
