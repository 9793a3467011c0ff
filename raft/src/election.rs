//! Elections: who asks, who is granted, who wins. Decides nothing about records.
//!
//! Three things keep a running leader: a replica asks whether it would win before it takes a term (pre-vote), a voter that hears
//! the leader does not answer others (stickiness), and a leader that hears no majority stops by itself (check-quorum), so
//! stickiness never holds on to a dead one.

use std::sync::Arc;

use crate::effect::{Effect, StepDownReason};
use crate::group::{Group, Role};
use crate::ids::{ReplicaId, Term};
use crate::leader::Leadership;
use crate::message::{Body, Claim, Message};
use crate::quorum::majority;

/// A candidacy or the question before it. Voters are named by their place in the configuration, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Candidacy {
    phase: Phase,
    granted: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    #[default]
    None,
    /// Asked who would vote for it.
    Canvassing,
    /// Took a term; its own vote is on the way to the disk.
    Voting { handover: bool },
    /// Its own vote is durable and the others were asked.
    Asked,
}

/// A vote that leaves once it is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OwedVote {
    to: ReplicaId,
    granted: bool,
}

impl Group {
    /// A group whose only voter is this replica campaigns at once: nobody else could lead. A larger one waits for its timeout.
    ///
    /// A restarted leader never resumes its term: what it acknowledged before the crash is not known, and a record it proposed
    /// under that term may be gone (`docs/explanation/replication.md`, "Election" 5).
    pub(crate) fn start(&mut self, effects: &mut Vec<Effect>) {
        assert!(!self.started, "a group starts once");
        self.started = true;
        if self.is_only_voter() && !self.persists.failed {
            self.campaign(false, effects);
        }
    }

    /// The leader was silent for too long.
    pub(crate) fn time_out(&mut self, effects: &mut Vec<Effect>) {
        self.arm_election();
        if self.persists.failed {
            return self.urge_successor(effects);
        }
        if !self.may_campaign() {
            return;
        }
        self.clock.forget_leader();
        self.role = Role::Follower { leader: None };
        if self.is_only_voter() {
            self.campaign(false, effects);
        } else {
            self.canvass(effects);
        }
    }

    /// Everybody whom a leader ever reached may campaign, even one that its own configuration leaves out: the change may not be
    /// committed, or this replica may hold more than any living voter (Raft thesis, section 4.2.2).
    fn may_campaign(&self) -> bool {
        let reached = self.is_voter() || self.hard_state.log_term > Term::ZERO;
        // A copy in progress replaces the log; a leader's log must not be replaced under it.
        reached && self.following().copying.is_none() && !self.persists.failed
    }

    /// Pre-vote: asks without taking a term, so that a replica that could not win disturbs nobody (Raft thesis, section 9.6).
    fn canvass(&mut self, effects: &mut Vec<Effect>) {
        let Some(term) = self.hard_state.term.next() else {
            return;
        };
        self.candidacy = Candidacy { phase: Phase::Canvassing, granted: self.own_place() };
        let claim = self.durable_claim();
        self.ask_voters(term, &Body::PreVoteRequest { claim }, effects);
    }

    pub(crate) fn pre_vote_request(
        &mut self,
        from: ReplicaId,
        term: Term,
        claim: Claim,
        effects: &mut Vec<Effect>,
    ) {
        if self.role == (Role::Follower { leader: Some(from) }) && term > self.hard_state.term {
            // Whom this replica follows would take a later term: it leads no more. A quiesced follower learns it only here.
            self.role = Role::Follower { leader: None };
            self.clock.forget_leader();
        }
        self.wake();
        let granted = term > self.hard_state.term && !self.holds_on_to_leader() && claim >= self.claim();
        effects.push(self.send(from, Body::PreVoteReply { granted }));
    }

    pub(crate) fn pre_vote_reply(
        &mut self,
        from: ReplicaId,
        term: Term,
        granted: bool,
        effects: &mut Vec<Effect>,
    ) {
        let Some(place) = self.place_of(from) else {
            self.ignored_mut().strangers += 1;
            return;
        };
        if term > self.hard_state.term {
            return self.observe(term, effects);
        }
        // Whatever took another term or found a leader since then ended the canvass, so its term is still the one asked for.
        if !granted || self.candidacy.phase != Phase::Canvassing {
            return;
        }
        self.candidacy.granted |= place;
        if self.is_granted_by_majority() {
            self.campaign(false, effects);
        }
    }

    /// Takes the next term and the own vote in it. Others are asked once both are durable.
    pub(crate) fn campaign(&mut self, handover: bool, effects: &mut Vec<Effect>) {
        let Some(term) = self.hard_state.term.next() else {
            // No epoch is left for another leader. Reading on is safe, writing is not.
            return;
        };
        self.take_term(term, effects);
        self.hard_state.vote = Some(self.me);
        self.role = Role::Candidate;
        self.candidacy = Candidacy { phase: Phase::Voting { handover }, granted: 0 };
        self.arm_election();
        self.persist_hard_state(effects);
    }

    pub(crate) fn candidacy_persisted(&mut self, effects: &mut Vec<Effect>) {
        if self.durable.term != self.hard_state.term || self.durable.vote != Some(self.me) {
            return;
        }
        if let Phase::Voting { handover } = self.candidacy.phase {
            self.candidacy = Candidacy { phase: Phase::Asked, granted: self.own_place() };
            let claim = self.durable_claim();
            self.ask_voters(self.hard_state.term, &Body::VoteRequest { claim, handover }, effects);
        }
        if self.is_granted_by_majority() {
            self.win(effects);
        }
    }

    pub(crate) fn vote_request(
        &mut self,
        from: ReplicaId,
        term: Term,
        claim: Claim,
        handover: bool,
        effects: &mut Vec<Effect>,
    ) {
        if term < self.hard_state.term {
            self.ignored_mut().old_terms += 1;
            effects.push(self.send(from, Body::VoteReply { granted: false }));
            return;
        }
        let newer = term > self.hard_state.term;
        if newer && !handover && self.holds_on_to_leader() {
            // Not even the term is looked at: a removed replica must not depose a leader (Raft thesis, section 4.2.3).
            self.ignored_mut().sticky += 1;
            return;
        }
        if newer {
            self.take_term(term, effects);
        }
        let free = self.role == (Role::Follower { leader: None }) && self.hard_state.vote.is_none();
        let repeated = self.hard_state.vote == Some(from);
        let granted = (free || repeated) && claim >= self.claim();
        if granted && free {
            self.hard_state.vote = Some(from);
            self.arm_election();
        }
        if newer || granted && free {
            self.persist_hard_state(effects);
        }
        self.owed_vote = Some(OwedVote { to: from, granted });
        self.pay_vote(effects);
    }

    /// Sends the vote owed, once term and vote are durable.
    pub(crate) fn pay_vote(&mut self, effects: &mut Vec<Effect>) {
        let Some(OwedVote { to, granted }) = self.owed_vote else { return };
        let voted = self.durable.vote == Some(to) && self.hard_state.vote == Some(to);
        if self.durable.term == self.hard_state.term && (!granted || voted) {
            self.owed_vote = None;
            effects.push(self.send(to, Body::VoteReply { granted }));
        }
    }

    pub(crate) fn vote_reply(
        &mut self,
        from: ReplicaId,
        term: Term,
        granted: bool,
        effects: &mut Vec<Effect>,
    ) {
        let Some(place) = self.place_of(from) else {
            self.ignored_mut().strangers += 1;
            return;
        };
        if term > self.hard_state.term {
            return self.observe(term, effects);
        }
        if term < self.hard_state.term {
            self.ignored_mut().old_terms += 1;
            return;
        }
        if self.role != Role::Candidate || self.candidacy.phase != Phase::Asked || !granted {
            return;
        }
        self.candidacy.granted |= place;
        if self.is_granted_by_majority() {
            self.win(effects);
        }
    }

    /// The leader hands over: no pre-vote, since the others still hear it.
    pub(crate) fn campaign_now(&mut self, from: ReplicaId, term: Term, effects: &mut Vec<Effect>) {
        let asked_by_leader =
            term == self.hard_state.term && self.role == (Role::Follower { leader: Some(from) });
        if asked_by_leader && self.may_campaign() {
            self.clock.forget_leader();
            self.campaign(true, effects);
        } else {
            self.ignored_mut().old_terms += 1;
        }
    }

    /// The win: this log *is* the leader's log now, so its log term is this term. Durable as of a later report, and until then
    /// this replica does not count towards commit.
    fn win(&mut self, effects: &mut Vec<Effect>) {
        let (term, election_end) = (self.hard_state.term, self.log.end);
        self.hard_state.log_term = term;
        if self.hard_state.configuration.position > election_end {
            // The records below it were cut for a leader that did not last. It is this term's first configuration now, and whoever
            // reaches this log's end may adopt it.
            Arc::make_mut(&mut self.hard_state.configuration).position = election_end;
        }
        self.role = Role::Leader { election_end };
        self.candidacy = Candidacy::default();
        self.following = None;
        self.leading =
            Some(Box::new(Leadership::new(self.me, &self.hard_state, self.log.end, self.clock.now())));
        self.persist_hard_state(effects);
        effects.push(Effect::BecameLeader { term, election_end });
        self.feed_all(effects);
    }

    /// Somebody has a higher term: remember it, forget the vote, follow.
    pub(crate) fn observe(&mut self, term: Term, effects: &mut Vec<Effect>) {
        if term > self.hard_state.term {
            self.take_term(term, effects);
            self.persist_hard_state(effects);
        }
    }

    /// The part of [`Group::observe`] that is not yet handed to the disk; the caller persists what it decides beside it.
    pub(crate) fn take_term(&mut self, term: Term, effects: &mut Vec<Effect>) {
        debug_assert!(term > self.hard_state.term, "term {term} is no news");
        if self.is_leader() {
            let handed_to = self.leading.as_ref().and_then(|leading| leading.handed_over_to());
            let reason = match handed_to {
                Some(to) => StepDownReason::Transferred { to },
                None => StepDownReason::HigherTerm { term },
            };
            self.step_down(reason, effects);
        }
        self.hard_state.term = term;
        self.hard_state.vote = None;
        self.role = Role::Follower { leader: None };
        self.clock.forget_leader();
        self.forget_election();
        if let Some(following) = &mut self.following {
            following.begin_term();
        }
    }

    pub(crate) fn forget_election(&mut self) {
        self.candidacy = Candidacy::default();
        self.owed_vote = None;
    }

    /// Starts the election timer. Priority is a few heartbeat intervals; who is no voter leaves the first try to voters.
    pub(crate) fn arm_election(&mut self) {
        let outsider = if self.is_voter() { 0 } else { 10 };
        self.clock.arm(&self.settings, u32::from(self.settings.priority) + outsider);
    }

    /// Stickiness: nobody is voted for while this replica leads or hears the leader.
    fn holds_on_to_leader(&self) -> bool {
        self.is_leader() || self.clock.in_contact(&self.settings)
    }

    fn ask_voters(&self, term: Term, body: &Body, effects: &mut Vec<Effect>) {
        let others = self.hard_state.configuration.voters.iter().filter(|voter| **voter != self.me);
        effects.extend(
            others.map(|voter| Effect::Send(Message { from: self.me, to: *voter, term, body: body.clone() })),
        );
    }

    /// What this replica holds, its memory included: what it compares others with.
    fn claim(&self) -> Claim {
        Claim {
            log_term: self.hard_state.log_term,
            configuration_version: self.hard_state.configuration.version,
            log_end: self.log.end,
        }
    }

    /// What this replica holds on disk: what it tells others.
    fn durable_claim(&self) -> Claim {
        Claim {
            log_term: self.durable.log_term,
            configuration_version: self.durable.configuration_version,
            log_end: self.log.durable_end,
        }
    }

    fn is_granted_by_majority(&self) -> bool {
        self.candidacy.granted.count_ones() as usize >= majority(self.hard_state.configuration.voters.len())
    }

    fn own_place(&self) -> u16 {
        self.place_of(self.me).unwrap_or(0)
    }

    /// A voter's place in the configuration, as a bit.
    fn place_of(&self, voter: ReplicaId) -> Option<u16> {
        let place = self.hard_state.configuration.voters.iter().position(|named| *named == voter)?;
        Some(1 << place)
    }
}
