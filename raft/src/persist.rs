//! Asynchronous durability: persists handed out, and what becomes true when they are reported. Knows tickets, not disks.

use std::collections::VecDeque;

use ringlog_protocol::ids::Offset;

use crate::effect::{AppendRange, Effect, Persist, StepDownReason};
use crate::group::{Group, Role};
use crate::hard_state::HardState;
use crate::ids::{Moment, ReplicaId, Term, Ticket};

/// Persists in flight.
#[derive(Clone, Debug)]
pub(crate) struct Persists {
    /// Handed out and not yet reported, one for each ticket up to `last`, oldest first. Its length is bounded by what the caller
    /// keeps in flight.
    pub(crate) pending: VecDeque<Pending>,
    /// The newest ticket handed out.
    pub(crate) last: Ticket,
    /// Nothing becomes durable any more.
    pub(crate) failed: bool,
    /// Something was handed out since the last beat.
    pub(crate) wrote: bool,
}

/// What becomes true when a ticket is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pending {
    pub(crate) since: Moment,
    pub(crate) log_end: Offset,
    /// Where the hard state is part of it, which is rare: a term, a vote, a configuration.
    pub(crate) terms: Option<Box<DurableTerms>>,
}

/// The part of the hard state that statements to others and to itself rest on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DurableTerms {
    pub(crate) term: Term,
    pub(crate) vote: Option<ReplicaId>,
    pub(crate) log_term: Term,
    pub(crate) configuration_version: u64,
}

/// Parts of a [`Persist`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Write {
    pub(crate) truncate_to: Option<Offset>,
    pub(crate) append: Option<AppendRange>,
    pub(crate) hard_state: bool,
}

impl Persists {
    pub(crate) fn new() -> Persists {
        Persists { pending: VecDeque::new(), last: Ticket(0), failed: false, wrote: false }
    }

    /// The newest ticket reported.
    pub(crate) fn reported(&self) -> Ticket {
        Ticket(self.last.0.saturating_sub(self.pending.len() as u64))
    }

    /// Gives the queue's memory back where nothing is in flight.
    pub(crate) fn give_back(&mut self) {
        if self.pending.is_empty() {
            self.pending = VecDeque::new();
        }
    }

    pub(crate) fn holds_no_buffers(&self) -> bool {
        self.pending.capacity() == 0
    }
}

impl DurableTerms {
    pub(crate) fn of(state: &HardState) -> DurableTerms {
        DurableTerms {
            term: state.term,
            vote: state.vote,
            log_term: state.log_term,
            configuration_version: state.configuration.version,
        }
    }
}

impl Group {
    pub(crate) fn persist(&mut self, write: Write, effects: &mut Vec<Effect>) {
        debug_assert!(!self.persists.failed, "a group that cannot persist decides nothing");
        let ticket = Ticket(self.persists.last.0 + 1);
        self.persists.last = ticket;
        self.persists.wrote = true;
        let Write { truncate_to, append, hard_state } = write;
        let terms = hard_state.then(|| Box::new(DurableTerms::of(&self.hard_state)));
        let (since, log_end) = (self.clock.now(), self.log.end);
        self.persists.pending.push_back(Pending { since, log_end, terms });
        let hard_state = hard_state.then(|| self.hard_state.clone());
        effects.push(Effect::Persist(Persist { ticket, truncate_to, append, hard_state }));
    }

    pub(crate) fn persist_hard_state(&mut self, effects: &mut Vec<Effect>) {
        self.persist(Write { hard_state: true, ..Write::default() }, effects);
    }

    /// The log was cut to `to`: no report of an older write may speak of what lay beyond.
    pub(crate) fn clamp_pending(&mut self, to: Offset) {
        for pending in &mut self.persists.pending {
            pending.log_end = pending.log_end.min(to);
        }
    }

    pub(crate) fn persisted(&mut self, ticket: Ticket, effects: &mut Vec<Effect>) {
        let last = self.persists.last;
        assert!(ticket <= last, "{ticket:?} was never handed out, the last is {last:?}");
        if self.persists.failed {
            self.ignored_mut().late_reports += 1;
            return;
        }
        while self.persists.reported() < ticket {
            let Some(Pending { log_end, terms, .. }) = self.persists.pending.pop_front() else { break };
            self.log.durable_end = log_end.max(self.log.start);
            if let Some(terms) = terms {
                self.durable = *terms;
            }
        }
        match self.role {
            Role::Candidate => self.candidacy_persisted(effects),
            Role::Leader { .. } => self.leader_persisted(effects),
            Role::Follower { .. } => self.follower_persisted(effects),
        }
        self.pay_vote(effects);
    }

    pub(crate) fn persist_failed(&mut self, effects: &mut Vec<Effect>) {
        if self.persists.failed {
            self.ignored_mut().late_reports += 1;
            return;
        }
        self.persists.failed = true;
        // A retried write may report success for pages the kernel already dropped, so no later report is believed either.
        self.persists.pending.clear();
        match self.role {
            Role::Follower { .. } => {}
            Role::Candidate => {
                self.role = Role::Follower { leader: None };
                let (term, reason) = (self.hard_state.term, StepDownReason::PersistFailed);
                effects.push(Effect::SteppedDown { term, reason });
            }
            Role::Leader { .. } => {
                self.name_successor(effects);
                self.step_down(StepDownReason::PersistFailed, effects);
            }
        }
    }
}
