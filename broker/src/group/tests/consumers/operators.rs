//! What operators and offsets see of consumer groups.

use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;

use super::super::support::{Desk, GROUP, commit_of, request, topic_id};
use super::support::{beating, having, joining};
use crate::group::*;

fn delete(desk: &mut Desk) -> ErrorCode {
    let token = desk.ask(|token| Event::DeleteGroups(token, vec![GroupId::from(GROUP)]));
    match desk.answer(token) {
        Some(Reply::DeleteGroups(groups)) => groups[0].error,
        other => panic!("no answer but {other:?}"),
    }
}

fn delete_offset(desk: &mut Desk, topic: &str) -> ErrorCode {
    let request = OffsetDeleteRequest { group: GROUP.into(), topics: vec![(topic.into(), vec![0])] };
    let token = desk.ask(|token| Event::DeleteOffsets(token, request));
    match desk.answer(token) {
        Some(Reply::DeleteOffsets(reply)) => reply.topics[0].partitions[0].1,
        other => panic!("no answer but {other:?}"),
    }
}

fn committing(member: &str, epoch: i32, offset: i64) -> CommitRequest {
    CommitRequest { generation: epoch, member: member.into(), ..commit_of("orders", offset) }
}

#[test]
fn a_group_is_described_with_what_its_members_have_and_are_to_have() {
    let mut desk = Desk::new();
    desk.told(joining("one"));
    desk.told(joining("two"));
    let group = desk.machine.describe_consumers(GROUP).expect("known");
    assert_eq!((group.state, group.epoch, group.assignment_epoch), ("Reconciling", 2, 2));
    assert_eq!(&*group.assignor, "uniform");
    let one = &group.members[0];
    assert_eq!((&*one.member, one.epoch, one.speaks_classic), ("one", 1, false));
    assert_eq!((&*one.client_id, &*one.client_host, &*one.names[0]), ("client", "/127.0.0.1", "orders"));
    let numbers = |topics: &[crate::group::consumer::DescribedTopic]| {
        topics.iter().map(|topic| (topic.name.to_string(), topic.partitions.clone())).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&one.assigned), [("orders".to_owned(), vec![0, 1, 2, 3])]);
    assert_eq!(numbers(&one.target), [("orders".to_owned(), vec![0, 1])]);
    assert_eq!(numbers(&group.members[1].assigned), []);
    let missing = desk.machine.describe_consumers("nobody").expect_err("missing");
    assert_eq!(missing, (ErrorCode::GroupIdNotFound, "Group nobody not found.".to_owned()));
    assert_eq!(desk.machine.describe(GROUP), None);
}

#[test]
fn both_kinds_are_listed() {
    let mut desk = Desk::new();
    desk.told(joining("one"));
    desk.join(JoinRequest { group: "classic".into(), ..request("two") });
    let names = |states: &[&str], types: &[&str]| {
        let listed = desk.machine.list(states, types);
        listed
            .iter()
            .map(|group| format!("{} {} {}", group.group, group.group_type, group.state.name()))
            .collect()
    };
    let all: Vec<String> = names(&[], &[]);
    assert_eq!(all, ["classic classic Empty", "orders consumer Stable"]);
    assert_eq!(names(&["stable"], &["Consumer"]), ["orders consumer Stable"]);
    assert_eq!(names(&["empty"], &["consumer"]), [""; 0]);
}

#[test]
fn members_commit_in_their_epoch_and_of_what_they_kept_in_an_earlier_one() {
    let mut desk = Desk::new();
    desk.consumers_of_two();
    assert_eq!(desk.commit(committing("one", 2, 5)), ErrorCode::None);
    // Partition 0 has been with it since epoch 1.
    assert_eq!(desk.commit(committing("one", 1, 6)), ErrorCode::None);
    assert_eq!(desk.commit(committing("one", 0, 7)), ErrorCode::StaleMemberEpoch);
    assert_eq!(desk.commit(committing("one", 3, 7)), ErrorCode::StaleMemberEpoch);
    // The other never had it.
    assert_eq!(desk.commit(committing("two", 1, 7)), ErrorCode::StaleMemberEpoch);
    assert_eq!(desk.commit(committing("three", 2, 7)), ErrorCode::UnknownMemberId);
    assert_eq!(desk.commit(commit_of("orders", 7)), ErrorCode::UnknownMemberId);
    let old = CommitRequest { version: 8, ..committing("one", 2, 7) };
    assert_eq!(desk.commit(old), ErrorCode::UnsupportedVersion);
    assert_eq!(desk.offset("orders"), 6);
    for member in ["one", "two"] {
        desk.beat(beating(member, -1));
    }
    assert_eq!(desk.commit(commit_of("orders", 8)), ErrorCode::None);
}

#[test]
fn a_commit_by_topic_id_in_an_earlier_epoch_counts_too() {
    let mut desk = Desk::new();
    desk.consumers_of_two();
    let mut commit = committing("one", 1, 6);
    commit.topics[0].id = topic_id("orders");
    assert_eq!(desk.commit(commit.clone()), ErrorCode::None);
    commit.topics[0].id = topic_id("users");
    assert_eq!(desk.commit(commit), ErrorCode::StaleMemberEpoch);
}

#[test]
fn members_read_offsets_in_their_epoch() {
    let mut desk = Desk::new();
    desk.consumers_of_two();
    let check = |member, epoch| desk.machine.check_offset_fetch(GROUP, member, epoch);
    assert_eq!(check(None, -1), Ok(()));
    assert_eq!(check(Some("one"), 2), Ok(()));
    assert_eq!(check(Some("one"), 1), Err(ErrorCode::StaleMemberEpoch));
    assert_eq!(check(Some("three"), 2), Err(ErrorCode::UnknownMemberId));
    assert_eq!(desk.machine.check_offset_fetch("nobody", Some("one"), 1), Ok(()));
}

#[test]
fn offsets_of_wanted_topics_stay_and_others_go() {
    let mut desk = Desk::new();
    desk.told(joining("one"));
    assert_eq!(desk.commit(committing("one", 1, 5)), ErrorCode::None);
    let users = CommitRequest { generation: 1, member: "one".into(), ..commit_of("users", 6) };
    assert_eq!(desk.commit(users.clone()), ErrorCode::None);
    assert_eq!(delete_offset(&mut desk, "orders"), ErrorCode::GroupSubscribedToTopic);
    assert_eq!(delete_offset(&mut desk, "users"), ErrorCode::None);
    assert_eq!(desk.commit(users), ErrorCode::None);
    let week_ms = 7 * 24 * 3_600_000;
    desk.now_ms += week_ms;
    desk.event(Event::Expire);
    assert_eq!((desk.offset("orders"), desk.offset("users")), (5, -1));
    desk.beat(beating("one", -1));
    desk.event(Event::Expire);
    assert_eq!(desk.offset("orders"), -1);
    assert_eq!(desk.machine.list(&[], &[]), []);
    assert_eq!(desk.machine.usage(), Usage::default());
    desk.restart();
    assert_eq!(desk.machine.usage(), Usage::default());
}

#[test]
fn a_group_without_members_is_deleted_and_lives_on_where_that_fails() {
    let mut desk = Desk::new();
    desk.told(joining("one"));
    assert_eq!(delete(&mut desk), ErrorCode::NonEmptyGroup);
    desk.commit(committing("one", 1, 5));
    desk.beat(beating("one", -1));
    desk.slow_log = true;
    let token = desk.ask(|token| Event::DeleteGroups(token, vec![GroupId::from(GROUP)]));
    assert_eq!(desk.group_state(), "Dead");
    assert_eq!(desk.refused(joining("two")).0, ErrorCode::CoordinatorNotAvailable);
    desk.fail_one();
    assert!(desk.answer(token).is_some());
    assert_eq!(desk.group_state(), "Empty");
    desk.slow_log = false;
    assert_eq!(delete(&mut desk), ErrorCode::None);
    assert_eq!(delete(&mut desk), ErrorCode::GroupIdNotFound);
    assert_eq!(desk.machine.usage(), Usage::default());
}

#[test]
fn offsets_of_topics_that_are_deleted_go() {
    let mut desk = Desk::new();
    desk.told(joining("one"));
    desk.commit(committing("one", 1, 5));
    desk.event(Event::TopicsDeleted(vec![DeletedTopic { name: "orders".into(), id: topic_id("orders") }]));
    assert_eq!(desk.offset("orders"), -1);
}

#[test]
fn a_group_that_rests_is_small() {
    let mut desk = Desk::new();
    desk.consumers_of_two();
    let busy = desk.machine.usage().bytes;
    desk.beat(beating("one", -1));
    desk.beat(having("two", -1, &[2, 3]));
    let idle = desk.machine.usage().bytes;
    assert!(idle < busy && idle < 2_048, "{idle} bytes idle, {busy} with two members");
}

#[test]
fn a_restart_shares_nothing_and_counts_the_same() {
    let mut desk = Desk::new();
    desk.consumers_of_two();
    let before = desk.machine.usage();
    desk.restart();
    assert_eq!(desk.machine.usage(), before);
    let live = Arc::clone(
        desk.machine.durable().consumers()[GROUP].members["one"].metadata.as_ref().expect("known"),
    );
    assert!(Arc::strong_count(&live) >= 3, "the group as it is led shares what is durable");
}
