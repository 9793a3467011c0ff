//! Records of the metadata log as values, and their bytes. Owns encoding and verification; what a record does is the
//! controller's business.

use flatbuffers::{FlatBufferBuilder, InvalidFlatbuffer, UnionWIPOffset, VerifierOptions, WIPOffset};

use crate::generated::metadata::ringlog::metadata as wire;

/// Newest version of each record that this build reads; the version it writes.
pub const RECORD_VERSION: u16 = 1;

/// Most tables in one record: a topic's configs are some forty.
const TABLES_MAX: usize = 1024;

/// One record of the metadata log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    Topic(TopicRecord),
    RemoveTopic(RemoveTopicRecord),
    Cluster(ClusterRecord),
    ProducerIds(ProducerIdsRecord),
    Node(NodeRecord),
}

/// A topic came into being.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TopicRecord {
    pub name: String,
    pub id: [u8; 16],
    pub partitions: i32,
    pub replication_factor: i16,
    /// Key and value of each override, in the order given.
    pub configs: Vec<(String, String)>,
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
            _ => return None,
        })
    }
}

impl TopicRecord {
    fn build<'a>(&self, builder: &mut FlatBufferBuilder<'a>) -> WIPOffset<wire::Topic<'a>> {
        let configs: Vec<_> = self
            .configs
            .iter()
            .map(|(key, value)| {
                let (key, value) = (builder.create_string(key), builder.create_string(value));
                wire::ConfigEntry::create(
                    builder,
                    &wire::ConfigEntryArgs { key: Some(key), value: Some(value) },
                )
            })
            .collect();
        let configs = Some(builder.create_vector(&configs));
        let name = Some(builder.create_string(&self.name));
        let (partitions, replication_factor) = (self.partitions, self.replication_factor);
        let id = wire::Id::new(&self.id);
        let args = wire::TopicArgs { name, id: Some(&id), partitions, replication_factor, configs };
        wire::Topic::create(builder, &args)
    }

    fn read(topic: wire::Topic<'_>) -> TopicRecord {
        let configs = topic.configs().into_iter().flatten();
        TopicRecord {
            name: topic.name().to_owned(),
            id: topic.id().bytes().into(),
            partitions: topic.partitions(),
            replication_factor: topic.replication_factor(),
            configs: configs.map(|entry| (entry.key().to_owned(), entry.value().to_owned())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            configs,
        };
        let node = NodeRecord {
            id: 1,
            directory: [9; 16],
            host: "broker-1".to_owned(),
            port: 9092,
            rack: Some("a".to_owned()),
        };
        vec![
            Record::Topic(topic.clone()),
            Record::Topic(TopicRecord { name: String::new(), configs: Vec::new(), partitions: 0, ..topic }),
            Record::RemoveTopic(RemoveTopicRecord { id: [1; 16] }),
            Record::Cluster(ClusterRecord { id: "5L6g3nShT-eMCtK--X86sw".to_owned(), metadata_version: 1 }),
            Record::ProducerIds(ProducerIdsRecord { node: 1, next: i64::MAX }),
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
