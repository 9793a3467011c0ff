//! What is told of rebalances: who made them, why, and what moved.

use bytes::Bytes;
use ringlog_protocol::group::consumer_protocol::{encode_assignment, encode_subscription};
use ringlog_protocol::group::generated::consumer_protocol_assignment::{
    ConsumerProtocolAssignment, TopicPartition,
};
use ringlog_protocol::group::generated::consumer_protocol_subscription::ConsumerProtocolSubscription;

use super::support::*;
use crate::group::*;

fn owning(partitions: &[i32]) -> Bytes {
    let assigned = TopicPartition { topic: "orders", partitions: partitions.to_vec().into() };
    let assignment = ConsumerProtocolAssignment { assigned_partitions: vec![assigned], ..Default::default() };
    encode_assignment(&assignment, 1).expect("short")
}

/// The group comes to rest with these members, the first of which leads, and these partitions of each.
fn settle(desk: &mut Desk, generation: i32, owners: &[(&MemberId, &[i32])]) {
    let assignments = owners.iter().map(|(member, partitions)| ((*member).clone(), owning(partitions)));
    let assignments: Vec<(MemberId, Bytes)> = assignments.collect();
    for (number, (member, _)) in owners.iter().enumerate() {
        let brought = if number == 0 { assignments.clone() } else { Vec::new() };
        let request = SyncRequest {
            group: GROUP.into(),
            generation,
            member: (*member).clone(),
            assignments: brought,
            ..SyncRequest::default()
        };
        desk.ask(|token| Event::Sync(token, request));
    }
}

/// Joins under a name; whether it is answered is the caller's.
fn joins(desk: &mut Desk, member: &MemberId, change: impl FnOnce(&mut JoinRequest)) {
    let mut request = JoinRequest { member: member.clone(), ..request("any") };
    change(&mut request);
    desk.ask(|token| Event::Join(token, request));
}

pub fn newest(desk: &Desk) -> &Rebalance {
    &desk.rebalances.last().expect("a rebalance ended").1
}

pub fn causes(rebalance: &Rebalance) -> Vec<(Cause, String)> {
    rebalance.triggers.iter().map(|trigger| (trigger.cause, trigger.member.to_string())).collect()
}

pub fn counts(rebalance: &Rebalance) -> [u32; 4] {
    let Moves { kept, moved, taken, released, .. } =
        rebalance.moves.clone().expect("assignments that can be read");
    [kept, moved, taken, released]
}

/// Two members with two partitions each.
fn two() -> (Desk, MemberId, MemberId) {
    let mut desk = Desk::new();
    let one = desk.named("one");
    joins(&mut desk, &one, |_| {});
    desk.pass(0);
    settle(&mut desk, 1, &[(&one, &[0, 1, 2, 3])]);
    let two = desk.named("two");
    joins(&mut desk, &two, |_| {});
    joins(&mut desk, &one, |_| {});
    settle(&mut desk, 2, &[(&one, &[0, 1]), (&two, &[2, 3])]);
    (desk, one, two)
}

#[test]
fn a_member_that_joins_is_told_with_what_it_took() {
    let (desk, one, two) = two();
    let [(_, first), (group, second)] = desk.rebalances.as_slice() else {
        panic!("two rebalances: {:?}", desk.rebalances)
    };
    assert_eq!(&**group, GROUP);
    assert_eq!(causes(first), [(Cause::Joined, one.to_string())]);
    assert_eq!((first.members_before, first.members, first.generation), (0, 1, 1));
    assert_eq!(counts(first), [0, 0, 4, 0]);
    assert_eq!(causes(second), [(Cause::Joined, two.to_string())]);
    assert_eq!((second.members_before, second.members, second.generation), (1, 2, 2));
    assert_eq!(counts(second), [2, 2, 0, 0]);
    let shown = &second.moves.as_ref().expect("told").shown;
    let moved = |partition| Move {
        topic: "orders".into(),
        partition,
        from: Some(one.clone()),
        to: Some(two.clone()),
    };
    assert_eq!(*shown, [moved(2), moved(3)]);
}

#[test]
fn a_member_that_leaves_is_told_with_its_reason() {
    let (mut desk, one, two) = two();
    let leaver = Leaver { member: two.clone(), reason: Some("it is being closed".into()), instance: None };
    let request = LeaveRequest { group: GROUP.into(), members: vec![leaver] };
    desk.ask(|token| Event::Leave(token, request));
    joins(&mut desk, &one, |_| {});
    settle(&mut desk, 3, &[(&one, &[0, 1, 2, 3])]);
    let told = newest(&desk);
    assert_eq!(causes(told), [(Cause::Left, two.to_string())]);
    assert_eq!(told.triggers[0].reason.as_deref(), Some("it is being closed"));
    assert_eq!((told.members_before, told.members), (2, 1));
    assert_eq!(counts(told), [2, 2, 0, 0]);
}

#[test]
fn a_silent_member_and_one_that_does_not_come_back_are_told_apart() {
    let (mut desk, one, two) = two();
    // Both are silent: the first whose session ends begins it, and the last of all ends the group.
    desk.pass(i64::from(request("any").session_timeout_ms) + 1);
    let told = newest(&desk);
    assert_eq!(causes(told)[0].0, Cause::SessionExpired);
    assert_eq!((told.members_before, told.members), (2, 0));
    assert_eq!(counts(told), [0, 0, 0, 4]);

    let (mut desk, one, two) = (self::two().0, one, two);
    let third = desk.named("third");
    joins(&mut desk, &third, |_| {});
    joins(&mut desk, &one, |_| {});
    let heartbeat =
        HeartbeatRequest { group: GROUP.into(), generation: 2, member: two.clone(), instance: None };
    for _ in 0..13 {
        desk.ask(|token| Event::Heartbeat(token, heartbeat.clone()));
        desk.pass(i64::from(request("any").session_timeout_ms) / 2);
    }
    settle(&mut desk, 3, &[(&one, &[0, 1]), (&third, &[2, 3])]);
    let told = newest(&desk);
    assert_eq!(causes(told)[0], (Cause::Joined, third.to_string()));
    assert_eq!(causes(told)[1], (Cause::JoinTimeout, two.to_string()));
}

#[test]
fn what_a_member_that_joins_again_wants_is_told() {
    let (mut desk, one, two) = two();
    // The leader saw something.
    joins(&mut desk, &one, |request| request.reason = Some("the topic grew".into()));
    joins(&mut desk, &two, |_| {});
    settle(&mut desk, 3, &[(&one, &[0, 1]), (&two, &[2, 3])]);
    assert_eq!(causes(newest(&desk)), [(Cause::AskedAgain, one.to_string())]);
    assert_eq!(newest(&desk).triggers[0].reason.as_deref(), Some("the topic grew"));
    assert_eq!(counts(newest(&desk)), [4, 0, 0, 0]);

    let subscription =
        ConsumerProtocolSubscription { topics: vec!["users"], ..ConsumerProtocolSubscription::default() };
    let metadata = encode_subscription(&subscription, 1).expect("short");
    joins(&mut desk, &two, |request| request.protocols[0].metadata = metadata);
    joins(&mut desk, &one, |_| {});
    settle(&mut desk, 4, &[(&one, &[0, 1]), (&two, &[])]);
    assert_eq!(causes(newest(&desk)), [(Cause::SubscriptionChanged, two.to_string())]);
    assert_eq!(counts(newest(&desk)), [2, 0, 0, 2]);
}

#[test]
fn texts_and_members_beyond_the_bound_are_cut_and_counted() {
    use ringlog_shard::limits::{GROUP_CAUSES_SHOWN_MAX, GROUP_TIMELINE_TEXT_BYTES_MAX};
    let mut desk = Desk::new();
    let members: Vec<MemberId> = (0..20).map(|number| desk.named(&format!("{number}"))).collect();
    for member in &members {
        joins(&mut desk, member, |request| request.client_id = "ß".repeat(5_000).into());
    }
    desk.pass(0);
    let owners: Vec<(&MemberId, &[i32])> = members.iter().map(|member| (member, [].as_slice())).collect();
    settle(&mut desk, 1, &owners);
    let told = newest(&desk);
    assert_eq!(told.triggers.len(), GROUP_CAUSES_SHOWN_MAX);
    assert_eq!(told.triggers.len() + told.triggers_left_out, members.len());
    assert!(told.triggers.iter().all(|trigger| trigger.client_id.len() <= GROUP_TIMELINE_TEXT_BYTES_MAX));
}

#[test]
fn a_group_at_rest_keeps_nothing_of_it() {
    let (mut desk, one, two) = two();
    let resting = desk.machine.usage().bytes;
    joins(&mut desk, &one, |_| {});
    assert!(desk.machine.usage().bytes > resting, "it is counted while it is under way");
    joins(&mut desk, &two, |_| {});
    settle(&mut desk, 3, &[(&one, &[0, 1]), (&two, &[2, 3])]);
    assert_eq!(desk.machine.usage().bytes, resting);
}
