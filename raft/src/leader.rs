//! A leader: what it takes, what it may call committed, when it makes way. Never looks at a follower's log but through its answers.

use std::collections::VecDeque;
use std::sync::Arc;

use ringlog_protocol::ids::{LeaderEpoch, Offset};

use crate::configuration::Configuration;
use crate::effect::{AppendRange, AppendSource, Effect, Refusal, Request, StepDownReason};
use crate::group::{Group, Role, refuse};
use crate::hard_state::HardState;
use crate::ids::{Moment, ReplicaId, Round, Term, Token};
use crate::message::{AppendOutcome, AppendReply, Body};
use crate::persist::Write;
use crate::progress::{Flow, Progress, UNVERIFIED, VERIFIED};
use crate::quorum::{copies, majority, reached_by};
use crate::read_barrier::Barrier;
use crate::settings::CONFIGURATIONS_MAX;
use crate::transfer::Transfer;

/// What only a leader needs.
#[derive(Clone, Debug)]
pub(crate) struct Leadership {
    /// Every member but the leader.
    pub(crate) progress: Vec<Progress>,
    /// Configurations of this term, oldest first: the one it was elected with (or the oldest still kept) up to the one in force.
    pub(crate) configurations: Vec<Arc<Configuration>>,
    /// Who asked for the configuration in force and was not answered yet.
    pub(crate) change: Option<Token>,
    pub(crate) transfer: Option<Box<Transfer>>,
    pub(crate) barriers: VecDeque<Barrier>,
    /// The newest round begun.
    pub(crate) round: Round,
    /// Everybody must answer this round, or a later one, before the group may fall quiet.
    pub(crate) busy_until: Round,
    pub(crate) quorum_checked: Moment,
}

impl Leadership {
    pub(crate) fn new(me: ReplicaId, state: &HardState, log_end: Offset, now: Moment) -> Leadership {
        let configuration = &state.configuration;
        let members = configuration.voters.iter().chain(&configuration.learners);
        // Exactly as large as it is: collected, it would begin with room for four.
        let mut progress = Vec::with_capacity(members.clone().count().saturating_sub(1));
        let others = members.filter(|member| **member != me);
        progress.extend(others.map(|member| Progress::new(*member, log_end, now)));
        Leadership {
            progress,
            configurations: vec![configuration.clone()],
            change: None,
            transfer: None,
            barriers: VecDeque::new(),
            round: Round(0),
            busy_until: Round(1),
            quorum_checked: now,
        }
    }

    pub(crate) fn progress_of(&self, replica: ReplicaId) -> Option<&Progress> {
        self.progress.iter().find(|progress| progress.replica == replica)
    }

    pub(crate) fn begin_round(&mut self) -> Round {
        self.round = Round(self.round.0 + 1);
        self.round
    }

    pub(crate) fn keep(&mut self, configuration: Arc<Configuration>) {
        if self.configurations.len() == CONFIGURATIONS_MAX {
            self.configurations.remove(0);
        }
        self.configurations.push(configuration);
    }
}

impl Group {
    pub(crate) fn proposal(&mut self, end: Offset, effects: &mut Vec<Effect>) {
        if let Some(reason) = self.refusal() {
            return refuse(Request::Proposal { end }, reason, effects);
        }
        if let Some(leader) = self.handing_over_to() {
            let reason = Refusal::NotLeader { leader: Some(leader) };
            return refuse(Request::Proposal { end }, reason, effects);
        }
        assert!(end > self.log.end, "a proposal to {end:?} does not extend the log end {:?}", self.log.end);
        let epoch = self.leader_epoch();
        let append = AppendRange { base: self.log.end, end, source: AppendSource::Proposal { epoch } };
        self.log.extend(epoch, end);
        self.persist(Write { append: Some(append), ..Write::default() }, effects);
        if !self.alone {
            self.wake();
            self.feed_all(effects);
        }
    }

    pub(crate) fn leader_persisted(&mut self, effects: &mut Vec<Effect>) {
        if self.alone {
            // The commit rule where one disk is all there is: nobody is counted, fed or asked.
            let end = (self.durable.log_term == self.hard_state.term).then_some(self.log.durable_end);
            return self.commit(end, effects);
        }
        self.advance_commit(effects);
        self.settle_change(effects);
        // A configuration of this leader's is sent only once it is durable here.
        self.feed_all(effects);
    }

    /// The commit rule: a voter counts with its durable end once its durable log term is this term, and enough voters commit
    /// everything up to there, of whatever epoch. So no entry of this term is needed to commit those of earlier ones.
    pub(crate) fn advance_commit(&mut self, effects: &mut Vec<Effect>) {
        let Some(leading) = &self.leading else { return };
        let own = (self.durable.log_term == self.hard_state.term).then_some(self.log.durable_end);
        let ends = self.hard_state.configuration.voters.iter().map(|voter| {
            if *voter == self.me {
                own
            } else {
                leading.progress_of(*voter).and_then(|progress| progress.matched)
            }
        });
        let copies = copies(self.hard_state.configuration.voters.len(), self.settings.copies_min);
        self.commit(reached_by(copies, ends), effects);
    }

    fn commit(&mut self, end: Option<Offset>, effects: &mut Vec<Effect>) {
        let Some(end) = end else { return };
        if end > self.high_watermark || !self.settled {
            self.settled = true;
            self.high_watermark = self.high_watermark.max(end);
            effects.push(Effect::Commit { high_watermark: self.high_watermark });
            self.wake();
        }
    }

    /// True for an answer to this leader by a member, in this term.
    pub(crate) fn is_answered_by(&mut self, from: ReplicaId, term: Term, effects: &mut Vec<Effect>) -> bool {
        if !self.hard_state.configuration.is_member(from) {
            self.ignored_mut().strangers += 1;
            return false;
        }
        if term > self.hard_state.term {
            self.observe(term, effects);
            return false;
        }
        if term < self.hard_state.term || !self.is_leader() {
            self.ignored_mut().old_terms += 1;
            return false;
        }
        true
    }

    pub(crate) fn heartbeat_reply(&mut self, from: ReplicaId, round: Round, effects: &mut Vec<Effect>) {
        self.hear(from, round);
        self.confirm_barriers(effects);
        if let Some(place) = self.place_in_progress(from) {
            self.feed(place, effects);
        }
    }

    pub(crate) fn append_reply(&mut self, from: ReplicaId, reply: AppendReply, effects: &mut Vec<Effect>) {
        if reply.durable_end > self.log.end && reply.log_term == self.hard_state.term {
            // A prefix of this log cannot be longer than it.
            self.ignored_mut().contradictions += 1;
            return;
        }
        self.hear(from, reply.round);
        let Some(place) = self.place_in_progress(from) else { return };
        self.take_answer(place, reply);
        self.advance_commit(effects);
        self.settle_change(effects);
        self.confirm_barriers(effects);
        self.hand_over_when_ready(effects);
        self.feed(place, effects);
    }

    /// A member answered: it is alive, and it answered no later leader before that round.
    pub(crate) fn hear(&mut self, from: ReplicaId, round: Round) {
        let now = self.clock.now();
        let Some(leading) = &mut self.leading else { return };
        let begun = leading.round;
        if let Some(progress) = leading.progress.iter_mut().find(|progress| progress.replica == from) {
            progress.contact = now;
            progress.confirmed = progress.confirmed.max(round.min(begun));
        }
    }

    fn take_answer(&mut self, place: usize, reply: AppendReply) {
        let (now, log_end, term) = (self.clock.now(), self.log.end, self.hard_state.term);
        let Some(progress) = self.progress_mut(place) else { return };
        if reply.log_term == term {
            progress.version = progress.version.max(reply.configuration_version);
            progress.holds(reply.durable_end, now);
            progress.look(log_end, now);
        }
        let awaited = match progress.flow {
            Flow::Probing { sent: Some(probe), .. } if probe.round == reply.round => Some(probe),
            _ => None,
        };
        match reply.outcome {
            AppendOutcome::Matched if reply.log_term == term => {
                if let Flow::Probing { .. } = progress.flow {
                    progress.flow = Flow::Streaming;
                }
            }
            AppendOutcome::Matched => {
                if let Some(end) = awaited.and_then(|probe| probe.end) {
                    progress.begin_anew(end, VERIFIED);
                    if end == log_end {
                        // It has everything and still is not reconciled: ask again later, not at once.
                        progress.flow = UNVERIFIED;
                        progress.pause();
                    }
                }
            }
            AppendOutcome::Short { log_end: their_end } => {
                let on_its_way =
                    matches!(progress.flow, Flow::Streaming | Flow::Probing { sent: Some(_), .. });
                if let Some(matched) = progress.matched {
                    if on_its_way && their_end < progress.next {
                        progress.begin_anew(their_end.max(matched), VERIFIED);
                    }
                } else if awaited.is_some() {
                    let next = their_end.0.min(progress.next.0 - 1).max(0);
                    progress.begin_anew(Offset(next), UNVERIFIED);
                }
            }
            AppendOutcome::Diverged { epoch, epoch_end } => {
                if awaited.is_some() && progress.matched.is_none() {
                    let before = progress.next.0 - 1;
                    let next = epoch_end.0.min(before).max(0);
                    progress.begin_anew(Offset(next), UNVERIFIED);
                    self.skip_epochs_above(place, epoch);
                }
            }
            AppendOutcome::Busy => {
                let next = progress.matched.unwrap_or(progress.next);
                progress.begin_anew(next, if progress.matched.is_some() { VERIFIED } else { UNVERIFIED });
                progress.pause();
            }
        }
    }

    /// The follower has nothing of the epochs above `epoch` at the place asked for: skip the leader's records of them (KIP-101).
    fn skip_epochs_above(&mut self, place: usize, epoch: LeaderEpoch) {
        let found = self.log.largest_not_above(epoch);
        if let Some(progress) = self.progress_mut(place) {
            progress.next = progress.next.min(found.end);
        }
    }

    /// Everything that only time brings about.
    pub(crate) fn leader_tick(&mut self, before: Moment, effects: &mut Vec<Effect>) {
        if self.is_quiescent() {
            return self.excuse_members();
        }
        if self.lost_quorum() {
            return self.step_down(StepDownReason::QuorumLost, effects);
        }
        if self.leaves_office(effects) {
            return;
        }
        self.give_up_transfer(effects);
        if !self.clock.beats(before, &self.settings) {
            return;
        }
        self.beat(effects);
        self.promote_learner(effects);
        let members = self.leading.as_ref().map_or(0, |leading| leading.progress.len());
        for place in 0..members {
            self.retry(place, effects);
            self.feed(place, effects);
        }
    }

    fn beat(&mut self, effects: &mut Vec<Effect>) {
        let Some(leading) = &mut self.leading else { return };
        let round = leading.begin_round();
        leading.barriers.iter_mut().for_each(|barrier| barrier.join(round));
        let body = Body::Heartbeat { high_watermark: self.high_watermark, round };
        self.tell_members(&body, effects);
    }

    pub(crate) fn tell_members(&self, body: &Body, effects: &mut Vec<Effect>) {
        let Some(leading) = &self.leading else { return };
        effects.extend(leading.progress.iter().map(|progress| self.send(progress.replica, body.clone())));
    }

    /// Check-quorum: a leader that heard from no majority for an election timeout cannot commit and may have a successor.
    fn lost_quorum(&mut self) -> bool {
        let timeout = self.settings.election_timeout;
        let Some(leading) = &self.leading else { return false };
        if self.clock.since(leading.quorum_checked) < timeout {
            return false;
        }
        let voters = &self.hard_state.configuration.voters;
        let alive = |voter: &&ReplicaId| {
            **voter == self.me
                || leading
                    .progress_of(**voter)
                    .is_some_and(|progress| self.clock.since(progress.contact) < timeout)
        };
        let lost = voters.iter().filter(alive).count() < majority(voters.len());
        let now = self.clock.now();
        if let Some(leading) = &mut self.leading {
            leading.quorum_checked = now;
        }
        lost
    }

    /// A leader that the configuration names no more, or whose disk stalls, makes way.
    fn leaves_office(&mut self, effects: &mut Vec<Effect>) -> bool {
        let stall = self.settings.write_stall_timeout;
        let stalled =
            self.persists.pending.front().is_some_and(|oldest| self.clock.since(oldest.since) > stall);
        let reason = if !self.is_voter() && self.is_configuration_held() {
            StepDownReason::Removed
        } else if stalled && self.successor().is_some() {
            StepDownReason::PersistFailed
        } else {
            return false;
        };
        self.name_successor(effects);
        self.step_down(reason, effects);
        true
    }

    /// Silence during a pause of this process, or of a quiet group, says nothing about the members.
    pub(crate) fn excuse_members(&mut self) {
        let now = self.clock.now();
        if let Some(leading) = &mut self.leading {
            leading.quorum_checked = now;
            leading.progress.iter_mut().for_each(|progress| progress.contact = now);
        }
    }

    /// Stops leading in the present term, for good. Whoever waits is told.
    pub(crate) fn step_down(&mut self, reason: StepDownReason, effects: &mut Vec<Effect>) {
        let Some(leading) = self.leading.take() else { return };
        effects.push(Effect::SteppedDown { term: self.hard_state.term, reason });
        self.role = Role::Follower { leader: None };
        self.settled = false;
        self.clock.forget_leader();
        self.arm_election();
        let refusal = Refusal::NotLeader { leader: None };
        for barrier in &leading.barriers {
            refuse(Request::ReadBarrier { token: barrier.token }, refusal, effects);
        }
        if let Some(token) = leading.change {
            refuse(Request::ChangeConfiguration { token }, refusal, effects);
        }
        if let Some(Transfer { token, sent: false, .. }) = leading.transfer.as_deref().copied() {
            refuse(Request::TransferLeadership { token }, refusal, effects);
        }
    }

    pub(crate) fn place_in_progress(&self, replica: ReplicaId) -> Option<usize> {
        self.leading.as_ref()?.progress.iter().position(|progress| progress.replica == replica)
    }

    pub(crate) fn progress_mut(&mut self, place: usize) -> Option<&mut Progress> {
        self.leading.as_mut()?.progress.get_mut(place)
    }
}
