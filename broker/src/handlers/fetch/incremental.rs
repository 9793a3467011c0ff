//! A fetch within a session: asks owners for news, waits for more, and answers with what changed. Also the beginning and the end of
//! sessions, with the words to other cores.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;
use std::time::Duration;

use ringlog_io::{HangUp, Priority};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::fetch::{FetchRequest, FetchResponse, FetchableTopicResponse, PartitionData};
use ringlog_shard::egress::Outgoing;
use ringlog_shard::mesh::CoreId;
use ringlog_shard::storage::LogPiece;

use super::session::cache::SessionCache;
use super::session::{FINAL_EPOCH, FetchSession, INITIAL_EPOCH, TopicName};
use super::{Asked, failed_partition, partition_data, plan, wait, wait_ms};
use crate::core::Core;
use crate::core::messages::{
    CoreReply, CoreRequest, FetchSessionId, PartitionState, ReadPart, ReadResult, SessionRequest, SlotState,
};
use crate::handlers::RequestInfo;
use crate::handlers::reply::reply_with_sources;
use crate::observe::stage::Stage;
use crate::server::Connection;
use crate::server::replies::Answer;
use plan::{Grant, Wanted};
use wait::Needed;

/// What a request's session says of it (KIP-227).
pub(super) enum Context {
    /// All partitions are named, and nothing is remembered.
    Sessionless,
    /// All partitions are named; a session may begin with them.
    Full,
    Incremental(Lease),
    Refused(ErrorCode),
}

/// First version that names topics by id.
pub(super) const BY_ID_SINCE: i16 = 13;

/// Finds the session of a request, and ends the one that the client is done with.
pub(super) async fn context(core: &Rc<Core>, fetch: &FetchRequest<'_>, version: i16) -> Context {
    let id = FetchSessionId(fetch.session_id);
    let is_full = matches!(fetch.session_epoch, INITIAL_EPOCH | FINAL_EPOCH);
    if is_full {
        if id != FetchSessionId::NONE {
            end(core, id).await;
        }
        return if fetch.session_epoch == FINAL_EPOCH { Context::Sessionless } else { Context::Full };
    }
    // A session lives where it began: a client that comes by another core begins a new one.
    let lent =
        core.fetch_sessions.borrow_mut().lend(id, fetch.session_epoch, version >= BY_ID_SINCE, now_ms(core));
    match lent {
        Ok(session) => Context::Incremental(Lease { core: Rc::clone(core), session: Some(session) }),
        Err(error) => Context::Refused(error),
    }
}

fn now_ms(core: &Core) -> u64 {
    core.io.monotonic_now().as_nanos() / 1_000_000
}

/// A session that is in use. Given back when dropped, even where the request is dropped halfway.
pub(super) struct Lease {
    core: Rc<Core>,
    session: Option<Box<FetchSession>>,
}

impl Deref for Lease {
    type Target = FetchSession;

    fn deref(&self) -> &FetchSession {
        self.session.as_ref().expect("held until dropped")
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut FetchSession {
        self.session.as_mut().expect("held until dropped")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        let over = self.core.fetch_sessions.borrow_mut().give_back(session);
        if let Some(over) = over {
            close_parts(&self.core, over.id);
        }
    }
}

/// Begins a session with the partitions of a full fetch and what its answer shows of them; its id, or 0 where there is no room.
pub(super) fn begin(
    core: &Rc<Core>,
    fetch: &FetchRequest<'_>,
    version: i16,
    asked: &[Asked],
    results: &[ReadResult],
) -> FetchSessionId {
    let mut sessions = core.fetch_sessions.borrow_mut();
    let (fits, over) = sessions.make_room(asked.len(), now_ms(core));
    over.into_iter().for_each(|id| close_parts(core, id));
    if !fits || asked.is_empty() {
        return FetchSessionId::NONE;
    }
    let by_id = version >= BY_ID_SINCE;
    let mut session = Box::new(FetchSession::new(new_id(core, &sessions), by_id, core.core_count));
    session.update(&core.image(), fetch);
    let mut results = results.iter();
    for asked in asked {
        let Ok(position) = asked.position else { continue };
        let Some(result) = results.next() else { break };
        let topic = match fetch.topics.get(asked.topic) {
            Some(topic) if by_id => TopicName::Id(topic.topic_id),
            Some(topic) => TopicName::Name(topic.topic.into()),
            None => continue,
        };
        session.note_shown(position.key, &topic, &result.state);
    }
    let id = session.id;
    sessions.insert(session, now_ms(core));
    id
}

/// Random, so that a client of the broker before a restart does not meet a session of another; the rest of a division by the number of
/// cores is the session's core.
fn new_id(core: &Core, sessions: &SessionCache) -> FetchSessionId {
    loop {
        let random = (core.io.random_u64() >> 33) as u32;
        let id = FetchSessionId::of_core(core.id, core.core_count, random);
        if id != FetchSessionId::NONE && sessions.is_free(id) {
            return id;
        }
    }
}

/// Ends a session, wherever its home is.
async fn end(core: &Rc<Core>, id: FetchSessionId) {
    match id.home(core.core_count) {
        Some(home) if home == core.id => end_here(core, id),
        Some(home) => drop(core.mesh.send(home, CoreRequest::FetchSession(id, SessionRequest::End)).await),
        None => {}
    }
}

/// Ends a session of this core.
pub(crate) fn end_here(core: &Rc<Core>, id: FetchSessionId) {
    if core.fetch_sessions.borrow_mut().end(id) {
        close_parts(core, id);
    }
}

/// Tells the owners that a session is over. All cores are asked: which had a part is known only to the session, and it may be out on loan.
fn close_parts(core: &Rc<Core>, id: FetchSessionId) {
    core.session_parts.close(id);
    let others = (0..core.core_count).map(CoreId).filter(|other| *other != core.id);
    for other in others {
        let core = Rc::clone(core);
        core.io
            .clone()
            .spawn(Priority::Background, async move {
                drop(core.mesh.send(other, CoreRequest::FetchSession(id, SessionRequest::ClosePart)).await);
            })
            .detach();
    }
}

/// Serves a request of a session.
pub(super) async fn handle(
    core: &Rc<Core>,
    connection: &Rc<Connection>,
    mut info: RequestInfo,
    fetch: &FetchRequest<'_>,
    mut session: Lease,
) -> Answer {
    session.update(&core.image(), fetch);
    let deadline = core.io.monotonic_now() + Duration::from_millis(wait_ms(fetch.max_wait_ms));
    let needed = Needed {
        bytes_min: u64::try_from(fetch.min_bytes).unwrap_or(0),
        at_once: session.len() == 0 || session.unresolved().next().is_some(),
        deadline,
    };
    let states = until_enough(core, connection, &mut session, needed).await;
    info.clock.mark(Stage::Wait, core.io.monotonic_now().as_nanos());
    if connection.hang_up() == Some(HangUp::Broken) {
        return Answer::Close;
    }
    let bytes_max = u32::try_from(fetch.max_bytes).unwrap_or(0).min(core.config.limits.fetch_bytes_max);
    let (slots, reads) = share(&session, &states, bytes_max);
    let results = wait::collect(core, reads).await;
    info.clock.mark(Stage::Queue, core.io.monotonic_now().as_nanos());
    let given = results.iter().map(|result| result.pieces.iter().map(LogPiece::bytes).sum());
    core.observer.count(|metrics| metrics.fetch.add(given));
    answer(core, info, &mut session, states, slots.into_iter().zip(results).collect())
}

async fn until_enough(
    core: &Rc<Core>,
    connection: &Connection,
    session: &mut FetchSession,
    needed: Needed,
) -> BTreeMap<u32, PartitionState> {
    loop {
        let states = look(core, session).await;
        let available: u64 = states.values().map(|state| state.available_bytes).sum();
        let failed = states.values().any(PartitionState::is_final);
        if failed || available >= needed.bytes_min || wait::is_over(core, connection, &needed) {
            return states;
        }
        wait_for_more(core, connection, session, needed.bytes_min - available, &needed).await;
    }
}

/// What the owners have to tell of the session's partitions.
async fn look(core: &Rc<Core>, session: &mut FetchSession) -> BTreeMap<u32, PartitionState> {
    let id = session.id;
    let (mut calls, mut own) = (Vec::new(), None);
    for (owner, changes) in session.questions() {
        if owner == core.id {
            own = Some(changes);
        } else {
            let request = CoreRequest::FetchSession(id, SessionRequest::Look(changes));
            calls.push(core.mesh.send(owner, request).await);
        }
    }
    let mut states = BTreeMap::new();
    let mut take = |told: Vec<SlotState>| {
        states.extend(told.into_iter().map(|SlotState { slot, state }| (slot, state)));
    };
    if let Some(changes) = own {
        take(core.session_parts.look(core, id, changes));
    }
    for call in calls {
        match call.await {
            CoreReply::SlotStates(told) => take(told),
            _ => unreachable!("a look is answered by states"),
        }
    }
    states
}

/// On this core alone exactly `bytes_missing` are waited for; over several cores any news is.
async fn wait_for_more(
    core: &Rc<Core>,
    connection: &Connection,
    session: &FetchSession,
    bytes_missing: u64,
    needed: &Needed,
) {
    let id = session.id;
    let others: Vec<CoreId> = session.owners_now().filter(|owner| *owner != core.id).collect();
    let is_here = session.owners_now().any(|owner| owner == core.id);
    let mut watch = None;
    for other in &others {
        let watch = watch.get_or_insert_with(|| core.home_watches().open(core.id)).id;
        core.mesh.call(*other, CoreRequest::FetchSession(id, SessionRequest::Watch(watch))).await;
    }
    let here = async {
        match (is_here, others.is_empty()) {
            (false, _) => std::future::pending().await,
            (true, true) => core.session_parts.more(id, bytes_missing).await,
            (true, false) => core.session_parts.more(id, 1).await,
        }
    };
    wait::sleep(core, connection, here, watch, &others, needed.deadline).await;
}

/// What each partition that has something may return, in the session's order.
fn share(
    session: &FetchSession,
    states: &BTreeMap<u32, PartitionState>,
    bytes_max: u32,
) -> (Vec<u32>, Vec<ReadPart>) {
    let having = states.iter().filter(|(_, state)| !state.is_final() && state.available_bytes > 0);
    let entries = session.in_order(having.map(|(slot, _)| *slot));
    let wanted: Vec<Wanted> = entries
        .iter()
        .map(|(slot, entry)| Wanted {
            partition_bytes_max: entry.bytes_max,
            available_bytes: states[slot].available_bytes,
        })
        .collect();
    let grants = plan::share(bytes_max, &wanted);
    entries
        .iter()
        .zip(grants)
        .filter_map(|((slot, entry), Grant { bytes_max, at_least_one })| {
            let position = entry.position.ok()?;
            let part = ReadPart {
                key: position.key,
                from: position.from,
                epochs: position.epochs,
                bytes_max,
                at_least_one,
            };
            Some((*slot, part))
        })
        .unzip()
}

fn answer(
    core: &Core,
    info: RequestInfo,
    session: &mut Lease,
    mut states: BTreeMap<u32, PartitionState>,
    mut results: BTreeMap<u32, ReadResult>,
) -> Answer {
    for (slot, result) in &results {
        states.insert(*slot, result.state);
    }
    let slots: BTreeSet<u32> = states.keys().copied().chain(session.unresolved()).collect();
    let order: Vec<u32> = session.in_order(slots.into_iter()).into_iter().map(|(slot, _)| slot).collect();
    let mut shown = Vec::new();
    for slot in order {
        let bytes = results.get(&slot).map_or(0, |result| result.pieces.iter().map(LogPiece::bytes).sum());
        let is_shown = match states.get(&slot) {
            Some(state) => session.shows(slot, state, bytes),
            None => true,
        };
        if is_shown {
            shown.push(slot);
        }
    }
    let (mut sources, mut first_error) = (Vec::new(), ErrorCode::None);
    let mut responses: Vec<FetchableTopicResponse<'_>> = Vec::new();
    // The order is that of before this answer: what returned records has moved to the end since.
    for (topic, data) in shown.iter().filter_map(|slot| {
        let result = results.remove(slot);
        data_of(core, session, *slot, states.get(slot), result, &mut sources)
    }) {
        if first_error == ErrorCode::None {
            first_error = ErrorCode::from_i16(data.error_code).unwrap_or(ErrorCode::None);
        }
        put(&mut responses, topic, data);
    }
    // An empty session is over: the client begins a new one when it wants something again.
    let session_id = if session.len() == 0 { FetchSessionId::NONE } else { session.id };
    let response = FetchResponse { session_id: session_id.0, responses, ..FetchResponse::default() };
    let capacity_bytes = 64 + 96 * shown.len();
    reply_with_sources(info, first_error, capacity_bytes, sources, |writer, version| {
        response.encode(writer, version)
    })
}

fn data_of<'a>(
    core: &Core,
    session: &'a FetchSession,
    slot: u32,
    state: Option<&PartitionState>,
    result: Option<ReadResult>,
    sources: &mut Vec<Option<Outgoing>>,
) -> Option<(&'a TopicName, PartitionData<'a>)> {
    let entry = session.entry(slot)?;
    let data = match (entry.position, state) {
        (Err(error), _) => failed_partition(entry.index, error),
        (Ok(_), None) => return None,
        (Ok(_), Some(state)) => {
            let result = result.unwrap_or_else(|| ReadResult { state: *state, pieces: Vec::new() });
            partition_data(core, entry.index, result, sources)
        }
    };
    Some((&entry.topic, data))
}

/// Neighbours of one topic share its place.
fn put<'a>(responses: &mut Vec<FetchableTopicResponse<'a>>, topic: &'a TopicName, data: PartitionData<'a>) {
    let (name, id) = topic.parts();
    match responses.last_mut() {
        Some(last) if last.topic == name && last.topic_id == id => last.partitions.push(data),
        _ => responses.push(FetchableTopicResponse { topic: name, topic_id: id, partitions: vec![data] }),
    }
}
