//! Owns the command line: what `ringlog` understands, and which verb runs. Each verb is one file with its `Args` and a
//! `run`. No verb decides an exit code outside of `process::exit`.

pub mod bench;
pub mod broker;
pub mod cat;
pub mod cluster;
pub mod config;
mod configs;
mod confirm;
pub mod group;
pub mod output;
mod shell;
pub mod topic;
pub mod version;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::process::exit::Exit;
use crate::process::plan::StartShards;

const AFTER_HELP: &str = "\
Examples:
  ringlog broker                                     serve on 127.0.0.1:9092
  ringlog broker --ephemeral --listen 127.0.0.1:0    in memory, on a free port
  ringlog topic create orders --partitions 3         create a topic
  echo hello | ringlog cat -P -t orders              produce a record

Exit codes: 0 done, 1 failed, 2 wrong usage, 75 try again (address or data directory in use), 78 wrong \
configuration, 128+n ended by signal n.";

/// A streaming broker that speaks the Apache Kafka protocol.
#[derive(Debug, Parser)]
#[command(name = "ringlog", disable_version_flag = true, after_help = AFTER_HELP, max_term_width = 110)]
#[command(disable_help_subcommand = true, args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Print the version; with --verbose also how it was built
    #[arg(short = 'V', long)]
    pub version: bool,

    /// With --version: git revision, compiler, target, features, oldest kernel
    #[arg(short, long, requires = "version")]
    pub verbose: bool,

    #[command(subcommand)]
    pub verb: Option<Verb>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Run a broker
    Broker(Box<broker::Args>),
    /// Produce from standard input or a file, or consume to standard output
    Cat(cat::Args),
    /// Create, list, describe and delete topics
    Topic(topic::Args),
    /// Show and change what the cluster runs as a whole
    Cluster(cluster::Args),
    /// List and describe consumer groups, move and delete their offsets
    Group(group::Args),
    /// Drive load against a broker and verify every record
    Bench(Box<bench::Args>),
    /// Explain a broker's configuration; list, describe and alter configs of topics, brokers and groups
    Config(config::Args),
    /// Print the version
    Version(version::Args),
}

/// Parses the process's arguments and runs the verb. Wrong usage ends with 2 and a suggestion, from `clap`.
/// `start_shards` is what `ringlog broker` runs inside the process that it sets up.
pub fn main(start_shards: StartShards) -> ExitCode {
    let cli = Cli::parse();
    if cli.version {
        return version::run(&version::Args { verbose: cli.verbose });
    }
    match cli.verb {
        Some(Verb::Broker(args)) => broker::run(*args, start_shards),
        Some(Verb::Cat(args)) => cat::run(args),
        Some(Verb::Topic(args)) => topic::run(args),
        Some(Verb::Cluster(args)) => cluster::run(args),
        Some(Verb::Group(args)) => group::run(args),
        Some(Verb::Bench(args)) => bench::run(*args),
        Some(Verb::Config(args)) => config::run(args),
        Some(Verb::Version(args)) => version::run(&args),
        None => {
            // Printing help is all there is to do; a closed standard error changes nothing.
            eprint!("{}", Cli::command().render_help());
            Exit::Usage.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    /// clap breaks prose to the terminal's width; examples it would break in the middle.
    #[test]
    fn examples_fit_a_terminal_of_80_columns() {
        fn check(command: &clap::Command, too_long: &mut Vec<String>) {
            let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            too_long.extend(
                after.lines().filter(|line| line.starts_with("  ") && line.len() > 80).map(str::to_owned),
            );
            command.get_subcommands().for_each(|command| check(command, too_long));
        }
        let mut too_long = Vec::new();
        check(&Cli::command(), &mut too_long);
        assert_eq!(too_long, Vec::<String>::new());
    }

    #[test]
    fn verbs_and_versions() {
        assert!(parse("ringlog -V").is_ok_and(|cli| cli.version && !cli.verbose));
        assert!(parse("ringlog --version -v").is_ok_and(|cli| cli.version && cli.verbose));
        assert!(parse("ringlog -v").is_err());
        assert!(parse("ringlog").is_ok_and(|cli| cli.verb.is_none()));
        assert!(matches!(parse("ringlog version -v").map(|cli| cli.verb), Ok(Some(Verb::Version(_)))));
    }

    #[test]
    fn mistyped_flags_and_verbs_get_a_suggestion() {
        let text = parse("ringlog brokr").expect_err("no such verb").to_string();
        assert!(text.contains("'broker'"), "{text}");
        let text = parse("ringlog broker --shard 2").expect_err("no such flag").to_string();
        assert!(text.contains("--shards"), "{text}");
    }
}
