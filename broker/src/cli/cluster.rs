//! Owns `ringlog cluster`: what the brokers of a cluster run together, of any Kafka cluster, as tables or JSON.
//!
//! It keeps no state and knows the broker only through its Kafka port. Results go to standard output, everything else to standard
//! error.

mod features;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Subcommand;
use ringlog_bench::client::address::parse_bootstrap;
use ringlog_bench::client::{Client, ClientConfig, ClientError};

use super::output::Output;
use crate::process::exit::Exit;

/// Show and change what the cluster runs as a whole.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Broker addresses, HOST:PORT, separated by commas
    #[arg(short, long, global = true, default_value = "127.0.0.1:9092", value_name = "LIST")]
    pub bootstrap_server: String,

    /// Table or JSON on standard output
    #[arg(short, long, global = true, value_enum, default_value = "table")]
    pub output: Output,

    #[command(subcommand)]
    pub verb: Verb,
}

/// What to do with the cluster.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Show the levels of features that the cluster runs and could run, or change them
    Features(features::Args),
}

#[derive(Debug, thiserror::Error)]
enum ClusterError {
    #[error("{source}")]
    Client {
        #[from]
        source: ClientError,
    },
    #[error("cannot start the client: {source}")]
    Setup {
        #[from]
        source: ringlog_io::IoSetupError,
    },
    #[error("cannot encode the result: {source}")]
    Json {
        #[from]
        source: serde_json::Error,
    },
}

/// What a verb found out or did.
#[derive(Debug, Default)]
struct Outcome {
    table: String,
    json: serde_json::Value,
}

/// Runs the verb. Exit codes: 0 done, 1 failed, 2 wrong usage.
pub fn run(args: Args) -> ExitCode {
    let bootstrap = match parse_bootstrap(&args.bootstrap_server) {
        Ok(bootstrap) => bootstrap,
        Err(error) => {
            eprintln!("ringlog cluster: --bootstrap-server: {error}");
            return Exit::Usage.into();
        }
    };
    let output = args.output;
    let result = ringlog_bench::runtime::block_on(|io| async move {
        let client = Client::connect(&io, ClientConfig::new(bootstrap)).await?;
        match args.verb {
            Verb::Features(args) => features::run(&client, args).await,
        }
    });
    let outcome = match result.map_err(ClusterError::from).and_then(|outcome| outcome) {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("ringlog cluster: {error}");
            return Exit::Failure.into();
        }
    };
    let text = match output {
        Output::Table => outcome.table,
        Output::Json => format!("{:#}\n", outcome.json),
    };
    match io::stdout().lock().write_all(text.as_bytes()) {
        Ok(()) => Exit::Success.into(),
        Err(_) => Exit::Failure.into(),
    }
}
