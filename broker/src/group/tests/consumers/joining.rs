//! How members come in, get their partitions, give them up and go.

use ringlog_protocol::error_code::ErrorCode;

use super::super::support::{Desk, GROUP, TOPICS, topics};
use super::support::{beating, having, joining, orders, told};
use crate::group::consumer::ConsumerHeartbeatRequest;
use crate::group::*;

#[test]
fn the_first_member_gets_everything_with_its_first_answer() {
    let mut desk = Desk::new();
    let reply = desk.beat(joining("one"));
    assert_eq!(told(&reply), (1, Some(vec![0, 1, 2, 3])));
    assert_eq!((reply.member.as_deref(), reply.heartbeat_interval_ms), (Some("one"), 5_000));
    assert_eq!(desk.told(beating("one", 1)), (1, None));
    assert_eq!(desk.group_state(), "Stable");
}

#[test]
fn a_partition_is_given_on_only_when_it_was_let_go() {
    let mut desk = Desk::new();
    desk.told(joining("one"));
    assert_eq!(desk.told(joining("two")), (2, Some(vec![])));
    assert_eq!(desk.group_state(), "Reconciling");
    assert_eq!(desk.told(beating("two", 2)), (2, None));
    // One is told, and works on by what it has until it has let go.
    assert_eq!(desk.told(beating("one", 1)), (1, Some(vec![0, 1])));
    assert_eq!(desk.told(having("one", 1, &[0, 1, 2])), (1, Some(vec![0, 1])));
    assert_eq!(desk.told(beating("two", 2)), (2, None));
    assert_eq!(desk.told(having("one", 1, &[0, 1])), (2, Some(vec![0, 1])));
    assert_eq!(desk.told(beating("two", 2)), (2, Some(vec![2, 3])));
    assert_eq!(desk.group_state(), "Stable");
}

#[test]
fn a_member_that_joins_again_for_other_topics_is_not_told_of_its_old_ones_meanwhile() {
    let mut desk = Desk::new();
    desk.told(joining("one"));
    let users = ConsumerHeartbeatRequest { names: Some(vec!["users".into()]), ..joining("one") };
    // It waits for an assignment, a second after the last one; a request that it sends beside it does not.
    let waits = desk.send(users.clone());
    let says_all = ConsumerHeartbeatRequest { owned: Some(orders(&[0, 1])), epoch: 1, ..users };
    assert_eq!(desk.told(says_all), (1, Some(vec![])));
    desk.pass(1_000);
    assert_eq!(desk.heard(waits).error, ErrorCode::None);
}

#[test]
fn what_a_member_that_leaves_had_is_free_at_once() {
    let mut desk = Desk::new();
    let (one, _) = desk.consumers_of_two();
    let left = desk.beat(beating(&one, -1));
    assert_eq!((left.error, left.epoch, left.member), (ErrorCode::None, -1, Some(one.clone())));
    desk.pass(1_000);
    assert_eq!(desk.told(beating("two", 2)), (3, Some(vec![0, 1, 2, 3])));
    assert_eq!(desk.refused(beating(&one, 2)).0, ErrorCode::UnknownMemberId);
    desk.beat(beating("two", -1));
    assert_eq!(desk.group_state(), "Empty");
    assert_eq!(desk.refused(beating("two", 3)).0, ErrorCode::UnknownMemberId);
}

#[test]
fn many_that_join_at_once_are_shared_out_at_once() {
    let mut desk = Desk::new();
    desk.told(joining("0"));
    let tokens: Vec<Token> = (1..4).map(|number| desk.send(joining(&number.to_string()))).collect();
    tokens.iter().for_each(|token| desk.is_waiting(*token));
    desk.pass(1_000);
    tokens.iter().for_each(|token| assert_eq!(told(&desk.heard(*token)), (4, Some(vec![]))));
    assert_eq!(desk.told(beating("0", 1)), (1, Some(vec![0])));
}

#[test]
fn a_join_that_comes_during_a_computation_waits_for_the_next() {
    let mut desk = Desk::new();
    desk.slow_computing = true;
    let first = desk.send(joining("one"));
    let second = desk.send(joining("two"));
    desk.compute_one();
    assert_eq!(told(&desk.heard(first)), (1, Some(vec![0, 1, 2, 3])));
    desk.is_waiting(second);
    desk.pass(1_000);
    desk.compute_one();
    assert_eq!(told(&desk.heard(second)), (2, Some(vec![])));
    assert!(desk.computing.is_empty());
}

#[test]
fn a_lost_answer_is_given_again() {
    let mut desk = Desk::new();
    desk.consumers_of_two();
    desk.beat(beating("two", -1));
    desk.pass(1_000);
    // The answer with the new epoch is lost; the member asks again with what it knows.
    assert_eq!(desk.told(beating("one", 2)), (3, Some(vec![0, 1, 2, 3])));
    for _ in 0..2 {
        assert_eq!(desk.told(having("one", 2, &[0, 1])), (3, Some(vec![0, 1, 2, 3])));
    }
    // Without saying what it has, or with what it cannot have, it must begin anew.
    let smaller =
        "The member says epoch 2, earlier than its epoch 3: it has to give up all partitions and join again.";
    assert_eq!(desk.refused(beating("one", 2)), (ErrorCode::FencedMemberEpoch, smaller.to_owned()));
    assert_eq!(desk.refused(having("one", 2, &[0, 7])).0, ErrorCode::FencedMemberEpoch);
    assert_eq!(desk.refused(having("one", 1, &[0])).0, ErrorCode::FencedMemberEpoch);
    assert_eq!(desk.refused(beating("one", 4)).0, ErrorCode::FencedMemberEpoch);
}

#[test]
fn what_a_member_said_in_an_earlier_epoch_gives_nothing_up() {
    let mut desk = Desk::new();
    desk.consumers_of_two();
    desk.beat(beating("two", -1));
    desk.pass(1_000);
    desk.told(beating("one", 2));
    desk.told(joining("three"));
    // A copy of what it said before it was given all: it must not count as having let 2 and 3 go.
    assert_eq!(desk.told(having("one", 2, &[0, 1])).0, 3);
    assert_eq!(desk.told(having("one", 2, &[0, 1])).0, 3);
    assert_eq!(desk.told(beating("three", 4)), (4, None));
    assert_eq!(desk.told(having("one", 3, &[0, 1])).0, 4);
    assert_eq!(desk.told(beating("three", 4)), (4, Some(vec![2, 3])));
}

#[test]
fn a_join_may_come_twice_and_again_later() {
    let mut desk = Desk::new();
    desk.slow_computing = true;
    let twice = [desk.send(joining("one")), desk.send(joining("one"))];
    desk.compute_one();
    twice.iter().for_each(|token| assert_eq!(told(&desk.heard(*token)), (1, Some(vec![0, 1, 2, 3]))));
    desk.slow_computing = false;
    assert_eq!(desk.told(joining("one")), (1, Some(vec![0, 1, 2, 3])));
    assert_eq!(desk.told(beating("one", 1)), (1, None));
    assert_eq!(desk.machine.describe_consumers(GROUP).expect("known").members.len(), 1);
}

#[test]
fn a_join_again_does_not_count_as_having_let_go() {
    let mut desk = Desk::new();
    desk.told(joining("one"));
    desk.told(joining("two"));
    assert_eq!(desk.told(joining("one")), (1, Some(vec![0, 1])));
    assert_eq!(desk.told(beating("two", 2)), (2, None));
    assert_eq!(desk.told(having("one", 1, &[0, 1])), (2, Some(vec![0, 1])));
}

#[test]
fn a_member_that_asks_too_often_while_it_waits_loses_its_first_requests_only() {
    let mut desk = Desk::new();
    desk.slow_computing = true;
    let tokens: Vec<Token> = (0..6).map(|_| desk.send(joining("one"))).collect();
    assert_eq!(desk.heard(tokens[1]).error, ErrorCode::CoordinatorNotAvailable);
    desk.compute_one();
    assert_eq!(told(&desk.heard(tokens[5])), (1, Some(vec![0, 1, 2, 3])));
}

#[test]
fn a_member_that_is_not_heard_of_is_out() {
    let mut desk = Desk::new();
    desk.consumers_of_two();
    desk.pass(44_000);
    assert_eq!(desk.told(beating("two", 2)), (2, None));
    desk.pass(2_000);
    assert_eq!(desk.told(beating("two", 2)), (3, Some(vec![0, 1, 2, 3])));
    assert_eq!(desk.refused(beating("one", 2)).0, ErrorCode::UnknownMemberId);
}

#[test]
fn a_member_that_does_not_let_go_in_time_is_out() {
    let mut desk = Desk::new();
    desk.told(joining("one"));
    desk.told(joining("two"));
    assert_eq!(desk.told(beating("one", 1)), (1, Some(vec![0, 1])));
    desk.pass(29_000);
    assert_eq!(desk.told(beating("one", 1)), (1, None));
    assert_eq!(desk.told(beating("two", 2)), (2, None));
    desk.pass(2_000);
    assert_eq!(desk.refused(beating("one", 1)).0, ErrorCode::UnknownMemberId);
    assert_eq!(desk.told(beating("two", 2)), (3, Some(vec![0, 1, 2, 3])));
}

#[test]
fn new_partitions_are_shared_out_and_those_of_unknown_topics_wait() {
    let mut desk = Desk::new();
    let wants_more = ConsumerHeartbeatRequest {
        names: Some(vec!["orders".into(), "later".into(), "orders".into()]),
        ..joining("one")
    };
    assert_eq!(desk.told(wants_more), (1, Some(vec![0, 1, 2, 3])));
    desk.event(Event::MetadataChanged(topics(2, &TOPICS)));
    desk.pass(1_000);
    assert_eq!(desk.told(beating("one", 1)), (1, None));
    desk.event(Event::MetadataChanged(topics(3, &[("later", 1), ("orders", 5)])));
    desk.pass(1_000);
    let reply = desk.beat(beating("one", 1));
    let reply = if reply.epoch == 1 { desk.beat(beating("one", 1)) } else { reply };
    assert_eq!((reply.epoch, reply.assignment.map(|given| given.len())), (2, Some(6)));
}

#[test]
fn a_member_that_wants_other_topics_gives_the_old_ones_up_at_once() {
    let mut desk = Desk::new();
    desk.consumers_of_two();
    let other = ConsumerHeartbeatRequest { names: Some(vec!["users".into()]), ..having("one", 2, &[0, 1]) };
    desk.pass(1_000);
    desk.slow_computing = true;
    assert_eq!(desk.told(other), (2, Some(vec![])));
    desk.slow_computing = false;
    desk.compute_one();
    let reply = desk.beat(having("one", 2, &[]));
    assert_eq!((reply.epoch, reply.assignment.map(|given| given.len())), (3, Some(2)));
    assert_eq!(desk.told(beating("two", 2)), (3, Some(vec![0, 1, 2, 3])));
}

#[test]
fn requests_that_make_no_sense_are_refused_in_words() {
    let mut desk = Desk::new();
    let request = joining("one");
    let invalid = [
        (ConsumerHeartbeatRequest { group: "".into(), ..request.clone() }, "The group's id is empty."),
        (ConsumerHeartbeatRequest { member: "".into(), ..request.clone() }, "The member's id is empty."),
        (
            ConsumerHeartbeatRequest { member: "".into(), version: 0, ..beating("", 3) },
            "The member's id is empty.",
        ),
        (
            ConsumerHeartbeatRequest { instance: Some("".into()), ..request.clone() },
            "The instance id is empty; a dynamic member has none.",
        ),
        (
            ConsumerHeartbeatRequest { rack: Some("".into()), ..request.clone() },
            "The rack id is empty; a member without rack has none.",
        ),
        (
            ConsumerHeartbeatRequest { rebalance_timeout_ms: -1, ..request.clone() },
            "A member that joins says its rebalance timeout.",
        ),
        (
            ConsumerHeartbeatRequest { owned: Some(orders(&[1])), ..request.clone() },
            "A member that joins owns no partition yet, and says so by an empty list.",
        ),
        (
            ConsumerHeartbeatRequest { owned: None, ..request.clone() },
            "A member that joins owns no partition yet, and says so by an empty list.",
        ),
        (
            ConsumerHeartbeatRequest { names: None, ..request.clone() },
            "A member that joins says what it wants: names of topics or an expression.",
        ),
        (beating("one", -2), "A member that leaves for a while has an instance id."),
        (beating("one", -3), "-3 is no epoch of a member: -2 is the least."),
    ];
    for (request, message) in invalid {
        assert_eq!(desk.refused(request), (ErrorCode::InvalidRequest, message.to_owned()));
    }
    let assignor = ConsumerHeartbeatRequest { assignor: Some("sticky".into()), ..request.clone() };
    let message = "There is no assignor sticky here; there are: uniform, range.";
    assert_eq!(desk.refused(assignor), (ErrorCode::UnsupportedAssignor, message.to_owned()));
    let long = ConsumerHeartbeatRequest { names: Some(vec!["x".repeat(600_000).into()]), ..request };
    assert_eq!(desk.refused(long).0, ErrorCode::InvalidRequest);
    assert_eq!(desk.machine.usage(), Usage::default());
    let message = "There is no group orders.";
    assert_eq!(desk.refused(beating("one", 3)), (ErrorCode::GroupIdNotFound, message.to_owned()));
    assert_eq!(desk.refused(beating("one", -1)), (ErrorCode::GroupIdNotFound, message.to_owned()));
}

#[test]
fn a_group_that_is_full_takes_nobody_in_but_keeps_whom_it_has() {
    let mut desk = Desk::new();
    desk.machine.set_consumer_settings(ConsumerSettings { members_max: 1, ..ConsumerSettings::default() });
    desk.told(joining("one"));
    let message = "The group has 1 members, as many as it may (group.consumer.max.size).";
    assert_eq!(desk.refused(joining("two")), (ErrorCode::GroupMaxSizeReached, message.to_owned()));
    assert_eq!(desk.told(joining("one")).0, 1);
    assert_eq!(desk.told(beating("one", 1)), (1, None));
}

#[test]
fn a_first_version_client_is_given_its_name() {
    let mut desk = Desk::new();
    let request = ConsumerHeartbeatRequest { version: 0, member: "".into(), ..joining("") };
    let name = desk.beat(request).member.expect("named");
    assert_eq!(name.len(), 22);
    assert_eq!(desk.told(ConsumerHeartbeatRequest { version: 0, ..beating(&name, 1) }), (1, None));
}

#[test]
fn the_assignor_that_most_name_is_taken() {
    let mut desk = Desk::new();
    let ranged = |name: &str| ConsumerHeartbeatRequest { assignor: Some("range".into()), ..joining(name) };
    desk.told(ranged("b"));
    desk.told(ranged("c"));
    desk.told(joining("a"));
    assert_eq!(&*desk.machine.describe_consumers(GROUP).expect("known").assignor, "range");
    // By range the first by name gets the first partitions, and one more.
    assert_eq!(desk.told(beating("b", 1)), (1, Some(vec![2])));
}

#[test]
fn what_is_set_for_a_group_holds_for_it() {
    let mut desk = Desk::new();
    let own = GroupOverrides {
        session_timeout_ms: Some(9_000),
        heartbeat_interval_ms: Some(700),
        ..GroupOverrides::default()
    };
    desk.machine.set_overrides(std::sync::Arc::new([(GroupId::from(GROUP), own)].into()));
    assert_eq!(desk.beat(joining("one")).heartbeat_interval_ms, 700);
    desk.pass(9_000);
    assert_eq!(desk.refused(beating("one", 1)).0, ErrorCode::UnknownMemberId);
    let other = ConsumerHeartbeatRequest { group: "other".into(), ..joining("one") };
    assert_eq!(desk.beat(other).heartbeat_interval_ms, 5_000);
}

#[test]
fn a_group_may_be_shared_out_less_often_than_others() {
    let mut desk = Desk::new();
    let own = GroupOverrides { assignment_interval_ms: Some(4_000), ..GroupOverrides::default() };
    desk.machine.set_overrides(std::sync::Arc::new([(GroupId::from(GROUP), own)].into()));
    desk.told(joining("one"));
    let token = desk.send(joining("two"));
    desk.pass(3_999);
    desk.is_waiting(token);
    desk.pass(1);
    assert_eq!(told(&desk.heard(token)), (2, Some(vec![])));
}

#[test]
fn a_clock_that_is_set_back_holds_nobody_up() {
    let mut desk = Desk::new();
    desk.told(joining("one"));
    desk.now_ms -= 500_000;
    let token = desk.send(joining("two"));
    assert_eq!(told(&desk.heard(token)), (2, Some(vec![])));
}
