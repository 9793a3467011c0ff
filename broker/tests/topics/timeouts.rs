//! What CreateTopics, CreatePartitions and DeleteTopics do when their request gives no time, or not enough.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use ringlog_bench::client::Client;
use ringlog_bench::client::connection::Connection;
use ringlog_io::Io;
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::messages::create_partitions::{
    CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopic,
};
use ringlog_protocol::messages::create_topics::{CreatableTopic, CreateTopicsRequest, CreateTopicsResponse};
use ringlog_protocol::messages::delete_topics::{
    DeleteTopicState, DeleteTopicsRequest, DeleteTopicsResponse,
};
use ringlog_protocol::wire::{Reader, Writer};

use crate::support::clients;
use crate::support::group_scene::Scene;

const WAIT: Duration = Duration::from_secs(120);
const TIMED_OUT: i16 = 7;

/// A client's end.
struct Peer {
    io: Io,
    client: Client,
    connection: Rc<Connection>,
}

/// Error number and text.
type Told = (i16, Option<String>);

/// What is asked for in a test, with as much time as the request gives.
#[derive(Clone, Copy, Debug)]
enum Change {
    Create,
    Grow,
    Delete,
}

impl Change {
    const ALL: [Change; 3] = [Change::Create, Change::Grow, Change::Delete];

    /// Partitions of the topic before, and when it is done; 0: there is no topic.
    fn counts(self) -> (i32, i32) {
        match self {
            Change::Create => (0, 3),
            Change::Grow => (2, 5),
            Change::Delete => (2, 0),
        }
    }
}

impl Peer {
    async fn connect(io: &Io, host: std::net::IpAddr) -> Peer {
        let client = clients::connect(io, host).await.expect("it serves");
        Peer { io: io.clone(), connection: client.any_connection().await.expect("it serves"), client }
    }

    async fn ask(&self, change: Change, name: &str, timeout_ms: i32) -> Told {
        let (_, count) = change.counts();
        match change {
            Change::Create => self.create(name, count, timeout_ms).await,
            Change::Grow => {
                let topics = vec![CreatePartitionsTopic { name, count, assignments: None }];
                let request = CreatePartitionsRequest { topics, timeout_ms, validate_only: false };
                let encode = |writer: &mut Writer, version| request.encode(writer, version);
                let call = self.connection.call(ApiKey::CreatePartitions, 3, WAIT, encode).await;
                let body = call.expect("an answer");
                let answer = CreatePartitionsResponse::decode(&mut Reader::new(&body), 3).expect("an answer");
                (answer.results[0].error_code, answer.results[0].error_message.map(str::to_owned))
            }
            Change::Delete => {
                let topics = vec![DeleteTopicState { name: Some(name), ..DeleteTopicState::default() }];
                let request = DeleteTopicsRequest { topics, timeout_ms, ..DeleteTopicsRequest::default() };
                let encode = |writer: &mut Writer, version| request.encode(writer, version);
                let call = self.connection.call(ApiKey::DeleteTopics, 6, WAIT, encode).await;
                let body = call.expect("an answer");
                let answer = DeleteTopicsResponse::decode(&mut Reader::new(&body), 6).expect("an answer");
                (answer.responses[0].error_code, answer.responses[0].error_message.map(str::to_owned))
            }
        }
    }

    async fn create(&self, name: &str, num_partitions: i32, timeout_ms: i32) -> Told {
        let topic =
            CreatableTopic { name, num_partitions, replication_factor: 1, ..CreatableTopic::default() };
        let request =
            CreateTopicsRequest { topics: vec![topic], timeout_ms, ..CreateTopicsRequest::default() };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let call = self.connection.call(ApiKey::CreateTopics, 7, WAIT, encode).await;
        let body = call.expect("an answer");
        let answer = CreateTopicsResponse::decode(&mut Reader::new(&body), 7).expect("an answer");
        (answer.topics[0].error_code, answer.topics[0].error_message.map(str::to_owned))
    }

    /// Brings the topic to where the change begins.
    async fn prepare(&self, change: Change, name: &str) {
        let (before, _) = change.counts();
        if before > 0 {
            assert_eq!(self.create(name, before, 10_000).await.0, 0);
        }
    }

    /// Partitions of the topic; 0: there is none.
    async fn count(&self, name: &str) -> i32 {
        let image = self.client.metadata(Some(&[name])).await.expect("it serves");
        image.topics.get(name).map_or(0, |topic| topic.partitions.len() as i32)
    }
}

#[test]
fn without_time_nothing_is_begun() {
    let scene = Scene::new(11, 2);
    let (io, host) = (scene.io.clone(), scene.broker.address());
    scene.run(async move {
        let peer = Peer::connect(&io, host).await;
        for change in Change::ALL {
            let name = format!("{change:?}");
            peer.prepare(change, &name).await;
            for timeout_ms in [0, -1, i32::MIN] {
                let (error, text) = peer.ask(change, &name, timeout_ms).await;
                let expected = format!("The request gives {timeout_ms} ms, so nothing was done.");
                assert_eq!((error, text), (TIMED_OUT, Some(expected)), "{change:?}");
            }
            peer.io.sleep(Duration::from_secs(2)).await;
            assert_eq!(peer.count(&name).await, change.counts().0, "{change:?}");
        }
    });
    scene.stop();
}

#[test]
fn what_takes_longer_than_its_time_is_told_so_and_done_all_the_same() {
    for core_count in 1..=3 {
        let scene = Scene::new(20 + u64::from(core_count), core_count);
        let (io, host) = (scene.io.clone(), scene.broker.address());
        let outcomes = scene.run(async move {
            let peer = Peer::connect(&io, host).await;
            let mut outcomes = BTreeSet::new();
            for change in Change::ALL {
                for timeout_ms in (1..=10).chain([1_000]) {
                    let name = format!("{change:?}-{timeout_ms}");
                    peer.prepare(change, &name).await;
                    let begin = peer.io.monotonic_now();
                    let (error, text) = peer.ask(change, &name, timeout_ms).await;
                    let took = peer.io.monotonic_now().saturating_since(begin);
                    outcomes.insert((format!("{change:?}"), error));
                    if error == TIMED_OUT {
                        let text = text.expect("it says why");
                        let expected = format!("It is not done after {timeout_ms} ms and goes on");
                        assert!(text.starts_with(&expected), "{text}");
                        assert!(took >= Duration::from_millis(timeout_ms as u64), "{name}: {took:?}");
                        peer.io.sleep(Duration::from_secs(1)).await;
                    }
                    assert!([0, TIMED_OUT].contains(&error), "{name}: {error}");
                    assert_eq!(peer.count(&name).await, change.counts().1, "{name}, error {error}");
                }
            }
            outcomes
        });
        for change in Change::ALL {
            for error in [0, TIMED_OUT] {
                let outcome = (format!("{change:?}"), error);
                assert!(outcomes.contains(&outcome), "never {outcome:?} on {core_count} cores: {outcomes:?}");
            }
        }
        scene.stop();
    }
}
