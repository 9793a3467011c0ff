//! Consumer groups of this node, as handlers see them: calls go to the core whose machine holds the group, and come back.
//!
//! Each group lives in one partition of `__consumer_offsets`, so on one core. Reading order: this (calls and answers), `host` (one
//! partition), `load` and `transactions` (its log), `calls` (who waits), `timers`, `computations`, `upkeep` (metadata, expiry, the end),
//! [`topic`], `figures`, `lag` (how far groups are behind) and [`ends`] (what it asks of other cores).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use ahash::RandomState;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{PartitionIndex, TopicPartition};
use ringlog_shard::mesh::CoreId;

use super::Core;
use super::messages::{CoreReply, CoreRequest};
use crate::config::groups::GroupConfig;
use crate::controller::OFFSETS_TOPIC_NAME;
use crate::group::consumer::{ConsumerHeartbeatRequest, DescribedConsumerGroup, Topics};
use crate::group::lag::LagReport;
use crate::group::{
    CommitRequest, ConsumerSettings, DescribedGroup, Event, FetchedTopic, GroupId, GroupMachine,
    GroupOverrides, GroupSettings, HeartbeatRequest, JoinRequest, LeaveRequest, ListedGroup,
    OffsetDeleteRequest, OffsetQuery, Reply, Serial, SyncRequest, Timer, Token, Usage,
};
use crate::observe::timelines::TimelineWriter;
use calls::{GroupCallId, HomeCall, HomeCalls, OwedAnswers};
use figures::Counts;
use host::{Host, Service};
use timers::Timers;

mod calls;
mod computations;
pub mod ends;
mod figures;
mod host;
pub(crate) mod lag;
mod load;
#[cfg(test)]
mod tests;
mod timers;
pub mod topic;
mod transactions;
pub(crate) mod upkeep;

pub use topic::{ensure_offsets_topic, partition_of};

/// What a group is asked. All groups of a call lie in one partition of `__consumer_offsets`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupCall {
    /// [`Reply::Join`], once all others joined.
    Join(JoinRequest),
    /// [`Reply::Sync`], once the leader brought the assignments and they are durable.
    Sync(SyncRequest),
    /// [`Reply::Heartbeat`].
    Heartbeat(HeartbeatRequest),
    /// [`Reply::Leave`].
    Leave(LeaveRequest),
    /// [`Reply::ConsumerHeartbeat`]; a join once there is an assignment that counts the member in.
    ConsumerHeartbeat(ConsumerHeartbeatRequest),
    /// [`Reply::CommitOffsets`], once they are durable.
    CommitOffsets(CommitRequest),
    /// [`Reply::DeleteOffsets`], once they are gone.
    DeleteOffsets(OffsetDeleteRequest),
    /// [`Reply::DeleteGroups`], once they are gone.
    DeleteGroups(Vec<GroupId>),
    /// [`GroupAnswer::Offsets`], in the order of the queries.
    FetchOffsets(Vec<OffsetQuery>),
    /// [`GroupAnswer::Described`], in the order of the names.
    Describe(Vec<GroupId>),
    /// [`GroupAnswer::ConsumersDescribed`], in the order of the names.
    ConsumerDescribe(Vec<GroupId>),
}

/// The answer to a [`GroupCall`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupAnswer {
    /// Of the same kind as the call; it may hold an error, also `COORDINATOR_LOAD_IN_PROGRESS` and `NOT_COORDINATOR`.
    Reply(Reply),
    /// A group that does not exist has no offsets, which is no error.
    Offsets(Vec<(GroupId, Result<Vec<FetchedTopic>, ErrorCode>)>),
    /// `GROUP_ID_NOT_FOUND` for a group that does not exist.
    Described(Vec<(GroupId, Result<DescribedGroup, ErrorCode>)>),
    /// `GROUP_ID_NOT_FOUND` in words for a group that does not exist or is of another kind.
    ConsumersDescribed(Vec<Result<DescribedConsumerGroup, (ErrorCode, String)>>),
    /// No machine looked at the call, for any of its groups: all parts of the response say this code. Retriable:
    /// `COORDINATOR_NOT_AVAILABLE` (the partition cannot be served now, or too many calls wait), `COORDINATOR_LOAD_IN_PROGRESS`
    /// (its log is being read), `NOT_COORDINATOR` (the broker stops).
    Refused(ErrorCode),
}

/// What cores ask of each other.
pub enum GroupRequest {
    /// To the core whose machine holds the groups of the call. Where the answer is not there yet a receipt is: the answer comes as
    /// `Answered`, perhaps minutes later.
    Call {
        key: TopicPartition,
        call: Box<GroupCall>,
        /// Of the call, on its home core.
        number: u64,
    },
    /// To the home core of the call.
    Answered { number: u64, answer: Box<GroupAnswer> },
    /// All groups of this core in these states and of these types; empty means all.
    List { states: Vec<String>, types: Vec<String> },
}

/// What cores answer each other.
pub enum GroupResponse {
    /// `None`: a receipt.
    Called(Option<Box<GroupAnswer>>),
    /// The groups found; behind them an error if not all could be looked at.
    Listed(Vec<Result<Vec<ListedGroup>, ErrorCode>>),
    Done,
}

/// Asks the machine that holds the groups of `call` and waits for its answer, however long others take. Dropping the future drops the
/// answer and takes nothing back: a member that waited stays until its session ends. So whoever serves a connection polls
/// [`Connection::poll_hung_up`](crate::server::connection::Connection::poll_hung_up) beside it.
///
/// `partition` is what [`partition_of`] says of each of the groups.
pub async fn ask(core: &Rc<Core>, partition: i32, call: GroupCall) -> GroupAnswer {
    let Some(topic) = core.image().topic(OFFSETS_TOPIC_NAME).map(|topic| topic.id) else {
        return GroupAnswer::Refused(ErrorCode::CoordinatorNotAvailable);
    };
    let key = TopicPartition { topic, partition: PartitionIndex(partition) };
    let owner = core.owner_of(key);
    let Some(waiting) = HomeCall::open(core) else {
        tracing::debug!(partition, "too many calls of groups wait");
        return GroupAnswer::Refused(ErrorCode::CoordinatorNotAvailable);
    };
    let at_once = if owner == core.id {
        serve_call(core, key, call, waiting.id)
    } else {
        let request = GroupRequest::Call { key, call: Box::new(call), number: waiting.id.number };
        match core.mesh.call(owner, CoreRequest::Groups(request)).await {
            CoreReply::Groups(GroupResponse::Called(answer)) => answer.map(|answer| *answer),
            _ => unreachable!("a call of a group is answered or receipted"),
        }
    };
    match at_once {
        Some(answer) => answer,
        None => waiting.await,
    }
}

/// All groups of all cores in these states and of these types, in any case of letters; an empty filter means all. An entry for each
/// core that could look at all its groups; beside it an error for each that could not, which has one for those it could look at too.
pub async fn list(
    core: &Rc<Core>,
    states: Vec<String>,
    types: Vec<String>,
) -> Vec<Result<Vec<ListedGroup>, ErrorCode>> {
    let mut calls = Vec::new();
    for target in core.mesh.cores().filter(|target| *target != core.id) {
        let request = GroupRequest::List { states: states.clone(), types: types.clone() };
        calls.push(core.mesh.send(target, CoreRequest::Groups(request)).await);
    }
    let mut listed = list_here(core, &states, &types);
    for call in calls {
        match call.await {
            CoreReply::Groups(GroupResponse::Listed(found)) => listed.extend(found),
            _ => unreachable!("groups are listed by listed groups"),
        }
    }
    listed
}

/// What one core has of [`list`].
fn list_here(core: &Core, states: &[String], types: &[String]) -> Vec<Result<Vec<ListedGroup>, ErrorCode>> {
    let states: Vec<&str> = states.iter().map(String::as_str).collect();
    let types: Vec<&str> = types.iter().map(String::as_str).collect();
    let (mut found, mut error) = (Vec::new(), None);
    for host in core.groups.hosts.borrow().values() {
        match refusal(host.service()) {
            None => found.extend(host.machine.borrow().list(&states, &types)),
            // Whoever leads them lists them.
            Some(ErrorCode::NotCoordinator) if !core.is_draining() => {}
            Some(refused) => error = Some(refused),
        }
    }
    std::iter::once(Ok(found)).chain(error.map(Err)).collect()
}

/// Lets this core's machine look at a call: its answer if it comes at once. Else it goes to `home` later.
fn serve_call(
    core: &Rc<Core>,
    key: TopicPartition,
    call: GroupCall,
    home: GroupCallId,
) -> Option<GroupAnswer> {
    let groups = &core.groups;
    let host = groups.hosts.borrow().get(&key.partition.0).cloned();
    // Another core may know of the topic, or of its end, a moment earlier than this one.
    let Some(host) = host.filter(|host| host.key == key) else {
        return Some(GroupAnswer::Refused(ErrorCode::CoordinatorNotAvailable));
    };
    host.check_leader(core);
    if matches!(host.service(), Service::Broken | Service::Elsewhere) {
        return refusal(host.service()).map(GroupAnswer::Refused);
    }
    let call = match call {
        GroupCall::FetchOffsets(queries) => return Some(fetch_offsets(&host, queries)),
        GroupCall::Describe(groups) => return Some(describe(&host, groups)),
        GroupCall::ConsumerDescribe(groups) => return Some(describe_consumers(&host, &groups)),
        call => call,
    };
    if core.is_draining() {
        return Some(GroupAnswer::Refused(ErrorCode::NotCoordinator));
    }
    let Some(token) = groups.owed.begin() else {
        tracing::debug!(partition = host.partition(), "too many answers of groups are owed");
        return Some(GroupAnswer::Refused(ErrorCode::CoordinatorNotAvailable));
    };
    host.drive(core, call.into_event(token));
    groups.owed.leave(token, home)
}

/// Does what another core asks.
pub(super) fn serve(core: &Rc<Core>, request: GroupRequest, from: CoreId) -> GroupResponse {
    match request {
        GroupRequest::Call { key, call, number } => {
            let answer = serve_call(core, key, *call, GroupCallId { home: from, number });
            GroupResponse::Called(answer.map(Box::new))
        }
        GroupRequest::Answered { number, answer } => {
            core.groups.home_calls.answered(number, *answer);
            GroupResponse::Done
        }
        GroupRequest::List { states, types } => GroupResponse::Listed(list_here(core, &states, &types)),
    }
}

fn fetch_offsets(host: &Host, queries: Vec<OffsetQuery>) -> GroupAnswer {
    if let Some(refused) = refusal(host.service()) {
        return GroupAnswer::Refused(refused);
    }
    let machine = host.machine.borrow();
    let fetched = queries.into_iter().map(|query| {
        let offsets = machine.fetch_offsets(&query);
        (query.group, offsets)
    });
    GroupAnswer::Offsets(fetched.collect())
}

fn describe(host: &Host, groups: Vec<GroupId>) -> GroupAnswer {
    if let Some(refused) = refusal(host.service()) {
        return GroupAnswer::Refused(refused);
    }
    let machine = host.machine.borrow();
    let described = groups.into_iter().map(|group| {
        let found = machine.describe(&group).ok_or(ErrorCode::GroupIdNotFound);
        (group, found)
    });
    GroupAnswer::Described(described.collect())
}

fn describe_consumers(host: &Host, groups: &[GroupId]) -> GroupAnswer {
    if let Some(refused) = refusal(host.service()) {
        return GroupAnswer::Refused(refused);
    }
    let machine = host.machine.borrow();
    GroupAnswer::ConsumersDescribed(groups.iter().map(|group| machine.describe_consumers(group)).collect())
}

fn refusal(service: Service) -> Option<ErrorCode> {
    match service {
        Service::Serving(_) => None,
        Service::Loading => Some(ErrorCode::CoordinatorLoadInProgress),
        Service::Elsewhere => Some(ErrorCode::NotCoordinator),
        Service::Broken => Some(ErrorCode::CoordinatorNotAvailable),
    }
}

impl GroupCall {
    /// Of a call that is more than a look.
    fn into_event(self, token: Token) -> Event {
        match self {
            GroupCall::Join(request) => Event::Join(token, request),
            GroupCall::Sync(request) => Event::Sync(token, request),
            GroupCall::Heartbeat(request) => Event::Heartbeat(token, request),
            GroupCall::Leave(request) => Event::Leave(token, request),
            GroupCall::ConsumerHeartbeat(request) => Event::ConsumerHeartbeat(token, request),
            GroupCall::CommitOffsets(request) => Event::CommitOffsets(token, request),
            GroupCall::DeleteOffsets(request) => Event::DeleteOffsets(token, request),
            GroupCall::DeleteGroups(groups) => Event::DeleteGroups(token, groups),
            GroupCall::FetchOffsets(_) | GroupCall::Describe(_) | GroupCall::ConsumerDescribe(_) => {
                unreachable!("a look is no event")
            }
        }
    }
}

/// What a core holds for groups.
pub struct Groups {
    /// By partition of `__consumer_offsets`.
    hosts: RefCell<BTreeMap<i32, Rc<Host>>>,
    timers: Timers,
    home_calls: HomeCalls,
    owed: OwedAnswers,
    /// Of all hosts.
    usage: Cell<Usage>,
    counts: Counts,
    timelines: RefCell<TimelineWriter>,
    /// The last look; `None` before the first.
    lags: RefCell<Option<Arc<LagReport>>>,
    settings: GroupSettings,
    /// Of groups of KIP-848.
    consumer_settings: ConsumerSettings,
    /// What is set on single groups.
    overrides: RefCell<Arc<BTreeMap<GroupId, GroupOverrides>>>,
    /// What the machines know of topics.
    topics: RefCell<Arc<Topics>>,
}

impl Groups {
    pub(super) fn new(config: &GroupConfig, hasher: RandomState) -> Groups {
        Groups {
            hosts: RefCell::default(),
            timers: Timers::new(hasher),
            home_calls: HomeCalls::default(),
            owed: OwedAnswers::default(),
            usage: Cell::default(),
            counts: Counts::default(),
            timelines: RefCell::default(),
            lags: RefCell::default(),
            settings: GroupSettings {
                session_timeout_ms_min: config.session_timeout_ms_min,
                session_timeout_ms_max: config.session_timeout_ms_max,
                initial_rebalance_delay_ms: config.initial_rebalance_delay_ms,
                members_max: config.members_max,
                offset_metadata_max: config.offset_metadata_max,
                offsets_retention_ms: config.offsets_retention_ms,
            },
            consumer_settings: config.consumer,
            overrides: RefCell::default(),
            topics: RefCell::default(),
        }
    }

    /// One that knows nothing yet.
    fn new_machine(&self) -> GroupMachine {
        let mut machine = GroupMachine::new(self.settings);
        machine.set_consumer_settings(self.consumer_settings);
        machine.set_overrides(Arc::clone(&self.overrides.borrow()));
        machine
    }

    fn all_hosts(&self) -> Vec<Rc<Host>> {
        self.hosts.borrow().values().cloned().collect()
    }

    fn fired(&self, core: &Rc<Core>, partition: i32, timer: Timer, serial: Serial) {
        let host = self.hosts.borrow().get(&partition).cloned();
        if let Some(host) = host {
            host.drive(core, Event::Fired(timer, serial));
        }
    }

    /// Keeps time for as long as the core lives.
    pub(super) async fn keep_time(core: Rc<Core>) {
        timers::run(core).await;
    }
}

impl Core {
    pub(crate) fn groups(&self) -> &Groups {
        &self.groups
    }
}
