//! Members of consumer groups of KIP-848 on the simulation, while the power goes and comes: what each was told is remembered, and must fit
//! together. No two own one partition, as they themselves believe, while both are heard of; the epochs of each only grow; a commit that
//! was acknowledged is there at the end.
//!
//! `RINGLOG_SEED=7` runs that seed alone, `RINGLOG_SEED_COUNT=100` more than a test run has time for.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use ringlog_io::Monotonic;
use ringlog_protocol::error_code::ErrorCode;

use crate::support::clients::TOPIC;
use crate::support::consumer::{At, Consumer};
use crate::support::group_play::{self, Commits, Hands, seeds};
use crate::support::member::{MemberError, SESSION_MS, Told};

/// What a member that lives believes.
struct Believes {
    owned: BTreeSet<At>,
    /// When it sent the newest heartbeat that was answered: the group holds it for a member for a session at least.
    heard_at: Monotonic,
}

/// What was told to members.
#[derive(Default)]
struct History {
    members: BTreeMap<(&'static str, String), Believes>,
    names: u64,
    /// The highest told in each group.
    epochs: BTreeMap<&'static str, i32>,
    commits: Commits,
    /// A partition came to another member.
    moved: u64,
    last_owners: BTreeMap<(&'static str, At), String>,
    violations: Vec<String>,
}

impl History {
    /// A member was told what it has, at `now`; it asked at `sent`.
    fn owns(&mut self, group: &'static str, member: &Consumer, sent: Monotonic, now: Monotonic) {
        let session = Duration::from_millis(SESSION_MS as u64);
        for ((other_group, other), believes) in &self.members {
            let is_held = *other_group == group && *other != member.id && believes.heard_at + session > now;
            if let Some(at) = believes.owned.intersection(&member.owned).next().filter(|_| is_held) {
                let text = format!("{group}: {} and {other} both own {at:?}", member.id);
                self.violations.push(text);
            }
        }
        for at in &member.owned {
            let before = self.last_owners.insert((group, *at), member.id.clone());
            self.moved += u64::from(before.is_some_and(|before| before != member.id));
        }
        let newest = self.epochs.entry(group).or_default();
        *newest = member.epoch.max(*newest);
        let believes = Believes { owned: member.owned.clone(), heard_at: sent };
        self.members.insert((group, member.id.clone()), believes);
    }

    fn gives_up(&mut self, group: &'static str, member: &str, gone: &BTreeSet<At>) {
        if let Some(believes) = self.members.get_mut(&(group, member.to_owned())) {
            believes.owned.retain(|at| !gone.contains(at));
        }
    }
}

/// A member that lives.
struct Life {
    hands: Hands,
    history: Rc<RefCell<History>>,
}

impl Life {
    /// Comes, works and goes, over and over, each time under another name.
    async fn live(self, group: &'static str) {
        while !self.hands.is_over() {
            let name = {
                let mut history = self.history.borrow_mut();
                history.names += 1;
                format!("member-{}", history.names)
            };
            self.live_once(group, &name).await;
            self.history.borrow_mut().members.remove(&(group, name));
        }
    }

    /// One life, over as many connections as it takes.
    async fn live_once(&self, group: &'static str, name: &str) {
        let mut before: Option<(i32, BTreeSet<At>)> = None;
        while !self.hands.is_over() {
            let connected = Consumer::connect(&self.hands.io, self.hands.host, group, name).await;
            let Ok(mut member) = connected else { continue };
            if let Some((epoch, owned)) = before.take() {
                (member.epoch, member.owned) = (epoch, owned);
            } else if self.hands.below(3) == 0 {
                (member.topics, member.regex) = (Vec::new(), "o.*");
            }
            loop {
                match self.work(group, &mut member).await {
                    Ok(true) => return,
                    Ok(false) => {}
                    Err(MemberError::Client(_)) => break,
                    Err(MemberError::Refused(_)) => self.hands.pause(100).await,
                }
            }
            before = Some((member.epoch, member.owned));
        }
    }

    /// A heartbeat, and work until the next one. True where it is over.
    async fn work(&self, group: &'static str, member: &mut Consumer) -> Told<bool> {
        let (sent, before) = (member.io.monotonic_now(), member.epoch);
        let name = member.id.clone();
        let beaten = member.beat(|gone| self.history.borrow_mut().gives_up(group, &name, gone)).await;
        let told = beaten?;
        if told.epoch < before {
            let text = format!("{group}: {name} is in epoch {} after {before}", told.epoch);
            self.history.borrow_mut().violations.push(text);
        }
        let now = member.io.monotonic_now();
        self.history.borrow_mut().owns(group, member, sent, now);
        for _ in 0..self.hands.below(4) {
            let place = self.hands.below(member.owned.len().max(1) as u64) as usize;
            if let Some((_, partition)) = member.owned.iter().nth(place) {
                match self.commit(group, member, *partition as u8).await {
                    Err(MemberError::Refused(ErrorCode::UnknownMemberId)) | Ok(()) => {}
                    Err(error) => return Err(error),
                }
            }
            self.hands.pause(200).await;
        }
        self.hands.pause(400).await;
        if self.hands.is_over() {
            return Ok(true);
        }
        match self.hands.below(40) {
            0 => {
                let owned = member.owned.clone();
                self.history.borrow_mut().gives_up(group, &name, &owned);
                member.leave(-1).await?;
                Ok(true)
            }
            // It crashes.
            1 => Ok(true),
            // It looks dead for a while.
            2 => {
                self.hands.pause(15_000).await;
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    async fn commit(&self, group: &'static str, member: &Consumer, partition: u8) -> Told<()> {
        let place = (group, partition);
        let offset = self.history.borrow_mut().commits.begin(place);
        let committed = member.commit(TOPIC, i32::from(partition), offset).await;
        let commits = &mut self.history.borrow_mut().commits;
        match &committed {
            Ok(()) => commits.acknowledged(place, offset),
            // Whoever decides says so before anything is written.
            Err(MemberError::Refused(
                ErrorCode::UnknownMemberId
                | ErrorCode::StaleMemberEpoch
                | ErrorCode::CoordinatorLoadInProgress,
            )) => commits.refused(place, offset),
            Err(_) => {}
        }
        committed
    }
}

/// What was wrong, the commits that were acknowledged, partitions that moved, and the highest epoch.
fn play(seed: u64) -> (Vec<String>, u64, u64, i32) {
    let history = Rc::<RefCell<History>>::default();
    let offsets = group_play::play(seed, |group, hands| {
        let life = Life { hands, history: Rc::clone(&history) };
        life.live(group)
    });
    let history = history.take();
    let mut violations = history.violations;
    violations.extend(history.commits.violations(&offsets));
    let epoch = history.epochs.values().copied().max().unwrap_or_default();
    (violations, history.commits.count, history.moved, epoch)
}

#[test]
fn acknowledged_commits_stay_and_no_partition_has_two_owners() {
    let (mut all_commits, mut all_moved, mut epochs) = (0, 0, 0);
    for seed in seeds(6) {
        let (violations, commits, moved, epoch) = play(seed);
        assert!(violations.is_empty(), "RINGLOG_SEED={seed}: {violations:#?}");
        (all_commits, all_moved, epochs) = (all_commits + commits, all_moved + moved, epochs + epoch);
    }
    println!("{all_commits} commits acknowledged, {all_moved} partitions moved, {epochs} epochs");
    assert!(all_commits > 50 && all_moved > 5 && epochs > 5, "{all_commits}, {all_moved}, {epochs}");
}

#[test]
fn one_seed_gives_one_play() {
    assert_eq!(play(3), play(3));
}
