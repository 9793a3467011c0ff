//! Everything the model remembers: replicas, messages in flight, and what was ever committed.
//!
//! The network is a set of *facts*. A message once sent stays deliverable for ever, so any delivery
//! order, any number of deliveries and no delivery at all are explored: loss, duplication and
//! reordering need no actions of their own.

use std::hash::{Hash, Hasher};

use crate::log::Log;

pub const NOBODY: u8 = 0xff;

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Config {
    /// Grows by one with each change; compared only between replicas of one `log_term`.
    pub version: u8,
    /// The leader's log end when the change was made. A follower whose log is shorter must not adopt it.
    pub position: u8,
    /// Bit set of replicas.
    pub voters: u8,
}

/// What a replica keeps on disk; `Replica::mem` is the same, ahead of the disk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Hard {
    pub term: u8,
    pub vote: u8,
    pub log_term: u8,
    pub log: Log,
    pub config: Config,
    /// Rule (ii) and the mistake `CountWithoutLogTerm`: how far this log was verified in this term.
    pub matched: u8,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Role {
    #[default]
    Follower,
    Candidate,
    Leader,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Replica {
    pub disk: Hard,
    pub mem: Hard,
    pub role: Role,
}

/// How complete a log claims to be. The order of the fields is the order of comparison.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Claim {
    pub log_term: u8,
    pub version: u8,
    pub end: u8,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Ack {
    pub sent: bool,
    pub end: u8,
    pub version: u8,
}

/// The leader of a term, as its messages show it (messages outlive the leader).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Lead {
    pub id: u8,
    /// Log end at the election: what a follower must hold before it may call its log this term's.
    pub start: u8,
    pub log: Log,
    pub commit: u8,
    pub configs: [Config; 3],
    pub config_count: u8,
}

impl Lead {
    pub const NONE: Lead = Lead {
        id: NOBODY,
        start: 0,
        log: Log::EMPTY,
        commit: 0,
        configs: [Config { version: 0, position: 0, voters: 0 }; 3],
        config_count: 0,
    };
}

/// What one term put on the network.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Term<const N: usize> {
    pub lead: Lead,
    /// `Some(claim)`: this replica asked for votes in this term.
    pub requests: [Option<Claim>; N],
    /// Bit set of the candidates this replica granted its vote to (two bits would be a fault).
    pub votes: [u8; N],
    /// The furthest durable (log end, configuration) this replica reported to the leader of this term.
    pub acks: [Ack; N],
}

impl<const N: usize> Term<N> {
    pub const NONE: Self = Term {
        lead: Lead::NONE,
        requests: [None; N],
        votes: [0; N],
        acks: [Ack { sent: false, end: 0, version: 0 }; N],
    };
}

/// Broken promises seen on a transition, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    ElectionSafety = 1,
    LeaderCompleteness = 2,
    StateMachineSafety = 4,
    ExposedUncommitted = 8,
    CommittedTruncated = 16,
    Rewritten = 32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State<const N: usize, const T: usize> {
    pub replicas: [Replica; N],
    /// Term t is `terms[t - 1]`. The last one is kept for the recovery check.
    pub terms: [Term<N>; T],
    /// Everything that was ever committed, and the lowest term in which each item was.
    pub committed: Log,
    pub committed_in: Log,
    pub proposals: u8,
    pub changes: u8,
    pub wipes: u8,
    pub faults: u8,
}

/// Packed by hand: the checker spends most of its time hashing.
impl<const N: usize, const T: usize> Hash for State<N, T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        for replica in &self.replicas {
            hasher.write_u64(replica.disk.pack());
            hasher.write_u64(replica.mem.pack() << 2 | replica.role as u64);
        }
        for term in &self.terms {
            let lead = &term.lead;
            let head = [lead.id & 7, lead.start, lead.commit, lead.config_count];
            let head =
                head.iter().fold(u64::from(lead.log.bits()), |bits, &field| bits << 3 | u64::from(field));
            hasher.write_u64(head);
            hasher.write_u64(lead.configs.iter().fold(0, |bits, config| bits << 11 | config.pack()));
            let claim = |claim: Claim| {
                1 << 9 | u64::from(claim.log_term) << 6 | u64::from(claim.end) << 3 | u64::from(claim.version)
            };
            hasher.write_u64(
                term.requests.iter().fold(0, |bits, request| bits << 10 | request.map_or(0, claim)),
            );
            let ack = |ack: &Ack| u64::from(ack.sent) << 6 | u64::from(ack.end) << 3 | u64::from(ack.version);
            let votes = term.votes.iter().fold(0, |bits, &vote| bits << 5 | u64::from(vote));
            hasher.write_u64(term.acks.iter().fold(votes, |bits, known| bits << 7 | ack(known)));
        }
        hasher.write_u64(u64::from(self.committed.bits()) << 32 | u64::from(self.committed_in.bits()));
        let counts = [self.proposals, self.changes, self.wipes, self.faults];
        hasher.write_u64(counts.iter().fold(0, |bits, &count| bits << 8 | u64::from(count)));
    }
}

impl Hard {
    fn pack(self) -> u64 {
        let fields = [self.term, self.vote & 7, self.log_term, self.matched];
        let fields =
            fields.iter().fold(u64::from(self.log.bits()), |bits, &field| bits << 3 | u64::from(field));
        fields << 11 | self.config.pack()
    }
}

impl Config {
    fn pack(self) -> u64 {
        u64::from(self.version) << 8 | u64::from(self.position) << 5 | u64::from(self.voters)
    }
}

impl<const N: usize, const T: usize> State<N, T> {
    pub fn new(voters: u8) -> Self {
        let hard = Hard {
            term: 0,
            vote: NOBODY,
            log_term: 0,
            log: Log::default(),
            config: Config { version: 0, position: 0, voters },
            matched: 0,
        };
        State {
            replicas: [Replica { disk: hard, mem: hard, role: Role::Follower }; N],
            terms: [Term::NONE; T],
            committed: Log::default(),
            committed_in: Log::default(),
            proposals: 0,
            changes: 0,
            wipes: 0,
            faults: 0,
        }
    }

    pub fn term(&self, term: u8) -> &Term<N> {
        &self.terms[usize::from(term) - 1]
    }

    pub fn term_mut(&mut self, term: u8) -> &mut Term<N> {
        &mut self.terms[usize::from(term) - 1]
    }

    pub fn fault(&mut self, fault: Fault) {
        self.faults |= fault as u8;
    }

    pub fn forgive(&mut self, fault: Fault) {
        self.faults &= !(fault as u8);
    }

    pub fn has(&self, fault: Fault) -> bool {
        self.faults & fault as u8 != 0
    }

    /// Drops messages that can no longer change anything: those of a term that every disk has left, vote
    /// requests and votes for somebody who is a candidate no more, reports to somebody who leads no more.
    /// Only for the sound protocol: some planted mistakes let a replica come back to an earlier term.
    pub fn forget(&mut self) {
        let oldest = self.replicas.iter().map(|replica| replica.disk.term).min().unwrap_or(0);
        for (index, term) in self.terms.iter_mut().enumerate() {
            let number = index as u8 + 1;
            if number < oldest {
                *term = Term::NONE;
                continue;
            }
            let runs =
                |r: &usize| self.replicas[*r].role == Role::Candidate && self.replicas[*r].mem.term == number;
            let running = (0..N).filter(runs).fold(0, |set, r| set | 1u8 << r);
            for r in 0..N {
                term.votes[r] &= running;
                if running >> r & 1 == 0 {
                    term.requests[r] = None;
                }
            }
            let leads = |replica: &Replica| replica.role == Role::Leader && replica.mem.term == number;
            if !self.replicas.iter().any(leads) {
                term.acks = [Ack::default(); N];
            }
        }
    }

    /// One state for all that differ only by the replicas' names.
    ///
    /// Replicas are sorted by everything about them that names nobody; ties keep their order, which
    /// only costs some reduction, never soundness.
    pub fn canonical(self) -> Self {
        let mut order: [usize; N] = std::array::from_fn(|r| r);
        let keys: [_; N] = std::array::from_fn(|r| self.key(r));
        order.sort_by(|&a, &b| keys[a].cmp(&keys[b]));
        if order.is_sorted() {
            return self;
        }
        let mut place = [0u8; N];
        for (new, &old) in order.iter().enumerate() {
            place[old] = new as u8;
        }
        let name = |r: u8| if r == NOBODY { NOBODY } else { place[usize::from(r)] };
        let set = |bits: u8| (0..N).filter(|r| bits >> r & 1 == 1).fold(0, |set, r| set | 1 << place[r]);
        let config = |config: Config| Config { voters: set(config.voters), ..config };
        let hard = |hard: Hard| Hard { vote: name(hard.vote), config: config(hard.config), ..hard };
        let old = self;
        State {
            replicas: order.map(|r| {
                let replica = old.replicas[r];
                Replica { disk: hard(replica.disk), mem: hard(replica.mem), role: replica.role }
            }),
            terms: old.terms.map(|term| Term {
                lead: Lead { id: name(term.lead.id), configs: term.lead.configs.map(config), ..term.lead },
                requests: order.map(|r| term.requests[r]),
                votes: order.map(|r| set(term.votes[r])),
                acks: order.map(|r| term.acks[r]),
            }),
            ..old
        }
    }

    fn key(&self, r: usize) -> impl Ord + use<N, T> {
        let me = r as u8;
        let Replica { disk, mem, role } = self.replicas[r];
        let hard = |hard: Hard| {
            let vote = if hard.vote == NOBODY { 0 } else { 1 + u8::from(hard.vote == me) };
            let member = hard.config.voters >> me & 1;
            (
                hard.term,
                vote,
                hard.log_term,
                hard.log,
                (hard.config.version, hard.config.position, member),
                hard.matched,
            )
        };
        let facts = self.terms.map(|term| {
            let voters = term.votes.iter().filter(|&&bits| bits >> me & 1 == 1).count();
            let own_vote = (term.votes[r] != 0, term.votes[r] >> me & 1);
            (term.lead.id == me, term.requests[r], voters, own_vote, term.acks[r])
        });
        let votes_for_me = self.replicas.iter().filter(|replica| replica.mem.vote == me).count();
        (role, hard(disk), hard(mem), votes_for_me, facts)
    }
}
