//! What is left after the coordinator restarts, or another one takes over.

use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;

use super::support::{Desk, GROUP, commit_of, request};
use crate::group::*;

#[test]
fn a_stable_group_goes_on_without_a_rebalance() {
    let mut desk = Desk::new();
    let (one, two) = desk.group_of_two();
    let before = desk.machine.describe(GROUP);
    desk.restart();
    assert_eq!(desk.machine.describe(GROUP), before);
    assert_eq!((desk.heartbeat(&one, 2), desk.heartbeat(&two, 2)), (ErrorCode::None, ErrorCode::None));
    let syncs = desk.sync(&two, 2, &[]);
    assert_eq!(desk.synced(syncs).assignment, "right");
    let commit = CommitRequest { generation: 2, member: one, ..commit_of("orders", 5) };
    assert_eq!(desk.commit(commit), ErrorCode::None);
}

#[test]
fn members_have_a_whole_session_to_be_heard_of() {
    let mut desk = Desk::new();
    let (one, two) = desk.group_of_two();
    desk.pass(9_000);
    desk.restart();
    desk.pass(9_000);
    assert_eq!(desk.heartbeat(&one, 2), ErrorCode::None);
    desk.pass(2_000);
    assert_eq!(desk.heartbeat(&two, 2), ErrorCode::UnknownMemberId);
}

#[test]
fn a_member_that_was_not_in_the_log_joins_anew() {
    let mut desk = Desk::new();
    let one = desk.group_of_one();
    let two = desk.named("two");
    let joins = desk.join(JoinRequest { member: Arc::clone(&two), ..request("two") });
    desk.join(JoinRequest { member: Arc::clone(&one), ..request("one") });
    assert_eq!(desk.joined(joins).generation, 2);
    desk.restart();
    let described = desk.machine.describe(GROUP).expect("known");
    assert_eq!((described.generation, described.members.len()), (1, 1));
    let syncs = desk.sync(&two, 2, &[]);
    assert_eq!(desk.synced(syncs).error, ErrorCode::UnknownMemberId);
    assert_eq!(desk.heartbeat(&one, 2), ErrorCode::IllegalGeneration);
    assert_eq!(desk.heartbeat(&one, 1), ErrorCode::None);
}

#[test]
fn a_commit_that_was_answered_is_there() {
    let mut desk = Desk::new();
    assert_eq!(desk.commit(commit_of("orders", 41)), ErrorCode::None);
    desk.slow_log = true;
    let under_way = desk.ask(|token| Event::CommitOffsets(token, commit_of("orders", 42)));
    desk.is_waiting(under_way);
    assert_eq!(desk.offset("orders"), 41);
    desk.restart();
    assert_eq!(desk.offset("orders"), 41);
}

#[test]
fn a_group_over_a_bound_that_was_lowered_makes_its_members_join() {
    let mut desk = Desk::new();
    let (one, two) = desk.group_of_two();
    desk.machine.set_settings(GroupSettings { members_max: 1, ..GroupSettings::default() });
    desk.event(Event::Loaded);
    assert_eq!(desk.state(), GroupState::PreparingRebalance);
    let commit = CommitRequest { generation: 2, member: Arc::clone(&two), ..commit_of("orders", 5) };
    assert_eq!(desk.commit(commit), ErrorCode::None);
    let first = desk.join(JoinRequest { member: one, ..request("one") });
    let second = desk.join(JoinRequest { member: two, ..request("two") });
    assert_eq!(desk.joined(second).error, ErrorCode::GroupMaxSizeReached);
    assert_eq!(desk.joined(first).members.len(), 1);
}

#[test]
fn clients_are_told_to_wait_while_the_log_is_read() {
    let mut desk = Desk::new();
    desk.group_of_one();
    desk.machine = desk.replayed();
    let joins = desk.join(request("two"));
    assert_eq!(desk.joined(joins).error, ErrorCode::CoordinatorLoadInProgress);
    assert_eq!(desk.commit(commit_of("orders", 1)), ErrorCode::CoordinatorLoadInProgress);
    // Kafka answers so: the member is to keep calm.
    assert_eq!(desk.heartbeat(&"one".into(), 1), ErrorCode::None);
}

#[test]
fn whoever_waits_is_sent_on_when_another_leads() {
    let mut desk = Desk::new();
    let one = desk.group_of_one();
    let joins = desk.join(JoinRequest { version: 3, ..request("two") });
    desk.slow_log = true;
    let member = CommitRequest { generation: 1, member: one, ..commit_of("orders", 5) };
    let commits = desk.ask(|token| Event::CommitOffsets(token, member));
    desk.event(Event::Resigned);
    assert_eq!(desk.joined(joins).error, ErrorCode::NotCoordinator);
    assert_eq!(desk.committed(commits), ErrorCode::NotCoordinator);
    assert!(desk.timers.is_empty());
    // The commit comes through all the same: it is replayed, and nobody is answered twice.
    desk.commit_all();
    assert_eq!(desk.offset("orders"), 5);
    let late = desk.join(request("three"));
    assert_eq!(desk.joined(late).error, ErrorCode::NotCoordinator);
    desk.slow_log = false;
    desk.event(Event::Loaded);
    assert_eq!(desk.state(), GroupState::Stable);
}

#[test]
fn records_of_unknown_types_are_passed_over_and_those_of_other_groups_are_not() {
    let mut machine = GroupMachine::new(GroupSettings::default());
    assert_eq!(machine.replay(b"\x00\x0bshare", Some(b"")), Ok(()));
    let refused = machine.replay(b"\x00\x03\x00\x01g", Some(b"\x00\x00\x00\x00\x00\x01"));
    assert!(refused.is_err(), "{refused:?}");
    assert!(matches!(machine.replay(b"\x00", None), Err(GroupReplayError::Record(_))));
}
