//! ConsumerGroupHeartbeat and ConsumerGroupDescribe as values, and what can be told of a request without the group's state. The texts
//! say what Kafka's say: clients show them.

use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::TopicPartition;
use ringlog_shard::limits::{GROUP_TEXT_BYTES_MAX, MACHINE_PROPOSAL_BYTES_MAX};

use super::regex;
use crate::group::assign::Assignor;
use crate::group::event::{GroupId, MemberId};

/// The member leaves.
pub const LEAVES: i32 = -1;

/// The static member leaves for a while.
pub const LEAVES_FOR_A_WHILE: i32 = -2;

/// ConsumerGroupHeartbeat versions from here on come with a name that the client made.
const NAMED_BY_CLIENT_SINCE: i16 = 1;

/// Bytes of what one member may say: its record must fit in the log with all around it.
const METADATA_BYTES_MAX: usize = MACHINE_PROPOSAL_BYTES_MAX / 2;

/// A member of a consumer group that joins, lives or leaves.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ConsumerHeartbeatRequest {
    /// Of the API.
    pub version: i16,
    pub group: GroupId,
    pub member: MemberId,
    /// 0: joins; [`LEAVES`]; [`LEAVES_FOR_A_WHILE`].
    pub epoch: i32,
    /// Of a static member; `None`: none, or as before.
    pub instance: Option<Arc<str>>,
    /// `None`: none, or as before.
    pub rack: Option<Arc<str>>,
    /// In milliseconds; -1: as before.
    pub rebalance_timeout_ms: i32,
    /// Topics by name; `None`: as before.
    pub names: Option<Vec<Arc<str>>>,
    /// An expression over topics; `None`: as before; empty: none.
    pub regex: Option<Arc<str>>,
    /// `None`: the broker's choice, or as before.
    pub assignor: Option<Arc<str>>,
    /// What the member has; `None`: as before.
    pub owned: Option<Vec<TopicPartition>>,
    pub client_id: Arc<str>,
    /// As Kafka shows it: a slash and the address.
    pub client_host: Arc<str>,
    /// Becomes the name of a new member that brings none.
    pub random: [u8; 16],
}

/// Where a member stands after its heartbeat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsumerHeartbeatReply {
    pub error: ErrorCode,
    pub message: Option<String>,
    /// `None` with an error.
    pub member: Option<MemberId>,
    /// 0 with an error.
    pub epoch: i32,
    /// How long the member waits until its next heartbeat, in milliseconds; 0 with an error.
    pub heartbeat_interval_ms: i32,
    /// What the member is to have, in order; `None`: as before.
    pub assignment: Option<Vec<TopicPartition>>,
}

/// Why a request is not followed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::group) struct Refusal {
    pub error: ErrorCode,
    pub message: String,
}

impl Refusal {
    pub fn new(error: ErrorCode, message: impl Into<String>) -> Refusal {
        Refusal { error, message: message.into() }
    }
}

impl ConsumerHeartbeatReply {
    pub(in crate::group) fn refused(error: ErrorCode) -> ConsumerHeartbeatReply {
        ConsumerHeartbeatReply {
            error,
            message: None,
            member: None,
            epoch: 0,
            heartbeat_interval_ms: 0,
            assignment: None,
        }
    }
}

impl From<Refusal> for ConsumerHeartbeatReply {
    fn from(refusal: Refusal) -> ConsumerHeartbeatReply {
        let Refusal { error, message } = refusal;
        ConsumerHeartbeatReply { message: Some(message), ..ConsumerHeartbeatReply::refused(error) }
    }
}

impl ConsumerHeartbeatRequest {
    /// Whether all is said that a member can say: it then wants to be told all.
    pub(super) fn is_full(&self) -> bool {
        self.epoch == 0 || (self.rebalance_timeout_ms != -1 && self.wishes() && self.owned.is_some())
    }

    fn wishes(&self) -> bool {
        self.names.is_some() || self.regex.is_some()
    }

    /// Bytes of texts.
    pub(in crate::group) fn bytes(&self) -> usize {
        let names = self.names.iter().flatten().map(|name| 16 + name.len());
        self.member.len() + names.chain(self.texts()).sum::<usize>()
    }

    fn texts(&self) -> impl Iterator<Item = usize> {
        let optional = [&self.instance, &self.rack, &self.regex, &self.assignor].into_iter().flatten();
        let given = [&self.client_id, &self.client_host, &self.member].into_iter();
        optional.chain(given).map(|text| text.len())
    }

    /// What can be told without the group. `assignors`: those that may be named.
    ///
    /// # Errors
    /// `INVALID_REQUEST`, `INVALID_GROUP_ID`, `UNSUPPORTED_ASSIGNOR`.
    pub(in crate::group) fn check(&self, assignors: &[Assignor]) -> Result<(), Refusal> {
        let invalid = |message: &str| Err(Refusal::new(ErrorCode::InvalidRequest, message));
        let is_empty = |text: &Option<Arc<str>>| text.as_ref().is_some_and(|text| text.is_empty());
        if self.group.is_empty() {
            return invalid("The group's id is empty.");
        }
        if self.group.len() > GROUP_TEXT_BYTES_MAX {
            let message = format!("a group's name of {} bytes", self.group.len());
            return Err(Refusal::new(ErrorCode::InvalidGroupId, message));
        }
        if self.member.is_empty() && (self.version >= NAMED_BY_CLIENT_SINCE || self.epoch != 0) {
            return invalid("The member's id is empty.");
        }
        if is_empty(&self.instance) {
            return invalid("The instance id is empty; a dynamic member has none.");
        }
        if is_empty(&self.rack) {
            return invalid("The rack id is empty; a member without rack has none.");
        }
        match self.epoch {
            0 if self.rebalance_timeout_ms == -1 => {
                return invalid("A member that joins says its rebalance timeout.");
            }
            0 if self.owned.as_ref().is_none_or(|owned| !owned.is_empty()) => {
                return invalid("A member that joins owns no partition yet, and says so by an empty list.");
            }
            0 if !self.wishes() => {
                return invalid("A member that joins says what it wants: names of topics or an expression.");
            }
            LEAVES_FOR_A_WHILE if self.instance.is_none() => {
                return invalid("A member that leaves for a while has an instance id.");
            }
            ..LEAVES_FOR_A_WHILE => {
                let text = format!("{} is no epoch of a member: -2 is the least.", self.epoch);
                return invalid(&text);
            }
            _ => {}
        }
        self.check_assignor(assignors)?;
        self.check_lengths()
    }

    fn check_assignor(&self, assignors: &[Assignor]) -> Result<(), Refusal> {
        match &self.assignor {
            Some(name) if Assignor::of_name(name).is_none_or(|named| !assignors.contains(&named)) => {
                let known = assignors.iter().map(|known| known.name()).collect::<Vec<_>>().join(", ");
                let message = format!("There is no assignor {name} here; there are: {known}.");
                Err(Refusal::new(ErrorCode::UnsupportedAssignor, message))
            }
            _ => Ok(()),
        }
    }

    fn check_lengths(&self) -> Result<(), Refusal> {
        let longest = self.texts().max().unwrap_or(0);
        if longest > GROUP_TEXT_BYTES_MAX {
            let message = format!("a text of {longest} bytes, more than {GROUP_TEXT_BYTES_MAX}");
            return Err(Refusal::new(ErrorCode::InvalidRequest, message));
        }
        if self.bytes() > METADATA_BYTES_MAX {
            let message = format!(
                "{} bytes of subscriptions, more than the {METADATA_BYTES_MAX} of a member",
                self.bytes()
            );
            return Err(Refusal::new(ErrorCode::InvalidRequest, message));
        }
        Ok(())
    }

    /// Whether the expression, where it is a new one, can be read.
    ///
    /// # Errors
    /// `INVALID_REGULAR_EXPRESSION`.
    pub(super) fn check_regex(&self, before: Option<&str>) -> Result<(), Refusal> {
        let new = self.regex.as_deref().filter(|text| !text.is_empty() && Some(*text) != before);
        let Some(Err(wrong)) = new.map(regex::compile) else { return Ok(()) };
        let text = self.regex.as_deref().unwrap_or_default();
        let message = format!("The expression `{text}` cannot be read: {wrong}.");
        Err(Refusal::new(ErrorCode::InvalidRegularExpression, message))
    }
}
