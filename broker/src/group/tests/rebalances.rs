//! How a group comes from one generation to the next.

use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;

use super::support::{Desk, GROUP, protocol, request, static_request};
use crate::group::*;

#[test]
fn a_second_member_makes_the_first_one_join_again() {
    let mut desk = Desk::new();
    let one = desk.group_of_one();
    let two = desk.named("two");
    assert_eq!(desk.heartbeat(&one, 1), ErrorCode::None);
    let joins = desk.join(JoinRequest { member: Arc::clone(&two), ..request("two") });
    desk.is_waiting(joins);
    assert_eq!(desk.heartbeat(&one, 1), ErrorCode::RebalanceInProgress);
    let again = desk.join(JoinRequest { member: Arc::clone(&one), ..request("one") });
    let (leader, follower) = (desk.joined(again), desk.joined(joins));
    assert_eq!((leader.generation, follower.generation), (2, 2));
    assert_eq!((&leader.leader, &follower.leader), (&one, &one));
    assert_eq!((leader.members.len(), follower.members.len()), (2, 0));
    let late = desk.sync(&one, 1, &[]);
    assert_eq!(desk.synced(late).error, ErrorCode::IllegalGeneration);
}

#[test]
fn a_sync_before_the_leaders_waits_for_it() {
    let mut desk = Desk::new();
    let one = desk.group_of_one();
    let two = desk.named("two");
    desk.join(JoinRequest { member: Arc::clone(&two), ..request("two") });
    desk.join(JoinRequest { member: Arc::clone(&one), ..request("one") });
    let early = desk.sync(&two, 2, &[]);
    desk.is_waiting(early);
    desk.slow_log = true;
    let leads = desk.sync(&one, 2, &[(&one, "left"), (&two, "right")]);
    // Nobody works by what is not in the log.
    desk.is_waiting(early);
    desk.is_waiting(leads);
    desk.commit_one();
    assert_eq!(
        (desk.synced(early).assignment, desk.synced(leads).assignment),
        ("right".into(), "left".into())
    );
    assert_eq!(desk.synced(early).protocol_name.as_deref(), Some("range"));
}

#[test]
fn a_leader_that_syncs_twice_is_taken_at_its_first_word() {
    let mut desk = Desk::new();
    let one = desk.first_member("one");
    desk.slow_log = true;
    let first = desk.sync(&one, 1, &[(&one, "first")]);
    let second = desk.sync(&one, 1, &[(&one, "second")]);
    assert_eq!(desk.synced(first).error, ErrorCode::RebalanceInProgress);
    desk.commit_all();
    assert_eq!(desk.synced(second).assignment, "first");
    desk.restart();
    desk.slow_log = false;
    let third = desk.sync(&one, 1, &[]);
    assert_eq!(desk.synced(third).assignment, "first");
}

#[test]
fn a_sync_that_names_another_protocol_is_refused() {
    let mut desk = Desk::new();
    let one = desk.first_member("one");
    for (protocol_type, protocol_name) in [(Some("connect"), None), (None, Some("sticky"))] {
        let request = SyncRequest {
            group: GROUP.into(),
            generation: 1,
            member: Arc::clone(&one),
            protocol_type: protocol_type.map(Arc::from),
            protocol_name: protocol_name.map(Arc::from),
            ..SyncRequest::default()
        };
        let token = desk.ask(|token| Event::Sync(token, request));
        assert_eq!(desk.synced(token).error, ErrorCode::InconsistentGroupProtocol);
    }
}

#[test]
fn a_leader_that_dies_while_it_should_assign_is_replaced() {
    let mut desk = Desk::new();
    let one = desk.group_of_one();
    let two = desk.named("two");
    desk.join(JoinRequest { member: Arc::clone(&two), ..request("two") });
    desk.join(JoinRequest { member: Arc::clone(&one), ..request("one") });
    let waits = desk.sync(&two, 2, &[]);
    desk.pass(10_000);
    assert_eq!(desk.synced(waits).error, ErrorCode::RebalanceInProgress);
    let again = desk.join(JoinRequest { member: Arc::clone(&two), ..request("two") });
    let again = desk.joined(again);
    assert_eq!((again.generation, &again.leader, again.members.len()), (3, &two, 1));
}

#[test]
fn who_does_not_join_in_time_is_out_and_another_leads() {
    let mut desk = Desk::new();
    let (one, two) = desk.group_of_two();
    let three = desk.named("three");
    let joins = desk.join(JoinRequest { member: three, ..request("three") });
    let again = desk.join(JoinRequest { member: Arc::clone(&two), ..request("two") });
    for _ in 0..6 {
        desk.pass(9_000);
        let alive = desk.heartbeat(&one, 2);
        assert_eq!(alive, ErrorCode::RebalanceInProgress);
    }
    desk.is_waiting(joins);
    desk.pass(6_000);
    assert_eq!(desk.joined(joins).generation, 3);
    assert_ne!(desk.joined(again).leader, one);
    assert_eq!(desk.heartbeat(&one, 2), ErrorCode::UnknownMemberId);
}

#[test]
fn who_does_not_ask_for_its_assignment_in_time_is_out() {
    let mut desk = Desk::new();
    let one = desk.group_of_one();
    let two = desk.named("two");
    desk.join(JoinRequest { member: Arc::clone(&two), ..request("two") });
    desk.join(JoinRequest { member: Arc::clone(&one), ..request("one") });
    desk.sync(&one, 2, &[(&one, "left"), (&two, "right")]);
    for _ in 0..6 {
        desk.pass(9_000);
        assert_eq!((desk.heartbeat(&one, 2), desk.heartbeat(&two, 2)), (ErrorCode::None, ErrorCode::None));
    }
    desk.pass(6_000);
    assert_eq!(desk.heartbeat(&two, 2), ErrorCode::UnknownMemberId);
    assert_eq!(desk.heartbeat(&one, 2), ErrorCode::RebalanceInProgress);
}

#[test]
fn a_leader_that_joins_again_makes_everyone_join() {
    let mut desk = Desk::new();
    let (one, two) = desk.group_of_two();
    let again = desk.join(JoinRequest { member: one, ..request("one") });
    desk.is_waiting(again);
    assert_eq!(desk.heartbeat(&two, 2), ErrorCode::RebalanceInProgress);
}

#[test]
fn a_follower_that_joins_again_unchanged_is_told_the_present_generation() {
    let mut desk = Desk::new();
    let (one, two) = desk.group_of_two();
    let again = desk.join(JoinRequest { member: Arc::clone(&two), ..request("two") });
    let reply = desk.joined(again);
    assert_eq!((reply.error, reply.generation, &reply.leader), (ErrorCode::None, 2, &one));
    assert_eq!(reply.members, []);
    assert_eq!(desk.state(), GroupState::Stable);
    let changed = vec![protocol("range"), protocol("sticky")];
    let again = desk.join(JoinRequest { member: two, protocols: changed, ..request("two") });
    desk.is_waiting(again);
    assert_eq!(desk.state(), GroupState::PreparingRebalance);
}

#[test]
fn a_member_that_missed_the_answer_to_its_join_gets_it_again() {
    let mut desk = Desk::new();
    let one = desk.first_member("one");
    let again = desk.join(JoinRequest { member: Arc::clone(&one), ..request("one") });
    let again = desk.joined(again);
    assert_eq!((again.generation, again.members.len()), (1, 1));
    assert_eq!(desk.state(), GroupState::CompletingRebalance);
}

#[test]
fn a_member_that_asks_twice_is_answered_twice() {
    let mut desk = Desk::new();
    let one = desk.group_of_one();
    let two = desk.named("two");
    let first = desk.join(JoinRequest { member: Arc::clone(&two), ..request("two") });
    let second = desk.join(JoinRequest { member: Arc::clone(&two), ..request("two") });
    assert_eq!(desk.joined(first).error, ErrorCode::RebalanceInProgress);
    desk.is_waiting(second);
    desk.join(JoinRequest { member: one, ..request("one") });
    assert_eq!(desk.joined(second).error, ErrorCode::None);
}

#[test]
fn a_zombie_of_an_old_generation_is_told_so_everywhere() {
    let mut desk = Desk::new();
    let (one, _) = desk.group_of_two();
    assert_eq!(desk.heartbeat(&one, 1), ErrorCode::IllegalGeneration);
    assert_eq!(desk.heartbeat(&one, 3), ErrorCode::IllegalGeneration);
    let syncs = desk.sync(&one, 1, &[]);
    assert_eq!(desk.synced(syncs).error, ErrorCode::IllegalGeneration);
    let commit = CommitRequest { generation: 1, member: one, ..super::support::commit_of("orders", 5) };
    assert_eq!(desk.commit(commit), ErrorCode::IllegalGeneration);
    assert_eq!(desk.offset("orders"), -1);
}

#[test]
fn an_empty_group_waits_for_more_members_than_the_first() {
    let settings = GroupSettings { initial_rebalance_delay_ms: 3_000, ..GroupSettings::default() };
    let mut desk = Desk::with(settings);
    let first = desk.join(JoinRequest { version: 3, rebalance_timeout_ms: 10_000, ..request("one") });
    desk.pass(2_000);
    let second = desk.join(JoinRequest { version: 3, rebalance_timeout_ms: 10_000, ..request("two") });
    desk.pass(3_000);
    // Somebody came, so the wait began anew at the third second.
    desk.is_waiting(first);
    desk.pass(1_000);
    assert_eq!(desk.joined(first).generation, 1);
    assert_eq!(desk.joined(second).generation, 1);
}

#[test]
fn the_initial_wait_ends_at_the_rebalance_timeout_however_many_come() {
    let settings = GroupSettings { initial_rebalance_delay_ms: 3_000, ..GroupSettings::default() };
    let mut desk = Desk::with(settings);
    let patient = |name: &str| JoinRequest { version: 3, rebalance_timeout_ms: 10_000, ..request(name) };
    let first = desk.join(patient("one"));
    for name in ["two", "three", "four", "five"] {
        desk.pass(2_000);
        desk.join(patient(name));
        desk.is_waiting(first);
    }
    desk.pass(2_000);
    assert_eq!(desk.joined(first).members.len(), 5);
}

#[test]
fn a_group_whose_members_all_left_before_it_began_is_empty() {
    let settings = GroupSettings { initial_rebalance_delay_ms: 3_000, ..GroupSettings::default() };
    let mut desk = Desk::with(settings);
    let id = desk.named("one");
    let joins = desk.join(JoinRequest { member: Arc::clone(&id), ..request("one") });
    desk.leave(&[&id]);
    assert_eq!(desk.joined(joins).error, ErrorCode::UnknownMemberId);
    desk.pass(3_000);
    assert_eq!(desk.state(), GroupState::Empty);
    let next = desk.join(JoinRequest { version: 3, ..request("two") });
    desk.pass(3_000);
    assert_eq!(desk.joined(next).generation, 2);
}

#[test]
fn static_members_that_do_not_join_stay_until_their_sessions_end() {
    let mut desk = Desk::new();
    let hasty = |instance: &str| JoinRequest { rebalance_timeout_ms: 4_000, ..static_request(instance) };
    let tokens = ["left", "right"].map(|instance| desk.join(hasty(instance)));
    desk.pass(0);
    let [left, right] = tokens.map(|token| desk.joined(token).member);
    desk.sync(&right, 1, &[]);
    desk.sync(&left, 1, &[(&left, "left"), (&right, "right")]);
    let again = desk.join(JoinRequest { member: Arc::clone(&left), ..hasty("left") });
    desk.is_waiting(again);
    desk.pass(4_000);
    // It may be restarting: the leader keeps its place for it.
    let again = desk.joined(again);
    assert_eq!((again.generation, again.members.len()), (2, 2));
    desk.sync(&left, 2, &[(&left, "left"), (&right, "right")]);
    let back = desk.join(JoinRequest { member: Arc::clone(&right), ..hasty("right") });
    assert_eq!(desk.joined(back).generation, 2);
    let syncs = desk.sync(&right, 2, &[]);
    assert_eq!(desk.synced(syncs).assignment, "right");
}

#[test]
fn a_group_of_absent_static_members_waits_for_one_of_them() {
    let mut desk = Desk::new();
    let hasty = |instance: &str| JoinRequest { rebalance_timeout_ms: 2_000, ..static_request(instance) };
    let tokens = ["left", "right"].map(|instance| desk.join(hasty(instance)));
    desk.pass(0);
    let [left, right] = tokens.map(|token| desk.joined(token).member);
    desk.sync(&right, 1, &[]);
    desk.sync(&left, 1, &[(&left, "left"), (&right, "right")]);
    // A dynamic one joins and leaves again: nobody is there to lead.
    let guest = JoinRequest { version: 3, rebalance_timeout_ms: 2_000, ..request("guest") };
    let guest = desk.join(guest);
    let name = desk.machine.describe(GROUP).expect("known").members[0].member.clone();
    desk.leave(&[&name]);
    assert_eq!(desk.joined(guest).error, ErrorCode::UnknownMemberId);
    desk.pass(5_000);
    assert_eq!(desk.state(), GroupState::PreparingRebalance);
    let back = desk.join(JoinRequest { member: left, ..hasty("left") });
    desk.pass(2_000);
    assert_eq!((desk.joined(back).generation, desk.joined(back).members.len()), (2, 2));
}

#[test]
fn a_static_member_that_restarts_while_the_leader_assigns_makes_all_join_again() {
    let mut desk = Desk::new();
    let tokens = ["left", "right"].map(|instance| desk.join(static_request(instance)));
    desk.pass(0);
    let [left, _] = tokens.map(|token| desk.joined(token).member);
    let back = desk.join(static_request("right"));
    desk.is_waiting(back);
    let syncs = desk.sync(&left, 1, &[]);
    assert_eq!(desk.synced(syncs).error, ErrorCode::RebalanceInProgress);
}

#[test]
fn assignments_that_may_not_be_in_the_log_are_no_ones() {
    let mut desk = Desk::new();
    let one = desk.first_member("one");
    desk.slow_log = true;
    let syncs = desk.sync(&one, 1, &[(&one, "all")]);
    desk.fail_one();
    assert_eq!(desk.synced(syncs).error, ErrorCode::CoordinatorNotAvailable);
    assert_eq!(desk.state(), GroupState::PreparingRebalance);
    let again = desk.join(JoinRequest { member: one, ..request("one") });
    assert_eq!(desk.joined(again).generation, 2);
}

#[test]
fn assignments_that_come_too_late_into_the_log_are_no_ones() {
    let mut desk = Desk::new();
    let one = desk.first_member("one");
    desk.slow_log = true;
    let syncs = desk.sync(&one, 1, &[(&one, "all")]);
    desk.join(JoinRequest { version: 3, ..request("two") });
    assert_eq!(desk.synced(syncs).error, ErrorCode::RebalanceInProgress);
    desk.commit_all();
    assert_eq!(desk.state(), GroupState::PreparingRebalance);
}
