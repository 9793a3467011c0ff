//! One replica's part in one group: the state, and which decision each event asks for. Never touches records, clocks or disks.

use std::sync::Arc;

use ringlog_protocol::ids::{LeaderEpoch, Offset};

use crate::clock::{Clock, Passed};
use crate::configuration::Configuration;
use crate::effect::{Effect, Refusal, Request};
use crate::election::{Candidacy, OwedVote};
use crate::event::Event;
use crate::follower::Following;
use crate::hard_state::HardState;
use crate::ids::{Moment, ReplicaId, Term};
use crate::leader::Leadership;
use crate::log::Log;
use crate::message::{Body, EpochStart, Message};
use crate::persist::{DurableTerms, Persists};
use crate::progress::Progress;
use crate::settings::{Settings, Shared};

/// What this replica does in its present term.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Leads nobody: just restored, or stepped down.
    Follower { leader: Option<ReplicaId> },
    /// Asked for votes in the present term; its own counts once it is durable.
    Candidate,
    /// Won the present term. Its log ended at `election_end` then.
    Leader { election_end: Offset },
}

/// What a group begins with, all of it durable: the hard state found (or [`HardState::alone`]) and the bounds of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restored {
    pub me: ReplicaId,
    pub hard_state: HardState,
    pub log_start: Offset,
    /// Exclusive: `log_start <= log_end`.
    pub log_end: Offset,
}

/// Why a group cannot begin from what was restored.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RestoreError {
    #[error("hard state was written in directory {written:?}, this one is {present:?}")]
    OtherDirectory { written: crate::ids::DirectoryId, present: crate::ids::DirectoryId },
    #[error(
        "the configuration names {members} replicas; this version runs groups whose only member is {me:?}"
    )]
    NotAlone { members: usize, me: ReplicaId },
    #[error("the log starts at {log_start:?} and ends at {log_end:?}")]
    LogBounds { log_start: Offset, log_end: Offset },
    #[error("the epochs do not cover the log or pass term {term}")]
    Epochs { term: Term },
}

/// What a group needs beyond [`Restored`] where it may have other members.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replicated {
    /// Where each epoch begins in the log, oldest first. The first may begin below the log's start.
    pub epochs: Vec<EpochStart>,
    /// One value for all groups of a core.
    pub settings: Arc<Settings>,
    /// Chooses the election timeouts: another one for each replica and each start.
    pub seed: u64,
}

/// Messages and requests that changed nothing, by cause. Each counts up from 0 for the life of the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ignored {
    /// From a replica that the configuration does not name, or to another directory of this node. Never obeyed: a stranger's
    /// term is not even looked at, or it could depose a leader.
    pub strangers: u64,
    /// Reports that nobody waited for: of persists after the group gave up on persisting, of copies that were not asked for.
    pub late_reports: u64,
    /// Messages of an older term, or that only an earlier role would have answered.
    pub old_terms: u64,
    /// Requests for a vote while the leader was heard.
    pub sticky: u64,
    /// Messages whose fields no sound replica sends together.
    pub malformed: u64,
    /// Messages that only a broken replica sends: a second leader of one term, a log that differs below the watermark. Above 0 it is
    /// a defect, here or there.
    pub contradictions: u64,
}

/// One replica of one group. Shard view: owned by the core that owns the partition.
///
/// Invariants, checked by [`Group::validate`] after each step in debug builds:
/// `durable term <= term`, `log_term <= term`, `durable log_term <= durable term`, `log_start <= high_watermark <= log_end`,
/// `log_start <= durable_end <= log_end`, a leader's `election_end <= log_end`, and `high_watermark <= durable_end` where nobody else
/// votes.
///
/// Downside of holding positions only: the caller must keep log and group in step, and a mismatch is a panic, not an error.
#[derive(Clone, Debug)]
pub struct Group {
    pub(crate) me: ReplicaId,
    /// There are no other members and there will be none: this node has no way to reach them.
    pub(crate) alone: bool,
    pub(crate) started: bool,
    pub(crate) role: Role,
    /// As decided; may run ahead of the disk.
    pub(crate) hard_state: HardState,
    /// What the disk is known to hold of it.
    pub(crate) durable: DurableTerms,
    pub(crate) log: Log,
    /// Everything below is committed.
    pub(crate) high_watermark: Offset,
    /// True once the watermark was computed in this term as leader.
    pub(crate) settled: bool,
    pub(crate) persists: Persists,
    pub(crate) settings: Shared,
    pub(crate) clock: Clock,
    pub(crate) candidacy: Candidacy,
    pub(crate) owed_vote: Option<OwedVote>,
    /// `None` stands for the default, on a leader too.
    pub(crate) following: Option<Box<Following>>,
    /// `Some` exactly while this replica leads. Boxed: most replicas follow.
    pub(crate) leading: Option<Box<Leadership>>,
    /// `None` while nothing was.
    pub(crate) ignored: Option<Box<Ignored>>,
}

impl Group {
    /// A group of one on a node that knows no others: strangers are not heard, changes of membership are refused by name. A follower of
    /// nobody, whatever it was before; [`Event::Start`] sets it going.
    ///
    /// # Errors
    /// See [`RestoreError`]; nothing was changed.
    pub fn restore(restored: Restored) -> Result<Group, RestoreError> {
        let Restored { me, hard_state, log_start, log_end } = restored;
        check_restored(me, &hard_state, log_start, log_end)?;
        let configuration = &hard_state.configuration;
        if configuration.voters != [me] || !configuration.learners.is_empty() {
            let members = configuration.voters.len() + configuration.learners.len();
            return Err(RestoreError::NotAlone { members, me });
        }
        let log = Log::new(log_start, log_end, Vec::new());
        Ok(Group::new(me, true, hard_state, log, Shared::default(), 0))
    }

    /// A group of any membership, with this replica as voter, learner or newcomer. A follower of nobody, whatever it was before;
    /// [`Event::Start`] sets it going.
    ///
    /// # Errors
    /// See [`RestoreError`]; nothing was changed.
    pub fn restore_replicated(restored: Restored, replicated: Replicated) -> Result<Group, RestoreError> {
        let Restored { me, hard_state, log_start, log_end } = restored;
        check_restored(me, &hard_state, log_start, log_end)?;
        let Replicated { epochs, settings, seed } = replicated;
        let (log, term) = (Log::new(log_start, log_end, epochs), hard_state.term);
        if !log.knows_its_epochs() || log.last_epoch() > term.leader_epoch() {
            return Err(RestoreError::Epochs { term });
        }
        Ok(Group::new(me, false, hard_state, log, settings.into(), seed))
    }

    fn new(
        me: ReplicaId,
        alone: bool,
        hard_state: HardState,
        log: Log,
        settings: Shared,
        seed: u64,
    ) -> Group {
        let group = Group {
            me,
            alone,
            started: false,
            role: Role::Follower { leader: None },
            durable: DurableTerms::of(&hard_state),
            hard_state,
            // Not stored: a leader learns it anew from the rule, and until then shows nothing (`docs/explanation/replication.md`, "Commit").
            high_watermark: log.start,
            log,
            settled: false,
            persists: Persists::new(),
            settings,
            clock: Clock::new(seed),
            candidacy: Candidacy::default(),
            owed_vote: None,
            following: None,
            leading: None,
            ignored: None,
        };
        group.validate();
        group
    }

    /// Takes one event and appends what must be done to `effects`, in the order stated in [`crate::effect`].
    ///
    /// The caller keeps and clears the buffer, so a steady stream of proposals allocates nothing.
    ///
    /// # Panics
    /// When the caller breaks the contract of an event (a proposal that does not extend the log, a ticket never handed out).
    pub fn step(&mut self, event: Event, effects: &mut Vec<Effect>) {
        let first = effects.len();
        match event {
            Event::Start => self.start(effects),
            Event::Tick { now } => self.tick(now, effects),
            Event::Message(message) => self.message(message, effects),
            Event::Proposal { end } => self.proposal(end, effects),
            Event::Persisted { ticket } => self.persisted(ticket, effects),
            Event::PersistFailed { .. } => self.persist_failed(effects),
            Event::ChangeConfiguration { change, token } => self.change_configuration(change, token, effects),
            Event::TransferLeadership { to, token } => self.transfer_leadership(to, token, effects),
            Event::ReadBarrier { token } => self.read_barrier(token, effects),
            Event::LogStartMoved { log_start } => self.log_start_moved(log_start, effects),
            // Answers to effects that a group of one never asks for: only a caller in error sends them.
            Event::Replicated { .. }
            | Event::ReplicateFailed { .. }
            | Event::SnapshotInstalled { .. }
            | Event::SnapshotFailed { .. }
                if self.alone =>
            {
                panic!("an answer to an effect that was never asked for")
            }
            Event::Replicated { to, end, bytes } => self.replicated(to, end, bytes, effects),
            Event::ReplicateFailed { to } => self.replicate_failed(to),
            Event::SnapshotInstalled { offer, epochs } => self.snapshot_installed(&offer, epochs, effects),
            Event::SnapshotFailed { from } => self.snapshot_failed(from, effects),
        }
        in_order(effects.get_mut(first..).unwrap_or_default());
        if cfg!(debug_assertions) {
            self.validate();
        }
    }
    /// The present role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// True while this replica leads the present term.
    pub fn is_leader(&self) -> bool {
        matches!(self.role, Role::Leader { .. })
    }

    /// True once the watermark is this term's. Before, a leader that is asked for its end answers OFFSET_NOT_AVAILABLE.
    pub fn is_settled(&self) -> bool {
        self.settled && self.is_leader()
    }

    /// The replica known to lead the present term.
    pub fn leader(&self) -> Option<ReplicaId> {
        match self.role {
            Role::Leader { .. } => Some(self.me),
            Role::Candidate => None,
            Role::Follower { leader } => leader,
        }
    }

    /// This replica.
    pub fn me(&self) -> ReplicaId {
        self.me
    }

    /// The present term.
    pub fn term(&self) -> Term {
        self.hard_state.term
    }

    /// The epoch to stamp into a batch now: the present term's.
    pub fn leader_epoch(&self) -> LeaderEpoch {
        self.hard_state.term.leader_epoch()
    }

    /// The hard state as decided; the disk may lag behind by the persists in flight.
    pub fn hard_state(&self) -> &HardState {
        &self.hard_state
    }

    /// Offset of the first record kept.
    pub fn log_start(&self) -> Offset {
        self.log.start
    }

    /// One past the last record accepted: the base offset of the next proposal.
    pub fn log_end(&self) -> Offset {
        self.log.end
    }

    /// One past the last record known to be on this replica's disk.
    pub fn durable_end(&self) -> Offset {
        self.log.durable_end
    }

    /// One past the last committed record.
    pub fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// Persist effects handed out and not yet reported durable.
    pub fn persists_in_flight(&self) -> usize {
        self.persists.pending.len()
    }

    /// What was ignored so far.
    pub fn ignored(&self) -> Ignored {
        self.ignored.as_deref().copied().unwrap_or_default()
    }

    pub(crate) fn ignored_mut(&mut self) -> &mut Ignored {
        self.ignored.get_or_insert_default()
    }

    /// The configuration in force here.
    pub fn configuration(&self) -> &Configuration {
        &self.hard_state.configuration
    }

    /// Where each epoch begins, oldest first; the first may begin below the log's start.
    pub fn epochs(&self) -> &[EpochStart] {
        self.log.epochs()
    }

    /// The largest epoch here that is not above `epoch`, and where it ends (OffsetForLeaderEpoch, KIP-101). `None` where there
    /// is none.
    pub fn end_of_epoch(&self, epoch: LeaderEpoch) -> Option<(LeaderEpoch, Offset)> {
        let found = self.log.largest_not_above(epoch);
        (found.epoch.0 >= 0).then_some((found.epoch, found.end))
    }

    /// True while a leader that hands over takes no proposals.
    pub fn is_handing_over(&self) -> bool {
        self.handing_over_to().is_some()
    }

    /// As a leader sees it: the members that hold what the log held at most `lag_time_max` ago, this one included. Empty on a
    /// replica that does not lead.
    pub fn in_sync(&self) -> impl Iterator<Item = ReplicaId> {
        let limit = self.settings.lag_time_max;
        let leading = self.leading.as_ref();
        let others = leading.into_iter().flat_map(|leading| &leading.progress);
        let others = others
            .filter(move |progress| {
                progress.matched.is_some() && self.clock.since(progress.caught_up) <= limit
            })
            .map(|progress| progress.replica);
        leading.map(|_| self.me).into_iter().chain(others)
    }

    /// As a leader sees it: every member, this one first, with one past the last record that it is known to hold on disk in this
    /// term; `None` where it said nothing yet. Empty on a replica that does not lead.
    pub fn member_ends(&self) -> impl Iterator<Item = (ReplicaId, Option<Offset>)> {
        let leading = self.leading.as_ref();
        let others = leading.into_iter().flat_map(|leading| &leading.progress);
        let others = others.map(|progress| (progress.replica, progress.matched));
        leading.map(|_| (self.me, Some(self.log.durable_end))).into_iter().chain(others)
    }

    /// Other settings, from the next event on.
    pub fn configure(&mut self, settings: Arc<Settings>) {
        self.settings = settings.into();
    }

    fn tick(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        if self.alone || !self.started {
            return;
        }
        let before = self.clock.now();
        let passed = self.clock.tick(now, &self.settings);
        if passed == Passed::Gap {
            self.clock.excuse_leader();
            self.arm_election();
            self.excuse_members();
            self.wake();
        }
        if self.clock.beats(before, &self.settings) {
            self.give_back();
        }
        if self.is_leader() {
            self.leader_tick(before, effects);
        } else if self.clock.lost_patience() {
            self.time_out(effects);
        }
    }

    /// What an idle group has no use for. A group that writes keeps its buffers over the next beat, or it would ask for them again and
    /// again.
    fn give_back(&mut self) {
        if std::mem::replace(&mut self.persists.wrote, false) {
            return;
        }
        self.persists.give_back();
        if let Some(leading) = &mut self.leading {
            leading.progress.iter_mut().for_each(Progress::give_back);
        }
    }

    fn message(&mut self, message: Message, effects: &mut Vec<Effect>) {
        let Message { from, to, term, body } = message;
        // Alone, whoever speaks is not named by the configuration. Not even the term is looked at, or a stranger could depose
        // the leader. A message to another directory was meant for a disk that is lost.
        if self.alone || !self.started || to != self.me || from == self.me {
            self.ignored_mut().strangers += 1;
            return;
        }
        if self.persists.failed {
            return self.overhear(from, term, &body);
        }
        match body {
            Body::PreVoteRequest { claim } => self.pre_vote_request(from, term, claim, effects),
            Body::PreVoteReply { granted } => self.pre_vote_reply(from, term, granted, effects),
            Body::VoteRequest { claim, handover } => self.vote_request(from, term, claim, handover, effects),
            Body::VoteReply { granted } => self.vote_reply(from, term, granted, effects),
            Body::CampaignNow => self.campaign_now(from, term, effects),
            Body::Append(append) => {
                if self.is_led_by(from, term, effects) {
                    self.append(from, &append, effects);
                }
            }
            Body::Heartbeat { high_watermark, round } => {
                if self.is_led_by(from, term, effects) {
                    self.heartbeat(from, high_watermark, round, effects);
                }
            }
            Body::SnapshotOffer(offer) => {
                if self.is_led_by(from, term, effects) {
                    self.snapshot_offer(from, offer, effects);
                }
            }
            Body::AppendReply(reply) => {
                if self.is_answered_by(from, term, effects) {
                    self.append_reply(from, reply, effects);
                }
            }
            Body::HeartbeatReply { round } => {
                if self.is_answered_by(from, term, effects) {
                    self.heartbeat_reply(from, round, effects);
                }
            }
            Body::SnapshotReply { installed, log_end } => {
                if self.is_answered_by(from, term, effects) {
                    self.snapshot_reply(from, installed, log_end, effects);
                }
            }
        }
    }

    /// A replica that can write nothing says nothing, but it still tells its clients who leads.
    fn overhear(&mut self, from: ReplicaId, term: Term, body: &Body) {
        let leads = matches!(body, Body::Append(_) | Body::Heartbeat { .. } | Body::SnapshotOffer(_));
        if leads && term >= self.hard_state.term {
            if term > self.hard_state.term {
                self.hard_state.term = term;
                self.hard_state.vote = None;
            }
            self.role = Role::Follower { leader: Some(from) };
            self.clock.heard_leader();
            self.arm_election();
        }
    }

    fn log_start_moved(&mut self, log_start: Offset, effects: &mut Vec<Effect>) {
        assert!(
            log_start >= self.log.start,
            "log start moves back from {:?} to {log_start:?}",
            self.log.start
        );
        assert!(
            log_start <= self.high_watermark,
            "log start {log_start:?} above watermark {:?}",
            self.high_watermark
        );
        self.log.retire(log_start);
        self.tell_log_start(effects);
    }

    pub(crate) fn is_voter(&self) -> bool {
        self.hard_state.configuration.is_voter(self.me)
    }

    pub(crate) fn is_only_voter(&self) -> bool {
        self.hard_state.configuration.voters == [self.me]
    }

    /// A message under the durable term.
    pub(crate) fn send(&self, to: ReplicaId, body: Body) -> Effect {
        Effect::Send(Message { from: self.me, to, term: self.durable.term, body })
    }

    pub(crate) fn refusal(&self) -> Option<Refusal> {
        match self.role {
            _ if self.persists.failed => Some(Refusal::PersistFailed),
            Role::Leader { .. } => None,
            Role::Candidate | Role::Follower { .. } => Some(Refusal::NotLeader { leader: self.leader() }),
        }
    }
}

fn check_restored(
    me: ReplicaId,
    hard_state: &HardState,
    log_start: Offset,
    log_end: Offset,
) -> Result<(), RestoreError> {
    if hard_state.directory != me.directory {
        let written = hard_state.directory;
        return Err(RestoreError::OtherDirectory { written, present: me.directory });
    }
    if log_start.0 < 0 || log_start > log_end {
        return Err(RestoreError::LogBounds { log_start, log_end });
    }
    Ok(())
}

pub(crate) fn refuse(request: Request, reason: Refusal, effects: &mut Vec<Effect>) {
    effects.push(Effect::Refused { request, reason });
}

/// Puts the effects of one step into the order stated in [`crate::effect`], those of one kind as they came. Insertion, since they
/// are few and nearly in order, and it allocates nothing.
fn in_order(effects: &mut [Effect]) {
    for end in 1..effects.len() {
        let mut place = end;
        while place > 0 && effects[place - 1].rank() > effects[place].rank() {
            effects.swap(place - 1, place);
            place -= 1;
        }
    }
}
