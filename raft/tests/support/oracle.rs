//! Sees all nodes at once and remembers everything: what was committed, who led. Panics where a promise breaks.

use std::collections::BTreeMap;

use ringlog_protocol::ids::Offset;
use ringlog_raft::configuration::Configuration;
use ringlog_raft::ids::{ReplicaId, Term, Token};
use ringlog_raft::message::{Body, Message};

use super::node::Node;
use super::records::Record;

/// What some seed must meet, or the runs prove less than they say.
pub const REACHABLE: [&str; 24] = [
    "leader elected",
    "vote granted",
    "record of an older term committed",
    "log truncated",
    "copy offered",
    "copy installed",
    "copy failed",
    "disk lost",
    "disk stalled",
    "process paused",
    "write failed",
    "one-way cut",
    "node cut off",
    "two sides",
    "tick skipped",
    "barrier passed",
    "change settled",
    "successor asked",
    "stepped down: higher term",
    "stepped down: quorum lost",
    "stepped down: persist failed",
    "stepped down: transferred",
    "stepped down: removed",
    "converged",
];

/// What happened, to know that a run met what it is for.
#[derive(Clone, Debug, Default)]
pub struct Reached(pub BTreeMap<&'static str, u64>);

impl Reached {
    pub fn count(&mut self, what: &'static str) {
        *self.0.entry(what).or_default() += 1;
    }

    pub fn add(&mut self, other: &Reached) {
        for (what, count) in &other.0 {
            *self.0.entry(what).or_default() += count;
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Oracle {
    leaders: BTreeMap<Term, ReplicaId>,
    /// Every committed record from offset 0, and the lowest term in which it was committed.
    committed: Vec<(Record, Term)>,
    /// The watermark when a barrier was asked for.
    barriers: BTreeMap<Token, Offset>,
    /// Disks that are gone held what they held.
    lost: Vec<ReplicaId>,
    pub reached: Reached,
}

impl Oracle {
    pub fn committed_end(&self) -> i64 {
        self.committed.len() as i64
    }

    pub fn disk_lost(&mut self, replica: ReplicaId) {
        self.lost.push(replica);
        self.reached.count("disk lost");
    }

    /// One leader a term; it holds what was committed before its term.
    pub fn became_leader(&mut self, node: &Node, term: Term) {
        let before = self.leaders.insert(term, node.replica);
        assert!(before.is_none(), "term {term} is led by {before:?} and {:?}", node.replica);
        for (offset, (record, committed_in)) in self.committed.iter().enumerate() {
            let offset = offset as i64;
            if *committed_in < term && offset >= node.memory.start() {
                assert_eq!(
                    node.memory.get(offset),
                    Some(*record),
                    "{:?} leads term {term} without what was committed at {offset} in term {committed_in}",
                    node.replica
                );
            }
        }
        self.reached.count("leader elected");
    }

    /// A watermark never moves back in one life, and shows only what is committed; only a leader commits more, and only what enough
    /// disks hold.
    pub fn committed_at(
        &mut self,
        nodes: &mut [Node],
        place: usize,
        high_watermark: Offset,
        copies_min: usize,
    ) {
        let before = std::mem::replace(&mut nodes[place].high_watermark_seen, high_watermark);
        let node = &nodes[place];
        assert!(high_watermark >= before, "{:?}: watermark moves back", node.replica);
        let group = node.group.as_ref().expect("only a running node commits");
        let known = self.committed_end();
        for offset in node.memory.start()..high_watermark.0.min(known) {
            let (record, term) = self.committed[offset as usize];
            assert_eq!(
                node.memory.get(offset),
                Some(record),
                "{:?} shows another record at {offset}, committed in {term}",
                node.replica
            );
        }
        if high_watermark.0 <= known {
            return;
        }
        assert!(group.is_leader(), "{:?} shows what no leader committed", node.replica);
        let term = group.term();
        self.is_held(nodes, place, high_watermark, copies_min);
        for offset in known..high_watermark.0 {
            let record = node.memory.get(offset).expect("committed records are in the leader's log");
            if i64::from(record.epoch) < i64::from(term.0) {
                self.reached.count("record of an older term committed");
            }
            self.committed.push((record, term));
        }
        self.reached.count("commit");
    }

    fn is_held(&self, nodes: &[Node], leader: usize, high_watermark: Offset, copies_min: usize) {
        let leader = &nodes[leader];
        let group = leader.group.as_ref().expect("it leads");
        let voters = &group.configuration().voters;
        let wanted = leader.memory.get(high_watermark.0 - 1);
        let holds = |voter: &&ReplicaId| {
            let disk_of = |node: &Node| {
                node.replica == **voter
                    && node.disk.hard_state.log_term >= group.term()
                    && (node.disk.records.start() >= high_watermark.0
                        || node.disk.records.get(high_watermark.0 - 1) == wanted)
            };
            nodes.iter().any(disk_of) || self.lost.contains(voter)
        };
        let copies = voters.iter().filter(holds).count();
        let quorum = (voters.len() / 2 + 1).max(copies_min.min(voters.len()));
        assert!(
            copies >= quorum,
            "{high_watermark:?} is on {copies} disks of {voters:?}, {quorum} are needed"
        );
    }

    /// Durable before sent.
    pub fn sent(&mut self, node: &Node, message: &Message) {
        let state = &node.disk.hard_state;
        match &message.body {
            Body::PreVoteRequest { .. } => return,
            Body::VoteRequest { claim, .. } => {
                assert_eq!(state.vote, Some(node.replica), "a candidate's own vote is on its disk");
                assert_eq!(claim.log_term, state.log_term, "a claim is read from the disk");
                assert_eq!(claim.configuration_version, state.configuration.version);
                assert_eq!(claim.log_end.0, node.disk.records.end());
            }
            Body::VoteReply { granted: true } => {
                assert_eq!(state.vote, Some(message.to), "a vote leaves once it is on disk");
                self.reached.count("vote granted");
            }
            Body::AppendReply(reply) => {
                assert!(reply.log_term <= state.log_term, "an acknowledged log term is on disk");
                for offset in node.disk.records.start()..reply.durable_end.0 {
                    assert_eq!(
                        node.disk.records.get(offset),
                        node.memory.get(offset),
                        "{:?} acknowledges {:?} and does not hold {offset}",
                        node.replica,
                        reply.durable_end
                    );
                }
            }
            Body::SnapshotOffer(_) => self.reached.count("copy offered"),
            Body::CampaignNow => self.reached.count("successor asked"),
            _ => {}
        }
        assert!(message.term <= state.term, "{:?} speaks under a term that is not on its disk", node.replica);
    }

    pub fn barrier_asked(&mut self, token: Token) {
        self.barriers.insert(token, Offset(self.committed_end()));
    }

    /// Everything committed anywhere before the question lies below the answer.
    pub fn barrier_passed(&mut self, token: Token, high_watermark: Offset) {
        let asked = self.barriers.remove(&token).expect("a barrier is answered once");
        assert!(
            high_watermark >= asked,
            "a read at {high_watermark:?} misses what was committed up to {asked:?}"
        );
        self.reached.count("barrier passed");
    }

    pub fn barrier_refused(&mut self, token: Token) {
        assert!(self.barriers.remove(&token).is_some(), "a barrier is answered once");
    }

    /// No two configurations rule at once: each held by a majority of its own voters' disks.
    pub fn one_configuration_rules(nodes: &[Node]) {
        let rules = |configuration: &Configuration| {
            let holds = |voter: &&ReplicaId| {
                let held = nodes.iter().find(|node| node.replica == **voter);
                held.is_some_and(|node| *node.disk.hard_state.configuration == *configuration)
            };
            2 * configuration.voters.iter().filter(holds).count() > configuration.voters.len()
        };
        let mut ruling = nodes.iter().map(|node| &node.disk.hard_state.configuration);
        let ruling: Vec<_> = ruling.by_ref().filter(|configuration| rules(configuration)).collect();
        assert!(ruling.windows(2).all(|pair| pair[0] == pair[1]), "two configurations rule: {ruling:?}");
    }

    /// What a group believes of its log is so.
    pub fn agrees_with_its_log(node: &Node) {
        let Some(group) = &node.group else { return };
        assert_eq!(group.log_end().0, node.memory.end(), "{:?}: log end", node.replica);
        assert_eq!(group.log_start().0, node.memory.start(), "{:?}: log start", node.replica);
        let ignored = group.ignored();
        assert_eq!(ignored.contradictions, 0, "{:?} met a contradiction: {ignored:?}", node.replica);
        assert_eq!(ignored.malformed, 0, "{:?} met a malformed message: {ignored:?}", node.replica);
    }

    pub fn epochs_agree(node: &Node) {
        let Some(group) = &node.group else { return };
        let start = node.memory.start();
        let clipped = group.epochs().iter().map(|epoch| (epoch.epoch.0, epoch.start.0.max(start)));
        let mut known: Vec<(i32, i64)> = clipped.collect();
        // The epoch before the log's start may be remembered.
        if known.len() > 1 && known[1].1 == start {
            known.remove(0);
        }
        if node.memory.end() == start {
            return;
        }
        let held: Vec<(i32, i64)> =
            node.memory.epochs().iter().map(|epoch| (epoch.epoch.0, epoch.start.0)).collect();
        assert_eq!(known, held, "{:?}: epochs", node.replica);
    }
}
