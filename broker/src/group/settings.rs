//! What the operator sets for groups, with Kafka's defaults.

use super::assign::{ASSIGNORS, Assignor};

/// See Kafka's keys of the same names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupSettings {
    /// `group.min.session.timeout.ms`.
    pub session_timeout_ms_min: i32,
    /// `group.max.session.timeout.ms`.
    pub session_timeout_ms_max: i32,
    /// `group.initial.rebalance.delay.ms`: an empty group waits so long for more members.
    pub initial_rebalance_delay_ms: i32,
    /// `group.max.size`; the bound of this build holds besides.
    pub members_max: usize,
    /// `offset.metadata.max.bytes`; counted as Kafka does, in UTF-16 units.
    pub offset_metadata_max: usize,
    /// `offsets.retention.minutes`, in milliseconds.
    pub offsets_retention_ms: i64,
}

/// Of consumer groups (KIP-848). See Kafka's keys `group.consumer.*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConsumerSettings {
    /// `session.timeout.ms`.
    pub session_timeout_ms: i32,
    /// `heartbeat.interval.ms`: what members are told.
    pub heartbeat_interval_ms: i32,
    /// `max.size`; the bound of this build holds besides.
    pub members_max: usize,
    /// `migration.policy`.
    pub migration: Migration,
    /// `assignment.interval.ms`: an assignment follows another so much later at the earliest.
    pub assignment_interval_ms: i64,
    /// `assignors`: those that members may name, not empty. The first is the one where nobody names any.
    pub assignors: &'static [Assignor],
}

/// Which groups may change their kind while they work.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Migration {
    Disabled,
    /// Classic groups become consumer groups.
    Upgrade,
    /// Consumer groups become classic ones.
    Downgrade,
    #[default]
    Bidirectional,
}

/// What is set for one group (a GROUP resource); `None`: as for all.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct GroupOverrides {
    /// `consumer.session.timeout.ms`.
    pub session_timeout_ms: Option<i32>,
    /// `consumer.heartbeat.interval.ms`.
    pub heartbeat_interval_ms: Option<i32>,
    /// `consumer.assignment.interval.ms`.
    pub assignment_interval_ms: Option<i64>,
}

impl Migration {
    pub(super) fn upgrades(self) -> bool {
        matches!(self, Migration::Upgrade | Migration::Bidirectional)
    }

    pub(super) fn downgrades(self) -> bool {
        matches!(self, Migration::Downgrade | Migration::Bidirectional)
    }
}

impl ConsumerSettings {
    /// Where members name none.
    pub(super) fn assignor(&self) -> Assignor {
        self.assignors.first().copied().unwrap_or_default()
    }

    pub(super) fn with(self, own: GroupOverrides) -> ConsumerSettings {
        ConsumerSettings {
            session_timeout_ms: own.session_timeout_ms.unwrap_or(self.session_timeout_ms),
            heartbeat_interval_ms: own.heartbeat_interval_ms.unwrap_or(self.heartbeat_interval_ms),
            assignment_interval_ms: own.assignment_interval_ms.unwrap_or(self.assignment_interval_ms),
            ..self
        }
    }
}

impl Default for ConsumerSettings {
    fn default() -> ConsumerSettings {
        ConsumerSettings {
            session_timeout_ms: 45_000,
            heartbeat_interval_ms: 5_000,
            members_max: usize::MAX,
            migration: Migration::default(),
            assignment_interval_ms: 1_000,
            assignors: &ASSIGNORS,
        }
    }
}

impl Default for GroupSettings {
    fn default() -> GroupSettings {
        GroupSettings {
            session_timeout_ms_min: 6_000,
            session_timeout_ms_max: 1_800_000,
            initial_rebalance_delay_ms: 3_000,
            members_max: usize::MAX,
            offset_metadata_max: 4_096,
            offsets_retention_ms: 7 * 24 * 3_600_000,
        }
    }
}
