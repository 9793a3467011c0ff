//! Owns the settings of groups, typed: what the keys `group.*` and `offsets.*` come to, and what several of them must be together.

use super::error::ConfigError;
use super::load::Resolved;
use crate::group::assign::Assignor;
use crate::group::{ConsumerSettings, Migration};

const MS_PER_MINUTE: i64 = 60_000;

/// What a look costs may not become what a core does.
const LAG_INTERVAL_MS_MIN: u64 = 1_000;

/// The sets of assignors that may be set: as text, and as groups know them.
const ASSIGNORS: [(&str, &[Assignor]); 4] = [
    ("uniform,range", &[Assignor::Uniform, Assignor::Range]),
    ("range,uniform", &[Assignor::Range, Assignor::Uniform]),
    ("uniform", &[Assignor::Uniform]),
    ("range", &[Assignor::Range]),
];

/// What consumer groups may do, and the topic that they are kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupConfig {
    /// `group.min.session.timeout.ms`.
    pub session_timeout_ms_min: i32,
    /// `group.max.session.timeout.ms`.
    pub session_timeout_ms_max: i32,
    /// `group.initial.rebalance.delay.ms`.
    pub initial_rebalance_delay_ms: i32,
    /// `group.max.size`; 1 or more.
    pub members_max: usize,
    /// `offset.metadata.max.bytes`, in UTF-16 units.
    pub offset_metadata_max: usize,
    /// `offsets.retention.minutes`, in milliseconds.
    pub offsets_retention_ms: i64,
    /// `offsets.retention.check.interval.ms`; 1 or more.
    pub offsets_check_ms: u64,
    /// `offsets.topic.num.partitions`; 1 or more.
    pub topic_partitions: i32,
    /// `offsets.topic.segment.bytes`.
    pub topic_segment_bytes: i32,
    /// `ringlog.group.lag.interval.ms`; 0 = never, otherwise 1,000 or more.
    pub lag_interval_ms: u64,
    /// `ringlog.group.lag.max.groups`.
    pub lag_groups_max: usize,
    /// `ringlog.group.lag.max.topics`.
    pub lag_topics_max: usize,
    /// `group.consumer.*`.
    pub consumer: ConsumerSettings,
}

impl GroupConfig {
    pub(super) fn of(resolved: &Resolved) -> GroupConfig {
        let number = |name: &str| resolved.integer(name) as i32;
        let size = |name: &str| resolved.integer(name) as usize;
        GroupConfig {
            session_timeout_ms_min: number("group.min.session.timeout.ms"),
            session_timeout_ms_max: number("group.max.session.timeout.ms"),
            initial_rebalance_delay_ms: number("group.initial.rebalance.delay.ms"),
            members_max: size("group.max.size"),
            offset_metadata_max: size("offset.metadata.max.bytes"),
            offsets_retention_ms: resolved.integer("offsets.retention.minutes") * MS_PER_MINUTE,
            offsets_check_ms: resolved.integer("offsets.retention.check.interval.ms") as u64,
            topic_partitions: number("offsets.topic.num.partitions"),
            topic_segment_bytes: number("offsets.topic.segment.bytes"),
            lag_interval_ms: match resolved.integer("ringlog.group.lag.interval.ms") {
                0 => 0,
                interval_ms => (interval_ms as u64).max(LAG_INTERVAL_MS_MIN),
            },
            lag_groups_max: size("ringlog.group.lag.max.groups"),
            lag_topics_max: size("ringlog.group.lag.max.topics"),
            consumer: consumer(resolved),
        }
    }
}

fn consumer(resolved: &Resolved) -> ConsumerSettings {
    let number = |name: &str| resolved.integer(name) as i32;
    let assignors = resolved.choice("group.consumer.assignors");
    ConsumerSettings {
        session_timeout_ms: number("group.consumer.session.timeout.ms"),
        heartbeat_interval_ms: number("group.consumer.heartbeat.interval.ms"),
        members_max: resolved.integer("group.consumer.max.size") as usize,
        migration: match resolved.choice("group.consumer.migration.policy") {
            "disabled" => Migration::Disabled,
            "upgrade" => Migration::Upgrade,
            "downgrade" => Migration::Downgrade,
            _ => Migration::Bidirectional,
        },
        assignment_interval_ms: resolved.integer("group.consumer.assignment.interval.ms"),
        assignors: ASSIGNORS
            .iter()
            .find(|(text, _)| *text == assignors)
            .map_or(ConsumerSettings::default().assignors, |(_, assignors)| assignors),
    }
}

/// What Kafka refuses to start with.
pub(super) fn conflicts(resolved: &Resolved) -> Vec<ConfigError> {
    let mut found = Vec::new();
    for what in ["session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"] {
        let own = format!("group.consumer.{what}");
        let (least, most) = (format!("group.consumer.min.{what}"), format!("group.consumer.max.{what}"));
        let value = resolved.integer(&own);
        for (bound, is_wrong, how) in [
            (&least, value < resolved.integer(&least), "smaller"),
            (&most, value > resolved.integer(&most), "larger"),
        ] {
            if is_wrong {
                let problem = format!("{how} than `{bound}` = {}; change that too", resolved.integer(bound));
                found.push(conflict(resolved, &own, problem));
            }
        }
    }
    let (beat, session) = ("group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms");
    if resolved.integer(beat) >= resolved.integer(session) {
        let problem = format!("not smaller than `{session}` = {}", resolved.integer(session));
        found.push(conflict(resolved, beat, problem));
    }
    found
}

fn conflict(resolved: &Resolved, name: &str, problem: String) -> ConfigError {
    let setting = resolved.setting(name);
    let (key, value, origin) = (setting.key.name, setting.text.clone(), setting.origin.clone());
    ConfigError::Conflict { key, value, origin, problem }
}
