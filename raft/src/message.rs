//! What replicas of one group say to each other. Owns the values only; encoding and transport are the caller's.
//!
//! Every statement a message makes about its sender is read from the sender's durable state: a claim, a vote, an
//! acknowledgement leave only after what they state is on disk.

use std::sync::Arc;

use ringlog_protocol::ids::{LeaderEpoch, Offset};

use crate::configuration::Configuration;
use crate::ids::{ReplicaId, Round, Term};

/// One message of one group. `to` and `from` name directories too, so a message meant for a lost disk is nobody's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    pub from: ReplicaId,
    pub to: ReplicaId,
    /// The sender's durable term; for [`Body::PreVoteRequest`] the term it would take.
    pub term: Term,
    pub body: Body,
}

/// What is said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// Would you vote for me? Changes no state of the receiver, its contact timer included; but a receiver that follows the asker no
    /// longer does: whoever would take a later term leads no more.
    PreVoteRequest { claim: Claim },
    /// Answer to [`Body::PreVoteRequest`]; it carries the receiver's term, so a candidate that fell behind learns of it.
    PreVoteReply { granted: bool },
    /// Vote for me. `handover` is true when the leader itself asked this replica to campaign: then a voter in contact with that
    /// leader answers all the same (Raft thesis, section 4.2.3).
    VoteRequest { claim: Claim, handover: bool },
    /// Answer to [`Body::VoteRequest`]: sent once the vote is durable.
    VoteReply { granted: bool },
    /// Records, or the question whether they would fit.
    Append(Append),
    /// Answer to [`Body::Append`].
    AppendReply(AppendReply),
    /// The leader is alive. Batched per pair of nodes by the caller; a quiesced group sends none.
    Heartbeat { high_watermark: Offset, round: Round },
    /// Answer to [`Body::Heartbeat`]; never waits for a disk.
    HeartbeatReply { round: Round },
    /// Campaign now, without a pre-vote: the leader hands over (Raft thesis, section 3.10).
    CampaignNow,
    /// The follower's log ends below the leader's log start: copy what is there instead.
    SnapshotOffer(SnapshotOffer),
    /// Answer to [`Body::SnapshotOffer`], once what was copied is durable (`installed`) or was refused.
    SnapshotReply { installed: bool, log_end: Offset },
}

/// How complete a candidate's log is. Compared field by field in exactly this order; the model in `raft/model`
/// finds a lost record under each other order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Claim {
    /// The last term in which this log was made equal to a leader's.
    pub log_term: Term,
    pub configuration_version: u64,
    /// One past the last durable record.
    pub log_end: Offset,
}

/// Most epochs one append may span. A sender cuts its message where the next epoch would not fit, so a message needs no
/// allocation for them.
pub const APPEND_EPOCHS_MAX: usize = 4;

/// Where an epoch begins in a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EpochStart {
    pub epoch: LeaderEpoch,
    pub start: Offset,
}

/// The epochs of the records in one append, first to last: at most [`APPEND_EPOCHS_MAX`].
///
/// Two logs that hold the same epoch at an offset hold the same record there (one leader a term, which writes each offset
/// once), so these pairs are all a follower needs to find the first record that differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AppendEpochs {
    starts: [EpochStart; APPEND_EPOCHS_MAX],
    count: usize,
}

impl AppendEpochs {
    /// Adds the next epoch. False when it does not fit: the message must end before it.
    ///
    /// # Panics
    /// When epochs or starts do not increase: the caller read them from a log in which they do.
    #[must_use]
    pub fn push(&mut self, next: EpochStart) -> bool {
        if let Some(last) = self.as_slice().last() {
            assert!(next.epoch > last.epoch, "epoch {:?} follows {:?}", next.epoch, last.epoch);
            assert!(next.start > last.start, "epoch start {:?} follows {:?}", next.start, last.start);
        }
        let Some(place) = self.starts.get_mut(self.count) else { return false };
        *place = next;
        self.count += 1;
        true
    }

    /// The pairs, first to last.
    pub fn as_slice(&self) -> &[EpochStart] {
        self.starts.get(..self.count).expect("count never exceeds the array")
    }
}

/// Records `base..end` of the leader of the message's term. The bytes travel beside it; `base == end` is a probe or carries
/// news of the watermark only.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Append {
    /// Where the leader's log ended when it was elected: a follower whose verified log reaches it is reconciled.
    pub election_end: Offset,
    /// Epoch of the record just before `base`; `None` where there is none (`base` is the leader's log start).
    pub previous_epoch: Option<LeaderEpoch>,
    pub base: Offset,
    /// Exclusive.
    pub end: Offset,
    pub epochs: AppendEpochs,
    /// Configurations the follower is not known to hold, oldest first: empty in the steady state.
    pub configurations: Vec<Arc<Configuration>>,
    pub high_watermark: Offset,
    /// The leader's log start: a follower may drop what lies below.
    pub log_start: Offset,
    pub round: Round,
}

/// What a follower found, stated from its disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppendReply {
    pub outcome: AppendOutcome,
    /// The follower counts for commit only when this equals the message's term.
    pub log_term: Term,
    /// One past its last durable record.
    pub durable_end: Offset,
    pub configuration_version: u64,
    pub round: Round,
}

/// Whether the records fitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AppendOutcome {
    /// They follow what is here.
    Matched,
    /// The record before them is missing here; the log ends at `log_end`.
    Short { log_end: Offset },
    /// The record before them has another epoch here. The largest epoch here that is not above the leader's, and where it
    /// ends, let the leader skip whole epochs (KIP-101).
    Diverged { epoch: LeaderEpoch, epoch_end: Offset },
    /// No room or no time to take them now; the term and the position hold.
    Busy,
}

/// A copy of a leader's log or machine from `log_start` on, to be fetched by its own means (segment copy, machine snapshot).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotOffer {
    pub log_start: Offset,
    /// Exclusive: where the copy ends.
    pub log_end: Offset,
    /// Epoch of the record at `log_start`, if there is one. A log that holds that epoch there is the same up to there, and is fed
    /// by appends.
    pub first_epoch: Option<LeaderEpoch>,
    /// Epoch of the last record below `log_end`.
    pub last_epoch: Option<LeaderEpoch>,
    pub configuration: Arc<Configuration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_compare_log_term_then_configuration_version_then_log_end() {
        let claim = |log_term, configuration_version, log_end| Claim {
            log_term: Term(log_term),
            configuration_version,
            log_end: Offset(log_end),
        };
        assert!(claim(2, 1, 0) > claim(1, 9, 900), "the log term decides first");
        assert!(claim(2, 2, 5) > claim(2, 1, 900), "a newer configuration outweighs a longer log");
        assert!(claim(2, 2, 6) > claim(2, 2, 5));
    }

    #[test]
    fn an_append_spans_a_bounded_number_of_epochs() {
        let mut epochs = AppendEpochs::default();
        for epoch in 0..APPEND_EPOCHS_MAX as i32 {
            assert!(
                epochs.push(EpochStart { epoch: LeaderEpoch(epoch), start: Offset(i64::from(epoch) * 10) })
            );
        }
        assert!(!epochs.push(EpochStart { epoch: LeaderEpoch(99), start: Offset(990) }));
        assert_eq!(epochs.as_slice().len(), APPEND_EPOCHS_MAX);
    }
}
