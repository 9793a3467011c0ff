//! Members in a line or two.

use std::sync::Arc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{PartitionIndex, TopicPartition};

use super::super::support::{Desk, GROUP, topic_id};
use crate::group::consumer::{ConsumerHeartbeatReply, ConsumerHeartbeatRequest};
use crate::group::*;

/// Partitions of topic `orders`.
pub fn orders(partitions: &[i32]) -> Vec<TopicPartition> {
    let topic = topic_id("orders");
    partitions.iter().map(|index| TopicPartition { topic, partition: PartitionIndex(*index) }).collect()
}

/// A first heartbeat of a member that wants `orders`.
pub fn joining(name: &str) -> ConsumerHeartbeatRequest {
    ConsumerHeartbeatRequest {
        version: 1,
        group: GROUP.into(),
        member: name.into(),
        rebalance_timeout_ms: 30_000,
        names: Some(vec!["orders".into()]),
        owned: Some(Vec::new()),
        client_id: "client".into(),
        client_host: "/127.0.0.1".into(),
        random: [9; 16],
        ..ConsumerHeartbeatRequest::default()
    }
}

/// The same of a static member.
pub fn joining_as(name: &str, instance: &str) -> ConsumerHeartbeatRequest {
    ConsumerHeartbeatRequest { instance: Some(instance.into()), ..joining(name) }
}

/// A heartbeat that says nothing new.
pub fn beating(name: &str, epoch: i32) -> ConsumerHeartbeatRequest {
    ConsumerHeartbeatRequest { epoch, rebalance_timeout_ms: -1, names: None, owned: None, ..joining(name) }
}

/// A heartbeat that says what the member has.
pub fn having(name: &str, epoch: i32, partitions: &[i32]) -> ConsumerHeartbeatRequest {
    ConsumerHeartbeatRequest { owned: Some(orders(partitions)), ..beating(name, epoch) }
}

/// Epoch and partitions of `orders` that a member is told; `None`: as before.
pub type Told = (i32, Option<Vec<i32>>);

pub fn told(reply: &ConsumerHeartbeatReply) -> Told {
    assert_eq!(reply.error, ErrorCode::None, "{:?}", reply.message);
    let numbers = |given: &Vec<TopicPartition>| {
        assert!(given.iter().all(|at| at.topic == topic_id("orders")), "{given:?}");
        given.iter().map(|at| at.partition.0).collect()
    };
    (reply.epoch, reply.assignment.as_ref().map(numbers))
}

impl Desk {
    pub fn send(&mut self, request: ConsumerHeartbeatRequest) -> Token {
        self.ask(|token| Event::ConsumerHeartbeat(token, request))
    }

    #[track_caller]
    pub fn heard(&self, token: Token) -> ConsumerHeartbeatReply {
        match self.answer(token) {
            Some(Reply::ConsumerHeartbeat(reply)) => reply.clone(),
            other => panic!("{token:?} has no answer to a heartbeat, but {other:?}"),
        }
    }

    /// A heartbeat that is answered within the time between two assignments.
    #[track_caller]
    pub fn beat(&mut self, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatReply {
        let token = self.send(request);
        if self.answer(token).is_none() {
            self.pass(1_000);
        }
        self.heard(token)
    }

    #[track_caller]
    pub fn told(&mut self, request: ConsumerHeartbeatRequest) -> Told {
        told(&self.beat(request))
    }

    /// What a heartbeat is refused with.
    #[track_caller]
    pub fn refused(&mut self, request: ConsumerHeartbeatRequest) -> (ErrorCode, String) {
        let reply = self.beat(request);
        assert_eq!((reply.member, reply.epoch, reply.assignment), (None, 0, None));
        (reply.error, reply.message.unwrap_or_default())
    }

    pub fn group_state(&self) -> &'static str {
        self.machine.describe_consumers(GROUP).expect("known").state
    }

    /// A settled group of two members of epoch 2, of two partitions each.
    pub fn consumers_of_two(&mut self) -> (MemberId, MemberId) {
        assert_eq!(self.told(joining("one")), (1, Some(vec![0, 1, 2, 3])));
        assert_eq!(self.told(joining("two")), (2, Some(vec![])));
        assert_eq!(self.told(beating("one", 1)), (1, Some(vec![0, 1])));
        assert_eq!(self.told(having("one", 1, &[0, 1])), (2, Some(vec![0, 1])));
        assert_eq!(self.told(beating("two", 2)), (2, Some(vec![2, 3])));
        assert_eq!(self.group_state(), "Stable");
        (Arc::from("one"), Arc::from("two"))
    }
}
