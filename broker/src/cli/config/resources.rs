//! `ringlog config list|describe|alter`: the configs that a running cluster keeps of topics, brokers and groups. Owns how these are named on
//! the command line, and what the verbs print.

use std::process::ExitCode;

use ringlog_bench::client::Client;
use ringlog_bench::client::configs::ConfigResource;
use serde::Serialize;

use super::super::configs::{self, CHANGES, Changes, DescribedConfig};
use super::super::output::{new_table, rendered};
use super::super::shell::{self, BrokerArgs, Outcome, VerbError};

const NAMES: &str = "\
Whose configs: topic/NAME, group/NAME, broker/NUMBER, or brokers for what is set on every broker.";

const DESCRIBE_EXAMPLES: &str = "\
Examples:
  ringlog config describe topic/orders group/billing
  ringlog config describe broker/1 --all
  ringlog config describe brokers -o json

Exit codes: 0 done, 1 refused by the broker or not reached, 2 wrong usage.";

const ALTER_EXAMPLES: &str = "\
Examples:
  ringlog config alter group/billing --set consumer.session.timeout.ms=50000
  ringlog config alter topic/orders --set retention.ms=60000 --unset segment.ms
  ringlog config alter brokers --set message.max.bytes=2000000 --dry-run

All changes of one call happen or none, at once and without a restart. A key that is unset goes back to the value that holds without it; \
`ringlog config describe NAME --all` lists the keys. Exit codes: 0 done, 1 refused by the broker or not reached, 2 wrong usage.";

/// What to list.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    broker: BrokerArgs,
}

/// What to describe.
#[derive(Debug, clap::Args)]
#[command(before_help = NAMES, after_help = DESCRIBE_EXAMPLES)]
pub struct DescribeArgs {
    #[command(flatten)]
    broker: BrokerArgs,
    #[arg(required = true, value_name = "WHOSE", value_parser = parse_resource)]
    resources: Vec<ConfigResource>,
    /// Configs at their default too; JSON always holds them
    #[arg(short, long)]
    all: bool,
}

/// What to alter.
#[derive(Debug, clap::Args)]
#[command(before_help = NAMES, after_help = ALTER_EXAMPLES)]
#[command(group(clap::ArgGroup::new("changes").required(true).multiple(true).args(CHANGES)))]
pub struct AlterArgs {
    #[command(flatten)]
    broker: BrokerArgs,
    #[arg(value_name = "WHOSE", value_parser = parse_resource)]
    resource: ConfigResource,
    #[command(flatten)]
    changes: Changes,
}

fn parse_resource(text: &str) -> Result<ConfigResource, String> {
    let (kind, name) = text.split_once('/').unwrap_or((text, ""));
    let wrong = || format!("'{text}' is none of topic/NAME, group/NAME, broker/NUMBER and brokers");
    match (kind, name) {
        ("brokers", "") if !text.contains('/') => Ok(ConfigResource::EveryBroker),
        (_, "") => Err(wrong()),
        ("topic", name) => Ok(ConfigResource::Topic(name.to_owned())),
        // Names of groups may hold anything, slashes too.
        ("group", name) => Ok(ConfigResource::Group(name.to_owned())),
        ("broker", number) => match number.parse() {
            Ok(number @ 0..) => Ok(ConfigResource::Broker(number)),
            _ => Err(format!("'{number}' is no broker's number, which is 0 or more")),
        },
        _ => Err(wrong()),
    }
}

/// As the command line names it.
fn written(of: &ConfigResource) -> String {
    match of {
        ConfigResource::Topic(name) => format!("topic/{name}"),
        ConfigResource::Group(name) => format!("group/{name}"),
        ConfigResource::Broker(number) => format!("broker/{number}"),
        ConfigResource::EveryBroker => "brokers".to_owned(),
    }
}

/// Whose configs, as JSON says it: the command line's own words.
#[derive(Debug, Serialize)]
struct Configs {
    resource: String,
    configs: Vec<DescribedConfig>,
}

#[derive(Debug, Serialize)]
struct Altered {
    resource: String,
    dry_run: bool,
    /// The keys that were named, as they are now.
    configs: Vec<DescribedConfig>,
}

pub(super) fn list(args: ListArgs) -> ExitCode {
    shell::run("config", &args.broker, |client| async move { listed(&client).await })
}

async fn listed(client: &Client) -> Result<Outcome, VerbError> {
    let names: Vec<String> = client.config_resources().await?.iter().map(written).collect();
    let mut table = new_table(&["WHOSE"]);
    for name in &names {
        table.add_row([name]);
    }
    Ok(Outcome { table: rendered(&mut table), json: serde_json::to_value(names)?, failures: Vec::new() })
}

pub(super) fn describe(args: DescribeArgs) -> ExitCode {
    let DescribeArgs { broker, resources, all } = args;
    shell::run("config", &broker, |client| async move { described(&client, &resources, all).await })
}

async fn described(client: &Client, resources: &[ConfigResource], all: bool) -> Result<Outcome, VerbError> {
    let mut outcome = Outcome::default();
    let mut found = Vec::new();
    for of in resources {
        match configs::describe(client, of).await {
            Ok(configs) => {
                let resource = written(of);
                let count = if configs.is_empty() { ": nothing is set" } else { "" };
                outcome.table.push_str(&format!("{resource}{count}\n{}", configs::table(&configs, all)));
                found.push(Configs { resource, configs });
            }
            Err(error) => outcome.failures.push(error.to_string()),
        }
    }
    outcome.json = serde_json::to_value(found)?;
    Ok(outcome)
}

pub(super) fn alter(args: AlterArgs) -> ExitCode {
    let AlterArgs { broker, resource, changes } = args;
    shell::run("config", &broker, |client| async move { altered(&client, &resource, &changes).await })
}

async fn altered(client: &Client, of: &ConfigResource, changes: &Changes) -> Result<Outcome, VerbError> {
    let configs = configs::change(client, of, changes).await?;
    let (resource, dry_run) = (written(of), changes.dry_run);
    let table = configs::sentence(&resource, dry_run, &configs);
    let json = serde_json::to_value(Altered { resource, dry_run, configs })?;
    Ok(Outcome { table, json, failures: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_named_by_kind_and_name() {
        for (text, expected) in [
            ("topic/orders", ConfigResource::Topic("orders".to_owned())),
            ("group/a/b", ConfigResource::Group("a/b".to_owned())),
            ("broker/1", ConfigResource::Broker(1)),
            ("brokers", ConfigResource::EveryBroker),
        ] {
            assert_eq!(parse_resource(text), Ok(expected.clone()));
            assert_eq!(written(&expected), text);
        }
        for wrong in [
            "",
            "orders",
            "topic/",
            "topic",
            "topics/a",
            "broker/",
            "broker/x",
            "broker/-1",
            "brokers/",
            "/a",
        ] {
            let text = parse_resource(wrong).expect_err(wrong);
            assert!(text.starts_with('\''), "{text}");
        }
    }
}
