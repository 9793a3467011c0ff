//! Groups that change their kind while they work, and members of both kinds in one group.

use std::sync::Arc;

use bytes::Bytes;
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::group::consumer_protocol::{decode_assignment, encode_assignment, encode_subscription};
use ringlog_protocol::group::generated::consumer_protocol_assignment::{
    ConsumerProtocolAssignment, TopicPartition as AssignedTopic,
};
use ringlog_protocol::group::generated::consumer_protocol_subscription::{
    ConsumerProtocolSubscription, TopicPartition as OwnedTopic,
};

use super::super::support::{Desk, GROUP, commit_of, protocol, request, static_request};
use super::super::timeline::{causes, counts, newest};
use super::support::{beating, having, joining, joining_as, told};
use crate::group::*;

fn assignment(partitions: &[i32]) -> Bytes {
    let topic = AssignedTopic { topic: "orders", partitions: partitions.to_vec().into() };
    let assignment = ConsumerProtocolAssignment { assigned_partitions: vec![topic], user_data: None };
    encode_assignment(&assignment, 3).expect("short")
}

fn assigned(reply: &SyncReply) -> Vec<i32> {
    assert_eq!(reply.error, ErrorCode::None);
    let assignment = decode_assignment(&reply.assignment).expect("readable");
    assignment
        .assigned_partitions
        .iter()
        .flat_map(|topic| topic.partitions.iter().collect::<Vec<_>>())
        .collect()
}

/// A join of a cooperative member that has these partitions.
fn owning(name: &str, id: &MemberId, partitions: &[i32]) -> JoinRequest {
    let owned = OwnedTopic { topic: "orders", partitions: partitions.to_vec().into() };
    let subscription = ConsumerProtocolSubscription {
        topics: vec!["orders"],
        owned_partitions: vec![owned],
        ..Default::default()
    };
    let metadata = encode_subscription(&subscription, 3).expect("short");
    let protocols = vec![Protocol { name: "range".into(), metadata }];
    JoinRequest { member: Arc::clone(id), protocols, ..request(name) }
}

/// A classic group of one member with all partitions, in generation 1.
fn classic_of_one(desk: &mut Desk) -> MemberId {
    let one = desk.first_member("one");
    let request = SyncRequest {
        group: GROUP.into(),
        generation: 1,
        member: Arc::clone(&one),
        assignments: vec![(Arc::clone(&one), assignment(&[0, 1, 2, 3]))],
        ..SyncRequest::default()
    };
    let token = desk.ask(|token| Event::Sync(token, request));
    assert_eq!(assigned(&desk.synced(token)), [0, 1, 2, 3]);
    one
}

fn rejoin(desk: &mut Desk, request: JoinRequest) -> JoinReply {
    let token = desk.join(request);
    if desk.answer(token).is_none() {
        desk.pass(1_000);
    }
    desk.joined(token)
}

fn sync(desk: &mut Desk, id: &MemberId, generation: i32) -> Vec<i32> {
    let token = desk.sync(id, generation, &[]);
    assigned(&desk.synced(token))
}

#[test]
fn a_classic_group_becomes_a_consumer_group_and_nobody_stops() {
    let mut desk = Desk::new();
    let one = classic_of_one(&mut desk);
    assert_eq!(
        desk.commit(CommitRequest { generation: 1, member: one.clone(), ..commit_of("orders", 5) }),
        ErrorCode::None
    );
    assert_eq!(desk.told(joining("new")), (2, Some(vec![])));
    let group = desk.machine.describe_consumers(GROUP).expect("a consumer group");
    let kinds: Vec<_> = group.members.iter().map(|member| (&*member.member, member.speaks_classic)).collect();
    assert_eq!(kinds, [("new", false), (&*one, true)]);
    // The old member is told to join, keeps half, lets the rest go, and joins again to say so.
    assert_eq!(desk.heartbeat(&one, 1), ErrorCode::RebalanceInProgress);
    assert_eq!(rejoin(&mut desk, owning("one", &one, &[0, 1, 2, 3])).generation, 1);
    assert_eq!(sync(&mut desk, &one, 1), [0, 1]);
    assert_eq!(desk.told(beating("new", 2)), (2, None));
    assert_eq!(desk.heartbeat(&one, 1), ErrorCode::RebalanceInProgress);
    let joined = rejoin(&mut desk, owning("one", &one, &[0, 1]));
    assert_eq!(
        (joined.error, joined.generation, joined.protocol_name.as_deref()),
        (ErrorCode::None, 2, Some("range"))
    );
    assert_eq!(sync(&mut desk, &one, 2), [0, 1]);
    assert_eq!(desk.heartbeat(&one, 2), ErrorCode::None);
    assert_eq!(desk.told(beating("new", 2)), (2, Some(vec![2, 3])));
    assert_eq!(desk.group_state(), "Stable");
    // Commits of the old member go by its generation.
    let commit =
        |generation| CommitRequest { generation, member: Arc::clone(&one), ..commit_of("orders", 6) };
    assert_eq!(desk.commit(commit(1)), ErrorCode::IllegalGeneration);
    assert_eq!(desk.commit(commit(2)), ErrorCode::None);
}

#[test]
fn what_a_member_says_to_have_is_its_own_also_when_the_group_does_not_know_it_any_more() {
    let mut desk = Desk::new();
    let one = classic_of_one(&mut desk);
    let two = desk.named("two");
    let joins = desk.join(JoinRequest { member: Arc::clone(&two), ..request("two") });
    desk.join(owning("one", &one, &[0, 1, 2, 3]));
    assert_eq!(desk.joined(joins).generation, 2);
    // Another one comes before anybody is assigned: what was assigned in the generation before is forgotten.
    desk.named("three");
    desk.join(JoinRequest {
        member: Arc::clone(&two),
        protocols: vec![protocol("other"), protocol("range")],
        ..request("two")
    });
    assert_eq!(desk.state(), GroupState::PreparingRebalance);
    assert_eq!(desk.told(joining("new")), (3, Some(vec![])));
    let group = desk.machine.describe_consumers(GROUP).expect("a consumer group");
    let of_one = group.members.iter().find(|member| member.member == one).expect("known");
    assert_eq!(of_one.assigned[0].partitions, [0, 1, 2, 3]);
    // It gives up what is not its part any more, and the others have it then.
    assert_eq!(rejoin(&mut desk, owning("one", &one, &[0, 1, 2, 3])).generation, 2);
    assert_eq!(sync(&mut desk, &one, 2), [0, 1]);
    assert_eq!(desk.told(beating("new", 3)), (3, None));
    assert_eq!(rejoin(&mut desk, owning("one", &one, &[0, 1])).generation, 3);
    assert_eq!(desk.told(beating("new", 3)), (3, Some(vec![2])));
}

#[test]
fn a_classic_member_that_was_put_out_gives_up_what_it_has_before_it_joins_again() {
    let mut desk = Desk::new();
    let one = classic_of_one(&mut desk);
    desk.told(joining("new"));
    for _ in 0..3 {
        desk.pass(4_000);
        desk.told(beating("new", 2));
    }
    let group = desk.machine.describe_consumers(GROUP).expect("known");
    assert_eq!(group.members.len(), 1, "the other one was silent for its session");
    assert_eq!(group.members[0].assigned[0].partitions, [0, 1, 2, 3]);
    // It does not know it: its commits must not be taken again before it has let go.
    let refused = rejoin(&mut desk, owning("one", &one, &[0, 1, 2, 3]));
    assert_eq!((refused.error, refused.generation), (ErrorCode::UnknownMemberId, -1));
    assert_eq!(rejoin(&mut desk, owning("one", &one, &[])).error, ErrorCode::None);
}

#[test]
fn a_consumer_group_becomes_classic_when_its_last_new_member_leaves() {
    let mut desk = Desk::new();
    let one = classic_of_one(&mut desk);
    desk.told(joining("new"));
    rejoin(&mut desk, owning("one", &one, &[]));
    assert_eq!(sync(&mut desk, &one, 2), [0, 1]);
    desk.told(beating("new", 2));
    let left = desk.beat(beating("new", -1));
    assert_eq!((left.error, left.epoch), (ErrorCode::None, -1));
    let group = desk.machine.describe(GROUP).expect("classic");
    assert_eq!((group.state, group.generation, group.members.len()), (GroupState::PreparingRebalance, 2, 1));
    assert_eq!(
        assigned(&SyncReply { assignment: group.members[0].assignment.clone(), ..SyncReply::of_none() }),
        [0, 1]
    );
    assert!(desk.machine.durable().consumers().is_empty());
    assert_eq!(desk.heartbeat(&one, 2), ErrorCode::RebalanceInProgress);
    let joined = rejoin(&mut desk, owning("one", &one, &[0, 1]));
    assert_eq!((joined.error, joined.generation, joined.leader), (ErrorCode::None, 3, one));
}

#[test]
fn the_session_of_the_last_new_member_turns_the_group_back_too() {
    let mut desk = Desk::new();
    let one = classic_of_one(&mut desk);
    desk.told(joining("new"));
    rejoin(&mut desk, owning("one", &one, &[]));
    sync(&mut desk, &one, 2);
    for _ in 0..9 {
        desk.pass(5_000);
        desk.heartbeat(&one, 2);
    }
    assert!(desk.machine.describe(GROUP).is_some_and(|group| group.members.len() == 1));
}

#[test]
fn a_restart_between_finds_one_kind() {
    let mut desk = Desk::new();
    let one = classic_of_one(&mut desk);
    desk.told(joining("new"));
    let before = desk.machine.describe_consumers(GROUP);
    desk.restart();
    assert_eq!(desk.machine.describe_consumers(GROUP), before);
    assert_eq!(desk.heartbeat(&one, 1), ErrorCode::RebalanceInProgress);
    desk.beat(beating("new", -1));
    desk.restart();
    assert_eq!(desk.machine.describe(GROUP).map(|group| group.members.len()), Some(1));
}

#[test]
fn who_waits_for_the_classic_group_is_told_to_come_again() {
    let mut desk = Desk::new();
    let one = classic_of_one(&mut desk);
    let two = desk.named("two");
    let waits = desk.join(JoinRequest { member: Arc::clone(&two), ..request("two") });
    desk.is_waiting(waits);
    let joins = desk.send(joining("new"));
    assert_eq!(desk.joined(waits).error, ErrorCode::RebalanceInProgress);
    assert_eq!(told(&desk.heard(joins)).0, 2);
    assert_eq!(rejoin(&mut desk, owning("two", &two, &[])).error, ErrorCode::None);
    assert_eq!(desk.heartbeat(&one, 1), ErrorCode::RebalanceInProgress);
}

#[test]
fn a_classic_member_joins_a_consumer_group_in_two_steps() {
    let mut desk = Desk::new();
    desk.told(joining("new"));
    let old = desk.named("old");
    let joined = rejoin(&mut desk, owning("old", &old, &[]));
    assert_eq!((joined.error, joined.generation, &*joined.leader), (ErrorCode::None, 2, ""));
    assert_eq!(sync(&mut desk, &old, 2), [0_i32; 0]);
    assert_eq!(desk.heartbeat(&old, 2), ErrorCode::None);
    desk.told(beating("new", 1));
    desk.told(having("new", 1, &[0, 1]));
    // What it waits for is free: it must ask for it.
    assert_eq!(desk.heartbeat(&old, 2), ErrorCode::RebalanceInProgress);
    assert_eq!(rejoin(&mut desk, owning("old", &old, &[])).generation, 2);
    assert_eq!(sync(&mut desk, &old, 2), [2, 3]);
    assert_eq!(desk.leave(&[&old]).members[0].error, ErrorCode::None);
    assert_eq!(desk.leave(&[&old, &"new".into()]).members[1].error, ErrorCode::UnknownMemberId);
    desk.pass(1_000);
    assert_eq!(desk.told(beating("new", 2)), (3, Some(vec![0, 1, 2, 3])));
}

#[test]
fn a_classic_member_that_does_not_join_again_or_sync_is_out() {
    for syncs in [true, false] {
        let mut desk = Desk::new();
        desk.told(joining("new"));
        let old = desk.named("old");
        let patient = JoinRequest { session_timeout_ms: 200_000, ..owning("old", &old, &[]) };
        assert_eq!(rejoin(&mut desk, patient).generation, 2);
        if syncs {
            sync(&mut desk, &old, 2);
            desk.told(joining("third"));
            assert_eq!(desk.heartbeat(&old, 2), ErrorCode::RebalanceInProgress);
        }
        for _ in 0..2 {
            desk.pass(30_500);
            desk.told(joining("new"));
        }
        assert_eq!(desk.heartbeat(&old, 2), ErrorCode::UnknownMemberId);
        let expected = (if syncs { Cause::JoinTimeout } else { Cause::SyncTimeout }, old.to_string());
        assert!(desk.rebalances.iter().any(|(_, told)| causes(told) == [expected.clone()]));
    }
}

#[test]
fn both_ways_are_told_with_who_made_them() {
    let mut desk = Desk::new();
    let one = classic_of_one(&mut desk);
    let (converted, new) = (Cause::Converted, "new".to_owned());
    desk.told(joining("new"));
    let told = newest(&desk);
    assert_eq!(causes(told), [(converted, new.clone()), (Cause::Joined, new.clone())]);
    assert_eq!((told.members_before, told.members, told.generation), (1, 2, 2));
    assert_eq!(counts(told), [2, 2, 0, 0]);
    rejoin(&mut desk, owning("one", &one, &[]));
    assert_eq!(sync(&mut desk, &one, 2), [0, 1]);
    desk.told(beating("new", 2));
    desk.beat(beating("new", -1));
    assert_eq!(rejoin(&mut desk, owning("one", &one, &[0, 1])).generation, 3);
    let request = SyncRequest {
        group: GROUP.into(),
        generation: 3,
        member: Arc::clone(&one),
        assignments: vec![(Arc::clone(&one), assignment(&[0, 1, 2, 3]))],
        ..SyncRequest::default()
    };
    desk.ask(|token| Event::Sync(token, request));
    let told = newest(&desk);
    assert_eq!(causes(told), [(converted, new.clone()), (Cause::Left, new)]);
    assert_eq!((told.members_before, told.members, told.generation), (2, 1, 3));
    assert_eq!(counts(told), [2, 2, 0, 0]);
    assert_eq!(told.moves.as_ref().expect("told").shown[0].from.as_deref(), Some("new"));
    assert_eq!(desk.rebalances.len(), 3);
}

#[test]
fn what_was_under_way_in_the_classic_group_is_told_too() {
    let mut desk = Desk::new();
    classic_of_one(&mut desk);
    let two = desk.named("two");
    desk.join(JoinRequest { member: Arc::clone(&two), ..request("two") });
    desk.send(joining("new"));
    let expected = [
        (Cause::Joined, two.to_string()),
        (Cause::Converted, "new".to_owned()),
        (Cause::Joined, "new".to_owned()),
    ];
    assert_eq!(causes(newest(&desk)), expected);
}

#[test]
fn classic_members_that_go_are_told_with_their_reason() {
    let mut desk = Desk::new();
    desk.told(joining("new"));
    let old = desk.named("old");
    rejoin(&mut desk, owning("old", &old, &[]));
    assert_eq!(causes(newest(&desk)), [(Cause::Joined, old.to_string())]);
    let token = desk.join(static_request("left"));
    desk.pass(1_000);
    let left = desk.joined(token).member;
    let leaver = Leaver { member: old.clone(), reason: Some("it is closed".into()), instance: None };
    let removed = Leaver { instance: Some("left".into()), ..Leaver::default() };
    let members = vec![leaver, removed];
    desk.ask(|token| Event::Leave(token, LeaveRequest { group: GROUP.into(), members }));
    desk.pass(1_000);
    let told = newest(&desk);
    assert_eq!(causes(told), [(Cause::Left, old.to_string()), (Cause::Removed, left.to_string())]);
    assert_eq!(told.triggers[0].reason.as_deref(), Some("it is closed"));
}

#[test]
fn members_of_the_other_protocol_are_not_served_as_classic_ones() {
    let mut desk = Desk::new();
    desk.told(joining("new"));
    let new: MemberId = "new".into();
    assert_eq!(desk.heartbeat(&new, 1), ErrorCode::UnknownMemberId);
    let token = desk.sync(&new, 1, &[]);
    assert_eq!(desk.synced(token).error, ErrorCode::UnknownMemberId);
    let other = JoinRequest { protocol_type: "connect".into(), ..request("old") };
    assert_eq!(rejoin(&mut desk, other).error, ErrorCode::InconsistentGroupProtocol);
    let old = desk.named("old");
    rejoin(&mut desk, owning("old", &old, &[]));
    let unknown = vec![Protocol { name: "sticky".into(), ..owning("x", &old, &[]).protocols[0].clone() }];
    let other = JoinRequest { protocols: unknown, version: 3, ..request("third") };
    assert_eq!(rejoin(&mut desk, other).error, ErrorCode::InconsistentGroupProtocol);
}

#[test]
fn groups_that_cannot_be_read_or_must_not_change_stay_what_they_are() {
    let mut desk = Desk::new();
    let one = desk.group_of_one();
    let (error, message) = desk.refused(joining("new"));
    assert_eq!(error, ErrorCode::GroupIdNotFound);
    assert!(message.contains("cannot be read"), "{message}");
    assert_eq!(desk.heartbeat(&one, 1), ErrorCode::None);
    let mut desk = Desk::new();
    let settings = ConsumerSettings { migration: Migration::Downgrade, ..ConsumerSettings::default() };
    desk.machine.set_consumer_settings(settings);
    classic_of_one(&mut desk);
    let message = "Group orders does not speak the consumer protocol.";
    assert_eq!(desk.refused(joining("new")), (ErrorCode::GroupIdNotFound, message.to_owned()));
}

#[test]
fn a_group_stays_a_consumer_group_where_it_must_not_turn_back() {
    let mut desk = Desk::new();
    let settings = ConsumerSettings { migration: Migration::Upgrade, ..ConsumerSettings::default() };
    desk.machine.set_consumer_settings(settings);
    let one = classic_of_one(&mut desk);
    desk.told(joining("new"));
    desk.beat(beating("new", -1));
    assert_eq!(desk.heartbeat(&one, 1), ErrorCode::RebalanceInProgress);
    assert_eq!(desk.machine.describe_consumers(GROUP).expect("consumers").members.len(), 1);
}

#[test]
fn empty_groups_are_what_the_next_member_makes_of_them() {
    let mut desk = Desk::new();
    desk.commit(commit_of("orders", 5));
    desk.told(joining("new"));
    desk.beat(beating("new", -1));
    let old = desk.first_member("old");
    assert_eq!(desk.machine.describe(GROUP).map(|group| group.members.len()), Some(1));
    assert!(desk.machine.durable().consumers().is_empty());
    assert_eq!(desk.offset("orders"), 5);
    desk.leave(&[&old]);
    assert_eq!(desk.told(joining("new")), (1, Some(vec![0, 1, 2, 3])));
    assert!(desk.machine.durable().groups().is_empty());
    assert_eq!(desk.offset("orders"), 5);
}

#[test]
fn a_static_member_moves_to_the_new_protocol_and_back() {
    let mut desk = Desk::new();
    let token = desk.join(static_request("left"));
    desk.pass(0);
    let old = desk.joined(token).member;
    let request = SyncRequest {
        group: GROUP.into(),
        generation: 1,
        member: Arc::clone(&old),
        assignments: vec![(Arc::clone(&old), assignment(&[0, 1, 2, 3]))],
        ..SyncRequest::default()
    };
    desk.ask(|token| Event::Sync(token, request));
    desk.join(static_request("right"));
    // It comes back with the new protocol: nobody else may use its old name.
    assert_eq!(desk.told(joining_as("new", "left")), (2, Some(vec![0, 1])));
    assert_eq!(desk.heartbeat_of(&old, 1, Some("left")), ErrorCode::FencedInstanceId);
    // And back again: the group is classic once more.
    let token = desk.join(static_request("left"));
    desk.pass(0);
    assert!(desk.machine.describe(GROUP).is_some(), "{:?}", desk.answer(token));
}

impl SyncReply {
    fn of_none() -> SyncReply {
        SyncReply {
            error: ErrorCode::None,
            message: None,
            protocol_type: None,
            protocol_name: None,
            assignment: Bytes::new(),
        }
    }
}
