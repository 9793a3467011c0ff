//! Configs of topics, brokers and groups over [`Client`]: reading them with their sources, changing single ones, and listing who has some.

use std::rc::Rc;
use std::time::Duration;

use ringlog_protocol::api::ApiKey;
use ringlog_protocol::messages::describe_configs::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResponse,
};
use ringlog_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
};
use ringlog_protocol::messages::list_config_resources::{
    ListConfigResourcesRequest, ListConfigResourcesResponse,
};
use ringlog_protocol::wire::{Reader, Writer};

use super::admin::{missing, refused_if, unreadable};
use super::cluster::{Client, Lane};
use super::connection::Connection;
use super::error::ClientError;

/// How long the broker may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Kafka's `ConfigResource.Type`.
const TOPIC: i8 = 2;
const BROKER: i8 = 4;
const GROUP: i8 = 32;
/// Kafka's `AlterConfigOp.OpType`.
const SET: i8 = 0;
const DELETE: i8 = 1;

/// Whose configs are meant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConfigResource {
    /// A topic, by name.
    Topic(String),
    /// A broker, by number.
    Broker(i32),
    /// What is set for every broker.
    EveryBroker,
    /// A consumer group, by name.
    Group(String),
}

impl ConfigResource {
    fn number(&self) -> i8 {
        match self {
            ConfigResource::Topic(_) => TOPIC,
            ConfigResource::Broker(_) | ConfigResource::EveryBroker => BROKER,
            ConfigResource::Group(_) => GROUP,
        }
    }

    fn name(&self) -> String {
        match self {
            ConfigResource::Topic(name) | ConfigResource::Group(name) => name.clone(),
            ConfigResource::Broker(number) => number.to_string(),
            ConfigResource::EveryBroker => String::new(),
        }
    }
}

impl std::fmt::Display for ConfigResource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ConfigResource::Topic(name) => write!(formatter, "topic '{name}'"),
            ConfigResource::Broker(number) => write!(formatter, "broker {number}"),
            ConfigResource::EveryBroker => formatter.write_str("all brokers"),
            ConfigResource::Group(name) => write!(formatter, "group '{name}'"),
        }
    }
}

/// A config in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigValue {
    /// Its key.
    pub name: String,
    /// `None` where the broker tells none: a secret, or no value.
    pub value: Option<String>,
    /// Where it was set.
    pub source: ConfigSource,
}

/// Where a value was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigSource {
    /// On the topic.
    Topic,
    /// On one broker, at run time.
    DynamicBroker,
    /// On every broker, at run time.
    DynamicCluster,
    /// In the broker's own configuration.
    StaticBroker,
    /// Nowhere.
    Default,
    /// On the group.
    Group,
    /// A number that this build does not know.
    Other(i8),
}

impl ConfigSource {
    fn from_number(number: i8) -> ConfigSource {
        match number {
            1 => ConfigSource::Topic,
            2 => ConfigSource::DynamicBroker,
            3 => ConfigSource::DynamicCluster,
            4 => ConfigSource::StaticBroker,
            5 => ConfigSource::Default,
            8 => ConfigSource::Group,
            other => ConfigSource::Other(other),
        }
    }
}

impl std::fmt::Display for ConfigSource {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ConfigSource::Topic => formatter.write_str("topic"),
            ConfigSource::DynamicBroker => formatter.write_str("broker, at run time"),
            ConfigSource::DynamicCluster => formatter.write_str("all brokers, at run time"),
            ConfigSource::StaticBroker => formatter.write_str("broker's configuration"),
            ConfigSource::Default => formatter.write_str("default"),
            ConfigSource::Group => formatter.write_str("group"),
            ConfigSource::Other(number) => write!(formatter, "source {number}"),
        }
    }
}

/// What becomes of one config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigStep<'a> {
    /// It gets this value.
    Set(&'a str, &'a str),
    /// It goes back to what the broker has.
    Unset(&'a str),
}

impl Client {
    /// Every config of it, sorted by key; of [`ConfigResource::EveryBroker`] those that are set.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the broker's own text, and failed requests.
    pub async fn configs(&self, of: &ConfigResource) -> Result<Vec<ConfigValue>, ClientError> {
        let api = ApiKey::DescribeConfigs;
        let connection = self.connection_for(of).await?;
        let version = connection.version(api)?;
        let name = of.name();
        let resource = DescribeConfigsResource {
            resource_type: of.number(),
            resource_name: &name,
            configuration_keys: None,
        };
        let request =
            DescribeConfigsRequest { resources: vec![resource], ..DescribeConfigsRequest::default() };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let body = connection.call(api, version, TIMEOUT, encode).await?;
        let response = DescribeConfigsResponse::decode(&mut Reader::new(&body), version)
            .map_err(|source| unreadable(&connection, api, version, source))?;
        let result = response.results.iter().find(|result| result.resource_name == name);
        let result = result.ok_or_else(|| missing(&connection, api, &of.to_string()))?;
        refused_if(&connection, api, of, result.error_code, result.error_message)?;
        let mut configs: Vec<ConfigValue> = result
            .configs
            .iter()
            .map(|config| ConfigValue {
                name: config.name.to_owned(),
                value: config.value.map(str::to_owned),
                source: ConfigSource::from_number(config.config_source),
            })
            .collect();
        configs.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(configs)
    }

    /// Changes single configs of it: all of these or none. With `validate_only` the broker judges and changes nothing.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the broker's own text, and failed requests.
    pub async fn alter_configs(
        &self,
        of: &ConfigResource,
        steps: &[ConfigStep<'_>],
        validate_only: bool,
    ) -> Result<(), ClientError> {
        let api = ApiKey::IncrementalAlterConfigs;
        let connection = self.connection_for(of).await?;
        let version = connection.version(api)?;
        let configs = steps.iter().map(|step| match *step {
            ConfigStep::Set(name, value) => {
                AlterableConfig { name, config_operation: SET, value: Some(value) }
            }
            ConfigStep::Unset(name) => AlterableConfig { name, config_operation: DELETE, value: None },
        });
        let name = of.name();
        let resource = AlterConfigsResource {
            resource_type: of.number(),
            resource_name: &name,
            configs: configs.collect(),
        };
        let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let body = connection.call(api, version, TIMEOUT, encode).await?;
        let response = IncrementalAlterConfigsResponse::decode(&mut Reader::new(&body), version)
            .map_err(|source| unreadable(&connection, api, version, source))?;
        let result = response.responses.iter().find(|result| result.resource_name == name);
        let result = result.ok_or_else(|| missing(&connection, api, &of.to_string()))?;
        refused_if(&connection, api, of, result.error_code, result.error_message)
    }

    /// The topics, the brokers, and the groups that have configs of their own.
    ///
    /// # Errors
    /// [`ClientError::Refused`], and failed requests; an older broker serves no such request.
    pub async fn config_resources(&self) -> Result<Vec<ConfigResource>, ClientError> {
        let api = ApiKey::ListConfigResources;
        let connection = self.any_connection().await?;
        let version = connection.version(api)?;
        let request = ListConfigResourcesRequest { resource_types: vec![TOPIC, BROKER, GROUP] };
        let encode = |writer: &mut Writer, version| request.encode(writer, version);
        let body = connection.call(api, version, TIMEOUT, encode).await?;
        let response = ListConfigResourcesResponse::decode(&mut Reader::new(&body), version)
            .map_err(|source| unreadable(&connection, api, version, source))?;
        refused_if(&connection, api, "what has configs", response.error_code, None)?;
        let mut found: Vec<ConfigResource> = response
            .config_resources
            .iter()
            .filter_map(|resource| match resource.resource_type {
                TOPIC => Some(ConfigResource::Topic(resource.resource_name.to_owned())),
                GROUP => Some(ConfigResource::Group(resource.resource_name.to_owned())),
                BROKER => resource.resource_name.parse().ok().map(ConfigResource::Broker),
                _ => None,
            })
            .collect();
        found.sort();
        Ok(found)
    }

    /// A broker's own configs are its own to tell; all else any broker knows.
    async fn connection_for(&self, of: &ConfigResource) -> Result<Rc<Connection>, ClientError> {
        let ConfigResource::Broker(node_id) = *of else { return self.any_connection().await };
        // Which brokers there are comes with any metadata.
        self.metadata(Some(&[])).await?;
        self.connection(Lane { node_id, number: 0 }).await
    }
}
