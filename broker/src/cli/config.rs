//! Owns `ringlog config`: of the broker's own configuration the reference page, one key, or the values in effect with where each came
//! from; of a running cluster the configs of topics, brokers and groups (`resources`).

mod resources;

use std::io::Write;
use std::process::ExitCode;

use crate::cli::broker::{SettingArgs, refuse};
use crate::config::{keys, reference};
use crate::process::escape::escaped;
use crate::process::exit::Exit;

/// Explain a broker's configuration; list, describe and alter configs of topics, brokers and groups.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    /// Print every key as the reference page
    Reference,
    /// Print what one key means, its default and its range
    Explain { key: String },
    /// Check the settings and print each with where it comes from; takes the flags of `ringlog broker`
    Show(Box<SettingArgs>),
    /// List the topics, the brokers, and the groups that have configs of their own
    #[command(visible_alias = "ls")]
    List(resources::ListArgs),
    /// Show configs of topics, brokers and groups, with where each is set
    Describe(resources::DescribeArgs),
    /// Change configs of a topic, a broker, all brokers or a group
    Alter(resources::AlterArgs),
}

pub fn run(args: Args) -> ExitCode {
    let text = match args.verb {
        Verb::Reference => reference::markdown(),
        Verb::Explain { key } => match keys::find(&key) {
            Some(key) => reference::explain(key),
            None => return unknown(&key),
        },
        Verb::Show(settings) => match settings.load() {
            Ok(config) => show(&config.settings),
            Err(errors) => return refuse(&errors),
        },
        Verb::List(args) => return resources::list(args),
        Verb::Describe(args) => return resources::describe(args),
        Verb::Alter(args) => return resources::alter(args),
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        Ok(()) => Exit::Success.into(),
        // `ringlog config reference | head` closes the pipe, which is no failure of ours to explain.
        Err(_) => Exit::Failure.into(),
    }
}

fn unknown(key: &str) -> ExitCode {
    match keys::suggest(key) {
        Some(name) => eprintln!("ringlog: unknown key `{}`: did you mean `{name}`?", escaped(key)),
        None => {
            eprintln!("ringlog: unknown key `{}`: `ringlog config reference` lists every key", escaped(key))
        }
    }
    Exit::Usage.into()
}

fn show(settings: &[crate::config::typed::EffectiveSetting]) -> String {
    let width = settings.iter().map(|setting| setting.key.len()).max().unwrap_or(0);
    let line = |setting: &crate::config::typed::EffectiveSetting| {
        format!("{:<width$} = {}  ({})\n", setting.key, escaped(&setting.value), setting.origin)
    };
    settings.iter().map(line).collect()
}
