//! CreateTopics, decided as Kafka 4.4's `ReplicationControlManager` and `ControllerApis` do: each topic on its own, with Kafka's order of
//! checks and Kafka's words where clients show them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringlog_flat::metadata::{Record, TopicRecord};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::TopicId;
use ringlog_shard::limits::{MACHINE_PROPOSAL_BYTES_MAX, PARTITIONS_MAX, PARTITIONS_PER_TOPIC_MAX};
use ringlog_shard::state_machine::Outcome;

use super::METADATA_TOPIC_NAME;
use super::machine::MetadataMachine;
use super::names::{check_topic_name, collision_key, topic_id, twice};
use super::request::{ControllerReply, CreateTopics, CreatedTopic, NewTopic, Refusal};
use crate::config::layers::Overrides;
use crate::config::typed::TopicDefaults;
use crate::topic_config;

/// What the topics before in the same request take, for the checks of the next one.
#[derive(Default)]
struct Accepted {
    records: Vec<Vec<u8>>,
    bytes: usize,
    partitions: u64,
    alike: BTreeMap<String, String>,
    ids: BTreeSet<TopicId>,
}

/// A topic that passed every check.
struct Checked {
    partition_count: i32,
    replication_factor: i16,
    overrides: Overrides,
}

impl MetadataMachine {
    pub(super) fn create_topics(&self, request: CreateTopics) -> Outcome<ControllerReply> {
        let CreateTopics { topics, validate_only } = request;
        let duplicates = duplicate_names(&topics);
        let mut told = BTreeSet::new();
        let mut accepted = Accepted::default();
        let mut results = Vec::with_capacity(topics.len());
        for topic in topics {
            if duplicates.contains(&topic.name) {
                if told.insert(topic.name.clone()) {
                    let refusal = Refusal::new(ErrorCode::InvalidRequest, twice(&topic.name));
                    results.push(refused(topic.name, refusal));
                }
                continue;
            }
            let checked = self.check_new_topic(&topic, &accepted);
            results.push(match checked.and_then(|checked| self.accept(&topic, checked, &mut accepted)) {
                Ok(created) => created,
                Err(refusal) => refused(topic.name, refusal),
            });
        }
        if validate_only {
            results.iter_mut().for_each(|result| result.id = TopicId::ZERO);
            accepted.records.clear();
        }
        Outcome { records: accepted.records, reply: ControllerReply::TopicsCreated(results) }
    }

    fn check_new_topic(&self, topic: &NewTopic, accepted: &Accepted) -> Result<Checked, Refusal> {
        self.check_name(&topic.name, accepted)?;
        let overrides = check_configs(topic, &self.runtime().topics)?;
        let (partition_count, replication_factor) = self.check_placement(topic)?;
        self.check_room(partition_count, partition_count.unsigned_abs(), accepted.partitions)?;
        Ok(Checked { partition_count, replication_factor, overrides })
    }

    /// Whether a topic may have `partition_count` partitions, `added` of them new, beside `accepted` new ones of other topics.
    pub(super) fn check_room(&self, partition_count: i32, added: u32, accepted: u64) -> Result<(), Refusal> {
        if partition_count > PARTITIONS_PER_TOPIC_MAX {
            let text = format!(
                "A topic may have at most {PARTITIONS_PER_TOPIC_MAX} partitions, {partition_count} were asked for: \
                 ask for fewer."
            );
            return Err(Refusal::new(ErrorCode::InvalidPartitions, text));
        }
        let present = self.image.partition_count() + accepted;
        if present + u64::from(added) > PARTITIONS_MAX {
            let text = format!(
                "The cluster has {present} partitions and takes {PARTITIONS_MAX} at most, so {added} more \
                 do not fit: delete topics or ask for fewer partitions."
            );
            return Err(Refusal::new(ErrorCode::InvalidPartitions, text));
        }
        Ok(())
    }

    fn check_name(&self, name: &str, accepted: &Accepted) -> Result<(), Refusal> {
        if name == METADATA_TOPIC_NAME {
            let text = format!("{METADATA_TOPIC_NAME} is the cluster's own: choose another name.");
            return Err(Refusal::new(ErrorCode::InvalidRequest, text));
        }
        if self.image.topic(name).is_some() {
            let text = format!("Topic '{name}' already exists.");
            return Err(Refusal::new(ErrorCode::TopicAlreadyExists, text));
        }
        check_topic_name(name).map_err(|text| Refusal::new(ErrorCode::InvalidTopicException, text))?;
        let Some(key) = collision_key(name) else { return Ok(()) };
        let existing = self.alike.get(&key).and_then(|names| names.first()).map(|name| &**name);
        match existing.or(accepted.alike.get(&key).map(String::as_str)) {
            Some(other) => {
                let text = format!(
                    "Topic '{name}' is too like '{other}': metrics write '.' and '_' alike, so one of the two names only."
                );
                Err(Refusal::new(ErrorCode::InvalidTopicException, text))
            }
            None => Ok(()),
        }
    }

    /// Partitions and replicas of the topic, from its numbers or its assignments.
    fn check_placement(&self, topic: &NewTopic) -> Result<(i32, i16), Refusal> {
        if !topic.assignments.is_empty() {
            return self.check_assignments(topic);
        }
        let refuse = |error, text: &str| Err(Refusal::new(error, text));
        if topic.replication_factor == 0 || topic.replication_factor < -1 {
            let asked = topic.replication_factor;
            let text = format!("{asked} is no replication factor: give 1 or more, or -1 for the default.");
            return refuse(ErrorCode::InvalidReplicationFactor, &text);
        }
        if topic.partition_count == 0 || topic.partition_count < -1 {
            let asked = topic.partition_count;
            let text = format!("{asked} is no number of partitions: give 1 or more, or -1 for the default.");
            return refuse(ErrorCode::InvalidPartitions, &text);
        }
        let defaults = &self.settings.base.topics;
        let or_default = |value: i32, default: i32| if value == -1 { default } else { value };
        let partition_count = or_default(topic.partition_count, defaults.partition_count);
        let replicas = or_default(topic.replication_factor.into(), defaults.replication_factor.into());
        if replicas != 1 {
            let text = format!(
                "A replication factor of {replicas} takes as many brokers, and the cluster has 1: use 1, or -1 for the \
                 default."
            );
            return refuse(ErrorCode::InvalidReplicationFactor, &text);
        }
        Ok((partition_count, 1))
    }

    fn check_assignments(&self, topic: &NewTopic) -> Result<(i32, i16), Refusal> {
        let refuse = |error, text: String| Err(Refusal::new(error, text));
        let invalid = |text: String| refuse(ErrorCode::InvalidReplicaAssignment, text);
        for (is_set, what) in [
            (topic.replication_factor != -1, "replication factor"),
            (topic.partition_count != -1, "number of partitions"),
        ] {
            if is_set {
                let text = format!("The request says where partitions lie, so its {what} must be -1.");
                return refuse(ErrorCode::InvalidRequest, text);
            }
        }
        let mut seen = BTreeSet::new();
        for (partition, nodes) in &topic.assignments {
            if !seen.insert(*partition) {
                return invalid(format!("The request says twice where partition {partition} lies."));
            }
            self.check_replicas(*partition, nodes)?;
        }
        if !seen.iter().copied().eq((0..).take(seen.len())) {
            return invalid(format!(
                "The {} partitions that the request places must have the numbers from 0 on, without a gap.",
                seen.len()
            ));
        }
        Ok((i32::try_from(seen.len()).unwrap_or(i32::MAX), 1))
    }

    /// Whether these nodes can hold a partition.
    pub(super) fn check_replicas(&self, partition: i32, nodes: &[i32]) -> Result<(), Refusal> {
        let me = self.settings.node_id.0;
        let text = match nodes {
            [] => format!("The request places partition {partition} on no broker."),
            [node] if *node == me => return Ok(()),
            [node] => format!(
                "The request places partition {partition} on broker {node}, and the cluster has broker {me} only."
            ),
            _ => format!(
                "The request places partition {partition} on {} brokers, and the cluster has broker {me} only.",
                nodes.len()
            ),
        };
        Err(Refusal::new(ErrorCode::InvalidReplicaAssignment, text))
    }

    /// Turns a checked topic into its record and its answer.
    fn accept(
        &self,
        topic: &NewTopic,
        checked: Checked,
        accepted: &mut Accepted,
    ) -> Result<CreatedTopic, Refusal> {
        let Checked { partition_count, replication_factor, overrides } = checked;
        let id = topic_id(topic.random);
        if self.image.topic_by_id(id).is_some() || !accepted.ids.insert(id) {
            let text = "The random topic id is in use already: try again.";
            return Err(Refusal::new(ErrorCode::UnknownServerError, text));
        }
        let record = Record::Topic(TopicRecord {
            name: topic.name.clone(),
            id: id.0,
            partitions: partition_count,
            replication_factor,
            configs: overrides.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
        })
        .encode();
        if accepted.bytes + record.len() > MACHINE_PROPOSAL_BYTES_MAX {
            let text =
                "This request creates more topics than fit one change of the metadata: split it in several.";
            return Err(Refusal::new(ErrorCode::InvalidRequest, text));
        }
        accepted.bytes += record.len();
        accepted.records.push(record);
        accepted.partitions += u64::from(partition_count.unsigned_abs());
        if let Some(key) = collision_key(&topic.name) {
            accepted.alike.insert(key, topic.name.clone());
        }
        Ok(CreatedTopic {
            name: topic.name.clone(),
            id,
            error: ErrorCode::None,
            message: None,
            partition_count,
            replication_factor,
            configs: topic_config::report::effective(&self.runtime().topics, &self.layers(), &overrides),
        })
    }
}

/// Where a key is given twice the last value holds, as in Kafka.
fn check_configs(topic: &NewTopic, defaults: &TopicDefaults) -> Result<Overrides, Refusal> {
    let mut overrides = Overrides::new();
    for (key, value) in &topic.configs {
        let value = check_config(key, value.as_deref())?;
        overrides.insert(Arc::from(key.as_str()), Arc::from(value));
    }
    check_together(defaults, &overrides)?;
    Ok(overrides)
}

/// What involves several configs of a topic.
pub(super) fn check_together(defaults: &TopicDefaults, overrides: &Overrides) -> Result<(), Refusal> {
    topic_config::check_together(defaults, overrides)
        .map_err(|error| Refusal::new(ErrorCode::InvalidConfig, error.to_string()))
}

/// The value as it is stored.
pub(super) fn check_config<'a>(key: &str, value: Option<&'a str>) -> Result<&'a str, Refusal> {
    topic_config::check(key, value)
        .map_err(|error| Refusal::new(ErrorCode::InvalidConfig, error.to_string()))?;
    Ok(value.expect("check refuses a key without a value").trim())
}

fn duplicate_names(topics: &[NewTopic]) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    topics.iter().filter(|topic| !seen.insert(topic.name.as_str())).map(|topic| topic.name.clone()).collect()
}

fn refused(name: String, refusal: Refusal) -> CreatedTopic {
    let Refusal { error, message } = refusal;
    CreatedTopic {
        name,
        id: TopicId::ZERO,
        error,
        message: Some(message),
        partition_count: -1,
        replication_factor: -1,
        configs: Vec::new(),
    }
}
