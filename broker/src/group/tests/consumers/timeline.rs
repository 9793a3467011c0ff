//! What is told of assignments: who made them, why, and what moved. Conversions stand in `converting`.

use super::super::support::{Desk, topics};
use super::super::timeline::{causes, counts, newest};
use super::support::{beating, having, joining, joining_as};
use crate::group::consumer::ConsumerHeartbeatRequest;
use crate::group::*;

/// A settled group of two, and how many assignments were told of it.
fn two() -> Desk {
    let mut desk = Desk::new();
    desk.consumers_of_two();
    assert_eq!(desk.rebalances.len(), 2);
    desk.pass(1_000);
    desk
}

/// The same with a static member `one` of the instance `left`.
fn static_pair() -> Desk {
    let as_left = |request| ConsumerHeartbeatRequest { instance: Some("left".into()), ..request };
    let mut desk = Desk::new();
    desk.told(joining_as("one", "left"));
    desk.told(joining("two"));
    desk.told(as_left(having("one", 1, &[0, 1, 2, 3])));
    desk.told(as_left(having("one", 1, &[0, 1])));
    assert_eq!(desk.told(beating("two", 2)), (2, Some(vec![2, 3])));
    desk.pass(1_000);
    desk
}

fn caused(desk: &Desk) -> Vec<(Cause, String)> {
    causes(newest(desk))
}

fn of(cause: Cause, member: &str) -> (Cause, String) {
    (cause, member.to_owned())
}

#[test]
fn a_member_that_joins_is_told_with_what_it_is_to_take() {
    let desk = two();
    let (first, second) = (&desk.rebalances[0].1, &desk.rebalances[1].1);
    assert_eq!(causes(first), [of(Cause::Joined, "one")]);
    assert_eq!((first.members_before, first.members, first.generation), (0, 1, 1));
    assert_eq!(counts(first), [0, 0, 4, 0]);
    assert_eq!(causes(second), [of(Cause::Joined, "two")]);
    assert_eq!((second.members_before, second.members, second.generation), (1, 2, 2));
    assert_eq!(counts(second), [2, 2, 0, 0]);
    assert_eq!(second.ended_ms - second.began_ms, 1_000, "assignments are so far apart");
    let trigger = &second.triggers[0];
    assert_eq!((&*trigger.client_id, &*trigger.client_host), ("client", "/127.0.0.1"));
    let moved = |partition| Move {
        topic: "orders".into(),
        partition,
        from: Some("one".into()),
        to: Some("two".into()),
    };
    assert_eq!(second.moves.as_ref().expect("told").shown, [moved(2), moved(3)]);
}

#[test]
fn a_member_that_leaves_and_one_that_is_silent_are_told_apart() {
    let mut desk = two();
    desk.beat(beating("two", -1));
    assert_eq!(caused(&desk), [of(Cause::Left, "two")]);
    assert_eq!((newest(&desk).members_before, newest(&desk).members), (2, 1));
    assert_eq!(counts(newest(&desk)), [2, 2, 0, 0]);

    let mut desk = two();
    for _ in 0..10 {
        desk.pass(5_000);
        desk.beat(beating("one", 2));
    }
    assert_eq!(caused(&desk), [of(Cause::SessionExpired, "two")]);
    assert_eq!(counts(newest(&desk)), [2, 2, 0, 0]);
}

#[test]
fn the_last_member_that_leaves_is_told_though_nothing_is_assigned() {
    let mut desk = Desk::new();
    desk.told(joining("one"));
    desk.beat(beating("one", -1));
    assert_eq!(caused(&desk), [of(Cause::Left, "one")]);
    let told = newest(&desk);
    assert_eq!((told.members_before, told.members, told.generation), (1, 0, 2));
    assert_eq!(counts(told), [0, 0, 0, 4]);
}

#[test]
fn a_member_that_does_not_give_up_in_time_is_told() {
    let mut desk = Desk::new();
    desk.told(joining("one"));
    desk.told(joining("two"));
    desk.told(beating("one", 1));
    for _ in 0..6 {
        desk.pass(4_900);
        assert_eq!(desk.told(having("one", 1, &[0, 1, 2, 3])).0, 1);
        desk.told(beating("two", 2));
    }
    desk.pass(2_000);
    assert_eq!(caused(&desk), [of(Cause::RebalanceTimeout, "one")]);
    assert_eq!(counts(newest(&desk)), [2, 2, 0, 0]);
}

#[test]
fn a_static_member_that_is_away_is_told_once_it_does_not_come_back() {
    let mut desk = static_pair();
    let away = ConsumerHeartbeatRequest { instance: Some("left".into()), ..beating("one", -2) };
    desk.beat(away);
    desk.told(joining_as("again", "left"));
    assert_eq!(desk.rebalances.len(), 2, "nothing moves");
    desk.beat(ConsumerHeartbeatRequest { instance: Some("left".into()), ..beating("again", -2) });
    desk.pass(40_000);
    desk.told(beating("two", 2));
    desk.pass(6_000);
    assert_eq!(caused(&desk), [of(Cause::LeftForAWhile, "again")]);
    let told = newest(&desk);
    assert_eq!(told.triggers[0].instance.as_deref(), Some("left"));
    assert_eq!(told.moves.as_ref().expect("told").shown[0].from.as_deref(), Some("left"));
    assert_eq!(counts(told), [2, 2, 0, 0]);
}

#[test]
fn a_static_member_that_comes_back_otherwise_or_meanwhile_is_told() {
    let away = ConsumerHeartbeatRequest { instance: Some("left".into()), ..beating("one", -2) };
    let mut desk = static_pair();
    desk.beat(away.clone());
    desk.beat(ConsumerHeartbeatRequest { names: Some(vec!["users".into()]), ..joining_as("again", "left") });
    assert_eq!(caused(&desk), [of(Cause::StaticMemberReplaced, "again")]);
    assert_eq!((newest(&desk).members_before, newest(&desk).members), (2, 2));
    assert_eq!(counts(newest(&desk)), [2, 2, 2, 0]);

    let mut desk = static_pair();
    desk.beat(away);
    desk.slow_computing = true;
    desk.send(joining("three"));
    desk.send(joining_as("again", "left"));
    desk.compute_one();
    assert_eq!(desk.rebalances.len(), 2, "what was computed for the old name does not count");
    desk.compute_one();
    assert_eq!(caused(&desk), [of(Cause::Joined, "three"), of(Cause::StaticMemberReplaced, "again")]);
}

#[test]
fn other_wishes_and_other_topics_are_told() {
    let mut desk = two();
    desk.beat(ConsumerHeartbeatRequest { names: Some(vec!["users".into()]), ..beating("two", 2) });
    assert_eq!(caused(&desk), [of(Cause::SubscriptionChanged, "two")]);
    assert_eq!(counts(newest(&desk)), [2, 2, 2, 0]);

    let mut desk = two();
    desk.event(Event::MetadataChanged(topics(2, &[("orders", 6), ("users", 2)])));
    desk.beat(beating("one", 2));
    assert_eq!(caused(&desk), [of(Cause::TopicsChanged, "")]);
    assert_eq!(counts(newest(&desk)), [4, 0, 2, 0]);
    desk.pass(1_000);
    desk.event(Event::MetadataChanged(topics(3, &[("users", 2)])));
    desk.beat(beating("one", 2));
    assert_eq!(caused(&desk), [of(Cause::TopicsChanged, "")]);
    assert_eq!(counts(newest(&desk)), [0, 0, 0, 6]);
    let gone = &newest(&desk).moves.as_ref().expect("told").shown[0];
    assert_eq!(gone.topic.len(), 22, "a topic that is gone is told by its id: {gone:?}");
}

#[test]
fn an_expression_that_comes_to_other_topics_is_told() {
    let mut desk = Desk::new();
    desk.beat(ConsumerHeartbeatRequest { names: None, regex: Some("orders.*".into()), ..joining("one") });
    assert_eq!(caused(&desk), [of(Cause::Joined, "one"), of(Cause::ExpressionResolved, "")]);
    let epoch = newest(&desk).generation;
    desk.event(Event::MetadataChanged(topics(2, &[("orders", 4), ("orders2", 1)])));
    desk.pass(10_000);
    desk.beat(beating("one", epoch));
    desk.pass(1_000);
    assert_eq!(caused(&desk), [of(Cause::ExpressionResolved, "")]);
    assert_eq!(counts(newest(&desk)), [4, 0, 1, 0]);
}

#[test]
fn what_comes_while_an_assignment_is_computed_is_told_with_the_next() {
    let mut desk = two();
    desk.slow_computing = true;
    desk.send(joining("three"));
    desk.beat(beating("two", -1));
    assert_eq!(desk.rebalances.len(), 2);
    desk.compute_one();
    assert_eq!(caused(&desk), [of(Cause::Joined, "three")]);
    assert_eq!((newest(&desk).members_before, newest(&desk).members, newest(&desk).generation), (2, 3, 3));
    desk.pass(1_000);
    desk.compute_one();
    assert_eq!(caused(&desk), [of(Cause::Left, "two")]);
    assert_eq!((newest(&desk).members_before, newest(&desk).members, newest(&desk).generation), (3, 2, 4));
    assert_eq!(desk.rebalances.len(), 4);
}

#[test]
fn an_assignment_that_a_restart_owes_says_so() {
    let mut desk = two();
    desk.slow_computing = true;
    desk.send(joining("three"));
    desk.restart();
    desk.slow_computing = false;
    desk.beat(beating("one", 2));
    desk.pass(1_000);
    assert_eq!(caused(&desk), [of(Cause::CoordinatorChanged, "")]);
    let owed = desk.rebalances.len();
    desk.restart();
    desk.beat(beating("one", 2));
    desk.pass(2_000);
    assert_eq!(desk.rebalances.len(), owed, "a restart by itself moves nothing");
}

#[test]
fn more_partitions_than_are_compared_are_not_told() {
    let mut desk = Desk::new();
    desk.event(Event::MetadataChanged(topics(2, &[("orders", 17_000)])));
    desk.send(joining("one"));
    assert_eq!((caused(&desk), &newest(&desk).moves), (vec![of(Cause::Joined, "one")], &None));
}

#[test]
fn when_all_came_to_an_assignment_is_told() {
    let mut desk = Desk::new();
    let told = |desk: &Desk| -> Vec<(i32, i64)> {
        desk.settled.iter().map(|(_, settled)| (settled.generation, settled.at_ms)).collect()
    };
    desk.told(joining("one"));
    assert_eq!(told(&desk), [(1, 1_000_000)], "one alone has it all at once");
    desk.told(joining("two"));
    desk.pass(500);
    desk.told(beating("one", 1));
    desk.told(having("one", 1, &[0, 1]));
    assert_eq!(told(&desk).len(), 1, "two waits for what one gave up");
    desk.pass(500);
    desk.told(beating("two", 2));
    assert_eq!(told(&desk)[1..], [(2, 1_002_000)]);
    desk.told(beating("one", 2));
    desk.told(joining("three"));
    desk.pass(1_000);
    desk.told(joining("four"));
    desk.pass(1_000);
    assert_eq!(told(&desk).len(), 2, "another assignment came before all had come to this one");
    desk.beat(beating("three", -1));
    desk.beat(beating("four", -1));
    for _ in 0..3 {
        desk.beat(ConsumerHeartbeatRequest { epoch: 0, ..joining("one") });
        desk.beat(ConsumerHeartbeatRequest { epoch: 0, ..joining("two") });
    }
    assert_eq!(desk.group_state(), "Stable");
    let newest_generation = newest(&desk).generation;
    assert_eq!(told(&desk).last().map(|(generation, _)| *generation), Some(newest_generation));
    for name in ["one", "two"] {
        desk.beat(beating(name, -1));
    }
    assert!(newest(&desk).generation > newest_generation);
    assert!(
        told(&desk).iter().all(|(generation, _)| *generation < newest(&desk).generation),
        "nobody is left"
    );
}

#[test]
fn a_group_at_rest_keeps_nothing_of_it() {
    let mut desk = Desk::new();
    desk.told(joining("one"));
    let resting = desk.machine.usage().bytes;
    assert_eq!(desk.told(beating("one", 1)), (1, None));
    assert_eq!((desk.rebalances.len(), desk.machine.usage().bytes), (1, resting));
    desk.pass(1_000);
    desk.slow_computing = true;
    desk.send(joining("two"));
    desk.beat(beating("two", -1));
    assert!(desk.machine.usage().bytes > resting, "it is counted while it is under way");
    while !desk.computing.is_empty() {
        desk.compute_one();
        desk.pass(1_000);
    }
    assert_eq!(caused(&desk), [of(Cause::Left, "two")]);
    desk.beat(beating("one", 1));
    assert_eq!(desk.machine.usage().bytes, resting);
}
