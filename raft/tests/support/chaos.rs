//! What goes wrong, and who asks for what. Chosen by chance; never more disks are lost than a majority can bear.

use ringlog_protocol::ids::Offset;
use ringlog_raft::Event;
use ringlog_raft::configuration::{Change, Configuration};
use ringlog_raft::ids::{ReplicaId, Ticket};

use super::world::{ELECTION_MS, World};

impl World {
    /// One step of chance, every 20 ms.
    pub fn chaos(&mut self) {
        let faults = self.faults.clone();
        let place = self.random.below(self.nodes.len() as u64) as usize;
        if self.random.chance(faults.crash) {
            self.crash(place);
            if self.random.chance(faults.lost_disk) && self.can_bear_to_lose(place) {
                let lost = self.nodes[place].replica;
                self.oracle.disk_lost(lost);
                self.nodes[place].lose_disk();
            }
            let after = self.random.between(5, 4 * ELECTION_MS);
            self.start_later(place, after);
        }
        if self.random.chance(faults.stall) {
            self.nodes[place].stalled_until_ms = self.now_ms + self.random.between(20, 8 * ELECTION_MS);
            self.oracle.reached.count("disk stalled");
        }
        if self.random.chance(faults.pause) {
            self.nodes[place].paused_until_ms = self.now_ms + self.random.between(10, 3 * ELECTION_MS);
            self.oracle.reached.count("process paused");
        }
        if self.random.chance(faults.write_failure) {
            self.fail_writes(place);
        }
        self.partition();
        if self.random.chance(faults.retire) {
            self.retire(place);
        }
        self.ask();
    }

    pub fn crash(&mut self, place: usize) {
        if self.nodes[place].group.is_some() {
            self.nodes[place].crash(&mut self.random);
            self.nodes[place].write_failed = false;
            self.oracle.reached.count("crash");
        }
    }

    fn fail_writes(&mut self, place: usize) {
        let Some(group) = &self.nodes[place].group else { return };
        if group.persists_in_flight() == 0 || self.nodes[place].write_failed {
            return;
        }
        self.nodes[place].write_failed = true;
        self.oracle.reached.count("write failed");
        self.happen(place, Event::PersistFailed { ticket: Ticket(1) }, None, &[]);
        // An operator notices after a while.
        let after = self.random.between(100, 1000);
        self.crash_later(place, after);
    }

    fn partition(&mut self) {
        let count = self.nodes.len() as u64;
        if self.random.chance(self.faults.cut) {
            match self.random.below(3) {
                0 => {
                    let (from, to) = (self.random.below(count) as usize, self.random.below(count) as usize);
                    self.cuts[from][to] = true;
                    self.oracle.reached.count("one-way cut");
                }
                1 => {
                    let alone = self.random.below(count) as usize;
                    for other in 0..self.nodes.len() {
                        self.cuts[alone][other] = true;
                        self.cuts[other][alone] = true;
                    }
                    self.oracle.reached.count("node cut off");
                }
                _ => {
                    let side = self.random.next();
                    for from in 0..self.nodes.len() {
                        for to in 0..self.nodes.len() {
                            self.cuts[from][to] = side >> from & 1 != side >> to & 1;
                        }
                    }
                    self.oracle.reached.count("two sides");
                }
            }
        }
        if self.random.chance(self.faults.heal) {
            self.cuts.iter_mut().flatten().for_each(|cut| *cut = false);
        }
    }

    /// Losing this disk leaves a majority of every configuration that anybody holds.
    fn can_bear_to_lose(&self, place: usize) -> bool {
        let lost = self.nodes[place].replica;
        let lives =
            |voter: &&ReplicaId| **voter != lost && self.nodes.iter().any(|node| node.replica == **voter);
        // A learner may be made a voter before anybody notices that it is gone, and two voters bear no loss.
        let bears = |configuration: &Configuration| {
            !configuration.learners.contains(&lost)
                && 2 * configuration.voters.iter().filter(lives).count() > configuration.voters.len()
        };
        self.nodes.iter().all(|node| {
            let held = node.group.as_ref().map(|group| group.configuration());
            bears(&node.disk.hard_state.configuration)
                && held.is_none_or(bears)
                && node.unwritten.iter().all(|unwritten| {
                    unwritten.persist.hard_state.as_ref().is_none_or(|state| bears(&state.configuration))
                })
        })
    }

    fn retire(&mut self, place: usize) {
        let Some(group) = &self.nodes[place].group else { return };
        // What is not on this disk yet is not retired: its journal entry would follow the retirement.
        let (start, end) = (group.log_start().0, group.high_watermark().min(group.durable_end()).0);
        if end <= start || !self.nodes[place].unwritten.is_empty() {
            return;
        }
        let log_start = start + self.random.below((end - start) as u64 + 1) as i64;
        self.nodes[place].memory.retire(log_start);
        self.nodes[place].disk.records.retire(log_start);
        self.happen(place, Event::LogStartMoved { log_start: Offset(log_start) }, None, &[]);
    }

    /// Clients and operators.
    fn ask(&mut self) {
        let leaders: Vec<usize> =
            (0..self.nodes.len()).filter(|place| self.nodes[*place].leads().is_some()).collect();
        let Some(leader) = self.random.pick(&leaders) else { return };
        if self.random.chance(self.faults.proposals) {
            let count = self.random.between(1, 12) as usize;
            self.propose(leader, count);
        }
        if self.random.chance(self.faults.barriers) {
            let token = self.token();
            self.oracle.barrier_asked(token);
            self.happen(leader, Event::ReadBarrier { token }, None, &[]);
        }
        if self.random.chance(self.faults.transfer) {
            let token = self.token();
            let to = self.random.below(self.nodes.len() as u64 + 1) as usize;
            let to = self.nodes.get(to).map(|node| node.replica);
            self.happen(leader, Event::TransferLeadership { to, token }, None, &[]);
        }
        if self.random.chance(self.faults.membership) {
            self.change(leader);
        }
    }

    fn change(&mut self, leader: usize) {
        let Some(group) = self.nodes[leader].leads() else { return };
        let configuration = group.configuration().clone();
        let other = self.random.below(self.nodes.len() as u64) as usize;
        let replica = self.nodes[other].replica;
        let gone = |member: &ReplicaId| self.nodes.iter().all(|node| node.replica != *member);
        let members = configuration.voters.iter().chain(&configuration.learners).copied();
        let dead = members.clone().find(gone);
        let change = match self.random.below(4) {
            0 | 1 if dead.is_some() => Change::Remove(dead.unwrap_or(replica)),
            0 => Change::Remove(replica),
            1 => Change::Demote(replica),
            2 => Change::Promote(replica),
            _ => Change::AddLearner(replica),
        };
        let change = if configuration.is_member(replica) { change } else { Change::AddLearner(replica) };
        self.request(leader, change);
    }

    fn request(&mut self, leader: usize, change: Change) {
        let token = self.token();
        self.oracle.reached.count(match change {
            Change::AddLearner(_) => "asked to add a learner",
            Change::Promote(_) => "asked to promote",
            Change::Demote(_) => "asked to demote",
            Change::Remove(_) => "asked to remove",
        });
        self.happen(leader, Event::ChangeConfiguration { change, token }, None, &[]);
    }

    /// What an operator does after the faults: members whose disk is gone are taken out.
    pub fn repair(&mut self) {
        let Some(leader) = (0..self.nodes.len()).find(|place| self.nodes[*place].leads().is_some()) else {
            return;
        };
        let Some(group) = self.nodes[leader].leads() else { return };
        let configuration = group.configuration();
        let mut members = configuration.voters.iter().chain(&configuration.learners);
        let gone = members.find(|member| self.nodes.iter().all(|node| node.replica != **member)).copied();
        if let Some(gone) = gone {
            self.request(leader, Change::Remove(gone));
        }
    }
}
