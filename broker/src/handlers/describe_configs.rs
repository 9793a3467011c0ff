//! DescribeConfigs (API 32): values in force with where they come from, out of the image and this node's own configuration.

use std::collections::BTreeSet;
use std::rc::Rc;

use ringlog_protocol::error_code::ErrorCode;
use ringlog_protocol::messages::describe_configs::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResourceResult, DescribeConfigsResponse,
    DescribeConfigsResult, DescribeConfigsSynonym,
};
use ringlog_shard::limits::CONFIG_RESOURCES_PER_REQUEST_MAX;

use super::reply::reply;
use super::{Request, RequestError};
use crate::config::group_configs::{self, GroupKey};
use crate::config::keys::{self, Key, Kind, Update};
use crate::config::layers::{ConfigSource, ConfigType, Layers, Overrides, Synonym};
use crate::controller::MetadataImage;
use crate::controller::alter_configs::{node_of, resource, too_many, unserved};
use crate::controller::names::check_topic_name;
use crate::controller::request::Refusal;
use crate::core::Core;
use crate::observe::stage::Stage;
use crate::server::replies::Answer;
use crate::topic_config::report;

/// One config as it is told.
struct Described {
    name: &'static str,
    value: Option<String>,
    read_only: bool,
    source: ConfigSource,
    synonyms: Vec<Synonym>,
    config_type: ConfigType,
    doc: &'static str,
}

pub(super) fn handle(core: &Rc<Core>, request: Request) -> Result<Answer, RequestError> {
    let mut info = request.info.clone();
    let asked = DescribeConfigsRequest::decode(&mut request.body(), info.version)
        .map_err(|error| request.refuse(error))?;
    info.clock.mark(Stage::Parse, core.io.monotonic_now().as_nanos());
    let image = core.image();
    let found = describe_all(core, &image, &asked);
    let mut first_error = ErrorCode::None;
    let results = asked.resources.iter().zip(&found).map(|(resource, found)| {
        let (error, message, configs) = match found {
            Ok(described) => (ErrorCode::None, None, described.as_slice()),
            Err(refusal) => (refusal.error, Some(refusal.message.as_str()), [].as_slice()),
        };
        if first_error == ErrorCode::None {
            first_error = error;
        }
        DescribeConfigsResult {
            error_code: error.code(),
            error_message: message.filter(|text| !text.is_empty()),
            resource_type: resource.resource_type,
            resource_name: resource.resource_name,
            configs: configs.iter().map(|config| result(config, &asked)).collect(),
        }
    });
    let response =
        DescribeConfigsResponse { results: results.collect(), ..DescribeConfigsResponse::default() };
    Ok(reply(info, first_error, 4096, |writer, version| response.encode(writer, version)))
}

fn describe_all(
    core: &Core,
    image: &MetadataImage,
    asked: &DescribeConfigsRequest<'_>,
) -> Vec<Result<Vec<Described>, Refusal>> {
    let count = asked.resources.len();
    if count > CONFIG_RESOURCES_PER_REQUEST_MAX {
        return too_many(count).into_iter().map(|result| result.map(|()| Vec::new())).collect();
    }
    let mut seen = BTreeSet::new();
    let mut found = Vec::with_capacity(count);
    for wanted in &asked.resources {
        // Kafka answers twice; here nobody gets kilobytes for ten bytes as often as they like.
        found.push(if seen.insert((wanted.resource_type, wanted.resource_name)) {
            describe_one(core, image, wanted)
        } else {
            let message = "The request names a resource twice: name each once.".to_owned();
            Err(Refusal { error: ErrorCode::InvalidRequest, message })
        });
    }
    found
}

fn describe_one(
    core: &Core,
    image: &MetadataImage,
    wanted: &DescribeConfigsResource<'_>,
) -> Result<Vec<Described>, Refusal> {
    let layers = image.layers(core.config.node_id, &core.config.settings);
    let name = wanted.resource_name;
    let is_wanted = |key: &str| match &wanted.configuration_keys {
        Some(keys) if !keys.is_empty() => keys.contains(&key),
        // As Kafka takes an empty list.
        _ => true,
    };
    match wanted.resource_type {
        resource::TOPIC => {
            let refuse = |error, message| Refusal { error, message };
            check_topic_name(name).map_err(|text| refuse(ErrorCode::InvalidTopicException, text))?;
            let topic = image.topic(name).ok_or_else(|| {
                refuse(ErrorCode::UnknownTopicOrPartition, format!("There is no topic '{name}'."))
            })?;
            let defaults = image.runtime().map_or(&core.config.topics, |runtime| &runtime.topics);
            let effective = report::effective(defaults, &layers, &topic.overrides);
            let keys = report::in_force().zip(effective).filter(|(key, _)| is_wanted(key.name));
            Ok(keys
                .map(|(key, effective)| Described {
                    name: key.name,
                    value: Some(effective.value),
                    read_only: false,
                    source: effective.source,
                    synonyms: report::synonyms(key, &layers, &topic.overrides),
                    config_type: key.kind.config_type(),
                    doc: key.doc,
                })
                .collect())
        }
        resource::BROKER => {
            let node = node_of(name, core.config.node_id)?;
            let keys = keys::ALL.iter().filter(|key| !matches!(key.kind, Kind::Alias(_)));
            let keys = keys.filter(|key| is_wanted(key.name));
            Ok(match node {
                Some(_) => keys.map(|key| of_node(&layers, key)).collect(),
                None => keys.filter_map(|key| of_every_node(&layers, key)).collect(),
            })
        }
        resource::GROUP if name.is_empty() => {
            let message = "A group has a name that is not empty.".to_owned();
            Err(Refusal { error: ErrorCode::InvalidRequest, message })
        }
        resource::GROUP => {
            let own = image.group_configs(name);
            let keys = group_configs::KEYS.iter().filter(|key| is_wanted(key.name));
            Ok(keys.map(|key| of_group(&layers, own, key)).collect())
        }
        kind => Err(unserved(kind)),
    }
}

fn of_node(layers: &Layers<'_>, key: &'static Key) -> Described {
    let synonyms = layers.synonyms(key);
    Described {
        name: key.name,
        value: layers.value(key),
        read_only: key.update != Update::Runtime,
        source: synonyms.first().map_or(ConfigSource::Default, |first| first.source),
        synonyms,
        config_type: key.kind.config_type(),
        doc: key.doc,
    }
}

/// Only what is set for every node: what holds where it is not is each node's own.
fn of_every_node(layers: &Layers<'_>, key: &'static Key) -> Option<Described> {
    let value = layers.cluster.get(key.name)?.to_string();
    let synonym = Synonym { name: key.name, value: value.clone(), source: ConfigSource::Cluster };
    Some(Described {
        name: key.name,
        value: Some(value),
        read_only: key.update != Update::Runtime,
        source: ConfigSource::Cluster,
        synonyms: vec![synonym],
        config_type: key.kind.config_type(),
        doc: key.doc,
    })
}

fn of_group(layers: &Layers<'_>, own: &Overrides, key: &'static GroupKey) -> Described {
    let synonyms = group_configs::synonyms(key, layers, own);
    let in_force = synonyms.first();
    Described {
        name: key.name,
        value: in_force.map(|first| first.value.clone()),
        read_only: false,
        source: in_force.map_or(ConfigSource::Default, |first| first.source),
        synonyms,
        config_type: ConfigType::Int,
        doc: key.doc,
    }
}

fn result<'a>(
    config: &'a Described,
    asked: &DescribeConfigsRequest<'_>,
) -> DescribeConfigsResourceResult<'a> {
    let synonyms = config.synonyms.iter().filter(|_| asked.include_synonyms);
    DescribeConfigsResourceResult {
        name: config.name,
        value: config.value.as_deref(),
        read_only: config.read_only,
        config_source: config.source as i8,
        // No key holds a secret: TLS and SASL are not built.
        is_sensitive: false,
        synonyms: synonyms
            .map(|synonym| DescribeConfigsSynonym {
                name: synonym.name,
                value: Some(&synonym.value),
                source: synonym.source as i8,
            })
            .collect(),
        config_type: config.config_type as i8,
        documentation: asked.include_documentation.then_some(config.doc),
    }
}
