//! The shell around the verbs that ask brokers: the address, the client, what is printed, the exit code. Owns what is the same in all of
//! them; what a verb does and finds is its own.

use std::io::{self, Write};
use std::process::ExitCode;

use ringlog_bench::client::address::parse_bootstrap;
use ringlog_bench::client::{Client, ClientConfig, ClientError};
use ringlog_io::IoSetupError;

use super::confirm::Unconfirmed;
use super::output::Output;
use crate::process::exit::Exit;

/// Whom to ask, and how to print it.
#[derive(Debug, clap::Args)]
pub struct BrokerArgs {
    /// Broker addresses, HOST:PORT, separated by commas
    #[arg(short, long, global = true, default_value = "127.0.0.1:9092", value_name = "LIST")]
    pub bootstrap_server: String,

    /// Table or JSON on standard output
    #[arg(short, long, global = true, value_enum, default_value = "table")]
    pub output: Output,
}

/// What a verb found out or did.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub table: String,
    pub json: serde_json::Value,
    /// Texts of what failed, in order. Any makes the exit code 1.
    pub failures: Vec<String>,
}

/// Why a verb did nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum VerbError {
    #[error("{source}")]
    Client {
        #[from]
        source: ClientError,
    },
    #[error("cannot start the client: {source}")]
    Setup {
        #[from]
        source: IoSetupError,
    },
    #[error("cannot encode the result: {source}")]
    Json {
        #[from]
        source: serde_json::Error,
    },
    #[error(transparent)]
    Unconfirmed(#[from] Unconfirmed),
    /// The verb's own reason.
    #[error("{0}")]
    Own(Box<dyn std::error::Error>),
}

impl VerbError {
    /// Another command line would have done it.
    fn is_usage(&self) -> bool {
        matches!(self, VerbError::Unconfirmed(Unconfirmed::NoTerminal))
    }
}

/// Runs a verb of `ringlog <command>`. Exit codes: 0 done, 1 failed or declined, 2 wrong usage.
pub(super) fn run<F: Future<Output = Result<Outcome, VerbError>>>(
    command: &str,
    args: &BrokerArgs,
    verb: impl FnOnce(Client) -> F,
) -> ExitCode {
    let bootstrap = match parse_bootstrap(&args.bootstrap_server) {
        Ok(bootstrap) => bootstrap,
        Err(error) => {
            eprintln!("ringlog {command}: --bootstrap-server: {error}");
            return Exit::Usage.into();
        }
    };
    let result = ringlog_bench::runtime::block_on(|io| async move {
        verb(Client::connect(&io, ClientConfig::new(bootstrap)).await?).await
    });
    match result.map_err(VerbError::from).and_then(|outcome| outcome) {
        Ok(outcome) => print(command, args.output, &outcome).into(),
        Err(error) => {
            eprintln!("ringlog {command}: {error}");
            if error.is_usage() { Exit::Usage.into() } else { Exit::Failure.into() }
        }
    }
}

fn print(command: &str, output: Output, outcome: &Outcome) -> Exit {
    for failure in &outcome.failures {
        eprintln!("ringlog {command}: {failure}");
    }
    let text = match output {
        Output::Table => outcome.table.clone(),
        Output::Json => format!("{:#}\n", outcome.json),
    };
    let printed = io::stdout().lock().write_all(text.as_bytes());
    if outcome.failures.is_empty() && printed.is_ok() { Exit::Success } else { Exit::Failure }
}
