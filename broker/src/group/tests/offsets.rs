//! Offsets: who may commit, what is read back, what goes.

use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::TopicId;

use super::support::{Desk, GROUP, commit_of, request, static_request, wants};
use crate::group::*;

const WEEK_MS: i64 = 7 * 24 * 3_600_000;

#[test]
fn a_member_commits_in_its_generation_and_nobody_else_does() {
    let mut desk = Desk::new();
    let (one, _) = desk.group_of_two();
    let of = |generation: i32, member: &str| CommitRequest {
        generation,
        member: member.into(),
        ..commit_of("orders", 5)
    };
    assert_eq!(desk.commit(of(2, &one)), ErrorCode::None);
    assert_eq!(desk.commit(of(3, &one)), ErrorCode::IllegalGeneration);
    assert_eq!(desk.commit(of(-1, &one)), ErrorCode::IllegalGeneration);
    assert_eq!(desk.commit(of(2, "stranger")), ErrorCode::UnknownMemberId);
    assert_eq!(desk.commit(of(-1, "")), ErrorCode::UnknownMemberId);
    // No member is in the group without a name, but offsets may be.
    let nameless = CommitRequest { group: "".into(), ..of(2, &one) };
    assert_eq!(desk.commit(nameless), ErrorCode::GroupIdNotFound);
    let nameless = CommitRequest { group: "".into(), ..of(-1, "") };
    assert_eq!(desk.commit(nameless), ErrorCode::None);
}

#[test]
fn a_consumer_that_assigns_itself_makes_a_group_of_offsets() {
    let mut desk = Desk::new();
    assert_eq!(desk.commit(commit_of("orders", 5)), ErrorCode::None);
    let listed = desk.machine.list(&["empty"], &["Classic"]);
    assert_eq!((listed.len(), &*listed[0].protocol_type), (1, ""));
    desk.restart();
    assert_eq!(desk.machine.list(&[], &[]), listed);
    assert_eq!(desk.commit(commit_of("orders", 6)), ErrorCode::None);
    assert_eq!(desk.offset("orders"), 6);
}

#[test]
fn a_member_of_a_group_that_does_not_exist_is_told_so_as_its_version_knows() {
    let mut desk = Desk::new();
    let member = CommitRequest { generation: 1, member: "one".into(), ..commit_of("orders", 5) };
    assert_eq!(desk.commit(CommitRequest { version: 8, ..member.clone() }), ErrorCode::IllegalGeneration);
    assert_eq!(desk.commit(member), ErrorCode::GroupIdNotFound);
    assert_eq!(desk.machine.list(&[], &[]), []);
}

#[test]
fn a_fenced_static_member_cannot_commit() {
    let mut desk = Desk::new();
    let (_, right) = desk.static_pair();
    let back = desk.join(static_request("right"));
    let back = desk.joined(back).member;
    let of = |member: &MemberId| CommitRequest {
        generation: 1,
        member: Arc::clone(member),
        instance: Some("right".into()),
        ..commit_of("orders", 5)
    };
    assert_eq!(desk.commit(of(&right)), ErrorCode::FencedInstanceId);
    assert_eq!(desk.offset("orders"), -1);
    assert_eq!(desk.commit(of(&back)), ErrorCode::None);
    let stranger = CommitRequest { instance: Some("stranger".into()), ..of(&back) };
    assert_eq!(desk.commit(stranger), ErrorCode::UnknownMemberId);
}

#[test]
fn members_commit_while_they_are_asked_to_join_and_not_while_the_leader_assigns() {
    let mut desk = Desk::new();
    let one = desk.group_of_one();
    let of = |generation: i32, offset: i64| CommitRequest {
        generation,
        member: Arc::clone(&one),
        ..commit_of("orders", offset)
    };
    desk.join(JoinRequest { version: 3, ..request("two") });
    assert_eq!(desk.state(), GroupState::PreparingRebalance);
    assert_eq!(desk.commit(of(1, 5)), ErrorCode::None);
    desk.join(JoinRequest { member: Arc::clone(&one), ..request("one") });
    assert_eq!(desk.state(), GroupState::CompletingRebalance);
    assert_eq!(desk.commit(of(2, 6)), ErrorCode::RebalanceInProgress);
    assert_eq!(desk.commit(of(1, 6)), ErrorCode::IllegalGeneration);
    assert_eq!(desk.offset("orders"), 5);
}

#[test]
fn a_commit_keeps_a_member_alive() {
    let mut desk = Desk::new();
    let one = desk.group_of_one();
    for offset in 0..3 {
        desk.pass(9_000);
        let commit = CommitRequest { generation: 1, member: Arc::clone(&one), ..commit_of("orders", offset) };
        assert_eq!(desk.commit(commit), ErrorCode::None);
    }
}

#[test]
fn metadata_beyond_the_limit_is_refused_for_its_partition_alone() {
    let mut desk = Desk::new();
    let partition = |index: i32, metadata: String| CommitPartition {
        index,
        offset: 1,
        leader_epoch: -1,
        metadata: Some(metadata.into()),
    };
    let mut commit = commit_of("orders", 1);
    // Kafka counts units, and an umlaut is one of them.
    commit.topics[0].partitions =
        vec![partition(0, "x".repeat(4097)), partition(1, "ü".repeat(4096)), partition(2, "ü".repeat(4097))];
    let token = desk.ask(|token| Event::CommitOffsets(token, commit));
    let Some(Reply::CommitOffsets(reply)) = desk.answer(token) else { panic!("no answer") };
    let large = ErrorCode::OffsetMetadataTooLarge;
    assert_eq!(reply.topics[0].partitions, [(0, large), (1, ErrorCode::None), (2, large)]);
    let all = OffsetQuery::of_nobody(GROUP.into(), None);
    let fetched = desk.machine.fetch_offsets(&all).expect("named");
    assert_eq!(fetched[0].partitions.len(), 1);
    assert_eq!(*fetched[0].partitions[0].metadata, *"ü".repeat(4096));
}

#[test]
fn a_commit_that_may_not_be_in_the_log_is_refused_and_its_group_goes_at_the_next_look() {
    let mut desk = Desk::new();
    desk.slow_log = true;
    let token = desk.ask(|token| Event::CommitOffsets(token, commit_of("orders", 5)));
    desk.fail_one();
    assert_eq!(desk.committed(token), ErrorCode::CoordinatorNotAvailable);
    desk.slow_log = false;
    desk.event(Event::Expire);
    assert_eq!(desk.machine.list(&[], &[]), []);
}

#[test]
fn a_group_whose_records_are_on_their_way_does_not_go_without_a_trace() {
    let mut desk = Desk::new();
    desk.slow_log = true;
    let joins = desk.join(JoinRequest { version: 3, ..request("one") });
    desk.pass(0);
    let one = desk.joined(joins).member;
    let leaver = Leaver { member: one, ..Leaver::default() };
    desk.ask(|token| Event::Leave(token, LeaveRequest { group: GROUP.into(), members: vec![leaver] }));
    // Nothing of it is in the log yet, and all of it will be.
    desk.event(Event::Expire);
    assert_eq!(desk.state(), GroupState::Dead);
    desk.commit_all();
    assert_eq!(desk.machine.list(&[], &[]), []);
    assert_eq!(desk.machine.durable(), &Durable::default());
}

#[test]
fn offsets_are_read_by_name_or_all_and_none_is_no_error() {
    let mut desk = Desk::new();
    let id = TopicId([5; 16]);
    let mut commit = commit_of("orders", 5);
    commit.topics[0].id = id;
    desk.commit(commit);
    desk.commit(commit_of("users", 7));
    let all = desk.machine.fetch_offsets(&OffsetQuery::of_nobody(GROUP.into(), None)).expect("named");
    let names: Vec<_> = all.iter().map(|topic| (&*topic.name, topic.id)).collect();
    assert_eq!(names, [("orders", id), ("users", TopicId::ZERO)]);
    let offset = &all[0].partitions[0];
    assert_eq!((offset.offset, offset.leader_epoch, &*offset.metadata), (5, 3, "note"));

    let ask = |id: TopicId| {
        let topic = OffsetQueryTopic { name: "orders".into(), id, partitions: vec![0, 9] };
        let query = OffsetQuery::of_nobody(GROUP.into(), Some(vec![topic]));
        let fetched = desk.machine.fetch_offsets(&query).expect("named");
        fetched[0].partitions.iter().map(|partition| partition.offset).collect::<Vec<_>>()
    };
    assert_eq!(ask(id), [5, -1]);
    assert_eq!(ask(TopicId::ZERO), [5, -1]);
    // A topic of that name made since has no offsets.
    assert_eq!(ask(TopicId([6; 16])), [-1, -1]);
    assert_eq!(desk.offset_of("nobody", "orders"), -1);
    let none = desk.machine.fetch_offsets(&OffsetQuery::of_nobody("nobody".into(), None));
    assert_eq!(none, Ok(Vec::new()));
    let nameless = desk.machine.fetch_offsets(&OffsetQuery::of_nobody("".into(), None));
    assert_eq!(nameless, Ok(Vec::new()));
}

#[test]
fn offsets_of_an_empty_group_go_a_week_after_its_last_member() {
    let mut desk = Desk::new();
    let one = desk.group_of_one();
    desk.commit(CommitRequest { generation: 1, member: Arc::clone(&one), ..commit_of("orders", 5) });
    desk.now_ms += 2 * WEEK_MS;
    desk.event(Event::Expire);
    assert_eq!(desk.offset("orders"), 5, "a member wants the topic");
    desk.leave(&[&one]);
    desk.now_ms += WEEK_MS - 1;
    desk.event(Event::Expire);
    assert_eq!(desk.offset("orders"), 5);
    desk.now_ms += 1;
    desk.event(Event::Expire);
    assert_eq!(desk.offset("orders"), -1);
    assert_eq!(desk.machine.list(&[], &[]), []);
    desk.restart();
    assert_eq!(desk.machine.list(&[], &[]), []);
}

#[test]
fn offsets_of_a_topic_that_no_member_wants_go_a_week_after_their_commit() {
    let mut desk = Desk::new();
    let one = desk.group_of_one();
    for topic in ["orders", "users"] {
        desk.commit(CommitRequest { generation: 1, member: Arc::clone(&one), ..commit_of(topic, 5) });
    }
    desk.now_ms += WEEK_MS;
    desk.event(Event::Expire);
    assert_eq!((desk.offset("orders"), desk.offset("users")), (5, -1));
    assert_eq!(desk.state(), GroupState::Stable);
}

#[test]
fn offsets_of_members_whose_wishes_cannot_be_read_stay() {
    let mut desk = Desk::new();
    let protocols = vec![Protocol { name: "range".into(), metadata: bytes::Bytes::from_static(b"?") }];
    let joins = desk.join(JoinRequest { version: 3, protocols, ..request("one") });
    desk.pass(0);
    let one = desk.joined(joins).member;
    desk.sync(&one, 1, &[(&one, "all")]);
    desk.commit(CommitRequest { generation: 1, member: one, ..commit_of("users", 5) });
    desk.now_ms += 2 * WEEK_MS;
    desk.event(Event::Expire);
    assert_eq!(desk.offset("users"), 5);
}

#[test]
fn offsets_with_a_time_of_their_own_go_by_it() {
    let mut desk = Desk::new();
    desk.commit(CommitRequest { version: 4, retention_ms: Some(1_000), ..commit_of("orders", 5) });
    desk.commit(commit_of("users", 7));
    desk.now_ms += 999;
    desk.event(Event::Expire);
    assert_eq!(desk.offset("orders"), 5);
    desk.now_ms += 1;
    desk.event(Event::Expire);
    assert_eq!((desk.offset("orders"), desk.offset("users")), (-1, 7));
}

#[test]
fn an_offset_on_its_way_into_the_log_does_not_expire_with_the_one_before() {
    let mut desk = Desk::new();
    desk.commit(commit_of("orders", 5));
    desk.now_ms += WEEK_MS;
    desk.slow_log = true;
    let token = desk.ask(|token| Event::CommitOffsets(token, commit_of("orders", 6)));
    desk.event(Event::Expire);
    desk.commit_all();
    assert_eq!(desk.committed(token), ErrorCode::None);
    assert_eq!(desk.offset("orders"), 6);
}

#[test]
fn groups_are_looked_at_some_at_a_time() {
    let mut desk = Desk::new();
    desk.slow_log = true;
    for number in 0..1_500 {
        let commit = CommitRequest { group: format!("g{number:04}").into(), ..commit_of("orders", 5) };
        desk.machine.handle(Event::CommitOffsets(Token(u64::MAX), commit), Surroundings::default());
    }
    assert!(desk.event(Event::Expire), "there are more");
    assert!(!desk.event(Event::Expire));
}

#[test]
fn offsets_of_deleted_topics_go_and_those_of_their_successors_stay() {
    let mut desk = Desk::new();
    let (old, new) = (TopicId([1; 16]), TopicId([2; 16]));
    let of = |topic: &str, id: TopicId| {
        let mut commit = commit_of(topic, 5);
        commit.topics[0].id = id;
        commit
    };
    let deleted = |name: &str| vec![DeletedTopic { name: name.into(), id: old }];
    desk.commit(of("orders", old));
    desk.commit(of("users", new));
    desk.commit(of("events", TopicId::ZERO));
    for name in ["orders", "users", "events"] {
        desk.event(Event::TopicsDeleted(deleted(name)));
    }
    let left = ["orders", "users", "events"].map(|topic| desk.offset(topic));
    assert_eq!(left, [-1, 5, -1]);
    // The same with commits on their way.
    desk.slow_log = true;
    desk.ask(|token| Event::CommitOffsets(token, of("orders", old)));
    desk.ask(|token| Event::CommitOffsets(token, of("events", old)));
    desk.ask(|token| Event::CommitOffsets(token, of("events", new)));
    desk.event(Event::TopicsDeleted(deleted("orders")));
    desk.event(Event::TopicsDeleted(deleted("events")));
    desk.commit_all();
    assert_eq!((desk.offset("orders"), desk.offset("events")), (-1, 5));
}

#[test]
fn offsets_are_deleted_unless_a_member_wants_the_topic() {
    let mut desk = Desk::new();
    let one = desk.group_of_one();
    for topic in ["orders", "users"] {
        desk.commit(CommitRequest { generation: 1, member: Arc::clone(&one), ..commit_of(topic, 5) });
    }
    let delete = |desk: &mut Desk, group: &str| {
        let topics = vec![(Arc::from("orders"), vec![0]), (Arc::from("users"), vec![0, 1])];
        let request = OffsetDeleteRequest { group: group.into(), topics };
        let token = desk.ask(|token| Event::DeleteOffsets(token, request));
        match desk.answer(token) {
            Some(Reply::DeleteOffsets(reply)) => reply.clone(),
            other => panic!("no answer but {other:?}"),
        }
    };
    let reply = delete(&mut desk, GROUP);
    assert_eq!(reply.error, ErrorCode::None);
    assert_eq!(reply.topics[0].partitions, [(0, ErrorCode::GroupSubscribedToTopic)]);
    assert_eq!(reply.topics[1].partitions, [(0, ErrorCode::None), (1, ErrorCode::None)]);
    assert_eq!((desk.offset("orders"), desk.offset("users")), (5, -1));
    assert_eq!(delete(&mut desk, "nobody").error, ErrorCode::GroupIdNotFound);
    assert_eq!(delete(&mut desk, "").error, ErrorCode::InvalidGroupId);
    desk.leave(&[&one]);
    assert_eq!(delete(&mut desk, GROUP).topics[0].partitions, [(0, ErrorCode::None)]);
    assert_eq!(desk.offset("orders"), -1);
}

#[test]
fn offsets_of_members_of_other_types_are_not_deleted() {
    let mut desk = Desk::new();
    let joins = desk.join(JoinRequest { version: 3, protocol_type: "connect".into(), ..request("one") });
    desk.pass(0);
    assert_eq!(desk.joined(joins).error, ErrorCode::None);
    let request = OffsetDeleteRequest { group: GROUP.into(), topics: vec![("orders".into(), vec![0])] };
    let token = desk.ask(|token| Event::DeleteOffsets(token, request));
    assert!(
        matches!(desk.answer(token), Some(Reply::DeleteOffsets(r)) if r.error == ErrorCode::NonEmptyGroup)
    );
}

#[test]
fn what_a_member_wants_is_read_from_its_own_words() {
    let mut desk = Desk::new();
    let protocols = vec![Protocol { name: "range".into(), metadata: wants(&["users", "events"]) }];
    let joins = desk.join(JoinRequest { version: 3, protocols, ..request("one") });
    desk.pass(0);
    assert_eq!(desk.joined(joins).error, ErrorCode::None);
    let topics = ["events", "orders"].map(|topic| (Arc::from(topic), vec![0])).to_vec();
    let request = OffsetDeleteRequest { group: GROUP.into(), topics };
    let token = desk.ask(|token| Event::DeleteOffsets(token, request));
    let Some(Reply::DeleteOffsets(reply)) = desk.answer(token) else { panic!("no answer") };
    let errors: Vec<_> = reply.topics.iter().map(|topic| topic.partitions[0].1).collect();
    assert_eq!(errors, [ErrorCode::GroupSubscribedToTopic, ErrorCode::None]);
}
