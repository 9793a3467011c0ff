//! What DescribeLogDirs of a whole node on the simulation tells, over one core and several: sizes grow by what is produced, shrink with
//! the segments that DeleteRecords and retention let go, and are the same after a power cut with another number of cores.

mod support;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ringlog_bench::client::admin::NewTopic;
use ringlog_bench::client::{Client, ClientError};
use ringlog_io::Io;
use ringlog_io::sim::UnsyncedData;
use ringlog_protocol::api::ApiKey;
use ringlog_protocol::messages::describe_log_dirs::{
    DescribableLogDirTopic, DescribeLogDirsRequest, DescribeLogDirsResponse,
};
use ringlog_protocol::messages::produce::{
    PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData,
};
use ringlog_protocol::records::builder::{BatchBuilder, BatchOptions, NewRecord};
use ringlog_protocol::wire::{Reader, Writer};

use support::clients;
use support::clients::TOPIC;
use support::group_scene::{GROUPS, PARTITION_COUNT, Scene};

const WAIT: Duration = Duration::from_secs(120);
const OFFSETS: &str = "__consumer_offsets";
const CUT: &str = "cut";
const SHORT: &str = "short";
/// More partitions than a core sums up at a time.
const MANY: i32 = 600;
/// Two do not fit a segment of 1 MiB.
const LARGE: usize = 600_000;

/// By topic and partition.
type Sizes = BTreeMap<(String, i32), i64>;

/// What there is of one directory.
#[derive(Debug)]
struct Told {
    path: String,
    sizes: Sizes,
    total_bytes: i64,
    usable_bytes: i64,
}

#[derive(Clone)]
struct Peer {
    io: Io,
    client: Rc<Client>,
}

impl Peer {
    async fn connect(io: Io, host: std::net::IpAddr) -> Peer {
        let client = clients::connect(&io, host).await.expect("it serves");
        Peer { io, client: Rc::new(client) }
    }

    async fn call(
        &self,
        api: ApiKey,
        version: i16,
        encode: impl FnOnce(&mut Writer, i16) -> Result<(), ringlog_protocol::wire::EncodeError>,
    ) -> bytes::Bytes {
        let connection = self.client.any_connection().await.expect("it serves");
        connection.call(api, version, WAIT, encode).await.expect("an answer")
    }

    async fn told(&self, topics: Option<&[(&str, &[i32])]>, version: i16) -> Told {
        let topics = topics.map(|topics| {
            let topics = topics.iter().map(|(topic, partitions)| DescribableLogDirTopic {
                topic,
                partitions: partitions.to_vec().into(),
            });
            topics.collect()
        });
        let request = DescribeLogDirsRequest { topics };
        let body = self.call(ApiKey::DescribeLogDirs, version, |writer, at| request.encode(writer, at)).await;
        let response = DescribeLogDirsResponse::decode(&mut Reader::new(&body), version).expect("an answer");
        assert_eq!((response.error_code, response.results.len()), (0, 1));
        let directory = &response.results[0];
        assert_eq!((directory.error_code, directory.is_cordoned), (0, false));
        let mut sizes = Sizes::new();
        for topic in &directory.topics {
            assert!(!topic.partitions.is_empty(), "{}", topic.name);
            for partition in &topic.partitions {
                assert_eq!((partition.offset_lag, partition.is_future_key), (0, false));
                let place = (topic.name.to_owned(), partition.partition_index);
                assert_eq!(sizes.insert(place, partition.partition_size), None, "each stands once");
            }
        }
        let (total_bytes, usable_bytes) = (directory.total_bytes, directory.usable_bytes);
        Told { path: directory.log_dir.to_owned(), sizes, total_bytes, usable_bytes }
    }

    /// Acknowledged; answers the bytes of the batch.
    async fn produce(&self, topic: &str, partition: i32, value_bytes: usize) -> i64 {
        let mut builder = BatchBuilder::new();
        let value = vec![b'v'; value_bytes];
        let record =
            NewRecord { timestamp: self.io.wall_now_ms(), value: Some(&value), ..NewRecord::default() };
        builder.append(&record).expect("it fits");
        let batch = builder.finish(&BatchOptions::default()).expect("it has a record");
        let data = PartitionProduceData { index: partition, records: Some(&batch) };
        let topic = TopicProduceData { name: topic, partition_data: vec![data], ..Default::default() };
        let request =
            ProduceRequest { acks: -1, timeout_ms: 30_000, topic_data: vec![topic], transactional_id: None };
        let body = self.call(ApiKey::Produce, 8, |writer, at| request.encode(writer, at)).await;
        let response = ProduceResponse::decode(&mut Reader::new(&body), 8).expect("an answer");
        assert_eq!(response.responses[0].partition_responses[0].error_code, 0);
        batch.len() as i64
    }

    async fn create(&self, name: &str, configs: &[(&str, &str)]) -> Result<(), ClientError> {
        let topic = NewTopic { name, partitions: 2, replication_factor: 1, configs: configs.to_vec() };
        self.client.create_topic(&topic).await
    }
}

fn with<T: 'static, F: Future<Output = T>>(scene: &Scene, work: impl FnOnce(Peer) -> F + 'static) -> T {
    let (io, host) = (scene.io.clone(), scene.broker.address());
    scene.run(async move { work(Peer::connect(io, host).await).await })
}

fn everything(scene: &Scene) -> Sizes {
    with(scene, async |peer| peer.told(None, 5).await.sizes)
}

fn place(topic: &str, partition: i32) -> (String, i32) {
    (topic.to_owned(), partition)
}

#[test]
fn sizes_grow_by_what_is_produced_and_stay_over_a_power_cut_with_other_cores() {
    for core_count in 1..=3 {
        let mut scene = Scene::new(u64::from(core_count), core_count);
        let none: Sizes = (0..PARTITION_COUNT).map(|partition| (place(TOPIC, partition), 0)).collect();
        assert_eq!(everything(&scene), none, "{core_count} cores: the metadata log is not among them");
        // A group's first commit makes the topic of all groups.
        let (io, host) = (scene.io.clone(), scene.broker.address());
        scene.run(async move {
            let client = clients::connect(&io, host).await.expect("it serves");
            let offsets = BTreeMap::from([((TOPIC.to_owned(), 0), 1)]);
            client.commit_group_offsets(GROUPS[0], &offsets).await.expect("it may");
        });
        let produced: Sizes = with(&scene, async |peer| {
            let mut produced = Sizes::new();
            for partition in 0..PARTITION_COUNT - 1 {
                let mut bytes = 0;
                for batch in 0..=partition {
                    bytes += peer.produce(TOPIC, partition, 100 * batch as usize).await;
                    // With the answer it is in the journal, and may be in no segment yet.
                    let told = peer.told(Some(&[(TOPIC, &[partition])]), 1 + batch as i16 % 5).await;
                    assert_eq!(told.sizes, Sizes::from([(place(TOPIC, partition), bytes)]));
                }
                produced.insert(place(TOPIC, partition), bytes);
            }
            produced.insert(place(TOPIC, PARTITION_COUNT - 1), 0);
            produced
        });
        let before = everything(&scene);
        let (groups, others): (Sizes, Sizes) =
            before.clone().into_iter().partition(|((topic, _), _)| topic == OFFSETS);
        assert_eq!(others, produced, "{core_count} cores");
        assert_eq!(groups.values().filter(|bytes| **bytes > 0).count(), 1, "one group, one partition");

        scene.shape.core_count = 4 - core_count;
        let scene = scene.cut_power(UnsyncedData::Lost);
        let after = everything(&scene);
        let kept = |sizes: &Sizes| -> Sizes {
            sizes.clone().into_iter().filter(|((topic, _), _)| topic == TOPIC).collect()
        };
        assert_eq!(kept(&after), produced, "{core_count} cores became {}", scene.shape.core_count);
        assert!(before.keys().eq(after.keys()));
        scene.stop();
    }
}

#[test]
fn sizes_shrink_by_the_segments_that_go() {
    for core_count in 1..=2 {
        let scene = Scene::new(10 + u64::from(core_count), core_count);
        let batch = with(&scene, async |peer| {
            peer.create(CUT, &[("segment.bytes", "1048576")]).await.expect("a topic");
            peer.create(SHORT, &[("segment.bytes", "1048576"), ("retention.bytes", "1048576")])
                .await
                .expect("a topic");
            let mut batch = 0;
            for topic in [CUT, SHORT] {
                for _ in 0..4 {
                    batch = peer.produce(topic, 0, LARGE).await;
                }
            }
            batch
        });
        // The walk of retention comes five times a second. It keeps what is beyond 1 MiB until a whole segment is too much.
        scene.pass(Duration::from_secs(2));
        let sizes = everything(&scene);
        assert_eq!((sizes[&place(CUT, 0)], sizes[&place(CUT, 1)]), (4 * batch, 0), "{core_count} cores");
        assert_eq!(sizes[&place(SHORT, 0)], 2 * batch);
        for (before, left) in [(1, 3), (3, 1)] {
            let sizes = with(&scene, async move |peer| {
                let low = peer.client.delete_records(CUT, &BTreeMap::from([(0, before)])).await;
                assert_eq!(low.expect("it may"), BTreeMap::from([(0, before)]));
                peer.told(Some(&[(CUT, &[0])]), 5).await.sizes
            });
            assert_eq!(sizes, Sizes::from([(place(CUT, 0), left * batch)]), "below {before}");
        }
        with(&scene, async |peer| peer.client.delete_topic(CUT).await.expect("it may"));
        assert!(everything(&scene).keys().all(|(topic, _)| topic != CUT));
        scene.stop();
    }
}

#[test]
fn many_partitions_are_told_at_once_and_unknown_ones_are_left_out() {
    for core_count in 1..=2 {
        let scene = Scene::new(20 + u64::from(core_count), core_count);
        scene.create("many", MANY);
        let sizes = everything(&scene);
        assert_eq!(sizes.len() as i32, MANY + PARTITION_COUNT);
        with(&scene, async |peer| {
            let all: Vec<i32> = (0..MANY).collect();
            let told = peer.told(Some(&[("many", &all)]), 4).await;
            assert_eq!(told.sizes.len() as i32, MANY);
            assert_eq!(told.path, "/var/lib/ringlog");
            assert!(0 < told.usable_bytes && told.usable_bytes <= told.total_bytes, "{told:?}");
            let before_them = peer.told(Some(&[]), 3).await;
            assert_eq!((before_them.total_bytes, before_them.usable_bytes), (-1, -1));
            assert!(before_them.sizes.is_empty());
            let odd: [(&str, &[i32]); 6] = [
                ("nobody", &[0]),
                ("many", &[MANY, -1, i32::MAX, i32::MIN, 7, 7]),
                ("", &[0]),
                ("a b", &[0]),
                ("many", &[3]),
                ("__cluster_metadata", &[0]),
            ];
            let told = peer.told(Some(&odd), 5).await;
            assert_eq!(told.sizes, Sizes::from([(place("many", 3), 0), (place("many", 7), 0)]));
        });
        scene.stop();
    }
}
