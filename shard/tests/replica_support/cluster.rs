//! The hosts, what runs on them, and what is the same for all. Decides nothing.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ringlog_io::sim::{Host, World};
use ringlog_protocol::ids::{NodeId, Offset, TopicPartition};
use ringlog_raft::Settings;
use ringlog_raft::configuration::Configuration;
use ringlog_raft::ids::{DirectoryId, ReplicaId};
use ringlog_shard::storage::{LogSettings, Retention, StorageSettings};
use ringlog_shard::store::Store;

use super::history::History;
use super::network::Network;
use crate::storage_support::{SMALL, partition};

/// Voters at the beginning, and nodes in all.
pub const FOUNDERS: usize = 3;
pub const NODES: usize = 4;
pub const PARTITIONS: i32 = 2;

/// What differs from seed to seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub bypass_bytes: usize,
    pub tail_bytes_max: usize,
    pub segment_bytes: u32,
    pub retention_bytes: u64,
    pub copies_min: usize,
    pub message_bytes_max: u32,
    pub value_bytes_max: u64,
}

pub struct NodeSlot {
    pub host: Host,
    pub store: RefCell<Option<Store>>,
    pub is_up: Cell<bool>,
    /// When a node that is down starts again.
    pub starts_at_ns: Cell<u64>,
}

pub struct Cluster {
    pub world: World,
    pub shape: Shape,
    pub network: Network,
    pub nodes: Vec<NodeSlot>,
    pub history: RefCell<History>,
    /// Who led each term of each partition.
    leaders: RefCell<BTreeMap<(TopicPartition, i32), i32>>,
    pub is_healed: Cell<bool>,
    pub clients_done: Cell<u32>,
    pub operations: Cell<u64>,
    /// Producers that send a batch again.
    pub retries: Cell<u32>,
    pub counts: RefCell<BTreeMap<&'static str, u64>>,
}

pub fn key(number: i32) -> TopicPartition {
    partition(7, number)
}

pub fn replica(place: usize) -> ReplicaId {
    ReplicaId { node: NodeId(place as i32), directory: DirectoryId([place as u8 + 1; 16]) }
}

impl Cluster {
    pub fn new(world: World, shape: Shape) -> Rc<Cluster> {
        let nodes = (0..NODES).map(|place| NodeSlot {
            host: world.host(&format!("node-{place}")),
            store: RefCell::default(),
            is_up: Cell::new(false),
            starts_at_ns: Cell::new(0),
        });
        let nodes = nodes.collect();
        Rc::new(Cluster {
            world,
            shape,
            network: Network::new(NODES),
            nodes,
            history: RefCell::new(History::new(PARTITIONS)),
            leaders: RefCell::default(),
            is_healed: Cell::new(false),
            clients_done: Cell::new(0),
            operations: Cell::new(0),
            retries: Cell::new(0),
            counts: RefCell::default(),
        })
    }

    pub fn count(&self, what: &'static str) {
        *self.counts.borrow_mut().entry(what).or_default() += 1;
    }

    pub fn keys(&self) -> impl Iterator<Item = TopicPartition> + use<> {
        (0..PARTITIONS).map(key)
    }

    pub fn storage_settings(&self) -> StorageSettings {
        let Shape { bypass_bytes, tail_bytes_max, .. } = self.shape;
        StorageSettings { bypass_bytes, tail_bytes_max, ..SMALL }
    }

    pub fn log_settings(&self) -> LogSettings {
        LogSettings {
            segment_bytes: self.shape.segment_bytes,
            index_interval_bytes: 1024,
            retention: Retention { age_ms_max: None, bytes_max: Some(self.shape.retention_bytes) },
            ..LogSettings::KEEP_ALL
        }
    }

    pub fn raft_settings(&self, place: usize) -> Settings {
        Settings {
            election_timeout: Duration::from_millis(150),
            heartbeat_interval: Duration::from_millis(30),
            priority: (place % 3) as u8,
            copies_min: self.shape.copies_min,
            message_bytes_max: self.shape.message_bytes_max,
            in_flight_bytes_max: 4 * self.shape.message_bytes_max,
            write_stall_timeout: Duration::from_millis(600),
            lag_time_max: Duration::from_millis(1_000),
            ..Settings::default()
        }
    }

    pub fn configuration(&self, place: usize) -> Configuration {
        let voters = (0..FOUNDERS).map(replica).collect();
        let version = u64::from(place < FOUNDERS);
        Configuration { version, position: Offset(0), voters, learners: Vec::new() }
    }

    pub fn store(&self, place: usize) -> Option<Store> {
        self.nodes[place].store.borrow().clone()
    }

    /// The place of whoever leads the newest term and knows what is committed.
    pub fn settled_leader(&self, key: TopicPartition) -> Option<usize> {
        let of_place = |place: usize| {
            let status = self.store(place)?.replica_status(key).ok()?;
            status.is_settled.then_some((status.epoch, place))
        };
        (0..NODES).filter_map(of_place).max().map(|(_, place)| place)
    }

    /// One leader a term.
    pub fn look(&self) {
        for place in 0..NODES {
            let Some(store) = self.store(place) else { continue };
            for key in self.keys() {
                let Ok(status) = store.replica_status(key) else { continue };
                assert!(status.log_start <= status.high_watermark && status.high_watermark <= status.log_end);
                assert_eq!(status.ignored.contradictions, 0, "{key} on {place}: {status:?}");
                if status.leader == Some(NodeId(place as i32)) && !status.members.is_empty() {
                    let mut leaders = self.leaders.borrow_mut();
                    let leader = *leaders.entry((key, status.epoch.0)).or_insert(place as i32);
                    assert_eq!(leader, place as i32, "two leaders of {key} in term {}", status.epoch);
                }
            }
            assert_eq!(store.replication_stats().contradictions, 0);
        }
    }

    pub fn terms_led(&self) -> usize {
        self.leaders.borrow().len()
    }
}
