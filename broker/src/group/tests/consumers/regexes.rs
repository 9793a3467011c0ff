//! Members that want topics by an expression.

use ringlog_protocol::error_code::ErrorCode;

use super::super::support::{Desk, GROUP, topics};
use super::support::{beating, joining};
use crate::group::consumer::ConsumerHeartbeatRequest;
use crate::group::*;

fn matching(name: &str, regex: &str) -> ConsumerHeartbeatRequest {
    ConsumerHeartbeatRequest { names: None, regex: Some(regex.into()), ..joining(name) }
}

#[track_caller]
fn count(desk: &mut Desk, request: ConsumerHeartbeatRequest) -> (i32, Option<usize>) {
    let reply = desk.beat(request);
    assert_eq!(reply.error, ErrorCode::None, "{:?}", reply.message);
    (reply.epoch, reply.assignment.map(|given| given.len()))
}

#[test]
fn an_expression_stands_for_the_topics_that_match_as_a_whole() {
    let mut desk = Desk::new();
    let (_, given) = count(&mut desk, matching("one", "o.*|user"));
    assert_eq!(given, Some(4));
    let described = desk.machine.describe_consumers(GROUP).expect("known");
    assert_eq!(described.members[0].regex.as_deref(), Some("o.*|user"));
    assert_eq!(desk.machine.durable().consumers()[GROUP].regexes["o.*|user"].topics, ["orders".into()]);
}

#[test]
fn topics_that_come_later_are_found_but_not_looked_for_all_the_time() {
    let mut desk = Desk::new();
    let (epoch, _) = count(&mut desk, matching("one", "orders.*"));
    desk.event(Event::MetadataChanged(topics(2, &[("orders", 4), ("orders2", 1)])));
    desk.pass(2_000);
    assert_eq!(count(&mut desk, beating("one", epoch)), (epoch, None));
    desk.pass(8_000);
    count(&mut desk, beating("one", epoch));
    desk.pass(1_000);
    assert_eq!(count(&mut desk, beating("one", epoch)), (epoch + 1, Some(5)));
}

#[test]
fn an_expression_that_cannot_be_read_is_refused_and_changes_nothing() {
    let mut desk = Desk::new();
    let (error, message) = desk.refused(matching("one", "a("));
    assert_eq!(error, ErrorCode::InvalidRegularExpression);
    assert_eq!(message, "The expression `a(` cannot be read: unclosed group.");
    assert_eq!(desk.machine.usage(), Usage::default());
    desk.told(joining("one"));
    let bad = ConsumerHeartbeatRequest { regex: Some("[".into()), ..beating("one", 1) };
    assert_eq!(desk.refused(bad).0, ErrorCode::InvalidRegularExpression);
    assert_eq!(desk.told(beating("one", 1)), (1, None));
}

#[test]
fn an_empty_expression_is_none() {
    let mut desk = Desk::new();
    let named = ConsumerHeartbeatRequest { regex: Some("".into()), ..joining("one") };
    assert_eq!(desk.told(named), (1, Some(vec![0, 1, 2, 3])));
    assert_eq!(desk.machine.describe_consumers(GROUP).expect("known").members[0].regex, None);
}

#[test]
fn topics_with_a_name_do_not_wait_for_an_expression_but_a_member_with_an_expression_alone_does() {
    let mut desk = Desk::new();
    desk.slow_computing = true;
    let named = desk.send(ConsumerHeartbeatRequest { regex: Some("u.*".into()), ..joining("one") });
    assert_eq!(desk.computing.len(), 2, "what the expression stands for, and an assignment");
    desk.computing.swap(0, 1);
    desk.compute_one();
    assert_eq!(desk.heard(named).assignment.map(|given| given.len()), Some(4));
    desk.compute_one();
    desk.pass(1_000);
    desk.compute_one();
    desk.pass(1_000);
    let alone = desk.send(matching("two", "o.*"));
    assert_eq!(desk.computing.len(), 1, "what the expression stands for");
    desk.compute_one();
    desk.compute_one();
    assert_eq!(desk.heard(alone).epoch, 4);
}

#[test]
fn names_and_expressions_go_together_and_what_nobody_uses_is_forgotten() {
    let mut desk = Desk::new();
    let both = ConsumerHeartbeatRequest { regex: Some("u.*".into()), ..joining("one") };
    let (epoch, given) = count(&mut desk, both);
    assert_eq!(given, Some(4));
    desk.pass(1_000);
    let (epoch, given) = count(&mut desk, beating("one", epoch));
    assert_eq!(given, Some(6));
    let without = ConsumerHeartbeatRequest { regex: Some("".into()), ..beating("one", epoch) };
    count(&mut desk, without);
    assert!(desk.machine.durable().consumers()[GROUP].regexes.is_empty());
    count(&mut desk, matching("two", "u.*"));
    assert_eq!(desk.machine.durable().consumers()[GROUP].regexes.len(), 1);
    desk.beat(beating("two", -1));
    assert!(desk.machine.durable().consumers()[GROUP].regexes.is_empty());
}
