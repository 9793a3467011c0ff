//! How members come in, stay and go.

use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;

use super::support::{Desk, GROUP, protocol, request, static_request};
use crate::group::*;

#[test]
fn a_first_join_gives_a_name_and_the_second_one_a_group() {
    let mut desk = Desk::new();
    let id = desk.named("one");
    assert_eq!(&*id, "one-6f6e6507-0707-4707-8000-000000000001");
    assert_eq!(desk.state(), GroupState::Empty);
    let joins = desk.join(JoinRequest { member: Arc::clone(&id), ..request("one") });
    desk.is_waiting(joins);
    desk.pass(0);
    let joined = desk.joined(joins);
    assert_eq!((joined.error, joined.generation), (ErrorCode::None, 1));
    assert_eq!((&joined.leader, &joined.member), (&id, &id));
    assert_eq!(joined.protocol_name.as_deref(), Some("range"));
    assert_eq!(joined.protocol_type.as_deref(), Some("consumer"));
    assert_eq!(joined.members.len(), 1);
    let syncs = desk.sync(&id, 1, &[(&id, "all")]);
    assert_eq!(desk.synced(syncs).assignment, "all");
    assert_eq!(desk.state(), GroupState::Stable);
    assert_eq!(desk.heartbeat(&id, 1), ErrorCode::None);
}

#[test]
fn clients_of_old_versions_join_in_one_step() {
    let mut desk = Desk::new();
    let joins = desk.join(JoinRequest { version: 3, ..request("one") });
    desk.pass(0);
    assert_eq!(desk.joined(joins).generation, 1);
}

#[test]
fn a_request_that_cannot_be_is_refused_and_makes_no_group() {
    let mut desk = Desk::new();
    let refused = |desk: &mut Desk, request: JoinRequest| {
        let token = desk.join(request);
        desk.joined(token).error
    };
    let nameless = JoinRequest { group: "".into(), ..request("one") };
    assert_eq!(refused(&mut desk, nameless), ErrorCode::InvalidGroupId);
    for session_timeout_ms in [5_999, 1_800_001, -1] {
        let request = JoinRequest { session_timeout_ms, ..request("one") };
        assert_eq!(refused(&mut desk, request), ErrorCode::InvalidSessionTimeout);
    }
    let stranger = JoinRequest { member: "one-1".into(), ..request("one") };
    assert_eq!(refused(&mut desk, stranger), ErrorCode::UnknownMemberId);
    let speechless = JoinRequest { protocols: Vec::new(), ..request("one") };
    assert_eq!(refused(&mut desk, speechless), ErrorCode::InconsistentGroupProtocol);
    let typeless = JoinRequest { protocol_type: "".into(), ..request("one") };
    assert_eq!(refused(&mut desk, typeless), ErrorCode::InconsistentGroupProtocol);
    assert_eq!(desk.machine.list(&[], &[]), []);
    assert_eq!(desk.log, []);
}

#[test]
fn a_member_needs_a_protocol_that_all_others_know() {
    let mut desk = Desk::new();
    desk.group_of_one();
    let other = desk.join(JoinRequest { protocols: vec![protocol("sticky")], ..request("two") });
    assert_eq!(desk.joined(other).error, ErrorCode::InconsistentGroupProtocol);
    let other = desk.join(JoinRequest { protocol_type: "connect".into(), ..request("two") });
    assert_eq!(desk.joined(other).error, ErrorCode::InconsistentGroupProtocol);
    assert_eq!(desk.state(), GroupState::Stable);
}

#[test]
fn the_protocol_that_most_prefer_of_those_that_all_know_is_chosen() {
    let mut desk = Desk::new();
    let tokens = [["range", "sticky"], ["sticky", "range"], ["sticky", "range"]].map(|names| {
        let protocols = names.iter().copied().chain(["mine"]).map(protocol).collect();
        let name = format!("of {}", desk.timers.len());
        desk.join(JoinRequest { version: 3, protocols, ..request(&name) })
    });
    desk.pass(0);
    for token in tokens {
        assert_eq!(desk.joined(token).protocol_name.as_deref(), Some("sticky"));
    }
}

#[test]
fn a_member_without_a_heartbeat_is_dead_and_the_others_rebalance() {
    let mut desk = Desk::new();
    let (one, two) = desk.group_of_two();
    desk.pass(9_000);
    assert_eq!(desk.heartbeat(&one, 2), ErrorCode::None);
    desk.pass(2_000);
    assert_eq!(desk.heartbeat(&two, 2), ErrorCode::UnknownMemberId);
    assert_eq!(desk.heartbeat(&one, 2), ErrorCode::RebalanceInProgress);
    let again = desk.join(JoinRequest { member: Arc::clone(&one), ..request("one") });
    assert_eq!((desk.joined(again).generation, desk.joined(again).members.len()), (3, 1));
}

#[test]
fn a_timer_that_ran_out_as_it_was_armed_anew_harms_nobody() {
    let mut desk = Desk::new();
    let one = desk.group_of_one();
    let timer = Timer::Session { group: GROUP.into(), member: Arc::clone(&one) };
    let (old, _) = desk.timers[&timer];
    assert_eq!(desk.heartbeat(&one, 1), ErrorCode::None);
    desk.event(Event::Fired(timer, old));
    assert_eq!(desk.heartbeat(&one, 1), ErrorCode::None);
}

#[test]
fn a_name_that_nobody_comes_back_for_is_forgotten() {
    let mut desk = Desk::new();
    let id = desk.named("one");
    desk.pass(10_000);
    let late = desk.join(JoinRequest { member: id, ..request("one") });
    assert_eq!(desk.joined(late).error, ErrorCode::UnknownMemberId);
}

#[test]
fn several_leave_at_once_and_each_is_told_its_own_error() {
    let mut desk = Desk::new();
    let (one, two) = desk.group_of_two();
    let reply = desk.leave(&[&two, &"stranger".into(), &one, &two]);
    assert_eq!(reply.error, ErrorCode::None);
    let errors: Vec<_> = reply.members.iter().map(|member| member.error).collect();
    let unknown = ErrorCode::UnknownMemberId;
    assert_eq!(errors, [ErrorCode::None, unknown, ErrorCode::None, unknown]);
    assert_eq!(desk.state(), GroupState::Empty);
    assert_eq!(desk.machine.durable().groups()[GROUP].generation, 3);
    let nobody = desk.leave(&[&one]);
    assert_eq!(nobody.single_error(), unknown);
}

#[test]
fn the_last_to_leave_knows_once_it_is_in_the_log() {
    let mut desk = Desk::new();
    let one = desk.group_of_one();
    desk.slow_log = true;
    let leaver = Leaver { member: one, ..Leaver::default() };
    let request = LeaveRequest { group: GROUP.into(), members: vec![leaver] };
    let token = desk.ask(|token| Event::Leave(token, request));
    desk.is_waiting(token);
    desk.commit_one();
    assert!(matches!(desk.answer(token), Some(Reply::Leave(reply)) if reply.error == ErrorCode::None));
}

#[test]
fn a_static_member_that_restarts_takes_its_place_again_without_a_rebalance() {
    let mut desk = Desk::new();
    let (left, right) = desk.static_pair();
    let back = desk.join(static_request("right"));
    let back = desk.joined(back);
    assert_eq!((back.error, back.generation), (ErrorCode::None, 1));
    assert_ne!(back.member, right);
    assert_eq!((back.leader, back.skip_assignment), (Arc::clone(&left), false));
    assert_eq!(desk.heartbeat(&left, 1), ErrorCode::None);
    let syncs = desk.sync(&back.member, 1, &[]);
    assert_eq!(desk.synced(syncs).assignment, "right");
    // The one before is fenced wherever it names its instance, and unknown where it does not.
    assert_eq!(desk.heartbeat_of(&right, 1, Some("right")), ErrorCode::FencedInstanceId);
    assert_eq!(desk.heartbeat(&right, 1), ErrorCode::UnknownMemberId);
    // A restart of the coordinator knows the new name.
    desk.restart();
    assert_eq!(desk.heartbeat_of(&back.member, 1, Some("right")), ErrorCode::None);
}

#[test]
fn a_static_leader_that_restarts_keeps_its_assignments() {
    let mut desk = Desk::new();
    let (left, _) = desk.static_pair();
    let back = desk.join(static_request("left"));
    let back = desk.joined(back);
    assert_eq!((&back.leader, back.skip_assignment, back.members.len()), (&back.member, true, 2));
    // A client that cannot be told so must not think that it leads.
    let again = desk.join(JoinRequest { version: 8, ..static_request("left") });
    let again = desk.joined(again);
    assert_eq!((&again.leader, again.skip_assignment, again.members.len()), (&back.member, false, 0));
    assert_eq!(desk.heartbeat_of(&left, 1, Some("left")), ErrorCode::FencedInstanceId);
}

#[test]
fn a_static_member_is_told_its_new_name_once_it_is_in_the_log() {
    let mut desk = Desk::new();
    let (_, right) = desk.static_pair();
    desk.slow_log = true;
    let back = desk.join(static_request("right"));
    desk.is_waiting(back);
    desk.fail_one();
    assert_eq!(desk.joined(back).error, ErrorCode::CoordinatorNotAvailable);
    let retry = desk.join(static_request("right"));
    desk.commit_one();
    assert_eq!(desk.joined(retry).error, ErrorCode::None);
    assert_ne!(desk.joined(retry).member, right);
}

#[test]
fn a_static_member_with_other_protocols_makes_the_group_rebalance() {
    let mut desk = Desk::new();
    let tokens = ["left", "right"].map(|instance| {
        let protocols = vec![protocol("range"), protocol("sticky")];
        desk.join(JoinRequest { protocols, ..static_request(instance) })
    });
    desk.pass(0);
    let [left, right] = tokens.map(|token| desk.joined(token).member);
    desk.sync(&left, 1, &[(&left, "left"), (&right, "right")]);
    let back = desk.join(JoinRequest { protocols: vec![protocol("sticky")], ..static_request("right") });
    desk.is_waiting(back);
    assert_eq!(desk.heartbeat(&left, 1), ErrorCode::RebalanceInProgress);
}

#[test]
fn an_operator_removes_a_static_member_by_its_instance() {
    let mut desk = Desk::new();
    let (left, right) = desk.static_pair();
    let leaver = |instance: &str| Leaver { member: "".into(), instance: Some(instance.into()), reason: None };
    let members = vec![leaver("right"), leaver("stranger")];
    let request = LeaveRequest { group: GROUP.into(), members };
    let token = desk.ask(|token| Event::Leave(token, request));
    let Some(Reply::Leave(reply)) = desk.answer(token) else { panic!("no answer") };
    let errors: Vec<_> = reply.members.iter().map(|member| member.error).collect();
    assert_eq!(errors, [ErrorCode::None, ErrorCode::UnknownMemberId]);
    assert_eq!(desk.heartbeat(&right, 1), ErrorCode::UnknownMemberId);
    assert_eq!(desk.heartbeat(&left, 1), ErrorCode::RebalanceInProgress);
}
