//! Rules of the controller, one test each, and random requests: replaying the log gives the live state, and the image keeps its invariants.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use ringlog_flat::metadata::{
    ClusterRecord, FeatureLevelRecord, GroupConfigsRecord, NodeConfigsRecord, NodeRecord, ProducerIdsRecord,
    Record, RemoveTopicRecord, TopicConfigsRecord, TopicPartitionsRecord, TopicRecord,
};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::{NodeId, Offset, PartitionIndex, ProducerId, TopicId};
use ringlog_shard::limits::{PARTITIONS_MAX, PARTITIONS_PER_TOPIC_MAX};
use ringlog_shard::state_machine::StateMachine;

use super::machine::ReplayError;
use super::request::*;
use super::*;
use crate::config::dynamic::RuntimeSettings;
use crate::config::typed::{CleanerConfig, TopicDefaults};
use crate::topic_config::TopicConfig;

mod alter_configs;
mod create_partitions;
mod features;
mod group_configs;

const ME: i32 = 1;
const CLEANER: CleanerConfig =
    CleanerConfig { is_enabled: true, map_bytes: 1 << 27, bytes_per_second: 0, backoff_ms: 15_000 };

/// The machine with its log, as the runner would drive it.
#[derive(Clone)]
struct Cluster {
    machine: MetadataMachine,
    log: Vec<Vec<u8>>,
    random: u8,
}

fn settings(defaults: TopicDefaults) -> ControllerSettings {
    ControllerSettings {
        node_id: NodeId(ME),
        base: RuntimeSettings { topics: defaults, cleaner: CLEANER, connections_per_address_max: 100 },
        request_bytes_max: 100_000_000,
        settings: Vec::new(),
        features: super::features::BUILT,
    }
}

fn new_topic(name: &str) -> NewTopic {
    NewTopic {
        name: name.to_owned(),
        partition_count: 3,
        replication_factor: 1,
        assignments: Vec::new(),
        configs: Vec::new(),
        random: [0; 16],
    }
}

fn more(name: &str, partition_count: i32) -> MorePartitions {
    MorePartitions { name: name.to_owned(), partition_count, assignments: None }
}

fn by_name(name: &str) -> TopicReference {
    TopicReference { name: Some(name.to_owned()), id: TopicId::ZERO }
}

fn by_id(id: TopicId) -> TopicReference {
    TopicReference { name: None, id }
}

impl Cluster {
    fn new() -> Cluster {
        Cluster::with(crate::topic_config::tests::defaults())
    }

    /// Of a cluster that runs this level of the format.
    fn at_level(metadata_version: i16) -> Cluster {
        let mut cluster = Cluster::new();
        let id = "5L6g3nShT-eMCtK--X86sw".to_owned();
        let record = Record::Cluster(ClusterRecord { id, metadata_version }).encode();
        cluster.machine.replay(Offset(0), &record).expect("a level that this build runs");
        cluster.log.push(record);
        cluster
    }

    fn with(defaults: TopicDefaults) -> Cluster {
        Cluster { machine: MetadataMachine::new(settings(defaults)), log: Vec::new(), random: 0 }
    }

    fn ask(&mut self, request: ControllerRequest) -> ControllerReply {
        let before = self.machine.image();
        let outcome = self.machine.propose(request, 0);
        assert_eq!(self.machine.image(), before, "only a replay changes the machine");
        for record in outcome.records {
            let offset = Offset(self.log.len() as i64);
            self.machine.replay(offset, &record).expect("its own record");
            self.log.push(record);
        }
        self.machine.image().validate();
        outcome.reply
    }

    fn creates(&mut self, mut topics: Vec<NewTopic>) -> Vec<CreatedTopic> {
        for topic in &mut topics {
            self.random = self.random.wrapping_add(1);
            topic.random = [self.random; 16];
        }
        match self.ask(ControllerRequest::CreateTopics(CreateTopics { topics, validate_only: false })) {
            ControllerReply::TopicsCreated(results) => results,
            other => panic!("{other:?}"),
        }
    }

    /// Error number and text of the one topic.
    fn create(&mut self, topic: NewTopic) -> (i16, String) {
        let result = self.creates(vec![topic]).remove(0);
        (result.error.code(), result.message.unwrap_or_default())
    }

    fn grows(&mut self, topics: Vec<MorePartitions>, validate_only: bool) -> Vec<GrownTopic> {
        match self.ask(ControllerRequest::CreatePartitions(CreatePartitions { topics, validate_only })) {
            ControllerReply::PartitionsCreated(results) => results,
            other => panic!("{other:?}"),
        }
    }

    /// Error number and text of the one topic.
    fn grow(&mut self, topic: MorePartitions) -> (i16, String) {
        match self.grows(vec![topic], false).remove(0).result {
            Ok(()) => (0, String::new()),
            Err(Refusal { error, message }) => (error.code(), message),
        }
    }

    fn delete(&mut self, topics: Vec<TopicReference>) -> Vec<DeletedTopic> {
        match self.ask(ControllerRequest::DeleteTopics(DeleteTopics { topics })) {
            ControllerReply::TopicsDeleted(results) => results,
            other => panic!("{other:?}"),
        }
    }

    /// From a snapshot taken before that record of the log, and the records from there on.
    fn restored_from(&self, place: usize) -> MetadataMachine {
        let (before, behind) = self.log.split_at(place);
        let fresh = || MetadataMachine::new(self.machine.settings.clone());
        let mut live = fresh();
        for (offset, record) in (0..).zip(before) {
            live.replay(Offset(offset), record).expect("the log of a live machine");
        }
        let (offset, mut machine) = (Offset(place as i64), fresh());
        machine.restore(offset, &live.snapshot()).expect("its own snapshot");
        if place > 0 {
            assert_eq!(machine.image, live.image, "it stands at the snapshot's offset");
        }
        for (offset, record) in (offset.0..).zip(behind) {
            machine.replay(Offset(offset), record).expect("the log of a live machine");
        }
        machine
    }

    /// A snapshot of any time and what came behind it make the live machine.
    fn check_snapshots(&self) {
        for place in [self.log.len() / 3, self.log.len() / 2, self.log.len()] {
            let restored = self.restored_from(place);
            assert_eq!(restored.image, self.machine.image, "from {place} of {}", self.log.len());
            assert_eq!(restored.alike, self.machine.alike);
            assert_eq!(restored.snapshot(), self.machine.snapshot());
        }
    }

    fn replayed(&self) -> MetadataMachine {
        let mut machine = MetadataMachine::new(self.machine.settings.clone());
        for (offset, record) in (0..).zip(&self.log) {
            machine.replay(Offset(offset), record).expect("the log of a live machine");
        }
        machine
    }
}

#[test]
fn a_created_topic_is_in_the_image_under_name_and_id_with_its_configs() {
    let mut cluster = Cluster::new();
    let configs = vec![("max.message.bytes".to_owned(), Some("99".to_owned()))];
    let created = cluster.creates(vec![NewTopic { configs, ..new_topic("orders") }]).remove(0);
    assert_eq!((created.error, created.partition_count, created.replication_factor), (ErrorCode::None, 3, 1));
    assert_eq!(created.configs.len(), 36, "every config in force is reported");
    let image = cluster.machine.image();
    let topic = image.topic("orders").expect("created");
    assert_eq!(topic.id, created.id);
    assert!(Arc::ptr_eq(topic, image.topic_by_id(created.id).expect("created")));
    assert_eq!(topic.config.message_bytes_max, 99);
    assert_eq!(image.partition_count(), 3);
    assert_eq!(image.next_offset(), Offset(1));
    assert_eq!(topic.partitions().count(), 3);
    assert!(topic.has_partition(PartitionIndex(2)) && !topic.has_partition(PartitionIndex(3)));
    assert!(!topic.has_partition(PartitionIndex(-1)));
}

#[test]
fn an_image_that_was_taken_never_changes() {
    let mut cluster = Cluster::new();
    cluster.create(new_topic("first"));
    let taken = cluster.machine.image();
    cluster.create(new_topic("second"));
    cluster.delete(vec![by_name("first")]);
    assert!(taken.topic("first").is_some() && taken.topic("second").is_none());
}

#[test]
fn an_existing_name_is_36_and_an_illegal_one_17() {
    let mut cluster = Cluster::new();
    cluster.create(new_topic("orders"));
    assert_eq!(cluster.create(new_topic("orders")), (36, "Topic 'orders' already exists.".to_owned()));
    let (code, text) = cluster.create(new_topic("a b"));
    assert_eq!(code, 17, "{text}");
    assert!(text.starts_with("The topic name '"), "{text}");
}

#[test]
fn names_that_differ_in_dots_and_underscores_collide_also_within_one_request() {
    let mut cluster = Cluster::new();
    cluster.create(new_topic("a.b"));
    let (code, text) = cluster.create(new_topic("a_b"));
    assert!(code == 17 && text.contains("'a_b' is too like 'a.b'"), "{code} {text}");
    let codes: Vec<i16> = cluster
        .creates(vec![new_topic("x_y"), new_topic("x.y"), new_topic("x-y")])
        .iter()
        .map(|result| result.error.code())
        .collect();
    assert_eq!(codes, [0, 17, 0]);
    cluster.delete(vec![by_name("a.b")]);
    assert_eq!(cluster.create(new_topic("a_b")).0, 0, "the name is free again");
}

#[test]
fn minus_one_takes_the_brokers_defaults() {
    let defaults = TopicDefaults { partition_count: 7, ..crate::topic_config::tests::defaults() };
    let mut cluster = Cluster::with(defaults);
    let topic = NewTopic { partition_count: -1, replication_factor: -1, ..new_topic("orders") };
    assert_eq!(cluster.creates(vec![topic])[0].partition_count, 7);
}

#[test]
fn impossible_numbers_are_37_and_38_with_a_text() {
    let mut cluster = Cluster::new();
    let mut code = |partition_count, replication_factor| {
        let (code, text) =
            cluster.create(NewTopic { partition_count, replication_factor, ..new_topic("orders") });
        assert!(!text.is_empty());
        code
    };
    assert_eq!(code(0, 1), 37);
    assert_eq!(code(-2, 1), 37);
    assert_eq!(code(3, 0), 38);
    assert_eq!(code(3, -2), 38);
    assert_eq!(code(3, 3), 38);
    assert_eq!(code(0, 0), 38, "Kafka looks at the replicas first");
    assert_eq!(code(PARTITIONS_PER_TOPIC_MAX + 1, 1), 37);
    assert_eq!(code(i32::MAX, 1), 37);
}

#[test]
fn the_cluster_takes_a_bounded_number_of_partitions() {
    let mut cluster = Cluster::new();
    let full = PARTITIONS_MAX / u64::from(PARTITIONS_PER_TOPIC_MAX.unsigned_abs());
    let large = |name: String| NewTopic { partition_count: PARTITIONS_PER_TOPIC_MAX, ..new_topic(&name) };
    let results = cluster.creates((0..=full).map(|number| large(format!("t{number}"))).collect());
    let refused = results.last().expect("one more than fits");
    assert_eq!(refused.error.code(), 37, "those before it in the same request count");
    assert!(refused.message.as_deref().unwrap_or_default().contains("delete topics"), "{refused:?}");
    assert_eq!(cluster.machine.image().partition_count(), PARTITIONS_MAX);
    assert_eq!(cluster.create(new_topic("one-more")).0, 37);
}

#[test]
fn manual_assignments_name_this_node_and_consecutive_partitions() {
    let mut cluster = Cluster::new();
    let assigned = |assignments: &[(i32, &[i32])]| NewTopic {
        partition_count: -1,
        replication_factor: -1,
        assignments: assignments.iter().map(|(partition, nodes)| (*partition, nodes.to_vec())).collect(),
        ..new_topic("orders")
    };
    for (assignments, code) in [
        (vec![(0, &[ME][..]), (0, &[ME])], 39),
        (vec![(0, &[ME]), (2, &[ME])], 39),
        (vec![(1, &[ME])], 39),
        (vec![(-1, &[ME])], 39),
        (vec![(0, &[])], 39),
        (vec![(0, &[9])], 39),
        (vec![(0, &[ME, 9])], 39),
        (vec![(0, &[ME, ME])], 39),
    ] {
        let (found, text) = cluster.create(assigned(&assignments));
        assert_eq!(found, code, "{assignments:?}: {text}");
    }
    let with_numbers = NewTopic { partition_count: 1, ..assigned(&[(0, &[ME])]) };
    assert_eq!(cluster.create(with_numbers).0, 42);
    let with_replicas = NewTopic { replication_factor: 1, ..assigned(&[(0, &[ME])]) };
    assert_eq!(cluster.create(with_replicas).0, 42);
    let created = cluster.creates(vec![assigned(&[(1, &[ME]), (0, &[ME])])]).remove(0);
    assert_eq!((created.error, created.partition_count, created.replication_factor), (ErrorCode::None, 2, 1));
}

#[test]
fn a_topic_may_allow_batches_of_any_size_as_with_kafka() {
    let mut cluster = Cluster::new();
    let config = |bytes: &str| vec![("max.message.bytes".to_owned(), Some(bytes.to_owned()))];
    for bytes in ["0", "10485760", "2147483647"] {
        assert_eq!(cluster.create(NewTopic { configs: config(bytes), ..new_topic(bytes) }).0, 0);
    }
    let (code, text) = cluster.create(NewTopic { configs: config("2147483648"), ..new_topic("large") });
    assert_eq!(code, ErrorCode::InvalidConfig.code(), "{text}");
}

#[test]
fn a_bad_config_is_40_and_its_text_comes_through() {
    let mut cluster = Cluster::new();
    let mut with = |key: &str, value: Option<&str>| {
        let configs = vec![(key.to_owned(), value.map(str::to_owned))];
        cluster.create(NewTopic { configs, ..new_topic("orders") })
    };
    let unknown = "unknown topic config 'retention.mss'; did you mean 'retention.ms'?".to_owned();
    assert_eq!(with("retention.mss", Some("1")), (40, unknown));
    assert_eq!(with("segment.bytes", Some("x")).0, 40);
    assert_eq!(with("segment.bytes", None).0, 40);
    assert_eq!(with("cleanup.policy", Some("compress")).0, 40);
    assert_eq!(with("ringlog.durability", Some("relaxed")).0, 40);
    assert_eq!(with("cleanup.policy", Some("delete")).0, 0);
}

#[test]
fn the_last_value_of_a_key_given_twice_holds() {
    let mut cluster = Cluster::new();
    let pair = |value: &str| ("max.message.bytes".to_owned(), Some(value.to_owned()));
    cluster.create(NewTopic { configs: vec![pair("1"), pair("2")], ..new_topic("orders") });
    let image = cluster.machine.image();
    assert_eq!(image.topic("orders").map(|topic| topic.config.message_bytes_max), Some(2));
}

#[test]
fn a_name_twice_in_one_request_is_42_once_and_creates_nothing() {
    let mut cluster = Cluster::new();
    let results = cluster.creates(vec![new_topic("a"), new_topic("b"), new_topic("a")]);
    let codes: Vec<_> = results.iter().map(|result| (result.name.as_str(), result.error.code())).collect();
    assert_eq!(codes, [("a", 42), ("b", 0)]);
    assert!(cluster.machine.image().topic("a").is_none());
}

#[test]
fn a_dry_run_answers_alike_and_changes_nothing() {
    let mut cluster = Cluster::new();
    let topics = vec![new_topic("a"), NewTopic { partition_count: 0, ..new_topic("b") }];
    let outcome = cluster
        .machine
        .propose(ControllerRequest::CreateTopics(CreateTopics { topics, validate_only: true }), 0);
    assert!(outcome.records.is_empty());
    let ControllerReply::TopicsCreated(results) = outcome.reply else { panic!("another reply") };
    let codes: Vec<i16> = results.iter().map(|result| result.error.code()).collect();
    assert_eq!(codes, [0, 37]);
    assert_eq!(results[0].partition_count, 3);
    assert_eq!(cluster.create(new_topic("a")).0, 0);
}

#[test]
fn the_metadata_topic_can_neither_be_created_nor_deleted() {
    let mut cluster = Cluster::new();
    assert_eq!(cluster.create(new_topic(METADATA_TOPIC_NAME)).0, 42);
    assert_eq!(cluster.delete(vec![by_name(METADATA_TOPIC_NAME)])[0].error.code(), 3);
    assert_eq!(cluster.delete(vec![by_id(METADATA_TOPIC_ID)])[0].error.code(), 100);
}

#[test]
fn a_request_larger_than_one_change_creates_what_fits_and_says_so() {
    let mut cluster = Cluster::new();
    let topics = (0..20_000).map(|number: u32| {
        let mut random = [7; 16];
        random[12..].copy_from_slice(&number.to_be_bytes());
        NewTopic { random, partition_count: 1, ..new_topic(&format!("{number:0>200}")) }
    });
    let request = CreateTopics { topics: topics.collect(), validate_only: false };
    let outcome = cluster.machine.propose(ControllerRequest::CreateTopics(request), 0);
    let bytes: usize = outcome.records.iter().map(Vec::len).sum();
    assert!(bytes <= ringlog_shard::limits::MACHINE_PROPOSAL_BYTES_MAX, "{bytes} bytes");
    let ControllerReply::TopicsCreated(results) = outcome.reply else { panic!("another reply") };
    assert_eq!(results.len(), 20_000);
    assert_eq!(
        results.iter().filter(|result| result.error == ErrorCode::None).count(),
        outcome.records.len()
    );
    assert_eq!(results.last().map(|result| result.error.code()), Some(42));
    assert_eq!(cluster.create(new_topic("small")).0, 0);
}

#[test]
fn topics_are_deleted_by_name_or_id_and_a_new_one_of_the_name_has_another_id() {
    let mut cluster = Cluster::new();
    let ids: Vec<TopicId> =
        cluster.creates(vec![new_topic("a"), new_topic("b")]).iter().map(|result| result.id).collect();
    let results = cluster.delete(vec![by_name("a"), by_id(ids[1])]);
    let told: Vec<_> =
        results.iter().map(|result| (result.name.as_deref(), result.id, result.error.code())).collect();
    assert_eq!(told, [(Some("a"), ids[0], 0), (Some("b"), ids[1], 0)], "name and id are both told");
    assert_eq!(cluster.machine.image().topics().len(), 0);
    assert_ne!(cluster.creates(vec![new_topic("a")])[0].id, ids[0]);
    assert_eq!(cluster.machine.image().lookup_id(ids[0]), Err(ErrorCode::UnknownTopicId));
}

#[test]
fn bad_references_get_kafkas_errors() {
    let mut cluster = Cluster::new();
    let id = cluster.creates(vec![new_topic("a")])[0].id;
    let mut codes = |topics: Vec<TopicReference>| -> Vec<i16> {
        cluster.delete(topics).iter().map(|result| result.error.code()).collect()
    };
    assert_eq!(codes(vec![by_name("nope"), by_id(TopicId([9; 16]))]), [3, 100]);
    assert_eq!(codes(vec![TopicReference { name: None, id: TopicId::ZERO }]), [42]);
    assert_eq!(codes(vec![TopicReference { name: Some("a".to_owned()), id }]), [42]);
    assert_eq!(codes(vec![by_name("a"), by_name("a")]), [42], "twice: told once, not deleted");
    assert_eq!(codes(vec![by_name("a"), by_id(id)]), [0, 42], "by name and by id");
}

#[test]
fn deletion_can_be_switched_off() {
    let defaults = TopicDefaults { deletion_enabled: false, ..crate::topic_config::tests::defaults() };
    let mut cluster = Cluster::with(defaults);
    cluster.create(new_topic("a"));
    assert_eq!(cluster.delete(vec![by_name("a")])[0].error.code(), 73);
    assert!(cluster.machine.image().topic("a").is_some());
}

#[test]
fn lookups_answer_as_kafka_does() {
    let mut cluster = Cluster::new();
    cluster.create(new_topic("a"));
    let image = cluster.machine.image();
    assert!(image.lookup("a").is_ok());
    assert_eq!(image.lookup("b"), Err(ErrorCode::UnknownTopicOrPartition));
    assert_eq!(image.lookup("b?"), Err(ErrorCode::InvalidTopicException));
    assert_eq!(image.lookup_id(TopicId::ZERO), Err(ErrorCode::UnknownTopicId));
}

#[test]
fn producer_ids_come_in_blocks_that_never_overlap_whatever_is_lost() {
    let mut cluster = Cluster::new();
    let allocate = ControllerRequest::AllocateProducerIds { node: NodeId(ME) };
    let block = |reply| match reply {
        ControllerReply::ProducerIds(Ok(block)) => block,
        other => panic!("{other:?}"),
    };
    let first: ProducerIdBlock = block(cluster.ask(allocate.clone()));
    assert_eq!(first, ProducerIdBlock { first: ProducerId(0), count: 1000 });
    let mut restarted = Cluster { machine: cluster.replayed(), ..cluster };
    assert_eq!(
        block(restarted.ask(allocate.clone())).first,
        ProducerId(1000),
        "the first block is durable as given out"
    );
    let last =
        Record::ProducerIds(ringlog_flat::metadata::ProducerIdsRecord { node: ME, next: i64::MAX - 5 });
    restarted.machine.replay(Offset(9), &last.encode()).expect("ids may be skipped");
    assert_eq!(restarted.ask(allocate), ControllerReply::ProducerIds(Err(ErrorCode::UnknownServerError)));
}

#[test]
fn a_cluster_is_named_once_and_a_node_is_recorded_when_it_is_news() {
    let node = NodeRecord { id: ME, directory: [1; 16], host: "h".to_owned(), port: 9092, rack: None };
    let initialize = |cluster_id: &str, port| {
        let (cluster_id, node) = (cluster_id.to_owned(), NodeRecord { port, ..node.clone() });
        ControllerRequest::InitializeCluster(InitializeCluster { cluster_id, node })
    };
    let mut cluster = Cluster::new();
    let done = ControllerReply::ClusterInitialized(Ok(()));
    assert_eq!(cluster.ask(initialize("5L6g3nShT-eMCtK--X86sw", 9092)), done);
    assert_eq!(cluster.log.len(), 3);
    assert_eq!(cluster.ask(initialize("5L6g3nShT-eMCtK--X86sw", 9092)), done);
    assert_eq!(cluster.log.len(), 3, "nothing new");
    assert_eq!(cluster.ask(initialize("5L6g3nShT-eMCtK--X86sw", 9093)), done);
    assert_eq!(cluster.log.len(), 4, "the node moved");
    let image = cluster.machine.image();
    assert_eq!(image.cluster_id().map(|id| &**id), Some("5L6g3nShT-eMCtK--X86sw"));
    assert_eq!(image.nodes().map(|node| node.port).collect::<Vec<_>>(), [9093]);
    let ControllerReply::ClusterInitialized(Err(mismatch)) = cluster.ask(initialize("other", 9092)) else {
        panic!("another cluster's directory is accepted");
    };
    assert_eq!(mismatch.recorded, "5L6g3nShT-eMCtK--X86sw");
    assert_eq!(cluster.log.len(), 4);
}

#[test]
fn a_snapshot_holds_everything_once_in_the_order_of_a_log() {
    let node = NodeRecord { id: ME, directory: [1; 16], host: "h".to_owned(), port: 9092, rack: None };
    let cluster_id = "5L6g3nShT-eMCtK--X86sw".to_owned();
    let mut cluster = Cluster::new();
    cluster.ask(ControllerRequest::InitializeCluster(InitializeCluster {
        cluster_id: cluster_id.clone(),
        node: node.clone(),
    }));
    cluster.create(new_topic("b"));
    cluster.create(new_topic("gone"));
    cluster.create(new_topic("a"));
    cluster.delete(vec![by_name("gone")]);
    cluster.ask(ControllerRequest::AllocateProducerIds { node: NodeId(ME) });
    let set = |kind, name: &str, key: &str| AlteredResource {
        kind,
        name: name.to_owned(),
        change: ConfigChange::Each(vec![ConfigStep {
            key: key.to_owned(),
            operation: 0,
            value: Some("99".to_owned()),
        }]),
    };
    alter_one(&mut cluster, set(2, "a", "max.message.bytes"));
    alter_one(&mut cluster, set(4, "", "message.max.bytes"));
    alter_one(&mut cluster, set(4, "1", "message.max.bytes"));
    let image = cluster.machine.image();
    let topic = |name: &str, configs: &[(&str, &str)]| {
        let own = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        Record::Topic(TopicRecord {
            name: name.to_owned(),
            id: image.topic(name).expect("created").id.0,
            partitions: 3,
            replication_factor: 1,
            configs: configs.iter().map(own).collect(),
        })
    };
    let of_node = |node| {
        let configs = vec![("message.max.bytes".to_owned(), "99".to_owned())];
        Record::NodeConfigs(NodeConfigsRecord { node, configs })
    };
    let expected = [
        Record::Cluster(ClusterRecord { id: cluster_id, metadata_version: 4 }),
        Record::FeatureLevel(FeatureLevelRecord { name: "group.version".to_owned(), level: 1 }),
        Record::Node(node),
        of_node(None),
        of_node(Some(ME)),
        topic("a", &[("max.message.bytes", "99")]),
        topic("b", &[]),
        Record::ProducerIds(ProducerIdsRecord { node: -1, next: image.next_producer_id().0 }),
    ];
    let found: Vec<Record> =
        cluster.machine.snapshot().iter().map(|bytes| Record::decode(bytes).expect("a record")).collect();
    assert_eq!(found, expected);
    assert_eq!(cluster.restored_from(cluster.log.len()).image, image);
}

#[test]
fn records_that_contradict_the_state_are_refused() {
    let topic = TopicRecord {
        name: "a".to_owned(),
        id: [1; 16],
        partitions: 1,
        replication_factor: 1,
        configs: Vec::new(),
    };
    let mut cluster = Cluster::new();
    let mut replay = |record: Record| cluster.machine.replay(Offset(0), &record.encode());
    assert_eq!(replay(Record::Topic(topic.clone())), Ok(()));
    for impossible in [
        TopicRecord { id: [2; 16], ..topic.clone() },
        TopicRecord { name: "b".to_owned(), ..topic.clone() },
        TopicRecord { name: "b".to_owned(), id: [0; 16], ..topic.clone() },
        TopicRecord { name: "b".to_owned(), id: [2; 16], partitions: 0, ..topic.clone() },
        TopicRecord { name: "b".to_owned(), id: [2; 16], replication_factor: 0, ..topic },
    ] {
        let refused = replay(Record::Topic(impossible));
        assert!(matches!(refused, Err(ReplayError::Topic { .. })), "{refused:?}");
    }
    let unknown = replay(Record::RemoveTopic(RemoveTopicRecord { id: [9; 16] }));
    assert_eq!(unknown, Err(ReplayError::UnknownTopic { id: TopicId([9; 16]) }));
    assert!(matches!(cluster.machine.replay(Offset(1), &[1, 2, 3]), Err(ReplayError::Record(_))));
    cluster.machine.image().validate();
}

#[derive(Clone, Debug)]
enum Step {
    Create { names: Vec<String>, partitions: i32, replicas: i16, config: usize },
    Delete { name: String },
    DeleteById { place: usize },
    Grow { name: String, partitions: i32 },
    Allocate,
    Alter { name: String, config: usize, replaces: bool },
    AlterNode { is_every: bool, value: Option<u16> },
}

fn name() -> impl Strategy<Value = String> {
    // Few names, so that they repeat and collide.
    "[ab][._-][ab?]"
}

fn step() -> impl Strategy<Value = Step> {
    let names = proptest::collection::vec(name(), 1..4);
    prop_oneof![
        6 => (names, -2..5i32, -1..3i16, 0..CONFIGS.len())
            .prop_map(|(names, partitions, replicas, config)| Step::Create { names, partitions, replicas, config }),
        2 => name().prop_map(|name| Step::Delete { name }),
        3 => (name(), 0..9i32).prop_map(|(name, partitions)| Step::Grow { name, partitions }),
        1 => (0..8usize).prop_map(|place| Step::DeleteById { place }),
        1 => Just(Step::Allocate),
        3 => (name(), 0..CONFIGS.len(), any::<bool>())
            .prop_map(|(name, config, replaces)| Step::Alter { name, config, replaces }),
        2 => (any::<bool>(), any::<Option<u16>>())
            .prop_map(|(is_every, value)| Step::AlterNode { is_every, value }),
    ]
}

fn alter_one(cluster: &mut Cluster, resource: AlteredResource) {
    let resources = vec![resource];
    cluster.ask(ControllerRequest::AlterConfigs(AlterConfigs { resources, validate_only: false }));
}

fn grow_and_check(cluster: &mut Cluster, name: &str, partitions: i32) {
    let count = |cluster: &Cluster| cluster.machine.image().topic(name).map(|topic| topic.partition_count);
    let had = count(cluster);
    let code = cluster.grow(more(name, partitions)).0;
    assert_eq!(code == 0, had.is_some_and(|had| had < partitions), "{had:?} to {partitions}");
    assert_eq!(count(cluster), if code == 0 { Some(partitions) } else { had });
}

const CONFIGS: [(&str, Option<&str>); 5] = [
    ("cleanup.policy", Some("delete")),
    ("max.message.bytes", Some("77")),
    ("segment.bytes", Some("1")),
    ("what", Some("ever")),
    ("segment.bytes", None),
];

proptest! {
    #[test]
    fn replaying_the_log_gives_the_live_machine(steps in proptest::collection::vec(step(), 1..60)) {
        let mut cluster = Cluster::at_level(4);
        let mut ids = BTreeSet::new();
        for step in steps {
            let before = cluster.machine.image();
            match step {
                Step::Create { names, partitions, replicas, config } => {
                    let configs = vec![(CONFIGS[config].0.to_owned(), CONFIGS[config].1.map(str::to_owned))];
                    let topics = names.iter().map(|name| NewTopic {
                        partition_count: partitions,
                        replication_factor: replicas,
                        configs: configs.clone(),
                        ..new_topic(name)
                    });
                    let results = cluster.creates(topics.collect());
                    let image = cluster.machine.image();
                    for created in results {
                        let known = image.topic(&created.name);
                        if created.error == ErrorCode::None {
                            prop_assert!(ids.insert(created.id), "an id was used before");
                            prop_assert_eq!(known.map(|topic| topic.id), Some(created.id));
                            prop_assert!(before.topic(&created.name).is_none());
                        } else {
                            prop_assert_eq!(known.is_some(), before.topic(&created.name).is_some());
                            prop_assert!(created.message.is_some());
                        }
                    }
                }
                Step::Delete { name } => {
                    let code = cluster.delete(vec![by_name(&name)])[0].error.code();
                    prop_assert_eq!(code == 0, before.topic(&name).is_some());
                }
                Step::Grow { name, partitions } => grow_and_check(&mut cluster, &name, partitions),
                Step::DeleteById { place } => {
                    let Some(id) = before.topics().nth(place).map(|topic| topic.id) else { continue };
                    prop_assert_eq!(cluster.delete(vec![by_id(id)])[0].error.code(), 0);
                }
                Step::Alter { name, config, replaces } => {
                    let (key, value) = (CONFIGS[config].0.to_owned(), CONFIGS[config].1.map(str::to_owned));
                    let change = if replaces {
                        ConfigChange::Replace(vec![(key, value)])
                    } else {
                        ConfigChange::Each(vec![ConfigStep { key, operation: 0, value }])
                    };
                    alter_one(&mut cluster, AlteredResource { kind: 2, name, change });
                }
                Step::AlterNode { is_every, value } => {
                    let operation = i8::from(value.is_none());
                    let value = value.map(|value| value.to_string());
                    let step = ConfigStep { key: "message.max.bytes".to_owned(), operation, value };
                    let name = if is_every { String::new() } else { ME.to_string() };
                    alter_one(&mut cluster, AlteredResource { kind: 4, name, change: ConfigChange::Each(vec![step]) });
                    let image = cluster.machine.image();
                    let defaults = &image.runtime().expect("it has one").topics;
                    for topic in image.topics() {
                        prop_assert_eq!(&topic.config, &TopicConfig::resolve(defaults, &topic.overrides));
                    }
                }
                Step::Allocate => {
                    cluster.ask(ControllerRequest::AllocateProducerIds { node: NodeId(ME) });
                    prop_assert!(cluster.machine.image().next_producer_id() > before.next_producer_id());
                }
            }
        }
        let replayed = cluster.replayed();
        prop_assert_eq!(&replayed.image, &cluster.machine.image);
        prop_assert_eq!(&replayed.alike, &cluster.machine.alike);
        cluster.check_snapshots();
    }
}

impl MetadataImage {
    /// An image of these topics and numbers of partitions, for tests of those who read images.
    pub(crate) fn with_topics_for_tests(topics: &[(&str, i32)]) -> MetadataImage {
        let mut image = MetadataImage::default();
        for (number, &(name, partition_count)) in (1..).zip(topics) {
            let topic = TopicImage {
                name: name.into(),
                id: TopicId([number; 16]),
                partition_count,
                replication_factor: 1,
                overrides: crate::config::layers::Overrides::new(),
                config: TopicConfig::resolve(
                    &crate::topic_config::tests::defaults(),
                    &crate::config::layers::Overrides::new(),
                ),
            };
            image.partitions += u64::from(partition_count.unsigned_abs());
            image.replace_topic(Arc::new(topic));
        }
        // Images that differ have different offsets.
        image.next_offset = Offset(100 * topics.len() as i64 + image.partitions as i64);
        image.validate();
        image
    }
}
