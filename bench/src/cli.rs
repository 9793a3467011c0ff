//! The commands of `ringlog bench` and `ringlog-bench`: without a verb the load generator, and beside it what makes and
//! judges histories. It only hands over.

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};

use crate::args::Args;
use crate::history_command::{VerifyArgs, verify};
use crate::history_load::{self, HistoryArgs};

/// See [`Args`].
#[derive(Clone, Debug, ClapArgs)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub struct BenchArgs {
    /// Another thing to do than measuring.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// The load.
    #[command(flatten)]
    pub args: Args,
}

/// What is not measuring.
#[derive(Clone, Debug, Subcommand)]
pub enum BenchCommand {
    /// Judge a history of sends and polls by the rules of a log
    Verify(VerifyArgs),
    /// Send and read unique values and write down what happened, for verify
    History(HistoryArgs),
}

/// Runs what was asked for.
pub fn run(args: BenchArgs) -> ExitCode {
    match args.command {
        None => crate::run(args.args),
        Some(BenchCommand::Verify(verify_args)) => verify(&verify_args),
        Some(BenchCommand::History(history_args)) => history_load::run(&history_args),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn parse(line: &str) -> Result<BenchArgs, clap::Error> {
        Cli::try_parse_from(std::iter::once("bench").chain(line.split_whitespace())).map(|cli| cli.args)
    }

    #[test]
    fn without_a_verb_it_measures() {
        Cli::command().debug_assert();
        for line in ["", "produce --rate 5/s", "consume"] {
            assert!(parse(line).is_ok_and(|args| args.command.is_none()), "{line}");
        }
    }

    #[test]
    fn verify_needs_a_file_or_asks_for_the_schema() {
        let verified = |line| match parse(line).map(|args| args.command) {
            Ok(Some(BenchCommand::Verify(args))) => Some(args),
            _ => None,
        };
        assert!(verified("verify a.jsonl b.jsonl -o json").is_some_and(|args| args.files.len() == 2));
        assert!(verified("verify --schema").is_some_and(|args| args.schema));
        assert!(parse("verify").is_err());
        assert!(parse("verify a --acks-1-durabel").is_err());
    }
}
