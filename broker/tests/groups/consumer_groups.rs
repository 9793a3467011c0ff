//! Consumer groups of KIP-848 of a whole node on the simulation, over one core and several: members that meet, go and come back after the
//! power was cut; heartbeats that come twice and late; expressions; static members; groups that change their protocol while they work.

use std::collections::BTreeSet;
use std::time::Duration;

use ringlog_broker::observe::snapshot::GroupFigures;
use ringlog_io::sim::UnsyncedData;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::group::consumer_protocol::{decode_assignment, encode_assignment, encode_subscription};
use ringlog_protocol::group::generated::consumer_protocol_assignment::{
    self as assignments, ConsumerProtocolAssignment,
};
use ringlog_protocol::group::generated::consumer_protocol_subscription::ConsumerProtocolSubscription;

use crate::support::clients::TOPIC;
use crate::support::consumer::{At, Beat, Consumer};
use crate::support::group_scene::{GROUPS, PARTITION_COUNT, Scene};
use crate::support::member::{Member, MemberError, SESSION_MS};

const ALL: usize = PARTITION_COUNT as usize;
const HALF: usize = ALL / 2;

fn consumer(scene: &Scene, group: &str, id: &str) -> Consumer {
    let (io, host) = (scene.io.clone(), scene.broker.address());
    let (group, id) = (group.to_owned(), id.to_owned());
    scene.run(async move { Consumer::connect(&io, host, &group, &id).await.expect("it serves") })
}

/// Two members share all partitions of the topic. The second comes once the first has them all.
fn meet(scene: &Scene, group: &str) -> (Consumer, Consumer) {
    let (mut one, mut two) = (consumer(scene, group, "one"), consumer(scene, group, "two"));
    let (one, two) = scene.run(async move {
        one.own(ALL).await.expect("it joins");
        assert_eq!(one.epoch, 1);
        settle(&mut one, &mut two, HALF).await;
        (one, two)
    });
    assert_eq!((one.epoch, two.epoch), (2, 2));
    (one, two)
}

/// Both beat until each owns so many.
async fn settle(one: &mut Consumer, two: &mut Consumer, each: usize) {
    let io = one.io.clone();
    while one.owned.len() != each || two.owned.len() != each {
        one.beat(|_| ()).await.expect("it is a member");
        two.beat(|_| ()).await.expect("it is a member");
        assert!(one.owned.is_disjoint(&two.owned), "{:?} and {:?}", one.owned, two.owned);
        io.sleep(Duration::from_millis(100)).await;
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, MemberError>) -> Option<ErrorCode> {
    result.expect_err("it may not").code()
}

#[test]
fn members_meet_commit_in_their_epoch_and_leave_over_all_cores() {
    for core_count in 1..=3 {
        let scene = Scene::new(u64::from(core_count), core_count);
        for group in GROUPS {
            let (mut one, mut two) = meet(&scene, group);
            scene.run(async move {
                let described = two.describe().await.expect("it is there");
                assert_eq!((described.state.as_str(), described.epoch), ("Stable", 2));
                assert_eq!(described.assignor, "uniform");
                let expected = [("one".to_owned(), (2, HALF)), ("two".to_owned(), (2, HALF))];
                assert_eq!(described.members, expected.into());
                for (partition, member) in (0..).zip([&one, &two]) {
                    member.commit(TOPIC, partition, 40).await.expect("it is a member");
                    assert!(member.fetch_offsets().await.expect("it is a member") > 0);
                }
                let listed = one.client.groups().await.expect("they are listed");
                assert!(listed.iter().any(|listed| listed.id == group && listed.state == "Stable"));
                one.leave(-1).await.expect("it may");
                assert_eq!(code(one.commit(TOPIC, 0, 41).await), Some(ErrorCode::UnknownMemberId));
                let stale = two.epoch;
                two.own(ALL).await.expect("the other left");
                assert!(two.epoch > stale);
                // It has had this partition all the time, and that one it has not.
                let (current, kept) = (two.epoch, two.owned.len());
                assert_eq!((current, kept), (stale + 1, ALL));
                two.epoch = 99;
                assert_eq!(code(two.commit(TOPIC, 0, 41).await), Some(ErrorCode::StaleMemberEpoch));
                assert_eq!(code(two.fetch_offsets().await), Some(ErrorCode::StaleMemberEpoch));
                assert_eq!(code(two.beat(|_| ()).await), Some(ErrorCode::FencedMemberEpoch));
                two.own(ALL).await.expect("it begins anew");
            });
            let committed: Vec<i64> = scene.offsets(group).into_values().collect();
            assert_eq!(committed, [40, 40]);
        }
        scene.pass(Duration::from_secs(2));
        // Sessions of the first of them may have run out meanwhile.
        let sum = |figure: fn(&GroupFigures) -> u64| scene.node.sum(|shown| figure(&shown.groups));
        assert!(sum(|groups| groups.stable) > 0);
        assert_eq!(sum(|groups| groups.stable + groups.empty), GROUPS.len() as u64);
        assert_eq!(sum(|groups| groups.members), sum(|groups| groups.stable));
        scene.stop();
    }
}

#[test]
fn members_keep_what_they_own_over_a_power_cut() {
    for seed in 0..4 {
        let scene = Scene::new(seed, 2);
        let met: Vec<(Consumer, Consumer)> = GROUPS.iter().map(|group| meet(&scene, group)).collect();
        let known: Vec<[(String, i32, BTreeSet<At>); 2]> = met
            .into_iter()
            .map(|(one, two)| [one, two].map(|member| (member.id, member.epoch, member.owned)))
            .collect();
        let unsynced =
            if seed % 2 == 0 { UnsyncedData::Lost } else { UnsyncedData::RandomSubset { torn: true } };
        let scene = scene.cut_power(unsynced);
        for (group, members) in GROUPS.iter().zip(known) {
            for (id, epoch, owned) in members {
                let mut member = consumer(&scene, group, &id);
                (member.epoch, member.owned) = (epoch, owned.clone());
                scene.run(async move {
                    let told = loop {
                        match member.beat(|_| ()).await {
                            Err(MemberError::Refused(ErrorCode::CoordinatorLoadInProgress)) => {}
                            told => break told.expect("it is a member still"),
                        }
                    };
                    assert_eq!((told.epoch, told.assignment), (epoch, Some(owned)), "{}", member.id);
                });
            }
        }
        scene.stop();
    }
}

#[test]
fn a_member_that_is_silent_is_out_after_its_session() {
    let scene = Scene::new(1, 2);
    let (mut one, mut two) = meet(&scene, GROUPS[0]);
    scene.run(async move {
        let began = one.io.monotonic_now();
        one.own(ALL).await.expect("the other is out");
        let took = one.io.monotonic_now().saturating_since(began);
        assert!(took > Duration::from_millis(SESSION_MS as u64 / 2), "{took:?}");
        assert_eq!(code(two.beat(|_| ()).await), Some(ErrorCode::UnknownMemberId));
    });
}

#[test]
fn heartbeats_that_come_twice_and_late_change_nothing() {
    for core_count in 1..=2 {
        let scene = Scene::new(3, core_count);
        let (one, two) = meet(&scene, GROUPS[2]);
        scene.run(async move {
            let now = Beat { epoch: 2, is_full: true, owned: Some(one.owned.clone()) };
            let told = one.send(&now).await.expect("it is a member");
            for _ in 0..5 {
                assert_eq!(one.send(&now).await.expect("it is one still"), told);
            }
            // From before it gave half of it up: it is told again where it stands, if it has nothing else.
            let late = Beat { epoch: 1, is_full: true, owned: Some(one.owned.clone()) };
            assert_eq!(one.send(&late).await.expect("it may have missed an answer"), told);
            let mut more = one.owned.clone();
            more.extend(two.owned.iter().copied());
            let early = Beat { epoch: 1, is_full: true, owned: Some(more) };
            assert_eq!(code(one.send(&early).await), Some(ErrorCode::FencedMemberEpoch));
            // The join again, and many of them at once.
            let join = Beat { epoch: 0, is_full: true, owned: Some(BTreeSet::new()) };
            for _ in 0..3 {
                assert_eq!(one.send(&join).await.expect("it may begin anew").epoch, 2);
            }
            let described = one.describe().await.expect("it is there");
            assert_eq!((described.epoch, described.members.len()), (2, 2), "no epoch was counted for it");
        });
    }
}

#[test]
fn an_expression_stands_for_topics_that_come_later_too() {
    let scene = Scene::new(4, 2);
    let mut member = consumer(&scene, GROUPS[3], "one");
    (member.topics, member.regex) = (Vec::new(), "or.*s|new-[0-9]+");
    let mut member = scene.run(async move {
        member.own(ALL).await.expect("it joins");
        member
    });
    scene.create("new-7", 3);
    scene.create("new-x", 3);
    scene.run(async move {
        member.own(ALL + 3).await.expect("a topic came");
        member.regex = "(";
        member.begin_anew();
        assert_eq!(code(member.beat(|_| ()).await), Some(ErrorCode::InvalidRegularExpression));
    });
}

#[test]
fn a_topic_that_comes_or_goes_is_shared_out() {
    let scene = Scene::new(8, 2);
    let mut member = consumer(&scene, GROUPS[3], "one");
    member.topics = vec![TOPIC, "later"];
    let mut member = scene.run(async move {
        member.own(ALL).await.expect("it joins");
        member
    });
    scene.create("later", 4);
    scene.run(async move {
        member.own(ALL + 4).await.expect("a topic came");
        member.client.delete_topic(TOPIC).await.expect("it is there");
        member.own(4).await.expect("a topic went");
    });
}

#[test]
fn a_static_member_comes_back_to_what_it_had() {
    let scene = Scene::new(5, 2);
    let group = GROUPS[4];
    let (mut one, mut two) = (consumer(&scene, group, "one"), consumer(&scene, group, "two"));
    one.instance = Some("i".to_owned());
    let (one, owned) = scene.run(async move {
        settle(&mut one, &mut two, HALF).await;
        let owned = one.owned.clone();
        (one, owned)
    });
    let mut again = consumer(&scene, group, "one again");
    again.instance = Some("i".to_owned());
    scene.run(async move {
        let mut one = one;
        assert_eq!(code(again.beat(|_| ()).await), Some(ErrorCode::UnreleasedInstanceId));
        one.leave(-2).await.expect("it may");
        again.own(HALF).await.expect("its place is free");
        assert_eq!(again.owned, owned);
        one.epoch = again.epoch;
        assert_eq!(code(one.beat(|_| ()).await), Some(ErrorCode::FencedInstanceId));
    });
}

#[test]
fn the_end_of_the_node_waits_for_no_assignment() {
    for core_count in 1..=2 {
        let scene = Scene::new(6, core_count);
        let (mut one, mut two) = meet(&scene, GROUPS[1]);
        let before = scene.world.now();
        scene.stop();
        assert!(scene.world.now().saturating_since(before) < Duration::from_secs(1));
        scene.run(async move {
            for member in [&mut one, &mut two] {
                let told = member.beat(|_| ()).await.expect_err("nobody is there");
                assert!(matches!(told, MemberError::Client(_)), "{told:?}");
            }
        });
    }
}

/// A classic member that speaks as consumers do.
fn classic(scene: &Scene, group: &str) -> Member {
    let mut member = scene.member(group);
    member.metadata = subscription(&[]);
    member
}

fn subscription(owned: &[i32]) -> Vec<u8> {
    use ringlog_protocol::group::generated::consumer_protocol_subscription::TopicPartition;
    let owned = TopicPartition { topic: TOPIC, partitions: owned.to_vec().into() };
    let wishes = ConsumerProtocolSubscription {
        topics: vec![TOPIC],
        owned_partitions: vec![owned],
        ..ConsumerProtocolSubscription::default()
    };
    encode_subscription(&wishes, 1).expect("it can be written").to_vec()
}

fn whole_topic() -> Vec<u8> {
    let topic = assignments::TopicPartition {
        topic: TOPIC,
        partitions: (0..PARTITION_COUNT).collect::<Vec<_>>().into(),
    };
    let whole = ConsumerProtocolAssignment {
        assigned_partitions: vec![topic],
        ..ConsumerProtocolAssignment::default()
    };
    encode_assignment(&whole, 1).expect("it can be written").to_vec()
}

fn assigned(bytes: &[u8]) -> Vec<i32> {
    let assignment = decode_assignment(bytes).expect("an assignment");
    assignment.assigned_partitions.iter().flat_map(|topic| topic.partitions.iter()).collect()
}

#[test]
fn a_group_changes_its_protocol_and_back_while_it_works() {
    for core_count in 1..=2 {
        let scene = Scene::new(7, core_count);
        let group = GROUPS[5];
        let (mut old, mut new) = (classic(&scene, group), consumer(&scene, group, "new"));
        scene.run(async move {
            old.join().await.expect("it joins");
            let owned =
                assigned(&old.sync_with(vec![(old.id.clone(), whole_topic())]).await.expect("it leads"));
            assert_eq!(owned.len(), ALL);
            old.commit(TOPIC, 1, 7).await.expect("it is a member");
            // The new one joins: the group is one of consumers now, and the old one goes on with what it has.
            new.beat(|_| ()).await.expect("it may");
            let described = new.describe().await.expect("it is one of consumers");
            assert_eq!((described.members.len(), described.classic), (2, 1));
            assert_eq!(described.members[&old.id].1, ALL);
            let owned = old_gives_up(&mut old, owned).await;
            assert_eq!(owned.len(), HALF);
            new.own(HALF).await.expect("the other gave it up");
            assert!(new.owned.iter().all(|(_, partition)| !owned.contains(partition)));
            old.commit(TOPIC, owned[0], 8).await.expect("it is a member still");
            // And back: the last of the new ones leaves.
            new.leave(-1).await.expect("it may");
            assert_eq!(code(new.describe().await), Some(ErrorCode::GroupIdNotFound));
            assert_eq!(code(old.heartbeat().await), Some(ErrorCode::RebalanceInProgress));
            old.join().await.expect("it joins");
            assert_eq!(old.others, [old.id.clone()]);
            let owned =
                assigned(&old.sync_with(vec![(old.id.clone(), whole_topic())]).await.expect("it leads"));
            assert_eq!(owned.len(), ALL);
            old.commit(TOPIC, 1, 9).await.expect("it is a member");
        });
        assert!(scene.offsets(group).into_values().any(|offset| offset == 9));
        scene.stop();
    }
}

/// A cooperative classic member in a consumer group joins again until it is left with its part.
async fn old_gives_up(old: &mut Member, mut owned: Vec<i32>) -> Vec<i32> {
    for _ in 0..50 {
        match old.heartbeat().await {
            Ok(()) if owned.len() < ALL => return owned,
            Ok(()) => old.io.sleep(Duration::from_millis(200)).await,
            Err(error) => {
                assert_eq!(error.code(), Some(ErrorCode::RebalanceInProgress));
                old.metadata = subscription(&owned);
                old.join().await.expect("it is a member");
                owned = assigned(&old.sync_with(Vec::new()).await.expect("it is a member"));
            }
        }
    }
    panic!("it still owns {owned:?}")
}
