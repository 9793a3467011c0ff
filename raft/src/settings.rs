//! What an operator may choose about a group, and the bounds that nobody chooses. Owns no behaviour.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

/// Most persists that a follower keeps in flight before it answers `Busy`: at one journal frame per 100 us it is a tenth of a
/// second of work, and it bounds the queue that a slow disk builds up.
pub const PERSISTS_IN_FLIGHT_MAX: usize = 1024;
/// Most appends that wait for an answer of one follower. With the bound in bytes it keeps the window small enough to search.
pub const APPENDS_IN_FLIGHT_MAX: usize = 64;
/// Most configurations that a leader keeps for followers behind it, and most that one append may carry. A follower that needs an
/// older one becomes reconciled a little later instead: where the oldest one kept lies.
pub const CONFIGURATIONS_MAX: usize = 8;

/// Settings of one group. They may differ between its replicas: they decide when things happen, never whether they are safe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Silence of a leader after which a follower asks for votes: between once and twice this, at random. Also the time after
    /// which a leader that hears from no majority steps down.
    pub election_timeout: Duration,
    /// Pause between two heartbeats: at most a third of `election_timeout`.
    pub heartbeat_interval: Duration,
    /// 0 asks for votes first; each step waits one heartbeat interval more. A tie-break: it never outweighs a more complete log.
    pub priority: u8,
    /// `min.insync.replicas`: a record is committed only on so many voters, or on all where there are fewer.
    pub copies_min: usize,
    /// Most bytes of one append.
    pub message_bytes_max: u32,
    /// Most bytes on their way to one follower; one append may pass it.
    pub in_flight_bytes_max: u32,
    /// A leader makes voters of learners that caught up, one at a time, except those that it demoted itself.
    pub promote_learners: bool,
    /// The caller keeps the rules of `Group::is_quiescent`: it does not tick quiet groups, and watches the nodes in their place. Off, a
    /// group is never quiet. On where the caller does not keep them, followers of a silent leader would elect others for nothing.
    pub quiesce: bool,
    /// A leader whose oldest write takes longer than this steps down where another voter could lead.
    pub write_stall_timeout: Duration,
    /// `replica.lag.time.max.ms`: a replica that did not reach the leader's end for so long is not in sync.
    pub lag_time_max: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        DEFAULT
    }
}

const DEFAULT: Settings = Settings {
    election_timeout: Duration::from_millis(1_000),
    heartbeat_interval: Duration::from_millis(100),
    priority: 0,
    copies_min: 1,
    message_bytes_max: 1 << 20,
    in_flight_bytes_max: 4 << 20,
    promote_learners: true,
    quiesce: false,
    write_stall_timeout: Duration::from_secs(10),
    lag_time_max: Duration::from_secs(30),
};

/// The settings that a group works by. The groups of a core share one value; a group of one, which asks for nothing, has the
/// default ones and keeps nothing for it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared(Option<Arc<Settings>>);

impl From<Arc<Settings>> for Shared {
    fn from(settings: Arc<Settings>) -> Shared {
        Shared(Some(settings))
    }
}

impl Deref for Shared {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        self.0.as_deref().unwrap_or(&DEFAULT)
    }
}
