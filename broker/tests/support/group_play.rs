//! Members of groups, of whichever protocol, that live while the power goes and comes, and what their groups have at the end.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use ringlog_bench::client::admin::NewTopic;
use ringlog_io::sim::{Host, UnsyncedData, World};
use ringlog_io::{Io, Priority};

use super::clients;
use super::clients::TOPIC;
use super::node::{Node, Shape, boot, run};
use super::scene::prepare_output;

pub const GROUPS: [&str; 3] = ["g0", "g1", "g2"];
const PATIENCE: Duration = Duration::from_secs(600);
const MEMBERS_PER_GROUP: usize = 3;
const PARTITION_COUNT: i32 = 8;

/// A partition of a group.
pub type Place = (&'static str, u8);

/// What became of commits.
#[derive(Default)]
pub struct Commits {
    /// The newest acknowledged one.
    acked: BTreeMap<Place, i64>,
    /// Those of which nobody knows.
    unsure: BTreeMap<Place, BTreeSet<i64>>,
    next_offset: i64,
    /// Acknowledged ones.
    pub count: u64,
}

impl Commits {
    /// An offset that nobody committed yet; its fate is not known.
    pub fn begin(&mut self, place: Place) -> i64 {
        self.next_offset += 1;
        self.unsure.entry(place).or_default().insert(self.next_offset);
        self.next_offset
    }

    pub fn acknowledged(&mut self, place: Place, offset: i64) {
        self.count += 1;
        self.refused(place, offset);
        let acked = self.acked.entry(place).or_default();
        *acked = offset.max(*acked);
    }

    /// Nothing was written.
    pub fn refused(&mut self, place: Place, offset: i64) {
        self.unsure.entry(place).or_default().remove(&offset);
    }

    /// What is missing at the end.
    pub fn violations(&self, offsets: &BTreeMap<Place, i64>) -> Vec<String> {
        let mut violations = Vec::new();
        for (place, acked) in &self.acked {
            let found = offsets.get(place).copied();
            let unsure = self.unsure.get(place);
            let may_be =
                |offset: i64| offset == *acked || unsure.is_some_and(|unsure| unsure.contains(&offset));
            if !found.is_some_and(may_be) {
                violations.push(format!("{place:?}: {acked} was acknowledged, {found:?} is there"));
            }
        }
        violations
    }
}

/// The hands of a member.
#[derive(Clone)]
pub struct Hands {
    pub io: Io,
    pub host: IpAddr,
    stop: Rc<Cell<bool>>,
}

impl Hands {
    pub fn is_over(&self) -> bool {
        self.stop.get()
    }

    pub fn below(&self, bound: u64) -> u64 {
        self.io.random_u64() % bound
    }

    pub async fn pause(&self, longest_ms: u64) {
        self.io.sleep(Duration::from_micros(self.below(longest_ms * 1_000))).await;
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

/// Lets members live through some outages of the node, each as `live` says, and starts it once more: the offsets that are there then.
pub fn play<L: Future<Output = ()> + 'static>(
    seed: u64,
    live: impl Fn(&'static str, Hands) -> L,
) -> BTreeMap<Place, i64> {
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
    let (stop, busy) = (Rc::<Cell<bool>>::default(), Rc::<Cell<usize>>::default());
    for group in GROUPS.iter().flat_map(|group| [*group; MEMBERS_PER_GROUP]) {
        let io = clients_host.executor();
        let life = live(group, Hands { io: io.clone(), host, stop: Rc::clone(&stop) });
        let busy = Rc::clone(&busy);
        busy.set(busy.get() + 1);
        io.spawn(Priority::Foreground, async move {
            life.await;
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
    let mut offsets = BTreeMap::new();
    for group in GROUPS {
        offsets
            .extend(play.offsets(group).into_iter().map(|(partition, offset)| ((group, partition), offset)));
    }
    drop(node);
    offsets
}

/// A number in the environment.
pub fn number_of(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{variable}={text}: {error}")))
}

/// The seeds to play.
pub fn seeds(usually: u64) -> Vec<u64> {
    match number_of("RINGLOG_SEED") {
        Some(seed) => vec![seed],
        None => (1..=number_of("RINGLOG_SEED_COUNT").unwrap_or(usually)).collect(),
    }
}
