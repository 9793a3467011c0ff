//! Owns `ringlog cluster`: what the brokers of a cluster run together, of any Kafka cluster, as tables or JSON.
//!
//! It keeps no state and knows the broker only through its Kafka port. Results go to standard output, everything else to standard
//! error.

mod features;

use std::process::ExitCode;

use clap::Subcommand;

use super::shell::{self, BrokerArgs};

/// Show and change what the cluster runs as a whole.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub broker: BrokerArgs,

    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do with the cluster.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show the levels of features that the cluster runs and could run, or change them
    Features(features::Args),
}

/// Runs the verb.
pub fn run(args: Args) -> ExitCode {
    let Args { broker, verb } = args;
    shell::run("cluster", &broker, |client| async move {
        match verb {
            Verb::Features(args) => features::run(&client, args).await,
        }
    })
}
