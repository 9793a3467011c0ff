//! Consumer groups of a whole node on the simulation, over one core and several: members that meet, go, wait and come back after the
//! power was cut; offsets that stay, and those that go with their topic; a partition that cannot be read.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use ringlog_io::sim::{Place, UnsyncedData};
use ringlog_io::{Io, OpenOptions, Priority};
use ringlog_protocol::error_code::ErrorCode;

use crate::support::clients;
use crate::support::clients::TOPIC;
use crate::support::group_scene::{GROUPS, PATIENCE, Scene};
use crate::support::member::{Member, SESSION_MS};
use crate::support::node::{boot, run};

const OFFSETS_FOLDER: &str = "/var/lib/ringlog/data";
/// Two members of a group share partitions 0 and 1.
fn meet(scene: &Scene, group: &str) -> (Member, Member) {
    let (mut one, mut two) = (scene.member(group), scene.member(group));
    let (first, second) = (scene.io.clone(), scene.io.clone());
    scene.run(async move {
        let one = first.spawn(Priority::Foreground, async move {
            let owned = one.own().await.expect("it joins");
            (one, owned)
        });
        let two = second.spawn(Priority::Foreground, async move {
            let owned = two.own().await.expect("it joins");
            (two, owned)
        });
        let ((one, mut owned), (two, more)) = (one.await, two.await);
        assert_eq!(one.generation, two.generation);
        owned.extend(more);
        owned.sort_unstable();
        assert_eq!(owned, [0, 1], "the partitions are shared");
        (one, two)
    })
}

#[test]
fn members_meet_commit_and_leave_over_all_cores() {
    for core_count in 1..=3 {
        let scene = Scene::new(u64::from(core_count), core_count);
        for group in GROUPS {
            let (one, two) = meet(&scene, group);
            scene.run(async move {
                for (member, partition) in [(&one, 3), (&two, 4)] {
                    member.heartbeat().await.expect("it is a member");
                    member.commit(TOPIC, partition, 40 + i64::from(partition)).await.expect("it may");
                    assert_eq!(
                        member.commit("nothing", 0, 1).await.expect_err("no such topic").code(),
                        Some(ErrorCode::UnknownTopicOrPartition)
                    );
                }
                one.leave().await.expect("it may");
                assert_eq!(
                    two.heartbeat().await.expect_err("the other left").code(),
                    Some(ErrorCode::RebalanceInProgress)
                );
            });
            let expected = [((TOPIC.to_owned(), 3), 43), ((TOPIC.to_owned(), 4), 44)];
            assert_eq!(scene.offsets(group), BTreeMap::from(expected));
        }
        scene.pass(Duration::from_secs(2));
        assert_eq!(scene.node.sum(|shown| shown.groups.offsets_committed), 2 * GROUPS.len() as u64);
        assert_eq!(scene.node.sum(|shown| shown.groups.preparing), GROUPS.len() as u64);
        scene.stop();
    }
}

#[test]
fn members_and_offsets_survive_a_power_cut() {
    for seed in 0..4 {
        let scene = Scene::new(seed, 2);
        let members: Vec<(Member, Member)> = GROUPS.iter().map(|group| meet(&scene, group)).collect();
        let mut known = Vec::new();
        for (number, (one, two)) in (0i64..).zip(members) {
            known.push((one.group.clone(), one.id.clone(), two.id.clone(), one.generation));
            scene.run(async move { one.commit(TOPIC, 5, number).await.expect("it may") });
        }
        let unsynced =
            if seed % 2 == 0 { UnsyncedData::Lost } else { UnsyncedData::RandomSubset { torn: true } };
        let scene = scene.cut_power(unsynced);
        for (number, (group, one, two, generation)) in (0i64..).zip(known) {
            for id in [one, two] {
                let mut member = scene.member(&group);
                (member.id, member.generation) = (id, generation);
                scene.run(async move {
                    // It may still be read: then it is told that all is well too.
                    member.heartbeat().await.expect("it is a member still");
                    let owned = member.sync().await.expect("it owns what it owned");
                    assert_eq!(owned.len(), 1);
                });
            }
            assert_eq!(scene.offsets(&group)[&(TOPIC.to_owned(), 5)], number, "seed {seed}");
        }
        // What is shown is a second old at most.
        scene.pass(Duration::from_secs(2));
        assert!(scene.node.sum(|shown| shown.groups.loads) > 0, "logs were read");
        scene.stop();
    }
}

#[test]
fn a_member_that_is_silent_is_out_after_its_session() {
    let scene = Scene::new(1, 2);
    let (one, two) = meet(&scene, GROUPS[0]);
    let io = scene.io.clone();
    scene.run(async move {
        let step = Duration::from_millis(SESSION_MS as u64 / 4);
        for _ in 0..3 {
            io.sleep(step).await;
            one.heartbeat().await.expect("both are in");
        }
        io.sleep(step * 2).await;
        assert_eq!(
            one.heartbeat().await.expect_err("the other is out").code(),
            Some(ErrorCode::RebalanceInProgress)
        );
        assert_eq!(two.heartbeat().await.expect_err("it is out").code(), Some(ErrorCode::UnknownMemberId));
    });
}

/// A third member asks to join, which the two others do not notice yet.
fn third_member(scene: &Scene, group: &str) -> ringlog_io::Task<Option<ErrorCode>> {
    let mut third = scene.member(group);
    let task = scene
        .io
        .spawn(Priority::Foreground, async move { third.join().await.err().and_then(|error| error.code()) });
    scene.pass(Duration::from_millis(500));
    task
}

#[test]
fn a_client_that_hangs_up_while_it_waits_leaves_nothing() {
    let _ = ringlog_io::reached::take();
    for core_count in 1..=2 {
        let scene = Scene::new(5, core_count);
        for group in GROUPS {
            let (mut one, mut two) = meet(&scene, group);
            let third = third_member(&scene, group);
            assert!(scene.waiting() > 0, "it waits");
            drop(third);
            scene.run(async move {
                let rebalance = Some(ErrorCode::RebalanceInProgress);
                assert_eq!(one.heartbeat().await.expect_err("somebody came").code(), rebalance);
                let io = one.io.clone();
                let one = io.spawn(Priority::Foreground, async move { one.join().await.map(|()| one) });
                two.join().await.expect("all are in, or were");
                one.await.expect("all are in, or were");
            });
            assert_eq!(scene.waiting(), 0, "{group}: all was answered");
        }
        scene.stop();
    }
    assert!(ringlog_io::reached::take().contains_key("groups.answer_unwanted"));
}

#[test]
fn the_end_of_the_node_waits_for_no_rebalance() {
    for core_count in 1..=2 {
        let scene = Scene::new(6, core_count);
        let (_one, _two) = meet(&scene, GROUPS[1]);
        let third = third_member(&scene, GROUPS[1]);
        let before = scene.world.now();
        scene.stop();
        let took = scene.world.now().saturating_since(before);
        assert!(took < Duration::from_secs(1), "{took:?}");
        assert_eq!(scene.run(third), Some(ErrorCode::NotCoordinator));
    }
}

#[test]
fn offsets_go_with_their_topic_also_when_the_power_is_cut_meanwhile() {
    let _ = ringlog_io::reached::take();
    for seed in 0..12 {
        let scene = Scene::new(seed, 2);
        for group in GROUPS {
            let member = scene.member(group);
            scene.run(async move { member.commit(TOPIC, 1, 7).await.expect("nobody is in it") });
        }
        let (io, host) = (scene.io.clone(), scene.broker.address());
        scene.run(async move {
            let client = clients::connect(&io, host).await.expect("it serves");
            client.delete_topic(TOPIC).await.expect("it is there");
        });
        let scene = if seed < 2 { scene } else { scene.cut_power(UnsyncedData::Lost) };
        scene.create_topic();
        for group in GROUPS {
            assert_eq!(scene.offsets(group), BTreeMap::new(), "seed {seed}, {group}");
        }
        scene.stop();
    }
    assert!(
        ringlog_io::reached::take().contains_key("groups.missing_topics"),
        "the power was cut in between"
    );
}

/// The log of a partition of `__consumer_offsets` that has one, in a stopped node.
async fn a_log_of_groups(io: &Io) -> std::path::PathBuf {
    for topic in io.list_directory(Path::new(OFFSETS_FOLDER)).await.expect("topics") {
        let topic = Path::new(OFFSETS_FOLDER).join(&topic.name);
        let partitions = io.list_directory(&topic).await.expect("partitions");
        // The topic of the test has no records.
        for partition in partitions.iter().filter(|entry| entry.name != "0") {
            let folder = topic.join(&partition.name);
            let files = io.list_directory(&folder).await.expect("files");
            if let Some(log) = files.iter().find(|file| file.name.ends_with(".log")) {
                return folder.join(&log.name);
            }
        }
    }
    panic!("no group has a log");
}

#[test]
fn a_damaged_partition_is_refused_and_the_others_are_served() {
    let _ = ringlog_io::reached::take();
    let scene = Scene::new(9, 2);
    for group in GROUPS {
        let member = scene.member(group);
        scene.run(async move {
            for offset in 0..50 {
                member.commit(TOPIC, 2, offset).await.expect("nobody is in it");
            }
        });
    }
    scene.stop();
    let disk = scene.broker.executor();
    let damaged = run(&scene.world, &disk.clone(), PATIENCE, async move {
        let path = a_log_of_groups(&disk).await;
        let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
        let file = disk.open(&path, options).await.expect("it is there");
        let length = disk.file_length(&file).await.expect("it is there");
        // A byte of a record of the first batch.
        let (at, byte) = (70, disk.read_at(&file, 70, 1).await.expect("it is there"));
        assert!(length > 1_000);
        disk.write_at(&file, at, vec![Bytes::from(vec![byte[0] ^ 1])]).await.expect("it is there");
        disk.sync_all(&file).await.expect("it is there");
        path
    });
    println!("{damaged:?} is damaged");
    let Scene { world, broker, io, shape, node } = scene;
    drop(node);
    let node = boot(&world, &broker, shape, PATIENCE).expect("it serves again");
    let scene = Scene { world, broker, node, io, shape };
    let (io, host) = (scene.io.clone(), scene.broker.address());
    let (refused, served) = scene.run(async move {
        let client = clients::connect(&io, host).await.expect("it serves");
        io.sleep(Duration::from_secs(1)).await;
        let (mut refused, mut served) = (0, 0);
        for group in GROUPS {
            match client.group_offsets(group).await {
                Ok(offsets) => {
                    assert_eq!(offsets[&(TOPIC.to_owned(), 2)].offset, 49, "{group}");
                    served += 1;
                }
                Err(error) => {
                    assert_eq!(error.code(), Some(ErrorCode::CoordinatorNotAvailable), "{group}");
                    refused += 1;
                }
            }
        }
        (refused, served)
    });
    assert_eq!((refused, served), (1, GROUPS.len() - 1));
    assert_eq!(scene.node.sum(|shown| shown.groups.loads_failed), 1);
    assert!(ringlog_io::reached::take().contains_key("groups.load_failed"));
}

#[test]
fn a_log_that_cannot_be_read_now_is_read_later() {
    let scene = Scene::new(10, 1);
    let member = scene.member(GROUPS[0]);
    // So much that it is read in several steps.
    let text = "x".repeat(4_000);
    scene.run(async move {
        for offset in 0..500 {
            member.commit_with(TOPIC, 2, offset, &text).await.expect("nobody is in it");
        }
    });
    scene.stop();
    let Scene { world, broker, io, shape, node } = scene;
    drop(node);
    let node = boot(&world, &broker, shape, PATIENCE).expect("it serves again");
    broker.disk().fail_reads(Place::in_files(".log"));
    let scene = Scene { world, broker, node, io, shape };
    scene.pass(Duration::from_secs(2));
    assert_eq!(scene.node.sum(|shown| shown.groups.loads_failed), 1);
    scene.broker.disk().heal();
    assert_eq!(scene.offsets(GROUPS[0])[&(TOPIC.to_owned(), 2)], 499);
}
