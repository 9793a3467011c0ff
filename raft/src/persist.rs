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
    /// Handed out and not yet reported, oldest first. Its length is bounded by what the caller keeps in flight.
    pub(crate) pending: VecDeque<Pending>,
    /// The newest ticket handed out.
    pub(crate) last: Ticket,
    /// The newest ticket reported.
    pub(crate) reported: Ticket,
    /// Nothing becomes durable any more.
    pub(crate) failed: bool,
}

/// What becomes true when a ticket is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Pending {
    pub(crate) ticket: Ticket,
    pub(crate) since: Moment,
    pub(crate) log_end: Offset,
    pub(crate) terms: DurableTerms,
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
        // Most groups are idle, and an idle one had one or two persists in flight at a time.
        let pending = VecDeque::with_capacity(2);
        Persists { pending, last: Ticket(0), reported: Ticket(0), failed: false }
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
        let terms = DurableTerms::of(&self.hard_state);
        let (since, log_end) = (self.clock.now(), self.log.end);
        self.persists.pending.push_back(Pending { ticket, since, log_end, terms });
        let Write { truncate_to, append, hard_state } = write;
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
            self.ignored.late_reports += 1;
            return;
        }
        while let Some(&Pending { ticket: next, log_end, terms, .. }) = self.persists.pending.front() {
            if next > ticket {
                break;
            }
            self.persists.pending.pop_front();
            self.persists.reported = next;
            self.log.durable_end = log_end.max(self.log.start);
            self.durable = terms;
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
            self.ignored.late_reports += 1;
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
