//! One simulated node that serves groups, a host of clients beside it, and what tests of both protocols do with them.

use std::collections::BTreeMap;
use std::time::Duration;

use ringlog_bench::client::admin::NewTopic;
use ringlog_io::Io;
use ringlog_io::sim::{Host, UnsyncedData, World};

use super::clients;
use super::clients::TOPIC;
use super::member::Member;
use super::node::{Node, Shape, boot, run};
use super::scene::prepare_output;

pub const PATIENCE: Duration = Duration::from_secs(300);
/// Of [`TOPIC`].
pub const PARTITION_COUNT: i32 = 8;
/// Of names that lie on both cores of two.
pub const GROUPS: [&str; 6] = ["g0", "g1", "g2", "g3", "g4", "g5"];

/// See the module.
pub struct Scene {
    pub world: World,
    pub broker: Host,
    pub node: Node,
    pub io: Io,
    pub shape: Shape,
}

impl Scene {
    pub fn new(seed: u64, core_count: u32) -> Scene {
        prepare_output();
        let world = World::new(seed);
        let (broker, clients) = (world.host("broker"), world.host("clients"));
        let shape = Shape { core_count, mesh_credits: 64, bypass_bytes: 0 };
        let node = boot(&world, &broker, shape, PATIENCE).expect("it serves");
        let scene = Scene { io: clients.executor(), world, broker, node, shape };
        scene.create_topic();
        scene
    }

    pub fn create_topic(&self) {
        self.create(TOPIC, PARTITION_COUNT);
    }

    pub fn create(&self, name: &'static str, partitions: i32) {
        self.create_with(name, partitions, &[]);
    }

    pub fn create_with(&self, name: &'static str, partitions: i32, configs: &[(&'static str, &'static str)]) {
        let configs = configs.to_vec();
        let (io, host) = (self.io.clone(), self.broker.address());
        self.run(async move {
            let client = clients::connect(&io, host).await.expect("it serves");
            let topic = NewTopic { name, partitions, replication_factor: 1, configs };
            client.create_topic(&topic).await.expect("a topic");
        });
    }

    pub fn run<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> T {
        run(&self.world, &self.io, PATIENCE, work).expect("in time")
    }

    pub fn member(&self, group: &str) -> Member {
        let (io, host, group) = (self.io.clone(), self.broker.address(), group.to_owned());
        self.run(async move { Member::connect(&io, host, &group).await.expect("it serves") })
    }

    /// The power is cut, and the node comes back.
    pub fn cut_power(self, unsynced: UnsyncedData) -> Scene {
        let Scene { world, broker, node, io, shape } = self;
        broker.crash_with(unsynced);
        drop(node);
        let node = boot(&world, &broker, shape, PATIENCE).expect("it serves again");
        Scene { world, broker, node, io, shape }
    }

    pub fn stop(&self) {
        assert!(self.node.stop(&self.world, PATIENCE), "it ends");
        assert_eq!(self.node.failure(), None);
        // With its process all that it was still at ends, such as a compaction.
        self.broker.crash_with(UnsyncedData::Kept);
    }

    pub fn pass(&self, duration: Duration) {
        let io = self.io.clone();
        self.run(async move { io.sleep(duration).await });
    }

    pub fn offsets(&self, group: &str) -> BTreeMap<(String, i32), i64> {
        let (io, host, group) = (self.io.clone(), self.broker.address(), group.to_owned());
        self.run(async move {
            let client = clients::connect(&io, host).await.expect("it serves");
            loop {
                match client.group_offsets(&group).await {
                    Ok(offsets) => {
                        break offsets
                            .into_iter()
                            .map(|(place, committed)| (place, committed.offset))
                            .collect();
                    }
                    Err(error) if error.is_retriable() => io.sleep(Duration::from_millis(50)).await,
                    Err(error) => panic!("{group}: {error}"),
                }
            }
        })
    }

    pub fn waiting(&self) -> u64 {
        // What is shown is a second old at most.
        self.pass(Duration::from_secs(2));
        self.node.sum(|shown| shown.groups.calls_waiting)
    }
}
