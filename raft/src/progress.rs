//! What a leader knows of one other replica, and how fast it feeds it. Decides nothing about commit.

use std::collections::VecDeque;

use ringlog_protocol::ids::Offset;

use crate::ids::{Moment, ReplicaId, Round};
use crate::settings::APPENDS_IN_FLIGHT_MAX;

/// One member other than the leader.
///
/// Invariants: `matched <= log end`, `next <= log end`, the window's bytes are the sum of its appends, and their ends increase.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    pub(crate) replica: ReplicaId,
    pub(crate) flow: Flow,
    /// The first record that was not sent.
    pub(crate) next: Offset,
    /// One past the last record that it reported durable under this term's log term. `None`: not reconciled, so not counted.
    pub(crate) matched: Option<Offset>,
    /// The newest configuration that it reported durable in this term, 0 before the first.
    pub(crate) version: u64,
    /// The newest configuration that was sent.
    pub(crate) version_sent: u64,
    /// The newest round that it answered.
    pub(crate) confirmed: Round,
    /// When it last answered anything.
    pub(crate) contact: Moment,
    /// When it last came forward, or was last asked whether it lost something.
    pub(crate) advanced: Moment,
    /// When it was last known to hold everything.
    pub(crate) caught_up: Moment,
    /// Where the log ended, and when, at the last look: reaching it later proves to have been caught up then.
    pub(crate) mark: (Offset, Moment),
    pub(crate) reading: Reading,
    /// Demoted by this leader: not to be made a voter again by itself.
    pub(crate) stays_learner: bool,
    /// What is on the way. Boxed, and given back when the group falls quiet: most members are idle.
    window: Option<Box<Window>>,
}

/// Appends that wait for an answer.
#[derive(Clone, Debug, Default)]
struct Window {
    /// Where each ends, and its bytes, oldest first.
    appends: VecDeque<(Offset, u32)>,
    bytes: u64,
}

/// How a replica is fed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// One message at a time: where the logs part is not known, or something was lost.
    Probing { sent: Option<Probe>, paused: bool, verified: bool },
    /// Many messages at a time.
    Streaming,
    /// It copies a snapshot.
    Copying { since: Moment },
}

/// The one message whose answer is awaited. Its round belongs to no other message, so an answer to an older one is not taken for
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Probe {
    pub(crate) round: Round,
    /// `None` while the caller reads the records.
    pub(crate) end: Option<Offset>,
    pub(crate) at: Moment,
}

/// Whether the caller owes an answer to a `Replicate`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reading {
    Idle,
    Wanted,
    /// The answer will be of no use: the flow began anew meanwhile.
    Discarded,
}

/// Nothing is on the way, the next message asks whether logs part.
pub(crate) const UNVERIFIED: Flow = Flow::Probing { sent: None, paused: false, verified: false };
/// Nothing is on the way, the record before the next one is known to fit.
pub(crate) const VERIFIED: Flow = Flow::Probing { sent: None, paused: false, verified: true };

impl Progress {
    pub(crate) fn new(replica: ReplicaId, next: Offset, now: Moment) -> Progress {
        Progress {
            replica,
            flow: UNVERIFIED,
            next,
            matched: None,
            version: 0,
            version_sent: 0,
            confirmed: Round(0),
            contact: now,
            advanced: now,
            caught_up: now,
            mark: (next, now),
            reading: Reading::Idle,
            stays_learner: false,
            window: None,
        }
    }

    /// So many bytes may be sent now, 0 when the window is full.
    pub(crate) fn budget_bytes(&self, message_bytes_max: u32, in_flight_bytes_max: u32) -> u32 {
        let (appends, bytes) =
            self.window.as_ref().map_or((0, 0), |window| (window.appends.len(), window.bytes));
        if appends >= APPENDS_IN_FLIGHT_MAX {
            return 0;
        }
        let left = u64::from(in_flight_bytes_max).saturating_sub(bytes);
        u32::try_from(left).unwrap_or(u32::MAX).min(message_bytes_max)
    }

    pub(crate) fn sent(&mut self, end: Offset, bytes: u32) {
        self.next = end;
        let window = self.window.get_or_insert_default();
        window.appends.push_back((end, bytes));
        window.bytes += u64::from(bytes);
    }

    /// It holds everything below `end` on disk, as this term's log.
    pub(crate) fn holds(&mut self, end: Offset, now: Moment) {
        if self.matched.is_none_or(|matched| end > matched) {
            self.matched = Some(end);
            self.advanced = now;
        }
        self.next = self.next.max(end);
        let Some(window) = &mut self.window else { return };
        while let Some(&(sent_end, bytes)) = window.appends.front() {
            if sent_end > end {
                break;
            }
            window.appends.pop_front();
            window.bytes -= u64::from(bytes);
        }
    }

    /// Forgets what is on the way and goes on from `next`, one message at a time.
    pub(crate) fn begin_anew(&mut self, next: Offset, flow: Flow) {
        self.next = next;
        self.flow = flow;
        if let Some(window) = &mut self.window {
            window.appends.clear();
            window.bytes = 0;
        }
        if self.reading == Reading::Wanted {
            self.reading = Reading::Discarded;
        }
    }

    /// Notes whether it keeps up, in the way Kafka counts its in-sync replicas: it holds what the log held a while ago.
    pub(crate) fn look(&mut self, log_end: Offset, now: Moment) {
        let (end, at) = self.mark;
        if self.matched.is_some_and(|matched| matched >= end) {
            self.caught_up = self.caught_up.max(at);
            self.mark = (log_end, now);
        }
    }

    /// Gives the window's memory back where nothing is on the way.
    pub(crate) fn give_back(&mut self) {
        if self.window.as_ref().is_some_and(|window| window.appends.is_empty()) {
            self.window = None;
        }
    }

    pub(crate) fn holds_no_buffers(&self) -> bool {
        self.window.is_none()
    }

    pub(crate) fn pause(&mut self) {
        if let Flow::Probing { paused, .. } = &mut self.flow {
            *paused = true;
        }
    }

    pub(crate) fn validate(&self, log_end: Offset) {
        let replica = self.replica;
        assert!(self.next <= log_end, "{replica:?}: next {:?} above log end {log_end:?}", self.next);
        if let Some(matched) = self.matched {
            assert!(matched <= log_end, "{replica:?}: matched {matched:?} above log end {log_end:?}");
            assert!(matched <= self.next, "{replica:?}: matched {matched:?} above next {:?}", self.next);
        }
        if let Some(Window { appends, bytes }) = self.window.as_deref() {
            let sum: u64 = appends.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
            assert_eq!(sum, *bytes, "{replica:?}: bytes in flight");
            let count = appends.len();
            assert!(count <= APPENDS_IN_FLIGHT_MAX, "{replica:?}: {count} appends in flight");
            assert!(appends.iter().is_sorted(), "{replica:?}: window out of order");
        }
        if self.flow == Flow::Streaming {
            assert!(self.matched.is_some(), "{replica:?} is streamed to before it is reconciled");
        }
    }
}
