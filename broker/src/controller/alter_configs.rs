//! AlterConfigs and IncrementalAlterConfigs, decided as Kafka 4.4's `ConfigAdminManager` and `ConfigurationControlManager` do: each
//! resource all or nothing. Where Kafka takes what would have no effect (a key that nobody knows, a setting that is not built) it is
//! refused here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ringlog_flat::metadata::{Configs, GroupConfigsRecord, NodeConfigsRecord, Record, TopicConfigsRecord};
use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::ids::NodeId;
use ringlog_shard::limits::{
    CONFIG_RESOURCES_PER_REQUEST_MAX, GROUP_TEXT_BYTES_MAX, GROUPS_WITH_CONFIGS_MAX,
    MACHINE_PROPOSAL_BYTES_MAX,
};
use ringlog_shard::state_machine::Outcome;

use super::create_topics::{check_config, check_together};
use super::features::{FORMAT, FORMAT_WITH_GROUP_CONFIGS};
use super::image::TopicImage;
use super::machine::MetadataMachine;
use super::names::{check_topic_name, no_topic};
use super::request::{AlterConfigs, AlteredResource, ConfigChange, ConfigStep, ControllerReply, Refusal};
use crate::config::dynamic::{self, DynamicConfigError};
use crate::config::group_configs::{self, GroupConfigError};
use crate::config::layers::Overrides;
use crate::topic_config::{self, Kind, quoted};

/// Kafka's numbers of what has configs.
pub mod resource {
    pub const TOPIC: i8 = 2;
    pub const BROKER: i8 = 4;
    pub const BROKER_LOGGER: i8 = 8;
    pub const CLIENT_METRICS: i8 = 16;
    pub const GROUP: i8 = 32;

    /// Kafka's name of one that is not served; `None` for a number that Kafka does not have either.
    pub fn unserved_name(kind: i8) -> Option<&'static str> {
        match kind {
            BROKER_LOGGER => Some("BROKER_LOGGER"),
            CLIENT_METRICS => Some("CLIENT_METRICS"),
            _ => None,
        }
    }
}

const SET: i8 = 0;
const DELETE: i8 = 1;
const APPEND: i8 = 2;
const SUBTRACT: i8 = 3;

/// Whose configs a resource means.
enum Target<'a> {
    Topic(&'a Arc<TopicImage>),
    /// `None` = every node.
    Node(Option<NodeId>),
    Group(&'a str),
}

impl MetadataMachine {
    pub(super) fn alter_configs(&self, request: AlterConfigs) -> Outcome<ControllerReply> {
        let AlterConfigs { resources, validate_only } = request;
        if resources.len() > CONFIG_RESOURCES_PER_REQUEST_MAX {
            return Outcome::reply(ControllerReply::ConfigsAltered(too_many(resources.len())));
        }
        let mut counts: BTreeMap<(i8, &str), u32> = BTreeMap::new();
        for resource in &resources {
            *counts.entry((resource.kind, &resource.name)).or_default() += 1;
        }
        let (mut records, mut bytes, mut new_groups) = (Vec::new(), 0, 0);
        let results = resources
            .iter()
            .map(|resource| {
                if counts.get(&(resource.kind, resource.name.as_str())).is_some_and(|count| *count > 1) {
                    return Err(invalid("The request names a resource twice: name each once."));
                }
                let Some(record) = self.alter_one(resource)? else { return Ok(()) };
                if bytes + record.len() > MACHINE_PROPOSAL_BYTES_MAX {
                    return Err(invalid(
                        "These changes do not fit one change of the metadata: split the request.",
                    ));
                }
                if resource.kind == resource::GROUP && self.image.group_configs(&resource.name).is_empty() {
                    if self.image.group_configs.len() + new_groups >= GROUPS_WITH_CONFIGS_MAX {
                        return Err(invalid(format!(
                            "{GROUPS_WITH_CONFIGS_MAX} groups have configs of their own, as many as may; delete those of \
                             a group first."
                        )));
                    }
                    new_groups += 1;
                }
                bytes += record.len();
                records.push(record);
                Ok(())
            })
            .collect();
        if validate_only {
            records.clear();
        }
        Outcome { records, reply: ControllerReply::ConfigsAltered(results) }
    }

    /// The record that a resource's change comes to; `None` where all stays as it is.
    fn alter_one(&self, resource: &AlteredResource) -> Result<Option<Vec<u8>>, Refusal> {
        check_shape(&resource.change)?;
        let target = self.target(resource)?;
        let current = match &target {
            Target::Topic(topic) => &topic.overrides,
            Target::Node(None) => self.image.cluster_configs(),
            Target::Node(Some(node)) => self.image.node_configs(*node),
            Target::Group(group) => self.image.group_configs(group),
        };
        let changed = self.changed(&target, current, &resource.change)?;
        if changed == *current {
            return Ok(None);
        }
        match target {
            Target::Topic(_) => check_together(&self.runtime().topics, &changed)?,
            Target::Group(_) => {
                group_configs::check_together(&self.layers(), &changed).map_err(refused_of_group)?;
            }
            Target::Node(_) => {}
        }
        let configs: Configs =
            changed.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let record = match target {
            Target::Topic(topic) => Record::TopicConfigs(TopicConfigsRecord { id: topic.id.0, configs }),
            Target::Node(node) => {
                Record::NodeConfigs(NodeConfigsRecord { node: node.map(|node| node.0), configs })
            }
            Target::Group(group) => {
                Record::GroupConfigs(GroupConfigsRecord { group: group.to_owned(), configs })
            }
        };
        Ok(Some(record.encode()))
    }

    fn target<'a>(&'a self, resource: &'a AlteredResource) -> Result<Target<'a>, Refusal> {
        let name = resource.name.as_str();
        match resource.kind {
            resource::TOPIC if name.is_empty() => {
                Err(invalid("A topic has a name; defaults of topics are configs of brokers."))
            }
            resource::TOPIC => {
                check_topic_name(name)
                    .map_err(|text| Refusal::new(ErrorCode::InvalidTopicException, text))?;
                self.image.topic(name).map(Target::Topic).ok_or_else(|| {
                    let text = no_topic(name);
                    Refusal::new(ErrorCode::UnknownTopicOrPartition, text)
                })
            }
            resource::BROKER => node_of(name, self.settings.node_id).map(Target::Node),
            resource::GROUP => self.group_of(name).map(Target::Group),
            kind => Err(unserved(kind)),
        }
    }

    /// The group that a GROUP resource names, whether there is one or not, as in Kafka.
    fn group_of<'a>(&self, name: &'a str) -> Result<&'a str, Refusal> {
        if name.is_empty() {
            return Err(invalid("A group has a name; defaults of groups are settings of the broker."));
        }
        if name.len() > GROUP_TEXT_BYTES_MAX {
            return Err(invalid(format!(
                "The name of the group is {} bytes long and may be {GROUP_TEXT_BYTES_MAX}.",
                name.len()
            )));
        }
        let level = self.image.features.level(FORMAT);
        if level < FORMAT_WITH_GROUP_CONFIGS {
            let text = format!(
                "Configs of groups need {FORMAT} {FORMAT_WITH_GROUP_CONFIGS} and the cluster runs {level}; \
                 `ringlog cluster features upgrade` raises it."
            );
            return Err(Refusal::new(ErrorCode::UnsupportedVersion, text));
        }
        Ok(name)
    }

    fn changed(
        &self,
        target: &Target<'_>,
        current: &Overrides,
        change: &ConfigChange,
    ) -> Result<Overrides, Refusal> {
        let mut changed = current.clone();
        match change {
            ConfigChange::Replace(configs) => {
                changed.clear();
                for (key, value) in configs {
                    self.set(target, &mut changed, key, value.as_deref().unwrap_or_default())?;
                }
            }
            ConfigChange::Each(steps) => {
                for step in steps {
                    self.take_step(target, &mut changed, step)?;
                }
            }
        }
        Ok(changed)
    }

    fn take_step(
        &self,
        target: &Target<'_>,
        configs: &mut Overrides,
        step: &ConfigStep,
    ) -> Result<(), Refusal> {
        let ConfigStep { key, operation, value } = step;
        let value = value.as_deref().unwrap_or_default();
        match *operation {
            SET => self.set(target, configs, key, value),
            DELETE => {
                configs.remove(key.as_str());
                Ok(())
            }
            APPEND | SUBTRACT => {
                let list = self.edited_list(target, configs, step, value)?;
                self.set(target, configs, key, &list)
            }
            other => {
                Err(invalid(format!("{other} is no operation on config '{}': 0 to 3 are.", quoted(key))))
            }
        }
    }

    fn set(
        &self,
        target: &Target<'_>,
        configs: &mut Overrides,
        key: &str,
        value: &str,
    ) -> Result<(), Refusal> {
        match target {
            Target::Topic(_) => drop(check_config(key, Some(value))?),
            Target::Node(_) => {
                dynamic::check(key, value, self.settings.request_bytes_max).map_err(refused)?
            }
            Target::Group(_) => group_configs::check(key, value).map_err(refused_of_group)?,
        }
        configs.insert(Arc::from(key), Arc::from(value.trim()));
        Ok(())
    }

    /// A list with items put in or taken out; one that is not set begins as its default.
    fn edited_list(
        &self,
        target: &Target<'_>,
        configs: &Overrides,
        step: &ConfigStep,
        value: &str,
    ) -> Result<String, Refusal> {
        let key = step.key.as_str();
        let appends = step.operation == APPEND;
        let found = topic_config::find(key).filter(|_| matches!(target, Target::Topic(_)));
        let Some(found) = found else {
            // The refusal of the key itself says more, where there is one.
            self.set(target, &mut configs.clone(), key, value)?;
            return Err(no_list(key, appends));
        };
        if !matches!(found.kind, Kind::List(_) | Kind::Replicas) {
            return Err(no_list(key, appends));
        }
        let current = configs.get(key).map_or(found.default, |current| current);
        let items = |text: &str| {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            items.map(str::to_owned).collect::<Vec<_>>()
        };
        let (mut list, given) = (items(current), items(value));
        if appends {
            let mut known: BTreeSet<String> = list.iter().cloned().collect();
            list.extend(given.into_iter().filter(|item| known.insert(item.clone())));
        } else {
            let taken: BTreeSet<String> = given.into_iter().collect();
            list.retain(|item| !taken.contains(item));
        }
        Ok(list.join(","))
    }
}

/// What Kafka checks first, whatever the resource.
fn check_shape(change: &ConfigChange) -> Result<(), Refusal> {
    let (keys, nulls): (Vec<&str>, Vec<&str>) = match change {
        ConfigChange::Replace(configs) => (
            configs.iter().map(|(key, _)| key.as_str()).collect(),
            configs.iter().filter(|(_, value)| value.is_none()).map(|(key, _)| key.as_str()).collect(),
        ),
        ConfigChange::Each(steps) => (
            steps.iter().map(|step| step.key.as_str()).collect(),
            steps
                .iter()
                .filter(|step| step.operation != DELETE && step.value.is_none())
                .map(|step| step.key.as_str())
                .collect(),
        ),
    };
    let mut seen = BTreeSet::new();
    if let Some(twice) = keys.into_iter().find(|key| !seen.insert(*key)) {
        return Err(invalid(format!("The request gives config '{}' twice.", quoted(twice))));
    }
    match nulls.first() {
        None => Ok(()),
        Some(first) => Err(invalid(format!("Config '{}' is given no value.", quoted(first)))),
    }
}

/// The node that a BROKER resource names; `None` for every node.
///
/// # Errors
/// INVALID_REQUEST: it names no node, or another than this one, which alone knows its settings.
pub fn node_of(name: &str, me: NodeId) -> Result<Option<NodeId>, Refusal> {
    if name.is_empty() {
        return Ok(None);
    }
    match name.parse::<i32>() {
        Ok(node) if node == me.0 => Ok(Some(me)),
        Ok(node) => Err(invalid(format!("There is no broker {node}; broker {} is.", me.0))),
        Err(_) => Err(invalid(format!("A broker is named by its number, and '{}' is none.", quoted(name)))),
    }
}

/// A resource that has no configs here.
pub fn unserved(kind: i8) -> Refusal {
    match resource::unserved_name(kind) {
        Some(name) => invalid(format!(
            "Configs of {name} resources are not built yet; TOPIC, BROKER and GROUP have some."
        )),
        None => invalid(format!("There is no resource type {kind}.")),
    }
}

/// One refusal for each resource, with the reason in the first only: the answer must not outgrow the request.
pub fn too_many(count: usize) -> Vec<Result<(), Refusal>> {
    let text = format!(
        "The request names {count} resources and may name {CONFIG_RESOURCES_PER_REQUEST_MAX}: split it in several."
    );
    let texts = std::iter::once(text).chain(std::iter::repeat_with(String::new));
    texts.take(count).map(|text| Err(invalid(text))).collect()
}

fn no_list(key: &str, appends: bool) -> Refusal {
    let verb = if appends { "APPEND" } else { "SUBTRACT" };
    let text = format!("Config '{}' is no list, and {verb} needs one.", quoted(key));
    Refusal::new(ErrorCode::InvalidConfig, text)
}

fn refused(error: DynamicConfigError) -> Refusal {
    let code = match error {
        DynamicConfigError::Unknown { .. } => ErrorCode::InvalidConfig,
        // As Kafka answers for brokers.
        DynamicConfigError::Fixed { .. } | DynamicConfigError::Invalid { .. } => ErrorCode::InvalidRequest,
    };
    Refusal::new(code, error.to_string())
}

fn refused_of_group(error: GroupConfigError) -> Refusal {
    Refusal::new(ErrorCode::InvalidConfig, error.to_string())
}

fn invalid(text: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::InvalidRequest, text)
}
