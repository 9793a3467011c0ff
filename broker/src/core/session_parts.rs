//! The owner's half of fetch sessions (KIP-227): where each session stands in this core's partitions, and which of them have news.
//! A fetch costs what happened, not how many partitions its session has.
//!
//! The other half, with what was shown to the client, is at the session's home: `handlers::fetch::session`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_shard::ready::ReadySet;

use super::Core;
use super::messages::{
    CoreReply, FetchSessionId, PartitionState, PositionPart, SessionRequest, SlotChange, SlotState,
};
use super::serve;
use crate::handlers::fetch::incremental;

/// Acts on what another core asks for a session.
pub fn serve(core: &Rc<Core>, session: FetchSessionId, request: SessionRequest) -> CoreReply {
    match request {
        SessionRequest::Look(changes) => {
            return CoreReply::SlotStates(core.session_parts.look(core, session, changes));
        }
        SessionRequest::Watch(watch) => serve::tell_when(core, watch, core.session_parts.more(session, 1)),
        SessionRequest::ClosePart => core.session_parts.close(session),
        SessionRequest::End => incremental::end_here(core, session),
    }
    CoreReply::Done
}

/// This core's parts of all sessions of the node.
#[derive(Default)]
pub struct SessionParts {
    parts: RefCell<BTreeMap<FetchSessionId, Rc<RefCell<Part>>>>,
}

/// One session's partitions on this core. Invariant: both hold the same slots.
#[derive(Default)]
struct Part {
    positions: BTreeMap<u32, PositionPart>,
    ready: ReadySet,
}

impl SessionParts {
    /// Takes the changes over, and looks at every partition that has news, changed, or had something at the last look. What has nothing to
    /// return is told once.
    pub fn look(&self, core: &Core, session: FetchSessionId, changes: Vec<SlotChange>) -> Vec<SlotState> {
        let part = Rc::clone(self.parts.borrow_mut().entry(session).or_default());
        let mut part = part.borrow_mut();
        for SlotChange { slot, position } in changes {
            part.change(core, slot, position);
        }
        let slots = part.ready.begin_look();
        slots.into_iter().filter_map(|slot| part.look(core, slot)).collect()
    }

    /// Resolves once `missing_bytes` more can be read than at the last look, or a partition wants attention; at once where the session has
    /// no part here.
    pub fn more(&self, session: FetchSessionId, missing_bytes: u64) -> impl Future<Output = ()> + use<> {
        let parts = self.parts.borrow();
        let more = parts.get(&session).map(|part| part.borrow().ready.more(missing_bytes));
        async move {
            if let Some(more) = more {
                more.await;
            }
        }
    }

    /// The session is over.
    pub fn close(&self, session: FetchSessionId) {
        self.parts.borrow_mut().remove(&session);
    }

    pub fn count(&self) -> usize {
        self.parts.borrow().len()
    }
}

impl Part {
    fn change(&mut self, core: &Core, slot: u32, position: Option<PositionPart>) {
        let Some(position) = position else {
            self.positions.remove(&slot);
            self.ready.remove(slot);
            return;
        };
        let before = self.positions.insert(slot, position);
        if before.is_some_and(|before| before.key == position.key) && self.ready.hears(slot) {
            self.ready.want_look(slot);
        } else {
            self.ready.put(slot, core.store.watchers(position.key).ok().as_ref());
        }
    }

    fn look(&mut self, core: &Core, slot: u32) -> Option<SlotState> {
        let position = *self.positions.get(&slot)?;
        let state = serve::state_of(core, &position);
        let is_gone = matches!(
            state.error,
            ErrorCode::UnknownTopicOrPartition
                | ErrorCode::NotLeaderOrFollower
                | ErrorCode::KafkaStorageError
        );
        if is_gone {
            // It may come back as another one: looked for again with each look, since errors stay ready.
            self.ready.put(slot, core.store.watchers(position.key).ok().as_ref());
        } else if !has_something(&state) {
            self.ready.settle(slot);
        }
        Some(SlotState { slot, state })
    }
}

fn has_something(state: &PartitionState) -> bool {
    state.is_final() || state.available_bytes > 0
}
