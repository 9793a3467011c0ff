//! DescribeTopicPartitions of a whole node: its pages together are all partitions as Metadata tells them, also while topics come and go.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use ringlog_bench::client::Client;
use ringlog_bench::client::connection::Connection;
use ringlog_io::Io;
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::messages::describe_topic_partitions::{
    Cursor, DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse, TopicRequest,
};
use ringlog_protocol::wire::{Reader, Writer};

use crate::support::clients;
use crate::support::clients::TOPIC;
use crate::support::group_scene::{PARTITION_COUNT, Scene};

const WAIT: Duration = Duration::from_secs(120);
const OTHER: &str = "others";
const OTHER_PARTITIONS: i32 = 5;

/// Where a page begins: topic and partition.
type Place = Option<(String, i32)>;

/// Of each topic in a page its error, and leader and epoch of each partition in it.
type Told = BTreeMap<String, (i16, BTreeMap<i32, (i32, i32)>)>;

/// A client's end.
struct Peer {
    client: Client,
    connection: Rc<Connection>,
}

impl Peer {
    async fn connect(io: &Io, host: IpAddr) -> Peer {
        let client = clients::connect(io, host).await.expect("it serves");
        Peer { connection: client.any_connection().await.expect("it serves"), client }
    }

    async fn page(&self, topics: &[&str], limit: i32, from: &Place) -> (Told, Place) {
        let request = DescribeTopicPartitionsRequest {
            topics: topics.iter().map(|name| TopicRequest { name }).collect(),
            response_partition_limit: limit,
            cursor: from.as_ref().map(|(topic_name, index)| Cursor { topic_name, partition_index: *index }),
        };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let call = self.connection.call(ApiKey::DescribeTopicPartitions, 0, WAIT, encode);
        let body = call.await.expect("an answer");
        let response =
            DescribeTopicPartitionsResponse::decode(&mut Reader::new(&body), 0).expect("an answer");
        let told = response.topics.iter().map(|topic| {
            let partitions = topic
                .partitions
                .iter()
                .map(|partition| (partition.partition_index, (partition.leader_id, partition.leader_epoch)));
            (topic.name.unwrap_or_default().to_owned(), (topic.error_code, partitions.collect()))
        });
        let next = response.next_cursor.map(|next| (next.topic_name.to_owned(), next.partition_index));
        (told.collect(), next)
    }

    /// All pages of so many partitions, put together.
    async fn all(&self, topics: &[&str], limit: i32) -> Told {
        let (mut all, mut from) = (Told::new(), None);
        loop {
            let (page, next) = self.page(topics, limit, &from).await;
            for (name, (error, partitions)) in page {
                let of_topic = all.entry(name).or_insert((error, BTreeMap::new()));
                for (index, state) in partitions {
                    assert_eq!(of_topic.1.insert(index, state), None, "{index} came twice");
                }
            }
            if next.is_none() {
                return all;
            }
            from = next;
        }
    }

    /// The same by Metadata.
    async fn metadata(&self, names: &[&str]) -> Told {
        let image = self.client.metadata(Some(names)).await.expect("it serves");
        let topics = image.topics.iter().map(|(name, topic)| {
            let partitions = topic.partitions.iter();
            let state =
                partitions.map(|(index, partition)| (*index, (partition.leader, partition.leader_epoch)));
            (name.to_string(), (0, state.collect()))
        });
        topics.collect()
    }
}

#[test]
fn pages_of_any_size_are_what_metadata_tells() {
    for core_count in 1..=3 {
        let scene = Scene::new(u64::from(core_count), core_count);
        scene.create(OTHER, OTHER_PARTITIONS);
        let (io, host) = (scene.io.clone(), scene.broker.address());
        scene.run(async move {
            let peer = Peer::connect(&io, host).await;
            let expected = peer.metadata(&[TOPIC, OTHER]).await;
            let counts: Vec<_> = expected.values().map(|(_, partitions)| partitions.len() as i32).collect();
            assert_eq!(counts, [PARTITION_COUNT, OTHER_PARTITIONS]);
            for limit in [-1, 1, 3, PARTITION_COUNT, PARTITION_COUNT + 1, 2000, i32::MAX] {
                assert_eq!(peer.all(&[], limit).await, expected, "{limit}");
                let named = peer.all(&[OTHER, "nobody", TOPIC], limit).await;
                assert_eq!(named.get("nobody"), Some(&(3, BTreeMap::new())));
                assert!(
                    expected.iter().all(|(name, told)| named.get(name) == Some(told)),
                    "{limit}: {named:?}"
                );
            }
        });
        scene.stop();
    }
}

#[test]
fn a_walk_goes_on_when_the_topic_it_stands_in_is_deleted_or_grows() {
    let scene = Scene::new(4, 2);
    scene.create(OTHER, OTHER_PARTITIONS);
    let (io, host) = (scene.io.clone(), scene.broker.address());
    scene.run(async move {
        let peer = Peer::connect(&io, host).await;
        let (_, from) = peer.page(&[], 3, &None).await;
        assert_eq!(from, Some((TOPIC.to_owned(), 3)));
        peer.client.create_partitions(TOPIC, PARTITION_COUNT + 2, false).await.expect("it may");
        let (page, from) = peer.page(&[], PARTITION_COUNT, &from).await;
        let indexes: Vec<i32> = page[TOPIC].1.keys().copied().collect();
        assert!(indexes.into_iter().eq(3..PARTITION_COUNT + 2), "those that came are in: {page:?}");
        assert_eq!(from, Some((OTHER.to_owned(), 1)));
        peer.client.delete_topic(OTHER).await.expect("it may");
        assert_eq!(peer.page(&[], 3, &from).await, (Told::new(), None), "there is nothing behind it");
        let told = peer.page(&[OTHER], 3, &from).await;
        assert_eq!(told, (Told::from([(OTHER.to_owned(), (3, BTreeMap::new()))]), None));
        let before = Some((OTHER[..1].to_owned(), 7));
        assert_eq!(peer.page(&[], 3, &before).await.1, Some((TOPIC.to_owned(), 3)), "before the first");
    });
    scene.stop();
}
