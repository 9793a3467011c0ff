//! What goes wrong, drawn from the seed: each seed has its own mixture, with whole kinds switched off.

use std::rc::Rc;
use std::time::Duration;

use ringlog_io::sim::UnsyncedData;

use super::cluster::{Cluster, NODES, Shape};
use super::network::Weather;
use super::node;

/// Between two looks at the sky.
pub const STEP: Duration = Duration::from_millis(20);

/// Per mille of the steps.
#[derive(Clone, Copy, Debug)]
pub struct Climate {
    pub network: Weather,
    pub crash: u64,
    pub cut: u64,
    pub heal: u64,
    pub stall: u64,
    pub slow: u64,
    pub failing_syncs: u64,
    pub steps: u64,
}

fn some(cluster_random: &mut impl FnMut() -> u64, most: u64) -> u64 {
    if cluster_random() % 10 < 6 { 1 + cluster_random() % most } else { 0 }
}

impl Climate {
    pub fn draw(random: &mut impl FnMut() -> u64) -> Climate {
        Climate {
            network: Weather {
                loss: some(random, 150),
                duplication: some(random, 150),
                late: some(random, 60),
                delay_us_max: 200 + some(random, 8_000),
                damage: some(random, 40),
            },
            crash: some(random, 40),
            cut: some(random, 40),
            heal: 80,
            stall: some(random, 20),
            slow: some(random, 20),
            failing_syncs: some(random, 4),
            steps: 60 + random() % 140,
        }
    }
}

pub fn draw_shape(random: &mut impl FnMut() -> u64) -> Shape {
    let pick = |random: &mut dyn FnMut() -> u64, from: &[u64]| from[(random() % from.len() as u64) as usize];
    Shape {
        bypass_bytes: pick(random, &[0, 0, 3_000]) as usize,
        tail_bytes_max: pick(random, &[96 * 1024, 256 * 1024, 4 << 20]) as usize,
        segment_bytes: pick(random, &[8, 16, 64]) as u32 * 1024,
        retention_bytes: pick(random, &[400, 800, 100_000]) * 1024,
        copies_min: pick(random, &[1, 2, 2, 3]) as usize,
        message_bytes_max: pick(random, &[4, 16, 256]) as u32 * 1024,
        value_bytes_max: pick(random, &[40, 400, 1_500]),
    }
}

/// One step of what goes wrong.
pub fn step(cluster: &Rc<Cluster>, climate: &Climate) {
    let random = || cluster.world.random_u64();
    let chance = |per_mille: u64| random() % 1000 < per_mille;
    let place = (random() % NODES as u64) as usize;
    let now_ns = cluster.world.now().0;
    if chance(climate.crash) && cluster.nodes[place].is_up.get() {
        let unsynced = match random() % 4 {
            0 => UnsyncedData::Kept,
            1 => UnsyncedData::Lost,
            choice => UnsyncedData::RandomSubset { torn: choice == 3 },
        };
        node::crash(cluster, place, unsynced);
        cluster.count("power cut");
        cluster.nodes[place].starts_at_ns.set(now_ns + (5 + random() % 600) * 1_000_000);
    }
    for place in 0..NODES {
        let slot = &cluster.nodes[place];
        if !slot.is_up.get() && slot.starts_at_ns.get() <= now_ns {
            node::start(cluster, place);
        }
    }
    if chance(climate.stall) {
        cluster.nodes[place].host.disk().stall(Duration::from_millis(20 + random() % 900));
        cluster.count("disk stalled");
    }
    if chance(climate.slow) {
        cluster.nodes[place]
            .host
            .disk()
            .slow_down(1 + random() % 20, Duration::from_millis(1 + random() % 30));
    }
    // Only while it serves: a start that cannot sync what it replays fails, or calls the partition damaged, and is right; that is for an
    // operator to mend. The crash seeds of the storage play it.
    if chance(climate.failing_syncs) && cluster.store(place).is_some() {
        cluster.nodes[place].host.disk().fail_syncs(4 + random() % 20);
        cluster.count("syncs fail");
    }
    cut(cluster, climate);
    restart_poisoned(cluster, now_ns);
}

fn cut(cluster: &Cluster, climate: &Climate) {
    let random = || cluster.world.random_u64();
    let chance = |per_mille: u64| random() % 1000 < per_mille;
    let mut cuts = cluster.network.cuts.borrow_mut();
    if chance(climate.cut) {
        let (from, to) = ((random() % NODES as u64) as usize, (random() % NODES as u64) as usize);
        match random() % 3 {
            0 => {
                cuts[from][to] = true;
                cluster.count("one-way cut");
            }
            1 => {
                for other in 0..NODES {
                    (cuts[from][other], cuts[other][from]) = (true, true);
                }
                cluster.count("node cut off");
            }
            _ => {
                let side = random();
                for from in 0..NODES {
                    for to in 0..NODES {
                        cuts[from][to] = side >> from & 1 != side >> to & 1;
                    }
                }
                cluster.count("two sides");
            }
        }
    }
    if chance(climate.heal) {
        cuts.iter_mut().flatten().for_each(|cut| *cut = false);
    }
}

/// An operator starts a node anew whose storage takes no more writes.
fn restart_poisoned(cluster: &Cluster, now_ns: u64) {
    for place in 0..NODES {
        let Some(store) = cluster.store(place) else { continue };
        let is_poisoned = !store.unhealthy().is_empty();
        drop(store);
        if is_poisoned {
            cluster.count("storage failed");
            node::crash(cluster, place, UnsyncedData::Kept);
            cluster.nodes[place].starts_at_ns.set(now_ns + 100_000_000);
        }
    }
}
