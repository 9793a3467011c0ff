//! One node: a group, the log that its caller keeps for it, and a disk that lags behind.

use std::collections::VecDeque;

use ringlog_protocol::ids::{NodeId, Offset};
use ringlog_raft::configuration::Configuration;
use ringlog_raft::effect::{AppendRange, AppendSource, Persist};
use ringlog_raft::group::{Group, Replicated, Restored};
use ringlog_raft::hard_state::HardState;
use ringlog_raft::ids::{DirectoryId, Moment, ReplicaId};
use ringlog_raft::{Event, Settings};

use super::random::Random;
use super::records::{Record, Records};

/// What survives a crash.
#[derive(Clone, Debug)]
pub struct Disk {
    pub hard_state: HardState,
    pub records: Records,
}

/// A persist that the disk has not completed, with its records.
#[derive(Clone, Debug)]
pub struct Unwritten {
    pub persist: Persist,
    pub records: Vec<Record>,
}

#[derive(Debug)]
pub struct Node {
    pub place: usize,
    pub replica: ReplicaId,
    /// `None` while the node is down.
    pub group: Option<Group>,
    pub memory: Records,
    pub disk: Disk,
    pub unwritten: VecDeque<Unwritten>,
    pub writes_at_ms: u64,
    pub stalled_until_ms: u64,
    pub paused_until_ms: u64,
    pub rate_per_mille: u64,
    /// Counts starts: what was scheduled for an earlier life is void.
    pub life: u64,
    /// Counts lost disks.
    pub disks: u8,
    /// When each other node was last heard, and in which life.
    pub heard: Vec<(u64, u64)>,
    pub high_watermark_seen: Offset,
    pub write_failed: bool,
}

pub fn replica(place: usize, disks: u8) -> ReplicaId {
    let mut directory = [0; 16];
    directory[0] = place as u8 + 1;
    directory[1] = disks;
    ReplicaId { node: NodeId(place as i32), directory: DirectoryId(directory) }
}

impl Node {
    pub fn new(place: usize, nodes: usize, founders: &Configuration, rate_per_mille: u64) -> Node {
        let replica = replica(place, 0);
        let founder = founders.is_voter(replica);
        let version = u64::from(founder);
        let hard_state = HardState::joining(replica, Configuration { version, ..founders.clone() });
        Node {
            place,
            replica,
            group: None,
            memory: Records::default(),
            disk: Disk { hard_state, records: Records::default() },
            unwritten: VecDeque::new(),
            writes_at_ms: 0,
            stalled_until_ms: 0,
            paused_until_ms: 0,
            rate_per_mille,
            life: 0,
            disks: 0,
            heard: vec![(0, 0); nodes],
            high_watermark_seen: Offset(0),
            write_failed: false,
        }
    }

    /// The node's own clock, which runs fast or slow.
    pub fn moment(&self, now_ms: u64) -> Moment {
        Moment(now_ms * self.rate_per_mille * 1_000)
    }

    pub fn start(&mut self, settings: Settings, now_ms: u64, seed: u64) -> Group {
        self.life += 1;
        self.memory = self.disk.records.clone();
        let restored = Restored {
            me: self.replica,
            hard_state: self.disk.hard_state.clone(),
            log_start: Offset(self.memory.start()),
            log_end: Offset(self.memory.end()),
        };
        let replicated = Replicated { epochs: self.memory.epochs(), settings: settings.into(), seed };
        self.heard.iter_mut().for_each(|heard| heard.0 = now_ms);
        self.high_watermark_seen = Offset(0);
        self.writes_at_ms = now_ms;
        Group::restore_replicated(restored, replicated).expect("what was written is restored")
    }

    /// Everything in memory goes. Of what was on its way a part is on the disk: some persists whole, the next perhaps in part, in the
    /// order in which parts become durable.
    pub fn crash(&mut self, random: &mut Random) {
        self.group = None;
        self.life += 1;
        let whole = random.below(self.unwritten.len() as u64 + 1) as usize;
        for unwritten in self.unwritten.drain(..whole).collect::<Vec<_>>() {
            self.disk.write(&unwritten);
        }
        if let Some(Unwritten { persist, records }) = self.unwritten.pop_front()
            && random.chance(500)
        {
            if let Some(to) = persist.truncate_to {
                self.disk.records.truncate(to.0);
            }
            if persist.append.is_some() && random.chance(500) {
                let kept = random.below(records.len() as u64 + 1) as usize;
                self.disk.records.extend(&records[..kept]);
            }
        }
        self.unwritten.clear();
    }

    /// The disk is gone; the node comes back under a new directory, knowing only whom it may hear from.
    pub fn lose_disk(&mut self) {
        self.disks += 1;
        self.replica = replica(self.place, self.disks);
        let known = (*self.disk.hard_state.configuration).clone();
        let known = Configuration { version: 0, position: Offset(0), ..known };
        self.disk = Disk { hard_state: HardState::joining(self.replica, known), records: Records::default() };
    }

    /// Carries out a persist in memory and hands it to the disk.
    pub fn accept(&mut self, persist: Persist, message: Option<(i64, &[Record])>, proposed: &[Record]) {
        if let Some(to) = persist.truncate_to {
            self.memory.truncate(to.0);
        }
        let records = match persist.append {
            None => Vec::new(),
            Some(AppendRange { base, end, source }) => {
                assert_eq!(base.0, self.memory.end(), "an append continues the log");
                let records = match source {
                    AppendSource::Proposal { .. } => proposed.to_vec(),
                    AppendSource::Message => {
                        let (first, records) = message.expect("records of the message just stepped");
                        records[(base.0 - first) as usize..(end.0 - first) as usize].to_vec()
                    }
                };
                self.memory.extend(&records);
                assert_eq!(end.0, self.memory.end(), "an append ends where it says");
                records
            }
        };
        self.unwritten.push_back(Unwritten { persist, records });
    }

    /// A sign of life of another node, in one of its lives.
    pub fn hear(&mut self, from: usize, life: u64, now_ms: u64) {
        let before = std::mem::replace(&mut self.heard[from], (now_ms, life)).1;
        if before != life
            && let Some(group) = &mut self.group
        {
            group.doubt();
        }
    }

    pub fn leads(&self) -> Option<&Group> {
        self.group.as_ref().filter(|group| group.is_leader())
    }

    /// Whether the caller may leave the group alone: it is quiet, and the nodes concerned are heard.
    pub fn may_skip_tick(&self, now_ms: u64, patience_ms: u64) -> bool {
        let Some(group) = &self.group else { return true };
        if !group.is_quiescent() {
            return false;
        }
        let configuration = group.configuration();
        let leader = group.leader();
        let concerned = configuration.voters.iter().chain(&configuration.learners);
        concerned.filter(|member| group.is_leader() || Some(**member) == leader).all(|member| {
            let place = member.node.0 as usize;
            place == self.place || now_ms < self.heard[place].0 + patience_ms
        })
    }

    pub fn step(&mut self, event: Event) -> Vec<ringlog_raft::Effect> {
        let mut effects = Vec::new();
        if let Some(group) = &mut self.group {
            group.step(event, &mut effects);
        }
        effects
    }
}

impl Disk {
    pub fn write(&mut self, unwritten: &Unwritten) {
        let Unwritten { persist, records } = unwritten;
        if let Some(to) = persist.truncate_to {
            self.records.truncate(to.0);
        }
        if let Some(append) = persist.append {
            assert_eq!(append.base.0, self.records.end(), "writes reach the disk in order");
            self.records.extend(records);
        }
        if let Some(hard_state) = &persist.hard_state {
            self.hard_state = hard_state.clone();
        }
    }
}
