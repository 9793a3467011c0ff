//! A group's view of time: what its caller's ticks told, and when it loses patience. Never reads a clock.

use std::time::Duration;

use crate::ids::Moment;
use crate::settings::Settings;

/// What a tick found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Passed {
    /// Time went on as usual.
    Usual,
    /// No tick came for longer than an election timeout, or never before: the group was quiesced or its process stood still, and
    /// messages may wait unread. Silence proves nothing yet, so every patience begins anew.
    Gap,
}

/// Time as told, and the election timer.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    now: Moment,
    ticked: bool,
    last_was_gap: bool,
    /// State of the generator for timeouts (splitmix64).
    random: u64,
    election_at: Moment,
    /// When the leader of this term was last heard. `None`: never, or it leads no more.
    contact: Option<Moment>,
}

impl Clock {
    pub(crate) fn new(seed: u64) -> Clock {
        Clock {
            now: Moment(0),
            ticked: false,
            last_was_gap: false,
            random: seed,
            election_at: Moment(u64::MAX),
            contact: None,
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.now
    }

    pub(crate) fn since(&self, then: Moment) -> Duration {
        Duration::from_nanos(self.now.0.saturating_sub(then.0))
    }

    /// Takes the time. Two gaps in a row count as usual, or a node that is always late would never elect anybody.
    pub(crate) fn tick(&mut self, now: Moment, settings: &Settings) -> Passed {
        let before = self.now;
        self.now = now.max(before);
        let late = !self.ticked || self.since(before) > settings.election_timeout;
        let gap = late && !self.last_was_gap;
        self.ticked = true;
        self.last_was_gap = gap;
        if gap { Passed::Gap } else { Passed::Usual }
    }

    /// True when `now` lies in another heartbeat interval than the tick before: groups of one clock beat together, so that their
    /// heartbeats share messages.
    pub(crate) fn beats(&self, before: Moment, settings: &Settings) -> bool {
        let interval = settings.heartbeat_interval.as_nanos().max(1);
        u128::from(self.now.0) / interval != u128::from(before.0) / interval
    }

    pub(crate) fn heard_leader(&mut self) {
        self.contact = Some(self.now);
    }

    pub(crate) fn forget_leader(&mut self) {
        self.contact = None;
    }

    /// After a gap, a leader once heard gets its time again.
    pub(crate) fn excuse_leader(&mut self) {
        self.contact = self.contact.map(|_| self.now);
    }

    /// True while the leader of this term was heard within the shortest election timeout.
    pub(crate) fn in_contact(&self, settings: &Settings) -> bool {
        self.contact.is_some_and(|then| self.since(then) < settings.election_timeout)
    }

    /// Starts the election timer anew: once to twice the timeout at random, and `steps` heartbeat intervals more.
    pub(crate) fn arm(&mut self, settings: &Settings, steps: u32) {
        let timeout = u64::try_from(settings.election_timeout.as_nanos()).unwrap_or(u64::MAX / 4).max(1);
        let spread = self.random_below(timeout);
        let later = settings.heartbeat_interval.saturating_mul(steps);
        let later = u64::try_from(later.as_nanos()).unwrap_or(u64::MAX / 4);
        let wait = timeout.saturating_add(spread).saturating_add(later);
        self.election_at = Moment(self.now.0.saturating_add(wait));
    }

    pub(crate) fn lost_patience(&self) -> bool {
        self.ticked && self.now >= self.election_at
    }

    /// A number below `bound`.
    pub(crate) fn random_below(&mut self, bound: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound.max(1)
    }
}
