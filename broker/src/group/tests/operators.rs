//! What operators see and do: lists, descriptions, deletions.

use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;

use super::support::{Desk, GROUP, commit_of, request, wants};
use crate::group::*;

fn delete(desk: &mut Desk, groups: &[&str]) -> Vec<ErrorCode> {
    let groups = groups.iter().map(|group| GroupId::from(*group)).collect();
    let token = desk.ask(|token| Event::DeleteGroups(token, groups));
    match desk.answer(token) {
        Some(Reply::DeleteGroups(groups)) => groups.iter().map(|group| group.error).collect(),
        other => panic!("no answer but {other:?}"),
    }
}

#[test]
fn a_group_is_described_with_what_its_members_said_and_were_assigned() {
    let mut desk = Desk::new();
    let (one, two) = desk.group_of_two();
    let group = desk.machine.describe(GROUP).expect("known");
    assert_eq!((group.state.name(), group.generation), ("Stable", 2));
    assert_eq!((&*group.protocol_type, &*group.protocol), ("consumer", "range"));
    let members: Vec<_> = group.members.iter().map(|m| (&m.member, &m.assignment[..])).collect();
    assert_eq!(members, [(&one, &b"left"[..]), (&two, &b"right"[..])]);
    assert_eq!(group.members[0].metadata, wants(&["orders"]));
    assert_eq!(&*group.members[0].client_host, "/127.0.0.1");
    desk.join(JoinRequest { member: one, ..request("one") });
    let group = desk.machine.describe(GROUP).expect("known");
    assert_eq!((group.state.name(), &*group.protocol), ("PreparingRebalance", ""));
    assert_eq!(group.members[0].metadata, "");
    assert_eq!(desk.machine.describe("nobody"), None);
}

#[test]
fn groups_are_listed_by_state_and_type_in_any_case() {
    let mut desk = Desk::new();
    desk.group_of_one();
    desk.commit(CommitRequest { group: "simple".into(), ..commit_of("orders", 1) });
    let names = |states: &[&str], types: &[&str]| {
        let listed = desk.machine.list(states, types);
        listed.iter().map(|group| group.group.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&[], &[]), ["orders", "simple"]);
    assert_eq!(names(&["STABLE"], &[]), ["orders"]);
    assert_eq!(names(&["empty", " stable "], &["classic"]), ["orders", "simple"]);
    assert_eq!(names(&["nonsense"], &[]), [""; 0]);
    assert_eq!(names(&[], &["consumer"]), [""; 0]);
}

#[test]
fn groups_without_members_are_deleted_with_their_offsets() {
    let mut desk = Desk::new();
    let one = desk.group_of_one();
    desk.commit(CommitRequest { group: "simple".into(), ..commit_of("orders", 1) });
    desk.commit(CommitRequest { generation: 1, member: Arc::clone(&one), ..commit_of("orders", 5) });
    let errors = delete(&mut desk, &[GROUP, "simple", "nobody", "simple"]);
    let missing = ErrorCode::GroupIdNotFound;
    assert_eq!(errors, [ErrorCode::NonEmptyGroup, ErrorCode::None, missing, missing]);
    assert_eq!((desk.offset("orders"), desk.offset_of("simple", "orders")), (5, -1));
    desk.leave(&[&one]);
    assert_eq!(delete(&mut desk, &[GROUP]), [ErrorCode::None]);
    assert_eq!(desk.machine.list(&[], &[]), []);
    assert_eq!(desk.machine.usage(), Usage::default());
    desk.restart();
    assert_eq!(desk.machine.list(&[], &[]), []);
}

#[test]
fn a_group_that_is_being_deleted_takes_nothing_in_and_lives_on_where_it_is_not() {
    let mut desk = Desk::new();
    desk.commit(commit_of("orders", 5));
    desk.slow_log = true;
    let groups = vec![GroupId::from(GROUP)];
    let token = desk.ask(|token| Event::DeleteGroups(token, groups));
    desk.is_waiting(token);
    assert_eq!(desk.state(), GroupState::Dead);
    assert_eq!(desk.commit(commit_of("orders", 6)), ErrorCode::CoordinatorNotAvailable);
    let joins = desk.join(request("one"));
    assert_eq!(desk.joined(joins).error, ErrorCode::CoordinatorNotAvailable);
    assert_eq!(desk.heartbeat(&"one".into(), 1), ErrorCode::CoordinatorNotAvailable);
    desk.fail_one();
    assert!(matches!(
        desk.answer(token),
        Some(Reply::DeleteGroups(groups)) if groups[0].error == ErrorCode::CoordinatorNotAvailable
    ));
    assert_eq!(desk.state(), GroupState::Empty);
    desk.slow_log = false;
    assert_eq!(desk.commit(commit_of("orders", 7)), ErrorCode::None);
}

#[test]
fn a_commit_on_its_way_into_the_log_is_deleted_with_its_group() {
    let mut desk = Desk::new();
    desk.slow_log = true;
    desk.ask(|token| Event::CommitOffsets(token, commit_of("orders", 5)));
    desk.ask(|token| Event::DeleteGroups(token, vec![GroupId::from(GROUP)]));
    desk.commit_all();
    assert_eq!(desk.offset("orders"), -1);
    assert_eq!(desk.machine.list(&[], &[]), []);
}

#[test]
fn a_deletion_of_many_offsets_counts_whole_or_not_at_all_for_who_asked() {
    let mut desk = Desk::new();
    for topic in 0..4 {
        let mut commit = commit_of(&format!("{topic}{}", "t".repeat(200)), 1);
        let partition = commit.topics[0].partitions[0].clone();
        let all = (0..2_500).map(|index| CommitPartition { index, ..partition.clone() });
        commit.topics[0].partitions = all.collect();
        assert_eq!(desk.commit(commit), ErrorCode::None);
    }
    desk.slow_log = true;
    let token = desk.ask(|token| Event::DeleteGroups(token, vec![GroupId::from(GROUP)]));
    assert!(desk.under_way.len() > 1);
    desk.fail_one();
    assert!(matches!(
        desk.answer(token),
        Some(Reply::DeleteGroups(groups)) if groups[0].error == ErrorCode::CoordinatorNotAvailable
    ));
    desk.commit_all();
    // What the first part would have deleted is still there.
    assert_eq!(desk.state(), GroupState::Empty);
    desk.slow_log = false;
    assert_eq!(delete(&mut desk, &[GROUP]), [ErrorCode::None]);
    assert_eq!(desk.machine.durable(), &Durable::default());
}
