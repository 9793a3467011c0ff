//! CreatePartitions, decided as Kafka 4.4's `ReplicationControlManager` and `ControllerApis` do: each topic on its own, all of its new
//! partitions or none. Where they lie is computed from topic and partition, so there is nothing to choose.

use std::collections::{BTreeMap, BTreeSet};

use ringlog_flat::metadata::{Record, TopicPartitionsRecord};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_shard::limits::MACHINE_PROPOSAL_BYTES_MAX;
use ringlog_shard::state_machine::Outcome;

use super::features::{FORMAT, FORMAT_WITH_MORE_PARTITIONS};
use super::machine::MetadataMachine;
use super::names::{no_topic, twice};
use super::request::{ControllerReply, CreatePartitions, GrownTopic, MorePartitions, Refusal};

/// What the topics before in the same request take.
#[derive(Default)]
struct Accepted {
    records: Vec<Vec<u8>>,
    bytes: usize,
    partitions: u64,
}

impl MetadataMachine {
    pub(super) fn create_partitions(&self, request: CreatePartitions) -> Outcome<ControllerReply> {
        let CreatePartitions { topics, validate_only } = request;
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        topics.iter().for_each(|topic| *counts.entry(&topic.name).or_default() += 1);
        let mut told = BTreeSet::new();
        let mut accepted = Accepted::default();
        let mut results = Vec::with_capacity(topics.len());
        for topic in &topics {
            let is_repeated = counts.get(topic.name.as_str()).is_some_and(|count| *count > 1);
            if is_repeated && !told.insert(&topic.name) {
                continue;
            }
            let result = if is_repeated {
                Err(Refusal::new(ErrorCode::InvalidRequest, twice(&topic.name)))
            } else {
                self.grow(topic, &mut accepted)
            };
            results.push(GrownTopic { name: topic.name.clone(), result });
        }
        if validate_only {
            accepted.records.clear();
        }
        Outcome { records: accepted.records, reply: ControllerReply::PartitionsCreated(results) }
    }

    fn grow(&self, asked: &MorePartitions, accepted: &mut Accepted) -> Result<(), Refusal> {
        let (name, wanted) = (&asked.name, asked.partition_count);
        let Some(topic) = self.image.topic(name) else {
            let text = no_topic(name);
            return Err(Refusal::new(ErrorCode::UnknownTopicOrPartition, text));
        };
        let present = topic.partition_count;
        if wanted <= present {
            let text = match wanted == present {
                true => format!("Topic '{name}' has {present} partitions already."),
                false => format!(
                    "Topic '{name}' has {present} partitions and never fewer again, so {wanted} cannot be."
                ),
            };
            return Err(Refusal::new(ErrorCode::InvalidPartitions, text));
        }
        // Kafka takes it, and looks for groups and their offsets elsewhere from its next start on.
        if topic.is_internal() {
            let text = format!(
                "{name} keeps its {present} partitions: their number says which of them holds a group, and with another one \
                 the offsets of the groups there are would not be found."
            );
            return Err(Refusal::new(ErrorCode::InvalidTopicException, text));
        }
        let added = wanted.abs_diff(present);
        self.check_new_replicas(asked, present, added)?;
        self.check_room(wanted, added, accepted.partitions)?;
        self.check_format()?;
        let record = TopicPartitionsRecord { id: topic.id.0, partitions: wanted };
        let record = Record::TopicPartitions(record).encode();
        if accepted.bytes + record.len() > MACHINE_PROPOSAL_BYTES_MAX {
            let text =
                "This request changes more topics than fit one change of the metadata: split it in several.";
            return Err(Refusal::new(ErrorCode::InvalidRequest, text));
        }
        accepted.bytes += record.len();
        accepted.records.push(record);
        accepted.partitions += u64::from(added);
        Ok(())
    }

    fn check_new_replicas(&self, asked: &MorePartitions, present: i32, added: u32) -> Result<(), Refusal> {
        let Some(assignments) = &asked.assignments else { return Ok(()) };
        if assignments.len() != added as usize {
            let text = format!(
                "{added} partitions come to the topic, and the request says of {} where they lie.",
                assignments.len()
            );
            return Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, text));
        }
        (present..).zip(assignments).try_for_each(|(partition, nodes)| self.check_replicas(partition, nodes))
    }

    fn check_format(&self) -> Result<(), Refusal> {
        let level = self.image.features.level(FORMAT);
        if level >= FORMAT_WITH_MORE_PARTITIONS {
            return Ok(());
        }
        let text = format!(
            "More partitions of a topic need {FORMAT} {FORMAT_WITH_MORE_PARTITIONS} and the cluster runs {level}; \
             `ringlog cluster features upgrade` raises it, and older builds cannot open the data directory afterwards"
        );
        Err(Refusal::new(ErrorCode::UnsupportedVersion, text))
    }
}
