//! Every bound: a Kafka error with text, and whoever is in already goes on.

use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_shard::limits::{
    GROUP_BYTES_PER_CORE_MAX, GROUP_MEMBER_METADATA_BYTES_MAX, GROUP_MEMBERS_PENDING_MAX,
    GROUP_TEXT_BYTES_MAX, GROUPS_PER_CORE_MAX, MACHINE_PROPOSAL_BYTES_MAX,
};

use super::support::{Desk, GROUP, commit_of, request, static_request};
use crate::group::*;

#[track_caller]
fn is_refused(desk: &mut Desk, request: JoinRequest, error: ErrorCode) {
    let token = desk.join(request);
    let reply = desk.joined(token);
    assert_eq!(reply.error, error);
    assert!(reply.message.is_some_and(|message| !message.is_empty()));
}

#[test]
fn a_group_has_as_many_members_as_it_may() {
    let mut desk = Desk::with(GroupSettings {
        members_max: 2,
        initial_rebalance_delay_ms: 0,
        ..GroupSettings::default()
    });
    let (one, two) = desk.group_of_two();
    is_refused(&mut desk, request("three"), ErrorCode::GroupMaxSizeReached);
    assert_eq!((desk.heartbeat(&one, 2), desk.heartbeat(&two, 2)), (ErrorCode::None, ErrorCode::None));
    // Who is in joins again.
    let again = desk.join(JoinRequest { member: one, ..request("one") });
    let also = desk.join(JoinRequest { member: two, ..request("two") });
    assert_eq!((desk.joined(again).generation, desk.joined(also).generation), (3, 3));
}

#[test]
fn a_static_member_that_restarts_has_its_place_in_a_full_group() {
    let mut desk = Desk::with(GroupSettings {
        members_max: 2,
        initial_rebalance_delay_ms: 0,
        ..GroupSettings::default()
    });
    desk.static_pair();
    is_refused(&mut desk, static_request("third"), ErrorCode::GroupMaxSizeReached);
    let back = desk.join(static_request("right"));
    assert_eq!((desk.joined(back).error, desk.state()), (ErrorCode::None, GroupState::Stable));
}

#[test]
fn names_that_nobody_comes_back_for_are_bounded() {
    let mut desk = Desk::new();
    for number in 0..GROUP_MEMBERS_PENDING_MAX as u64 {
        let mut flood = request("flood");
        flood.random[8..].copy_from_slice(&number.to_be_bytes());
        desk.machine.handle(Event::Join(Token(u64::MAX), flood), Surroundings::default());
    }
    is_refused(&mut desk, request("one"), ErrorCode::GroupMaxSizeReached);
}

#[test]
fn what_a_member_says_is_bounded() {
    let mut desk = Desk::new();
    let says = |bytes: usize| {
        let metadata = Bytes::from(vec![0; bytes]);
        JoinRequest { protocols: vec![Protocol { name: "range".into(), metadata }], ..request("one") }
    };
    is_refused(&mut desk, says(GROUP_MEMBER_METADATA_BYTES_MAX), ErrorCode::InvalidRequest);
    let long: Arc<str> = "x".repeat(GROUP_TEXT_BYTES_MAX + 1).into();
    let instance = JoinRequest { instance: Some(Arc::clone(&long)), ..request("one") };
    is_refused(&mut desk, instance, ErrorCode::InvalidRequest);
    let group = JoinRequest { group: Arc::clone(&long), ..request("one") };
    is_refused(&mut desk, group, ErrorCode::InvalidGroupId);
    let commit = CommitRequest { group: long, ..commit_of("orders", 1) };
    assert_eq!(desk.commit(commit), ErrorCode::InvalidGroupId);
    let fits = desk.join(says(GROUP_MEMBER_METADATA_BYTES_MAX - 5));
    assert_eq!(desk.joined(fits).error, ErrorCode::MemberIdRequired);
}

#[test]
fn a_core_has_as_many_groups_as_it_may() {
    let mut desk = Desk::new();
    let one = desk.group_of_one();
    desk.elsewhere = Usage { groups: GROUPS_PER_CORE_MAX - 1, bytes: 0 };
    is_refused(
        &mut desk,
        JoinRequest { group: "another".into(), ..request("two") },
        ErrorCode::CoordinatorNotAvailable,
    );
    let another = CommitRequest { group: "another".into(), ..commit_of("orders", 1) };
    assert_eq!(desk.commit(another.clone()), ErrorCode::CoordinatorNotAvailable);
    let member = CommitRequest { generation: 1, member: one, ..commit_of("orders", 1) };
    assert_eq!(desk.commit(member), ErrorCode::None);
    desk.elsewhere.groups -= 1;
    assert_eq!(desk.commit(another), ErrorCode::None);
}

#[test]
fn the_memory_of_all_groups_is_bounded() {
    let mut desk = Desk::new();
    let one = desk.group_of_one();
    desk.elsewhere.bytes = GROUP_BYTES_PER_CORE_MAX - desk.machine.usage().bytes;
    is_refused(&mut desk, request("two"), ErrorCode::CoordinatorNotAvailable);
    let commit = CommitRequest { generation: 1, member: Arc::clone(&one), ..commit_of("orders", 1) };
    assert_eq!(desk.commit(commit), ErrorCode::CoordinatorNotAvailable);
    // Who is in says again what it said, and goes on.
    let again = desk.join(JoinRequest { member: Arc::clone(&one), ..request("one") });
    assert_eq!(desk.joined(again).generation, 2);
    let syncs = desk.sync(&one, 2, &[(&one, "all")]);
    let reply = desk.synced(syncs);
    assert_eq!(reply.error, ErrorCode::CoordinatorNotAvailable);
    assert!(reply.message.is_some());
    desk.elsewhere.bytes = 0;
    let again = desk.join(JoinRequest { member: Arc::clone(&one), ..request("one") });
    assert_eq!(desk.joined(again).generation, 3);
    desk.sync(&one, 3, &[(&one, "all")]);
    assert_eq!(desk.state(), GroupState::Stable);
}

#[test]
fn assignments_that_no_record_takes_are_refused_for_all_and_the_group_begins_anew() {
    let mut desk = Desk::new();
    let one = desk.first_member("one");
    let large = "x".repeat(MACHINE_PROPOSAL_BYTES_MAX);
    let syncs = desk.sync(&one, 1, &[(&one, &large)]);
    let reply = desk.synced(syncs);
    assert_eq!(reply.error, ErrorCode::UnknownServerError);
    assert!(reply.message.is_some());
    assert_eq!(desk.state(), GroupState::PreparingRebalance);
    assert_eq!(desk.machine.describe(GROUP).expect("known").members.len(), 1);
}

#[test]
fn a_commit_that_no_batch_takes_is_refused_whole() {
    let mut desk = Desk::new();
    let mut commit = commit_of("orders", 1);
    let partition = CommitPartition {
        metadata: Some("x".repeat(4_000).into()),
        ..commit.topics[0].partitions[0].clone()
    };
    commit.topics[0].partitions =
        (0..300).map(|index| CommitPartition { index, ..partition.clone() }).collect();
    let token = desk.ask(|token| Event::CommitOffsets(token, commit));
    let Some(Reply::CommitOffsets(reply)) = desk.answer(token) else { panic!("no answer") };
    let refused = ErrorCode::InvalidCommitOffsetSize;
    assert!(reply.topics[0].partitions.iter().all(|(_, error)| *error == refused));
    assert!(reply.message.is_some());
    assert_eq!(desk.log, []);
}
