//! Members of groups on the simulation, while the power goes and comes: what each was told is remembered, and must fit together. A
//! commit that was acknowledged is there at the end, no two members own one partition in one generation, and generations in which
//! partitions are owned only grow.
//!
//! `RINGLOG_SEED=7` runs that seed alone, `RINGLOG_SEED_COUNT=100` more than a test run has time for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;

use crate::support::clients::TOPIC;
use crate::support::group_play::{self, Commits, Hands, seeds};
use crate::support::member::{Member, MemberError, Told};

/// What was told to members.
#[derive(Default)]
struct History {
    /// The newest generation in which somebody owned something.
    generations: BTreeMap<&'static str, i32>,
    owners: BTreeMap<(&'static str, i32, u8), String>,
    commits: Commits,
    violations: Vec<String>,
}

impl History {
    fn owns(&mut self, group: &'static str, member: &Member, assignment: &[u8], newest_before: i32) {
        let generation = member.generation;
        if generation < newest_before {
            let text = format!("{group}: generation {generation} is owned after {newest_before}");
            self.violations.push(text);
        }
        let newest = self.generations.entry(group).or_default();
        *newest = generation.max(*newest);
        for partition in assignment {
            let owner = self.owners.entry((group, generation, *partition)).or_insert(member.id.clone());
            if *owner != member.id {
                let text =
                    format!("{group}: {partition} is owned by {owner} and {} in {generation}", member.id);
                self.violations.push(text);
            }
        }
    }
}

/// A member that lives.
struct Life {
    hands: Hands,
    history: Rc<RefCell<History>>,
}

impl Life {
    /// Comes, works and goes, over and over.
    async fn live(self, group: &'static str) {
        let mut known: Option<(String, i32)> = None;
        while !self.hands.is_over() {
            let Ok(mut member) = Member::connect(&self.hands.io, self.hands.host, group).await else {
                continue;
            };
            // Some remember who they were.
            if let Some((id, generation)) = known.take().filter(|_| self.hands.below(2) == 0) {
                (member.id, member.generation) = (id, generation);
            }
            while !self.hands.is_over() {
                match self.work(group, &mut member).await {
                    Ok(()) => {}
                    Err(MemberError::Client(_)) => break,
                    Err(MemberError::Refused(code)) => match code {
                        ErrorCode::UnknownMemberId | ErrorCode::IllegalGeneration => member.id.clear(),
                        _ => self.hands.pause(100).await,
                    },
                }
            }
            known = Some((member.id.clone(), member.generation));
        }
    }

    /// Joins, and works until somebody else comes or goes.
    async fn work(&self, group: &'static str, member: &mut Member) -> Told<()> {
        member.join().await?;
        let newest_before = self.history.borrow().generations.get(group).copied().unwrap_or_default();
        let assignment = member.sync().await?;
        self.history.borrow_mut().owns(group, member, &assignment, newest_before);
        loop {
            self.hands.pause(200).await;
            if self.hands.is_over() {
                return Ok(());
            }
            match self.hands.below(20) {
                0 => {
                    let left = member.leave().await;
                    member.id.clear();
                    return left;
                }
                // It looks dead for a while.
                1 => self.hands.pause(15_000).await,
                2..=8 => member.heartbeat().await?,
                _ => {
                    for partition in &assignment {
                        self.commit(group, member, *partition).await?;
                    }
                }
            }
        }
    }

    async fn commit(&self, group: &'static str, member: &Member, partition: u8) -> Told<()> {
        let place = (group, partition);
        let offset = self.history.borrow_mut().commits.begin(place);
        let committed = member.commit(TOPIC, i32::from(partition), offset).await;
        let commits = &mut self.history.borrow_mut().commits;
        match &committed {
            Ok(()) => commits.acknowledged(place, offset),
            // Whoever decides says so before anything is written.
            Err(MemberError::Refused(
                ErrorCode::UnknownMemberId
                | ErrorCode::IllegalGeneration
                | ErrorCode::RebalanceInProgress
                | ErrorCode::CoordinatorLoadInProgress,
            )) => commits.refused(place, offset),
            Err(_) => {}
        }
        committed
    }
}

/// What was wrong, the commits that were acknowledged, and the generations that there were.
fn play(seed: u64) -> (Vec<String>, u64, i32) {
    let history = Rc::<RefCell<History>>::default();
    let offsets = group_play::play(seed, |group, hands| {
        let life = Life { hands, history: Rc::clone(&history) };
        life.live(group)
    });
    let history = history.take();
    let generation = history.generations.values().copied().max().unwrap_or_default();
    let mut violations = history.violations;
    violations.extend(history.commits.violations(&offsets));
    (violations, history.commits.count, generation)
}

#[test]
fn acknowledged_commits_stay_and_generations_grow() {
    let (mut all_commits, mut generations) = (0, 0);
    for seed in seeds(6) {
        let (violations, commits, generation) = play(seed);
        assert!(violations.is_empty(), "RINGLOG_SEED={seed}: {violations:#?}");
        (all_commits, generations) = (all_commits + commits, generations + generation);
    }
    println!("{all_commits} commits acknowledged, {generations} generations");
    assert!(all_commits > 50 && generations > 5, "{all_commits} commits, {generations} generations");
}

#[test]
fn one_seed_gives_one_play() {
    assert_eq!(play(3), play(3));
}
