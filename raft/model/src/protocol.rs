//! The protocol under test: what a replica does with each event, and the mistakes planted in it.
//!
//! Each handler changes `mem`. What a replica tells others is read from `disk` in `Protocol::emit`,
//! so "durable before sent" is the default and breaking it takes a planted mistake.

use crate::log::{Log, NO_OP};
use crate::state::{Claim, Config, Fault, Hard, Lead, NOBODY, Role, State};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// (i) Candidates are compared by (log_term, log end); only replicas with log_term = T are counted.
    LogTerm,
    /// (ii) Plain Raft: each leader writes a no-op; the log index is not the Kafka offset.
    NoOp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// Count a follower for what it verified, although its log_term is still an older one.
    CountWithoutLogTerm,
    /// Set log_term at the first accepted append, before the leader's log at election is all there.
    LogTermOnFirstContact,
    /// Set log_term but keep what the follower's log holds beyond the verified part.
    SuffixKept,
    /// Compare candidates by the epoch of the last record instead of by log_term.
    CompareLastEpoch,
    /// Compare candidates by log end only.
    CompareLengthOnly,
    /// Candidates set log_term when they ask for votes instead of when they win.
    LogTermAtCandidacy,
    /// The leader counts itself for what it has only in memory.
    LeaderCountsMemory,
    /// A vote leaves before term and vote are durable.
    VoteBeforeDurable,
    /// An acknowledgement leaves before the log is durable.
    AckBeforeDurable,
    /// log_term becomes durable in an earlier frame than the log it speaks of.
    LogTermBeforeLog,
    /// Records become durable in an earlier write than the term they came under.
    LogBeforeTerm,
    /// A follower cuts its log to the end of each message while it reconciles.
    TruncateToMessageEnd,
    /// A late, short append of the current term cuts a log that is already this term's.
    StaleAppendTruncates,
    /// No check of the record before an append.
    NoPrevCheck,
    /// A replica that lost its disk comes back under its old name.
    WipedKeepsIdentity,
    /// A restarted leader goes on leading in the term it led.
    LeaderResumes,
    /// A follower raises its high watermark before its log is reconciled.
    ExposeBeforeReconciled,
    /// Rule (ii) without the current-term condition: figure 8 of the Raft paper.
    CommitOldTermByCount,
    /// A configuration change before a majority holds the current configuration under this term.
    ChangeWithoutBarrier,
    /// A follower adopts a configuration although its log ends before the change's position.
    ConfigAdoptedEarly,
    /// Records from beyond a configuration's position are sent without it.
    ConfigLeftBehind,
    /// A replica that its own configuration leaves out never asks for votes.
    OnlyVotersCampaign,
    /// Votes ignore the configuration version.
    VersionNotCompared,
    /// Votes compare the log end before the configuration version: a half reconciled log may be longer than
    /// a whole one that knows a newer configuration.
    EndBeforeVersion,
    /// Votes ask for both, a version at least as new and a log at least as long.
    VersionComparedApart,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    TimeOut {
        replica: usize,
    },
    VoteRequest {
        replica: usize,
        term: u8,
        candidate: usize,
    },
    Win {
        replica: usize,
    },
    Propose {
        replica: usize,
    },
    Change {
        replica: usize,
        voters: u8,
    },
    /// An append that covers `prev..end`, sent when the leader had made `configs` configurations.
    Append {
        replica: usize,
        term: u8,
        prev: u8,
        end: u8,
        configs: u8,
    },
    Persist {
        replica: usize,
    },
    /// The large-append path: the records reach the disk before the frame that speaks of them.
    PersistLogOnly {
        replica: usize,
    },
    /// Planted only.
    PersistLogTermOnly {
        replica: usize,
    },
    Crash {
        replica: usize,
    },
    /// Planted only.
    Wipe {
        replica: usize,
    },
}

#[derive(Clone, Debug)]
pub struct Protocol {
    pub rule: Rule,
    pub mistake: Option<Mistake>,
    /// Bit set of the first voters.
    pub voters: u8,
    pub max_term: u8,
    pub max_proposals: u8,
    pub max_changes: u8,
    /// Followers and candidates make each step durable at once. What is in memory only has no effect
    /// on others unless the replica leads or a mistake is planted, so this loses nothing and saves states.
    pub eager: bool,
    /// Records may reach the disk in a write of their own, before the frame with log_term (large appends).
    pub split: bool,
}

pub fn majority(set: u8, voters: u8) -> bool {
    2 * (set & voters).count_ones() > voters.count_ones()
}

impl Protocol {
    fn is(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn claim(&self, hard: &Hard) -> Claim {
        let log_term = match self.rule {
            Rule::NoOp => hard.log.last_epoch(),
            Rule::LogTerm if self.is(Mistake::CompareLastEpoch) => hard.log.last_epoch(),
            Rule::LogTerm if self.is(Mistake::CompareLengthOnly) => 0,
            Rule::LogTerm => hard.log_term,
        };
        let version = if self.is(Mistake::VersionNotCompared) { 0 } else { hard.config.version };
        Claim { log_term, end: hard.log.len(), version }
    }

    /// The election restriction: the term of the log, then its configuration, then its end.
    fn at_least_as_complete(&self, candidate: Claim, own: Claim) -> bool {
        if self.is(Mistake::VersionComparedApart) {
            let (a, b) = (candidate, own);
            return a.log_term > b.log_term
                || a.log_term == b.log_term && a.end >= b.end && a.version >= b.version;
        }
        if self.is(Mistake::EndBeforeVersion) {
            let key = |claim: Claim| (claim.log_term, claim.end, claim.version);
            return key(candidate) >= key(own);
        }
        candidate >= own
    }

    /// Seeing a higher term: remember it, forget the vote, follow.
    fn observe<const N: usize, const T: usize>(&self, state: &mut State<N, T>, replica: usize, term: u8) {
        let me = &mut state.replicas[replica];
        if term > me.mem.term {
            me.mem.term = term;
            me.mem.vote = NOBODY;
            me.mem.matched = 0;
            me.role = Role::Follower;
        }
    }

    /// Everybody whom a leader ever reached may ask for votes, even one that its own configuration leaves out: the change may not be
    /// committed, or a learner may hold more than any living voter (Raft thesis, 4.2.2).
    pub fn may_campaign(&self, hard: &Hard, replica: usize) -> bool {
        let voter = hard.config.voters >> replica & 1 == 1;
        voter || hard.log_term > 0 && !self.is(Mistake::OnlyVotersCampaign)
    }

    pub fn time_out<const N: usize, const T: usize>(
        &self,
        state: &mut State<N, T>,
        replica: usize,
        term: u8,
    ) {
        let me = &mut state.replicas[replica];
        me.mem.term = term;
        me.mem.vote = replica as u8;
        me.mem.matched = 0;
        me.role = Role::Candidate;
        if self.is(Mistake::LogTermAtCandidacy) {
            me.mem.log_term = term;
        }
    }

    pub fn vote_request<const N: usize, const T: usize>(
        &self,
        state: &mut State<N, T>,
        replica: usize,
        term: u8,
        candidate: usize,
    ) {
        let Some(claim) = state.term(term).requests[candidate] else { return };
        self.observe(state, replica, term);
        let me = &mut state.replicas[replica];
        if term == me.mem.term
            && me.mem.vote == NOBODY
            && self.at_least_as_complete(claim, self.claim(&me.mem))
        {
            me.mem.vote = candidate as u8;
        }
    }

    pub fn can_win<const N: usize, const T: usize>(&self, state: &State<N, T>, replica: usize) -> bool {
        let me = &state.replicas[replica];
        if me.role != Role::Candidate {
            return false;
        }
        let granted = |voter: &usize| state.term(me.mem.term).votes[*voter] >> replica & 1 == 1;
        let granted = (0..N).filter(granted).fold(0, |set, voter| set | 1 << voter);
        majority(granted, me.mem.config.voters)
    }

    pub fn win<const N: usize, const T: usize>(&self, state: &mut State<N, T>, replica: usize) {
        let me = &mut state.replicas[replica];
        let term = me.mem.term;
        me.role = Role::Leader;
        match self.rule {
            Rule::LogTerm => me.mem.log_term = term,
            Rule::NoOp => me.mem.log.push(NO_OP | term),
        }
        me.mem.matched = me.mem.log.len();
        let Hard { log, config, .. } = me.mem;
        let complete = (0..state.committed.len())
            .filter(|&place| state.committed_in.item(place) < term)
            .all(|place| place < log.len() && log.item(place) == state.committed.item(place));
        if !complete {
            state.fault(Fault::LeaderCompleteness);
        }
        if state.term(term).lead.id != NOBODY {
            state.fault(Fault::ElectionSafety);
        }
        let mut lead = Lead { id: replica as u8, start: log.len(), log, config_count: 1, ..Lead::NONE };
        lead.configs[0] = config;
        state.term_mut(term).lead = lead;
        self.advance_commit(state, term);
    }

    pub fn propose<const N: usize, const T: usize>(&self, state: &mut State<N, T>, replica: usize) {
        let me = &mut state.replicas[replica];
        let term = me.mem.term;
        let place = me.mem.log.len();
        me.mem.log.push(term);
        me.mem.matched = me.mem.log.len();
        let log = me.mem.log;
        state.proposals += 1;
        if place < state.term(term).lead.log.len() {
            state.fault(Fault::Rewritten);
        }
        state.term_mut(term).lead.log = log;
        self.advance_commit(state, term);
    }

    /// May this leader begin the next change? Only when a majority of its present configuration holds
    /// that configuration under this very term: one change in flight, and none before the term's barrier.
    pub fn can_change<const N: usize, const T: usize>(&self, state: &State<N, T>, replica: usize) -> bool {
        let me = &state.replicas[replica];
        let term = state.term(me.mem.term);
        let config = me.mem.config;
        let holds = |r: &usize| term.acks[*r].sent && term.acks[*r].version >= config.version;
        let holders = (0..N).filter(holds).fold(0, |set, r| set | 1 << r);
        usize::from(term.lead.config_count) < term.lead.configs.len()
            && (self.is(Mistake::ChangeWithoutBarrier) || majority(holders, config.voters))
    }

    pub fn change<const N: usize, const T: usize>(
        &self,
        state: &mut State<N, T>,
        replica: usize,
        voters: u8,
    ) {
        let me = &mut state.replicas[replica];
        let config = Config { version: me.mem.config.version + 1, position: me.mem.log.len(), voters };
        me.mem.config = config;
        let term = me.mem.term;
        let lead = &mut state.term_mut(term).lead;
        lead.configs[usize::from(lead.config_count)] = config;
        lead.config_count += 1;
        state.changes += 1;
        self.advance_commit(state, term);
    }

    /// This log is known to be a prefix of the log of `term`'s leader.
    pub fn reconciled(&self, hard: &Hard, term: u8) -> bool {
        self.rule == Rule::LogTerm && hard.log_term == term && !self.is(Mistake::StaleAppendTruncates)
    }

    /// The check before an append: the record before it has the same epoch here and at the leader.
    pub fn fits(&self, own: &Log, leader: &Log, prev: u8) -> bool {
        prev <= own.len()
            && (prev == 0 || own.item(prev - 1) == leader.item(prev - 1) || self.is(Mistake::NoPrevCheck))
    }

    /// True where the append was of use: the record before it matched.
    pub fn append<const N: usize, const T: usize>(
        &self,
        state: &mut State<N, T>,
        replica: usize,
        term: u8,
        prev: u8,
        end: u8,
        configs: u8,
    ) -> bool {
        let lead = state.term(term).lead;
        if term < state.replicas[replica].mem.term || usize::from(lead.id) == replica {
            return false;
        }
        self.observe(state, replica, term);
        state.replicas[replica].role = Role::Follower;
        let mut mem = state.replicas[replica].mem;
        let before = mem;

        let accepted = if self.rule == Rule::LogTerm && mem.log_term == term {
            self.extend(&mut mem, &lead, prev, end)
        } else {
            self.reconcile(&mut mem, &lead, term, prev, end)
        };
        if !accepted {
            return false;
        }

        // Like log_term, the configuration speaks of a reconciled log only. From the leader whose log this
        // already was, only newer ones can come; any other log's configuration gives way to the leader's.
        if mem.log_term == term {
            for config in &lead.configs[..usize::from(configs)] {
                let reached = mem.log.len() >= config.position || self.is(Mistake::ConfigAdoptedEarly);
                if reached && (before.log_term < term || config.version > mem.config.version) {
                    mem.config = *config;
                }
            }
        }

        // A replica that may have been counted (its log_term says so) keeps what was committed. One that
        // was not may cut an equal record away: others hold it.
        let mut cut = before.log.common(mem.log)..before.log.common(state.committed);
        if cut.any(|place| state.committed_in.item(place) <= before.log_term) {
            state.fault(Fault::CommittedTruncated);
        }
        let known = match self.rule {
            Rule::NoOp => mem.matched,
            Rule::LogTerm if mem.log_term == term || self.is(Mistake::ExposeBeforeReconciled) => {
                mem.log.len()
            }
            Rule::LogTerm => 0,
        };
        if !mem.log.agrees(state.committed, lead.commit.min(known)) {
            state.fault(Fault::ExposedUncommitted);
        }
        state.replicas[replica].mem = mem;
        true
    }

    /// This log is a prefix of the leader's: only what lies beyond its end is news.
    fn extend(&self, mem: &mut Hard, lead: &Lead, prev: u8, end: u8) -> bool {
        if prev > mem.log.len() {
            return false;
        }
        for place in mem.log.len()..end {
            mem.log.push(lead.log.item(place));
        }
        if self.is(Mistake::StaleAppendTruncates) {
            mem.log.truncate(end);
        }
        true
    }

    /// This log is not known to be a prefix of the leader's: cut at the first record that differs, and nowhere else, since
    /// an equal record may be committed.
    fn reconcile(&self, mem: &mut Hard, lead: &Lead, term: u8, prev: u8, end: u8) -> bool {
        if !self.fits(&mem.log, &lead.log, prev) {
            return false;
        }
        let mut place = prev;
        while place < end.min(mem.log.len()) && mem.log.item(place) == lead.log.item(place) {
            place += 1;
        }
        if place < end {
            mem.log.truncate(place);
            for place in place..end {
                mem.log.push(lead.log.item(place));
            }
        }
        mem.matched = mem.matched.max(end);
        if self.rule == Rule::NoOp {
            return true;
        }
        if end >= lead.start {
            // The leader's whole log at election is here. What this log holds beyond `end` cannot be of this term, so it
            // is no part of the leader's log.
            if !self.is(Mistake::SuffixKept) {
                mem.log.truncate(end);
            }
            mem.log_term = term;
        } else if self.is(Mistake::LogTermOnFirstContact) {
            mem.log_term = term;
        } else if self.is(Mistake::TruncateToMessageEnd) {
            mem.log.truncate(end);
        }
        true
    }

    pub fn persist<const N: usize, const T: usize>(&self, state: &mut State<N, T>, replica: usize) {
        state.replicas[replica].disk = state.replicas[replica].mem;
        self.emit(state, replica);
    }

    /// Whether records may reach the disk ahead of the frame: only after the term they came under.
    pub fn can_persist_log_only<const N: usize, const T: usize>(
        &self,
        state: &State<N, T>,
        replica: usize,
    ) -> bool {
        let me = &state.replicas[replica];
        self.split
            && me.disk.log != me.mem.log
            && (me.disk.term == me.mem.term || self.is(Mistake::LogBeforeTerm))
    }

    pub fn persist_log_only<const N: usize, const T: usize>(&self, state: &mut State<N, T>, replica: usize) {
        let me = &mut state.replicas[replica];
        me.disk.log = me.mem.log;
    }

    pub fn persist_log_term_only<const N: usize, const T: usize>(
        &self,
        state: &mut State<N, T>,
        replica: usize,
    ) {
        let me = &mut state.replicas[replica];
        me.disk = Hard { log: me.disk.log, matched: me.disk.matched, ..me.mem };
    }

    pub fn crash<const N: usize, const T: usize>(&self, state: &mut State<N, T>, replica: usize) {
        let me = &mut state.replicas[replica];
        me.disk.matched = 0;
        me.mem = me.disk;
        if !self.is(Mistake::LeaderResumes) || me.role == Role::Candidate {
            me.role = Role::Follower;
        }
    }

    pub fn wipe<const N: usize, const T: usize>(&self, state: &mut State<N, T>, replica: usize) {
        let empty = State::<N, T>::new(self.voters).replicas[replica];
        state.replicas[replica] = empty;
        state.wipes += 1;
    }

    /// Puts on the network what this replica may now say.
    pub fn emit<const N: usize, const T: usize>(&self, state: &mut State<N, T>, replica: usize) {
        let me = state.replicas[replica];
        self.say_vote(state, replica, if self.is(Mistake::VoteBeforeDurable) { me.mem } else { me.disk });
        self.say_ack(state, replica, if self.is(Mistake::AckBeforeDurable) { me.mem } else { me.disk });
    }

    fn say_vote<const N: usize, const T: usize>(&self, state: &mut State<N, T>, replica: usize, said: Hard) {
        if said.term == 0 || said.vote == NOBODY {
            return;
        }
        let candidate = state.replicas[replica].role == Role::Candidate && usize::from(said.vote) == replica;
        let term = state.term_mut(said.term);
        term.votes[replica] |= 1 << said.vote;
        if candidate && term.requests[replica].is_none() {
            term.requests[replica] = Some(self.claim(&said));
        }
    }

    fn say_ack<const N: usize, const T: usize>(&self, state: &mut State<N, T>, replica: usize, said: Hard) {
        let end = match self.rule {
            Rule::LogTerm if said.term > 0 && said.log_term == said.term => said.log.len(),
            Rule::LogTerm if self.is(Mistake::CountWithoutLogTerm) && said.matched > 0 => said.matched,
            Rule::NoOp if said.matched > 0 => said.matched,
            _ => return,
        };
        let ack = crate::state::Ack { sent: true, end, version: said.config.version };
        let known = &mut state.term_mut(said.term).acks[replica];
        *known = ack.max(*known);
        self.advance_commit(state, said.term);
    }

    /// The commit rule. The leader learns of an acknowledgement the moment it is sent: later is
    /// covered, since then the crash of the leader comes first.
    fn advance_commit<const N: usize, const T: usize>(&self, state: &mut State<N, T>, term: u8) {
        let Lead { id, log, commit, .. } = state.term(term).lead;
        if id == NOBODY {
            return;
        }
        let leader = state.replicas[usize::from(id)];
        if leader.role != Role::Leader || leader.mem.term != term {
            return;
        }
        let may_count = |end: u8| match self.rule {
            Rule::LogTerm => true,
            Rule::NoOp => log.item(end - 1) & !NO_OP == term || self.is(Mistake::CommitOldTermByCount),
        };
        let held = |end: u8| {
            let acks = &state.term(term).acks;
            let holds = |r: &usize| {
                let in_memory = self.is(Mistake::LeaderCountsMemory)
                    && *r == usize::from(id)
                    && leader.mem.log.len() >= end;
                acks[*r].sent && acks[*r].end >= end || in_memory
            };
            majority((0..N).filter(holds).fold(0, |set, r| set | 1 << r), leader.mem.config.voters)
        };
        let Some(end) = (commit + 1..=log.len()).rev().find(|&end| may_count(end) && held(end)) else {
            return;
        };
        state.term_mut(term).lead.commit = end;
        for place in 0..end {
            if place == state.committed.len() {
                state.committed.push(log.item(place));
                state.committed_in.push(term);
            } else if state.committed.item(place) != log.item(place) {
                state.fault(Fault::StateMachineSafety);
                return;
            } else if term < state.committed_in.item(place) {
                state.committed_in.set(place, term);
            }
        }
    }
}
