//! A follower and its leader's log: what fits, what is cut, what is acknowledged. Leads nobody.
//!
//! A log whose log term is the leader's term is a prefix of the leader's log: only what lies beyond its end is news. Any other log is
//! reconciled first: it is cut at the first record that differs and nowhere else, and becomes this term's once it reaches the
//! leader's end at its election.

use ringlog_protocol::ids::Offset;

use crate::configuration::Configuration;
use crate::copying::{Copied, Copying};
use crate::effect::{AppendRange, AppendSource, Effect};
use crate::group::{Group, Role};
use crate::ids::{ReplicaId, Round, Term, Ticket};
use crate::message::{Append, AppendOutcome, AppendReply, Body};
use crate::persist::Write;
use crate::settings::{CONFIGURATIONS_MAX, PERSISTS_IN_FLIGHT_MAX};

/// What a follower remembers of its leader in the present term.
#[derive(Clone, Debug, Default)]
pub(crate) struct Following {
    /// The answer to the newest append that was not answered yet.
    owed: Option<Owed>,
    /// What the leader was last told.
    told: Option<Told>,
    /// The newest round of an append.
    round: Round,
    /// The leader's watermark, as far as it was told.
    pub(crate) high_watermark: Offset,
    /// The leader's node was started anew, or was away: the leader may be another one by now, or none.
    pub(crate) doubted: bool,
    pub(crate) copying: Option<Box<Copying>>,
    pub(crate) copied: Option<Copied>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Owed {
    outcome: AppendOutcome,
    round: Round,
    /// The answer leaves once everything up to this is durable.
    after: Ticket,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Told {
    log_term: Term,
    durable_end: Offset,
    configuration_version: u64,
}

/// What an append does to a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Plan {
    /// Drop everything at and beyond this.
    truncate_to: Option<Offset>,
    /// Then append the message's records from here on.
    append_from: Option<Offset>,
    /// The log then is the leader's, up to the message's end.
    reconciled: bool,
}

impl Following {
    /// Another term: what was owed or told belongs to the last one. A copy in progress goes on.
    pub(crate) fn begin_term(&mut self) {
        *self = Following { copying: self.copying.take(), ..Following::default() };
    }

    fn hear_watermark(&mut self, high_watermark: Offset) {
        self.high_watermark = self.high_watermark.max(high_watermark);
    }

    pub(crate) fn owes_nothing(&self) -> bool {
        !self.doubted && self.owed.is_none() && self.copying.is_none()
    }
}

/// Nothing heard, told or owed.
static NOTHING: Following = Following {
    owed: None,
    told: None,
    round: Round(0),
    high_watermark: Offset(0),
    doubted: false,
    copying: None,
    copied: None,
};

impl Group {
    pub(crate) fn following(&self) -> &Following {
        self.following.as_deref().unwrap_or(&NOTHING)
    }

    pub(crate) fn following_mut(&mut self) -> &mut Following {
        self.following.get_or_insert_default()
    }

    /// True when `from` leads the present term, which is `term` from here on. Any message of the leader counts as contact, one that
    /// is refused too: a lagging follower that stopped listening would campaign for ever.
    pub(crate) fn is_led_by(&mut self, from: ReplicaId, term: Term, effects: &mut Vec<Effect>) -> bool {
        if term < self.hard_state.term {
            self.ignored_mut().old_terms += 1;
            // It must learn that it leads no more, or a replica that took a term in vain would never be led again.
            if self.durable.term > term {
                effects.push(self.append_reply_with(from, AppendOutcome::Busy, Round(0)));
            }
            return false;
        }
        if term > self.hard_state.term {
            self.observe(term, effects);
        }
        match self.role {
            Role::Leader { .. } => {
                self.ignored_mut().contradictions += 1;
                return false;
            }
            Role::Follower { leader: Some(other) } if other != from => {
                self.ignored_mut().contradictions += 1;
                return false;
            }
            Role::Candidate | Role::Follower { .. } => {}
        }
        self.role = Role::Follower { leader: Some(from) };
        self.following_mut().doubted = false;
        self.forget_election();
        self.clock.heard_leader();
        self.arm_election();
        true
    }

    pub(crate) fn heartbeat(
        &mut self,
        from: ReplicaId,
        high_watermark: Offset,
        round: Round,
        effects: &mut Vec<Effect>,
    ) {
        self.following_mut().hear_watermark(high_watermark);
        // The term is durable but for the first heartbeats after an election; from then on no disk is waited for.
        if self.durable.term == self.hard_state.term {
            effects.push(self.send(from, Body::HeartbeatReply { round }));
        }
        self.raise_high_watermark(effects);
    }

    pub(crate) fn append(&mut self, from: ReplicaId, append: &Append, effects: &mut Vec<Effect>) {
        if !is_well_formed(append, self.hard_state.term) {
            self.ignored_mut().malformed += 1;
            return;
        }
        let following = self.following_mut();
        following.round = following.round.max(append.round);
        if following.copying.is_some() || self.persists.pending.len() >= PERSISTS_IN_FLIGHT_MAX {
            self.owe(AppendOutcome::Busy, append.round);
            return self.pay_reply(effects);
        }
        let planned = if self.hard_state.log_term == self.hard_state.term {
            self.plan_extension(append)
        } else {
            self.plan_reconciliation(append)
        };
        match planned {
            Err(outcome) => self.owe(outcome, append.round),
            Ok(plan) if plan.truncate_to.is_some_and(|to| to < self.high_watermark) => {
                // Going on would change what was committed. The leader is wrong, or this log is.
                self.ignored_mut().contradictions += 1;
                return;
            }
            Ok(plan) => {
                self.carry_out(plan, append, effects);
                self.owe(AppendOutcome::Matched, append.round);
            }
        }
        debug_assert_eq!(self.leader(), Some(from), "only the leader's appends come here");
        self.following_mut().hear_watermark(append.high_watermark);
        self.pay_reply(effects);
        self.raise_high_watermark(effects);
    }

    /// This log is a prefix of the leader's. A late, short append never cuts it.
    fn plan_extension(&self, append: &Append) -> Result<Plan, AppendOutcome> {
        if append.base > self.log.end {
            return Err(AppendOutcome::Short { log_end: self.log.end });
        }
        let append_from = (append.end > self.log.end).then_some(self.log.end);
        Ok(Plan { truncate_to: None, append_from, reconciled: false })
    }

    /// This log may differ from the leader's anywhere above the watermark.
    fn plan_reconciliation(&self, append: &Append) -> Result<Plan, AppendOutcome> {
        let log = &self.log;
        if append.base > log.end {
            return Err(AppendOutcome::Short { log_end: log.end });
        }
        // Below the watermark nothing can differ: it is committed, so the leader holds it.
        if append.base > self.high_watermark {
            let Some(previous) = append.previous_epoch else {
                // The leader no longer knows the record before; only a copy can make the logs equal.
                return Err(AppendOutcome::Diverged { epoch: crate::log::NO_EPOCH, epoch_end: log.start });
            };
            if log.epoch_before(append.base) != Some(previous) {
                let found = log.largest_not_above(previous);
                return Err(AppendOutcome::Diverged { epoch: found.epoch, epoch_end: found.end });
            }
        }
        let same_until = log.first_difference(append.base, append.end, &append.epochs);
        let append_from = (same_until < append.end).then_some(same_until.max(append.base));
        let differs = append_from.is_some() && same_until < log.end;
        // The oldest configuration sent must be in reach: without one of this leader's the log term would speak of another's.
        let configured = append.configurations.first().is_some_and(|oldest| oldest.position <= append.end);
        let reconciled = append.end >= append.election_end && configured && append.end >= self.high_watermark;
        // The leader's whole log at its election is here. What lies beyond cannot be of this term, so it is not the leader's.
        let beyond = reconciled && log.end > append.end;
        let truncate_to = match (differs, beyond) {
            (true, _) => Some(same_until),
            (false, true) => Some(append.end),
            (false, false) => None,
        };
        Ok(Plan { truncate_to, append_from, reconciled })
    }

    fn carry_out(&mut self, plan: Plan, append: &Append, effects: &mut Vec<Effect>) {
        let Plan { truncate_to, append_from, reconciled } = plan;
        if let Some(to) = truncate_to {
            self.log.truncate(to);
            self.clamp_pending(to);
        }
        let append_range = append_from.map(|base| {
            self.log.extend_with(&append.epochs, append.end);
            AppendRange { base, end: append.end, source: AppendSource::Message }
        });
        if reconciled {
            self.hard_state.log_term = self.hard_state.term;
        }
        let adopted = self.adopt_configurations(append, reconciled);
        let hard_state = reconciled || adopted;
        if truncate_to.is_some() || append_range.is_some() || hard_state {
            self.persist(Write { truncate_to, append: append_range, hard_state }, effects);
        }
    }

    /// Like the log term, a configuration speaks of a reconciled log only. On becoming reconciled this replica's own gives way to
    /// the leader's, even to an older one; later only newer ones come.
    fn adopt_configurations(&mut self, append: &Append, reconciled: bool) -> bool {
        if self.hard_state.log_term != self.hard_state.term {
            return false;
        }
        let mut adopted = false;
        for configuration in &append.configurations {
            let newer = configuration.version > self.hard_state.configuration.version;
            let first = reconciled && !adopted;
            if configuration.position <= self.log.end && (newer || first) {
                self.hard_state.configuration = configuration.clone();
                adopted = true;
            }
        }
        adopted
    }

    fn owe(&mut self, outcome: AppendOutcome, round: Round) {
        let after = match outcome {
            AppendOutcome::Matched => self.persists.last,
            // They state positions only, and those are read from the disk when the answer leaves.
            AppendOutcome::Short { .. } | AppendOutcome::Diverged { .. } | AppendOutcome::Busy => Ticket(0),
        };
        let following = self.following_mut();
        if following.owed.is_none_or(|owed| round >= owed.round) {
            following.owed = Some(Owed { outcome, round, after });
        }
    }

    pub(crate) fn follower_persisted(&mut self, effects: &mut Vec<Effect>) {
        self.pay_reply(effects);
        self.raise_high_watermark(effects);
    }

    /// Answers the leader with what is durable: the append owed once it is, or progress that it does not know of. Under a steady
    /// stream the newest append is never durable yet; progress must be told all the same.
    fn pay_reply(&mut self, effects: &mut Vec<Effect>) {
        let Role::Follower { leader: Some(leader) } = self.role else { return };
        if self.durable.term != self.hard_state.term {
            return;
        }
        let durable = self.told_now();
        let reconciled = durable.log_term == self.hard_state.term;
        let following = self.following();
        match following.owed {
            Some(Owed { outcome, round, after }) if self.persists.reported() >= after => {
                self.following_mut().owed = None;
                effects.push(self.append_reply_with(leader, outcome, round));
            }
            _ if reconciled && following.told != Some(durable) => {
                let round = following.round;
                effects.push(self.append_reply_with(leader, AppendOutcome::Matched, round));
            }
            _ => return,
        }
        self.following_mut().told = Some(durable);
    }

    fn told_now(&self) -> Told {
        Told {
            log_term: self.durable.log_term,
            durable_end: self.log.durable_end,
            configuration_version: self.durable.configuration_version,
        }
    }

    fn append_reply_with(&self, to: ReplicaId, outcome: AppendOutcome, round: Round) -> Effect {
        let Told { log_term, durable_end, configuration_version } = self.told_now();
        let reply = AppendReply { outcome, log_term, durable_end, configuration_version, round };
        self.send(to, Body::AppendReply(reply))
    }

    /// A follower shows what the leader committed, its own disk holds, and its log is known to share with the leader: truncate
    /// first, watermark after (KAFKA-14704).
    fn raise_high_watermark(&mut self, effects: &mut Vec<Effect>) {
        if self.hard_state.log_term != self.hard_state.term {
            return;
        }
        let known = self.following().high_watermark.min(self.log.durable_end);
        if known > self.high_watermark {
            self.high_watermark = known;
            effects.push(Effect::Commit { high_watermark: known });
        }
    }
}

/// What no sound leader sends is not looked at any further.
fn is_well_formed(append: &Append, term: Term) -> bool {
    let epochs = append.epochs.as_slice();
    let begins = epochs.first().map(|first| first.start);
    let covers = if append.base == append.end { begins.is_none() } else { begins == Some(append.base) };
    let ends = epochs.last().is_none_or(|last| last.start < append.end && last.epoch <= term.leader_epoch());
    let follows = match (append.previous_epoch, epochs.first()) {
        (Some(previous), Some(first)) => previous <= first.epoch,
        _ => true,
    };
    let configurations = append.configurations.len() <= CONFIGURATIONS_MAX
        && append.configurations.iter().all(|configuration| is_plausible(configuration));
    append.base.0 >= 0 && append.base <= append.end && covers && ends && follows && configurations
}

fn is_plausible(configuration: &Configuration) -> bool {
    configuration.validate().is_ok()
}
