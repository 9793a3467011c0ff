//! Appends that fail, coordinators that restart: nobody is told what may not be true.

use ringlog_protocol::error_code::ErrorCode;

use super::super::support::{Desk, GROUP, TOPICS, topics};
use super::support::{beating, having, joining, joining_as, told};
use crate::group::consumer::{ConsumerHeartbeatReply, ConsumerHeartbeatRequest};
use crate::group::*;

#[test]
fn an_answer_waits_for_all_that_it_rests_on() {
    let mut desk = Desk::new();
    desk.slow_log = true;
    let joins = desk.send(joining("one"));
    // It writes nothing, but rests on what is under way.
    let beats = desk.send(beating("one", 1));
    desk.commit_one();
    desk.is_waiting(joins);
    desk.is_waiting(beats);
    desk.commit_one();
    assert_eq!(told(&desk.heard(joins)), (1, Some(vec![0, 1, 2, 3])));
    assert_eq!(told(&desk.heard(beats)), (1, None));
}

#[test]
fn what_was_not_written_is_written_with_the_next_event() {
    let mut desk = Desk::new();
    desk.slow_log = true;
    let joins = desk.send(joining("one"));
    desk.fail_one();
    // The second append may be committed, but what it rests on is not there.
    desk.commit_one();
    assert_eq!(desk.heard(joins).error, ErrorCode::CoordinatorNotAvailable);
    assert_eq!(desk.machine.durable().consumers()[GROUP].epoch, None);
    desk.slow_log = false;
    assert_eq!(desk.told(joining("one")), (1, Some(vec![0, 1, 2, 3])));
    desk.machine.check_settled();
    let before = desk.machine.describe_consumers(GROUP);
    desk.restart();
    assert_eq!(desk.machine.describe_consumers(GROUP), before);
}

#[test]
fn what_fails_again_and_again_comes_into_the_log_in_the_end() {
    let mut desk = Desk::new();
    desk.consumers_of_two();
    desk.slow_log = true;
    let leaves = desk.send(beating("one", -1));
    desk.fail_one();
    assert_eq!(desk.heard(leaves).error, ErrorCode::CoordinatorNotAvailable);
    for _ in 0..3 {
        let beats = desk.send(beating("two", 2));
        while !desk.under_way.is_empty() {
            desk.fail_one();
        }
        assert_eq!(desk.heard(beats).error, ErrorCode::CoordinatorNotAvailable);
    }
    desk.slow_log = false;
    desk.event(Event::Expire);
    desk.pass(1_000);
    assert_eq!(desk.told(having("two", 2, &[2, 3])), (3, Some(vec![0, 1, 2, 3])));
    desk.machine.check_settled();
    assert_eq!(desk.machine.durable().consumers()[GROUP].members.len(), 1);
}

#[test]
fn a_group_goes_on_where_it_stood() {
    let mut desk = Desk::new();
    desk.told(joining("one"));
    desk.told(joining("two"));
    assert_eq!(desk.told(beating("one", 1)), (1, Some(vec![0, 1])));
    let before = desk.machine.describe_consumers(GROUP);
    desk.restart();
    assert_eq!(desk.machine.describe_consumers(GROUP), before);
    assert_eq!(desk.told(beating("two", 2)), (2, None));
    assert_eq!(desk.told(having("one", 1, &[0, 1])), (2, Some(vec![0, 1])));
    assert_eq!(desk.told(beating("two", 2)), (2, Some(vec![2, 3])));
}

#[test]
fn timers_begin_anew_with_a_restart() {
    let mut desk = Desk::new();
    desk.told(joining("one"));
    desk.told(joining("two"));
    desk.told(beating("one", 1));
    desk.pass(29_000);
    desk.restart();
    desk.pass(29_000);
    assert_eq!(desk.told(beating("two", 2)), (2, None));
    desk.pass(2_000);
    assert_eq!(desk.told(beating("two", 2)), (3, Some(vec![0, 1, 2, 3])));
}

#[test]
fn an_assignment_that_was_being_computed_is_computed_again() {
    let mut desk = Desk::new();
    desk.slow_computing = true;
    desk.send(joining("one"));
    desk.restart();
    assert_eq!(desk.group_state(), "Assigning");
    desk.slow_computing = false;
    assert_eq!(desk.told(joining("one")), (1, Some(vec![0, 1, 2, 3])));
}

#[test]
fn what_an_earlier_life_asked_to_be_computed_counts_for_nothing() {
    let mut desk = Desk::new();
    desk.slow_computing = true;
    let lost = desk.send(joining("one"));
    let old = desk.computing.remove(0);
    desk.event(Event::Resigned);
    assert_eq!(desk.heard(lost), ConsumerHeartbeatReply::from_code(ErrorCode::NotCoordinator));
    assert!(desk.timers.is_empty());
    desk.event(Event::Computed(old.clone().run()));
    desk.event(Event::MetadataChanged(topics(1, &TOPICS)));
    desk.event(Event::Loaded);
    let joins = desk.send(joining("one"));
    desk.event(Event::Computed(old.run()));
    desk.is_waiting(joins);
    desk.compute_one();
    assert_eq!(told(&desk.heard(joins)), (1, Some(vec![0, 1, 2, 3])));
}

#[test]
fn one_that_resigns_answers_also_those_who_wait_for_what_it_would_say_again() {
    let mut desk = Desk::new();
    desk.told(joining("one"));
    desk.slow_log = true;
    let joins = desk.send(joining("two"));
    desk.fail_one();
    desk.is_waiting(joins);
    desk.event(Event::Resigned);
    assert_eq!(desk.heard(joins), ConsumerHeartbeatReply::from_code(ErrorCode::NotCoordinator));
    assert!(desk.under_way.is_empty(), "nobody appends for it any more");
}

/// A static member leaves, which does not come into the log, and another one takes its place, which does. The coordinator restarts.
fn outlived(desk: &mut Desk, meanwhile: impl FnOnce(&mut Desk)) {
    desk.told(joining_as("old", "pump"));
    desk.slow_log = true;
    desk.send(ConsumerHeartbeatRequest { instance: Some("pump".into()), ..beating("old", -1) });
    desk.send(joining_as("new", "pump"));
    meanwhile(desk);
    desk.under_way.remove(0);
    while !desk.under_way.is_empty() {
        desk.land_one();
    }
    desk.slow_log = false;
    desk.restart();
}

#[test]
fn who_took_a_place_last_has_it_where_the_end_of_the_one_before_is_lost() {
    // By their names either may come first.
    for name in ["new", "yet another"] {
        let mut desk = Desk::new();
        outlived(&mut desk, |desk| {
            desk.send(ConsumerHeartbeatRequest { instance: Some("pump".into()), ..beating("new", -1) });
            desk.send(joining_as(name, "pump"));
        });
        assert_eq!(desk.told(joining_as(name, "pump")).1, Some(vec![0, 1, 2, 3]), "{name}");
        let members = desk.machine.describe_consumers(GROUP).expect("known").members;
        assert_eq!(members.iter().map(|member| &*member.member).collect::<Vec<_>>(), [name]);
        // It is as if the one before had never been.
        desk.restart();
        let request = ConsumerHeartbeatRequest { instance: Some("pump".into()), ..beating(name, -1) };
        assert_eq!(desk.beat(request).error, ErrorCode::None);
        assert_eq!(desk.group_state(), "Empty");
    }
}

#[test]
fn one_whose_end_is_lost_has_its_place_again_where_nobody_took_it() {
    let mut desk = Desk::new();
    outlived(&mut desk, |desk| {
        desk.send(ConsumerHeartbeatRequest { instance: Some("pump".into()), ..beating("new", -1) });
    });
    let message = "Instance id pump is that of member old, which has not left: new cannot join with it.";
    let refused = desk.refused(joining_as("new", "pump"));
    assert_eq!(refused, (ErrorCode::UnreleasedInstanceId, message.to_owned()));
    desk.pass(50_000);
    assert_eq!(desk.told(joining_as("new", "pump")).1, Some(vec![0, 1, 2, 3]));
}

#[test]
fn records_of_topics_that_kafka_wrote_once_are_passed_over() {
    let mut machine = GroupMachine::new(GroupSettings::default());
    // Type 4: key and value of a group without topics.
    machine.replay(b"\x00\x04\x00\x01g", Some(b"\x00\x00\x01\x00")).expect("readable");
    machine.replay(b"\x00\x04\x00\x01g", None).expect("readable");
    assert!(machine.durable().consumers().is_empty());
}

impl ConsumerHeartbeatReply {
    fn from_code(error: ErrorCode) -> ConsumerHeartbeatReply {
        ConsumerHeartbeatReply {
            error,
            message: None,
            member: None,
            epoch: 0,
            heartbeat_interval_ms: 0,
            assignment: None,
        }
    }
}
