//! Records of the metadata log as values, and their bytes. Owns encoding and verification; what a record does is the
//! controller's business.

use flatbuffers::{FlatBufferBuilder, InvalidFlatbuffer, UnionWIPOffset, VerifierOptions, WIPOffset};

use crate::generated::metadata::ringlog::metadata as wire;

/// Newest version of each record that this build reads; the version it writes.
pub const RECORD_VERSION: u16 = 1;

/// Most tables in one record: a topic's configs are some forty.
const TABLES_MAX: usize = 1024;

/// The number that stands for every node.
const EVERY_NODE: i32 = -1;

/// One record of the metadata log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    Topic(TopicRecord),
    RemoveTopic(RemoveTopicRecord),
    Cluster(ClusterRecord),
    ProducerIds(ProducerIdsRecord),
    Node(NodeRecord),
    TopicConfigs(TopicConfigsRecord),
    NodeConfigs(NodeConfigsRecord),
    FeatureLevel(FeatureLevelRecord),
    GroupConfigs(GroupConfigsRecord),
    TopicPartitions(TopicPartitionsRecord),
}

/// Key and value of each config, in the order given.
pub type Configs = Vec<(String, String)>;

/// A topic came into being.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicRecord {
    pub name: String,
    pub id: [u8; 16],
    pub partitions: i32,
    pub replication_factor: i16,
    /// Overrides only.
    pub configs: Configs,
}

/// A topic and all its partitions went away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoveTopicRecord {
    pub id: [u8; 16],
}

/// The cluster got its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterRecord {
    /// 22 characters of base64url.
    pub id: String,
    pub metadata_version: i16,
}

/// Producer ids below `next` are given out or may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProducerIdsRecord {
    /// The node that the newest block went to.
    pub node: i32,
    pub next: i64,
}

/// A node and where clients reach it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeRecord {
    pub id: i32,
    pub directory: [u8; 16],
    pub host: String,
    pub port: u16,
    pub rack: Option<String>,
}

/// The overrides of a topic from here on, all of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicConfigsRecord {
    pub id: [u8; 16],
    pub configs: Configs,
}

/// The dynamic configs of a node from here on, all of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeConfigsRecord {
    /// `None` = of every node.
    pub node: Option<i32>,
    pub configs: Configs,
}

/// A feature runs at this level from here on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FeatureLevelRecord {
    pub name: String,
    /// 0 = off.
    pub level: i16,
}

/// The configs of a consumer group from here on, all of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupConfigsRecord {
    pub group: String,
    pub configs: Configs,
}

/// A topic has this many partitions from here on, more than before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TopicPartitionsRecord {
    pub id: [u8; 16],
    pub partitions: i32,
}

/// Bytes that are no record this build understands.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum RecordError {
    #[error("metadata record does not verify: {source}")]
    Invalid {
        #[from]
        source: InvalidFlatbuffer,
    },
    #[error("metadata record has version {version}, this build reads 1 to {RECORD_VERSION}")]
    UnknownVersion { version: u16 },
    #[error("metadata record has kind {kind}, which this build does not know")]
    UnknownKind { kind: u8 },
}

impl Record {
    /// The bytes of the record, complete and self-contained.
    pub fn encode(&self) -> Vec<u8> {
        let mut builder = FlatBufferBuilder::with_capacity(256);
        let (body_type, body) = self.build(&mut builder);
        let args = wire::RecordArgs { version: RECORD_VERSION, body_type, body: Some(body) };
        let record = wire::Record::create(&mut builder, &args);
        builder.finish(record, None);
        builder.finished_data().to_vec()
    }

    /// Reads what [`Record::encode`] wrote, at any alignment.
    ///
    /// # Errors
    /// Bytes that do not verify, and versions or kinds of a newer build.
    pub fn decode(bytes: &[u8]) -> Result<Record, RecordError> {
        let options = VerifierOptions { max_tables: TABLES_MAX, ..VerifierOptions::default() };
        let record = wire::root_as_record_with_opts(&options, bytes)?;
        let version = record.version();
        if version == 0 || version > RECORD_VERSION {
            return Err(RecordError::UnknownVersion { version });
        }
        Record::read(&record).ok_or(RecordError::UnknownKind { kind: record.body_type().0 })
    }

    fn build<'a>(&self, builder: &mut FlatBufferBuilder<'a>) -> (wire::Body, WIPOffset<UnionWIPOffset>) {
        match self {
            Record::Topic(topic) => (wire::Body::Topic, topic.build(builder).as_union_value()),
            Record::RemoveTopic(RemoveTopicRecord { id }) => {
                let args = wire::RemoveTopicArgs { id: Some(&wire::Id::new(id)) };
                (wire::Body::RemoveTopic, wire::RemoveTopic::create(builder, &args).as_union_value())
            }
            Record::Cluster(ClusterRecord { id, metadata_version }) => {
                let id = Some(builder.create_string(id));
                let args = wire::ClusterArgs { id, metadata_version: *metadata_version };
                (wire::Body::Cluster, wire::Cluster::create(builder, &args).as_union_value())
            }
            Record::ProducerIds(ProducerIdsRecord { node, next }) => {
                let args = wire::ProducerIdsArgs { node: *node, next: *next };
                (wire::Body::ProducerIds, wire::ProducerIds::create(builder, &args).as_union_value())
            }
            Record::Node(NodeRecord { id, directory, host, port, rack }) => {
                let host = Some(builder.create_string(host));
                let rack = rack.as_ref().map(|rack| builder.create_string(rack));
                let directory = wire::Id::new(directory);
                let args = wire::NodeArgs { id: *id, directory: Some(&directory), host, port: *port, rack };
                (wire::Body::Node, wire::Node::create(builder, &args).as_union_value())
            }
            Record::TopicConfigs(TopicConfigsRecord { id, configs }) => {
                let configs = Some(build_configs(builder, configs));
                let args = wire::TopicConfigsArgs { id: Some(&wire::Id::new(id)), configs };
                (wire::Body::TopicConfigs, wire::TopicConfigs::create(builder, &args).as_union_value())
            }
            Record::NodeConfigs(NodeConfigsRecord { node, configs }) => {
                let configs = Some(build_configs(builder, configs));
                let args = wire::NodeConfigsArgs { node: node.unwrap_or(EVERY_NODE), configs };
                (wire::Body::NodeConfigs, wire::NodeConfigs::create(builder, &args).as_union_value())
            }
            Record::FeatureLevel(FeatureLevelRecord { name, level }) => {
                let name = Some(builder.create_string(name));
                let args = wire::FeatureLevelArgs { name, level: *level };
                (wire::Body::FeatureLevel, wire::FeatureLevel::create(builder, &args).as_union_value())
            }
            Record::GroupConfigs(GroupConfigsRecord { group, configs }) => {
                let configs = Some(build_configs(builder, configs));
                let args = wire::GroupConfigsArgs { group: Some(builder.create_string(group)), configs };
                (wire::Body::GroupConfigs, wire::GroupConfigs::create(builder, &args).as_union_value())
            }
            Record::TopicPartitions(TopicPartitionsRecord { id, partitions }) => {
                let args =
                    wire::TopicPartitionsArgs { id: Some(&wire::Id::new(id)), partitions: *partitions };
                (wire::Body::TopicPartitions, wire::TopicPartitions::create(builder, &args).as_union_value())
            }
        }
    }

    fn read(record: &wire::Record<'_>) -> Option<Record> {
        Some(match record.body_type() {
            wire::Body::Topic => Record::Topic(TopicRecord::read(record.body_as_topic()?)),
            wire::Body::RemoveTopic => {
                let id = record.body_as_remove_topic()?.id().bytes().into();
                Record::RemoveTopic(RemoveTopicRecord { id })
            }
            wire::Body::Cluster => {
                let cluster = record.body_as_cluster()?;
                let (id, metadata_version) = (cluster.id().to_owned(), cluster.metadata_version());
                Record::Cluster(ClusterRecord { id, metadata_version })
            }
            wire::Body::ProducerIds => {
                let block = record.body_as_producer_ids()?;
                Record::ProducerIds(ProducerIdsRecord { node: block.node(), next: block.next() })
            }
            wire::Body::Node => {
                let node = record.body_as_node()?;
                Record::Node(NodeRecord {
                    id: node.id(),
                    directory: node.directory().bytes().into(),
                    host: node.host().to_owned(),
                    port: node.port(),
                    rack: node.rack().map(str::to_owned),
                })
            }
            wire::Body::TopicConfigs => {
                let changed = record.body_as_topic_configs()?;
                let (id, configs) = (changed.id().bytes().into(), read_configs(changed.configs()));
                Record::TopicConfigs(TopicConfigsRecord { id, configs })
            }
            wire::Body::NodeConfigs => {
                let changed = record.body_as_node_configs()?;
                let node = Some(changed.node()).filter(|node| *node != EVERY_NODE);
                Record::NodeConfigs(NodeConfigsRecord { node, configs: read_configs(changed.configs()) })
            }
            wire::Body::FeatureLevel => {
                let changed = record.body_as_feature_level()?;
                let (name, level) = (changed.name().to_owned(), changed.level());
                Record::FeatureLevel(FeatureLevelRecord { name, level })
            }
            wire::Body::GroupConfigs => {
                let changed = record.body_as_group_configs()?;
                let (group, configs) = (changed.group().to_owned(), read_configs(changed.configs()));
                Record::GroupConfigs(GroupConfigsRecord { group, configs })
            }
            wire::Body::TopicPartitions => {
                let changed = record.body_as_topic_partitions()?;
                let (id, partitions) = (changed.id().bytes().into(), changed.partitions());
                Record::TopicPartitions(TopicPartitionsRecord { id, partitions })
            }
            _ => return None,
        })
    }
}

type WireConfigs<'a> = flatbuffers::Vector<'a, flatbuffers::ForwardsUOffset<wire::ConfigEntry<'a>>>;

fn build_configs<'a>(builder: &mut FlatBufferBuilder<'a>, configs: &Configs) -> WIPOffset<WireConfigs<'a>> {
    let entries: Vec<_> = configs
        .iter()
        .map(|(key, value)| {
            let (key, value) = (builder.create_string(key), builder.create_string(value));
            wire::ConfigEntry::create(builder, &wire::ConfigEntryArgs { key: Some(key), value: Some(value) })
        })
        .collect();
    builder.create_vector(&entries)
}

fn read_configs(configs: Option<WireConfigs<'_>>) -> Configs {
    let entries = configs.into_iter().flatten();
    entries.map(|entry| (entry.key().to_owned(), entry.value().to_owned())).collect()
}

impl TopicRecord {
    fn build<'a>(&self, builder: &mut FlatBufferBuilder<'a>) -> WIPOffset<wire::Topic<'a>> {
        let configs = Some(build_configs(builder, &self.configs));
        let name = Some(builder.create_string(&self.name));
        let (partitions, replication_factor) = (self.partitions, self.replication_factor);
        let id = wire::Id::new(&self.id);
        let args = wire::TopicArgs { name, id: Some(&id), partitions, replication_factor, configs };
        wire::Topic::create(builder, &args)
    }

    fn read(topic: wire::Topic<'_>) -> TopicRecord {
        TopicRecord {
            name: topic.name().to_owned(),
            id: topic.id().bytes().into(),
            partitions: topic.partitions(),
            replication_factor: topic.replication_factor(),
            configs: read_configs(topic.configs()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN_TOPIC: &str = "1000000000000a000e000600050008000a000000000101001400000000000e00240008000c001c00060020000e000000\
        000001001c000000070707070707070707070707070707070300000010000000060000006f7264657273000001000000\
        0c00000008000c0004000800080000001400000004000000040000003230343800000000110000006d61782e6d657373\
        6167652e6279746573000000";
    const GOLDEN_REMOVE_TOPIC: &str = "1000000000000a000e000600050008000a000000000201000c0000000000060014000400060000000101010101010101\
        0101010101010101";
    const GOLDEN_NODE: &str = "1000000000000a000c000600050008000a00000000050100100000000c00200008000c001c0006000c00000000008423\
        0100000009090909090909090909090909090909040000000800000062726f6b65722d3100000000";

    const GOLDEN_CLUSTER: &str = "1000000000000a000c000600050008000a000000000301000c00000008000c0008000600080000000000010004000000\
        16000000354c3667336e5368542d654d43744b2d2d58383673770000";
    const GOLDEN_FEATURE_LEVEL: &str = "1000000000000a000c000600050008000a000000000801000c00000008000c0008000600080000000000010004000000\
        0d00000067726f75702e76657273696f6e000000";

    const GOLDEN_GROUP_CONFIGS: &str = "1000000000000a000c000600050008000a0000000009010004000000e0ffffff08000000100000000700000072656164\
        65727300010000000c00000008000c00040008000800000014000000040000000400000037303030000000001e000000\
        636f6e73756d65722e6865617274626561742e696e74657276616c2e6d730000";

    fn samples() -> Vec<Record> {
        let configs = vec![
            ("max.message.bytes".to_owned(), "2048".to_owned()),
            ("segment.bytes".to_owned(), "1048576".to_owned()),
        ];
        let topic = TopicRecord {
            name: "orders".to_owned(),
            id: [7; 16],
            partitions: 3,
            replication_factor: 1,
            configs: configs.clone(),
        };
        let node = NodeRecord {
            id: 1,
            directory: [9; 16],
            host: "broker-1".to_owned(),
            port: 9092,
            rack: Some("a".to_owned()),
        };
        vec![
            Record::TopicConfigs(TopicConfigsRecord { id: [7; 16], configs: configs.clone() }),
            Record::TopicConfigs(TopicConfigsRecord { id: [7; 16], configs: Vec::new() }),
            Record::NodeConfigs(NodeConfigsRecord { node: Some(3), configs: configs.clone() }),
            Record::NodeConfigs(NodeConfigsRecord { node: None, configs: configs.clone() }),
            Record::Topic(topic.clone()),
            Record::Topic(TopicRecord { name: String::new(), configs: Vec::new(), partitions: 0, ..topic }),
            Record::RemoveTopic(RemoveTopicRecord { id: [1; 16] }),
            Record::Cluster(ClusterRecord { id: "5L6g3nShT-eMCtK--X86sw".to_owned(), metadata_version: 1 }),
            Record::ProducerIds(ProducerIdsRecord { node: 1, next: i64::MAX }),
            Record::FeatureLevel(FeatureLevelRecord { name: "group.version".to_owned(), level: 1 }),
            Record::FeatureLevel(FeatureLevelRecord { name: String::new(), level: i16::MIN }),
            Record::GroupConfigs(GroupConfigsRecord {
                group: "readers".to_owned(),
                configs: configs.clone(),
            }),
            Record::GroupConfigs(GroupConfigsRecord { group: String::new(), configs: Vec::new() }),
            Record::TopicPartitions(TopicPartitionsRecord { id: [7; 16], partitions: 12 }),
            Record::TopicPartitions(TopicPartitionsRecord { id: [0; 16], partitions: i32::MIN }),
            Record::Node(node.clone()),
            Record::Node(NodeRecord { rack: None, ..node }),
        ]
    }

    #[test]
    fn each_record_reads_back_as_it_was_written() {
        for record in samples() {
            assert_eq!(Record::decode(&record.encode()), Ok(record));
        }
    }

    /// Written by the builds before configs could be altered. A record of a landed format is read for ever.
    #[test]
    fn records_of_the_first_format_still_read_and_are_still_written_so() {
        let node =
            NodeRecord { id: 1, directory: [9; 16], host: "broker-1".to_owned(), port: 9092, rack: None };
        let configs = vec![("max.message.bytes".to_owned(), "2048".to_owned())];
        let (name, id) = ("orders".to_owned(), [7; 16]);
        let topic = TopicRecord { name, id, partitions: 3, replication_factor: 1, configs };
        let id = "5L6g3nShT-eMCtK--X86sw".to_owned();
        let cluster = ClusterRecord { id, metadata_version: 1 };
        for (record, golden) in [
            (Record::Topic(topic), GOLDEN_TOPIC),
            (Record::RemoveTopic(RemoveTopicRecord { id: [1; 16] }), GOLDEN_REMOVE_TOPIC),
            (Record::Node(node), GOLDEN_NODE),
            (Record::Cluster(cluster), GOLDEN_CLUSTER),
        ] {
            assert_eq!(hex(&record.encode()), golden, "{record:?}");
        }
    }

    #[test]
    fn a_level_of_a_feature_is_written_as_it_first_was() {
        let level = FeatureLevelRecord { name: "group.version".to_owned(), level: 1 };
        assert_eq!(hex(&Record::FeatureLevel(level).encode()), GOLDEN_FEATURE_LEVEL);
    }

    #[test]
    fn configs_of_a_group_are_written_as_they_first_were() {
        let configs = vec![("consumer.heartbeat.interval.ms".to_owned(), "7000".to_owned())];
        let record = GroupConfigsRecord { group: "readers".to_owned(), configs };
        assert_eq!(hex(&Record::GroupConfigs(record).encode()), GOLDEN_GROUP_CONFIGS);
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn a_record_reads_at_any_alignment() {
        for record in samples() {
            for shift in 0..8 {
                let mut bytes = vec![0; shift];
                bytes.extend(record.encode());
                assert_eq!(Record::decode(&bytes[shift..]), Ok(record.clone()), "shifted by {shift}");
            }
        }
    }

    #[test]
    fn cut_anywhere_a_record_is_refused_or_reads_as_itself() {
        for record in samples() {
            let bytes = record.encode();
            for length in 0..bytes.len() {
                // Padding may stand at the end; whatever still verifies must be the same value.
                if let Ok(read) = Record::decode(&bytes[..length]) {
                    assert_eq!(read, record, "{length} of {} bytes", bytes.len());
                }
            }
            assert!(Record::decode(&bytes[..bytes.len() / 2]).is_err());
        }
    }

    #[test]
    fn any_damaged_byte_is_an_error_or_another_value_and_never_a_panic() {
        for record in samples() {
            let bytes = record.encode();
            for place in 0..bytes.len() {
                for flip in [1u8, 0x80, 0xff] {
                    let mut damaged = bytes.clone();
                    damaged[place] ^= flip;
                    let _ = Record::decode(&damaged);
                }
            }
        }
    }

    #[test]
    fn versions_and_kinds_of_a_newer_build_are_refused_by_name() {
        let newer = |version, body_type| {
            let mut builder = FlatBufferBuilder::new();
            let body = wire::ProducerIds::create(&mut builder, &wire::ProducerIdsArgs { node: 1, next: 2 });
            let body = Some(body.as_union_value());
            let record = wire::Record::create(&mut builder, &wire::RecordArgs { version, body_type, body });
            builder.finish(record, None);
            Record::decode(builder.finished_data())
        };
        assert_eq!(newer(2, wire::Body::ProducerIds), Err(RecordError::UnknownVersion { version: 2 }));
        assert_eq!(newer(0, wire::Body::ProducerIds), Err(RecordError::UnknownVersion { version: 0 }));
        assert_eq!(newer(1, wire::Body(99)), Err(RecordError::UnknownKind { kind: 99 }));
        assert!(newer(1, wire::Body::ProducerIds).is_ok());
    }
}
