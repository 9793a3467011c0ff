//! Clients that go away while their fetch waits: on the simulation, over one core and several. What they held is free
//! again at once, not at the end of their ten minutes.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use ringlog_bench::client::admin::NewTopic;
use ringlog_io::sim::World;
use ringlog_io::{Io, Socket};

use crate::support::node::{Node, PORT, Shape, boot, run};
use crate::support::{clients, requests};

const PATIENCE: Duration = Duration::from_secs(60);
const PARTITION_COUNT: i32 = 6;

/// How a client leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leaving {
    Closes,
    /// More requests lie unread behind the one that waits.
    ClosesWithRequestsQueued,
    /// It still reads, as `nc` does at the end of its input.
    ClosesItsDirection,
}

struct Scene {
    world: World,
    node: Node,
    io: Io,
    address: std::net::SocketAddr,
}

impl Scene {
    fn new(seed: u64) -> Scene {
        let world = World::new(seed);
        let (broker, clients) = (world.host("broker"), world.host("clients"));
        let shape = Shape { core_count: 1 + (seed % 3) as u32, mesh_credits: 64, bypass_bytes: 0 };
        let node = boot(&world, &broker, shape, PATIENCE).expect("it serves");
        let (io, host) = (clients.executor(), broker.address());
        let creation = {
            let io = io.clone();
            async move {
                let client = clients::connect(&io, host).await.expect("it serves");
                let topic = NewTopic {
                    name: clients::TOPIC,
                    partitions: PARTITION_COUNT,
                    replication_factor: 1,
                    configs: Vec::new(),
                };
                client.create_topic(&topic).await.expect("a topic");
            }
        };
        run(&world, &io, PATIENCE, creation).expect("in time");
        Scene { world, node, io, address: std::net::SocketAddr::new(host, PORT) }
    }

    fn run<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> T {
        run(&self.world, &self.io, PATIENCE, work).expect("in time")
    }

    /// Lets `duration` of virtual time pass.
    fn pass(&self, duration: Duration) {
        let io = self.io.clone();
        self.run(async move { io.sleep(duration).await });
    }

    fn waiting(&self) -> (u64, u64, u64) {
        let node = &self.node;
        let waiting = node.sum(|shown| shown.gauges.fetches_waiting);
        (waiting, node.sum(|shown| shown.gauges.fetch_watches), node.sum(|shown| shown.gauges.connections))
    }

    fn polls(&self, count: usize, queued: usize) -> Vec<Socket> {
        let (io, address) = (self.io.clone(), self.address);
        self.run(async move {
            let mut sockets = Vec::new();
            for _ in 0..count {
                let socket = io.connect(address).await.expect("it listens");
                for number in 0..=queued {
                    let bytes = requests::long_poll(number as i32, clients::TOPIC, PARTITION_COUNT);
                    io.send(&socket, vec![Bytes::from(bytes)]).await.expect("it reads");
                }
                sockets.push(socket);
            }
            sockets
        })
    }
}

async fn answer(io: &Io, socket: &Socket) -> usize {
    let mut bytes = 0;
    loop {
        let arrived = io.recv_some(socket).await.expect("an orderly end");
        if arrived.is_empty() {
            return bytes;
        }
        bytes += arrived.len();
    }
}

fn check(leaving: Leaving) {
    for seed in 0..6 {
        let scene = Scene::new(seed);
        let queued = if leaving == Leaving::ClosesWithRequestsQueued { 200 } else { 0 };
        let sockets = scene.polls(30, queued);
        scene.pass(Duration::from_secs(3));
        let (waiting, watches, connections) = scene.waiting();
        assert_eq!((waiting, connections), (30, 30), "{leaving:?} seed {seed}");
        assert_eq!(watches > 0, seed % 3 > 0, "{leaving:?} seed {seed}: watches reach over cores");
        if leaving == Leaving::ClosesItsDirection {
            let io = scene.io.clone();
            scene.run(async move {
                for socket in Rc::new(sockets).iter() {
                    socket.shutdown_write();
                    assert!(answer(&io, socket).await > 50, "seed {seed}: what was asked is answered");
                }
            });
        } else {
            drop(sockets);
        }
        scene.pass(Duration::from_secs(3));
        assert_eq!(scene.waiting(), (0, 0, 0), "{leaving:?} seed {seed}");
        assert!(scene.node.stop(&scene.world, PATIENCE), "seed {seed}");
    }
}

#[test]
fn a_closed_connection_ends_its_wait() {
    check(Leaving::Closes);
}

#[test]
fn a_closed_connection_ends_its_wait_although_requests_lie_unread() {
    check(Leaving::ClosesWithRequestsQueued);
}

#[test]
fn a_client_that_only_closed_its_direction_gets_its_answer() {
    check(Leaving::ClosesItsDirection);
}
