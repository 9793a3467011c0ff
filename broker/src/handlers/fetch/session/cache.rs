//! The sessions of one core: how many there are, which are in use, and which make room for others. Pure: what goes is handed to the caller, whose
//! duty it is to tell the owners.
//!
//! Who makes room, as in Kafka: one that nobody used for two minutes, or one that is smaller than the new one and two minutes old.

use std::collections::BTreeMap;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_shard::limits::{FETCH_SESSION_KEPT_MS, FETCH_SESSION_PARTITIONS_PER_CORE_MAX};

use super::FetchSession;
use crate::core::messages::FetchSessionId;

/// See the module. Invariant: `partitions` is the sum of the sizes.
#[derive(Debug)]
pub struct SessionCache {
    slots_max: usize,
    held: BTreeMap<FetchSessionId, Held>,
    partitions: usize,
    evicted: u64,
}

#[derive(Debug)]
struct Held {
    /// `None` while a request of it is served.
    session: Option<Box<FetchSession>>,
    partitions: usize,
    opened_ms: u64,
    used_ms: u64,
}

impl SessionCache {
    /// A cache for so many sessions.
    pub fn new(slots_max: usize) -> SessionCache {
        SessionCache { slots_max, held: BTreeMap::new(), partitions: 0, evicted: 0 }
    }

    /// Whether the name is free.
    pub(in crate::handlers::fetch) fn is_free(&self, id: FetchSessionId) -> bool {
        !self.held.contains_key(&id)
    }

    /// Whether there is room for a session of so many partitions. Sessions that make room for it come back as the second: they are over.
    pub(in crate::handlers::fetch) fn make_room(
        &mut self,
        partitions: usize,
        now_ms: u64,
    ) -> (bool, Vec<FetchSessionId>) {
        let mut over = Vec::new();
        while self.held.len() >= self.slots_max || !self.fits(partitions) {
            let Some(id) = self.least_worth(partitions, now_ms) else { return (false, over) };
            self.evicted += 1;
            over.push(id);
            // In use or not: what is handed out comes back to nothing.
            self.remove(id);
        }
        (true, over)
    }

    fn fits(&self, partitions: usize) -> bool {
        self.partitions + partitions <= FETCH_SESSION_PARTITIONS_PER_CORE_MAX
    }

    fn least_worth(&self, partitions: usize, now_ms: u64) -> Option<FetchSessionId> {
        let is_old = |since_ms: u64| now_ms.saturating_sub(since_ms) > FETCH_SESSION_KEPT_MS;
        let idle =
            self.held.iter().filter(|(_, held)| is_old(held.used_ms)).min_by_key(|(_, held)| held.used_ms);
        let smaller = || {
            let old = self.held.iter().filter(|(_, held)| is_old(held.opened_ms));
            old.min_by_key(|(_, held)| held.partitions).filter(|(_, held)| held.partitions < partitions)
        };
        idle.or_else(smaller).map(|(id, _)| *id)
    }

    /// Keeps a new session. The caller has made room.
    pub(in crate::handlers::fetch) fn insert(&mut self, session: Box<FetchSession>, now_ms: u64) {
        let (id, partitions) = (session.id, session.len());
        self.partitions += partitions;
        let held = Held { session: Some(session), partitions, opened_ms: now_ms, used_ms: now_ms };
        self.held.insert(id, held);
    }

    /// Hands the session out for its request of this epoch.
    ///
    /// # Errors
    /// FETCH_SESSION_ID_NOT_FOUND (70); INVALID_FETCH_SESSION_EPOCH (71), also where a request of it is under way, which a client
    /// never sends; FETCH_SESSION_TOPIC_ID_ERROR (106).
    pub(in crate::handlers::fetch) fn lend(
        &mut self,
        id: FetchSessionId,
        epoch: i32,
        by_id: bool,
        now_ms: u64,
    ) -> Result<Box<FetchSession>, ErrorCode> {
        let held = self.held.get_mut(&id).ok_or(ErrorCode::FetchSessionIdNotFound)?;
        let session = held.session.as_mut().ok_or(ErrorCode::InvalidFetchSessionEpoch)?;
        session.begin(epoch, by_id)?;
        held.used_ms = now_ms;
        held.session.take().ok_or(ErrorCode::InvalidFetchSessionEpoch)
    }

    /// Takes a session back. It is over where it is empty, grew beyond what this core holds, or was ended meanwhile: then it comes back.
    pub(in crate::handlers::fetch) fn give_back(
        &mut self,
        session: Box<FetchSession>,
    ) -> Option<Box<FetchSession>> {
        let Some(held) = self.held.get_mut(&session.id) else { return Some(session) };
        self.partitions = self.partitions - held.partitions + session.len();
        held.partitions = session.len();
        if session.len() == 0 || self.partitions > FETCH_SESSION_PARTITIONS_PER_CORE_MAX {
            self.remove(session.id);
            return Some(session);
        }
        held.session = Some(session);
        None
    }

    /// Ends the session; whether there was one.
    pub(in crate::handlers::fetch) fn end(&mut self, id: FetchSessionId) -> bool {
        self.remove(id)
    }

    fn remove(&mut self, id: FetchSessionId) -> bool {
        let removed = self.held.remove(&id);
        self.partitions -= removed.as_ref().map_or(0, |held| held.partitions);
        removed.is_some()
    }

    /// Sessions held.
    pub fn count(&self) -> usize {
        self.held.len()
    }

    /// Partitions of all of them.
    pub fn partitions(&self) -> usize {
        self.partitions
    }

    /// Sessions that made room for others.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(id: i32, partitions: usize) -> Box<FetchSession> {
        let mut session = FetchSession::new(FetchSessionId(id), false, 1);
        for index in 0..partitions {
            session.enter((super::super::TopicName::Name("t".into()), index as i32));
        }
        Box::new(session)
    }

    fn open(cache: &mut SessionCache, id: i32, partitions: usize, now_ms: u64) -> Option<Vec<i32>> {
        let (fits, over) = cache.make_room(partitions, now_ms);
        if fits {
            cache.insert(session(id, partitions), now_ms);
        }
        fits.then(|| over.iter().map(|id| id.0).collect())
    }

    #[test]
    fn a_session_that_nobody_uses_makes_room() {
        let mut cache = SessionCache::new(2);
        assert_eq!(open(&mut cache, 1, 5, 0), Some(vec![]));
        assert_eq!(open(&mut cache, 2, 5, 10), Some(vec![]));
        assert_eq!(open(&mut cache, 3, 5, 20), None, "both are young");
        assert_eq!(open(&mut cache, 3, 5, FETCH_SESSION_KEPT_MS + 1), Some(vec![1]));
        assert_eq!((cache.count(), cache.partitions(), cache.evicted()), (2, 10, 1));
    }

    #[test]
    fn a_small_old_session_makes_room_for_a_large_one() {
        let mut cache = SessionCache::new(2);
        open(&mut cache, 1, 3, 0);
        open(&mut cache, 2, 4, 0);
        let late_ms = FETCH_SESSION_KEPT_MS + 1;
        for id in [1, 2] {
            let lent = cache.lend(FetchSessionId(id), 1, false, late_ms).expect("there");
            assert!(cache.give_back(lent).is_none());
        }
        assert_eq!(open(&mut cache, 9, 3, late_ms), None, "it is not larger");
        assert_eq!(open(&mut cache, 9, 4, late_ms), Some(vec![1]));
    }

    #[test]
    fn requests_come_in_order_and_one_at_a_time() {
        let mut cache = SessionCache::new(2);
        open(&mut cache, 7, 1, 0);
        let id = FetchSessionId(7);
        let lend = |cache: &mut SessionCache, epoch, by_id| cache.lend(id, epoch, by_id, 0);
        assert_eq!(lend(&mut cache, 2, false).err(), Some(ErrorCode::InvalidFetchSessionEpoch));
        assert_eq!(lend(&mut cache, 1, true).err(), Some(ErrorCode::FetchSessionTopicIdError));
        let lent = lend(&mut cache, 1, false).expect("the first one");
        assert_eq!(lend(&mut cache, 2, false).err(), Some(ErrorCode::InvalidFetchSessionEpoch), "in use");
        assert!(cache.give_back(lent).is_none());
        assert_eq!(lend(&mut cache, 1, false).err(), Some(ErrorCode::InvalidFetchSessionEpoch), "again");
        let lent = lend(&mut cache, 2, false).expect("the second one");
        assert!(cache.end(id), "another request ends it");
        assert_eq!(cache.give_back(lent).map(|over| over.id), Some(id));
        assert_eq!(lend(&mut cache, 3, false).err(), Some(ErrorCode::FetchSessionIdNotFound));
        assert_eq!(cache.partitions(), 0);
    }

    #[test]
    fn no_sessions_are_kept_where_none_may_be() {
        assert_eq!(open(&mut SessionCache::new(0), 1, 1, 0), None);
    }

    #[test]
    fn partitions_are_bounded_too() {
        let mut cache = SessionCache::new(10);
        assert_eq!(open(&mut cache, 1, FETCH_SESSION_PARTITIONS_PER_CORE_MAX, 0), Some(vec![]));
        assert_eq!(open(&mut cache, 2, 1, 0), None);
        let mut lent = cache.lend(FetchSessionId(1), 1, false, 0).expect("there");
        lent.enter((super::super::TopicName::Name("more".into()), 0));
        assert!(cache.give_back(lent).is_some(), "it grew too large: the client goes on without a session");
        assert_eq!((cache.count(), cache.partitions()), (0, 0));
    }
}
