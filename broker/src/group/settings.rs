//! What the operator sets for groups, with Kafka's defaults.

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
