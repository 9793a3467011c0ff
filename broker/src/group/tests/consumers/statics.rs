//! Static members: they keep what they have while they are away, and nobody comes in their name meanwhile.

use ringlog_protocol::error_code::ErrorCode;

use super::super::support::{Desk, GROUP};
use super::support::{beating, having, joining, joining_as};
use crate::group::consumer::ConsumerHeartbeatRequest;

fn as_instance(request: ConsumerHeartbeatRequest, instance: &str) -> ConsumerHeartbeatRequest {
    ConsumerHeartbeatRequest { instance: Some(instance.into()), ..request }
}

fn pair(desk: &mut Desk) {
    assert_eq!(desk.told(joining_as("one", "left")), (1, Some(vec![0, 1, 2, 3])));
    assert_eq!(desk.told(joining("two")), (2, Some(vec![])));
    assert_eq!(desk.told(as_instance(having("one", 1, &[0, 1, 2, 3]), "left")), (1, Some(vec![0, 1])));
    assert_eq!(desk.told(as_instance(having("one", 1, &[0, 1]), "left")), (2, Some(vec![0, 1])));
    assert_eq!(desk.told(beating("two", 2)), (2, Some(vec![2, 3])));
}

#[test]
fn a_member_that_comes_back_has_what_it_had_and_nothing_moves() {
    let mut desk = Desk::new();
    pair(&mut desk);
    let left = desk.beat(as_instance(beating("one", -2), "left"));
    assert_eq!((left.error, left.epoch), (ErrorCode::None, -2));
    assert_eq!(desk.told(beating("two", 2)), (2, None));
    assert_eq!(desk.told(joining_as("again", "left")), (2, Some(vec![0, 1])));
    assert_eq!(desk.told(beating("two", 2)), (2, None));
    assert_eq!(desk.group_state(), "Stable");
    assert_eq!(desk.refused(beating("one", 2)).0, ErrorCode::UnknownMemberId);
    assert_eq!(desk.machine.describe_consumers(GROUP).expect("known").epoch, 2);
}

#[test]
fn it_may_come_back_under_its_old_name() {
    let mut desk = Desk::new();
    pair(&mut desk);
    desk.beat(as_instance(beating("one", -2), "left"));
    assert_eq!(desk.refused(as_instance(beating("one", 2), "left")).0, ErrorCode::FencedMemberEpoch);
    assert_eq!(desk.told(joining_as("one", "left")), (2, Some(vec![0, 1])));
    assert_eq!(desk.told(as_instance(beating("one", 2), "left")), (2, None));
}

#[test]
fn a_member_that_is_there_is_not_replaced_and_may_ask_twice_itself() {
    let mut desk = Desk::new();
    pair(&mut desk);
    let message = "Instance id left is that of member one, which has not left: other cannot join with it.";
    assert_eq!(
        desk.refused(joining_as("other", "left")),
        (ErrorCode::UnreleasedInstanceId, message.to_owned())
    );
    assert_eq!(desk.told(joining_as("one", "left")), (2, Some(vec![0, 1])));
}

#[test]
fn others_under_its_instance_are_fenced() {
    let mut desk = Desk::new();
    pair(&mut desk);
    let message = "Instance id left is that of member one now, no more of other.";
    for epoch in [2, -1, -2] {
        let refused = desk.refused(as_instance(beating("other", epoch), "left"));
        assert_eq!(refused, (ErrorCode::FencedInstanceId, message.to_owned()));
        let refused = desk.refused(as_instance(beating("two", epoch), "right"));
        assert_eq!(
            refused,
            (ErrorCode::UnknownMemberId, "The group has no member of instance id right.".to_owned())
        );
    }
    assert_eq!(desk.told(beating("two", 2)), (2, None));
}

#[test]
fn one_that_stays_away_is_out_when_its_session_ends() {
    let mut desk = Desk::new();
    pair(&mut desk);
    desk.beat(as_instance(beating("one", -2), "left"));
    desk.pass(40_000);
    assert_eq!(desk.told(beating("two", 2)), (2, None));
    desk.pass(6_000);
    assert_eq!(desk.told(beating("two", 2)), (3, Some(vec![0, 1, 2, 3])));
    assert_eq!(desk.told(joining_as("again", "left")), (4, Some(vec![])));
}

#[test]
fn one_that_leaves_for_a_while_lets_go_of_what_it_must() {
    let mut desk = Desk::new();
    desk.told(joining_as("one", "left"));
    desk.told(joining("two"));
    assert_eq!(desk.told(as_instance(beating("one", 1), "left")), (1, Some(vec![0, 1])));
    desk.beat(as_instance(beating("one", -2), "left"));
    assert_eq!(desk.told(beating("two", 2)), (2, Some(vec![2, 3])));
    assert_eq!(desk.told(joining_as("again", "left")), (2, Some(vec![0, 1])));
}

#[test]
fn one_that_is_replaced_while_an_assignment_is_computed_keeps_its_part() {
    let mut desk = Desk::new();
    pair(&mut desk);
    desk.beat(as_instance(beating("one", -2), "left"));
    desk.slow_computing = true;
    desk.pass(1_000);
    let third = desk.send(joining("three"));
    let again = desk.send(joining_as("again", "left"));
    assert_eq!(desk.computing.len(), 2);
    desk.compute_one();
    desk.is_waiting(third);
    desk.compute_one();
    let (third, again) = (desk.heard(third), desk.heard(again));
    assert_eq!((third.epoch, third.assignment.map(|given| given.len())), (3, Some(0)));
    assert_eq!(again.assignment.map(|given| given.len()), Some(2));
}

#[test]
fn a_join_from_before_it_left_for_a_while_does_not_lead_it_on() {
    let mut desk = Desk::new();
    pair(&mut desk);
    desk.slow_computing = true;
    desk.pass(1_000);
    let third = desk.send(joining("three"));
    let join = desk.send(joining_as("one", "left"));
    desk.is_waiting(join);
    desk.beat(as_instance(beating("one", -2), "left"));
    assert_eq!(desk.heard(join).error, ErrorCode::FencedMemberEpoch);
    desk.compute_one();
    assert_eq!(desk.heard(third).epoch, 3);
    // The time to give partitions up is 30 seconds here, its session 45.
    desk.pass(40_000);
    assert_eq!(desk.told(joining_as("again", "left")).0, 3);
}
