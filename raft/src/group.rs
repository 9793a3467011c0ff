//! One replica's part in one group: the state, and what it does with each event. Owns term, vote, role and watermark; never
//! touches records, clocks or disks.

use std::collections::VecDeque;

use ringlog_protocol::ids::{LeaderEpoch, Offset};

use crate::effect::{AppendRange, AppendSource, Effect, Persist, Refusal, Request, StepDownReason};
use crate::event::Event;
use crate::hard_state::HardState;
use crate::ids::{ReplicaId, Term, Ticket};
use crate::message::Message;
use crate::quorum::majority_end;

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
}

/// Messages and requests that changed nothing, by cause. Each counts up from 0 for the life of the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ignored {
    /// From a replica that the configuration does not name, or to another directory of this node. Never obeyed: a stranger's
    /// term is not even looked at, or it could depose a leader.
    pub strangers: u64,
    /// Persist reports that arrived after the group gave up on persisting.
    pub late_reports: u64,
}

/// One replica of one group. Shard view: owned by the core that owns the partition.
///
/// Invariants, checked by [`Group::validate`] after each step in debug builds:
/// `durable term <= term`, `log_term <= term`, `durable log_term <= durable term`, `log_start <= high_watermark <= durable_end <= log_end`,
/// and a leader's `election_end <= log_end`.
///
/// Downside of holding positions only: the caller must keep log and group in step, and a mismatch is a panic, not an error.
#[derive(Clone, Debug)]
pub struct Group {
    me: ReplicaId,
    role: Role,
    /// As decided; may run ahead of the disk.
    hard_state: HardState,
    /// What the disk is known to hold of it.
    durable: DurableTerms,
    log_start: Offset,
    log_end: Offset,
    /// Everything below is on disk: `durable_end <= log_end`.
    durable_end: Offset,
    /// Everything below is committed: `high_watermark <= durable_end` for a group of one.
    high_watermark: Offset,
    /// True once the watermark was computed in this term as leader.
    settled: bool,
    /// Persists handed out and not yet reported, oldest first. Its length is bounded by what the caller keeps in flight.
    pending: VecDeque<Pending>,
    last_ticket: Ticket,
    persist_failed: bool,
    ignored: Ignored,
}

/// The part of the hard state that statements to others and to itself rest on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct DurableTerms {
    term: Term,
    vote: Option<ReplicaId>,
    log_term: Term,
}

/// What becomes true when a ticket is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pending {
    ticket: Ticket,
    log_end: Offset,
    terms: DurableTerms,
}

impl Group {
    /// A group as it stands after a start: a follower of nobody, whatever it was before. [`Event::Start`] sets it going.
    ///
    /// # Errors
    /// See [`RestoreError`]; nothing was changed.
    pub fn restore(restored: Restored) -> Result<Group, RestoreError> {
        let Restored { me, hard_state, log_start, log_end } = restored;
        if hard_state.directory != me.directory {
            let written = hard_state.directory;
            return Err(RestoreError::OtherDirectory { written, present: me.directory });
        }
        let configuration = &hard_state.configuration;
        if configuration.voters != [me] || !configuration.learners.is_empty() {
            let members = configuration.voters.len() + configuration.learners.len();
            return Err(RestoreError::NotAlone { members, me });
        }
        if log_start.0 < 0 || log_start > log_end {
            return Err(RestoreError::LogBounds { log_start, log_end });
        }
        let durable = DurableTerms::of(&hard_state);
        let group = Group {
            me,
            role: Role::Follower { leader: None },
            hard_state,
            durable,
            log_start,
            log_end,
            durable_end: log_end,
            // Not stored: a leader learns it anew from the rule, and until then shows nothing (commit-rule.md, "Commit").
            high_watermark: log_start,
            settled: false,
            pending: VecDeque::new(),
            last_ticket: Ticket(0),
            persist_failed: false,
            ignored: Ignored::default(),
        };
        group.validate();
        Ok(group)
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
            Event::Tick { .. } => {}
            Event::Message(message) => self.message(message),
            Event::Proposal { end } => self.proposal(end, effects),
            Event::Persisted { ticket } => self.persisted(ticket, effects),
            Event::PersistFailed { .. } => self.persist_failed(effects),
            Event::ChangeConfiguration { token, .. } => {
                refuse(
                    Request::ChangeConfiguration { token },
                    self.refusal().unwrap_or(Refusal::AloneOnly),
                    effects,
                );
            }
            Event::TransferLeadership { token, .. } => {
                refuse(
                    Request::TransferLeadership { token },
                    self.refusal().unwrap_or(Refusal::NoSuccessor),
                    effects,
                );
            }
            Event::ReadBarrier { token } => self.read_barrier(token, effects),
            Event::LogStartMoved { log_start } => self.log_start_moved(log_start),
            // Answers to effects that a group of one never asks for: only a caller in error sends them.
            Event::Replicated { .. }
            | Event::ReplicateFailed { .. }
            | Event::SnapshotInstalled(_)
            | Event::SnapshotFailed { .. } => panic!("an answer to an effect that was never asked for"),
        }
        if cfg!(debug_assertions) {
            self.validate();
            let ranks = effects.iter().skip(first).map(Effect::rank);
            assert!(ranks.is_sorted(), "effects out of order: {:?}", effects.get(first..));
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
        self.log_start
    }

    /// One past the last record accepted: the base offset of the next proposal.
    pub fn log_end(&self) -> Offset {
        self.log_end
    }

    /// One past the last record known to be on this replica's disk.
    pub fn durable_end(&self) -> Offset {
        self.durable_end
    }

    /// One past the last committed record.
    pub fn high_watermark(&self) -> Offset {
        self.high_watermark
    }

    /// Persist effects handed out and not yet reported durable.
    pub fn persists_in_flight(&self) -> usize {
        self.pending.len()
    }

    /// What was ignored so far.
    pub fn ignored(&self) -> Ignored {
        self.ignored
    }

    /// Checks the invariants named on the type.
    ///
    /// # Panics
    /// When one does not hold, with the values: going on could lose or change a committed record.
    pub fn validate(&self) {
        let HardState { term, log_term, .. } = &self.hard_state;
        let durable = &self.durable;
        assert!(log_term <= term, "log term {log_term} above term {term}");
        assert!(durable.term <= *term, "durable term {} above term {term}", durable.term);
        assert!(
            durable.log_term <= durable.term,
            "durable log term {} above durable term {}",
            durable.log_term,
            durable.term
        );
        assert!(
            durable.log_term <= *log_term,
            "durable log term {} above log term {log_term}",
            durable.log_term
        );
        assert!(self.log_start.0 >= 0, "log start {:?} is negative", self.log_start);
        assert!(
            self.log_start <= self.high_watermark,
            "log start {:?} above watermark {:?}",
            self.log_start,
            self.high_watermark
        );
        assert!(
            self.high_watermark <= self.durable_end,
            "watermark {:?} above durable end {:?}",
            self.high_watermark,
            self.durable_end
        );
        assert!(
            self.durable_end <= self.log_end,
            "durable end {:?} above log end {:?}",
            self.durable_end,
            self.log_end
        );
        match self.role {
            Role::Follower { leader } => assert_ne!(leader, Some(self.me), "a follower follows itself"),
            Role::Candidate => {
                assert_eq!(self.hard_state.vote, Some(self.me), "a candidate votes for itself");
                assert!(log_term < term, "log term {log_term} was set before the win of term {term}");
            }
            Role::Leader { election_end } => {
                assert_eq!(log_term, term, "a leader's log term {log_term} is its term {term}");
                assert_eq!(durable.term, *term, "a leader's term {term} is durable");
                assert_eq!(durable.vote, Some(self.me), "a leader's own vote is durable");
                assert!(
                    election_end <= self.log_end,
                    "election end {election_end:?} above log end {:?}",
                    self.log_end
                );
                assert!(!self.persist_failed, "a leader can persist");
            }
        }
        if self.settled {
            assert_eq!(durable.log_term, *term, "a settled term {term} has a durable log term");
        }
        let mut tickets = self.pending.iter().map(|pending| pending.ticket);
        assert!(tickets.clone().is_sorted(), "tickets out of order");
        assert!(
            tickets.next_back().is_none_or(|last| last == self.last_ticket),
            "the newest pending ticket is the last one"
        );
    }

    /// A restarted leader never resumes its term: what it acknowledged before the crash is not known, and a record it proposed
    /// under that term may be gone (commit-rule.md, "Election" 5).
    fn start(&mut self, effects: &mut Vec<Effect>) {
        assert_eq!(self.last_ticket, Ticket(0), "a group starts once");
        self.campaign(effects);
    }

    fn campaign(&mut self, effects: &mut Vec<Effect>) {
        let Some(term) = self.hard_state.term.next() else {
            // No epoch is left for another leader. Reading on is safe, writing is not.
            return;
        };
        self.hard_state.term = term;
        self.hard_state.vote = Some(self.me);
        self.role = Role::Candidate;
        self.settled = false;
        self.persist(None, Some(self.hard_state.clone()), effects);
    }

    /// The win: this log *is* the leader's log now, so its log term is this term. Durable as of the next report, and until then
    /// nothing counts towards commit.
    fn win(&mut self, effects: &mut Vec<Effect>) {
        let term = self.hard_state.term;
        self.hard_state.log_term = term;
        self.role = Role::Leader { election_end: self.log_end };
        self.persist(None, Some(self.hard_state.clone()), effects);
        effects.push(Effect::BecameLeader { term, election_end: self.log_end });
    }

    fn proposal(&mut self, end: Offset, effects: &mut Vec<Effect>) {
        if let Some(reason) = self.refusal() {
            return refuse(Request::Proposal { end }, reason, effects);
        }
        assert!(end > self.log_end, "a proposal to {end:?} does not extend the log end {:?}", self.log_end);
        let source = AppendSource::Proposal { epoch: self.leader_epoch() };
        let range = AppendRange { base: self.log_end, end, source };
        self.log_end = end;
        self.persist(Some(range), None, effects);
    }

    fn persist(
        &mut self,
        append: Option<AppendRange>,
        hard_state: Option<HardState>,
        effects: &mut Vec<Effect>,
    ) {
        let ticket = Ticket(self.last_ticket.0 + 1);
        self.last_ticket = ticket;
        let terms = DurableTerms::of(&self.hard_state);
        self.pending.push_back(Pending { ticket, log_end: self.log_end, terms });
        effects.push(Effect::Persist(Persist { ticket, truncate_to: None, append, hard_state }));
    }

    fn persisted(&mut self, ticket: Ticket, effects: &mut Vec<Effect>) {
        assert!(
            ticket <= self.last_ticket,
            "{ticket:?} was never handed out, the last is {:?}",
            self.last_ticket
        );
        if self.persist_failed {
            self.ignored.late_reports += 1;
            return;
        }
        while let Some(&Pending { ticket: next, log_end, terms }) = self.pending.front() {
            if next > ticket {
                break;
            }
            self.pending.pop_front();
            self.durable_end = log_end;
            self.durable = terms;
        }
        if self.role == Role::Candidate && self.votes_won() {
            self.win(effects);
        }
        self.advance_commit(effects);
    }

    /// Only durable votes count, the own one too.
    fn votes_won(&self) -> bool {
        let voted = |voter: &ReplicaId| {
            *voter == self.me
                && self.durable.term == self.hard_state.term
                && self.durable.vote == Some(self.me)
        };
        let voters = &self.hard_state.configuration.voters;
        2 * voters.iter().filter(|voter| voted(voter)).count() > voters.len()
    }

    /// The commit rule: a voter counts with its durable end once its durable log term is this term.
    fn advance_commit(&mut self, effects: &mut Vec<Effect>) {
        if !self.is_leader() {
            return;
        }
        let counted = |voter: &ReplicaId| {
            (*voter == self.me && self.durable.log_term == self.hard_state.term).then_some(self.durable_end)
        };
        let Some(end) = majority_end(self.hard_state.configuration.voters.iter().map(counted)) else {
            return;
        };
        if end > self.high_watermark || !self.settled {
            self.settled = true;
            self.high_watermark = self.high_watermark.max(end);
            effects.push(Effect::Commit { high_watermark: self.high_watermark });
        }
    }

    fn persist_failed(&mut self, effects: &mut Vec<Effect>) {
        if self.persist_failed {
            self.ignored.late_reports += 1;
            return;
        }
        self.persist_failed = true;
        self.settled = false;
        // A retried write may report success for pages the kernel already dropped, so no later report is believed either.
        self.pending.clear();
        if !matches!(self.role, Role::Follower { .. }) {
            self.role = Role::Follower { leader: None };
            let (term, reason) = (self.hard_state.term, StepDownReason::PersistFailed);
            effects.push(Effect::SteppedDown { term, reason });
        }
    }

    /// A group of one has nobody to hear from: whoever speaks is not named by its configuration, or claims to be this replica. Not even
    /// the term is looked at, or a stranger could depose the leader.
    fn message(&mut self, _message: Message) {
        self.ignored.strangers += 1;
    }

    /// Alone, the present leader is the only one there can be, so a settled term confirms itself.
    fn read_barrier(&mut self, token: crate::ids::Token, effects: &mut Vec<Effect>) {
        let request = Request::ReadBarrier { token };
        match self.refusal() {
            Some(reason) => refuse(request, reason, effects),
            None if !self.settled => refuse(request, Refusal::NotSettled, effects),
            None => effects.push(Effect::Barrier { token, high_watermark: self.high_watermark }),
        }
    }

    fn log_start_moved(&mut self, log_start: Offset) {
        assert!(
            log_start >= self.log_start,
            "log start moves back from {:?} to {log_start:?}",
            self.log_start
        );
        assert!(
            log_start <= self.high_watermark,
            "log start {log_start:?} above watermark {:?}",
            self.high_watermark
        );
        self.log_start = log_start;
    }

    fn refusal(&self) -> Option<Refusal> {
        match self.role {
            _ if self.persist_failed => Some(Refusal::PersistFailed),
            Role::Leader { .. } => None,
            Role::Candidate | Role::Follower { .. } => Some(Refusal::NotLeader { leader: self.leader() }),
        }
    }
}

impl DurableTerms {
    fn of(state: &HardState) -> DurableTerms {
        DurableTerms { term: state.term, vote: state.vote, log_term: state.log_term }
    }
}

fn refuse(request: Request, reason: Refusal, effects: &mut Vec<Effect>) {
    effects.push(Effect::Refused { request, reason });
}
