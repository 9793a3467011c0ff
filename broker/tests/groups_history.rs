//! Members of groups on the simulation, while the power goes and comes: what each was told is remembered, and must fit together. A
//! commit that was acknowledged is there at the end, no two members own one partition in one generation, and generations in which
//! partitions are owned only grow.
//!
//! `RINGLOG_SEED=7` runs that seed alone, `RINGLOG_SEED_COUNT=100` more than a test run has time for.

mod support;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use ringlog_bench::client::admin::NewTopic;
use ringlog_io::sim::{Host, UnsyncedData, World};
use ringlog_io::{Io, Priority};
use ringlog_protocol::error_code::ErrorCode;

use support::clients;
use support::clients::TOPIC;
use support::member::{Member, MemberError, Told};
use support::node::{Node, Shape, boot, run};
use support::scene::prepare_output;

const PATIENCE: Duration = Duration::from_secs(600);
const GROUPS: [&str; 3] = ["g0", "g1", "g2"];
const MEMBERS_PER_GROUP: usize = 3;
const PARTITION_COUNT: i32 = 8;

/// A partition of a group.
type Owned = (&'static str, u8);

/// What was told to members.
#[derive(Default)]
struct History {
    /// The newest generation in which somebody owned something.
    generations: BTreeMap<&'static str, i32>,
    owners: BTreeMap<(&'static str, i32, u8), String>,
    /// The newest acknowledged commit.
    acked: BTreeMap<Owned, i64>,
    /// Commits of which nobody knows.
    unsure: BTreeMap<Owned, BTreeSet<i64>>,
    next_offset: i64,
    commits: u64,
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

/// The hands of a member.
#[derive(Clone)]
struct Hands {
    io: Io,
    host: std::net::IpAddr,
    history: Rc<RefCell<History>>,
    stop: Rc<Cell<bool>>,
}

impl Hands {
    fn below(&self, bound: u64) -> u64 {
        self.io.random_u64() % bound
    }

    async fn pause(&self, longest_ms: u64) {
        self.io.sleep(Duration::from_micros(self.below(longest_ms * 1_000))).await;
    }

    /// Comes, works and goes, over and over.
    async fn live(self, group: &'static str) {
        let mut known: Option<(String, i32)> = None;
        while !self.stop.get() {
            let Ok(mut member) = Member::connect(&self.io, self.host, group).await else { continue };
            // Some remember who they were.
            if let Some((id, generation)) = known.take().filter(|_| self.below(2) == 0) {
                (member.id, member.generation) = (id, generation);
            }
            while !self.stop.get() {
                match self.work(group, &mut member).await {
                    Ok(()) => {}
                    Err(MemberError::Client(_)) => break,
                    Err(MemberError::Refused(code)) => match code {
                        ErrorCode::UnknownMemberId | ErrorCode::IllegalGeneration => member.id.clear(),
                        _ => self.pause(100).await,
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
            self.pause(200).await;
            if self.stop.get() {
                return Ok(());
            }
            match self.below(20) {
                0 => {
                    let left = member.leave().await;
                    member.id.clear();
                    return left;
                }
                // It looks dead for a while.
                1 => self.pause(15_000).await,
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
        let owned = (group, partition);
        let offset = {
            let mut history = self.history.borrow_mut();
            history.next_offset += 1;
            let offset = history.next_offset;
            history.unsure.entry(owned).or_default().insert(offset);
            offset
        };
        let committed = member.commit(TOPIC, i32::from(partition), offset).await;
        let mut history = self.history.borrow_mut();
        match &committed {
            Ok(()) => {
                history.commits += 1;
                history.unsure.entry(owned).or_default().remove(&offset);
                let acked = history.acked.entry(owned).or_default();
                *acked = offset.max(*acked);
            }
            // Whoever decides says so before anything is written.
            Err(MemberError::Refused(
                ErrorCode::UnknownMemberId
                | ErrorCode::IllegalGeneration
                | ErrorCode::RebalanceInProgress
                | ErrorCode::CoordinatorLoadInProgress,
            )) => {
                history.unsure.entry(owned).or_default().remove(&offset);
            }
            Err(_) => {}
        }
        committed
    }
}

struct Play {
    world: World,
    broker: Host,
    io: Io,
}

impl Play {
    fn below(&self, bound: u64) -> u64 {
        self.world.random_u64() % bound
    }

    fn boot(&self) -> Node {
        let shape = Shape { core_count: 1 + self.below(3) as u32, mesh_credits: 64, bypass_bytes: 0 };
        boot(&self.world, &self.broker, shape, PATIENCE).expect("it serves")
    }

    fn outage(&self, node: Node) -> Node {
        if self.below(4) == 0 {
            assert!(node.stop(&self.world, PATIENCE), "it ends");
            self.broker.crash_with(UnsyncedData::Lost);
        } else {
            let torn = self.below(2) == 0;
            self.broker.crash_with(UnsyncedData::RandomSubset { torn });
        }
        drop(node);
        self.boot()
    }

    fn offsets(&self, group: &'static str) -> BTreeMap<u8, i64> {
        let (io, host) = (self.io.clone(), self.broker.address());
        let work = async move {
            let client = clients::connect(&io, host).await.expect("it serves");
            loop {
                match client.group_offsets(group).await {
                    Ok(offsets) => return offsets,
                    Err(error) => assert!(error.is_retriable(), "{error}"),
                }
                io.sleep(Duration::from_millis(50)).await;
            }
        };
        let offsets = run(&self.world, &self.io, PATIENCE, work).expect("in time");
        offsets.into_iter().map(|((_, partition), committed)| (partition as u8, committed.offset)).collect()
    }
}

/// What was wrong, the commits that were acknowledged, and the generations that there were.
fn play(seed: u64) -> (Vec<String>, u64, i32) {
    prepare_output();
    let world = World::new(seed);
    let (broker, clients_host) = (world.host("broker"), world.host("clients"));
    let play = Play { io: clients_host.executor(), world, broker };
    let mut node = play.boot();
    let (io, host) = (play.io.clone(), play.broker.address());
    let made = async move {
        let client = clients::connect(&io, host).await.expect("it serves");
        let topic =
            NewTopic { name: TOPIC, partitions: PARTITION_COUNT, replication_factor: 1, configs: Vec::new() };
        client.create_topic(&topic).await.expect("a topic");
    };
    run(&play.world, &play.io, PATIENCE, made).expect("in time");
    let history = Rc::<RefCell<History>>::default();
    let (stop, busy) = (Rc::<Cell<bool>>::default(), Rc::<Cell<usize>>::default());
    for group in GROUPS.iter().flat_map(|group| [*group; MEMBERS_PER_GROUP]) {
        let io = clients_host.executor();
        let hands = Hands { io: io.clone(), host, history: Rc::clone(&history), stop: Rc::clone(&stop) };
        let busy = Rc::clone(&busy);
        busy.set(busy.get() + 1);
        io.spawn(Priority::Foreground, async move {
            hands.live(group).await;
            busy.set(busy.get() - 1);
        })
        .detach();
    }
    for _ in 0..2 + play.below(3) {
        play.world.run_for(Duration::from_millis(500 + play.below(8_000)));
        node = play.outage(node);
    }
    play.world.run_for(Duration::from_millis(2_000 + play.below(8_000)));
    stop.set(true);
    play.world.run_until(|| busy.get() == 0, PATIENCE);
    assert_eq!(busy.get(), 0, "members end");
    let node = play.outage(node);
    let mut history = history.take();
    for group in GROUPS {
        let offsets = play.offsets(group);
        for ((_, partition), acked) in history.acked.range((group, 0)..=(group, u8::MAX)) {
            let found = offsets.get(partition).copied();
            let unsure = history.unsure.get(&(group, *partition));
            let may_be =
                |offset: i64| offset == *acked || unsure.is_some_and(|unsure| unsure.contains(&offset));
            if !found.is_some_and(may_be) {
                history
                    .violations
                    .push(format!("{group}-{partition}: {acked} was acknowledged, {found:?} is there"));
            }
        }
    }
    drop(node);
    let generation = history.generations.values().copied().max().unwrap_or_default();
    (history.violations, history.commits, generation)
}

fn number_of(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}

#[test]
fn acknowledged_commits_stay_and_generations_grow() {
    let seeds = match number_of("RINGLOG_SEED") {
        Some(seed) => vec![seed],
        None => (1..=number_of("RINGLOG_SEED_COUNT").unwrap_or(6)).collect(),
    };
    let (mut all_commits, mut generations) = (0, 0);
    for seed in seeds {
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
