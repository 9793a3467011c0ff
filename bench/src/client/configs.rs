//! Configs of topics over [`Client`]: reading them with their sources, and changing single ones.

use std::time::Duration;

use ringlog_protocol::api::ApiKey;
use ringlog_protocol::messages::describe_configs::{
    DescribeConfigsRequest, DescribeConfigsResource, DescribeConfigsResponse,
};
use ringlog_protocol::messages::incremental_alter_configs::{
    AlterConfigsResource, AlterableConfig, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse,
};
use ringlog_protocol::wire::Reader;

use super::admin::{missing, refused_if, unreadable};
use super::cluster::Client;
use super::error::ClientError;

/// How long the broker may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Kafka's `ConfigResource.Type` of a topic.
const TOPIC: i8 = 2;
/// Kafka's `AlterConfigOp.OpType`.
const SET: i8 = 0;
const DELETE: i8 = 1;

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
    /// Every config of a topic, sorted by key.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the broker's own text, and failed requests.
    pub async fn topic_configs(&self, name: &str) -> Result<Vec<ConfigValue>, ClientError> {
        let connection = self.any_connection().await?;
        let version = connection.version(ApiKey::DescribeConfigs)?;
        let resource =
            DescribeConfigsResource { resource_type: TOPIC, resource_name: name, configuration_keys: None };
        let request =
            DescribeConfigsRequest { resources: vec![resource], ..DescribeConfigsRequest::default() };
        let body = connection
            .call(ApiKey::DescribeConfigs, version, TIMEOUT, |writer, version| {
                request.encode(writer, version)
            })
            .await?;
        let response = DescribeConfigsResponse::decode(&mut Reader::new(&body), version)
            .map_err(|source| unreadable(&connection, ApiKey::DescribeConfigs, version, source))?;
        let subject = format!("topic '{name}'");
        let result = response.results.iter().find(|result| result.resource_name == name);
        let result = result.ok_or_else(|| missing(&connection, ApiKey::DescribeConfigs, &subject))?;
        refused_if(&connection, ApiKey::DescribeConfigs, subject, result.error_code, result.error_message)?;
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

    /// Changes single configs of a topic: all of these or none. With `validate_only` the broker judges and changes nothing.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the broker's own text, and failed requests.
    pub async fn alter_topic_configs(
        &self,
        name: &str,
        steps: &[ConfigStep<'_>],
        validate_only: bool,
    ) -> Result<(), ClientError> {
        let connection = self.any_connection().await?;
        let version = connection.version(ApiKey::IncrementalAlterConfigs)?;
        let configs = steps.iter().map(|step| match *step {
            ConfigStep::Set(name, value) => {
                AlterableConfig { name, config_operation: SET, value: Some(value) }
            }
            ConfigStep::Unset(name) => AlterableConfig { name, config_operation: DELETE, value: None },
        });
        let resource =
            AlterConfigsResource { resource_type: TOPIC, resource_name: name, configs: configs.collect() };
        let request = IncrementalAlterConfigsRequest { resources: vec![resource], validate_only };
        let body = connection
            .call(ApiKey::IncrementalAlterConfigs, version, TIMEOUT, |writer, version| {
                request.encode(writer, version)
            })
            .await?;
        let response = IncrementalAlterConfigsResponse::decode(&mut Reader::new(&body), version)
            .map_err(|source| unreadable(&connection, ApiKey::IncrementalAlterConfigs, version, source))?;
        let subject = format!("topic '{name}'");
        let result = response.responses.iter().find(|result| result.resource_name == name);
        let result = result.ok_or_else(|| missing(&connection, ApiKey::IncrementalAlterConfigs, &subject))?;
        let api = ApiKey::IncrementalAlterConfigs;
        refused_if(&connection, api, subject, result.error_code, result.error_message)
    }
}
