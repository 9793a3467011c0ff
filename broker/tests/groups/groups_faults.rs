//! Groups of a whole node on the simulation while its disk is full or fails, and while hundreds of clients leave groups behind. A commit
//! that was refused is not shown later unless it was written, and never half of it.

use std::collections::BTreeMap;
use std::time::Duration;

use ringlog_bench::client::admin::NewTopic;
use ringlog_broker::group::Cause;
use ringlog_io::sim::{Host, Place, UnsyncedData, World};
use ringlog_io::{Io, Priority};
use ringlog_protocol::error_code::ErrorCode;

use crate::support::clients;
use crate::support::clients::TOPIC;
use crate::support::consumer::Consumer;
use crate::support::member::{Member, SESSION_MS, Told};
use crate::support::node::{Node, Shape, boot, run};
use crate::support::scene::prepare_output;

const PATIENCE: Duration = Duration::from_secs(3_600);
const SHAPE: Shape = Shape { core_count: 2, mesh_credits: 64, bypass_bytes: 0 };
const AMPLE_BYTES: u64 = 1 << 40;
const GROUP: &str = "g";
/// Of a commit of several partitions.
const PLACES: [i32; 3] = [0, 3, 7];

struct Scene {
    world: World,
    broker: Host,
    node: Node,
    io: Io,
}

impl Scene {
    fn new(seed: u64) -> Scene {
        prepare_output();
        let world = World::new(seed);
        let (broker, clients) = (world.host("broker"), world.host("clients"));
        let node = boot(&world, &broker, SHAPE, PATIENCE).expect("it serves");
        let scene = Scene { io: clients.executor(), world, broker, node };
        let (io, host) = (scene.io.clone(), scene.broker.address());
        scene.run(async move {
            let client = clients::connect(&io, host).await.expect("it serves");
            let topic = NewTopic { name: TOPIC, partitions: 8, replication_factor: 1, configs: Vec::new() };
            client.create_topic(&topic).await.expect("a topic");
        });
        scene
    }

    fn run<T: 'static>(&self, work: impl Future<Output = T> + 'static) -> T {
        run(&self.world, &self.io, PATIENCE, work).expect("in time")
    }

    fn pass(&self, duration: Duration) {
        let io = self.io.clone();
        self.run(async move { io.sleep(duration).await });
    }

    /// Nobody in particular commits the same offset of several partitions in one request.
    fn commit(&self, offset: i64) -> Told<()> {
        let (io, host) = (self.io.clone(), self.broker.address());
        self.run(async move {
            let member = Member::connect(&io, host, GROUP).await.expect("it serves");
            member.commit_all(TOPIC, &PLACES, offset).await
        })
    }

    /// What the group has, once its partition is read.
    fn offsets(&self) -> BTreeMap<i32, i64> {
        let (io, host) = (self.io.clone(), self.broker.address());
        self.run(async move {
            let client = clients::connect(&io, host).await.expect("it serves");
            loop {
                match client.group_offsets(GROUP).await {
                    Ok(found) => {
                        break found.into_iter().map(|((_, index), told)| (index, told.offset)).collect();
                    }
                    Err(error) if error.is_retriable() => io.sleep(Duration::from_millis(50)).await,
                    Err(error) => panic!("{error}"),
                }
            }
        })
    }

    /// The node goes down with its disk, which is sound afterwards, and comes back.
    fn cut_power(self) -> Scene {
        let Scene { world, broker, node, io } = self;
        broker.crash_with(UnsyncedData::Lost);
        drop(node);
        broker.disk().heal();
        broker.disk().set_capacity_bytes(AMPLE_BYTES);
        let node = boot(&world, &broker, SHAPE, PATIENCE).expect("it serves again");
        Scene { world, broker, node, io }
    }
}

fn all_at(offset: i64) -> BTreeMap<i32, i64> {
    PLACES.into_iter().map(|place| (place, offset)).collect()
}

#[test]
fn a_commit_that_a_full_disk_refuses_is_never_shown_and_later_ones_are_taken() {
    for seed in 0..4 {
        let scene = Scene::new(seed);
        scene.commit(1).expect("there is room");
        let disk = scene.broker.disk();
        disk.set_capacity_bytes(disk.used_bytes() + 4_096);
        let (mut acked, mut refused) = (1, 0);
        for offset in 2..12 {
            match scene.commit(offset) {
                Ok(()) => acked = offset,
                Err(error) => {
                    assert_eq!(error.code(), Some(ErrorCode::CoordinatorNotAvailable), "seed {seed}");
                    refused += 1;
                }
            }
            assert_eq!(scene.offsets(), all_at(acked), "seed {seed}: a look is answered on a full disk");
            scene.pass(Duration::from_millis(500));
        }
        assert!(refused > 0, "seed {seed}: the disk was full");
        let scene = if seed % 2 == 0 {
            disk.set_capacity_bytes(AMPLE_BYTES);
            scene.pass(Duration::from_secs(5));
            scene
        } else {
            scene.cut_power()
        };
        assert_eq!(scene.offsets(), all_at(acked), "seed {seed}");
        scene.commit(50).expect("there is room again");
        assert_eq!(scene.offsets(), all_at(50), "seed {seed}");
    }
}

#[test]
fn a_commit_that_a_failed_journal_write_refuses_is_shown_whole_or_not_at_all() {
    for seed in 0..6 {
        let scene = Scene::new(seed);
        scene.commit(1).expect("all is well");
        scene.broker.disk().fail_writes(Place::in_files("/journal/"));
        let error = scene.commit(2).expect_err("it is not on the disk");
        assert_eq!(error.code(), Some(ErrorCode::CoordinatorNotAvailable), "seed {seed}");
        assert_eq!(scene.offsets(), all_at(1), "seed {seed}: it is not known to be written");
        let error = scene.commit(3).expect_err("the core takes no writes until a restart");
        assert_eq!(error.code(), Some(ErrorCode::CoordinatorNotAvailable), "seed {seed}");
        assert_eq!(scene.offsets(), all_at(1), "seed {seed}");
        let scene = scene.cut_power();
        let found = scene.offsets();
        assert!([all_at(1), all_at(2)].contains(&found), "seed {seed}: {found:?}");
        scene.commit(9).expect("all is well");
        assert_eq!(scene.offsets(), all_at(9), "seed {seed}");
    }
}

#[test]
fn three_hundred_abandoned_groups_go_by_themselves_and_others_are_served_meanwhile() {
    const ABANDONED: u64 = 300;
    let scene = Scene::new(7);
    scene.commit(1).expect("it serves");
    let bytes_before = {
        scene.pass(Duration::from_secs(2));
        scene.node.sum(|shown| shown.groups.bytes)
    };
    let (io, host) = (scene.io.clone(), scene.broker.address());
    scene.run(async move {
        let come = |number: u64| {
            let io = io.clone();
            io.clone().spawn(Priority::Foreground, async move {
                let group = format!("abandoned-{number}");
                let mut member = Member::connect(&io, host, &group).await.expect("it serves");
                // Some go before they ask for their assignment, the others once they own something.
                let result =
                    if number.is_multiple_of(3) { member.join().await } else { member.own().await.map(drop) };
                result.expect("it joins");
            })
        };
        let coming: Vec<_> = (0..ABANDONED).map(come).collect();
        for one in coming {
            one.await;
        }
    });
    scene.pass(Duration::from_secs(2));
    assert_eq!(scene.node.sum(|shown| shown.groups.members), ABANDONED, "nobody said goodbye");
    scene.commit(2).expect("others are served");
    // All sessions end, and the time of those who never asked for their assignment.
    scene.pass(6 * Duration::from_millis(SESSION_MS as u64));
    assert_eq!(scene.node.sum(|shown| shown.groups.members), 0);
    assert_eq!(scene.node.sum(|shown| shown.groups.calls_waiting), 0);
    let expired = Cause::SessionExpired;
    assert!(scene.node.sum(|shown| shown.groups.rebalances(expired)) > 0, "metrics say why");
    // The look for what nobody needs is due every ten minutes.
    scene.pass(Duration::from_secs(1_300));
    assert_eq!(scene.node.sum(|shown| shown.groups.empty), 1, "the one with offsets stays");
    assert_eq!(scene.node.sum(|shown| shown.groups.bytes), bytes_before, "nothing is left of them");
    assert_eq!(scene.offsets(), all_at(2));
    let timeline = scene.node.timeline("abandoned-1");
    assert_eq!(timeline.len(), 2, "who came, and that it was not heard of any more: {timeline:?}");
    assert_eq!(timeline[0].cause(), Some(expired));
}

#[test]
fn the_timeline_says_who_came_and_who_left() {
    let scene = Scene::new(8);
    let (io, host) = (scene.io.clone(), scene.broker.address());
    scene.run(async move {
        let mut one = Member::connect(&io, host, GROUP).await.expect("it serves");
        one.own().await.expect("it joins");
        one.leave().await.expect("it may");
    });
    let timeline = scene.node.timeline(GROUP);
    let told: Vec<_> = timeline
        .iter()
        .map(|rebalance| (rebalance.cause(), rebalance.members_before, rebalance.members))
        .collect();
    assert_eq!(told, [(Some(Cause::Left), 1, 0), (Some(Cause::Joined), 0, 1)], "the newest first");
    assert!(scene.node.timeline("another").is_empty());
}

#[test]
fn the_timeline_of_a_group_of_the_new_protocol_says_who_came_and_who_left() {
    let scene = Scene::new(9);
    let (io, host) = (scene.io.clone(), scene.broker.address());
    scene.run(async move {
        let mut one = Consumer::connect(&io, host, GROUP, "one").await.expect("it serves");
        one.own(8).await.expect("it joins");
        one.leave(-1).await.expect("it may");
    });
    let timeline = scene.node.timeline(GROUP);
    let told: Vec<_> = timeline
        .iter()
        .map(|told| (told.cause(), told.members_before, told.members, told.generation))
        .collect();
    assert_eq!(told, [(Some(Cause::Left), 1, 0, 2), (Some(Cause::Joined), 0, 1, 1)], "the newest first");
    let taken: Vec<_> = timeline.iter().map(|told| told.moves.as_ref().expect("told").taken).collect();
    assert_eq!(taken, [0, 8]);
    scene.pass(Duration::from_secs(2));
    assert_eq!(scene.node.sum(|shown| shown.groups.rebalances(Cause::Left)), 1, "metrics say why");
}
