//! What a core does when another asks, and the same functions for its own connections. Each is a plain decision over
//! this core's store; only reads below the memory tail wait for a disk.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;

use ringlog_io::{Monotonic, Priority};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{LeaderEpoch, Offset, TopicPartition};
use ringlog_shard::partition::Appended;
use ringlog_shard::storage::{LogRead, ReadError};
use ringlog_shard::store::{View, ViewError};
use ringlog_shard::waiters::{CommitGather, Watch};

use super::epochs::{Position, epoch_error};
use super::messages::{
    CoreQuery, CoreReply, CoreRequest, CoreResponder, ListPart, ListResult, PartitionState, PositionPart,
    ProducePart, ProducedPart, ReadPart, ReadResult, WatchId,
};
use super::{
    Core, delete_records, ends, epochs, groups, images, log_sizes, quorum, refusals, session_parts, start,
};
use crate::observe::{Stage, StageTimes};

/// Kafka's special timestamps of ListOffsets (KIP-79, KIP-734, KIP-405, KIP-1005, KIP-1023).
const LATEST: i64 = -1;
const EARLIEST: i64 = -2;
const MAX_TIMESTAMP: i64 = -3;
const EARLIEST_LOCAL: i64 = -4;
const LATEST_TIERED: i64 = -5;
const EARLIEST_PENDING_UPLOAD: i64 = -6;

/// Acts on a request of another core (or of this one, through the mesh).
pub fn serve(core: &Rc<Core>, query: CoreQuery) {
    let CoreQuery { message, responder, from } = query;
    let core = Rc::clone(core);
    match message {
        CoreRequest::Available(parts) => responder.respond(CoreReply::Available(available(&core, &parts))),
        CoreRequest::LeaderEpochs(keys) => {
            responder.respond(CoreReply::LeaderEpochs(leader_epochs(&core, &keys)))
        }
        CoreRequest::EpochEnds(parts) => {
            responder.respond(CoreReply::EpochEnds(epochs::epoch_ends(&core, &parts)))
        }
        CoreRequest::LogSizes(keys) => log_sizes::serve(&core, keys, responder),
        CoreRequest::Quorum => responder.respond(CoreReply::Quorum(quorum::describe(&core))),
        CoreRequest::WatchFired { watch } => {
            core.home_watches.fire(watch);
            responder.respond(CoreReply::Done);
        }
        CoreRequest::CancelWatch { watch } => {
            drop(core.foreign_watches.end(watch));
            responder.respond(CoreReply::Done);
        }
        CoreRequest::Watch { watch, parts } => {
            watch_for(&core, watch, &parts);
            responder.respond(CoreReply::Done);
        }
        CoreRequest::FetchSession(session, request) => {
            responder.respond(session_parts::serve(&core, session, request));
        }
        CoreRequest::Produce(parts) => produce_for(&core, parts, responder),
        CoreRequest::Read(parts) => {
            answer(&core, responder, async move |core| CoreReply::Read(read(core, &parts).await));
        }
        CoreRequest::ListOffsets(parts) => answer(&core, responder, async move |core| {
            CoreReply::ListOffsets(list_offsets(core, &parts).await)
        }),
        CoreRequest::DeleteRecords { parts, timeout } => answer(&core, responder, async move |core| {
            CoreReply::DeleteRecords(delete_records::delete_records(core, &parts, timeout).await)
        }),
        CoreRequest::Controller(request) => answer(&core, responder, async move |core| {
            let controller = core.controller.borrow().clone();
            let controller = controller.expect("asked on the controller's core after it started");
            CoreReply::Controller(controller.run(request).await)
        }),
        CoreRequest::ApplyImage(image) => {
            later(&core, responder, async |core| images::apply(core, image).await)
        }
        CoreRequest::Groups(request) => {
            responder.respond(CoreReply::Groups(groups::serve(&core, request, from)));
        }
        CoreRequest::Logs(question) => groups::ends::serve(&core, question, responder),
        CoreRequest::ControllerReady => {
            later(&core, responder, async |core| core.controller_ready.wait().await)
        }
        CoreRequest::Adopt(transfer) => {
            crate::server::acceptor::adopt(&core, transfer);
            responder.respond(CoreReply::Done);
        }
        CoreRequest::ConnectionClosed { peer } => {
            core.connections.closed_elsewhere(from, peer);
            responder.respond(CoreReply::Done);
        }
        CoreRequest::Drain => later(&core, responder, async |core| start::drain(core).await),
        CoreRequest::Flush => later(&core, responder, async |core| start::flush(core).await),
        CoreRequest::End => {
            responder.respond(CoreReply::Done);
            core.ended.set();
        }
    }
}

/// Answers `Done` when `work` is.
fn later(core: &Rc<Core>, responder: CoreResponder, work: impl AsyncFnOnce(&Rc<Core>) + 'static) {
    answer(core, responder, async move |core| {
        work(core).await;
        CoreReply::Done
    });
}

/// Answers what `work` comes to, without waiting for it here.
pub(super) fn answer(
    core: &Rc<Core>,
    responder: CoreResponder,
    work: impl AsyncFnOnce(&Rc<Core>) -> CoreReply + 'static,
) {
    let core = Rc::clone(core);
    let io = core.io.clone();
    io.spawn(Priority::Foreground, async move {
        let reply = work(&core).await;
        responder.respond(reply);
    })
    .detach();
}

/// Batches that came from another core while the journal was full. Appended in arrival order, so that a producer's
/// next request never overtakes.
#[derive(Default)]
pub struct ProduceBacklog {
    waiting: RefCell<VecDeque<(Vec<ProducePart>, CoreResponder)>>,
}

fn produce_for(core: &Rc<Core>, parts: Vec<ProducePart>, responder: CoreResponder) {
    let mut waiting = core.produce_backlog.waiting.borrow_mut();
    if waiting.is_empty() && core.store.has_room() {
        drop(waiting);
        // Appended before this returns, so that arrival order is log order; only the commit is waited for.
        respond_when_committed(core, Appends::append(core, parts, true), responder);
        return;
    }
    let first = waiting.is_empty();
    waiting.push_back((parts, responder));
    drop(waiting);
    if first {
        let core = Rc::clone(core);
        core.io.clone().spawn(Priority::Foreground, drain_backlog(core)).detach();
    }
}

async fn drain_backlog(core: Rc<Core>) {
    loop {
        core.store.room().await;
        // No await between this and the append: whoever comes meanwhile finds the queue as it is.
        let Some((parts, responder)) = core.produce_backlog.waiting.borrow_mut().pop_front() else { return };
        respond_when_committed(&core, Appends::append(&core, parts, true), responder);
        if core.produce_backlog.waiting.borrow().is_empty() {
            return;
        }
    }
}

fn respond_when_committed(core: &Rc<Core>, appends: Appends, responder: CoreResponder) {
    let home = Rc::clone(core);
    core.io
        .spawn(Priority::Foreground, async move {
            let (parts, times) = appends.finish(&home).await;
            responder.respond(CoreReply::Produce(parts, times));
        })
        .detach();
}

/// Batches handed to this core's logs, and the wait for their commit.
pub struct Appends {
    results: Vec<ProducedPart>,
    gather: Option<CommitGather>,
    appended: Monotonic,
}

impl Appends {
    /// Appends `parts` in order once the journal has room. With `wait` the commits are gathered; without (acks=0)
    /// nobody is told.
    pub async fn dispatch(core: &Rc<Core>, parts: Vec<ProducePart>, wait: bool) -> Appends {
        core.store.room().await;
        Appends::append(core, parts, wait)
    }

    fn append(core: &Core, parts: Vec<ProducePart>, wait: bool) -> Appends {
        let gather = wait.then(CommitGather::new);
        let results = parts
            .into_iter()
            .enumerate()
            .map(|(at, part)| {
                let ticket = gather.as_ref().map(|gather| gather.ticket(at as u32));
                let (records, bytes) = (part.batch.header.record_count, part.batch.bytes.len());
                match core.store.append(part.key, part.batch, ticket) {
                    Ok(appended) => {
                        core.observer
                            .count(|metrics| metrics.produce.add(appended.duplicate, records, bytes));
                        let Appended { base_offset, log_start, .. } = appended;
                        ProducedPart::Appended { base_offset, log_start }
                    }
                    Err(error) => refusals::of_append(&error),
                }
            })
            .collect();
        Appends { results, gather, appended: core.io.monotonic_now() }
    }

    /// Waits until all of them are committed or failed; what that took.
    pub async fn finish(self, core: &Core) -> (Vec<ProducedPart>, StageTimes) {
        let Appends { mut results, gather, appended } = self;
        let mut times = StageTimes::default();
        let Some(gather) = gather else { return (results, times) };
        for (tag, failure) in gather.finish().await {
            let result = &mut results[tag as usize];
            // A part that was refused before it was appended keeps its own reason.
            if let ProducedPart::Appended { base_offset, .. } = *result {
                *result = refusals::of_commit(base_offset, failure, core.store.storage().poison().as_ref());
            }
        }
        let elapsed = core.io.monotonic_now().saturating_since(appended);
        times.add(Stage::Journal, u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX));
        (results, times)
    }

    /// Whether some part was refused before it was appended.
    pub fn any_refused(&self) -> bool {
        self.results.iter().any(ProducedPart::is_refused)
    }
}

pub(super) fn view_error_code(error: &ViewError) -> ErrorCode {
    match error {
        ViewError::UnknownPartition => ErrorCode::UnknownTopicOrPartition,
        ViewError::NotLeader => ErrorCode::NotLeaderOrFollower,
        ViewError::Offline { .. } => ErrorCode::KafkaStorageError,
    }
}

/// What each partition could return from its position.
pub fn available(core: &Core, parts: &[PositionPart]) -> Vec<PartitionState> {
    parts.iter().map(|part| state_of(core, part)).collect()
}

pub(super) fn state_of(core: &Core, part: &PositionPart) -> PartitionState {
    let view = match core.store.view(part.key) {
        Ok(view) => view,
        Err(error) => {
            return PartitionState {
                error: view_error_code(&error),
                log_start: Offset(-1),
                high_watermark: Offset(-1),
                leader_epoch: LeaderEpoch(-1),
                available_bytes: 0,
                diverging: None,
            };
        }
    };
    let nothing = PartitionState {
        error: ErrorCode::None,
        log_start: view.log_start,
        high_watermark: view.high_watermark,
        leader_epoch: view.leader_epoch,
        available_bytes: 0,
        diverging: None,
    };
    match epochs::compare(core, part.key, &view, part.epochs, part.from) {
        Position::Agrees => {}
        Position::Diverges(end) => return PartitionState { diverging: Some(end), ..nothing },
        Position::Error(error) => return PartitionState { error, ..nothing },
    }
    let in_range = part.from >= view.log_start && part.from <= view.high_watermark;
    if view.is_cut_short
        && let Some(behind) = core.store.served_behind(part.key, part.from)
    {
        return PartitionState {
            high_watermark: behind.acknowledged_end,
            available_bytes: behind.available_bytes,
            ..nothing
        };
    }
    let error = ends::position_error(&view, part.from);
    let available_bytes =
        if in_range { core.store.available_bytes(part.key, part.from).unwrap_or(0) } else { 0 };
    PartitionState { error, available_bytes, ..nothing }
}

/// The epochs in which this core leads the partitions.
pub fn leader_epochs(core: &Core, keys: &[TopicPartition]) -> Vec<Option<LeaderEpoch>> {
    keys.iter().map(|key| core.store.view(*key).ok().map(|view| view.leader_epoch)).collect()
}

/// Reads each partition within its grant.
pub async fn read(core: &Rc<Core>, parts: &[ReadPart]) -> Vec<ReadResult> {
    let mut results = Vec::with_capacity(parts.len());
    for part in parts {
        let mut state = state_of(core, &PositionPart { key: part.key, from: part.from, epochs: part.epochs });
        let mut pieces = Vec::new();
        if state.error == ErrorCode::None
            && state.available_bytes > 0
            && (part.bytes_max > 0 || part.at_least_one)
        {
            match read_one(core, part).await {
                Ok(log_read) => pieces = log_read.pieces,
                Err(error) => {
                    state.error = read_error_code(&error);
                    if state.error == ErrorCode::KafkaStorageError {
                        let (topic_id, partition) = (part.key.topic, part.key.partition.0);
                        tracing::error!(%topic_id, partition, offset = part.from.0, %error, "read failed");
                    }
                }
            }
        }
        results.push(ReadResult { state, pieces });
    }
    results
}

async fn read_one(core: &Rc<Core>, part: &ReadPart) -> Result<LogRead, ReadError> {
    core.store.plan_read(part.key, part.from, part.bytes_max, part.at_least_one)?.run(&core.io).await
}

fn read_error_code(error: &ReadError) -> ErrorCode {
    match error {
        ReadError::UnknownLog => ErrorCode::UnknownTopicOrPartition,
        ReadError::OutOfRange { .. } => ErrorCode::OffsetOutOfRange,
        // Consumers stop at it and say so. Kafka sends such a batch, and its clients find the same.
        ReadError::Corrupt { .. } => ErrorCode::CorruptMessage,
        // Consumers ask again: the device may have recovered, or another replica may lead.
        ReadError::Io { .. } | ReadError::BadBlock { .. } | ReadError::InDamage { .. } => {
            ringlog_io::reached!("fetch.read_failed");
            ErrorCode::KafkaStorageError
        }
    }
}

fn watch_for(core: &Rc<Core>, id: WatchId, parts: &[PositionPart]) {
    let mut watch = Watch::new(1);
    let mut ready = false;
    for part in parts {
        match core.store.watchers(part.key) {
            Ok(watchers) => watch.on(&watchers),
            Err(_) => ready = true,
        }
        // What came between the look that found nothing and this registration counts as fired.
        let state = state_of(core, part);
        ready |= state.is_final() || state.available_bytes > 0;
    }
    tell_when(core, id, async move {
        if !ready {
            watch.await;
        }
    });
}

/// Fires the watch of another core when something `happened`.
pub(super) fn tell_when(core: &Rc<Core>, id: WatchId, happened: impl Future<Output = ()> + 'static) {
    let home = Rc::clone(core);
    let task = core.io.spawn(Priority::Foreground, async move {
        happened.await;
        let answer = home.mesh.call(id.home, CoreRequest::WatchFired { watch: id });
        answer.await;
        if let Some(this_task) = home.foreign_watches.end(id) {
            this_task.detach();
        }
    });
    core.foreign_watches.keep(id, task);
}

/// Resolves timestamps to offsets.
pub async fn list_offsets(core: &Rc<Core>, parts: &[ListPart]) -> Vec<ListResult> {
    let mut results = Vec::with_capacity(parts.len());
    for part in parts {
        results.push(list_one(core, part).await);
    }
    results
}

async fn list_one(core: &Rc<Core>, part: &ListPart) -> ListResult {
    let view = match core.store.view(part.key) {
        Ok(view) => view,
        Err(error) => return ListResult::nothing(view_error_code(&error)),
    };
    let epoch = view.leader_epoch;
    if let Some(error) = epoch_error(part.believed_epoch, epoch) {
        return ListResult::nothing(error);
    }
    let found = |timestamp: i64, offset: Offset, leader_epoch: LeaderEpoch| ListResult {
        error: ErrorCode::None,
        timestamp,
        offset,
        leader_epoch,
    };
    let epoch_at = |offset: Offset| {
        core.store.with_log(part.key, |log| log.epoch_at(offset)).ok().flatten().unwrap_or(LeaderEpoch(-1))
    };
    match part.timestamp {
        LATEST => match ends::end_error(&view) {
            Some(error) => ListResult::nothing(error),
            None => found(-1, view.high_watermark, epoch),
        },
        // Nothing is tiered, so the local log is the whole log and all of it is "not uploaded yet".
        EARLIEST | EARLIEST_LOCAL | EARLIEST_PENDING_UPLOAD => {
            found(-1, view.log_start, epoch_at(view.log_start))
        }
        LATEST_TIERED => ListResult::nothing(ErrorCode::None),
        // The newest one may be among what is lost.
        MAX_TIMESTAMP if view.is_cut_short => ListResult::nothing(ErrorCode::KafkaStorageError),
        MAX_TIMESTAMP => search(core, part, Search::Newest).await.unless_unknown(&view),
        timestamp if timestamp >= 0 => {
            search(core, part, Search::From(timestamp)).await.unless_unknown(&view)
        }
        _ => ListResult::nothing(ErrorCode::InvalidRequest),
    }
}

impl ListResult {
    /// What was not found may be in the part of the log that this replica does not show.
    fn unless_unknown(self, view: &View) -> ListResult {
        match ends::end_error(view) {
            Some(error) if self.error == ErrorCode::None && self.offset.0 < 0 => ListResult::nothing(error),
            _ => self,
        }
    }
}

enum Search {
    Newest,
    /// The first record at or after this many milliseconds since the Unix epoch.
    From(i64),
}

async fn search(core: &Rc<Core>, part: &ListPart, search: Search) -> ListResult {
    let planned = match search {
        Search::Newest => core.store.plan_newest(part.key),
        Search::From(timestamp) => core.store.plan_time_lookup(part.key, timestamp),
    };
    let looked_up = match planned {
        Ok(plan) => plan.run(&core.io).await,
        Err(error) => Err(error),
    };
    match looked_up {
        Ok(Some(hit)) => ListResult {
            error: ErrorCode::None,
            timestamp: hit.timestamp,
            offset: hit.offset,
            leader_epoch: hit.leader_epoch,
        },
        Ok(None) => ListResult::nothing(ErrorCode::None),
        Err(error) => ListResult::nothing(read_error_code(&error)),
    }
}
