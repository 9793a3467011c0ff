//! Membership without log entries: one change at a time, each held by a majority in this term before the next.
//!
//! A configuration is in force at the leader when it is made, leaves it once durable, and is adopted by a follower whose log is
//! this term's and reaches the place where it was made. Learners are fed and not counted; one that reached the watermark of this
//! term becomes a voter.

use std::sync::Arc;

use crate::configuration::{Change, Configuration};
use crate::effect::{Effect, Refusal, Request};
use crate::group::{Group, refuse};
use crate::ids::{ReplicaId, Token};
use crate::progress::Progress;
use crate::quorum::majority;

impl Group {
    pub(crate) fn change_configuration(&mut self, change: Change, token: Token, effects: &mut Vec<Effect>) {
        let request = Request::ChangeConfiguration { token };
        match self.next_configuration(change) {
            Err(reason) => refuse(request, reason, effects),
            Ok(next) => {
                if let Some(leading) = &mut self.leading {
                    leading.change = Some(token);
                }
                self.put_in_force(next, change, effects);
            }
        }
    }

    fn next_configuration(&self, change: Change) -> Result<Configuration, Refusal> {
        if let Some(reason) = self.refusal() {
            return Err(reason);
        }
        if self.alone {
            return Err(Refusal::AloneOnly);
        }
        // A commit quorum above the majority may need the very change that is asked for, so a change waits for a majority only;
        // but a learner's place is judged by the watermark of this term.
        if !self.settled && matches!(change, Change::Promote(_)) {
            return Err(Refusal::NotSettled);
        }
        let in_flight = self.leading.as_ref().is_none_or(|leading| leading.change.is_some());
        if in_flight || !self.is_configuration_held() || self.handing_over_to().is_some() {
            return Err(Refusal::ChangeInFlight);
        }
        let next = self.hard_state.configuration.changed(change, self.log.end);
        let next = next.ok_or(Refusal::ChangeInvalid)?;
        match change {
            Change::Promote(learner) if !self.has_caught_up(learner) => Err(Refusal::LearnerBehind),
            _ => Ok(next),
        }
    }

    fn put_in_force(&mut self, next: Configuration, change: Change, effects: &mut Vec<Effect>) {
        let next = Arc::new(next);
        self.hard_state.configuration = next.clone();
        self.persist_hard_state(effects);
        let (me, log_end, now) = (self.me, self.log.end, self.clock.now());
        if let Some(leading) = &mut self.leading {
            leading.progress.retain(|progress| next.is_member(progress.replica));
            match change {
                Change::AddLearner(learner) if learner != me => {
                    leading.progress.push(Progress::new(learner, log_end, now))
                }
                Change::Demote(voter) => {
                    let demoted = leading.progress.iter_mut().filter(|progress| progress.replica == voter);
                    demoted.for_each(|progress| progress.stays_learner = true);
                }
                Change::AddLearner(_) | Change::Promote(_) | Change::Remove(_) => {}
            }
            leading.keep(next);
        }
        self.wake();
        // Fewer voters may hold more; and a waiting barrier may need fewer answers.
        self.advance_commit(effects);
        self.confirm_barriers(effects);
        self.feed_all(effects);
    }

    /// True once a majority of the configuration in force, this leader included where it votes, holds it durably under this term.
    pub(crate) fn is_configuration_held(&self) -> bool {
        let Some(leading) = &self.leading else { return false };
        let configuration = &self.hard_state.configuration;
        let own = self.durable.log_term == self.hard_state.term
            && self.durable.configuration_version == configuration.version;
        let holds = |voter: &&ReplicaId| {
            if **voter == self.me {
                return own;
            }
            leading.progress_of(**voter).is_some_and(|progress| progress.version >= configuration.version)
        };
        configuration.voters.iter().filter(holds).count() >= majority(configuration.voters.len())
    }

    /// Answers whoever asked for the configuration in force, once it is held.
    pub(crate) fn settle_change(&mut self, effects: &mut Vec<Effect>) {
        let waiting = self.leading.as_ref().and_then(|leading| leading.change);
        let Some(token) = waiting.filter(|_| self.is_configuration_held()) else { return };
        if let Some(leading) = &mut self.leading {
            leading.change = None;
        }
        effects.push(Effect::Changed { token, configuration: self.hard_state.configuration.clone() });
    }

    /// A learner that caught up becomes a voter by itself, one at a time.
    pub(crate) fn promote_learner(&mut self, effects: &mut Vec<Effect>) {
        if !self.settings.promote_learners {
            return;
        }
        let Some(leading) = &self.leading else { return };
        let learners = &self.hard_state.configuration.learners;
        let stays = |learner: ReplicaId| {
            leading.progress_of(learner).is_none_or(|progress| {
                progress.stays_learner || self.clock.since(progress.contact) >= self.settings.election_timeout
            })
        };
        let ready = learners.iter().copied().find(|learner| !stays(*learner) && self.has_caught_up(*learner));
        let Some(change) = ready.map(Change::Promote) else { return };
        if let Ok(next) = self.next_configuration(change) {
            self.put_in_force(next, change, effects);
        }
    }

    fn has_caught_up(&self, learner: ReplicaId) -> bool {
        let progress = self.leading.as_ref().and_then(|leading| leading.progress_of(learner));
        progress.is_some_and(|progress| progress.matched >= Some(self.high_watermark))
    }
}
